"""Fifty modern clients at once at one legacy server that asks each of them: nothing is mixed up or left.

They come back late and in any order, some twice at the same time, some with states that are stolen,
altered or used up. Over HTTP the server's questions come on the stream of their call, so that each
client must be shown its own; over one pipe nothing says whose a question is, and the bridge may show it
in another call of the same user, but what is answered must reach the call that asked.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from matrix.clients import unlimited
from matrix.programs import Cell, Program, Side, bridge, cell
from real.provision import Software
from support.machine import Process, eventually

from . import sides
from .crowd import VICES, Client, Endpoint, refused
from .sides import Sdk, Upstream

pytestmark = pytest.mark.real

MANY = 50
LIMIT = 40.0
"""Seconds for all of them."""
COMMANDS = {
    Side.STDIO: bridge("stdio-to-http", "--port", "0", "--warm", "0", "--inherit-env", "MATRIX"),
    Side.HTTP: bridge("http-to-http", "--port", "0"),
}


@asynccontextmanager
async def serving(
    around: Cell, software: Software, side: Side, *options: str
) -> AsyncIterator[tuple[Program, Endpoint]]:
    """A bridge before the server on the Python SDK 1.x; on leaving, both end, and nothing else is left."""
    command = sides.server(software, Upstream(Sdk.PYTHON_1, side))
    behind = None if side is Side.STDIO else await around.start(command)
    source = ["--", *command] if behind is None else [await behind.url(side)]
    served = await around.start([*COMMANDS[side], *options, *source])
    async with unlimited() as http:
        yield served, Endpoint(http, await served.url(Side.HTTP))
    await served.stop(0)
    if behind is not None:
        behind.process.terminate()
        await behind.process.wait()
    await around.expect_nothing()
    around.programs = [served]
    around.expect_clean_logs()


def descriptors(program: Program) -> int:
    return sum(1 for _ in Path(f"/proc/{program.process.pid}/fd").iterdir())


def servers(around: Cell, served: Program) -> list[Process]:
    """For the bridge names its server in its own command line too."""
    return [
        one for one in around.left() if "server_python_1" in one.command and one.pid != served.process.pid
    ]


def crowd(endpoint: Endpoint, gate: asyncio.Barrier | None) -> list[Client]:
    chance = random.Random(4)
    return [
        Client(
            number=number,
            endpoint=endpoint,
            chance=random.Random(chance.random()),
            tempt=VICES[number % len(VICES)],
            doubled=number % 3 == 0,
            gate=gate,
        )
        for number in range(MANY)
    ]


@pytest.mark.parametrize("side", [Side.STDIO, Side.HTTP])
async def test_fifty_clients_get_each_the_answer_to_its_own_call(
    side: Side, software: Callable[[], Software]
) -> None:
    async with cell() as around, serving(around, software(), side) as (served, endpoint):
        assert (await endpoint.call("echo", text="first")).text == "first"
        before = descriptors(served)
        async with unlimited() as http, asyncio.timeout(LIMIT):
            # Only over HTTP can it be known that each is asked before any has answered.
            gate = asyncio.Barrier(MANY) if side is Side.HTTP else None
            clients = crowd(Endpoint(http, endpoint.url), gate)
            said = await asyncio.gather(*(client.converse() for client in clients))
            for client in clients:
                for state in client.states:
                    refused(await client.send({"requestState": state}))
        assert said == [client.expected for client in clients]
        own = [[f"first {client.number}?", f"second {client.number}?"] for client in clients]
        if side is Side.HTTP:
            assert [client.seen for client in clients] == own
        # Over one pipe a question may be shown with a call that ends, and is then shown with another.
        assert {one for client in clients for one in client.seen} == {one for both in own for one in both}
        assert (await endpoint.call("echo", text="last")).text == "last"
        await eventually(lambda: descriptors(served) <= before, served.tail)
        await eventually(lambda: len(servers(around, served)) == 1, served.tail)


async def test_a_call_whose_client_never_comes_back_ends_at_the_server_too(
    software: Callable[[], Software],
) -> None:
    async with (
        cell() as around,
        serving(around, software(), Side.STDIO, "--suspend-timeout", "1s") as (_, endpoint),
    ):
        asked = await endpoint.call("ask_twice", name="gone")
        assert asked.asks
        assert (await endpoint.call("stopped", name="gone")).text == "stopped"
        params = {
            "name": "ask_twice",
            "arguments": {"name": "gone"},
            "requestState": asked.result["requestState"],
        }
        refused(await endpoint.post("tools/call", params))
