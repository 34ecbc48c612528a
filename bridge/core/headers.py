"""What HTTP headers say, and whether the body says the same.

Decides which media types a client takes, which era a POST belongs to, whether mirrored
headers agree with the body, and which HTTP status a JSON-RPC error travels with. Refuses
to know any web framework: header values come in as strings, a refusal goes out as a value.

Answers basic/transports/streamable-http: Request Metadata, Value Encoding, Server
Validation (2026-07-28), basic/index: `_meta` (the envelope), and basic/transports:
Protocol Version Header (2025-06-18 and 2025-11-25).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from bridge.core import splice
from bridge.era.revisions import LEGACY_VERSIONS, MODERN_VERSIONS, Era, revision

VERSION: Final = "MCP-Protocol-Version"
METHOD: Final = "Mcp-Method"
NAME: Final = "Mcp-Name"

HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022
_PARSE_ERROR: Final = -32700
_INVALID_REQUEST: Final = -32600
_METHOD_NOT_FOUND: Final = -32601
_INVALID_PARAMS: Final = -32602

Lookup = Callable[[str], Sequence[str]]
"""Every value a request has for a header, by its name without regard to case; none is an empty sequence."""


PROTECTED: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "host",
        "last-event-id",
        "mcp-method",
        "mcp-name",
        "mcp-protocol-version",
        "mcp-session-id",
        "transfer-encoding",
    }
)
"""Headers that are the protocol's own; a configured header may not take their place."""


class Refusal(msgspec.Struct, frozen=True):
    """An ordinary refusal: the HTTP status and the JSON-RPC error to answer with; `data` is JSON text."""

    status: int
    code: int
    message: str
    data: bytes | None = None


def _refused(code: int, message: str, reason: str) -> Refusal:
    # The error is the bridge's own and must not pass for one of the server's.
    return Refusal(400, code, _encodable(message), splice.quote({"origin": "bridge", "reason": reason}))


def _encodable(text: str) -> str:
    """Neither a header's stray octets nor an escaped lone surrogate can be written as UTF-8."""
    return text.encode(errors="replace").decode()


def mismatch(message: str) -> Refusal:
    """A mirrored header is missing, malformed, or differs from the body."""
    return _refused(HEADER_MISMATCH, f"Header mismatch: {message}", "header_mismatch")


# --- status ---

_MODERN_STATUS: Final[Mapping[int, int]] = MappingProxyType(
    {
        _PARSE_ERROR: 400,
        _INVALID_REQUEST: 400,
        _METHOD_NOT_FOUND: 404,
        HEADER_MISMATCH: 400,
        MISSING_CAPABILITY: 400,
        UNSUPPORTED_VERSION: 400,
    }
)


def status_of(code: int, *, modern: bool) -> int:
    """The HTTP status for a JSON-RPC error, as long as none has been sent.

    A server's own -32602 stays 200: a client that probes for the era reads a 400 without a
    modern code as "legacy". To a legacy client every error is a 200, since on a session a
    404 means that the session is gone.
    """
    return _MODERN_STATUS.get(code, 200) if modern else 200


# --- media types ---


class Accepted(NamedTuple):
    json: bool
    sse: bool


def accepts(values: Sequence[str]) -> Accepted:
    """What a client takes as an answer, by all its `Accept` lines; no such header takes anything."""
    return _accepts(",".join(values))


@lru_cache(maxsize=64)
def _accepts(header: str) -> Accepted:
    if not header.strip(" \t,"):
        return Accepted(json=True, sse=True)
    weights: dict[str, float] = {}
    for item in header.lower().split(","):
        media, _, parameters = item.partition(";")
        media = media.strip()
        weights[media] = max(weights.get(media, 0.0), _weight(parameters))
    return Accepted(json=_taken(weights, "application/json"), sse=_taken(weights, "text/event-stream"))


def _taken(weights: Mapping[str, float], media: str) -> bool:
    """The most specific range that covers `media` decides (RFC 9110 §12.5.1)."""
    # A bare `*` is what Java's own client has always sent for `*/*`.
    for cover in (media, media.partition("/")[0] + "/*", "*/*", "*"):
        if cover in weights:
            return weights[cover] > 0
    return False


def _weight(parameters: str) -> float:
    for parameter in parameters.split(";"):
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 1.0
    return 1.0


@lru_cache(maxsize=64)
def is_json(content_type: str) -> bool:
    """Whether a body of this `Content-Type` is to be read as JSON, which is UTF-8 only."""
    media, *parameters = content_type.lower().split(";")
    return media.strip() == "application/json" and all(map(_harmless, parameters))


def _harmless(parameter: str) -> bool:
    key, _, value = parameter.partition("=")
    return key.strip() != "charset" or value.strip(' \t"') in ("utf-8", "utf8")


# --- mirrored values ---

_SAFE: Final = re.compile(r"[\x20-\x7e]*")
_FIELD_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
_OPEN: Final = "=?base64?"
_CLOSE: Final = "?="
_BLANKS: Final = " \t"


def encode_value(text: str) -> str:
    """`text` as the value of `Mcp-Name` or `Mcp-Param-*`. Raises ValueError for a lone surrogate."""
    looks_encoded = text.startswith(_OPEN) and text.endswith(_CLOSE)
    if _SAFE.fullmatch(text) and text == text.strip() and not looks_encoded:
        return text
    return f"{_OPEN}{base64.b64encode(text.encode()).decode()}{_CLOSE}"


def decode_value(header: str) -> str | None:
    """What an encoded header stands for, or None if it is malformed.

    Malformed is whatever two readers could take differently: a bare character outside
    visible ASCII, bad or not canonical Base64, bad UTF-8. A sentinel that is incomplete
    or in the wrong case is just text.
    """
    text = header.strip(_BLANKS)
    if _FIELD_VALUE.fullmatch(text) is None:
        return None
    payload = text[len(_OPEN) : -len(_CLOSE)]
    if text != f"{_OPEN}{payload}{_CLOSE}":
        return text
    return _decode_base64(payload)


def _decode_base64(payload: str) -> str | None:
    try:
        octets = base64.b64decode(payload, validate=True)
        # Python forgives stray bits in the last character, other readers do not.
        return octets.decode() if base64.b64encode(octets).decode() == payload else None
    except ValueError:
        return None


_SESSION_ID: Final = re.compile(r"[\x21-\x7e]+")


def is_session_id(text: str) -> bool:
    """Whether `text` has the grammar of an `Mcp-Session-Id`."""
    return _SESSION_ID.fullmatch(text) is not None


# --- legacy ---


def legacy_version(header: str | None, negotiated: str | None) -> Refusal | None:
    """Hold `MCP-Protocol-Version` of a request on a session against what exists.

    A known revision other than the negotiated one is let pass: clients send the newest
    they know. The negotiated one always passes, also if only the server knows it.
    """
    if header is None or header == negotiated or header in LEGACY_VERSIONS:
        return None
    known = ", ".join(LEGACY_VERSIONS)
    message = f"Bad Request: unsupported {VERSION}; a session speaks one of {known}"
    return _refused(_INVALID_REQUEST, message, "protocol_version")


# --- era ---


def classify(method: str | None, versions: Sequence[str], *, enveloped: bool, session: bool) -> Era:
    """The era of one POST.

    `method` is None for what has none (a response, an array), `versions` are all values of
    `MCP-Protocol-Version`, `enveloped` is `Claims.enveloped`, `session` tells whether an
    `Mcp-Session-Id` came along. A modern verdict may well end in `check` refusing.
    """
    if enveloped:
        return Era.MODERN
    if method == "initialize":
        return Era.LEGACY
    rows = [revision(version.strip(_BLANKS)) for version in versions]
    if any(row is not None and row.era is Era.MODERN for row in rows):
        return Era.MODERN
    # On a session an unknown version is a legacy client's mistake, and answered in its terms.
    return Era.MODERN if None in rows and not session else Era.LEGACY


# --- the ladder ---

MIRRORED_NAME: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tools/call": "name",
        "prompts/get": "name",
        "resources/read": "uri",
        "tasks/get": "taskId",
        "tasks/update": "taskId",
        "tasks/cancel": "taskId",
    }
)
"""Which member of `params` the header `Mcp-Name` repeats, by method."""

LOG_LEVELS: Final = frozenset(
    {"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}
)

_PREFIX: Final = "io.modelcontextprotocol/"

_read_text: Final = msgspec.json.Decoder(str).decode


class Claims(msgspec.Struct, frozen=True):
    """What the body of a request says about itself; the headers have to repeat some of it.

    `name` is what `Mcp-Name` repeats, `arguments` the JSON text of a tool's arguments,
    `version` None also where it is not a string, and `log_level` its JSON text there.
    """

    method: str
    name: str | None = None
    arguments: bytes | None = None
    has_meta: bool = False
    enveloped: bool = False
    """The envelope's version is there, whatever it is: the sign of a modern request."""
    version: str | None = None
    has_capabilities: bool = False
    log_level: str | None = None


def claims(method: str, params: bytes | msgspec.Raw | msgspec.UnsetType | None) -> Claims:
    """Read what `check` needs of a request; `params` is JSON text, without equal keys."""
    members = _members(params) or {}
    key = MIRRORED_NAME.get(method)
    arguments = members.get("arguments")
    meta = _members(members.get("_meta"))
    envelope = meta or {}
    level = envelope.get(f"{_PREFIX}logLevel")
    return Claims(
        method=method,
        name=None if key is None else _text(members.get(key)),
        arguments=None if arguments is None else bytes(arguments),
        has_meta=meta is not None,
        enveloped=f"{_PREFIX}protocolVersion" in envelope,
        version=_text(envelope.get(f"{_PREFIX}protocolVersion")),
        has_capabilities=bytes(envelope.get(f"{_PREFIX}clientCapabilities", b"")).startswith(b"{"),
        log_level=None if level is None else _text(level) or bytes(level).decode(),
    )


def _members(text: bytes | msgspec.Raw | msgspec.UnsetType | None) -> splice.Members | None:
    if text is None or text is msgspec.UNSET:
        return None
    try:
        return splice.members(text)
    except ValueError:
        return None


def _text(value: bytes | msgspec.Raw | None) -> str | None:
    """The string that a JSON text stands for, or None if it is something else."""
    if value is None:
        return None
    try:
        return _read_text(value)
    except msgspec.ValidationError:
        return None
    except msgspec.DecodeError:  # a lone surrogate, which JSON allows
        decoded: object = json.loads(bytes(value))
        return decoded if isinstance(decoded, str) else None


def check(getall: Lookup, request: Claims) -> Refusal | None:
    """Hold the headers of a modern request against its body; the first fault found is the answer.

    A missing envelope comes before wrong headers, wrong headers before a wrong envelope,
    and a version that differs before one that is not supported, so that a client which
    disagrees with itself is told so.
    """
    for rung in _RUNGS:
        refusal = rung(getall, request)
        if refusal is not None:
            return refusal
    return None


def _single(getall: Lookup, name: str) -> str | None:
    values = getall(name)
    return values[0].strip(_BLANKS) if values else None


def _sent_once(getall: Lookup, request: Claims) -> Refusal | None:
    """Readers that take the first and readers that take the last would route differently."""
    for name in (VERSION, METHOD, NAME):
        if len(getall(name)) > 1:
            return mismatch(f"{name} occurs more than once")
    return None


def _no_foreign_header(getall: Lookup, request: Claims) -> Refusal | None:
    """Where the body names no version, an unknown one in the header is all there is to answer."""
    header = _single(getall, VERSION)
    if request.enveloped or header is None or revision(header) is not None:
        return None
    return _unsupported(header)


def _has_meta(getall: Lookup, request: Claims) -> Refusal | None:
    if request.has_meta:
        return None
    return _refused(_INVALID_PARAMS, "params._meta with the request's envelope is missing", "envelope")


def _same_version(getall: Lookup, request: Claims) -> Refusal | None:
    header = _single(getall, VERSION)
    if header is None:
        return mismatch(f"{VERSION} is missing")
    if request.version is not None and header != request.version:
        return mismatch(f"{VERSION} does not match {_PREFIX}protocolVersion in params._meta")
    return None


def _same_method(getall: Lookup, request: Claims) -> Refusal | None:
    header = _single(getall, METHOD)
    if header is None:
        return mismatch(f"{METHOD} is missing")
    return None if header == request.method else mismatch(f"{METHOD} does not match the method in the body")


def _same_name(getall: Lookup, request: Claims) -> Refusal | None:
    key = MIRRORED_NAME.get(request.method)
    header = _single(getall, NAME)
    # A body without the name has nothing to mirror, and its fault is the server's to find.
    if key is None or (header is None and request.name is None):
        return None
    if header is None:
        return mismatch(f"{NAME} is missing")
    decoded = decode_value(header)
    if decoded is None:
        return mismatch(f"{NAME} is malformed")
    return None if decoded == request.name else mismatch(f"{NAME} does not match params.{key} in the body")


def _whole_envelope(getall: Lookup, request: Claims) -> Refusal | None:
    if request.version is None:
        fault = "protocolVersion must be a string"
    elif not request.has_capabilities:
        fault = "clientCapabilities must be an object"
    else:
        return None
    return _refused(_INVALID_PARAMS, f"{_PREFIX}{fault} in params._meta", "envelope")


def _supported_version(getall: Lookup, request: Claims) -> Refusal | None:
    if request.version is None or request.version in MODERN_VERSIONS:
        return None
    return _unsupported(request.version)


def _unsupported(requested: str) -> Refusal:
    data = splice.quote({"supported": MODERN_VERSIONS, "requested": _encodable(requested)})
    return Refusal(400, UNSUPPORTED_VERSION, "Unsupported protocol version", data)


def _known_level(getall: Lookup, request: Claims) -> Refusal | None:
    if request.log_level is None or request.log_level in LOG_LEVELS:
        return None
    return _refused(_INVALID_PARAMS, f"{_PREFIX}logLevel in params._meta is no log level", "envelope")


_RUNGS: Final[tuple[Callable[[Lookup, Claims], Refusal | None], ...]] = (
    _sent_once,
    _no_foreign_header,
    _has_meta,
    _same_version,
    _same_method,
    _same_name,
    _whole_envelope,
    _supported_version,
    _known_level,
)
