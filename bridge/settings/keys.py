"""The keys of a configuration file: each is an option, at its place in a table.

Derived from the table of options, so that a key is read by the same function and described by the
same words as its option. What only a file can say is added here: secrets as such, and which
servers there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import click

from bridge.options import (
    ACCESS,
    CONFINEMENT,
    ERAS,
    FILE,
    LIMITS,
    LISTENING,
    LOGGING,
    OPERATION,
    OPTIONS,
    PROCESSES,
    QUOTAS,
    REMOTE,
    REPLICAS,
    SERVER,
    SERVING,
    SectionOption,
    option,
)
from bridge.settings.said import parameter
from bridge.values import (
    parse_caller_token,
    parse_duration,
    parse_glob,
    parse_header_file,
    parse_limit,
    parse_rate,
    parse_rlimit,
    parse_size,
    parse_token,
    parse_url,
)


class Form(Enum):
    """How a key holds what its option takes."""

    ONE = "one value"
    LIST = "an array"
    TABLE = "a table"
    WORDS = "an array or a string"
    RATE = "a rate, or a table of its parts"


@dataclass(frozen=True, slots=True)
class Key:
    """`between` stands between name and value of a table's entry where an option has both in one text."""

    option: SectionOption
    form: Form = Form.ONE
    between: str = ""
    secret: bool = False

    @property
    def name(self) -> str:
        """What the option is called in the program."""
        return str(self.option.name)

    @property
    def numbers(self) -> tuple[type, ...]:
        """The kinds of numbers that it takes, besides text."""
        read = self.option.read
        if isinstance(read, click.IntRange):
            return (int,)
        return _NUMBERS.get(read, ())

    @property
    def is_path(self) -> bool:
        return isinstance(self.option.read, click.Path) or self.option.read is parse_header_file


_NUMBERS: Final = {
    parse_duration: (int, float),
    parse_limit: (int, float),
    parse_size: (int,),
    parse_rlimit: (int,),
}

Spec: TypeAlias = "Mapping[str, Key | Spec]"
"""A table: what may be in it."""

# What a command line cannot say, or says otherwise.
_FILE_ONLY = (
    option(FILE, "--allowed-commands", "GLOB", parse_glob, """
        Programs that a server of this file may be: a pattern with a slash is held against the program that
        is found, one without against the name as it is written. Without it, all.""", multiple=True),
    option(FILE, "--include", "GLOB", parse_glob, """
        Files with more [servers.NAME] tables, relative to this one.""", multiple=True),
    option(SERVER, "--command", "COMMAND", str, "The program to start, or it and its arguments."),
    option(SERVER, "--args", "ARG", str, "More arguments for it.", multiple=True),
    option(REMOTE, "--url", "URL", parse_url, """
        Where the server is: https://…, http://…, or unix:SOCKET:PATH."""),
    option(SERVER, "--disabled", None, click.BOOL, "Leave this server out.", is_flag=True),
    option(ACCESS, "--auth-token", "TOKEN", parse_token, """
        Ask each caller for 'Authorization: Bearer TOKEN'; better a reference than the token itself."""),
    option(ACCESS, "--callers", "NAME=TOKEN", parse_caller_token, """
        Callers with a token each, told from one another in sessions, limits and logs.""", multiple=True),
    option(OPERATION, "--admin-token", "TOKEN", parse_token, """
        Ask for this token there, except for health; better a reference than the token itself."""),
    option(OPERATION, "--admin-uds-mode", "MODE", next(o.read for o in OPTIONS if o.opts[0] == "--uds-mode"),
           "File mode of the Unix socket, in octal."),
)  # fmt: skip

_BY_NAME: Final = {row.opts[0]: row for row in (*OPTIONS, *SERVING, *_FILE_ONLY)}
_TABLES: Final = {
    "--env": ("env", "=", True),
    "--header": ("headers", ": ", True),
    "--header-file": ("header_files", ": ", False),
    "--rlimit": ("rlimits", "=", False),
    "--peer": ("peers", "=", False),
    "--callers": ("callers", "=", True),
}
_SECRETS: Final = frozenset({"--auth-token", "--admin-token"})


def _key(name: str) -> Key:
    row = _BY_NAME[name]
    if name in _TABLES:
        _, between, secret = _TABLES[name]
        return Key(row, Form.TABLE, between, secret)
    if row.read is parse_rate:
        return Key(row, Form.RATE)
    return Key(row, Form.LIST if row.multiple else Form.ONE, secret=name in _SECRETS)


def _section(*sections: str, but: tuple[str, ...] = (), less: str = "") -> dict[str, Key]:
    """The options of these sections under their own names, without `less` at the beginning."""
    rows = [row for row in OPTIONS if row.section in sections and row.opts[0] not in but]
    return {
        _TABLES.get(row.opts[0], (parameter(row.opts[0]).removeprefix(less),))[0]: _key(row.opts[0])
        for row in rows
    }


IDENTITY: Final[Spec] = {
    "command": Key(_BY_NAME["--command"], Form.WORDS),
    "args": _key("--args"),
    "cmd": _key("--cmd"),
    "url": _key("--url"),
    "disabled": _key("--disabled"),
}
STARTED: Final[Spec] = {
    **_section(SERVER, CONFINEMENT, but=("--cmd",)),
    "process": _key("--process"),
    "warm": _key("--warm"),
}
REACHED: Final[Spec] = _section(REMOTE)
HOSTED: Final[Spec] = {
    **_section(ERAS),
    **_section(PROCESSES, but=("--process", "--warm")),
    **_section(LIMITS),
    "policy": {
        f"{kind}s": {"allow": _key(f"--allow-{kind}"), "deny": _key(f"--deny-{kind}")}
        for kind in ("method", "tool", "prompt", "resource")
    },
    "quota": _section(QUOTAS, less="caller_"),
}
DEFAULTS: Final[Spec] = {**STARTED, **REACHED, **HOSTED}
SERVER_TABLE: Final[Spec] = {**IDENTITY, **DEFAULTS}
INCLUDED: Final[Spec] = {"servers": {}}
PROCESS: Final[Spec] = {
    "default": _key("--default"),
    "drain_timeout": _key("--drain-timeout"),
    "allowed_commands": _key("--allowed-commands"),
    "include": _key("--include"),
    "listen": _section(LISTENING),
    "access": {**_section(ACCESS, but=("--caller",)), "auth_token": _key("--auth-token"),
               "callers": _key("--callers")},
    "replicas": {"name": _key("--replica"), **_section(REPLICAS, but=("--replica",))},
    "admin": {
        "listen": _key("--admin"),
        "uds_mode": _key("--admin-uds-mode"),
        "token": _key("--admin-token"),
        "token_file": _key("--admin-token-file"),
        "token_env": _key("--admin-token-env"),
    },
    "audit": {"log": _key("--audit-log"), "arguments": _key("--audit-argument")},
    "record": {"file": _key("--record"), "secrets": _key("--record-secrets")},
    "tracing": {"enabled": _key("--trace")},
    "log": _section(LOGGING, less="log_"),
}  # fmt: skip
WHOLE: Final[Spec] = {**PROCESS, "defaults": DEFAULTS, "servers": {}}


def walk(spec: Spec, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Key]]:
    """Every key below a table, and the way to it."""
    for name, inner in spec.items():
        if isinstance(inner, Key):
            yield (*above, name), inner
        else:
            yield from walk(inner, (*above, name))


WAYS: Final[Mapping[str, tuple[str, ...]]] = {
    key.option.opts[0]: way for spec in (PROCESS, SERVER_TABLE) for way, key in walk(spec)
}
"""The way to a key by its option: from the top, or from the table of a server."""
EVERY: Final[Mapping[str, Key]] = {key.name: key for spec in (PROCESS, SERVER_TABLE) for _, key in walk(spec)}
OF_SERVERS: Final = frozenset(key.option.opts[0] for _, key in walk(SERVER_TABLE))
