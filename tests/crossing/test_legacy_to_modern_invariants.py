"""Whatever a legacy client and a modern server do, in whatever order: what must hold between them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.core.events import Exchange
from bridge.era.terms import Terms
from crossing.bench import EVERYTHING, PREFIX, Json
from crossing.legacy import R3, R4, SID, TASKS, Crossed, elicit, opened

METHODS = ("tools/call", "prompts/get", "resources/read", "tools/list", "completion/complete", "vendor/x")
ASKS = {"tools/call", "prompts/get", "resources/read"}
CAPABILITY = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
DECLARED: Json = {"elicitation": {}, "roots": {}}
"""Not sampling: a server that asks for it must not be heard."""
SHORT = Terms(rounds=3, empty_rounds=3, question=60.0, call=500.0)
SERVER: Json = {**EVERYTHING, "extensions": {TASKS: {}}}

Move = Callable[[int], None]


class Play:
    """One session; `moves` are what anybody can do now, and every message is held against the rules."""

    def __init__(self, revision: str, *, parallel: bool, fresh: bool) -> None:
        terms = Terms(
            rounds=SHORT.rounds,
            empty_rounds=SHORT.empty_rounds,
            question=SHORT.question,
            call=SHORT.call,
            parallel=parallel,
        )
        self.crossed = opened(revision, DECLARED, server=SERVER, terms=terms, fresh=fresh)
        self.working: dict[Any, Json] = {}
        """What the server works on: requests that it has not answered, and that were not cancelled."""
        self.asked: dict[Any, Json] = {}
        """Questions that the client sees before it."""
        self.ids: set[Any] = set()
        self.waiting: dict[Any, Exchange] = {}
        self.over: set[Exchange] = set()
        self.serial = count(1)
        self.look()

    # What is seen, and held against the rules

    def look(self) -> None:
        while self.crossed.heard:
            self._hear(self.crossed.hears())
        while self.crossed.seen:
            method = self.crossed.seen[0].get("method")
            self._see(*self.crossed.sees_on(method))

    def _hear(self, heard: Json) -> None:
        if "id" not in heard:
            assert heard["method"] == "notifications/cancelled", "a modern server is told nothing else"
            del self.working[heard["params"]["requestId"]]  # in progress, and cancelled once
            return
        assert heard["id"] not in self.ids, "an id is used once"
        assert "result" not in heard
        assert "error" not in heard
        assert heard["params"]["_meta"][f"{PREFIX}protocolVersion"] == "2026-07-28"
        self.ids.add(heard["id"])
        self.working[heard["id"]] = heard

    def _see(self, seen: Json, carrier: Exchange | None) -> None:
        assert carrier not in self.over, "nothing follows the answer on a stream"
        if "method" not in seen:
            exchange = self.waiting.pop(seen["id"])  # one answer, to what waits for one
            assert carrier is exchange
            assert not {"resultType", "ttlMs", "cacheScope"} & seen.get("result", {}).keys()
            self.over.add(exchange)
        elif "id" in seen:
            assert CAPABILITY[seen["method"]] in DECLARED, "only what the client declared"
            assert carrier is not None
            assert carrier.method in ASKS
            assert carrier.id in self.waiting, "only while a call runs"
            self.asked[seen["id"]] = seen
        elif seen["method"] == "notifications/cancelled":
            self.asked.pop(seen["params"]["requestId"])
        else:
            assert SID not in str(seen)

    # What can be done

    def moves(self) -> list[Move]:
        found: list[Move] = [self.ask, self.wait]
        if self.waiting:
            found.append(self.cancel)
        if self.asked:
            found += [self.reply, self.reply, self.refuse]
        calls = self.calls()
        if calls:
            found += [self.complete, self.want, self.want, self.fail, self.lose, self.progress]
        if len(self.working) > len(calls):
            found += [self.acknowledge, self.tell, self.end]
        return found

    def calls(self) -> list[Json]:
        return [one for one in self.working.values() if one["method"] != "subscriptions/listen"]

    def call(self, choice: int) -> Json:
        calls = self.calls()
        return calls[choice % len(calls)]

    def ask(self, choice: int) -> None:
        own = next(self.serial)
        methods = (*METHODS, "ping", "resources/subscribe", "resources/unsubscribe", "logging/setLevel")
        method = methods[choice % len(methods)]
        params = {
            "name": "n",
            "uri": f"file:///{choice % 3}",
            "level": "info",
            "_meta": {"progressToken": own},
        }
        self.crossed.party.exchanges.pop(own, None)
        self.waiting[own] = self._entered(own, method, params, askable=choice % 7 != 0)

    def _entered(self, own: int, method: str, params: Json, *, askable: bool) -> Exchange:
        """Known as waiting before it is asked, for it may be answered on the spot."""
        before = self.crossed.rise

        def rise(event: Any) -> None:
            self.waiting[own] = event.exchange
            before(event)

        self.crossed.rise = rise  # type: ignore[method-assign]
        try:
            return self.crossed.ask(method, params, own=own, askable=askable)
        finally:
            self.crossed.rise = before  # type: ignore[method-assign]

    def wait(self, choice: int) -> None:
        self.crossed.clock.advance((0.01, 0.06, 1.0, 10.0, 61.0)[choice % 5])

    def cancel(self, choice: int) -> None:
        own = list(self.waiting)[choice % len(self.waiting)]
        exchange = self.waiting.pop(own)
        self.crossed.cancel(exchange)
        self.look()
        self.over.add(exchange)

    def question(self, choice: int) -> Json:
        return self.asked.pop(list(self.asked)[choice % len(self.asked)])

    def reply(self, choice: int) -> None:
        self.crossed.reply(self.question(choice), {"action": "accept", "roots": [], "_meta": {"k": 1}})

    def refuse(self, choice: int) -> None:
        self.crossed.refuse(self.question(choice), -1)

    def done(self, choice: int) -> Json:
        asked = self.call(choice)
        del self.working[asked["id"]]
        return asked

    def complete(self, choice: int) -> None:
        value: Json = {
            "resultType": "complete",
            "content": [],
            "ttlMs": 0,
            "status": "completed",
            "result": {},
        }
        self.crossed.answers(self.done(choice), value)

    def want(self, choice: int) -> None:
        asked = self.done(choice)
        kind = choice % 6
        wants: Json = {"resultType": "input_required"}
        if kind in (0, 1):
            wants["inputRequests"] = {"a": elicit(), "b": {"method": "roots/list"}}
        elif kind == 2:
            sample: Json = {"method": "sampling/createMessage", "params": {}}
            wants["inputRequests"] = {"a": elicit(), "s": sample}
        elif kind == 3:
            wants = {"resultType": "task", "taskId": "t", "status": "working", "pollIntervalMs": 100}
        if kind in (1, 4):
            wants["requestState"] = "z"
        wants["status"] = "input_required" if kind < 2 else "working"
        self.crossed.answers(asked, wants)

    def fail(self, choice: int) -> None:
        code = (-32601, -32602, -32603, -32020, -32022)[choice % 5]
        self.crossed.refuses(self.done(choice), code, "no", {"uri": "u"})

    def lose(self, choice: int) -> None:
        self.crossed.breaks(self.done(choice))

    def progress(self, choice: int) -> None:
        asked = self.call(choice)
        if "progressToken" in asked["params"]["_meta"]:
            self.crossed.progresses(asked, choice % 10)

    def listens(self) -> list[Json]:
        return [one for one in self.working.values() if one["method"] == "subscriptions/listen"]

    def acknowledge(self, choice: int) -> None:
        self.crossed.acknowledges(self.listens()[choice % len(self.listens())])

    def tell(self, choice: int) -> None:
        listen = self.listens()[choice % len(self.listens())]
        self.crossed.tells(listen, "resources/updated", uri=f"file:///{choice % 3}")

    def end(self, choice: int) -> None:
        listen = self.listens()[choice % len(self.listens())]
        del self.working[listen["id"]]
        self.crossed.answers(listen, {"resultType": "complete"})

    # The end

    def settle(self) -> None:
        """Let the server do its work: then nobody waits, nobody is asked, and nothing is left."""
        for _ in range(100):
            for listen in self.listens():
                self.crossed.acknowledges(listen)
                self.look()
            for asked in self.calls():
                if self.working.pop(asked["id"], None) is not None:
                    value = {"content": [], "status": "completed", "result": {"content": []}}
                    self.crossed.answers(asked, value)
                    self.look()
            self.wait(4)
            self.look()
            if not self.waiting and not self.calls():
                break
        assert not self.waiting
        assert not self.asked
        assert not self.crossed.party.questions
        self.crossed.leave()
        self.look()
        assert not self.working
        assert not self.crossed.clock.waiting


@settings(deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 41)), max_size=60),
    revision=st.sampled_from([R3, R4]),
    parallel=st.booleans(),
    fresh=st.booleans(),
)
def test_every_request_gets_one_answer_whatever_happens(
    steps: list[tuple[int, int]], revision: str, parallel: bool, fresh: bool
) -> None:
    play = Play(revision, parallel=parallel, fresh=fresh)
    for which, choice in steps:
        moves = play.moves()
        moves[which % len(moves)](choice)
        play.look()
    play.settle()


@settings(deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 41)), max_size=40))
def test_a_server_that_is_lost_at_any_moment_leaves_nobody_waiting(steps: list[tuple[int, int]]) -> None:
    play = Play(R4, parallel=True, fresh=True)
    for which, choice in steps:
        moves = play.moves()
        moves[which % len(moves)](choice)
        play.look()
    crossed: Crossed = play.crossed
    crossed.die()
    crossed.heard.clear()
    play.look()
    assert not play.waiting
    assert not play.asked
    assert not crossed.party.questions
    assert not crossed.clock.waiting
