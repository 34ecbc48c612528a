"""The calls that wait for their clients to come back, on whichever upstream session they run.

Decides which request may go on with which call (2026-07-28 "Multi Round-Trip Requests"): each
state works once, for whom it was given to, and only on the replica that holds the call. Knows
neither what the calls wait for nor when their time is over; that is the matter of their layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

import msgspec
from msgspec import UNSET

from bridge.core.events import MULTI_ROUND
from bridge.core.message import INVALID_PARAMS, Request, Response, local_error
from bridge.core.splice import members
from bridge.era.state import VERSION, Claims, Kind, digest, flaw, principal, read, written
from bridge.era.terms import Terms

H = TypeVar("H")

MOST_ENDED: Final = 10_000
"""Calls remembered as ended, so that their states are told from those of lost ones; oldest go first."""


class Sealing(Protocol):
    def seal(self, claims: bytes) -> str: ...

    def open(self, token: str) -> bytes | None:
        """The claims; None for whatever was not sealed here."""


class Elsewhere(msgspec.Struct, frozen=True):
    """The call is another replica's."""

    replica: str


class Slot(Generic[H]):
    """A call as the registry knows it, from its first suspension to its end."""

    __slots__ = ("away", "home", "id", "round", "subject")

    def __init__(self, call: str, subject: str, home: H) -> None:
        self.id = call
        self.subject = subject
        self.home = home
        self.round = 0
        self.away = False
        """Whether it waits for its client now."""


class Calls(Generic[H]):
    """All of one upstream, which may have many upstream sessions.

    `mint` gives an id nobody can guess, `wall` the seconds since 1970; `remark` is told, for the
    log, why a state was refused, which the client is not.
    """

    def __init__(
        self,
        seal: Sealing,
        terms: Terms,
        *,
        upstream: str,
        replica: str,
        mint: Callable[[], str],
        wall: Callable[[], float],
        remark: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._seal, self._terms = seal, terms
        self._upstream, self._replica = upstream, replica
        self._mint, self._wall, self._remark = mint, wall, remark
        self._slots: dict[str, Slot[H]] = {}
        self._away: Counter[str] = Counter()
        """How many calls of each subject wait for their clients."""
        self._ended: dict[str, float] = {}
        """Until when a state of a call that ended could come back."""
        self.counts: Counter[str] = Counter()
        """How often what was not plain: states refused, calls elsewhere, questions put to a guessed call."""

    # Whose a request is

    def find(self, asked: Request, subject: str) -> H | Elsewhere | Response | None:
        """The home of the call that this request goes on with; nothing is consumed.

        None if it is a request of its own, a `Response` if it is to be refused.
        """
        found = self.returned(asked, subject)
        return found.home if isinstance(found, Slot) else found

    def returned(self, asked: Request, subject: str) -> Slot[H] | Elsewhere | Response | None:
        """The same, as the call itself."""
        token = _token(asked)
        if token is None:
            return None
        claims = self._opened(token)
        cause = "seal" if claims is None else flaw(claims, asked, subject, self._upstream, self._wall())
        if claims is None or cause is not None:
            return self._refused(asked, cause or "seal")
        if claims.replica != self._replica:
            self.counts["elsewhere"] += 1
            return Elsewhere(claims.replica)
        return self._held(asked, claims)

    def _opened(self, token: bytes) -> Claims | None:
        try:
            text = self._seal.open(msgspec.json.decode(token, type=str))
        except msgspec.DecodeError:
            return None
        return None if text is None else read(text)

    def _held(self, asked: Request, claims: Claims) -> Slot[H] | Response:
        slot = self._slots.get(claims.call)
        if slot is None:
            return self._refused(asked, "ended") if claims.call in self._ended else lost(asked)
        if slot.round != claims.round:
            return self._refused(asked, "round")
        return slot

    def _refused(self, asked: Request, cause: str) -> Response:
        self.counts[f"state refused: {cause}"] += 1
        self._remark(f"{asked.method}: {cause}")
        text = "Invalid or expired requestState"
        return local_error(asked.id, text, "invalid_request_state", INVALID_PARAMS)

    # What becomes of a call

    def open(self, subject: str, home: H) -> Slot[H]:
        slot = Slot(self._mint(), subject, home)
        self._slots[slot.id] = slot
        return slot

    def room(self, subject: str) -> bool:
        """Whether one more call of this subject may wait for its client."""
        if self._away[subject] >= self._terms.suspended_per_subject:
            return False
        return self._away.total() < self._terms.suspended_in_all

    def suspend(self, slot: Slot[H], asked: Request, kind: Kind, seconds: float) -> str:
        """Let a call wait so long for its client: the state for the client to come back with."""
        self._count(slot, away=True)
        now = self._wall()
        return self._seal.seal(
            written(
                Claims(
                    version=VERSION,
                    kind=kind,
                    upstream=self._upstream,
                    replica=self._replica,
                    call=slot.id,
                    round=slot.round,
                    request=digest(asked),
                    issued=now,
                    expires=now + seconds,
                    principal=principal(slot.subject, slot.id),
                )
            )
        )

    def resume(self, slot: Slot[H]) -> None:
        """Its client is back: no state that it was given before works any more."""
        self._count(slot, away=False)
        slot.round += 1

    def end(self, slot: Slot[H]) -> None:
        """It was answered, or given up."""
        self.lose(slot)
        now = self._wall()
        self._ended[slot.id] = now + self._terms.suspended
        while self._ended and (len(self._ended) > MOST_ENDED or next(iter(self._ended.values())) <= now):
            del self._ended[next(iter(self._ended))]

    def lose(self, slot: Slot[H]) -> None:
        """Its server is gone; whoever comes back is told so."""
        self._count(slot, away=False)
        self._slots.pop(slot.id, None)

    def _count(self, slot: Slot[H], *, away: bool) -> None:
        if slot.away is away:
            return
        slot.away = away
        self._away[slot.subject] += 1 if away else -1
        if not self._away[slot.subject]:
            del self._away[slot.subject]


def goes_on(asked: Request) -> bool:
    """Whether it says that it belongs to a call that began before."""
    return _token(asked) is not None


def lost(asked: Request) -> Response:
    return local_error(asked.id, "The call that this request goes on with is lost; start anew", "call_lost")


def elsewhere(asked: Request) -> Response:
    text = "The call that this request goes on with is on another replica of the bridge"
    return local_error(asked.id, text, "call_elsewhere")


def _token(asked: Request) -> bytes | None:
    """The `requestState` as JSON text, if this is a request that may have one."""
    if asked.method not in MULTI_ROUND or asked.params is UNSET:
        return None
    try:
        token = members(asked.params).get("requestState")
    except ValueError:
        return None
    return None if token is None or bytes(token) == b"null" else bytes(token)
