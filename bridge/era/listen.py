"""What modern clients listen for on a legacy server, which tells everybody everything unasked.

Decides which of its notifications reach which `subscriptions/listen` stream, under that stream's
id, and which resources the server is subscribed to for all of them together. Specification:
"Subscriptions" of 2026-07-28 on the clients' side, "Resources" of 2025-11-25 and before on the
server's. How a stream is written, and what becomes of it when its server is lost, is the port's
matter; `resumed`, `closing` and `torn_down` are its words for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol

import msgspec
from msgspec import UNSET

from bridge.core.correlate import CANCELLED, SUBSCRIPTION
from bridge.core.events import Answered, Event, Exchange, Noted, Party
from bridge.core.layer import Clock, Layer, Timer
from bridge.core.message import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Id,
    Notification,
    Request,
    Response,
    local_error,
    notification,
    params_of,
    result,
)
from bridge.core.splice import joined, members, quote, replaced
from bridge.era.own import Own
from bridge.era.resources import Resources
from bridge.era.terms import Terms

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
UPDATED: Final = "notifications/resources/updated"

KINDS: Final = {
    "toolsListChanged": ("notifications/tools/list_changed", "tools"),
    "promptsListChanged": ("notifications/prompts/list_changed", "prompts"),
    "resourcesListChanged": ("notifications/resources/list_changed", "resources"),
}
"""A filter's flag: what is told for it, and the capability that has `listChanged`."""
_FLAGS: Final = {method: flag for flag, (method, _) in KINDS.items()}
HEARD: Final = frozenset({*_FLAGS, UPDATED})
"""What of a legacy server's notifications is told on streams, and nowhere else."""


class Filter(msgspec.Struct, frozen=True, rename="camel"):
    """`params.notifications` of a listen, and of its acknowledgment; unknown members ask for nothing."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: tuple[str, ...] = ()
    task_ids: tuple[str, ...] = ()

    @classmethod
    def read(cls, message: Request | Notification) -> Filter:
        """Raises ValueError if there is none."""
        try:
            params = {} if message.params is UNSET else members(message.params)
            return msgspec.json.decode(params.get("notifications", b""), type=cls)
        except (ValueError, msgspec.DecodeError) as fault:
            raise ValueError(f"notifications is no subscription filter: {fault}") from fault

    @property
    def flags(self) -> tuple[str, ...]:
        wanted = (self.tools_list_changed, self.prompts_list_changed, self.resources_list_changed)
        return tuple(flag for flag, asked in zip(KINDS, wanted, strict=True) if asked)


class Advertised(Protocol):
    """What a server said that it can do (`era.opened.Opened`)."""

    def advertises(self, kind: str, flag: str | None = None) -> bool: ...


class Watch(Protocol):
    """Where tasks are shown to clients (`era.tasks.MappedTasks`)."""

    def watched(
        self, exchange: Exchange, request: Request, tokens: Iterable[str]
    ) -> dict[str, str] | Response:
        """The server's tasks that may be watched, each with its token; or why none may be asked for."""


class _Stream:
    """One listen: what it wanted and was granted, and what it was not told yet."""

    __slots__ = ("acknowledged", "exchange", "flags", "pending", "recent", "tasks", "unsent", "uris")

    def __init__(self, exchange: Exchange, flags: tuple[str, ...], uris: Iterable[str]) -> None:
        self.exchange = exchange
        self.flags = flags
        self.uris = dict.fromkeys(uris)
        self.tasks: dict[str, str] = {}
        """The server's id of each task that is watched, and the one that the client knows."""
        self.pending: set[str] = set()
        """Resources of which it is not known yet whether the server subscribes to them."""
        self.acknowledged = False
        self.unsent: dict[bytes, Notification] = {}
        """What came before the acknowledgment."""
        self.recent: set[bytes] = set()
        """What it was told in this turn of the clock."""

    def honoured(self) -> bytes:
        """The filter as it was granted."""
        parts = [(flag, b"true") for flag in self.flags]
        if self.uris:
            parts.append(("resourceSubscriptions", quote(list(self.uris))))
        if self.tasks:
            parts.append(("taskIds", quote(list(self.tasks.values()))))
        return joined(parts)


class Subscriptions:
    """The streams of one upstream session.

    `own` sends the layer's requests; `watch` knows tasks, if clients see any. What is returned goes
    on from `layer`:

        Asked(exchange, subscriptions/listen)     -> listen(exchange, request)
        Withdrawn(exchange); each of a party Left -> ended(exchange); left(party)
        Noted(_, _, note), note.method in HEARD   -> noted(note)
        Lost()                                    -> lost()

    The session must be kept open while it is `busy`.
    """

    def __init__(
        self,
        own: Own,
        opened: Advertised,
        clock: Clock,
        layer: Layer,
        terms: Terms,
        watch: Watch | None = None,
    ) -> None:
        self._opened, self._clock, self._layer = opened, clock, layer
        self._terms, self._watch = terms, watch
        self._streams: dict[Exchange, _Stream] = {}
        self._resources: Resources[_Stream] = Resources(own, clock, layer, terms, self._decided)
        self._turn: Timer | None = None

    @property
    def busy(self) -> bool:
        return bool(self._streams)

    # Streams

    def listen(self, exchange: Exchange, request: Request) -> Iterable[Event]:
        """Begin a stream: what it asks of the server, its acknowledgment, or the answer that refuses it."""
        try:
            wanted = Filter.read(request)
        except ValueError as fault:
            return [_refused(exchange, f"Invalid params: {fault}", "invalid_filter", INVALID_PARAMS)]
        subject = exchange.party.subject
        if sum(one.party.subject == subject for one in self._streams) >= self._terms.listens:
            text = f"Too many subscription streams; the most are {self._terms.listens}"
            return [_refused(exchange, text, "too_many_subscriptions", INTERNAL_ERROR)]
        if not self._offers_any():
            text = "Method not found: the server announces no changes"
            return [_refused(exchange, text, "capability", METHOD_NOT_FOUND)]
        tasks = self._tasks(exchange, request, wanted)
        return (
            [Answered(exchange, tasks)]
            if isinstance(tasks, Response)
            else self._begin(exchange, wanted, tasks)
        )

    def _offers_any(self) -> bool:
        flags = any(self._opened.advertises(kind, "listChanged") for _, kind in KINDS.values())
        return flags or self._opened.advertises("resources", "subscribe") or self._watch is not None

    def _tasks(self, exchange: Exchange, request: Request, wanted: Filter) -> dict[str, str] | Response:
        if self._watch is None or not wanted.task_ids:
            return {}
        return self._watch.watched(exchange, request, wanted.task_ids)

    def _begin(self, exchange: Exchange, wanted: Filter, tasks: dict[str, str]) -> list[Event]:
        flags = tuple(one for one in wanted.flags if self._opened.advertises(KINDS[one][1], "listChanged"))
        uris = wanted.resource_subscriptions if self._opened.advertises("resources", "subscribe") else ()
        stream = _Stream(exchange, flags, uris)
        stream.tasks = tasks
        self._streams[exchange] = stream
        subject = exchange.party.subject
        asked = [event for uri in stream.uris for event in self._resources.join(stream, uri, subject)]
        stream.pending = {uri for uri in stream.uris if not self._resources.granted(uri)}
        return [*asked, *self._acknowledge(stream)]

    def _acknowledge(self, stream: _Stream) -> list[Event]:
        """Tell what was granted, once that is known, and then what came meanwhile."""
        if stream.pending or stream.acknowledged:
            return []
        stream.acknowledged = True
        own_id = quote(stream.exchange.id)
        params = b'{"_meta":{%b:%b},"notifications":%b}' % (quote(SUBSCRIPTION), own_id, stream.honoured())
        kept, stream.unsent = stream.unsent, {}
        first = Noted(stream.exchange.party, stream.exchange, notification(ACKNOWLEDGED, params))
        return [first, *(event for note in kept.values() for event in self._told(stream, note))]

    def ended(self, exchange: Exchange) -> Iterable[Event]:
        """The client closed its stream, if it has one."""
        stream = self._streams.pop(exchange, None)
        if stream is not None:
            for uri in stream.uris:
                self._resources.part(stream, uri)
        return ()

    def left(self, party: Party) -> Iterable[Event]:
        """A client is gone with all its streams."""
        mine = [exchange for exchange in self._streams if exchange.party is party]
        return [event for exchange in mine for event in self.ended(exchange)]

    def lost(self) -> Iterable[Event]:
        """The server is gone. Whoever has a stream goes on with it elsewhere (`resumed`)."""
        self._resources.lost()
        if self._turn is not None:
            self._turn.cancel()
        self._turn = None
        self._streams.clear()
        return ()

    def _decided(self, stream: _Stream, uri: str, granted: bool) -> list[Event]:
        stream.pending.discard(uri)
        if not granted:
            stream.uris.pop(uri, None)
        return self._acknowledge(stream)

    # Notifications

    def noted(self, note: Notification) -> list[Event]:
        """Tell what the server says to whoever listens for it; nothing, if it is nobody's to hear."""
        flag = _FLAGS.get(note.method)
        if flag is not None:
            return self._tell([stream for stream in self._streams.values() if flag in stream.flags], note)
        uri = params_of(note).uri
        return [] if note.method != UPDATED or uri is UNSET else self._tell(self._readers(uri), note)

    def _readers(self, uri: str) -> list[_Stream]:
        """Whose resource it is, or holds it; else, if all are of one subject, who reads any."""
        found = self._resources.readers(uri)
        if found is not None:
            return found
        subjects = self._resources.subjects | {one.party.subject for one in self._streams}
        return [one for one in self._streams.values() if one.uris] if len(subjects) == 1 else []

    def watches(self, task: str) -> bool:
        """Whether any stream listens for this task of the server's."""
        return any(task in stream.tasks for stream in self._streams.values())

    def told_task(self, task: str, note: Callable[[str], Notification]) -> list[Event]:
        """Tell of a task to whoever listens for it, each by the id that it knows."""
        watching = [stream for stream in self._streams.values() if task in stream.tasks]
        return [event for stream in watching for event in self._tell([stream], note(stream.tasks[task]))]

    def _tell(self, streams: Iterable[_Stream], note: Notification) -> list[Event]:
        return [event for stream in streams for event in self._told(stream, note)]

    def _told(self, stream: _Stream, note: Notification) -> list[Event]:
        """Equal ones at once are one: what a client does upon the first comes after all of them."""
        if not stream.acknowledged:
            return self._keep(stream, note)
        if note.raw in stream.recent:
            return []
        stream.recent.add(note.raw)
        if self._turn is None:
            self._turn = self._clock.after(0, self._layer, self._turned)
        exchange = stream.exchange
        return [Noted(exchange.party, exchange, _marked(note, exchange.id))]

    def _keep(self, stream: _Stream, note: Notification) -> list[Event]:
        stream.unsent[note.raw] = note
        if len(stream.unsent) <= self._terms.backlog:
            return []
        return [*self.ended(stream.exchange), Answered(stream.exchange, closing(stream.exchange.id))]

    def _turned(self) -> Iterable[Event]:
        self._turn = None
        for stream in self._streams.values():
            stream.recent.clear()
        return ()


def _refused(exchange: Exchange, text: str, reason: str, code: int) -> Answered:
    return Answered(exchange, local_error(exchange.id, text, reason, code))


def _marked(note: Notification, listen: Id) -> Notification:
    """The notification as the stream with this id carries it."""
    params = b"{}" if note.params is UNSET else bytes(note.params)
    own = quote(listen)
    with suppress(ValueError):
        return note.with_params(replaced(params, ("_meta", SUBSCRIPTION), own))
    # Some write what has no members as an array.
    meta = b"{%b:%b}" % (quote(SUBSCRIPTION), own)
    try:
        return note.with_params(replaced(params, ("_meta",), meta))
    except ValueError:
        return note.with_params(b'{"_meta":%b}' % meta)


# --- the port's words for a stream whose server is lost ---


def resumed(acknowledgment: Notification, listen: Id) -> list[Notification]:
    """What a client is told instead of a second acknowledgment, when its stream goes on elsewhere.

    Nobody knows what it missed: so each kind of change that it listens for may have happened.
    """
    try:
        honoured = Filter.read(acknowledgment)
    except ValueError:
        return []
    changed = [notification(KINDS[flag][0]) for flag in honoured.flags]
    updated = [notification(UPDATED, b'{"uri":%b}' % quote(uri)) for uri in honoured.resource_subscriptions]
    return [_marked(note, listen) for note in (*changed, *updated)]


def closing(listen: Id) -> Response:
    """The result that ends a stream in good order."""
    return result(listen, b'{"resultType":"complete","_meta":{%b:%b}}' % (quote(SUBSCRIPTION), quote(listen)))


def torn_down(listen: Id) -> Notification:
    """What follows the result on stdio, where no stream ends by itself."""
    return notification(CANCELLED, b'{"requestId":%b}' % quote(listen))
