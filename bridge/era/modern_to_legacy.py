"""Modern clients in front of one upstream session of a legacy server (2026-07-28 and 2025-11-25).

The handshake is over when this layer comes in. Decides what a request becomes: answered here from
what the handshake settled, refused, or sent on as a request of the bridge's own (`era.running`), so
that ids and tokens of clients and server never meet. Knows neither transports nor other sessions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic

from msgspec import UNSET

from bridge.core.correlate import CANCELLED, LISTEN, TASK_STATUS
from bridge.core.events import (
    Answered,
    Asked,
    Down,
    Ended,
    Event,
    Exchange,
    Left,
    Lost,
    Noted,
    Party,
    Questioned,
    Replied,
    Told,
    Up,
    Withdrawn,
)
from bridge.core.layer import Clock
from bridge.core.message import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Notification,
    Request,
    local_error,
    params_of,
    result,
)
from bridge.core.sharing import LEVELS
from bridge.era.capabilities import Capabilities
from bridge.era.envelope import Envelope
from bridge.era.listen import HEARD, Subscriptions
from bridge.era.mapped_tasks import MappedTasks
from bridge.era.opened import Opened
from bridge.era.own import Own
from bridge.era.results import discovered
from bridge.era.running import Running
from bridge.era.suspend import Calls, H
from bridge.era.task_ids import METHODS, TaskIds
from bridge.era.terms import Tasks, Terms

Events = Iterable[Event]

_NEEDS: Final = {
    "tools": "tools",
    "prompts": "prompts",
    "resources": "resources",
    "completion": "completions",
}
"""By the first part of a method's name: what a server must have advertised to be asked it."""


class ModernToLegacy(Generic[H]):
    """`opened` is what the handshake settled, `declared` what the bridge said there that clients can do.

    `home` is what `calls` and `tasks` are to name to who looks for what runs here.
    """

    def __init__(
        self,
        opened: Opened,
        declared: Capabilities,
        calls: Calls[H],
        clock: Clock,
        terms: Terms,
        home: H,
        tasks: TaskIds[H] | None = None,
    ) -> None:
        self._opened, self._terms = opened, terms
        self._own = own = Own(Party("bridge"), clock, self)
        self._tasks: MappedTasks[H] | None = None
        if tasks is not None and terms.tasks is Tasks.MAP:
            self._tasks = MappedTasks(own, opened, clock, self, terms, tasks, tasks.enter(home))
        self._running = Running(own, opened, declared, calls, clock, self, terms, home, self._tasks)
        self._subscriptions = Subscriptions(own, opened, clock, self, terms, self._tasks)

    @property
    def busy(self) -> bool:
        """Whether anybody would miss the upstream session: requests, suspended calls, subscriptions."""
        tasks = self._tasks is not None and self._tasks.busy
        return self._running.busy or self._subscriptions.busy or tasks

    # Client to server

    def up(self, event: Up) -> Events:
        match event:
            case Asked(exchange, asked):
                return self._asked(exchange, asked)
            case Withdrawn(exchange):
                return self._withdrawn(exchange)
            case Left(party):
                return self._left(party)
            case Told() | Replied():
                return ()  # nothing that a modern client tells or answers has a place in a legacy session

    def _asked(self, exchange: Exchange, asked: Request) -> Events:
        if asked.method == "server/discover":
            found = discovered(self._opened, tasks=self._tasks is not None)
            return (Answered(exchange, result(asked.id, found)),)
        envelope = Envelope.read(asked.params)
        if envelope.level is not None and envelope.level not in LEVELS:
            text = f"Invalid params: there is no log level {envelope.level}"
            return (Answered(exchange, local_error(asked.id, text, "log_level", INVALID_PARAMS)),)
        if asked.method == LISTEN:
            return self._subscriptions.listen(exchange, asked)
        if asked.method in METHODS and self._tasks is not None:
            return self._tasks.asked(exchange, asked, envelope)
        if asked.method in METHODS or (self._terms.gate and not self._offers(asked.method)):
            text = f"Method not found: the server does not offer {asked.method}"
            return (Answered(exchange, local_error(asked.id, text, "not_offered", METHOD_NOT_FOUND)),)
        return self._running.asked(exchange, asked, envelope)

    def _offers(self, method: str) -> bool:
        kind = _NEEDS.get(method.partition("/")[0])
        return kind is None or self._opened.advertises(kind)

    def _withdrawn(self, exchange: Exchange) -> Events:
        if exchange.method == LISTEN:
            return self._subscriptions.ended(exchange)
        if exchange.method in METHODS:
            return () if self._tasks is None else self._tasks.withdrawn(exchange)
        return self._running.withdrawn(exchange)

    def _left(self, party: Party) -> Events:
        tasks = () if self._tasks is None else self._tasks.left(party)
        return (*self._running.left(party), *self._subscriptions.left(party), *tasks)

    # Server to client

    def down(self, event: Down) -> Events:
        match event:
            case Answered(exchange, response):
                return self._own.answered(exchange, response) or ()
            case Noted(_, exchange, note):
                return self._noted(exchange, note)
            case Questioned(question, asked):
                return self._running.questioned(question, asked)
            case Lost():
                return self._lost()
            case Ended():
                return ()  # only modern servers end a request like this

    def _noted(self, exchange: Exchange | None, note: Notification) -> Events:
        if note.method == "notifications/tools/list_changed":
            self._running.tools_changed()
        if note.method in HEARD:
            return self._subscriptions.noted(note)
        if note.method == TASK_STATUS:
            return () if self._tasks is None else self._tasks.noted(note, self._subscriptions)
        if note.method == CANCELLED:
            return self._taken_back(note)
        return self._running.noted(exchange, note)

    def _taken_back(self, note: Notification) -> Events:
        """The server needs no answer to a question any more."""
        question = params_of(note).request_id
        if question is not UNSET:
            self._running.taken_back(question)
            if self._tasks is not None:
                self._tasks.taken_back(question)
        return ()

    def _lost(self) -> Events:
        self._own.clear()
        tasks = () if self._tasks is None else self._tasks.lost()
        return (*self._running.lost(), *self._subscriptions.lost(), *tasks, Lost())
