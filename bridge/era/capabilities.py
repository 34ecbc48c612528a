"""What a client can be asked, as a legacy server is told of it and as it is held to it.

A modern client says it with each request, a legacy one once; servers act on three things only:
sampling, elicitation and roots. Decides what of it is declared upstream, which upstream session
fits a request, and what a client lacks. Answers "Capability Negotiation" of the legacy revisions
and `clientCapabilities` of 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from bridge.core.message import INVALID_PARAMS, METHOD_NOT_FOUND
from bridge.core.splice import Members, joined, members
from bridge.era.revisions import LATEST_LEGACY

TASKS: Final = "io.modelcontextprotocol/tasks"
SAMPLING: Final = "sampling/createMessage"
ELICITATION: Final = "elicitation/create"
ROOTS: Final = "roots/list"


class Capabilities(msgspec.Struct, frozen=True, gc=False):
    """The normalised set: equal for clients that a legacy server cannot tell apart."""

    roots: bool = False
    sampling: bool = False
    sampling_tools: bool = False
    sampling_context: bool = False
    form: bool = False
    url: bool = False

    @classmethod
    def read(cls, text: bytes | msgspec.Raw) -> Capabilities:
        """Of the JSON text of `clientCapabilities`; what cannot be read declares nothing."""
        said = _object(text)
        sampling, elicitation = _declared(said, "sampling"), _declared(said, "elicitation")
        url = elicitation is not None and _declared(elicitation, "url") is not None
        return cls(
            roots=_declared(said, "roots") is not None,
            sampling=sampling is not None,
            sampling_tools=sampling is not None and _declared(sampling, "tools") is not None,
            sampling_context=sampling is not None and _declared(sampling, "context") is not None,
            form=elicitation is not None and (not url or _declared(elicitation, "form") is not None),
            url=url,
        )

    def __le__(self, other: Capabilities) -> bool:
        return all(not mine or theirs for mine, theirs in zip(_flags(self), _flags(other), strict=True))

    def __len__(self) -> int:
        return sum(_flags(self))

    def __bool__(self) -> bool:
        return True

    def declared(self) -> bytes:
        """As JSON text for the bridge's own initialize; `listChanged` no modern client could keep."""
        said: list[tuple[str, bytes]] = []
        if self.roots:
            said.append(("roots", b"{}"))
        if self.sampling:
            kinds = (("tools", self.sampling_tools), ("context", self.sampling_context))
            said.append(("sampling", joined((kind, b"{}") for kind, has in kinds if has)))
        if self.form or self.url:
            # A form alone is what `{}` has always meant.
            kinds = (("form", self.form and self.url), ("url", self.url))
            said.append(("elicitation", joined((kind, b"{}") for kind, has in kinds if has)))
        return joined(said)

    def covers(self, method: str, params: bytes | msgspec.Raw) -> bool:
        """Whether the client declared what it takes to be asked this; what is unknown needs nothing."""
        match method:
            case "roots/list":
                return self.roots
            case "sampling/createMessage":
                return self.sampling and (self.sampling_tools or not _uses_tools(params))
            case "elicitation/create":
                return self.url if _mode(params) == "url" else self.form
            case _:
                return True

    def lacking(self, method: str, params: bytes | msgspec.Raw) -> bytes:
        """What the client would have had to declare, as JSON text."""
        match method:
            case "roots/list":
                return b'{"roots":{}}'
            case "sampling/createMessage":
                return b'{"sampling":{"tools":{}}}' if self.sampling else b'{"sampling":{}}'
            case _:
                return b'{"elicitation":{"%b":{}}}' % _mode(params).encode()


NOTHING: Final = Capabilities()
EVERYTHING: Final = Capabilities(
    roots=True, sampling=True, sampling_tools=True, sampling_context=True, form=True, url=True
)


def refusal_code(method: str) -> int:
    """The error that tells a legacy server that its client cannot be asked this (§3.7)."""
    return INVALID_PARAMS if method == ELICITATION else METHOD_NOT_FOUND


class Use(msgspec.Struct, frozen=True):
    """The upstream session of this set."""

    fingerprint: Capabilities


class Open(msgspec.Struct, frozen=True):
    """A new upstream session for this set, once the one of `close` is closed."""

    fingerprint: Capabilities
    close: Capabilities | None = None


def choose(live: Mapping[Capabilities, bool], wanted: Capabilities, limit: int) -> Use | Open:
    """Which upstream session of one subject serves a request of these capabilities.

    `live` tells of each that is open whether it is idle, least recently used first. At the limit
    an idle one makes room; if all are busy, the one that declares most of what the client can do
    serves it, never one that declares more. One for the empty set is above the limit.
    """
    if wanted in live:
        return Use(wanted)
    counted = [one for one in live if one != NOTHING]
    if wanted == NOTHING or len(counted) < limit:
        return Open(wanted)
    idle = next((one for one in counted if live[one]), None)
    if idle is not None:
        return Open(wanted, idle)
    subsets = [one for one in live if one <= wanted]
    return Use(max(subsets, key=len)) if subsets else Open(NOTHING)


def legacy_offer(capabilities: bytes | msgspec.Raw, revision: str) -> bytes:
    """The modern `clientCapabilities` of a legacy client that declared these in this revision (§4.2)."""
    said = _object(capabilities)
    offer: Members = {}
    for kind, text in said.items():
        if kind == "tasks" or _declared(said, kind) is None:
            continue  # no capability is anything but an object
        match kind:
            case "roots":
                offer[kind] = b"{}"
            case "sampling" | "elicitation":
                offer[kind] = text if revision == LATEST_LEGACY else b"{}"
            case "extensions":
                offer[kind] = joined((k, v) for k, v in _object(text).items() if k != TASKS)
            case _:
                offer[kind] = text
    return joined(offer.items())


def _flags(one: Capabilities) -> tuple[bool, ...]:
    return one.roots, one.sampling, one.sampling_tools, one.sampling_context, one.form, one.url


def _object(text: bytes | msgspec.Raw) -> Members:
    try:
        return members(text) if len(text) else {}
    except ValueError:
        return {}


def _declared(said: Members, kind: str) -> Members | None:
    """What is said of one capability; None if it is not declared."""
    text = said.get(kind)
    if text is None or not bytes(text).lstrip().startswith(b"{"):
        return None
    return _object(text)


def _uses_tools(params: bytes | msgspec.Raw) -> bool:
    said = _object(params)
    return "tools" in said or "toolChoice" in said


def _mode(params: bytes | msgspec.Raw) -> str:
    text = _object(params).get("mode", b'"form"')
    return "url" if bytes(text) == b'"url"' else "form"
