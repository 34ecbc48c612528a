"""Replicas of the bridge in this process, gate and all, each before a scripted legacy server."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp.web import BaseRequest, StreamResponse
from field.raw import Answer

from bridge.app import Site
from bridge.config import Access, Command, Config, Listen, Replicas, Timing
from bridge.core.message import request
from bridge.downstream.listener import serve
from bridge.downstream.proof import Proofs
from bridge.era.revisions import Era
from bridge.era.state import Kind
from bridge.era.suspend import Calls
from bridge.era.terms import Terms
from bridge.relay import Relay
from bridge.seal import Seal, read_ring
from support.scripted_bridge import MODERN, PREFIX, UNHURRIED, Bridge, envelope, initialized, modern
from support.scripted_server import Heard, Json, ScriptedServer, ScriptedSource, dump

KEYS = base64.b64encode(b"k" * 32).decode()
OTHERS_KEYS = base64.b64encode(b"o" * 32).decode()
EL: Json = {"message": "Name?", "requestedSchema": {"type": "object", "properties": {}}}
ACCEPT: Json = {"in-1": {"action": "accept", "content": {"n": "x"}}}
ELICITS: Json = {f"{PREFIX}clientCapabilities": {"elicitation": {}}}


@dataclass
class Replica(Bridge):
    """`seen` has the headers of every request, `lines` those of the last one as they stood."""

    seen: list[dict[str, str]] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"


@asynccontextmanager
async def replica(
    name: str,
    *peers: tuple[str, str],
    keys: str | None = KEYS,
    access: Access | None = None,
    timing: Timing = UNHURRIED,
) -> AsyncIterator[Replica]:
    """One bridge, gate and all, before a legacy server."""
    config = Config(
        upstream=Command(argv=("script",)),
        era=Era.LEGACY,
        access=access or Access(),
        timing=timing,
        listen=Listen(port=0),
        replicas=Replicas(name=name, keys=keys, peers=peers),
    )
    source = ScriptedSource()
    relay = Relay(config, source)
    site = Site(config, relay)
    async with AsyncExitStack() as stack:
        found = Replica(config, relay, source, stack)

        async def handle(request: BaseRequest) -> StreamResponse:
            found.lines = list(request.headers.items())
            found.seen.append({name.lower(): value for name, value in request.headers.items()})
            return await site.handle(request)

        served = await serve(config.listen, handle, stalled=30.0)
        found.port = int(served.listening.rpartition(":")[2])
        relay.readiness.discovered(MODERN)
        try:
            async with relay:
                yield found
        finally:
            await source.close()
            await served.close(0.2)
            await site.close()


def called(request_id: int = 1, *, meta: Json | None = None, **more: Any) -> Json:
    return modern(
        request_id, "tools/call", meta=envelope(**ELICITS, **(meta or {})), name="a", arguments={}, **more
    )


def retried(state: str, request_id: int = 2, **more: Any) -> Json:
    return called(request_id, inputResponses=ACCEPT, requestState=state, **more)


@dataclass
class Suspended:
    """A call that waits for its client, and the server that waits for its answer."""

    state: str
    server: ScriptedServer
    asked: Heard


async def suspended(bridge: Bridge, headers: dict[str, str] | None = None) -> Suspended:
    exchange = await bridge.post_modern(called(), headers)
    server = await bridge.source.next()
    server.answers(await server.hears("initialize"), initialized())
    await server.hears("notifications/initialized")
    server.answers(await server.hears("tools/list"), {"tools": []})
    asked = await server.hears("tools/call")
    server.asks("elicitation/create", 0, **EL)
    return Suspended((await exchange.answer()).result["requestState"], server, asked)


async def went_on(call: Suspended) -> None:
    """The server has got the answer to its question."""
    heard = await call.server.hears()
    assert json.loads(heard.raw)["id"] == 0
    assert json.loads(heard.raw)["result"] == ACCEPT["in-1"]


def assert_elsewhere(answer: Answer) -> None:
    assert answer.status == 200
    assert answer.error["code"] == -32603
    assert answer.error["data"] == {"origin": "bridge", "reason": "call_elsewhere"}


def state_of(name: str, subject: str = "local") -> str:
    """The state of a call that this replica held once."""
    config = Config(upstream=Command(argv=("script",)))
    calls: Calls[str] = Calls(
        Seal(read_ring(KEYS), config.listen.path),
        Terms(),
        upstream="script",
        replica=name,
        mint=lambda: "c" * 32,
        wall=time.time,
    )
    asked = called()
    first = request(1, "tools/call", dump(asked["params"]))
    return calls.suspend(calls.open(subject, "home"), first, Kind.SUSPEND, 600.0)


def proof_of(message: Json | bytes, target: str, *, subject: str = "local", keys: str = KEYS) -> str:
    body = message if isinstance(message, bytes) else dump({"jsonrpc": "2.0", **message})
    return Proofs(read_ring(keys), "r1").make(target, "POST", subject, body).header
