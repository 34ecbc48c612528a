"""What one caller may have of one server: at a time, and in the course of time.

Counts requests in flight and lets tokens grow back in buckets; the clock is passed in. Who a caller is,
and how a refusal is put into words of a transport, is decided elsewhere. The table of callers is
bounded: of those with nothing in flight the one that was quiet longest is forgotten first, and begins
with full buckets if it comes back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

MOST: Final = 10_000
"""Callers that are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """`each` per second in the long run, and up to `burst` at once."""

    each: float
    burst: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What one caller may have of one server; None means no limit."""

    concurrent: int | None = None
    """Requests in flight; subscriptions count."""
    rate: Rate | None = None
    """Requests."""
    sessions: int | None = None
    """Legacy sessions open at a time."""
    starts: Rate | None = None
    """What makes the bridge start a process or open an upstream session: a legacy client's initialize,
    and a modern request for which none is there yet."""


class TooMuch(msgspec.Struct, frozen=True):
    """Why a request is refused, and when it may be tried again."""

    reason: str
    text: str
    seconds: int
    unavailable: bool = False
    """Whether it is the bridge that spares itself, and not the caller that asks too often."""


class Called(Protocol):
    """Whatever lasts as long as a request."""

    caller: str


class _Bucket:
    __slots__ = ("_at", "_left", "_rate")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate, self._at = rate, now
        self._left = float(rate.burst)

    def take(self, now: float) -> int:
        """Take one; or the seconds until there will be one."""
        self._left = min(self._rate.burst, self._left + (now - self._at) * self._rate.each)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0
        return max(1, math.ceil((1 - self._left) / self._rate.each))


class _Caller:
    __slots__ = ("in_flight", "requests", "starts")

    def __init__(self, quota: Quota, now: float) -> None:
        self.in_flight = 0
        self.requests = None if quota.rate is None else _Bucket(quota.rate, now)
        self.starts = None if quota.starts is None else _Bucket(quota.starts, now)


class Quotas:
    """Holds every caller of a server to `quota`. `opened` and `closed` are told of each request."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._callers: dict[str, _Caller] = {}

    def __len__(self) -> int:
        return len(self._callers)

    def opened(self, request: Called) -> None:
        self._caller(request.caller).in_flight += 1

    def closed(self, request: Called) -> None:
        self._caller(request.caller).in_flight -= 1

    def request(self, caller: str, now: float) -> TooMuch | None:
        """Why one more request, of which `opened` knows already, is too much."""
        known, most = self._caller(caller), self._quota.concurrent
        if most is not None and known.in_flight > most:
            return TooMuch("caller_concurrent", f"Too many requests in flight; you may have {most}", 1)
        wait = 0 if known.requests is None else known.requests.take(now)
        return TooMuch("caller_rate", "Too many requests in too short a time", wait) if wait else None

    def session(self, caller: str, open_now: int, now: float) -> TooMuch | None:
        """Why one more legacy session is too much for a caller that has so many."""
        most = self._quota.sessions
        if most is not None and open_now >= most:
            return TooMuch("caller_sessions", f"Too many sessions; you may have {most}", 10)
        return self.start(caller, now)

    def start(self, caller: str, now: float) -> TooMuch | None:
        """Why one more upstream session is too much."""
        known = self._caller(caller)
        wait = 0 if known.starts is None else known.starts.take(now)
        if not wait:
            return None
        return TooMuch("caller_starts", "Too many servers started in too short a time", wait, True)

    def _caller(self, name: str) -> _Caller:
        known = self._callers.pop(name, None)
        if known is None:
            # Buckets are filled to the brim at first, so the time of their making does not matter.
            known = _Caller(self._quota, -math.inf)
            if len(self._callers) >= MOST:
                self._forget()
        self._callers[name] = known  # the last one, as the one that moved last
        return known

    def _forget(self) -> None:
        quiet = next((name for name, known in self._callers.items() if not known.in_flight), None)
        if quiet is not None:
            del self._callers[quiet]
