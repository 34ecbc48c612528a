"""The command line: options and environment variables in, one `Daemon` and an exit status out.

It decides which command has which options; `options.py` says what each option is, `values.py` reads
the values, `settings` decides what excludes what and is refused before anything starts, and every
default comes from `config.py`. It refuses to know how anything runs: the daemon, the demo server and
all else are imported when their command is called, so that `--help` and a usage error cost neither
aiohttp nor an event loop.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import click

from bridge import __version__
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
    REPLICAS,
    SERVER,
    SectionCommand,
    SectionOption,
)
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
from bridge.values import Address, parse_url

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
_EXIT_STATUS = """\b
Exit status:
  0    stopped as asked, or at the end of its stdin
  1    failed while running
  2    the command line or the configuration is wrong
  3    the address cannot be listened on
  4    the server's program does not exist or cannot be executed
  130  interrupted before it listened
"""

_VARIABLES = """\b
Each option is also an environment variable: MCP_BRIDGE_LOG_LEVEL for --log-level, and so on.
The command line goes before it. Repeatable ones hold several values, divided by white space;
MCP_BRIDGE_ENV, MCP_BRIDGE_HEADER and MCP_BRIDGE_HEADER_FILE hold one a line.

"""

_STDIO_TO_HTTP = """\b
Examples:
  One server process per session (the default):
    mcp-bridge stdio-to-http --cmd "npx -y @modelcontextprotocol/server-everything"
  One process for all sessions:
    mcp-bridge stdio-to-http --process shared -- uvx mcp-server-time
  With four processes started ahead, for servers that start slowly:
    mcp-bridge stdio-to-http --warm 4 --cmd "npx -y @modelcontextprotocol/server-memory"
  A variable for the server, and a working directory:
    mcp-bridge stdio-to-http --env 'API_KEY=${MY_KEY}' --cwd /srv/data -- ./server --verbose
  For other machines, with a token and TLS:
    mcp-bridge stdio-to-http --host 0.0.0.0 --allowed-host mcp.example.com \\
      --auth-token-file token.txt --tls-cert cert.pem --tls-key key.pem -- ./server
  On a Unix socket:
    mcp-bridge stdio-to-http --uds /run/mcp.sock -- ./server
  For old clients too, which know only HTTP+SSE:
    mcp-bridge stdio-to-http --legacy-sse -- ./server

"""

_HTTP_TO_STDIO = """\b
Examples:
  Whatever the server speaks, Streamable HTTP or HTTP+SSE:
    mcp-bridge http-to-stdio https://mcp.example.com/mcp
  With a token from the environment:
    mcp-bridge http-to-stdio --header 'Authorization: Bearer ${TOKEN}' https://mcp.example.com/mcp
  With one from a file, which is read again when the server refuses it:
    mcp-bridge http-to-stdio --header-file 'Authorization: auth.txt' https://mcp.example.com/mcp
  With certificates of an organisation's own:
    mcp-bridge http-to-stdio --ca-file ca.pem --client-cert me.pem https://mcp.internal/mcp
  On a Unix socket:
    mcp-bridge http-to-stdio unix:/run/mcp.sock:/mcp

"""

_SSE_TO_STDIO = """\b
Examples:
  A server that speaks HTTP+SSE, known beforehand:
    mcp-bridge sse-to-stdio https://mcp.example.com/sse
  One behind a proxy, that names itself http://0.0.0.0:8000:
    mcp-bridge sse-to-stdio --rewrite-endpoint https://mcp.example.com/sse

"""

_SSE_TO_HTTP = """\b
Examples:
  An old server for new clients, at http://127.0.0.1:8080/mcp:
    mcp-bridge sse-to-http https://mcp.example.com/sse
  Its own token for the server, another one for the clients:
    mcp-bridge sse-to-http --header 'X-Api-Key: ${KEY}' --host 0.0.0.0 \\
      --allowed-host mcp.example.com --auth-token-file token.txt http://old.internal:8000/sse

"""

_HTTP_TO_HTTP = """\b
Examples:
  A remote server at http://127.0.0.1:8080/mcp, with the credentials in one place:
    mcp-bridge http-to-http --header 'Authorization: Bearer ${TOKEN}' https://mcp.example.com/mcp
  A new server for old clients, at http://127.0.0.1:8080/sse:
    mcp-bridge http-to-http --legacy-sse --transport http https://mcp.example.com/mcp

"""

_TOP_EPILOG = """\b
Examples:
  A local server for clients that speak HTTP:
    mcp-bridge stdio-to-http --cmd "npx -y @modelcontextprotocol/server-everything"
  A remote server for a client that starts its servers itself:
    mcp-bridge http-to-stdio --header 'Authorization: Bearer ${TOKEN}' https://mcp.example.com/mcp
  The same, if it speaks HTTP+SSE:
    mcp-bridge sse-to-stdio https://mcp.example.com/sse
  An HTTP+SSE server for clients that speak Streamable HTTP:
    mcp-bridge sse-to-http http://127.0.0.1:8000/sse
  A remote server for clients that speak HTTP, old ones too:
    mcp-bridge http-to-http --legacy-sse https://mcp.example.com/mcp
  What a server is, and what is wrong with it:
    mcp-bridge doctor https://mcp.example.com/mcp
  Without any other server, to try the bridge:
    mcp-bridge stdio-to-http -- mcp-bridge demo-server

"""

_SETTINGS: dict[str, Any] = {
    "max_content_width": 100,
    "help_option_names": ["-h", "--help"],
    "color": False if os.environ.get("NO_COLOR") else None,
}


@click.group(context_settings=_SETTINGS, epilog=_TOP_EPILOG + _EXIT_STATUS)
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
        _STDIO_TO_HTTP,
    ),
    Mode(
        "http-to-stdio",
        url_to_stdio,
        _URL,
        options_of(*_OVER_STDIO, but=["--max-body", *_ADMIN]),
        "Make a remote server a local stdio one." + _URL_WRITTEN,
        _HTTP_TO_STDIO,
    ),
    Mode(
        "sse-to-stdio",
        url_to_stdio,
        _URL,
        options_of(*_OVER_STDIO, but=["--max-body", "--transport", *_ADMIN]),
        "Make an HTTP+SSE server a local stdio one." + _URL_WRITTEN,
        _SSE_TO_STDIO,
    ),
    Mode(
        "sse-to-http",
        url_to_http,
        _URL,
        options_of(REMOTE, *_SERVED, but=[*_CHILDREN, "--transport"]),
        "Serve an HTTP+SSE server over Streamable HTTP." + _URL_WRITTEN,
        _SSE_TO_HTTP,
    ),
    Mode(
        "http-to-http",
        url_to_http,
        _URL,
        options_of(REMOTE, *_SERVED, but=_CHILDREN),
        "Serve a remote server over Streamable HTTP." + _URL_WRITTEN,
        _HTTP_TO_HTTP,
    ),
)

for _mode in MODES:
    program.add_command(
        SectionCommand(
            _mode.name,
            callback=_mode.run,
            params=[_mode.argument, *_mode.options],
            help=_mode.text,
            epilog=_mode.examples + _VARIABLES + _EXIT_STATUS,
            # A server's own options, which follow its first word, stay its own.
            context_settings={"allow_interspersed_args": _mode.argument is not _WORDS},
        )
    )


_DOCTOR = """\b
Examples:
  A server at a URL, Streamable HTTP or HTTP+SSE:
    mcp-bridge doctor https://mcp.example.com/mcp
  One that wants a token:
    mcp-bridge doctor --header 'Authorization: Bearer ${TOKEN}' https://mcp.example.com/mcp
  A program that speaks stdio:
    mcp-bridge doctor -- npx -y @modelcontextprotocol/server-everything
  For a script:
    mcp-bridge doctor --json --timeout 1m --cmd "uvx mcp-server-time"

\b
Exit status:
  0    a client could work with it
  1    none could; the last line says why, and what to do
  2    the command line or the configuration is wrong
"""


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
        epilog=_DOCTOR,
    )
)


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
