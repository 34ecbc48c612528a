"""The short way of a connection: what is taken on it, what never is, and that no client can tell."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
from aiohttp.web import BaseRequest, StreamResponse
from field.raw import LIMIT, Answer, Exchange, dial
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.config import Listen
from bridge.downstream.http import Ready, read_body
from bridge.downstream.listener import serve
from bridge.downstream.repeated import RULES, Pending, RepeatingConnection, Rules, learn, taken_of

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def asking(body: bytes, head: bytes = HEAD) -> bytes:
    return head % len(body) + body


@dataclass
class Waiting:
    """An answer that the test gives when it likes."""

    told: Callable[[], None] | None = None
    decided: bool = False
    streams: bool = False
    events: list[str] = field(default_factory=list)

    def ready(self) -> Ready | None:
        return None if self.streams else Ready(200, b"", (b"later",))

    def sent(self) -> None:
        self.events.append("sent")

    def leave(self) -> None:
        self.events.append("left")

    async def go_on(self, request: BaseRequest) -> StreamResponse:
        self.events.append(f"goes on {request.method} {request.path}")
        return Ready(200, b"X-Stream: yes\r\n", (b"streamed",))

    def decide(self, *, streams: bool = False) -> None:
        self.decided, self.streams = True, streams
        assert self.told is not None
        self.told()


@dataclass
class Endpoint:
    """Answers each body with itself, on either way; `long` and `short` tell which it went."""

    rules: Rules = field(default_factory=Rules)
    long: list[bytes] = field(default_factory=list)
    short: list[bytes] = field(default_factory=list)
    connections: list[RepeatingConnection] = field(default_factory=list)
    pending: Pending | None = None
    """The answer to what is taken next."""
    declines: bool = False
    teaches: bool = True
    port: int = 0

    async def handle(self, request: BaseRequest) -> StreamResponse:
        taken = taken_of(request)
        if taken is not None:
            return await taken.go_on(request)
        assert isinstance(request.protocol, RepeatingConnection)
        self.connections.append(request.protocol)
        body = await read_body(request, 1 << 20, 30.0)
        assert isinstance(body, bytes)
        self.long.append(body)
        request[RULES] = self.rules
        if self.teaches:
            learn(request, self.take)
        return Ready(200, b"", (b"<", body, b">"))

    def take(self, body: bytes) -> Ready | Pending | None:
        if self.declines:
            return None
        self.short.append(body)
        pending, self.pending = self.pending, None
        return pending or Ready(200, b"", (b"<", body, b">"))


@asynccontextmanager
async def listening(stalled: float = 30.0) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    served = await serve(Listen(port=0), endpoint.handle, stalled=stalled)
    endpoint.port = int(served.listening.rpartition(":")[2])
    try:
        yield endpoint
    finally:
        await served.close(0.2)


async def answer(exchange: Exchange) -> Answer:
    """The next answer on a connection that goes on."""
    exchange.status, exchange._ended = 0, False
    found = await exchange.answer()
    assert found.status == 200, found
    return found


async def said(exchange: Exchange, data: bytes) -> bytes:
    exchange.say(data)
    return (await answer(exchange)).body


async def test_a_head_that_came_before_is_not_read_again_whatever_the_body() -> None:
    async with listening() as endpoint, dial(endpoint.port) as exchange:
        for body in (b"first", b"2", b"", b"x" * 50_000, b"\r\n\r\n"):
            assert await said(exchange, asking(body)) == b"<%b>" % body
        assert endpoint.long == [b"first"]
        assert endpoint.short == [b"2", b"", b"x" * 50_000, b"\r\n\r\n"]


async def test_another_head_goes_the_long_way_and_is_known_too_after_it() -> None:
    other = HEAD.replace(b"localhost", b"127.0.0.1")
    async with listening() as endpoint, dial(endpoint.port) as exchange:
        for number in range(3):
            for head in (HEAD, other):
                body = b"%d" % number
                assert await said(exchange, asking(body, head)) == b"<%b>" % body
        assert endpoint.long == [b"0", b"0"]
        assert endpoint.short == [b"1", b"1", b"2", b"2"]


async def test_no_more_than_a_few_heads_are_known_at_a_time() -> None:
    async with listening() as endpoint, dial(endpoint.port) as exchange:
        for number in range(20):
            head = HEAD.replace(b"localhost", b"host-%d" % number)
            await said(exchange, asking(b"", head))
        (connection,) = set(endpoint.connections)
        assert len(connection._known) == 4


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace(b"\r\n\r\n", b"\r\nOrigin: http://localhost\r\n\r\n"),
        HEAD.replace(b"\r\n\r\n", b"\r\nExpect: nothing\r\n\r\n").replace(b"POST", b"PUT"),
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST / HTTP/1.1\nHost: localhost\nContent-Length: 0\r\n\r\n",
    ],
    ids=["a browser's", "not a POST", "chunked", "without a body", "unusual line ends"],
)
async def test_what_is_not_plain_never_goes_the_short_way(head: bytes) -> None:
    async with listening() as endpoint, dial(endpoint.port) as exchange:
        for _ in range(3):
            exchange.say(head % 0 if b"%d" in head else head)
            exchange.status, exchange._ended = 0, False
            if (await exchange.answer()).status != 200:
                break
        assert not endpoint.short


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1\r\nConnection: close"])
async def test_a_connection_that_ends_with_its_answer_learns_nothing(version: bytes) -> None:
    async with listening() as endpoint, dial(endpoint.port) as exchange:
        assert await said(exchange, asking(b"only", HEAD.replace(b"HTTP/1.1", version))) == b"<only>"
        assert await exchange.reader.read() == b""
        assert not endpoint.short


async def test_a_body_in_pieces_goes_the_long_way_and_what_follows_the_short_one() -> None:
    async with listening() as endpoint, dial(endpoint.port) as exchange:
        await said(exchange, asking(b"first"))
        exchange.say(asking(b"in pieces")[:-3])
        await exchange.flush()
        await until(lambda: len(endpoint.connections) == 2)
        assert await said(exchange, b"ces") == b"<in pieces>"
        assert await said(exchange, asking(b"whole")) == b"<whole>"
        assert (endpoint.long, endpoint.short) == ([b"first", b"in pieces"], [b"whole"])


async def test_what_the_endpoint_declines_is_handled_as_if_it_had_not_been_asked() -> None:
    async with listening() as endpoint, dial(endpoint.port) as exchange:
        await said(exchange, asking(b"first"))
        endpoint.declines = True
        assert await said(exchange, asking(b"second")) == b"<second>"
        assert (endpoint.long, endpoint.short) == ([b"first", b"second"], [])


async def test_what_was_learned_holds_as_long_as_the_rules_it_was_let_in_by() -> None:
    async with listening() as endpoint, dial(endpoint.port) as exchange:
        await said(exchange, asking(b"first"))
        endpoint.rules.hold = False
        endpoint.rules = Rules()
        for body in (b"second", b"third"):
            await said(exchange, asking(body))
        assert (endpoint.long, endpoint.short) == ([b"first", b"second"], [b"third"])


async def test_a_request_that_is_no_http_is_refused_behind_a_known_one_too() -> None:
    async with listening() as endpoint, dial(endpoint.port) as exchange:
        await said(exchange, asking(b"first"))
        exchange.say(asking(b"second").replace(b"Length: 6", b"Length: six"))
        exchange.status = 0
        assert (await exchange.answer()).status == 400
        assert not endpoint.short


# --- answers that come later ---


async def test_an_answer_that_comes_later_is_sent_when_it_is_whole() -> None:
    async with listening() as endpoint, dial(endpoint.port) as exchange:
        await said(exchange, asking(b"first"))
        endpoint.pending = waiting = Waiting()
        exchange.say(asking(b"slow"))
        await until(lambda: waiting.told)
        waiting.decide()
        assert (await answer(exchange)).body == b"later"
        assert waiting.events == ["sent"]
        assert await said(exchange, asking(b"next")) == b"<next>"
        assert endpoint.long == [b"first"]


async def test_an_answer_that_is_whole_at_once_is_sent_at_once() -> None:
    async with listening() as endpoint, dial(endpoint.port) as exchange:
        await said(exchange, asking(b"first"))
        endpoint.pending = waiting = Waiting(decided=True)
        assert await said(exchange, asking(b"quick")) == b"later"
        assert waiting.events == ["sent"]


async def test_an_answer_that_becomes_a_stream_is_carried_on_by_a_handler() -> None:
    async with listening() as endpoint, dial(endpoint.port) as exchange:
        await said(exchange, asking(b"first"))
        for _ in range(2):
            endpoint.pending = waiting = Waiting()
            exchange.say(asking(b"slow"))
            await until(partial(getattr, waiting, "told"))
            waiting.decide(streams=True)
            found = await answer(exchange)
            assert (found.body, found.headers["x-stream"]) == (b"streamed", "yes")
            assert waiting.events == ["goes on POST /"]
        assert await said(exchange, asking(b"next")) == b"<next>"
        assert endpoint.long == [b"first"]


@pytest.mark.parametrize("streams", [False, True])
async def test_what_comes_before_the_answer_waits_for_its_turn(streams: bool) -> None:
    async with listening() as endpoint, dial(endpoint.port) as exchange:
        await said(exchange, asking(b"first"))
        endpoint.pending = waiting = Waiting()
        exchange.say(asking(b"slow"))
        await until(lambda: waiting.told)
        exchange.say(asking(b"early") + asking(b"earlier"))
        await until(lambda: endpoint.connections[0]._held)
        waiting.decide(streams=streams)
        assert (await answer(exchange)).body == (b"streamed" if streams else b"later")
        assert (await answer(exchange)).body == b"<early>"
        assert (await answer(exchange)).body == b"<earlier>"
        exchange.say(asking(b"after"))
        assert (await answer(exchange)).body == b"<after>"


@pytest.mark.parametrize("streams", [False, True])
async def test_a_client_that_leaves_before_its_answer_is_told_of_once(streams: bool) -> None:
    async with listening() as endpoint:
        async with dial(endpoint.port) as exchange:
            await said(exchange, asking(b"first"))
            endpoint.pending = waiting = Waiting()
            exchange.say(asking(b"slow"))
            await until(lambda: waiting.told)
            exchange.reset()
        await until(lambda: waiting.events)
        waiting.decide(streams=streams)
        assert waiting.events == ["left"]


async def test_a_connection_is_not_idle_while_an_answer_is_awaited() -> None:
    async with listening() as endpoint, dial(endpoint.port) as exchange:
        await said(exchange, asking(b"first"))
        connection = endpoint.connections[0]
        endpoint.pending = waiting = Waiting()
        exchange.say(asking(b"slow"))
        await until(lambda: waiting.told)
        for _ in range(2):
            connection._next_keepalive_close_time = 0.0
            connection._process_keepalive()
        waiting.decide()
        assert (await answer(exchange)).body == b"later"
        for _ in range(2):  # once for what went the short way since, and once for nothing
            connection._next_keepalive_close_time = 0.0
            connection._process_keepalive()
        assert await exchange.reader.read() == b""


@pytest.mark.case("HT-05")
async def test_a_client_that_takes_nothing_of_an_answer_is_cut_off() -> None:
    async with listening(stalled=0.05) as endpoint, dial(endpoint.port) as exchange:
        await said(exchange, asking(b"first"))
        exchange.reader._transport.pause_reading()  # type: ignore[attr-defined]
        endpoint.pending = waiting = Waiting(decided=True)
        waiting.ready = lambda: Ready(200, b"", (b"x" * (32 << 20),))  # type: ignore[method-assign]
        exchange.say(asking(b"big"))
        connection = endpoint.connections[0]
        await until(lambda: connection.transport is None)


# --- nobody can tell ---


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    bodies=st.lists(st.binary(max_size=40), min_size=1, max_size=6),
    cuts=st.lists(st.integers(0, 1200), max_size=6),
)
def test_however_a_stream_of_requests_is_cut_each_is_answered_in_turn(
    bodies: list[bytes], cuts: list[int]
) -> None:
    async def play() -> None:
        async with listening() as endpoint, dial(endpoint.port) as exchange:
            data = b"".join(map(asking, bodies))
            edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
            for start, end in itertools.pairwise(edges):
                exchange.say(data[start:end])
                await exchange.flush()
                await asyncio.sleep(0)
            for body in bodies:
                assert (await answer(exchange)).body == b"<%b>" % body
            assert sorted(endpoint.long + endpoint.short) == sorted(bodies)

    asyncio.run(play())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110 - what the other side has seen has no event here
            await asyncio.sleep(0.001)
