"""The examination of a server that is a program: stdio.

Decides which processes are started for it, one for each question that a server may answer only to
the first that asks: a dual-era server stays with the era of its first message, and an old one may
exit on an unknown one (transport requirements SC-13 to SC-15). Refuses to know what is asked.

Answers basic/transports, stdio: nothing but messages on stdout, stderr is free, and the end of stdin
ends the server.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import anyio

from bridge.config import Command, Limits, Timing
from bridge.core.restart import RestartPolicy, Restarts
from bridge.doctor.budget import Budget
from bridge.doctor.conversation import (
    LEGACY,
    MODERN_DIALECT,
    Conversation,
    Dialect,
    Survey,
    conversation,
    latency,
    negotiate,
    survey,
)
from bridge.doctor.report import Chart, Era, Level, excerpt
from bridge.era.revisions import LEGACY_VERSIONS
from bridge.errors import CommandNotFound, ServerFault, ServerStopped
from bridge.upstream.guard import Guard
from bridge.upstream.pool import Pool


async def examine(command: Command, environ: Mapping[str, str], chart: Chart, budget: Budget) -> None:
    """Fill in the chart; every process started is gone on return."""
    guard = Guard()
    try:
        async with Pool(
            command,
            environ,
            limits=Limits(),
            timing=budget.timing(Timing()),
            warm=0,
            guard=guard,
            restarts=Restarts(RestartPolicy()),
        ) as pool:
            with anyio.move_on_after(budget.examination):
                await _Examination(pool, chart, budget).run()
                chart.complete = True
    finally:
        await guard.close()


class _Examination:
    def __init__(self, pool: Pool, chart: Chart, budget: Budget) -> None:
        self._pool, self._chart, self._budget = pool, chart, budget
        self._noise: list[str] = []
        self._took = 0.0

    async def run(self) -> None:
        await self._visit(LEGACY, self._budget.first)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._visit, MODERN_DIALECT, self._budget.opening)
            if self._works("legacy") and self._took < self._budget.brisk:
                for revision in LEGACY_VERSIONS[:-1]:
                    tasks.start_soon(self._negotiate, revision)
        if self._chart.transports:
            self._judge_stdout()

    def _works(self, era: str) -> bool:
        return era in self._chart.eras and self._chart.eras[era].works

    async def _visit(self, dialect: Dialect, opening: float) -> None:
        talk: Conversation | None = None
        try:
            async with conversation(self._pool) as talk:
                began = time.monotonic()
                found = await survey(talk, dialect, opening, self._budget.each)
                self._took = time.monotonic() - began
                self._chart.speaks("stdio")
                admit(self._chart, dialect, found)
                if self._chart.latency is None:
                    self._chart.latency = await latency(talk, dialect, self._budget.each)
                if dialect is LEGACY:
                    await self._end(talk)
        except ServerFault as fault:
            self._failed(dialect, fault, talk.noise if talk else [])
        if talk is not None:
            self._noise += talk.noise

    async def _end(self, talk: Conversation) -> None:
        """Whether the server ends by itself when its stdin does, or has to be told by a signal."""
        assert talk.upstream is not None
        began, rung = time.monotonic(), self._budget.rung
        await talk.upstream.close()
        prompt = time.monotonic() - began < rung
        text = "ends when its stdin does" if prompt else f"is still there {rung:.2g} s after its stdin ended"
        self._chart.found("SS-6", Level.SHOULD, prompt, text)

    def _failed(self, dialect: Dialect, fault: ServerFault, noise: list[str]) -> None:
        self._chart.eras[dialect.era] = Era(works=False, fault=str(fault))
        self._chart.ails(diagnosis(fault, noise))
        if dialect is MODERN_DIALECT and isinstance(fault, ServerStopped) and self._works("legacy"):
            text = f"exits on {dialect.opening}, so a client that asks for the era must start it twice"
            self._chart.found("SC-15", Level.ADVICE, False, text)

    async def _negotiate(self, revision: str) -> None:
        try:
            async with conversation(self._pool) as talk:
                got = await negotiate(talk, revision, self._budget.opening)
        except ServerFault:
            got = None
        self._chart.offered(revision, got or "refused")

    def _judge_stdout(self) -> None:
        noise = self._noise
        lines = f"{len(noise)} lines that are no messages" if len(noise) != 1 else "a line that is no message"
        text = f"writes {lines} to stdout, such as {excerpt(noise[0])}" if noise else "writes only messages"
        self._chart.found("SS-1", Level.MUST, not noise, text)


def admit(chart: Chart, dialect: Dialect, found: Survey) -> None:
    """Enter what a server says of itself; the era that was surveyed first speaks for both."""
    unlisted = "; ".join(f"{kind}: {fault}" for kind, fault in found.unlisted.items())
    chart.eras[dialect.era] = Era(works=found.works, revisions=found.revisions, fault=unlisted or None)
    if unlisted:
        text = f"announces what it does not list: {unlisted}"
        chart.found("lists", Level.MUST, False, text)
        chart.ails(f"The server {text}; look into its own log")
    if chart.capabilities is None or not chart.counts:
        chart.capabilities, chart.counts = found.capabilities, found.counts
    chart.identity = chart.identity or found.identity


def diagnosis(fault: ServerFault, noise: list[str]) -> str:
    """What is wrong and what to do about it."""
    match fault:
        case CommandNotFound():
            return f"Cannot start the server: {fault}. Install it, or give its full path"
        case ServerStopped(stderr=tail):
            words = next((line for line in reversed(tail) if line.strip()), None)
            said = f"; its last words: {excerpt(words)}" if words else " and said nothing on stderr"
            return f"The {fault} before it answered{said}. Mend that, then try the command in a shell"
        case _ if noise:
            return (
                f"The program starts, but {fault}; it prints what is no message: {excerpt(noise[0])}. "
                "Start it in its stdio mode, with logs on stderr"
            )
        case _:
            return (
                f"The program starts, but {fault}. Is it an MCP server, in its stdio mode? "
                "If it is slow to start, give a longer --timeout"
            )
