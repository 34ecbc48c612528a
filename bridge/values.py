"""How values are written: one function a kind, text in, a checked value out, ValueError if it is none.

It decides the grammar of durations, sizes, `K=V`, `K: V`, URLs and the rest, and what the fault says:
one clause that the command line puts behind the option's name. Text that may well be a secret (the
value of a variable or a header, a URL) is never quoted there. It refuses to know which option a value
is of, where it came from and what is done with it, and imports neither click nor the network.

Answers RFC 9110 sections 5.1 and 5.5 for header fields, and RFC 6750 section 2.1 for tokens.
"""

from __future__ import annotations

import ipaddress
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

HEALTH_PATHS = frozenset({"/healthz", "/readyz"})
TOKEN_LENGTH = range(16, 4097)

_NUMBER = re.compile(r"\d+(\.\d*)?(e\+?\d+)?", re.ASCII)
_DURATION = re.compile(
    r"(?=\d)((?P<h>\d+(\.\d+)?)h)?((?P<m>\d+(\.\d+)?)m(?!s))?((?P<s>\d+(\.\d+)?)s)?((?P<ms>\d+(\.\d+)?)ms)?",
    re.ASCII,
)
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NO_LIMIT = frozenset({"off", "none"})


def parse_limit(text: str) -> float | None:
    """Seconds, or None for no limit: as `parse_duration`, and `off`, `none` or `0`.

    Raises ValueError.
    """
    return None if text.strip().lower() in _NO_LIMIT else _seconds(text) or None


def parse_duration(text: str) -> float:
    """Seconds above 0, from `30s`, `5m`, `1h30m`, `250ms`, or a plain number of seconds.

    Raises ValueError.
    """
    seconds = _seconds(text)
    if not seconds:
        raise ValueError("must be longer than 0")
    return seconds


def _seconds(text: str) -> float:
    text = text.strip().lower()
    if _NUMBER.fullmatch(text):
        seconds = float(text)
    elif found := _DURATION.fullmatch(text):
        seconds = sum(float(value) * _SECONDS[unit] for unit, value in found.groupdict().items() if value)
    else:
        raise ValueError(f"{text!r} is not a duration such as 30s, 5m, 1h30m or 250ms")
    if not math.isfinite(seconds):
        raise ValueError(f"{text!r} is too long a duration")
    return seconds


def spell_duration(seconds: float | None) -> str:
    """The shortest text that `parse_limit` reads as this."""
    if seconds is None:
        return "off"
    unit = next((unit for unit in ("h", "m") if seconds and seconds % _SECONDS[unit] == 0), "s")
    return f"{seconds / _SECONDS[unit]:g}{unit}"


_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kmg]i?b|b)?", re.ASCII)
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes above 0, from `8MiB` (1024), `500KB` (1000) or a plain number. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip().lower())
    if not found:
        raise ValueError(f"{text!r} is not a size such as 8MiB, 500KB or 1048576")
    size = int(float(found[1]) * _BYTES[found[2] or "b"])
    if not size:
        raise ValueError("must be larger than 0")
    return size


def spell_size(size: int) -> str:
    unit = next(unit for unit in ("GiB", "MiB", "KiB", "B") if size % _BYTES[unit.lower()] == 0)
    return f"{size // _BYTES[unit.lower()]}{unit}"


def parse_mode(text: str) -> int:
    """A file mode in octal. Raises ValueError."""
    if not re.fullmatch(r"(0o?)?[0-7]{3}", text):
        raise ValueError(f"{text!r} is not an octal file mode such as 600 or 0660")
    return int(text, 8)


def parse_command(text: str) -> tuple[str, ...]:
    """The words of a command as a POSIX shell would split them; nothing is expanded.

    Raises ValueError.
    """
    try:
        return tuple(shlex.split(text, posix=True))
    except ValueError as fault:
        raise ValueError(f"cannot be split into words: {str(fault).lower()}") from None


def parse_variable(text: str) -> tuple[str, str]:
    """`K=V` at its first `=`, everything else as it stands. Raises ValueError.

    The fault never quotes the text: what was given without a name may well be a secret.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError("K=V expected (to pass on a variable of the bridge, say --inherit-env NAME)")
    return name, value


_REFERENCE = re.compile(r"\$\$\{|\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)\})?")


def expand(text: str, environ: Mapping[str, str]) -> str:
    """`text` with each `${VAR}` replaced; `$${` stands for `${`, any other `$` for itself.

    Raises ValueError for a variable that is not set, or braces that hold no name.
    """

    def replaced(found: re.Match[str]) -> str:
        if found[0] == "$${":
            return "${"
        if found["name"] is None:
            raise ValueError("${ without a variable name and }; write $${ for a literal ${")
        if found["name"] not in environ:
            raise ValueError(f"${{{found['name']}}} is not set in the environment of the bridge")
        return environ[found["name"]]

    return _REFERENCE.sub(replaced, text)


def parse_pattern(text: str) -> str:
    """A variable name or glob pattern. Raises ValueError."""
    if "=" in text or not text.strip():
        raise ValueError("a name or pattern such as GITHUB_* expected (to set a variable, say --env K=V)")
    return text.strip()


_PATH = re.compile(r"(/[\w.~!$&'()*+,;=:@%-]+)*/?", re.ASCII)


def parse_path(text: str) -> str:
    """The endpoint path, without a slash at its end. Raises ValueError."""
    if not text.startswith("/"):
        raise ValueError(f"{text!r} must begin with /")
    path = text.rstrip("/") or "/"
    if not _PATH.fullmatch(text) or {".", ".."} & set(path.split("/")):
        raise ValueError(f"{text!r} is not a plain URL path")
    if path in HEALTH_PATHS:
        raise ValueError(f"{path} is taken by the health endpoints")
    return path


def parse_host(text: str) -> str:
    """An address or name to listen on, without the brackets of a URL. Raises ValueError."""
    bracketed = re.fullmatch(r"\[(.*:.*)\]", text)
    host = bracketed[1] if bracketed else text
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not re.fullmatch(r"[\w.-]+", host):
            raise ValueError(f"{text!r} is not an address or host name (the port is --port)") from None
    return host


def parse_authority(text: str) -> str:
    """A Host value: a name, `*.` before a domain, or an address; any port or one. Raises ValueError."""
    if not re.fullmatch(r"(\*|(\*\.)?[a-z0-9._~-]+|\[[0-9a-f:.]+\])(:\d+)?", text, re.ASCII | re.IGNORECASE):
        raise ValueError(f"{text!r} is not a host such as mcp.example.com or mcp.example.com:8443")
    return text.lower()


def parse_origin(text: str) -> str:
    """An Origin value, `scheme://host[:port]`, or `*` for any. Raises ValueError."""
    origin = text.lower().rstrip("/")
    if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#@*]+", origin):
        raise ValueError(f"{text!r} is not an origin such as https://app.example.com")
    return origin


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`; names other than localhost are not trusted to."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    loopback = ("127.0.0.0/8", "::1/128")
    return any(address in ipaddress.ip_network(network) for network in loopback)


def parse_token(text: str) -> str:
    """A bearer token, less the line break at its end. Raises ValueError."""
    token = text.rstrip("\r\n")
    if not token:
        raise ValueError("the token is empty")
    if len(token) not in TOKEN_LENGTH:
        raise ValueError(f"the token must have {TOKEN_LENGTH.start} to {TOKEN_LENGTH.stop - 1} characters")
    # RFC 6750 section 2.1: nothing else survives in an Authorization header.
    if not re.fullmatch(r"[A-Za-z0-9._~+/-]+=*", token):
        raise ValueError("the token may have only letters, digits and - . _ ~ + /, then =")
    return token


# -- header fields ----------------------------------------------------------------------------

_FIELD_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_FIELD_VALUE = re.compile(r"[\t -~]+")


def parse_header(text: str) -> tuple[str, str]:
    """`K: V` at its first colon, without the blanks around V. Raises ValueError."""
    return _split_header(text, "K: V")


def parse_header_file(text: str) -> tuple[str, Path]:
    """`K: PATH` at its first colon. Raises ValueError."""
    name, path = _split_header(text, "K: PATH")
    return name, Path(path)


def _split_header(text: str, form: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not _FIELD_NAME.fullmatch(name):
        raise ValueError(f"{form} expected, with the name of a header for K")
    if not value.strip():
        raise ValueError(f"{name}: nothing follows the colon; is '{form}' in quotes?")
    return name, value.strip(" \t")


def parse_header_value(text: str) -> str:
    """What may stand behind a header's colon: printable ASCII. Raises ValueError."""
    value = text.strip(" \t")
    if not value:
        raise ValueError("the value is empty")
    # Line breaks would begin another header; of anything else each server makes its own.
    if not _FIELD_VALUE.fullmatch(value):
        raise ValueError("the value may hold only printable ASCII, and no line break")
    return value


# -- servers ----------------------------------------------------------------------------------


_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def parse_replica(text: str) -> str:
    """The name of one of several bridges. Raises ValueError."""
    if _NAME.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no name: letters, digits, '.', '_' and '-', at most 64")
    return text


def parse_peer(text: str) -> tuple[str, str]:
    """`NAME=URL` of another bridge. Raises ValueError."""
    name, mark, url = text.partition("=")
    if not mark:
        raise ValueError(f"{text!r} is not NAME=URL")
    address = parse_url(url)
    if address.socket is not None:
        raise ValueError("a peer is reached at http:// or https://")
    return parse_replica(name), address.url


def parse_root(text: str) -> str:
    """A root's URI. Raises ValueError."""
    if not urlsplit(text).scheme:
        raise ValueError(f"{text!r} is no URI, such as file:///home/me/project")
    return text


@dataclass(frozen=True, slots=True)
class Address:
    """A URL, and the Unix socket to reach it through, if it is not its host."""

    url: str
    socket: Path | None = None


_SOCKET = re.compile(r"unix:(?P<socket>/.*?[^/:]):(?P<path>/.*)")
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f-\x9f\ud800-\udfff]")


def parse_url(text: str) -> Address:
    """A server's address: `http(s)://…`, or `unix:SOCKET:PATH`; a fragment is dropped.

    Raises ValueError.
    """
    text = text.strip()
    if not text.startswith("unix:"):
        return Address(_checked_url(text).geturl())
    found = _SOCKET.fullmatch(text)
    if not found:
        raise ValueError("unix:SOCKET:PATH expected, with an absolute SOCKET, as in unix:/run/mcp.sock:/mcp")
    return Address(_checked_url(f"http://localhost{found['path']}").geturl(), Path(found["socket"]))


def parse_base_url(text: str) -> str:
    """An `http(s)://host[:port][/prefix]`, without a slash at its end. Raises ValueError."""
    url = _checked_url(text.strip())
    if url.query:
        raise ValueError("a query has no place here")
    return url.geturl().rstrip("/")


_NETLOC = re.compile(r"(\[(?P<address>[^\[\]]+)\]|(?P<name>[\w.~-]+))(:\d*)?")


def _checked_url(text: str) -> SplitResult:
    if _UNPRINTABLE.search(text):
        raise ValueError("it holds a blank or a control character; write it as %20 and the like")
    try:
        url = urlsplit(text)
    except ValueError:
        raise ValueError("its host or port is malformed") from None
    if url.scheme not in ("http", "https"):
        raise ValueError("it must begin with https:// or http://")
    if "@" in url.netloc:
        raise ValueError("user and password have no place in it; put credentials into --header")
    if not _is_place(url):
        raise ValueError("its host or port is malformed")
    return url._replace(fragment="")


def _is_place(url: SplitResult) -> bool:
    found = _NETLOC.fullmatch(url.netloc)
    try:
        if not found or url.port == 0:
            return False
        if found["address"]:
            return ipaddress.ip_address(found["address"]).version == 6
        return bool(found["name"].encode("idna"))
    except ValueError:
        return False
