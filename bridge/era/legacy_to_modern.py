"""A legacy session on a modern server: the layer between them.

Decides, by the method, what of the client's is answered here, what goes on to the server and as
what, and whose the server's answers are. It opens the session from the server's own
`server/discover`, keeps what a session has and a modern server does not (revision, log level,
subscriptions), and speaks to the server as a party of its own (`behind`), so that the ids of the two
hops never meet. Specification: "Lifecycle" of 2024-11-05 to 2025-11-25, "Discovery" and "Versioning"
of 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from bridge.core.correlate import LISTEN
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
    Question,
    Questioned,
    Replied,
    Told,
    Up,
    Withdrawn,
)
from bridge.core.headers import UNSUPPORTED_VERSION
from bridge.core.layer import Clock
from bridge.core.message import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Notification,
    Request,
    Response,
    error,
    local_error,
    params_of,
    result,
)
from bridge.core.sharing import LEVELS
from bridge.core.splice import members, quote, replaced
from bridge.era.capabilities import TASKS
from bridge.era.following import Announced, Following
from bridge.era.legacy_call import LegacyCall
from bridge.era.legacy_client import MODERN, LegacyClient
from bridge.era.own import Own
from bridge.era.results import initialized, legacy_error, result_type
from bridge.era.terms import Terms

_UNKNOWN: Final = frozenset({"server/discover", LISTEN})
"""Modern methods, which no legacy client has; nor has it tasks, which are not offered to it."""


class LegacyToModern:
    """The layer of one session. `behind` is the party that it speaks to the server as.

    `name` is what a server is called that does not say its own name.
    """

    def __init__(self, party: Party, clock: Clock, terms: Terms, *, name: str) -> None:
        self.behind = Party(party.name, party.subject)
        self._party, self._clock, self._terms, self._name = party, clock, terms, name
        self._own = Own(self.behind, clock, self)
        self._client: LegacyClient | None = None
        self._following: Following | None = None
        self._initialized = self._tasks = False
        self._openings: dict[Exchange, Exchange] = {}
        """Each `initialize` that waits, and the question to the server that it waits for."""
        self._calls: dict[Exchange, LegacyCall] = {}
        self._serial = 0
        self._locally: dict[str, Callable[[Exchange, Request], Iterable[Event]]] = {
            "initialize": self._initialize,
            "ping": lambda exchange, _: [Answered(exchange, result(exchange.id, b"{}"))],
            "logging/setLevel": self._set_level,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._subscribe,
        }

    def up(self, event: Up) -> Iterable[Event]:
        match event:
            case Asked(exchange, request):
                return self._locally.get(request.method, self._call)(exchange, request)
            case Told(_, note):
                return self._told(note)
            case Replied(question, response):
                return self._replied(question, response)
            case Withdrawn(exchange, _):
                return self._withdrawn(exchange)
            case Left(_):
                return self._left()

    def down(self, event: Down) -> Iterable[Event]:
        match event:
            case Answered(exchange, response):
                return self._own.answered(exchange, response) or ()
            case Noted(_, exchange, note):
                return () if exchange is None else self._noted(exchange, note)
            case Ended(exchange):
                return () if self._following is None else self._following.ended(exchange)
            case Questioned(_, _):
                return ()  # a modern server may not ask, and would not know what to do with an answer
            case Lost():
                return self._lost()

    # Opening

    def _initialize(self, exchange: Exchange, request: Request) -> Iterable[Event]:
        try:
            client = LegacyClient.read(request.params)
        except ValueError as fault:
            return [_refused(exchange, f"Invalid params: {fault}")]
        events = [] if self._following is None else self._following.close()
        self._client, self._following, self._initialized = client, None, False
        asked = self._own.ask(
            "server/discover",
            client.enveloped(),
            lambda response: self._discovered(exchange, client, response),
        )
        self._openings[exchange] = asked.exchange
        return [*events, asked]

    def _discovered(self, exchange: Exchange, client: LegacyClient, response: Response) -> Iterable[Event]:
        self._openings.pop(exchange, None)
        opened = self._opened(client, response)
        if isinstance(opened, bytes):
            start = () if self._following is None or not self._initialized else self._following.open()
            return [Answered(exchange, result(exchange.id, opened)), *start]
        if self._client is client:
            self._client = None
        return [Answered(exchange, opened.with_id(exchange.id))]

    def _opened(self, client: LegacyClient, response: Response) -> bytes | Response:
        """The result of `initialize`, with the session open; or the error that it comes to."""
        if response.result is UNSET:
            return _not_opened(client, response)
        try:
            found = members(response.result)
            if result_type(bytes(response.result)) != "complete":
                raise ValueError("it is none of the type complete")
            versions = _strings(found.get("supportedVersions"))
            if versions is not None and MODERN not in versions:
                return _unsupported(client, versions)
            capabilities = bytes(found.get("capabilities", b"{}"))
            opened = initialized(response.result, version=client.revision, name=self._name)
            self._tasks = self._terms.drive and TASKS in members(
                members(capabilities).get("extensions", b"{}")
            )
        except ValueError as fault:
            text = f"The server's answer to server/discover cannot be used: {fault}"
            return local_error(None, text, "invalid_result_type")
        self._following = Following(
            self._party,
            self._own,
            self._clock,
            self,
            self._terms,
            announced=Announced.read(capabilities),
            stamp=client.enveloped,
        )
        return opened

    def _told(self, note: Notification) -> Iterable[Event]:
        """Nothing that a legacy client tells means anything to a modern server."""
        if note.method != "notifications/initialized":
            return ()
        self._initialized = True
        return () if self._following is None else self._following.open()

    # Requests

    def _set_level(self, exchange: Exchange, request: Request) -> Iterable[Event]:
        level = params_of(request).level
        if level is UNSET or level not in LEVELS:
            return [_refused(exchange, "Invalid params: no such log level")]
        if self._client is not None:
            self._client.level = level
        return [Answered(exchange, result(exchange.id, b"{}"))]

    def _subscribe(self, exchange: Exchange, request: Request) -> Iterable[Event]:
        uri = params_of(request).uri
        if self._following is None:
            return [_refused(exchange, _UNOPENED)]
        if uri is UNSET:
            return [_refused(exchange, "Invalid params: uri must be a string")]
        if request.method == "resources/subscribe":
            return self._following.subscribe(exchange, uri)
        return self._following.unsubscribe(exchange, uri)

    def _call(self, exchange: Exchange, request: Request) -> Iterable[Event]:
        if self._client is None:
            return [_refused(exchange, _UNOPENED)]
        if request.method in _UNKNOWN or request.method.startswith("tasks/"):
            text = f"Method not found: {request.method}"
            return [Answered(exchange, error(exchange.id, METHOD_NOT_FOUND, text))]
        call = LegacyCall(
            exchange,
            self._client,
            self._own,
            self._clock,
            self,
            self._terms,
            tasks=self._tasks and request.method == "tools/call",
            mint=self._mint,
            over=self._over,
        )
        self._calls[exchange] = call
        try:
            return call.begin(_params(request))
        except ValueError:
            self._over(exchange)
            return [_refused(exchange, "Invalid params: params must be an object")]

    def _mint(self) -> str:
        self._serial += 1
        return f"br-{self._serial}"

    def _over(self, exchange: Exchange) -> None:
        self._calls.pop(exchange, None)

    # What else the client says

    def _replied(self, question: Question, response: Response) -> Iterable[Event]:
        call = None if question.exchange is None else self._calls.get(question.exchange)
        return () if call is None else call.replied(question, response)

    def _withdrawn(self, exchange: Exchange) -> Iterable[Event]:
        opening = self._openings.pop(exchange, None)
        if opening is not None:
            return self._own.withdraw(opening)
        if self._following is not None:
            self._following.withdrawn(exchange)
        call = self._calls.get(exchange)
        return () if call is None else call.withdrawn()

    def _left(self) -> Iterable[Event]:
        """Nobody is told anything any more, and the server is told of everything that it works on."""
        events = [event for call in list(self._calls.values()) for event in call.withdrawn()]
        events += [event for opening in self._openings.values() for event in self._own.withdraw(opening)]
        events += [] if self._following is None else self._following.close()
        self._openings.clear()
        return [event for event in events if isinstance(event, Asked | Withdrawn)]

    # What else the server says

    def _noted(self, exchange: Exchange, note: Notification) -> Iterable[Event]:
        if isinstance(exchange.via, LegacyCall):
            return exchange.via.noted(note)
        return () if self._following is None else self._following.noted(exchange, note)

    def _lost(self) -> Iterable[Event]:
        def why(exchange: Exchange) -> Response:
            return local_error(exchange.id, "The server was lost", "upstream_lost")

        waiting = list(self._calls.items())
        events = [event for exchange, call in waiting for event in call.lost(why(exchange))]
        events += [] if self._following is None else self._following.lost(why)
        return events


_UNOPENED: Final = "Invalid params: initialize first"


def _refused(exchange: Exchange, why: str) -> Answered:
    return Answered(exchange, error(exchange.id, INVALID_PARAMS, why))


def _params(request: Request) -> bytes | None:
    """What goes on to the server: not what would make it a task of 2025-11-25."""
    if request.params is UNSET:
        return None
    if request.method == "tools/call" and params_of(request).task is not UNSET:
        return replaced(request.params, ("task",), None)
    return bytes(request.params)


class _Supported(msgspec.Struct):
    supported: Raw = Raw(b"[]")


class _Error(msgspec.Struct):
    code: int = 0
    data: Raw = Raw(b"{}")


def _not_opened(client: LegacyClient, response: Response) -> Response:
    """What a client is told whose server would not be discovered."""
    try:
        fault = msgspec.json.decode(response.error or b"{}", type=_Error)
        if fault.code == UNSUPPORTED_VERSION:
            supported = msgspec.json.decode(fault.data, type=_Supported).supported
            return _unsupported(client, _strings(bytes(supported)) or [])
    except msgspec.DecodeError:
        pass
    return legacy_error("initialize", response)


def _unsupported(client: LegacyClient, supported: list[str]) -> Response:
    data = quote({"supported": supported, "requested": client.offered})
    return error(None, INVALID_PARAMS, "Unsupported protocol version", data)


def _strings(text: bytes | None) -> list[str] | None:
    try:
        return None if text is None else msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError:
        return None
