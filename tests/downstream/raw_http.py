"""A listener on 127.0.0.1 and a client that says exactly the bytes it is given."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from bridge.config import Listen
from bridge.downstream.listener import Handler, Served, serve

LIMIT = 10.0
"""Seconds after which a test that waits has failed."""


class Fault(msgspec.Struct):
    code: int
    message: str


class ErrorBody(msgspec.Struct):
    jsonrpc: str
    id: int | str | None
    error: Fault


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def error(self) -> ErrorBody:
        assert self.headers["content-type"] == "application/json"
        return msgspec.json.decode(self.body, type=ErrorBody)


class Wire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, text: bytes) -> None:
        self.writer.write(text)

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(LIMIT):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode().split("\r\n")[:-2]
        assert first.startswith("HTTP/1.1 "), first
        pairs = [line.split(": ", 1) for line in lines]
        assert len({name.lower() for name, _ in pairs}) == len(pairs), f"a header stands twice: {pairs}"
        return int(first.split()[1]), {name.lower(): value for name, value in pairs}

    async def chunk(self) -> bytes:
        """One chunk of a chunked body; empty at its end."""
        async with asyncio.timeout(LIMIT):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def answer(self, *, head_only: bool = False) -> Answer:
        status, headers = await self.head()
        length = 0 if head_only else int(headers.get("content-length", 0))
        async with asyncio.timeout(LIMIT):
            return Answer(status, headers, await self.reader.readexactly(length))

    async def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        async with asyncio.timeout(LIMIT):
            return await self.reader.read()

    async def ask(self, text: bytes) -> Answer:
        self.say(text)
        return await self.answer()

    def hang_up(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def served(
    handler: Handler, listen: Listen | None = None, *, stalled: float = 30.0
) -> AsyncIterator[Served]:
    listener = await serve(listen or Listen(port=0), handler, stalled=stalled)
    try:
        yield listener
    finally:
        await listener.close()


@asynccontextmanager
async def wire(listener: Served, *, receive_buffer: int | None = None) -> AsyncIterator[Wire]:
    """Connect. A small `receive_buffer` makes a client that does not read felt soon."""
    host, port = listener.listening.rsplit(":", 1)
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    except OSError:
        sock.close()
        raise
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


def request(
    method: str = "POST", *lines: str, body: bytes = b"", version: str = "1.1", host: str = "localhost"
) -> bytes:
    head = [f"{method} /mcp HTTP/{version}", f"Host: {host}", *lines]
    if body:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body
