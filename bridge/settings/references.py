"""References in the strings of a configuration: `${VAR}`, `${VAR:-default}`, `${file:PATH}`.

Decides what they mean and that what comes from a file is secret. They may be nested, as in
`${file:${CREDENTIALS_DIRECTORY}/token}`. What they are replaced by is not looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bridge.config import KIB
from bridge.settings.document import regular_text

MOST: Final = 64 * KIB
"""Bytes of a file that is referred to."""
_DEEPEST: Final = 8
_MARK = re.compile(r"\$\$\{|\$\{|\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PREFIX = re.compile(r"(?P<kind>[A-Za-z]+):(?!-)")


@dataclass(frozen=True, slots=True)
class Text:
    """What a string has become; `secret` if some of it was read from a file."""

    value: str
    secret: bool = False


def resolve(text: str, environ: Mapping[str, str], base: Path) -> Text:
    """`text` with its references replaced; `$${` stands for `${`, any other `$` for itself.

    Paths are relative to `base`. Raises ValueError, which quotes nothing but names and paths.
    """
    return _Resolving(text, environ, base).whole() if "${" in text else Text(text)


class _Resolving:
    def __init__(self, text: str, environ: Mapping[str, str], base: Path) -> None:
        self._text, self._at = text, 0
        self._environ, self._base = environ, base
        self._secret = False

    def whole(self) -> Text:
        value = self._until_end(0)
        return Text(value, self._secret)

    def _until_end(self, depth: int) -> str:
        """What follows, until the brace that ends the reference around it if there is one."""
        if depth > _DEEPEST:
            raise ValueError("references are nested too deeply")
        parts = []
        while found := _MARK.search(self._text, self._at):
            parts.append(self._text[self._at : found.start()])
            self._at = found.end()
            if found[0] == "$${":
                parts.append("${")
            elif found[0] == "${":
                parts.append(self._reference(depth))
            elif depth:
                return "".join(parts)
            else:
                parts.append("}")
        if depth:
            raise ValueError("a } is missing after ${; write $${ for a literal ${")
        parts.append(self._text[self._at :])
        self._at = len(self._text)
        return "".join(parts)

    def _reference(self, depth: int) -> str:
        kind, start = "env", self._at
        if found := _PREFIX.match(self._text, start):
            kind, self._at = found["kind"], found.end()
        if kind == "file":
            return self._file(self._until_end(depth + 1))
        if kind != "env":
            raise ValueError(
                f"${{{kind}:...}} is known to clients only; there are ${{VAR}}, ${{VAR:-default}} and "
                "${file:PATH}"
            )
        return self._variable(depth)

    def _variable(self, depth: int) -> str:
        found = _NAME.match(self._text, self._at)
        if found is None:
            raise ValueError("${ without a variable name and }; write $${ for a literal ${")
        self._at = found.end()
        value = self._environ.get(found[0])
        if self._text.startswith(":-", self._at):
            self._at += 2
            default = self._otherwise(depth, wanted=not value)
            return value or default
        if not self._text.startswith("}", self._at):
            raise ValueError("${ without a variable name and }; write $${ for a literal ${")
        self._at += 1
        if value is None:
            raise ValueError(f"${{{found[0]}}} is not set in the environment of the bridge")
        return value

    def _otherwise(self, depth: int, *, wanted: bool) -> str:
        """The default, whose own references matter only if it is wanted."""
        if wanted:
            return self._until_end(depth + 1)
        open_braces = 1
        while open_braces:
            found = _MARK.search(self._text, self._at)
            if found is None:
                raise ValueError("a } is missing after ${; write $${ for a literal ${")
            self._at = found.end()
            open_braces += {"${": 1, "}": -1}.get(found[0], 0)
        return ""

    def _file(self, path: str) -> str:
        if not path:
            raise ValueError("${file:} names no file")
        self._secret = True
        try:
            return regular_text(self._base / path, MOST).rstrip("\r\n")
        except ValueError as fault:
            raise ValueError(f"${{file:{path}}}: {fault}") from None
