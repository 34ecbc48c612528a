"""Every client transport before every server transport: the same conversation, nine times, with two servers.

The bridge is a process with the command line that a user gives; the clients are raw, so that bytes are
compared and not what two SDKs make of them. When the conversation is over nothing of it is left: the
session behind the bridge is ended, the child that served it is gone, and so is every process.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from real.provision import Software
from support.machine import eventually

from .conftest import Note
from .conversation import Conversation
from .programs import PAIRS, Cell, Side, cell, talking
from .servers import CASES, Reached, Server, reach


@pytest.mark.parametrize(("downstream", "upstream"), PAIRS)
@pytest.mark.parametrize("server", CASES)
async def test_the_same_conversation_over_every_pair_of_transports(
    downstream: Side, upstream: Side, server: Server, software: Callable[[], Software], note: Note
) -> None:
    behind = "stdio child" if upstream is Side.STDIO else str(upstream)
    note(row=f"{downstream} → {behind}", column=server.name)
    async with cell() as around:
        reached = await reach(around, downstream, upstream, server, software)
        began = time.monotonic()
        async with talking(reached.bridge, downstream) as talk:
            for name, step in Conversation(talk, server).steps.items():
                note(step=name)
                await step()
        await nothing_is_left(around, reached, downstream, note)
        note(step="", seconds=f"{time.monotonic() - began:.1f}")


async def nothing_is_left(around: Cell, reached: Reached, downstream: Side, note: Note) -> None:
    note(step="end of the session")
    await around.expect_only_programs()
    if (behind := reached.behind) is not None and reached.farewell:
        await eventually(lambda: any(reached.farewell in line for line in behind.log), around.tail)
    note(step="end of the processes")
    if downstream is not Side.STDIO:  # else it has ended with its client
        await reached.bridge.stop(0)
    if behind is not None:
        await behind.stop(reached.ends_with)
    await around.expect_nothing()
    around.expect_clean_logs()
