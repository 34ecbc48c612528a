"""`mcp-bridge serve`, and `mcp-bridge config`, which looks at a file without serving anything.

Decides which file it is where none is given, and that what the command line and the environment say
of the process goes before the file, after every reload too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bridge import examples
from bridge.config import Daemon
from bridge.errors import UsageFault
from bridge.options import SERVING, SectionCommand, SectionOption
from bridge.settings.said import Said, said_to

if TYPE_CHECKING:
    from bridge.settings.tree import Elsewhere, Loaded

log = logging.getLogger("bridge")
NAME: Final = "mcp-bridge.toml"


def default_file(environ: Mapping[str, str]) -> Path:
    """The file where none is given: that of the service manager. Raises click.UsageError."""
    directory = environ.get("CONFIGURATION_DIRECTORY", "").split(os.pathsep)[0]
    if not directory:
        raise click.UsageError("No configuration: give --config FILE, or its path in MCP_BRIDGE_CONFIG.")
    return Path(directory) / NAME


def warn(text: str) -> None:
    click.echo(f"mcp-bridge: warning: {text}", err=True)


def serve(config: Path | None, **options: Any) -> int:
    """Serve what a file says, until told to stop."""
    said = said_to(click.get_current_context(), os.environ, warn)
    file = config or default_file(os.environ)
    environ = dict(os.environ)
    elsewhere = _elsewhere(options, said)
    first = _read(file, environ, elsewhere)
    for name in first.taken:
        # So that no pattern can hand it to a server.
        os.environ.pop(name, None)
    from bridge import daemon

    return daemon.run(first.daemon, read=partial(_again, file.absolute(), environ, elsewhere))


def _read(file: Path, environ: Mapping[str, str], elsewhere: Elsewhere | None = None) -> Loaded:
    """The file, or the end of the command: each fault with its place first, where editors look for it."""
    from bridge.settings import tree

    try:
        found = tree.read(file, environ, elsewhere)
    except UsageFault as fault:
        click.echo(str(fault), err=True)
        raise click.exceptions.Exit(fault.exit_status) from None
    for warning in found.warnings:
        click.echo(warning, err=True)
    return found


def _elsewhere(options: Mapping[str, Any], said: Said) -> Elsewhere:
    """What was said to the command itself."""
    from bridge.settings.tree import Elsewhere

    levels = {name: said.level(name) for name in options if said.level(name)}
    return Elsewhere({name: options[name] for name in levels}, levels)


def _again(file: Path, environ: Mapping[str, str], elsewhere: Elsewhere) -> Daemon:
    """The tree anew, with the variables that there were at the start. Raises UsageFault."""
    from bridge.settings import tree

    found = tree.read(file, environ, elsewhere)
    for warning in found.warnings:
        log.warning("%s", warning)
    return found.daemon


def serve_command(options: list[SectionOption], epilog: str) -> click.Command:
    """`options` are those of the process, which go before the file."""
    return SectionCommand(
        "serve",
        callback=serve,
        params=[*SERVING, *options],
        short_help="Serve the servers of a configuration file.",
        help="Serve the servers of a configuration file, each over Streamable HTTP at /servers/NAME/mcp. "
        "SIGHUP reads the file again. What is said here goes before the file.",
        epilog=examples.SERVE + epilog,
    )


_FILE = click.Argument(
    ["file"],
    required=False,
    envvar="MCP_BRIDGE_CONFIG",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)


def check(file: Path | None) -> int:
    """Say what is wrong with a configuration: every fault with file, line and key."""
    file = file or default_file(os.environ)
    found = _read(file, os.environ)
    number = len(found.daemon.servers)
    click.echo(f"{file}: in order, {number} server{'' if number == 1 else 's'}")
    return 0


def show(file: Path | None, *, json: bool) -> int:
    """Show a configuration as it is understood: with all that it includes and refers to, secrets as ***."""
    from bridge.settings import show

    found = _read(file or default_file(os.environ), os.environ)
    click.echo(show.as_json(found.shown) if json else show.as_toml(found.shown), nl=json)
    return 0


def schema() -> int:
    """Print the JSON Schema of the file, for editors."""
    from bridge.settings import schema

    click.echo(schema.as_text())
    return 0


def config_command() -> click.Group:
    """`config check`, `config show`, `config schema`."""
    json = click.Option(["--json"], is_flag=True, help="As one JSON object.")
    return click.Group(
        "config",
        commands=[
            click.Command("check", callback=check, params=[_FILE], help=check.__doc__),
            click.Command("show", callback=show, params=[_FILE, json], help=show.__doc__),
            click.Command("schema", callback=schema, help=schema.__doc__),
        ],
        short_help="Check, show or describe a configuration file.",
        help="Look at a configuration file without serving anything.",
    )
