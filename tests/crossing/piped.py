"""A client on the bridge's stdin and stdout, before a server played by hand or one at a URL."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from support.scripted_server import LIMIT, Heard, Json, ScriptedServer, ScriptedSource, dump

from bridge.app import wrapping
from bridge.config import Command, Config, Downstream, Remote, Timing
from bridge.downstream.stdio import StdioPort
from bridge.era.revisions import Era
from bridge.relay import Relay


@dataclass
class Piped:
    """The other ends of both pipes; `source` is where the scripted servers come from."""

    source: ScriptedSource
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def says(self, *messages: Json) -> None:
        """Write these as lines, in one write."""
        self.writer.write(b"".join(dump({"jsonrpc": "2.0", **message}) + b"\n" for message in messages))

    async def hears(self) -> Json:
        async with asyncio.timeout(LIMIT):
            message: Json = json.loads(await self.reader.readline())
        assert message.pop("jsonrpc") == "2.0"
        return message

    async def asks(self, server: ScriptedServer, message: Json) -> Heard:
        """Say it, and take it at the server."""
        self.says(message)
        return await server.hears(message["method"])


@asynccontextmanager
async def _played(config: Config, source: ScriptedSource, ends: tuple[int, int]) -> AsyncIterator[StdioPort]:
    async with Relay(config, source) as relay:
        port = StdioPort(relay, *ends)
        try:
            yield port
        finally:
            await port.close()


@asynccontextmanager
async def piped(
    url: str | None = None, *, era: Era | None = None, timing: Timing | None = None
) -> AsyncIterator[Piped]:
    """The bridge on two socket pairs; the server is scripted, unless there is a URL."""
    upstream = Command(argv=("script",)) if url is None else Remote(url=url)
    config = Config(upstream=upstream, downstream=Downstream.STDIO, era=era, timing=timing or Timing())
    source = ScriptedSource()
    (stdin, writing), (reading, stdout) = socket.socketpair(), socket.socketpair()
    ends = stdin.detach(), stdout.detach()
    serving: AbstractAsyncContextManager[StdioPort] = (
        _played(config, source, ends) if url is None else wrapping(config, {}, *ends)
    )
    async with serving as port:
        _, writer = await asyncio.open_connection(sock=writing)
        reader, other = await asyncio.open_connection(sock=reading)
        task = asyncio.create_task(port.serve())
        try:
            yield Piped(source, reader, writer)
        finally:
            task.cancel()
            await asyncio.wait([task])
            writer.close()
            other.close()
    assert task.cancelled() or task.exception() is None
