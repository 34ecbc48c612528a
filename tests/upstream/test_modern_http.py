"""Modern requests to a remote server: headers that repeat the body, streams that are the request's life."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from support.scripted_http import Exchange, Handler, Json, Remote

from upstream.remotes import META, connected


def tool(name: str, header: object = "Region", **more: object) -> Json:
    properties = {"region": {"type": "string", "x-mcp-header": header}, **more}
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}}


def mismatch(request_id: object) -> bytes:
    error = {"code": -32020, "message": "Header mismatch"}
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}).encode()


class Strict(Remote):
    """Lists tools in pages of one, and refuses a call whose `Mcp-Param-Region` is not its argument."""

    def __init__(self, *tools: Json, on: dict[str, Handler] | None = None) -> None:
        super().__init__(on)
        self.tools = tools

    async def handle(self, exchange: Exchange) -> None:
        if exchange.rpc == "tools/list" and exchange.rpc not in self.on:
            at = int(exchange.json["params"].get("cursor", 0))
            following = {"nextCursor": str(at + 1)} if at + 1 < len(self.tools) else {}
            exchange.result({"tools": self.tools[at : at + 1], **following})
        elif exchange.rpc == "tools/call" and exchange.rpc not in self.on:
            region = exchange.json["params"]["arguments"].get("region")
            if exchange.headers.get("mcp-param-region") == region:
                exchange.result({"content": []})
            else:
                exchange.reply(400, mismatch(exchange.id))
        else:
            await super().handle(exchange)


@pytest.mark.spec("CM-1", "CM-2", "CM-3")
@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("tools/call", {"name": "echo"}, "echo"),
        ("prompts/get", {"name": "p"}, "p"),
        ("resources/read", {"uri": "file:///a"}, "file:///a"),
        ("tools/call", {"name": " größe"}, "=?base64?IGdyw7bDn2U=?="),
        ("server/discover", {}, None),
    ],
)
async def test_headers_repeat_the_body_and_name_no_session(
    method: str, params: Json, name: str | None
) -> None:
    async with Remote() as server, connected(server.url()) as client:
        await client.initialize()
        client.modern(1, method, params)
        await client.result(1)
        sent = server.asked(method)[0]
        assert sent.json["params"] == {**params, "_meta": META}
        assert sent.headers["mcp-protocol-version"] == "2026-07-28"
        assert sent.headers["mcp-method"] == method
        assert sent.headers.get("mcp-name") == name
        assert sent.headers["accept"] == "application/json, text/event-stream"
        assert "mcp-session-id" not in sent.headers


@pytest.mark.spec("CM-5")
@pytest.mark.case("TF-05")
@pytest.mark.parametrize("begun", [False, True])
async def test_cancelling_closes_the_stream_and_says_nothing(begun: bool) -> None:
    async def call(exchange: Exchange) -> None:
        if begun:
            exchange.stream()
            exchange.say({"jsonrpc": "2.0", "method": "notifications/progress"})
        await exchange.left.wait()

    async with Remote({"tools/call": call}) as server, connected(server.url()) as client:
        client.modern(1, "tools/call", {"name": "t"})
        hanging = await server.until_asked("tools/call")
        if begun:
            await client.until(lambda: client.told("notifications/progress"))
        client.tell("notifications/cancelled", {"requestId": 1})
        await server.until(hanging.left.is_set)
        client.modern(2, "tools/list")
        await client.result(2)
        assert not client.answers(1)
        assert not server.asked("notifications/cancelled")


async def test_a_request_cancelled_at_once_is_not_mistaken_for_a_legacy_one() -> None:
    async with Remote() as server, connected(server.url()) as client:
        client.modern(1, "tools/call", {"name": "t"})
        client.tell("notifications/cancelled", {"requestId": 1})
        client.modern(2, "tools/list")
        await client.result(2)
        assert not server.asked("notifications/cancelled")
        assert not client.answers(1)


@pytest.mark.spec("CM-6")
@pytest.mark.parametrize("how", [Exchange.end, Exchange.cut])
async def test_a_broken_stream_has_lost_the_request(how: Any) -> None:
    async def call(exchange: Exchange) -> None:
        exchange.stream(b"id: 5\nretry: 1\ndata:\n\n")
        how(exchange)

    async with Remote({"tools/call": call}) as server, connected(server.url()) as client:
        client.modern(1, "tools/call", {"name": "t"})
        assert (await client.error(1))["data"] == {"origin": "bridge", "reason": "upstream_lost"}
        assert server.rpcs() == ["tools/call"]


@pytest.mark.spec("CM-4", "CM-11")
async def test_a_listening_stream_brings_notifications_until_its_answer() -> None:
    async def listen(exchange: Exchange) -> None:
        exchange.stream(b": keep-alive\n\n")
        for number in range(3):
            exchange.say({"jsonrpc": "2.0", "method": "notifications/n", "params": {"n": number}})
        exchange.answer({})
        exchange.end()

    async with Remote({"subscriptions/listen": listen}) as server, connected(server.url()) as client:
        client.modern("sub", "subscriptions/listen")
        await client.result("sub")
        assert [one["params"]["n"] for one in client.told("notifications/n")] == [0, 1, 2]
        assert client.on == ["sub"] * 4


@pytest.mark.spec("CM-10", "CM-9")
@pytest.mark.parametrize(("status", "code"), [(404, -32601), (400, -32022), (400, -32021), (400, -32602)])
async def test_a_servers_own_error_passes_whatever_its_status(status: int, code: int) -> None:
    async def refuse(exchange: Exchange) -> None:
        error = {"code": code, "message": "Mine", "data": {"supported": ["2026-07-28"]}}
        exchange.reply(status, json.dumps({"jsonrpc": "2.0", "id": exchange.id, "error": error}).encode())

    async with Remote({"tools/call": refuse}) as server, connected(server.url()) as client:
        client.modern(1, "tools/call", {"name": "t"})
        assert (await client.error(1))["code"] == code
        assert server.rpcs() == ["tools/call"]


# --- parameters in headers ---


@pytest.mark.spec("CM-3", "XH-6", "XH-7", "XH-5")
async def test_parameters_of_a_listed_tool_are_repeated_in_headers() -> None:
    listed = tool(
        "t",
        count={"type": "integer", "x-mcp-header": "Count"},
        loud={"type": "boolean", "x-mcp-header": "Loud"},
        none={"type": "string", "x-mcp-header": "None"},
        plain={"type": "string"},
    )
    async with Strict(listed) as server, connected(server.url()) as client:
        client.modern(1, "tools/list")
        await client.result(1)
        arguments = {"region": "käse", "count": 42, "loud": True, "none": None, "plain": "x"}
        server.on["tools/call"] = Remote().handle
        client.modern(2, "tools/call", {"name": "t", "arguments": arguments})
        await client.result(2)
        sent = {
            name: value for name, value in server.asked("tools/call")[0].headers.items() if "param" in name
        }
        assert sent == {
            "mcp-param-region": "=?base64?a8Okc2U=?=",
            "mcp-param-count": "42",
            "mcp-param-loud": "true",
        }


def parameters(exchange: Exchange) -> Json:
    return {name: value for name, value in exchange.headers.items() if name.startswith("mcp-param")}


@pytest.mark.spec("XH-11")
async def test_headers_beside_a_request_go_with_it_and_never_in_place_of_what_its_body_says() -> None:
    beside = (("MCP-PARAM-region", "us"), ("Mcp-Param-Foo", "x"), ("mcp-param-foo", "y"))
    async with Strict(tool("t")) as server, connected(server.url()) as client:
        client.modern(1, "tools/list", headers=beside)
        await client.result(1)
        assert parameters(server.asked("tools/list")[0]) == {
            "mcp-param-region": "us",
            "mcp-param-foo": "x, y",
        }
        client.modern(2, "tools/call", {"name": "t", "arguments": {"region": "eu"}}, beside)
        await client.result(2)
        assert parameters(server.asked("tools/call")[0]) == {
            "mcp-param-region": "eu",
            "mcp-param-foo": "x, y",
        }


@pytest.mark.spec("XH-11", "CM-7")
async def test_headers_beside_a_call_go_with_its_second_try_and_not_with_our_look_at_the_tools() -> None:
    async with Strict(tool("t")) as server, connected(server.url()) as client:
        arguments = {"name": "t", "arguments": {"region": "eu"}}
        client.modern(1, "tools/call", arguments, (("Mcp-Param-Foo", "x"),))
        await client.result(1)
        first, second = server.asked("tools/call")
        assert parameters(first) == {"mcp-param-foo": "x"}
        assert parameters(second) == {"mcp-param-foo": "x", "mcp-param-region": "eu"}
        assert [parameters(one) for one in server.asked("tools/list")] == [{}]


async def test_configured_header_takes_the_place_of_one_beside_the_request() -> None:
    async with Remote() as server, connected(server.url(), headers=(("Mcp-Param-Foo", "ours"),)) as client:
        client.modern(1, "vendor/do", headers=(("mcp-param-FOO", "theirs"),))
        await client.result(1)
        [asked] = server.asked("vendor/do")
        assert parameters(asked) == {"mcp-param-foo": "ours"}


@pytest.mark.spec("CM-3")
async def test_tools_of_every_page_are_learnt() -> None:
    async with Strict(tool("a"), tool("b")) as server, connected(server.url()) as client:
        client.modern(1, "tools/list")
        await client.result(1)
        client.modern(2, "tools/list", {"cursor": "1"})
        await client.result(2)
        client.modern(3, "tools/call", {"name": "b", "arguments": {"region": "eu"}})
        await client.result(3)
        assert len(server.asked("tools/call")) == 1


@pytest.mark.spec("CM-7")
async def test_a_mismatch_makes_us_look_at_all_tools_once_and_call_once_more() -> None:
    async with Strict(tool("a"), tool("b")) as server, connected(server.url()) as client:
        meta = {**META, "progressToken": 7}
        params = {"name": "b", "arguments": {"region": "eu"}, "_meta": meta}
        client.ask(1, "tools/call", params)
        await client.result(1)
        assert server.rpcs() == ["tools/call", "tools/list", "tools/list", "tools/call"]
        assert [one.json["params"] for one in server.asked("tools/list")] == [
            {"_meta": META},
            {"_meta": META, "cursor": "1"},
        ]
        assert [one.json["params"] for one in server.asked("tools/call")] == [params, params]
        assert len(client.heard) == 1


@pytest.mark.spec("CM-7")
async def test_a_mismatch_that_stays_is_the_answer() -> None:
    async def refuse(exchange: Exchange) -> None:
        exchange.reply(400, mismatch(exchange.id))

    async with Strict(tool("a"), on={"tools/call": refuse}) as server, connected(server.url()) as client:
        client.modern(1, "tools/call", {"name": "a", "arguments": {"region": "eu"}})
        assert (await client.error(1))["code"] == -32020
        assert server.rpcs() == ["tools/call", "tools/list", "tools/call"]


@pytest.mark.spec("CM-7")
async def test_a_mismatch_whose_tools_cannot_be_listed_ends_in_one_error() -> None:
    async def fail(exchange: Exchange) -> None:
        exchange.reply(503)

    async with Strict(on={"tools/list": fail}) as server, connected(server.url()) as client:
        client.modern(1, "tools/call", {"name": "a", "arguments": {"region": "eu"}})
        assert "503" in (await client.error(1))["message"]


@pytest.mark.spec("CM-8", "XH-2", "XH-3")
async def test_a_tool_with_invalid_annotations_is_left_out_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tools = [tool("bad", "no token"), tool("good"), {"name": "plain", "inputSchema": {"type": "object"}}]

    async def listing(exchange: Exchange) -> None:
        exchange.result({"tools": tools, "ttlMs": 5, "nextCursor": "n"})

    async with Remote({"tools/list": listing}) as server, connected(server.url()) as client:
        client.modern(1, "tools/list")
        result = await client.result(1)
        assert [one["name"] for one in result["tools"]] == ["good", "plain"]
        assert result["ttlMs"] == 5
        assert result["nextCursor"] == "n"
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "bad" in warning
    assert "x-mcp-header" in warning


async def test_a_list_without_annotations_passes_byte_for_byte() -> None:
    result = b'{"tools":[ {"name":"a","inputSchema":{"n":1.0}}]}'

    async def listing(exchange: Exchange) -> None:
        exchange.reply(200, b'{"jsonrpc":"2.0","id":1,"result":' + result + b"}")

    async with Remote({"tools/list": listing}) as server, connected(server.url()) as client:
        client.modern(1, "tools/list")
        await client.result(1)
        assert result in client.raw[0]


@pytest.mark.parametrize("name", ['"\\ud800"', '"a"'])
async def test_what_a_header_cannot_carry_fails_its_request_only(name: str) -> None:
    version = "2026\\n07" if name == '"a"' else "2026-07-28"
    meta = f'{{"io.modelcontextprotocol/protocolVersion":"{version}"}}'
    params = f'{{"name":{name},"_meta":{meta}}}'
    async with Remote() as server, connected(server.url()) as client:
        line = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'
        client.upstream.send(line.encode())
        assert (await client.error(1))["data"]["origin"] == "bridge"
        client.modern(2, "tools/list")
        await client.result(2)
        assert not server.asked("tools/call")


async def test_modern_calls_run_beside_a_legacy_session() -> None:
    held = anyio.Event()

    async def call(exchange: Exchange) -> None:
        if "mcp-session-id" in exchange.headers:
            await held.wait()
        exchange.result({"session": "mcp-session-id" in exchange.headers})

    async with Remote({"tools/call": call}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        client.modern(2, "tools/call", {"name": "t"})
        assert await client.result(2) == {"session": False}
        held.set()
        assert await client.result(1) == {"session": True}
