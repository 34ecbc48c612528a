"""One configured server at work: where it comes from, who keeps its sessions, what answers on its paths.

Decides its life: running, retiring when its configuration goes or changes, ended. Which adapters it
is made of is `app.py`'s matter; which request is for it, `gateway.py`'s.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

import anyio
from aiohttp.web import BaseRequest, StreamResponse
from anyio.abc import TaskStatus

from bridge.config import Command, Config
from bridge.relay import Relay
from bridge.status import ChildStatus, ServerStatus, SessionStatus
from bridge.telemetry import spell_server
from bridge.upstream.base import Process

log = logging.getLogger("bridge")

Handler = Callable[[BaseRequest], Awaitable[StreamResponse]]

_NOBODY: Final[Mapping[str, Any]] = {"opened": 0, "open": 0, "clients": {}}


class Endpoints(Protocol):
    """What answers clients, on which paths."""

    @property
    def handlers(self) -> Mapping[str, Handler]: ...

    def admits(self, request: BaseRequest) -> bool:
        """Whether a request without a token is what another replica has let in."""

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """Who still uses HTTP+SSE, or None where it is not served."""

    async def close(self) -> None:
        """Let go of what it opened itself, when nothing is answered any more."""


class Supply(Protocol):
    """What is asked of a source beside upstreams."""

    def processes(self) -> list[Process]: ...


class Hosted:
    """`supply` tells of processes where there are any; run `run` in a task of its own."""

    def __init__(
        self,
        config: Config,
        source: AbstractAsyncContextManager[object],
        relay: Relay,
        endpoints: Endpoints,
        supply: Supply | None = None,
    ) -> None:
        self.config = config
        self.relay = relay
        self.endpoints = endpoints
        self._source, self._supply = source, supply
        self.retired = False
        """Whether it was told to take nothing new."""
        self._over = anyio.Event()
        self._ended = anyio.Event()

    @property
    def name(self) -> str:
        return self.config.name

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until `end`. Raises UsageFault before it began."""
        try:
            async with self._source, self.relay:
                task_status.started()
                await self._over.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await self.endpoints.close()
            self._ended.set()

    async def retire(self, within: float) -> None:
        """Take nothing new; let what runs finish for so many seconds, then end."""
        self.retired = True
        await self.drain(within)
        await self.end()

    async def drain(self, within: float) -> None:
        """Take nothing new, and return when nothing runs any more, after so many seconds at most."""
        with anyio.move_on_after(within):
            await self.relay.drained()

    async def end(self) -> None:
        """Answer what still waits, end every session and child, and return when all are gone."""
        self._over.set()
        await self._ended.wait()

    # What an operator sees

    def status(self, *, default: bool) -> ServerStatus:
        relay = self.relay
        known, children = relay.readiness, self._processes()
        old = self.endpoints.usage or _NOBODY
        upstreams = sum(link.used for link in relay.links)
        return ServerStatus(
            name=self.name,
            kind="command" if isinstance(self.config.upstream, Command) else "url",
            target=spell_server(self.config.upstream),
            path=self.config.listen.path,
            default=default,
            state=known.state.value,
            ready=known.ready,
            started=bool(children) if self._supply is not None else relay.starts > 0,
            fault=None if known.fault is None else str(known.fault),
            reason=None if known.fault is None else known.fault.reason,
            server=f"{known.server.name} {known.server.version}".strip(),
            revision=known.revision,
            eras=relay.detection.eras.known,
            sessions=len(relay.sessions),
            streams=relay.streams,
            in_flight=sum(link.in_flight for link in relay.links),
            upstreams=upstreams,
            children=len(children),
            warm=sum(child.state == "warm" for child in children),
            starts=relay.starts,
            failures=relay.failures,
            queued=relay.waiting,
            suspended=relay.suspended,
            resumptions=relay.resumptions,
            bytes_to_server=relay.traffic.went,
            bytes_from_server=relay.traffic.came,
            legacy_sse_open=old["open"],
            legacy_sse_opened=old["opened"],
            legacy_sse_clients=dict(old["clients"]),
        )

    def sessions(self) -> list[SessionStatus]:
        found = (session.status() for session in self.relay.sessions.values())
        return [status for status in found if status is not None]

    def children(self) -> list[ChildStatus]:
        return [
            ChildStatus(
                server=self.name, pid=one.pid, state=one.state, seconds=one.seconds, rss=_memory(one.pid)
            )
            for one in self._processes()
        ]

    def _processes(self) -> list[Process]:
        return [] if self._supply is None else self._supply.processes()


def _memory(pid: int) -> int | None:
    """Bytes of a process's memory that are in RAM, where /proc tells."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None
