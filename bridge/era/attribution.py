"""Whose a server's question or log message is that names nobody.

Nothing on stdio, and little on HTTP, says which call a legacy server asks for. Guesses within one
subject, where a wrong guess shows a person's question in another of that person's calls, and never
across subjects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto

from bridge.era.calls import Call


class Nobody(Enum):
    THERE = auto()
    """No call runs that it could belong to."""
    CERTAIN = auto()
    """Requests of several subjects run."""


def attributed(working: Sequence[Call], meant: Callable[[Call], bool]) -> Call | Nobody:
    """The call, of all that the server works at, that is most likely `meant`.

    What the others do counts too: a server may well ask, or log, for the sake of one that cannot
    be asked, or did not ask for logs.
    """
    if len({call.subject for call in working}) > 1:
        return Nobody.CERTAIN
    likely = [call for call in working if meant(call)]
    if not likely:
        return Nobody.THERE
    awake = [call for call in likely if not call.away]
    return max(awake or likely, key=lambda call: call.serial)
