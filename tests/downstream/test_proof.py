"""What replicas prove to each other: only those with a common key, only once, and only of what was meant."""

from __future__ import annotations

import pytest

from bridge.downstream import proof as proof_module
from bridge.downstream.proof import Proof, Proofs

OLD, NEW = b"o" * 32, b"n" * 32
BODY = b'{"jsonrpc":"2.0","id":1}'


class Wall:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def pair(
    sender: tuple[bytes, ...] = (OLD,), receiver: tuple[bytes, ...] = (OLD,)
) -> tuple[Proofs, Proofs, Wall]:
    """Those of `a` and of `b`, and the clock of both."""
    wall = Wall()
    return Proofs(sender, "a", wall=wall), Proofs(receiver, "b", wall=wall), wall


def made(proofs: Proofs, target: str = "b", method: str = "POST") -> Proof:
    return proofs.make(target, method, "ann", BODY)


def test_receiver_learns_who_asks_for_whom_and_of_which_body() -> None:
    a, b, _ = pair()
    found = b.check(made(a).header, "POST")
    assert found is not None
    assert (found.claims.sender, found.claims.subject) == ("a", "ann")
    assert found.covers(BODY)
    assert not found.covers(BODY + b" ")


def test_answer_proves_that_the_receiver_has_the_key_too() -> None:
    a, b, _ = pair()
    asked = made(a)
    found = b.check(asked.header, "POST")
    assert found is not None
    assert asked.is_answer(200, found.answer(200))


@pytest.mark.parametrize("shown", [None, "", "x", "é", "\udcff"])
def test_answer_without_a_proof_is_anybodys(shown: str | None) -> None:
    a, _, _ = pair()
    assert not made(a).is_answer(200, shown)


def test_answer_is_to_one_request_and_has_one_status() -> None:
    a, b, _ = pair()
    one, other = made(a), made(a)
    found = b.check(one.header, "POST")
    assert found is not None
    assert not other.is_answer(200, found.answer(200))
    assert not one.is_answer(403, found.answer(200))


def test_request_cannot_be_shown_as_its_own_answer() -> None:
    a, _, _ = pair()
    asked = made(a)
    assert not asked.is_answer(200, asked.header.partition(".")[2])


@pytest.mark.parametrize(
    ("sender", "receiver", "known"),
    [
        pytest.param((NEW, OLD), (OLD, NEW), True, id="between two keys"),
        pytest.param((OLD,), (NEW, OLD), True, id="the older one"),
        pytest.param((OLD,), (NEW,), False, id="another"),
        pytest.param((OLD,), (), False, id="none"),
    ],
)
def test_any_common_key_will_do(sender: tuple[bytes, ...], receiver: tuple[bytes, ...], known: bool) -> None:
    a, b, _ = pair(sender, receiver)
    asked = made(a)
    found = b.check(asked.header, "POST")
    assert (found is not None) is known
    assert found is None or asked.is_answer(200, found.answer(200))


@pytest.mark.parametrize(
    ("cause", "target", "method", "later"),
    [
        ("target", "c", "POST", 0.0),
        ("method", "b", "GET", 0.0),
        ("clock", "b", "POST", 61.0),
        ("clock", "b", "POST", -61.0),
    ],
)
def test_proof_of_something_else_is_refused(cause: str, target: str, method: str, later: float) -> None:
    a, b, wall = pair()
    header = made(a, target, method).header
    wall.now += later
    assert b.check(header, "POST") is None
    assert b.counts == {cause: 1}


def test_clocks_need_not_agree_to_the_second() -> None:
    a, b, wall = pair()
    header = made(a).header
    wall.now -= 59
    assert b.check(header, "POST") is not None


def test_proof_works_once() -> None:
    a, b, wall = pair()
    header = made(a).header
    assert b.check(header, "POST") is not None
    for _ in range(3):
        wall.now += 50
        assert b.check(header, "POST") is None
    assert b.counts == {"replay": 1, "clock": 2}


def test_proofs_are_remembered_no_longer_than_they_could_come_again() -> None:
    a, b, wall = pair()
    for _ in range(3):
        assert b.check(made(a).header, "POST") is not None
        wall.now += 60
    assert len(b._seen) == 2


def test_proof_is_refused_when_no_more_can_be_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_module, "MOST_SEEN", 2)
    a, b, _ = pair()
    assert [b.check(made(a).header, "POST") is not None for _ in range(3)] == [True, True, False]
    assert b.counts == {"full": 1}


def test_header_with_any_character_changed_is_none() -> None:
    a, b, _ = pair()
    header = made(a).header
    for at, character in enumerate(header):
        changed = header[:at] + ("A" if character != "A" else "B") + header[at + 1 :]
        assert b.check(changed, "POST") is None, at
    assert b.check(header, "POST") is not None


@pytest.mark.parametrize("header", ["", ".", "x.y", "é.é", "\udcff.\udcff", "A" * 9000 + ".x"])
def test_what_no_replica_made_is_none(header: str) -> None:
    _, b, _ = pair()
    assert b.check(header, "POST") is None
    assert b.counts == {"key": 1}
