"""Which stream of a session carries what answers no request, and what waits for want of one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core import message
from bridge.core.events import Noted, Question, Questioned
from bridge.core.streams import Backlog, Outlet, Streams, Unplaced


class Stream:
    def __init__(self, *, carries: bool = True) -> None:
        self.carries = carries


def streams(posts: int, *, listening: bool = False) -> tuple[Streams, list[Outlet]]:
    """A session with so many POSTs in flight, and all its streams, the GET stream first if there is one."""
    made = Streams()
    if listening:
        made.listener = Stream()
    for _ in range(posts):
        made.posts[Stream()] = None
    return made, [*([made.listener] if made.listener else []), *made.posts]


# --- which stream ---


@pytest.mark.spec("HL-10", "HL-14")
def test_a_question_goes_on_the_only_call_even_while_the_client_listens() -> None:
    """K15."""
    found, [_, post] = streams(1, listening=True)
    assert found.for_question() is post


@pytest.mark.spec("HL-14")
def test_a_question_during_several_calls_or_none_goes_to_the_listener() -> None:
    for posts in (0, 2, 3):
        found, every = streams(posts, listening=True)
        assert found.for_question() is every[0]


def test_a_question_during_several_calls_without_a_listener_goes_to_the_newest() -> None:
    found, every = streams(3)
    assert found.for_question() is every[-1]


@pytest.mark.spec("HL-14")
def test_a_notification_goes_to_the_listener_else_to_the_only_call() -> None:
    found, every = streams(1, listening=True)
    assert found.for_note() is every[0]
    found, [post] = streams(1)
    assert found.for_note() is post


def test_a_notification_during_several_calls_without_a_listener_waits() -> None:
    assert streams(2)[0].for_note() is None


def test_without_streams_everything_waits() -> None:
    found, _ = streams(0)
    assert found.for_note() is None
    assert found.for_question() is None


def test_a_stream_that_cannot_carry_counts_as_none() -> None:
    found = Streams()
    found.listener = Stream(carries=False)
    carrying = Stream()
    found.posts = {Stream(carries=False): None, carrying: None, Stream(carries=False): None}
    assert found.carrying() == [carrying]
    assert found.for_question() is carrying
    assert found.for_note() is carrying


# --- what waits ---


def noted(method: str, params: bytes | None = None) -> Noted:
    return Noted(None, None, message.notification(method, params))


def logged(text: str) -> Noted:
    return noted("notifications/message", b'{"level":"info","data":"%b"}' % text.encode())


def asked(number: int) -> Questioned:
    request = message.request(number, "sampling/createMessage", b'{"messages":[]}')
    return Questioned(Question(request), request)


def changed(what: str = "tools") -> Noted:
    return noted(f"notifications/{what}/list_changed")


def updated(uri: str) -> Noted:
    return noted("notifications/resources/updated", b'{"uri":"%b"}' % uri.encode())


@pytest.mark.case("RT-03")
def test_what_waits_is_taken_oldest_first_and_once() -> None:
    backlog = Backlog(9)
    events: list[Unplaced] = [logged("a"), asked(1), changed(), logged("b")]
    for event in events:
        assert backlog.put(event) is None
    assert backlog.take() == events
    assert (backlog.take(), len(backlog)) == ([], 0)


@pytest.mark.spec("SB-10")
@pytest.mark.case("RT-03")
def test_a_change_that_waits_already_is_not_kept_twice() -> None:
    backlog = Backlog(9)
    first = changed()
    for event in (first, changed("prompts"), changed(), updated("a"), updated("b"), updated("a")):
        assert backlog.put(event) is None
    assert backlog.take() == [first, changed("prompts"), updated("a"), updated("b")]


def test_equal_log_messages_are_several() -> None:
    backlog = Backlog(9)
    for _ in range(3):
        backlog.put(logged("tick"))
    assert len(backlog.take()) == 3


@pytest.mark.case("RT-03")
def test_the_oldest_log_message_makes_room_first() -> None:
    backlog = Backlog(3)
    old, change, question, new = logged("old"), changed(), asked(1), logged("new")
    for event in (change, old, question):
        backlog.put(event)
    assert backlog.put(new) == old
    assert backlog.take() == [change, question, new]


def test_a_question_takes_the_place_of_a_change_but_never_of_a_question() -> None:
    backlog = Backlog(2)
    change, first, second, third = changed(), asked(1), asked(2), asked(3)
    backlog.put(change)
    backlog.put(first)
    assert backlog.put(second) is change
    assert backlog.put(third) is third
    assert backlog.take() == [first, second]


def test_what_finds_no_room_goes_itself() -> None:
    backlog = Backlog(1)
    change = changed()
    backlog.put(change)
    late = logged("late")
    assert backlog.put(late) is late
    assert backlog.take() == [change]


def test_questions_can_be_taken_alone() -> None:
    backlog = Backlog(9)
    first, second = asked(1), asked(2)
    for event in (first, changed(), second):
        backlog.put(event)
    assert backlog.questions() == [first, second]
    assert backlog.take() == [changed()]


def test_a_question_taken_back_by_the_server_waits_no_more() -> None:
    backlog = Backlog(9)
    first, second = asked(1), asked(2)
    for event in (first, second, logged("1")):
        backlog.put(event)
    assert backlog.withdrawn(1)
    assert not backlog.withdrawn(1)
    assert not backlog.withdrawn("2")
    assert backlog.questions() == [second]


EVENTS = st.one_of(
    st.integers(0, 5).map(asked),
    st.sampled_from(["a", "b"]).map(logged),
    st.sampled_from(["tools", "prompts"]).map(changed),
    st.sampled_from(["a", "b"]).map(updated),
    st.just("vendor/x").map(noted),
)


@pytest.mark.case("RT-03")
@given(st.integers(1, 4), st.lists(EVENTS, max_size=25))
def test_the_backlog_is_bounded_and_loses_nothing_silently(limit: int, events: list[Unplaced]) -> None:
    """Whatever was put is kept, given back, or told by one that waits already."""
    backlog = Backlog(limit)
    victims: list[Unplaced] = []
    for event in events:
        victim = backlog.put(event)
        assert len(backlog) <= limit
        if victim is not None:
            victims.append(victim)
    kept = backlog.take()
    for event in events:
        assert event in kept or event in victims
    questions = [event for event in events if isinstance(event, Questioned)]
    assert [event for event in kept if isinstance(event, Questioned)] == questions[:limit]
    order = [next(at for at, event in enumerate(events) if event is one) for one in kept]
    assert order == sorted(order)
