"""The two descriptors of a client on stdio: bytes in and bytes out.

Decides how they are read and written: in order, never blocking the event loop, with word of it
when the client does not read, and when it is gone. Refuses to know what the bytes say.

A descriptor may be a pipe, a socket, a terminal or a file. The event loops' own pipe transports do
not do: they refuse files and /dev/null, and take a socket for closed on which the other side only
ended its sending. So plain descriptors are watched here, and are left as they were found: a
terminal's blocking mode is the shell's as well.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable
from typing import Final

import anyio
import anyio.to_thread

from bridge.config import KIB

CHUNK: Final = 64 * KIB
"""Bytes of one read: what a pipe holds."""


class Input:
    """Bytes that are taken when `read` asks for them, by one task at a time. Closes the descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._blocking = os.get_blocking(descriptor)
        self._pollable = True
        self._watched = False
        self._waiter: asyncio.Future[bytes] | None = None
        os.set_blocking(descriptor, False)

    async def read(self) -> bytes:
        """What has come, waited for; nothing at the end, or when the other side is gone."""
        if not self._watch():
            return await anyio.to_thread.run_sync(self._take) or b""
        self._waiter = self._loop.create_future()
        return await self._waiter

    def close(self) -> None:
        self._unwatch()
        os.set_blocking(self._descriptor, self._blocking)
        os.close(self._descriptor)

    def _watch(self) -> bool:
        """Have the loop tell of bytes; False for what it cannot watch, files and /dev/null."""
        if self._pollable and not self._watched:
            try:
                self._loop.add_reader(self._descriptor, self._readable)
                self._watched = True
            except PermissionError:
                self._pollable = False
        return self._pollable

    def _unwatch(self) -> None:
        if self._watched:
            self._loop.remove_reader(self._descriptor)
            self._watched = False

    def _readable(self) -> None:
        if self._waiter is None or self._waiter.done():
            self._unwatch()  # nobody asks at present: let it wait in the pipe
            return
        data = self._take()
        if data is not None:
            self._waiter.set_result(data)

    def _take(self) -> bytes | None:
        try:
            return os.read(self._descriptor, CHUNK)
        except BlockingIOError:
            return None  # somebody else with this terminal took it
        except OSError:
            return b""


class Output:
    """Bytes that go out as soon as they can; unlike `Input` this never waits. Closes the descriptor.

    `on_pressure` is told True when more than `high` bytes wait for the client to read, and False
    when less than half of that is left, or the client is gone.
    """

    def __init__(self, descriptor: int, high: int, on_pressure: Callable[[bool], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._blocking = os.get_blocking(descriptor)
        self._high = high
        self._on_pressure = on_pressure
        self._unsent = bytearray()
        self._moved = asyncio.Event()
        self.full = False
        self.broken = asyncio.Event()
        """Nobody reads any more, or nothing can be written: what is written is dropped."""
        os.set_blocking(descriptor, False)

    def write(self, data: bytes) -> None:
        """Write at once what the other side takes, and the rest when it can."""
        if self.broken.is_set():
            return
        if not self._unsent:
            written = self._put(data)
            if written == len(data) or self.broken.is_set():
                return
            data = data[written:]
            self._loop.add_writer(self._descriptor, self._writable)
        self._unsent += data
        if not self.full and len(self._unsent) > self._high:
            self._press(True)

    async def room(self) -> None:
        """Return when it is not full, or broken."""
        while self.full:
            await self._move()

    async def sent(self) -> None:
        """Return when everything was written, or it is broken."""
        while self._unsent:
            await self._move()

    def check(self) -> None:
        """Find out whether the reader is gone: of that, a pipe that is not written to tells nobody."""
        poll = select.poll()
        poll.register(self._descriptor, 0)  # hanging up and errors are told unasked
        if poll.poll(0):
            self._break()

    def close(self) -> None:
        self._break()
        os.set_blocking(self._descriptor, self._blocking)
        os.close(self._descriptor)

    async def _move(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    def _put(self, data: bytes | bytearray) -> int:
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:
            return 0
        except OSError:
            self._break()
            return 0

    def _writable(self) -> None:
        written = self._put(self._unsent)
        del self._unsent[:written]
        if not self._unsent:
            self._loop.remove_writer(self._descriptor)
        if self.full and len(self._unsent) < self._high // 2:
            self._press(False)
        self._moved.set()

    def _break(self) -> None:
        self.broken.set()
        if self._unsent:
            self._loop.remove_writer(self._descriptor)
            self._unsent.clear()
        if self.full:
            self._press(False)
        self._moved.set()

    def _press(self, full: bool) -> None:
        self.full = full
        self._on_pressure(full)
