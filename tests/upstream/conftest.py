"""Every asynchronous test of the upstream side runs on both event loops, and none leaves a guard behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest_asyncio
import uvloop

from bridge.upstream.guard import Guard


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture
async def guard() -> AsyncIterator[Guard]:
    guard = Guard()
    yield guard
    await guard.close()
