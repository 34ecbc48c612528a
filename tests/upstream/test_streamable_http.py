"""A legacy session with a remote server over Streamable HTTP: order, streams, sessions lost and found."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from support.scripted_http import Exchange, Handler, Remote, message

from bridge.core.sse import Decoder
from bridge.upstream import http_answer, streamable_http
from upstream.remotes import Client, connected


def replies(status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> Handler:
    async def handle(exchange: Exchange) -> None:
        exchange.reply(status, body, kind, **headers)

    return handle


# --- the handshake ---


@pytest.mark.spec("CL-1", "CL-2", "CL-4", "CL-8", "LC-14")
@pytest.mark.case("HT-05")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_later_requests_carry_session_and_negotiated_version_and_initialize_neither(
    version: str,
) -> None:
    async with Remote() as server:
        server.version = version
        async with connected(server.url()) as client:
            await client.initialize()
            client.call(1)
            await client.result(1)
        initialize, call = server.asked("initialize")[0], server.asked("tools/call")[0]
        assert "mcp-session-id" not in initialize.headers
        assert "mcp-protocol-version" not in initialize.headers
        for later in (call, server.asked("notifications/initialized")[0], server.asked("DELETE")[0]):
            assert later.headers["mcp-session-id"] == "session-1"
            assert later.headers["mcp-protocol-version"] == version
        assert call.headers["accept"] == "application/json, text/event-stream"
        assert call.headers["content-type"] == "application/json"


@pytest.mark.spec("CL-7")
async def test_the_session_id_is_told_to_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with Remote() as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        await client.result(1)
    assert caplog.text
    assert "session-1" not in caplog.text


async def test_a_server_without_sessions_is_sent_none() -> None:
    async with Remote() as server:
        server.session = None
        async with connected(server.url()) as client:
            await client.initialize()
            client.call(1)
            await client.result(1)
        assert all("mcp-session-id" not in one.headers for one in server.seen)
        assert not server.asked("DELETE")


@pytest.mark.spec("CL-14")
async def test_a_session_id_on_a_refusal_opens_no_session() -> None:
    refusal = b'{"jsonrpc":"2.0","id":"init","error":{"code":-32602,"message":"no"}}'
    async with Remote({"initialize": replies(200, refusal, Mcp_Session_Id="bait")}) as server:
        async with connected(server.url()) as client:
            client.begin()
            assert (await client.error("init"))["message"] == "no"
            client.call(1)
            await client.result(1)
        assert "mcp-session-id" not in server.asked("tools/call")[0].headers


async def test_everything_waits_for_the_handshake_in_order() -> None:
    """What is sent at once with initialize arrives after it, and after `initialized`."""
    go = anyio.Event()

    async def initialize(exchange: Exchange) -> None:
        await go.wait()
        exchange.result(server.initialized(), Mcp_Session_Id="s")

    async with Remote({"initialize": initialize}) as server, connected(server.url()) as client:
        client.begin()
        client.tell("notifications/initialized")
        client.call(1)
        client.tell("notifications/roots/list_changed")
        await server.until_asked("initialize")
        assert server.rpcs() == ["initialize"]
        go.set()
        await client.result(1)
        await server.until_asked("notifications/roots/list_changed")
        assert server.rpcs()[:2] == ["initialize", "notifications/initialized"]
        assert server.asked("tools/call")[0].headers["mcp-session-id"] == "s"


async def test_a_lingering_initialize_stream_holds_nothing_up() -> None:
    async def initialize(exchange: Exchange) -> None:
        exchange.stream()
        exchange.answer(server.initialized())
        await exchange.left.wait()

    async with Remote({"initialize": initialize}) as server, connected(server.url()) as client:
        await client.initialize()
        await server.until_asked("notifications/initialized")
        client.call(1)
        await client.result(1)


async def test_calls_run_side_by_side() -> None:
    both = anyio.Event()

    async def call(exchange: Exchange) -> None:
        if len(server.asked("tools/call")) == 2:
            both.set()
        await both.wait()
        exchange.result({})

    async with Remote({"tools/call": call}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        client.call(2)
        await client.result(1)
        await client.result(2)


async def test_notifications_and_answers_keep_their_order() -> None:
    async with Remote() as server, connected(server.url()) as client:
        await client.initialize()
        for number in range(20):
            client.tell(f"notifications/n{number}")
            client.say({"jsonrpc": "2.0", "id": number, "result": {}})
        await server.until_asked("answer", 20)
        noted = [one for one in server.seen if one.rpc.startswith("notifications/n") or one.rpc == "answer"]
        kinds = [one.id if one.rpc == "answer" else one.rpc for one in noted]
        assert kinds == [kind for n in range(20) for kind in (f"notifications/n{n}", n)]


# --- answers ---


@pytest.mark.case("ID-01", "ID-03")
@pytest.mark.parametrize("sse", [False, True])
@pytest.mark.parametrize(
    "request_id",
    [0, -1, "0", "1", "", "007", "i" * 4096, "日本", 2147483648, 9007199254740993, 18446744073709551615],
)
async def test_ids_and_numbers_come_back_as_they_went(request_id: int | str, sse: bool) -> None:
    numbers = b"[1234567890123456789,0.1000000000000000055,1.0,1E5,-0,1e400,%b]" % (b"7" * 5000)

    async def call(exchange: Exchange) -> None:
        answer = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (json.dumps(exchange.id).encode(), numbers)
        if sse:
            exchange.stream(b"data: " + answer + b"\n\n")
            exchange.end()
        else:
            exchange.reply(200, answer)

    async with Remote({"tools/call": call}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(request_id)
        await client.until(lambda: len(client.raw) == 2)
        assert client.raw[-1].endswith(b',"result":' + numbers + b"}")
        sent = server.asked("tools/call")[0].id
        assert (sent, type(sent)) == (request_id, type(request_id))
        assert client.on[-1] == request_id


TEXT = "é — 読 🎉\u2028\u2029\u0085|"


@pytest.mark.case("FR-03", "FR-04")
@pytest.mark.parametrize("sse", [False, True])
async def test_text_survives_whatever_the_cuts(sse: bool) -> None:
    async def call(exchange: Exchange) -> None:
        data = {"jsonrpc": "2.0", "id": exchange.id, "result": {"text": TEXT}}
        text = json.dumps(data, ensure_ascii=False).encode()
        text = b"data: " + text + b"\r\n\r\n" if sse else text
        kind = "text/event-stream" if sse else "application/json"
        exchange.head(200, {"Content-Type": kind, "Content-Length": str(len(text))})
        for byte in text:
            exchange.raw(bytes([byte]))
            await anyio.sleep(0)

    async with Remote({"tools/call": call}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        assert (await client.result(1))["text"] == TEXT


@pytest.mark.case("SE-01", "SE-02")
@pytest.mark.spec("CL-3", "RS-7")
@pytest.mark.parametrize(
    "parts",
    [
        [b'data: {"jsonrpc":"2.0",\r', b'\ndata: "id":1,"result":{"n":7}}\r\n\r\n'],
        [b'\xef\xbb\xbfid: 1\rdata:{"jsonrpc":"2.0",\rdata:"id":1,\rdata\rdata:"result":{"n":7}}\r\r'],
        [b': hello\nevent: message\nfoo: bar\ndata: {"jsonrpc":"2.0","id":1,"result":{"n":7}}\n\n'],
    ],
)
@pytest.mark.parametrize("bytewise", [False, True])
async def test_any_line_ends_and_cuts_give_one_answer(parts: list[bytes], bytewise: bool) -> None:
    async def call(exchange: Exchange) -> None:
        exchange.stream()
        for part in [bytes([byte]) for byte in b"".join(parts)] if bytewise else parts:
            exchange.push(part)
            await anyio.sleep(0)
        exchange.end()

    async with Remote({"tools/call": call}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        assert await client.result(1) == {"n": 7}


@pytest.mark.case("SE-03")
@pytest.mark.spec("RS-8", "CL-12")
async def test_priming_events_on_every_stream_are_no_messages(caplog: pytest.LogCaptureFixture) -> None:
    async def call(exchange: Exchange) -> None:
        exchange.stream(b"id: 0\nretry: 3000\ndata:\n\n", b"id\ndata: \n\n")
        exchange.answer({})
        exchange.end()

    async def listen(exchange: Exchange) -> None:
        exchange.stream(b"id: 0\nretry: 3000\ndata:\n\n", b"retry: 1\n\n")
        exchange.say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        await exchange.left.wait()

    async with Remote({"tools/call": call, "GET": listen}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        await client.result(1)
        await client.until(lambda: client.told("notifications/tools/list_changed"))
        assert len(client.heard) == 3
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


@pytest.mark.spec("CL-13")
async def test_messages_before_the_answer_come_with_the_request_they_came_on() -> None:
    async def call(exchange: Exchange) -> None:
        exchange.stream()
        exchange.say({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1}})
        exchange.say({"jsonrpc": "2.0", "id": 0, "method": "sampling/createMessage", "params": {}})
        await server.until_asked("answer")
        exchange.answer({"done": True})
        exchange.end()

    async with Remote({"tools/call": call}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(5)
        await client.until(lambda: client.told("sampling/createMessage"))
        client.say({"jsonrpc": "2.0", "id": 0, "result": {"role": "user"}})
        assert await client.result(5) == {"done": True}
        assert client.on == ["init", 5, 5, 5]


@pytest.mark.case("HT-04")
@pytest.mark.parametrize(
    ("status", "body"),
    [(202, b""), (204, b""), (200, b""), (200, b"null"), (200, b"{}"), (202, b"}junk"), (200, b"<html>")],
)
async def test_any_success_takes_a_notification(
    status: int, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with Remote({"notifications/initialized": replies(status, body)}) as server:
        async with connected(server.url()) as client:
            await client.initialize()
            client.call(1)
            await client.result(1)
            assert len(client.heard) == 2
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


async def test_two_answers_on_one_stream_are_one() -> None:
    async def call(exchange: Exchange) -> None:
        answer = {"jsonrpc": "2.0", "id": exchange.id, "result": {}}
        exchange.stream(message(answer) + message(answer), message(answer))
        exchange.end()

    async with Remote({"tools/call": call}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        client.call(2)
        await client.answer(1)
        await client.answer(2)
        client.call(3)
        await client.answer(3)
        assert len(client.answers(1)) == 1


async def test_an_answer_with_another_requests_id_reaches_nobody() -> None:
    async def call(exchange: Exchange) -> None:
        if exchange.id == 2:
            exchange.reply(200, b'{"jsonrpc":"2.0","id":1,"result":{"of":"another"}}')
        else:
            await server.until_asked("release")
            exchange.result({"of": "own"})

    async with Remote({"tools/call": call}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        client.call(2)
        assert (await client.error(2))["data"]["reason"] == "upstream_invalid_answer"
        client.ask(3, "release")
        assert await client.result(1) == {"of": "own"}


async def test_a_stream_that_stays_open_after_the_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_answer, "_LINGER", 0.01)

    async def call(exchange: Exchange) -> None:
        exchange.stream()
        exchange.answer({})
        await exchange.left.wait()

    async with Remote({"tools/call": call}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        await client.result(1)
        await server.until(server.asked("tools/call")[0].left.is_set)


async def test_an_ended_stream_leaves_its_connection_for_the_next_call() -> None:
    async def call(exchange: Exchange) -> None:
        exchange.stream()
        exchange.answer({})
        exchange.end()

    async with Remote({"tools/call": call, "GET": replies(405)}) as server:
        async with connected(server.url()) as client:
            await client.initialize()
            await server.until_asked("GET")
            accepted = server.accepted
            for number in range(5):
                client.call(number)
                await client.result(number)
                await anyio.sleep(0)
            assert server.accepted <= accepted + 1


# --- failures ---

FAILURES: list[tuple[int, bytes, str]] = [
    (status, body, kind)
    for status in (400, 403, 404, 429, 500, 502, 503)
    for body, kind in (
        (b"", "text/plain"),
        (b"<html><head><style>x{}</style></head><body><h1>Down for\n repair</h1></body></html>", "text/html"),
        (b'{"detail":"Down for repair"}', "application/json"),
    )
]


@pytest.mark.case("TF-04")
@pytest.mark.spec("CL-15")
@pytest.mark.parametrize(("status", "body", "kind"), FAILURES)
async def test_an_http_failure_is_one_error_with_status_and_excerpt(
    status: int, body: bytes, kind: str
) -> None:
    async with Remote({"tools/call": replies(status, body, kind, Retry_After="7")}) as server:
        server.session = None
        async with connected(server.url()) as client:
            await client.initialize()
            client.call(1)
            error = await client.error(1)
            assert error["code"] == -32603
            assert f"HTTP {status}" in error["message"]
            assert error["data"]["httpStatus"] == status
            assert error["data"]["retryAfter"] == "7"
            assert error["data"]["origin"] == "bridge"
            assert ("Down for repair" in error["message"]) == bool(body)
            assert "style" not in error["message"]
        assert len(server.asked("tools/call")) == 1


@pytest.mark.case("TF-04")
@pytest.mark.spec("CL-17", "G-20", "CM-10")
@pytest.mark.parametrize("own_id", [b'"id":null,', b'"id":"server-error",', b"", b'"id":1,'])
@pytest.mark.parametrize(("status", "kind"), [(400, "text/plain"), (500, "application/json"), (200, "x/y")])
async def test_a_servers_own_error_passes_under_the_clients_id(own_id: bytes, status: int, kind: str) -> None:
    body = b'{"jsonrpc":"2.0",' + own_id + b'"error":{"code":-32000,"message":"Mine","data":{"n":1.0}}}'
    async with Remote({"tools/call": replies(status, body, kind)}) as server:
        async with connected(server.url()) as client:
            await client.initialize()
            client.call(1)
            assert await client.error(1) == {"code": -32000, "message": "Mine", "data": {"n": 1.0}}


@pytest.mark.case("TF-04")
@pytest.mark.spec("CL-15")
@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, b'{"jsonrpc":"2.0","id":1,"resu', "application/json"),
        (200, b"<html>Login</html>", "text/html"),
        (200, b"", "application/json"),
        (202, b"", "application/json"),
        (204, b"", "application/json"),
        (200, b"null", "application/json"),
        (200, b"data: nonsense\n\n", "text/event-stream"),
        (200, b"", "text/event-stream"),
    ],
)
async def test_a_success_that_is_no_answer_is_an_error_at_once(status: int, body: bytes, kind: str) -> None:
    async with Remote({"tools/call": replies(status, body, kind)}) as server:
        async with connected(server.url()) as client:
            await client.initialize()
            client.call(1)
            assert (await client.error(1))["data"]["reason"] == "upstream_invalid_answer"
        assert len(server.asked("tools/call")) == 1


@pytest.mark.case("SE-07")
@pytest.mark.spec("RS-9")
@pytest.mark.parametrize("sse", [False, True])
async def test_an_answer_over_the_limit_fails_its_own_request_only(sse: bool) -> None:
    async def call(exchange: Exchange) -> None:
        over = exchange.id == 1
        result = {"text": "x" * ((1 << 20) + (0 if over else -1000))}
        if sse:
            exchange.stream()
            exchange.answer(result)
            exchange.end()
        else:
            exchange.result(result)

    async with Remote({"tools/call": call}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        client.call(2)
        assert "limit" in (await client.error(1))["message"]
        assert len((await client.result(2))["text"]) == (1 << 20) - 1000


@pytest.mark.case("SE-08")
async def test_events_of_a_compressed_stream_come_out_as_they_come_in() -> None:
    import zlib

    packer = zlib.compressobj(wbits=31)

    def packed(data: object) -> bytes:
        return packer.compress(message(data)) + packer.flush(zlib.Z_SYNC_FLUSH)

    async def call(exchange: Exchange) -> None:
        assert exchange.headers["accept-encoding"] == "identity"
        exchange.stream(Content_Encoding="gzip")
        exchange.push(packed({"jsonrpc": "2.0", "method": "notifications/one"}))
        await client.until(lambda: client.told("notifications/one"))
        exchange.push(packed({"jsonrpc": "2.0", "id": exchange.id, "result": {}}))
        await exchange.left.wait()

    async with Remote({"tools/call": call}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        await client.result(1)


# --- streams that end too early ---


@pytest.mark.case("SE-06")
@pytest.mark.spec("CL-10", "CL-11", "RS-5")
async def test_a_stream_with_an_id_is_resumed_where_it_broke_after_the_wait_it_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def call(exchange: Exchange) -> None:
        exchange.stream(b"id: a-1\nretry: 500\ndata:\n\n")
        exchange.end()

    async def resume(exchange: Exchange) -> None:
        cursor = exchange.headers.get("last-event-id")
        if cursor is None:
            exchange.reply(405)
        elif cursor == "a-1":
            exchange.stream(b"id: a-2\n" + message({"jsonrpc": "2.0", "method": "notifications/half"}))
            exchange.cut()
        else:
            exchange.stream()
            exchange.push(message({"jsonrpc": "2.0", "id": 1, "result": {"from": cursor}}))
            exchange.end()

    async with Remote({"tools/call": call, "GET": resume}) as server, connected(server.url()) as client:
        await client.initialize()
        await server.until_asked("GET")
        monkeypatch.setattr(anyio, "sleep", sleep)
        client.call(1)
        assert await client.result(1) == {"from": "a-2"}
        assert len(client.told("notifications/half")) == 1
        assert waits == [0.5, 0.5]
        assert len(server.asked("tools/call")) == 1
        assert "last-event-id" not in server.asked("tools/call")[0].headers


@pytest.mark.case("SE-06")
@pytest.mark.spec("CL-15")
@pytest.mark.parametrize("how", [Exchange.end, Exchange.cut, Exchange.reset])
@pytest.mark.parametrize("half", [b"", b": comment\n\n", b'data: {"jsonrpc":"2.0","id":1,"result":{}}\n'])
async def test_a_stream_that_breaks_without_an_id_fails_its_request_and_is_not_sent_again(
    how: Any, half: bytes
) -> None:
    async def call(exchange: Exchange) -> None:
        exchange.stream(*([half] if half else []))
        await anyio.sleep(0.01)  # a reset at once would take the head with it
        how(exchange)

    async with Remote({"tools/call": call}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        assert (await client.error(1))["data"]["origin"] == "bridge"
        assert len(server.asked("tools/call")) == 1


@pytest.mark.case("SE-06")
@pytest.mark.parametrize("how", [Exchange.end, Exchange.cut])
async def test_nothing_is_resumed_after_the_answer(how: Any) -> None:
    async def call(exchange: Exchange) -> None:
        exchange.stream(b"id: 1\nretry: 1\ndata:\n\n")
        exchange.answer({})
        how(exchange)

    async with Remote({"tools/call": call}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        await client.result(1)
        client.ask(2, "tools/list")
        await client.result(2)
        assert not [one for one in server.asked("GET") if "last-event-id" in one.headers]


async def test_resuming_is_given_up_when_the_server_refuses_it() -> None:
    async def call(exchange: Exchange) -> None:
        exchange.stream(b"id: 1\nretry: 1\ndata:\n\n")
        exchange.end()

    async with Remote({"tools/call": call, "GET": replies(404)}) as server:
        async with connected(server.url()) as client:
            await client.initialize()
            client.call(1)
            assert "404" in (await client.error(1))["message"]
        # The call may have run: a session that is gone by now is no reason to send it again.
        assert len(server.asked("tools/call")) == 1


async def test_resuming_is_given_up_when_it_brings_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(exchange: Exchange) -> None:
        exchange.stream(b"id: 1\nretry: 0\ndata:\n\n")
        exchange.end()

    async def resume(exchange: Exchange) -> None:
        if "last-event-id" in exchange.headers:
            exchange.stream()
            exchange.end()
        else:
            exchange.reply(405)

    monkeypatch.setattr(streamable_http, "pause", lambda decoder, fruitless: 0.0)
    async with Remote({"tools/call": call, "GET": resume}) as server:
        async with connected(server.url()) as client:
            await client.initialize()
            client.call(1)
            await client.error(1)
        assert len(server.asked("GET")) == 1 + streamable_http._RESUMPTIONS


@pytest.mark.spec("CL-11")
def test_the_wait_grows_from_a_second_to_half_a_minute_and_is_never_less_than_asked_for() -> None:
    plain, told = Decoder(100), Decoder(100)
    told.feed(b"retry: 45000\n\n")
    assert [http_answer.pause(plain, n) for n in (0, 1, 2, 3, 4, 5, 6, 7, 5000)] == [
        1, 1, 2, 4, 8, 16, 30, 30, 30,
    ]  # fmt: skip
    assert {http_answer.pause(told, n) for n in (0, 1, 2, 50)} == {45}


# --- cancellation ---


@pytest.mark.spec("CL-9")
async def test_cancelling_is_a_message_and_leaves_the_stream_open() -> None:
    async def call(exchange: Exchange) -> None:
        exchange.stream()
        await server.until_asked("notifications/cancelled")
        exchange.answer({"late": True})
        exchange.end()

    async with Remote({"tools/call": call}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        await server.until_asked("tools/call")
        client.tell("notifications/cancelled", {"requestId": 1})
        assert await client.result(1) == {"late": True}


async def test_a_cancelled_call_that_is_never_answered_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamable_http, "_LATE", 0.01)

    async def call(exchange: Exchange) -> None:
        exchange.stream()
        await exchange.left.wait()

    async with Remote({"tools/call": call}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        hanging = await server.until_asked("tools/call")
        client.tell("notifications/cancelled", {"requestId": 1})
        await server.until(hanging.left.is_set)
        assert not client.answers(1)


async def test_a_notification_that_is_never_taken_does_not_hold_the_next_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streamable_http, "_NOTE", 0.05)

    async def stall(exchange: Exchange) -> None:
        await exchange.left.wait()

    async with Remote({"notifications/stuck": stall}) as server, connected(server.url()) as client:
        await client.initialize()
        client.tell("notifications/stuck")
        client.tell("notifications/next")
        await server.until_asked("notifications/next")


# --- the GET stream ---


@pytest.mark.case("HT-09")
@pytest.mark.spec("CL-12")
@pytest.mark.parametrize("session", ["s", None])
@pytest.mark.parametrize("status", [405, 404, 400, 406, 501, 200])
async def test_a_refused_get_stream_is_left_alone(status: int, session: str | None) -> None:
    async with Remote({"GET": replies(status, b"<p>no</p>", "text/html")}) as server:
        server.session = session
        async with connected(server.url()) as client:
            await client.initialize()
            await server.until_asked("GET")
            client.call(1)
            await client.result(1)
            await server.until_asked("ping") if status == 404 and session else None
            client.call(2)
            await client.result(2)
        assert len(server.asked("GET")) == 1
        assert len(server.asked("initialize")) == 1


@pytest.mark.spec("CL-13")
async def test_requests_wait_for_the_listening_stream_to_stand() -> None:
    """What some servers ask for the sake of a call would be lost before."""

    async def listen(exchange: Exchange) -> None:
        await anyio.sleep(0.02)
        assert not server.asked("tools/call")
        exchange.stream()
        await exchange.left.wait()

    async with Remote({"GET": listen}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        await client.result(1)


async def test_requests_do_not_wait_long_for_a_listening_stream_without_a_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streamable_http, "_HEAD", 0.01)

    async def listen(exchange: Exchange) -> None:
        await exchange.left.wait()

    async with Remote({"GET": listen}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        await client.result(1)


@pytest.mark.case("HT-09", "SS-02")
async def test_a_404_to_the_get_stream_of_a_forgotten_session_opens_a_new_one() -> None:
    sessions = iter(["one", "two"])

    async def initialize(exchange: Exchange) -> None:
        server.session = next(sessions)
        exchange.result(server.initialized(), Mcp_Session_Id=server.session)

    async def ping(exchange: Exchange) -> None:
        exchange.reply(404)

    async def listen(exchange: Exchange) -> None:
        if exchange.headers["mcp-session-id"] == "one":
            exchange.reply(404)
        else:
            exchange.stream()
            exchange.say({"jsonrpc": "2.0", "method": "notifications/here"})
            await exchange.left.wait()

    on: dict[str, Handler] = {"initialize": initialize, "ping": ping, "GET": listen}
    async with Remote(on) as server, connected(server.url()) as client:
        await client.initialize()
        await client.until(lambda: client.told("notifications/here"))
        assert len(server.asked("initialize")) == 2
        assert len(client.heard) == 2


@pytest.mark.case("TF-02")
@pytest.mark.spec("CL-10", "RS-5")
async def test_a_listening_stream_that_is_cut_is_reopened_where_it_was_and_quietly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "bridge")

    async def listen(exchange: Exchange) -> None:
        number = len(server.asked("GET"))
        note = {"jsonrpc": "2.0", "method": "notifications/n", "params": {"n": number}}
        exchange.stream(b"retry: 1\nid: e%d\n" % number + message(note))
        exchange.end() if number % 2 else exchange.cut()

    async with Remote({"GET": listen}) as server, connected(server.url()) as client:
        await client.initialize()
        await client.until(lambda: len(client.told("notifications/n")) >= 30)
        cursors = [one.headers.get("last-event-id") for one in server.asked("GET")[:30]]
        assert cursors == [None, *[f"e{number}" for number in range(1, 30)]]
        assert len(caplog.records) < 5


async def test_a_slow_receiver_stops_a_stream_from_being_read() -> None:
    chunk = message({"jsonrpc": "2.0", "method": "notifications/fill", "params": {"x": "y" * 60000}})

    async def listen(exchange: Exchange) -> None:
        exchange.stream()
        for _ in range(200):
            exchange.push(chunk)
        await exchange.left.wait()

    async with Remote({"GET": listen}) as server, connected(server.url()) as client:
        await client.initialize()
        await client.until(lambda: client.told("notifications/fill"))
        client.upstream.pause()
        client.call(1)
        await client.result(1)
        stopped = len(client.raw)
        client.call(2)
        await client.result(2)
        assert len(client.raw) <= stopped + 1 + 8  # one read may have been on its way
        client.upstream.resume()
        await client.until(lambda: len(client.told("notifications/fill")) == 200)


# --- sessions lost ---


class Forgetful(Remote):
    """Each initialize opens a new session; `forget` makes the last one unknown."""

    refusal: tuple[int, bytes] = (404, b"")

    def __init__(self) -> None:
        super().__init__()
        self.known = ""
        self.opened = 0

    def forget(self) -> None:
        self.known = ""

    async def handle(self, exchange: Exchange) -> None:
        if exchange.rpc == "initialize":
            self.opened += 1
            self.session = self.known = f"session-{self.opened}"
        elif exchange.rpc != "GET" and exchange.headers.get("mcp-session-id") != self.known:
            exchange.reply(*self.refusal)
            return
        await super().handle(exchange)


REFUSALS = [
    (404, b""),
    (404, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}'),
    (400, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"No valid session ID provided"}}'),
    (400, b"Invalid session"),
]


@pytest.mark.case("SS-02")
@pytest.mark.spec("CL-5", "SC-12")
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_forgotten_session_is_opened_once_for_all_and_every_call_sent_once_more(
    refusal: tuple[int, bytes],
) -> None:
    async with Forgetful() as server, connected(server.url()) as client:
        server.refusal = refusal
        server.capabilities = {"tools": {"listChanged": True}, "prompts": {}}
        await client.initialize()
        client.ask("level", "logging/setLevel", {"level": "debug"})
        client.ask("sub", "resources/subscribe", {"uri": "a:1"})
        client.ask("sub2", "resources/subscribe", {"uri": "a:2"})
        await client.result("level")
        await client.result("sub")
        await client.result("sub2")
        client.ask("unsub", "resources/unsubscribe", {"uri": "a:2"})
        await client.result("unsub")
        heard = len(client.heard)
        server.forget()
        server.seen.clear()
        for number in range(20):
            client.call(number)
        for number in range(20):
            await client.result(number)
        again = server.asked("initialize")
        assert len(again) == 1
        assert "mcp-session-id" not in again[0].headers
        assert again[0].json["params"]["capabilities"] == {"roots": {}}
        assert again[0].json["params"]["clientInfo"] == {"name": "client", "version": "1"}
        after = [one.rpc for one in server.seen if one.headers.get("mcp-session-id") == "session-2"]
        assert [rpc for rpc in after if rpc != "GET"][:3] == [
            "notifications/initialized",
            "logging/setLevel",
            "resources/subscribe",
        ]
        assert server.asked("resources/subscribe")[0].json["params"] == {"uri": "a:1"}
        assert len(server.asked("resources/subscribe")) == 1
        # Nothing of the new handshake reaches the client, but that the lists may be others.
        assert len(client.told("notifications/tools/list_changed")) == 1
        assert len(client.heard) == heard + 21
        assert all(one.headers["mcp-session-id"] == "session-2" for one in server.asked("DELETE"))


@pytest.mark.case("SS-02")
async def test_a_session_that_is_forgotten_again_and_again_ends_in_errors() -> None:
    async with Forgetful() as server, connected(server.url()) as client:
        await client.initialize()
        server.known = ""

        async def initialize(exchange: Exchange) -> None:
            exchange.result(server.initialized(), Mcp_Session_Id="never-known")

        server.on["initialize"] = initialize
        client.call(1)
        client.call(2)
        assert (await client.error(1))["data"]["httpStatus"] == 404
        assert (await client.error(2))["data"]["httpStatus"] == 404
        assert len(server.asked("tools/call")) <= 4
        assert len(server.asked("initialize")) <= 3


@pytest.mark.case("SS-02")
async def test_when_no_new_session_can_be_had_every_call_is_told_why() -> None:
    async with Forgetful() as server, connected(server.url()) as client:
        await client.initialize()
        server.forget()

        async def initialize(exchange: Exchange) -> None:
            exchange.reply(503, b"starting")

        real = server.handle

        async def handle(exchange: Exchange) -> None:
            await (initialize if exchange.rpc == "initialize" else real)(exchange)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server, "handle", handle)
            for number in range(5):
                client.call(number)
            for number in range(5):
                assert "503" in (await client.error(number))["message"]
        client.call("later")
        await client.result("later")


@pytest.mark.case("SS-02")
async def test_a_call_during_the_new_handshake_waits_for_it() -> None:
    go = anyio.Event()

    async with Forgetful() as server, connected(server.url()) as client:
        await client.initialize()
        await server.until_asked("GET")
        server.forget()

        async def initialize(exchange: Exchange) -> None:
            await go.wait()
            exchange.result(server.initialized(), Mcp_Session_Id="session-2")

        server.on["initialize"] = initialize
        client.call(1)
        await server.until_asked("initialize", 2)
        client.call(2)
        client.tell("notifications/roots/list_changed")
        go.set()
        await client.result(1)
        await client.result(2)
        await server.until_asked("notifications/roots/list_changed")
        assert [one.headers["mcp-session-id"] for one in server.asked("tools/call")] == [
            "session-1", "session-2", "session-2",
        ]  # fmt: skip


async def test_a_400_about_a_tools_own_session_is_no_lost_session() -> None:
    body = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"argument session must be a string"}}'
    async with Remote({"tools/call": replies(400, body)}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        assert (await client.error(1))["code"] == -32602
        assert len(server.asked("initialize")) == 1


# --- the end ---


@pytest.mark.spec("CL-6")
@pytest.mark.parametrize("status", [200, 202, 204, 404, 405, 500])
async def test_the_session_is_deleted_at_the_end_whatever_the_server_says_to_it(status: int) -> None:
    async with Remote({"DELETE": replies(status)}) as server:
        async with connected(server.url()) as client:
            await client.initialize()
        assert server.asked("DELETE")[0].headers["mcp-session-id"] == "session-1"


async def test_a_server_that_stalls_at_the_end_is_not_waited_for() -> None:
    from dataclasses import replace

    from upstream.remotes import TIMING

    async def stall(exchange: Exchange) -> None:
        await exchange.left.wait()

    async with Remote({"DELETE": stall}) as server:
        async with connected(server.url(), timing=replace(TIMING, farewell=0.05)) as client:
            await client.initialize()
        assert server.asked("DELETE")


async def test_closing_ends_what_is_in_flight_and_says_so_once() -> None:
    async def call(exchange: Exchange) -> None:
        exchange.stream()
        await exchange.left.wait()

    async with Remote({"tools/call": call}) as server:
        async with connected(server.url()) as client:
            await client.initialize()
            client.call(1)
            hanging = await server.until_asked("tools/call")
            await client.upstream.close()
            await client.upstream.close()
            client.call(2)
            assert not client.answers(1)
            await server.until(hanging.left.is_set)
        assert len(server.asked("tools/call")) == 1


async def test_a_fault_of_ours_ends_one_session_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from upstream.remotes import opened, source

    async with Remote() as server, source(server.url()) as of:
        one, other = await opened(of), await opened(of)
        await one.initialize()
        await other.initialize()

        def broken(self: object, *args: object) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(Client, "received", broken)
            one.call(1)
            await one.until(lambda: one.faults)
        other.call(1)
        await other.result(1)
