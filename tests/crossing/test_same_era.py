"""What passes between legacy peers as it is, and what sharing a server may change.

Modern peers are in `test_same_era_modern.py`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from field.raw import Exchange
from support.scripted_bridge import (
    LATEST,
    Bridge,
    Session,
    bridged,
    call,
    initialize,
    initialized,
    modern,
    notification,
    request,
)
from support.scripted_server import Json, ScriptedServer, dump

from bridge.config import ProcessModel

SHARED = ProcessModel.SHARED
CAPABLE: dict[str, Any] = {"sampling": {}, "elicitation": {}, "roots": {}}


# --- one client, one server, both legacy ---


@pytest.mark.crossing("K1")
async def test_ids_and_tokens_of_a_session_of_its_own_pass_unchanged() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        message = call(5, token="t")
        exchange, heard = await session.calls(message)
        assert heard.raw == dump({"jsonrpc": "2.0", **message})
        server = session.server
        server.notes("progress", progressToken="t", progress=1)
        assert (await exchange.message())["params"] == {"progressToken": "t", "progress": 1}
        note = notification("cancelled", requestId=5, reason="enough")
        assert (await session.ask(note)).status == 202
        assert (await server.hears("notifications/cancelled")).raw == dump({"jsonrpc": "2.0", **note})


NUMBERS = b'{"z":1E400,"a":-0,"m":0.10,"big":123456789012345678901234567890}'


@pytest.mark.crossing("K2")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_numbers_and_order_of_a_result_are_kept_as_they_are_written(era: str) -> None:
    async with bridged() as bridge:
        if era == "legacy":
            session = await bridge.session()
            exchange, heard = await session.calls(call(1))
            server = session.server
        else:
            server = await bridge.modern_server()
            exchange = await bridge.post_modern(modern(1, "prompts/list"))
            heard = await server.hears("prompts/list")
        assert heard.id is not None
        server.says(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (int(heard.id), NUMBERS))
        assert (await exchange.answer()).payloads == [b'{"jsonrpc":"2.0","id":1,"result":%b}' % NUMBERS]


@pytest.mark.crossing("K3")
async def test_body_on_many_lines_becomes_one_line_of_the_same_tokens() -> None:
    body = b"""{
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "name": "a  b",
            "arguments": { "z": 1e5, "a": [ 0.10, -0 ], "text": "two\\nlines" }
        }
    }"""
    async with bridged() as bridge:
        session = await bridge.session()
        await session.post(body)
        assert (await session.server.hears("tools/call")).raw == (
            b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a  b",'
            b'"arguments":{"z":1e5,"a":[0.10,-0],"text":"two\\nlines"}}}'
        )


@pytest.mark.crossing("K4")
async def test_half_a_character_passes_both_ways_as_valid_utf8() -> None:
    text = b'{"half":"\\ud800","e":"\\u00e9","plain":"\xc3\xa9"}'
    async with bridged() as bridge:
        session = await bridge.session()
        exchange = await session.post(
            b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":%b}}' % text
        )
        heard = await session.server.hears("tools/call")
        assert heard.raw.decode()
        assert heard.params["arguments"] == json.loads(text)
        session.server.says(b'{"jsonrpc":"2.0","id":1,"result":%b}' % text)
        answer = await exchange.answer()
        assert answer.body.decode()
        assert answer.result == json.loads(text)


@pytest.mark.crossing("K5")
async def test_number_that_is_none_is_a_parse_error() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        answer = await session.ask(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":NaN}}')
        assert (answer.status, answer.error["code"]) == (400, -32700)
        assert not session.server.unread


@pytest.mark.crossing("K15")
async def test_question_goes_on_the_only_open_call_or_waits_for_one() -> None:
    async with bridged() as bridge:
        session = await bridge.session(**CAPABLE)
        exchange, heard = await session.calls(call(1))
        session.server.asks("sampling/createMessage", 0)
        question = await exchange.message()
        assert (question["id"], question["method"]) == (0, "sampling/createMessage")
        session.server.answers(heard)
        await exchange.answer()
        session.server.asks("roots/list", 1)
        await bridge.turn()
        assert not session.server.unread, "it waits"
        late, _ = await session.calls(call(2))
        assert (await late.message())["method"] == "roots/list"


@pytest.mark.crossing("K16")
async def test_end_of_the_server_answers_what_is_open_and_then_the_session_is_gone() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        exchange, _ = await session.calls(call(1))
        session.server.dies(1)
        answer = await exchange.answer()
        assert (answer.last["id"], answer.error["code"]) == (1, -32603)
        assert answer.error["data"] == {
            "origin": "bridge", "reason": "upstream_lost", "exitCode": 1, "stderr": [],
        }  # fmt: skip
        assert (await session.ask(request(2, "tools/list"))).status == 404


@pytest.mark.crossing("K17")
@pytest.mark.parametrize(("revision", "primed"), [("2025-11-25", True), ("2025-06-18", False)])
async def test_stream_begins_with_an_empty_event_that_has_an_id_where_the_revision_has_that(
    revision: str, primed: bool
) -> None:
    async with bridged() as bridge:
        session = await bridge.session(revision)
        exchange, heard = await session.calls(call(1, token=1))
        session.server.progresses(heard, 1)
        session.server.answers(heard)
        first = await exchange.block()
        assert first is not None
        assert (first.id is not None, first.data == b"") == (True, primed)


@pytest.mark.crossing("K18")
async def test_second_get_takes_over_and_no_message_comes_twice() -> None:
    """The design answers it 409. But a client whose connection died without a word could then never
    have its stream again: to the bridge the old one lives until something is written to it. So the
    newest GET carries the session, the old one is ended, and each message is sent once.
    """
    async with bridged() as bridge:
        session = await bridge.session()
        first = await session.listen()
        session.server.notes("tools/list_changed", n=1)
        assert (await first.message())["params"] == {"n": 1}
        second = await session.listen()
        session.server.notes("tools/list_changed", n=2)
        assert (await second.message())["params"] == {"n": 2}
        rest = (await first.answer()).body
        assert b'"n":2' not in rest


@pytest.mark.crossing("K25")
@pytest.mark.parametrize("cursor", ["another", "unknown"])
async def test_cursor_of_another_session_replays_nothing(cursor: str) -> None:
    async with bridged() as bridge:
        other, session = await bridge.session(), await bridge.session()
        stream = await other.listen()
        other.server.notes("tools/list_changed", whose="other")
        other.server.notes("prompts/list_changed", whose="other")
        seen = await stream.event()
        named = seen.id if cursor == "another" else "no-such.stream-1"
        mine = await session.listen(named)
        session.server.notes("tools/list_changed", whose="mine")
        assert (await mine.message())["params"] == {"whose": "mine"}


# --- several legacy sessions on one server ---


async def share(bridge: Bridge, revision: str = LATEST) -> Session:
    """The first session of a shared server; the handshake with it is the bridge's own."""
    opening = await bridge.post(initialize(LATEST, **CAPABLE))
    server = await bridge.source.next()
    server.answers(await server.hears("initialize"), initialized(revision))
    await server.hears("notifications/initialized")
    session = Session(bridge, server, (await opening.answer()).headers["mcp-session-id"])
    assert (await session.ask(notification("initialized"))).status == 202
    return session


@asynccontextmanager
async def shared() -> AsyncIterator[tuple[Session, Session, ScriptedServer]]:
    async with bridged(process=SHARED) as bridge:
        a = await share(bridge)
        b = await bridge.joined(a.server, **CAPABLE)
        assert not a.server.unread
        yield a, b, a.server


@pytest.mark.crossing("K6", "K7")
async def test_equal_ids_and_tokens_stay_apart_and_a_late_cancellation_hits_nobody() -> None:
    async with shared() as (a, b, server):
        (mine, of_a), (yours, of_b) = await a.calls(call(1, token=1)), await b.calls(call(1, token=1))
        assert of_a.id != of_b.id
        assert of_a.params["_meta"] != of_b.params["_meta"]
        server.progresses(of_b, 7)
        server.answers(of_b, {"for": "b"})
        progress, answer = (await yours.answer()).messages
        assert progress["params"] == {"progressToken": 1, "progress": 7}
        assert (answer["id"], answer["result"]) == (1, {"for": "b"})
        assert (await b.ask(notification("cancelled", requestId=1))).status == 202
        assert not server.unread
        server.answers(of_a, {"for": "a"})
        assert [m.get("result") for m in (await mine.answer()).messages] == [{"for": "a"}]


@pytest.mark.crossing("K8")
@pytest.mark.parametrize(("theirs", "agreed"), [("2025-11-25", "2025-06-18"), ("2025-03-26", "2025-03-26")])
async def test_second_handshake_is_answered_from_the_first(theirs: str, agreed: str) -> None:
    async with bridged(process=SHARED) as bridge:
        first = await share(bridge, theirs)
        answer = await bridge.ask(initialize("2025-06-18"))
        assert answer.result == {**initialized(theirs), "protocolVersion": agreed}
        assert not first.server.unread


@pytest.mark.crossing("K9")
async def test_change_is_told_to_each_session_once() -> None:
    async with shared() as (a, b, server):
        streams = [await one.listen() for one in (a, b)]
        server.notes("tools/list_changed", n=1)
        server.notes("prompts/list_changed", n=2)
        for stream in streams:
            assert [(await stream.message())["params"] for _ in range(2)] == [{"n": 1}, {"n": 2}]


async def set_level(session: Session, level: str) -> Exchange:
    return await session.post(request(1, "logging/setLevel", level=level))


@pytest.mark.crossing("K10", "K11")
async def test_log_messages_reach_sessions_of_one_subject_at_their_own_level() -> None:
    async with shared() as (a, b, server):
        for session, level in ((a, "warning"), (b, "debug")):
            setting = await set_level(session, level)
            heard = await server.hears("logging/setLevel")
            assert heard.params == {"level": level}
            server.answers(heard)
            assert (await setting.answer()).result == {}
        streams = [await one.listen() for one in (a, b)]
        for level in ("debug", "warning", "error"):
            server.notes("message", level=level, data="x")
        for stream, levels in zip(
            streams, (("warning", "error"), ("debug", "warning", "error")), strict=True
        ):
            for level in levels:
                assert (await stream.message())["params"]["level"] == level


@pytest.mark.crossing("K10")
async def test_log_messages_reach_no_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.downstream.legacy.subject_of", lambda _: "")
    async with shared() as (a, b, server):
        streams = [await one.listen() for one in (a, b)]
        exchange, heard = await a.calls(call(1))
        server.notes("message", level="error", data="of a")
        server.notes("tools/list_changed")
        for stream in streams:
            assert (await stream.message())["method"] == "notifications/tools/list_changed"
        server.answers(heard)
        assert len((await exchange.answer()).messages) == 1


@pytest.mark.crossing("K12")
async def test_server_sees_the_first_subscription_and_the_last_end() -> None:
    async with shared() as (a, b, server):
        subscription = await a.post(request(1, "resources/subscribe", uri="file:///a"))
        server.answers(await server.hears("resources/subscribe"))
        assert (await subscription.answer()).result == {}
        assert (await b.ask(request(1, "resources/subscribe", uri="file:///a"))).result == {}
        assert (await a.ask(request(2, "resources/unsubscribe", uri="file:///a"))).result == {}
        assert not server.unread
        await b.delete()
        assert (await server.hears("resources/unsubscribe")).params == {"uri": "file:///a"}


@pytest.mark.crossing("K13")
@pytest.mark.parametrize("strangers", [True, False])
async def test_question_during_calls_of_two_sessions_is_refused(
    strangers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where both are of one subject: two programs of one user do not see each other's questions."""
    if strangers:
        monkeypatch.setattr("bridge.downstream.legacy.subject_of", lambda _: "")
    async with shared() as (a, b, server):
        for session in (a, b):
            await session.calls(call(1))
        server.asks("sampling/createMessage", 0)
        refused = await server.hears()
        assert refused.error is not None
        assert (refused.id, refused.error["code"]) == (0, -32602)


@pytest.mark.crossing("K14")
async def test_question_goes_to_the_only_session_that_calls_and_only_that_one_answers() -> None:
    async with shared() as (a, b, server):
        exchange, _ = await a.calls(call(1))
        server.asks("sampling/createMessage", 0)
        question = await exchange.message()
        assert (question["id"], question["method"]) == (0, "sampling/createMessage")
        reply: Json = {"id": 0, "result": {"role": "assistant"}}
        await b.ask(reply)
        assert not server.unread
        assert (await a.ask(reply)).status == 202
        answer = await server.hears()
        assert (answer.id, answer.result) == (0, {"role": "assistant"})
