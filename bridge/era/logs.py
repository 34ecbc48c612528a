"""Log messages of a legacy server for the one modern request that asked for them.

A legacy server has one level for its whole session (`logging/setLevel`), a modern request one of
its own (2026-07-28 "Logging"). Keeps the server at the most verbose level that any request wanted,
and says what reaches a given level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from bridge.core.events import Event
from bridge.core.message import Notification, Response, params_of
from bridge.core.sharing import LEVELS
from bridge.core.splice import quote
from bridge.era.own import Own
from bridge.era.terms import Terms

MESSAGE: Final = "notifications/message"
SET_LEVEL: Final = "logging/setLevel"

Go = Callable[[], Iterable[Event]]


class Levels:
    """The level of one upstream session."""

    def __init__(self, own: Own, terms: Terms, *, supported: bool) -> None:
        self._own, self._terms, self._supported = own, terms, supported
        self._level = len(LEVELS)
        """What the server was told; nothing yet."""
        self._held: list[Go] | None = None
        """What waits for the server to take the latest level."""

    def before(self, level: str | None, go: Go) -> Iterable[Event]:
        """What leads to `go`, once the server logs as much as `level`, or had time enough to."""
        if level is None or not self._supported:
            return go()
        if LEVELS.index(level) < self._level:
            return self._set(level, go)
        if self._held is not None:
            self._held.append(go)
            return ()
        return go()

    def _set(self, level: str, go: Go) -> Iterable[Event]:
        self._level = LEVELS.index(level)
        held = self._held = [go]

        def done(_: Response) -> Iterable[Event]:
            # A level that was refused is not tried again: what the server then logs is still filtered.
            if self._held is held:
                self._held = None
            return [event for one in held for event in one()]

        params = b'{"level":%b}' % quote(level)
        return (self._own.ask(SET_LEVEL, params, done, within=self._terms.level),)


def reaches(note: Notification, level: str | None) -> bool:
    """Whether a request with this level is told; what has no known severity is told to all who ask."""
    if level is None:
        return False
    severity = params_of(note).level
    return severity not in LEVELS or LEVELS.index(severity) >= LEVELS.index(level)
