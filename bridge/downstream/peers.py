"""The other replicas of this bridge: what belongs to a call that one of them holds is passed to it.

Decides how a request travels there, once, and how its answer comes back, and which requests come
from there; whether something is the peer's at all is the proof's matter. Knows nothing of calls,
and reads no message: what passes is bytes. A client that leaves closes the request, which there is
its cancellation (2026-07-28: "Streamable HTTP", "Cancellation").
"""

from __future__ import annotations

import asyncio
import io
import logging
import math
from collections import Counter
from typing import Final

import anyio
from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    TCPConnector,
    hdrs,
)
from aiohttp.web import BaseRequest, StreamResponse
from multidict import CIMultiDict

from bridge import __version__
from bridge.config import KIB, MIB, Config
from bridge.core import sse
from bridge.core.message import Request, Response
from bridge.downstream.event_stream import EventStream
from bridge.downstream.http import PROOF, Ready
from bridge.downstream.proof import ANSWERED, RELAYED, Proof, Proofs
from bridge.downstream.reply import refused
from bridge.era.suspend import elsewhere, lost
from bridge.seal import read_ring

log = logging.getLogger("bridge.peers")

_PASSED: Final = ("accept", "mcp-")
_OURS: Final = ("accept-", "mcp-bridge-", "mcp-session-id")
_KEPT: Final = (hdrs.CONTENT_TYPE, hdrs.RETRY_AFTER)
"""What is passed of an answer's headers, if it is no stream."""
_END: Final = b"\n\n"
_SILENCE: Final = 4
"""Times a peer's stream may miss its sign of life before it counts as broken."""


class Peers:
    """Passes requests to the replicas that hold their calls. To be closed after the listener.

    Raises UsageFault for a key ring that cannot be used.
    """

    def __init__(self, config: Config) -> None:
        replicas = config.replicas
        ring = () if replicas.keys is None else read_ring(replicas.keys)
        self.proofs = Proofs(ring, replicas.name)
        self._urls = dict(replicas.peers) if ring else {}
        self._limits, self._timing = config.limits, config.timing
        self._client: ClientSession | None = None
        self.counts: Counter[str] = Counter()
        """Requests passed on, and how many of them failed in which way."""

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def admits(self, request: BaseRequest) -> bool:
        """Whether a peer passes this request on and has let its client in; the body is yet to be held."""
        shown = request.headers.getall(RELAYED, ())
        proof = self.proofs.check(shown[0], request.method) if len(shown) == 1 else None
        if proof is not None:
            request[PROOF] = proof
        return proof is not None

    async def pass_on(
        self, request: BaseRequest, asked: Request, replica: str, subject: str
    ) -> StreamResponse:
        """The answer of the replica that holds the call; an error if there is none to be had.

        Cancelled when the client leaves.
        """
        if RELAYED in request.headers:
            return self._failed(replica, elsewhere(asked), "passed on already")
        url = self._urls.get(replica)
        if url is None:
            return self._failed(replica, elsewhere(asked), "unknown peer")
        proof = self.proofs.make(replica, request.method, subject, asked.raw)
        self.counts["relayed"] += 1
        try:
            answer = await self._sent(url, _headers(request, proof), asked.raw)
        except (ClientConnectorError, ConnectionTimeoutError, ValueError) as fault:
            return self._failed(replica, elsewhere(asked), "unreachable peer", fault)
        except (ClientError, OSError) as fault:  # it may have taken the request before
            return self._failed(replica, lost(asked), "broken answer", fault)
        try:
            return await self._answered(request, asked, replica, proof, answer)
        finally:
            answer.close()

    async def _sent(self, url: str, headers: CIMultiDict[str], body: bytes) -> ClientResponse:
        # Bytes over 1 MiB would be one long write, of which aiohttp warns.
        data = io.BytesIO(body) if len(body) > MIB else body
        return await self._opened().post(url, data=data, headers=headers, allow_redirects=False)

    def _opened(self) -> ClientSession:
        if self._client is None:
            self._client = ClientSession(
                # One connection each: a request that met the closing of a kept one would be lost.
                connector=TCPConnector(limit=0, force_close=True),
                timeout=ClientTimeout(total=None, connect=self._timing.connect),
                cookie_jar=DummyCookieJar(),
                headers={"User-Agent": f"mcp-bridge/{__version__}", "Accept-Encoding": "identity"},
                read_bufsize=256 * KIB,
            )
        return self._client

    async def _answered(
        self, request: BaseRequest, asked: Request, replica: str, proof: Proof, answer: ClientResponse
    ) -> StreamResponse:
        if not proof.is_answer(answer.status, answer.headers.get(ANSWERED)):
            what = f"(status {answer.status}): keys, names and clocks must agree, and it must allow this Host"
            return self._failed(replica, elsewhere(asked), "unproven answer", what)
        if answer.content_type == "text/event-stream":
            return await self._stream(request, asked, replica, answer)
        try:
            return await self._whole(answer)
        except (ClientError, OSError) as fault:
            return self._failed(replica, lost(asked), "broken answer", fault)

    async def _whole(self, answer: ClientResponse) -> Ready:
        parts: list[bytes] = []
        size = 0
        async for part in answer.content.iter_any():
            size += len(part)
            if size > self._limits.line:
                raise ClientPayloadError(f"it has more than {self._limits.line} bytes")
            parts.append(part)
        kept = [(name, answer.headers[name]) for name in _KEPT if name in answer.headers]
        lines = "".join(f"{name}: {value}\r\n" for name, value in kept)
        return Ready(answer.status, lines.encode("utf-8", "surrogateescape"), tuple(parts))

    async def _stream(
        self, request: BaseRequest, asked: Request, replica: str, answer: ClientResponse
    ) -> StreamResponse:
        room = asyncio.Event()
        room.set()
        stream = EventStream(
            unsent=self._limits.unsent, on_pressure=lambda full: room.clear() if full else room.set()
        )
        await stream.start(request)
        async with anyio.create_task_group() as group:
            group.start_soon(self._pump, asked, replica, answer, stream, room)
            # The peer's own comments keep it alive: one of ours could fall into the middle of an event.
            await stream.run(math.inf, self._timing.stalled)
            group.cancel_scope.cancel()
        return stream

    async def _pump(
        self, asked: Request, replica: str, answer: ClientResponse, stream: EventStream, room: asyncio.Event
    ) -> None:
        """Everything that comes, as it comes; then the end, which after a breach is an error."""
        tail = _END
        try:
            while piece := await self._piece(answer):
                stream.push(piece)
                tail = (tail + piece)[-len(_END) :]
                await room.wait()
        except (ClientError, OSError) as fault:
            failed = self._failed(replica, lost(asked), "broken answer", fault)
            # In the middle of an event the blank line ends that first, as one that nobody can read.
            stream.push((b"" if tail == _END else _END) + sse.event(failed.content))
        stream.finish()

    async def _piece(self, answer: ClientResponse) -> bytes:
        async with asyncio.timeout(_SILENCE * self._timing.keepalive):
            return await answer.content.readany()

    def _failed(self, replica: str, answer: Response, how: str, why: object = "") -> Ready:
        self.counts[how] += 1
        log.warning("a call of replica %s could not be gone on with: %s %s", replica, how, why)
        return refused(answer.raw, 200)


def _headers(request: BaseRequest, proof: Proof) -> CIMultiDict[str]:
    """What is passed of the client's: nothing that says who it is, for the proof does."""
    headers = CIMultiDict[str]()
    for name, value in request.headers.items():
        if name.lower().startswith(_PASSED) and not name.lower().startswith(_OURS):
            headers.add(name, value)  # each as often as it came: the ladder there counts them
    headers[hdrs.CONTENT_TYPE] = "application/json"
    headers[RELAYED] = proof.header
    return headers
