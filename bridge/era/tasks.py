"""Tools of a legacy server that must or may be called as tasks (2025-11-25 "Tasks").

Decides how a tool is called, and waits for the task in the place of a client that sees none. What
clients that know the tasks extension are shown instead is the matter of `era.mapped_tasks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import partial
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from bridge.core.events import Asked, Event, Exchange
from bridge.core.message import Response, result, task_of
from bridge.core.splice import Members, elements, joined, members, quote, replaced
from bridge.era.own import Done, Own
from bridge.era.questions import RELATED_TASK

CALL: Final = "tools/call"
LIST: Final = "tools/list"
GET: Final = "tasks/get"
RESULT: Final = "tasks/result"
CANCEL: Final = "tasks/cancel"

_PAGES: Final = 100
"""Pages of `tools/list` that are asked for before what is known has to do."""
_TOOLS: Final = 10_000
"""Tools remembered."""
_PATIENCE: Final = 10.0
"""Seconds for a server to give one page of its tools, or to take a cancellation."""

Events = Iterable[Event]
C = TypeVar("C")


class Support(StrEnum):
    """Whether a tool is called as a task, as its `execution.taskSupport` says."""

    FORBIDDEN = "forbidden"
    OPTIONAL = "optional"
    REQUIRED = "required"


class _Requests(msgspec.Struct):
    tools: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


class Offer(msgspec.Struct):
    """A server's capability `tasks`; nothing of it if it has none, or one that cannot be read."""

    cancel: msgspec.Raw | UnsetType = UNSET
    requests: _Requests = msgspec.field(default_factory=_Requests)

    @classmethod
    def read(cls, capabilities: Members) -> Offer:
        try:
            return msgspec.json.decode(capabilities.get("tasks", b"{}"), type=cls)
        except msgspec.DecodeError:
            return cls()

    @property
    def calls(self) -> bool:
        return "call" in self.requests.tools


class Tools:
    """Which tools of one server are called as tasks, as far as its lists were seen.

        tools.learn(result)                      # each result of tools/list that comes by
        tools.forget()                           # notifications/tools/list_changed
        tools.before(name, go)                   # asks for the lists, if they are needed, then goes
        tools.support(name)                      # from within `go`

    A server that makes no tasks of calls is asked for nothing.
    """

    def __init__(self, own: Own, offer: Offer) -> None:
        self._own, self._offer = own, offer
        self._known: dict[str, Support] = {}
        self._complete = not offer.calls
        self._seen: set[bytes] = set()
        """Cursors of the lists that are being asked for."""
        self._held: list[Callable[[], Events]] | None = None
        """What waits for the lists."""

    def support(self, name: str) -> Support:
        return self._known.get(name, Support.FORBIDDEN)

    def before(self, name: str, go: Callable[[], Events]) -> Events:
        """What leads to `go`, once it is known how this tool is called or cannot be found out."""
        if self._complete or name in self._known:
            return go()
        if self._held is not None:
            self._held.append(go)
            return ()
        self._held, self._seen = [go], set()
        return (self._ask(None),)

    def learn(self, listed: bytes) -> None:
        """Take in one result of `tools/list`; one that cannot be read teaches nothing."""
        if not self._offer.calls:
            return
        try:
            found = elements(members(listed).get("tools", b""))
        except ValueError:
            return
        for tool in found[: _TOOLS - len(self._known)]:
            self._put(tool)

    def _put(self, text: msgspec.Raw) -> None:
        try:
            tool = members(text)
            name = msgspec.json.decode(tool.get("name", b""), type=str)
        except (ValueError, msgspec.DecodeError):
            return
        self._known[name] = _support(tool)

    def forget(self) -> None:
        self._known.clear()
        self._complete = not self._offer.calls

    def _ask(self, cursor: bytes | None) -> Event:
        params = None if cursor is None else joined([("cursor", cursor)])
        return self._own.ask(LIST, params, self._listed, within=_PATIENCE)

    def _listed(self, response: Response) -> Events:
        following = None
        if response.result is not UNSET:
            self.learn(bytes(response.result))
            following = _next(response.result)
        if following is None or following in self._seen or len(self._seen) >= _PAGES:
            return self._settle()
        self._seen.add(following)
        return (self._ask(following),)

    def _settle(self) -> Events:
        self._complete = True
        held, self._held = self._held or [], None
        return [event for go in held for event in go()]

    def lost(self) -> None:
        """The server is gone, and with it whoever waits for its lists."""
        self._held = None


def _support(tool: Members) -> Support:
    try:
        execution = members(tool.get("execution", b"{}"))
        return msgspec.json.decode(execution.get("taskSupport", b""), type=Support)
    except (ValueError, msgspec.DecodeError):
        return Support.FORBIDDEN


def _next(listed: msgspec.Raw) -> bytes | None:
    """The next cursor, as JSON text."""
    try:
        cursor = bytes(members(listed).get("nextCursor", b""))
    except ValueError:
        return None
    return cursor if cursor.startswith(b'"') else None


class _Work(Generic[C]):
    """One call that is a task, or is to become one."""

    __slots__ = ("done", "exchange", "id", "wait")

    def __init__(self, done: Done, *, wait: bool) -> None:
        self.done: Done | None = done
        """None once the call was cancelled."""
        self.wait = wait
        self.id = ""
        """Of the task, once it was made."""
        self.exchange: Exchange | None = None
        """What the server was asked for last for its sake."""


class HiddenTasks(Generic[C]):
    """Calls made as tasks for clients that are not to notice; `C` is whatever stands for a call.

    A call is sent by `begin` instead of `own.ask`, and its `done` gets the answer that it would have
    had without a task. `moved` is told when the server is asked for it by another request.

        sent = hidden.begin(call, params, partial(self._answered, call))
        self._works_at(call, sent.exchange)

        hidden.cancel(call)        # what cancels it; None if it was not sent by `begin`
        hidden.call_of(task_id)    # whose a message with this related task is
        hidden.lost()              # with the server
    """

    def __init__(self, own: Own, offer: Offer, moved: Callable[[C, Exchange], object]) -> None:
        self._own, self._offer, self._moved = own, offer, moved
        self._work: dict[C, _Work[C]] = {}
        self._calls: dict[str, C] = {}

    def begin(self, call: C, params: bytes | None, done: Done, *, wait: bool = True) -> Asked:
        """Call a tool as a task. Without `wait` what tells that the task was made is the answer.

        Raises ValueError if `params` is no object.
        """
        work: _Work[C] = _Work(done, wait=wait)
        augmented = replaced(params or b"{}", ("task",), b"{}")
        asked = self._own.ask(CALL, augmented, partial(self._created, call, work))
        work.exchange = asked.exchange
        self._work[call] = work
        return asked

    def _created(self, call: C, work: _Work[C], response: Response) -> Events:
        """A task was made, or there is an answer already, since nothing obliges a server to make one."""
        work.id = task_of(response.result, created=True).id
        if work.done is None:
            return self._cancel_task(work) if work.id else ()
        if not work.id or not work.wait:
            return self._end(call, work, response)
        self._calls[work.id] = call
        asked = self._own.ask(RESULT, _of(work.id), lambda ended: self._end(call, work, plain(ended)))
        work.exchange = asked.exchange
        self._moved(call, asked.exchange)
        return (asked,)

    def _end(self, call: C, work: _Work[C], response: Response) -> Events:
        if self._work.get(call) is not work or work.done is None:
            return ()
        self._forget(call)
        return work.done(response)

    def _forget(self, call: C) -> _Work[C] | None:
        work = self._work.pop(call, None)
        if work is not None:
            self._calls.pop(work.id, None)
        return work

    def cancel(self, call: C) -> Events | None:
        """What cancels a call; None if it was not sent as a task, so that it is cancelled like any other.

        A task is cancelled by its id alone, so what is not known to be one yet is let become one.
        """
        work = self._forget(call)
        if work is None:
            return None
        work.done = None
        return self._cancel_task(work) if work.id else ()

    def _cancel_task(self, work: _Work[C]) -> Events:
        """Its end comes as an answer to what waits for it, or is not waited for any longer."""
        exchange, withdraw = work.exchange, self._own.withdraw
        assert exchange is not None
        return cancelled(self._own, self._offer, work.id, lambda _: withdraw(exchange))

    def call_of(self, task: str) -> C | None:
        return self._calls.get(task)

    def lost(self) -> None:
        """The server is gone; whoever waits has been told, or is told by somebody else."""
        self._work.clear()
        self._calls.clear()


def cancelled(own: Own, offer: Offer, task: str, done: Done) -> Events:
    """What cancels a task, and then `done`; that at once where the server takes no cancellation."""
    if offer.cancel is UNSET:
        return done(result("", b"{}"))
    return (own.ask(CANCEL, _of(task), done, within=_PATIENCE),)


def _of(task: str) -> bytes:
    return b'{"taskId":%b}' % quote(task)


def plain(response: Response) -> Response:
    """An answer that does not tell that it is a task's."""
    return response if response.result is UNSET else response.with_result(unrelated(bytes(response.result)))


def unrelated(value: bytes) -> bytes:
    """A result without the related task; as it is, if it is no object or has none."""
    if RELATED_TASK.encode() not in value and b"\\u" not in value:
        return value
    try:
        parts = members(value)
        meta = members(parts.get("_meta", b"{}"))
    except ValueError:
        return value
    if meta.pop(RELATED_TASK, None) is None:
        return value
    if meta:
        parts["_meta"] = joined(meta.items())
    else:
        del parts["_meta"]
    return joined(parts.items())
