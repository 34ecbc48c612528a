"""The framing of both directions, against real children."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bridge.config import MIB, Command
from bridge.core.lines import Overlong
from bridge.upstream.base import Upstream
from bridge.upstream.guard import Guard
from bridge.upstream.stdio import StdioUpstream

from .scripted import ECHO, PATIENT, Recorder, python, tended


@asynccontextmanager
async def connected(
    command: Command, guard: Guard, *, max_line: int = 64 * MIB
) -> AsyncIterator[tuple[Upstream, Recorder]]:
    async with tended(command, guard, timing=PATIENT) as child:
        recorder = Recorder()
        yield StdioUpstream(child, recorder, max_line), recorder


@pytest.mark.spec("SC-1")
@pytest.mark.case("FR-02")
@pytest.mark.parametrize("size", [65535, 65536, 65537, 131072, MIB, 16 * MIB])
async def test_line_of_any_size_passes_both_ways_next_to_a_small_one(guard: Guard, size: int) -> None:
    async with connected(python(ECHO), guard) as (server, out):
        large, small = b"x" * size, b"y"
        server.send(large)
        server.send(small)
        await out.until_lines(2)
    assert out.lines == [large, small]


@pytest.mark.spec("SC-19")
@pytest.mark.case("FR-02")
async def test_line_over_the_limit_is_only_told_of_and_the_next_is_whole(guard: Guard) -> None:
    async with connected(python(ECHO), guard, max_line=100_000) as (server, out):
        server.send(b"x" * 100_000)
        server.send(b"y" * 100_001)
        server.send(b"z")
        await out.until_lines(3)
    exact, over, after = out.lines
    assert exact == b"x" * 100_000
    assert isinstance(over, Overlong)
    assert over.size == 100_001
    assert after == b"z"


@pytest.mark.case("FR-01")
async def test_noise_does_not_end_the_reading(guard: Guard) -> None:
    code = r"""
        import os, sys
        os.write(1, b"Server ready v1\n\n \t\n\x1b[31mred\x1b[0m\n\xff\xfe\n{}\n")
        sys.stdin.read()
    """
    async with connected(python(code), guard) as (_, out):
        await out.until_lines(4)
    assert out.lines == [b"Server ready v1", b"\x1b[31mred\x1b[0m", b"\xff\xfe", b"{}"]


@pytest.mark.case("FR-03")
async def test_text_delivered_byte_by_byte_is_the_same(guard: Guard) -> None:
    code = "import os, sys\nfor byte in sys.argv[1].encode(): os.write(1, bytes([byte]))\nos.write(1, b'\\n')"
    text = "é — 読 🎉"
    async with connected(python(code, text), guard) as (_, out):
        await out.until_lines(1)
    assert out.lines == [text.encode()]


@pytest.mark.spec("SC-2")
async def test_each_send_is_exactly_one_line(guard: Guard) -> None:
    code = "import sys\nfor line in sys.stdin.buffer: print(repr(line), flush=True)"
    async with connected(python(code), guard) as (server, out):
        for number in range(100):
            server.send(b"%d" % number)
        await out.until_lines(100)
    assert out.lines == [b"b'%d\\n'" % number for number in range(100)]


async def test_half_a_line_is_logged_and_not_forwarded(
    guard: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(python("import os; os.write(1, b'{}\\n{\"id\":1')"), guard) as (_, out):
        await out.until_lost()
    assert out.lines == [b"{}"]
    (record,) = [record for record in caplog.records if record.name == "bridge.server"]
    assert record.getMessage() == "stopped in the middle of a line of 7 bytes"


async def test_half_of_an_overlong_line_is_logged_with_its_size(
    guard: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    code = "import os; os.write(1, b'x' * 5000)"
    async with connected(python(code), guard, max_line=10) as (_, out):
        await out.until_lost()
    assert "line of 5000 bytes" in caplog.text


async def test_upstream_is_congested_drained_paused_and_closed_as_its_child_is(guard: Guard) -> None:
    async with connected(python(ECHO), guard) as (server, out):
        server.pause()
        server.send(b"x" * 3 * MIB)
        before = server.congested
        server.resume()
        await server.drained()
        assert (before, server.congested) == (True, False)
        await out.until_lines(1)
        await server.close()
        assert str(await out.until_lost()) == "server was stopped by the bridge"
        server.send(b"{}")


async def test_upstream_is_named_after_its_process(guard: Guard) -> None:
    code = "import os; print(os.getpid(), flush=True); input()"
    async with connected(python(code), guard) as (server, out):
        await out.until_lines(1)
        assert server.label == f"server[{out.text.decode()}]"
        server.send(b"")


@pytest.mark.spec("SC-4")
async def test_stderr_is_logged_under_the_servers_name(
    guard: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "bridge.server"):
        async with connected(python("import os; os.write(2, b'hello')"), guard) as (server, out):
            fault = await out.until_lost()
    assert fault.stderr == ("hello",)
    (record,) = caplog.records
    assert (record.getMessage(), vars(record)["label"]) == ("hello", server.label)
    assert os.linesep not in record.getMessage()
