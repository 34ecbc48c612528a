"""What a legacy session follows of a modern server: one subscription at a time, never without one.

Decides which `subscriptions/listen` (2026-07-28, "Subscriptions") stands for what the session wants,
which is the kinds of change that the server announces and the resources that its client subscribed
to. A new one is acknowledged before the old one is closed, and one that ended is opened anew; then
the client is told that everything may have changed, since nobody knows what it missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from bridge.core.correlate import LISTEN, SUBSCRIPTION
from bridge.core.events import Answered, Event, Exchange, Noted, Party
from bridge.core.layer import Clock, Layer, Timer
from bridge.core.message import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Notification,
    Response,
    error,
    local_error,
    notification,
    params_of,
    result,
)
from bridge.core.splice import joined, members, quote
from bridge.era.own import Own
from bridge.era.terms import Terms

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
UPDATED: Final = "notifications/resources/updated"
_KINDS: Final = {
    "toolsListChanged": ("tools", "notifications/tools/list_changed"),
    "promptsListChanged": ("prompts", "notifications/prompts/list_changed"),
    "resourcesListChanged": ("resources", "notifications/resources/list_changed"),
}
"""Each kind of change by its name in the filter: the capability that announces it, and its notification."""
_GATHER: Final = 0.05
"""Seconds for more changes of what is wanted, which then take one new subscription together."""
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_STEADY: Final = 5.0
"""Seconds after which a subscription that ended counts as one that worked."""


class Filter(msgspec.Struct, frozen=True):
    kinds: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.kinds or self.uris)

    def text(self) -> bytes:
        """Its JSON, as `subscriptions/listen` takes it."""
        parts = [(kind, b"true") for kind in self.kinds]
        return joined([*parts, ("resourceSubscriptions", quote(self.uris))] if self.uris else parts)


class Announced(msgspec.Struct, frozen=True):
    """What a server can tell of, going by its capabilities."""

    kinds: tuple[str, ...] = ()
    subscribe: bool = False

    @classmethod
    def read(cls, capabilities: bytes) -> Announced:
        kinds = [kind for kind, (name, _) in _KINDS.items() if _flag(capabilities, name, "listChanged")]
        return cls(tuple(kinds), _flag(capabilities, "resources", "subscribe"))


class _Stream:
    """One subscription, from its request to its end."""

    def __init__(self, exchange: Exchange, asked: Filter, patience: Timer) -> None:
        self.exchange = exchange
        self.asked = asked
        self.patience = patience
        self.honoured = Filter()
        self.since = 0.0


class Following:
    """`own` speaks to the server, and `stamp` puts the envelope on the params of a request."""

    def __init__(
        self,
        party: Party,
        own: Own,
        clock: Clock,
        layer: Layer,
        terms: Terms,
        *,
        announced: Announced,
        stamp: Callable[[bytes], bytes],
    ) -> None:
        self._party, self._own = party, own
        self._clock, self._layer, self._terms = clock, layer, terms
        self._announced, self._stamp = announced, stamp
        self._wanted: dict[str, None] = {}
        self._waiting: dict[Exchange, str] = {}
        """Requests to subscribe that no acknowledgment has decided yet, with their URIs."""
        self._current: _Stream | None = None
        self._next: _Stream | None = None
        self._opened = self._stale = self._gap = False
        self._gathering: Timer | None = None
        self._pausing: Timer | None = None
        self._fruitless = 0

    # From the client

    def open(self) -> Iterable[Event]:
        """The session is initialized: follow what the server announces."""
        if self._opened:
            return ()
        self._opened = True
        return self._renew()

    def subscribe(self, exchange: Exchange, uri: str) -> Iterable[Event]:
        if not self._announced.subscribe:
            text = "Method not found: the server has no subscriptions to resources"
            return [Answered(exchange, error(exchange.id, METHOD_NOT_FOUND, text))]
        if uri in self._wanted and self._current is not None and uri in self._current.honoured.uris:
            return [_granted(exchange)]
        self._wanted[uri] = None
        self._waiting[exchange] = uri
        return self._gather()

    def unsubscribe(self, exchange: Exchange, uri: str) -> Iterable[Event]:
        """Granted at once, as is what had yet to be: what still comes for it is kept from the client."""
        overtaken = [one for one, wanted in self._waiting.items() if wanted == uri]
        for one in overtaken:
            del self._waiting[one]
        self._drop(uri)
        return [_granted(one) for one in (*overtaken, exchange)]

    def withdrawn(self, exchange: Exchange) -> None:
        """A client does not wait for this subscription any more."""
        uri = self._waiting.pop(exchange, None)
        if uri is not None and uri not in self._waiting.values():
            self._drop(uri)

    def _drop(self, uri: str) -> None:
        if uri in self._wanted:
            del self._wanted[uri]
            self._gather()

    def close(self) -> list[Event]:
        """End everything; whoever still waits is no longer heard of."""
        streams = [one for one in (self._current, self._next) if one is not None]
        for timer in (self._gathering, self._pausing, *(one.patience for one in streams)):
            if timer is not None:
                timer.cancel()
        self._current = self._next = self._gathering = self._pausing = None
        self._wanted.clear()
        self._waiting.clear()
        return [event for one in streams for event in self._own.withdraw(one.exchange)]

    def lost(self, why: Callable[[Exchange], Response]) -> list[Event]:
        """The server is gone: answer whoever still waits."""
        answers: list[Event] = [Answered(exchange, why(exchange)) for exchange in self._waiting]
        self.close()
        return answers

    # Changing over

    def _gather(self) -> Iterable[Event]:
        if self._gathering is None:
            self._gathering = self._clock.after(_GATHER, self._layer, self._gathered)
        return ()

    def _gathered(self) -> Iterable[Event]:
        self._gathering = None
        return self._renew()

    def _renew(self) -> Iterable[Event]:
        """Have a subscription to what is wanted now, if there is none yet."""
        if self._next is not None:
            self._stale = True
            return ()
        self._stale = False
        if self._pausing is not None:
            self._pausing.cancel()
            self._pausing = None
        wanted = Filter(self._announced.kinds if self._opened else (), tuple(self._wanted))
        current = self._current
        if current is not None and current.asked == wanted:
            return self._decide(current)
        if wanted:
            return [self._listen(wanted)]
        self._current = None
        return () if current is None else self._own.withdraw(current.exchange)

    def _listen(self, wanted: Filter) -> Event:
        params = self._stamp(b'{"notifications":%b}' % wanted.text())
        asked = self._own.ask(LISTEN, params, lambda response: self._ended(stream, response))
        patience = self._clock.after(self._terms.subscribe, self._layer, lambda: self._late(stream))
        stream = self._next = _Stream(asked.exchange, wanted, patience)
        return asked

    def _decide(self, stream: _Stream) -> list[Event]:
        """Answer those whose wish this subscription had in it."""
        decided = {exchange: uri for exchange, uri in self._waiting.items() if uri in stream.asked.uris}
        refused = {uri for uri in decided.values() if uri not in stream.honoured.uris}
        for uri in refused:
            self._wanted.pop(uri, None)
        for exchange in decided:
            del self._waiting[exchange]
        # What was refused is not asked for again, but nothing new is asked for its sake either.
        kept = tuple(uri for uri in stream.asked.uris if uri not in refused)
        stream.asked = Filter(stream.asked.kinds, kept)
        return [
            _denied(exchange) if uri in refused else _granted(exchange) for exchange, uri in decided.items()
        ]

    def _late(self, stream: _Stream) -> Iterable[Event]:
        late = local_error(None, "The server did not grant the subscription in time", "upstream_timeout")
        return (*self._own.withdraw(stream.exchange), *self._ended(stream, late))

    # From the server

    def noted(self, exchange: Exchange, note: Notification) -> Iterable[Event]:
        """What a subscription tells; it goes to the session's own channel, once."""
        stream = self._next
        if stream is not None and stream.exchange is exchange:
            if note.method == ACKNOWLEDGED:
                return self._acknowledged(stream, note)
            if self._current is not None:
                return ()  # the old one tells the same
        elif self._current is None or self._current.exchange is not exchange:
            return ()
        if note.method == UPDATED and self._unsubscribed(params_of(note).uri):
            return ()
        return [Noted(self._party, None, _plain(note))]

    def _unsubscribed(self, uri: object) -> bool:
        """Whether the server has yet to learn that nobody wants this any more."""
        return self._current is not None and uri in self._current.asked.uris and uri not in self._wanted

    def _acknowledged(self, stream: _Stream, note: Notification) -> Iterable[Event]:
        stream.patience.cancel()
        stream.honoured, stream.since = _honoured(note, stream.asked), self._clock.now()
        before, self._current, self._next = self._current, stream, None
        events = self._decide(stream)
        if before is not None:
            events += self._own.withdraw(before.exchange)
        if self._gap:
            self._gap = False
            events += self._missed(stream.honoured)
        if self._stale:
            events += self._renew()
        return events

    def _missed(self, honoured: Filter) -> list[Event]:
        """What may have happened while nobody listened."""
        notes = [notification(_KINDS[kind][1]) for kind in honoured.kinds]
        notes += [
            notification(UPDATED, b'{"uri":%b}' % quote(uri)) for uri in honoured.uris if uri in self._wanted
        ]
        return [Noted(self._party, None, note) for note in notes]

    def ended(self, exchange: Exchange) -> Iterable[Event]:
        """The server tore a subscription down without an answer."""
        self._own.withdraw(exchange)
        stream = next((one for one in (self._current, self._next) if one and one.exchange is exchange), None)
        return () if stream is None else self._ended(stream, None)

    def _ended(self, stream: _Stream, response: Response | None) -> Iterable[Event]:
        stream.patience.cancel()
        if stream is self._current:
            self._current, self._gap = None, True
            if self._clock.now() - stream.since >= _STEADY:
                self._fruitless = 0
            return self._pause() if self._next is None else ()
        self._next = None
        events = self._refused(stream, response)
        if self._current is not None or self._stale:
            return [*events, *self._renew()] if self._stale else events
        unknown = response is not None and _code(response) == METHOD_NOT_FOUND
        return events if unknown else [*events, *self._pause()]

    def _refused(self, stream: _Stream, response: Response | None) -> list[Event]:
        """A subscription came to nothing: so did the wishes that only it had."""
        failed = {exchange: uri for exchange, uri in self._waiting.items() if uri in stream.asked.uris}
        for exchange, uri in failed.items():
            del self._waiting[exchange]
            self._wanted.pop(uri, None)
        if response is None or response.error is UNSET:
            response = local_error(None, "The server ended the subscription", "upstream_lost")
        return [Answered(exchange, response.with_id(exchange.id)) for exchange in failed]

    def _pause(self) -> Iterable[Event]:
        """Listen again in a while."""
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**self._fruitless)
        self._fruitless = min(self._fruitless + 1, 10)
        self._pausing = self._clock.after(pause, self._layer, self._resume)
        return ()

    def _resume(self) -> Iterable[Event]:
        self._pausing = None
        return self._renew()


def _granted(exchange: Exchange) -> Answered:
    return Answered(exchange, result(exchange.id, b"{}"))


def _denied(exchange: Exchange) -> Answered:
    text = "Invalid params: the server grants no subscription to this resource"
    return Answered(exchange, error(exchange.id, INVALID_PARAMS, text))


def _flag(capabilities: bytes, name: str, flag: str) -> bool:
    try:
        return bytes(members(members(capabilities)[name])[flag]) == b"true"
    except (ValueError, KeyError):
        return False


class _Granted(msgspec.Struct):
    notifications: dict[str, Raw] = {}


def _honoured(note: Notification, asked: Filter) -> Filter:
    """What an acknowledgment grants of what was asked; one that cannot be read grants nothing."""
    try:
        granted = msgspec.json.decode(note.params, type=_Granted).notifications if note.params else {}
        uris = msgspec.json.decode(granted.get("resourceSubscriptions", Raw(b"[]")), type=list[str])
    except msgspec.DecodeError:
        return Filter()
    kinds = tuple(kind for kind in asked.kinds if bytes(granted.get(kind, b"")) == b"true")
    return Filter(kinds, tuple(uri for uri in asked.uris if uri in uris))


def _plain(note: Notification) -> Notification:
    """The notification without the subscription that brought it, which no legacy client knows."""
    try:
        parts = members(note.params) if note.params is not UNSET else {}
        meta = members(parts.get("_meta", b"{}"))
    except ValueError:
        return note
    if meta.pop(SUBSCRIPTION, None) is None:
        return note
    parts["_meta"] = joined(meta.items())
    if not meta:
        del parts["_meta"]
    return note.with_params(joined(parts.items())) if parts else notification(note.method)


class _Error(msgspec.Struct):
    code: int = 0


def _code(response: Response) -> int:
    try:
        return 0 if response.error is UNSET else msgspec.json.decode(response.error, type=_Error).code
    except msgspec.DecodeError:
        return 0
