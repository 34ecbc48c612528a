"""What the HTTP answer to one message means, whatever transport it belongs to.

Turns an answer into JSON texts, those of a body or of a stream's events, and a failure into
exactly one JSON-RPC error under the id of the request that met it (transport requirements
CL-15, CL-17, CM-10, G-20). Decides nothing about sessions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from aiohttp import ClientError, ClientResponse
from msgspec import UNSET

from bridge.core.message import INTERNAL_ERROR, Id, Response, error, read
from bridge.core.splice import quote
from bridge.core.sse import Decoder, Event, Oversize
from bridge.errors import ServerFault
from bridge.upstream.http_client import Unreachable

EVENTS: Final = "text/event-stream"
_EXCERPT: Final = 300
"""Characters of a failed answer's body that are quoted."""
_BEGINNING: Final = 64 * 1024
_DEPTH: Final = 128
_AUTH: Final = frozenset({401, 403})


class Refused(ServerFault):
    """The server answered with an HTTP failure. `body` is how that answer began."""

    def __init__(self, response: ClientResponse, body: bytes) -> None:
        excerpt = " ".join(body.decode(errors="replace").split())[:_EXCERPT]
        super().__init__(f"The server answered HTTP {response.status}{': ' if excerpt else ''}{excerpt}")
        self.status = response.status
        self.body = body
        self.challenge = response.headers.get("WWW-Authenticate")
        self.retry_after = response.headers.get("Retry-After")
        self.reason = "upstream_auth" if response.status in _AUTH else "upstream_refused"

    @property
    def said(self) -> Response | None:
        """The JSON-RPC error in its body, whatever media type that claims to be."""
        found = read(self.body, depth=_DEPTH)
        return found if isinstance(found, Response) and found.error is not UNSET else None


class Unusable(ServerFault):
    """An answer that is a success by its status, but not one to a request."""

    reason = "upstream_invalid_answer"


async def refused(response: ClientResponse) -> Refused:
    """The failure that an answer with this status is."""
    parts: list[bytes] = []
    size = 0
    while size < _BEGINNING and (part := await response.content.read(_BEGINNING - size)):
        parts.append(part)
        size += len(part)
    return Refused(response, b"".join(parts))


def media_type(response: ClientResponse) -> str:
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()


async def whole_body(response: ClientResponse, limit: int) -> bytes:
    """Raises Unusable if the body has more than `limit` bytes."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > limit:
            raise Unusable(f"The server's answer is larger than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


async def events_of(response: ClientResponse, decoder: Decoder) -> AsyncIterator[list[Event | Oversize]]:
    """The events of a stream, those of one read together. Raises Unreachable if it breaks off."""
    try:
        async for data in response.content.iter_any():
            found = decoder.feed(data)
            if found:
                yield found
    except (ClientError, OSError, TimeoutError) as fault:
        raise Unreachable("The server's stream broke off") from fault


def failure(message_id: Id, fault: ServerFault) -> Response:
    """The one answer to a request that met this failure; the server's own words where it had any."""
    said = fault.said if isinstance(fault, Refused) else None
    if said is not None:
        return said if said.id == message_id else said.with_id(message_id)
    return error(message_id, INTERNAL_ERROR, str(fault), quote(_details(fault)))


def _details(fault: ServerFault) -> dict[str, object]:
    found: dict[str, object] = {"origin": "bridge", "reason": fault.reason}
    if isinstance(fault, Refused):
        told = {
            "httpStatus": fault.status,
            "wwwAuthenticate": fault.challenge,
            "retryAfter": fault.retry_after,
        }
        found.update({name: value for name, value in told.items() if value is not None})
    return found
