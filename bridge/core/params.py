"""Tool parameters that a client repeats in `Mcp-Param-*` headers.

Decides which parameters a tool's `inputSchema` annotates with `x-mcp-header`, whether the
annotations are valid, and whether the headers of a call agree with its arguments. Refuses
to know how tools were listed: the index is fed with results and says which page it lacks.

Answers basic/transports/streamable-http: Custom Headers from Tool Parameters and Server
Validation, and server/tools: x-mcp-header (2026-07-28).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from enum import Enum, auto
from typing import Final, assert_never

import msgspec

from bridge.core import splice
from bridge.core.headers import Refusal, decode_value, encode_value, mismatch
from bridge.core.message import Headers

PREFIX: Final = "Mcp-Param-"

ANNOTATION: Final = "x-mcp-header"


class Annotation(msgspec.Struct, frozen=True):
    """`header` is the whole header name; `path` leads to the value through the arguments."""

    header: str
    path: tuple[str, ...]


Annotations = tuple[Annotation, ...]


class Invalid(msgspec.Struct, frozen=True):
    """Why a tool's annotations are void; clients leave such a tool out, so its calls are not checked."""

    reason: str


# --- the schema ---

_Path = tuple[str, ...]

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TYPES: Final = frozenset({"string", "integer", "boolean"})
_NAMED_SCHEMAS: Final = frozenset({"patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose members are named by the author, not by JSON Schema."""
_DATA: Final = frozenset({"default", "examples", "const", "enum"})
"""Keywords that hold instances: an annotation in there is none."""

# No number in a schema matters here, and one of 5,000 digits must not meet int()'s limit.
_decode = json.JSONDecoder(parse_int=float).decode


def annotations_of(input_schema: bytes) -> Annotations | Invalid:
    """The parameters that this schema has mirrored, in no particular order."""
    try:
        return _annotations(_decode(input_schema.decode()))
    except (ValueError, RecursionError):
        return Invalid("the inputSchema is no JSON that can be read")


def _annotations(schema: object) -> Annotations | Invalid:
    found: dict[str, Annotation] = {}
    for path, position in _positions(schema, ()):
        if ANNOTATION not in position:
            continue
        if not path:
            return Invalid(f"{ANNOTATION} stands where no chain of properties leads")
        annotation = _annotation(path, position[ANNOTATION], position.get("type"))
        if isinstance(annotation, Invalid):
            return annotation
        if found.setdefault(annotation.header.lower(), annotation) is not annotation:
            return Invalid(f"{annotation.header} occurs more than once")
    return tuple(found.values())


def _annotation(path: _Path, name: object, kind: object) -> Annotation | Invalid:
    if not isinstance(name, str) or _TOKEN.fullmatch(name) is None:
        return Invalid(f"{'.'.join(path)}: {ANNOTATION} is no header name")
    if not isinstance(kind, str) or kind not in _TYPES:
        return Invalid(f"{'.'.join(path)}: {ANNOTATION} needs the type string, integer or boolean")
    return Annotation(f"{PREFIX}{name}", path)


def _positions(node: object, path: _Path | None) -> Iterator[tuple[_Path | None, Mapping[str, object]]]:
    """Every schema within `node`, and the chain of `properties` that leads there; None for any other way."""
    if isinstance(node, list):
        for item in node:
            yield from _positions(item, None)
    if not isinstance(node, dict):
        return
    yield path, node
    for keyword, value in node.items():
        if keyword == "properties" and isinstance(value, dict):
            for name, schema in value.items():
                yield from _positions(schema, None if path is None else (*path, name))
        elif keyword in _NAMED_SCHEMAS and isinstance(value, dict):
            yield from _positions(list(value.values()), None)
        elif keyword not in _DATA:
            yield from _positions(value, None)


# --- a call ---


class _Number(msgspec.Struct, frozen=True):
    text: str


class _No(Enum):
    """Why there is no value to compare a header with."""

    VALUE = auto()
    """Absent, or null."""
    SCALAR = auto()
    """An array or an object: the tool's to refuse, unless a header claims to repeat it."""
    CERTAINTY = auto()
    """A key on the way occurs twice, so that the server could read the other copy, or cannot be read."""


_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")


def check(
    annotated: Annotations, arguments: bytes | None, headers: Iterable[tuple[str, str]]
) -> Refusal | None:
    """Hold the `Mcp-Param-*` among `headers` against the arguments of a call (JSON text, or None).

    Headers that nothing annotates are none of our business and pass.
    """
    sent = _sent(headers)
    for annotation in annotated:
        fault = _disagreement(annotation, arguments, sent.get(annotation.header.lower(), ()))
        if fault is not None:
            return mismatch(f"{annotation.header} {fault}")
    return None


def passed(headers: Iterable[tuple[str, str]]) -> Headers:
    """The `Mcp-Param-*` among them, which whoever does not know them passes on (XH-11)."""
    return tuple((name, value) for name, value in headers if name.lower().startswith(PREFIX.lower()))


def _sent(headers: Iterable[tuple[str, str]]) -> Mapping[str, Sequence[str]]:
    prefix = PREFIX.lower()
    found: dict[str, list[str]] = {}
    for name, value in headers:
        key = name.lower()
        if key.startswith(prefix):
            found.setdefault(key, []).append(value)
    return found


def _disagreement(annotation: Annotation, arguments: bytes | None, sent: Sequence[str]) -> str | None:
    where = ".".join(annotation.path)
    value = _value_at(arguments, annotation.path)
    if len(sent) > 1:
        return "occurs more than once"
    if value is _No.CERTAINTY:
        return f"cannot be compared, since the arguments leave more than one reading of {where}"
    if value is _No.VALUE or value is _No.SCALAR:
        return f"is present, but the argument {where} has no value to repeat" if sent else None
    if not sent:
        return f"is missing, but the argument {where} is present"
    decoded = decode_value(sent[0])
    if decoded is None:
        return "is malformed"
    return None if _equal(decoded, value) else f"does not match the argument {where}"


def _equal(header: str, value: str | bool | _Number) -> bool:
    match value:
        case bool():
            return header == ("true" if value else "false")
        case _Number(text):
            return _NUMBER.fullmatch(header) is not None and _same_number(header, text)
        case str():
            return header == value
        case _:
            assert_never(value)


def _same_number(one: str, other: str) -> bool:
    """Exactly, without floating point: `42.0` is 42, and 2^53 + 1 is not 2^53."""
    try:
        return Decimal(one) == Decimal(other)
    except ArithmeticError:  # an exponent beyond Decimal's
        return False


def _value_at(arguments: bytes | None, path: _Path) -> str | bool | _Number | _No:
    node = arguments
    for key in path:
        if node is None or not node.startswith(b"{"):
            return _No.VALUE
        try:
            if splice.has_equal_keys(node):
                return _No.CERTAINTY
            found = splice.members(node).get(key)
        except ValueError:
            return _No.CERTAINTY
        node = None if found is None else bytes(found)
    return _No.VALUE if node is None else _value(node)


def _value(text: bytes) -> str | bool | _Number | _No:
    match text[:1]:
        case b'"':
            return str(json.loads(text))
        case b"t" | b"f":
            return text == b"true"
        case b"n":
            return _No.VALUE
        case b"{" | b"[":
            return _No.SCALAR
        case _:
            return _Number(text.decode())


def header_values(annotated: Annotations, arguments: bytes | None) -> dict[str, str]:
    """The `Mcp-Param-*` headers that repeat these arguments of a call (JSON text, or None)."""
    found: dict[str, str] = {}
    for annotation in annotated:
        match _value_at(arguments, annotation.path):
            case bool() as flag:
                found[annotation.header] = "true" if flag else "false"
            case _Number(text):
                found[annotation.header] = _decimal(text)
            case str() as text:
                found[annotation.header] = encode_value(text)
            case _No():
                pass
    return found


_EXACT: Final = 2**53
"""Integers from here on are none that a header may repeat; their text stays as it is."""


def _decimal(number: str) -> str:
    """An integer in decimal, however the arguments write it: `1E2` and `100.0` are 100."""
    if number.removeprefix("-").isdigit():
        return number
    try:
        value = Decimal(number)
        return str(int(value)) if abs(value) < _EXACT and value == int(value) else number
    except ArithmeticError:
        return number


# --- the tools of one upstream ---


def without_invalid_tools(result: bytes) -> tuple[bytes, list[tuple[str, str]]]:
    """A result of `tools/list` less the tools whose annotations are invalid, and these with the reasons.

    Clients over HTTP leave such tools out (2026-07-28, "Schema Extension"); a result without
    any comes back as it was.
    """
    if ANNOTATION.encode() not in result and b"\\u" not in result:
        return result, []
    try:
        listed = splice.elements(splice.members(result).get("tools", b"[]"))
    except ValueError:
        return result, []
    judged = [(text, *_judged(bytes(text))) for text in listed]
    dropped = [(name, reason) for _, name, reason in judged if reason is not None]
    if not dropped:
        return result, []
    kept = b",".join([bytes(text) for text, _, reason in judged if reason is None])
    return splice.replaced(result, ("tools",), b"[%b]" % kept), dropped


def _judged(tool: bytes) -> tuple[str, str | None]:
    """A tool's name, and why its annotations are invalid if they are."""
    try:
        found = _decode(tool.decode())
    except (ValueError, RecursionError):
        return "", None
    verdict = _annotations(found.get("inputSchema")) if isinstance(found, dict) else ()
    name = str(found.get("name", "")) if isinstance(found, dict) else ""
    return name, verdict.reason if isinstance(verdict, Invalid) else None


_PAGES: Final = 100
"""Pages of `tools/list` that are asked for before what is known has to do."""
_TOOLS: Final = 10_000
"""Annotated tools remembered."""


class ToolIndex:
    """The annotated tools of one upstream, as far as its `tools/list` results have been seen.

    Before a call is checked, the pages that are lacking are asked for:

        while not index.complete:
            cursor = index.wanted
            index.learn(result_of_tools_list(cursor), cursor)   # or index.settle() if it failed
        found = index.tool(name)
    """

    def __init__(self) -> None:
        self.forget()

    @property
    def complete(self) -> bool:
        """Whether every page was seen, or `settle` was called, since the last `forget`."""
        return self._complete

    @property
    def wanted(self) -> str | None:
        """The cursor of the next page to ask for; None is the first page."""
        return self._wanted

    def tool(self, name: str) -> Annotations | None:
        """The annotations to check a call with; None if none are known, also if they are invalid."""
        return self._tools.get(name)

    def learn(self, result: bytes | msgspec.Raw, cursor: str | None = None) -> None:
        """Take in one result of `tools/list`, asked for with `cursor`, whoever asked.

        A result that cannot be read teaches nothing, and ends the pages.
        """
        text = bytes(result)
        try:
            following = _next_cursor(text)
            self._read(text)
        except (ValueError, RecursionError):
            following = None
        if cursor == self._wanted and not self._complete:
            self._turn(following)

    def settle(self) -> None:
        """Ask no more: what is known has to do, until `forget`."""
        self._complete = True

    def forget(self) -> None:
        """The tools have changed, or the server is another process."""
        self._tools: dict[str, Annotations] = {}
        self._seen: set[str | None] = set()
        self._wanted: str | None = None
        self._complete = False

    def _turn(self, following: str | None) -> None:
        self._seen.add(self._wanted)
        self._wanted = following
        # A server whose cursors go in a circle must not be asked for ever.
        if following is None or following in self._seen or len(self._seen) >= _PAGES:
            self._complete = True

    def _read(self, text: bytes) -> None:
        # Few servers annotate anything: then a list of any length costs two searches.
        if not self._tools and ANNOTATION.encode() not in text and b"\\u" not in text:
            return
        tools = _decode(text.decode()).get("tools")
        for tool in tools if isinstance(tools, list) else ():
            if isinstance(tool, dict) and isinstance(tool.get("name"), str):
                self._put(tool["name"], _annotations(tool.get("inputSchema")))

    def _put(self, name: str, found: Annotations | Invalid) -> None:
        self._tools.pop(name, None)
        if isinstance(found, tuple) and found and len(self._tools) < _TOOLS:
            self._tools[name] = found


def _next_cursor(text: bytes) -> str | None:
    value = bytes(splice.members(text).get("nextCursor", b""))
    return str(json.loads(value)) if value.startswith(b'"') else None
