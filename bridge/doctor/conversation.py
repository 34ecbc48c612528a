"""A talk with one server, whatever its transport, and what is asked in it.

Decides which questions are harmless and how a server of either era is surveyed with them. `Question`
is the closed list of what is ever asked: no tool is called, no prompt got, no resource read. Refuses
to know how the server is reached.

Answers basic/lifecycle (legacy, `initialize`) and basic/versioning (2026-07-28, `server/discover`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, cast

import anyio
import msgspec
from msgspec import UNSET, Raw

from bridge import __version__
from bridge.core.lines import Overlong
from bridge.core.message import (
    METHOD_NOT_FOUND,
    Batch,
    Id,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    error,
    notification,
    read,
    request,
    result,
)
from bridge.core.splice import quote
from bridge.doctor.report import Json, Latency, excerpt
from bridge.era.revisions import LATEST_LEGACY, MODERN_VERSIONS
from bridge.errors import ServerFault
from bridge.upstream.base import Source, Upstream
from bridge.upstream.process import readable

Question = Literal["initialize", "server/discover", "ping", "tools/list", "prompts/list", "resources/list"]
PREFIX: Final = "io.modelcontextprotocol/"
CLIENT: Final = {"name": "mcp-bridge doctor", "version": __version__}
MODERN: Final = MODERN_VERSIONS[-1]
DEPTH: Final = 128

_LISTS: Final[dict[str, Question]] = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
}
_PAGES: Final = 100
_CALLS: Final = 20
_NOISE: Final = 100
"""Lines that are counted; more say no more."""


class Silent(ServerFault):
    """No answer came in time."""

    reason = "upstream_timeout"


class Declined(ServerFault):
    """The server answered with a JSON-RPC error."""

    reason = "upstream_declined"

    def __init__(self, method: str, code: object, message: object) -> None:
        self.code = code
        super().__init__(f"it answers {method} with the error {code}: {excerpt(str(message))}")


# Eras


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an era opens a conversation, and what it asks to see whether the other is awake."""

    era: Literal["legacy", "modern"]
    opening: Question
    harmless: Question

    def params(self, **given: object) -> Json:
        return given if self is LEGACY else {**given, "_meta": envelope()}


LEGACY: Final = Dialect("legacy", "initialize", "ping")
MODERN_DIALECT: Final = Dialect("modern", "server/discover", "server/discover")


def envelope(revision: str = MODERN) -> Json:
    return {
        f"{PREFIX}protocolVersion": revision,
        f"{PREFIX}clientInfo": CLIENT,
        f"{PREFIX}clientCapabilities": {},
    }


def initialize(revision: str = LATEST_LEGACY) -> Json:
    return {"protocolVersion": revision, "capabilities": {}, "clientInfo": CLIENT}


# Talking


class Conversation:
    """A `Receiver`: one question at a time, each answered within so many seconds.

    `noise` is what came that is no message; requests of the server's are refused, pings answered.
    """

    def __init__(self) -> None:
        self.noise: list[str] = []
        self.upstream: Upstream | None = None
        self._fault: ServerFault | None = None
        self._number = 0
        self._waiting: dict[Id, asyncio.Future[Response]] = {}

    async def ask(self, method: Question, params: Json, within: float) -> Json:
        """The result. Raises Silent, Declined, or the fault by which the server was lost."""
        if self._fault is not None:
            raise self._fault
        self._number += 1
        asked = request(self._number, method, quote(params))
        self._waiting[asked.id] = answer = asyncio.get_running_loop().create_future()
        try:
            with anyio.fail_after(within):
                self._send(asked)
                return _result(method, await answer)
        except TimeoutError:
            raise Silent(f"it does not answer {method} within {within:.3g} s") from None
        finally:
            del self._waiting[asked.id]

    def tell(self, method: str) -> None:
        self._send(notification(method))

    def received(self, lines: list[bytes | Overlong], on: Id | None = None) -> None:
        for line in lines:
            if not isinstance(line, Overlong):
                self._hear(line)

    def lost(self, fault: ServerFault) -> None:
        self._fault = fault
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(fault)

    def _hear(self, line: bytes) -> None:
        found = read(line, depth=DEPTH)
        for message in found.members if isinstance(found, Batch) else (found,):
            match message:
                case Malformed():
                    self._overhear(line)
                case Response(id=int() | str() as number) if number in self._waiting:
                    if not self._waiting[number].done():
                        self._waiting[number].set_result(message)
                case Request():
                    self._send(_reaction(message))
                case Notification() | Response():
                    pass

    def _overhear(self, line: bytes) -> None:
        if len(self.noise) < _NOISE:
            self.noise.append(readable(line, 200))

    def _send(self, message: Message) -> None:
        if self.upstream is not None:
            self.upstream.send(message.raw)


def _reaction(asked: Request) -> Response:
    if asked.method == "ping":
        return result(asked.id, b"{}")
    return error(asked.id, METHOD_NOT_FOUND, "Method not found")


def _result(method: str, answer: Response) -> Json:
    if answer.error is not UNSET:
        found = decoded(answer.error)
        raise Declined(method, found.get("code"), found.get("message"))
    return decoded(answer.result)


def decoded(text: Raw | bytes | msgspec.UnsetType) -> Json:
    """A JSON object; an empty one for whatever is none."""
    try:
        found = None if text is UNSET else msgspec.json.decode(text)
    except msgspec.DecodeError:
        found = None
    return cast("Json", found) if isinstance(found, dict) else {}


@asynccontextmanager
async def conversation(source: Source) -> AsyncIterator[Conversation]:
    """A conversation with an upstream of its own, closed at the end. Raises ServerFault."""
    talk = Conversation()
    talk.upstream = await source.open(talk)
    try:
        yield talk
    finally:
        with anyio.CancelScope(shield=True):
            await talk.upstream.close()


# Surveying


@dataclass(slots=True)
class Survey:
    """What a server says of itself. `unlisted` are the lists that it announces and does not give."""

    revisions: tuple[str, ...]
    identity: Json | None
    capabilities: Json
    counts: dict[str, int] = field(default_factory=dict)
    unlisted: dict[str, str] = field(default_factory=dict)

    @property
    def works(self) -> bool:
        return bool(self.counts) or not self.unlisted


async def survey(talk: Conversation, dialect: Dialect, opening: float, each: float) -> Survey:
    """Open the conversation and count what there is. Raises ServerFault if it does not open."""
    params = initialize() if dialect is LEGACY else dialect.params()
    found = _introduced(await talk.ask(dialect.opening, params, opening), dialect)
    if dialect is LEGACY:
        talk.tell("notifications/initialized")
    for kind, method in _LISTS.items():
        if kind in found.capabilities:
            try:
                found.counts[kind] = await _count(talk, dialect, method, kind, each)
            except ServerFault as fault:
                found.unlisted[kind] = str(fault)
    return found


def _introduced(opened: Json, dialect: Dialect) -> Survey:
    """Raises ServerFault for an answer that names no revision we know of the era."""
    if dialect is LEGACY:
        said, identity = [opened.get("protocolVersion")], opened.get("serverInfo")
    else:
        versions = opened.get("supportedVersions")
        said = versions if isinstance(versions, list) else []
        identity = _object(opened.get("_meta")).get(f"{PREFIX}serverInfo")
    revisions = tuple(one for one in said if isinstance(one, str))
    if not revisions:
        raise ServerFault(f"its answer to {dialect.opening} names no protocol version")
    return Survey(revisions, _object(identity) or None, _object(opened.get("capabilities")))


def _object(value: object) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


async def _count(talk: Conversation, dialect: Dialect, method: Question, kind: str, each: float) -> int:
    """Over all pages. Raises ServerFault."""
    count, cursor = 0, None
    for _ in range(_PAGES):
        page = await talk.ask(method, dialect.params(**({} if cursor is None else {"cursor": cursor})), each)
        entries = page.get(kind)
        if not isinstance(entries, list):
            raise ServerFault(f"its answer to {method} holds no list of {kind}")
        count += len(entries)
        following = page.get("nextCursor")
        if not isinstance(following, str) or following == cursor:
            break
        cursor = following
    return count


async def latency(talk: Conversation, dialect: Dialect, within: float) -> Latency | None:
    """Of a harmless call, as often as there is time for; None if it fails at once."""
    took: list[float] = []
    deadline = time.monotonic() + within
    try:
        while len(took) < _CALLS and (left := deadline - time.monotonic()) > 0:
            began = time.perf_counter()
            await talk.ask(dialect.harmless, dialect.params(), left)
            took.append((time.perf_counter() - began) * 1000)
    except ServerFault:
        pass  # what was measured until then counts
    if not took:
        return None
    took.sort()
    p50, p90, p99 = (round(took[_rank(share, len(took))], 3) for share in (0.5, 0.9, 0.99))
    return Latency(p50, p90, p99, len(took), dialect.harmless)


def _rank(share: float, count: int) -> int:
    """The nearest rank, from 0."""
    return min(count - 1, max(0, -int(-share * count // 1) - 1))


async def negotiate(talk: Conversation, revision: str, within: float) -> str | None:
    """What an offer of `revision` is answered with. Raises ServerFault."""
    version = (await talk.ask("initialize", initialize(revision), within)).get("protocolVersion")
    return version if isinstance(version, str) else None
