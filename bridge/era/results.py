"""Results and errors of one era as those of the other.

Decides which top-level members belong to the protocol of one era only, and which error code means
the same in the other; all else passes as the bytes it came in. Answers sections 3.2, 3.3, 3.14,
4.1, 4.3 and 4.9 of the design; of the specification "Results", "Caching" and "Error Codes" of
2026-07-28.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from bridge.core.message import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    Response,
    error,
    local_error,
)
from bridge.core.splice import Members, elements, joined, members, quote
from bridge.era.capabilities import TASKS
from bridge.era.envelope import SERVER_INFO, SUBSCRIPTION
from bridge.era.opened import Opened
from bridge.era.revisions import LEGACY_VERSIONS, MODERN_VERSIONS

NOT_FOUND: Final = -32002
HEADER_MISMATCH: Final = -32020
VERSION: Final = -32022

CACHEABLE: Final = frozenset(
    {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    }
)
_COMPLETE: Final = b'"complete"'
_STRAY: Final = ("resultType", "inputRequests", "requestState", "ttlMs", "cacheScope")
_MODERN_ONLY: Final = ("resultType", "ttlMs", "cacheScope")
_NAMED: Final = {
    "tools/call": "tools",
    "prompts/get": "prompts",
    "resources/read": "resources",
    "completion/complete": "completions",
}
"""Requests that name something: an unknown name is no unknown method."""


class _Error(msgspec.Struct):
    code: int = INTERNAL_ERROR
    message: str = ""
    data: Raw | UnsetType = UNSET


# --- for modern clients ---


def completed(method: str, value: bytes, server: bytes) -> bytes:
    """A legacy result as a modern one. Raises ValueError if it is no object.

    A legacy server cannot fake what the protocol says in these members.
    """
    parts = members(value)
    for key in _STRAY:
        parts.pop(key, None)
    if method == "tools/list" and "tools" in parts:
        parts["tools"] = _without_execution(parts["tools"])
    return _modern(method, parts, server)


def _modern(method: str, parts: Members, server: bytes) -> bytes:
    parts["_meta"] = _with_server(parts.get("_meta", b"{}"), server)
    if method in CACHEABLE:
        parts["ttlMs"], parts["cacheScope"] = b"0", b'"private"'
    return joined((("resultType", _COMPLETE), *parts.items()))


def _with_server(meta: bytes, server: bytes) -> bytes:
    try:
        parts = members(meta)
    except ValueError:
        parts = {}
    parts.setdefault(SERVER_INFO, server)
    return joined(parts.items())


def _without_execution(tools: bytes) -> bytes:
    """Tools without what says how they become tasks of 2025-11-25."""
    if b'"execution"' not in bytes(tools):
        return tools
    try:
        return b"[%b]" % b",".join(_without(bytes(tool), "execution") for tool in elements(tools))
    except ValueError:
        return tools


def _without(text: bytes, key: str) -> bytes:
    parts = members(text)
    return joined(parts.items()) if parts.pop(key, None) is not None else text


def discovered(opened: Opened, *, tasks: bool) -> bytes:
    """The DiscoverResult that stands for an InitializeResult; `tasks`: whether the extension is offered."""
    parts: Members = {
        "supportedVersions": quote(MODERN_VERSIONS),
        "capabilities": _modern_capabilities(opened, tasks=tasks),
    }
    if opened.instructions is not None:
        parts["instructions"] = opened.instructions
    return _modern("server/discover", parts, opened.server)


def _modern_capabilities(opened: Opened, *, tasks: bool) -> bytes:
    parts = {key: value for key, value in opened.capabilities.items() if key not in ("tasks", "extensions")}
    if opened.advertises("completions"):
        parts.setdefault("completions", b"{}")
    extensions = _extensions(opened.capabilities)
    if tasks:
        extensions[TASKS] = b"{}"
    if extensions or "extensions" in opened.capabilities:
        parts["extensions"] = joined(extensions.items())
    return joined(parts.items())


def _extensions(capabilities: Members) -> Members:
    try:
        found = members(capabilities.get("extensions", b"{}"))
    except ValueError:
        return {}
    found.pop(TASKS, None)
    return found


def failed(
    method: str, value: Raw | bytes | UnsetType, params: Raw | bytes | UnsetType, opened: Opened
) -> Response:
    """A legacy server's error, to this request, as what a modern client is told; without an id.

    Errors of the bridge's own pass as they are.
    """
    said = _read_error(value)
    if _is_own(said.data):
        return _as_said(value)
    match said.code:
        case code if code == NOT_FOUND and method == "resources/read":
            data = said.data if said.data is not UNSET else _uri_of(params)
            return error(None, INVALID_PARAMS, said.message, None if data is None else bytes(data))
        case code if code == METHOD_NOT_FOUND and _means_the_name(method, opened):
            return error(None, INVALID_PARAMS, said.message, _coded(code, said.data, wrap="upstream"))
        case code if code == NOT_FOUND or -32099 <= code <= HEADER_MISMATCH:
            return error(None, INTERNAL_ERROR, said.message, _coded(code, said.data, wrap="upstream"))
        case code if code in (PARSE_ERROR, INVALID_REQUEST):
            text = f"The server took the bridge's message for invalid: {said.message}"
            return local_error(None, text, "upstream_rejected")
        case _:
            return _as_said(value)


def _means_the_name(method: str, opened: Opened) -> bool:
    """Whether -32601 can only be about the tool, prompt or resource, since the server has the method."""
    kind = _NAMED.get(method)
    if kind == "completions" and opened.revision == LEGACY_VERSIONS[0]:
        opened.completions_refused = True  # the capability was a guess
        return False
    return kind is not None and opened.advertises(kind)


def _coded(code: int, data: Raw | UnsetType, *, wrap: str) -> bytes:
    """The code of the server in `data`, beside what it said there."""
    parts = {"upstreamCode": b"%d" % code}
    if data is not UNSET:
        parts[wrap] = bytes(data)
    return joined(parts.items())


def _uri_of(params: Raw | bytes | UnsetType) -> bytes | None:
    try:
        uri = None if params is UNSET else members(params).get("uri")
    except ValueError:
        return None
    return None if uri is None else b'{"uri":%b}' % bytes(uri)


# --- for legacy clients ---


def result_type(value: bytes | Raw) -> str:
    """What kind of result a modern server gave; one that says nothing is complete."""
    try:
        text = members(value).get("resultType", _COMPLETE)
        return msgspec.json.decode(text, type=str)
    except (ValueError, msgspec.DecodeError):
        return ""


def legacy_result(value: bytes | Raw) -> bytes:
    """A complete modern result as a legacy one. Raises ValueError if it is no object."""
    parts = members(value)
    for key in _MODERN_ONLY:
        parts.pop(key, None)
    if "_meta" in parts:
        meta = members(parts["_meta"])
        for key in (SERVER_INFO, SUBSCRIPTION):
            meta.pop(key, None)
        if meta:
            parts["_meta"] = joined(meta.items())
        else:
            del parts["_meta"]
    return joined(parts.items())


def initialized(discovered: Raw | bytes, *, version: str, name: str) -> bytes:
    """The InitializeResult that stands for a DiscoverResult; `name` is for a server that tells none.

    Raises ValueError if it is no object.
    """
    said = members(discovered)
    server = members(said.get("_meta", b"{}")).get(SERVER_INFO)
    capabilities = members(said.get("capabilities", b"{}"))
    if "extensions" in capabilities:
        extensions = members(capabilities["extensions"])
        if extensions.pop(TASKS, None) is not None:
            del capabilities["extensions"]
            if extensions:
                capabilities["extensions"] = joined(extensions.items())
    if version == LEGACY_VERSIONS[0]:
        capabilities.pop("completions", None)
    parts: Members = {
        "protocolVersion": quote(version),
        "capabilities": joined(capabilities.items()),
        "serverInfo": quote({"name": name, "version": "0"}) if server is None else server,
    }
    if "instructions" in said:
        parts["instructions"] = said["instructions"]
    return joined(parts.items())


def legacy_error(method: str, response: Response) -> Response:
    """A modern server's error as what a legacy client is told, under the same id."""
    said = _read_error(response.error)
    if _is_own(said.data):
        return response
    if said.code == INVALID_PARAMS and method == "resources/read" and _names_a_uri(said.data):
        return error(response.id, NOT_FOUND, said.message, _text(said.data))
    if said.code == HEADER_MISMATCH:
        text = "The server refuses what the bridge repeats in headers"
        return local_error(response.id, f"{text}: {said.message}", "header_mismatch")
    if said.code == VERSION:
        return local_error(response.id, f"The server left its revision: {said.message}", "version")
    return response


def _text(data: Raw | UnsetType) -> bytes | None:
    return None if data is UNSET else bytes(data)


def _names_a_uri(data: Raw | UnsetType) -> bool:
    try:
        return data is not UNSET and "uri" in members(data)
    except ValueError:
        return False


# --- errors as such ---


def _read_error(value: Raw | bytes | UnsetType) -> _Error:
    try:
        return _Error() if value is UNSET else msgspec.json.decode(value, type=_Error)
    except msgspec.DecodeError:
        return _Error()


def _is_own(data: Raw | UnsetType) -> bool:
    """Whether the bridge made this error itself (Principle 7)."""
    try:
        return data is not UNSET and bytes(members(data).get("origin", b"")) == b'"bridge"'
    except ValueError:
        return False


def _as_said(value: Raw | bytes | UnsetType) -> Response:
    text = b"{}" if value is UNSET else bytes(value)
    return Response(b'{"jsonrpc":"2.0","id":null,"error":%b}' % text, None, error=Raw(text))
