"""Modern callers over Streamable HTTP: nothing is kept but requests in flight.

Specification (2026-07-28): "Streamable HTTP". Every request stands for itself; closing its
response stream cancels it; a server starts no requests.
"""

from __future__ import annotations

import asyncio
import contextlib
from weakref import WeakKeyDictionary

import anyio
import msgspec
from aiohttp.web import BaseRequest, StreamResponse
from msgspec import UNSET

from bridge.config import Remote
from bridge.core import params, sse
from bridge.core.correlate import LISTEN
from bridge.core.headers import Accepted, Claims, Refusal, check, status_of
from bridge.core.message import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Malformed,
    Notification,
    Request,
    Response,
    line_safe,
    local_error,
)
from bridge.core.splice import has_equal_keys, members, quote
from bridge.deadlines import Deadlines
from bridge.detection import CLIENT
from bridge.downstream.caller import ModernCaller
from bridge.downstream.http import Ready
from bridge.downstream.party import subject_of
from bridge.downstream.peers import Peers
from bridge.downstream.reply import Reply, declined, later, malformed, refused
from bridge.era.probe import discovery
from bridge.era.revisions import MODERN_VERSIONS, REMOVED
from bridge.era.suspend import Elsewhere
from bridge.link import Caller, Link
from bridge.relay import Relay

_ENVELOPE = discovery(MODERN_VERSIONS[-1], CLIENT).removeprefix(b"{")


class _Data(msgspec.Struct):
    origin: str = ""


class _Code(msgspec.Struct):
    code: int = 0
    data: msgspec.Raw = msgspec.Raw(b"{}")


class HttpOutlet:
    """One request's answer over HTTP, whose status goes by what it says."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    @property
    def streaming(self) -> bool:
        return self._reply.streaming

    def answer(self, response: Response) -> None:
        self._reply.answer(line_safe(response.raw), _status(response))

    @property
    def waiting(self) -> int:
        return len(self._reply.waiting)

    def push(self, note: Notification, *, once: bool = False) -> None:
        raw = line_safe(note.raw)
        if not (once and sse.event(raw) in self._reply.waiting):
            self._reply.push(raw)

    def end(self, answered: Response | None = None) -> None:
        if answered is None:
            self._reply.abandon()
        else:
            self.answer(answered)


class ModernEndpoint:
    """Takes modern requests to the link that they share."""

    def __init__(self, relay: Relay, peers: Peers) -> None:
        self._relay = relay
        self._peers = peers
        self._limits, self._timing = relay.config.limits, relay.config.timing
        self._commits: Deadlines[Reply] = Deadlines(self._timing.commit_modern, Reply.commit)
        self._indexes: WeakKeyDictionary[Link, tuple[int, params.ToolIndex]] = WeakKeyDictionary()
        self._walks: WeakKeyDictionary[Link, asyncio.Lock] = WeakKeyDictionary()
        """Held while a link's tools are looked at; a server that hangs holds up its own calls only."""
        self._subject = subject_of(relay.config)

    async def post(
        self,
        request: BaseRequest,
        accepted: Accepted,
        asked: Request,
        claims: Claims,
        subject: str | None = None,
    ) -> StreamResponse:
        """Take one request and answer it; `subject` is whom another replica asks for.

        Raises ServerFault when no server can be had.
        """
        subject = self._subject if subject is None else subject
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
        if isinstance(self._relay.config.upstream, Remote):
            asked = asked.with_headers(params.passed(request.headers.items()))
        found = await self._relay.modern(asked, subject)
        if isinstance(found, Response):
            return refused(found.raw, _status(found))
        if isinstance(found, Elsewhere):
            return await self._peers.pass_on(request, asked, found.replica, subject)
        return await self._call(found, request, accepted, asked, claims, subject)

    async def _unfit(self, link: Link, request: BaseRequest, asked: Request, claims: Claims) -> Ready | None:
        """Why this request cannot be put to this server; None if it can."""
        foreign = await self._check_params(link, request, claims)
        if foreign is not None:
            return declined(asked.id, foreign)
        if link.in_flight >= self._limits.in_flight:
            text = f"Too many requests in flight; the most are {self._limits.in_flight}"
            return later(asked.id, text, "in_flight", status=429)
        return None if await link.writable() else refused(link.late(asked.id).raw, 200)

    async def _call(
        self,
        link: Link,
        request: BaseRequest,
        accepted: Accepted,
        asked: Request,
        claims: Claims,
        subject: str,
    ) -> StreamResponse:
        reply = Reply(accepted, sse.event)
        call = ModernCaller(
            self._relay,
            asked,
            subject,
            HttpOutlet(reply),
            private=self._relay.config.access.token is not None,
            wants_log=claims.log_level is not None,
        )
        call.take(link)
        try:
            refusal = await self._unfit(link, request, asked, claims)
            if refusal is not None:
                return refusal
            call.ask(link)
            return await reply.respond(
                request, commits=self._commits, limits=self._limits, timing=self._timing, pressure=None
            )
        finally:
            call.leave()

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
        """What is known of this link's tools, until it says that they changed."""
        changes, index = self._indexes.get(link, (-1, None))
        if index is None or changes != link.tools_changed:
            index = params.ToolIndex()
            self._indexes[link] = link.tools_changed, index
        return index

    async def _learn(self, link: Link, index: params.ToolIndex) -> None:
        """Look at all tools, once for all who wait; a server that does not list them has none."""
        if index.complete:
            return
        async with self._walks.setdefault(link, asyncio.Lock()):
            with anyio.move_on_after(self._timing.start):
                await _walk(link, index)
            index.settle()


async def _walk(link: Link, index: params.ToolIndex) -> None:
    caller = Caller(link)
    try:
        while not index.complete:
            cursor = index.wanted
            page = b"" if cursor is None else b'"cursor":%b,' % quote(cursor)
            response = await caller.call("tools/list", b"{%b%b" % (page, _ENVELOPE))
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


def _status(response: Response) -> int:
    if response.error is UNSET:
        return 200
    with contextlib.suppress(msgspec.DecodeError):
        found = msgspec.json.decode(response.error, type=_Code)
        if found.code == INVALID_PARAMS:
            return 400 if _is_own(found.data) else 200  # a server's own may be its handler's (LO-21)
        return status_of(found.code, modern=True)
    return 200


def _is_own(data: msgspec.Raw) -> bool:
    try:
        return msgspec.json.decode(data, type=_Data).origin == "bridge"
    except msgspec.DecodeError:
        return False


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
