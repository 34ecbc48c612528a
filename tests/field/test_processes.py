"""Field cases CP: the child process, from the words of its command line to the last of its grandchildren."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pytest
from support import machine
from support.black_box import Bridge, launched
from support.machine import LIMIT

from .conftest import CHILDREN, child
from .raw import BOTH, JSON_ONLY, SSE_ONLY, Answer, Exchange, ask, dial, dump, head_of, opened
from .session import Json, Modern, Session, call, connect, initialize, notification, request

SERVER = child("obeys_calls.py")
CHEAP = ["/bin/sh", str(CHILDREN / "answers_cheaply.sh")]
T = TypeVar("T")
KINDS = ("plain", "holds the pipes", "own group", "own session", "deaf", "orphan")


@asynccontextmanager
async def serving(command: Sequence[str], *options: str, **more: object) -> AsyncIterator[Bridge]:
    """A bridge that listens; on leaving it must end as `Bridge.stop` says, unless it has ended."""
    async with launched(command, *options, **more) as bridge:  # type: ignore[arg-type]
        await bridge.until_serving()
        yield bridge
        if bridge.process.returncode is None:
            await bridge.stop()
        await bridge.status()  # all that it said is there
        assert not [line for line in bridge.log if "Traceback" in line], bridge.tail()


def tool_text(message: Json) -> str:
    assert "result" in message, message
    text = message["result"]["content"][0]["text"]
    assert isinstance(text, str)
    return text


async def text(caller: Session, name: str, **arguments: object) -> str:
    return tool_text((await caller.post(call(f"for {name}", name, arguments))).last)


async def seen(caller: Session) -> Json:
    """What its server has seen: `argv` and `environ` are bytes in hex."""
    found: Json = json.loads(await text(caller, "seen"))
    return found


def unhexed(words: Sequence[str]) -> list[bytes]:
    return [bytes.fromhex(word) for word in words]


async def each(one: Callable[[T], Awaitable[object]], rows: Sequence[T], *, at_once: int = 4) -> None:
    """`one` of every row, some at a time: what a bridge takes to start or to end is mostly waiting."""
    room = asyncio.Semaphore(at_once)

    async def noted(row: T) -> None:
        try:
            async with room:
                await one(row)
        except Exception as fault:
            fault.add_note(f"for {row!r}")
            raise

    async with asyncio.TaskGroup() as tasks:
        for row in rows:
            tasks.create_task(noted(row))


async def until_gone(pids: Sequence[int], bridge: Bridge, limit: float = LIMIT) -> None:
    await machine.eventually(
        lambda: not any(map(machine.lives, pids)),
        lambda: f"{[machine.look(pid) for pid in pids]}\n{bridge.tail()}",
        limit,
    )


# CP-03


@pytest.mark.case("CP-03")
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_signal_lets_what_runs_finish_and_ends_every_stream(sign: signal.Signals) -> None:
    async with AsyncExitStack() as stack, serving(SERVER, "--legacy-sse") as bridge:
        peer = await connect(bridge.port)
        get = await stack.enter_async_context(peer.listening())
        sse = await stack.enter_async_context(opened(bridge.port, "GET", [("Accept", SSE_ONLY)], path="/sse"))
        post = await stack.enter_async_context(peer.posted(call(1, "hold", {"steps": 1}, token=1)))
        plain = await stack.enter_async_context(peer.posted(call(2, "hold"), JSON_ONLY))
        spare = await stack.enter_async_context(dial(bridge.port))
        await get.head()
        await sse.event()
        await post.message()
        assert (await said(spare, peer, request(3, "ping"))).status == 200

        bridge.process.send_signal(sign)
        await bridge.until_said("stopping")
        with pytest.raises(OSError):
            await ask(bridge.port, "GET", [], path="/healthz")
        late = await said(spare, peer, request(4, "ping"))
        assert late.status == 503
        assert late.error["data"]["reason"] == "draining"
        assert (await said(spare, peer, notification("notifications/release"))).status == 202
        assert tool_text(await post.message()) == "released"
        assert await post.block() is None
        assert tool_text((await plain.answer()).last) == "released"
        assert (await get.answer()).status == 200, "a stream must end as streams do"
        assert (await sse.answer()).status == 200
        assert await bridge.status() == 0
        await bridge.expect_nothing_left()


async def said(connection: Exchange, peer: Session, message: Json) -> Answer:
    """A message on a connection that is open already."""
    body = dump(message)
    connection.say(head_of("POST", "/mcp", [*peer.posting(b""), ("Content-Length", str(len(body)))]) + body)
    return await Exchange(connection.reader, connection.writer).answer()


@pytest.mark.case("CP-03", "CP-05")
async def test_bridge_ends_although_calls_and_servers_will_not() -> None:
    """Together, for each takes the time that is given."""

    async def call_without_end() -> None:
        async with serving(SERVER) as bridge:
            peer = await connect(bridge.port)
            async with peer.posted(call(1, "hold"), JSON_ONLY) as post, peer.listening() as get:
                await get.head()
                bridge.process.terminate()
                answer = await post.answer()
                assert answer.error["data"]["origin"] == "bridge"
                assert answer.last["id"] == 1
                assert (await get.answer()).status == 200
            assert await bridge.status() == 0
            await bridge.expect_nothing_left()

    async def modern_call_without_end() -> None:
        demo = [sys.executable, "-m", "bridge", "demo-server"]
        async with serving(demo) as bridge:
            asked = call(1, "slow", {"seconds": 600, "steps": 10000}, token=1)
            async with Modern(bridge.port).posted(asked) as post:
                await post.message()
                bridge.process.terminate()
                assert (await post.answer()).error["data"]["origin"] == "bridge"
            assert await bridge.status() == 0
            await bridge.expect_nothing_left()

    async def deaf_server(*options: str) -> None:
        async with serving([*SERVER, "ignores SIGTERM"], *options) as bridge:
            peer = await connect(bridge.port)
            async with peer.listening() as get:
                await get.head()
                bridge.process.terminate()
                # 5 s after its stdin closed, 5 s after SIGTERM: one after the other they would take 20.
                assert await bridge.status(19.0) == 0
            await bridge.expect_nothing_left()

    async def wrapper_that_stays() -> None:
        line = shlex.join(["sh", "-c", f"trap '' TERM; {shlex.join(SERVER)}; sleep 1000"])
        async with serving([], "--cmd", line, "--warm", "0") as bridge:
            peer = await connect(bridge.port)
            assert await text(peer, "echo", text="hi") == "hi"
            await bridge.until_servers(2)
            await peer.delete()
            await bridge.until_servers(0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(wrapper_that_stays())
        tasks.create_task(call_without_end())
        tasks.create_task(modern_call_without_end())
        tasks.create_task(deaf_server())
        tasks.create_task(deaf_server("--process", "shared"))


@pytest.mark.case("CP-03")
async def test_second_signal_ends_everything_at_once() -> None:
    async def twice(signals: tuple[signal.Signals, signal.Signals]) -> None:
        first, second = signals
        async with serving([*SERVER, "ignores SIGTERM"]) as bridge:
            peer = await connect(bridge.port)
            async with peer.posted(call(1, "hold", {"steps": 1}, token=1)) as post:
                await post.message()
                bridge.process.send_signal(first)
                await bridge.until_said("stopping")
                bridge.process.send_signal(second)
                assert await bridge.status() == 128 + second, "the first alone ends it with 0"
            await bridge.expect_nothing_left()

    term, interrupt = signal.SIGTERM, signal.SIGINT
    await each(twice, [(interrupt, interrupt), (term, interrupt), (term, term)])


@pytest.mark.case("CP-03")
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
async def test_signal_before_the_first_client_ends_the_servers_started_ahead(sign: signal.Signals) -> None:
    async with serving(SERVER, "--warm", "3") as bridge:
        bridge.process.send_signal(sign)
        assert await bridge.status() == 0
        await bridge.expect_nothing_left()


# CP-05


async def family(peer: Session, kinds: Sequence[str] = KINDS) -> list[int]:
    return [int(await text(peer, "fork", kind=kind)) for kind in kinds]


@pytest.mark.case("CP-05")
async def test_no_descendant_of_a_server_outlives_it() -> None:
    async def ended(end: str) -> None:
        async with serving(SERVER) as bridge:
            peer = await connect(bridge.port)
            pids = [*await family(peer), (await seen(peer))["pid"]]
            match end:
                case "DELETE":
                    assert (await peer.delete()).status == 200
                case "exit":
                    assert (await peer.post(call(1, "exit", {"code": 0}))).error["data"]["exitCode"] == 0
                case "SIGKILL":
                    assert (await peer.post(call(1, "kill", {"signal": 9}))).error["data"]["exitCode"] == -9
                case "SIGTERM of the bridge":
                    await bridge.stop()
                case _:
                    bridge.process.kill()
            await until_gone(pids, bridge)
            if end.endswith("bridge"):
                await bridge.process.wait()
                await bridge.expect_nothing_left()

    await each(
        ended, ["DELETE", "exit", "SIGKILL", "SIGTERM of the bridge", "SIGKILL of the bridge"], at_once=5
    )


@pytest.mark.case("CP-05")
async def test_shell_that_starts_something_and_becomes_the_server_leaves_nothing() -> None:
    line = shlex.join(["sh", "-c", f"sleep 1000 & exec {shlex.join(SERVER)}"])
    async with serving([], "--cmd", line, "--warm", "0") as bridge:
        for _ in range(2):
            peer = await connect(bridge.port)
            assert await text(peer, "echo", text="hi") == "hi"
            await bridge.until_servers(2)
            await peer.delete()
            await bridge.until_servers(0)
        await connect(bridge.port)


@pytest.mark.case("CP-05", "CP-07")
async def test_waiting_call_is_answered_although_a_grandchild_holds_the_pipe() -> None:
    async with serving(SERVER) as bridge:
        peer = await connect(bridge.port)
        pids = await family(peer, ["holds the pipes", "deaf"])
        async with peer.posted(call(1, "hold"), JSON_ONLY) as waiting:
            await peer.post(call(2, "kill", {"signal": 9}))
            assert (await waiting.answer()).error["data"]["exitCode"] == -9
        await until_gone(pids, bridge)


@pytest.mark.case("CP-05")
async def test_bridge_killed_while_sessions_open_by_the_dozen_leaves_nothing() -> None:
    async with serving(CHEAP, "--warm", "4") as bridge:

        async def storm() -> None:
            with suppress(OSError, asyncio.IncompleteReadError, AssertionError):
                while True:
                    await Session(bridge.port).post(initialize())

        async with asyncio.TaskGroup() as tasks:
            for _ in range(16):
                tasks.create_task(storm())
            await machine.eventually(lambda: len(bridge.servers()) > 40, bridge.tail)
            bridge.process.kill()
            await bridge.process.wait()
        await bridge.expect_nothing_left()


def guards(bridge: Bridge) -> list[machine.Process]:
    return [one for one in machine.descendants(bridge.pid) if "guard" in one.command]


@pytest.mark.case("CP-05")
async def test_guard_that_was_killed_is_replaced_before_it_is_needed() -> None:
    async with serving(SERVER) as bridge:
        peer = await connect(bridge.port)
        pids = [*await family(peer), (await seen(peer))["pid"]]
        (guard,) = guards(bridge)
        os.kill(guard.pid, signal.SIGKILL)
        await until_gone([guard.pid], bridge)
        other = await connect(bridge.port)
        pids.append((await seen(other))["pid"])
        await machine.eventually(lambda: len(guards(bridge)) == 1, bridge.tail)
        bridge.process.kill()
        await until_gone(pids, bridge)
        await bridge.process.wait()


REAPER = (sys.executable, str(CHILDREN / "inherits_orphans.py"))


def defunct(bridge: Bridge) -> list[machine.Process]:
    return machine.zombies_of(bridge.pid)


@pytest.mark.case("CP-05")
async def test_orphans_that_a_bridge_as_process_1_inherits_are_reaped_while_their_server_lives() -> None:
    async with serving(SERVER, wrapper=REAPER) as bridge:
        peer = await connect(bridge.port)
        pids = await family(peer, ["zombie"] * 5)
        await until_gone(pids, bridge)
        await machine.eventually(lambda: not defunct(bridge), lambda: f"{defunct(bridge)}")
        assert await text(peer, "echo", text="on") == "on"


@pytest.mark.case("CP-05")
async def test_bridge_as_process_1_has_no_zombies_after_its_sessions() -> None:
    async with serving(SERVER, wrapper=REAPER) as bridge:
        for end in ("DELETE", "exit"):
            peer = await connect(bridge.port)
            pids = await family(peer, [*KINDS, "zombie"])
            if end == "DELETE":
                await peer.delete()
            else:
                await peer.post(call(1, "exit", {"code": 1}))
            await until_gone(pids, bridge)
        await machine.eventually(lambda: not defunct(bridge), lambda: f"{defunct(bridge)}")


@pytest.mark.case("CP-05", "CP-09")
async def test_own_children_are_not_reaped_from_under_the_bridge() -> None:
    """A bridge that reaps whatever it inherited must still tell how its servers ended."""
    async with serving(SERVER, wrapper=REAPER) as bridge:
        for code in range(20):
            peer = await connect(bridge.port)
            await family(peer, ["zombie"])
            assert (await peer.post(call(1, "exit", {"code": code}))).error["data"]["exitCode"] == code


# CP-06

FLOODS = [("floods stderr", 10 << 20), ("shouts", 1 << 20), ("mumbles", 1 << 20), ("closes stderr", 0)]


@pytest.mark.case("CP-06")
@pytest.mark.parametrize(("how", "size"), FLOODS)
async def test_server_that_is_loud_on_stderr_is_served_and_logged_within_bounds(how: str, size: int) -> None:
    async with serving([*SERVER, how, str(size)], "--warm", "0") as bridge:
        peer = await connect(bridge.port)
        assert await text(peer, "echo", text="hi") == "hi"
        await text(peer, "write_stderr", text="the last of it\n") if how != "closes stderr" else None
        await bridge.stop()
        assert sum(map(len, bridge.log)) < 512 * 1024
        assert all(line.isprintable() for line in bridge.log)


@pytest.mark.case("CP-06")
async def test_lines_of_stderr_say_which_server_wrote_them() -> None:
    async with serving(SERVER) as bridge:
        peers = [await connect(bridge.port) for _ in range(2)]
        for number, peer in enumerate(peers):
            await text(peer, "write_stderr", text=f"words of {number}\n")
            line = await bridge.until_said(f"words of {number}")
            assert f"server[{(await seen(peer))['pid']}]" in line


@pytest.mark.case("CP-06")
@pytest.mark.parametrize(
    "written",
    [
        "\x1b[2J\x1b]0;title\x07",
        "fake\r2026-01-01T00:00:00+0000 error   forged",
        "\x00\x01\x7f\x9b31m",
        "\xff\xfe\n\xc3(",
    ],
    ids=["escapes", "carriage return", "controls", "invalid UTF-8"],
)
async def test_stderr_of_a_server_steers_no_terminal_and_forges_no_line(written: str) -> None:
    async with serving(SERVER) as bridge:
        peer = await connect(bridge.port)
        await text(peer, "write_stderr", text=f"{written}\nend of it\n")
        await bridge.until_said("end of it")
        assert all(line.isprintable() for line in bridge.log), bridge.log
        assert not any(line.startswith("2026-01-01") for line in bridge.log)


@pytest.mark.case("CP-06")
@pytest.mark.parametrize(("how", "size"), FLOODS[:2])
async def test_bridge_whose_own_stderr_nobody_reads_goes_on(how: str, size: int) -> None:
    reading, writing = os.pipe()
    try:
        with suppress(BlockingIOError):
            os.set_blocking(writing, False)
            while True:
                os.write(writing, b"x" * 4096)
        os.set_blocking(writing, True)
        options = ("--log-level", "debug", "--warm", "0")
        async with launched([*SERVER, how, str(size)], *options, stderr=writing) as bridge:
            peer = await connect(await until_listening(bridge))
            for number in range(200):
                await text(peer, "write_stderr", text="x" * 200 + "\n", times=20)
                assert await text(peer, "echo", text=f"{number}") == f"{number}"
            await peer.delete()
            bridge.process.terminate()
            assert await bridge.process.wait() == 0
            await bridge.expect_nothing_left()
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.case("CP-06")
async def test_bridge_whose_stderr_is_closed_by_its_reader_goes_on() -> None:
    reading, writing = os.pipe()
    async with launched([*SERVER, "floods stderr", "100000"], stderr=writing) as bridge:
        os.close(writing)
        os.close(reading)
        peer = await connect(await until_listening(bridge))
        assert await text(peer, "echo", text="hi") == "hi"
        bridge.process.terminate()
        assert await bridge.process.wait() == 0


async def until_listening(bridge: Bridge) -> int:
    """The port of a bridge whose stderr nobody reads: it cannot say it, and none is free for sure."""
    await machine.eventually(lambda: machine.ports(bridge.pid), lambda: "it does not listen")
    return machine.ports(bridge.pid)[0]


# CP-07

DEATHS = [
    ("exit", {"code": 0}, 0),
    ("exit", {"code": 1}, 1),
    ("kill", {"signal": 11}, -11),
    ("kill", {"signal": 9}, -9),
]


@pytest.mark.case("CP-07")
@pytest.mark.parametrize(
    ("name", "arguments", "code"), DEATHS, ids=["exit 0", "exit 1", "SIGSEGV", "SIGKILL"]
)
@pytest.mark.parametrize("model", ["session", "shared"])
async def test_every_call_in_flight_is_told_how_the_server_ended(
    name: str, arguments: Json, code: int, model: str
) -> None:
    async with AsyncExitStack() as stack, serving(SERVER, "--process", model) as bridge:
        peer, other = await connect(bridge.port), await connect(bridge.port)
        get = await stack.enter_async_context(peer.listening())
        await get.head()
        streaming = await stack.enter_async_context(peer.posted(call(1, "hold", {"steps": 2}, token=1)))
        waiting = [
            await stack.enter_async_context(peer.posted(call(number, "hold"), accept))
            for number, accept in ((2, JSON_ONLY), (3, BOTH), ("4", SSE_ONLY), (5, JSON_ONLY))
        ]
        await streaming.message()
        await held(peer, 5)
        answers = [await peer.post(call(6, name, arguments))]
        answers += [await exchange.answer() for exchange in (streaming, *waiting)]
        assert [answer.last["id"] for answer in answers] == [6, 1, 2, 3, "4", 5]
        for answer in answers:
            assert sum("method" not in message for message in answer.messages) == 1, answer
            assert answer.error["data"]["exitCode"] == code
            assert answer.error["data"]["stderr"][-2:] == ["first words", "last words"]
            assert "last words" in answer.error["message"]
            assert re.search(r"status [01]|SIGSEGV|SIGKILL", answer.error["message"])
        assert (await get.answer()).status == 200
        assert (await peer.post(request(7, "ping"))).status == 404
        if model == "session":
            assert await text(other, "echo", text="on") == "on"
        fresh = await connect(bridge.port)
        assert await text(fresh, "echo", text="new") == "new"


async def held(peer: Session, count: int) -> None:
    """Wait until so many calls have reached the server."""
    async with asyncio.timeout(LIMIT):
        while (await seen(peer))["held"] < count:
            pass


@pytest.mark.case("CP-07")
async def test_server_that_closes_stdout_and_lives_on_is_taken_for_lost() -> None:
    async with serving(SERVER) as bridge:
        peer = await connect(bridge.port)
        pid = (await seen(peer))["pid"]
        answer = await peer.post(call(1, "close_stdout"))
        assert "closed its stdout" in answer.error["message"]
        assert answer.error["data"]["stderr"][-1] == "last words"
        assert (await peer.post(request(2, "ping"))).status == 404
        await until_gone([pid], bridge)


@pytest.mark.case("CP-07")
async def test_server_that_stops_reading_holds_up_its_own_session_alone() -> None:
    async with AsyncExitStack() as stack, serving(SERVER) as bridge:
        deaf, other = await connect(bridge.port), await connect(bridge.port)
        pid = (await seen(deaf))["pid"]
        await text(deaf, "stop_reading")
        before = machine.memory(bridge.pid)
        body = "x" * (1 << 20)
        stuck = [
            await stack.enter_async_context(deaf.posted(call(number, "echo", {"text": body})))
            for number in range(40)
        ]
        for number in range(50):
            assert await text(other, "echo", text=f"{number}") == f"{number}"
        assert machine.memory(bridge.pid) - before < 100 << 20
        os.kill(pid, signal.SIGKILL)
        for number, exchange in enumerate(stuck):
            answer = await exchange.answer()
            assert answer.last["id"] == number
            assert "error" in answer.last
            assert answer.status in (200, 404), answer


@pytest.mark.case("CP-07")
async def test_calls_that_a_deaf_server_never_took_end_with_their_session() -> None:
    async with AsyncExitStack() as stack, serving(SERVER) as bridge:
        deaf = await connect(bridge.port)
        pid = (await seen(deaf))["pid"]
        await text(deaf, "stop_reading")
        stuck = [
            await stack.enter_async_context(deaf.posted(call(number, "echo", {"text": "x" * (1 << 20)})))
            for number in range(10)
        ]
        assert (await deaf.delete()).status == 200
        for number, exchange in enumerate(stuck):
            answer = await exchange.answer()
            assert answer.last["id"] == number
            assert "error" in answer.last
        assert machine.lives(pid), "answered only when its server was gone"
        os.kill(pid, signal.SIGKILL)


@pytest.mark.case("CP-07", "TF-01")
async def test_calls_that_a_deaf_server_never_took_end_at_the_request_timeout() -> None:
    async with AsyncExitStack() as stack, serving(SERVER, "--request-timeout", "500ms") as bridge:
        deaf = await connect(bridge.port)
        pid = (await seen(deaf))["pid"]
        await text(deaf, "stop_reading")
        stuck = [
            await stack.enter_async_context(deaf.posted(call(number, "echo", {"text": "x" * (1 << 20)})))
            for number in range(10)
        ]
        for number, exchange in enumerate(stuck):
            answer = await exchange.answer()
            assert answer.last["id"] == number
            assert "error" in answer.last
        os.kill(pid, signal.SIGKILL)  # or it would be waited for


@pytest.mark.case("CP-07")
@pytest.mark.parametrize("how", ["never answers", "never reads"])
@pytest.mark.parametrize("model", ["session", "shared"])
async def test_server_that_never_answers_initialize_is_given_up_at_the_start_timeout(
    how: str, model: str
) -> None:
    options = ("--start-timeout", "300ms", "--process", model, "--warm", "0")
    async with serving([*SERVER, how], *options) as bridge:
        answer = await Session(bridge.port).post(initialize())
        assert answer.last["id"] == "init"
        assert "within 0.3 s" in answer.error["message"]
        assert answer.error["data"]["reason"] == "upstream_timeout"
        ready = await ask(bridge.port, "GET", [], path="/readyz")
        assert ready.status == 503
        assert json.loads(ready.body)["fault"] == "upstream_timeout"
        machine.end(bridge.servers())  # or they would be waited for


@pytest.mark.case("CP-07")
@pytest.mark.parametrize("model", ["session", "shared"])
async def test_server_that_exits_before_initialize_is_quoted_to_its_client(model: str) -> None:
    async with serving([*SERVER, "exits", "3"], "--process", model) as bridge:
        answer = await Session(bridge.port).post(initialize())
        assert answer.last["id"] == "init"
        assert "status 3" in answer.error["message"]
        assert "cannot find the database" in answer.error["message"]
        assert answer.error["data"]["exitCode"] == 3
        assert "mcp-session-id" not in answer.headers
        await bridge.until_said("cannot find the database")
        assert (await ask(bridge.port, "GET", [], path="/readyz")).status == 503
        assert (await ask(bridge.port, "GET", [], path="/healthz")).status == 200


@pytest.mark.case("CP-07")
async def test_server_that_keeps_exiting_is_left_alone_for_a_while() -> None:
    async with serving([*SERVER, "exits", "1"]) as bridge:
        answers = [await Session(bridge.port).post(initialize(request_id=number)) for number in range(12)]
        assert [answer.last["id"] for answer in answers] == list(range(12))
        assert all("error" in answer.last for answer in answers)
        assert answers[-1].status == 503
        assert int(answers[-1].headers["retry-after"]) > 0


async def refused_at_start(command: Sequence[str], *options: str, env: dict[str, str] | None = None) -> str:
    """The one line of a bridge that will not start before such a program."""
    async with launched(command, *options, env=env) as bridge:
        assert await bridge.status() == 4, bridge.tail()
        (line,) = bridge.log
        await bridge.expect_nothing_left()
        return line


@pytest.mark.case("CP-07", "CP-09")
async def test_program_that_is_not_found_ends_the_bridge_naming_the_path() -> None:
    async def one(options: tuple[str, ...]) -> None:
        path = "/usr/bin:/nowhere"
        line = await refused_at_start(["no-such-program", "--x"], *options, env={"PATH": path})
        assert "no-such-program" in line
        assert path in line

    await each(one, [(), ("--warm", "0"), ("--process", "shared")])


@pytest.mark.case("CP-07", "CP-09")
async def test_program_that_cannot_be_executed_ends_the_bridge_naming_it(tmp_path: Path) -> None:
    folder = tmp_path / "a b (x)"
    (folder / "folder").mkdir(parents=True)
    (folder / "not executable").write_text("#!/bin/sh\n")

    async def one(name: str) -> None:
        assert str(folder / name) in await refused_at_start([str(folder / name)])

    await each(one, ["missing", "folder", "not executable", "not executable/x"])


@pytest.mark.case("CP-07")
async def test_program_that_vanishes_later_fails_new_sessions_only(tmp_path: Path) -> None:
    program = tmp_path / "srv"
    program.write_text(f"#!/bin/sh\nexec {shlex.join(SERVER)}\n")
    program.chmod(0o755)
    async with serving([str(program)], "--warm", "0") as bridge:
        peer = await connect(bridge.port)
        program.unlink()
        answer = await Session(bridge.port).post(initialize())
        assert str(program) in answer.error["message"]
        assert answer.error["data"]["reason"] == "upstream_not_found"
        assert await text(peer, "echo", text="on") == "on"
        program.write_text(f"#!/bin/sh\nexec {shlex.join(SERVER)}\n")
        program.chmod(0o755)
        assert await text(await connect(bridge.port), "echo", text="again") == "again"


# CP-09

WORDS = [
    b"plain",
    b"two words",
    b"",
    b'"double"',
    b"'single'",
    b"$HOME",
    b"${HOME}",
    b"`id`",
    b"$(id)",
    b";",
    b"&&",
    b"|",
    b">file",
    b"*",
    b"?",
    b"~",
    b"back\\slash",
    b"line\nbreak",
    b"tab\t",
    b"--port",
    b"--",
    b"-",
    "é — 読 🎉".encode(),
    b"\xff\xfe\x80",
    b"%s %d",
    b"a=b",
    b"#no comment",
]


@pytest.mark.case("CP-09")
async def test_words_after_the_dashes_reach_the_server_byte_for_byte() -> None:
    async with serving([*SERVER, *map(os.fsdecode, WORDS)]) as bridge:
        assert unhexed((await seen(await connect(bridge.port)))["argv"])[1:] == WORDS


@pytest.mark.case("CP-09")
@pytest.mark.parametrize("lang", ["C", "C.UTF-8", "POSIX"])
async def test_words_of_cmd_reach_the_server_byte_for_byte(lang: str) -> None:
    line = shlex.join([*SERVER, *map(os.fsdecode, WORDS)])
    async with serving([], "--cmd", line, env={"LANG": lang, "LC_ALL": lang}) as bridge:
        found = await seen(await connect(bridge.port))
        assert unhexed(found["argv"])[1:] == WORDS
        assert found["encoding"].lower().replace("-", "") == "utf8"


@pytest.mark.case("CP-09")
async def test_program_with_an_odd_path_is_started(tmp_path: Path) -> None:
    folder = tmp_path / "a b (x) $HOME ; é"
    folder.mkdir()
    program = folder / "srv 'quoted'.sh"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(SERVER)} "$@"\n')
    program.chmod(0o755)
    for command, options in (([str(program), "x y"], ()), ([], ("--cmd", shlex.join([str(program), "x y"])))):
        async with serving(command, *options) as bridge:
            assert unhexed((await seen(await connect(bridge.port)))["argv"])[1:] == [b"x y"]


@pytest.mark.case("CP-09")
async def test_environment_is_the_documented_subset_with_what_is_set() -> None:
    values = {
        "PLAIN": "1",
        "EQUALS": "a=b=c",
        "JSON": '{"a": ["b", "c d"], "e": "\\u00e9"}',
        "QUOTED": '"kept"',
        "SINGLE": "'kept'",
        "EMPTY": "",
        "SPACES": "  x  ",
        "LINES": "one\ntwo",
        "UNICODE": "é — 読 🎉",
        "DOLLAR": "$HOME `id` $(id)",
        "HOME": "/elsewhere",
    }
    options = [word for name, value in values.items() for word in ("--env", f"{name}={value}")]
    options += [
        "--env",
        "EXPANDED=<${FIELD_SOURCE}>",
        "--env",
        "LITERAL=$${FIELD_SOURCE}",
        "--inherit-env",
        "FIELD_I*",
    ]
    own = {"FIELD_SOURCE": "a $b ${c}", "FIELD_SECRET": "s", "FIELD_INHERITED": "i", "LANG": "C", "TZ": "UTC"}
    async with serving(SERVER, *options, env=own) as bridge:
        found = {
            bytes.fromhex(name).decode(): bytes.fromhex(value).decode()
            for name, value in (await seen(await connect(bridge.port)))["environ"].items()
        }
    expected = {
        **values,
        "EXPANDED": "<a $b ${c}>",
        "LITERAL": "${FIELD_SOURCE}",
        "FIELD_INHERITED": "i",
        "LANG": "C",
        "TZ": "UTC",
        "PATH": os.environ["PATH"],
        "PYTHONUTF8": "1",
        "PYTHONIOENCODING": "utf-8",
    }
    assert {name: found.get(name) for name in expected} == expected
    assert "FIELD_SECRET" not in found
    assert "FIELD_SOURCE" not in found


@pytest.mark.case("CP-09")
async def test_program_is_found_on_the_path_that_the_server_gets(tmp_path: Path) -> None:
    program = tmp_path / "field-server"
    program.write_text(f"#!/bin/sh\nexec {shlex.join(SERVER)}\n")
    program.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    async with serving(["field-server"], "--env", f"PATH={path}") as bridge:
        assert await text(await connect(bridge.port), "echo", text="hi") == "hi"
    async with serving(["./field-server"], "--cwd", str(tmp_path)) as bridge:
        found = await seen(await connect(bridge.port))
        assert found["cwd"] == str(tmp_path)


NONSENSE: list[tuple[tuple[str, ...], str]] = [
    (("--cmd", "a 'b"), "--cmd"),
    (("--cmd", ""), "--cmd"),
    (("--cmd", "   "), "--cmd"),
    ((), "--cmd"),
    (("--cmd", "a", "--", "b"), "--cmd"),
    (("--env", "NOEQUALS", "--", "a"), "--env"),
    (("--env", "=x", "--", "a"), "--env"),
    (("--env", "A=${FIELD_NOT_SET}", "--", "a"), "FIELD_NOT_SET"),
    (("--cwd", "/no/such/folder", "--", "a"), "--cwd"),
    (("--", ""), ""),
]


@pytest.mark.case("CP-09")
async def test_command_line_that_says_nothing_sensible_is_refused() -> None:
    async def one(row: tuple[tuple[str, ...], str]) -> None:
        options, word = row
        async with launched([], *options) as bridge:
            assert await bridge.status() in (2, 4), bridge.tail()
            assert word in "\n".join(bridge.log)
            assert not any("Traceback" in line for line in bridge.log)

    await each(one, NONSENSE)


# CP-10


async def refused_to_listen(*options: str, port: int | None = None) -> str:
    """The one line of a bridge that cannot listen."""
    async with launched(SERVER, *options, port=port) as bridge:
        assert await bridge.status() == 3, bridge.tail()
        (line,) = bridge.log
        await bridge.expect_nothing_left()
        return line


@pytest.mark.case("CP-10")
async def test_port_that_is_taken_ends_the_bridge_naming_it() -> None:
    async with serving(SERVER) as first:
        line = await refused_to_listen(port=first.port)
        assert f"127.0.0.1:{first.port}" in line
        assert "in use" in line
        assert await text(await connect(first.port), "echo", text="on") == "on"


@pytest.mark.case("CP-10")
async def test_port_that_another_program_holds_on_every_address_is_taken_too() -> None:
    with socket.create_server(("0.0.0.0", 0)) as other:
        assert "in use" in await refused_to_listen(port=other.getsockname()[1])


NOWHERE: list[tuple[tuple[str, ...], str]] = [
    (("--host", "192.0.2.1", "--insecure-no-auth"), "192.0.2.1"),
    (("--host", "no-such-host.invalid", "--insecure-no-auth"), "no-such-host.invalid"),
    (("--uds", "/no/such/folder/sock"), "/no/such/folder/sock"),
    (("--uds", "/dev/null"), "/dev/null"),
    (("--uds", "/tmp/" + "x" * 200), "xxx"),
]


@pytest.mark.case("CP-10")
async def test_address_that_cannot_be_had_ends_the_bridge_naming_it() -> None:
    async def one(row: tuple[tuple[str, ...], str]) -> None:
        options, part = row
        assert part in await refused_to_listen(*options, port=0 if "--host" in options else None)

    await each(one, NOWHERE)


@pytest.mark.case("CP-10")
async def test_port_0_is_taken_from_the_system_and_printed() -> None:
    async with serving(SERVER) as one, serving(SERVER) as two:
        assert one.port != two.port
        for bridge in (one, two):
            assert bridge.port > 0
            assert (await ask(bridge.port, "GET", [], path="/healthz")).status == 200


@pytest.mark.case("CP-10")
async def test_ipv6_alone_is_listened_on_and_printed_as_a_url() -> None:
    async with serving(SERVER, "--host", "::1") as bridge:
        assert bridge.url.startswith("http://[::1]:")
        body = dump(initialize())
        async with dial(bridge.port, host="::1") as exchange:
            lines = [
                ("Content-Type", "application/json"),
                ("Accept", BOTH),
                ("Content-Length", str(len(body))),
            ]
            exchange.say(head_of("POST", "/mcp", lines, host=f"[::1]:{bridge.port}") + body)
            assert (await exchange.answer()).status == 200
        with pytest.raises(ConnectionRefusedError):
            await ask(bridge.port, "GET", [], path="/healthz")
        with socket.socket(socket.AF_INET6) as sock:
            assert sock.connect_ex(("::1", bridge.port)) == 0
    async with (
        serving(SERVER, "--host", "::1") as first,
        launched(SERVER, "--host", "::1", port=first.port) as second,
    ):
        assert await second.status() == 3
        assert f"[::1]:{first.port}" in second.log[0]


@pytest.mark.case("CP-10")
async def test_unix_socket_of_a_killed_bridge_is_taken_over_and_one_in_use_is_not(tmp_path: Path) -> None:
    path = tmp_path / "bridge.sock"
    async with launched(SERVER, "--uds", str(path), port=None) as first:
        await first.until_said("listens")
        line = await refused_to_listen("--uds", str(path))
        assert str(path) in line
        assert "in use" in line
        first.process.kill()
        await first.process.wait()
    assert path.is_socket()
    async with launched(SERVER, "--uds", str(path), port=None) as second:
        await second.until_said("listens")
        argv = ["curl", "--silent", "--unix-socket", str(path), "http://localhost/healthz"]
        done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, timeout=LIMIT, check=True)
        assert json.loads(done.stdout) == {"status": "ok"}
        await second.stop()
    assert not path.exists()
