"""HTTP+SSE (2024-11-05) for clients that know nothing newer: `GET /sse` and `POST /messages`.

Decides what one SSE connection is: a session of its own, with its own link, that ends with the
connection. What a client POSTs is taken in the order in which the bodies arrived whole, and
everything the server says goes on the stream. `http.py` has already let the client in.
Specification: "HTTP with SSE" of 2024-11-05 (ES-1 to ES-7); deprecated since 2025-03-26, so it
is served only when asked for, and who still uses it is counted.

Answers never go into the body of a POST (ES-3), refusals included: a request that is too early,
too late or one too many is accepted with 202 and answered by an error on the stream, for a client
may take a status for the end of everything (the Python SDK 1.x stops writing). A status refuses
what has no answer of its own on the stream: what is no message, a notification before
`initialize`, a batch that may not be sent, and a request whose id is in flight, since an error
under that id would be taken for the answer of the first.

The era is always legacy: an envelope of 2026-07-28 in `params._meta` has no meaning here and
travels as it is, once the session is initialized.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

import msgspec
from aiohttp import hdrs
from aiohttp.web import BaseRequest, StreamResponse
from msgspec import UNSET

from bridge.config import Listen, ProcessModel
from bridge.core import sse
from bridge.core.events import Exchange, Party, Question
from bridge.core.headers import accepts, is_json
from bridge.core.message import (
    INVALID_REQUEST,
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
    read,
)
from bridge.core.session import Lifecycle, Step
from bridge.downstream.event_stream import EventStream
from bridge.downstream.http import Ready, read_body
from bridge.downstream.listener import Handler
from bridge.downstream.party import UNDECLARED, deliver, said_in, subject_of, unbatchable
from bridge.downstream.reply import later, malformed, refused
from bridge.era.revisions import Revision, revision
from bridge.errors import CircuitOpen, ServerFault, UsageFault
from bridge.link import Link, answer_to_fault
from bridge.readiness import Identity
from bridge.relay import Relay

log = logging.getLogger("bridge.session")

MOST_NAMES: Final = 100
"""Client names counted one by one; who comes later is counted under OTHERS."""
OTHERS: Final = "(others)"
_LONGEST_NAME: Final = 64
_IN_FLIGHT: Final = "Invalid Request: this id is in flight already"
_DRAINING: Final = "The bridge is shutting down"


class Usage:
    """Who still uses the transport, so that an operator can tell when to retire it."""

    def __init__(self) -> None:
        self.opened = 0
        self.open = 0
        self.clients: dict[str, int] = {}
        """Sessions by the name that `initialize` gave; one that never initialized has none."""

    def introduced(self, name: str) -> None:
        key = name if name in self.clients or len(self.clients) < MOST_NAMES else OTHERS
        self.clients[key] = self.clients.get(key, 0) + 1

    def report(self) -> Mapping[str, object]:
        return {"opened": self.opened, "open": self.open, "clients": self.clients}


class HttpSse:
    """The two endpoints. `handlers` says which path leads to which.

    They lie in the folder of the Streamable HTTP endpoint: for `/api/mcp` they are `/api/sse`
    and `/api/messages`. Raises UsageFault if that endpoint has one of these names itself.
    """

    def __init__(self, relay: Relay) -> None:
        self.usage = Usage()
        self._relay = relay
        self._limits, self._timing = relay.config.limits, relay.config.timing
        self._links = Endpoint(relay.config.listen)
        stream, messages = self._links.stream, self._links.messages
        self.handlers: Mapping[str, Handler] = {
            stream: self.listen,
            f"{stream}/": self.listen,
            messages: self.post,
            f"{messages}/": self.post,
        }

    async def listen(self, request: BaseRequest) -> StreamResponse:
        """Open a session and stream it for as long as the client stays."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        key = secrets.token_urlsafe(24)
        self._relay.sessions[key] = _Opening()
        try:
            link = await self._relay.legacy()
            if link.fault is not None:
                raise link.fault
        except ServerFault as fault:
            return _unavailable(fault)
        finally:
            del self._relay.sessions[key]
        session = SseSession(key, self._relay, link, self.usage, request.remote or "a local socket")
        self._relay.sessions[key] = session
        return await session.serve(request, self._links.reference(key, request.path))

    def _refusal(self, request: BaseRequest) -> Ready | None:
        if request.method != hdrs.METH_GET:
            return _refusal(405, "This path takes GET only", "method", b"Allow: GET\r\n")
        if not accepts(request.headers.getall(hdrs.ACCEPT, ())).sse:
            return _refusal(406, "Not Acceptable: GET is answered by text/event-stream", "accept")
        if self._relay.draining:
            return later(None, _DRAINING, "draining")
        if len(self._relay.sessions) >= self._limits.sessions:
            return later(None, "The most sessions are open; try again later", "sessions", seconds=10)
        return None

    async def post(self, request: BaseRequest) -> StreamResponse:
        """Take one message, or a batch, of a session."""
        if request.method != hdrs.METH_POST:
            return _refusal(405, "This path takes POST only", "method", b"Allow: POST\r\n")
        session = self._session(request)
        if isinstance(session, Ready):
            return session
        if not is_json(request.headers.get(hdrs.CONTENT_TYPE, "")):
            return _refusal(415, "Unsupported Media Type: send application/json", "content_type")
        body = await read_body(request, self._limits.body, self._timing.body)
        if isinstance(body, Ready):
            return body
        message = read(body, depth=self._limits.depth)
        if isinstance(message, Malformed):
            return malformed(message)
        return await session.post(message)

    def _session(self, request: BaseRequest) -> SseSession | Ready:
        named = request.query.getall("session_id", ())
        if len(named) != 1:
            text = "Bad Request: session_id is needed, once; the endpoint event of GET gives it"
            return _refusal(400, text, "no_session")
        session = self._relay.sessions.get(named[0])
        return session if isinstance(session, SseSession) else _not_found()


class Endpoint:
    """Where the two endpoints are, and how a client is told."""

    def __init__(self, listen: Listen) -> None:
        path = listen.path.rstrip("/")
        folder = path.rpartition("/")[0]
        self.stream, self.messages = f"{folder}/sse", f"{folder}/messages"
        if path in (self.stream, self.messages):
            raise UsageFault(f"--path {listen.path}: is where --legacy-sse serves old clients")
        self._base = None if listen.base_url is None else listen.base_url.rstrip("/")

    def reference(self, key: str, requested: str) -> bytes:
        """The URI reference for the POSTs of a session whose GET asked for the path `requested`.

        Relative, so that it is right behind whatever prefix a proxy put before both paths; or
        absolute, where `base_url` says how the root of this listener is seen from outside.
        """
        if self._base is not None:
            where = f"{self._base}{quote(self.messages)}"
        else:
            where = "../messages" if requested.endswith("/") else "messages"
        return f"{where}?session_id={key}".encode()


class _Opening:
    """Holds the place of a session whose server is being started."""

    def idle_since(self) -> float | None:
        return None

    def close(self, why: str) -> None:
        """Nothing is there yet that could be closed."""


class SseSession:
    """The port of one SSE connection. `key` is the secret in the address of its POSTs."""

    def __init__(self, key: str, relay: Relay, link: Link, usage: Usage, peer: str) -> None:
        self.key = key
        self.party = Party(key[:8], subject_of(relay.config) or key)
        self.lifecycle = Lifecycle()
        self.revision: Revision | None = None
        self._relay, self._link = relay, link
        self._usage, self._peer = usage, peer
        self._limits, self._timing = relay.config.limits, relay.config.timing
        self._alone = relay.config.process is ProcessModel.SESSION
        pressure = link.pressure if self._alone and not link.kept else None
        self._stream = EventStream(unsent=self._limits.unsent, on_pressure=pressure)
        self._turn = asyncio.Lock()
        usage.opened += 1
        usage.open += 1
        self._moved = False
        """Whether the server refused to initialize, and the session was put to its other era."""
        relay.join(link, self)

    # What the endpoints call

    async def serve(self, request: BaseRequest, endpoint: bytes) -> StreamResponse:
        """Stream until the client leaves or the session is closed; either is the end of both."""
        try:
            await self._stream.start(request)
            self._stream.push(sse.named("endpoint", endpoint))
            await self._stream.run(self._timing.keepalive, self._timing.stalled)
        finally:
            self.close("The client left")
        return self._stream

    async def post(self, message: Message | Batch) -> Ready:
        """Take what one POST brought, after those that came before it."""
        async with self._turn:  # a server that does not read must not mix up who waits for it
            await self._link.writable()
            if self._closed:
                return _not_found()
            return self._take_batch(message) if isinstance(message, Batch) else self._take(message)

    def _take(self, message: Message) -> Ready:
        if isinstance(message, Request) and message.id in self.party.exchanges:
            return malformed(Malformed(INVALID_REQUEST, _IN_FLIGHT, message.id))
        refusal = self.lifecycle.take(message)
        if isinstance(message, Request):
            self._ask(message, refusal)
        elif refusal is not None:
            return malformed(refusal)
        else:
            deliver(self._link, self, message)
        return _accepted()

    def _ask(self, asked: Request, refusal: Malformed | None) -> None:
        if refusal is not None:
            self._push(_error(refusal))
        elif self._relay.draining:
            self._push(local_error(asked.id, _DRAINING, "draining"))
        elif len(self.party.exchanges) >= self._limits.in_flight:
            text = f"Too many requests in flight in this session; the most are {self._limits.in_flight}"
            self._push(local_error(asked.id, text, "in_flight"))
        else:
            if asked.method == "initialize":
                self._introduced(asked)
            self._link.ask(self, asked, None)

    def _take_batch(self, batch: Batch) -> Ready:
        """A batch (2025-03-26 only): its members go on one by one, and so do their answers."""
        why = unbatchable(batch, self.revision) or self._ambiguous(batch)
        if why is not None:
            return malformed(Malformed(INVALID_REQUEST, f"Invalid Request: {why}"))
        for member in batch.members:
            if isinstance(member, Malformed):
                self._push(_error(member))
            else:
                self._take(member)
        return _accepted()

    def _ambiguous(self, batch: Batch) -> str | None:
        asked = [member.id for member in batch.members if isinstance(member, Request | Malformed)]
        named = [one for one in asked if one is not None]
        ids: set[Id] = {*named, *self.party.exchanges}
        repeats = len(ids) < len(named) + len(self.party.exchanges)
        return "an id stands twice, or is in flight already" if repeats else None

    # Session protocol of the relay

    def idle_since(self) -> float | None:
        """Never: its stream is open for as long as it lives."""
        return None

    @property
    def _closed(self) -> bool:
        return self._relay.sessions.get(self.key) is not self

    def close(self, why: str) -> None:
        if self._closed:
            return
        del self._relay.sessions[self.key]
        self.lifecycle.move(Step.CLOSE)
        waiting = list(self.party.exchanges.values())
        self._link.leave(self)
        for exchange in waiting:
            self._push(local_error(exchange.id, why, "session_closed"))
        self._stream.finish()
        self._usage.open -= 1
        self._relay.release(self._link)
        log.info("session %s ended: %s", self.party.name, why)

    # Port protocol of the link

    def answered(self, exchange: Exchange, response: Response) -> None:
        if exchange.method == "initialize":
            if not self._moved and self._relay.crosses(self, self._link, exchange, response):
                self._moved = True
                self._link.part(self)  # whatever becomes of that server is no matter any more
                return
            self._opened(response)
        self._push(response)

    def moved(self, link: Link) -> bool:
        if self._closed:
            return False
        self._relay.release(self._link)
        self._link = link
        self._relay.join(link, self)
        return True

    def noted(self, exchange: Exchange | None, note: Notification) -> None:
        self._push(note)

    def questioned(self, question: Question, request: Request) -> None:
        if self.party.lacks(request.method):
            self._link.refuse(question, UNDECLARED)
        else:
            self._push(request)

    def ended(self, exchange: Exchange) -> None:
        """Nothing is kept for an exchange that could be let go."""

    def lost(self, fault: ServerFault) -> None:
        if self._alone and not self.lifecycle.open:
            self._relay.failed(fault)
        self.close(str(fault))

    def _push(self, message: Message) -> None:
        self._stream.push(sse.event(line_safe(message.raw)))

    # Opening

    def _introduced(self, asked: Request) -> None:
        said = said_in(asked.params)
        client = _identity(said.client)
        self._usage.introduced(client.name)
        log.info(
            "legacy HTTP+SSE session %s of %s %s at %s; this transport is deprecated",
            self.party.name,
            client.name,
            client.version,
            self._peer,
        )

    def _opened(self, response: Response) -> None:
        if response.result is UNSET:
            self.lifecycle.move(Step.REJECTED)
            asyncio.get_running_loop().call_soon(self.close, "The server refused to initialize")
            return
        self.lifecycle.move(Step.ACCEPTED)
        self.revision = revision(said_in(response.result).version)
        self._relay.succeeded(response.result, self._link.era)


def _identity(client: msgspec.Raw) -> Identity:
    found = Identity()
    with contextlib.suppress(msgspec.DecodeError):
        found = msgspec.json.decode(client, type=Identity)
    return Identity(found.name[:_LONGEST_NAME] or "(unnamed)", found.version[:_LONGEST_NAME])


def _accepted() -> Ready:
    return Ready(202, b"Content-Type: text/plain\r\n", (b"Accepted",))


def _error(refusal: Malformed) -> Response:
    return error(refusal.id, refusal.code, refusal.message)


def _refusal(status: int, text: str, reason: str, lines: bytes = b"") -> Ready:
    return refused(local_error(None, text, reason, INVALID_REQUEST).raw, status, lines)


def _not_found() -> Ready:
    return _refusal(404, "Session not found: it ended with its stream; open a new one", "session_not_found")


def _unavailable(fault: ServerFault) -> Ready:
    """No server can be had, and no stream has begun."""
    if isinstance(fault, CircuitOpen):
        return later(None, str(fault), fault.reason, seconds=max(1, math.ceil(fault.retry_after)))
    return refused(answer_to_fault(None, fault).raw, 502)
