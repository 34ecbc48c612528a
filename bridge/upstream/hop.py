"""One upstream session over HTTP, whatever its transport: its tasks, its receiver, its end.

Decides when something is still delivered and how the session ends. Knows nothing of what is
sent: the transports do that, each message in a task of this session.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVarTuple

import anyio
from anyio.abc import TaskStatus

from bridge.config import Limits, Timing
from bridge.core.lines import Overlong
from bridge.core.message import Id
from bridge.errors import ServerFault
from bridge.upstream.base import Receiver
from bridge.upstream.http_client import HttpClient

log = logging.getLogger("bridge.remote")

Args = TypeVarTuple("Args")


class Hop:
    """`run` must be running while anything is sent; `close` ends it."""

    def __init__(self, client: HttpClient, receiver: Receiver, limits: Limits, timing: Timing) -> None:
        self.client, self.limits, self.timing = client, limits, timing
        self.label = client.label
        self._receiver = receiver
        self._tasks = anyio.create_task_group()
        self._closing, self._gone = anyio.Event(), anyio.Event()
        self._resumed: anyio.Event | None = None

    @property
    def closed(self) -> bool:
        return self._closing.is_set()

    async def run(self, farewell: Callable[[], Awaitable[None]], *, task_status: TaskStatus[None]) -> None:
        """Carry the session's tasks; after `close`, say farewell and return."""
        try:
            async with self._tasks:
                task_status.started()
                await self._closing.wait()
                self._tasks.cancel_scope.cancel()
        except* Exception:
            # A fault of ours in one session must not take down those of others.
            log.exception("%s: the session failed", self.label)
        finally:
            self._end(ServerFault("The bridge failed while it spoke to the server"))
            with anyio.CancelScope(shield=True), anyio.move_on_after(self.timing.farewell):
                await farewell()
            self._gone.set()

    async def close(self, *, tell: bool = True) -> None:
        """End it, and return when it has ended; the receiver is told unless `tell` is false."""
        self._end(ServerFault("The connection to the server was closed") if tell else None)
        await self._gone.wait()

    def _end(self, fault: ServerFault | None) -> None:
        if not self.closed:
            self._closing.set()
            if fault is not None:
                self._receiver.lost(fault)

    def spawn(self, call: Callable[[*Args], Coroutine[object, object, object]], *args: *Args) -> None:
        """Do something for as long as the session lives."""
        self._tasks.start_soon(call, *args)

    def deliver(self, payload: bytes | Overlong, on: Id | None = None) -> None:
        """Give the receiver one JSON text; `on` as in `Receiver.received`."""
        if not self.closed:
            self._receiver.received([payload], on)

    # Back-pressure

    def pause(self) -> None:
        if self._resumed is None:
            self._resumed = anyio.Event()

    def resume(self) -> None:
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None

    async def readable(self) -> None:
        """Return when streams may be read: what is left unread slows the server down."""
        while self._resumed is not None:
            await self._resumed.wait()
