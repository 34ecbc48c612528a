"""A legacy server's tasks (2025-11-25 "Tasks") as the extension `io.modelcontextprotocol/tasks` shows them.

Decides what a modern client that knows the extension sees of a task: a flat one under an id of its
own, whose questions are entries of `inputRequests` and whose end holds the result. In a legacy task
both come with `tasks/result`, which is therefore kept open while the task wants input. Which calls
become tasks is decided in `era.tasks`, and whose they are in `era.task_ids`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Generic

import msgspec
from msgspec import UNSET, Raw

from bridge.core.correlate import TASK_STATUS
from bridge.core.events import Answered, Event, Exchange, Party, Question, Replied
from bridge.core.layer import Clock, Layer, Timer
from bridge.core.message import (
    INVALID_PARAMS,
    Id,
    Notification,
    Request,
    Response,
    local_error,
    notification,
    result,
    task_of,
)
from bridge.core.splice import Members, joined, members, quote
from bridge.era.capabilities import Capabilities
from bridge.era.envelope import SERVER_INFO, Envelope
from bridge.era.listen import Subscriptions
from bridge.era.opened import Opened
from bridge.era.origin import is_own
from bridge.era.own import Own
from bridge.era.questions import RELATED_TASK, answer, entry, fits, given_up, missing, refused, related_task
from bridge.era.suspend import H
from bridge.era.task_ids import TaskIds, task_named, unknown_task
from bridge.era.tasks import GET, RESULT, Offer, cancelled, unrelated
from bridge.era.terms import Terms

TASKS: Final = "io.modelcontextprotocol/tasks"
TOLD: Final = "notifications/tasks"
MOST_TASKS: Final = 1024
"""Tasks of one upstream session that are remembered; the oldest go first."""

_NEEDED: Final = b'{"extensions":{"%b":{}}}' % TASKS.encode()
_RENAMED: Final = {"ttl": "ttlMs", "pollInterval": "pollIntervalMs"}
_COMPLETE: Final = ("resultType", b'"complete"')
_PATIENCE: Final = 2.0
"""Seconds for a server to ask what it says that it wants to be told."""

Events = Iterable[Event]
Show = Callable[[Members | Response], Events]
"""What becomes of a task as it is now, or of the error that kept it from being known."""


class _Look:
    """Somebody who waits for the questions of a task that wants input."""

    __slots__ = ("parts", "show", "timer")

    def __init__(self, parts: Members, show: Show) -> None:
        self.parts, self.show = parts, show
        self.timer: Timer | None = None


class _Task:
    """`shown` is the id that its client knows, `capabilities` what that can be asked."""

    __slots__ = ("capabilities", "ending", "id", "keys", "looks", "questions", "result", "shown", "until")

    def __init__(self, task: str, shown: str, capabilities: Capabilities, until: float) -> None:
        self.id, self.shown, self.capabilities, self.until = task, shown, capabilities, until
        self.questions: dict[str, tuple[Question, bytes]] = {}
        """By their keys, which are never used again: the server's requests and what they look like."""
        self.keys = 0
        self.looks: list[_Look] = []
        self.result: Exchange | None = None
        """The `tasks/result` that is open."""
        self.ending: list[Callable[[Response], Events]] = []
        """Who waits for its answer."""


class MappedTasks(Generic[H]):
    """The tasks of one upstream session; `session` is its name in `ids`. All `Answered` are complete.

        Asked(exchange, tasks/get | update | cancel) -> asked(exchange, request, envelope)
        the answer to a call made with HiddenTasks.begin(…, wait=False), if `declared(envelope)`
                                                     -> created(exchange, capabilities, response)
        Questioned, entered into own.party           -> questioned(question, request)
        Noted(_, _, notifications/tasks/status)      -> noted(note, subscriptions)
        Noted(_, _, notifications/cancelled)         -> taken_back(request_id)
        Withdrawn(exchange); Left(party)             -> withdrawn(exchange); left(party)
        Lost()                                       -> lost()

    `created` and `questioned` give None for what is no matter of theirs. It is the `watch` of the
    session's Subscriptions. The session must be kept open while this is `busy`.
    """

    def __init__(
        self,
        own: Own,
        opened: Opened,
        clock: Clock,
        layer: Layer,
        terms: Terms,
        ids: TaskIds[H],
        session: str,
    ) -> None:
        self._own, self._opened, self._clock, self._layer, self._terms = own, opened, clock, layer, terms
        self._offer = Offer.read(opened.capabilities)
        self._ids, self._session = ids, session
        self._tasks: dict[str, _Task] = {}
        self._asking: dict[Exchange, Exchange | None] = {}
        """Requests of clients, each with the bridge's own that it waits for, if there is one."""
        self._methods: Mapping[str, Callable[[Exchange, Request, _Task], Events]] = {
            "tasks/get": self._get,
            "tasks/update": self._update,
            "tasks/cancel": self._cancel,
        }

    @property
    def busy(self) -> bool:
        """Whether a task may still be going on that somebody comes back for."""
        now = self._clock.now()
        return bool(self._asking) or any(task.until > now for task in self._tasks.values())

    # Tasks

    def created(self, exchange: Exchange, capabilities: Capabilities, response: Response) -> Response | None:
        """The task that a call became; None if it has its answer already."""
        made = task_of(response.result, created=True)
        if not made.id or response.result is UNSET:
            return None
        shown = self._ids.shown(self._session, made.id, exchange.party.subject)
        parts = members(response.result)
        fields = members(parts.pop("task"))
        task = self._remember(made.id, shown, capabilities, fields)
        said = {**_modern(task, fields), **parts}
        return result(exchange.id, self._said([("resultType", b'"task"')], said))

    def _remember(self, task: str, shown: str, capabilities: Capabilities, fields: Members) -> _Task:
        now, lifetime = self._clock.now(), _seconds(fields, "ttl")
        if len(self._tasks) >= MOST_TASKS:
            over = (one for one, known in self._tasks.items() if known.until <= now)
            del self._tasks[next(over, next(iter(self._tasks)))]
        until = now + (self._terms.call if lifetime is None else lifetime)
        found = self._tasks[task] = _Task(task, shown, capabilities, until)
        return found

    def asked(self, exchange: Exchange, request: Request, envelope: Envelope) -> Events:
        if not declared(envelope):
            return (Answered(exchange, missing([_NEEDED]).with_id(exchange.id)),)
        shown = task_named(request)
        found = None if shown is None else self._ids.found(self._session, shown, exchange.party.subject)
        if shown is None or found is None:
            return (Answered(exchange, unknown_task(request)),)
        task = self._tasks.get(found)
        if task is None:
            task = self._remember(found, shown, Capabilities.read(envelope.capabilities), {})
        task.shown = shown
        self._asking[exchange] = None
        return self._methods[request.method](exchange, request, task)

    def _answer(self, exchange: Exchange, said: Members | Response) -> Events:
        """Unless the client gave up."""
        if exchange not in self._asking:
            return ()
        del self._asking[exchange]
        if isinstance(said, Response):
            return (Answered(exchange, said.with_id(exchange.id)),)
        return (Answered(exchange, result(exchange.id, self._said([_COMPLETE], said))),)

    def _said(self, first: list[tuple[str, bytes]], parts: Members) -> bytes:
        meta = _object(parts.get("_meta", b"{}"))
        meta.pop(RELATED_TASK, None)
        meta.setdefault(SERVER_INFO, bytes(self._opened.server))
        rest = [(key, value) for key, value in parts.items() if key not in ("resultType", "_meta")]
        return joined([*first, *rest, ("_meta", joined(meta.items()))])

    def _look_up(self, task: _Task, done: Callable[[Response], Events]) -> Event:
        return self._own.ask(GET, _of(task), done)

    # tasks/get

    def _get(self, exchange: Exchange, _: Request, task: _Task) -> Events:
        show = partial(self._answer, exchange)

        def looked(response: Response) -> Events:
            if response.result is UNSET:
                return show(response)
            try:
                return self._seen(task, members(response.result), show)
            except ValueError:
                text = "The server's task is no object"
                return show(local_error(exchange.id, text, "invalid_upstream_message"))

        asked = self._own.ask(GET, _of(task), looked)
        self._asking[exchange] = asked.exchange
        return (asked,)

    def _seen(self, task: _Task, parts: Members, show: Show) -> Events:
        match task_of(Raw(joined(parts.items()))).status:
            case "input_required":
                return self._wants_input(task, parts, show)
            case "completed" | "failed":
                task.ending.append(lambda response: self._over(task, parts, response, show))
                return self._open(task)
            case "cancelled":
                return (*self._done(task), *show(_modern(task, parts)))
            case _:
                return show(_modern(task, parts))

    def _wants_input(self, task: _Task, parts: Members, show: Show) -> Events:
        opened = self._open(task)
        if task.questions:
            return (*opened, *show(_modern(task, parts, self._input(task))))
        look = _Look(parts, show)
        look.timer = self._clock.after(_PATIENCE, self._layer, lambda: self._shown(task, look))
        task.looks.append(look)
        return opened

    @staticmethod
    def _input(task: _Task) -> Members:
        return {"inputRequests": joined((key, text) for key, (_, text) in task.questions.items())}

    def _shown(self, task: _Task, look: _Look) -> Events:
        """Show what is asked by now; a task that asks nothing works, as far as anybody can tell."""
        task.looks.remove(look)
        if task.questions:
            return look.show(_modern(task, look.parts, self._input(task)))
        return look.show(_modern(task, {**look.parts, "status": b'"working"'}))

    def _open(self, task: _Task) -> Events:
        """Have `tasks/result` open: by it come questions, and in the end the result."""
        if task.result is not None:
            return ()
        asked = self._own.ask(RESULT, _of(task), partial(self._ended, task))
        task.result = asked.exchange
        return (asked,)

    def _ended(self, task: _Task, response: Response) -> Events:
        """The server keeps its answer, so that nobody has to wait for it here."""
        task.result = None
        ending, task.ending = task.ending, []
        return [event for one in ending for event in one(response)]

    def _over(self, task: _Task, parts: Members, response: Response, show: Show) -> Events:
        done = self._done(task)
        if response.result is not UNSET:
            value = {**_object(unrelated(bytes(response.result))), "resultType": b'"complete"'}
            end = {"status": b'"completed"', "result": joined(value.items())}
        elif response.error is not UNSET and not is_own(response):
            end = {"status": b'"failed"', "error": bytes(response.error)}
        else:
            return (*done, *show(response))
        return (*done, *show(_modern(task, {**parts, "status": end.pop("status")}, end)))

    def _done(self, task: _Task) -> Events:
        """It goes on no more: nobody is missed, and nobody is asked."""
        task.until = 0.0
        left, task.questions = task.questions, {}
        return [Replied(question, given_up(question, task.id)) for question, _ in left.values()]

    # What the server asks

    def questioned(self, question: Question, asked: Request) -> Events | None:
        """Keep what is asked for the sake of a task; None if it is not for one of these."""
        task = self._tasks.get(related_task(asked.params) or "")
        if task is None:
            return None
        params = b"" if asked.params is UNSET else bytes(asked.params)
        if not task.capabilities.covers(asked.method, params):
            return (Replied(question, refused(question)),)
        task.keys += 1
        task.questions[f"in-{task.keys}"] = question, entry(asked.method, asked.params)
        for look in task.looks:
            if look.timer is not None:
                look.timer.cancel()
            show = partial(self._shown, task, look)
            look.timer = self._clock.after(self._terms.coalesce, self._layer, show)
        return ()

    def taken_back(self, request_id: Id) -> None:
        """The server withdrew a question; nothing if that is not one of these."""
        for task in self._tasks.values():
            for key, (question, _) in list(task.questions.items()):
                if question.party_id == request_id:
                    del task.questions[key]

    def _update(self, exchange: Exchange, request: Request, task: _Task) -> Events:
        try:
            parts = {} if request.params is UNSET else members(request.params)
            given = members(parts.get("inputResponses", b""))
        except ValueError:
            return self._answer(exchange, _misshapen(request, "inputResponses is no object"))
        answers = {key: bytes(value) for key, value in given.items() if key in task.questions}
        for key, value in answers.items():
            method = task.questions[key][0].method
            if not fits(method, value):
                return self._answer(exchange, _misshapen(request, f"{key} is no answer to {method}"))
        replied = [self._replied(task, key, value) for key, value in answers.items()]
        return (*replied, *self._answer(exchange, {}))

    def _replied(self, task: _Task, key: str, value: bytes) -> Event:
        question, _ = task.questions.pop(key)
        return Replied(question, answer(question, value, self._opened.revision, task.id))

    # tasks/cancel

    def _cancel(self, exchange: Exchange, _: Request, task: _Task) -> Events:
        def done(response: Response) -> Events:
            if response.result is not UNSET:
                return (*self._done(task), *self._answer(exchange, {}))
            # The one code for a task that is over, which is fine, and for one that is not known.
            return (self._look_up(task, lambda found: looked(response, found)),)

        def looked(failed: Response, found: Response) -> Events:
            return self._answer(exchange, failed if found.result is UNSET else {})

        return cancelled(self._own, self._offer, task.id, done)

    # notifications/tasks

    def watched(
        self, exchange: Exchange, request: Request, tokens: Iterable[str]
    ) -> dict[str, str] | Response:
        """The tasks among `tokens` that this client may watch, or why it may watch none (`listen.Watch`)."""
        if not declared(Envelope.read(request.params)):
            return missing([_NEEDED]).with_id(exchange.id)
        subject = exchange.party.subject
        found = [(self._ids.found(self._session, token, subject), token) for token in tokens]
        return {task: token for task, token in found if task is not None}

    def noted(self, note: Notification, subscriptions: Subscriptions) -> Events:
        """A task's new status for whoever listens for it, as `tasks/get` would show it."""
        found = self._tasks.get(task_of(note.params).id)
        if note.method != TASK_STATUS or found is None or not subscriptions.watches(found.id):
            return ()
        assert note.params is not UNSET

        def show(said: Members | Response) -> Events:
            if isinstance(said, Response):
                return ()

            def told(shown: str) -> Notification:
                return notification(TOLD, unrelated(joined({**said, "taskId": quote(shown)}.items())))

            return subscriptions.told_task(found.id, told)

        return self._seen(found, members(note.params), show)

    # Ends

    def withdrawn(self, exchange: Exchange) -> Events:
        """A client waits no more; the task goes on."""
        own = self._asking.pop(exchange, None)
        return () if own is None else self._own.withdraw(own)

    def left(self, party: Party) -> Events:
        mine = [exchange for exchange in self._asking if exchange.party is party]
        return [event for exchange in mine for event in self.withdrawn(exchange)]

    def lost(self) -> Events:
        """The server is gone with its tasks; whoever waits for one of its answers has been told."""
        self._ids.leave(self._session)
        waiting = [look for task in self._tasks.values() for look in task.looks]
        for look in waiting:
            if look.timer is not None:
                look.timer.cancel()
        self._tasks.clear()
        gone = local_error(None, "The server is gone", "upstream_lost")
        return [event for exchange in list(self._asking) for event in self._answer(exchange, gone)]


def declared(envelope: Envelope) -> bool:
    """Whether a request says that its client knows the tasks extension."""
    extensions = _object(_object(envelope.capabilities).get("extensions", b"{}"))
    return bytes(extensions.get(TASKS, b"")).startswith(b"{")


def _of(task: _Task) -> bytes:
    return b'{"taskId":%b}' % quote(task.id)


def _modern(task: _Task, fields: Members, more: Members | None = None) -> Members:
    """The fields of a legacy task under their new names, with the id that its client knows."""
    said = {_RENAMED.get(key, key): bytes(value) for key, value in fields.items()}
    said["taskId"] = quote(task.shown)
    said.setdefault("ttlMs", b"null")
    return {**said, **(more or {})}


def _misshapen(asked: Request, why: str) -> Response:
    return local_error(asked.id, f"Invalid params: {why}", "invalid_input_responses", INVALID_PARAMS)


def _seconds(fields: Members, name: str) -> float | None:
    try:
        return msgspec.json.decode(fields.get(name, b""), type=float) / 1000
    except msgspec.DecodeError:
        return None


def _object(text: bytes | Raw) -> Members:
    """The members of an object; none if it is something else."""
    try:
        return members(text)
    except ValueError:
        return {}
