"""JSON text edited in place, so that what a message carries is never re-serialised.

Number text, key order, escapes and unknown members survive, because values are only
ever cut out and put back as bytes. Two readers do the cutting: msgspec, and for the few
texts that it will not read (a lone surrogate such as `\\ud800`, which JSON's grammar
allows) or that need their keys counted, a walk with the standard library's scanner.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

import msgspec

Members = dict[str, bytes]

_STRING: Final = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_STRINGS: Final = re.compile(_STRING, re.DOTALL)
_STRING_OR_BLANK: Final = re.compile(rb"(" + _STRING + rb")|[ \t\r\n]+", re.DOTALL)
_BLANK: Final = re.compile(r"[ \t\r\n]*")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEP: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_LARGE: Final = 16 * 1024

_read_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
quote = msgspec.json.Encoder().encode


def _not_json(token: str) -> float:
    raise ValueError(token)


# Numbers stay text: an integer of 5,000 digits must not meet int()'s limit.
_scan = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_not_json).raw_decode


def compact(text: bytes) -> bytes:
    """`text` without the blanks between its tokens; `text` must be valid JSON."""
    return _STRING_OR_BLANK.sub(rb"\1", text)


def too_deep(text: bytes, limit: int) -> bool:
    """Whether arrays and objects nest more than `limit` levels, whatever stands in strings."""
    if not _more_brackets(text, limit):
        return False
    steps = _STRINGS.sub(b"", text).translate(_STEP, _NO_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > limit


def _more_brackets(text: bytes, limit: int) -> bool:
    """Whether `text` has more than `limit` opening brackets; a large one is not read to its end."""
    if len(text) < _LARGE:
        return text.count(b"{") + text.count(b"[") > limit
    left = limit
    for bracket in (b"{", b"["):
        at = text.find(bracket)
        while at >= 0:
            left -= 1
            if left < 0:
                return True
            at = text.find(bracket, at + 1)
    return False


def members(text: bytes | msgspec.Raw) -> Members:
    """The members of a JSON object, in order, values as text; of equal keys the last.

    Raises ValueError if `text` is no JSON object.
    """
    try:
        return _read_object(text)  # type: ignore[return-value]  # Raw is as good as bytes to all users
    except (msgspec.DecodeError, RecursionError):
        return dict(_walk(bytes(text)))


def joined(parts: Iterable[tuple[str, bytes]]) -> bytes:
    """An object of these members."""
    return b"{" + b",".join([b"%b:%b" % (_quoted(key), value) for key, value in parts]) + b"}"


def _quoted(key: str) -> bytes:
    try:
        return quote(key)
    except UnicodeEncodeError:
        return json.dumps(key).encode()  # a lone surrogate has no UTF-8, but an escape


def replaced(text: bytes | msgspec.Raw, path: tuple[str, ...], value: bytes | None) -> bytes:
    """The object `text` with the member at `path` set to `value`, or without it for None.

    A member that is new goes to the end; objects on the way that are missing are made.
    """
    parts = members(text)
    key, rest = path[0], path[1:]
    if rest:
        value = replaced(parts.get(key, b"{}"), rest, value)
    if value is None:
        parts.pop(key, None)
    else:
        parts[key] = value
    return joined(parts.items())


def has_equal_keys(text: bytes | msgspec.Raw) -> bool:
    """Whether the object `text` itself (not what it holds) has a key twice.

    An object whose distinct members already account for its whole length has no room
    for another; only where blanks or escapes leave a doubt are the keys counted.
    """
    if _fills(text):
        return False
    tight = compact(bytes(text))
    if _fills(tight):
        return False
    keys = [key for key, _ in _walk(tight)]
    return len(keys) != len(set(keys))


def _fills(text: bytes | msgspec.Raw) -> bool:
    """Whether the distinct members of `text`, written the shortest way, are as long as it is."""
    parts = members(text)
    return len(text) == 1 + (sum([len(_quoted(key)) + len(value) + 2 for key, value in parts.items()]) or 1)


def _walk(text: bytes) -> list[tuple[str, bytes]]:
    """Every member of an object, equal keys included. Raises ValueError if it is none."""
    source = text.decode()
    found: list[tuple[str, bytes]] = []
    at = _skip(source, 0)
    if source[at : at + 1] != "{":
        raise ValueError("not an object")
    at = _skip(source, at + 1)
    if source[at : at + 1] == "}":
        return _ended(source, at + 1, found)
    while True:
        if source[at : at + 1] != '"':
            raise ValueError("no key")
        end = value_end(source, at)
        key = str(json.loads(source[at:end]))
        at = _skip(source, end)
        if source[at : at + 1] != ":":
            raise ValueError("no colon")
        start = _skip(source, at + 1)
        end = value_end(source, start)
        found.append((key, source[start:end].encode()))
        at = _skip(source, end)
        if source[at : at + 1] == "}":
            return _ended(source, at + 1, found)
        if source[at : at + 1] != ",":
            raise ValueError("no comma")
        at = _skip(source, at + 1)


def value_end(source: str, start: int) -> int:
    """Where the JSON value that begins at `start` ends. Raises ValueError if there is none."""
    try:
        return _scan(source, start)[1]
    except RecursionError as fault:
        raise ValueError("nested too deep") from fault


def _skip(source: str, at: int) -> int:
    blank = _BLANK.match(source, at)
    return blank.end() if blank else at


def _ended(source: str, at: int, found: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    if _skip(source, at) != len(source):
        raise ValueError("text after the object")
    return found
