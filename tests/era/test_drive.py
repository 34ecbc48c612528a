"""A modern server's task in the place of a legacy client's call, played by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from bridge.core.events import Answered, Asked, Event, Exchange, Noted, Party, Questioned, Replied, Withdrawn
from bridge.core.layer import Layer
from bridge.core.message import Notification, Response, error, local_error, request, result
from bridge.era.asking import Asking
from bridge.era.capabilities import EVERYTHING
from bridge.era.drive import Drive
from bridge.era.own import Own
from bridge.era.terms import Terms

Json = dict[str, Any]
Events = Iterable[Event]
ELICIT: Json = {"method": "elicitation/create", "params": {"message": "Name?", "requestedSchema": {}}}


class Timer:
    def __init__(self, at: float, act: Callable[[], Events]) -> None:
        self.at, self.act = at, act
        self.over = False

    def cancel(self) -> None:
        self.over = True


class Driving:
    """One call that became the task `t`."""

    def __init__(self, *, token: str | None = None) -> None:
        meta = b"" if token is None else b'"_meta":{"progressToken":"%b"}' % token.encode()
        asked = request(1, "tools/call", b"{%b}" % meta)
        self.exchange = Exchange(Party("client"), asked, None)
        self.time = 0.0
        self.timers: list[Timer] = []
        self.sent: list[tuple[str, Json]] = []
        self.seen: list[Json] = []
        self.open: dict[str, Exchange] = {}
        self.questions: list[Questioned] = []
        serial = iter(range(1, 100))
        self.own = Own(Party("bridge"), self, self)
        self.asking = Asking(
            self.exchange,
            self,
            self,
            Terms(),
            revision="2025-11-25",
            declared=EVERYTHING,
            mint=lambda: f"br-{next(serial)}",
        )
        self.drive = Drive(
            self.exchange,
            self.own,
            self.asking,
            self,
            self,
            Terms(),
            stamp=lambda params: params[:-1] + b',"_meta":{}}',
            told=self._told,
            answer=self._answer,
        )

    # Clock and layer

    def now(self) -> float:
        return self.time

    def after(self, seconds: float, layer: Layer, act: Callable[[], Events]) -> Timer:
        timer = Timer(self.time + seconds, act)
        self.timers.append(timer)
        return timer

    def up(self, event: Event) -> Events:
        return (event,)

    def down(self, event: Event) -> Events:
        return (event,)

    @property
    def pending(self) -> list[Timer]:
        self.timers = [one for one in self.timers if not one.over]
        return self.timers

    def advance(self, seconds: float) -> None:
        end = self.time + seconds
        while ready := [one for one in self.pending if one.at <= end + 1e-9]:
            timer = min(ready, key=lambda one: one.at)
            timer.over, self.time = True, timer.at
            self.carry_out(timer.act())
        self.time = end

    # What comes of it

    def _told(self, note: Notification) -> Events:
        return (Noted(self.exchange.party, self.exchange, note),)

    def _answer(self, response: Response) -> Events:
        return (Answered(self.exchange, response),)

    def carry_out(self, events: Events) -> None:
        for event in events:
            match event:
                case Asked(exchange, asked):
                    assert asked.params
                    params = json.loads(bytes(asked.params))
                    assert params.pop("_meta") == {}
                    assert params.pop("taskId") == "t"
                    self.sent.append((asked.method, params))
                    self.open[asked.method] = exchange
                case Withdrawn(exchange):
                    self.sent.append((f"withdrawn {exchange.method}", {}))
                case Questioned(question, _):
                    assert question.party is not None
                    question.party.enter(question)
                    self.questions.append(event)
                case Answered(_, response):
                    self.seen.append(json.loads(response.raw))
                case Noted(_, _, note):
                    self.seen.append(json.loads(note.raw))
                case _:
                    raise AssertionError(event)

    # The server and the client

    def begin(self, status: str = "working", **more: object) -> None:
        created = {"resultType": "task", "taskId": "t", "status": status, **more}
        self.carry_out(self.drive.begin(json.dumps(created).encode()))

    def answered(self, method: str, response: Response) -> None:
        done = self.own.answered(self.open.pop(method), response)
        assert done is not None
        self.carry_out(done)

    def is_now(self, status: str, **more: object) -> None:
        """The server says so to the look that is on its way."""
        value = {"resultType": "complete", "taskId": "t", "status": status, **more}
        self.answered("tasks/get", result(1, json.dumps(value).encode()))

    def looks(self, status: str, *, after: float = 1.0, **more: object) -> None:
        self.advance(after)
        assert self.take() == [("tasks/get", {})]
        self.is_now(status, **more)

    def replies(self, value: Json, at: int = 0) -> None:
        question = self.questions[at].question
        event = Replied(question, result(question.id, json.dumps(value).encode()))
        self.carry_out(self.asking.replied(question, event.response))

    def take(self) -> list[tuple[str, Json]]:
        sent, self.sent = self.sent, []
        return sent

    def took(self) -> list[Json]:
        seen, self.seen = self.seen, []
        return seen


def test_task_is_looked_at_until_it_is_completed() -> None:
    driving = Driving()
    driving.begin()
    assert driving.take() == []
    driving.looks("working")
    driving.looks("completed", result={"content": [], "resultType": "complete", "x": 1.50})
    assert driving.took() == [{"jsonrpc": "2.0", "id": 1, "result": {"content": [], "x": 1.5}}]
    assert driving.pending == []
    assert driving.take() == []


@pytest.mark.spec("CP-13")
@pytest.mark.parametrize(
    ("interval", "seconds"), [(500, 0.5), (5000, 5), (1, 0.1), (0, 0.1), (-5, 0.1), ("x", 1), (None, 1)]
)
def test_task_is_looked_at_as_often_as_the_server_wants_but_no_more_than_ten_times_a_second(
    interval: object, seconds: float
) -> None:
    driving = Driving()
    driving.begin(pollIntervalMs=interval)
    driving.advance(seconds * 0.9)
    assert driving.take() == []
    driving.advance(seconds * 0.1)
    assert driving.take() == [("tasks/get", {})]


def test_latest_interval_holds() -> None:
    driving = Driving()
    driving.begin()
    driving.looks("working", pollIntervalMs=3000)
    driving.advance(2.9)
    assert driving.take() == []
    driving.looks("working", after=0.1)


@pytest.mark.parametrize("status", ["completed", "input_required", "failed"])
def test_task_that_begins_otherwise_than_working_is_looked_at_once(status: str) -> None:
    driving = Driving()
    driving.begin(status)
    assert driving.take() == [("tasks/get", {})]


@pytest.mark.parametrize("created", [b"[]", b"{}", b'{"taskId":5}', b'{"taskId":""}'])
def test_task_without_an_id_cannot_be_waited_for(created: bytes) -> None:
    driving = Driving()
    with pytest.raises(ValueError):
        driving.drive.begin(created)


def test_failed_task_is_its_error() -> None:
    driving = Driving()
    driving.begin()
    driving.looks("failed", error={"code": -32005, "message": "rate", "data": {"k": 1}})
    failed = {"code": -32005, "message": "rate", "data": {"k": 1}}
    assert driving.took() == [{"jsonrpc": "2.0", "id": 1, "error": failed}]


def test_cancelled_task_is_an_error_of_the_bridge() -> None:
    driving = Driving()
    driving.begin()
    driving.looks("cancelled", statusMessage="too long")
    [answer] = driving.took()
    assert (answer["error"]["code"], answer["error"]["message"]) == (-32603, "too long")
    assert answer["error"]["data"] == {"origin": "bridge", "reason": "task_cancelled"}


@pytest.mark.parametrize(
    "fields", [{"status": "lost"}, {"status": "completed"}, {"status": "failed", "error": {}}, {}]
)
def test_task_in_a_shape_that_nobody_knows_is_given_up(fields: Json) -> None:
    driving = Driving()
    driving.begin()
    driving.advance(1)
    driving.take()
    driving.answered("tasks/get", result(1, json.dumps(fields).encode()))
    [answer] = driving.took()
    assert answer["error"]["data"]["reason"] == "invalid_result_type"
    assert driving.take() == [("tasks/cancel", {})]
    assert driving.pending == []


def test_look_that_was_lost_on_its_way_is_repeated() -> None:
    driving = Driving()
    driving.begin()
    for _ in range(2):
        driving.advance(1)
        assert driving.take() == [("tasks/get", {})]
        driving.answered("tasks/get", local_error(1, "refused", "upstream_unreachable"))
    driving.looks("working")
    driving.looks("completed", result={})
    assert driving.took() == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


def test_server_that_cannot_be_reached_is_given_up_in_the_end() -> None:
    driving = Driving()
    driving.begin()
    for _ in range(3):
        driving.advance(1)
        driving.answered("tasks/get", local_error(1, "refused", "upstream_unreachable"))
    [answer] = driving.took()
    assert answer["error"]["data"]["reason"] == "upstream_unreachable"
    assert driving.pending == []


def test_servers_own_error_ends_the_call() -> None:
    driving = Driving()
    driving.begin()
    driving.advance(1)
    driving.answered("tasks/get", error(1, -32602, "Task has expired"))
    [answer] = driving.took()
    assert answer["error"] == {"code": -32602, "message": "Task has expired"}


# --- progress ---


@pytest.mark.spec("CP-13")
def test_new_status_messages_are_progress_for_who_wants_it() -> None:
    driving = Driving(token="p")
    driving.begin(statusMessage="begun")
    driving.looks("working", statusMessage="begun")
    driving.looks("working", statusMessage="half")
    driving.looks("working")
    told = [note["params"] for note in driving.took()]
    assert told == [
        {"progressToken": "p", "progress": 1, "message": "begun"},
        {"progressToken": "p", "progress": 3, "message": "half"},
    ]


def test_client_without_a_token_is_told_nothing() -> None:
    driving = Driving()
    driving.begin(statusMessage="begun")
    assert driving.took() == []


# --- questions ---


def test_question_is_put_once_and_its_answer_sent_to_the_task() -> None:
    driving = Driving()
    driving.begin()
    driving.looks("input_required", inputRequests={"k": ELICIT})
    driving.looks("input_required", inputRequests={"k": ELICIT})
    [question] = driving.questions
    assert (question.request.id, question.request.method) == ("br-1", "elicitation/create")
    driving.replies({"action": "accept", "content": {"n": "x"}})
    answers = {"inputResponses": {"k": {"action": "accept", "content": {"n": "x"}}}}
    assert driving.take() == [("tasks/update", answers)]
    driving.answered("tasks/update", result(1, b"{}"))
    driving.looks("input_required", inputRequests={"k": ELICIT})
    assert driving.take() == []
    driving.looks("completed", result={})
    assert driving.took() == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


def test_question_that_comes_while_the_client_is_asked_waits_its_turn() -> None:
    driving = Driving()
    driving.begin()
    driving.looks("input_required", inputRequests={"k": ELICIT})
    driving.looks("input_required", inputRequests={"k": ELICIT, "l": ELICIT})
    assert len(driving.questions) == 1
    driving.replies({"action": "decline"})
    assert driving.take() == [("tasks/update", {"inputResponses": {"k": {"action": "decline"}}})]
    driving.answered("tasks/update", result(1, b"{}"))
    driving.looks("input_required", inputRequests={"l": ELICIT})
    assert len(driving.questions) == 2


def test_answer_that_the_server_did_not_take_is_sent_again_and_not_asked_for_again() -> None:
    driving = Driving()
    driving.begin()
    driving.looks("input_required", inputRequests={"k": ELICIT})
    driving.replies({"action": "decline"})
    driving.take()
    driving.answered("tasks/update", local_error(1, "refused", "upstream_unreachable"))
    driving.looks("input_required", inputRequests={"k": ELICIT})
    assert driving.take() == [("tasks/update", {"inputResponses": {"k": {"action": "decline"}}})]
    assert len(driving.questions) == 1


def test_task_that_ends_while_the_client_is_asked_ends_the_call() -> None:
    driving = Driving()
    driving.begin()
    driving.looks("input_required", inputRequests={"k": ELICIT})
    driving.looks("completed", result={})
    assert driving.took() == [{"jsonrpc": "2.0", "id": 1, "result": {}}]
    driving.replies({"action": "decline"})
    assert driving.take() == []


def test_client_that_refuses_to_sample_gives_the_task_up() -> None:
    driving = Driving()
    driving.begin()
    driving.looks("input_required", inputRequests={"k": {"method": "sampling/createMessage", "params": {}}})
    question = driving.questions[0].question
    driving.carry_out(driving.asking.replied(question, error(question.id, -1, "no")))
    [answer] = driving.took()
    assert answer["result"] == {"content": [{"type": "text", "text": "no"}], "isError": True}
    assert driving.take() == [("tasks/cancel", {})]


def test_question_of_an_unknown_kind_gives_the_task_up_and_asks_nobody() -> None:
    driving = Driving()
    driving.begin()
    driving.looks("input_required", inputRequests={"k": ELICIT, "l": {"method": "foo/bar"}})
    assert driving.questions == []
    [answer] = driving.took()
    assert answer["error"]["code"] == -32603
    assert driving.take() == [("tasks/cancel", {})]
    assert driving.pending == []


# --- the client gives up, or the server is gone ---


@pytest.mark.parametrize("looking", [False, True])
def test_cancelled_call_cancels_the_task(looking: bool) -> None:
    driving = Driving()
    driving.begin()
    if looking:
        driving.advance(1)
    driving.take()
    driving.carry_out(driving.drive.withdraw())
    assert driving.take() == [("withdrawn tasks/get", {})] * looking + [("tasks/cancel", {})]
    assert driving.pending == []
    assert driving.took() == []


def test_closed_one_asks_for_nothing_more() -> None:
    driving = Driving()
    driving.begin()
    driving.drive.close()
    assert driving.pending == []
