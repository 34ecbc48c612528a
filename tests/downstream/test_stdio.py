"""The client on stdin and stdout, played by hand, before a server that is played by hand."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from support.scripted_bridge import (
    PREFIX,
    SUBSCRIPTION,
    both_eras,
    call,
    envelope,
    initialize,
    initialized,
    modern,
    notification,
    request,
)
from support.scripted_server import LIMIT, Heard, Json, ScriptedServer, ScriptedSource, dump

from bridge.config import Command, Config, Downstream, Limits, Timing
from bridge.core.lines import Overlong
from bridge.downstream import stdio
from bridge.downstream.stdio import StdioPort
from bridge.errors import ServerFault
from bridge.relay import Relay

PARSE, INVALID, UNKNOWN, PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
BATCHING = "2025-03-26"


@dataclass
class Client:
    """The other ends of the bridge's stdin and stdout."""

    port: StdioPort
    source: ScriptedSource
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    serving: asyncio.Task[None]
    closed: bool = False

    def says(self, *messages: Json | list[Json] | bytes) -> None:
        """Write these as lines, in one write."""
        self.writer.write(b"".join(_text(message) + b"\n" for message in messages))

    async def line(self) -> bytes:
        async with asyncio.timeout(LIMIT):
            line = await self.reader.readline()
        assert line.endswith(b"\n"), f"stdout ended with {line!r}"
        return line[:-1]

    async def hears(self) -> Json:
        message: Json = json.loads(await self.line())
        assert message.pop("jsonrpc") == "2.0"
        return message

    async def refused(self, request_id: int | str | None) -> int:
        """The next message is an error under this id; its code."""
        message = await self.hears()
        assert message["id"] == request_id, message
        assert type(message["id"]) is type(request_id)
        code: int = message["error"]["code"]
        return code

    async def hears_nothing_before_a_ping(self, server: ScriptedServer) -> None:
        """Whatever was said before had no answer: this one comes first."""
        self.says(request("mark", "ping"))
        server.answers(await server.hears("ping"))
        assert await self.hears() == {"id": "mark", "result": {}}

    async def calls(self, server: ScriptedServer, message: Json) -> Heard:
        self.says(message)
        return await server.hears(message["method"])

    async def opens(self, revision: str = "2025-11-25") -> ScriptedServer:
        """Open the legacy session."""
        self.says(initialize(revision))
        server = await self.source.next()
        server.answers(await server.hears("initialize"), initialized(revision))
        assert (await self.hears())["result"]["protocolVersion"] == revision
        self.says(notification("initialized"))
        await server.hears("notifications/initialized")
        return server

    def ends(self) -> None:
        self.writer.close()

    async def served(self) -> None:
        async with asyncio.timeout(LIMIT):
            await self.serving

    async def close(self) -> None:
        """What the process does in the end, if `serve` has returned or not."""
        if not self.closed:
            self.closed = True
            self.serving.cancel()
            await asyncio.wait([self.serving])
            await self.port.close()


def _text(message: Json | list[Json] | bytes) -> bytes:
    if isinstance(message, bytes):
        return message
    if isinstance(message, list):
        return b"[%b]" % b",".join(_text(member) for member in message)
    return dump({"jsonrpc": "2.0", **message})


@asynccontextmanager
async def wrapped(
    *, source: ScriptedSource | None = None, limits: Limits | None = None, timing: Timing | None = None
) -> AsyncIterator[Client]:
    config = Config(
        upstream=Command(argv=("s",)),
        downstream=Downstream.STDIO,
        limits=limits or Limits(),
        timing=timing or Timing(),
    )
    source = source or ScriptedSource()
    (stdin, writing), (reading, stdout) = socket.socketpair(), socket.socketpair()
    async with Relay(config, source) as relay:
        both_eras(relay)
        port = StdioPort(relay, stdin.detach(), stdout.detach())
        _, writer = await asyncio.open_connection(sock=writing)
        reader, other = await asyncio.open_connection(sock=reading)
        serving = asyncio.create_task(port.serve())
        client = Client(port, source, reader, writer, serving)
        try:
            yield client
        finally:
            await client.close()
            writer.close()
            other.close()
            assert serving.cancelled() or serving.exception() is None


async def settled() -> None:
    """Let the loop do what it can do at once."""
    for _ in range(10):
        await asyncio.sleep(0)


# --- whose era ---


@pytest.mark.spec("SS-10")
async def test_server_is_opened_before_the_client_says_anything() -> None:
    async with wrapped() as client:
        await client.source.next()


@pytest.mark.spec("SS-8")
async def test_enveloped_request_passes_as_it_is_whatever_came_before() -> None:
    async with wrapped() as client:
        server = await client.source.next()
        first = await client.calls(server, modern(1, "tools/list"))
        assert first.raw == dump({"jsonrpc": "2.0", **modern(1, "tools/list")})
        server.answers(first, {"tools": []})
        assert await client.hears() == {"id": 1, "result": {"tools": []}}
        client.says(initialize())
        other = await client.source.next()
        other.answers(await other.hears("initialize"), initialized())
        await client.hears()
        await client.calls(server, modern(2, "tools/list"))
        assert not other.unread, "each era has a server process of its own"


@pytest.mark.spec("SS-8")
async def test_initialize_after_an_unanswered_probe_opens_a_session() -> None:
    async with wrapped() as client:
        server = await client.source.next()
        probe = await client.calls(server, modern("probe", "server/discover"))
        client.says(initialize())
        other = await client.source.next()
        other.answers(await other.hears("initialize"), initialized())
        assert (await client.hears())["id"] == 0
        server.refuses(probe)
        assert await client.refused("probe") == UNKNOWN
        await client.calls(other, request(1, "tools/list"))


@pytest.mark.spec("EV-3")
async def test_request_without_envelope_or_session_is_refused() -> None:
    async with wrapped() as client:
        server = await client.source.next()
        client.says(request(1, "tools/list"), call("2"))
        assert [await client.refused(1), await client.refused("2")] == [PARAMS, PARAMS]
        await client.hears_nothing_before_a_ping(server)


@pytest.mark.parametrize("key", ["clientInfo", "clientCapabilities", "logLevel"])
async def test_envelope_without_a_version_is_refused_also_in_a_session(key: str) -> None:
    async with wrapped() as client:
        server = await client.opens()
        client.says(modern(1, "tools/list", meta={f"{PREFIX}{key}": {}}))
        assert await client.refused(1) == PARAMS
        await client.hears_nothing_before_a_ping(server)


async def test_envelope_with_escaped_slashes_is_one() -> None:
    async with wrapped() as client:
        server = await client.source.next()
        text = dump({"jsonrpc": "2.0", **modern(1, "tools/list")}).replace(b"/", b"\\/")
        client.says(text)
        assert (await server.hears("tools/list")).raw == text


@pytest.mark.parametrize("method", ["initialize", "ping"])
async def test_modern_request_for_a_removed_method_never_reaches_the_server(method: str) -> None:
    async with wrapped() as client:
        server = await client.source.next()
        client.says(modern(1, method))
        assert await client.refused(1) == UNKNOWN
        await client.hears_nothing_before_a_ping(server)


async def test_requests_sent_while_initialize_is_pending_pass_in_order() -> None:
    async with wrapped() as client:
        server = await client.source.next()
        client.says(initialize(), notification("initialized"), request(1, "tools/list"))
        opening = await server.hears("initialize")
        await server.hears("notifications/initialized")
        await server.hears("tools/list")
        server.answers(opening, initialized())
        assert (await client.hears())["id"] == 0


async def test_second_initialize_is_passed_on_unless_the_first_is_pending() -> None:
    async with wrapped() as client:
        server = await client.source.next()
        opening = await client.calls(server, initialize())
        client.says({**initialize(), "id": "early"})
        assert await client.refused("early") == INVALID
        server.answers(opening, initialized())
        await client.hears()
        server.refuses(await client.calls(server, {**initialize(), "id": "late"}), INVALID)
        assert await client.refused("late") == INVALID
        await client.calls(server, request(1, "tools/list"))


async def test_refused_initialize_opens_nothing_and_can_be_tried_again() -> None:
    async with wrapped() as client:
        server = await client.source.next()
        server.refuses(await client.calls(server, initialize()), PARAMS)
        assert await client.refused(0) == PARAMS
        client.says(request(1, "tools/list"))
        assert await client.refused(1) == PARAMS
        server.answers(await client.calls(server, initialize()), initialized())
        assert "result" in await client.hears()


async def test_notification_without_a_session_is_not_passed_on() -> None:
    async with wrapped() as client:
        server = await client.source.next()
        client.says(notification("initialized"), notification("roots/list_changed"))
        await client.hears_nothing_before_a_ping(server)


# --- ids ---

IDS: list[int | str] = [0, -1, "0", "1", "", "007", "6f2c0f5e-7a3d", "x" * 4096, "日本", 2**31, 2**53 + 1]


@pytest.mark.case("ID-01")
@pytest.mark.parametrize("request_id", IDS, ids=repr)
async def test_id_keeps_value_and_type_both_ways(request_id: int | str) -> None:
    async with wrapped() as client:
        server = await client.opens()
        asked = await client.calls(server, request(request_id, "tools/list"))
        assert repr(asked.id) == repr(request_id)
        server.answers(asked)
        assert repr((await client.hears())["id"]) == repr(request_id)
        server.asks("roots/list", request_id)
        assert repr((await client.hears())["id"]) == repr(request_id)
        client.says({"id": request_id, "result": {"roots": []}})
        assert repr((await server.hears()).id) == repr(request_id)


@pytest.mark.case("ID-05")
async def test_id_that_is_in_flight_is_refused_without_touching_the_first() -> None:
    async with wrapped() as client:
        server = await client.opens()
        first = await client.calls(server, call(5, "one"))
        client.says(call(5, "two"))
        assert await client.refused(None) == INVALID
        server.answers(first, {"is": "one"})
        assert await client.hears() == {"id": 5, "result": {"is": "one"}}
        await client.hears_nothing_before_a_ping(server)


@pytest.mark.spec("SS-5")
@pytest.mark.case("ID-06")
async def test_cancelled_call_is_never_answered_though_its_id_is_used_again() -> None:
    async with wrapped() as client:
        server = await client.opens()
        old = await client.calls(server, call(7, "old", token="t"))
        client.says(notification("cancelled", requestId=7))
        assert (await server.hears("notifications/cancelled")).params == {"requestId": 7}
        new = await client.calls(server, call(7, "new"))
        server.progresses(old, 1)
        server.answers(old, {"is": "old"})
        server.answers(new, {"is": "new"})
        assert await client.hears() == {"id": 7, "result": {"is": "new"}}


@pytest.mark.case("ID-06")
async def test_cancellation_of_what_is_not_in_flight_is_not_passed_on() -> None:
    async with wrapped() as client:
        server = await client.opens()
        await client.calls(server, call(7))
        client.says(notification("cancelled", requestId="7"), notification("cancelled", requestId=8))
        await client.hears_nothing_before_a_ping(server)


async def test_modern_request_is_cancelled_without_a_session() -> None:
    async with wrapped() as client:
        server = await client.source.next()
        await client.calls(server, modern(1, "tools/list"))
        client.says(notification("cancelled", requestId=1))
        await server.hears("notifications/cancelled")


async def test_more_requests_than_may_be_in_flight_are_refused() -> None:
    async with wrapped(limits=Limits(in_flight=1)) as client:
        server = await client.opens()
        first = await client.calls(server, call(1))
        client.says(call(2))
        assert await client.refused(2) == INTERNAL
        server.answers(first)
        assert (await client.hears())["id"] == 1


# --- what is no message ---

MALFORMED: list[tuple[bytes, int, int | str | None]] = [
    (b"{not json", PARSE, None),
    (b"\xff\xfe", PARSE, None),
    (b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"\x97"}}', PARSE, None),
    (b"{}", INVALID, None),
    (b'"x"', INVALID, None),
    (b"[]", INVALID, None),
    (b"[1]", INVALID, None),
    (b'{"jsonrpc":"1.0","method":"ping"}', INVALID, None),
    (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', INVALID, None),
    (b'{"jsonrpc":"2.0","id":"a","method":"ping","params":3}', INVALID, "a"),
    (b'{"jsonrpc":"2.0","id":4,"method":"x","params":%b1%b}' % (b"[" * 300, b"]" * 300), INVALID, 4),
]


@pytest.mark.case("FR-06", "FR-07")
@pytest.mark.parametrize(("line", "code", "request_id"), MALFORMED, ids=[str(n) for n in range(11)])
async def test_line_that_is_no_message_is_answered_and_never_passed_on(
    line: bytes, code: int, request_id: int | str | None
) -> None:
    async with wrapped() as client:
        server = await client.opens()
        client.says(line, request("good", "tools/list"))
        assert await client.refused(request_id) == code
        await server.hears("tools/list")


async def test_malformed_line_under_an_id_in_flight_does_not_answer_it() -> None:
    async with wrapped() as client:
        server = await client.opens()
        first = await client.calls(server, call(4))
        client.says(b'{"jsonrpc":"2.0","id":4,"method":"x","params":3}')
        assert await client.refused(None) == INVALID
        server.answers(first)
        assert (await client.hears())["id"] == 4


async def test_blank_lines_and_carriage_returns_are_no_messages() -> None:
    async with wrapped() as client:
        server = await client.opens()
        client.says(b"", b"\r", b"  ", dump({"jsonrpc": "2.0", **request(1, "tools/list")}) + b"\r")
        await server.hears("tools/list")


@pytest.mark.case("FR-07")
async def test_half_a_line_at_the_end_is_dropped() -> None:
    async with wrapped() as client:
        server = await client.opens()
        client.writer.write(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}')
        client.ends()
        await client.served()
        assert not server.unread


@pytest.mark.parametrize("text", [b'{"jsonrpc":"2.0","id":"big",%b}', b'{"jsonrpc":"2.0",%b,"id":"big"}'])
async def test_overlong_request_is_answered_by_its_id(text: bytes) -> None:
    async with wrapped(limits=Limits(line=5000)) as client:
        server = await client.opens()
        client.says(text % (b'"method":"x","params":{"a":"%b"}' % (b"x" * 5000)))
        assert await client.refused("big") == INVALID
        await client.hears_nothing_before_a_ping(server)


async def test_overlong_line_without_an_id_is_answered_without_one() -> None:
    async with wrapped(limits=Limits(line=5000)) as client:
        await client.opens()
        client.says(b"x" * 100_000)
        assert await client.refused(None) == INVALID


async def test_unusable_answer_of_the_client_is_an_error_to_the_server() -> None:
    async with wrapped(limits=Limits(line=5000)) as client:
        server = await client.opens()
        for question in (1, 2):
            server.asks("roots/list", question)
            await client.hears()
        client.says(b'{"jsonrpc":"2.0","id":1,"result":{"method":"%b"}}' % (b"x" * 5000))
        assert await client.refused(None) == INVALID
        client.says(b'{"jsonrpc":"2.0","id":2,"result":{},"error":{"code":1,"message":"m"}}')
        assert await client.refused(None) == INVALID
        refusals = [await server.hears(), await server.hears()]
        assert [(one.id, one.error is not None) for one in refusals] == [(1, True), (2, True)]


async def test_answer_to_what_nobody_asked_is_dropped() -> None:
    async with wrapped() as client:
        server = await client.opens()
        client.says({"id": 9, "result": {}})
        await client.hears_nothing_before_a_ping(server)


# --- batches ---


async def test_batch_is_split_and_its_answers_come_as_one_array() -> None:
    async with wrapped() as client:
        server = await client.opens(BATCHING)
        client.says([call(1), notification("roots/list_changed"), call("2")])
        first = await server.hears("tools/call")
        await server.hears("notifications/roots/list_changed")
        server.answers(await server.hears("tools/call"), {"is": 2})
        server.answers(first, {"is": 1})
        answers = json.loads(await client.line())
        assert [(one["id"], one["result"]["is"]) for one in answers] == [("2", 2), (1, 1)]


async def test_batch_answers_for_malformed_and_repeated_members_too() -> None:
    async with wrapped() as client:
        server = await client.opens(BATCHING)
        client.says([call(1), call(1), {"id": 2, "method": "x", "params": 3}])
        server.answers(await server.hears("tools/call"))
        answers = json.loads(await client.line())
        found = [(one["id"], one.get("error", {}).get("code")) for one in answers]
        assert found == [(None, INVALID), (2, INVALID), (1, None)]


async def test_cancelled_member_of_a_batch_is_left_out() -> None:
    async with wrapped() as client:
        server = await client.opens(BATCHING)
        client.says([call(1), call(2)], notification("cancelled", requestId=1))
        await server.hears("tools/call")
        second = await server.hears("tools/call")
        await server.hears("notifications/cancelled")
        server.answers(second)
        assert [one["id"] for one in json.loads(await client.line())] == [2]


async def test_batch_that_asks_nothing_is_not_answered() -> None:
    async with wrapped() as client:
        server = await client.opens(BATCHING)
        client.says([notification("roots/list_changed")])
        await server.hears("notifications/roots/list_changed")
        await client.hears_nothing_before_a_ping(server)


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-06-18", "2025-11-25"])
async def test_batch_is_refused_where_the_revision_has_none(revision: str) -> None:
    async with wrapped() as client:
        server = await client.opens(revision)
        client.says([call(1)])
        assert await client.refused(None) == INVALID
        await client.hears_nothing_before_a_ping(server)


# --- from the server ---


async def test_notifications_come_before_the_answer_they_precede() -> None:
    async with wrapped() as client:
        server = await client.opens()
        asked = await client.calls(server, call(1, token=9))
        server.progresses(asked, 1)
        server.notes("message", level="info", data="x")
        server.answers(asked)
        heard = [await client.hears() for _ in range(3)]
        assert [one.get("method") for one in heard] == [
            "notifications/progress",
            "notifications/message",
            None,
        ]


async def test_question_reaches_the_client_and_its_answer_the_server() -> None:
    async with wrapped() as client:
        server = await client.opens()
        server.asks("sampling/createMessage", "q", messages=[])
        assert (await client.hears())["params"] == {"messages": []}
        client.says({"id": "q", "result": {"role": "user"}})
        assert (await server.hears()).result == {"role": "user"}


async def test_question_that_the_server_takes_back_is_taken_back_from_the_client() -> None:
    async with wrapped() as client:
        server = await client.opens()
        server.asks("roots/list", 3)
        await client.hears()
        server.notes("cancelled", requestId=3)
        assert (await client.hears())["params"] == {"requestId": 3}


@pytest.mark.spec("SS-3", "SS-4")
async def test_modern_client_hears_only_what_belongs_to_its_requests() -> None:
    async with wrapped() as client:
        server = await client.source.next()
        asked = await client.calls(server, modern(1, "tools/list", meta=envelope(progressToken="t")))
        server.asks("roots/list", 1)
        server.notes("tools/list_changed")
        server.progresses(asked, 1)
        assert (await client.hears())["method"] == "notifications/progress"
        server.answers(asked)
        assert (await client.hears())["id"] == 1
        assert not server.unread, "a modern server is sent no answers"


@pytest.mark.spec("SS-4")
async def test_subscription_is_served_and_its_end_is_told() -> None:
    async with wrapped() as client:
        server = await client.source.next()
        listening = await client.calls(server, modern("s", "subscriptions/listen"))
        server.notes("tools/list_changed", _meta={SUBSCRIPTION: listening.id})
        assert (await client.hears())["params"]["_meta"] == {SUBSCRIPTION: "s"}
        server.notes("cancelled", requestId=listening.id)
        assert (await client.hears())["params"] == {"requestId": "s"}


@pytest.mark.spec("SS-2")
@pytest.mark.case("FR-04")
async def test_message_is_one_line_whoever_reads_lines() -> None:
    async with wrapped() as client:
        server = await client.opens()
        await client.calls(server, call(1))
        server.says('{\r\n "jsonrpc": "2.0",\n "id": 1,\n "result": {"x": "\u2028\u0085"}\n}'.encode())
        line = (await client.line()).decode()
        assert line.splitlines() == [line]
        assert json.loads(line)["result"] == {"x": "\u2028\u0085"}


async def test_payload_passes_byte_for_byte_both_ways() -> None:
    payload = b'{"n":1E5,"m":-0,"big":1234567890123456789012,"d":0.1000000000000000055,"u":"\\u00e9"}'
    async with wrapped() as client:
        server = await client.opens()
        line = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%b}' % payload
        client.says(line)
        assert (await server.hears("tools/call")).raw == line
        answer = b'{"jsonrpc":"2.0","id":1,"result":%b}' % payload
        server.says(answer)
        assert await client.line() == answer


async def test_overlong_answer_of_the_server_is_an_error_to_the_client() -> None:
    async with wrapped() as client:
        server = await client.opens()
        await client.calls(server, call(1))
        server.says(Overlong(b'{"jsonrpc":"2.0","id":1,"result":', b"}", 10**9))
        assert await client.refused(1) == INTERNAL


# --- no server ---


@pytest.mark.case("TF-04")
async def test_each_request_gets_one_error_while_no_server_can_be_had() -> None:
    source = ScriptedSource()
    source.fault = ServerFault("refused")
    async with wrapped(source=source) as client:
        client.says(initialize(), request("p", "ping"), modern(1, "tools/list"))
        codes = [await client.refused(0), await client.refused("p"), await client.refused(1)]
        assert codes == [INTERNAL] * 3
        source.fault = None
        await client.opens()


@pytest.mark.case("TF-04")
async def test_lost_server_answers_each_call_once_and_the_client_initializes_anew() -> None:
    async with wrapped() as client:
        server = await client.opens()
        await client.calls(server, call(1))
        await client.calls(server, call("1"))
        server.dies(3, "last words")
        assert [await client.refused(1), await client.refused("1")] == [INTERNAL, INTERNAL]
        client.says(call(2))
        error = (await client.hears())["error"]
        assert error["data"] == {
            "origin": "bridge",
            "reason": "upstream_lost",
            "exitCode": 3,
            "stderr": ["last words"],
        }
        fresh = await client.opens()
        await server.is_ended()
        await client.calls(fresh, call(2))


async def test_server_that_dies_before_it_works_is_a_failed_start() -> None:
    async with wrapped() as client:
        server = await client.source.next()
        await client.calls(server, initialize())
        server.dies()
        assert await client.refused(0) == INTERNAL
        assert len(client.source.failures) == 1


@pytest.mark.spec("SC-15")
async def test_server_that_dies_at_a_probe_is_opened_anew_and_no_failed_start() -> None:
    async with wrapped() as client:
        server = await client.source.next()
        await client.calls(server, modern("probe", "server/discover"))
        server.dies()
        assert await client.refused("probe") == INTERNAL
        await client.opens()
        assert not client.source.failures
        assert client.source.successes == 1


async def test_server_that_never_answers_its_handshake_is_given_up() -> None:
    async with wrapped(timing=Timing(start=0.01)) as client:
        server = await client.source.next()
        await client.calls(server, initialize())
        assert await client.refused(0) == INTERNAL
        await server.is_ended()


# --- who does not read ---


async def test_server_that_does_not_read_stops_the_client_from_being_read() -> None:
    async with wrapped() as client:
        server = await client.opens()
        server.congest()
        sent = 0
        while client.writer.transport.get_write_buffer_size() == 0:
            client.says(call(sent, "x" * 10_000))
            sent += 1
            await settled()
        assert not server.unread
        server.relieve()
        heard = [await server.hears("tools/call") for _ in range(sent)]
        assert [one.id for one in heard] == list(range(sent))


async def test_client_that_does_not_read_stops_the_server_from_being_read() -> None:
    async with wrapped(limits=Limits(unsent=1000)) as client:
        server = await client.opens()
        sent = 0
        while not server.paused:
            server.notes("message", level="info", data="x" * 10_000)
            sent += 1
            await settled()
        client.says(b"{not json")  # which would have to be answered
        for _ in range(sent):
            assert (await client.hears())["method"] == "notifications/message"
        assert await client.refused(None) == PARSE
        assert not server.paused


async def test_request_of_a_client_that_does_not_read_waits_also_when_the_server_died() -> None:
    async with wrapped(limits=Limits(unsent=1000)) as client:
        server = await client.opens()
        while not server.paused:
            server.notes("message", level="info", data="x" * 10_000)
            await settled()
        server.dies()
        client.says(initialize())
        # Its request is not read as long as it does not read; the server's death made no room.
        await settled()
        assert len(client.source.servers) == 1
        while len(client.source.servers) == 1:
            await client.hears()


# --- the end ---


@pytest.mark.spec("SS-6")
async def test_end_of_input_lets_every_answer_out_and_then_ends_the_server() -> None:
    async with wrapped() as client:
        server = await client.opens()
        asked = [await client.calls(server, call(number)) for number in range(3)]
        client.ends()
        for one in asked:
            await settled()
            assert not client.serving.done()
            server.answers(one)
        await client.served()
        assert [(await client.hears())["id"] for _ in asked] == [0, 1, 2]
        assert not server.closed.is_set()
        await client.close()
        assert server.closed.is_set()
        assert await client.reader.read() == b""


async def test_end_of_input_refuses_what_the_server_asks_then() -> None:
    async with wrapped() as client:
        server = await client.opens()
        asked = await client.calls(server, call(1))
        server.asks("elicitation/create", "before")
        await client.hears()
        client.ends()
        assert (await server.hears()).error is not None
        server.asks("elicitation/create", "after")
        refusal = await server.hears()
        assert (refusal.id, refusal.error is not None) == ("after", True)
        server.answers(asked)
        await client.served()


@pytest.mark.spec("SS-6")
async def test_subscription_does_not_hold_up_the_end_and_ends_in_good_order() -> None:
    async with wrapped() as client:
        server = await client.source.next()
        await client.calls(server, modern("s", "subscriptions/listen"))
        client.ends()
        await client.served()
        await client.close()
        assert (await client.hears())["result"]["_meta"] == {SUBSCRIPTION: "s"}


async def test_draining_refuses_new_requests_and_lets_the_others_end() -> None:
    async with wrapped() as client:
        server = await client.opens()
        asked = await client.calls(server, call(1))
        server.asks("elicitation/create", "q")
        await client.hears()
        client.port.drain()
        client.says(call(2), {"id": "q", "result": {}})
        assert await client.refused(2) == INTERNAL
        assert (await server.hears()).result == {}
        server.answers(asked)
        await client.served()
        assert (await client.hears())["id"] == 1


async def test_request_that_waits_for_a_server_is_answered_when_it_all_ends() -> None:
    source = ScriptedSource()
    source.gate.clear()
    async with wrapped(source=source) as client:
        client.says(initialize())
        await settled()
        client.port.drain()
        assert await client.refused(0) == INTERNAL
        await client.served()


async def test_calls_in_flight_when_it_is_closed_are_answered_with_an_error() -> None:
    async with wrapped() as client:
        server = await client.opens()
        await client.calls(server, call(1))
        await client.close()
        assert await client.refused(1) == INTERNAL


async def test_client_that_hung_up_is_noticed_while_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "_CHECK", 0.01)
    config = Config(upstream=Command(argv=("s",)), downstream=Downstream.STDIO)
    (stdin, writing), (reading, stdout) = os.pipe(), os.pipe()
    async with Relay(config, ScriptedSource()) as relay:
        port = StdioPort(relay, stdin, stdout)
        os.close(reading)
        await asyncio.wait_for(port.serve(), LIMIT)
        await port.close()
    os.close(writing)
