"""How far the translation between eras goes, and for how long: one frozen tree of settings.

Every duration is in seconds. Nothing here decides anything; the layers of `bridge.era` do.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Declare(StrEnum):
    """Which of its client's capabilities an upstream session declares to a legacy server."""

    EXACT = "exact"
    """One upstream session for each set that clients declare."""
    SUPERSET = "superset"
    """One for all, which declares everything; what a client lacks is refused when it is asked for."""
    NONE = "none"
    """One for all, which declares nothing: no sampling, elicitation or roots."""


class Tasks(StrEnum):
    """What modern clients see of a legacy server's tasks (2025-11-25)."""

    HIDE = "hide"
    """Nothing: the bridge waits for a task that a tool insists on."""
    MAP = "map"
    """The tasks extension, for clients that declare it."""


class Attribution(StrEnum):
    """Whose a question is that names no call, where several calls of one subject run."""

    NEWEST = "newest"
    EXCLUSIVE = "exclusive"
    """Never in doubt: calls that may be asked about run one at a time on their upstream session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    declare: Declare = Declare.EXACT
    tasks: Tasks = Tasks.HIDE
    drive: bool = True
    """Legacy clients: wait for the tasks of a modern server and give their results."""
    attribution: Attribution = Attribution.NEWEST
    gate: bool = True
    """Refuse what the server did not advertise, rather than ask it."""
    forward_identity: bool = False
    """Be the client to a legacy server, by its name, instead of the bridge."""
    roots: tuple[str, ...] = ()
    """Roots (URIs) to tell a legacy server that asks outside of any call."""
    coalesce: float = 0.03
    """For more questions to come, which then go out together."""
    suspended: float = 600.0
    """For a client to come back with its answers."""
    call: float = 3600.0
    """For a whole call, over all its rounds."""
    park: float = 30.0
    """For a question outside of any call to wait for one."""
    park_blocking: float = 2.0
    """The same while requests run that the question may block."""
    suspended_per_subject: int = 256
    suspended_in_all: int = 1024
    level: float = 2.0
    """For a legacy server to take a log level."""
    subscribe: float = 5.0
    """For a server to grant a subscription."""
    unsubscribe: float = 5.0
    """Without anybody's interest until a legacy server is unsubscribed."""
    logs: int = 100
    """Log messages kept for a suspended call."""
    backlog: int = 1024
    """Notifications that a subscription holds for a client that does not read."""
    listens: int = 64
    """Subscription streams of one subject."""
    rounds: int = 10
    """Times that a legacy client is asked within one call."""
    empty_rounds: int = 30
    """Rounds of a modern server that ask nothing."""
    question: float = 600.0
    """For a legacy client to answer."""
    parallel: bool = True
    """Ask a legacy client everything at once, rather than one by one."""
    task_poll: float = 1.0
    """Between two looks at a task whose server does not say."""
