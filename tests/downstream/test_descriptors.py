"""Bytes in and out of whatever a client may give for stdin and stdout, on both event loops."""

from __future__ import annotations

import asyncio
import os
import pty
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from bridge.downstream.descriptors import CHUNK, Input, Output

LIMIT = 10.0
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
Run = Callable[[Coroutine[object, object, None]], None]
Pair = Callable[[], tuple[int, int]]


@pytest.fixture(params=LOOPS.values(), ids=list(LOOPS))
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield lambda scenario: runner.run(asyncio.wait_for(scenario, LIMIT))


def sockets() -> tuple[int, int]:
    one, other = socket.socketpair()
    return one.detach(), other.detach()


def terminal() -> tuple[int, int]:
    leader, follower = pty.openpty()
    return follower, leader


PAIRS = {"pipe": os.pipe, "socket": sockets}


@pytest.fixture(params=PAIRS.values(), ids=list(PAIRS))
def pair(request: pytest.FixtureRequest) -> Pair:
    """Makes the reading and the writing end of something."""
    made: Pair = request.param
    return made


async def whole(stream: Input) -> bytes:
    found = b""
    while data := await stream.read():
        found += data
    return found


def received(descriptor: int) -> bytes:
    """What there is to read, to the end."""
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


class Pressure(list[bool]):
    """What `on_pressure` was told."""


def test_everything_written_is_read_to_the_end(run: Run, pair: Pair) -> None:
    async def scenario() -> None:
        reading, writing = pair()
        stream = Input(reading)
        os.write(writing, b"one ")
        assert await stream.read() == b"one "
        later = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0)
        os.write(writing, b"two")
        assert await later == b"two"
        os.close(writing)
        assert await stream.read() == b""
        stream.close()

    run(scenario())


def test_what_comes_while_nobody_asks_stays_outside(run: Run) -> None:
    async def scenario() -> None:
        reading, writing = os.pipe()
        stream = Input(reading)
        os.write(writing, b"1")
        assert await stream.read() == b"1"
        os.set_blocking(writing, False)
        sent = 0
        with suppress(BlockingIOError):
            while True:
                sent += os.write(writing, bytes(CHUNK))
                await asyncio.sleep(0)  # the loop sees that there is something
        os.close(writing)
        assert len(await whole(stream)) == sent
        stream.close()

    run(scenario())


def test_read_that_was_given_up_takes_nothing(run: Run) -> None:
    async def scenario() -> None:
        reading, writing = os.pipe()
        stream = Input(reading)
        asking = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0)
        asking.cancel()
        os.write(writing, b"kept")
        await asyncio.sleep(0)
        assert await stream.read() == b"kept"
        stream.close()
        os.close(writing)

    run(scenario())


def test_file_is_read_to_its_end(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "in"
        file.write_bytes(b"x" * (CHUNK + 7))
        stream = Input(os.open(file, os.O_RDONLY))
        assert await whole(stream) == file.read_bytes()
        stream.close()

    run(scenario())


def test_null_device_is_at_its_end(run: Run) -> None:
    async def scenario() -> None:
        stream = Input(os.open(os.devnull, os.O_RDWR))
        assert await stream.read() == b""
        stream.close()

    run(scenario())


def test_terminal_is_read_and_keeps_its_mode(run: Run) -> None:
    async def scenario() -> None:
        follower, leader = terminal()
        kept = os.dup(follower)
        stream = Input(follower)
        os.write(leader, b"typed\n")
        assert await stream.read() == b"typed\n"
        assert not os.get_blocking(kept)
        stream.close()
        assert os.get_blocking(kept)
        os.close(leader)
        os.close(kept)

    run(scenario())


def test_lost_terminal_is_the_end(run: Run) -> None:
    async def scenario() -> None:
        follower, leader = terminal()
        stream = Input(follower)
        os.close(leader)
        assert await stream.read() == b""
        stream.close()

    run(scenario())


def test_more_than_a_pipe_holds_arrives_in_order(run: Run, pair: Pair) -> None:
    async def scenario() -> None:
        reading, writing = pair()
        output, stream = Output(writing, 1 << 30, Pressure().append), Input(reading)
        pieces = [b"%07d" % number * 1000 for number in range(500)]
        for piece in pieces:
            output.write(piece)
        gathering = asyncio.ensure_future(whole(stream))
        await output.sent()
        output.close()
        assert await gathering == b"".join(pieces)
        stream.close()

    run(scenario())


def test_reader_that_does_not_read_is_told_of_once_and_its_return_once(run: Run, pair: Pair) -> None:
    async def scenario() -> None:
        reading, writing = pair()
        told = Pressure()
        output, stream = Output(writing, CHUNK, told.append), Input(reading)
        while not output.full:
            output.write(bytes(CHUNK))
        output.write(bytes(CHUNK))
        assert told == [True]
        roomy = asyncio.ensure_future(output.room())
        while not roomy.done():
            await stream.read()
            await asyncio.sleep(0)
        assert told == [True, False]
        output.close()
        stream.close()

    run(scenario())


def test_reader_that_left_breaks_it_and_frees_who_waits(run: Run, pair: Pair) -> None:
    async def scenario() -> None:
        reading, writing = pair()
        told = Pressure()
        output = Output(writing, CHUNK, told.append)
        while not output.full:
            output.write(bytes(CHUNK))
        waiting = [asyncio.ensure_future(call) for call in (output.room(), output.sent())]
        await asyncio.sleep(0)
        os.close(reading)
        await output.broken.wait()
        await asyncio.gather(*waiting)
        assert told == [True, False]
        output.write(b"dropped")
        output.close()

    run(scenario())


def test_reader_that_left_is_found_without_writing(run: Run, pair: Pair) -> None:
    async def scenario() -> None:
        reading, writing = pair()
        output = Output(writing, CHUNK, Pressure().append)
        output.check()
        assert not output.broken.is_set()
        os.close(reading)
        output.check()
        assert output.broken.is_set()
        output.close()

    run(scenario())


def test_socket_whose_other_side_only_ended_its_sending_is_written_to(run: Run) -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        output = Output(ours.detach(), CHUNK, Pressure().append)
        theirs.shutdown(socket.SHUT_WR)
        output.check()
        output.write(b"still")
        assert theirs.recv(10) == b"still"
        output.close()
        theirs.close()

    run(scenario())


def test_file_takes_everything_at_once(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "out"
        output = Output(os.open(file, os.O_WRONLY | os.O_CREAT), CHUNK, Pressure().append)
        output.check()
        output.write(bytes(4 * CHUNK))
        await output.sent()
        output.close()
        assert file.read_bytes() == bytes(4 * CHUNK)

    run(scenario())


def test_full_disk_is_a_broken_output(run: Run) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")

    async def scenario() -> None:
        output = Output(os.open(full, os.O_WRONLY), CHUNK, Pressure().append)
        output.write(b"x")
        assert output.broken.is_set()
        output.close()

    run(scenario())


def test_blocking_mode_is_left_as_it_was_found(run: Run, pair: Pair) -> None:
    async def scenario() -> None:
        reading, writing = pair()
        kept = os.dup(reading), os.dup(writing)
        stream, output = Input(reading), Output(writing, CHUNK, Pressure().append)
        output.close()
        stream.close()
        assert [os.get_blocking(one) for one in kept] == [True, True]
        os.close(kept[1])
        assert received(kept[0]) == b""

    run(scenario())
