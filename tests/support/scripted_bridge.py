"""The bridge in this process: raw HTTP in front, a scripted server behind.

On leaving it holds what must hold after every test: no session, no task and no exception is left.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from aiohttp.web import BaseRequest, StreamResponse
from field.raw import BOTH, Answer, Exchange, dial, head_of

from bridge.config import (
    Access,
    Command,
    Config,
    Isolation,
    Limits,
    Listen,
    ProcessModel,
    Timing,
    WhenFull,
)
from bridge.core.message import result
from bridge.downstream.listener import Served, serve
from bridge.downstream.peers import Peers
from bridge.downstream.streamable_http import StreamableHttp
from bridge.era.revisions import MODERN_VERSIONS, Era
from bridge.era.terms import Terms
from bridge.relay import Relay
from support.scripted_server import LIMIT, Heard, Id, Json, ScriptedServer, ScriptedSource, dump

MODERN = MODERN_VERSIONS[-1]
LATEST = "2025-11-25"
PREFIX = "io.modelcontextprotocol/"
SUBSCRIPTION = f"{PREFIX}subscriptionId"
UNHURRIED = Timing(commit=3600.0, commit_modern=3600.0, keepalive=3600.0, session_idle=3600.0)
"""No timer of the bridge's own plays a part."""
_NAMES = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


def both_eras(relay: Relay) -> None:
    """Let it be known that the server speaks both eras, so that it is not asked."""
    versions = {"supportedVersions": [MODERN, LATEST], "capabilities": {}, "resultType": "complete"}
    relay.detection.eras.learn(result(0, dump(versions)), exited=False)
    relay.detection.eras.initialised()


def request(request_id: Id, method: str, **params: object) -> Json:
    return {"id": request_id, "method": method, **({"params": params} if params else {})}


def call(request_id: Id, name: str = "slow", *, token: Id | None = None, **arguments: object) -> Json:
    meta = {} if token is None else {"_meta": {"progressToken": token}}
    return request(request_id, "tools/call", name=name, arguments=arguments, **meta)


def notification(method: str, **params: object) -> Json:
    return {"method": f"notifications/{method}", **({"params": params} if params else {})}


def initialize(revision: str = LATEST, **capabilities: object) -> Json:
    client = {"name": "test", "version": "1"}
    return request(0, "initialize", protocolVersion=revision, capabilities=capabilities, clientInfo=client)


def initialized(revision: str = LATEST) -> Json:
    """An InitializeResult."""
    return {
        "protocolVersion": revision,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "script", "version": "9"},
    }


def envelope(**more: object) -> Json:
    """The `_meta` of a modern request."""
    return {
        f"{PREFIX}protocolVersion": MODERN,
        f"{PREFIX}clientInfo": {"name": "test", "version": "1"},
        f"{PREFIX}clientCapabilities": {},
        **more,
    }


def modern(request_id: Id, method: str, *, meta: Json | None = None, **params: object) -> Json:
    return request(request_id, method, **params, _meta=envelope() if meta is None else meta)


def mirrored(message: Json) -> dict[str, str]:
    """The headers that a modern request needs."""
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": str(message.get("method"))}
    name = message.get("params", {}).get(_NAMES.get(str(message.get("method")), ""))
    if isinstance(name, str):
        plain = name.isascii() and name.isprintable() and name == name.strip()
        headers["Mcp-Name"] = name if plain else f"=?base64?{base64.b64encode(name.encode()).decode()}?="
    return headers


@dataclass
class Bridge:
    config: Config
    relay: Relay
    source: ScriptedSource
    stack: AsyncExitStack
    port: int = 0
    running: int = 0
    """HTTP requests that the bridge is answering."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, method: str, headers: Mapping[str, str], body: bytes | None = None) -> Exchange:
        """Send one HTTP request, on a connection of its own; its answer is read by whoever wants it."""
        exchange = await self.stack.enter_async_context(dial(self.port))
        length = {} if body is None else {"Content-Length": str(len(body))}
        exchange.say(head_of(method, "/mcp", [*headers.items(), *length.items()]) + (body or b""))
        await exchange.flush()
        return exchange

    async def post(
        self, message: Json | list[Json] | bytes, headers: Mapping[str, str] | None = None
    ) -> Exchange:
        """POST this; `headers` add to the usual ones, or stand in their place."""
        body = message if isinstance(message, bytes) else dump(_stamped(message))
        return await self.send(
            "POST", {"Content-Type": "application/json", "Accept": BOTH, **(headers or {})}, body
        )

    async def ask(
        self, message: Json | list[Json] | bytes, headers: Mapping[str, str] | None = None
    ) -> Answer:
        return await (await self.post(message, headers)).answer()

    async def post_modern(self, message: Json, headers: Mapping[str, str] | None = None) -> Exchange:
        return await self.post(message, {**mirrored(message), **(headers or {})})

    async def ask_modern(self, message: Json, headers: Mapping[str, str] | None = None) -> Answer:
        return await (await self.post_modern(message, headers)).answer()

    async def modern_server(self) -> ScriptedServer:
        """The server of the modern callers, opened by a first one."""
        discovery = await self.post_modern(modern("first", "server/discover"))
        server = await self.source.next()
        server.answers(await server.hears("server/discover"))
        assert (await discovery.answer()).status == 200
        return server

    async def session(self, revision: str = LATEST, **capabilities: object) -> Session:
        """A session that is open, and the server that answers it."""
        opening = await self.post(initialize(revision, **capabilities))
        server = await self.source.next()
        server.answers(await server.hears("initialize"), initialized(revision))
        session = Session(self, server, (await opening.answer()).headers["mcp-session-id"])
        assert (await session.ask(notification("initialized"))).status == 202
        await server.hears("notifications/initialized")
        return session

    async def joined(self, server: ScriptedServer, revision: str = LATEST, **capabilities: object) -> Session:
        """One more session on a shared server, which never hears of it."""
        answer = await self.ask(initialize(revision, **capabilities))
        session = Session(self, server, answer.headers["mcp-session-id"])
        assert (await session.ask(notification("initialized"))).status == 202
        return session

    async def handles(self, count: int) -> None:
        """Wait until the bridge is answering this many HTTP requests."""
        async with asyncio.timeout(LIMIT):
            while self.running != count:
                self._changed.clear()
                await self._changed.wait()

    @staticmethod
    async def turn() -> None:
        """Let everything that can happen now happen."""
        await asyncio.sleep(0)

    async def handle(self, endpoint: StreamableHttp, request: BaseRequest) -> StreamResponse:
        self.running += 1
        self._changed.set()
        try:
            return await endpoint.handle(request)
        finally:
            self.running -= 1
            self._changed.set()


def _stamped(message: Json | list[Json]) -> Json | list[Json]:
    if isinstance(message, list):
        return [{"jsonrpc": "2.0", **member} for member in message]
    return {"jsonrpc": "2.0", **message}


@dataclass
class Session:
    """One legacy session as its client sees it."""

    bridge: Bridge
    server: ScriptedServer
    id: str

    async def post(
        self, message: Json | list[Json] | bytes, headers: Mapping[str, str] | None = None
    ) -> Exchange:
        return await self.bridge.post(message, {"Mcp-Session-Id": self.id, **(headers or {})})

    async def ask(
        self, message: Json | list[Json] | bytes, headers: Mapping[str, str] | None = None
    ) -> Answer:
        return await (await self.post(message, headers)).answer()

    async def listen(self, last_event_id: str | None = None) -> Exchange:
        """GET, with its headers read: the stream is open."""
        cursor = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
        stream = await self.bridge.send(
            "GET", {"Accept": "text/event-stream", "Mcp-Session-Id": self.id, **cursor}
        )
        assert await stream.head() == 200
        return stream

    async def delete(self) -> Answer:
        return await (await self.bridge.send("DELETE", {"Mcp-Session-Id": self.id})).answer()

    async def calls(self, message: Json, headers: Mapping[str, str] | None = None) -> tuple[Exchange, Heard]:
        """POST a request, and what the server hears of it."""
        exchange = await self.post(message, headers)
        return exchange, await self.server.hears(message["method"])


class _Faults(logging.Handler):
    """What the bridge reports as its own fault."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())

    def hear(self, loop: asyncio.AbstractEventLoop, context: Json) -> None:
        self.told.append(f"{context.get('message')}: {context.get('exception')!r}")


@asynccontextmanager
async def bridged(
    *,
    process: ProcessModel = ProcessModel.SESSION,
    limits: Limits | None = None,
    timing: Timing = UNHURRIED,
    access: Access | None = None,
    era: Era | None = None,
    known: bool = True,
    proven: bool = True,
    terms: Terms | None = None,
    isolation: Isolation = Isolation.PRINCIPAL,
    when_full: WhenFull = WhenFull.WAIT,
    host: str = "127.0.0.1",
    warm: int = 0,
) -> AsyncIterator[Bridge]:
    """The bridge at work, without the gate that holds callers against `access`.

    `era` is the one to speak to the server, as in the configuration; else it is `known` that the
    server speaks both. If `proven`, the bridge needs no evidence of its own that the server works.
    """
    config = Config(
        upstream=Command(argv=("script",)),
        process=process,
        limits=limits or Limits(),
        timing=timing,
        access=access or Access(),
        era=era,
        terms=terms or Terms(),
        listen=Listen(host=host, port=0),
        isolation=isolation,
        warm=warm,
        when_full=when_full,
    )
    loop, faults = asyncio.get_running_loop(), _Faults()
    loop.set_exception_handler(faults.hear)
    logging.getLogger("bridge").addHandler(faults)
    before = asyncio.all_tasks()
    try:
        async with AsyncExitStack() as stack:
            source = ScriptedSource()
            relay = Relay(config, source)
            if era is None and proven:
                both_eras(relay)
            bridge = Bridge(config, relay, source, stack)
            endpoint = StreamableHttp(relay, Peers(config))
            served = await serve(
                Listen(port=0), lambda request: bridge.handle(endpoint, request), stalled=timing.stalled
            )
            bridge.port = _port(served)
            if proven:
                relay.readiness.discovered(MODERN)
            try:
                async with relay:
                    yield bridge
                    opened = list(source.servers)
                assert not relay.sessions
                assert all(server.closed.is_set() for server in opened)
            finally:
                await source.close()
                await served.close(0.2)
        await _settled(before)
        assert not faults.told
    finally:
        logging.getLogger("bridge").removeHandler(faults)
        loop.set_exception_handler(None)


def _port(served: Served) -> int:
    return int(served.listening.rpartition(":")[2])


async def _settled(before: set[asyncio.Task[object]]) -> None:
    """Every task that the bridge began ends, now that nothing is left to be done."""
    async with asyncio.timeout(LIMIT):
        while left := asyncio.all_tasks() - before - {asyncio.current_task()}:
            await asyncio.wait(left)
