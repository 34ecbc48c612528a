"""The processes of one cell of the matrix: a server, the bridge before it, and what must be left of them.

Nothing. Every process carries the cell's mark in its environment, and so does whatever it starts; when
the cell is over no process has it any more. Addresses are read from what the programs print.

It knows command lines, and which of them makes which pair; `PAIRS` is the matrix.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import uuid
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from support import machine

from .clients import LIMIT, HttpClient, SseClient, StdioClient, unlimited
from .talk import Talk

ROOT = Path(__file__).resolve().parents[2]
MARK = "MATRIX"
_URL: Final = re.compile(r"http://127\.0\.0\.1:\d+/(?:mcp|sse)\b")
_LINE: Final = 1 << 24
"""Bytes that one line may have; the streams of asyncio take 64 KiB else."""
_FAULTS: Final = ("Traceback", "never retrieved", "Unhandled")


class Side(StrEnum):
    """A transport, on either side of the bridge."""

    STDIO = "stdio"
    HTTP = "Streamable HTTP"
    SSE = "HTTP+SSE"


PAIRS = [(downstream, upstream) for downstream in Side for upstream in Side]

# No command line makes a stdio server of a stdio server; the configuration can say it all the same.
_STDIO_TO_STDIO = """
import sys
from bridge import daemon
from bridge.config import Command, Config, Downstream
upstream = Command(argv=tuple(sys.argv[1:]), inherit_env=("*",))
sys.exit(daemon.run(Config(upstream=upstream, downstream=Downstream.STDIO)))
"""


def bridge(*words: str) -> list[str]:
    return [sys.executable, "-m", "bridge", *words]


_SERVE: Final = ("--port", "0")
_SERVE_OLD: Final = (*_SERVE, "--legacy-sse")
_CHILD: Final = ("--warm", "0", "--inherit-env", MARK)

# Where there is a command that finds out by itself what the server speaks, it is the one tried.
COMMANDS: dict[tuple[Side, Side], list[str]] = {
    (Side.STDIO, Side.STDIO): [sys.executable, "-c", _STDIO_TO_STDIO],
    (Side.STDIO, Side.HTTP): bridge("http-to-stdio"),
    (Side.STDIO, Side.SSE): bridge("http-to-stdio"),
    (Side.HTTP, Side.STDIO): bridge("stdio-to-http", *_SERVE, *_CHILD, "--"),
    (Side.HTTP, Side.HTTP): bridge("http-to-http", *_SERVE),
    (Side.HTTP, Side.SSE): bridge("sse-to-http", *_SERVE),
    (Side.SSE, Side.STDIO): bridge("stdio-to-http", *_SERVE_OLD, *_CHILD, "--"),
    (Side.SSE, Side.HTTP): bridge("http-to-http", *_SERVE_OLD),
    (Side.SSE, Side.SSE): bridge("http-to-http", *_SERVE_OLD),
}


@dataclass(slots=True, kw_only=True)
class Program:
    """One process, and what it printed beside messages."""

    process: Process
    urls: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    reading: list[asyncio.Task[None]] = field(default_factory=list)
    printed: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, stream: asyncio.StreamReader) -> None:
        while line := (await stream.readline()).decode(errors="replace"):
            self.log.append(line.rstrip("\n"))
            self.urls += _URL.findall(line)
            if self.urls:
                self.printed.set()
        self.printed.set()

    async def url(self, side: Side) -> str:
        """Its address for clients of this transport."""
        async with asyncio.timeout(LIMIT):
            await self.printed.wait()
        path = "/sse" if side is Side.SSE else "/mcp"
        found = [url for url in self.urls if url.endswith(path)]
        assert found, self.tail()
        return found[0]

    def tail(self) -> str:
        return "\n".join([f"--- stderr of {self.process.pid}:", *(line[:400] for line in self.log[-40:])])

    async def stop(self, status: int) -> None:
        """SIGTERM ends it, with this status."""
        self.process.terminate()
        async with asyncio.timeout(LIMIT):
            found = await self.process.wait()
        assert found == status, f"exit status {found}\n{self.tail()}"


@dataclass(slots=True, kw_only=True)
class Cell:
    """One pair, while it runs."""

    mark: str = field(default_factory=lambda: f"{MARK}={uuid.uuid4().hex}")
    programs: list[Program] = field(default_factory=list)

    async def start(self, argv: Sequence[str], *, port: str | None = None, talks: bool = False) -> Program:
        """Start a program; one that `talks` has messages on its stdout, the others may print anything."""
        name, _, value = self.mark.partition("=")
        env = {**os.environ, name: value, "NO_PROXY": "127.0.0.1"}
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=ROOT,
            env=env if port is None else {**env, "PORT": port},
            stdin=PIPE if talks else DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            limit=_LINE,
            start_new_session=True,
        )
        program = Program(process=process)
        self.programs.append(program)
        assert process.stdout is not None
        assert process.stderr is not None
        streams = [process.stderr] if talks else [process.stdout, process.stderr]
        program.reading = [asyncio.create_task(program.read(stream)) for stream in streams]
        return program

    def left(self) -> list[machine.Process]:
        return machine.marked(self.mark)

    async def expect_only_programs(self) -> None:
        """What was started for the session is gone with it; what serves sessions is still there."""
        own = {program.process.pid for program in self.programs}

        def more() -> list[machine.Process]:
            return [one for one in self.left() if one.pid not in own and "guard.py" not in one.command]

        await machine.eventually(lambda: not more(), lambda: f"outlived the session: {more()}\n{self.tail()}")

    async def expect_nothing(self) -> None:
        await machine.eventually(lambda: not self.left(), lambda: f"left: {self.left()}\n{self.tail()}")

    def expect_clean_logs(self) -> None:
        lines = [line for program in self.programs for line in program.log]
        faults = [line for line in lines if any(fault in line for fault in _FAULTS)]
        assert not faults, self.tail()

    def tail(self) -> str:
        return "\n".join(program.tail() for program in self.programs)

    async def clear(self) -> None:
        """End what a failed test left."""
        machine.end(self.left())
        for program in self.programs:
            with suppress(ProcessLookupError):
                os.killpg(program.process.pid, signal.SIGKILL)
            await program.process.wait()
            await asyncio.gather(*program.reading)


@asynccontextmanager
async def cell() -> AsyncIterator[Cell]:
    """Ends what was started in it; what a test leaves running has failed already."""
    started = Cell()
    try:
        yield started
    finally:
        await started.clear()


@asynccontextmanager
async def talking(program: Program, side: Side, url: str = "") -> AsyncIterator[Talk]:
    """A client of this transport before a bridge, or before what stands at `url` before the bridge.

    Whatever fails on the client's side fails the test at once.
    """
    if side is not Side.STDIO:
        url = url or await program.url(side)
    async with unlimited() as http, asyncio.TaskGroup() as tasks:
        talk = Talk(tasks)
        match side:
            case Side.STDIO:
                talk.client = StdioClient(program.process, talk.hear, tasks)
            case Side.HTTP:
                talk.client = HttpClient(http, url, talk.hear, tasks)
            case Side.SSE:
                talk.client = old = SseClient(http, url, talk.hear, tasks)
                await old.connect()
        yield talk
