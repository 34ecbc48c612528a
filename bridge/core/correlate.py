"""The upstream hop: which id and token belong to whom there, and what a server's message answers.

Holds the rules of ids (specification: "Requests", "Responses"), progress tokens
("Progress"), tasks' tokens ("Tasks" of 2025-11-25) and cancellation ("Cancellation") for
one upstream session, whoever shares it. It does not know streams, eras or transports, and
never looks into a payload.

Two ways of minting (docs/architecture.md, "Ids"): kept ids pass as long as they are free
on this hop; fresh ones are integers never used before. Either way an id and a token stay
taken until the server has answered, cancelled or not, so that what comes late is nobody's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec import UNSET, UnsetType

from bridge.core.events import (
    Answered,
    Asked,
    Down,
    Ended,
    Exchange,
    Left,
    Noted,
    Party,
    Question,
    Questioned,
    Replied,
    Send,
    Told,
    Up,
    Withdrawn,
)
from bridge.core.message import (
    Id,
    Message,
    Notification,
    Request,
    Response,
    Task,
    error,
    notification,
    params_of,
    task_of,
)
from bridge.core.splice import quote, replaced

SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
LISTEN: Final = "subscriptions/listen"
CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"
TASK_STATUS: Final = "notifications/tasks/status"
_SESSION_WIDE: Final = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
        "notifications/resources/updated",
    }
)
"""Nobody's in particular, whatever stream they come on."""
_TELLS_TASK: Final = frozenset({"tasks/get", "tasks/cancel"})
_ENDED_TASK: Final = frozenset({"completed", "failed", "cancelled"})

MOST_UNANSWERED: Final = 10_000
"""Bound of what is remembered per hop for answers that may never come; the oldest go first."""


class Correlation:
    """The tables of one upstream session."""

    def __init__(self, *, fresh: bool) -> None:
        self._fresh = fresh
        self._serial = 0
        self._open: dict[Id, Exchange] = {}
        self._tokens: dict[Id, Exchange] = {}
        self._spent: dict[Id, None] = {}
        """Tokens that a client used before: progress for those may still be on its way (ID-07)."""
        self._tasks: dict[str, Exchange] = {}
        self._questions: dict[Question, None] = {}
        self._cancelled: dict[Id, None] = {}
        self._latest: Exchange | None = None
        """The last thing that was sent, if that was a request."""

    def settle(self, *, fresh: bool) -> None:
        """Change the rule of minting, before any client's request was sent."""
        self._fresh = fresh

    # Client to server

    def up(self, event: Up) -> Sequence[Send]:
        sends = self._carry(event)
        if sends:
            self._latest = event.exchange if isinstance(event, Asked) else None
        return sends

    def _carry(self, event: Up) -> Sequence[Send]:
        match event:
            case Asked(exchange, request):
                return (Send(self._ask(exchange, request)),)
            case Told(_, told):
                return (Send(told),)
            case Replied(question, response):
                return self._reply(question, response)
            case Withdrawn(exchange, told):
                return self._withdraw(exchange, told)
            case Left(party):
                return self._leave(party)

    def _ask(self, exchange: Exchange, request: Request) -> Request:
        if self._fresh or exchange.id in self._open:
            exchange.hop_id = self._mint(self._open)
            request = request.with_id(exchange.hop_id)
        self._open[exchange.hop_id] = exchange
        exchange.party.exchanges[exchange.id] = exchange
        if exchange.token is not UNSET:
            request = self._track(exchange, exchange.token, request)
        return request

    def _track(self, exchange: Exchange, token: Id, request: Request) -> Request:
        if self._fresh or token in self._tokens or token in self._spent:
            exchange.hop_token = self._mint(self._tokens)
            assert request.params is not UNSET
            params = replaced(request.params, ("_meta", "progressToken"), quote(exchange.hop_token))
            request = request.with_params(params)
        if exchange.hop_token is not UNSET:
            self._tokens[exchange.hop_token] = exchange
        return request

    def _mint(self, taken: Mapping[Id, object]) -> Id:
        """An id that this hop has not seen: counting up, or out of a client's way where ids are kept."""
        self._serial += 1
        if self._fresh:
            return self._serial
        minted = f"mb-{self._serial}"
        return self._mint(taken) if minted in taken else minted

    def _reply(self, question: Question, response: Response) -> Sequence[Send]:
        if question not in self._questions:
            return ()  # withdrawn by the server meanwhile
        self.forget(question)
        return (Send(response),)

    def _withdraw(self, exchange: Exchange, told: Notification | None) -> Sequence[Send]:
        if exchange.cancelled or self._open.get(exchange.hop_id) is not exchange:
            return ()
        exchange.cancelled = True
        exchange.party.exchanges.pop(exchange.id, None)
        self._remember(exchange.hop_id)
        if exchange.method == "initialize":
            return ()  # a client may not cancel it
        if told is None:
            return (Send(notification(CANCELLED, b'{"requestId":%b}' % quote(exchange.hop_id))),)
        if exchange.hop_id is exchange.id or told.params is UNSET:
            return (Send(told),)
        return (Send(told.with_params(replaced(told.params, ("requestId",), quote(exchange.hop_id)))),)

    def _remember(self, hop_id: Id) -> None:
        self._cancelled[hop_id] = None
        if len(self._cancelled) > MOST_UNANSWERED:
            self._close(next(iter(self._cancelled)))

    def _leave(self, party: Party) -> Sequence[Send]:
        for task in [task for task, made in self._tasks.items() if made.party is party]:
            self._untrack(self._tasks.pop(task))
        withdrawn = [self._withdraw(one, None) for one in list(party.exchanges.values())]
        refused = [self._reply(one, _gone(one)) for one in list(party.questions.values())]
        return [send for sends in (*withdrawn, *refused) for send in sends]

    # Server to client

    def received(self, message: Message, on: Id | None = None) -> Iterable[Down]:
        """What becomes of a message; `on` is the id of the request whose own stream carried it."""
        match message:
            case Response():
                return self._answered(message)
            case Notification():
                return self._noted(message, on)
            case Request():
                return self._questioned(message, on)

    def _answered(self, response: Response) -> Iterable[Down]:
        exchange = self._close(response.id) if response.id is not None else self._sole()
        if exchange is None:
            return ()
        if exchange.task:
            self._outlive(exchange, task_of(response.result, created=True))
        elif self._tasks and exchange.method in _TELLS_TASK:
            self._follow(task_of(response.result))
        return (Answered(exchange, self._restored(exchange, response)),)

    def _close(self, hop_id: Id) -> Exchange | None:
        """Take an exchange out of every table; None if nobody waits for its answer."""
        exchange = self._open.pop(hop_id, None)
        if exchange is None:
            return None
        self._untrack(exchange)
        if exchange.cancelled:
            self._cancelled.pop(hop_id, None)
            return None
        exchange.party.exchanges.pop(exchange.id, None)
        return exchange

    def _untrack(self, exchange: Exchange) -> None:
        if exchange.hop_token is not UNSET and self._tokens.get(exchange.hop_token) is exchange:
            del self._tokens[exchange.hop_token]
            if exchange.hop_token is exchange.token:
                self._spent[exchange.hop_token] = None
                if len(self._spent) > MOST_UNANSWERED:
                    del self._spent[next(iter(self._spent))]

    def _sole(self) -> Exchange | None:
        """Whose an error without an id is: the only request in flight's, if nothing was sent after it.

        Some servers answer a client's answer or notification with such an error; a call that
        runs meanwhile must not end by that.
        """
        latest = self._latest
        if latest is None or len(self._open) != 1 or self._open.get(latest.hop_id) is not latest:
            return None
        return self._close(latest.hop_id)

    @staticmethod
    def _restored(exchange: Exchange, response: Response) -> Response:
        """The answer under the client's own id; untouched where that travelled as it was."""
        if exchange.hop_id is exchange.id and response.id is not None:
            return response
        if exchange.method == LISTEN and response.result is not UNSET:
            own = quote(exchange.id)
            with suppress(ValueError):  # a result or `_meta` that is no object names no subscription
                response = response.with_result(replaced(response.result, ("_meta", SUBSCRIPTION), own))
        return response.with_id(exchange.id)

    def _noted(self, note: Notification, on: Id | None) -> Iterable[Down]:
        params = params_of(note)
        if note.method == PROGRESS:
            return self._progress(note, params.token)
        if note.method == CANCELLED:
            return self._torn_down(note, params.request_id)
        if note.method == TASK_STATUS:
            exchange = self._follow(task_of(note.params))
            return (Noted(exchange.party if exchange else None, None, note),)
        if params.meta is not UNSET and params.meta.subscription is not UNSET:
            return self._subscribed(note, params.meta.subscription)
        exchange = None if note.method in _SESSION_WIDE else self._carrier(on)
        if exchange is None and note.method == "notifications/message":
            exchange = self._logged()
        return (Noted(exchange.party if exchange else None, exchange, note),)

    def _carrier(self, on: Id | None) -> Exchange | None:
        """The request on whose own stream something came, if its client still waits."""
        return None if on is None else self._waiting(self._open.get(on))

    def _waiting(self, exchange: Exchange | None) -> Exchange | None:
        """The same, if its client still waits: a stream that has ended carries nothing."""
        if exchange is None or exchange.cancelled or self._open.get(exchange.hop_id) is not exchange:
            return None
        return exchange

    def _progress(self, note: Notification, token: Id | UnsetType) -> Iterable[Down]:
        exchange = self._tokens.get(token) if token is not UNSET else None
        if exchange is None or exchange.token is UNSET or exchange.cancelled:
            return ()
        if exchange.hop_token is not exchange.token and note.params is not UNSET:
            note = note.with_params(replaced(note.params, ("progressToken",), quote(exchange.token)))
        waiting = self._open.get(exchange.hop_id) is exchange
        return (Noted(exchange.party, exchange if waiting else None, note),)

    def _outlive(self, exchange: Exchange, task: Task) -> None:
        """Keep the token of a request that became a task, until the task ends (CP-10)."""
        if not task.id or task.status in _ENDED_TASK:
            return
        self._tasks[task.id] = exchange
        if exchange.hop_token is not UNSET:
            self._tokens[exchange.hop_token] = exchange
        if len(self._tasks) > MOST_UNANSWERED:
            self._untrack(self._tasks.pop(next(iter(self._tasks))))

    def _follow(self, task: Task) -> Exchange | None:
        """What made this task, if it is known; a task that ended is known no longer."""
        exchange = self._tasks.get(task.id)
        if exchange is not None and task.status in _ENDED_TASK:
            del self._tasks[task.id]
            self._untrack(exchange)
        return exchange

    def _torn_down(self, note: Notification, request_id: Id | UnsetType) -> Iterable[Down]:
        """The server withdraws a request of its own, or ends a subscription (modern stdio)."""
        if request_id is UNSET:
            return ()
        question = next((one for one in reversed(self._questions) if one.id == request_id), None)
        if question is not None:
            self.forget(question)
            if question.party_id is not question.id and note.params is not UNSET:
                note = note.with_params(replaced(note.params, ("requestId",), quote(question.party_id)))
            return (Noted(question.party, self._waiting(question.exchange), note),) if question.party else ()
        if request_id not in self._open or self._open[request_id].method != LISTEN:
            return ()
        exchange = self._close(request_id)
        return () if exchange is None else (Ended(exchange),)

    def _subscribed(self, note: Notification, subscription: Id) -> Iterable[Down]:
        exchange = self._open.get(subscription)
        if exchange is None or exchange.cancelled:
            return ()
        if exchange.hop_id is not exchange.id and note.params is not UNSET:
            note = note.with_params(replaced(note.params, ("_meta", SUBSCRIPTION), quote(exchange.id)))
        return (Noted(exchange.party, exchange, note),)

    def _logged(self) -> Exchange | None:
        """Which request a log message belongs to: the newest in flight that asked for them.

        Nobody's where requests of several subjects are in flight, any of which it may be about.
        """
        waiting = [exchange for exchange in self._open.values() if not exchange.cancelled]
        if len({exchange.party.subject for exchange in waiting}) > 1:
            return None
        return next((exchange for exchange in reversed(waiting) if exchange.log), None)

    def _questioned(self, request: Request, on: Id | None) -> Iterable[Down]:
        if len(self._questions) >= MOST_UNANSWERED:
            self.forget(next(iter(self._questions)))
        question = Question(request)
        question.exchange = self._carrier(on)
        self._questions[question] = None
        return (Questioned(question, request),)

    def forget(self, question: Question) -> None:
        """The server's request gets no answer, not even an error (a modern server may not ask)."""
        self._questions.pop(question, None)
        if question.party is not None:
            question.party.forget(question)

    def failed(self, hop_id: Id) -> Exchange | None:
        """Take out the exchange whose answer came but cannot be read; None if it is nobody's."""
        return self._close(hop_id)

    def lost(self) -> list[Exchange]:
        """The server is gone: empty the tables; what still waited, oldest first."""
        waiting = [exchange for exchange in self._open.values() if not exchange.cancelled]
        for exchange in waiting:
            exchange.party.exchanges.pop(exchange.id, None)
        for question in list(self._questions):
            self.forget(question)
        for table in (self._open, self._tokens, self._tasks, self._cancelled):
            table.clear()
        self._latest = None
        return waiting


def _gone(question: Question) -> Response:
    return error(question.id, -32603, "The client is gone", b'{"origin":"bridge","reason":"client_gone"}')
