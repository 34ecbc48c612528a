"""What of a modern request reaches a legacy server, and what of its answer comes back."""

from __future__ import annotations

import pytest

from bridge.core.events import Party, Told
from bridge.core.message import Id, notification
from bridge.era.opened import Opened
from bridge.era.terms import Terms
from crossing.bench import C0, EL, SI, Bench, C, Json, bridge_error, opened_of

WINDOW = Terms().coalesce
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def discovered(bench: Bench) -> Json:
    result: Json = bench.answer(bench.ask(1, "server/discover", can="{}"))["result"]
    assert bench.take_sent() == []
    return result


# --- discovery ---


@pytest.mark.crossing("A2")
def test_discovery_is_answered_from_the_handshake() -> None:
    capabilities = {"tools": {"listChanged": True}, "tasks": {}, "x-v": {"k": 1}}
    bench = Bench(opened=opened_of(capabilities=capabilities, instructions="hi"))
    assert discovered(bench) == {
        **C0,
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {"listChanged": True}, "x-v": {"k": 1}},
        "instructions": "hi",
        **SI,
    }


def oldest(capabilities: Json) -> Opened:
    return opened_of("2024-11-05", capabilities)


@pytest.mark.crossing("A13")
@pytest.mark.spec("FT-12")
def test_completions_of_the_oldest_revision_are_offered_until_they_are_refused() -> None:
    bench = Bench(opened=oldest({"prompts": {}}))
    assert discovered(bench)["capabilities"] == {"prompts": {}, "completions": {}}
    asked = bench.ask(2, "completion/complete", {"ref": {"type": "ref/prompt", "name": "p"}})
    [sent] = bench.take_sent()
    bench.error(sent["id"], -32601)
    assert bench.answer(asked)["error"]["code"] == -32601
    assert discovered(bench)["capabilities"] == {"prompts": {}}


@pytest.mark.crossing("A14")
def test_client_that_opens_pages_only_is_not_asked_to_fill_in_a_form() -> None:
    bench = Bench(opened=opened_of("2025-06-18"), declared='{"elicitation":{"url":{}}}')
    exchange, _ = bench.running(can='{"elicitation":{"url":{}}}')
    bench.question(0, params=EL)
    [sent] = bench.take_sent()
    assert (sent["id"], sent["error"]["code"]) == (0, -32602)
    bench.clock.advance(WINDOW)
    assert bench.down(exchange) == []


@pytest.mark.crossing("A15")
@pytest.mark.spec("LC-15")
def test_failure_after_a_refusal_names_the_capability() -> None:
    bench = Bench()
    exchange, hop_id = bench.running(can="{}")
    bench.question(0, "sampling/createMessage", {})
    [sent] = bench.take_sent()
    assert (sent["id"], sent["error"]["code"]) == (0, -32601)
    bench.result(hop_id, {"content": [], "isError": True})
    error = bench.answer(exchange)["error"]
    assert error["code"] == -32021
    assert error["data"] == {"requiredCapabilities": {"sampling": {}}}


@pytest.mark.crossing("A16")
def test_success_after_a_refusal_is_a_success() -> None:
    bench = Bench()
    exchange, hop_id = bench.running(can="{}")
    bench.question(0, "sampling/createMessage", {})
    bench.take_sent()
    bench.result(hop_id, {"content": []})
    assert bench.answer(exchange) == {"result": {"content": [], **C, **SI}}


def test_loss_of_the_server_after_a_refusal_is_told_as_what_it_is() -> None:
    bench = Bench()
    exchange, _ = bench.running(can="{}")
    bench.question(0)
    bench.take_sent()
    bench.lose()
    assert bridge_error(-32603, "upstream_lost")(bench.answer(exchange))


def test_session_that_declared_less_than_the_client_still_asks_it() -> None:
    """As when the limit of upstream sessions let a request run on one with fewer capabilities."""
    bench = Bench(declared='{"elicitation":{}}')
    exchange, _ = bench.running(can='{"elicitation":{},"roots":{}}')
    bench.question(0)
    bench.clock.advance(WINDOW)
    asked, _ = bench.asked(exchange)
    assert asked == {"in-1": {"method": "elicitation/create", "params": EL}}


# --- what reaches the server ---


@pytest.mark.crossing("B1")
@pytest.mark.spec("OT-2", "OT-5")
def test_envelope_is_taken_off_and_everything_else_kept() -> None:
    bench = Bench()
    meta = {"traceparent": TRACE, "com.ex/k": 1}
    bench.ask(1, "tools/call", {"name": "a", "arguments": {}, "_meta": meta})
    [sent] = bench.take_sent()
    assert sent["params"] == {"name": "a", "arguments": {}, "_meta": meta}


@pytest.mark.crossing("B2", "B3")
@pytest.mark.parametrize(("params", "expected"), [({}, None), ({"cursor": ""}, {"cursor": ""})])
def test_params_that_held_nothing_but_the_envelope_are_left_out(params: Json, expected: Json | None) -> None:
    bench = Bench()
    bench.ask(1, "tools/list", params)
    [sent] = bench.take_sent()
    sent.pop("id")
    assert sent == {"method": "tools/list", **({} if expected is None else {"params": expected})}


@pytest.mark.crossing("B9")
@pytest.mark.spec("TK-6", "TK-9")
def test_legacy_task_field_of_a_client_is_left_out() -> None:
    bench = Bench()
    bench.call(more={"task": {"ttl": 1000}})
    [sent] = bench.take_sent()
    assert sent["params"] == {"name": "a", "arguments": {"x": 1}}


@pytest.mark.crossing("B10")
@pytest.mark.spec("G-14")
@pytest.mark.parametrize("state", [{}, {"requestState": None}])
def test_answers_without_a_state_begin_a_fresh_call(state: Json) -> None:
    bench = Bench()
    bench.call(more={"inputResponses": {"in-1": {"action": "accept"}}, **state})
    [sent] = bench.take_sent()
    assert sent["params"] == {"name": "a", "arguments": {"x": 1}}


def test_method_that_is_never_asked_back_keeps_fields_of_equal_names() -> None:
    bench = Bench()
    params = {"task": 1, "inputResponses": 2, "requestState": 3}
    bench.ask(1, "vendor/do", params)
    [sent] = bench.take_sent()
    assert sent["params"] == params


@pytest.mark.crossing("B12")
def test_arguments_travel_as_the_text_they_are() -> None:
    bench = Bench()
    arguments = b'{"b":1e5,"a":9007199254740993,"c":1.10}'
    meta = b'{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}'
    bench.ask_raw(1, "tools/call", b'{"name":"a","arguments":%b,"_meta":%b}' % (arguments, meta))
    [sent] = bench.sent
    assert b'"params":{"name":"a","arguments":%b}' % arguments in sent


@pytest.mark.spec("FT-13")
def test_notifications_of_modern_clients_have_no_place_in_a_legacy_session() -> None:
    bench = Bench()
    bench.rise(Told(Party("stdio"), notification("notifications/roots/list_changed")))
    assert bench.take_sent() == []


# --- ids ---


@pytest.mark.crossing("B4")
def test_equal_ids_of_two_clients_never_meet() -> None:
    bench = Bench()
    one = bench.ask(1, "vendor/x", {"n": 1})
    two = bench.ask(1, "vendor/x", {"n": 2})
    first, second = bench.take_sent()
    assert first["id"] != second["id"]
    bench.result(second["id"], {"n": 2})
    bench.result(first["id"], {"n": 1})
    assert bench.down(one) == [{"id": 1, "result": {"n": 1, **C, **SI}}]
    assert bench.down(two) == [{"id": 1, "result": {"n": 2, **C, **SI}}]


@pytest.mark.crossing("B5")
def test_ids_of_one_client_keep_their_types() -> None:
    bench, party = Bench(), Party("stdio")
    ids: list[Id] = [1, "1", 0]
    exchanges = [bench.ask(request_id, "vendor/x", party=party) for request_id in ids]
    for sent in reversed(bench.take_sent()):
        bench.result(sent["id"], {})
    answers = [answer["id"] for exchange in exchanges for answer in bench.down(exchange)]
    assert [(type(one), one) for one in answers] == [(int, 1), (str, "1"), (int, 0)]


@pytest.mark.crossing("B14")
def test_answer_under_an_id_that_nobody_used_is_dropped() -> None:
    bench = Bench()
    exchange, hop_id = bench.running()
    assert isinstance(hop_id, int)
    bench.result(hop_id + 1)
    bench.result(str(hop_id))
    assert bench.fallen == []
    bench.result(hop_id)
    assert "result" in bench.answer(exchange)


# --- what comes back ---


@pytest.mark.crossing("B6")
def test_legacy_server_cannot_fake_a_modern_result() -> None:
    bench = Bench()
    exchange, hop_id = bench.running()
    fake = {"resultType": "input_required", "inputRequests": {"x": {}}, "requestState": "z", "ttlMs": 9}
    bench.result(hop_id, {"content": [], **fake})
    assert bench.answer(exchange) == {"result": {"content": [], **C, **SI}}


@pytest.mark.crossing("B7")
def test_tools_are_listed_without_how_they_run() -> None:
    bench = Bench()
    exchange = bench.ask(1, "tools/list")
    [sent] = bench.take_sent()
    tool = {"name": "a", "inputSchema": {"type": "object"}, "x-v": 1}
    bench.result(
        sent["id"], {"tools": [{**tool, "execution": {"taskSupport": "optional"}}], "nextCursor": "c2"}
    )
    assert bench.answer(exchange) == {"result": {"tools": [tool], "nextCursor": "c2", **C0, **SI}}


@pytest.mark.crossing("B8")
def test_server_that_names_itself_is_left_its_name() -> None:
    bench = Bench()
    exchange, hop_id = bench.running()
    meta = {"io.modelcontextprotocol/serverInfo": {"name": "own"}, "com.ex/k": 1}
    bench.result(hop_id, {"content": [], "_meta": meta})
    assert bench.answer(exchange) == {"result": {"content": [], "_meta": meta, **C}}


@pytest.mark.crossing("B11")
def test_unknown_method_passes_and_its_result_has_no_cache_hints() -> None:
    bench = Bench()
    exchange = bench.ask(1, "vendor/do")
    [sent] = bench.take_sent()
    assert sent["method"] == "vendor/do"
    bench.result(sent["id"], {})
    assert bench.answer(exchange) == {"result": {**C, **SI}}


def test_result_that_is_no_object_is_an_error() -> None:
    bench = Bench()
    exchange, hop_id = bench.running()
    bench.result(hop_id, ["no", "object"])
    assert bridge_error(-32603, "invalid_upstream_message")(bench.answer(exchange))


# --- what is not offered ---


@pytest.mark.spec("LC-10", "EV-19")
@pytest.mark.parametrize(
    "method", ["prompts/list", "tools/call", "resources/templates/list", "completion/complete", "tasks/get"]
)
def test_what_the_server_did_not_advertise_is_not_asked_for(method: str) -> None:
    bench = Bench(opened=opened_of(capabilities={}))
    answer = bench.answer(bench.ask(1, method, {"name": "a"}))
    assert bridge_error(-32601, "not_offered")(answer)
    assert bench.take_sent() == []


def test_lenient_gate_lets_the_server_say_so_itself() -> None:
    bench = Bench(opened=opened_of(capabilities={}), terms=Terms(gate=False))
    bench.ask(1, "prompts/list")
    assert [sent["method"] for sent in bench.take_sent()] == ["prompts/list"]
