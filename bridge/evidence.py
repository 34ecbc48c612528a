"""Whether the server works, found out by the bridge itself when no client has.

Decides when to look and on what: a throw-away upstream session, or the shared one where there is
one. What counts as evidence is `readiness.py`'s matter.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol

import anyio

from bridge.config import Config, ProcessModel, Remote
from bridge.core.message import notification
from bridge.crossing import Host, initialize
from bridge.detection import CLIENT, Detection
from bridge.era.revisions import Era
from bridge.errors import CircuitOpen, EraChanged, ServerFault, ServerStopped
from bridge.link import Caller, Link
from bridge.readiness import Readiness

log = logging.getLogger("bridge.relay")

INITIALIZE: Final = initialize(b"{}", CLIENT)
"""The params of an initialize in the bridge's own name, which can do nothing for a server."""
_FIRST: Final = 0.5
"""Seconds that clients have to bring evidence themselves."""
_AGAIN: Final = 1.0


class Examiner(Host, Protocol):
    """What the relay does for it."""

    readiness: Readiness
    detection: Detection

    def failed(self, fault: ServerFault) -> None: ...

    async def close(self, link: Link) -> None: ...


class Evidence:
    """`shared` gives the link that all legacy sessions have, where the process model is such."""

    def __init__(self, relay: Examiner, config: Config, shared: Callable[[], Awaitable[Link]]) -> None:
        self._relay, self._config, self._shared = relay, config, shared

    async def keep(self) -> None:
        """Look whenever nobody knows."""
        await anyio.sleep(_FIRST)
        while not self._relay.draining:
            if not self._relay.readiness.ready:
                await self._check()
            await anyio.sleep(_AGAIN)

    async def _check(self) -> None:
        if isinstance(self._config.upstream, Remote) and self._relay.detection.eras.unknown:
            try:
                await self._relay.detection.find()
            except CircuitOpen as fault:
                await anyio.sleep(fault.retry_after)
                return
            except ServerFault as fault:
                self._relay.failed(fault)
                return
            if self._relay.readiness.ready:
                return
        if self._config.process is ProcessModel.SHARED and await self._shared_tells():
            return
        await self._look()

    async def _look(self) -> None:
        """On an upstream session that is thrown away."""
        try:
            link = await self._relay.open(fresh=False, era=Era.LEGACY)
        except CircuitOpen as fault:
            await anyio.sleep(fault.retry_after)
            return
        except ServerFault as fault:
            log.warning("server cannot be started: %s", told(fault))
            return
        try:
            await self._examine(Caller(link))
        except ServerFault as fault:
            self._relay.failed(fault)
        finally:
            with anyio.CancelScope(shield=True):
                await self._relay.close(link)

    async def _shared_tells(self) -> bool:
        """Whether the shared server shows its health; one that refuses to initialize may be modern."""
        try:
            await self._shared()
        except (CircuitOpen, EraChanged):
            return True
        except ServerFault as fault:
            return self._relay.readiness.fault is fault
        return True

    async def _examine(self, caller: Caller) -> None:
        """A server of either era proves itself: by `initialize`, or by refusing it and discovering."""
        with suppress(EraChanged):
            await self._relay.handshake(caller, INITIALIZE)
            caller.tell(notification("notifications/initialized"))


def told(fault: ServerFault) -> str:
    """The fault for a log line, with the last words of the server."""
    stderr = fault.stderr if isinstance(fault, ServerStopped) else ()
    return f"{fault}; its stderr ended: {' | '.join(stderr[-5:])}" if stderr else str(fault)
