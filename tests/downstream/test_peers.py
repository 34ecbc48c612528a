"""Several replicas of the bridge: a call goes on where it is held, whichever of them its client meets."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp.web import BaseRequest, StreamResponse
from field.raw import Answer, dial, head_of
from support.scripted_bridge import (
    MODERN,
    PREFIX,
    UNHURRIED,
    Bridge,
    envelope,
    initialize,
    initialized,
    mirrored,
    modern,
)
from support.scripted_server import LIMIT, Heard, Json, ScriptedServer, ScriptedSource, dump

from bridge.app import Site
from bridge.config import Access, Command, Config, Limits, Listen, Replicas, Timing
from bridge.core import sse
from bridge.core.message import request
from bridge.downstream.event_stream import EventStream
from bridge.downstream.http import PROOF, Ready, open_transport, read_body
from bridge.downstream.listener import serve
from bridge.downstream.proof import Proofs
from bridge.era.revisions import Era
from bridge.era.state import Kind
from bridge.era.suspend import Calls
from bridge.era.terms import Terms
from bridge.relay import Relay
from bridge.seal import Seal, read_ring

KEYS = base64.b64encode(b"k" * 32).decode()
OTHERS_KEYS = base64.b64encode(b"o" * 32).decode()
EL: Json = {"message": "Name?", "requestedSchema": {"type": "object", "properties": {}}}
ACCEPT: Json = {"in-1": {"action": "accept", "content": {"n": "x"}}}
ELICITS: Json = {f"{PREFIX}clientCapabilities": {"elicitation": {}}}
JSON = b"Content-Type: application/json\r\n"


@dataclass
class Replica(Bridge):
    """`seen` has the headers of every request."""

    seen: list[dict[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"


@asynccontextmanager
async def replica(
    name: str,
    *peers: tuple[str, str],
    keys: str | None = KEYS,
    access: Access | None = None,
    timing: Timing = UNHURRIED,
) -> AsyncIterator[Replica]:
    """One bridge, gate and all, before a legacy server."""
    config = Config(
        upstream=Command(argv=("script",)),
        era=Era.LEGACY,
        access=access or Access(),
        timing=timing,
        listen=Listen(port=0),
        replicas=Replicas(name=name, keys=keys, peers=peers),
    )
    source = ScriptedSource()
    relay = Relay(config, source)
    site = Site(config, relay)
    async with AsyncExitStack() as stack:
        found = Replica(config, relay, source, stack)

        async def handle(request: BaseRequest) -> StreamResponse:
            found.seen.append({name.lower(): value for name, value in request.headers.items()})
            return await site.handle(request)

        served = await serve(config.listen, handle, stalled=30.0)
        found.port = int(served.listening.rpartition(":")[2])
        relay.readiness.discovered(MODERN)
        try:
            async with relay:
                yield found
        finally:
            await source.close()
            await served.close(0.2)
            await site.close()


def called(request_id: int = 1, *, meta: Json | None = None, **more: Any) -> Json:
    return modern(
        request_id, "tools/call", meta=envelope(**ELICITS, **(meta or {})), name="a", arguments={}, **more
    )


def retried(state: str, request_id: int = 2, **more: Any) -> Json:
    return called(request_id, inputResponses=ACCEPT, requestState=state, **more)


@dataclass
class Suspended:
    """A call that waits for its client, and the server that waits for its answer."""

    state: str
    server: ScriptedServer
    asked: Heard


async def suspended(bridge: Bridge, headers: dict[str, str] | None = None) -> Suspended:
    exchange = await bridge.post_modern(called(), headers)
    server = await bridge.source.next()
    server.answers(await server.hears("initialize"), initialized())
    await server.hears("notifications/initialized")
    server.answers(await server.hears("tools/list"), {"tools": []})
    asked = await server.hears("tools/call")
    server.asks("elicitation/create", 0, **EL)
    return Suspended((await exchange.answer()).result["requestState"], server, asked)


async def went_on(call: Suspended) -> None:
    """The server has got the answer to its question."""
    heard = await call.server.hears()
    assert json.loads(heard.raw)["id"] == 0
    assert json.loads(heard.raw)["result"] == ACCEPT["in-1"]


def assert_elsewhere(answer: Answer) -> None:
    assert answer.status == 200
    assert answer.error["code"] == -32603
    assert answer.error["data"] == {"origin": "bridge", "reason": "call_elsewhere"}


# --- two replicas ---


@pytest.mark.crossing("D14")
async def test_call_goes_on_with_the_replica_that_holds_it() -> None:
    async with replica("r2") as other, replica("r1", ("r2", other.url)) as bridge:
        call = await suspended(other)
        exchange = await bridge.post_modern(retried(call.state))
        await went_on(call)
        call.server.answers(call.asked, {"content": []})
        answer = await exchange.answer()
        assert (answer.status, answer.last["id"]) == (200, 2)
        assert (answer.result["content"], answer.result["resultType"]) == ([], "complete")
        assert answer.headers["content-type"] == "application/json"
        assert "mcp-bridge-answered" not in answer.headers
        assert bridge.source.servers == []
        again = await bridge.ask_modern(retried(call.state, 3))
        assert (again.status, again.error["data"]["reason"]) == (400, "invalid_request_state")


@pytest.mark.crossing("D14")
@pytest.mark.parametrize("keys", [KEYS, None])
async def test_call_of_another_replica_cannot_go_on_without_peers(keys: str | None) -> None:
    async with replica("r2") as other, replica("r1", keys=keys) as bridge:
        call = await suspended(other)
        answer = await bridge.ask_modern(retried(call.state))
        if keys is None:  # not even the state can be read
            assert answer.error["data"]["reason"] == "invalid_request_state"
        else:
            assert_elsewhere(answer)
        assert not call.server.unread


@pytest.mark.crossing("D14")
async def test_what_is_streamed_there_is_streamed_here_at_once() -> None:
    async with replica("r2") as other, replica("r1", ("r2", other.url)) as bridge:
        exchange = await other.post_modern(called(meta={"progressToken": "first"}))
        server = await other.source.next()
        server.answers(await server.hears("initialize"), initialized())
        await server.hears("notifications/initialized")
        server.answers(await server.hears("tools/list"), {"tools": []})
        asked = await server.hears("tools/call")
        server.asks("elicitation/create", 0, **EL)
        state = (await exchange.answer()).result["requestState"]
        exchange = await bridge.post_modern(retried(state, meta={"progressToken": "second"}))
        await went_on(Suspended(state, server, asked))
        server.progresses(asked, 1)
        assert (await exchange.message())["params"] == {"progressToken": "second", "progress": 1}
        assert exchange.headers["content-type"] == "text/event-stream"
        assert exchange.headers["x-accel-buffering"] == "no"
        server.answers(asked, {"content": []})
        assert (await exchange.message())["id"] == 2
        assert await exchange.block() is None


@pytest.mark.crossing("D14")
async def test_client_that_leaves_cancels_there() -> None:
    async with replica("r2") as other, replica("r1", ("r2", other.url)) as bridge:
        call = await suspended(other)
        exchange = await bridge.post_modern(retried(call.state))
        await went_on(call)
        exchange.reset()
        cancelled = await call.server.hears("notifications/cancelled")
        assert cancelled.params["requestId"] == call.asked.id


@pytest.mark.crossing("D14")
async def test_client_that_leaves_a_stream_cancels_there() -> None:
    async with replica("r2", timing=replace(UNHURRIED, commit_modern=0.01)) as other:
        async with replica("r1", ("r2", other.url)) as bridge:
            call = await suspended(other)
            exchange = await bridge.post_modern(retried(call.state))
            await went_on(call)
            assert await exchange.head() == 200
            exchange.reset()
            await call.server.hears("notifications/cancelled")


@pytest.mark.crossing("D14")
async def test_large_request_is_passed_whole() -> None:
    async with replica("r2") as other, replica("r1", ("r2", other.url)) as bridge:
        call = await suspended(other)
        answers = {"in-1": {"action": "accept", "content": {"n": "x" * 2_000_000}}}
        exchange = await bridge.post_modern(called(2, inputResponses=answers, requestState=call.state))
        heard = await call.server.hears()
        assert json.loads(heard.raw)["result"] == answers["in-1"]
        call.server.answers(call.asked, {"content": []})
        assert (await exchange.answer()).result["content"] == []


async def test_credentials_of_the_client_stay_where_it_came_in() -> None:
    access = Access(token="secret")
    bearer = {"Authorization": "Bearer secret", "Cookie": "c=1", "Origin": "http://localhost"}
    async with replica("r2", access=access) as other:
        async with replica("r1", ("r2", other.url), access=access) as bridge:
            call = await suspended(other, {"Authorization": "Bearer secret"})
            exchange = await bridge.post_modern(retried(call.state), bearer)
            await went_on(call)
            call.server.answers(call.asked, {"content": []})
            assert (await exchange.answer()).result["content"] == []
            passed = other.seen[-1]
            assert not {"authorization", "cookie", "origin"} & passed.keys()
            assert {"mcp-method", "mcp-name", "mcp-protocol-version", "accept"} <= passed.keys()


@pytest.mark.parametrize("proven", [True, False])
async def test_peers_meet_at_addresses_that_clients_may_not_use(proven: bool) -> None:
    """The first gate judged the Host of the client; the second sees that of the peer."""
    async with replica("r2") as other, dial(other.port) as exchange:
        message = retried("s")
        body = dump({"jsonrpc": "2.0", **message})
        proof = [("Mcp-Bridge-Relayed", proof_of(body, "r2"))] if proven else []
        common = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        headers = [*mirrored(message).items(), *common, *proof]
        exchange.say(head_of("POST", "/mcp", headers, host="10.0.0.9:8080") + body)
        assert (await exchange.answer()).status == (400 if proven else 421)


async def test_replicas_without_a_common_key_know_nothing_of_each_other() -> None:
    """A state of ours that names them, as after a key was changed on one of them only."""
    async with replica("r2", keys=OTHERS_KEYS) as other:
        async with replica("r1", ("r2", other.url)) as bridge:
            assert_elsewhere(await bridge.ask_modern(retried(state_of("r2"))))
            assert len(other.seen) == 1
            assert other.source.servers == []


async def test_nobody_passes_on_what_was_passed_on() -> None:
    async with replica("r3") as third, replica("r2", ("r3", third.url)) as other:
        message = retried(state_of("r3"))
        answer = await other.ask_modern(message, {"Mcp-Bridge-Relayed": proof_of(message, "r2")})
        assert_elsewhere(answer)
        assert third.seen == []


async def test_peer_under_the_wrong_name_is_not_believed() -> None:
    async with replica("r3") as third, replica("r1", ("r2", third.url)) as bridge:
        assert_elsewhere(await bridge.ask_modern(retried(state_of("r2"))))
        assert len(third.seen) == 1


async def test_peer_that_lost_the_call_says_so() -> None:
    async with replica("r2") as other, replica("r1", ("r2", other.url)) as bridge:
        answer = await bridge.ask_modern(retried(state_of("r2")))
        assert (answer.status, answer.error["data"]["reason"]) == (200, "call_lost")


def state_of(name: str, subject: str = "local") -> str:
    """The state of a call that this replica held once."""
    config = Config(upstream=Command(argv=("script",)))
    calls: Calls[str] = Calls(
        Seal(read_ring(KEYS), config.listen.path),
        Terms(),
        upstream="script",
        replica=name,
        mint=lambda: "c" * 32,
        wall=time.time,
    )
    asked = called()
    first = request(1, "tools/call", dump(asked["params"]))
    return calls.suspend(calls.open(subject, "home"), first, Kind.SUSPEND, 600.0)


# --- who comes as a peer ---


def proof_of(message: Json | bytes, target: str, *, subject: str = "local", keys: str = KEYS) -> str:
    body = message if isinstance(message, bytes) else dump({"jsonrpc": "2.0", **message})
    return Proofs(read_ring(keys), "r1").make(target, "POST", subject, body).header


FORGED = {
    "junk": "x.y",
    "another key": proof_of(retried("s"), "r2", keys=OTHERS_KEYS),
    "another target": proof_of(retried("s"), "r3"),
    "another body": proof_of(retried("t"), "r2"),
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
@pytest.mark.parametrize("token", ["secret", None])
async def test_forged_proof_opens_no_door(forged: str, token: str | None) -> None:
    async with replica("r2", access=Access(token="secret")) as other:
        headers = {"Mcp-Bridge-Relayed": forged}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        answer = await other.ask_modern(retried("s"), headers)
        assert answer.status in (401, 403)
        assert (answer.status == 401) <= (token is None)
        assert other.source.servers == []


@pytest.mark.parametrize(
    "message",
    [modern(1, "tools/list"), called(), initialize(), {"method": "notifications/cancelled"}, [initialize()]],
    ids=["list", "first round", "initialize", "notification", "batch"],
)
async def test_proof_lets_in_what_goes_on_with_a_call_and_nothing_else(message: Json | list[Json]) -> None:
    body = dump(
        [{"jsonrpc": "2.0", **one} for one in message]
        if isinstance(message, list)
        else {"jsonrpc": "2.0", **message}
    )
    async with replica("r2", access=Access(token="secret")) as other:
        headers = {"Mcp-Bridge-Relayed": proof_of(body, "r2")}
        if isinstance(message, dict):
            headers = {**mirrored(message), **headers}
        answer = await other.ask(body, headers)
        assert (answer.status, answer.error["data"]["reason"]) == (403, "proof")
        assert other.source.servers == []


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_proof_is_for_a_post(method: str) -> None:
    async with replica("r2", access=Access(token="secret")) as other:
        headers = {"Mcp-Bridge-Relayed": proof_of(b"", "r2"), "Accept": "text/event-stream"}
        assert (await (await other.send(method, headers)).answer()).status == 401


async def test_proof_is_for_the_endpoint() -> None:
    async with replica("r2", access=Access(token="secret")) as other, dial(other.port) as exchange:
        body = dump(retried("s"))
        headers = [("Mcp-Bridge-Relayed", proof_of(body, "r2")), ("Content-Length", str(len(body)))]
        exchange.say(head_of("POST", "/messages", headers) + body)
        assert (await exchange.answer()).status == 401


async def test_two_proofs_are_none() -> None:
    async with replica("r2", access=Access(token="secret")) as other, dial(other.port) as exchange:
        body = dump({"jsonrpc": "2.0", **retried("s")})
        proofs = [("Mcp-Bridge-Relayed", proof_of(body, "r2")) for _ in range(2)]
        common = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        exchange.say(head_of("POST", "/mcp", [*mirrored(retried("s")).items(), *common, *proofs]) + body)
        assert (await exchange.answer()).status == 401


async def test_proof_works_once() -> None:
    async with replica("r2", access=Access(token="secret")) as other:
        message = retried("s")
        headers = {"Mcp-Bridge-Relayed": proof_of(message, "r2", subject="bearer")}
        assert (await other.ask_modern(message, headers)).error["data"]["reason"] == "invalid_request_state"
        assert (await other.ask_modern(message, headers)).status == 401


async def test_call_belongs_to_whom_the_other_gate_let_in() -> None:
    async with replica("r2") as other:
        message = retried(state_of("r2", subject="ann"))
        headers = {"Mcp-Bridge-Relayed": proof_of(message, "r2", subject="ann")}
        assert (await other.ask_modern(message, headers)).error["data"]["reason"] == "call_lost"


async def test_call_of_somebody_else_stays_so_whoever_passes_it_on() -> None:
    async with replica("r2") as other:
        call = await suspended(other)
        message = retried(call.state)
        headers = {"Mcp-Bridge-Relayed": proof_of(message, "r2", subject="eve")}
        answer = await other.ask_modern(message, headers)
        assert (answer.status, answer.error["data"]["reason"]) == (400, "invalid_request_state")
        assert not call.server.unread


# --- a peer that fails ---

Behaviour = Callable[[BaseRequest], Awaitable[StreamResponse]]


@asynccontextmanager
async def before(behaviour: Behaviour, *, proves: bool = True) -> AsyncIterator[Replica]:
    """A replica whose peer `r2` behaves so, after it has read the request and proved itself."""
    proofs = Proofs(read_ring(KEYS), "r2")

    async def handle(request: BaseRequest) -> StreamResponse:
        body = await read_body(request, Limits().body, LIMIT)
        found = proofs.check(request.headers["Mcp-Bridge-Relayed"], request.method)
        assert found is not None
        assert isinstance(body, bytes)
        assert found.covers(body)
        if proves:
            request[PROOF] = found
        return await behaviour(request)

    served = await serve(Listen(port=0), handle, stalled=30.0)
    port = int(served.listening.rpartition(":")[2])
    try:
        async with replica("r1", ("r2", f"http://127.0.0.1:{port}/mcp")) as bridge:
            yield bridge
    finally:
        await served.close(0.2)


async def asked_there(bridge: Replica) -> Answer:
    return await bridge.ask_modern(retried(state_of("r2")))


def says(
    status: int, lines: bytes = JSON, body: bytes = b'{"jsonrpc":"2.0","id":2,"result":{}}'
) -> Behaviour:
    async def behave(request: BaseRequest) -> StreamResponse:
        return Ready(status, lines, (body,))

    return behave


@pytest.mark.parametrize("status", [200, 404, 421, 500])
async def test_answer_without_proof_never_reaches_the_client(status: int) -> None:
    async with before(says(status), proves=False) as bridge:
        assert_elsewhere(await asked_there(bridge))


async def test_redirect_is_not_followed() -> None:
    seen = []

    async def redirect(request: BaseRequest) -> StreamResponse:
        seen.append(request.path)
        return Ready(307, b"Location: /elsewhere\r\n")

    served = await serve(Listen(port=0), redirect, stalled=30.0)
    port = served.listening.rpartition(":")[2]
    async with replica("r1", ("r2", f"http://127.0.0.1:{port}/mcp")) as bridge:
        assert_elsewhere(await asked_there(bridge))
    await served.close(0.2)
    assert seen == ["/mcp"]


async def test_proven_answer_keeps_its_status_and_what_belongs_to_it() -> None:
    lines = JSON + b"Retry-After: 7\r\nSet-Cookie: a=b\r\n"
    async with before(says(503, lines, b'{"busy":true}')) as bridge:
        answer = await asked_there(bridge)
        assert (answer.status, answer.body, answer.headers["retry-after"]) == (503, b'{"busy":true}', "7")
        assert not {"set-cookie", "mcp-bridge-answered"} & answer.headers.keys()


async def test_peer_that_cannot_be_reached_leaves_the_call_elsewhere() -> None:
    served = await serve(Listen(port=0), says(200), stalled=1.0)
    port = served.listening.rpartition(":")[2]
    await served.close(0.1)
    async with replica("r1", ("r2", f"http://127.0.0.1:{port}/mcp")) as bridge:
        assert_elsewhere(await asked_there(bridge))


async def breaks(request: BaseRequest) -> StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    await asyncio.sleep(0)
    return Ready(200)


async def test_peer_that_breaks_off_may_have_taken_the_answers() -> None:
    async with before(breaks) as bridge:
        answer = await asked_there(bridge)
        assert (answer.status, answer.error["data"]["reason"]) == (200, "call_lost")


def streams(*pieces: bytes, whole: bool) -> Behaviour:
    """A stream of these, and its end or its breach."""

    async def behave(request: BaseRequest) -> StreamResponse:
        stream = EventStream(unsent=1 << 20)
        await stream.start(request)
        for piece in pieces:
            await stream.write(piece)
        if not whole:
            assert request.transport is not None
            request.transport.close()
        return stream

    return behave


ONE = sse.event(b'{"jsonrpc":"2.0","method":"notifications/progress"}')
LAST = sse.event(b'{"jsonrpc":"2.0","id":2,"result":{}}')


async def test_stream_is_passed_byte_for_byte() -> None:
    async with before(streams(b": hi\n\n", ONE, LAST[:9], LAST[9:], whole=True)) as bridge:
        answer = await asked_there(bridge)
        assert answer.body == b": hi\n\n" + ONE + LAST


@pytest.mark.parametrize("pieces", [(), (ONE,), (ONE, LAST[:-9])], ids=["nothing", "one", "half of one"])
async def test_stream_that_breaks_off_ends_with_an_error(pieces: tuple[bytes, ...]) -> None:
    async with before(streams(*pieces, whole=False)) as bridge:
        answer = await asked_there(bridge)
        assert answer.body.startswith(b"".join(pieces))
        error = json.loads(answer.events[-1].data)
        assert (error["id"], error["error"]["data"]["reason"]) == (2, "call_lost")


async def test_json_that_breaks_off_is_no_answer() -> None:
    async def behave(request: BaseRequest) -> StreamResponse:
        transport = open_transport(request)
        proof = request[PROOF].answer(200).encode()
        lines = JSON + b"Content-Length: 99\r\nMcp-Bridge-Answered: %b\r\n\r\n{" % proof
        transport.write(b"HTTP/1.1 200 OK\r\n" + lines)
        transport.close()
        raise ConnectionResetError

    async with before(behave) as bridge:
        assert (await asked_there(bridge)).error["data"]["reason"] == "call_lost"
