"""A legacy server's questions, and modern clients that come back with answers."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.core.events import Exchange
from bridge.core.message import Request, Response, request
from bridge.era.suspend import Elsewhere
from bridge.era.terms import Attribution, Terms
from bridge.seal import Seal, read_ring
from crossing.bench import EL, SI, Bench, C, FakeClock, Json, bridge_error, calls_of, opened_of

ACCEPT = {"action": "accept", "content": {"n": "x"}}
SAMPLED = {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"}
REFUSED = bridge_error(-32602, "invalid_request_state")
WINDOW = Terms().coalesce
URLS = '{"elicitation":{"form":{},"url":{}}}'
PAGE = {"mode": "url", "elicitationId": "e", "url": "https://u/", "message": "m"}


def entry(params: Json = EL) -> Json:
    return {"method": "elicitation/create", "params": params}


def cancelled(hop_id: object) -> Json:
    return {"method": "notifications/cancelled", "params": {"requestId": hop_id}}


def refusals(bench: Bench) -> list[tuple[object, int]]:
    """The errors that the server got, by the ids of its questions."""
    return [(sent["id"], sent["error"]["code"]) for sent in bench.take_sent()]


# --- asking ---


@pytest.mark.crossing("D1")
@pytest.mark.spec("MR-14")
def test_question_of_the_server_suspends_the_call() -> None:
    bench = Bench()
    exchange, _ = bench.running()
    bench.question(0)
    assert bench.down(exchange) == []
    bench.clock.advance(WINDOW)
    answer = bench.answer(exchange)
    state = answer["result"].pop("requestState")
    assert answer == {"result": {"resultType": "input_required", "inputRequests": {"in-1": entry()}, **SI}}
    assert 0 < len(state) <= 1024
    assert bench.take_sent() == []


@pytest.mark.crossing("D3")
def test_questions_of_one_moment_go_out_together_and_each_gets_its_own_answer() -> None:
    bench = Bench()
    exchange, _ = bench.running()
    bench.question(1)
    bench.clock.advance(WINDOW / 2)
    bench.question("1", "roots/list", {})
    assert bench.down(exchange) == []
    bench.clock.advance(WINDOW / 2)
    asked, state = bench.asked(exchange)
    assert asked == {"in-1": entry(), "in-2": {"method": "roots/list"}}
    bench.back(2, state, {"in-2": {"roots": []}, "in-1": ACCEPT})
    answers = [(sent["id"], sent["result"]) for sent in bench.take_sent()]
    assert sorted(answers, key=repr) == [("1", {"roots": []}), (1, ACCEPT)]


@pytest.mark.crossing("D22")
@pytest.mark.spec("FT-5", "FT-6")
def test_url_elicitation_goes_out_without_its_id_and_its_completion_is_not_told() -> None:
    bench = Bench()
    exchange, hop_id = bench.running(can=URLS)
    bench.question(0, params={**PAGE, "elicitationId": "e1"})
    bench.clock.advance(WINDOW)
    asked, state = bench.asked(exchange)
    assert asked == {"in-1": entry({"mode": "url", "url": "https://u/", "message": "m"})}
    retry = bench.back(2, state, {"in-1": {"action": "accept"}}, can=URLS)
    bench.note("elicitation/complete", {"elicitationId": "e1"}, on=hop_id)
    assert bench.down(retry) == []


@pytest.mark.crossing("D23")
def test_what_belongs_to_the_legacy_hop_only_is_not_shown() -> None:
    bench = Bench()
    exchange, _ = bench.running()
    related = {"io.modelcontextprotocol/related-task": {"taskId": "t"}}
    bench.question(0, params={**EL, "task": {"ttl": 1}, "_meta": {"progressToken": 3, **related}})
    bench.question(1, params={**EL, "_meta": {"progressToken": 3, "com.ex/k": 1}})
    bench.question(2, "roots/list", {"_meta": {"progressToken": 4}})
    bench.clock.advance(WINDOW)
    asked, _ = bench.asked(exchange)
    assert asked == {
        "in-1": entry(),
        "in-2": entry({**EL, "_meta": {"com.ex/k": 1}}),
        "in-3": {"method": "roots/list"},
    }


@pytest.mark.crossing("D21")
def test_ping_is_answered_at_once_and_nobody_is_asked() -> None:
    bench = Bench()
    exchange, _ = bench.running()
    bench.question(3, "ping", None)
    assert bench.take_sent() == [{"id": 3, "result": {}}]
    bench.clock.advance(WINDOW)
    assert bench.down(exchange) == []


def test_question_that_no_client_knows_is_refused() -> None:
    bench = Bench()
    bench.running()
    bench.question(1, "tasks/list", {})
    bench.question(2, "elicitation/create", ["no", "object"])
    assert refusals(bench) == [(1, -32601), (2, -32602)]


@pytest.mark.crossing("D31")
def test_progress_that_was_streamed_comes_before_the_question() -> None:
    bench = Bench()
    exchange = bench.call(token="p")
    [sent] = bench.take_sent()
    token = sent["params"]["_meta"]["progressToken"]
    bench.note("progress", {"progressToken": token, "progress": 1})
    bench.question(0)
    bench.clock.advance(WINDOW)
    progress, answer = bench.down(exchange)
    assert progress["params"] == {"progressToken": "p", "progress": 1}
    assert answer["result"]["resultType"] == "input_required"


def test_a_call_with_too_many_open_questions_gets_no_more() -> None:
    bench = Bench()
    bench.running()
    for number in range(101):
        bench.question(number)
    assert bench.take_sent() == [{"id": 100, "result": {"action": "cancel"}}]


# --- coming back ---


@pytest.mark.crossing("D2")
def test_answers_of_the_retry_go_to_the_server_and_its_result_to_the_retry() -> None:
    bench = Bench()
    state, hop_id = bench.suspended()
    retry = bench.back(2, state, {"in-1": ACCEPT})
    assert bench.take_sent() == [{"id": 0, "result": ACCEPT}]
    assert bench.down(retry) == []
    bench.result(hop_id, {"content": [], "x": 1})
    assert bench.answer(retry) == {"result": {"content": [], "x": 1, **C, **SI}}
    assert not bench.layer.busy


@pytest.mark.crossing("D4")
def test_what_was_not_answered_is_asked_again_with_a_new_state() -> None:
    bench = Bench()
    exchange, _ = bench.running()
    bench.question(1)
    bench.question("1")
    bench.clock.advance(WINDOW)
    _, state = bench.asked(exchange)
    retry = bench.back(2, state, {"in-1": ACCEPT})
    assert bench.take_sent() == [{"id": 1, "result": ACCEPT}]
    bench.clock.advance(WINDOW)
    asked, next_state = bench.asked(retry)
    assert asked == {"in-2": entry()}
    assert next_state != state


@pytest.mark.crossing("D5")
@pytest.mark.parametrize("answers", [{}, None])
def test_retry_that_answers_nothing_gets_the_same_questions_at_once(answers: object) -> None:
    bench = Bench()
    state, _ = bench.suspended()
    asked, next_state = bench.asked(bench.back(2, state, answers))
    assert asked == {"in-1": entry()}
    assert next_state != state
    assert bench.take_sent() == []


@pytest.mark.crossing("D6")
def test_answers_that_nobody_asked_for_are_ignored() -> None:
    bench = Bench()
    state, hop_id = bench.suspended()
    retry = bench.back(2, state, {"in-1": ACCEPT, "zz": 5})
    assert bench.take_sent() == [{"id": 0, "result": ACCEPT}]
    bench.result(hop_id)
    assert bench.answer(retry) == {"result": {"content": [], **C, **SI}}


@pytest.mark.crossing("D7")
@pytest.mark.parametrize("answers", [5, "null", {"in-1": {"content": {}}}, {"in-1": {"action": "maybe"}}])
def test_misshapen_answers_are_refused_and_consume_nothing(answers: object) -> None:
    bench = Bench()
    state, _ = bench.suspended()
    retry = bench.call(
        2, more={"inputResponses": None if answers == "null" else answers, "requestState": state}
    )
    assert bridge_error(-32602, "invalid_input_responses")(bench.answer(retry))
    assert bench.take_sent() == []
    bench.back(3, state, {"in-1": ACCEPT})
    assert bench.take_sent() == [{"id": 0, "result": ACCEPT}]


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("sampling/createMessage", {"role": "assistant", "content": {"type": "text"}}),
        ("sampling/createMessage", {"content": {"type": "text"}, "model": "m"}),
        ("sampling/createMessage", {"role": "assistant", "content": "x", "model": "m"}),
        ("roots/list", {"roots": {}}),
        ("roots/list", []),
    ],
)
def test_answer_has_to_have_the_shape_of_its_question(method: str, value: object) -> None:
    bench = Bench()
    exchange, _ = bench.running()
    bench.question(0, method, {})
    bench.clock.advance(WINDOW)
    _, state = bench.asked(exchange)
    answer = bench.answer(bench.back(2, state, {"in-1": value}))
    assert bridge_error(-32602, "invalid_input_responses")(answer)


@pytest.mark.crossing("D8")
def test_server_may_ask_again_in_the_next_round() -> None:
    bench = Bench()
    state, hop_id = bench.suspended()
    retry = bench.back(2, state, {"in-1": ACCEPT})
    bench.take_sent()
    bench.question(1)
    bench.clock.advance(WINDOW)
    asked, next_state = bench.asked(retry)
    assert asked == {"in-2": entry()}
    last = bench.back(3, next_state, {"in-2": {"action": "decline"}})
    assert bench.take_sent() == [{"id": 1, "result": {"action": "decline"}}]
    bench.result(hop_id)
    assert "result" in bench.answer(last)


@pytest.mark.crossing("D16")
@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_declining_is_passed_on_as_it_is(action: str) -> None:
    bench = Bench()
    state, _ = bench.suspended()
    bench.back(2, state, {"in-1": {"action": action, "x": 1}})
    assert bench.take_sent() == [{"id": 0, "result": {"action": action, "x": 1}}]


@pytest.mark.crossing("D32")
def test_result_type_of_an_answer_does_not_reach_the_server() -> None:
    bench = Bench()
    state, _ = bench.suspended()
    bench.back(2, state, {"in-1": {**ACCEPT, "resultType": "complete"}})
    assert bench.take_sent() == [{"id": 0, "result": ACCEPT}]


@pytest.mark.crossing("D33", "D34")
@pytest.mark.spec("LC-10")
@pytest.mark.parametrize(
    ("method", "given", "sent"),
    [
        (
            "elicitation/create",
            {"action": "accept", "content": {"c": ["a", "b"], "d": "e", "n": 1.0}},
            {"action": "accept", "content": {"c": "a, b", "d": "e", "n": 1.0}},
        ),
        ("sampling/createMessage", {**SAMPLED, "content": [{"type": "text", "text": "x"}]}, "x"),
        (
            "sampling/createMessage",
            {
                **SAMPLED,
                "content": [
                    {"type": "text", "text": "x"},
                    {"type": "image", "data": "AA"},
                    {"type": "text", "text": "y"},
                ],
            },
            "x\ny",
        ),
    ],
)
def test_answer_to_an_older_server_is_said_in_its_words(method: str, given: Json, sent: Any) -> None:
    bench = Bench(opened=opened_of("2025-06-18"))
    exchange, _ = bench.running()
    bench.question(0, method, EL)
    bench.clock.advance(WINDOW)
    _, state = bench.asked(exchange)
    bench.back(2, state, {"in-1": given})
    expected = {**given, "content": {"type": "text", "text": sent}} if isinstance(sent, str) else sent
    assert bench.take_sent() == [{"id": 0, "result": expected}]


def test_answer_that_an_older_server_has_no_words_for_is_an_error() -> None:
    bench = Bench(opened=opened_of("2025-06-18"))
    exchange, _ = bench.running()
    bench.question(0, "sampling/createMessage", {})
    bench.clock.advance(WINDOW)
    _, state = bench.asked(exchange)
    image = {"type": "image", "data": "AA", "mimeType": "image/png"}
    bench.back(2, state, {"in-1": {**SAMPLED, "content": [image, image]}})
    assert refusals(bench) == [(0, -32603)]


# --- states ---


@pytest.mark.crossing("D9")
@pytest.mark.spec("MR-7")
def test_state_works_once_also_after_the_final_answer() -> None:
    bench = Bench()
    state, hop_id = bench.suspended()
    bench.back(2, state, {"in-1": ACCEPT})
    bench.take_sent()
    assert REFUSED(bench.answer(bench.back(3, state, {"in-1": ACCEPT})))
    bench.result(hop_id)
    assert REFUSED(bench.answer(bench.back(4, state, {"in-1": ACCEPT})))
    assert bench.take_sent() == []


@pytest.mark.crossing("D12")
@pytest.mark.spec("MR-7")
def test_of_two_retries_with_one_state_the_first_goes_on() -> None:
    bench = Bench()
    state, hop_id = bench.suspended()
    first = bench.back(2, state, {"in-1": ACCEPT})
    second = bench.back(3, state, {"in-1": {"action": "decline"}})
    assert REFUSED(bench.answer(second))
    assert bench.take_sent() == [{"id": 0, "result": ACCEPT}]
    bench.result(hop_id)
    assert "result" in bench.answer(first)


def test_state_of_an_earlier_round_fails_in_a_later_one() -> None:
    bench = Bench()
    state, _ = bench.suspended()
    _, next_state = bench.asked(bench.back(2, state, {}))
    assert REFUSED(bench.answer(bench.back(3, state, {"in-1": ACCEPT})))
    bench.back(4, next_state, {"in-1": ACCEPT})
    assert bench.take_sent() == [{"id": 0, "result": ACCEPT}]


def tampered(bench: Bench, state: str) -> list[Exchange]:
    """Every way in which a state may come back wrong."""
    answers = {"inputResponses": {"in-1": ACCEPT}}
    more = {**answers, "requestState": state}
    middle = len(state) // 2
    broken = state[:middle] + ("A" if state[middle] != "A" else "B") + state[middle + 1 :]
    return [
        bench.call(2, more={**answers, "requestState": broken}),
        bench.call(3, more={**answers, "requestState": state[:-1]}),
        bench.call(4, more={**answers, "requestState": 5}),
        bench.call(5, arguments={"x": 2}, more=more),
        bench.call(6, arguments={"x": "1"}, more=more),
        bench.call(7, tool="b", more=more),
        bench.ask(8, "prompts/get", {"name": "a", "arguments": {"x": 1}, **more}),
        bench.call(9, subject="eve", more=more),
        bench.call(10, subject="", more=more),
    ]


@pytest.mark.crossing("D10")
@pytest.mark.spec("SP-3")
def test_state_that_comes_back_wrong_is_refused_in_one_way() -> None:
    clock = FakeClock()
    bench = Bench(clock=clock, calls=calls_of(clock, seal=Seal(read_ring(None), "main")))
    state, _ = bench.suspended()
    answers = [bench.answer(exchange) for exchange in tampered(bench, state)]
    assert [REFUSED(answer) for answer in answers] == [True] * 9
    assert len({str(answer) for answer in answers}) == 1
    clock.advance(Terms().suspended - 1)
    bench.take_sent()
    bench.back(20, state, {"in-1": ACCEPT})
    assert bench.take_sent() == [{"id": 0, "result": ACCEPT}]  # nothing was consumed


@pytest.mark.crossing("D10")
def test_state_of_nobody_in_particular_is_refused_from_somebody() -> None:
    bench = Bench()
    state, _ = bench.suspended(subject="")
    assert REFUSED(bench.answer(bench.back(2, state, {"in-1": ACCEPT}, subject="ann")))
    bench.back(3, state, {"in-1": ACCEPT}, subject="")
    assert bench.take_sent() == [{"id": 0, "result": ACCEPT}]


@pytest.mark.crossing("D11")
def test_arguments_may_come_back_in_another_order() -> None:
    bench = Bench()
    exchange, _ = bench.running(arguments={"a": 1, "b": {"c": 2, "d": 3}})
    bench.question(0)
    bench.clock.advance(WINDOW)
    _, state = bench.asked(exchange)
    bench.back(2, state, {"in-1": ACCEPT}, arguments={"b": {"d": 3, "c": 2}, "a": 1})
    assert bench.take_sent() == [{"id": 0, "result": ACCEPT}]


def retried(state: str) -> Request:
    """The retry as a relay sees it, before it has found the call's upstream session."""
    params = b'{"name":"a","arguments":{"x":1},"inputResponses":{},"requestState":"%b"}'
    return request(9, "tools/call", params % state.replace('"', '\\"').encode())


@pytest.mark.crossing("D13")
def test_state_of_a_bridge_that_was_started_anew_says_that_the_call_is_lost() -> None:
    clock = FakeClock()
    state, _ = Bench(clock=clock).suspended()
    anew = Bench(clock=clock)
    found = anew.calls.find(retried(state), "ann")
    assert isinstance(found, Response)
    assert bridge_error(-32603, "call_lost")(anew.answer(anew.back(2, state, {"in-1": ACCEPT})))


@pytest.mark.crossing("D14")
def test_state_of_another_replica_names_it() -> None:
    clock = FakeClock()
    state, _ = Bench(clock=clock, calls=calls_of(clock, replica="r2")).suspended()
    bench = Bench(clock=clock)
    assert bench.calls.find(retried(state), "ann") == Elsewhere("r2")
    assert isinstance(bench.calls.find(retried(state), "eve"), Response)
    assert bridge_error(-32603, "call_elsewhere")(bench.answer(bench.back(2, state, {"in-1": ACCEPT})))


def test_call_is_found_where_it_runs_and_nothing_is_consumed() -> None:
    clock = FakeClock()
    calls = calls_of(clock)
    first, second = (Bench(clock=clock, calls=calls, home=home) for home in ("first", "second"))
    state, _ = second.suspended()
    assert calls.find(retried(state), "ann") == "second"
    assert calls.find(retried(state), "ann") == "second"
    assert calls.find(request(9, "tools/call", b'{"name":"a"}'), "ann") is None
    assert calls.find(request(9, "vendor/x", b'{"requestState":"x"}'), "ann") is None
    assert bridge_error(-32603, "call_lost")(first.answer(first.back(2, state, {"in-1": ACCEPT})))
    second.back(3, state, {"in-1": ACCEPT})
    assert second.take_sent() == [{"id": 0, "result": ACCEPT}]


def test_cause_of_a_refusal_is_counted_and_told_to_the_log_only() -> None:
    bench = Bench()
    state, _ = bench.suspended()
    bench.back(2, state, {}, subject="eve")
    assert bench.calls.counts["state refused: principal"] == 1


def test_state_stays_short_however_long_the_request_is() -> None:
    clock = FakeClock()
    bench = Bench(clock=clock, calls=calls_of(clock, seal=Seal(read_ring(None), "main")))
    exchange = bench.ask(1, "resources/read", {"uri": "file:///" + "é" * 5000})
    bench.take_sent()
    bench.question(0)
    clock.advance(WINDOW)
    _, state = bench.asked(exchange)
    assert len(state) <= 1024


# --- refusals ---


@pytest.mark.crossing("D15")
@pytest.mark.spec("EV-5")
def test_question_beyond_what_the_client_declared_is_refused_and_the_failure_names_it() -> None:
    bench = Bench(declared="{}")
    exchange, hop_id = bench.running(can="{}")
    bench.question(0)
    assert refusals(bench) == [(0, -32602)]
    bench.clock.advance(WINDOW)
    bench.result(hop_id, {"content": [], "isError": True})
    error = bench.answer(exchange)["error"]
    assert error["code"] == -32021
    assert error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}


def test_all_that_was_refused_is_named_together() -> None:
    bench = Bench()
    exchange, hop_id = bench.running(can="{}")
    bench.question(0)
    bench.question(1, params=PAGE)
    bench.question(2, "sampling/createMessage", {})
    bench.question(3, "roots/list", None)
    assert refusals(bench) == [(0, -32602), (1, -32602), (2, -32601), (3, -32601)]
    bench.error(hop_id, -32603)
    needed = bench.answer(exchange)["error"]["data"]["requiredCapabilities"]
    assert needed == {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}


@pytest.mark.spec("EV-5")
def test_client_that_comes_back_with_less_is_not_asked_beyond_it() -> None:
    bench = Bench()
    exchange, hop_id = bench.running()
    bench.question(0)
    bench.question(1, "sampling/createMessage", {})
    bench.clock.advance(WINDOW)
    _, state = bench.asked(exchange)
    retry = bench.back(2, state, {}, can='{"sampling":{}}')
    assert refusals(bench) == [(0, -32602)]
    asked, _ = bench.asked(retry)
    assert list(asked) == ["in-2"]
    bench.result(hop_id, {"content": [], "isError": True})


@pytest.mark.crossing("D17")
@pytest.mark.spec("MR-8")
def test_client_that_never_returns_ends_the_call_cancelled_first() -> None:
    bench = Bench()
    state, hop_id = bench.suspended()
    bench.clock.advance(Terms().suspended - 1)
    assert bench.take_sent() == []
    bench.clock.advance(1)
    assert bench.take_sent() == [cancelled(hop_id), {"id": 0, "result": {"action": "cancel"}}]
    bench.result(hop_id)
    assert REFUSED(bench.answer(bench.back(2, state, {"in-1": ACCEPT})))
    assert bench.take_sent() == []
    assert not bench.layer.busy
    assert bench.clock.waiting == 0


@pytest.mark.crossing("D18")
@pytest.mark.spec("ER-13")
@pytest.mark.parametrize(("method", "code"), [("sampling/createMessage", -1), ("roots/list", -32603)])
def test_questions_that_time_out_are_answered_in_their_own_way(method: str, code: int) -> None:
    bench = Bench()
    exchange, hop_id = bench.running()
    bench.question(0, method, {})
    bench.clock.advance(WINDOW)
    bench.asked(exchange)
    bench.clock.advance(Terms().suspended)
    first, second = bench.take_sent()
    assert first == cancelled(hop_id)
    assert (second["id"], second["error"]["code"]) == (0, code)


def test_each_round_has_the_full_time_but_the_call_has_an_end() -> None:
    bench = Bench(terms=Terms(suspended=10, call=25))
    state, hop_id = bench.suspended()
    for number in (2, 3):
        bench.clock.advance(9)
        _, state = bench.asked(bench.back(number, state, {}))
    bench.clock.advance(7)
    assert bench.take_sent()[0] == cancelled(hop_id)


def test_call_whose_time_is_over_is_not_suspended_any_more() -> None:
    bench = Bench(terms=Terms(call=25))
    exchange, hop_id = bench.running()
    bench.clock.advance(25)
    bench.question(0)
    bench.clock.advance(WINDOW)
    assert bench.take_sent() == [{"id": 0, "result": {"action": "cancel"}}]
    bench.result(hop_id)
    assert "result" in bench.answer(exchange)


@pytest.mark.crossing("D35")
def test_a_subject_may_have_so_many_suspended_calls_and_the_next_runs_on_unasked() -> None:
    bench = Bench(terms=Terms(suspended_per_subject=32))
    for _ in range(32):
        exchange = bench.call()
        hop_id = bench.take_sent()[0]["id"]
        bench.question(hop_id, on=hop_id)
    bench.clock.advance(WINDOW)
    one_more, hop_id = bench.running()
    bench.question(0, on=hop_id)
    bench.clock.advance(WINDOW)
    assert bench.take_sent() == [{"id": 0, "result": {"action": "cancel"}}]
    assert bench.down(one_more) == []
    other, other_id = bench.running(subject="bob")
    bench.question(0, on=other_id)
    bench.clock.advance(WINDOW)
    bench.asked(other)
    bench.result(hop_id)
    assert "result" in bench.answer(one_more)
    assert bench.down(exchange) != []


def test_all_subjects_together_may_have_so_many_suspended_calls() -> None:
    bench = Bench(terms=Terms(suspended_in_all=1))
    state, hop_id = bench.suspended(subject="ann")
    other, other_id = bench.running(subject="bob")
    bench.question(1, on=other_id)
    bench.clock.advance(WINDOW)
    assert bench.take_sent() == [{"id": 1, "result": {"action": "cancel"}}]
    bench.back(2, state, {"in-1": ACCEPT}, subject="ann")
    bench.result(hop_id)
    bench.take_sent()
    bench.question(2, on=other_id)
    bench.clock.advance(WINDOW)
    bench.asked(other)


# --- what happens while the client is away ---


@pytest.mark.crossing("D19")
def test_question_that_the_server_withdrew_is_not_answered() -> None:
    bench = Bench()
    state, hop_id = bench.suspended()
    bench.note("cancelled", {"requestId": 0})
    retry = bench.back(2, state, {"in-1": ACCEPT})
    assert bench.take_sent() == []
    bench.clock.advance(WINDOW)
    assert bench.down(retry) == []
    bench.result(hop_id)
    assert "result" in bench.answer(retry)


def test_question_withdrawn_before_the_client_was_told_is_never_asked() -> None:
    bench = Bench()
    exchange, _ = bench.running()
    bench.question(0)
    bench.note("cancelled", {"requestId": 0})
    bench.clock.advance(WINDOW)
    assert bench.down(exchange) == []


def test_of_equal_ids_the_question_that_was_withdrawn_is_known_by_its_type() -> None:
    bench = Bench()
    exchange, _ = bench.running()
    bench.question(1)
    bench.question("1")
    bench.note("cancelled", {"requestId": "1"})
    bench.clock.advance(WINDOW)
    asked, state = bench.asked(exchange)
    assert list(asked) == ["in-1"]
    bench.back(2, state, {"in-1": ACCEPT})
    assert bench.take_sent() == [{"id": 1, "result": ACCEPT}]


@pytest.mark.crossing("D20")
def test_final_answer_that_came_meanwhile_is_kept_for_the_retry() -> None:
    bench = Bench()
    state, hop_id = bench.suspended()
    bench.result(hop_id, {"content": [], "x": 1})
    assert bench.take_sent() == [{"id": 0, "result": {"action": "cancel"}}]  # its call is over
    retry = bench.back(2, state, {"in-1": ACCEPT})
    assert bench.answer(retry) == {"result": {"content": [], "x": 1, **C, **SI}}
    assert bench.take_sent() == []


def test_kept_answer_is_dropped_when_nobody_comes_for_it() -> None:
    bench = Bench()
    state, hop_id = bench.suspended()
    bench.result(hop_id)
    bench.take_sent()
    bench.clock.advance(Terms().suspended)
    assert bench.take_sent() == []
    assert REFUSED(bench.answer(bench.back(2, state)))
    assert not bench.layer.busy


def test_questions_that_come_meanwhile_go_out_with_the_next_round() -> None:
    bench = Bench()
    state, _ = bench.suspended()
    bench.question(1, "roots/list", None)
    retry = bench.back(2, state, {"in-1": ACCEPT})
    bench.clock.advance(WINDOW)
    asked, _ = bench.asked(retry)
    assert asked == {"in-2": {"method": "roots/list"}}


@pytest.mark.crossing("D40")
def test_closing_between_rounds_is_no_cancellation() -> None:
    bench = Bench()
    exchange, hop_id = bench.running()
    bench.question(0)
    bench.clock.advance(WINDOW)
    bench.asked(exchange)
    bench.close(exchange)
    assert bench.take_sent() == []
    bench.clock.advance(Terms().suspended)
    assert bench.take_sent()[0] == cancelled(hop_id)


@pytest.mark.crossing("D41")
def test_closing_during_a_retry_cancels_the_call_and_refuses_what_is_open() -> None:
    bench = Bench()
    exchange, hop_id = bench.running()
    bench.question(0)
    bench.question(1, "sampling/createMessage", {})
    bench.clock.advance(WINDOW)
    _, state = bench.asked(exchange)
    retry = bench.back(2, state, {"in-1": ACCEPT})
    bench.take_sent()
    bench.close(retry)
    first, second = bench.take_sent()
    assert first == cancelled(hop_id)
    assert (second["id"], second["error"]["code"]) == (1, -1)
    bench.clock.advance(WINDOW)
    assert bench.down(retry) == []


def test_call_that_ends_with_questions_open_leaves_none_unanswered() -> None:
    bench = Bench()
    exchange, hop_id = bench.running()
    bench.question(0)
    bench.result(hop_id)
    assert bench.take_sent() == [{"id": 0, "result": {"action": "cancel"}}]
    assert bench.answer(exchange) == {"result": {"content": [], **C, **SI}}
    bench.clock.advance(WINDOW)
    assert bench.down(exchange) == []


def test_lost_server_loses_what_was_suspended_and_answers_what_runs() -> None:
    bench = Bench()
    state, _ = bench.suspended()
    running, _ = bench.running()
    bench.lose()
    assert bridge_error(-32603, "upstream_lost")(bench.answer(running))
    assert bridge_error(-32603, "call_lost")(bench.answer(bench.back(3, state, {"in-1": ACCEPT})))
    assert not bench.layer.busy
    assert bench.leftovers() == []
    assert bench.clock.waiting == 0


def test_what_waits_for_anything_when_the_server_is_lost_is_told_and_forgotten() -> None:
    bench = Bench()
    bench.question(0, "roots/list", None)
    held = bench.call(level="info")
    bench.lose()
    assert bridge_error(-32603, "upstream_lost")(bench.answer(held))
    assert bench.leftovers() == []
    assert bench.clock.waiting == 0


# --- whose a question is ---


@pytest.mark.crossing("D24")
def test_question_from_the_get_stream_goes_to_the_one_call_in_flight() -> None:
    bench = Bench()
    bench.ask(9, "tools/list")
    bench.take_sent()
    exchange, _ = bench.running()
    bench.question(0, "roots/list", None)
    bench.clock.advance(WINDOW)
    asked, state = bench.asked(exchange)
    assert asked == {"in-1": {"method": "roots/list"}}
    bench.back(2, state, {"in-1": {"roots": [{"uri": "file:///r"}]}})
    assert bench.take_sent() == [{"id": 0, "result": {"roots": [{"uri": "file:///r"}]}}]


@pytest.mark.crossing("D29")
def test_of_two_calls_of_one_subject_the_newer_carries_the_question() -> None:
    bench = Bench()
    older, older_id = bench.running(request_id=1)
    newer, _ = bench.running(request_id=2, tool="b")
    bench.question(0)
    bench.clock.advance(WINDOW)
    assert bench.down(older) == []
    _, state = bench.asked(newer)
    bench.back(3, state, {"in-1": ACCEPT}, tool="b")
    assert bench.take_sent() == [{"id": 0, "result": ACCEPT}]
    bench.result(older_id)
    assert "result" in bench.answer(older)
    assert bench.calls.counts["question attributed among several calls"] == 1


def test_of_several_calls_one_whose_client_is_there_is_preferred() -> None:
    bench = Bench()
    awake, _ = bench.running(request_id=1)
    away, away_id = bench.running(request_id=2, tool="b")
    bench.question(0, on=away_id)
    bench.clock.advance(WINDOW)
    bench.asked(away)
    bench.question(1)
    bench.clock.advance(WINDOW)
    asked, _ = bench.asked(awake)
    assert asked == {"in-1": entry()}


def test_stream_that_a_question_came_on_names_its_call() -> None:
    bench = Bench()
    older, older_id = bench.running(subject="ann")
    newer, _ = bench.running(subject="bob")
    bench.question(0, on=older_id)
    bench.clock.advance(WINDOW)
    bench.asked(older)
    assert bench.down(newer) == []


@pytest.mark.spec("MR-2")
def test_question_on_the_stream_of_a_request_that_cannot_ask_is_refused() -> None:
    bench = Bench()
    bench.ask(1, "tools/list")
    [listing] = bench.take_sent()
    call, _ = bench.running(subject="bob")
    bench.question(0, on=listing["id"])
    assert refusals(bench) == [(0, -32602)]
    bench.clock.advance(WINDOW)
    assert bench.down(call) == []


@pytest.mark.crossing("D30")
@pytest.mark.spec("FT-14")
def test_question_that_could_be_of_two_subjects_is_refused() -> None:
    bench = Bench()
    one, _ = bench.running(subject="ann")
    two, _ = bench.running(subject="bob")
    bench.question(0)
    assert refusals(bench) == [(0, -32602)]
    bench.clock.advance(WINDOW)
    assert bench.down(one) == []
    assert bench.down(two) == []


@pytest.mark.crossing("D25")
def test_roots_that_were_configured_answer_what_is_asked_outside_of_any_call() -> None:
    bench = Bench(terms=Terms(roots=("file:///a", "file:///b")))
    bench.question(0, "roots/list", None)
    assert bench.take_sent() == [{"id": 0, "result": {"roots": [{"uri": "file:///a"}, {"uri": "file:///b"}]}}]
    assert bench.fallen == []


@pytest.mark.crossing("D26")
def test_question_outside_of_any_call_is_taken_along_by_the_next() -> None:
    bench = Bench()
    bench.question(0, "roots/list", None)
    assert bench.take_sent() == []
    bench.clock.advance(5)
    exchange, _ = bench.running(can='{"roots":{}}')
    bench.clock.advance(WINDOW)
    asked, _ = bench.asked(exchange)
    assert asked == {"in-1": {"method": "roots/list"}}
    bench.clock.advance(30)
    assert bench.take_sent() == []


@pytest.mark.crossing("D26")
def test_call_that_carries_a_question_outside_of_it_does_not_answer_that_by_its_end() -> None:
    """The server asked for itself; that a short call took it along is no reason to leave it unanswered."""
    bench = Bench()
    bench.question(0, "roots/list", None)
    exchange, hop_id = bench.running(can='{"roots":{}}')
    bench.clock.advance(0)
    asked, state = bench.asked(exchange)
    assert asked == {"in-1": {"method": "roots/list"}}
    bench.result(hop_id)
    assert bench.take_sent() == []
    back = bench.back(2, state, {"in-1": {"roots": []}})
    assert bench.take_sent() == [{"id": 0, "result": {"roots": []}}]
    assert "result" in bench.answer(back)


@pytest.mark.crossing("D27")
@pytest.mark.spec("FT-14")
def test_question_outside_of_any_call_is_refused_after_its_time() -> None:
    bench = Bench()
    bench.question(0, "roots/list", None)
    bench.clock.advance(29.9)
    assert bench.take_sent() == []
    bench.clock.advance(0.1)
    assert refusals(bench) == [(0, -32602)]
    assert bench.clock.waiting == 0


@pytest.mark.crossing("D28")
@pytest.mark.parametrize("first", ["question", "list"])
def test_question_that_may_block_a_request_waits_a_moment_only(first: str) -> None:
    bench = Bench()
    if first == "question":
        bench.question(0, "roots/list", None)
        bench.clock.advance(3)
    listing = bench.ask(1, "tools/list")
    [sent] = bench.take_sent()
    if first == "list":
        bench.question(0, "roots/list", None)
    assert bench.clock.waiting == 1
    bench.clock.advance(1.9)
    bench.ask(2, "prompts/list")  # what starts meanwhile gives it no more time
    assert [one["method"] for one in bench.take_sent()] == ["prompts/list"]
    bench.clock.advance(0.1)
    assert refusals(bench) == [(0, -32602)]
    bench.result(sent["id"], {"tools": []})
    assert "result" in bench.answer(listing)


def test_question_waits_on_when_what_it_may_have_blocked_is_over() -> None:
    bench = Bench()
    bench.ask(1, "tools/list")
    [sent] = bench.take_sent()
    bench.question(0, "roots/list", None)
    bench.clock.advance(1)
    bench.result(sent["id"], {"tools": []})
    bench.clock.advance(28)
    assert bench.take_sent() == []
    bench.clock.advance(1)
    assert refusals(bench) == [(0, -32602)]


def test_question_outside_of_any_call_beyond_what_was_declared_is_refused_at_once() -> None:
    bench = Bench(declared="{}")
    bench.question(0, "roots/list", None)
    assert refusals(bench) == [(0, -32601)]


def test_parked_question_that_the_server_withdrew_is_not_taken_along() -> None:
    bench = Bench()
    bench.question(0, "roots/list", None)
    bench.note("cancelled", {"requestId": 0})
    exchange, _ = bench.running()
    bench.clock.advance(WINDOW)
    assert bench.down(exchange) == []
    bench.clock.advance(60)
    assert bench.take_sent() == []


def test_only_so_many_questions_outside_of_any_call_wait() -> None:
    bench = Bench()
    for number in range(65):
        bench.question(number, "roots/list", None)
    assert refusals(bench) == [(64, -32602)]
    bench.lose()
    assert bench.clock.waiting == 0


def test_question_that_came_during_a_request_of_one_subject_is_not_taken_along_by_another() -> None:
    bench = Bench()
    bench.ask(1, "tools/list", subject="bob")
    [listing] = bench.take_sent()
    bench.question(0, "roots/list", None)
    bench.result(listing["id"], {"tools": []})
    other, _ = bench.running(subject="ann")
    bench.clock.advance(WINDOW)
    assert bench.down(other) == []
    own, _ = bench.running(subject="bob")
    bench.clock.advance(WINDOW)
    asked, _ = bench.asked(own)
    assert asked == {"in-1": {"method": "roots/list"}}


def test_question_while_another_subject_has_anything_running_is_refused() -> None:
    """It may as well be for the sake of that, which cannot be asked."""
    bench = Bench()
    bench.ask(1, "tools/list", subject="bob")
    bench.take_sent()
    call, _ = bench.running(subject="ann")
    bench.question(0)
    assert refusals(bench) == [(0, -32602)]
    bench.clock.advance(WINDOW)
    assert bench.down(call) == []


# --- one call at a time ---


def test_exclusive_calls_run_one_after_another_and_other_requests_pass() -> None:
    bench = Bench(terms=Terms(attribution=Attribution.EXCLUSIVE))
    first, first_id = bench.running(request_id=1)
    second = bench.call(2, "b")
    withdrawn = bench.call(3, "c")
    third = bench.call(4, "d")
    bench.ask(5, "tools/list")
    assert [sent["method"] for sent in bench.take_sent()] == ["tools/list"]
    bench.close(withdrawn)
    bench.result(first_id)
    assert "result" in bench.answer(first)
    [sent] = bench.take_sent()
    assert sent["params"]["name"] == "b"
    bench.close(second)
    cancel, sent = bench.take_sent()
    assert cancel["method"] == "notifications/cancelled"
    assert sent["params"]["name"] == "d"
    bench.result(sent["id"])
    assert "result" in bench.answer(third)


def test_waiting_for_a_turn_ends_when_the_server_is_lost() -> None:
    bench = Bench(terms=Terms(attribution=Attribution.EXCLUSIVE))
    bench.running(request_id=1)
    second = bench.call(2, "b")
    bench.lose()
    assert bridge_error(-32603, "upstream_lost")(bench.answer(second))
    assert bench.leftovers() == []


# --- pages to visit ---


def to_visit(bench: Bench, hop_id: object, *pages: Json) -> None:
    bench.error(hop_id, -32042, "Visit!", data={"elicitations": list(pages or (PAGE,))})  # type: ignore[arg-type]


@pytest.mark.crossing("D36")
@pytest.mark.spec("ER-10")
def test_pages_that_the_server_wants_visited_are_asked_for() -> None:
    bench = Bench()
    exchange, hop_id = bench.running(can=URLS)
    to_visit(bench, hop_id)
    asked, _ = bench.asked(exchange)
    assert asked == {"in-1": entry({"mode": "url", "url": "https://u/", "message": "m"})}


@pytest.mark.crossing("D37")
def test_request_is_sent_again_when_the_pages_were_visited() -> None:
    bench = Bench()
    exchange, hop_id = bench.running(can=URLS)
    to_visit(bench, hop_id)
    _, state = bench.asked(exchange)
    retry = bench.back(2, state, {"in-1": {"action": "accept"}}, can=URLS)
    [sent] = bench.take_sent()
    assert sent.pop("id") != hop_id
    assert sent == {"method": "tools/call", "params": {"name": "a", "arguments": {"x": 1}}}
    assert REFUSED(bench.answer(bench.back(3, state, {"in-1": {"action": "accept"}}, can=URLS)))
    bench.result(hop_id + 1 if isinstance(hop_id, int) else hop_id)
    assert "result" in bench.answer(retry)


def test_pages_not_visited_yet_are_asked_for_again() -> None:
    bench = Bench()
    exchange, hop_id = bench.running(can=URLS)
    to_visit(bench, hop_id, PAGE, {**PAGE, "url": "https://v/"}, {"mode": "form"})
    asked, state = bench.asked(exchange)
    assert [one["params"]["url"] for one in asked.values()] == ["https://u/", "https://v/"]
    asked, state = bench.asked(bench.back(2, state, {"in-1": {"action": "accept"}}, can=URLS))
    assert list(asked) == ["in-2"]
    bench.back(3, state, {"in-2": {"action": "accept"}}, can=URLS)
    assert [sent["method"] for sent in bench.take_sent()] == ["tools/call"]


@pytest.mark.crossing("D38")
@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_declined_page_ends_the_call_with_the_message_of_the_server(action: str) -> None:
    bench = Bench()
    exchange, hop_id = bench.running(can=URLS)
    to_visit(bench, hop_id)
    _, state = bench.asked(exchange)
    result = bench.answer(bench.back(2, state, {"in-1": {"action": action}}, can=URLS))["result"]
    assert result == {"content": [{"type": "text", "text": "Visit!"}], "isError": True, **C, **SI}
    assert bench.take_sent() == []


@pytest.mark.crossing("D38")
def test_declined_page_of_a_prompt_is_an_error() -> None:
    bench = Bench()
    exchange = bench.ask(1, "prompts/get", {"name": "p"}, can=URLS)
    [sent] = bench.take_sent()
    to_visit(bench, sent["id"])
    _, state = bench.asked(exchange)
    more = {"inputResponses": {"in-1": {"action": "decline"}}, "requestState": state}
    retry = bench.ask(2, "prompts/get", {"name": "p", **more}, can=URLS)
    error = bench.answer(retry)["error"]
    assert (error["code"], error["message"]) == (-32603, "Visit!")


@pytest.mark.crossing("D39")
@pytest.mark.spec("ER-10")
def test_client_that_opens_no_pages_is_told_what_it_lacks() -> None:
    bench = Bench()
    exchange, hop_id = bench.running(can='{"elicitation":{"form":{}}}')
    to_visit(bench, hop_id)
    error = bench.answer(exchange)["error"]
    assert (error["code"], error["data"]) == (-32021, {"requiredCapabilities": {"elicitation": {"url": {}}}})


def test_server_may_ask_for_pages_ten_times() -> None:
    bench = Bench()
    exchange = bench.call(0, can=URLS)
    for number in range(1, 11):
        to_visit(bench, bench.take_sent()[0]["id"])
        _, state = bench.asked(exchange)
        exchange = bench.back(number, state, {f"in-{number}": {"action": "accept"}}, can=URLS)
    to_visit(bench, bench.take_sent()[0]["id"])
    assert bridge_error(-32603, "too_many_rounds")(bench.answer(exchange))


@pytest.mark.parametrize("method", ["tools/call", "vendor/x"])
def test_error_that_names_no_page_or_came_to_another_method_is_one_of_the_server(method: str) -> None:
    bench = Bench()
    exchange = bench.ask(1, method, {"name": "a"}, can=URLS)
    [sent] = bench.take_sent()
    data = {"elicitations": [] if method == "tools/call" else [PAGE]}
    bench.error(sent["id"], -32042, "Visit!", data=data)
    error = bench.answer(exchange)["error"]
    assert (error["code"], error["message"], error["data"]["upstream"]) == (-32603, "Visit!", data)


def test_client_that_is_not_there_is_asked_for_pages_when_it_returns() -> None:
    bench = Bench()
    exchange, hop_id = bench.running(can='{"elicitation":{"form":{},"url":{}}}')
    bench.question(0)
    bench.clock.advance(WINDOW)
    _, state = bench.asked(exchange)
    to_visit(bench, hop_id)
    asked, _ = bench.asked(bench.back(2, state, {"in-1": ACCEPT}, can=URLS))
    assert asked == {"in-2": entry({"mode": "url", "url": "https://u/", "message": "m"})}


def test_page_that_was_never_visited_is_forgotten_in_time() -> None:
    bench = Bench()
    exchange, hop_id = bench.running(can=URLS)
    to_visit(bench, hop_id)
    bench.asked(exchange)
    assert bench.leftovers() != []
    bench.clock.advance(Terms().suspended)
    assert bench.take_sent() == []
    assert not bench.layer.busy
    assert bench.leftovers() == []
