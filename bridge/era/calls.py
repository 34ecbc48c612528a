"""One request of a modern client to a legacy server, over all the rounds that it takes.

Decides what may become of it when (a table), keeps what its rounds have in common, and finds it
again. Sends nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from bridge.core.events import MULTI_ROUND, Exchange, Party, Question
from bridge.core.layer import Timer
from bridge.core.message import Notification, Request, Response
from bridge.core.splice import members
from bridge.era.capabilities import Capabilities
from bridge.era.envelope import Envelope


class State(Enum):
    HELD = auto()
    """Not sent to the server yet."""
    RUNNING = auto()
    COALESCING = auto()
    """The server asked something, and more may come; the client waits still."""
    SUSPENDED = auto()
    """The client was asked, and is away."""
    KEPT = auto()
    """The server answered while the client was away."""
    ENDED = auto()


class Move(Enum):
    SEND = auto()
    QUESTION = auto()
    SETTLED = auto()
    """No question is open any more."""
    AWAY = auto()
    """The client was told what is asked."""
    RETURN = auto()
    RESULT = auto()
    """The server gave its final answer."""
    END = auto()
    """The client has its final answer, or will not get any."""


_NEXT: Final[dict[tuple[State, Move], State]] = {
    (State.HELD, Move.SEND): State.RUNNING,
    (State.RUNNING, Move.SEND): State.RUNNING,
    (State.RUNNING, Move.QUESTION): State.COALESCING,
    (State.RUNNING, Move.SETTLED): State.RUNNING,
    (State.RUNNING, Move.AWAY): State.SUSPENDED,
    (State.RUNNING, Move.RESULT): State.RUNNING,
    (State.COALESCING, Move.QUESTION): State.COALESCING,
    (State.COALESCING, Move.SETTLED): State.RUNNING,
    (State.COALESCING, Move.AWAY): State.SUSPENDED,
    (State.SUSPENDED, Move.QUESTION): State.SUSPENDED,
    (State.SUSPENDED, Move.SETTLED): State.SUSPENDED,
    (State.SUSPENDED, Move.RESULT): State.KEPT,
    (State.SUSPENDED, Move.RETURN): State.RUNNING,
    (State.KEPT, Move.SETTLED): State.KEPT,
    (State.KEPT, Move.RETURN): State.RUNNING,
    (State.HELD, Move.END): State.ENDED,
    (State.RUNNING, Move.END): State.ENDED,
    (State.COALESCING, Move.END): State.ENDED,
    (State.SUSPENDED, Move.END): State.ENDED,
    (State.KEPT, Move.END): State.ENDED,
}


class Open(msgspec.Struct, frozen=True, eq=False):
    """A question that the client has not answered yet. Told apart by identity.

    `question` is the server's request; None where it asked by an error instead (-32042).
    """

    question: Question | None
    method: str
    params: Raw | UnsetType = UNSET
    along: bool = False
    """It is no matter of this call, which only takes it to the client."""


class Call:
    """`asked` is its latest request as the client sent it, `exchange` where that is answered.

    `exchange` is None while the client is away, `upstream` while the server is not asked.
    """

    __slots__ = (
        "asked",
        "capabilities",
        "envelope",
        "exchange",
        "folded",
        "kept",
        "keys",
        "logs",
        "mapped",
        "open",
        "progress",
        "refused",
        "serial",
        "started",
        "state",
        "subject",
        "timer",
        "upstream",
        "visits",
    )

    def __init__(
        self, serial: int, exchange: Exchange, asked: Request, envelope: Envelope, *, now: float, logs: int
    ) -> None:
        self.serial = serial
        self.started = now
        self.subject = exchange.party.subject
        self.state = State.HELD
        self.upstream: Exchange | None = None
        self.open: dict[str, Open] = {}
        """By their keys in `inputRequests`, which count up and are never used again."""
        self.keys = 0
        self.refused: list[bytes] = []
        """Capabilities that the server missed, each as a `requiredCapabilities`."""
        self.folded: Notification | None = None
        """The latest progress that the client has not seen."""
        self.progress = float("-inf")
        self.logs: deque[Notification] = deque(maxlen=logs)
        """What was logged while the client was away."""
        self.mapped = False
        """Whether its client is shown the task that it may become."""
        self.kept: Response | None = None
        self.visits = 0
        """How often the server asked by an error."""
        self.timer: Timer | None = None
        """When it leaves the state that it is in by itself."""
        self.attach(exchange, asked, envelope)

    def attach(self, exchange: Exchange, asked: Request, envelope: Envelope) -> None:
        """Be answered here from now on."""
        self.exchange: Exchange | None = exchange
        self.asked, self.envelope = asked, envelope
        self.capabilities = Capabilities.read(envelope.capabilities)

    @property
    def multi_round(self) -> bool:
        """Whether the client may be asked something in the course of it."""
        return self.asked.method in MULTI_ROUND

    @property
    def name(self) -> str:
        """Of the tool, or prompt; empty if there is none."""
        try:
            parts = {} if self.asked.params is UNSET else members(self.asked.params)
            return msgspec.json.decode(parts.get("name", b'""'), type=str)
        except (ValueError, msgspec.DecodeError):
            return ""

    @property
    def ended(self) -> bool:
        return self.state is State.ENDED

    @property
    def away(self) -> bool:
        return self.state in (State.SUSPENDED, State.KEPT)

    def move(self, move: Move) -> None:
        """Raises KeyError for what cannot happen in this state."""
        before, self.state = self.state, _NEXT[self.state, move]
        stays = before is self.state or self.state is State.KEPT  # which waits as long as SUSPENDED did
        if self.timer is not None and not stays:
            self.timer.cancel()
            self.timer = None

    def ask(self, question: Open) -> None:
        self.keys += 1
        self.open[f"in-{self.keys}"] = question


class Board:
    """The calls of one upstream session, found by whatever is known of them."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}
        self._attached: dict[Exchange, Call] = {}
        self._serial = 0

    def __iter__(self) -> Iterator[Call]:
        return iter(tuple(self._calls.values()))

    def __bool__(self) -> bool:
        return bool(self._calls)

    def new(self, exchange: Exchange, asked: Request, envelope: Envelope, *, now: float, logs: int) -> Call:
        self._serial += 1
        call = self._calls[self._serial] = Call(self._serial, exchange, asked, envelope, now=now, logs=logs)
        self._attached[exchange] = call
        return call

    def attach(self, call: Call, exchange: Exchange, asked: Request, envelope: Envelope) -> None:
        self._attached[exchange] = call
        call.attach(exchange, asked, envelope)

    def detach(self, call: Call) -> Exchange:
        """The client is answered: where."""
        exchange, call.exchange = call.exchange, None
        assert exchange is not None
        del self._attached[exchange]
        return exchange

    def end(self, call: Call) -> None:
        if call.exchange is not None:
            self.detach(call)
        call.move(Move.END)
        del self._calls[call.serial]

    def of(self, exchange: Exchange) -> Call | None:
        """The call that is answered here."""
        return self._attached.get(exchange)

    def numbered(self, serial: object) -> Call | None:
        return self._calls.get(serial) if isinstance(serial, int) else None

    def working(self) -> list[Call]:
        """What the server is at."""
        return [call for call in self._calls.values() if call.upstream is not None]

    def of_party(self, party: Party) -> list[Exchange]:
        return [exchange for exchange in self._attached if exchange.party is party]
