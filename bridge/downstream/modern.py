"""Modern callers over Streamable HTTP: nothing is kept but requests in flight.

Specification (2026-07-28): "Streamable HTTP". Every request stands for itself; closing its
response stream cancels it; a server starts no requests.
"""

from __future__ import annotations

import asyncio
import contextlib

import anyio
import msgspec
from aiohttp.web import BaseRequest, StreamResponse
from msgspec import UNSET

from bridge import __version__
from bridge.core import params, sse
from bridge.core.correlate import LISTEN
from bridge.core.events import Exchange, Party, Question
from bridge.core.headers import Accepted, Claims, Refusal, check, status_of
from bridge.core.message import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Malformed,
    Notification,
    Request,
    Response,
    line_safe,
    local_error,
)
from bridge.core.splice import has_equal_keys, members, quote, replaced
from bridge.deadlines import Deadlines
from bridge.downstream.http import Ready
from bridge.downstream.reply import Reply, declined, later, malformed, refused
from bridge.era.revisions import MODERN_VERSIONS, REMOVED
from bridge.errors import ServerFault
from bridge.link import Caller, Link
from bridge.relay import Relay

_ENVELOPE = quote(
    {
        "io.modelcontextprotocol/protocolVersion": MODERN_VERSIONS[-1],
        "io.modelcontextprotocol/clientInfo": {"name": "mcp-bridge", "version": __version__},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
)


class _Code(msgspec.Struct):
    code: int = 0


class ModernCall:
    """One request as the party that it is: callers know nothing of each other, and choose equal ids."""

    def __init__(self, link: Link, reply: Reply, *, private: bool) -> None:
        self.party = Party("modern")
        self._reply = reply
        self._private = private
        link.join(self)

    def answered(self, exchange: Exchange, response: Response) -> None:
        if self._private:
            response = _unshared(response)
        self._reply.answer(line_safe(response.raw), _status(response))

    def noted(self, exchange: Exchange | None, note: Notification) -> None:
        if exchange is not None:
            self._reply.push(line_safe(note.raw))

    def questioned(self, question: Question, request: Request) -> None:
        """Never: the link drops a modern server's requests."""

    def ended(self, exchange: Exchange) -> None:
        self._reply.abandon()

    def lost(self, fault: ServerFault) -> None:
        """Nothing is left to do: the one request has been answered."""


class ModernEndpoint:
    """Takes modern requests to the link that they share."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._limits, self._timing = relay.config.limits, relay.config.timing
        self._commits: Deadlines[Reply] = Deadlines(self._timing.commit_modern, Reply.commit)
        self._index: tuple[Link, params.ToolIndex] | None = None
        self._walk = asyncio.Lock()

    async def post(
        self, request: BaseRequest, accepted: Accepted, asked: Request, claims: Claims
    ) -> StreamResponse:
        """Take one request and answer it. Raises ServerFault when no server can be had."""
        refusal = _ladder(request, asked, claims)
        if refusal is not None:
            return refusal
        if asked.method in REMOVED:
            # Not for the server to say: one that speaks both eras would take `initialize` for the other.
            text = f"Method not found: {asked.method} is not in {MODERN_VERSIONS[-1]}"
            return refused(local_error(asked.id, text, "removed_method", METHOD_NOT_FOUND).raw, 404)
        if asked.method == LISTEN and not accepted.sse:
            text = f"Not Acceptable: {LISTEN} is answered by a stream; accept text/event-stream"
            return refused(local_error(asked.id, text, "accept", INVALID_REQUEST).raw, 406)
        link = await self._relay.modern()
        foreign = await self._check_params(link, request, claims)
        if foreign is not None:
            return declined(asked.id, foreign)
        if link.in_flight >= self._limits.in_flight:
            text = f"Too many requests in flight; the most are {self._limits.in_flight}"
            return later(asked.id, text, "in_flight", status=429)
        if not await link.writable():
            return refused(link.late(asked.id).raw, 200)
        return await self._call(link, request, accepted, asked, claims)

    async def _call(
        self, link: Link, request: BaseRequest, accepted: Accepted, asked: Request, claims: Claims
    ) -> StreamResponse:
        reply = Reply(accepted, sse.event)
        call = ModernCall(link, reply, private=self._relay.config.access.token is not None)
        link.ask(call, asked, reply, wants_log=claims.log_level is not None)
        try:
            return await reply.respond(
                request, commits=self._commits, limits=self._limits, timing=self._timing, pressure=None
            )
        finally:
            link.leave(call)  # to leave before the answer is to cancel

    async def _check_params(self, link: Link, request: BaseRequest, claims: Claims) -> Refusal | None:
        """Hold `Mcp-Param-*` headers against a tool's arguments; the tool's schema says which."""
        if claims.method != "tools/call" or claims.name is None:
            return None
        index = self._index_of(link)
        known = index.complete
        await self._learn(link, index)
        refusal = _check(index, claims, request)
        if refusal is None or not known:
            return refusal
        index.forget()  # what was known may be out of date
        await self._learn(link, index)
        return _check(index, claims, request)

    def _index_of(self, link: Link) -> params.ToolIndex:
        """What is known of this link's tools; a new process may have others."""
        if self._index is None or self._index[0] is not link:
            self._index = (link, params.ToolIndex())
        return self._index[1]

    async def _learn(self, link: Link, index: params.ToolIndex) -> None:
        """Look at all tools, once for all who wait; a server that does not list them has none."""
        if index.complete:
            return
        async with self._walk:
            with anyio.move_on_after(self._timing.start):
                await _walk(link, index)
            index.settle()


async def _walk(link: Link, index: params.ToolIndex) -> None:
    caller = Caller(link)
    try:
        while not index.complete:
            cursor = index.wanted
            page = b"" if cursor is None else b'"cursor":%b,' % quote(cursor)
            response = await caller.call("tools/list", b'{%b"_meta":%b}' % (page, _ENVELOPE))
            if response.result is UNSET:
                return
            index.learn(response.result, cursor)
    finally:
        link.leave(caller)


def _check(index: params.ToolIndex, claims: Claims, request: BaseRequest) -> Refusal | None:
    annotations = None if claims.name is None else index.tool(claims.name)
    if annotations is None:
        return None
    return params.check(annotations, claims.arguments, request.headers.items())


def _unshared(response: Response) -> Response:
    """The answer for a caller who had to show a token: a cache on the way may not share it (CA-2)."""
    if response.result is UNSET or b'"public"' not in bytes(response.result):
        return response
    if bytes(members(response.result).get("cacheScope", b"")) != b'"public"':
        return response
    return response.with_result(replaced(response.result, ("cacheScope",), b'"private"'))


def _status(response: Response) -> int:
    if response.error is UNSET:
        return 200
    with contextlib.suppress(msgspec.DecodeError):
        return status_of(msgspec.json.decode(response.error, type=_Code).code, modern=True)
    return 200


def _ladder(request: BaseRequest, asked: Request, claims: Claims) -> Ready | None:
    """Everything that can be said against a modern request before its server is asked."""
    if asked.params is not UNSET and _has_equal_keys(asked):
        why = "Invalid Request: a member of params stands twice"
        return malformed(Malformed(INVALID_REQUEST, why, asked.id))
    found = check(lambda name: request.headers.getall(name, ()), claims)
    return None if found is None else declined(asked.id, found)


def _has_equal_keys(asked: Request) -> bool:
    """Whether params or its `_meta` have a key twice: headers and server could read different copies."""
    assert asked.params is not UNSET
    try:
        meta = members(asked.params).get("_meta")
        return has_equal_keys(asked.params) or (meta is not None and has_equal_keys(meta))
    except ValueError:
        return False
