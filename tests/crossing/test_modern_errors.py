"""A legacy server's errors as modern clients get them, and arguments against their headers."""

from __future__ import annotations

import json

import pytest

from bridge.core.headers import status_of
from bridge.core.params import ToolIndex, check
from crossing.bench import SI, Bench, C, Json, bridge_error


def failed(method: str, params: Json, code: int, text: str = "nf", **data: object) -> Json:
    """What a client gets for this error of the server."""
    bench = Bench()
    exchange = bench.ask(1, method, params)
    [sent] = bench.take_sent()
    bench.error(sent["id"], code, text, **data)
    error: Json = bench.answer(exchange)["error"]
    return error


@pytest.mark.crossing("G1")
@pytest.mark.spec("ER-15")
def test_resource_that_is_not_there_is_named() -> None:
    error = failed("resources/read", {"uri": "file:///x"}, -32002)
    assert error == {"code": -32602, "message": "nf", "data": {"uri": "file:///x"}}
    assert status_of(error["code"], modern=True) == 200


@pytest.mark.crossing("G2")
@pytest.mark.spec("ER-15")
def test_tool_that_is_not_there_is_no_missing_method() -> None:
    error = failed("tools/call", {"name": "a"}, -32601)
    assert error == {"code": -32602, "message": "nf", "data": {"upstreamCode": -32601}}


@pytest.mark.crossing("G3")
def test_method_that_is_not_there_is_a_404() -> None:
    error = failed("vendor/x", {}, -32601)
    assert error["code"] == -32601
    assert status_of(error["code"], modern=True) == 404


@pytest.mark.crossing("G4")
@pytest.mark.spec("ER-12")
def test_code_that_means_something_else_now_is_kept_in_the_data() -> None:
    error = failed("tools/call", {"name": "a"}, -32050, data={"k": 1})
    expected = {"upstreamCode": -32050, "upstream": {"k": 1}}
    assert error == {"code": -32603, "message": "nf", "data": expected}


@pytest.mark.crossing("G5")
@pytest.mark.parametrize("code", [-32001, 1234, -32602])
def test_other_errors_are_unchanged_and_no_status_of_their_own(code: int) -> None:
    error = failed("tools/call", {"name": "a"}, code, "why", data={"k": 1.10})
    assert error == {"code": code, "message": "why", "data": {"k": 1.10}}
    assert status_of(error["code"], modern=True) == 200


@pytest.mark.crossing("G9")
def test_error_after_progress_comes_in_the_same_stream() -> None:
    bench = Bench()
    exchange = bench.call(token="p")
    [sent] = bench.take_sent()
    bench.note("progress", {"progressToken": sent["params"]["_meta"]["progressToken"], "progress": 1})
    bench.error(sent["id"], -32000, "no")
    progress, answer = bench.down(exchange)
    assert progress["method"] == "notifications/progress"
    assert answer["error"]["code"] == -32000


@pytest.mark.crossing("G10")
def test_failed_tool_is_a_result() -> None:
    bench = Bench()
    exchange, hop_id = bench.running()
    value = {"content": [{"type": "text", "text": "no"}], "isError": True}
    bench.result(hop_id, value)
    assert bench.answer(exchange) == {"result": {**value, **C, **SI}}


def test_result_that_is_no_object_after_a_refusal_is_no_failure_of_the_tool() -> None:
    bench = Bench()
    exchange, hop_id = bench.running(can="{}")
    bench.question(0)
    bench.result(hop_id, [])
    assert bridge_error(-32603, "invalid_upstream_message")(bench.answer(exchange))


@pytest.mark.parametrize("method", ["tools/call", "tools/list"])
def test_what_the_server_was_at_when_it_was_lost_is_not_sent_again_here(method: str) -> None:
    bench = Bench()
    exchange = bench.ask(1, method, {"name": "a"})
    assert len(bench.take_sent()) == 1
    bench.lose()
    assert bridge_error(-32603, "upstream_lost")(bench.answer(exchange))
    assert bench.take_sent() == []


# --- parameter headers ---


def disagreement(schema: Json, arguments: Json, **headers: str) -> int | None:
    """The code of the refusal of a call of tool `q` with these `Mcp-Param-*` headers; None if it is none."""
    index = ToolIndex()
    tool = {"name": "q", "inputSchema": {"type": "object", "properties": schema}}
    index.learn(json.dumps({"tools": [tool]}).encode())
    annotations = index.tool("q")
    if annotations is None:
        return None
    sent = [(f"Mcp-Param-{name}", value) for name, value in headers.items()]
    refusal = check(annotations, json.dumps(arguments).encode(), sent)
    assert refusal is None or refusal.status == 400
    return None if refusal is None else refusal.code


REGION = {"region": {"type": "string", "x-mcp-header": "Region"}}
NUMBER = {"n": {"type": "integer", "x-mcp-header": "N"}}


@pytest.mark.crossing("G11")
def test_argument_that_its_header_repeats_is_accepted() -> None:
    assert disagreement(REGION, {"region": "eu"}, Region="eu") is None


@pytest.mark.crossing("G12")
def test_argument_and_header_that_differ_are_refused() -> None:
    assert disagreement(REGION, {"region": "eu"}) == -32020
    assert disagreement(REGION, {"region": "eu"}, Region="us") == -32020
    assert disagreement(REGION, {}, Region="eu") == -32020


@pytest.mark.crossing("G13")
@pytest.mark.parametrize("arguments", [{}, {"region": None}])
def test_argument_that_is_not_there_needs_no_header(arguments: Json) -> None:
    assert disagreement(REGION, arguments) is None


@pytest.mark.crossing("G14")
def test_number_is_compared_as_a_number() -> None:
    assert disagreement(NUMBER, {"n": 42}, N="42.0") is None
    assert disagreement(NUMBER, {"n": 42}, N="43") == -32020


@pytest.mark.crossing("G15")
def test_encoded_header_is_decoded_and_broken_encoding_refused() -> None:
    assert disagreement(REGION, {"region": "héllo"}, Region="=?base64?aMOpbGxv?=") is None
    assert disagreement(REGION, {"region": "héllo"}, Region="=?base64?aMOpbGx?=") == -32020


@pytest.mark.crossing("G16")
def test_empty_argument_has_an_empty_header() -> None:
    assert disagreement(REGION, {"region": ""}, Region="") is None


@pytest.mark.crossing("G18")
def test_tool_whose_annotations_are_invalid_is_not_checked() -> None:
    assert disagreement({"n": {"type": "number", "x-mcp-header": "N"}}, {"n": 1}) is None
