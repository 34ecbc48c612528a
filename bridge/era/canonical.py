"""JSON text in one form, so that two spellings of the same value are equal.

Members are sorted by key, strings written one way; numbers stay as they are, since `1` and `1.0`
are different to some servers. Used to hold a retry against the request that it goes on with.
"""

from __future__ import annotations

import json


def _number(text: str) -> str:
    """Told from a string, which cannot hold a bare NUL."""
    return f"\0{text}"


_read = json.JSONDecoder(parse_int=_number, parse_float=_number, parse_constant=_number).decode


def canonical(text: bytes) -> bytes:
    """Equal for texts of equal value; `text` must be valid JSON, of bounded depth."""
    value: object = _read(text.decode())
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
