"""The composition root: the one file that knows which adapters exist.

Turns a Config into running objects and nothing else; it decides no behaviour beyond which
path leads where.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiohttp.web import BaseRequest, StreamResponse

from bridge.config import Config
from bridge.core.message import INVALID_REQUEST, local_error
from bridge.core.restart import RestartPolicy, Restarts
from bridge.core.splice import quote
from bridge.downstream.http import Gate, Ready
from bridge.downstream.listener import Served, serve
from bridge.downstream.reply import refused
from bridge.downstream.streamable_http import StreamableHttp
from bridge.relay import Relay
from bridge.upstream.guard import Guard
from bridge.upstream.pool import Pool

_JSON = b"Content-Type: application/json\r\nCache-Control: no-store\r\n"


class Site:
    """What answers on which path; everything but the health paths is behind the gate."""

    def __init__(self, config: Config, relay: Relay) -> None:
        self._relay = relay
        self._gate = Gate(config.access, config.listen)
        endpoint = StreamableHttp(relay)
        self._path = config.listen.path.rstrip("/")
        self._endpoints = {self._path: endpoint, f"{self._path}/": endpoint}

    async def handle(self, request: BaseRequest) -> StreamResponse:
        path = request.path
        if path == "/healthz":
            return _health(request, 200, {"status": "ok"})
        if path == "/readyz":
            return _health(request, 200 if self._relay.readiness.ready else 503, self._readiness())
        refusal = self._gate.check(request)
        if refusal is not None:
            return refusal
        endpoint = self._endpoints.get(path)
        if endpoint is None:
            text = f"Not Found: the endpoint is {self._path}"
            return refused(local_error(None, text, "path", INVALID_REQUEST).raw, 404)
        return await endpoint.handle(request)

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
        }


def _health(request: BaseRequest, status: int, body: Mapping[str, object]) -> Ready:
    if request.method not in ("GET", "HEAD"):
        return Ready(405, b"Allow: GET, HEAD\r\n")
    return Ready(status, _JSON, (quote(body) + b"\n",))


@asynccontextmanager
async def running(config: Config, environ: Mapping[str, str]) -> AsyncIterator[tuple[Relay, Served]]:
    """Everything started and listening; on leaving, everything ended.

    Raises ListenFault and UsageFault before any child is started.
    """
    guard = Guard()
    pool = Pool(
        config.command,
        environ,
        limits=config.limits,
        timing=config.timing,
        warm=config.warm,
        guard=guard,
        restarts=Restarts(RestartPolicy()),
    )
    relay = Relay(config, pool)
    served = await serve(config.listen, Site(config, relay).handle, stalled=config.timing.stalled)
    try:
        async with pool, relay:
            yield relay, served
            served.stop_accepting()
    finally:
        await served.close()
        await guard.close()
