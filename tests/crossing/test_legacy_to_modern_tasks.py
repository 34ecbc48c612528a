"""A modern server's tasks, waited for in the place of a legacy client."""

from __future__ import annotations

import pytest

from bridge.era.terms import Terms
from crossing.bench import SI, Json
from crossing.legacy import ASKABLE, R2, R4, TASKS, Crossed, bridges, elicit, envelope, opened

OFFERS: Json = {"tools": {}, "extensions": {TASKS: {}}}
ROOTS: Json = {"method": "roots/list"}


def task(status: str, **more: object) -> Json:
    return {"taskId": "t1", "status": status, "ttlMs": 60000, "pollIntervalMs": 500, **more}


def driven(revision: str = R4, meta: Json | None = None) -> Crossed:
    """A call that became a task."""
    crossed = opened(revision, ASKABLE, server=OFFERS)
    crossed.call(own="c", _meta=meta or {})
    crossed.answers(crossed.hears("tools/call"), {"resultType": "task", **task("working")})
    assert crossed.silent
    return crossed


def look(crossed: Crossed, seconds: float = 0.5) -> Json:
    crossed.clock.advance(seconds)
    return crossed.hears("tasks/get")


@pytest.mark.crossing("J40")
def test_a_task_is_looked_at_until_it_has_a_result() -> None:
    crossed = driven()
    first = look(crossed)
    assert first["params"]["taskId"] == "t1"
    crossed.answers(first, {"resultType": "complete", **task("working")})
    crossed.clock.advance(0.4)
    assert crossed.silent
    second = look(crossed, 0.2)
    done = {"content": [], "resultType": "complete", **SI}
    crossed.answers(second, {"resultType": "complete", **task("completed", result=done)})
    assert crossed.sees() == {"id": "c", "result": {"content": []}}
    assert crossed.silent
    assert not crossed.clock.waiting


@pytest.mark.spec("EV-13", "TK-12")
def test_only_calls_of_tools_offer_to_wait_and_only_where_tasks_are_known() -> None:
    crossed = opened(server=OFFERS)
    crossed.call()
    assert crossed.hears()["params"]["_meta"] == envelope({"extensions": {TASKS: {}}})
    crossed.ask("prompts/get", {"name": "p"})
    assert crossed.hears()["params"]["_meta"] == envelope({})
    for plain in (opened(), opened(server=OFFERS, terms=Terms(drive=False))):
        plain.call()
        assert plain.hears()["params"]["_meta"] == envelope({})


@pytest.mark.spec("G-10")
def test_a_task_that_nobody_offered_to_wait_for_is_no_result() -> None:
    crossed = opened(server=OFFERS, terms=Terms(drive=False))
    crossed.call()
    crossed.answers(crossed.hears(), {"resultType": "task", **task("working")})
    assert bridges(crossed.error()) == "invalid_result_type"


def test_a_task_without_a_name_is_no_result() -> None:
    crossed = opened(server=OFFERS)
    crossed.call()
    crossed.answers(crossed.hears(), {"resultType": "task", "status": "working"})
    assert bridges(crossed.error()) == "invalid_result_type"
    assert crossed.silent


def test_the_result_of_a_task_is_put_into_the_clients_words() -> None:
    crossed = driven(R2)
    link = {"type": "resource_link", "uri": "file:///a", "name": "A"}
    crossed.answers(look(crossed), task("completed", result={"content": [link]}))
    assert crossed.result() == {"content": [{"type": "text", "text": "A\nfile:///a"}]}


def test_a_task_that_failed_ends_the_call_with_its_error() -> None:
    crossed = driven()
    crossed.answers(look(crossed), task("failed", error={"code": -32050, "message": "boom", "data": 1}))
    assert crossed.error() == {"code": -32050, "message": "boom", "data": 1}


def test_a_task_that_was_cancelled_ends_the_call_with_an_error() -> None:
    crossed = driven()
    crossed.answers(look(crossed), task("cancelled"))
    assert crossed.error()["code"] == -32603


def test_what_a_task_wants_to_know_the_client_is_asked_once() -> None:
    crossed = driven()
    wants = task("input_required", inputRequests={"k": elicit(), "r": ROOTS})
    crossed.answers(look(crossed), wants)
    form, roots = crossed.sees("elicitation/create"), crossed.sees("roots/list")
    crossed.answers(look(crossed), wants)
    assert crossed.silent
    crossed.reply(roots, {"roots": []})
    crossed.reply(form, {"action": "decline"})
    update = crossed.hears("tasks/update")
    assert update["params"]["taskId"] == "t1"
    assert update["params"]["inputResponses"] == {"k": {"action": "decline"}, "r": {"roots": []}}
    crossed.answers(update, {"resultType": "complete"})
    crossed.answers(look(crossed), task("completed", result={"content": []}))
    assert crossed.result() == {"content": []}
    assert not crossed.clock.waiting


def test_a_client_that_cancels_has_its_task_cancelled() -> None:
    crossed = opened(R4, ASKABLE, server=OFFERS)
    asked = crossed.call()
    crossed.answers(crossed.hears(), {"resultType": "task", **task("working")})
    crossed.answers(look(crossed), task("input_required", inputRequests={"r": ROOTS}))
    question = crossed.sees("roots/list")
    crossed.cancel(asked)
    assert crossed.sees("notifications/cancelled")["params"] == {"requestId": question["id"]}
    cancel = crossed.hears("tasks/cancel")
    assert cancel["params"]["taskId"] == "t1"
    crossed.answers(cancel, {"resultType": "complete"})
    crossed.clock.advance(3600)
    assert crossed.silent


def test_a_session_that_ends_has_its_tasks_cancelled() -> None:
    crossed = driven()
    pending = look(crossed)
    crossed.leave()
    crossed.hears_cancelled(pending)
    assert crossed.hears("tasks/cancel")["params"]["taskId"] == "t1"
    assert crossed.silent
    assert not crossed.clock.waiting


def test_a_client_that_will_not_say_it_ends_the_call() -> None:
    crossed = driven()
    crossed.answers(look(crossed), task("input_required", inputRequests={"r": ROOTS}))
    crossed.refuse(crossed.sees("roots/list"), -1, "User rejected")
    assert crossed.result() == {"content": [{"type": "text", "text": "User rejected"}], "isError": True}
    crossed.hears("tasks/cancel")
    crossed.clock.advance(3600)
    assert crossed.silent


def test_what_a_task_says_of_itself_is_progress_to_a_client_that_wants_to_know() -> None:
    crossed = driven(meta={"progressToken": "p"})
    for message in ("one", "one", "two"):
        crossed.answers(look(crossed), task("working", statusMessage=message))
    told = [crossed.sees("notifications/progress")["params"] for _ in range(2)]
    assert [one["message"] for one in told] == ["one", "two"]
    assert {one["progressToken"] for one in told} == {"p"}
    assert told[0]["progress"] < told[1]["progress"]
    assert crossed.silent


def test_a_lost_server_takes_its_tasks_along() -> None:
    crossed = driven()
    crossed.die()
    assert bridges(crossed.error()) == "upstream_lost"
    assert crossed.silent
    assert not crossed.clock.waiting
