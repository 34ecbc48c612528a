"""Zombies that the bridge inherits, and children of its own that it must leave alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from bridge.upstream.orphans import reap_orphans

from .scripted import eventually

pytestmark = pytest.mark.skipif(not hasattr(os, "waitid"), reason="nothing to look with")


def started(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words, stdin=subprocess.PIPE)


def ended(child: subprocess.Popen[bytes]) -> None:
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.case("CP-05")
async def test_ended_children_that_nobody_waits_for_are_waited_for() -> None:
    children = [started(sys.executable, "-I", "-S", "-c", "") for _ in range(3)]
    for child in children:
        ended(child)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reap_orphans)
        await eventually(lambda: not any(Path(f"/proc/{child.pid}").exists() for child in children))
        tasks.cancel_scope.cancel()
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
        child.returncode = 0  # or it would be waited for again


async def test_living_child_is_left_alone() -> None:
    with started("cat") as child:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reap_orphans)
            await anyio.sleep(0.5)
            tasks.cancel_scope.cancel()
        assert child.poll() is None
