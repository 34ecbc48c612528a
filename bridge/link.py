"""One upstream session: what is sent over it, and to whom what comes back belongs.

A `Link` feeds events into the core (`core.layer`, `core.correlate`) and carries out what
comes of them: lines to the upstream, calls to the ports. It knows no transport: an
upstream and a port are what their protocols say.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import anyio
import msgspec
from msgspec import UNSET

from bridge.config import Config
from bridge.core.correlate import LISTEN, SUBSCRIPTION, Correlation
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
    party_of,
    refusal,
)
from bridge.core.layer import Layer, Pipeline, Timer
from bridge.core.lines import Overlong
from bridge.core.message import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Batch,
    Id,
    Malformed,
    Notification,
    Request,
    Response,
    asks,
    error,
    line_safe,
    local_error,
    read,
    request,
    result,
    salvaged_id,
)
from bridge.core.splice import quote
from bridge.deadlines import Deadlines
from bridge.downstream.base import Port
from bridge.era.revisions import Era
from bridge.errors import ServerFault, ServerStopped, StartTimeout
from bridge.upstream.base import Upstream

log = logging.getLogger("bridge.link")

_PAYLOAD: Final = re.compile(rb'(?<="params":)|(?<="result":)|(?<="error":)')
_TOOLS_CHANGED: Final = "notifications/tools/list_changed"
_OPENING: Final = frozenset({"initialize", "server/discover"})
"""Requests that a server answers as soon as it runs; held to the start limit."""


class Link:
    """One upstream session: what is sent over it, and to whom what comes back belongs.

    `era` is what its parties speak: to a modern server nobody answers questions.
    """

    def __init__(self, config: Config, *, fresh: bool, era: Era = Era.LEGACY) -> None:
        self._limits, self._timing = config.limits, config.timing
        self.era = era
        self.kept = False
        """Whether it outlives the ports that use it."""
        self.tools_changed = 0
        """How often the server said that its tools changed."""
        self._correlation = Correlation(fresh=fresh)
        self._pipeline = Pipeline()
        self._layered = False
        """Whether anything is between a port and the wire."""
        self._crossed: dict[Party, Pipeline] = {}
        """The pipelines of parties that have one of their own."""
        self._ports: dict[Party, Port] = {}
        self._waiting: set[Exchange] = set()
        self._settlement = asyncio.Event()
        self._upstream: Upstream | None = None
        self._expiry = Deadlines(config.timing.request, self._expired)
        self._starting = Deadlines(config.timing.start, self._never_started)
        self._pauses = 0
        self._now = asyncio.get_running_loop().time
        self.quiet_since = self._now()
        """When anything was last answered, somebody left, or the server was lost."""
        self.proven = False
        """Whether the server ever said anything that can be read."""
        self.fault: ServerFault | None = None

    @property
    def in_flight(self) -> int:
        """Requests that somebody waits for."""
        return len(self._waiting)

    async def idle(self) -> None:
        """Return when nobody waits any more; subscriptions are not waited for, since they have no end."""
        while any(exchange.method != LISTEN for exchange in self._waiting):
            self._settlement.clear()
            await self._settlement.wait()

    @property
    def label(self) -> str:
        return "server" if self._upstream is None else self._upstream.label

    def attach(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def settle(self, *, fresh: bool, era: Era) -> None:
        """Be another kind of link, while no client's request was sent on it."""
        self.era = era
        self._correlation.settle(fresh=fresh)

    def insert(self, *layers: Layer) -> None:
        """Put layers between all ports and the wire."""
        self._pipeline = Pipeline(layers)
        self._layered = True

    def join(self, port: Port, *layers: Layer, behind: Party | None = None) -> None:
        """Serve a port; `layers` are its own, and `behind` is the party they speak to the server as."""
        self._ports[port.party] = port
        if layers:
            pipeline = Pipeline(layers)
            self._layered = True
            for party in (port.party, behind or port.party):
                self._crossed[party] = pipeline

    def _pipeline_of(self, party: Party | None) -> Pipeline:
        return (
            self._pipeline if party is None or not self._crossed else self._crossed.get(party, self._pipeline)
        )

    # Clock of the layers

    def now(self) -> float:
        return self._now()

    def after(self, seconds: float, layer: Layer, act: Callable[[], Iterable[Event]]) -> Timer:
        loop = asyncio.get_running_loop()
        return loop.call_later(seconds, partial(self._due, layer, act))

    def _due(self, layer: Layer, act: Callable[[], Iterable[Event]]) -> None:
        for pipeline in (self._pipeline, *self._crossed.values()):
            if pipeline.holds(layer):
                self._execute(pipeline.due(layer, act()))
                return

    @property
    def used(self) -> bool:
        """Whether anybody has joined it."""
        return bool(self._ports)

    @property
    def idle_since(self) -> float | None:
        """Since when nobody waits and no session uses it; None while somebody does."""
        return None if self._waiting or self._crossed else self.quiet_since

    async def awake(self) -> None:
        """Return when the server has shown a sign of life."""
        if self._upstream is not None:
            await self._upstream.awake()

    @property
    def congested(self) -> bool:
        """Whether the server reads slower than it is sent to."""
        return self._upstream is not None and self._upstream.congested

    async def writable(self) -> bool:
        """Wait while the server does not read what was sent before; False if a request's time is over."""
        if self._upstream is not None and self.congested:
            with anyio.move_on_after(self._timing.request) as patience:
                await self._upstream.drained()
            return not patience.cancelled_caught
        return True

    def late(self, message_id: Id | None, within: float | None = None) -> Response:
        """What a request is told whose time is over: so many seconds, or those that any request has."""
        seconds = self._timing.request if within is None else within
        return local_error(message_id, f"No answer within {seconds:g} s", "upstream_timeout")

    def pressure(self, full: bool) -> None:
        """A port's buffer filled up (true) or drained (false): stop or go on reading the server."""
        self._pauses += 1 if full else -1
        if self._upstream is not None and self._pauses <= 1:
            if full:
                self._upstream.pause()
            elif self._pauses == 0:
                self._upstream.resume()

    async def close(self) -> None:
        """End the server: subscriptions end in good order (SB-5), whatever else waits with an error."""
        for exchange in [exchange for exchange in self._waiting if exchange.method == LISTEN]:
            self.withdraw(exchange)
            self._answer(exchange, _closing(exchange))
        if self._upstream is not None:
            await self._upstream.close()

    # Client to server

    def ask(
        self, port: Port, asked: Request, via: object, *, wants_log: bool = False, askable: bool = True
    ) -> Exchange | Malformed:
        """Send a client's request on; the refusal if its id is in use.

        The answer comes through `port.answered`, possibly before this returns.
        """
        party = port.party
        if asked.id in party.exchanges:
            return Malformed(INVALID_REQUEST, "Invalid Request: this id is in flight already", asked.id)
        exchange = Exchange(party, asked, via, log=wants_log, askable=askable)
        if asked.method == "initialize":
            party.capabilities, party.offer = _declared(asked), asked
        if self.fault is not None:
            port.answered(exchange, answer_to_fault(exchange.id, self.fault))
            return exchange
        if party not in self._ports:
            self._decline(port, exchange)
            return exchange
        self._waiting.add(exchange)
        if self._layered:
            party.exchanges[exchange.id] = exchange  # a layer may never send it under this id
        if asked.method != LISTEN:
            self._expiry.add(exchange)
        if asked.method in _OPENING:
            self._starting.add(exchange)
        self._rise(Asked(exchange, asked), party)
        return exchange

    def tell(self, port: Port, note: Notification) -> None:
        self._rise(Told(port.party, note), port.party)

    def reply(self, port: Port, response: Response) -> bool:
        """Send a client's answer on; False if nothing was asked under that id."""
        question = None if response.id is None else port.party.questions.get(response.id)
        if question is None:
            return False
        own = response if question.id is question.party_id else response.with_id(question.id)
        self._rise(Replied(question, own), question.party)
        return True

    def withdraw(self, exchange: Exchange, note: Notification | None = None) -> None:
        """The client gave up; `initialize` is let run on, as a client may not cancel it."""
        if exchange.method != "initialize":
            self._rise(Withdrawn(exchange, note), exchange.party)
            self._settled(exchange)

    def spare(self, exchange: Exchange) -> None:
        """Hold it to no time limit: who asked has a patience of its own."""
        self._expiry.remove(exchange)
        self._starting.remove(exchange)

    def forsake(self, exchange: Exchange) -> None:
        """Wait no longer for an answer, which is not cancelled; it is dropped if it comes."""
        self._correlation.failed(exchange.hop_id)
        self._settled(exchange)

    def refuse(self, question: Question, why: str, code: int = METHOD_NOT_FOUND) -> None:
        """Answer the server's request with an error, since no client will."""
        self._rise(refusal(question, code, why), question.party)

    def part(self, port: Port) -> None:
        """Leave, with an answer for what still waits: the port goes on with another server."""
        waiting = list(port.party.exchanges.values())
        self.leave(port)
        for exchange in waiting:
            self._decline(port, exchange)

    @staticmethod
    def _decline(port: Port, exchange: Exchange) -> None:
        """Answer for a server that the port has left."""
        if exchange.method == "ping":
            port.answered(exchange, result(exchange.id, b"{}"))
        else:
            text = "The server turns out to be of another era; ask again"
            port.answered(exchange, local_error(exchange.id, text, "upstream_era"))

    def leave(self, port: Port) -> None:
        """The party is gone: what it waits for is withdrawn, and what it was asked is refused."""
        waiting = list(port.party.exchanges.values())
        if self._ports.pop(port.party, None) is not None and self.fault is None:
            self._rise(Left(port.party), port.party)
        self._uncross(port.party)
        for exchange in waiting:
            self._settled(exchange)
        self.quiet_since = self._now()

    def _uncross(self, party: Party) -> None:
        pipeline = self._crossed.pop(party, None)
        for behind in [one for one, found in self._crossed.items() if found is pipeline]:
            del self._crossed[behind]

    def _rise(self, event: Up, party: Party | None) -> None:
        self._execute(self._pipeline_of(party).up(event) if self._layered else (event,))

    def _execute(self, events: Iterable[Event]) -> None:
        """Carry out what left the pipeline, at either end."""
        for event in events:
            match event:
                case Answered(exchange, response):
                    self._answer(exchange, response)
                case Noted(party, exchange, note):
                    self._note(party, exchange, note)
                case Questioned(question, asked):
                    self._question(question, asked)
                case Ended(exchange):
                    self._end(exchange)
                case Lost():
                    pass
                case _:
                    for send in self._correlation.up(event):
                        if self._upstream is not None:
                            message = send.message
                            beside = message.headers if isinstance(message, Request) else ()
                            self._upstream.send(line_safe(message.raw), beside)

    # Server to client

    def received(self, lines: list[bytes | Overlong], on: Id | None = None) -> None:
        """What one read of the server gave (upstream.base.Receiver)."""
        if self.fault is not None:
            return  # given up for lost, while it still talks
        for line in lines:
            if isinstance(line, Overlong):
                self._unreadable(line.head, line.tail, f"a message of {line.size} bytes is over the limit")
                continue
            found = read(line, depth=self._limits.depth)
            for message in found.members if isinstance(found, Batch) else (found,):
                if isinstance(message, Malformed):
                    self._unreadable(line, line, message.message, message.id)
                else:
                    self._fall(message, on)

    def _fall(self, message: Request | Notification | Response, on: Id | None) -> None:
        self.proven = True
        if self.kept and isinstance(message, Notification) and message.method == _TOOLS_CHANGED:
            self.tools_changed += 1
        events = self._correlation.received(message, on)
        if not events and log.isEnabledFor(logging.DEBUG):
            log.debug("%s: nobody's: %r", self.label, message.raw[:120])
        for event in events:
            if self.era is Era.MODERN and isinstance(event, Questioned):
                what = event.question.method
                log.warning("%s: dropped its request %s; a modern server may not ask", self.label, what)
                self._correlation.forget(event.question)
            elif self._layered:
                self._sink(event)
            else:
                self._execute((event,))

    def _sink(self, event: Down) -> None:
        self._execute(self._pipeline_of(party_of(event)).down(event))

    def _unreadable(self, head: bytes, tail: bytes, why: str, message_id: Id | None = None) -> None:
        """Drop what the server should not have written; tell whoever plainly waits for it."""
        # Noise is worth showing; of a spoilt message all but somebody's payload.
        shown = _PAYLOAD.split(head[:120], 1)[0]
        log.warning("%s: dropped its output: %s: %r", self.label, why, shown, extra={"label": self.label})
        owner = message_id if message_id is not None else salvaged_id(head, tail)
        if owner is None:
            return
        if asks(head):
            self._misread(owner, why)
            return
        exchange = self._correlation.failed(owner)
        if exchange is not None:
            reason = f"The server's answer cannot be delivered: {why}"
            self._sink(Answered(exchange, local_error(exchange.id, reason, "invalid_upstream_message")))

    def _misread(self, asked: Id, why: str) -> None:
        """Tell the server that its request cannot be put to anybody, for it may wait for ever."""
        if self.era is Era.LEGACY and self._upstream is not None:
            refused = local_error(asked, f"Invalid Request: {why}", "undeliverable", INVALID_REQUEST)
            self._upstream.send(refused.raw)

    def _answer(self, exchange: Exchange, response: Response) -> None:
        self._settled(exchange)
        port = self._ports.get(exchange.party)
        if port is not None:
            port.answered(exchange, response)

    def _settled(self, exchange: Exchange) -> None:
        self._waiting.discard(exchange)
        if self._layered and exchange.party.exchanges.get(exchange.id) is exchange:
            del exchange.party.exchanges[exchange.id]
        self._expiry.remove(exchange)
        self._starting.remove(exchange)
        self.quiet_since = self._now()
        self._settlement.set()

    def _end(self, exchange: Exchange) -> None:
        self._settled(exchange)
        port = self._ports.get(exchange.party)
        if port is not None:
            port.ended(exchange)

    def _note(self, party: Party | None, exchange: Exchange | None, note: Notification) -> None:
        if exchange is not None:
            self._expiry.extend(exchange)
        port = self._ports.get(party) if party is not None else self._only_port()
        if port is None:
            log.debug("%s: nobody to tell of %s", self.label, note.method)
        else:
            port.noted(exchange, note)

    def _only_port(self) -> Port | None:
        return next(iter(self._ports.values())) if len(self._ports) == 1 else None

    def _question(self, question: Question, asked: Request) -> None:
        port = self._ports.get(question.party) if question.party is not None else self._only_port()
        if port is None:
            self.refuse(question, "There is no client to ask")
            return
        port.party.enter(question)
        if question.party_id is not question.id:
            asked = asked.with_id(question.party_id)
        port.questioned(question, asked)

    def _expired(self, exchange: Exchange, within: float | None = None) -> None:
        if any(exchange in question.during for question in exchange.party.questions.values()):
            # A person may be answering inside the call (CP-18).
            (self._expiry if within is None else self._starting).add(exchange)
            return
        if exchange.method == "initialize" and exchange.party not in self._crossed:
            self._correlation.failed(exchange.hop_id)
        else:
            self._rise(Withdrawn(exchange), exchange.party)
        self._answer(exchange, self.late(exchange.id, within))

    def _never_started(self, exchange: Exchange) -> None:
        if self.proven:
            self._expired(exchange, self._timing.start)  # it serves others, or answered another question
            return
        self.lost(StartTimeout(f"The server did not answer its handshake within {self._timing.start:g} s"))

    def lost(self, fault: ServerFault) -> None:
        """The server is gone (upstream.base.Receiver): every waiting request is told so at once."""
        if self.fault is not None:
            return
        self.fault = fault
        self.quiet_since = self._now()
        for exchange in self._correlation.lost():
            self._sink(Answered(exchange, answer_to_fault(exchange.id, fault)))
        for pipeline in {self._pipeline, *self._crossed.values()}:
            self._execute(pipeline.down(Lost()))
        self._expiry.clear()
        self._starting.clear()
        for port in list(self._ports.values()):
            port.lost(fault)


class _Offer(msgspec.Struct):
    capabilities: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


def _declared(asked: Request) -> frozenset[str]:
    """What an initialize says that its client can do; one that cannot be read says nothing."""
    try:
        offer = _Offer() if asked.params is UNSET else msgspec.json.decode(asked.params, type=_Offer)
    except msgspec.DecodeError:
        return frozenset()
    return frozenset(offer.capabilities)


def _closing(exchange: Exchange) -> Response:
    """What ends a subscription that the bridge ends."""
    meta = b"{%b:%b}" % (quote(SUBSCRIPTION), quote(exchange.id))
    return result(exchange.id, b'{"resultType":"complete","_meta":%b}' % meta)


def answer_to_fault(message_id: Id | None, fault: ServerFault) -> Response:
    """What a waiting request is told when its server failed."""
    text, data = str(fault), {"origin": "bridge", "reason": fault.reason}
    if isinstance(fault, ServerStopped):
        if fault.stderr:
            text = f"{text}: {fault.stderr[-1]}"
        detail = {**data, "exitCode": fault.exit_code, "stderr": list(fault.stderr)}
        return error(message_id, INTERNAL_ERROR, text, quote(detail))
    return error(message_id, INTERNAL_ERROR, text, quote(data))


class Caller:
    """A port for the bridge's own requests: each answer goes to the future that waits for it."""

    def __init__(self, link: Link) -> None:
        self.party = Party("bridge")
        self.link = link
        self._serial = 0
        link.join(self)

    def tell(self, note: Notification) -> None:
        self.link.tell(self, note)

    async def call(self, method: str, params: bytes) -> Response:
        exchange, done = self._ask(method, params)
        try:
            return await done
        except asyncio.CancelledError:
            self.link.withdraw(exchange)
            raise

    async def probe(self, method: str, params: bytes, patience: anyio.CancelScope) -> Response | None:
        """Ask what a server may not know; None when `patience` is over. It is never cancelled (§6.1)."""
        exchange, done = self._ask(method, params)
        self.link.spare(exchange)
        with patience:
            return await done
        self.link.forsake(exchange)
        return None

    def _ask(self, method: str, params: bytes) -> tuple[Exchange, asyncio.Future[Response]]:
        self._serial += 1
        done: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        exchange = self.link.ask(self, request(f"bridge-{self._serial}", method, params), done)
        assert isinstance(exchange, Exchange)
        return exchange, done

    def answered(self, exchange: Exchange, response: Response) -> None:
        done = exchange.via
        if isinstance(done, asyncio.Future) and not done.done():
            done.set_result(response)

    def noted(self, exchange: Exchange | None, note: Notification) -> None:
        log.debug("nobody listens for %s yet", note.method)

    def questioned(self, question: Question, request: Request) -> None:
        if request.method == "ping":
            self.link.reply(self, result(question.party_id, b"{}"))
        else:
            self.link.refuse(question, "The client is the bridge itself; it answers nothing")

    def ended(self, exchange: Exchange) -> None:
        self.link.withdraw(exchange)

    def lost(self, fault: ServerFault) -> None:
        log.debug("lost while the bridge itself was asking: %s", fault)
