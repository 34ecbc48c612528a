"""The rounds of one call: a modern server's `input_required`, until it has what it needs.

Decides when a call is tried again and with what, and when it has gone on for too long
(2026-07-28, "Multi Round-Trip Requests"). How the client is asked is `asking`'s matter, and how the
call is sent that of whoever makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from bridge.core.events import Event, Exchange
from bridge.core.layer import Clock, Layer, Timer
from bridge.core.message import INTERNAL_ERROR, Response, local_error, result
from bridge.core.splice import joined, members, quote, replaced
from bridge.era.asking import Answers, Asking, Refused, entries
from bridge.era.terms import Terms

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0

Parts = Sequence[tuple[str, bytes]]
"""Members that a call gets beside its own."""


class Rounds:
    """`retry` sends the call once more with these parts; `answer` ends it."""

    def __init__(
        self,
        exchange: Exchange,
        asking: Asking,
        clock: Clock,
        layer: Layer,
        terms: Terms,
        *,
        retry: Callable[[Parts], Iterable[Event]],
        answer: Callable[[Response], Iterable[Event]],
    ) -> None:
        self._exchange, self._asking = exchange, asking
        self._clock, self._layer, self._terms = clock, layer, terms
        self._retry, self._answer = retry, answer
        self._asked = self._empty = 0
        self._state: bytes | None = None
        self._pause: Timer | None = None
        self._limit: Timer | None = None

    def required(self, wanted: bytes) -> Iterable[Event]:
        """What becomes of an `InputRequiredResult`."""
        if self._limit is None:
            self._limit = self._clock.after(self._terms.call, self._layer, self._too_many)
        try:
            parts = members(wanted)
            asked = entries(bytes(parts.get("inputRequests", b"{}")))
            if "inputRequests" not in parts and "requestState" not in parts:
                raise ValueError("it says not what for")
        except ValueError as fault:
            text = f"The server wants input that the client cannot give: {fault}"
            return self._answer(local_error(self._exchange.id, text, "invalid_input_request"))
        self._state = bytes(parts["requestState"]) if "requestState" in parts else None
        if not asked:
            return self._wait()
        self._asked += 1
        return self._too_many() if self._asked > self._terms.rounds else self._asking.put(asked, self._told)

    def _wait(self) -> Iterable[Event]:
        """The server only needs time, or another to answer."""
        self._empty += 1
        if self._empty > self._terms.empty_rounds:
            return self._too_many()
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** (self._empty - 1))
        self._pause = self._clock.after(pause, self._layer, lambda: self._again([]))
        return ()

    def _told(self, outcome: Answers | Refused) -> Iterable[Event]:
        if isinstance(outcome, Refused):
            return self._answer(abandoned(self._exchange, outcome))
        return self._again([("inputResponses", joined(outcome.items()))])

    def _again(self, parts: Parts) -> Iterable[Event]:
        state = [] if self._state is None else [("requestState", self._state)]
        return self._retry([*parts, *state])

    def _too_many(self) -> Iterable[Event]:
        text = "The server wants input again and again, and no end is in sight"
        return self._answer(local_error(self._exchange.id, text, "too_many_rounds"))

    def close(self) -> None:
        """The call is over; what the client is still asked is taken back by whoever put it."""
        for timer in (self._pause, self._limit):
            if timer is not None:
                timer.cancel()


class _Error(msgspec.Struct):
    code: int = INTERNAL_ERROR
    message: str = "The client gave no answer"


def abandoned(exchange: Exchange, refused: Refused) -> Response:
    """What a client is told whose refusal ended its own call: there is no way to tell the server."""
    try:
        said = msgspec.json.decode(refused.error, type=_Error)
    except msgspec.DecodeError:
        said = _Error()
    if exchange.method == "tools/call":
        content = [{"type": "text", "text": said.message}]
        return result(exchange.id, quote({"content": content, "isError": True}))
    value = refused.error if said.code != -1 else replaced(refused.error, ("code",), b"%d" % INTERNAL_ERROR)
    raw = b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (quote(exchange.id), value)
    return Response(raw, exchange.id, error=msgspec.Raw(value))
