"""The options: what each is called, how it is read, its heading, its variable and its line of help.

It decides the form of `--help` and that every option is an environment variable too. It refuses to
know which command has which option and what follows from a value: that is `cli.py`. The defaults
are those of `config.py`, spelled as one would type them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from bridge.config import (
    Command,
    Config,
    Isolation,
    LogFormat,
    ProcessModel,
    Remote,
    Transport,
    WhenFull,
)
from bridge.era.terms import Attribution, Declare, Tasks
from bridge.values import (
    parse_authority,
    parse_base_url,
    parse_command,
    parse_duration,
    parse_header,
    parse_header_file,
    parse_host,
    parse_limit,
    parse_mode,
    parse_origin,
    parse_path,
    parse_pattern,
    parse_peer,
    parse_replica,
    parse_root,
    parse_size,
    parse_variable,
    spell_duration,
    spell_size,
)

LOG_LEVELS = ("debug", "info", "warning", "error")

SERVER, REMOTE, ERAS, LISTENING, PROCESSES, REPLICAS, ACCESS, LIMITS, LOGGING = SECTIONS = (
    "Server command",
    "Remote server",
    "Eras",
    "Listening",
    "Sessions and processes",
    "Replicas",
    "Access",
    "Limits and time",
    "Logging",
)

DIAGNOSIS = "Diagnosis"
"""The heading of what `doctor` alone has, which bridges nothing."""

_DEFAULT = Config(upstream=Command(argv=()))
_REMOTE_DEFAULT = Remote(url="")
_TERMS = _DEFAULT.terms


class SectionOption(click.Option):
    """An option with a heading in `--help` and a variable of its own, `MCP_BRIDGE_…`.

    A repeatable one takes many values from its variable: one a line if `lines`, else one a word.
    """

    def __init__(self, *args: Any, section: str, lines: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section
        self.lines = lines
        self.envvar: str = variable_of(self)

    def value_from_envvar(self, ctx: click.Context) -> Any:
        text = self.resolve_envvar_value(ctx)
        if text is None or not self.multiple:
            return super().value_from_envvar(ctx)
        values = text.splitlines() if self.lines else text.split()
        return tuple(value for value in values if value.strip())

    def get_error_hint(self, ctx: click.Context | None) -> str:
        hint = f"'{self.opts[0]}'"
        source = ctx.get_parameter_source(self.name) if ctx and self.name else None
        return f"{hint} (from {self.envvar})" if source is ParameterSource.ENVIRONMENT else hint


def variable_of(option: click.Option) -> str:
    """The environment variable of an option: `MCP_BRIDGE_MAX_BODY` for `--max-body`."""
    return "MCP_BRIDGE_" + option.opts[0].removeprefix("--").replace("-", "_").upper()


class SectionCommand(click.Command):
    """A command whose help has its options under headings, in the order of `SECTIONS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in (DIAGNOSIS, *SECTIONS):
            if rows := _records(ctx, self.options_of(section)):
                _write_section(formatter, section, rows)
        _write_section(formatter, "Other", _records(ctx, self.get_params(ctx)[-1:]))

    def options_of(self, section: str) -> list[SectionOption]:
        return [p for p in self.params if isinstance(p, SectionOption) and p.section == section]


def _records(ctx: click.Context, params: Iterable[click.Parameter]) -> list[tuple[str, str]]:
    return [record for param in params if (record := param.get_help_record(ctx))]


def _write_section(formatter: click.HelpFormatter, heading: str, rows: list[tuple[str, str]]) -> None:
    with formatter.section(click.style(heading, bold=True)):
        formatter.write_dl(rows)


def option(section: str, name: str, metavar: str | None, read: Any, text: str, **attrs: Any) -> SectionOption:
    """One row of the table below; `read` is a click type, or a function that raises ValueError."""
    reading = {"type": read} if isinstance(read, click.ParamType) else {"callback": _reads(read)}
    return SectionOption(
        [name],
        section=section,
        metavar=metavar,
        help=" ".join(text.split()),
        show_default="default" in attrs,
        **reading,
        **attrs,
    )


def _reads(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(parse(item) for item in value)
            return None if value is None else parse(value)
        except ValueError as fault:
            raise click.BadParameter(str(fault), ctx, param) from None

    return callback


# -- the table -----------------------------------------------------------------------------------

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)

OPTIONS = (
    option(SERVER, "--cmd", "COMMAND", parse_command, """
        The server to start, split into words as a POSIX shell does. No shell runs, nothing in it is expanded.
        Or give the command after --."""),
    option(SERVER, "--env", "K=V", parse_variable, """
        Sets a variable for the server. ${VAR} in V is taken from the bridge's environment and must be set
        there; $${ stands for ${. Repeatable.""", multiple=True, lines=True),
    option(SERVER, "--inherit-env", "PATTERN", parse_pattern, """
        Passes on the bridge's variables with such names, e.g. 'GITHUB_*', besides the safe few (PATH, HOME,
        LANG, …). Repeatable.""", multiple=True),
    option(SERVER, "--cwd", "DIR", _DIRECTORY, "Working directory of the server."),
    option(REMOTE, "--transport", None, click.Choice([transport.value for transport in Transport]), """
        How the server is spoken to. auto: Streamable HTTP, and HTTP+SSE if the server knows only that.""",
        default=_REMOTE_DEFAULT.transport.value),
    option(REMOTE, "--header", "'K: V'", parse_header, """
        Sends a header with each request. ${VAR} in V is taken from the bridge's environment and must be set
        there; $${ stands for ${. Repeatable.""", multiple=True, lines=True),
    option(REMOTE, "--header-file", "'K: PATH'", parse_header_file, """
        The same with V in a file, which is read again when the server answers 401. Repeatable.""",
        multiple=True, lines=True),
    option(REMOTE, "--ca-file", "FILE", _FILE, """
        Trust the authorities in this file (PEM) instead of the system's."""),
    option(REMOTE, "--client-cert", "FILE", _FILE, """
        Show the server this certificate; the file holds its key too (PEM)."""),
    option(REMOTE, "--insecure-skip-verify", None, click.BOOL, """
        Do not verify the server's certificate: anyone on the way can pose as the server.""", is_flag=True),
    option(REMOTE, "--rewrite-endpoint", None, click.BOOL, """
        Of an HTTP+SSE server that names another origin for its messages, take only path and query. Refused
        otherwise.""", is_flag=True),
    option(REMOTE, "--connect-timeout", "TIME", parse_duration, """
        For a connection to stand.""", default=spell_duration(_DEFAULT.timing.connect)),
    option(ERAS, "--upstream-era", None, click.Choice(["auto", "legacy", "modern"]), """
        What to speak to the server: legacy (until 2025-11-25) or modern (from 2026-07-28). auto: what the
        client speaks, and the other, translated, if the server knows only that.""", default="auto"),
    option(ERAS, "--declare", None, click.Choice([mode.value for mode in Declare]), """
        What a legacy server is told that modern clients can do. exact: what each can, with a session for
        each such set. superset: everything, in one session. none: nothing, in one session.""",
        default=_TERMS.declare.value),
    option(ERAS, "--attribution", None, click.Choice([rule.value for rule in Attribution]), """
        Whose a question of a legacy server is that could be of several calls of one client. newest: the
        newest call's. exclusive: never in doubt, for such calls run one at a time.""",
        default=_TERMS.attribution.value),
    option(ERAS, "--tasks", None, click.Choice([rule.value for rule in Tasks]), """
        A legacy server's tasks. hide: modern clients see none. map: as the tasks extension, to those who
        know it.""", default=_TERMS.tasks.value),
    option(ERAS, "--root", "URI", parse_root, """
        Tell this root to a legacy server that asks for roots outside of any call. Repeatable.""",
        multiple=True),
    option(ERAS, "--forward-identity", None, click.BOOL, """
        Tell a legacy server the modern client's name and version instead of the bridge's; each gets a
        session of its own.""", is_flag=True),
    option(ERAS, "--suspend-timeout", "TIME", parse_duration, """
        For a modern client to come back with answers that a legacy server waits for.""",
        default=spell_duration(_TERMS.suspended)),
    option(LISTENING, "--host", "ADDRESS", parse_host, """
        Address to listen on. Beyond loopback only with a token.""", default=_DEFAULT.listen.host),
    option(LISTENING, "--port", "PORT", click.IntRange(0, 65535), """
        Port to listen on; 0 takes a free one and prints it.""", default=_DEFAULT.listen.port),
    option(LISTENING, "--path", "PATH", parse_path, "Path of the MCP endpoint.",
        default=_DEFAULT.listen.path),
    option(LISTENING, "--uds", "PATH", click.Path(path_type=Path), """
        Listen on a Unix domain socket instead of an address."""),
    option(LISTENING, "--uds-mode", "MODE", parse_mode, """
        File mode of that socket, in octal.""", default=f"{_DEFAULT.listen.uds_mode:o}"),
    option(LISTENING, "--tls-cert", "FILE", _FILE, "Serve HTTPS with this chain (PEM)."),
    option(LISTENING, "--tls-key", "FILE", _FILE, "The key that belongs to it (PEM)."),
    option(LISTENING, "--legacy-sse", None, click.BOOL, """
        Also serve HTTP+SSE, at /sse and /messages beside the endpoint, for clients that know only that.""",
        is_flag=True),
    option(LISTENING, "--base-url", "URL", parse_base_url, """
        What such clients see the bridge's / as, e.g. https://mcp.example.com/tools; without it they are told
        a relative URL."""),
    option(PROCESSES, "--process", None, click.Choice([model.value for model in ProcessModel]), """
        session: each session has a server process of its own. shared: all have one together, and with it
        whatever state the server keeps.""", default=_DEFAULT.process.value),
    option(PROCESSES, "--warm", "N", click.IntRange(min=0), """
        Server processes kept started ahead of need.""", default=_DEFAULT.warm),
    option(PROCESSES, "--max-sessions", "N", click.IntRange(min=1), """
        Sessions at a time; the next one gets 503.""", default=_DEFAULT.limits.sessions),
    option(PROCESSES, "--session-idle-timeout", "TIME", parse_duration, """
        Ends a session this long after its last sign of life; never while a request runs.""",
        default=spell_duration(_DEFAULT.timing.session_idle)),
    option(PROCESSES, "--isolation", None, click.Choice([rule.value for rule in Isolation]), """
        Which modern clients share a session of a legacy server. principal: those known to be the same.
        shared: all. request: none, each request opens and closes one.""", default=_DEFAULT.isolation.value),
    option(PROCESSES, "--max-upstreams", "N", click.IntRange(min=1), """
        Sessions with a legacy server that are open for modern clients.""",
        default=_DEFAULT.limits.upstreams),
    option(PROCESSES, "--when-full", None, click.Choice([rule.value for rule in WhenFull]), """
        What a modern request meets that needs one more: wait for room, or refuse with 503.""",
        default=_DEFAULT.when_full.value),
    option(REPLICAS, "--state-key-file", "FILE", _FILE, """
        Keys that seal what clients carry between the rounds of a call: 32 bytes or more in Base64, one a
        line; the first seals, all open. Without it a random key, good for the life of this process."""),
    option(REPLICAS, "--state-key-env", "VAR", str, "The same, with the keys in this variable."),
    option(REPLICAS, "--replica", "NAME", parse_replica, "The name of this bridge among its peers."),
    option(REPLICAS, "--peer", "NAME=URL", parse_peer, """
        Another bridge with the same keys, and its endpoint: what belongs to a call that it holds is passed to
        it. Repeatable.""", multiple=True),
    option(ACCESS, "--allowed-host", "HOST", parse_authority, """
        A Host header to accept besides the address listened on, e.g. mcp.example.com. Repeatable.""",
        multiple=True),
    option(ACCESS, "--allowed-origin", "ORIGIN", parse_origin, """
        An Origin whose web pages may call (CORS), e.g. https://app.example.com. Repeatable.""",
        multiple=True),
    option(ACCESS, "--auth-token-file", "FILE", _FILE, """
        Ask each caller for 'Authorization: Bearer TOKEN', with the token in this file."""),
    option(ACCESS, "--auth-token-env", "VAR", str, "The same, with the token in this variable."),
    option(ACCESS, "--insecure-no-auth", None, click.BOOL, """
        Listen beyond loopback without a token: anyone who reaches the port can run the server's tools.""",
        is_flag=True),
    option(LIMITS, "--start-timeout", "TIME", parse_duration, """
        For a server to answer its handshake.""", default=spell_duration(_DEFAULT.timing.start)),
    option(LIMITS, "--request-timeout", "TIME", parse_limit, """
        For a request to be answered; then it is cancelled. Progress starts it anew.""",
        default=spell_duration(_DEFAULT.timing.request)),
    option(LIMITS, "--max-body", "SIZE", parse_size, """
        Of an HTTP request body; larger ones get 413.""", default=spell_size(_DEFAULT.limits.body)),
    option(LIMITS, "--max-line", "SIZE", parse_size, """
        Of one message, as a line or an event.""", default=spell_size(_DEFAULT.limits.line)),
    option(LOGGING, "--log-level", None, click.Choice(LOG_LEVELS, case_sensitive=False), """
        The least that is logged, on stderr.""", default=_DEFAULT.log.level),
    option(LOGGING, "--log-format", None, click.Choice([form.value for form in LogFormat]), """
        json: one object a line.""", default=_DEFAULT.log.format.value),
)  # fmt: skip

DIAGNOSING = (
    option(DIAGNOSIS, "--timeout", "TIME", parse_duration, """
        For the whole examination; what is not looked at by then is left out.""", default="30s"),
    option(DIAGNOSIS, "--json", None, click.BOOL, """
        Print one JSON object, as is done anyway where no terminal reads it, and no table.""", is_flag=True),
)  # fmt: skip
