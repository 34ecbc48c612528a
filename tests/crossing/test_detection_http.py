"""Which eras a server at a URL knows, and over which transport, found out for a client that waits.

The bridge's own look at the server's health is put off, so that all that a server hears comes of the
client. Server processes are in `test_detection.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import field.raw
import pytest
from field.raw import Answer
from support.scripted_bridge import MODERN, UNHURRIED, initialize, initialized, mirrored, modern
from support.scripted_http import Exchange, Handler, OldRemote, Remote, Wire, message
from support.scripted_server import Json, dump

import bridge.evidence
import bridge.upstream.remote
from bridge import config
from bridge.app import running
from bridge.config import Config, Listen
from bridge.core.restart import RestartPolicy

LIST = modern(1, "tools/list")
LISTED: Json = {"tools": [{"name": "a", "inputSchema": {"type": "object"}}]}
SESSION, VERSION = "mcp-session-id", "mcp-protocol-version"
TOKEN = "Bearer of-good-tidings"


@pytest.fixture(autouse=True)
def _unexamined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge.evidence, "_FIRST", 3600.0)


class Site:
    """The bridge before one server, and its clients."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, sent: Json, headers: dict[str, str] | None = None) -> Answer:
        lines = {"Content-Type": "application/json", "Accept": field.raw.BOTH, **(headers or {})}
        return await field.raw.ask(self._port, "POST", [*lines.items()], dump({"jsonrpc": "2.0", **sent}))

    async def lists(self) -> Answer:
        """A modern client asks for the tools."""
        return await self.ask(LIST, mirrored(LIST))


@asynccontextmanager
async def sited(server: Wire, *, endpoint: float = 3600.0, **upstream: Any) -> AsyncIterator[Site]:
    """The bridge before this server, which is started unless it runs."""
    async with AsyncExitStack() as stack:
        if not server.port:
            await stack.enter_async_context(server)
        remote = config.Remote(url=server.url(), **upstream)
        timing = replace(UNHURRIED, endpoint=endpoint, farewell=5.0)
        settings = Config(upstream=remote, listen=Listen(port=0), timing=timing)
        _, served = await stack.enter_async_context(running(settings, {}))
        yield Site(int(served.listening.rpartition(":")[2]))


class Legacy(Remote):
    """A legacy server with tools, which answers `server/discover` as the test says."""

    def __init__(self, discover: Handler) -> None:
        super().__init__({"server/discover": discover})

    def initialized(self) -> Json:
        return initialized(self.version)

    async def handle(self, exchange: Exchange) -> None:
        if exchange.rpc == "tools/list":
            exchange.result(LISTED)
        else:
            await super().handle(exchange)


def replies(status: int, body: Json | None = None, **headers: str) -> Handler:
    async def handle(exchange: Exchange) -> None:
        text = b"" if body is None else dump({"jsonrpc": "2.0", "id": exchange.id, **body})
        exchange.reply(status, text, **headers)

    return handle


def failed(code: int) -> Json:
    return {"error": {"code": code, "message": "no"}}


async def discovers(exchange: Exchange) -> None:
    exchange.result({"resultType": "complete", "supportedVersions": [MODERN], "capabilities": {"tools": {}}})


async def lists(exchange: Exchange) -> None:
    exchange.result(LISTED)


# --- what the answer to server/discover decides ---


@pytest.mark.crossing("L7")
@pytest.mark.parametrize("client", ["modern", "legacy"])
async def test_server_that_refuses_initialize_for_a_modern_version_is_asked_once_more(client: str) -> None:
    """And not looked for over HTTP+SSE: a stream that names no endpoint would cost both their time."""

    async def starts(exchange: Exchange) -> None:
        server.on["server/discover"] = discovers
        exchange.reply(404)

    data = {"supported": [MODERN], "requested": "2025-11-25"}
    refusal = {"error": {"code": -32022, "message": "no", "data": data}}
    server = Remote({"server/discover": starts, "initialize": replies(400, refusal), "tools/list": lists})
    async with sited(server) as site:
        if client == "modern":
            assert (await site.lists()).result == LISTED
        else:
            assert (await site.ask(initialize())).result["protocolVersion"] == "2025-11-25"
        assert server.rpcs()[:3] == ["server/discover", "initialize", "server/discover"]
        assert not server.asked("GET")


@pytest.mark.crossing("L8")
async def test_error_in_a_stream_of_a_200_means_legacy_and_initialize_names_no_session() -> None:
    async def streams(exchange: Exchange) -> None:
        exchange.stream(message({"jsonrpc": "2.0", "id": exchange.id, **failed(-32602)}))
        exchange.end()

    server = Legacy(streams)
    async with sited(server) as site:
        answer = await site.lists()
        assert answer.result["tools"] == LISTED["tools"]
        assert server.rpcs()[:2] == ["server/discover", "initialize"]
        [opening] = server.asked("initialize")
        assert not {SESSION, VERSION} & opening.headers.keys()
        [asked] = server.asked("tools/list")
        assert (asked.headers[SESSION], asked.headers[VERSION]) == ("session-1", "2025-11-25")


@pytest.mark.crossing("L9")
async def test_session_id_of_a_refusal_is_never_used() -> None:
    server = Legacy(replies(400, failed(-32600), Mcp_Session_Id="stray"))
    async with sited(server) as site:
        assert (await site.lists()).status == 200
    assert {one.headers.get(SESSION) for one in server.seen} == {None, "session-1"}


@pytest.mark.crossing("L10")
@pytest.mark.spec("EV-17")
@pytest.mark.parametrize("code", [-32020, -32021])
async def test_refusal_that_only_a_modern_server_gives_means_modern(code: int) -> None:
    server = Remote({"server/discover": replies(400, failed(code)), "tools/list": lists})
    async with sited(server) as site:
        assert (await site.lists()).result == LISTED
        assert server.rpcs() == ["server/discover", "tools/list"]


@pytest.mark.crossing("L11")
@pytest.mark.spec("AC-21")
async def test_unauthorized_question_is_repeated_with_the_new_credentials(tmp_path: Path) -> None:
    file = tmp_path / "authorization"
    file.write_text("Bearer outdated")

    async def authorized(exchange: Exchange) -> None:
        if exchange.headers["authorization"] == TOKEN:
            await discovers(exchange)
        else:
            file.write_text(TOKEN)
            exchange.reply(401, WWW_Authenticate="Bearer")

    server = Remote({"server/discover": authorized, "tools/list": lists})
    async with sited(server, headers=(("Authorization", file),)) as site:
        assert (await site.lists()).result == LISTED
        assert server.rpcs() == ["server/discover", "server/discover", "tools/list"]
        first, second = server.asked("server/discover")
        assert first.body == second.body


@pytest.mark.crossing("L11", "L16")
@pytest.mark.spec("AC-21")
@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_server_that_refuses_to_be_asked_gets_no_verdict_and_no_initialize(status: int) -> None:
    server = Remote({"server/discover": replies(status), "tools/list": lists})
    async with sited(server) as site:
        answer = await site.lists()
        assert (answer.status, answer.error["code"], answer.error["data"]["origin"]) == (
            200,
            -32603,
            "bridge",
        )
        assert f"HTTP {status}" in answer.error["message"]
        assert server.rpcs() == ["server/discover"]
        server.on["server/discover"] = discovers
        assert (await site.lists()).result == LISTED
        assert server.rpcs() == ["server/discover", "server/discover", "tools/list"]


@pytest.mark.crossing("L16")
async def test_server_that_cannot_be_reached_gets_no_verdict_either() -> None:
    server = Remote({"server/discover": discovers, "tools/list": lists})
    async with server:
        await server.stop()
        async with sited(server) as site:
            answer = await site.lists()
            assert (answer.status, answer.error["code"]) == (200, -32603)
            assert "Cannot connect" in answer.error["message"]
            await server.start()
            assert (await site.lists()).result == LISTED
        assert server.rpcs() == ["server/discover", "tools/list"]


@pytest.mark.crossing("L16")
async def test_server_that_goes_on_failing_is_left_alone_for_a_while_and_never_initialized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bridge.evidence, "_FIRST", 0.0)
    monkeypatch.setattr(bridge.evidence, "_AGAIN", 0.0)
    policy = RestartPolicy(first=0.001, most=0.001)
    monkeypatch.setattr(bridge.upstream.remote, "RestartPolicy", lambda: policy)
    server = Remote({"server/discover": replies(503)})
    async with sited(server) as site:
        await server.until_asked("server/discover", policy.failures)
        answer = await site.lists()
        assert answer.status == 503
        assert 0 < int(answer.headers["retry-after"]) <= 30
        assert "HTTP 503" in answer.error["message"]
        assert server.rpcs() == ["server/discover"] * policy.failures


@pytest.mark.crossing("L12")
async def test_redirect_on_the_same_origin_is_followed_as_a_post() -> None:
    class Moved(Remote):
        async def handle(self, exchange: Exchange) -> None:
            if exchange.target == "/mcp":
                exchange.reply(307, Location="/mcp/")
            else:
                await super().handle(exchange)

    server = Moved({"server/discover": discovers, "tools/list": lists})
    async with sited(server) as site:
        assert (await site.lists()).result == LISTED
        first, second = server.asked("server/discover")
        assert (first.target, second.target) == ("/mcp", "/mcp/")
        assert (second.method, second.body) == ("POST", first.body)


@pytest.mark.crossing("L12")
@pytest.mark.parametrize("status", [302, 307])
async def test_redirect_to_another_origin_is_refused(status: int) -> None:
    async with Remote() as other:
        server = Remote({"server/discover": replies(status, Location=other.url())})
        async with sited(server) as site:
            answer = await site.lists()
            assert (answer.status, answer.error["code"]) == (200, -32603)
            assert server.rpcs() == ["server/discover"]
        assert other.accepted == 0


# --- HTTP+SSE ---


class OlderRemote(OldRemote):
    """Over HTTP+SSE, with tools; a POST to the path of the stream has this status."""

    endpoint = "/messages?s=1"

    def __init__(self, status: int = 405, on: dict[str, Handler] | None = None) -> None:
        super().__init__(on)
        self._status = status

    def initialized(self) -> Json:
        return initialized(self.version)

    async def handle(self, exchange: Exchange) -> None:
        if exchange.method == "POST" and exchange.target == "/mcp":
            exchange.reply(self._status)
        else:
            await super().handle(exchange)

    def respond(self, exchange: Exchange, result: object = None) -> None:
        super().respond(exchange, LISTED if exchange.rpc == "tools/list" else result)


@pytest.mark.crossing("L13")
@pytest.mark.parametrize("status", [404, 405])
async def test_server_that_takes_no_post_but_names_an_endpoint_is_an_old_one(status: int) -> None:
    server = OlderRemote(status)
    async with sited(server) as site:
        assert (await site.lists()).result["tools"] == LISTED["tools"]
        assert [(one.rpc, one.target) for one in server.seen] == [
            ("server/discover", "/mcp"),
            ("initialize", "/mcp"),
            ("GET", "/mcp"),
            ("initialize", "/messages?s=1"),
            ("notifications/initialized", "/messages?s=1"),
            ("tools/list", "/messages?s=1"),
        ]


@pytest.mark.crossing("L14")
@pytest.mark.parametrize("client", ["modern", "legacy"])
async def test_endpoint_on_another_host_is_refused(client: str) -> None:
    async with Remote() as other:
        server = OlderRemote()
        server.endpoint = other.url("/messages").replace("127.0.0.1", "localhost")
        async with sited(server) as site:
            answer = await (site.lists() if client == "modern" else site.ask(initialize()))
            assert (answer.status, answer.error["code"]) == (200, -32603)
            assert "localhost" in answer.error["message"]
        assert other.accepted == 0


async def silent(exchange: Exchange) -> None:
    exchange.stream(b": welcome\n\n")
    await exchange.left.wait()


@pytest.mark.crossing("L15")
@pytest.mark.parametrize("client", ["modern", "legacy"])
async def test_stream_that_names_no_endpoint_in_time_fails_with_all_findings(client: str) -> None:
    server = OlderRemote(404, {"GET": silent})
    async with sited(server, endpoint=0.05) as site:
        answer = await (site.lists() if client == "modern" else site.ask(initialize()))
        assert (answer.status, answer.error["code"]) == (200, -32603)
        said = answer.error["message"]
        assert "server/discover" in said
        assert said.count("HTTP 404") == 2
        assert "endpoint" in said
        assert server.rpcs() == ["server/discover", "initialize", "GET"]


# --- a legacy client first ---


async def test_modern_server_is_asked_before_a_legacy_client_and_never_initialized() -> None:
    server = Remote({"server/discover": discovers})
    async with sited(server) as site:
        answer = await site.ask(initialize())
        assert answer.result["protocolVersion"] == "2025-11-25"
        assert set(server.rpcs()) == {"server/discover"}


async def test_legacy_client_of_a_server_that_cannot_be_asked_is_told_how_its_own_initialize_fared() -> None:
    """The client's initialize is no fallback of the bridge's: it goes out, and its answer tells all."""
    server = Remote({"server/discover": replies(503), "initialize": replies(503)})
    async with sited(server) as site:
        answer = await site.ask(initialize())
        assert "HTTP 503" in answer.error["message"]
        assert server.rpcs() == ["server/discover", "initialize"]
        server.on["server/discover"] = discovers
        assert (await site.ask(initialize())).result["protocolVersion"] == "2025-11-25"
        assert len(server.asked("initialize")) == 1
