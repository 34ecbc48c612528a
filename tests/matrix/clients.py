"""Three raw clients, one for each transport: messages go out byte for byte, and come in as they arrived.

Each carries messages and knows nothing of what they say beyond what its transport needs: which is a
request, which is `initialize`. No SDK and no code of the bridge is between the wire and the test, so
that bytes can be compared. A client also holds what its transport promises: nothing but messages on
stdout, 202 for what has no answer, the media types, a stream that ends when its answer is out, and
a session that ends when it is told to.

Specification: "Transports" of 2025-11-25 (stdio, Streamable HTTP) and 2024-11-05 (HTTP with SSE).
"""

from __future__ import annotations

import asyncio
import json
import re
from asyncio import TaskGroup
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from io import BytesIO
from typing import Any, Final, Protocol
from urllib.parse import urljoin

from aiohttp import ClientResponse, ClientSession, ClientTimeout

LIMIT: Final = 20.0
"""Seconds for anything that would otherwise hang."""
_BLOCK: Final = re.compile(rb"\r?\n\r?\n")
_BOTH: Final = "application/json, text/event-stream"
_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"

Hear = Callable[[bytes, str], None]
"""Takes one message of the server, and the name of the stream that it came on."""


class Client(Protocol):
    """What a client does besides hearing. Its tasks are in the group that it is given."""

    async def send(self, message: bytes) -> None:
        """Send one message; returns when it is on its way, and no later message can overtake it."""

    async def close(self) -> None:
        """End the session as a good client does. Raises AssertionError if the bridge does not let it."""


class StdioClient:
    """A client that started the bridge itself."""

    def __init__(self, process: Process, hear: Hear, tasks: TaskGroup) -> None:
        self._process = process
        self._reading = tasks.create_task(self._read(hear))

    async def _read(self, hear: Hear) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            hear(line.removesuffix(b"\n"), "stdout")

    async def send(self, message: bytes) -> None:
        assert b"\n" not in message
        assert self._process.stdin is not None
        self._process.stdin.write(message + b"\n")
        await self._process.stdin.drain()

    async def close(self) -> None:
        """Close stdin: whatever is left to say comes out, and then the bridge ends by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(LIMIT):
            await self._reading
            assert await self._process.wait() == 0


class HttpClient:
    """Streamable HTTP: a POST for each message, and a GET stream once the session is open."""

    def __init__(self, http: ClientSession, url: str, hear: Hear, tasks: TaskGroup) -> None:
        self._http, self._url, self._hear, self._tasks = http, url, hear, tasks
        self._session: dict[str, str] = {}
        self._posts: list[asyncio.Task[None]] = []
        self._listening: asyncio.Task[None] | None = None

    async def send(self, message: bytes) -> None:
        what = json.loads(message)
        if "method" in what and "id" in what:
            await self._request(message, what)
            return
        async with self._post(message) as response:
            assert response.status == 202, await told(response)
            assert await response.read() == b""
        if what.get("method") == "notifications/initialized":
            self._listening = await begun(self._listen, self._tasks)

    def _post(self, message: bytes) -> Any:
        headers = {"Content-Type": _JSON, "Accept": _BOTH, **self._session}
        return self._http.post(self._url, data=BytesIO(message), headers=headers)

    async def _request(self, message: bytes, what: dict[str, Any]) -> None:
        stream = f"POST {what['id']!r}"
        taken = asyncio.Event()

        async def post() -> None:
            async with self._post(message) as response:
                assert response.status == 200, await told(response)
                if what["method"] == "initialize":
                    self._session["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
                    self._session["MCP-Protocol-Version"] = what["params"]["protocolVersion"]
                taken.set()
                async for heard in messages(response):
                    self._hear(heard, stream)

        self._posts.append(self._tasks.create_task(post()))
        if what["method"] == "initialize":
            await taken.wait()

    async def _listen(self, ready: asyncio.Event) -> None:
        headers = {"Accept": _EVENTS, **self._session}
        async with self._http.get(self._url, headers=headers) as response:
            assert response.status == 200, await told(response)
            ready.set()
            async for heard in messages(response):
                self._hear(heard, "GET")

    async def close(self) -> None:
        """DELETE ends the session, and with it every stream that is still open."""
        async with asyncio.timeout(LIMIT):
            async with self._http.delete(self._url, headers=self._session) as response:
                assert response.status in (200, 204), await told(response)
            assert self._listening is not None
            await asyncio.gather(self._listening, *self._posts)
            async with self._post(b'{"jsonrpc":"2.0","id":0,"method":"ping"}') as response:
                assert response.status == 404, await told(response)


class SseClient:
    """HTTP+SSE: the session is one stream, and what is sent goes to the address that it names."""

    def __init__(self, http: ClientSession, url: str, hear: Hear, tasks: TaskGroup) -> None:
        self._http, self._url, self._hear, self._tasks = http, url, hear, tasks
        self._endpoint = ""
        self._listening: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        self._listening = await begun(self._listen, self._tasks)

    async def _listen(self, ready: asyncio.Event) -> None:
        async with self._http.get(self._url, headers={"Accept": _EVENTS}) as response:
            assert response.status == 200, await told(response)
            async for kind, data in events(response):
                if kind == "endpoint":
                    self._endpoint = urljoin(self._url, data.decode())
                    ready.set()
                elif kind == "message":
                    self._hear(data, "SSE")

    def _post(self, message: bytes) -> Any:
        return self._http.post(self._endpoint, data=BytesIO(message), headers={"Content-Type": _JSON})

    async def send(self, message: bytes) -> None:
        async with self._post(message) as response:
            assert response.status == 202, await told(response)

    async def close(self) -> None:
        """The end of the stream is the end of the session."""
        assert self._listening is not None
        self._listening.cancel()
        with suppress(asyncio.CancelledError):
            await self._listening
        async with asyncio.timeout(LIMIT):  # the bridge may read a POST before the end of the stream
            while await self._pinged() == 202:
                pass

    async def _pinged(self) -> int:
        async with self._post(b'{"jsonrpc":"2.0","id":0,"method":"ping"}') as response:
            status: int = response.status
            assert status in (202, 404), await told(response)
            return status


def unlimited() -> ClientSession:
    """As many connections as there are streams, each for as long as it is needed."""
    return ClientSession(timeout=ClientTimeout(total=None, sock_connect=LIMIT))


async def messages(response: ClientResponse) -> AsyncIterator[bytes]:
    """What an answer brings: one JSON text, or those of a stream's events."""
    if response.content_type == _JSON:
        yield await response.read()
        return
    assert response.content_type == _EVENTS
    async for kind, data in events(response):
        if data:
            assert kind == "message"
            yield data


async def events(response: ClientResponse) -> AsyncIterator[tuple[str, bytes]]:
    """Type and data of each event; a block that has only a comment is none."""
    rest = b""
    async for chunk in response.content.iter_any():
        *blocks, rest = _BLOCK.split(rest + chunk)
        for block in blocks:
            fields = [
                line.partition(b":") for line in re.split(rb"\r?\n", block) if not line.startswith(b":")
            ]
            found = [(name, value.removeprefix(b" ")) for name, _, value in fields]
            if found:
                kind = next((value.decode() for name, value in found if name == b"event"), "message")
                yield kind, b"\n".join(value for name, value in found if name == b"data")


async def told(response: ClientResponse) -> str:
    return f"HTTP {response.status}: {await response.text()}"


async def begun(
    call: Callable[[asyncio.Event], Coroutine[Any, Any, None]], tasks: TaskGroup
) -> asyncio.Task[None]:
    """A task that has got as far as setting the event it is given."""
    ready = asyncio.Event()
    task = tasks.create_task(call(ready))
    async with asyncio.timeout(LIMIT):
        await ready.wait()
    return task
