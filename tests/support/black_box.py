"""The bridge as a user runs it: a process with a command line, ports, signals and an exit status.

It knows the options of `mcp-bridge stdio-to-http` and nothing of the bridge's inside. The address is
read from what the bridge prints; that nothing is left of it is read from the process table.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import uuid
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support import machine
from support.machine import LIMIT

ROOT = Path(__file__).resolve().parents[2]
URL = re.compile(r"https?://[^\s/]+:\d+/[^\s,]*")
MARK = "BLACK_BOX"


@dataclass(slots=True, kw_only=True)
class Bridge:
    """One bridge. `mark` is in the environment of its servers, and of nothing else.

    Its `log` is read while it runs: what it said is there once `until_said` or `status` has come back,
    and perhaps not yet when a client has its answer.
    """

    process: Process
    mark: str
    url: str = ""
    log: list[str] = field(default_factory=list)
    reading: asyncio.Task[None] | None = None
    _told: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def base(self) -> str:
        """Scheme and authority of the URL."""
        return self.url[: self.url.index("/", 8)]

    @property
    def port(self) -> int:
        return int(self.base.rpartition(":")[2])

    def servers(self) -> list[machine.Process]:
        return machine.marked(f"{MARK}={self.mark}")

    def tail(self) -> str:
        return "\n".join(["--- the bridge's stderr:", *self.log[-40:]])

    async def read(self) -> None:
        """Take its stderr to the end: a pipe that nobody reads is a case of its own."""
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self._hear(line.decode(errors="replace").rstrip("\n"))
        self._tell()

    def _hear(self, line: str) -> None:
        self.log.append(line)
        if not self.url and (found := URL.search(line)):
            self.url = found[0]
        self._tell()

    def _tell(self) -> None:
        self._told.set()
        self._told = asyncio.Event()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that the bridge says."""
        async with asyncio.timeout(LIMIT):
            while not condition():
                assert self.reading is None or not self.reading.done(), self.tail()
                await self._told.wait()

    async def until_said(self, words: str) -> str:
        """The first line of the log that holds `words`."""
        await self.until(lambda: any(words in line for line in self.log))
        return next(line for line in self.log if words in line)

    async def until_serving(self) -> None:
        await self.until(lambda: self.url)

    async def until_servers(self, count: int, limit: float = LIMIT) -> None:
        await machine.eventually(
            lambda: len(self.servers()) == count,
            lambda: f"{count} servers expected, found {self.servers()}\n{self.tail()}",
            limit,
        )

    async def status(self, limit: float = LIMIT) -> int:
        """Its exit status, once it has ended and all that it said is in the log."""
        try:
            async with asyncio.timeout(limit):
                status = await self.process.wait()
                if self.reading is not None:
                    await asyncio.shield(self.reading)
        except TimeoutError:
            raise AssertionError(f"still running after {limit} s\n{self.tail()}") from None
        return status

    async def stop(self, limit: float = LIMIT) -> None:
        """SIGTERM ends it with status 0, and its whole family with it."""
        family = machine.descendants(self.pid)
        self.process.send_signal(signal.SIGTERM)
        status = await self.status(limit)
        assert status == 0, f"exit status {status} after SIGTERM\n{self.tail()}"
        await self.expect_nothing_left(family)

    async def expect_nothing_left(self, family: Sequence[machine.Process] = ()) -> None:
        def left() -> list[machine.Process]:
            return self.servers() + [process for process in family if machine.look(process.pid) == process]

        await machine.eventually(lambda: not left(), lambda: f"outlived the bridge: {left()}\n{self.tail()}")

    def kill(self) -> None:
        """Clear away what a failed test left."""
        left = machine.descendants(self.pid) + self.servers()
        with suppress(ProcessLookupError):
            self.process.kill()
        machine.end(left)


@asynccontextmanager
async def launched(
    command: Sequence[str],
    *options: str,
    env: Mapping[str, str] | None = None,
    stderr: int = PIPE,
    wrapper: Sequence[str] = (),
    port: int | None = 0,
) -> AsyncIterator[Bridge]:
    """A bridge started before `command` and not waited for; on leaving, it and its kin are gone.

    `stderr` may be a descriptor of the caller's, `wrapper` the words before the command line.
    """
    mark = uuid.uuid4().hex
    listen = () if port is None else ("--port", str(port))
    argv = [*wrapper, sys.executable, "-m", "bridge", "stdio-to-http", *listen, "--env", f"{MARK}={mark}"]
    process = await asyncio.create_subprocess_exec(
        *argv,
        *options,
        *(("--", *command) if command else ()),
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=stderr,
        limit=1 << 24,
    )
    bridge = Bridge(process=process, mark=mark)
    if stderr == PIPE:
        bridge.reading = asyncio.create_task(bridge.read())
    try:
        yield bridge
    finally:
        bridge.kill()
        await process.wait()
        if bridge.reading is not None:
            await bridge.reading
