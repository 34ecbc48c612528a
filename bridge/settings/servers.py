"""From options to one server: `Config`, and what is behind it.

Decides which options exclude each other and which combinations are refused, before anything starts.
Where the options were said is no matter here: a command and a table of a file come this way alike.
What is given for `--header` and as a URL may be secret and is in no fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NotRequired, TypedDict

import click

from bridge.config import (
    KIB,
    Access,
    Command,
    Config,
    Confinement,
    Downstream,
    Isolation,
    Limits,
    Listen,
    Log,
    Policy,
    ProcessModel,
    Quota,
    Rate,
    Remote,
    Replicas,
    Rule,
    Timing,
    Transport,
    WhenFull,
)
from bridge.era.revisions import Era
from bridge.era.terms import Attribution, Declare, Tasks, Terms
from bridge.settings.said import Said, Wrong, prevailing
from bridge.values import Address, parse_header_value


class PolicyOptions(TypedDict):
    """What clients may see and use."""

    allow_method: tuple[str, ...]
    deny_method: tuple[str, ...]
    allow_tool: tuple[str, ...]
    deny_tool: tuple[str, ...]
    allow_prompt: tuple[str, ...]
    deny_prompt: tuple[str, ...]
    allow_resource: tuple[str, ...]
    deny_resource: tuple[str, ...]


class CommonOptions(PolicyOptions):
    """Of every server, however it is reached and served."""

    start_timeout: float
    request_timeout: float | None
    max_line: int
    upstream_era: str
    declare: str
    attribution: str
    tasks: str
    root: tuple[str, ...]
    forward_identity: bool
    suspend_timeout: float


class SessionOptions(TypedDict):
    """Of a server that clients speak HTTP to."""

    max_sessions: int
    session_idle_timeout: float
    isolation: str
    max_upstreams: int
    when_full: str
    max_body: int
    caller_concurrent: int | None
    caller_rate: Rate | None
    caller_sessions: int | None
    caller_starts: Rate | None


class CommandOptions(TypedDict):
    """Where the server is a program."""

    words: tuple[str, ...]
    cmd: tuple[str, ...] | None
    env: tuple[tuple[str, str], ...]
    inherit_env: tuple[str, ...]
    only_env: bool
    cwd: Path | None


class StartingOptions(CommandOptions):
    """Where it is a process of ours."""

    rlimit: tuple[tuple[str, int | None], ...]
    umask: int | None
    user: str | None
    group: str | None
    no_new_privileges: bool
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


class StartedServer(StartingOptions, SessionOptions, CommonOptions):
    pass


class ReachedServer(RemoteOptions, CommonOptions):
    pass


class ServedServer(ReachedServer, SessionOptions):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all servers of a process have in common."""

    listen: Listen = field(default_factory=Listen)
    access: Access = field(default_factory=Access)
    replicas: Replicas = field(default_factory=Replicas)
    log: Log = field(default_factory=Log)


def starting(options: StartedServer, said: Said, shared: Shared) -> Config:
    """A server that is started, and served over HTTP. Raises click.UsageError naming the option."""
    command = replace(command_of(options, said), confinement=_confinement(options))
    config = _common(command, options, said, shared)
    config = replace(config, process=ProcessModel(options["process"]), warm=options["warm"])
    return _serving(config, options)


def reaching(options: ReachedServer, said: Said, shared: Shared) -> Config:
    """A server at a URL, for a client on stdio. Raises click.UsageError likewise."""
    config = _common(remote_of(options, said), options, said, shared)
    timing = replace(config.timing, connect=options["connect_timeout"])
    return replace(config, downstream=Downstream.STDIO, timing=timing)


def reaching_served(options: ServedServer, said: Said, shared: Shared) -> Config:
    """A server at a URL, served over HTTP. Raises click.UsageError likewise."""
    return _serving(replace(reaching(options, said, shared), downstream=Downstream.HTTP), options)


def _common(upstream: Command | Remote, options: CommonOptions, said: Said, shared: Shared) -> Config:
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
        policy=_policy(options, said),
        limits=Limits(line=options["max_line"]),
        timing=Timing(start=options["start_timeout"], request=options["request_timeout"]),
        listen=shared.listen,
        access=shared.access,
        replicas=shared.replicas,
        log=shared.log,
    )


def _policy(options: PolicyOptions, said: Said) -> Policy:
    """An `allow` that was said and is empty allows nothing."""

    def rule(kind: str, allow: tuple[str, ...], deny: tuple[str, ...]) -> Rule:
        return Rule(allow=allow if said.level(f"allow_{kind}") else None, deny=deny)

    return Policy(
        methods=rule("method", options["allow_method"], options["deny_method"]),
        tools=rule("tool", options["allow_tool"], options["deny_tool"]),
        prompts=rule("prompt", options["allow_prompt"], options["deny_prompt"]),
        resources=rule("resource", options["allow_resource"], options["deny_resource"]),
    )


def _serving(config: Config, options: SessionOptions) -> Config:
    return replace(
        config,
        isolation=_isolation(options, config.upstream),
        when_full=WhenFull(options["when_full"]),
        quota=Quota(
            concurrent=options["caller_concurrent"],
            rate=options["caller_rate"],
            sessions=options["caller_sessions"],
            starts=options["caller_starts"],
        ),
        limits=replace(
            config.limits,
            body=options["max_body"],
            sessions=options["max_sessions"],
            upstreams=options["max_upstreams"],
        ),
        timing=replace(config.timing, session_idle=options["session_idle_timeout"]),
    )


def _isolation(options: SessionOptions, upstream: Command | Remote) -> Isolation:
    isolation = Isolation(options["isolation"])
    if isolation is Isolation.REQUEST and isinstance(upstream, Command):
        raise Wrong("--isolation", "request is for servers at a URL: a process started for each is too slow")
    return isolation


def command_of(options: CommandOptions, said: Said) -> Command:
    """The program to start. Raises click.UsageError."""
    after = "a command after --"
    form = prevailing({"--cmd": said.level("cmd"), after: said.level("words")})
    argv = options["words"] if form == after else options["cmd"] or ()
    if not argv or not argv[0]:
        raise click.UsageError(
            'No server to start: give --cmd "npx -y some-server", or the command after --.'
        )
    return Command(
        argv=argv,
        env=tuple(_variable(name, value, said) for name, value in options["env"]),
        inherit_env=options["inherit_env"],
        only_env=options["only_env"],
        cwd=options["cwd"],
    )


def _variable(name: str, value: str, said: Said) -> tuple[str, str]:
    try:
        return name, said.expanded(value)
    except ValueError as fault:
        raise Wrong("--env", str(fault), name) from None


def _confinement(options: StartingOptions) -> Confinement:
    names = [name for name, _ in options["rlimit"]]
    for name in names:
        if names.count(name) > 1:
            raise Wrong("--rlimit", "is given twice", name)
    return Confinement(
        rlimits=options["rlimit"],
        umask=options["umask"],
        user=options["user"],
        group=options["group"],
        no_new_privileges=options["no_new_privileges"],
    )


def remote_of(options: RemoteOptions, said: Said) -> Remote:
    """The server at a URL. Raises click.UsageError."""
    return Remote(
        url=options["url"].url,
        socket=options["url"].socket,
        # The sse-to-… commands have no such option.
        transport=Transport(options.get("transport", Transport.SSE)),
        headers=_headers(options, said),
        ca_file=options["ca_file"],
        client_cert=options["client_cert"],
        verify=not options["insecure_skip_verify"],
        rewrite_endpoint=options["rewrite_endpoint"],
    )


def _headers(options: RemoteOptions, said: Said) -> tuple[tuple[str, str | Path], ...]:
    """Each header once: of two with one name, the one said more closely."""
    given: list[tuple[int, str, str, str | Path]] = [
        *((said.level("header"), "--header", *field) for field in options["header"]),
        *((said.level("header_file"), "--header-file", *field) for field in options["header_file"]),
    ]
    closest: dict[str, int] = {}
    headers = []
    for closeness, form, name, value in sorted(given, key=lambda field: -field[0]):
        if closest.get(name.lower()) == closeness:
            raise Wrong(form, f"{name} is given twice")
        if name.lower() not in closest:
            closest[name.lower()] = closeness
            headers.append((name, _header(form, name, value, said)))
    return tuple(headers)


def _header(form: str, name: str, value: str | Path, said: Said) -> str | Path:
    from bridge.core.headers import PROTECTED

    if name.lower() in PROTECTED or name.lower().startswith("mcp-param-"):
        raise Wrong(form, f"{name} is the protocol's own, and set by the bridge")
    try:
        if isinstance(value, str):
            return parse_header_value(said.expanded(value))
        parse_header_value(said.secret_in_file(value, form, name, 64 * KIB).strip())
    except ValueError as fault:
        raise Wrong(form, str(fault), name) from None
    return value
