"""The Streamable HTTP endpoint: one path for both eras.

Takes a POST apart as far as deciding whose it is: a legacy session's (`legacy.py`) or a
modern call (`modern.py`). Specification: "Streamable HTTP" of every revision that has it;
the order of the checks is that of 2026-07-28, "Server Validation". `http.py` has already
let the client in.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import hdrs
from aiohttp.web import BaseRequest, StreamResponse
from multidict import istr

from bridge.core.headers import Accepted, Claims, accepts, claims, classify, is_json, legacy_version
from bridge.core.message import (
    INVALID_REQUEST,
    Batch,
    Id,
    Malformed,
    Message,
    Notification,
    Request,
    local_error,
    read,
)
from bridge.downstream.http import PROOF, Ready, read_body
from bridge.downstream.legacy import LegacySession, gone
from bridge.downstream.modern import ModernEndpoint
from bridge.downstream.peers import Peers
from bridge.downstream.proof import RELAYED
from bridge.downstream.reply import declined, later, malformed, refused
from bridge.era.revisions import LEGACY_VERSIONS, MODERN_VERSIONS, Era
from bridge.era.suspend import goes_on
from bridge.era.task_ids import METHODS as ABOUT_TASKS
from bridge.errors import CircuitOpen, ServerFault
from bridge.link import answer_to_fault
from bridge.relay import Relay

SESSION_ID: Final = istr("Mcp-Session-Id")
VERSION: Final = istr("MCP-Protocol-Version")
LAST_EVENT_ID: Final = istr("Last-Event-ID")

_ENVELOPE_MARK: Final = b"io.modelcontextprotocol"
"""Without the slash behind it, which some writers escape."""
_ALLOW: Final = b"Allow: GET, POST, DELETE\r\n"
_ALLOW_MODERN: Final = b"Allow: POST\r\n"
_FULL: Final = "The most sessions are open; try again later"


class StreamableHttp:
    """Answers every request to the endpoint's path."""

    def __init__(self, relay: Relay, peers: Peers) -> None:
        self._relay = relay
        self._config = relay.config
        self._modern = ModernEndpoint(relay, peers)
        self._opening = 0
        self._methods: Mapping[str, Callable[[BaseRequest], Awaitable[StreamResponse]]] = {
            hdrs.METH_POST: self._post,
            hdrs.METH_GET: self._get,
            hdrs.METH_DELETE: self._delete,
        }

    async def handle(self, request: BaseRequest) -> StreamResponse:
        method = self._methods.get(request.method)
        if method is None:
            return _refusal(405, "The endpoint takes POST, GET and DELETE", "method", _ALLOW)
        return await method(request)

    async def _post(self, request: BaseRequest) -> StreamResponse:
        headers = request.headers
        if not is_json(headers.get(hdrs.CONTENT_TYPE, "")):
            return _refusal(415, "Unsupported Media Type: send application/json", "content_type")
        accepted = accepts(headers.getall(hdrs.ACCEPT, ()))
        if not (accepted.json or accepted.sse):
            text = "Not Acceptable: accept application/json and text/event-stream"
            return _refusal(406, text, "accept")
        body = await read_body(request, self._config.limits.body, self._config.timing.body)
        if isinstance(body, Ready):
            return body
        message = read(body, depth=self._config.limits.depth)
        if isinstance(message, Malformed):
            return malformed(message)
        return await self._dispatch(request, accepted, message, body)

    async def _dispatch(
        self, request: BaseRequest, accepted: Accepted, message: Message | Batch, body: bytes
    ) -> StreamResponse:
        if self._relay.draining and _asks(message):
            asked = message.id if isinstance(message, Request) else None
            return later(asked, "The bridge is shutting down", "draining")
        if RELAYED in request.headers:
            return await self._passed_on(request, accepted, message, body)
        said = None
        if isinstance(message, Request) and _ENVELOPE_MARK in body:
            said = claims(message.method, message.params)
        if self._era(request, message, said) is Era.LEGACY:
            return await self._legacy_post(request, accepted, message)
        return await self._modern_post(request, accepted, message, said)

    def _era(self, request: BaseRequest, message: Message | Batch, said: Claims | None) -> Era:
        session = SESSION_ID in request.headers
        versions = request.headers.getall(VERSION, ())
        if said is None and session and (not versions or versions[0] in LEGACY_VERSIONS):
            return Era.LEGACY
        method = None if isinstance(message, Batch) else getattr(message, "method", None)
        return classify(method, versions, enveloped=said is not None and said.enveloped, session=session)

    # Modern

    async def _passed_on(
        self, request: BaseRequest, accepted: Accepted, message: Message | Batch, body: bytes
    ) -> StreamResponse:
        """What another replica let in, which may be a round of a call that is here and nothing else."""
        proof = request.get(PROOF)
        if proof is None or not proof.covers(body) or not _goes_on(message):
            return _refusal(403, "Forbidden: not what another replica of this bridge passes on", "proof")
        return await self._modern_post(request, accepted, message, subject=proof.claims.subject)

    async def _modern_post(
        self,
        request: BaseRequest,
        accepted: Accepted,
        message: Message | Batch,
        said: Claims | None = None,
        subject: str | None = None,
    ) -> StreamResponse:
        if isinstance(message, Notification):
            return Ready(202)  # acknowledged and dropped: nothing in core travels this way (HM-21)
        if not isinstance(message, Request):
            text = "Invalid Request: the body must be one request or notification"
            return malformed(Malformed(INVALID_REQUEST, text))
        try:
            said = said or claims(message.method, message.params)
            return await self._modern.post(request, accepted, message, said, subject)
        except ServerFault as fault:
            return _unavailable(message.id, fault)

    # Legacy

    async def _legacy_post(
        self, request: BaseRequest, accepted: Accepted, message: Message | Batch
    ) -> StreamResponse:
        if isinstance(message, Request) and message.method == "initialize":
            return await self._initialize(request, accepted, message)
        session = self._session(request, message.id if isinstance(message, Request) else None)
        if isinstance(session, Ready):
            return session
        return await session.post(request, accepted, message)

    async def _initialize(self, request: BaseRequest, accepted: Accepted, asked: Request) -> StreamResponse:
        """Open a session, whatever session the request names: a client that initializes wants a new one."""
        if len(self._relay.sessions) + self._opening >= self._config.limits.sessions:
            return later(asked.id, _FULL, "sessions", seconds=10)
        self._opening += 1
        try:
            link = await self._relay.legacy()
            session = LegacySession(secrets.token_urlsafe(24), self._relay, link)
        except ServerFault as fault:
            return _unavailable(asked.id, fault)
        finally:
            self._opening -= 1
        self._relay.sessions[session.id] = session
        known = False
        try:
            answer = await session.post(request, accepted, asked)
            known = session.lifecycle.open
            return answer
        finally:
            if not known:
                session.close("It was never opened: the server refused, or the client left")

    def _session(self, request: BaseRequest, asked: Id | None = None) -> LegacySession | Ready:
        """The session that the request names, or the refusal."""
        headers = request.headers
        named = headers.getall(SESSION_ID, ())
        if len(named) != 1 or not named[0]:
            text = "Bad Request: the header Mcp-Session-Id is needed, once; initialize gives it"
            return refused(local_error(asked, text, "no_session", INVALID_REQUEST).raw, 400)
        session = self._relay.sessions.get(named[0])
        if not isinstance(session, LegacySession):
            return gone(asked)
        if len(headers.getall(VERSION, ())) > 1:
            text = "Bad Request: the header MCP-Protocol-Version stands twice"
            return refused(local_error(asked, text, "protocol_version", INVALID_REQUEST).raw, 400)
        negotiated = session.revision.name if session.revision is not None else None
        refusal = legacy_version(headers.get(VERSION), negotiated)
        return session if refusal is None else declined(asked, refusal)

    async def _get(self, request: BaseRequest) -> StreamResponse:
        if _is_modern(request):
            return _refusal(405, "This revision has no GET", "method", _ALLOW_MODERN)
        if not accepts(request.headers.getall(hdrs.ACCEPT, ())).sse:
            return _refusal(406, "Not Acceptable: GET is answered by text/event-stream", "accept")
        session = self._session(request)
        if isinstance(session, Ready):
            return session
        return await session.listen(request, request.headers.get(LAST_EVENT_ID))

    async def _delete(self, request: BaseRequest) -> StreamResponse:
        if _is_modern(request):
            return _refusal(405, "This revision has no sessions", "method", _ALLOW_MODERN)
        session = self._session(request)
        if isinstance(session, Ready):
            return session
        session.close("The client ended it")
        return Ready(200)


def _goes_on(message: Message | Batch) -> bool:
    return isinstance(message, Request) and (goes_on(message) or message.method in ABOUT_TASKS)


def _asks(message: Message | Batch) -> bool:
    members = message.members if isinstance(message, Batch) else (message,)
    return any(isinstance(member, Request) for member in members)


def _is_modern(request: BaseRequest) -> bool:
    return request.headers.get(VERSION) in MODERN_VERSIONS


def _refusal(status: int, text: str, reason: str, lines: bytes = b"") -> Ready:
    return refused(local_error(None, text, reason, INVALID_REQUEST).raw, status, lines)


def _unavailable(asked: Id, fault: ServerFault) -> Ready:
    """No server can be had: the caller's request gets that as its answer."""
    if isinstance(fault, CircuitOpen):
        return later(asked, str(fault), fault.reason, seconds=max(1, math.ceil(fault.retry_after)))
    return refused(answer_to_fault(asked, fault).raw, 200)
