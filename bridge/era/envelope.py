"""The envelope of a modern request: taken off for a legacy server, put on for a modern one.

Decides which members of `params` are the protocol's own in one era only; everything else passes
as the bytes it came in. Answers "`_meta`" of 2026-07-28 and sections 3.3 and 4.2 of the design.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from bridge.core.splice import Members, joined, members, quote

PREFIX: Final = "io.modelcontextprotocol/"
VERSION: Final = f"{PREFIX}protocolVersion"
CLIENT: Final = f"{PREFIX}clientInfo"
CAPABILITIES: Final = f"{PREFIX}clientCapabilities"
LEVEL: Final = f"{PREFIX}logLevel"
SERVER_INFO: Final = f"{PREFIX}serverInfo"
SUBSCRIPTION: Final = f"{PREFIX}subscriptionId"

ENVELOPE: Final = frozenset({VERSION, CLIENT, CAPABILITIES, LEVEL})
ROUNDS: Final = ("task", "inputResponses", "requestState")
"""Members of `params` that belong to one era."""

_read_text = msgspec.json.Decoder(str).decode


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """What a modern request says of itself; values as JSON text."""

    capabilities: bytes = b"{}"
    client: bytes = b""
    level: str | None = None

    @classmethod
    def read(cls, params: Raw | bytes | UnsetType) -> Envelope:
        """Of `params`; what is not there, or cannot be read, was not said."""
        meta = _meta(params)
        level = meta.get(LEVEL)
        return cls(
            capabilities=bytes(meta.get(CAPABILITIES, b"{}")),
            client=bytes(meta.get(CLIENT, b"")),
            level=None if level is None else _text(level),
        )


def without_envelope(params: Raw | bytes, *, drop: tuple[str, ...] = ROUNDS) -> bytes | None:
    """`params` for a legacy server, also without these members; None if nothing is left but an empty `_meta`.

    The progress token goes too: each hop has its own.
    """
    parts = _object(params)
    had_meta = "_meta" in parts
    meta = {key: value for key, value in _meta(params).items() if key not in ENVELOPE}
    meta.pop("progressToken", None)
    for key in drop:
        parts.pop(key, None)
    if had_meta and meta:
        parts["_meta"] = joined(meta.items())
    else:
        parts.pop("_meta", None)
    return joined(parts.items()) if parts or not had_meta else None


def stamped(
    params: Raw | bytes | UnsetType, *, version: str, client: bytes, capabilities: bytes, level: str | None
) -> bytes:
    """`params` with the envelope; what a client said in its place is overwritten."""
    parts = {} if params is UNSET else _object(params)
    meta = {key: value for key, value in _meta(params).items() if key not in ENVELOPE}
    meta[VERSION], meta[CLIENT], meta[CAPABILITIES] = quote(version), client, capabilities
    if level is not None:
        meta[LEVEL] = quote(level)
    parts["_meta"] = joined(meta.items())
    return joined(parts.items())


def _meta(params: Raw | bytes | UnsetType) -> Members:
    return {} if params is UNSET else _object(_object(params).get("_meta", b"{}"))


def _object(text: Raw | bytes) -> Members:
    try:
        return members(text)
    except ValueError:
        return {}


def _text(value: bytes | Raw) -> str:
    try:
        return _read_text(value)
    except msgspec.DecodeError:
        return bytes(value).decode(errors="replace")
