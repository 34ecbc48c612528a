"""What is owed to processes that nobody waits for.

As process 1 of a container, or as a subreaper, the bridge becomes the parent of whatever its
servers leave behind, and init's duty with it: to wait for them when they end, lest they stay
as zombies. Everywhere else there are none, and looking costs one system call.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

import anyio

_LOOK: Final = 0.2
"""Seconds between two looks."""


async def reap_orphans() -> None:
    """Wait for every ended child that is nobody's, for ever."""
    if not hasattr(os, "waitid"):
        return
    seen = 0
    while True:
        await anyio.sleep(_LOOK)
        seen = _look(seen)


def _look(seen: int) -> int:
    """Reap what the last look saw already; gives the ended child that is there now, or 0.

    A child of our own is waited for in the turn of the loop after it ended, so one that two
    looks see is not.
    """
    ended = _ended()
    if ended and ended == seen:
        with suppress(ChildProcessError):
            os.waitpid(ended, os.WNOHANG)
        return _ended()
    return ended


def _ended() -> int:
    """An ended child that was not waited for yet, left as it is; 0 if there is none."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    return 0 if found is None else found.si_pid
