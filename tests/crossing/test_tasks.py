"""Tools that a legacy server makes tasks of, for modern clients: cases T1 to T7."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from bridge.core.events import Exchange, Left
from bridge.core.message import Id, Request, Response, request
from bridge.core.splice import quote
from bridge.era import mapped_tasks
from bridge.era.capabilities import Capabilities
from bridge.era.modern_to_legacy import ModernToLegacy
from bridge.era.suspend import Elsewhere
from bridge.era.task_ids import TaskIds
from bridge.era.terms import Tasks, Terms
from crossing.bench import (
    ALL,
    EL,
    EVERYTHING,
    SI,
    Bench,
    C,
    FakeClock,
    PlainSeal,
    Wire,
    bridge_error,
    calls_of,
    opened_of,
)

Json = dict[str, Any]
RELATED = {"io.modelcontextprotocol/related-task": {"taskId": "t"}}
SID = "io.modelcontextprotocol/subscriptionId"
TASKS = "io.modelcontextprotocol/tasks"
KNOWS = '{"elicitation":{},"sampling":{},"roots":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}'
"""What a client declares that knows the tasks extension."""
OFFER: Json = {"cancel": {}, "list": {}, "requests": {"tools": {"call": {}}}}
TIMES = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:01Z"}
DONE: Json = {"content": [{"type": "text", "text": "done"}]}


def serving(offer: Json | None = None) -> Any:
    return opened_of(capabilities={**EVERYTHING, "tasks": OFFER if offer is None else offer})


def tool(name: str, support: str | None) -> Json:
    return {
        "name": name,
        "inputSchema": {},
        **({} if support is None else {"execution": {"taskSupport": support}}),
    }


def task(status: str = "working", **more: object) -> Json:
    return {"taskId": "t", "status": status, **TIMES, "ttl": 60000, "pollInterval": 500, **more}


def hiding(*tools: Json, offer: Json | None = None) -> Bench:
    """Tasks are not shown, and the server's tools are known."""
    bench = Bench(opened=serving(offer))
    if tools:
        learn(bench, *tools)
    return bench


def learn(bench: Bench, *tools: Json) -> None:
    bench.ask(0, "tools/list")
    [sent] = bench.take_sent()
    bench.result(sent["id"], {"tools": list(tools)})
    bench.fallen.clear()


def required(bench: Bench, request_id: Id = 1, **how: Any) -> tuple[Exchange, Id]:
    """A call that became the task `t`, and the id of the `tasks/result` that is waited for."""
    exchange = bench.call(request_id, **how)
    [sent] = bench.take_sent()
    assert sent["params"]["task"] == {}
    bench.result(sent["id"], {"task": task()})
    [waiting] = bench.take_sent()
    assert (waiting["method"], waiting["params"]) == ("tasks/result", {"taskId": "t"})
    return exchange, waiting["id"]


# --- how a tool is called ---


@pytest.mark.crossing("T1")
@pytest.mark.spec("TK-1")
def test_tool_that_insists_on_a_task_is_waited_for() -> None:
    bench = hiding(tool("a", "required"))
    exchange = bench.call(1)
    [sent] = bench.take_sent()
    assert sent["method"] == "tools/call"
    assert sent["params"] == {"name": "a", "arguments": {"x": 1}, "task": {}}
    bench.result(sent["id"], {"task": task()})
    [waiting] = bench.take_sent()
    assert (waiting["method"], waiting["params"]) == ("tasks/result", {"taskId": "t"})
    assert bench.down(exchange) == []
    bench.result(waiting["id"], {**DONE, "_meta": RELATED})
    assert bench.answer(exchange) == {"result": {**C, **DONE, **SI}}
    assert bench.take_sent() == []
    assert not bench.layer.busy


@pytest.mark.spec("TK-1")
@pytest.mark.parametrize("support", ["optional", "forbidden", None, "often"])
def test_tool_that_does_not_insist_is_called_without_a_task(support: str | None) -> None:
    bench = hiding(tool("a", support), tool("b", "required"))
    bench.call(1)
    [sent] = bench.take_sent()
    assert sent["params"] == {"name": "a", "arguments": {"x": 1}}


@pytest.mark.spec("TK-1")
def test_server_that_makes_no_tasks_of_calls_is_not_asked_for_its_tools() -> None:
    bench = hiding(offer={"list": {}})
    bench.call(1)
    [sent] = bench.take_sent()
    assert sent["method"] == "tools/call"
    learn(bench, tool("a", "required"))
    bench.call(2)
    [sent] = bench.take_sent()
    assert "task" not in sent["params"]


def test_server_is_asked_for_its_tools_once_before_calls_of_unknown_ones() -> None:
    bench = hiding()
    bench.call(1)
    bench.call(2, tool="b")
    [listed] = bench.take_sent()
    assert listed == {"id": listed["id"], "method": "tools/list"}
    bench.result(listed["id"], {"tools": [tool("b", "required")], "nextCursor": "2"})
    [listed] = bench.take_sent()
    assert listed["params"] == {"cursor": "2"}
    bench.result(listed["id"], {"tools": [tool("a", "forbidden")]})
    first, second = bench.take_sent()
    assert (first["params"]["name"], "task" in first["params"]) == ("a", False)
    assert (second["params"]["name"], "task" in second["params"]) == ("b", True)
    bench.call(3, tool="nowhere")
    [sent] = bench.take_sent()
    assert sent["method"] == "tools/call"


@pytest.mark.parametrize("late", [False, True])
def test_call_goes_on_when_the_server_does_not_list_its_tools(late: bool) -> None:
    bench = hiding()
    bench.call(1)
    [listed] = bench.take_sent()
    if late:
        bench.clock.advance(10)
    else:
        bench.error(listed["id"], -32603)
    assert bench.take_sent()[-1]["method"] == "tools/call"


def test_cursors_in_a_circle_are_not_followed_for_ever() -> None:
    bench = hiding()
    bench.call(1)
    asked = 0
    while (sent := bench.take_sent())[0]["method"] == "tools/list":
        asked += 1
        bench.result(sent[0]["id"], {"tools": [], "nextCursor": str(asked % 2)})
    assert asked == 3


def test_tools_are_looked_at_anew_when_they_have_changed() -> None:
    bench = hiding(tool("a", "forbidden"))
    bench.note("tools/list_changed", {})
    bench.call(1)
    [listed] = bench.take_sent()
    assert listed["method"] == "tools/list"
    bench.result(listed["id"], {"tools": [tool("a", "required")]})
    [sent] = bench.take_sent()
    assert sent["params"]["task"] == {}


@pytest.mark.parametrize("listed", [[], {}, {"tools": 5}, {"tools": [5, {"name": 5}, {}], "nextCursor": 5}])
def test_list_that_cannot_be_read_teaches_nothing(listed: object) -> None:
    bench = hiding()
    bench.call(1)
    [asked] = bench.take_sent()
    bench.result(asked["id"], listed)
    [sent] = bench.take_sent()
    assert (sent["method"], "task" in sent["params"]) == ("tools/call", False)


def test_offer_that_cannot_be_read_is_none() -> None:
    bench = Bench(opened=opened_of(capabilities={**EVERYTHING, "tasks": {"requests": 5}}))
    bench.call(1)
    [sent] = bench.take_sent()
    assert sent["method"] == "tools/call"


def test_call_that_is_cancelled_while_the_tools_are_listed_is_never_sent() -> None:
    bench = hiding()
    exchange = bench.call(1)
    [listed] = bench.take_sent()
    bench.close(exchange)
    bench.result(listed["id"], {"tools": []})
    assert bench.take_sent() == []


# --- hidden tasks ---


def test_answer_without_a_task_is_the_answer() -> None:
    bench = hiding(tool("a", "required"))
    exchange = bench.call(1)
    [sent] = bench.take_sent()
    bench.result(sent["id"], DONE)
    assert bench.answer(exchange) == {"result": {**C, **DONE, **SI}}


def test_error_of_a_task_is_the_calls() -> None:
    bench = hiding(tool("a", "required"))
    exchange, waiting = required(bench)
    bench.error(waiting, -32005, "rate", data={"k": 1})
    assert bench.answer(exchange)["error"] == {"code": -32005, "message": "rate", "data": {"k": 1}}


def test_result_without_a_related_task_stays_as_it_is() -> None:
    bench = hiding(tool("a", "required"))
    exchange, waiting = required(bench)
    text = "io.modelcontextprotocol/related-task"
    bench.result(waiting, {"content": [], "_meta": {"k": text}})
    assert bench.answer(exchange)["result"]["_meta"] == {"k": text, **SI["_meta"]}


def test_only_the_related_task_is_taken_from_a_result() -> None:
    bench = hiding(tool("a", "required"))
    exchange, waiting = required(bench)
    bench.result(waiting, {**DONE, "_meta": {**RELATED, "com.ex/k": 1}})
    assert bench.answer(exchange)["result"]["_meta"] == {"com.ex/k": 1, **SI["_meta"]}


@pytest.mark.crossing("T2")
@pytest.mark.spec("CP-6")
def test_cancelled_call_cancels_its_task() -> None:
    bench = hiding(tool("a", "required"))
    exchange, waiting = required(bench)
    bench.close(exchange)
    [cancel] = bench.take_sent()
    assert (cancel["method"], cancel["params"]) == ("tasks/cancel", {"taskId": "t"})
    bench.error(waiting, -32603, "cancelled")
    bench.result(cancel["id"], task("cancelled"))
    assert bench.take_sent() == []
    assert bench.down(exchange) == []
    assert not bench.layer.busy


def test_task_that_ends_without_an_answer_is_waited_for_no_longer() -> None:
    bench = hiding(tool("a", "required"))
    exchange, waiting = required(bench)
    bench.close(exchange)
    [cancel] = bench.take_sent()
    bench.result(cancel["id"], task("cancelled"))
    assert bench.take_sent() == [{"method": "notifications/cancelled", "params": {"requestId": waiting}}]


@pytest.mark.spec("CP-6")
def test_call_that_is_cancelled_before_its_task_is_known_cancels_it_then() -> None:
    """A task is not cancelled by `notifications/cancelled`, and no id is known yet."""
    bench = hiding(tool("a", "required"))
    exchange = bench.call(1)
    [sent] = bench.take_sent()
    bench.close(exchange)
    assert bench.take_sent() == []
    bench.result(sent["id"], {"task": task()})
    [cancel] = bench.take_sent()
    assert (cancel["method"], cancel["params"]) == ("tasks/cancel", {"taskId": "t"})
    assert bench.down(exchange) == []


def test_server_that_takes_no_cancellation_is_waited_for_no_longer() -> None:
    bench = hiding(tool("a", "required"), offer={"requests": OFFER["requests"]})
    exchange, waiting = required(bench)
    bench.close(exchange)
    assert bench.take_sent() == [{"method": "notifications/cancelled", "params": {"requestId": waiting}}]


@pytest.mark.crossing("T3")
@pytest.mark.spec("TK-4")
def test_question_of_a_task_belongs_to_its_call_whatever_else_is_in_flight() -> None:
    bench = hiding(tool("a", "required"), tool("b", "forbidden"))
    exchange, waiting = required(bench)
    other = bench.call(2, tool="b")
    bench.take_sent()
    bench.question(0, params={**EL, "_meta": RELATED})
    bench.clock.advance(bench.terms.coalesce)
    requests, state = bench.asked(exchange)
    assert requests == {"in-1": {"method": "elicitation/create", "params": EL}}
    assert bench.down(other) == []
    back = bench.back(3, state, {"in-1": {"action": "decline"}})
    assert bench.take_sent() == [{"id": 0, "result": {"action": "decline", "_meta": RELATED}}]
    bench.result(waiting, DONE)
    assert bench.answer(back) == {"result": {**C, **DONE, **SI}}


def test_progress_of_a_task_goes_on_after_it_was_made() -> None:
    bench = hiding(tool("a", "required"))
    exchange = bench.call(1, token="p")
    [sent] = bench.take_sent()
    token = sent["params"]["_meta"]["progressToken"]
    bench.result(sent["id"], {"task": task()})
    bench.note("progress", {"progressToken": token, "progress": 1})
    told = {"method": "notifications/progress", "params": {"progressToken": "p", "progress": 1}}
    assert bench.down(exchange) == [told]


@pytest.mark.crossing("T4")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
def test_hidden_tasks_cannot_be_asked_for(method: str) -> None:
    bench = hiding()
    exchange = bench.ask(1, method, {"taskId": "t"}, can=KNOWS)
    assert bench.answer(exchange)["error"]["code"] == -32601
    assert bench.take_sent() == []


def test_lost_server_ends_the_call_of_a_task() -> None:
    bench = hiding(tool("a", "required"))
    exchange, _ = required(bench)
    bench.lose()
    assert bridge_error(-32603, "upstream_lost")(bench.answer(exchange))
    assert not bench.layer.busy
    assert not bench.clock.waiting


# --- shown tasks ---


class Showing(Bench):
    """Tasks are shown to clients that know the extension; the server has the tools that are given."""

    def __init__(self, *tools: Json, offer: Json | None = None, declared: str = ALL) -> None:
        clock, serial = FakeClock(), count(1)
        self.terms = Terms(tasks=Tasks.MAP)
        self.calls = calls_of(clock, self.terms)
        self.ids: TaskIds[str] = TaskIds(
            PlainSeal(), upstream="up", replica="r1", mint=lambda: f"session-{next(serial)}"
        )
        self.opened = serving(offer)
        self.layer = ModernToLegacy(
            self.opened,
            Capabilities.read(declared.encode()),
            self.calls,
            clock,
            self.terms,
            "home",
            self.ids,
        )
        Wire.__init__(self, clock, self.layer)
        learn(self, *(tools or (tool("a", "required"), tool("o", "optional"), tool("f", "forbidden"))))

    def made(self, **how: Any) -> str:
        """A call of `a` that became the task `t`: the id by which its client knows it."""
        exchange = self.call(1, can=how.pop("can", KNOWS), **how)
        [sent] = self.take_sent()
        self.result(sent["id"], {"task": task()})
        shown = self.answer(exchange)["result"]["taskId"]
        assert isinstance(shown, str)
        return shown

    def about(self, method: str, shown: str, request_id: Id = 2, **how: Any) -> Exchange:
        params = {"taskId": shown, **how.pop("more", {})}
        return self.ask(request_id, f"tasks/{method}", params, can=how.pop("can", KNOWS), **how)

    def got(self, shown: str, **fields: object) -> Exchange:
        """A `tasks/get` to which the server says this."""
        exchange = self.about("get", shown)
        [sent] = self.take_sent()
        assert (sent["method"], sent["params"]) == ("tasks/get", {"taskId": "t"})
        self.result(sent["id"], task(**fields))  # type: ignore[arg-type]
        return exchange

    def got_later(self, shown: str) -> Exchange:
        """A `tasks/get` of a task that wants input, while nothing was asked yet."""
        exchange = self.got(shown, status="input_required")
        self.waiting()
        return exchange

    def waiting(self) -> Id:
        """The id of the `tasks/result` that was just asked for."""
        [sent] = self.take_sent()
        assert (sent["method"], sent["params"]) == ("tasks/result", {"taskId": "t"})
        found: Id = sent["id"]
        return found


def about(method: str, shown: str) -> Request:
    return request(1, f"tasks/{method}", b'{"taskId":%b}' % quote(shown))


def flat(shown: str, status: str = "working", **more: object) -> Json:
    """A task as a modern client sees it."""
    return {"taskId": shown, "status": status, **TIMES, "ttlMs": 60000, "pollIntervalMs": 500, **more}


@pytest.mark.crossing("T5")
@pytest.mark.spec("TK-5", "TK-8")
@pytest.mark.parametrize("name", ["a", "o"])
def test_task_is_flat_and_its_id_is_sealed(name: str) -> None:
    bench = Showing()
    exchange = bench.call(1, tool=name, can=KNOWS)
    [sent] = bench.take_sent()
    assert sent["params"] == {"name": name, "arguments": {"x": 1}, "task": {}}
    bench.result(sent["id"], {"task": task(statusMessage="on it"), "_meta": {"com.ex/k": 1}})
    result = bench.answer(exchange)["result"]
    shown = result["taskId"]
    assert shown.startswith("plain:")
    meta = {"com.ex/k": 1, **SI["_meta"]}
    assert result == {"resultType": "task", **flat(shown, statusMessage="on it"), "_meta": meta}
    assert bench.take_sent() == []
    assert bench.layer.busy


def test_task_without_a_lifetime_is_said_to_have_none() -> None:
    bench = Showing()
    exchange = bench.call(1, can=KNOWS)
    [sent] = bench.take_sent()
    bench.result(sent["id"], {"task": {"taskId": "t", "status": "working"}})
    assert bench.answer(exchange)["result"]["ttlMs"] is None


def test_tool_that_makes_no_tasks_is_called_as_ever() -> None:
    bench = Showing()
    exchange = bench.call(1, tool="f", can=KNOWS)
    [sent] = bench.take_sent()
    assert "task" not in sent["params"]
    bench.result(sent["id"], DONE)
    assert bench.answer(exchange) == {"result": {**C, **DONE, **SI}}


def test_task_that_was_not_made_is_an_answer() -> None:
    bench = Showing()
    exchange = bench.call(1, can=KNOWS)
    [sent] = bench.take_sent()
    bench.result(sent["id"], DONE)
    assert bench.answer(exchange) == {"result": {**C, **DONE, **SI}}


@pytest.mark.spec("EV-13", "TK-7")
def test_client_that_does_not_know_tasks_sees_none() -> None:
    bench = Showing()
    exchange, waiting = required(bench)
    bench.result(waiting, {**DONE, "_meta": RELATED})
    assert bench.answer(exchange) == {"result": {**C, **DONE, **SI}}
    bench.call(2, tool="o")
    [sent] = bench.take_sent()
    assert "task" not in sent["params"]


@pytest.mark.spec("EV-13", "TK-11")
@pytest.mark.parametrize("method", ["get", "update", "cancel"])
def test_client_must_say_that_it_knows_tasks(method: str) -> None:
    bench = Showing()
    shown = bench.made()
    error = bench.answer(bench.about(method, shown, can=ALL))["error"]
    assert (error["code"], error["data"]) == (-32021, {"requiredCapabilities": {"extensions": {TASKS: {}}}})
    assert bench.take_sent() == []


def test_task_that_goes_on_is_shown_as_it_is() -> None:
    bench = Showing()
    shown = bench.made()
    exchange = bench.got(shown, statusMessage="half")
    assert bench.answer(exchange)["result"] == {**C, **flat(shown, statusMessage="half"), **SI}


def test_cancelled_task_is_shown_as_it_is() -> None:
    bench = Showing()
    shown = bench.made()
    assert bench.answer(bench.got(shown, status="cancelled"))["result"] == {
        **C,
        **flat(shown, "cancelled"),
        **SI,
    }
    assert bench.take_sent() == []
    assert not bench.layer.busy


@pytest.mark.crossing("T6")
@pytest.mark.spec("TK-8")
@pytest.mark.parametrize(("status", "result"), [("completed", DONE), ("failed", {**DONE, "isError": True})])
def test_task_with_a_result_is_completed_whatever_the_result_says(status: str, result: Json) -> None:
    bench = Showing()
    shown = bench.made()
    exchange = bench.got(shown, status=status)
    waiting = bench.waiting()
    assert bench.down(exchange) == []
    bench.result(waiting, {**result, "_meta": RELATED})
    ended = flat(shown, "completed", result={**result, **C})
    assert bench.answer(exchange)["result"] == {**C, **ended, **SI}
    assert not bench.layer.busy


@pytest.mark.spec("TK-8")
def test_task_with_an_error_is_failed() -> None:
    bench = Showing()
    shown = bench.made()
    exchange = bench.got(shown, status="failed")
    bench.error(bench.waiting(), -32005, "rate", data={"k": 1})
    error = {"code": -32005, "message": "rate", "data": {"k": 1}}
    assert bench.answer(exchange)["result"] == {**C, **flat(shown, "failed", error=error), **SI}


def test_end_that_was_lost_on_its_way_is_no_end_of_the_task() -> None:
    bench = Showing()
    exchange = bench.got(bench.made(), status="completed")
    bench.lose()
    assert bridge_error(-32603, "upstream_lost")(bench.answer(exchange))


def test_task_that_is_no_object_is_the_servers_fault() -> None:
    bench = Showing()
    exchange = bench.about("get", bench.made())
    [sent] = bench.take_sent()
    bench.result(sent["id"], [5])
    assert bridge_error(-32603, "invalid_upstream_message")(bench.answer(exchange))


def test_task_that_the_server_forgot_is_told_as_the_server_tells_it() -> None:
    bench = Showing()
    exchange = bench.about("get", bench.made())
    [sent] = bench.take_sent()
    bench.error(sent["id"], -32602, "Task has expired")
    assert bench.answer(exchange)["error"] == {"code": -32602, "message": "Task has expired"}


def test_oldest_of_too_many_tasks_can_still_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_tasks, "MOST_TASKS", 1)
    bench = Showing()
    shown = bench.made()
    other = bench.call(2, can=KNOWS)
    [sent] = bench.take_sent()
    bench.result(sent["id"], {"task": {**task(), "taskId": "u"}})
    assert bench.answer(other)["result"]["taskId"] != shown
    assert bench.answer(bench.got(shown))["result"] == {**C, **flat(shown), **SI}


def test_client_that_gave_up_is_not_told_of_the_end() -> None:
    bench = Showing()
    exchange = bench.got(bench.made(), status="completed")
    waiting = bench.waiting()
    bench.close(exchange)
    bench.result(waiting, DONE)
    assert bench.down(exchange) == []


def test_two_who_ask_for_the_end_are_told_of_one() -> None:
    bench = Showing()
    shown = bench.made()
    first = bench.got(shown, status="completed")
    waiting = bench.waiting()
    second = bench.got(shown, status="completed")
    assert bench.take_sent() == []
    bench.result(waiting, DONE)
    assert bench.answer(first) == bench.answer(second)


@pytest.mark.crossing("T7")
@pytest.mark.spec("SP-3", "TK-5")
@pytest.mark.parametrize("method", ["get", "update", "cancel"])
def test_task_of_another_principal_is_not_found(method: str) -> None:
    bench = Showing()
    shown = bench.made(subject="ann")
    exchange = bench.about(method, shown, subject="bob")
    assert bridge_error(-32602, "unknown_task")(bench.answer(exchange))
    assert bench.take_sent() == []
    asked = about(method, shown)
    assert bench.ids.find(asked, "ann") == "home"
    assert isinstance(bench.ids.find(asked, "bob"), Response)


@pytest.mark.parametrize(
    "shown", ["t", 5, "plain:{}", 'plain:["task","other","r1","session-1","t",null]', ""]
)
def test_id_that_the_bridge_did_not_make_is_not_found(shown: Any) -> None:
    bench = Showing()
    bench.made()
    assert bridge_error(-32602, "unknown_task")(bench.answer(bench.about("get", shown)))


@pytest.mark.spec("TK-10")
def test_task_is_found_where_it_was_made_while_that_is_there() -> None:
    bench = Showing()
    asked = about("get", bench.made())
    assert bench.ids.find(asked, "ann") == "home"
    bench.lose()
    assert isinstance(bench.ids.find(asked, "ann"), Response)
    assert bench.ids.find(request(1, "tools/call"), "ann") is None


def test_task_of_another_replica_is_said_to_be_there() -> None:
    bench = Showing()
    asked = about("get", bench.made())
    other: TaskIds[str] = TaskIds(PlainSeal(), upstream="up", replica="r2", mint=str)
    assert other.find(asked, "ann") == Elsewhere("r1")


# --- questions of shown tasks ---


@pytest.mark.spec("TK-4", "TK-8", "TK-10")
def test_questions_of_a_task_are_shown_and_answered_under_keys_of_their_own() -> None:
    bench = Showing()
    shown = bench.made()
    exchange = bench.got(shown, status="input_required")
    waiting = bench.waiting()
    assert bench.down(exchange) == []
    bench.question(0, params={**EL, "_meta": RELATED})
    bench.question("0", "roots/list", {"_meta": RELATED})
    assert bench.down(exchange) == []
    bench.clock.advance(bench.terms.coalesce)
    wanted = {"in-1": {"method": "elicitation/create", "params": EL}, "in-2": {"method": "roots/list"}}
    expected = {**C, **flat(shown, "input_required", inputRequests=wanted), **SI}
    assert bench.answer(exchange)["result"] == expected

    update = bench.about("update", shown, more={"inputResponses": {"in-2": {"roots": []}, "zz": 1}})
    assert bench.take_sent() == [{"id": "0", "result": {"roots": [], "_meta": RELATED}}]
    assert bench.answer(update)["result"] == {**C, **SI}
    again = bench.got(shown, status="input_required")
    assert bench.answer(again)["result"]["inputRequests"] == {"in-1": wanted["in-1"]}
    assert bench.take_sent() == []

    bench.about(
        "update", shown, more={"inputResponses": {"in-1": {"action": "cancel", "resultType": "complete"}}}
    )
    assert bench.take_sent() == [{"id": 0, "result": {"action": "cancel", "_meta": RELATED}}]
    bench.question(1, params={**EL, "_meta": RELATED})
    third = bench.got(shown, status="input_required")
    assert set(bench.answer(third)["result"]["inputRequests"]) == {"in-3"}
    bench.result(waiting, DONE)
    assert bench.take_sent() == []


def test_task_that_wants_input_and_asks_nothing_works() -> None:
    bench = Showing()
    shown = bench.made()
    exchange = bench.got(shown, status="input_required")
    bench.clock.advance(2)
    assert bench.answer(exchange)["result"] == {**C, **flat(shown), **SI}


def test_question_that_the_server_withdrew_is_not_shown() -> None:
    bench = Showing()
    shown = bench.made()
    bench.question(0, params={**EL, "_meta": RELATED})
    bench.question(1, params={**EL, "_meta": RELATED})
    bench.note("cancelled", {"requestId": 0})
    exchange = bench.got(shown, status="input_required")
    assert set(bench.answer(exchange)["result"]["inputRequests"]) == {"in-2"}


@pytest.mark.parametrize("given", [5, None, {"in-1": {"content": {}}}])
def test_answers_in_a_wrong_shape_are_refused_and_change_nothing(given: object) -> None:
    bench = Showing()
    shown = bench.made()
    bench.question(0, params={**EL, "_meta": RELATED})
    update = bench.about("update", shown, more={"inputResponses": given})
    assert bridge_error(-32602, "invalid_input_responses")(bench.answer(update))
    assert bench.take_sent() == []
    exchange = bench.got(shown, status="input_required")
    assert "in-1" in bench.answer(exchange)["result"]["inputRequests"]


def test_client_is_not_asked_what_it_did_not_declare() -> None:
    bench = Showing()
    shown = bench.made(can='{"extensions":{"io.modelcontextprotocol/tasks":{}}}')
    bench.question(0, "sampling/createMessage", {"messages": [], "_meta": RELATED})
    [refused] = bench.take_sent()
    assert (refused["id"], refused["error"]["code"]) == (0, -32601)
    exchange = bench.got(shown)
    assert "inputRequests" not in bench.answer(exchange)["result"]


def test_question_of_no_task_belongs_to_a_call() -> None:
    bench = Showing()
    bench.made()
    exchange = bench.call(3, tool="f")
    bench.take_sent()
    bench.question(0)
    bench.clock.advance(bench.terms.coalesce)
    requests, _ = bench.asked(exchange)
    assert requests == {"in-1": {"method": "elicitation/create", "params": EL}}


@pytest.mark.spec("TK-4")
def test_question_of_a_task_that_is_over_gets_an_answer() -> None:
    bench = Showing()
    shown = bench.made()
    bench.question(0, params={**EL, "_meta": RELATED})
    bench.got(shown, status="cancelled")
    assert bench.take_sent() == [{"id": 0, "result": {"action": "cancel", "_meta": RELATED}}]


# --- cancelling shown tasks ---


@pytest.mark.spec("TK-9")
def test_cancelled_task_is_acknowledged_with_nothing() -> None:
    bench = Showing()
    shown = bench.made()
    exchange = bench.about("cancel", shown)
    [sent] = bench.take_sent()
    assert (sent["method"], sent["params"]) == ("tasks/cancel", {"taskId": "t"})
    bench.result(sent["id"], task("cancelled"))
    assert bench.answer(exchange)["result"] == {**C, **SI}


@pytest.mark.parametrize("known", [True, False])
def test_task_that_is_over_is_cancelled_well_and_an_unknown_one_is_not(known: bool) -> None:
    """The server has one code for both."""
    bench = Showing()
    exchange = bench.about("cancel", bench.made())
    [sent] = bench.take_sent()
    bench.error(sent["id"], -32602, "Cannot cancel task")
    [looked] = bench.take_sent()
    assert looked["method"] == "tasks/get"
    if known:
        bench.result(looked["id"], task("completed"))
        assert bench.answer(exchange)["result"] == {**C, **SI}
    else:
        bench.error(looked["id"], -32602, "Task not found")
        assert bench.answer(exchange)["error"] == {"code": -32602, "message": "Cannot cancel task"}


def test_client_that_waits_no_more_cancels_no_task() -> None:
    bench = Showing()
    shown = bench.made()
    exchange = bench.about("get", shown)
    [sent] = bench.take_sent()
    bench.close(exchange)
    assert bench.take_sent() == [{"method": "notifications/cancelled", "params": {"requestId": sent["id"]}}]
    other = bench.about("get", shown)
    bench.rise(Left(other.party))
    methods = [one["method"] for one in bench.take_sent()]
    assert methods == ["tasks/get", "notifications/cancelled"]


def test_lost_server_is_told_to_who_waits_for_a_task() -> None:
    bench = Showing()
    shown = bench.made()
    wanting, looking = bench.got_later(shown), bench.about("get", shown)
    bench.lose()
    assert bridge_error(-32603, "upstream_lost")(bench.answer(looking))
    assert bridge_error(-32603, "upstream_lost")(bench.answer(wanting))
    assert not bench.layer.busy
    assert not bench.clock.waiting


def test_session_is_kept_for_a_task_as_long_as_it_may_live() -> None:
    bench = Showing()
    bench.made()
    bench.clock.advance(59)
    assert bench.layer.busy
    bench.clock.advance(2)
    assert not bench.layer.busy


# --- listening for tasks ---


def test_task_is_told_to_who_listens_for_it_by_the_id_that_it_knows() -> None:
    bench = Showing()
    shown = bench.made()
    stream = bench.ask("L", "subscriptions/listen", {"notifications": {"taskIds": [shown, "no"]}}, can=KNOWS)
    acknowledged = {"_meta": {SID: "L"}, "notifications": {"taskIds": [shown]}}
    assert bench.down(stream) == [
        {"method": "notifications/subscriptions/acknowledged", "params": acknowledged}
    ]
    bench.note("tasks/status", task(statusMessage="half", _meta=RELATED))
    told = {**flat(shown, statusMessage="half"), "_meta": {SID: "L"}}
    assert bench.down(stream) == [{"method": "notifications/tasks", "params": told}]
    bench.note("tasks/status", task("completed"))
    bench.result(bench.waiting(), DONE)
    ended = flat(shown, "completed", result={**DONE, **C})
    assert bench.down(stream) == [{"method": "notifications/tasks", "params": {**ended, "_meta": {SID: "L"}}}]


def test_task_that_nobody_listens_for_is_told_to_nobody() -> None:
    bench = Showing()
    bench.made()
    bench.note("tasks/status", task("completed"))
    assert bench.take_sent() == []
    assert bench.fallen == []


@pytest.mark.spec("TK-11")
def test_listening_for_tasks_takes_that_the_client_knows_them() -> None:
    bench = Showing()
    shown = bench.made()
    stream = bench.ask("L", "subscriptions/listen", {"notifications": {"taskIds": [shown]}})
    error = bench.answer(stream)["error"]
    assert (error["code"], error["data"]) == (-32021, {"requiredCapabilities": {"extensions": {TASKS: {}}}})
