"""What the kernel knows of processes, read from /proc: who lives, who left zombies, who holds what.

It finds processes by a mark in their environment, which a process that left its group, its session
or its parent still carries. It refuses to end anything but what it was told.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
LIMIT = 30.0
"""Seconds after which a test that waits has failed."""


@dataclass(frozen=True, slots=True)
class Process:
    """`started`, in clock ticks since boot, tells a process from a later one with its number."""

    pid: int
    parent: int
    started: int
    state: str
    command: str


def look(pid: int) -> Process | None:
    try:
        # The name is in parentheses and may hold anything (proc(5), /proc/pid/stat).
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        command = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Process(pid, int(fields[1]), int(fields[19]), fields[0], command.strip())


def running() -> Iterator[Process]:
    for folder in PROC.iterdir():
        if folder.name.isdigit() and (process := look(int(folder.name))):
            yield process


def lives(pid: int) -> bool:
    """Whether there is such a process; a zombie does not live."""
    found = look(pid)
    return found is not None and found.state not in "ZX"


def marked(mark: str) -> list[Process]:
    """Those that have `mark` in their environment; a zombie has none any more."""
    return [process for process in running() if mark.encode() in _environment(process.pid)]


def zombies_of(parent: int) -> list[Process]:
    return [process for process in running() if process.state == "Z" and process.parent == parent]


def descendants(pid: int) -> list[Process]:
    everyone, found, parents = list(running()), list[Process](), {pid}
    while parents:
        born = [process for process in everyone if process.parent in parents]
        found += born
        parents = {process.pid for process in born}
    return found


def descriptors(pid: int) -> int:
    return len(list((PROC / str(pid) / "fd").iterdir()))


def opened(pid: int) -> set[str]:
    """What its open descriptors lead to, as /proc spells it: `pipe:[INODE]`, `socket:[INODE]`, a path."""
    found = set()
    for entry in (PROC / str(pid) / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.add(str(entry.readlink()))
    return found


def ports(pid: int) -> list[int]:
    """The TCP ports that it listens on, of IPv4."""
    held = opened(pid)
    rows = [line.split() for line in (PROC / str(pid) / "net" / "tcp").read_text().splitlines()[1:]]
    # Local address, state (0A: listening) and inode are columns of proc(5), /proc/net/tcp.
    return [int(row[1][-4:], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in held]


def threads(pid: int) -> int:
    return len(list((PROC / str(pid) / "task").iterdir()))


def memory(pid: int) -> int:
    """Bytes that it holds in memory and shares with nobody."""
    text = (PROC / str(pid) / "statm").read_text().split()
    return (int(text[1]) - int(text[2])) * os.sysconf("SC_PAGE_SIZE")


def _environment(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def end(processes: list[Process]) -> None:
    """Kill these, unless their numbers belong to others by now."""
    for process in processes:
        now = look(process.pid)
        if now is not None and now.started == process.started:
            with suppress(ProcessLookupError):
                os.kill(process.pid, 9)


async def eventually(
    condition: Callable[[], object], complaint: Callable[[], object], limit: float = LIMIT
) -> None:
    """Wait for a state of the system of which no event tells.

    Raises AssertionError with `complaint()` after `limit` seconds.
    """
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, complaint()
        await asyncio.sleep(0.02)
