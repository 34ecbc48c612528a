"""What a server that forgot its session is told again."""

from __future__ import annotations

import json

import pytest

from bridge.core.message import Request, Response, error, notification, request, result
from bridge.upstream.handshake import Handshake

PARAMS = (
    b'{"protocolVersion":"2025-06-18","capabilities":{"roots":{}},"clientInfo":{"name":"c","version":"1.0"}}'
)


def accepted(capabilities: object = None, version: object = "2025-06-18") -> Response:
    told = {"protocolVersion": version, "capabilities": capabilities or {}}
    return result(1, json.dumps(told).encode())


def opened(capabilities: object = None) -> Handshake:
    handshake = Handshake()
    handshake.sent(request(1, "initialize", PARAMS))
    assert handshake.answered(accepted(capabilities))
    return handshake


def params(message: Request) -> bytes:
    return bytes(message.params or b"")


@pytest.mark.spec("CL-5", "SC-12")
def test_initialize_is_repeated_with_the_clients_own_params_under_another_id() -> None:
    handshake = opened()
    first, second = handshake.again(), handshake.again()
    assert first is not None
    assert second is not None
    assert (first.method, params(first)) == ("initialize", PARAMS)
    assert len({1, first.id, second.id}) == 3


def test_nothing_is_repeated_of_a_session_that_never_was() -> None:
    handshake = Handshake()
    assert handshake.again() is None
    handshake.sent(request(1, "initialize", PARAMS))
    assert handshake.again() is None
    assert not handshake.answered(error(1, -32602, "no"))
    assert handshake.again() is None


@pytest.mark.spec("SC-12")
def test_the_last_level_and_the_resources_still_subscribed_to_are_set_again() -> None:
    handshake = opened()
    for level in ("debug", "error"):
        handshake.sent(request(2, "logging/setLevel", b'{"level":"%b"}' % level.encode()))
    for uri in ("a:1", "a:2", "a:3"):
        handshake.sent(request(3, "resources/subscribe", b'{"uri":"%b"}' % uri.encode()))
    handshake.sent(request(4, "resources/unsubscribe", b'{"uri":"a:2"}'))
    handshake.sent(request(5, "tools/list"))
    assert [(one.method, params(one)) for one in handshake.settings()] == [
        ("logging/setLevel", b'{"level":"error"}'),
        ("resources/subscribe", b'{"uri":"a:1"}'),
        ("resources/subscribe", b'{"uri":"a:3"}'),
    ]


def test_a_new_initialize_of_the_client_begins_anew() -> None:
    handshake = opened()
    handshake.sent(notification("notifications/initialized"))
    handshake.sent(request(2, "logging/setLevel", b'{"level":"debug"}'))
    before = handshake.initialized
    handshake.sent(request(3, "initialize", PARAMS))
    assert (before, handshake.initialized) == (True, False)
    assert not handshake.settings()
    assert handshake.version == ""


def test_lists_are_stale_that_the_server_announces_changes_of() -> None:
    capabilities = {
        "tools": {"listChanged": True},
        "prompts": {"listChanged": False},
        "resources": {},
        "x": 1,
    }
    assert [one.method for one in opened(capabilities).stale()] == ["notifications/tools/list_changed"]
    assert opened({"tools": 5}).stale() == []


@pytest.mark.parametrize(
    "told", [b"[]", b"{}", b'{"protocolVersion":7}', b'{"protocolVersion":"x","capabilities":1}']
)
def test_a_strange_result_opens_a_session_without_a_version(told: bytes) -> None:
    handshake = Handshake()
    handshake.sent(request(1, "initialize", PARAMS))
    assert handshake.answered(result(1, told))
    assert handshake.version == ""
    assert handshake.stale() == []


def test_subscriptions_are_bounded() -> None:
    handshake = opened()
    for number in range(1500):
        handshake.sent(request(number, "resources/subscribe", b'{"uri":"a:%d"}' % number))
    kept = handshake.settings()
    assert len(kept) == 1000
    assert params(kept[-1]) == b'{"uri":"a:1499"}'
