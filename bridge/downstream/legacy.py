"""One legacy session over Streamable HTTP: its streams, and what goes on which.

Specification (2025-03-26 to 2025-11-25): "Streamable HTTP", "Session Management",
"Resumability and Redelivery". The endpoint finds the session; this decides everything
that happens in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec
from aiohttp.web import BaseRequest, StreamResponse
from msgspec import UNSET

from bridge.config import ProcessModel
from bridge.core import sse
from bridge.core.events import Exchange, Noted, Party, Question, Questioned
from bridge.core.headers import Accepted
from bridge.core.message import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Batch,
    Id,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    error,
    line_safe,
    local_error,
    params_of,
    result,
)
from bridge.core.replay import EventStore
from bridge.core.session import Lifecycle, Step
from bridge.core.streams import Backlog, Streams, Unplaced
from bridge.deadlines import Deadlines
from bridge.downstream.event_stream import EventStream
from bridge.downstream.http import Ready
from bridge.downstream.reply import Reply, refused
from bridge.era.revisions import Revision, revision
from bridge.errors import ServerFault
from bridge.link import Link
from bridge.relay import Relay

log = logging.getLogger("bridge.session")

RETRY_MS = 1000
"""How long a client waits before it comes back to a stream that ended early."""
_LISTENER = 0
"""The stream number of the GET stream: one logical stream, whichever connection carries it."""
_CAPABILITY = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}


class _Initialize(msgspec.Struct):
    version: str = msgspec.field(name="protocolVersion", default="")
    capabilities: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


def _said(text: msgspec.Raw | msgspec.UnsetType) -> _Initialize:
    try:
        return _Initialize() if text is UNSET else msgspec.json.decode(text, type=_Initialize)
    except msgspec.DecodeError:
        return _Initialize()


class Listener:
    """The GET stream as an outlet."""

    def __init__(self, stream: EventStream, encode: Callable[[bytes], bytes]) -> None:
        self.stream = stream
        self.carries = True
        self._encode = encode

    def push(self, payload: bytes) -> None:
        self.stream.push(self._encode(payload))

    def end(self) -> None:
        self.carries = False
        self.stream.finish()


class LegacySession:
    """The port of one session. `id` is the `Mcp-Session-Id`."""

    def __init__(self, session_id: str, relay: Relay, link: Link) -> None:
        config = relay.config
        self.id = session_id
        self.party = Party(session_id[:8])
        self.lifecycle = Lifecycle()
        self.revision: Revision | None = None
        self._initialized = False
        self._relay, self._link = relay, link
        self._limits, self._timing = config.limits, config.timing
        self._alone = config.process is ProcessModel.SESSION
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._streams = Streams()
        self._numbered: dict[int, Reply] = {}
        self._backlog = Backlog(config.limits.backlog)
        self._waits: Deadlines[Questioned] = Deadlines(config.timing.question, self._nobody_to_ask)
        self._commits: Deadlines[Reply] = Deadlines(config.timing.commit, Reply.commit)
        self._store = EventStore(
            events=config.limits.stored_events,
            size=config.limits.stored_bytes,
            age=config.limits.stored_seconds,
        )
        link.join(self)

    # What the endpoint calls

    async def post(self, request: BaseRequest, accepted: Accepted, body: Message | Batch) -> StreamResponse:
        """Take one POST of the session and answer it."""
        await self._link.writable()
        self._last = self._loop.time()
        if isinstance(body, Batch):
            return await self._post_batch(request, accepted, body)
        refusal = self.lifecycle.take(body)
        if refusal is not None:
            return refused(error(refusal.id, refusal.code, refusal.message).raw, 400)
        if isinstance(body, Request):
            return await self._post_request(request, accepted, body)
        self._deliver(body)
        return Ready(202)

    async def _post_request(self, request: BaseRequest, accepted: Accepted, asked: Request) -> StreamResponse:
        if len(self.party.exchanges) >= self._limits.in_flight:
            return self._too_many(asked.id)
        reply = self._reply(accepted)
        if asked.method == "initialize":
            self._offered(asked)
            reply.head(b"Mcp-Session-Id: %b\r\n" % self.id.encode())
        refusal = self._link.ask(self, asked, reply)
        if isinstance(refusal, Malformed):
            return refused(error(refusal.id, refusal.code, refusal.message).raw, 400)
        return await self._respond(request, reply)

    def _too_many(self, asked: Id | None) -> Ready:
        text = f"Too many requests in flight in this session; the most are {self._limits.in_flight}"
        return refused(local_error(asked, text, "in_flight").raw, 429, b"Retry-After: 1\r\n")

    async def _post_batch(self, request: BaseRequest, accepted: Accepted, batch: Batch) -> StreamResponse:
        """A batch (2025-03-26 only): its members go on one by one, their answers come back together."""
        why = self._unbatchable(batch)
        if why is not None:
            return refused(error(None, INVALID_REQUEST, f"Invalid Request: {why}").raw, 400)
        asked = [member for member in batch.members if isinstance(member, Request | Malformed)]
        if len(self.party.exchanges) + len(asked) > self._limits.in_flight:
            return self._too_many(None)
        reply = self._reply(accepted, expected=len(asked))
        for member in batch.members:
            fault = member if isinstance(member, Malformed) else self._take_member(member, reply)
            if fault is not None:
                reply.answer(error(fault.id, fault.code, fault.message).raw)
        return await self._respond(request, reply) if asked else Ready(202)

    def _take_member(self, member: Message, reply: Reply) -> Malformed | None:
        if not isinstance(member, Request):
            self._deliver(member)
            return None
        refusal = self._link.ask(self, member, reply)
        return refusal if isinstance(refusal, Malformed) else None

    def _unbatchable(self, batch: Batch) -> str | None:
        if self.revision is None or not self.revision.batches:
            return "this revision has no batches"
        if any(isinstance(member, Request) and member.method == "initialize" for member in batch.members):
            return "initialize cannot be in a batch"
        answers = [member for member in batch.members if isinstance(member, Response)]
        return "a batch holds either requests or answers" if 0 < len(answers) < len(batch.members) else None

    def _deliver(self, message: Message) -> None:
        """Pass on what needs no answer."""
        match message:
            case Notification(method="notifications/cancelled"):
                self._cancel(message)
            case Notification():
                self._link.tell(self, message)
            case Response():
                if not self._link.reply(self, message):
                    log.debug("session %s answered what nobody asked", self.party.name)
            case Request():
                raise AssertionError("a request needs an answer")

    def _cancel(self, note: Notification) -> None:
        request_id = params_of(note).request_id
        exchange = self.party.exchanges.get(request_id) if request_id is not UNSET else None
        if exchange is None or exchange.method == "initialize":
            return  # unknown, finished, or not to be cancelled
        self._link.withdraw(exchange, note)
        self.ended(exchange)

    async def listen(self, request: BaseRequest, last_event_id: str | None) -> StreamResponse:
        """Serve a GET: the session's own stream, or the rest of one that broke off."""
        found = None if last_event_id is None else self._store.after(last_event_id, self._loop.time())
        number, missed = found if found is not None else (_LISTENER, [])
        stream = EventStream(unsent=self._limits.unsent, on_pressure=self._pressure)
        await stream.start(request)
        for event in missed:
            stream.push(sse.event(event.payload, event.id))
        if number != _LISTENER:
            return await self._resume(stream, number)
        if last_event_id is None and self.revision is not None and self.revision.priming:
            stream.push(sse.priming(self._store.mark(_LISTENER), RETRY_MS))
        return await self._attend(stream)

    async def _resume(self, stream: EventStream, number: int) -> StreamResponse:
        reply = self._numbered.get(number)
        if reply is None:
            stream.finish()
        else:
            reply.attach(stream)
        if not await stream.run(self._timing.keepalive, self._timing.stalled) and reply is not None:
            reply.left()
        return stream

    async def _attend(self, stream: EventStream) -> StreamResponse:
        listener = Listener(stream, self._encoder(_LISTENER))
        previous, self._streams.listener = self._streams.listener, listener
        if isinstance(previous, Listener):
            previous.end()
        self._flush()
        try:
            await stream.run(self._timing.keepalive, self._timing.stalled)
        finally:
            listener.carries = False
            if self._streams.listener is listener:
                self._streams.listener = None
            self._last = self._loop.time()
        return stream

    # Session protocol of the relay

    def idle_since(self) -> float | None:
        listening = self._streams.listener is not None
        return None if listening or self.party.exchanges or self._streams.posts else self._last

    def close(self, why: str) -> None:
        if self._relay.sessions.pop(self.id, None) is None:
            return
        self.lifecycle.move(Step.CLOSE)
        waiting = list(self.party.exchanges.values())
        self._link.leave(self)
        for exchange in waiting:
            self._settle(exchange, local_error(exchange.id, why, "session_closed"))
        if isinstance(self._streams.listener, Listener):
            self._streams.listener.end()
        self._waits.clear()
        self._commits.clear()
        self._relay.release(self._link)
        log.info("session %s ended: %s", self.party.name, why)

    # Port protocol of the link

    def answered(self, exchange: Exchange, response: Response) -> None:
        if exchange.method == "initialize":
            self._opened(exchange, response)
        self._settle(exchange, response)

    def _settle(self, exchange: Exchange, response: Response) -> None:
        reply = exchange.via
        assert isinstance(reply, Reply)
        reply.answer(line_safe(response.raw))
        self._last = self._loop.time()

    def noted(self, exchange: Exchange | None, note: Notification) -> None:
        if note.method == "notifications/cancelled" and self._withdrawn(note):
            return
        if exchange is not None and isinstance(exchange.via, Reply):
            exchange.via.push(line_safe(note.raw))
        else:
            self._place(Noted(self.party, None, note))

    def questioned(self, question: Question, request: Request) -> None:
        self._place(Questioned(question, request))

    def ended(self, exchange: Exchange) -> None:
        if isinstance(exchange.via, Reply):
            exchange.via.abandon()
        self._last = self._loop.time()

    def lost(self, fault: ServerFault) -> None:
        if not self._initialized and self._alone:
            self._relay.failed(fault)
        self.close(str(fault))

    # Opening

    def _offered(self, asked: Request) -> None:
        """Note what the client can do; what it offers is between it and the server."""
        self.party.capabilities = frozenset(_said(asked.params).capabilities)

    def _opened(self, exchange: Exchange, response: Response) -> None:
        if response.result is UNSET:
            self.lifecycle.move(Step.REJECTED)
            if isinstance(exchange.via, Reply):
                exchange.via.head(b"")
            if self._link.fault is None:
                self._loop.call_soon(self.close, "The server refused to initialize")
            return
        self.lifecycle.move(Step.ACCEPTED)
        self._initialized = True
        said = _said(response.result)
        self.revision = revision(said.version)
        self._relay.succeeded(response.result)
        log.info("session %s opened, revision %s", self.party.name, said.version)

    # Streams

    def _encoder(self, number: int) -> Callable[[bytes], bytes]:
        store, time = self._store, self._loop.time

        def encode(payload: bytes) -> bytes:
            return sse.event(payload, store.append(number, payload, time()))

        return encode

    def _reply(self, accepted: Accepted, expected: int | None = None) -> Reply:
        number = self._store.stream()
        priming = self.revision is not None and self.revision.priming

        def opening() -> bytes:
            self._numbered[number] = reply
            return sse.priming(self._store.mark(number), RETRY_MS) if priming else b""

        reply = Reply(accepted, self._encoder(number), opening=opening, expected=expected, resumable=True)
        self._streams.posts[reply] = None
        if len(self._backlog):
            for waiting in self._backlog.questions():
                self._place(waiting)
        return reply

    async def _respond(self, request: BaseRequest, reply: Reply) -> StreamResponse:
        try:
            return await reply.respond(
                request,
                commits=self._commits,
                limits=self._limits,
                timing=self._timing,
                pressure=self._pressure,
            )
        except asyncio.CancelledError:
            reply.left()  # to leave is not to cancel (TF-05): the call runs on
            raise
        finally:
            self._drop(reply)

    def _drop(self, reply: Reply) -> None:
        """The POST's connection is over; its stream lives on if it can be resumed."""
        if reply.finished or not reply.carries:
            self._streams.posts.pop(reply, None)

    def _pressure(self, full: bool) -> None:
        if self._alone:
            self._link.pressure(full)

    def _flush(self) -> None:
        """A listener came: everything that waited goes out."""
        for event in self._backlog.take():
            self._place(event)

    def _place(self, event: Unplaced) -> None:
        if isinstance(event, Questioned):
            self._place_question(event)
            return
        outlet = self._streams.for_note()
        if isinstance(outlet, Reply | Listener):
            outlet.push(line_safe(event.notification.raw))
        else:
            self._keep(event)

    def _place_question(self, event: Questioned) -> None:
        question = event.question
        own = question.exchange.via if question.exchange is not None else None
        outlet = own if isinstance(own, Reply) and own.carries else self._streams.for_question()
        if isinstance(outlet, Reply | Listener):
            self._waits.remove(event)
            outlet.push(line_safe(event.request.raw))
        elif question.method == "ping":
            self._link.reply(self, result(question.party_id, b"{}"))
        elif _CAPABILITY.get(question.method, "") not in {"", *self.party.capabilities}:
            self._link.refuse(question, "The client did not declare this capability")
        else:
            self._waits.add(event)
            self._keep(event)

    def _keep(self, event: Unplaced) -> None:
        victim = self._backlog.put(event)
        if isinstance(victim, Questioned):
            self._nobody_to_ask(victim)
        elif victim is not None:
            log.debug("session %s: a notification was dropped, for nobody listens", self.party.name)

    def _nobody_to_ask(self, event: Questioned) -> None:
        self._waits.remove(event)
        self._backlog.withdrawn(event.question.party_id)
        self._link.refuse(event.question, "No stream of the client could carry the request", METHOD_NOT_FOUND)

    def _withdrawn(self, note: Notification) -> bool:
        """Whether the server took back a question that the client never saw."""
        party_id = params_of(note).request_id
        return party_id is not UNSET and self._backlog.withdrawn(party_id)
