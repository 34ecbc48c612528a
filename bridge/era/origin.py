"""Whose an error is: those of the bridge's own say so, all others are the peer's."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from bridge.core.message import Response


class _Data(msgspec.Struct, frozen=True):
    origin: str = ""


class _Error(msgspec.Struct):
    data: _Data = _Data()


def is_own(response: Response) -> bool:
    """Whether the bridge made this error, and not the server."""
    if response.error is UNSET:
        return False
    try:
        return msgspec.json.decode(response.error, type=_Error).data.origin == "bridge"
    except msgspec.DecodeError:
        return False
