"""Modern clients and a legacy server over a link of their own: its clock, its time limit, its noise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count

import pytest
from support.scripted_bridge import UNHURRIED
from support.scripted_server import LIMIT, Json, ScriptedServer

from bridge.config import Command, Config, Timing
from bridge.core.events import Exchange, Party, Question
from bridge.core.message import Notification, Request, Response, request
from bridge.era.capabilities import Capabilities
from bridge.era.modern_to_legacy import ModernToLegacy
from bridge.era.suspend import Calls
from bridge.era.terms import Terms
from bridge.errors import ServerFault, ServerStopped
from bridge.link import Link
from crossing.bench import ALL, EL, SI, C, PlainSeal, opened_of


class Caller:
    """One modern request as a port of its own, as over HTTP."""

    def __init__(self, link: Link, params: Json) -> None:
        self.party = Party("modern", "ann")
        self.answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self.notes: list[Json] = []
        link.join(self)
        meta = {"io.modelcontextprotocol/clientCapabilities": json.loads(ALL)}
        text = json.dumps({"name": "a", "arguments": {}, **params, "_meta": meta})
        self.exchange = link.ask(self, request(1, "tools/call", text.encode()), None)

    async def result(self) -> Json:
        async with asyncio.timeout(LIMIT):
            found: Json = (await self.answer)["result"]
            return found

    async def error(self) -> Json:
        async with asyncio.timeout(LIMIT):
            found: Json = (await self.answer)["error"]
            return found

    def answered(self, exchange: Exchange, response: Response) -> None:
        assert exchange is not None
        self.answer.set_result(json.loads(response.raw))

    def noted(self, exchange: Exchange | None, note: Notification) -> None:
        self.notes.append(json.loads(note.raw))

    def questioned(self, question: Question, request: Request) -> None:
        raise AssertionError("a modern client is never asked by a request")

    def ended(self, exchange: Exchange) -> None:
        raise AssertionError("nothing ends without an answer")

    def lost(self, fault: ServerFault) -> None:
        pass


class Session:
    def __init__(self, timing: Timing) -> None:
        config = Config(upstream=Command(argv=("script",)), timing=timing)
        self.link = Link(config, fresh=True)
        self.server = ScriptedServer(1, self.link)
        self.link.attach(self.server)
        serial = count()
        calls: Calls[Link] = Calls(
            PlainSeal(),
            Terms(),
            upstream="up",
            replica="r",
            mint=lambda: str(next(serial)),
            wall=self.link.now,
        )
        declared = Capabilities.read(ALL.encode())
        self.layer = ModernToLegacy(opened_of(), declared, calls, self.link, Terms(), self.link)
        self.link.insert(self.layer)


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    """One that leaves nothing behind."""
    session = Session(UNHURRIED)
    yield session
    assert session.link.in_flight == 0
    assert not session.layer.busy


@pytest.mark.crossing("B13")
async def test_noise_of_the_server_is_skipped_and_its_answer_delivered(session: Session) -> None:
    caller = Caller(session.link, {})
    asked = await session.server.hears("tools/call")
    session.server.says(b"Starting\xe2\x80\xa6")
    session.server.answers(asked, {"content": []})
    assert await caller.result() == {"content": [], **C, **SI}


@pytest.mark.crossing("E12")
async def test_request_without_an_answer_in_time_is_cancelled_and_told_so() -> None:
    session = Session(replace(UNHURRIED, request=0.01))
    caller = Caller(session.link, {})
    asked = await session.server.hears("tools/call")
    error = await caller.error()
    assert (error["code"], error["data"]) == (-32603, {"origin": "bridge", "reason": "upstream_timeout"})
    assert (await session.server.hears("notifications/cancelled")).params == {"requestId": asked.id}
    assert not session.layer.busy


async def test_suspended_call_is_no_request_in_flight_and_goes_on_when_its_client_returns(
    session: Session,
) -> None:
    first = Caller(session.link, {})
    asked = await session.server.hears("tools/call")
    session.server.says({"id": 0, "method": "elicitation/create", "params": EL})
    suspended = await first.result()
    assert session.link.in_flight == 0
    assert session.layer.busy
    answers = {"in-1": {"action": "accept", "content": {"n": "x"}}}
    again = Caller(session.link, {"inputResponses": answers, "requestState": suspended["requestState"]})
    answer = await session.server.hears()
    assert (answer.id, answer.result) == (0, answers["in-1"])
    session.server.answers(asked, {"content": []})
    assert await again.result() == {"content": [], **C, **SI}


async def test_lost_server_tells_whoever_waits_why(session: Session) -> None:
    caller = Caller(session.link, {})
    await session.server.hears("tools/call")
    session.link.lost(ServerStopped("It stopped", exit_code=3))
    assert (await caller.error())["data"]["exitCode"] == 3
