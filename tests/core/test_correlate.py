"""Ids, progress tokens, tasks, cancellation and questions on one hop, whoever shares it."""

from __future__ import annotations

import pytest
from transcript import Hop, raw, read

from bridge.core import correlate
from bridge.core.events import Answered, Ended, Noted, Party, Questioned, Replied
from bridge.core.message import Id, Response, error

TOKEN = b'{"_meta":{"progressToken":%b}}'


def party() -> Party:
    return Party("party")


def progress(token: bytes) -> bytes:
    return b'{"progressToken":%b,"progress":1.0}' % token


def cancelled(hop_id: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%b}}' % hop_id


# --- ids ---


@pytest.mark.spec("G-6", "G-19")
@pytest.mark.case("ID-01")
@pytest.mark.parametrize(
    "request_id", [0, -1, 1, "0", "1", "", "007", "日本", 18446744073709551616, "x" * 4096]
)
@pytest.mark.parametrize("fresh", [False, True])
def test_an_answer_comes_back_under_the_id_that_was_asked_with(request_id: Id, fresh: bool) -> None:
    hop, client = Hop(fresh=fresh), party()
    exchange = hop.ask(client, request_id, "tools/list")
    [line] = hop.take_sent()
    asked = read(line)
    assert not isinstance(asked, Response)
    hop.hear(line.replace(b'"method":"tools/list"', b'"result":{"n":1.0}'))
    [event] = hop.take_fallen()
    assert isinstance(event, Answered)
    assert event.exchange is exchange
    assert (event.response.id, type(event.response.id)) == (request_id, type(request_id))
    assert event.response == read(event.response.raw)
    assert raw(event.response.result) == b'{"n":1.0}'


def test_where_ids_are_kept_a_line_passes_byte_for_byte() -> None:
    """K1: own server, own session; nothing has a reason to change."""
    hop, client = Hop(), party()
    params = b'{"z":1E400,"_meta":{"progressToken":"t"},"a":-0}'
    exchange = hop.ask(client, 5, "tools/call", params)
    hop.note("notifications/progress", progress(b'"t"'))
    hop.withdraw(exchange, b'{"requestId":5,"reason":"\\u00e9"}')
    assert hop.take_sent() == [
        b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":%b}' % params,
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5,"reason":"\\u00e9"}}',
    ]
    [(_, noted, line)] = hop.notes()
    assert noted is exchange
    assert line == b'{"jsonrpc":"2.0","method":"notifications/progress","params":%b}' % progress(b'"t"')


@pytest.mark.case("ID-05")
def test_equal_ids_of_several_parties_are_told_apart() -> None:
    hop, a, b = Hop(fresh=True), party(), party()
    of_a, of_b = hop.ask(a, 1, "tools/list"), hop.ask(b, 1, "tools/list")
    assert hop.take_sent() == [
        b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}',
    ]
    hop.answer(b"2", b'"b"')
    hop.answer(b"1", b'"a"')
    assert hop.answers() == [
        (of_b, b'{"jsonrpc":"2.0","id":1,"result":"b"}'),
        (of_a, b'{"jsonrpc":"2.0","id":1,"result":"a"}'),
    ]


@pytest.mark.spec("G-4")
def test_a_fresh_id_is_never_used_again() -> None:
    hop, client = Hop(fresh=True), party()
    for serial in range(1, 5):
        hop.ask(client, 1, "tools/list")
        assert hop.take_sent() == [b'{"jsonrpc":"2.0","id":%d,"method":"tools/list"}' % serial]
        hop.answer(b"%d" % serial)


@pytest.mark.case("ID-01")
def test_an_answer_under_an_id_of_another_type_is_nobodys() -> None:
    hop, client = Hop(), party()
    hop.ask(client, 1, "tools/list")
    hop.answer(b'"1"')
    hop.answer(b"2")
    assert hop.take_fallen() == []
    assert 1 in client.exchanges


@pytest.mark.spec("CP-4")
def test_a_second_answer_is_dropped() -> None:
    hop, client = Hop(), party()
    hop.ask(client, 1, "tools/list")
    hop.answer(b"1", b'"first"')
    hop.answer(b"1", b'"second"')
    assert [line for _, line in hop.answers()] == [b'{"jsonrpc":"2.0","id":1,"result":"first"}']


# --- cancellation ---


@pytest.mark.spec("CP-1", "CP-3")
@pytest.mark.case("ID-06")
def test_a_cancellation_names_the_id_that_the_server_knows() -> None:
    hop, a, b = Hop(fresh=True), party(), party()
    of_a, of_b = hop.ask(a, 7), hop.ask(b, 7)
    hop.take_sent()
    hop.withdraw(of_b, b'{"requestId":7,"reason":"no","x":1.0}')
    assert hop.take_sent() == [
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"no","x":1.0}}'
    ]
    hop.answer(b"1")
    assert [exchange for exchange, _ in hop.answers()] == [of_a]


@pytest.mark.spec("SC-8", "CP-3", "SS-5")
def test_a_cancelled_call_is_never_answered_and_hears_no_more() -> None:
    hop, client = Hop(fresh=True), party()
    exchange = hop.ask(client, 7, "tools/call", TOKEN % b"1")
    hop.take_sent()
    hop.withdraw(exchange)
    assert hop.take_sent() == [cancelled(b"1")]
    hop.note("notifications/progress", progress(b"2"))
    hop.answer(b"1")
    assert hop.take_fallen() == []
    assert hop.leftovers() == {}


@pytest.mark.spec("CP-3", "CP-5")
@pytest.mark.case("ID-06")
def test_a_cancellation_that_comes_late_or_twice_is_ignored() -> None:
    hop, client = Hop(), party()
    answered, twice = hop.ask(client, 1), hop.ask(client, 2)
    hop.answer(b"1")
    hop.withdraw(twice)
    hop.take_sent()
    hop.withdraw(answered, b'{"requestId":1}')
    hop.withdraw(twice)
    assert hop.take_sent() == []


@pytest.mark.spec("CP-4", "CP-5")
@pytest.mark.case("ID-06")
def test_the_late_answer_to_a_cancelled_call_is_not_taken_for_the_next_calls_with_that_id() -> None:
    hop, client = Hop(), party()
    old = hop.ask(client, 7, "tools/call", b'{"n":1}')
    hop.withdraw(old)
    hop.take_sent()
    new = hop.ask(client, 7, "tools/call", b'{"n":2}')
    assert hop.take_sent() == [b'{"jsonrpc":"2.0","id":"mb-1","method":"tools/call","params":{"n":2}}']
    hop.answer(b"7", b'"old"')
    assert hop.take_fallen() == []
    hop.answer(b'"mb-1"', b'"new"')
    assert hop.answers() == [(new, b'{"jsonrpc":"2.0","id":7,"result":"new"}')]


@pytest.mark.case("ID-06")
def test_the_second_call_with_a_reused_id_can_be_cancelled() -> None:
    hop, client = Hop(), party()
    hop.withdraw(hop.ask(client, 7))
    new = hop.ask(client, 7)
    hop.take_sent()
    hop.withdraw(new, b'{"requestId":7}')
    assert hop.take_sent() == [cancelled(b'"mb-1"')]


def test_a_minted_id_keeps_out_of_the_way_of_a_clients_own() -> None:
    hop, client = Hop(), party()
    for request_id in ("mb-1", 7):
        hop.ask(client, request_id, "tools/list")
    hop.withdraw(client.exchanges[7])
    hop.take_sent()
    hop.ask(client, 7, "tools/list")
    assert hop.take_sent() == [b'{"jsonrpc":"2.0","id":"mb-2","method":"tools/list"}']


@pytest.mark.spec("LC-12")
def test_initialize_is_never_cancelled_at_the_server() -> None:
    hop, client = Hop(), party()
    hop.ask(client, 1, "initialize")
    hop.take_sent()
    hop.leave(client)
    assert hop.take_sent() == []
    hop.answer(b"1")
    assert hop.take_fallen() == []


def test_cancelled_calls_without_an_answer_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlate, "MOST_UNANSWERED", 3)
    hop, client = Hop(), party()
    for request_id in range(10):
        hop.withdraw(hop.ask(client, request_id, "tools/call", TOKEN % b'"t%d"' % request_id))
    assert set(hop.leftovers().values()) == {3}
    hop.take_sent()
    hop.ask(client, 0, "tools/list")
    hop.ask(client, 9, "tools/list")
    assert hop.take_sent() == [
        b'{"jsonrpc":"2.0","id":0,"method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":"mb-1","method":"tools/list"}',
    ]


def test_what_is_remembered_of_an_ended_call_never_harms_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled subscription that the server tears down is over; its id may be used again."""
    monkeypatch.setattr(correlate, "MOST_UNANSWERED", 1)
    hop, client = Hop(), party()
    hop.withdraw(hop.ask(client, 5, "subscriptions/listen"))
    hop.note("notifications/cancelled", b'{"requestId":5}')
    again = hop.ask(client, 5, "tools/list")
    for request_id in (6, 7):
        hop.withdraw(hop.ask(client, request_id))
    hop.answer(b"5")
    assert [exchange for exchange, _ in hop.answers()] == [again]


# --- errors without an id ---


@pytest.mark.spec("G-20")
def test_an_error_without_an_id_answers_the_only_call_if_that_was_sent_last() -> None:
    hop, client = Hop(fresh=True), party()
    exchange = hop.ask(client, "a", "tools/list")
    hop.fail(b"null", -32700)
    assert hop.answers() == [(exchange, b'{"jsonrpc":"2.0","id":"a","error":{"code":-32700,"message":""}}')]


@pytest.mark.spec("G-20")
def test_what_sends_nothing_does_not_part_an_error_without_an_id_from_its_call() -> None:
    hop, a, b = Hop(fresh=True), party(), party()
    exchange = hop.ask(a, 1)
    hop.leave(b)
    hop.fail(b"null")
    assert [one for one, _ in hop.answers()] == [exchange]


@pytest.mark.spec("G-20")
def test_an_error_without_an_id_is_nobodys_where_several_wait() -> None:
    hop, client = Hop(), party()
    hop.ask(client, 1)
    hop.ask(client, 2)
    hop.fail(b"null")
    assert hop.take_fallen() == []


@pytest.mark.case("RT-04")
def test_an_error_without_an_id_after_something_else_was_sent_does_not_end_the_call() -> None:
    """A server that fails on the pong says so without an id, and the tool still runs."""
    hop, client = Hop(), party()
    exchange = hop.ask(client, 1)
    question = hop.question(b'"p"', "ping")
    hop.take_fallen()
    hop.reply(question)
    hop.fail(b"null")
    assert hop.take_fallen() == []
    hop.answer(b"1")
    assert [one for one, _ in hop.answers()] == [exchange]


def test_an_error_without_an_id_is_nobodys_when_nothing_or_a_cancelled_call_is_open() -> None:
    hop, client = Hop(), party()
    hop.fail(b"null")
    hop.withdraw(hop.ask(client, 1))
    hop.fail(b"null")
    assert hop.take_fallen() == []


# --- progress ---


@pytest.mark.spec("CP-8", "CP-9")
@pytest.mark.case("ID-07")
@pytest.mark.parametrize("token", [b"1", b'"1"', b"0", b'""', '"日"'.encode()])
def test_progress_reaches_its_owner_alone_under_the_owners_token(token: bytes) -> None:
    hop, a, b = Hop(fresh=True), party(), party()
    of_a = hop.ask(a, 1, "tools/call", TOKEN % token)
    of_b = hop.ask(b, 1, "tools/call", b'{"a":1.0,"_meta":{"progressToken":%b,"x":1e5}}' % token)
    first, second = hop.take_sent()
    assert b'"_meta":{"progressToken":2}' in first
    assert b'{"a":1.0,"_meta":{"progressToken":4,"x":1e5}}' in second
    hop.note("notifications/progress", progress(b"4"))
    hop.note("notifications/progress", progress(b"2"))
    line = b'{"jsonrpc":"2.0","method":"notifications/progress","params":%b}' % progress(token)
    assert hop.notes() == [(b, of_b, line), (a, of_a, line)]


@pytest.mark.spec("CP-9")
@pytest.mark.case("ID-07")
@pytest.mark.parametrize("fresh", [False, True])
def test_progress_with_an_unknown_token_or_after_the_answer_is_dropped(fresh: bool) -> None:
    hop, client = Hop(fresh=fresh), party()
    hop.ask(client, 1, "tools/call", TOKEN % b"1")
    hop.ask(client, 2)
    hop.answer(b"1")
    hop.take_fallen()
    for token in (b"1", b"2", b'"1"', b"1.0", b"null"):
        hop.note("notifications/progress", progress(token))
    hop.note("notifications/progress")
    assert hop.take_fallen() == []


@pytest.mark.case("ID-07")
@pytest.mark.parametrize("params", [None, b"{}", b"[]", b'{"_meta":{}}', b'{"_meta":{"progressToken":1.0}}'])
def test_no_token_is_ever_invented(params: bytes | None) -> None:
    hop, client = Hop(fresh=True), party()
    hop.ask(client, 1, "tools/call", params)
    tail = b"" if params is None else b',"params":' + params
    assert hop.take_sent() == [b'{"jsonrpc":"2.0","id":1,"method":"tools/call"%b}' % tail]


@pytest.mark.spec("CP-8")
@pytest.mark.case("ID-07")
def test_a_token_in_use_is_minted_anew_for_the_second_call() -> None:
    hop, client = Hop(), party()
    first = hop.ask(client, 1, "tools/call", TOKEN % b'"t"')
    second = hop.ask(client, 2, "tools/call", TOKEN % b'"t"')
    assert hop.take_sent()[1].endswith(b'{"progressToken":"mb-1"}}}')
    hop.note("notifications/progress", progress(b'"mb-1"'))
    hop.note("notifications/progress", progress(b'"t"'))
    line = b'{"jsonrpc":"2.0","method":"notifications/progress","params":%b}' % progress(b'"t"')
    assert hop.notes() == [(client, second, line), (client, first, line)]


@pytest.mark.case("ID-07")
def test_late_progress_of_a_cancelled_call_is_not_taken_for_the_next_calls_with_that_token() -> None:
    hop, client = Hop(), party()
    hop.withdraw(hop.ask(client, 1, "tools/call", TOKEN % b'"t"'))
    new = hop.ask(client, 2, "tools/call", TOKEN % b'"t"')
    hop.note("notifications/progress", progress(b'"t"'))
    assert hop.take_fallen() == []
    hop.note("notifications/progress", progress(b'"mb-1"'))
    assert [exchange for _, exchange, _ in hop.notes()] == [new]


# --- tasks of 2025-11-25 ---

CREATED = b'{"task":{"taskId":"T","status":"working"}}'


def begin(hop: Hop, client: Party) -> None:
    hop.ask(client, 1, "tools/call", b'{"task":{"ttl":60000},"_meta":{"progressToken":"t"}}')
    hop.answer(b"1", CREATED)
    hop.take_fallen()
    hop.take_sent()


def ticks(hop: Hop, token: bytes) -> list[Party | None]:
    hop.note("notifications/progress", progress(token))
    return [owner for owner, _, _ in hop.notes()]


@pytest.mark.spec("CP-10")
@pytest.mark.case("ID-07")
@pytest.mark.parametrize("status", [b"completed", b"failed", b"cancelled"])
def test_the_token_of_a_task_lives_until_the_task_ends(status: bytes) -> None:
    hop, client = Hop(), party()
    begin(hop, client)
    assert ticks(hop, b'"t"') == [client]
    hop.note("notifications/tasks/status", b'{"taskId":"T","status":"input_required"}')
    hop.take_fallen()
    assert ticks(hop, b'"t"') == [client]
    hop.note("notifications/tasks/status", b'{"taskId":"T","status":"%b"}' % status)
    hop.take_fallen()
    assert ticks(hop, b'"t"') == []
    assert hop.leftovers() == {}


@pytest.mark.spec("CP-10")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel"])
def test_a_task_ends_by_what_its_client_is_told_too(method: str) -> None:
    hop, client = Hop(), party()
    begin(hop, client)
    hop.ask(client, 2, method, b'{"taskId":"T"}')
    hop.answer(b"2", b'{"taskId":"T","status":"cancelled"}')
    hop.take_fallen()
    assert ticks(hop, b'"t"') == []


def test_the_progress_of_a_task_belongs_to_no_stream_of_a_call() -> None:
    hop, client = Hop(), party()
    begin(hop, client)
    hop.note("notifications/progress", progress(b'"t"'))
    assert [exchange for _, exchange, _ in hop.notes()] == [None]


@pytest.mark.case("ID-07")
@pytest.mark.parametrize(
    ("params", "value"),
    [
        (TOKEN % b'"t"', CREATED),
        (b'{"task":{},"_meta":{"progressToken":"t"}}', b'{"content":[]}'),
        (b'{"task":{},"_meta":{"progressToken":"t"}}', b'{"task":{"taskId":"T","status":"completed"}}'),
        (b'{"task":{},"_meta":{"progressToken":"t"}}', b"null"),
    ],
)
def test_the_token_of_any_other_call_ends_with_its_answer(params: bytes, value: bytes) -> None:
    hop, client = Hop(), party()
    hop.ask(client, 1, "tools/call", params)
    hop.answer(b"1", value)
    hop.take_fallen()
    assert ticks(hop, b'"t"') == []
    assert hop.leftovers() == {}


@pytest.mark.case("ID-07")
def test_token_that_was_used_before_is_minted_since_progress_may_be_late() -> None:
    hop, client = Hop(), party()
    hop.ask(client, 1, "tools/call", TOKEN % b'"t"')
    hop.answer(b"1")
    again = hop.ask(client, 2, "tools/call", TOKEN % b'"t"')
    hop.take_fallen()
    assert ticks(hop, b'"t"') == []
    assert again.hop_token != "t"
    hop.note("notifications/progress", progress(b'"%b"' % str(again.hop_token).encode()))
    [(owner, exchange, params)] = hop.notes()
    assert (owner, exchange) == (client, again)
    assert b'"progressToken":"t"' in params


def test_the_status_of_a_task_goes_to_the_party_that_made_it() -> None:
    hop, a, b = Hop(fresh=True), party(), party()
    hop.ask(b, 1, "tools/call", b'{"task":{}}')
    hop.answer(b"1", CREATED)
    hop.take_fallen()
    hop.note("notifications/tasks/status")
    assert [(one, exchange) for one, exchange, _ in hop.notes()] == [(None, None)]
    for task, owner in ((b"T", b), (b"other", None)):
        hop.note("notifications/tasks/status", b'{"taskId":"%b","status":"working"}' % task)
        assert [(one, exchange) for one, exchange, _ in hop.notes()] == [(owner, None)]
    assert a.exchanges == {}


def test_tasks_of_a_party_that_left_are_forgotten_and_the_oldest_beyond_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(correlate, "MOST_UNANSWERED", 2)
    hop, a, b = Hop(fresh=True), party(), party()
    for task, owner in enumerate((a, a, a, b)):
        hop.ask(owner, 1, "tools/call", b'{"task":{},"_meta":{"progressToken":1}}')
        hop.answer(b"%d" % (2 * task + 1), b'{"task":{"taskId":"T%d","status":"working"}}' % task)
    assert hop.leftovers() == {"_tasks": 2, "_tokens": 2}
    hop.leave(a)
    assert hop.leftovers() == {"_tasks": 1, "_tokens": 1}


# --- questions of the server ---


@pytest.mark.spec("G-6")
@pytest.mark.case("ID-01")
@pytest.mark.parametrize("text", [b"0", b'"0"', b'""', b"1", b'"q"'])
def test_a_question_and_a_call_may_have_equal_ids(text: bytes) -> None:
    hop, client = Hop(), party()
    exchange = hop.ask(client, 1)
    question = hop.question(text)
    client.enter(question)
    hop.take_sent()
    hop.take_fallen()
    hop.reply(client.questions[question.party_id], b'"yes"')
    assert hop.take_sent() == [b'{"jsonrpc":"2.0","id":%b,"result":"yes"}' % text]
    assert client.questions == {}
    hop.answer(b"1")
    assert [one for one, _ in hop.answers()] == [exchange]


def test_a_question_is_answered_once() -> None:
    hop, client = Hop(), party()
    question = hop.question(b"1")
    client.enter(question)
    hop.reply(question)
    hop.reply(question)
    assert len(hop.take_sent()) == 1


def test_two_questions_under_one_id_get_an_answer_each() -> None:
    """A server that does not wait for its pings may use one id for them all."""
    hop, client = Hop(), party()
    first, second = hop.question(b'"p"', "ping"), hop.question(b'"p"', "ping")
    for question in (first, second):
        client.enter(question)
    assert [first.party_id, second.party_id] == ["p", "mb-1"]
    hop.reply(second)
    hop.reply(first)
    assert hop.take_sent() == [b'{"jsonrpc":"2.0","id":"p","result":{}}'] * 2
    assert hop.leftovers() == {}


def test_questions_with_equal_ids_wait_at_several_parties() -> None:
    hop, a, b = Hop(fresh=True), party(), party()
    first, second = hop.question(b"0"), hop.question(b"0")
    a.enter(first)
    b.enter(second)
    assert (a.questions, b.questions) == ({0: first}, {0: second})


@pytest.mark.spec("CP-1")
def test_a_question_that_the_server_takes_back_is_told_to_its_party_under_its_own_id() -> None:
    hop, client = Hop(), party()
    first, second = hop.question(b"3"), hop.question(b"3")
    for question in (first, second):
        client.enter(question)
    hop.take_fallen()
    hop.note("notifications/cancelled", b'{"requestId":3,"reason":"x"}')
    params = b'{"requestId":"mb-1","reason":"x"}'
    line = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":%b}' % params
    assert hop.notes() == [(client, None, line)]
    assert client.questions == {3: first}
    hop.reply(second)
    assert hop.take_sent() == []


@pytest.mark.spec("CP-7")
@pytest.mark.parametrize(
    "params", [None, b"{}", b"[]", b'{"requestId":"3"}', b'{"requestId":3.0}', b'{"requestId":9}']
)
def test_a_cancellation_of_nothing_that_was_asked_is_ignored(params: bytes | None) -> None:
    hop, client = Hop(), party()
    client.enter(hop.question(b"3"))
    hop.ask(client, 9)
    hop.take_fallen()
    hop.note("notifications/cancelled", params)
    assert hop.take_fallen() == []
    assert (set(client.questions), set(client.exchanges)) == ({3}, {9})


def test_questions_without_an_answer_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlate, "MOST_UNANSWERED", 3)
    hop, client = Hop(), party()
    asked = [hop.question(b"%d" % number) for number in range(5)]
    for question in asked[2:]:
        client.enter(question)
    last = hop.question(b"9")
    client.enter(last)
    assert list(client.questions) == [3, 4, 9]
    assert hop.leftovers() == {"_questions": 3}


def test_a_question_that_is_forgotten_gets_no_answer() -> None:
    hop, client = Hop(fresh=True), party()
    question = hop.question(b"1")
    client.enter(question)
    hop.correlation.forget(question)
    hop.reply(question)
    assert (hop.sent, client.questions, hop.leftovers()) == ([], {}, {})


# --- subscriptions of 2026-07-28 ---

SID = b'"io.modelcontextprotocol/subscriptionId"'


def listen(hop: Hop, client: Party, request_id: Id) -> None:
    hop.ask(client, request_id, "subscriptions/listen", b'{"toolsListChanged":true}')


@pytest.mark.spec("SB-3", "SC-7")
def test_what_carries_a_subscription_id_reaches_that_listener_under_its_own_id() -> None:
    hop, a, b = Hop(fresh=True), party(), party()
    listen(hop, a, 1)
    listen(hop, b, "1")
    for method in ("notifications/subscriptions/acknowledged", "notifications/tools/list_changed"):
        hop.note(method, b'{"x":1.0,"_meta":{%b:2,"y":{}}}' % SID)
        [(owner, exchange, line)] = hop.notes()
        assert owner is b
        assert exchange is b.exchanges["1"]
        assert line.endswith(b'"params":{"x":1.0,"_meta":{%b:"1","y":{}}}}' % SID)
    hop.note("notifications/tools/list_changed", b'{"_meta":{%b:9}}' % SID)
    assert hop.take_fallen() == []


@pytest.mark.spec("SB-3", "SB-5")
def test_the_closing_result_of_a_subscription_carries_its_own_id() -> None:
    hop, client = Hop(fresh=True), party()
    listen(hop, client, "L")
    hop.answer(b"1", b'{"resultType":"complete","_meta":{%b:1}}' % SID)
    [(_, line)] = hop.answers()
    assert line == b'{"jsonrpc":"2.0","id":"L","result":{"resultType":"complete","_meta":{%b:"L"}}}' % SID


@pytest.mark.parametrize("value", [b"null", b"[]", b'{"_meta":null}', b'{"_meta":[]}', b'"x"'])
def test_a_closing_result_of_another_shape_is_passed_on_as_it_is(value: bytes) -> None:
    hop, client = Hop(fresh=True), party()
    listen(hop, client, "L")
    hop.answer(b"1", value)
    assert [line for _, line in hop.answers()] == [b'{"jsonrpc":"2.0","id":"L","result":%b}' % value]


@pytest.mark.spec("SB-6", "CP-2")
def test_a_subscription_that_the_server_tears_down_is_over() -> None:
    hop, client = Hop(fresh=True), party()
    listen(hop, client, "L")
    exchange = client.exchanges["L"]
    hop.note("notifications/cancelled", b'{"requestId":1}')
    assert hop.take_fallen() == [Ended(exchange)]
    assert (client.exchanges, hop.leftovers()) == ({}, {})


def test_a_cancelled_subscription_hears_no_more() -> None:
    hop, client = Hop(fresh=True), party()
    listen(hop, client, "L")
    hop.withdraw(client.exchanges["L"])
    hop.note("notifications/tools/list_changed", b'{"_meta":{%b:1}}' % SID)
    hop.note("notifications/cancelled", b'{"requestId":1}')
    assert hop.take_fallen() == []
    assert hop.leftovers() == {}


# --- other notifications ---


@pytest.mark.spec("FT-2")
def test_a_log_message_belongs_to_the_newest_request_that_asked_for_them() -> None:
    hop, client = Hop(fresh=True), party()
    hop.ask(client, 1, log=True)
    newer = hop.ask(client, 2, log=True)
    cancelled_one = hop.ask(client, 3, log=True)
    hop.ask(client, 4)
    hop.withdraw(cancelled_one)
    hop.note("notifications/message", b'{"level":"info"}')
    assert [(owner, exchange) for owner, exchange, _ in hop.notes()] == [(client, newer)]


@pytest.mark.case("ID-11")
@pytest.mark.parametrize("method", ["notifications/message", "notifications/tools/list_changed", "x/unknown"])
def test_a_notification_that_names_nobody_is_nobodys_yet(method: str) -> None:
    hop, client = Hop(), party()
    hop.ask(client, 1)
    hop.note(method, b'{"_meta":{"x":1.0}}')
    line = b'{"jsonrpc":"2.0","method":"%b","params":{"_meta":{"x":1.0}}}' % method.encode()
    assert hop.notes() == [(None, None, line)]


@pytest.mark.case("ID-11", "ID-12")
@pytest.mark.parametrize("fresh", [False, True])
def test_unknown_methods_and_all_params_pass(fresh: bool) -> None:
    hop, client = Hop(fresh=fresh), party()
    hop.ask(client, 1, "vendor/thing", b'{"cursor":"a=+ b","__proto__":null}')
    hop.tell(client, "vendor/told", b"[1.0]")
    assert hop.take_sent() == [
        b'{"jsonrpc":"2.0","id":1,"method":"vendor/thing","params":{"cursor":"a=+ b","__proto__":null}}',
        b'{"jsonrpc":"2.0","method":"vendor/told","params":[1.0]}',
    ]


# --- the end ---


def test_whoever_leaves_withdraws_what_it_asked_and_refuses_what_it_was_asked() -> None:
    hop, a, b = Hop(fresh=True), party(), party()
    hop.ask(a, 1)
    of_b = hop.ask(b, 1)
    a.enter(hop.question(b'"q"'))
    b.enter(hop.question(b'"r"'))
    hop.take_sent()
    hop.take_fallen()
    hop.leave(a)
    data = b'{"origin":"bridge","reason":"client_gone"}'
    refused = b'{"code":-32603,"message":"The client is gone","data":%b}' % data
    assert hop.take_sent() == [cancelled(b"1"), b'{"jsonrpc":"2.0","id":"q","error":%b}' % refused]
    assert (a.exchanges, a.questions, set(b.questions)) == ({}, {}, {"r"})
    hop.answer(b"1")
    hop.answer(b"2")
    assert [exchange for exchange, _ in hop.answers()] == [of_b]


def test_what_waited_for_a_lost_server_is_given_back_oldest_first_and_nothing_is_kept() -> None:
    hop, a, b = Hop(fresh=True), party(), party()
    first = hop.ask(a, 1, "tools/call", TOKEN % b"1")
    gone = hop.ask(a, 2)
    last = hop.ask(b, 1)
    hop.ask(b, 2, "tools/call", b'{"task":{}}')
    hop.answer(b"5", CREATED)
    hop.withdraw(gone)
    for owner in (a, b):
        owner.enter(hop.question(b"0"))
    assert set(hop.leftovers()) == {"_open", "_tokens", "_tasks", "_questions", "_cancelled"}
    assert hop.correlation.lost() == [first, last]
    assert [(owner.exchanges, owner.questions) for owner in (a, b)] == [({}, {})] * 2
    assert hop.leftovers() == {}
    assert hop.correlation.lost() == []


def test_an_answer_that_cannot_be_read_ends_its_call_and_no_other() -> None:
    hop, client = Hop(fresh=True), party()
    exchange = hop.ask(client, 7, "tools/call", TOKEN % b"1")
    hop.withdraw(hop.ask(client, 8))
    assert hop.correlation.failed(7) is None
    assert hop.correlation.failed(3) is None
    assert hop.correlation.failed(1) is exchange
    assert (client.exchanges, hop.leftovers()) == ({}, {})


def test_answers_of_a_client_pass_as_they_are() -> None:
    hop, client = Hop(), party()
    question = hop.question(b"1")
    client.enter(question)
    refused = error(1, -1, "User declined", b'{"a":1.0}')
    hop.rise(Replied(question, refused))
    assert hop.take_sent() == [refused.raw]


def test_events_of_the_server_carry_its_own_messages() -> None:
    hop = Hop()
    hop.hear(b'{"jsonrpc":"2.0","id":1,"method":"roots/list","params":{"x":1.0}}')
    [event] = hop.take_fallen()
    assert isinstance(event, Questioned)
    assert event.request.raw == b'{"jsonrpc":"2.0","id":1,"method":"roots/list","params":{"x":1.0}}'
    assert event.question.party is None
    hop.note("x")
    [noted] = hop.take_fallen()
    assert isinstance(noted, Noted)


def test_log_message_without_a_stream_is_nobodys_where_it_could_be_of_several_subjects() -> None:
    hop, ann, bob = Hop(fresh=True), Party("a", "ann"), Party("b", "bob")
    first = hop.ask(ann, 1, log=True)
    hop.note("notifications/message", b'{"level":"info","data":1}')
    assert [exchange for _, exchange, _ in hop.notes()] == [first]
    hop.ask(bob, 1)
    hop.note("notifications/message", b'{"level":"info","data":2}')
    assert [exchange for _, exchange, _ in hop.notes()] == [None]


@pytest.mark.spec("CP-1")
def test_a_question_taken_back_after_its_call_was_cancelled_is_not_told_on_the_stream_of_that_call() -> None:
    hop, client = Hop(), party()
    call = hop.ask(client, 1)
    [asked] = hop.correlation.received(read(b'{"jsonrpc":"2.0","id":"q","method":"roots/list"}'), on=1)
    assert isinstance(asked, Questioned)
    assert asked.question.exchange is call
    client.enter(asked.question)
    hop.withdraw(call)
    hop.note("notifications/cancelled", b'{"requestId":"q"}')
    assert [(owner, exchange) for owner, exchange, _ in hop.notes()] == [(client, None)]
