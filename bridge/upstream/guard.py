"""One small process that outlives the bridge and ends what a killed bridge leaves behind.

Decides which processes are ours and ends them: SIGTERM, a moment, SIGKILL. Refuses to know what
they are. It holds the read end of a pipe whose only write end is the bridge's, so that the pipe
closes however the bridge dies, and that is the order to end everything.

The file is both sides: `Guard` in the bridge, and the guard itself when it is run as a script,
without site-packages, which is why it imports the standard library alone and little of it.

Answers basic/transports, stdio, Shutdown, for the case in which nobody is left to do it.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

TOKEN = "MCP_BRIDGE_CHILD"  # noqa: S105 - the name of a variable
"""The variable in whose value, random for each child, all of a child's descendants are known."""

GRACE = 2.0
"""Seconds from SIGTERM to SIGKILL, and from there to giving up."""
POLL = 0.05
PROC = "/proc"

_log = logging.getLogger(__name__)


# In the bridge


class Guard:
    """The bridge's end; starts the guard on first use, and again if it was killed. Never raises."""

    def __init__(self) -> None:
        self._children: dict[str, int] = {}  # 0: announced, not yet started
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def watched(self) -> frozenset[str]:
        """The tokens of the children that are not released yet."""
        return frozenset(self._children)

    def start(self) -> None:
        """Start it now, to have it before the first child is wanted."""
        if self._process is None:
            self._restart()

    def announce(self, token: str) -> None:
        """A child with this token in its environment is about to be started."""
        self._children[token] = 0
        self._tell(f"announce {token}\n")

    def watch(self, group: int, token: str) -> None:
        """It was started, and leads this group."""
        self._children[token] = group
        self._tell(f"watch {token} {group}\n")

    def release(self, token: str) -> None:
        """Its group is gone, or never was: end what left the group, and forget the token."""
        if self._children.pop(token, None) is not None:
            self._tell(f"release {token}\n")

    async def close(self) -> None:
        """End what is still watched, and return when the guard has exited."""
        import asyncio  # here, since the guard itself would pay for it in memory

        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        await asyncio.to_thread(process.wait)

    def _tell(self, command: str) -> None:
        if self._process is None or not _written(self._process, command):
            self._restart()

    def _restart(self) -> None:
        """Start a new one, which is told of all children."""
        self._discard()
        try:
            self._process = _start()
        except OSError as error:
            _log.error("no guard, children will outlive a killed bridge: %s", error.strerror)
            return
        known = "".join(
            f"watch {token} {group}\n" if group else f"announce {token}\n"
            for token, group in self._children.items()
        )
        if not _written(self._process, known):
            _log.error("the guard does not listen, children may outlive a killed bridge")

    def _discard(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.kill()  # before its pipe closes, which it would take for our death
            process.wait()
            process.stdin.close()


def _start() -> subprocess.Popen[bytes]:
    # Its own token is left out lest a bridge around this one takes the guard for a stray.
    env = {name: value for name, value in os.environ.items() if name != TOKEN}
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and file
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",
        env=env,
        start_new_session=True,
    )
    if process.stdin is not None:
        os.set_blocking(process.stdin.fileno(), False)
    return process


def _written(process: subprocess.Popen[bytes], commands: str) -> bool:
    """False if the guard is dead, or does not read: a pipe holds thousands of commands."""
    data = commands.encode("ascii")
    try:
        return process.stdin is not None and process.stdin.write(data) == len(data)
    except OSError:
        return False


# The guard itself


class Ward(NamedTuple):
    """A child: `group` is 0 until it has started, `started` tells its leader from a later namesake."""

    token: str
    group: int = 0
    started: bytes = b""


class Process(NamedTuple):
    pid: int
    group: int
    started: bytes
    token: str


class Ending:
    """The end of one ward: SIGTERM once to everybody, SIGKILL from `deadline` on."""

    def __init__(self, ward: Ward, now: float) -> None:
        self.ward = ward
        self.deadline = now + GRACE
        self.over = False
        self._asked: set[int] = set()
        self._missed = 0

    def step(self, targets: set[int], now: float) -> None:
        # Twice, since a look can miss a process that is just being forked or executed.
        self._missed = 0 if targets else self._missed + 1
        self.over = self._missed == 2 or now > self.deadline + GRACE
        if now < self.deadline:
            _signal(targets - self._asked, signal.SIGTERM)
            self._asked |= targets
        else:
            _signal(targets, signal.SIGKILL)


class Watch:
    """Reads commands from `pipe` until it closes, and ends what is to be ended."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._open = True
        self._half = b""
        self._wards: dict[str, Ward] = {}
        self._endings: list[Ending] = []

    def run(self) -> None:
        """Returns when the pipe is closed and nothing is left."""
        while self._open or self._endings:
            self._listen(POLL if self._endings else None)
            self._step(time.monotonic())

    def _listen(self, seconds: float | None) -> None:
        if not select.select([self._pipe] if self._open else [], [], [], seconds)[0]:
            return
        if data := os.read(self._pipe, 65536):
            *commands, self._half = (self._half + data).split(b"\n")
            for command in commands:
                self._obey(*command.decode("ascii").split())
        else:
            self._open = False
            self._end(*self._wards.values())

    def _obey(self, verb: str, token: str, group: str = "0") -> None:
        if verb == "release":
            # The group was ended by the bridge, and its number may be another's by now.
            self._end(self._wards.get(token, Ward(token))._replace(group=0))
        else:
            self._wards[token] = Ward(token, int(group), started_at(int(group)))

    def _end(self, *wards: Ward) -> None:
        for ward in wards:
            self._wards.pop(ward.token, None)
            self._endings.append(Ending(ward, time.monotonic()))

    def _step(self, now: float) -> None:
        if self._endings:
            found = find([ending.ward for ending in self._endings])
            for ending in self._endings:
                ending.step(found[ending.ward.token], now)
            self._endings = [ending for ending in self._endings if not ending.over]


def find(wards: Iterable[Ward]) -> defaultdict[str, set[int]]:
    """What lives of each ward, by token: process ids, or a negative group where there is no /proc."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    if not _has_proc():
        for ward in wards:
            if ward.group and exists(ward.group):
                found[ward.token].add(-ward.group)
        return found
    by_token: defaultdict[str, list[Process]] = defaultdict(list)
    by_group: defaultdict[int, list[Process]] = defaultdict(list)
    for process in processes():
        by_token[process.token].append(process)
        by_group[process.group].append(process)
    for ward in wards:
        group = by_group[ward.group] if ward.group else []
        members = group if any(_proves(ward, process) for process in group) else []
        found[ward.token] |= {process.pid for process in (*members, *by_token[ward.token])}
    return found


def _proves(ward: Ward, member: Process) -> bool:
    """Whether a group with this member is still the ward's, and not one that got its number later."""
    leads = member.pid == ward.group and member.started == ward.started
    return leads or member.token == ward.token


def processes() -> Iterator[Process]:
    """All that live and may be looked at, but this one."""
    for pid, fields in _living():
        if pid != os.getpid():
            yield Process(pid, int(fields[2]), fields[19], _token(pid))


def inhabited(group: int) -> bool:
    """Whether anybody lives in a group; zombies do not, where that can be told.

    Takes milliseconds if the group exists: zombies make it exist until process 1 has reaped them,
    which in many a container it never does.
    """
    if not exists(group):
        return False
    return not _has_proc() or any(int(fields[2]) == group for _, fields in _living())


def exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):  # EPERM: nobody but zombies (macOS), or another user's
        return False
    return True


def _has_proc() -> bool:
    return os.path.isdir(f"{PROC}/self")  # noqa: PTH112 - pathlib costs the guard a megabyte


def _living() -> Iterator[tuple[int, list[bytes]]]:
    """Process ids, zombies left out, and what `_stat` says of each."""
    for name in os.listdir(PROC):  # noqa: PTH208
        if name.isdecimal() and (fields := _stat(int(name))) and fields[0] not in (b"Z", b"X"):
            yield int(name), fields


def started_at(pid: int) -> bytes:
    """When it started, in ticks since boot; empty if it does not exist or cannot be told."""
    fields = _stat(pid) if pid else []
    return fields[19] if fields else b""


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the third, the state, on: the second may hold any character."""
    data = _read(f"{PROC}/{pid}/stat")
    return data[data.rfind(b")") + 1 :].split()


def _token(pid: int) -> str:
    mark = TOKEN.encode("ascii") + b"="
    for entry in _read(f"{PROC}/{pid}/environ").split(b"\0"):
        if entry.startswith(mark):
            return entry[len(mark) :].decode("ascii", "replace")
    return ""


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:  # gone meanwhile, or another user's
        return b""


def _signal(targets: Iterable[int], sign: signal.Signals) -> None:
    for target in targets:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(target, sign)


def main() -> None:
    for deaf in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(deaf, signal.SIG_IGN)
    Watch(0).run()


if __name__ == "__main__":
    main()
