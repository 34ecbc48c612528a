"""Field cases FR: where a message on the child's pipes begins and ends, and what is none."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Bridge, Start, child, running
from .raw import BOTH, JSON_ONLY, SSE_ONLY, Exchange, ask, ask_in_chunks, dial, dump, head_of
from .session import (
    Caller,
    Modern,
    Session,
    call,
    connect,
    initialize,
    line,
    notification,
    old,
    progress,
    request,
    run,
    session,
    sessions,
)

KIB, MIB = 1024, 1024 * 1024
SAYING = "é — 読 🎉"
SEPARATORS = "a\u2028b\u2029c\u0085d"
NOISE = (
    b"Server ready v1",
    b"",
    b" \t",
    b"\x1b[32mINFO\x1b[0m ready",
    b"null",
    b"42",
    b'"x"',
    b"[]",
    b'{"status":200,"ok":true}',
    b'{"jsonrpc":"2.0"}',
    # And their neighbours: half a log line, HTML, a wrong version, nobody's answer, nobody's error.
    b"{",
    b"true",
    b"[null]",
    b"[[]]",
    b"<html><body>502</body></html>",
    b"{'jsonrpc': '2.0', 'method': 'x'}",
    b'{"jsonrpc":"1.0","method":"notifications/message","params":{}}',
    b'{"jsonrpc":"2.0","id":"nobody","result":{}}',
    b'{"jsonrpc":"2.0","id":null,"result":{}}',
    b'{"jsonrpc":"2.0","method":7}',
    b'{"jsonrpc":"2.0","method":"x"} trailing',
    b"\xff\xfe\x00",
    b"\x00",
)
SILENT = (b"", b" \t", b'{"jsonrpc":"2.0","id":"nobody","result":{}}')
"""What is dropped without a word: nothing is wrong with it."""


GOOD = '{"jsonrpc":"2.0","id":$ID,"result":{"guessed":true}}'


@pytest.fixture(scope="module")
def own(start_bridge: Start) -> Bridge:
    """A child per session."""
    return start_bridge(child("scripted.py"), "--max-body", "32MiB", "--legacy-sse")


@pytest.fixture(scope="module")
def shared(start_bridge: Start) -> Bridge:
    return start_bridge(child("scripted.py"), "--max-body", "32MiB", "--process", "shared")


@pytest.fixture(params=["own", "shared"])
def bridge(request: pytest.FixtureRequest) -> Iterator[Bridge]:
    """Both process models, and at the end it still works for others."""
    found: Bridge = request.getfixturevalue(request.param)
    yield found
    assert found.process.poll() is None, found.tail()


@pytest.fixture(scope="module")
def strict(start_bridge: Start) -> Bridge:
    """Lines of 1 MiB at most."""
    return start_bridge(child("scripted.py"), "--max-line", "1MiB")


@pytest.fixture(scope="module")
def hurried(start_bridge: Start) -> Bridge:
    """The same, and half a second for an answer: for answers that never come."""
    return start_bridge(child("scripted.py"), "--max-line", "1MiB", "--request-timeout", "500ms")


def text(saying: str) -> str:
    """An answer of the scripted child that says `saying`, as JSON text with its characters raw."""
    result = {"content": [{"type": "text", "text": saying}]}
    return f'{{"jsonrpc":"2.0","id":$ID,"result":{dump(result).decode()}}}'


def said(result: Any) -> object:
    return result["content"][0]["text"]


async def still_works(caller: Caller) -> None:
    assert said((await caller.run()).result) == "done"


class TestNoise:
    @pytest.mark.case("FR-01")
    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("model", ["session", "shared"])
    async def test_noise_around_the_handshake_reaches_nobody_and_harms_nothing(
        self, when: str, model: str
    ) -> None:
        noise = b"".join(one + b"\n" for one in NOISE)
        with running(child("noisy.py", when, noise.hex()), "--process", model) as bridge:
            async with session(bridge.port) as client, client.listening() as stream:
                assert client.initialized["serverInfo"]["name"] == "noisy"
                listed = await client.post(request(1, "tools/list"))
                assert [message["id"] for message in listed.messages] == [1]
                assert listed.result["tools"][0]["name"] == "quiet"
                assert (await client.post(request("2", "tools/list"), SSE_ONLY)).last["id"] == "2"
                await client.delete()
                assert [event async for event in _rest(stream)] == []

    @pytest.mark.case("FR-01")
    async def test_each_line_of_noise_is_logged_once_and_cut_short(self, own: Bridge) -> None:
        async with session(own.port) as client:
            for one in NOISE:
                await client.run({"hex": (one + b"\n").hex()})
            await client.run({"hex": (b"a-long-line-of-noise " * 1000 + b"\n").hex()})
        own.expect_log("a-long-line-of-noise")
        dropped = [entry for entry in own.log if "dropped its output" in entry]
        for one in set(NOISE) - set(SILENT):
            shown = repr(re.split(rb'(?<="params":)|(?<="result":)', one)[0])  # but for payloads
            assert len([entry for entry in dropped if f": {shown}" in entry]) == 1, (one, dropped)
        assert len([entry for entry in dropped if "a-long-line-of-noise" in entry]) == 1
        assert max(map(len, dropped)) < 1000

    @pytest.mark.case("FR-01")
    @pytest.mark.parametrize("accept", [JSON_ONLY, SSE_ONLY])
    async def test_noise_during_a_call_is_no_answer_to_it(self, bridge: Bridge, accept: str) -> None:
        async with session(bridge.port) as client:
            noise = {"hex": b"".join(one + b"\n" for one in NOISE).hex()}
            answer = await client.post(run(5, noise, line(text("still here")), noise), accept)
            assert answer.messages == [{"jsonrpc": "2.0", "id": 5, "result": answer.result}]
            assert said(answer.result) == "still here"
            await still_works(client)

    @pytest.mark.case("FR-01")
    async def test_noise_during_a_modern_call_is_no_answer_to_it(self, bridge: Bridge) -> None:
        noise = {"hex": b"".join(one + b"\n" for one in NOISE).hex()}
        answer = await Modern(bridge.port).run(noise, line(text("still here")), noise)
        assert said(answer.result) == "still here"
        await still_works(Modern(bridge.port))

    @pytest.mark.case("FR-01")
    @pytest.mark.parametrize(
        "wrong",
        [
            f"npm notice {GOOD}",
            f"{GOOD} {GOOD}",
            f"{GOOD}npm notice",
            f"\x1b[0m{GOOD}",
            GOOD.replace("2.0", "1.0"),
            GOOD.replace('"jsonrpc":"2.0",', ""),
        ],
    )
    async def test_call_whose_answer_is_no_message_ends_with_an_error_at_the_latest_by_the_time_limit(
        self, hurried: Bridge, wrong: str
    ) -> None:
        """No guess is made: neither what stands before nor what stands behind is taken for an answer."""
        async with session(hurried.port) as client:
            answer = await client.run({"line": wrong})
            assert answer.error["code"] == -32603
            assert "guessed" not in answer.last
            await still_works(client)

    @pytest.mark.case("FR-01")
    async def test_handshake_whose_answer_is_glued_to_noise_fails_by_the_start_limit(self) -> None:
        glued = child("noisy.py", "glued", b"npm notice ".hex())
        with running(glued, "--start-timeout", "500ms", "--warm", "0") as bridge:
            answer = await Session(bridge.port).post(initialize())
            assert answer.error["code"] == -32603
            assert answer.last["id"] == "init"

    @pytest.mark.case("FR-01", "FR-06")
    async def test_byte_order_mark_before_the_first_message_is_forgiven(self) -> None:
        with running(child("noisy.py", "once", "efbbbf"), "--warm", "0") as bridge:
            async with session(bridge.port) as client:
                assert client.initialized["serverInfo"]["name"] == "noisy"

    @pytest.mark.case("FR-01", "FR-06")
    @pytest.mark.parametrize(
        "wrong",
        [
            '{"jsonrpc":"2.0","id":$ID}',
            '{"jsonrpc":"2.0","id":$ID,"result":{},"error":{"code":1,"message":"both"}}',
            '{"jsonrpc":"2.0","id":$ID,"error":"text"}',
            '{"jsonrpc":"2.0","id":$ID,"error":{"code":"x","message":"m"}}',
            '{"jsonrpc":"2.0","id":$ID,"result":{"x":}}',
            '{"jsonrpc":"2.0","id":$ID,"result":{"x":NaN}}',
            '{"jsonrpc":"2.0","id":$ID,"result":{"x":"\t"}}',
            '{"jsonrpc":"2.0","id":$ID,"result":{',
            '{"jsonrpc":"2.0","id":$ID,"id":$ID,"result":{}}',
            '{"jsonrpc":"2.0","result":{"x":},"id":$ID}',
        ],
    )
    async def test_answer_that_is_none_ends_its_call_with_an_error(self, bridge: Bridge, wrong: str) -> None:
        """Whose it is can be told, so there is no need to wait for a time limit."""
        async with session(bridge.port) as client:
            answer = await client.post(run(3, {"line": wrong}))
            assert answer.last["id"] == 3
            assert answer.error["code"] == -32603
            await still_works(client)


async def _rest(stream: Exchange) -> Any:
    """Every message of a stream up to its end."""
    while (event := await stream.block()) is not None:
        if event.data:
            yield event.message


SIZES = (65_535, 65_536, 65_537, 131_072, MIB, 16 * MIB)
AFTER = '{"jsonrpc":"2.0","method":"notifications/small","params":{"n":1}}'


class TestLongLines:
    @pytest.mark.case("FR-02")
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("accept", [JSON_ONLY, SSE_ONLY])
    async def test_long_answer_arrives_whole_and_what_follows_it_too(
        self, own: Bridge, size: int, accept: str
    ) -> None:
        async with session(own.port) as client, client.listening() as stream:
            await stream.head()
            answer = await client.post(run(4, {"sized": [size, AFTER]}), accept)
            (payload,) = answer.payloads
            assert len(payload) == size
            assert payload.startswith(b'{"jsonrpc":"2.0","id":4,"result":{"x":"abcdefg\xc3\xa9abc')
            assert json.loads(payload)["result"]["x"].rstrip("z").strip("abcdefgé") == ""
            assert (await stream.message())["params"] == {"n": 1}
            await still_works(client)

    @pytest.mark.case("FR-02")
    @pytest.mark.parametrize("size", SIZES)
    async def test_long_answer_of_a_shared_child_arrives_whole(self, shared: Bridge, size: int) -> None:
        """There the id is not the child's own, and the line is put together anew."""
        async with session(shared.port) as client, client.listening() as stream:
            await stream.head()
            answer = await client.post(run("a string", {"sized": [size, AFTER]}))
            assert answer.last["id"] == "a string"
            assert len(answer.result["x"].encode()) > size - 100
            assert answer.result["x"].rstrip("z").strip("abcdefgé") == ""
            assert (await stream.message())["params"] == {"n": 1}

    @pytest.mark.case("FR-02")
    async def test_long_modern_answer_arrives_whole(self, own: Bridge) -> None:
        answer = await Modern(own.port).run({"sized": [MIB, AFTER]})
        assert len(answer.result["x"].encode()) > MIB - 100
        await still_works(Modern(own.port))

    @pytest.mark.case("FR-02")
    @pytest.mark.parametrize("size", SIZES)
    async def test_long_request_arrives_whole(self, bridge: Bridge, size: int) -> None:
        async with session(bridge.port) as client:
            await _expect_echo(client, call(8, "echo", {"x": ""}), size)

    @pytest.mark.case("FR-02")
    async def test_long_modern_request_arrives_whole(self, own: Bridge) -> None:
        client = Modern(own.port)
        body = client.body(call(8, "echo", {"x": ""}))
        answer = await client.post(body.replace(b'{"x":""}', b'{"x":"%b"}' % (b"q" * MIB)))
        assert answer.result["x-arguments"]["x"] == "q" * MIB

    @pytest.mark.case("FR-02")
    @pytest.mark.parametrize("size", SIZES)
    async def test_long_notification_comes_before_the_answer_it_precedes(
        self, bridge: Bridge, size: int
    ) -> None:
        async with session(bridge.port) as client:
            params = '{"progressToken":$TOKEN,"progress":1,"message":"$PAD"}'
            note = f'{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}'
            first, last = (await client.run({"padded": [size, note]}, token="t")).messages
            assert first["params"] == {"progressToken": "t", "progress": 1, "message": "x" * size}
            assert said(last["result"]) == "done"

    @pytest.mark.case("FR-02")
    async def test_line_of_the_most_bytes_passes_and_one_more_fails_its_call_only(
        self, strict: Bridge
    ) -> None:
        async with session(strict.port) as client, client.listening() as stream:
            await stream.head()
            most = await client.post(run(6, {"sized": [MIB, AFTER]}))
            assert len(most.body) == MIB
            over = await client.post(run(7, {"sized": [MIB + 1, AFTER]}))
            assert over.last["id"] == 7
            assert over.error["code"] == -32603
            assert str(MIB + 1) in over.error["message"]
            assert [(await stream.message())["params"] for _ in range(2)] == [{"n": 1}, {"n": 1}]
            await still_works(client)

    @pytest.mark.case("FR-02")
    @pytest.mark.parametrize(
        "line",
        [
            '{"jsonrpc":"2.0","id":$ID,"result":{"x":"$PAD"}}',
            '{"id":$ID,"jsonrpc":"2.0","result":{"x":"$PAD"}}',
            '{"jsonrpc":"2.0","result":{"x":"$PAD"},"id":$ID}',
            '{"result":{"x":"$PAD"},"jsonrpc":"2.0","id":$ID}',
            '{"result":{"x":"$PAD"},"id":$ID,"jsonrpc":"2.0"}',
        ],
    )
    @pytest.mark.parametrize("request_id", [7, "seven"])
    async def test_call_whose_answer_is_too_long_is_told_so_wherever_the_id_stands(
        self, strict: Bridge, line: str, request_id: int | str
    ) -> None:
        async with session(strict.port) as client:
            answer = await client.post(run(request_id, {"padded": [2 * MIB, line]}))
            assert answer.last["id"] == request_id
            assert answer.error["code"] == -32603
            assert "over the limit" in answer.error["message"], "not by the time limit"

    @pytest.mark.case("FR-02")
    async def test_call_whose_overlong_answer_names_nobody_ends_by_the_time_limit(
        self, hurried: Bridge
    ) -> None:
        hidden = '{"result":{"a":"$PAD"},"id":$ID,"jsonrpc":"2.0","z":"$PAD"}'
        async with session(hurried.port) as client:
            answer = await client.run({"padded": [MIB, hidden]})
            assert answer.error["code"] == -32603
            await still_works(client)

    @pytest.mark.case("FR-02")
    async def test_endless_line_does_not_fill_the_memory(self, strict: Bridge) -> None:
        async with session(strict.port) as client:
            await still_works(client)
            before = strict.high_water()
            answer = await client.post(run(7, {"sized": [64 * MIB, AFTER]}))
            assert answer.error["code"] == -32603
            assert strict.high_water() - before < 16 * MIB
            await still_works(client)


class TestSplitCharacters:
    @pytest.mark.case("FR-03")
    @pytest.mark.parametrize("accept", [JSON_ONLY, SSE_ONLY])
    async def test_answer_that_comes_byte_by_byte_keeps_its_characters(
        self, bridge: Bridge, accept: str
    ) -> None:
        async with session(bridge.port) as client:
            answer = await client.run({"trickle": text(SAYING)}, accept=accept)
            assert said(answer.result) == SAYING
            assert SAYING.encode() in answer.payloads[0]

    @pytest.mark.case("FR-03")
    async def test_modern_answer_that_comes_byte_by_byte_keeps_its_characters(self, own: Bridge) -> None:
        assert said((await Modern(own.port).run({"trickle": text(SAYING)})).result) == SAYING

    @pytest.mark.case("FR-03")
    async def test_notification_that_comes_byte_by_byte_keeps_its_characters(self, bridge: Bridge) -> None:
        note = dump(notification("notifications/x", {"x": SAYING})).decode()
        async with session(bridge.port) as client, client.listening() as stream:
            await stream.head()
            await client.run({"trickle": note})
            assert (await stream.message())["params"] == {"x": SAYING}

    @pytest.mark.case("FR-03")
    async def test_body_that_comes_byte_by_byte_keeps_its_characters(self, bridge: Bridge) -> None:
        async with session(bridge.port) as client:
            body = dump(call(1, "echo", {"x": SAYING}))
            start = body.index(SAYING.encode())
            pieces = [body[:start], *(bytes([byte]) for byte in body[start:])]
            answer = await ask_in_chunks(client.port, client.posting(body), pieces, pause=0.005)
            assert answer.result["x-arguments"] == {"x": SAYING}
            assert SAYING.encode() in (await client.received(b'"echo"'))[-1]

    @pytest.mark.case("FR-03")
    async def test_modern_body_that_comes_byte_by_byte_keeps_its_characters(self, own: Bridge) -> None:
        client = Modern(own.port)
        body = client.body(call(1, "echo", {"x": SAYING}))
        start = body.index(SAYING.encode())
        pieces = [body[:start], *(bytes([byte]) for byte in body[start:])]
        answer = await ask_in_chunks(client.port, client.posting(body), pieces, pause=0.005)
        assert answer.result["x-arguments"] == {"x": SAYING}


class TestSeparators:
    @pytest.mark.case("FR-04")
    @pytest.mark.parametrize("accept", [JSON_ONLY, SSE_ONLY])
    async def test_separator_in_an_answer_neither_cuts_it_nor_goes_out_raw(
        self, bridge: Bridge, accept: str
    ) -> None:
        async with session(bridge.port) as client:
            answer = await client.run({"line": text(SEPARATORS)}, accept=accept)
            assert said(answer.result) == SEPARATORS
            _expect_no_separator(answer.body)

    @pytest.mark.case("FR-04")
    async def test_separator_in_a_modern_answer_neither_cuts_it_nor_goes_out_raw(self, own: Bridge) -> None:
        answer = await Modern(own.port).run(line(text(SEPARATORS)), progress(1), accept=SSE_ONLY)
        assert said(answer.result) == SEPARATORS
        _expect_no_separator(answer.body)

    @pytest.mark.case("FR-04")
    async def test_separator_in_a_notification_neither_cuts_it_nor_goes_out_raw(self, bridge: Bridge) -> None:
        note = notification("notifications/x", {SEPARATORS: SEPARATORS})
        async with session(bridge.port) as client, client.listening() as stream:
            await stream.head()
            await client.run(line(note))
            event = await stream.event()
            assert event.message["params"] == {SEPARATORS: SEPARATORS}
            _expect_no_separator(event.data)

    @pytest.mark.case("FR-04")
    async def test_separator_in_an_error_and_in_progress_survives(self, bridge: Bridge) -> None:
        error = {"code": -31999, "message": SEPARATORS, "data": {"x": SEPARATORS}}
        params = (
            dump({"progress": 1, "message": SEPARATORS}).decode().replace("{", '{"progressToken":$TOKEN,', 1)
        )
        async with session(bridge.port) as client:
            answer = await client.run(
                line(f'{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}'),
                line(f'{{"jsonrpc":"2.0","id":$ID,"error":{dump(error).decode()}}}'),
                token=SEPARATORS,
            )
            first, last = answer.messages
            assert first["params"] == {"progressToken": SEPARATORS, "progress": 1, "message": SEPARATORS}
            assert last["error"] == error
            _expect_no_separator(answer.body)

    @pytest.mark.case("FR-04")
    async def test_separator_in_a_request_reaches_the_child_on_one_line(self, bridge: Bridge) -> None:
        async with session(bridge.port) as client:
            echoed = await client.result(call(SEPARATORS, "echo", {SEPARATORS: SEPARATORS}))
            assert echoed["x-arguments"] == {SEPARATORS: SEPARATORS}
            (sent,) = [one for one in await client.received(b'"echo"') if b"u2028" in one]
            _expect_no_separator(sent)

    @pytest.mark.case("FR-04")
    async def test_separator_in_a_modern_request_reaches_the_child_on_one_line(self, own: Bridge) -> None:
        echoed = await Modern(own.port).result(call(1, "echo", {"x": SEPARATORS}))
        assert echoed["x-arguments"] == {"x": SEPARATORS}


def _expect_no_separator(sent: bytes) -> None:
    for separator in SEPARATORS.encode().split(b"a")[1:]:
        assert separator not in sent
    text = sent.decode()
    assert not {"\u2028", "\u2029", "\u0085"} & set(text)
    assert text.splitlines() == text.split("\n")[: len(text.splitlines())]


BAD_UTF8 = {
    "cp1252": b"\x97",
    "utf-16 mark": b"\xff\xfe",
    "cut short": b"\xf0\x9f\x8e",
    "continuation": b"\x80",
    "overlong": b"\xc0\xaf",
    "surrogate": b"\xed\xa0\x80",
    "beyond": b"\xf5\x80\x80\x80",
}


class TestInvalidUtf8:
    @pytest.mark.case("FR-06")
    @pytest.mark.parametrize("bad", BAD_UTF8.values(), ids=BAD_UTF8)
    @pytest.mark.parametrize("accept", [JSON_ONLY, SSE_ONLY])
    async def test_answer_with_a_bad_byte_ends_its_call_only(
        self, bridge: Bridge, bad: bytes, accept: str
    ) -> None:
        head = b'{"jsonrpc":"2.0","id":'.hex() + "$ID" + b',"result":{"x":"'.hex()
        async with session(bridge.port) as client:
            answer = await client.post(run(1, {"hex": head + (bad + b'"}}\n').hex()}), accept)
            assert answer.last["id"] == 1
            assert answer.error["code"] == -32603
            await still_works(client)

    @pytest.mark.case("FR-06")
    async def test_notification_with_a_bad_byte_is_dropped_and_logged(self, own: Bridge) -> None:
        async with session(own.port) as client, client.listening() as stream:
            await stream.head()
            note = dump(notification("notifications/bad-byte", {"x": "@"})).replace(b"@", b"\x97")
            good = dump(notification("notifications/good"))
            await client.run({"hex": (note + b"\n" + good + b"\n").hex()})
            assert (await stream.message())["method"] == "notifications/good"
        own.expect_log("notifications/bad-byte")

    @pytest.mark.case("FR-06", "FR-02", "RT-01")
    @pytest.mark.parametrize("params", ['{"x":"@"}', '{"x":"$PAD"}'], ids=["bad byte", "too long"])
    async def test_question_that_cannot_be_read_is_answered_with_an_error(
        self, strict: Bridge, params: str
    ) -> None:
        """No client is asked; the server is told so, for it may wait for ever."""
        asked = f'{{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{params}}}'
        bad = {"hex": (asked.encode().replace(b"@", b"\x97") + b"\n").hex()}
        step = {"padded": [2 * MIB, asked]} if "$PAD" in params else bad
        async with session(strict.port, capabilities={"elicitation": {}}) as client:
            answer = await client.run(step, {"hear": '"q"'})
            assert [said(one["result"]) for one in answer.messages if "method" not in one] == ["done"]
            (reply,) = await client.heard(b'"id":"q"')
            assert "error" in reply

    @pytest.mark.case("FR-06")
    async def test_modern_answer_with_a_bad_byte_ends_its_call_only(self, own: Bridge) -> None:
        head = b'{"jsonrpc":"2.0","id":'.hex() + "$ID" + b',"result":{"x":"'.hex()
        answer = await Modern(own.port).run({"hex": head + b'\x97"}}\n'.hex()})
        assert answer.error["code"] == -32603
        await still_works(Modern(own.port))

    @pytest.mark.case("FR-06")
    @pytest.mark.parametrize("bad", BAD_UTF8.values(), ids=BAD_UTF8)
    async def test_body_with_a_bad_byte_is_refused_and_the_child_never_sees_it(
        self, bridge: Bridge, bad: bytes
    ) -> None:
        async with session(bridge.port) as client:
            inside = dump(call(1, "bad-body", {"x": "@"})).replace(b"@", bad)
            for body in (bad + dump(call(1, "bad-body")), inside, dump(call(1, "bad-body")) + bad):
                answer = await client.post(body)
                assert (answer.status, answer.error["code"], answer.last["id"]) == (400, -32700, None)
            assert await client.received(b"bad-body") == []
            await still_works(client)

    @pytest.mark.case("FR-06")
    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32-be", "cp1252"])
    async def test_body_in_another_encoding_is_refused(self, own: Bridge, encoding: str) -> None:
        async with session(own.port) as client:
            text = json.dumps(call(1, "bad-body", {"x": "é"}), ensure_ascii=False)
            answer = await client.post(text.encode(encoding))
            assert (answer.status, answer.error["code"], answer.last["id"]) == (400, -32700, None)
            assert await client.received(b"bad-body") == []


MALFORMED = (
    b"{not json",
    b"",
    b"{}",
    b'"x"',
    # And their neighbours.
    b"null",
    b"42",
    b"[]",
    b"[1]",
    b"\x00",
    b"{",
    b'{"jsonrpc":"2.0"}',
    b'{"jsonrpc":"2.0","id":1}',
    b'{"jsonrpc":"1.0","id":1,"method":"malformed"}',
    b'{"jsonrpc":2.0,"id":1,"method":"malformed"}',
    b'{"id":1,"method":"malformed"}',
    b'{"jsonrpc":"2.0","id":1,"method":5}',
    b'{"jsonrpc":"2.0","id":1,"method":null}',
    b'{"jsonrpc":"2.0","id":1.5,"method":"malformed"}',
    b'{"jsonrpc":"2.0","id":null,"method":"malformed"}',
    b'{"jsonrpc":"2.0","id":true,"method":"malformed"}',
    b'{"jsonrpc":"2.0","id":{},"method":"malformed"}',
    b'{"jsonrpc":"2.0","id":[1],"method":"malformed"}',
    b'{"jsonrpc":"2.0","id":1,"method":"malformed","params":7}',
    b'{"jsonrpc":"2.0","id":1,"method":"malformed","params":{"x":NaN}}',
    b'{"jsonrpc":"2.0","id":1,"method":"malformed","params":{"x":01}}',
    b'{"jsonrpc":"2.0","id":1,"method":"malformed","params":{"x":1,}}',
    b"{'jsonrpc':'2.0','id':1,'method':'malformed'}",
    b'{"jsonrpc":"2.0","id":1,"method":"malformed"} x',
    b'{"jsonrpc":"2.0","id":1,"method":"malformed"}{"jsonrpc":"2.0","id":2,"method":"malformed"}',
    b'{"jsonrpc":"2.0","id":1,"method":"malformed"}\n{"jsonrpc":"2.0","id":2,"method":"malformed"}',
    b'{"jsonrpc":"2.0","id":1,"method":"malformed","params":{"x":"\n"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"malformed","method":"malformed"}',
    b'{"jsonrpc":"2.0","id":1,"id":2,"method":"malformed"}',
    b'{"jsonrpc":"2.0","id":1,"method":"malformed","result":{}}',
    b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"malformed"}}',
)


class TestMalformedInput:
    @pytest.mark.case("FR-07")
    @pytest.mark.parametrize("body", MALFORMED)
    async def test_malformed_body_is_refused_and_harms_no_other_session(
        self, shared: Bridge, body: bytes
    ) -> None:
        gate = f"other-{MALFORMED.index(body)}"
        async with (
            session(shared.port) as culprit,
            session(shared.port) as other,
            other.posted(run(1, {"wait": gate})) as running_call,
        ):
            for caller in (culprit, Session(shared.port)):
                answer = await caller.post(body)
                assert answer.status == 400
                assert answer.error["code"] in (-32700, -32600)
            await other.open(gate)
            assert said((await running_call.answer()).result) == "done"

    @pytest.mark.case("FR-07")
    async def test_body_that_breaks_off_is_forgotten(self, bridge: Bridge) -> None:
        whole = dump(call(1, "half-a-body", {"x": "y" * 500}))
        lengths = [[("Content-Length", "500")], [("Transfer-Encoding", "chunked")]]
        async with session(bridge.port) as culprit, session(bridge.port) as other:
            for length in lengths:
                async with dial(bridge.port) as exchange:
                    exchange.say(head_of("POST", "/mcp", [*culprit.posting(b"{}"), *length]))
                    framed = b"c8\r\n" + whole[:200] + b"\r\n" if length[0][1] == "chunked" else whole[:200]
                    exchange.say(framed)
                    await exchange.flush()
                    await still_works(other)  # the bridge is in the midst of that body now
                    exchange.reset()
            assert await other.received(b"half-a-body") == []
            assert await culprit.received(b"half-a-body") == []

    @pytest.mark.case("FR-07")
    @pytest.mark.parametrize(
        "broken", [b"zz\r\nbroken-chunk\r\n", b"-1\r\n\r\n", b"2\r\n{}junk\r\n0\r\n\r\n"]
    )
    @pytest.mark.parametrize("apart", [False, True])
    async def test_body_in_broken_chunks_is_refused(self, bridge: Bridge, broken: bytes, apart: bool) -> None:
        """With the head, and when the bridge has begun to read the body."""
        async with session(bridge.port) as client:
            head = head_of("POST", "/mcp", [*client.posting(b""), ("Transfer-Encoding", "chunked")])
            async with dial(bridge.port) as exchange:
                exchange.say(head if apart else head + broken)
                if apart:
                    await exchange.flush()
                    await still_works(client)
                    exchange.say(broken)
                assert await exchange.head() == 400
            await still_works(client)

    @pytest.mark.case("FR-07")
    async def test_child_reads_nothing_but_whole_messages(self, bridge: Bridge) -> None:
        async with session(bridge.port) as client:
            for body in MALFORMED:
                await client.post(body)
            await client.post(call("last", "echo"))
            assert await client.received(b"malformed") == []
            for one in await client.received(b""):
                message = json.loads(one)
                assert message["jsonrpc"] == "2.0"
                assert "method" in message or "id" in message

    @pytest.mark.case("FR-07")
    @pytest.mark.parametrize("body", [b"{not json", b"", b"{}", b'"x"', b"[]"])
    async def test_malformed_body_without_a_session_starts_nothing(self, own: Bridge, body: bytes) -> None:
        before = await sessions(own.port)
        answer = await ask(own.port, "POST", [("Content-Type", "application/json"), ("Accept", BOTH)], body)
        assert answer.status == 400
        assert answer.error["code"] in (-32700, -32600)
        assert await sessions(own.port) == before


class TestNewlinesInBodies:
    BODY = call("pretty", "echo", {"x": "a\nb\r\n  c", "y": [1, {"z": None}], "": "  "})

    @pytest.mark.case("FR-08")
    @pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r", b"\n\n", b"\n\t"])
    @pytest.mark.parametrize("accept", [JSON_ONLY, SSE_ONLY])
    async def test_request_on_many_lines_is_one_line_to_the_child(
        self, bridge: Bridge, newline: bytes, accept: str
    ) -> None:
        async with session(bridge.port) as client:
            body = json.dumps(self.BODY, indent=4).encode().replace(b"\n", newline)
            await self._expect_one_line(client, body, accept)

    @pytest.mark.case("FR-08")
    @pytest.mark.parametrize(("before", "after"), [(b"", b"\n\n"), (b" \r\n\t ", b""), (b"\n", b"\r\n")])
    async def test_blanks_around_a_request_are_none_to_the_child(
        self, bridge: Bridge, before: bytes, after: bytes
    ) -> None:
        async with session(bridge.port) as client:
            await self._expect_one_line(client, before + dump(self.BODY) + after, BOTH)

    async def _expect_one_line(self, client: Session, body: bytes, accept: str) -> None:
        before = await client.received_in_all()
        answer = await client.post(body, accept)
        assert answer.last["id"] == "pretty"
        assert answer.result["x-arguments"] == self.BODY["params"]["arguments"]
        assert await client.received_in_all() == before + 2
        assert (await client.heard(b'"echo"'))[-1]["params"] == self.BODY["params"]

    @pytest.mark.case("FR-08", "ID-03")
    async def test_numbers_and_escapes_of_a_request_on_many_lines_stay_as_written(
        self, bridge: Bridge
    ) -> None:
        members = [
            rb'"n": 1.0',
            rb'"m": -0',
            rb'"e": 1E5',
            rb'"s": "\u00e9\/\ud83d\ude00 \\n  x"',
            rb'"l": [ 1e400 ]',
        ]
        body = b'{\n  "jsonrpc": "2.0",\r\n  "id": 1, "method": "tools/call",\n "params": {"name": "echo",\n'
        body += b'  "arguments": {\n' + b",\r\n".join(members) + b"\n}\n}\n}"
        async with session(bridge.port) as client:
            answer = await client.post(body)
            tight = b"{" + b",".join(members).replace(b'": ', b'":').replace(b"[ 1e400 ]", b"[1e400]") + b"}"
            assert b'"x-arguments":' + tight + b"}" in answer.body

    @pytest.mark.case("FR-08")
    @pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
    async def test_modern_request_on_many_lines_is_one_line_to_the_child(
        self, own: Bridge, newline: bytes
    ) -> None:
        client = Modern(own.port)
        whole = client.enveloped(self.BODY)
        body = json.dumps(whole, indent=2).encode().replace(b"\n", newline)
        answer = await client.post(body)
        assert answer.result["x-arguments"] == self.BODY["params"]["arguments"]

    @pytest.mark.case("FR-08")
    async def test_notification_and_answer_on_many_lines_are_one_line_each(self, own: Bridge) -> None:
        asked = request("q", "roots/list")
        async with session(own.port, capabilities={"roots": {}}) as client:
            async with client.posted(run(1, line(asked), {"hear": '"q"'}), SSE_ONLY) as stream:
                assert (await stream.message())["id"] == "q"
                note = notification("notifications/pretty", {"x": [1, 2]})
                reply = {"jsonrpc": "2.0", "id": "q", "result": {"roots": []}}
                for message in (note, reply):
                    assert (await client.post(json.dumps(message, indent=2).encode())).status == 202
                assert said((await stream.message())["result"]) == "done"
            assert await client.heard(b"notifications/pretty") == [note]
            assert await client.heard(b'"roots":[]') == [reply]

    @pytest.mark.case("FR-08")
    async def test_child_that_ends_its_lines_with_crlf_is_understood(self, bridge: Bridge) -> None:
        async with session(bridge.port) as client:
            answer = await client.run({"line": text("crlf") + "\r"}, accept=SSE_ONLY)
            assert said(answer.result) == "crlf"
            assert b"\r" not in answer.body


class TestOldClients:
    """The same over HTTP+SSE, where everything goes on one stream."""

    @pytest.mark.case("FR-01", "FR-06")
    async def test_noise_and_bad_bytes_harm_no_old_client(self, own: Bridge) -> None:
        noise = {"hex": b"".join(one + b"\n" for one in NOISE).hex()}
        head = b'{"jsonrpc":"2.0","id":'.hex() + "$ID" + b',"result":{"x":"'.hex()
        async with old(own.port) as client:
            answer = await client.run(noise, line(text("still here")), noise)
            assert [said(one["result"]) for one in answer.messages] == ["still here"]
            assert (await client.run({"hex": head + b'\x97"}}\n'.hex()})).error["code"] == -32603
            refused = await client.post(b"\xff\xfe" + dump(call(1, "bad-body")))
            assert (refused.status, refused.error["code"], refused.last["id"]) == (400, -32700, None)
            assert await client.received(b"bad-body") == []
            await still_works(client)

    @pytest.mark.case("FR-02")
    @pytest.mark.parametrize("size", SIZES)
    async def test_long_messages_of_an_old_client_arrive_whole(self, own: Bridge, size: int) -> None:
        async with old(own.port) as client:
            answer = await client.post(run(4, {"sized": [size, AFTER]}))
            assert len(answer.payloads[-1]) == size
            await _expect_echo(client, call(8, "echo", {"x": ""}), size)

    @pytest.mark.case("FR-03")
    async def test_characters_cut_in_two_survive_for_an_old_client(self, own: Bridge) -> None:
        async with old(own.port) as client:
            assert said((await client.run({"trickle": text(SAYING)})).result) == SAYING
            body = dump(call(1, "echo", {"x": SAYING}))
            start = body.index(SAYING.encode())
            pieces = [body[:start], *(bytes([byte]) for byte in body[start:])]
            headers = client.posting(body)
            taken = await ask_in_chunks(client.port, headers, pieces, pause=0.005, path=client.address)
            assert taken.status == 202
            assert (await client.received(SAYING.encode()))[-1].endswith(dump({"x": SAYING}) + b"}}")

    @pytest.mark.case("FR-04")
    async def test_separators_neither_cut_the_stream_of_an_old_client_nor_go_out_raw(
        self, own: Bridge
    ) -> None:
        async with old(own.port) as client:
            answer = await client.post(run(SEPARATORS, line(text(SEPARATORS))))
            assert said(answer.result) == SEPARATORS
            _expect_no_separator(answer.body)
            echoed = await client.result(call(1, "echo", {SEPARATORS: SEPARATORS}))
            assert echoed["x-arguments"] == {SEPARATORS: SEPARATORS}
            _expect_no_separator((await client.received(b'"echo"'))[-1])

    @pytest.mark.case("FR-07", "FR-08")
    async def test_child_reads_nothing_but_whole_messages_of_an_old_client(self, own: Bridge) -> None:
        async with old(own.port) as client:
            for body in MALFORMED:
                answer = await client.post(body)
                assert answer.status == 400, body
                assert answer.error["code"] in (-32700, -32600)
            assert await client.received(b"malformed") == []
            pretty = json.dumps(call("pretty", "echo", {"x": "a\nb"}), indent=2).replace("\n", "\r\n")
            assert (await client.post(pretty.encode())).result["x-arguments"] == {"x": "a\nb"}
            assert len(await client.received(b'"pretty"')) == 1


async def _expect_echo(client: Caller, message: dict[str, Any], size: int) -> None:
    """The child gets an argument that fills the whole request up to `size` bytes."""
    room = size - len(dump(message))
    message["params"]["arguments"]["x"] = "y" * room
    assert len(dump(message)) == size
    answer = await client.post(message)
    assert answer.result["x-arguments"]["x"] == "y" * room


async def test_bridge_without_work_ends_cleanly(own: Bridge) -> None:
    """The fixture's own promise: what it says of the end is asked of every bridge here."""
    await asyncio.gather(*(_open_and_leave(own.port) for _ in range(3)))


async def _open_and_leave(port: int) -> None:
    await connect(port)
