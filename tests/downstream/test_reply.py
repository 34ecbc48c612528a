"""The answer to one POST, driven by hand: what it becomes, and what it keeps when nobody is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp.web import BaseRequest, StreamResponse
from hypothesis import given
from hypothesis import strategies as st
from raw_http import LIMIT, Wire, request, served, wire

from bridge.config import Limits, Timing
from bridge.core.headers import Accepted, Refusal
from bridge.core.message import Malformed
from bridge.deadlines import Deadlines
from bridge.downstream.event_stream import EventStream
from bridge.downstream.reply import Reply, declined, later, malformed

BOTH = Accepted(json=True, sse=True)
JSON = Accepted(json=True, sse=False)
SSE = Accepted(json=False, sse=True)
FOREVER = Timing(keepalive=3600.0, stalled=3600.0)


def encode(payload: bytes) -> bytes:
    return b"<%b>" % payload


def recording(encoded: list[bytes]) -> Callable[[bytes], bytes]:
    """An encoder that remembers."""

    def encode(payload: bytes) -> bytes:
        encoded.append(payload)
        return payload

    return encode


@dataclass
class Post:
    """A handler that answers with `reply`."""

    reply: Reply
    commits: Deadlines[Reply]
    pressure: Callable[[bool], None] | None = None
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, request: BaseRequest) -> StreamResponse:
        self.asked.set()
        try:
            return await self.reply.respond(
                request, commits=self.commits, limits=Limits(), timing=FOREVER, pressure=self.pressure
            )
        finally:
            self.over.set()


@asynccontextmanager
async def posted(reply: Reply, *, commit: float | None = None) -> AsyncIterator[tuple[Post, Wire]]:
    """A client that waits for `reply`."""
    post = Post(reply, Deadlines(commit, Reply.commit))
    async with served(post) as listener, wire(listener) as client:
        client.say(request())
        async with asyncio.timeout(LIMIT):
            await post.asked.wait()
        yield post, client


async def body_of(client: Wire) -> bytes:
    """All of a chunked body."""
    parts = []
    while part := await client.chunk():
        parts.append(part)
    return b"".join(parts)


async def test_one_answer_is_one_json_text() -> None:
    reply = Reply(BOTH, encode)
    async with posted(reply) as (_, client):
        reply.head(b"X-Mine: 1\r\n")
        reply.answer(b"{}", 418)
        answer = await client.answer()
    assert (answer.status, answer.body, answer.headers["x-mine"]) == (418, b"{}", "1")
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.spec("BT-3")
async def test_several_answers_are_one_array_in_the_order_they_came() -> None:
    reply = Reply(BOTH, encode, expected=2)
    async with posted(reply) as (_, client):
        reply.answer(b"1")
        assert not reply.finished
        reply.answer(b"2")
        assert (await client.answer()).body == b"[1,2]"


async def test_batch_of_one_is_answered_by_an_array() -> None:
    reply = Reply(BOTH, encode, expected=1)
    reply.answer(b"1")
    async with posted(reply) as (_, client):
        assert (await client.answer()).body == b"[1]"


async def test_message_makes_a_stream_that_begins_with_what_was_answered_before() -> None:
    reply = Reply(BOTH, encode, expected=2, opening=lambda _: b"(opening)")
    async with posted(reply) as (_, client):
        reply.head(b"X-Mine: 1\r\n")
        reply.answer(b"1")
        reply.push(b"note")
        status, headers = await client.head()
        reply.answer(b"2")
        assert await body_of(client) == b"(opening)<1><note><2>"
    assert (status, headers["content-type"], headers["x-mine"]) == (200, "text/event-stream", "1")


async def test_it_tells_what_nobody_began_to_send() -> None:
    reply = Reply(BOTH, encode)
    reply.push(b"note")
    assert list(reply.waiting) == [b"<note>"]
    async with posted(reply) as (_, client):
        await client.head()
        assert await client.chunk() == b"<note>"
        assert list(reply.waiting) == []
        reply.push(b"note")
        assert list(reply.waiting) == [b"<note>"]
        reply.answer(b"1")
        assert await body_of(client) == b"<note><1>"


async def test_wait_makes_a_stream_when_it_is_committed() -> None:
    reply = Reply(BOTH, encode, opening=lambda _: b"(opening)")
    async with posted(reply, commit=0.0) as (_, client):
        assert (await client.head())[0] == 200
        reply.answer(b"1")
        assert await body_of(client) == b"(opening)<1>"


async def test_wait_of_a_client_that_takes_json_only_is_never_a_stream() -> None:
    reply = Reply(JSON, encode)
    async with posted(reply, commit=0.0) as (_, client):
        reply.push(b"note")
        assert not reply.carries
        reply.commit()
        reply.answer(b"1")
        assert (await client.answer()).body == b"1"


async def test_client_that_takes_streams_only_gets_one() -> None:
    reply = Reply(SSE, encode)
    async with posted(reply) as (_, client):
        reply.answer(b"1")
        await client.head()
        assert await body_of(client) == b"<1>"


async def test_abandoned_reply_is_an_empty_stream_or_no_content() -> None:
    for accepted in (BOTH, JSON):
        reply = Reply(accepted, encode)
        async with posted(reply) as (_, client):
            reply.abandon()
            status, headers = await client.head()
            if accepted is JSON:
                assert (status, headers["content-length"]) == (202, "0")
            else:
                assert (status, await body_of(client)) == (200, b"")


async def test_batch_with_an_abandoned_member_is_answered_without_it() -> None:
    reply = Reply(BOTH, encode, expected=2)
    async with posted(reply) as (_, client):
        reply.abandon()
        reply.answer(b"2")
        assert (await client.answer()).body == b"[2]"


async def test_nothing_is_added_to_a_finished_reply() -> None:
    reply = Reply(BOTH, encode)
    async with posted(reply) as (_, client):
        reply.answer(b"1")
        reply.answer(b"2")
        reply.push(b"3")
        reply.commit()
        reply.abandon()
        assert (await client.answer()).body == b"1"


@pytest.mark.spec("HL-11", "RS-2")
async def test_resumable_stream_is_encoded_on_when_its_client_is_gone_and_goes_on_elsewhere() -> None:
    encoded: list[bytes] = []
    reply = Reply(BOTH, recording(encoded), resumable=True)
    async with posted(reply) as (post, client):
        reply.push(b"1")
        await client.head()
        assert reply.live
        client.hang_up()
        await post.over.wait()
        assert (reply.live, reply.carries) == (False, True)
        reply.push(b"2")
    async with resuming(reply) as (_, client):
        assert (reply.live, reply.carries) == (True, True)
        reply.push(b"3")
        reply.answer(b"4")
        assert await body_of(client) == b"34"
    assert encoded == [b"1", b"2", b"3", b"4"]


@pytest.mark.spec("RS-6")
async def test_stream_that_cannot_be_resumed_takes_nothing_when_its_client_is_gone() -> None:
    encoded: list[bytes] = []
    reply = Reply(BOTH, recording(encoded))
    async with posted(reply) as (post, client):
        reply.push(b"1")
        await client.head()
        client.hang_up()
        await post.over.wait()
    assert not reply.carries
    reply.push(b"2")
    reply.answer(b"3")
    assert encoded == [b"1"]


async def test_client_that_leaves_before_anything_is_decided_leaves_nothing_to_resume() -> None:
    reply = Reply(BOTH, encode, resumable=True)
    async with posted(reply) as (post, client):
        client.hang_up()
        await post.over.wait()
    assert not reply.carries
    assert len(post.commits) == 0


@pytest.mark.spec("HL-15")
async def test_stream_that_takes_over_outlives_the_late_end_of_the_one_before() -> None:
    reply = Reply(BOTH, encode, resumable=True)
    reply.push(b"1")
    async with posted(reply) as (post, first):
        await first.head()
        assert await first.chunk() == b"<1>"
        async with resuming(reply) as (_, second):
            assert await first.chunk() == b""
            await post.over.wait()
            assert reply.live
            reply.answer(b"2")
            assert await body_of(second) == b"<2>"


async def test_stream_attached_to_a_finished_reply_ends() -> None:
    reply = Reply(BOTH, encode, resumable=True)
    reply.answer(b"1")
    async with resuming(reply) as (_, client):
        assert await body_of(client) == b""


@asynccontextmanager
async def resuming(reply: Reply) -> AsyncIterator[tuple[EventStream, Wire]]:
    """Another client that takes up the stream."""
    stream = EventStream(unsent=1000)
    attached = asyncio.Event()

    async def handler(request: BaseRequest) -> StreamResponse:
        await stream.start(request)
        reply.attach(stream)
        attached.set()
        await reply.attend(stream, FOREVER)
        return stream

    async with served(handler) as listener, wire(listener) as client:
        client.say(request("GET"))
        await client.head()
        async with asyncio.timeout(LIMIT):
            await attached.wait()
        yield stream, client


STEPS = st.lists(st.sampled_from(["answer", "push", "abandon", "commit"]), max_size=12)


@given(steps=STEPS, expected=st.integers(1, 4), accepted=st.sampled_from([BOTH, JSON, SSE]))
def test_reply_is_finished_by_as_many_answers_and_cancellations_as_are_expected(
    steps: list[str], expected: int, accepted: Accepted
) -> None:
    encoded: list[bytes] = []
    reply = Reply(accepted, recording(encoded), expected=expected)
    answers = 0
    for number, step in enumerate(steps):
        if step == "answer":
            reply.answer(b"a%d" % number)
        elif step == "push":
            reply.push(b"n%d" % number)
        elif step == "abandon":
            reply.abandon()
        else:
            reply.commit()
        answers += step in ("answer", "abandon")
        assert reply.finished == (answers >= expected)
        assert not (reply.streaming and not accepted.sse)
    assert len(encoded) == len(set(encoded)), "nothing is sent twice"


def test_refusals_carry_their_id_status_and_time() -> None:
    wrong = malformed(Malformed(-32600, "why", 7))
    assert (wrong.status, wrong.content) == (
        400,
        b'{"jsonrpc":"2.0","id":7,"error":{"code":-32600,"message":"why"}}',
    )
    refused = declined(None, Refusal(404, -32601, "no", b"{}"))
    assert (refused.status, refused.content) == (
        404,
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"no","data":{}}}',
    )
    busy = later("a", "full", "sessions", seconds=10)
    assert busy.status == 503
    assert b"Retry-After: 10\r\n" in busy.lines
