"""JSON as RFC 8259 has it, read here by other means than the code under test, and texts to try it with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from hypothesis import strategies as st

_TOKEN = re.compile(
    rb"""[ \t\r\n]*(
        [][{}:,]
        | "(?:[^"\\\x00-\x1f] | \\(?:["\\/bfnrt] | u[0-9a-fA-F]{4}))*"
        | -?(?:0 | [1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?
        | true | false | null
    )""",
    re.VERBOSE,
)
_LITERAL = re.compile(rb'["\-0-9tfn]')


def tokens(text: bytes) -> list[bytes] | None:
    """The tokens of `text`, None if it holds anything that is none."""
    found: list[bytes] = []
    at, end = 0, len(text.rstrip(b" \t\r\n"))
    while at < end:
        token = _TOKEN.match(text, at)
        if token is None:
            return None
        found.append(token[1])
        at = token.end()
    return found


def is_json(text: bytes) -> bool:
    """Whether `text` is one JSON value in UTF-8: its tokens are taken one by one by a stack of wants."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    found = tokens(text)
    wants = ["value"]
    for token in found or [b"?"]:
        if not wants or not _took(token, wants):
            return False
    return not wants


def _took(token: bytes, wants: list[str]) -> bool:
    """Whether the last want is content with this token; what it wants then is put in its place."""
    want = wants.pop()
    if want == "value or ]" and token != b"]":
        wants.append(", or ]")
        want = "value"
    if want == "key or }" and token != b"}":
        want = "key"
    if want == "value" and token in (b"[", b"{"):
        wants.append("value or ]" if token == b"[" else "key or }")
        return True
    if want == "value":
        return _LITERAL.match(token) is not None
    if want == "key":
        wants.extend([", or }", "value", ":"])
        return token.startswith(b'"')
    if token == b"," and want == ", or ]":
        wants.extend([want, "value"])
        return True
    if token == b"," and want == ", or }":
        wants.append("key")
        return True
    return token == want[-1:].encode()


BLANKS = st.sampled_from([b"", b"", b"", b" ", b"\t", b"\r\n", b"\n  "])
NUMBERS = st.sampled_from(
    b"0 -0 1 17 -1 1.0 1E5 1e400 0.10 0.1000000000000000055 2E-7 18446744073709551616".split()
)
_ASCII_PIECES = rb"a id method { ] , : \\ \" \/ \n \u0000 \u00e9 \u0069 \ud83c\udf89 \ud800 \uDC00".split()
_PIECES = st.sampled_from([*_ASCII_PIECES, b" ", b"\x7f", "é".encode(), "🎉".encode(), "\u2028".encode()])
STRINGS = st.lists(_PIECES, max_size=6).map(lambda pieces: b'"' + b"".join(pieces) + b'"')
WHOLE_STRINGS = STRINGS.filter(lambda text: b"\\ud800" not in text and b"\\uDC00" not in text)
"""Strings that have UTF-8."""
SCALARS = st.one_of(NUMBERS, STRINGS, st.sampled_from([b"true", b"false", b"null"]))


def object_of(members: Iterable[tuple[bytes, bytes]], blank: Callable[[], bytes] = bytes) -> bytes:
    parts = [b"".join((blank(), key, blank(), b":", blank(), value, blank())) for key, value in members]
    return b"{" + (b",".join(parts) or blank()) + b"}"


def _inner(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    members = st.lists(st.tuples(st.one_of(STRINGS, st.just(b'"id"')), values), max_size=4)
    arrays = st.tuples(st.lists(values, max_size=4), BLANKS).map(
        lambda pair: b"[" + (b"," + pair[1]).join(pair[0]) + pair[1] + b"]"
    )
    objects = st.tuples(members, BLANKS).map(lambda pair: object_of(pair[0], lambda: pair[1]))
    return st.one_of(arrays, objects)


VALUES = st.recursive(SCALARS, _inner, max_leaves=12)
OBJECTS = _inner(VALUES).filter(lambda text: text.startswith(b"{"))
STRUCTURES = _inner(VALUES)
IDS = st.one_of(st.sampled_from([b"0", b"1", b"-1", b"18446744073709551616"]), WHOLE_STRINGS)
