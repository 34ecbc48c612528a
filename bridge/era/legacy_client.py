"""What a legacy client said of itself in `initialize`, and says with every request to a modern server.

Decides which revision its session has and what its requests carry in `_meta` (2026-07-28, "Base
Protocol", "`_meta`"). Knows no server.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from bridge.core.splice import members, replaced
from bridge.era.capabilities import NOTHING, TASKS, Capabilities, legacy_offer
from bridge.era.envelope import stamped
from bridge.era.revisions import LATEST_LEGACY, LEGACY_VERSIONS, MODERN_VERSIONS

MODERN: Final = MODERN_VERSIONS[-1]
_NAMELESS: Final = b'{"name":"unknown","version":"0"}'


class LegacyClient:
    """`offered` is the revision it asked for, `revision` the one that it gets."""

    def __init__(self, offered: str, capabilities: bytes, info: bytes) -> None:
        self.offered = offered
        self.revision = offered if offered in LEGACY_VERSIONS else LATEST_LEGACY
        self.level: str | None = None
        """The least severe log messages that it wants; none, until it says so."""
        self._offer = legacy_offer(capabilities, self.revision)
        self._declared = Capabilities.read(self._offer)
        self._info = info

    @classmethod
    def read(cls, params: Raw | UnsetType) -> LegacyClient:
        """Raises ValueError if these are no params of `initialize`."""
        parts = members(b"{}" if params is UNSET else params)
        try:
            offered = msgspec.json.decode(parts.get("protocolVersion", b"null"), type=str)
        except msgspec.DecodeError as fault:
            raise ValueError("protocolVersion must be a string") from fault
        capabilities, info = (
            bytes(parts.get("capabilities", b"{}")),
            bytes(parts.get("clientInfo", _NAMELESS)),
        )
        members(capabilities)
        return cls(offered, capabilities, info)

    def declares(self, *, askable: bool) -> Capabilities:
        """What the server may ask for; nothing while the client cannot be reached."""
        return self._declared if askable else NOTHING

    def enveloped(
        self,
        params: bytes | None = None,
        *,
        askable: bool = True,
        tasks: bool = False,
        level: str | None = None,
    ) -> bytes:
        """These params with the envelope of a request; `tasks` if it may become one.

        Raises ValueError if they are no object.
        """
        if params is not None and not params.lstrip().startswith(b"{"):
            raise ValueError("params must be an object")
        capabilities = self._offer if askable else b"{}"
        if tasks:
            capabilities = replaced(capabilities, ("extensions", TASKS), b"{}")
        return stamped(
            UNSET if params is None else params,
            version=MODERN,
            client=self._info,
            capabilities=capabilities,
            level=level,
        )
