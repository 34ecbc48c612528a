"""A recording run again, on a server of one's choice, and what came out otherwise: `mcp-bridge replay`.

The recorded clients speak again, in the recorded order, each through a bridge of its own; only legacy
ones are told apart, since modern requests stand for themselves. A request is sent when it was, and
its answer is waited for where it was recorded. What the server asks is answered as it was then.
Answers are compared member by member; what the recording hides equals everything. Notifications are
counted, not compared: how many of them come is a matter of time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import anyio
import click
import msgspec
from msgspec import UNSET

from bridge import telemetry
from bridge.app import wrapping
from bridge.config import Command, Config, Daemon, Downstream, Limits, Log, Remote
from bridge.core.lines import Lines, Overlong
from bridge.core.message import Id, Notification, Request, Response, notification, read
from bridge.core.splice import members, quote, replaced
from bridge.errors import UsageFault
from bridge.observe import name_of
from bridge.record import HIDDEN, Line, read_record

_DEPTH: Final = Limits().depth
_MODERN: Final = b"io.modelcontextprotocol/protocolVersion"
_MOST_SHOWN: Final = 20
"""Differences of one answer that are told; the rest is counted."""
_EVERYBODY: Final = -1
"""The client that all modern requests come from."""


class Difference(msgspec.Struct, frozen=True):
    """One place where an answer is another; values as JSON text, or nothing where it has none."""

    where: str
    recorded: str | None
    now: str | None


class Compared(msgspec.Struct, frozen=True, rename="camel"):
    """One request. `answered` is false if no answer came in time."""

    client: int
    id: Id
    method: str
    name: str
    answered: bool
    differences: tuple[Difference, ...] = ()

    @property
    def same(self) -> bool:
        return self.answered and not self.differences


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """`notifications` are by method, recorded and now, where the numbers differ."""

    target: str
    requests: tuple[Compared, ...]
    notifications: dict[str, tuple[int, int]]
    unanswered_questions: int
    """Questions of the server for which the recording has no answer."""

    @property
    def same(self) -> bool:
        return bool(self.requests) and all(one.same for one in self.requests)


class Client:
    """One recorded client, at work again. Use `run` in a task of its own."""

    def __init__(self, upstream: Command | Remote, environ: Mapping[str, str]) -> None:
        self._config = Config(upstream=upstream, downstream=Downstream.STDIO)
        self._environ = environ
        self._lines = Lines(self._config.limits.line)
        self._answers: dict[Id, asyncio.Future[Response]] = {}
        self._questions: dict[str, deque[Id]] = defaultdict(deque)
        """Questions that wait for an answer, by method."""
        self._asked = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self.notes: Counter[str] = Counter()
        self.ready, self._over = anyio.Event(), anyio.Event()

    async def run(self) -> None:
        (stdin, ours), (theirs, stdout) = socket.socketpair(), socket.socketpair()
        ends = stdin.detach(), stdout.detach()
        async with wrapping(Daemon.of(self._config), self._environ, *ends) as port:
            _, self._writer = await asyncio.open_connection(sock=ours)
            reader, closing = await asyncio.open_connection(sock=theirs)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(port.serve)
                tasks.start_soon(self._read, reader)
                self.ready.set()
                await self._over.wait()
                tasks.cancel_scope.cancel()
            self._writer.close()
            closing.close()

    def end(self) -> None:
        self._over.set()

    def say(self, raw: bytes) -> None:
        assert self._writer is not None
        self._writer.write(raw + b"\n")

    def ask(self, request: Request) -> None:
        self._answers[request.id] = asyncio.get_running_loop().create_future()
        self.say(request.raw)

    async def answer(self, request_id: Id, within: float) -> Response | None:
        """The answer to a request that was sent; None if it does not come in time."""
        with anyio.move_on_after(within):
            return await self._answers[request_id]
        return None

    async def question(self, method: str, within: float) -> Id | None:
        """The id of the next question of this method; None if none comes in time."""
        with anyio.move_on_after(within):
            while not self._questions[method]:
                self._asked.clear()
                await self._asked.wait()
            return self._questions[method].popleft()
        return None

    @property
    def open_questions(self) -> int:
        return sum(map(len, self._questions.values()))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(1 << 16):
            for line in self._lines.feed(data):
                self._hear(line)

    def _hear(self, line: bytes | Overlong) -> None:
        message = None if isinstance(line, Overlong) else read(line, depth=_DEPTH)
        match message:
            case Response(id=known) if known in self._answers and not self._answers[known].done():
                self._answers[known].set_result(message)
            case Notification():
                self.notes[message.method] += 1
            case Request():
                self._questions[message.method].append(message.id)
                self._asked.set()


class Player:
    """Goes through a recording, line by line."""

    def __init__(self, upstream: Command | Remote, environ: Mapping[str, str], patience: float) -> None:
        self._upstream, self._environ, self._patience = upstream, environ, patience
        self._clients: dict[int, Client] = {}
        self._all: list[Client] = []
        self._sent: dict[tuple[int, Id], tuple[Client, Request]] = {}
        """What waits for its answer, by the recorded client and id."""
        self._questions: dict[tuple[int, Id], tuple[Client, str]] = {}
        """Recorded questions that were not answered yet."""
        self._states: dict[tuple[str, str], msgspec.Raw] = {}
        """The last `requestState` of each method and name."""
        self._noted: Counter[str] = Counter()
        self._compared: list[Compared] = []
        self._run = 0

    async def play(self, lines: list[Line]) -> Report:
        async with anyio.create_task_group() as tasks:
            for line in lines:
                self._run += line.record is not None
                if line.client is None:
                    self._count(line)
                elif line.message is not UNSET:
                    await self._line(line, bytes(line.message), tasks)
                elif line.event:
                    self._event(line.client, line)
            for key in list(self._sent):
                await self._settle(key, None)
            for client in self._clients.values():
                client.end()
        now: Counter[str] = sum((client.notes for client in self._all), Counter())
        differing = sorted(method for method in {*now, *self._noted} if now[method] != self._noted[method])
        return Report(
            target=telemetry.spell_server(self._upstream),
            requests=tuple(self._compared),
            notifications={method: (self._noted[method], now[method]) for method in differing},
            unanswered_questions=sum(client.open_questions for client in self._all),
        )

    async def _line(self, line: Line, text: bytes, tasks: anyio.abc.TaskGroup) -> None:
        assert line.client is not None
        number, message = self._run << 32 | line.client, read(text, depth=_DEPTH)
        match line.way, message:
            case ">", Request():
                await self._ask(number, message, tasks)
            case ">", Notification():
                await self._tell(number, message, line)
            case ">", Response():
                await self._reply(number, message)
            case "<", Response():
                if message.id is not None:
                    await self._settle((number, message.id), message)
            case "<", Request():
                found = self._client_of(number)
                if found is not None:
                    self._questions[number, message.id] = found, message.method
            case "<", Notification():
                self._noted[message.method] += 1

    def _count(self, line: Line) -> None:
        """What was for all clients of a server, or for the only one there was."""
        message = None if line.message is UNSET else read(bytes(line.message), depth=_DEPTH)
        if isinstance(message, Notification):
            self._noted[message.method] += 1

    def _event(self, client: int, line: Line) -> None:
        number = self._run << 32 | client
        if line.event == "left" and number in self._clients:
            self._clients.pop(number).end()
        elif line.event == "cancelled" and line.about is not None:
            sent = self._sent.pop((number, line.about), None)
            if sent is not None:
                sent[0].say(notification("notifications/cancelled", _cancelled(sent[1].id)).raw)

    async def _ask(self, number: int, request: Request, tasks: anyio.abc.TaskGroup) -> None:
        modern = _MODERN in request.raw
        client = await self._at_work(_EVERYBODY if modern else number, tasks)
        sent = self._with_state(request)
        if modern:  # whose clients know nothing of each other, and choose equal ids
            sent = sent.with_id(f"{number}-{request.id}")
        self._sent[number, request.id] = client, sent
        client.ask(sent)

    async def _tell(self, number: int, note: Notification, line: Line) -> None:
        if line.about is not None and (sent := self._sent.pop((number, line.about), None)) is not None:
            sent[0].say(notification("notifications/cancelled", _cancelled(sent[1].id)).raw)
        elif (client := self._client_of(number)) is not None:
            client.say(note.raw)

    async def _reply(self, number: int, response: Response) -> None:
        if response.id is None or (asked := self._questions.pop((number, response.id), None)) is None:
            return
        client, method = asked
        own = await client.question(method, self._patience)
        if own is not None:
            client.say(response.with_id(own).raw)

    async def _settle(self, key: tuple[int, Id], recorded: Response | None) -> None:
        """Wait for an answer and compare it; with nothing recorded it only has to be there."""
        sent = self._sent.pop(key, None)
        if sent is None:
            return
        client, request = sent
        answer = await client.answer(request.id, self._patience if recorded is not None else 0)
        if recorded is None and answer is None:
            return  # as it was
        self._keep_state(request, answer)
        differences = () if recorded is None or answer is None else _differences(recorded, answer)
        self._compared.append(
            Compared(
                client=key[0] & 0xFFFFFFFF,
                id=key[1],
                method=request.method,
                name=name_of(request),
                answered=answer is not None,
                differences=differences,
            )
        )

    def _keep_state(self, request: Request, answer: Response | None) -> None:
        if answer is not None and answer.result is not UNSET and b'"requestState"' in bytes(answer.result):
            state = members(answer.result).get("requestState")
            if state is not None:
                self._states[request.method, name_of(request)] = msgspec.Raw(bytes(state))

    def _with_state(self, request: Request) -> Request:
        """A round of a call goes on with what the server said this time."""
        state = self._states.get((request.method, name_of(request)))
        if state is None or request.params is UNSET or b'"requestState"' not in bytes(request.params):
            return request
        return request.with_params(replaced(request.params, ("requestState",), bytes(state)))

    def _client_of(self, number: int) -> Client | None:
        return self._clients.get(number) or self._clients.get(_EVERYBODY)

    async def _at_work(self, number: int, tasks: anyio.abc.TaskGroup) -> Client:
        client = self._clients.get(number)
        if client is None:
            client = self._clients[number] = Client(self._upstream, self._environ)
            self._all.append(client)
            tasks.start_soon(client.run)
            await client.ready.wait()
        return client


def _cancelled(request_id: Id) -> bytes:
    return b'{"requestId":%b}' % quote(request_id)


# --- comparing ---


def _differences(recorded: Response, now: Response) -> tuple[Difference, ...]:
    one, other = (
        {"result": _read(answer.result)} if answer.error is UNSET else {"error": _read(answer.error)}
        for answer in (recorded, now)
    )
    found: list[Difference] = []
    _compare("", one, other, found)
    return tuple(found)


def _read(text: msgspec.Raw | msgspec.UnsetType) -> Any:
    return None if text is UNSET else msgspec.json.decode(text)


_NOTHING: Final = object()


def _compare(where: str, recorded: Any, now: Any, found: list[Difference]) -> None:
    if isinstance(recorded, str) and HIDDEN in recorded:
        if now is _NOTHING:
            found.append(_difference(where, recorded, now))
    elif isinstance(recorded, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*recorded, *now)):
            _compare(f"{where}/{key}", recorded.get(key, _NOTHING), now.get(key, _NOTHING), found)
    elif isinstance(recorded, list) and isinstance(now, list):
        for index, (one, other) in enumerate(zip_longest(recorded, now, fillvalue=_NOTHING)):
            _compare(f"{where}/{index}", one, other, found)
    elif type(recorded) is not type(now) or recorded != now:
        found.append(_difference(where, recorded, now))


def _difference(where: str, recorded: Any, now: Any) -> Difference:
    return Difference(
        where.lstrip("/"), *(None if one is _NOTHING else _short(one) for one in (recorded, now))
    )


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 120 else f"{text[:119]}…"


# --- telling ---


def as_json(report: Report) -> str:
    return msgspec.json.encode({"same": report.same, **msgspec.to_builtins(report)}).decode()


def as_text(report: Report, *, color: bool) -> str:
    """A line for each request, and beneath it where its answer is another."""

    def paint(text: str, fg: str) -> str:
        return click.style(text, fg=fg) if color else text

    lines = []
    for one in report.requests:
        mark = (
            paint("same     ", "green")
            if one.same
            else paint("different" if one.answered else "no answer", "red")
        )
        lines.append(f"{mark}  {one.client:>4}  {one.method} {one.name}".rstrip())
        for difference in one.differences[:_MOST_SHOWN]:
            lines.append(f"             {difference.where}")
            lines.append(f"               recorded  {_or_nothing(difference.recorded)}")
            lines.append(f"               now       {_or_nothing(difference.now)}")
        if len(one.differences) > _MOST_SHOWN:
            lines.append(f"             and {len(one.differences) - _MOST_SHOWN} more")
    for method, (before, now) in report.notifications.items():
        lines.append(f"{method}: {before} recorded, {now} now")
    same = sum(one.same for one in report.requests)
    lines.append(f"{same} of {len(report.requests)} answers are the same: {report.target}")
    return "\n".join(lines)


def _or_nothing(text: str | None) -> str:
    return "-" if text is None else click.unstyle(text)


def run(
    path: Path,
    upstream: Command | Remote,
    *,
    server: str | None = None,
    timeout: float = 30.0,
    json: bool = False,
) -> int:
    """Replay and print; 0 if every answer was the same. Raises UsageFault.

    `server` names one of several in the recording, and is needed if there are several.
    """
    lines = _of_one(path, read_record(path), server)
    stop_logging = telemetry.setup(Log(level="error"))
    try:
        report = asyncio.run(Player(upstream, os.environ, timeout).play(lines))
    finally:
        stop_logging()
    terminal = sys.stdout.isatty()
    color = terminal and not os.environ.get("NO_COLOR")
    click.echo(as_text(report, color=color) if terminal and not json else as_json(report), color=color)
    return 0 if report.same else 1


def _of_one(path: Path, lines: list[Line], server: str | None) -> list[Line]:
    names = sorted({line.server for line in lines if line.server})
    if server is None and len(names) > 1:
        raise UsageFault(f"{path} holds several servers; say which with --server: {', '.join(names)}")
    if server is not None and server not in names:
        raise UsageFault(f"{path} holds no server {server}; it holds {', '.join(names)}")
    return [line for line in lines if line.record is not None or not server or line.server == server]
