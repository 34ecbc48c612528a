"""The configuration that clients have, `{"mcpServers": {...}}`, in the terms of our own.

Read as it is: what only clients need is passed over with a warning, and no server is lost for it.
Clients differ in the names of a few keys, and in what they call the transports.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from bridge.settings.document import Document
from bridge.settings.faults import Faults, Keys

_PLACES: Final[tuple[tuple[str, ...], ...]] = (("mcpServers",), ("servers",), ("mcp", "servers"))
_URLS: Final = ("url", "serverUrl", "httpUrl")
_KINDS: Final = ("type", "transport", "transportType")
_TRANSPORTS: Final = {
    "sse": "sse",
    "http": "auto",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamablehttp": "http",
}
_LONGEST: Final = 64


def converted(document: Document, faults: Faults) -> Document:
    """A document of clients as one of ours: its servers, each value with the line that it had."""
    return _Converting(document, faults).whole()


@dataclass
class _Converting:
    document: Document
    faults: Faults

    def __post_init__(self) -> None:
        self.moved: dict[Keys, Keys] = {}

    def whole(self) -> Document:
        document = self.document
        servers: dict[str, Any] = {}
        place, entries = self._entries()
        for name, entry in entries.items():
            there, fit = (*place, name), _fit(name)
            if fit != name:
                self._warn(there, f"is called {fit} here, since its name is part of a path")
            if not fit or fit in servers:
                self._fault(there, "has no name of its own" if fit else "has no name")
            elif not isinstance(entry, dict):
                self._fault(there, "an object expected")
            else:
                self.moved[there] = ("servers", fit)
                servers[fit] = self._server(there, ("servers", fit), entry)
        return Document(document.file, {"servers": servers}, self._moved_lines(), clients=True)

    def _entries(self) -> tuple[Keys, dict[str, Any]]:
        for place in _PLACES:
            found: Any = self.document.data
            for key in place:
                found = found.get(key) if isinstance(found, dict) else None
            if isinstance(found, dict):
                return place, found
            if found is not None and len(place) == 1:
                self._fault(place, "an object expected")
                return place, {}
        self._fault((), "there are neither mcpServers nor servers in it")
        return (), {}

    def _server(self, there: Keys, here: Keys, entry: dict[str, Any]) -> dict[str, Any]:
        """One entry; what is wrong with a value is found where it is read."""
        ours: dict[str, Any] = {}
        for key, value in entry.items():
            at = (*there, key)
            if key in _URLS:
                self._set(at, (*here, "url"), ours, value)
                if key == "httpUrl":
                    ours.setdefault("transport", "http")
            elif key in _KINDS:
                self._transport(at, here, ours, value)
            elif key == "enabled" and isinstance(value, bool):
                self._set(at, (*here, "disabled"), ours, not value)
            elif key in _SAME and value is not None:
                self._set(at, (*here, key), ours, _SAME[key](value))
            elif key not in _SAME:
                self._warn(at, "is for clients, and passed over")
        if "url" not in ours:
            ours.pop("transport", None)
        return ours

    def _set(self, there: Keys, here: Keys, ours: dict[str, Any], value: Any) -> None:
        self.moved[there] = here
        ours[str(here[-1])] = value

    def _transport(self, there: Keys, here: Keys, ours: dict[str, Any], value: Any) -> None:
        known = _TRANSPORTS.get(value.lower()) if isinstance(value, str) else None
        if known is not None:
            self._set(there, (*here, "transport"), ours, known)
        elif value not in ("stdio", "", None):
            self._warn(there, "is no transport that is known here, and passed over")

    def _moved_lines(self) -> dict[Keys, int]:
        """The lines of all that was moved, by where it is now."""
        lines: dict[Keys, int] = {}
        for keys, line in self.document.lines.items():
            for length in range(len(keys), 0, -1):
                if keys[:length] in self.moved:
                    lines[*self.moved[keys[:length]], *keys[length:]] = line
                    break
        return lines

    def _fault(self, keys: Keys, text: str) -> None:
        self.faults.add(self.document.file, self.document.line(keys), keys, text)

    def _warn(self, keys: Keys, text: str) -> None:
        self.faults.warn(self.document.file, self.document.line(keys), keys, text)


def _same(value: Any) -> Any:
    return value


def _variables(value: Any) -> Any:
    """Numbers are written as text, and null unsets."""
    if not isinstance(value, dict):
        return value
    return {
        name: f"{one}" if isinstance(one, int | float) and not isinstance(one, bool) else one
        for name, one in value.items()
        if one is not None
    }


_SAME: Final[dict[str, Callable[[Any], Any]]] = {
    "command": _same,
    "args": _same,
    "env": _variables,
    "cwd": _same,
    "headers": _same,
    "disabled": _same,
}


def _fit(name: str) -> str:
    """A name that may be part of a path."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:_LONGEST]
