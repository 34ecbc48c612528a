"""Which server serves whom, what is known of its health, and what is let go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.scripted_bridge import (
    LATEST,
    MODERN,
    UNHURRIED,
    Bridge,
    Session,
    bridged,
    call,
    initialize,
    initialized,
    modern,
    notification,
)
from support.scripted_server import LIMIT, ScriptedServer

import bridge.evidence
from bridge.config import Limits, ProcessModel
from bridge.core.restart import RestartPolicy, Restarts
from bridge.errors import CircuitOpen, CommandNotFound, ServerStopped
from bridge.readiness import State

SHARED = ProcessModel.SHARED


@pytest.fixture
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bridge looks for evidence of its own at once, and again soon."""
    monkeypatch.setattr(bridge.evidence, "_FIRST", 0.0)
    monkeypatch.setattr(bridge.evidence, "_AGAIN", 0.01)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what no event tells of."""
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def until_state(bridged_: Bridge, state: State) -> None:
    await until(lambda: bridged_.relay.readiness.state is state)


async def shake_hands(server: ScriptedServer, revision: str = LATEST) -> None:
    """The bridge's own handshake."""
    server.answers(await server.hears("initialize"), initialized(revision))
    await server.hears("notifications/initialized")


async def share(bridge_: Bridge) -> Session:
    """The first session of a shared server."""
    opening = await bridge_.post(initialize())
    server = await bridge_.source.next()
    await shake_hands(server)
    session = Session(bridge_, server, (await opening.answer()).headers["mcp-session-id"])
    assert (await session.ask(notification("initialized"))).status == 202
    return session


# --- a server for each session ---


async def test_each_session_has_a_server_of_its_own_that_ends_with_it() -> None:
    async with bridged() as bridge:
        one, two = await bridge.session(), await bridge.session()
        assert one.server is not two.server
        await one.delete()
        await one.server.is_ended()
        assert not two.server.closed.is_set()


async def test_leaving_ends_sessions_with_an_answer_for_what_waits() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        exchange, _ = await session.calls(call(1))
        exchange2 = await bridge.post_modern(modern(1, "tools/list"))
        await (await bridge.source.next()).hears("tools/list")
    answer, other = await exchange.answer(), await exchange2.answer()
    assert answer.error["data"]["reason"] == "session_closed"
    assert other.error["code"] == -32603


# --- one shared server ---


@pytest.mark.case("SS-08", "ID-05")
async def test_clients_that_open_at_once_share_one_handshake_and_one_server() -> None:
    async with bridged(process=SHARED) as bridge:
        openings = [await bridge.post(initialize(revision)) for revision in ("2025-06-18", LATEST) * 5]
        server = await bridge.source.next()
        await shake_hands(server)
        answers = [await opening.answer() for opening in openings]
        assert [a.result["protocolVersion"] for a in answers] == ["2025-06-18", LATEST] * 5
        assert len({a.headers["mcp-session-id"] for a in answers}) == 10
        assert not server.unread
        assert len(bridge.source.servers) == 1


@pytest.mark.case("SS-08", "CP-02")
async def test_client_that_came_first_may_leave_while_the_others_wait() -> None:
    async with bridged(process=SHARED) as bridge:
        first, second = await bridge.post(initialize()), await bridge.post(initialize())
        server = await bridge.source.next()
        asked = await server.hears("initialize")
        await bridge.handles(2)
        first.reset()
        await bridge.handles(1)
        server.answers(asked, initialized())
        assert (await second.answer()).status == 200
        await server.hears("notifications/initialized")
        assert len(bridge.relay.sessions) == 1


@pytest.mark.case("SS-08")
async def test_handshake_of_a_shared_server_that_failed_is_tried_anew_by_the_next() -> None:
    async with bridged(process=SHARED) as bridge:
        opening = await bridge.post(initialize())
        server = await bridge.source.next()
        await server.hears("initialize")
        server.dies(1, "boom")
        answer = await opening.answer()
        assert (answer.status, answer.error["code"]) == (200, -32603)
        assert len(bridge.source.failures) == 1
        await share(bridge)
        assert bridge.relay.readiness.ready


async def test_lost_shared_server_ends_its_sessions_and_the_next_gets_a_new_one() -> None:
    async with bridged(process=SHARED) as bridge:
        first = await share(bridge)
        second = await bridge.joined(first.server)
        calls = [await session.post(call(1)) for session in (first, second)]
        for _ in calls:
            await first.server.hears("tools/call")
        first.server.dies()
        for exchange in calls:
            assert (await exchange.answer()).error["code"] == -32603
        assert bridge.relay.sessions == {}
        third = await share(bridge)
        assert third.server is not first.server
        await first.server.is_ended()


@pytest.mark.case("RT-03", "ID-05", "ID-06")
async def test_sessions_of_a_shared_server_hear_only_what_is_theirs() -> None:
    async with bridged(process=SHARED) as bridge:
        a = await share(bridge)
        b = await bridge.joined(a.server)
        server = a.server
        streams = [await session.listen() for session in (a, b)]
        (mine, first), (yours, second) = [
            (await session.post(call(7, token=1)), await server.hears("tools/call")) for session in (a, b)
        ]
        server.notes("tools/list_changed")
        server.progresses(second, 2)
        assert (await a.ask(notification("cancelled", requestId=7))).status == 202
        assert (await server.hears("notifications/cancelled")).params == {"requestId": first.id}
        server.answers(second, {"for": "b"})
        assert (await mine.answer()).messages == []
        progress, answer = (await yours.answer()).messages
        assert (progress["params"]["progressToken"], answer["id"], answer["result"]) == (1, 7, {"for": "b"})
        for stream in streams:
            assert (await stream.message())["method"] == "notifications/tools/list_changed"


@pytest.mark.case("RT-01")
async def test_question_of_a_shared_server_goes_to_the_only_session_that_calls_it() -> None:
    async with bridged(process=SHARED) as bridge:
        opening = await bridge.post(initialize("2025-06-18", elicitation={}))
        server = await bridge.source.next()
        await shake_hands(server)
        asking = Session(bridge, server, (await opening.answer()).headers["mcp-session-id"])
        other = await bridge.joined(server, elicitation={})
        await other.listen()
        exchange = await asking.post(call(1))
        await server.hears("tools/call")
        server.asks("elicitation/create", "q")
        assert (await exchange.message())["method"] == "elicitation/create"


async def test_question_for_a_call_whose_client_is_away_goes_on_a_stream_that_is_open() -> None:
    async with bridged(process=SHARED) as bridge:
        opening = await bridge.post(initialize("2025-06-18", elicitation={}))
        server = await bridge.source.next()
        await shake_hands(server)
        session = Session(bridge, server, (await opening.answer()).headers["mcp-session-id"])
        exchange, asked = await session.calls(call(1, token=1))
        server.progresses(asked, 1)
        await exchange.event()
        exchange.reset()
        await bridge.handles(0)
        stream = await session.listen()
        server.asks("elicitation/create", "q")
        assert (await stream.message())["method"] == "elicitation/create"


async def test_shared_server_lingers_after_its_last_session() -> None:
    timing = replace(UNHURRIED, session_idle=0.2, linger=0.2)
    async with bridged(process=SHARED, timing=timing) as bridge:
        session = await share(bridge)
        await session.delete()
        assert not session.server.closed.is_set()
        again = await bridge.joined(session.server)
        await again.delete()
        await session.server.is_ended()
        assert len(bridge.source.servers) == 1


# --- the server of the modern callers ---


async def test_modern_callers_that_come_at_once_share_one_server() -> None:
    async with bridged() as bridge:
        exchanges = [await bridge.post_modern(modern(1, "prompts/list")) for _ in range(5)]
        server = await bridge.source.next()
        for _ in exchanges:
            server.answers(await server.hears("prompts/list"))
        assert {(await exchange.answer()).status for exchange in exchanges} == {200}
        assert len(bridge.source.servers) == 1


async def test_idle_modern_server_is_let_go_but_not_with_a_caller_or_after_a_cancelled_one() -> None:
    async with bridged(timing=replace(UNHURRIED, session_idle=0.2)) as bridge:
        server = await bridge.modern_server()
        witness = await bridge.session()
        gone = await bridge.post_modern(modern(1, "prompts/list"))
        await server.hears("prompts/list")
        exchange = await bridge.post_modern(modern(1, "prompts/list"))
        asked = await server.hears("prompts/list")
        gone.reset()
        await server.hears("notifications/cancelled")  # and that one is never answered
        await witness.server.is_ended()
        assert not server.closed.is_set()
        server.answers(asked)
        assert (await exchange.answer()).status == 200
        await server.is_ended()
        await bridge.modern_server()


class History(Restarts):
    """Remembers what it is told, and holds the next start for as long as the test says."""

    def __init__(self, policy: RestartPolicy) -> None:
        super().__init__(policy)
        self.told: list[str] = []
        self.hold = 0.0

    def wait(self, now: float) -> float:
        return self.hold

    def failed(self, now: float) -> None:
        self.told.append("failed")

    def succeeded(self) -> None:
        self.told.append("succeeded")


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> History:
    kept = History(RestartPolicy())
    monkeypatch.setattr(bridge.relay, "Restarts", lambda policy: kept)
    return kept


async def test_modern_server_that_never_spoke_is_one_failure_however_many_ask(history: History) -> None:
    async with bridged() as bridge:
        exchange = await bridge.post_modern(modern(1, "server/discover"))
        server = await bridge.source.next()
        await server.hears("server/discover")
        server.dies()
        assert (await exchange.answer()).error["code"] == -32603
        history.hold = 1.5
        for _ in range(10):
            held = await bridge.ask_modern(modern(1, "server/discover"))
            assert (held.status, held.headers["retry-after"]) == (503, "2")
        assert history.told == ["failed"]
        history.hold = 0.0
        await bridge.modern_server()


async def test_modern_server_that_spoke_before_it_was_lost_clears_the_failures(history: History) -> None:
    async with bridged() as bridge:
        (await bridge.modern_server()).dies()
        (await bridge.modern_server()).dies()
        await bridge.modern_server()
        assert history.told == ["succeeded", "succeeded"]


# --- readiness ---


async def test_nothing_is_claimed_before_there_is_evidence() -> None:
    async with bridged(proven=False) as bridge:
        assert (bridge.relay.readiness.state, bridge.relay.readiness.ready) == (State.STARTING, False)


async def test_handshake_of_a_client_is_evidence() -> None:
    async with bridged(proven=False) as bridge:
        await bridge.session("2025-06-18")
        known = bridge.relay.readiness
        assert (known.ready, known.revision, known.server.name) == (True, "2025-06-18", "script")
        assert bridge.source.successes == 1


@pytest.mark.usefixtures("quick_checks")
async def test_server_that_fails_and_then_works_is_failing_and_then_ready_though_no_client_came() -> None:
    async with bridged(proven=False) as bridge:
        first = await bridge.source.next()
        await first.hears("initialize")
        first.dies(1, "not yet")
        await until_state(bridge, State.FAILING)
        fault = bridge.relay.readiness.fault
        assert isinstance(fault, ServerStopped)
        second = await bridge.source.next()
        await shake_hands(second)
        await until_state(bridge, State.INITIALISED)
        assert bridge.relay.readiness.fault is None
        await second.is_ended()  # it was started to be looked at
        assert bridge.source.failures == [fault]


@pytest.mark.usefixtures("quick_checks")
async def test_failure_after_success_is_told_and_looked_into() -> None:
    async with bridged() as bridge:
        opening = await bridge.post(initialize())
        server = await bridge.source.next()
        await server.hears("initialize")
        server.dies()
        await opening.answer()
        assert bridge.relay.readiness.state is State.FAILING
        await shake_hands(await bridge.source.next())
        await until_state(bridge, State.INITIALISED)


@pytest.mark.usefixtures("quick_checks")
async def test_program_that_cannot_be_started_is_failing_until_it_can() -> None:
    async with bridged(proven=False) as bridge:
        bridge.source.fault = CommandNotFound("no such program")
        await until_state(bridge, State.FAILING)
        tries = bridge.source.tries
        bridge.source.fault = CircuitOpen("left alone", retry_after=0.01)
        await until(lambda: bridge.source.tries > tries)
        assert bridge.relay.readiness.state is State.FAILING
        bridge.source.fault = None
        await shake_hands(await bridge.source.next())
        await until_state(bridge, State.INITIALISED)


@pytest.mark.usefixtures("quick_checks")
@pytest.mark.parametrize("process", [ProcessModel.SESSION, SHARED])
async def test_modern_only_server_is_ready_and_no_failure_is_held_against_it(process: ProcessModel) -> None:
    async with bridged(proven=False, process=process) as bridge:
        server = await bridge.source.next()
        server.refuses(await server.hears("initialize"), -32022, "Unsupported protocol version")
        server.answers(await server.hears("server/discover"), {"supportedVersions": [MODERN]})
        await until_state(bridge, State.INITIALISED)
        assert bridge.relay.readiness.revision == MODERN
        assert bridge.source.failures == []
        assert (await bridge.modern_server()) is not server


@pytest.mark.usefixtures("quick_checks")
async def test_server_that_refuses_both_eras_is_a_failure() -> None:
    async with bridged(proven=False) as bridge:
        server = await bridge.source.next()
        server.refuses(await server.hears("initialize"), -32601, "out of order")
        server.refuses(await server.hears("server/discover"))
        await until_state(bridge, State.FAILING)
        assert "out of order" in str(bridge.relay.readiness.fault)
        await server.is_ended()


async def test_refusal_of_a_shared_server_is_told_to_its_clients_whatever_its_text() -> None:
    async with bridged(process=SHARED) as bridge:
        opening = await bridge.post(initialize())
        server = await bridge.source.next()
        asked = await server.hears("initialize")
        server.says(b'{"jsonrpc":"2.0","id":%d,"error":{"code":1,"message":"\\ud800"}}' % int(asked.id or 0))
        answer = await opening.answer()
        assert "refused to initialize" in answer.error["message"]
        await server.is_ended()
        await share(bridge)


@pytest.mark.usefixtures("quick_checks")
async def test_shared_server_is_opened_ahead_and_that_is_the_evidence() -> None:
    async with bridged(proven=False, process=SHARED) as bridge:
        server = await bridge.source.next()
        await shake_hands(server)
        await until_state(bridge, State.INITIALISED)
        await bridge.joined(server)
        assert len(bridge.source.servers) == 1


@pytest.mark.usefixtures("quick_checks")
async def test_shared_server_that_fails_is_failing_and_tried_again() -> None:
    async with bridged(proven=False, process=SHARED) as bridge:
        first = await bridge.source.next()
        await first.hears("initialize")
        first.dies()
        await until_state(bridge, State.FAILING)
        assert len(bridge.source.failures) == 1
        await shake_hands(await bridge.source.next())
        await until_state(bridge, State.INITIALISED)


async def test_draining_is_not_ready_and_stays_so() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        exchange, asked = await session.calls(call(1))
        drained = asyncio.ensure_future(bridge.relay.drained())
        await bridge.turn()
        assert (bridge.relay.readiness.state, bridge.relay.readiness.ready) == (State.DRAINING, False)
        bridge.relay.succeeded(b"{}")
        assert not bridge.relay.readiness.ready
        assert not drained.done()
        session.server.answers(asked)
        async with asyncio.timeout(LIMIT):
            await drained
        assert (await exchange.answer()).status == 200


async def test_drain_that_takes_too_long_can_be_given_up() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        exchange, _ = await session.calls(call(1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bridge.relay.drained(), 0.01)
    assert (await exchange.answer()).error["data"]["reason"] == "session_closed"


async def test_request_that_waits_for_a_server_is_answered_when_the_bridge_stops() -> None:
    async with bridged(limits=Limits()) as bridge:
        bridge.source.gate.clear()
        legacy, new = await bridge.post(initialize()), await bridge.post_modern(modern(1, "prompts/list"))
        await bridge.handles(2)
        stopping = asyncio.ensure_future(_open_gate(bridge))
    await stopping
    for exchange in (legacy, new):
        assert (await exchange.answer()).error["code"] == -32603


async def _open_gate(bridge: Bridge) -> None:
    await until(lambda: bridge.relay.draining)
    bridge.source.gate.set()
