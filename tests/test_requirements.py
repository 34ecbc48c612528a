"""docs/requirements.md and the tests name the same rows: no row without a test, no mark without a row."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"\| ([A-Z]{1,2}-\d+) \|.*\| (held|not ours: .+) \|")


def rows() -> dict[str, str]:
    """Id to verdict."""
    text = (ROOT / "docs" / "requirements.md").read_text()
    return {found[1]: found[2] for line in text.splitlines() if (found := ROW.fullmatch(line))}


def marked() -> Iterator[tuple[str, str]]:
    """(row, file) of every `pytest.mark.spec`."""
    for file in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr == "spec":
                for name in node.args:
                    if isinstance(name, ast.Constant) and isinstance(name.value, str):
                        yield name.value, file.name


def test_the_table_is_read_whole() -> None:
    text = (ROOT / "docs" / "requirements.md").read_text()
    assert len(rows()) == len(re.findall(r"^\| [A-Z]{1,2}-\d+ \|", text, re.MULTILINE)) > 300


def test_each_row_that_is_held_has_a_test() -> None:
    tested = {row for row, _ in marked()}
    assert [row for row, verdict in rows().items() if verdict == "held" and row not in tested] == []


def test_each_marked_row_stands_in_the_table_and_is_called_held() -> None:
    held = {row for row, verdict in rows().items() if verdict == "held"}
    assert [(row, file) for row, file in marked() if row not in held] == []
