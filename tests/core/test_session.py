"""The life of one legacy session: what it may do when."""

from __future__ import annotations

import pytest

from bridge.core import message
from bridge.core.message import INVALID_REQUEST, Malformed, Message
from bridge.core.session import Lifecycle, Phase, Step

INITIALIZE = message.request(1, "initialize", b"{}")
INITIALIZED = message.notification("notifications/initialized")
PING = message.request("p", "ping")
CALL = message.request(2, "tools/call", b"{}")
NOTE = message.notification("notifications/cancelled", b'{"requestId":1}')
ANSWER = message.result(3, b"{}")


def at(phase: Phase) -> Lifecycle:
    """A session led there by what leads there."""
    life = Lifecycle()
    steps = {
        Phase.NEW: [],
        Phase.OPENING: [Step.INITIALIZE],
        Phase.OPENED: [Step.INITIALIZE, Step.ACCEPTED],
        Phase.LIVE: [Step.INITIALIZE, Step.ACCEPTED, Step.INITIALIZED],
        Phase.CLOSED: [Step.CLOSE],
    }
    for step in steps[phase]:
        assert life.move(step) is None
    assert life.phase is phase
    return life


def refusal(life: Lifecycle, said: Message) -> Malformed:
    before = life.phase
    found = life.take(said)
    assert found is not None
    assert found.code == INVALID_REQUEST
    assert life.phase is before
    return found


@pytest.mark.spec("LC-1", "LC-3")
def test_a_session_opens_by_initialize_its_answer_and_initialized() -> None:
    life = Lifecycle()
    seen = [life.open]
    assert life.take(INITIALIZE) is None
    seen.append(life.open)
    assert life.move(Step.ACCEPTED) is None
    seen.append(life.open)
    assert life.take(INITIALIZED) is None
    assert (life.phase, *seen, life.open) == (Phase.LIVE, False, False, True, True)


@pytest.mark.spec("LC-1")
@pytest.mark.parametrize("said", [CALL, PING, NOTE, ANSWER, INITIALIZED])
def test_nothing_comes_before_initialize(said: Message) -> None:
    refusal(at(Phase.NEW), said)


@pytest.mark.spec("LC-4", "CP-14")
def test_only_pings_and_what_needs_no_answer_come_before_the_answer_to_initialize() -> None:
    life = at(Phase.OPENING)
    for said in (PING, NOTE, ANSWER):
        assert life.take(said) is None
    for said in (CALL, INITIALIZE, INITIALIZED):
        refusal(life, said)


def test_a_client_that_never_says_initialized_is_served_all_the_same() -> None:
    life = at(Phase.OPENED)
    for said in (CALL, PING, NOTE, ANSWER):
        assert life.take(said) is None
    assert life.phase is Phase.OPENED


def test_everything_passes_in_a_live_session_initialized_once_more_too() -> None:
    life = at(Phase.LIVE)
    for said in (CALL, PING, NOTE, ANSWER, INITIALIZED):
        assert life.take(said) is None
    assert life.phase is Phase.LIVE


@pytest.mark.case("SS-08")
@pytest.mark.parametrize("phase", [Phase.OPENING, Phase.OPENED, Phase.LIVE, Phase.CLOSED])
def test_a_session_is_initialized_once(phase: Phase) -> None:
    assert refusal(at(phase), INITIALIZE).id == 1


def test_a_server_that_refuses_to_initialize_ends_the_session() -> None:
    life = at(Phase.OPENING)
    assert life.move(Step.REJECTED) is None
    assert (life.phase, life.open) == (Phase.CLOSED, False)


@pytest.mark.parametrize("said", [CALL, PING, NOTE, ANSWER, INITIALIZED, INITIALIZE])
def test_nothing_passes_in_a_closed_session(said: Message) -> None:
    refusal(at(Phase.CLOSED), said)


@pytest.mark.parametrize("phase", list(Phase))
def test_a_session_can_be_closed_at_any_time_and_again(phase: Phase) -> None:
    life = at(phase)
    assert life.move(Step.CLOSE) is None
    assert life.move(Step.CLOSE) is None
    assert not life.open


def test_a_refusal_names_the_request_and_the_reason() -> None:
    assert refusal(at(Phase.NEW), CALL) == Malformed(
        INVALID_REQUEST, "Invalid Request: the first request must be initialize", 2
    )
    assert refusal(at(Phase.CLOSED), NOTE).id is None


@pytest.mark.parametrize("phase", [Phase.NEW, Phase.OPENED, Phase.LIVE, Phase.CLOSED])
def test_an_answer_to_initialize_counts_only_while_one_is_due(phase: Phase) -> None:
    life = at(phase)
    assert life.move(Step.ACCEPTED) is not None
    assert life.phase is phase
