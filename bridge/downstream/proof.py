"""How the replicas of a bridge prove to each other that they hold a common key.

Decides what a proof covers, how long and how often it is good, and how its answer is told from
anybody else's. Knows neither where the replicas are nor what they pass to each other. Stands in
for the caller's own credentials, which no specification lets a proxy pass on: the replica that
the caller spoke to says whom it found.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from typing import Final

import msgspec
from multidict import istr

from bridge.era.state import SKEW
from bridge.seal import derived

log = logging.getLogger("bridge.peers")

RELAYED: Final = istr("Mcp-Bridge-Relayed")
"""The header of a request that another replica passes on; nobody passes it on once more."""
ANSWERED: Final = istr("Mcp-Bridge-Answered")
"""The header by which its answer is known to be the replica's."""

MOST_SEEN: Final = 100_000
"""Proofs remembered, each for two minutes; above it none is taken, rather than one twice."""
_KEPT: Final = 2 * SKEW
"""Seconds after which a proof is too old whatever the clocks say, and need not be remembered."""
_LONGEST: Final = 8192
_ANSWER: Final = b"answer\0"
"""In no request's text, so that neither tag can be taken for the other."""


class Claims(msgspec.Struct, frozen=True, array_like=True, tag="relay"):
    """What the sender vouches for. `issued` is in seconds since 1970, `body` a SHA-256 in hex."""

    sender: str
    target: str
    method: str
    subject: str
    issued: float
    body: str
    nonce: str


_read = msgspec.json.Decoder(Claims).decode
_write = msgspec.json.Encoder().encode


class Proof:
    """The proof of one request, as its sender made it or as its receiver found it right."""

    __slots__ = ("_key", "_tag", "claims", "header")

    def __init__(self, key: bytes, text: str, claims: Claims) -> None:
        self.claims = claims
        self._key = key
        self._tag = _tag(key, text)
        self.header = f"{text}.{_spelled(self._tag)}"

    def covers(self, body: bytes) -> bool:
        return self.claims.body == sha256(body).hexdigest()

    def answer(self, status: int) -> str:
        """The value of `ANSWERED` for an answer with this status."""
        return _spelled(hmac.digest(self._key, b"%b%b\0%d" % (_ANSWER, self._tag, status), "sha256"))

    def is_answer(self, status: int, shown: str | None) -> bool:
        return shown is not None and hmac.compare_digest(_bytes(shown), self.answer(status).encode())


class Proofs:
    """Makes and checks those of one replica. Without a ring none is ever right, nor can be made.

    `wall` gives the seconds since 1970, `nonce` what never comes twice.
    """

    def __init__(
        self,
        ring: tuple[bytes, ...],
        replica: str,
        *,
        wall: Callable[[], float] = time.time,
        nonce: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._keys = tuple(derived(secret, b"relay") for secret in ring)
        self._replica = replica
        self._wall, self._nonce = wall, nonce
        self._seen: dict[str, float] = {}
        """Until when each proof that was taken is remembered; in the order of their coming."""
        self.counts: Counter[str] = Counter()
        """How often a proof was refused, by cause."""

    def make(self, target: str, method: str, subject: str, body: bytes) -> Proof:
        """A proof for one request to `target`, made for the caller `subject`."""
        claims = Claims(
            self._replica, target, method, subject, self._wall(), sha256(body).hexdigest(), self._nonce()
        )
        return Proof(self._keys[0], _spelled(_write(claims)), claims)

    def check(self, header: str, method: str) -> Proof | None:
        """The proof in a header, taken once; None if it is wrong or comes again. The body is not held."""
        proof = self._found(header)
        flaw = "key" if proof is None else self._flaw(proof, method)
        if flaw is not None:
            self.counts[flaw] += 1
            log.info("a request that another replica seems to pass on was refused: %s", flaw)
            return None
        return proof

    def _found(self, header: str) -> Proof | None:
        text, _, shown = header.partition(".")
        if len(header) > _LONGEST:
            return None
        for key in self._keys:
            if hmac.compare_digest(_bytes(shown), _spelled(_tag(key, text)).encode()):
                claims = _claims(text)
                return None if claims is None else Proof(key, text, claims)
        return None

    def _flaw(self, proof: Proof, method: str) -> str | None:
        """What is wrong with a proof under one of our keys; it counts as seen if nothing is."""
        now = self._wall()
        while self._seen and next(iter(self._seen.values())) <= now:
            del self._seen[next(iter(self._seen))]
        claims = proof.claims
        checks = {
            "target": claims.target == self._replica,
            "method": claims.method == method,
            "clock": abs(now - claims.issued) <= SKEW,
            "replay": proof.header not in self._seen,
            "full": len(self._seen) < MOST_SEEN,
        }
        flaw = next((what for what, holds in checks.items() if not holds), None)
        if flaw is None:
            self._seen[proof.header] = now + _KEPT
        return flaw


def _tag(key: bytes, text: str) -> bytes:
    return hmac.digest(key, _bytes(text), "sha256")


def _claims(text: str) -> Claims | None:
    try:
        return _read(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return None


def _spelled(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
