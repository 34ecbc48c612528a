"""Which stream of a session carries a server's message that answers no request.

Specification: "Streamable HTTP", "Sending Messages to the Server" and "Listening for
Messages from the Server"; one message goes on one stream only. Rules and order are those
of docs/architecture.md, "Streams of a legacy session". What no stream can carry now waits
in a bounded backlog; the clock for that is the caller's.
"""

from __future__ import annotations

from typing import Final, Protocol

from msgspec import UNSET

from bridge.core.events import Noted, Questioned
from bridge.core.message import Notification, params_of

_TRIGGERS: Final = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
        "notifications/resources/updated",
    }
)
"""Level triggers: a second one that waits tells nothing new."""
_LOG: Final = "notifications/message"

Unplaced = Noted | Questioned


class Outlet(Protocol):
    """A stream as seen from here."""

    @property
    def carries(self) -> bool:
        """Whether it can take an SSE event now, be it only to keep it for a resumption."""


class Streams:
    """The open streams of one session: its POSTs in flight, oldest first, and its GET."""

    def __init__(self) -> None:
        self.posts: dict[Outlet, None] = {}
        self.listener: Outlet | None = None

    def carrying(self) -> list[Outlet]:
        return [post for post in self.posts if post.carries]

    def for_question(self) -> Outlet | None:
        posts = self.carrying()
        if len(posts) == 1:
            return posts[0]
        return self._listening() or (posts[-1] if posts else None)

    def for_note(self) -> Outlet | None:
        posts = self.carrying()
        return self._listening() or (posts[0] if len(posts) == 1 else None)

    def _listening(self) -> Outlet | None:
        return self.listener if self.listener is not None and self.listener.carries else None


class Backlog:
    """What waits for a stream, oldest first; `limit` messages at most."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[object, Unplaced] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, event: Unplaced) -> Unplaced | None:
        """Keep `event`; gives the one that had to go for it, be it itself."""
        key = _key(event)
        if key in self._waiting:
            return None
        if len(self._waiting) < self._limit:
            self._waiting[key] = event
            return None
        victim = self._least(event)
        if victim is not None:
            self._waiting[key] = event
            return self._waiting.pop(victim)
        return event

    def _least(self, event: Unplaced) -> object | None:
        """The oldest log message, or for a question any notification."""
        notes = [(key, kept) for key, kept in self._waiting.items() if isinstance(kept, Noted)]
        logs = [key for key, kept in notes if kept.notification.method == _LOG]
        if logs:
            return logs[0]
        return notes[0][0] if notes and not _is_log(event) else None

    def take(self) -> list[Unplaced]:
        """Everything, oldest first."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        return waiting

    def questions(self) -> list[Questioned]:
        """Take out the questions only."""
        found = [(key, kept) for key, kept in self._waiting.items() if isinstance(kept, Questioned)]
        for key, _ in found:
            del self._waiting[key]
        return [kept for _, kept in found]

    def withdrawn(self, party_id: int | str) -> bool:
        """The server took its question back: true if it waited here, and nobody need be told."""
        for key, kept in self._waiting.items():
            if isinstance(kept, Questioned) and kept.question.party_id == party_id:
                del self._waiting[key]
                return True
        return False


def _is_log(event: Unplaced) -> bool:
    return isinstance(event, Noted) and event.notification.method == _LOG


def _key(event: Unplaced) -> object:
    """Equal for what tells the same; two log messages are two, however equal their text."""
    if isinstance(event, Noted) and event.notification.method in _TRIGGERS:
        return event.notification.method, _uri(event.notification)
    return object()


def _uri(note: Notification) -> str | None:
    uri = params_of(note).uri
    return None if uri is UNSET else uri
