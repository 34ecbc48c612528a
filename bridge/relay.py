"""The keeper of links and sessions: which link serves whom, and what is known of the server.

Opens links by the process model, makes the handshakes that are the bridge's own, counts
sessions and lets idle ones go. What happens on a link is `link.py`'s matter.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Protocol, Self

import anyio
import msgspec
from msgspec import UNSET

from bridge.config import Config, Downstream, ProcessModel, Remote
from bridge.core.events import Exchange
from bridge.core.message import Request, Response, notification
from bridge.core.restart import RestartPolicy, Restarts
from bridge.core.sharing import Sharing
from bridge.crossing import Crossing
from bridge.detection import Detection
from bridge.downstream.base import Port
from bridge.era.legacy_to_modern import LegacyToModern
from bridge.era.revisions import Era
from bridge.era.suspend import Calls, Elsewhere
from bridge.era.task_ids import TaskIds
from bridge.errors import CircuitOpen, EraChanged, ServerFault
from bridge.evidence import INITIALIZE, Evidence, told
from bridge.kept import STOPPING, Kept
from bridge.link import Caller, Link
from bridge.readiness import Readiness
from bridge.seal import Seal, read_ring
from bridge.upstream.base import Source

log = logging.getLogger("bridge.relay")


class Session(Protocol):
    """A downstream session as the relay sees it: something that counts and grows old."""

    def idle_since(self) -> float | None:
        """When its last request ended, on the loop's clock; None while anything runs or listens."""

    def close(self, why: str) -> None:
        """End it now: answer what waits, end its streams, let go of its link."""


class LegacyPort(Port, Protocol):
    """The port of a legacy session, whose server may turn out to be modern when it is initialized."""

    def moved(self, link: Link) -> bool:
        """Leave the link of now and join this one; false if the session is over."""


class Relay:
    """Opens links and keeps sessions. Use as `async with`; leaving it closes every link."""

    def __init__(self, config: Config, source: Source) -> None:
        self.config = config
        self.readiness = Readiness()
        self.sessions: dict[str, Session] = {}
        self.draining = False
        self._source = source
        self._links: set[Link] = set()
        self._blank: Link | None = None
        """A link on which no client asked anything yet, for the next who needs one."""
        self._shared = Kept(self, self._open_shared)
        self._modern = Kept(self, self._open_modern)
        self.detection = Detection(self, config)
        replica = config.replicas.name
        name = config.upstream.url if isinstance(config.upstream, Remote) else config.upstream.argv[0]
        seal = Seal(read_ring(config.replicas.keys), config.listen.path)
        self._calls: Calls[Link] = Calls(
            seal,
            config.terms,
            upstream=name,
            replica=replica,
            mint=_minted,
            wall=time.time,
            remark=partial(log.info, "a requestState was refused: %s"),
        )
        tasks: TaskIds[Link] = TaskIds(seal, upstream=name, replica=replica, mint=_minted)
        self._crossing = Crossing(self, config, self._calls, tasks)
        self._modern_restarts = Restarts(RestartPolicy())
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._expire_sessions)
        if self.config.downstream is Downstream.HTTP:
            self._tasks.start_soon(Evidence(self, self.config, self._shared.get).keep)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.draining = True
        with anyio.CancelScope(shield=True):
            for session in list(self.sessions.values()):
                session.close(STOPPING)
            async with anyio.create_task_group() as closing:
                for link in list(self._links):
                    closing.start_soon(self.close, link)
                # Together: a server that does not end by itself takes its ten seconds.
                closing.start_soon(self._source.close)
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    def spawn(self, call: Callable[..., Coroutine[object, object, object]], *args: object) -> None:
        """Run something in the relay's task group."""
        self._tasks.start_soon(call, *args)

    # Links

    async def legacy(self) -> Link:
        """The link for a new legacy session, by process model and the server's era. Raises ServerFault."""
        if isinstance(self.config.upstream, Remote) and self.detection.eras.unknown:
            with suppress(ServerFault):  # its initialize will tell the client what is wrong
                await self.detection.find()
        if self.detection.eras.speak(Era.LEGACY) is Era.MODERN:
            return await self._modern_of_session()
        if self.config.process is not ProcessModel.SHARED:
            return await self.open(fresh=False, era=Era.LEGACY)
        try:
            return await self._shared.get()
        except EraChanged:
            return await self._modern_of_session()

    async def _modern_of_session(self) -> Link:
        """A legacy session's link to a modern server: a child of its own, where each has one.

        On stdio nothing says whose a log message is.
        """
        if self.config.process is ProcessModel.SHARED or isinstance(self.config.upstream, Remote):
            return await self._modern.get()
        return await self.open(fresh=True, era=Era.MODERN)

    async def modern(self, asked: Request, subject: str) -> Link | Response | Elsewhere:
        """The link for a modern request, or what to answer it at once. Raises ServerFault."""
        try:
            return await self._modern_link(asked, subject)
        except EraChanged:
            return await self._modern_link(asked, subject)

    async def _modern_link(self, asked: Request, subject: str) -> Link | Response | Elsewhere:
        era = await self.detection.find()
        return await (self._modern.get() if era is Era.MODERN else self._crossing.link(asked, subject))

    def join(self, link: Link, port: LegacyPort) -> None:
        """Put a legacy session's port on a link, with a translation if the server is modern."""
        if link.era is Era.LEGACY:
            link.join(port)
        else:
            layer = LegacyToModern(port.party, link, self.config.terms, name=link.label)
            link.join(port, layer, behind=layer.behind)

    @property
    def passing(self) -> Link | None:
        """The link on which modern requests pass as they are, while there is one."""
        return self._modern.live if self.detection.eras.speak(Era.MODERN) is Era.MODERN else None

    async def hang_up(self) -> None:
        """Close every link: whoever waits is told so."""
        self.draining = True
        async with anyio.create_task_group() as closing:
            for link in list(self._links):
                closing.start_soon(self.close, link)

    async def prepare(self) -> None:
        """Open a link ahead of need, for whoever asks first."""
        if isinstance(self.config.upstream, Remote) and self.detection.eras.unknown:
            await self.detection.find()
        elif self._blank is None:
            self.put_by(await self._fresh_link())

    async def open(self, *, fresh: bool, era: Era) -> Link:
        """A link on which nothing was asked, whose ids are minted or kept. Raises ServerFault."""
        link, self._blank = self._blank, None
        if link is None or link.fault is not None:
            link = await self._fresh_link()
        link.settle(fresh=fresh, era=era)
        return link

    async def _fresh_link(self) -> Link:
        link = Link(self.config, fresh=True)
        try:
            link.attach(await self._source.open(link))
        except CircuitOpen:
            raise
        except ServerFault as fault:
            self.readiness.failed(fault)
            raise
        if self.draining:
            raise ServerFault(STOPPING)  # its source ends what it opened
        self._links.add(link)
        return link

    async def _open_shared(self) -> Link:
        link = await self.open(fresh=True, era=Era.LEGACY)
        caller = Caller(link)
        try:
            initialized = await self.handshake(caller, INITIALIZE)
        except ServerFault as fault:
            if link.fault is not None:
                self.failed(fault)  # a refusal proves that it runs: it may be of the other era
            self.discard(link)
            raise
        caller.tell(notification("notifications/initialized"))
        link.leave(caller)
        link.insert(Sharing(initialized))
        return link

    async def _open_modern(self) -> Link:
        """Modern starts have a backoff of their own: a server that dies of them harms no session."""
        self._judge_modern()
        now = asyncio.get_running_loop().time()
        wait = self._modern_restarts.wait(now)
        if wait > 0:
            raise CircuitOpen("The server keeps failing and is left alone for now", retry_after=wait)
        self._modern_restarts.started(now)
        return await self.open(fresh=self.config.downstream is Downstream.HTTP, era=Era.MODERN)

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

    def expect(self, upstreams: int) -> None:
        """So many links may be wanted at short notice."""
        self._source.expect(upstreams)

    def release(self, link: Link) -> None:
        """A port is done with its link: close it unless it is kept for others."""
        if link.fault is not None or not link.kept:
            self.discard(link)

    def discard(self, link: Link) -> None:
        """Close a link, whoever still has it."""
        self.spawn(self.close, link)

    async def close(self, link: Link) -> None:
        """Close a link, and return when its server has ended."""
        await link.close()
        self._links.discard(link)

    # Eras

    def put_by(self, link: Link) -> None:
        """Keep a link on which no client asked anything for the next who needs one."""
        if self._blank is not None:
            self.discard(self._blank)
        self._blank = link

    def discovered(self, revision: str) -> None:
        """The server answered `server/discover`: it works."""
        self._source.succeeded()
        self.readiness.discovered(revision)

    def crosses(self, port: LegacyPort, link: Link, exchange: Exchange, response: Response) -> bool:
        """Whether an initialize that the server refused is put to its modern side instead.

        The port is then moved to another link and gets the answer from there; or it is answered
        with what else was found out about the server.
        """
        if link.era is Era.MODERN or response.error is UNSET:
            return False
        if self.detection.eras.may_be_modern(response):
            self.spawn(self._cross, port, exchange, response)
            return True
        told = self.detection.eras.beside(response)
        if told is not None:
            self.spawn(self._answer, port, exchange, told)
        return told is not None

    @staticmethod
    async def _answer(port: LegacyPort, exchange: Exchange, response: Response) -> None:
        port.answered(exchange, response)

    async def _cross(self, port: LegacyPort, exchange: Exchange, response: Response) -> None:
        offer = port.party.offer
        try:
            await self.detection.find()
            if offer is None or not self.detection.refused_initialize():
                port.answered(exchange, response)
                return
            link = await self._modern_of_session()
        except ServerFault as fault:
            log.info("the server refused to initialize, and does not show that it is modern: %s", fault)
            port.answered(exchange, response)
            return
        if port.moved(link):
            link.ask(port, offer, exchange.via)

    def heard(self, link: Link, method: str, response: Response) -> None:
        """An error that a modern client was given, which may show that the server is of another era."""
        if self.detection.eras.doubt(method, response, link.era):
            log.warning("%s: its era is in doubt and asked for anew", link.label)
            self.spawn(self._look_again, link.era)

    async def _look_again(self, spoken: Era) -> None:
        """Ask once more; if the server changed its era, the links of the old one end."""
        with suppress(ServerFault):
            if await self.detection.look_again() is spoken:
                return
            if spoken is Era.MODERN:
                self._modern.let_go()
                for link in [one for one in self._links if one.era is Era.MODERN]:
                    if link is not self._blank:  # it is the one that was asked just now
                        self.discard(link)
            else:
                self._crossing.end()

    # Evidence

    def succeeded(self, initialized: bytes | msgspec.Raw, era: Era = Era.LEGACY) -> None:
        """A handshake succeeded, anyone's, with a server that was spoken to in this era."""
        self._source.succeeded()
        if era is Era.LEGACY:
            self.detection.initialised()
        if self.readiness.initialised(initialized):
            server, revision = self.readiness.server, self.readiness.revision
            log.info("server is %s %s, revision %s", server.name or "unnamed", server.version, revision)

    def failed(self, fault: ServerFault) -> None:
        """A handshake failed, anyone's."""
        self._source.failed(fault)
        self.readiness.failed(fault)
        log.warning("server failed to start: %s", told(fault))

    async def handshake(self, caller: Caller, params: bytes) -> bytes:
        """Initialize in the bridge's own name; `initialized` is left to the caller.

        Raises ServerFault; EraChanged if the server refuses because it is modern.
        """
        response = await caller.call("initialize", params)
        if response.result is not UNSET:
            initialized = bytes(response.result)
            self.succeeded(initialized)
            return initialized
        if caller.link.fault is not None:
            raise caller.link.fault
        if self.detection.eras.may_be_modern(response):
            await self.detection.ask(caller)
            if self.detection.refused_initialize():
                raise EraChanged("The server turned out to be modern")
        text = f"The server refused to initialize: {_message_of(response)}"
        heard = self.detection.eras.heard
        raise ServerFault(f"{text}; and to server/discover it said: {heard}" if heard else text)

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
            self._crossing.expire(loop.time() - self.config.timing.upstream_idle)

    def _let_idle_links_go(self, oldest_call: float, oldest_session: float) -> None:
        modern, shared = self._modern.last, self._shared.last
        if modern is not None and modern.idle_since is not None and modern.idle_since <= oldest_call:
            self._modern.let_go()
        if shared is not None and not self.sessions and shared.quiet_since <= oldest_session:
            self._shared.let_go()

    async def drained(self) -> None:
        """Refuse what is new, and return when nothing is in flight any more."""
        self.draining = True
        self.readiness.drain()
        for link in list(self._links):
            await link.idle()


def _message_of(response: Response) -> str:
    try:
        return msgspec.json.decode(response.error or b"{}", type=_ErrorText).message
    except msgspec.DecodeError:  # a lone surrogate, which JSON allows
        return _ErrorText().message


class _ErrorText(msgspec.Struct):
    message: str = "no reason given"


def _minted() -> str:
    """What names a call to whoever knows it: 128 random bits."""
    return secrets.token_hex(16)
