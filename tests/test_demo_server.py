"""Transcripts with the demo server over real pipes, in both eras and in both at once."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import demo_server

Object = dict[str, Any]
LIMIT = 20.0

VERSION = "io.modelcontextprotocol/protocolVersion"
CLIENT_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
VERSIONS = ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"

INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32600, -32601, -32602
ELICITED = {"action": "accept", "content": {"answer": "forty-two"}}
SAMPLED = {"role": "assistant", "content": {"type": "text", "text": "Ahoy"}, "model": "m-1"}
ROOTED = {"roots": [{"uri": "file:///home", "name": "home"}]}
QUESTIONS = [
    pytest.param("ask", "elicitation/create", {"elicitation": {}}, ELICITED, id="ask"),
    pytest.param("sample", "sampling/createMessage", {"sampling": {}}, SAMPLED, id="sample"),
    pytest.param("roots", "roots/list", {"roots": {"listChanged": True}}, ROOTED, id="roots"),
]


class Talk:
    """A client's end of the pipes. Lines are awaited under a time limit, never for a time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bridge.demo_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdin
        assert self.process.stderr
        self.stdin = self.process.stdin
        self.stderr = self.process.stderr
        self.lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        self.last_id = 0

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(b"")

    def line(self) -> bytes:
        return self.lines.get(timeout=LIMIT)

    def next(self) -> Object:
        line = self.line()
        assert line.endswith(b"\n"), f"no whole line: {line[:100]!r}"
        message = json.loads(line)
        assert message.pop("jsonrpc") == "2.0"
        return cast("Object", message)

    def write(self, line: bytes) -> None:
        self.stdin.write(line)
        self.stdin.flush()

    def send(self, message: object) -> None:
        self.write(json.dumps(message).encode() + b"\n")

    def tell(self, method: str, **params: object) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def request(self, method: str, params: Object | None = None) -> int:
        self.last_id += 1
        body = {} if params is None else {"params": params}
        self.send({"jsonrpc": "2.0", "id": self.last_id, "method": method, **body})
        return self.last_id

    def answer(self, method: str, params: Object | None = None) -> Object:
        """Sends a request whose answer is the very next line."""
        expected = self.request(method, params)
        message = self.next()
        assert message.pop("id") == expected
        return message

    def result(self, method: str, params: Object | None = None) -> Object:
        return cast("Object", self.answer(method, params)["result"])

    def error(self, method: str, params: Object | None = None) -> Object:
        return cast("Object", self.answer(method, params)["error"])

    def end(self) -> tuple[int, list[Object], bytes]:
        """Closes stdin; returns the exit status, what was still written, and stderr."""
        self.stdin.close()
        rest = list(iter(self.line, b""))
        return self.process.wait(LIMIT), [json.loads(line) for line in rest], self.stderr.read()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()
        assert self.process.stdout
        for pipe in (self.stdin, self.process.stdout, self.stderr):
            pipe.close()


@pytest.fixture
def talk() -> Iterator[Talk]:
    talk = Talk()
    yield talk
    talk.close()


@pytest.fixture
def legacy(talk: Talk) -> Talk:
    open_session(talk)
    return talk


def open_session(talk: Talk, version: str = "2025-11-25", **capabilities: object) -> Object:
    client = {"name": "tester", "version": "1"}
    params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": client}
    result = talk.result("initialize", params)
    talk.tell("notifications/initialized")
    return result


def modern(
    params: Object | None = None, capabilities: Object | None = None, meta: Object | None = None
) -> Object:
    envelope = {VERSION: "2026-07-28", CLIENT_CAPABILITIES: capabilities or {}}
    return {**(params or {}), "_meta": {**envelope, **(meta or {})}}


def tool(name: str, **arguments: object) -> Object:
    return {"name": name, "arguments": arguments}


def text_of(result: Object) -> str:
    [block] = result["content"]
    assert block["type"] == "text"
    return cast("str", block["text"])


# --- both eras ---


@pytest.fixture(params=["legacy", "modern"])
def either(request: pytest.FixtureRequest, talk: Talk) -> Callable[..., Object]:
    """Asks in one era and then in the other: `either(method, params)` is the whole answer."""
    if request.param == "modern":
        return lambda method, params=None: talk.answer(method, modern(params))
    open_session(talk)
    return talk.answer


def test_start_imports_nothing_heavy() -> None:
    heavy = "{'asyncio', 'inspect', 'dataclasses', 'ssl', 'logging', 'click', 'msgspec', 'aiohttp'}"
    code = f"import sys, bridge.demo_server; print(*({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.split() == []


@pytest.mark.spec("SS-6")
def test_end_of_stdin_ends_the_process_although_a_call_runs(legacy: Talk) -> None:
    legacy.request("tools/call", tool("slow", seconds=3600))
    status, written, stderr = legacy.end()
    assert (status, written, stderr) == (0, [], b"demo server ready\n")


def test_echo_repeats_its_arguments_as_they_were_written(legacy: Talk) -> None:
    exact = rb'{"z":1E400, "a":-0,"m":0.10,"big":%s,"\u00e9":"\ud800\/","x":{"b":1,"a":[]}}' % (b"9" * 5000)
    legacy.write(b'{"jsonrpc":"2.0","id":"e","method":"tools/call","params":')
    legacy.write(b'{ "name" : "echo" , "arguments" : ' + exact + b" } }\n")
    assert legacy.line().endswith(b'"structuredContent":' + exact + b"}}\n")


def test_number_no_float_can_hold_does_not_spoil_an_answer(talk: Talk) -> None:
    capabilities = b'{"%s":"2026-07-28","%s":{"experimental":{"x":-1E400}}}'
    meta = capabilities % (VERSION.encode(), CLIENT_CAPABILITIES.encode())
    talk.write(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"info","_meta":%s}}\n' % meta)
    seen = talk.next()["result"]["structuredContent"]["capabilities"]["experimental"]["x"]
    assert seen == -sys.float_info.max


def test_text_of_any_language_comes_back_as_utf_8(either: Callable[..., Object]) -> None:
    text = "naïve 日本語 🎈 \u2028\u0085 \ud800"
    assert text_of(either("tools/call", tool("echo", text=text))["result"]) == text


@pytest.mark.spec("ER-18")
def test_wrong_arguments_are_a_result_that_a_model_can_read(either: Callable[..., Object]) -> None:
    for wrong in (tool("echo", text=1), tool("slow", seconds=-1), tool("big"), tool("big", bytes=True)):
        assert either("tools/call", wrong)["result"]["isError"] is True


@pytest.mark.spec("ER-4")
def test_unknown_names_are_invalid_params(either: Callable[..., Object]) -> None:
    assert either("tools/call", tool("nope"))["error"]["code"] == INVALID_PARAMS
    assert either("tools/call", {"name": ["echo"]})["error"]["code"] == INVALID_PARAMS
    assert either("prompts/get", {"name": "nope"})["error"]["code"] == INVALID_PARAMS
    assert either("prompts/get", {"name": "greet"})["error"]["code"] == INVALID_PARAMS
    ref = {"type": "ref/prompt", "name": "nope"}
    wrong = {"ref": ref, "argument": {"name": "name", "value": ""}}
    assert either("completion/complete", wrong)["error"]["code"] == INVALID_PARAMS


def test_prompt_is_filled_and_its_argument_completed(either: Callable[..., Object]) -> None:
    [prompt] = either("prompts/list")["result"]["prompts"]
    messages = either("prompts/get", {"name": prompt["name"], "arguments": {"name": "Ada"}})["result"][
        "messages"
    ]
    assert "Ada" in messages[0]["content"]["text"]
    ref = {"type": "ref/prompt", "name": "greet"}
    completion = either("completion/complete", {"ref": ref, "argument": {"name": "name", "value": "a"}})
    assert completion["result"]["completion"] == {"values": ["Ada", "Alan"], "total": 2, "hasMore": False}


def test_listed_resources_and_the_template_can_be_read(either: Callable[..., Object]) -> None:
    uris = [resource["uri"] for resource in either("resources/list")["result"]["resources"]]
    [template] = either("resources/templates/list")["result"]["resourceTemplates"]
    greeting = template["uriTemplate"].replace("{name}", "Ada")
    texts = [
        either("resources/read", {"uri": uri})["result"]["contents"][0]["text"] for uri in [*uris, greeting]
    ]
    assert uris == ["demo://about", "demo://counter"]
    assert texts[1:] == ["0", "Hello, Ada!"]


@pytest.mark.spec("CA-6")
def test_tools_come_on_two_pages_and_the_empty_cursor_is_the_first(either: Callable[..., Object]) -> None:
    first = either("tools/list")["result"]
    assert either("tools/list", {"cursor": ""})["result"] == first
    second = either("tools/list", {"cursor": first["nextCursor"]})["result"]
    assert "nextCursor" not in second
    assert [entry["name"] for entry in first["tools"] + second["tools"]] == list(demo_server.TOOLS)
    assert either("tools/list", {"cursor": "tools:8"})["error"]["code"] == INVALID_PARAMS
    assert either("prompts/list", {"cursor": first["nextCursor"]})["error"]["code"] == INVALID_PARAMS


def test_failing_tool_ends_in_an_error_with_data(either: Callable[..., Object]) -> None:
    answer = either("tools/call", tool("fail", code=-7, message="no"))
    assert answer == {
        "error": {"code": -7, "message": "no", "data": {"arguments": {"code": -7, "message": "no"}}}
    }


def test_big_answer_is_one_whole_line(either: Callable[..., Object]) -> None:
    size = 3 * 1024 * 1024
    assert text_of(either("tools/call", tool("big", bytes=size))["result"]) == "x" * size


@pytest.mark.spec("SS-6")
def test_big_answer_nobody_reads_does_not_keep_the_process() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "bridge.demo_server"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    params = modern(tool("big", bytes=1024 * 1024))
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    assert process.stdin
    assert process.stdout
    process.stdin.write(line + b"\n")
    process.stdin.close()
    assert process.wait(LIMIT) == 0
    process.stdout.close()


def test_die_exits_with_the_given_status(talk: Talk) -> None:
    talk.request("tools/call", modern(tool("die", status=7)))
    assert talk.line() == b""
    assert talk.process.wait(LIMIT) == 7


@pytest.mark.spec("CP-8", "CP-9")
@pytest.mark.parametrize("token", ["p", 0])
def test_progress_increases_and_carries_the_token_as_it_came(talk: Talk, token: str | int) -> None:
    request = talk.request(
        "tools/call", modern(tool("slow", seconds=0, steps=2), meta={"progressToken": token})
    )
    for step in (1, 2):
        params = {"progressToken": token, "progress": step, "total": 2}
        assert talk.next() == {"method": "notifications/progress", "params": params}
    assert talk.next()["id"] == request


def test_without_a_token_there_is_no_progress(either: Callable[..., Object]) -> None:
    assert "result" in either("tools/call", tool("slow", seconds=0, steps=3))


@pytest.mark.spec("CP-3", "SS-5")
def test_cancelled_call_is_never_answered(talk: Talk) -> None:
    for params in (tool("slow", seconds=3600), modern(tool("slow", seconds=3600))):
        open_session(talk)
        cancelled = talk.request("tools/call", params)
        talk.tell("notifications/cancelled", requestId=cancelled)
        assert "result" in talk.answer("ping")
        # Its id is free again at once, which shows that the call is gone and not only silent.
        talk.last_id = cancelled - 1
        assert "result" in talk.answer("ping")
    assert talk.end()[:2] == (0, [])


@pytest.mark.spec("CP-5", "SS-5")
def test_work_that_is_done_after_its_cancellation_stays_silent() -> None:
    ours, theirs = os.pipe()
    demo = demo_server.Demo(theirs)
    call = demo.running[1] = demo_server.Call(demo, "{}", {"id": 1, "method": "tools/call"})
    demo.cancel({"requestId": 1})
    call.run(lambda _: {})
    with pytest.raises(demo_server.CancelledError):
        call.tell("notifications/progress", {})
    os.close(theirs)
    assert os.read(ours, 100) == b""
    os.close(ours)


@pytest.mark.spec("CP-7", "G-19")
@pytest.mark.parametrize("other", ["1", True, 1.0, None, [1], 99])
def test_cancellation_of_another_id_is_ignored(talk: Talk, other: object) -> None:
    talk.last_id = 0
    request = talk.request("subscriptions/listen", modern({"notifications": {}}))
    assert talk.next()["method"] == "notifications/subscriptions/acknowledged"
    talk.tell("notifications/cancelled", requestId=other)
    _, written, _ = talk.end()
    assert [message["id"] for message in written if "result" in message] == [request]


def test_slow_calls_run_side_by_side_and_do_not_hold_up_others(legacy: Talk) -> None:
    legacy.request("tools/call", tool("slow", seconds=3600))
    fast = legacy.request("tools/call", tool("slow", seconds=0))
    assert legacy.next()["id"] == fast
    assert legacy.answer("ping") == {"result": {}}


@pytest.mark.spec("G-5")
def test_id_of_a_running_request_is_refused_and_the_request_goes_on(talk: Talk) -> None:
    request = talk.request("subscriptions/listen", modern({"notifications": {"toolsListChanged": True}}))
    talk.next()
    talk.last_id = request - 1
    assert talk.error("server/discover", modern())["code"] == INVALID_REQUEST
    talk.request("tools/call", modern(tool("grow")))
    assert talk.next()["params"]["_meta"] == {SUBSCRIPTION: request}


# --- lines that are no messages ---


@pytest.mark.spec("ER-1", "ER-2", "G-3")
@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        (b"nonsense", -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"', -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":NaN}}', -32700, None),
        (b'{"jsonrpc":"2.0","id":"\xff","method":"ping"}', -32700, None),
        (b"[" * 100_000, -32700, None),
        (b"7", INVALID_REQUEST, None),
        (b"{}", INVALID_REQUEST, None),
        (b"[]", INVALID_REQUEST, None),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', INVALID_REQUEST, None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', INVALID_REQUEST, None),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', INVALID_REQUEST, None),
        (b'{"jsonrpc":"1.0","id":8,"method":"ping"}', INVALID_REQUEST, 8),
        (b'{"jsonrpc":"2.0","id":"a","method":5}', INVALID_REQUEST, "a"),
        (b'{"jsonrpc":"2.0","id":0,"method":"ping","params":[]}', INVALID_PARAMS, 0),
        (b'{"jsonrpc":"2.0","id":"","method":"ping","params":{"_meta":1}}', INVALID_PARAMS, ""),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', INVALID_REQUEST, None),
    ],
)
def test_bad_line_is_answered_and_the_server_goes_on(
    legacy: Talk, line: bytes, code: int, request_id: object
) -> None:
    legacy.write(line + b"\n")
    message = legacy.next()
    assert (message["error"]["code"], message["id"]) == (code, request_id)
    assert legacy.answer("ping") == {"result": {}}


@pytest.mark.spec("G-8")
def test_notifications_stray_answers_and_blank_lines_are_never_answered(legacy: Talk) -> None:
    legacy.tell("notifications/unheard-of")
    legacy.tell("tools/list")
    legacy.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": [1]})
    legacy.send({"jsonrpc": "2.0", "id": 3, "result": {}})
    legacy.send({"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": ""}})
    legacy.write(b"\r\n  \n")
    assert legacy.answer("ping") == {"result": {}}


# --- legacy ---


@pytest.mark.spec("LC-2", "LC-8")
@pytest.mark.parametrize(
    ("offered", "agreed"),
    [(version, version) for version in ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")]
    + [("2099-01-01", "2025-11-25"), ("2026-07-28", "2025-11-25"), ("", "2025-11-25")],
)
def test_offered_version_is_echoed_or_answered_with_the_latest(talk: Talk, offered: str, agreed: str) -> None:
    result = open_session(talk, offered)
    assert result["protocolVersion"] == agreed
    assert result["serverInfo"]["name"] == "mcp-bridge-demo"
    assert result["capabilities"]["tools"] == {"listChanged": True}


def test_initialize_without_its_members_opens_nothing(talk: Talk) -> None:
    assert talk.error("initialize", {"protocolVersion": "2025-11-25"})["code"] == INVALID_PARAMS
    assert talk.error("tools/list")["code"] == INVALID_PARAMS


@pytest.mark.spec("EV-3", "CP-14")
def test_before_initialize_only_ping_is_served_without_an_envelope(talk: Talk) -> None:
    assert talk.answer("ping") == {"result": {}}
    for method in ("tools/list", "server/discover", "no/such"):
        assert talk.error(method)["code"] == INVALID_PARAMS


@pytest.mark.spec("ER-3")
def test_legacy_session_has_no_modern_methods_nor_members(legacy: Talk) -> None:
    for method in ("server/discover", "subscriptions/listen", "no/such"):
        assert legacy.error(method)["code"] == METHOD_NOT_FOUND
    assert set(legacy.result("resources/list")) == {"resources"}
    assert legacy.error("resources/read", {"uri": "demo://no"}) == {
        "code": -32002, "message": "Resource not found", "data": {"uri": "demo://no"},
    }  # fmt: skip


@pytest.mark.spec("FT-1")
def test_log_messages_keep_to_the_level_that_was_set(legacy: Talk) -> None:
    assert legacy.answer("logging/setLevel", {"level": "alert"}) == {"result": {}}
    request = legacy.request("tools/call", tool("log", message="m"))
    for level in ("alert", "emergency"):
        params = {"level": level, "logger": "demo", "data": "m"}
        assert legacy.next() == {"method": "notifications/message", "params": params}
    assert legacy.next()["id"] == request
    assert legacy.error("logging/setLevel", {"level": "loud"})["code"] == INVALID_PARAMS


@pytest.mark.spec("SB-9")
def test_subscribed_resource_is_told_of_until_unsubscribed(legacy: Talk) -> None:
    uri = {"uri": "demo://counter"}
    assert text_of(legacy.result("tools/call", tool("touch"))) == "1"
    assert legacy.answer("resources/subscribe", uri) == {"result": {}}
    request = legacy.request("tools/call", tool("touch"))
    assert legacy.next() == {"method": "notifications/resources/updated", "params": uri}
    assert legacy.next()["id"] == request
    assert legacy.result("resources/read", uri)["contents"][0]["text"] == "2"
    assert legacy.answer("resources/unsubscribe", uri) == {"result": {}}
    assert text_of(legacy.result("tools/call", tool("touch"))) == "3"
    assert legacy.error("resources/subscribe", {"uri": "demo://no"})["code"] == -32002


@pytest.mark.spec("SB-9")
def test_grown_tool_is_announced_listed_and_works(legacy: Talk) -> None:
    legacy.request("tools/call", tool("grow"))
    assert legacy.next() == {"method": "notifications/tools/list_changed", "params": {}}
    name = text_of(legacy.next()["result"])
    cursor = legacy.result("tools/list")["nextCursor"]
    assert legacy.result("tools/list", {"cursor": cursor})["tools"][-1]["name"] == name
    assert legacy.result("tools/call", tool(name, a=1))["structuredContent"] == {"a": 1}


@pytest.mark.spec("FT-3", "G-19")
@pytest.mark.parametrize(("name", "method", "capabilities", "reply"), QUESTIONS)
def test_question_goes_to_a_client_that_declared_it(
    talk: Talk, name: str, method: str, capabilities: Object, reply: Object
) -> None:
    open_session(talk, **capabilities)
    request = talk.request("tools/call", tool(name))
    question = talk.next()
    assert (question["id"], question["method"]) == (0, method)
    # The answer counts by its id, with its type: neither of the first two is it.
    talk.send({"jsonrpc": "2.0", "id": "0", "result": {"action": "cancel"}})
    talk.send({"jsonrpc": "2.0", "id": False, "result": {"action": "cancel"}})
    talk.send({"jsonrpc": "2.0", "id": 0, "result": reply})
    answer = talk.next()
    assert answer["id"] == request
    assert answer["result"]["structuredContent"] == reply


@pytest.mark.parametrize("name", ["ask", "sample", "roots"])
def test_question_to_a_client_that_declared_nothing_is_a_readable_failure(legacy: Talk, name: str) -> None:
    assert legacy.result("tools/call", tool(name))["isError"] is True


@pytest.mark.spec("FT-3")
def test_client_that_takes_urls_only_is_not_asked_with_a_form(talk: Talk) -> None:
    open_session(talk, elicitation={"url": {}})
    assert talk.result("tools/call", tool("ask"))["isError"] is True


def test_clients_error_is_the_failure_of_the_tool(talk: Talk) -> None:
    open_session(talk, sampling={})
    talk.request("tools/call", tool("sample"))
    talk.send({"jsonrpc": "2.0", "id": talk.next()["id"], "error": {"code": -1, "message": "user said no"}})
    result = talk.next()["result"]
    assert result["isError"] is True
    assert "user said no" in text_of(result)


@pytest.mark.spec("CP-1", "CP-5")
def test_cancelled_call_withdraws_its_open_question(talk: Talk) -> None:
    open_session(talk, elicitation={})
    request = talk.request("tools/call", tool("ask"))
    question = talk.next()["id"]
    talk.tell("notifications/cancelled", requestId=request)
    assert talk.next() == {"method": "notifications/cancelled", "params": {"requestId": question}}
    talk.send({"jsonrpc": "2.0", "id": question, "result": ELICITED})
    assert talk.answer("ping") == {"result": {}}
    assert talk.end()[:2] == (0, [])


@pytest.mark.spec("BT-1", "BT-3", "BT-4", "BT-6", "BT-7")
@pytest.mark.case("ID-08")
def test_batch_is_answered_one_by_one_where_it_was_negotiated(talk: Talk) -> None:
    open_session(talk, "2025-03-26")
    ping = {"jsonrpc": "2.0", "method": "ping"}
    call = {"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": tool("echo", n=1)}
    talk.send([{**ping, "id": "a"}, ping, 5, {**ping, "id": "b", "method": "initialize"}, call])
    assert talk.next() == {"id": "a", "result": {}}
    assert (answer := talk.next())["error"]["code"] == INVALID_REQUEST
    assert answer["id"] is None
    assert (answer := talk.next())["error"]["code"] == INVALID_REQUEST
    assert answer["id"] == "b"
    assert talk.next()["result"]["structuredContent"] == {"n": 1}
    talk.send([])
    assert talk.next()["error"]["code"] == INVALID_REQUEST


# --- modern ---


@pytest.mark.spec("EV-11", "EV-18", "G-9", "EV-7", "CA-1")
def test_discover_tells_versions_capabilities_and_how_long_that_holds(talk: Talk) -> None:
    result = talk.result("server/discover", modern())
    assert result["supportedVersions"] == VERSIONS
    assert result["capabilities"]["resources"] == {"subscribe": True}
    assert result["instructions"]
    assert (result["resultType"], result["ttlMs"], result["cacheScope"]) == ("complete", 3_600_000, "public")
    assert result["_meta"][SERVER_INFO]["name"] == "mcp-bridge-demo"


@pytest.mark.spec("G-9", "EV-7", "CA-1")
@pytest.mark.parametrize(
    ("method", "params", "cacheable"),
    [
        ("tools/list", {}, True),
        ("prompts/list", {}, True),
        ("resources/list", {}, True),
        ("resources/templates/list", {}, True),
        ("resources/read", {"uri": "demo://about"}, True),
        ("tools/call", tool("echo"), False),
        ("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}}, False),
    ],
)
def test_modern_result_names_type_server_and_lifetime(
    talk: Talk, method: str, params: Object, cacheable: bool
) -> None:
    result = talk.result(method, modern(params))
    assert result["resultType"] == "complete"
    assert result["_meta"] == {SERVER_INFO: demo_server.IDENTITY}
    assert (isinstance(result.get("ttlMs"), int), "cacheScope" in result) == (cacheable, cacheable)


@pytest.mark.spec("EV-9")
@pytest.mark.parametrize("version", ["2025-11-25", "2099-01-01", ""])
def test_version_that_is_not_served_is_answered_with_those_that_are(talk: Talk, version: str) -> None:
    error = talk.error("tools/list", {"_meta": {VERSION: version}})
    assert error["code"] == -32022
    assert error["data"] == {"supported": VERSIONS, "requested": version}


@pytest.mark.spec("EV-3", "EV-4", "FT-2")
@pytest.mark.parametrize(
    "meta",
    [
        {CLIENT_CAPABILITIES: {}},
        {CLIENT_INFO: {"name": "c", "version": "1"}},
        {LOG_LEVEL: "info"},
        {VERSION: "2026-07-28"},
        {VERSION: "2026-07-28", CLIENT_CAPABILITIES: []},
        {VERSION: 20260728, CLIENT_CAPABILITIES: {}},
        {VERSION: "2026-07-28", CLIENT_CAPABILITIES: {}, LOG_LEVEL: "loud"},
    ],
)
def test_incomplete_envelope_is_refused_even_inside_a_session(legacy: Talk, meta: Object) -> None:
    assert legacy.error("tools/list", {"_meta": meta})["code"] == INVALID_PARAMS


@pytest.mark.spec("CP-15", "ER-3")
@pytest.mark.parametrize(
    "method",
    ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "no/such"],
)
def test_method_the_modern_era_lacks_is_not_found(legacy: Talk, method: str) -> None:
    params = modern({"protocolVersion": "2025-11-25", "uri": "demo://counter", "level": "info"})
    assert legacy.error(method, params)["code"] == METHOD_NOT_FOUND


@pytest.mark.spec("ER-9", "ER-17")
def test_unknown_resource_is_invalid_params(talk: Talk) -> None:
    error = talk.error("resources/read", modern({"uri": "demo://no"}))
    assert (error["code"], error["data"]) == (INVALID_PARAMS, {"uri": "demo://no"})


@pytest.mark.spec("FT-2", "G-12")
def test_log_messages_are_sent_only_to_the_request_that_wants_them(legacy: Talk) -> None:
    request = legacy.request("tools/call", modern(tool("log"), meta={LOG_LEVEL: "emergency"}))
    assert legacy.next()["params"]["level"] == "emergency"
    assert legacy.next()["id"] == request
    assert "result" in legacy.answer("tools/call", modern(tool("log")))


@pytest.mark.spec("EV-14", "SS-8", "G-12")
def test_era_is_decided_for_each_message(talk: Talk) -> None:
    def era(params: Object) -> tuple[str, Object]:
        seen = talk.result("tools/call", params)["structuredContent"]
        return seen["version"], seen["client"]

    other = {"name": "other", "version": "2"}
    assert era(modern(tool("info"))) == ("2026-07-28", {})
    open_session(talk, "2025-06-18")
    assert era(tool("info")) == ("2025-06-18", {"name": "tester", "version": "1"})
    assert era(modern(tool("info"), meta={CLIENT_INFO: other})) == ("2026-07-28", other)
    assert era(tool("info")) == ("2025-06-18", {"name": "tester", "version": "1"})


@pytest.mark.spec("EV-6", "MR-4", "SS-3")
@pytest.mark.parametrize(
    ("name", "required"),
    [("ask", {"elicitation": {"form": {}}}), ("sample", {"sampling": {}}), ("roots", {"roots": {}})],
)
def test_undeclared_capability_is_named_in_the_refusal(talk: Talk, name: str, required: Object) -> None:
    open_session(talk, elicitation={}, sampling={}, roots={})
    error = talk.error("tools/call", modern(tool(name)))
    assert (error["code"], error["data"]) == (-32021, {"requiredCapabilities": required})


def asked(talk: Talk, name: str, capabilities: Object, **arguments: object) -> tuple[Object, str]:
    result = talk.result("tools/call", modern(tool(name, **arguments), capabilities))
    assert result["resultType"] == "input_required"
    assert "ttlMs" not in result
    return result["inputRequests"], result["requestState"]


@pytest.mark.spec("MR-1", "MR-3", "SS-3")
@pytest.mark.parametrize(("name", "method", "capabilities", "reply"), QUESTIONS)
def test_question_is_a_result_and_its_answer_comes_with_the_retry(
    talk: Talk, name: str, method: str, capabilities: Object, reply: Object
) -> None:
    requests, state = asked(talk, name, capabilities)
    [(key, request)] = requests.items()
    assert request["method"] == method
    assert "id" not in request
    retry = {**tool(name), "inputResponses": {key: reply, "unknown": 1}, "requestState": state}
    assert talk.result("tools/call", modern(retry, capabilities))["structuredContent"] == reply


@pytest.mark.spec("MR-9")
@pytest.mark.parametrize(
    "brought", [{}, {"inputResponses": {}}, {"inputResponses": {"x": ELICITED}}, {"inputResponses": None}]
)
def test_missing_answer_is_asked_for_again(talk: Talk, brought: Object) -> None:
    _, state = asked(talk, "ask", {"elicitation": {}})
    retry = modern({**tool("ask"), "requestState": state, **brought}, {"elicitation": {}})
    assert talk.result("tools/call", retry)["resultType"] == "input_required"


def test_answer_without_the_state_of_its_question_is_not_taken(talk: Talk) -> None:
    first = modern({**tool("ask"), "inputResponses": {"ask": ELICITED}}, {"elicitation": {}})
    assert talk.result("tools/call", first)["resultType"] == "input_required"


@pytest.mark.spec("MR-9")
@pytest.mark.parametrize("answers", [1, [], {"ask": None}, {"ask": 1}, {"ask": {"content": {}}}])
def test_malformed_answer_is_an_error(talk: Talk, answers: object) -> None:
    _, state = asked(talk, "ask", {"elicitation": {}})
    retry = {**tool("ask"), "requestState": state, "inputResponses": answers}
    assert talk.error("tools/call", modern(retry, {"elicitation": {}}))["code"] == INVALID_PARAMS


@pytest.mark.spec("MR-9")
@pytest.mark.parametrize("missing", ["role", "content", "model"])
def test_sampled_message_without_a_part_is_an_error(talk: Talk, missing: str) -> None:
    _, state = asked(talk, "sample", {"sampling": {}})
    answer = {name: value for name, value in SAMPLED.items() if name != missing}
    retry = {**tool("sample"), "requestState": state, "inputResponses": {"sample": answer}}
    assert talk.error("tools/call", modern(retry))["code"] == INVALID_PARAMS


@pytest.mark.spec("MR-5", "MR-6", "MR-15")
def test_state_that_is_not_ours_or_not_of_this_request_is_refused_with_one_message(talk: Talk) -> None:
    able: Object = {"elicitation": {}, "sampling": {}}
    _, state = asked(talk, "ask", able, question="Q")
    expires, _, seal = state.partition(".")
    forged = [
        f"{int(expires) + 1}.{seal}", f"{expires}.{'0' * 64}", f"{expires}.", "", ".", "9" * 400, "²." + seal,
        "\ud800", 5, None, {},
    ]  # fmt: skip
    answer = {"inputResponses": {"ask": ELICITED, "sample": SAMPLED}}
    wrong: list[tuple[str, Object]] = [
        ("tools/call", {**tool("ask", question="Q"), "requestState": state_}) for state_ in forged
    ]
    wrong += [
        ("tools/call", {**tool("ask", question="R"), "requestState": state}),
        ("tools/call", {**tool("sample", question="Q"), "requestState": state}),
        ("tools/call", {**tool("echo", question="Q"), "requestState": state}),
        ("prompts/get", {**tool("ask", question="Q"), "requestState": state}),
    ]
    errors = [talk.error(method, modern({**params, **answer}, able)) for method, params in wrong]
    assert errors == [{"code": INVALID_PARAMS, "message": "Invalid or expired requestState"}] * len(wrong)
    good = {**tool("ask", question="Q"), "requestState": state, **answer}
    assert talk.result("tools/call", modern(good, able))["structuredContent"] == ELICITED


@pytest.mark.spec("MR-6")
def test_state_expires() -> None:
    call = demo_server.Call(demo_server.Demo(-1), "{}", {"id": 1, "method": "tools/call"})
    call.params["requestState"] = demo_server.sealed_state(call, 10**12)
    demo_server.check_state(call)
    call.params["requestState"] = demo_server.sealed_state(call, 1)
    with pytest.raises(demo_server.RequestError):
        demo_server.check_state(call)


@pytest.mark.spec("SB-1", "SB-2", "SB-3", "SB-5", "SB-6", "SB-8")
def test_listen_streams_get_what_they_asked_for_and_a_closing_result(talk: Talk) -> None:
    filter_ = {
        "toolsListChanged": True, "promptsListChanged": True,
        "resourceSubscriptions": ["demo://counter", "demo://no", 5],
    }  # fmt: skip
    talk.send(
        {
            "jsonrpc": "2.0",
            "id": "L",
            "method": "subscriptions/listen",
            "params": modern({"notifications": filter_}),
        }
    )
    honoured = {"toolsListChanged": True, "resourceSubscriptions": ["demo://counter"]}
    acknowledged = "notifications/subscriptions/acknowledged"
    named = {"_meta": {SUBSCRIPTION: "L"}}
    assert talk.next() == {"method": acknowledged, "params": {**named, "notifications": honoured}}
    other = talk.request("subscriptions/listen", modern({"notifications": {"toolsListChanged": False}}))
    assert talk.next() == {
        "method": acknowledged, "params": {"_meta": {SUBSCRIPTION: other}, "notifications": {}},
    }  # fmt: skip

    talk.request("tools/call", modern(tool("touch")))
    params: Object = {**named, "uri": "demo://counter"}
    assert talk.next() == {"method": "notifications/resources/updated", "params": params}
    assert "result" in talk.next()
    talk.request("tools/call", modern(tool("grow")))
    assert talk.next() == {"method": "notifications/tools/list_changed", "params": named}
    assert "result" in talk.next()

    talk.tell("notifications/cancelled", requestId=other)
    status, written, _ = talk.end()
    meta = {SERVER_INFO: demo_server.IDENTITY, SUBSCRIPTION: "L"}
    assert status == 0
    assert written == [
        {"jsonrpc": "2.0", "id": "L", "result": {"resultType": "complete", "_meta": meta}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "L"}},
    ]


def test_listen_without_a_filter_is_refused(talk: Talk) -> None:
    filters: list[object] = [None, [], {"resourceSubscriptions": "demo://counter"}]
    for params in ({"notifications": filter_} for filter_ in filters):
        assert talk.error("subscriptions/listen", modern(params))["code"] == INVALID_PARAMS


# --- text ---

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON) | st.lists(JSON), st.sampled_from([None, 1]), st.booleans())
def test_parts_are_the_members_as_they_were_written(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    found = list(demo_server.parts(text))
    if isinstance(value, dict):
        assert {name: json.loads(part) for name, part in found} == value
    else:
        assert [json.loads(part) for _, part in found] == value


@given(st.dictionaries(st.text(), JSON))
def test_encoded_message_is_one_line_that_says_the_same(message: Object) -> None:
    line = demo_server.encode(message)
    assert line.count(b"\n") == 1
    assert json.loads(line) == message
