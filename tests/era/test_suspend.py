"""Which request may go on with which suspended call."""

from __future__ import annotations

from itertools import count

import pytest

from bridge.core.message import Request, Response, request
from bridge.era import suspend
from bridge.era.state import Kind
from bridge.era.suspend import Calls, Elsewhere, Slot
from bridge.era.terms import Terms


class Marked:
    def seal(self, claims: bytes) -> str:
        return "s" + claims.hex()

    def open(self, token: str) -> bytes | None:
        return bytes.fromhex(token[1:]) if token.startswith("s") else None


class Registry:
    def __init__(self, terms: Terms | None = None, *, replica: str = "one", upstream: str = "up") -> None:
        self.now = 100.0
        self.remarks: list[str] = []
        serial = count()
        self.calls: Calls[str] = Calls(
            Marked(),
            terms or Terms(),
            upstream=upstream,
            replica=replica,
            mint=lambda: f"{replica}-{next(serial)}",
            wall=lambda: self.now,
            remark=self.remarks.append,
        )

    def suspended(self, subject: str = "ann", seconds: float = 60) -> tuple[Slot[str], str]:
        slot = self.calls.open(subject, "home")
        return slot, self.calls.suspend(slot, call(), Kind.SUSPEND, seconds)


def call(state: str | None = None, *, method: str = "tools/call") -> Request:
    more = "" if state is None else f',"requestState":"{state}"'
    return request(1, method, f'{{"name":"a","arguments":{{"x":1}}{more}}}'.encode())


def refused(found: object, reason: str = "invalid_request_state") -> bool:
    return isinstance(found, Response) and f'"{reason}"'.encode() in found.raw


def test_request_without_a_state_is_one_of_its_own() -> None:
    registry = Registry()
    assert registry.calls.find(call(), "ann") is None
    assert registry.calls.find(call("x", method="tools/list"), "ann") is None
    assert registry.calls.find(request(1, "tools/call", b"[]"), "ann") is None


def test_state_finds_the_home_of_its_call_until_it_is_used() -> None:
    registry = Registry()
    slot, state = registry.suspended()
    assert registry.calls.find(call(state), "ann") == "home"
    registry.calls.resume(slot)
    assert refused(registry.calls.find(call(state), "ann"))
    again = registry.calls.suspend(slot, call(), Kind.SUSPEND, 60)
    assert registry.calls.find(call(again), "ann") == "home"
    assert refused(registry.calls.find(call(state), "ann"))


@pytest.mark.parametrize(
    ("state", "cause"), [("nonsense", "seal"), ("s" + b"{}".hex(), "seal"), ("s" + b"5".hex(), "seal")]
)
def test_what_holds_no_claims_is_refused(state: str, cause: str) -> None:
    registry = Registry()
    assert refused(registry.calls.find(call(state), "ann"))
    assert registry.remarks == [f"tools/call: {cause}"]


def test_state_expires_and_one_from_the_future_is_not_taken() -> None:
    registry = Registry()
    _, state = registry.suspended(seconds=60)
    registry.now += 59.9
    assert registry.calls.find(call(state), "ann") == "home"
    registry.now += 0.1
    assert refused(registry.calls.find(call(state), "ann"))
    registry.now = 100.0 - 60.1
    assert refused(registry.calls.find(call(state), "ann"))


def test_state_of_another_upstream_is_refused_and_of_another_replica_is_known() -> None:
    _, state = Registry().suspended()
    assert refused(Registry(upstream="other").calls.find(call(state), "ann"))
    assert Registry(replica="two").calls.find(call(state), "ann") == Elsewhere("one")


def test_ended_call_is_told_from_a_lost_one_as_long_as_its_state_could_come_back() -> None:
    registry = Registry(Terms(suspended=60))
    ended, state = registry.suspended()
    lost, lost_state = registry.suspended()
    registry.calls.end(ended)
    registry.calls.lose(lost)
    assert refused(registry.calls.find(call(state), "ann"))
    assert refused(registry.calls.find(call(lost_state), "ann"), "call_lost")


def test_memory_of_ended_calls_is_bounded_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspend, "MOST_ENDED", 2)
    registry = Registry(Terms(suspended=60))
    first, state = registry.suspended()
    registry.calls.end(first)
    for _ in range(2):
        registry.calls.end(registry.suspended()[0])
    assert refused(registry.calls.find(call(state), "ann"), "call_lost")
    registry.now += 61
    registry.calls.end(registry.suspended()[0])
    assert list(registry.calls._ended.values()) == [registry.now + 60]


def test_room_is_counted_for_each_subject_and_for_all() -> None:
    registry = Registry(Terms(suspended_per_subject=1, suspended_in_all=2))
    ann, _ = registry.suspended("ann")
    assert not registry.calls.room("ann")
    bob, _ = registry.suspended("bob")
    assert not registry.calls.room("eve")
    registry.calls.resume(bob)
    registry.calls.end(bob)
    assert registry.calls.room("eve")
    registry.suspended("eve")
    assert not registry.calls.room("zoe")
    registry.calls.end(ann)
    assert registry.calls.room("ann")
