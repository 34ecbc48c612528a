"""A remote server over Streamable HTTP: a legacy session on it, and modern requests beside.

One POST a message; what comes back on its stream belongs to it. Specification: "Streamable
HTTP", the client's side, of 2025-03-26 to 2025-11-25. A session is opened by the client's own
initialize, opened anew when the server forgot it (once for all who wait), and ended at the end.
Which server and which tasks carry it is the hop's matter.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Final, TypeVar

import anyio
from aiohttp import ClientResponse
from msgspec import UNSET, UnsetType

from bridge.core.correlate import CANCELLED
from bridge.core.headers import VERSION
from bridge.core.lines import Overlong
from bridge.core.message import Id, Message, Notification, Request, Response, notification, params_of
from bridge.core.sse import Decoder, Event, Oversize
from bridge.errors import ServerFault
from bridge.upstream.handshake import INITIALIZED, Handshake
from bridge.upstream.hop import Hop
from bridge.upstream.http_answer import (
    EVENTS,
    LISTEN,
    POST,
    STEADY,
    Refused,
    Take,
    Unusable,
    events_of,
    expect_success,
    fail,
    is_message,
    media_type,
    pause,
    read_answer,
)
from bridge.upstream.http_client import Unreachable
from bridge.upstream.modern_http import ModernHttp

log = logging.getLogger("bridge.remote")

M = TypeVar("M", bound=Message)

SESSION_ID: Final = "Mcp-Session-Id"
_NO_LISTENING: Final = frozenset({400, 404, 405, 406, 501})
_RESUMPTIONS: Final = 8
"""Attempts in a row to resume one stream that bring nothing, before its request fails."""
_NOTE: Final = 30.0
"""Seconds for the server to take a notification or an answer; the next ones wait for it."""
_HEAD: Final = 0.5
"""Seconds that requests wait for the GET stream to stand: what some servers ask for the sake of a
call goes there, and is lost if nobody listens yet (CL-13). Others send no head before an event."""
_LATE: Final = 30.0
"""Seconds that a cancelled call's stream may stay open: most servers leave such a call unanswered."""

# Servers that say 400 for a session they do not know; nothing of a tool's own errors may match.
_NO_SESSION: Final = re.compile(
    rb"(no valid|invalid|unknown|expired|missing|no such|terminated)\s(\w+\s)?session"
    rb"|session(\s?-?id)?\s(is\s|was\s|has\s)?(not|invalid|unknown|expired|terminated|missing|required|closed)",
    re.IGNORECASE,
)


Elsewhere = Callable[[Refused], Awaitable[Callable[[Message], None] | None]]
"""Looks for another transport when the server took no initialize: where to send everything to
instead, or None. Raises ServerFault if there is one that cannot be used."""


class _Forgotten(Exception):
    """The server does not know our session any more; `fault` is how it said so."""

    def __init__(self, fault: Refused) -> None:
        super().__init__(str(fault))
        self.fault = fault


class StreamableHttp:
    """Carries the messages of one hop."""

    def __init__(self, hop: Hop, elsewhere: Elsewhere) -> None:
        self._hop = hop
        self._elsewhere = elsewhere
        self._modern = ModernHttp(hop)
        self._handshake = Handshake()
        self._session: str | None = None
        self._generation = 0
        self._reopening: asyncio.Future[ServerFault | None] | None = None
        self._barrier: Message | None = None
        self._held: deque[Message] = deque()
        self._notes: deque[Notification | Response] = deque()
        self._noting = False
        self._calls: dict[Id, anyio.CancelScope] = {}
        self._listening: anyio.CancelScope | None = None
        self._answered = anyio.Event()
        """Whether the GET was answered, one way or the other."""

    def send(self, message: Message) -> None:
        if not self._modern.takes(message):
            self._handshake.sent(message)
            self._dispatch(message)

    async def farewell(self) -> None:
        """DELETE the session, if there is one."""
        if self._session is None:
            return
        with suppress(ServerFault):
            async with self._hop.client.request("DELETE", self._in_session({})) as response:
                log.debug("%s: DELETE of the session: HTTP %d", self._hop.label, response.status)

    # Order

    def _dispatch(self, message: Message) -> None:
        """In order while the handshake is on its way; after it each request by itself."""
        if self._barrier is not None:
            self._held.append(message)
        elif isinstance(message, Request):
            if message.method == "initialize":
                self._barrier = message
                self._hop.spawn(self._initialize, message)
            else:
                self._calls[message.id] = scope = anyio.CancelScope()
                self._hop.spawn(self._call, message, scope)
        else:
            self._note(message)

    def _lift(self, barrier: Message) -> None:
        """Send what was held for the sake of this message."""
        if self._barrier is barrier:
            self._barrier = None
            held, self._held = self._held, deque()
            for message in held:
                self._dispatch(message)

    # Notifications and answers: one after another, since their order is the client's

    def _note(self, message: Notification | Response) -> None:
        if isinstance(message, Notification) and message.method == INITIALIZED:
            self._barrier = message
        elif isinstance(message, Notification) and message.method == CANCELLED:
            self._give_up(params_of(message).request_id)
        self._notes.append(message)
        if not self._noting:
            self._noting = True
            self._hop.spawn(self._post_notes)

    def _give_up(self, request_id: Id | UnsetType) -> None:
        call = None if request_id is UNSET else self._calls.get(request_id)
        if call is not None:
            call.deadline = anyio.current_time() + _LATE

    async def _post_notes(self) -> None:
        while self._notes:
            message = self._notes.popleft()
            try:
                with anyio.fail_after(_NOTE):
                    await self._with_session(self._offer, message)
            except (ServerFault, TimeoutError) as fault:
                log.warning("%s: a message to the server failed: %s", self._hop.label, fault or "timed out")
            if message is self._barrier:
                self._listen()
                with anyio.move_on_after(_HEAD):
                    await self._answered.wait()
                self._lift(message)
        self._noting = False

    async def _offer(self, message: Notification | Response) -> None:
        """POST what has no answer; whatever a success says is as good as a 202."""
        async with self._hop.client.request("POST", self._in_session(POST), message.raw) as response:
            await self._check(response)

    # Requests

    async def _initialize(self, asked: Request) -> None:
        def take(message: Message) -> None:
            self._hop.deliver(message.raw, asked.id)
            if isinstance(message, Response):
                self._lift(asked)

        try:
            await self._open(asked, take)
        except ServerFault as fault:
            await self._not_opened(asked, fault)

    async def _not_opened(self, asked: Request, fault: ServerFault) -> None:
        """Start over where the server speaks another transport, or give the failure."""
        send = None
        if isinstance(fault, Refused):
            try:
                send = await self._elsewhere(fault)
            except ServerFault as other:
                fault = other
        if send is None:
            fail(self._hop, asked, fault)
            self._lift(asked)
        else:
            for message in (asked, *self._held):
                send(message)

    async def _open(self, asked: Request, take: Take) -> None:
        """POST an initialize and take over the session that it opens. Raises ServerFault."""
        async with self._hop.client.request("POST", POST, asked.raw) as response:
            await expect_success(self._hop, response)

            def opened(message: Message) -> None:
                # Only an InitializeResult opens a session: servers attach ids to refusals too (CL-14).
                if isinstance(message, Response) and self._handshake.answered(message):
                    self._session = response.headers.get(SESSION_ID)
                    self._generation += 1
                take(message)

            if not await read_answer(self._hop, response, asked, opened, Decoder(self._hop.limits.line)):
                raise Unusable("The server ended its answer to initialize without a result")

    async def _call(self, asked: Request, scope: anyio.CancelScope) -> None:
        with scope:
            try:
                await self._with_session(self._call_once, asked)
            except ServerFault as fault:
                fail(self._hop, asked, fault)
            finally:
                if self._calls.get(asked.id) is scope:
                    del self._calls[asked.id]

    async def _call_once(self, asked: Request) -> None:
        decoder = Decoder(self._hop.limits.line)

        def take(message: Message) -> None:
            self._hop.deliver(message.raw, asked.id)

        async with self._hop.client.request("POST", self._in_session(POST), asked.raw) as response:
            await self._check(response)
            if await read_answer(self._hop, response, asked, take, decoder):
                return
        await self._resume(asked, take, decoder)

    async def _resume(self, asked: Request, take: Take, decoder: Decoder) -> None:
        """The stream ended before the answer: come back for the rest, if it can be named (CL-10, CL-11).

        The request may have run, so it is never sent again.
        """
        fruitless = 0
        while decoder.last_event_id and fruitless < _RESUMPTIONS:
            seen = decoder.last_event_id
            await anyio.sleep(pause(decoder, fruitless))
            headers = {**self._in_session(LISTEN), "Last-Event-ID": seen}
            with suppress(Unreachable):
                async with self._hop.client.request("GET", headers) as response:
                    if response.status != 200 or media_type(response) != EVENTS:
                        text = f"The server's stream ended before the answer; resumed: HTTP {response.status}"
                        raise Unusable(text)
                    if await read_answer(self._hop, response, asked, take, decoder):
                        return
            fruitless = 0 if decoder.last_event_id != seen else fruitless + 1
        raise Unusable("The server's stream ended before the answer")

    # The session

    def _in_session(self, headers: dict[str, str]) -> dict[str, str]:
        found = dict(headers)
        if self._session is not None:
            found[SESSION_ID] = self._session
        if self._handshake.version:
            found[VERSION] = self._handshake.version
        return found

    async def _check(self, response: ClientResponse) -> None:
        """Raises Refused for an HTTP failure, _Forgotten for one that says the session is gone."""
        try:
            await expect_success(self._hop, response)
        except Refused as fault:
            if SESSION_ID in response.request_info.headers and _names_session(fault):
                raise _Forgotten(fault) from None
            raise

    async def _with_session(self, call: Callable[[M], Coroutine[object, object, None]], message: M) -> None:
        """Do something in the session; if the server forgot it, once more in a new one.

        What was refused for want of a session has not run.
        """
        if self._reopening is not None:
            await asyncio.shield(self._reopening)
        generation = self._generation
        try:
            await call(message)
        except _Forgotten as forgotten:
            await self._reopen(generation)
            try:
                await call(message)
            except _Forgotten:
                raise forgotten.fault from None

    async def _reopen(self, generation: int) -> None:
        """Open the session anew, once for all who found it gone. Raises ServerFault."""
        if self._reopening is None:
            if self._generation != generation:
                return
            self._reopening = asyncio.get_running_loop().create_future()
            self._hop.spawn(self._open_again, self._reopening)
        fault = await asyncio.shield(self._reopening)
        if fault is not None:
            raise fault

    async def _open_again(self, done: asyncio.Future[ServerFault | None]) -> None:
        log.info("%s: the server forgot the session; opening a new one", self._hop.label)
        fault: ServerFault | None = None
        try:
            await self._handshake_again()
        except ServerFault as failed:
            fault = failed
        except _Forgotten as forgotten:
            fault = forgotten.fault
        finally:
            self._reopening = None
            done.set_result(fault)

    async def _handshake_again(self) -> None:
        """The client's own initialize, initialized, and what it had set in the old session."""
        again = self._handshake.again()
        if again is None:
            raise ServerFault("The server knows no session, and none was opened")
        answers: list[Message] = []
        before = self._generation
        await self._open(again, answers.append)
        if self._generation == before:
            raise ServerFault("The server forgot the session and refused to open a new one")
        await self._offer(notification(INITIALIZED))
        for setting in self._handshake.settings():
            with suppress(ServerFault):
                await self._ask_quietly(setting)
        for note in self._handshake.stale():
            self._hop.deliver(note.raw)
        self._listen()

    async def _ask_quietly(self, asked: Request) -> None:
        async with self._hop.client.request("POST", self._in_session(POST), asked.raw) as response:
            await self._check(response)
            await read_answer(self._hop, response, asked, _ignore, Decoder(self._hop.limits.line))

    # The GET stream

    def _listen(self) -> None:
        """Listen in the session of now; what may be left of an older one's stream is ended."""
        if self._listening is not None:
            self._listening.cancel()
        self._listening = anyio.CancelScope()
        self._hop.spawn(self._keep_listening, self._listening)

    async def _keep_listening(self, scope: anyio.CancelScope) -> None:
        """For as long as the server offers a stream; reopened quietly when it is cut."""
        decoder = Decoder(self._hop.limits.line)
        generation = self._generation
        fruitless = 0
        with scope:
            while True:
                began, heard = anyio.current_time(), False
                try:
                    heard = await self._listen_once(decoder)
                except _NoListening:
                    log.debug("%s: offers no listening stream", self._hop.label)
                    return
                except _Forgotten:
                    await self._renew(generation)
                    return
                except ServerFault as fault:
                    log.debug("%s: the listening stream ended: %s", self._hop.label, fault)
                finally:
                    self._answered.set()
                worked = heard or anyio.current_time() - began > STEADY
                fruitless = 0 if worked else fruitless + 1
                await anyio.sleep(pause(decoder, fruitless))

    async def _renew(self, generation: int) -> None:
        """A new session has a listener of its own."""
        try:
            await self._reopen(generation)
        except ServerFault as fault:
            log.warning("%s: no session to listen in: %s", self._hop.label, fault)

    async def _listen_once(self, decoder: Decoder) -> bool:
        """One GET until it ends; whether it brought anything. Raises _NoListening if there is none."""
        headers = self._in_session(LISTEN)
        if decoder.last_event_id:
            headers["Last-Event-ID"] = decoder.last_event_id
        async with self._hop.client.request("GET", headers) as response:
            self._answered.set()
            if response.status in _NO_LISTENING or (
                response.status == 200 and media_type(response) != EVENTS
            ):
                if response.status == 404 and self._session is not None:
                    # Either no such path or no such session; a ping tells (raises _Forgotten).
                    await self._ask_quietly(self._handshake.ping())
                raise _NoListening
            await self._check(response)
            heard = False
            async for events in events_of(self._hop, response, decoder):
                heard = True
                for event in events:
                    self._hear(event)
        return heard

    def _hear(self, event: Event | Oversize) -> None:
        if isinstance(event, Oversize):
            self._hop.deliver(Overlong(event.head, event.tail, event.size))
        elif is_message(event):
            self._hop.deliver(event.data)


class _NoListening(Exception):
    """The server offers no GET stream."""


def _ignore(_: Message) -> None:
    """An answer to the bridge itself: that it came is all that matters."""


def _names_session(fault: Refused) -> bool:
    """404 means the session is gone; some servers say 400 and name the session in words."""
    return fault.status == 404 or (fault.status == 400 and _NO_SESSION.search(fault.body) is not None)
