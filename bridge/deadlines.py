"""One timer for many waits of the same length, so that no message needs a timer of its own.

Entries are kept in the order in which they fall due; only the first is on the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Calls `expired(item)` when `delay` seconds have passed since it was last added or extended.

    Without a delay (None) nothing ever expires.
    """

    def __init__(self, delay: float | None, expired: Callable[[T], None]) -> None:
        self._delay = delay
        self._expired = expired
        self._due: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def add(self, item: T) -> None:
        if self._delay is None:
            return
        loop = asyncio.get_running_loop()
        self._due.pop(item, None)  # its place is at the end
        self._due[item] = loop.time() + self._delay
        if self._timer is None:
            self._timer = loop.call_at(self._due[item], self._fire)

    def remove(self, item: T) -> None:
        self._due.pop(item, None)

    def extend(self, item: T) -> None:
        """Start the item's wait anew, if it is waiting."""
        if item in self._due:
            self.add(item)

    def clear(self) -> None:
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        """Expire what is due, and set the clock to whatever is first now."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        due = []
        for item, at in self._due.items():
            if at > now:
                self._timer = loop.call_at(at, self._fire)
                break
            due.append(item)
        for item in due:
            if self._due.pop(item, None) is not None:
                self._expired(item)
