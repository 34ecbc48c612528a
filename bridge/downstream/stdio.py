"""The bridge's own stdin and stdout: one client, of whichever era, message by message.

Decides of each line whether it is a message, of which era, and whether it may be sent now; what of
the server's goes to this client; and when its end has come. Ids are kept, order is kept, and what
cannot be taken is answered rather than passed on. What carries the bytes is in `descriptors.py`.

A request with the envelope of 2026-07-28 is modern whatever came before; `initialize` without it
opens the one legacy session of the process (specification: "stdio", "Backward Compatibility").
What a legacy client sends while its `initialize` is on its way is passed on, in order, since a
server on stdio would read it too. A server that was lost takes the session along: the client
must initialize anew, which opens the next.

Specification: "stdio" of all revisions, and "Batching" of 2025-03-26.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import anyio
from anyio.abc import TaskGroup
from msgspec import UNSET

from bridge.core.correlate import CANCELLED, LISTEN
from bridge.core.events import Exchange, Party, Question
from bridge.core.lines import Lines, Overlong
from bridge.core.message import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Batch,
    Id,
    Malformed,
    Notification,
    Request,
    Response,
    error,
    line_safe,
    local_error,
    notification,
    params_of,
    read,
    salvaged_id,
)
from bridge.core.session import Phase
from bridge.core.splice import Members, members, quote
from bridge.downstream.caller import ModernCaller
from bridge.downstream.descriptors import Input, Output
from bridge.downstream.party import deliver, said_in, unbatchable
from bridge.era.revisions import MODERN_VERSIONS, REMOVED, Revision, revision
from bridge.era.suspend import elsewhere
from bridge.errors import ServerFault
from bridge.link import Link, answer_to_fault
from bridge.relay import Relay

log = logging.getLogger("bridge.stdio")

_PREFIX: Final = "io.modelcontextprotocol/"
_VERSION: Final = f"{_PREFIX}protocolVersion"
_LOG_LEVEL: Final = f"{_PREFIX}logLevel"
_ENVELOPE: Final = frozenset({_VERSION, _LOG_LEVEL, f"{_PREFIX}clientInfo", f"{_PREFIX}clientCapabilities"})
_MARK: Final = b"io.modelcontextprotocol"
"""Without the slash, which some writers escape."""
_IS_ANSWER: Final = re.compile(rb'\s*\{[^{[]*"(?:result|error)"\s*:')
"""A text that has one of these before anything is nested was meant to answer the server."""
_CHECK: Final = 1.0
"""Seconds between two looks at whether anybody still reads."""
_LAST_WORDS: Final = 1.0
"""Seconds for the last answers to be read by a client that was not waited for."""
_SUBJECT: Final = "local"
_STOPPING: Final = "The bridge is shutting down"


class StdioPort:
    """The port of the client on these two descriptors, which it closes.

    `serve` is called once, then `close`.
    """

    def __init__(self, relay: Relay, reading: int, writing: int) -> None:
        config = relay.config
        self.party = Party("stdio", _SUBJECT)
        self._limits = config.limits
        self.relay = relay
        self._input = Input(reading)
        self._output = Output(writing, config.limits.unsent, self._press)
        self._link: Link | None = None
        self._turn = asyncio.Lock()
        self._modern: dict[Id, ModernRequest] = {}
        """The modern requests that have no answer yet."""
        self._answered = anyio.Event()
        self._phase = Phase.NEW
        self._revision: Revision | None = None
        self._fault: ServerFault | None = None
        """What took the last session away."""
        self._works = False
        """Whether the server of this link ever gave a result."""
        self._moved = False
        """Whether it refused to initialize, and the session was put to its other era."""
        self._over = anyio.Event()
        self._deaf = self._draining = self._closed = False
        self._tasks: TaskGroup | None = None

    async def serve(self) -> None:
        """Serve until the input has ended, or `drain`, and every answer is out; or until nobody reads."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            for task in (self._prepare, self._read, self._watch):
                tasks.start_soon(task)
            await self._over.wait()
            if self._link is not None:
                await self._link.idle()
            while any(waiting.caller.method != LISTEN for waiting in self._modern.values()):
                self._answered = anyio.Event()
                await self._answered.wait()
            await self._output.sent()
            tasks.cancel_scope.cancel()
        self._tasks = None

    def drain(self) -> None:
        """Refuse new requests from now on; `serve` ends when those in flight are answered."""
        self._draining = True
        self._over.set()

    async def close(self) -> None:
        """End the session; requests in flight are answered with an error."""
        self._closed = True
        await self.relay.hang_up()
        with anyio.move_on_after(_LAST_WORDS):
            await self._output.sent()
        self._output.close()
        self._input.close()

    async def _watch(self) -> None:
        """End everything when nobody reads any more."""
        while not self._output.broken.is_set():
            with anyio.move_on_after(_CHECK):
                await self._output.broken.wait()
            self._output.check()
        log.info("stopping: nobody reads stdout any more")
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()

    # The server

    async def _prepare(self) -> None:
        """Open the link while the client's first words are still on their way."""
        with suppress(ServerFault):
            async with self._turn:
                await self.relay.prepare()

    async def _linked(self) -> Link:
        """The link; opened, if there is none. Raises ServerFault."""
        async with self._turn:
            if self._link is None:
                self._link = await self._open()
            return self._link

    async def _open(self) -> Link:
        try:
            link = await self.relay.legacy()
            if link.fault is not None:
                raise link.fault
        except ServerFault as fault:
            log.warning("the server cannot be reached: %s", fault)
            raise
        self._enter(link)
        self._works = self._moved = False
        return link

    def _enter(self, link: Link) -> None:
        self.relay.join(link, self)
        if self._output.full:
            link.pressure(True)

    def _press(self, full: bool) -> None:
        if self._link is not None:
            self._link.pressure(full)

    # From the client

    async def _read(self) -> None:
        lines = Lines(self._limits.line)
        while data := await self._input.read():
            for line in lines.feed(data):
                await self._room()
                await self._take(line)
        if (half := lines.end()) is not None:
            size = half.size if isinstance(half, Overlong) else len(half)
            log.warning("stdin ended in the middle of a line of %d bytes", size)
        self._hang_up()

    async def _room(self) -> None:
        """Wait while the client does not read its answers, or the server its requests."""
        await self._output.room()
        if self._link is not None:
            await self._link.writable()
        passing = self.relay.passing
        if passing is not None:
            await passing.writable()

    def _hang_up(self) -> None:
        """The client says nothing more: whoever waits for an answer of its gets none."""
        self._deaf = True
        for question in list(self.party.questions.values()):
            self._refuse_question(question, "The client closed its end")
        self._over.set()

    async def _take(self, line: bytes | Overlong) -> None:
        if isinstance(line, Overlong):
            self._reject(line.head, _overlong(line, self._limits.line))
            return
        message = read(line, depth=self._limits.depth)
        match message:
            case Malformed():
                self._reject(line, message)
            case Batch():
                self._take_batch(message)
            case Request():
                await self._take_request(message)
            case Notification() | Response():
                self._deliver(message)

    def _reject(self, text: bytes, fault: Malformed) -> None:
        """Answer what is no message; under its id only where that can be taken for nothing else."""
        log.debug("refused a line of the client: %s", fault.message)
        if not _IS_ANSWER.match(text):
            self.write(self._answer_to(fault).raw)
            return
        question = None if fault.id is None else self.party.questions.get(fault.id)
        if question is not None:
            self._refuse_question(question, f"The client's answer is unusable: {fault.message}")
        self.write(error(None, fault.code, fault.message).raw)

    def _answer_to(self, fault: Malformed) -> Response:
        known = None if fault.id in self.party.exchanges else fault.id
        return error(known, fault.code, fault.message)

    def _refuse_question(self, question: Question, why: str) -> None:
        if self._link is not None:
            self._link.refuse(question, why, INTERNAL_ERROR)

    def _deliver(self, message: Notification | Response) -> None:
        if isinstance(message, Notification) and message.method == CANCELLED:
            named = params_of(message).request_id
            waiting = None if named is UNSET else self._modern.pop(named, None)
            if waiting is not None:
                waiting.cancel()
                self._settled()
                return
        if self._link is None:
            return  # nobody there that it could concern
        if self._phase is Phase.NEW and isinstance(message, Notification) and message.method != CANCELLED:
            log.debug("dropped %s, which came before initialize", message.method)
            return
        deliver(self._link, self, message)

    async def _take_request(self, asked: Request) -> None:
        envelope = _envelope(asked)
        refusal = self._refusal(asked, envelope)
        if refusal is not None:
            self.write(refusal.raw)
        elif envelope:
            self._take_modern(asked, wants_log=_LOG_LEVEL in envelope)
        else:
            await self._take_legacy(asked)

    def _take_modern(self, asked: Request, *, wants_log: bool) -> None:
        """Let it find its server by itself: to ask one for its era may take long, and others do not wait."""
        assert self._tasks is not None
        waiting = ModernRequest(self, asked, wants_log=wants_log)
        self._modern[asked.id] = waiting
        link = self.relay.passing
        if link is not None and not link.congested:
            waiting.caller.ask(link)
        else:
            self._tasks.start_soon(waiting.find)

    async def _take_legacy(self, asked: Request) -> None:
        try:
            link = await self._linked()
        except ServerFault as fault:
            self.write(answer_to_fault(asked.id, fault).raw)
        except asyncio.CancelledError:
            self.write(local_error(asked.id, _STOPPING, "draining").raw)
            raise
        else:
            self._ask(link, asked, None)

    def _ask(self, link: Link, asked: Request, answers: Answers | None) -> None:
        if asked.method == "initialize" and self._phase is Phase.NEW:
            self._phase = Phase.OPENING
        link.ask(self, asked, answers)

    def _take_batch(self, batch: Batch) -> None:
        """A batch (2025-03-26 only): its members go on one by one, their answers come back together."""
        why = unbatchable(batch, self._revision)
        if why is not None:
            self.write(error(None, INVALID_REQUEST, f"Invalid Request: {why}").raw)
            return
        asked = sum(isinstance(member, Request | Malformed) for member in batch.members)
        answers = Answers(asked, self.write)
        for member in batch.members:
            match member:
                case Malformed():
                    answers.add(self._answer_to(member).raw)
                case Request():
                    self._take_member(member, answers)
                case Notification() | Response():
                    self._deliver(member)

    def _take_member(self, asked: Request, answers: Answers) -> None:
        refusal = self._refusal(asked, {})
        if refusal is None and self._link is not None:
            self._ask(self._link, asked, answers)
        elif refusal is not None:
            answers.add(refusal.raw)

    def _refusal(self, asked: Request, envelope: Members) -> Response | None:
        """The answer to a request that is not passed on."""
        if asked.id in self.party.exchanges or asked.id in self._modern:
            # Under its id it would be taken for the answer to the first.
            text = f"Invalid Request: the id {quote(asked.id).decode()} is in flight already"
            return local_error(None, text, "id_in_flight", INVALID_REQUEST)
        if self._draining:
            return local_error(asked.id, _STOPPING, "draining")
        if len(self.party.exchanges) + len(self._modern) >= self._limits.in_flight:
            text = f"Too many requests in flight; the most are {self._limits.in_flight}"
            return local_error(asked.id, text, "in_flight")
        return _modern_refusal(asked, envelope) if envelope else self._legacy_refusal(asked)

    def _legacy_refusal(self, asked: Request) -> Response | None:
        if asked.method == "initialize":
            busy = self._phase is Phase.OPENING
            text = "Invalid Request: initialize has not been answered yet"
            return error(asked.id, INVALID_REQUEST, text) if busy else None
        if self._phase is not Phase.NEW or asked.method == "ping":
            return None
        if self._fault is not None:
            return answer_to_fault(asked.id, self._fault)
        text = f"Invalid params: neither {_VERSION} in params._meta, nor a session that initialize opened"
        return error(asked.id, INVALID_PARAMS, text)

    def finished(self, asked: Id) -> None:
        """A modern request has its answer."""
        self._modern.pop(asked, None)
        self._settled()

    def _settled(self) -> None:
        self._answered.set()

    # Port protocol of the link

    def answered(self, exchange: Exchange, response: Response) -> None:
        if response.result is not UNSET:
            self._works = True
        if exchange.method == "initialize":
            if self._link is not None and not self._moved:
                self._moved = self.relay.crosses(self, self._link, exchange, response)
                if self._moved:
                    self._link.part(self)  # whatever becomes of that server is no matter any more
                    return
            self._opened(response)
        if isinstance(exchange.via, Answers):
            exchange.via.add(line_safe(response.raw))
        else:
            self.write(response.raw)

    def _opened(self, response: Response) -> None:
        if response.result is not UNSET:
            version = said_in(response.result).version
            self._phase, self._fault, self._revision = Phase.OPENED, None, revision(version)
            if self._link is not None:
                self.relay.succeeded(response.result, self._link.era)
            log.info("session opened, revision %s", version)
        elif self._phase is Phase.OPENING:
            self._phase = Phase.NEW
            if self._moved:
                self._part()

    def _part(self) -> None:
        """Leave a server that refused; the next initialize finds another."""
        link, self._link = self._link, None
        if link is not None:
            link.leave(self)
            self.relay.release(link)

    def moved(self, link: Link) -> bool:
        if self._link is None or self._closed:
            return False
        self.relay.release(self._link)
        self._link = link
        self._enter(link)
        return True

    def noted(self, exchange: Exchange | None, note: Notification) -> None:
        if exchange is None and self._phase is Phase.NEW:
            log.debug("dropped %s of the server: a modern client did not ask for it", note.method)
        else:
            self.write(note.raw)

    def questioned(self, question: Question, request: Request) -> None:
        if self._phase is Phase.NEW:
            log.warning("dropped the server's request %s: no session is open", request.method)
            del self.party.questions[question.party_id]
        elif self._deaf:
            self._refuse_question(question, "The client closed its end")
        else:
            self.write(request.raw)

    def ended(self, exchange: Exchange) -> None:
        if isinstance(exchange.via, Answers):
            exchange.via.add(None)

    def lost(self, fault: ServerFault) -> None:
        link, self._link = self._link, None
        self._phase, self._revision, self._fault = Phase.NEW, None, fault
        if self._closed or link is None or self._tasks is None:
            return
        log.warning("the server is lost: %s", fault)
        if not self._works:
            self.relay.failed(fault)
        self.relay.release(link)

    def write(self, message: bytes) -> None:
        """Say this, in its turn."""
        self._output.write(line_safe(message) + b"\n")


class ModernRequest:
    """One modern request on stdio, and where its answer goes."""

    def __init__(self, port: StdioPort, asked: Request, *, wants_log: bool) -> None:
        self._port = port
        self._asked = asked
        self._search: anyio.CancelScope | None = None
        self.streaming = False
        self.caller = ModernCaller(port.relay, asked, _SUBJECT, self, private=False, wants_log=wants_log)

    async def find(self) -> None:
        """Find its server, and ask."""
        with anyio.CancelScope() as self._search:
            try:
                await self._find()
            except ServerFault as fault:
                self.answer(answer_to_fault(self._asked.id, fault))
            except asyncio.CancelledError:
                if not self._search.cancel_called:
                    self.answer(local_error(self._asked.id, _STOPPING, "draining"))
                raise

    async def _find(self) -> None:
        found = await self._port.relay.modern(self._asked, _SUBJECT)
        if isinstance(found, Response):
            self.answer(found)
        elif not isinstance(found, Link):
            self.answer(elsewhere(self._asked))
        else:
            self.caller.take(found)
            if await found.writable():
                self.caller.ask(found)
            else:
                self.answer(found.late(self._asked.id))

    def cancel(self) -> None:
        if self._search is not None:
            self._search.cancel()
        self.caller.leave()

    # Outlet of the caller

    def answer(self, response: Response) -> None:
        self._port.finished(self._asked.id)
        self._port.write(response.raw)
        self.caller.leave()

    @property
    def waiting(self) -> int:
        """Nothing: a client that does not read stops the server from being read."""
        return 0

    def push(self, note: Notification, *, once: bool = False) -> None:
        self.streaming = True
        self._port.write(note.raw)

    def end(self, answered: Response | None = None) -> None:
        if answered is not None:
            self.answer(answered)
        else:
            self._port.finished(self._asked.id)
        self._port.write(notification(CANCELLED, b'{"requestId":%b}' % quote(self._asked.id)).raw)


class Answers:
    """The answers to one batch, which are written together when all are there."""

    def __init__(self, expected: int, write: Callable[[bytes], None]) -> None:
        self._missing = expected
        self._write = write
        self._found: list[bytes] = []

    def add(self, answer: bytes | None) -> None:
        """One of them; None for a request that was cancelled and gets none."""
        self._missing -= 1
        if answer is not None:
            self._found.append(answer)
        if not self._missing and self._found:
            self._write(b"[%b]" % b",".join(self._found))


def _overlong(line: Overlong, limit: int) -> Malformed:
    text = f"Invalid Request: a message of {line.size} bytes, the most are {limit}"
    return Malformed(INVALID_REQUEST, text, salvaged_id(line.head, line.tail))


def _envelope(asked: Request) -> Members:
    """The members of the modern envelope that a request has; none if it is a legacy one."""
    if asked.params is UNSET or _MARK not in asked.raw:
        return {}
    try:
        meta = members(members(asked.params).get("_meta", b"{}"))
    except ValueError:
        return {}
    return {key: value for key, value in meta.items() if key in _ENVELOPE}


def _modern_refusal(asked: Request, envelope: Members) -> Response | None:
    if _VERSION not in envelope:
        text = f"Invalid params: {_VERSION} is missing in params._meta"
        return error(asked.id, INVALID_PARAMS, text)
    if asked.method in REMOVED:
        # Not for the server to say: one that speaks both eras would take `initialize` for the other.
        text = f"Method not found: {asked.method} is not in {MODERN_VERSIONS[-1]}"
        return local_error(asked.id, text, "removed_method", METHOD_NOT_FOUND)
    return None
