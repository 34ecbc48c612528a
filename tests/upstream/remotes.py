"""The link's place before a remote server: what a test sends, and all that comes back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
from support.scripted_http import LIMIT, Json

from bridge.config import Limits, Remote, Timing, Transport
from bridge.core.lines import Overlong
from bridge.core.message import Headers, Id
from bridge.errors import ServerFault
from bridge.upstream.remote import RemoteSource, RemoteUpstream

LIMITS = Limits(line=1 << 20)
TIMING = Timing(endpoint=LIMIT, farewell=LIMIT, connect=LIMIT)

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Client:
    """A `Receiver` that keeps what it is told, with the upstream to send on."""

    upstream: RemoteUpstream

    def __init__(self) -> None:
        self.raw: list[bytes] = []
        self.on: list[Id | None] = []
        self.overlong: list[Overlong] = []
        self.faults: list[ServerFault] = []
        self._told = anyio.Event()

    # Receiver

    def received(self, lines: Sequence[bytes | Overlong], on: Id | None = None) -> None:
        assert not self.faults, "received after lost"
        assert lines
        for line in lines:
            if isinstance(line, Overlong):
                self.overlong.append(line)
            else:
                self.raw.append(line)
                self.on.append(on)
        self._tell()

    def lost(self, fault: ServerFault) -> None:
        self.faults.append(fault)
        self._tell()

    def _tell(self) -> None:
        self._told.set()
        self._told = anyio.Event()

    # What came

    @property
    def heard(self) -> list[Json]:
        return [json.loads(line) for line in self.raw]

    def answers(self, request_id: Id) -> list[Json]:
        return [one for one in self.heard if "method" not in one and one["id"] == request_id]

    def told(self, method: str) -> list[Json]:
        return [one for one in self.heard if one.get("method") == method]

    async def until(self, condition: Any) -> None:
        with anyio.fail_after(LIMIT):
            while not condition():
                await self._told.wait()

    async def answer(self, request_id: Id) -> Json:
        """The answer to a request; it fails the test if there are two."""
        await self.until(lambda: self.answers(request_id))
        (found,) = self.answers(request_id)
        return found

    async def result(self, request_id: Id) -> Any:
        answer = await self.answer(request_id)
        assert "result" in answer, answer
        return answer["result"]

    async def error(self, request_id: Id) -> Json:
        answer = await self.answer(request_id)
        assert "error" in answer, answer
        found: Json = answer["error"]
        return found

    # What is sent

    def say(self, data: object, headers: Headers = ()) -> None:
        self.upstream.send(json.dumps(data, separators=(",", ":")).encode(), headers)

    def ask(self, request_id: Id, method: str, params: object = None, headers: Headers = ()) -> None:
        tail = {} if params is None else {"params": params}
        self.say({"jsonrpc": "2.0", "id": request_id, "method": method, **tail}, headers)

    def call(self, request_id: Id, name: str = "t", arguments: object = None) -> None:
        self.ask(request_id, "tools/call", {"name": name, "arguments": arguments or {}})

    def modern(self, request_id: Id, method: str, params: Json | None = None, headers: Headers = ()) -> None:
        self.ask(request_id, method, {**(params or {}), "_meta": META}, headers)

    def tell(self, method: str, params: object = None) -> None:
        self.say({"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})})

    def begin(self, version: str = "2025-11-25") -> None:
        info = {"name": "client", "version": "1"}
        params = {"protocolVersion": version, "capabilities": {"roots": {}}, "clientInfo": info}
        self.ask("init", "initialize", params)

    async def initialize(self) -> None:
        self.begin()
        await self.result("init")
        self.tell("notifications/initialized")


def remote(url: str, transport: Transport = Transport.HTTP, **options: Any) -> Remote:
    return replace(Remote(url=url, transport=transport), **options)


@asynccontextmanager
async def source(
    url: str, transport: Transport = Transport.HTTP, *, timing: Timing = TIMING, **options: Any
) -> AsyncIterator[RemoteSource]:
    async with RemoteSource(remote(url, transport, **options), LIMITS, timing) as opened:
        yield opened


async def opened(of: RemoteSource) -> Client:
    client = Client()
    client.upstream = await of.open(client)
    return client


@asynccontextmanager
async def connected(
    url: str, transport: Transport = Transport.HTTP, *, timing: Timing = TIMING, **options: Any
) -> AsyncIterator[Client]:
    """One session with a server; on leaving it has ended."""
    async with source(url, transport, timing=timing, **options) as of:
        client = await opened(of)
        yield client
        await client.upstream.close()
        assert len(client.faults) == 1


def header_file(folder: Path, value: str) -> Path:
    file = folder / "authorization"
    file.write_text(f"{value}\n")
    return file
