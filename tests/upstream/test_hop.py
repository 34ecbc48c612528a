"""The life of one session over HTTP: what is delivered until when, how it ends, when it may be read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
from support.scripted_http import LIMIT

from bridge.config import Limits, Remote, Timing
from bridge.upstream.hop import Hop
from bridge.upstream.http_client import HttpClient
from upstream.remotes import Client


async def nothing() -> None:
    """No farewell."""


@asynccontextmanager
async def running(
    goodbye: Callable[[], Awaitable[None]] = nothing, timing: Timing | None = None
) -> AsyncIterator[tuple[Hop, Client]]:
    client = Client()
    hop = Hop(HttpClient(Remote(url="http://u:p@h/secret"), Timing()), client, Limits(), timing or Timing())

    async def run(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        await hop.run(goodbye, task_status=task_status)

    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tasks:
            await tasks.start(run)
            yield hop, client
            await hop.close()


async def test_its_label_holds_no_secret() -> None:
    async with running() as (hop, _):
        assert hop.label == "http://h"


async def test_nothing_is_delivered_after_the_end_which_is_told_once() -> None:
    async with running() as (hop, client):
        hop.deliver(b"1", 7)
        await hop.close()
        hop.deliver(b"2")
        await hop.close()
    assert (client.raw, client.on, len(client.faults)) == ([b"1"], [7], 1)


async def test_the_end_may_go_untold() -> None:
    async with running() as (hop, client):
        await hop.close(tell=False)
    assert not client.faults


async def test_the_end_cancels_its_tasks_before_the_farewell() -> None:
    done: list[str] = []

    async def task(name: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            done.append(name)

    async def farewell() -> None:
        done.append("farewell")

    async with running(farewell) as (hop, _):
        hop.spawn(task, "one")
        hop.spawn(task, "two")
        await anyio.lowlevel.checkpoint()
    assert sorted(done[:2]) == ["one", "two"]
    assert done[2:] == ["farewell"]


async def test_a_farewell_is_not_waited_for_longer_than_it_may_take() -> None:
    async with running(anyio.sleep_forever, Timing(farewell=0.01)) as (hop, _):
        await hop.close()


async def test_a_fault_of_ours_loses_the_session_and_goes_no_further(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    async with running() as (hop, client):
        hop.spawn(broken)
        await client.until(lambda: client.faults)
        assert hop.closed
    assert "ZeroDivisionError" in caplog.text


async def test_one_resume_undoes_any_number_of_pauses() -> None:
    async with running() as (hop, _):
        hop.pause()
        hop.pause()
        with anyio.move_on_after(0.01) as waiting:
            await hop.readable()
        assert waiting.cancelled_caught
        hop.resume()
        hop.resume()
        await hop.readable()
