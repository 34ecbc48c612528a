"""What the bridge's own `initialize` settled with a legacy server."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, UnsetType

from bridge.core.splice import Members, members
from bridge.era.revisions import LEGACY_VERSIONS


class _Result(msgspec.Struct):
    version: str = msgspec.field(name="protocolVersion")
    capabilities: Raw = Raw(b"{}")
    server: Raw = msgspec.field(name="serverInfo", default=Raw(b"{}"))
    instructions: Raw | UnsetType = UNSET


class Opened:
    """Of one upstream session. `server` and `instructions` are JSON text, `capabilities` its members."""

    def __init__(
        self, revision: str, capabilities: Members, server: bytes, instructions: bytes | None
    ) -> None:
        self.revision = revision
        self.capabilities = capabilities
        self.server = server
        self.instructions = instructions
        self.completions_refused = False
        """Whether it turned out that it completes nothing, though its revision cannot say so."""

    @classmethod
    def read(cls, result: Raw | bytes) -> Opened:
        """Of an InitializeResult. Raises ValueError for one that names no legacy revision."""
        try:
            said = msgspec.json.decode(result, type=_Result)
        except msgspec.DecodeError as fault:
            raise ValueError(f"its answer is no InitializeResult ({fault})") from fault
        if said.version not in LEGACY_VERSIONS:
            raise ValueError(f"it answered with {said.version!r}")
        instructions = None if said.instructions is UNSET else bytes(said.instructions)
        return cls(said.version, members(said.capabilities), bytes(said.server), instructions)

    def advertises(self, kind: str, flag: str | None = None) -> bool:
        """Whether the server has this capability, and in it this flag.

        That one completes is not said in 2024-11-05, and believed of one that has what can be completed.
        """
        if kind == "completions" and self._completes_unsaid:
            return True
        text = self.capabilities.get(kind)
        if text is None or bytes(text) == b"null":
            return False
        if flag is None:
            return True
        try:
            return bytes(members(text).get(flag, b"false")) == b"true"
        except ValueError:
            return False

    @property
    def _completes_unsaid(self) -> bool:
        able = "prompts" in self.capabilities or "resources" in self.capabilities
        return self.revision == LEGACY_VERSIONS[0] and able and not self.completions_refused
