"""The short way for messages under a head that this connection has sent before.

A client repeats the head of its requests byte for byte, but for the length of the body. aiohttp has
read it once, the gate has let it in, and the endpoint has found that nothing in it but the session
matters (`Connection.learn`). From then on a message under the same bytes, whose body came along whole,
is handed to the endpoint as it arrives, without a task, a request or another look at the headers, and
its answer goes out as one write. Everything else goes the long way: aiohttp alone reads HTTP here,
and an answer that turns out to be a stream is carried on by a handler like any other.

Knows nothing of paths, sessions or messages. Answers nothing by itself.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from aiohttp import hdrs
from aiohttp.http import HttpVersion11, RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web import BaseRequest, RequestHandler, RequestKey, StreamResponse

from bridge.downstream.http import Ready

_MOST: Final = 4
"""Heads of one connection that are known at a time: a request's, and those of other revisions or tokens."""
_LONGEST: Final = 8192
"""Bytes of a head that is looked at."""
_DIGITS: Final = 9

_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*\r\n", re.IGNORECASE)


class Rules:
    """What let a request in and led it to its handler, until `hold` is false."""

    __slots__ = ("hold",)

    def __init__(self) -> None:
        self.hold = True


RULES: Final = RequestKey("rules", Rules)
"""Set by whoever lets requests in; without it nothing is learned of a request."""


class Pending(Protocol):
    """An answer to come. `told` is called once: when it is whole, or when it must become a stream."""

    told: Callable[[], None] | None

    @property
    def decided(self) -> bool:
        """Whether it is whole or a stream by now."""

    def ready(self) -> Ready | None:
        """The whole answer; None if it is a stream."""

    def sent(self) -> None:
        """Nothing more is needed of it."""

    def leave(self) -> None:
        """The client is gone."""

    async def go_on(self, request: BaseRequest) -> StreamResponse:
        """Send it as the answer to this request, whose body was taken already."""


Take = Callable[[bytes], Ready | Pending | None]
"""Takes a body: the answer, one to come, or None if it has to go the long way; then nothing was done."""


def learn(request: BaseRequest, take: Take) -> None:
    """From now on `take` gets the bodies that come under the head of this request on its connection."""
    if hdrs.ORIGIN not in request.headers and isinstance(request.protocol, RepeatingConnection):
        rules = request.get(RULES)
        if rules is not None:
            request.protocol.learn(take, rules)


def taken_of(request: BaseRequest) -> Pending | None:
    """The answer to this request, if the short way had begun with it."""
    protocol = request.protocol
    return protocol.taken() if isinstance(protocol, RepeatingConnection) else None


class _Head(NamedTuple):
    """A head whose body has a stated length, without the digits that state it."""

    before: bytes
    after: bytes
    length: int
    size: int
    """Bytes of the whole request."""


class _Known(NamedTuple):
    before: bytes
    after: bytes
    take: Take
    rules: Rules


def _head_of(data: bytes) -> _Head | None:
    """How a request begins that states one length of its body; None for all others."""
    end = data.find(b"\r\n\r\n", 0, _LONGEST)
    if end < 0:
        return None
    lengths = list(_LENGTH.finditer(data, 0, end + 2))
    if len(lengths) != 1:
        return None
    (found,) = lengths
    length = int(found[1])
    return _Head(data[: found.start(1)], data[found.end(1) : end + 4], length, end + 4 + length)


def _is_plain(message: object, payload: object, head: _Head) -> bool:
    """Whether aiohttp read a request as we did: one message, whole, with nothing special about it."""
    return (
        isinstance(message, RawRequestMessage)
        and message.method == hdrs.METH_POST
        and message.version == HttpVersion11
        and not (message.should_close or message.upgrade or message.chunked or message.compression)
        and isinstance(payload, StreamReader)
        and payload.is_eof()
        and payload.total_bytes == head.length
    )


class RepeatingConnection(RequestHandler):
    """aiohttp's connection with the short way before it."""

    __slots__ = ("_fresh", "_held", "_known", "_left", "_pending", "_used", "_watch")

    # aiohttp reads its attributes by name, so these are set here and not by an __init__ of many arguments.
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._known: list[_Known] = []
        self._left: int | None = 0
        """Bytes until the parser is between two requests; None once that cannot be told any more."""
        self._fresh: _Head | None = None
        """The head of the request in hand, if it may be learned."""
        self._pending: tuple[Pending, _Known] | None = None
        self._held = b""
        """What came behind a request that is not answered yet."""
        self._used = False
        """Whether anything went the short way since the keep-alive timer was set."""
        self._watch: asyncio.Task[None] | None = None
        super().connection_made(transport)

    def learn(self, take: Take, rules: Rules) -> None:
        fresh, self._fresh = self._fresh, None
        if fresh is not None:
            self._known.insert(0, _Known(fresh.before, fresh.after, take, rules))
            del self._known[_MOST:]

    def taken(self) -> Pending | None:
        if self._pending is None:
            return None
        (pending, _), self._pending = self._pending, None
        if self._held:
            self._loop.call_soon(self._release)
        return pending

    # What the transport calls

    def data_received(self, data: bytes) -> None:
        if not data:
            super().data_received(data)  # aiohttp calls itself so, to read on in what its parser holds
        elif self._pending is not None:
            self._hold(data)
        elif not (self._known and self._short(data)):
            self._long(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._pending is not None:
            (pending, _), self._pending = self._pending, None
            pending.leave()
        self._known.clear()
        super().connection_lost(exc)

    # The short way

    def _short(self, data: bytes) -> bool:
        """Whether `data` was one whole request under a known head, and was taken."""
        if self._left != 0 or self._waiter is None or self._messages or self._paused or self._ends():
            return False
        for known in self._known:
            if data.startswith(known.before):
                start = len(known.before)
                stop = data.find(b"\r", start, start + _DIGITS + 1)
                if stop < 0 or not data.startswith(known.after, stop):
                    return False
                digits, body = data[start:stop], data[stop + len(known.after) :]
                return digits.isdigit() and len(body) == int(digits) and self._take(known, body)
        return False

    def _ends(self) -> bool:
        return self._close or self._force_close

    def _take(self, known: _Known, body: bytes) -> bool:
        if not known.rules.hold:
            self._known.clear()
            return False
        answer = known.take(body)
        if answer is None:
            return False
        self._used = True
        if isinstance(answer, Ready):
            self._put(answer)
            return True
        self._pending = answer, known
        answer.told = self._told
        if answer.decided:
            self._told()
        return True

    def _told(self) -> None:
        if self._pending is None:
            return
        pending, known = self._pending
        ready = pending.ready()
        if ready is not None:
            self._pending = None
            self._put(ready)
            pending.sent()
            self._release()
        elif self._ends():
            self._pending = None
            pending.leave()
        else:
            # A handler finds the answer by `taken_of`, and needs nothing of the body.
            self._long(b"%b0%b" % (known.before, known.after))

    def _put(self, ready: Ready) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        ready.put(self.transport)
        if self._paused and self._watch is None:
            self._watch = self._loop.create_task(self._watch_out())

    async def _watch_out(self) -> None:
        """See whether the client takes the answer; `_drain_helper` cuts off one that does not."""
        with suppress(ConnectionError):
            await self._drain_helper()
        self._watch = None

    def _hold(self, data: bytes) -> None:
        """Keep what came too early; its sender has to wait."""
        self._held += data
        if self.transport is not None:
            self.transport.pause_reading()

    def _release(self) -> None:
        held, self._held = self._held, b""
        if held:
            if self.transport is not None:
                self.transport.resume_reading()
            self.data_received(held)

    # The long way

    def _long(self, data: bytes) -> None:
        """Let aiohttp have it, and keep count of where its requests begin."""
        head = None
        if self._left == 0:
            head = _head_of(data)
            self._left = None if head is None else head.size
        if self._left is not None:
            self._left = self._left - len(data) if self._left >= len(data) else None
        idle = self._waiter is not None and not self._messages
        super().data_received(data)
        alone = idle and head is not None and self._left == 0 and len(self._messages) == 1
        self._fresh = head if alone and head is not None and _is_plain(*self._messages[0], head) else None

    def _process_keepalive(self) -> None:
        if self._used or self._pending is not None:
            self._used = False
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        super()._process_keepalive()
