"""Field cases ID and RT: whose a message is, in both directions, whoever shares a server."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from bridge.app import running as in_process
from bridge.config import Command, Config, Listen, ProcessModel, Timing

from .conftest import Bridge, Start, child
from .raw import BOTH, JSON_ONLY, LIMIT, SSE_ONLY, Answer, Exchange, ask, dump
from .session import (
    LATEST,
    Caller,
    Id,
    Json,
    Modern,
    Session,
    call,
    connect,
    initialize,
    line,
    notification,
    old,
    progress,
    request,
    run,
    session,
    sessions,
)

IDS: Sequence[Id] = (
    0,
    -1,
    "0",
    "1",
    "",
    "007",
    "5f0c1d7e-8a86-4c19-9d3c-0a3b1f2e4d5c",
    "x" * 4096,
    "日本",
    # ID-03, and neighbours: beyond 31, 53 and 63 bits, and what a string may hold.
    1,
    7,
    2147483648,
    9007199254740993,
    18446744073709551615,
    -9223372036854775808,
    "null",
    "1.0",
    "mb-1",
    "bridge-1",
    ' "\\\n\t\u0000\u2028',
    "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
)
SPECIAL = tuple(dict.fromkeys((type(one), one) for one in IDS))
UNIQUE: Sequence[Id] = [one for _, one in SPECIAL]
CAPABLE: Json = {"elicitation": {}, "sampling": {}, "roots": {"listChanged": True}}
QUESTIONS = ("elicitation/create", "sampling/createMessage", "roots/list")


def shown(one: object) -> str:
    return repr(one)[:24]


@pytest.fixture(scope="module")
def own(start_bridge: Start) -> Bridge:
    return start_bridge(child("scripted.py"), "--log-level", "debug", "--legacy-sse")


@pytest.fixture(scope="module")
def shared(start_bridge: Start) -> Bridge:
    return start_bridge(child("scripted.py"), "--process", "shared", "--log-level", "debug")


@pytest.fixture(params=["own", "shared"])
def bridge(request: pytest.FixtureRequest) -> Iterator[Bridge]:
    found: Bridge = request.getfixturevalue(request.param)
    yield found
    assert found.process.poll() is None, found.tail()


@pytest.fixture(params=["own", "shared", "modern"])
async def caller(request: pytest.FixtureRequest, own: Bridge, shared: Bridge) -> AsyncIterator[Caller]:
    """A session with a child of its own, one that shares its child, and a caller of 2026-07-28."""
    if request.param == "modern":
        yield Modern(own.port)
        return
    async with session((own if request.param == "own" else shared).port) as found:
        yield found


@pytest.fixture(params=["own", "shared", "modern", "old"])
async def anyone(request: pytest.FixtureRequest, own: Bridge, shared: Bridge) -> AsyncIterator[Caller]:
    """The same, and a client of HTTP+SSE, which reads one answer after another."""
    if request.param == "modern":
        yield Modern(own.port)
    elif request.param == "old":
        async with old(own.port) as client:
            yield client
    else:
        async with session((own if request.param == "own" else shared).port) as found:
            yield found


def said(result: Any) -> object:
    return result["content"][0]["text"]


def same(found: object, expected: object) -> bool:
    """Equal in JSON: `1` is neither `"1"` nor `true`."""
    return type(found) is type(expected) and found == expected


def text(saying: str) -> Json:
    """The step that answers so."""
    result = f'{{"content":[{{"type":"text","text":"{saying}"}}]}}'
    return line(f'{{"jsonrpc":"2.0","id":$ID,"result":{result}}}')


_GATES = iter(f"gate-{n}" for n in range(1_000_000))


def gate() -> str:
    """A name that no call has waited for yet."""
    return next(_GATES)


async def running_at(caller: Caller, name: str) -> Json:
    """The call that waits for `name`, as the child knows it, once the child knows it."""
    return await caller.until_received(f'"wait":"{name}"')


async def _until_all_run(caller: Caller, name: str, number: int) -> list[Json]:
    """The calls that wait for `name`, once there are so many."""
    async with asyncio.timeout(LIMIT):
        while len(found := await caller.heard(f'"wait":"{name}"'.encode())) < number:
            pass
    return found


class TestIds:
    @pytest.mark.case("ID-01", "ID-03")
    @pytest.mark.parametrize("request_id", UNIQUE, ids=shown)
    @pytest.mark.parametrize("accept", [JSON_ONLY, SSE_ONLY])
    async def test_id_comes_back_with_its_value_and_type(
        self, anyone: Caller, request_id: Id, accept: str
    ) -> None:
        answer = await anyone.post(call(request_id, "echo"), accept)
        assert answer.status == 200
        assert same(answer.last["id"], request_id)
        assert said(answer.result) == "echo"

    @pytest.mark.case("ID-01", "ID-03")
    @pytest.mark.parametrize("request_id", UNIQUE, ids=shown)
    async def test_id_of_an_error_comes_back_with_its_value_and_type(
        self, anyone: Caller, request_id: Id
    ) -> None:
        answer = await anyone.post(request(request_id, "tools/list", {"cursor": "no such page"}))
        assert same(answer.last["id"], request_id)
        assert answer.error["code"] == -32602

    @pytest.mark.case("ID-01", "ID-03")
    async def test_ids_that_differ_only_in_type_are_in_flight_together(self, caller: Caller) -> None:
        name = gate()
        async with AsyncExitStack() as stack:
            calls = {}
            for one in UNIQUE:
                steps = ({"wait": name}, text(f"of {UNIQUE.index(one)}"))
                posted = caller.posted(run(one, *steps))
                calls[UNIQUE.index(one)] = await stack.enter_async_context(posted)
            await _until_all_run(caller, name, len(UNIQUE))
            await caller.open(name)
            for index, exchange in calls.items():
                answer = await exchange.answer()
                assert same(answer.last["id"], UNIQUE[index])
                assert said(answer.result) == f"of {index}"

    @pytest.mark.case("ID-01", "ID-03")
    @pytest.mark.parametrize("request_id", UNIQUE, ids=shown)
    @pytest.mark.parametrize("listening", [False, True])
    async def test_id_of_a_question_comes_back_to_the_server_with_its_value_and_type(
        self, bridge: Bridge, request_id: Id, listening: bool
    ) -> None:
        """Not the client's: an id of the bridge's own making is allowed on its way."""
        asked = request(request_id, "elicitation/create", {"message": "?"})
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(session(bridge.port, capabilities=CAPABLE))
            if listening:
                await (await stack.enter_async_context(client.listening())).head()
            steps = (line(asked), {"hear": _text(request_id)})
            exchange = await stack.enter_async_context(client.posted(run("call", *steps), SSE_ONLY))
            shown_id = (await exchange.message())["id"]
            reply = {"jsonrpc": "2.0", "id": shown_id, "result": {"action": "decline"}}
            await client.reply(reply)
            assert said((await exchange.message())["result"]) == "done"
            (found,) = [one for one in await client.heard(b'"decline"') if same(one["id"], request_id)][-1:]
            assert found == {**reply, "id": request_id}

    @pytest.mark.case("ID-01")
    @pytest.mark.parametrize("request_id", [0, ""])
    async def test_initialize_may_have_a_falsy_id(self, bridge: Bridge, request_id: Id) -> None:
        answer = await Session(bridge.port).post(initialize(request_id=request_id))
        assert same(answer.last["id"], request_id)
        assert answer.result["serverInfo"]["name"] == "scripted"

    @pytest.mark.case("ID-03")
    @pytest.mark.parametrize(
        "request_id",
        ["18446744073709551616", "-9223372036854775809", "9" * 5000, "1e400", "1.5", "-0.0", "1E2"],
    )
    async def test_id_that_is_no_integer_of_64_bits_passes_or_is_refused(
        self, anyone: Caller, request_id: str
    ) -> None:
        body = anyone.body(call("@", "echo")).replace(b'"id":"@"', b'"id":' + request_id.encode())
        answer = await anyone.post(body)
        if answer.status == 200:
            assert b'"id":' + request_id.encode() + b"," in answer.payloads[0]
        else:
            assert answer.status == 400
            assert answer.error["code"] in (-32700, -32600)
        assert said((await anyone.run()).result) == "done"

    @pytest.mark.case("ID-03")
    @pytest.mark.parametrize("request_id", ["18446744073709551616", "9" * 5000, "1e400", "1.5", "true", "{}"])
    async def test_answer_under_an_impossible_id_harms_nobody(self, anyone: Caller, request_id: str) -> None:
        answer = await anyone.run(line(f'{{"jsonrpc":"2.0","id":{request_id},"result":{{}}}}'), text("mine"))
        assert said(answer.result) == "mine"


def _text(request_id: Id) -> str:
    """As the scripted child spells it."""
    return json.dumps(request_id, ensure_ascii=False)


class TestEqualIds:
    @pytest.mark.case("ID-05")
    @pytest.mark.parametrize("accept", [JSON_ONLY, SSE_ONLY])
    @pytest.mark.parametrize("request_id", [1, "1"])
    async def test_fifty_sessions_with_one_id_each_hear_their_own_secret(
        self, shared: Bridge, accept: str, request_id: Id
    ) -> None:
        await _expect_own_secrets([await connect(shared.port) for _ in range(50)], request_id, accept)

    @pytest.mark.case("ID-05")
    async def test_sessions_with_children_of_their_own_each_hear_their_own_secret(self, own: Bridge) -> None:
        clients = [await connect(own.port) for _ in range(8)]
        names = [gate() for _ in clients]
        async with AsyncExitStack() as stack:
            calls = [
                await stack.enter_async_context(client.posted(run(1, {"wait": name}, text(f"secret {name}"))))
                for client, name in zip(clients, names, strict=True)
            ]
            for client, name, exchange in reversed(list(zip(clients, names, calls, strict=True))):
                await client.open(name)
                assert said((await exchange.answer()).result) == f"secret {name}"
        for client in clients:
            await client.delete()

    @pytest.mark.case("ID-05")
    @pytest.mark.parametrize("accept", [JSON_ONLY, SSE_ONLY])
    async def test_fifty_modern_callers_with_one_id_each_hear_their_own_secret(
        self, own: Bridge, accept: str
    ) -> None:
        await _expect_own_secrets([Modern(own.port) for _ in range(50)], 1, accept)

    @pytest.mark.case("ID-05")
    async def test_id_that_is_in_flight_is_refused_and_the_first_call_goes_on(self, bridge: Bridge) -> None:
        name = gate()
        async with session(bridge.port) as client:
            async with client.posted(run(5, {"wait": name}, text("first"))) as first:
                await running_at(client, name)
                for second in (call(5, "second"), request(5, "tools/list"), request(5, "ping")):
                    answer = await client.post(second)
                    assert answer.error["code"] == -32600
                    assert answer.last["id"] == 5
                assert said((await client.post(call("5", "other type"))).result) == "other type"
                await client.open(name)
                assert said((await first.answer()).result) == "first"
            assert said((await client.post(call(5, "third"))).result) == "third"
            assert await client.received(b'"second"') == []

    @pytest.mark.case("ID-05")
    async def test_two_posts_with_one_id_at_once_get_one_answer_each(self, bridge: Bridge) -> None:
        async with session(bridge.port) as client:
            answers = await asyncio.gather(*(client.post(call(5, f"tool-{n}")) for n in range(8)))
            for n, answer in enumerate(answers):
                assert answer.last["id"] == 5
                if "error" in answer.last:
                    assert answer.error["code"] == -32600
                else:
                    assert said(answer.result) == f"tool-{n}"

    @pytest.mark.case("ID-05", "ID-08")
    async def test_id_twice_in_a_batch_gets_one_answer_and_one_refusal(self, bridge: Bridge) -> None:
        async with session(bridge.port, "2025-03-26") as client:
            name = gate()
            batch = [
                run(5, {"wait": name}, text("first")),
                call(5, "second"),
                call("open", "open", {"name": name}),
            ]
            answers = (await client.post(batch)).last
            assert [answer["error"]["code"] for answer in answers if "error" in answer] == [-32600]
            assert [
                said(answer["result"]) for answer in answers if answer["id"] == 5 and "result" in answer
            ] == ["first"]


async def _expect_own_secrets(callers: Sequence[Caller], request_id: Id, accept: str) -> None:
    """All call at once; the child answers in an order of its own, when it has heard them all."""
    names = [gate() for _ in callers]
    async with AsyncExitStack() as stack:
        calls = [
            await stack.enter_async_context(
                caller.posted(run(request_id, {"wait": name}, text(f"secret {name}")), accept)
            )
            for caller, name in zip(callers, names, strict=True)
        ]
        for name in names:
            await running_at(callers[0], name)
        order = list(range(len(callers)))
        random.Random(5).shuffle(order)
        for index in order:
            await callers[0].open(names[index])
        for exchange, name in zip(calls, names, strict=True):
            answer = await exchange.answer()
            assert [said(message["result"]) for message in answer.messages] == [f"secret {name}"]
            assert same(answer.last["id"], request_id)
    for caller in callers:
        if isinstance(caller, Session):
            await caller.delete()


class TestCancellation:
    @pytest.mark.case("ID-06")
    @pytest.mark.parametrize("accept", [BOTH, JSON_ONLY, SSE_ONLY])
    async def test_only_the_cancelled_call_is_cancelled_and_under_its_id_at_the_child(
        self, shared: Bridge, accept: str
    ) -> None:
        name_a, name_b = gate(), gate()
        async with session(shared.port) as a, session(shared.port) as b:
            async with (
                a.posted(run(7, {"wait": name_a}), accept) as call_a,
                b.posted(run(7, {"wait": name_b}), accept) as call_b,
            ):
                at_child = [(await running_at(a, name))["id"] for name in (name_a, name_b)]
                assert at_child[0] != at_child[1]
                await a.cancel(7)
                assert (await call_a.answer()).messages == []
                assert (await a.cancelled())[-1] == at_child[0]
                assert at_child[1] not in await a.cancelled()
                await b.open(name_b)
                assert said((await call_b.answer()).result) == "done"
            await a.open(name_a)  # answered late now, and for nobody
            assert said((await a.run()).result) == "done"

    @pytest.mark.case("ID-06")
    async def test_cancellation_reaches_the_child_while_it_is_busy_and_with_its_reason(
        self, bridge: Bridge
    ) -> None:
        async with session(bridge.port) as client:
            async with client.posted(run(7, {"hear": "notifications/cancelled"}, {"mute": 1})) as posted:
                await client.until_received('"hear":"notifications/cancelled"')
                params = {"requestId": 7, "reason": "bored — 読", "x": None}
                await client.tell("notifications/cancelled", params)
                assert (await posted.answer()).messages == []
            (told,) = [
                one for one in await client.heard(b'"method":"notifications/cancelled"') if _bored(one)
            ][-1:]
            assert told["params"] == {**params, "requestId": told["params"]["requestId"]}

    @pytest.mark.case("ID-06")
    @pytest.mark.parametrize("request_id", [7, "7", 0, ""])
    async def test_late_answer_to_a_cancelled_call_is_not_that_of_a_new_one(
        self, bridge: Bridge, request_id: Id
    ) -> None:
        old, new = gate(), gate()
        async with session(bridge.port) as client:
            async with client.posted(run(request_id, {"wait": old}, text("old"))) as first:
                await running_at(client, old)
                await client.cancel(request_id)
                assert (await first.answer()).messages == []
            async with client.posted(run(request_id, {"wait": new}, text("new"))) as second:
                await running_at(client, new)
                await client.open(old)
                await client.open(new)
                answer = await second.answer()
                assert [said(one["result"]) for one in answer.messages] == ["new"]
                assert same(answer.last["id"], request_id)
            assert said((await client.post(call(request_id, "third"))).result) == "third"

    @pytest.mark.case("ID-06")
    async def test_id_is_cancelled_and_used_again_many_times(self, bridge: Bridge) -> None:
        names = [gate() for _ in range(5)]
        async with session(bridge.port) as client:
            for name in names:
                async with client.posted(run(7, {"wait": name}, text(name))) as posted:
                    await running_at(client, name)
                    await client.cancel(7)
                    assert (await posted.answer()).messages == []
            for name in reversed(names):
                await client.open(name)
            assert said((await client.post(run(7, text("last")))).result) == "last"

    @pytest.mark.case("ID-06")
    @pytest.mark.parametrize(
        "params",
        [
            {"requestId": "nobody"},
            {"requestId": 424242},
            {"requestId": None},
            {"requestId": {}},
            {"requestId": 7.0},
            {"requestId": True},
            {},
            None,
            [7],
        ],
    )
    async def test_cancellation_of_what_is_unknown_is_ignored(
        self, bridge: Bridge, params: dict[str, object] | None
    ) -> None:
        async with session(bridge.port) as client:
            before = await client.cancelled()
            answer = await client.post(
                notification("notifications/cancelled") | ({"params": params} if params is not None else {})
            )
            assert (answer.status, answer.body) == (202, b"")
            assert await client.cancelled() == before
            assert said((await client.run()).result) == "done"

    @pytest.mark.case("ID-06")
    async def test_cancellation_of_what_is_finished_is_ignored(self, bridge: Bridge) -> None:
        async with session(bridge.port) as client:
            before = await client.cancelled()
            assert said((await client.post(call(7, "finished"))).result) == "finished"
            await client.cancel(7)
            assert await client.cancelled() == before

    @pytest.mark.case("ID-06", "ID-01")
    @pytest.mark.parametrize(("request_id", "wrong"), [(7, "7"), ("7", 7), (0, ""), ("", 0), (1, "01")])
    async def test_cancellation_respects_the_type_of_an_id(
        self, bridge: Bridge, request_id: Id, wrong: Id
    ) -> None:
        name = gate()
        async with (
            session(bridge.port) as client,
            client.posted(run(request_id, {"wait": name})) as posted,
        ):
            await running_at(client, name)
            before = await client.cancelled()
            await client.cancel(wrong)
            assert await client.cancelled() == before
            await client.open(name)
            assert said((await posted.answer()).result) == "done"

    @pytest.mark.case("ID-06")
    async def test_one_session_cannot_cancel_the_call_of_another(self, shared: Bridge) -> None:
        name = gate()
        async with (
            session(shared.port) as owner,
            session(shared.port) as stranger,
            owner.posted(run("mine", {"wait": name})) as posted,
        ):
            at_child = (await running_at(owner, name))["id"]
            for guess in ("mine", at_child, str(at_child)):
                await stranger.cancel(guess)
            assert at_child not in await owner.cancelled()
            await owner.open(name)
            assert said((await posted.answer()).result) == "done"

    @pytest.mark.case("ID-06", "ID-08")
    async def test_cancelled_member_of_a_batch_leaves_the_others_their_answers(self, bridge: Bridge) -> None:
        name, other = gate(), gate()
        async with session(bridge.port, "2025-03-26") as client:
            batch = [run("stop", {"wait": name}), run("go", {"wait": other})]
            async with client.posted(batch) as posted:
                await running_at(client, other)
                await client.cancel("stop")
                await client.open(other)
                answers = [one for message in (await posted.answer()).messages for one in _flat(message)]
                assert [answer["id"] for answer in answers] == ["go"]

    @pytest.mark.case("ID-06", "RT-01")
    async def test_server_that_takes_its_question_back_is_heard_and_a_late_answer_dropped(
        self, bridge: Bridge
    ) -> None:
        taken_back = notification("notifications/cancelled", {"requestId": "q", "reason": "enough"})
        name = gate()
        async with session(bridge.port, capabilities=CAPABLE) as client:
            steps = (line(request("q", "roots/list")), {"wait": name}, line(taken_back), {"wait": name + "b"})
            async with client.posted(run(1, *steps), SSE_ONLY) as stream:
                shown_id = (await stream.message())["id"]
                await client.open(name)
                told = await stream.message()
                assert told == {**taken_back, "params": {"requestId": shown_id, "reason": "enough"}}
                await client.reply({"jsonrpc": "2.0", "id": shown_id, "result": {"roots": ["late"]}})
                await client.open(name + "b")
                assert said((await stream.message())["result"]) == "done"
            assert await client.received(b'"late"') == []


def _bored(message: Json) -> bool:
    return str(message["params"].get("reason", "")).startswith("bored")


def _flat(message: Any) -> list[Any]:
    return message if isinstance(message, list) else [message]


class TestProgress:
    @pytest.mark.case("ID-07")
    @pytest.mark.parametrize("accept", [BOTH, SSE_ONLY])
    async def test_each_session_hears_of_its_own_progress_under_its_own_token(
        self, shared: Bridge, accept: str
    ) -> None:
        tokens: list[Id | None] = [1, 1, "1", None]
        name = gate()
        stray = line(
            notification("notifications/progress", {"progressToken": "nobody-sent-this", "progress": 9})
        )
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(session(shared.port)) for _ in tokens]
            calls = []
            for n, (client, token) in enumerate(zip(clients, tokens, strict=True)):
                note = [] if token is None else [progress(n)]
                steps = ({"wait": name}, stray, *note, text(f"of {n}"), *note)
                calls.append(
                    await stack.enter_async_context(client.posted(run(1, *steps, token=token), accept))
                )
            sent = await _until_all_run(clients[0], name, len(tokens))
            at_child = [one["params"].get("_meta", {}).get("progressToken") for one in sent]
            assert len({(type(token), token) for token in at_child}) == len(tokens)
            assert at_child.count(None) == 1, "no token is invented"
            await clients[0].open(name)
            for n, (token, exchange) in enumerate(zip(tokens, calls, strict=True)):
                *notes, last = (await exchange.answer()).messages
                assert said(last["result"]) == f"of {n}"
                expected = [] if token is None else [{"progressToken": token, "progress": n}]
                assert [note["params"] for note in notes] == expected
                assert all(same(note["params"]["progressToken"], token) for note in notes)

    @pytest.mark.case("ID-07")
    @pytest.mark.parametrize("token", [one for one in UNIQUE if one != "x" * 4096], ids=shown)
    async def test_token_comes_back_with_its_value_and_type_before_the_answer(
        self, anyone: Caller, token: Id
    ) -> None:
        answer = await anyone.run(progress(1), progress(2), token=token)
        first, second, last = answer.messages
        assert [note["params"]["progress"] for note in (first, second)] == [1, 2]
        assert all(same(note["params"]["progressToken"], token) for note in (first, second))
        assert said(last["result"]) == "done"

    @pytest.mark.case("ID-07")
    async def test_equal_tokens_of_one_session_stay_apart(self, bridge: Bridge) -> None:
        names = [gate(), gate()]
        async with session(bridge.port) as client, AsyncExitStack() as stack:
            calls = [
                await stack.enter_async_context(
                    client.posted(run(n, {"wait": name}, progress(n), token="t"), SSE_ONLY)
                )
                for n, name in enumerate(names)
            ]
            for name in names:
                await running_at(client, name)
            for name in reversed(names):
                await client.open(name)
            for n, exchange in enumerate(calls):
                note, last = (await exchange.answer()).messages
                assert note["params"] == {"progressToken": "t", "progress": n}
                assert last["id"] == n

    @pytest.mark.case("ID-07")
    async def test_call_without_a_token_is_given_none(self, anyone: Caller) -> None:
        await anyone.post(run("no token", {"mute": 1}, text("done")))
        assert all(b"progressToken" not in sent for sent in await anyone.received(b'"mute":1'))

    @pytest.mark.case("ID-07")
    @pytest.mark.parametrize("token", ['"a"', "0", "1.5", "null", "true", "{}", "-1", '""'])
    async def test_progress_of_a_token_that_nobody_sent_reaches_nobody(
        self, bridge: Bridge, token: str
    ) -> None:
        async with session(bridge.port) as client, client.listening() as stream:
            await stream.head()
            answer = await client.run(progress(1, token), token="mine", accept=SSE_ONLY)
            assert [said(one["result"]) for one in answer.messages] == ["done"]
            await client.run(line(notification("notifications/next")))
            assert (await stream.message())["method"] == "notifications/next"

    @pytest.mark.case("ID-07")
    async def test_progress_of_an_unknown_token_is_logged(self, bridge: Bridge) -> None:
        async with session(bridge.port) as client:
            await client.run(progress(1, '"token-for-the-log"'))
        bridge.expect_log("token-for-the-log")

    @pytest.mark.case("ID-07")
    async def test_progress_after_the_answer_or_a_cancellation_reaches_nobody(self, bridge: Bridge) -> None:
        ended, cancelled = gate(), gate()
        async with session(bridge.port) as client, client.listening() as stream:
            await stream.head()
            await client.run(progress(1), text("done"), {"wait": ended}, progress(2), token="t")
            await client.open(ended)
            async with client.posted(run(7, {"wait": cancelled}, progress(3), token="u")) as posted:
                await running_at(client, cancelled)
                await client.cancel(7)
                assert (await posted.answer()).messages == []
            await client.open(cancelled)
            await client.run(line(notification("notifications/next")))
            assert (await stream.message())["method"] == "notifications/next"

    @pytest.mark.case("ID-07")
    async def test_late_progress_is_not_taken_for_that_of_a_new_call_with_its_token(
        self, bridge: Bridge
    ) -> None:
        """A client may use a token again as soon as it has its answer, and a server may be late."""
        late, new = gate(), gate()
        async with session(bridge.port) as client:
            await client.run(text("old"), {"wait": late}, progress(1), token="t")
            async with client.posted(run(7, {"wait": new}, progress(2), token="t"), SSE_ONLY) as posted:
                await running_at(client, new)
                await client.open(late)
                await client.open(new)
                note, last = (await posted.answer()).messages
                assert note["params"] == {"progressToken": "t", "progress": 2}
                assert said(last["result"]) == "done"

    @pytest.mark.case("ID-07")
    async def test_clients_own_progress_reaches_the_server(self, own: Bridge) -> None:
        """The other direction: a question of the server may carry a token too."""
        asked = request("q", "sampling/createMessage", {"_meta": {"progressToken": 5}, "messages": []})
        async with session(own.port, capabilities=CAPABLE) as client:
            async with client.posted(run(1, line(asked), {"hear": '"q"'}), SSE_ONLY) as stream:
                assert (await stream.message())["params"]["_meta"] == {"progressToken": 5}
                await client.tell("notifications/progress", {"progressToken": 5, "progress": 1})
                await client.reply({"jsonrpc": "2.0", "id": "q", "result": {}})
                assert said((await stream.message())["result"]) == "done"
            (note,) = await client.heard(b'"method":"notifications/progress"')
            assert note["params"] == {"progressToken": 5, "progress": 1}

    @pytest.mark.case("ID-07")
    async def test_token_of_a_task_lives_as_long_as_the_task(self, bridge: Bridge) -> None:
        """2025-11-25: the answer tells that a task was made; the call itself goes on."""
        task = '{"taskId":"T","status":"%s","createdAt":"2026-01-01T00:00:00Z","ttl":null}'
        made = line(f'{{"jsonrpc":"2.0","id":$ID,"result":{{"task":{task % "working"}}}}}')
        ended = line(
            f'{{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{task % "completed"}}}'
        )
        name = gate()
        steps = [
            made,
            {"wait": name},
            progress(1),
            ended,
            progress(2),
            line(notification("notifications/next")),
        ]
        asked = run(1, *steps, token="t")
        asked["params"] = {"task": {"ttl": 60000}, **asked["params"]}
        async with session(bridge.port) as client, client.listening() as stream:
            await stream.head()
            assert (await client.post(asked)).result["task"]["taskId"] == "T"
            await client.open(name)
            note = await stream.message()
            assert note["method"] == "notifications/progress"
            assert note["params"] == {"progressToken": "t", "progress": 1}
            assert (await stream.message())["method"] == "notifications/tasks/status"
            assert (await stream.message())["method"] == "notifications/next"


class TestBatches:
    @pytest.mark.case("ID-08")
    @pytest.mark.parametrize("accept", [BOTH, JSON_ONLY, SSE_ONLY])
    async def test_every_request_of_a_batch_is_answered_and_its_members_go_one_by_one(
        self, bridge: Bridge, accept: str
    ) -> None:
        note = notification("notifications/in-a-batch")
        async with session(bridge.port, "2025-03-26") as client:
            before = await client.received(b"notifications/in-a-batch")
            answer = await client.post([call(1, "first"), note, call("2", "second")], accept)
            assert answer.status == 200
            answers = [one for message in answer.messages for one in _flat(message)]
            assert sorted((shown(one["id"]), said(one["result"])) for one in answers) == [
                ("'2'", "second"),
                ("1", "first"),
            ]
            sent = await client.received(b"notifications/in-a-batch")
            assert len(sent) == len(before) + 1
            assert not [one for one in await client.received(b'"name":"second"') if one.startswith(b"[")]

    @pytest.mark.case("ID-08")
    async def test_batch_with_one_request_is_answered_by_an_array(self, bridge: Bridge) -> None:
        async with session(bridge.port, "2025-03-26") as client:
            assert [one["id"] for one in (await client.post([call(1, "only")], JSON_ONLY)).last] == [1]

    @pytest.mark.case("ID-08")
    async def test_progress_of_a_batch_comes_before_its_answer(self, bridge: Bridge) -> None:
        async with session(bridge.port, "2025-03-26") as client:
            batch = [run(1, progress(1), token="a"), run(2, progress(2), token="b")]
            answer = await client.post(batch)
            notes = [one["params"] for one in answer.messages if "method" in one]
            assert notes == [{"progressToken": "a", "progress": 1}, {"progressToken": "b", "progress": 2}]
            assert sorted(one["id"] for one in answer.messages if "id" in one) == [1, 2]

    @pytest.mark.case("ID-08")
    @pytest.mark.parametrize("newline", [False, True])
    async def test_batch_on_many_lines_is_a_batch(self, bridge: Bridge, newline: bool) -> None:
        async with session(bridge.port, "2025-03-26") as client:
            body = client.body([call(1, "a"), call(2, "b")])
            body = b"\n [ \r\n" + body[1:].replace(b",", b" ,\r\n") if newline else b"  " + body
            assert sorted(one["id"] for one in (await client.post(body)).last) == [1, 2]

    @pytest.mark.case("ID-08")
    async def test_junk_in_a_batch_is_refused_by_itself(self, bridge: Bridge) -> None:
        async with session(bridge.port, "2025-03-26") as client:
            answers = (
                await client.post([1, call("good", "echo"), {"jsonrpc": "2.0", "id": 5}, [], None])
            ).last
            codes = {shown(one["id"]): one["error"]["code"] for one in answers if "error" in one}
            assert set(codes.values()) == {-32600}
            assert len(answers) == 5
            assert [said(one["result"]) for one in answers if "result" in one] == ["echo"]

    @pytest.mark.case("ID-08")
    async def test_batch_of_notifications_only_is_accepted_without_an_answer(self, bridge: Bridge) -> None:
        async with session(bridge.port, "2025-03-26") as client:
            answer = await client.post(
                [notification("notifications/a-of-two"), notification("notifications/b-of-two")]
            )
            assert (answer.status, answer.body) == (202, b"")
            assert len(await client.received(b"-of-two")) % 2 == 0

    @pytest.mark.case("ID-08", "RT-01")
    async def test_batch_of_answers_reaches_the_server(self, bridge: Bridge) -> None:
        asked = [line(request(one, "roots/list")) for one in ("q1", "q2")]
        async with session(bridge.port, "2025-03-26", CAPABLE) as client:
            steps = (*asked, {"hear": '"q1"'}, {"hear": '"q2"'})
            async with client.posted(run(1, *steps), SSE_ONLY) as stream:
                ids = [(await stream.message())["id"] for _ in asked]
                await client.reply([{"jsonrpc": "2.0", "id": one, "result": {"roots": []}} for one in ids])
                assert said((await stream.message())["result"]) == "done"

    @pytest.mark.case("ID-08")
    @pytest.mark.parametrize("revision", ["2024-11-05", "2025-06-18", LATEST])
    @pytest.mark.parametrize("batch", [[call(1, "in-no-batch")], [notification("notifications/in-no-batch")]])
    async def test_batch_in_another_revision_is_refused(
        self, bridge: Bridge, revision: str, batch: list[Json]
    ) -> None:
        async with session(bridge.port, revision) as client:
            answer = await client.post(batch)
            assert answer.status == 400
            assert (answer.error["code"], answer.last["id"]) == (-32600, None)
            assert await client.received(b"in-no-batch") == []

    @pytest.mark.case("ID-08")
    @pytest.mark.parametrize("revision", ["2025-03-26", "2025-06-18", LATEST])
    async def test_empty_batch_is_refused(self, bridge: Bridge, revision: str) -> None:
        async with session(bridge.port, revision) as client:
            for body in (b"[]", b" [ ]\n"):
                answer = await client.post(body)
                assert (answer.status, answer.error["code"], answer.last["id"]) == (400, -32600, None)

    @pytest.mark.case("ID-08")
    async def test_initialize_in_a_batch_is_refused(self, bridge: Bridge) -> None:
        before = await sessions(bridge.port)
        outside = await Session(bridge.port).post(
            [initialize("2025-03-26"), notification("notifications/initialized")]
        )
        assert outside.status == 400
        assert outside.error["code"] == -32600 or outside.error["data"]["reason"] == "no_session"
        assert "mcp-session-id" not in outside.headers
        assert await sessions(bridge.port) == before
        async with session(bridge.port, "2025-03-26") as client:
            inside = await client.post([initialize("2025-03-26"), call(1, "echo")])
            assert (inside.status, inside.error["code"]) == (400, -32600)

    @pytest.mark.case("ID-08")
    async def test_modern_batch_is_refused(self, own: Bridge) -> None:
        client = Modern(own.port)
        whole = [client.enveloped(call(1, "in-no-batch"))]
        headers = client.posting(client.body(whole))
        answer = await ask(own.port, "POST", headers, client.body(whole))
        assert (answer.status, answer.error["code"]) == (400, -32600)

    @pytest.mark.case("ID-08")
    @pytest.mark.parametrize("accept", [JSON_ONLY, SSE_ONLY])
    async def test_array_of_the_child_is_taken_apart(self, caller: Caller, accept: str) -> None:
        name = gate()
        members = [
            '{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"unpacked"}]}}',
            '{"jsonrpc":"2.0","id":"nobody","result":{}}',
            "7",
            "[]",
            "null",
        ]
        async with caller.posted(run("other", {"wait": name})) as other:
            await running_at(caller, name)
            answer = await caller.post(run("mine", line(f"[{','.join(reversed(members))}]")), accept)
            assert answer.last["id"] == "mine"
            assert said(answer.result) == "unpacked"
            await caller.open(name)
            assert said((await other.answer()).result) == "done"

    @pytest.mark.case("ID-08")
    async def test_array_of_the_child_may_hold_progress_and_two_answers(self, bridge: Bridge) -> None:
        name = gate()
        note = progress(1)["line"]
        async with (
            session(bridge.port) as client,
            client.posted(run("other", {"wait": name}, {"mute": 1})) as other,
        ):
            other_id = _text((await running_at(client, name))["id"])
            theirs = f'{{"jsonrpc":"2.0","id":{other_id},"result":{{"for":"other"}}}}'
            mine = '{"jsonrpc":"2.0","id":$ID,"result":{"for":"mine"}}'
            answer = await client.run(line(f"[{note},{theirs},{mine}]"), token="t")
            assert [one["params"]["progress"] for one in answer.messages if "method" in one] == [1]
            assert answer.result == {"for": "mine"}
            assert (await other.answer()).result == {"for": "other"}


class TestQuestions:
    """RT-01: what a server asks its client."""

    @pytest.mark.case("RT-01")
    @pytest.mark.parametrize("method", QUESTIONS)
    @pytest.mark.parametrize("listening", [False, True])
    @pytest.mark.parametrize("failing", [False, True])
    @pytest.mark.parametrize("accept", [BOTH, SSE_ONLY])
    async def test_question_goes_on_the_stream_of_its_call_and_its_answer_to_the_server(
        self, bridge: Bridge, method: str, listening: bool, failing: bool, accept: str
    ) -> None:
        """Under the very id that the client's own call has, as the child knows it."""
        params = {"x": [None]}
        asked = f'{{"jsonrpc":"2.0","id":$ID,"method":"{method}","params":{{"x":[null]}}}}'
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(session(bridge.port, capabilities=CAPABLE))
            get = None
            if listening:
                get = await stack.enter_async_context(client.listening())
                await get.head()
            name = gate()
            steps = (line(asked), {"wait": name})
            stream = await stack.enter_async_context(client.posted(run(1, *steps), accept))
            question = await stream.message()
            at_child = (await running_at(client, name))["id"]
            assert question == {"jsonrpc": "2.0", "id": question["id"], "method": method, "params": params}
            assert said((await client.run()).result) == "done", "others are answered meanwhile"
            outcome = (
                {"error": {"code": -1, "message": "no", "data": [1]}}
                if failing
                else {"result": {"y": [None]}}
            )
            await client.reply({"jsonrpc": "2.0", "id": question["id"], **outcome})
            heard = [one for one in await client.heard(b'"jsonrpc"') if same(one.get("id"), at_child)]
            assert heard[-1] == {"jsonrpc": "2.0", "id": at_child, **outcome}
            await client.open(name)
            last = await stream.message()
            assert (last["id"], said(last["result"])) == (1, "done")
            if get is not None:
                await client.run(line(notification("notifications/next")))
                assert (await get.message())["method"] == "notifications/next", "nothing came twice"

    @pytest.mark.case("RT-01")
    @pytest.mark.parametrize("method", QUESTIONS)
    async def test_question_goes_on_the_get_stream_where_no_post_can_carry_it(
        self, bridge: Bridge, method: str
    ) -> None:
        asked = (line(request("q", method)), {"hear": '"q"'})
        async with session(bridge.port, capabilities=CAPABLE) as client, client.listening() as stream:
            await stream.head()
            async with client.posted(run(1, *asked), JSON_ONLY) as posted:
                question = await stream.message()
                assert question["method"] == method
                await client.reply({"jsonrpc": "2.0", "id": question["id"], "result": {}})
                assert said((await posted.answer()).result) == "done"

    @pytest.mark.case("RT-01")
    @pytest.mark.parametrize("method", QUESTIONS)
    @pytest.mark.parametrize("accept", [BOTH, JSON_ONLY])
    async def test_question_that_the_client_cannot_answer_is_refused_at_once(
        self, bridge: Bridge, method: str, accept: str
    ) -> None:
        capabilities: Json = {name: {} for name in CAPABLE if not method.startswith(name)}
        async with session(bridge.port, capabilities=capabilities) as client:
            asked = (line(request("incapable", method)), {"hear": '"incapable"'})
            answer = await client.run(*asked, accept=accept)
            assert [said(one["result"]) for one in answer.messages] == ["done"]
            reply = (await client.heard(b'"id":"incapable"'))[-1]
            assert reply["error"]["code"] in (-32601, -32602)

    @pytest.mark.case("RT-01")
    @pytest.mark.parametrize("process", ProcessModel)
    async def test_question_that_no_stream_can_carry_is_refused_and_never_hangs(
        self, process: ProcessModel
    ) -> None:
        """JSON only and no GET. The wait for a stream is cut short here, so that the test need not wait."""
        config = Config(
            upstream=Command(argv=tuple(child("scripted.py"))),
            process=process,
            listen=Listen(port=0),
            timing=Timing(question=0.2),
        )
        async with in_process(config, {}) as (_, served):
            port = int(served.listening.rsplit(":", 1)[1])
            async with session(port, capabilities=CAPABLE) as client:
                asked = (line(request("q", "elicitation/create")), {"hear": '"q"'})
                answer = await client.run(*asked, accept=JSON_ONLY)
                assert said(answer.result) == "done"
                (reply,) = await client.heard(b'"id":"q"')
                assert reply["error"]["code"] in (-32601, -32602)

    @pytest.mark.case("RT-01")
    async def test_question_that_waits_goes_on_the_first_stream_that_comes(self, own: Bridge) -> None:
        asked = (line(request("q", "elicitation/create", {"x": 1})), {"hear": '"q"'})
        async with (
            session(own.port, capabilities=CAPABLE) as client,
            client.posted(run(1, *asked), JSON_ONLY) as posted,
        ):
            await client.until_received("elicitation/create")
            async with client.listening() as stream:
                question = await stream.message()
                assert (question["id"], question["params"]) == ("q", {"x": 1})
                await client.reply({"jsonrpc": "2.0", "id": "q", "result": {}})
                assert said((await posted.answer()).result) == "done"

    @pytest.mark.case("RT-01")
    @pytest.mark.parametrize("method", QUESTIONS)
    @pytest.mark.parametrize("able", [True, False])
    async def test_old_client_is_asked_only_what_it_said_it_can_answer(
        self, own: Bridge, method: str, able: bool
    ) -> None:
        asked = run(1, line(request("q", method)), {"hear": '"q"'})
        async with old(own.port, CAPABLE if able else {}) as client:
            assert client.stream is not None
            posted = await ask(own.port, "POST", client.posting(asked), dump(asked), path=client.address)
            assert posted.status == 202
            message = await client.stream.message()
            if able:
                assert message == request("q", method)
                await client.post({"jsonrpc": "2.0", "id": "q", "result": {"roots": []}})
                message = await client.stream.message()
            assert said(message["result"]) == "done"

    @pytest.mark.case("RT-01")
    async def test_question_during_a_modern_call_is_not_shown_and_not_a_hang(self, own: Bridge) -> None:
        """2026-07-28: a server sends no requests, and is sent no responses; the call goes on."""
        client = Modern(own.port)
        asked = [
            line(request("modern-question", method, {"x": 1}))
            for method in (*QUESTIONS, "ping", "vendor/ask")
        ]
        answer = await client.run(*asked, accept=SSE_ONLY)
        assert [said(one["result"]) for one in answer.messages] == ["done"]
        assert await client.received(b'"id":"modern-question"') == []

    @pytest.mark.case("RT-01")
    async def test_question_that_is_never_answered_ends_with_the_session(self, shared: Bridge) -> None:
        asked = (line(request("left-alone", "elicitation/create")), {"hear": '"left-alone"'})
        async with session(shared.port) as other:
            client = await connect(shared.port, capabilities=CAPABLE)
            async with client.posted(run(1, *asked), SSE_ONLY) as stream:
                await stream.message()
                await client.delete()
                last = await stream.message()
                assert last["error"]["code"] == -32603
            (reply,) = await other.heard(b'"id":"left-alone"')
            assert reply["error"]["code"] in (-32603, -32601)

    @pytest.mark.case("RT-01")
    async def test_question_of_a_shared_server_is_asked_of_nobody_if_two_could_be_meant(
        self, shared: Bridge
    ) -> None:
        name = gate()
        async with (
            session(shared.port, capabilities=CAPABLE) as a,
            session(shared.port, capabilities=CAPABLE) as b,
            a.posted(run(1, {"wait": name}), SSE_ONLY) as call_a,
        ):
            await running_at(a, name)
            answer = await b.run(
                line(request("whose", "elicitation/create")), {"hear": '"whose"'}, accept=SSE_ONLY
            )
            assert [said(one["result"]) for one in answer.messages] == ["done"]
            (reply,) = await b.heard(b'"id":"whose"')
            assert "error" in reply
            await a.open(name)
            assert [said(one["result"]) for one in (await call_a.answer()).messages] == ["done"]

    @pytest.mark.case("RT-01")
    async def test_answer_that_nobody_asked_for_and_a_second_answer_never_reach_the_server(
        self, bridge: Bridge
    ) -> None:
        async with session(bridge.port, capabilities=CAPABLE) as client:
            await client.reply({"jsonrpc": "2.0", "id": "unasked", "result": {}})
            asked = (line(request("once", "roots/list")), {"hear": '"once"'})
            async with client.posted(run(1, *asked), SSE_ONLY) as stream:
                shown_id = (await stream.message())["id"]
                for n in range(2):
                    await client.reply({"jsonrpc": "2.0", "id": shown_id, "result": {"n": n}})
                assert said((await stream.message())["result"]) == "done"
            assert await client.received(b'"id":"unasked"') == []
            assert [one["result"] for one in await client.heard(b'"id":"once"')] == [{"n": 0}]

    @pytest.mark.case("RT-01", "ID-05")
    async def test_one_session_cannot_answer_what_another_was_asked(self, shared: Bridge) -> None:
        asked = (line(request("private", "elicitation/create")), {"hear": '"private"'})
        async with session(shared.port, capabilities=CAPABLE) as a, session(shared.port) as thief:
            async with a.posted(run(1, *asked), SSE_ONLY) as stream:
                shown_id = (await stream.message())["id"]
                await thief.reply({"jsonrpc": "2.0", "id": shown_id, "result": {"by": "thief"}})
                await a.reply({"jsonrpc": "2.0", "id": shown_id, "result": {"by": "a"}})
                assert said((await stream.message())["result"]) == "done"
            assert [one["result"] for one in await a.heard(b'"id":"private"')] == [{"by": "a"}]

    @pytest.mark.case("RT-01", "ID-01")
    async def test_two_open_questions_with_one_id_both_get_their_answer(self, own: Bridge) -> None:
        """A server may not do so; ours is not to lose either."""
        asked = [line(request("twin", "roots/list", {"n": n})) for n in range(2)]
        async with session(own.port, capabilities=CAPABLE) as client:
            async with client.posted(run(1, *asked, {"hear": '"twin"'}), SSE_ONLY) as stream:
                shown_ids = [(await stream.message())["id"] for _ in asked]
                assert len(set(shown_ids)) == 2
                for n, shown_id in enumerate(shown_ids):
                    await client.reply({"jsonrpc": "2.0", "id": shown_id, "result": {"n": n}})
                await stream.answer()
            assert [one["result"]["n"] for one in await client.heard(b'"id":"twin"')] == [0, 1]


LIST_CHANGED = [f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")]


async def levels_set(caller: Caller) -> list[str]:
    """The log levels that the server was told, in order."""
    return [one["params"]["level"] for one in await caller.heard(b'"method":"logging/setLevel"')]


def logged(level: str, data: str) -> Json:
    return line(notification("notifications/message", {"level": level, "data": data}))


class TestNotifications:
    """RT-03: what a server tells."""

    @pytest.mark.case("RT-03")
    async def test_list_change_reaches_every_session(self, shared: Bridge) -> None:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(session(shared.port)) for _ in range(3)]
            streams = [await stack.enter_async_context(client.listening()) for client in clients]
            for stream in streams:
                await stream.head()
            await clients[0].run(*(line(notification(method)) for method in LIST_CHANGED))
            for stream in streams:
                assert [(await stream.message())["method"] for _ in LIST_CHANGED] == LIST_CHANGED

    @pytest.mark.case("RT-03")
    async def test_update_reaches_the_subscribers_only(self, shared: Bridge) -> None:
        async with AsyncExitStack() as stack:
            a, b = [await stack.enter_async_context(session(shared.port)) for _ in range(2)]
            streams = [await stack.enter_async_context(one.listening()) for one in (a, b)]
            for stream in streams:
                await stream.head()
            await a.result(request(1, "resources/subscribe", {"uri": "x://only-a"}))
            await b.result(request(1, "resources/subscribe", {"uri": "x://both"}))
            await a.result(request(2, "resources/subscribe", {"uri": "x://both"}))
            await a.result(request(3, "resources/unsubscribe", {"uri": "x://both"}))
            await b.run(*(updated(f"x://{name}") for name in ("only-a", "both", "nobody")), end())
            assert await until_end(streams[0]) == ["x://only-a"]
            assert await until_end(streams[1]) == ["x://both"]
            assert len(await b.received(b'"method":"resources/unsubscribe"')) == 0, "b still wants it"

    @pytest.mark.case("RT-03")
    async def test_server_is_unsubscribed_when_the_last_subscriber_leaves(self, shared: Bridge) -> None:
        uri = "x://last-of-all"
        async with session(shared.port) as other:
            for _ in range(2):
                async with session(shared.port) as client:
                    await client.result(request(1, "resources/subscribe", {"uri": uri}))
                assert (await other.run()).result
            told = [one["method"] for one in await other.heard(uri.encode())]
            assert told == ["resources/subscribe", "resources/unsubscribe"] * 2

    @pytest.mark.case("RT-03")
    async def test_each_session_hears_the_log_at_its_own_level(self, shared: Bridge) -> None:
        async with AsyncExitStack() as stack:
            a, b = [await stack.enter_async_context(session(shared.port)) for _ in range(2)]
            streams = [await stack.enter_async_context(one.listening()) for one in (a, b)]
            for stream in streams:
                await stream.head()
            await a.result(request(1, "logging/setLevel", {"level": "error"}))
            await b.result(request(1, "logging/setLevel", {"level": "debug"}))
            # Both have a call in flight, so that the messages are not plainly one session's.
            name = gate()
            call_a = await stack.enter_async_context(a.posted(run(5, {"wait": name}), JSON_ONLY))
            await running_at(a, name)
            levels = ("debug", "info", "error", "emergency")
            await b.run(*(logged(level, level) for level in levels), end(), accept=JSON_ONLY)
            assert await until_end(streams[0]) == ["error", "emergency"]
            assert await until_end(streams[1]) == ["debug", "info", "error", "emergency"]
            await a.open(name)
            assert said((await call_a.answer()).result) == "done"
            assert (await levels_set(a))[-1] == "debug", "a must not silence b"
            await a.result(request(2, "logging/setLevel", {"level": "emergency"}))
            assert (await levels_set(a))[-1] == "debug"

    @pytest.mark.case("RT-03")
    async def test_level_that_does_not_exist_is_for_the_server_to_refuse(self, bridge: Bridge) -> None:
        async with session(bridge.port) as client:
            answer = await client.post(request(1, "logging/setLevel", {"level": "loud"}))
            assert answer.error["message"] == "no such level"

    @pytest.mark.case("RT-03", "ID-06")
    async def test_cancelled_and_progress_reach_nobody_else(self, shared: Bridge) -> None:
        async with AsyncExitStack() as stack:
            a, b = [
                await stack.enter_async_context(session(shared.port, capabilities=CAPABLE)) for _ in range(2)
            ]
            stream = await stack.enter_async_context(b.listening())
            await stream.head()
            asked = line(request("mine", "roots/list"))
            back = line(notification("notifications/cancelled", {"requestId": "mine"}))
            stray = line(notification("notifications/cancelled", {"requestId": "nobody's"}))
            answer = await a.run(asked, progress(1), back, stray, end(), token="t", accept=SSE_ONLY)
            methods = [one.get("method") for one in answer.messages]
            assert methods[:3] == ["roots/list", "notifications/progress", "notifications/cancelled"]
            assert await until_end(stream) == []

    @pytest.mark.case("RT-03")
    async def test_what_nobody_listened_to_waits_for_a_late_get(self, bridge: Bridge) -> None:
        """In order, once each, and what tells the same thing again only once."""
        first, second, third = LIST_CHANGED
        notes = [line(notification(method)) for method in (first, second, first)]
        async with session(bridge.port) as client:
            await client.run(*notes, logged("error", "kept"), notes[1], end(), accept=JSON_ONLY)
            async with client.listening() as stream:
                heard = [await stream.message() for _ in range(3)]
                assert [one["method"] for one in heard] == [first, second, "notifications/message"]
                assert heard[2]["params"]["data"] == "kept"
                assert await until_end(stream) == []
                await client.run(line(notification(third)))
                assert (await stream.message())["method"] == third

    @pytest.mark.case("RT-03")
    async def test_what_waits_is_bounded_and_log_messages_go_first(self, bridge: Bridge) -> None:
        async with session(bridge.port) as client:
            many = [logged("error", f"n{n}") for n in range(500)]
            await client.run(line(notification(LIST_CHANGED[0])), *many, end(), accept=JSON_ONLY)
            async with client.listening() as stream:
                assert (await stream.message())["method"] == LIST_CHANGED[0]
                kept = await until_end(stream)
                assert 0 < len(kept) < 100
                assert kept == [f"n{n}" for n in range(500)][-len(kept) :], "the newest are kept"

    @pytest.mark.case("RT-03")
    async def test_notification_goes_on_the_only_post_in_flight_where_there_is_no_get(
        self, bridge: Bridge
    ) -> None:
        async with session(bridge.port) as client:
            answer = await client.run(
                *(line(notification(method)) for method in LIST_CHANGED), accept=SSE_ONLY
            )
            assert [one.get("method") for one in answer.messages] == [*LIST_CHANGED, None]

    @pytest.mark.case("RT-03")
    async def test_notification_goes_to_one_stream_only(self, own: Bridge) -> None:
        async with session(own.port) as client, client.listening() as first, client.listening() as second:
            await first.head()
            await second.head()
            answer = await client.run(line(notification(LIST_CHANGED[0])), accept=SSE_ONLY)
            await client.delete()
            heard = [*answer.messages, *(await first.answer()).messages, *(await second.answer()).messages]
            assert [one["method"] for one in heard if "method" in one] == LIST_CHANGED[:1]

    @pytest.mark.case("RT-03")
    async def test_log_message_during_a_modern_call_goes_to_who_asked_for_it(self, own: Bridge) -> None:
        quiet, loud = Modern(own.port), Modern(own.port)
        name = gate()
        asked = run(1, logged("error", "for the loud one"), {"wait": name})
        asked["params"] = {"_meta": {"io.modelcontextprotocol/logLevel": "debug"}, **asked["params"]}
        async with (
            quiet.posted(run(1, {"wait": name}), SSE_ONLY) as other,
            loud.posted(asked, SSE_ONLY) as stream,
        ):
            assert (await stream.message())["params"]["data"] == "for the loud one"
            await quiet.open(name)
            assert [said(one["result"]) for one in (await other.answer()).messages] == ["done"]

    @pytest.mark.case("RT-03")
    async def test_clients_notifications_reach_the_server_once(self, own: Bridge) -> None:
        async with session(own.port, capabilities=CAPABLE) as client:
            await client.tell("notifications/roots/list_changed")
            assert len(await client.received(b"notifications/roots/list_changed")) == 1
            assert len(await client.received(b"notifications/initialized")) == 1


def updated(uri: str) -> Json:
    return line(notification("notifications/resources/updated", {"uri": uri}))


def end() -> Json:
    """The mark of the end: everything before it has come, or never will."""
    return line(notification("notifications/end"))


async def until_end(stream: Exchange) -> list[Any]:
    """What the messages were about that came before the mark."""
    found = []
    while (message := await stream.message())["method"] != "notifications/end":
        params = message.get("params", {})
        found.append(params.get("uri", params.get("data")))
    return found


class TestPing:
    """RT-04: in either direction, over every stream."""

    @pytest.mark.case("RT-04")
    @pytest.mark.parametrize("request_id", [1, "p-1", 0, ""])
    async def test_ping_of_a_client_is_answered(self, bridge: Bridge, request_id: Id) -> None:
        async with session(bridge.port) as client:
            for accept in (JSON_ONLY, SSE_ONLY):
                answer = await client.post(request(request_id, "ping"), accept)
                assert answer.last == {"jsonrpc": "2.0", "id": request_id, "result": {}}

    @pytest.mark.case("RT-04")
    async def test_ping_of_a_modern_client_names_no_method(self, own: Bridge) -> None:
        answer = await Modern(own.port).post(request(1, "ping"))
        assert answer.error["code"] == -32601

    @pytest.mark.case("RT-04")
    @pytest.mark.parametrize("ping_id", ["p-1", 5, 0, ""], ids=shown)
    @pytest.mark.parametrize(
        "outcome",
        [
            {"result": {}},
            {"error": {"code": -32601, "message": "none"}},
            {"error": {"code": -32600, "message": "bad"}},
        ],
    )
    @pytest.mark.parametrize("listening", [False, True])
    async def test_ping_of_a_server_is_answered_once_by_its_client(
        self, own: Bridge, ping_id: Id, outcome: Json, listening: bool
    ) -> None:
        """On the POST's stream, or on the GET's if that takes none; an error is a sign of life too."""
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(session(own.port))
            get = await stack.enter_async_context(client.listening())
            await get.head()
            steps = (line(request(ping_id, "ping")), {"hear": _text(ping_id)})
            accept = JSON_ONLY if listening else SSE_ONLY
            posted = await stack.enter_async_context(client.posted(run("call", *steps), accept))
            stream = get if listening else posted
            ping = await stream.message()
            assert ping["method"] == "ping"
            assert same(ping["id"], ping_id)
            pong = {"jsonrpc": "2.0", "id": ping["id"], **outcome}
            await client.reply(pong)
            assert (
                await posted.answer() if listening else Answer(200, {}, (await stream.event()).data)
            ).result
            heard = [one for one in await client.heard(b'"jsonrpc"') if "method" not in one]
            assert heard == [pong]

    @pytest.mark.case("RT-04")
    async def test_ping_that_no_stream_can_carry_is_answered_by_the_bridge(self, own: Bridge) -> None:
        async with session(own.port) as client:
            answer = await client.run(line(request("p", "ping")), {"hear": '"p"'}, accept=JSON_ONLY)
            assert said(answer.result) == "done"
            assert await client.heard(b'"id":"p"') == [{"jsonrpc": "2.0", "id": "p", "result": {}}]

    @pytest.mark.case("RT-04")
    @pytest.mark.parametrize("accept", [JSON_ONLY, SSE_ONLY])
    async def test_ping_of_a_shared_server_is_answered_by_the_bridge_and_shown_to_nobody(
        self, shared: Bridge, accept: str
    ) -> None:
        async with session(shared.port) as client, session(shared.port) as other, other.listening() as stream:
            await stream.head()
            name = gate()
            answer = await client.run(
                line(request(name, "ping")), {"hear": _text(name)}, end(), accept=accept
            )
            assert "ping" not in [one.get("method") for one in answer.messages]
            assert [one for one in await client.heard(name.encode()) if "method" not in one] == [
                {"jsonrpc": "2.0", "id": name, "result": {}}
            ]
            assert await until_end(stream) == []
