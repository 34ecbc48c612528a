"""A remote server of raw sockets that does what a test says, byte for byte and in its time.

`Wire` is HTTP only: it reads requests and gives each to a coroutine of the test, which writes
whatever it likes. `Remote` adds the habits of an MCP server over Streamable HTTP, of which a test
replaces single ones; `OldRemote` those of one over HTTP+SSE.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self, cast

import anyio

LIMIT = 20.0
"""Seconds for anything that would otherwise hang."""

Json = dict[str, Any]
_REASONS: Final = {200: "OK", 202: "Accepted", 404: "Not Found"}


def message(data: object) -> bytes:
    """An SSE event with a JSON-RPC message."""
    return b"event: message\r\ndata: " + json.dumps(data).encode() + b"\r\n\r\n"


class Exchange:
    """One request and the means to answer it. Header names are in lower case."""

    def __init__(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, line: asyncio.Transport
    ) -> None:
        self.method, self.target, self.headers, self.body = method, target, headers, body
        self.left = asyncio.Event()
        """Set when the connection is closed, by either side, or the stream was ended."""
        self._line = line

    @property
    def json(self) -> Json:
        found: Json = json.loads(self.body)
        return found

    @property
    def rpc(self) -> str:
        """The JSON-RPC method; "answer" for an answer, the HTTP method without a body."""
        return str(self.json.get("method", "answer")) if self.body else self.method

    @property
    def id(self) -> Any:
        return self.json.get("id") if self.body else None

    def raw(self, data: bytes) -> None:
        if not self._line.is_closing():
            self._line.write(data)

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Whatever')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.raw("\r\n".join([*lines, "", ""]).encode())

    def reply(self, status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> None:
        """A whole answer; underscores in header names stand for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        length = {"Content-Length": str(len(body)), **({"Content-Type": kind} if body else {})}
        self.head(status, length | named)
        self.raw(body)

    def result(self, result: object, **headers: str) -> None:
        """Answer the request with plain JSON."""
        answer = {"jsonrpc": "2.0", "id": self.id, "result": result}
        self.reply(200, json.dumps(answer).encode(), **headers)

    def stream(self, *parts: bytes, **headers: str) -> None:
        """Open an event stream, and send each part by itself."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        kind = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        self.head(200, kind | named)
        for part in parts:
            self.push(part)

    def push(self, part: bytes) -> None:
        self.raw(b"%x\r\n%b\r\n" % (len(part), part))

    def say(self, data: object) -> None:
        self.push(message(data))

    def answer(self, result: object) -> None:
        """Answer the request on the open stream."""
        self.say({"jsonrpc": "2.0", "id": self.id, "result": result})

    def end(self) -> None:
        """The stream ends as it should."""
        self.raw(b"0\r\n\r\n")
        self.left.set()

    def cut(self) -> None:
        """The connection is closed, ended stream or not."""
        self._line.close()

    def reset(self) -> None:
        """The connection is reset."""
        sock = self._line.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._line.abort()


Handler = Callable[[Exchange], Awaitable[None]]


class Wire:
    """An HTTP/1.1 server; every request is kept in `seen`, and given to `handle`. Use as `async with`."""

    def __init__(self) -> None:
        self.seen: list[Exchange] = []
        self.faults: list[BaseException] = []
        self.connections: set[_Connection] = set()
        self.accepted = 0
        self.port = 0
        self._scheme = "http"
        self._server: asyncio.Server | None = None
        self._told = asyncio.Event()

    async def handle(self, exchange: Exchange) -> None:
        raise NotImplementedError

    async def start(self, tls: ssl.SSLContext | None = None, path: Path | None = None) -> None:
        """Listen, a second time on the port of the first."""
        loop = asyncio.get_running_loop()
        if path is None:
            self._server = await loop.create_server(
                lambda: _Connection(self), "127.0.0.1", self.port, ssl=tls, reuse_address=True
            )
            self.port = self._server.sockets[0].getsockname()[1]
        else:
            self._server = await loop.create_unix_server(lambda: _Connection(self), str(path))
        self._scheme = "http" if tls is None else "https"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
        assert not self.faults, self.faults

    async def stop(self) -> None:
        """Refuse connections from now on, and reset those that stand."""
        if self._server is not None:
            self._server.close()
        tasks = [connection.handling for connection in self.connections if connection.handling]
        for connection in list(self.connections):
            connection.reset()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.until(lambda: not self.connections)

    def url(self, path: str = "/mcp") -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}{path}"

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that a request or a leaving client brings about."""
        with anyio.fail_after(LIMIT):
            while not condition():
                await self._told.wait()

    def tell(self) -> None:
        self._told.set()
        self._told = asyncio.Event()

    def rpcs(self) -> list[str]:
        """What was asked so far, in order: JSON-RPC methods, "answer" for answers, GET and DELETE."""
        return [one.rpc for one in self.seen]

    def asked(self, rpc: str) -> list[Exchange]:
        return [one for one in self.seen if one.rpc == rpc]

    async def until_asked(self, rpc: str, count: int = 1) -> Exchange:
        await self.until(lambda: len(self.asked(rpc)) >= count)
        return self.asked(rpc)[count - 1]


class _Connection(asyncio.Protocol):
    """Cuts requests out of what comes, and lets the test handle one after another."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._buffer = b""
        self._exchange: Exchange | None = None
        self.handling: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        line = cast("asyncio.Transport", transport)  # uvloop has no common ancestor
        self._line = line
        self._wire.connections.add(self)
        self._wire.accepted += 1

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._proceed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wire.connections.discard(self)
        if self._exchange is not None:
            self._exchange.left.set()
        self._wire.tell()

    def reset(self) -> None:
        if self.handling is not None:
            self.handling.cancel()
        self._line.abort()

    def _proceed(self) -> None:
        if self.handling is None and (exchange := self._cut()):
            self._exchange = exchange
            self._wire.seen.append(exchange)
            self._wire.tell()
            self.handling = asyncio.ensure_future(self._wire.handle(exchange))
            self.handling.add_done_callback(self._handled)

    def _cut(self) -> Exchange | None:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return None
        self._buffer = rest[length:]
        return Exchange(method, target, headers, rest[:length], self._line)

    def _handled(self, task: asyncio.Task[None]) -> None:
        self.handling = None
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            self._wire.faults.append(fault)
            self._line.abort()
        self._proceed()


class Remote(Wire):
    """A server over Streamable HTTP that answers everything and offers no GET stream.

    `on` replaces what it does for one JSON-RPC method, `GET`, `DELETE` or `answer`.
    """

    session: str | None = "session-1"
    version = "2025-11-25"

    def __init__(self, on: Mapping[str, Handler] | None = None) -> None:
        super().__init__()
        self.capabilities: Json = {}
        self.on: dict[str, Handler] = dict(on or {})

    async def handle(self, exchange: Exchange) -> None:
        handler = self.on.get(exchange.rpc)
        if handler is not None:
            await handler(exchange)
        elif exchange.rpc == "initialize":
            exchange.result(self.initialized(), **self._identity())
        elif exchange.rpc in ("GET", "DELETE"):
            exchange.reply(405 if exchange.rpc == "GET" else 200)
        elif exchange.id is None or exchange.rpc == "answer":
            exchange.reply(202)
        else:
            exchange.result({"echo": exchange.json.get("params")})

    def initialized(self) -> Json:
        server = {"name": "scripted", "version": "1"}
        return {"protocolVersion": self.version, "capabilities": self.capabilities, "serverInfo": server}

    def _identity(self) -> dict[str, str]:
        return {} if self.session is None else {"Mcp_Session_Id": self.session}


class OldRemote(Remote):
    """A server over HTTP+SSE: GET any path for the stream; POST anywhere but to the endpoint is 405."""

    version = "2024-11-05"
    endpoint = "/messages?sid=1"

    def __init__(self, on: Mapping[str, Handler] | None = None) -> None:
        super().__init__(on)
        self.streams: list[Exchange] = []

    @property
    def stream(self) -> Exchange:
        return self.streams[-1]

    async def handle(self, exchange: Exchange) -> None:
        if exchange.rpc in self.on:
            await self.on[exchange.rpc](exchange)
        elif exchange.method == "GET":
            self.open_stream(exchange)
            await exchange.left.wait()
        elif exchange.target != self.endpoint:
            exchange.reply(405)
        else:
            exchange.reply(202, b"Accepted", "text/plain")
            self.respond(exchange)

    def open_stream(self, exchange: Exchange) -> None:
        exchange.stream(b"retry: 1\n\nevent: endpoint\ndata: " + self.endpoint.encode() + b"\n\n")
        self.streams.append(exchange)

    def respond(self, exchange: Exchange, result: object = None) -> None:
        """Answer a request on the stream."""
        if exchange.rpc == "initialize":
            result = self.initialized()
        if exchange.rpc != "answer" and exchange.id is not None:
            echo = {"echo": exchange.json.get("params")} if result is None else result
            self.stream.say({"jsonrpc": "2.0", "id": exchange.id, "result": echo})
