"""What may become of a call, and how it is found again."""

from __future__ import annotations

import itertools

import pytest

from bridge.core.events import Exchange, Party
from bridge.core.message import error, request, result
from bridge.era.attribution import Nobody, attributed
from bridge.era.calls import Board, Call, Move, State
from bridge.era.envelope import Envelope
from bridge.era.visits import visits

ALLOWED = {
    State.HELD: {Move.SEND, Move.END},
    State.RUNNING: {Move.SEND, Move.QUESTION, Move.SETTLED, Move.AWAY, Move.RESULT, Move.END},
    State.COALESCING: {Move.QUESTION, Move.SETTLED, Move.AWAY, Move.END},
    State.SUSPENDED: {Move.QUESTION, Move.SETTLED, Move.RESULT, Move.RETURN, Move.END},
    State.KEPT: {Move.SETTLED, Move.RETURN, Move.END},
    State.ENDED: set[Move](),
}


def call_on(board: Board, method: str = "tools/call", subject: str = "ann", name: str = '"a"') -> Call:
    asked = request(1, method, b'{"name":%b}' % name.encode())
    exchange = Exchange(Party("modern", subject), asked, None)
    return board.new(exchange, asked, Envelope(), now=0.0, logs=2)


@pytest.mark.parametrize(("state", "move"), list(itertools.product(State, Move)))
def test_only_what_the_table_allows_can_happen(state: State, move: Move) -> None:
    call = call_on(Board())
    call.state = state
    if move in ALLOWED[state]:
        call.move(move)
    else:
        with pytest.raises(KeyError):
            call.move(move)


class Running:
    over = False

    def cancel(self) -> None:
        self.over = True


@pytest.mark.parametrize(
    ("state", "move", "over"),
    [
        (State.COALESCING, Move.QUESTION, False),
        (State.COALESCING, Move.SETTLED, True),
        (State.SUSPENDED, Move.RETURN, True),
        (State.SUSPENDED, Move.RESULT, False),
        (State.KEPT, Move.END, True),
    ],
)
def test_timer_ends_with_what_it_was_for(state: State, move: Move, over: bool) -> None:
    call = call_on(Board())
    timer = Running()
    call.state, call.timer = state, timer
    call.move(move)
    assert timer.over is over
    assert (call.timer is None) is over


def test_call_is_found_by_where_it_is_answered_until_it_is() -> None:
    board = Board()
    call = call_on(board)
    exchange = call.exchange
    assert exchange is not None
    assert board.of(exchange) is call
    assert board.of_party(exchange.party) == [exchange]
    assert board.detach(call) is exchange
    assert board.of(exchange) is None
    assert board.numbered(call.serial) is call
    board.end(call)
    assert board.numbered(call.serial) is None
    assert not board


@pytest.mark.parametrize("serial", ["1", 2, None])
def test_number_of_no_call_finds_none(serial: object) -> None:
    board = Board()
    assert call_on(board).serial == 1
    assert board.numbered(serial) is None


@pytest.mark.parametrize(("name", "found"), [('"a"', "a"), ("5", ""), ('"\\ud800"', "")])
def test_name_is_what_can_be_read_of_it(name: str, found: str) -> None:
    assert call_on(Board(), name=name).name == found


def test_only_some_requests_can_be_asked_about() -> None:
    assert call_on(Board()).multi_round
    assert not call_on(Board(), "tools/list").multi_round


def test_attribution_guesses_within_one_subject_only() -> None:
    board = Board()
    assert attributed([], lambda _: True) is Nobody.THERE
    first, second, third = call_on(board), call_on(board), call_on(board, subject="bob")
    assert attributed([first, second], lambda _: True) is second
    assert attributed([first, second], lambda call: call is first) is first
    assert attributed([first, second], lambda _: False) is Nobody.THERE
    second.state = State.SUSPENDED
    assert attributed([first, second], lambda _: True) is first
    first.state = State.SUSPENDED
    assert attributed([first, second], lambda _: True) is second
    assert attributed([first, third], lambda call: call is first) is Nobody.CERTAIN


def test_error_that_cannot_be_read_wants_nothing_visited() -> None:
    page = b'{"mode":"url","url":"https://u/","message":"m"}'
    wanted = visits(error(1, -32042, "Visit!", b'{"elicitations":[%b,5]}' % page))
    assert wanted is not None
    assert (wanted.message, [bytes(one) for one in wanted.pages]) == ("Visit!", [page])
    assert visits(result(1, b"{}")) is None
    assert visits(error(1, -32041, "", b'{"elicitations":[%b]}' % page)) is None
    for data in (
        None,
        b"5",
        b'{"elicitations":5}',
        b'{"elicitations":[{"mode":"form","url":"u","message":"m"}]}',
    ):
        assert visits(error(1, -32042, "", data)) is None
