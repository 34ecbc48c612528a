"""JSON text edited in place, so that what a message carries is never re-serialised.

Number text, key order, escapes and unknown members survive, because values are only
ever cut out and put back as bytes. Two readers do the cutting: msgspec, and for the few
texts that it will not read (a lone surrogate such as `\\ud800`, which JSON's grammar
allows) a walk with the standard library's scanner.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")
Members = dict[str, bytes]

# Possessive, and to the end if it is not closed: every quote of a broken text would else start a
# search of its own, which took 8 s for 32 KiB.
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?'
_STRINGS: Final = re.compile(_STRING, re.DOTALL)
_KEPT_STRINGS: Final = re.compile(rb"(" + _STRING + rb")", re.DOTALL)
_BLANK: Final = re.compile(r"[ \t\r\n]*")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_NO_MARKS: Final = bytes(set(range(256)) - set(b"[]{}:"))
_STEP: Final = bytes.maketrans(b"[{]}:", b"\x01\x01\xff\xff\x00")
_COLON: Final = ord(":")
_LARGE: Final = 16 * 1024

_read_any = msgspec.json.Decoder(msgspec.Raw).decode
_read_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
quote = msgspec.json.Encoder().encode


def _not_json(token: str) -> float:
    raise ValueError(token)


# Numbers stay text: an integer of 5,000 digits must not meet int()'s limit.
_scan = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_not_json).raw_decode


def compact(text: bytes) -> bytes:
    """`text` without the blanks between its tokens; `text` must be valid JSON."""
    pieces = _KEPT_STRINGS.split(text)
    pieces[::2] = [between.translate(None, b" \t\r\n") for between in pieces[::2]]
    return b"".join(pieces)


def too_deep(text: bytes, limit: int) -> bool:
    """Whether arrays and objects nest more than `limit` levels, whatever stands in strings."""
    if not _more_brackets(text, limit):
        return False
    return max(_depths(_STRINGS.sub(b"", text).translate(None, _NO_BRACKETS)), default=0) > limit


def _depths(marks: bytes) -> Iterable[int]:
    """How deep one is after each of these brackets and colons."""
    return accumulate(memoryview(marks.translate(_STEP)).cast("b"))


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
        return dict(_walk(bytes(text), "{}", _member))


def elements(text: bytes | msgspec.Raw) -> list[msgspec.Raw]:
    """The elements of a JSON array as text. Raises ValueError if `text` is none."""
    try:
        return _read_array(text)
    except (msgspec.DecodeError, RecursionError):
        return [msgspec.Raw(value) for value in _walk(bytes(text), "[]", _value)]


def joined(parts: Iterable[tuple[str, bytes]]) -> bytes:
    """An object of these members."""
    return b"{" + b",".join([b"%b:%b" % (_quoted(key), value) for key, value in parts]) + b"}"


def _quoted(key: str) -> bytes:
    try:
        return quote(key)
    except UnicodeEncodeError:
        # Half a surrogate pair has no UTF-8, but an escape, which is how Python writes it here too.
        return json.dumps(key, ensure_ascii=False).encode(errors="backslashreplace")


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
    for another; only where blanks or escapes leave a doubt are the members counted.
    """
    parts = members(text)
    shortest = 1 + (sum([len(_quoted(key)) + len(value) + 2 for key, value in parts.items()]) or 1)
    return len(text) != shortest and len(parts) != _count(bytes(text))


def _count(text: bytes) -> int:
    """How many members the object `text` itself has: the colons that stand in no string and no deeper."""
    marks = _STRINGS.sub(b"", text).translate(None, _NO_MARKS)
    return sum([depth == 1 for mark, depth in zip(marks, _depths(marks), strict=True) if mark == _COLON])


def _walk(text: bytes, brackets: str, cut: Callable[[str, int], tuple[T, int]]) -> list[T]:
    """All that stands between these brackets, for what msgspec refused. Raises ValueError if they do not."""
    if not _has_surrogates(text):
        raise ValueError("not JSON, or something else")
    source = text.decode()
    found: list[T] = []
    at = _past(brackets[0], source, _skip(source, 0))
    if source[at : at + 1] == brackets[1]:
        return _ended(source, at + 1, found)
    while True:
        one, end = cut(source, at)
        found.append(one)
        at = _skip(source, end)
        if source[at : at + 1] == brackets[1]:
            return _ended(source, at + 1, found)
        at = _past(",", source, at)


def _member(source: str, start: int) -> tuple[tuple[str, bytes], int]:
    """The member that begins at `start`, and where it ends."""
    if source[start : start + 1] != '"':
        raise ValueError("no key")
    end = _value_end(source, start)
    key = str(json.loads(source[start:end]))
    value, end = _value(source, _past(":", source, _skip(source, end)))
    return (key, value), end


def _value(source: str, start: int) -> tuple[bytes, int]:
    end = _value_end(source, start)
    return source[start:end].encode(), end


def _past(mark: str, source: str, at: int) -> int:
    """Where the text goes on after the mark at `at`. Raises ValueError if it is not there."""
    if source[at : at + 1] != mark:
        raise ValueError(f"no {mark}")
    return _skip(source, at + 1)


def is_json(text: bytes) -> bool:
    """Whether `text` is one JSON value, by the grammar alone; blanks around it are allowed."""
    try:
        _read_any(text)
    except RecursionError:
        return False
    except msgspec.DecodeError:
        return _has_surrogates(text) and _is_value(text.decode().strip(" \t\r\n"))
    return True


def _has_surrogates(text: bytes) -> bool:
    """Whether half a surrogate pair may stand in it: the one thing in JSON that msgspec refuses."""
    return b"\\ud" in text or b"\\uD" in text


def _is_value(source: str) -> bool:
    try:
        return _value_end(source, 0) == len(source)
    except ValueError:
        return False


def _value_end(source: str, start: int) -> int:
    """Where the JSON value that begins at `start` ends. Raises ValueError if there is none."""
    try:
        return _scan(source, start)[1]
    except RecursionError as fault:
        raise ValueError("nested too deep") from fault


def _skip(source: str, at: int) -> int:
    blank = _BLANK.match(source, at)
    return blank.end() if blank else at


def _ended(source: str, at: int, found: list[T]) -> list[T]:
    if _skip(source, at) != len(source):
        raise ValueError("text after the end")
    return found
