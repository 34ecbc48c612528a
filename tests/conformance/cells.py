"""Runs every cell of the conformance bar that the bridge must hold, and prints one table.

A cell is a server of one era behind the bridge, or the suite's own servers behind the bridge
as a wrapper, tried with the requirement set of one revision; where the two are of different
eras the bridge has to translate. Decides which cells there are, how many scenarios each must
pass (so that a set which was read wrongly cannot pass by being short), and which may run at
the same time; a cell itself is one run of `run_conformance.py`, in a process of its own. Exit
status: 0 every cell is complete, 1 one is not, 3 something could not be installed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import installs
from run_conformance import COMPLETE, INCOMPLETE, NOT_INSTALLED

RUNNER = Path(__file__).resolve().parent / "run_conformance.py"
BRIDGE = (sys.executable, "-m", "bridge", "stdio-to-http", "--port", "{port}", "--cmd", "{cmd}")
WRAPPER = shlex.join((sys.executable, "-m", "bridge", "http-to-stdio", "{url}"))
TERMINATED_SECONDS = 15.0
MODERN = "2026-07-28"
GUESSED_KEY = (
    "input-required-result-basic-elicitation",
    "input-required-result-ignore-extra-params",
)
"""What cannot cross: the first wants the key `user_name` in `inputRequests`, and the question of a legacy
server has no key; the bridge would have to guess. The second builds on the first."""

SPARE = ("--warm", "2")
"""A scenario that watches the clock needs a legacy server with capabilities that were not declared yet, less
than half a second after another; one spare process is not up again by then."""


@dataclass(frozen=True, slots=True)
class Cell:
    """`required` is the number of scenarios that must pass, all of them but the `excepting` ones.

    `era` is that of the fixture; a cell without one is of the client side, and `host` is then the era
    that our host speaks on stdio, `auto` being the one that the scenario is about. `options` are words
    for our own bridge.
    """

    name: str
    era: str | None
    revision: str
    required: int
    source: str = "stdio"
    host: str = "auto"
    excepting: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def timed(self) -> bool:
        """Whether a scenario of it (`server-stateless`) watches the clock and so wants the machine alone."""
        return self.era is not None and self.revision == MODERN


CELLS = (
    Cell("legacy", "legacy", "2025-11-25", 30),
    Cell("modern", "modern", "2026-07-28", 37),
    Cell("dual-legacy", "dual", "2025-11-25", 30),
    Cell("dual-modern", "dual", "2026-07-28", 37),
    Cell("http-legacy", "legacy", "2025-11-25", 30, "http"),
    Cell("http-modern", "modern", "2026-07-28", 37, "http"),
    Cell("sse-legacy", "legacy", "2025-11-25", 30, "sse"),
    Cell("wrap-legacy", None, "2025-11-25", 4),
    Cell("wrap-modern", None, "2026-07-28", 7),
    Cell("cross-modern", "legacy", "2026-07-28", 35, excepting=GUESSED_KEY, options=SPARE),
    Cell("cross-modern-http", "legacy", "2026-07-28", 35, "http", excepting=GUESSED_KEY),
    Cell("cross-modern-sse", "legacy", "2026-07-28", 35, "sse", excepting=GUESSED_KEY),
    Cell("cross-legacy", "modern", "2025-11-25", 30),
    Cell("cross-legacy-http", "modern", "2025-11-25", 30, "http"),
    Cell("wrap-cross-legacy", None, "2026-07-28", 7, host="legacy"),
    Cell("wrap-cross-modern", None, "2025-11-25", 4, host="modern"),
)
BY_SOURCE = {
    "stdio": BRIDGE,
    "http": (sys.executable, "-m", "bridge", "http-to-http", "--port", "{port}", "{source}"),
    "sse": (sys.executable, "-m", "bridge", "sse-to-http", "--port", "{port}", "{source}"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """How a cell ended; `output` is what its run printed, `seconds` what it took."""

    cell: Cell
    passed: int
    required: int
    status: int
    seconds: float
    output: str

    @property
    def complete(self) -> bool:
        return self.status == COMPLETE and self.passed == self.required == self.cell.required


def command(cell: Cell, bridge: str | None, tally: Path, keep: Path | None) -> list[str]:
    words = [sys.executable, str(RUNNER)]
    if cell.era is None:
        words += ["client", "--stdio-era", cell.host, "--wrapper", WRAPPER]
    else:
        ours = bridge or shlex.join((*BY_SOURCE[cell.source], *cell.options))
        words += ["server", "--era", cell.era, "--source", cell.source, "--bridge", ours]
    words += ["--requirements", cell.revision, "--json", str(tally)]
    for name in cell.excepting:
        words += ["--excepting", name]
    return [*words, "--keep", str(keep / cell.name)] if keep else words


async def run_cell(cell: Cell, bridge: str | None, room: Path, keep: Path | None) -> Row:
    tally = room / f"{cell.name}.json"
    started = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *command(cell, bridge, tally, keep),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=installs.ROOT,
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        await ended(process)
        raise
    passed, required = counted(tally)
    seconds = time.monotonic() - started
    return Row(cell, passed, required, process.returncode or 0, seconds, output.decode(errors="replace"))


async def ended(process: asyncio.subprocess.Process) -> None:
    """Ask the run to end its own processes; it is killed only if it does not get that done."""
    for stop in (process.terminate, process.kill):
        with contextlib.suppress(ProcessLookupError):
            stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), TERMINATED_SECONDS)


def counted(tally: Path) -> tuple[int, int]:
    """(passed, required); a run that left no tally passed nothing."""
    if not tally.exists():
        return 0, 0
    content = json.loads(tally.read_text())
    return int(content["passed"]), int(content["required"])


async def run_cells(cells: Sequence[Cell], bridge: str | None, jobs: int, keep: Path | None) -> list[Row]:
    """In the order of `cells`, at most `jobs` at a time and the timed ones alone, after the others.

    SIGTERM and SIGINT end them all.
    """
    task = asyncio.current_task()
    assert task is not None
    for kind in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(kind, task.cancel)
    rows: dict[Cell, Row] = {}

    async def one(cell: Cell, room: Path, turns: asyncio.Semaphore) -> None:
        async with turns:
            print(f"running {cell.name}", file=sys.stderr)
            rows[cell] = await run_cell(cell, bridge, room, keep)

    with tempfile.TemporaryDirectory(prefix="mcp-cells-") as folder:
        for timed, at_once in ((False, jobs), (True, 1)):
            turns = asyncio.Semaphore(at_once)
            async with asyncio.TaskGroup() as group:
                for cell in cells:
                    if cell.timed is timed:
                        group.create_task(one(cell, Path(folder), turns))
    return [rows[cell] for cell in cells]


def table(rows: Sequence[Row]) -> Iterator[str]:
    yield f"{'cell':<18} {'server':<7} {'host':<7} {'requirements':<13} {'passed':<8} {'time':>6}"
    for row in rows:
        cell = row.cell
        passed = f"{row.passed}/{cell.required}"
        end = "complete" if row.complete else "INCOMPLETE"
        if cell.excepting:
            end += f", {len(cell.excepting)} excepted"
        host = cell.host if cell.era is None else "-"
        what = f"{cell.name:<18} {cell.era or '-':<7} {host:<7} {cell.revision:<13}"
        yield f"{what} {passed:<8} {row.seconds:>4.0f} s  {end}"


def status(rows: Sequence[Row]) -> int:
    if any(row.status == NOT_INSTALLED for row in rows):
        return NOT_INSTALLED
    return COMPLETE if rows and all(row.complete for row in rows) else INCOMPLETE


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [cell.name for cell in CELLS]
    parser.add_argument("--cell", choices=names, action="append", help="only this cell; may be repeated")
    jobs = "cells at a time, but for those that watch the clock (default: %(default)s)"
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help=jobs)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep all output, a folder for each cell")
    parser.add_argument("--bridge", help="command template for the server side (default: this checkout)")
    parser.add_argument("--verbose", action="store_true", help="show the scenarios of complete cells too")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    options = arguments().parse_args(words)
    cells = [cell for cell in CELLS if not options.cell or cell.name in options.cell]
    keep = options.keep.resolve() if options.keep else None
    try:
        # Ahead of the cells, so that they do not wait for each other, and fail once and not four times.
        installs.suite()
        installs.fixture_python()
        rows = asyncio.run(run_cells(cells, options.bridge, options.jobs, keep))
    except installs.InstallError as error:
        print(error, file=sys.stderr)
        return NOT_INSTALLED
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    for row in rows:
        if options.verbose or not row.complete:
            print(f"== {row.cell.name}\n{row.output}")
    print("\n".join(table(rows)))
    return status(rows)


if __name__ == "__main__":
    sys.exit(main())
