"""What a client carries for the bridge and may neither read nor change: sealed.

Decides how: AES-256-GCM under keys of which the first seals and all open, so that a ring of keys
can be changed one bridge at a time. Refuses to know what is sealed, and for how long it is good.
The library for it is loaded when the first token is made, since most bridges never make one.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.errors import UsageFault

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PREFIX: Final = "mb1."
SHORTEST: Final = 32
"""Bytes of a secret."""
LONGEST_TOKEN: Final = 4096
"""Characters that are looked at; the bridge's own have less than a quarter of that."""
_MOST: Final = 64 * 1024
_NONCE: Final = 12
_KID: Final = 4


def read_ring(keys: str | Path | None) -> tuple[bytes, ...]:
    """The secrets of a key ring: Base64, one a line; a Path stands for the file that holds them.

    None makes a random one. Raises UsageFault, which never quotes a secret.
    """
    if keys is None:
        return (secrets.token_bytes(SHORTEST),)
    option = "--state-key-file" if isinstance(keys, Path) else "--state-key-env"
    lines = [line.strip() for line in _text(keys).splitlines()]
    ring = [_secret(line, number, option) for number, line in enumerate(lines, 1) if _holds(line)]
    if not ring:
        raise UsageFault(f"{option}: it holds no key; make one with: openssl rand -base64 32")
    return tuple(ring)


def _holds(line: str) -> bool:
    return bool(line) and not line.startswith("#")


def _text(keys: str | Path) -> str:
    if isinstance(keys, str):
        return keys
    try:
        with keys.open(encoding="ascii") as file:
            return file.read(_MOST)
    except (OSError, UnicodeDecodeError) as fault:
        raise UsageFault(f"--state-key-file {keys}: it cannot be read: {fault}") from fault


def _secret(line: str, number: int, option: str) -> bytes:
    try:
        secret = base64.b64decode(line, validate=True)
    except binascii.Error:
        secret = b""
    if len(secret) < SHORTEST:
        raise UsageFault(f"{option}: line {number} is no Base64 of {SHORTEST} bytes or more")
    return secret


class Seal:
    """Seals for one purpose and one listener; a token of another is not opened."""

    def __init__(self, ring: tuple[bytes, ...], listener: str, purpose: str = "state") -> None:
        self._ring = ring
        self._listener = listener.encode()
        self._purpose = purpose.encode()
        self._ciphers: dict[bytes, AESGCM] = {}

    def seal(self, claims: bytes) -> str:
        """A token of these claims: letters, digits, `-`, `_` and `.`."""
        kid = next(iter(self._loaded()))
        nonce = secrets.token_bytes(_NONCE)
        sealed = self._ciphers[kid].encrypt(nonce, claims, self._bound(kid))
        return PREFIX + base64.urlsafe_b64encode(kid + nonce + sealed).decode().rstrip("=")

    def open(self, token: str) -> bytes | None:
        """The claims; None for whatever was not sealed so."""
        if not token.startswith(PREFIX) or len(token) > LONGEST_TOKEN:
            return None
        text = token.removeprefix(PREFIX)
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except ValueError:
            return None
        if PREFIX + base64.urlsafe_b64encode(sealed).decode().rstrip("=") != token:
            return None  # another spelling of a token is another token
        kid, nonce, rest = sealed[:_KID], sealed[_KID : _KID + _NONCE], sealed[_KID + _NONCE :]
        cipher = self._loaded().get(kid)
        return None if cipher is None else self._opened(cipher, nonce, rest, kid)

    def _opened(self, cipher: AESGCM, nonce: bytes, sealed: bytes, kid: bytes) -> bytes | None:
        from cryptography.exceptions import InvalidTag

        try:
            return cipher.decrypt(nonce, sealed, self._bound(kid))
        except (InvalidTag, ValueError):
            return None

    def _bound(self, kid: bytes) -> bytes:
        return b"\0".join((PREFIX.encode(), kid, self._listener))

    def _loaded(self) -> dict[bytes, AESGCM]:
        """The ciphers by the name of their key, the one that seals first."""
        if not self._ciphers:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            for secret in self._ring:
                key = derived(secret, self._purpose)
                self._ciphers.setdefault(derived(key, b"name")[:_KID], AESGCM(key))
        return self._ciphers


def derived(secret: bytes, purpose: bytes) -> bytes:
    """A key of 32 bytes for one purpose (HKDF with SHA-256, RFC 5869)."""
    extracted = hmac.digest(b"mcp-bridge", secret, "sha256")
    return hmac.digest(extracted, purpose + b"\x01", "sha256")
