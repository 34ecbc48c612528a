"""Which transport a server at a URL speaks, and when sessions with it may be opened."""

from __future__ import annotations

import logging
from dataclasses import replace

import anyio
import pytest
from support.scripted_http import Exchange, Handler, OldRemote, Remote

from bridge.config import Transport
from bridge.errors import CircuitOpen, ServerFault
from upstream.remotes import TIMING, Client, connected, opened, source

AUTO = Transport.AUTO


def replies(status: int, body: bytes = b"", **headers: str) -> Handler:
    async def handle(exchange: Exchange) -> None:
        exchange.reply(status, body, **headers)

    return handle


# --- detection ---


@pytest.mark.case("HT-10")
async def test_a_streamable_http_server_is_asked_nothing_but_the_clients_own() -> None:
    async with Remote() as server, source(server.url(), AUTO) as of:
        client = await opened(of)
        assert not server.seen
        await client.initialize()
        await server.until_asked("GET")
        assert server.rpcs()[:3] == ["initialize", "notifications/initialized", "GET"]
        of.succeeded()
        assert of.transport is Transport.HTTP


@pytest.mark.case("HT-10")
@pytest.mark.spec("EC-6")
@pytest.mark.parametrize("status", [400, 404, 405])
async def test_an_http_sse_server_is_found_by_the_clients_own_initialize(status: int) -> None:
    async with OldRemote() as server, source(server.url("/sse"), AUTO) as of:

        async def handle(exchange: Exchange) -> None:
            if exchange.method == "POST" and exchange.target == "/sse":
                exchange.reply(status)
            else:
                await real(exchange)

        real, server.handle = server.handle, handle  # type: ignore[method-assign]
        client = await opened(of)
        client.begin()
        client.tell("notifications/initialized")
        client.call(1)
        await client.result("init")
        await client.result(1)
        posts = [(one.rpc, one.target) for one in server.seen]
        assert posts == [
            ("initialize", "/sse"),
            ("GET", "/sse"),
            ("initialize", "/messages?sid=1"),
            ("notifications/initialized", "/messages?sid=1"),
            ("tools/call", "/messages?sid=1"),
        ]
        assert of.transport is Transport.SSE


@pytest.mark.case("HT-10")
@pytest.mark.spec("EC-6")
@pytest.mark.parametrize("status", [401, 403, 406, 415, 429, 500, 502, 503])
async def test_no_other_failure_leads_to_a_get(status: int) -> None:
    async with OldRemote({"initialize": replies(status, b"{}")}) as server:
        async with connected(server.url("/sse"), AUTO) as client:
            client.begin()
            assert (await client.error("init"))["data"]["httpStatus"] == status
        assert server.rpcs() == ["initialize"]


@pytest.mark.case("HT-10")
async def test_a_server_that_cannot_be_reached_is_not_asked_again() -> None:
    async with connected("http://127.0.0.1:9/mcp", AUTO) as client:
        client.begin()
        assert (await client.error("init"))["data"]["reason"] == "upstream_unreachable"


EXPLAINED = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Your key has no quota"}}'


async def silent(exchange: Exchange) -> None:
    exchange.stream(b": welcome\n\n")
    await exchange.left.wait()


@pytest.mark.case("HT-10")
@pytest.mark.parametrize("status", [400, 404, 405])
@pytest.mark.parametrize("listen", [replies(405), replies(500), replies(200, b"<html>"), silent])
async def test_without_an_endpoint_the_first_failure_is_told(status: int, listen: Handler) -> None:
    async with Remote({"initialize": replies(status, EXPLAINED), "GET": listen}) as server:
        timing = replace(TIMING, endpoint=0.05)
        async with connected(server.url(), AUTO, timing=timing) as client:
            client.begin()
            assert (await client.error("init"))["message"] == "Your key has no quota"
            client.call(1)
            await client.result(1)
        assert server.rpcs()[:2] == ["initialize", "GET"]


@pytest.mark.case("HT-10", "LS-02")
async def test_a_found_endpoint_that_is_refused_is_the_failure_that_is_told() -> None:
    async with OldRemote() as server, source(server.url("/sse"), AUTO) as of:
        server.endpoint = "http://example.invalid/m"
        client = await opened(of)
        client.begin()
        assert "example.invalid" in (await client.error("init"))["message"]
        assert of.transport is AUTO


async def test_a_client_may_try_again_after_a_refusal() -> None:
    async with Remote({"initialize": replies(400, EXPLAINED)}) as server:
        async with connected(server.url(), AUTO) as client:
            client.begin()
            await client.error("init")
            del server.on["initialize"]
            client.ask("again", "initialize", {"protocolVersion": "2025-11-25"})
            await client.result("again")


@pytest.mark.case("HT-10")
async def test_the_verdict_serves_later_sessions() -> None:
    async with OldRemote() as server, source(server.url("/sse"), AUTO) as of:
        first = await opened(of)
        await first.initialize()
        await server.until_asked("notifications/initialized")
        server.seen.clear()
        second = await opened(of)
        await second.initialize()
        assert server.rpcs()[:2] == ["GET", "initialize"]
        assert len(server.asked("initialize")) == 1


@pytest.mark.case("HT-10")
async def test_sessions_that_begin_together_all_find_the_http_sse_server() -> None:
    """A refusal that comes after another session has found it says nothing new, and doubts nothing."""
    async with OldRemote() as server, source(server.url("/sse"), AUTO) as of:
        held: list[anyio.Event] = []

        async def handle(exchange: Exchange) -> None:
            if exchange.method == "POST" and exchange.target == "/sse":
                held.append(anyio.Event())
                await held[-1].wait()
                exchange.reply(405)
            else:
                await real(exchange)

        real, server.handle = server.handle, handle  # type: ignore[method-assign]
        clients = [await opened(of) for _ in range(3)]
        for number, client in enumerate(clients, start=1):
            client.begin()
            with anyio.fail_after(10):
                while len(held) < number:  # noqa: ASYNC110 - the server tells of no arrival
                    await anyio.sleep(0.001)
        for client, refusal in zip(clients, held, strict=True):
            refusal.set()
            assert (await client.result("init"))["protocolVersion"]
            assert of.transport is Transport.SSE


async def test_a_verdict_is_forgotten_when_no_endpoint_is_named_any_more() -> None:
    async with OldRemote() as old, source(old.url("/sse"), AUTO) as of:
        first = await opened(of)
        await first.initialize()
        await first.upstream.close()
        await old.stop()
        new = Remote()
        new.port = old.port
        async with new:
            client = await opened(of)
            await client.initialize()
            assert new.rpcs()[:2] == ["GET", "initialize"]
            assert of.transport is AUTO
            await client.upstream.close()


async def test_a_verdict_stays_when_the_server_is_only_away() -> None:
    async with OldRemote() as old, source(old.url("/sse"), AUTO) as of:
        await (await opened(of)).initialize()
        await old.stop()
        with pytest.raises(ServerFault, match="Cannot connect"):
            await opened(of)
        assert of.transport is Transport.SSE


async def test_a_known_streamable_http_server_is_not_looked_for_elsewhere_but_doubted() -> None:
    async with Remote() as server, source(server.url(), AUTO) as of:
        await (await opened(of)).initialize()
        await server.until_asked("GET")
        of.succeeded()
        server.on["initialize"] = replies(404)
        server.seen.clear()
        for expected in (["initialize"], ["initialize", "initialize", "GET"]):
            client = await opened(of)
            client.begin()
            await client.error("init")
            assert server.rpcs() == expected


async def test_a_session_that_is_refused_twice_looks_elsewhere_the_second_time() -> None:
    async with Remote() as server, source(server.url(), AUTO) as of:
        of.found(Transport.HTTP)
        server.on["initialize"] = replies(404)
        client = await opened(of)
        for attempt, expected in enumerate((["initialize"], ["initialize", "initialize", "GET"])):
            client.ask(f"init {attempt}", "initialize", {"protocolVersion": "2025-11-25"})
            await client.error(f"init {attempt}")
            assert server.rpcs() == expected


@pytest.mark.parametrize(("transport", "rpcs"), [(Transport.HTTP, ["initialize"]), (Transport.SSE, ["GET"])])
async def test_a_transport_that_is_told_is_not_doubted(transport: Transport, rpcs: list[str]) -> None:
    async with Remote({"initialize": replies(405), "GET": replies(405)}) as server:
        async with source(server.url(), transport) as of:
            if transport is Transport.SSE:
                with pytest.raises(ServerFault, match="HTTP 405"):
                    await opened(of)
            else:
                client = await opened(of)
                client.begin()
                assert "HTTP 405" in (await client.error("init"))["message"]
            assert of.transport is transport
        assert server.rpcs() == rpcs


# --- opening and closing ---


async def test_a_session_that_cannot_be_opened_leaves_nothing() -> None:
    async with OldRemote({"GET": silent}) as server:
        async with source(server.url(), Transport.SSE) as of:
            client = Client()
            with anyio.move_on_after(0.05):
                await of.open(client)
            await server.until(lambda: not server.connections)
            assert not client.faults
            assert not of._upstreams


async def test_after_many_failures_it_is_left_alone_for_a_while_and_says_why() -> None:
    async with Remote() as server, source(server.url()) as of:
        for _ in range(5):
            of.failed(ServerFault("The server answered HTTP 418"))
        with pytest.raises(CircuitOpen, match="HTTP 418") as caught:
            await opened(of)
        assert 0 < caught.value.retry_after <= 30
        of.succeeded()
        await (await opened(of)).initialize()


async def test_the_end_of_the_source_is_the_end_of_every_session() -> None:
    async with Remote() as server:
        async with source(server.url()) as of:
            clients = [await opened(of) for _ in range(3)]
            for client in clients:
                await client.initialize()
        assert len(server.asked("DELETE")) == 3
        assert all(len(client.faults) == 1 for client in clients)


async def test_sessions_of_one_source_are_kept_apart() -> None:
    numbers = iter(range(1, 3))

    async def initialize(exchange: Exchange) -> None:
        exchange.result(server.initialized(), Mcp_Session_Id=f"s{next(numbers)}")

    async with Remote({"initialize": initialize}) as server, source(server.url()) as of:
        one, other = await opened(of), await opened(of)
        await one.initialize()
        await other.initialize()
        one.call(1)
        other.call(1)
        await one.result(1)
        await other.result(1)
        assert {call.headers["mcp-session-id"] for call in server.asked("tools/call")} == {"s1", "s2"}


@pytest.mark.spec("CL-7")
async def test_the_session_id_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with Remote({"tools/call": replies(500, b"no")}) as server:
        server.session = "very-confidential"
        async with connected(server.url()) as client:
            await client.initialize()
            client.call(1)
            await client.error(1)
    assert "very-confidential" not in caplog.text
