"""The ids under which modern clients know the tasks of a legacy server.

Decides whose a task is and where it runs (the extension `io.modelcontextprotocol/tasks`, "Security
Considerations"): the id that a client gets is sealed, names the upstream session that made the task,
and works for whom it was given to alone. Knows neither what a task does nor whether it is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic

import msgspec
from msgspec import UNSET

from bridge.core.message import INVALID_PARAMS, Request, Response, local_error
from bridge.core.splice import members
from bridge.era.state import principal
from bridge.era.suspend import Elsewhere, H, Sealing

METHODS: Final = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})
"""What is asked about one task."""


class _Claims(msgspec.Struct, frozen=True, array_like=True, tag="task"):
    upstream: str
    replica: str
    session: str
    task: str
    principal: str | None


_read = msgspec.json.Decoder(_Claims).decode
_write = msgspec.json.Encoder().encode


class TaskIds(Generic[H]):
    """Of all tasks of one upstream, which may have many upstream sessions.

    `mint` gives an id nobody can guess. `find` names the home of the session that made a task.

        session = ids.enter(home)
        shown = ids.shown(session, task_id, subject)
        ids.found(session, shown, subject) == task_id
        ids.leave(session)                            # it is lost
    """

    def __init__(self, seal: Sealing, *, upstream: str, replica: str, mint: Callable[[], str]) -> None:
        self._seal, self._upstream, self._replica, self._mint = seal, upstream, replica, mint
        self._homes: dict[str, H] = {}

    def enter(self, home: H) -> str:
        session = self._mint()
        self._homes[session] = home
        return session

    def leave(self, session: str) -> None:
        self._homes.pop(session, None)

    def shown(self, session: str, task: str, subject: str) -> str:
        owner = principal(subject, session)
        return self._seal.seal(_write(_Claims(self._upstream, self._replica, session, task, owner)))

    def found(self, session: str, shown: str, subject: str) -> str | None:
        """The server's own id; None if this is not a task of that session and subject."""
        claims = self._opened(shown, subject)
        return claims.task if claims is not None and claims.session == session else None

    def find(self, asked: Request, subject: str) -> H | Elsewhere | Response | None:
        """The home of the task that a request is about.

        None if it is about none, a `Response` if it is to be refused.
        """
        if asked.method not in METHODS:
            return None
        shown = task_named(asked)
        claims = None if shown is None else self._opened(shown, subject)
        if claims is None:
            return unknown_task(asked)
        if claims.replica != self._replica:
            return Elsewhere(claims.replica)
        return self._homes.get(claims.session) or unknown_task(asked)

    def _opened(self, shown: str, subject: str) -> _Claims | None:
        text = self._seal.open(shown)
        try:
            claims = None if text is None else _read(text)
        except msgspec.DecodeError:
            return None
        if claims is None or claims.upstream != self._upstream:
            return None
        return claims if claims.principal == principal(subject, claims.session) else None


def task_named(asked: Request) -> str | None:
    """The id of the task that a request is about."""
    try:
        parts = {} if asked.params is UNSET else members(asked.params)
        return msgspec.json.decode(parts.get("taskId", b""), type=str)
    except (ValueError, msgspec.DecodeError):
        return None


def unknown_task(asked: Request) -> Response:
    """The same for what never was a task, is none any more, or is somebody else's."""
    return local_error(asked.id, "Task not found", "unknown_task", INVALID_PARAMS)
