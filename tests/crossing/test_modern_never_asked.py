"""What a legacy server asks never reaches a modern client as a request, on no stream and no pipe.

The questions come while a call runs whose answer is a stream already, and while nothing but a
subscription is open; on the server's own stream of the call, and off it.
"""

from __future__ import annotations

import pytest
from field.raw import Exchange
from support.scripted_bridge import (
    PREFIX,
    Bridge,
    bridged,
    envelope,
    initialized,
    modern,
    request,
)
from support.scripted_server import Heard, Json, ScriptedServer

from bridge.era.revisions import Era
from bridge.era.terms import Terms
from crossing.bench import EL
from crossing.piped import piped

QUICK = Terms(coalesce=0.001)
META = envelope(progressToken="t", **{f"{PREFIX}clientCapabilities": {"elicitation": {}}})
CALL = modern(1, "tools/call", name="a", arguments={}, meta=META)
LISTEN = modern(2, "subscriptions/listen", notifications={"toolsListChanged": True}, meta=META)


async def opens(server: ScriptedServer) -> None:
    capabilities = {"tools": {"listChanged": True}}
    server.answers(await server.hears("initialize"), initialized() | {"capabilities": capabilities})
    await server.hears("notifications/initialized")


async def begins(server: ScriptedServer) -> Heard:
    """The server takes the call and tells how far it is."""
    await opens(server)
    asked = await server.hears()
    if asked.method == "tools/list":  # to know what headers repeat
        server.answers(asked, {"tools": []})
        asked = await server.hears()
    assert asked.method == "tools/call"
    server.progresses(asked, 1)
    return asked


async def asks_everything(server: ScriptedServer, on: int | str | None) -> None:
    """A question for the bridge, one that the client declared nothing for, and one that it can answer."""
    server.says(request("p", "ping"), request("s", "sampling/createMessage"), on=on)
    server.says(request("e", "elicitation/create", **EL), on=on)
    assert (await server.hears()).id == "p"
    refused = await server.hears()
    assert refused.id == "s"
    assert refused.error is not None


async def listens(bridge: Bridge) -> tuple[Exchange, ScriptedServer]:
    stream = await bridge.post_modern(LISTEN)
    server = await bridge.source.next()
    await opens(server)
    return stream, server


def is_asked_by_its_answer(progress: Json, answer: Json) -> None:
    assert progress["method"] == "notifications/progress"
    assert "id" not in progress
    assert (answer["id"], answer["result"]["resultType"]) == (1, "input_required")
    [asked] = answer["result"]["inputRequests"].values()
    assert asked == {"method": "elicitation/create", "params": EL}


@pytest.mark.parametrize("streamed", [True, False])
async def test_stream_of_a_call_brings_the_questions_as_its_answer_and_ends(streamed: bool) -> None:
    async with bridged(era=Era.LEGACY, terms=QUICK) as bridge:
        exchange = await bridge.post_modern(CALL)
        server = await bridge.source.next()
        asked = await begins(server)
        first = await exchange.message()
        await asks_everything(server, asked.id if streamed else None)
        is_asked_by_its_answer(first, await exchange.message())
        assert await exchange.block() is None


async def test_subscription_brings_no_question_though_nothing_else_is_open() -> None:
    async with bridged(era=Era.LEGACY, terms=QUICK) as bridge:
        stream, server = await listens(bridge)
        acknowledged = await stream.message()
        await asks_everything(server, None)
        server.notes("tools/list_changed")
        changed = await stream.message()
        assert [message["method"] for message in (acknowledged, changed)] == [
            "notifications/subscriptions/acknowledged",
            "notifications/tools/list_changed",
        ]
        assert not {"id"} & (acknowledged.keys() | changed.keys())


async def test_pipe_brings_the_questions_as_the_answer() -> None:
    async with piped(era=Era.LEGACY) as client:
        client.says(CALL)
        server = await client.source.next()
        await begins(server)
        first = await client.hears()
        await asks_everything(server, None)
        is_asked_by_its_answer(first, await client.hears())
