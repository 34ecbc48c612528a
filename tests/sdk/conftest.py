"""Fixtures of the SDK matrix, and its table at the end of a run: clients by servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import pytest
from matrix.programs import Side
from real.provision import Software, provide

from .sides import SHORT, UPSTREAMS, Sdk, Upstream

_LEGEND = "- : HTTP+SSE is a transport of the legacy era; 2026-07-28 defines stdio and Streamable HTTP only."


class Note(Protocol):
    """Takes how the conversation of one cell ended: in how many seconds, or what was lost."""

    def __call__(self, row: str, column: str, verdict: str) -> None: ...


@pytest.fixture
def note(record_property: Callable[[str, object], None]) -> Note:
    def say(row: str, column: str, verdict: str) -> None:
        record_property("sdk.cell", json.dumps([row, column, verdict]))

    return say


@pytest.fixture(scope="session")
def software() -> Callable[[], Software]:
    """Installed when it is first called for. A package that cannot be had is an error, never a skip."""
    return cache(provide)


def row(sdk: Sdk, side: Side) -> str:
    return f"{sdk} {SHORT[side]}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The table, whichever way the tests ended; what did not run is empty, what cannot be is a dash."""
    cells: dict[tuple[str, str], str] = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties if report.when == "call" else ():
                if name == "sdk.cell":
                    said, column, verdict = json.loads(value)
                    cells[said, column] = verdict
    if cells:
        terminalreporter.section("clients of four SDKs (down) before the bridge, servers (across) behind it")
        for line in (*table(cells), _LEGEND):
            terminalreporter.write_line(line)


def table(cells: dict[tuple[str, str], str]) -> list[str]:
    columns = [Upstream(sdk, side) for sdk in Sdk for side in Side]
    rows = [(sdk, side) for sdk in Sdk for side in Side]
    lines = [["", *map(str, columns)]]
    for sdk, side in rows:
        possible = side in sdk.sides
        said = [
            cells.get((row(sdk, side), str(one)), "") if possible and one in UPSTREAMS else "-"
            for one in columns
        ]
        lines.append([row(sdk, side), *said])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
