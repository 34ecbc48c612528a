"""Finding out which eras a server knows: who asks it, on which connection, and how long one waits.

What an answer means is `era.probe`'s matter. The server is asked once for all who want to know, on
the connection that is used afterwards. Answers "Versioning and Backward Compatibility" of 2026-07-28
for the side of the client.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

import anyio

from bridge import __version__
from bridge.config import Config, Remote, Transport
from bridge.core.message import Response
from bridge.core.splice import quote
from bridge.era.probe import Eras, discovery
from bridge.era.revisions import MODERN_VERSIONS, Era
from bridge.errors import ServerFault, ServerStopped
from bridge.kept import Keeper, Once
from bridge.link import Caller, Link

log = logging.getLogger("bridge.relay")

CLIENT: Final = quote({"name": "mcp-bridge", "version": __version__})
"""The bridge's own clientInfo."""


class Host(Keeper, Protocol):
    """What the relay does for it."""

    async def open(self, *, fresh: bool, era: Era) -> Link: ...

    def put_by(self, link: Link) -> None:
        """Keep a link on which no client asked anything for the next who needs one."""

    def discovered(self, revision: str) -> None:
        """The server answered `server/discover`: it works."""


class Detection:
    """`eras` is what is known; `find` looks, `ask` learns from one connection."""

    def __init__(self, host: Host, config: Config) -> None:
        old = isinstance(config.upstream, Remote) and config.upstream.transport is Transport.SSE
        self.eras = Eras(
            Era.LEGACY if old else config.era,
            asyncio.get_running_loop().time,
            log.warning,
            http=isinstance(config.upstream, Remote),
        )
        self._host = host
        self._timing = config.timing
        self._told: str | None = None
        self._search = Once(host, self._find)

    async def find(self) -> Era:
        """The era to speak for a modern client. Raises ServerFault if it cannot be found out."""
        return self.eras.speak(Era.MODERN) or await self._search.get()

    async def look_again(self) -> Era:
        """The same, of a server in doubt."""
        return await self._search.get()

    async def _find(self) -> Era:
        if self.eras.probing:
            link = await self._host.open(fresh=True, era=Era.MODERN)
            try:
                await self.ask(Caller(link))
            except BaseException:
                self._host.discard(link)
                raise
            if self.eras.fault is None and link.fault is None:
                self._host.put_by(link)
            else:
                self._host.discard(link)
        era = self.eras.speak(Era.MODERN)
        if era is None:
            raise ServerFault(self.eras.fault or "It cannot be found out which revisions the server speaks")
        return era

    async def ask(self, caller: Caller) -> None:
        """Ask a server for its modern side on this connection, and learn from what it says."""
        label = caller.link.label
        log.info(
            "asking it for its era; it may complain if it is old (--upstream-era spares it)",
            extra={"label": label},
        )
        version: str | None = MODERN_VERSIONS[-1]
        while version is not None:
            answer = await self._answer(caller, discovery(version, CLIENT))
            version = self.eras.learn(answer, exited=isinstance(caller.link.fault, ServerStopped))
        caller.link.leave(caller)
        self.tell()
        if self.eras.speak(Era.MODERN) is Era.MODERN:
            self._host.discovered(MODERN_VERSIONS[-1])

    async def _answer(self, caller: Caller, params: bytes) -> Response | None:
        """The answer to `server/discover`, or None for silence, counted from the first sign of life."""
        least = self._timing.probe
        patience = anyio.CancelScope(deadline=anyio.current_time() + self._timing.sign_of_life + least)

        async def hurry() -> None:
            await caller.link.awake()
            patience.deadline = min(patience.deadline, anyio.current_time() + least)

        async with anyio.create_task_group() as watching:
            watching.start_soon(hurry)
            answer = await caller.probe("server/discover", params, patience)
            watching.cancel_scope.cancel()
        return answer

    def initialised(self) -> None:
        """The server was initialized."""
        self.eras.initialised()
        self.tell()

    def refused_initialize(self) -> bool:
        """The server refused to be; whether that is because it is modern only."""
        refused = self.eras.refused_initialize()
        self.tell()
        return refused

    def tell(self) -> None:
        """Say which translation is in force, whenever that is news."""
        told, self._told = self._told, self.eras.in_force
        if self._told not in (None, told):
            log.info("%s", self._told)
