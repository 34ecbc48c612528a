"""Where stdio servers come from: some started ahead of need, the others when they are wanted.

Decides which child a connection gets, when another is started, and that none is left at the end.
Refuses to know whether a child is any good: who did the handshake says so (`succeeded`,
`failed`), and `core.restart` draws the consequence.

Answers basic/transports, stdio, Unexpected Termination: a server that stopped may be started again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import anyio

from bridge.config import Command, Limits, Timing
from bridge.core.restart import Circuit, Restarts
from bridge.errors import CircuitOpen, ServerFault
from bridge.upstream.base import Receiver
from bridge.upstream.guard import Guard
from bridge.upstream.orphans import reap_orphans
from bridge.upstream.process import Child, environment, spawn
from bridge.upstream.stdio import StdioUpstream

_log = logging.getLogger("bridge.server")

YOUNG = 10.0
"""Seconds: a warm child that dies before is a failed start; one that dies later grew tired of waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What a pool knows: children started in all, living, and waiting; the last fault since a success."""

    started: int
    alive: int
    warm: int
    fault: ServerFault | None


class Pool:
    """A `Source` of children of one command, of which `warm` are kept started; use as a context manager.

    `environ` is the bridge's own environment, of which the children get what the command says.
    """

    def __init__(
        self,
        command: Command,
        environ: Mapping[str, str],
        *,
        limits: Limits,
        timing: Timing,
        warm: int,
        guard: Guard,
        restarts: Restarts,
        clock: Callable[[], float] = anyio.current_time,
    ) -> None:
        self._command = command
        self._env = environment(command, environ)
        self._limits = limits
        self._timing = timing
        self._wanted = warm
        self._guard = guard
        self._restarts = restarts
        self._clock = clock
        self._tasks = anyio.create_task_group()
        # A start blocks the event loop for half a millisecond; between two of them others have a turn.
        self._one_at_a_time = anyio.Lock()
        self._warm: deque[Child] = deque()
        self._children: set[Child] = set()
        self._started = 0
        self._fault: ServerFault | None = None
        self._changed = anyio.Event()
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._keep_warm)
        self._tasks.start_soon(reap_orphans)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        with anyio.CancelScope(shield=True):
            await self.close()
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(kind, error, trace)

    @property
    def health(self) -> Health:
        return Health(
            started=self._started,
            alive=sum(child.alive for child in self._children),
            warm=sum(child.alive for child in self._warm),
            fault=self._fault,
        )

    async def open(self, receiver: Receiver) -> StdioUpstream:
        """A living child that nothing was sent to: a warm one at once, else one started now.

        While a start must wait for its backoff this waits too. Raises CircuitOpen if the server
        failed too often, and ServerFault if it cannot be started or the pool is closed.
        """
        await self._admitted()
        child = self._take() or await self._start()
        self._change()
        return StdioUpstream(child, receiver, self._limits.line)

    def expect(self, upstreams: int) -> None:
        """Keep more children warm from now on, if any are kept warm."""
        if 0 < self._wanted < upstreams:
            self._wanted = upstreams
            self._change()

    def succeeded(self) -> None:
        """A child answered its handshake."""
        self._restarts.succeeded()
        self._fault = None
        self._change()

    def failed(self, fault: ServerFault) -> None:
        """A child did not answer its handshake, or died of itself; a warm one's death is known here."""
        self._restarts.failed(self._clock())
        self._fault = fault
        self._change()

    async def close(self) -> None:
        """End every child, warm or handed out, and return when all are gone."""
        self._closed = True
        self._change()
        children = list(self._children)
        for child in children:
            child.stop()
        for child in children:
            await child.gone.wait()

    async def _admitted(self) -> None:
        """Return when a start may be tried, and take it as tried."""
        while (wait := self._restarts.wait(self._clock())) > 0:
            if self._restarts.state(self._clock()) is Circuit.OPEN:
                raise self._refusal(wait)
            if any(child.alive for child in self._warm):
                break
            await self._change_within(wait)
        self._restarts.started(self._clock())

    def _refusal(self, wait: float) -> CircuitOpen:
        last = f": {self._fault}" if self._fault else ""
        return CircuitOpen(f"server failed too often, next try in {wait:.0f} s{last}", retry_after=wait)

    def _take(self) -> Child | None:
        while self._warm:
            child = self._warm.popleft()
            if child.alive:
                return child
        return None

    async def _start(self) -> Child:
        async with self._one_at_a_time:
            if self._closed:
                raise ServerFault("the bridge is stopping")
            child = self._spawn()
        _log.info("started", extra={"label": child.label})
        self._started += 1
        self._children.add(child)
        self._tasks.start_soon(self._tend, child)
        return child

    def _spawn(self) -> Child:
        try:
            return spawn(
                self._command,
                self._env,
                timing=self._timing,
                tail=self._limits.stderr_tail,
                guard=self._guard,
            )
        except ServerFault as fault:
            self.failed(fault)
            raise

    async def _tend(self, child: Child) -> None:
        born = self._clock()
        try:
            await child.tend()
        finally:
            self._children.discard(child)
            if child in self._warm:
                self._warm.remove(child)
        if child.fault is not None:
            self._died(child, child.fault, self._clock() - born)
        self._change()

    def _died(self, child: Child, fault: ServerFault, age: float) -> None:
        if child.listened:
            self._fault = fault
        elif age < YOUNG:
            self.failed(fault)

    async def _keep_warm(self) -> None:
        while not self._closed:
            if not self._lacks():
                await self._changed.wait()
            elif (wait := self._restarts.wait(self._clock())) > 0:
                await self._change_within(wait)
            else:
                with suppress(ServerFault):
                    self._warm.append(await self._start())

    def _lacks(self) -> bool:
        """Whether a warm child is to be started; not as the one try of a half-open circuit.

        A warm child proves nothing by waiting, so the try is left to who does a handshake.
        """
        closed = self._restarts.state(self._clock()) is Circuit.CLOSED
        return closed and len(self._warm) < self._wanted

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _change_within(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._changed.wait()
