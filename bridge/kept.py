"""What many ask for and only one fetches: a value found out once, a link opened once.

Decides that nobody who waits is harmed by another who leaves, and that a failure is told to
all who waited and tried anew by the next. Knows nothing of what is fetched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, Generic, Protocol, TypeVar

from bridge.errors import ServerFault
from bridge.link import Link

T = TypeVar("T")

STOPPING: Final = "The bridge is shutting down"


class Keeper(Protocol):
    """Who runs what is fetched, and closes what is let go."""

    draining: bool

    def spawn(self, call: Callable[..., Coroutine[object, object, object]], *args: object) -> None: ...

    def discard(self, link: Link) -> None:
        """Close it, whoever still has it."""


class Once(Generic[T]):
    """A fetch that all share who ask while it runs."""

    def __init__(self, keeper: Keeper, fetch: Callable[[], Awaitable[T]]) -> None:
        self._keeper = keeper
        self._fetch = fetch
        self._running: asyncio.Future[T] | None = None

    async def get(self) -> T:
        """Raises ServerFault."""
        if self._keeper.draining:
            raise ServerFault(STOPPING)
        if self._running is None:
            self._running = asyncio.get_running_loop().create_future()
            self._keeper.spawn(self._run, self._running)
        # Shielded: the client that came first may leave, and the others still wait.
        return await asyncio.shield(self._running)

    async def _run(self, running: asyncio.Future[T]) -> None:
        try:
            running.set_result(await self._fetch())
        except ServerFault as fault:
            running.set_exception(fault)
            running.exception()  # seen, even if every waiter has left
        finally:
            self._running = None
            if not running.done():
                running.set_exception(ServerFault(STOPPING))
                running.exception()


class Kept:
    """A link that many share: opened once however many ask at the same time, anew once lost."""

    def __init__(self, keeper: Keeper, open_link: Callable[[], Awaitable[Link]]) -> None:
        self._keeper = keeper
        self._open = open_link
        self._once: Once[Link] = Once(keeper, self._opened)
        self.last: Link | None = None
        """The link that was or is in use; None once it was let go for being idle."""

    @property
    def live(self) -> Link | None:
        """The link, if there is one that works."""
        return self.last if self.last is not None and self.last.fault is None else None

    def let_go(self) -> None:
        """Close it; the next who asks opens it anew."""
        link, self.last = self.last, None
        if link is not None:
            self._keeper.discard(link)

    async def get(self) -> Link:
        """Raises ServerFault."""
        return self.live or await self._once.get()

    async def _opened(self) -> Link:
        link = await self._open()
        link.kept = True
        self.let_go()
        self.last = link
        return link
