"""When a server that failed may be started anew: backoff, and a circuit against a hopeless one.

Decides how long to wait and how many may try. Refuses to know what a start is, what made it
fail and what time it is: `now` is passed in, in seconds of any clock that never goes back.
There is no chance in it, so the same history always gives the same waits.

Answers basic/transports, stdio, Unexpected Termination: a server is started again, but its
failing must not become a busy loop, nor every session's wait.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Seconds, and how many `failures` within `window` open the circuit."""

    first: float = 0.5
    most: float = 30.0
    failures: int = 5
    window: float = 60.0
    open_for: float = 30.0


class Circuit(Enum):
    CLOSED = auto()
    """Starts are allowed, after the backoff if the last one failed."""
    OPEN = auto()
    """No start is allowed."""
    HALF_OPEN = auto()
    """One start is allowed, to see."""


class Restarts:
    """The history of one command. Many starts may run at once: each failure counts, one success clears."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._recent: deque[float] = deque(maxlen=policy.failures)
        self._backoff = 0.0
        self._tripped = False
        self._not_before = -math.inf

    def wait(self, now: float) -> float:
        """Seconds until a start is allowed; 0.0 means now."""
        return max(0.0, self._not_before - now)

    def state(self, now: float) -> Circuit:
        if not self._tripped:
            return Circuit.CLOSED
        return Circuit.OPEN if now < self._not_before else Circuit.HALF_OPEN

    def started(self, now: float) -> None:
        """A start was begun: if the circuit was half-open, the one that is allowed is taken.

        A start that never reports, because it was given up, allows the next after `open_for`.
        """
        if self.state(now) is Circuit.HALF_OPEN:
            self._not_before = now + self._policy.open_for

    def failed(self, now: float) -> None:
        """A start failed, or what it started died."""
        policy = self._policy
        self._recent.append(now)
        self._backoff = min(max(self._backoff * 2, policy.first), policy.most)
        self._tripped = self._tripped or self._too_often(now)
        self._not_before = now + max(self._backoff, policy.open_for if self._tripped else 0.0)

    def succeeded(self) -> None:
        """A server is up: all is forgotten."""
        self._recent.clear()
        self._backoff = 0.0
        self._tripped = False
        self._not_before = -math.inf

    def _too_often(self, now: float) -> bool:
        full = len(self._recent) == self._policy.failures
        return full and now - self._recent[0] <= self._policy.window
