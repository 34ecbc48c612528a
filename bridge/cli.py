"""The command line: options and environment variables in, one `Config` and an exit status out.

It decides how values are written (durations, sizes, `K=V`), which options exclude each other,
and which combinations are refused before anything starts; every default comes from `config.py`.
It refuses to know how anything runs: the daemon and the demo server are imported when their
command is called, so that `--help` and a usage error cost neither aiohttp nor an event loop.

Answers "Security Warning" of the Streamable HTTP transport where it can be answered before
listening: loopback unless told otherwise, and nothing beyond it without authorization.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click
from click.core import ParameterSource

from bridge import __version__
from bridge.config import Access, Command, Config, Limits, Listen, Log, LogFormat, ProcessModel, Timing, Tls
from bridge.errors import BridgeError

PROGRAM = "mcp-bridge"
HEALTH_PATHS = frozenset({"/healthz", "/readyz"})
TOKEN_LENGTH = range(16, 4097)
LOG_LEVELS = ("debug", "info", "warning", "error")

SERVER, LISTENING, PROCESSES, ACCESS, LIMITS, LOGGING = SECTIONS = (
    "Server command",
    "Listening",
    "Sessions and processes",
    "Access",
    "Limits and time",
    "Logging",
)

_DEFAULT = Config(command=Command(argv=()))


# -- how values are written -------------------------------------------------------------------

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


# -- options and their help -------------------------------------------------------------------


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
        for section in SECTIONS:
            _write_section(formatter, section, _records(ctx, self.options_of(section)))
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


# -- from options to Config -------------------------------------------------------------------


class Options(TypedDict):
    """What click hands over, each value read by the function above."""

    words: tuple[str, ...]
    cmd: tuple[str, ...] | None
    env: tuple[tuple[str, str], ...]
    inherit_env: tuple[str, ...]
    cwd: Path | None
    host: str
    port: int
    path: str
    uds: Path | None
    uds_mode: int
    tls_cert: Path | None
    tls_key: Path | None
    process: str
    warm: int
    max_sessions: int
    session_idle_timeout: float
    allowed_host: tuple[str, ...]
    allowed_origin: tuple[str, ...]
    auth_token_file: Path | None
    auth_token_env: str | None
    insecure_no_auth: bool
    start_timeout: float
    request_timeout: float | None
    max_body: int
    max_line: int
    log_level: str
    log_format: str


Level = Callable[[str], int]
"""How closely an option was said: 2 on the command line, 1 in the environment, 0 not at all."""

_LEVELS = {ParameterSource.COMMANDLINE: 2, ParameterSource.ENVIRONMENT: 1}


def level_in(ctx: click.Context) -> Level:
    def level(name: str) -> int:
        source = ctx.get_parameter_source(name)
        return _LEVELS.get(source, 0) if source else 0

    return level


def configure(options: Options, level: Level, environ: MutableMapping[str, str]) -> Config:
    """The configuration that `options` ask for.

    Raises click.UsageError naming the option at fault.
    """
    listen = _listen(options, level)
    return Config(
        command=_command(options, level, environ),
        process=ProcessModel(options["process"]),
        warm=options["warm"],
        listen=listen,
        access=_access(options, listen, level, environ),
        limits=Limits(body=options["max_body"], line=options["max_line"], sessions=options["max_sessions"]),
        timing=Timing(
            start=options["start_timeout"],
            request=options["request_timeout"],
            session_idle=options["session_idle_timeout"],
        ),
        log=Log(level=options["log_level"], format=LogFormat(options["log_format"])),
    )


def _wrong(option: str, fault: str) -> click.BadParameter:
    return click.BadParameter(fault, param_hint=f"'{option}'")


def _prevailing(levels: Mapping[str, int]) -> str | None:
    """The alternative said most closely, if any was said; two on one level exclude each other."""
    said = {name: level for name, level in levels.items() if level and level == max(levels.values())}
    if len(said) > 1:
        raise click.UsageError(f"{' and '.join(said)} exclude each other; give one.")
    return next(iter(said), None)


def _command(options: Options, level: Level, environ: Mapping[str, str]) -> Command:
    after = "a command after --"
    form = _prevailing({"--cmd": level("cmd"), after: 2 if options["words"] else 0})
    argv = options["words"] if form == after else options["cmd"] or ()
    if not argv or not argv[0]:
        raise click.UsageError(
            'No server to start: give --cmd "npx -y some-server", or the command after --.'
        )
    return Command(
        argv=argv,
        env=tuple(_expanded(name, value, environ) for name, value in options["env"]),
        inherit_env=options["inherit_env"],
        cwd=options["cwd"],
    )


def _expanded(name: str, value: str, environ: Mapping[str, str]) -> tuple[str, str]:
    try:
        return name, expand(value, environ)
    except ValueError as fault:
        raise _wrong("--env", f"{name}: {fault}") from None


def _listen(options: Options, level: Level) -> Listen:
    network = "--host" if level("host") > level("port") else "--port"
    place = _prevailing({"--uds": level("uds"), network: max(level("host"), level("port"))})
    if place != "--uds" and level("uds_mode") > 1:
        raise _wrong("--uds-mode", "has no socket to apply to; give --uds PATH too")
    return Listen(
        host=options["host"],
        port=options["port"],
        path=options["path"],
        uds=options["uds"] if place == "--uds" else None,
        uds_mode=options["uds_mode"],
        tls=_tls(options["tls_cert"], options["tls_key"]),
    )


def _tls(cert: Path | None, key: Path | None) -> Tls | None:
    if cert and key:
        return Tls(cert=cert, key=key)
    if cert:
        raise _wrong("--tls-cert", "needs --tls-key too")
    if key:
        raise _wrong("--tls-key", "needs --tls-cert too")
    return None


def _access(options: Options, listen: Listen, level: Level, environ: MutableMapping[str, str]) -> Access:
    token = _token(options, level, environ)
    if token and options["insecure_no_auth"]:
        raise _wrong("--insecure-no-auth", "contradicts the token that is given; drop one of them")
    if not (token or options["insecure_no_auth"] or listen.uds or is_loopback(listen.host)):
        raise _wrong(
            "--host",
            f"{listen.host} can be reached from other machines, and no token is asked of them. Give "
            "--auth-token-file FILE or --auth-token-env VAR; or --insecure-no-auth, if something before "
            "the bridge decides who may call",
        )
    return Access(
        token=token, allowed_hosts=options["allowed_host"], allowed_origins=options["allowed_origin"]
    )


def _token(options: Options, level: Level, environ: MutableMapping[str, str]) -> str | None:
    file, variable = options["auth_token_file"], options["auth_token_env"]
    form = _prevailing({name: level(name[2:].replace("-", "_")) for name in _TOKEN_OPTIONS})
    if form is None:
        return None
    text = _token_in_file(file) if file and form == "--auth-token-file" else _taken(variable or "", environ)
    return _checked_token(text, form)


_TOKEN_OPTIONS = ("--auth-token-file", "--auth-token-env")


def _token_in_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read(TOKEN_LENGTH.stop + 2)
    except OSError as fault:
        raise _wrong("--auth-token-file", f"{path}: {fault.strerror}") from None
    if mode & stat.S_IROTH:
        click.echo(
            f"{PROGRAM}: warning: every user of this machine can read --auth-token-file {path}", err=True
        )
    return text.decode("utf-8", "replace")


def _taken(variable: str, environ: MutableMapping[str, str]) -> str:
    """The token, which leaves the environment so that no pattern can hand it to a server."""
    if variable not in environ:
        raise _wrong("--auth-token-env", f"the variable {variable!r} is not set")
    return environ.pop(variable)


def _checked_token(text: str, form: str) -> str:
    token = text.rstrip("\r\n")
    if not token:
        raise _wrong(form, "the token is empty")
    if len(token) not in TOKEN_LENGTH:
        raise _wrong(form, f"the token must have {TOKEN_LENGTH.start} to {TOKEN_LENGTH.stop - 1} characters")
    # RFC 6750 section 2.1: nothing else survives in an Authorization header.
    if not re.fullmatch(r"[A-Za-z0-9._~+/-]+=*", token):
        raise _wrong(form, "the token may have only letters, digits and - . _ ~ + /, then =")
    return token


# -- commands ---------------------------------------------------------------------------------

_WORDS = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND [ARG]...]")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)

_OPTIONS = (
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
        Of one message from the server.""", default=spell_size(_DEFAULT.limits.line)),
    option(LOGGING, "--log-level", None, click.Choice(LOG_LEVELS, case_sensitive=False), """
        The least that is logged, on stderr.""", default=_DEFAULT.log.level),
    option(LOGGING, "--log-format", None, click.Choice([form.value for form in LogFormat]), """
        json: one object a line.""", default=_DEFAULT.log.format.value),
)  # fmt: skip

_EXIT_STATUS = """\b
Exit status:
  0    stopped as asked
  1    failed while running
  2    the command line or the configuration is wrong
  3    the address cannot be listened on
  4    the server's program does not exist or cannot be executed
  130  interrupted before it listened
"""

_EPILOG = """\b
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

\b
Each option is also an environment variable: MCP_BRIDGE_PORT for --port, and so on.
The command line goes before it. Repeatable ones hold several values, divided by white
space; MCP_BRIDGE_ENV holds one K=V a line.

"""

_TOP_EPILOG = """\b
Examples:
  Serve a stdio server over Streamable HTTP:
    mcp-bridge stdio-to-http --cmd "npx -y @modelcontextprotocol/server-everything"
  Try the bridge without any other server:
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


# Options come before the command, so that the server's own options stay its own.
@program.command(
    "stdio-to-http",
    cls=SectionCommand,
    params=[_WORDS, *_OPTIONS],
    context_settings={"allow_interspersed_args": False},
    epilog=_EPILOG + _EXIT_STATUS,
)
@click.pass_context
def stdio_to_http(ctx: click.Context, **options: Unpack[Options]) -> int:
    """Serve a stdio MCP server over Streamable HTTP.

    \b
    TIME is 30s, 5m, 1h30m, 250ms, or a number of seconds; off where there may be no limit.
    SIZE is 8MiB, 500KB, or a number of bytes.
    """
    config = configure(options, level_in(ctx), os.environ)

    from bridge import daemon

    return daemon.run(config, demo=config.command.argv[-1] == demo_server.name)


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
