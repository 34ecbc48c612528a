"""What a modern client's HTTP request meets before and after the translation: checks, statuses, shapes.

The server is a legacy one whose session is open, and hears nothing of what is refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import field.raw
import pytest
from field.raw import BOTH, Answer, Exchange
from support.scripted_bridge import (
    LATEST,
    MODERN,
    PREFIX,
    UNHURRIED,
    Bridge,
    bridged,
    envelope,
    initialized,
    mirrored,
    modern,
    notification,
    request,
)
from support.scripted_http import Remote
from support.scripted_server import Heard, Json, ScriptedServer, dump

import bridge.evidence
from bridge import config
from bridge.app import running
from bridge.config import Access, Config, Listen, Timing
from bridge.era.revisions import Era
from crossing.piped import piped

VERSION, METHOD, NAME = "MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"
IN_BODY, CAPABILITIES = f"{PREFIX}protocolVersion", f"{PREFIX}clientCapabilities"
FOREIGN, TOKEN = "2099-01-01", "a-token-of-some-length"
HALF = b'{"jsonrpc":"2.0","id":1,'
LIST = modern(1, "tools/list")
CALL = modern(1, "tools/call", name="a", arguments={})


@asynccontextmanager
async def opened(timing: Timing = UNHURRIED) -> AsyncIterator[tuple[Bridge, ScriptedServer]]:
    """A legacy server that has tools, and its session for clients that can do nothing."""
    async with bridged(era=Era.LEGACY, timing=timing) as bridge:
        discovery = await bridge.post_modern(modern(0, "server/discover"))
        server = await bridge.source.next()
        server.answers(await server.hears("initialize"), initialized())
        await server.hears("notifications/initialized")
        assert (await discovery.answer()).status == 200
        yield bridge, server
        assert bridge.source.servers == [server]


async def asked(bridge: Bridge, server: ScriptedServer, message: Json) -> tuple[Exchange, Heard]:
    exchange = await bridge.post_modern(message)
    return exchange, await server.hears(message["method"])


async def refused(message: Json | list[Json] | bytes, headers: dict[str, str]) -> Answer:
    """The answer to what the server never hears of."""
    async with opened() as (bridge, server):
        answer = await bridge.ask(message, headers)
        assert not server.unread
        assert answer.headers["content-type"] == "application/json"
        return answer


def without(message: Json, *names: str, **changes: str) -> dict[str, str]:
    """The headers of a request, some left out, some changed."""
    kept = {name: value for name, value in mirrored(message).items() if name not in names}
    return kept | {name.replace("_", "-"): value for name, value in changes.items()}


def local(reason: str) -> Json:
    """The data of an error of the bridge's own."""
    return {"origin": "bridge", "reason": reason}


# --- the envelope, and the headers that repeat it ---

CONTRADICTING: dict[str, tuple[Json, dict[str, str], int]] = {
    "C1 no _meta": (request(1, "tools/list"), mirrored(LIST), -32602),
    "C2 no capabilities": (
        modern(1, "tools/list", meta={IN_BODY: MODERN, f"{PREFIX}clientInfo": {"name": "c", "version": "1"}}),
        mirrored(LIST), -32602,
    ),
    "C2 capabilities that are no object": (
        modern(1, "tools/list", meta=envelope(**{CAPABILITIES: []})), mirrored(LIST), -32602,
    ),
    "C4 a legacy version in the body": (
        modern(1, "tools/list", meta=envelope(**{IN_BODY: LATEST})), mirrored(LIST), -32020,
    ),
    "C5 no version in the header": (LIST, without(LIST, VERSION), -32020),
    "C6 a version that nobody knows": (
        modern(1, "tools/list", meta=envelope(**{IN_BODY: FOREIGN})),
        {**mirrored(LIST), VERSION: FOREIGN}, -32022,
    ),
    "C7 no Mcp-Method": (CALL, without(CALL, METHOD), -32020),
    "C7 Mcp-Method in another case": (CALL, {**mirrored(CALL), METHOD: "Tools/Call"}, -32020),
    "C9 no Mcp-Name": (CALL, without(CALL, NAME), -32020),
    "C9 another Mcp-Name": (CALL, {**mirrored(CALL), NAME: "b"}, -32020),
    "C11 Mcp-Name twice": (CALL, {**mirrored(CALL), NAME.lower(): "a"}, -32020),
    "C22 an unknown log level": (
        modern(1, "tools/list", meta=envelope(**{f"{PREFIX}logLevel": "loud"})), mirrored(LIST), -32602,
    ),
}  # fmt: skip

DATA = {
    -32602: local("envelope"),
    -32020: local("header_mismatch"),
    -32022: {"supported": [MODERN], "requested": FOREIGN},
}


@pytest.mark.crossing("C1", "C2", "C4", "C5", "C6", "C7", "C9", "C11", "C22")
@pytest.mark.parametrize("name", CONTRADICTING)
async def test_request_that_contradicts_itself_is_refused_with_400_and_its_id(name: str) -> None:
    message, headers, code = CONTRADICTING[name]
    answer = await refused(message, headers)
    assert (answer.status, answer.error["code"], answer.last["id"]) == (400, code, 1)
    assert answer.error["data"] == DATA[code]


AGREEING: dict[str, tuple[Json, dict[str, str]]] = {
    "C3 no clientInfo": (
        modern(1, "tools/list", meta={IN_BODY: MODERN, CAPABILITIES: {}}), mirrored(LIST),
    ),
    "C8 header names in any case": (
        CALL, {"mcp-protocol-version": MODERN, "MCP-METHOD": "tools/call", "mcp-nAME": "a"},
    ),
    "C10 an encoded name": (
        modern(1, "tools/call", name="héllo", arguments={}),
        {VERSION: MODERN, METHOD: "tools/call", NAME: "=?base64?aMOpbGxv?="},
    ),
}  # fmt: skip


@pytest.mark.crossing("C3", "C8", "C10")
@pytest.mark.parametrize("name", AGREEING)
async def test_request_that_agrees_with_its_headers_is_accepted(name: str) -> None:
    message, headers = AGREEING[name]
    async with opened() as (bridge, server):
        exchange = await bridge.post(message, headers)
        if message["method"] == "tools/call":
            server.answers(await server.hears("tools/list"), {"tools": []})  # to know what headers repeat
        heard = await server.hears(message["method"])
        assert heard.params.get("name") == message["params"].get("name")
        server.answers(heard, {"content": []})
        assert (await exchange.answer()).status == 200


# --- methods that are not there ---

REMOVED = [
    "ping", "initialize", "logging/setLevel", "resources/subscribe", "resources/unsubscribe",
    "tasks/result", "tasks/list",
]  # fmt: skip


@pytest.mark.crossing("C12", "C13")
@pytest.mark.parametrize("method", [*REMOVED, "prompts/list"])
async def test_method_that_the_revision_or_the_server_has_not_is_a_404(method: str) -> None:
    message = modern(1, method)
    answer = await refused(message, mirrored(message))
    assert (answer.status, answer.error["code"], answer.last["id"]) == (404, -32601, 1)
    assert answer.error["data"] == local("removed_method" if method in REMOVED else "not_offered")


# --- bodies that are no request ---

UNUSABLE: dict[str, tuple[bytes, int, int | None]] = {
    "C14 an array": (b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]', -32600, None),
    "C15 an answer": (b'{"jsonrpc":"2.0","id":1,"result":{}}', -32600, None),
    "C16 half a body": (HALF, -32700, None),
    "C17 no id": (b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}', -32600, None),
    "C18 a member twice": (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"a","_meta":%b}}'
        % dump(envelope()),
        -32600, 1,
    ),
}  # fmt: skip


@pytest.mark.crossing("C14", "C15", "C16", "C17", "C18")
@pytest.mark.parametrize("name", UNUSABLE)
async def test_body_that_is_no_sound_request_is_refused_with_400(name: str) -> None:
    body, code, echoed = UNUSABLE[name]
    answer = await refused(body, mirrored(CALL))
    assert (answer.status, answer.error["code"], answer.last["id"]) == (400, code, echoed)
    assert answer.error.keys() == {"code", "message"}


@pytest.mark.crossing("C19")
async def test_posted_cancellation_is_accepted_and_cancels_nothing() -> None:
    async with opened() as (bridge, server):
        exchange, heard = await asked(bridge, server, LIST)
        note = notification("cancelled", requestId=1)
        answer = await bridge.ask(note, {VERSION: MODERN, METHOD: note["method"]})
        assert (answer.status, answer.body) == (202, b"")
        assert not server.unread
        server.answers(heard, {"tools": []})
        assert (await exchange.answer()).result["tools"] == []


@pytest.mark.crossing("C20")
@pytest.mark.case("RV-03")
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_other_http_methods_of_the_revision_are_405(method: str) -> None:
    """The bridge never turns the legacy era off; it goes by the version in the header."""
    async with opened() as (bridge, server):
        answer = await (await bridge.send(method, {VERSION: MODERN, "Accept": BOTH})).answer()
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert not server.unread


@pytest.mark.crossing("C23")
async def test_subscription_without_a_stream_to_carry_it_is_a_406() -> None:
    message = modern(1, "subscriptions/listen", notifications={"toolsListChanged": True})
    answer = await refused(message, {**mirrored(message), "Accept": "application/json"})
    assert (answer.status, answer.error["code"], answer.last["id"]) == (406, -32600, 1)
    assert answer.error["data"] == local("accept")


@pytest.mark.crossing("C24")
@pytest.mark.case("RV-03")
async def test_leftovers_of_a_legacy_session_are_ignored() -> None:
    async with opened() as (bridge, server):
        exchange = await bridge.post_modern(LIST, {"Mcp-Session-Id": "x", "Last-Event-ID": "5"})
        server.answers(await server.hears("tools/list"), {"tools": []})
        answer = await exchange.answer()
        assert answer.status == 200
        assert not {"mcp-session-id", "last-event-id"} & answer.headers.keys()


# --- the answer ---


@pytest.mark.crossing("C25")
async def test_call_answered_at_once_is_plain_json() -> None:
    async with opened() as (bridge, server):
        exchange, heard = await asked(bridge, server, LIST)
        server.answers(heard, {"tools": []})
        answer = await exchange.answer()
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")


@pytest.mark.crossing("C26")
async def test_progress_makes_a_stream_without_event_ids_that_ends_with_the_result() -> None:
    async with opened() as (bridge, server):
        message = modern(1, "tools/list", meta=envelope(progressToken="t"))
        exchange, heard = await asked(bridge, server, message)
        server.progresses(heard, 1)
        server.answers(heard, {"tools": []})
        answer = await exchange.answer()
        assert answer.status == 200
        assert answer.streamed
        assert answer.headers["x-accel-buffering"] == "no"
        assert [event.id for event in answer.events] == [None, None]
        progress, last = answer.messages
        assert progress["params"] == {"progressToken": "t", "progress": 1}
        assert (last["id"], last["result"]["tools"]) == (1, [])


@pytest.mark.crossing("C27")
async def test_long_silence_makes_a_stream_with_comments_whose_last_event_is_the_error() -> None:
    assert Timing().commit_modern == 10.0
    async with opened(replace(UNHURRIED, commit_modern=0.0, keepalive=0.01)) as (bridge, server):
        exchange, heard = await asked(bridge, server, modern(1, "vendor/x"))
        assert await exchange.head() == 200
        assert exchange.headers["content-type"] == "text/event-stream"
        block = await exchange.block()
        assert block is not None
        assert block.comment is not None
        server.refuses(heard)
        last = await exchange.message()
        assert (last["id"], last["error"]) == (1, {"code": -32601, "message": "Method not found"})
        assert await exchange.block() is None


# --- other doors ---


@pytest.mark.crossing("C28")
async def test_request_on_stdio_without_envelope_or_session_is_refused() -> None:
    async with piped(era=Era.LEGACY) as client:
        client.says(request(1, "tools/list"))
        answer = await client.hears()
        assert (answer["id"], answer["error"]["code"]) == (1, -32602)
        assert not (await client.source.next()).unread


@pytest.mark.crossing("E11")
async def test_cancellation_on_stdio_of_an_id_of_another_type_is_ignored() -> None:
    async with piped(era=Era.LEGACY) as client:
        client.says(LIST)
        server = await client.source.next()
        server.answers(await server.hears("initialize"), initialized())
        await server.hears("notifications/initialized")
        heard = await server.hears("tools/list")
        client.says(notification("cancelled", requestId="1"), modern(2, "vendor/x"))
        other = await server.hears("vendor/x")
        server.answers(heard, {"tools": []})
        assert (await client.hears())["id"] == 1
        client.says(notification("cancelled", requestId=2))
        assert (await server.hears("notifications/cancelled")).params == {"requestId": other.id}


DOOR: dict[str, tuple[dict[str, str], bytes, int, str | None]] = {
    "C21 a foreign page": (
        {"Origin": "https://evil.example", "Authorization": f"Bearer {TOKEN}"}, dump(CALL), 403, "origin",
    ),
    "C29 no token, and half a body": ({}, HALF, 401, "unauthorized"),
    "half a body of a client that is let in": ({"Authorization": f"Bearer {TOKEN}"}, HALF, 400, None),
}  # fmt: skip


@pytest.mark.crossing("C21", "C29")
@pytest.mark.parametrize("name", DOOR)
async def test_foreign_page_and_unknown_client_are_turned_away_before_their_body_is_looked_at(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers, body, status, reason = DOOR[name]
    monkeypatch.setattr(bridge.evidence, "_FIRST", 3600.0)
    async with Remote() as server:
        settings = Config(
            upstream=config.Remote(url=server.url()),
            era=Era.LEGACY,
            listen=Listen(port=0),
            access=Access(token=TOKEN),
        )
        async with running(settings, {}) as (_, served):
            port = int(served.listening.rpartition(":")[2])
            lines = {"Content-Type": "application/json", "Accept": BOTH, **mirrored(CALL), **headers}
            answer = await field.raw.ask(port, "POST", [*lines.items()], body)
            assert (answer.status, answer.last.get("id")) == (status, None)
            assert answer.error.get("data") == (None if reason is None else local(reason))
            assert answer.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)
        assert server.seen == []
