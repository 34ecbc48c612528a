"""JSON text in one form, so that two spellings of the same value are equal.

Members are sorted by key, strings written one way; numbers stay as they are, since `1` and `1.0`
are different to some servers. Used to hold a retry against the request that it goes on with.
"""

from __future__ import annotations

import json
from typing import Final

import msgspec

from bridge.core.splice import compact


def _number(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


_read: Final = json.JSONDecoder(parse_int=_number, parse_float=_number).decode
_write: Final = msgspec.json.Encoder(order="sorted").encode


def canonical(text: bytes) -> bytes:
    """Equal for texts of equal value; `text` must be valid JSON, of bounded depth."""
    value: object = _read(text.decode())
    try:
        return _write(value)
    except UnicodeEncodeError:
        # Half a surrogate pair has no UTF-8. Whoever says it again will most likely say it as before.
        return compact(text)
