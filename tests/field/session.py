"""A legacy session and a modern caller, as far as the field cases need them, over raw HTTP."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from .raw import BOTH, LIMIT, Answer, Exchange, ask, dump, opened, read

LATEST = "2025-11-25"
MODERN = "2026-07-28"
Json = dict[str, Any]
Id = int | str

# Ids of our own errands count from here, out of the way of those that a test is about.
_ERRANDS = itertools.count(900_000_000)


def request(request_id: Id, method: str, params: Json | None = None) -> Json:
    return {
        "jsonrpc": "2.0",
        "id": request_id,
        "method": method,
        **({} if params is None else {"params": params}),
    }


def notification(method: str, params: Json | None = None) -> Json:
    return {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})}


def call(request_id: Id, name: str, arguments: Json | None = None, *, token: Id | None = None) -> Json:
    meta = {} if token is None else {"_meta": {"progressToken": token}}
    return request(request_id, "tools/call", {**meta, "name": name, "arguments": arguments or {}})


def run(request_id: Id, *steps: Json, token: Id | None = None) -> Json:
    """A call of the scripted child."""
    return call(request_id, "run", {"steps": list(steps)}, token=token)


def line(message: object) -> Json:
    """The step that writes a message."""
    return {"line": message if isinstance(message, str) else dump(message).decode()}


def progress(step: int, token: str = "$TOKEN") -> Json:
    """The step that tells of progress; `token` is JSON text."""
    params = f'{{"progressToken":{token},"progress":{step}}}'
    return line(f'{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}')


@dataclass
class Caller:
    """Whoever calls tools; `headers` go with every request."""

    port: int
    headers: list[tuple[str, str]] = field(default_factory=list)

    def body(self, message: object) -> bytes:
        return message if isinstance(message, bytes) else dump(message)

    def posting(self, message: object, accept: str = BOTH) -> list[tuple[str, str]]:
        return [("Content-Type", "application/json"), ("Accept", accept), *self.headers]

    async def post(self, message: object, accept: str = BOTH) -> Answer:
        return await ask(self.port, "POST", self.posting(message, accept), self.body(message))

    def posted(self, message: object, accept: str = BOTH) -> AbstractAsyncContextManager[Exchange]:
        """The same, in progress."""
        return opened(self.port, "POST", self.posting(message, accept), self.body(message))

    async def result(self, message: object, accept: str = BOTH) -> Any:
        return (await self.post(message, accept)).result

    async def run(self, *steps: Json, accept: str = BOTH, token: Id | None = None) -> Answer:
        return await self.post(run(next(_ERRANDS), *steps, token=token), accept)

    async def open(self, name: str) -> None:
        """Let the steps go on that wait for `name`."""
        await self.result(call(next(_ERRANDS), "open", {"name": name}), "application/json")

    async def received(self, part: bytes) -> list[bytes]:
        """Every line that our child was sent and that has `part` in it, the call of this excepted."""
        found = await self._record(part)
        return [text.encode("latin-1") for text in found["lines"] if '"name":"received"' not in text]

    async def received_in_all(self) -> int:
        """How many lines our child was sent, the call of this included."""
        count = (await self._record(b"\0"))["count"]
        assert isinstance(count, int)
        return count

    async def _record(self, part: bytes) -> Any:
        asked = call(next(_ERRANDS), "received", {"part": part.decode("latin-1")})
        return (await self.result(asked, "application/json"))["structuredContent"]

    async def until_received(self, part: str) -> Json:
        """The first message that our child was sent and that has `part` in it, once it was sent."""
        async with asyncio.timeout(LIMIT):
            while not (found := await self.heard(part.encode())):
                pass
        return dict(found[0])

    async def cancelled(self) -> list[object]:
        """What our child was told is cancelled, in order."""
        told = await self.heard(b'"method":"notifications/cancelled"')
        return [one["params"]["requestId"] for one in told]

    async def until_cancelled(self, hop_id: object) -> None:
        """Wait for the child to be told that the call it knows by this id is cancelled."""
        async with asyncio.timeout(LIMIT):
            while hop_id not in await self.cancelled():
                pass

    async def heard(self, part: bytes) -> list[Json]:
        """The same, read."""
        return [read(one) for one in await self.received(part)]


@dataclass
class Session(Caller):
    """One legacy session."""

    initialized: Json = field(default_factory=dict)

    @property
    def id(self) -> str:
        return dict(self.headers)["Mcp-Session-Id"]

    def listening(self, last_event_id: str | None = None) -> AbstractAsyncContextManager[Exchange]:
        cursor = [] if last_event_id is None else [("Last-Event-ID", last_event_id)]
        return opened(self.port, "GET", [("Accept", "text/event-stream"), *self.headers, *cursor])

    async def tell(self, method: str, params: Json | None = None) -> None:
        answer = await self.post(notification(method, params))
        assert (answer.status, answer.body) == (202, b""), answer

    async def cancel(self, request_id: object) -> None:
        await self.tell("notifications/cancelled", {"requestId": request_id})

    async def reply(self, message: object) -> None:
        """Answer a request of the server."""
        answer = await self.post(message)
        assert (answer.status, answer.body) == (202, b""), answer

    async def delete(self) -> Answer:
        return await ask(self.port, "DELETE", self.headers)


class Modern(Caller):
    """A caller of 2026-07-28: every request says all there is to say about itself."""

    def body(self, message: object) -> bytes:
        return dump(self.enveloped(message)) if isinstance(message, dict) else super().body(message)

    @staticmethod
    def enveloped(message: Json) -> Json:
        """The envelope comes first, for the arguments to stay last."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": {"name": "field", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = dict(message.get("params", {}))
        meta |= params.pop("_meta", {})
        return {**message, "params": {"_meta": meta, **params}}

    def posting(self, message: object, accept: str = BOTH) -> list[tuple[str, str]]:
        """Headers that repeat what the body says; found by its text, for it need not be JSON."""
        text = self.body(message).decode()
        method = re.search(r'"method": ?"([^"]*)"', text)
        name = re.search(r'"(?:name|uri)": ?"([^"]*)"[,}]', text.partition('/clientCapabilities"')[2])
        mirrored = [("Mcp-Method", method[1])] if method else []
        mirrored += [("Mcp-Name", name[1])] if name else []
        return [*super().posting(message, accept), ("MCP-Protocol-Version", MODERN), *mirrored]


@dataclass
class Old(Caller):
    """A client of HTTP+SSE (2024-11-05): one stream for everything, and an address to POST to."""

    stream: Exchange | None = None
    address: str = ""

    async def post(self, message: object, accept: str = BOTH) -> Answer:
        """The refusal of the POST, or what came on the stream up to the answer."""
        body = self.body(message)
        refusal = await ask(self.port, "POST", self.posting(message), body, path=self.address)
        if refusal.status != 202:
            return refusal
        asked = read(body)
        blocks = []
        while asked.get("id") is not None and "method" in asked:
            event = await self._stream.event()
            blocks.append(b"data: " + event.data)
            if "method" not in event.message and event.message.get("id") == asked["id"]:
                break
        return Answer(200, {"content-type": "text/event-stream"}, b"\n\n".join(blocks))

    @property
    def _stream(self) -> Exchange:
        assert self.stream is not None
        return self.stream


@asynccontextmanager
async def old(port: int, capabilities: Json | None = None) -> AsyncIterator[Old]:
    """Its session lives as long as its stream."""
    async with opened(port, "GET", [("Accept", "text/event-stream")], path="/sse") as stream:
        named = await stream.event()
        assert named.name == "endpoint"
        client = Old(port, stream=stream, address="/" + named.data.decode())
        await client.result(initialize("2024-11-05", capabilities))
        assert (await client.post(notification("notifications/initialized"))).payloads == []
        yield client


def initialize(revision: str = LATEST, capabilities: Json | None = None, request_id: Id = "init") -> Json:
    offered = {
        "protocolVersion": revision,
        "capabilities": capabilities or {},
        "clientInfo": {"name": "field", "version": "1"},
    }
    return request(request_id, "initialize", offered)


async def connect(port: int, revision: str = LATEST, capabilities: Json | None = None) -> Session:
    """Open a session, which lives until it is deleted or its bridge ends."""
    session = Session(port)
    answer = await session.post(initialize(revision, capabilities))
    session.initialized = answer.result
    session.headers.append(("Mcp-Session-Id", answer.headers["mcp-session-id"]))
    if revision >= "2025-06-18":
        session.headers.append(("MCP-Protocol-Version", session.initialized["protocolVersion"]))
    await session.tell("notifications/initialized")
    return session


@asynccontextmanager
async def session(
    port: int, revision: str = LATEST, capabilities: Json | None = None
) -> AsyncIterator[Session]:
    """The same, deleted at the end; after a failure too, for what it left running is in others' way."""
    found = await connect(port, revision, capabilities)
    try:
        yield found
    finally:
        with suppress(OSError, EOFError):
            await found.delete()


async def sessions(port: int) -> int:
    """How many the bridge says it has."""
    count = read((await ask(port, "GET", [], path="/readyz")).body)["sessions"]
    assert isinstance(count, int)
    return count
