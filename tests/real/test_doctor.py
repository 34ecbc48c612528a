"""The doctor on published servers: server-everything on each of its transports, and mcp-server-time."""

from __future__ import annotations

import os
import socket
from asyncio import create_subprocess_exec
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support import machine

from bridge import doctor
from bridge.config import Command, Remote, Timing
from bridge.doctor.report import Report

from .provision import Software

pytestmark = pytest.mark.real


async def examined(upstream: Command | Remote) -> Report:
    return await doctor.examine(upstream, os.environ, timeout=60, timing=Timing())


def everything(software: Software) -> tuple[str, ...]:
    return (software.node, software.package("server-everything", "dist", "index.js"))


@asynccontextmanager
async def serving(software: Software, transport: str) -> AsyncIterator[int]:
    """server-everything on a port of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    process = await create_subprocess_exec(
        *everything(software),
        transport,
        env={**os.environ, "PORT": str(port)},
        stdout=DEVNULL,
        stderr=DEVNULL,
    )

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        await machine.eventually(listens, lambda: "server-everything does not listen")
        yield port
    finally:
        process.kill()
        await process.wait()


def is_everything(found: Report) -> bool:
    named = found.identity is not None and found.identity["name"] == "mcp-servers/everything"
    return named and found.verdict.works and found.counts["tools"] > 10


async def test_everything_over_stdio(software: Software) -> None:
    found = await examined(Command(argv=everything(software)))
    assert is_everything(found)
    assert found.transports == ("stdio",)
    assert not found.eras["modern"].works
    assert all(one.ok for one in found.findings)


async def test_everything_over_streamable_http(software: Software) -> None:
    async with serving(software, "streamableHttp") as port:
        found = await examined(Remote(url=f"http://127.0.0.1:{port}/mcp"))
    assert is_everything(found)
    assert found.transports == ("Streamable HTTP",)
    # It answers an unknown session with 400 and looks at no Origin.
    assert {one.row for one in found.findings if not one.ok} >= {"HL-19", "HL-3"}


async def test_everything_over_http_sse(software: Software) -> None:
    async with serving(software, "sse") as port:
        found = await examined(Remote(url=f"http://127.0.0.1:{port}/sse"))
    assert is_everything(found)
    assert found.transports == ("HTTP+SSE",)


async def test_mcp_server_time(software: Software) -> None:
    command = Command(argv=(str(software.sdk_1 / "mcp-server-time"), "--local-timezone", "UTC"))
    found = await examined(command)
    assert found.verdict.works
    assert found.identity is not None
    assert found.identity["name"] == "mcp-time"
    assert found.counts == {"tools": 2}
    assert not found.eras["modern"].works
