"""One answer as a stream of server-sent events, fed from callbacks.

Decides when bytes go out (what has gathered goes as one chunk), when the producer shall pause
(`on_pressure`), when a silent stream says that it lives, and when a client that reads nothing
of a full stream is cut off. Knows nothing of what an event says: `core.sse` wrote it. Answers
basic/transports on streams: never compressed, headers at once, nothing held back by a proxy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from aiohttp.abc import AbstractStreamWriter
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpVersion11
from aiohttp.web import BaseRequest, StreamResponse

from bridge.core.sse import COMMENT
from bridge.downstream.http import Part, head_of, open_transport, send

_LINES: Final = (
    b"Content-Type: text/event-stream\r\nCache-Control: no-cache, no-transform\r\nX-Accel-Buffering: no\r\n"
)


class EventStream(StreamResponse):
    """The handler's use: `start`, then `run` until it returns, then return the stream itself.

    `push` and `finish` may be called from anywhere in the loop, also before `start`. `unsent` is
    the high mark in bytes of what was pushed and not yet taken by the network; `on_pressure` is
    told True when it is crossed and False when less than half of it is left, or the stream ended.
    Without it nobody can be slowed down, and a stream that fills while it runs is cut off; the
    largest event is not counted then, so that one alone always gets through, however large.
    """

    def __init__(self, *, unsent: int, on_pressure: Callable[[bool], None] | None = None) -> None:
        super().__init__()
        self.pending_bytes = 0
        self._pending: list[bytes] = []
        self._high, self._low = unsent, unsent // 2
        self._largest = 0
        self._on_pressure = on_pressure
        self._chunks = False
        self._running = self._full = self._finishing = self._over = self._ended = False
        self._wake: asyncio.Future[None] | None = None
        self._request: BaseRequest | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._written = self._taken = 0
        self._spoke_at = self._moved_at = 0.0
        self._keepalive = self._stalled = 0.0

    @property
    def unsent(self) -> int:
        """Bytes pushed that the network has not taken."""
        if self._transport is None:
            return self.pending_bytes
        return self.pending_bytes + self._transport.get_write_buffer_size()

    async def start(self, request: BaseRequest, extra_headers: bytes = b"") -> None:
        """Send the headers. `extra_headers` are complete lines. Raises ConnectionResetError."""
        transport = self._transport = open_transport(request)
        self._request = request
        self._chunks = request.version >= HttpVersion11
        keep_alive = self._keep_alive = self._chunks and request.keep_alive
        framing = b"Transfer-Encoding: chunked\r\n\r\n" if self._chunks else b"\r\n"
        head = b"".join((*head_of(request, 200, _LINES + extra_headers, keep_alive=keep_alive), framing))
        transport.write(head)
        request.writer.output_size += len(head)  # no error page may follow (listener.py)
        self._spoke_at = asyncio.get_running_loop().time()

    async def write(self, data: Part) -> None:
        """Send now, and wait while the network takes no more. Raises ConnectionResetError."""
        self._send(data, last=False)
        await self._drained()

    async def end(self) -> None:
        """Send the end of the stream, once. Raises ConnectionResetError."""
        if not self._ended:
            self._over = True
            self._send(b"", last=True)
            await self._drained()

    @property
    def waiting(self) -> Sequence[bytes]:
        """What was pushed and `run` did not begin to send."""
        return self._pending

    def push(self, data: bytes) -> None:
        """Add to what `run` sends. Dropped when the stream is over."""
        if self._over or self._finishing:
            return
        self._pending.append(data)
        self.pending_bytes += len(data)
        self._rouse()
        if self._on_pressure is None:
            self._largest = max(self._largest, len(data))
            self._cut_if_full()
        elif not self._full and self.unsent > self._high:
            self._press(True)

    def finish(self) -> None:
        """Let `run` end once everything pushed so far is sent."""
        self._finishing = True
        self._moved()
        self._rouse()

    def superseded(self) -> list[bytes]:
        """Another stream takes over: end, and slow nobody down for it; gives what was not sent yet."""
        left, self._pending = self._pending, []
        self.pending_bytes = 0
        self.finish()
        if self._full:
            self._press(False)
        return left

    async def run(self, keepalive: float, stalled: float) -> bool:
        """Send what is pushed: True after `finish`, False if the client left first.

        A comment goes out after `keepalive` seconds of silence. A client that takes nothing for
        `stalled` seconds while the stream is full, or finished, is cut off.
        """
        self._keepalive, self._stalled = keepalive, stalled
        self._running = True
        if self._on_pressure is None:
            self._high += self.unsent  # what a resumed client missed is not its slowness
        self._moved()
        self._tick()
        try:
            await self._flow()
        except ConnectionError:
            return False
        except asyncio.CancelledError:
            # The server cancels handlers of lost connections; that is this method's news to tell.
            task = asyncio.current_task()
            if task is None or not self._gone():
                raise
            task.uncancel()
            return False
        finally:
            self._close()
        return True

    async def _flow(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._ended:
            if self._pending or self._finishing:
                self._send(self._take(), last=self._finishing)
                await self._drained()
            else:
                self._wake = loop.create_future()
                await self._wake

    def _take(self) -> bytes:
        data = self._pending[0] if len(self._pending) == 1 else b"".join(self._pending)
        self._pending.clear()
        self.pending_bytes = 0
        return data

    def _send(self, data: Part, *, last: bool) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        tail = b"0\r\n\r\n" if last and self._chunks else b""
        if not data:
            parts: tuple[Part, ...] = (tail,) if tail else ()
        elif self._chunks:
            parts = (b"%x\r\n" % len(data), data, b"\r\n" + tail)
        else:
            parts = (data,)
        send(transport, parts, len(data))
        self._ended = last
        self._written += sum(map(len, parts))
        self._spoke_at = asyncio.get_running_loop().time()

    async def _drained(self) -> None:
        if self._request is not None and self._request.protocol.writing_paused:
            # Not writer.drain(), which cuts off whoever is slow (listener.py): a stream is
            # patient until it is full.
            await BaseProtocol._drain_helper(self._request.protocol)
        if self._full and self.unsent < self._low:
            self._press(False)

    def _cut_if_full(self) -> None:
        if self._running and self._transport is not None and self.unsent - self._largest > self._high:
            self._over = True
            self._transport.abort()

    def _press(self, full: bool) -> None:
        self._full = full
        self._moved()
        if self._on_pressure is not None:
            self._on_pressure(full)

    def _rouse(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None and not wake.done():
            wake.set_result(None)

    def _gone(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def _moved(self) -> None:
        """Count the time without progress from now on."""
        self._moved_at = asyncio.get_running_loop().time()

    def _tick(self) -> None:
        """The one timer, of keep-alive and stall: set for the earliest of both, never moved."""
        transport, loop = self._transport, asyncio.get_running_loop()
        if transport is None or transport.is_closing():
            return
        now = loop.time()
        if self._is_stalled(transport, now):
            transport.abort()
            return
        if now - self._spoke_at >= self._keepalive:
            self._send_comment()
        # What is due already (a comment that has no room) waits a whole turn.
        dues = (self._spoke_at + self._keepalive, self._moved_at + self._stalled)
        turns = (now + self._keepalive, now + self._stalled)
        when = min(due if due > now else turn for due, turn in zip(dues, turns, strict=True))
        self._timer = loop.call_at(when, self._tick)

    def _send_comment(self) -> None:
        has_room = self._request is not None and not self._request.protocol.writing_paused
        if has_room and not self._ended:
            self._send(COMMENT, last=False)

    def _is_stalled(self, transport: asyncio.Transport, now: float) -> bool:
        taken = self._written - transport.get_write_buffer_size()
        if taken != self._taken or not (self._full or self._finishing):
            self._taken, self._moved_at = taken, now
        return now - self._moved_at >= self._stalled

    def _close(self) -> None:
        self._over = True
        if not self._ended:
            self._keep_alive = False  # what is cut short must not look whole
        self._take()
        if self._timer is not None:
            self._timer.cancel()
        if self._full:
            self._press(False)

    # --- what aiohttp calls when the handler returns the stream ---

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        if self._request is None:
            await self.start(request)
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        if self._gone():
            raise ConnectionResetError("the client is gone")
        if not self._over:
            await self.end()
