"""Progress of a legacy server under the token of whichever request its call is answered by now."""

from __future__ import annotations

from msgspec import UNSET

from bridge.core.message import Id, Notification
from bridge.core.splice import members, quote, replaced


def amount(note: Notification) -> float | None:
    """How far it says to be; None if it says nothing that could be compared."""
    try:
        return None if note.params is UNSET else float(bytes(members(note.params).get("progress", b"")))
    except ValueError:
        return None


def under(note: Notification, token: Id) -> Notification:
    assert note.params is not UNSET
    return note.with_params(replaced(note.params, ("progressToken",), quote(token)))
