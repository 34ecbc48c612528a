"""What a `requestState` of the bridge claims, and whether a request may come back with it.

Answers the rules for `requestState` of 2026-07-28 "Multi Round-Trip Requests": bound to whom
it was given, to the request that it answers, and to a short time. Knows neither how the claims
are sealed nor which calls there are.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import UNSET

from bridge.core.message import Request
from bridge.core.splice import members
from bridge.era.canonical import canonical

VERSION: Final = 1
SKEW: Final = 60.0
"""How far ahead the clock of another replica may be, in seconds."""


class Kind(StrEnum):
    SUSPEND = "suspend"
    """The server's own request is open, and waits for the answers."""
    URL = "url"
    """The server's request is over; it is sent again when the user has visited what it asked for."""


class Claims(msgspec.Struct, frozen=True, gc=False):
    """Times are seconds since 1970."""

    version: int = msgspec.field(name="v")
    kind: Kind = msgspec.field(name="k")
    upstream: str = msgspec.field(name="u")
    replica: str = msgspec.field(name="r")
    call: str = msgspec.field(name="c")
    round: int = msgspec.field(name="n")
    request: str = msgspec.field(name="a")
    """A digest of what the request asks for; names and URIs can be longer than a state may be."""
    issued: float = msgspec.field(name="iat")
    expires: float = msgspec.field(name="exp")
    principal: str | None = msgspec.field(name="p", default=None)


_read = msgspec.json.Decoder(Claims).decode
_write = msgspec.json.Encoder().encode


def written(claims: Claims) -> bytes:
    return _write(claims)


def read(text: bytes) -> Claims | None:
    try:
        return _read(text)
    except msgspec.DecodeError:
        return None


def digest(asked: Request) -> str:
    """Equal for requests that ask for the same: method, name or URI, and arguments by value."""
    parts = {} if asked.params is UNSET else members(asked.params)
    target = "uri" if asked.method == "resources/read" else "name"
    said = (canonical(bytes(parts[key])) if key in parts else b"" for key in (target, "arguments"))
    return sha256(b"\0".join((asked.method.encode(), *said))).hexdigest()


def principal(subject: str, call: str) -> str | None:
    """What a state says of whom it was given to; None for nobody in particular."""
    return sha256(f"{call}\0{subject}".encode()).hexdigest() if subject else None


def flaw(claims: Claims, asked: Request, subject: str, upstream: str, now: float) -> str | None:
    """Why this request may not come back with these claims, for the log; None if it may."""
    checks = {
        "version": claims.version == VERSION,
        "upstream": claims.upstream == upstream,
        "principal": claims.principal == principal(subject, claims.call),
        "request": claims.request == digest(asked),
        "issued": claims.issued <= now + SKEW,
        "expired": now < claims.expires,
    }
    return next((what for what, holds in checks.items() if not holds), None)
