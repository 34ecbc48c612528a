"""Fixtures of the matrix, and the table at the end of a run: pairs of transports by servers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import pytest
from real.provision import Software, provide

_Cells = dict[str, dict[str, str]]


class Note(Protocol):
    """Takes what the table says of this test: row and column, the step that is under way, the time."""

    def __call__(self, **said: str) -> None: ...


@pytest.fixture
def note(record_property: Callable[[str, object], None]) -> Note:
    def say(**said: str) -> None:
        for name, value in said.items():
            record_property(f"matrix.{name}", value)

    return say


@pytest.fixture(scope="session")
def software() -> Callable[[], Software]:
    """Installed when it is first called for. A package that cannot be had is an error, never a skip."""
    return cache(provide)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The table, whichever way the tests ended; a cell that did not run is left out."""
    cells: _Cells = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            said = dict(report.user_properties)
            if report.when == "call" and "matrix.row" in said:
                verdict = (
                    f"FAILED at {said['matrix.step']}" if report.failed else f"ok {said['matrix.seconds']} s"
                )
                cells.setdefault(said["matrix.row"], {})[said["matrix.column"]] = verdict
    if cells:
        terminalreporter.section("the same conversation over every pair, downstream → upstream")
        for line in table(cells):
            terminalreporter.write_line(line)


def table(cells: _Cells) -> list[str]:
    columns = sorted({column for row in cells.values() for column in row})
    rows = [["", *columns], *([name, *(row.get(one, "") for one in columns)] for name, row in cells.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
