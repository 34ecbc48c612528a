"""docs/field-cases.md against the tests, both ways; it reads marks and rows, and runs nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = TESTS.parent / "docs" / "field-cases.md"


def marked(file: Path) -> Iterator[str]:
    """Every id in a `pytest.mark.case(...)` of a file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.case":
            yield from (one.value for one in node.args if isinstance(one, ast.Constant))  # type: ignore[misc]


@cache
def cases() -> dict[str, set[str]]:
    """The marked cases, and the files that mark them."""
    found: dict[str, set[str]] = {}
    for file in TESTS.rglob("test_*.py"):
        for case in marked(file):
            found.setdefault(case, set()).add(file.name)
    return found


def rows() -> list[str]:
    return re.findall(r"^\| ([A-Z]{2}-\d\d) \|", TABLE.read_text(), re.MULTILINE)


def test_every_case_of_the_table_has_a_test() -> None:
    assert [row for row in rows() if row not in cases()] == []


def test_every_marked_case_is_in_the_table() -> None:
    known = set(rows())
    assert {case: files for case, files in cases().items() if case not in known} == {}


def test_no_case_stands_twice_in_the_table() -> None:
    assert len(rows()) == len(set(rows()))
