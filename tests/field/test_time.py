"""Field cases TF: what waiting does, and what leaving does.

Time limits that matter are set small, or are shown not to exist; order is proved by what must have
come first, never by a clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any

import pytest

from bridge.app import running as in_process
from bridge.config import Command, Config, Listen, ProcessModel, Timing

from .conftest import Bridge, Start, child
from .raw import BOTH, JSON_ONLY, SSE_ONLY, Event, Exchange, opened
from .session import (
    Caller,
    Id,
    Json,
    Modern,
    Session,
    call,
    initialize,
    line,
    notification,
    old,
    progress,
    request,
    run,
    session,
)

CAPABLE: Json = {"elicitation": {}, "sampling": {}, "roots": {}}
IMPATIENT = ("--request-timeout", "400ms")


@pytest.fixture(scope="module")
def own(start_bridge: Start) -> Bridge:
    return start_bridge(child("scripted.py"), "--legacy-sse")


@pytest.fixture(scope="module")
def shared(start_bridge: Start) -> Bridge:
    return start_bridge(child("scripted.py"), "--process", "shared", "--legacy-sse")


@pytest.fixture(scope="module")
def impatient(start_bridge: Start) -> Bridge:
    return start_bridge(child("scripted.py"), "--legacy-sse", *IMPATIENT)


@pytest.fixture(scope="module")
def impatient_shared(start_bridge: Start) -> Bridge:
    return start_bridge(child("scripted.py"), "--process", "shared", *IMPATIENT)


@pytest.fixture(params=["own", "shared"])
def bridge(request: pytest.FixtureRequest) -> Bridge:
    found: Bridge = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["own", "shared", "modern"])
async def hurried(
    request: pytest.FixtureRequest, impatient: Bridge, impatient_shared: Bridge
) -> AsyncIterator[Caller]:
    """A caller of each kind, of a bridge that gives every request 400 ms."""
    if request.param == "modern":
        yield Modern(impatient.port)
        return
    async with session((impatient if request.param == "own" else impatient_shared).port) as found:
        yield found


_GATES = count()


def gate() -> str:
    return f"gate-{next(_GATES)}"


def said(result: Any) -> object:
    return result["content"][0]["text"]


class TestSilence:
    """TF-01."""

    @pytest.mark.case("TF-01")
    async def test_silent_tool_is_waited_for(self, own: Bridge, shared: Bridge) -> None:
        """For 6 s: longer than any client's default of 5 s, and than the wait that begins a stream."""
        silent = {"tick": "6"}
        ticking = [{"tick": "2"}, progress(1), {"tick": "2"}, progress(2), {"tick": "2"}]
        async with AsyncExitStack() as stack:
            callers: list[Caller] = [Modern(own.port), await stack.enter_async_context(old(own.port))]
            for bridge in (own, shared):
                callers += [await stack.enter_async_context(session(bridge.port)) for _ in range(2)]
            calls = [caller.run(silent, accept=accept) for caller in callers for accept in _accepts(caller)]
            calls += [caller.run(*ticking, token="t") for caller in callers[2:]]
            for answer in await asyncio.gather(*calls):
                assert answer.status == 200
                assert said(answer.result) == "done"

    @pytest.mark.case("TF-01")
    async def test_slow_handshake_is_waited_for(self) -> None:
        config = Config(upstream=Command(argv=tuple(child("scripted.py"))))
        assert config.timing.start >= 60

    @pytest.mark.case("TF-01")
    async def test_no_limit_applies_to_a_request_by_default(self) -> None:
        """Silence of 31, 61 or 301 s: there is no clock that could tell it from one of 6 s."""
        assert Timing().request is None

    @pytest.mark.case("TF-01")
    @pytest.mark.parametrize("accept", [BOTH, JSON_ONLY, SSE_ONLY])
    async def test_call_over_the_limit_is_answered_with_an_error_and_cancelled_at_the_server(
        self, hurried: Caller, accept: str
    ) -> None:
        name = gate()
        answer = await hurried.post(run("late", {"wait": name}, line(GOOD)), accept)
        assert answer.last["id"] == "late"
        assert answer.error["code"] == -32603
        assert answer.error["data"]["origin"] == "bridge"
        at_child = (await hurried.until_received(f'"wait":"{name}"'))["id"]
        assert await hurried.cancelled() != []
        assert (await hurried.cancelled())[-1] == at_child
        await hurried.open(name)  # the late answer is nobody's
        again = await hurried.post(call("late", "again"), accept)
        assert [said(one["result"]) for one in again.messages] == ["again"]

    @pytest.mark.case("TF-01")
    async def test_call_of_an_old_client_over_the_limit_is_answered_with_an_error(
        self, impatient: Bridge
    ) -> None:
        async with old(impatient.port) as client:
            answer = await client.post(run("late", {"wait": "nothing"}))
            assert answer.error["code"] == -32603
            assert await client.cancelled() == ["late"]

    @pytest.mark.case("TF-01")
    async def test_limit_ends_a_stream_that_has_begun(self, hurried: Caller) -> None:
        name = gate()
        answer = await hurried.run(progress(1), {"wait": name}, token="t", accept=SSE_ONLY)
        assert answer.messages[0]["params"] == {"progressToken": "t", "progress": 1}
        assert answer.error["code"] == -32603
        await hurried.open(name)

    @pytest.mark.case("TF-01", "ID-07")
    async def test_progress_begins_the_limit_anew(self, hurried: Caller) -> None:
        """Six notes 0.1 s apart: more than the limit in all, and a quarter of it in between."""
        steps = [step for n in range(6) for step in ({"tick": "0.1"}, progress(n))]
        answer = await hurried.run(*steps, token="t")
        assert said(answer.result) == "done"

    @pytest.mark.case("TF-01", "ID-07")
    async def test_progress_of_another_call_does_not_extend_the_limit(self, hurried: Caller) -> None:
        name = gate()
        steps = [step for n in range(6) for step in ({"tick": "0.1"}, progress(n))]
        other, answer = await asyncio.gather(
            hurried.run(*steps, token="other"), hurried.run({"wait": name}, token="mine")
        )
        assert said(other.result) == "done"
        assert answer.error["code"] == -32603
        await hurried.open(name)

    @pytest.mark.case("TF-01", "RT-01")
    @pytest.mark.parametrize("model", ["impatient", "impatient_shared"])
    async def test_limit_waits_while_a_person_is_asked(
        self, request: pytest.FixtureRequest, model: str
    ) -> None:
        """The answer comes after three more calls have run into the limit, one after another."""
        bridge: Bridge = request.getfixturevalue(model)
        asked = f'{{"jsonrpc":"2.0","id":"{gate()}","method":"elicitation/create","params":{{}}}}'
        async with session(bridge.port, capabilities=CAPABLE) as client:
            steps = (line(asked), {"hear": asked.split('"id":')[1].split(",")[0]})
            async with client.posted(run(1, *steps), SSE_ONLY) as stream:
                question = (await stream.message())["id"]
                for _ in range(3):
                    async with session(bridge.port) as other:
                        assert (await other.post(run("late", {"wait": "nothing"}))).error["code"] == -32603
                await client.reply({"jsonrpc": "2.0", "id": question, "result": {"action": "accept"}})
                assert said((await stream.message())["result"]) == "done"

    @pytest.mark.case("TF-01")
    async def test_batch_member_over_the_limit_leaves_the_others_their_answers(
        self, impatient: Bridge
    ) -> None:
        async with session(impatient.port, "2025-03-26") as client:
            answer = await client.post([run("late", {"wait": "nothing"}), call("fast", "echo")])
            members = [
                one for found in answer.messages for one in (found if isinstance(found, list) else [found])
            ]
            assert sorted((one["id"], "error" in one) for one in members) == [("fast", False), ("late", True)]


GOOD = '{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"late"}]}}'


def _accepts(caller: Caller) -> Sequence[str]:
    """One at a time where the caller has one stream for everything."""
    return (BOTH, JSON_ONLY, SSE_ONLY) if not hasattr(caller, "stream") else (BOTH,)


@asynccontextmanager
async def quick(process: ProcessModel = ProcessModel.SESSION) -> AsyncIterator[int]:
    """The port of a bridge whose streams begin and breathe quickly, which no option can ask for."""
    config = Config(
        upstream=Command(argv=tuple(child("scripted.py"))),
        process=process,
        listen=Listen(port=0, legacy_sse=True),
        timing=Timing(commit=0.05, commit_modern=0.05, keepalive=0.05),
    )
    async with in_process(config, {}) as (_, served):
        yield int(served.listening.rsplit(":", 1)[1])


async def comments(stream: Exchange, number: int) -> None:
    """Read on until so many comments have come in a row, and nothing else."""
    for _ in range(number):
        event = await stream.block()
        while event is not None and event.data == b"" and event.comment is None:
            event = await stream.block()  # the event that primes a stream
        assert isinstance(event, Event)
        assert event.comment is not None, event


class TestIdleStreams:
    """TF-02."""

    @pytest.mark.case("TF-02")
    async def test_idle_stream_breathes_more_often_than_any_proxy_cuts(self) -> None:
        assert 0 < Timing().keepalive <= 15
        assert 0 < Timing().commit <= 15, "a POST that waits breathes too"
        assert 0 < Timing().commit_modern <= 15

    @pytest.mark.case("TF-02")
    @pytest.mark.parametrize("process", ProcessModel)
    async def test_idle_get_stream_breathes_and_then_carries_a_notification(
        self, process: ProcessModel
    ) -> None:
        async with quick(process) as port, session(port) as client, client.listening() as stream:
            await comments(stream, 3)
            await client.run(line(notification("notifications/after-silence")), accept=JSON_ONLY)
            assert (await stream.message())["method"] == "notifications/after-silence"
            await comments(stream, 1)

    @pytest.mark.case("TF-02")
    @pytest.mark.parametrize("accept", [BOTH, SSE_ONLY])
    @pytest.mark.parametrize("modern", [False, True])
    async def test_idle_post_stream_breathes_before_its_first_message(
        self, accept: str, modern: bool
    ) -> None:
        async with quick() as port, session(port) as plain:
            caller: Caller = Modern(port) if modern else plain
            async with caller.posted(run(1, {"wait": "go"}), accept) as stream:
                await comments(stream, 3)
                await caller.open("go")
                assert said((await stream.message())["result"]) == "done"
                assert await stream.block() is None, "the stream ends with the answer"

    @pytest.mark.case("TF-02")
    async def test_post_stream_breathes_between_its_messages(self) -> None:
        async with quick() as port, session(port) as client:
            steps = (progress(1), {"wait": "go"}, progress(2), {"wait": "on"})
            async with client.posted(run(1, *steps, token="t")) as stream:
                assert (await stream.message())["params"]["progress"] == 1
                await comments(stream, 2)
                await client.open("go")
                assert (await stream.message())["params"]["progress"] == 2
                await comments(stream, 2)
                await client.open("on")
                assert said((await stream.message())["result"]) == "done"

    @pytest.mark.case("TF-02")
    async def test_stream_of_an_old_client_breathes(self) -> None:
        async with quick() as port, old(port) as client:
            assert client.stream is not None
            await comments(client.stream, 3)
            assert said((await client.run()).result) == "done"

    @pytest.mark.case("TF-02")
    async def test_resumed_stream_breathes(self) -> None:
        async with quick() as port, session(port) as client:
            async with client.posted(run(1, {"wait": "go"})) as stream:
                primed = await stream.block()
                assert primed is not None
                assert primed.id is not None
                stream.reset()
            async with client.listening(primed.id) as stream:
                await comments(stream, 3)
                await client.open("go")
                assert said((await stream.message())["result"]) == "done"

    @pytest.mark.case("TF-02")
    async def test_call_that_takes_json_only_is_waited_for_in_silence(self) -> None:
        async with quick() as port, session(port) as client:
            answer = await client.run({"tick": "0.3"}, accept=JSON_ONLY)
            assert not answer.streamed
            assert said(answer.result) == "done"


class TestLeaving:
    """TF-05."""

    @pytest.mark.case("TF-05")
    @pytest.mark.parametrize("accept", [BOTH, JSON_ONLY, SSE_ONLY])
    async def test_legacy_client_that_drops_its_post_has_not_cancelled_the_call(
        self, bridge: Bridge, accept: str
    ) -> None:
        name = gate()
        async with session(bridge.port) as client:
            before = await client.cancelled()
            async with client.posted(run(7, {"wait": name}), accept) as stream:
                await client.until_received(f'"wait":"{name}"')
                stream.reset()
            assert (await client.post(call(7, "same id"))).error["code"] == -32600, "it still runs"
            assert await client.cancelled() == before
            await client.open(name)
            assert said((await _until_free(client, 7)).result) == "same id"
            assert await client.cancelled() == before

    @pytest.mark.case("TF-05", "SE-06")
    async def test_answer_to_a_dropped_stream_is_kept_for_resumption(self, bridge: Bridge) -> None:
        name = gate()
        async with session(bridge.port) as client:
            async with client.posted(run(7, progress(1), {"wait": name}, token="t")) as stream:
                first = await stream.event()
                stream.reset()
            await client.open(name)
            await _until_free(client, 7)
            async with client.listening(first.id) as resumed:
                answer = await resumed.answer()
            assert [(one["id"], said(one["result"])) for one in answer.messages] == [(7, "done")]

    @pytest.mark.case("TF-05", "ID-06")
    async def test_dropped_call_can_still_be_cancelled(self, bridge: Bridge) -> None:
        name = gate()
        async with session(bridge.port) as client:
            async with client.posted(run(7, {"wait": name})) as stream:
                at_child = (await client.until_received(f'"wait":"{name}"'))["id"]
                stream.reset()
            await client.cancel(7)
            assert (await client.cancelled())[-1] == at_child
            assert said((await client.post(call(7, "free again"))).result) == "free again"
            await client.open(name)

    @pytest.mark.case("TF-05")
    @pytest.mark.parametrize("accept", [BOTH, JSON_ONLY, SSE_ONLY])
    @pytest.mark.parametrize("request_id", [7, "7"])
    async def test_modern_client_that_drops_its_post_has_cancelled_the_call(
        self, own: Bridge, accept: str, request_id: Id
    ) -> None:
        name, other = gate(), gate()
        client = Modern(own.port)
        async with client.posted(run(request_id, {"wait": other}), accept) as staying:
            stays = (await client.until_received(f'"wait":"{other}"'))["id"]
            async with client.posted(run(request_id, {"wait": name}), accept) as stream:
                leaves = (await client.until_received(f'"wait":"{name}"'))["id"]
                stream.reset()
            await client.until_cancelled(leaves)
            assert stays not in await client.cancelled()
            await client.open(other)
            assert said((await staying.answer()).result) == "done"
        await client.open(name)

    @pytest.mark.case("TF-05")
    async def test_modern_client_that_drops_a_stream_that_has_begun_has_cancelled_the_call(
        self, own: Bridge
    ) -> None:
        name = gate()
        client = Modern(own.port)
        async with client.posted(run(7, progress(1), {"wait": name}, token="t")) as stream:
            assert (await stream.message())["params"] == {"progressToken": "t", "progress": 1}
            at_child = (await client.until_received(f'"wait":"{name}"'))["id"]
            stream.reset()
        await client.until_cancelled(at_child)
        await client.open(name)

    @pytest.mark.case("TF-05")
    async def test_answered_modern_call_is_not_cancelled_by_the_end_of_its_connection(
        self, own: Bridge
    ) -> None:
        client = Modern(own.port)
        before = await client.cancelled()
        for accept in (BOTH, JSON_ONLY, SSE_ONLY):
            assert said((await client.run(accept=accept)).result) == "done"
        assert await client.cancelled() == before

    @pytest.mark.case("TF-05")
    async def test_old_client_whose_stream_is_gone_has_ended_its_session_and_its_calls(
        self, shared: Bridge
    ) -> None:
        name = gate()
        async with session(shared.port) as witness:
            async with old(shared.port) as client:
                asked = asyncio.create_task(client.post(run(7, {"wait": name})))
                at_child = (await witness.until_received(f'"wait":"{name}"'))["id"]
                asked.cancel()
                assert client.stream is not None
                client.stream.reset()
            await witness.until_cancelled(at_child)
            assert (await client.post(call(8, "echo"))).status == 404
            await witness.open(name)

    @pytest.mark.case("TF-05")
    async def test_session_that_is_deleted_cancels_its_calls_and_answers_them(self, shared: Bridge) -> None:
        name = gate()
        async with session(shared.port) as witness, session(shared.port) as client:
            async with client.posted(run(7, {"wait": name})) as stream:
                at_child = (await witness.until_received(f'"wait":"{name}"'))["id"]
                await client.delete()
                assert (await stream.answer()).error["code"] == -32603
            assert at_child in await witness.cancelled()
            await witness.open(name)

    @pytest.mark.case("TF-05")
    async def test_client_that_drops_its_get_has_cancelled_nothing(self, bridge: Bridge) -> None:
        name = gate()
        async with session(bridge.port) as client:
            before = await client.cancelled()
            async with client.posted(run(7, {"wait": name})) as posted:
                await client.until_received(f'"wait":"{name}"')
                async with client.listening() as stream:
                    await stream.head()
                    stream.reset()
                assert said((await client.run()).result) == "done"
                await client.open(name)
                assert said((await posted.answer()).result) == "done"
            assert await client.cancelled() == before

    @pytest.mark.case("TF-05")
    async def test_client_that_leaves_during_initialize_leaves_no_session(self, own: Bridge) -> None:
        caller = Session(own.port)
        headers = caller.posting(b"")
        async with opened(own.port, "POST", headers, caller.body(initialize())) as exchange:
            exchange.reset()
        async with session(own.port) as client:
            assert said((await client.run()).result) == "done"
            assert (await client.post(request(1, "ping"))).result == {}


async def _until_free(client: Session, request_id: Id) -> Any:
    """The answer to a call with this id, once the one that has it is over."""
    while "error" in (answer := await client.post(call(request_id, "same id"))).last:
        assert answer.error["code"] == -32600
    return answer
