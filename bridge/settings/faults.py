"""What is wrong with a configuration, all of it at once, and what is only odd; each with its place."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from bridge.errors import UsageFault

Keys = tuple[str | int, ...]
"""The way to a value: names of tables and keys, and numbers in arrays."""

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
MOST = 100
"""Faults that are told; of the rest the number."""


def spell_keys(keys: Keys) -> str:
    """`servers.files.env.HOME`, `include[0]`."""
    text = ""
    for key in keys:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += ("." if text else "") + (key if _BARE.fullmatch(key) else json.dumps(key))
    return text


@dataclass(order=True, frozen=True, slots=True)
class Note:
    """One thing about a line of a file; it sorts by file, in the order they were read, and by line."""

    number: int
    line: int
    file: Path = field(compare=False)
    text: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


class Faults:
    """Collects them, those of `main` before those of other files. `elsewhere` are of no file."""

    def __init__(self, main: Path) -> None:
        self._notes: list[Note] = []
        self._warnings: list[Note] = []
        self._files: dict[Path, int] = {main: 0}
        self.elsewhere: list[str] = []

    def __len__(self) -> int:
        return len(self._notes) + len(self.elsewhere)

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(map(str, sorted(self._warnings)))

    def add(self, file: Path, line: int, keys: Keys, text: str) -> None:
        self._notes.append(self._note(file, line, keys, text))

    def warn(self, file: Path, line: int, keys: Keys, text: str) -> None:
        self._warnings.append(self._note(file, line, keys, text, "warning: "))

    def _note(self, file: Path, line: int, keys: Keys, text: str, kind: str = "") -> Note:
        number = self._files.setdefault(file, len(self._files))
        return Note(number, line, file, f"{kind}{spell_keys(keys)}: {text}" if keys else f"{kind}{text}")

    def hold(self) -> None:
        """Raises UsageFault if there are any, one a line."""
        lines = [*map(str, sorted(self._notes)), *self.elsewhere]
        if lines:
            more = [f"and {len(lines) - MOST} more"] if len(lines) > MOST else []
            raise UsageFault("\n".join(lines[:MOST] + more))
