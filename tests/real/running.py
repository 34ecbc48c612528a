"""Starts the bridge as a user does, and client programs before it, and sees that both end well.

It knows the command line of `mcp-bridge stdio-to-http` and nothing of the bridge's inside: the URL is
read from what the bridge prints, health from its exit status, cleanliness from the process table.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from . import processes
from .provision import ROOT

START_LIMIT = 30
STOP_LIMIT = 40
CLIENT_LIMIT = 150
URL = re.compile(r"http://127\.0\.0\.1:\d+/mcp\b")


@dataclass(slots=True, kw_only=True)
class Bridge:
    """One running bridge. `mark` is in the environment of its servers, and of nothing else."""

    process: subprocess.Popen[str]
    mark: str
    url: str = ""
    log: list[str] = field(default_factory=list)
    printed: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        """Drain stderr to its end: a full pipe would stop the bridge."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))
            if not self.url and (found := URL.search(line)):
                self.url = found[0]
                self.printed.set()
        self.printed.set()

    def servers(self) -> set[processes.Process]:
        return processes.marked(f"REAL_SERVER_OF={self.mark}")

    def tail(self) -> str:
        return "\n".join(["--- the bridge's stderr:", *self.log[-60:]])

    def expect_no_server(self) -> None:
        """The server of an ended session is gone, with all that it started; wants `--warm 0`."""
        processes.eventually(
            lambda: not self.servers(), lambda: f"left running: {self.servers()}\n{self.tail()}"
        )

    def stop(self) -> None:
        """SIGTERM ends it with status 0, and its whole family with it."""
        family = processes.descendants(self.process.pid) | self.servers()
        self.process.terminate()
        try:
            status = self.process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running {STOP_LIMIT} s after SIGTERM\n{self.tail()}") from None
        assert status == 0, f"exit status {status} after SIGTERM\n{self.tail()}"

        def left() -> set[processes.Process]:
            return {process for process in family if processes.alive(process)} | self.servers()

        processes.eventually(lambda: not left(), lambda: f"outlived the bridge: {left()}\n{self.tail()}")

    def kill(self) -> None:
        """Clear away what a failed test left; a bridge that was stopped has nothing left to kill."""
        left = processes.descendants(self.process.pid) | self.servers()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in left:
            if processes.alive(process):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def run_bridge(cmd: Sequence[str] | str, *options: str, path: str | None = None) -> Iterator[Bridge]:
    """A bridge before `cmd` on a free port; `path` is put before its PATH.

    On leaving, it must stop as `Bridge.stop` says. Raises AssertionError if it does not start or stop.
    """
    mark = uuid.uuid4().hex
    line = cmd if isinstance(cmd, str) else shlex.join(cmd)
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if path is not None:
        env["PATH"] = f"{path}{os.pathsep}{env.get('PATH', os.defpath)}"
    argv = [sys.executable, "-m", "bridge", "stdio-to-http", "--port", "0", "--cmd", line]
    process = subprocess.Popen(
        [*argv, "--env", f"REAL_SERVER_OF={mark}", *options],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    bridge = Bridge(process=process, mark=mark)
    reader = threading.Thread(target=bridge.read)
    reader.start()
    try:
        assert bridge.printed.wait(START_LIMIT), f"printed no URL\n{bridge.tail()}"
        assert bridge.url, f"ended with status {process.wait()}\n{bridge.tail()}"
        yield bridge
        bridge.stop()
    finally:
        bridge.kill()
        reader.join(STOP_LIMIT)
        assert process.stderr is not None
        process.stderr.close()


def run_client(argv: Sequence[str], bridge: Bridge, env: Mapping[str, str] | None = None) -> Any:
    """What a client program printed, which is one JSON value.

    Raises AssertionError, with the stderr of both sides, if it fails or takes longer than CLIENT_LIMIT.
    """
    direct = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=CLIENT_LIMIT,
            env={**os.environ, **direct, **(env or {})},
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        said = (late.stderr or b"").decode(errors="replace")
        raise AssertionError(f"no end after {CLIENT_LIMIT} s\n{said}\n{bridge.tail()}") from None
    assert done.returncode == 0, f"client: status {done.returncode}\n{done.stderr}\n{bridge.tail()}"
    return json.loads(done.stdout)
