"""A configuration file as a tree of values, and the line on which each of them stands.

Decides what kind a file is of and how much of one is read. What its keys mean is `tree.py`'s matter.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bridge.settings import json_text, toml_lines
from bridge.settings.faults import Keys

MOST: Final = 4 * 1024 * 1024
"""Bytes of a configuration file."""


class Unreadable(Exception):
    """A file that cannot be read as what it should be; `line` is 0 if it is about no line."""

    def __init__(self, text: str, line: int = 0) -> None:
        super().__init__(text)
        self.line = line


@dataclass(frozen=True, slots=True)
class Document:
    """`file` is the path as it was given; `clients` says that it is of the kind that clients have."""

    file: Path
    data: dict[str, Any]
    lines: dict[Keys, int] = field(repr=False)
    clients: bool = False

    @property
    def base(self) -> Path:
        """The directory that paths in it are relative to."""
        return self.file.absolute().parent

    def line(self, keys: Keys) -> int:
        """The line of a value, or of the nearest thing around it; 1 if that is the file."""
        return next((self.lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in self.lines), 1)


def open_document(file: Path) -> Document:
    """Raises Unreadable."""
    try:
        text = regular_text(file, MOST)
    except ValueError as fault:
        raise Unreadable(str(fault)) from None
    if _is_json(file, text):
        try:
            data, lines = json_text.parse(text)
        except json_text.Malformed as fault:
            raise Unreadable(f"not JSON: {fault}", fault.line) from None
        return Document(file, data, lines, clients=True)
    try:
        return Document(file, tomllib.loads(text), toml_lines.lines_of(text))
    except tomllib.TOMLDecodeError as fault:
        raise _not_toml(str(fault), text) from None
    except RecursionError:
        raise Unreadable("not TOML: it is nested too deeply") from None


def _is_json(file: Path, text: str) -> bool:
    """By its name, else by what it begins with; no TOML begins with a brace."""
    if file.suffix in (".json", ".jsonc", ".toml"):
        return file.suffix != ".toml"
    return text.lstrip("\ufeff \t\r\n").startswith("{")


_WHERE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


def _not_toml(fault: str, text: str) -> Unreadable:
    found = _WHERE.search(fault)
    line = int(found[1]) if found and found[1] else text.rstrip("\n").count("\n") + 1
    told = _WHERE.sub("", fault)
    return Unreadable(f"not TOML: {told[:1].lower()}{told[1:]}", line)


def regular_text(file: Path, most: int) -> str:
    """The text of a file. Raises ValueError; what is no regular file could make us wait for ever."""
    try:
        with open(file, "rb", opener=_open_at_once) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise ValueError("is no regular file")
            text = opened.read(most + 1)
    except OSError as fault:
        raise ValueError(fault.strerror or "it cannot be read") from None
    if len(text) > most:
        raise ValueError(f"is larger than {most} bytes")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
