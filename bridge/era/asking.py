"""What a modern server wants to know, put to a legacy client as requests of its own.

Decides which of the entries of `inputRequests` (2026-07-28, "Multi Round-Trip Requests") the client
is asked, in which words, and what stands for an answer that does not come. Knows neither the rounds
of a call nor its tasks: whoever asks gets either all answers or the reason why there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from bridge.core.correlate import CANCELLED
from bridge.core.events import CAPABILITY, Event, Exchange, Noted, Question, Questioned
from bridge.core.layer import Clock, Layer, Timer
from bridge.core.message import METHOD_NOT_FOUND, Response, error, local_error, notification, request
from bridge.core.splice import joined, members, quote, replaced
from bridge.era.capabilities import Capabilities
from bridge.era.downgrade import form
from bridge.era.terms import Terms

ELICIT: Final = "elicitation/create"
COMPLETE: Final = "notifications/elicitation/complete"
_CANCEL: Final = b'{"action":"cancel"}'
"""What an elicitation comes to that nobody answered."""


class Entry(msgspec.Struct, frozen=True):
    """One of the `inputRequests`."""

    key: str
    method: str
    params: bytes | None = None

    @property
    def by_url(self) -> bool:
        return self.method == ELICIT and _text(self.params, "mode") == "url"


def entries(requests: bytes) -> list[Entry]:
    """The entries of an `inputRequests`, in order. Raises ValueError for what a client cannot be asked."""
    return [_entry(key, bytes(value)) for key, value in members(requests).items()]


def _entry(key: str, text: bytes) -> Entry:
    method = _text(text, "method")
    if method not in CAPABILITY:
        raise ValueError(f"it asks for {method or 'nothing'}")
    params = members(text).get("params")
    if params is not None:
        members(params)
    return Entry(key, method, None if params is None else bytes(params))


class Refused(msgspec.Struct, frozen=True):
    """The client will not say it; `error` is the JSON-RPC error that it gave, or that stands for it."""

    error: bytes


Answers = Mapping[str, bytes]
Done = Callable[[Answers | Refused], Iterable[Event]]


class Asking:
    """What a client is asked during one of its requests.

    `revision` is the one it negotiated, `declared` what the server was told that it can do, and
    `mint` gives ids that are used nowhere else on its hop.
    """

    def __init__(
        self,
        exchange: Exchange,
        clock: Clock,
        layer: Layer,
        terms: Terms,
        *,
        revision: str,
        declared: Capabilities,
        mint: Callable[[], str],
    ) -> None:
        self._exchange = exchange
        self._clock, self._layer, self._terms = clock, layer, terms
        self._revision, self._declared, self._mint = revision, declared, mint
        self._open: dict[Question, Entry] = {}
        self._timers: dict[Question, Timer] = {}
        self._urls: dict[Question, str] = {}
        self._visited: list[str] = []
        """The ids of what the client was sent to elsewhere, and accepted."""
        self._queue: list[Entry] = []
        self._order: Sequence[str] = ()
        self._found: dict[str, bytes] = {}
        self._done: Done | None = None

    def put(self, wanted: Sequence[Entry], done: Done) -> Iterable[Event]:
        """Ask these, and let `done` say what becomes of the answers; only when nothing is asked yet."""
        self._order, self._found, self._done = [entry.key for entry in wanted], {}, done
        self._queue = []
        for entry in wanted:
            shown = self._shown(entry)
            if isinstance(shown, Refused):
                return self._end(shown)
            if shown is None:
                self._found[entry.key] = _CANCEL
            else:
                self._queue.append(shown)
        return self._next()

    def _shown(self, entry: Entry) -> Entry | Refused | None:
        """The entry in the client's own words; None for an elicitation that it cannot be asked."""
        covered = self._declared.covers(entry.method, entry.params or b"{}")
        if entry.method != ELICIT:
            return entry if covered else Refused(_undeclared(entry.method))
        if not covered or entry.params is None:
            return None
        if entry.by_url:
            return entry
        params = form(entry.params, self._revision)
        return None if params is None else Entry(entry.key, entry.method, params)

    def _next(self) -> Iterable[Event]:
        """Ask what can be asked now; or end, if nothing is left to ask."""
        count = len(self._queue) if self._terms.parallel else 1
        now, self._queue = self._queue[:count], self._queue[count:]
        if now:
            return self._asked([self._ask(entry) for entry in now])
        return self._end({key: self._found[key] for key in self._order})

    def _ask(self, entry: Entry) -> Questioned:
        own_id, params, url = self._mint(), entry.params, ""
        if entry.by_url and params is not None:
            url = self._mint()
            params = replaced(params, ("elicitationId",), quote(url))
        asked = request(own_id, entry.method, params)
        question = Question(asked)
        question.party, question.exchange = self._exchange.party, self._exchange
        if url:
            self._urls[question] = url
        self._open[question] = entry
        self._timers[question] = self._clock.after(
            self._terms.question, self._layer, lambda: self._late(question)
        )
        return Questioned(question, asked)

    def _asked(self, events: Sequence[Questioned]) -> Iterator[Event]:
        """Lazily: a port that refuses the first on the spot may have ended the call before the second."""
        for event in events:
            if event.question in self._open:
                yield event

    def replied(self, question: Question, response: Response) -> Iterable[Event]:
        """What becomes of a client's answer; nothing, if it is not waited for."""
        entry = self._close(question)
        if entry is None:
            return ()
        if response.error is not UNSET:
            return self._failed(entry, bytes(response.error))
        try:
            value = _answer(response)
        except ValueError:
            text = f"The client's answer to {entry.method} is no object"
            return self._failed(entry, _told(local_error(None, text, "invalid_client_answer")))
        if question in self._urls and _text(value, "action") == "accept":
            self._visited.append(self._urls[question])
        return self._answered(entry, value)

    def _answered(self, entry: Entry, value: bytes) -> Iterable[Event]:
        self._found[entry.key] = value
        return () if self._open else self._next()

    def _failed(self, entry: Entry, why: bytes) -> Iterable[Event]:
        if entry.method == ELICIT:
            return self._answered(entry, _CANCEL)
        done = self._done
        taken_back = self.withdraw()
        return taken_back if done is None else [*taken_back, *done(Refused(why))]

    def _end(self, outcome: Answers | Refused) -> Iterable[Event]:
        done, self._done = self._done, None
        return () if done is None else done(outcome)

    def _late(self, question: Question) -> Iterable[Event]:
        taken_back = self._taken_back(question)
        entry = self._close(question)
        assert entry is not None  # its timer ends with it
        why = local_error(None, f"The client did not answer {entry.method} in time", "client_timeout")
        return (*taken_back, *self._failed(entry, _told(why)))

    def withdraw(self) -> list[Event]:
        """Ask no more; whoever asked hears nothing."""
        self._queue, self._done = [], None
        taken_back = [event for question in self._open for event in self._taken_back(question)]
        for question in list(self._open):
            self._close(question)
        return taken_back

    def visited(self) -> list[Event]:
        """The call is over: what tells the client so that went elsewhere for its sake."""
        ids, self._visited = self._visited, []
        told = [notification(COMPLETE, b'{"elicitationId":%b}' % quote(one)) for one in ids]
        return [Noted(self._exchange.party, self._exchange, note) for note in told]

    def _taken_back(self, question: Question) -> list[Event]:
        """Tell the client not to answer any more, if it was asked at all."""
        party = self._exchange.party
        if party.questions.get(question.party_id) is not question:
            return []
        note = notification(CANCELLED, b'{"requestId":%b}' % quote(question.party_id))
        return [Noted(party, self._exchange, note)]

    def _close(self, question: Question) -> Entry | None:
        entry = self._open.pop(question, None)
        if entry is not None:
            self._timers.pop(question).cancel()
            self._exchange.party.forget(question)
        return entry


def _answer(response: Response) -> bytes:
    """A client's result without what is its own hop's. Raises ValueError if it is no object."""
    assert response.result is not UNSET
    parts = members(response.result)
    if parts.pop("_meta", None) is None:
        return bytes(response.result)
    return joined(parts.items())


def _undeclared(method: str) -> bytes:
    return _told(error(None, METHOD_NOT_FOUND, f"The client did not declare what {method} takes"))


def _told(response: Response) -> bytes:
    assert response.error is not UNSET
    return bytes(response.error)


def _text(text: bytes | None, name: str) -> str | None:
    """The string member of this name, if there is one."""
    try:
        return None if text is None else msgspec.json.decode(members(text)[name], type=str)
    except (ValueError, KeyError, msgspec.DecodeError):
        return None
