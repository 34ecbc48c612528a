"""How a bridge on its own stdin and stdout begins and ends, seen from outside: real processes and signals.

What a careful user expects of a wrapper: nothing but messages on stdout, every answer let out,
status 0, and nothing of it or of its server left, whichever way its client goes.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import signal
import sys
import termios
import textwrap
import uuid
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from support import machine
from support.machine import LIMIT
from support.scripted_bridge import call, initialize, initialized, notification, request
from support.scripted_server import Json, dump

ROOT = Path(__file__).resolve().parents[1]
MARK = "WRAPPER"
DEMO = (sys.executable, "-m", "bridge.demo_server")
HELLO = (initialize(), notification("initialized"))
WAIT = call(1, "slow", steps=1, seconds=3600.0)
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]

BRIDGE = """
    import sys
    from bridge import daemon
    from bridge.config import Command, Config, Downstream, Remote, Timing

    drain, server, *words = sys.argv[1:]
    upstream = Remote(url=server) if "://" in server else Command(argv=(server, *words), inherit_env=("*",))
    timing = Timing(drain=float(drain))
    sys.exit(daemon.run(Config(upstream=upstream, downstream=Downstream.STDIO, timing=timing)))
"""
STRAY = """
    import atexit, os
    from bridge import app, daemon

    def stray():
        print("stray print")
        os.write(1, b"stray write\\n")
        os.system("echo stray child")

    wrapping = app.wrapping
    daemon.wrapping = lambda *args: (stray(), wrapping(*args))[1]
    atexit.register(stray)
"""
LAUNCHER = """
    import subprocess, sys

    print(subprocess.Popen(sys.argv[3:], stdin=int(sys.argv[1]), stdout=int(sys.argv[2])).pid, flush=True)
    sys.stdin.read()
"""


def words(server: Sequence[str], *, drain: float = LIMIT, before: str = "") -> list[str]:
    """A command line of a bridge on stdio; `before` is code that runs before it."""
    code = textwrap.dedent(before) + textwrap.dedent(BRIDGE)
    return [sys.executable, "-c", code, str(drain), *server]


def lines(*messages: Json) -> bytes:
    return b"".join(dump({"jsonrpc": "2.0", **message}) + b"\n" for message in messages)


@dataclass
class Wrapper:
    """A bridge on stdio, and its client's ends of the pipes."""

    process: Process
    mark: str
    family: list[machine.Process] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    def says(self, *messages: Json) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(lines(*messages))

    def ends(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def hears(self) -> Json:
        assert self.process.stdout is not None
        async with asyncio.timeout(LIMIT):
            message: Json = json.loads(await self.process.stdout.readline())
        return message

    async def opens(self) -> None:
        """Open a session, and note who has been started for it."""
        self.says(*HELLO)
        assert (await self.hears())["id"] == 0
        self.family = machine.descendants(self.pid)

    async def waits(self) -> None:
        """Call what never answers; a call after it shows that the server has it."""
        self.says(WAIT, call(2, "echo", text="x"))
        assert (await self.hears())["id"] == 2

    async def drains(self) -> None:
        """Tell it to stop, and wait until it has heard."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr is not None
        async with asyncio.timeout(LIMIT):
            while b"stopping" not in await self.process.stderr.readline():
                pass

    async def ended(self) -> tuple[int, bytes, str]:
        """Once it has ended: its status, what else was on stdout, and its stderr. Nothing is left."""
        async with asyncio.timeout(LIMIT):
            stdout, stderr = await asyncio.gather(_rest(self.process.stdout), _rest(self.process.stderr))
            status = await self.process.wait()
        await nothing_left(self.mark, self.family)
        assert b"Traceback" not in stderr, stderr.decode()
        return status, stdout, stderr.decode()


async def _rest(stream: asyncio.StreamReader | None) -> bytes:
    return b"" if stream is None else await stream.read()


async def nothing_left(mark: str, family: Sequence[machine.Process] = ()) -> None:
    def left() -> list[machine.Process]:
        marked = machine.marked(f"{MARK}={mark}")
        return marked + [process for process in family if machine.look(process.pid) == process]

    await machine.eventually(lambda: not left(), lambda: f"left: {left()}")


@asynccontextmanager
async def started(
    argv: Sequence[str], *, stdin: int = PIPE, stdout: int = PIPE, wrapper: Sequence[str] = ()
) -> AsyncIterator[Wrapper]:
    """A bridge that is started and not waited for; on leaving, nothing of it is left."""
    mark = uuid.uuid4().hex
    process = await asyncio.create_subprocess_exec(
        *wrapper,
        *argv,
        cwd=ROOT,
        env={**os.environ, MARK: mark},
        stdin=stdin,
        stdout=stdout,
        stderr=PIPE,
    )
    try:
        yield Wrapper(process, mark)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        machine.end(machine.marked(f"{MARK}={mark}"))
        await process.wait()
        if process.stdin is not None:
            process.stdin.close()


class Remote:
    """A legacy server at a URL: it answers `initialize`, and each call once `release` is set."""

    def __init__(self) -> None:
        self.called, self.release, self.deleted = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.farewells: list[str | None] = []

    async def handle(self, asked: web.Request) -> web.StreamResponse:
        if asked.method == "DELETE":
            self.farewells.append(asked.headers.get("Mcp-Session-Id"))
            self.deleted.set()
            return web.Response(status=204)
        if asked.method == "GET":
            return web.Response(status=405)
        message = await asked.json()
        if "id" not in message:
            return web.Response(status=202)
        answer = {"jsonrpc": "2.0", "id": message["id"], **await self.outcome(message["method"])}
        return web.json_response(answer, headers={"Mcp-Session-Id": "session-1"})

    async def outcome(self, method: str) -> Json:
        match method:
            case "initialize":
                return {"result": initialized()}
            case "server/discover":
                return {"error": {"code": -32601, "message": "Method not found"}}
            case _:
                self.called.set()
                await self.release.wait()
                return {"result": {"content": []}}


@asynccontextmanager
async def remote() -> AsyncIterator[tuple[Remote, str]]:
    server, app = Remote(), web.Application()
    app.router.add_route("*", "/mcp", server.handle)
    async with TestServer(app, host="127.0.0.1") as served:
        yield server, str(served.make_url("/mcp"))
        server.release.set()


# --- stdin has ended ---


@pytest.mark.spec("SS-6")
async def test_end_of_input_lets_every_answer_out_and_leaves_nothing() -> None:
    async with started(words(DEMO)) as bridge:
        await bridge.opens()
        bridge.says(*(call(number, "slow", steps=1, seconds=0.2) for number in range(1, 6)))
        bridge.ends()
        status, stdout, _ = await bridge.ended()
        assert status == 0
        assert {json.loads(line)["id"] for line in stdout.splitlines()} == {1, 2, 3, 4, 5}


@pytest.mark.spec("SS-6")
async def test_end_of_input_waits_for_a_remote_answer_and_then_deletes_the_session() -> None:
    async with remote() as (server, url), started(words([url])) as bridge:
        await bridge.opens()
        bridge.says(call(1))
        bridge.ends()
        await server.called.wait()
        assert not server.deleted.is_set()
        server.release.set()
        status, stdout, _ = await bridge.ended()
        assert (status, json.loads(stdout)["id"]) == (0, 1)
        assert server.farewells == ["session-1"]


async def test_conversation_in_a_file_is_answered_into_a_file(tmp_path: Path) -> None:
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    asked.write_bytes(lines(*HELLO, call(1, "echo", text="x"), request(2, "tools/list")))
    with asked.open("rb") as stdin, answered.open("wb") as stdout:
        async with started(words(DEMO), stdin=stdin.fileno(), stdout=stdout.fileno()) as bridge:
            status, _, _ = await bridge.ended()
    assert status == 0
    assert {json.loads(line)["id"] for line in answered.read_bytes().splitlines()} == {0, 1, 2}


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "</dev/null"])
async def test_start_without_a_client_ends_at_once(closed: str) -> None:
    shell = ("/bin/sh", "-c", f'exec "$@" {closed}', "sh")
    async with started(words(DEMO), wrapper=shell) as bridge:
        bridge.ends()
        assert (await bridge.ended())[:2] == (0, b"")


async def test_server_that_cannot_be_started_is_an_error_to_the_client() -> None:
    async with started(words(["/nonexistent/server"])) as bridge:
        bridge.says(initialize())
        assert "/nonexistent/server" in (await bridge.hears())["error"]["message"]
        bridge.ends()
        assert (await bridge.ended())[:2] == (0, b"")


# --- signals ---


@pytest.mark.parametrize("number", SIGNALS)
async def test_signal_ends_it_with_status_0(number: signal.Signals) -> None:
    async with started(words(DEMO)) as bridge:
        await bridge.opens()
        bridge.process.send_signal(number)
        assert (await bridge.ended())[:2] == (0, b"")


async def test_signal_lets_a_call_end_that_can() -> None:
    async with remote() as (server, url), started(words([url])) as bridge:
        await bridge.opens()
        bridge.says(call(1))
        await server.called.wait()
        await bridge.drains()
        bridge.says(call(2))
        assert (await bridge.hears())["error"]["data"]["reason"] == "draining"
        server.release.set()
        status, stdout, _ = await bridge.ended()
        assert (status, "result" in json.loads(stdout)) == (0, True)
        assert server.farewells == ["session-1"]


async def test_signal_answers_a_call_that_does_not_end_with_an_error() -> None:
    async with started(words(DEMO, drain=0.1)) as bridge:
        await bridge.opens()
        await bridge.waits()
        bridge.process.send_signal(signal.SIGTERM)
        status, stdout, _ = await bridge.ended()
        assert (status, json.loads(stdout)["error"]["code"]) == (0, -32603)


async def test_second_signal_ends_it_at_once() -> None:
    async with started(words(DEMO)) as bridge:
        await bridge.opens()
        await bridge.waits()
        await bridge.drains()
        bridge.process.send_signal(signal.SIGTERM)
        assert (await bridge.ended())[:2] == (128 + signal.SIGTERM, b"")


async def test_killed_bridge_leaves_nothing() -> None:
    async with started(words(DEMO)) as bridge:
        await bridge.opens()
        await bridge.waits()
        bridge.process.kill()
        assert (await bridge.ended())[0] == -signal.SIGKILL


# --- nobody reads, or nobody is there ---


@pytest.mark.spec("SS-7")
@pytest.mark.parametrize("speaks", [True, False], ids=["with-an-answer-due", "in-silence"])
async def test_broken_stdout_ends_it_quietly(speaks: bool) -> None:
    reading, writing = os.pipe()
    async with started(words(DEMO), stdout=writing) as bridge:
        os.close(writing)
        bridge.says(*HELLO)
        opened = await asyncio.to_thread(os.read, reading, 65536)
        assert json.loads(opened)["id"] == 0
        bridge.family = machine.descendants(bridge.pid)
        bridge.says(WAIT)
        os.close(reading)
        if speaks:
            bridge.says(call(2, "echo", text="x"))
        status, _, stderr = await bridge.ended()
        assert status == 0
        said = [line for line in stderr.splitlines() if "server[" not in line]
        assert said[0].startswith("mcp-bridge ")
        assert "session opened" in stderr
        assert len(said) <= 4, stderr


async def test_client_that_reads_nothing_does_not_hold_up_the_end() -> None:
    reading, writing = os.pipe()
    async with started(words(DEMO, drain=0.1), stdout=writing) as bridge:
        os.close(writing)
        bridge.says(*HELLO, *(call(number, "echo", text="x" * 100_000) for number in range(1, 20)))
        await machine.eventually(lambda: unread(reading) > 50_000, lambda: "stdout is not full")
        bridge.process.send_signal(signal.SIGTERM)
        assert (await bridge.ended())[0] == 0
        os.close(reading)


async def test_bridge_whose_parent_is_gone_ends_and_leaves_nothing() -> None:
    ours, stdin = os.pipe()[::-1]
    reading, stdout = os.pipe()
    mark = uuid.uuid4().hex
    launcher = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", textwrap.dedent(LAUNCHER), str(stdin), str(stdout), *words(DEMO)),
        cwd=ROOT,
        env={**os.environ, MARK: mark},
        stdin=PIPE,
        stdout=PIPE,
        pass_fds=(stdin, stdout),
    )
    try:
        os.close(stdin)
        os.close(stdout)
        assert launcher.stdout is not None
        bridge = int(await launcher.stdout.readline())
        os.write(ours, lines(*HELLO, WAIT))
        assert json.loads(await asyncio.to_thread(os.read, reading, 65536))["id"] == 0
        family = [*machine.descendants(bridge), *filter(None, [machine.look(bridge)])]
        assert len(family) >= 2
        launcher.kill()
        await launcher.wait()
        # Both pipes are still open at this end: it is the parent that is missed.
        await nothing_left(mark, family)
    finally:
        machine.end(machine.marked(f"{MARK}={mark}"))
        os.close(ours)
        os.close(reading)


async def test_end_of_input_is_drained_without_limit_while_the_parent_lives() -> None:
    async with remote() as (server, url), started(words([url], drain=0.01)) as bridge:
        await bridge.opens()
        bridge.says(call(1))
        bridge.ends()
        await server.called.wait()
        await asyncio.sleep(0.3)  # longer than the limit after a signal
        assert bridge.process.returncode is None
        server.release.set()
        status, stdout, _ = await bridge.ended()
        assert (status, json.loads(stdout)["id"]) == (0, 1)


# --- stdout is for messages ---


@pytest.mark.spec("SS-1", "SS-9")
async def test_stray_output_goes_to_stderr() -> None:
    async with started(words(DEMO, before=STRAY)) as bridge:
        await bridge.opens()
        bridge.ends()
        status, stdout, stderr = await bridge.ended()
        assert (status, stdout) == (0, b"")
        assert [stderr.count(f"stray {kind}") for kind in ("print", "write", "child")] == [2, 2, 2]


@pytest.mark.spec("SS-9")
async def test_no_child_holds_the_clients_pipes() -> None:
    (stdin, ours), (reading, stdout) = os.pipe(), os.pipe()
    pipes = {f"pipe:[{os.fstat(number).st_ino}]" for number in (stdin, stdout)}
    async with started(words(DEMO), stdin=stdin, stdout=stdout) as bridge:
        os.close(stdin)
        os.close(stdout)
        os.write(ours, lines(*HELLO))
        await asyncio.to_thread(os.read, reading, 65536)
        assert pipes <= machine.opened(bridge.pid)
        family = machine.descendants(bridge.pid)
        assert len(family) >= 2, "a server and the guard"
        assert not pipes & {file for process in family for file in machine.opened(process.pid)}
        os.close(ours)
        assert (await bridge.ended())[0] == 0
        os.close(reading)


def unread(pipe: int) -> int:
    """Bytes in a pipe."""
    size = bytearray(4)
    fcntl.ioctl(pipe, termios.FIONREAD, size)
    return int.from_bytes(size, sys.byteorder)


async def test_terminal_serves_as_both_and_is_left_as_it_was() -> None:
    leader, follower = pty.openpty()
    async with started(words(DEMO), stdin=follower, stdout=follower) as bridge:
        os.write(leader, lines(*HELLO))
        seen = b""
        while b'"protocolVersion":"2025-11-25","serverInfo"' not in seen:
            seen += await asyncio.to_thread(os.read, leader, 65536)
        bridge.family = machine.descendants(bridge.pid)
        os.write(leader, b"\x04")  # the end of input, as typed
        assert (await bridge.ended())[0] == 0
        assert os.get_blocking(follower)
    os.close(leader)
    os.close(follower)
