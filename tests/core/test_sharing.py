"""Many legacy sessions on one server: what each is told, and what the server is asked on behalf of all."""

from __future__ import annotations

import pytest
from transcript import Hop

from bridge.core import message
from bridge.core.events import Noted, Party, Questioned, Replied
from bridge.core.sharing import Sharing

INITIALIZED = b'{"protocolVersion":"2025-11-25","capabilities":{"x":1.0},"serverInfo":{"name":"s"}}'
CAPABILITIES = frozenset({"sampling", "elicitation", "roots"})


def sharing(version: bytes = b"2025-11-25") -> Hop:
    return Hop(Sharing(INITIALIZED.replace(b"2025-11-25", version)), fresh=True)


def join(
    hop: Hop, name: str = "a", *, capabilities: frozenset[str] = frozenset(), subject: str = "one"
) -> Party:
    party = Party(name, subject)
    party.capabilities = capabilities
    hop.ask(party, 0, "initialize", b'{"protocolVersion":"2025-11-25"}')
    hop.take_fallen()
    return party


def two(hop: Hop, subjects: tuple[str, str] = ("one", "one")) -> tuple[Party, Party]:
    a, b = (
        join(hop, name, capabilities=CAPABILITIES, subject=subject)
        for name, subject in zip("ab", subjects, strict=True)
    )
    return a, b


STRANGERS = pytest.mark.parametrize(
    "subjects", [("one", "two"), ("one", ""), ("", "")], ids=["two", "one unknown", "both unknown"]
)


def lines(hop: Hop) -> list[bytes]:
    """What the clients were answered."""
    return [line for _, line in hop.answers()]


def heard(hop: Hop) -> list[str]:
    """Which parties were told something."""
    return [owner.name if owner else "?" for owner, _, _ in hop.notes()]


# --- the handshake ---


@pytest.mark.spec("LC-8")
@pytest.mark.case("SS-08")
@pytest.mark.parametrize(
    ("offered", "ours", "agreed"),
    [
        ("2025-06-18", "2025-11-25", "2025-06-18"),
        ("2025-06-18", "2025-03-26", "2025-03-26"),
        ("2025-11-25", "2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-06-18", "2025-06-18"),
        ("tomorrow", "2025-06-18", "2025-06-18"),
        ("2025-06-18", "own-brew", "own-brew"),
    ],
)
def test_a_handshake_is_answered_from_the_one_that_was_made(offered: str, ours: str, agreed: str) -> None:
    """K8: the server sees none of it."""
    hop = sharing(ours.encode())
    for request_id in (b"1", b'"1"'):
        asked = message.read(
            b'{"jsonrpc":"2.0","id":%b,"method":"initialize","params":{"protocolVersion":"%b"}}'
            % (request_id, offered.encode()),
            depth=9,
        )
        assert isinstance(asked, message.Request)
        hop.ask(Party("a"), asked.id, "initialize", bytes(asked.params or b""))
        value = INITIALIZED.replace(b"2025-11-25", agreed.encode())
        assert lines(hop) == [b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request_id, value)]
    assert hop.sent == []


@pytest.mark.parametrize(
    "params",
    [None, b"{}", b"[]", b'["2025-06-18"]', b'{"protocolVersion":7}', b'{"protocolVersion":"\\ud800"}'],
)
def test_an_initialize_that_offers_nothing_readable_is_answered_with_the_servers_version(
    params: bytes | None,
) -> None:
    hop = sharing()
    hop.ask(Party("a"), 1, "initialize", params)
    assert lines(hop) == [b'{"jsonrpc":"2.0","id":1,"result":%b}' % INITIALIZED]


@pytest.mark.parametrize(
    "value", [b"{}", b"[]", b"null", b'{"protocolVersion":1}', b'{"instructions":"\\ud800"}']
)
def test_an_odd_result_of_the_server_is_passed_to_all_as_it_is(value: bytes) -> None:
    hop = Hop(Sharing(value), fresh=True)
    hop.ask(Party("a"), 1, "initialize", b'{"protocolVersion":"2025-06-18"}')
    assert lines(hop) == [b'{"jsonrpc":"2.0","id":1,"result":%b}' % value]


@pytest.mark.case("SS-08")
def test_what_would_mean_something_else_from_all_sessions_does_not_reach_the_server() -> None:
    hop = sharing()
    party = join(hop)
    for method in ("notifications/initialized", "notifications/roots/list_changed", "notifications/progress"):
        hop.tell(party, method)
    assert hop.sent == []
    hop.tell(party, "vendor/note")
    assert len(hop.sent) == 1


@pytest.mark.spec("CP-14")
@pytest.mark.case("RT-04")
def test_pings_are_answered_here_in_both_directions() -> None:
    hop = sharing()
    hop.ask(join(hop), "p", "ping")
    assert lines(hop) == [b'{"jsonrpc":"2.0","id":"p","result":{}}']
    assert hop.sent == []
    hop.hear(b'{"jsonrpc":"2.0","id":"q","method":"ping"}')
    assert hop.fallen == []
    assert hop.sent == [b'{"jsonrpc":"2.0","id":"q","result":{}}']


@pytest.mark.case("ID-05", "ID-07")
def test_calls_of_two_sessions_with_equal_ids_and_tokens_stay_apart() -> None:
    """K6, K7."""
    hop = sharing()
    a, b = two(hop)
    params = b'{"_meta":{"progressToken":1}}'
    of_a, of_b = hop.ask(a, 1, "tools/call", params), hop.ask(b, 1, "tools/call", params)
    hop.note("notifications/progress", b'{"progressToken":4}')
    assert [(owner, exchange) for owner, exchange, _ in hop.notes()] == [(b, of_b)]
    hop.answer(b"3", b'"b"')
    assert hop.answers() == [(of_b, b'{"jsonrpc":"2.0","id":1,"result":"b"}')]
    hop.take_sent()
    hop.withdraw(of_b, b'{"requestId":1}')
    assert hop.sent == []
    hop.answer(b"1", b'"a"')
    assert hop.answers() == [(of_a, b'{"jsonrpc":"2.0","id":1,"result":"a"}')]


# --- the log level ---


def set_level(hop: Hop, party: Party, level: bytes) -> list[bytes]:
    """Ask for a level; the levels that the server is asked for."""
    hop.take_sent()
    hop.ask(party, 1, "logging/setLevel", b'{"level":"%b"}' % level)
    return [line.split(b'"level":"')[1].split(b'"')[0] for line in hop.take_sent()]


def told_at(hop: Hop, level: bytes) -> list[str]:
    hop.take_fallen()
    hop.note("notifications/message", b'{"level":"%b","data":1.0}' % level)
    return heard(hop)


@pytest.mark.spec("FT-1")
@pytest.mark.case("RT-03")
def test_the_server_is_kept_at_the_most_verbose_level_and_each_session_hears_its_own() -> None:
    """K11."""
    hop = sharing()
    a, b = two(hop)
    assert set_level(hop, a, b"warning") == [b"warning"]
    hop.answer(b"1")
    assert set_level(hop, b, b"debug") == [b"debug"]
    hop.answer(b"2")
    assert told_at(hop, b"debug") == ["b"]
    assert told_at(hop, b"warning") == ["a", "b"]
    assert set_level(hop, a, b"error") == []
    assert lines(hop) == [b'{"jsonrpc":"2.0","id":1,"result":{}}']
    assert told_at(hop, b"warning") == ["b"]
    assert told_at(hop, b"emergency") == ["a", "b"]


def test_the_server_becomes_quieter_when_nobody_needs_the_noise() -> None:
    hop = sharing()
    a, b = two(hop)
    assert set_level(hop, a, b"error") == [b"error"]
    assert set_level(hop, b, b"debug") == [b"debug"]
    assert set_level(hop, b, b"info") == [b"info"]
    hop.leave(b)
    assert set_level(hop, a, b"error") == [b"error"]


def test_a_session_that_set_no_level_hears_info_and_worse() -> None:
    hop = sharing()
    a, b = two(hop)
    set_level(hop, a, b"debug")
    hop.answer(b"1")
    assert told_at(hop, b"debug") == ["a"]
    assert told_at(hop, b"info") == ["a", "b"]
    assert told_at(hop, b"no-such-level") == ["a", "b"]
    assert b.exchanges == {}


@pytest.mark.spec("FT-1")
@pytest.mark.parametrize("params", [None, b"{}", b'{"level":"loud"}', b'{"level":3}'])
def test_a_level_that_does_not_exist_is_the_servers_to_refuse(params: bytes | None) -> None:
    hop = sharing()
    party = join(hop)
    hop.ask(party, 1, "logging/setLevel", params)
    assert len(hop.sent) == 1
    hop.fail(b"1", -32602)
    assert b"-32602" in lines(hop)[0]


def test_a_level_that_the_server_refused_is_not_in_force() -> None:
    hop = sharing()
    a, b = two(hop)
    set_level(hop, a, b"warning")
    hop.answer(b"1")
    set_level(hop, a, b"debug")
    hop.fail(b"2")
    assert told_at(hop, b"info") == ["b"]
    assert set_level(hop, b, b"error") == [b"warning"]
    hop.answer(b"3")
    assert set_level(hop, b, b"error") == []


def test_a_refused_level_does_not_undo_a_later_wish() -> None:
    hop = sharing()
    party = join(hop)
    set_level(hop, party, b"debug")
    hop.ask(party, 2, "logging/setLevel", b'{"level":"error"}')
    hop.fail(b"1")
    hop.answer(b"2")
    assert told_at(hop, b"warning") == []


def test_a_level_whose_request_was_cancelled_is_asked_for_anew() -> None:
    hop = sharing()
    party = join(hop)
    exchange = hop.ask(party, 1, "logging/setLevel", b'{"level":"debug"}')
    hop.withdraw(exchange)
    assert set_level(hop, party, b"debug") == [b"debug"]


@pytest.mark.case("RT-03")
def test_a_log_message_during_the_only_call_is_for_the_session_that_calls() -> None:
    hop = sharing()
    a, _ = two(hop)
    hop.ask(a, 1)
    assert told_at(hop, b"info") == ["a"]


@STRANGERS
@pytest.mark.parametrize("calling", [True, False])
def test_a_log_message_reaches_no_session_where_strangers_share(
    subjects: tuple[str, str], calling: bool
) -> None:
    """K10: whoever calls need not be whom it is about."""
    hop = sharing()
    a, b = two(hop, subjects)
    if calling:
        hop.ask(a, 1)
    assert told_at(hop, b"emergency") == []
    hop.leave(a)
    assert told_at(hop, b"emergency") == ["b"]
    assert b.exchanges == {}


# --- resource subscriptions ---


def subscribe(hop: Hop, party: Party, verb: str = "subscribe", uri: bytes = b"file:///a") -> int:
    """How many requests reach the server."""
    hop.take_sent()
    hop.ask(party, 1, f"resources/{verb}", b'{"uri":"%b","x":1.0}' % uri)
    return len(hop.take_sent())


def updated(hop: Hop, uri: bytes = b"file:///a") -> list[str]:
    hop.take_fallen()
    hop.note("notifications/resources/updated", b'{"uri":"%b"}' % uri)
    return heard(hop)


@pytest.mark.case("RT-03")
def test_the_server_sees_the_first_subscription_and_the_last_end() -> None:
    """K12."""
    hop = sharing()
    a, b = two(hop)
    assert subscribe(hop, a) == 1
    hop.answer(b"1")
    assert updated(hop) == ["a"]
    assert subscribe(hop, b) == 0
    assert lines(hop) == [b'{"jsonrpc":"2.0","id":1,"result":{}}']
    assert updated(hop) == ["a", "b"]
    assert subscribe(hop, a, "unsubscribe") == 0
    assert updated(hop) == ["b"]
    hop.leave(b)
    assert hop.take_sent() == [
        b'{"jsonrpc":"2.0","id":2,"method":"resources/unsubscribe","params":{"uri":"file:///a"}}'
    ]
    hop.answer(b"2")
    assert hop.take_fallen() == []
    assert hop.leftovers() == {}


def test_an_update_of_a_part_reaches_those_who_have_the_whole() -> None:
    hop = sharing()
    a, b = two(hop)
    subscribe(hop, a, uri=b"file:///a")
    subscribe(hop, b, uri=b"file:///c/")
    assert updated(hop, b"file:///a/x") == ["a"]
    assert updated(hop, b"file:///c/x") == ["b"]
    assert updated(hop, b"file:///ab") == []
    hop.note("notifications/resources/updated")
    assert hop.take_fallen() == []


def test_a_subscription_that_the_server_refused_is_none() -> None:
    hop = sharing()
    a, b = two(hop)
    subscribe(hop, a)
    hop.fail(b"1")
    assert updated(hop) == []
    assert subscribe(hop, b) == 1
    hop.answer(b"2")
    assert updated(hop) == ["b"]
    hop.leave(a)
    assert hop.take_sent() == []


def test_who_subscribes_before_the_server_has_granted_the_first_asks_for_itself() -> None:
    """Both may be refused, and then neither must believe that it is subscribed."""
    hop = sharing()
    a, b = two(hop)
    assert subscribe(hop, a) == 1
    assert subscribe(hop, b) == 1
    hop.fail(b"1")
    assert updated(hop) == ["b"]
    hop.fail(b"2")
    assert updated(hop) == []


def test_a_subscription_that_ended_while_it_was_granted_is_asked_for_anew() -> None:
    hop = sharing()
    a, b = two(hop)
    assert subscribe(hop, a) == 1
    hop.ask(a, 2, "resources/unsubscribe", b'{"uri":"file:///a"}')
    hop.answer(b"1")
    hop.answer(b"2")
    assert subscribe(hop, b) == 1


def test_an_end_that_the_server_refused_is_none() -> None:
    hop = sharing()
    a, b = two(hop)
    subscribe(hop, a)
    hop.answer(b"1")
    assert subscribe(hop, a, "unsubscribe") == 1
    assert updated(hop) == []
    hop.fail(b"2")
    assert updated(hop) == ["a"]
    assert subscribe(hop, b, "unsubscribe") == 0
    assert subscribe(hop, b) == 1


def test_ending_what_one_never_had_is_the_servers_to_refuse_and_begins_nothing() -> None:
    hop = sharing()
    party = join(hop)
    assert subscribe(hop, party, "unsubscribe") == 1
    hop.fail(b"1")
    assert updated(hop) == []


@pytest.mark.parametrize("verb", ["subscribe", "unsubscribe"])
def test_a_subscription_to_nothing_is_the_servers_to_refuse(verb: str) -> None:
    hop = sharing()
    hop.ask(join(hop), 1, f"resources/{verb}", b"{}")
    assert len(hop.sent) == 1


def test_who_leaves_while_it_subscribes_leaves_no_subscription() -> None:
    hop = sharing()
    a, b = two(hop)
    subscribe(hop, a)
    hop.leave(a)
    assert sorted(line.split(b'"method":"')[1].split(b'"')[0] for line in hop.take_sent()) == [
        b"notifications/cancelled",
        b"resources/unsubscribe",
    ]
    hop.answer(b"1")
    assert hop.take_fallen() == []
    assert subscribe(hop, b) == 1


def test_who_subscribes_while_the_bridge_unsubscribes_asks_the_server_after_it() -> None:
    hop = sharing()
    a, b = two(hop)
    subscribe(hop, a)
    hop.answer(b"1")
    hop.leave(a)
    assert subscribe(hop, b) == 1
    hop.answer(b"2")
    hop.answer(b"3")
    assert updated(hop) == ["b"]


def test_nothing_is_kept_of_who_left_with_wishes_open() -> None:
    layer = Sharing(INITIALIZED)
    hop = Hop(layer, fresh=True)
    party = join(hop)
    subscribe(hop, party)
    hop.answer(b"1")
    subscribe(hop, party, "unsubscribe")
    subscribe(hop, party, uri=b"file:///b")
    set_level(hop, party, b"debug")
    make_task(hop, party, b"5")
    hop.leave(party)
    assert {name for name, kept in vars(layer).items() if isinstance(kept, dict | set) and kept} == set()


# --- notifications that name nobody ---


@pytest.mark.case("RT-03")
@pytest.mark.parametrize(
    "method",
    ["notifications/tools/list_changed", "notifications/prompts/list_changed", "vendor/anything"],
)
def test_a_change_is_told_to_every_session_once(method: str) -> None:
    """K9."""
    hop = sharing()
    two(hop)
    hop.note(method, b'{"x":1.0}')
    told = hop.notes()
    assert [owner.name if owner else "?" for owner, _, _ in told] == ["a", "b"]
    line = b'{"jsonrpc":"2.0","method":"%b","params":{"x":1.0}}' % method.encode()
    assert [text for _, _, text in told] == [line, line]


@STRANGERS
def test_strangers_are_told_of_changes_and_nothing_that_nobody_knows(subjects: tuple[str, str]) -> None:
    hop = sharing()
    two(hop, subjects)
    hop.note("notifications/resources/list_changed")
    assert heard(hop) == ["a", "b"]
    hop.note("vendor/anything")
    assert heard(hop) == []


@STRANGERS
def test_an_update_is_told_to_each_stranger_that_subscribed(subjects: tuple[str, str]) -> None:
    hop = sharing()
    a, b = two(hop, subjects)
    subscribe(hop, a)
    assert updated(hop) == ["a"]
    subscribe(hop, b)
    assert updated(hop) == ["a", "b"]


@pytest.mark.spec("FT-4")
@pytest.mark.parametrize("method", ["notifications/elicitation/complete", "notifications/tasks/status"])
def test_what_is_meant_for_one_session_is_not_told_to_several(method: str) -> None:
    hop = sharing()
    join(hop, "a")
    hop.note(method, b'{"taskId":"T","elicitationId":"E"}')
    assert heard(hop) == ["a"]
    join(hop, "b")
    hop.note(method, b'{"taskId":"T","elicitationId":"E"}')
    assert heard(hop) == []


def test_the_status_of_a_task_is_told_to_the_session_that_made_it() -> None:
    hop = sharing()
    _, b = two(hop)
    hop.ask(b, 1, "tools/call", b'{"task":{}}')
    hop.answer(b"1", b'{"task":{"taskId":"T","status":"working"}}')
    hop.take_fallen()
    hop.note("notifications/tasks/status", b'{"taskId":"T","status":"working"}')
    assert heard(hop) == ["b"]


def test_a_session_that_left_is_told_nothing_more() -> None:
    hop = sharing()
    a, _ = two(hop)
    hop.leave(a)
    hop.note("notifications/tools/list_changed")
    assert heard(hop) == ["b"]


# --- questions of the server ---


def refusals(hop: Hop) -> list[bytes]:
    assert hop.take_fallen() == []
    return [line for line in hop.take_sent() if b"-32602" in line]


def put(hop: Hop, method: str = "sampling/createMessage") -> None:
    hop.take_sent()
    hop.hear(b'{"jsonrpc":"2.0","id":0,"method":"%b","params":{}}' % method.encode())


@pytest.mark.case("RT-03")
@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "resources/read"])
def test_a_question_is_put_to_the_only_session_that_calls(method: str) -> None:
    """K14."""
    hop = sharing()
    a, b = two(hop)
    exchange = hop.ask(b, 1, method)
    hop.ask(a, 1, "tools/list")
    put(hop)
    [event] = hop.take_fallen()
    assert isinstance(event, Questioned)
    assert (event.question.party, event.question.exchange) == (b, exchange)
    b.enter(event.question)
    assert a.questions == {}
    hop.rise(Replied(event.question, message.result(0, b'"yes"')))
    assert hop.take_sent() == [b'{"jsonrpc":"2.0","id":0,"result":"yes"}']


@pytest.mark.case("RT-03")
@pytest.mark.parametrize("subjects", [("one", "one"), ("one", "two"), ("", "")])
def test_a_question_during_calls_of_two_sessions_is_refused(subjects: tuple[str, str]) -> None:
    """K13; of one subject too, since all who know one token may be one."""
    hop = sharing()
    a, b = two(hop, subjects)
    hop.ask(a, 1)
    hop.ask(b, 1)
    put(hop)
    assert len(refusals(hop)) == 1
    assert hop.leftovers().keys() == {"_open"}


@STRANGERS
def test_a_question_is_put_to_the_only_one_of_strangers_that_calls(subjects: tuple[str, str]) -> None:
    hop = sharing()
    a, b = two(hop, subjects)
    hop.ask(a, 1, "tools/list")
    hop.ask(b, 1)
    put(hop)
    [event] = hop.take_fallen()
    assert isinstance(event, Questioned)
    assert event.question.party is b


def put_for(hop: Hop, task: str) -> None:
    """The server asks something for the sake of a task."""
    meta = b'{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"%b"}}}' % task.encode()
    hop.take_sent()
    hop.hear(b'{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":%b}' % meta)


def make_task(hop: Hop, party: Party, hop_id: bytes) -> None:
    """A call whose answer is the task T, that was made for it."""
    hop.ask(party, 1, "tools/call", b'{"name":"x","task":{}}')
    hop.answer(hop_id, b'{"task":{"taskId":"T","status":"working"}}')
    hop.take_fallen()


def test_a_question_about_a_task_is_put_to_the_session_that_made_it() -> None:
    """Whoever else calls: it is none of their business."""
    hop = sharing()
    a, b = two(hop)
    make_task(hop, a, b"1")
    hop.ask(b, 1)
    put_for(hop, "T")
    [event] = hop.take_fallen()
    assert isinstance(event, Questioned)
    assert (event.question.party, event.question.exchange) == (a, None)


def test_a_question_about_a_task_that_nobody_here_made_is_refused() -> None:
    hop = sharing()
    a, b = two(hop)
    make_task(hop, a, b"1")
    hop.ask(b, 1)
    put_for(hop, "another")
    assert len(refusals(hop)) == 1
    hop.leave(a)
    put_for(hop, "T")
    assert len(refusals(hop)) == 1


def test_a_call_that_failed_made_no_task() -> None:
    hop = sharing()
    a, _ = two(hop)
    hop.ask(a, 1, "tools/call", b'{"name":"x","task":{}}')
    hop.fail(b"1")
    hop.take_fallen()
    put_for(hop, "")
    assert len(refusals(hop)) == 1


def test_of_very_many_tasks_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.core.sharing.MOST_TASKS", 1)
    hop = sharing()
    a, _ = two(hop)
    make_task(hop, a, b"1")
    hop.ask(a, 2, "tools/call", b'{"task":{}}')
    hop.answer(b"2", b'{"task":{"taskId":"U","status":"working"}}')
    hop.take_fallen()
    put_for(hop, "T")
    assert len(refusals(hop)) == 1
    put_for(hop, "U")
    [event] = hop.take_fallen()
    assert isinstance(event, Questioned)
    assert event.question.party is a


def test_a_question_during_no_call_is_refused() -> None:
    hop = sharing()
    two(hop)
    put(hop)
    assert len(refusals(hop)) == 1


@pytest.mark.spec("FT-3")
@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create", "roots/list"])
def test_a_client_is_not_asked_what_it_did_not_declare(method: str) -> None:
    hop = sharing()
    party = join(hop)
    hop.ask(party, 1)
    put(hop, method)
    assert len(refusals(hop)) == 1


def test_a_question_is_not_put_to_a_session_because_the_other_one_cannot_answer() -> None:
    """It may well belong to the call of the one that declared nothing."""
    hop = sharing()
    able, other = join(hop, "a", capabilities=CAPABILITIES), join(hop, "b")
    hop.ask(able, 1)
    hop.ask(other, 1)
    put(hop)
    assert len(refusals(hop)) == 1


def test_an_unknown_question_needs_no_capability() -> None:
    hop = sharing()
    hop.ask(join(hop), 1)
    put(hop, "vendor/ask")
    [event] = hop.take_fallen()
    assert isinstance(event, Questioned)


def test_a_question_taken_back_is_told_to_the_session_that_has_it() -> None:
    hop = sharing()
    a, _ = two(hop)
    hop.ask(a, 1)
    hop.question(b"0")
    hop.take_fallen()
    hop.note("notifications/cancelled", b'{"requestId":0}')
    [event] = hop.take_fallen()
    assert isinstance(event, Noted)
    assert event.party is a


def test_answers_to_the_bridge_itself_reach_no_session() -> None:
    hop = sharing()
    party = join(hop)
    subscribe(hop, party)
    hop.answer(b"1")
    hop.leave(party)
    hop.fail(b"2")
    assert [exchange.party for exchange, _ in hop.answers()] == [party]
    assert hop.leftovers() == {}
