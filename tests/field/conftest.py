"""Starts the bridge as a user does, before a child of a test's choosing, and sees that both end well.

Black box: the command line, the URL it prints, HTTP, and what the process table says. Every bridge
that was started here must exit 0 on SIGTERM, leave no server behind, print nothing on stdout, and
have logged no exception of its own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.machine import Process, look, marked

CHILDREN = Path(__file__).parent / "children"
ROOT = Path(__file__).parents[2]
START_LIMIT = 20.0
STOP_LIMIT = 30.0

_URL = re.compile(r"https?://(?:127\.0\.0\.1|\[::1\]):(\d+)/\S*")
_FAULTS = ("Traceback", "never retrieved", "Unhandled")


def child(name: str, *args: str) -> list[str]:
    """The argument vector of one of our children: a Python file in `children/`, started quickly."""
    return [sys.executable, "-I", "-S", str(CHILDREN / name), *args]


def eventually(condition: Callable[[], object], complaint: Callable[[], str]) -> None:
    """Wait for a state of the system of which no event tells.

    Raises AssertionError with `complaint()`.
    """
    deadline = time.monotonic() + STOP_LIMIT
    while not condition():
        assert time.monotonic() < deadline, complaint()
        time.sleep(0.01)


@dataclass(kw_only=True)
class Bridge:
    """One running bridge; `mark` is in the environment of its servers and of nothing else."""

    process: subprocess.Popen[bytes]
    mark: str
    url: str = ""
    port: int = 0
    log: list[str] = field(default_factory=list)
    """Lines of its stderr so far. What it said before an answer may come here after that."""
    expect_clean: bool = True
    """False where a child itself writes what would pass for an exception of the bridge."""
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _ended: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    def servers(self) -> set[Process]:
        """Its children and all of theirs, by what is in their environment."""
        own = set(marked(f"FIELD_BRIDGE={self.mark}"))
        return own & set(marked("MCP_BRIDGE_CHILD="))

    def expect_servers(self, count: int) -> None:
        """Wait until it has so many."""
        eventually(lambda: len(self.servers()) == count, lambda: f"{self.servers()}\n{self.tail()}")

    def expect_log(self, text: str) -> str:
        """Wait for a line of its stderr that has `text` in it."""

        def found() -> str | None:
            return next((line for line in self.log if text in line), None)

        with self._changed:
            self._changed.wait_for(lambda: found() or self._ended, START_LIMIT)
        line = found()
        assert line is not None, f"never logged: {text}\n{self.tail()}"
        return line

    def high_water(self) -> int:
        """The most memory it ever had, in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024

    def tail(self) -> str:
        return "\n".join(["--- the bridge's stderr:", *(line[:400] for line in self.log[-60:])])

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> None:
        """It ends with status 0, nothing of it is left, and it had no fault to tell of."""
        family = self.servers()
        self.process.send_signal(sign)
        self.expect_end(0)
        eventually(
            lambda: not self._left(family), lambda: f"outlived it: {self._left(family)}\n{self.tail()}"
        )
        faults = [line for line in self.log if any(fault in line for fault in _FAULTS)]
        assert not (faults and self.expect_clean), f"{faults}\n{self.tail()}"

    def expect_end(self, status: int) -> None:
        """It ends with this status, and all that it said is in the log."""
        try:
            found = self.process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {STOP_LIMIT} s\n{self.tail()}") from None
        with self._changed:
            assert self._changed.wait_for(lambda: self._ended, STOP_LIMIT), "its stderr is still open"
        assert found == status, f"exit status {found}\n{self.tail()}"

    def _left(self, family: set[Process]) -> set[Process]:
        return {one for one in family if look(one.pid) == one} | self.servers()

    def kill(self) -> None:
        """Clear away what a failed test left."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in self.servers():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self.process.wait()

    def read(self) -> None:
        """Drain stderr to its end: a full pipe would be a case of its own."""
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            line = raw.decode(errors="replace").rstrip("\n")
            with self._changed:
                self.log.append(line)
                if not self.url and (found := _URL.search(line)):
                    self.url, self.port = found[0], int(found[1])
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def expect_url(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.url or self._ended, START_LIMIT)
        assert self.url, f"printed no URL\n{self.tail()}"


@contextmanager
def running(
    argv: Sequence[str], *options: str, env: Mapping[str, str] | None = None, port: int = 0, cmd: bool = False
) -> Iterator[Bridge]:
    """A bridge before the server `argv`, on a free port unless one is named.

    `options` are the bridge's; with `cmd` the server is given as one `--cmd` line, `argv[0]`, as it
    stands. On leaving, unless it has ended already, it must stop as `Bridge.stop` says.
    """
    mark = uuid.uuid4().hex
    server = ["--cmd", argv[0]] if cmd else ["--", *argv]
    words = [sys.executable, "-m", "bridge", "stdio-to-http", "--port", str(port)]
    process = subprocess.Popen(
        [*words, "--env", f"FIELD_BRIDGE={mark}", *options, *server],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    bridge = Bridge(process=process, mark=mark)
    reader = threading.Thread(target=bridge.read)
    reader.start()
    assert process.stdout is not None
    try:
        bridge.expect_url()
        yield bridge
        if process.poll() is None:
            bridge.stop()
        assert process.stdout.read() == b"", "the bridge's own stdout must stay empty"
    finally:
        bridge.kill()
        reader.join(STOP_LIMIT)
        process.stdout.close()
        if process.stderr is not None:
            process.stderr.close()


Start = Callable[..., Bridge]


@pytest.fixture(scope="module")
def start_bridge() -> Iterator[Start]:
    """`start_bridge(argv, *options, env=None)`: as `running`, until the module ends."""
    with ExitStack() as stack:

        def start(argv: Sequence[str], *options: str, env: Mapping[str, str] | None = None) -> Bridge:
            return stack.enter_context(running(argv, *options, env=env))

        yield start
