"""Every SDK as a client before every SDK as a server, over every pair of transports that both have.

The bridge is what a user starts, and nothing tells it which era either side is of. One bridge stands
before each server and serves all clients at once, those of stdio having one of their own each. All have
the same conversation (`programs/python_talk.py`): lists, reads, calls, progress, logs, elicitation,
sampling, roots, changes, cancellation, errors. What it tells must not depend on who is on the other
side; only revision and error codes are those of the client's era.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from matrix.programs import COMMANDS, ROOT, Cell, Program, Side, bridge, cell
from real.provision import Software

from . import sides
from .conftest import Note, row
from .sides import UPSTREAMS, Sdk, Upstream, lost

pytestmark = pytest.mark.real

LIMIT = 150.0
"""Seconds for all conversations with one server."""
# One bridge that serves clients of both HTTP transports.
SERVING = {
    Side.STDIO: bridge("stdio-to-http", "--port", "0", "--legacy-sse", "--inherit-env", "MATRIX", "--"),
    Side.HTTP: bridge("http-to-http", "--port", "0", "--legacy-sse"),
    Side.SSE: bridge("sse-to-http", "--port", "0", "--legacy-sse"),
}
# Modern clients share a session of the server, in which over one pipe nothing tells whose call a log
# message or a question of the server's belongs to: the bridge has to guess, so the two take turns.
TURNS = ((Sdk.PYTHON_1,), (Sdk.TYPESCRIPT_1,), (Sdk.PYTHON_2, Sdk.TYPESCRIPT_2))
Target = dict[str, Any]
Verdict = tuple[tuple[Sdk, Side], dict[str, str]]
"""Of one client over one transport: by step, what was lost."""


@pytest.mark.parametrize("upstream", UPSTREAMS, ids=lambda one: str(one).replace(" ", "-"))
async def test_a_client_on_any_sdk_finds_in_a_server_on_any_sdk_what_it_would_find_there_itself(
    upstream: Upstream, software: Callable[[], Software], note: Note
) -> None:
    found = software()
    async with cell() as around:
        behind, source = await started(around, upstream, found)
        served = await around.start([*SERVING[upstream.side], *source])
        urls = {side: await served.url(side) for side in (Side.HTTP, Side.SSE)}
        own = [*COMMANDS[Side.STDIO, upstream.side], *source]
        said = await asyncio.gather(
            *(converse(around, sdks, found, lambda sdk: targets(around, sdk, urls, own)) for sdks in TURNS)
        )
        faults = dict(verdict for told in said for verdict in told)
        for (sdk, side), failed in faults.items():
            note(row(sdk, side), str(upstream), f"LOST {len(failed)}" if failed else "ok")
        complaint = {row(*who): failed for who, failed in faults.items() if failed}
        assert not complaint, f"{json.dumps(complaint, indent=1, ensure_ascii=False)}\n{around.tail()}"
        await all_ends(around, served, behind)


async def started(around: Cell, upstream: Upstream, software: Software) -> tuple[Program | None, list[str]]:
    """The server, and what the bridge is told of it; one over stdio is left to the bridge to start."""
    command = sides.server(software, upstream)
    if upstream.side is Side.STDIO:
        return None, command
    behind = await around.start(command)
    return behind, [await behind.url(upstream.side)]


def targets(around: Cell, sdk: Sdk, urls: dict[Side, str], own: Sequence[str]) -> list[Target]:
    """One for each transport that this client has."""
    mark, _, value = around.mark.partition("=")
    stdio = {"argv": own, "env": {mark: value, "NO_PROXY": "127.0.0.1"}, "cwd": str(ROOT)}
    return [
        {
            "name": f"{sdk.name.lower()}-{side.name.lower()}",
            "how": sides.SHORT[side].lower(),
            **({"url": urls[side]} if side in urls else stdio),
        }
        for side in sdk.sides
    ]


async def converse(
    around: Cell, sdks: Sequence[Sdk], software: Software, wanted: Callable[[Sdk], Sequence[Target]]
) -> list[Verdict]:
    """Run the clients of these SDKs with their targets, one client after the other."""
    return [verdict for sdk in sdks for verdict in await run_client(around, sdk, software, wanted(sdk))]


async def run_client(around: Cell, sdk: Sdk, software: Software, wanted: Sequence[Target]) -> list[Verdict]:
    program = await around.start(sides.client(software, sdk), talks=True)
    process = program.process
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(wanted).encode())
    process.stdin.close()
    told: dict[str, dict[str, Any]] = {}
    async with asyncio.timeout(LIMIT):
        async for line in process.stdout:
            one = json.loads(line)
            told[one["name"]] = one["seen"]
        await process.wait()
    silent = {"connection": "the client ended without a word"}
    return [
        ((sdk, side), lost(sdk.era, target["name"], told.get(target["name"], silent)))
        for side, target in zip(sdk.sides, wanted, strict=True)
    ]


async def all_ends(around: Cell, served: Program, behind: Program | None) -> None:
    """The bridge ends as it should, with all that it started, and complained of nothing meanwhile."""
    await served.stop(0)
    if behind is not None:
        behind.process.terminate()
        await behind.process.wait()
    await around.expect_nothing()
    around.programs = [program for program in around.programs if program is not behind]
    around.expect_clean_logs()
