"""The composition root: the one file that knows which adapters exist.

Turns a Daemon into running objects and nothing else; it decides no behaviour beyond which
path leads where.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
from aiohttp.web import BaseRequest, StreamResponse

from bridge.config import Command, Config, Daemon, Downstream, ProcessModel, Remote, Timing
from bridge.core.message import INVALID_REQUEST, local_error
from bridge.core.restart import RestartPolicy, Restarts
from bridge.core.splice import quote
from bridge.downstream.http import Gate, Ready
from bridge.downstream.http_sse import HttpSse
from bridge.downstream.listener import Handler, Served, serve
from bridge.downstream.peers import Peers
from bridge.downstream.repeated import RULES, Rules, taken_of
from bridge.downstream.reply import later, refused
from bridge.downstream.stdio import StdioPort
from bridge.downstream.streamable_http import StreamableHttp
from bridge.gateway import Gateway
from bridge.hosted import Hosted
from bridge.operations import Operations
from bridge.relay import Relay
from bridge.upstream.guard import Guard
from bridge.upstream.pool import Pool
from bridge.upstream.process import environment, locate
from bridge.upstream.remote import RemoteSource

_JSON = b"Content-Type: application/json\r\nCache-Control: no-store\r\n"


class Endpoints:
    """What answers the clients of one server, on which paths below its own."""

    def __init__(self, config: Config, relay: Relay) -> None:
        self._peers = Peers(config)
        endpoint = StreamableHttp(relay, self._peers)
        self.path = config.listen.path.rstrip("/")
        self.handlers: dict[str, Handler] = {
            self.path: endpoint.handle,
            f"{self.path}/": endpoint.handle,
        }
        self._old = HttpSse(relay) if config.listen.legacy_sse else None
        if self._old is not None:
            self.handlers.update(self._old.handlers)

    @property
    def usage(self) -> Mapping[str, Any] | None:
        return None if self._old is None else self._old.usage.report()

    def admits(self, request: BaseRequest) -> bool:
        return self._peers.admits(request)

    async def close(self) -> None:
        await self._peers.close()


class Site:
    """What answers on which path; everything but the health paths is behind the gate.

    With a configuration file each server is at its own path, and the default one at that of the
    listener too.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._rules = Rules()
        self._handlers: dict[str, Handler] = {}
        self._admits: dict[str, Callable[[BaseRequest], bool]] = {}
        gateway.changed = self._lead
        gateway.reloaded = self._let_in
        self._let_in(gateway.daemon)

    def _let_in(self, daemon: Daemon) -> None:
        """By the rules of this tree from now on. Raises UsageFault."""
        self._gate = Gate(daemon.access, daemon.listen, self._is_passed_on)
        self._rule_anew()

    def _rule_anew(self) -> None:
        """What connections have learned holds no longer."""
        self._rules.hold = False
        self._rules = Rules()

    def _lead(self) -> None:
        """To the servers that are there now."""
        daemon = self._gateway.daemon
        self._rule_anew()
        self._handlers, self._admits = {}, {}
        for name, hosted in self._gateway.hosted.items():
            self._lead_to(hosted, hosted.config.listen.path)
            if name == daemon.default:
                self._lead_to(hosted, daemon.listen.path)

    def _lead_to(self, hosted: Hosted, path: str) -> None:
        """A server's paths, seen as if its own were `path`."""
        own = hosted.config.listen.path.rstrip("/").rpartition("/")[0]
        folder = path.rstrip("/").rpartition("/")[0]
        for place, handler in hosted.endpoints.handlers.items():
            self._handlers[folder + place.removeprefix(own)] = handler
        self._admits[path.rstrip("/")] = hosted.endpoints.admits

    async def handle(self, request: BaseRequest) -> StreamResponse:
        taken = taken_of(request)
        if taken is not None:
            return await taken.go_on(request)
        path = request.path
        if path == "/healthz":
            return _health(request, 200, quote({"status": "ok"}))
        if path == "/readyz":
            return _health(request, *self._readiness())
        refusal = self._gate.check(request)
        if refusal is not None:
            return refusal
        request[RULES] = self._rules
        handler = self._handlers.get(path)
        return self._nothing(path) if handler is None else await handler(request)

    def _nothing(self, path: str) -> Ready:
        daemon = self._gateway.daemon
        for unfit in self._gateway.unfit.values():
            own = unfit.config.listen.path
            if path.rstrip("/") == own or (
                unfit.config.name == daemon.default and path == daemon.listen.path
            ):
                return later(None, f"The server {unfit.config.name} cannot run", "configuration", seconds=5)
        places = sorted({config.listen.path for config in daemon.servers})
        shown = ", ".join(places[:_MOST_PLACES]) + (", …" if len(places) > _MOST_PLACES else "")
        text = (
            f"Not Found: the endpoint is {shown}" if len(places) == 1 else f"Not Found: endpoints are {shown}"
        )
        return refused(local_error(None, text, "path", INVALID_REQUEST).raw, 404)

    def _is_passed_on(self, request: BaseRequest) -> bool:
        """Whether another replica has let its client in; only the endpoint holds such a body to its proof."""
        admits = self._admits.get(request.path.rstrip("/"))
        return admits is not None and admits(request)

    def _readiness(self) -> tuple[int, bytes]:
        only = self._gateway.only
        return (503, b"{}") if only is None else _readiness_of(only)


_MOST_PLACES = 10


def _readiness_of(hosted: Hosted) -> tuple[int, bytes]:
    """What a bridge of one server says of it."""
    known, usage = hosted.relay.readiness, hosted.endpoints.usage
    body = {
        "ready": known.ready,
        "state": known.state,
        "fault": None if known.fault is None else known.fault.reason,
        "server": {
            "name": known.server.name,
            "version": known.server.version,
            "revision": known.revision,
        },
        "sessions": len(hosted.relay.sessions),
        **({} if usage is None else {"legacySse": usage}),
    }
    return (200 if known.ready else 503), quote(body)


def _health(request: BaseRequest, status: int, body: bytes) -> Ready:
    if request.method not in ("GET", "HEAD"):
        return Ready(405, b"Allow: GET, HEAD\r\n")
    return Ready(status, _JSON, (body + b"\n",))


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


def host(config: Config, environ: Mapping[str, str], guard: Guard, operations: Operations) -> Hosted:
    """One server put together, not yet at work. Raises UsageFault."""
    source = _source(config, environ, guard)
    relay = Relay(config, source, watchers=operations.watchers, outer=operations.layers(config))
    supply = source if isinstance(source, Pool) else None
    return Hosted(config, source, relay, Endpoints(config, relay), supply)


@asynccontextmanager
async def running(
    daemon: Daemon,
    environ: Mapping[str, str],
    *,
    read: Callable[[], Daemon] | None = None,
) -> AsyncIterator[tuple[Gateway, Served]]:
    """Everything started and listening on HTTP; on leaving, everything ended.

    `read` gives the tree anew where a file can be read again. Raises ListenFault, UsageFault and
    CommandNotFound before any server is started; with a file, what is wrong with one server is
    reported instead.
    """
    if daemon.file is None:
        for config in daemon.servers:
            if isinstance(config.upstream, Command):
                # To be told now, and not by each client that comes.
                locate(config.upstream, environment(config.upstream, environ))
    guard = Guard()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(guard.close)
        gateway = Gateway(daemon, lambda config: host(config, environ, guard, operations), read=read)
        operations = stack.enter_context(Operations(daemon, gateway.status))
        site = Site(gateway)
        gateway.prepare()
        stalled = min((config.timing.stalled for config in daemon.servers), default=Timing().stalled)
        served = await serve(daemon.listen, site.handle, stalled=stalled)
        stack.push_async_callback(served.close)
        gateway.listening = served.listening
        async with gateway.running():
            yield gateway, served
            served.stop_accepting()


@asynccontextmanager
async def wrapping(
    daemon: Daemon, environ: Mapping[str, str], reading: int, writing: int
) -> AsyncIterator[StdioPort]:
    """One client on these two descriptors, and a server for it alone; on leaving, everything ended."""
    (config,) = daemon.servers
    alone = replace(config, downstream=Downstream.STDIO, process=ProcessModel.SESSION, warm=0)
    guard = Guard()
    source = _source(alone, environ, guard)
    try:
        with Operations(daemon) as operations:
            relay = Relay(alone, source, watchers=operations.watchers, outer=operations.layers(alone))
            async with source, relay:
                port = StdioPort(relay, reading, writing)
                try:
                    yield port
                finally:
                    with anyio.CancelScope(shield=True):
                        await port.close()
    finally:
        await guard.close()
