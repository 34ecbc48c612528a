from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from raw_http import LIMIT, Wire, request, served, wire

from bridge.config import Access, Listen
from bridge.downstream.event_stream import EventStream
from bridge.downstream.http import Gate, Ready

FOREVER = 3600.0
PLENTY = 1 << 20
GET = request("GET")


class Session:
    """A handler that serves one stream per request, and keeps what became of it."""

    def __init__(
        self,
        *,
        unsent: int = PLENTY,
        keepalive: float = FOREVER,
        stalled: float = FOREVER,
        slows: bool = True,
        prepare: Callable[[EventStream], None] = lambda stream: None,
    ) -> None:
        self.unsent, self.keepalive, self.stalled, self.slows = unsent, keepalive, stalled, slows
        self.prepare = prepare
        self.pressure: list[bool] = []
        self.unsent_when_pressed: list[int] = []
        self.latest: EventStream | None = None
        self.released = asyncio.Event()
        self.filled = asyncio.Event()
        self.streams: asyncio.Queue[EventStream] = asyncio.Queue()
        self.whole: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def pressed(self, full: bool) -> None:
        self.pressure.append(full)
        if self.latest is not None:
            self.unsent_when_pressed.append(self.latest.unsent)
        (self.filled if full else self.released).set()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        stream = EventStream(unsent=self.unsent, on_pressure=self.pressed if self.slows else None)
        await stream.start(request, b"Mcp-Session-Id: s1\r\n")
        self.prepare(stream)
        self.latest = stream
        self.streams.put_nowait(stream)
        whole = await stream.run(self.keepalive, self.stalled)
        if not self.whole.done():
            self.whole.set_result(whole)
        return stream

    async def stream(self) -> EventStream:
        async with asyncio.timeout(LIMIT):
            return await self.streams.get()

    async def outcome(self) -> bool:
        async with asyncio.timeout(LIMIT):
            return await self.whole


@asynccontextmanager
async def streaming(session: Session, text: bytes = GET, *, buffer: int | None = None) -> AsyncIterator[Wire]:
    listening = served(session, stalled=session.stalled)
    async with listening as listener, wire(listener, receive_buffer=buffer) as client:
        client.say(text)
        yield client


@pytest.mark.spec("HM-9")
@pytest.mark.case("SE-08")
async def test_headers_go_out_before_the_first_event_and_forbid_buffering() -> None:
    text = request("GET", "Accept-Encoding: gzip, br")
    async with streaming(Session(), text) as client:
        status, headers = await client.head()
    assert status == 200
    assert headers["content-type"] == "text/event-stream"
    assert headers["cache-control"] == "no-cache, no-transform"
    assert headers["x-accel-buffering"] == "no"
    assert headers["transfer-encoding"] == "chunked"
    assert headers["mcp-session-id"] == "s1"
    assert "content-encoding" not in headers
    assert "connection" not in headers


@pytest.mark.spec("HL-28")
@pytest.mark.case("HT-07")
async def test_stream_for_a_listed_origin_carries_cors_headers() -> None:
    gate, session = Gate(Access(allowed_origins=("https://app.example",)), Listen()), Session()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        return gate.check(request) or await session(request)

    async with served(handler) as listener, wire(listener) as client:
        client.say(request("GET", "Origin: https://app.example"))
        _, headers = await client.head()
    assert headers["access-control-allow-origin"] == "https://app.example"
    assert headers["access-control-expose-headers"] == "Mcp-Session-Id, WWW-Authenticate"


async def test_events_pushed_together_arrive_as_one_chunk_each_turn() -> None:
    session = Session()
    async with streaming(session) as client:
        await client.head()
        stream = await session.stream()
        for event in (b"data: 1\n\n", b"data: 2\n\n"):
            stream.push(event)
        assert await client.chunk() == b"data: 1\n\ndata: 2\n\n"
        stream.push(b"data: 3\n\n")
        assert await client.chunk() == b"data: 3\n\n"
        assert stream.pending_bytes == 0


async def test_it_tells_what_was_not_begun_to_be_sent() -> None:
    session = Session(slows=False)
    async with streaming(session) as client:
        await client.head()
        stream = await session.stream()
        stream.push(b"data: 1\n\n")
        assert list(stream.waiting) == [b"data: 1\n\n"]
        assert await client.chunk() == b"data: 1\n\n"
        assert list(stream.waiting) == []


@pytest.mark.spec("HL-8")
async def test_finished_stream_ends_after_what_was_pushed_and_frees_the_connection() -> None:
    session = Session()
    async with streaming(session) as client:
        await client.head()
        stream = await session.stream()
        stream.push(b"data: last\n\n")
        stream.finish()
        stream.push(b"data: too late\n\n")
        assert await client.chunk() == b"data: last\n\n"
        assert await client.chunk() == b""
        assert await session.outcome() is True
        client.say(GET)
        assert (await client.head())[0] == 200


async def test_events_pushed_before_the_start_and_the_run_are_sent() -> None:
    def ready_made(stream: EventStream) -> None:
        stream.push(b"data: early\n\n")
        stream.finish()

    session = Session(prepare=ready_made)
    async with streaming(session) as client:
        await client.head()
        assert [await client.chunk(), await client.chunk()] == [b"data: early\n\n", b""]
    assert await session.outcome() is True


@pytest.mark.parametrize("line", ["Connection: keep-alive", "Connection: close"])
async def test_http_1_0_stream_is_plain_and_ends_with_the_connection(line: str) -> None:
    session = Session()
    async with streaming(session, request("GET", line, version="1.0")) as client:
        _, headers = await client.head()
        assert headers["connection"] == "close"
        assert "transfer-encoding" not in headers
        stream = await session.stream()
        stream.push(b"data: 1\n\n")
        stream.finish()
        assert await client.rest() == b"data: 1\n\n"


async def test_client_that_closes_after_the_stream_is_told_so() -> None:
    session = Session()
    async with streaming(session, request("GET", "Connection: close")) as client:
        _, headers = await client.head()
        assert headers["connection"] == "close"
        (await session.stream()).finish()
        assert await client.rest() == b"0\r\n\r\n"


@pytest.mark.spec("HM-9")
async def test_silent_stream_sends_comments() -> None:
    session = Session(keepalive=0.01)
    async with streaming(session) as client:
        await client.head()
        for _ in range(3):
            assert await client.chunk() == b": keep-alive\n\n"
        (await session.stream()).finish()
        while await client.chunk():
            pass
        assert await session.outcome() is True


@pytest.mark.spec("HL-11", "HM-10")
async def test_client_that_leaves_ends_the_run_with_false() -> None:
    session = Session()
    async with streaming(session) as client:
        await client.head()
        stream = await session.stream()
        client.hang_up()
        assert await session.outcome() is False
        stream.push(b"data: nobody\n\n")
        assert stream.pending_bytes == 0


async def test_client_that_leaves_in_the_middle_of_a_full_stream_releases_the_pressure() -> None:
    session = Session(unsent=1000)
    async with streaming(session, buffer=4096) as client:
        await client.head()
        stream = await session.stream()
        while not session.filled.is_set():
            stream.push(bytes(200_000))
            await asyncio.sleep(0)
        client.hang_up()
        assert await session.outcome() is False
    assert session.pressure[-2:] == [True, False]


@pytest.mark.spec("SP-10")
async def test_slow_reader_fills_the_stream_and_its_reading_empties_it() -> None:
    session = Session(unsent=1_000_000)
    sent = received = 0
    async with streaming(session, buffer=4096) as client:
        await client.head()
        stream = await session.stream()
        while not session.filled.is_set():
            stream.push(bytes(50_000))
            sent += 50_000
            await asyncio.sleep(0)
        stream.push(bytes(600_000))
        sent += 600_000
        assert session.pressure == [True]
        while not session.released.is_set():
            received += len(await client.chunk())
        assert session.pressure == [True, False]
        filled, released = session.unsent_when_pressed
        assert filled > 1_000_000
        assert released < 500_000
        stream.finish()
        while part := await client.chunk():
            received += len(part)
    assert received == sent


@pytest.mark.spec("SP-10")
async def test_full_stream_whose_client_takes_nothing_is_cut_off() -> None:
    session = Session(unsent=1000, stalled=0.05)
    async with streaming(session, buffer=4096) as client:
        await client.head()
        (await session.stream()).push(bytes(20_000_000))
        assert await session.outcome() is False
    assert session.pressure == [True, False]


async def test_finished_stream_whose_client_takes_nothing_is_cut_off() -> None:
    session = Session(unsent=100_000_000, stalled=0.05)
    async with streaming(session, buffer=4096) as client:
        await client.head()
        stream = await session.stream()
        stream.push(bytes(20_000_000))
        stream.finish()
        assert await session.outcome() is False
    assert session.pressure == []


async def test_stream_that_is_not_full_outlives_a_client_that_takes_nothing() -> None:
    session = Session(unsent=100_000_000, stalled=0.01, keepalive=0.02)
    async with streaming(session, buffer=4096) as client:
        await client.head()
        stream = await session.stream()
        stream.push(bytes(20_000_000))
        for _ in range(20):
            await turn_of_the_clock(0.01)
        async with asyncio.timeout(LIMIT):
            await client.reader.readexactly(20_000_000)
        stream.finish()
        assert await session.outcome() is True


async def turn_of_the_clock(seconds: float) -> None:
    """Wait until every timer due in `seconds` has fired."""
    loop = asyncio.get_running_loop()
    fired = loop.create_future()
    loop.call_later(seconds, fired.set_result, None)
    await fired


async def test_stream_that_nobody_can_slow_is_cut_when_full() -> None:
    session = Session(unsent=1_000_000, slows=False)
    async with streaming(session, buffer=4096) as client:
        await client.head()
        stream = await session.stream()
        while not session.whole.done():
            stream.push(bytes(50_000))
            assert stream.unsent <= 1_050_000
            await asyncio.sleep(0)
        assert await session.outcome() is False


async def test_what_a_resumed_client_missed_does_not_cut_it_off() -> None:
    session = Session(unsent=1000, slows=False, prepare=lambda stream: stream.push(bytes(20_000_000)))
    async with streaming(session, buffer=4096) as client:
        await client.head()
        stream = await session.stream()
        await asyncio.sleep(0)  # `run` begins
        stream.push(b"!")
        stream.finish()
        assert [len(await client.chunk()), await client.chunk()] == [20_000_000, b"!"]
        assert await session.outcome() is True


async def test_write_and_end_serve_a_handler_that_needs_no_loop() -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        stream = EventStream(unsent=PLENTY)
        await stream.start(request)
        await stream.write(b"data: 1\n\n")
        await stream.end()
        return stream

    async with served(handler) as listener, wire(listener) as client:
        client.say(GET)
        await client.head()
        assert [await client.chunk(), await client.chunk()] == [b"data: 1\n\n", b""]


async def test_stream_whose_run_was_cancelled_is_cut_short_visibly() -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        stream = EventStream(unsent=PLENTY)
        await stream.start(request)
        stream.push(b"data: 1\n\n")
        running = asyncio.ensure_future(stream.run(FOREVER, FOREVER))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        return stream

    async with served(handler) as listener, wire(listener) as client:
        client.say(GET)
        await client.head()
        assert await client.chunk() == b"data: 1\n\n"
        assert await client.rest() == b""


async def test_handler_that_fails_amid_a_stream_adds_no_error_page(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        stream = EventStream(unsent=PLENTY)
        await stream.start(request)
        await stream.write(b"data: 1\n\n")
        raise ValueError(request.headers["X-Payload"])

    async with served(handler) as listener, wire(listener) as client:
        client.say(request("GET", "X-Payload: secret"))
        await client.head()
        assert await client.chunk() == b"data: 1\n\n"
        assert await client.rest() == b""
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


async def test_starting_for_a_client_that_is_gone_raises() -> None:
    started, refused = asyncio.Event(), asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            with pytest.raises(ConnectionResetError):
                await EventStream(unsent=PLENTY).start(request)
            refused.set()
        return Ready(200)

    async with served(handler) as listener, wire(listener) as client:
        client.say(GET)
        await started.wait()
        client.hang_up()
        async with asyncio.timeout(LIMIT):
            await refused.wait()


async def test_superseded_stream_hands_over_what_it_did_not_send_and_slows_nobody_any_more() -> None:
    pressure: list[bool] = []
    stream = EventStream(unsent=10, on_pressure=pressure.append)
    stream.push(b"data: 1\n\n")
    stream.push(b"data: 2\n\n")
    assert pressure == [True]
    assert stream.superseded() == [b"data: 1\n\n", b"data: 2\n\n"]
    stream.push(b"data: 3\n\n")
    assert (pressure, stream.unsent) == ([True, False], 0)
