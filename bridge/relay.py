"""The keeper of links and sessions: which link serves whom, and what is known of the server.

Opens links by the process model, makes the handshakes that are the bridge's own, counts
sessions and lets idle ones go. What happens on a link is `link.py`'s matter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, Protocol, Self

import anyio
import msgspec
from msgspec import UNSET

from bridge import __version__
from bridge.config import Config, ProcessModel
from bridge.core.message import Response, notification
from bridge.core.restart import RestartPolicy, Restarts
from bridge.core.sharing import Sharing
from bridge.core.splice import quote
from bridge.era.revisions import LATEST_LEGACY, MODERN_VERSIONS, Era
from bridge.errors import CircuitOpen, ServerFault, ServerStopped
from bridge.link import Caller, Link
from bridge.readiness import Readiness
from bridge.upstream.base import Source

log = logging.getLogger("bridge.relay")


class Session(Protocol):
    """A downstream session as the relay sees it: something that counts and grows old."""

    def idle_since(self) -> float | None:
        """When its last request ended, on the loop's clock; None while anything runs or listens."""

    def close(self, why: str) -> None:
        """End it now: answer what waits, end its streams, let go of its link."""


class Relay:
    """Opens links and keeps sessions. Use as `async with`; leaving it closes every link."""

    def __init__(self, config: Config, source: Source) -> None:
        self.config = config
        self.readiness = Readiness()
        self.sessions: dict[str, Session] = {}
        self.draining = False
        self._source = source
        self._links: set[Link] = set()
        self._shared = _Kept(self, self._open_shared)
        self._modern = _Kept(self, self._open_modern)
        self._modern_restarts = Restarts(RestartPolicy())
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._expire_sessions)
        self._tasks.start_soon(self._keep_evidence)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.draining = True
        with anyio.CancelScope(shield=True):
            for session in list(self.sessions.values()):
                session.close(_STOPPING)
            async with anyio.create_task_group() as closing:
                for link in list(self._links):
                    closing.start_soon(self._close, link)
                # Together: a server that does not end by itself takes its ten seconds.
                closing.start_soon(self._source.close)
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    def spawn(self, call: Callable[..., Coroutine[object, object, object]], *args: object) -> None:
        """Run something in the relay's task group."""
        self._tasks.start_soon(call, *args)

    # Links

    async def legacy(self) -> Link:
        """The link for a new legacy session, by the process model. Raises ServerFault."""
        if self.config.process is ProcessModel.SHARED:
            return await self._shared.get()
        return await self._open(fresh=False)

    async def modern(self) -> Link:
        """The link that all modern callers share. Raises ServerFault."""
        return await self._modern.get()

    async def _open(self, *, fresh: bool, era: Era = Era.LEGACY) -> Link:
        link = Link(self.config, fresh=fresh, era=era)
        try:
            link.attach(await self._source.open(link))
        except CircuitOpen:
            raise
        except ServerFault as fault:
            self.readiness.failed(fault)
            raise
        if self.draining:
            raise ServerFault(_STOPPING)  # its source ends what it opened
        self._links.add(link)
        return link

    async def _open_shared(self) -> Link:
        link = await self._open(fresh=True)
        caller = Caller(link)
        try:
            initialized = await self._handshake(caller)
        except ServerFault as fault:
            if link.fault is not None:
                self.failed(fault)  # a refusal proves that it runs: it may be of the other era
            self.release(link)
            raise
        link.leave(caller)
        link.insert(Sharing(initialized))
        return link

    async def _open_modern(self) -> Link:
        """Modern starts have a backoff of their own: probes that kill an old server harm no session."""
        self._judge_modern()
        now = asyncio.get_running_loop().time()
        wait = self._modern_restarts.wait(now)
        if wait > 0:
            raise CircuitOpen("The server keeps failing and is left alone for now", retry_after=wait)
        self._modern_restarts.started(now)
        return await self._open(fresh=True, era=Era.MODERN)

    def _judge_modern(self) -> None:
        """Count the one that was lost, once: a failure if it never said anything."""
        last = self._modern.last
        if last is None:
            return
        self._modern.let_go()
        if last.proven:
            self._modern_restarts.succeeded()
        else:
            self._modern_restarts.failed(last.quiet_since)

    def release(self, link: Link) -> None:
        """A port is done with its link: close it unless others share it."""
        if not (self._shared.holds(link) or self._modern.holds(link)):
            self.spawn(self._close, link)

    async def _close(self, link: Link) -> None:
        await link.close()
        self._links.discard(link)

    # Evidence

    def succeeded(self, initialized: bytes | msgspec.Raw) -> None:
        """A handshake succeeded, anyone's."""
        self._source.succeeded()
        if self.readiness.initialised(initialized):
            server, revision = self.readiness.server, self.readiness.revision
            log.info("server is %s %s, revision %s", server.name or "unnamed", server.version, revision)

    def failed(self, fault: ServerFault) -> None:
        """A handshake failed, anyone's."""
        self._source.failed(fault)
        self.readiness.failed(fault)
        log.warning("server failed to start: %s", told(fault))

    async def _handshake(self, caller: Caller) -> bytes:
        """Initialize in the bridge's own name. Raises ServerFault; gives the InitializeResult."""
        response = await caller.call("initialize", _INITIALIZE)
        if response.result is UNSET:
            refused = f"The server refused to initialize: {_message_of(response)}"
            raise caller.link.fault or ServerFault(refused)
        initialized = bytes(response.result)
        caller.tell(notification("notifications/initialized"))
        self.succeeded(initialized)
        return initialized

    async def _keep_evidence(self) -> None:
        """Find out by a throw-away child whether the server works, whenever nobody else has."""
        await anyio.sleep(_FIRST_CHECK)
        while not self.draining:
            if not self.readiness.ready:
                await self._check()
            await anyio.sleep(_RECHECK)

    async def _check(self) -> None:
        if self.config.process is ProcessModel.SHARED and await self._shared_tells():
            return
        try:
            link = await self._open(fresh=False)
        except CircuitOpen as fault:
            await anyio.sleep(fault.retry_after)
            return
        except ServerFault as fault:
            log.warning("server cannot be started: %s", told(fault))
            return
        try:
            await self._examine(Caller(link))
        except ServerFault as fault:
            self.failed(fault)
        finally:
            with anyio.CancelScope(shield=True):
                await self._close(link)

    async def _shared_tells(self) -> bool:
        """Whether the shared server shows its health; one that refuses to initialize may be modern."""
        try:
            await self._shared.get()
        except CircuitOpen:
            return True
        except ServerFault as fault:
            return self.readiness.fault is fault
        return True

    async def _examine(self, caller: Caller) -> None:
        """A server of either era proves itself: by `initialize`, or by refusing it and discovering."""
        try:
            await self._handshake(caller)
        except ServerFault:
            if caller.link.fault is not None:
                raise
            found = await caller.call("server/discover", _DISCOVER)
            if found.result is UNSET:
                raise
            self._source.succeeded()
            self.readiness.discovered(MODERN_VERSIONS[-1])

    # Sessions

    async def _expire_sessions(self) -> None:
        limit = self.config.timing.session_idle
        loop = asyncio.get_running_loop()
        while True:
            await anyio.sleep(max(0.05, min(15.0, limit / 4)))
            oldest = loop.time() - limit
            for session in list(self.sessions.values()):
                since = session.idle_since()
                if since is not None and since <= oldest:
                    session.close("The session was idle for too long")
            self._let_idle_links_go(oldest, loop.time() - self.config.timing.linger)

    def _let_idle_links_go(self, oldest_call: float, oldest_session: float) -> None:
        modern, shared = self._modern.last, self._shared.last
        if modern is not None and not modern.in_flight and modern.quiet_since <= oldest_call:
            self._modern.let_go()
        if shared is not None and not self.sessions and shared.quiet_since <= oldest_session:
            self._shared.let_go()

    async def drained(self) -> None:
        """Refuse what is new, and return when nothing is in flight any more."""
        self.draining = True
        self.readiness.drain()
        for link in list(self._links):
            await link.idle()


class _Kept:
    """A link that many share: opened once however many ask at the same time, anew once lost."""

    def __init__(self, relay: Relay, open_link: Callable[[], Awaitable[Link]]) -> None:
        self._relay = relay
        self._open = open_link
        self._link: Link | None = None
        self._opening: asyncio.Future[Link] | None = None

    @property
    def last(self) -> Link | None:
        """The link that was or is in use; None once it was let go for being idle."""
        return self._link

    def holds(self, link: Link) -> bool:
        return link is self._link and link.fault is None

    def let_go(self) -> None:
        """Close it; the next who asks opens it anew."""
        link, self._link = self._link, None
        if link is not None:
            self._relay.release(link)

    async def get(self) -> Link:
        if self._link is not None and self._link.fault is None:
            return self._link
        if self._relay.draining:
            raise ServerFault(_STOPPING)
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()
            self._relay.spawn(self._run, self._opening)
        # Shielded: the client that came first may leave, and the others still wait.
        return await asyncio.shield(self._opening)

    async def _run(self, opening: asyncio.Future[Link]) -> None:
        try:
            link = await self._open()
            self.let_go()
            self._link = link
            opening.set_result(link)
        except ServerFault as fault:
            opening.set_exception(fault)
            opening.exception()  # seen, even if every waiter has left
        finally:
            self._opening = None
            if not opening.done():
                opening.set_exception(ServerFault(_STOPPING))
                opening.exception()


def told(fault: ServerFault) -> str:
    """The fault for a log line, with the last words of the server."""
    stderr = fault.stderr if isinstance(fault, ServerStopped) else ()
    return f"{fault}; its stderr ended: {' | '.join(stderr[-5:])}" if stderr else str(fault)


def _message_of(response: Response) -> str:
    try:
        return msgspec.json.decode(response.error or b"{}", type=_ErrorText).message
    except msgspec.DecodeError:  # a lone surrogate, which JSON allows
        return _ErrorText().message


class _ErrorText(msgspec.Struct):
    message: str = "no reason given"


_STOPPING: Final = "The bridge is shutting down"
_CLIENT = {"name": "mcp-bridge", "version": __version__}
_INITIALIZE = quote({"protocolVersion": LATEST_LEGACY, "capabilities": {}, "clientInfo": _CLIENT})
_DISCOVER = quote(
    {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": MODERN_VERSIONS[-1],
            "io.modelcontextprotocol/clientInfo": _CLIENT,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    }
)
_FIRST_CHECK: Final = 0.5
"""Seconds that clients have to bring evidence themselves."""
_RECHECK: Final = 1.0
