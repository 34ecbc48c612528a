"""A legacy session on a modern server: how it is opened, what goes out as what, and what comes back."""

from __future__ import annotations

import json

import pytest

from bridge.core import message
from bridge.core.events import Noted, Question, Questioned
from crossing.bench import EVERYTHING, PREFIX, SI, Json
from crossing.legacy import (
    QUIET,
    R1,
    R2,
    R3,
    R4,
    TASKS,
    Crossed,
    bridges,
    discovery,
    envelope,
    initialize,
    opened,
    required,
)

# --- opening ---


@pytest.mark.crossing("J1")
@pytest.mark.spec("EV-12")
def test_the_session_is_opened_from_the_servers_discovery_asked_as_the_client() -> None:
    crossed = Crossed()
    crossed.ask("initialize", initialize(R4, {"elicitation": {"form": {}}}), own=0)
    asked = crossed.hears("server/discover")
    assert asked["params"] == {"_meta": envelope({"elicitation": {"form": {}}})}
    assert crossed.silent


@pytest.mark.crossing("J2")
@pytest.mark.case("RV-02")
def test_the_client_is_told_what_the_server_is_and_can_but_tasks() -> None:
    crossed = Crossed()
    crossed.ask("initialize", initialize(), own=0)
    capabilities = {"tools": {"listChanged": True}, "x-v": {"k": 1}, "extensions": {TASKS: {}, "e/x": {}}}
    crossed.answers(crossed.hears(), discovery(capabilities, instructions="hi"))
    assert crossed.sees() == {
        "id": 0,
        "result": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {"listChanged": True}, "x-v": {"k": 1}, "extensions": {"e/x": {}}},
            "serverInfo": {"name": "up", "version": "9"},
            "instructions": "hi",
        },
    }
    assert crossed.silent


@pytest.mark.crossing("J3")
@pytest.mark.parametrize(
    ("offered", "answered"), [("2025-03-26", "2025-03-26"), ("2099-01-01", "2025-11-25"), (R1, R1), (R3, R3)]
)
def test_the_revision_is_the_offered_one_if_it_is_a_legacy_one(offered: str, answered: str) -> None:
    crossed = Crossed()
    crossed.ask("initialize", initialize(offered))
    crossed.answers(crossed.hears(), discovery())
    assert crossed.result()["protocolVersion"] == answered


@pytest.mark.spec("FT-12")
def test_the_oldest_revision_has_no_flag_for_completions() -> None:
    crossed = Crossed()
    crossed.ask("initialize", initialize(R1))
    crossed.answers(crossed.hears(), discovery({"completions": {}, "prompts": {}}))
    assert crossed.result()["capabilities"] == {"prompts": {}}


@pytest.mark.crossing("J4")
def test_a_server_without_a_name_has_that_of_its_upstream() -> None:
    crossed = Crossed(name="files")
    crossed.ask("initialize", initialize())
    crossed.answers(crossed.hears(), discovery() | {"_meta": {}})
    assert crossed.result()["serverInfo"] == {"name": "files", "version": "0"}


@pytest.mark.crossing("J5")
@pytest.mark.spec("LC-15", "EV-15")
def test_a_server_without_a_common_version_is_refused_in_the_clients_words() -> None:
    crossed = Crossed()
    crossed.ask("initialize", initialize())
    data = {"supported": ["2030-01-01"], "requested": "2026-07-28"}
    crossed.refuses(crossed.hears(), -32022, "Unsupported protocol version", data)
    assert crossed.error() == {
        "code": -32602,
        "message": "Unsupported protocol version",
        "data": {"supported": ["2030-01-01"], "requested": "2025-11-25"},
    }
    crossed.tell("initialized")
    assert crossed.silent


def test_a_discovery_of_other_versions_only_is_no_session_either() -> None:
    crossed = Crossed()
    crossed.ask("initialize", initialize())
    crossed.answers(crossed.hears(), discovery(supportedVersions=["2030-01-01"]))
    assert crossed.error()["data"] == {"supported": ["2030-01-01"], "requested": "2025-11-25"}


@pytest.mark.parametrize("found", [[], {"resultType": "input_required", "requestState": "z"}, {"_meta": 1}])
def test_a_discovery_that_is_none_ends_in_an_error(found: object) -> None:
    crossed = Crossed()
    crossed.ask("initialize", initialize())
    crossed.answers(crossed.hears(), found)
    assert bridges(crossed.error()) == "invalid_result_type"
    crossed.ask("tools/list")
    assert crossed.error()["code"] == -32602
    assert crossed.silent


def test_a_server_that_cannot_be_reached_opens_no_session() -> None:
    crossed = Crossed()
    crossed.ask("initialize", initialize())
    crossed.breaks(crossed.hears())
    assert bridges(crossed.error()) == "upstream_lost"
    crossed.ask("tools/list")
    assert crossed.error()["code"] == -32602


@pytest.mark.parametrize(
    "params", [None, {}, {"protocolVersion": 1}, {"protocolVersion": R4, "capabilities": 3}]
)
def test_initialize_without_what_it_needs_is_refused_and_asks_nobody(params: Json | None) -> None:
    crossed = Crossed()
    crossed.ask("initialize", params)
    assert crossed.error()["code"] == -32602
    assert crossed.silent


@pytest.mark.crossing("J6")
@pytest.mark.spec("FT-13")
def test_capabilities_that_no_modern_client_has_are_not_declared() -> None:
    crossed = Crossed()
    crossed.ask("initialize", initialize(R4, {"roots": {"listChanged": True}, "tasks": {}}))
    assert crossed.hears()["params"]["_meta"] == envelope({"roots": {}})


def test_a_client_may_initialize_anew_and_is_another_then() -> None:
    crossed = opened(server=EVERYTHING)
    listen = crossed.hears("subscriptions/listen")
    crossed.ask("logging/setLevel", {"level": "debug"})
    assert crossed.result() == {}
    crossed.ask("initialize", initialize(R2, {"roots": {}}))
    crossed.hears_cancelled(listen)
    crossed.answers(crossed.hears("server/discover"), discovery(QUIET))
    assert crossed.result()["protocolVersion"] == R2
    crossed.call()
    assert crossed.hears("tools/call")["params"]["_meta"] == envelope({"roots": {}})


def test_an_opening_that_the_client_gives_up_is_not_answered() -> None:
    crossed = Crossed()
    asked = crossed.ask("initialize", initialize())
    crossed.cancel(asked)
    discover = crossed.hears("server/discover")
    crossed.hears_cancelled(discover)
    crossed.answers(discover, discovery())
    assert crossed.silent


# --- requests out ---


@pytest.mark.crossing("J7")
@pytest.mark.spec("OT-2", "OT-5")
def test_the_envelope_is_the_bridges_and_the_token_the_clients_own_again_when_it_comes_back() -> None:
    crossed = opened()
    meta = {
        "progressToken": 5,
        "traceparent": "00-x",
        f"{PREFIX}clientInfo": {"name": "liar", "version": "0"},
    }
    asked = crossed.call("a", _meta=meta)
    heard = crossed.hears("tools/call")
    token = heard["params"]["_meta"].pop("progressToken")
    assert heard["params"] == {
        "name": "a",
        "arguments": {},
        "_meta": envelope({}, traceparent="00-x"),
    }
    assert token != 5
    crossed.says({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
    note, carrier = crossed.sees_on("notifications/progress")
    assert note["params"] == {"progressToken": 5, "progress": 1}
    assert carrier is asked


def test_arguments_travel_as_they_are_written() -> None:
    crossed = opened()
    arguments = b'{"b":1e5,"a":9007199254740993,"c":1.10,"d":1E400}'
    crossed.ask_raw("tools/call", b'{"name":"a","arguments":%b}' % arguments)
    assert arguments in crossed.lines[-1]
    crossed.hear(
        b'{"jsonrpc":"2.0","id":%d,"result":{"content":[],"z":1E400,"k":-0}}' % crossed.hears()["id"]
    )
    assert b'"result":{"content":[],"z":1E400,"k":-0}' in crossed.shown[-1]


@pytest.mark.spec("TK-6")
def test_what_would_make_a_legacy_task_is_left_out() -> None:
    crossed = opened()
    crossed.call(task={"ttl": 1})
    assert "task" not in crossed.hears("tools/call")["params"]


def test_a_request_without_params_gets_an_envelope_all_the_same() -> None:
    crossed = opened()
    crossed.ask("vendor/do")
    assert crossed.hears("vendor/do")["params"] == {"_meta": envelope({})}


def test_params_that_are_no_object_are_refused() -> None:
    crossed = opened()
    crossed.ask_raw("tools/list", b"[1]")
    assert crossed.error()["code"] == -32602
    assert crossed.silent


@pytest.mark.crossing("J31")
def test_a_client_that_cannot_be_asked_declares_nothing_for_that_request() -> None:
    crossed = opened(capabilities={"roots": {}, "elicitation": {"form": {}}})
    crossed.call(askable=False)
    assert crossed.hears()["params"]["_meta"] == envelope({})
    crossed.call()
    assert crossed.hears()["params"]["_meta"] == envelope({"roots": {}, "elicitation": {"form": {}}})


@pytest.mark.crossing("J9")
def test_the_log_level_is_kept_here_and_sent_with_every_request() -> None:
    crossed = opened()
    crossed.ask("logging/setLevel", {"level": "warning"})
    assert crossed.result() == {}
    assert crossed.silent
    crossed.call()
    heard = crossed.hears()
    assert heard["params"]["_meta"] == envelope({}, **{f"{PREFIX}logLevel": "warning"})
    crossed.ask("logging/setLevel", {"level": "loud"})
    assert crossed.error()["code"] == -32602
    crossed.ask("logging/setLevel", {})
    assert crossed.error()["code"] == -32602
    crossed.call()
    assert crossed.hears()["params"]["_meta"][f"{PREFIX}logLevel"] == "warning"


def test_a_log_message_goes_with_the_request_that_asked_for_them() -> None:
    crossed = opened()
    crossed.ask("logging/setLevel", {"level": "info"})
    crossed.result()
    asked = crossed.call()
    crossed.says({"method": "notifications/message", "params": {"level": "info", "data": "x"}})
    _, carrier = crossed.sees_on("notifications/message")
    assert carrier is asked


@pytest.mark.crossing("J10")
def test_without_a_level_no_request_asks_for_logs() -> None:
    crossed = opened(server=EVERYTHING)
    for method in ("tools/call", "prompts/get", "tools/list", "vendor/x"):
        crossed.ask(method, {"name": "a"})
    crossed.ask("resources/subscribe", {"uri": "file:///a"})
    crossed.clock.advance(1)
    heard = list(crossed.heard)
    assert len(heard) >= 5
    assert not any("logLevel" in json.dumps(one) for one in heard)


@pytest.mark.crossing("J11")
@pytest.mark.case("RV-02")
def test_ping_is_answered_here() -> None:
    crossed = opened()
    crossed.ask("ping", own=7)
    assert crossed.sees() == {"id": 7, "result": {}}
    assert crossed.silent


@pytest.mark.crossing("J43")
@pytest.mark.spec("CP-11", "FT-13")
@pytest.mark.parametrize("method", ["roots/list_changed", "progress", "vendor/x", "initialized"])
def test_what_a_legacy_client_tells_stays_here(method: str) -> None:
    crossed = opened()
    crossed.tell(method)
    assert crossed.silent


@pytest.mark.spec("LC-10", "EV-19", "TK-9")
@pytest.mark.parametrize(
    "method", ["tasks/get", "tasks/list", "tasks/result", "server/discover", "subscriptions/listen"]
)
def test_what_was_not_offered_is_unknown(method: str) -> None:
    crossed = opened()
    crossed.ask(method)
    assert crossed.error()["code"] == -32601
    assert crossed.silent


@pytest.mark.crossing("J44")
def test_a_request_before_initialize_is_refused_but_ping() -> None:
    crossed = Crossed()
    for method in ("tools/list", "resources/subscribe"):
        crossed.ask(method, {"uri": "file:///a"})
        assert crossed.error()["code"] == -32602
    crossed.ask("ping")
    assert crossed.result() == {}
    assert crossed.silent


def test_what_comes_while_the_session_opens_is_passed_on() -> None:
    crossed = Crossed()
    crossed.ask("initialize", initialize())
    crossed.tell("initialized")
    crossed.ask("tools/list")
    discover = crossed.hears("server/discover")
    crossed.answers(crossed.hears("tools/list"), {"tools": []})
    assert crossed.result() == {"tools": []}
    crossed.answers(discover, discovery(EVERYTHING))
    crossed.result()
    crossed.hears("subscriptions/listen")


@pytest.mark.parametrize("fresh", [True, False])
def test_no_id_is_ever_used_twice(fresh: bool) -> None:
    crossed = opened(capabilities={"roots": {}}, fresh=fresh)
    used = []
    for _ in range(3):
        crossed.call(own=1)
        heard = crossed.hears()
        crossed.answers(heard, required("z", r={"method": "roots/list"}))
        crossed.reply(crossed.sees("roots/list"), {"roots": []})
        again = crossed.hears()
        crossed.answers(again, {"content": []})
        assert crossed.sees()["id"] == 1
        used += [heard["id"], again["id"]]
    assert len(set(used)) == 6


# --- results back ---


@pytest.mark.crossing("J8")
@pytest.mark.case("RV-02")
def test_what_a_legacy_result_does_not_have_is_taken_off() -> None:
    crossed = opened()
    crossed.ask("tools/list")
    result = {
        "tools": [{"name": "a", "x-v": 1}],
        "resultType": "complete",
        "ttlMs": 5,
        "cacheScope": "public",
    }
    crossed.answers(crossed.hears(), result | SI)
    assert crossed.result() == {"tools": [{"name": "a", "x-v": 1}]}


@pytest.mark.spec("G-10")
def test_a_result_without_a_type_is_complete() -> None:
    crossed = opened()
    crossed.ask("tools/list")
    crossed.answers(crossed.hears(), {"tools": [], "_meta": {"k": 1}})
    assert crossed.result() == {"tools": [], "_meta": {"k": 1}}


@pytest.mark.crossing("J41")
@pytest.mark.spec("G-10")
@pytest.mark.parametrize("found", [{"resultType": "weird"}, {"resultType": "task", "taskId": "t"}, 7])
def test_a_result_of_an_unknown_type_is_an_error(found: object) -> None:
    crossed = opened()
    crossed.call()
    crossed.answers(crossed.hears(), found)
    error = crossed.error()
    assert error["code"] == -32603
    assert bridges(error) == "invalid_result_type"


@pytest.mark.crossing("J38")
def test_structured_content_that_is_no_object_becomes_text() -> None:
    crossed = opened()
    for content in ([], [{"type": "text", "text": "[1, 2]"}]):
        crossed.call()
        crossed.answers(crossed.hears(), {"content": content, "structuredContent": [1, 2]})
        assert crossed.result() == {"content": content or [{"type": "text", "text": "[1,2]"}]}


@pytest.mark.crossing("J38")
def test_an_output_schema_of_no_object_is_left_out() -> None:
    crossed = opened(R3)
    crossed.ask("tools/list")
    tool: Json = {"name": "a", "inputSchema": {"type": "object"}}
    array, kept = {"outputSchema": {"type": "array"}}, {"outputSchema": {"type": "object"}}
    crossed.answers(crossed.hears(), {"tools": [tool | array, tool | kept]})
    assert crossed.result() == {"tools": [tool, tool | kept]}


@pytest.mark.crossing("J39")
def test_a_link_to_a_resource_is_text_for_an_old_client() -> None:
    crossed = opened(R2)
    crossed.call()
    link = {"type": "resource_link", "uri": "file:///a", "name": "A"}
    crossed.answers(crossed.hears(), {"content": [link]})
    assert crossed.result() == {"content": [{"type": "text", "text": "A\nfile:///a"}]}


@pytest.mark.crossing("J42")
def test_a_tool_with_invalid_header_annotations_can_be_called_where_there_are_no_headers() -> None:
    crossed = opened()
    crossed.ask("tools/list")
    schema: Json = {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "no token"}}}
    tool: Json = {"name": "bad", "inputSchema": schema}
    crossed.answers(crossed.hears(), {"tools": [tool], "resultType": "complete"})
    assert crossed.result() == {"tools": [tool]}


# --- errors ---


@pytest.mark.crossing("J32")
def test_an_unknown_method_stays_one() -> None:
    crossed = opened()
    crossed.ask("vendor/x", own=4)
    crossed.refuses(crossed.hears(), -32601, "Method not found")
    assert crossed.sees() == {"id": 4, "error": {"code": -32601, "message": "Method not found"}}


@pytest.mark.crossing("J33")
def test_a_resource_that_is_not_there_has_the_legacy_code() -> None:
    crossed = opened()
    crossed.ask("resources/read", {"uri": "file:///x"})
    crossed.refuses(crossed.hears(), -32602, "nf", {"uri": "file:///x", "k": 1})
    assert crossed.error() == {"code": -32002, "message": "nf", "data": {"uri": "file:///x", "k": 1}}
    crossed.ask("resources/read", {"uri": "file:///x"})
    crossed.refuses(crossed.hears(), -32602, "bad")
    assert crossed.error() == {"code": -32602, "message": "bad"}


@pytest.mark.crossing("J34")
def test_headers_that_do_not_match_after_all_are_the_bridges_fault() -> None:
    crossed = opened()
    crossed.call()
    crossed.refuses(crossed.hears(), -32020, "Header mismatch")
    error = crossed.error()
    assert error["code"] == -32603
    assert bridges(error) == "header_mismatch"


@pytest.mark.spec("EV-10")
def test_a_version_refused_after_the_handshake_is_an_error() -> None:
    crossed = opened()
    crossed.call()
    crossed.refuses(crossed.hears(), -32022, "no", {"supported": ["2030-01-01"], "requested": "2026-07-28"})
    error = crossed.error()
    assert error["code"] == -32603
    assert bridges(error) == "version"


@pytest.mark.parametrize("code", [-32021, -32603, -32000, 7, -32042])
def test_other_errors_pass_as_they_are(code: int) -> None:
    crossed = opened()
    crossed.call()
    crossed.refuses(crossed.hears(), code, "mine", {"requiredCapabilities": {"roots": {}}})
    expected = {"code": code, "message": "mine", "data": {"requiredCapabilities": {"roots": {}}}}
    assert crossed.error() == expected


# --- cancellation, loss ---


@pytest.mark.crossing("J36")
def test_a_cancelled_call_is_cancelled_at_the_server_and_never_answered() -> None:
    crossed = opened()
    asked = crossed.call()
    heard = crossed.hears()
    crossed.cancel(asked)
    crossed.hears_cancelled(heard)
    crossed.answers(heard, {"content": []})
    assert crossed.silent


@pytest.mark.crossing("J37")
def test_a_read_whose_stream_broke_is_sent_once_more_and_a_call_is_not() -> None:
    crossed = opened()
    crossed.call()
    crossed.breaks(crossed.hears())
    assert bridges(crossed.error()) == "upstream_lost"
    crossed.ask("tools/list", {"cursor": "c"})
    first = crossed.hears("tools/list")
    crossed.breaks(first)
    second = crossed.hears("tools/list")
    assert second["params"] == first["params"]
    assert second["id"] != first["id"]
    crossed.answers(second, {"tools": []})
    assert crossed.result() == {"tools": []}


@pytest.mark.crossing("J37")
@pytest.mark.parametrize(
    "method",
    [
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "prompts/get",
        "resources/read",
        "completion/complete",
    ],
)
def test_a_read_that_breaks_twice_is_an_error(method: str) -> None:
    crossed = opened()
    crossed.ask(method, {"name": "a", "uri": "u"})
    crossed.breaks(crossed.hears(method))
    crossed.breaks(crossed.hears(method))
    assert bridges(crossed.error()) == "upstream_lost"
    assert crossed.silent


def test_an_error_of_the_servers_own_is_not_tried_again() -> None:
    crossed = opened()
    crossed.ask("tools/list")
    crossed.refuses(crossed.hears(), -32603, "broken", {"reason": "upstream_lost"})
    assert crossed.error()["message"] == "broken"
    assert crossed.silent


@pytest.mark.crossing("J46")
def test_the_servers_refusal_to_know_the_bridge_passes_as_an_error() -> None:
    crossed = opened()
    crossed.ask("tools/list")
    data = {"origin": "bridge", "reason": "upstream_auth", "httpStatus": 401}
    crossed.refuses(crossed.hears(), -32603, "The server answered HTTP 401", data)
    error = crossed.error()
    assert (error["code"], bridges(error)) == (-32603, "upstream_auth")


def test_a_lost_server_answers_everything_once() -> None:
    crossed = opened(capabilities={"roots": {}}, server=EVERYTHING)
    crossed.hears("subscriptions/listen")
    crossed.call(own="asked")
    crossed.answers(crossed.hears(), required("z", r={"method": "roots/list"}))
    crossed.sees("roots/list")
    crossed.call(own="waiting")
    crossed.answers(crossed.hears(), required("z"))
    crossed.ask("tools/list", own="read")
    crossed.call(own="call")
    crossed.ask("resources/subscribe", {"uri": "file:///a"}, own="subscribe")
    crossed.heard.clear()
    crossed.die()
    lost = [crossed.sees() if "id" in one else crossed.sees(one["method"]) for one in list(crossed.seen)]
    answers = {one["id"]: bridges(one["error"]) for one in lost if "error" in one}
    assert answers == dict.fromkeys(["asked", "waiting", "read", "call", "subscribe"], "upstream_lost")
    assert not crossed.clock.waiting
    assert not crossed.party.questions


def test_a_session_that_ends_stops_everything_and_says_nothing() -> None:
    crossed = opened(capabilities={"roots": {}}, server=EVERYTHING)
    listen = crossed.hears("subscriptions/listen")
    crossed.call()
    heard = crossed.hears()
    crossed.call()
    crossed.answers(crossed.hears(), required("z", r={"method": "roots/list"}))
    crossed.sees("roots/list")
    crossed.leave()
    gone = {crossed.hears("notifications/cancelled")["params"]["requestId"] for _ in range(2)}
    assert gone == {listen["id"], heard["id"]}
    assert crossed.silent
    assert not crossed.clock.waiting


def test_a_server_may_not_ask() -> None:
    crossed = opened(capabilities={"roots": {}})
    asked = message.request(1, "roots/list")
    assert list(crossed.layer.down(Questioned(Question(asked), asked))) == []


def test_a_notification_that_is_nobodys_is_dropped() -> None:
    crossed = opened()
    note = message.notification("vendor/x")
    assert list(crossed.layer.down(Noted(crossed.layer.behind, None, note))) == []


def test_the_progress_of_a_second_round_does_not_go_back() -> None:
    crossed = opened(capabilities={"roots": {}})
    crossed.call(_meta={"progressToken": "t"})
    first = crossed.hears()
    crossed.progresses(first, 3)
    crossed.answers(first, required("z", r={"method": "roots/list"}))
    assert crossed.sees("notifications/progress")["params"]["progress"] == 3
    crossed.reply(crossed.sees("roots/list"), {"roots": []})
    second = crossed.hears()
    for progress in (1, 3, 4):
        crossed.progresses(second, progress)
    assert crossed.sees("notifications/progress")["params"] == {"progressToken": "t", "progress": 4}
    assert crossed.silent
