"""A legacy session on a modern server as its client sees it: over Streamable HTTP, and on stdio."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from field.raw import ask
from support.scripted_bridge import (
    UNHURRIED,
    Bridge,
    Session,
    bridged,
    call,
    initialize,
    notification,
    request,
)
from support.scripted_server import LIMIT, Heard, ScriptedServer, ScriptedSource, dump

from bridge.app import Site
from bridge.config import Access, Command, Config, Downstream, Listen, ProcessModel
from bridge.downstream.listener import serve
from bridge.downstream.stdio import StdioPort
from bridge.era.revisions import Era
from bridge.relay import Relay
from crossing.bench import EVERYTHING, PREFIX, Json
from crossing.legacy import ASKABLE, QUIET, R2, R3, R4, SID, discovery, elicit, required

JSON_ONLY = {"Accept": "application/json"}
TOKEN = "s3cret-token-of-16"


@asynccontextmanager
async def modern() -> AsyncIterator[Bridge]:
    async with bridged(era=Era.MODERN, process=ProcessModel.SHARED) as bridge:
        yield bridge


async def opened(
    bridge: Bridge, revision: str = R4, capabilities: Json | None = None, server: Json = QUIET
) -> Session:
    """A session that is open, on the server that all sessions share."""
    first = not bridge.source.servers
    opening = await bridge.post(initialize(revision, **(capabilities or {})))
    upstream = await bridge.source.next() if first else bridge.source.servers[-1]
    upstream.answers(await upstream.hears("server/discover"), discovery(server))
    answer = await opening.answer()
    assert answer.result["protocolVersion"] == revision
    session = Session(bridge, upstream, answer.headers["mcp-session-id"])
    assert (await session.ask(notification("initialized"))).status == 202
    return session


async def followed(bridge: Bridge) -> tuple[Session, Heard]:
    """A session whose first subscription stands."""
    session = await opened(bridge, server=EVERYTHING)
    listen = await session.server.hears("subscriptions/listen")
    session.server.notes(
        "subscriptions/acknowledged", _meta={SID: listen.id}, notifications=listen.params["notifications"]
    )
    return session, listen


def capabilities_in(heard: Heard) -> Json:
    found: Json = heard.params["_meta"][f"{PREFIX}clientCapabilities"]
    return found


@pytest.mark.crossing("J2")
async def test_a_session_has_an_id_of_its_own() -> None:
    async with modern() as bridge:
        one, other = await opened(bridge), await opened(bridge)
        assert one.server is other.server
        assert one.id != other.id


@pytest.mark.crossing("J5")
async def test_a_session_that_is_not_opened_has_no_id() -> None:
    async with modern() as bridge:
        opening = await bridge.post(initialize())
        server = await bridge.source.next()
        asked = await server.hears("server/discover")
        data = {"supported": ["2030-01-01"], "requested": "2026-07-28"}
        server.says({"id": asked.id, "error": {"code": -32022, "message": "no", "data": data}})
        answer = await opening.answer()
        assert (answer.status, answer.error["code"]) == (200, -32602)
        assert answer.error["data"] == {"supported": ["2030-01-01"], "requested": R4}
        assert "mcp-session-id" not in answer.headers


async def test_sessions_with_equal_ids_get_their_own_answers() -> None:
    async with modern() as bridge:
        one, other = await opened(bridge), await opened(bridge)
        asked = [await session.calls(call(1, name)) for session, name in ((one, "one"), (other, "other"))]
        for _, heard in reversed(asked):
            one.server.answers(heard, {"content": [], "name": heard.params["name"]})
        names = [(await exchange.answer()).result["name"] for exchange, _ in asked]
        assert names == ["one", "other"]


@pytest.mark.crossing("J16")
async def test_what_changes_while_nobody_listens_is_told_once_when_somebody_does() -> None:
    async with modern() as bridge:
        session, listen = await followed(bridge)
        for _ in range(2):
            session.server.notes("tools/list_changed", _meta={SID: listen.id})
        session.server.notes("prompts/list_changed", _meta={SID: listen.id})
        stream = await session.listen()
        methods = [(await stream.message())["method"] for _ in range(2)]
        assert methods == ["notifications/tools/list_changed", "notifications/prompts/list_changed"]
        session.server.notes("resources/list_changed", _meta={SID: listen.id})
        assert (await stream.message())["method"] == "notifications/resources/list_changed"


@pytest.mark.crossing("J19", "J20")
@pytest.mark.case("RV-02")
async def test_a_question_comes_on_the_stream_of_its_call_and_its_answer_is_taken() -> None:
    async with modern() as bridge:
        session = await opened(bridge, capabilities=ASKABLE)
        exchange, heard = await session.calls(call(5))
        session.server.answers(heard, required("Z", k=elicit()))
        question = await exchange.message()
        assert (question["id"], question["method"]) == ("br-1", "elicitation/create")
        reply = await session.ask({"id": "br-1", "result": {"action": "accept", "content": {}}})
        assert reply.status == 202
        again = await session.server.hears("tools/call")
        assert again.params["inputResponses"] == {"k": {"action": "accept", "content": {}}}
        assert again.id != heard.id
        session.server.answers(again, {"content": [], "resultType": "complete"})
        answer = await exchange.answer()
        assert answer.messages == [{"jsonrpc": "2.0", "id": 5, "result": {"content": []}}]


@pytest.mark.crossing("J30")
async def test_a_call_cancelled_while_its_client_is_asked_ends_its_stream() -> None:
    async with modern() as bridge:
        session = await opened(bridge, capabilities=ASKABLE)
        exchange, heard = await session.calls(call(5))
        session.server.answers(heard, required("Z", k=elicit()))
        await exchange.message()
        assert (await session.ask(notification("cancelled", requestId=5))).status == 202
        answer = await exchange.answer()
        [told] = answer.messages
        assert (told["method"], told["params"]) == ("notifications/cancelled", {"requestId": "br-1"})
        assert not session.server.unread


@pytest.mark.crossing("J31")
async def test_a_client_that_takes_no_stream_declares_nothing() -> None:
    async with modern() as bridge:
        session = await opened(bridge, capabilities=ASKABLE)
        exchange, heard = await session.calls(call(1), JSON_ONLY)
        assert capabilities_in(heard) == {}
        session.server.answers(heard, {"content": []})
        assert (await exchange.answer()).result == {"content": []}
        _, heard = await session.calls(call(2))
        assert capabilities_in(heard).keys() == {"elicitation", "sampling", "roots"}
        session.server.answers(heard, {"content": []})


@pytest.mark.crossing("J32")
async def test_an_unknown_method_is_no_404() -> None:
    async with modern() as bridge:
        session = await opened(bridge)
        exchange, heard = await session.calls(request(1, "vendor/x"))
        session.server.refuses(heard)
        answer = await exchange.answer()
        assert (answer.status, answer.error["code"]) == (200, -32601)


@pytest.mark.crossing("J33")
async def test_an_error_is_a_200() -> None:
    async with modern() as bridge:
        session = await opened(bridge)
        exchange, heard = await session.calls(request(1, "resources/read", uri="file:///x"))
        error = {"code": -32602, "message": "nf", "data": {"uri": "file:///x"}}
        session.server.says({"id": heard.id, "error": error})
        answer = await exchange.answer()
        assert (answer.status, answer.error) == (200, error | {"code": -32002})


@pytest.mark.crossing("J35")
async def test_a_client_that_drops_out_finds_its_answer_later() -> None:
    async with modern() as bridge:
        session = await opened(bridge)
        exchange, heard = await session.calls(call(1, token="t"))
        session.server.progresses(heard, 1)
        events = [await exchange.block(), await exchange.block()]
        last = [event.id for event in events if event is not None and event.id][-1]
        exchange.writer.close()
        await bridge.handles(0)
        assert not session.server.unread
        session.server.answers(heard, {"content": [], "resultType": "complete"})
        resumed = await session.listen(last)
        assert (await resumed.message())["result"] == {"content": []}


@pytest.mark.crossing("J43")
async def test_a_notification_is_taken_and_goes_nowhere() -> None:
    async with modern() as bridge:
        session = await opened(bridge, capabilities=ASKABLE)
        answer = await session.ask(notification("roots/list_changed"))
        assert (answer.status, answer.body) == (202, b"")
        assert not session.server.unread


@pytest.mark.crossing("J44")
async def test_a_request_before_initialize_has_no_session_over_http() -> None:
    async with modern() as bridge:
        answer = await bridge.ask(request(1, "tools/list"))
        assert (answer.status, answer.error["code"], answer.last["id"]) == (400, -32600, 1)
        assert not bridge.source.servers


@pytest.mark.crossing("J45")
async def test_a_session_that_is_not_the_clients_is_not_found() -> None:
    async with modern() as bridge:
        await opened(bridge)
        stranger = Session(bridge, bridge.source.servers[0], "0" * 32)
        assert (await stranger.ask(request(1, "tools/list"))).status == 404
        assert not bridge.source.servers[0].unread


@pytest.mark.crossing("J45")
async def test_a_client_without_authorization_is_not_let_in() -> None:
    settings = Config(
        upstream=Command(argv=("script",)),
        listen=Listen(port=0),
        timing=UNHURRIED,
        era=Era.MODERN,
        access=Access(token=TOKEN),
    )
    source = ScriptedSource()
    relay = Relay(settings, source)
    served = await serve(settings.listen, Site(settings, relay).handle, stalled=30.0)
    port = int(served.listening.rpartition(":")[2])
    body = dump({"jsonrpc": "2.0", **initialize()})
    headers = [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")]
    try:
        async with relay:
            assert (await ask(port, "POST", headers, body)).status == 401
            wrong = [*headers, ("Authorization", f"Bearer {TOKEN}x"), ("Mcp-Session-Id", "0" * 32)]
            assert (await ask(port, "POST", wrong, body)).status == 401
    finally:
        await source.close()
        await served.close(0.2)


@pytest.mark.crossing("J47")
async def test_a_batch_is_split_and_answered_together() -> None:
    async with modern() as bridge:
        session = await opened(bridge, R2)
        batch = [request(1, "tools/list"), request(2, "ping"), notification("roots/list_changed")]
        exchange = await session.post(batch)
        heard = await session.server.hears("tools/list")
        session.server.answers(heard, {"tools": [], "resultType": "complete", "ttlMs": 0})
        answer = await exchange.answer()
        answers = json.loads(answer.body) if not answer.streamed else answer.messages
        assert sorted(answers, key=lambda one: int(one["id"])) == [
            {"jsonrpc": "2.0", "id": 1, "result": {"tools": []}},
            {"jsonrpc": "2.0", "id": 2, "result": {}},
        ]
        assert not session.server.unread


@pytest.mark.crossing("J48")
async def test_a_batch_of_a_later_revision_is_refused() -> None:
    async with modern() as bridge:
        session = await opened(bridge, R3)
        answer = await session.ask([request(1, "tools/list")])
        assert (answer.status, answer.error["code"]) == (400, -32600)
        assert not session.server.unread


async def test_a_session_that_ends_cancels_what_runs_and_leaves_the_server_to_others() -> None:
    async with modern() as bridge:
        session, listen = await followed(bridge)
        _, heard = await session.calls(call(1))
        other = await opened(bridge)
        assert (await session.delete()).status == 200
        gone = [(await session.server.hears("notifications/cancelled")).params["requestId"] for _ in range(2)]
        assert set(gone) == {heard.id, listen.id}
        _, heard = await other.calls(call(1))
        other.server.answers(heard, {"content": []})


# --- stdio ---


@pytest.mark.crossing("J44")
async def test_a_request_before_initialize_is_refused_on_stdio() -> None:
    settings = Config(
        upstream=Command(argv=("s",)), downstream=Downstream.STDIO, era=Era.MODERN, timing=replace(UNHURRIED)
    )
    source = ScriptedSource()
    (stdin, writing), (reading, stdout) = socket.socketpair(), socket.socketpair()
    async with Relay(settings, source) as relay:
        port = StdioPort(relay, stdin.detach(), stdout.detach())
        _, writer = await asyncio.open_connection(sock=writing)
        reader, other = await asyncio.open_connection(sock=reading)
        serving = asyncio.create_task(port.serve())

        async def says(message: Json) -> None:
            writer.write(dump({"jsonrpc": "2.0", **message}) + b"\n")
            await writer.drain()

        async def hears() -> Json:
            async with asyncio.timeout(LIMIT):
                found: Json = json.loads(await reader.readline())
            return found

        try:
            await says(request(1, "tools/list"))
            refused = await hears()
            assert (refused["id"], refused["error"]["code"]) == (1, -32602)
            await says(initialize())
            server: ScriptedServer = await source.next()
            server.answers(await server.hears("server/discover"), discovery())
            assert (await hears())["result"]["protocolVersion"] == R4
            await says(request(2, "tools/list"))
            server.answers(await server.hears("tools/list"), {"tools": [], "resultType": "complete"})
            assert (await hears())["result"] == {"tools": []}
        finally:
            serving.cancel()
            await asyncio.wait([serving])
            await port.close()
            writer.close()
            other.close()


async def test_each_session_has_a_child_of_its_own_unless_they_share() -> None:
    """On stdio nothing says whose a log message is; a child for each session leaves no doubt."""
    async with bridged(era=Era.MODERN) as bridge:
        openings = [await bridge.post(initialize()) for _ in range(2)]
        for opening in openings:
            server = await bridge.source.next()
            server.answers(await server.hears("server/discover"), discovery(QUIET))
            assert (await opening.answer()).status == 200
        assert len(bridge.source.servers) == 2
