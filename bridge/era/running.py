"""The requests of modern clients that one legacy server works at, from the first word to the last.

Decides when a request is sent, in what form, what its client hears meanwhile (progress, log
messages) and in the end. What the server asks its client is the matter of `era.suspending`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Generic

from msgspec import UNSET

from bridge.core.events import Answered, Asked, Event, Exchange, Noted, Party, Question, Replied
from bridge.core.layer import Clock, Layer
from bridge.core.message import Id, Notification, Request, Response, local_error, params_of, result
from bridge.core.splice import members, quote, replaced
from bridge.era import logs
from bridge.era.attribution import Nobody, attributed
from bridge.era.calls import Board, Call, Move, Open
from bridge.era.capabilities import NOTHING, Capabilities
from bridge.era.envelope import Envelope, without_envelope
from bridge.era.mapped_tasks import MappedTasks
from bridge.era.mapped_tasks import declared as knows_tasks
from bridge.era.opened import Opened
from bridge.era.origin import is_own
from bridge.era.own import Done, Own
from bridge.era.parking import Parking, unsolicited
from bridge.era.progress import amount, under
from bridge.era.questions import ROOTS, given_up, missing, refused, related_task, unaskable
from bridge.era.results import completed, failed
from bridge.era.suspend import Calls, H
from bridge.era.suspending import Suspending
from bridge.era.tasks import CALL, LIST, HiddenTasks, Offer, Support, Tools
from bridge.era.terms import Attribution, Terms
from bridge.era.visits import visits

Events = Iterable[Event]


class Running(Generic[H]):
    """All requests that are sent to the server of one upstream session on behalf of clients."""

    def __init__(
        self,
        own: Own,
        opened: Opened,
        declared: Capabilities,
        calls: Calls[H],
        clock: Clock,
        layer: Layer,
        terms: Terms,
        home: H,
        mapped: MappedTasks[H] | None,
    ) -> None:
        self._own, self._opened, self._clock, self._terms = own, opened, clock, terms
        self._mapped = mapped
        self._counts = calls.counts
        self._board = Board()
        self._suspending = Suspending(self, self._board, opened, calls, clock, layer, terms, home)
        self._levels = logs.Levels(own, terms, supported=opened.advertises("logging"))
        self._declared = declared
        self._parking = Parking(clock, layer, terms, self._board)
        self._by_upstream: dict[Exchange, Call] = {}
        offer = Offer.read(opened.capabilities)
        self._tools = Tools(own, offer)
        self._hidden: HiddenTasks[Call] = HiddenTasks(own, offer, self._works_at)
        self._exclusive = terms.attribution is Attribution.EXCLUSIVE and declared != NOTHING
        self._turn: Call | None = None
        self._waiting: deque[Call] = deque()
        """Calls that wait for the one whose turn it is."""

    @property
    def busy(self) -> bool:
        return bool(self._board)

    # The client

    def asked(self, exchange: Exchange, asked: Request, envelope: Envelope) -> Events:
        back = self._suspending.back(exchange, asked, envelope)
        if back is not None:
            level = envelope.level if self._board.of(exchange) else None
            return (*self._levels.before(level, tuple), *back)
        now = self._clock.now()
        call = self._board.new(exchange, asked, envelope, now=now, logs=self._terms.logs)
        if self._exclusive and call.multi_round and not self._take_turn(call):
            return ()
        return self._start(call)

    def _take_turn(self, call: Call) -> bool:
        if self._turn is not None:
            self._waiting.append(call)
            return False
        self._turn = call
        return True

    def _start(self, call: Call) -> Events:
        """Send it when the server is set to its level, and is known to want its tool called so."""
        ready = partial(self.send, call)
        if call.asked.method == CALL:
            ready = partial(self._tools.before, call.name, ready)
        return self._levels.before(call.envelope.level, ready)

    def send(self, call: Call) -> Events:
        """Ask the server; nothing if the call has ended before it came to that."""
        if call.ended:
            return ()
        call.move(Move.SEND)
        sent = self._ask(call, partial(self._answered, call))
        self._works_at(call, sent.exchange)
        return (sent, *self._taken_along(call))

    def _ask(self, call: Call, done: Done) -> Asked:
        support = self._tools.support(call.name) if call.asked.method == CALL else Support.FORBIDDEN
        call.mapped = support is not Support.FORBIDDEN and self._shows_tasks(call)
        if call.mapped or support is Support.REQUIRED:
            return self._hidden.begin(call, _legacy(call), done, wait=not call.mapped)
        return self._own.ask(call.asked.method, _legacy(call), done)

    def _shows_tasks(self, call: Call) -> bool:
        return self._mapped is not None and knows_tasks(call.envelope)

    def _works_at(self, call: Call, exchange: Exchange | None) -> None:
        if call.upstream is not None:
            del self._by_upstream[call.upstream]
        call.upstream = exchange
        if exchange is not None:
            self._by_upstream[exchange] = call

    def _taken_along(self, call: Call) -> Events:
        """What was asked before there was anybody to ask."""

        def covers(asked: Request) -> bool:
            params = b"" if asked.params is UNSET else bytes(asked.params)
            return call.multi_round and call.capabilities.covers(asked.method, params)

        taken = self._parking.claimed(call.subject, covers)
        asked = [
            event
            for one in taken
            for event in self._suspending.take(call, one.question, one.asked, along=True)
        ]
        if taken:
            self._suspending.hurry(call)
        return asked

    def withdrawn(self, exchange: Exchange) -> Events:
        """The client does not wait any more; nothing if it was answered."""
        call = self._board.of(exchange)
        return () if call is None else self.stop(call)

    def left(self, party: Party) -> Events:
        return [event for exchange in self._board.of_party(party) for event in self.withdrawn(exchange)]

    def stop(self, call: Call) -> Events:
        """End it unanswered; first the server is told, so that it does not act on what comes then."""
        ended = (*self._cancel(call), *self._passed_on(call), *self._suspending.give_up(call))
        return (*ended, *self._end(call))

    def _cancel(self, call: Call) -> Events:
        if call.upstream is None:
            return ()
        cancelled = self._hidden.cancel(call)
        return self._own.withdraw(call.upstream) if cancelled is None else cancelled

    # The server answers

    def _answered(self, call: Call, response: Response) -> Events:
        self._works_at(call, None)
        passed_on = self._passed_on(call)
        call.move(Move.RESULT)
        if call.exchange is None:
            call.kept = response
            return passed_on
        return (*passed_on, *self.deliver(call, response))

    def _passed_on(self, call: Call) -> Events:
        """What was asked in the course of a call that has ended; a guess may have put it there.

        It is put to another call that it can be of, or answered if there is none.
        """
        others = [one for one in self._board.working() if one is not call]
        guessed = self._suspending.guessed(call) if others else []
        asked = [event for one in guessed for event in self._asked_again(others, one)]
        return [*asked, *self._suspending.give_up(call, own=call.away)]

    def _asked_again(self, others: list[Call], one: Open) -> Events:
        assert one.question is not None
        found = attributed(others, lambda other: other.multi_round)
        if isinstance(found, Call):
            return self._suspending.take(found, one.question, one)
        return (Replied(one.question, given_up(one.question, related_task(one.params))),)

    def deliver(self, call: Call, response: Response) -> Events:
        wanted = visits(response) if call.multi_round else None
        if wanted is not None:
            return self._suspending.visit(call, wanted)
        return self._became_task(call, response) or self.conclude(call, self._final(call, response))

    def _became_task(self, call: Call, response: Response) -> Events:
        """The task that answers a call; nothing if its answer is another."""
        if self._mapped is None or not call.mapped or call.exchange is None:
            return ()
        exchange = call.exchange
        made = self._mapped.created(exchange, call.capabilities, response)
        return () if made is None else (Answered(exchange, made), *self._end(call))

    def _final(self, call: Call, response: Response) -> Response:
        if call.refused and _is_failure(response):
            return missing(call.refused)
        if response.result is UNSET:
            return failed(call.asked.method, response.error, call.asked.params, self._opened)
        return response

    def conclude(self, call: Call, response: Response) -> Events:
        exchange = call.exchange
        assert exchange is not None
        ended = self._end(call)
        return (Answered(exchange, self._said(exchange, response)), *ended)

    def _said(self, exchange: Exchange, response: Response) -> Response:
        if response.result is UNSET:
            return response.with_id(exchange.id)
        if exchange.method == LIST:
            self._tools.learn(bytes(response.result))
        try:
            value = completed(exchange.method, bytes(response.result), self._opened.server)
        except ValueError:
            text = f"The server's result of {exchange.method} is no object"
            return local_error(exchange.id, text, "invalid_upstream_message")
        return result(exchange.id, value)

    def _end(self, call: Call, *, lost: bool = False) -> Events:
        self._works_at(call, None)
        self._suspending.end(call, lost=lost)
        self._board.end(call)
        return () if call is not self._turn else self._next()

    def _next(self) -> Events:
        self._turn = next((call for call in iter(self._pop, None) if not call.ended), None)
        return () if self._turn is None else self._start(self._turn)

    def _pop(self) -> Call | None:
        return self._waiting.popleft() if self._waiting else None

    # The server asks, and tells

    def questioned(self, question: Question, asked: Request) -> Events:
        if asked.method == "ping":
            return (Replied(question, result(question.id, b"{}")),)
        refusal = unaskable(question, asked)
        if refusal is not None:
            return (Replied(question, refusal),)
        self._own.party.enter(question)
        of_task = None if self._mapped is None else self._mapped.questioned(question, asked)
        if of_task is not None:
            return of_task
        match self._call_of(question, asked):
            case Call() as call:
                return self._suspending.take(call, question, asked)
            case Nobody.THERE:
                return self._unsolicited(question, asked)
            case Nobody.CERTAIN:
                return (unsolicited(question),)

    def _call_of(self, question: Question, asked: Request) -> Call | Nobody:
        carrier = self._carrier(question.exchange) or self._of_task(asked)
        if carrier is not None:
            return carrier if carrier.multi_round else Nobody.CERTAIN
        working = self._board.working()
        found = attributed(working, lambda call: call.multi_round)
        if isinstance(found, Call) and sum(call.multi_round for call in working) > 1:
            self._counts["question attributed among several calls"] += 1
        return found

    def _carrier(self, exchange: Exchange | None) -> Call | None:
        """The call on whose own stream something came."""
        return None if exchange is None else self._by_upstream.get(exchange)

    def _of_task(self, message: Request | Notification) -> Call | None:
        """The call whose task it says to belong to."""
        task = related_task(message.params)
        return None if task is None else self._hidden.call_of(task)

    def _unsolicited(self, question: Question, asked: Request) -> Events:
        if asked.method == ROOTS and self._terms.roots:
            roots = b",".join(b'{"uri":%b}' % quote(uri) for uri in self._terms.roots)
            return (Replied(question, result(question.id, b'{"roots":[%b]}' % roots)),)
        if not self._declared.covers(asked.method, b"" if asked.params is UNSET else bytes(asked.params)):
            return (Replied(question, refused(question)),)
        return self._parking.park(question, asked)

    def noted(self, exchange: Exchange | None, note: Notification) -> Events:
        match note.method:
            case "notifications/progress":
                return self._progressed(note)
            case logs.MESSAGE:
                return self._logged(exchange, note)
            case "notifications/elicitation/complete":
                return ()  # a client that returns with its answers learns the outcome
            case _:
                call = self._carrier(exchange)
                return () if call is None else self._told(call, note)

    @staticmethod
    def _told(call: Call, note: Notification) -> Events:
        exchange = call.exchange
        return () if exchange is None else (Noted(exchange.party, exchange, note),)

    def _progressed(self, note: Notification) -> Events:
        call, now = self._board.numbered(params_of(note).token), amount(note)
        if call is None or now is None or now <= call.progress:
            return ()
        call.progress = now
        if call.exchange is None:
            call.folded = note
            return ()
        token = call.exchange.token
        return () if token is UNSET else self._told(call, under(note, token))

    def _logged(self, exchange: Exchange | None, note: Notification) -> Events:
        call = self._carrier(exchange) or self._of_task(note)
        if call is None:
            found = attributed(self._board.working(), lambda one: one.envelope.level is not None)
            if isinstance(found, Nobody):
                return ()
            call = found
        if call.away:
            call.logs.append(note)
            return ()
        return self._told(call, note) if logs.reaches(note, call.envelope.level) else ()

    def taken_back(self, question: Id) -> None:
        """The server needs no answer any more; nothing if it asked nothing under this id."""
        self._parking.forget(question)
        self._suspending.withdrawn(question)

    def tools_changed(self) -> None:
        self._tools.forget()

    def lost(self) -> Events:
        """The server is gone. What was sent to it has been answered; the rest is told now."""
        self._parking.clear()
        self._hidden.lost()
        self._tools.lost()
        self._waiting.clear()
        self._turn = None
        told: list[Event] = []
        for call in self._board:
            if call.exchange is not None:
                gone = local_error(call.exchange.id, "The server is gone", "upstream_lost")
                told.append(Answered(call.exchange, gone))
            self._end(call, lost=True)
        return told


def _legacy(call: Call) -> bytes | None:
    """What the server gets of a request's params; progress is told under the number of the call."""
    asked = call.asked
    drop = ("task", "inputResponses", "requestState") if call.multi_round else ()
    params = None if asked.params is UNSET else without_envelope(asked.params, drop=drop)
    if call.exchange is None or call.exchange.token is UNSET:
        return params
    return replaced(params or b"{}", ("_meta", "progressToken"), quote(call.serial))


def _is_failure(response: Response) -> bool:
    """Whether the server let a call fail, in either way that there is."""
    if response.result is UNSET:
        return not is_own(response)
    try:
        return bytes(members(response.result).get("isError", b"")) == b"true"
    except ValueError:
        return False
