"""What an operator may learn of each request: the contract between those who serve and those who watch.

One `Entry` for every JSON-RPC request that a client sent and the bridge could read, opened when it
came and closed once, with its outcome, whatever became of it. Who serves opens and closes; who
watches (metrics, the audit log, traces, the recorder) only looks. With nobody watching there are
no entries, and a message costs nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Protocol

import msgspec
from msgspec import UNSET

from bridge.core.message import Request, Response, read
from bridge.core.trace import Context


_DEPTH: Final = 128
_REFUSALS: Final = frozenset({"policy", "caller_starts"})
"""Reasons found out only after a request was let in."""


class Outcome(StrEnum):
    RESULT = "result"
    """Answered with a result."""
    ERROR = "error"
    """Answered with an error of the server."""
    FAULT = "fault"
    """Answered with an error of the bridge's own: the server was lost, late, or could not be had."""
    REFUSED = "refused"
    """Answered by the bridge before it went anywhere: malformed, not allowed, too much, no such session."""
    PASSED = "passed"
    """Passed on to the replica that holds what it is about, which has an entry of its own."""
    CANCELLED = "cancelled"
    """Withdrawn by the client, or its connection or session ended, before an answer."""


class Entry:
    """One request. Times are seconds: `began` on the monotonic clock, `at` since the epoch."""

    __slots__ = (
        "_watchers",
        "answer",
        "at",
        "began",
        "caller",
        "code",
        "era",
        "id",
        "method",
        "outcome",
        "reason",
        "request",
        "seconds",
        "sent",
        "server",
        "session",
        "size",
        "spans",
        "trace",
        "translated",
        "transport",
    )  # fmt: skip

    def __init__(
        self,
        watchers: Sequence[Watcher],
        request: Request,
        *,
        server: str,
        transport: str,
        era: str,
        caller: str,
        session: str = "",
        trace: Context = (),
    ) -> None:
        self._watchers = watchers
        self.request = request
        self.id, self.method = request.id, request.method
        self.size = len(request.raw)
        """Bytes of the request."""
        self.server = server
        self.transport = transport
        """Of the client: `http`, `sse` or `stdio`."""
        self.era = era
        """Of the client: `legacy` or `modern`."""
        self.caller = caller
        self.session = session
        """The whole id of its legacy session, if it has one; not to be shown."""
        self.translated = False
        """Whether its server speaks the other era."""
        self.trace = trace
        """The trace context of its HTTP headers."""
        self.sent = False
        """Whether it went on to a server, or to wait for one."""
        self.at, self.began = time.time(), time.monotonic()
        self.seconds = 0.0
        self.outcome: Outcome | None = None
        self.code: int | None = None
        """The JSON-RPC error code it was answered with."""
        self.reason = ""
        """Why, if the bridge itself answered with an error: `error.data.reason`."""
        self.answer: Response | None = None
        self.spans: object = None
        """Whatever a tracer wants to find again."""
        for watcher in watchers:
            watcher.opened(self)

    def answered(self, response: Response, *, refused: bool = False) -> None:
        """It got this answer; `refused` if it never went to a server."""
        if self.outcome is not None:
            return
        self.answer = response
        if response.error is UNSET:
            self._close(Outcome.RESULT)
            return
        error = _read(response.error)
        self.code = error.code
        if error.data.origin == "bridge":
            self.reason = error.data.reason
        if refused or self.reason in _REFUSALS:
            self._close(Outcome.REFUSED)
        else:
            self._close(Outcome.FAULT if self.reason else Outcome.ERROR)

    def turned_away(self, answer: bytes) -> None:
        """It got this answer, a JSON text, without having gone anywhere."""
        if self.outcome is None:
            found = read(answer, depth=_DEPTH)
            if isinstance(found, Response):
                self.answered(found, refused=True)
            else:
                self._close(Outcome.REFUSED)

    def refused(self, reason: str, code: int | None = None) -> None:
        """It was answered by the bridge at once."""
        if self.outcome is None:
            self.reason, self.code = reason, code
            self._close(Outcome.REFUSED)

    def goes_to(self, era: str) -> None:
        """Its server speaks this era; said again, if another server takes it over."""
        self.translated = era != self.era

    def passed_on(self) -> None:
        """Another replica answers it."""
        if self.outcome is None:
            self._close(Outcome.PASSED)

    def cancelled(self) -> None:
        """There will be no answer; nothing if there was one."""
        if self.outcome is None:
            self._close(Outcome.CANCELLED)

    def _close(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.seconds = time.monotonic() - self.began
        for watcher in self._watchers:
            watcher.closed(self)


class Watcher(Protocol):
    """Must not block and must not raise; called from the event loop."""

    def opened(self, entry: Entry) -> None: ...

    def closed(self, entry: Entry) -> None: ...


class _Data(msgspec.Struct, frozen=True):
    origin: str = ""
    reason: str = ""


class _Error(msgspec.Struct):
    code: int = 0
    data: _Data = _Data()


class _CodeOnly(msgspec.Struct):
    code: int = 0


def _read(error: msgspec.Raw) -> _Error:
    try:
        return msgspec.json.decode(error, type=_Error)
    except msgspec.DecodeError:
        pass
    try:
        return _Error(code=msgspec.json.decode(error, type=_CodeOnly).code)
    except msgspec.DecodeError:
        return _Error()


class _Named(msgspec.Struct):
    name: str = ""
    uri: str = ""


_NAMED_BY = {"tools/call": "name", "prompts/get": "name"} | dict.fromkeys(
    ("resources/read", "resources/subscribe", "resources/unsubscribe"), "uri"
)


def name_of(request: Request) -> str:
    """The tool, prompt or resource that a request is about; empty if it is about none."""
    member = _NAMED_BY.get(request.method)
    if member is None or request.params is UNSET:
        return ""
    try:
        found: str = getattr(msgspec.json.decode(request.params, type=_Named), member)
    except msgspec.DecodeError:
        return ""
    return found
