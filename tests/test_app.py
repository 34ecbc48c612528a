"""What answers on which path, and that nothing is started for what is not let in."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from field.raw import BOTH, Answer, ask
from support import machine
from support.scripted_bridge import UNHURRIED, initialize, initialized
from support.scripted_server import LIMIT, ScriptedSource, dump

from bridge.app import Site, running
from bridge.config import Access, Command, Config, Listen, ProcessModel, Remote
from bridge.downstream.listener import serve
from bridge.errors import CommandNotFound, ListenFault, ServerStopped, UsageFault
from bridge.relay import Relay

POSTING = [("Content-Type", "application/json"), ("Accept", BOTH)]
OPENING = dump({"jsonrpc": "2.0", **initialize()})
TOKEN = "s3cret-token-of-16"
ANSWERS = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "tiny"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def config(*argv: str, **changes: object) -> Config:
    plain = Config(
        upstream=Command(argv=argv or ("script",)), listen=Listen(port=0), timing=UNHURRIED, warm=0
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


@dataclass
class Running:
    relay: Relay
    source: ScriptedSource
    port: int

    async def ask(
        self, method: str, path: str, headers: Sequence[tuple[str, str]] = (), body: bytes | None = None
    ) -> Answer:
        return await ask(self.port, method, [*headers], body, path=path)


@asynccontextmanager
async def sited(settings: Config | None = None) -> AsyncIterator[Running]:
    """A site before a scripted server."""
    settings, source = settings or config(), ScriptedSource()
    relay = Relay(settings, source)
    served = await serve(settings.listen, Site(settings, relay).handle, stalled=30.0)
    try:
        async with relay:
            yield Running(relay, source, int(served.listening.rpartition(":")[2]))
    finally:
        await source.close()
        await served.close(0.2)


@pytest.mark.case("HT-01")
@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/mcp?x=1"])
async def test_endpoint_answers_under_both_spellings_without_a_redirect(path: str) -> None:
    async with sited() as site:
        answer = await site.ask("DELETE", path)
        assert (answer.status, answer.error["data"]["reason"]) == (400, "no_session")


@pytest.mark.parametrize("path", ["/", "/mcp/x", "/MCP", "//mcp", "/sse", "/healthz/"])
async def test_other_paths_are_not_found_and_say_where_the_endpoint_is(path: str) -> None:
    async with sited() as site:
        answer = await site.ask("POST", path, POSTING, OPENING)
        assert (answer.status, answer.error["data"]["reason"]) == (404, "path")
        assert "/mcp" in answer.error["message"]
        assert site.source.servers == []


async def test_endpoint_may_be_the_root() -> None:
    async with sited(config(listen=Listen(port=0, path="/"))) as site:
        assert (await site.ask("DELETE", "/")).error["data"]["reason"] == "no_session"


async def test_health_is_told_to_anybody_and_to_get_and_head_only() -> None:
    async with sited(config(access=Access(token=TOKEN))) as site:
        answer = await site.ask("GET", "/healthz", [("Origin", "https://evil.example")])
        assert (answer.status, answer.body) == (200, b'{"status":"ok"}\n')
        assert answer.headers["cache-control"] == "no-store"
        refused = await site.ask("POST", "/healthz", POSTING, b"{}")
        assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")


async def test_readiness_says_what_is_known_and_how() -> None:
    async with sited() as site:
        known = site.relay.readiness
        starting = await site.ask("GET", "/readyz")
        assert starting.status == 503
        assert msgspec.json.decode(starting.body)["state"] == "starting"
        site.relay.succeeded(dump(initialized("2025-06-18")))
        ready = await site.ask("GET", "/readyz")
        assert ready.status == 200
        assert msgspec.json.decode(ready.body) == {
            "ready": True,
            "state": "initialised",
            "fault": None,
            "server": {"name": "script", "version": "9", "revision": "2025-06-18"},
            "sessions": 0,
        }
        site.relay.failed(ServerStopped("gone"))
        failing = await site.ask("GET", "/readyz")
        assert failing.status == 503
        told = msgspec.json.decode(failing.body)
        assert (told["state"], told["fault"]) == ("failing", "upstream_lost")
        known.drain()
        draining = await site.ask("GET", "/readyz")
        assert (draining.status, msgspec.json.decode(draining.body)["state"]) == (503, "draining")


@pytest.mark.spec("HL-2", "HL-3", "HM-2", "SP-6")
@pytest.mark.parametrize("body", [OPENING, b"{broken"])
async def test_foreign_origin_is_refused_before_anything_is_read_or_started(body: bytes) -> None:
    async with sited() as site:
        answer = await site.ask("POST", "/mcp", [*POSTING, ("Origin", "https://evil.example")], body)
        assert (answer.status, answer.last["id"]) == (403, None)
        assert site.source.servers == []


@pytest.mark.spec("HL-4", "AR-10", "HM-20")
@pytest.mark.parametrize("path", ["/mcp", "/unknown"])
async def test_request_without_the_token_is_refused_before_its_body_is_looked_at(path: str) -> None:
    async with sited(config(access=Access(token=TOKEN))) as site:
        answer = await site.ask("POST", path, POSTING, b"{broken")
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        known = [*POSTING, ("Authorization", f"Bearer {TOKEN}")]
        assert (await site.ask("POST", "/mcp", known, b"{broken")).status == 400


@pytest.mark.parametrize("process", list(ProcessModel))
async def test_running_bridge_serves_a_real_server_and_leaves_no_process(process: ProcessModel) -> None:
    before = machine.descendants(os.getpid())
    settings = config(sys.executable, "-I", "-S", "-c", ANSWERS, process=process)
    async with running(settings, os.environ) as (relay, served):
        port = int(served.listening.rpartition(":")[2])
        answer = await ask(port, "POST", POSTING, OPENING)
        assert answer.result["serverInfo"] == {"name": "tiny"}
        assert relay.readiness.ready
        assert len(machine.descendants(os.getpid())) > len(before)
    await machine.eventually(
        lambda: machine.descendants(os.getpid()) == before, lambda: "a process is left", LIMIT
    )


@pytest.mark.parametrize("case", ["port", "host", "path", "program"])
async def test_fault_at_the_start_is_raised_before_any_server_is_started(case: str, tmp_path: Path) -> None:
    mark = tmp_path / "started"
    code = f"open({str(mark)!r}, 'w'); import sys; sys.stdin.read()"
    settings = config(sys.executable, "-I", "-S", "-c", code, warm=1)
    async with sited() as other:
        wrong = {
            "port": (replace(settings, listen=Listen(port=other.port)), ListenFault),
            "host": (replace(settings, access=Access(allowed_hosts=("a b",))), UsageFault),
            "program": (replace(settings, upstream=Command(argv=("/no/such",))), CommandNotFound),
            "path": (replace(settings, listen=Listen(port=0, path="/sse", legacy_sse=True)), UsageFault),
        }
        faulty, fault = wrong[case]
        before = machine.descendants(os.getpid())
        with pytest.raises(fault):
            async with running(faulty, os.environ):
                raise AssertionError("it runs")
        assert machine.descendants(os.getpid()) == before
    assert not mark.exists()


async def test_bridge_to_a_server_at_a_url_starts_without_it() -> None:
    settings = replace(config(), upstream=Remote(url="http://127.0.0.1:9/mcp"))
    async with running(settings, {}) as (_, served):
        port = int(served.listening.rpartition(":")[2])
        answer = await ask(port, "POST", POSTING, OPENING)
        assert (answer.last["id"], answer.error["code"]) == (0, -32603)
