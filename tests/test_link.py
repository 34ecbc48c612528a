"""One upstream session, driven by a port and a scripted server: what is sent, and whose the answers are."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count

import msgspec
import pytest
from support.scripted_bridge import UNHURRIED
from support.scripted_server import LIMIT, Heard, Json, ScriptedServer, dump

from bridge.config import Command, Config, Limits, Timing
from bridge.core.correlate import SUBSCRIPTION
from bridge.core.events import Exchange, Party, Question
from bridge.core.lines import Overlong
from bridge.core.message import Malformed, Notification, Request, Response, read, result
from bridge.era.revisions import Era
from bridge.errors import ServerFault
from bridge.link import Caller, Link


class Client:
    """A port that remembers."""

    def __init__(self, link: Link, name: str = "client") -> None:
        self.party = Party(name)
        self.link = link
        self.answers: list[Json] = []
        self.notes: list[tuple[object, str]] = []
        self.questions: list[Question] = []
        self.ends: list[object] = []
        self.faults: list[ServerFault] = []
        self._told = asyncio.Event()
        link.join(self)

    def asks(self, request_id: int | str, method: str = "tools/call", **params: object) -> Exchange:
        exchange = self.link.ask(self, parsed(request_id, method, **params), None)
        assert isinstance(exchange, Exchange)
        return exchange

    def answered(self, exchange: Exchange, response: Response) -> None:
        self.answers.append(msgspec.json.decode(response.raw))
        self._told.set()

    async def until_answered(self, count: int = 1) -> None:
        async with asyncio.timeout(LIMIT):
            while len(self.answers) < count:
                self._told.clear()
                await self._told.wait()

    def noted(self, exchange: Exchange | None, note: Notification) -> None:
        self.notes.append((exchange and exchange.id, note.method))

    def questioned(self, question: Question, request: Request) -> None:
        assert request.id == question.party_id
        self.questions.append(question)

    def ended(self, exchange: Exchange) -> None:
        self.ends.append(exchange.id)

    def lost(self, fault: ServerFault) -> None:
        self.faults.append(fault)


def parsed(request_id: int | str, method: str, **params: object) -> Request:
    text = dump({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
    request = read(text, depth=100)
    assert isinstance(request, Request)
    return request


def joined(
    *,
    fresh: bool = False,
    era: Era = Era.LEGACY,
    timing: Timing = UNHURRIED,
    limits: Limits | None = None,
) -> tuple[Link, ScriptedServer]:
    config = Config(upstream=Command(argv=("script",)), timing=timing, limits=limits or Limits())
    link = Link(config, fresh=fresh, era=era)
    server = ScriptedServer(1, link)
    link.attach(server)
    return link, server


# --- requests and their answers ---


@pytest.mark.spec("G-6", "SC-1")
async def test_request_of_a_lone_client_passes_byte_for_byte_and_so_does_its_answer() -> None:
    link, server = joined()
    client = Client(link)
    client.asks("x", a=1.0)
    asked = await server.hears()
    assert asked.raw == b'{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"a":1.0}}'
    server.answers(asked, {"z": 1})
    assert client.answers == [{"jsonrpc": "2.0", "id": "x", "result": {"z": 1}}]
    assert link.in_flight == 0


async def test_clients_of_a_shared_link_get_their_own_answers_under_their_own_ids() -> None:
    link, server = joined(fresh=True)
    clients = [Client(link), Client(link)]
    for client in clients:
        client.asks(1)
    first, second = await server.hears(), await server.hears()
    assert first.id != second.id
    server.answers(second, {"n": 2})
    server.answers(first, {"n": 1})
    assert [[a["id"], a["result"]] for c in clients for a in c.answers] == [[1, {"n": 1}], [1, {"n": 2}]]


async def test_request_with_an_id_in_flight_is_refused_and_not_sent() -> None:
    link, server = joined()
    client = Client(link)
    client.asks(1)
    refused = link.ask(client, parsed(1, "ping"), None)
    assert isinstance(refused, Malformed)
    assert (refused.code, refused.id) == (-32600, 1)
    assert len(server.unread) == 1
    assert link.in_flight == 1


@pytest.mark.spec("CP-3", "CP-4")
async def test_cancelled_request_is_in_flight_no_longer_though_the_server_never_answers_it() -> None:
    link, server = joined(fresh=True)
    client = Client(link)
    for request_id in range(3):
        link.withdraw(client.asks(request_id))
    assert link.in_flight == 0
    asked = await server.hears("tools/call")
    assert (await server.hears("notifications/cancelled")).params == {"requestId": asked.id}
    server.answers(asked)
    assert client.answers == []


@pytest.mark.spec("LC-12")
async def test_initialize_is_never_withdrawn() -> None:
    link, server = joined()
    client = Client(link)
    link.withdraw(client.asks(0, "initialize"))
    asked = await server.hears("initialize")
    assert not server.unread
    server.answers(asked)
    assert client.answers[0]["id"] == 0


async def test_client_that_leaves_takes_back_what_it_asked_and_refuses_what_it_was_asked() -> None:
    link, server = joined(fresh=True)
    leaver, stayer = Client(link), Client(link)
    leaver.asks(1)
    asked = await server.hears("tools/call")
    link.leave(stayer)  # so that there is one to ask
    server.asks("roots/list", "q")
    assert len(leaver.questions) == 1
    link.leave(leaver)
    assert (await server.hears("notifications/cancelled")).params == {"requestId": asked.id}
    refusal = await server.hears()
    assert (refusal.id, (refusal.error or {})["code"]) == ("q", -32603)
    assert link.in_flight == 0


# --- what the server starts ---


async def test_question_goes_to_the_only_client_and_its_answer_back_under_the_servers_id() -> None:
    link, server = joined()
    client = Client(link)
    server.asks("roots/list", 0)
    server.asks("sampling/createMessage", 0)  # a careless server: the client must tell them apart
    first, second = client.questions
    assert first.party_id != second.party_id
    for question in (second, first):
        response = Response(b"", question.party_id)
        answer = read(dump({"jsonrpc": "2.0", "id": response.id, "result": {}}), depth=9)
        assert isinstance(answer, Response)
        assert link.reply(client, answer)
        assert (await server.hears()).id == 0
        assert not link.reply(client, answer), "a question is answered once"


@pytest.mark.parametrize("clients", [0, 2])
async def test_question_that_is_nobodys_is_refused(clients: int) -> None:
    link, server = joined()
    held = [Client(link) for _ in range(clients)]
    server.asks("roots/list", "q")
    refusal = await server.hears()
    assert (refusal.id, (refusal.error or {})["code"]) == ("q", -32601)
    assert not any(client.questions for client in held)


@pytest.mark.spec("SC-6", "HM-7")
@pytest.mark.parametrize("clients", [0, 1, 2])
async def test_question_of_a_modern_server_is_dropped(clients: int) -> None:
    link, server = joined(fresh=True, era=Era.MODERN)
    held = [Client(link) for _ in range(clients)]
    server.asks("roots/list", "q")
    assert not server.unread
    assert not any(client.questions or client.party.questions for client in held)


async def test_notification_of_unknown_owner_goes_to_an_only_client_and_to_none_of_several() -> None:
    link, server = joined()
    client = Client(link)
    server.notes("tools/list_changed")
    other = Client(link)
    server.notes("tools/list_changed")
    assert (len(client.notes), len(other.notes)) == (1, 0)


async def test_subscription_that_the_server_ends_is_ended_and_not_answered() -> None:
    link, server = joined(fresh=True, era=Era.MODERN)
    client = Client(link)
    client.asks("L", "subscriptions/listen")
    asked = await server.hears()
    server.notes("cancelled", requestId=asked.id)
    assert (client.ends, client.answers, link.in_flight) == (["L"], [], 0)


# --- what cannot be read ---


@pytest.mark.spec("SC-16", "SC-19")
@pytest.mark.case("FR-01", "FR-02", "FR-06", "ID-09")
@pytest.mark.parametrize(
    "line",
    [
        Overlong(b'{"jsonrpc":"2.0","id":7,"result":{"x":"', b'"}}', 10**9),
        Overlong(b'{"jsonrpc":"2.0","result":{"x":"', b'"},"id":7}', 10**9),
        b'{"jsonrpc":"2.0","id":7,"result":{"x":"\x97"}}',
        b'{"jsonrpc":"2.0","id":7,"result":' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"jsonrpc":"2.0","id":7,"result":1,"error":{"code":1,"message":"m"}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"method":"\x97"}}',
    ],
    ids=["long", "long, id last", "not UTF-8", "deep", "both", "speaks of methods"],
)
async def test_answer_that_cannot_be_delivered_is_an_error_for_whoever_waits(line: bytes | Overlong) -> None:
    link, server = joined()
    client = Client(link)
    client.asks(7)
    client.asks(8)
    server.says(line, b'{"jsonrpc":"2.0","id":8,"result":{}}')
    failed, fine = client.answers
    assert (failed["id"], failed["error"]["data"]["reason"]) == (7, "invalid_upstream_message")
    assert (fine["id"], link.in_flight) == (8, 0)


@pytest.mark.case("FR-06", "FR-02", "RT-01")
@pytest.mark.parametrize("era", list(Era))
@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":"q","method":"roots/list","params":{"x":"\x97"}}',
        Overlong(b'{"jsonrpc":"2.0","method":"roots/list","params":{', b'},"id":"q"}', 10**9),
    ],
)
async def test_question_that_cannot_be_read_is_refused_but_never_to_a_modern_server(
    line: bytes | Overlong, era: Era
) -> None:
    link, server = joined(era=era)
    client = Client(link)
    client.asks("q")
    await server.hears("tools/call")
    server.says(line)
    assert (client.answers, link.in_flight) == ([], 1)
    if era is Era.LEGACY:
        refusal = await server.hears()
        assert (refusal.id, (refusal.error or {})["data"]["reason"]) == ("q", "undeliverable")
    assert not server.unread


@pytest.mark.case("FR-01")
@pytest.mark.parametrize(
    "noise",
    [b"Server ready v1", b" \t", b"\x1b[32mok\x1b[0m", b"null", b"42", b'"x"', b"[]", b'{"status":200}',
     b'{"jsonrpc":"2.0"}', b'{"jsonrpc":"2.0","id":9,"result":{}}',
     Overlong(b'{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage",', b"}", 10**9)],
)  # fmt: skip
async def test_noise_is_nobodys_answer(noise: bytes | Overlong) -> None:
    link, server = joined()
    client = Client(link)
    client.asks(7)
    server.says(noise)
    assert client.answers == []
    assert link.in_flight == 1


# --- time ---


@pytest.mark.spec("CP-16")
@pytest.mark.case("TF-01")
async def test_request_without_an_answer_in_time_is_answered_and_cancelled() -> None:
    link, server = joined(timing=replace(UNHURRIED, request=0.01))
    client = Client(link)
    client.asks(1)
    await client.until_answered()
    assert client.answers[0]["error"]["data"] == {"origin": "bridge", "reason": "upstream_timeout"}
    assert "0.01 s" in client.answers[0]["error"]["message"]
    await server.hears("tools/call")
    assert (await server.hears("notifications/cancelled")).params == {"requestId": 1}


@pytest.mark.spec("LC-12", "CP-16")
async def test_initialize_without_an_answer_in_time_is_answered_and_not_cancelled() -> None:
    link, server = joined(timing=replace(UNHURRIED, request=0.01))
    client = Client(link)
    client.asks(1, "initialize")
    await client.until_answered()
    await server.hears("initialize")
    assert not server.unread


@pytest.mark.spec("CP-17")
async def test_progress_extends_the_time_of_its_own_request_only() -> None:
    link, server = joined(timing=replace(UNHURRIED, request=0.2))
    client = Client(link)
    client.asks(1)
    client.asks(2, _meta={"progressToken": "t"})
    for progress in count(1):
        if client.answers:
            break
        server.notes("progress", progressToken="t", progress=progress)
        await asyncio.sleep(0.01)  # the server's pace
    assert [answer["id"] for answer in client.answers] == [1]
    assert link.in_flight == 1


@pytest.mark.spec("CM-11")
async def test_subscription_has_no_time_limit() -> None:
    link, _ = joined(fresh=True, era=Era.MODERN, timing=replace(UNHURRIED, request=0.01))
    client = Client(link)
    client.asks("L", "subscriptions/listen")
    client.asks(1)
    await client.until_answered()
    assert link.in_flight == 1


@pytest.mark.parametrize("method", ["initialize", "server/discover"])
async def test_server_that_does_not_answer_a_first_request_is_given_up_for_lost(method: str) -> None:
    link, server = joined(timing=replace(UNHURRIED, start=0.01))
    client = Client(link)
    client.asks(1, method)
    client.asks(2)
    await client.until_answered(2)
    assert {answer["error"]["data"]["reason"] for answer in client.answers} == {"upstream_timeout"}
    assert len(client.faults) == 1
    server.says(b'{"jsonrpc":"2.0","id":1,"result":{}}')
    server.asks("roots/list", "q")
    assert len(client.answers) == 2
    assert client.questions == []


async def test_first_request_is_answered_for_a_server_that_answers_others_only() -> None:
    link, server = joined(timing=replace(UNHURRIED, start=0.01))
    client = Client(link)
    client.asks(1, "server/discover")
    server.answers(await server.hears("server/discover"))
    client.asks(2, "initialize")
    await client.until_answered(2)
    assert client.answers[1]["error"]["data"]["reason"] == "upstream_timeout"
    assert client.answers[1]["error"]["message"] == "No answer within 0.01 s"
    assert client.faults == []


async def test_first_request_that_asks_its_client_is_given_the_same_time_once_more() -> None:
    link, server = joined(fresh=True, timing=replace(UNHURRIED, start=0.01))
    client = Client(link)
    client.asks(1, "initialize")
    server.asks("roots/list", "q")
    other = Client(link)
    other.asks(2, "server/discover")
    await other.until_answered()
    assert client.answers == []
    (question,) = client.questions
    link.reply(client, result(question.party_id, b"{}"))
    await client.until_answered()
    assert client.answers[0]["error"]["data"]["reason"] == "upstream_timeout"


# --- the end ---


@pytest.mark.case("CP-07")
async def test_lost_server_answers_every_request_with_its_status_and_last_words() -> None:
    link, server = joined(fresh=True)
    clients = [Client(link), Client(link)]
    for client in clients:
        client.asks(1)
    server.dies(139, "one", "two")
    for client in clients:
        (answer,) = client.answers
        assert answer["error"]["code"] == -32603
        assert answer["error"]["message"].endswith("two")
        assert answer["error"]["data"]["exitCode"] == 139
        assert answer["error"]["data"]["stderr"] == ["one", "two"]
        assert len(client.faults) == 1
    assert link.in_flight == 0


async def test_request_to_a_lost_server_is_answered_at_once() -> None:
    link, server = joined()
    server.dies()
    client = Client(link)
    client.asks(1)
    assert client.answers[0]["error"]["code"] == -32603
    assert link.in_flight == 0


@pytest.mark.spec("SB-5", "SB-3")
async def test_closing_ends_subscriptions_in_good_order_and_the_rest_with_an_error() -> None:
    link, server = joined(fresh=True, era=Era.MODERN)
    client = Client(link)
    client.asks("L", "subscriptions/listen")
    client.asks(1)
    await link.close()
    subscription, call = client.answers
    assert subscription["result"] == {"resultType": "complete", "_meta": {SUBSCRIPTION: "L"}}
    assert (call["id"], call["error"]["code"]) == (1, -32603)
    assert server.closed.is_set()


async def test_idle_is_told_when_the_last_request_is_answered_withdrawn_or_left() -> None:
    link, server = joined(fresh=True, era=Era.MODERN)
    client, other = Client(link), Client(link)
    client.asks("L", "subscriptions/listen")  # has no end, and is not waited for
    client.asks(1)
    withdrawn = client.asks(2)
    other.asks(1)
    idle = asyncio.ensure_future(link.idle())
    await server.hears("subscriptions/listen")
    server.answers(await server.hears())
    link.withdraw(withdrawn)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not idle.done()
    link.leave(other)
    async with asyncio.timeout(LIMIT):
        await idle
    await link.idle()  # and again, without waiting


async def test_waiting_for_idle_can_be_given_up_and_what_runs_still_ends() -> None:
    link, server = joined()
    client = Client(link)
    client.asks(1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(link.idle(), 0.01)
    server.dies()
    assert len(client.answers) == 1


# --- pressure ---


async def test_server_is_read_again_when_the_last_full_stream_has_drained() -> None:
    link, server = joined()
    for full, paused in (
        (True, True),
        (True, True),
        (False, True),
        (False, False),
        (True, True),
        (False, False),
    ):
        link.pressure(full)
        assert server.paused == paused


async def test_writable_waits_while_the_server_does_not_read() -> None:
    link, server = joined()
    await link.writable()
    server.congest()
    waiting = asyncio.ensure_future(link.writable())
    await asyncio.sleep(0)
    assert not waiting.done()
    server.relieve()
    async with asyncio.timeout(LIMIT):
        assert await waiting


async def test_writable_waits_no_longer_than_a_request_may() -> None:
    link, server = joined(timing=replace(UNHURRIED, request=0.01))
    server.congest()
    assert not await link.writable()


# --- the bridge's own requests ---


async def test_caller_gets_the_answer_to_what_it_asked() -> None:
    link, server = joined()
    caller = Caller(link)
    calls = [asyncio.ensure_future(caller.call("tools/list", b"{}")) for _ in range(2)]
    first, second = await server.hears(), await server.hears()
    server.answers(second, {"n": 2})
    server.answers(first, {"n": 1})
    assert [(await call).result for call in calls] == [msgspec.Raw(b'{"n":1}'), msgspec.Raw(b'{"n":2}')]


async def test_caller_that_is_cancelled_cancels_what_it_asked() -> None:
    link, server = joined()
    call = asyncio.ensure_future(Caller(link).call("tools/list", b"{}"))
    asked: Heard = await server.hears()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await server.hears("notifications/cancelled")).params == {"requestId": asked.id}
    server.answers(asked)


@pytest.mark.spec("CP-14")
async def test_caller_answers_pings_and_refuses_every_other_question() -> None:
    link, server = joined()
    Caller(link)
    server.asks("ping", 1)
    server.asks("roots/list", 2)
    assert (await server.hears()).result == {}
    assert ((await server.hears()).error or {})["code"] == -32601


async def test_caller_is_told_when_its_server_is_lost() -> None:
    link, server = joined()
    call = asyncio.ensure_future(Caller(link).call("initialize", b"{}"))
    await server.hears()
    server.dies(2)
    response = await call
    assert response.error is not msgspec.UNSET


@pytest.mark.spec("CP-16", "CP-18")
async def test_time_runs_on_for_a_call_that_began_after_the_open_question() -> None:
    link, server = joined(timing=replace(UNHURRIED, request=0.01))
    client = Client(link)
    client.asks(1)
    server.asks("roots/list", "q")
    server.says({"id": 1, "result": {}})
    client.asks(2)
    await client.until_answered(2)
    assert client.answers[1]["error"]["data"]["reason"] == "upstream_timeout"
    assert [question.id for question in client.questions] == ["q"]


@pytest.mark.spec("SP-9")
async def test_payload_of_what_cannot_be_read_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    _, server = joined()
    server.says(b'{"jsonrpc":"2.0","method":"m","params":{"key":"hush-\x97"}}', b"noise")
    assert '"method":"m"' in caplog.text
    assert "noise" in caplog.text
    assert "hush" not in caplog.text
