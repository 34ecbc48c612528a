"""The whole vocabulary of the core: who takes part, and what can happen.

Events travel through a pipeline of layers (`core.layer`), upward from a client to its
server or downward; `Send` is the one command for the wire. Nothing here decides anything.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from bridge.core.message import Id, Notification, Request, Response, error, params_of

MULTI_ROUND: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The requests during which a server may ask its client something (2026-07-28 "mrtr")."""


CAPABILITY: Final = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}
"""What a client must have declared to be asked this."""


class Party:
    """Whoever sends requests through one link: one legacy session, or all modern callers of it.

    Holds the ids of the downstream hop in both directions: requests of the client in
    flight, and questions that the server asked it.
    """

    __slots__ = ("capabilities", "exchanges", "name", "offer", "questions", "serial", "subject")

    def __init__(self, name: str, subject: str = "") -> None:
        self.name = name
        self.subject = subject
        """Whom the bridge serves by it: nothing of one subject may reach another."""
        self.capabilities: frozenset[str] = frozenset()
        """Names of the capabilities that the client declared."""
        self.offer: Request | None = None
        """The initialize request of the client, once it sent one."""
        self.exchanges: dict[Id, Exchange] = {}
        self.questions: dict[Id, Question] = {}
        self.serial = 0

    def lacks(self, method: str) -> bool:
        """Whether the client did not declare what it takes to be asked this."""
        needed = CAPABILITY.get(method)
        return needed is not None and needed not in self.capabilities

    def enter(self, question: Question) -> None:
        """Give a server's request an id of this hop: its own, unless that one is taken here."""
        question.party = self
        question.during = tuple(self.exchanges.values())
        question.party_id = question.id
        while question.party_id in self.questions:
            self.serial += 1
            question.party_id = f"mb-{self.serial}"
        self.questions[question.party_id] = question

    def forget(self, question: Question) -> None:
        """It was answered, or nobody waits for its answer any more."""
        if self.questions.get(question.party_id) is question:
            del self.questions[question.party_id]


class Exchange:
    """One client request and everything that belongs to it until its one final answer.

    `hop_id` and `hop_token` are what the server knows it by, once it was sent; `via` is
    whatever the downstream side wants to find again, untouched by the core.
    """

    __slots__ = (
        "askable",
        "cancelled",
        "hop_id",
        "hop_token",
        "id",
        "log",
        "method",
        "party",
        "task",
        "token",
        "via",
    )

    def __init__(
        self, party: Party, request: Request, via: object, *, log: bool = False, askable: bool = True
    ) -> None:
        self.party = party
        self.id = request.id
        self.method = request.method
        params = params_of(request)
        self.token: Id | UnsetType = UNSET if params.meta is UNSET else params.meta.token
        self.hop_id: Id = request.id
        self.hop_token: Id | UnsetType = self.token
        self.via = via
        self.log = log
        """Modern: the request asked for log messages."""
        self.askable = askable
        """Legacy: the client can be asked something while this runs."""
        self.task = params.task is not UNSET
        """Legacy: the request asked to become a task."""
        self.cancelled = False


class Question:
    """One request of the server to a client, until it is answered or withdrawn.

    `id` is the server's; `party_id` the one on the downstream hop.
    """

    __slots__ = ("during", "exchange", "id", "method", "party", "party_id")

    def __init__(self, request: Request) -> None:
        self.id = request.id
        self.method = request.method
        self.party: Party | None = None
        self.exchange: Exchange | None = None
        self.party_id: Id = request.id
        self.during: tuple[Exchange, ...] = ()
        """What the client was waiting for when it was asked: one of these may be why."""


class Asked(msgspec.Struct, frozen=True, gc=False):
    """Up: a client's request."""

    exchange: Exchange
    request: Request


class Told(msgspec.Struct, frozen=True, gc=False):
    """Up: a client's notification, cancellations excepted."""

    party: Party
    notification: Notification


class Replied(msgspec.Struct, frozen=True, gc=False):
    """Up: a client's answer to a server's request, under the server's id."""

    question: Question
    response: Response


class Withdrawn(msgspec.Struct, frozen=True, gc=False):
    """Up: the client gave this exchange up; it will not be answered.

    `notification` is its own `notifications/cancelled`, None if a closed stream said so.
    """

    exchange: Exchange
    notification: Notification | None = None


class Left(msgspec.Struct, frozen=True, gc=False):
    """Up: the party is gone, with everything it had in flight."""

    party: Party


class Answered(msgspec.Struct, frozen=True, gc=False):
    """Down: the final answer, under the client's id."""

    exchange: Exchange
    response: Response


class Noted(msgspec.Struct, frozen=True, gc=False):
    """Down: a server's notification. `party` is None while nobody knows whose it is."""

    party: Party | None
    exchange: Exchange | None
    notification: Notification


class Questioned(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Down: a server's request, under the server's id; its party is on the question.

    Told apart by identity, as questions are.
    """

    question: Question
    request: Request


class Ended(msgspec.Struct, frozen=True, gc=False):
    """Down: the server tore this exchange down without an answer (a modern subscription)."""

    exchange: Exchange


class Lost(msgspec.Struct, frozen=True, gc=False):
    """Down: the upstream session is gone; what waited for it has been answered."""


class Send(msgspec.Struct, frozen=True, gc=False):
    """For the wire to the server."""

    message: Request | Notification | Response


Up = Asked | Told | Replied | Withdrawn | Left
Down = Answered | Noted | Questioned | Ended | Lost
Event = Up | Down


def party_of(event: Down) -> Party | None:
    """Whose it is, as far as that is known."""
    match event:
        case Answered(exchange, _) | Ended(exchange):
            return exchange.party
        case Noted(party, _, _):
            return party
        case Questioned(question, _):
            return question.party
        case Lost():
            return None


def refusal(question: Question, code: int, why: str) -> Replied:
    """The answer to a server's request that no client will give."""
    data = b'{"origin":"bridge","reason":"undeliverable"}'
    return Replied(question, error(question.id, code, why, data))
