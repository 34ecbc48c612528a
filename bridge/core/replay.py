"""The events of one legacy session, kept a while for a client that comes back for them.

Specification: "Resumability and Redelivery". Event ids are `<stream>-<number>`, unique in
the session, and name their stream, so that nothing of another stream is ever replayed.
Bounded by count, bytes and age; the oldest go first, whatever stream they are on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredEvent:
    id: str
    stream: int
    number: int
    payload: bytes
    at: float


class EventStore:
    """`now` is any clock that does not go back; ages are in its seconds."""

    def __init__(self, *, events: int, size: int, age: float) -> None:
        self._most, self._most_bytes, self._most_age = events, size, age
        self._kept: deque[StoredEvent] = deque()
        self._bytes = 0
        self._numbers: dict[int, int] = {}
        self._streams = 0

    def __len__(self) -> int:
        return len(self._kept)

    def stream(self) -> int:
        """The number of a new stream."""
        self._streams += 1
        return self._streams

    def mark(self, stream: int) -> str:
        """The id of an event without content, which moves the client's cursor only (priming)."""
        number = self._numbers.get(stream, 0) + 1
        self._numbers[stream] = number
        return f"{stream}-{number}"

    def append(self, stream: int, payload: bytes, now: float) -> str:
        """Keep one event; gives its id."""
        event = StoredEvent(self.mark(stream), stream, self._numbers[stream], payload, now)
        self._kept.append(event)
        self._bytes += len(payload)
        self._trim(now)
        return event.id

    def _trim(self, now: float) -> None:
        kept = self._kept
        while kept and (
            len(kept) > self._most or self._bytes > self._most_bytes or kept[0].at < now - self._most_age
        ):
            self._bytes -= len(kept.popleft().payload)

    def forget(self, stream: int) -> None:
        """No more events come on this stream; what is kept of it stays until it is old."""
        self._numbers.pop(stream, None)

    def after(self, event_id: str, now: float) -> tuple[int, list[StoredEvent]] | None:
        """The stream that `event_id` names and what is kept of it after that event.

        None if this session never gave out such an id.
        """
        cursor = _parse(event_id)
        if cursor is None or not 1 <= cursor[0] <= self._streams:
            return None
        stream, number = cursor
        if not 1 <= number <= self._numbers.get(stream, number):
            return None
        self._trim(now)
        return stream, [event for event in self._kept if event.stream == stream and event.number > number]


def _parse(event_id: str) -> tuple[int, int] | None:
    stream, dash, number = event_id.partition("-")
    if not (dash and stream.isascii() and stream.isdigit() and number.isascii() and number.isdigit()):
        return None
    return (int(stream), int(number)) if len(event_id) <= 40 else None
