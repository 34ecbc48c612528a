"""What runs on this machine, read from /proc: proof that a bridge left nothing behind.

It finds processes by a mark in their environment, which children and grandchildren inherit and which
a process that left its group, its session or its parent still carries. It refuses to end anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """`started` (in clock ticks since boot) tells a process from a later one with the same pid."""

    pid: int
    parent: int
    started: int
    state: str
    command: str


def running() -> Iterator[Process]:
    for folder in PROC.iterdir():
        if folder.name.isdigit() and (process := look(int(folder.name))):
            yield process


def look(pid: int) -> Process | None:
    try:
        # The name is in parentheses and may hold anything (proc(5), /proc/pid/stat).
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        command = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Process(pid, int(fields[1]), int(fields[19]), fields[0], command.strip())


def marked(mark: str) -> set[Process]:
    """Every process that has `mark` somewhere in its environment; a zombie has none any more."""
    return {process for process in running() if mark.encode() in environment(process.pid)}


def environment(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def descendants(pid: int) -> set[Process]:
    everyone = set(running())
    found: set[Process] = set()
    parents = {pid}
    while parents:
        born = {process for process in everyone if process.parent in parents} - found
        found |= born
        parents = {process.pid for process in born}
    return found


def alive(process: Process) -> bool:
    now = look(process.pid)
    return now is not None and now.started == process.started


def eventually(condition: Callable[[], bool], complaint: Callable[[], str], limit: float = 30) -> None:
    """Wait for what no event tells: the end of processes that are not ours.

    Raises AssertionError with `complaint()` after `limit` seconds.
    """
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, complaint()
        time.sleep(0.02)
