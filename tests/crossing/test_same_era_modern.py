"""What passes between modern peers as it is, and what a hop may change; and whose credentials go where.

Legacy peers are in `test_same_era.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import field.raw
import pytest
from field.raw import BOTH, Answer
from support.scripted_bridge import (
    MODERN,
    SUBSCRIPTION,
    UNHURRIED,
    bridged,
    initialize,
    initialized,
    mirrored,
    modern,
    notification,
)
from support.scripted_http import Exchange, Remote
from support.scripted_server import Json, dump

import bridge.evidence
from bridge import config
from bridge.app import running
from bridge.config import Access, Config, Listen
from bridge.era.revisions import Era
from crossing.piped import piped

TOKEN, UPSTREAM, ORIGIN = "downstream-token-0123", "Bearer upstream-token", "https://app.example"
TOOL: Json = {
    "name": "q",
    "inputSchema": {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}, "n": {"type": "integer"}},
    },
}


@pytest.fixture(autouse=True)
def _unexamined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge.evidence, "_FIRST", 3600.0)


class Server(Remote):
    """A server of one era, or of both, with one tool."""

    def __init__(self, *eras: Era) -> None:
        super().__init__()
        self._eras = eras

    def initialized(self) -> Json:
        return initialized()

    async def handle(self, exchange: Exchange) -> None:
        match exchange.rpc:
            case "server/discover" if Era.MODERN not in self._eras:
                self._fail(exchange, 400)
            case "initialize" if Era.LEGACY not in self._eras:
                self._fail(exchange, 404)
            case method if method in self.on:
                await super().handle(exchange)
            case "server/discover":
                exchange.result({"supportedVersions": [MODERN], "capabilities": {"tools": {}}})
            case "tools/list":
                exchange.result({"tools": [TOOL]})
            case "tools/call":
                exchange.result({"content": [], "resultType": "complete"})
            case _:
                await super().handle(exchange)

    @staticmethod
    def _fail(exchange: Exchange, status: int) -> None:
        error = {"code": -32601, "message": "no"}
        exchange.reply(status, dump({"jsonrpc": "2.0", "id": exchange.id, "error": error}))


class Site:
    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, message: Json, headers: Mapping[str, str]) -> Answer:
        lines = {"Content-Type": "application/json", "Accept": BOTH, **headers}
        body = dump({"jsonrpc": "2.0", **message})
        return await field.raw.ask(self._port, "POST", [*lines.items()], body)


@asynccontextmanager
async def sited(server: Remote, *, access: Access | None = None, **upstream: object) -> AsyncIterator[Site]:
    """The bridge over HTTP before a server over HTTP."""
    async with server:
        settings = Config(
            upstream=config.Remote(url=server.url(), **upstream),  # type: ignore[arg-type]
            listen=Listen(port=0),
            access=access or Access(),
            timing=UNHURRIED,
        )
        async with running(settings, {}) as (_, served):
            yield Site(int(served.listening.rpartition(":")[2]))


def listen(request_id: int) -> Json:
    return modern(request_id, "subscriptions/listen", notifications={"toolsListChanged": True})


@pytest.mark.crossing("K19")
async def test_subscriptions_with_equal_ids_keep_their_own_acknowledgment_and_ending() -> None:
    async with bridged() as bridge:
        server = await bridge.modern_server()
        streams = []
        for _ in range(2):
            exchange = await bridge.post_modern(listen(1))
            streams.append((exchange, await server.hears("subscriptions/listen")))
        assert streams[0][1].id != streams[1][1].id
        for number, (exchange, asked) in enumerate(streams):
            meta = {SUBSCRIPTION: asked.id}
            server.notes("subscriptions/acknowledged", _meta=meta, notifications={"n": number})
            server.answers(asked, {"resultType": "complete", "_meta": meta})
            acknowledged, closing = (await exchange.answer()).messages
            assert acknowledged["params"] == {"_meta": {SUBSCRIPTION: 1}, "notifications": {"n": number}}
            assert (closing["id"], closing["result"]["_meta"]) == (1, {SUBSCRIPTION: 1})


@pytest.mark.crossing("K20")
async def test_questions_state_and_unknown_fields_of_a_modern_server_pass_unchanged() -> None:
    result = (
        b'{"x-v":1.0,"resultType":"input_required","requestState":"Z",'
        b'"inputRequests":{"a":{"method":"elicitation/create","params":{"message":"?","y":1E400}}}}'
    )
    async with bridged() as bridge:
        server = await bridge.modern_server()
        message = modern(1, "prompts/get", name="p")
        exchange = await bridge.post_modern(message)
        asked = await server.hears("prompts/get")
        assert asked.id is not None
        server.says(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (int(asked.id), result))
        assert (await exchange.answer()).payloads == [b'{"jsonrpc":"2.0","id":1,"result":%b}' % result]
        back = {"inputResponses": {"a": {"action": "decline"}}, "requestState": "Z"}
        await bridge.post_modern({**message, "params": {**message["params"], **back}})
        assert (await server.hears("prompts/get")).params == {**message["params"], **back}


@pytest.mark.crossing("K21")
async def test_cancellation_on_stdio_closes_the_stream_over_http_and_posts_nothing() -> None:
    async def waits(exchange: Exchange) -> None:
        exchange.stream(b": wait\n\n")
        await exchange.left.wait()

    server = Server(Era.MODERN)
    server.on["vendor/wait"] = waits
    async with server, piped(server.url()) as client:
        client.says(modern(7, "vendor/wait"))
        asked = await server.until_asked("vendor/wait")
        client.says(notification("cancelled", requestId=7))
        await server.until(asked.left.is_set)
        client.says(modern(8, "tools/list"))
        assert (await client.hears())["id"] == 8, "and 7 is never answered"
        assert server.rpcs() == ["server/discover", "vendor/wait", "tools/list"]


CALL = modern(1, "tools/call", name="q", arguments={"region": "eu"})


@pytest.mark.crossing("K22")
async def test_parameter_header_that_nobody_knows_is_forwarded_beside_the_known_ones() -> None:
    server = Server(Era.MODERN)
    async with sited(server) as site:
        encoded = {"mcp-param-region": "=?base64?ZXU=?="}
        headers = {**mirrored(CALL), **encoded, "Mcp-Param-Foo": "x", "X-Other": "y"}
        assert (await site.ask(CALL, headers)).status == 200
        [asked] = server.asked("tools/call")
        assert (asked.headers["mcp-param-foo"], asked.headers["mcp-param-region"]) == ("x", "eu")
        assert (asked.headers["mcp-method"], asked.headers["mcp-name"]) == ("tools/call", "q")
        assert "x-other" not in asked.headers
        assert not any(
            name.startswith("mcp-param") for one in server.asked("tools/list") for name in one.headers
        )


@pytest.mark.crossing("K22")
@pytest.mark.spec("XH-11")
async def test_parameter_header_of_any_request_is_forwarded_and_one_that_stands_twice_as_one_list() -> None:
    server = Server(Era.MODERN)
    message = modern(1, "vendor/do")
    async with sited(server) as site:
        await site.ask(message, {**mirrored(message), "Mcp-Param-Foo": "x", "mcp-param-foo": "y"})
        [asked] = server.asked("vendor/do")
        assert asked.headers["mcp-param-foo"] == "x, y"


@pytest.mark.crossing("K22")
@pytest.mark.spec("XH-12")
async def test_parameter_header_goes_no_further_than_the_era() -> None:
    server = Server(Era.LEGACY)
    async with sited(server) as site:
        answer = await site.ask(CALL, {**mirrored(CALL), "Mcp-Param-Region": "eu", "Mcp-Param-Foo": "x"})
        assert answer.status == 200
        assert not any(name.startswith("mcp-param") for one in server.seen for name in one.headers)


@pytest.mark.crossing("K23")
@pytest.mark.parametrize(("token", "scope"), [(None, "public"), (TOKEN, "private")])
async def test_public_answer_is_private_where_clients_are_told_apart(token: str | None, scope: str) -> None:
    listed = {"tools": [TOOL], "ttlMs": 5, "cacheScope": "public"}
    async with bridged(access=Access(token=token)) as bridge:
        server = await bridge.modern_server()
        exchange = await bridge.post_modern(modern(1, "tools/list"))
        server.answers(await server.hears("tools/list"), listed)
        assert (await exchange.answer()).result == {**listed, "cacheScope": scope}


@pytest.mark.crossing("K24")
@pytest.mark.parametrize("server", list(Era))
@pytest.mark.parametrize("client", list(Era))
async def test_what_a_client_shows_the_bridge_goes_no_further(client: Era, server: Era) -> None:
    remote = Server(server)
    shown = {"Authorization": f"Bearer {TOKEN}", "Cookie": "c=cookie-of-the-client", "Origin": ORIGIN}
    access = Access(token=TOKEN, allowed_origins=(ORIGIN,))
    async with sited(remote, access=access, headers=(("Authorization", UPSTREAM),)) as site:
        if client is Era.MODERN:
            answer = await site.ask(CALL, {**mirrored(CALL), "Mcp-Param-Region": "eu", **shown})
            assert answer.result["resultType"] == "complete"
        else:
            opening = await site.ask(initialize(), shown)
            session = {"Mcp-Session-Id": opening.headers["mcp-session-id"], **shown}
            await site.ask(notification("initialized"), session)
            asked = {"id": 1, "method": "tools/call", "params": {"name": "q", "arguments": {}}}
            assert (await site.ask(asked, session)).result["content"] == []
    assert "tools/call" in remote.rpcs()
    for one in remote.seen:
        assert one.headers["authorization"] == UPSTREAM
        assert not {"cookie", "origin"} & one.headers.keys()
        told = f"{one.target} {one.headers} {one.body!r}"
        assert not any(secret in told for secret in (TOKEN, "cookie-of-the-client", ORIGIN))
