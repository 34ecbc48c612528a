"""The closed list of protocol revisions: one row each, and the few features that differ on the wire.

Decides which revision strings exist, which era they belong to, and which one a legacy
session ends up with. Refuses to know any other string: an unknown one is never ordered
against the rest, however much it looks like a date.

Answers basic/lifecycle: Version Negotiation (legacy) and basic/versioning (modern).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final


class Era(Enum):
    LEGACY = "legacy"
    """Opened by `initialize`, kept in a session."""
    MODERN = "modern"
    """Stateless: every request carries its own envelope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    name: str
    era: Era = Era.LEGACY
    batches: bool = False
    """Arrays of messages may be sent; every other revision refuses them."""
    version_header: bool = True
    """Requests after the handshake carry `MCP-Protocol-Version`."""
    priming: bool = False
    """An SSE stream opens with an event that has an id and empty data."""


_ROWS: Final = (
    Revision(name="2024-11-05", version_header=False),
    Revision(name="2025-03-26", version_header=False, batches=True),
    Revision(name="2025-06-18"),
    Revision(name="2025-11-25", priming=True),
    Revision(name="2026-07-28", era=Era.MODERN),
)

REVISIONS: Final[Mapping[str, Revision]] = MappingProxyType({row.name: row for row in _ROWS})
"""Oldest first."""
LEGACY_VERSIONS: Final = tuple(row.name for row in _ROWS if row.era is Era.LEGACY)
MODERN_VERSIONS: Final = tuple(row.name for row in _ROWS if row.era is Era.MODERN)
LATEST_LEGACY: Final = LEGACY_VERSIONS[-1]

REMOVED: Final = frozenset(
    {
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "tasks/result",
        "tasks/list",
    }
)
"""Legacy methods that no modern revision has (2026-07-28 changelog)."""

_AGE: Final = {row.name: place for place, row in enumerate(_ROWS)}


def revision(name: str) -> Revision | None:
    return REVISIONS.get(name)


def negotiated(offered: str, ours: str) -> str:
    """The revision to answer `offered` with, where a server already settled on `ours`.

    That is the offered one if it is known and not newer than ours, and ours otherwise;
    also when ours is a string that only the server knows.
    """
    if offered in _AGE and ours in _AGE and _AGE[offered] <= _AGE[ours]:
        return offered
    return ours
