"""The lifecycle of one legacy session as a table (specification: "Lifecycle").

Decides what a session may do when, and nothing about ids, streams or transports. Lenient
where deployed clients are: a request before `notifications/initialized` passes, a second
`notifications/initialized` passes; what the specification leaves no reading for is refused.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from bridge.core.message import INVALID_REQUEST, Malformed, Message, Notification, Request, Response


class Phase(Enum):
    NEW = auto()
    OPENING = auto()
    """`initialize` is on its way."""
    OPENED = auto()
    """It was answered; `notifications/initialized` has not come yet."""
    LIVE = auto()
    CLOSED = auto()


class Step(Enum):
    INITIALIZE = auto()
    ACCEPTED = auto()
    REJECTED = auto()
    INITIALIZED = auto()
    PING = auto()
    REQUEST = auto()
    OTHER = auto()
    """Any other notification, and answers."""
    CLOSE = auto()


_NEXT: Final[dict[tuple[Phase, Step], Phase]] = {
    (Phase.NEW, Step.INITIALIZE): Phase.OPENING,
    (Phase.OPENING, Step.ACCEPTED): Phase.OPENED,
    (Phase.OPENING, Step.REJECTED): Phase.CLOSED,
    (Phase.OPENING, Step.PING): Phase.OPENING,
    (Phase.OPENING, Step.OTHER): Phase.OPENING,
    (Phase.OPENED, Step.INITIALIZED): Phase.LIVE,
    (Phase.OPENED, Step.PING): Phase.OPENED,
    (Phase.OPENED, Step.REQUEST): Phase.OPENED,
    (Phase.OPENED, Step.OTHER): Phase.OPENED,
    (Phase.LIVE, Step.INITIALIZED): Phase.LIVE,
    (Phase.LIVE, Step.PING): Phase.LIVE,
    (Phase.LIVE, Step.REQUEST): Phase.LIVE,
    (Phase.LIVE, Step.OTHER): Phase.LIVE,
    (Phase.NEW, Step.CLOSE): Phase.CLOSED,
    (Phase.OPENING, Step.CLOSE): Phase.CLOSED,
    (Phase.OPENED, Step.CLOSE): Phase.CLOSED,
    (Phase.LIVE, Step.CLOSE): Phase.CLOSED,
    (Phase.CLOSED, Step.CLOSE): Phase.CLOSED,
}

_REQUESTS: Final = {"initialize": Step.INITIALIZE, "ping": Step.PING}
_WHY: Final = {
    Phase.NEW: "the first request must be initialize",
    Phase.OPENING: "initialize has not been answered yet",
    Phase.OPENED: "the session is initialized already",
    Phase.LIVE: "the session is initialized already",
    Phase.CLOSED: "the session is closed",
}


class Lifecycle:
    """Where a session stands. `take` moves it by a client's message, `move` by anything else."""

    __slots__ = ("phase",)

    def __init__(self) -> None:
        self.phase = Phase.NEW

    @property
    def open(self) -> bool:
        return self.phase in (Phase.OPENED, Phase.LIVE)

    def take(self, message: Message) -> Malformed | None:
        """Move by what the client sent; the refusal, if it may not send that now."""
        if self.phase is Phase.LIVE and type(message) is Request and message.method != "initialize":
            return None
        return self.move(_step(message), message.id if isinstance(message, Request) else None)

    def move(self, step: Step, message_id: int | str | None = None) -> Malformed | None:
        phase = _NEXT.get((self.phase, step))
        if phase is None:
            return Malformed(INVALID_REQUEST, f"Invalid Request: {_WHY[self.phase]}", message_id)
        self.phase = phase
        return None


def _step(message: Message) -> Step:
    match message:
        case Request():
            return _REQUESTS.get(message.method, Step.REQUEST)
        case Notification():
            return Step.INITIALIZED if message.method == "notifications/initialized" else Step.OTHER
        case Response():
            return Step.OTHER
