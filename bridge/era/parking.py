"""Questions of a legacy server that belong to no call, until one comes to take them along.

A server typically asks for the roots as soon as it is initialized, when nobody is there to be
asked. Decides how long such a question waits; what runs meanwhile may be waiting for its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from bridge.core.events import Event, Question, Replied, refusal
from bridge.core.layer import Clock, Layer, Timer
from bridge.core.message import INVALID_PARAMS, Id, Request
from bridge.era.calls import Board
from bridge.era.terms import Terms

MOST: Final = 64


class Parked:
    __slots__ = ("asked", "due", "question", "subjects", "timer", "until")

    def __init__(self, question: Question, asked: Request, subjects: frozenset[str], until: float) -> None:
        self.question, self.asked, self.until = question, asked, until
        self.subjects = subjects
        """Who had the server work at something when it asked: it may be why."""
        self.due = float("inf")
        """When it is looked at again; `until` is when its time is over whatever runs."""
        self.timer: Timer | None = None


class Parking:
    """What the server works at, by `board`, may wait for the answer to a parked question."""

    def __init__(self, clock: Clock, layer: Layer, terms: Terms, board: Board) -> None:
        self._clock, self._layer, self._terms, self._board = clock, layer, terms, board
        self._parked: dict[Id, Parked] = {}

    def park(self, question: Question, asked: Request) -> Iterable[Event]:
        if len(self._parked) >= MOST:
            return (unsolicited(question),)
        subjects = frozenset(call.subject for call in self._board.working())
        parked = Parked(question, asked, subjects, self._clock.now() + self._terms.park)
        self._parked[question.party_id] = parked
        self._wait(parked)
        return ()

    def _wait(self, parked: Parked) -> None:
        now = self._clock.now()
        due = min(parked.until, now + self._terms.park_blocking) if self._board.working() else parked.until
        if due >= parked.due:
            return  # what starts meanwhile never makes it wait longer
        if parked.timer is not None:
            parked.timer.cancel()
        parked.due = due
        parked.timer = self._clock.after(due - now, self._layer, lambda: self._look(parked))

    def _look(self, parked: Parked) -> Iterable[Event]:
        if self._board.working() or self._clock.now() >= parked.until:
            self.forget(parked.question.party_id)
            return (unsolicited(parked.question),)
        parked.due = float("inf")
        self._wait(parked)
        return ()

    def claimed(self, subject: str, covers: Callable[[Request], bool]) -> list[Parked]:
        """Take out what a new call of this subject can carry; what stays may be what it waits for."""
        taken = [one for one in self._parked.values() if one.subjects <= {subject} and covers(one.asked)]
        for parked in taken:
            self.forget(parked.question.party_id)
        for parked in self._parked.values():
            self._wait(parked)
        return taken

    def forget(self, question: Id) -> None:
        """Nothing, if it is not parked."""
        parked = self._parked.pop(question, None)
        if parked is not None and parked.timer is not None:
            parked.timer.cancel()

    def clear(self) -> None:
        for question in list(self._parked):
            self.forget(question)


def unsolicited(question: Question) -> Replied:
    return refusal(question, INVALID_PARAMS, "No request is in flight whose client could be asked")
