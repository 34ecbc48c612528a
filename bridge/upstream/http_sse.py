"""A remote server over HTTP+SSE, the transport of 2024-11-05.

One SSE connection is the session: an event of it names the address to POST to, and every
message of the server comes on it (some servers put an answer into the POST's own). Decides
where that address may lead, in which order messages go out, and what becomes of them when the
connection is lost: what was in flight fails, the handshake is replayed on a new one, and what
came meanwhile goes out then. Specification: "HTTP with SSE", the client's side.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from contextlib import suppress
from typing import Final

import anyio
from aiohttp import ClientResponse
from anyio.abc import TaskGroup
from msgspec import UNSET
from yarl import URL

from bridge.core.lines import Overlong
from bridge.core.message import Batch, Id, Malformed, Message, Request, Response, notification, read
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
    events_of,
    expect_success,
    fail,
    is_message,
    media_type,
    pause,
    whole_body,
)
from bridge.upstream.http_client import origin, same_origin

log = logging.getLogger("bridge.remote")

_STEP: Final = 0.5
"""Seconds a POST waits for the one before it to be taken. Some servers take a POST only when its
work is done: they would else never hear of a cancellation, or get the answer that they wait for."""
_SETTING: Final = 10.0
"""Seconds for the server to take one setting of the lost session."""


class NoEndpoint(ServerFault):
    """The GET named no endpoint: no HTTP+SSE server is here."""

    reason = "upstream_invalid_answer"


class ForeignEndpoint(ServerFault):
    """The endpoint is on another origin, where no credentials may go."""

    reason = "upstream_endpoint_refused"


class _Connection:
    """One SSE connection, once its endpoint is known; `tasks` end with it."""

    def __init__(self, endpoint: URL, tasks: TaskGroup) -> None:
        self.endpoint = endpoint
        self.tasks = tasks
        self.ready = False
        """Whether the session is what the client thinks it is."""
        self.own: dict[Id, asyncio.Future[Response]] = {}
        """The bridge's own requests that wait for their answer."""
        self.fault: ServerFault | None = None

    @property
    def over(self) -> bool:
        return self.tasks.cancel_scope.cancel_called

    def drop(self, fault: ServerFault) -> None:
        """End it for a reason of ours."""
        self.fault = fault
        self.tasks.cancel_scope.cancel()


class HttpSse:
    """Carries the messages of one hop, once `connect` has returned."""

    def __init__(self, hop: Hop, *, rewrite: bool) -> None:
        self._hop = hop
        self._rewrite = rewrite
        self._handshake = Handshake()
        self._connected: asyncio.Future[ServerFault | None] = asyncio.get_running_loop().create_future()
        self._connection: _Connection | None = None
        self._down: ServerFault | None = None
        """Why the last attempt to connect again failed; None while one is under way or succeeded."""
        self._failures = 0
        self._outbox: deque[Message] = deque()
        self._more = anyio.Event()
        self._asked: dict[Id, Request] = {}
        """Requests that went out and are not answered."""

    async def connect(self) -> None:
        """Return when the server has named its endpoint. Raises ServerFault."""
        self._hop.spawn(self._keep_connected)
        fault = await asyncio.shield(self._connected)
        if fault is not None:
            raise fault

    def send(self, message: Message) -> None:
        self._handshake.sent(message)
        if self._down is None:
            self._outbox.append(message)
            self._more.set()
        else:
            self._fail(message, self._down)

    async def farewell(self) -> None:
        """The end of the connection says it all."""

    # The connection

    async def _keep_connected(self) -> None:
        decoder = Decoder(self._hop.limits.line)
        fruitless = 0
        while True:
            began = anyio.current_time()
            fault = await self._connect_once(decoder)
            if not self._connected.done():
                self._connected.set_result(fault)
                return
            self._disconnected(fault)
            fruitless = 0 if anyio.current_time() - began > STEADY else fruitless + 1
            await anyio.sleep(pause(decoder, fruitless))

    async def _connect_once(self, decoder: Decoder) -> ServerFault:
        """Connect, and serve the connection until it is lost; why it was."""
        limit = self._hop.timing.endpoint
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + limit) as waiting:
                async with self._hop.client.request("GET", LISTEN) as response:
                    await expect_success(self._hop, response)
                    if media_type(response) != EVENTS:
                        return NoEndpoint("The server answered the GET with something else than events")
                    return await self._serve(response, decoder, waiting)
        except ServerFault as fault:
            return fault
        return NoEndpoint(f"The server named no endpoint within {limit:g} s")

    async def _serve(
        self, response: ClientResponse, decoder: Decoder, waiting: anyio.CancelScope
    ) -> ServerFault:
        fault: ServerFault = NoEndpoint("The server's event stream ended before it named an endpoint")
        async with anyio.create_task_group() as tasks:
            try:
                async for events in events_of(self._hop, response, decoder):
                    for event in events:
                        if isinstance(event, Event) and event.type == "endpoint":
                            waiting.deadline = math.inf
                            fault = ServerFault("The server ended its event stream")
                            self._named(self._resolved(event.data, response.url), tasks)
                        else:
                            self._hear(event)
            except ServerFault as broken:
                fault = broken
            tasks.cancel_scope.cancel()
        dropped = None if self._connection is None else self._connection.fault
        return dropped or fault

    def _named(self, endpoint: URL, tasks: TaskGroup) -> None:
        if self._connection is not None:
            self._connection.endpoint = endpoint
            return
        self._connection = _Connection(endpoint, tasks)
        self._down = None
        tasks.start_soon(self._take_up, self._connection)
        if not self._connected.done():
            self._connected.set_result(None)

    def _resolved(self, named: bytes, base: URL) -> URL:
        """The endpoint by RFC 3986; on another origin only its path and query, and only if told to."""
        text = named.decode(errors="replace").strip()
        try:
            target = base.join(URL(text, encoded=text.isascii() and " " not in text))
        except ValueError as fault:
            raise NoEndpoint("The server named an endpoint that is no URL") from fault
        if same_origin(base, target):
            return target
        if self._rewrite:
            return base.join(URL(target.raw_path_qs, encoded=True))
        text = f"The server at {origin(base)} names an endpoint at {origin(target)}; refused, since"
        raise ForeignEndpoint(f"{text} credentials must not leave the server's origin")

    def _disconnected(self, fault: ServerFault) -> None:
        """Fail what was in flight; and what waits too, if there was no session to send it in."""
        in_flight, self._asked = self._asked, {}
        lost = ServerFault(f"The connection to the server was lost before the answer: {fault}")
        for asked in in_flight.values():
            fail(self._hop, asked, lost)
        served = self._connection is not None and self._connection.ready
        self._connection = None
        if served:
            self._failures = 0
            log.debug("%s: the connection was lost: %s", self._hop.label, fault)
            return
        self._failures += 1
        if self._failures == 1:
            log.warning("%s: cannot connect again, still trying: %s", self._hop.label, fault)
        self._down = fault
        held, self._outbox = self._outbox, deque()
        for message in held:
            self._fail(message, fault)

    # A session on a connection

    async def _take_up(self, connection: _Connection) -> None:
        """Make the session what it was, then send what comes, in order."""
        try:
            await self._replay(connection)
        except ServerFault as fault:
            connection.drop(fault)
            return
        connection.ready = True
        while True:
            while self._outbox and not connection.over:
                await self._start(connection, self._outbox.popleft())
            self._more = anyio.Event()
            await self._more.wait()

    async def _replay(self, connection: _Connection) -> None:
        """The client's own handshake and settings, which its old session had (EC-4)."""
        again = self._handshake.again()
        if again is None:
            return
        answer = None
        with anyio.move_on_after(self._hop.timing.start):
            answer = await self._ask(connection, again)
        if answer is None or not self._handshake.answered(answer):
            raise ServerFault("The server lost the session and did not initialize again")
        if self._handshake.initialized:
            await self._start(connection, notification(INITIALIZED))
            for setting in self._handshake.settings():
                with suppress(ServerFault), anyio.move_on_after(_SETTING):
                    await self._ask(connection, setting)
        for note in self._handshake.stale():
            self._hop.deliver(note.raw)

    async def _ask(self, connection: _Connection, asked: Request) -> Response:
        done: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        connection.own[asked.id] = done
        await self._start(connection, asked)
        return await done

    async def _start(self, connection: _Connection, message: Message) -> None:
        """POST a message; the next may follow when the server has taken it, or is slow (EC-5)."""
        if isinstance(message, Request) and message.id not in connection.own:
            self._asked[message.id] = message
        taken = anyio.Event()
        connection.tasks.start_soon(self._post, connection, message, taken)
        with anyio.move_on_after(_STEP):
            await taken.wait()

    async def _post(self, connection: _Connection, message: Message, taken: anyio.Event) -> None:
        request = self._hop.client.request("POST", POST, message.raw, connection.endpoint)
        try:
            async with request as response:
                taken.set()
                await expect_success(self._hop, response)
                if isinstance(message, Request):
                    with suppress(ServerFault):  # the answer will come on the connection
                        await self._read_post(response, message)
        except ServerFault as fault:
            self._refused(connection, message, fault)
        finally:
            taken.set()

    def _refused(self, connection: _Connection, message: Message, fault: ServerFault) -> None:
        own = connection.own.pop(message.id, None) if isinstance(message, Request) else None
        if own is not None:
            own.set_exception(fault)
        elif not isinstance(message, Request) or self._asked.get(message.id) is message:
            self._fail(message, fault)
        if isinstance(fault, Refused) and fault.status == 404:
            connection.drop(fault)  # the server does not know this session any more

    def _fail(self, message: Message, fault: ServerFault) -> None:
        if isinstance(message, Request):
            self._asked.pop(message.id, None)
            fail(self._hop, message, fault)
        else:
            log.warning("%s: a message to the server failed: %s", self._hop.label, fault)

    # What the server says

    async def _read_post(self, response: ClientResponse, asked: Request) -> None:
        """Some servers answer in the POST; what else they put there ("Accepted") says nothing."""
        kind = media_type(response)
        if kind == EVENTS:
            async for events in events_of(self._hop, response, Decoder(self._hop.limits.line)):
                for event in events:
                    self._hear(event)
        elif kind == "application/json":
            found = read(await whole_body(response, self._hop.limits.line), depth=self._hop.limits.depth)
            if isinstance(found, Response) and found.id is None:
                found = found.with_id(asked.id)
            if not isinstance(found, Batch | Malformed):
                self._take(found)

    def _hear(self, event: Event | Oversize) -> None:
        if isinstance(event, Oversize):
            self._hop.deliver(Overlong(event.head, event.tail, event.size))
            return
        if not is_message(event):
            return
        found = read(event.data, depth=self._hop.limits.depth)
        for message in found.members if isinstance(found, Batch) else (found,):
            if isinstance(message, Malformed):
                self._hop.deliver(event.data)  # the link says what is wrong with it
            else:
                self._take(message)

    def _take(self, message: Message) -> None:
        if not isinstance(message, Response):
            self._hop.deliver(message.raw)
            return
        response = self._attributed(message)
        own = self._own(response)
        asked = None if response.id is None else self._asked.pop(response.id, None)
        if own is not None:
            own.set_result(response)
        elif asked is None:
            log.debug("%s: dropped an answer to nothing, or a second one", self._hop.label)
        else:
            if asked.method == "initialize":
                self._handshake.answered(response)
            self._hop.deliver(response.raw)

    def _attributed(self, response: Response) -> Response:
        """An error without an id is the only waiting request's, if there is only one."""
        if response.id is not None or response.error is UNSET or len(self._asked) != 1:
            return response
        return response.with_id(next(iter(self._asked)))

    def _own(self, response: Response) -> asyncio.Future[Response] | None:
        if self._connection is None or response.id is None:
            return None
        found = self._connection.own.pop(response.id, None)
        return None if found is None or found.done() else found
