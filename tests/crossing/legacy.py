"""A legacy client, the layer, and a modern server: both ends played by hand, time included.

What the server hears goes into `heard`, what the client sees into `seen`; a test takes them one by
one, so that it reads as a transcript.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable

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
    Replied,
    Told,
    Up,
    Withdrawn,
    refusal,
)
from bridge.core.layer import Pipeline
from bridge.core.message import Batch, Id, Malformed, local_error
from bridge.era.legacy_to_modern import LegacyToModern
from bridge.era.terms import Terms
from crossing.bench import EL, EVERYTHING, PREFIX, SI, FakeClock, Json

R1, R2, R3, R4 = "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"
SID = f"{PREFIX}subscriptionId"
TASKS = f"{PREFIX}tasks"
CLIENT = {"name": "l", "version": "2"}
QUIET: Json = {"tools": {}, "prompts": {}, "resources": {}}
"""A server that announces no changes."""
ASKABLE: Json = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {"listChanged": True}}


def envelope(capabilities: Json, **more: object) -> Json:
    return {
        f"{PREFIX}protocolVersion": "2026-07-28",
        f"{PREFIX}clientInfo": CLIENT,
        f"{PREFIX}clientCapabilities": capabilities,
        **more,
    }


def discovery(capabilities: Json = EVERYTHING, **more: object) -> Json:
    return {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": capabilities,
        "ttlMs": 0,
        "cacheScope": "private",
        **SI,
        **more,
    }


def required(state: object = None, **requests: Json) -> Json:
    """An InputRequiredResult."""
    found: Json = {"resultType": "input_required"}
    if requests:
        found["inputRequests"] = requests
    return found if state is None else {**found, "requestState": state}


def elicit(**params: object) -> Json:
    return {"method": "elicitation/create", "params": {**EL, **params}}


def bridges(error: Json) -> str:
    """The reason of an error of the bridge's own."""
    assert error["data"]["origin"] == "bridge"
    return str(error["data"]["reason"])


class Crossed:
    def __init__(self, terms: Terms | None = None, *, fresh: bool = True, name: str = "upstream") -> None:
        self.clock = FakeClock()
        self.clock.run = lambda layer, events: self.carry_out(self._pipeline.due(layer, events))
        self.party = Party("client")
        self.layer = LegacyToModern(self.party, self.clock, terms or Terms(), name=name)
        self.correlation = Correlation(fresh=fresh)
        self.heard: deque[Json] = deque()
        self.seen: deque[Json] = deque()
        self.carriers: deque[Exchange | None] = deque()
        """For each message in `seen` the request on whose stream it came."""
        self.refuses_questions = False
        """Whether the client's port refuses every question on the spot, as one does that nobody hears."""
        self.lines: list[bytes] = []
        """All that the server was sent, as it was written; and `shown` the same of the client."""
        self.shown: list[bytes] = []
        self._pipeline = Pipeline((self.layer,))
        self._serial = 0

    # The client

    def ask(
        self, method: str, params: Json | None = None, *, own: Id | None = None, askable: bool = True
    ) -> Exchange:
        return self.ask_raw(method, None if params is None else dump(params), own=own, askable=askable)

    def ask_raw(
        self, method: str, params: bytes | None, *, own: Id | None = None, askable: bool = True
    ) -> Exchange:
        self._serial += 1
        asked = message.request(f"c{self._serial}" if own is None else own, method, params)
        exchange = Exchange(self.party, asked, None, askable=askable)
        self.party.exchanges[exchange.id] = exchange
        self.rise(Asked(exchange, asked))
        return exchange

    def call(
        self, name: str = "a", *, own: Id | None = None, askable: bool = True, **more: object
    ) -> Exchange:
        return self.ask("tools/call", {"name": name, "arguments": {}, **more}, own=own, askable=askable)

    def tell(self, method: str) -> None:
        self.rise(Told(self.party, message.notification(f"notifications/{method}")))

    def reply(self, question: Json, result: object) -> None:
        self._reply({"jsonrpc": "2.0", "id": question["id"], "result": result})

    def refuse(self, question: Json, code: int, text: str = "no") -> None:
        self._reply({"jsonrpc": "2.0", "id": question["id"], "error": {"code": code, "message": text}})

    def _reply(self, answer: Json) -> None:
        """As a link does: under the server's id, if anybody was asked."""
        question = self.party.questions.get(answer["id"])
        if question is not None:
            read = message.read(dump(answer), depth=128)
            assert isinstance(read, message.Response)
            self.rise(Replied(question, read.with_id(question.id)))

    def cancel(self, exchange: Exchange) -> None:
        self.rise(Withdrawn(exchange))
        self.party.exchanges.pop(exchange.id, None)

    def leave(self) -> None:
        self.rise(Left(self.party))

    def sees(self, method: str | None = None) -> Json:
        """The next message for the client; a request or notification of this method, if one is named."""
        found, _ = self.seen.popleft(), self.carriers.popleft()
        assert found.get("method") == method, found
        return found

    def sees_on(self, method: str | None = None) -> tuple[Json, Exchange | None]:
        carrier = self.carriers[0]
        return self.sees(method), carrier

    def result(self) -> Json:
        """The result that the client sees next."""
        found: Json = self.sees()["result"]
        return found

    def error(self) -> Json:
        found: Json = self.sees()["error"]
        return found

    # The server

    def hears(self, method: str | None = None) -> Json:
        found = self.heard.popleft()
        assert method is None or found.get("method") == method, found
        return found

    def hears_cancelled(self, asked: Json) -> None:
        assert self.hears("notifications/cancelled")["params"] == {"requestId": asked["id"]}

    def answers(self, asked: Json, result: object | None = None) -> None:
        value = {"resultType": "complete"} if result is None else result
        self.says({"id": asked["id"], "result": value})

    def refuses(self, asked: Json, code: int, text: str = "no", data: object = None) -> None:
        error = {"code": code, "message": text} | ({} if data is None else {"data": data})
        self.says({"id": asked["id"], "error": error})

    def breaks(self, asked: Json) -> None:
        """Its stream ends without an answer."""
        self.hear(
            local_error(asked["id"], "The server's stream ended before the answer", "upstream_lost").raw
        )

    def acknowledges(self, listen: Json, **honoured: object) -> None:
        granted = honoured or listen["params"]["notifications"]
        self.tells(listen, "subscriptions/acknowledged", notifications=granted)

    def tells(self, listen: Json, method: str, **params: object) -> None:
        """A notification on this subscription."""
        self.says({"method": f"notifications/{method}", "params": {"_meta": {SID: listen["id"]}, **params}})

    def progresses(self, asked: Json, progress: float) -> None:
        token = asked["params"]["_meta"]["progressToken"]
        self.says(
            {"method": "notifications/progress", "params": {"progressToken": token, "progress": progress}}
        )

    def says(self, said: Json) -> None:
        self.hear(dump({"jsonrpc": "2.0", **said}))

    def hear(self, text: bytes) -> None:
        read = message.read(text, depth=128)
        assert not isinstance(read, Batch | Malformed), read
        for event in self.correlation.received(read):
            self.carry_out(self._pipeline.down(event))

    def die(self) -> None:
        """As a link does when its server is lost."""
        for exchange in self.correlation.lost():
            lost = Answered(exchange, local_error(exchange.id, "exited", "upstream_lost"))
            self.carry_out(self._pipeline.down(lost))
        self.carry_out(self._pipeline.down(Lost()))

    # Both

    def rise(self, event: Up) -> None:
        self.carry_out(self._pipeline.up(event))

    def carry_out(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Answered(exchange, response):
                    assert exchange.party is self.party
                    self.party.exchanges.pop(exchange.id, None)
                    self._show(response.raw, exchange)
                case Noted(party, exchange, note):
                    assert party is self.party
                    self._show(note.raw, exchange)
                case Questioned(question, asked):
                    assert question.party is self.party
                    self.party.enter(question)
                    self._show(asked.with_id(question.party_id).raw, question.exchange)
                    if self.refuses_questions:
                        self.rise(refusal(question, -32601, "There is nobody to ask"))
                case Ended(_) | Lost():
                    raise AssertionError(event)
                case _:
                    for send in self.correlation.up(event):
                        self.lines.append(send.message.raw)
                        self.heard.append(json.loads(send.message.raw))

    def _show(self, raw: bytes, carrier: Exchange | None) -> None:
        self.shown.append(raw)
        found = json.loads(raw)
        assert found.pop("jsonrpc") == "2.0"
        self.seen.append(found)
        self.carriers.append(carrier)

    @property
    def silent(self) -> bool:
        """Whether nothing is on its way to anybody."""
        return not self.heard and not self.seen


def dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def initialize(revision: str = R4, capabilities: Json | None = None) -> Json:
    return {"protocolVersion": revision, "capabilities": capabilities or {}, "clientInfo": CLIENT}


def opened(
    revision: str = R4,
    capabilities: Json | None = None,
    *,
    server: Json = QUIET,
    terms: Terms | None = None,
    fresh: bool = True,
) -> Crossed:
    """A session that is open, before a server that announces no changes."""
    crossed = Crossed(terms, fresh=fresh)
    crossed.ask("initialize", initialize(revision, capabilities))
    crossed.answers(crossed.hears("server/discover"), discovery(server))
    assert crossed.result()["protocolVersion"] == revision
    crossed.tell("initialized")
    return crossed
