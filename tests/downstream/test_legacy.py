"""One legacy session: which stream carries what, what outlives its connection, and how it all ends."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import count

import pytest
from support.scripted_bridge import (
    LATEST,
    UNHURRIED,
    Bridge,
    Session,
    bridged,
    call,
    initialize,
    initialized,
    notification,
    request,
)
from support.scripted_server import Json, ScriptedServer

from bridge.config import Limits, ProcessModel
from bridge.downstream.reply import Reply

JSON_ONLY = {"Accept": "application/json"}
SSE_ONLY = {"Accept": "text/event-stream"}
OLDER = ["2024-11-05", "2025-03-26", "2025-06-18"]
LOG = {"level": "info", "data": "x"}


# --- JSON or a stream ---


@pytest.mark.spec("HL-7", "HL-8")
async def test_call_answered_at_once_is_one_json_object() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        exchange, asked = await session.calls(call(1))
        session.server.answers(asked, {"x": 1})
        answer = await exchange.answer()
        assert answer.headers["content-type"] == "application/json"
        assert answer.messages == [{"jsonrpc": "2.0", "id": 1, "result": {"x": 1}}]


@pytest.mark.spec("HL-7", "HL-8", "HL-9", "HL-10")
async def test_progress_before_the_answer_makes_it_a_stream_that_ends_after_it() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-06-18")
        exchange, asked = await session.calls(call(1, token="t"))
        session.server.progresses(asked, 1)
        assert (await exchange.message())["params"] == {"progressToken": "t", "progress": 1}
        session.server.answers(asked)
        answer = await exchange.answer()
        assert answer.streamed
        assert [message["id"] for message in answer.messages] == [1]


@pytest.mark.spec("HL-7")
async def test_call_that_waits_long_becomes_a_stream_that_is_kept_alive() -> None:
    timing = replace(UNHURRIED, commit=0.01, keepalive=0.01)
    async with bridged(timing=timing) as bridge:
        session = await bridge.session("2025-06-18")
        exchange, asked = await session.calls(call(1))
        comment = await exchange.block()
        assert comment is not None
        assert comment.comment is not None
        session.server.answers(asked)
        assert (await exchange.message())["id"] == 1


@pytest.mark.case("HT-02")
async def test_client_that_takes_json_only_gets_json_whatever_came_before() -> None:
    async with bridged(timing=replace(UNHURRIED, commit=0.0)) as bridge:
        session = await bridge.session()
        exchange, asked = await session.calls(call(1, token=1), JSON_ONLY)
        session.server.progresses(asked, 1)
        session.server.answers(asked)
        answer = await exchange.answer()
        assert answer.headers["content-type"] == "application/json"
        assert [message["id"] for message in answer.messages] == [1]


@pytest.mark.case("HT-02")
async def test_client_that_takes_streams_only_gets_a_stream() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        exchange, asked = await session.calls(call(1), SSE_ONLY)
        session.server.answers(asked)
        answer = await exchange.answer()
        assert answer.streamed
        assert answer.last["id"] == 1


@pytest.mark.spec("HL-23", "ER-3", "ER-11")
@pytest.mark.parametrize("code", [-32601, -32602, -32002, -32000, 7])
async def test_error_of_the_server_travels_in_a_200(code: int) -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        exchange, asked = await session.calls(request(1, "vendor/x"))
        session.server.refuses(asked, code, "as it is")
        answer = await exchange.answer()
        assert (answer.status, answer.error) == (200, {"code": code, "message": "as it is"})


@pytest.mark.case("HT-04")
@pytest.mark.spec("HL-6")
async def test_notification_and_answer_are_accepted_without_a_body() -> None:
    async with bridged() as bridge:
        session = await bridge.session(roots={})
        stream = await session.listen()
        session.server.asks("roots/list", "q")
        asked = await stream.message()
        for message in (notification("vendor"), {"id": asked["id"], "result": {"roots": []}}):
            answer = await session.ask(message)
            assert (answer.status, answer.body) == (202, b"")
        assert (await session.server.hears()).method == "notifications/vendor"
        assert (await session.server.hears()).result == {"roots": []}


@pytest.mark.spec("HL-6")
async def test_answer_that_nobody_asked_for_is_accepted_and_goes_nowhere() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        assert (await session.ask({"id": 7, "result": {}})).status == 202
        assert not session.server.unread


# --- event ids, priming, resumption ---


@pytest.mark.spec("RS-3", "HL-7")
@pytest.mark.case("SE-03")
@pytest.mark.parametrize("revision", [*OLDER, LATEST])
async def test_only_the_latest_legacy_revision_gets_priming_events(revision: str) -> None:
    async with bridged() as bridge:
        session = await bridge.session(revision)
        exchange, asked = await session.calls(call(1), SSE_ONLY)
        session.server.answers(asked)
        stream = await session.listen()
        session.server.notes("message", **LOG)
        for first in (await exchange.block(), await stream.block()):
            assert first is not None
            primed = (first.data, first.id is not None, first.retry is not None) == (b"", True, True)
            assert primed == (revision == LATEST)


@pytest.mark.spec("RS-1")
async def test_event_ids_are_unique_in_the_session_and_name_their_stream() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        streams = [await session.listen()]
        for number in (1, 2):
            exchange, asked = await session.calls(call(number, token=number), SSE_ONLY)
            session.server.progresses(asked, 1)
            session.server.answers(asked)
            streams.append(exchange)
        session.server.notes("message", **LOG)
        ids = [[(await stream.block()).id or "" for _ in range(2)] for stream in streams]  # type: ignore[union-attr]
        names = [{event_id.rpartition("-")[0] for event_id in stream} for stream in ids]
        assert [len(name) for name in names] == [1, 1, 1]
        assert len({event_id for stream in ids for event_id in stream}) == 6
        assert len(set.union(*names)) == 3


@pytest.mark.spec("RS-2", "HL-11", "HL-13")
@pytest.mark.case("SE-06", "TF-05", "CP-02")
async def test_answer_that_came_while_the_client_was_away_is_replayed_once_and_ends_the_stream() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        exchange, asked = await session.calls(call(1, token=1))
        session.server.progresses(asked, 1)
        seen = await exchange.event()
        exchange.reset()
        await bridge.handles(0)
        session.server.progresses(asked, 2)
        session.server.answers(asked, {"late": True})
        resumed = await (await session.listen(seen.id)).answer()
        assert [message.get("result", message.get("params")) for message in resumed.messages] == [
            {"progressToken": 1, "progress": 2},
            {"late": True},
        ]
        again = await (await session.listen(resumed.events[-1].id)).answer()
        assert again.events == []


@pytest.mark.spec("RS-2")
@pytest.mark.case("SE-06")
@pytest.mark.parametrize("revision", ["2025-06-18", LATEST])
async def test_resumed_stream_goes_on_live_while_its_call_runs(revision: str) -> None:
    async with bridged() as bridge:
        session = await bridge.session(revision)
        exchange, asked = await session.calls(call(1, token=1))
        session.server.progresses(asked, 1)
        seen = await exchange.event()
        exchange.reset()
        await bridge.handles(0)
        session.server.progresses(asked, 2)
        resumed = await session.listen(seen.id)
        assert (await resumed.message())["params"]["progress"] == 2
        session.server.progresses(asked, 3)
        assert (await resumed.message())["params"]["progress"] == 3
        session.server.answers(asked)
        assert [message["id"] for message in (await resumed.answer()).messages] == [1]


@pytest.mark.spec("RS-2")
async def test_stream_that_was_only_primed_is_resumed_from_its_priming_event() -> None:
    async with bridged(timing=replace(UNHURRIED, commit=0.01)) as bridge:
        session = await bridge.session()
        exchange, asked = await session.calls(call(1))
        primed = await exchange.block()
        assert primed is not None
        exchange.reset()
        await bridge.handles(0)
        session.server.answers(asked)
        assert [m["id"] for m in (await (await session.listen(primed.id)).answer()).messages] == [1]


@pytest.mark.spec("RS-2", "HL-15")
async def test_second_resumption_takes_over_though_the_first_connection_ends_later() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        exchange, asked = await session.calls(call(1, token=1))
        session.server.progresses(asked, 1)
        seen = await exchange.event()
        first = await session.listen(seen.id)
        await exchange.answer()  # the POST's own connection has been relieved
        second = await session.listen(seen.id)
        first.reset()
        await bridge.handles(1)
        session.server.progresses(asked, 2)
        assert (await second.message())["params"]["progress"] == 2
        session.server.answers(asked)
        assert (await second.message())["id"] == 1


@pytest.mark.spec("RS-2", "HL-14")
@pytest.mark.case("SE-06")
async def test_get_stream_that_broke_is_resumed_with_what_it_missed_and_goes_on() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        stream = await session.listen()
        session.server.notes("message", level="info", data=1)
        seen = await stream.event()
        session.server.notes("message", level="info", data=2)
        stream.reset()
        await bridge.handles(0)
        session.server.notes("message", level="info", data=3)  # nobody is there: it waits
        resumed = await session.listen(seen.id)
        session.server.notes("message", level="info", data=4)
        assert [(await resumed.message())["params"]["data"] for _ in range(3)] == [2, 3, 4]


@pytest.mark.spec("RS-2", "SP-4")
@pytest.mark.case("SE-06")
async def test_event_id_of_another_session_replays_nothing_and_opens_a_live_stream() -> None:
    async with bridged() as bridge:
        mine, other = await bridge.session(), await bridge.session()
        exchange, asked = await mine.calls(call(1, token=1))
        for session in (mine, other):
            streamed, request_ = (
                (exchange, asked) if session is mine else await session.calls(call(1, token=1))
            )
            session.server.progresses(request_, 1)
            foreign = await streamed.event()
            session.server.answers(request_, {"secret": session.id})
            await streamed.answer()
        stream = await mine.listen(foreign.id)
        mine.server.notes("message", **LOG)
        assert (await stream.message())["method"] == "notifications/message"


@pytest.mark.parametrize("cursor", ["x", "0", "1-1", "99-1", "999999999999999999999999-1", "-", "1-", "é"])
async def test_unknown_event_id_opens_a_live_stream(cursor: str) -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        stream = await session.listen(cursor.encode().decode("latin-1"))
        session.server.notes("message", **LOG)
        assert (await stream.message())["method"] == "notifications/message"


@pytest.mark.spec("RS-9", "SP-10")
async def test_finished_streams_leave_nothing_but_what_the_store_bounds() -> None:
    limits = Limits(stored_events=4)
    async with bridged(limits=limits) as bridge:
        session = await bridge.session()
        first = ""
        for number in range(10):
            exchange, asked = await session.calls(call(number), SSE_ONLY)
            session.server.answers(asked)
            first = first or (await exchange.event()).id or ""
            await exchange.answer()
        late = await (await session.listen(first)).answer()
        assert late.events == []
        await bridge.handles(0)
        assert sum(isinstance(one, Reply) for one in gc.get_objects()) <= 2


# --- the GET stream ---


@pytest.mark.spec("HL-12", "HL-15", "HL-27")
async def test_second_get_takes_over_and_no_message_is_lost_or_sent_twice() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-06-18")
        first = await session.listen()
        session.server.notes("message", level="info", data=1)
        second = await session.listen()
        session.server.notes("message", level="info", data=2)
        third = await session.listen()
        session.server.notes("message", level="info", data=3)
        assert [m["params"]["data"] for m in (await first.answer()).messages] == [1]
        assert [m["params"]["data"] for m in (await second.answer()).messages] == [2]
        assert (await third.message())["params"]["data"] == 3


@pytest.mark.case("RT-03")
@pytest.mark.spec("HL-14")
async def test_notifications_that_belong_to_no_call_wait_for_a_get_stream() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-06-18")
        for _ in range(3):
            session.server.notes("tools/list_changed")
        session.server.notes("message", level="info", data=1)
        exchange, asked = await session.calls(call(1))
        session.server.answers(asked)
        assert (await exchange.answer()).headers["content-type"] == "application/json"
        stream = await session.listen()
        methods = [(await stream.message())["method"] for _ in range(2)]
        assert methods == ["notifications/tools/list_changed", "notifications/message"]


@pytest.mark.spec("HL-10", "HL-14", "HL-15")
async def test_notification_goes_on_the_get_stream_though_a_call_runs() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-06-18")
        stream = await session.listen()
        exchange, asked = await session.calls(call(1))
        session.server.notes("message", **LOG)
        assert (await stream.message())["params"] == LOG
        session.server.answers(asked)
        assert not (await exchange.answer()).streamed


async def test_notification_goes_on_the_only_call_where_there_is_no_get_stream() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-06-18")
        exchange, asked = await session.calls(call(1))
        session.server.notes("message", **LOG)
        assert (await exchange.message())["params"] == LOG
        session.server.answers(asked)
        await exchange.answer()


async def test_progress_of_a_token_that_nobody_sent_is_dropped() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-06-18")
        stream = await session.listen()
        exchange, asked = await session.calls(call(1, token="1"))
        session.server.notes("progress", progressToken=1, progress=1)
        session.server.answers(asked)
        assert not (await exchange.answer()).streamed
        session.server.notes("progress", progressToken="1", progress=2)  # one after the answer
        session.server.notes("message", **LOG)
        assert (await stream.message())["method"] == "notifications/message"


# --- questions of the server ---


@pytest.mark.case("RT-01")
@pytest.mark.spec("HL-10", "HL-15")
async def test_question_goes_on_the_stream_of_the_only_call_and_its_answer_back_under_its_id() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-06-18", elicitation={})
        stream = await session.listen()
        exchange, asked = await session.calls(call(1))
        session.server.asks("elicitation/create", 1, message="?")  # the id of the client's own call
        question = await exchange.message()
        assert (question["id"], question["method"]) == (1, "elicitation/create")
        assert (await session.ask({"id": 1, "result": {"action": "accept"}})).status == 202
        reply = await session.server.hears()
        assert (reply.id, reply.result) == (1, {"action": "accept"})
        session.server.answers(asked, {"done": True})
        assert (await exchange.message())["result"] == {"done": True}
        session.server.notes("message", **LOG)
        assert (await stream.message())["method"] == "notifications/message"


@pytest.mark.case("RT-01")
async def test_question_amid_two_calls_goes_on_the_get_stream() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-06-18", sampling={})
        stream = await session.listen()
        calls = [await session.calls(call(number)) for number in (1, 2)]
        session.server.asks("sampling/createMessage", "q")
        assert (await stream.message())["id"] == "q"
        assert (await session.ask({"id": "q", "error": {"code": -1, "message": "no"}})).status == 202
        assert (await session.server.hears()).error == {"code": -1, "message": "no"}
        for exchange, asked in calls:
            session.server.answers(asked)
            assert not (await exchange.answer()).streamed


@pytest.mark.case("RT-01")
async def test_question_amid_two_calls_without_a_get_stream_goes_on_the_newest() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-06-18", sampling={})
        (older, first), (newer, second) = [await session.calls(call(number)) for number in (1, 2)]
        session.server.asks("sampling/createMessage", "q")
        assert (await newer.message())["id"] == "q"
        session.server.answers(first)
        session.server.answers(second)
        assert not (await older.answer()).streamed


@pytest.mark.case("RT-01")
async def test_question_waits_for_a_stream_and_goes_on_the_next_one() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-06-18", roots={})
        session.server.asks("roots/list", 0)
        exchange, asked = await session.calls(call(1))
        assert (await exchange.message())["id"] == 0
        session.server.answers(asked)
        await exchange.answer()


@pytest.mark.case("RT-01")
async def test_question_that_no_stream_can_carry_is_refused_when_its_time_is_over() -> None:
    async with bridged(timing=replace(UNHURRIED, question=0.01)) as bridge:
        session = await bridge.session(elicitation={})
        exchange, asked = await session.calls(call(1), JSON_ONLY)
        session.server.asks("elicitation/create", "q")
        refusal = await session.server.hears()
        assert refusal.id == "q"
        assert refusal.error is not None
        assert refusal.error["code"] == -32601
        session.server.answers(asked)
        assert (await exchange.answer()).last["id"] == 1


@pytest.mark.case("RT-01")
@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create", "roots/list"])
async def test_question_of_a_kind_that_the_client_did_not_declare_is_refused_at_once(method: str) -> None:
    async with bridged() as bridge:
        session = await bridge.session(experimental={})
        await session.listen()
        session.server.asks(method, 5)
        refusal = await session.server.hears()
        assert (refusal.id, (refusal.error or {})["code"]) == (5, -32601)


async def test_question_for_a_call_whose_client_is_away_waits_for_it_to_return() -> None:
    async with bridged() as bridge:
        session = await bridge.session(elicitation={})
        exchange, asked = await session.calls(call(1, token=1))
        session.server.progresses(asked, 1)
        seen = await exchange.event()
        exchange.reset()
        await bridge.handles(0)
        session.server.asks("elicitation/create", "q")
        resumed = await session.listen(seen.id)
        assert (await resumed.message())["id"] == "q"
        session.server.answers(asked)
        await resumed.answer()


async def test_question_for_a_call_whose_client_stays_away_is_refused() -> None:
    async with bridged(timing=replace(UNHURRIED, question=0.01)) as bridge:
        session = await bridge.session(elicitation={})
        exchange, asked = await session.calls(call(1, token=1))
        session.server.progresses(asked, 1)
        await exchange.event()
        exchange.reset()
        await bridge.handles(0)
        session.server.asks("elicitation/create", "q")
        assert (await session.server.hears()).error is not None


async def test_question_that_the_server_took_back_is_never_put() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-06-18", roots={})
        session.server.asks("roots/list", 1)
        session.server.notes("cancelled", requestId=1)
        stream = await session.listen()
        session.server.notes("message", **LOG)
        assert (await stream.message())["method"] == "notifications/message"


@pytest.mark.spec("SP-10")
async def test_questions_beyond_the_backlog_are_refused() -> None:
    async with bridged(limits=Limits(backlog=2)) as bridge:
        session = await bridge.session("2025-06-18", roots={})
        for number in (1, 2, 3):
            session.server.asks("roots/list", number)
        refusal = await session.server.hears()
        assert (refusal.id, (refusal.error or {})["code"]) == (3, -32601)
        stream = await session.listen()
        assert [(await stream.message())["id"] for _ in range(2)] == [1, 2]


@pytest.mark.spec("SP-10")
async def test_of_the_log_messages_that_wait_the_oldest_are_dropped() -> None:
    async with bridged(limits=Limits(backlog=2)) as bridge:
        session = await bridge.session("2025-06-18")
        for number in (1, 2, 3):
            session.server.notes("message", level="info", data=number)
        stream = await session.listen()
        assert [(await stream.message())["params"]["data"] for _ in range(2)] == [2, 3]


@pytest.mark.case("RT-04")
@pytest.mark.spec("CP-14")
async def test_ping_of_the_server_is_answered_by_the_client_or_else_by_the_bridge() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-06-18")
        session.server.asks("ping", "p1")
        pong = await session.server.hears()
        assert (pong.id, pong.result) == ("p1", {})
        stream = await session.listen()
        session.server.asks("ping", "p2")
        assert (await stream.message())["id"] == "p2"
        assert (await session.ask({"id": "p2", "result": {}})).status == 202
        assert (await session.server.hears()).id == "p2"
        assert not session.server.unread


@pytest.mark.case("RT-04")
@pytest.mark.spec("CP-14")
async def test_ping_of_the_client_is_answered_by_its_server() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        exchange, asked = await session.calls(request("p", "ping"))
        session.server.answers(asked)
        assert (await exchange.answer()).result == {}


# --- cancelling, leaving, ids ---


@pytest.mark.spec("CP-1", "CP-3", "ER-14")
async def test_cancelled_call_is_never_answered() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-06-18")
        exchange, asked = await session.calls(call(5))
        assert (await session.ask(notification("cancelled", requestId=5, reason="r"))).status == 202
        assert (await session.server.hears()).params == {"requestId": 5, "reason": "r"}
        assert (await exchange.answer()).messages == []
        session.server.answers(asked)
        follower, asked = await session.calls(call(6))
        session.server.answers(asked)
        assert [m["id"] for m in (await follower.answer()).messages] == [6]


async def test_cancelled_call_of_a_client_that_takes_json_only_is_accepted_without_a_body() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        exchange, _ = await session.calls(call(5), JSON_ONLY)
        await session.ask(notification("cancelled", requestId=5))
        answer = await exchange.answer()
        assert (answer.status, answer.body) == (202, b"")


@pytest.mark.case("ID-06")
@pytest.mark.spec("CP-4", "CP-5")
async def test_late_answer_of_a_cancelled_call_is_not_taken_for_the_one_of_its_successor() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        _, old = await session.calls(call(7))
        await session.ask(notification("cancelled", requestId=7))
        await session.server.hears("notifications/cancelled")
        exchange, new = await session.calls(call(7))
        assert new.id != old.id
        session.server.answers(old, {"old": True})
        session.server.answers(new, {"new": True})
        assert (await exchange.answer()).last == {"jsonrpc": "2.0", "id": 7, "result": {"new": True}}


@pytest.mark.case("ID-06")
@pytest.mark.spec("CP-3", "CP-7")
@pytest.mark.parametrize("params", [{"requestId": "7"}, {"requestId": 8}, {"requestId": None}, {}])
async def test_cancellation_of_what_is_not_in_flight_is_ignored(params: Json) -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        exchange, asked = await session.calls(call(7))
        assert (await session.ask(notification("cancelled", **params))).status == 202
        assert not session.server.unread
        session.server.answers(asked)
        assert (await exchange.answer()).last["id"] == 7


@pytest.mark.case("ID-05")
@pytest.mark.spec("G-4")
async def test_second_request_with_an_id_in_flight_is_refused_and_the_first_goes_on() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-06-18", roots={})
        exchange, asked = await session.calls(call(5, "a"))
        twin = await session.ask(call(5, "b"))
        assert (twin.status, twin.last["id"], twin.error["code"]) == (400, 5, -32600)
        assert not session.server.unread
        session.server.asks("roots/list", "q")  # its only stream is the first one's
        assert (await exchange.message())["id"] == "q"
        session.server.answers(asked, {"a": 1})
        assert (await exchange.message())["result"] == {"a": 1}


async def test_question_that_waits_is_not_given_to_a_refused_request() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-06-18", roots={})
        exchange, asked = await session.calls(call(5), JSON_ONLY)
        session.server.asks("roots/list", "q")
        assert (await session.ask(call(5))).status == 400
        stream = await session.listen()
        assert (await stream.message())["id"] == "q"
        session.server.answers(asked)
        await exchange.answer()


@pytest.mark.case("TF-05", "CP-02")
@pytest.mark.spec("HL-11")
async def test_client_that_leaves_cancels_nothing_and_the_session_lives_on() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        gone, asked = await session.calls(call(1))
        gone.reset()
        await bridge.handles(0)
        assert not session.server.unread
        session.server.answers(asked)
        exchange, asked = await session.calls(call(1))
        session.server.answers(asked, {"second": True})
        assert (await exchange.answer()).result == {"second": True}


async def test_call_whose_client_left_keeps_its_id_until_it_is_answered() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        gone, asked = await session.calls(call(1))
        gone.reset()
        await bridge.handles(0)
        assert (await session.ask(call(1))).error["code"] == -32600
        session.server.answers(asked)


@pytest.mark.spec("LC-12")
@pytest.mark.case("SS-03", "CP-02")
@pytest.mark.parametrize("commit", [3600.0, 0.0])
async def test_client_that_leaves_before_it_knows_its_session_leaves_none(commit: float) -> None:
    async with bridged(timing=replace(UNHURRIED, commit=commit)) as bridge:
        opening = await bridge.post(initialize())
        server = await bridge.source.next()
        await server.hears("initialize")
        if commit == 0.0:
            await opening.head()
        opening.reset()
        await server.is_ended()
        assert bridge.relay.sessions == {}
        assert not server.unread, "a client may not cancel initialize"
        assert bridge.source.failures == []


@pytest.mark.case("SS-03")
async def test_client_that_leaves_while_its_server_starts_leaves_nothing() -> None:
    async with bridged() as bridge:
        bridge.source.gate.clear()
        opening = await bridge.post(initialize())
        await bridge.handles(1)
        opening.reset()
        await bridge.handles(0)
        bridge.source.gate.set()
        session = await bridge.session()
        assert list(bridge.relay.sessions) == [session.id]
        assert len(bridge.source.servers) == 1


# --- opening ---


@pytest.mark.spec("HL-16", "LC-2", "LC-8")
@pytest.mark.case("HT-05")
@pytest.mark.parametrize("answered", [*OLDER, LATEST])
@pytest.mark.parametrize("offered", [*OLDER, LATEST])
async def test_version_is_negotiated_between_client_and_server(offered: str, answered: str) -> None:
    async with bridged() as bridge:
        opening = await bridge.post(initialize(offered), {"MCP-Protocol-Version": "1999-01-01"})
        server = await bridge.source.next()
        asked = await server.hears("initialize")
        assert asked.params["protocolVersion"] == offered
        server.answers(asked, initialized(answered))
        answer = await opening.answer()
        assert answer.result == initialized(answered)
        named = {"Mcp-Session-Id": answer.headers["mcp-session-id"], "MCP-Protocol-Version": answered}
        assert (await bridge.ask(notification("initialized"), named)).status == 202


@pytest.mark.spec("HL-24")
async def test_refused_initialize_makes_no_session_and_tells_what_the_server_said() -> None:
    async with bridged() as bridge:
        opening = await bridge.post(initialize())
        server = await bridge.source.next()
        server.refuses(await server.hears("initialize"), -32022, "Unsupported protocol version")
        asked = await bridge.source.next()  # whether it is of the other era
        asked.refuses(await asked.hears("server/discover"), -32601, "Method not found")
        answer = await opening.answer()
        assert (answer.status, answer.error["code"]) == (200, -32022)
        assert "mcp-session-id" not in answer.headers
        await server.is_ended()
        assert bridge.relay.sessions == {}
        assert bridge.source.failures == []


async def test_server_that_dies_before_it_is_initialized_is_a_failure_that_is_told() -> None:
    async with bridged() as bridge:
        opening = await bridge.post(initialize())
        server = await bridge.source.next()
        await server.hears("initialize")
        server.dies(3, "no such module")
        answer = await opening.answer()
        assert (answer.status, answer.error["code"]) == (200, -32603)
        assert answer.error["data"] == {
            "origin": "bridge",
            "reason": "upstream_lost",
            "exitCode": 3,
            "stderr": ["no such module"],
        }
        assert "mcp-session-id" not in answer.headers
        assert bridge.relay.sessions == {}
        assert len(bridge.source.failures) == 1
        assert not bridge.relay.readiness.ready


async def test_server_that_does_not_answer_initialize_in_time_is_a_failure_and_is_ended() -> None:
    async with bridged(timing=replace(UNHURRIED, start=0.02)) as bridge:
        answer = await bridge.ask(initialize())
        assert answer.error["data"]["reason"] == "upstream_timeout"
        server = await bridge.source.next()
        await server.is_ended()
        assert bridge.relay.sessions == {}
        assert len(bridge.source.failures) == 1
        server.says(b'{"jsonrpc":"2.0","id":0,"result":{}}')  # too late, and nobody's


@pytest.mark.spec("LC-1", "LC-5")
async def test_before_initialize_is_answered_only_pings_are_taken() -> None:
    async with bridged(timing=replace(UNHURRIED, commit=0.0)) as bridge:
        opening = await bridge.post(initialize())
        await opening.head()  # a stream, since it takes long; it names the session already
        server = await bridge.source.next()
        session = Session(bridge, server, opening.headers["mcp-session-id"])
        asked = await server.hears("initialize")
        early = await session.ask(call(1))
        assert (early.status, early.error["code"], early.last["id"]) == (400, -32600, 1)
        ping, heard = await session.calls(request(2, "ping"), JSON_ONLY)
        server.answers(heard)
        assert (await ping.answer()).status == 200
        server.answers(asked, initialized())
        assert (await opening.message())["result"] == initialized()


@pytest.mark.case("SS-01")
async def test_initialize_that_names_a_stale_session_opens_a_new_one() -> None:
    async with bridged() as bridge:
        opening = await bridge.post(initialize(), {"Mcp-Session-Id": "stale"})
        server = await bridge.source.next()
        server.answers(await server.hears("initialize"), initialized())
        assert (await opening.answer()).headers["mcp-session-id"] != "stale"


# --- the end of a session ---


@pytest.mark.spec("HL-19", "HL-20")
@pytest.mark.case("SS-03")
async def test_deleted_session_answers_each_call_once_and_is_gone() -> None:
    async with bridged() as bridge:
        session = await bridge.session("2025-06-18")
        stream = await session.listen()
        plain = await session.calls(call(1))
        streaming = await session.calls(call(2, token=2))
        session.server.progresses(streaming[1], 1)
        assert (await session.delete()).status == 200
        for exchange, _ in (plain, streaming):
            answers = [message for message in (await exchange.answer()).messages if "error" in message]
            assert [answer["error"]["data"]["reason"] for answer in answers] == ["session_closed"]
        assert (await stream.answer()).messages == []
        await session.server.is_ended()
        assert (await session.ask(call(3))).status == 404
        assert (await session.delete()).status == 404


@pytest.mark.case("CP-07")
async def test_server_that_dies_answers_each_of_its_calls_and_ends_its_session() -> None:
    async with bridged() as bridge:
        session, other = await bridge.session("2025-06-18"), await bridge.session()
        calls = [await session.calls(call(number, token=number)) for number in range(5)]
        session.server.progresses(calls[4][1], 1)
        session.server.dies(-9, "killed")
        for number, (exchange, _) in enumerate(calls):
            messages = (await exchange.answer()).messages
            assert [m["id"] for m in messages if "id" in m] == [number]
            assert messages[-1]["error"]["code"] == -32603
            assert messages[-1]["error"]["data"]["exitCode"] == -9
            assert messages[-1]["error"]["data"]["stderr"] == ["killed"]
        assert (await session.ask(call(9))).status == 404
        exchange, asked = await other.calls(call(1))
        other.server.answers(asked)
        assert (await exchange.answer()).status == 200
        assert bridge.relay.readiness.ready


@pytest.mark.case("SS-06", "SS-03")
async def test_idle_session_ends_but_never_one_with_a_call_or_an_open_stream() -> None:
    async with bridged(timing=replace(UNHURRIED, session_idle=0.3)) as bridge:
        busy, listening, idle = [await bridge.session() for _ in range(3)]
        exchange, asked = await busy.calls(call(1))
        stream = await listening.listen()
        await idle.server.is_ended()
        assert set(bridge.relay.sessions) == {busy.id, listening.id}
        busy.server.answers(asked)
        assert (await exchange.answer()).status == 200
        await busy.server.is_ended()
        stream.reset()
        await listening.server.is_ended()
        assert bridge.relay.sessions == {}


@pytest.mark.case("SS-06")
async def test_call_whose_client_left_holds_the_session_until_it_is_answered() -> None:
    async with bridged(timing=replace(UNHURRIED, session_idle=0.3)) as bridge:
        session, idle = await bridge.session(), await bridge.session()
        exchange, asked = await session.calls(call(1, token=1))
        session.server.progresses(asked, 1)
        await exchange.event()
        exchange.reset()
        await idle.server.is_ended()
        assert session.id in bridge.relay.sessions
        session.server.answers(asked)
        await session.server.is_ended()


async def test_refused_request_does_not_keep_a_session_from_growing_idle() -> None:
    async with bridged(timing=replace(UNHURRIED, session_idle=0.3)) as bridge:
        session = await bridge.session()
        exchange, asked = await session.calls(call(1))
        assert (await session.ask(call(1))).status == 400
        session.server.answers(asked)
        await exchange.answer()
        await session.server.is_ended()


# --- limits ---


@pytest.mark.spec("SP-10")
async def test_request_too_many_is_told_to_come_back() -> None:
    async with bridged(limits=Limits(in_flight=2)) as bridge:
        session = await bridge.session()
        calls = [await session.calls(call(number)) for number in (1, 2)]
        refused = await session.ask(call(3))
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert refused.error["data"]["reason"] == "in_flight"
        session.server.answers(calls[0][1])
        await calls[0][0].answer()
        exchange, asked = await session.calls(call(3))
        session.server.answers(asked)
        assert (await exchange.answer()).status == 200


@pytest.mark.spec("CP-16", "CP-17")
@pytest.mark.case("TF-01")
async def test_request_that_takes_too_long_is_answered_and_cancelled() -> None:
    async with bridged(timing=replace(UNHURRIED, request=0.02)) as bridge:
        session = await bridge.session()
        exchange, asked = await session.calls(call(5))
        answer = await exchange.answer()
        assert (answer.last["id"], answer.error["data"]["reason"]) == (5, "upstream_timeout")
        assert (await session.server.hears("notifications/cancelled")).params == {"requestId": 5}
        session.server.answers(asked)  # too late


@pytest.mark.case("TF-01")
@pytest.mark.spec("CP-17")
async def test_progress_extends_the_time_of_a_request() -> None:
    async with bridged(timing=replace(UNHURRIED, request=0.3)) as bridge:
        session = await bridge.session()
        witness, _ = await session.calls(call(1))
        exchange, asked = await session.calls(call(2, token=2))
        progress = count(1)
        while witness.status == 0:
            session.server.progresses(asked, next(progress))
            await exchange.event()
            if any(heard.method == "notifications/cancelled" for heard in session.server.unread):
                await witness.head()
        session.server.answers(asked, {"in time": True})
        assert (await exchange.message())["result"] == {"in time": True}


@pytest.mark.spec("CP-18")
async def test_call_does_not_expire_while_its_client_is_being_asked() -> None:
    async with bridged(timing=replace(UNHURRIED, request=0.3)) as bridge:
        session, other = await bridge.session("2025-06-18", elicitation={}), await bridge.session()
        exchange, asked = await session.calls(call(1))
        session.server.asks("elicitation/create", "q")
        await exchange.message()
        witness, _ = await other.calls(call(1))
        assert (await witness.answer()).error["data"]["reason"] == "upstream_timeout"
        await session.ask({"id": "q", "result": {"action": "accept"}})
        session.server.answers(asked, {"in time": True})
        assert (await exchange.message())["result"] == {"in time": True}


async def test_post_waits_while_the_server_does_not_read() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        session.server.congest()
        exchange = await session.post(call(1))
        await bridge.handles(1)
        await session.listen()  # answered later than the POST would have been
        assert not session.server.unread
        session.server.relieve()
        session.server.answers(await session.server.hears("tools/call"))
        assert (await exchange.answer()).status == 200


async def test_post_that_waited_for_a_server_that_is_lost_is_told_that_its_session_is_gone() -> None:
    async with bridged() as bridge:
        session = await bridge.session()
        session.server.congest()
        exchange = await session.post(call(1))
        await bridge.handles(1)
        session.server.dies()
        answer = await exchange.answer()
        assert (answer.status, answer.last["id"]) == (404, 1)


async def test_post_that_waits_for_a_server_that_does_not_read_ends_with_its_session() -> None:
    async with bridged(process=ProcessModel.SHARED) as bridge:
        session = await _shared(bridge)
        session.server.congest()
        exchange = await session.post(call(1))
        await bridge.handles(1)
        assert (await session.delete()).status == 200
        assert (await exchange.answer()).status == 404
        session.server.relieve()
        assert not session.server.unread


@pytest.mark.spec("CP-16")
@pytest.mark.parametrize(("message", "status"), [(call(1), 200), (notification("vendor"), 503)])
async def test_post_that_waits_too_long_for_a_server_that_does_not_read_is_told_so(
    message: Json, status: int
) -> None:
    async with bridged(timing=replace(UNHURRIED, request=0.02)) as bridge:
        session = await bridge.session()
        session.server.congest()
        answer = await session.ask(message)
        assert (answer.status, answer.error["data"]["reason"]) == (status, "upstream_timeout")
        session.server.relieve()
        assert not session.server.unread


@pytest.mark.spec("SP-10")
async def test_client_that_does_not_read_slows_its_own_server_only() -> None:
    async with bridged(limits=Limits(unsent=100_000)) as bridge:
        slow, other = await bridge.session("2025-06-18"), await bridge.session()
        exchange, asked = await slow.calls(call(1, token=1))
        await _flood(bridge, slow.server, 1)
        assert slow.server.paused
        assert not other.server.paused
        slow.server.answers(asked)
        assert (await exchange.answer()).last["id"] == 1
        assert not slow.server.paused


@pytest.mark.spec("SP-10")
async def test_client_of_a_shared_server_that_does_not_read_is_cut_and_nobody_is_slowed() -> None:
    limits = Limits(unsent=100_000)
    async with bridged(process=ProcessModel.SHARED, limits=limits) as bridge:
        slow = await _shared(bridge)
        exchange, asked = await slow.calls(call(1, token=1))
        await _flood(bridge, slow.server, asked.params["_meta"]["progressToken"])
        assert not slow.server.paused
        await bridge.handles(0)
        slow.server.answers(asked, {"kept": True})
        seen = await exchange.event()
        with pytest.raises((ConnectionError, EOFError)):
            await exchange.answer()
        resumed = await (await slow.listen(seen.id)).answer()
        assert resumed.last["result"] == {"kept": True}


@pytest.mark.case("SE-07")
async def test_one_message_beyond_the_bound_gets_through_from_a_shared_server() -> None:
    limits = Limits(unsent=10_000)
    async with bridged(process=ProcessModel.SHARED, limits=limits) as bridge:
        session = await _shared(bridge)
        exchange, asked = await session.calls(call(1, token=1))
        session.server.progresses(asked, 1)
        await exchange.event()
        session.server.answers(asked, {"text": "x" * 8_000_000})
        assert len((await exchange.message())["result"]["text"]) == 8_000_000


async def _flood(bridge: Bridge, server: ScriptedServer, token: object) -> None:
    """Progress without end, until the bridge stops reading it or has cut whoever should read it."""
    for progress in count(1):
        if server.paused or progress > 2000:
            return
        server.notes("progress", progressToken=token, progress=progress, message="x" * 10_000)
        await bridge.turn()


async def _shared(bridge: Bridge) -> Session:
    """The first session of a shared server, which is initialized by the bridge."""
    opening = await bridge.post(initialize(LATEST))
    server = await bridge.source.next()
    server.answers(await server.hears("initialize"), initialized())
    await server.hears("notifications/initialized")
    session = Session(bridge, server, (await opening.answer()).headers["mcp-session-id"])
    assert (await session.ask(notification("initialized"))).status == 202
    return session


@pytest.mark.spec("HL-15")
async def test_question_withdrawn_after_its_call_was_cancelled_is_told_on_the_listening_stream() -> None:
    async with bridged() as bridge:
        session = await bridge.session(roots={})
        stream = await session.listen()
        exchange, asked = await session.calls(call(1))
        session.server.says({"id": "q", "method": "roots/list"}, on=asked.id)
        assert (await exchange.event()).message["method"] == "roots/list"
        await session.ask(notification("cancelled", requestId=1))
        await session.server.hears("notifications/cancelled")
        withdrawn = {"method": "notifications/cancelled", "params": {"requestId": "q"}}
        session.server.says(withdrawn, on=asked.id)
        assert (await stream.event()).message["params"] == {"requestId": "q"}
