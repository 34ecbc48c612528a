"""The whole configuration as one frozen tree; every default lives here and nowhere else.

Nothing here reads a file, an environment variable or a command line: `cli.py` does, and
`app.py` turns the tree into running objects. Durations are seconds, sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from bridge.era.revisions import Era
from bridge.era.terms import Terms

KIB = 1024
MIB = 1024 * KIB


class ProcessModel(StrEnum):
    """How many children serve the legacy sessions."""

    SESSION = "session"
    SHARED = "shared"


class Isolation(StrEnum):
    """Which modern clients share an upstream session of a legacy server."""

    PRINCIPAL = "principal"
    """Those that are known to be the same: one bearer, or everybody on this machine."""
    SHARED = "shared"
    """All of them."""
    REQUEST = "request"
    """None: each request opens one and closes it."""


class WhenFull(StrEnum):
    """What a modern request meets that needs one more upstream session than there may be."""

    WAIT = "wait"
    REFUSE = "refuse"


class Downstream(StrEnum):
    """What clients speak to the bridge: HTTP on a listener, or the bridge's own stdin and stdout."""

    HTTP = "http"
    STDIO = "stdio"


class LogFormat(StrEnum):
    PLAIN = "plain"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A server to start: argument vector, never a shell line.

    `env` holds the variables set for the child, already expanded; `inherit_env` names, as
    glob patterns, which of the bridge's own variables it also gets.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    inherit_env: tuple[str, ...] = ()
    cwd: Path | None = None


# What a child needs to find programs, its home, its language and its certificates;
# nothing that is likely to be a secret.
SAFE_ENV = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TEMP", "TMP", "TZ",
    "LANG", "LANGUAGE", "LC_*", "XDG_*", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
    "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA",
    "PROGRAMFILES", "USERPROFILE", "HOMEDRIVE", "HOMEPATH", "NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE",
)  # fmt: skip


class Transport(StrEnum):
    """How a remote server is spoken to; AUTO finds out."""

    AUTO = "auto"
    HTTP = "http"
    SSE = "sse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A server at a URL.

    `headers` are sent with every request; a Path stands for the file that holds the value, read
    again when the server refuses the old one. `socket` is the Unix socket to connect to instead
    of the URL's host. `rewrite_endpoint` takes only path and query from an HTTP+SSE server's
    `endpoint` event that names another origin, which is refused otherwise.
    """

    url: str
    transport: Transport = Transport.AUTO
    headers: tuple[tuple[str, str | Path], ...] = field(default=(), repr=False)
    socket: Path | None = None
    ca_file: Path | None = None
    client_cert: Path | None = None
    verify: bool = True
    rewrite_endpoint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    cert: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where the HTTP side listens: `uds` if given, else `host` and `port` (0 picks a free one)."""

    host: str = "127.0.0.1"
    port: int = 8080
    path: str = "/mcp"
    uds: Path | None = None
    uds_mode: int = 0o600
    legacy_sse: bool = False
    """Also serve HTTP+SSE (2024-11-05) at /sse and /messages, beside `path`."""
    base_url: str | None = None
    """Where old clients reach us, for the endpoint event; without it the endpoint is relative."""
    tls: Tls | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may talk to the bridge. `token` is the static bearer, or None for no authorization."""

    token: str | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds; each is held in one place for every side."""

    body: int = 4 * MIB
    line: int = 64 * MIB
    depth: int = 128
    sessions: int = 1000
    in_flight: int = 1000
    """Requests in flight per party."""
    upstreams: int = 64
    """Sessions with a legacy server that are open for modern clients."""
    upstreams_per_subject: int = 4
    """The same of one subject, besides the one that declares nothing."""
    unsent: int = 4 * MIB
    """Bytes a stream may hold for a client that does not read, before back-pressure."""
    stored_events: int = 1000
    stored_bytes: int = 8 * MIB
    stored_seconds: float = 600.0
    backlog: int = 64
    """Messages that wait for a stream to carry them, per session."""
    stderr_tail: int = 20
    """Lines of a child's stderr quoted when it dies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds. None means no limit."""

    start: float = 60.0
    """For a child to answer its handshake."""
    connect: float = 10.0
    """For a connection to a remote server to stand."""
    endpoint: float = 10.0
    """For an HTTP+SSE server to name its endpoint."""
    farewell: float = 5.0
    """For a remote server to take the end of a session."""
    request: float | None = None
    session_idle: float = 1800.0
    linger: float = 60.0
    """For a shared child to wait for another session after its last one."""
    commit: float = 5.0
    """Until an unanswered legacy POST becomes an SSE stream."""
    commit_modern: float = 10.0
    """The same for modern ones, whose error statuses are lost by it."""
    keepalive: float = 15.0
    probe: float = 10.0
    """For a server to answer the question of its era, once it showed a sign of life."""
    sign_of_life: float = 30.0
    """For a server to show one, when it is asked for its era."""
    upstream_idle: float = 600.0
    """For a legacy server's session without use by modern clients."""
    queue: float = 30.0
    """For a modern request to wait for room among the upstream sessions."""
    relisten: float = 60.0
    """For a lost legacy server to come back, while subscriptions wait for it."""
    question: float = 10.0
    """For a server's request to wait for a stream that can carry it."""
    stalled: float = 30.0
    """For a client that reads nothing of a full stream."""
    body: float = 30.0
    """For a request body to arrive, between two chunks."""
    stdin_closed: float = 5.0
    terminated: float = 5.0
    """The shutdown ladder: after closing stdin, after SIGTERM."""
    drain: float = 10.0
    """For calls in flight when the bridge is told to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """What makes several bridges one: suspended calls find the one that holds them.

    `keys` is the file of the key ring that seals what clients carry, or None for a random key;
    `name` is this replica's, and `peers` are the others' and where they listen.
    """

    name: str = ""
    keys: str | Path | None = field(default=None, repr=False)
    peers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    level: str = "info"
    format: LogFormat = LogFormat.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """`upstream` is the server; `listen` matters only where `downstream` is HTTP."""

    upstream: Command | Remote
    downstream: Downstream = Downstream.HTTP
    process: ProcessModel = ProcessModel.SESSION
    warm: int = 1
    era: Era | None = None
    """The era to speak to the server; None finds out, and prefers that of each client."""
    isolation: Isolation = Isolation.PRINCIPAL
    when_full: WhenFull = WhenFull.WAIT
    terms: Terms = field(default_factory=Terms)
    replicas: Replicas = Replicas()
    listen: Listen = Listen()
    access: Access = Access()
    limits: Limits = Limits()
    timing: Timing = Timing()
    log: Log = Log()
