"""What modern clients listen for on a legacy server: cases F1 to F12."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.core import message
from bridge.core.events import Exchange, Left, Noted
from bridge.era.listen import closing, resumed, torn_down
from bridge.era.terms import Terms
from crossing.bench import EVERYTHING, Bench, bridge_error, opened_of, shown

Json = dict[str, Any]
SID = "io.modelcontextprotocol/subscriptionId"
A, B = "file:///a", "file:///b"
TOOLS = "tools/list_changed"
UPDATED = "resources/updated"


def listen(bench: Bench, listen_id: int | str = "L", *, subject: str = "ann", **wanted: object) -> Exchange:
    return bench.ask(listen_id, "subscriptions/listen", {"notifications": wanted}, subject=subject)


def listening(
    bench: Bench, listen_id: int | str = "L", *, subject: str = "ann", **wanted: object
) -> Exchange:
    """A stream whose subscriptions were all granted, and that was told so."""
    exchange = listen(bench, listen_id, subject=subject, **wanted)
    for sent in bench.take_sent():
        bench.result(sent["id"], {})
    assert bench.down(exchange)[0]["method"] == "notifications/subscriptions/acknowledged"
    return exchange


def acknowledgment(listen_id: int | str = "L", **honoured: object) -> Json:
    return {
        "method": "notifications/subscriptions/acknowledged",
        "params": {"_meta": {SID: listen_id}, "notifications": honoured},
    }


def changed(listen_id: int | str = "L", kind: str = "tools") -> Json:
    return {"method": f"notifications/{kind}/list_changed", "params": {"_meta": {SID: listen_id}}}


def updated(uri: str, listen_id: int | str = "L") -> Json:
    return {"method": "notifications/resources/updated", "params": {"uri": uri, "_meta": {SID: listen_id}}}


def asked(*calls: tuple[str, str]) -> list[Json]:
    """What the server gets, but for the ids."""
    return [{"method": f"resources/{method}", "params": {"uri": uri}} for method, uri in calls]


def sent(bench: Bench) -> list[Json]:
    return [{key: value for key, value in one.items() if key != "id"} for one in bench.take_sent()]


def without(*names: str) -> Json:
    """The capabilities of a server, less `listChanged` and `subscribe` of these."""
    return {name: {} if name in names else value for name, value in EVERYTHING.items()}


# --- what is granted ---


@pytest.mark.crossing("F1")
@pytest.mark.case("RV-03")
def test_acknowledgment_comes_first_and_names_what_the_server_granted() -> None:
    bench = Bench(opened=opened_of(capabilities=without("prompts")))
    stream = listen(bench, toolsListChanged=True, promptsListChanged=True, resourceSubscriptions=[A, B])
    first, second = bench.take_sent()
    assert [one["method"] for one in (first, second)] == ["resources/subscribe"] * 2
    assert [one["params"] for one in (first, second)] == [{"uri": A}, {"uri": B}]
    bench.result(first["id"], {})
    assert bench.down(stream) == []
    bench.error(second["id"], -32602)
    assert bench.down(stream) == [acknowledgment(toolsListChanged=True, resourceSubscriptions=[A])]


def test_server_that_does_not_grant_in_time_grants_not() -> None:
    bench = Bench()
    stream = listen(bench, toolsListChanged=True, resourceSubscriptions=[A])
    bench.take_sent()
    bench.clock.advance(4.9)
    assert bench.down(stream) == []
    bench.clock.advance(0.1)
    assert bench.down(stream) == [acknowledgment(toolsListChanged=True)]


@pytest.mark.crossing("F2")
def test_what_comes_before_the_acknowledgment_is_told_after_it() -> None:
    bench = Bench()
    stream = listen(bench, resourceSubscriptions=[A])
    [subscribe] = bench.take_sent()
    bench.note(UPDATED, {"uri": A, "_meta": {"com.ex/k": 1}})
    assert bench.down(stream) == []
    bench.result(subscribe["id"], {})
    told = updated(A)
    told["params"]["_meta"]["com.ex/k"] = 1
    assert bench.down(stream) == [acknowledgment(resourceSubscriptions=[A]), told]


@pytest.mark.crossing("F4")
@pytest.mark.parametrize("listen_id", [3, "3", 0, ""])
def test_subscription_id_is_the_id_of_the_listen_with_its_type(listen_id: int | str) -> None:
    bench = Bench()
    stream = listen(bench, listen_id, toolsListChanged=True)
    bench.note(TOOLS, {})
    acknowledged, told = bench.down(stream)
    assert acknowledged == acknowledgment(listen_id, toolsListChanged=True)
    assert told == changed(listen_id)
    assert type(told["params"]["_meta"][SID]) is type(listen_id)


@pytest.mark.crossing("F11")
@pytest.mark.parametrize(
    "wanted", [{}, {"toolsListChanged": False, "resourceSubscriptions": []}, {"x-v": True}]
)
def test_stream_for_which_nothing_is_honoured_stays(wanted: Json) -> None:
    bench = Bench()
    stream = listen(bench, **wanted)
    assert bench.down(stream) == [acknowledgment()]
    bench.note(TOOLS, {})
    assert bench.down(stream) == []
    assert bench.layer.busy


def test_server_that_announces_nothing_knows_no_listening() -> None:
    bench = Bench(opened=opened_of(capabilities=without("tools", "prompts", "resources")))
    stream = listen(bench, toolsListChanged=True)
    assert bridge_error(-32601, "capability")(bench.answer(stream))
    assert not bench.layer.busy


@pytest.mark.parametrize(
    "params",
    [
        b"{}",
        b'{"notifications":5}',
        b'{"notifications":{"toolsListChanged":"yes"}}',
        b'{"notifications":{"resourceSubscriptions":"file:///a"}}',
    ],
)
def test_listen_without_a_filter_is_refused(params: bytes) -> None:
    bench = Bench()
    stream = bench.ask_raw("L", "subscriptions/listen", params)
    assert bridge_error(-32602, "invalid_filter")(bench.answer(stream))
    assert bench.take_sent() == []


def test_one_subject_has_only_so_many_streams() -> None:
    bench = Bench(terms=Terms(listens=2))
    first, _ = listening(bench, 1, toolsListChanged=True), listening(bench, 2, toolsListChanged=True)
    refused = listen(bench, 3, toolsListChanged=True)
    assert bridge_error(-32603, "too_many_subscriptions")(bench.answer(refused))
    listening(bench, 3, toolsListChanged=True, subject="bob")
    bench.close(first)
    listening(bench, 4, toolsListChanged=True)


def test_tasks_are_not_watched_where_they_are_hidden() -> None:
    bench = Bench()
    stream = listen(bench, toolsListChanged=True, taskIds=["t"])
    assert bench.down(stream) == [acknowledgment(toolsListChanged=True)]


# --- how long the server is subscribed ---


@pytest.mark.crossing("F3")
def test_server_is_subscribed_once_for_all_streams_and_let_go_of_after_a_while() -> None:
    bench = Bench()
    first = listening(bench, 1, resourceSubscriptions=[A])
    second = listen(bench, 2, resourceSubscriptions=[A])
    assert bench.take_sent() == []
    assert bench.down(second) == [acknowledgment(2, resourceSubscriptions=[A])]
    bench.close(first)
    bench.close(second)
    bench.clock.advance(4.9)
    assert bench.take_sent() == []
    bench.clock.advance(0.1)
    [unsubscribe] = bench.take_sent()
    assert (unsubscribe["method"], unsubscribe["params"]) == ("resources/unsubscribe", {"uri": A})
    bench.result(unsubscribe["id"], {})
    bench.clock.advance(60)
    assert bench.take_sent() == []
    assert not bench.layer.busy


def test_stream_of_two_ends_and_nothing_is_unsubscribed() -> None:
    bench = Bench()
    first = listening(bench, 1, resourceSubscriptions=[A])
    second = listening(bench, 2, resourceSubscriptions=[A])
    bench.close(first)
    bench.clock.advance(60)
    assert bench.take_sent() == []
    bench.note(UPDATED, {"uri": A})
    assert bench.down(second) == [updated(A, 2)]
    assert bench.down(first) == []


def test_client_that_comes_back_soon_finds_the_server_subscribed() -> None:
    bench = Bench()
    bench.close(listening(bench, 1, resourceSubscriptions=[A]))
    bench.clock.advance(4.9)
    again = listen(bench, 2, resourceSubscriptions=[A])
    assert bench.down(again) == [acknowledgment(2, resourceSubscriptions=[A])]
    bench.clock.advance(60)
    assert bench.take_sent() == []


def test_client_that_comes_while_the_server_is_unsubscribed_waits_for_that() -> None:
    """Over HTTP the two requests could arrive in any order."""
    bench = Bench()
    bench.close(listening(bench, 1, resourceSubscriptions=[A]))
    bench.clock.advance(5)
    [unsubscribe] = bench.take_sent()
    again = listen(bench, 2, resourceSubscriptions=[A])
    assert bench.take_sent() == []
    bench.result(unsubscribe["id"], {})
    [subscribe] = bench.take_sent()
    assert subscribe["method"] == "resources/subscribe"
    assert bench.down(again) == []
    bench.result(subscribe["id"], {})
    assert bench.down(again) == [acknowledgment(2, resourceSubscriptions=[A])]


def test_stream_that_ends_before_it_was_granted_leaves_nothing_behind() -> None:
    bench = Bench()
    stream = listen(bench, resourceSubscriptions=[A, B])
    first, second = bench.take_sent()
    bench.close(stream)
    bench.result(first["id"], {})
    bench.error(second["id"], -32602)
    bench.clock.advance(5)
    assert sent(bench) == asked(("unsubscribe", A))
    assert bench.down(stream) == []


def test_two_streams_that_wait_for_one_resource_are_told_the_same() -> None:
    bench = Bench()
    first, second = (listen(bench, one, resourceSubscriptions=[A]) for one in (1, 2))
    [subscribe] = bench.take_sent()
    bench.error(subscribe["id"], -32602)
    assert bench.down(first) == [acknowledgment(1)]
    assert bench.down(second) == [acknowledgment(2)]


def test_resource_named_twice_is_one() -> None:
    bench = Bench()
    stream = listen(bench, resourceSubscriptions=[A, A])
    [subscribe] = bench.take_sent()
    bench.result(subscribe["id"], {})
    assert bench.down(stream) == [acknowledgment(resourceSubscriptions=[A])]


# --- who is told ---


@pytest.mark.crossing("F5")
def test_update_goes_to_whose_resource_it_is_else_to_whose_holds_it_else_to_all_of_the_subject() -> None:
    bench = Bench()
    first = listening(bench, 1, resourceSubscriptions=[A])
    other = listening(bench, 2, resourceSubscriptions=["file:///c"])
    plain = listening(bench, 3, toolsListChanged=True)
    bench.note(UPDATED, {"uri": "file:///a/x"})
    assert (bench.down(first), bench.down(other)) == ([updated("file:///a/x", 1)], [])
    bench.note(UPDATED, {"uri": "file:///ax"})
    bench.note(UPDATED, {"uri": "file:///z"})
    assert bench.down(first) == [updated("file:///ax", 1), updated("file:///z", 1)]
    assert bench.down(other) == [updated("file:///ax", 2), updated("file:///z", 2)]
    assert bench.down(plain) == []


def test_update_of_what_nobody_asked_for_is_not_told_across_subjects() -> None:
    bench = Bench()
    ann = listening(bench, 1, resourceSubscriptions=[A])
    bob = listening(bench, 2, subject="bob", resourceSubscriptions=[B])
    bench.note(UPDATED, {"uri": "file:///z"})
    assert (bench.down(ann), bench.down(bob)) == ([], [])
    bench.close(ann)
    bench.note(UPDATED, {"uri": A})
    bench.note(UPDATED, {"uri": "file:///a/x"})
    bench.note(UPDATED, {"uri": "file:///z"})
    assert bench.down(bob) == []


@pytest.mark.crossing("F6")
def test_list_changed_that_comes_on_the_stream_of_a_call_goes_to_who_listens() -> None:
    bench = Bench()
    stream = listening(bench, toolsListChanged=True)
    call = bench.call()
    [sent_call] = bench.take_sent()
    bench.note(TOOLS, {}, on=sent_call["id"])
    assert bench.down(stream) == [changed()]
    assert bench.down(call) == []


@pytest.mark.crossing("F7")
def test_stream_is_not_told_what_it_did_not_ask_for() -> None:
    bench = Bench()
    stream = listening(bench, promptsListChanged=True)
    bench.note(TOOLS, {})
    bench.note("resources/list_changed", {})
    assert bench.down(stream) == []
    bench.note("prompts/list_changed", {})
    assert bench.down(stream) == [changed(kind="prompts")]


@pytest.mark.crossing("F12")
def test_log_message_is_nobodys_while_only_streams_are_open() -> None:
    bench = Bench()
    stream = listening(bench, toolsListChanged=True, resourceSubscriptions=[A])
    bench.note("message", {"level": "error", "data": "x"})
    assert bench.down(stream) == []
    assert bench.fallen == []


@pytest.mark.parametrize("params", [None, [], {"_meta": []}, {"_meta": None}])
def test_list_changed_in_an_odd_shape_is_told_all_the_same(params: object) -> None:
    """Some writers know no empty objects."""
    bench = Bench()
    stream = listening(bench, toolsListChanged=True)
    bench.say({"method": f"notifications/{TOOLS}", **({} if params is None else {"params": params})})
    assert bench.down(stream) == [changed()]


def test_updated_without_a_uri_is_nobodys() -> None:
    bench = Bench()
    stream = listening(bench, resourceSubscriptions=[A])
    bench.note(UPDATED, {})
    assert bench.down(stream) == []


# --- too much ---


@pytest.mark.crossing("F8")
def test_equal_changes_that_the_client_had_no_time_to_read_are_one() -> None:
    bench = Bench()
    stream = listening(bench, toolsListChanged=True, promptsListChanged=True)
    for _ in range(10):
        bench.note(TOOLS, {})
    bench.note("prompts/list_changed", {})
    assert bench.down(stream) == [changed(), changed(kind="prompts")]
    bench.clock.advance(0)
    bench.note(TOOLS, {})
    assert bench.down(stream) == [changed()]


def test_equal_changes_before_the_acknowledgment_are_one() -> None:
    bench = Bench()
    stream = listen(bench, resourceSubscriptions=[A])
    [subscribe] = bench.take_sent()
    for _ in range(10):
        bench.note(UPDATED, {"uri": A})
        bench.clock.advance(0.1)
    bench.result(subscribe["id"], {})
    assert bench.down(stream) == [acknowledgment(resourceSubscriptions=[A]), updated(A)]


def test_stream_that_holds_too_much_ends_in_good_order() -> None:
    bench = Bench(terms=Terms(backlog=3))
    stream = listen(bench, resourceSubscriptions=[A])
    [subscribe] = bench.take_sent()
    for number in range(3):
        bench.note(UPDATED, {"uri": f"{A}/{number}"})
    assert bench.down(stream) == []
    bench.note(UPDATED, {"uri": f"{A}/3"})
    assert bench.answer(stream) == {"result": {"resultType": "complete", "_meta": {SID: "L"}}}
    bench.result(subscribe["id"], {})
    bench.note(UPDATED, {"uri": A})
    assert bench.down(stream) == []


# --- the server is lost ---


@pytest.mark.crossing("F9")
def test_stream_goes_on_with_another_session_and_is_told_that_all_may_have_changed() -> None:
    bench = Bench(opened=opened_of(capabilities=without("prompts")))
    wanted: Json = {"toolsListChanged": True, "promptsListChanged": True, "resourceSubscriptions": [A]}
    stream = listening(bench, **wanted)
    bench.lose()
    assert bench.down(stream) == []
    assert not bench.layer.busy

    back = Bench(opened=opened_of(capabilities=without("prompts")))
    again = listen(back, **wanted)
    [subscribe] = back.take_sent()
    assert subscribe == {"id": subscribe["id"], "method": "resources/subscribe", "params": {"uri": A}}
    back.result(subscribe["id"], {})
    [acknowledged] = back.fallen
    assert isinstance(acknowledged, Noted)
    note = acknowledged.notification
    assert back.down(again) == [acknowledgment(toolsListChanged=True, resourceSubscriptions=[A])]
    assert [shown(one.raw) for one in resumed(note, "L")] == [changed(), updated(A)]


def test_acknowledgment_that_cannot_be_read_resumes_nothing() -> None:
    assert resumed(message.notification("notifications/subscriptions/acknowledged"), "L") == []


def test_session_that_is_lost_leaves_no_timer_running() -> None:
    bench = Bench()
    bench.close(listening(bench, 1, resourceSubscriptions=[A]))
    stream = listening(bench, 2, toolsListChanged=True, resourceSubscriptions=[B])
    bench.note(TOOLS, {})
    assert bench.clock.waiting
    bench.lose()
    assert not bench.clock.waiting
    bench.close(stream)


@pytest.mark.crossing("F10")
@pytest.mark.parametrize("listen_id", ["L", 7])
def test_stream_whose_server_does_not_come_back_ends_in_good_order(listen_id: int | str) -> None:
    assert shown(closing(listen_id).raw) == {
        "id": listen_id,
        "result": {"resultType": "complete", "_meta": {SID: listen_id}},
    }
    assert shown(torn_down(listen_id).raw) == {
        "method": "notifications/cancelled",
        "params": {"requestId": listen_id},
    }


def test_client_that_leaves_takes_all_its_streams_along() -> None:
    bench = Bench()
    stream = listening(bench, resourceSubscriptions=[A])
    bench.rise(Left(stream.party))
    assert not bench.layer.busy
    bench.clock.advance(5)
    assert sent(bench) == asked(("unsubscribe", A))
