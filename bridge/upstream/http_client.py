"""What every upstream over HTTP shares: one client, its trust, its headers, its redirects.

Decides how a request gets to the server and which failures have a name. Knows nothing of
sessions or eras. Redirects stay on the origin and keep their method, so that credentials
never leave it (transport requirements: CL-16); the proxy is the environment's.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Self
from urllib.request import getproxies, proxy_bypass

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
    UnixConnector,
)
from yarl import URL

from bridge import __version__
from bridge.config import KIB, Limits, Remote, Timing
from bridge.errors import ServerFault, UsageFault

PROTECTED: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "host",
        "last-event-id",
        "mcp-method",
        "mcp-name",
        "mcp-protocol-version",
        "mcp-session-id",
        "transfer-encoding",
    }
)
"""Headers that are the protocol's own; a configured header may not take their place."""

_REDIRECTS: Final = 5
_KEEPS_METHOD: Final = frozenset({307, 308})


class Unreachable(ServerFault):
    """No HTTP answer came, or the connection broke off."""

    reason = "upstream_unreachable"


class HttpClient:
    """Requests to one remote server. Use as `async with`. Raises UsageFault for bad TLS files."""

    def __init__(self, remote: Remote, limits: Limits, timing: Timing) -> None:
        self.remote = remote
        self.limits = limits
        self.url = URL(remote.url)
        self._proxy = None if remote.socket is not None else _proxy_for(self.url)
        self._tls = tls_context(remote) if self.url.scheme == "https" else None
        self._timeout = ClientTimeout(total=None, sock_connect=timing.connect)
        self._session: ClientSession | None = None
        self._files: dict[Path, str] = {}

    async def __aenter__(self) -> Self:
        tls = self._tls if self._tls is not None else True
        connector = (
            UnixConnector(path=str(self.remote.socket), limit=0)
            if self.remote.socket is not None
            else TCPConnector(ssl=tls, limit=0)
        )
        self._session = ClientSession(
            connector=connector,
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

        A 401 is tried once more if a header file has changed since it was read.
        """
        target = url if url is not None else self.url
        response = await self._send(method, target, headers, body)
        if response.status == 401 and self._reread():
            response.release()
            response = await self._send(method, target, headers, body)
        try:
            yield response
        except (ClientError, OSError, TimeoutError) as fault:
            raise Unreachable(f"The connection to the server broke: {_words(fault)}") from fault
        finally:
            response.close() if not response.content.is_eof() else response.release()

    async def _send(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None
    ) -> ClientResponse:
        assert self._session is not None
        sent = {**headers, **self._configured()}
        for _ in range(_REDIRECTS):
            try:
                response = await self._session.request(
                    method, url, headers=sent, data=body, allow_redirects=False, proxy=self._proxy
                )
            except ClientConnectorError as fault:
                raise Unreachable(f"Cannot connect to {origin(url)}: {_words(fault)}") from fault
            except (ClientError, OSError, TimeoutError) as fault:
                raise Unreachable(f"No answer from {origin(url)}: {_words(fault)}") from fault
            if response.status not in _KEEPS_METHOD or "Location" not in response.headers:
                return response
            response.release()
            url = self._redirected(url, response.headers["Location"])
        raise Unreachable(f"{origin(url)} redirects in a circle")

    def _redirected(self, url: URL, location: str) -> URL:
        try:
            target = url.join(URL(location))
        except ValueError as fault:
            raise Unreachable(f"{origin(url)} redirects to no URL") from fault
        upgraded = url.scheme == "http" and target.scheme == "https" and target.host == url.host
        if target.origin() != url.origin() and not (upgraded and target.is_default_port()):
            text = f"{origin(url)} redirects to {origin(target)}; not followed, since it is another origin"
            raise Unreachable(text)
        return target

    def _configured(self) -> dict[str, str]:
        return {name: self._value(value) for name, value in self.remote.headers}

    def _value(self, value: str | Path) -> str:
        if isinstance(value, str):
            return value
        if value not in self._files:
            self._files[value] = _read(value)
        return self._files[value]

    def _reread(self) -> bool:
        """Read the header files again; whether any has changed."""
        before, self._files = self._files, {}
        self._configured()
        return self._files != before


def origin(url: URL) -> str:
    """Scheme, host and port: what may be told of a URL (its path or query may hold secrets)."""
    return str(url.origin())


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


def _proxy_for(url: URL) -> str | None:
    host = url.host or ""
    return None if proxy_bypass(host) else getproxies().get(url.scheme)


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError as fault:
        raise Unreachable(f"The header file {file.name} cannot be read: {fault.strerror}") from fault


def _words(fault: BaseException) -> str:
    if isinstance(fault, TimeoutError):
        return "timed out"
    cause = getattr(fault, "os_error", fault)
    strerror = getattr(cause, "strerror", None)
    return str(strerror or type(cause).__name__).removeprefix("[").split("]")[-1].strip()
