"""Modern clients over HTTP, a legacy server: which upstream session serves whom, and what becomes of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from field.raw import Exchange
from support.scripted_bridge import PREFIX, UNHURRIED, Bridge, bridged, envelope, modern
from support.scripted_server import LIMIT, Heard, Json, ScriptedServer

import bridge.crossing
from bridge import __version__
from bridge.config import Access, Isolation, Limits, WhenFull
from bridge.era.revisions import Era
from bridge.era.terms import Declare, Terms

EL: Json = {
    "message": "Name?",
    "requestedSchema": {"type": "object", "properties": {"n": {"type": "string"}}},
}
ELICITS: Json = {"elicitation": {}}
SAMPLES: Json = {"sampling": {}}
EVERYTHING: Json = {
    "tools": {"listChanged": True},
    "prompts": {},
    "resources": {"subscribe": True},
    "logging": {},
    "completions": {},
}


def opened(revision: str = "2025-11-25", capabilities: Json | None = None) -> Json:
    """An InitializeResult."""
    return {
        "protocolVersion": revision,
        "capabilities": EVERYTHING if capabilities is None else capabilities,
        "serverInfo": {"name": "up", "version": "9"},
    }


def able(capabilities: Json, request_id: int = 1, method: str = "tools/list", **params: object) -> Json:
    """A request of a client with these capabilities."""
    return modern(
        request_id, method, meta=envelope(**{f"{PREFIX}clientCapabilities": capabilities}), **params
    )


def called(capabilities: Json, request_id: int = 1, **more: object) -> Json:
    return able(capabilities, request_id, "tools/call", name="a", arguments={}, **more)


async def opens(server: ScriptedServer, result: Json | None = None) -> Heard:
    """Answer the bridge's own handshake; its initialize."""
    asked = await server.hears("initialize")
    server.answers(asked, result or opened())
    await server.hears("notifications/initialized")
    return asked


async def first(bridge: Bridge, message: Json) -> tuple[Exchange, ScriptedServer, Heard]:
    """A request for which an upstream session is opened, and the request as the server got it."""
    exchange = await bridge.post_modern(message)
    server = await bridge.source.next()
    await opens(server)
    if message["method"] == "tools/call":
        server.answers(await server.hears("tools/list"), {"tools": []})  # to know what headers repeat
    return exchange, server, await server.hears(message["method"])


# --- opening ---


@pytest.mark.crossing("A1")
@pytest.mark.spec("LC-7", "SC-13")
@pytest.mark.case("RV-03")
async def test_first_discover_makes_the_bridge_initialize_and_nothing_else() -> None:
    async with bridged(era=Era.LEGACY) as bridge:
        exchange = await bridge.post_modern(modern(1, "server/discover"))
        server = await bridge.source.next()
        asked = await opens(server)
        assert asked.params == {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "mcp-bridge", "version": __version__},
        }
        answer = await exchange.answer()
        assert (answer.status, answer.last["id"]) == (200, 1)
        assert answer.result["supportedVersions"] == ["2026-07-28"]
        assert not server.unread


DECLARED = [
    pytest.param(ELICITS, {"elicitation": {}}, marks=pytest.mark.crossing("A3")),
    pytest.param(
        {"elicitation": {"url": {}}}, {"elicitation": {"url": {}}}, marks=pytest.mark.crossing("A4")
    ),
    pytest.param(
        {
            "roots": {},
            "sampling": {"tools": {}},
            "elicitation": {"form": {}, "url": {}},
            "extensions": {"io.modelcontextprotocol/tasks": {}},
        },
        {"roots": {}, "sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}},
        marks=pytest.mark.crossing("A5"),
    ),
]


@pytest.mark.parametrize(("capabilities", "declared"), DECLARED)
async def test_upstream_session_declares_what_the_client_can_do(capabilities: Json, declared: Json) -> None:
    async with bridged(era=Era.LEGACY) as bridge:
        await bridge.post_modern(called(capabilities))
        server = await bridge.source.next()
        assert (await opens(server)).params["capabilities"] == declared


@pytest.mark.crossing("A6", "A7")
@pytest.mark.case("RV-03")
async def test_each_set_of_capabilities_has_one_upstream_session() -> None:
    async with bridged(era=Era.LEGACY) as bridge:
        exchange, server, asked = await first(bridge, able({}))
        server.answers(asked, {"tools": []})
        assert (await exchange.answer()).status == 200
        again = await bridge.post_modern(able({}))
        server.answers(await server.hears("tools/list"), {"tools": []})
        assert (await again.answer()).status == 200
        other, sampling, asked = await first(bridge, able(SAMPLES))
        sampling.answers(asked, {"tools": []})
        assert (await other.answer()).status == 200
        assert not server.closed.is_set()
        assert len(bridge.source.servers) == 2


@pytest.mark.crossing("A8")
async def test_at_the_limit_the_largest_subset_serves_and_still_asks() -> None:
    async with bridged(era=Era.LEGACY, limits=Limits(upstreams_per_subject=1)) as bridge:
        held, server, asked = await first(bridge, called(ELICITS))
        exchange = await bridge.post_modern(called({**ELICITS, "roots": {}}, 2))
        mine = await server.hears("tools/call")
        server.says({"id": 0, "method": "elicitation/create", "params": EL})
        answer = await exchange.answer()
        assert answer.result["resultType"] == "input_required"
        assert answer.result["inputRequests"] == {"in-1": {"method": "elicitation/create", "params": EL}}
        assert len(bridge.source.servers) == 1
        server.answers(asked)
        server.answers(mine)
        assert (await held.answer()).status == 200


@pytest.mark.crossing("A9")
async def test_request_of_no_capabilities_never_runs_where_more_is_declared() -> None:
    async with bridged(era=Era.LEGACY, limits=Limits(upstreams_per_subject=2)) as bridge:
        busy = [await first(bridge, called(one)) for one in (ELICITS, SAMPLES)]
        exchange, server, asked = await first(bridge, called({}))
        assert server not in [server for _, server, _ in busy]
        server.answers(asked)
        assert (await exchange.answer()).status == 200


async def test_at_the_limit_an_idle_upstream_session_makes_room() -> None:
    async with bridged(era=Era.LEGACY, limits=Limits(upstreams_per_subject=1)) as bridge:
        exchange, server, asked = await first(bridge, able(ELICITS))
        server.answers(asked, {"tools": []})
        await exchange.answer()
        _, other, _ = await first(bridge, able(SAMPLES))
        await server.is_ended()
        assert not other.closed.is_set()


@pytest.mark.crossing("A10")
async def test_three_first_requests_of_one_set_share_one_handshake() -> None:
    async with bridged(era=Era.LEGACY) as bridge:
        exchanges = [await bridge.post_modern(able({}, number)) for number in (1, 2, 3)]
        server = await bridge.source.next()
        await bridge.handles(3)
        await opens(server)
        for _ in exchanges:
            server.answers(await server.hears("tools/list"), {"tools": []})
        assert [(await exchange.answer()).last["id"] for exchange in exchanges] == [1, 2, 3]
        assert len(bridge.source.servers) == 1
        assert not server.unread


@pytest.mark.crossing("A11")
async def test_client_that_leaves_during_the_handshake_cancels_nothing() -> None:
    async with bridged(era=Era.LEGACY) as bridge:
        exchange = await bridge.post_modern(able({}))
        server = await bridge.source.next()
        asked = await server.hears("initialize")
        exchange.reset()
        await bridge.handles(0)
        server.answers(asked, opened())
        await server.hears("notifications/initialized")
        again = await bridge.post_modern(able({}, 2))
        assert (await server.hears()).method == "tools/list"
        assert len(bridge.source.servers) == 1
        again.reset()


@pytest.mark.crossing("A12")
@pytest.mark.spec("LC-9")
async def test_server_of_an_unknown_revision_is_given_up() -> None:
    async with bridged(era=Era.LEGACY) as bridge:
        exchange = await bridge.post_modern(able({}))
        server = await bridge.source.next()
        server.answers(await server.hears("initialize"), opened("2031-01-01"))
        answer = await exchange.answer()
        assert (answer.status, answer.error["code"]) == (200, -32603)
        assert answer.error["data"] == {"origin": "bridge", "reason": "upstream_version"}
        await server.is_ended()
        assert not server.unread, "it was not told that it is initialized"


# --- loss ---


@pytest.mark.crossing("G8")
async def test_call_that_was_lost_with_its_server_is_not_sent_again() -> None:
    async with bridged(era=Era.LEGACY) as bridge:
        exchange, server, _ = await first(bridge, called({}))
        server.dies(1, "out of memory")
        answer = await exchange.answer()
        assert (answer.status, answer.error["code"]) == (200, -32603)
        assert (answer.error["data"]["origin"], answer.error["data"]["reason"]) == ("bridge", "upstream_lost")
        assert len(bridge.source.servers) == 1


@pytest.mark.crossing("G8")
@pytest.mark.parametrize("method", ["tools/list", "prompts/list", "resources/list"])
async def test_list_that_was_lost_with_its_server_is_asked_once_more(method: str) -> None:
    async with bridged(era=Era.LEGACY) as bridge:
        exchange, server, _ = await first(bridge, able({}, method=method))
        server.dies()
        second = await bridge.source.next()
        await opens(second)
        second.answers(await second.hears(method), {"x": 1})
        assert (await exchange.answer()).result["x"] == 1
        assert not second.unread


async def test_list_that_was_lost_twice_is_answered_with_the_loss() -> None:
    async with bridged(era=Era.LEGACY) as bridge:
        exchange, server, _ = await first(bridge, able({}))
        server.dies()
        second = await bridge.source.next()
        await opens(second)
        await second.hears("tools/list")
        second.dies()
        answer = await exchange.answer()
        assert answer.error["data"]["reason"] == "upstream_lost"
        assert len(bridge.source.servers) == 2


@pytest.mark.crossing("F9")
async def test_subscription_moves_to_the_next_upstream_session_and_tells_what_may_have_changed() -> None:
    async with bridged(era=Era.LEGACY) as bridge:
        wanted = {"toolsListChanged": True, "resourceSubscriptions": ["file:///a"]}
        exchange = await bridge.post_modern(modern("L", "subscriptions/listen", notifications=wanted))
        server = await bridge.source.next()
        await opens(server)
        server.answers(await server.hears("resources/subscribe"))
        assert (await exchange.event()).message["method"] == "notifications/subscriptions/acknowledged"
        server.dies()
        second = await bridge.source.next()
        await opens(second)
        second.answers(await second.hears("resources/subscribe"))
        told = [(await exchange.event()).message, (await exchange.event()).message]
        assert [one["method"] for one in told] == [
            "notifications/tools/list_changed",
            "notifications/resources/updated",
        ]
        assert all(one["params"]["_meta"][f"{PREFIX}subscriptionId"] == "L" for one in told)
        exchange.reset()


async def test_subscription_whose_server_does_not_come_back_ends_in_good_order() -> None:
    async with bridged(era=Era.LEGACY, timing=replace(UNHURRIED, relisten=0.05)) as bridge:
        wanted = {"toolsListChanged": True}
        exchange = await bridge.post_modern(modern("L", "subscriptions/listen", notifications=wanted))
        server = await bridge.source.next()
        await opens(server)
        await exchange.event()
        bridge.source.gate.clear()
        server.dies()
        last = (await exchange.answer()).messages[-1]
        assert last == {
            "jsonrpc": "2.0",
            "id": "L",
            "result": {"resultType": "complete", "_meta": {f"{PREFIX}subscriptionId": "L"}},
        }
        bridge.source.gate.set()


# --- what headers repeat ---


@pytest.mark.crossing("G17")
async def test_first_call_makes_the_bridge_walk_all_pages_of_tools() -> None:
    async with bridged(era=Era.LEGACY) as bridge:
        await bridge.post_modern(called({}))
        server = await bridge.source.next()
        await opens(server)
        asked = await server.hears("tools/list")
        assert asked.params == {}
        server.answers(asked, {"tools": [{"name": "b", "inputSchema": {}}], "nextCursor": "c2"})
        asked = await server.hears("tools/list")
        assert asked.params == {"cursor": "c2"}
        server.answers(asked, {"tools": [{"name": "a", "inputSchema": {}}]})
        assert (await server.hears()).method == "tools/call"


# --- isolation, limits ---


async def test_superset_declares_everything_in_one_upstream_session() -> None:
    async with bridged(era=Era.LEGACY, terms=Terms(declare=Declare.SUPERSET)) as bridge:
        exchange = await bridge.post_modern(able({}))
        server = await bridge.source.next()
        assert (await opens(server)).params["capabilities"] == {
            "roots": {},
            "sampling": {"tools": {}, "context": {}},
            "elicitation": {"form": {}, "url": {}},
        }
        await server.hears("tools/list")
        await bridge.post_modern(able(SAMPLES))
        await server.hears("tools/list")
        assert len(bridge.source.servers) == 1
        exchange.reset()


async def test_each_request_has_an_upstream_session_of_its_own_where_that_is_wanted() -> None:
    async with bridged(era=Era.LEGACY, isolation=Isolation.REQUEST) as bridge:
        for _ in range(2):
            exchange, server, asked = await first(bridge, able(ELICITS))
            server.answers(asked, {"tools": []})
            assert (await exchange.answer()).status == 200
            await server.is_ended()


async def test_client_names_are_told_where_that_is_wanted_and_kept_apart() -> None:
    async with bridged(era=Era.LEGACY, terms=Terms(forward_identity=True)) as bridge:
        for name in ("one", "two"):
            client = {"name": name, "version": "1"}
            await bridge.post_modern(
                modern(1, "tools/list", meta=envelope(**{f"{PREFIX}clientInfo": client}))
            )
            server = await bridge.source.next()
            assert (await opens(server)).params["clientInfo"] == client


@pytest.mark.parametrize("policy", [WhenFull.REFUSE, WhenFull.WAIT])
async def test_pool_that_is_exhausted_refuses_or_lets_wait(policy: WhenFull) -> None:
    limits = Limits(upstreams=1)
    async with bridged(era=Era.LEGACY, limits=limits, when_full=policy) as bridge:
        held, server, asked = await first(bridge, called(ELICITS))
        exchange = await bridge.post_modern(able(SAMPLES))
        if policy is WhenFull.REFUSE:
            answer = await exchange.answer()
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert answer.error["data"]["reason"] == "upstreams"
            server.answers(asked)
        else:
            await bridge.handles(2)
            server.answers(asked)
            second = await bridge.source.next()
            await opens(second)
            second.answers(await second.hears("tools/list"), {"tools": []})
            assert (await exchange.answer()).status == 200
            await server.is_ended()
        assert (await held.answer()).status == 200


async def test_request_that_waited_for_room_in_vain_is_refused() -> None:
    limits, timing = Limits(upstreams=1), replace(UNHURRIED, queue=0.1)
    async with bridged(era=Era.LEGACY, limits=limits, timing=timing) as bridge:
        held, server, asked = await first(bridge, called(ELICITS))
        answer = await (await bridge.post_modern(able(SAMPLES))).answer()
        assert (answer.status, answer.error["data"]["reason"]) == (503, "upstreams")
        server.answers(asked)
        assert (await held.answer()).status == 200


async def test_upstream_session_that_was_waited_for_is_kept_and_counted() -> None:
    limits, terms = Limits(upstreams=1), Terms(forward_identity=True)
    timing = replace(UNHURRIED, session_idle=0.2)

    def named(name: str, request_id: int = 1) -> Json:
        client = {"name": name, "version": "1"}
        return modern(request_id, "tools/list", meta=envelope(**{f"{PREFIX}clientInfo": client}))

    async with bridged(era=Era.LEGACY, limits=limits, terms=terms, timing=timing) as bridge:
        held, server, asked = await first(bridge, named("one"))
        waits = await bridge.post_modern(named("two"))
        await bridge.handles(2)
        idle = await bridge.session()
        await idle.server.is_ended()  # by the look that lets go of everything nobody uses
        server.answers(asked, {"tools": []})
        second = await bridge.source.next()
        await opens(second)
        second.answers(await second.hears("tools/list"), {"tools": []})
        assert (await waits.answer()).status == 200
        again = await bridge.post_modern(named("two", 2))
        second.answers(await second.hears("tools/list"), {"tools": []})
        assert (await again.answer()).status == 200
        assert (await held.answer()).status == 200


async def test_server_that_does_not_list_its_tools_holds_up_nobody_elses_calls() -> None:
    async with bridged(era=Era.LEGACY) as bridge:
        await bridge.post_modern(called(ELICITS))
        hangs = await bridge.source.next()
        await opens(hangs)
        await hangs.hears("tools/list")
        exchange, server, asked = await first(bridge, called(SAMPLES))
        server.answers(asked, {"content": []})
        assert (await exchange.answer()).status == 200


async def test_upstream_session_that_nobody_uses_ends() -> None:
    timing = replace(UNHURRIED, upstream_idle=0.0, session_idle=0.2)
    async with bridged(era=Era.LEGACY, timing=timing) as bridge:
        exchange, server, asked = await first(bridge, able({}))
        server.answers(asked, {"tools": []})
        await exchange.answer()
        await server.is_ended()


async def test_bearer_makes_answers_private() -> None:
    async with bridged(era=Era.LEGACY, access=Access(token="t" * 16)) as bridge:
        exchange, server, asked = await first(bridge, able({}))
        server.answers(asked, {"tools": []})
        assert (await exchange.answer()).result["cacheScope"] == "private"


# --- rounds over HTTP ---


@pytest.mark.crossing("D1", "D2", "D9")
@pytest.mark.case("RV-03")
async def test_question_and_answer_travel_over_two_requests_and_a_state_works_once() -> None:
    async with bridged(era=Era.LEGACY) as bridge:
        exchange, server, asked = await first(bridge, called(ELICITS))
        server.says({"id": 0, "method": "elicitation/create", "params": EL})
        answer = await exchange.answer()
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        state = answer.result["requestState"]
        answered = {"in-1": {"action": "accept", "content": {"n": "x"}}}
        retry = called(ELICITS, 2, inputResponses=answered, requestState=state)
        second = await bridge.post_modern(retry)
        heard = await server.hears()
        assert (heard.id, heard.result) == (0, answered["in-1"])
        server.answers(asked, {"content": []})
        last = (await second.answer()).last
        assert (last["id"], last["result"]["content"]) == (2, [])
        stolen = await bridge.ask_modern({**retry, "id": 3})
        assert (stolen.status, stolen.error["code"]) == (400, -32602)
        assert stolen.error["data"] == {"origin": "bridge", "reason": "invalid_request_state"}
        assert not server.unread


@pytest.mark.crossing("D41", "E9")
async def test_connection_that_closes_during_a_retry_cancels_the_call() -> None:
    async with bridged(era=Era.LEGACY) as bridge:
        exchange, server, asked = await first(bridge, called(ELICITS))
        server.says({"id": 0, "method": "elicitation/create", "params": EL})
        state = (await exchange.answer()).result["requestState"]
        responses = {"in-1": {"action": "decline"}}
        second = await bridge.post_modern(called(ELICITS, 2, inputResponses=responses, requestState=state))
        assert (await server.hears()).result == {"action": "decline"}
        second.reset()
        assert (await server.hears("notifications/cancelled")).params == {"requestId": asked.id}
        server.answers(asked)
        assert not server.unread


@pytest.mark.crossing("D13")
async def test_state_whose_call_was_lost_with_its_server_is_answered_with_the_loss() -> None:
    async with bridged(era=Era.LEGACY) as bridge:
        exchange, server, _ = await first(bridge, called(ELICITS))
        server.says({"id": 0, "method": "elicitation/create", "params": EL})
        state = (await exchange.answer()).result["requestState"]
        server.dies()
        async with asyncio.timeout(LIMIT):
            answer = await bridge.ask_modern(called(ELICITS, 2, inputResponses={}, requestState=state))
        assert (answer.status, answer.error["code"]) == (200, -32603)
        assert answer.error["data"] == {"origin": "bridge", "reason": "call_lost"}


# --- strangers ---


@pytest.mark.parametrize("isolation", [Isolation.PRINCIPAL, Isolation.SHARED])
async def test_strangers_share_only_where_that_is_wanted_and_are_asked_nothing(isolation: Isolation) -> None:
    async with bridged(era=Era.LEGACY, isolation=isolation, host="0.0.0.0") as bridge:
        exchange = await bridge.post_modern(able(ELICITS))
        if isolation is Isolation.PRINCIPAL:
            answer = await exchange.answer()
            assert (answer.status, answer.error["code"]) == (200, -32603)
            assert answer.error["data"] == {"origin": "bridge", "reason": "isolation"}
            assert "--isolation shared" in answer.error["message"]
            assert bridge.source.servers == []
            return
        server = await bridge.source.next()
        assert (await opens(server)).params["capabilities"] == {}
        server.answers(await server.hears("tools/list"), {"tools": []})
        assert (await exchange.answer()).status == 200


@pytest.mark.crossing("F8")
async def test_equal_changes_for_a_client_that_does_not_read_are_one() -> None:
    async with bridged(era=Era.LEGACY) as bridge:
        wanted = {"toolsListChanged": True, "resourcesListChanged": True}
        everything = {**EVERYTHING, "resources": {"listChanged": True}}
        exchange = await bridge.post_modern(modern("L", "subscriptions/listen", notifications=wanted))
        server = await bridge.source.next()
        await opens(server, opened(capabilities=everything))
        await exchange.event()
        for _ in range(3):
            for _ in range(10):
                server.notes("tools/list_changed")
            server.notes("resources/list_changed")
        told = [(await exchange.event()).message["method"] for _ in range(2)]
        assert told == ["notifications/tools/list_changed", "notifications/resources/list_changed"]
        await server_says_more(server, exchange)


async def server_says_more(server: ScriptedServer, exchange: Exchange) -> None:
    """What comes next is news: nothing of what was said before waits."""
    await asyncio.sleep(0)
    server.notes("resources/list_changed")
    assert (await exchange.event()).message["method"] == "notifications/resources/list_changed"


# --- ahead of need ---


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge.crossing, "_QUIET", 0.0)


@pytest.mark.usefixtures("eager")
async def test_next_upstream_session_of_a_set_is_initialized_ahead_of_need() -> None:
    async with bridged(era=Era.LEGACY, warm=1) as bridge:
        exchange, server, asked = await first(bridge, able(ELICITS))
        spare = await bridge.source.next()
        assert (await opens(spare)).params["capabilities"] == ELICITS
        server.answers(asked, {"tools": []})
        await exchange.answer()
        server.dies()
        again = await bridge.post_modern(able(ELICITS))
        spare.answers(await spare.hears("tools/list"), {"tools": []})
        assert (await again.answer()).status == 200
        await opens(await bridge.source.next())


@pytest.mark.usefixtures("eager")
async def test_spare_of_a_set_that_is_not_used_any_more_makes_room_for_another() -> None:
    async with bridged(era=Era.LEGACY, warm=1) as bridge:
        await first(bridge, able(ELICITS))
        spare = await bridge.source.next()
        await opens(spare)
        await first(bridge, able(SAMPLES))
        await opens(await bridge.source.next())
        await spare.is_ended()
