"""The command line: options and environment variables in, one `Daemon` and an exit status out.

It decides which command has which options; `options.py` says what each option is, `values.py` reads
the values, `settings` decides what excludes what and is refused before anything starts, and every
default comes from `config.py`. It refuses to know how anything runs: the daemon, the demo server and
all else are imported when their command is called, so that `--help` and a usage error cost neither
aiohttp nor an event loop.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import click

from bridge import __version__, examples
from bridge.config import Command, Config, Daemon, Remote, Timing
from bridge.errors import BridgeError
from bridge.options import (
    ACCESS,
    CONFINEMENT,
    DIAGNOSING,
    ERAS,
    LIMITS,
    LISTENING,
    LOGGING,
    OPERATION,
    OPTIONS,
    POLICY,
    PROCESSES,
    QUOTAS,
    REMOTE,
    REPLAYING,
    REPLICAS,
    SERVER,
    SectionCommand,
    SectionOption,
)
from bridge.settings.commands import config_command, serve_command
from bridge.settings.process import (
    LoggingOptions,
    ServingOptions,
    WatchingOptions,
    access_of,
    admin_of,
    audit_of,
    listen_of,
    log_of,
    record_of,
    replicas_of,
    tracing_of,
)
from bridge.settings.said import Level, Said, said_to
from bridge.settings.servers import (
    CommandOptions,
    ReachedServer,
    RemoteOptions,
    ServedServer,
    Shared,
    StartedServer,
    command_of,
    reaching,
    reaching_served,
    remote_of,
    starting,
)
from bridge.values import Address, parse_command, parse_url

PROGRAM = "mcp-bridge"


class StdioToHttp(StartedServer, ServingOptions):
    pass


class UrlToStdio(ReachedServer, WatchingOptions, LoggingOptions):
    pass


class UrlToHttp(ServedServer, ServingOptions):
    pass


class Examining(RemoteOptions, CommandOptions):
    """`doctor`, which finds `url` among `words`."""

    timeout: float
    json: bool


class Replaying(RemoteOptions, CommandOptions):
    """`replay`, whose server is `to` or `words`."""

    file: Path
    to: str | None
    server: str | None
    timeout: float
    json: bool


def _warn(text: str) -> None:
    click.echo(f"{PROGRAM}: warning: {text}", err=True)


def _said() -> Said:
    """What was said to the command that runs; its words count as on the command line."""
    ctx = click.get_current_context()
    said = said_to(ctx, os.environ, _warn)
    words = Level.COMMAND_LINE if ctx.params.get("words") else Level.UNSAID
    return replace(said, level=lambda name: words if name == "words" else said.level(name))


def _shared(options: ServingOptions, said: Said) -> Shared:
    listen = listen_of(options, said)
    return Shared(
        listen=listen,
        access=access_of(options, listen, said),
        replicas=replicas_of(options, said),
        log=log_of(options),
    )


def _watched(config: Config, options: WatchingOptions, said: Said, **more: Any) -> Daemon:
    """The process around one server."""
    config = replace(config, timing=replace(config.timing, drain=options["drain_timeout"]))
    return Daemon.of(
        config,
        audit=audit_of(options, said),
        record=record_of(options, said),
        tracing=tracing_of(options),
        **more,
    )


def examined(options: Examining, said: Said) -> Command | Remote:
    """What `doctor` is to examine: one word that is a URL, else a command. Raises click.UsageError."""
    ctx, words = click.get_current_context(), options["words"]
    if not words and not options["cmd"]:
        words = tuple(filter(None, [said.environ.get("MCP_BRIDGE_URL", "")]))
        if not words:
            raise click.UsageError("Nothing to examine: give a URL, or a command after --.", ctx)
    if not words or not _is_url(words[0]):
        return command_of(options, said)
    if said.level("cmd") is Level.COMMAND_LINE:
        raise click.UsageError("--cmd and a URL exclude each other; give one.", ctx)
    options["url"] = _one_url(ctx, _TARGET, words)
    return remote_of(options, said)


def _is_url(word: str) -> bool:
    return "://" in word or word.startswith("unix:")


# -- commands ---------------------------------------------------------------------------------


def _one_url(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> Address:
    if not words:
        text = "No server to reach: give its URL, such as https://mcp.example.com/mcp."
        raise click.UsageError(text, ctx)
    if len(words) > 1:
        # Not quoted, for the rest may be the value of a header.
        text = f"One URL expected, not {len(words)} words. Quote what holds blanks: --header 'K: V'."
        raise click.UsageError(text, ctx)
    try:
        return parse_url(words[0])
    except ValueError as fault:
        raise click.BadParameter(str(fault), ctx, param) from None


_WORDS = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND [ARG]...]")
_URL = click.Argument(["url"], nargs=-1, metavar="URL", envvar="MCP_BRIDGE_URL", callback=_one_url)
_TARGET = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED, metavar="URL | -- COMMAND [ARG]...")


_SETTINGS: dict[str, Any] = {
    "max_content_width": 100,
    "help_option_names": ["-h", "--help"],
    "color": False if os.environ.get("NO_COLOR") else None,
}


@click.group(context_settings=_SETTINGS, epilog=examples.TOP + examples.EXIT_STATUS)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def program() -> None:
    """Lets any MCP client talk to any MCP server."""


_UNITS = """
TIME is 30s, 5m, 1h30m, 250ms, or a number of seconds; off where there may be no limit.
SIZE is 8MiB, 500KB, or a number of bytes.
"""
_WRITTEN = f"\n\n\b{_UNITS}"
_URL_WRITTEN = f"""

\b
URL is https://… or http://…, or unix:SOCKET:PATH for a Unix socket. Or in MCP_BRIDGE_URL.{_UNITS}"""


def options_of(*sections: str, but: Sequence[str] = ()) -> list[SectionOption]:
    return [row for row in OPTIONS if row.section in sections and row.opts[0] not in but]


def _run(tree: Daemon, *, demo: bool = False) -> int:
    from bridge import daemon

    return daemon.run(tree, demo=demo)


def stdio_to_http(**options: Unpack[StdioToHttp]) -> int:
    said = _said()
    config = starting(options, said, _shared(options, said))
    assert isinstance(config.upstream, Command)
    demo = config.upstream.argv[-1] == demo_server.name
    return _run(_watched(config, options, said, admin=admin_of(options, said)), demo=demo)


def url_to_stdio(**options: Unpack[UrlToStdio]) -> int:
    said = _said()
    config = reaching(options, said, Shared(log=log_of(options)))
    return _run(_watched(config, options, said))


def url_to_http(**options: Unpack[UrlToHttp]) -> int:
    said = _said()
    config = reaching_served(options, said, _shared(options, said))
    return _run(_watched(config, options, said, admin=admin_of(options, said)))


@dataclass(frozen=True, slots=True)
class Mode:
    """One command that bridges."""

    name: str
    run: Callable[..., int]
    argument: click.Argument
    options: list[SectionOption]
    text: str
    examples: str


_OVER_STDIO = (REMOTE, ERAS, POLICY, LIMITS, OPERATION, LOGGING)
_SERVED = (ERAS, LISTENING, PROCESSES, REPLICAS, ACCESS, POLICY, QUOTAS, LIMITS, OPERATION, LOGGING)
_CHILDREN = ("--process", "--warm")
_ADMIN = ("--admin", "--admin-token-file", "--admin-token-env")

MODES = (
    Mode(
        "stdio-to-http",
        stdio_to_http,
        _WORDS,
        options_of(SERVER, CONFINEMENT, *_SERVED),
        "Serve a stdio server over Streamable HTTP." + _WRITTEN,
        examples.STDIO_TO_HTTP,
    ),
    Mode(
        "http-to-stdio",
        url_to_stdio,
        _URL,
        options_of(*_OVER_STDIO, but=["--max-body", *_ADMIN]),
        "Make a remote server a local stdio one." + _URL_WRITTEN,
        examples.HTTP_TO_STDIO,
    ),
    Mode(
        "sse-to-stdio",
        url_to_stdio,
        _URL,
        options_of(*_OVER_STDIO, but=["--max-body", "--transport", *_ADMIN]),
        "Make an HTTP+SSE server a local stdio one." + _URL_WRITTEN,
        examples.SSE_TO_STDIO,
    ),
    Mode(
        "sse-to-http",
        url_to_http,
        _URL,
        options_of(REMOTE, *_SERVED, but=[*_CHILDREN, "--transport"]),
        "Serve an HTTP+SSE server over Streamable HTTP." + _URL_WRITTEN,
        examples.SSE_TO_HTTP,
    ),
    Mode(
        "http-to-http",
        url_to_http,
        _URL,
        options_of(REMOTE, *_SERVED, but=_CHILDREN),
        "Serve a remote server over Streamable HTTP." + _URL_WRITTEN,
        examples.HTTP_TO_HTTP,
    ),
)

for _mode in MODES:
    program.add_command(
        SectionCommand(
            _mode.name,
            callback=_mode.run,
            params=[_mode.argument, *_mode.options],
            help=_mode.text,
            epilog=_mode.examples + examples.VARIABLES + examples.EXIT_STATUS,
            # A server's own options, which follow its first word, stay its own.
            context_settings={"allow_interspersed_args": _mode.argument is not _WORDS},
        )
    )


def doctor(**options: Unpack[Examining]) -> int:
    upstream = examined(options, _said())
    from bridge import doctor as examination

    timing = Timing(connect=options["connect_timeout"])
    return examination.run(upstream, timeout=options["timeout"], timing=timing, json=options["json"])


program.add_command(
    SectionCommand(
        "doctor",
        callback=doctor,
        params=[_TARGET, *DIAGNOSING, *options_of(SERVER, REMOTE)],
        short_help="Say what a server is, and whether it works.",
        help="Say what a server is, and whether a client could work with it. No tool of it is called."
        + _WRITTEN,
        epilog=examples.DOCTOR,
    )
)


def replay(**options: Unpack[Replaying]) -> int:
    upstream = replayed_on(options, _said())
    from bridge import replay as replaying

    return replaying.run(
        options["file"],
        upstream,
        server=options["server"],
        timeout=options["timeout"],
        json=options["json"],
    )


def replayed_on(options: Replaying, said: Said) -> Command | Remote:
    """The server of `--to`, or of the words after `--`. Raises click.UsageError."""
    target = options["to"]
    if target and options["words"]:
        raise click.UsageError("--to and a command after -- exclude each other; give one.")
    if not target and not options["words"]:
        raise click.UsageError("No server to run it on: give --to URL, or a command after --.")
    if not target:
        return command_of(options, said)
    if _is_url(target):
        options["url"] = _one_url(click.get_current_context(), _TO, (target,))
        return remote_of(options, said)
    try:
        options["words"] = parse_command(target)
    except ValueError as fault:
        raise click.BadParameter(str(fault), click.get_current_context(), _TO) from None
    return command_of(options, replace(said, level=lambda name: Level(3 * (name == "words"))))


_TO = REPLAYING[0]
_RECORDING = click.Argument(
    ["file"], type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE"
)
_SERVER = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND [ARG]...]")

program.add_command(
    SectionCommand(
        "replay",
        callback=replay,
        params=[_RECORDING, _SERVER, *REPLAYING, *options_of(SERVER, REMOTE, but=["--cmd"])],
        short_help="Run recorded traffic again, and compare answers.",
        help="Run the traffic of --record again on a server, and show what is answered otherwise." + _WRITTEN,
        epilog=examples.REPLAY,
    )
)
program.add_command(
    serve_command(
        options_of(LISTENING, REPLICAS, ACCESS, OPERATION, LOGGING), examples.VARIABLES + examples.EXIT_STATUS
    )
)
program.add_command(config_command())


class Late(click.Command):
    """A command of a bridge that runs; what it takes is known when it is called."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            commands: Mapping[str, click.Command] = importlib.import_module("bridge.admin.commands").COMMANDS
        except ModuleNotFoundError as fault:
            raise click.ClickException(f"{self.name} needs {fault.name}, which is not installed") from None
        return commands[str(self.name)].make_context(info_name, args, parent, **extra)


for _name, _help in {
    "status": "Show what the servers of a running bridge are at.",
    "sessions": "List the sessions of a running bridge.",
    "children": "List the server processes of a running bridge.",
    "drain": "Let a running bridge, or one server, finish and stop.",
    "reload": "Let a running bridge read its file again.",
    "log-level": "Show or set what a running bridge logs.",
    "health": "Tell whether a running bridge is well.",
}.items():
    program.add_command(Late(_name, short_help=_help))


@program.command("demo-server")
def demo_server() -> int:
    """Run a small stdio MCP server, for trying things."""
    from bridge import demo_server as server

    return server.main()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line (that of the process by default) and returns the exit status.

    No word at all asks for help. A fault is one line on stderr, never a traceback.
    """
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        status: int | None = program.main(words, prog_name=PROGRAM, standalone_mode=False)
    except click.ClickException as fault:
        _complain(" ".join(fault.format_message().split()))
        if isinstance(fault, click.UsageError) and fault.ctx:
            click.echo(f"Try '{fault.ctx.command_path} --help' for all options.", err=True)
        return fault.exit_code
    except BridgeError as fault:
        _complain(str(fault))
        return fault.exit_status
    except click.Abort:
        return 130
    return status or 0


def _complain(fault: str) -> None:
    click.echo(f"{PROGRAM}: {fault}", err=True)
