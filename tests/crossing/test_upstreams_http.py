"""Modern callers and a legacy server at a URL: which connection carries what, and what failures mean."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.scripted_bridge import PREFIX, envelope
from support.scripted_http import LIMIT, Exchange, Handler, Remote
from support.scripted_server import Json

from bridge.config import Config, Limits, Timing, Transport
from bridge.config import Remote as Address
from bridge.core.message import Notification, Response, request
from bridge.downstream.caller import ModernCaller
from bridge.era.revisions import Era
from bridge.link import Link
from bridge.relay import Relay
from bridge.upstream.remote import RemoteSource

ALL: Json = {"elicitation": {}, "sampling": {}, "roots": {}}


class Caller:
    """One modern request, and what comes of it; it is its own outlet."""

    def __init__(self, relay: Relay, request_id: int, method: str, **params: object) -> None:
        meta = envelope(**{f"{PREFIX}clientCapabilities": ALL})
        self.asked = request(request_id, method, json.dumps({**params, "_meta": meta}).encode())
        self.notes: list[Json] = []
        self.waiting = 0
        self.streaming = False
        self._relay = relay
        self._answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._port = ModernCaller(relay, self.asked, "ann", self, private=False, wants_log=False)

    async def ask(self) -> None:
        found = await self._relay.modern(self.asked, "ann")
        assert isinstance(found, Link), found
        self._port.ask(found)

    def leave(self) -> None:
        self._port.leave()

    async def answered(self) -> Json:
        async with asyncio.timeout(LIMIT):
            return await self._answer

    def answer(self, response: Response) -> None:
        self._answer.set_result(json.loads(response.raw))
        self._port.leave()

    def push(self, note: Notification, *, once: bool = False) -> None:
        self.notes.append(json.loads(note.raw))

    def end(self, answered: Response | None = None) -> None:
        raise AssertionError("nothing ends without an answer")


@asynccontextmanager
async def reached(on: dict[str, Handler]) -> AsyncIterator[tuple[Relay, Remote]]:
    """A relay before a legacy server over Streamable HTTP."""
    async with Remote(on) as remote:
        remote.capabilities = {"tools": {}}
        address = Address(url=remote.url(), transport=Transport.HTTP)
        source = RemoteSource(address, Limits(), Timing())
        async with source, Relay(Config(upstream=address, era=Era.LEGACY), source) as relay:
            relay.readiness.discovered("2025-11-25")
            yield relay, remote


@pytest.mark.crossing("G6")
@pytest.mark.parametrize("status", [401, 403])
async def test_refused_credentials_of_the_bridge_are_not_the_clients_matter(status: int) -> None:
    async def refuse(exchange: Exchange) -> None:
        exchange.reply(status, b"no", "text/plain", WWW_Authenticate='Bearer realm="up"')

    async with reached({"tools/call": refuse}) as (relay, _):
        caller = Caller(relay, 1, "tools/call", name="a", arguments={})
        await caller.ask()
        error = (await caller.answered())["error"]
        assert error["code"] == -32603
        assert (error["data"]["origin"], error["data"]["reason"]) == ("bridge", "upstream_auth")


@pytest.mark.crossing("G7")
async def test_session_that_the_server_forgot_is_opened_anew_and_the_call_sent_once_more() -> None:
    forgotten: list[Exchange] = []

    async def call(exchange: Exchange) -> None:
        if not forgotten:
            forgotten.append(exchange)
            exchange.reply(404, b"", "text/plain")
        else:
            exchange.result({"content": []})

    async with reached({"tools/call": call}) as (relay, remote):
        caller = Caller(relay, 1, "tools/call", name="a", arguments={})
        await caller.ask()
        answer = await caller.answered()
        assert (answer["id"], answer["result"]["content"]) == (1, [])
        opening = remote.asked("initialize")[1]
        assert "mcp-session-id" not in {name.lower() for name in opening.headers}
        assert remote.rpcs().count("notifications/initialized") == 2
        assert remote.rpcs().count("tools/call") == 2


@pytest.mark.crossing("E9")
async def test_caller_that_leaves_cancels_by_a_post_in_the_session() -> None:
    async def hold(exchange: Exchange) -> None:
        exchange.stream()

    async with reached({"tools/call": hold}) as (relay, remote):
        caller = Caller(relay, 1, "tools/call", name="a", arguments={})
        await caller.ask()
        held = await remote.until_asked("tools/call")
        caller.leave()
        cancelled = await remote.until_asked("notifications/cancelled")
        assert cancelled.json["params"] == {"requestId": held.id}
        assert cancelled.headers["mcp-session-id"] == held.headers["mcp-session-id"]


@pytest.mark.crossing("D24")
async def test_question_on_the_listening_stream_belongs_to_the_only_call() -> None:
    streams: list[Exchange] = []

    async def listen(exchange: Exchange) -> None:
        exchange.stream()
        streams.append(exchange)

    async def hold(exchange: Exchange) -> None:
        exchange.stream()

    async with reached({"GET": listen, "tools/call": hold}) as (relay, remote):
        caller = Caller(relay, 1, "tools/call", name="a", arguments={})
        await caller.ask()
        held = await remote.until_asked("tools/call")
        streams[0].say({"jsonrpc": "2.0", "id": 0, "method": "roots/list"})
        found = (await caller.answered())["result"]
        assert found["inputRequests"] == {"in-1": {"method": "roots/list"}}
        roots = {"roots": [{"uri": "file:///a"}]}
        retry = Caller(
            relay,
            2,
            "tools/call",
            name="a",
            arguments={},
            inputResponses={"in-1": roots},
            requestState=found["requestState"],
        )
        await retry.ask()
        await remote.until(lambda: any("result" in one.json for one in remote.seen if one.body))
        [reply] = [one for one in remote.seen if one.body and "result" in one.json]
        assert (reply.json["id"], reply.json["result"]) == (0, roots)
        assert reply.headers["mcp-session-id"] == held.headers["mcp-session-id"]
        held.answer({"content": []})
        assert (await retry.answered())["result"]["content"] == []
