"""Which eras a server process knows, found out while clients of both eras wait.

A modern client makes the bridge ask first; a legacy client is never made to wait for that: its own
`initialize` is the question, and only a refusal leads to `server/discover`. The bridge's own look at
the server's health is put off, so that all that a server hears comes of a client. Servers at a URL
are in `test_detection_http.py`.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import field.raw
import pytest
from field.raw import Exchange
from support.scripted_bridge import (
    LATEST,
    MODERN,
    PREFIX,
    UNHURRIED,
    Bridge,
    bridged,
    envelope,
    initialize,
    initialized,
    mirrored,
    modern,
    notification,
    request,
)
from support.scripted_server import Heard, Json, ScriptedServer, dump

import bridge.evidence
from bridge import __version__
from bridge.app import running
from bridge.config import Command, Config, Listen, ProcessModel
from bridge.era.revisions import LEGACY_VERSIONS
from crossing.piped import piped

VERSION = f"{PREFIX}protocolVersion"
LIST = modern(1, "tools/list")
LISTED: Json = {"tools": [{"name": "a", "inputSchema": {"type": "object"}}]}
FOREIGN = "2030-01-01"
INSTANT = replace(UNHURRIED, probe=0.0, sign_of_life=0.0)
"""A server that does not answer at once is silent."""


@pytest.fixture(autouse=True)
def _unexamined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge.evidence, "_FIRST", 3600.0)


def discovered(*versions: str) -> Json:
    return {"resultType": "complete", "supportedVersions": list(versions), "capabilities": {"tools": {}}}


def refuses(server: ScriptedServer, asked: Heard, supported: str) -> None:
    data = {"supported": [supported], "requested": MODERN}
    server.says({"id": asked.id, "error": {"code": -32022, "message": "no", "data": data}})


async def probed(bridge: Bridge, message: Json = LIST) -> tuple[Exchange, ScriptedServer, Heard]:
    """A modern request to a server of which nothing is known: it is asked for its era first."""
    exchange = await bridge.post_modern(message)
    server = await bridge.source.next()
    return exchange, server, await server.hears("server/discover")


async def translated(server: ScriptedServer) -> None:
    """The server is initialized, and serves the request that waited."""
    server.answers(await server.hears("initialize"), initialized())
    await server.hears("notifications/initialized")
    asked = await server.hears("tools/list")
    assert "_meta" not in asked.params
    server.answers(asked, LISTED)


@pytest.mark.crossing("L1")
@pytest.mark.spec("SC-13")
async def test_server_that_answers_discover_is_modern_and_never_initialized() -> None:
    async with bridged(proven=False) as bridge:
        exchange, server, asked = await probed(bridge)
        client = {"name": "mcp-bridge", "version": __version__}
        assert asked.params == {"_meta": {**envelope(), f"{PREFIX}clientInfo": client}}
        server.answers(asked, discovered(MODERN))
        forwarded = await server.hears("tools/list")
        assert forwarded.params == LIST["params"]
        assert bridge.relay.readiness.ready
        server.answers(forwarded, LISTED)
        assert (await exchange.answer()).result == LISTED
        opening = await bridge.post(initialize())
        other = await bridge.source.next()
        other.answers(await other.hears("server/discover"), discovered(MODERN))
        assert (await opening.answer()).result["protocolVersion"] == LATEST
        assert not server.unread
        assert not other.unread


LEGACY: dict[str, Json] = {
    "-32601": {"error": {"code": -32601, "message": "no"}},
    "-32602": {"error": {"code": -32602, "message": "no"}},
    "-32600": {"error": {"code": -32600, "message": "no"}},
    "garbage": {"result": {"supportedVersions": 7}},
}


@pytest.mark.crossing("L2")
@pytest.mark.spec("SC-14")
@pytest.mark.case("RV-01")
@pytest.mark.parametrize("name", LEGACY)
async def test_server_that_answers_discover_otherwise_is_initialized_in_the_same_process(name: str) -> None:
    async with bridged(proven=False) as bridge:
        exchange, server, asked = await probed(bridge)
        server.says({"id": asked.id, **LEGACY[name]})
        await translated(server)
        assert (await exchange.answer()).result["tools"] == LISTED["tools"]
        assert len(bridge.source.servers) == 1


@pytest.mark.crossing("L3")
@pytest.mark.case("RV-01")
async def test_server_that_dies_of_discover_is_started_anew_and_never_asked_again() -> None:
    async with bridged(proven=False) as bridge:
        exchange, server, _ = await probed(bridge)
        server.dies(1, "unknown method")
        second = await bridge.source.next()
        await translated(second)
        await server.is_ended()
        assert (await exchange.answer()).status == 200
        second.dies(1)
        again = await bridge.post_modern(LIST)
        await translated(await bridge.source.next())
        assert (await again.answer()).status == 200


FRAGILE = """
import json, os, sys
server = {"name": "f", "version": "1"}
results = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": server},
    "tools/list": {"tools": []},
}
for line in sys.stdin:
    asked = json.loads(line)
    with open(sys.argv[1], "a") as journal:
        print(os.getpid(), asked["method"], file=journal)
    if "id" in asked:
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": results[asked["method"]]}
        print(json.dumps(answer), flush=True)
"""


@pytest.mark.crossing("L3")
@pytest.mark.case("RV-01")
async def test_process_that_ends_at_an_unknown_method_serves_modern_clients(tmp_path: Path) -> None:
    journal = tmp_path / "heard"
    fragile = Command(argv=(sys.executable, "-I", "-S", "-c", FRAGILE, str(journal)))
    headers = {"Content-Type": "application/json", "Accept": field.raw.BOTH, **mirrored(LIST)}
    async with running(Config(upstream=fragile, listen=Listen(port=0), warm=0), {}) as (_, served):
        port = int(served.listening.rpartition(":")[2])
        for _ in range(2):
            answer = await field.raw.ask(port, "POST", [*headers.items()], dump({"jsonrpc": "2.0", **LIST}))
            assert answer.result["tools"] == []
    heard = [line.split() for line in journal.read_text().splitlines()]
    assert [method for _, method in heard] == [
        "server/discover",
        "initialize",
        "notifications/initialized",
        "tools/list",
        "tools/list",
    ]
    assert len({pid for pid, _ in heard}) == 2


@pytest.mark.crossing("L4")
@pytest.mark.spec("SC-14")
@pytest.mark.case("RV-01")
async def test_silent_server_is_initialized_in_the_same_process_and_its_late_answer_ignored() -> None:
    async with bridged(proven=False, timing=INSTANT) as bridge:
        exchange, server, asked = await probed(bridge)
        opening = await server.hears("initialize")
        server.refuses(asked)
        server.answers(opening, initialized())
        await server.hears("notifications/initialized")
        server.answers(await server.hears("tools/list"), LISTED)
        assert (await exchange.answer()).result["tools"] == LISTED["tools"]
        assert not server.unread, "and the question is never cancelled"
        assert len(bridge.source.servers) == 1


async def test_time_of_a_slow_starter_begins_with_its_first_sign_of_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stirs = asyncio.Event()

    async def awake(_: ScriptedServer) -> None:
        await stirs.wait()

    monkeypatch.setattr(ScriptedServer, "awake", awake)
    async with bridged(proven=False, timing=replace(INSTANT, sign_of_life=3600.0)) as bridge:
        exchange, server, _ = await probed(bridge)
        for _ in range(100):
            await bridge.turn()
        assert not server.unread
        stirs.set()
        await translated(server)
        assert (await exchange.answer()).status == 200


async def test_time_limit_of_requests_does_not_cut_the_question_short() -> None:
    timing = replace(INSTANT, request=0.1, probe=0.2)
    async with bridged(proven=False, timing=timing) as bridge:
        exchange, server, _ = await probed(bridge)
        await translated(server)
        assert (await exchange.answer()).status == 200


@pytest.mark.crossing("L5")
@pytest.mark.case("RV-01")
async def test_server_that_refuses_the_version_but_names_a_legacy_one_is_initialized() -> None:
    async with bridged(proven=False) as bridge:
        exchange, server, asked = await probed(bridge)
        refuses(server, asked, LATEST)
        await translated(server)
        assert (await exchange.answer()).status == 200
        assert len(bridge.source.servers) == 1


@pytest.mark.crossing("L5")
async def test_server_without_a_common_version_fails_with_both_lists() -> None:
    async with bridged(proven=False) as bridge:
        exchange, server, asked = await probed(bridge)
        refuses(server, asked, FOREIGN)
        error = (await exchange.answer()).error
        assert (error["code"], error["data"]["origin"]) == (-32603, "bridge")
        for version in (FOREIGN, *LEGACY_VERSIONS, MODERN):
            assert version in error["message"]
        assert not server.unread


async def test_version_in_common_is_asked_with_once_more_and_no_more() -> None:
    async with bridged(proven=False) as bridge:
        exchange, server, asked = await probed(bridge)
        refuses(server, asked, MODERN)
        again = await server.hears("server/discover")
        assert again.params == asked.params
        refuses(server, again, MODERN)
        server.answers(await server.hears("tools/list"), LISTED)
        assert (await exchange.answer()).status == 200


@pytest.mark.crossing("L6")
async def test_server_that_discovers_legacy_versions_only_is_legacy() -> None:
    async with bridged(proven=False) as bridge:
        exchange, server, asked = await probed(bridge)
        server.answers(asked, discovered(LATEST))
        await translated(server)
        assert (await exchange.answer()).status == 200
        assert len(bridge.source.servers) == 1


@pytest.mark.crossing("L7")
async def test_slow_starter_that_refuses_initialize_is_asked_once_more_and_modern() -> None:
    async with bridged(proven=False, timing=replace(INSTANT, probe=0.2)) as bridge:
        exchange, slow, _ = await probed(bridge)
        refuses(slow, await slow.hears("initialize"), MODERN)
        slow.answers(await slow.hears("server/discover"), discovered(MODERN))
        server = await bridge.source.next()
        asked = await server.hears("tools/list")
        assert asked.params == LIST["params"]
        server.answers(asked, LISTED)
        assert (await exchange.answer()).result == LISTED
        await slow.is_ended()


@pytest.mark.crossing("L17")
@pytest.mark.spec("EV-16")
async def test_modern_server_that_knows_discover_no_more_is_asked_once_and_its_sessions_end() -> None:
    async with bridged(proven=False) as bridge:
        exchange, old, asked = await probed(bridge)
        old.answers(asked, discovered(MODERN))
        old.answers(await old.hears("tools/list"), LISTED)
        await exchange.answer()
        opening = await bridge.post(initialize())
        own = await bridge.source.next()
        own.answers(await own.hears("server/discover"), discovered(MODERN))
        session = {"Mcp-Session-Id": (await opening.answer()).headers["mcp-session-id"]}

        exchanges = [await bridge.post_modern(modern(2, "server/discover")) for _ in range(2)]
        for asked in [await old.hears("server/discover") for _ in exchanges]:
            old.refuses(asked)
        for exchange in exchanges:
            answer = await exchange.answer()
            assert (answer.status, answer.error["code"]) == (404, -32601)
        new = await bridge.source.next()
        new.refuses(await new.hears("server/discover"))
        await old.is_ended()
        await own.is_ended()
        assert (await bridge.ask(request(3, "tools/list"), session)).status == 404

        exchange = await bridge.post_modern(LIST)
        await translated(new)
        assert (await exchange.answer()).status == 200
        assert len(bridge.source.servers) == 3


# --- a legacy client comes first ---


@pytest.mark.case("RV-01")
async def test_legacy_client_is_not_made_to_wait_for_a_question() -> None:
    async with bridged(proven=False) as bridge:
        session = await bridge.session()
        assert not session.server.unread
        assert len(bridge.source.servers) == 1


@pytest.mark.spec("EV-16")
@pytest.mark.parametrize("process", list(ProcessModel))
async def test_legacy_client_of_a_modern_server_is_served_after_its_initialize_was_refused(
    process: ProcessModel,
) -> None:
    shared = process is ProcessModel.SHARED
    async with bridged(proven=False, process=process) as bridge:
        opening = await bridge.post(initialize())
        first = await bridge.source.next()
        first.refuses(await first.hears("initialize"), -32022)
        asked = first if shared else await bridge.source.next()
        asked.answers(await asked.hears("server/discover"), discovered(MODERN))
        server = await bridge.source.next() if shared else asked
        server.answers(await server.hears("server/discover"), discovered(MODERN))
        answer = await opening.answer()
        assert (answer.last["id"], answer.result["protocolVersion"]) == (0, LATEST)
        await first.is_ended()
        session = {"Mcp-Session-Id": answer.headers["mcp-session-id"]}
        assert (await bridge.ask(notification("initialized"), session)).status == 202
        listing = await bridge.post(request(1, "tools/list"), session)
        listed = await server.hears("tools/list")
        assert listed.params["_meta"][VERSION] == MODERN
        server.answers(listed, LISTED)
        assert (await listing.answer()).result == LISTED


# --- a client on stdio, of either era at any time ---


@pytest.mark.crossing("L18")
async def test_client_whose_probe_was_too_slow_gets_a_session_and_the_late_answer_too() -> None:
    async with piped() as client:
        client.says(modern("probe-1", "server/discover"))
        server = await client.source.next()
        question = await server.hears("server/discover")
        client.says(initialize())
        other = await client.source.next()
        other.answers(await other.hears("initialize"), initialized())
        assert (await client.hears())["id"] == 0
        server.answers(question, discovered(MODERN, LATEST))
        server.answers(await server.hears("server/discover"), discovered(MODERN, LATEST))
        late = await client.hears()
        assert (late["id"], late["result"]["supportedVersions"]) == ("probe-1", [MODERN, LATEST])
        client.says(notification("initialized"))
        await other.hears("notifications/initialized")
        other.answers(await client.asks(other, request(1, "tools/list")), LISTED)
        assert await client.hears() == {"id": 1, "result": LISTED}


@pytest.mark.crossing("L19")
async def test_enveloped_request_in_a_legacy_session_is_answered_as_modern() -> None:
    async with piped() as client:
        client.says(initialize())
        server = await client.source.next()
        server.answers(await server.hears("initialize"), initialized())
        assert (await client.hears())["id"] == 0
        client.says(notification("initialized"), LIST)
        await server.hears("notifications/initialized")
        asked = await client.source.next()
        asked.refuses(await asked.hears("server/discover"))
        await translated(asked)
        answer = await client.hears()
        assert (answer["id"], answer["result"]["resultType"]) == (1, "complete")
        assert answer["result"]["_meta"][f"{PREFIX}serverInfo"] == initialized()["serverInfo"]
        assert not server.unread


async def test_client_on_stdio_may_initialize_again_after_a_refusal_that_showed_no_modern_server() -> None:
    async with piped() as client:
        client.says(initialize())
        first = await client.source.next()
        first.refuses(await first.hears("initialize"), -32602)
        asked = await client.source.next()
        asked.refuses(await asked.hears("server/discover"))
        answer = await client.hears()
        assert (answer["id"], answer["error"]["code"]) == (0, -32602)
        client.says(initialize("2025-06-18"))
        asked.answers(await asked.hears("initialize"), initialized("2025-06-18"))
        assert (await client.hears())["result"]["protocolVersion"] == "2025-06-18"
        await first.is_ended()


async def test_server_started_ahead_that_came_too_late_is_ended() -> None:
    async with piped() as client:
        client.source.gate.clear()
        client.says(LIST)
        while client.source.tries < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        client.source.gate.set()
        early, asked = await client.source.next(), await client.source.next()
        asked.answers(await asked.hears("server/discover"), discovered(MODERN))
        asked.answers(await asked.hears("tools/list"), LISTED)
        assert await client.hears() == {"id": 1, "result": LISTED}
        await early.is_ended()


async def test_nothing_hangs_that_is_asked_while_a_session_goes_over_to_the_modern_side() -> None:
    async with piped() as client:
        client.says(initialize(), request("before", "ping"))
        old = await client.source.next()
        asked = await old.hears("initialize")
        await old.hears("ping")
        refuses(old, asked, MODERN)
        assert await client.hears() == {"id": "before", "result": {}}
        client.says(request("during", "ping"))
        assert await client.hears() == {"id": "during", "result": {}}
        new = await client.source.next()
        new.answers(await new.hears("server/discover"), discovered(MODERN))
        new.answers(await new.hears("server/discover"), discovered(MODERN))
        answer = await client.hears()
        assert (answer["id"], answer["result"]["protocolVersion"]) == (0, LATEST)
