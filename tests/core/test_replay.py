"""The events that a session keeps, and what a client that comes back is given of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.replay import EventStore


def store(events: int = 100, size: int = 10_000, age: float = 60.0) -> EventStore:
    return EventStore(events=events, size=size, age=age)


def missed(kept: EventStore, event_id: str, now: float = 0.0) -> list[bytes] | None:
    found = kept.after(event_id, now)
    return None if found is None else [event.payload for event in found[1]]


@pytest.mark.spec("RS-2")
def test_a_client_that_comes_back_gets_what_followed_on_its_stream_and_nothing_else() -> None:
    kept = store()
    post, get = kept.stream(), kept.stream()
    first = kept.append(post, b"1", 0.0)
    kept.append(get, b"other", 0.0)
    second, third = kept.append(post, b"2", 0.0), kept.append(post, b"3", 0.0)
    assert [missed(kept, one) for one in (first, second, third)] == [[b"2", b"3"], [b"3"], []]
    found = kept.after(first, 0.0)
    assert found is not None
    assert found[0] == post
    assert [event.id for event in found[1]] == [second, third]


@pytest.mark.spec("RS-1")
def test_event_ids_are_unique_in_a_session_and_name_their_stream() -> None:
    kept = store()
    streams = [kept.stream() for _ in range(3)]
    ids = [kept.append(stream, b"", 0.0) for _ in range(4) for stream in streams]
    ids += [kept.mark(stream) for stream in streams]
    assert len(set(ids)) == len(ids)
    assert {one.split("-")[0] for one in ids} == {str(stream) for stream in streams}


@pytest.mark.spec("RS-3", "RS-4")
def test_an_event_without_content_moves_the_cursor_and_is_not_replayed() -> None:
    kept = store()
    stream = kept.stream()
    primed = kept.mark(stream)
    assert missed(kept, primed) == []
    kept.append(stream, b"1", 0.0)
    assert missed(kept, primed) == [b"1"]
    assert len(kept) == 1


FOREIGN = (
    "", "-", "1", "1-", "-1", "1-x", "x-1", "0-1", "1-0", "1-9", "3-1", "1-1-1", "+1-1", "1_0-1", " 1-1",
    "1- 1", "\u0661-\u0661", "1-\xb2", "1" * 50 + "-1", "1-" + "1" * 50,
)  # fmt: skip


@pytest.mark.parametrize("cursor", FOREIGN)
def test_an_id_that_was_never_given_out_is_unknown(cursor: str) -> None:
    kept = store()
    for _ in range(2):
        kept.append(kept.stream(), b"x", 0.0)
    assert kept.after(cursor, 0.0) is None


def test_the_oldest_go_first_whatever_stream_they_are_on() -> None:
    kept = store(events=3)
    a, b = kept.stream(), kept.stream()
    first = kept.append(a, b"a1", 0.0)
    for stream, payload in ((b, b"b1"), (a, b"a2"), (b, b"b2")):
        kept.append(stream, payload, 0.0)
    assert len(kept) == 3
    assert missed(kept, first) == [b"a2"]


@pytest.mark.spec("RS-9")
def test_bytes_and_age_are_bounded_too() -> None:
    kept = store(size=10, age=5.0)
    stream = kept.stream()
    cursor = kept.mark(stream)
    kept.append(stream, b"x" * 6, 0.0)
    kept.append(stream, b"y" * 5, 1.0)
    assert missed(kept, cursor, 1.0) == [b"y" * 5]
    assert missed(kept, cursor, 6.0) == [b"y" * 5]
    assert missed(kept, cursor, 6.1) == []
    kept.append(stream, b"z" * 11, 7.0)
    assert len(kept) == 0


def test_what_is_kept_of_a_stream_that_ended_can_still_be_had() -> None:
    kept = store()
    stream = kept.stream()
    cursor = kept.mark(stream)
    kept.append(stream, b"answer", 0.0)
    kept.forget(stream)
    assert missed(kept, cursor) == [b"answer"]
    assert kept.stream() != stream


def test_streams_that_ended_leave_nothing_behind() -> None:
    kept = store(events=5)
    for _ in range(100):
        stream = kept.stream()
        kept.append(stream, b"x", 0.0)
        kept.forget(stream)
    assert all(len(table) <= 5 for table in vars(kept).values() if hasattr(table, "__len__"))


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, bytes, float]]:
    """Events in order: their stream, their payload, and the seconds that passed before them."""
    payloads = st.binary(max_size=8)
    return draw(
        st.lists(st.tuples(st.integers(1, 3), payloads, st.sampled_from([0.0, 1.0, 7.0])), max_size=25)
    )


@pytest.mark.spec("RS-2", "RS-9")
@given(histories(), st.integers(0, 6), st.integers(0, 20), st.booleans())
def test_any_replay_is_the_end_of_what_followed_the_cursor_within_the_bounds(
    history: list[tuple[int, bytes, float]], most: int, size: int, ended: bool
) -> None:
    kept = store(events=most, size=size, age=10.0)
    for _ in range(3):
        kept.stream()
    now, given_out = 0.0, list[tuple[str, int, bytes, float]]()
    for stream, payload, passed in history:
        now += passed
        given_out.append((kept.append(stream, payload, now), stream, payload, now))
        assert len(kept) <= most
    if ended:
        for stream in (1, 2, 3):
            kept.forget(stream)
    # What the bounds leave of everything, the newest that fit.
    fits: list[tuple[str, int, bytes, float]] = []
    for event in reversed(given_out):
        if (
            len(fits) == most
            or sum(len(one[2]) for one in fits) + len(event[2]) > size
            or event[3] < now - 10.0
        ):
            break
        fits.insert(0, event)
    for at, (cursor, stream, _, _) in enumerate(given_out):
        found = kept.after(cursor, now)
        assert found is not None
        expected = [(one[0], one[2]) for one in given_out[at + 1 :] if one[1] == stream and one in fits]
        assert (found[0], [(event.id, event.payload) for event in found[1]]) == (stream, expected)
