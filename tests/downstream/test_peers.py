"""Who comes as a peer and is let in, and what becomes of an answer that is not as it should be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp.web import BaseRequest, StreamResponse
from field.raw import BOTH, Answer, dial, head_of
from support.scripted_bridge import initialize, mirrored, modern
from support.scripted_replicas import (
    KEYS,
    OTHERS_KEYS,
    Replica,
    assert_elsewhere,
    called,
    proof_of,
    replica,
    retried,
    state_of,
    suspended,
)
from support.scripted_server import LIMIT, Json, dump

from bridge.config import Access, Limits, Listen
from bridge.core import sse
from bridge.downstream.event_stream import EventStream
from bridge.downstream.http import PROOF, Ready, open_transport, read_body
from bridge.downstream.listener import serve
from bridge.downstream.proof import Proofs
from bridge.seal import read_ring

JSON = b"Content-Type: application/json\r\n"


# --- who comes as a peer ---

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


@pytest.mark.parametrize(
    ("header", "value", "status", "reason"),
    [("Host", "10.0.0.9:8080", 421, "host"), ("Origin", "https://evil.example", 403, "origin")],
)
async def test_proof_stands_for_the_token_and_for_nothing_else(
    header: str, value: str, status: int, reason: str
) -> None:
    async with replica("r2", access=Access(token="secret")) as other:
        message = retried(state_of("r2", subject="bearer"))
        proof = {"Mcp-Bridge-Relayed": proof_of(message, "r2", subject="bearer")}
        answer = await said(other, message, proof | {header: value})
        assert (answer.status, answer.error["data"]["reason"]) == (status, reason)
        assert (await said(other, message, proof)).error["data"]["reason"] == "call_lost"


async def said(bridge: Replica, message: Json, headers: dict[str, str]) -> Answer:
    """POST this with a Host of its own, if `headers` have one."""
    host = headers.get("Host", "localhost")
    body = dump({"jsonrpc": "2.0", **message})
    common = {"Content-Type": "application/json", "Accept": BOTH, "Content-Length": str(len(body))}
    lines = {**common, **mirrored(message), **{k: v for k, v in headers.items() if k != "Host"}}
    async with dial(bridge.port) as exchange:
        exchange.say(head_of("POST", "/mcp", [*lines.items()], host=host) + body)
        return await exchange.answer()


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
