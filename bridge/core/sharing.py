"""The layer that lets many legacy sessions share one server that was initialized once.

Answers what the shared handshake already settled, keeps what is one per server (log
level, resource subscriptions) right for each of its sessions, and decides to whom a
message belongs that names nobody. A question that cannot be tied to one session is
refused, also between sessions of one subject: guessing would show one client another's
business, and a subject may be all who know one token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from bridge.core.events import (
    MULTI_ROUND,
    Answered,
    Asked,
    Event,
    Exchange,
    Left,
    Noted,
    Party,
    Question,
    Questioned,
    Replied,
    Told,
    Up,
    Withdrawn,
    refusal,
)
from bridge.core.events import Down as DownEvent
from bridge.core.message import (
    INVALID_PARAMS,
    Notification,
    Request,
    Response,
    params_of,
    request,
    result,
    task_of,
)
from bridge.core.splice import quote, replaced
from bridge.era.questions import related_task
from bridge.era.revisions import negotiated

LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_UNSET_LEVEL: Final = LEVELS.index("info")
_SETTLED: Final = frozenset(
    {"notifications/initialized", "notifications/roots/list_changed", "notifications/progress"}
)
"""Notifications of one session that would mean something else coming from all of them."""
_CHANGES: Final = frozenset(
    f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")
)
_PRIVATE: Final = frozenset({"notifications/elicitation/complete", "notifications/tasks/status"})
"""Notifications for the one session that was asked, or asked; which that was, they do not say."""
MOST_TASKS: Final = 10_000
"""Bound of the tasks whose makers are known; the oldest go first."""


class _Offer(msgspec.Struct):
    version: str = msgspec.field(name="protocolVersion", default="")


def _version(text: bytes | Raw | UnsetType) -> str:
    """The `protocolVersion` of an initialize request's params or its result; empty if it tells none."""
    try:
        return "" if text is UNSET else msgspec.json.decode(text, type=_Offer).version
    except msgspec.DecodeError:
        return ""


class _Member:
    """What one session wants of the server, whether or not it was granted yet."""

    __slots__ = ("level", "uris")

    def __init__(self) -> None:
        self.level: int | None = None
        self.uris: set[str] = set()


class Sharing:
    """`initialized` is the server's InitializeResult as JSON text."""

    def __init__(self, initialized: bytes) -> None:
        self._initialized = initialized
        self._version = _version(initialized)
        self._members: dict[Party, _Member] = {}
        self._level: int | None = None
        """What the server was set to; None while that is not known."""
        self._subscribed: set[str] = set()
        """What the server said it is subscribed to."""
        self._pending: dict[Exchange, Callable[[bool], None]] = {}
        """What is to be done when the server granted a wish (true), or did not."""
        self._tasks: dict[str, Party] = {}
        """Who made a task, while that session lives."""
        self._self = Party("bridge")
        self._serial = 0

    # Client to server

    def up(self, event: Up) -> Iterable[Event]:
        match event:
            case Asked(exchange, asked):
                return self._asked(event, exchange, asked)
            case Told(_, told):
                return () if told.method in _SETTLED else (event,)
            case Left(party):
                return (*self._freed(party), event)
            case Withdrawn(exchange):
                self._settle(exchange, granted=False)
                return (event,)
            case Replied():
                return (event,)

    def _asked(self, event: Asked, exchange: Exchange, asked: Request) -> Iterable[Event]:
        match asked.method:
            case "initialize":
                return (self._join(exchange, asked),)
            case "ping":
                return (_done(exchange),)
            case "logging/setLevel":
                return (self._set_level(event, exchange, asked),)
            case "resources/subscribe":
                return (self._subscribe(event, exchange, asked),)
            case "resources/unsubscribe":
                return (self._unsubscribe(event, exchange, asked),)
            case _:
                return (event,)

    def _member(self, party: Party) -> _Member:
        return self._members.setdefault(party, _Member())

    def _join(self, exchange: Exchange, asked: Request) -> Answered:
        self._member(exchange.party)
        version = negotiated(_version(asked.params), self._version)
        value = self._initialized
        if version != self._version:
            value = replaced(value, ("protocolVersion",), quote(version))
        return Answered(exchange, result(exchange.id, value))

    def _set_level(self, event: Asked, exchange: Exchange, asked: Request) -> Event:
        """The server is kept at the most verbose level that any session wants."""
        wanted = params_of(asked).level
        if wanted is UNSET or wanted not in LEVELS:
            return event
        member = self._member(exchange.party)
        before, member.level = member.level, LEVELS.index(wanted)
        lowest = min(m.level for m in self._members.values() if m.level is not None)
        if lowest == self._level:
            return _done(exchange)
        self._level = lowest
        self._pending[exchange] = partial(self._level_set, member, member.level, before)
        assert asked.params is not UNSET
        return Asked(exchange, asked.with_params(replaced(asked.params, ("level",), quote(LEVELS[lowest]))))

    def _subscribe(self, event: Asked, exchange: Exchange, asked: Request) -> Event:
        uri = params_of(asked).uri
        if uri is UNSET:
            return event
        member = self._member(exchange.party)
        member.uris.add(uri)
        if uri in self._subscribed:
            return _done(exchange)
        self._pending[exchange] = partial(self._subscription_begun, member, uri)
        return event

    def _unsubscribe(self, event: Asked, exchange: Exchange, asked: Request) -> Event:
        uri = params_of(asked).uri
        if uri is UNSET:
            return event
        member = self._member(exchange.party)
        had = uri in member.uris
        member.uris.discard(uri)
        if self._wanted(uri):
            return _done(exchange)
        if had:
            self._pending[exchange] = partial(self._subscription_ended, member, uri)
        self._subscribed.discard(uri)
        return event

    # What became of a wish. Until the server has answered, it counts as granted.

    def _settle(self, exchange: Exchange, *, granted: bool) -> None:
        settle = self._pending.pop(exchange, None)
        if settle is not None:
            settle(granted)

    def _level_set(self, member: _Member, wanted: int, before: int | None, granted: bool) -> None:
        if granted:
            return
        self._level = None
        if member.level == wanted:
            member.level = before

    def _subscription_begun(self, member: _Member, uri: str, granted: bool) -> None:
        if not granted:
            member.uris.discard(uri)
        if granted and self._wanted(uri):
            self._subscribed.add(uri)
        else:
            self._subscribed.discard(uri)

    def _subscription_ended(self, member: _Member, uri: str, granted: bool) -> None:
        if not granted:
            member.uris.add(uri)

    def _wanted(self, uri: str) -> bool:
        return any(uri in member.uris for member in self._members.values())

    def _freed(self, party: Party) -> list[Event]:
        """Unsubscribe, in the bridge's own name, from what only this session wanted."""
        for exchange in [exchange for exchange in self._pending if exchange.party is party]:
            del self._pending[exchange]
        for task in [task for task, maker in self._tasks.items() if maker is party]:
            del self._tasks[task]
        member = self._members.pop(party, None)
        orphans = [uri for uri in member.uris if not self._wanted(uri)] if member else []
        self._subscribed.difference_update(orphans)
        return [self._own("resources/unsubscribe", b'{"uri":%b}' % quote(uri)) for uri in orphans]

    def _own(self, method: str, params: bytes) -> Asked:
        self._serial += 1
        asked = request(self._serial, method, params)
        return Asked(Exchange(self._self, asked, None), asked)

    # Server to client

    def down(self, event: DownEvent) -> Iterable[Event]:
        match event:
            case Answered(exchange, response):
                self._settle(exchange, granted=response.error is UNSET)
                if exchange.task:
                    self._made(exchange.party, response)
                return () if exchange.party is self._self else (event,)
            case Noted(None, _, note):
                return [Noted(party, None, note) for party in self._recipients(note)]
            case Noted(Party() as party, _, Notification(method="notifications/message") as note):
                return (event,) if self._heard(party, note) else ()
            case Questioned(question, asked):
                return (self._attributed(question, asked),)
            case _:
                return (event,)

    def _made(self, maker: Party, response: Response) -> None:
        task = task_of(response.result, created=True).id
        if task:
            self._tasks[task] = maker
        if len(self._tasks) > MOST_TASKS:
            del self._tasks[next(iter(self._tasks))]

    def _recipients(self, note: Notification) -> list[Party]:
        match note.method:
            case "notifications/resources/updated":
                uri = params_of(note).uri
                return [] if uri is UNSET else self._subscribers(uri)
            case change if change in _CHANGES:
                return list(self._members)
            case private if private in _PRIVATE and len(self._members) > 1:
                return []
            case _ if self._strange():
                return []  # it may be the business of one of them
            case "notifications/message":
                return self._readers(params_of(note).level)
            case _:
                return list(self._members)

    def _strange(self) -> bool:
        """Whether there are several sessions which are not all known to be of one subject."""
        subjects = {party.subject for party in self._members}
        return len(subjects) > 1 or (len(self._members) > 1 and "" in subjects)

    def _readers(self, level: object) -> list[Party]:
        """Of a log message: the only session that has anything in flight, else each; at its own level."""
        severity = _severity(level)
        busy = [party for party in self._members if party.exchanges]
        heard = busy if len(busy) == 1 else list(self._members)
        return [party for party in heard if severity >= _level(self._members[party])]

    def _heard(self, party: Party, note: Notification) -> bool:
        member = self._members.get(party)
        return member is None or _severity(params_of(note).level) >= _level(member)

    def _subscribers(self, uri: str) -> list[Party]:
        exact = [party for party, member in self._members.items() if uri in member.uris]
        if exact:
            return exact
        return [party for party, member in self._members.items() if _covers(member.uris, uri)]

    def _attributed(self, question: Question, asked: Request) -> Event:
        if asked.method == "ping":
            return Replied(question, result(question.id, b"{}"))
        party, exchange = self._behind(question, asked)
        if party is None or party.lacks(asked.method):
            return refusal(question, INVALID_PARAMS, "No single client of this shared server can be asked")
        question.party, question.exchange = party, exchange
        return Questioned(question, asked)

    def _behind(self, question: Question, asked: Request) -> tuple[Party | None, Exchange | None]:
        """Whose call a question is about: what it came with, or names, or the only one there is."""
        if question.exchange is not None:
            return question.exchange.party, question.exchange
        task = related_task(asked.params)
        if task is not None:
            return self._tasks.get(task), None
        calls = [call for call in map(_multi_round, self._members) if call is not None]
        return (calls[0].party, calls[0]) if len(calls) == 1 else (None, None)


def _done(exchange: Exchange) -> Answered:
    return Answered(exchange, result(exchange.id, b"{}"))


def _severity(level: object) -> int:
    """How severe a message is; one whose level nobody knows is heard by all."""
    return LEVELS.index(level) if isinstance(level, str) and level in LEVELS else len(LEVELS)


def _level(member: _Member) -> int:
    return _UNSET_LEVEL if member.level is None else member.level


def _covers(uris: set[str], uri: str) -> bool:
    """Whether one of these resources holds `uri` as a sub-resource."""
    return any(uri.startswith(one.rstrip("/") + "/") for one in uris)


def _multi_round(party: Party) -> Exchange | None:
    """The newest request of this session that a server may ask its client about."""
    return next((e for e in reversed(party.exchanges.values()) if e.method in MULTI_ROUND), None)
