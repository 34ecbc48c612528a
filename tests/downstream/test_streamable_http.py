"""The endpoint: who a request is of, and what is refused before anything is started for it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from field.raw import BOTH
from multidict import CIMultiDict
from support.scripted_bridge import (
    LATEST,
    MODERN,
    UNHURRIED,
    bridged,
    call,
    initialize,
    initialized,
    mirrored,
    modern,
    notification,
    request,
)
from support.scripted_server import dump

from bridge.config import Limits
from bridge.errors import CircuitOpen, CommandNotFound

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


# --- the shape of a POST ---


@pytest.mark.spec("HL-26", "ER-19")
@pytest.mark.parametrize("content_type", ["text/plain", "", "application/json; charset=latin-1"])
async def test_body_of_another_type_is_refused_with_415(content_type: str) -> None:
    async with bridged() as bridge:
        answer = await bridge.ask(initialize(), {"Content-Type": content_type})
        assert (answer.status, answer.error["code"]) == (415, -32600)
        assert bridge.source.servers == []


ACCEPTED = [
    "*/*",
    "application/*, text/event-stream",
    BOTH.upper(),
    "application/json",
    "text/event-stream;q=0.1",
]


@pytest.mark.case("HT-02")
@pytest.mark.spec("HL-26")
@pytest.mark.parametrize("accept", ACCEPTED)
async def test_client_that_takes_either_type_is_served(accept: str) -> None:
    async with bridged() as bridge:
        opening = await bridge.post(initialize(), {"Accept": accept})
        server = await bridge.source.next()
        server.answers(await server.hears("initialize"), initialized())
        answer = await opening.answer()
        assert (answer.status, answer.result) == (200, initialized())


@pytest.mark.case("HT-02")
async def test_client_that_names_no_type_is_served() -> None:
    async with bridged() as bridge:
        headers = {"Content-Type": "application/json"}
        body = dump({"jsonrpc": "2.0", **initialize()})
        opening = await bridge.send("POST", headers, body)
        server = await bridge.source.next()
        server.answers(await server.hears("initialize"), initialized())
        assert (await opening.answer()).result == initialized()


@pytest.mark.case("HT-02")
@pytest.mark.spec("HL-26")
@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "image/*"])
async def test_client_that_takes_neither_type_is_refused_with_406(accept: str) -> None:
    async with bridged() as bridge:
        answer = await bridge.ask(initialize(), {"Accept": accept})
        assert (answer.status, answer.error["data"]["reason"]) == (406, "accept")
        assert bridge.source.servers == []


@pytest.mark.spec("ER-1", "ER-2", "HL-5")
@pytest.mark.parametrize(
    ("body", "code", "answered"),
    [
        (b"{not json", -32700, None),
        (b"", -32700, None),
        (b"{}", -32600, None),
        (b'"x"', -32600, None),
        (b'\xff\xfe{"jsonrpc":"2.0"}', -32700, None),
        (b'{"jsonrpc":"2.0","id":1,', -32700, None),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":4,"id":5,"method":"ping"}', -32600, 5),
        (b"[]", -32600, None),
    ],
)
async def test_what_is_no_message_is_refused_with_400_and_reaches_nobody(
    body: bytes, code: int, answered: int | None
) -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        answer = await session.ask(body)
        assert (answer.status, answer.error["code"], answer.last["id"]) == (400, code, answered)
        assert not session.server.unread


@pytest.mark.case("HT-06")
@pytest.mark.spec("HL-26")
async def test_body_over_the_limit_is_refused_with_413() -> None:
    async with bridged(limits=Limits(body=1000)) as bridge:
        answer = await bridge.ask(call(1, text="x" * 1000))
        assert (answer.status, answer.error["code"]) == (413, -32600)


@pytest.mark.spec("HL-1", "HL-12", "ER-19")
@pytest.mark.parametrize("method", ["PUT", "PATCH", "HEAD", "TRACE"])
async def test_other_http_methods_are_refused_with_the_ones_there_are(method: str) -> None:
    async with bridged() as bridge:
        exchange = await bridge.send(method, {})
        assert await exchange.head() == 405
        assert exchange.headers["allow"] == "GET, POST, DELETE"


# --- sessions ---


@pytest.mark.spec("HL-17")
async def test_session_ids_are_long_random_and_visible() -> None:
    async with bridged() as bridge:
        ids = {(await bridge.session()).id for _ in range(5)}
        assert len(ids) == 5
        assert all(re.fullmatch(r"[\x21-\x7e]{32,}", session_id) for session_id in ids)


@pytest.mark.spec("HL-18", "HL-24")
@pytest.mark.case("SS-01", "SS-03")
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_request_without_a_session_is_refused_with_400(method: str) -> None:
    async with bridged() as bridge:
        body = dump(PING) if method == "POST" else None
        headers = {"Content-Type": "application/json", "Accept": BOTH}
        answer = await (await bridge.send(method, headers, body)).answer()
        assert (answer.status, answer.error["data"]["reason"]) == (400, "no_session")
        assert "mcp-session-id" not in answer.headers
        assert bridge.source.servers == []


@pytest.mark.spec("HL-18")
async def test_empty_session_id_is_none() -> None:
    async with bridged() as bridge:
        answer = await bridge.ask(PING, {"Mcp-Session-Id": ""})
        assert (answer.status, answer.error["data"]["reason"]) == (400, "no_session")


@pytest.mark.spec("HL-21")
async def test_two_versions_in_one_request_are_refused() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        headers = CIMultiDict(
            {"Content-Type": "application/json", "Accept": BOTH, "Mcp-Session-Id": session.id}
        )
        headers.extend([("MCP-Protocol-Version", LATEST), ("MCP-Protocol-Version", MODERN)])
        answer = await (await bridge.send("POST", headers, dump(PING))).answer()
        assert (answer.status, answer.error["data"]["reason"]) == (400, "protocol_version")


@pytest.mark.spec("HL-19", "HL-24")
@pytest.mark.case("SS-01", "SS-03")
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_request_with_an_unknown_session_is_refused_with_404(method: str) -> None:
    async with bridged() as bridge:
        body = dump(PING) if method == "POST" else None
        headers = {"Content-Type": "application/json", "Accept": BOTH, "Mcp-Session-Id": "unknown"}
        answer = await (await bridge.send(method, headers, body)).answer()
        assert (answer.status, answer.error["data"]["reason"]) == (404, "session_not_found")
        assert answer.last["id"] == (1 if method == "POST" else None)
        assert "mcp-session-id" not in answer.headers
        assert bridge.source.servers == []


async def test_two_session_headers_are_refused_though_one_is_known() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        exchange = await bridge.send(
            "POST",
            {
                "Content-Type": "application/json",
                "Accept": BOTH,
                "Mcp-Session-Id": session.id,
                "mcp-session-id": "other",
            },
            dump(PING),
        )
        assert (await exchange.answer()).status == 400
        assert not session.server.unread


@pytest.mark.spec("HL-20")
async def test_get_of_a_client_that_takes_no_stream_is_refused_with_406() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        headers = {"Accept": "application/json", "Mcp-Session-Id": session.id}
        assert (await (await bridge.send("GET", headers)).answer()).status == 406


@pytest.mark.spec("HL-21", "HL-22", "LC-13")
@pytest.mark.case("HT-05")
@pytest.mark.parametrize(
    ("version", "status"),
    [
        (None, 202),
        ("2025-06-18", 202),
        (LATEST, 202),
        ("2025-03-26", 202),
        ("1999-01-01", 400),
        ("junk", 400),
        ("", 400),
    ],
)
async def test_version_header_of_a_session_must_name_a_known_revision(
    version: str | None, status: int
) -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-06-18")
        headers = {} if version is None else {"MCP-Protocol-Version": version}
        answer = await session.ask(notification("vendor"), headers)
        assert answer.status == status
        assert bool(session.server.unread) == (status == 202)


@pytest.mark.spec("HL-26", "ER-19")
@pytest.mark.case("SS-03")
async def test_session_too_many_is_told_to_come_back_and_starts_nothing() -> None:
    async with bridged(limits=Limits(sessions=1)) as bridge:
        session = await bridge.session()
        answer = await bridge.ask(initialize())
        assert (answer.status, answer.error["data"]["reason"]) == (503, "sessions")
        assert int(answer.headers["retry-after"]) > 0
        assert len(bridge.source.servers) == 1
        await session.delete()
        await bridge.session()


async def test_sessions_that_are_still_opening_count() -> None:
    async with bridged(limits=Limits(sessions=1)) as bridge:
        bridge.source.gate.clear()
        opening = await bridge.post(initialize())
        await bridge.handles(1)
        assert (await bridge.ask(initialize())).status == 503
        bridge.source.gate.set()
        server = await bridge.source.next()
        server.answers(await server.hears("initialize"), initialized())
        assert (await opening.answer()).status == 200


@pytest.mark.spec("ER-19")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_server_left_alone_for_failing_is_told_with_a_time_to_come_back(era: str) -> None:
    async with bridged() as bridge:
        bridge.source.fault = CircuitOpen("The server failed too often", retry_after=12.3)
        message = initialize() if era == "legacy" else modern(0, "tools/list")
        answer = await bridge.ask(message, mirrored(message) if era == "modern" else None)
        assert (answer.status, answer.headers["retry-after"]) == (503, "13")
        assert (answer.last["id"], answer.error["data"]["reason"]) == (0, "upstream_down")


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_server_that_cannot_be_started_is_an_error_with_the_id_of_the_request(era: str) -> None:
    async with bridged() as bridge:
        bridge.source.fault = CommandNotFound("no such program")
        message = initialize() if era == "legacy" else modern(0, "tools/list")
        answer = await bridge.ask(message, mirrored(message) if era == "modern" else None)
        assert (answer.status, answer.last["id"]) == (200, 0)
        assert answer.error["data"] == {"origin": "bridge", "reason": "upstream_not_found"}
        assert bridge.relay.sessions == {}


# --- batches ---

BATCH = [request(1, "tools/list"), notification("vendor"), request("2", "prompts/list")]


@pytest.mark.case("ID-08")
@pytest.mark.spec("BT-1", "BT-3", "BT-7")
async def test_batch_is_split_for_the_server_and_its_answers_come_back_as_one_array() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-03-26")
        exchange = await session.post(BATCH)
        heard = [await session.server.hears() for _ in range(3)]
        assert [one.method for one in heard] == ["tools/list", "notifications/vendor", "prompts/list"]
        session.server.answers(heard[2], {"second": 2})
        session.server.answers(heard[0], {"first": 1})
        answer = await exchange.answer()
        assert answer.headers["content-type"] == "application/json"
        (answers,) = answer.messages
        assert {one["id"]: one["result"] for one in answers} == {1: {"first": 1}, "2": {"second": 2}}


@pytest.mark.case("ID-08")
@pytest.mark.spec("BT-3")
async def test_batch_that_streams_answers_one_by_one_and_ends_after_the_last() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-03-26")
        exchange = await session.post([request(1, "tools/list"), call(2, token="t")])
        first, second = [await session.server.hears() for _ in range(2)]
        session.server.answers(first)
        session.server.progresses(second, 1)
        session.server.answers(second)
        ids = [message.get("id") for message in (await exchange.answer()).messages]
        assert ids == [1, None, 2]


@pytest.mark.case("ID-08")
@pytest.mark.spec("BT-6", "HL-6")
async def test_batch_of_notifications_is_accepted_without_a_body() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-03-26")
        answer = await session.ask([notification("a"), notification("b")])
        assert (answer.status, answer.body) == (202, b"")
        heard = [await session.server.hears() for _ in range(2)]
        assert [one.method for one in heard] == ["notifications/a", "notifications/b"]


@pytest.mark.case("ID-08")
@pytest.mark.spec("BT-7")
async def test_members_that_cannot_be_read_get_errors_of_their_own() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-03-26")
        exchange = await session.post(
            b'[1,{"jsonrpc":"2.0","id":3,"method":"ping"},{"jsonrpc":"2.0","id":4}]'
        )
        session.server.answers(await session.server.hears("ping"))
        (answers,) = (await exchange.answer()).messages
        assert [one.get("error", {}).get("code") for one in answers] == [-32600, -32600, None]
        assert [one["id"] for one in answers] == [None, 4, 3]


@pytest.mark.case("ID-08", "ID-05")
async def test_two_members_with_one_id_are_not_both_sent() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-03-26")
        exchange = await session.post([call(1, "a"), call(1, "b")])
        session.server.answers(await session.server.hears("tools/call"))
        (answers,) = (await exchange.answer()).messages
        assert sorted("error" in one for one in answers) == [False, True]
        assert not session.server.unread


@pytest.mark.case("ID-08")
@pytest.mark.spec("BT-2", "BT-4")
@pytest.mark.parametrize(
    "batch",
    [
        [initialize(), request(1, "ping")],
        [request(1, "ping"), {"id": 2, "result": {}}],
        [notification("a"), {"id": 2, "result": {}}],
    ],
)
async def test_batch_that_may_not_be_is_refused_as_a_whole(batch: list[dict[str, object]]) -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-03-26")
        answer = await session.ask(batch)
        assert (answer.status, answer.error["code"], answer.last["id"]) == (400, -32600, None)
        assert not session.server.unread


@pytest.mark.case("ID-08")
@pytest.mark.spec("BT-5", "HL-5")
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-06-18", LATEST])
async def test_batch_of_any_other_revision_is_refused(revision: str) -> None:
    async with bridged() as bridge:
        session = await bridge.session(revision)
        answer = await session.ask(BATCH)
        assert (answer.status, answer.error["code"]) == (400, -32600)
        assert not session.server.unread


@pytest.mark.case("ID-08")
async def test_array_of_the_server_is_taken_apart() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        calls = [await session.calls(call(number)) for number in (1, 2)]
        session.server.says(b'[{"jsonrpc":"2.0","id":2,"result":{}},{"jsonrpc":"2.0","id":1,"result":{}}]')
        for number, (exchange, _) in enumerate(calls, 1):
            assert (await exchange.answer()).last["id"] == number


@pytest.mark.spec("SP-10")
async def test_batch_that_asks_too_much_is_told_to_come_back() -> None:
    async with bridged(limits=Limits(in_flight=1)) as bridge:
        session = await bridge.session("2025-03-26")
        assert (await session.ask(BATCH)).status == 429
        assert not session.server.unread


# --- draining ---


@pytest.mark.case("CP-03")
@pytest.mark.spec("ER-19")
async def test_draining_bridge_refuses_what_is_new_and_lets_finish_what_runs() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-03-26", roots={})
        exchange, asked = await session.calls(call(1))
        bridge.relay.draining = True
        fresh = modern(9, "tools/list")
        for refused in (
            await session.ask(call(2)),
            await session.ask(BATCH),
            await bridge.ask(initialize()),
            await bridge.ask(fresh, mirrored(fresh)),
        ):
            assert (refused.status, refused.error["data"]["reason"]) == (503, "draining")
            assert refused.headers["retry-after"] == "1"
        session.server.asks("roots/list", "q")
        assert (await exchange.message())["id"] == "q"
        assert (await session.ask([{"id": "q", "result": {"roots": []}}])).status == 202
        assert (await session.server.hears()).result == {"roots": []}
        session.server.answers(asked, {"finished": True})
        assert (await exchange.message())["result"] == {"finished": True}


# --- which era ---


@pytest.mark.spec("HM-14", "EV-14")
async def test_request_without_an_envelope_or_a_version_is_legacy() -> None:
    async with bridged() as bridge:
        answer = await bridge.ask(request(1, "tools/list"))
        assert (answer.status, answer.error["data"]["reason"]) == (400, "no_session")


@pytest.mark.spec("EV-14")
async def test_both_eras_are_served_at_once_by_servers_of_their_own() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        server = await bridge.modern_server()
        exchange, asked = await session.calls(call(1))
        other = await bridge.post_modern(modern(1, "tools/list"))
        server.answers(await server.hears("tools/list"), {"modern": True})
        session.server.answers(asked, {"legacy": True})
        assert (await exchange.answer()).result == {"legacy": True}
        assert (await other.answer()).result == {"modern": True}


@pytest.mark.spec("HM-20")
async def test_session_of_a_request_with_an_envelope_is_ignored() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        exchange = await bridge.post_modern(modern(1, "tools/list"), {"Mcp-Session-Id": session.id})
        server = await bridge.source.next()
        server.answers(await server.hears("tools/list"))
        assert (await exchange.answer()).status == 200
        assert not session.server.unread


async def test_unknown_version_on_a_session_is_answered_in_the_terms_of_a_session() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        answer = await session.ask(request(1, "ping"), {"MCP-Protocol-Version": "2031-01-01"})
        assert (answer.status, answer.error["code"]) == (400, -32600)


@pytest.mark.spec("HM-12")
async def test_unknown_version_without_a_session_is_answered_with_those_there_are() -> None:
    async with bridged() as bridge:
        answer = await bridge.ask(request(1, "ping"), {"MCP-Protocol-Version": "2031-01-01"})
        assert (answer.status, answer.error["code"]) == (400, -32022)
        assert answer.error["data"] == {"supported": [MODERN], "requested": "2031-01-01"}


# --- clients that leave ---


@pytest.mark.case("CP-02", "SS-03")
async def test_client_that_leaves_amid_its_body_leaves_nothing() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        headers = {"Content-Type": "application/json", "Mcp-Session-Id": session.id, "Content-Length": "500"}
        exchange = await bridge.send("POST", headers)
        exchange.say(b'{"jsonrpc":"2.0","id":1,"method":"tools/call"')
        await exchange.flush()
        await bridge.handles(1)
        exchange.reset()
        await bridge.handles(0)
        assert not session.server.unread


@pytest.mark.case("CP-02")
async def test_body_that_stops_coming_is_given_up() -> None:
    async with bridged(timing=replace(UNHURRIED, body=0.02)) as bridge:
        headers = {"Content-Type": "application/json", "Content-Length": "500"}
        exchange = await bridge.send("POST", headers)
        assert await exchange.head() == 408
