"""What a requestState claims."""

from __future__ import annotations

import pytest

from bridge.core.message import Request, request
from bridge.era.state import VERSION, Claims, Kind, digest, flaw, principal, read, written


def asked(method: str = "tools/call", params: str = '{"name":"a","arguments":{"x":1}}') -> Request:
    return request(1, method, params.encode())


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", '{"arguments":{"x": 1},"name":"a","_meta":{"k":2},"requestState":"s"}'),
        ("tools/call", '{"name":"\\u0061","arguments":{"x":1}}'),
    ],
)
def test_requests_that_ask_for_the_same_have_one_digest(method: str, params: str) -> None:
    assert digest(asked(method, params)) == digest(asked())


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("prompts/get", '{"name":"a","arguments":{"x":1}}'),
        ("tools/call", '{"name":"b","arguments":{"x":1}}'),
        ("tools/call", '{"name":"a","arguments":{"x":1.0}}'),
        ("tools/call", '{"name":"a","arguments":{"x":"1"}}'),
        ("tools/call", '{"name":"a","arguments":{}}'),
        ("tools/call", '{"name":"a"}'),
        ("tools/call", '{"arguments":{"x":1}}'),
        ("resources/read", '{"name":"a","arguments":{"x":1}}'),
    ],
)
def test_requests_that_ask_for_something_else_have_another(method: str, params: str) -> None:
    assert digest(asked(method, params)) != digest(asked())


def test_resources_are_told_apart_by_their_uri() -> None:
    one, other = (asked("resources/read", f'{{"uri":"file:///{name}"}}') for name in "ab")
    assert digest(one) != digest(other)
    assert digest(request(1, "resources/read")) != digest(one)


def test_principal_is_named_differently_in_each_call_and_nobody_not_at_all() -> None:
    assert principal("ann", "c1") != principal("ann", "c2")
    assert principal("ann", "c1") != principal("bob", "c1")
    assert principal("", "c1") is None


def claims(**changed: object) -> Claims:
    values = {
        "version": VERSION,
        "kind": Kind.SUSPEND,
        "upstream": "up",
        "replica": "r",
        "call": "c",
        "round": 0,
        "request": digest(asked()),
        "issued": 100.0,
        "expires": 200.0,
        "principal": principal("ann", "c"),
        **changed,
    }
    return Claims(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({}, None),
        ({"version": 2}, "version"),
        ({"upstream": "other"}, "upstream"),
        ({"principal": None}, "principal"),
        ({"principal": principal("bob", "c")}, "principal"),
        ({"request": "x"}, "request"),
        ({"issued": 210.1}, "issued"),
        ({"issued": 209.9}, None),
        ({"expires": 150.0}, "expired"),
    ],
)
def test_first_claim_that_does_not_hold_is_the_flaw(changed: dict[str, object], cause: str | None) -> None:
    assert flaw(claims(**changed), asked(), "ann", "up", 150.0) == cause


def test_claims_are_read_as_they_were_written_and_nothing_else_is() -> None:
    assert read(written(claims())) == claims()
    assert read(b"{}") is None
    assert read(written(claims()).replace(b'"suspend"', b'"replay"')) is None
