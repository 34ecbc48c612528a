"""What an operator lets clients see and use of a server: the rules as they are written, and as they hold.

A name is judged as the text that it is, in whatever spelling it came. A URI has many spellings for
one resource, so it is judged twice: as it came, and with its dots and escapes resolved; either can
deny it. That makes an `allow` tight, while a `deny` can only know the spellings of this file: a
server may have more (links, other schemes, letters that count as equal).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

LONGEST: Final = 8192
"""Characters of a name; what is longer is denied, since to match it takes time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Glob patterns (`fnmatch`, case counts, `*` takes slashes too): what matches `deny` is denied;
    if there is an `allow`, what does not match it is denied too."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What clients may see and use of a server, in lists and in calls alike.

    `methods` holds for requests and notifications of either side; `resources` for URIs.
    """

    methods: Rule = Rule()
    tools: Rule = Rule()
    prompts: Rule = Rule()
    resources: Rule = Rule()


class Permit:
    """A rule at work; with `uris` the names are URIs, or templates of them."""

    def __init__(self, rule: Rule, *, uris: bool = False) -> None:
        self.restricts = rule.allow is not None or bool(rule.deny)
        """Whether there is anything that it denies."""
        self._allow = None if rule.allow is None else _compiled(rule.allow)
        self._deny = _compiled(rule.deny)
        self._uris = uris

    def lets(self, name: str) -> bool:
        if not self.restricts:
            return True
        if len(name) > LONGEST:
            return False
        return self._passes(name) and (not self._uris or self._passes(resolved(name)))

    def _passes(self, name: str) -> bool:
        if self._allow is not None and not _matches(self._allow, name):
            return False
        return not _matches(self._deny, name)


def _compiled(globs: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    # What fnmatch makes of a star never goes back, so a match takes at most |glob| times |name|.
    return tuple(re.compile(fnmatch.translate(glob)) for glob in globs)


def _matches(patterns: tuple[re.Pattern[str], ...], name: str) -> bool:
    return any(pattern.match(name) for pattern in patterns)


def resolved(uri: str) -> str:
    """`uri` as most servers read it: scheme and host in small letters, the path without escapes, empty
    segments and dots (RFC 3986, 6.2.2)."""
    scheme, colon, rest = uri.partition(":")
    if not colon:
        scheme, rest = "", uri
    rest, mark, query = rest.partition("?")
    rest = rest.replace("\\", "/")
    authority = ""
    if rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        authority, rest = f"//{authority.lower()}", slash + path
    return f"{scheme.lower()}{colon}{authority}{_walked(unquote(rest))}{mark}{query}"


def _walked(path: str) -> str:
    """The path without `.`, `..` and empty segments; one that would leave its root stays there."""
    parts = path.replace("\\", "/").split("/")
    kept: list[str] = []
    for part in parts:
        if part == "..":
            del kept[-1:]
        elif part not in ("", "."):
            kept.append(part)
    opens = "/" if path.startswith(("/", "\\")) else ""
    closes = "/" if kept and parts[-1] in ("", ".", "..") else ""
    return f"{opens}{'/'.join(kept)}{closes}"
