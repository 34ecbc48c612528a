"""Results and errors of one era as those of the other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import UNSET, Raw

from bridge.core.message import Response, error
from bridge.era.opened import Opened
from bridge.era.results import (
    completed,
    discovered,
    failed,
    initialized,
    legacy_error,
    legacy_result,
    result_type,
)

SERVER = b'{"name":"up","version":"9"}'
SI = '"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"up","version":"9"}}'
MINE = '"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"mine"},"com.ex/k":1}'
C = '"resultType":"complete"'
C0 = f'{C},"ttlMs":0,"cacheScope":"private"'
TASKS = "io.modelcontextprotocol/tasks"
OLDEST = "2024-11-05"


def opened(capabilities: str, revision: str = "2025-11-25", **more: object) -> Opened:
    said = {"protocolVersion": revision, "serverInfo": json.loads(SERVER), **more}
    return Opened.read(json.dumps({**said, "capabilities": json.loads(capabilities)}).encode())


def same(text: bytes, expected: str) -> None:
    assert json.loads(text) == json.loads(expected)


# --- for modern clients ---


@pytest.mark.parametrize(
    ("method", "said", "expected"),
    [
        pytest.param(
            "tools/call",
            '{"content":[],"resultType":"input_required","inputRequests":{"x":{}},"requestState":"z","ttlMs":9}',
            f'{{"content":[],{C},{SI}}}',
            id="B6",
        ),
        pytest.param(
            "tools/list",
            '{"tools":[{"name":"a","inputSchema":{"type":"object"},"execution":{"taskSupport":"optional"},"x-v":1}],'
            '"nextCursor":"c2"}',
            f'{{"tools":[{{"name":"a","inputSchema":{{"type":"object"}},"x-v":1}}],"nextCursor":"c2",{C0},{SI}}}',
            id="B7",
        ),
        pytest.param(
            "resources/read",
            f'{{"contents":[],{MINE},"cacheScope":"public","ttlMs":99}}',
            f'{{"contents":[],{MINE},{C0}}}',
            id="B8",
        ),
        pytest.param("vendor/do", "{}", f"{{{C},{SI}}}", id="B11"),
        pytest.param("prompts/get", '{"_meta":null}', f"{{{C},{SI}}}", id="no meta"),
        pytest.param("tools/list", '{"tools":5}', f'{{"tools":5,{C0},{SI}}}', id="no tools"),
        pytest.param(
            "tools/list", '{"tools":[5,"execution"]}', f'{{"tools":[5,"execution"],{C0},{SI}}}', id="junk"
        ),
    ],
)
def test_legacy_result_becomes_a_complete_one(method: str, said: str, expected: str) -> None:
    same(completed(method, said.encode(), SERVER), expected)


@pytest.mark.spec("CA-3")
@pytest.mark.parametrize(
    "method",
    [
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "server/discover",
    ],
)
def test_what_may_be_kept_says_that_it_may_not(method: str) -> None:
    found = json.loads(completed(method, b"{}", SERVER))
    assert (found["ttlMs"], found["cacheScope"]) == (0, "private")


def test_its_own_members_keep_their_text_and_order_behind_the_type() -> None:
    text = completed("tools/call", b'{"b":1e5,"a":-0,"structuredContent":{"z":1E400}}', SERVER)
    assert text.startswith(b'{"resultType":"complete","b":1e5,"a":-0,"structuredContent":{"z":1E400},')


def test_result_that_is_no_object_cannot_be_completed() -> None:
    with pytest.raises(ValueError):
        completed("tools/call", b"[]", SERVER)


@pytest.mark.parametrize(
    ("session", "tasks", "capabilities"),
    [
        pytest.param(
            opened('{"tools":{"listChanged":true},"tasks":{},"x-v":{"k":1}}'),
            False,
            '{"tools":{"listChanged":true},"x-v":{"k":1}}',
            id="A2",
        ),
        pytest.param(
            opened('{"tools":{}}'), True, f'{{"tools":{{}},"extensions":{{"{TASKS}":{{}}}}}}', id="mapped"
        ),
        pytest.param(
            opened(f'{{"extensions":{{"{TASKS}":{{}},"x/y":{{}}}}}}'),
            False,
            '{"extensions":{"x/y":{}}}',
            id="hidden",
        ),
        pytest.param(opened('{"prompts":{}}', OLDEST), False, '{"prompts":{},"completions":{}}', id="A13"),
        pytest.param(opened('{"tools":{}}', OLDEST), False, '{"tools":{}}', id="nothing to complete"),
        pytest.param(opened('{"prompts":{}}'), False, '{"prompts":{}}', id="said by itself"),
    ],
)
def test_discovery_tells_what_initialize_told(session: Opened, tasks: bool, capabilities: str) -> None:
    same(
        discovered(session, tasks=tasks),
        f'{{{C0},"supportedVersions":["2026-07-28"],"capabilities":{capabilities},{SI}}}',
    )


def test_instructions_are_told_as_well() -> None:
    assert json.loads(discovered(opened("{}", instructions="hi"), tasks=False))["instructions"] == "hi"


EVERY = '{"tools":{},"prompts":{},"resources":{},"completions":{}}'


def fails(
    method: str, said: dict[str, object], session: Opened | None = None, params: bytes | None = None
) -> dict[str, Any]:
    text = json.dumps({"message": "nf", **said}).encode()
    found = failed(method, Raw(text), UNSET if params is None else Raw(params), session or opened(EVERY))
    assert found.id is None
    assert found.error is not UNSET
    return dict(json.loads(bytes(found.error)))


@pytest.mark.spec("ER-12", "ER-15")
@pytest.mark.parametrize(
    ("method", "said", "expected"),
    [
        pytest.param(
            "resources/read", {"code": -32002}, {"code": -32602, "data": {"uri": "file:///x"}}, id="G1"
        ),
        pytest.param(
            "resources/read", {"code": -32002, "data": 5}, {"code": -32602, "data": 5}, id="its own data"
        ),
        pytest.param(
            "tools/call", {"code": -32002}, {"code": -32603, "data": {"upstreamCode": -32002}}, id="elsewhere"
        ),
        pytest.param(
            "tools/call", {"code": -32601}, {"code": -32602, "data": {"upstreamCode": -32601}}, id="G2"
        ),
        pytest.param(
            "completion/complete",
            {"code": -32601, "data": 1},
            {"code": -32602, "data": {"upstreamCode": -32601, "upstream": 1}},
            id="G2 with data",
        ),
        pytest.param("vendor/x", {"code": -32601}, {"code": -32601}, id="G3"),
        pytest.param(
            "tools/call",
            {"code": -32050, "data": {"k": 1}},
            {"code": -32603, "data": {"upstreamCode": -32050, "upstream": {"k": 1}}},
            id="G4",
        ),
        pytest.param(
            "tools/call", {"code": -32020}, {"code": -32603, "data": {"upstreamCode": -32020}}, id="first"
        ),
        pytest.param(
            "tools/call", {"code": -32099}, {"code": -32603, "data": {"upstreamCode": -32099}}, id="last"
        ),
        pytest.param("tools/call", {"code": -32019}, {"code": -32019}, id="before"),
        pytest.param("tools/call", {"code": -32001, "data": [1.0]}, {"code": -32001, "data": [1.0]}, id="G5"),
        pytest.param("tools/call", {"code": 1234}, {"code": 1234}, id="G5 of its own"),
        pytest.param("tools/call", {"code": -32602}, {"code": -32602}, id="G5 of the handler"),
    ],
)
def test_legacy_error_becomes_the_one_that_means_the_same(
    method: str, said: dict[str, object], expected: dict[str, object]
) -> None:
    assert fails(method, said, params=b'{"uri":"file:///x"}') == {"message": "nf", **expected}


@pytest.mark.parametrize("code", [-32700, -32600])
def test_message_that_the_server_calls_invalid_was_the_bridges(code: int) -> None:
    found = fails("tools/call", {"code": code})
    assert (found["code"], found["data"]) == (-32603, {"origin": "bridge", "reason": "upstream_rejected"})


def test_errors_of_the_bridge_pass_as_they_are() -> None:
    said = {"code": -32002, "data": {"origin": "bridge", "reason": "upstream_lost"}}
    assert fails("resources/read", said) == {"message": "nf", **said}


def test_method_is_what_is_not_found_where_nothing_is_advertised() -> None:
    assert fails("tools/call", {"code": -32601}, opened("{}"))["code"] == -32601


def test_completions_that_were_a_guess_are_not_offered_again() -> None:
    """A13."""
    session = opened('{"prompts":{}}', OLDEST)
    assert fails("completion/complete", {"code": -32601}, session) == {"code": -32601, "message": "nf"}
    assert json.loads(discovered(session, tasks=False))["capabilities"] == {"prompts": {}}


@pytest.mark.parametrize("said", [b"5", b'{"code":"x"}', b'{"code":-32603,"message":5}'])
def test_error_that_cannot_be_read_passes(said: bytes) -> None:
    assert failed("tools/call", Raw(said), UNSET, opened("{}")).error == Raw(said)


# --- for legacy clients ---


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ('{"resultType":"complete"}', "complete"),
        ("{}", "complete"),
        ('{"resultType":"input_required"}', "input_required"),
        (r'{"resultType":"t\u0061sk"}', "task"),
        ('{"resultType":5}', ""),
        ('{"resultType":null}', ""),
        ("[]", ""),
    ],
)
def test_type_of_a_result_is_what_it_says_or_complete(said: str, kind: str) -> None:
    assert result_type(said.encode()) == kind


@pytest.mark.parametrize(
    ("said", "plain"),
    [
        pytest.param(
            f'{{"tools":[1.0],"resultType":"complete","ttlMs":5,"cacheScope":"public",{SI}}}',
            '{"tools":[1.0]}',
            id="J8",
        ),
        pytest.param(
            '{"_meta":{"io.modelcontextprotocol/subscriptionId":1,"k":1.0}}', '{"_meta":{"k":1.0}}', id="kept"
        ),
        pytest.param('{"_meta":{}}', "{}", id="empty"),
        pytest.param("{}", "{}", id="nothing to remove"),
    ],
)
def test_legacy_client_sees_nothing_of_the_modern_protocol(said: str, plain: str) -> None:
    assert legacy_result(said.encode()) == plain.encode()


DISCOVERED = (
    f'{{{C0},"supportedVersions":["2026-07-28"],"capabilities":{{"tools":{{}},"completions":{{}},'
    f'"extensions":{{"{TASKS}":{{}}}}}},"instructions":"hi",{SI}}}'
)


def test_initialize_tells_what_discovery_told() -> None:
    """J2."""
    same(
        initialized(DISCOVERED.encode(), version="2025-11-25", name="u"),
        '{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"completions":{}},'
        '"serverInfo":{"name":"up","version":"9"},"instructions":"hi"}',
    )


def test_oldest_revision_is_not_told_of_completions() -> None:
    found = json.loads(initialized(DISCOVERED.encode(), version=OLDEST, name="u"))
    assert found["capabilities"] == {"tools": {}}


def test_server_without_a_name_is_told_by_that_of_its_address() -> None:
    """J4."""
    text = f'{{"capabilities":{{"extensions":{{"x/y":{{}},"{TASKS}":{{}}}}}}}}'
    same(
        initialized(text.encode(), version="2025-06-18", name="u"),
        '{"protocolVersion":"2025-06-18","capabilities":{"extensions":{"x/y":{}}},'
        '"serverInfo":{"name":"u","version":"0"}}',
    )


@pytest.mark.parametrize("said", ["[]", '{"capabilities":5}', '{"_meta":5}'])
def test_discovery_of_another_shape_is_no_answer_to_initialize(said: str) -> None:
    with pytest.raises(ValueError):
        initialized(said.encode(), version="2025-11-25", name="u")


def told(method: str, response: Response) -> dict[str, Any]:
    found = legacy_error(method, response)
    assert found.id == response.id
    assert found.error is not UNSET
    return dict(json.loads(bytes(found.error)))


@pytest.mark.parametrize(
    ("method", "code", "data", "becomes"),
    [
        pytest.param("tools/call", -32601, None, -32601, id="J32"),
        pytest.param("resources/read", -32602, '{"uri":"file:///x","k":1.0}', -32002, id="J33"),
        pytest.param("resources/read", -32602, None, -32602, id="J33 without"),
        pytest.param("resources/read", -32602, '"uri"', -32602, id="J33 no object"),
        pytest.param("resources/read", -32602, '{"origin":"bridge","uri":1}', -32602, id="the bridge's own"),
        pytest.param("tools/call", -32602, '{"uri":"file:///x"}', -32602, id="not a resource"),
        pytest.param("tools/call", -32021, '{"requiredCapabilities":{}}', -32021, id="lacking"),
    ],
)
def test_modern_error_becomes_the_one_that_a_legacy_client_knows(
    method: str, code: int, data: str | None, becomes: int
) -> None:
    response = error("a", code, "m", None if data is None else data.encode())
    expected = {"code": becomes, "message": "m", **({} if data is None else {"data": json.loads(data)})}
    assert told(method, response) == expected


@pytest.mark.parametrize(("code", "reason"), [(-32020, "header_mismatch"), (-32022, "version")])
def test_what_only_the_bridge_could_mend_is_its_own_error(code: int, reason: str) -> None:
    found = told("tools/call", error(1, code, "m"))
    assert (found["code"], found["data"]) == (-32603, {"origin": "bridge", "reason": reason})
