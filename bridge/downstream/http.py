"""What every side that serves HTTP shares, before and around the messages themselves.

Decides who is let in (`Gate`), how much of a body is read and for how long (`read_body`), and
how an answer becomes bytes (`Ready`, `json_error`). Knows nothing of JSON-RPC beyond the shape
of an error, and nothing of sessions, eras or paths. Answers the security warnings and the
statuses of basic/transports: Host 421, Origin 403, authorization 401, bodies 413, 415 and 408,
and CORS for clients in a browser.

Every message passes here. Header blocks are therefore bytes made beforehand, verdicts on a
Host or an Origin are remembered, and a body that is already there is taken without waiting.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import time
from collections.abc import Callable, Sequence
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple

import msgspec
from aiohttp import hdrs
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpProcessingError, HttpVersion11
from aiohttp.web import BaseRequest, RequestKey, RequestPayloadError, StreamResponse

from bridge.config import KIB, Access, Listen
from bridge.core.message import INVALID_REQUEST
from bridge.downstream.proof import ANSWERED, RELAYED, Proof
from bridge.errors import UsageFault

Part = bytes | bytearray | memoryview

CORS: Final = RequestKey("cors", bytes)
"""The CORS header lines an answer to this request carries; set by the gate, read by every answer."""

PROOF: Final = RequestKey("proof", Proof)
"""What lets a request in that another replica passes on; every answer to it says whose it is."""

_ONE_WRITE: Final = 64 * KIB
"""Above it a copy into one buffer costs more than several writes."""

_WORTH_READING: Final = 64 * KIB
"""An unread body up to this is read and dropped, so that the connection lives on."""

_PARTING: Final = 1.0
"""Seconds between a refusal with the body unread and the closing of the connection: a close
with bytes still unread resets it, and the reset can overtake the answer."""


# --- answers ----------------------------------------------------------------------------------

_STATUS_LINES: Final = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
_BODILESS: Final = frozenset({204, 304})


@lru_cache(maxsize=1)
def _date_line(second: int) -> bytes:
    return f"Date: {formatdate(second, usegmt=True)}\r\n".encode()


def head_of(request: BaseRequest, status: int, lines: bytes, *, keep_alive: bool) -> tuple[bytes, ...]:
    """Status line and header lines, without the blank line that ends them."""
    headers = request.headers
    cors = request[CORS] if hdrs.ORIGIN in headers and CORS in request else b""
    if RELAYED in headers and PROOF in request:
        lines += b"%b: %b\r\n" % (ANSWERED.encode(), request[PROOF].answer(status).encode())
    if not keep_alive:
        connection = b"Connection: close\r\n"
    elif request.version < HttpVersion11:
        connection = b"Connection: keep-alive\r\n"
    else:
        connection = b""
    return (_STATUS_LINES[status], _date_line(int(time.time())), lines, cors, connection)


def send(transport: asyncio.WriteTransport, parts: Sequence[Part], size: int) -> None:
    """Write `parts`, of `size` bytes in all: small ones as one, big ones uncopied."""
    if size <= _ONE_WRITE:
        transport.write(b"".join(parts))
        return
    # One by one, not writelines: asyncio's copies (3.11) or forgets to pause (CVE-2024-12254),
    # and uvloop gathers the writes of one turn of the loop by itself.
    for part in parts:
        transport.write(part)


def open_transport(request: BaseRequest) -> asyncio.Transport:
    """Raises ConnectionResetError when the client is gone."""
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the client is gone")
    return transport


class Ready(StreamResponse):
    """A whole answer, written at once.

    `lines` are complete header lines, each with its CRLF; Date, Content-Length, Connection and
    CORS are added. `close` ends the connection even if the client would keep it. An answer
    before the request's body has come ends it too, unless little is left to come.
    """

    _reason = ""

    # StreamResponse builds headers, cookies and states, which nothing here looks at.
    def __init__(
        self, status: int, lines: bytes = b"", body: tuple[Part, ...] = (), *, close: bool = False
    ) -> None:
        self._status = status
        self._lines = lines
        self._parts = body
        self._closes = close

    @property
    def lines(self) -> bytes:
        return self._lines

    @property
    def content(self) -> bytes:
        return b"".join(self._parts)

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        transport = open_transport(request)
        leaves_body = not request.content.is_eof()
        parting = self._closes or (leaves_body and not _worth_reading(request))
        self._keep_alive = request.keep_alive and not parting
        self._write(request, transport)
        if request.protocol.writing_paused:
            await request.writer.drain()
        if parting:
            await _part(request, transport)
        return None

    def _write(self, request: BaseRequest, transport: asyncio.Transport) -> None:
        size = 0
        for part in self._parts:
            size += len(part)
        length = b"\r\n" if self._status in _BODILESS else b"Content-Length: %d\r\n\r\n" % size
        head = head_of(request, self._status, self._lines, keep_alive=self._keep_alive is True)
        if request.method == "HEAD":
            send(transport, (*head, length), 0)
        else:
            send(transport, (*head, length, *self._parts), size)

    async def write_eof(self, data: bytes = b"") -> None:
        """Everything was written by `prepare`."""


def _worth_reading(request: BaseRequest) -> bool:
    # A client that expects 100 and is refused may never send its body (RFC 9110, 10.1.1).
    length = request.content_length
    return length is not None and length <= _WORTH_READING and hdrs.EXPECT not in request.headers


async def _part(request: BaseRequest, transport: asyncio.Transport) -> None:
    """Close without reading on, but give the client time to read the answer before."""
    if not transport.is_closing():
        transport.pause_reading()
        if transport.can_write_eof():
            transport.write_eof()
        await asyncio.sleep(_PARTING)
    request.protocol.force_close()


def json_error(
    status: int,
    code: int,
    message: str,
    *,
    id: bytes = b"null",  # noqa: A002
    data: bytes | None = None,
    headers: bytes = b"",
    close: bool = False,
) -> Ready:
    """A JSON-RPC error as an HTTP answer. `id` and `data` are JSON texts, `headers` complete lines."""
    body = b'{"jsonrpc":"2.0","id":%b,"error":{"code":%d,"message":%b%b}}' % (
        id,
        code,
        msgspec.json.encode(message),
        b"" if data is None else b',"data":' + data,
    )
    return Ready(status, b"Content-Type: application/json\r\n" + headers, (body,), close=close)


def refusal(status: int, reason: str, message: str, *, headers: bytes = b"", close: bool = False) -> Ready:
    """An answer of the HTTP layer itself, marked as the bridge's own."""
    data = msgspec.json.encode({"origin": "bridge", "reason": reason})
    return json_error(status, INVALID_REQUEST, message, data=data, headers=headers, close=close)


# --- bodies -----------------------------------------------------------------------------------

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


async def read_body(request: BaseRequest, limit: int, idle: float) -> bytes | Ready:
    """The body, of at most `limit` bytes, or the refusal to answer with.

    `idle` is how many seconds may pass without a byte. Raises ConnectionError, or is cancelled,
    when the client goes before the end.
    """
    headers = request.headers
    # Decompressing is refused outright: a few kB could become GBs.
    if hdrs.CONTENT_ENCODING in headers and headers[hdrs.CONTENT_ENCODING].lower() not in ("", "identity"):
        text = "bodies with a Content-Encoding are not read; send it plain"
        return refusal(415, "content_encoding", text, headers=b"Accept-Encoding: identity\r\n")
    if not request.content.is_eof():
        return await _await_body(request, limit, idle)
    body = request.content.read_nowait()
    return body if len(body) <= limit else _too_large(limit)


async def _await_body(request: BaseRequest, limit: int, idle: float) -> bytes | Ready:
    length = request.content_length
    if length is not None and length > limit:
        return _too_large(limit)
    expected = request.headers.get(hdrs.EXPECT)
    if expected is not None and request.version >= HttpVersion11:
        if expected.lower() != "100-continue":
            return refusal(417, "expectation", "only 100-continue can be expected", close=True)
        open_transport(request).write(_CONTINUE)
    try:
        return await _collect(request, limit, idle)
    except TimeoutError:
        return refusal(408, "body_timeout", f"no byte of the body came for {idle:g} s", close=True)
    except (HttpProcessingError, RequestPayloadError):
        return refusal(400, "malformed_http", "the body is not well-formed HTTP", close=True)


async def _collect(request: BaseRequest, limit: int, idle: float) -> bytes | Ready:
    payload, loop = request.content, asyncio.get_running_loop()
    parts: list[bytes] = []
    size = 0
    async with asyncio.timeout(idle) as patience:
        while not payload.at_eof():
            part = await payload.readany()
            size += len(part)
            if size > limit:
                return _too_large(limit)
            parts.append(part)
            patience.reschedule(loop.time() + idle)
    return b"".join(parts)


def _too_large(limit: int) -> Ready:
    return refusal(413, "body_too_large", f"the body is larger than {limit} bytes", close=True)


# --- admission --------------------------------------------------------------------------------

_METHODS: Final = b"GET, POST, DELETE"
_ALLOW: Final = b"Allow: " + _METHODS + b"\r\n"
_ASKED_HEADERS: Final = (
    "Authorization", "Content-Type", "Accept", "Mcp-Session-Id", "MCP-Protocol-Version", "Mcp-Method",
    "Mcp-Name", "Last-Event-ID", "traceparent", "tracestate", "baggage",
)  # fmt: skip
_EXPOSED: Final = "Mcp-Session-Id, WWW-Authenticate"
_PARAM_HEADER: Final = re.compile(r"mcp-param-[!#$%&'*+.^_`|~0-9a-z-]+", re.IGNORECASE | re.ASCII)
_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._~*-]+)(?::([0-9]*))?", re.IGNORECASE | re.ASCII)
_DEFAULT_PORTS: Final = frozenset({"80", "443"})
_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")


class _Authority(NamedTuple):
    """A host, lower case, and its port, or "" for any (in an allowance) or the default (in a Host)."""

    host: str
    port: str

    def covers(self, other: _Authority) -> bool:
        if self.port not in ("", other.port) and (other.port or self.port not in _DEFAULT_PORTS):
            return False
        if self.host.startswith("*"):
            return len(other.host) >= len(self.host) and other.host.endswith(self.host[1:])
        return self.host == other.host


def _authority(text: str) -> _Authority | None:
    found = _AUTHORITY.fullmatch(text)
    return found and _Authority(found[1].lower(), found[2] or "")


class Gate:
    """Who may speak to this listener: Host, Origin, CORS preflight, bearer token, in this order.

    The Host is held against a list when the listener is on loopback or lets anybody in, for
    then a web page that rebinds its name to our address is the attacker to think of. What another
    replica passes on needs no token if `is_passed_on` finds its proof right. Raises UsageFault for
    an allowed host that is none.
    """

    def __init__(
        self,
        access: Access,
        listen: Listen,
        is_passed_on: Callable[[BaseRequest], bool] = lambda _: False,
    ) -> None:
        exposed = listen.uds is None and (access.token is None or _is_loopback(listen.host))
        self._checks_host = exposed or bool(access.allowed_hosts)
        self._hosts = _allowances(listen, access.allowed_hosts) if self._checks_host else ()
        # A page of our own origin is harmless if the Host proves it ours, or if it needs a token.
        self._trusts_host = self._checks_host or access.token is not None
        self._schemes = ("https://",) if listen.tls else ("http://", "https://")
        self._origins = frozenset(origin.lower().rstrip("/") for origin in access.allowed_origins)
        self._token = None if access.token is None else access.token.encode()
        self._is_passed_on = is_passed_on
        # Verdicts depend on nothing else, and clients repeat theirs for ever.
        self._serves: Callable[[str], bool] = lru_cache(maxsize=256)(self._judge_host)

    def check(self, request: BaseRequest) -> Ready | None:
        """The refusal (or the answer to a preflight) to send, or None to go on. Reads no body."""
        headers = request.headers
        host = _host_of(request)
        if self._checks_host and host is not None and not self._serves(host):
            return refusal(421, "host", "this Host is not served here; allow it with --allowed-host")
        if hdrs.ORIGIN in headers:
            origins = headers.getall(hdrs.ORIGIN)
            if len(origins) > 1 or not self._admits(request, origins[0], host):
                return refusal(403, "origin", "this Origin may not call; allow it with --allowed-origin")
        if request.method == hdrs.METH_OPTIONS:
            return self._options(request)
        if RELAYED in headers and self._is_passed_on(request):
            return None
        if self._token is not None and not self._bears_token(headers.getall(hdrs.AUTHORIZATION, ())):
            challenge = b"WWW-Authenticate: Bearer\r\n"
            return refusal(401, "unauthorized", "a valid bearer token is needed", headers=challenge)
        return None

    def cors_headers(self, request: BaseRequest) -> dict[str, str]:
        """For an answer that is neither `Ready` nor an event stream: those add them by themselves."""
        origin = request.headers.get(hdrs.ORIGIN)
        return _cors(origin) if origin is not None and self._lists(origin) else {}

    def _judge_host(self, host: str) -> bool:
        given = _authority(host)
        return given is not None and any(allowed.covers(given) for allowed in self._hosts)

    def _admits(self, request: BaseRequest, origin: str, host: str | None) -> bool:
        if self._lists(origin):
            request[CORS] = _cors_lines(origin)
            return True
        if host is None or not self._trusts_host:
            return False
        return origin.lower() in [scheme + host.lower() for scheme in self._schemes]

    def _lists(self, origin: str) -> bool:
        return bool(self._origins) and ("*" in self._origins or origin.lower() in self._origins)

    def _options(self, request: BaseRequest) -> Ready:
        if hdrs.ACCESS_CONTROL_REQUEST_METHOD not in request.headers or CORS not in request:
            return refusal(405, "method", "OPTIONS is for CORS preflights", headers=_ALLOW)
        asked = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "").split(",")
        names = [name for name in map(str.strip, asked) if _PARAM_HEADER.fullmatch(name)]
        allowed = ", ".join((*_ASKED_HEADERS, *names)).encode()
        lines = (
            b"Access-Control-Allow-Methods: %b, OPTIONS\r\n" % _METHODS
            + b"Access-Control-Allow-Headers: %b\r\n" % allowed
            + b"Access-Control-Max-Age: 7200\r\n"  # what Chromium caps it at
        )
        return Ready(204, lines)

    def _bears_token(self, given: Sequence[str]) -> bool:
        if len(given) != 1 or self._token is None:
            return False
        scheme, _, credentials = given[0].partition(" ")
        shown = credentials.strip().encode("utf-8", "surrogateescape")
        return scheme.lower() == "bearer" and hmac.compare_digest(shown, self._token)


def _host_of(request: BaseRequest) -> str | None:
    """Whom the client speaks to; a whole URL as the target goes before Host (RFC 9112, 3.2.2)."""
    target = request.raw_path
    if target.startswith(("http://", "https://")):
        return target.split("/", 3)[2]
    return request.headers.get(hdrs.HOST)


def _cors(origin: str) -> dict[str, str]:
    # The origin by name, for `*` would not go with an Authorization header.
    return {
        hdrs.ACCESS_CONTROL_ALLOW_ORIGIN: origin,
        hdrs.VARY: "Origin",
        hdrs.ACCESS_CONTROL_EXPOSE_HEADERS: _EXPOSED,
    }


@lru_cache(maxsize=256)
def _cors_lines(origin: str) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in _cors(origin).items())
    return lines.encode("utf-8", "surrogateescape")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _allowances(listen: Listen, extra: Sequence[str]) -> tuple[_Authority, ...]:
    own = (*_LOCAL_NAMES, bracketed(listen.host)) if listen.uds is None else _LOCAL_NAMES
    return tuple(filter(None, map(_authority, own))) + tuple(map(_allowed_host, extra))


def _allowed_host(text: str) -> _Authority:
    authority = _authority(bracketed(text))
    if authority is None:
        raise UsageFault(f"--allowed-host {text}: neither a host nor host:port")
    return authority


def bracketed(host: str) -> str:
    """An IPv6 address as it stands in a URL; anything else unchanged."""
    return f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host
