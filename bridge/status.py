"""What is the case in a running bridge, as an operator is told it: by readiness, metrics and admin alike.

Values only, taken at one moment by whoever knows (`hosted.Hosted.status`, `gateway.Gateway.status`).
Nothing in them is secret: sessions go by the beginning of their ids, servers by name.
"""

from __future__ import annotations

import msgspec


class ChildStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One server process."""

    server: str
    pid: int
    state: str
    """`warm`, not used yet; `serving`; or `ending`."""
    seconds: float
    """Since it was started."""
    rss: int | None = None
    """Bytes of memory, where the system tells."""


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One legacy session."""

    id: str
    server: str
    caller: str
    transport: str
    """`http` or `sse`."""
    revision: str
    client: str
    """Name and version that its initialize gave."""
    in_flight: int
    idle_seconds: float | None
    """Since its last sign of life; None while a request runs or a stream is open."""


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One configured server. Counts are since the start of the process."""

    name: str
    kind: str
    """`command` or `url`."""
    target: str
    """The command or the origin of the URL, without secrets."""
    path: str
    default: bool
    state: str
    """Of `readiness.State`; `disabled` for one that is not run."""
    ready: bool = False
    started: bool = False
    """Whether a process of it runs or a connection stood."""
    fault: str | None = None
    """Why the last handshake or start failed."""
    reason: str | None = None
    """The machine's word for that."""
    server: str = ""
    """Name and version that the server gave."""
    revision: str = ""
    """What it was last spoken to in."""
    eras: str = "unknown"
    """`legacy`, `modern`, `both` or `unknown`."""
    sessions: int = 0
    streams: int = 0
    """GET streams and subscriptions that are open."""
    in_flight: int = 0
    upstreams: int = 0
    """Connections to the server, or processes of it, that are in use."""
    children: int = 0
    """Living processes."""
    warm: int = 0
    starts: int = 0
    """Processes started or connections made."""
    failures: int = 0
    """Starts and handshakes that failed."""
    queued: int = 0
    """Messages and requests that wait for a server or a stream."""
    suspended: int = 0
    """Calls that wait for their client to come back with an answer."""
    resumptions: int = 0
    """Streams taken up again with `Last-Event-ID`."""
    bytes_to_server: int = 0
    bytes_from_server: int = 0
    legacy_sse_open: int = 0
    legacy_sse_opened: int = 0
    legacy_sse_clients: dict[str, int] = msgspec.field(default_factory=dict)


class BridgeStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The whole process."""

    version: str
    pid: int
    seconds: float
    """Since its start."""
    ready: bool
    state: str
    """`starting`, `ready`, `degraded` (some servers are not ready), `draining`."""
    listening: str
    file: str | None
    """The configuration file."""
    loaded: float
    """When it was last read, seconds since the epoch."""
    reload_fault: str | None
    """Why the last reload changed nothing."""
    servers: list[ServerStatus]


class Control:
    """What the admin side may ask of the daemon; see `gateway.Gateway`.

    A base class for tests and for those who come before the gateway does.
    """

    def status(self) -> BridgeStatus:
        raise NotImplementedError

    def sessions(self) -> list[SessionStatus]:
        raise NotImplementedError

    def children(self) -> list[ChildStatus]:
        raise NotImplementedError

    async def reload(self) -> list[str]:
        """Read the configuration again; one line for each thing done. Raises UsageFault: nothing changed."""
        raise NotImplementedError

    def drain(self, server: str | None = None) -> None:
        """Begin to stop the process, or let one server's sessions end and take no new ones. KeyError."""
        raise NotImplementedError

    def log_level(self, level: str | None) -> str:
        """Set it, if one is given; the level in force. Raises ValueError."""
        raise NotImplementedError
