"""Documents: which lines values are on, what kind a file is of, and what is told of one that is none."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.settings import json_text
from bridge.settings.document import Document, Unreadable, open_document
from bridge.settings.faults import Keys
from bridge.settings.toml_lines import lines_of

TOML = '''\
# a comment with = and [brackets]
top = "a # b" # another
"quoted key".'b.c' = 1
multi = """
x = 1
[not.a.table]
\\""" """
[table]
literal = \'\'\'
y = 2\'\'\'
array = [ # comment
  1,
  [2, 3],
  {in = "line", deep.er = 4},
]
date = 2020-01-01T00:00:00Z
[a . "b" .c]
k=1
[[list]]
n = 1
[[list]]
n = 2
[list.sub]
m = 3
'''
LINES: dict[Keys, int] = {
    ("top",): 2, ("quoted key", "b.c"): 3, ("multi",): 4, ("table",): 8, ("table", "literal"): 9,
    ("table", "array"): 11, ("table", "array", 0): 12, ("table", "array", 1, 1): 13,
    ("table", "array", 2, "in"): 14, ("table", "array", 2, "deep", "er"): 14, ("table", "date"): 16,
    ("a",): 17, ("a", "b", "c"): 17, ("a", "b", "c", "k"): 18, ("list", 0, "n"): 20, ("list", 1, "n"): 22,
}  # fmt: skip


def test_each_key_of_toml_is_found_on_its_line() -> None:
    tomllib.loads(TOML)
    found = lines_of(TOML)
    assert {keys: found.get(keys) for keys in LINES} == LINES
    assert {keys: lines_of(TOML.replace("\n", "\r\n")).get(keys) for keys in LINES} == LINES


def ways(value: Any, above: Keys = ()) -> list[Keys]:
    """The way to every value in a tree."""
    inner: list[tuple[str | int, Any]] = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    return [way for key, one in inner for way in ((*above, key), *ways(one, (*above, key)))]


_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=8)
_VALUES = st.recursive(
    st.one_of(st.integers(0, 9), st.booleans(), _TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_TEXT, inner, max_size=3)),
    max_leaves=8,
)


def spelled(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(
                f"{json.dumps(key, ensure_ascii=False)} = {spelled(one)}" for key, one in value.items()
            )
            + "}"
        )
    if isinstance(value, list):
        return "[" + ",\n".join(map(spelled, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


@given(st.dictionaries(_TEXT, _VALUES, max_size=4))
def test_every_value_of_any_toml_has_a_line_and_later_ones_no_earlier_line(data: dict[str, Any]) -> None:
    text = "".join(
        f"\n# x\n{json.dumps(key, ensure_ascii=False)} = {spelled(value)}\n" for key, value in data.items()
    )
    assert tomllib.loads(text) == data
    found = lines_of(text)
    assert set(found) == set(ways(data))
    lines = [found[way] for way in ways(data)]
    assert lines == sorted(lines)


@given(st.dictionaries(_TEXT, _VALUES, max_size=4))
def test_json_is_read_as_everybody_reads_it(data: dict[str, Any]) -> None:
    found, lines = json_text.parse(json.dumps(data, indent=1))
    assert found == data
    assert set(lines) == {(), *ways(data)}


def test_json_may_have_comments_and_commas_too_many() -> None:
    text = '\ufeff{ // one\n "a": [1, /* two\n "x": 3 */ 2,],\n "b//": "/* no */",\n}\n// end'
    data, lines = json_text.parse(text)
    assert data == {"a": [1, 2], "b//": "/* no */"}
    assert (lines["a",], lines["a", 0], lines["a", 1], lines["b//",]) == (2, 2, 3, 4)


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        ('{\n"a": 1\n"b": 2}', 3, ", expected"), ('{"a" 1}', 1, ": expected"), ("{\n1: 2}", 2, "in quotes"),
        ('{\n"a": 1,\n"a": 2}', 3, '"a" is there twice'), ('{"a": nul}', 1, "a value, a name or a mark"),
        ("[1]", 1, "an object expected"), ('{"a": 1}\n{}', 2, "something follows its end"),
        ('{"a":\n', 2, "a value expected"), ('{"a": 1e}', 1, "1e is no value"), ("", 1, "a value expected"),
        ('{"a":' * 80, 1, "nested too deeply"), ('{"a": "\\x"}', 1, "is no value"),
    ],
)  # fmt: skip
def test_json_that_is_none_is_told_with_its_line(text: str, line: int, fault: str) -> None:
    with pytest.raises(json_text.Malformed, match=fault) as raised:
        json_text.parse(text)
    assert raised.value.line == line


@pytest.mark.parametrize(
    ("name", "text", "clients"),
    [
        ("a.toml", "a = 1", False), ("a.json", "{}", True), ("a.jsonc", "{}", True), ("a", "a = 1", False),
        ("a", " \n{}", True), ("a.conf", "\ufeff{}", True),
    ],
)  # fmt: skip
def test_kind_of_a_file_is_told_by_its_name_or_beginning(
    tmp_path: Path, name: str, text: str, clients: bool
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert open_document(tmp_path / name).clients is clients


@pytest.mark.parametrize(
    ("content", "line", "fault"),
    [
        (b"a = 1\nb = \n", 2, "not TOML: invalid value"), (b"a = 1\na = 2", 2, "not TOML: cannot overwrite"),
        (b'a = 1\nb = "\n', 2, "not TOML: "), (b"\xff", 0, "is not UTF-8"),
        (b"a = " + b"[" * 9999, 0, "nested too deeply"),
        (b"x" * (4 << 20) + b"x", 0, "is larger than"),
    ],
)  # fmt: skip
def test_file_that_is_no_toml_is_told_with_its_line(
    tmp_path: Path, content: bytes, line: int, fault: str
) -> None:
    (tmp_path / "a.toml").write_bytes(content)
    with pytest.raises(Unreadable, match=fault) as raised:
        open_document(tmp_path / "a.toml")
    assert raised.value.line == line


def test_line_of_what_is_not_there_is_that_of_what_is_around_it() -> None:
    document = Document(Path("x"), {}, {("a",): 3, ("a", "b"): 5})
    assert [document.line(keys) for keys in (("a", "b", "c"), ("a", "z"), ("z",), ())] == [5, 3, 1, 1]
