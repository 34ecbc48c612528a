"""The answer to one POST: one JSON text, or a stream of events once something must be streamed.

Nothing is committed before that is known, since a JSON answer is cheaper, and a modern one
has a status of its own (specification: "Streamable HTTP", "Sending Messages to the Server").
Who writes into it, and how an event is recorded for a resumption, is the port's matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiohttp.web import BaseRequest, StreamResponse

from bridge.config import Limits, Timing
from bridge.core.headers import Accepted
from bridge.deadlines import Deadlines
from bridge.downstream.event_stream import EventStream
from bridge.downstream.http import Ready

_JSON: Final = b"Content-Type: application/json\r\n"


class Reply:
    """`encode` makes an SSE event of a message; `opening` makes the bytes that begin a stream.

    `expected` counts the answers to come: more than one for a batch. With `resumable` a stream
    whose client has gone still takes events, for `encode` keeps them.
    """

    __slots__ = (
        "_answers",
        "_batch",
        "_events",
        "_expected",
        "_first",
        "_gone",
        "_lines",
        "_opening",
        "_status",
        "_stream",
        "accepted",
        "encode",
        "finished",
        "resumable",
        "streaming",
    )

    def __init__(
        self,
        accepted: Accepted,
        encode: Callable[[bytes], bytes],
        *,
        opening: Callable[[], bytes] | None = None,
        expected: int | None = None,
        resumable: bool = False,
    ) -> None:
        self.accepted = accepted
        self.encode = encode
        self.resumable = resumable
        self.streaming = False
        self.finished = False
        self._opening = opening
        self._batch = expected is not None
        self._expected = 1 if expected is None else expected
        self._answers: list[bytes] = []
        """Answers, while they may still become one JSON text."""
        self._events: list[bytes] = []
        """Events, until there is a stream to push them into."""
        self._status = 200
        self._lines = b""
        self._gone = False
        self._first: asyncio.Future[None] | None = None
        self._stream: EventStream | None = None

    @property
    def carries(self) -> bool:
        """Whether it can take an event that is not the answer."""
        if self.finished or not self.accepted.sse:
            return False
        return not self._gone or (self.resumable and self.streaming)

    def head(self, lines: bytes) -> None:
        """Header lines for the answer, while it is not committed."""
        self._lines = lines

    # From the port

    def push(self, payload: bytes) -> None:
        """A message before the answer."""
        if self.carries:
            self._write(payload)

    def answer(self, payload: bytes, status: int = 200) -> None:
        """An answer; with the last one expected the reply is finished."""
        if self.finished:
            return
        self._expected -= 1
        if self.streaming or not self.accepted.json:
            if self.carries:
                self._write(payload)
        else:
            self._answers.append(payload)
            self._status = status
        if self._expected <= 0:
            self._finish()

    def abandon(self) -> None:
        """One answer fewer will come, for the request was cancelled."""
        self._expected -= 1
        if self._expected <= 0 and not self.finished:
            self._finish()

    def commit(self) -> None:
        """Become a stream now, so that a long wait can be kept alive."""
        if not self.streaming and not self.finished and self.accepted.sse:
            self._begin()

    def left(self) -> None:
        """The client is gone."""
        self._gone = True
        self._stream = None

    def attach(self, stream: EventStream) -> None:
        """Let `stream` carry what comes from now on; one that did so before is ended."""
        if self._stream is not None:
            self._stream.finish()
        self._stream = stream
        self._gone = False
        if self.finished:
            stream.finish()

    def _begin(self) -> None:
        self.streaming = True
        if self._opening is not None:
            self._buffer(self._opening())
        for payload in self._answers:
            self._buffer(self.encode(payload))
        self._answers.clear()
        self._tell()

    def _write(self, payload: bytes) -> None:
        if not self.streaming:
            self._begin()
        self._buffer(self.encode(payload))

    def _buffer(self, event: bytes) -> None:
        if self._stream is not None:
            self._stream.push(event)
        elif not self._gone:
            self._events.append(event)

    def _finish(self) -> None:
        self.finished = True
        if self._stream is not None:
            self._stream.finish()
        self._tell()

    def _tell(self) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    # From the handler of the POST

    async def respond(
        self,
        request: BaseRequest,
        *,
        commits: Deadlines[Reply],
        limits: Limits,
        timing: Timing,
        pressure: Callable[[bool], None] | None,
    ) -> StreamResponse:
        """Wait for what becomes of it and send that. Cancelled when the client leaves.

        `pressure` slows the server down; without it a stream that is too full is cut.
        """
        if not (self.finished or self.streaming):
            self._first = asyncio.get_running_loop().create_future()
            commits.add(self)
            try:
                await self._first
            finally:
                commits.remove(self)
        if not self.streaming and (self._answers or not self.accepted.sse):
            return self._json()
        stream = EventStream(unsent=limits.unsent, on_pressure=pressure)
        await stream.start(request, self._lines)
        for event in self._events:
            stream.push(event)
        self._events.clear()
        self.attach(stream)
        if not await stream.run(timing.keepalive, timing.stalled) and self._stream is stream:
            self.left()
        return stream

    def _json(self) -> Ready:
        if not self._answers:
            # Cancelled, and the client takes no stream that could end without an answer.
            return Ready(202, self._lines)
        body = b"[" + b",".join(self._answers) + b"]" if self._batch else self._answers[0]
        return Ready(self._status, _JSON + self._lines, (body,))


def refused(payload: bytes, status: int, lines: bytes = b"") -> Ready:
    """A JSON-RPC error as a whole answer."""
    return Ready(status, _JSON + lines, (payload,))
