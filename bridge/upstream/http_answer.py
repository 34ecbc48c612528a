"""What the HTTP answer to one message means, whatever transport it belongs to.

Turns an answer into messages, those of a body or of a stream's events, and a failure into
exactly one JSON-RPC error under the id of the request that met it (transport requirements
CL-15, CL-17, CM-10, G-20). Decides nothing about sessions.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable
from typing import Final

import anyio
from aiohttp import ClientError, ClientResponse
from msgspec import UNSET

from bridge import telemetry
from bridge.core.message import INTERNAL_ERROR, Batch, Id, Malformed, Message, Request, Response, error, read
from bridge.core.splice import quote
from bridge.core.sse import Decoder, Event, Oversize
from bridge.errors import ServerFault
from bridge.upstream.hop import Hop
from bridge.upstream.http_client import HttpClient, Unreachable

log = logging.getLogger("bridge.remote")

EVENTS: Final = "text/event-stream"
POST: Final = {"Accept": f"application/json, {EVENTS}", "Content-Type": "application/json"}
LISTEN: Final = {"Accept": EVENTS, "Cache-Control": "no-store"}

Take = Callable[[Message], None]

_EXCERPT: Final = 300
"""Characters of a failed answer's body that are quoted."""
_BEGINNING: Final = 64 * 1024
_LINGER: Final = 1.0
"""Seconds that a stream may take to end after the answer, so that its connection can be used again."""
_REFUSAL: Final = 10.0
"""Seconds that the body of a failed answer may take: its status alone is worth telling."""
STEADY: Final = 5.0
"""Seconds after which a stream that was cut counts as one that worked."""
_FIRST_RETRY: Final = 1.0
_MOST_RETRY: Final = 30.0
_AUTH: Final = frozenset({401, 403})
_MARKUP: Final = re.compile(r"<(style|script)\b.*?</\1\s*>|<[^>]*>", re.DOTALL | re.IGNORECASE)


class Refused(ServerFault):
    """The server answered with an HTTP failure; `said` is the JSON-RPC error in it, if there is one."""

    def __init__(self, client: HttpClient, response: ClientResponse, body: bytes, depth: int) -> None:
        self.status = response.status
        self.body = body
        found = read(body, depth=depth)
        self.said = found if isinstance(found, Response) and found.error is not UNSET else None
        text = client.redacted(body.decode(errors="replace"))
        text = telemetry.redact(_excerpt(text, media_type(response)))
        super().__init__(f"The server answered HTTP {response.status}{': ' if text else ''}{text}")
        self.reason = "upstream_auth" if response.status in _AUTH else "upstream_refused"
        told = {name: response.headers.get(header) for name, header in _TOLD.items()}
        self.told = {name: client.redacted(value) for name, value in told.items() if value is not None}

    def beside(self, other: ServerFault) -> None:
        """Tell of another failure too: of what was tried because of this one."""
        self.args = (f"{self}; {other}",)


_TOLD: Final = {"wwwAuthenticate": "WWW-Authenticate", "retryAfter": "Retry-After"}


class Unusable(ServerFault):
    """An answer that is a success by its status, but not one to a request."""

    reason = "upstream_invalid_answer"


class Broken(Unreachable):
    """A stream that broke off or ended before the answer: what was asked may have been done."""

    reason = "upstream_lost"


async def expect_success(hop: Hop, response: ClientResponse) -> None:
    """Raises Refused for whatever is not 2xx."""
    if not 200 <= response.status < 300:
        raise Refused(hop.client, response, await _beginning(response), hop.limits.depth)


async def _beginning(response: ClientResponse) -> bytes:
    body = bytearray()
    with anyio.move_on_after(_REFUSAL):
        while len(body) < _BEGINNING and (part := await response.content.read(_BEGINNING - len(body))):
            body += part
    return bytes(body)


def _excerpt(text: str, kind: str) -> str:
    """A title and a sentence are worth quoting, a page's style is not."""
    if kind == "text/html":
        text = _MARKUP.sub(" ", text)
    return " ".join(text.split())[:_EXCERPT]


def media_type(response: ClientResponse) -> str:
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()


async def read_answer(
    hop: Hop, response: ClientResponse, asked: Request, take: Take, decoder: Decoder
) -> bool:
    """Give `take` what the answer to a request holds; whether the request's own answer was in it.

    Returns False only for a stream that ended too early. Raises Unusable; and Broken if it broke
    off, unless it has event ids and can be resumed.
    """
    if media_type(response) == EVENTS:
        return await _read_stream(hop, response, asked, take, decoder)
    body = await whole_body(response, hop.limits.line)
    if response.status == 202 or not body.strip():
        raise Unusable(f"The server took the request (HTTP {response.status}) but gave no answer")
    if not _take_all(hop, body, asked, take, sole=True):
        raise Unusable("The server's answer holds no response to the request")
    return True


async def whole_body(response: ClientResponse, limit: int) -> bytes:
    """Raises Unusable if it has more than `limit` bytes."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > limit:
            raise Unusable(f"The server's answer has more than {limit} bytes, the limit")
        parts.append(part)
    return b"".join(parts)


async def _read_stream(
    hop: Hop, response: ClientResponse, asked: Request, take: Take, decoder: Decoder
) -> bool:
    answered = False
    with anyio.CancelScope() as lingering:
        try:
            async for events in events_of(hop, response, decoder):
                for event in events:
                    if answered:
                        break  # the answer is the last that a stream has to say
                    if isinstance(event, Oversize):
                        raise Unusable(f"The server's answer has {event.size} bytes, over the limit")
                    if is_message(event) and _take_all(hop, event.data, asked, take, sole=False):
                        answered = True
                        lingering.deadline = anyio.current_time() + _LINGER
        except Broken:
            if not answered and not decoder.last_event_id:
                raise
    return answered


async def events_of(
    hop: Hop, response: ClientResponse, decoder: Decoder
) -> AsyncIterator[list[Event | Oversize]]:
    """The events of a stream, those of one read together. Raises Broken if it breaks off."""
    decoder.end()  # half an event may be left of the stream before
    try:
        async for data in response.content.iter_any():
            if found := decoder.feed(data):
                yield found
            await hop.readable()
    except (ClientError, OSError) as fault:
        raise Broken("The server's stream broke off") from fault


def pause(decoder: Decoder, fruitless: int) -> float:
    """Seconds to wait with the next connection, after so many in a row that brought nothing.

    It is what the server asked for with `retry`, else a second, and doubles from the second
    time on, up to half a minute (CL-11).
    """
    first = _FIRST_RETRY if decoder.retry is None else decoder.retry / 1000
    if fruitless <= 1:
        return first
    return max(first, min(_MOST_RETRY, max(first, _FIRST_RETRY) * 2.0 ** min(fruitless - 1, 9)))


def is_message(event: Event) -> bool:
    """Whether an event carries a message; one without data only moves the cursor."""
    return bool(event.data) and event.type == "message"


def _take_all(hop: Hop, payload: bytes, asked: Request, take: Take, *, sole: bool) -> bool:
    """Take one JSON text; whether it answers the request. Raises Unusable if it is no message."""
    found = read(payload, depth=hop.limits.depth)
    answered = False
    for message in found.members if isinstance(found, Batch) else (found,):
        if isinstance(message, Malformed):
            raise Unusable(f"The server's answer is no JSON-RPC message: {message.message}")
        if isinstance(message, Response):
            own = _own(message, asked, sole=sole)
            if own is None:
                log.warning("%s: dropped an answer with another request's id", hop.label)
                continue
            message, answered = own, True
        take(message)
    return answered


def _own(response: Response, asked: Request, *, sole: bool) -> Response | None:
    """A response as one to the request: the exchange tells whose an error is, not its id (G-20)."""
    if response.id == asked.id:
        return response
    if response.error is not UNSET and (sole or response.id is None):
        return response.with_id(asked.id)
    return None


def failure(message_id: Id, fault: ServerFault) -> Response:
    """The one answer to a request that met this failure: the server's own words, where it had any.

    A challenge is told by the bridge, since a server's error would not show it.
    """
    if isinstance(fault, Refused) and fault.said is not None and "wwwAuthenticate" not in fault.told:
        return fault.said if fault.said.id == message_id else fault.said.with_id(message_id)
    return error(message_id, INTERNAL_ERROR, str(fault), quote(_details(fault)))


def _details(fault: ServerFault) -> dict[str, object]:
    found: dict[str, object] = {"origin": "bridge", "reason": fault.reason}
    return found | {"httpStatus": fault.status, **fault.told} if isinstance(fault, Refused) else found


def fail(hop: Hop, asked: Request, fault: ServerFault) -> None:
    """Answer a request with the failure that it met."""
    log.info("%s: %s failed: %s", hop.label, asked.method, fault)
    hop.deliver(failure(asked.id, fault).raw, asked.id)
