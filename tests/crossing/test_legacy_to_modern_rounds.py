"""`input_required` of a modern server, put to a legacy client as requests of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.era.terms import Terms
from crossing.bench import EL, Json
from crossing.legacy import ASKABLE, R3, R4, Crossed, bridges, elicit, opened, required

ROOTS: Json = {"method": "roots/list"}
SAMPLE: Json = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
ACCEPTED: Json = {"action": "accept", "content": {}}


def asking(*requests: Json, state: object = "Z", revision: str = R4, terms: Terms | None = None) -> Crossed:
    """A call whose server wants these; their keys are `k0`, `k1`, …"""
    crossed = opened(revision, ASKABLE, terms=terms)
    crossed.call()
    wanted = {f"k{at}": one for at, one in enumerate(requests)}
    crossed.answers(crossed.hears("tools/call"), required(state, **wanted))
    return crossed


@pytest.mark.crossing("J19")
def test_the_client_is_asked_on_the_stream_of_its_own_request() -> None:
    crossed = opened(R4, ASKABLE)
    asked = crossed.call()
    crossed.answers(crossed.hears(), required("Z", k={"method": "elicitation/create", "params": EL}))
    question, carrier = crossed.sees_on("elicitation/create")
    assert question == {"id": "br-1", "method": "elicitation/create", "params": EL}
    assert carrier is asked
    assert crossed.silent


@pytest.mark.crossing("J20")
@pytest.mark.spec("MR-10")
@pytest.mark.case("RV-02")
def test_its_answer_goes_to_the_server_with_the_same_request_again() -> None:
    crossed = opened(R4, ASKABLE)
    crossed.call(own=9)
    first = crossed.hears()
    crossed.answers(first, required("Z", k=elicit()))
    crossed.reply(crossed.sees("elicitation/create"), ACCEPTED | {"_meta": {"k": 1}})
    second = crossed.hears("tools/call")
    assert second["id"] != first["id"]
    assert second["params"] == first["params"] | {"inputResponses": {"k": ACCEPTED}, "requestState": "Z"}
    crossed.answers(second, {"content": [], "resultType": "complete"})
    assert crossed.sees() == {"id": 9, "result": {"content": []}}
    assert crossed.silent
    assert not crossed.clock.waiting


@pytest.mark.parametrize("method", ["prompts/get", "resources/read"])
def test_prompts_and_resources_may_ask_too(method: str) -> None:
    crossed = opened(R4, ASKABLE)
    crossed.ask(method, {"name": "p", "uri": "u"})
    crossed.answers(crossed.hears(method), required("Z", k=ROOTS))
    crossed.reply(crossed.sees("roots/list"), {"roots": []})
    assert crossed.hears(method)["params"]["inputResponses"] == {"k": {"roots": []}}


@pytest.mark.crossing("J21")
@pytest.mark.spec("MR-10", "MR-11")
@pytest.mark.parametrize("state", [None, "", 'q"\\'])
def test_the_state_is_sent_back_exactly_as_it_came(state: object) -> None:
    crossed = asking(ROOTS, state=state)
    crossed.reply(crossed.sees("roots/list"), {"roots": []})
    params = crossed.hears()["params"]
    assert params.get("requestState") == state
    assert ("requestState" in params) is (state is not None)


@pytest.mark.crossing("J22")
@pytest.mark.spec("MR-10")
def test_everything_is_asked_at_once_and_sent_back_together() -> None:
    crossed = asking(elicit(), ROOTS)
    first, second = crossed.sees("elicitation/create"), crossed.sees("roots/list")
    assert (first["id"], second["id"]) == ("br-1", "br-2")
    crossed.reply(second, {"roots": []})
    assert crossed.silent
    crossed.reply(first, ACCEPTED)
    again = crossed.hears()
    assert list(again["params"]["inputResponses"].items()) == [("k0", ACCEPTED), ("k1", {"roots": []})]
    assert crossed.silent


def test_one_by_one_where_that_is_wanted() -> None:
    crossed = asking(elicit(), ROOTS, terms=Terms(parallel=False))
    first = crossed.sees("elicitation/create")
    assert crossed.silent
    crossed.reply(first, ACCEPTED)
    second = crossed.sees("roots/list")
    assert crossed.silent
    crossed.reply(second, {"roots": []})
    assert list(crossed.hears()["params"]["inputResponses"]) == ["k0", "k1"]


def test_a_second_answer_to_one_question_is_nothing() -> None:
    crossed = asking(elicit(), ROOTS)
    first = crossed.sees("elicitation/create")
    crossed.sees("roots/list")
    question = crossed.party.questions[first["id"]]
    crossed.reply(first, ACCEPTED)
    crossed.reply(first, {"action": "decline"})
    assert question not in crossed.party.questions.values()
    assert crossed.silent


@pytest.mark.crossing("J23")
@pytest.mark.spec("MR-12", "MR-13")
def test_a_server_that_only_needs_time_is_asked_again_ever_later() -> None:
    crossed = asking(state="Z")
    for wait in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        crossed.clock.advance(wait - 0.001)
        assert crossed.silent
        crossed.clock.advance(0.002)
        again = crossed.hears("tools/call")
        assert again["params"]["requestState"] == "Z"
        assert "inputResponses" not in again["params"]
        crossed.answers(again, required("Z"))


@pytest.mark.spec("MR-13")
def test_a_server_that_needs_time_for_ever_does_not_get_it() -> None:
    crossed = asking(state="Z")
    for _ in range(29):
        crossed.clock.advance(1)
        crossed.answers(crossed.hears(), required("Z"))
    assert crossed.silent
    crossed.clock.advance(1)
    crossed.answers(crossed.hears(), required("Z"))
    assert bridges(crossed.error()) == "too_many_rounds"
    assert not crossed.clock.waiting


@pytest.mark.crossing("J24")
def test_an_elicitation_that_fails_is_cancelled_for_the_server() -> None:
    crossed = asking(elicit())
    crossed.refuse(crossed.sees("elicitation/create"), -32603)
    assert crossed.hears()["params"]["inputResponses"] == {"k0": {"action": "cancel"}}


@pytest.mark.crossing("J25")
@pytest.mark.spec("ER-13")
def test_a_sampling_that_fails_ends_a_call_of_a_tool_as_its_failure() -> None:
    crossed = asking(SAMPLE)
    crossed.refuse(crossed.sees("sampling/createMessage"), -1, "User rejected")
    assert crossed.result() == {"content": [{"type": "text", "text": "User rejected"}], "isError": True}
    assert crossed.silent
    assert not crossed.clock.waiting


@pytest.mark.crossing("J25")
@pytest.mark.parametrize(("code", "told"), [(-1, -32603), (-32601, -32601)])
def test_a_sampling_that_fails_ends_any_other_request_as_an_error(code: int, told: int) -> None:
    crossed = opened(R4, ASKABLE)
    crossed.ask("prompts/get", {"name": "p"})
    crossed.answers(crossed.hears(), required("Z", k=SAMPLE, r=ROOTS))
    asked, sibling = crossed.sees("sampling/createMessage"), crossed.sees("roots/list")
    crossed.refuse(asked, code, "User rejected")
    assert crossed.sees("notifications/cancelled")["params"] == {"requestId": sibling["id"]}
    assert crossed.error() == {"code": told, "message": "User rejected"}
    crossed.reply(sibling, {"roots": []})
    assert crossed.silent
    assert not crossed.party.questions


@pytest.mark.crossing("J26")
@pytest.mark.spec("MR-13")
def test_the_eleventh_round_of_questions_is_one_too_many() -> None:
    crossed = opened(R4, ASKABLE)
    crossed.call()
    for _ in range(10):
        crossed.answers(crossed.hears(), required("Z", k=ROOTS))
        crossed.reply(crossed.sees("roots/list"), {"roots": []})
    crossed.answers(crossed.hears(), required("Z", k=ROOTS))
    error = crossed.error()
    assert (error["code"], bridges(error)) == (-32603, "too_many_rounds")
    assert crossed.silent


def test_a_call_may_not_go_on_for_ever() -> None:
    crossed = asking(ROOTS, terms=replace(Terms(), question=7200.0))
    question = crossed.sees("roots/list")
    crossed.clock.advance(3599)
    assert crossed.silent
    crossed.clock.advance(1)
    assert crossed.sees("notifications/cancelled")["params"] == {"requestId": question["id"]}
    assert bridges(crossed.error()) == "too_many_rounds"
    crossed.reply(question, {"roots": []})
    assert crossed.silent


def test_a_call_that_takes_too_long_is_cancelled_at_the_server() -> None:
    crossed = asking(ROOTS)
    crossed.reply(crossed.sees("roots/list"), {"roots": []})
    again = crossed.hears()
    crossed.clock.advance(3600)
    crossed.hears_cancelled(again)
    assert bridges(crossed.error()) == "too_many_rounds"


@pytest.mark.crossing("J27")
@pytest.mark.spec("FT-6")
def test_a_client_sent_to_a_url_is_told_when_that_is_over() -> None:
    url: Json = {"mode": "url", "url": "https://x/", "message": "Go"}
    crossed = asking(
        {"method": "elicitation/create", "params": url}, {"method": "elicitation/create", "params": url}
    )
    first, second = crossed.sees("elicitation/create"), crossed.sees("elicitation/create")
    ids = [one["params"].pop("elicitationId") for one in (first, second)]
    assert first["params"] == url
    assert len(set(ids)) == 2
    crossed.reply(first, {"action": "accept"})
    crossed.reply(second, {"action": "decline"})
    assert not crossed.seen
    crossed.answers(crossed.hears(), {"content": []})
    assert crossed.sees("notifications/elicitation/complete")["params"] == {"elicitationId": ids[0]}
    assert crossed.result() == {"content": []}
    assert crossed.silent


@pytest.mark.crossing("J28")
def test_an_older_client_gets_its_own_kind_of_form() -> None:
    titled: Json = {"type": "string", "oneOf": [{"const": "a", "title": "A"}, {"const": "b"}], "title": "T"}
    schema: Json = {"type": "object", "properties": {"c": titled, "n": {"type": "number"}}, "required": ["c"]}
    crossed = asking(elicit(mode="form", requestedSchema=schema), revision=R3)
    shown = {"type": "string", "title": "T", "enum": ["a", "b"], "enumNames": ["A", "b"]}
    assert crossed.sees("elicitation/create")["params"] == {
        "message": "Name?",
        "requestedSchema": {
            "type": "object",
            "properties": {"c": shown, "n": {"type": "number"}},
            "required": ["c"],
        },
    }


@pytest.mark.crossing("J28")
def test_an_older_client_is_not_asked_to_choose_several() -> None:
    several = {"type": "object", "properties": {"c": {"type": "array", "items": {"enum": ["a"]}}}}
    crossed = asking(elicit(mode="form", requestedSchema=several), ROOTS, revision=R3)
    crossed.reply(crossed.sees("roots/list"), {"roots": []})
    assert crossed.hears()["params"]["inputResponses"] == {"k0": {"action": "cancel"}, "k1": {"roots": []}}


def test_the_newest_client_gets_the_form_as_it_is() -> None:
    several = {"type": "object", "properties": {"c": {"type": "array", "items": {"enum": ["a"]}}}}
    crossed = asking(elicit(mode="form", requestedSchema=several))
    assert crossed.sees("elicitation/create")["params"] == EL | {"mode": "form", "requestedSchema": several}


@pytest.mark.crossing("J29")
@pytest.mark.spec("MR-2")
def test_only_three_methods_may_ask() -> None:
    crossed = opened(R4, ASKABLE)
    crossed.ask("tools/list")
    crossed.answers(crossed.hears(), required("Z", k=ROOTS))
    assert crossed.error()["code"] == -32603
    assert crossed.silent


@pytest.mark.crossing("J29")
@pytest.mark.parametrize(
    "wanted",
    [
        {"a": ROOTS, "k": {"method": "foo/bar"}},
        {"k": {"method": "ping"}},
        {"k": {"params": {}}},
        {"k": 1},
        {"k": {"method": "elicitation/create", "params": []}},
        [],
    ],
)
def test_what_cannot_be_asked_ends_the_call_and_asks_nothing(wanted: object) -> None:
    crossed = opened(R4, ASKABLE)
    crossed.call()
    crossed.answers(crossed.hears(), {"resultType": "input_required", "inputRequests": wanted})
    assert bridges(crossed.error()) == "invalid_input_request"
    assert crossed.silent


def test_a_form_that_is_none_ends_the_call_of_an_older_client() -> None:
    crossed = asking(ROOTS, elicit(requestedSchema=7), revision=R3)
    assert bridges(crossed.error()) == "invalid_result_type"
    assert crossed.silent
    assert not crossed.clock.waiting


def test_a_server_that_wants_nothing_and_keeps_nothing_is_refused() -> None:
    crossed = opened(R4, ASKABLE)
    crossed.call()
    crossed.answers(crossed.hears(), {"resultType": "input_required"})
    assert bridges(crossed.error()) == "invalid_input_request"


@pytest.mark.crossing("J30")
def test_a_client_that_cancels_its_call_is_not_asked_any_more() -> None:
    crossed = opened(R4, ASKABLE)
    asked = crossed.call()
    crossed.answers(crossed.hears(), required("Z", k=elicit()))
    question = crossed.sees("elicitation/create")
    crossed.cancel(asked)
    note, carrier = crossed.sees_on("notifications/cancelled")
    assert note["params"] == {"requestId": "br-1"}
    assert carrier is asked
    crossed.reply(question, ACCEPTED)
    assert crossed.silent
    assert not crossed.party.questions
    assert not crossed.clock.waiting


def test_a_call_that_only_waits_for_time_can_be_cancelled_too() -> None:
    crossed = opened(R4, ASKABLE)
    asked = crossed.call()
    crossed.answers(crossed.hears(), required("Z"))
    crossed.cancel(asked)
    crossed.clock.advance(5000)
    assert crossed.silent


@pytest.mark.parametrize("revision", [R3, R4])
def test_a_question_that_nobody_answers_counts_as_failed(revision: str) -> None:
    crossed = asking(elicit(), revision=revision)
    question = crossed.sees("elicitation/create")
    crossed.clock.advance(599)
    assert crossed.silent
    crossed.clock.advance(1)
    assert crossed.sees("notifications/cancelled")["params"] == {"requestId": question["id"]}
    assert crossed.hears()["params"]["inputResponses"] == {"k0": {"action": "cancel"}}
    crossed.reply(question, ACCEPTED)
    assert crossed.silent


def test_roots_that_nobody_tells_end_the_call() -> None:
    crossed = asking(ROOTS)
    crossed.sees("roots/list")
    crossed.clock.advance(600)
    crossed.sees("notifications/cancelled")
    assert crossed.result()["isError"] is True


@pytest.mark.spec("FT-7")
def test_what_the_client_did_not_declare_it_is_not_asked() -> None:
    crossed = opened(R4, {"elicitation": {"form": {}}})
    crossed.call()
    url: Json = {"method": "elicitation/create", "params": {"mode": "url", "url": "u", "message": "m"}}
    crossed.answers(crossed.hears(), required("Z", u=url))
    again = crossed.hears()
    assert again["params"]["inputResponses"] == {"u": {"action": "cancel"}}
    crossed.answers(again, required("Z", k=elicit(), r=ROOTS))
    assert crossed.result()["isError"] is True
    assert crossed.silent


@pytest.mark.crossing("J31")
def test_a_client_that_cannot_be_asked_now_is_not_asked() -> None:
    crossed = opened(R4, ASKABLE)
    crossed.call(askable=False)
    crossed.answers(crossed.hears(), required("Z", k=elicit()))
    assert crossed.hears()["params"]["inputResponses"] == {"k": {"action": "cancel"}}


def test_an_answer_that_is_no_object_counts_as_failed() -> None:
    crossed = asking(elicit())
    crossed.reply(crossed.sees("elicitation/create"), [1])
    assert crossed.hears()["params"]["inputResponses"] == {"k0": {"action": "cancel"}}


def test_a_round_that_broke_is_sent_again_as_it_was() -> None:
    crossed = opened(R4, ASKABLE)
    crossed.ask("resources/read", {"uri": "u"})
    crossed.answers(crossed.hears(), required("Z", k=ROOTS))
    crossed.reply(crossed.sees("roots/list"), {"roots": []})
    round_two = crossed.hears()
    crossed.breaks(round_two)
    assert crossed.hears()["params"] == round_two["params"]


@pytest.mark.spec("MR-11")
def test_two_calls_are_asked_about_apart() -> None:
    crossed = opened(R4, ASKABLE)
    one, other = crossed.call("one"), crossed.call("other")
    heard = [crossed.hears(), crossed.hears()]
    for asked in reversed(heard):
        crossed.answers(asked, required(asked["params"]["name"], k=ROOTS))
    of_other, carrier = crossed.sees_on("roots/list")
    assert carrier is other
    of_one, carrier = crossed.sees_on("roots/list")
    assert carrier is one
    crossed.reply(of_one, {"roots": [1]})
    crossed.reply(of_other, {"roots": [2]})
    again = [crossed.hears()["params"] for _ in heard]
    assert [(params["name"], params["requestState"]) for params in again] == [
        ("one", "one"),
        ("other", "other"),
    ]
    assert [params["inputResponses"]["k"]["roots"] for params in again] == [[1], [2]]


@pytest.mark.parametrize("parallel", [True, False])
def test_a_port_that_refuses_on_the_spot_ends_the_call_once(parallel: bool) -> None:
    crossed = opened(R4, ASKABLE, terms=Terms(parallel=parallel))
    crossed.refuses_questions = True
    crossed.call(own="c")
    crossed.answers(crossed.hears(), required("Z", a=SAMPLE, b=SAMPLE))
    assert [one.get("method", "answer") for one in crossed.seen] == ["sampling/createMessage", "answer"]
    assert not crossed.party.questions
    assert not crossed.clock.waiting
