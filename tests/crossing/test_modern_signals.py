"""Log messages, progress and cancellation between modern clients and a legacy server."""

from __future__ import annotations

import pytest

from bridge.core.events import Exchange, Left, Party
from bridge.core.message import Id
from bridge.era.terms import Terms
from crossing.bench import Bench, Json, bridge_error, opened_of

WINDOW = Terms().coalesce
ACCEPT = {"action": "accept", "content": {}}


def said(level: str, **more: object) -> Json:
    return {"level": level, "data": "x", **more}


def levels(bench: Bench, exchange: Exchange) -> list[str]:
    """The levels of the log messages that came for this request, and nothing else came."""
    notes = bench.down(exchange)
    assert {note["method"] for note in notes} <= {"notifications/message"}
    return [note["params"]["level"] for note in notes]


def granted(bench: Bench) -> None:
    """The server takes the level that it is told."""
    [sent] = bench.take_sent()
    assert sent["method"] == "logging/setLevel"
    bench.result(sent["id"], {})


def logging(bench: Bench, level: str, request_id: Id = 1, *, subject: str = "ann") -> tuple[Exchange, Id]:
    """A call at this level that the server works at, which was told so."""
    exchange = bench.call(request_id, level=level, subject=subject)
    granted(bench)
    [sent] = bench.take_sent()
    return exchange, sent["id"]


# --- logging ---


@pytest.mark.crossing("E1")
def test_level_of_a_request_is_set_first_and_the_request_follows_without_it() -> None:
    bench = Bench()
    bench.call(level="info")
    [first] = bench.take_sent()
    assert (first["method"], first["params"]) == ("logging/setLevel", {"level": "info"})
    bench.result(first["id"], {})
    [second] = bench.take_sent()
    assert (second["method"], second["params"]) == ("tools/call", {"name": "a", "arguments": {"x": 1}})


@pytest.mark.parametrize("how", ["error", "silence"])
def test_request_goes_out_also_when_the_level_was_not_taken(how: str) -> None:
    bench = Bench()
    bench.call(level="info")
    [first] = bench.take_sent()
    if how == "error":
        bench.error(first["id"], -32603)
    else:
        bench.clock.advance(Terms().level)
    assert bench.take_sent()[-1]["method"] == "tools/call"
    bench.call(2, level="info")
    assert [sent["method"] for sent in bench.take_sent()] == ["tools/call"]


def test_requests_wait_for_a_level_that_is_being_set() -> None:
    bench = Bench()
    bench.call(1, level="info")
    bench.call(2, level="warning")
    bench.call(3)
    first, third = bench.take_sent()
    assert (first["method"], third["method"]) == ("logging/setLevel", "tools/call")
    bench.result(first["id"], {})
    assert [sent["method"] for sent in bench.take_sent()] == ["tools/call", "tools/call"]


def test_each_level_that_is_set_lets_go_of_its_own_requests() -> None:
    bench = Bench()
    bench.call(1, level="info")
    bench.call(2, level="debug")
    first, second = bench.take_sent()
    assert [sent["params"]["level"] for sent in (first, second)] == ["info", "debug"]
    bench.result(first["id"], {})
    [sent] = bench.take_sent()
    assert sent["method"] == "tools/call"
    bench.call(3, level="debug")
    assert bench.take_sent() == []
    bench.result(second["id"], {})
    assert [sent["method"] for sent in bench.take_sent()] == ["tools/call", "tools/call"]


def test_request_that_was_closed_while_its_level_is_set_is_not_sent() -> None:
    bench = Bench()
    exchange = bench.call(1, level="info")
    bench.close(exchange)
    granted(bench)
    assert bench.take_sent() == []
    assert not bench.layer.busy


@pytest.mark.crossing("E2")
def test_request_gets_what_reaches_its_level_before_its_result() -> None:
    bench = Bench()
    exchange, hop_id = logging(bench, "info")
    bench.note("message", said("debug"))
    bench.note("message", said("warning"))
    bench.result(hop_id)
    [note, answer] = bench.down(exchange)
    assert note == {"method": "notifications/message", "params": said("warning")}
    assert "result" in answer
    bench.note("message", said("error"))
    assert bench.fallen == []


@pytest.mark.crossing("E3")
@pytest.mark.parametrize("on_stream", [True, False])
def test_request_without_a_level_gets_no_log_messages(on_stream: bool) -> None:
    bench = Bench()
    _, hop_id = bench.running()
    bench.note("message", said("error"), on=hop_id if on_stream else None)
    assert bench.fallen == []


@pytest.mark.crossing("E4")
@pytest.mark.spec("LC-10")
def test_level_is_not_set_at_a_server_that_does_not_log() -> None:
    bench = Bench(opened=opened_of(capabilities={"tools": {}}))
    bench.call(level="info")
    assert [sent["method"] for sent in bench.take_sent()] == ["tools/call"]


@pytest.mark.crossing("E5")
def test_server_is_kept_at_the_most_verbose_level_and_each_request_at_its_own() -> None:
    bench = Bench()
    logging(bench, "info")
    verbose, _ = logging(bench, "debug", 2)
    quiet = bench.call(3, level="error")
    [sent] = bench.take_sent()
    assert sent["method"] == "tools/call"
    bench.note("message", said("debug"), on=sent["id"])
    bench.note("message", said("critical"), on=sent["id"])
    assert levels(bench, quiet) == ["critical"]
    assert levels(bench, verbose) == []


def test_unknown_level_is_refused() -> None:
    bench = Bench()
    assert bridge_error(-32602, "log_level")(bench.answer(bench.call(level="loud")))
    assert bench.take_sent() == []


def test_log_message_goes_to_the_newest_request_that_asked_for_them() -> None:
    bench = Bench()
    older, _ = logging(bench, "info", 1)
    newer = bench.ask(2, "tools/list", level="info")
    bench.call(3)
    bench.note("message", said("info"))
    assert levels(bench, older) == []
    assert levels(bench, newer) == ["info"]


def test_log_message_that_could_be_of_two_subjects_is_dropped() -> None:
    bench = Bench()
    logging(bench, "info", 1, subject="ann")
    bench.call(2, level="info", subject="bob")
    bench.note("message", said("error"))
    assert bench.fallen == []


def test_log_messages_of_a_suspended_call_open_the_stream_of_its_retry() -> None:
    bench = Bench(terms=Terms(logs=2))
    exchange, hop_id = logging(bench, "info")
    bench.question(0)
    bench.clock.advance(WINDOW)
    _, state = bench.asked(exchange)
    for level in ("alert", "debug", "error"):
        bench.note("message", said(level), on=hop_id)
    retry = bench.back(2, state, {"in-1": ACCEPT}, level="debug")
    assert levels(bench, retry) == ["debug", "error"]  # the oldest had to go
    assert [sent["method"] for sent in bench.take_sent() if "method" in sent] == ["logging/setLevel"]


def test_log_messages_of_a_suspended_call_are_dropped_when_the_retry_wants_none() -> None:
    bench = Bench()
    exchange, hop_id = logging(bench, "info")
    bench.question(0)
    bench.clock.advance(WINDOW)
    _, state = bench.asked(exchange)
    bench.note("message", said("error"), on=hop_id)
    retry = bench.back(2, state, {"in-1": ACCEPT})
    assert bench.down(retry) == []


# --- progress ---


def with_token(bench: Bench, token: Id) -> tuple[Exchange, Id, Id]:
    """A call with this token: its exchange, its id at the server and its token there."""
    exchange = bench.call(token=token)
    [sent] = bench.take_sent()
    return exchange, sent["id"], sent["params"]["_meta"]["progressToken"]


def progress(bench: Bench, token: Id, *values: float) -> None:
    for value in values:
        bench.note("progress", {"progressToken": token, "progress": value})


@pytest.mark.crossing("E6")
@pytest.mark.parametrize("token", ["p", 7, "7"])
def test_progress_comes_back_under_the_token_that_the_client_chose(token: Id) -> None:
    bench = Bench()
    exchange, _, hop_token = with_token(bench, token)
    progress(bench, hop_token, 1)
    [note] = bench.down(exchange)
    assert note == {"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}
    assert type(note["params"]["progressToken"]) is type(token)


def test_equal_tokens_of_two_clients_never_meet() -> None:
    bench = Bench()
    one, _, first = with_token(bench, 1)
    two, _, second = with_token(bench, 1)
    assert first != second
    progress(bench, second, 5)
    assert bench.down(one) == []
    assert [note["params"]["progressToken"] for note in bench.down(two)] == [1]


def test_request_without_a_token_has_none_at_the_server() -> None:
    bench = Bench()
    bench.call()
    [sent] = bench.take_sent()
    assert "_meta" not in sent["params"]


@pytest.mark.crossing("E7")
def test_progress_only_ever_grows_and_ends_with_the_answer() -> None:
    bench = Bench()
    exchange, hop_id, token = with_token(bench, "p")
    progress(bench, token, 2, 2, 1)
    bench.note("progress", {"progressToken": token, "progress": "much"})
    bench.result(hop_id)
    progress(bench, token, 3)
    first, answer = bench.down(exchange)
    assert first["params"]["progress"] == 2
    assert "result" in answer


@pytest.mark.crossing("E8")
@pytest.mark.spec("CP-13")
def test_progress_of_a_suspended_call_is_folded_and_told_under_the_token_of_the_retry() -> None:
    bench = Bench()
    exchange, _, token = with_token(bench, "p")
    bench.question(0)
    bench.clock.advance(WINDOW)
    _, state = bench.asked(exchange)
    progress(bench, token, 3, 4)
    assert bench.fallen == []
    retry = bench.back(2, state, {}, token="q")
    first, answer = bench.down(retry)
    assert first["params"] == {"progressToken": "q", "progress": 4}
    last = bench.back(3, answer["result"]["requestState"], {"in-1": ACCEPT})
    progress(bench, token, 5)
    assert bench.down(last) == []


def test_progress_that_was_told_is_not_told_again() -> None:
    bench = Bench()
    exchange, _, token = with_token(bench, "p")
    progress(bench, token, 3)
    bench.question(0)
    bench.clock.advance(WINDOW)
    state = bench.down(exchange)[-1]["result"]["requestState"]
    retry = bench.back(2, state, {"in-1": ACCEPT}, token="q")
    progress(bench, token, 3, 6)
    assert [note["params"]["progress"] for note in bench.down(retry)] == [6]


def test_what_a_retry_was_told_is_not_told_to_the_next() -> None:
    bench = Bench()
    exchange = bench.call(level="info", token="p")
    granted(bench)
    [sent] = bench.take_sent()
    bench.question(0)
    bench.clock.advance(WINDOW)
    _, state = bench.asked(exchange)
    progress(bench, sent["params"]["_meta"]["progressToken"], 4)
    bench.note("message", said("error"), on=sent["id"])
    *notes, answer = bench.down(bench.back(2, state, {}, level="info", token="q"))
    assert [note["method"] for note in notes] == ["notifications/progress", "notifications/message"]
    again = bench.back(3, answer["result"]["requestState"], {}, level="info", token="r")
    assert [message.get("method") for message in bench.down(again)] == [None]


# --- other notifications ---


@pytest.mark.parametrize(("on_stream", "told"), [(True, 1), (False, 0)])
def test_unknown_notification_goes_to_the_request_on_whose_stream_it_came(on_stream: bool, told: int) -> None:
    bench = Bench()
    exchange, hop_id = bench.running()
    bench.note("vendor/x", {"n": 1}, on=hop_id if on_stream else None)
    assert len(bench.down(exchange)) == told
    assert bench.fallen == []


def test_unknown_notification_while_the_client_is_away_is_dropped() -> None:
    bench = Bench()
    _, hop_id = bench.suspended()
    bench.note("vendor/x", {"n": 1}, on=hop_id)
    assert bench.fallen == []


# --- cancellation ---


@pytest.mark.crossing("E9")
@pytest.mark.crossing("E10")
def test_closed_request_is_cancelled_and_its_late_answer_dropped() -> None:
    bench = Bench()
    exchange, hop_id = bench.running()
    bench.close(exchange)
    [sent] = bench.take_sent()
    assert sent == {"method": "notifications/cancelled", "params": {"requestId": hop_id}}
    bench.result(hop_id)
    assert bench.fallen == []
    assert not bench.layer.busy


def test_answered_request_is_not_cancelled() -> None:
    bench = Bench()
    exchange, hop_id = bench.running()
    bench.result(hop_id)
    bench.close(exchange)
    assert bench.take_sent() == []


def test_client_that_leaves_takes_back_its_own_requests_only() -> None:
    bench = Bench()
    party, other = Party("stdio"), Party("other")
    hop_ids = []
    for request_id in (1, 2):
        bench.call(request_id, party=party)
        hop_ids.append(bench.take_sent()[0]["id"])
    stays = bench.call(1, party=other)
    [sent] = bench.take_sent()
    bench.rise(Left(party))
    assert [one["params"]["requestId"] for one in bench.take_sent()] == hop_ids
    bench.result(sent["id"])
    assert "result" in bench.answer(stays)


def test_questions_of_a_cancelled_call_are_refused_after_it() -> None:
    bench = Bench()
    exchange, hop_id = bench.running()
    bench.question(0)
    bench.close(exchange)
    first, second = bench.take_sent()
    assert first["params"] == {"requestId": hop_id}
    assert second == {"id": 0, "result": {"action": "cancel"}}
    bench.clock.advance(WINDOW)
    assert bench.fallen == []
