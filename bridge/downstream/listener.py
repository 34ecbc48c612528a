"""Where HTTP is listened for, and what a connection answers by itself.

Decides on sockets (TCP on every address of a name, Unix sockets with their mode from the
start, TLS 1.2 and later) and on the answers that no handler can give: malformed HTTP (400),
headers that are too large (431), a handler that failed (500), each with a JSON-RPC error as
body. Knows nothing of paths, messages or who is let in. Answers the status table of
basic/transports and "bind to loopback" by listening exactly where it was told to.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import stat
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from aiohttp.http import HttpProcessingError, RawRequestMessage
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web import BaseRequest, RequestHandler, Server, StreamResponse

from bridge.config import KIB, Listen, Tls
from bridge.core.message import INTERNAL_ERROR
from bridge.downstream.http import Ready, bracketed, json_error, refusal
from bridge.errors import ListenFault, UsageFault

Handler = Callable[[BaseRequest], Awaitable[StreamResponse]]

_log = logging.getLogger(__name__)

_BACKLOG: Final = 1024
_MAX_FIELD: Final = 16 * KIB
"""Bytes of one header field: `Mcp-Name` may be 4 kB, and base64."""

_IDLE: Final = 630.0
"""Seconds an idle connection lives: more than proxies keep theirs (600 at most), so that a
request never meets a connection that is just being closed."""

_SILENCE: Final = 4
"""How much longer than for a full stream a client may acknowledge nothing: the kernel counts one
that merely reads nothing as silent too."""

_LINGER: Final = 5.0
"""Seconds for the rest of a small body whose request is already answered."""


# --- connections ------------------------------------------------------------------------------


class Connection(RequestHandler):
    """aiohttp's connection with our errors. Whoever takes no byte of an answer for `stalled`
    seconds, while more than the high-water mark waits, is cut off."""

    __slots__ = ("_stalled",)

    def __init__(self, server: _Server, stalled: float, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            logger=_log,
            access_log=None,  # type: ignore[arg-type]  # aiohttp documents None
            auto_decompress=False,
            max_field_size=_MAX_FIELD,
            keepalive_timeout=_IDLE,
            lingering_time=_LINGER,
        )
        self._stalled = stalled

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages and self._current_request is not None:
            self._fail_body(self._current_request)

    def _fail_body(self, request: BaseRequest) -> None:
        """Tell the reader of a body that turned out malformed; aiohttp leaves it waiting."""
        message = self._messages[-1][0]
        if not isinstance(message, RawRequestMessage) and not request.content.is_eof():
            request.content.set_exception(message.exc)

    async def _drain_helper(self) -> None:
        watch: asyncio.TimerHandle | None = None

        def check(unsent_before: int | None) -> None:
            nonlocal watch
            if self.transport is None:
                return
            unsent = self.transport.get_write_buffer_size()
            if unsent == unsent_before:
                self.transport.abort()
            else:
                watch = self._loop.call_later(self._stalled, check, unsent)

        check(None)
        try:
            await super()._drain_helper()
        finally:
            if watch is not None:
                watch.cancel()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> StreamResponse:
        if isinstance(exc, ConnectionError):
            raise exc
        if isinstance(exc, HttpProcessingError):
            return _malformed(exc)
        _report(f"{request.method} {request.path}", exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun; nothing can follow but the end of the connection")
        data = b'{"origin":"bridge","reason":"internal"}'
        return json_error(500, INTERNAL_ERROR, "Internal error", data=data)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        exc = kw.get("exc_info")
        _report("a connection", exc if isinstance(exc, BaseException) else None)


def _report(where: str, exc: BaseException | None) -> None:
    # Type and place, not the text: an exception may quote the payload it choked on.
    place = "".join(traceback.format_tb(exc.__traceback__)) if exc is not None else ""
    _log.error("%s failed with %s\n%s", where, type(exc).__name__, place)


def _malformed(exc: HttpProcessingError) -> Ready:
    _log.debug("refused a request: %s", type(exc).__name__)
    if isinstance(exc, LineTooLong) or exc.message.startswith("Too many headers"):
        return refusal(431, "headers_too_large", "the request line or a header is too large", close=True)
    return refusal(400, "malformed_http", "the request is not well-formed HTTP", close=True)


class _Server(Server):
    """Makes connections, and knows when the last of them is closed."""

    def __init__(self, handler: Handler, stalled: float) -> None:
        super().__init__(handler, handler_cancellation=True)
        self._stalled = stalled
        self._open: dict[RequestHandler, asyncio.Transport] = {}
        self._emptied: asyncio.Future[None] | None = None

    def __call__(self) -> Connection:
        return Connection(self, self._stalled, self._loop)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._open[handler] = transport

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._open.pop(handler, None)
        if self._emptied is not None and not self._open and not self._emptied.done():
            self._emptied.set_result(None)

    async def end(self, grace: float) -> None:
        """Let handlers finish, then cancel them; let answers go out, then abort the rest."""
        self.pre_shutdown()
        await self.shutdown(grace)
        if self._open:
            self._emptied = self._loop.create_future()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._emptied, grace)
        for transport in self._open.values():
            transport.abort()


# --- listening --------------------------------------------------------------------------------


class Served:
    """A listener at work. `url` is where a client finds it; `listening` says what it is bound to."""

    def __init__(
        self,
        url: str,
        listening: str,
        accepting: list[asyncio.Server],
        server: _Server,
        path: Path | None = None,
    ) -> None:
        self.url = url
        self.listening = listening
        self._accepting = accepting
        self._server = server
        self._socket_file = None if path is None else (path, path.stat().st_ino)

    def stop_accepting(self) -> None:
        """No new connections from here on; the present ones go on."""
        for accepting in self._accepting:
            accepting.close()
        if self._socket_file is not None:
            path, inode = self._socket_file
            with suppress(FileNotFoundError):
                # Another bridge may have put its own there since.
                if path.stat().st_ino == inode:
                    path.unlink()

    async def close(self, grace: float = 1.0) -> None:
        """Stop accepting, and end every connection; `grace` is the seconds each step may take."""
        self.stop_accepting()
        await self._server.end(grace)


async def serve(listen: Listen, handler: Handler, *, stalled: float) -> Served:
    """Listen, and answer with `handler` until `Served.close`.

    A client that takes no byte of an answer for `stalled` seconds is cut off. Raises
    ListenFault when the address cannot be had, UsageFault for bad TLS files.
    """
    tls = None if listen.tls is None else tls_context(listen.tls)
    scheme = "http" if tls is None else "https"
    server = _Server(handler, stalled)
    loop = asyncio.get_running_loop()
    if listen.uds is not None:
        unix = bind_unix(listen.uds, listen.uds_mode)
        accepting = [await loop.create_unix_server(server, sock=unix, backlog=_BACKLOG, ssl=tls)]
        return Served(f"{scheme}://localhost{listen.path}", f"{listen.uds}", accepting, server, listen.uds)
    sockets = await bind_tcp(listen.host, listen.port)
    for sock in sockets:
        _give_up_on_silence(sock, _SILENCE * stalled)
    bound = [f"{bracketed(sock.getsockname()[0])}:{sock.getsockname()[1]}" for sock in sockets]
    url = f"{scheme}://{bracketed(listen.host)}:{sockets[0].getsockname()[1]}{listen.path}"
    accepting = [await loop.create_server(server, sock=sock, backlog=_BACKLOG, ssl=tls) for sock in sockets]
    return Served(url, " and ".join(bound), accepting, server)


def _give_up_on_silence(sock: socket.socket, seconds: float) -> None:
    """Let the kernel end connections whose peer acknowledges nothing for so long.

    A half-open one would count as a client for a quarter of an hour (SS-05); our keep-alive
    comments are what it fails to acknowledge. What is accepted inherits the setting.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(seconds * 1000)))


_BIND_FAULTS: Final = {
    errno.EADDRINUSE: "{where} is in use by another process; choose another with --port",
    errno.EACCES: "{where} may not be listened on by this user; choose a port above 1023 with --port",
    errno.EADDRNOTAVAIL: "{where} is no address of this machine; choose another with --host",
}


async def bind_tcp(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of `host`, all on one port. Raises ListenFault."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError) as fault:
        raise ListenFault(f"{host} is no known host name; choose another with --host") from fault
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            try:
                sockets.append(_bound(family, (address[0], port, *address[2:])))
            except OSError as fault:
                # `localhost` may have an IPv6 address in name only.
                if len(found) == 1 or fault.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                absent = fault
            else:
                port = sockets[0].getsockname()[1]  # port 0: the others take the first one's
        if absent is not None and not sockets:
            raise absent
    except OSError as fault:
        for sock in sockets:
            sock.close()
        raise _listen_fault(f"{bracketed(host)}:{port}", fault) from fault
    return sockets


def _bound(family: int, address: tuple[str | int, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _listen_fault(where: str, fault: OSError) -> ListenFault:
    text = _BIND_FAULTS.get(fault.errno or 0, "{where} cannot be listened on: {reason}")
    return ListenFault(text.format(where=where, reason=fault.strerror or fault))


def bind_unix(path: Path, mode: int) -> socket.socket:
    """A Unix socket that has `mode` from its first moment. Raises ListenFault.

    The file of a process that is gone is replaced; one that somebody listens on, or that is
    no socket, is not.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~mode)
    try:
        _remove_stale(path)
        sock.setblocking(False)
        sock.bind(str(path))
        sock.listen(_BACKLOG)
    except OSError as fault:
        sock.close()
        raise ListenFault(f"{path} cannot be listened on: {fault.strerror or fault}") from fault
    except ListenFault:
        sock.close()
        raise
    finally:
        os.umask(before)
    return sock


def _remove_stale(path: Path) -> None:
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise ListenFault(f"{path} exists and is no socket; choose another with --uds")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        else:
            raise ListenFault(f"{path} is in use by another process; choose another with --uds")


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Server context for TLS 1.2 and later. Raises UsageFault naming the option at fault."""
    _hold_pem("--tls-cert", tls.cert, b"BEGIN CERTIFICATE")
    _hold_pem("--tls-key", tls.key, b"PRIVATE KEY")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2

    def passphrase() -> str:
        raise UsageFault(f"--tls-key {tls.key}: is encrypted; a key without a passphrase is needed")

    try:
        context.load_cert_chain(tls.cert, tls.key, passphrase)
    except ssl.SSLError as fault:
        if fault.reason == "KEY_VALUES_MISMATCH":
            raise UsageFault(f"--tls-key {tls.key}: does not belong to --tls-cert {tls.cert}") from fault
        raise UsageFault(f"--tls-cert {tls.cert} or --tls-key {tls.key}: is damaged") from fault
    return context


def _hold_pem(option: str, path: Path, marker: bytes) -> None:
    try:
        content = path.read_bytes()
    except OSError as fault:
        raise UsageFault(f"{option} {path}: {fault.strerror}") from fault
    if marker not in content:
        raise UsageFault(f"{option} {path}: holds no PEM text with {marker.decode()}")
