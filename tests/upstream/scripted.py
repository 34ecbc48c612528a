"""Real children of a few lines of Python, a receiver that remembers, and waits on events under a limit."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from bridge.config import Command, Timing
from bridge.core.lines import Overlong
from bridge.core.message import Id
from bridge.errors import ServerFault, ServerStopped
from bridge.upstream.guard import Guard
from bridge.upstream.process import Child, environment, spawn

LIMIT = 20.0
"""Seconds for anything that would otherwise hang."""

QUICK = Timing(stdin_closed=0.3, terminated=0.3)
PATIENT = Timing(stdin_closed=LIMIT, terminated=LIMIT)

ECHO = """
    import sys
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
"""


def python(code: str, *args: str, env: tuple[tuple[str, str], ...] = ()) -> Command:
    return Command(argv=(sys.executable, "-I", "-S", "-c", textwrap.dedent(code), *args), env=env)


def shell(line: str) -> Command:
    return Command(argv=("/bin/sh", "-c", line))


class Recorder:
    """A `Receiver` that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[bytes | Overlong] = []
        self.faults: list[ServerFault] = []
        self._told = anyio.Event()

    def received(self, lines: list[bytes | Overlong], on: Id | None = None) -> None:
        assert not self.faults, "received after lost"
        assert lines
        self.lines += lines
        self._tell()

    def take(self, data: bytes) -> None:
        self.received([data])

    def lost(self, fault: ServerFault) -> None:
        self.faults.append(fault)
        self._tell()

    def _tell(self) -> None:
        self._told.set()
        self._told = anyio.Event()

    @property
    def text(self) -> bytes:
        return b"".join(line for line in self.lines if isinstance(line, bytes))

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(LIMIT):
            while not condition():
                await self._told.wait()

    async def until_lines(self, count: int) -> None:
        await self.until(lambda: len(self.lines) >= count)

    async def until_text(self, part: bytes) -> None:
        await self.until(lambda: part in self.text)

    async def until_lost(self) -> ServerStopped:
        await self.until(lambda: bool(self.faults))
        (fault,) = self.faults
        assert isinstance(fault, ServerStopped)
        return fault


@asynccontextmanager
async def tended(
    command: Command,
    guard: Guard,
    *,
    timing: Timing = QUICK,
    tail: int = 20,
    environ: Mapping[str, str] = os.environ,
) -> AsyncIterator[Child]:
    """A child that lives at most as long as the block."""
    async with anyio.create_task_group() as tasks:
        child = spawn(command, environment(command, environ), timing=timing, tail=tail, guard=guard)
        tasks.start_soon(child.tend)
        try:
            with anyio.fail_after(LIMIT):
                yield child
        finally:
            child.stop()


@asynccontextmanager
async def heard(
    command: Command, guard: Guard, *, timing: Timing = QUICK, tail: int = 20
) -> AsyncIterator[tuple[Child, Recorder]]:
    """The same, listened to."""
    async with tended(command, guard, timing=timing, tail=tail) as child:
        recorder = Recorder()
        child.listen(recorder.take, recorder.lost)
        yield child, recorder


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a state of the system of which no event tells."""
    with anyio.fail_after(LIMIT):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.01)


def await_zombie(pid: int) -> None:
    """Return when it has exited, of which the event loop has not heard since."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def lives(pid: int) -> bool:
    """Whether there is such a process, zombies not counted."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat[stat.rindex(b")") + 2 :][:1] not in b"ZX"
