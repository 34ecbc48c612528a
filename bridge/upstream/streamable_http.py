"""A remote server over Streamable HTTP, of either era.

One POST a message; what comes back on its stream belongs to it. Specification: "Streamable
HTTP", the client's side, of every revision that has it. A legacy session is opened by the
client's own initialize, opened anew when the server forgot it (once for all who wait), and
ended at the end; a modern request stands for itself and is cancelled by closing its stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Final

import anyio
from aiohttp import ClientResponse
from msgspec import UNSET

from bridge.config import Limits, Timing
from bridge.core.correlate import CANCELLED
from bridge.core.headers import HEADER_MISMATCH, METHOD, NAME, VERSION, Claims, claims, encode_value
from bridge.core.message import (
    Batch,
    Id,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    params_of,
    read,
    request,
)
from bridge.core.params import ToolIndex, header_values, without_invalid_tools
from bridge.core.splice import quote, replaced
from bridge.core.sse import Decoder, Oversize
from bridge.errors import ServerFault
from bridge.upstream.base import Receiver
from bridge.upstream.handshake import INITIALIZED, Handshake
from bridge.upstream.http_answer import (
    EVENTS,
    Refused,
    Unusable,
    events_of,
    failure,
    media_type,
    refused,
    whole_body,
)
from bridge.upstream.http_client import HttpClient, Unreachable, origin

log = logging.getLogger("bridge.remote")

SESSION_ID: Final = "Mcp-Session-Id"
_ACCEPT: Final = {"Accept": f"application/json, {EVENTS}", "Content-Type": "application/json"}
_LISTEN: Final = {"Accept": EVENTS}
_NO_LISTENING: Final = frozenset({400, 404, 405, 406, 501})
_FIRST_RETRY: Final = 1.0
_MOST_RETRY: Final = 30.0
_RESUMPTIONS: Final = 8
"""Attempts in a row to resume one stream that bring nothing, before its request fails."""
_ENVELOPE_MARK: Final = b"io.modelcontextprotocol/"


_Call = Callable[..., Coroutine[object, object, object]]


class _Forgotten(Exception):
    """The server does not know our session any more; `fault` is how it said so."""

    def __init__(self, fault: Refused) -> None:
        super().__init__(str(fault))
        self.fault = fault


class StreamableHttpUpstream:
    """`run` must be running while anything is sent; `close` ends it."""

    def __init__(self, client: HttpClient, receiver: Receiver, limits: Limits, timing: Timing) -> None:
        self.label = origin(client.url)
        self.congested = False
        self._client = client
        self._receiver = receiver
        self._limits, self._timing = limits, timing
        self._handshake = Handshake()
        self._session: str | None = None
        self._generation = 0
        self._reopening = asyncio.Lock()
        self._held: deque[Message] | None = None
        self._notes: deque[Notification | Response] = deque()
        self._noting = False
        self._modern: dict[Id, anyio.CancelScope] = {}
        self._tools = ToolIndex()
        self._tasks = anyio.create_task_group()
        self._closed = anyio.Event()
        self._gone = anyio.Event()
        self._listening = False

    # Upstream

    async def run(self) -> None:
        """Carry everything; returns after `close`."""
        try:
            async with self._tasks:
                await self._closed.wait()
                self._tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._farewell()
            self._gone.set()

    def send(self, line: bytes) -> None:
        if self._closed.is_set():
            return
        message = read(line, depth=self._limits.depth)
        assert not isinstance(message, Batch | Malformed)  # the link sends nothing else
        said = _envelope(message, line)
        if isinstance(message, Request) and said is not None:
            self._spawn(self._call_modern, message, said)
        elif not self._cancels_modern(message):
            self._handshake.sent(message)
            self._send_legacy(message)

    async def drained(self) -> None:
        """Nothing waits here: every message has a connection of its own."""

    def pause(self) -> None:
        """The connections' own flow control is all there is."""

    def resume(self) -> None: ...

    async def close(self) -> None:
        if not self._closed.is_set():
            self._receiver.lost(ServerFault("The connection was closed"))
            self._closed.set()
        await self._gone.wait()

    def _spawn(self, call: _Call, *args: object) -> None:
        self._tasks.start_soon(call, *args)

    def _deliver(self, payload: bytes, on: Id | None) -> None:
        if not self._closed.is_set():
            self._receiver.received([payload], on)

    def _fail(self, asked: Request, fault: ServerFault) -> None:
        log.info("%s: %s failed: %s", self.label, asked.method, fault)
        self._deliver(failure(asked.id, fault).raw, asked.id)

    # Legacy: order

    def _send_legacy(self, message: Message) -> None:
        """In order while the handshake is on its way; after it each request by itself."""
        if isinstance(message, Request) and message.method == "initialize":
            self._held = deque()
            self._spawn(self._initialize, message)
        elif self._held is not None and not _is_initialized(message):
            self._held.append(message)
        elif isinstance(message, Request):
            self._spawn(self._call, message)
        else:
            if _is_initialized(message):
                self._held = self._held if self._held is not None else deque()
            self._notes.append(message)
            if not self._noting:
                self._noting = True
                self._spawn(self._post_notes)

    def _release(self) -> None:
        held, self._held = self._held, None
        for message in held or ():
            self._send_legacy(message)

    async def _post_notes(self) -> None:
        """Notifications and answers, one after another: their order is the client's."""
        try:
            while self._notes:
                await self._post_note(self._notes.popleft())
        finally:
            self._noting = False

    async def _post_note(self, message: Notification | Response) -> None:
        try:
            await self._with_session(self._offer, message)
        except ServerFault as fault:
            log.warning("%s: a message to the server failed: %s", self.label, fault)
        finally:
            if _is_initialized(message):
                self._release()
                self._listen()

    async def _offer(self, message: Notification | Response) -> None:
        async with self._client.request("POST", self._headers(), message.raw) as response:
            await self._check(response)

    # Legacy: requests

    async def _initialize(self, asked: Request) -> None:
        try:
            await self._open(asked, deliver=True)
        except ServerFault as fault:
            self._fail(asked, fault)
        finally:
            self._release()

    async def _open(self, asked: Request, *, deliver: bool) -> None:
        """POST an initialize and take over the session that it opens. Raises ServerFault."""
        self._session, self._generation = None, self._generation + 1
        self._handshake.version = ""
        async with self._client.request("POST", dict(_ACCEPT), asked.raw) as response:
            await self._check(response)
            session = response.headers.get(SESSION_ID)

            def taken(payload: bytes) -> None:
                answer = read(payload, depth=self._limits.depth)
                if isinstance(answer, Response) and answer.id == asked.id:
                    self._handshake.answered(answer)
                    # Only an InitializeResult opens a session: servers attach ids to refusals too (CL-14).
                    self._session = session if answer.result is not UNSET else None
                    if not deliver and answer.error is not UNSET:
                        raise Unusable("The server refused to initialize again")
                if deliver:
                    self._deliver(payload, asked.id)

            if not await self._read_answers(response, asked, taken, Decoder(self._limits.line)):
                raise Unusable("The server ended its answer to initialize without a result")

    async def _call(self, asked: Request) -> None:
        try:
            await self._with_session(self._call_once, asked)
        except ServerFault as fault:
            self._fail(asked, fault)

    async def _call_once(self, asked: Request) -> None:
        decoder = Decoder(self._limits.line)
        deliver = self._taker(asked)
        async with self._client.request("POST", self._headers(), asked.raw) as response:
            await self._check(response)
            if await self._read_answers(response, asked, deliver, decoder):
                return
        await self._resume(asked, deliver, decoder)

    def _taker(self, asked: Request) -> Callable[[bytes], None]:
        return lambda payload: self._deliver(payload, asked.id)

    async def _read_answers(
        self, response: ClientResponse, asked: Request, deliver: Callable[[bytes], None], decoder: Decoder
    ) -> bool:
        """Deliver what the answer holds; whether the request's own answer was in it.

        A stream that breaks off raises only if it cannot be resumed.
        """
        kind = media_type(response)
        if kind == EVENTS:
            return await self._read_events(response, asked, deliver, decoder)
        body = await whole_body(response, self._limits.line)
        if response.status == 202 or not body.strip():
            raise Unusable(f"The server took the request (HTTP {response.status}) but gave no answer")
        return self._take(body, asked, deliver)

    def _take(self, payload: bytes, asked: Request, deliver: Callable[[bytes], None]) -> bool:
        """Deliver one JSON text; whether it answers the request."""
        found = read(payload, depth=self._limits.depth)
        if isinstance(found, Batch):
            members = [member for member in found.members if not isinstance(member, Malformed)]
            return sum(self._take(member.raw, asked, deliver) for member in members) > 0
        if isinstance(found, Malformed):
            raise Unusable(f"The server's answer is no JSON-RPC message: {found.message}")
        if isinstance(found, Response) and found.error is not UNSET and found.id in (None, "server-error"):
            found = found.with_id(asked.id)  # the exchange tells whose it is (G-20)
        deliver(found.raw)
        return isinstance(found, Response) and found.id == asked.id

    async def _read_events(
        self, response: ClientResponse, asked: Request, deliver: Callable[[bytes], None], decoder: Decoder
    ) -> bool:
        answered = False
        try:
            async for events in events_of(response, decoder):
                for event in events:
                    if isinstance(event, Oversize):
                        raise Unusable(f"An event of the server has {event.size} bytes, over the limit")
                    if event.data and event.type == "message":
                        answered = self._take(event.data, asked, deliver) or answered
                if answered:
                    return True
        except Unreachable:
            if not decoder.last_event_id:
                raise
        finally:
            decoder.end()
        return answered

    async def _resume(self, asked: Request, deliver: Callable[[bytes], None], decoder: Decoder) -> None:
        """The stream ended before the answer: come back for the rest, if it can be named (CL-10, CL-11)."""
        fruitless = 0
        while decoder.last_event_id and fruitless < _RESUMPTIONS:
            before = decoder.last_event_id
            await anyio.sleep(_pause(decoder, fruitless))
            headers = {**self._headers(), **_LISTEN, "Last-Event-ID": before}
            headers.pop("Content-Type")
            with suppress(Unreachable):
                async with self._client.request("GET", headers) as response:
                    await self._check(response)
                    if media_type(response) != EVENTS:
                        raise Unusable("The server resumed its stream with something else")
                    if await self._read_events(response, asked, deliver, decoder):
                        return
            fruitless = 0 if decoder.last_event_id != before else fruitless + 1
        raise Unusable("The server's stream ended before the answer")

    # Legacy: sessions

    def _headers(self) -> dict[str, str]:
        headers = dict(_ACCEPT)
        if self._session is not None:
            headers[SESSION_ID] = self._session
        if self._handshake.version:
            headers[VERSION] = self._handshake.version
        return headers

    async def _check(self, response: ClientResponse) -> None:
        """Raises Refused for an HTTP failure, _Forgotten for one that says the session is gone."""
        if 200 <= response.status < 300:
            return
        fault = await refused(response)
        if SESSION_ID in response.request_info.headers and _names_session(fault):
            raise _Forgotten(fault)
        raise fault

    async def _with_session(
        self, call: Callable[..., Coroutine[object, object, object]], *args: object
    ) -> None:
        """Do something in the session; if the server forgot it, once more in a new one."""
        generation = self._generation
        try:
            await call(*args)
        except _Forgotten as forgotten:
            await self._reopen(generation)
            try:
                await call(*args)
            except _Forgotten:
                raise forgotten.fault from None

    async def _reopen(self, generation: int) -> None:
        """Open the session anew, once for all who found it gone. Raises ServerFault."""
        async with self._reopening:
            if self._generation != generation:
                return
            if self._handshake.request is None:
                raise ServerFault("The server knows no session, and none was opened")
            log.info("%s: the server forgot the session; opening a new one", self.label)
            try:
                await self._open(self._handshake.again(), deliver=False)
                await self._settle()
            except _Forgotten as forgotten:
                raise ServerFault("The server forgets its sessions at once") from forgotten
            for note in self._handshake.stale():
                self._deliver(note.raw, None)

    async def _settle(self) -> None:
        """Finish the new session's handshake and set what was set in the old one."""
        initialized = read(INITIALIZED_LINE, depth=4)
        assert isinstance(initialized, Notification)
        await self._offer(initialized)
        for setting in self._handshake.settings():
            with suppress(ServerFault):
                await self._ask_quietly(setting)
        self._listen()

    async def _ask_quietly(self, asked: Request) -> None:
        async with self._client.request("POST", self._headers(), asked.raw) as response:
            await self._check(response)
            await self._read_answers(response, asked, lambda _: None, Decoder(self._limits.line))

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            self._spawn(self._keep_listening)

    async def _keep_listening(self) -> None:
        """The GET stream, for as long as the server offers one; reopened quietly when it is cut."""
        decoder = Decoder(self._limits.line)
        fruitless = 0
        try:
            while True:
                generation, seen = self._generation, decoder.last_event_id
                try:
                    if not await self._listen_once(decoder):
                        return
                except _Forgotten:
                    decoder = Decoder(self._limits.line)
                    await self._reopen(generation)
                except ServerFault as fault:
                    log.debug("%s: the listening stream ended: %s", self.label, fault)
                fruitless = 0 if decoder.last_event_id != seen else fruitless + 1
                await anyio.sleep(_pause(decoder, fruitless))
        except ServerFault as fault:
            log.warning("%s: no session to listen in: %s", self.label, fault)
        finally:
            self._listening = False

    async def _listen_once(self, decoder: Decoder) -> bool:
        """One GET until it ends; False if the server offers none."""
        headers = {**self._headers(), **_LISTEN}
        headers.pop("Content-Type")
        if decoder.last_event_id:
            headers["Last-Event-ID"] = decoder.last_event_id
        async with self._client.request("GET", headers) as response:
            if response.status == 404 and self._session is not None:
                await self._probe_session()
                return False
            if response.status in _NO_LISTENING or (
                response.status == 200 and media_type(response) != EVENTS
            ):
                return False
            await self._check(response)
            try:
                async for events in events_of(response, decoder):
                    for event in events:
                        if not isinstance(event, Oversize) and event.data and event.type == "message":
                            self._deliver(event.data, None)
            finally:
                decoder.end()
        return True

    async def _probe_session(self) -> None:
        """A 404 to the optional GET may mean no GET or no session: a ping tells. Raises _Forgotten."""
        ping = request("mb-again-ping", "ping")
        with suppress(ServerFault):
            await self._ask_quietly(ping)

    async def _farewell(self) -> None:
        if self._session is None:
            return
        headers = self._headers()
        headers.pop("Content-Type")
        with suppress(ServerFault), anyio.move_on_after(self._timing.farewell):
            async with self._client.request("DELETE", headers) as response:
                log.debug("%s: DELETE of the session: HTTP %d", self.label, response.status)

    # Modern

    def _cancels_modern(self, message: Message) -> bool:
        """Whether this takes a modern request back; closing its stream is all that says so (CM-5)."""
        if not isinstance(message, Notification) or message.method != CANCELLED:
            return False
        request_id = params_of(message).request_id
        scope = None if request_id is UNSET else self._modern.pop(request_id, None)
        if scope is None:
            return False
        scope.cancel()
        return True

    async def _call_modern(self, asked: Request, said: Claims) -> None:
        with anyio.CancelScope() as scope:
            self._modern[asked.id] = scope
            try:
                await self._call_modern_once(asked, said, retry=True)
            except ServerFault as fault:
                self._fail(asked, fault)
            finally:
                self._modern.pop(asked.id, None)

    async def _call_modern_once(self, asked: Request, said: Claims, *, retry: bool) -> None:
        try:
            async with self._client.request("POST", self._modern_headers(said), asked.raw) as response:
                await self._check(response)
                decoder = Decoder(self._limits.line)
                if not await self._read_answers(response, asked, self._modern_taker(asked), decoder):
                    raise Unusable("The server's stream ended before the answer")
        except Refused as fault:
            if not (retry and said.method == "tools/call" and _is_mismatch(fault)):
                raise
            await self._walk_tools(asked)
            await self._call_modern_once(asked, said, retry=False)

    def _modern_headers(self, said: Claims) -> dict[str, str]:
        headers = {**_ACCEPT, VERSION: said.version or "", METHOD: said.method}
        if said.name is not None:
            headers[NAME] = encode_value(said.name)
        annotated = self._tools.tool(said.name) if said.method == "tools/call" and said.name else None
        return headers | header_values(annotated or (), said.arguments)

    def _modern_taker(self, asked: Request) -> Callable[[bytes], None]:
        if asked.method != "tools/list":
            return self._taker(asked)

        def take(payload: bytes) -> None:
            found = read(payload, depth=self._limits.depth)
            if isinstance(found, Response) and found.result is not UNSET:
                self._tools.learn(found.result, None)
                result, dropped = without_invalid_tools(bytes(found.result))
                for name, reason in dropped:
                    log.warning("%s: tool %s is left out: %s", self.label, name, reason)
                payload = found.with_result(result).raw if dropped else payload
            self._deliver(payload, asked.id)

        return take

    async def _walk_tools(self, asked: Request) -> None:
        """Learn every tool's annotations with the caller's own envelope (CM-7)."""
        envelope = replaced(asked.params, ("name",), None) if asked.params is not UNSET else b"{}"
        envelope = replaced(envelope, ("arguments",), None)
        self._tools.forget()
        while not self._tools.complete:
            cursor = self._tools.wanted
            params = envelope if cursor is None else replaced(envelope, ("cursor",), quote(cursor))
            page = request(f"mb-tools-{asked.id}", "tools/list", params)
            learned: list[Response] = []

            def take(payload: bytes, kept: list[Response] = learned) -> None:
                found = read(payload, depth=self._limits.depth)
                if isinstance(found, Response) and found.result is not UNSET:
                    kept.append(found)

            said = claims(page.method, page.params)
            async with self._client.request("POST", self._modern_headers(said), page.raw) as response:
                await self._check(response)
                await self._read_answers(response, page, take, Decoder(self._limits.line))
            if not learned or learned[0].result is UNSET:
                self._tools.settle()
                return
            self._tools.learn(learned[0].result, cursor)


INITIALIZED_LINE: Final = b'{"jsonrpc":"2.0","method":"%b"}' % INITIALIZED.encode()


def _envelope(message: Message, line: bytes) -> Claims | None:
    """What a modern request says of itself; None for everything else."""
    if not isinstance(message, Request) or _ENVELOPE_MARK not in line:
        return None
    said = claims(message.method, message.params)
    return said if said.enveloped else None


def _is_initialized(message: Message) -> bool:
    return isinstance(message, Notification) and message.method == INITIALIZED


def _names_session(fault: Refused) -> bool:
    """404 means the session is gone; some servers say 400 and name the session in words."""
    if fault.status == 404:
        return True
    said = fault.said
    return fault.status == 400 and said is not None and b"session" in bytes(said.raw).lower()


def _is_mismatch(fault: Refused) -> bool:
    said = fault.said
    return said is not None and b'"code":%d' % HEADER_MISMATCH in said.raw.replace(b" ", b"")


def _pause(decoder: Decoder, fruitless: int) -> float:
    """Seconds before the next GET: what the server asked for, and more while it brings nothing."""
    first = _FIRST_RETRY if decoder.retry is None else decoder.retry / 1000
    if not fruitless:
        return first
    return max(first, min(_MOST_RETRY, max(first, _FIRST_RETRY) * float(2**fruitless)))
