"""The command line: options and environment variables in, one `Config` and an exit status out.

It decides which command has which options, which of them exclude each other, and which
combinations are refused before anything starts; `options.py` says what each option is, `values.py`
reads the values, and every default comes from `config.py`. It refuses to know how anything runs:
the daemon and the demo server are imported when their command is called, so that `--help` and a
usage error cost neither aiohttp nor an event loop. What is given for `--header` and as a URL may be
secret and is in no fault.

Answers "Security Warning" of the Streamable HTTP transport where it can be answered before
listening: loopback unless told otherwise, and nothing beyond it without authorization.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict, Unpack

import click
from click.core import ParameterSource

from bridge import __version__
from bridge.config import (
    KIB,
    Access,
    Command,
    Config,
    Downstream,
    Isolation,
    Limits,
    Listen,
    Log,
    LogFormat,
    ProcessModel,
    Remote,
    Replicas,
    Timing,
    Tls,
    Transport,
    WhenFull,
)
from bridge.era.revisions import Era
from bridge.era.terms import Attribution, Declare, Tasks, Terms
from bridge.errors import BridgeError
from bridge.options import (
    ACCESS,
    DIAGNOSING,
    ERAS,
    LIMITS,
    LISTENING,
    LOGGING,
    OPTIONS,
    PROCESSES,
    REMOTE,
    REPLICAS,
    SERVER,
    SectionCommand,
    SectionOption,
)
from bridge.values import (
    TOKEN_LENGTH,
    Address,
    expand,
    is_loopback,
    parse_header_value,
    parse_token,
    parse_url,
)

PROGRAM = "mcp-bridge"


# -- from options to Config -------------------------------------------------------------------


class CommonOptions(TypedDict):
    """What click hands over for any command that bridges, each value read by its function above."""

    start_timeout: float
    request_timeout: float | None
    max_line: int
    log_level: str
    log_format: str
    upstream_era: str
    declare: str
    attribution: str
    tasks: str
    root: tuple[str, ...]
    forward_identity: bool
    suspend_timeout: float


class ServingOptions(TypedDict):
    """Where clients speak HTTP."""

    host: str
    port: int
    path: str
    uds: Path | None
    uds_mode: int
    tls_cert: Path | None
    tls_key: Path | None
    legacy_sse: bool
    base_url: str | None
    max_sessions: int
    session_idle_timeout: float
    isolation: str
    max_upstreams: int
    when_full: str
    state_key_file: Path | None
    state_key_env: str | None
    replica: str | None
    peer: tuple[tuple[str, str], ...]
    allowed_host: tuple[str, ...]
    allowed_origin: tuple[str, ...]
    auth_token_file: Path | None
    auth_token_env: str | None
    insecure_no_auth: bool
    max_body: int


class StartingOptions(TypedDict):
    """Where the server is a process of ours."""

    words: tuple[str, ...]
    cmd: tuple[str, ...] | None
    env: tuple[tuple[str, str], ...]
    inherit_env: tuple[str, ...]
    cwd: Path | None
    process: str
    warm: int


class RemoteOptions(TypedDict):
    """Where the server is at a URL."""

    url: Address
    transport: NotRequired[str]
    header: tuple[tuple[str, str], ...]
    header_file: tuple[tuple[str, Path], ...]
    ca_file: Path | None
    client_cert: Path | None
    insecure_skip_verify: bool
    rewrite_endpoint: bool
    connect_timeout: float


class Examining(RemoteOptions, StartingOptions):
    """`doctor`, which has no option for `process` and `warm`, and finds `url` among `words`."""

    timeout: float
    json: bool


class StdioToHttp(StartingOptions, ServingOptions, CommonOptions):
    pass


class UrlToStdio(RemoteOptions, CommonOptions):
    pass


class UrlToHttp(RemoteOptions, ServingOptions, CommonOptions):
    pass


Level = Callable[[str], int]
"""How closely an option was said: 2 on the command line, 1 in the environment, 0 not at all."""

_LEVELS = {ParameterSource.COMMANDLINE: 2, ParameterSource.ENVIRONMENT: 1}


def level_in(ctx: click.Context) -> Level:
    def level(name: str) -> int:
        source = ctx.get_parameter_source(name)
        return _LEVELS.get(source, 0) if source else 0

    return level


def starting(options: StdioToHttp, level: Level, environ: MutableMapping[str, str]) -> Config:
    """The configuration of `stdio-to-http`. Raises click.UsageError naming the option at fault."""
    config = _common(_command(options, level, environ), options)
    config = replace(config, process=ProcessModel(options["process"]), warm=options["warm"])
    return _serving(config, options, level, environ)


def reaching(options: UrlToStdio, level: Level, environ: Mapping[str, str]) -> Config:
    """The configuration of a command with a URL, over stdio. Raises click.UsageError likewise."""
    config = _common(_remote(options, level, environ), options)
    timing = replace(config.timing, connect=options["connect_timeout"])
    return replace(config, downstream=Downstream.STDIO, timing=timing)


def reaching_served(options: UrlToHttp, level: Level, environ: MutableMapping[str, str]) -> Config:
    """The configuration of a command with a URL, over HTTP. Raises click.UsageError likewise."""
    config = replace(reaching(options, level, environ), downstream=Downstream.HTTP)
    return _serving(config, options, level, environ)


def examined(options: Examining, level: Level, environ: Mapping[str, str]) -> Command | Remote:
    """What `doctor` is to examine: one word that is a URL, else a command. Raises click.UsageError."""
    ctx, words = click.get_current_context(), options["words"]
    if not words and not options["cmd"]:
        words = tuple(filter(None, [environ.get("MCP_BRIDGE_URL", "")]))
        if not words:
            raise click.UsageError("Nothing to examine: give a URL, or a command after --.", ctx)
    if not words or not ("://" in words[0] or words[0].startswith("unix:")):
        return _command(options, level, environ)
    if level("cmd") > 1:
        raise click.UsageError("--cmd and a URL exclude each other; give one.", ctx)
    options["url"] = _one_url(ctx, _TARGET, words)
    return _remote(options, level, environ)


def _common(upstream: Command | Remote, options: CommonOptions) -> Config:
    terms = Terms(
        declare=Declare(options["declare"]),
        attribution=Attribution(options["attribution"]),
        tasks=Tasks(options["tasks"]),
        roots=options["root"],
        forward_identity=options["forward_identity"],
        suspended=options["suspend_timeout"],
    )
    return Config(
        upstream=upstream,
        era=None if options["upstream_era"] == "auto" else Era(options["upstream_era"]),
        terms=terms,
        limits=Limits(line=options["max_line"]),
        timing=Timing(start=options["start_timeout"], request=options["request_timeout"]),
        log=Log(level=options["log_level"], format=LogFormat(options["log_format"])),
    )


def _serving(
    config: Config, options: ServingOptions, level: Level, environ: MutableMapping[str, str]
) -> Config:
    listen = _listen(options, level)
    return replace(
        config,
        listen=listen,
        access=_access(options, listen, level, environ),
        isolation=_isolation(options, config.upstream),
        when_full=WhenFull(options["when_full"]),
        replicas=_replicas(options, level, environ),
        limits=replace(
            config.limits,
            body=options["max_body"],
            sessions=options["max_sessions"],
            upstreams=options["max_upstreams"],
        ),
        timing=replace(config.timing, session_idle=options["session_idle_timeout"]),
    )


def _isolation(options: ServingOptions, upstream: Command | Remote) -> Isolation:
    isolation = Isolation(options["isolation"])
    if isolation is Isolation.REQUEST and isinstance(upstream, Command):
        raise _wrong("--isolation", "request is for servers at a URL: a process started for each is too slow")
    return isolation


def _replicas(options: ServingOptions, level: Level, environ: MutableMapping[str, str]) -> Replicas:
    """Raises click.UsageError for peers that could never find each other."""
    form = _prevailing(
        {"--state-key-file": level("state_key_file"), "--state-key-env": level("state_key_env")}
    )
    keys: str | Path | None = None
    if form == "--state-key-file":
        keys = options["state_key_file"]
    elif form == "--state-key-env":
        keys = _taken("--state-key-env", str(options["state_key_env"]), environ)
    if options["peer"] and (keys is None or options["replica"] is None):
        raise _wrong("--peer", "peers need names (--replica) and common keys (--state-key-file)")
    return Replicas(name=options["replica"] or "", keys=keys, peers=options["peer"])


def _wrong(option: str, fault: str) -> click.BadParameter:
    return click.BadParameter(fault, param_hint=f"'{option}'")


def _prevailing(levels: Mapping[str, int]) -> str | None:
    """The alternative said most closely, if any was said; two on one level exclude each other."""
    said = {name: level for name, level in levels.items() if level and level == max(levels.values())}
    if len(said) > 1:
        raise click.UsageError(f"{' and '.join(said)} exclude each other; give one.")
    return next(iter(said), None)


def _command(options: StartingOptions, level: Level, environ: Mapping[str, str]) -> Command:
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


def _remote(options: RemoteOptions, level: Level, environ: Mapping[str, str]) -> Remote:
    return Remote(
        url=options["url"].url,
        socket=options["url"].socket,
        # The sse-to-… commands have no such option.
        transport=Transport(options.get("transport", Transport.SSE)),
        headers=_headers(options, level, environ),
        ca_file=options["ca_file"],
        client_cert=options["client_cert"],
        verify=not options["insecure_skip_verify"],
        rewrite_endpoint=options["rewrite_endpoint"],
    )


def _headers(
    options: RemoteOptions, level: Level, environ: Mapping[str, str]
) -> tuple[tuple[str, str | Path], ...]:
    """Each header once: of two with one name, the one said more closely."""
    given: list[tuple[int, str, str, str | Path]] = [
        *((level("header"), "--header", *field) for field in options["header"]),
        *((level("header_file"), "--header-file", *field) for field in options["header_file"]),
    ]
    said: dict[str, int] = {}
    headers = []
    for closeness, form, name, value in sorted(given, key=lambda field: -field[0]):
        if said.get(name.lower()) == closeness:
            raise _wrong(form, f"{name} is given twice")
        if name.lower() not in said:
            said[name.lower()] = closeness
            headers.append((name, _header(form, name, value, environ)))
    return tuple(headers)


def _header(form: str, name: str, value: str | Path, environ: Mapping[str, str]) -> str | Path:
    from bridge.core.headers import PROTECTED

    if name.lower() in PROTECTED or name.lower().startswith("mcp-param-"):
        raise _wrong(form, f"{name} is the protocol's own, and set by the bridge")
    try:
        if isinstance(value, str):
            return parse_header_value(expand(value, environ))
        parse_header_value(_secret_in_file(value, form, name, 64 * KIB).strip())
    except ValueError as fault:
        raise _wrong(form, f"{name}: {fault}") from None
    return value


def _listen(options: ServingOptions, level: Level) -> Listen:
    network = "--host" if level("host") > level("port") else "--port"
    place = _prevailing({"--uds": level("uds"), network: max(level("host"), level("port"))})
    if place != "--uds" and level("uds_mode") > 1:
        raise _wrong("--uds-mode", "has no socket to apply to; give --uds PATH too")
    if not options["legacy_sse"] and level("base_url") > 1:
        raise _wrong("--base-url", "is told to old clients only; give --legacy-sse too")
    return Listen(
        host=options["host"],
        port=options["port"],
        path=options["path"],
        uds=options["uds"] if place == "--uds" else None,
        uds_mode=options["uds_mode"],
        legacy_sse=options["legacy_sse"],
        base_url=options["base_url"],
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


def _access(
    options: ServingOptions, listen: Listen, level: Level, environ: MutableMapping[str, str]
) -> Access:
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


def _token(options: ServingOptions, level: Level, environ: MutableMapping[str, str]) -> str | None:
    file, variable = options["auth_token_file"], options["auth_token_env"]
    form = _prevailing({name: level(name[2:].replace("-", "_")) for name in _TOKEN_OPTIONS})
    if form is None:
        return None
    try:
        return parse_token(
            _secret_in_file(file, form, str(file), TOKEN_LENGTH.stop + 1)
            if file and form == "--auth-token-file"
            else _taken("--auth-token-env", variable or "", environ)
        )
    except ValueError as fault:
        raise _wrong(form, str(fault)) from None


_TOKEN_OPTIONS = ("--auth-token-file", "--auth-token-env")


def _secret_in_file(path: Path, form: str, shown: str, limit: int) -> str:
    """The beginning of a file; `shown` stands for it in what is said of it."""
    try:
        with path.open("rb") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read(limit)
    except OSError as fault:
        raise _wrong(form, f"{shown}: {fault.strerror}") from None
    if mode & stat.S_IROTH:
        warning = f"every user of this machine can read the file of {form} {shown}"
        click.echo(f"{PROGRAM}: warning: {warning}", err=True)
    return text.decode("utf-8", "replace")


def _taken(option: str, variable: str, environ: MutableMapping[str, str]) -> str:
    """A secret, which leaves the environment so that no pattern can hand it to a server."""
    if variable not in environ:
        raise _wrong(option, f"the variable {variable!r} is not set")
    return environ.pop(variable)


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


def _run(config: Config, *, demo: bool = False) -> int:
    from bridge import daemon

    return daemon.run(config, demo=demo)


def stdio_to_http(**options: Unpack[StdioToHttp]) -> int:
    config = starting(options, level_in(click.get_current_context()), os.environ)
    assert isinstance(config.upstream, Command)
    return _run(config, demo=config.upstream.argv[-1] == demo_server.name)


def url_to_stdio(**options: Unpack[UrlToStdio]) -> int:
    return _run(reaching(options, level_in(click.get_current_context()), os.environ))


def url_to_http(**options: Unpack[UrlToHttp]) -> int:
    return _run(reaching_served(options, level_in(click.get_current_context()), os.environ))


@dataclass(frozen=True, slots=True)
class Mode:
    """One command that bridges."""

    name: str
    run: Callable[..., int]
    argument: click.Argument
    options: list[SectionOption]
    text: str
    examples: str


_OVER_STDIO = (REMOTE, ERAS, LIMITS, LOGGING)
_OVER_HTTP = (REMOTE, ERAS, LISTENING, PROCESSES, REPLICAS, ACCESS, LIMITS, LOGGING)
_CHILDREN = ("--process", "--warm")

MODES = (
    Mode(
        "stdio-to-http",
        stdio_to_http,
        _WORDS,
        options_of(SERVER, ERAS, LISTENING, PROCESSES, REPLICAS, ACCESS, LIMITS, LOGGING),
        "Serve a stdio server over Streamable HTTP." + _WRITTEN,
        _STDIO_TO_HTTP,
    ),
    Mode(
        "http-to-stdio",
        url_to_stdio,
        _URL,
        options_of(*_OVER_STDIO, but=["--max-body"]),
        "Make a remote server a local stdio one." + _URL_WRITTEN,
        _HTTP_TO_STDIO,
    ),
    Mode(
        "sse-to-stdio",
        url_to_stdio,
        _URL,
        options_of(*_OVER_STDIO, but=["--max-body", "--transport"]),
        "Make an HTTP+SSE server a local stdio one." + _URL_WRITTEN,
        _SSE_TO_STDIO,
    ),
    Mode(
        "sse-to-http",
        url_to_http,
        _URL,
        options_of(*_OVER_HTTP, but=[*_CHILDREN, "--transport"]),
        "Serve an HTTP+SSE server over Streamable HTTP." + _URL_WRITTEN,
        _SSE_TO_HTTP,
    ),
    Mode(
        "http-to-http",
        url_to_http,
        _URL,
        options_of(*_OVER_HTTP, but=_CHILDREN),
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
    upstream = examined(options, level_in(click.get_current_context()), os.environ)
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
