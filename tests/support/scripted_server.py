"""A server without a process: what the bridge sends it is recorded, what it says is injected.

A test plays the server by hand, so that it reads as a transcript: `hears`, `answers`, `says`, `dies`.
It keeps the contract of `bridge.upstream.base`, and knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any

import msgspec

from bridge.core.lines import Overlong
from bridge.core.message import Headers
from bridge.errors import ServerFault, ServerStopped
from bridge.upstream.base import Receiver

LIMIT = 10.0
"""Seconds after which a test that waits has failed."""

Id = int | str
Json = dict[str, Any]


def dump(message: object) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


class Heard(msgspec.Struct, frozen=True):
    """One message as the server got it; `raw` is its line."""

    method: str | None = None
    id: Id | None = None
    params: Json = msgspec.field(default_factory=dict)
    result: Any = None
    error: Json | None = None
    raw: bytes = b""


class ScriptedServer:
    """One server: an `Upstream` for the bridge, a puppet for the test."""

    def __init__(self, number: int, receiver: Receiver) -> None:
        self.label = f"script[{number}]"
        self.unread: deque[Heard] = deque()
        """What the bridge sent and the test has not asked for yet."""
        self.paused = False
        self.closed = asyncio.Event()
        self._receiver = receiver
        self._lost = False
        self._came = asyncio.Event()
        self._reads = asyncio.Event()
        self._reads.set()

    # What the bridge sees

    def send(self, line: bytes, headers: Headers = ()) -> None:
        if self._lost:
            return
        assert b"\n" not in line
        fields = json.loads(line)
        assert fields.pop("jsonrpc") == "2.0"
        self.unread.append(msgspec.convert({**fields, "raw": line}, Heard))
        self._came.set()

    @property
    def congested(self) -> bool:
        return not self._reads.is_set()

    async def drained(self) -> None:
        await self._reads.wait()

    async def awake(self) -> None:
        pass

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    async def close(self) -> None:
        self._lose(ServerFault("The server was closed"))
        self.closed.set()

    # What the test does

    async def hears(self, method: str | None = None) -> Heard:
        """The next message; of this method, if one is named."""
        async with asyncio.timeout(LIMIT):
            while not self.unread:
                self._came.clear()
                await self._came.wait()
        heard = self.unread.popleft()
        assert method is None or heard.method == method, heard
        return heard

    def says(self, *messages: Json | bytes | Overlong, on: Id | None = None) -> None:
        """Say these, as the lines of one read; on the own stream of the request with this id, if any."""
        lines: list[bytes | Overlong] = [
            dump({"jsonrpc": "2.0", **message}) if isinstance(message, dict) else message
            for message in messages
        ]
        self._receiver.received(lines, on)

    def answers(self, asked: Heard, result: object | None = None) -> None:
        self.says({"id": asked.id, "result": {} if result is None else result})

    def refuses(self, asked: Heard, code: int = -32601, message: str = "Method not found") -> None:
        self.says({"id": asked.id, "error": {"code": code, "message": message}})

    def notes(self, method: str, **params: object) -> None:
        self.says({"method": f"notifications/{method}", "params": params})

    def progresses(self, asked: Heard, progress: int) -> None:
        """Progress of a request that asked for it."""
        self.notes("progress", progressToken=asked.params["_meta"]["progressToken"], progress=progress)

    def asks(self, method: str, request_id: Id, **params: object) -> None:
        self.says({"id": request_id, "method": method, "params": params})

    def congest(self) -> None:
        """Stop reading its stdin."""
        self._reads.clear()

    def relieve(self) -> None:
        self._reads.set()

    def dies(self, exit_code: int = 1, *stderr: str) -> None:
        text = f"The server exited with status {exit_code}"
        self._lose(ServerStopped(text, exit_code=exit_code, stderr=stderr))

    async def is_ended(self) -> None:
        """Wait until the bridge has closed it."""
        async with asyncio.timeout(LIMIT):
            await self.closed.wait()

    def _lose(self, fault: ServerFault) -> None:
        self._reads.set()
        if not self._lost:
            self._lost = True
            self._receiver.lost(fault)


class ScriptedSource:
    """A `Source` of such servers. With `fault` none can be had; while `gate` is not set all wait."""

    def __init__(self) -> None:
        self.fault: ServerFault | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.servers: list[ScriptedServer] = []
        self.tries = 0
        """How often one was wanted."""
        self.successes = 0
        self.failures: list[ServerFault] = []
        self._taken = 0
        self._opened = asyncio.Event()

    async def open(self, receiver: Receiver) -> ScriptedServer:
        self.tries += 1
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        server = ScriptedServer(len(self.servers) + 1, receiver)
        self.servers.append(server)
        self._opened.set()
        return server

    def expect(self, upstreams: int) -> None:
        pass

    def succeeded(self) -> None:
        self.successes += 1

    def failed(self, fault: ServerFault) -> None:
        self.failures.append(fault)

    async def close(self) -> None:
        for server in self.servers:
            await server.close()

    async def next(self) -> ScriptedServer:
        """The next server that the bridge starts, or has started."""
        async with asyncio.timeout(LIMIT):
            while self._taken == len(self.servers):
                self._opened.clear()
                await self._opened.wait()
        self._taken += 1
        return self.servers[self._taken - 1]
