"""On which line each key of a TOML document stands, which `tomllib` does not tell.

It is for documents that `tomllib` has read without complaint, and so decides nothing about what is
TOML: it only walks over keys and values, as far as needed to know where the next key begins.
"""

from __future__ import annotations

import re
import tomllib
from typing import Final

from bridge.settings.faults import Keys

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' + r"|'''.*?'{3,5}" + r'|"(?:[^"\\\n]|\\.)*"' + r"|'[^'\n]*'", re.DOTALL
)
_BARE = re.compile(r"[^\s.=\[\]\"'#]+")
_SCALAR = re.compile(r"[^,\[\]{}\n#]*")
_SPACE = re.compile(r"[ \t]*")
_FIRST: Final = 1


def lines_of(text: str) -> dict[Keys, int]:
    """The line of each table, key and element, counted from 1, by the way to it."""
    return _Walk(text.replace("\r\n", "\n")).lines


class _Walk:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._line, self._counted = _FIRST, 0
        self.lines: dict[Keys, int] = {}
        table: Keys = ()
        arrays: dict[Keys, int] = {}
        while self._more():
            if self._takes("[["):
                name = self._keys()
                number = arrays[name] = arrays.get(name, -1) + 1
                table = (*name, number)
                self._note(table)
                self._takes("]]")
            elif self._takes("["):
                table = self._keys()
                self._note(table)
                self._takes("]")
            else:
                self._pair(table)

    def _more(self) -> bool:
        self._skip(_BLANK)
        return self._at < len(self._text)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found[0]

    def _takes(self, mark: str) -> bool:
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True

    def _note(self, keys: Keys) -> None:
        """This is where `keys` is, and what is around it if that was not seen before."""
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        for length in range(1, len(keys) + 1):
            self.lines.setdefault(keys[:length], self._line)

    def _keys(self) -> Keys:
        keys = []
        while True:
            self._skip(_SPACE)
            quoted = self._skip(_STRING)
            keys.append(tomllib.loads(f"k = {quoted}")["k"] if quoted else self._skip(_BARE))
            self._skip(_SPACE)
            if not self._takes("."):
                return tuple(keys)

    def _pair(self, table: Keys) -> None:
        keys = (*table, *self._keys())
        self._note(keys)
        self._takes("=")
        self._value(keys)

    def _value(self, keys: Keys) -> None:
        self._skip(_SPACE)
        if self._takes("{"):
            while self._more() and not self._takes("}"):
                self._pair(keys)
                self._more()
                self._takes(",")
        elif self._takes("["):
            number = 0
            while self._more() and not self._takes("]"):
                self._note((*keys, number))
                self._value((*keys, number))
                number += 1
                self._more()
                self._takes(",")
        elif not self._skip(_STRING):
            self._skip(_SCALAR)
