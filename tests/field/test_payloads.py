"""Field cases ID, the part on payloads: what is carried arrives as it was written, or is refused whole."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator

import pytest

from .conftest import Bridge, Start, child
from .raw import BOTH, JSON_ONLY, SSE_ONLY
from .session import (
    Caller,
    Json,
    Modern,
    Session,
    call,
    line,
    notification,
    old,
    request,
    run,
    session,
)

NUMBERS = (
    "1234567890123456789",
    "0.1000000000000000055",
    "1.0",
    "1E5",
    "-0",
    "1e400",
    "9" * 5000,
    # And their neighbours: beyond 64 bits, beyond a double, signs and exponents of every make.
    "18446744073709551616",
    "-9223372036854775809",
    "-0.0",
    "1e-400",
    "1E+05",
    "1.10",
    "-" + "8" * 5000,
    "0." + "3" * 5000,
)
DEPTH = 128
"""Levels that a whole message may nest; docs/options.md and the errors say the same."""


@pytest.fixture(scope="module")
def own(start_bridge: Start) -> Bridge:
    return start_bridge(child("scripted.py"), "--legacy-sse")


@pytest.fixture(scope="module")
def shared(start_bridge: Start) -> Bridge:
    return start_bridge(child("scripted.py"), "--process", "shared")


@pytest.fixture(params=["own", "shared"])
def bridge(request: pytest.FixtureRequest) -> Iterator[Bridge]:
    found: Bridge = request.getfixturevalue(request.param)
    yield found
    assert found.process.poll() is None, found.tail()


@pytest.fixture(params=["own", "shared", "modern", "old"])
async def caller(request: pytest.FixtureRequest, own: Bridge, shared: Bridge) -> AsyncIterator[Caller]:
    """A session with a child of its own, one that shares its child, and clients of other eras."""
    if request.param == "modern":
        yield Modern(own.port)
    elif request.param == "old":
        async with old(own.port) as client:
            yield client
    else:
        async with session((own if request.param == "own" else shared).port) as found:
            yield found


def result(text: str) -> Json:
    """The step that answers with this JSON text as its result."""
    return line(f'{{"jsonrpc":"2.0","id":$ID,"result":{text}}}')


async def still_works(caller: Caller) -> None:
    assert (await caller.run()).result["content"][0]["text"] == "done"


def nested(depth: int, kind: str) -> str:
    opening, closing = ('{"a":', "}") if kind == "object" else ("[", "]")
    return opening * depth + "0" + closing * depth


class TestNumbers:
    @pytest.mark.case("ID-03")
    @pytest.mark.parametrize("number", NUMBERS, ids=lambda text: text[:24])
    @pytest.mark.parametrize("accept", [JSON_ONLY, SSE_ONLY])
    async def test_number_in_a_result_stays_as_written(
        self, caller: Caller, number: str, accept: str
    ) -> None:
        text = f'{{"structuredContent":{{"n":{number},"l":[{number}]}},"content":[],"m":{number}}}'
        answer = await caller.run(result(text), accept=accept)
        assert f'"result":{text}'.encode() in answer.payloads[0]

    @pytest.mark.case("ID-03")
    @pytest.mark.parametrize("number", NUMBERS, ids=lambda text: text[:24])
    async def test_number_in_arguments_stays_as_written(self, caller: Caller, number: str) -> None:
        text = f'{{"n":{number},"l":[{number}]}}'.encode()
        body = caller.body(call(1, "echo")).replace(b'"arguments":{}', b'"arguments":' + text)
        answer = await caller.post(body)
        assert b'"x-arguments":' + text + b"}" in answer.payloads[0]

    @pytest.mark.case("ID-03")
    @pytest.mark.parametrize("number", NUMBERS, ids=lambda text: text[:24])
    async def test_number_in_an_error_and_in_progress_stays_as_written(
        self, caller: Caller, number: str
    ) -> None:
        """The token is exchanged on a shared child, and nothing else of the notification is."""
        rest = f'"progress":{number},"total":{number},"_meta":{{"n":{number}}}'
        error = f'{{"code":-31999,"message":"m","data":[{number}]}}'
        answer = await caller.run(
            line(
                f'{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":$TOKEN,{rest}}}}}'
            ),
            line(f'{{"jsonrpc":"2.0","id":$ID,"error":{error}}}'),
            token="t",
        )
        first, last = answer.payloads
        assert f'{{"progressToken":"t",{rest}}}'.encode() in first
        assert f'"error":{error}'.encode() in last

    @pytest.mark.case("ID-03")
    @pytest.mark.parametrize("number", NUMBERS, ids=lambda text: text[:24])
    async def test_number_in_a_question_and_its_answer_stays_as_written(
        self, bridge: Bridge, number: str
    ) -> None:
        params = f'{{"n":{number}}}'
        asked = f'{{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{params}}}'
        async with session(bridge.port, capabilities={"elicitation": {}}) as client:
            async with client.posted(run(1, line(asked), {"hear": '"q"'}), SSE_ONLY) as stream:
                event = await stream.event()
                assert params.encode() in event.data
                reply = {"jsonrpc": "2.0", "id": event.message["id"], "result": {"x": "@"}}
                await client.reply(client.body(reply).replace(b'"@"', number.encode()))
                assert (await stream.message())["id"] == 1
            assert f'"result":{{"x":{number}}}'.encode() in (await client.received(b'"id":"q"'))[-1]

    @pytest.mark.case("ID-03")
    @pytest.mark.parametrize("accept", [JSON_ONLY, SSE_ONLY])
    async def test_only_tokens_of_json_are_ever_written(self, caller: Caller, accept: str) -> None:
        answer = await caller.run(result('{"x":[1e400,-1e400,-0,1e-400]}'), accept=accept)
        assert not re.search(rb"Infinity|NaN|\binf\b", answer.body)
        for token in ("NaN", "Infinity", "-Infinity", "1.", ".5", "01", "+1", "0x10", "1_000"):
            refused = await caller.run(result(f'{{"x":{token}}}'), accept=accept)
            assert refused.error["code"] == -32603, token
        await still_works(caller)


class TestDepth:
    @pytest.mark.case("ID-09")
    @pytest.mark.parametrize("depth", [100, DEPTH - 2])
    @pytest.mark.parametrize("kind", ["object", "array"])
    async def test_arguments_up_to_the_limit_pass(self, bridge: Bridge, depth: int, kind: str) -> None:
        """The message and its params are two levels, the arguments themselves the third."""
        async with session(bridge.port) as client:
            arguments = f'{{"x":{nested(depth - 1, kind)}}}'.encode()
            answer = await client.post(_with_arguments(client, arguments))
            # The answer repeats them one level deeper than the limit when they reach it.
            if depth == 100:
                assert b'"x-arguments":' + arguments in answer.body
            assert (await client.received(b'"echo"'))[-1].endswith(arguments + b"}}")

    @pytest.mark.case("ID-09")
    @pytest.mark.parametrize("depth", [DEPTH - 1, 300, 2_000, 200_000])
    @pytest.mark.parametrize("kind", ["object", "array"])
    async def test_arguments_beyond_the_limit_are_refused_before_the_child(
        self, caller: Caller, depth: int, kind: str
    ) -> None:
        arguments = f'{{"deep":{nested(depth - 1, kind)}}}'.encode()
        answer = await caller.post(_with_arguments(caller, arguments))
        assert answer.status == 400
        assert answer.error["code"] in (-32600, -32700)
        await still_works(caller)
        assert await caller.received(b'"deep"') == []

    @pytest.mark.case("ID-09")
    @pytest.mark.parametrize("depth", [100, DEPTH - 2])
    @pytest.mark.parametrize(("opening", "closing"), [('{"a":', "}"), ("[", "]")])
    @pytest.mark.parametrize("accept", [JSON_ONLY, SSE_ONLY])
    async def test_result_up_to_the_limit_passes(
        self, caller: Caller, depth: int, opening: str, closing: str, accept: str
    ) -> None:
        answer = await caller.run({"nested": [depth, opening, closing]}, accept=accept)
        assert f'"result":{{"x":{opening * depth}0{closing * depth}}}'.encode() in answer.payloads[0]

    @pytest.mark.case("ID-09")
    @pytest.mark.parametrize("depth", [DEPTH - 1, 300, 2_000, 200_000])
    @pytest.mark.parametrize(("opening", "closing"), [('{"a":', "}"), ("[", "]")])
    @pytest.mark.parametrize("accept", [JSON_ONLY, SSE_ONLY])
    async def test_result_beyond_the_limit_ends_its_call_with_an_error(
        self, caller: Caller, depth: int, opening: str, closing: str, accept: str
    ) -> None:
        answer = await caller.run({"nested": [depth, opening, closing]}, accept=accept)
        assert answer.error["code"] == -32603
        assert str(DEPTH) in answer.error["message"]
        await still_works(caller)

    @pytest.mark.case("ID-09")
    async def test_brackets_in_strings_are_no_depth(self, caller: Caller) -> None:
        text = '[{"\\' * 5000
        arguments = json.dumps({"x": text}).encode()
        answer = await caller.post(_with_arguments(caller, arguments))
        assert answer.result["x-arguments"] == {"x": text}

    @pytest.mark.case("ID-09")
    @pytest.mark.parametrize(
        "text", ["[" * 200_000, '{"a":' * 200_000, '{"jsonrpc":"2.0","id":1,"x":' + "[" * 200_000]
    )
    async def test_depth_that_is_never_closed_is_refused(self, caller: Caller, text: str) -> None:
        port, headers = caller.port, Session(caller.port, [*caller.headers])
        answer = await headers.post(text.encode())
        assert answer.status == 400
        assert answer.error["code"] in (-32600, -32700)
        await still_works(Modern(port) if isinstance(caller, Modern) else caller)

    @pytest.mark.case("ID-09")
    async def test_deep_notification_of_a_client_is_refused_and_of_a_server_dropped(
        self, bridge: Bridge
    ) -> None:
        deep = notification("notifications/deep", {"x": "@"})
        async with session(bridge.port) as client, client.listening() as stream:
            await stream.head()
            refused = await client.post(client.body(deep).replace(b'"@"', nested(300, "array").encode()))
            assert refused.status == 400
            assert await client.received(b"notifications/deep") == []
            text = client.body(deep).decode().replace('"@"', nested(300, "array"))
            await client.run({"line": text}, line(notification("notifications/flat")))
            assert (await stream.message())["method"] == "notifications/flat"

    @pytest.mark.case("ID-09", "RT-01")
    async def test_deep_question_of_a_server_is_answered_with_an_error(self, bridge: Bridge) -> None:
        """It reaches no client, and the server must not wait for ever."""
        params = f'{{"x":{nested(300, "array")}}}'
        asked = f'{{"jsonrpc":"2.0","id":"deep","method":"elicitation/create","params":{params}}}'
        async with session(bridge.port, capabilities={"elicitation": {}}) as client:
            async with client.posted(run(1, {"line": asked}, {"hear": '"deep"'})) as stream:
                assert (await stream.answer()).result["content"][0]["text"] == "done"
            (reply,) = await client.heard(b'"id":"deep"')
            assert reply["error"]["code"] in (-32600, -32601, -32602, -32700)


def _with_arguments(caller: Caller, arguments: bytes) -> bytes:
    return caller.body(call(1, "echo")).replace(b'"arguments":{}', b'"arguments":' + arguments)


STRANGE = {
    "structuredContent": {"a": [], "b": {}, "c": None},
    "_meta": {"x-vendor/key": {"deep": [None]}, "progressToken": "not one"},
    "x-vendor": True,
    "nothing": None,
    "empty": [],
    "hasOwnProperty": 1,
    "__proto__": {"polluted": True},
    "constructor": "c",
    "": "the empty key",
    "id": 5,
    "jsonrpc": "1.0",
    "method": "tools/call",
    "é\0\U0001f600": "odd key",
    "content": [
        {"type": "text", "text": "t", "annotations": {"audience": ["user"], "priority": 0.5}, "x": 1}
    ],
}
TOOL = {
    "name": "t",
    "title": "T",
    "description": "",
    "inputSchema": {"type": "object", "properties": {}, "$schema": "x", "x-order": ["b", "a"]},
    "outputSchema": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}},
    "annotations": {"readOnlyHint": True, "x-hint": None},
    "icons": [{"src": "data:,", "sizes": ["any"], "theme": "dark"}],
    "execution": {"taskSupport": "optional"},
    "_meta": {},
}


class TestUnknownMembers:
    @pytest.mark.case("ID-11")
    @pytest.mark.parametrize("value", [STRANGE, {"tools": [TOOL], "nextCursor": "n", "x": {}}, {}])
    @pytest.mark.parametrize("accept", [JSON_ONLY, SSE_ONLY])
    async def test_result_arrives_as_it_was_written(self, caller: Caller, value: Json, accept: str) -> None:
        text = json.dumps(value)
        answer = await caller.run(result(text), accept=accept)
        assert f'"result":{text}}}'.encode() in answer.payloads[0]

    @pytest.mark.case("ID-11")
    async def test_unknown_members_beside_the_result_survive(self, caller: Caller) -> None:
        answer = await caller.run(
            line('{"x-first":[1, 2],"jsonrpc":"2.0","id":$ID,"result":{},"x-last":null,"":{}}')
        )
        assert answer.last | {"id": 0} == {
            "x-first": [1, 2],
            "jsonrpc": "2.0",
            "id": 0,
            "result": {},
            "x-last": None,
            "": {},
        }

    @pytest.mark.case("ID-11")
    @pytest.mark.parametrize("code", [-31999, -32000, 0, 1, 404, -32602])
    async def test_error_arrives_with_its_code_and_data(self, caller: Caller, code: int) -> None:
        error = {"code": code, "message": "m", "data": {"deep": [STRANGE]}, "x-more": None}
        answer = await caller.run(line(_failed(error)))
        assert answer.error == error

    @pytest.mark.case("ID-11")
    async def test_arguments_and_meta_arrive_as_they_were_written(self, caller: Caller) -> None:
        asked = call(1, "echo", STRANGE)
        asked["params"] = {"_meta": {"x-vendor/key": {"deep": [None]}}, **asked["params"]}
        assert (await caller.post(asked)).result["x-arguments"] == STRANGE
        (sent,) = [one for one in await caller.heard(b'"x-vendor/key"') if one["params"]["name"] == "echo"]
        assert sent["params"]["_meta"]["x-vendor/key"] == {"deep": [None]}

    @pytest.mark.case("ID-11")
    async def test_unknown_request_reaches_the_server_and_its_answer_the_client(self, caller: Caller) -> None:
        params = {"x": [None, {"": "y"}]}
        answer = await caller.post(request("v", "vendor/ask", params))
        assert answer.result["heard"] | {"_meta": 0} == params | {"_meta": 0}

    @pytest.mark.case("ID-11")
    async def test_unknown_notification_reaches_the_server(self, bridge: Bridge) -> None:
        note = {**notification("notifications/vendor", {"x": [None]}), "x-beside": 1}
        async with session(bridge.port) as client:
            assert (await client.post(note)).status == 202
            assert await client.heard(b"notifications/vendor") == [note]

    @pytest.mark.case("ID-11")
    async def test_unknown_notification_reaches_the_client(self, bridge: Bridge) -> None:
        note = {**notification("notifications/vendor", {"x": [None], "_meta": {}}), "x-beside": 1}
        async with session(bridge.port) as client, client.listening() as stream:
            await stream.head()
            await client.run(line(note))
            assert await stream.message() == note

    @pytest.mark.case("ID-11")
    async def test_unknown_request_reaches_the_client_and_its_answer_the_server(self, bridge: Bridge) -> None:
        asked = {**request("vq", "vendor/question", {"x": [None]}), "x-beside": 1}
        async with session(bridge.port) as client:
            async with client.posted(run(1, line(asked), {"hear": '"vq"'}), SSE_ONLY) as stream:
                assert await stream.message() == asked
                reply = {"jsonrpc": "2.0", "id": "vq", "result": STRANGE, "x-beside": None}
                await client.reply(reply)
                assert (await stream.message())["id"] == 1
            assert (await client.heard(b'"id":"vq"'))[-1] == reply

    @pytest.mark.case("ID-11")
    async def test_handshake_result_keeps_what_nobody_knows(self, bridge: Bridge) -> None:
        async with session(bridge.port) as client:
            known = client.initialized
            assert known["capabilities"]["experimental"] == {"x-vendor": {"deep": [1, None, {}]}}
            assert known["serverInfo"]["x-more"] is True
            assert known["instructions"] == "say what you want"

    @pytest.mark.case("ID-11")
    @pytest.mark.parametrize("escape", [r"\ud800", r"\udfff x", r"a\u0000b", r"\/", r"\u00e9"])
    async def test_escapes_stay_as_written(self, caller: Caller, escape: str) -> None:
        """Half of a surrogate pair is JSON, though no text; it is not ours to judge."""
        text = f'{{"x":"{escape}","{escape}":1}}'
        answer = await caller.run(result(text))
        assert f'"result":{text}}}'.encode() in answer.payloads[0]
        echoed = await caller.post(_with_arguments(caller, text.encode()))
        assert b'"x-arguments":' + text.encode() + b"}" in echoed.payloads[0]

    @pytest.mark.case("ID-11")
    async def test_equal_keys_inside_a_payload_are_not_ours_to_judge(self, caller: Caller) -> None:
        text = '{"x":{"a":1,"a":2}}'
        answer = await caller.run(result(text))
        assert f'"result":{text}}}'.encode() in answer.payloads[0]


def _failed(error: Json) -> str:
    return f'{{"jsonrpc":"2.0","id":$ID,"error":{json.dumps(error)}}}'


class TestCursors:
    @pytest.mark.case("ID-12")
    @pytest.mark.parametrize("kind", ["tools", "resources", "prompts"])
    @pytest.mark.parametrize("accept", [JSON_ONLY, SSE_ONLY])
    async def test_every_page_is_shown_and_the_last_is_the_last(
        self, caller: Caller, kind: str, accept: str
    ) -> None:
        """By a readable cursor, by an opaque one, and by the empty one, which is not none."""
        names: list[str] = []
        params: Json = {}
        for _ in range(2):
            found = (await caller.post(request(1, f"{kind}/list", params), accept)).result
            names += [one["name"] for one in found[kind]]
            params = {"cursor": found.get("nextCursor")}
        assert names == [f"tool-{n}" for n in range(14)]
        assert params == {"cursor": None}

    @pytest.mark.case("ID-12")
    @pytest.mark.parametrize("cursor", ["8 ", "a+b/c= d&e==", "%38", "é", '"', "\\", "x" * 4096])
    async def test_cursor_that_is_none_is_for_the_server_to_refuse(self, caller: Caller, cursor: str) -> None:
        answer = await caller.post(request(1, "tools/list", {"cursor": cursor}))
        assert answer.error["message"] == "no such page"
        assert (await caller.heard(b'"cursor"'))[-1]["params"]["cursor"] == cursor

    @pytest.mark.case("ID-12")
    async def test_nothing_is_answered_from_an_earlier_page(self, caller: Caller) -> None:
        first = [await caller.result(request(n, "tools/list")) for n in (1, 2)]
        second = await caller.result(request(3, "tools/list", {"cursor": "8"}))
        assert len(first[0]["tools"]) == len(first[1]["tools"]) == 8
        assert len(second["tools"]) == 6


class TestJudgement:
    @pytest.mark.case("ID-13")
    @pytest.mark.parametrize(
        "value",
        [
            {"structuredContent": {"n": "no integer"}, "content": []},
            {"structuredContent": [1, 2], "content": []},
            {"structuredContent": 7},
            {"content": "no array"},
            {"content": [{"type": "unheard-of"}], "isError": "maybe"},
            [],
            "text",
            7,
            None,
            True,
        ],
    )
    @pytest.mark.parametrize("accept", [JSON_ONLY, SSE_ONLY])
    async def test_result_that_breaks_its_schema_is_passed_on(
        self, caller: Caller, value: object, accept: str
    ) -> None:
        answer = await caller.run(result(json.dumps(value)), accept=accept)
        assert answer.result == value

    @pytest.mark.case("ID-13")
    @pytest.mark.parametrize("arguments", [b"[]", b"7", b'"x"', b"null"])
    async def test_arguments_that_break_the_schema_are_for_the_server_to_refuse(
        self, caller: Caller, arguments: bytes
    ) -> None:
        answer = await caller.post(_with_arguments(caller, arguments), BOTH)
        assert b'"x-arguments":' + arguments + b"}" in answer.payloads[0]
