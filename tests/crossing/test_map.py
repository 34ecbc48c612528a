"""The cases of the translation against the tests, both ways; it reads marks, and runs nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
CASES = {
    "A": 16,  # opening and discovery
    "B": 14,  # envelope, ids, results
    "C": 29,  # modern HTTP front
    "D": 41,  # suspended calls
    "E": 12,  # logging, progress, cancellation
    "F": 12,  # subscriptions
    "G": 18,  # errors and parameter headers
    "T": 7,  # tasks
    "J": 48,  # legacy client, modern server
    "K": 25,  # same era and sharing
    "L": 19,  # detection
}
"""How many cases each part has, counted from 1."""


def ids() -> list[str]:
    return [f"{part}{number}" for part, count in CASES.items() for number in range(1, count + 1)]


def marked(file: Path) -> Iterator[str]:
    """Every id in a `pytest.mark.crossing(...)` of a file; what is no text stands as it is written."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.crossing":
            yield from (
                str(one.value) if isinstance(one, ast.Constant) else ast.unparse(one) for one in node.args
            )


@cache
def cases() -> dict[str, set[str]]:
    """The marked cases, and the files that mark them."""
    found: dict[str, set[str]] = {}
    for file in TESTS.rglob("test_*.py"):
        for case in marked(file):
            found.setdefault(case, set()).add(file.name)
    return found


def test_there_are_as_many_cases_as_the_design_has() -> None:
    assert len(set(ids())) == 241


def test_every_case_of_the_design_has_a_test() -> None:
    assert [case for case in ids() if case not in cases()] == []


def test_every_marked_case_is_one_of_the_design() -> None:
    known = set(ids())
    assert {case: files for case, files in cases().items() if case not in known} == {}
