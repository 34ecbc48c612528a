from __future__ import annotations

import codecs
import json
import re
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.core import sse
from bridge.core.sse import EDGE, Decoder, Event, Oversize

MAX = 64 * 1024 * 1024
SMALL = 4 * EDGE
ENDS = [b"\n", b"\r", b"\r\n"]

cuts = st.lists(st.integers(min_value=0), max_size=12)
fields = [b":", b" ", b"data", b"data:", b"data: ", b"event:", b"id:", b"id: 7", b"retry:", b"12", b"x:y"]
oddities = [b"\0", b"\x0b", codecs.BOM_UTF8, b"\xe2\x80\xa8", b"\xc2\x85"]
fragments = st.sampled_from([*ENDS, b"\n\n", *fields, *oddities])
streams = st.lists(fragments | st.binary(max_size=6), max_size=40).map(b"".join)
json_texts = st.lists(st.text()).map(lambda texts: json.dumps(texts, ensure_ascii=False).encode())
ids = st.none() | st.from_regex(r"[0-9a-z]{1,8}-[0-9]{1,8}", fullmatch=True)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted(place % (len(data) + 1) for place in places)
    return [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]


def decode(*chunks: bytes, max_event: int = MAX) -> list[Event | Oversize]:
    decoder = Decoder(max_event)
    return [event for chunk in chunks for event in decoder.feed(chunk)]


def message(data: bytes, event_id: str | None = None) -> Event:
    return Event("message", data, event_id)


def by_the_book(stream: bytes) -> tuple[list[Event], str, int | None]:
    """The algorithm of the standard, word by word, on a whole stream."""
    events: list[Event] = []
    last_id, retry = "", None
    event_id, event_type, data = None, "", b""
    *lines, _ = re.split(rb"\r\n|\r|\n", stream.removeprefix(codecs.BOM_UTF8))
    for line in lines:
        if line == b"":
            last_id = last_id if event_id is None else event_id
            if data != b"":
                events.append(Event(event_type or "message", data[:-1], event_id))
            event_id, event_type, data = None, "", b""
        elif not line.startswith(b":"):
            field, _, value = line.partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if field == b"event":
                event_type = value.decode(errors="replace")
            elif field == b"data":
                data += value + b"\n"
            elif field == b"id" and b"\0" not in value:
                event_id = value.decode(errors="replace")
            elif field == b"retry" and re.fullmatch(rb"[0-9]+", value):
                retry = int(value)
    return events, last_id, retry


# Written.


@pytest.mark.spec("RS-10")
def test_message_is_written_on_one_data_line() -> None:
    assert sse.event(b'{"a":1}') == b'event: message\ndata: {"a":1}\n\n'
    assert sse.event(b'{"a":1}', "s-4") == b'id: s-4\nevent: message\ndata: {"a":1}\n\n'


@pytest.mark.spec("RS-10")
@pytest.mark.parametrize("end", ENDS)
def test_line_break_between_tokens_cannot_forge_a_field(end: bytes) -> None:
    written = sse.event(b'{"a":' + end + b"id: forged" + end + end + b"1}")
    [event] = decode(written)
    assert isinstance(event, Event)
    assert event.id is None
    assert event.data.split() == [b'{"a":', b"id:", b"forged", b"1}"]


@pytest.mark.spec("RS-3")
@pytest.mark.case("SE-03")
@pytest.mark.parametrize("retry", [None, 0, 3000])
def test_priming_gives_a_cursor_and_empty_data(retry: int | None) -> None:
    decoder = Decoder(MAX)
    assert decoder.feed(sse.priming("s-0", retry)) == [message(b"", "s-0")]
    assert (decoder.last_event_id, decoder.retry) == ("s-0", retry)


@pytest.mark.spec("RS-4")
def test_retry_is_no_event_and_leaves_the_cursor() -> None:
    decoder = Decoder(MAX)
    decoder.feed(sse.priming("s-0", None))
    assert decoder.feed(sse.retry(1500)) == []
    assert (decoder.last_event_id, decoder.retry) == ("s-0", 1500)


@pytest.mark.spec("ES-2")
def test_endpoint_is_written_under_its_name() -> None:
    assert decode(sse.named("endpoint", b"/messages?sid=1")) == [Event("endpoint", b"/messages?sid=1", None)]


def test_keep_alive_is_seen_by_nobody() -> None:
    decoder = Decoder(MAX)
    assert decoder.feed(sse.COMMENT + sse.event(b"{}") + sse.COMMENT) == [message(b"{}")]
    assert decoder.last_event_id == ""


@given(st.lists(st.tuples(json_texts, ids)), st.sampled_from(ENDS), cuts)
def test_what_is_encoded_is_decoded(
    messages: list[tuple[bytes, str | None]], end: bytes, places: list[int]
) -> None:
    stream = b"".join(sse.event(data, event_id) for data, event_id in messages).replace(b"\n", end)
    assert decode(*cut(stream, places)) == [message(data, event_id) for data, event_id in messages]


# Read.


@given(streams, cuts)
@example(codecs.BOM_UTF8 + b"data:x\r\n\r\n", [1, 2, 11])
@example(b"data:x\r\n\n", [7, 8])
def test_any_split_is_decoded_by_the_book(stream: bytes, places: list[int]) -> None:
    decoder = Decoder(MAX)
    events = [event for chunk in cut(stream, places) for event in decoder.feed(chunk)]
    assert (events, decoder.last_event_id, decoder.retry) == by_the_book(stream)


@given(
    st.lists(fragments | st.binary(min_size=EDGE, max_size=EDGE + 9)).map(b"".join),
    cuts,
    st.integers(1, 3000),
)
@example(b"data: " + b"ab" * EDGE + b"\nid:7\n\n", [EDGE], 9)
def test_what_is_oversize_does_not_depend_on_the_split(
    stream: bytes, places: list[int], max_event: int
) -> None:
    assert decode(*cut(stream, places), max_event=max_event) == decode(stream, max_event=max_event)


@pytest.mark.case("SE-01")
@pytest.mark.spec("RS-7")
@pytest.mark.parametrize("end", ENDS)
def test_every_line_end_gives_the_same_event_byte_by_byte(end: bytes) -> None:
    stream = end.join([b"id: 1", b"event: message", b"data: {}", b"", b""])
    assert decode(*(bytes([byte]) for byte in stream)) == [message(b"{}", "1")]


@pytest.mark.case("SE-01")
def test_crlf_cut_between_chunks_ends_one_line() -> None:
    events = decode(b'data: {"jsonrpc":"2.0",\r', b'\ndata: "id":1,"result":{}}\r\n\r\n')
    assert events == [message(b'{"jsonrpc":"2.0",\n"id":1,"result":{}}')]


@pytest.mark.case("SE-01")
def test_event_is_dispatched_at_its_last_cr_without_waiting_for_more() -> None:
    decoder = Decoder(MAX)
    assert decoder.feed(b"data: 1\r\r") == [message(b"1")]
    assert decoder.feed(b"\ndata: 2\r\n\r") == [message(b"2")]
    assert decoder.feed(b"\n") == []


@pytest.mark.case("SE-01")
def test_empty_chunk_does_not_part_cr_from_lf() -> None:
    assert decode(b"data: 1\r", b"", b"\n", b"data: 2\n\n") == [message(b"1\n2")]


@pytest.mark.case("SE-02")
@pytest.mark.spec("RS-7")
def test_data_lines_are_joined_by_a_newline() -> None:
    assert decode(b'id: 5\ndata: {"a":\ndata: 1\ndata: }\nevent: message\n\n') == [
        message(b'{"a":\n1\n}', "5")
    ]


@pytest.mark.case("SE-02")
@pytest.mark.spec("RS-7")
@pytest.mark.parametrize(
    ("stream", "data"),
    [
        (b"data:{}\n\n", b"{}"),
        (b"data:  {}\n\n", b" {}"),
        (b"data\n\n", b""),
        (b"data\ndata\n\n", b"\n"),
        (b"data: a: b\n\n", b"a: b"),
        (b"unknown: 1\nDATA: 2\ndata: {}\n data: 3\n\n", b"{}"),
        (b": data: 1\ndata: {}\n:\n\n", b"{}"),
    ],
)
def test_field_is_read_as_the_standard_says(stream: bytes, data: bytes) -> None:
    assert decode(stream) == [message(data)]


@pytest.mark.case("SE-03")
@pytest.mark.spec("RS-8")
def test_event_without_data_field_only_moves_cursor_and_wait() -> None:
    decoder = Decoder(MAX)
    assert decoder.feed(b"id: 9\nretry: 500\nevent: x\n\n") == []
    assert (decoder.last_event_id, decoder.retry) == ("9", 500)
    assert decoder.feed(b"data: 1\n\n") == [message(b"1")]


@pytest.mark.spec("RS-7")
def test_id_moves_the_cursor_only_when_its_event_is_whole() -> None:
    decoder = Decoder(MAX)
    decoder.feed(b"id: 1\ndata: 1\n\nid: 2\ndata: 2\n")
    assert decoder.last_event_id == "1"
    decoder.feed(b"\n")
    assert decoder.last_event_id == "2"


@pytest.mark.spec("RS-7")
def test_id_with_nul_is_ignored_and_an_empty_one_clears_the_cursor() -> None:
    decoder = Decoder(MAX)
    assert decoder.feed(b"id: 1\ndata: 1\n\nid: a\0b\ndata: 2\n\n") == [message(b"1", "1"), message(b"2")]
    assert decoder.last_event_id == "1"
    assert decoder.feed(b"id\ndata: 3\n\n") == [message(b"3", "")]
    assert decoder.last_event_id == ""


@pytest.mark.spec("RS-7")
@pytest.mark.parametrize("value", ["", "-1", "1.5", "3s", "\u0663", "9" * 5000])
def test_retry_that_is_no_sensible_number_is_ignored(value: str) -> None:
    decoder = Decoder(MAX)
    decoder.feed(b"retry: 250\n\n" + f"retry: {value}\n\n".encode())
    assert decoder.retry == 250


@pytest.mark.spec("RS-7")
def test_byte_order_mark_is_dropped_at_the_start_only() -> None:
    stream = codecs.BOM_UTF8 + b"data: 1\n\n" + codecs.BOM_UTF8 + b"data: 2\n\n"
    assert decode(*(bytes([byte]) for byte in stream)) == [message(b"1")]


@pytest.mark.case("FR-03")
def test_character_cut_at_any_byte_survives() -> None:
    data = '{"text":"é — 読 🎉"}'.encode()
    assert decode(*(bytes([byte]) for byte in sse.event(data))) == [message(data)]


@pytest.mark.case("FR-04")
@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c"])
def test_only_cr_and_lf_end_a_line(separator: str) -> None:
    data = f'{{"text":"a{separator}b"}}'.encode()
    assert decode(sse.event(data)) == [message(data)]


@pytest.mark.case("SE-06")
def test_unfinished_event_is_dropped_with_its_id_when_the_stream_ends() -> None:
    decoder = Decoder(MAX)
    decoder.feed(b"id: 1\nretry: 500\ndata: 1\n\nid: 2\ndata: 2\ndata: hal")
    decoder.end()
    assert decoder.feed(codecs.BOM_UTF8 + b"\ndata: 3\n\n") == [message(b"3")]
    assert (decoder.last_event_id, decoder.retry) == ("1", 500)


# Bounded.


@pytest.mark.case("SE-07")
@pytest.mark.parametrize("size", [2**20 - 1000, 1_153_434, 2**24])
def test_large_event_arrives_intact(size: int) -> None:
    data = b'"' + b"x" * (size - 2) + b'"'
    stream = sse.event(data) + sse.event(b"{}")
    events = decode(*(stream[at : at + 65_536] for at in range(0, len(stream), 65_536)))
    assert events == [message(data), message(b"{}")]


@pytest.mark.spec("RS-9")
def test_event_of_exactly_the_limit_is_kept() -> None:
    data = b"x" * (SMALL - len(b"data: "))
    assert decode(b"data: " + data + b"\n\n", max_event=SMALL) == [message(data)]


@pytest.mark.case("SE-07")
@pytest.mark.spec("RS-9")
@pytest.mark.parametrize("read", [1, 1000, 10**6])
def test_event_over_the_limit_leaves_its_ends_and_the_next_event_whole(read: int) -> None:
    data = b'{"id":7,' + b"".join(b"%06d" % number for number in range(SMALL)) + b',"id":8}'
    stream = b"event: message\ndata: " + data + b"\nid: s-3\n\n" + sse.event(b"{}")
    decoder = Decoder(SMALL)
    events = [event for at in range(0, len(stream), read) for event in decoder.feed(stream[at : at + read])]
    size = len(b"event: message" + b"data: " + data + b"id: s-3")
    assert events == [Oversize("s-3", size, data[:EDGE], data[-EDGE:]), message(b"{}")]
    assert decoder.last_event_id == "s-3"


@pytest.mark.spec("RS-9")
def test_many_data_lines_over_the_limit_leave_their_ends() -> None:
    data = [b"%05d" % number for number in range(2000)]
    [event] = decode(b"".join(b"data:%b\n" % line for line in data) + b"\n", max_event=SMALL)
    whole = b"\n".join(data)
    assert event == Oversize(None, 20_000, whole[:EDGE], whole[-EDGE:])


@pytest.mark.spec("RS-9")
@pytest.mark.parametrize("start", [b"id: ", b"event: ", b"x"])
def test_long_line_that_is_no_data_loses_no_message(start: bytes) -> None:
    decoder = Decoder(SMALL)
    assert decoder.feed(start + b"x" * SMALL + b"\n\ndata: 1\n\n") == [message(b"1")]
    assert decoder.last_event_id == ""


def test_comments_do_not_count_towards_the_limit() -> None:
    long = b":" + b"x" * SMALL
    assert decode(long, long + b"\ndata: 1\n" + long, b"\n\n", max_event=SMALL) == [message(b"1")]


@pytest.mark.spec("RS-9")
@pytest.mark.parametrize("chunk", [b"x" * SMALL, b"data:\n" * 1000, b"data: xyz\n" * 1000, b":" * SMALL])
def test_memory_stays_bounded_while_an_event_is_discarded(chunk: bytes) -> None:
    decoder = Decoder(SMALL)
    decoder.feed(b"data: " if chunk[0] != ord(":") else b":")
    tracemalloc.start()
    for _ in range(50):
        decoder.feed(chunk)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 4 * SMALL
