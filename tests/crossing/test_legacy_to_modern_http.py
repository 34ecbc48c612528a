"""A legacy session on a modern server behind HTTP: the headers it takes, and whose end a stream is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.scripted_http import LIMIT, Exchange, Handler, Remote
from upstream.remotes import TIMING, source

from bridge import config
from bridge.config import Config
from bridge.core.events import Exchange as Asking
from bridge.core.events import Party, Question
from bridge.core.message import Id, Notification, Request, Response, notification, request, result
from bridge.era.legacy_to_modern import LegacyToModern
from bridge.era.revisions import Era
from bridge.era.terms import Terms
from bridge.errors import ServerFault
from bridge.link import Link
from crossing.bench import EVERYTHING, PREFIX, Json
from crossing.legacy import ASKABLE, QUIET, SID, TASKS, bridges, discovery, dump, elicit, initialize, required


class ModernRemote(Remote):
    """A modern server over HTTP, which knows no session; `on` replaces what it does for a method."""

    def __init__(self, capabilities: Json = QUIET, on: dict[str, Handler] | None = None) -> None:
        super().__init__(on)
        self._offers = capabilities

    async def handle(self, exchange: Exchange) -> None:
        if exchange.rpc == "server/discover" and exchange.rpc not in self.on:
            exchange.result(discovery(self._offers))
        else:
            await super().handle(exchange)


class Client:
    """The port of a legacy session: what it is told, in order."""

    def __init__(self, link: Link) -> None:
        self.party = Party("client")
        self.link = link
        self.told: list[Json] = []
        self._came = asyncio.Event()
        layer = LegacyToModern(self.party, link, Terms(), name="up")
        link.join(self, layer, behind=layer.behind)

    def asks(self, own: Id, method: str, params: Json | None = None) -> Asking:
        asked = request(own, method, None if params is None else dump(params))
        exchange = self.link.ask(self, asked, None)
        assert isinstance(exchange, Asking)
        return exchange

    def calls(self, own: Id, name: str = "a", **arguments: object) -> Asking:
        return self.asks(own, "tools/call", {"name": name, "arguments": arguments})

    def replies(self, question: Json, value: Json) -> None:
        assert self.link.reply(self, result(question["id"], dump(value)))

    async def next(self, condition: Any) -> Json:
        """The first thing told that it holds for."""
        async with asyncio.timeout(LIMIT):
            while not (found := [one for one in self.told if condition(one)]):
                self._came.clear()
                await self._came.wait()
        self.told.remove(found[0])
        return found[0]

    async def answer(self, own: Id) -> Json:
        return await self.next(lambda one: one.get("id") == own and "method" not in one)

    async def result(self, own: Id) -> Json:
        found: Json = (await self.answer(own))["result"]
        return found

    async def error(self, own: Id) -> Json:
        found: Json = (await self.answer(own))["error"]
        return found

    async def hears(self, method: str) -> Json:
        return await self.next(lambda one: one.get("method") == method)

    def _tell(self, raw: bytes) -> None:
        self.told.append(json.loads(raw))
        self._came.set()

    # Port

    def answered(self, exchange: Asking, response: Response) -> None:
        self._tell(response.raw)

    def noted(self, exchange: Asking | None, note: Notification) -> None:
        self._tell(note.raw)

    def questioned(self, question: Question, request: Request) -> None:
        self._tell(request.raw)

    def ended(self, exchange: Asking) -> None:
        raise AssertionError("a legacy request is never torn down")

    def lost(self, fault: ServerFault) -> None:
        pass


@asynccontextmanager
async def session(server: ModernRemote, capabilities: Json | None = None) -> AsyncIterator[Client]:
    async with source(server.url()) as of:
        settings = Config(upstream=config.Remote(url=server.url()), timing=TIMING)
        link = Link(settings, fresh=True, era=Era.MODERN)
        link.attach(await of.open(link))
        client = Client(link)
        client.asks("init", "initialize", initialize(capabilities=capabilities))
        await client.result("init")
        link.tell(client, notification("notifications/initialized"))
        try:
            yield client
        finally:
            await link.close()


def answering(*results: object) -> Handler:
    """Give these results, one after another."""
    left = iter(results)

    async def answer(exchange: Exchange) -> None:
        exchange.result(next(left))

    return answer


@pytest.mark.crossing("J1")
async def test_discovery_carries_the_headers_of_a_modern_request() -> None:
    async with ModernRemote() as server, session(server):
        sent = server.asked("server/discover")[0]
        assert sent.headers["mcp-protocol-version"] == "2026-07-28"
        assert sent.headers["mcp-method"] == "server/discover"
        assert "mcp-session-id" not in sent.headers
        assert server.rpcs() == ["server/discover"]


@pytest.mark.crossing("J7")
@pytest.mark.case("RV-02")
async def test_a_call_names_its_tool_in_a_header() -> None:
    async with ModernRemote() as server, session(server) as client:
        client.calls(1)
        await client.result(1)
        assert server.asked("tools/call")[0].headers["mcp-name"] == "a"


@pytest.mark.crossing("J20")
async def test_a_further_round_has_the_same_headers() -> None:
    rounds = answering(required("Z", k=elicit()), {"content": [], "resultType": "complete"})
    async with ModernRemote(on={"tools/call": rounds}) as server, session(server, ASKABLE) as client:
        client.calls(1)
        client.replies(await client.hears("elicitation/create"), {"action": "accept", "content": {}})
        assert await client.result(1) == {"content": []}
        first, second = server.asked("tools/call")
        standing = ("mcp-protocol-version", "mcp-method", "mcp-name", "accept", "content-type")
        assert [first.headers[name] for name in standing] == [second.headers[name] for name in standing]
        assert second.json["params"]["requestState"] == "Z"
        assert second.json["params"]["inputResponses"] == {"k": {"action": "accept", "content": {}}}
        assert first.id != second.id


REGION: Json = {
    "name": "a",
    "inputSchema": {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}},
}


@pytest.mark.crossing("J34")
@pytest.mark.parametrize("stays", [False, True])
async def test_headers_that_the_server_misses_are_learnt_and_sent_once(stays: bool) -> None:
    async def call(exchange: Exchange) -> None:
        if exchange.headers.get("mcp-param-region") == "eu" and not stays:
            exchange.result({"content": []})
        else:
            error = {"code": -32020, "message": "Header mismatch"}
            exchange.reply(400, json.dumps({"jsonrpc": "2.0", "id": exchange.id, "error": error}).encode())

    on: dict[str, Handler] = {"tools/call": call, "tools/list": answering({"tools": [REGION]})}
    async with ModernRemote(on=on) as server, session(server) as client:
        client.calls(1, region="eu")
        if stays:
            error = await client.error(1)
            assert (error["code"], bridges(error)) == (-32603, "header_mismatch")
        else:
            assert await client.result(1) == {"content": []}
        assert server.rpcs() == ["server/discover", "tools/call", "tools/list", "tools/call"]
        assert server.asked("tools/call")[1].headers["mcp-param-region"] == "eu"


@pytest.mark.crossing("J36")
async def test_cancelling_closes_the_stream_of_the_call_and_posts_nothing() -> None:
    async def call(exchange: Exchange) -> None:
        exchange.stream(b": working\n\n")
        await exchange.left.wait()

    async with ModernRemote(on={"tools/call": call}) as server, session(server) as client:
        exchange = client.calls(1)
        hanging = await server.until_asked("tools/call")
        client.link.withdraw(exchange)
        await server.until(hanging.left.is_set)
        assert server.rpcs() == ["server/discover", "tools/call"]
        assert not client.told


@pytest.mark.crossing("J37")
@pytest.mark.parametrize("how", [Exchange.end, Exchange.cut])
async def test_a_stream_that_ends_without_an_answer_loses_a_call_and_repeats_a_read(how: Any) -> None:
    async def break_off(exchange: Exchange) -> None:
        if exchange.rpc == "tools/list" and len(server.asked("tools/list")) > 1:
            exchange.result({"tools": []})
            return
        exchange.stream(b": here\n\n")
        how(exchange)

    server = ModernRemote(on={"tools/call": break_off, "tools/list": break_off})
    async with server, session(server) as client:
        client.calls(1)
        error = await client.error(1)
        assert (error["code"], bridges(error)) == (-32603, "upstream_lost")
        client.asks(2, "tools/list")
        assert await client.result(2) == {"tools": []}
        assert server.rpcs() == ["server/discover", "tools/call", "tools/list", "tools/list"]
        first, second = server.asked("tools/list")
        assert first.json["params"] == second.json["params"]
        assert first.id != second.id


@pytest.mark.crossing("J42")
async def test_a_tool_that_cannot_be_called_over_http_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    bad = {
        "name": "bad",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"type": "string", "x-mcp-header": "no token"}},
        },
    }
    listing = answering({"tools": [bad, REGION]})
    async with ModernRemote(on={"tools/list": listing}) as server, session(server) as client:
        client.asks(1, "tools/list")
        assert await client.result(1) == {"tools": [REGION]}
    assert any("bad" in record.getMessage() for record in caplog.records)


@pytest.mark.crossing("J46")
async def test_a_server_that_does_not_know_the_bridge_gives_an_error_of_the_bridges() -> None:
    async def refuse(exchange: Exchange) -> None:
        exchange.reply(401, WWW_Authenticate='Bearer realm="x"')

    async with ModernRemote(on={"tools/list": refuse}) as server, session(server) as client:
        client.asks(1, "tools/list")
        error = await client.error(1)
        assert (error["code"], bridges(error)) == (-32603, "upstream_auth")
        assert len(server.asked("tools/list")) == 1


@pytest.mark.crossing("J40")
async def test_a_task_is_looked_at_by_its_name() -> None:
    working: Json = {"taskId": "t1", "status": "working", "pollIntervalMs": 100, "ttlMs": 60000}
    done = working | {"status": "completed", "result": {"content": []}}
    on = {"tools/call": answering({"resultType": "task", **working}), "tasks/get": answering(working, done)}
    server = ModernRemote({"tools": {}, "extensions": {TASKS: {}}}, on)
    async with server, session(server) as client:
        client.calls(1)
        assert await client.result(1) == {"content": []}
        declared = server.asked("tools/call")[0].json["params"]["_meta"][f"{PREFIX}clientCapabilities"]
        assert declared == {"extensions": {TASKS: {}}}
        assert [one.headers["mcp-name"] for one in server.asked("tasks/get")] == ["t1", "t1"]
        assert [one.json["params"]["taskId"] for one in server.asked("tasks/get")] == ["t1", "t1"]


@pytest.mark.crossing("J13", "J15")
async def test_a_subscription_is_one_stream_that_is_closed_when_the_next_stands() -> None:
    streams: list[Exchange] = []

    async def listen(exchange: Exchange) -> None:
        streams.append(exchange)
        exchange.stream()
        honoured = {"_meta": {SID: exchange.id}, "notifications": exchange.json["params"]["notifications"]}
        method = "notifications/subscriptions/acknowledged"
        exchange.say({"jsonrpc": "2.0", "method": method, "params": honoured})
        server.tell()
        await exchange.left.wait()
        server.tell()

    server = ModernRemote(EVERYTHING, {"subscriptions/listen": listen})
    async with server, session(server) as client:
        await server.until(lambda: len(streams) == 1)
        client.asks(1, "resources/subscribe", {"uri": "file:///a"})
        assert await client.result(1) == {}
        await server.until(streams[0].left.is_set)
        assert not streams[1].left.is_set()
        note = {"_meta": {SID: streams[1].id}, "uri": "file:///a"}
        streams[1].say({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": note})
        assert (await client.hears("notifications/resources/updated"))["params"] == {"uri": "file:///a"}
        assert "notifications/cancelled" not in server.rpcs()
