"""Several replicas of the bridge: a call goes on where it is held, whichever of them its client meets."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from field.raw import BOTH, Answer, ask, opened
from support.scripted_bridge import UNHURRIED, envelope, initialized, mirrored, modern
from support.scripted_replicas import (
    ACCEPT,
    EL,
    ELICITS,
    KEYS,
    OTHERS_KEYS,
    Suspended,
    assert_elsewhere,
    called,
    proof_of,
    replica,
    retried,
    state_of,
    suspended,
    went_on,
)
from support.scripted_server import Json, dump

from bridge.app import running
from bridge.config import Access, Command, Config, Listen, Replicas
from bridge.era.revisions import Era


@pytest.mark.crossing("D14")
async def test_call_goes_on_with_the_replica_that_holds_it() -> None:
    async with replica("r2") as other, replica("r1", ("r2", other.url)) as bridge:
        call = await suspended(other)
        exchange = await bridge.post_modern(retried(call.state))
        await went_on(call)
        call.server.answers(call.asked, {"content": []})
        answer = await exchange.answer()
        assert (answer.status, answer.last["id"]) == (200, 2)
        assert (answer.result["content"], answer.result["resultType"]) == ([], "complete")
        assert answer.headers["content-type"] == "application/json"
        assert "mcp-bridge-answered" not in answer.headers
        assert bridge.source.servers == []
        again = await bridge.ask_modern(retried(call.state, 3))
        assert (again.status, again.error["data"]["reason"]) == (400, "invalid_request_state")


@pytest.mark.crossing("D14")
@pytest.mark.parametrize("keys", [KEYS, None])
async def test_call_of_another_replica_cannot_go_on_without_peers(keys: str | None) -> None:
    async with replica("r2") as other, replica("r1", keys=keys) as bridge:
        call = await suspended(other)
        answer = await bridge.ask_modern(retried(call.state))
        if keys is None:  # not even the state can be read
            assert answer.error["data"]["reason"] == "invalid_request_state"
        else:
            assert_elsewhere(answer)
        assert not call.server.unread


@pytest.mark.crossing("D14")
async def test_what_is_streamed_there_is_streamed_here_at_once() -> None:
    async with replica("r2") as other, replica("r1", ("r2", other.url)) as bridge:
        exchange = await other.post_modern(called(meta={"progressToken": "first"}))
        server = await other.source.next()
        server.answers(await server.hears("initialize"), initialized())
        await server.hears("notifications/initialized")
        server.answers(await server.hears("tools/list"), {"tools": []})
        asked = await server.hears("tools/call")
        server.asks("elicitation/create", 0, **EL)
        state = (await exchange.answer()).result["requestState"]
        exchange = await bridge.post_modern(retried(state, meta={"progressToken": "second"}))
        await went_on(Suspended(state, server, asked))
        server.progresses(asked, 1)
        assert (await exchange.message())["params"] == {"progressToken": "second", "progress": 1}
        assert exchange.headers["content-type"] == "text/event-stream"
        assert exchange.headers["x-accel-buffering"] == "no"
        server.answers(asked, {"content": []})
        assert (await exchange.message())["id"] == 2
        assert await exchange.block() is None


@pytest.mark.crossing("D14")
async def test_client_that_leaves_cancels_there() -> None:
    async with replica("r2") as other, replica("r1", ("r2", other.url)) as bridge:
        call = await suspended(other)
        exchange = await bridge.post_modern(retried(call.state))
        await went_on(call)
        exchange.reset()
        cancelled = await call.server.hears("notifications/cancelled")
        assert cancelled.params["requestId"] == call.asked.id


@pytest.mark.crossing("D14")
async def test_client_that_leaves_a_stream_cancels_there() -> None:
    async with replica("r2", timing=replace(UNHURRIED, commit_modern=0.01)) as other:
        async with replica("r1", ("r2", other.url)) as bridge:
            call = await suspended(other)
            exchange = await bridge.post_modern(retried(call.state))
            await went_on(call)
            assert await exchange.head() == 200
            exchange.reset()
            await call.server.hears("notifications/cancelled")


@pytest.mark.crossing("D14")
async def test_large_request_is_passed_whole() -> None:
    async with replica("r2") as other, replica("r1", ("r2", other.url)) as bridge:
        call = await suspended(other)
        answers = {"in-1": {"action": "accept", "content": {"n": "x" * 2_000_000}}}
        exchange = await bridge.post_modern(called(2, inputResponses=answers, requestState=call.state))
        heard = await call.server.hears()
        assert json.loads(heard.raw)["result"] == answers["in-1"]
        call.server.answers(call.asked, {"content": []})
        assert (await exchange.answer()).result["content"] == []


async def test_every_copy_of_a_header_is_passed_for_the_replica_there_to_judge() -> None:
    async with replica("r2") as other, replica("r1", ("r2", other.url)) as bridge:
        message = retried(state_of("r2"))
        body = dump({"jsonrpc": "2.0", **message})
        common = {**mirrored(message), "Content-Type": "application/json", "Accept": BOTH}
        twice = [("Mcp-Param-X", "1"), ("Mcp-Param-X", "2"), ("Mcp-Session-Id", "s")]
        async with opened(bridge.port, "POST", [*common.items(), *twice], body) as exchange:
            await exchange.answer()
        passed = [(name, value) for name, value in other.lines if name.lower().startswith("mcp-")]
        assert twice[:2] == [one for one in passed if one[0] == "Mcp-Param-X"]
        assert "Mcp-Session-Id" not in {name for name, _ in passed}


@pytest.mark.crossing("D14")
async def test_whole_bridges_with_servers_of_their_own_serve_one_client_together() -> None:
    async with whole("r2") as other, whole("r1", ("r2", other)) as bridge:
        first = await asked(other, tool(1))
        state = first.result["requestState"]
        again = await asked(bridge, tool(2, inputResponses=ACCEPT, requestState=state))
        assert (again.status, again.last["id"]) == (200, 2)
        assert again.result["structuredContent"] == ACCEPT["in-1"]
    del first, again
    gc.collect()  # a connection that was left open would be told now


@asynccontextmanager
async def whole(name: str, *peers: tuple[str, str]) -> AsyncIterator[str]:
    """A bridge as it is started, before a server that is a process; its URL."""
    command = Command(argv=(sys.executable, "-m", "bridge.demo_server"), inherit_env=("PYTHON*",))
    replicas = Replicas(name=name, keys=KEYS, peers=peers)
    config = Config(
        upstream=command, era=Era.LEGACY, warm=0, listen=Listen(port=0), timing=UNHURRIED, replicas=replicas
    )
    async with running(config, os.environ) as (_, served):
        yield served.url


def tool(request_id: int, **more: object) -> Json:
    return modern(request_id, "tools/call", meta=envelope(**ELICITS), name="ask", arguments={}, **more)


async def asked(url: str, message: Json) -> Answer:
    headers = {**mirrored(message), "Content-Type": "application/json", "Accept": BOTH}
    port = int(url.rpartition(":")[2].removesuffix("/mcp"))
    return await ask(port, "POST", [*headers.items()], dump({"jsonrpc": "2.0", **message}))


async def test_credentials_of_the_client_stay_where_it_came_in() -> None:
    access = Access(token="secret")
    bearer = {"Authorization": "Bearer secret", "Cookie": "c=1", "Origin": "http://localhost"}
    async with replica("r2", access=access) as other:
        async with replica("r1", ("r2", other.url), access=access) as bridge:
            call = await suspended(other, {"Authorization": "Bearer secret"})
            exchange = await bridge.post_modern(retried(call.state), bearer)
            await went_on(call)
            call.server.answers(call.asked, {"content": []})
            assert (await exchange.answer()).result["content"] == []
            passed = other.seen[-1]
            assert not {"authorization", "cookie", "origin"} & passed.keys()
            assert {"mcp-method", "mcp-name", "mcp-protocol-version", "accept"} <= passed.keys()


async def test_replicas_without_a_common_key_know_nothing_of_each_other() -> None:
    """A state of ours that names them, as after a key was changed on one of them only."""
    async with replica("r2", keys=OTHERS_KEYS) as other:
        async with replica("r1", ("r2", other.url)) as bridge:
            assert_elsewhere(await bridge.ask_modern(retried(state_of("r2"))))
            assert len(other.seen) == 1
            assert other.source.servers == []


async def test_nobody_passes_on_what_was_passed_on() -> None:
    async with replica("r3") as third, replica("r2", ("r3", third.url)) as other:
        message = retried(state_of("r3"))
        answer = await other.ask_modern(message, {"Mcp-Bridge-Relayed": proof_of(message, "r2")})
        assert_elsewhere(answer)
        assert third.seen == []


async def test_peer_under_the_wrong_name_is_not_believed() -> None:
    async with replica("r3") as third, replica("r1", ("r2", third.url)) as bridge:
        assert_elsewhere(await bridge.ask_modern(retried(state_of("r2"))))
        assert len(third.seen) == 1


async def test_peer_that_lost_the_call_says_so() -> None:
    async with replica("r2") as other, replica("r1", ("r2", other.url)) as bridge:
        answer = await bridge.ask_modern(retried(state_of("r2")))
        assert (answer.status, answer.error["data"]["reason"]) == (200, "call_lost")
