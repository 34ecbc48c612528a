"""Field cases HT and AU as far as they concern the serving side: the HTTP surface of stdio-to-http."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from .conftest import Bridge, Start, child
from .raw import BOTH, JSON_ONLY, SSE_ONLY, Answer, ask, ask_in_chunks, dial, head_of
from .session import Json, Modern, Session, call, connect, initialize, notification, request, session

KB, MIB = 1000, 1 << 20
LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
SERVER = child("obeys_calls.py")
JSON_TYPE = ("Content-Type", "application/json")
TOKEN = "field-test-token-0123456789"
PAGE = "https://app.example.com"


@pytest.fixture(scope="module")
def plain(start_bridge: Start) -> Bridge:
    """A bridge with every default."""
    return start_bridge(SERVER)


@pytest.fixture(scope="module")
def shared(start_bridge: Start) -> Bridge:
    return start_bridge(SERVER, "--process", "shared")


@pytest.fixture(scope="module")
def listed(start_bridge: Start) -> Bridge:
    """With CORS for one origin, and a token."""
    return start_bridge(
        SERVER, "--allowed-origin", PAGE, "--auth-token-env", "FIELD_TOKEN", env={"FIELD_TOKEN": TOKEN}
    )


def tool_text(answer: Answer) -> str:
    text = answer.result["content"][0]["text"]
    assert isinstance(text, str)
    return text


def refused(answer: Answer, status: int, code: int | None = None) -> Json:
    """It has this status, and a JSON-RPC error as its body."""
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/json", answer.headers
    error: Json = answer.error
    assert isinstance(error["message"], str)
    assert error["message"]
    assert code is None or error["code"] == code, error
    return error


# HT-01


@pytest.mark.case("HT-01")
@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
async def test_both_spellings_of_the_path_answer_every_method_directly(plain: Bridge, path: str) -> None:
    opened = await ask(
        plain.port, "POST", [JSON_TYPE, ("Accept", BOTH)], json.dumps(initialize()).encode(), path=path
    )
    assert opened.status == 200, opened
    named = [("Mcp-Session-Id", opened.headers["mcp-session-id"])]
    async with dial(plain.port) as listening:
        listening.say(head_of("GET", path, [*named, ("Accept", SSE_ONLY)]))
        assert await listening.head() == 200
        assert (await ask(plain.port, "DELETE", named, path=path)).status == 200


@pytest.mark.case("HT-01")
@pytest.mark.parametrize("path", ["/mcp?x=1", "/mcp/?x=1"])
async def test_query_does_not_hide_the_endpoint(plain: Bridge, path: str) -> None:
    body = json.dumps(initialize()).encode()
    answer = await ask(plain.port, "POST", [JSON_TYPE, ("Accept", BOTH)], body, path=path)
    assert answer.status == 200, answer


@pytest.mark.case("HT-01")
@pytest.mark.parametrize("path", ["/", "/MCP", "/mcp//", "/mcp/x", "/sse", "/message", "//mcp"])
async def test_other_paths_are_not_found_and_never_redirected(plain: Bridge, path: str) -> None:
    body = json.dumps(initialize()).encode()
    answer = await ask(plain.port, "POST", [JSON_TYPE, ("Accept", BOTH)], body, path=path)
    refused(answer, 404)
    assert "location" not in answer.headers


@pytest.mark.case("HT-01")
@pytest.mark.parametrize("path", ["/api/mcp", "/api/mcp/"])
async def test_path_given_with_or_without_slash_is_served_in_both_spellings(
    path: str, start_bridge: Start
) -> None:
    bridge = start_bridge(SERVER, "--path", path)
    body = json.dumps(initialize()).encode()
    for spelled in ("/api/mcp", "/api/mcp/"):
        answer = await ask(bridge.port, "POST", [JSON_TYPE, ("Accept", BOTH)], body, path=spelled)
        assert answer.status == 200, (spelled, answer)


# HT-02

POST_ACCEPT: list[tuple[list[str], int, str]] = [
    ([], 200, "application/json"),
    ([""], 200, "application/json"),
    (["*/*"], 200, "application/json"),
    (["application/*, text/event-stream"], 200, "application/json"),
    (["application/json"], 200, "application/json"),
    (["text/event-stream"], 200, "text/event-stream"),
    (["text/event-stream, application/json"], 200, "application/json"),
    (["text/html"], 406, "application/json"),
    (["text/html, */*;q=0.1"], 200, "application/json"),
    (["application/json;q=0"], 406, "application/json"),
    (["application/json;q=0, text/event-stream"], 200, "text/event-stream"),
    (["APPLICATION/JSON, Text/Event-Stream"], 200, "application/json"),
    (["application/json", "text/event-stream"], 200, "application/json"),
    (["text/html", "application/json"], 200, "application/json"),
    (["application/json; charset=utf-8"], 200, "application/json"),
]


@pytest.mark.case("HT-02")
@pytest.mark.parametrize(("accept", "status", "media"), POST_ACCEPT)
async def test_post_is_answered_in_what_its_client_takes(
    plain: Bridge, accept: list[str], status: int, media: str
) -> None:
    async with session(plain.port) as peer:
        lines = [JSON_TYPE, *peer.headers, *(("Accept", value) for value in accept)]
        answer = await ask(plain.port, "POST", lines, json.dumps(call(1, "echo", {"text": "hi"})).encode())
        assert (answer.status, answer.headers["content-type"]) == (status, media), answer
        if status == 406:
            refused(answer, 406)
        else:
            assert tool_text(answer) == "hi"


GET_ACCEPT = [
    ([], 200),
    (["*/*"], 200),
    (["text/*"], 200),
    (["TEXT/EVENT-STREAM"], 200),
    (["application/json", "text/event-stream"], 200),
    (["application/json"], 406),
    (["text/html"], 406),
    (["text/event-stream;q=0"], 406),
]


@pytest.mark.case("HT-02")
@pytest.mark.parametrize(("accept", "status"), GET_ACCEPT)
async def test_get_needs_a_client_that_takes_a_stream(plain: Bridge, accept: list[str], status: int) -> None:
    async with session(plain.port) as peer, dial(plain.port) as exchange:
        lines = [*peer.headers, *(("Accept", value) for value in accept)]
        exchange.say(head_of("GET", "/mcp", lines))
        assert await exchange.head() == status
        if status == 406:
            refused(await exchange.answer(), 406)


@pytest.mark.case("HT-02")
async def test_client_of_json_alone_gets_its_answer_without_the_progress(plain: Bridge) -> None:
    async with session(plain.port) as peer:
        answer = await peer.post(call(1, "slow", {"seconds": 0, "steps": 3}, token="t"), JSON_ONLY)
        assert answer.headers["content-type"] == "application/json"
        assert tool_text(answer) == "done"


# HT-04


@pytest.mark.case("HT-04")
@pytest.mark.parametrize("accept", [BOTH, JSON_ONLY, SSE_ONLY, "*/*"])
async def test_notification_is_acknowledged_by_202_without_a_body(plain: Bridge, accept: str) -> None:
    async with session(plain.port) as peer:
        answer = await peer.post(notification("notifications/roots/list_changed"), accept)
        assert (answer.status, answer.body) == (202, b"")
        assert "content-type" not in answer.headers


@pytest.mark.case("HT-04")
@pytest.mark.parametrize(
    "reply",
    [
        {"result": {"roots": []}},
        {"error": {"code": -1, "message": "no", "data": {"a": [None]}}},
        {"result": {}},
    ],
    ids=["result", "error", "empty"],
)
async def test_answer_to_the_server_is_acknowledged_by_202_and_reaches_it(plain: Bridge, reply: Json) -> None:
    async with session(plain.port, capabilities={"roots": {}}) as peer:
        asking = call(1, "ask", {"id": 1, "method": "roots/list", "params": {}})
        async with peer.posted(asking) as exchange:
            question = await exchange.message()
            assert question["method"] == "roots/list"
            answer = await peer.post({"jsonrpc": "2.0", "id": question["id"], **reply})
            assert (answer.status, answer.body) == (202, b"")
            heard = (await exchange.message())["result"]["content"][0]["text"]
            assert json.loads(heard) == next(iter(reply.values()))


@pytest.mark.case("HT-04")
async def test_answer_that_nobody_waits_for_is_acknowledged_and_goes_nowhere(plain: Bridge) -> None:
    async with session(plain.port) as peer:
        before = json.loads(tool_text(await peer.post(call(1, "seen"))))["lines"]
        for unknown in (999, "x", 0):
            answer = await peer.post({"jsonrpc": "2.0", "id": unknown, "result": {}})
            assert (answer.status, answer.body) == (202, b"")
        assert json.loads(tool_text(await peer.post(call(2, "seen"))))["lines"] == before + 1


# HT-05


@pytest.mark.case("HT-05")
@pytest.mark.parametrize("revision", LEGACY)
@pytest.mark.parametrize("header", [None, *LEGACY, "junk"])
async def test_initialize_never_fails_on_the_version_header(
    plain: Bridge, revision: str, header: str | None
) -> None:
    lines = [JSON_TYPE, ("Accept", BOTH)] + ([] if header is None else [("MCP-Protocol-Version", header)])
    answer = await ask(plain.port, "POST", lines, json.dumps(initialize(revision)).encode())
    assert answer.status == 200, answer
    assert answer.result["protocolVersion"] == revision


@pytest.fixture(scope="module", params=LEGACY)
def dated(request: pytest.FixtureRequest, start_bridge: Start) -> tuple[Bridge, str]:
    """A bridge, and the latest revision that its server knows."""
    return start_bridge(child("obeys_calls.py", "speaks", request.param)), request.param


@pytest.mark.case("HT-05")
@pytest.mark.parametrize("client", LEGACY)
async def test_client_is_told_the_version_its_server_speaks(dated: tuple[Bridge, str], client: str) -> None:
    bridge, server = dated
    peer = await connect(bridge.port, client)
    assert peer.initialized["protocolVersion"] == min(client, server)
    assert tool_text(await peer.post(call(1, "echo", {"text": "hi"}))) == "hi"
    await peer.delete()


@pytest.mark.case("HT-05", "SS-08")
@pytest.mark.parametrize("client", LEGACY)
async def test_client_of_a_shared_server_is_told_no_later_version_than_its_own(
    shared: Bridge, client: str
) -> None:
    peer = await connect(shared.port, client)
    assert peer.initialized["protocolVersion"] == client
    assert tool_text(await peer.post(call(1, "echo", {"text": "hi"}))) == "hi"
    await peer.delete()


@pytest.mark.case("HT-05")
@pytest.mark.parametrize("revision", LEGACY)
async def test_missing_version_header_means_the_negotiated_one(plain: Bridge, revision: str) -> None:
    peer = await connect(plain.port, revision)
    peer.headers = [("Mcp-Session-Id", peer.id)]
    assert tool_text(await peer.post(call(1, "echo", {"text": "hi"}))) == "hi"
    async with peer.listening() as stream:
        assert await stream.head() == 200
    assert (await peer.delete()).status == 200


@pytest.mark.case("HT-05")
@pytest.mark.parametrize(
    "version", ["2024-10-07", "2025-11-26", "1.0", "latest", "2025-06-18 2025-11-25", "é"]
)
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_version_that_nobody_knows_is_refused_on_every_method(
    plain: Bridge, version: str, method: str
) -> None:
    async with session(plain.port) as peer:
        lines = [("Mcp-Session-Id", peer.id), ("MCP-Protocol-Version", version), ("Accept", BOTH), JSON_TYPE]
        body = json.dumps(request(1, "ping")).encode() if method == "POST" else None
        refused(await ask(plain.port, method, lines, body), 400)
        assert tool_text(await peer.post(call(2, "echo", {"text": "still there"}))) == "still there"


# HT-06


async def unhurried(bridge: Bridge, peer: Session, body: bytes) -> Answer:
    """Post a body and read meanwhile: who first writes it all may find the connection closed."""
    async with dial(bridge.port) as exchange:
        exchange.say(head_of("POST", "/mcp", [*peer.posting(b""), ("Content-Length", str(len(body)))]) + body)
        return await exchange.answer()


async def sized(bridge: Bridge, peer: Session, size: int, *, chunked: bool) -> Answer:
    """A call whose body has exactly `size` bytes."""
    empty = len(json.dumps(call(1, "measure", {"text": ""})))
    body = json.dumps(call(1, "measure", {"text": "x" * (size - empty)})).encode()
    if not chunked:
        return await unhurried(bridge, peer, body)
    pieces = (body[start : start + 65536] for start in range(0, size, 65536))
    return await ask_in_chunks(bridge.port, peer.posting(b""), pieces)


@pytest.mark.case("HT-06")
@pytest.mark.parametrize("size", [99 * KB, 101 * KB, MIB, 4 * MIB])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_body_up_to_the_limit_arrives_whole(plain: Bridge, size: int, chunked: bool) -> None:
    async with session(plain.port) as peer:
        answer = await sized(plain, peer, size, chunked=chunked)
        empty = len(json.dumps(call(1, "measure", {"text": ""})))
        assert tool_text(answer) == str(size - empty)


@pytest.mark.case("HT-06")
@pytest.mark.parametrize("size", [4 * MIB + 1, 8 * MIB])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_body_over_the_limit_gets_413_and_a_reason(plain: Bridge, size: int, chunked: bool) -> None:
    async with session(plain.port) as peer:
        error = refused(await sized(plain, peer, size, chunked=chunked), 413)
        assert str(4 * MIB) in error["message"]
        seen = json.loads(tool_text(await peer.post(call(2, "seen"))))
        assert seen["lines"] == 3, "the server saw something of it"


@pytest.mark.case("HT-06")
async def test_limit_of_bodies_can_be_set_both_ways(start_bridge: Start) -> None:
    high, low = start_bridge(SERVER, "--max-body", "16MiB"), start_bridge(SERVER, "--max-body", "1KiB")
    async with session(high.port) as peer:
        assert (await sized(high, peer, 8 * MIB, chunked=False)).status == 200
    async with session(low.port) as peer:
        assert (await sized(low, peer, 1024, chunked=True)).status == 200
        refused(await sized(low, peer, 1025, chunked=True), 413)


def address(bridge: Bridge) -> str:
    return f"http://127.0.0.1:{bridge.port}/mcp"


def curl(*words: str, stdin: Iterator[bytes] | None = None) -> str:
    """What curl prints; `stdin` is given to it until it wants no more."""
    argv = ["curl", "--silent", "--noproxy", "*", "--max-time", "30", *words]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            for piece in stdin or ():
                process.stdin.write(piece)
        with suppress(BrokenPipeError):
            process.stdin.close()
        return process.stdout.read().decode()


@pytest.mark.case("HT-06")
def test_endless_chunked_body_is_refused_before_it_fills_memory(plain: Bridge) -> None:
    before = plain.high_water()
    said = curl(
        *("-X", "POST", "-T", "-", "-H", "Content-Type: application/json", "-H", "Expect:"),
        *("-H", f"Accept: {BOTH}", "-w", "\n%{http_code} %{size_upload}", address(plain)),
        stdin=(b"x" * MIB for _ in range(100)),
    )
    *_, outcome = said.splitlines()
    status, uploaded = outcome.split()
    assert status == "413", said
    assert int(uploaded) < 32 * MIB
    assert plain.high_water() - before < 32 * MIB


@pytest.mark.case("HT-06")
@pytest.mark.parametrize("expect", ["Expect: 100-continue", "Expect:"], ids=["expected", "at once"])
def test_hundred_mebibytes_with_a_length_are_refused_unread(
    plain: Bridge, tmp_path: Path, expect: str
) -> None:
    before = plain.high_water()
    body = tmp_path / "body"
    with body.open("wb") as file:
        file.truncate(100 * MIB)
    said = curl(
        *("--data-binary", f"@{body}", "-H", "Content-Type: application/json", "-H", expect),
        *("-w", "\n%{http_code} %{size_upload}", address(plain)),
    )
    *answer, outcome = said.splitlines()
    status, uploaded = outcome.split()
    assert status == "413", said
    assert json.loads("".join(answer))["error"]["data"]["reason"] == "body_too_large"
    assert int(uploaded) == 0 if expect.endswith("continue") else int(uploaded) < 32 * MIB
    assert plain.high_water() - before < 16 * MIB


@pytest.mark.case("HT-06")
async def test_client_that_waits_for_100_continue_is_told_to_go_on(plain: Bridge) -> None:
    async with session(plain.port) as peer, dial(plain.port) as exchange:
        body = json.dumps(call(1, "echo", {"text": "hi"})).encode()
        lines = [*peer.posting(b""), ("Content-Length", str(len(body))), ("Expect", "100-continue")]
        exchange.say(head_of("POST", "/mcp", lines))
        async with asyncio.timeout(10):
            assert (await exchange.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        exchange.say(body)
        assert tool_text(await exchange.answer()) == "hi"


@pytest.mark.case("HT-06")
@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([("Content-Length", "999999999")], 413),
        ([("Content-Length", "10"), ("Content-Type", "text/plain")], 415),
        ([("Content-Length", "10"), JSON_TYPE, ("Accept", "text/html")], 406),
        ([("Content-Length", "10"), JSON_TYPE, ("Host", "evil.example")], 421),
        ([("Content-Length", "10"), JSON_TYPE, ("Origin", "https://evil.example")], 403),
    ],
)
async def test_refusal_comes_before_the_body_that_waits_for_100_continue(
    plain: Bridge, lines: list[tuple[str, str]], status: int
) -> None:
    host = dict(lines).get("Host", "localhost")
    headers = [JSON_TYPE] if "Content-Type" not in dict(lines) else []
    headers += [line for line in lines if line[0] != "Host"]
    async with dial(plain.port) as exchange:
        exchange.say(head_of("POST", "/mcp", [*headers, ("Expect", "100-continue")], host=host))
        async with asyncio.timeout(10):
            assert (await exchange.reader.readuntil(b"\r\n")).split()[1] == str(status).encode()


@pytest.mark.case("HT-06")
@pytest.mark.parametrize("coding", ["gzip", "br", "deflate, gzip", "GZIP"])
async def test_compressed_body_is_refused_not_inflated(plain: Bridge, coding: str) -> None:
    lines = [JSON_TYPE, ("Accept", BOTH), ("Content-Encoding", coding)]
    refused(await ask(plain.port, "POST", lines, b"\x1f\x8b" + b"x" * 100), 415)


# HT-07

ASKED = "authorization,content-type,mcp-session-id,mcp-protocol-version,mcp-method,mcp-name,last-event-id"


async def preflight(bridge: Bridge, origin: str, method: str, asked: str = ASKED) -> Answer:
    lines = [
        ("Origin", origin),
        ("Access-Control-Request-Method", method),
        ("Access-Control-Request-Headers", asked),
    ]
    return await ask(bridge.port, "OPTIONS", lines)


def words(header: str) -> set[str]:
    return {word.strip().lower() for word in header.split(",")}


@pytest.mark.case("HT-07", "AU-02")
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_preflight_is_answered_before_the_token_is_asked_for(listed: Bridge, method: str) -> None:
    answer = await preflight(listed, PAGE, method)
    assert answer.status in (200, 204), answer
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert method.lower() in words(answer.headers["access-control-allow-methods"])
    assert words(ASKED) <= words(answer.headers["access-control-allow-headers"])


@pytest.mark.case("HT-07")
async def test_preflight_allows_the_headers_that_mirror_a_tools_arguments(listed: Bridge) -> None:
    answer = await preflight(listed, PAGE, "POST", "mcp-param-region, x-evil")
    allowed = words(answer.headers["access-control-allow-headers"])
    assert "mcp-param-region" in allowed
    assert "x-evil" not in allowed


def bearing(origin: str = PAGE) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {TOKEN}"), ("Origin", origin)]


@pytest.mark.case("HT-07")
async def test_session_id_is_exposed_on_the_real_answers(listed: Bridge) -> None:
    peer = Session(listed.port, bearing())
    opened = await peer.post(initialize())
    assert opened.headers["mcp-session-id"]
    peer.headers.append(("Mcp-Session-Id", opened.headers["mcp-session-id"]))
    answers = [
        opened,
        await peer.post(notification("notifications/initialized")),
        await peer.post(call(1, "echo", {"text": "hi"})),
        await peer.post(call(2, "echo", {"text": "hi"}), SSE_ONLY),
        await peer.delete(),
        await peer.post(call(3, "echo", {"text": "hi"})),
    ]
    assert [answer.status for answer in answers] == [200, 202, 200, 200, 200, 404]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "mcp-session-id" in words(answer.headers["access-control-expose-headers"])
        assert "origin" in words(answer.headers["vary"])


@pytest.mark.case("HT-07")
async def test_get_stream_of_a_listed_page_carries_the_cors_headers(listed: Bridge) -> None:
    peer = Session(listed.port, bearing())
    opened = await peer.post(initialize())
    peer.headers.append(("Mcp-Session-Id", opened.headers["mcp-session-id"]))
    async with peer.listening() as stream:
        assert await stream.head() == 200
        assert stream.headers["access-control-allow-origin"] == PAGE
    await peer.delete()


@pytest.mark.case("HT-07", "AU-02")
async def test_page_can_read_that_its_token_is_wrong(listed: Bridge) -> None:
    answer = await Session(listed.port, [("Origin", PAGE)]).post(initialize())
    refused(answer, 401)
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["www-authenticate"].lower().startswith("bearer")
    assert "www-authenticate" in words(answer.headers["access-control-expose-headers"])


FOREIGN = [
    "https://evil.example",
    "http://app.example.com",
    "https://app.example.com:8443",
    "https://app.example.com.evil.example",
    "https://sub.app.example.com",
    "null",
    "https://app.example.com/",
    "",
]


@pytest.mark.case("HT-07")
@pytest.mark.parametrize("origin", FOREIGN)
async def test_page_that_is_not_listed_gets_403_whatever_it_bears(listed: Bridge, origin: str) -> None:
    for answer in (
        await Session(listed.port, bearing(origin)).post(initialize()),
        await ask(listed.port, "GET", bearing(origin)),
        await ask(listed.port, "DELETE", bearing(origin)),
        await preflight(listed, origin, "POST"),
    ):
        refused(answer, 403)
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.case("HT-07")
@pytest.mark.parametrize("origin", [PAGE, "null", "http://localhost:3000", "http://127.0.0.1"])
async def test_cors_is_off_unless_asked_for(plain: Bridge, origin: str) -> None:
    for answer in (
        await Session(plain.port, [("Origin", origin)]).post(initialize()),
        await preflight(plain, origin, "POST"),
    ):
        refused(answer, 403)
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.case("HT-07")
async def test_client_without_an_origin_needs_no_cors(listed: Bridge, plain: Bridge) -> None:
    for bridge, headers in ((listed, bearing()[:1]), (plain, [])):
        answer = await Session(bridge.port, headers).post(initialize())
        assert answer.status == 200
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.case("HT-07")
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", ""]
)
async def test_name_that_was_rebound_to_loopback_is_refused(plain: Bridge, host: str) -> None:
    async with dial(plain.port) as exchange:
        body = json.dumps(initialize()).encode()
        lines = [JSON_TYPE, ("Accept", BOTH), ("Content-Length", str(len(body)))]
        exchange.say(head_of("POST", "/mcp", lines, host=host) + body)
        answer = await exchange.answer()
        assert answer.status in (400, 403, 421), answer


@pytest.mark.case("HT-07")
async def test_star_admits_every_page_and_names_it(start_bridge: Start) -> None:
    bridge = start_bridge(SERVER, "--allowed-origin", "*")
    for origin in ("https://a.example", "null"):
        answer = await Session(bridge.port, [("Origin", origin)]).post(initialize())
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] in (origin, "*")


# AU, LS-05: the token

WRONG = [
    [],
    [("Authorization", "Bearer wrong-token-0123456789")],
    [("Authorization", f"Basic {TOKEN}")],
    [("Authorization", TOKEN)],
    [("Authorization", f"Bearer {TOKEN}x")],
    [("Authorization", f"Bearer {TOKEN[:-1]}")],
    [("Authorization", f"Bearer {TOKEN.upper()}")],
    [("Authorization", "Bearer ")],
    [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer other-token-0123456789")],
    [("Authorization", "Bearer \xe9")],
]


@pytest.mark.case("LS-05", "AU-02")
@pytest.mark.parametrize(
    "lines", WRONG, ids=lambda lines: " and ".join(value for _, value in lines) or "none"
)
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_valid_session_id_is_no_credential(
    listed: Bridge, method: str, lines: list[tuple[str, str]]
) -> None:
    peer = Session(listed.port, bearing()[:1])
    opened = await peer.post(initialize())
    named = ("Mcp-Session-Id", opened.headers["mcp-session-id"])
    body = json.dumps(request(1, "ping")).encode() if method == "POST" else None
    answer = await ask(listed.port, method, [*lines, named, JSON_TYPE, ("Accept", BOTH)], body)
    refused(answer, 401)
    assert answer.headers["www-authenticate"].lower().startswith("bearer")
    peer.headers.append(named)
    assert tool_text(await peer.post(call(1, "echo", {"text": "alive"}))) == "alive"
    await peer.delete()


@pytest.mark.case("LS-05")
async def test_modern_caller_needs_the_token_too(listed: Bridge) -> None:
    refused(await Modern(listed.port).post(request(1, "server/discover")), 401)


@pytest.mark.case("AU-02")
@pytest.mark.parametrize(
    "path",
    [
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/oauth-authorization-server",
        "/register",
    ],
)
async def test_discovery_of_what_is_not_offered_is_answered_in_json(plain: Bridge, path: str) -> None:
    refused(await ask(plain.port, "GET", [], path=path), 404)


@pytest.mark.case("LS-05")
async def test_scheme_of_the_token_may_be_written_in_any_case(listed: Bridge) -> None:
    for scheme in ("bearer", "BEARER"):
        peer = Session(listed.port, [("Authorization", f"{scheme} {TOKEN}")])
        assert (await peer.post(initialize())).status == 200


@pytest.mark.case("LS-05")
async def test_session_ids_share_nothing_and_are_never_logged_whole(listed: Bridge) -> None:
    ids = []
    for _ in range(5):
        peer = Session(listed.port, bearing()[:1])
        ids.append((await peer.post(initialize())).headers["mcp-session-id"])
    assert len({id_[:8] for id_ in ids}) == 5
    assert all(len(id_) >= 22 and id_.isascii() and id_.isprintable() for id_ in ids)
    listed.expect_log(ids[-1][:8])
    log = "\n".join(listed.log)
    assert not any(id_ in log for id_ in ids)
    assert TOKEN not in log


@pytest.mark.case("HT-02", "HT-05")
@pytest.mark.parametrize(
    "params", [{}, {"protocolVersion": 5}, {"protocolVersion": None}, [], {"capabilities": []}]
)
@pytest.mark.parametrize("model", ["plain", "shared"])
async def test_odd_initialize_gets_one_answer(
    request: pytest.FixtureRequest, model: str, params: object
) -> None:
    bridge: Bridge = request.getfixturevalue(model)
    body = {"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": params}
    answer = await Session(bridge.port).post(body)
    assert answer.status in (200, 400), answer
    assert answer.last["id"] == 7
