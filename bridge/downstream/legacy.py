"""One legacy session over Streamable HTTP: its streams, and what goes on which.

Specification (2025-03-26 to 2025-11-25): "Streamable HTTP", "Session Management",
"Resumability and Redelivery". The endpoint finds the session; this decides everything
that happens in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import anyio
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
from bridge.core.replay import EventStore, StoredEvent
from bridge.core.session import Lifecycle, Phase, Step
from bridge.core.streams import Backlog, Streams, Unplaced
from bridge.deadlines import Deadlines
from bridge.downstream.event_stream import EventStream
from bridge.downstream.http import Ready
from bridge.downstream.party import UNDECLARED, deliver, said_in, subject_of, unbatchable
from bridge.downstream.reply import Reply, later, malformed, refused
from bridge.era.revisions import Revision, revision
from bridge.errors import ServerFault
from bridge.link import Link
from bridge.relay import Relay

log = logging.getLogger("bridge.session")

RETRY_MS = 1000
"""How long a client waits before it comes back to a stream that ended early."""


def gone(asked: Id | None) -> Ready:
    """The refusal that tells a client to initialize anew."""
    text = "Session not found: it ended or never was; initialize a new one"
    return refused(local_error(asked, text, "session_not_found", INVALID_REQUEST).raw, 404)


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

    def hand_over(self) -> list[bytes]:
        """End for another's sake; gives what was not sent yet."""
        self.carries = False
        return self.stream.superseded()


class LegacySession:
    """The port of one session. `id` is the `Mcp-Session-Id`."""

    def __init__(self, session_id: str, relay: Relay, link: Link) -> None:
        config = relay.config
        self.id = session_id
        self.party = Party(session_id[:8], subject_of(config) or session_id)
        self.lifecycle = Lifecycle()
        self.revision: Revision | None = None
        self._initialized = False
        self._relay, self._link = relay, link
        self._limits, self._timing = config.limits, config.timing
        self._alone = config.process is ProcessModel.SESSION
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._streams = Streams()
        self._admissions: set[anyio.CancelScope] = set()
        """POSTs that wait until the server reads again."""
        self._numbered: dict[int, Reply] = {}
        self._backlog = Backlog(config.limits.backlog)
        self._waits: Deadlines[Questioned] = Deadlines(config.timing.question, self._nobody_to_ask)
        self._commits: Deadlines[Reply] = Deadlines(config.timing.commit, Reply.commit)
        self._store = EventStore(
            events=config.limits.stored_events,
            size=config.limits.stored_bytes,
            age=config.limits.stored_seconds,
        )
        self._listening = self._store.stream()
        """The number of the GET stream: one logical stream, whichever connection carries it."""
        self._slow = link.pressure if self._alone and not link.kept else None
        self._moved = False
        """Whether the server refused to initialize, and the session was put to its other era."""
        relay.join(link, self)

    # What the endpoint calls

    async def post(self, request: BaseRequest, accepted: Accepted, body: Message | Batch) -> StreamResponse:
        """Take one POST of the session and answer it."""
        if self._link.congested:
            late = await self._admit(body)
            if late is not None:
                return late
        self._last = self._loop.time()
        if isinstance(body, Batch):
            return await self._post_batch(request, accepted, body)
        refusal = self.lifecycle.take(body)
        if refusal is not None:
            return malformed(refusal)
        if isinstance(body, Request):
            return await self._post_request(request, accepted, body)
        deliver(self._link, self, body)
        return Ready(202)

    async def _admit(self, body: Message | Batch) -> Ready | None:
        """Wait until the server reads again; the refusal, if the session or the time is over first."""
        asked = body.id if isinstance(body, Request) else None
        in_time = False
        with anyio.CancelScope() as wait:
            self._admissions.add(wait)
            try:
                in_time = await self._link.writable()
            finally:
                self._admissions.discard(wait)
        if self.lifecycle.phase is Phase.CLOSED:
            return gone(asked)
        return None if in_time else refused(self._link.late(asked).raw, 503 if asked is None else 200)

    async def _post_request(self, request: BaseRequest, accepted: Accepted, asked: Request) -> StreamResponse:
        if len(self.party.exchanges) >= self._limits.in_flight:
            return self._too_many(asked.id)
        reply = self._reply(accepted)
        if asked.method == "initialize":
            reply.head(b"Mcp-Session-Id: %b\r\n" % self.id.encode())
        refusal = self._link.ask(self, asked, reply, askable=accepted.sse)
        if isinstance(refusal, Malformed):
            return malformed(refusal)
        return await self._respond(request, reply)

    def _too_many(self, asked: Id | None) -> Ready:
        text = f"Too many requests in flight in this session; the most are {self._limits.in_flight}"
        return later(asked, text, "in_flight", status=429)

    async def _post_batch(self, request: BaseRequest, accepted: Accepted, batch: Batch) -> StreamResponse:
        """A batch (2025-03-26 only): its members go on one by one, their answers come back together."""
        why = unbatchable(batch, self.revision)
        if why is not None:
            return malformed(Malformed(INVALID_REQUEST, f"Invalid Request: {why}"))
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
            deliver(self._link, self, member)
            return None
        refusal = self._link.ask(self, member, reply, askable=reply.accepted.sse)
        return refusal if isinstance(refusal, Malformed) else None

    async def listen(self, request: BaseRequest, last_event_id: str | None) -> StreamResponse:
        """Serve a GET: the session's own stream, or the rest of one that broke off."""
        cursor = None if last_event_id is None else self._cursor(last_event_id)
        number, missed = cursor or (self._listening, [])
        stream = EventStream(unsent=self._limits.unsent, on_pressure=self._slow)
        await stream.start(request)
        if cursor is None:
            stream.push(self._priming(number))
        for event in missed:
            stream.push(sse.event(event.payload, self._named(event.id)))
        if number == self._listening:
            await self._attend(stream, replayed=cursor is not None)
        else:
            await self._resume(stream, number)
        return stream

    def _cursor(self, event_id: str) -> tuple[int, list[StoredEvent]] | None:
        """The stream that one of our event ids names, and what was missed of it."""
        session, _, own = event_id.rpartition(".")
        return self._store.after(own, self._loop.time()) if session == self.party.name else None

    def _named(self, event_id: str) -> str:
        """The id of an event on the wire; it names the session too, since every session counts alike."""
        return f"{self.party.name}.{event_id}"

    def _priming(self, number: int) -> bytes:
        """What a stream opens with, by the revision."""
        if self.revision is None or not self.revision.priming:
            return b""
        return sse.priming(self._named(self._store.mark(number)), RETRY_MS)

    async def _resume(self, stream: EventStream, number: int) -> None:
        """Go on with the stream of a POST whose connection broke."""
        reply = self._numbered.get(number)
        if reply is None:
            stream.finish()
            await stream.run(self._timing.keepalive, self._timing.stalled)
            return
        reply.attach(stream)
        self._enter(reply)
        try:
            await reply.attend(stream, self._timing)
        finally:
            self._review(reply)

    async def _attend(self, stream: EventStream, *, replayed: bool) -> None:
        """Be the session's GET stream, in place of an earlier one.

        What that one did not get to send goes on here, unless it was `replayed` already.
        """
        listener = Listener(stream, self._encoder(self._listening))
        previous, self._streams.listener = self._streams.listener, listener
        if isinstance(previous, Listener):
            for event in previous.hand_over():
                if not replayed:
                    stream.push(event)
        self._flush()
        try:
            await stream.run(self._timing.keepalive, self._timing.stalled)
        finally:
            listener.carries = False
            if self._streams.listener is listener:
                self._streams.listener = None
            self._last = self._loop.time()

    # Session protocol of the relay

    def idle_since(self) -> float | None:
        busy = self._streams.listener is not None or self.party.exchanges
        return None if busy else self._last

    def close(self, why: str) -> None:
        if self._relay.sessions.pop(self.id, None) is None:
            return
        self.lifecycle.move(Step.CLOSE)
        waiting = list(self.party.exchanges.values())
        self._link.leave(self)
        for exchange in waiting:
            self._settle(exchange, local_error(exchange.id, why, "session_closed"))
        for admission in self._admissions:
            admission.cancel()
        if isinstance(self._streams.listener, Listener):
            self._streams.listener.end()
        self._waits.clear()
        self._commits.clear()
        self._relay.release(self._link)
        log.info("session %s ended: %s", self.party.name, why)

    # Port protocol of the link

    def answered(self, exchange: Exchange, response: Response) -> None:
        if exchange.method == "initialize":
            if not self._moved and self._relay.crosses(self, self._link, exchange, response):
                self._moved = True
                self._link.part(self)  # whatever becomes of that server is no matter any more
                return
            self._opened(exchange, response)
        self._settle(exchange, response)
        if self.lifecycle.phase is Phase.CLOSED and self._link.fault is not None:
            self.lost(self._link.fault)  # the server never came up, maybe before this joined its link

    def _settle(self, exchange: Exchange, response: Response) -> None:
        reply = exchange.via
        assert isinstance(reply, Reply)
        reply.answer(line_safe(response.raw))
        self._review(reply)
        self._last = self._loop.time()

    def moved(self, link: Link) -> bool:
        if self.lifecycle.phase is Phase.CLOSED:
            return False
        self._relay.release(self._link)
        self._link, self._slow = link, None
        self._relay.join(link, self)
        return True

    def noted(self, exchange: Exchange | None, note: Notification) -> None:
        if note.method == "notifications/cancelled" and self._withdrawn(note):
            return
        if exchange is not None and isinstance(exchange.via, Reply) and not exchange.via.finished:
            exchange.via.push(line_safe(note.raw))
        else:
            self._place(Noted(self.party, None, note))

    def questioned(self, question: Question, request: Request) -> None:
        self._place(Questioned(question, request))

    def ended(self, exchange: Exchange) -> None:
        if isinstance(exchange.via, Reply):
            exchange.via.abandon()
            self._review(exchange.via)
        self._last = self._loop.time()

    def lost(self, fault: ServerFault) -> None:
        if not self._initialized and self._alone:
            self._relay.failed(fault)
        self.close(str(fault))

    # Opening

    def _opened(self, exchange: Exchange, response: Response) -> None:
        if response.result is UNSET:
            self.lifecycle.move(Step.REJECTED)
            if isinstance(exchange.via, Reply):
                exchange.via.head(b"")
            return
        self.lifecycle.move(Step.ACCEPTED)
        self._initialized = True
        said = said_in(response.result)
        self.revision = revision(said.version)
        self._relay.succeeded(response.result, self._link.era)
        log.info("session %s opened, revision %s", self.party.name, said.version)

    # Streams

    def _encoder(self, number: int) -> Callable[[bytes], bytes]:
        store, time = self._store, self._loop.time

        def encode(payload: bytes) -> bytes:
            return sse.event(payload, self._named(store.append(number, payload, time())))

        return encode

    def _reply(self, accepted: Accepted, expected: int | None = None) -> Reply:
        number = self._store.stream()
        # Not for initialize, of which nobody knows yet what its client bears.
        opening = self._begin if self.revision is None else self._begin_primed
        reply = Reply(accepted, self._encoder(number), opening=opening, expected=expected, resumable=True)
        reply.number = number
        return reply

    def _begin(self, reply: Reply) -> bytes:
        self._numbered[reply.number] = reply
        return b""

    def _begin_primed(self, reply: Reply) -> bytes:
        return self._begin(reply) + self._priming(reply.number)

    async def _respond(self, request: BaseRequest, reply: Reply) -> StreamResponse:
        """To leave is not to cancel (TF-05): the call runs on, whatever ends this."""
        self._enter(reply)
        try:
            return await reply.respond(
                request,
                commits=self._commits,
                limits=self._limits,
                timing=self._timing,
                pressure=self._slow,
            )
        finally:
            self._review(reply)

    def _enter(self, reply: Reply) -> None:
        """Count it among the open streams; what the server asked goes out, if it waited for one."""
        if not reply.live:
            return
        self._streams.posts[reply] = None
        if len(self._backlog):
            for event in self._backlog.questions():
                self._place_question(event)

    def _review(self, reply: Reply) -> None:
        """Let go of what is over: its place among the open streams, and once it is whole its number."""
        if not reply.live:
            self._streams.posts.pop(reply, None)
        if reply.finished:
            self._numbered.pop(reply.number, None)
            self._store.forget(reply.number)

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
        if self.party.lacks(question.method):
            self._link.refuse(question, UNDECLARED)
            return
        own = question.exchange.via if question.exchange is not None else None
        outlet = own if isinstance(own, Reply) and own.live else self._streams.for_question()
        if isinstance(outlet, Reply | Listener):
            self._waits.remove(event)
            outlet.push(line_safe(event.request.raw))
        elif question.method == "ping":
            self._link.reply(self, result(question.party_id, b"{}"))
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
