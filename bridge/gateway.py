"""All servers of one process: which are at work, what becomes of them when the file changes, what is told.

Decides what a reload changes and what it leaves alone, that one bad server stops nobody else, and
when the whole is ready or drained. It knows no transport and no HTTP: `app.py` makes the servers and
leads requests to them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from bridge import __version__, telemetry
from bridge.config import Access, Command, Config, Daemon
from bridge.errors import BridgeError, UsageFault
from bridge.hosted import Hosted
from bridge.status import BridgeStatus, ChildStatus, Control, ServerStatus, SessionStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

log = logging.getLogger("bridge")

Make = Callable[[Config], Hosted]
"""Puts a server together, not yet at work. Raises UsageFault."""

_FIRST_RETRY: Final = 5.0
_MOST_RETRY: Final = 60.0


@dataclass
class Unfit:
    """A configured server that cannot even be put together, and why."""

    config: Config
    fault: BridgeError
    at: float
    pause: float = _FIRST_RETRY


class Gateway(Control):
    """Prepare it, then use it as `async with gateway.running()`. `read` gives the tree anew, if it came
    from a file.
    """

    def __init__(self, daemon: Daemon, make: Make, *, read: Callable[[], Daemon] | None = None) -> None:
        self.daemon = daemon
        self.hosted: dict[str, Hosted] = {}
        self.unfit: dict[str, Unfit] = {}
        self.draining = False
        self.listening = ""
        self.stopping = anyio.Event()
        """Set when somebody asks for the process to stop."""
        self.changed: Callable[[], None] = lambda: None
        """Called when another server is at work, or one no more."""
        self.reloaded: Callable[[Daemon], None] = lambda _: None
        """Called with a tree that took the place of another."""
        self._make, self._read = make, read
        self._tasks: TaskGroup | None = None
        self._turn = anyio.Lock()
        self._began, self._loaded = time.monotonic(), time.time()
        self._reload_fault: str | None = None

    @property
    def only(self) -> Hosted | None:
        """The server of a bridge that was started for one."""
        return next(iter(self.hosted.values()), None) if self.daemon.file is None else None

    @property
    def open_sessions(self) -> int:
        return sum(len(hosted.relay.sessions) for hosted in self.hosted.values())

    def prepare(self) -> None:
        """Put every server together; without a file, raises what keeps one from it."""
        for config in self.daemon.servers:
            self._put_together(config)
        self.changed()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Every server at work, as far as it can be; on leaving, every one ended."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                for hosted in list(self.hosted.values()):
                    await self._start(hosted)
                self.changed()
                tasks.start_soon(self._retry)
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    self.draining = True
                    await _together(hosted.end for hosted in self.hosted.values())
                tasks.cancel_scope.cancel()

    def _put_together(self, config: Config) -> Hosted | None:
        try:
            hosted = self._make(config)
        except BridgeError as fault:
            self._cannot_run(config, fault)
            return None
        self.hosted[config.name] = hosted
        return hosted

    async def _start(self, hosted: Hosted) -> None:
        assert self._tasks is not None
        try:
            await self._tasks.start(self._contain, hosted)
        except BridgeError as fault:
            del self.hosted[hosted.name]
            self._cannot_run(hosted.config, fault)
        else:
            self.unfit.pop(hosted.name, None)

    async def _contain(self, hosted: Hosted, *, task_status: TaskStatus[None]) -> None:
        """Run it; a mistake of ours in one server is not to end the others."""
        try:
            await hosted.run(task_status=task_status)
        except BridgeError:
            raise
        except Exception as fault:
            if self.daemon.file is None:
                raise
            log.exception("server %s ended by a fault of the bridge, and is started anew", hosted.name)
            if self.hosted.get(hosted.name) is hosted:
                del self.hosted[hosted.name]
                self._cannot_run(hosted.config, BridgeError(f"A fault of the bridge: {type(fault).__name__}"))
                self.changed()

    def _cannot_run(self, config: Config, fault: BridgeError) -> None:
        """Report it, to be tried again; with nothing but this server there is no point in going on."""
        if self.daemon.file is None:
            raise fault
        before = self.unfit.get(config.name)
        pause = min(_MOST_RETRY, before.pause * 2) if before else _FIRST_RETRY
        self.unfit[config.name] = Unfit(config, fault, time.monotonic(), pause)
        log.error("server %s cannot run, and is tried again: %s", config.name, fault)

    async def _host(self, config: Config) -> None:
        hosted = self._put_together(config)
        if hosted is not None:
            await self._start(hosted)
        self.changed()

    async def _retry(self) -> None:
        """Try again what could not be put together: a file may be there by now, or a program."""
        while True:
            await anyio.sleep(1.0)
            async with self._turn:
                now = time.monotonic()
                for unfit in [one for one in self.unfit.values() if one.at + one.pause <= now]:
                    await self._host(unfit.config)

    async def drained(self, within: float) -> None:
        """Take nothing new anywhere, and return when nothing runs, after so many seconds at most."""
        self.draining = True
        for hosted in self.hosted.values():
            hosted.relay.drain()  # all at once, and before anything else is heard
        await _together(partial(hosted.drain, within) for hosted in self.hosted.values())

    # Control

    def drain(self, server: str | None = None) -> None:
        """Begin to stop the process; or let one server take nothing new and end its sessions. KeyError."""
        if server is None:
            self.stopping.set()
            return
        self._retire(self.hosted[server])

    def status(self) -> BridgeStatus:
        servers = [self._status_of(config) for config in self.daemon.servers]
        ready = bool(servers) and all(one.ready for one in servers) and not self.draining
        return BridgeStatus(
            version=__version__,
            pid=os.getpid(),
            seconds=time.monotonic() - self._began,
            ready=ready,
            state=self._state(servers, ready=ready),
            listening=self.listening,
            file=None if self.daemon.file is None else str(self.daemon.file),
            loaded=self._loaded,
            reload_fault=self._reload_fault,
            servers=servers,
        )

    def _state(self, servers: Sequence[ServerStatus], *, ready: bool) -> str:
        if self.draining:
            return "draining"
        if ready:
            return "ready"
        return "starting" if any(one.state == "starting" for one in servers) else "degraded"

    def _status_of(self, config: Config) -> ServerStatus:
        default = config.name == self.daemon.default
        hosted = self.hosted.get(config.name)
        if hosted is not None:
            return hosted.status(default=default)
        unfit = self.unfit.get(config.name)
        return ServerStatus(
            name=config.name,
            kind="command" if isinstance(config.upstream, Command) else "url",
            target=telemetry.spell_server(config.upstream),
            path=config.listen.path,
            default=default,
            state="failing",
            fault=None if unfit is None else str(unfit.fault),
            reason="configuration",
        )

    def sessions(self) -> list[SessionStatus]:
        return [session for hosted in self.hosted.values() for session in hosted.sessions()]

    def children(self) -> list[ChildStatus]:
        return [child for hosted in self.hosted.values() for child in hosted.children()]

    def log_level(self, level: str | None) -> str:
        return telemetry.level(level)

    async def reload(self) -> list[str]:
        """Read the configuration again; one line for each thing done. Raises UsageFault: nothing changed."""
        if self._read is None:
            raise UsageFault(
                "This bridge was started without a configuration file; there is nothing to reload"
            )
        async with self._turn:
            try:
                fresh = self._read()
                _hold_to_what_can_change(self.daemon, fresh)
            except UsageFault as fault:
                self._reload_fault = str(fault)
                raise
            return await self._become(fresh)

    async def _become(self, fresh: Daemon) -> list[str]:
        old, self.daemon = self.daemon, fresh
        self._reload_fault, self._loaded = None, time.time()
        before = {config.name: config for config in old.servers}
        after = {config.name: config for config in fresh.servers}
        done = dict.fromkeys(before.keys() - after.keys(), "removed")
        for name, config in after.items():
            news = self._news(before.get(name), config)
            if news is not None:
                done[name] = news
        for name in done:
            self.unfit.pop(name, None)
            self._retire(self.hosted.pop(name, None))
            if name in after:
                await self._host(after[name])
        self.changed()
        self.reloaded(fresh)
        lines = [f"{name}: {news}" for name, news in sorted(done.items())]
        for line in lines:
            log.info("reloaded %s", line)
        return lines or ["nothing changed"]

    def _news(self, before: Config | None, config: Config) -> str | None:
        """What is to be done about a server of the new tree; None to let it go on."""
        if before is None:
            return "added"
        if not _same(before, config):
            return "changed"
        hosted = self.hosted.get(config.name)
        return "started again" if hosted is None or hosted.retired else None

    def _retire(self, hosted: Hosted | None) -> None:
        if hosted is not None and not hosted.retired:
            assert self._tasks is not None
            self._tasks.start_soon(hosted.retire, self.daemon.drain)


def _same(old: Config, new: Config) -> bool:
    """Whether a server can go on as it is: tokens and log levels are read elsewhere."""
    return replace(old, access=_kind(old.access), log=new.log) == replace(new, access=_kind(new.access))


def _kind(access: Access) -> Access:
    """What of the access rules a server is made by: whether its callers are known, and told apart."""
    return Access(
        token="yes" if access.token is not None else None,
        callers=(("some", ""),) if access.callers else (),
    )


def _hold_to_what_can_change(old: Daemon, new: Daemon) -> None:
    """Raises UsageFault naming the tables that only a restart can change."""
    fixed: Mapping[str, tuple[object, object]] = {
        "[listen]": (old.listen, new.listen),
        "[admin]": (replace(old.admin, token=None), replace(new.admin, token=None)),
        "[tracing]": (old.tracing, new.tracing),
        "[record]": (old.record, new.record),
        "[audit]": (replace(old.audit, arguments=()), replace(new.audit, arguments=())),
    }
    changed = [name for name, (before, after) in fixed.items() if before != after]
    if changed:
        raise UsageFault(f"{' and '.join(changed)} changed, which takes a restart; nothing was reloaded")


async def _together(calls: Iterable[Callable[[], Coroutine[object, object, None]]]) -> None:
    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(call)
