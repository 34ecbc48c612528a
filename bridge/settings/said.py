"""How a value was said: on the command line, in the environment or in a file, and what follows from that.

Of two alternatives the one said more closely prevails. A fault names the option, and whoever reads a
file puts the key in its place. Secrets are read here, and taken out of the environment.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import click
from click.core import ParameterSource

from bridge.values import expand


class Level(IntEnum):
    """How closely a value was said; the higher one prevails."""

    UNSAID = 0
    FILE = 1
    ENVIRONMENT = 2
    COMMAND_LINE = 3

    @property
    def deliberate(self) -> bool:
        """Whether it was said for this very bridge, and not for all that have the environment."""
        return self in (Level.FILE, Level.COMMAND_LINE)


_LEVELS = {
    ParameterSource.COMMANDLINE: Level.COMMAND_LINE,
    ParameterSource.ENVIRONMENT: Level.ENVIRONMENT,
}


class Wrong(click.BadParameter):
    """A value that cannot be, of this option; `part` is which of its values, such as a header's name."""

    def __init__(self, option: str, fault: str, part: str | None = None) -> None:
        super().__init__(fault if part is None else f"{part}: {fault}", param_hint=f"'{option}'")
        self.option, self.fault, self.part = option, fault, part


class Clash(click.UsageError):
    """Alternatives that were said at once."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(f"{' and '.join(names)} exclude each other; give one.")
        self.names = names


@dataclass(frozen=True, slots=True)
class Said:
    """Where values come from: `level` by the name that the option has in the program.

    `environ` loses the secrets that are taken from it. `literal` is set where references to
    variables were replaced before.
    """

    level: Callable[[str], Level]
    environ: MutableMapping[str, str]
    warn: Callable[[str], None]
    literal: bool = False

    def expanded(self, value: str) -> str:
        """Raises ValueError."""
        return value if self.literal else expand(value, self.environ)

    def prevailing(self, *options: str) -> str | None:
        """The alternative said most closely, if any was. Raises Clash."""
        return prevailing({name: self.level(parameter(name)) for name in options})

    def secret_in_file(self, path: Path, option: str, shown: str, limit: int) -> str:
        """The beginning of a file; `shown` stands for it in what is said of it. Raises Wrong."""
        try:
            with path.open("rb") as file:
                mode, text = os.fstat(file.fileno()).st_mode, file.read(limit)
        except OSError as fault:
            raise Wrong(option, fault.strerror or "it cannot be read", shown) from None
        if mode & stat.S_IROTH:
            self.warn(f"every user of this machine can read the file of {option} {shown}")
        return text.decode("utf-8", "replace")

    def taken(self, option: str, variable: str) -> str:
        """A secret, which leaves the environment so that no pattern can hand it to a server. Raises Wrong."""
        if variable not in self.environ:
            raise Wrong(option, f"the variable {variable!r} is not set")
        return self.environ.pop(variable)


def parameter(option: str) -> str:
    """What an option is called in the program: `auth_token_file` for `--auth-token-file`."""
    return option.removeprefix("--").replace("-", "_")


def prevailing(levels: Mapping[str, int]) -> str | None:
    """The alternative said most closely, if any was said; two on one level exclude each other.

    Raises Clash.
    """
    said = {name: level for name, level in levels.items() if level and level == max(levels.values())}
    if len(said) > 1:
        raise Clash(tuple(said))
    return next(iter(said), None)


def said_to(ctx: click.Context, environ: MutableMapping[str, str], warn: Callable[[str], None]) -> Said:
    """What was said to a command."""

    def level(name: str) -> Level:
        source = ctx.get_parameter_source(name)
        return _LEVELS.get(source, Level.UNSAID) if source else Level.UNSAID

    return Said(level, environ, warn)
