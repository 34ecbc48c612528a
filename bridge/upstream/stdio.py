"""A server on stdin and stdout: one JSON text per line, each way.

Decides the framing of both directions. Refuses to know how the process is started and ended
(`process`) and what a line says.

Answers basic/transports, stdio: messages are delimited by newlines and hold none, and nothing
but messages is written to stdin.
"""

from __future__ import annotations

import logging

from bridge.core.lines import Lines, Overlong
from bridge.core.message import Headers
from bridge.errors import ServerFault
from bridge.upstream.base import Receiver
from bridge.upstream.process import Child

_log = logging.getLogger("bridge.server")


class StdioUpstream:
    """An `Upstream` on a child; lines over `max_line` bytes come as `Overlong`."""

    def __init__(self, child: Child, receiver: Receiver, max_line: int) -> None:
        self._child = child
        self._receiver = receiver
        self._lines = Lines(max_line)
        child.listen(self._read, self._lost)

    @property
    def label(self) -> str:
        return self._child.label

    def send(self, line: bytes, headers: Headers = ()) -> None:
        self._child.stdin.write(line + b"\n")

    @property
    def congested(self) -> bool:
        return self._child.stdin.congested

    async def drained(self) -> None:
        await self._child.stdin.drained()

    async def awake(self) -> None:
        await self._child.awake.wait()

    def pause(self) -> None:
        self._child.pause()

    def resume(self) -> None:
        self._child.resume()

    async def close(self) -> None:
        await self._child.close()

    def _read(self, data: bytes) -> None:
        if lines := self._lines.feed(data):
            self._receiver.received(lines)

    def _lost(self, fault: ServerFault) -> None:
        if (half := self._lines.end()) is not None:
            size = half.size if isinstance(half, Overlong) else len(half)
            _log.warning("stopped in the middle of a line of %d bytes", size, extra={"label": self.label})
        self._receiver.lost(fault)
