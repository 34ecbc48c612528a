"""The invariants of the core under any interleaving, held by a model that knows nothing of its tables.

Clients with equal ids and tokens ask, cancel, leave, answer; a server answers late, twice, never, in
any order, reports progress and asks back; and at any time it may be lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec import UNSET
from transcript import Hop, read

from bridge.core import message
from bridge.core.events import Answered, Ended, Exchange, Noted, Party, Question, Questioned
from bridge.core.message import Id, Notification, Request, Response, params_of
from bridge.core.sharing import Sharing
from bridge.core.splice import quote

IDS: st.SearchStrategy[Id] = st.sampled_from([0, 1, "1", "", 18446744073709551616])
TOKENS: st.SearchStrategy[Id | None] = st.sampled_from([None, 1, "1", 0])
PICK = st.integers(0, 10_000)


def kind(value: object) -> tuple[type, object]:
    """An id with its JSON type."""
    return type(value), value


@dataclass(eq=False)
class Call:
    """One request as its client and the server saw it."""

    exchange: Exchange
    secret: int
    token: Id | None
    hop_id: Id
    hop_token: Id | None
    cancelled: bool = False
    answered: int = 0
    settled: bool = False
    """The server has answered it."""


@dataclass(eq=False)
class Client:
    party: Party
    calls: list[Call] = field(default_factory=list)
    asked: list[Question] = field(default_factory=list)
    gone: bool = False

    def waiting(self) -> list[Call]:
        return [call for call in self.calls if not call.answered and not call.cancelled]


class Core(RuleBasedStateMachine):
    """What is common to all ways in which a hop may be used."""

    fresh = False
    parties = 1

    def __init__(self) -> None:
        super().__init__()
        self.hop = self.made_hop()
        self.clients = [Client(Party(f"p{number}")) for number in range(self.parties)]
        self.seen: list[Call] = []
        """Every call that reached the server, oldest first."""
        self.questions: dict[Question, int] = {}
        """How many answers the server got to each of its questions."""
        self.withdrawn: set[Question] = set()
        self.serial = 0
        self.lost = False

    def made_hop(self) -> Hop:
        return Hop(fresh=self.fresh)

    # What a client does

    def some_client(self, pick: int) -> Client | None:
        present = [client for client in self.clients if not client.gone]
        return present[pick % len(present)] if present and not self.lost else None

    @rule(pick=PICK, request_id=IDS, token=TOKENS)
    def ask(self, pick: int, request_id: Id, token: Id | None) -> None:
        client = self.some_client(pick)
        if client is None or request_id in client.party.exchanges:
            return  # a second one in flight is refused before it comes here
        self.serial += 1
        meta = b"" if token is None else b',"_meta":{"progressToken":%b}' % quote(token)
        params = b'{"secret":%d%b,"n":1.0}' % (self.serial, meta)
        exchange = self.hop.ask(client.party, request_id, "tools/call", params)
        [line] = self.hop.take_sent()
        self.reach_server(client, exchange, token, line)

    def reach_server(self, client: Client, exchange: Exchange, token: Id | None, line: bytes) -> None:
        asked = read(line)
        assert isinstance(asked, Request)
        assert b'"secret":%d' % self.serial in line
        assert b'"n":1.0' in line
        meta = params_of(asked).meta
        hop_token = None if meta is UNSET or meta.token is UNSET else meta.token
        assert (hop_token is None) == (token is None)
        taken = [call for call in self.seen if not call.settled]
        assert kind(asked.id) not in [kind(call.hop_id) for call in taken]
        assert hop_token is None or kind(hop_token) not in [kind(call.hop_token) for call in taken]
        if self.fresh:
            assert kind(asked.id) not in [kind(call.hop_id) for call in self.seen]
        call = Call(exchange, self.serial, token, asked.id, hop_token)
        client.calls.append(call)
        self.seen.append(call)

    @rule(pick=PICK, which=PICK, told=st.booleans())
    def cancel(self, pick: int, which: int, told: bool) -> None:
        client = self.some_client(pick)
        if client is None or not client.calls:
            return
        call = client.calls[which % len(client.calls)]
        quoted = quote(call.exchange.id)
        self.hop.withdraw(call.exchange, b'{"requestId":%b,"reason":"x"}' % quoted if told else None)
        sent = self.hop.take_sent()
        if call.answered or call.cancelled:
            assert sent == []
        else:
            assert [self.cancelled_id(line) for line in sent] == [kind(call.hop_id)]
        call.cancelled = call.cancelled or not call.answered

    @staticmethod
    def cancelled_id(line: bytes) -> tuple[type, object]:
        note = read(line)
        assert isinstance(note, Notification)
        return kind(params_of(note).request_id)

    @rule(pick=PICK, which=PICK)
    def reply(self, pick: int, which: int) -> None:
        client = self.some_client(pick)
        if client is None or not client.asked:
            return
        question = client.asked[which % len(client.asked)]
        once = self.questions[question] == 0 and question not in self.withdrawn
        self.hop.reply(question)
        self.count_replies(question, once)

    def count_replies(self, question: Question, once: bool) -> None:
        sent = [read(line) for line in self.hop.take_sent()]
        assert len(sent) == once
        for response in sent:
            assert isinstance(response, Response)
            assert kind(response.id) == kind(question.id)
            self.questions[question] += 1

    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        client = self.some_client(pick)
        if client is None or len(self.seen) < 4:
            return
        waiting = client.waiting()
        open_questions = list(client.party.questions.values())
        self.hop.leave(client.party)
        sent = [read(line) for line in self.hop.take_sent()]
        cancelled = [kind(params_of(one).request_id) for one in sent if isinstance(one, Notification)]
        refused = [kind(one.id) for one in sent if isinstance(one, Response)]
        assert cancelled == [kind(call.hop_id) for call in waiting]
        assert refused == [kind(question.id) for question in open_questions]
        for question in open_questions:
            self.questions[question] += 1
        for call in waiting:
            call.cancelled = True
        client.gone = True

    # What the server does

    @rule(which=PICK, error=st.booleans())
    def answer(self, which: int, error: bool) -> None:
        """Answer any call, also one that was cancelled or is answered already."""
        if not self.seen or self.lost:
            return
        call = self.seen[which % len(self.seen)]
        owner = self.owner_of(call.hop_id)
        if error:
            self.hop.hear(message.error(call.hop_id, -1, "x", b'{"secret":%d}' % call.secret).raw)
        else:
            self.hop.answer(quote(call.hop_id), b'{"secret":%d,"n":1.0}' % call.secret)
        fallen = self.hop.take_fallen()
        if owner is None:
            assert fallen == []
            return
        owner.settled = True
        if owner.cancelled:
            assert fallen == []
            return
        [event] = fallen
        assert isinstance(event, Answered)
        assert event.exchange is owner.exchange
        assert kind(event.response.id) == kind(owner.exchange.id)
        assert read(event.response.raw) == event.response
        assert b'"secret":%d' % call.secret in event.response.raw
        owner.answered += 1

    def owner_of(self, hop_id: Id) -> Call | None:
        """Whose an answer under this id is: of all who had it, the one that the server still owes one."""
        owed = [call for call in self.seen if kind(call.hop_id) == kind(hop_id) and not call.settled]
        assert len(owed) <= 1
        return owed[0] if owed else None

    @rule(hop_id=st.sampled_from([b"99999", b'"none"', b"null", b'"99999"']))
    def answer_nobody(self, hop_id: bytes) -> None:
        """An answer that nobody waits for; an error without id is nobody's here, unless it plainly is."""
        if self.lost or (hop_id == b"null" and len([call for call in self.seen if not call.settled]) == 1):
            return
        self.hop.fail(hop_id)
        assert self.hop.take_fallen() == []

    @rule(which=PICK)
    def report_progress(self, which: int) -> None:
        if not self.seen or self.lost:
            return
        token = self.seen[which % len(self.seen)].hop_token
        if token is None:
            return
        quoted = quote(token)
        self.hop.note("notifications/progress", b'{"progressToken":%b,"progress":1.0}' % quoted)
        owed = [one for one in self.seen if kind(one.hop_token) == kind(token) and not one.settled]
        fallen = self.hop.take_fallen()
        if not owed or owed[0].cancelled:
            assert fallen == []
            return
        [event] = fallen
        assert isinstance(event, Noted)
        assert (event.exchange, event.party) == (owed[0].exchange, owed[0].exchange.party)
        assert kind(params_of(event.notification).token) == kind(owed[0].token)

    @rule(request_id=IDS)
    def question(self, request_id: Id) -> None:
        if self.lost:
            return
        self.hop.hear(message.request(request_id, "sampling/createMessage", b"{}").raw)
        fallen = self.hop.take_fallen()
        client = self.whom_to_ask()
        if client is None:
            self.count_refusal(request_id, len(fallen))
            return
        [event] = fallen
        assert isinstance(event, Questioned)
        assert event.question.party in (None, client.party)
        client.party.enter(event.question)
        client.asked.append(event.question)
        self.questions[event.question] = 0

    def whom_to_ask(self) -> Client | None:
        """The client that a question is for."""
        return self.clients[0]

    def count_refusal(self, request_id: Id, fallen: int) -> None:
        [line] = self.hop.take_sent()
        refused = read(line)
        assert isinstance(refused, Response)
        assert (kind(refused.id), refused.error is not UNSET, fallen) == (kind(request_id), True, 0)

    @rule(request_id=IDS)
    def take_back(self, request_id: Id) -> None:
        if self.lost:
            return
        self.hop.note("notifications/cancelled", b'{"requestId":%b}' % quote(request_id))
        fallen = self.hop.take_fallen()
        still = [
            question
            for question, answers in self.questions.items()
            if kind(question.id) == kind(request_id) and not answers and question not in self.withdrawn
        ]
        if not still:
            assert fallen == []
            return
        [event] = fallen
        assert isinstance(event, Noted)
        self.withdrawn.add(still[-1])
        assert event.party is still[-1].party
        assert kind(params_of(event.notification).request_id) == kind(still[-1].party_id)

    @rule()
    def lose(self) -> None:
        if len(self.seen) < 8:
            return  # too early for much to be lost
        waiting = [
            call for call in self.seen if not call.answered and not call.cancelled and not call.settled
        ]
        given_back = self.hop.correlation.lost()
        assert given_back == ([] if self.lost else [call.exchange for call in waiting])
        for call in waiting:
            call.answered += 1  # by whoever carries this out
        self.lost = True
        assert self.hop.leftovers() == {}
        for client in self.clients:
            assert (client.party.exchanges, client.party.questions) == ({}, {})

    # What holds at any time

    @invariant()
    def nobody_waits_for_what_is_over(self) -> None:
        for client in self.clients:
            expected = [] if self.lost or client.gone else client.waiting()
            assert list(client.party.exchanges.values()) == [call.exchange for call in expected]

    @invariant()
    def every_call_has_one_answer_at_most_and_none_once_cancelled(self) -> None:
        for call in self.seen:
            assert call.answered <= 1
            assert not (call.cancelled and call.answered)

    @invariant()
    def ids_of_one_party_are_told_apart(self) -> None:
        for client in self.clients:
            for party_id, question in client.party.questions.items():
                assert kind(question.party_id) == kind(party_id)

    def teardown(self) -> None:
        """In the end every call that was not cancelled has exactly one answer, and nothing is kept."""
        for call in [call for call in self.seen if not call.settled and not self.lost]:
            self.hop.answer(quote(call.hop_id))
            for event in self.hop.take_fallen():
                assert isinstance(event, Answered | Ended)
                assert event.exchange is call.exchange
                call.answered += 1
            call.settled = True
        for call in self.seen:
            assert call.answered == (not call.cancelled)
        assert set(self.hop.leftovers()) <= {"_questions"}


class Kept(Core):
    """One session on its own server."""


class Fresh(Core):
    """Several parties on one hop, none of whom a question could be for."""

    fresh = True
    parties = 3

    def whom_to_ask(self) -> Client | None:
        present = [client for client in self.clients if not client.gone]
        return present[0] if present else self.clients[0]


class Shared(Core):
    """Several sessions on one server that was initialized once."""

    fresh = True
    parties = 3

    def made_hop(self) -> Hop:
        return Hop(Sharing(b'{"protocolVersion":"2025-11-25"}'), fresh=True)

    @initialize()
    def open(self) -> None:
        for client in self.clients:
            client.party.capabilities = frozenset({"sampling"})
            self.hop.ask(client.party, "init", "initialize", b'{"protocolVersion":"2025-11-25"}')
            [event] = self.hop.take_fallen()
            assert isinstance(event, Answered)
        assert self.hop.take_sent() == []

    def whom_to_ask(self) -> Client | None:
        calling = [client for client in self.clients if client.waiting() and not client.gone]
        return calling[0] if len(calling) == 1 else None


LONG = settings(max_examples=60, stateful_step_count=60, deadline=None)
rows = pytest.mark.spec("G-4", "G-5", "G-6", "CP-1", "CP-3", "CP-4", "CP-5", "CP-8", "CP-9")
cases = pytest.mark.case("ID-05", "ID-06", "ID-07", "RT-03", "SS-08")


@rows
@cases
@pytest.mark.parametrize("use", [Kept, Fresh, Shared])
def test_any_interleaving_keeps_the_invariants(use: type[Core]) -> None:
    run_state_machine_as_test(use, settings=LONG)
