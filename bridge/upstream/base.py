"""What the relay knows of a server: something lines are sent to and come back from, until it is lost.

Decides the contract every upstream transport keeps and nothing else: no framing, no process, no
HTTP. Refuses to know what a line says; ids appear only because a transport with one stream per
request knows which request a line belongs to.

Answers basic/transports: whatever the transport, JSON-RPC messages travel whole and in order.
"""

from __future__ import annotations

from typing import Protocol

from bridge.core.lines import Overlong
from bridge.core.message import Headers, Id
from bridge.errors import ServerFault


class Receiver(Protocol):
    """What an upstream tells its link, from the event loop's callbacks; it must not raise."""

    def received(self, lines: list[bytes | Overlong], on: Id | None = None) -> None:
        """All lines of one read, at least one, in order.

        `on` is the id of the request whose own stream carried them; None where all share one stream.
        """

    def lost(self, fault: ServerFault) -> None:
        """The server is lost, or was closed: exactly once, and nothing is received after it."""


class Upstream(Protocol):
    """One live connection to a server."""

    @property
    def label(self) -> str:
        """Its name in logs, like `server[123]`."""

    def send(self, line: bytes, headers: Headers = ()) -> None:
        """Send one complete JSON text without a newline in it; never blocks. Nothing, once lost.

        `headers` go along where there are any.
        """

    @property
    def congested(self) -> bool:
        """Whether the server reads slower than it is sent to: wait for `drained` before sending more."""

    async def drained(self) -> None:
        """Return when it is not congested, or lost."""

    async def awake(self) -> None:
        """Return when the server has shown a sign of life, or at once where none is to be waited for."""

    def pause(self) -> None:
        """Stop reading what the server says. Not counted: one `resume` undoes any number of pauses."""

    def resume(self) -> None:
        """Go on reading."""

    async def close(self) -> None:
        """End the server and return when it is gone; may be called at any time and more than once.

        `Receiver.lost` is told at the beginning. A caller that is cancelled stops waiting; the
        ending goes on.
        """


class Source(Protocol):
    """What makes upstreams."""

    async def open(self, receiver: Receiver) -> Upstream:
        """A connection nobody else has; nothing was sent on it. Raises ServerFault."""

    def expect(self, upstreams: int) -> None:
        """So many may be wanted at short notice: have them ready, as far as that is allowed at all."""

    def succeeded(self) -> None:
        """A handshake with one of its upstreams succeeded: the server works."""

    def failed(self, fault: ServerFault) -> None:
        """A handshake failed, or the server was lost before it: this holds the next starts."""

    async def close(self) -> None:
        """End every upstream it made, and return when all are gone."""
