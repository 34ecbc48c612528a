"""Many waits of one length on one timer, on a loop whose clock is moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bridge.deadlines import Deadlines


class Clock:
    """An event loop's clock that stands still; `timers` are the calls that wait for it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None], asyncio.TimerHandle]] = []

    def call_at(self, when: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, call, (), asyncio.get_running_loop())
        self.timers.append((when, call, handle))
        return handle

    def waiting(self) -> list[float]:
        return sorted(when for when, _, handle in self.timers if not handle.cancelled())

    def move(self, seconds: float) -> None:
        """Let time pass, calling what falls due when it does."""
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer[0] <= end and not timer[2].cancelled()]:
            first = min(due, key=lambda timer: timer[0])
            self.timers.remove(first)
            self.now = first[0]
            first[1]()
        self.now = end


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made, loop = Clock(), asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: made.now)
    monkeypatch.setattr(loop, "call_at", made.call_at)
    return made


@pytest.fixture
def expired() -> list[str]:
    return []


async def test_an_item_expires_when_its_time_has_passed_and_once(clock: Clock, expired: list[str]) -> None:
    waits = Deadlines(5.0, expired.append)
    waits.add("a")
    clock.move(4.9)
    assert expired == []
    clock.move(0.1)
    assert (expired, len(waits)) == (["a"], 0)
    clock.move(60.0)
    assert expired == ["a"]


async def test_each_item_has_its_own_time_on_one_timer(clock: Clock, expired: list[str]) -> None:
    waits = Deadlines(5.0, expired.append)
    for item in ("a", "b", "c"):
        waits.add(item)
        clock.move(1.0)
        assert len(clock.waiting()) == 1
    clock.move(2.0)
    assert expired == ["a"]
    clock.move(1.0)
    assert expired == ["a", "b"]
    clock.move(1.0)
    assert expired == ["a", "b", "c"]
    assert clock.waiting() == []


async def test_items_that_are_due_together_expire_in_order(clock: Clock, expired: list[str]) -> None:
    waits = Deadlines(5.0, expired.append)
    for item in ("b", "a", "c"):
        waits.add(item)
    clock.move(5.0)
    assert expired == ["b", "a", "c"]


async def test_an_item_that_was_removed_does_not_expire(clock: Clock, expired: list[str]) -> None:
    waits = Deadlines(5.0, expired.append)
    waits.add("a")
    clock.move(1.0)
    waits.add("b")
    waits.remove("a")
    waits.remove("never added")
    clock.move(4.9)
    assert expired == []
    clock.move(0.1)
    assert expired == ["b"]


@pytest.mark.parametrize("again", [Deadlines.extend, Deadlines.add])
async def test_an_item_that_is_extended_or_added_again_waits_anew(
    clock: Clock, expired: list[str], again: Callable[[Deadlines[str], str], None]
) -> None:
    waits = Deadlines(5.0, expired.append)
    for item in ("a", "b"):
        waits.add(item)
        clock.move(1.0)
    again(waits, "a")
    clock.move(4.0)
    assert expired == ["b"]
    clock.move(1.0)
    assert expired == ["b", "a"]


async def test_extending_what_does_not_wait_begins_nothing(clock: Clock, expired: list[str]) -> None:
    waits = Deadlines(5.0, expired.append)
    waits.extend("a")
    assert (len(waits), clock.waiting()) == (0, [])


async def test_without_a_delay_nothing_expires(clock: Clock, expired: list[str]) -> None:
    waits = Deadlines[str](None, expired.append)
    waits.add("a")
    waits.extend("a")
    clock.move(1e9)
    assert (expired, len(waits), clock.waiting()) == ([], 0, [])


async def test_clearing_takes_everything_off_the_clock(clock: Clock, expired: list[str]) -> None:
    waits = Deadlines(5.0, expired.append)
    waits.add("a")
    waits.clear()
    assert (len(waits), clock.waiting()) == (0, [])
    waits.add("b")
    clock.move(5.0)
    assert expired == ["b"]


async def test_an_item_can_be_added_or_removed_while_others_expire(clock: Clock) -> None:
    seen: list[str] = []

    def expire(item: str) -> None:
        seen.append(item)
        if item == "a":
            waits.add("a")
            waits.remove("b")

    waits = Deadlines(5.0, expire)
    for item in ("a", "b", "c"):
        waits.add(item)
    clock.move(5.0)
    assert seen == ["a", "c"]
    clock.move(5.0)
    assert seen == ["a", "c", "a"]


async def test_everything_can_be_cleared_while_items_expire(clock: Clock) -> None:
    seen: list[str] = []

    def expire(item: str) -> None:
        seen.append(item)
        waits.clear()

    waits = Deadlines(5.0, expire)
    for item in ("a", "b"):
        waits.add(item)
    clock.move(60.0)
    assert (seen, clock.waiting()) == (["a"], [])


async def test_on_a_real_loop_an_item_expires_too() -> None:
    done = asyncio.Event()
    waits = Deadlines[str](0.001, lambda _: done.set())
    waits.add("a")
    async with asyncio.timeout(10):
        await done.wait()
