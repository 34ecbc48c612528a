"""What is known of the server's health, and how it was learned.

Ready means evidence: the last handshake that anyone finished succeeded. Nothing is
assumed from a process that merely runs.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from bridge.errors import ServerFault


class State(StrEnum):
    STARTING = "starting"
    """No handshake has ended yet."""
    INITIALISED = "initialised"
    FAILING = "failing"
    DRAINING = "draining"


class Identity(msgspec.Struct, frozen=True):
    """Who the server says it is."""

    name: str = ""
    version: str = ""


class _Initialized(msgspec.Struct):
    version: str = msgspec.field(name="protocolVersion", default="")
    server: Identity = msgspec.field(name="serverInfo", default=Identity())


class Readiness:
    def __init__(self) -> None:
        self.state = State.STARTING
        self.revision = ""
        self.server = Identity()
        self.fault: ServerFault | None = None
        """Why the last handshake failed."""

    @property
    def ready(self) -> bool:
        return self.state is State.INITIALISED

    def initialised(self, result: bytes | msgspec.Raw) -> bool:
        """A handshake succeeded with this InitializeResult; true if that is news."""
        try:
            said = msgspec.json.decode(result, type=_Initialized)
        except msgspec.DecodeError:
            said = _Initialized()
        return self._proved(said.version, said.server)

    def discovered(self, revision: str) -> bool:
        """The server answered `server/discover` of that revision; true if that is news."""
        return self._proved(revision, self.server)

    def _proved(self, revision: str, server: Identity) -> bool:
        news = self.state in (State.STARTING, State.FAILING)
        if self.state is not State.DRAINING:
            self.state = State.INITIALISED
        self.revision, self.server, self.fault = revision, server, None
        return news

    def failed(self, fault: ServerFault) -> None:
        self.fault = fault
        if self.state is not State.DRAINING:
            self.state = State.FAILING

    def drain(self) -> None:
        self.state = State.DRAINING
