"""A modern server's task, waited for in the place of a legacy client that knows nothing of tasks.

Decides when the task is looked at, what of its questions the client is asked, and what its end
comes to as the answer of the call. Asks the client nothing itself (`asking`), and does not know
what a legacy client can read. Specification: the extension `io.modelcontextprotocol/tasks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec import UNSET

from bridge.core.correlate import PROGRESS
from bridge.core.events import Event, Exchange
from bridge.core.layer import Clock, Layer, Timer
from bridge.core.message import Notification, Response, local_error, notification, result
from bridge.core.splice import Members, joined, members, quote, replaced
from bridge.era.asking import Answers, Asking, Refused, entries
from bridge.era.origin import is_own
from bridge.era.own import Own
from bridge.era.rounds import abandoned
from bridge.era.terms import Terms

_SHORTEST: Final = 0.1
"""Seconds between two looks, however little the server asks for."""
_MOST_FAILURES: Final = 3
"""Looks in a row that may come to nothing on their way."""


class Drive:
    """Waits for the task that the call of `exchange` became, from `begin` until `answer` is called.

    `stamp` makes the params of a request to the server, which must say that the client knows the
    extension. `answer` gets the result that the call would have had, or its error; `told` what is
    to be told the client meanwhile. `asking` is the call's own, and left to be withdrawn by it.

        drive = Drive(exchange, own, asking, clock, layer, terms, stamp=…, told=…, answer=…)
        yield from drive.begin(text_of_the_result_of_type_task)
        yield from drive.withdraw()      # the client gave up
        drive.close()                    # the server is gone
    """

    def __init__(
        self,
        exchange: Exchange,
        own: Own,
        asking: Asking,
        clock: Clock,
        layer: Layer,
        terms: Terms,
        *,
        stamp: Callable[[bytes], bytes],
        told: Callable[[Notification], Iterable[Event]],
        answer: Callable[[Response], Iterable[Event]],
    ) -> None:
        self._exchange, self._own, self._asking = exchange, own, asking
        self._clock, self._layer, self._terms = clock, layer, terms
        self._stamp, self._told, self._answer = stamp, told, answer
        self._id = ""
        self._look: Exchange | None = None
        """The `tasks/get` that is on its way."""
        self._update: Exchange | None = None
        """The `tasks/update` that is."""
        self._timer: Timer | None = None
        self._looks = self._failures = 0
        self._message = b""
        self._interval = terms.task_poll
        self._asked: set[str] = set()
        """Keys of the questions that were ever put to the client."""
        self._waits = False
        """Whether the client is being asked."""
        self._answers: dict[str, bytes] = {}
        """What the client said, until the server has it."""
        self._over = False

    def begin(self, created: bytes) -> Iterable[Event]:
        """Wait for the task that a CreateTaskResult tells of. Raises ValueError if it tells of none."""
        parts = members(created)
        self._id = _text(parts, "taskId") or ""
        if not self._id:
            raise ValueError("it names no task")
        told = self._progressed(parts)
        return [*told, *(self._pause(parts) if _text(parts, "status") == "working" else self._poll())]

    def withdraw(self) -> Iterable[Event]:
        """The client gave up: the task is cancelled; nothing is answered."""
        events = self.close()
        return events if not self._id else [*events, self._request("tasks/cancel", [], lambda _: ())]

    def close(self) -> list[Event]:
        """Look no more; what takes the requests on their way back, should the server be there."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        waiting = [one for one in (self._look, self._update) if one is not None]
        self._look = self._update = None
        return [event for one in waiting for event in self._own.withdraw(one)]

    def _end(self, response: Response) -> list[Event]:
        events = self.close()
        return [*events, *self._answer(response)]

    def _give_up(self, response: Response) -> list[Event]:
        """It is over for the client, if not for the server."""
        events = self.withdraw()
        return [*events, *self._answer(response)]

    # Looking

    def _request(
        self, method: str, parts: list[tuple[str, bytes]], done: Callable[[Response], Iterable[Event]]
    ) -> Event:
        params = joined([("taskId", quote(self._id)), *parts])
        asked = self._own.ask(method, self._stamp(params), done)
        if method == "tasks/get":
            self._look = asked.exchange
        elif method == "tasks/update":
            self._update = asked.exchange
        return asked

    def _pause(self, parts: Members) -> list[Event]:
        self._interval = _seconds(parts, self._terms.task_poll)
        return self._wait()

    def _wait(self) -> list[Event]:
        self._timer = self._clock.after(self._interval, self._layer, self._poll)
        return []

    def _poll(self) -> list[Event]:
        return [self._request("tasks/get", [], self._looked)]

    def _looked(self, response: Response) -> Iterable[Event]:
        self._look = None
        if response.result is UNSET:
            return self._failed(response)
        try:
            parts = members(response.result)
            self._failures = 0
            return [*self._progressed(parts), *self._seen(parts, _text(parts, "status") or "none")]
        except ValueError as fault:
            text = f"The server's task cannot be waited for: {fault}"
            return self._give_up(local_error(self._exchange.id, text, "invalid_result_type"))

    def _failed(self, response: Response) -> Iterable[Event]:
        """A look that was lost on its way says nothing of the task."""
        self._failures += 1
        if is_own(response) and self._failures < _MOST_FAILURES:
            return self._wait()
        return self._end(response)

    def _seen(self, parts: Members, status: str) -> Iterable[Event]:
        match status:
            case "working":
                return self._pause(parts)
            case "input_required":
                return self._required(parts)
            case "completed":
                value = replaced(bytes(parts.get("result", b"")), ("resultType",), None)
                return self._end(result(self._exchange.id, value))
            case "failed":
                return self._end(self._fault(bytes(parts.get("error", b""))))
            case "cancelled":
                text = _text(parts, "statusMessage") or "The server cancelled its task"
                return self._end(local_error(self._exchange.id, text, "task_cancelled"))
            case _:
                raise ValueError(f"it is of the status {status!r}")

    def _fault(self, value: bytes) -> Response:
        """The error that the call came to. Raises ValueError if it is none."""
        if not {"code", "message"} <= members(value).keys():
            raise ValueError("it failed without an error")
        raw = b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (quote(self._exchange.id), value)
        return Response(raw, self._exchange.id, error=msgspec.Raw(value))

    def _progressed(self, parts: Members) -> Iterable[Event]:
        """What a new status message is to a client that wants to know; a legacy one has no better word."""
        self._looks += 1
        message, before = bytes(parts.get("statusMessage", b"")), self._message
        self._message = message
        if self._exchange.token is UNSET or message == before or not message.startswith(b'"'):
            return ()
        token = quote(self._exchange.token)
        params = b'{"progressToken":%b,"progress":%d,"message":%b}' % (token, self._looks, message)
        return self._told(notification(PROGRESS, params))

    # Asking

    def _required(self, parts: Members) -> list[Event]:
        wanted = entries(bytes(parts.get("inputRequests", b"{}")))
        events = self._pause(parts)
        events += self._send({entry.key for entry in wanted})
        fresh = [entry for entry in wanted if entry.key not in self._asked]
        if fresh and not self._waits:
            self._waits = True
            self._asked.update(entry.key for entry in fresh)
            events += self._asking.put(fresh, self._heard)
        return events

    def _heard(self, outcome: Answers | Refused) -> Iterable[Event]:
        self._waits = False
        if self._over:
            return ()
        if isinstance(outcome, Refused):
            return self._give_up(abandoned(self._exchange, outcome))
        self._answers.update(outcome)
        return self._send(set(outcome))

    def _send(self, keys: set[str]) -> list[Event]:
        """Tell the server what the client said to these; what it did not take is told again."""
        said = {key: value for key, value in self._answers.items() if key in keys}
        if not said or self._update is not None:
            return []

        def taken(response: Response) -> Iterable[Event]:
            self._update = None
            if response.result is not UNSET:
                for key in said:
                    del self._answers[key]
            return ()

        return [self._request("tasks/update", [("inputResponses", joined(said.items()))], taken)]


def _seconds(parts: Members, default: float) -> float:
    try:
        wanted = msgspec.json.decode(parts.get("pollIntervalMs", b""), type=float) / 1000
    except msgspec.DecodeError:
        wanted = default
    return max(_SHORTEST, wanted)


def _text(parts: Members, name: str) -> str | None:
    """The string member of this name, if there is one."""
    try:
        return msgspec.json.decode(parts.get(name, b""), type=str)
    except msgspec.DecodeError:
        return None
