"""From the tables of a file to values of options, each read as if it had been typed.

Decides which kinds of values a key takes, and that a key nobody knows is a fault. Every fault is
collected with its line, and the rest is read all the same. What is read is kept as it may be shown,
too: without secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import click

from bridge.settings.document import Document
from bridge.settings.faults import Faults, Keys, spell_keys
from bridge.settings.keys import PROCESS, SERVER_TABLE, WAYS, Form, Key, Spec, walk
from bridge.settings.references import Text, resolve
from bridge.values import (
    parse_audit,
    parse_caller_token,
    parse_header,
    parse_mode,
    parse_place,
    parse_token,
    parse_url,
    parse_variable,
)

HIDDEN: Final = "***"
Values = dict[str, Any]
"""What was said, by the names that the options have in the program."""
Shown = dict[str, Any]

_QUOTE_NOTHING: Final = (parse_caller_token, parse_header, parse_token, parse_url, parse_variable)
"""Functions whose faults never hold what they were given."""
_NOBODY: Final = click.Context(click.Command("file"))
"""For the functions of options, which want to know the command they are of."""


class Reading:
    """Reads one document."""

    def __init__(self, document: Document, environ: Mapping[str, str], faults: Faults) -> None:
        self.document, self.faults = document, faults
        self._environ = environ

    def fault(self, keys: Keys, text: str) -> None:
        """Told with its place; options that it speaks of become keys."""
        self.faults.add(self.document.file, self.document.line(keys), keys, in_keys(text))

    def warn(self, keys: Keys, text: str) -> None:
        self.faults.warn(self.document.file, self.document.line(keys), keys, in_keys(text))

    def raw(self, keys: Keys) -> Any:
        """What is there, or None."""
        found: Any = self.document.data
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    def table(self, keys: Keys, spec: Spec, values: Values, shown: Shown) -> bool:
        """Read a table and those within it into `values`; whether nothing was wrong with it."""
        before = len(self.faults)
        found = self.raw(keys)
        if found is not None and not isinstance(found, dict):
            self.fault(keys, "a table expected")
        for name, value in found.items() if isinstance(found, dict) else ():
            here, inner = (*keys, name), spec.get(name)
            if inner is None:
                self.fault(here, unknown(name, spec))
            elif isinstance(inner, Key):
                self.entry(here, inner, value, values, shown)
            else:
                self.table(here, inner, values, shown.setdefault(name, {}))
        return len(self.faults) == before

    def entry(self, keys: Keys, key: Key, value: Any, values: Values, shown: Shown) -> None:
        """Read one key into `values`."""
        name = str(keys[-1])
        match key.form:
            case Form.TABLE:
                values[key.name], shown[name] = self._entries(keys, key, value)
            case Form.LIST | Form.WORDS if isinstance(value, list):
                read = [self._one((*keys, n), key, item) for n, item in enumerate(value)]
                values[key.name] = tuple(item for one, _ in read for item in one)
                shown[name] = [text for _, text in read]
            case Form.LIST:
                self.fault(keys, "an array expected")
            case Form.RATE if isinstance(value, dict):
                self._rate(keys, key, value, values, shown)
            case _:
                one, shown[name] = self._one(keys, key, value)
                if one:
                    values[key.name] = tuple(one) if key.form is Form.WORDS else one[0]

    def _entries(self, keys: Keys, key: Key, value: Any) -> tuple[tuple[Any, ...], Shown]:
        if not isinstance(value, dict):
            self.fault(keys, "a table expected")
            return (), {}
        found: list[Any] = []
        shown: Shown = {}
        for name, item in value.items():
            one, shown[name] = self._one((*keys, name), key, item, name)
            found += one
        return tuple(found), shown

    def _rate(self, keys: Keys, key: Key, value: dict[str, Any], values: Values, shown: Shown) -> None:
        """`{each = "10/s", burst = 20}`."""
        for name in value.keys() - {"each", "burst"}:
            self.fault((*keys, name), unknown(name, {"each": key, "burst": key}))
        each, burst = value.get("each"), value.get("burst")
        if not isinstance(each, str | int | float) or isinstance(each, bool):
            self.fault(keys, 'each = "10/s" expected')
        elif burst is not None and (not isinstance(burst, int) or isinstance(burst, bool) or burst < 1):
            self.fault((*keys, "burst"), "a number of at least 1 expected")
        else:
            one, text = self._one(keys, key, f"{each}" if burst is None else f"{each}:{burst}")
            if one:
                values[key.name] = one[0]
            shown[str(keys[-1])] = text

    def _one(self, keys: Keys, key: Key, value: Any, name: str = "") -> tuple[list[Any], Any]:
        """One value, if it can be read, and how it is shown; `name` is that of an entry of a table."""
        text = self._text(keys, key, value)
        if text is None:
            return [], None
        shown = HIDDEN if key.secret or text.secret else value if not isinstance(value, str) else text.value
        try:
            return [self._read(key, name, text)], shown
        except click.BadParameter as fault:
            quoted = text.secret and key.option.read not in _QUOTE_NOTHING
            self.fault(keys, "what the file holds cannot be used here" if quoted else fault.message)
        except ValueError as fault:
            self.fault(keys, str(fault))
        return [], shown

    def _read(self, key: Key, name: str, text: Text) -> Any:
        value = _anchored(key, text.value, self.document.base)
        if key.form is Form.TABLE:
            if not name or key.between.strip() in name or "\0" in name:
                raise ValueError("is no name")
            value = f"{name}{key.between}{value}"
        if (
            isinstance(key.option.read, click.Path)
            and key.option.read.exists
            and not key.option.read.dir_okay
        ):
            _hold_regular(Path(value))
        wanted = (value,) if key.option.multiple else value
        read = key.option.process_value(_NOBODY, wanted)
        return read[0] if key.option.multiple else read

    def _text(self, keys: Keys, key: Key, value: Any) -> Text | None:
        """A value as one would type it."""
        if isinstance(value, str):
            try:
                return _fit(resolve(value, self._environ, self.document.base))
            except ValueError as fault:
                self.fault(keys, str(fault))
                return None
        flag = key.option.read is click.BOOL
        if isinstance(value, bool) and (flag or (key.form is Form.TABLE and self.document.clients)):
            return Text("true" if value else "false")
        if not isinstance(value, bool) and isinstance(value, key.numbers):
            return Text(f"{value}")
        self.fault(keys, f"{_expected(key)} expected")
        return None


def _fit(text: Text) -> Text:
    """What the system can be given as an argument, a variable or a path. Raises ValueError otherwise."""
    try:
        odd = b"\0" in os.fsencode(text.value)
    except UnicodeEncodeError:
        odd = True
    if odd:
        raise ValueError("holds what is no text")
    return text


def _expected(key: Key) -> str:
    if key.option.read is click.BOOL:
        return "true or false"
    if key.option.read is parse_mode:
        return 'a string of octal digits such as "027"'
    if key.form is Form.WORDS:
        return "a string, or an array of strings,"
    return "a number" if isinstance(key.option.read, click.IntRange) else "a string"


def _hold_regular(file: Path) -> None:
    """Raises ValueError for what is there but would make us wait for ever, or is none."""
    if file.exists() and not file.is_dir() and not file.is_file():
        raise ValueError(f"{str(file)!r} is no regular file")


def _anchored(key: Key, text: str, base: Path) -> str:
    """A path in a file is relative to the file."""
    if key.is_path and text:
        return str(base / text)
    if key.option.read is parse_audit and isinstance(parse_audit(text), Path):
        return str(base / text) if text else text
    if key.option.read is parse_place and text.startswith("unix:") and text != "unix:":
        return f"unix:{base / text.removeprefix('unix:')}"
    return text


def unknown(name: str, spec: Spec) -> str:
    """What is said of a key that is not in a table: what may have been meant, or where it belongs."""
    near = get_close_matches(name.replace("-", "_"), spec, n=1, cutoff=0.7)
    if near:
        return f"unknown key; did you mean {near[0]}?"
    places = [spell_keys(way) for way in _elsewhere(name) if way[-1] not in spec]
    return "unknown key" + (f"; did you mean {places[0]}?" if places else "")


def _elsewhere(name: str) -> Iterator[tuple[str, ...]]:
    for way, _ in walk(PROCESS):
        if way[-1] == name:
            yield way
    for way, _ in walk(SERVER_TABLE):
        if way[-1] == name:
            yield "servers", "NAME", *way


_OPTION = re.compile(r"--[a-z][a-z-]*[a-z]")


def in_keys(text: str) -> str:
    """What is said of options, said of keys."""
    return _OPTION.sub(lambda found: spell_keys(WAYS[found[0]]) if found[0] in WAYS else found[0], text)
