"""One request of a legacy client on its way through a modern server, until its one answer.

Decides what becomes of each answer that the server gives: the client's own, a further round, a task
to wait for, or one more try. Specification (2026-07-28): "Results", "Multi Round-Trip Requests".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec import UNSET

from bridge.core.correlate import PROGRESS
from bridge.core.events import MULTI_ROUND, Answered, Event, Exchange, Noted, Question
from bridge.core.layer import Clock, Layer
from bridge.core.message import Notification, Response, local_error, result
from bridge.core.splice import joined, members
from bridge.era.asking import Asking
from bridge.era.downgrade import downgraded
from bridge.era.drive import Drive
from bridge.era.legacy_client import LegacyClient
from bridge.era.own import Own
from bridge.era.results import legacy_error, legacy_result, result_type
from bridge.era.rounds import Parts, Rounds
from bridge.era.terms import Terms

REPEATABLE: Final = frozenset(
    {
        "tools/list",
        "prompts/list",
        "prompts/get",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "completion/complete",
    }
)
"""What does no harm when it is done twice."""


class LegacyCall:
    """`own` sends it; `over` is told when it has its answer."""

    def __init__(
        self,
        exchange: Exchange,
        client: LegacyClient,
        own: Own,
        clock: Clock,
        layer: Layer,
        terms: Terms,
        *,
        tasks: bool,
        mint: Callable[[], str],
        over: Callable[[Exchange], None],
    ) -> None:
        self.exchange = exchange
        self._client, self._own, self._over = client, own, over
        self._clock, self._layer, self._terms = clock, layer, terms
        self._tasks = tasks
        self._drive: Drive | None = None
        """What waits for the task that it became."""
        self._params = self._latest = b""
        self._level = client.level
        self._upstream: Exchange | None = None
        """The request that the server works on now; None between two rounds."""
        self._failure: Response | None = None
        """The first try's, of which a second was made."""
        self._progress = float("-inf")
        self.asking = Asking(
            exchange,
            clock,
            layer,
            terms,
            revision=client.revision,
            declared=client.declares(askable=exchange.askable),
            mint=mint,
        )
        self._rounds = Rounds(
            exchange, self.asking, clock, layer, terms, retry=self._retry, answer=self._answer
        )

    def begin(self, params: bytes | None) -> Iterable[Event]:
        """Send it for the first time. Raises ValueError if `params` is no object."""
        self._params = self._client.enveloped(
            params, askable=self.exchange.askable, tasks=self._tasks, level=self._level
        )
        return self._send(self._params)

    def _send(self, params: bytes) -> Iterable[Event]:
        self._latest = params
        asked = self._own.ask(self.exchange.method, params, self._answered)
        self._upstream = asked.exchange
        asked.exchange.via = self
        asked.exchange.log = self._level is not None
        return (asked,)

    def _retry(self, parts: Parts) -> Iterable[Event]:
        return self._send(joined((members(self._params) | dict(parts)).items()))

    # From the server

    def _answered(self, response: Response) -> Iterable[Event]:
        self._upstream = None
        if response.result is UNSET:
            return self._failed(response)
        text = bytes(response.result)
        try:
            return self._concluded(text, result_type(text))
        except ValueError as fault:
            return self._unfit(f"The server's result cannot be used: {fault}")

    def _concluded(self, text: bytes, kind: str) -> Iterable[Event]:
        if kind == "complete":
            return self._completed(text)
        if kind == "task" and self._tasks:
            return self._wait(text)
        if kind == "input_required" and self.exchange.method in MULTI_ROUND:
            return self._rounds.required(text)
        return self._unfit(f"The server gave a result of the type {kind!r}")

    def _completed(self, text: bytes) -> Iterable[Event]:
        plain = downgraded(self.exchange.method, legacy_result(text), self._client.revision)
        return self._answer(result(self.exchange.id, plain))

    def _wait(self, created: bytes) -> Iterable[Event]:
        self._drive = Drive(
            self.exchange,
            self._own,
            self.asking,
            self._clock,
            self._layer,
            self._terms,
            stamp=lambda params: self._client.enveloped(params, askable=self.exchange.askable, tasks=True),
            told=self.noted,
            answer=self._waited,
        )
        return self._drive.begin(created)

    def _waited(self, response: Response) -> Iterable[Event]:
        self._drive = None
        if response.result is UNSET:
            return self._failed(response)
        return self._completed(bytes(response.result))

    def _unfit(self, why: str) -> Iterable[Event]:
        return self._answer(local_error(self.exchange.id, why, "invalid_result_type"))

    def _failed(self, response: Response) -> Iterable[Event]:
        if self.exchange.method in REPEATABLE and self._failure is None and _is_lost(response):
            self._failure = response
            return self._send(self._latest)
        return self._answer(legacy_error(self.exchange.method, response.with_id(self.exchange.id)))

    def noted(self, note: Notification) -> Iterable[Event]:
        """A notification that belongs to it; the progress of a new round does not go back."""
        if note.method == PROGRESS:
            progress = _progress(note)
            if progress is not None and progress <= self._progress:
                return ()
            self._progress = self._progress if progress is None else progress
        return (Noted(self.exchange.party, self.exchange, note),)

    # From the client

    def replied(self, question: Question, response: Response) -> Iterable[Event]:
        return self.asking.replied(question, response)

    def withdrawn(self) -> list[Event]:
        """The client gave it up: take back what it is asked, and stop the server."""
        events = self.asking.withdraw()
        self._close()
        return events + self._stop()

    def lost(self, why: Response) -> list[Event]:
        """The server is gone, and this still waits: for its second try, its client or a round to come."""
        if self._drive is not None:
            self._drive.close()
        self._drive = self._upstream = None
        return list(self._answer((self._failure or why).with_id(self.exchange.id)))

    # The end

    def _answer(self, response: Response) -> Iterable[Event]:
        """The one answer, and before it on the same stream whatever else belongs to its end."""
        events = [*self.asking.withdraw(), *self.asking.visited(), *self._stop()]
        self._close()
        return [*events, Answered(self.exchange, response)]

    def _stop(self) -> list[Event]:
        """Whatever the server still does for it, it need not."""
        upstream, self._upstream = self._upstream, None
        drive, self._drive = self._drive, None
        events = [] if upstream is None else list(self._own.withdraw(upstream))
        return events if drive is None else [*events, *drive.withdraw()]

    def _close(self) -> None:
        self._rounds.close()
        self._over(self.exchange)


class _Data(msgspec.Struct, frozen=True):
    origin: str = ""
    reason: str = ""


class _Error(msgspec.Struct):
    data: _Data = _Data()


def _is_lost(response: Response) -> bool:
    """Whether the server's answer was lost on its way, so that nobody knows what became of the request."""
    try:
        data = msgspec.json.decode(response.error or b"{}", type=_Error).data
    except msgspec.DecodeError:
        return False
    return data.origin == "bridge" and data.reason == "upstream_lost"


class _Progress(msgspec.Struct):
    progress: float


def _progress(note: Notification) -> float | None:
    """How far it is, if the notification says so in numbers."""
    try:
        return None if note.params is UNSET else msgspec.json.decode(note.params, type=_Progress).progress
    except msgspec.DecodeError:
        return None
