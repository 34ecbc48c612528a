"""Modern requests to a Streamable HTTP server: each stands for itself.

Headers repeat what the very bytes of the body say (specification 2026-07-28, "Request
Metadata"), a request is cancelled by closing its stream, and a stream that broke has lost it.
What is repeated of a tool's arguments is learnt from the results of `tools/list` that pass.
Knows no session.
"""

from __future__ import annotations

import logging
from typing import Final

import anyio
import msgspec
from msgspec import UNSET

from bridge.core.correlate import CANCELLED
from bridge.core.headers import HEADER_MISMATCH, METHOD, NAME, VERSION, Claims, claims, encode_value
from bridge.core.message import Headers, Id, Message, Notification, Request, Response, params_of, request
from bridge.core.params import ToolIndex, header_values, without_invalid_tools
from bridge.core.splice import members, quote, replaced
from bridge.core.sse import Decoder
from bridge.errors import ServerFault
from bridge.upstream.hop import Hop
from bridge.upstream.http_answer import POST, Broken, Refused, Take, expect_success, fail, read_answer

log = logging.getLogger("bridge.remote")

_ENVELOPE_MARK: Final = b"io.modelcontextprotocol"
"""Without the slash behind it, which some writers escape."""


class _Error(msgspec.Struct):
    code: int = 0


class _Listing(msgspec.Struct):
    cursor: str | None = None


class ModernHttp:
    """The modern requests of one upstream session."""

    def __init__(self, hop: Hop) -> None:
        self._hop = hop
        self._calls: dict[Id, anyio.CancelScope] = {}
        self._tools = ToolIndex()

    def takes(self, message: Message) -> bool:
        """Send it if it is a modern request, or take one back if it cancels one."""
        match message:
            case Request():
                said = _envelope(message)
                if said is not None:
                    scope = self._calls[message.id] = anyio.CancelScope()
                    self._hop.spawn(self._call, message, said, scope)
                return said is not None
            case Notification(method=method) if method == CANCELLED:
                return self._cancel(params_of(message).request_id)
            case _:
                return False

    def _cancel(self, request_id: Id | msgspec.UnsetType) -> bool:
        """Closing its stream is all that tells the server (CM-5)."""
        call = None if request_id is UNSET else self._calls.get(request_id)
        if call is not None:
            call.cancel()
        return call is not None

    async def _call(self, asked: Request, said: Claims, scope: anyio.CancelScope) -> None:
        with scope:
            try:
                await self._try(asked, said)
            except ServerFault as fault:
                fail(self._hop, asked, fault)
            finally:
                if self._calls.get(asked.id) is scope:
                    del self._calls[asked.id]

    async def _try(self, asked: Request, said: Claims) -> None:
        """POST it, and once more with better headers if the tool was not known so well (CM-7)."""
        take = self._listed(asked) if said.method == "tools/list" else self._taker(asked)
        try:
            await self._post(asked, said, take)
        except Refused as fault:
            if said.method != "tools/call" or not _is_mismatch(fault):
                raise
            await self._learn(asked)
            await self._post(asked, said, take)

    async def _post(self, asked: Request, said: Claims, take: Take) -> None:
        headers = _beside(self._headers(said), asked.headers)
        async with self._hop.client.request("POST", headers, asked.raw) as response:
            await expect_success(self._hop, response)
            if not await read_answer(self._hop, response, asked, take, Decoder(self._hop.limits.line)):
                raise Broken("The server's stream ended before the answer")

    def _headers(self, said: Claims) -> dict[str, str]:
        headers = {**POST, VERSION: said.version or "", METHOD: said.method}
        if said.name is None:
            return headers
        annotated = self._tools.tool(said.name) if said.method == "tools/call" else None
        try:
            return headers | {NAME: encode_value(said.name)} | header_values(annotated or (), said.arguments)
        except UnicodeEncodeError as fault:
            raise ServerFault("What a header has to repeat holds half a character") from fault

    def _taker(self, asked: Request) -> Take:
        return lambda message: self._hop.deliver(message.raw, asked.id)

    # Tools

    def _listed(self, asked: Request) -> Take:
        """Learn from a list of tools, and leave out those that cannot be called over HTTP (CM-8)."""
        cursor = _cursor(asked)

        def take(message: Message) -> None:
            if isinstance(message, Response) and message.result is not UNSET:
                self._tools.learn(message.result, cursor)
                result, dropped = without_invalid_tools(bytes(message.result))
                for name, reason in dropped:
                    log.warning("%s: the tool %s is left out: %s", self._hop.label, name, reason)
                message = message.with_result(result) if dropped else message
            self._hop.deliver(message.raw, asked.id)

        return take

    async def _learn(self, asked: Request) -> None:
        """List all tools, with the envelope of the call that needs to know them."""
        self._tools.forget()
        while not self._tools.complete:
            cursor = self._tools.wanted
            page = _page(asked, cursor)
            results: list[msgspec.Raw] = []

            def take(message: Message, results: list[msgspec.Raw] = results) -> None:
                if isinstance(message, Response) and message.result is not UNSET:
                    results.append(message.result)

            await self._post(page, claims(page.method, page.params), take)
            for result in results:
                self._tools.learn(result, cursor)
            if not results:
                self._tools.settle()


def _beside(built: dict[str, str], passed: Headers) -> dict[str, str]:
    """What is repeated of the body, and what else the client sent for somebody who knows it (XH-11)."""
    known = {name.lower() for name in built}
    more: dict[str, str] = {}
    for name, value in ((name.lower(), value) for name, value in passed):
        if name not in known:
            more[name] = f"{more[name]}, {value}" if name in more else value
    return built | more


def _envelope(asked: Request) -> Claims | None:
    """What a modern request says of itself; None for every other."""
    if _ENVELOPE_MARK not in asked.raw:
        return None
    said = claims(asked.method, asked.params)
    return said if said.enveloped else None


def _page(asked: Request, cursor: str | None) -> Request:
    """A `tools/list` that shares nothing with the call but who asks."""
    meta = members(asked.params).get("_meta", b"{}") if asked.params is not UNSET else b"{}"
    params = b'{"_meta":%b}' % replaced(meta, ("progressToken",), None)
    if cursor is not None:
        params = replaced(params, ("cursor",), quote(cursor))
    return request(f"mb-tools-{asked.id}", "tools/list", params)


def _cursor(asked: Request) -> str | None:
    if asked.params is UNSET:
        return None
    try:
        return msgspec.json.decode(asked.params, type=_Listing).cursor
    except msgspec.DecodeError:
        return None


def _is_mismatch(fault: Refused) -> bool:
    if fault.said is None or fault.said.error is UNSET:
        return False
    try:
        return msgspec.json.decode(fault.said.error, type=_Error).code == HEADER_MISMATCH
    except msgspec.DecodeError:
        return False
