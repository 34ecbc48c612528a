"""Field cases SS, CP-01, CP-02 and LS-05: sessions come and go and leave nothing."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import socket
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest
from support import machine
from support.black_box import launched
from support.machine import LIMIT

from bridge.app import running
from bridge.config import Command, Config, Listen, Timing

from .conftest import CHILDREN, Bridge, Start, child
from .raw import BOTH, JSON_ONLY, SSE_ONLY, Exchange, ask, dial, head_of, opened
from .session import Id, Json, Modern, Session, call, connect, initialize, notification, request, session

SERVER = child("obeys_calls.py")
CHEAP = ["/bin/sh", str(CHILDREN / "answers_cheaply.sh")]
DEMO = [sys.executable, "-m", "bridge", "demo-server"]
JSON_TYPE = ("Content-Type", "application/json")
INITIALIZE = json.dumps(initialize()).encode()
LISTING = json.dumps(request(1, "tools/list")).encode()
TOKEN = "field-test-token-0123456789"
MIB = 1 << 20
LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")


@pytest.fixture(scope="module")
def plain(start_bridge: Start) -> Bridge:
    return start_bridge(SERVER)


@pytest.fixture(scope="module")
def quiet(start_bridge: Start) -> Bridge:
    """One that nobody opens a session with."""
    return start_bridge(SERVER)


@pytest.fixture(scope="module")
def old(start_bridge: Start) -> Bridge:
    """With HTTP+SSE, and a token."""
    return start_bridge(SERVER, "--legacy-sse", "--auth-token-env", "FIELD_TOKEN", env={"FIELD_TOKEN": TOKEN})


def tool_text(message: Json) -> str:
    text = message["result"]["content"][0]["text"]
    assert isinstance(text, str)
    return text


async def seen(caller: Session, request_id: Id = "seen") -> Json:
    """What our server has seen."""
    found: Json = json.loads(tool_text((await caller.post(call(request_id, "seen"))).last))
    return found


async def readiness(port: int) -> Json:
    found: Json = json.loads((await ask(port, "GET", [], path="/readyz")).body)
    return found


# What a bridge holds


@dataclass(frozen=True)
class Holding:
    sessions: int
    servers: int
    zombies: int
    descriptors: int
    threads: int
    memory: int

    def fits(self, before: Holding, *, memory: int) -> bool:
        """Whether it is no more than before, but for `memory` bytes and a connection that closes just now."""
        return (
            self.sessions == before.sessions
            and self.servers == before.servers
            and self.zombies == 0
            and self.descriptors <= before.descriptors + 1
            and self.threads <= before.threads + 4  # of a pool that keeps its threads
            and self.memory - before.memory < memory
        )


async def holding(bridge: Bridge) -> Holding:
    return Holding(
        sessions=(await readiness(bridge.port))["sessions"],
        servers=len(bridge.servers()),
        zombies=len(machine.zombies_of(bridge.pid)),
        descriptors=machine.descriptors(bridge.pid),
        threads=machine.threads(bridge.pid),
        memory=machine.memory(bridge.pid),
    )


async def at_rest(bridge: Bridge, servers: int = 1) -> Holding:
    """What it holds once it has tried its server by itself and ended that one."""
    async with asyncio.timeout(LIMIT):
        while not (await readiness(bridge.port))["ready"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        # Twice the same, since one that is just being started cannot be seen yet.
        seen_before = None
        while len(now := bridge.servers()) != servers or now != seen_before:
            seen_before = now
            await asyncio.sleep(0.1)
    return await holding(bridge)


async def settled(bridge: Bridge, before: Holding, *, memory: int = 8 * MIB) -> None:
    """Wait until it holds no more than before."""
    now = before
    try:
        async with asyncio.timeout(LIMIT):
            while not (now := await holding(bridge)).fits(before, memory=memory):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"before {before}\nnow {now}\n{bridge.tail()}") from None


async def repeated(port: int, times: int, data: bytes) -> Counter[int]:
    """The statuses of one request said many times, on connections that are kept as long as they last."""
    statuses: Counter[int] = Counter()
    while (left := times - statuses.total()) > 0:
        async with dial(port) as connection:
            for _ in range(left):
                connection.say(data)
                answer = await Exchange(connection.reader, connection.writer).answer()
                statuses[answer.status] += 1
                if answer.headers.get("connection") == "close":
                    break
    return statuses


async def crowd(size: int, one: Callable[[int], Awaitable[None]], *, at_once: int = 16) -> None:
    """`one` of each number below `size`, so many at a time."""
    numbers = iter(range(size))

    async def work() -> None:
        for number in numbers:
            await one(number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(work())


# SS-01


@pytest.mark.case("SS-01")
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize("name", ["a" * 32, "1", "../../etc/passwd", "x" * 4000, "\xe9"])
async def test_session_that_is_unknown_is_404_on_every_method(plain: Bridge, method: str, name: str) -> None:
    body = LISTING if method == "POST" else None
    lines = [JSON_TYPE, ("Accept", BOTH), ("Mcp-Session-Id", name)]
    answer = await ask(plain.port, method, lines, body)
    assert answer.status == 404, answer
    assert answer.error["code"] == -32600


@pytest.mark.case("SS-01")
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize("lines", [[], [("Mcp-Session-Id", "")]], ids=["missing", "empty"])
async def test_request_without_a_session_is_400(
    plain: Bridge, method: str, lines: list[tuple[str, str]]
) -> None:
    body = LISTING if method == "POST" else None
    answer = await ask(plain.port, method, [JSON_TYPE, ("Accept", BOTH), *lines], body)
    assert answer.status in ((400,) if not lines else (400, 404)), answer


@pytest.mark.case("SS-01")
async def test_session_named_twice_is_400(plain: Bridge) -> None:
    async with session(plain.port) as one, session(plain.port) as two:
        lines = [*one.posting(b""), ("Mcp-Session-Id", two.id)]
        assert (await ask(plain.port, "POST", lines, json.dumps(request(1, "ping")).encode())).status == 400


@pytest.mark.case("SS-01")
async def test_session_of_a_bridge_before_the_restart_is_404_and_initialize_opens_a_new_one() -> None:
    async with launched(SERVER) as first:
        await first.until_serving()
        stale = await connect(first.port)
        await first.stop()
    async with launched(SERVER) as second:
        await second.until_serving()
        stale.port = port = second.port  # not the first's, which may be another's by now
        for method, body in (
            ("POST", json.dumps(request(1, "ping")).encode()),
            ("GET", None),
            ("DELETE", None),
        ):
            assert (await ask(port, method, [*stale.posting(b"")], body)).status == 404
        answer = await stale.post(initialize())
        assert answer.status == 200
        assert answer.headers["mcp-session-id"] != stale.id
        await second.stop()


@pytest.mark.case("SS-01")
async def test_initialize_with_the_id_of_a_living_session_opens_another(plain: Bridge) -> None:
    async with session(plain.port) as peer:
        answer = await peer.post(initialize())
        assert answer.status == 200
        assert answer.headers["mcp-session-id"] != peer.id
        assert tool_text((await peer.post(call(1, "echo", {"text": "on"}))).last) == "on"


# SS-03

REFUSED: list[tuple[str, bytes, int]] = [
    ("GET without a session", head_of("GET", "/mcp", [("Accept", SSE_ONLY)]), 400),
    ("DELETE without a session", head_of("DELETE", "/mcp", []), 400),
    (
        "GET of an unknown session",
        head_of("GET", "/mcp", [("Accept", SSE_ONLY), ("Mcp-Session-Id", "x")]),
        404,
    ),
    ("DELETE of an unknown session", head_of("DELETE", "/mcp", [("Mcp-Session-Id", "x")]), 404),
    ("PUT", head_of("PUT", "/mcp", []), 405),
]


def posted(*lines: tuple[str, str], body: bytes = INITIALIZE, accept: str = BOTH) -> bytes:
    typed = () if any(name == "Content-Type" for name, _ in lines) else (JSON_TYPE,)
    return (
        head_of("POST", "/mcp", [*typed, ("Accept", accept), ("Content-Length", str(len(body))), *lines])
        + body
    )


REFUSED += [
    ("POST that takes HTML", posted(accept="text/html"), 406),
    ("POST of text", posted(("Content-Type", "text/plain")), 415),
    ("POST of no JSON", posted(body=b"{not json"), 400),
    ("POST of no message", posted(body=b"{}"), 400),
    ("POST of an empty batch", posted(body=b"[]"), 400),
    ("POST without a session", posted(body=LISTING), 400),
    ("POST of a notification without a session", posted(body=json.dumps(notification("x")).encode()), 400),
    (
        "POST of an unknown session",
        posted(("Mcp-Session-Id", "x"), body=LISTING),
        404,
    ),
    ("POST from a foreign page", posted(("Origin", "https://evil.example")), 403),
    (
        "POST of a modern request that contradicts itself",
        posted(("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "x"), body=LISTING),
        400,
    ),
]


@pytest.mark.case("SS-03")
@pytest.mark.parametrize(("data", "status"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
async def test_thousand_refused_requests_leave_nothing(quiet: Bridge, data: bytes, status: int) -> None:
    before = await at_rest(quiet)
    statuses = await repeated(quiet.port, 1000, data)
    assert statuses == {status: 1000}
    await settled(quiet, before)


@pytest.mark.case("SS-03", "LS-05")
@pytest.mark.parametrize("path", ["/mcp", "/sse", "/messages?session_id=x"])
async def test_thousand_requests_without_a_token_leave_nothing(old: Bridge, path: str) -> None:
    before = await at_rest(old)
    body = INITIALIZE if path != "/sse" else b""
    lines = [JSON_TYPE, ("Accept", BOTH), ("Content-Length", str(len(body)))]
    data = head_of("POST" if body else "GET", path, lines) + body
    assert await repeated(old.port, 1000, data) == {401: 1000}
    await settled(old, before)


@pytest.mark.case("SS-03")
async def test_thousand_sessions_opened_and_deleted_leave_nothing(start_bridge: Start) -> None:
    bridge = start_bridge(CHEAP)
    await open_and_delete(bridge, 100)  # what is made once is made now
    before = await at_rest(bridge)
    await open_and_delete(bridge, 1000)
    await settled(bridge, before)


async def open_and_delete(bridge: Bridge, times: int) -> None:
    async def one(_: int) -> None:
        async with dial(bridge.port) as connection:
            connection.say(posted())
            answer = await Exchange(connection.reader, connection.writer).answer()
            assert answer.status == 200, answer
            named = ("Mcp-Session-Id", answer.headers["mcp-session-id"])
            for expected in (200, 404):
                connection.say(head_of("DELETE", "/mcp", [named]))
                assert (await Exchange(connection.reader, connection.writer).answer()).status == expected

    await crowd(times, one)


@pytest.mark.case("SS-03")
async def test_clients_that_initialize_and_vanish_are_capped_and_expire(start_bridge: Start) -> None:
    bridge = start_bridge(CHEAP, "--max-sessions", "50", "--session-idle-timeout", "1s")
    before = await at_rest(bridge)
    statuses: Counter[int] = Counter()

    async def one(number: int) -> None:
        async with dial(bridge.port) as connection:
            connection.say(posted())
            if number % 3:
                answer = await connection.answer()
                statuses[answer.status] += 1
                assert answer.status == 200 or answer.headers["retry-after"]
            else:
                await connection.flush()
                connection.reset()

    await crowd(1000, one, at_once=32)
    assert set(statuses) == {200, 503}, statuses
    assert len(bridge.servers()) <= 50 + 33
    await settled(bridge, before)


@pytest.mark.case("SS-03")
async def test_session_over_the_cap_is_refused_until_one_ends(start_bridge: Start) -> None:
    bridge = start_bridge(SERVER, "--max-sessions", "2", "--legacy-sse")
    async with session(bridge.port) as kept:
        gone = await connect(bridge.port)
        answer = await Session(bridge.port).post(initialize())
        assert answer.status == 503
        assert int(answer.headers["retry-after"]) > 0
        assert answer.error["data"]["reason"] == "sessions"
        assert answer.last["id"] == "init"
        assert (await ask(bridge.port, "GET", [("Accept", SSE_ONLY)], path="/sse")).status == 503
        await gone.delete()
        async with session(bridge.port):
            assert tool_text((await kept.post(call(1, "echo", {"text": "on"}))).last) == "on"


@pytest.mark.case("SS-03", "CP-02")
async def test_child_of_a_deleted_session_ends_with_its_stdin(start_bridge: Start) -> None:
    bridge = start_bridge(SERVER, "--warm", "0")
    peer = await connect(bridge.port)
    async with peer.posted(call(1, "hold", {"steps": 1}, token=1)) as waiting:
        await waiting.message()
        pid = (await seen(peer))["pid"]
        assert (await peer.delete()).status == 200
        assert (await waiting.message())["error"]["data"]["reason"] == "session_closed"
        assert await waiting.block() is None
    # SIGTERM would come 5 s after the end of its stdin.
    await machine.eventually(lambda: not machine.lives(pid), bridge.tail, limit=4.0)
    assert (await peer.post(call(2, "echo", {"text": ""}))).status == 404
    assert (await peer.delete()).status == 404


# SS-05


def go_dead(sock: socket.socket) -> None:
    """Drop every packet that comes for this socket: no acknowledgement, no reset, as behind a dead link.

    A classic BPF program of one instruction, "return 0", attached by SO_ATTACH_FILTER (26).
    """
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    program = struct.pack("HL", 1, ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, 26, program)


IMPATIENT = Timing(keepalive=0.2, stalled=0.5, session_idle=0.5)


@asynccontextmanager
async def impatient(*, old: bool = False) -> AsyncIterator[tuple[int, Callable[[], int]]]:
    """A bridge with short times, which no option gives; its port, and how many sessions it has."""
    listen = Listen(port=0, legacy_sse=old)
    config = Config(upstream=Command(argv=tuple(SERVER)), listen=listen, timing=IMPATIENT, warm=0)
    async with running(config, os.environ) as (relay, served):
        yield int(served.listening.rpartition(":")[2]), lambda: len(relay.sessions)


@pytest.mark.case("SS-05")
async def test_session_whose_listening_client_fell_silent_expires() -> None:
    async with impatient() as (port, sessions):
        peer = await connect(port)
        pid = (await seen(peer))["pid"]
        async with peer.listening() as stream:
            assert await stream.head() == 200
            go_dead(stream.writer.get_extra_info("socket"))
            await machine.eventually(lambda: not sessions(), lambda: "the session still counts")
            await machine.eventually(lambda: not machine.lives(pid), lambda: "its server still runs")


@pytest.mark.case("SS-05")
async def test_sse_session_whose_client_fell_silent_ends() -> None:
    async with AsyncExitStack() as stack:
        port, sessions = await stack.enter_async_context(impatient(old=True))
        listening = opened(port, "GET", [("Accept", SSE_ONLY)], path="/sse")
        stream = await stack.enter_async_context(listening)
        await stream.event()
        assert sessions() == 1
        go_dead(stream.writer.get_extra_info("socket"))
        await machine.eventually(lambda: not sessions(), lambda: "the session still counts")


@pytest.mark.case("SS-05")
async def test_call_whose_client_fell_silent_does_not_hold_its_session_for_ever() -> None:
    async with impatient() as (port, sessions):
        peer = await connect(port)
        async with peer.posted(call(1, "slow", {"seconds": 0.5, "steps": 1}, token=1)) as stream:
            await stream.message()
            go_dead(stream.writer.get_extra_info("socket"))
            await machine.eventually(lambda: not sessions(), lambda: "the session still counts")


# SS-06


@pytest.mark.case("SS-06")
async def test_idle_time_ends_idle_sessions_and_no_others(start_bridge: Start) -> None:
    bridge = start_bridge(SERVER, "--session-idle-timeout", "400ms")
    async with AsyncExitStack() as stack:
        # Each is busy before the next one comes, which takes its time.
        working = await connect(bridge.port)
        running_call = await stack.enter_async_context(working.posted(call(1, "hold"), JSON_ONLY))
        listening = await connect(bridge.port)
        stream = await stack.enter_async_context(listening.listening())
        assert await stream.head() == 200
        lost = await connect(bridge.port)
        async with lost.posted(call(1, "hold", {"steps": 1}, token=1)) as gone:
            await gone.message()
            gone.reset()
        for _ in range(2):  # of one that lives as long as the others after they fell silent
            idle = await connect(bridge.port)
            line = await asyncio.to_thread(bridge.expect_log, f"session {idle.id[:8]} ended")
            assert "idle" in line
            assert (await idle.post(request(1, "ping"))).status == 404
        assert tool_text((await listening.post(call(2, "echo", {"text": "on"}))).last) == "on"
        await lost.tell("notifications/release")  # a call that nobody hears is a call all the same
        await working.tell("notifications/release")
        assert tool_text((await running_call.answer()).last) == "released"
        stream.reset()
        for peer in (working, listening, lost):
            assert "idle" in await asyncio.to_thread(bridge.expect_log, f"session {peer.id[:8]} ended")


@pytest.mark.case("SS-06")
async def test_bad_times_are_refused_at_start_in_one_line() -> None:
    async def one(value: str) -> None:
        async with launched(SERVER, "--session-idle-timeout", value) as bridge:
            assert await bridge.status() == 2, (value, bridge.tail())
            assert any("--session-idle-timeout" in line for line in bridge.log), bridge.tail()
            assert len(bridge.log) <= 2, bridge.tail()

    values = ["0", "-1", "-5m", "nan", "inf", "1e999", "soon", "", "5 parrots", "0x10", "1,5"]
    await crowd(len(values), lambda number: one(values[number]), at_once=2)


@pytest.mark.case("SS-06")
@pytest.mark.parametrize("value", ["1e9", "720h", "99999999999999"])
async def test_big_times_are_taken_as_they_are(value: str) -> None:
    async with launched(SERVER, "--session-idle-timeout", value) as bridge:
        await bridge.until_serving()
        peer = await connect(bridge.port)
        assert tool_text((await peer.post(call(1, "slow", {"seconds": 0.1}))).last) == "done"
        assert tool_text((await peer.post(call(2, "echo", {"text": "on"}))).last) == "on"
        await bridge.stop()


# SS-08


@pytest.mark.case("SS-08")
async def test_shared_server_is_initialized_once_however_many_come(start_bridge: Start) -> None:
    bridge = start_bridge(child("obeys_calls.py", "initializes once"), "--process", "shared")
    capabilities: list[Json] = [
        {},
        {"roots": {}},
        {"sampling": {}},
        {"elicitation": {}},
        {"roots": {}, "x": {}},
    ]

    async def one(number: int) -> None:
        name, revision = f"client-{number}", LEGACY[number % 4]
        peer = Session(bridge.port)
        answer = await peer.post(initialize(revision, capabilities[number % 5], request_id=name))
        assert answer.last["id"] == name
        assert answer.result["protocolVersion"] <= revision
        peer.headers.append(("Mcp-Session-Id", answer.headers["mcp-session-id"]))
        await peer.tell("notifications/initialized")
        assert (await seen(peer))["initialized"] == 1

    async with dial(bridge.port) as first:  # the first of all leaves half-way
        first.say(posted())
        await first.flush()
        first.reset()
        await crowd(20, one, at_once=20)
    bridge.expect_servers(2)  # the shared one, and one started ahead


@pytest.mark.case("SS-08")
async def test_second_initialize_in_a_session_is_refused_or_opens_a_new_one(start_bridge: Start) -> None:
    for options in ((), ("--process", "shared")):
        bridge = start_bridge(child("obeys_calls.py", "initializes once"), *options)
        peer = await connect(bridge.port)
        again = await peer.post(initialize(request_id=2))
        assert again.last["id"] == 2
        assert tool_text((await peer.post(call(3, "echo", {"text": "on"}))).last) == "on"


@pytest.mark.case("SS-08", "CP-07")
async def test_failed_first_handshake_of_a_shared_server_is_not_kept(
    start_bridge: Start, tmp_path: os.PathLike[str]
) -> None:
    once = os.path.join(tmp_path, "failed")  # noqa: PTH118
    bridge = start_bridge(child("obeys_calls.py", "fails once", once), "--process", "shared", "--warm", "0")
    first = await Session(bridge.port).post(initialize())
    if "error" in first.last:
        assert "status 1" in first.error["message"]
    peer = await connect(bridge.port)
    assert tool_text((await peer.post(call(1, "echo", {"text": "on"}))).last) == "on"


@pytest.mark.case("SS-08", "ID-05")
@pytest.mark.parametrize("model", ["session", "shared"])
async def test_hundred_sessions_with_equal_ids_get_their_own_answers(start_bridge: Start, model: str) -> None:
    bridge = start_bridge(SERVER, "--process", model)

    async def one(number: int) -> None:
        peer = await connect(bridge.port)
        asked = [
            call(7, "slow", {"seconds": (number % 7) / 100, "text": f"secret {number}"}),
            call(8, "echo", {"text": f"{number}"}),
        ]
        answers = await asyncio.gather(*map(peer.post, asked))
        assert [tool_text(answer.last) for answer in answers] == [f"secret {number}", f"{number}"]
        await peer.delete()

    await crowd(100, one, at_once=50)


# SS-09


@asynccontextmanager
async def sse_client(port: int) -> AsyncIterator[tuple[Exchange, str]]:
    """A stream of HTTP+SSE, and where to POST."""
    headers = [("Accept", SSE_ONLY), ("Authorization", f"Bearer {TOKEN}")]
    async with opened(port, "GET", headers, path="/sse") as stream:
        event = await stream.event()
        assert event.name == "endpoint"
        yield stream, "/" + event.data.decode().lstrip("/")


async def sse_post(port: int, path: str, body: Json, headers: Sequence[tuple[str, str]] | None = None) -> int:
    lines = [("Authorization", f"Bearer {TOKEN}")] if headers is None else list(headers)
    answer = await ask(port, "POST", [JSON_TYPE, *lines], json.dumps(body).encode(), path=path)
    return answer.status


@pytest.mark.case("SS-09")
async def test_sse_clients_come_and_go_without_touching_each_other(old: Bridge) -> None:
    before = await at_rest(old)
    async with sse_client(old.port) as (kept, path):
        assert await sse_post(old.port, path, initialize("2024-11-05")) == 202
        assert (await kept.message())["result"]["protocolVersion"] == "2024-11-05"

        async def one(number: int) -> None:
            async with sse_client(old.port) as (stream, own):
                assert await sse_post(old.port, own, initialize("2024-11-05", request_id=1)) == 202
                assert (await stream.message())["id"] == 1
                assert await sse_post(old.port, own, call(1, "echo", {"text": f"{number}"})) == 202
                assert tool_text(await stream.message()) == f"{number}"

        await crowd(100, one)
        assert await sse_post(old.port, path, call(1, "echo", {"text": "mine"})) == 202
        assert tool_text(await kept.message()) == "mine"
    await settled(old, before)


PROBES = [
    "/message",
    "/messages",
    "/messages/",
    "/messages?session_id=",
    "/messages?session_id=x",
    "/sse",
    "/",
    "/message?sessionId=1",
]


@pytest.mark.case("SS-09")
@pytest.mark.parametrize("path", PROBES)
@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"ping", json.dumps(request(1, "ping")).encode()],
    ids=["empty", "object", "text", "ping"],
)
async def test_probe_without_a_stream_gets_a_4xx(old: Bridge, path: str, body: bytes) -> None:
    lines = [JSON_TYPE, ("Authorization", f"Bearer {TOKEN}")]
    answer = await ask(old.port, "POST", lines, body, path=path)
    assert 400 <= answer.status < 500, answer
    assert old.process.poll() is None


@pytest.mark.case("LS-05")
@pytest.mark.parametrize(
    "lines", [[], [("Authorization", "Bearer wrong-token-0123456789")]], ids=["no token", "another"]
)
async def test_address_for_messages_is_no_credential(old: Bridge, lines: list[tuple[str, str]]) -> None:
    async with sse_client(old.port) as (stream, path):
        assert await sse_post(old.port, path, initialize("2024-11-05"), lines) == 401
        assert await sse_post(old.port, path, initialize("2024-11-05", request_id="mine")) == 202
        assert (await stream.message())["id"] == "mine"
        assert path.partition("=")[2] not in "\n".join(old.log)


# CP-01, CP-02


@pytest.mark.case("CP-01")
async def test_five_hundred_stateless_posts_start_no_processes_of_their_own(start_bridge: Start) -> None:
    bridge = start_bridge(DEMO)
    await Modern(bridge.port).post(request(0, "server/discover"))
    await Modern(bridge.port).post(call(0, "echo", {"text": ""}))
    before = await at_rest(bridge, 2)
    most = before.servers

    async def one(number: int) -> None:
        nonlocal most
        caller = Modern(bridge.port)
        if number % 5 == 0:
            asked = call(number, "slow", {"seconds": 60, "steps": 6000}, token=number)
            async with caller.posted(asked) as exchange:
                await exchange.message()
                exchange.reset()
        elif number % 5 == 1:
            async with caller.posted(call(number, "slow", {"seconds": 60})) as exchange:
                exchange.reset()
        else:
            answer = await caller.post(call(number, "echo", {"text": f"{number}"}))
            assert tool_text(answer.last) == f"{number}"
        if number % 50 == 0:
            most = max(most, len(bridge.servers()))

    await crowd(500, one)
    assert most == before.servers
    await settled(bridge, before)


@pytest.mark.case("CP-01", "CP-07")
async def test_stateless_posts_to_a_server_that_cannot_start_leave_nothing(start_bridge: Start) -> None:
    bridge = start_bridge(child("obeys_calls.py", "exits", "7"))
    answers = [await Modern(bridge.port).post(call(number, "echo", {"text": ""})) for number in range(20)]
    assert all("error" in answer.last for answer in answers)
    assert [answer.last["id"] for answer in answers] == list(range(20))
    await machine.eventually(lambda: not machine.zombies_of(bridge.pid), bridge.tail)


MOMENTS = ("after the head", "within the body", "after the body", "while it is answered")


@pytest.mark.case("CP-02", "CP-01")
@pytest.mark.parametrize("model", ["session", "shared"])
async def test_clients_that_vanish_at_any_moment_disturb_nobody(start_bridge: Start, model: str) -> None:
    bridge = start_bridge(SERVER, "--process", model)
    async with session(bridge.port) as steady, session(bridge.port) as fickle:
        before = await at_rest(bridge, 3 if model == "session" else 2)

        async def one(number: int) -> None:
            peer = fickle if number % 2 else Session(bridge.port)
            body = json.dumps(
                call(number, "slow", {"seconds": number % 10 / 50, "steps": 2}, token=number)
                if number % 2
                else initialize()
            ).encode()
            lines = [*peer.posting(b""), ("Content-Length", str(len(body)))]
            moment = MOMENTS[number // 2 % 4]
            async with dial(bridge.port) as exchange:
                exchange.say(head_of("POST", "/mcp", lines))
                exchange.say({"after the head": b"", "within the body": body[:20]}.get(moment, body))
                await exchange.flush()
                if moment == "while it is answered":
                    await exchange.head()
                reset(exchange)

        async def go_on() -> None:
            for number in range(100):
                assert (
                    tool_text((await steady.post(call(number, "echo", {"text": f"{number}"}))).last)
                    == f"{number}"
                )

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(crowd(200, one, at_once=32))
            tasks.create_task(go_on())
        assert tool_text((await fickle.post(call(1000, "echo", {"text": "on"}))).last) == "on"
        # Who left after the body was sent may have been answered before: that session lives.
        opened_and_kept = (await readiness(bridge.port))["sessions"] - before.sessions
        assert 0 <= opened_and_kept <= 50
    faults = [line for line in bridge.log if "Exception" in line or "failed with" in line]
    assert not faults


def reset(exchange: Exchange) -> None:
    """Leave with an RST, not with a FIN."""
    sock = exchange.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    exchange.reset()


@pytest.mark.case("CP-02")
async def test_answers_to_clients_that_left_reach_nobody_else(start_bridge: Start) -> None:
    bridge = start_bridge(SERVER, "--process", "shared")
    async with (
        session(bridge.port) as leaving,
        session(bridge.port) as staying,
        staying.listening() as stream,
    ):
        assert await stream.head() == 200
        for number in range(20):
            async with leaving.posted(
                call(number, "hold", {"text": "not yours", "steps": 1}, token=number)
            ) as exchange:
                await exchange.message()
                reset(exchange)
        own = asyncio.create_task(staying.post(call(0, "slow", {"seconds": 0.1, "text": "mine"})))
        await leaving.tell("notifications/release")
        answer = await own
        assert [tool_text(message) for message in answer.messages] == ["mine"]
        await staying.post(call(1, "note", {"method": "notifications/tools/list_changed", "params": {}}))
        assert (await stream.message())["method"] == "notifications/tools/list_changed"
