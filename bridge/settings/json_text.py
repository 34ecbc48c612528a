"""JSON as clients write their configuration: with comments and commas too many; and its lines.

A name that is there twice is refused, since which of them counts would be chance.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from bridge.settings.faults import Keys

DEEPEST: Final = 64
_TOKEN = re.compile(
    r"""(?P<blank>[\s\ufeff]+|//[^\n]*|/\*.*?\*/)"""
    r"""|(?P<mark>[][{},:])"""
    r"""|(?P<scalar>"(?:[^"\\\x00-\x1f]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null)""",
    re.DOTALL,
)


class Malformed(ValueError):
    def __init__(self, text: str, line: int) -> None:
        super().__init__(text)
        self.line = line


def parse(text: str) -> tuple[dict[str, Any], dict[Keys, int]]:
    """An object and the line of each value in it. Raises Malformed."""
    reading = _Reading(text)
    data = reading.value((), 0)
    if reading.kind:
        raise Malformed("something follows its end", reading.line)
    if not isinstance(data, dict):
        raise Malformed("an object expected", 1)
    return data, reading.lines


class _Reading:
    """`word` is the token that is looked at, of `kind`, which is empty at the end."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self.lines: dict[Keys, int] = {}
        self.line, self.kind, self.word = 1, "", ""
        self._next()

    def _next(self) -> None:
        self.line += self.word.count("\n")
        while self._at < len(self._text):
            found = _TOKEN.match(self._text, self._at)
            if found is None:
                raise Malformed("a value, a name or a mark expected", self.line)
            self._at = found.end()
            if found.lastgroup != "blank":
                self.kind, self.word = str(found.lastgroup), found[0]
                return
            self.line += found[0].count("\n")
        self.kind = self.word = ""

    def _takes(self, mark: str) -> bool:
        if self.word != mark:
            return False
        self._next()
        return True

    def _wants(self, mark: str) -> None:
        if not self._takes(mark):
            raise Malformed(f"{mark} expected", self.line)

    def value(self, keys: Keys, depth: int) -> Any:
        if depth > DEEPEST:
            raise Malformed("it is nested too deeply", self.line)
        self.lines.setdefault(keys, self.line)
        if self._takes("{"):
            return self._object(keys, depth)
        if self._takes("["):
            return self._array(keys, depth)
        return self._scalar()

    def _object(self, keys: Keys, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self._takes("}"):
            line, name = self.line, self._scalar()
            if not isinstance(name, str):
                raise Malformed("a name in quotes expected", line)
            if name in found:
                raise Malformed(f"{json.dumps(name)} is there twice", line)
            self.lines[*keys, name] = line
            self._wants(":")
            found[name] = self.value((*keys, name), depth + 1)
            if self.word != "}":
                self._wants(",")
        return found

    def _array(self, keys: Keys, depth: int) -> list[Any]:
        found: list[Any] = []
        while not self._takes("]"):
            found.append(self.value((*keys, len(found)), depth + 1))
            if self.word != "]":
                self._wants(",")
        return found

    def _scalar(self) -> Any:
        if self.kind != "scalar":
            raise Malformed("a value expected", self.line)
        try:
            value = json.loads(self.word)
        except ValueError:
            raise Malformed(f"{self.word[:20]} is no value", self.line) from None
        self._next()
        return value
