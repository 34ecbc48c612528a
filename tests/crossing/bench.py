"""Modern clients, the layer, and a legacy server: both ends played by hand, and the clock too.

Each client request is a party of its own, as over HTTP, unless a test says otherwise.
"""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from msgspec import Raw

from bridge.core import message
from bridge.core.correlate import Correlation
from bridge.core.events import (
    Answered,
    Asked,
    Ended,
    Event,
    Exchange,
    Left,
    Lost,
    Noted,
    Party,
    Questioned,
    Told,
    Withdrawn,
)
from bridge.core.layer import Layer, Pipeline
from bridge.core.message import Batch, Id, Malformed, Notification, Request, Response, local_error
from bridge.era.capabilities import Capabilities
from bridge.era.modern_to_legacy import ModernToLegacy
from bridge.era.opened import Opened
from bridge.era.suspend import Calls, Sealing
from bridge.era.terms import Terms

Json = dict[str, Any]
Events = Iterable[Event]

PREFIX = "io.modelcontextprotocol/"
SERVER = {"name": "up", "version": "9"}
SI = {"_meta": {f"{PREFIX}serverInfo": SERVER}}
C = {"resultType": "complete"}
C0 = {**C, "ttlMs": 0, "cacheScope": "private"}
EL = {"message": "Name?", "requestedSchema": {"type": "object", "properties": {"n": {"type": "string"}}}}
ALL = '{"elicitation":{},"sampling":{},"roots":{}}'
"""What the client of the base case declares."""
EVERYTHING: Json = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
}


def read(text: bytes) -> Request | Notification | Response:
    found = message.read(text, depth=128)
    assert not isinstance(found, Batch | Malformed), found
    return found


def shown(text: bytes) -> Json:
    """A message as JSON without its `jsonrpc`."""
    value: Json = json.loads(text)
    assert value.pop("jsonrpc") == "2.0"
    return value


def bridge_error(code: int, reason: str) -> Callable[[Json], bool]:
    """Whether an answer is this error of the bridge's own."""

    def holds(answer: Json) -> bool:
        error: Json = answer["error"]
        return (error["code"], error["data"]) == (code, {"origin": "bridge", "reason": reason})

    return holds


class FakeTimer:
    def __init__(self, layer: Layer, act: Callable[[], Events]) -> None:
        self.layer, self.act = layer, act
        self.over = False

    def cancel(self) -> None:
        self.over = True


class FakeClock:
    """Time that passes when a test says so. `run` carries out what a layer says when it is due."""

    def __init__(self) -> None:
        self._now = 1_000.0
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._serial = count()
        self.run: Callable[[Layer, Events], None] = lambda _layer, _events: None

    def now(self) -> float:
        return self._now

    def after(self, seconds: float, layer: Layer, act: Callable[[], Events]) -> FakeTimer:
        timer = FakeTimer(layer, act)
        heapq.heappush(self._timers, (self._now + seconds, next(self._serial), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Let so much time pass, and do what is due in it, in order."""
        until = self._now + seconds
        while self._timers and self._timers[0][0] <= until:
            self._now, _, timer = heapq.heappop(self._timers)
            if not timer.over:
                timer.over = True
                self.run(timer.layer, timer.act())
        self._now = until

    @property
    def waiting(self) -> int:
        """How many timers run."""
        return sum(not timer.over for _, _, timer in self._timers)


class PlainSeal:
    """No seal: the claims as they are, behind a mark."""

    def seal(self, claims: bytes) -> str:
        return f"plain:{claims.decode()}"

    def open(self, token: str) -> bytes | None:
        mark, _, claims = token.partition(":")
        return claims.encode() if mark == "plain" else None


def calls_of(
    clock: FakeClock, terms: Terms | None = None, *, replica: str = "r1", seal: Sealing | None = None
) -> Calls[str]:
    serial = count()
    return Calls(
        seal or PlainSeal(),
        terms or Terms(),
        upstream="up",
        replica=replica,
        mint=lambda: f"call-{next(serial)}",
        wall=clock.now,
    )


def opened_of(revision: str = "2025-11-25", capabilities: Json | None = None, **more: object) -> Opened:
    value = {
        "protocolVersion": revision,
        "capabilities": EVERYTHING if capabilities is None else capabilities,
        "serverInfo": SERVER,
        **more,
    }
    return Opened.read(Raw(json.dumps(value).encode()))


class Wire:
    """A pipeline of layers before a server; everything that leaves it at either end is kept."""

    def __init__(self, clock: FakeClock, *layers: Layer) -> None:
        self.clock = clock
        clock.run = self._due
        self.correlation = Correlation(fresh=True)
        self._pipeline = Pipeline(layers)
        self.sent: list[bytes] = []
        self.fallen: list[Answered | Noted | Questioned | Ended] = []
        self.gone = False

    def rise(self, event: Asked | Told | Withdrawn | Left) -> None:
        self._carry_out(self._pipeline.up(event))

    def hear(self, text: bytes, on: Id | None = None) -> None:
        """The server says something; `on` is the id of the request whose own stream it came on."""
        for event in self.correlation.received(read(text), on):
            self._carry_out(self._pipeline.down(event))

    def say(self, said: Json, on: Id | None = None) -> None:
        self.hear(json.dumps({"jsonrpc": "2.0", **said}, ensure_ascii=False).encode(), on)

    def lose(self) -> None:
        """The server is gone, as a link says it."""
        self.gone = True
        for exchange in self.correlation.lost():
            answer = local_error(exchange.id, "The server is gone", "upstream_lost")
            self._carry_out(self._pipeline.down(Answered(exchange, answer)))
        self._carry_out(self._pipeline.down(Lost()))

    def _due(self, layer: Layer, events: Events) -> None:
        self._carry_out(self._pipeline.due(layer, events))

    def _carry_out(self, events: Events) -> None:
        for event in events:
            match event:
                case Answered() | Noted() | Questioned() | Ended():
                    self.fallen.append(event)
                case Lost():
                    pass
                case _:
                    sends = self.correlation.up(event)
                    if not self.gone:
                        self.sent += [send.message.raw for send in sends]

    def take_sent(self) -> list[Json]:
        """What the server got since the last look."""
        sent, self.sent = self.sent, []
        return [shown(text) for text in sent]


class Bench(Wire):
    """Modern clients before one upstream session of a legacy server."""

    def __init__(
        self,
        *,
        terms: Terms | None = None,
        opened: Opened | None = None,
        declared: str = ALL,
        clock: FakeClock | None = None,
        calls: Calls[str] | None = None,
        home: str = "home",
    ) -> None:
        clock = FakeClock() if clock is None else clock
        self.terms = terms or Terms()
        self.calls = calls_of(clock, self.terms) if calls is None else calls
        capabilities = Capabilities.read(declared.encode())
        self.opened = opened or opened_of()
        self.layer = ModernToLegacy(self.opened, capabilities, self.calls, clock, self.terms, home)
        super().__init__(clock, self.layer)

    # A client

    def ask(
        self,
        request_id: Id,
        method: str,
        params: Json | None = None,
        *,
        can: str = ALL,
        party: Party | None = None,
        subject: str = "ann",
        level: str | None = None,
        token: Id | None = None,
    ) -> Exchange:
        """A modern request of a client that declares `can`; in `params`, `_meta` gets the envelope first."""
        params = dict(params or {})
        meta: Json = {
            f"{PREFIX}protocolVersion": "2026-07-28",
            f"{PREFIX}clientInfo": {"name": "c", "version": "1"},
            f"{PREFIX}clientCapabilities": json.loads(can),
        }
        if level is not None:
            meta[f"{PREFIX}logLevel"] = level
        if token is not None:
            meta["progressToken"] = token
        params["_meta"] = {**meta, **params.get("_meta", {})}
        return self.ask_raw(request_id, method, json.dumps(params).encode(), party=party, subject=subject)

    def ask_raw(
        self, request_id: Id, method: str, params: bytes, *, party: Party | None = None, subject: str = "ann"
    ) -> Exchange:
        asked = message.request(request_id, method, params)
        exchange = Exchange(party or Party("modern", subject), asked, None)
        exchange.party.exchanges[exchange.id] = exchange
        self.rise(Asked(exchange, asked))
        return exchange

    def call(
        self, request_id: Id = 1, tool: str = "a", arguments: Json | None = None, **how: Any
    ) -> Exchange:
        """A tools/call; `more` in `how` are further params."""
        more = how.pop("more", {})
        params = {"name": tool, "arguments": {"x": 1} if arguments is None else arguments, **more}
        return self.ask(request_id, "tools/call", params, **how)

    def back(self, request_id: Id, state: str, answers: object | None = None, **how: Any) -> Exchange:
        """The same call once more, with the client's answers and the state that it was given."""
        more = (
            {"requestState": state} if answers is None else {"inputResponses": answers, "requestState": state}
        )
        return self.call(request_id, more=more, **how)

    def close(self, exchange: Exchange) -> None:
        """The client closes the stream of this request, or cancels it."""
        self.rise(Withdrawn(exchange))
        exchange.party.exchanges.pop(exchange.id, None)

    # What a client gets

    def down(self, exchange: Exchange) -> list[Json]:
        """What came for this request since the last look, in order."""
        mine = [event for event in self.fallen if _exchange_of(event) is exchange]
        self.fallen = [event for event in self.fallen if _exchange_of(event) is not exchange]
        return [shown(_raw(event)) for event in mine]

    def answer(self, exchange: Exchange) -> Json:
        """All that came for this request, which is its final answer."""
        [answer] = self.down(exchange)
        assert answer.pop("id") == exchange.id
        return answer

    def asked(self, exchange: Exchange) -> tuple[Json, str]:
        """The `inputRequests` and the state that it was answered with."""
        result = self.answer(exchange)["result"]
        assert result["resultType"] == "input_required"
        state = result["requestState"]
        assert isinstance(state, str)
        return result["inputRequests"], state

    # The server

    def question(
        self, request_id: Id, method: str = "elicitation/create", params: object = EL, on: Id | None = None
    ) -> None:
        self.say({"id": request_id, "method": method, **({} if params is None else {"params": params})}, on)

    def result(self, hop_id: Id, value: object = None) -> None:
        self.say({"id": hop_id, "result": {"content": []} if value is None else value})

    def error(self, hop_id: Id, code: int, text: str = "no", **data: object) -> None:
        self.say({"id": hop_id, "error": {"code": code, "message": text, **data}})

    def note(self, method: str, params: Json, on: Id | None = None) -> None:
        self.say({"method": f"notifications/{method}", "params": params}, on)

    def leftovers(self) -> list[str]:
        """The tables that hold something, of the layer and whatever it is made of, and of the calls."""
        found, seen = [], set[int]()
        todo: list[object] = [self.layer, self.calls]
        while todo:
            one = todo.pop()
            if id(one) in seen or not type(one).__module__.startswith("bridge.era") or one is self.opened:
                continue
            seen.add(id(one))
            for name, value in getattr(one, "__dict__", {}).items():
                if isinstance(value, dict | deque) and value and name not in ("counts", "_counts", "_ended"):
                    found.append(f"{type(one).__name__}.{name}")
                todo.append(value)
        return found

    # Common beginnings

    def running(self, **how: Any) -> tuple[Exchange, Id]:
        """A tools/call that the server works at, and its id there."""
        exchange = self.call(**how)
        [sent] = self.take_sent()
        assert sent["method"] == "tools/call"
        return exchange, sent["id"]

    def suspended(self, **how: Any) -> tuple[str, Id]:
        """The base case: a tools/call suspended for one elicitation with id 0; its state, and its id."""
        exchange, hop_id = self.running(**how)
        self.question(0)
        self.clock.advance(self.terms.coalesce)
        _, state = self.asked(exchange)
        assert self.take_sent() == []
        return state, hop_id


def _exchange_of(event: Answered | Noted | Questioned | Ended) -> Exchange | None:
    return event.question.exchange if isinstance(event, Questioned) else event.exchange


def _raw(event: Answered | Noted | Questioned | Ended) -> bytes:
    match event:
        case Answered(_, response):
            return response.raw
        case Noted(_, _, note):
            return note.raw
        case _:
            raise AssertionError(event)
