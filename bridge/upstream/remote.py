"""A server at a URL: which transport it speaks, found out at the first initialize.

Nothing is asked on trial: the client's own initialize is POSTed, and only what a server without
Streamable HTTP answers (400, 404, 405) leads to a GET that may name an endpoint; if it does not,
the first failure is the one that counts. Specification: "Backwards Compatibility" of the
transports. The verdict is kept for later sessions. How a transport works is its own matter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import anyio
from anyio.abc import TaskStatus

from bridge.config import Limits, Remote, Timing, Transport
from bridge.core.message import Batch, Headers, Malformed, Message, Request, read
from bridge.core.restart import Circuit, RestartPolicy, Restarts
from bridge.era.probe import shows_modern
from bridge.errors import CircuitOpen, ServerFault
from bridge.upstream.base import Receiver
from bridge.upstream.hop import Hop
from bridge.upstream.http_answer import Refused
from bridge.upstream.http_client import HttpClient, Unreachable
from bridge.upstream.http_sse import HttpSse, NoEndpoint
from bridge.upstream.streamable_http import StreamableHttp

log = logging.getLogger("bridge.remote")

_MAYBE_OLD: Final = frozenset({400, 404, 405})
"""What a server of 2024-11-05 may answer to a POST that it does not know (EC-6)."""


class RemoteUpstream:
    """An `Upstream` over HTTP, whose transport may turn out to be another than it began with."""

    congested = False

    def __init__(self, source: RemoteSource, hop: Hop) -> None:
        self.label = hop.label
        self._source = source
        self._known = source.transport
        """What the server was known to speak when this began, and is not doubted yet."""
        self._hop = hop
        self._transport: StreamableHttp | HttpSse = StreamableHttp(hop, self._look_elsewhere)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Carry everything; returns after `close`."""
        await self._hop.run(self._farewell, task_status=task_status)

    async def connect(self) -> None:
        """Be an HTTP+SSE client from now on. Raises ServerFault, and then stays what it was."""
        sse = HttpSse(self._hop, rewrite=self._source.remote.rewrite_endpoint)
        await sse.connect()
        self._transport = sse

    def send(self, line: bytes, headers: Headers = ()) -> None:
        if self._hop.closed:
            return
        message = read(line, depth=self._source.limits.depth)
        assert not isinstance(message, Batch | Malformed)  # the link sends nothing else
        if headers and isinstance(message, Request):
            message = message.with_headers(headers)
        self._transport.send(message)

    async def drained(self) -> None:
        """Every message has a connection of its own; none waits for another to be read."""

    async def awake(self) -> None:
        """A server at a URL runs already."""

    def pause(self) -> None:
        self._hop.pause()

    def resume(self) -> None:
        self._hop.resume()

    async def close(self) -> None:
        await self._hop.close()

    async def discard(self) -> None:
        """Close what was never handed out: nobody is told."""
        await self._hop.close(tell=False)

    async def _farewell(self) -> None:
        await self._transport.farewell()

    async def _look_elsewhere(self, refusal: Refused) -> Callable[[Message], None] | None:
        known, self._known = self._known, Transport.AUTO  # what was doubted once is relied on no more
        if not self._source.may_be_old(refusal, known):
            return None
        try:
            await self.connect()
        except (NoEndpoint, Refused, Unreachable) as fault:
            log.debug("%s: no HTTP+SSE here either: %s", self.label, fault)
            refusal.beside(fault)
            return None
        self._source.found(Transport.SSE)
        return self._transport.send


class RemoteSource:
    """A `Source` of sessions with one remote server; use as a context manager.

    Raises UsageFault for TLS files, headers and proxies that cannot be used.
    """

    def __init__(self, remote: Remote, limits: Limits, timing: Timing) -> None:
        self.remote, self.limits = remote, limits
        self._timing = timing
        self._client = HttpClient(remote, timing)
        self._restarts = Restarts(RestartPolicy())
        self._fault: ServerFault | None = None
        self._verdict = remote.transport
        self._upstreams: set[RemoteUpstream] = set()
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self.close()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            await self._client.__aexit__()

    @property
    def transport(self) -> Transport:
        """What the server is known to speak; AUTO while that is not known."""
        return self._verdict

    async def open(self, receiver: Receiver) -> RemoteUpstream:
        """A session that nothing was sent in; over HTTP+SSE it is connected already.

        After failures this waits, or raises CircuitOpen. Raises ServerFault.
        """
        await self._admitted()
        upstream = RemoteUpstream(self, Hop(self._client, receiver, self.limits, self._timing))
        await self._tasks.start(self._carry, upstream)
        if self._verdict is Transport.SSE:
            try:
                await self._connect(upstream)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await upstream.discard()
                raise
        return upstream

    def expect(self, upstreams: int) -> None:
        """A server at a URL is ready."""

    def succeeded(self) -> None:
        """A handshake succeeded; were it over HTTP+SSE, that would be known."""
        self._restarts.succeeded()
        self._fault = None
        if self._verdict is Transport.AUTO:
            self.found(Transport.HTTP)

    def failed(self, fault: ServerFault) -> None:
        self._restarts.failed(anyio.current_time())
        self._fault = fault

    async def close(self) -> None:
        async with anyio.create_task_group() as closing:
            for upstream in list(self._upstreams):
                closing.start_soon(upstream.close)

    # Which transport

    def found(self, transport: Transport) -> None:
        if self._verdict is not transport:
            log.info("%s: the server speaks %s", self._client.label, _NAMES[transport])
        self._verdict = transport

    def may_be_old(self, refusal: Refused, known: Transport) -> bool:
        """Whether a refused initialize leads to a look for HTTP+SSE.

        It does for a session that began when nothing was `known`, whatever others found meanwhile; for
        one that relied on a verdict, the verdict is doubted, if it is still that one.
        """
        if self.remote.transport is not Transport.AUTO or refusal.status not in _MAYBE_OLD:
            return False
        if refusal.said is not None and shows_modern(refusal.said):
            return False
        self._doubt(known)
        return known is Transport.AUTO

    def _doubt(self, known: Transport) -> None:
        """Forget this verdict, if no other has been found since."""
        if self.remote.transport is Transport.AUTO and self._verdict is known:
            self._verdict = Transport.AUTO

    async def _connect(self, upstream: RemoteUpstream) -> None:
        try:
            await upstream.connect()
        except ServerFault as fault:
            if self.remote.transport is Transport.AUTO and _is_none(fault):
                self._doubt(Transport.SSE)
                return
            self.failed(fault)
            raise

    # Starting

    async def _carry(self, upstream: RemoteUpstream, *, task_status: TaskStatus[None]) -> None:
        self._upstreams.add(upstream)
        try:
            await upstream.run(task_status=task_status)
        finally:
            self._upstreams.discard(upstream)

    async def _admitted(self) -> None:
        """Return when an attempt may be made, and take it as made."""
        while (wait := self._restarts.wait(anyio.current_time())) > 0:
            if self._restarts.state(anyio.current_time()) is Circuit.OPEN:
                text = f"The server failed too often, next try in {wait:.0f} s: {self._fault}"
                raise CircuitOpen(text, retry_after=wait)
            await anyio.sleep(wait)
        self._restarts.started(anyio.current_time())


_NAMES: Final = {Transport.HTTP: "Streamable HTTP", Transport.SSE: "HTTP+SSE"}


def _is_none(fault: ServerFault) -> bool:
    """Whether it says that no HTTP+SSE server is there, rather than that it cannot be reached."""
    return isinstance(fault, NoEndpoint) or (isinstance(fault, Refused) and fault.status in _MAYBE_OLD)
