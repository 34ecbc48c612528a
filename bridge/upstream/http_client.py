"""What every upstream over HTTP shares: one client, its trust, its headers, its redirects.

Decides how a request gets to the server and which failures have a name. Knows nothing of
sessions or eras. Redirects stay on the origin and keep their method, so that credentials
never leave it (transport requirements: CL-16); the proxy is the environment's.
"""

from __future__ import annotations

import io
import logging
import os
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Self
from urllib.request import getproxies, proxy_bypass

from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorError,
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    ServerDisconnectedError,
    TCPConnector,
    UnixConnector,
)
from yarl import URL

from bridge import __version__
from bridge.config import KIB, MIB, Remote, Timing
from bridge.core.headers import PROTECTED
from bridge.errors import ServerFault, UsageFault

log = logging.getLogger("bridge.remote")

_REDIRECTS: Final = 5
_KEEPS_METHOD: Final = frozenset({307, 308})
_ANY_REDIRECT: Final = frozenset({301, 302, 303, 307, 308})
_KEEP_ALIVE: Final = 4.0
"""Seconds an idle connection is kept: less than the 5 s after which Node.js and uvicorn close it.

A POST that meets that closing is lost, since nobody could say whether it ran."""
_SHORTEST_SECRET: Final = 6
_WORDS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (TimeoutError, "timed out"),
    (ServerDisconnectedError, "the server closed the connection"),
    (ClientPayloadError, "the answer is incomplete"),
    (ClientResponseError, "what came is no valid HTTP"),
)


class Unreachable(ServerFault):
    """No HTTP answer came, or the connection broke off."""

    reason = "upstream_unreachable"


class HttpClient:
    """Requests to one remote server. Use as `async with`.

    Raises UsageFault for TLS files, headers and proxies that cannot be used.
    """

    def __init__(self, remote: Remote, timing: Timing) -> None:
        self._remote = remote
        given = URL(remote.url)
        self.url = given.with_user(None)
        self.label = origin(self.url)
        self._headers = _allowed(remote, given)
        self._proxy = None if remote.socket is not None else _proxy_for(self.url)
        self._tls = tls_context(remote)
        self._timeout = ClientTimeout(total=None, connect=timing.connect)
        self._session: ClientSession | None = None
        self._files: dict[Path, str] = {}

    async def __aenter__(self) -> Self:
        if not self._remote.verify:
            log.warning("certificates are not verified: whoever is in between can read and change everything")
        socket = self._remote.socket
        self._session = ClientSession(
            connector=TCPConnector(ssl=self._tls, limit=0, keepalive_timeout=_KEEP_ALIVE)
            if socket is None
            else UnixConnector(path=str(socket), limit=0, keepalive_timeout=_KEEP_ALIVE),
            timeout=self._timeout,
            cookie_jar=DummyCookieJar(),
            # Compression holds events back, and an answer of a few kB could become GBs.
            headers={"User-Agent": f"mcp-bridge/{__version__}", "Accept-Encoding": "identity"},
            read_bufsize=256 * KIB,
            max_field_size=16 * KIB,
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def request(
        self, method: str, headers: Mapping[str, str], body: bytes | None = None, url: URL | None = None
    ) -> AsyncIterator[ClientResponse]:
        """Send one request, follow its redirects, and give the answer. Raises Unreachable.

        A 401 is tried once more if a header file holds another value than the one that was sent.
        """
        target = self.url if url is None else url
        configured = self._configured()
        response = await self._send(method, target, {**headers, **configured}, body)
        if response.status == 401 and (renewed := self._reread()) != configured:
            response.release()
            response = await self._send(method, target, {**headers, **renewed}, body)
        try:
            yield response
        except (ClientError, OSError) as fault:
            raise Unreachable(f"The connection to {origin(target)} broke off: {_words(fault)}") from fault
        finally:
            # Only a connection whose answer was read to its end can serve another request.
            response.close()

    def redacted(self, text: str) -> str:
        """`text` of the server's without what the server was sent in confidence."""
        for value in self._headers_now().values():
            for secret in (value, value.split(" ")[-1]):  # with its scheme, and without
                if len(secret) >= _SHORTEST_SECRET:
                    text = text.replace(secret, "***")
        return text

    async def _send(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None
    ) -> ClientResponse:
        assert self._session is not None
        followed = _ANY_REDIRECT if method == "GET" else _KEEPS_METHOD
        for _ in range(_REDIRECTS):
            # Bytes over 1 MiB would be one long write, of which aiohttp warns.
            data = io.BytesIO(body) if body is not None and len(body) > MIB else body
            try:
                response = await self._session.request(
                    method, url, headers=headers, data=data, allow_redirects=False, proxy=self._proxy
                )
            except ClientConnectorError as fault:
                raise Unreachable(f"Cannot connect to {origin(url)}: {_words(fault)}") from fault
            except (ClientError, OSError) as fault:
                raise Unreachable(f"No answer from {origin(url)}: {_words(fault)}") from fault
            except ValueError as fault:
                raise Unreachable("A header of the request holds what HTTP cannot carry") from fault
            if response.status not in followed or "Location" not in response.headers:
                return response
            response.release()
            url = _redirected(url, response.headers["Location"])
        raise Unreachable(f"{origin(url)} redirects in a circle")

    def _configured(self) -> dict[str, str]:
        """The configured headers; files are read the first time."""
        for _, value in self._headers:
            if isinstance(value, Path) and value not in self._files:
                self._files[value] = _read(value)
        return self._headers_now()

    def _headers_now(self) -> dict[str, str]:
        return {
            name: value if isinstance(value, str) else self._files.get(value, "")
            for name, value in self._headers
        }

    def _reread(self) -> dict[str, str]:
        self._files.clear()
        return self._configured()


def origin(url: URL) -> str:
    """Scheme, host and port: what may be told of a URL (its path or query may hold secrets)."""
    port = "" if url.port is None or url.is_default_port() else f":{url.port}"
    host = url.host or ""
    return f"{url.scheme}://{f'[{host}]' if ':' in host else host}{port}"


def same_origin(one: URL, other: URL) -> bool:
    return origin(one) == origin(other)


def tls_context(remote: Remote) -> ssl.SSLContext:
    """Raises UsageFault naming the option at fault."""
    try:
        context = ssl.create_default_context(cafile=remote.ca_file)
    except (OSError, ssl.SSLError) as fault:
        raise UsageFault(f"--ca-file {remote.ca_file}: no certificates can be read from it") from fault
    if not remote.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if remote.client_cert is not None:
        try:
            context.load_cert_chain(remote.client_cert)
        except (OSError, ssl.SSLError) as fault:
            text = f"--client-cert {remote.client_cert}: it must hold a certificate and its key, as PEM"
            raise UsageFault(text) from fault
    return context


def _allowed(remote: Remote, url: URL) -> tuple[tuple[str, str | Path], ...]:
    """The configured headers, and what the URL holds of credentials as one more."""
    for name, _ in remote.headers:
        if name.lower() in PROTECTED:
            raise UsageFault(f"the header {name} is the protocol's own and cannot be set")
    if url.user is None or any(name.lower() == "authorization" for name, _ in remote.headers):
        return remote.headers
    basic = b64encode(f"{url.user}:{url.password or ''}".encode()).decode()
    return (*remote.headers, ("Authorization", f"Basic {basic}"))


def _proxy_for(url: URL) -> str | None:
    proxy = None if proxy_bypass(f"{url.host}:{url.port}") else getproxies().get(url.scheme)
    if proxy is not None and URL(proxy).scheme not in ("http", "https"):
        raise UsageFault(f"the proxy for {origin(url)} that the environment names is none for HTTP")
    return proxy


def _redirected(url: URL, location: str) -> URL:
    try:
        target = url.join(URL(location))
    except ValueError as fault:
        raise Unreachable(f"{origin(url)} redirects to no URL") from fault
    upgraded = (url.scheme, target.scheme, target.host) == ("http", "https", url.host)
    if not same_origin(url, target) and not (upgraded and target.is_default_port()):
        text = f"{origin(url)} redirects to {origin(target)}; not followed, since it is another origin"
        raise Unreachable(text)
    return target


def _read(file: Path) -> str:
    try:
        value = file.read_text().strip()
    except OSError as fault:
        raise Unreachable(f"The header file {file.name} cannot be read: {fault.strerror}") from fault
    except ValueError as fault:
        raise Unreachable(f"The header file {file.name} holds no text") from fault
    if "\n" in value or "\r" in value:
        raise Unreachable(f"The header file {file.name} holds more than one line")
    return value


def _words(fault: Exception) -> str:
    """Why it failed, without the address and the paths that such errors like to name."""
    for kind, words in _WORDS:
        if isinstance(fault, kind):
            return words
    if isinstance(fault, ClientConnectorCertificateError):
        reason = getattr(fault.certificate_error, "verify_message", "")
        return f"its certificate is not trusted{': ' if reason else ''}{reason}"
    cause = fault.os_error if isinstance(fault, ClientConnectorError) else fault
    if isinstance(cause, ssl.SSLError):
        return cause.reason or type(cause).__name__
    told = getattr(cause, "strerror", None)
    if isinstance(cause, OSError) and told and told.startswith("Connect call failed"):
        told = os.strerror(cause.errno or 0)  # asyncio's own words, which name the address
    return str(told or type(cause).__name__)
