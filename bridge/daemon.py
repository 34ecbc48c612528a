"""The process: its event loop, its signals, and how it ends.

SIGTERM, SIGINT and SIGHUP drain: nothing new is accepted, what runs may finish within a
limit, the rest is answered with an error, children go down the ladder, and the exit status
is 0. A second signal ends the process at once; its guard then ends the children.

A bridge on its own stdin and stdout also ends, with status 0, when its input has ended and
every answer is out, when nobody reads its output, and when the process that started it is gone.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from bridge import telemetry
from bridge.app import running, wrapping
from bridge.config import Config, Downstream

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("bridge")

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))
_CHECK: Final = 1.0
"""Seconds between two looks at whether the parent is still there."""


def run(config: Config, *, demo: bool = False) -> int:
    """Serve until told to stop; gives the exit status. Raises BridgeError for faults at start."""
    _hold_places()
    # Before anything may print.
    own = _set_aside() if config.downstream is Downstream.STDIO else None
    stop_logging = telemetry.setup(config.log)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(config, demo) if own is None else _wrap(config, own))
    finally:
        stop_logging()
    return 0


def _hold_places() -> None:
    """A standard descriptor that we were started without would become some file's or socket's."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gives the lowest number that is free
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(config: Config, demo: bool) -> None:
    with _signals() as told:
        async with running(config, os.environ) as (relay, served):
            telemetry.announce(
                sys.stderr,
                config,
                url=served.url,
                listening=served.listening if config.listen.uds is None else f"unix:{served.listening}",
                demo=demo,
            )
            _settle_memory()
            await told.wait()
            log.info("stopping: %d sessions open", len(relay.sessions))
            served.stop_accepting()
            with anyio.move_on_after(config.timing.drain):
                await relay.drained()
    log.info("stopped")


class _Own(NamedTuple):
    """What a bridge on stdio was started with: its descriptors, and its parent."""

    reading: int
    writing: int
    parent: int


def _set_aside() -> _Own:
    """Take stdin and stdout from everything else here, and from children (SS-1, SS-9).

    From now on what prints goes to stderr, and what reads finds the end.
    """
    own = _Own(os.dup(0), os.dup(1), os.getppid())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return own


async def _wrap(config: Config, own: _Own) -> None:
    with _signals() as told:
        async with wrapping(config, os.environ, own.reading, own.writing) as port:
            telemetry.announce_stdio(sys.stderr, config)
            _settle_memory()

            async def drained() -> None:
                await told.wait()
                log.info("stopping")
                port.drain()
                await anyio.sleep(config.timing.drain)

            await _first(port.serve, drained, partial(_orphaned, own.parent))


async def _first(*calls: Callable[[], Awaitable[None]]) -> None:
    """Return when one of them has; the others are cancelled."""
    async with anyio.create_task_group() as tasks:

        async def run(call: Callable[[], Awaitable[None]]) -> None:
            await call()
            tasks.cancel_scope.cancel()

        for call in calls:
            tasks.start_soon(run, call)


async def _orphaned(parent: int) -> None:
    """Return when `parent` is gone, and somebody else got us for a child.

    Asked now and then: Linux' signal for it is sent when the *thread* that started us ends.
    """
    while os.getppid() == parent:  # noqa: ASYNC110
        await anyio.sleep(_CHECK)
    log.info("stopping: the process that started this one is gone")


@contextmanager
def _signals() -> Iterator[anyio.Event]:
    """An event that the first signal sets; the second ends the process on the spot."""
    told = anyio.Event()
    loop = asyncio.get_running_loop()

    def hear(number: int) -> None:
        if told.is_set():
            os._exit(128 + number)
        told.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, hear, number)
    try:
        yield told
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _settle_memory() -> None:
    """What is loaded now stays: keep the collector from walking it again and again."""
    gc.collect()
    gc.freeze()
