"""The composition root: the one file that knows which adapters exist.

Turns a Config into running objects and nothing else; it decides no behaviour beyond which
path leads where.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
from aiohttp.web import BaseRequest, StreamResponse

from bridge.config import Command, Config, Downstream, ProcessModel, Remote
from bridge.core.message import INVALID_REQUEST, local_error
from bridge.core.restart import RestartPolicy, Restarts
from bridge.core.splice import quote
from bridge.downstream.http import Gate, Ready
from bridge.downstream.http_sse import HttpSse
from bridge.downstream.listener import Handler, Served, serve
from bridge.downstream.peers import Peers
from bridge.downstream.reply import refused
from bridge.downstream.stdio import StdioPort
from bridge.downstream.streamable_http import StreamableHttp
from bridge.relay import Relay
from bridge.upstream.guard import Guard
from bridge.upstream.pool import Pool
from bridge.upstream.process import environment, locate
from bridge.upstream.remote import RemoteSource

_JSON = b"Content-Type: application/json\r\nCache-Control: no-store\r\n"


class Site:
    """What answers on which path; everything but the health paths is behind the gate."""

    def __init__(self, config: Config, relay: Relay) -> None:
        self._relay = relay
        self._peers = Peers(config)
        self._gate = Gate(config.access, config.listen, self._is_passed_on)
        endpoint = StreamableHttp(relay, self._peers)
        self._path = config.listen.path.rstrip("/")
        self._handlers: dict[str, Handler] = {self._path: endpoint.handle, f"{self._path}/": endpoint.handle}
        self._old = HttpSse(relay) if config.listen.legacy_sse else None
        if self._old is not None:
            self._handlers.update(self._old.handlers)

    async def handle(self, request: BaseRequest) -> StreamResponse:
        path = request.path
        if path == "/healthz":
            return _health(request, 200, {"status": "ok"})
        if path == "/readyz":
            return _health(request, 200 if self._relay.readiness.ready else 503, self._readiness())
        refusal = self._gate.check(request)
        if refusal is not None:
            return refusal
        handler = self._handlers.get(path)
        if handler is None:
            text = f"Not Found: the endpoint is {self._path}"
            return refused(local_error(None, text, "path", INVALID_REQUEST).raw, 404)
        return await handler(request)

    async def close(self) -> None:
        """Let go of what it opened itself. To be called when nothing is answered any more."""
        await self._peers.close()

    def _is_passed_on(self, request: BaseRequest) -> bool:
        """Whether another replica has let its client in; only the endpoint holds such a body to its proof."""
        return request.path.rstrip("/") == self._path and self._peers.admits(request)

    def _readiness(self) -> dict[str, object]:
        known = self._relay.readiness
        return {
            "ready": known.ready,
            "state": known.state,
            "fault": None if known.fault is None else known.fault.reason,
            "server": {
                "name": known.server.name,
                "version": known.server.version,
                "revision": known.revision,
            },
            "sessions": len(self._relay.sessions),
            **({} if self._old is None else {"legacySse": self._old.usage.report()}),
        }


def _health(request: BaseRequest, status: int, body: Mapping[str, object]) -> Ready:
    if request.method not in ("GET", "HEAD"):
        return Ready(405, b"Allow: GET, HEAD\r\n")
    return Ready(status, _JSON, (quote(body) + b"\n",))


def _source(config: Config, environ: Mapping[str, str], guard: Guard) -> Pool | RemoteSource:
    """Where upstream sessions come from; to be entered, and on leaving every server is gone."""
    match config.upstream:
        case Command() as command:
            return Pool(
                command,
                environ,
                limits=config.limits,
                timing=config.timing,
                warm=config.warm,
                guard=guard,
                restarts=Restarts(RestartPolicy()),
            )
        case Remote() as remote:
            return RemoteSource(remote, config.limits, config.timing)


@asynccontextmanager
async def running(config: Config, environ: Mapping[str, str]) -> AsyncIterator[tuple[Relay, Served]]:
    """Everything started and listening on HTTP; on leaving, everything ended.

    Raises ListenFault, UsageFault and CommandNotFound before any server is started.
    """
    if isinstance(config.upstream, Command):
        # To be told now, and not by each client that comes.
        locate(config.upstream, environment(config.upstream, environ))
    guard = Guard()
    source = _source(config, environ, guard)
    relay = Relay(config, source)
    site = Site(config, relay)
    served = await serve(config.listen, site.handle, stalled=config.timing.stalled)
    try:
        async with source, relay:
            yield relay, served
            served.stop_accepting()
    finally:
        await served.close()
        await site.close()
        await guard.close()


@asynccontextmanager
async def wrapping(
    config: Config, environ: Mapping[str, str], reading: int, writing: int
) -> AsyncIterator[StdioPort]:
    """One client on these two descriptors, and a server for it alone; on leaving, everything ended."""
    alone = replace(config, downstream=Downstream.STDIO, process=ProcessModel.SESSION, warm=0)
    guard = Guard()
    source = _source(alone, environ, guard)
    try:
        async with source, Relay(alone, source) as relay:
            port = StdioPort(relay, reading, writing)
            try:
                yield port
            finally:
                with anyio.CancelScope(shield=True):
                    await port.close()
    finally:
        await guard.close()
