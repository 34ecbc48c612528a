"""Field cases SE of the serving side: event streams that clients of every make can read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from .conftest import Bridge, Start, child, eventually
from .raw import BOTH, JSON_ONLY, LIMIT, SSE_ONLY, Answer, Event, Exchange, opened
from .session import Json, Modern, Session, call, connect, request, session

SERVER = child("obeys_calls.py")
LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MIB = 1 << 20


@pytest.fixture(scope="module")
def plain(start_bridge: Start) -> Bridge:
    return start_bridge(SERVER)


@pytest.fixture(scope="module")
def demo(start_bridge: Start) -> Bridge:
    """Before a server that speaks the modern revision."""
    return start_bridge([SERVER[0], "-m", "bridge", "demo-server"])


def text_of(message: Json) -> str:
    text = message["result"]["content"][0]["text"]
    assert isinstance(text, str)
    return text


# SE-01, SE-02: how an event is written

TEXTS = [
    "a\u2028b\u2029c\u0085d",
    "line\nline\r\nline\rline",
    "\x0b\x0c\x1c\x1d\x1e",
    "data: x\n\nid: 9\n\n",
    ":",
    "",
]


@pytest.mark.case("SE-01", "SE-02")
@pytest.mark.parametrize("text", TEXTS, ids=ascii)
async def test_event_is_one_data_line_whatever_its_payload_holds(plain: Bridge, text: str) -> None:
    async with session(plain.port) as peer:
        answer = await peer.post(call(1, "echo", {"text": text}), SSE_ONLY)
        blocks = [block.split(b"\n") for block in answer.body.split(b"\n\n") if block]
        named = [line.split(b":")[0] for block in blocks for line in block]
        assert all(name in (b"id", b"data", b"retry", b"event") for name in named), answer.body
        assert b"\r" not in answer.body
        assert text_of(answer.last) == text


BREAKS = [
    '{"jsonrpc":"2.0",\r"id":ID,\r"result":{"content":[{"type":"text","text":"x"}]}}\n',
    '{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"x"}]}}\r\n',
    '\r \t{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text",\r\r"text":"x"}]}}\r\r\n',
]


@pytest.mark.case("SE-01")
@pytest.mark.parametrize("line", BREAKS, ids=["between tokens", "CRLF", "around"])
@pytest.mark.parametrize("accept", [SSE_ONLY, BOTH])
async def test_carriage_returns_of_the_server_end_no_line_of_the_stream(
    plain: Bridge, line: str, accept: str
) -> None:
    async with session(plain.port) as peer:
        answer = await peer.post(call(1, "raw", {"text": line}), accept)
        assert text_of(answer.last) == "x"
        assert b"\r" not in answer.body or not answer.streamed


@pytest.mark.case("SE-01")
async def test_carriage_returns_in_a_notification_end_no_line_of_the_get_stream(plain: Bridge) -> None:
    line = '{"jsonrpc":"2.0",\r"method":"notifications/message",\r\r"params":{"level":"info","data":1}}\n'
    async with session(plain.port) as peer, peer.listening() as stream:
        assert await stream.head() == 200
        reply = '{"jsonrpc":"2.0","id":ID,"result":{"content":[]}}\n'
        await peer.post(call(1, "raw", {"text": line + reply}))
        assert (await stream.message())["params"] == {"level": "info", "data": 1}


# SE-03: priming


@pytest.mark.case("SE-03")
@pytest.mark.parametrize("revision", LEGACY)
async def test_priming_events_go_to_the_revision_that_has_them_only(plain: Bridge, revision: str) -> None:
    async with session(plain.port, revision) as peer:
        answer = await peer.post(call(1, "echo", {"text": "hi"}), SSE_ONLY)
        assert text_of(answer.last) == "hi"
        async with peer.listening() as stream:
            assert await stream.head() == 200
            await peer.post(call(2, "note", {"method": "notifications/message", "params": {}}))
            first = await block_of(stream)
    empty = [block for block in answer.body.split(b"\n\n") if b"id:" in block and b"data: {" not in block]
    assert bool(empty) == (revision == "2025-11-25"), answer.body
    assert (first.data == b"") == (revision == "2025-11-25"), first
    assert all(event.id for event in answer.events)


async def block_of(stream: Exchange) -> Event:
    """The first event that is no comment."""
    async with asyncio.timeout(LIMIT):
        while (block := await stream.block()) is not None and block.comment is not None:
            pass
    assert block is not None
    return block


async def block_with_data(stream: Exchange) -> Event | None:
    """The next event that carries a message; None if the stream ends without."""
    async with asyncio.timeout(LIMIT):
        while (block := await stream.block()) is not None and not block.data:
            pass
    return block


@pytest.mark.case("SE-03")
async def test_priming_event_has_an_id_a_retry_and_no_message(plain: Bridge) -> None:
    async with session(plain.port) as peer, peer.listening() as stream:
        first = await block_of(stream)
        assert first.id
        assert first.data == b""
        assert first.retry is None or first.retry > 0


@pytest.mark.case("SE-03")
async def test_modern_stream_has_neither_ids_nor_priming(demo: Bridge) -> None:
    answer = await Modern(demo.port).post(call(1, "echo", {"text": "hi"}), SSE_ONLY)
    assert text_of(answer.last) == "hi"
    assert b"id:" not in answer.body.replace(b'"id":', b"")
    assert len([block for block in answer.body.split(b"\n\n") if block and not block.startswith(b":")]) == 1


# SE-06: resumption


@asynccontextmanager
async def broken_off(peer: Session, request_id: int, text: str) -> AsyncIterator[list[Event]]:
    """The events that a client saw of a call before it lost its connection; the call runs on."""
    seen: list[Event] = []
    asking = call(request_id, "hold", {"text": text, "steps": 2}, token=f"t{request_id}")
    async with peer.posted(asking) as exchange:
        while sum(bool(event.data) for event in seen) < 2:
            block = await exchange.block()
            assert block is not None
            seen.append(block)
        exchange.reset()
    yield seen


async def resumed(peer: Session, event_id: str | None) -> Answer:
    """Everything on the stream that the id names, to its end."""
    async with peer.listening(event_id) as stream:
        return await stream.answer()


@pytest.mark.case("SE-06", "CP-02")
@pytest.mark.parametrize("revision", LEGACY[1:])
@pytest.mark.parametrize("place", [0, 1], ids=["before the last event seen", "after the last event seen"])
async def test_answer_to_a_lost_client_is_replayed_once(plain: Bridge, revision: str, place: int) -> None:
    async with session(plain.port, revision) as peer, broken_off(peer, 1, "late") as seen:
        await peer.tell("notifications/release")
        await peer.post(call(2, "echo", {"text": "so the release was heard"}))
        cursor = [event for event in seen if event.data][place].id
        messages = (await resumed(peer, cursor)).messages
        assert [message.get("method") for message in messages] == ["notifications/progress"] * (1 - place) + [
            None
        ]
        assert messages[-1]["id"] == 1
        assert text_of(messages[-1]) == "late"
        again = (await resumed(peer, cursor)).messages
        assert again == messages, "the same cursor gives the same events"


@pytest.mark.case("SE-06")
async def test_answer_that_is_still_to_come_arrives_on_the_resumed_stream(plain: Bridge) -> None:
    async with (
        session(plain.port) as peer,
        broken_off(peer, 1, "live") as seen,
        peer.listening(seen[-1].id) as stream,
    ):
        assert await stream.head() == 200
        await peer.tell("notifications/release")
        assert text_of(await stream.message()) == "live"
        assert await stream.block() is None, "the stream of a call ends with its answer"


@pytest.mark.case("SE-06")
async def test_last_event_gives_nothing_twice(plain: Bridge) -> None:
    async with session(plain.port) as peer, broken_off(peer, 1, "x") as seen:
        await peer.tell("notifications/release")
        await peer.post(call(2, "echo", {"text": ""}))
        answer = await resumed(peer, seen[-1].id)
        last = answer.events[-1].id
        assert (await resumed(peer, last)).messages == []


@pytest.mark.case("SE-06", "ID-05")
async def test_events_of_another_session_are_never_replayed(plain: Bridge) -> None:
    async with (
        session(plain.port) as mine,
        session(plain.port) as other,
        broken_off(mine, 1, "secret") as seen,
    ):
        await mine.tell("notifications/release")
        await mine.post(call(2, "echo", {"text": ""}))
        for event in seen:
            async with other.listening(event.id) as stream:
                await stream.head()
                ends = call(3, "note", {"method": "notifications/message", "params": {"data": "own"}})
                await other.post(ends, JSON_ONLY)
                # A stream of its own with such a number may exist, and have ended.
                first = await block_with_data(stream)
                assert first is None or first.message.get("params") == {"data": "own"}
        assert text_of((await resumed(mine, seen[-1].id)).last) == "secret"


@pytest.mark.case("SE-06")
async def test_stream_of_one_call_never_carries_that_of_another(plain: Bridge) -> None:
    async with (
        session(plain.port) as peer,
        broken_off(peer, 1, "one") as first,
        broken_off(peer, 2, "two") as second,
    ):
        await peer.tell("notifications/release")
        await peer.post(call(3, "echo", {"text": ""}))
        assert [text_of(m) for m in (await resumed(peer, first[-1].id)).messages] == ["one"]
        assert [text_of(m) for m in (await resumed(peer, second[-1].id)).messages] == ["two"]


@pytest.mark.case("SE-06")
@pytest.mark.parametrize(
    "cursor", ["junk", "0", "-1", "999-999", "1-1-1", "1-", "\xe9", "18446744073709551616-1", " "]
)
async def test_cursor_that_names_nothing_leaves_the_session_in_order(plain: Bridge, cursor: str) -> None:
    async with session(plain.port) as peer:
        async with peer.listening(cursor) as stream:
            status = await stream.head()
            assert status in (200, 400, 404)
            if status == 200:
                await peer.post(call(1, "note", {"method": "notifications/message", "params": {"data": 1}}))
                assert (await stream.message())["params"] == {"data": 1}
        assert text_of((await peer.post(call(2, "echo", {"text": "fine"}))).last) == "fine"


@pytest.mark.case("SE-06")
async def test_cursor_on_a_post_changes_nothing(plain: Bridge) -> None:
    async with session(plain.port) as peer, broken_off(peer, 1, "x") as seen:
        peer.headers.append(("Last-Event-ID", seen[-1].id or ""))
        answer = await peer.post(call(2, "echo", {"text": "plain"}))
        assert [text_of(message) for message in answer.messages] == ["plain"]


@pytest.mark.case("SE-06")
async def test_notifications_that_nobody_heard_wait_for_the_next_get(plain: Bridge) -> None:
    async with session(plain.port) as peer:
        async with peer.listening() as stream:
            cursor = (await block_of(stream)).id
        await peer.post(
            call(1, "note", {"method": "notifications/message", "params": {"data": 1}}), JSON_ONLY
        )
        async with peer.listening(cursor) as stream:
            assert (await stream.message())["params"] == {"data": 1}


@pytest.mark.case("SE-06")
async def test_new_get_takes_the_place_of_the_old_one(plain: Bridge) -> None:
    async with session(plain.port) as peer, peer.listening() as first:
        await block_of(first)
        async with peer.listening() as second:
            await block_of(second)
            assert await first.block() is None
            await peer.post(
                call(1, "note", {"method": "notifications/message", "params": {"data": 1}}),
                JSON_ONLY,
            )
            assert (await second.message())["params"] == {"data": 1}


@pytest.mark.case("SE-06", "CP-07")
async def test_stream_whose_server_died_ends_with_an_error_in_it(plain: Bridge) -> None:
    peer = await connect(plain.port)
    async with peer.posted(call(1, "hold", {"steps": 1}, token=1)) as exchange:
        assert (await exchange.message())["method"] == "notifications/progress"
        await peer.post(call(2, "exit", {"code": 3}))
        assert (await exchange.message())["error"]["data"]["exitCode"] == 3
        assert await exchange.block() is None


# SE-07: big events


@pytest.mark.case("SE-07")
@pytest.mark.parametrize("size", [MIB - 1000, MIB + MIB // 10, 16 * MIB])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_big_answer_arrives_whole_as_one_event(
    plain: Bridge, demo: Bridge, size: int, era: str
) -> None:
    peer: Session | Modern = await connect(plain.port) if era == "legacy" else Modern(demo.port)
    name, arguments = ("big", {"size": size}) if era == "legacy" else ("big", {"bytes": size})
    answer = await peer.post(call(1, name, arguments), SSE_ONLY)
    (event,) = answer.events
    assert len(text_of(event.message)) >= size
    assert set(text_of(event.message)[:1000]) != {"\n"}


# SE-08: nothing in the path holds an event back


@pytest.mark.case("SE-08")
@pytest.mark.parametrize("coding", ["gzip, br", "gzip, deflate, br, zstd", "identity;q=0, gzip", "*"])
async def test_stream_is_never_compressed_and_says_that_nobody_else_should(
    plain: Bridge, coding: str
) -> None:
    async with session(plain.port) as peer:
        peer.headers.append(("Accept-Encoding", coding))
        async with peer.posted(call(1, "hold", {"steps": 1}, token=1)) as post, peer.listening() as get:
            for stream in (post, get):
                assert await stream.head() == 200
                assert stream.headers["content-type"].startswith("text/event-stream")
                assert "content-encoding" not in stream.headers
                assert "content-length" not in stream.headers
                assert stream.headers["x-accel-buffering"] == "no"
                assert {"no-cache", "no-transform"} <= set(stream.headers["cache-control"].split(", "))
            await peer.tell("notifications/release")
            await post.answer()


@pytest.mark.case("SE-08")
async def test_headers_of_a_get_come_before_there_is_anything_to_say(start_bridge: Start) -> None:
    bridge = start_bridge(SERVER)
    async with session(bridge.port, "2025-06-18") as peer, peer.listening() as stream:
        assert await stream.head() == 200  # nothing was sent: no priming in this revision


@pytest.mark.case("SE-08")
async def test_progress_arrives_while_the_call_still_runs(plain: Bridge) -> None:
    async with session(plain.port) as peer, peer.posted(call(1, "hold", {"steps": 3}, token=1)) as exchange:
        steps = [(await exchange.message())["params"]["progress"] for _ in range(3)]
        assert steps == [0, 1, 2]
        await peer.tell("notifications/release")
        assert text_of(await exchange.message()) == "released"


@pytest.mark.case("SE-08")
async def test_stream_over_http_1_0_ends_with_its_connection(plain: Bridge) -> None:
    async with session(plain.port) as peer:
        body = json.dumps(call(1, "slow", {"seconds": 0, "steps": 2}, token=1)).encode()
        lines = "".join(f"{name}: {value}\r\n" for name, value in peer.posting(b"", SSE_ONLY))
        reader, writer = await asyncio.open_connection("127.0.0.1", plain.port)
        head = f"POST /mcp HTTP/1.0\r\nHost: localhost\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        async with asyncio.timeout(20):
            whole = await reader.read()
        writer.close()
        top, _, rest = whole.partition(b"\r\n\r\n")
        assert b"chunked" not in top.lower()
        assert text_of(json.loads(rest.rstrip().rpartition(b"data: ")[2])) == "done"


@pytest.mark.case("SE-08")
async def test_client_that_does_not_read_slows_itself_alone(start_bridge: Start) -> None:
    bridge = start_bridge(SERVER)
    async with session(bridge.port) as slow, session(bridge.port) as quick:
        before = bridge.high_water()
        calls = [call(number, "big", {"size": 4 * MIB}) for number in range(1, 25)]
        lines = slow.posting(b"", SSE_ONLY)
        async with asyncio.timeout(30):
            unread = [opened(bridge.port, "POST", lines, json.dumps(asked).encode()) for asked in calls]
            exchanges = [await stuck.__aenter__() for stuck in unread]
            for number in range(50):
                assert text_of((await quick.post(call(number, "echo", {"text": str(number)}))).last) == str(
                    number
                )
        assert bridge.high_water() - before < 128 * MIB
        for exchange in exchanges:
            assert len(text_of((await exchange.answer()).last)) == 4 * MIB
        for stuck in unread:
            await stuck.__aexit__(None, None, None)


@pytest.mark.case("SE-08", "TF-05")
async def test_closed_modern_stream_leaves_nothing_behind(demo: Bridge) -> None:
    caller = Modern(demo.port)
    await caller.post(request(0, "server/discover"))
    for number in range(20):
        asked = call(number, "slow", {"seconds": 60, "steps": 6000}, token=number)
        async with caller.posted(asked, SSE_ONLY) as exchange:
            assert (await exchange.message())["method"] == "notifications/progress"
            exchange.reset()
    answer = await caller.post(call(99, "echo", {"text": "on"}))
    assert text_of(answer.last) == "on"
    eventually(lambda: len(demo.servers()) <= 2, demo.tail)
