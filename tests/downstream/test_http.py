from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_http import LIMIT, Answer, Wire, request, served, wire

from bridge.config import Access, Listen, Tls
from bridge.downstream import http
from bridge.downstream.http import Gate, Ready, json_error, read_body
from bridge.downstream.listener import Handler
from bridge.errors import UsageFault

EVIL = "https://evil.example"
APP = "https://app.example"
TOKEN = "s3cret"
BODY_LIMIT = 1000


@pytest.fixture(autouse=True)
def _short_parting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_PARTING", 0.02)


# --- the gate ---------------------------------------------------------------------------------


@asynccontextmanager
async def gated(access: Access, listen: Listen) -> AsyncIterator[Wire]:
    """A listener on 127.0.0.1 whose gate believes to stand where `listen` says."""
    gate = Gate(access, listen)

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        return gate.check(request) or Ready(200, b"", (b"in",))

    async with served(handler) as listener, wire(listener) as client:
        yield client


async def through(access: Access, text: bytes, listen: Listen | None = None) -> Answer:
    async with gated(access, listen or Listen()) as client:
        return await client.ask(text)


OPEN = Access()
LOCKED = Access(token=TOKEN)
PUBLIC = Listen(host="0.0.0.0")
UNIX = Listen(uds=Path("/run/bridge.sock"))
BEARER = f"Authorization: Bearer {TOKEN}"


@pytest.mark.spec("SP-6", "HL-4", "ER-19")
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:1", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("[::1]", 200),
        ("evil.example", 421),
        ("evil.example:8080", 421),
        ("localhost.evil.example", 421),
        ("localhost@evil.example", 421),
        ("localhost:8080:1", 421),
        ("", 421),
    ],
)
async def test_loopback_listener_serves_local_hosts_only(host: str, status: int) -> None:
    answer = await through(OPEN, request(host=host))
    assert answer.status == status
    if status == 421:
        assert answer.error().id is None


@pytest.mark.spec("SP-6")
@pytest.mark.parametrize(("authority", "status"), [("evil.example", 421), ("localhost:8080", 200)])
async def test_host_of_a_whole_url_goes_before_the_header(authority: str, status: int) -> None:
    whole = request().replace(b" /mcp ", f" http://{authority}/mcp ".encode())
    assert (await through(OPEN, whole)).status == status


async def test_host_the_listener_is_bound_to_is_served() -> None:
    bound = Listen(host="10.1.2.3")
    assert (await through(OPEN, request(host="10.1.2.3:8080"), bound)).status == 200
    assert (await through(OPEN, request(host="10.1.2.4:8080"), bound)).status == 421
    assert (await through(OPEN, request(host="[fd00::1]:8080"), Listen(host="fd00::1"))).status == 200


@pytest.mark.parametrize(
    ("allowed", "host", "status"),
    [
        ("mcp.example", "mcp.example", 200),
        ("mcp.example", "MCP.example:9", 200),
        ("mcp.example:9", "mcp.example:9", 200),
        ("mcp.example:9", "mcp.example:8", 421),
        ("mcp.example:9", "mcp.example", 421),
        ("mcp.example:443", "mcp.example", 200),
        ("*.example", "a.example", 200),
        ("*.example", "a.b.example:1", 200),
        ("*.example", "example", 421),
        ("*.example", ".example", 421),
        ("*.example", "aexample", 421),
        ("fd00::1", "[fd00::1]:9", 200),
        ("*", "anything.example", 200),
    ],
)
async def test_allowed_hosts_are_served(allowed: str, host: str, status: int) -> None:
    assert (await through(Access(allowed_hosts=(allowed,)), request(host=host))).status == status


def test_allowed_host_that_is_a_url_is_refused_at_start() -> None:
    with pytest.raises(UsageFault, match="--allowed-host http://a"):
        Gate(Access(allowed_hosts=("http://a.example",)), Listen())


@pytest.mark.spec("SP-6")
async def test_any_host_is_served_where_a_token_or_a_socket_file_protects() -> None:
    assert (await through(LOCKED, request("POST", BEARER, host="x.example"), PUBLIC)).status == 200
    assert (await through(LOCKED, request("POST", BEARER, host="x.example"), Listen())).status == 421
    assert (await through(OPEN, request(host="x.example"), PUBLIC)).status == 421
    assert (await through(OPEN, request(host="x.example"), UNIX)).status == 200
    assert (
        await through(Access(allowed_hosts=("y.example",)), request(host="x.example"), UNIX)
    ).status == 421


async def test_http_1_0_needs_no_host() -> None:
    assert (await through(OPEN, b"POST /mcp HTTP/1.0\r\n\r\n")).status == 200


CALLERS = Access(allowed_origins=(APP, "http://Localhost:3000/"))


def from_origin(origin: str, *lines: str, method: str = "POST", host: str = "localhost:8080") -> bytes:
    return request(method, f"Origin: {origin}", *lines, host=host)


@pytest.mark.spec("HL-2", "HL-3", "SP-6", "ER-19")
@pytest.mark.parametrize(
    ("access", "origin", "status"),
    [
        (OPEN, EVIL, 403),
        (OPEN, "null", 403),
        (OPEN, "http://localhost:8080", 200),
        (OPEN, "https://localhost:8080", 200),
        (OPEN, "http://LOCALHOST:8080", 200),
        (OPEN, "http://localhost:3000", 403),
        (OPEN, "http://localhost", 403),
        (CALLERS, APP, 200),
        (CALLERS, "HTTPS://App.example", 200),
        (CALLERS, "http://localhost:3000", 200),
        (CALLERS, APP + ".evil.example", 403),
        (CALLERS, "http://app.example", 403),
        (Access(allowed_origins=("*",)), EVIL, 200),
    ],
)
async def test_origin_is_refused_unless_it_is_our_own_or_listed(
    access: Access, origin: str, status: int
) -> None:
    answer = await through(access, from_origin(origin))
    assert answer.status == status
    if status == 403:
        assert answer.error().id is None


@pytest.mark.spec("HL-2")
async def test_one_listed_origin_does_not_cover_a_second_one() -> None:
    assert (await through(CALLERS, from_origin(APP, f"Origin: {EVIL}"))).status == 403


async def test_page_that_shares_an_unproved_host_is_not_our_own() -> None:
    rebound = from_origin("http://x.example", host="x.example")
    assert (await through(OPEN, rebound, UNIX)).status == 403
    assert (await through(LOCKED, rebound, UNIX)).status == 401


async def test_plain_page_is_not_of_the_origin_of_a_tls_listener() -> None:
    behind_tls = Listen(tls=Tls(cert=Path("c"), key=Path("k")))
    assert (await through(OPEN, from_origin("http://localhost:8080"), behind_tls)).status == 403
    assert (await through(OPEN, from_origin("https://localhost:8080"), behind_tls)).status == 200


ASKED = (
    "authorization", "content-type", "accept", "mcp-session-id", "mcp-protocol-version", "mcp-method",
    "mcp-name", "last-event-id", "traceparent", "tracestate", "baggage",
)  # fmt: skip


@pytest.mark.spec("HL-28")
@pytest.mark.case("HT-07")
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_preflight_is_answered_before_authorization(method: str) -> None:
    access = Access(token=TOKEN, allowed_origins=(APP,))
    asked = ", ".join((*ASKED, "Mcp-Param-Region", "x-other", "mcp-param-bad name"))
    text = from_origin(
        APP,
        f"Access-Control-Request-Method: {method}",
        f"Access-Control-Request-Headers: {asked}",
        method="OPTIONS",
    )
    answer = await through(access, text)
    assert answer.status == 204
    assert "content-length" not in answer.headers
    assert answer.headers["access-control-allow-origin"] == APP
    assert method in answer.headers["access-control-allow-methods"].split(", ")
    allowed = answer.headers["access-control-allow-headers"].lower().split(", ")
    assert set(allowed) == {*ASKED, "mcp-param-region"}
    assert int(answer.headers["access-control-max-age"]) > 0


@pytest.mark.spec("HL-28")
@pytest.mark.case("HT-07")
@pytest.mark.parametrize(("line", "status"), [(BEARER, 200), ("Accept: */*", 401)])
async def test_real_answers_and_errors_carry_cors_headers(line: str, status: int) -> None:
    answer = await through(Access(token=TOKEN, allowed_origins=(APP,)), from_origin(APP, line))
    assert answer.status == status
    assert answer.headers["access-control-allow-origin"] == APP
    assert answer.headers["vary"] == "Origin"
    assert answer.headers["access-control-expose-headers"] == "Mcp-Session-Id, WWW-Authenticate"


@pytest.mark.case("HT-07")
async def test_cors_is_off_unless_origins_are_listed() -> None:
    own = from_origin("http://localhost:8080", "Access-Control-Request-Method: POST", method="OPTIONS")
    preflight = await through(OPEN, own)
    assert preflight.status == 405
    assert preflight.headers["allow"] == "GET, POST, DELETE"
    for access in (OPEN, CALLERS):
        answer = await through(access, from_origin("http://localhost:8080"))
        assert answer.status == 200
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_options_that_is_no_preflight_is_no_method_of_ours() -> None:
    assert (await through(CALLERS, from_origin(APP, method="OPTIONS"))).status == 405
    assert (await through(OPEN, request("OPTIONS"))).status == 405


async def test_cors_headers_are_given_for_answers_made_elsewhere() -> None:
    given: list[dict[str, str]] = []
    gate = Gate(CALLERS, Listen())

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        given.append(gate.cors_headers(request))
        return Ready(200)

    async with served(handler) as listener, wire(listener) as client:
        for origin in (APP, EVIL):
            await client.ask(from_origin(origin))
        await client.ask(request())
    assert [found.get("Access-Control-Allow-Origin") for found in given] == [APP, None, None]


@pytest.mark.spec("ER-19", "AR-1")
@pytest.mark.case("LS-05")
@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([BEARER], 200),
        ([f"authorization: bEARER  {TOKEN} "], 200),
        ([], 401),
        (["Mcp-Session-Id: valid"], 401),
        ([f"Authorization: {TOKEN}"], 401),
        ([f"Authorization: Basic {TOKEN}"], 401),
        ([BEARER + "x"], 401),
        (["Authorization: Bearer"], 401),
        (["Authorization: Bearer \u00e9"], 401),
        ([BEARER, BEARER], 401),
    ],
)
async def test_only_the_bearer_of_the_token_comes_in(lines: list[str], status: int) -> None:
    answer = await through(LOCKED, request("POST", *lines))
    assert answer.status == status
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.error().id is None


@pytest.mark.spec("AR-6")
async def test_token_in_the_query_opens_nothing() -> None:
    text = request().replace(b"/mcp", f"/mcp?access_token={TOKEN}&token={TOKEN}".encode())
    assert (await through(LOCKED, text)).status == 401


@pytest.mark.spec("AR-10", "HM-20")
async def test_missing_token_comes_before_a_broken_body() -> None:
    answer = await through(LOCKED, request(body=b'{"jsonrpc'))
    assert answer.status == 401


async def test_small_unread_body_leaves_the_connection_usable() -> None:
    async with gated(LOCKED, Listen()) as client:
        client.say(request("POST", "Content-Length: 4"))
        assert (await client.answer()).status == 401
        client.say(b"{}{}")
        assert (await client.ask(request("POST", BEARER))).status == 200


# --- bodies -----------------------------------------------------------------------------------


class Echo:
    """Answers with the body, and keeps what reading it came to."""

    def __init__(self, idle: float = LIMIT) -> None:
        self.idle = idle
        self.read: list[bytes] = []
        self.started = asyncio.Event()
        self.over = asyncio.Event()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.started.set()
        try:
            body = await read_body(request, BODY_LIMIT, self.idle)
        finally:
            self.over.set()
        if not isinstance(body, bytes):
            return body
        self.read.append(body)
        return Ready(200, b"Content-Type: text/plain\r\n", (body,))


CHUNKED = request("POST", "Transfer-Encoding: chunked")


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


async def test_body_is_read_whole_however_it_comes() -> None:
    async with served(Echo()) as listener, wire(listener) as client:
        assert (await client.ask(request(body=b"one"))).body == b"one"
        client.say(request("POST", "Content-Length: 6"))
        client.say(b"two")
        await client.writer.drain()
        assert (await client.ask(b"two")).body == b"twotwo"
        assert (await client.ask(CHUNKED + chunked(b"thr", b"ee"))).body == b"three"
        assert (await client.ask(request())).body == b""


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.binary(min_size=1, max_size=60),
    places=st.lists(st.integers(0, 60), max_size=6),
    by_chunks=st.booleans(),
)
def test_any_split_of_a_body_gives_the_same_body(body: bytes, places: list[int], by_chunks: bool) -> None:
    ends = sorted({place % len(body) for place in places} - {0})
    parts = [body[a:b] for a, b in zip([0, *ends], [*ends, len(body)], strict=True)]

    async def exchange() -> bytes:
        async with served(Echo()) as listener, wire(listener) as client:
            client.say(CHUNKED if by_chunks else request("POST", f"Content-Length: {len(body)}"))
            for part in parts:
                client.say(b"%x\r\n%b\r\n" % (len(part), part) if by_chunks else part)
                await asyncio.sleep(0)
            client.say(b"0\r\n\r\n" if by_chunks else b"")
            return (await client.answer()).body

    assert asyncio.run(exchange()) == body


@pytest.mark.spec("HL-26", "ER-19", "SP-10")
@pytest.mark.case("HT-06")
async def test_body_over_the_limit_is_refused_before_it_is_read() -> None:
    echo = Echo()
    async with served(echo) as listener, wire(listener) as client:
        client.say(request("POST", "Content-Length: 104857600"))
        answer = await client.answer()
        assert answer.status == 413
        assert answer.error().id is None
        assert answer.headers["connection"] == "close"
        assert await client.rest() == b""
    assert echo.read == []


@pytest.mark.case("HT-06")
async def test_client_that_goes_on_sending_is_not_listened_to() -> None:
    async with served(Echo()) as listener, wire(listener) as client:
        client.say(request("POST", "Content-Length: 104857600"))
        client.say(bytes(100 * 1024 * 1024))
        assert (await client.answer()).status == 413
        assert await client.rest() == b""
        assert client.writer.transport.get_write_buffer_size() > 50 * 1024 * 1024


@pytest.mark.case("HT-06")
async def test_nothing_is_read_after_a_refusal() -> None:
    parted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: parted.set_result(request.content.total_bytes))
        refused = await read_body(request, BODY_LIMIT, LIMIT)
        assert isinstance(refused, Ready)
        return refused

    async with served(handler) as listener, wire(listener) as client:
        client.say(request("POST", "Content-Length: 104857600"))
        assert (await client.answer()).status == 413
        client.say(bytes(100_000))
        async with asyncio.timeout(LIMIT):
            assert await parted == 0


@pytest.mark.case("HT-06")
async def test_chunked_body_is_stopped_at_the_limit() -> None:
    async with served(Echo()) as listener, wire(listener) as client:
        client.say(CHUNKED)
        client.say(b"%x\r\n%b\r\n" % (BODY_LIMIT, bytes(BODY_LIMIT)))
        client.say(b"1\r\nx\r\n")
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert await client.rest() == b""


async def test_body_of_exactly_the_limit_is_read() -> None:
    async with served(Echo()) as listener, wire(listener) as client:
        assert len((await client.ask(request(body=bytes(BODY_LIMIT)))).body) == BODY_LIMIT
        refused = await client.ask(request(body=bytes(BODY_LIMIT + 1)))
        assert refused.status == 413


@pytest.mark.case("HT-06")
async def test_client_that_expects_100_gets_it_only_if_its_body_is_wanted() -> None:
    expect = "Expect: 100-Continue"
    async with served(Echo()) as listener, wire(listener) as client:
        client.say(request("POST", expect, "Content-Length: 3"))
        assert (await client.head())[0] == 100
        assert (await client.ask(b"yes")).body == b"yes"
        answer = await client.ask(request("POST", expect, "Content-Length: 2000"))
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert await client.rest() == b""


async def test_refused_client_that_expects_100_is_not_waited_for() -> None:
    async with gated(LOCKED, Listen()) as client:
        answer = await client.ask(request("POST", "Expect: 100-continue", "Content-Length: 3"))
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        assert await client.rest() == b""


async def test_other_expectations_fail() -> None:
    async with served(Echo()) as listener, wire(listener) as client:
        answer = await client.ask(request("POST", "Expect: magic", "Content-Length: 3"))
        assert answer.status == 417


@pytest.mark.spec("HL-26", "ER-19")
@pytest.mark.parametrize("coding", ["gzip", "br", "GZIP, identity"])
async def test_compressed_body_is_refused_and_not_unpacked(coding: str) -> None:
    async with served(Echo()) as listener, wire(listener) as client:
        answer = await client.ask(request("POST", f"Content-Encoding: {coding}", body=b"\x1f\x8b not gzip"))
        assert answer.status == 415
        assert answer.headers["accept-encoding"] == "identity"
        plain = await client.ask(request("POST", "Content-Encoding: Identity", body=b"plain"))
        assert plain.body == b"plain"


async def test_body_that_stops_coming_is_given_up() -> None:
    async with served(Echo(idle=0.02)) as listener, wire(listener) as client:
        client.say(request("POST", "Content-Length: 6"))
        client.say(b"abc")
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert answer.error().id is None
        assert await client.rest() == b""


async def test_body_may_take_long_as_long_as_it_comes() -> None:
    async with served(Echo(idle=0.3)) as listener, wire(listener) as client:
        client.say(request("POST", "Content-Length: 5"))
        for letter in b"abcde":
            await asyncio.sleep(0.1)  # the pace of the client is what is tested
            client.say(bytes([letter]))
        assert (await client.answer()).body == b"abcde"


async def test_malformed_chunk_is_answered_at_once() -> None:
    echo = Echo()
    async with served(echo) as listener, wire(listener) as client:
        client.say(CHUNKED + b"3\r\nabc\r\n")
        await echo.started.wait()
        client.say(b"zz\r\n")
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert await client.rest() == b""


async def test_client_that_leaves_amid_its_body_is_let_go_quietly(caplog: pytest.LogCaptureFixture) -> None:
    echo = Echo()
    async with served(echo) as listener, wire(listener) as client:
        client.say(request("POST", "Content-Length: 6"))
        client.say(b"abc")
        await echo.started.wait()
        client.hang_up()
        async with asyncio.timeout(LIMIT):
            await echo.over.wait()
    assert echo.read == []
    assert caplog.records == []


# --- answers ----------------------------------------------------------------------------------


def saying(*answers: Ready) -> Handler:
    """Gives the answers one after the other."""
    left = iter(answers)

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return next(left)

    return handler


async def told(answer: Ready, text: bytes) -> tuple[Answer, bytes]:
    """The answer to `text`, and whatever came after it once the client had no more to say."""
    async with served(saying(answer)) as listener, wire(listener) as client:
        got = await client.ask(text)
        client.writer.write_eof()
        return got, await client.rest()


async def test_answer_carries_its_lines_and_its_length() -> None:
    got, rest = await told(
        Ready(200, b"X-One: 1\r\nX-Two: 2\r\n", (b"ab", bytearray(b"c"), memoryview(b"d"))), request()
    )
    assert (got.status, got.body, rest) == (200, b"abcd", b"")
    assert (got.headers["x-one"], got.headers["x-two"]) == ("1", "2")
    assert got.headers["date"].endswith(" GMT")
    assert "connection" not in got.headers


async def test_empty_answer_says_so_unless_its_status_does() -> None:
    accepted, _ = await told(Ready(202), request())
    assert accepted.headers["content-length"] == "0"
    nothing, _ = await told(Ready(204), request())
    assert "content-length" not in nothing.headers


async def test_answer_to_head_has_the_length_but_not_the_body() -> None:
    both = saying(Ready(200, b"", (b"body",)), Ready(200, b"", (b"next",)))
    async with served(both) as listener, wire(listener) as client:
        client.say(request("HEAD"))
        head = await client.answer(head_only=True)
        assert head.headers["content-length"] == "4"
        assert (await client.ask(request())).body == b"next"


@pytest.mark.parametrize(
    ("text", "connection"),
    [
        (request(version="1.0"), "close"),
        (request("POST", "Connection: keep-alive", version="1.0"), "keep-alive"),
        (request("POST", "Connection: close"), "close"),
        (request(), None),
    ],
)
async def test_connection_lives_as_long_as_the_client_wants(text: bytes, connection: str | None) -> None:
    async with served(saying(Ready(200), Ready(204))) as listener, wire(listener) as client:
        answer = await client.ask(text)
        assert answer.headers.get("connection") == connection
        if connection == "close":
            assert await client.rest() == b""
        else:
            assert (await client.ask(request())).status == 204


async def test_answer_that_closes_does() -> None:
    got, rest = await told(Ready(400, close=True), request())
    assert (got.headers["connection"], rest) == ("close", b"")


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with served(Echo()) as listener, wire(listener) as client:
        client.say(b"".join(request(body=b"%d" % n) for n in range(100)))
        assert [(await client.answer()).body for _ in range(100)] == [b"%d" % n for n in range(100)]


@pytest.mark.parametrize("size", [http._ONE_WRITE - 1, http._ONE_WRITE + 1, 3_000_000])
async def test_answer_of_any_size_arrives_whole(size: int) -> None:
    body = (b"{", bytes(size), b"}")
    got, _ = await told(Ready(200, b"", body), request())
    assert got.body == b"".join(body)


async def test_next_request_waits_while_the_client_does_not_read() -> None:
    begun: list[int] = []

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        begun.append(len(begun))
        return Ready(200, b"", (bytes(8_000_000),))

    async with served(handler) as listener, wire(listener, receive_buffer=4096) as client:
        client.say(request() + request())
        await client.head()
        assert begun == [0]
        async with asyncio.timeout(LIMIT):
            await client.reader.readexactly(8_000_000)
        assert len((await client.answer()).body) == 8_000_000
    assert begun == [0, 1]


@pytest.mark.spec("SP-10")
async def test_client_that_takes_nothing_of_an_answer_is_cut_off() -> None:
    left = asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: left.set())
        return Ready(200, b"", (bytes(50_000_000),))

    async with served(handler, stalled=0.05) as listener, wire(listener, receive_buffer=4096) as client:
        client.say(request())
        async with asyncio.timeout(LIMIT):
            await left.wait()


async def test_connection_error_of_a_handler_ends_the_connection_quietly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        raise ConnectionResetError

    async with served(handler) as listener, wire(listener) as client:
        client.say(request())
        assert await client.rest() == b""
    assert caplog.records == []


async def test_answer_to_a_client_that_is_gone_is_dropped_quietly(caplog: pytest.LogCaptureFixture) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
        return Ready(200)

    async with served(handler) as listener, wire(listener) as client:
        client.say(request())
        await started.wait()
        client.hang_up()
        async with asyncio.timeout(LIMIT):
            await cancelled.wait()
    assert caplog.records == []


def test_error_is_written_byte_for_byte() -> None:
    answer = json_error(400, -32600, 'bad "id"', id=b'"7"', data=b'{"n":1.0}', headers=b"X-A: b\r\n")
    assert answer.content == (
        b'{"jsonrpc":"2.0","id":"7","error":{"code":-32600,"message":"bad \\"id\\"","data":{"n":1.0}}}'
    )
    assert answer.lines == b"Content-Type: application/json\r\nX-A: b\r\n"
    assert answer.status == 400


def test_error_without_id_has_null() -> None:
    assert (
        json_error(400, -32700, "no").content
        == b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}'
    )
