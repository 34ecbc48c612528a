"""HTTP+SSE for old clients, seen from both ends: a client at the socket, a server played by hand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from urllib.parse import urljoin

import aiohttp
import msgspec
import pytest
from aiohttp.web import BaseRequest, StreamResponse
from support.scripted_server import LIMIT, Json, ScriptedServer, ScriptedSource, dump

from bridge.app import Site
from bridge.config import Access, Command, Config, Limits, Listen, ProcessModel, Timing
from bridge.core import message
from bridge.core.sse import COMMENT
from bridge.downstream.http_sse import MOST_NAMES, OTHERS, Endpoint, SseSession, Usage
from bridge.downstream.listener import Served, serve
from bridge.errors import CircuitOpen, ServerFault, UsageFault
from bridge.relay import Relay

LISTEN = Listen(port=0, legacy_sse=True)
OLD = Config(upstream=Command(argv=("scripted",)), listen=LISTEN)
OLDEST = "2024-11-05"


@pytest.fixture(autouse=True)
def _no_fault_of_the_bridge(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]


def request(request_id: int | str, method: str, **params: object) -> Json:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, **({"params": params} if params else {})}


def note(method: str, **params: object) -> Json:
    return {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params}


PING = request(1, "ping")


class Client:
    """A stream that was opened, and the POSTs that go with it."""

    def __init__(self, http: aiohttp.ClientSession, response: aiohttp.ClientResponse, endpoint: str) -> None:
        self.http, self.response, self.endpoint = http, response, endpoint
        self.url = urljoin(str(response.url), endpoint)

    @property
    def key(self) -> str:
        return self.endpoint.rpartition("=")[2]

    async def raw(self) -> bytes:
        """The next event or comment, without the blank line that ends it; empty at the end."""
        return await block(self.response)

    async def message(self) -> Json:
        """The next message: an event of two lines."""
        event, data = (await self.raw()).split(b"\n")
        assert event == b"event: message"
        return decoded(data.removeprefix(b"data: "))

    async def ends(self) -> None:
        assert await self.raw() == b""

    async def post(self, message: object, **headers: str) -> tuple[int, bytes]:
        body = message if isinstance(message, bytes) else msgspec.json.encode(message)
        return await posted(self.http, self.url, body, **headers)

    async def tell(self, message: object) -> None:
        assert await self.post(message) == (202, b"Accepted")

    async def ask(self, request_id: int | str, method: str, **params: object) -> None:
        await self.tell(request(request_id, method, **params))

    async def initialize(self, server: ScriptedServer, name: str = "old", revision: str = OLDEST) -> None:
        info = {"name": name, "version": "0.9"}
        able: Json = {"sampling": {}, "elicitation": {}, "roots": {}}
        await self.ask("open", "initialize", protocolVersion=revision, capabilities=able, clientInfo=info)
        result = {
            "protocolVersion": revision,
            "capabilities": {},
            "serverInfo": {"name": "s", "version": "1"},
        }
        server.answers(await server.hears("initialize"), result)
        assert (await self.message())["result"] == result
        await self.tell(note("initialized"))
        await server.hears("notifications/initialized")

    def hang_up(self) -> None:
        self.response.close()


class Bench:
    """A bridge in this process, its servers, and its clients."""

    def __init__(self, relay: Relay, source: ScriptedSource, http: aiohttp.ClientSession) -> None:
        self.relay, self.source, self.http = relay, source, http
        self.root = ""
        self._answers: list[aiohttp.ClientResponse] = []
        self.running = 0
        """HTTP requests that the bridge is answering."""
        self._changed = asyncio.Event()

    def run(self, change: int) -> None:
        self.running += change
        self._changed.set()

    async def until(self, count: int) -> None:
        """Wait until this many requests are being answered; an open stream is one of them."""
        async with asyncio.timeout(LIMIT):
            while self.running != count:
                self._changed.clear()
                await self._changed.wait()

    async def get(self, path: str = "/sse", **headers: str) -> aiohttp.ClientResponse:
        async with asyncio.timeout(LIMIT):
            response = await self.http.get(self.root + path, headers=spelled(headers))
        self._answers.append(response)  # dropped, it would be closed
        return response

    def hang_up(self) -> None:
        for response in self._answers:
            response.close()

    async def open(self, path: str = "/sse", **headers: str) -> tuple[Client, ScriptedServer]:
        """A stream up to its endpoint event, and its server."""
        client = await self.client(path, **headers)
        return client, await self.source.next()

    async def client(self, path: str = "/sse", **headers: str) -> Client:
        response = await self.get(path, **headers)
        assert response.status == 200, await response.text()
        event, data = (await block(response)).split(b"\n")
        assert event == b"event: endpoint"
        return Client(self.http, response, data.removeprefix(b"data: ").decode())

    async def live(self, name: str = "old", revision: str = OLDEST) -> tuple[Client, ScriptedServer]:
        """The same, initialized."""
        client, server = await self.open()
        await client.initialize(server, name, revision)
        return client, server

    async def refusal(self, path: str = "/sse", **headers: str) -> aiohttp.ClientResponse:
        """A GET that is answered by an error of JSON-RPC."""
        response = await self.get(path, **headers)
        async with asyncio.timeout(LIMIT):
            assert "error" in decoded(await response.read())
        return response

    async def usage(self) -> object:
        return decoded(await (await self.get("/readyz")).read()).get("legacySse")


@asynccontextmanager
async def bench(config: Config = OLD) -> AsyncIterator[Bench]:
    """On leaving nothing is left: no session, no server."""

    async def handle(asked: BaseRequest) -> StreamResponse:
        old.run(1)
        try:
            return await site.handle(asked)
        finally:
            old.run(-1)

    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        source = ScriptedSource()
        relay = Relay(config, source)
        relay.detection.eras.initialised()  # and is not asked for its era
        relay.readiness.discovered(OLDEST)  # so that the bridge starts no server to learn of its own
        old, site = Bench(relay, source, http), Site(config, relay)
        served = await serve(config.listen, handle, stalled=config.timing.stalled)
        stack.push_async_callback(served.close, 0.2)
        stack.callback(old.hang_up)
        old.root = root_of(served)
        async with relay:
            yield old
        assert not relay.sessions
        assert all(server.closed.is_set() for server in source.servers)


def root_of(served: Served) -> str:
    return served.url[: served.url.index("/", 8)]


def spelled(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


async def block(response: aiohttp.ClientResponse) -> bytes:
    async with asyncio.timeout(LIMIT):
        try:
            return (await response.content.readuntil(b"\n\n")).removesuffix(b"\n\n")
        except asyncio.IncompleteReadError as end:
            return end.partial


async def posted(http: aiohttp.ClientSession, url: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    given = {"Content-Type": "application/json", **spelled(headers)}
    async with asyncio.timeout(LIMIT), http.post(url, data=body, headers=given) as response:
        return response.status, await response.read()


def decoded(text: bytes) -> Json:
    found: Json = msgspec.json.decode(text)
    return found


def code(message: Json) -> int:
    found: int = message["error"]["code"]
    return found


def reason(message: Json) -> str:
    found: str = message["error"]["data"]["reason"]
    return found


# --- the endpoint event -----------------------------------------------------------------------


@pytest.mark.spec("ES-1", "ES-2", "ES-5", "RS-10")
async def test_stream_opens_with_an_unguessable_relative_endpoint() -> None:
    async with bench() as old:
        first, second = await old.client(), await old.client()
        assert first.endpoint.startswith("messages?session_id=")
        assert len(first.key) >= 32
        assert first.key != second.key
        assert first.response.headers["Content-Type"] == "text/event-stream"
        assert first.response.headers["Cache-Control"] == "no-cache, no-transform"


@pytest.mark.case("LS-01")
@pytest.mark.parametrize(
    ("path", "requested", "messages"),
    [
        ("/mcp", "/sse", "/messages"),
        ("/mcp", "/sse/", "/messages"),
        ("/", "/sse", "/messages"),
        ("/api/mcp", "/api/sse", "/api/messages"),
        ("/api/mcp/", "/api/sse", "/api/messages"),
        ("/a/b/mcp", "/a/b/sse/", "/a/b/messages"),
    ],
)
async def test_endpoint_resolves_beside_the_stream_and_behind_any_prefix(
    path: str, requested: str, messages: str
) -> None:
    async with bench(replace(OLD, listen=replace(LISTEN, path=path))) as old:
        client, server = await old.open(requested)
        assert client.url == f"{old.root}{messages}?session_id={client.key}"
        outside = urljoin(f"https://h.example/some/prefix{requested}", client.endpoint)
        assert outside == f"https://h.example/some/prefix{messages}?session_id={client.key}"
        await client.initialize(server)


@pytest.mark.case("LS-01")
@pytest.mark.parametrize("base", ["https://h.example/outside", "https://h.example/outside/"])
async def test_base_url_makes_the_endpoint_absolute(base: str) -> None:
    async with bench(replace(OLD, listen=replace(LISTEN, path="/api/mcp", base_url=base))) as old:
        client = await old.client("/api/sse")
        assert client.endpoint == f"https://h.example/outside/api/messages?session_id={client.key}"


@pytest.mark.parametrize("path", ["/sse", "/messages/"])
def test_path_that_takes_the_place_of_an_old_one_is_refused(path: str) -> None:
    with pytest.raises(UsageFault, match=f"--path {path}"):
        Endpoint(Listen(path=path, legacy_sse=True))


@pytest.mark.spec("ES-7")
async def test_old_paths_are_unknown_unless_asked_for() -> None:
    async with bench(replace(OLD, listen=Listen(port=0))) as new:
        assert (await new.refusal("/sse")).status == 404
        assert (await posted(new.http, f"{new.root}/messages?session_id=x", dump(PING)))[0] == 404
        assert await new.usage() is None


# --- messages ---------------------------------------------------------------------------------


@pytest.mark.spec("ES-3", "LC-1", "LC-2", "LC-3")
async def test_answers_come_on_the_stream_and_never_in_the_post() -> None:
    async with bench() as old:
        client, server = await old.live()
        await client.ask("a", "tools/list")
        server.answers(await server.hears("tools/list"), {"tools": []})
        assert await client.message() == {"jsonrpc": "2.0", "id": "a", "result": {"tools": []}}


@pytest.mark.spec("ES-3", "RS-10")
async def test_message_is_one_data_line_of_the_servers_own_bytes() -> None:
    text = (
        b'{"jsonrpc":"2.0","method":"notifications/x","params":{"n":1.0,"u":"\\u00e9 \xe2\x80\xa8 \xc3\xa9"}}'
    )
    async with bench() as old:
        client, server = await old.live()
        server.says(text)
        assert await client.raw() == b"event: message\ndata: " + text.replace(b"\xe2\x80\xa8", b"\\u2028")


@pytest.mark.spec("ES-3")
async def test_everything_the_server_says_keeps_its_order() -> None:
    async with bench() as old:
        client, server = await old.live()
        await client.ask(1, "tools/call", _meta={"progressToken": "t"})
        asked = await server.hears("tools/call")
        server.progresses(asked, 1)
        server.notes("tools/list_changed")
        server.asks("roots/list", 9)
        server.answers(asked)
        assert [(await client.message()).get("method") for _ in range(4)] == [
            "notifications/progress",
            "notifications/tools/list_changed",
            "roots/list",
            None,
        ]


async def test_client_answers_the_server_by_a_post() -> None:
    async with bench() as old:
        client, server = await old.live()
        server.asks("roots/list", "q")
        assert (await client.message())["method"] == "roots/list"
        await client.tell({"jsonrpc": "2.0", "id": "q", "result": {"roots": []}})
        answer = await server.hears()
        assert (answer.id, answer.result) == ("q", {"roots": []})


async def test_cancelled_call_is_never_answered() -> None:
    async with bench() as old:
        client, server = await old.live()
        await client.ask(1, "tools/call")
        asked = await server.hears("tools/call")
        await client.tell(note("cancelled", requestId=1))
        await server.hears("notifications/cancelled")
        server.answers(asked)
        await client.ask(2, "ping")
        server.answers(await server.hears("ping"))
        assert (await client.message())["id"] == 2


@pytest.mark.spec("EC-5")
async def test_posts_keep_their_order_while_the_server_does_not_read() -> None:
    async with bench() as old:
        client, server = await old.live()
        server.congest()
        async with asyncio.TaskGroup() as posts:
            for number in range(1, 6):
                posts.create_task(say(client, request(number, "tools/call")))
                await old.until(1 + number)
            assert not server.unread
            server.relieve()
        assert [(await server.hears()).id for _ in range(5)] == [1, 2, 3, 4, 5]


async def test_message_that_comes_as_the_server_reads_again_does_not_overtake() -> None:
    async with bench() as old:
        client, server = await old.live()
        session = old.relay.sessions[client.key]
        assert isinstance(session, SseSession)
        server.congest()
        async with asyncio.TaskGroup() as posts:
            posts.create_task(say(client, request(1, "tools/call")))
            await old.until(2)
            server.relieve()
            await session.post(message.Request(dump(request(2, "ping")), 2, "ping"))
        assert [(await server.hears()).id for _ in range(2)] == [1, 2]


async def say(client: Client, message: Json) -> bytes:
    """POST in one piece on a connection of its own: its body is there when the bridge takes it up."""
    host, _, rest = client.url.removeprefix("http://").partition("/")
    body = dump(message)
    head = f"POST /{rest} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    name, _, port = host.partition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    try:
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        async with asyncio.timeout(LIMIT):
            return await reader.readline()
    finally:
        writer.transport.abort()


@pytest.mark.case("TF-02")
async def test_idle_stream_is_kept_alive_from_the_start_and_never_expires() -> None:
    async with bench(replace(OLD, timing=Timing(keepalive=0.03, session_idle=0.05))) as old:
        client, server = await old.open()
        for _ in range(6):
            assert await client.raw() + b"\n\n" == COMMENT
        await client.ask(1, "initialize")
        await server.hears("initialize")


async def test_returning_client_gets_a_new_session_and_nothing_of_the_old_one() -> None:
    async with bench() as old:
        first, server = await old.live()
        first.hang_up()
        await server.is_ended()
        again, server = await old.open(Last_Event_ID="1-1")
        assert again.key != first.key
        await again.ask(1, "tools/list")
        assert code(await again.message()) == -32600
        await again.initialize(server)


# --- who may come in --------------------------------------------------------------------------


@pytest.mark.spec("ES-4", "ES-5", "SP-2")
@pytest.mark.case("LS-05")
@pytest.mark.parametrize("credentials", [{}, {"Authorization": "Bearer wrong"}])
async def test_session_key_is_no_credential(credentials: dict[str, str]) -> None:
    async with bench(replace(OLD, access=Access(token="s3cret"))) as old:
        assert (await old.refusal(**credentials)).status == 401
        client, server = await old.open(Authorization="Bearer s3cret")
        opening = request(1, "initialize")
        assert (await client.post(opening, **credentials))[0] == 401
        assert not server.unread
        assert (await client.post(opening, Authorization="Bearer s3cret"))[0] == 202
        await server.hears("initialize")


@pytest.mark.spec("ES-4")
async def test_foreign_origin_and_host_are_turned_away() -> None:
    async with bench() as old:
        client, server = await old.open()
        assert (await old.refusal(Origin="https://evil.example")).status == 403
        assert (await old.refusal(Host="evil.example")).status == 421
        assert (await client.post(request(1, "initialize"), Origin="https://evil.example"))[0] == 403
        assert (await client.post(request(1, "initialize"), Host="evil.example"))[0] == 421
        assert not server.unread
        assert len(old.source.servers) == 1


@pytest.mark.spec("HL-28")
async def test_page_of_an_allowed_origin_may_read_the_stream() -> None:
    origin = "https://page.example"
    async with bench(replace(OLD, access=Access(allowed_origins=(origin,)))) as old:
        client = await old.client(Origin=origin)
        assert client.response.headers["Access-Control-Allow-Origin"] == origin


@pytest.mark.spec("HL-26")
@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("*/*", 200),
        ("text/*", 200),
        ("text/event-stream", 200),
        ("application/json", 406),
        ("text/html", 406),
    ],
)
async def test_get_must_take_an_event_stream(accept: str, status: int) -> None:
    async with bench() as old:
        assert (await old.get(Accept=accept)).status == status
        assert len(old.source.servers) == (1 if status == 200 else 0)


async def test_other_methods_are_refused_with_the_one_that_is_taken() -> None:
    async with bench() as old:
        async with old.http.post(f"{old.root}/sse", json=PING) as response:
            assert (response.status, response.headers["Allow"]) == (405, "GET")
        refused = await old.refusal("/messages?session_id=x")
        assert (refused.status, refused.headers["Allow"]) == (405, "POST")


# --- what a POST may be -----------------------------------------------------------------------


@pytest.mark.spec("ES-5")
@pytest.mark.case("SS-09")
@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 400),
        ("?sessionId=x", 400),
        ("?session_id=a&session_id=b", 400),
        ("?session_id", 404),
        ("?session_id=unknown", 404),
    ],
)
@pytest.mark.parametrize("body", [b"", dump(PING)])
async def test_post_without_a_session_is_refused(query: str, status: int, body: bytes) -> None:
    async with bench() as old:
        found, text = await posted(old.http, f"{old.root}/messages{query}", body)
        assert (found, code(decoded(text))) == (status, -32600)


async def test_sessions_of_the_two_transports_do_not_know_each_other() -> None:
    async with bench() as old:
        client, _ = await old.live()
        async with old.http.post(
            f"{old.root}/mcp", json=PING, headers={"Mcp-Session-Id": client.key}
        ) as found:
            assert found.status == 404
        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(posted(old.http, f"{old.root}/mcp", dump(request(1, "initialize"))))
            server = await old.source.next()
            asked = await server.hears("initialize")
            (key,) = old.relay.sessions.keys() - {client.key}
            assert (await posted(old.http, f"{old.root}/messages?session_id={key}", dump(PING)))[0] == 404
            server.answers(asked, {"protocolVersion": OLDEST})
        assert opening.result()[0] == 200


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"\xff", -32700),
        (b"[]", -32600),
        (b'{"id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":' + b"[" * 200 + b"]" * 200 + b"}", -32600),
    ],
)
async def test_what_is_no_message_never_reaches_the_server(body: bytes, expected: int) -> None:
    async with bench() as old:
        client, server = await old.live()
        status, text = await client.post(body)
        assert (status, code(decoded(text))) == (400, expected)
        assert not server.unread


@pytest.mark.spec("HL-26")
async def test_body_has_a_type_and_a_limit() -> None:
    async with bench(replace(OLD, limits=Limits(body=1000))) as old:
        client, server = await old.live()
        assert (await client.post(PING, Content_Type="text/plain"))[0] == 415
        assert (await client.post(request(1, "ping", x="y" * 1000)))[0] == 413
        assert not server.unread


@pytest.mark.spec("LC-1", "ES-3")
@pytest.mark.parametrize("method", ["tools/list", "ping", "server/discover"])
async def test_request_before_initialize_is_answered_on_the_stream(method: str) -> None:
    async with bench() as old:
        client, server = await old.open()
        await client.ask(7, method)
        answer = await client.message()
        assert (answer["id"], code(answer)) == (7, -32600)
        assert not server.unread
        await client.initialize(server)


async def test_second_initialize_is_refused_on_the_stream() -> None:
    async with bench() as old:
        client, server = await old.live()
        await client.ask(5, "initialize")
        answer = await client.message()
        assert (answer["id"], code(answer)) == (5, -32600)
        assert not server.unread


async def test_notification_before_initialize_is_refused() -> None:
    async with bench() as old:
        client, server = await old.open()
        assert (await client.post(note("initialized")))[0] == 400
        assert not server.unread


@pytest.mark.parametrize("method", ["initialize", "tools/call"])
async def test_id_in_flight_is_refused_by_status_and_the_first_is_answered(method: str) -> None:
    """An error on the stream would be taken for the answer of the first."""
    async with bench() as old:
        client, server = await old.open() if method == "initialize" else await old.live()
        await client.ask(1, method)
        asked = await server.hears(method)
        status, text = await client.post(request(1, "tools/list"))
        assert (status, decoded(text)["id"]) == (400, 1)
        assert not server.unread
        server.answers(asked, {"first": True})
        assert (await client.message())["result"] == {"first": True}


@pytest.mark.spec("SP-10")
async def test_calls_in_flight_are_bounded_and_the_one_too_many_is_answered() -> None:
    async with bench(replace(OLD, limits=Limits(in_flight=2))) as old:
        client, server = await old.live()
        for number in (1, 2, 3):
            await client.ask(number, "tools/call")
        answer = await client.message()
        assert (answer["id"], reason(answer)) == (3, "in_flight")
        server.answers(await server.hears())
        assert (await client.message())["id"] == 1
        await client.ask(4, "tools/call")
        assert [(await server.hears()).id for _ in range(2)] == [2, 4]


async def test_enveloped_request_is_a_legacy_one_and_travels_as_it_is() -> None:
    text = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{'
        b'"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}'
    )
    async with bench() as old:
        client, server = await old.live()
        await client.tell(text)
        assert (await server.hears("tools/list")).raw == text


# --- batches ----------------------------------------------------------------------------------


async def test_batch_is_split_and_its_answers_come_one_by_one() -> None:
    async with bench() as old:
        client, server = await old.live(revision="2025-03-26")
        await client.tell([PING, note("x"), {"id": 3}, request(2, "tools/list")])
        first, _, second = [await server.hears() for _ in range(3)]
        server.answers(second)
        server.answers(first)
        assert code(await client.message()) == -32600
        assert [(await client.message())["id"] for _ in range(2)] == [2, 1]


@pytest.mark.spec("LC-6")
@pytest.mark.parametrize(
    ("revision", "batch"),
    [
        ("2024-11-05", [PING]),
        ("2025-11-25", [PING]),
        ("2025-03-26", [request(1, "initialize")]),
        ("2025-03-26", [PING, PING]),
        ("2025-03-26", [PING, request("open", "tools/list"), request(50, "ping")]),
    ],
)
async def test_batch_that_may_not_be_sent_is_refused_whole(revision: str, batch: list[Json]) -> None:
    async with bench() as old:
        client, server = await old.live(revision=revision)
        await client.ask(50, "tools/call")
        await server.hears("tools/call")
        status, text = await client.post(batch)
        assert (status, code(decoded(text))) == (400, -32600)
        assert not server.unread


# --- the end ----------------------------------------------------------------------------------


@pytest.mark.spec("ES-6")
@pytest.mark.case("TF-05", "CP-02")
async def test_end_of_the_connection_cancels_its_calls_and_frees_everything() -> None:
    async with bench() as old:
        other, others = await old.live()
        client, server = await old.live()
        await client.ask(1, "tools/call")
        await server.hears("tools/call")
        client.hang_up()
        await server.is_ended()
        assert (await server.hears("notifications/cancelled")).params == {"requestId": 1}
        assert (await client.post(PING))[0] == 404
        assert len(old.relay.sessions) == 1
        await other.ask(1, "ping")
        others.answers(await others.hears("ping"))
        assert (await other.message())["id"] == 1


@pytest.mark.spec("ES-6")
async def test_question_to_a_client_that_left_is_answered_for_it() -> None:
    async with bench() as old:
        client, server = await old.live()
        server.asks("roots/list", "q")
        await client.message()
        client.hang_up()
        await server.is_ended()
        answer = await server.hears()
        assert answer.id == "q"
        assert answer.error is not None


@pytest.mark.case("CP-02")
async def test_client_that_leaves_during_initialize_leaves_nothing() -> None:
    async with bench() as old:
        client, server = await old.open()
        await client.ask(1, "initialize")
        client.hang_up()
        await server.is_ended()
        server.answers(await server.hears("initialize"))
        assert not old.relay.sessions


@pytest.mark.case("SS-09")
async def test_hundred_drops_and_returns_leave_nothing() -> None:
    async with bench() as old:
        keys = set()
        for number in range(100):
            client, server = await (old.live() if number % 2 else old.open())
            keys.add(client.key)
            client.hang_up()
            await server.is_ended()
        assert len(keys) == len(old.source.servers) == 100
        assert not old.relay.sessions
        assert await old.usage() == {"opened": 100, "open": 0, "clients": {"old": 50}}


@pytest.mark.case("SS-09")
async def test_two_clients_at_once_hear_only_their_own() -> None:
    async with bench() as old:
        pairs = [await old.live(), await old.live()]
        for number, (client, server) in enumerate(pairs):
            await client.ask(1, "tools/call")
            server.answers(await server.hears("tools/call"), {"whose": number})
        for number, (client, _) in enumerate(pairs):
            assert (await client.message())["result"] == {"whose": number}


async def test_lost_server_answers_its_calls_and_ends_the_stream() -> None:
    async with bench() as old:
        client, server = await old.live()
        await client.ask(1, "tools/call")
        await server.hears("tools/call")
        server.dies(3)
        answer = await client.message()
        assert (answer["id"], reason(answer)) == (1, "upstream_lost")
        await client.ends()
        assert not old.relay.sessions


async def test_server_that_dies_before_its_handshake_counts_as_failing() -> None:
    async with bench() as old:
        client, server = await old.open()
        server.dies(3)
        await client.ends()
        assert len(old.source.failures) == 1


async def test_closing_bridge_answers_its_calls_and_ends_the_stream() -> None:
    async with bench() as old:
        client, server = await old.live()
        await client.ask(1, "tools/call")
        await server.hears("tools/call")
        old.relay.sessions[client.key].close("The bridge is shutting down")
        answer = await client.message()
        assert (answer["id"], reason(answer)) == (1, "session_closed")
        await client.ends()


async def test_refused_initialize_is_passed_on_and_ends_the_session() -> None:
    async with bench() as old:
        client, server = await old.open()
        await client.ask(1, "initialize")
        server.refuses(await server.hears("initialize"), -32602)
        assert code(await client.message()) == -32602
        await client.ends()
        assert not old.relay.sessions


async def test_message_still_waiting_when_its_session_ends_is_refused() -> None:
    async with bench() as old:
        client, server = await old.live()
        server.congest()
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(say(client, PING))
            await old.until(2)
            client.hang_up()
        assert waiting.result().startswith(b"HTTP/1.1 404 ")
        assert not server.unread


# --- before the stream begins -----------------------------------------------------------------


@pytest.mark.spec("HL-26", "SP-10")
async def test_full_table_turns_new_ones_away_and_counts_those_that_are_opening() -> None:
    async with bench(replace(OLD, limits=Limits(sessions=2))) as old:
        first, server = await old.open()
        old.source.gate.clear()
        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(old.open())
            await old.until(2)
            response = await old.refusal()
            assert (response.status, response.headers["Retry-After"]) == (503, "10")
            old.source.gate.set()
        second, ended = opening.result()
        second.hang_up()
        await ended.is_ended()
        await old.client()
        await first.initialize(server)


@pytest.mark.parametrize(
    ("fault", "status", "wait"),
    [
        (ServerFault("It cannot be started"), 502, None),
        (CircuitOpen("It keeps failing", retry_after=6.2), 503, "7"),
    ],
)
async def test_server_that_cannot_be_had_is_an_error_and_no_stream(
    fault: ServerFault, status: int, wait: str | None
) -> None:
    async with bench() as old:
        old.source.fault = fault
        response = await old.refusal()
        assert (response.status, response.headers.get("Retry-After")) == (status, wait)
        assert reason(decoded(await response.read())) == fault.reason
        assert not old.relay.sessions


async def test_shared_server_that_dies_before_the_stream_begins_is_an_error() -> None:
    async with bench(replace(OLD, process=ProcessModel.SHARED)) as old:
        opening = asyncio.create_task(old.refusal())
        server = await old.source.next()
        server.answers(await server.hears("initialize"), {"protocolVersion": OLDEST, "capabilities": {}})
        await server.hears("notifications/initialized")
        server.dies()
        assert (await opening).status == 502
        assert not old.relay.sessions


async def test_client_that_leaves_while_its_server_starts_leaves_nothing() -> None:
    async with bench() as old:
        old.source.gate.clear()
        get = asyncio.create_task(old.get())
        await old.until(1)
        assert len(old.relay.sessions) == 1
        get.cancel()
        await old.until(0)
        assert not old.relay.sessions


async def test_draining_bridge_opens_none_and_lets_what_runs_come_to_its_end() -> None:
    async with bench() as old:
        client, server = await old.live()
        await client.ask(1, "tools/call")
        asked = await server.hears("tools/call")
        server.asks("roots/list", "q")
        await client.message()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(old.relay.drained())
            await asyncio.sleep(0)
            assert (await old.refusal()).status == 503
            await client.ask(2, "tools/call")
            assert reason(await client.message()) == "draining"
            await client.tell({"jsonrpc": "2.0", "id": "q", "result": {}})
            assert (await server.hears()).id == "q"
            server.answers(asked)
            assert (await client.message())["id"] == 1


# --- a client that does not read --------------------------------------------------------------


def narrow(process: ProcessModel) -> Config:
    return replace(OLD, process=process, limits=Limits(unsent=500_000))


async def test_client_that_does_not_read_slows_its_own_server_and_loses_nothing() -> None:
    async with bench(narrow(ProcessModel.SESSION)) as old:
        client, server = await old.live()
        said = 0
        async with asyncio.timeout(LIMIT):
            while not server.paused:
                server.notes("message", number=said, data="x" * 100_000)
                said += 1
                await asyncio.sleep(0)
        assert [(await client.message())["params"]["number"] for _ in range(said)] == list(range(said))
        await client.ask(1, "ping")
        server.answers(await server.hears("ping"))
        assert (await client.message())["id"] == 1
        assert not server.paused


async def test_client_of_a_shared_server_that_does_not_read_is_cut_off_alone() -> None:
    async with bench(narrow(ProcessModel.SHARED)) as old:
        opening = asyncio.create_task(old.client())
        server = await old.source.next()
        server.answers(await server.hears("initialize"), {"protocolVersion": OLDEST, "capabilities": {}})
        await server.hears("notifications/initialized")
        slow, quick = await opening, await old.client()
        for client in (slow, quick):
            await client.ask(1, "initialize", protocolVersion=OLDEST)
            await client.message()
        while len(old.relay.sessions) == 2:
            server.notes("tools/list_changed", data="x" * 100_000)
            await quick.message()
            assert not server.paused
        await quick.ask(2, "tools/list")
        server.answers(await server.hears("tools/list"))
        assert (await quick.message())["id"] == 2


# --- who still uses it ------------------------------------------------------------------------


@pytest.mark.spec("ES-7", "SP-9")
async def test_each_session_is_logged_with_its_client_and_without_its_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "bridge")
    async with bench() as old:
        client, server = await old.live("Ancient")
        client.hang_up()
        await server.is_ended()
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    (line,) = [line for line in told if "deprecated" in line]
    assert line.startswith(f"legacy HTTP+SSE session {client.key[:8]} ")
    assert "Ancient 0.9 at 127.0.0.1" in line
    assert client.key not in caplog.text


async def test_readiness_tells_who_still_comes_by_the_old_way() -> None:
    async with bench() as old:
        await old.live("a")
        await old.live("b")
        client, server = await old.live("a")
        client.hang_up()
        await server.is_ended()
        await old.client()
        assert await old.usage() == {"opened": 4, "open": 3, "clients": {"a": 2, "b": 1}}


@pytest.mark.parametrize(
    "info", [b"null", b"7", b"{}", b'{"name":7}', b'{"name":"\\ud800"}', b'{"version":"1"}']
)
async def test_client_that_does_not_say_its_name_is_counted_all_the_same(info: bytes) -> None:
    async with bench() as old:
        client, server = await old.open()
        await client.tell(b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientInfo":%b}}' % info)
        await server.hears("initialize")
        assert await old.usage() == {"opened": 1, "open": 1, "clients": {"(unnamed)": 1}}


def test_names_that_are_counted_are_bounded() -> None:
    usage = Usage()
    for number in range(MOST_NAMES + 5):
        usage.introduced(f"client {number}")
    usage.introduced("client 0")
    assert len(usage.clients) == MOST_NAMES + 1
    assert usage.clients[OTHERS] == 5
    assert usage.clients["client 0"] == 2
