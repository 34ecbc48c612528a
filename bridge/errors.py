"""Every exception of the package.

    BridgeError
    ├── UsageFault           the command line or the configuration is wrong      exit 2
    ├── ListenFault          the address cannot be listened on                   exit 3
    └── ServerFault          the server behind us failed
        ├── CommandNotFound  its program does not exist or cannot be executed    exit 4
        ├── ServerStopped    it exited, or closed its stdout
        ├── StartTimeout     it did not answer its handshake in time
        ├── CircuitOpen      it failed too often; not tried before `retry_after`
        │   └── PoolFull     no more of its processes or sessions may be opened now
        ├── UpstreamVersion  it speaks no revision that the bridge knows
        └── EraChanged       it turned out to be of the other era

Refusals that are ordinary (a malformed message, an unknown session, a wrong header) are
values, not exceptions: see `core.message.Malformed` and `core.headers.Refusal`.
"""

from __future__ import annotations


class BridgeError(Exception):
    """Base of all; `str()` is one line a person can act on, free of secrets."""

    exit_status = 1


class UsageFault(BridgeError):
    exit_status = 2


class ListenFault(BridgeError):
    exit_status = 3


class ServerFault(BridgeError):
    """`reason` is the machine's word for it, put into `error.data.reason`."""

    reason = "upstream_lost"


class CommandNotFound(ServerFault):
    exit_status = 4
    reason = "upstream_not_found"


class ServerStopped(ServerFault):
    """`stderr` holds the last lines of the child's stderr, oldest first."""

    def __init__(self, message: str, *, exit_code: int | None = None, stderr: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.stderr = stderr


class StartTimeout(ServerFault):
    reason = "upstream_timeout"


class CircuitOpen(ServerFault):
    """`retry_after` is in seconds."""

    reason = "upstream_down"

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class PoolFull(CircuitOpen):
    reason = "upstreams"


class UpstreamVersion(ServerFault):
    reason = "upstream_version"


class EraChanged(ServerFault):
    reason = "upstream_era"
