"""One daemon, ten servers of all kinds under load: reload, kill, drain."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from field.session import Session, call, connect
from support.black_box import launched

from .load import Load
from .serving import DEMO, OBEYS, File, Served, Table, serving

CLIENTS = 3
"""For each server."""


def servers(remote: int, old: int) -> dict[str, Table]:
    """Of all kinds; `remote` and `old` are ports of bridges that stand for servers at URLs."""
    return {
        "alone": {"command": OBEYS, "warm": 1},
        "cold": {"command": OBEYS, "warm": 0},
        "common": {"command": OBEYS, "process": "shared"},
        "crossed": {"command": OBEYS, "upstream_era": "legacy"},
        "demo": {"command": DEMO},
        "stateless": {"command": DEMO, "upstream_era": "modern"},
        "remote": {"url": f"http://127.0.0.1:{remote}/mcp"},
        "far": {"url": f"http://127.0.0.1:{remote}/mcp", "transport": "http"},
        "old": {"url": f"http://127.0.0.1:{old}/sse", "transport": "sse"},
        "either": {"url": f"http://127.0.0.1:{old}/sse"},
    }


_MODERN = ("crossed", "demo")
_DEMO = ("demo", "stateless")


@asynccontextmanager
async def ten(tmp_path: Path, **more: Table) -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        remote = await stack.enter_async_context(launched(OBEYS, "--log-level", "warning"))
        old = await stack.enter_async_context(launched(OBEYS, "--legacy-sse", "--log-level", "warning"))
        for one in (remote, old):
            await one.until_serving()
        file = File(
            tmp_path / "bridge.toml", servers(remote.port, old.port) | more, top={"drain_timeout": 20}
        )
        yield await stack.enter_async_context(serving(file))


@asynccontextmanager
async def loaded(bridge: Served, names: Iterable[str]) -> AsyncIterator[dict[str, Load]]:
    """Every one of these servers busy, until the end of the block."""
    loads = {name: Load(bridge, name, modern=name in _MODERN, demo=name in _DEMO) for name in names}
    async with asyncio.TaskGroup() as tasks:
        for load in loads.values():
            tasks.create_task(load.play(CLIENTS))
        await asyncio.gather(*(load.until_answered(3) for load in loads.values()))
        yield loads
        for load in loads.values():
            load.over = True


async def pid_of(session: Session) -> int:
    found = await session.result(call("pid", "seen"))
    pid = json.loads(found["content"][0]["text"])["pid"]
    assert isinstance(pid, int)
    return pid


async def text_of(session: Session, request_id: str, arguments: dict[str, object]) -> str:
    answer = await session.post(call(request_id, "slow", arguments))
    text = answer.result["content"][0]["text"]
    assert isinstance(text, str)
    return text


async def all_go_on(loads: dict[str, Load], but: Iterable[str] = ()) -> None:
    await asyncio.gather(*(load.until_answered(5) for name, load in loads.items() if name not in but))


def untouched(loads: dict[str, Load], but: Iterable[str]) -> None:
    assert not {name: load.failed for name, load in loads.items() if name not in but and load.failed}


@pytest.mark.case("CP-07", "SS-03")
async def test_a_reload_changes_what_changed_and_nothing_else(tmp_path: Path) -> None:
    async with ten(tmp_path) as bridge, loaded(bridge, bridge.file.servers) as loads:
        kept = await connect(bridge.port, path=bridge.path("alone"))
        before = await pid_of(kept)
        leaving = await connect(bridge.port, path=bridge.path("cold"))
        running = asyncio.create_task(text_of(leaving, "runs", {"text": "through the reload", "seconds": 2}))
        await leaving.result(call("now", "echo", {"text": "it runs"}))

        changed, gone = bridge.file.servers["cold"], bridge.file.servers.pop("far")
        bridge.file.servers["cold"] = {**changed, "env": {"FRESH": "yes"}}
        bridge.file.servers["added"] = gone
        loads["cold"].may_fail = loads["far"].may_fail = True
        await bridge.reload("reloaded far: removed")

        assert await running == "through the reload"
        fresh = await connect(bridge.port, path=bridge.path("cold"))
        seen = json.loads((await fresh.result(call(1, "seen")))["content"][0]["text"])
        assert seen["environ"][b"FRESH".hex()] == b"yes".hex()
        added = await connect(bridge.port, path=bridge.path("added"))
        assert await text_of(added, "new", {"text": "here", "seconds": 0}) == "here"
        assert await pid_of(kept) == before
        loads["far"].over = True
        loads["cold"].may_fail = False
        await all_go_on(loads, but=["far"])
        untouched(loads, but=["far", "cold"])
        assert loads["far"].failed["path"] > 0


async def test_a_bad_file_changes_nothing_and_says_why(tmp_path: Path) -> None:
    async with ten(tmp_path) as bridge, loaded(bridge, ["alone", "common", "old"]) as loads:
        kept = await connect(bridge.port, path=bridge.path("alone"))
        before = await pid_of(kept)
        bridge.file.servers["cold"]["wram"] = 1
        del bridge.file.servers["far"]
        await bridge.reload("nothing was reloaded")
        assert "servers.cold.wram" in await bridge.until_said("servers.cold.wram")
        assert await pid_of(kept) == before
        far = await connect(bridge.port, path=bridge.path("far"))
        assert await text_of(far, "x", {"text": "still here", "seconds": 0}) == "still here"
        await all_go_on(loads)
        untouched(loads, but=[])


@pytest.mark.case("CP-02")
async def test_the_death_of_one_server_is_no_neighbours_matter(tmp_path: Path) -> None:
    async with ten(tmp_path) as bridge, loaded(bridge, bridge.file.servers) as loads:
        victim = await connect(bridge.port, path=bridge.path("common"))
        loads["common"].may_fail = True
        async with victim.posted(call("held", "hold", {"steps": 1}, token="held")) as exchange:
            assert (await exchange.message())["method"] == "notifications/progress"
            os.kill(await pid_of(victim), signal.SIGKILL)
            answer = await exchange.answer()
        (last,) = [one for one in answer.messages if "method" not in one]
        assert (last["id"], last["error"]["data"]["exitCode"]) == ("held", -signal.SIGKILL)
        await all_go_on(loads)
        untouched(loads, but=["common"])


async def test_a_server_that_cannot_run_keeps_nobody_waiting(tmp_path: Path) -> None:
    broken: Table = {"command": ["no-such-program-anywhere"]}
    async with ten(tmp_path, broken=broken) as bridge, loaded(bridge, ["alone", "old"]) as loads:
        answer = await Session(bridge.port, path=bridge.path("broken")).post(
            {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
        )
        assert answer.error["data"]["origin"] == "bridge"
        assert "no-such-program-anywhere" in await bridge.until_said("no-such-program-anywhere")
        _, said = await bridge.readiness()
        states = {one["name"]: one["ready"] for one in said["servers"]}
        assert states["broken"] is False
        assert states["alone"] is True
        await all_go_on(loads)
        untouched(loads, but=[])


@pytest.mark.case("CP-05", "CP-07")
async def test_a_drain_answers_what_was_accepted_everywhere_and_leaves_nothing(tmp_path: Path) -> None:
    async with ten(tmp_path) as bridge:
        waiting = []
        for name in ("alone", "cold", "common", "remote", "far", "old", "either"):
            session = await connect(bridge.port, path=bridge.path(name))
            slow = call(name, "slow", {"text": name, "seconds": 2, "steps": 1}, token=name)
            waiting.append((name, session, slow))
        async with loaded(bridge, bridge.file.servers) as loads, AsyncExitStack() as stack:
            exchanges = {}
            for name, session, slow in waiting:
                exchanges[name] = await stack.enter_async_context(session.posted(slow))
                assert (await exchanges[name].message())["method"] == "notifications/progress"
            for load in loads.values():
                load.may_fail = load.over = True
            await bridge.stop()
            for name, exchange in exchanges.items():
                (answer,) = [one for one in (await exchange.answer()).messages if "method" not in one]
                assert answer["result"]["content"][0]["text"] == name
        assert not [line for line in bridge.log if "Traceback" in line or "failed with" in line], (
            bridge.tail()
        )
