from __future__ import annotations

import codecs
import json
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.core.lines import EDGE, Lines, Overlong

MAX = 64 * 1024 * 1024
SMALL = 4 * EDGE

fragments = st.sampled_from(
    [
        b"\n",
        b"\r",
        b"\r\n",
        b" ",
        b"\t",
        b"{}",
        codecs.BOM_UTF8,
        b"\xe2\x80\xa8",
        b"\xc2\x85",
        b"\x0b\x0c",
        b"\0",
    ]
)
streams = st.lists(fragments | st.binary(max_size=8)).map(b"".join)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted(place % (len(data) + 1) for place in places)
    return [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]


def framed(
    chunks: list[bytes], max_line: int = MAX
) -> tuple[list[bytes | Overlong], bytes | Overlong | None]:
    lines = Lines(max_line)
    return [line for chunk in chunks for line in lines.feed(chunk)], lines.end()


def naive(data: bytes) -> tuple[list[bytes], bytes | None]:
    *lines, rest = [line.strip(b" \t\r") for line in data.removeprefix(codecs.BOM_UTF8).split(b"\n")]
    return [line for line in lines if line], rest or None


@given(streams, st.lists(st.integers(min_value=0), max_size=12))
@example(codecs.BOM_UTF8 + b"{}\n" + codecs.BOM_UTF8 + b"{}\n", [1, 2])
def test_any_split_gives_the_lines_of_the_whole(data: bytes, places: list[int]) -> None:
    assert framed(cut(data, places)) == naive(data)


@given(streams, st.lists(st.integers(min_value=0), max_size=12), st.integers(1, 12))
def test_what_is_overlong_does_not_depend_on_the_split(data: bytes, places: list[int], max_line: int) -> None:
    assert framed(cut(data, places), max_line) == framed([data], max_line)


def test_whole_lines_of_one_read_come_out_in_order() -> None:
    lines = Lines(MAX)
    assert lines.feed(b'{"id":1}\n{"id":2}\n{"id":3}\n') == [b'{"id":1}', b'{"id":2}', b'{"id":3}']
    assert lines.feed(b'{"id":4}\n') == [b'{"id":4}']


@pytest.mark.case("FR-02")
@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 131_072, 2**20, 2**24])
@pytest.mark.parametrize("read", [65_536, 2**25])
def test_long_line_arrives_intact_and_takes_nothing_of_the_next(size: int, read: int) -> None:
    long, note = b'"' + b"x" * (size - 2) + b'"', b'{"method":"note"}'
    data = long + b"\n" + note + b"\n"
    lines, rest = framed([data[at : at + read] for at in range(0, len(data), read)])
    assert (lines == [long, note], rest) == (True, None)


@pytest.mark.case("FR-03")
def test_character_cut_at_any_byte_survives() -> None:
    line = json.dumps({"text": "é — 読 🎉"}, ensure_ascii=False).encode()
    assert framed([bytes([byte]) for byte in line + b"\n"]) == ([line], None)


@pytest.mark.case("FR-04")
@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c"])
def test_only_the_newline_byte_ends_a_line(separator: str) -> None:
    line = f'{{"text":"a{separator}b"}}'.encode()
    assert framed([line + b"\n"]) == ([line], None)


@pytest.mark.case("FR-01")
def test_blank_lines_are_skipped() -> None:
    assert framed([b"\n \t\n\r\n{}\n\n"]) == ([b"{}"], None)


@pytest.mark.spec("SC-16")
def test_carriage_return_before_the_newline_is_stripped() -> None:
    assert framed([b'{"a":1}\r', b'\n{"a":2}\r\n']) == ([b'{"a":1}', b'{"a":2}'], None)


@pytest.mark.spec("SC-16")
def test_byte_order_mark_is_stripped_from_the_first_line_only() -> None:
    marked = codecs.BOM_UTF8 + b"{}"
    lines, _ = framed([marked[:1], marked[1:2], marked[2:] + b"\n" + marked + b"\n", marked + b"\n"])
    assert lines == [b"{}", marked, marked]


def test_blank_line_with_a_byte_order_mark_is_skipped() -> None:
    assert framed([codecs.BOM_UTF8 + b"\r\n{}\n"]) == ([b"{}"], None)


@pytest.mark.case("FR-07")
def test_half_a_line_at_the_end_is_no_line() -> None:
    assert framed([b'{"id":1}\n{"id":']) == ([b'{"id":1}'], b'{"id":')


def test_end_has_nothing_to_tell_of_a_blank_rest() -> None:
    assert framed([b"{}\n \r"]) == ([b"{}"], None)


def test_end_tells_of_the_rest_once() -> None:
    lines = Lines(MAX)
    lines.feed(b"half")
    assert lines.end() == b"half"
    assert lines.end() is None


def test_line_of_exactly_the_limit_is_kept() -> None:
    assert framed([b"x" * SMALL + b"\n"], SMALL) == ([b"x" * SMALL], None)


@pytest.mark.spec("SC-19")
@pytest.mark.case("FR-02")
@pytest.mark.parametrize("read", [1, 1000, 10**6])
def test_line_over_the_limit_leaves_its_ends_and_the_next_line_whole(read: int) -> None:
    long = b'{"id":7,' + b"".join(b"%06d" % number for number in range(SMALL)) + b',"id":8}'
    data = long + b"\n{}\n"
    lines, rest = framed([data[at : at + read] for at in range(0, len(data), read)], SMALL)
    assert lines == [Overlong(long[:EDGE], long[-EDGE:], len(long)), b"{}"]
    assert rest is None


def test_overlong_rest_is_told_of_as_such() -> None:
    assert framed([b"x" * SMALL, b"y"], SMALL) == (
        [],
        Overlong(b"x" * EDGE, b"x" * (EDGE - 1) + b"y", SMALL + 1),
    )


@pytest.mark.spec("SC-19")
def test_memory_stays_bounded_while_a_line_is_discarded() -> None:
    lines, chunk = Lines(SMALL), b"x" * SMALL
    tracemalloc.start()
    for _ in range(1000):
        lines.feed(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * SMALL
