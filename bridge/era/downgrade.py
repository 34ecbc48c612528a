"""What a modern server says, put into the words of the revision that a legacy client negotiated.

Decides what becomes of content, schemas and forms that older revisions do not have; whatever they
merely do not mention stays. Knows no session and no method's course. Specification: "Tools",
"Prompts" and "Elicitation" of 2024-11-05 to 2025-11-25 against 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from bridge.core import splice
from bridge.core.splice import Members, compact, is_json, joined, quote
from bridge.era.revisions import LEGACY_VERSIONS

_R1, _R2, _R3, _R4 = LEGACY_VERSIONS
_NO_LINKS: Final = frozenset({_R1, _R2})
"""Revisions without `resource_link`, `structuredContent` and `outputSchema`."""
_NO_AUDIO: Final = frozenset({_R1})
_OBJECTS_ONLY: Final = frozenset({_R3, _R4})
"""Revisions whose `structuredContent` is an object, of a schema that says so."""
_PLAIN_FORMS: Final = frozenset({_R1, _R2, _R3})
"""Revisions whose forms have no titled choices but `enumNames`, no lists and no `mode`."""
_FOREIGN: Final = {b"resource_link": _NO_LINKS, b"audio": _NO_AUDIO}
"""Kinds of content, and the revisions that do not have them."""
_TEXT: Final = b'"text"'
_KEPT: Final = ("annotations", "_meta")


def downgraded(method: str, result: bytes, revision: str) -> bytes:
    """A result as a client of this revision can read it; itself where nothing is to be done.

    What does not have the shape that the specification gives it is left alone.
    """
    change = _RESULTS.get(method)
    try:
        return result if change is None else change(result, revision)
    except ValueError:
        return result


def _is_foreign(text: bytes, revision: str) -> bool:
    """Whether content that the revision does not have may be in there: results can be large."""
    return any(kind in text and revision in lacking for kind, lacking in _FOREIGN.items())


def _tool_result(result: bytes, revision: str) -> bytes:
    if b"structuredContent" not in result and not _is_foreign(result, revision):
        return result
    parts = _members(result)
    changed = _structured(parts, revision)
    if "content" in parts:
        content = _elements(parts["content"])
        blocks = _blocks(content, revision)
        if blocks is not None:
            parts["content"] = _array(blocks)
            changed = True
    return joined(parts.items()) if changed else result


def _structured(parts: Members, revision: str) -> bool:
    """Make `structuredContent` what the revision allows; whether anything was changed."""
    structured = parts.get("structuredContent")
    if structured is None:
        return False
    content = _elements(parts.get("content", b"[]"))
    if revision in _OBJECTS_ONLY:
        if _is_object(structured):
            return False
        del parts["structuredContent"]
        wanted = not any(_tells(block, structured) for block in content)
    else:
        wanted = not content
    if wanted:
        block = joined([("type", _TEXT), ("text", quote(structured.decode()))])
        parts["content"] = _array([*content, block])
    return wanted or revision in _OBJECTS_ONLY


def _tells(block: bytes, structured: bytes) -> bool:
    """Whether this is a text block whose text is the same JSON."""
    text = _text_in(block)
    return text is not None and is_json(text) and compact(text) == compact(structured)


def _text_in(block: bytes) -> bytes | None:
    try:
        parts = _members(block)
        return _string(parts["text"]).encode() if parts.get("type") == _TEXT else None
    except (ValueError, KeyError):
        return None


def _prompt(result: bytes, revision: str) -> bytes:
    if not _is_foreign(result, revision):
        return result
    parts = _members(result)
    serial = _Serial()
    found = [_prompt_message(one, revision, serial) for one in _elements(parts.get("messages", b"[]"))]
    if all(one is None for _, one in found):
        return result
    parts["messages"] = _array([before if after is None else after for before, after in found])
    return joined(parts.items())


def _prompt_message(text: bytes, revision: str, serial: _Serial) -> tuple[bytes, bytes | None]:
    parts = _members(text)
    if "content" not in parts:
        return text, None
    block = _block(parts["content"], revision, serial)
    return text, None if block is None else joined((parts | {"content": block}).items())


def _blocks(content: Iterable[bytes], revision: str) -> list[bytes] | None:
    """These blocks as the revision has them; None if they stay."""
    serial = _Serial()
    found = [(block, _block(block, revision, serial)) for block in content]
    if all(after is None for _, after in found):
        return None
    return [before if after is None else after for before, after in found]


class _Serial:
    """Numbers what has no name of its own in one result."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> int:
        self._last += 1
        return self._last


def _block(block: bytes, revision: str, serial: _Serial) -> bytes | None:
    """One block of content in the revision's words; None if it stays."""
    parts = _members(block)
    kind = parts.get("type")
    if kind == b'"resource_link"' and revision in _NO_LINKS:
        named = [_string(parts[name]) for name in ("name", "uri") if name in parts]
        return _replacing(parts, [("type", _TEXT), ("text", quote("\n".join(named)))])
    if kind == b'"audio"' and revision in _NO_AUDIO:
        inner = [("uri", quote(f"urn:mcp-bridge:audio:{serial()}"))]
        inner += [(name, parts[own]) for name, own in _AUDIO if own in parts]
        return _replacing(parts, [("type", b'"resource"'), ("resource", joined(inner))])
    return None


_AUDIO: Final = (("mimeType", "mimeType"), ("blob", "data"))


def _replacing(old: Members, new: list[tuple[str, bytes]]) -> bytes:
    return joined([*new, *((name, old[name]) for name in _KEPT if name in old)])


def _tools(result: bytes, revision: str) -> bytes:
    if revision not in _OBJECTS_ONLY or b"outputSchema" not in result:
        return result
    parts = _members(result)
    found = [_tool(one) for one in _elements(parts.get("tools", b"[]"))]
    if all(after is None for _, after in found):
        return result
    parts["tools"] = _array([before if after is None else after for before, after in found])
    return joined(parts.items())


def _tool(text: bytes) -> tuple[bytes, bytes | None]:
    parts = _members(text)
    schema = parts.get("outputSchema")
    if schema is None or (_is_object(schema) and _members(schema).get("type") == b'"object"'):
        return text, None
    del parts["outputSchema"]
    return text, joined(parts.items())


_RESULTS: Final[dict[str, Callable[[bytes, str], bytes]]] = {
    "tools/call": _tool_result,
    "prompts/get": _prompt,
    "tools/list": _tools,
}


# --- forms ---


def form(params: bytes, revision: str) -> bytes | None:
    """The params of a form elicitation for a client of this revision; None if it could not show it.

    Raises ValueError if they are no params of one.
    """
    if revision not in _PLAIN_FORMS:
        return params
    parts = _members(params)
    parts.pop("mode", None)
    schema = _members(parts.get("requestedSchema", b"{}"))
    fields = _members(schema.get("properties", b"{}"))
    plain = {name: _field(field) for name, field in fields.items()}
    shown = {name: field for name, field in plain.items() if field is not None}
    if len(shown) != len(fields):
        return None
    if shown != fields:
        schema["properties"] = joined(shown.items())
        parts["requestedSchema"] = joined(schema.items())
    return joined(parts.items())


def _field(field: bytes) -> bytes | None:
    """One field of a form; None if it is a choice of several."""
    parts = _members(field)
    if parts.get("type") == b'"array"':
        return None
    if "oneOf" not in parts:
        return field
    choices = [_members(choice) for choice in _elements(parts.pop("oneOf"))]
    values = [choice.get("const", b"null") for choice in choices]
    parts["enum"] = _array(values)
    parts["enumNames"] = _array(
        [choice.get("title", value) for choice, value in zip(choices, values, strict=True)]
    )
    return joined(parts.items())


# --- JSON ---


def _members(text: bytes) -> Members:
    return {name: bytes(value) for name, value in splice.members(text).items()}


def _elements(text: bytes) -> list[bytes]:
    return [bytes(value) for value in splice.elements(text)]


def _array(values: Iterable[bytes]) -> bytes:
    return b"[%b]" % b",".join(values)


def _is_object(text: bytes) -> bool:
    return text.startswith(b"{")


def _string(text: bytes) -> str:
    """Raises ValueError if it is no string."""
    try:
        return msgspec.json.decode(text, type=str)
    except msgspec.DecodeError as fault:
        raise ValueError("no string") from fault
