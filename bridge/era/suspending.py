"""How a call waits for its client: what a legacy server asks becomes `input_required`, and back.

Answers 2026-07-28 "Multi Round-Trip Requests" for servers that ask by requests of their own. The
server's request stays open while its client is away, so nothing is ever done twice. Decides what
goes out together, what a returning client gets, and what stands for answers that never come; not
whose a question is, nor what a final answer looks like.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Generic, Protocol

from msgspec import UNSET

from bridge.core.events import Answered, Event, Exchange, Noted, Question, Replied
from bridge.core.layer import Clock, Layer
from bridge.core.message import INVALID_PARAMS, Id, Request, Response, error, local_error, result
from bridge.core.splice import joined, members, quote
from bridge.era.calls import Board, Call, Move, Open
from bridge.era.capabilities import Capabilities
from bridge.era.envelope import SERVER_INFO, Envelope
from bridge.era.logs import reaches
from bridge.era.opened import Opened
from bridge.era.progress import under
from bridge.era.questions import action, answer, entry, fits, given_up, missing, refused, related_task
from bridge.era.state import Kind
from bridge.era.suspend import Calls, Elsewhere, H, Slot, elsewhere, lost
from bridge.era.terms import Terms
from bridge.era.visits import MOST_ROUNDS, Visits

MOST_OPEN: Final = 100
"""Questions of one call at once; a server that asks more gets no answer to them."""

Events = Iterable[Event]
Answers = Mapping[str, bytes]
"""What a client answered, by the keys of open questions."""


class Course(Protocol):
    """How a call goes on."""

    def send(self, call: Call) -> Events:
        """Ask the server, for the first time or again."""

    def deliver(self, call: Call, response: Response) -> Events:
        """Give the client that is there what the server answered."""

    def conclude(self, call: Call, response: Response) -> Events:
        """Give the client that is there a final answer as it is, under its own id; the call is over."""

    def stop(self, call: Call) -> Events:
        """Cancel what the server is at; the call is over."""


class Suspending(Generic[H]):
    """The suspended calls of one upstream session. `home` is told to who looks for them."""

    def __init__(
        self,
        course: Course,
        board: Board,
        opened: Opened,
        calls: Calls[H],
        clock: Clock,
        layer: Layer,
        terms: Terms,
        home: H,
    ) -> None:
        self._course, self._board, self._opened, self._calls = course, board, opened, calls
        self._clock, self._layer, self._terms, self._home = clock, layer, terms, home
        self._asked: dict[Id, Call] = {}
        """Whose client has been, or is to be, asked each open question."""
        self._slots: dict[Call, Slot[H]] = {}
        self._by_slot: dict[str, Call] = {}
        self._visited: dict[Call, str] = {}
        """Calls that the server ended by an error, with its message, until their clients have seen to it."""

    # The server asks

    def take(self, call: Call, question: Question, asked: Request | Open, *, along: bool = False) -> Events:
        """Have the client of this call asked."""
        params = b"" if asked.params is UNSET else bytes(asked.params)
        if not call.capabilities.covers(asked.method, params):
            return (self._refuse(call, Open(question, asked.method, asked.params)),)
        if len(call.open) >= MOST_OPEN:
            return (Replied(question, given_up(question, related_task(asked.params))),)
        call.ask(Open(question, asked.method, asked.params, along))
        self._asked[question.party_id] = call
        self._gather(call)
        return ()

    def _refuse(self, call: Call, one: Open) -> Replied:
        assert one.question is not None
        params = b"" if one.params is UNSET else bytes(one.params)
        call.refused.append(call.capabilities.lacking(one.method, params))
        return Replied(one.question, refused(one.question))

    def _gather(self, call: Call) -> None:
        """Wait a moment for what the server asks besides."""
        call.move(Move.QUESTION)
        if call.timer is None:
            call.timer = self._clock.after(self._terms.coalesce, self._layer, lambda: self._suspend(call))

    def hurry(self, call: Call) -> None:
        """Ask without waiting for more: the server's own answer may come sooner than that."""
        if call.timer is not None:
            call.timer.cancel()
            call.timer = self._clock.after(0.0, self._layer, lambda: self._suspend(call))

    def withdrawn(self, question: Id) -> None:
        """The server needs no answer any more; nothing if it is no open question of a call."""
        call = self._asked.pop(question, None)
        if call is None:
            return
        for key, one in list(call.open.items()):
            if one.question is not None and one.question.party_id == question:
                self._close(call, key)
        self._settle(call)

    def _close(self, call: Call, key: str) -> Open:
        one = call.open.pop(key)
        if one.question is not None:
            self._asked.pop(one.question.party_id, None)
        return one

    @staticmethod
    def _settle(call: Call) -> None:
        if not call.open:
            call.move(Move.SETTLED)

    def guessed(self, call: Call) -> list[Open]:
        """Take back the questions of which nothing but their time said that they are of this call."""
        taken = [
            self._close(call, key)
            for key, one in list(call.open.items())
            if one.question is not None and one.question.exchange is None and not one.along
        ]
        if taken:
            self._settle(call)
        return taken

    def give_up(self, call: Call, *, own: bool = False) -> Events:
        """Answer the server's open questions in the place of the client; with `own` the call's own only."""
        closed = [self._close(call, key) for key, one in list(call.open.items()) if not (own and one.along)]
        if closed:
            self._settle(call)
        return [
            Replied(one.question, given_up(one.question, related_task(one.params)))
            for one in closed
            if one.question is not None
        ]

    def visit(self, call: Call, wanted: Visits) -> Events:
        """The server's request is over; have the client send its user to these pages, then ask again."""
        call.visits += 1
        if call.visits > MOST_ROUNDS:
            text = f"The server asked {MOST_ROUNDS} times to visit something: {wanted.message}"
            return self._course.conclude(call, local_error(None, text, "too_many_rounds"))
        for page in wanted.pages:
            call.ask(Open(None, "elicitation/create", page))
        self._visited[call] = wanted.message
        return self._ask_to_visit(call)

    def _ask_to_visit(self, call: Call) -> Events:
        pages = [bytes(one.params) for one in call.open.values() if one.params is not UNSET]
        lacking = [
            call.capabilities.lacking("elicitation/create", page)
            for page in pages
            if not call.capabilities.covers("elicitation/create", page)
        ]
        if lacking:
            return self._course.conclude(call, missing(lacking))
        return self._suspend(call)

    # The client is told, and away

    def _suspend(self, call: Call) -> Events:
        seconds = min(self._terms.suspended, call.started + self._terms.call - self._clock.now())
        if seconds <= 0 or not self._calls.room(call.subject):
            return self._crowded(call)
        call.move(Move.AWAY)
        slot = self._slot(call)
        kind = Kind.URL if call.upstream is None else Kind.SUSPEND
        token = self._calls.suspend(slot, call.asked, kind, seconds)
        call.timer = self._clock.after(seconds, self._layer, lambda: self._expire(call))
        exchange = self._board.detach(call)
        return (Answered(exchange, result(exchange.id, self._input_required(call, token))),)

    def _crowded(self, call: Call) -> Events:
        if call.upstream is None:
            text = "Too many calls wait for their clients"
            return self._course.conclude(call, local_error(None, text, "too_many_suspended"))
        return self.give_up(call)

    def _slot(self, call: Call) -> Slot[H]:
        if call not in self._slots:
            slot = self._slots[call] = self._calls.open(call.subject, self._home)
            self._by_slot[slot.id] = call
        return self._slots[call]

    def _input_required(self, call: Call, token: str) -> bytes:
        entries = joined((key, entry(one.method, one.params)) for key, one in call.open.items())
        return joined(
            (
                ("resultType", b'"input_required"'),
                ("inputRequests", entries),
                ("requestState", quote(token)),
                ("_meta", joined([(SERVER_INFO, bytes(self._opened.server))])),
            )
        )

    def _expire(self, call: Call) -> Events:
        """Nobody came back: first the call is cancelled, so that its server needs no answers."""
        return (*self._course.stop(call),)

    # The client is back

    def back(self, exchange: Exchange, asked: Request, envelope: Envelope) -> Events | None:
        """Go on with the call that this request comes back to; None if it is one of its own."""
        slot = self._calls.returned(asked, exchange.party.subject)
        match slot:
            case None:
                return None
            case Elsewhere():
                return (Answered(exchange, elsewhere(asked)),)
            case Response():
                return (Answered(exchange, slot),)
        call = self._by_slot.get(slot.id)
        if call is None:
            return (Answered(exchange, lost(asked)),)  # another upstream session's
        answers = _answers(call, asked)
        if isinstance(answers, Response):
            return (Answered(exchange, answers),)
        self._calls.resume(slot)
        call.move(Move.RETURN)
        self._board.attach(call, exchange, asked, envelope)
        return (*self._caught_up(call, exchange), *self._go_on(call, answers))

    def _caught_up(self, call: Call, exchange: Exchange) -> list[Event]:
        """What a client that was away gets first."""
        notes = [note for note in call.logs if reaches(note, call.envelope.level)]
        if call.folded is not None and exchange.token is not UNSET:
            notes.insert(0, under(call.folded, exchange.token))
        call.folded = None
        call.logs.clear()
        return [Noted(exchange.party, exchange, note) for note in notes]

    def _go_on(self, call: Call, answers: Answers) -> Events:
        if call.kept is not None:
            response, call.kept = call.kept, None
            said = [self._answer(call, key, value) for key, value in answers.items()]
            return (*said, *self.give_up(call), *self._course.deliver(call, response))
        if call in self._visited:
            return self._visited_by(call, answers)
        events = [self._answer(call, key, value) for key, value in answers.items()]
        events += self._refuse_uncovered(call)
        if call.open and not answers:
            return (*events, *self._suspend(call))
        if call.open:
            self._gather(call)
        return events

    def _answer(self, call: Call, key: str, value: bytes) -> Event:
        one = self._close(call, key)
        assert one.question is not None
        task = related_task(one.params)
        return Replied(one.question, answer(one.question, value, self._opened.revision, task))

    def _refuse_uncovered(self, call: Call) -> list[Event]:
        """A client may come back with less than it had."""
        uncovered = [key for key, one in call.open.items() if not _covered(call.capabilities, one)]
        return [self._refuse(call, self._close(call, key)) for key in uncovered]

    def _visited_by(self, call: Call, answers: Answers) -> Events:
        if any(action(value) != "accept" for value in answers.values()):
            return self._course.conclude(call, _declined(call.asked.method, self._visited[call]))
        for key in answers:
            self._close(call, key)
        if call.open:
            return self._ask_to_visit(call)
        del self._visited[call]
        return self._course.send(call)

    # The call is over

    def end(self, call: Call, *, lost: bool = False) -> None:
        """No state of it works any more."""
        for key in list(call.open):
            self._close(call, key)
        self._visited.pop(call, None)
        slot = self._slots.pop(call, None)
        if slot is not None:
            del self._by_slot[slot.id]
            if lost:
                self._calls.lose(slot)
            else:
                self._calls.end(slot)


def _covered(capabilities: Capabilities, one: Open) -> bool:
    return capabilities.covers(one.method, b"" if one.params is UNSET else bytes(one.params))


def _answers(call: Call, asked: Request) -> Answers | Response:
    """The answers to open questions, or the refusal if their shape is another."""
    parts = {} if asked.params is UNSET else members(asked.params)
    try:
        given = members(parts.get("inputResponses", b"{}"))
    except ValueError:
        return _misshapen(asked, "inputResponses is no object")
    answers = {key: bytes(value) for key, value in given.items() if key in call.open}
    for key, value in answers.items():
        if not fits(call.open[key].method, value):
            return _misshapen(asked, f"inputResponses.{key} is no answer to {call.open[key].method}")
    return answers


def _misshapen(asked: Request, why: str) -> Response:
    return local_error(asked.id, f"Invalid params: {why}", "invalid_input_responses", INVALID_PARAMS)


def _declined(method: str, message: str) -> Response:
    """What the server's error comes to when the user will not visit what it asked for."""
    if method != "tools/call":
        return error(None, -32603, message)
    content = b'[{"type":"text","text":%b}]' % quote(message)
    return result("", b'{"content":%b,"isError":true}' % content)
