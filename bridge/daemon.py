"""The process: its event loop, its signals, and how it ends.

SIGTERM, SIGINT and SIGHUP drain: nothing new is accepted, what runs may finish within a
limit, the rest is answered with an error, children go down the ladder, and the exit status
is 0. A second signal ends the process at once; its guard then ends the children.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from bridge import telemetry
from bridge.app import running
from bridge.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("bridge")

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))


def run(config: Config, *, demo: bool = False) -> int:
    """Serve until told to stop; gives the exit status. Raises BridgeError for faults at start."""
    stop_logging = telemetry.setup(config.log)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(config, demo))
    finally:
        stop_logging()
    return 0


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
                url=served.url,
                listening=served.listening if config.listen.uds is None else f"unix:{served.listening}",
                command=config.command.argv,
                process=config.process,
                auth=config.access.token is not None,
                demo=demo,
                log_format=config.log.format,
            )
            _settle_memory()
            await told.wait()
            log.info("stopping: %d sessions open", len(relay.sessions))
            served.stop_accepting()
            with anyio.move_on_after(config.timing.drain):
                await relay.drained()
    log.info("stopped")


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
