"""Single HTTP requests to a server, right ones and wrong ones, and what their answers must be.

Decides which requirements on status and headers are tried, as tables of checks: each is one harmless
request, mostly a `ping` or a `server/discover`, with one thing wrong about it. Refuses to know when a
table is worth trying.

Answers basic/transports, Streamable HTTP, of 2025-11-25 (rows HL) and 2026-07-28 (rows HM).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import anyio
from aiohttp import ClientError, ClientResponse
from yarl import URL

from bridge.core.headers import HEADER_MISMATCH, METHOD, UNSUPPORTED_VERSION, VERSION, is_session_id
from bridge.core.message import METHOD_NOT_FOUND
from bridge.core.splice import quote
from bridge.core.sse import Decoder, Event
from bridge.doctor.conversation import MODERN, Silent, decoded, envelope
from bridge.doctor.report import Finding, Json, Level
from bridge.era.revisions import revision
from bridge.errors import ServerFault
from bridge.upstream.http_answer import EVENTS, LISTEN, POST, is_message, media_type
from bridge.upstream.http_client import HttpClient, Unreachable

SESSION_ID: Final = "Mcp-Session-Id"
MUST, SHOULD, ADVICE = Level.MUST, Level.SHOULD, Level.ADVICE

_BODY: Final = 1 << 20
_FOREIGN: Final = "doctor.invalid"
_NEVER: Final = "1999-01-01"
"""A revision that there will never be."""
_UNKNOWN: Final = "doctor/no-such-method"


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP answer; `body` is its beginning, or the answer in the stream that it is."""

    status: int
    headers: Mapping[str, str]
    kind: str
    body: bytes

    @property
    def result(self) -> Json | None:
        found = decoded(self.body).get("result")
        return found if isinstance(found, dict) else None

    @property
    def error(self) -> Json:
        found = decoded(self.body).get("error")
        return found if isinstance(found, dict) else {}

    @property
    def told(self) -> str:
        code = self.error.get("code")
        return f"HTTP {self.status}" if code is None else f"HTTP {self.status} with {code}"


class Web:
    """Sends one request after another."""

    def __init__(self, client: HttpClient) -> None:
        self.client = client

    async def send(
        self,
        method: str,
        headers: Mapping[str, str],
        body: Json | None,
        within: float,
        url: URL | None = None,
    ) -> Reply:
        """Raises Unreachable; Silent after `within` seconds."""
        data = None if body is None else quote({"jsonrpc": "2.0", **body})
        try:
            with anyio.fail_after(within):
                async with self.client.request(method, headers, data, url) as response:
                    found = await _beginning(response)
                    return Reply(response.status, response.headers, media_type(response), found)
        except TimeoutError:
            raise Silent(f"{self.client.label} does not answer within {within:.3g} s") from None


async def _beginning(response: ClientResponse) -> bytes:
    if media_type(response) != EVENTS:
        return await _bytes(response)
    return b"" if response.method == "GET" else await _answer(response)


async def _bytes(response: ClientResponse) -> bytes:
    body = bytearray()
    while len(body) < _BODY and (part := await response.content.read(_BODY - len(body))):
        body += part
    return bytes(body)


async def _answer(response: ClientResponse) -> bytes:
    """The first event that is an answer; nothing if there is none."""
    decoder = Decoder(_BODY)
    try:
        async for data in response.content.iter_any():
            for event in decoder.feed(data):
                if isinstance(event, Event) and is_message(event) and _answers(event.data):
                    return event.data
    except (ClientError, OSError) as fault:
        raise Unreachable("The server's stream broke off") from fault
    return b""


def _answers(data: bytes) -> bool:
    found = decoded(data)
    return "result" in found or "error" in found


# Checks


@dataclass(frozen=True, slots=True)
class Visit:
    """What the right requests of one era have in common."""

    headers: Mapping[str, str]
    body: Json
    session: bool = False
    """Whether the server gave a session id."""
    dated: bool = True
    """Whether the revision has the version header."""
    local: bool = False
    """Whether the server is on this machine, where a browser could be made to ask it for others."""
    sole: bool = False
    """Whether it speaks no other era."""


Met = Callable[[Reply], bool]


def is_status(*statuses: int) -> Met:
    return lambda reply: reply.status in statuses


def _refused_with(status: int, code: int) -> Met:
    return lambda reply: reply.status == status and reply.error.get("code") == code


def _listens_or_405(reply: Reply) -> bool:
    return reply.status == 405 or (reply.status == 200 and reply.kind == EVENTS)


def _always(_: Visit) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One request, which differs from a right one in `headers` (None takes one away) and `body`."""

    row: str
    level: Level
    text: str
    met: Met
    method: str = "POST"
    headers: Mapping[str, str | None] = field(default_factory=dict)
    body: Json | None = None
    when: Callable[[Visit], bool] = _always


def _in_session(visit: Visit) -> bool:
    return visit.session


_ORIGIN: Final[Mapping[str, str | None]] = {"Origin": f"https://{_FOREIGN}"}
PING: Final[Json] = {"id": 900, "method": "ping"}
INITIALIZED: Final[Json] = {"method": "notifications/initialized"}

LEGACY_CHECKS: Final = (
    Check(row="HL-6", level=MUST, text="202 for a notification", met=is_status(202), body=INITIALIZED),
    Check(row="HL-12", level=MUST, text="an event stream for GET, or 405", met=_listens_or_405,
        method="GET", headers={**LISTEN, "Content-Type": None}),
    Check(row="HL-18", level=SHOULD, text="400 for a request without its session id", met=is_status(400),
        headers={SESSION_ID: None}, when=_in_session),
    Check(row="HL-19", level=MUST, text="404 for an unknown session id", met=is_status(404),
        headers={SESSION_ID: "doctor-unknown-session"}, when=_in_session),
    Check(row="HL-21", level=MUST, text=f"400 for an unknown {VERSION}", met=is_status(400),
        headers={VERSION: _NEVER}, when=lambda visit: visit.dated),
    Check(row="HL-23", level=MUST, text="an unknown method is no 404", met=lambda reply: reply.status != 404,
        body={"id": 901, "method": _UNKNOWN}, when=_in_session),
    Check(row="HL-26", level=ADVICE, text="406 for an unfit Accept", met=is_status(406),
        headers={"Accept": "text/html"}),
    Check(row="HL-26", level=ADVICE, text="415 for an unfit Content-Type", met=is_status(415),
        headers={"Content-Type": "text/plain"}),
    Check(row="HL-3", level=MUST, text="403 for a foreign Origin", met=is_status(403), headers=_ORIGIN),
    Check(row="HL-2", level=ADVICE, text="a foreign Host is refused", met=lambda reply: reply.status >= 400,
        headers={"Host": _FOREIGN}, when=lambda visit: visit.local),
)  # fmt: skip


def _discover(version: str = MODERN) -> Json:
    return {"id": 910, "method": "server/discover", "params": {"_meta": envelope(version)}}


MODERN_VISIT: Final = Visit({**POST, VERSION: MODERN, METHOD: "server/discover"}, _discover())

MODERN_CHECKS: Final = (
    Check(row="HM-4", level=MUST, text="202 for a notification", met=is_status(202),
        headers={METHOD: "notifications/cancelled"},
        body={"method": "notifications/cancelled",
            "params": {"requestId": "doctor-never-sent", "_meta": envelope()}}),
    Check(row="HM-11", level=MUST, text=f"400 with {HEADER_MISMATCH} without {METHOD}",
        met=_refused_with(400, HEADER_MISMATCH), headers={METHOD: None}),
    Check(row="HM-11", level=MUST, text=f"400 with {HEADER_MISMATCH} for another {METHOD} than the body's",
        met=_refused_with(400, HEADER_MISMATCH), headers={METHOD: "tools/list"}),
    Check(row="HM-11", level=MUST, text=f"400 with {HEADER_MISMATCH} for another {VERSION} than the body's",
        met=_refused_with(400, HEADER_MISMATCH), headers={VERSION: "2025-11-25"}),
    Check(row="HM-12", level=MUST, text=f"400 with {UNSUPPORTED_VERSION} for an unknown revision",
        met=_refused_with(400, UNSUPPORTED_VERSION), headers={VERSION: _NEVER}, body=_discover(_NEVER)),
    Check(row="HM-13", level=MUST, text=f"404 with {METHOD_NOT_FOUND} for an unknown method",
        met=_refused_with(404, METHOD_NOT_FOUND), headers={METHOD: _UNKNOWN},
        body={**_discover(), "method": _UNKNOWN}),
    Check(row="HM-15", level=SHOULD, text="405 for GET", met=is_status(405), method="GET",
        headers={**LISTEN, "Content-Type": None, METHOD: None}, when=lambda visit: visit.sole),
    Check(row="HM-2", level=MUST, text="403 for a foreign Origin", met=is_status(403), headers=_ORIGIN),
    Check(row="HM-2", level=ADVICE, text="a foreign Host is refused", met=lambda reply: reply.status >= 400,
        headers={"Host": _FOREIGN}, when=lambda visit: visit.local),
)  # fmt: skip

SSE_CHECKS: Final = (
    Check(row="ES-4", level=MUST, text="403 for a foreign Origin", met=is_status(403), method="GET",
        headers=_ORIGIN),
)  # fmt: skip


async def tried(web: Web, check: Check, visit: Visit, within: float) -> Finding:
    """Send what a check says, and find."""
    sent = {name: value for name, value in {**visit.headers, **check.headers}.items() if value is not None}
    body = None if check.method != "POST" else check.body or visit.body
    try:
        reply = await web.send(check.method, sent, body, within)
    except ServerFault as fault:
        return Finding(check.row, check.level, False, f"{check.text}: {fault}")
    if check.met(reply):
        return Finding(check.row, check.level, True, check.text)
    return Finding(check.row, check.level, False, f"{check.text}: got {reply.told}")


def opened(reply: Reply, *, local: bool) -> Visit:
    """The session that an answer to `initialize` opened."""
    version = (reply.result or {}).get("protocolVersion")
    session = reply.headers.get(SESSION_ID)
    row = revision(version) if isinstance(version, str) else None
    headers = dict(POST)
    if session is not None:
        headers[SESSION_ID] = session
    if isinstance(version, str) and row is not None and row.version_header:
        headers[VERSION] = version
    return Visit(headers, PING, session is not None, VERSION in headers, local)


def session_grammar(visit: Visit) -> Finding:
    ok = is_session_id(visit.headers[SESSION_ID])
    return Finding("HL-17", MUST, ok, "the session id is of visible ASCII")
