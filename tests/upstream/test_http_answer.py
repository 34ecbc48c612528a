"""What an HTTP answer means, where no server is needed to tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
from aiohttp import ClientResponse

from bridge.config import Limits, Remote, Timing
from bridge.core.message import error
from bridge.core.sse import Event
from bridge.errors import ServerFault
from bridge.upstream.http_answer import Refused, failure, is_message
from bridge.upstream.http_client import HttpClient, Unreachable

DEPTH = Limits().depth
SECRET = "s3cr3t-t0k3n"


class Response:
    def __init__(self, status: int, **headers: str) -> None:
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def refused(status: int, body: bytes, *, kind: str = "text/plain", **headers: str) -> Refused:
    client = HttpClient(Remote(url="http://h/", headers=(("X-Key", SECRET), ("T", Path("never")))), Timing())
    response = Response(status, Content_Type=kind, **headers)
    return Refused(client, cast("ClientResponse", response), body, DEPTH)


def told(fault: ServerFault) -> dict[str, object]:
    answer = json.loads(failure(7, fault).raw)
    assert answer["id"] == 7
    assert answer["jsonrpc"] == "2.0"
    return cast("dict[str, object]", answer["error"])


@pytest.mark.spec("CL-15")
def test_a_failure_without_words_says_its_status() -> None:
    assert told(refused(503, b"")) == {
        "code": -32603,
        "message": "The server answered HTTP 503",
        "data": {"origin": "bridge", "reason": "upstream_refused", "httpStatus": 503},
    }


@pytest.mark.spec("CL-17")
def test_an_excerpt_is_short_and_one_line_and_without_markup() -> None:
    page = (
        b"<!doctype html><style>p{color:red}</style><script>x()</script><h1>Bad\n\n gateway</h1>"
        + b"y" * 10**6
    )
    message = str(refused(502, page, kind="text/html; charset=x"))
    assert message.startswith("The server answered HTTP 502: Bad gateway yyy")
    assert len(message) < 350


@pytest.mark.spec("SP-11")
def test_what_was_sent_in_confidence_is_not_quoted_back() -> None:
    fault = refused(401, f"no such key {SECRET}".encode(), WWW_Authenticate=f'Bearer was="{SECRET}"')
    assert SECRET not in failure(1, fault).raw.decode()
    assert "no such key ***" in str(fault)
    assert fault.told["wwwAuthenticate"] == 'Bearer was="***"'


@pytest.mark.case("TF-04")
@pytest.mark.parametrize("status", [429, 503])
def test_when_to_come_back_is_told(status: int) -> None:
    data = cast("dict[str, object]", told(refused(status, b"", Retry_After="120"))["data"])
    assert data["retryAfter"] == "120"


@pytest.mark.spec("G-20", "CM-10")
@pytest.mark.parametrize("own_id", [None, "server-error", 7, 8])
def test_the_servers_own_error_is_the_answer(own_id: int | str | None) -> None:
    body = error(own_id, -32001, "Mine", b'{"n":1.0}').raw
    assert failure(7, refused(400, body)).raw == error(7, -32001, "Mine", b'{"n":1.0}').raw


@pytest.mark.parametrize(
    "body", [b'{"jsonrpc":"2.0","id":7,"result":{}}', b"[]", b"{", b'{"error":"x"}', b"\xff"]
)
def test_a_body_that_is_no_error_is_quoted(body: bytes) -> None:
    assert "HTTP 400" in cast("str", told(refused(400, body))["message"])


def test_other_faults_carry_their_reason() -> None:
    data = {"origin": "bridge", "reason": "upstream_unreachable"}
    assert told(Unreachable("gone")) == {"code": -32603, "message": "gone", "data": data}


@pytest.mark.spec("RS-8")
def test_only_events_of_messages_with_data_are_messages() -> None:
    assert is_message(Event("message", b"{}", None))
    assert not is_message(Event("message", b"", "1"))
    assert not is_message(Event("endpoint", b"/m", None))
