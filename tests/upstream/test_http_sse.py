"""A remote server over HTTP+SSE: where its endpoint may lead, the order of POSTs, connections lost."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import anyio
import pytest
from support.scripted_http import Exchange, Handler, OldRemote, message
from yarl import URL

from bridge.config import Transport
from bridge.errors import ServerFault
from bridge.upstream import http_sse
from bridge.upstream.http_sse import ForeignEndpoint, NoEndpoint
from upstream.remotes import TIMING, connected, opened, source

SSE = Transport.SSE


# --- the endpoint ---


@pytest.mark.spec("EC-1")
async def test_every_message_is_posted_to_the_endpoint() -> None:
    async with OldRemote() as server, connected(server.url("/sse"), SSE) as client:
        await client.initialize()
        client.call(1, arguments={"a": 1.0})
        assert await client.result(1) == {"echo": {"name": "t", "arguments": {"a": 1.0}}}
        assert server.rpcs() == ["GET", "initialize", "notifications/initialized", "tools/call"]
        assert {one.target for one in server.seen[1:]} == {"/messages?sid=1"}
        assert server.seen[0].headers["accept"] == "text/event-stream"


@pytest.mark.case("LS-01")
@pytest.mark.spec("EC-2")
@pytest.mark.parametrize(
    ("named", "target"),
    [
        ("/messages?sid=1", "/messages?sid=1"),
        ("messages?sid=1", "/api/x/messages?sid=1"),
        ("./m", "/api/x/m"),
        ("../m", "/api/m"),
        ("?sid=1", "/api/x/sse?sid=1"),
        ("//{host}/m", "/m"),
        ("http://{host}/m?a=b%2Fc+d", "/m?a=b%2Fc+d"),
        ("/m \r", "/m"),
        ("  /m  ", "/m"),
    ],
)
async def test_the_endpoint_is_resolved_against_the_address_of_the_stream(named: str, target: str) -> None:
    async with OldRemote() as server:
        server.endpoint = named.format(host=server.url("").removeprefix("http://"))

        async def post(exchange: Exchange) -> None:
            exchange.reply(202)
            server.respond(exchange)

        server.on = {"initialize": post}
        async with connected(server.url("/api/x/sse"), SSE) as client:
            client.begin()
            await client.result("init")
        assert server.asked("initialize")[0].target == target


@pytest.mark.case("LS-01", "HT-01")
@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_the_endpoint_is_resolved_against_the_address_after_redirects(status: int) -> None:
    async def listen(exchange: Exchange) -> None:
        if exchange.target == "/sse":
            exchange.reply(status, Location="/new/place/sse")
        else:
            server.open_stream(exchange)
            await exchange.left.wait()

    async with OldRemote({"GET": listen}) as server:
        server.endpoint = "m"

        async def post(exchange: Exchange) -> None:
            exchange.reply(202)
            server.respond(exchange)

        server.on["initialize"] = post
        async with connected(server.url("/sse"), SSE) as client:
            client.begin()
            await client.result("init")
        assert server.asked("initialize")[0].target == "/new/place/m"


FOREIGN = [
    "http://0.0.0.0:3001/m",
    "https://127.0.0.1:{port}/m",
    "http://127.0.0.1:1/m",
    "http://example.invalid/m",
    "//example.invalid/m",
    "file:///etc/passwd",
]


@pytest.mark.case("LS-02")
@pytest.mark.spec("EC-2")
@pytest.mark.parametrize("named", FOREIGN)
async def test_an_endpoint_on_another_origin_is_refused_and_both_are_named(named: str) -> None:
    async with (
        OldRemote() as server,
        source(server.url("/sse"), SSE, headers=(("Authorization", "x"),)) as of,
    ):
        server.endpoint = named.format(port=server.port)
        with pytest.raises(ForeignEndpoint) as caught:
            await opened(of)
        assert server.url("") in str(caught.value)
        assert server.endpoint.removeprefix("http:").split("/")[2] in str(caught.value)
        assert "passwd" not in str(caught.value)
        assert server.rpcs() == ["GET"]


@pytest.mark.case("LS-02")
@pytest.mark.parametrize(
    "named", ["http://0.0.0.0:3001/a/m?sid=b%2F1", "https://example.invalid/a/m?sid=b%2F1"]
)
async def test_an_endpoint_on_another_origin_is_rewritten_if_told_to(named: str) -> None:
    async def post(exchange: Exchange) -> None:
        exchange.reply(202)
        server.respond(exchange)

    async with OldRemote({"initialize": post}) as server:
        server.endpoint = named
        async with connected(server.url("/x/sse"), SSE, rewrite_endpoint=True) as client:
            client.begin()
            await client.result("init")
        assert server.asked("initialize")[0].target == "/a/m?sid=b%2F1"


@pytest.mark.case("LS-02")
@pytest.mark.parametrize(
    ("base", "named"),
    [
        ("http://h/sse", "http://h:80/m"),
        ("https://h:443/sse", "https://h/m"),
        ("https://h/sse", "https://h:443/m"),
    ],
)
def test_a_default_port_spelled_out_is_the_same_origin(base: str, named: str) -> None:
    sse = http_sse.HttpSse.__new__(http_sse.HttpSse)
    assert sse._resolved(named.encode(), URL(base)).path == "/m"


async def silent(exchange: Exchange) -> None:
    exchange.stream(b": welcome\n\n")
    await exchange.left.wait()


async def ends(exchange: Exchange) -> None:
    exchange.stream(message({"jsonrpc": "2.0", "method": "x"}))
    exchange.end()


async def page(exchange: Exchange) -> None:
    exchange.reply(200, b"<html>", "text/html")


@pytest.mark.spec("EC-3")
@pytest.mark.parametrize("listen", [silent, ends, page])
async def test_a_get_that_names_no_endpoint_is_given_up(listen: Handler) -> None:
    async with OldRemote({"GET": listen}) as server:
        timing = replace(TIMING, endpoint=0.1) if listen is silent else TIMING
        async with source(server.url("/sse"), SSE, timing=timing) as of:
            with pytest.raises(NoEndpoint):
                await opened(of)
        await server.until(lambda: not server.connections)


@pytest.mark.case("TF-04")
@pytest.mark.parametrize("status", [401, 404, 500])
async def test_a_refused_get_is_told_with_its_status(status: int) -> None:
    async def refuse(exchange: Exchange) -> None:
        exchange.reply(status, b"Sorry", "text/plain")

    async with OldRemote({"GET": refuse}) as server, source(server.url("/sse"), SSE) as of:
        with pytest.raises(ServerFault, match=f"HTTP {status}: Sorry"):
            await opened(of)


# --- the stream ---


@pytest.mark.case("SE-01", "SE-02", "FR-03", "FR-04")
@pytest.mark.spec("RS-7")
@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
async def test_any_line_ends_and_cuts_give_the_same_messages(end: bytes) -> None:
    text = "é — 読 🎉\u2028\u2029\u0085|"
    answer = json.dumps(
        {"jsonrpc": "2.0", "id": "init", "result": {"text": text}}, ensure_ascii=False
    ).encode()
    lines = [
        b"event: endpoint",
        b"data: /messages?sid=1",
        b"",
        b"data:" + answer[:17],
        b"data: " + answer[17:],
        b"",
    ]

    async def listen(exchange: Exchange) -> None:
        exchange.stream()
        endpoint = len(end.join([*lines[:3], b""]))
        for at, byte in enumerate(end.join([*lines, b""])):
            if at == endpoint:
                await server.until_asked("initialize")
            exchange.push(bytes([byte]))
            await anyio.sleep(0)

    async def initialize(exchange: Exchange) -> None:
        exchange.reply(202)

    async with OldRemote({"GET": listen, "initialize": initialize}) as server:
        async with source(server.url("/sse"), SSE) as of:
            client = await opened(of)
            client.begin()
            assert (await client.result("init"))["text"] == text


@pytest.mark.case("SE-03")
@pytest.mark.spec("RS-8")
async def test_other_events_are_no_messages(caplog: pytest.LogCaptureFixture) -> None:
    async with OldRemote() as server, connected(server.url("/sse"), SSE) as client:
        await client.initialize()
        server.stream.push(b": ping\n\nid: 1\ndata:\n\nevent: ping\ndata: {}\n\nevent: message\n\n")
        client.call(1)
        await client.result(1)
        assert len(client.heard) == 2
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.case("SE-07")
@pytest.mark.spec("RS-9")
async def test_an_event_over_the_limit_comes_as_its_ends_and_the_stream_goes_on() -> None:
    async with OldRemote() as server, connected(server.url("/sse"), SSE) as client:
        await client.initialize()
        server.stream.say({"jsonrpc": "2.0", "id": 7, "result": {"x": "y" * (1 << 20)}})
        client.call(1)
        await client.result(1)
        (overlong,) = client.overlong
        assert b'"id": 7' in overlong.head


@pytest.mark.spec("CL-13")
async def test_the_servers_own_requests_are_answered_by_post() -> None:
    async with OldRemote() as server, connected(server.url("/sse"), SSE) as client:
        await client.initialize()
        server.stream.say({"jsonrpc": "2.0", "id": 0, "method": "roots/list"})
        await client.until(lambda: client.told("roots/list"))
        client.say({"jsonrpc": "2.0", "id": 0, "result": {"roots": []}})
        assert (await server.until_asked("answer")).json["result"] == {"roots": []}


async def test_unreadable_events_go_up_as_they_are() -> None:
    async with OldRemote() as server, connected(server.url("/sse"), SSE) as client:
        await client.initialize()
        server.stream.push(b"data: nonsense\n\n")
        await client.until(lambda: client.raw[-1] == b"nonsense")


# --- the order of POSTs, and what they say ---


@pytest.mark.spec("EC-5")
async def test_posts_go_out_one_after_another_in_order() -> None:
    open_posts = 0
    most = 0

    async def slow(exchange: Exchange) -> None:
        nonlocal open_posts, most
        open_posts += 1
        most = max(most, open_posts)
        await anyio.sleep(0.002)
        open_posts -= 1
        exchange.reply(202)

    on = {f"notifications/n{number}": slow for number in range(20)}
    async with OldRemote(on) as server, connected(server.url("/sse"), SSE) as client:
        await client.initialize()
        for number in range(20):
            client.tell(f"notifications/n{number}")
        await server.until_asked("notifications/n19")
        assert [one for one in server.rpcs() if one.startswith("notifications/n")] == list(on)
        assert most == 1


async def test_a_post_that_is_taken_late_does_not_keep_the_next_from_going() -> None:
    """Some servers take a POST only when its work is done, which may need our answer."""

    async def call(exchange: Exchange) -> None:
        server.stream.say({"jsonrpc": "2.0", "id": 0, "method": "roots/list"})
        await server.until_asked("answer")
        exchange.reply(202)
        server.respond(exchange)

    async with OldRemote({"tools/call": call}) as server, connected(server.url("/sse"), SSE) as client:
        await client.initialize()
        client.call(1)
        await client.until(lambda: client.told("roots/list"))
        client.say({"jsonrpc": "2.0", "id": 0, "result": {"roots": []}})
        await client.result(1)


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("both", [False, True])
async def test_an_answer_in_the_post_counts_once(kind: str, both: bool) -> None:
    async def call(exchange: Exchange) -> None:
        answer = {"jsonrpc": "2.0", "id": exchange.id, "result": {"n": exchange.id}}
        body = json.dumps(answer).encode() if kind == "application/json" else message(answer)
        if both:
            server.stream.say(answer)
        exchange.reply(200, body, kind)

    async with OldRemote({"tools/call": call}) as server, connected(server.url("/sse"), SSE) as client:
        await client.initialize()
        for number in range(5):
            client.call(number)
        for number in range(5):
            assert await client.result(number) == {"n": number}
        client.ask("after", "tools/list")
        await client.result("after")
        assert len(client.heard) == 7


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (202, b"Accepted", "text/plain"),
        (200, b"{}", "application/json"),
        (200, b"null", "application/json"),
        (204, b"", "x/y"),
    ],
)
async def test_whatever_else_a_success_says_is_ignored(status: int, body: bytes, kind: str) -> None:
    async def call(exchange: Exchange) -> None:
        exchange.reply(status, body, kind)
        server.respond(exchange)

    async with OldRemote({"tools/call": call}) as server, connected(server.url("/sse"), SSE) as client:
        await client.initialize()
        client.call(1)
        await client.result(1)
        assert len(client.heard) == 2


@pytest.mark.case("TF-04")
@pytest.mark.parametrize("status", [400, 401, 403, 429, 500, 503])
async def test_a_failed_post_is_its_own_requests_error(status: int) -> None:
    async def call(exchange: Exchange) -> None:
        exchange.reply(status, b"Sorry", "text/plain")

    async with OldRemote({"tools/call": call}) as server, connected(server.url("/sse"), SSE) as client:
        await client.initialize()
        client.call(1)
        client.ask(2, "tools/list")
        error = await client.error(1)
        assert error["message"] == f"The server answered HTTP {status}: Sorry"
        assert error["data"]["httpStatus"] == status
        await client.result(2)
        assert len(server.asked("GET")) == 1


async def test_an_error_without_an_id_is_the_only_waiting_requests() -> None:
    async def call(exchange: Exchange) -> None:
        exchange.reply(202)
        error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "what?"}}
        server.stream.say(error)

    async with OldRemote({"tools/call": call}) as server, connected(server.url("/sse"), SSE) as client:
        await client.initialize()
        client.call(1)
        assert (await client.error(1))["code"] == -32700


# --- a connection lost ---


@pytest.mark.case("SS-10", "SE-06")
@pytest.mark.spec("EC-4")
@pytest.mark.parametrize("how", [Exchange.end, Exchange.cut, Exchange.reset])
async def test_a_lost_connection_fails_what_was_in_flight_and_the_session_is_opened_anew(how: Any) -> None:
    async def call(exchange: Exchange) -> None:
        exchange.reply(202)
        if exchange.json["params"]["name"] == "fatal":
            server.stream.push(b'data: {"jsonrpc":"2.0","id":1,"resu')
            how(server.stream)
        else:
            server.respond(exchange)

    async with OldRemote({"tools/call": call}) as server, connected(server.url("/sse"), SSE) as client:
        server.capabilities = {"tools": {"listChanged": True}}
        await client.initialize()
        client.ask("level", "logging/setLevel", {"level": "debug"})
        client.ask("sub", "resources/subscribe", {"uri": "a:1"})
        await client.result("sub")
        server.seen.clear()
        client.call(1, "fatal")
        error = await client.error(1)
        assert error["data"] == {"origin": "bridge", "reason": "upstream_lost"}
        client.call(2)
        await client.result(2)
        assert server.rpcs() == [
            "tools/call", "GET", "initialize", "notifications/initialized", "logging/setLevel",
            "resources/subscribe", "tools/call",
        ]  # fmt: skip
        assert server.asked("initialize")[0].json["params"]["capabilities"] == {"roots": {}}
        # The answers to the replayed handshake are nobody's.
        assert len(client.told("notifications/tools/list_changed")) == 1
        assert len(client.heard) == 6


@pytest.mark.case("TF-02")
async def test_idle_cuts_are_healed_quietly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bridge")
    async with OldRemote() as server, connected(server.url("/sse"), SSE) as client:
        await client.initialize()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(http_sse, "pause", lambda decoder, fruitless: 0.0)
            for number in range(2, 32):
                server.stream.cut()
                await server.until_asked("notifications/initialized", number)
        client.call(1)
        await client.result(1)
        assert len(client.heard) == 2
    assert len(caplog.records) < 5


@pytest.mark.case("SS-10")
async def test_while_the_server_is_away_calls_fail_and_work_again_once_it_is_back(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_sse, "pause", lambda decoder, fruitless: 0.01)
    async with OldRemote() as server, connected(server.url("/sse"), SSE) as client:
        await client.initialize()
        await server.until_asked("notifications/initialized")
        await server.stop()
        client.call(1)
        assert (await client.error(1))["data"]["reason"] in ("upstream_unreachable", "upstream_lost")
        client.call(2)
        assert (await client.error(2))["data"]["reason"] == "upstream_unreachable"
        await server.start()
        await server.until_asked("notifications/initialized", 2)
        client.call(3)
        await client.result(3)
    assert caplog.text.count("cannot connect again") == 1


@pytest.mark.case("SS-10")
async def test_two_servers_do_not_share_their_misfortunes() -> None:
    async with OldRemote() as one, OldRemote() as other:
        async with connected(one.url("/sse"), SSE) as first, connected(other.url("/sse"), SSE) as second:
            await first.initialize()
            await second.initialize()
            await one.stop()
            second.call(1)
            await second.result(1)
            assert len(other.asked("GET")) == 1


async def test_a_session_that_the_server_does_not_know_any_more_is_opened_anew() -> None:
    """A proxy may keep the stream while the server behind it was started anew."""

    async def call(exchange: Exchange) -> None:
        if len(server.streams) == 1:
            exchange.reply(404, b"Session not found", "text/plain")
        else:
            exchange.reply(202)
            server.respond(exchange)

    async with OldRemote({"tools/call": call}) as server, connected(server.url("/sse"), SSE) as client:
        await client.initialize()
        client.call(1)
        assert (await client.error(1))["data"]["httpStatus"] == 404
        client.call(2)
        await client.result(2)
        assert len(server.asked("initialize")) == 2


@pytest.mark.spec("EC-4")
@pytest.mark.parametrize("refusal", ["error", "status"])
async def test_a_session_that_cannot_be_opened_anew_fails_what_waits_for_it(
    refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_sse, "pause", lambda decoder, fruitless: 0.01)

    async def initialize(exchange: Exchange) -> None:
        again = len(server.streams) > 1
        exchange.reply(503 if again and refusal == "status" else 202)
        if again and refusal == "error":
            error = {"code": -32603, "message": "no"}
            server.stream.say({"jsonrpc": "2.0", "id": exchange.id, "error": error})
        elif not again:
            server.respond(exchange)

    async with OldRemote({"initialize": initialize}) as server, connected(server.url("/sse"), SSE) as client:
        await client.initialize()
        await server.until_asked("notifications/initialized")
        server.stream.cut()
        await server.until(lambda: len(server.streams) == 2)
        client.call(1)
        await client.error(1)


async def test_an_initialize_that_was_lost_is_not_replayed() -> None:
    async def initialize(exchange: Exchange) -> None:
        exchange.reply(202)
        if len(server.streams) == 1:
            server.stream.cut()
        else:
            server.respond(exchange)

    async with OldRemote({"initialize": initialize}) as server, connected(server.url("/sse"), SSE) as client:
        client.begin()
        await client.error("init")
        client.ask("second", "initialize", {"protocolVersion": "2024-11-05"})
        await client.result("second")
        assert [one.id for one in server.asked("initialize")] == ["init", "second"]


async def test_closing_ends_the_connection() -> None:
    async with OldRemote() as server:
        async with connected(server.url("/sse"), SSE) as client:
            await client.initialize()
            client.call(1)
            await client.result(1)
            await client.upstream.close()
            client.call(2)
        await server.until(lambda: not server.connections)
        assert len(server.asked("tools/call")) == 1
