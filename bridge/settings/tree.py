"""From a configuration file to the tree of the process: `Daemon`.

Decides which files belong to it and what was said elsewhere in place of the file. Values become a
`Daemon` by the very functions that serve the command line; only the place that a fault names is
another. Everything that is wrong is told at once.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from bridge.config import Access, Admin, Audit, Command, Config, Daemon, Listen, Record, Replicas
from bridge.settings.clients import converted
from bridge.settings.document import Document, Unreadable, open_document
from bridge.settings.entry import Entry, config_of, identity_faults, unsaid_of
from bridge.settings.faults import Faults, Keys
from bridge.settings.keys import DEFAULTS, INCLUDED, OF_SERVERS, PROCESS, SERVER_TABLE, WAYS, WHOLE
from bridge.settings.permitted import is_permitted
from bridge.settings.process import (
    ServingOptions,
    access_of,
    admin_of,
    audit_of,
    listen_of,
    log_of,
    record_of,
    replicas_of,
    tracing_of,
)
from bridge.settings.reading import Reading, Shown, Values, in_keys, unknown
from bridge.settings.said import Clash, Level, Said, Wrong, parameter
from bridge.settings.servers import Shared
from bridge.settings.show import shown_server
from bridge.values import parse_server

MOST_FILES: Final = 1000
MOST_SERVERS: Final = 1000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What was said of the process elsewhere than in the file, and goes before it."""

    values: Mapping[str, Any] = field(default_factory=dict)
    levels: Mapping[str, Level] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loaded:
    """`shown` is the file as it may be shown; `taken` are variables that held secrets."""

    daemon: Daemon
    warnings: tuple[str, ...]
    shown: Shown
    taken: frozenset[str]


def read(file: Path, environ: Mapping[str, str], elsewhere: Elsewhere | None = None) -> Loaded:
    """Read a configuration, as often as one likes. Raises UsageFault with all that is wrong, one a line."""
    faults = Faults(file)
    document = _opened(file, faults)
    faults.hold()
    assert document is not None
    return _Tree(Reading(document, environ, faults), environ, elsewhere or Elsewhere()).whole()


def _opened(file: Path, faults: Faults) -> Document | None:
    try:
        document = open_document(file)
    except Unreadable as fault:
        faults.add(file, fault.line, (), str(fault))
        return None
    return converted(document, faults) if document.clients else document


class _Tree:
    """`main` is the file that is not included by another."""

    def __init__(self, main: Reading, environ: Mapping[str, str], elsewhere: Elsewhere) -> None:
        self._main, self._faults, self._elsewhere = main, main.faults, elsewhere
        self._environ, self._left = environ, dict(environ)
        self._where: dict[str, str] = {}
        """Where each server is, by its name."""
        self._values: Values = {}
        self._defaults: Values = {}
        self._unsaid = unsaid_of(SERVER_TABLE)
        self._shown: Shown = {}
        self._shown_defaults: Shown = {}
        self._said = Said(self._level, self._left, self._warn, literal=True)

    def whole(self) -> Loaded:
        for name in self._main.document.data.keys() - WHOLE.keys():
            self._main.fault((name,), unknown(name, WHOLE))
        sound = {name for name in PROCESS if self._read_top(name)}
        self._main.table(("defaults",), DEFAULTS, self._defaults, self._shown_defaults)
        entries = self._entries()
        shared, daemon = self._process(sound)
        configs = [(entry, self._config(entry, shared)) for entry in entries]
        daemon = replace(
            daemon,
            servers=tuple(config for _, config in configs if config is not None),
            default=self._default({entry.name for entry in entries}),
            file=self._main.document.file.absolute(),
        )
        self._faults.hold()
        self._look_twice(daemon)
        return Loaded(
            daemon,
            self._faults.warnings,
            self._show([(entry, config) for entry, config in configs if config is not None]),
            frozenset(self._environ.keys() - self._left.keys()),
        )

    # The process

    def _read_top(self, name: str) -> bool:
        """One table, or one key, of the top of the file; whether it is sound."""
        spec, value = PROCESS[name], self._main.raw((name,))
        if value is None:
            return True
        if isinstance(spec, Mapping):
            return self._main.table((name,), spec, self._values, self._shown.setdefault(name, {}))
        before = len(self._faults)
        self._main.entry((name,), spec, value, self._values, self._shown)
        return len(self._faults) == before

    def _process(self, sound: set[str]) -> tuple[Shared, Daemon]:
        """Everything but the servers; a table with a fault of its own is looked at no further."""
        said = self._said
        given = {**unsaid_of(PROCESS), "caller": (), **self._values, **self._elsewhere.values}
        options = cast("ServingOptions", given)

        def made(build: Callable[[], T], otherwise: T, *tables: str) -> T:
            found = self._made(build, self._place) if sound.issuperset(tables) else None
            return otherwise if found is None else found

        listen = made(lambda: listen_of(options, said), Listen(), "listen")
        if listen.path.startswith("/servers/"):
            self._main.fault(("listen", "path"), "what begins with /servers/ is for the servers")
        shared = Shared(
            listen=listen,
            access=made(lambda: access_of(options, listen, said), Access(), "listen", "access"),
            replicas=made(lambda: replicas_of(options, said), Replicas(), "replicas"),
            log=log_of(options),
        )
        return shared, Daemon(
            servers=(),
            listen=listen,
            access=shared.access,
            log=shared.log,
            admin=made(lambda: admin_of(options, said), Admin(), "admin"),
            audit=made(lambda: audit_of(options, said), Audit(), "audit"),
            record=made(lambda: record_of(options, said), Record(), "record"),
            tracing=tracing_of(options),
            drain=options["drain_timeout"],
        )

    def _level(self, name: str) -> Level:
        return self._elsewhere.levels.get(name, Level.FILE if name in self._values else Level.UNSAID)

    def _warn(self, text: str) -> None:
        self._faults.warn(self._main.document.file, 0, (), in_keys(text))

    def _default(self, names: set[str]) -> str | None:
        name: str | None = {**self._values, **self._elsewhere.values}.get("default")
        if name is not None and name not in names:
            text = f"there is no server {name}"
            if self._level("default") is Level.FILE:
                self._main.fault(("default",), text)
            else:
                self._faults.elsewhere.append(f"'--default': {text}")
        return name

    # The servers

    def _entries(self) -> list[Entry]:
        """Those of the file, then those of the files that it includes; disabled ones are left out."""
        found: dict[str, Entry | None] = {}
        self._read_servers(self._main, found)
        for number, pattern in enumerate(self._values.get("include", ())):
            for file in self._included(("include", number), pattern):
                document = _opened(file, self._faults)
                if document is not None:
                    self._read_included(document, found)
        return [entry for entry in found.values() if entry is not None]

    def _included(self, keys: Keys, pattern: str) -> list[Path]:
        base = self._main.document.file.parent
        # Path.glob takes no absolute patterns.
        files = [base / name for name in sorted(glob.glob(pattern, root_dir=base))]  # noqa: PTH207
        if not files and not glob.has_magic(pattern):
            self._main.fault(keys, f"there is no file {pattern}")
        if len(files) > MOST_FILES:
            self._main.fault(keys, f"more than {MOST_FILES} files")
        return [file for file in files[:MOST_FILES] if not file.is_dir()]

    def _read_included(self, document: Document, found: dict[str, Entry | None]) -> None:
        reading = Reading(document, self._environ, self._faults)
        if document.clients:
            self._faults.add(document.file, 0, (), "only TOML can be included")
            return
        for name in document.data.keys() - INCLUDED.keys():
            reading.fault((name,), "only [servers.NAME] tables have a place in an included file")
        self._read_servers(reading, found)

    def _read_servers(self, reading: Reading, found: dict[str, Entry | None]) -> None:
        tables = reading.raw(("servers",))
        if tables is None:
            return
        if not isinstance(tables, dict):
            reading.fault(("servers",), "tables [servers.NAME] expected")
            return
        for name, table in tables.items():
            keys = ("servers", name)
            if len(found) >= MOST_SERVERS:
                reading.fault(keys, f"more than {MOST_SERVERS} servers")
                return
            if name in found:
                reading.fault(keys, f"is there twice; the other is at {self._where[name]}")
                continue
            self._where[name] = f"{reading.document.file}:{reading.document.line(keys)}"
            found[name] = self._entry(reading, name, table)

    def _entry(self, reading: Reading, name: str, table: Any) -> Entry | None:
        """A server that was read, unless it is disabled; such a one is looked at no further."""
        keys = ("servers", name)
        before = len(self._faults)
        try:
            parse_server(name)
        except ValueError as fault:
            reading.fault(keys, str(fault))
        if isinstance(table, dict) and table.get("disabled") is True:
            self._shown.setdefault("servers", {})[name] = {"disabled": True}
            return None
        values, shown = Values(), Shown()
        reading.table(keys, SERVER_TABLE, values, shown)
        entry = Entry(name, reading, values, shown)
        if isinstance(table, dict):
            for place, text in identity_faults(entry):
                reading.fault(place, text)
        if values.get("disabled"):
            return None
        return replace(entry, sound=len(self._faults) == before)

    def _config(self, entry: Entry, shared: Shared) -> Config | None:
        if not entry.sound:
            return None

        def place(option: str) -> tuple[Reading, Keys]:
            own, common = (*entry.keys, *WAYS[option]), ("defaults", *WAYS[option])
            by_default = entry.reading.raw(own) is None and self._main.raw(common) is not None
            return (self._main, common) if by_default else (entry.reading, own)

        def build() -> Config:
            return config_of(entry, self._defaults, self._unsaid, shared, self._said)

        config = self._made(build, place)
        patterns = self._values.get("allowed_commands")
        if config is None or patterns is None or not isinstance(config.upstream, Command):
            return config
        if not is_permitted(config.upstream, patterns, self._environ):
            way = "command" if entry.reading.raw((*entry.keys, "command")) is not None else "cmd"
            text = f"{config.upstream.argv[0]} is not among the allowed_commands"
            entry.reading.fault((*entry.keys, way), text)
        return config

    # Faults of what was made of values

    def _made(self, build: Callable[[], T], place: Callable[[str], tuple[Reading, Keys]]) -> T | None:
        """What is built, if it can be; else the fault is told with the place of its key."""
        try:
            return build()
        except Wrong as fault:
            if self._level(parameter(fault.option)) > Level.FILE and fault.option not in OF_SERVERS:
                self._faults.elsewhere.append(f"'{fault.option}': {fault.message}")
                return None
            reading, keys = place(fault.option)
            if fault.part is not None and isinstance(reading.raw(keys), dict):
                reading.fault((*keys, fault.part), fault.fault)
            else:
                reading.fault(keys, fault.message)
        except Clash as fault:
            if self._level(parameter(fault.names[-1])) > Level.FILE:
                self._faults.elsewhere.append(fault.message)
                return None
            reading, keys = place(fault.names[-1])
            reading.fault(keys, fault.message.rstrip("."))
        return None

    def _place(self, option: str) -> tuple[Reading, Keys]:
        return self._main, WAYS[option]

    # What is told of a configuration that is right

    def _look_twice(self, daemon: Daemon) -> None:
        """What is allowed, but hardly meant."""
        if not daemon.servers:
            self._main.warn((), "there is no server in it")
        for config in daemon.servers:
            if isinstance(config.upstream, Command) and re.search(r"\s", config.upstream.argv[0]):
                text = (
                    f"servers.{config.name}: the name of the program holds a blank; cmd is split into words"
                )
                self._main.warn((), text)

    def _show(self, servers: list[tuple[Entry, Config]]) -> Shown:
        """The tree as it may be shown, its tables in the order of the reference."""
        shown: Shown = {name: self._shown[name] for name in PROCESS if self._shown.get(name)}
        shown.pop("include", None)
        shown["servers"] = self._shown.get("servers", {}) | {
            entry.name: shown_server(config, entry.shown, self._shown_defaults) for entry, config in servers
        }
        return shown
