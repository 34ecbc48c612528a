"""Modern callers: every request by itself, checked before its server hears of it, cancelled by leaving."""

from __future__ import annotations

from dataclasses import replace

import pytest
from field.raw import Answer, Exchange
from support.scripted_bridge import (
    LATEST,
    MODERN,
    PREFIX,
    SUBSCRIPTION,
    UNHURRIED,
    Bridge,
    bridged,
    envelope,
    mirrored,
    modern,
    notification,
    request,
)
from support.scripted_server import Heard, Json, ScriptedServer, dump

from bridge.config import Access, Limits

CAPABILITIES = f"{PREFIX}clientCapabilities"
VERSION = f"{PREFIX}protocolVersion"
JSON_ONLY = {"Accept": "application/json"}


def tool_call(request_id: int | str = 1, name: str = "a", **meta: object) -> Json:
    return modern(request_id, "tools/call", meta=envelope(**meta), name=name, arguments={})


async def walked(server: ScriptedServer, *tools: Json) -> None:
    """Answer the bridge's own look at the tools, which comes before the first call of one."""
    server.answers(await server.hears("tools/list"), {"tools": list(tools)})


async def calls(bridge: Bridge, server: ScriptedServer, message: Json) -> tuple[Exchange, Heard]:
    exchange = await bridge.post_modern(message)
    return exchange, await server.hears(message["method"])


async def refused(bridge: Bridge, message: Json | list[Json] | bytes, headers: dict[str, str]) -> Answer:
    """The answer to what no server may hear of."""
    answer = await bridge.ask(message, headers)
    assert bridge.source.servers == []
    return answer


# --- what is refused before any server hears of it (C1 to C24) ---

REFUSED: dict[str, tuple[Json, dict[str, str | None], int, int]] = {
    "C1 no envelope": (request(1, "tools/list"), {}, 400, -32602),
    "C1 no envelope, params": (request(1, "tools/list", cursor="x"), {}, 400, -32602),
    "C2 no capabilities": (modern(1, "tools/list", meta={VERSION: MODERN}), {}, 400, -32602),
    "C2 capabilities no object": (
        modern(1, "tools/list", meta={VERSION: MODERN, CAPABILITIES: []}), {}, 400, -32602,
    ),
    "C4 legacy version in the body": (
        modern(1, "tools/list", meta=envelope(**{VERSION: LATEST})), {}, 400, -32020,
    ),
    "C5 no version header": (modern(1, "tools/list"), {"MCP-Protocol-Version": None}, 400, -32020),
    "C6 unknown version": (
        modern(1, "tools/list", meta=envelope(**{VERSION: "2099-01-01"})),
        {"MCP-Protocol-Version": "2099-01-01"}, 400, -32022,
    ),
    "C7 no Mcp-Method": (modern(1, "tools/call", name="a"), {"Mcp-Method": None}, 400, -32020),
    "C7 another case": (modern(1, "tools/call", name="a"), {"Mcp-Method": "Tools/Call"}, 400, -32020),
    "C9 no Mcp-Name": (modern(1, "tools/call", name="a"), {"Mcp-Name": None}, 400, -32020),
    "C9 another Mcp-Name": (modern(1, "tools/call", name="a"), {"Mcp-Name": "b"}, 400, -32020),
    "C9 another URI": (modern(1, "resources/read", uri="file:///a"), {"Mcp-Name": "file:///b"}, 400, -32020),
    "C22 unknown log level": (
        modern(1, "tools/list", meta=envelope(**{f"{PREFIX}logLevel": "loud"})), {}, 400, -32602,
    ),
}  # fmt: skip


@pytest.mark.spec("HM-5", "HM-11", "HM-12", "EV-3", "EV-9", "ER-4", "ER-6", "ER-8", "ER-16")
@pytest.mark.case("RV-04")
@pytest.mark.parametrize("name", REFUSED)
async def test_request_that_contradicts_itself_is_refused(name: str) -> None:
    message, changes, status, code = REFUSED[name]
    headers = {key: value for key, value in {**mirrored(message), **changes}.items() if value is not None}
    async with bridged() as bridge:
        answer = await refused(bridge, message, headers)
        assert (answer.status, answer.error["code"], answer.last["id"]) == (status, code, 1)
        assert answer.headers["content-type"] == "application/json"
        if code == -32022:
            assert answer.error["data"] == {"supported": [MODERN], "requested": "2099-01-01"}
        else:
            assert answer.error["data"]["origin"] == "bridge"


@pytest.mark.spec("HM-18")
@pytest.mark.case("RV-04")
@pytest.mark.parametrize("name", ["Mcp-Name", "Mcp-Method", "MCP-Protocol-Version"])
async def test_mirrored_header_that_stands_twice_is_refused(name: str) -> None:
    message = tool_call()
    headers = mirrored(message)
    async with bridged() as bridge:
        answer = await refused(bridge, message, {**headers, name.lower(): headers[name]})
        assert (answer.status, answer.error["code"]) == (400, -32020)


@pytest.mark.spec("HM-13", "CP-15", "ER-3", "ER-16")
@pytest.mark.parametrize(
    "method",
    [
        "ping", "initialize", "logging/setLevel", "resources/subscribe", "resources/unsubscribe",
        "tasks/result", "tasks/list",
    ],
)  # fmt: skip
async def test_removed_method_is_refused_with_404(method: str) -> None:
    message = modern(1, method)
    async with bridged() as bridge:
        answer = await refused(bridge, message, mirrored(message))
        assert (answer.status, answer.error["code"], answer.last["id"]) == (404, -32601, 1)


@pytest.mark.spec("HM-3", "ER-1", "ER-2")
@pytest.mark.parametrize(
    ("body", "code", "answered"),
    [
        (b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]', -32600, None),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', -32600, None),
        (b'{"jsonrpc":"2.0","id":1,', -32700, None),
        (b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}', -32600, None),
    ],
    ids=["C14", "C15", "C16", "C17"],
)
async def test_body_that_is_no_single_request_is_refused(body: bytes, code: int, answered: None) -> None:
    async with bridged() as bridge:
        answer = await refused(bridge, body, {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/list"})
        assert (answer.status, answer.error["code"], answer.last["id"]) == (400, code, answered)


@pytest.mark.case("RV-04")
@pytest.mark.parametrize(
    "params",
    [
        b'"name":"a","name":"a","_meta":%b',
        b'"name":"a","_meta":{"x":1,"x":2},"_meta":%b',
    ],
)
async def test_params_with_a_member_twice_are_refused(params: bytes) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{%b}}' % (params % dump(envelope()))
    async with bridged() as bridge:
        answer = await refused(bridge, body, mirrored(tool_call()))
        assert (answer.status, answer.error["code"], answer.last["id"]) == (400, -32600, 1)


@pytest.mark.spec("HM-1", "HM-15")
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_get_and_delete_of_the_revision_are_refused_with_what_it_has(method: str) -> None:
    async with bridged() as bridge:
        exchange = await bridge.send(method, {"MCP-Protocol-Version": MODERN, "Mcp-Session-Id": "x"})
        assert await exchange.head() == 405
        assert exchange.headers["allow"] == "POST"


@pytest.mark.spec("HM-19")
async def test_subscription_of_a_client_that_takes_no_stream_is_refused_with_406() -> None:
    message = modern(1, "subscriptions/listen", notifications={})
    async with bridged() as bridge:
        answer = await refused(bridge, message, {**mirrored(message), **JSON_ONLY})
        assert (answer.status, answer.last["id"]) == (406, 1)


# --- what is let through ---

ACCEPTED: dict[str, tuple[Json, dict[str, str]]] = {
    "C3 no clientInfo": (modern(1, "tools/list", meta={VERSION: MODERN, CAPABILITIES: {}}), {}),
    "C8 names in any case": (
        modern(1, "prompts/get", name="a"),
        {"mcp-protocol-version": MODERN, "MCP-METHOD": "prompts/get", "mCP-nAME": "a"},
    ),
    "C10 encoded name": (modern(1, "prompts/get", name="héllo"), {"Mcp-Name": "=?base64?aMOpbGxv?="}),
    "C24 leftovers of a session": (modern(1, "tools/list"), {"Mcp-Session-Id": "x", "Last-Event-ID": "5"}),
    "RV-04 工具": (modern(1, "prompts/get", name="工具"), {}),
    "RV-04 blanks": (modern(1, "prompts/get", name=" a "), {}),
    "RV-04 what looks encoded": (
        modern(1, "prompts/get", name="=?base64?x?="),
        {"Mcp-Name": "=?base64?PT9iYXNlNjQ/eD89?="},
    ),
    "RV-04 4 kB": (modern(1, "prompts/get", name="n" * 4000), {}),
    "RV-04 uri": (modern(1, "resources/read", uri="file:///a%20b?x=1"), {}),
    "HM-11 vendor method": (modern(1, "vendor/do", name="anything"), {}),
}


@pytest.mark.spec("HM-5", "HM-11", "HM-15", "HM-16", "EV-4")
@pytest.mark.case("RV-04")
@pytest.mark.parametrize("name", ACCEPTED)
async def test_request_that_agrees_with_itself_is_forwarded_as_it_is(name: str) -> None:
    message, changes = ACCEPTED[name]
    lowered = {key.lower() for key in changes}
    headers = {key: value for key, value in mirrored(message).items() if key.lower() not in lowered}
    async with bridged() as bridge:
        exchange = await bridge.post(message, {**headers, **changes})
        server = await bridge.source.next()
        asked = await server.hears(message["method"])
        assert asked.params == message["params"]
        server.answers(asked, {"resultType": "complete"})
        answer = await exchange.answer()
        assert (answer.status, answer.last["id"]) == (200, 1)
        assert answer.headers["content-type"] == "application/json"
        assert not {"mcp-session-id", "last-event-id"} & answer.headers.keys()


@pytest.mark.spec("HM-4", "HM-21")
async def test_posted_cancellation_is_dropped_and_cancels_nobodys_work() -> None:
    async with bridged() as bridge:
        server = await bridge.modern_server()
        exchange, asked = await calls(bridge, server, modern(1, "prompts/list"))
        note = notification("cancelled", requestId=1)
        answer = await bridge.ask(note, {"MCP-Protocol-Version": MODERN, "Mcp-Method": note["method"]})
        assert (answer.status, answer.body) == (202, b"")
        assert not server.unread
        server.answers(asked, {"went": "on"})
        assert (await exchange.answer()).result == {"went": "on"}


@pytest.mark.spec("HM-5", "HM-17")
async def test_call_answered_at_once_is_json() -> None:
    async with bridged() as bridge:
        server = await bridge.modern_server()
        exchange, asked = await calls(bridge, server, modern(1, "prompts/list"))
        server.answers(asked)
        answer = await exchange.answer()
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")


@pytest.mark.spec("HM-6", "HM-8", "HM-9", "HM-16", "RS-6")
async def test_progress_then_result_is_a_stream_without_event_ids_that_ends() -> None:
    async with bridged() as bridge:
        server = await bridge.modern_server()
        message = modern("x", "prompts/get", name="a", meta=envelope(progressToken="t"))
        exchange, asked = await calls(bridge, server, message)
        server.progresses(asked, 1)
        server.answers(asked)
        answer = await exchange.answer()
        assert answer.streamed
        assert answer.headers["x-accel-buffering"] == "no"
        assert [event.id for event in answer.events] == [None, None]
        assert answer.messages[0]["params"] == {"progressToken": "t", "progress": 1}
        assert answer.last["id"] == "x"


@pytest.mark.spec("HM-9", "HM-17")
async def test_silence_makes_a_stream_with_comments_whose_last_event_is_the_error() -> None:
    async with bridged(timing=replace(UNHURRIED, commit_modern=0.01, keepalive=0.01)) as bridge:
        server = await bridge.modern_server()
        exchange, asked = await calls(bridge, server, modern(1, "vendor/x"))
        block = await exchange.block()
        assert block is not None
        assert block.comment is not None
        server.refuses(asked)
        assert (await exchange.message())["error"]["code"] == -32601
        assert await exchange.block() is None


@pytest.mark.spec("HM-13", "EV-6", "EV-9", "ER-1", "ER-2", "ER-3", "ER-5", "ER-6", "ER-7", "ER-8", "ER-11")
@pytest.mark.parametrize(
    ("code", "status"),
    [
        (-32601, 404), (-32600, 400), (-32700, 400), (-32020, 400), (-32021, 400), (-32022, 400),
        (-32602, 200), (-32603, 200), (-32000, 200), (1234, 200),
    ],
)  # fmt: skip
async def test_error_of_the_server_has_its_status_and_is_passed_on(code: int, status: int) -> None:
    async with bridged() as bridge:
        server = await bridge.modern_server()
        exchange, asked = await calls(bridge, server, modern(1, "vendor/x"))
        server.says({"id": asked.id, "error": {"code": code, "message": "m", "data": {"k": 1}}})
        answer = await exchange.answer()
        assert (answer.status, answer.last["id"]) == (status, 1)
        assert answer.error == {"code": code, "message": "m", "data": {"k": 1}}


@pytest.mark.spec("CA-2")
@pytest.mark.parametrize(("token", "scope"), [(None, "public"), ("t" * 16, "private")])
async def test_what_a_token_was_needed_for_is_not_called_public(token: str | None, scope: str) -> None:
    listed = {"tools": [{"name": "public"}], "ttlMs": 5, "cacheScope": "public"}
    async with bridged(access=Access(token=token)) as bridge:
        server = await bridge.modern_server()
        exchange = await bridge.post_modern(modern(1, "tools/list"))
        server.answers(await server.hears("tools/list"), listed)
        answer = await exchange.answer()
        assert answer.messages[-1]["result"] == {**listed, "cacheScope": scope}


async def test_client_that_takes_json_only_gets_the_answer_without_what_came_before() -> None:
    async with bridged(timing=replace(UNHURRIED, commit_modern=0.0)) as bridge:
        server = await bridge.modern_server()
        message = modern(1, "prompts/list", meta=envelope(progressToken=1))
        exchange = await bridge.post_modern(message, JSON_ONLY)
        asked = await server.hears("prompts/list")
        server.progresses(asked, 1)
        server.answers(asked)
        answer = await exchange.answer()
        assert [one["id"] for one in answer.messages] == [1]
        assert answer.headers["content-type"] == "application/json"


# --- callers share one server ---


@pytest.mark.case("ID-05")
@pytest.mark.spec("G-5", "CP-8")
async def test_callers_with_equal_ids_and_tokens_get_their_own_answers() -> None:
    async with bridged() as bridge:
        server = await bridge.modern_server()
        made = []
        for secret in "abc":
            message = modern(1, "prompts/get", name=secret, meta=envelope(progressToken=1))
            made.append((secret, *await calls(bridge, server, message)))
        assert len({asked.id for _, _, asked in made}) == 3
        for secret, _, asked in reversed(made):
            server.notes(
                "progress", progressToken=asked.params["_meta"]["progressToken"], progress=ord(secret)
            )
            server.answers(asked, {"for": secret})
        for secret, exchange, _ in made:
            progress, answer = (await exchange.answer()).messages
            assert progress["params"] == {"progressToken": 1, "progress": ord(secret)}
            assert (answer["id"], answer["result"]) == (1, {"for": secret})


@pytest.mark.spec("HM-10", "CP-16", "SC-8")
@pytest.mark.case("TF-05", "ID-06", "CP-02")
@pytest.mark.parametrize("streaming", [False, True])
async def test_leaving_cancels_ones_own_call_under_its_id_on_the_server(streaming: bool) -> None:
    async with bridged() as bridge:
        server = await bridge.modern_server()
        message = modern(1, "prompts/list", meta=envelope(progressToken="t"))
        other, kept = await calls(bridge, server, message)
        exchange, asked = await calls(bridge, server, message)
        if streaming:
            server.progresses(asked, 1)
            await exchange.event()
        exchange.reset()
        assert (await server.hears("notifications/cancelled")).params == {"requestId": asked.id}
        server.answers(asked)
        server.answers(kept)
        assert (await other.answer()).last["id"] == 1
        assert not server.unread


@pytest.mark.case("CP-02")
async def test_caller_that_left_counts_no_longer() -> None:
    async with bridged(limits=Limits(in_flight=2)) as bridge:
        server = await bridge.modern_server()
        for _ in range(4):
            exchange, _asked = await calls(bridge, server, modern(1, "prompts/list"))
            exchange.reset()
            await server.hears("notifications/cancelled")
        held = [await calls(bridge, server, modern(1, "prompts/list")) for _ in range(2)]
        refused_ = await bridge.ask_modern(modern(1, "prompts/list"))
        assert (refused_.status, refused_.headers["retry-after"]) == (429, "1")
        for exchange, asked in held:
            server.answers(asked)
            assert (await exchange.answer()).status == 200


@pytest.mark.spec("HM-7", "SC-6", "G-11")
@pytest.mark.parametrize("callers", [0, 1, 2])
async def test_request_of_a_modern_server_is_dropped_and_never_answered(callers: int) -> None:
    async with bridged() as bridge:
        server = await bridge.modern_server()
        held = [await calls(bridge, server, modern(1, "prompts/list")) for _ in range(callers)]
        for method in ("sampling/createMessage", "ping"):
            server.asks(method, "q")
        assert not server.unread
        for exchange, asked in held:
            server.answers(asked)
            assert len((await exchange.answer()).messages) == 1


@pytest.mark.spec("FT-2")
async def test_log_message_goes_to_the_caller_that_asked_for_them() -> None:
    async with bridged() as bridge:
        server = await bridge.modern_server()
        message = modern(1, "prompts/list", meta=envelope(**{f"{PREFIX}logLevel": "info"}))
        asking, asked = await calls(bridge, server, message)
        silent, other = await calls(bridge, server, modern(1, "prompts/list"))
        server.notes("message", level="info", data="x")
        server.answers(asked)
        server.answers(other)
        assert [one.get("method") for one in (await asking.answer()).messages] == [
            "notifications/message",
            None,
        ]
        assert len((await silent.answer()).messages) == 1


async def test_server_that_is_lost_answers_every_caller_and_the_next_one_gets_a_new_server() -> None:
    async with bridged() as bridge:
        server = await bridge.modern_server()
        held = [await calls(bridge, server, modern(1, "prompts/list")) for _ in range(2)]
        server.dies(1, "out of memory")
        for exchange, _ in held:
            answer = await exchange.answer()
            assert (answer.status, answer.last["id"], answer.error["code"]) == (200, 1, -32603)
            assert answer.error["data"]["stderr"] == ["out of memory"]
        exchange = await bridge.post_modern(modern(1, "prompts/list"))
        second = await bridge.source.next()
        second.answers(await second.hears("prompts/list"))
        assert (await exchange.answer()).status == 200
        await server.is_ended()


@pytest.mark.spec("SP-10")
async def test_caller_that_does_not_read_is_cut_and_its_call_cancelled() -> None:
    async with bridged(limits=Limits(unsent=100_000)) as bridge:
        server = await bridge.modern_server()
        _slow, asked = await calls(bridge, server, modern(1, "prompts/list", meta=envelope(progressToken=1)))
        other, kept = await calls(bridge, server, modern(1, "prompts/list"))
        for progress in range(1, 2000):
            if server.unread:
                break
            server.says(
                {
                    "method": "notifications/progress",
                    "params": {
                        "progressToken": asked.params["_meta"]["progressToken"],
                        "progress": progress,
                        "message": "x" * 10_000,
                    },
                }
            )
            await bridge.turn()
        assert (await server.hears("notifications/cancelled")).params == {"requestId": asked.id}
        assert not server.paused
        server.answers(kept)
        assert (await other.answer()).status == 200


# --- subscriptions ---


def listen(request_id: int | str) -> Json:
    return modern(request_id, "subscriptions/listen", notifications={"toolsListChanged": True})


@pytest.mark.spec("SB-2", "SB-3", "SB-5", "SB-8", "SC-7")
async def test_subscriptions_with_equal_ids_keep_their_own_notifications_and_endings() -> None:
    async with bridged() as bridge:
        server = await bridge.modern_server()
        subscriptions = [await calls(bridge, server, listen(1)) for _ in range(2)]
        for number, (exchange, asked) in enumerate(subscriptions):
            meta = {SUBSCRIPTION: asked.id}
            server.notes("subscriptions/acknowledged", _meta=meta, notifications={"n": number})
            server.notes("tools/list_changed", _meta=meta, n=number)
            server.answers(asked, {"resultType": "complete", "_meta": meta})
            messages = (await exchange.answer()).messages
            assert [m.get("method") for m in messages] == [
                "notifications/subscriptions/acknowledged",
                "notifications/tools/list_changed",
                None,
            ]
            assert [m["params"]["_meta"] for m in messages[:2]] == [{SUBSCRIPTION: 1}] * 2
            assert messages[1]["params"]["n"] == number
            assert messages[2]["id"] == 1
            assert messages[2]["result"]["_meta"] == {SUBSCRIPTION: 1}


@pytest.mark.spec("HM-10", "SB-8")
async def test_leaving_a_subscription_cancels_it_and_not_its_twin() -> None:
    async with bridged() as bridge:
        server = await bridge.modern_server()
        (gone, left), (stays, kept) = [await calls(bridge, server, listen("L")) for _ in range(2)]
        for asked in (left, kept):
            server.notes("subscriptions/acknowledged", _meta={SUBSCRIPTION: asked.id}, notifications={})
        await gone.event()
        gone.reset()
        assert (await server.hears("notifications/cancelled")).params == {"requestId": left.id}
        server.notes("tools/list_changed", _meta={SUBSCRIPTION: kept.id})
        assert (await stays.message())["params"]["_meta"] == {SUBSCRIPTION: "L"}
        assert (await stays.message())["method"] == "notifications/tools/list_changed"


@pytest.mark.spec("CP-2", "SB-6")
async def test_subscription_that_the_server_tears_down_ends_its_stream() -> None:
    async with bridged() as bridge:
        server = await bridge.modern_server()
        exchange, asked = await calls(bridge, server, listen(1))
        server.notes("subscriptions/acknowledged", _meta={SUBSCRIPTION: asked.id}, notifications={})
        server.notes("cancelled", requestId=asked.id)
        assert [m["method"] for m in (await exchange.answer()).messages] == [
            "notifications/subscriptions/acknowledged"
        ]


@pytest.mark.spec("HM-13", "HM-17")
async def test_subscription_that_the_server_does_not_know_is_refused_with_404() -> None:
    async with bridged() as bridge:
        server = await bridge.modern_server()
        exchange, asked = await calls(bridge, server, listen(1))
        server.refuses(asked)
        assert (await exchange.answer()).status == 404


@pytest.mark.spec("CM-11", "SB-5", "SB-3")
async def test_subscription_has_no_time_limit_and_ends_in_good_order_with_the_bridge() -> None:
    async with bridged(timing=replace(UNHURRIED, request=0.05)) as bridge:
        server = await bridge.modern_server()
        exchange, asked = await calls(bridge, server, listen("L"))
        server.notes("subscriptions/acknowledged", _meta={SUBSCRIPTION: asked.id}, notifications={})
        witness, _ = await calls(bridge, server, modern(1, "prompts/list"))
        assert (await witness.answer()).error["data"]["reason"] == "upstream_timeout"
        await server.hears("notifications/cancelled")
        await bridge.relay.drained()
    answer = await exchange.answer()
    assert answer.last == {
        "jsonrpc": "2.0",
        "id": "L",
        "result": {"resultType": "complete", "_meta": {SUBSCRIPTION: "L"}},
    }


# --- parameter headers ---

REGIONAL: Json = {
    "name": "q",
    "inputSchema": {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    },
}


def regional(region: str) -> Json:
    return modern(1, "tools/call", name="q", arguments={"region": region})


@pytest.mark.spec("HM-11", "XH-9", "XH-15")
@pytest.mark.parametrize(("header", "status"), [("eu", 200), ("us", 400), (None, 400)])
async def test_parameter_header_is_held_against_the_argument(header: str | None, status: int) -> None:
    async with bridged() as bridge:
        headers = {} if header is None else {"Mcp-Param-Region": header}
        exchange = await bridge.post_modern(regional("eu"), headers)
        server = await bridge.source.next()
        await walked(server, REGIONAL)
        if status == 200:
            server.answers(await server.hears("tools/call"))
        answer = await exchange.answer()
        assert answer.status == status
        assert not server.unread
        if status == 400:
            assert (answer.error["code"], answer.last["id"]) == (-32020, 1)


async def test_tools_are_looked_at_once_page_by_page_however_many_call() -> None:
    async with bridged() as bridge:
        first, second = [await bridge.post_modern(tool_call()) for _ in range(2)]
        server = await bridge.source.next()
        server.answers(await server.hears("tools/list"), {"tools": [REGIONAL], "nextCursor": "c 2="})
        page = await server.hears("tools/list")
        assert page.params["cursor"] == "c 2="
        server.answers(page, {"tools": []})
        for _ in range(2):
            server.answers(await server.hears("tools/call"))
        assert [(await one.answer()).status for one in (first, second)] == [200, 200]
        assert not server.unread


async def test_tool_that_lost_its_annotation_is_not_held_to_it() -> None:
    async with bridged() as bridge:
        exchange = await bridge.post_modern(regional("eu"), {"Mcp-Param-Region": "eu"})
        server = await bridge.source.next()
        await walked(server, REGIONAL)
        server.answers(await server.hears("tools/call"))
        assert (await exchange.answer()).status == 200
        exchange = await bridge.post_modern(regional("eu"))
        await walked(server, {**REGIONAL, "inputSchema": {"type": "object"}})
        server.answers(await server.hears("tools/call"))
        assert (await exchange.answer()).status == 200


async def test_server_without_tools_still_gets_the_call() -> None:
    async with bridged() as bridge:
        exchange = await bridge.post_modern(tool_call())
        server = await bridge.source.next()
        server.refuses(await server.hears("tools/list"))
        server.refuses(await server.hears("tools/call"), -32602, "Unknown tool")
        answer = await exchange.answer()
        assert (answer.status, answer.error["message"]) == (200, "Unknown tool")
        await bridge.post_modern(tool_call())
        await server.hears("tools/call")  # and is not asked for its tools again


async def test_client_that_leaves_while_the_tools_are_looked_at_harms_nobody() -> None:
    async with bridged() as bridge:
        gone = await bridge.post_modern(tool_call())
        server = await bridge.source.next()
        asked = await server.hears("tools/list")
        gone.reset()
        assert (await server.hears("notifications/cancelled")).params == {"requestId": asked.id}
        exchange = await bridge.post_modern(tool_call())
        await walked(server)
        server.answers(await server.hears("tools/call"))
        assert (await exchange.answer()).status == 200


async def test_server_that_never_lists_its_tools_is_called_in_the_end() -> None:
    async with bridged(timing=replace(UNHURRIED, start=0.02)) as bridge:
        exchange = await bridge.post_modern(tool_call())
        server = await bridge.source.next()
        await server.hears("tools/list")
        await server.hears("notifications/cancelled")
        server.answers(await server.hears("tools/call"))
        assert (await exchange.answer()).status == 200
        await bridge.post_modern(tool_call())
        await server.hears("tools/call")  # once is enough
