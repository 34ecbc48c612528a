"""What a peer of either era owes the other, where the bridge is that peer and no case says so."""

from __future__ import annotations

import pytest
from support.scripted_bridge import PREFIX, Session, bridged, call, envelope, initialize, notification
from support.scripted_bridge import modern as asked_modern

from bridge.core.params import annotations_of
from bridge.era.downgrade import downgraded
from bridge.era.revisions import Era
from crossing.bench import C0, EVERYTHING, SI, Bench, Json, opened_of
from crossing.legacy import QUIET, R1, R3, Crossed, discovery, opened
from crossing.test_upstreams import able, first, opens

NEW = f"{PREFIX}of-a-later-revision"
LISTED: Json = {"tools": []}


# --- who is who ---


@pytest.mark.spec("EV-8")
async def test_what_a_client_calls_itself_makes_no_difference() -> None:
    async with bridged(era=Era.LEGACY) as bridge:
        exchange, server, heard = await first(bridge, able({}))
        server.answers(heard, LISTED)
        assert (await exchange.answer()).status == 200
        for name in ("admin", "c"):
            meta = envelope(**{f"{PREFIX}clientInfo": {"name": name, "version": "2"}})
            again = await bridge.post_modern(asked_modern(1, "tools/list", meta=meta))
            server.answers(await server.hears("tools/list"), LISTED)
            assert (await again.answer()).result["tools"] == []
        assert len(bridge.source.servers) == 1


@pytest.mark.spec("G-13", "G-14")
async def test_requests_of_one_client_need_no_common_connection() -> None:
    """Each goes over one of its own, and only its own words say what it goes on with."""
    async with bridged(era=Era.LEGACY) as bridge:
        can: Json = {"roots": {}}
        one, server, call_one = await first(bridge, able(can, 1, "tools/call", name="a", arguments={}))
        server.says({"id": "r1", "method": "roots/list"})
        state = (await one.answer()).result["requestState"]
        other = await bridge.post_modern(able(can, 1, "tools/call", name="b", arguments={}))
        call_other = await server.hears("tools/call")
        server.answers(call_other, {"content": [], "of": "b"})
        assert (await other.answer()).result["of"] == "b"
        answers: Json = {"in-1": {"roots": []}}
        back = await bridge.post_modern(
            able(can, 1, "tools/call", name="a", arguments={}, inputResponses=answers, requestState=state)
        )
        assert (await server.hears()).result == {"roots": []}
        server.answers(call_one, {"content": [], "of": "a"})
        assert (await back.answer()).result["of"] == "a"


@pytest.mark.spec("FT-11")
async def test_what_a_server_says_of_its_tool_does_not_make_a_call_safe_to_repeat() -> None:
    async with bridged(era=Era.LEGACY) as bridge:
        exchange = await bridge.post_modern(able({}, 1, "tools/call", name="a", arguments={}))
        server = await bridge.source.next()
        await opens(server)
        hints = {"readOnlyHint": True, "idempotentHint": True}
        tool = {"name": "a", "inputSchema": {"type": "object"}, "annotations": hints}
        server.answers(await server.hears("tools/list"), {"tools": [tool]})
        await server.hears("tools/call")
        server.dies()
        assert (await exchange.answer()).error["data"]["reason"] == "upstream_lost"
        assert len(bridge.source.servers) == 1


# --- what belongs to one era only ---


@pytest.mark.spec("XH-12")
async def test_headers_of_the_modern_era_steer_nothing_in_a_legacy_session() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        strays = {"Mcp-Method": "tools/list", "Mcp-Name": "other", "Mcp-Param-Region": "us"}
        exchange, heard = await session.calls(call(1, "a", region="eu"), strays)
        assert heard.params["name"] == "a"
        session.server.answers(heard, {"content": []})
        assert (await exchange.answer()).result == {"content": []}


@pytest.mark.spec("G-15", "OT-5")
def test_reserved_keys_of_a_later_revision_pass_both_ways() -> None:
    bench = Bench()
    exchange = bench.ask(1, "tools/list", {"_meta": {NEW: {"k": 1}}})
    [sent] = bench.take_sent()
    assert sent["params"] == {"_meta": {NEW: {"k": 1}}}
    bench.result(sent["id"], {"tools": [], "_meta": {NEW: 2}})
    assert bench.answer(exchange)["result"]["_meta"] == {NEW: 2, **SI["_meta"]}

    crossed = opened()
    crossed.ask("tools/list", {"_meta": {NEW: 3}})
    heard = crossed.hears()
    assert heard["params"]["_meta"][NEW] == 3
    crossed.answers(heard, {"tools": [], "_meta": {NEW: 4}})
    assert crossed.result() == {"tools": [], "_meta": {NEW: 4}}


@pytest.mark.spec("CP-12")
def test_words_of_progress_reach_the_oldest_clients_too() -> None:
    crossed = opened(R1)
    crossed.call(_meta={"progressToken": "t"})
    token = crossed.hears()["params"]["_meta"]["progressToken"]
    told = {"progress": 1, "total": 2, "message": "half"}
    crossed.says({"method": "notifications/progress", "params": {"progressToken": token, **told}})
    assert crossed.sees("notifications/progress")["params"] == {"progressToken": "t", **told}


@pytest.mark.spec("G-17")
def test_no_schema_is_fetched_to_be_understood() -> None:
    """What these are given is all that they see: `core` and `era` cannot read anything else."""
    remote = {"$ref": "https://schemas.example/s.json"}
    schema = b'{"type":"object","properties":{"a":{"$ref":"https://schemas.example/s.json"}}}'
    assert annotations_of(schema) == ()
    bench = Bench()
    exchange = bench.ask(1, "tools/list")
    [sent] = bench.take_sent()
    tool = {"name": "a", "inputSchema": remote, "outputSchema": remote}
    bench.result(sent["id"], {"tools": [tool]})
    assert bench.answer(exchange)["result"]["tools"] == [tool]
    assert b"outputSchema" not in downgraded(
        "tools/list", b'{"tools":[{"outputSchema":{"$ref":"https://s/"}}]}', R3
    )


# --- caching ---


@pytest.mark.spec("CA-3")
def test_all_pages_of_a_list_have_one_scope() -> None:
    bench = Bench()
    hints = []
    for cursor, following in ((None, "c2"), ("c2", None)):
        exchange = bench.ask(1, "tools/list", {} if cursor is None else {"cursor": cursor})
        [sent] = bench.take_sent()
        more = {} if following is None else {"nextCursor": following}
        bench.result(sent["id"], {"tools": [], "cacheScope": "public", "ttlMs": -1, **more})
        result = bench.answer(exchange)["result"]
        hints.append((result["ttlMs"], result["cacheScope"]))
    assert hints == [(0, "private")] * 2


@pytest.mark.spec("MR-14")
def test_what_was_read_with_the_answers_of_its_client_is_not_to_be_kept() -> None:
    bench = Bench()
    read: Json = {"uri": "file:///a"}
    exchange = bench.ask(1, "resources/read", read)
    [sent] = bench.take_sent()
    bench.question(0, "roots/list", None)
    bench.clock.advance(bench.terms.coalesce)
    result = bench.answer(exchange)["result"]
    assert "ttlMs" not in result
    assert "cacheScope" not in result
    given = {"inputResponses": {"in-1": {"roots": []}}, "requestState": result["requestState"]}
    back = bench.ask(2, "resources/read", {**read, **given})
    bench.take_sent()
    bench.result(sent["id"], {"contents": []})
    assert bench.answer(back)["result"] == {"contents": [], **C0, **SI}


# --- subscriptions ---


@pytest.mark.spec("SC-11", "SB-7")
async def test_client_that_initializes_anew_after_its_modern_server_died_is_listened_for_again() -> None:
    async with bridged(era=Era.MODERN) as bridge:
        for _ in range(2):
            opening = await bridge.post(initialize())
            server = await bridge.source.next()
            server.answers(await server.hears("server/discover"), discovery(EVERYTHING))
            session = Session(bridge, server, (await opening.answer()).headers["mcp-session-id"])
            assert (await session.ask(notification("initialized"))).status == 202
            wanted = (await server.hears("subscriptions/listen")).params["notifications"]
            assert wanted == {
                "toolsListChanged": True,
                "promptsListChanged": True,
                "resourcesListChanged": True,
            }
            server.dies()
            await server.is_ended()
            answer = await session.ask({"id": 9, "method": "tools/list"})
            assert answer.status == 404


# --- tasks of 2025-11-25 ---


@pytest.mark.spec("TK-12")
@pytest.mark.parametrize("offer", [{"tasks": {"requests": {"tools": {"call": {}}}}}, {}])
def test_legacy_tasks_of_a_server_are_not_the_extension(offer: Json) -> None:
    bench = Bench(opened=opened_of(capabilities={**QUIET, **offer}))
    assert "extensions" not in bench.answer(bench.ask(1, "server/discover"))["result"]["capabilities"]


@pytest.mark.spec("TK-12")
def test_tasks_that_a_legacy_client_declares_are_not_the_extension() -> None:
    crossed = Crossed()
    crossed.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {"tasks": {}}})
    crossed.answers(crossed.hears(), discovery())
    crossed.seen.clear()
    crossed.ask("tools/list")
    assert crossed.hears()["params"]["_meta"][f"{PREFIX}clientCapabilities"] == {}
