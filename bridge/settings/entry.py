"""One server of a file: from its table and `[defaults]` to the options of a command, and a `Config`.

Decides which keys go together and what a server takes from the defaults; what follows from the values
is decided in `servers.py`, as for a command line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import click

from bridge.config import Config, Replicas
from bridge.options import SectionOption
from bridge.settings.faults import Keys
from bridge.settings.keys import EVERY, REACHED, STARTED, Form, Spec, walk
from bridge.settings.reading import Reading, Shown, Values
from bridge.settings.said import Level, Said
from bridge.settings.servers import ServedServer, Shared, StartedServer, reaching_served, starting

PLACE: Final = "/servers/{}/mcp"
_HEADERS: Final = ("header", "header_file")
_CONTEXT: Final = click.Context(click.Command("file"))


@dataclass(frozen=True, slots=True)
class Entry:
    """A table of a server as it was read; `sound` if nothing was wrong with it."""

    name: str
    reading: Reading
    values: Values
    shown: Shown
    sound: bool = True

    @property
    def keys(self) -> Keys:
        return "servers", self.name

    @property
    def remote(self) -> bool:
        return "url" in self.values


def config_of(entry: Entry, defaults: Values, unsaid: Values, shared: Shared, said: Said) -> Config:
    """The server, at its own path; `unsaid` is what options are otherwise. Raises click.UsageError."""
    values = merged(defaults, entry)
    path = PLACE.format(entry.name)
    shared = replace(
        shared, listen=replace(shared.listen, path=path), replicas=_peers_at(shared.replicas, path)
    )
    levels = said.level
    here = replace(said, level=lambda name: Level.FILE if name in values else levels(name))
    options = {**unsaid, **values}
    if entry.remote:
        config = reaching_served(cast("ServedServer", options), here, shared)
    else:
        config = starting(cast("StartedServer", options), here, shared)
    return replace(config, name=entry.name)


def identity_faults(entry: Entry) -> Iterable[tuple[Keys, str]]:
    """What is wrong with the keys that say what the server is, and which others go with them."""
    raw = entry.reading.raw(entry.keys)
    given = [name for name in ("command", "cmd", "url") if name in raw]
    if not given:
        yield entry.keys, "no server: give command, cmd or url"
    if len(given) > 1:
        yield (*entry.keys, given[1]), f"{' and '.join(given)} exclude each other; give one"
    for name in ("command", "cmd"):
        words = entry.values.get(name)
        if words is not None and not (words and words[0]):
            yield (*entry.keys, name), "names no program"
    if given != ["url"]:
        for name in raw.keys() & REACHED.keys() if "url" not in given else ():
            yield (*entry.keys, name), "is for servers at a url, and this one is a program"
        return
    for name in raw.keys() & (STARTED.keys() | {"args"}):
        yield (*entry.keys, name), "is for servers that are programs, and this one is at a url"


def merged(defaults: Values, entry: Entry) -> Values:
    """What was said of the server, by itself or by default; `words` is its command."""
    foreign = {key.name for _, key in walk(STARTED if entry.remote else REACHED)}
    values = {name: value for name, value in defaults.items() if name not in foreign}
    own_headers = {name.lower() for kind in _HEADERS for name, _ in entry.values.get(kind, ())}
    for kind in _HEADERS:
        if kind in values:
            values[kind] = tuple(field for field in values[kind] if field[0].lower() not in own_headers)
    for name, value in entry.values.items():
        if EVERY[name].form is Form.TABLE and name not in _HEADERS:
            value = tuple({**dict(values.get(name, ())), **dict(value)}.items())
        elif name in _HEADERS:
            value = (*values.get(name, ()), *value)
        values[name] = value
    if not entry.remote:
        words = values.pop("command", None) or values.pop("cmd", None) or ()
        values["words"] = (*words, *values.pop("args", ()))
    return values


def unsaid_of(spec: Spec) -> Values:
    """What each option of a table is where nobody says anything."""
    return {key.name: _default(key.option) for _, key in walk(spec)}


def _default(option: SectionOption) -> Any:
    if option.multiple:
        return ()
    if option.show_default:
        return option.process_value(_CONTEXT, option.default)
    return False if option.is_flag else None


def _peers_at(replicas: Replicas, path: str) -> Replicas:
    """The other replicas have the same servers at the same paths."""
    peers = tuple((name, url.rstrip("/") + path) for name, url in replicas.peers)
    return replace(replicas, peers=peers)
