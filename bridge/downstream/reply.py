"""The answer to one POST: one JSON text, or a stream of events once something must be streamed.

Nothing is committed before that is known, since a JSON answer is cheaper, and a modern one
has a status of its own (specification: "Streamable HTTP", "Sending Messages to the Server").
Who writes into it, and how an event is recorded for a resumption, is the port's matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from aiohttp.web import BaseRequest, StreamResponse

from bridge.config import Limits, Timing
from bridge.core.headers import Accepted, Refusal
from bridge.core.message import Id, Malformed, error, local_error
from bridge.deadlines import Deadlines
from bridge.downstream.event_stream import EventStream
from bridge.downstream.http import Ready

_JSON: Final = b"Content-Type: application/json\r\n"


class Reply:
    """`encode` makes an SSE event of a message; `opening` makes the bytes that begin its stream.

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
        "number",
        "resumable",
        "streaming",
    )

    def __init__(
        self,
        accepted: Accepted,
        encode: Callable[[bytes], bytes],
        *,
        opening: Callable[[Reply], bytes] | None = None,
        expected: int | None = None,
        resumable: bool = False,
    ) -> None:
        self.accepted = accepted
        self.encode = encode
        self.resumable = resumable
        self.number = 0
        """Of its stream, where streams are numbered."""
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
    def live(self) -> bool:
        """Whether an event pushed now would reach a client that is there."""
        return self.accepted.sse and not (self.finished or self._gone)

    @property
    def carries(self) -> bool:
        """Whether it can take an event that is not the answer, be it only to keep it for a resumption."""
        return self.live or (self.resumable and self.streaming and not self.finished)

    def head(self, lines: bytes) -> None:
        """Header lines for the answer, while it is not committed."""
        self._lines = lines

    # From the port

    @property
    def waiting(self) -> Sequence[bytes]:
        """Events that nobody began to send."""
        return self._events if self._stream is None else self._stream.waiting

    def push(self, payload: bytes) -> None:
        """A message before the answer."""
        if self.carries:
            self._write(payload)

    def answer(self, payload: bytes, status: int = 200) -> None:
        """An answer; with the last one expected the reply is finished."""
        if self.finished:
            return
        if self.streaming or not self.accepted.json:
            self.push(payload)
        else:
            self._answers.append(payload)
            self._status = status
        self._count()

    def abandon(self) -> None:
        """One answer fewer will come, for the request was cancelled."""
        self._count()

    def commit(self) -> None:
        """Become a stream now, so that a long wait can be kept alive."""
        if not self.streaming and not self.finished and self.accepted.sse:
            self._begin()

    def attach(self, stream: EventStream) -> None:
        """Let `stream` carry what comes from now on; one that did so before is ended."""
        if self._stream is not None:
            self._stream.superseded()  # whoever resumes is given what was kept, from where it says
        self._stream = stream
        self._gone = False
        if self.finished:
            stream.finish()

    def _begin(self) -> None:
        self.streaming = True
        if self._opening is not None:
            self._buffer(self._opening(self))
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

    def _count(self) -> None:
        self._expected -= 1
        if self._expected > 0 or self.finished:
            return
        self.finished = True
        if self._stream is not None:
            self._stream.finish()
        self._tell()

    def _tell(self) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    # From the handler of a POST, or of the GET that resumes its stream

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
        try:
            await self._decided(commits)
            if not self.streaming and (self._answers or not self.accepted.sse):
                return self._json()
            stream = EventStream(unsent=limits.unsent, on_pressure=pressure)
            await stream.start(request, self._lines)
            for event in self._events:
                stream.push(event)
            self.attach(stream)
            await self.attend(stream, timing)
        finally:
            self._events.clear()
            self._gone = self._stream is None  # unless a GET has taken the stream over
        return stream

    async def attend(self, stream: EventStream, timing: Timing) -> None:
        """Keep an attached stream going until all is said, its client leaves, or another takes over."""
        try:
            await stream.run(timing.keepalive, timing.stalled)
        finally:
            if self._stream is stream:
                self._stream = None
                self._gone = True

    async def _decided(self, commits: Deadlines[Reply]) -> None:
        if self.finished or self.streaming:
            return
        self._first = asyncio.get_running_loop().create_future()
        commits.add(self)
        try:
            await self._first
        finally:
            commits.remove(self)

    def _json(self) -> Ready:
        if not self._answers:
            # Cancelled, and the client takes no stream that could end without an answer.
            return Ready(202, self._lines)
        body = b"[" + b",".join(self._answers) + b"]" if self._batch else self._answers[0]
        return Ready(self._status, _JSON + self._lines, (body,))


def refused(payload: bytes, status: int, lines: bytes = b"") -> Ready:
    """A JSON-RPC error as a whole answer."""
    return Ready(status, _JSON + lines, (payload,))


def malformed(fault: Malformed) -> Ready:
    return refused(error(fault.id, fault.code, fault.message).raw, 400)


def declined(asked: Id | None, refusal: Refusal) -> Ready:
    """The refusal as an answer to this request."""
    return refused(error(asked, refusal.code, refusal.message, refusal.data).raw, refusal.status)


def later(asked: Id | None, text: str, reason: str, *, status: int = 503, seconds: int = 1) -> Ready:
    """What is too much now and may be tried again in a while."""
    return refused(local_error(asked, text, reason).raw, status, b"Retry-After: %d\r\n" % seconds)
