"""What holds between modern clients and a legacy server whatever happens in whatever order.

Clients of two subjects ask, come back with answers (their own, somebody else's, old ones), close and
leave; the server asks on streams and off them, withdraws, reports, answers or fails; time passes; and
at any time the server may be lost. The model knows none of the layer's tables.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from bridge.core.events import Exchange
from bridge.core.message import Id
from bridge.era.terms import Attribution, Terms
from crossing.bench import Bench, Json

PICK = st.integers(0, 10_000)
SUBJECTS = ("ann", "bob")
CAPABILITIES = (
    "{}",
    '{"elicitation":{}}',
    '{"sampling":{},"roots":{}}',
    '{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}',
)
REQUESTS = ("tools/call", "tools/call", "tools/call", "prompts/get", "tools/list", "vendor/x")
MULTI_ROUND = {"tools/call", "prompts/get", "resources/read"}
ANSWERS = {
    "elicitation/create": {"action": "accept"},
    "sampling/createMessage": {"role": "assistant", "content": {"type": "text", "text": ""}, "model": "m"},
    "roots/list": {"roots": []},
}
NEEDS = {"sampling/createMessage": "sampling", "roots/list": "roots"}


def allows(can: Json, asked: Json) -> bool:
    """Whether a client that declares `can` may be asked this."""
    if asked["method"] in NEEDS:
        return NEEDS[asked["method"]] in can
    modes = can.get("elicitation")
    if modes is None:
        return False
    mode = asked.get("params", {}).get("mode", "form")
    return mode == "form" if modes == {} else mode in modes


@dataclass(eq=False)
class Ask:
    """One request of a client."""

    exchange: Exchange
    subject: str
    method: str
    can: Json
    tool: str
    closed: bool = False
    answer: Json | None = None
    notes: int = 0


@dataclass(eq=False)
class Offered:
    """One `input_required`: what a client may come back with."""

    state: str
    keys: dict[str, str]
    ask: Ask


@dataclass(eq=False)
class Asked:
    """One question of the server."""

    id: Id
    subject: str | None
    """Whose it is, where the stream that it came on says so."""
    answers: int = 0
    withdrawn: bool = False


@dataclass(eq=False)
class Work:
    """One request as the server got it."""

    method: str
    marked: str
    """Whose it is: the layer's own requests are nobody's."""
    token: Id | None
    open: bool = True
    cancelled: bool = False


@dataclass
class Server:
    work: dict[Id, Work] = field(default_factory=dict)
    questions: list[Asked] = field(default_factory=list)

    def at(self) -> list[Id]:
        return [hop_id for hop_id, work in self.work.items() if work.open]


class Crossing(RuleBasedStateMachine):
    terms = Terms(suspended_per_subject=3, suspended_in_all=4, logs=2)

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(terms=self.terms)
        self.server = Server()
        self.asks: list[Ask] = []
        self.offers: list[Offered] = []
        self.lost = False

    # Clients

    @rule(pick=PICK, subject=st.sampled_from(SUBJECTS), can=st.sampled_from(CAPABILITIES), log=st.booleans())
    def ask(self, pick: int, subject: str, can: str, log: bool) -> None:
        if not self.lost:
            self.send(REQUESTS[pick % len(REQUESTS)], f"tool-{pick % 3}", subject, can, {}, log=log)

    def send(self, method: str, tool: str, subject: str, can: str, more: Json, *, log: bool) -> None:
        exchange = self.bench.ask(
            1,
            method,
            {"name": tool, "x-subject": subject, **more},
            can=can,
            subject=subject,
            level="info" if log else None,
            token="t" if log else None,
        )
        self.asks.append(Ask(exchange, subject, method, _json(can), tool))
        self.look()

    @rule(subject=st.sampled_from(SUBJECTS), method=st.sampled_from(sorted(ANSWERS)), again=st.booleans())
    def be_asked(self, subject: str, method: str, again: bool) -> None:
        """A call whose client is asked something, as most do that are of interest here."""
        if self.lost:
            return
        before = set(self.server.at())
        self.send("tools/call", "tool-0", subject, CAPABILITIES[-1], {}, log=False)
        for hop_id in set(self.server.at()) - before:
            for _ in range(1 + again):
                self.put(method, hop_id, url=False)
        self.wait(self.terms.coalesce)

    @rule(
        pick=PICK,
        subject=st.sampled_from((None, None, None, *SUBJECTS)),
        can=st.sampled_from((None, None, *CAPABILITIES)),
        keys=st.sets(st.integers(1, 4)) | st.none(),
        log=st.booleans(),
    )
    def come_back(
        self, pick: int, subject: str | None, can: str | None, keys: set[int] | None, log: bool
    ) -> None:
        if self.lost or not self.offers:
            return
        offered = self.offers[-1 - pick % min(len(self.offers), 4)]
        wanted = offered.keys if keys is None else {f"in-{key}" for key in keys}
        answers = {key: ANSWERS[offered.keys[key]] for key in wanted if key in offered.keys}
        more = {"inputResponses": answers, "requestState": offered.state}
        ask = offered.ask
        declared = _text(ask.can) if can is None else can
        self.send(ask.method, ask.tool, subject or ask.subject, declared, more, log=log)

    @rule(pick=PICK)
    def close(self, pick: int) -> None:
        waiting = [ask for ask in self.asks if not ask.closed and ask.answer is None]
        if waiting and not self.lost:
            ask = waiting[pick % len(waiting)]
            ask.closed = True
            self.bench.close(ask.exchange)
            self.look()

    # The server

    @rule(pick=PICK, method=st.sampled_from(sorted(ANSWERS)), url=st.booleans(), streamed=st.booleans())
    def question(self, pick: int, method: str, url: bool, streamed: bool) -> None:
        at = self.server.at()
        if self.lost:
            return
        self.put(method, at[pick % len(at)] if at and streamed else None, url=url)

    def put(self, method: str, on: Id | None, *, url: bool) -> None:
        number = len(self.server.questions)
        own = self.server.work[on].marked if on is not None else None
        self.server.questions.append(Asked(number if number % 3 else str(number), own))
        page = {"mode": "url", "url": "https://u/", "elicitationId": "e"} if url else {}
        params = {"message": f"q{number}", **page} if method == "elicitation/create" else {"q": number}
        self.bench.question(self.server.questions[-1].id, method, params, on)
        self.look()

    @rule(pick=PICK)
    def take_back(self, pick: int) -> None:
        waiting = [one for one in self.server.questions if not one.answers and not one.withdrawn]
        if waiting and not self.lost:
            one = waiting[pick % len(waiting)]
            one.withdrawn = True
            self.bench.note("cancelled", {"requestId": one.id})
            self.look()

    @rule(pick=PICK, how=st.sampled_from(("result", "result", "failure", "error", "visit")))
    def finish(self, pick: int, how: str) -> None:
        at = self.server.at()
        if not at or self.lost:
            return
        hop_id = at[pick % len(at)]
        self.server.work[hop_id].open = False
        self.reply(hop_id, how)
        self.look()

    def reply(self, hop_id: Id, how: str) -> None:
        page = {"mode": "url", "url": "https://u/", "message": "m", "elicitationId": "e"}
        match how:
            case "result":
                self.bench.result(hop_id, {"content": [], "for": self.server.work[hop_id].marked})
            case "failure":
                self.bench.result(hop_id, {"content": [], "isError": True})
            case "error":
                self.bench.error(hop_id, -32000)
            case _:
                self.bench.error(hop_id, -32042, "Visit!", data={"elicitations": [page]})

    @rule(pick=PICK, value=st.integers(0, 9), streamed=st.booleans())
    def report(self, pick: int, value: int, streamed: bool) -> None:
        at = self.server.at()
        if not at or self.lost:
            return
        hop_id = at[pick % len(at)]
        work = self.server.work[hop_id]
        if work.token is not None:
            self.bench.note("progress", {"progressToken": work.token, "progress": value})
        said = {"level": "error", "data": work.marked}
        self.bench.note("message", said, on=hop_id if streamed else None)
        self.look()

    @rule(seconds=st.sampled_from((0.01, 0.03, 0.03, 0.03, 3.0, 40.0, 700.0)))
    def wait(self, seconds: float) -> None:
        self.bench.clock.advance(seconds)
        self.look()

    @rule(pick=PICK)
    def lose(self, pick: int) -> None:
        if not self.lost and pick % 40 == 39:
            self.lost = True
            self.bench.lose()
            self.look()

    # What is seen of it

    def look(self) -> None:
        for sent in self.bench.take_sent():
            self.server_got(sent)
        for ask in self.asks:
            for message in self.bench.down(ask.exchange):
                self.client_got(ask, message)
        assert self.bench.fallen == []

    def server_got(self, sent: Json) -> None:
        if "method" not in sent:
            self.count_answer(sent)
        elif sent["method"] == "notifications/cancelled":
            work = self.server.work[sent["params"]["requestId"]]
            assert work.open
            assert not work.cancelled
            work.open, work.cancelled = False, True
        else:
            assert sent["id"] not in self.server.work, "an id is used twice"
            params = sent.get("params", {})
            assert not {"inputResponses", "requestState"} & set(params)
            token = params.get("_meta", {}).get("progressToken")
            own = sent["method"] == "logging/setLevel"
            work = Work(sent["method"], "" if own else params["x-subject"], token)
            self.server.work[sent["id"]] = work

    def count_answer(self, sent: Json) -> None:
        [one] = [one for one in self.server.questions if _same(one.id, sent["id"])]
        assert not one.withdrawn, "an answer to a question that was withdrawn"
        one.answers += 1
        assert one.answers == 1, "two answers to one question"

    def client_got(self, ask: Ask, message: Json) -> None:
        assert not ask.closed, "a client that gave up is told something"
        assert ask.answer is None, "something follows the final answer"
        if "method" in message:
            self.check_note(ask, message)
            return
        assert message["id"] == ask.exchange.id
        ask.answer = message
        result = message.get("result", {})
        assert result.get("for", ask.subject) == ask.subject, "the result of somebody else"
        if result.get("resultType") == "input_required":
            self.check_questions(ask, result)

    @staticmethod
    def check_note(ask: Ask, message: Json) -> None:
        ask.notes += 1
        params = message["params"]
        if message["method"] == "notifications/progress":
            assert params["progressToken"] == ask.exchange.token
        else:
            assert params["data"] in ("", ask.subject), "the log of somebody else"

    def check_questions(self, ask: Ask, result: Json) -> None:
        asked: Json = result["inputRequests"]
        assert asked
        assert ask.method in MULTI_ROUND
        for one in asked.values():
            assert allows(ask.can, one), "asked beyond what the client declared"
            self.check_owner(ask, one)
        keys = {key: one["method"] for key, one in asked.items()}
        self.offers.append(Offered(result["requestState"], keys, ask))

    def check_owner(self, ask: Ask, one: Json) -> None:
        params = one.get("params", {})
        number = params.get("q", params.get("message", "m").removeprefix("q"))
        if str(number).isdigit():
            owner = self.server.questions[int(number)].subject
            assert owner in (None, "", ask.subject), "the question of somebody else"

    # The end

    def teardown(self) -> None:
        """Let everything come to its end, one way or the other: nothing is left, and nobody waits."""
        self.look()
        for _ in range(len(self.asks) + 3):
            for hop_id in self.server.at():
                if not self.lost:
                    self.server.work[hop_id].open = False
                    self.reply(hop_id, "result")
            self.look()
            self.wait(700.0)
        for ask in self.asks:
            assert ask.closed != (ask.answer is not None), "a request without its one answer"
        if not self.lost:
            for one in self.server.questions:
                assert one.withdrawn != (one.answers == 1), "a question is left unanswered"
        assert not self.bench.layer.busy
        assert self.bench.leftovers() == []
        assert self.bench.clock.waiting == 0


class Exclusive(Crossing):
    terms = Terms(attribution=Attribution.EXCLUSIVE, suspended_per_subject=3)


def _json(can: str) -> Json:
    found: Json = json.loads(can)
    return found


def _text(can: Json) -> str:
    return json.dumps(can)


def _same(one: Id, other: Id) -> bool:
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("machine", [Crossing, Exclusive])
def test_whatever_happens_everybody_gets_one_answer_and_nobody_anothers(machine: type[Crossing]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=100, stateful_step_count=60, deadline=None)
    )
