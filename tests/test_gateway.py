"""Many servers in one process: who gets a request, what a reload changes, and whom a bad one harms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from field.raw import BOTH, Answer, Exchange, ask, dial, head_of
from support import machine
from support.scripted_bridge import UNHURRIED, both_eras, call, initialize, initialized, notification
from support.scripted_server import LIMIT, Json, ScriptedServer, ScriptedSource, dump

from bridge.app import Endpoints, Site
from bridge.config import Access, Admin, Command, Config, Daemon, Listen, Log, Policy, Rule
from bridge.downstream.listener import serve
from bridge.errors import UsageFault
from bridge.gateway import Gateway
from bridge.hosted import Hosted
from bridge.relay import Relay

FILE = Path("/etc/mcp-bridge.toml")
JSON = [("Content-Type", "application/json"), ("Accept", BOTH)]
DENIED = Policy(tools=Rule(deny=("x",)))
"""Any change of a server."""


def server(name: str, **changes: object) -> Config:
    config = Config(
        upstream=Command(argv=("script",)),
        name=name,
        listen=Listen(port=0, path=f"/servers/{name}/mcp"),
        timing=UNHURRIED,
        warm=0,
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def daemon(*servers: Config, **changes: object) -> Daemon:
    tree = Daemon(
        servers=servers, default=servers[0].name if servers else None, listen=Listen(port=0), file=FILE
    )
    return replace(tree, **changes)  # type: ignore[arg-type]


@dataclass
class Many:
    gateway: Gateway
    port: int = 0
    sources: dict[str, list[ScriptedSource]] = field(default_factory=dict)
    """Of each name, one for each time it was put together."""
    next: Daemon | UsageFault | None = None
    """What the file says when it is read again."""
    unfit: set[str] = field(default_factory=set)
    """Names of servers that cannot be put together."""

    def read(self) -> Daemon:
        assert self.next is not None
        if isinstance(self.next, UsageFault):
            raise self.next
        return self.next

    def make(self, config: Config) -> Hosted:
        if config.name in self.unfit:
            raise UsageFault("--ca-file x: No such file")
        source = ScriptedSource()
        self.sources.setdefault(config.name, []).append(source)
        relay = Relay(config, source)
        both_eras(relay)
        relay.readiness.discovered("2026-07-28")
        return Hosted(config, nullcontext(), relay, Endpoints(config, relay))

    async def ask(self, path: str, message: Json, session: str | None = None) -> Answer:
        named = [] if session is None else [("Mcp-Session-Id", session)]
        body = dump({"jsonrpc": "2.0", **message})
        return await ask(self.port, "POST", [*JSON, *named], body, path=path)

    @asynccontextmanager
    async def asking(self, path: str, message: Json, session: str) -> AsyncIterator[Exchange]:
        body = dump({"jsonrpc": "2.0", **message})
        headers = [*JSON, ("Mcp-Session-Id", session), ("Content-Length", str(len(body)))]
        async with dial(self.port) as exchange:
            exchange.say(head_of("POST", path, headers) + body)
            await exchange.flush()
            yield exchange

    async def session(self, name: str, path: str | None = None) -> tuple[str, ScriptedServer]:
        """A session with this server, and the puppet behind it."""
        path = path or f"/servers/{name}/mcp"
        opening = asyncio.create_task(self.ask(path, initialize()))
        puppet = await self.sources[name][-1].next()
        puppet.answers(await puppet.hears("initialize"), initialized())
        session = (await opening).headers["mcp-session-id"]
        assert (await self.ask(path, notification("initialized"), session)).status == 202
        await puppet.hears("notifications/initialized")
        return session, puppet


@asynccontextmanager
async def many(tree: Daemon, *unfit: str) -> AsyncIterator[Many]:
    found: Many
    gateway = Gateway(tree, lambda config: found.make(config), read=lambda: found.read())
    found = Many(gateway, unfit=set(unfit))
    site = Site(gateway)
    gateway.prepare()
    served = await serve(Listen(port=0), site.handle, stalled=30.0)
    found.port = int(served.listening.rpartition(":")[2])
    try:
        async with gateway.running():
            yield found
        opened = [puppet for sources in found.sources.values() for one in sources for puppet in one.servers]
        assert all(puppet.closed.is_set() for puppet in opened)
    finally:
        await served.close(0.2)


# --- paths ---


async def test_each_server_is_at_its_own_path_and_the_default_one_at_that_of_the_listener_too() -> None:
    async with many(daemon(server("a"), server("b"))) as bridge:
        session, puppet = await bridge.session("b")
        for path, name in (("/mcp", "a"), ("/servers/a/mcp/", "a")):
            other, _ = await bridge.session(name, path)
            assert other != session
        unknown = await bridge.ask("/servers/c/mcp", initialize())
        assert (unknown.status, unknown.error["data"]["reason"]) == (404, "path")
        assert "/servers/a/mcp, /servers/b/mcp" in unknown.error["message"]
        stolen = await bridge.ask("/servers/a/mcp", call(1), session)
        assert stolen.status == 404
        assert not puppet.unread


async def test_old_clients_have_paths_for_each_server_too() -> None:
    listen = Listen(port=0, path="/servers/a/mcp", legacy_sse=True)
    async with many(daemon(server("a", listen=listen))) as bridge:
        for path in ("/sse", "/servers/a/sse"):
            async with dial(bridge.port) as exchange:
                exchange.say(head_of("GET", path, [("Accept", "text/event-stream")]))
                await exchange.flush()
                assert await exchange.head() == 200
        answer = await ask(bridge.port, "POST", JSON, b"{}", path="/messages")
        assert answer.error["data"]["reason"] == "no_session"


# --- a bad one ---


@pytest.mark.case("CP-01")
async def test_server_that_cannot_run_is_told_of_and_harms_no_other() -> None:
    async with many(daemon(server("bad"), server("good")), "bad") as bridge:
        await bridge.session("good")
        for path in ("/servers/bad/mcp", "/mcp"):
            answer = await bridge.ask(path, initialize())
            assert (answer.status, answer.headers["retry-after"]) == (503, "5")
            assert answer.error["data"]["reason"] == "configuration"
        status = bridge.gateway.status()
        assert (status.ready, status.state) == (False, "degraded")
        assert [(one.name, one.ready, one.fault) for one in status.servers] == [
            ("bad", False, "--ca-file x: No such file"),
            ("good", True, None),
        ]
        bridge.unfit.clear()
        bridge.next = bridge.gateway.daemon
        assert await bridge.gateway.reload() == ["bad: started again"]
        await bridge.session("bad")
        assert bridge.gateway.status().ready


async def test_without_a_file_a_server_that_cannot_run_keeps_the_bridge_from_starting() -> None:
    with pytest.raises(UsageFault):
        async with many(daemon(server("bad"), file=None), "bad"):
            raise AssertionError("it runs")


async def test_fault_of_the_bridge_itself_in_one_server_ends_that_one_and_starts_it_anew() -> None:
    async with many(daemon(server("a"), server("b"))) as bridge:
        session, puppet = await bridge.session("b")
        broken = bridge.gateway.hosted["a"]

        async def fail() -> None:
            raise RuntimeError("a mistake of ours")

        broken.relay.spawn(fail)
        await machine.eventually(
            lambda: bridge.gateway.hosted.get("a") is not broken, lambda: "it goes on", LIMIT
        )
        asking = asyncio.create_task(bridge.ask("/servers/b/mcp", call(1), session))
        puppet.answers(await puppet.hears("tools/call"))
        assert (await asking).status == 200
        bridge.next = bridge.gateway.daemon
        await bridge.gateway.reload()
        await bridge.session("a")


# --- reload ---


async def test_reload_lets_an_equal_server_go_on_with_its_sessions() -> None:
    async with many(daemon(server("a"), server("b"))) as bridge:
        session, puppet = await bridge.session("a")
        bridge.next = daemon(
            server("a", log=Log(level="debug")),
            server("c"),
            server("b", policy=DENIED),
            log=Log(level="debug"),
        )
        assert await bridge.gateway.reload() == ["b: changed", "c: added"]
        asking = asyncio.create_task(bridge.ask("/servers/a/mcp", call(1), session))
        puppet.answers(await puppet.hears("tools/call"))
        assert (await asking).status == 200
        assert len(bridge.sources["a"]) == 1
        await bridge.session("c")
        assert await bridge.gateway.reload() == ["nothing changed"]


@pytest.mark.case("CP-07")
async def test_changed_server_finishes_what_runs_while_its_successor_serves() -> None:
    async with many(daemon(server("a"))) as bridge:
        session, puppet = await bridge.session("a")
        async with bridge.asking("/mcp", call(7), session) as exchange:
            asked = await puppet.hears("tools/call")
            bridge.next = daemon(server("a", policy=DENIED))
            assert await bridge.gateway.reload() == ["a: changed"]
            assert (await bridge.ask("/mcp", call(8), session)).status == 404  # so that it initializes anew
            _, successor = await bridge.session("a")
            assert successor is not puppet
            assert not puppet.closed.is_set()
            puppet.answers(asked, {"done": True})
            answer = await exchange.answer()
            assert (answer.status, answer.result) == (200, {"done": True})
        await puppet.is_ended()


async def test_call_that_outlasts_the_drain_of_a_removed_server_is_answered_with_an_error() -> None:
    async with many(daemon(server("a"), server("b"), drain=0.1)) as bridge:
        session, puppet = await bridge.session("b")
        async with bridge.asking("/servers/b/mcp", call(7), session) as exchange:
            await puppet.hears("tools/call")
            bridge.next = daemon(server("a"), drain=0.1)
            assert await bridge.gateway.reload() == ["b: removed"]
            answer = await exchange.answer()
            assert (answer.last["id"], answer.error["data"]["reason"]) == (7, "session_closed")
        await puppet.is_ended()
        assert (await bridge.ask("/servers/b/mcp", initialize())).status == 404


@pytest.mark.parametrize(
    ("following", "told"),
    [
        (UsageFault("/etc/mcp-bridge.toml:3: servers.a.cmd: no such option"), "no such option"),
        (daemon(server("a"), listen=Listen(port=9)), r"\[listen\] changed, which takes a restart"),
        (daemon(server("a"), admin=Admin(port=9)), r"\[admin\] changed"),
    ],
)
async def test_file_that_cannot_be_taken_changes_nothing_and_says_why(
    following: Daemon | UsageFault, told: str
) -> None:
    async with many(daemon(server("a"))) as bridge:
        session, puppet = await bridge.session("a")
        before = bridge.gateway.daemon
        bridge.next = following
        with pytest.raises(UsageFault, match=told):
            await bridge.gateway.reload()
        assert bridge.gateway.daemon is before
        assert told.replace("\\", "") in str(bridge.gateway.status().reload_fault)
        asking = asyncio.create_task(bridge.ask("/mcp", call(1), session))
        puppet.answers(await puppet.hears("tools/call"))
        assert (await asking).status == 200
        bridge.next = before
        await bridge.gateway.reload()
        assert bridge.gateway.status().reload_fault is None


async def test_token_can_be_changed_without_an_end_of_sessions() -> None:
    def with_token(token: str) -> Daemon:
        access = Access(token=token)
        return daemon(server("a", access=access), access=access)

    async def status(token: str) -> int:
        body = dump({"jsonrpc": "2.0", **call(1)})
        bearer = ("Authorization", f"Bearer {token}")
        return (await ask(bridge.port, "POST", [*JSON, bearer], body, path="/mcp")).status

    async with many(with_token("first-token-of-some-length")) as bridge:
        bridge.next = with_token("other-token-of-some-length")
        assert await bridge.gateway.reload() == ["nothing changed"]
        assert await status("first-token-of-some-length") == 401
        assert await status("other-token-of-some-length") == 400  # it names no session


# --- drain ---


async def test_one_server_can_be_drained_and_started_again() -> None:
    async with many(daemon(server("a"), server("b"))) as bridge:
        _, puppet = await bridge.session("a")
        bridge.gateway.drain("a")
        await puppet.is_ended()
        refused = await bridge.ask("/servers/a/mcp", initialize())
        assert (refused.status, refused.error["data"]["reason"]) == (503, "draining")
        assert not bridge.gateway.stopping.is_set()
        await bridge.session("b")
        bridge.next = bridge.gateway.daemon
        assert await bridge.gateway.reload() == ["a: started again"]
        await bridge.session("a")
        with pytest.raises(KeyError):
            bridge.gateway.drain("nobody")


async def test_drain_of_the_whole_waits_for_every_server() -> None:
    async with many(daemon(server("a"), server("b"))) as bridge:
        running = [(name, *await bridge.session(name)) for name in ("a", "b")]
        async with (
            bridge.asking("/servers/a/mcp", call(1), running[0][1]) as one,
            bridge.asking("/servers/b/mcp", call(2), running[1][1]) as two,
        ):
            asked = [(puppet, await puppet.hears("tools/call")) for _, _, puppet in running]
            draining = asyncio.create_task(bridge.gateway.drained(LIMIT))
            refused = await bridge.ask("/servers/a/mcp", initialize())
            assert (refused.status, refused.error["data"]["reason"]) == (503, "draining")
            assert bridge.gateway.status().state == "draining"
            assert not draining.done()
            for puppet, request in asked:
                puppet.answers(request)
            assert [(await exchange.answer()).status for exchange in (one, two)] == [200, 200]
            await draining
