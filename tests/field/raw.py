"""A client of a few lines that says exactly the bytes it is given, and reads what comes back.

It shares no code with the bridge: HTTP, chunks and server-sent events are read here by hand, so that
a fault of the bridge's own reader cannot hide one of its writer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

LIMIT = 15.0
"""Seconds after which a test that waits has failed."""

BOTH = "application/json, text/event-stream"
JSON_ONLY = "application/json"
SSE_ONLY = "text/event-stream"

Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Event:
    """One server-sent event; a comment has its text in `comment` and nothing else."""

    data: bytes = b""
    id: str | None = None
    name: str | None = None
    retry: int | None = None
    comment: str | None = None

    @property
    def message(self) -> Any:
        return read(self.data)


@dataclass(frozen=True)
class Answer:
    """A whole HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def streamed(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def events(self) -> list[Event]:
        """Every event that carries data, comments left out."""
        assert self.streamed, self
        return [event for event in map(parse, self.body.split(b"\n\n")) if event.data]

    @property
    def payloads(self) -> list[bytes]:
        """The JSON texts in it, in order, whichever way they came."""
        if self.streamed:
            return [event.data for event in self.events]
        return [self.body] if self.body else []

    @property
    def messages(self) -> list[Any]:
        return [read(payload) for payload in self.payloads]

    @property
    def last(self) -> Any:
        """The final answer: the last message of the response."""
        assert self.payloads, self
        return read(self.payloads[-1])

    @property
    def result(self) -> Any:
        assert "result" in self.last, self.last
        return self.last["result"]

    @property
    def error(self) -> Any:
        assert "error" in self.last, self.last
        return self.last["error"]


def parse(block: bytes) -> Event:
    """One event without the blank line that ends it; lines end at LF, as the bridge writes them."""
    data: list[bytes] = []
    fields: dict[str, str] = {}
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif line:
            fields[name.decode() or "comment"] = value.decode()
    retry = fields.get("retry")
    return Event(
        data=b"\n".join(data),
        id=fields.get("id"),
        name=fields.get("event"),
        retry=None if retry is None else int(retry),
        comment=fields.get("comment"),
    )


@dataclass
class Exchange:
    """One HTTP exchange in progress, on a connection of its own."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    _held: bytes = b""
    _ended: bool = False

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def flush(self) -> None:
        async with asyncio.timeout(LIMIT):
            await self.writer.drain()

    async def head(self) -> int:
        """Read the status line and the headers, of the final response if an interim one comes first."""
        async with asyncio.timeout(LIMIT):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        assert first.startswith("HTTP/1."), first
        self.status = int(first.split()[1])
        pairs = [line.partition(":")[::2] for line in lines]
        self.headers = {name.lower(): value.strip() for name, value in pairs}
        return await self.head() if self.status == 100 else self.status

    async def piece(self) -> bytes:
        """Some of the body, decoded of its chunks; empty at its end."""
        if self._ended:
            return b""
        async with asyncio.timeout(LIMIT):
            if self.headers.get("transfer-encoding") == "chunked":
                size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
                found = (await self.reader.readexactly(size + 2))[:-2]
            elif "content-length" in self.headers:
                found = await self.reader.readexactly(int(self.headers["content-length"]))
                self._ended = True
            else:
                found = b"" if self.status in (202, 204, 304) else await self.reader.read(65536)
        self._ended = self._ended or not found
        return found

    async def answer(self) -> Answer:
        """Everything, up to the end of the response."""
        parts = [self._held]
        async with asyncio.timeout(LIMIT):  # of the whole, for comments may come for ever
            if not self.status:
                await self.head()
            while found := await self.piece():
                parts.append(found)
        return Answer(self.status, self.headers, b"".join(parts))

    async def block(self) -> Event | None:
        """The next event, comments and events without data included; None at the end of the stream."""
        if not self.status:
            await self.head()
        while b"\n\n" not in self._held:
            found = await self.piece()
            if not found:
                return None
            self._held += found
        block, _, self._held = self._held.partition(b"\n\n")
        return parse(block)

    async def event(self) -> Event:
        """The next event that carries data."""
        async with asyncio.timeout(LIMIT):
            while (found := await self.block()) is not None:
                if found.data:
                    return found
        raise AssertionError("the stream ended")

    async def message(self) -> Any:
        return (await self.event()).message

    def reset(self) -> None:
        """Leave as a crashed client does."""
        self.writer.transport.abort()


@asynccontextmanager
async def dial(port: int, *, host: str = "127.0.0.1") -> AsyncIterator[Exchange]:
    """A connection on which nothing has been said."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    try:
        yield Exchange(reader, writer)
    finally:
        writer.transport.abort()


def head_of(method: str, path: str, headers: Headers, *, host: str = "localhost") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode()


@asynccontextmanager
async def opened(
    port: int, method: str, headers: Headers, body: bytes | None = None, *, path: str = "/mcp"
) -> AsyncIterator[Exchange]:
    """Send one request; its response is read by whoever wants it."""
    async with dial(port) as exchange:
        length = [] if body is None else [("Content-Length", str(len(body)))]
        exchange.say(head_of(method, path, [*headers, *length]) + (body or b""))
        await exchange.flush()
        yield exchange


async def ask(
    port: int, method: str, headers: Headers, body: bytes | None = None, *, path: str = "/mcp"
) -> Answer:
    """One request and its whole response."""
    async with opened(port, method, headers, body, path=path) as exchange:
        return await exchange.answer()


async def ask_in_chunks(
    port: int, headers: Headers, chunks: Iterable[bytes], *, pause: float = 0.0, path: str = "/mcp"
) -> Answer:
    """POST a body in these chunks; with a `pause` in seconds each travels by itself."""
    async with dial(port) as exchange:
        exchange.say(head_of("POST", path, [*headers, ("Transfer-Encoding", "chunked")]))
        for chunk in chunks:
            exchange.say(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            if pause:
                await exchange.flush()
                await asyncio.sleep(pause)
        exchange.say(b"0\r\n\r\n")
        return await exchange.answer()


def read(payload: bytes) -> Any:
    """JSON; an integer that Python refuses for its length stays text."""
    return json.loads(payload, parse_int=lambda digits: int(digits) if len(digits) < 4000 else digits)


def dump(message: object) -> bytes:
    """JSON as compact as it gets, non-ASCII characters raw."""
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
