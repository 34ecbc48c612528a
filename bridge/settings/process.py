"""From options to what is one for the whole process: its listener, who may call, what an operator has.

Answers "Security Warning" of the Streamable HTTP transport where it can be answered before
listening: loopback unless told otherwise, and nothing beyond it without authorization.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NotRequired, TypedDict

from bridge.config import (
    Access,
    Admin,
    Audit,
    AuditTarget,
    Listen,
    Log,
    LogFormat,
    Record,
    Replicas,
    Tls,
    Tracing,
)
from bridge.settings.said import Said, Wrong, parameter, prevailing
from bridge.values import TOKEN_LENGTH, Place, is_loopback, parse_token


class LoggingOptions(TypedDict):
    log_level: str
    log_format: str


class ListeningOptions(TypedDict):
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


class ReplicasOptions(TypedDict):
    state_key_file: Path | None
    state_key_env: str | None
    replica: str | None
    peer: tuple[tuple[str, str], ...]


class AccessOptions(TypedDict):
    """Who may speak it; tokens themselves can only be in a file."""

    allowed_host: tuple[str, ...]
    allowed_origin: tuple[str, ...]
    auth_token: NotRequired[str | None]
    auth_token_file: Path | None
    auth_token_env: str | None
    insecure_no_auth: bool
    caller: tuple[tuple[str, Path], ...]
    callers: NotRequired[tuple[tuple[str, str], ...]]


class WatchingOptions(TypedDict):
    """What an operator sees of any bridge."""

    audit_log: Path | AuditTarget | None
    audit_argument: tuple[str, ...]
    record: Path | None
    record_secrets: bool
    trace: bool
    drain_timeout: float


class AdminOptions(TypedDict):
    """Where an operator is served."""

    admin: Place | None
    admin_uds_mode: NotRequired[int | None]
    admin_token: NotRequired[str | None]
    admin_token_file: Path | None
    admin_token_env: str | None


class ServingOptions(
    ListeningOptions, ReplicasOptions, AccessOptions, WatchingOptions, AdminOptions, LoggingOptions
):
    """Of a bridge that clients speak HTTP to."""


def log_of(options: LoggingOptions) -> Log:
    return Log(level=options["log_level"], format=LogFormat(options["log_format"]))


def listen_of(options: ListeningOptions, said: Said) -> Listen:
    """Raises click.UsageError."""
    network = "--host" if said.level("host") > said.level("port") else "--port"
    place = prevailing(
        {
            "--uds": said.level("uds"),
            network: max(said.level("host"), said.level("port")),
        }
    )
    if place != "--uds" and said.level("uds_mode").deliberate:
        raise Wrong("--uds-mode", "has no socket to apply to; give --uds PATH too")
    if not options["legacy_sse"] and said.level("base_url").deliberate:
        raise Wrong("--base-url", "is told to old clients only; give --legacy-sse too")
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
        raise Wrong("--tls-cert", "needs --tls-key too")
    if key:
        raise Wrong("--tls-key", "needs --tls-cert too")
    return None


def access_of(options: AccessOptions, listen: Listen, said: Said) -> Access:
    """Raises click.UsageError, also where strangers could reach tools without authorization."""
    token = _token(options, said)
    callers = _callers(options, token, said)
    if (token or callers) and options["insecure_no_auth"]:
        raise Wrong("--insecure-no-auth", "contradicts the token that is given; drop one of them")
    if not (token or callers or options["insecure_no_auth"] or listen.uds or is_loopback(listen.host)):
        raise Wrong(
            "--host",
            f"{listen.host} can be reached from other machines, and no token is asked of them. Give "
            "--auth-token-file FILE or --auth-token-env VAR; or --insecure-no-auth, if something before "
            "the bridge decides who may call",
        )
    return Access(
        token=token,
        callers=callers,
        allowed_hosts=options["allowed_host"],
        allowed_origins=options["allowed_origin"],
    )


def _token(options: AccessOptions, said: Said) -> str | None:
    form = said.prevailing("--auth-token", "--auth-token-file", "--auth-token-env")
    if form == "--auth-token":
        return options.get("auth_token")
    return _secret_token(form, options["auth_token_file"], options["auth_token_env"], said)


def _secret_token(form: str | None, file: Path | None, variable: str | None, said: Said) -> str | None:
    """The token that the option `form` tells of, if that is one. Raises Wrong."""
    if form is None:
        return None
    if form.endswith("-env"):
        text = said.taken(form, variable or "")
    else:
        assert file is not None
        text = said.secret_in_file(file, form, str(file), TOKEN_LENGTH.stop + 1)
    try:
        return parse_token(text)
    except ValueError as fault:
        raise Wrong(form, str(fault)) from None


def _callers(options: AccessOptions, token: str | None, said: Said) -> tuple[tuple[str, str], ...]:
    """Each with a token that is nobody else's. Raises Wrong."""
    form = said.prevailing("--caller", "--callers")
    if form != "--caller":
        callers = list(options.get("callers", ()))
    else:
        callers = []
        for name, file in options["caller"]:
            text = said.secret_in_file(file, form, name, TOKEN_LENGTH.stop + 1)
            try:
                callers.append((name, parse_token(text)))
            except ValueError as fault:
                raise Wrong(form, str(fault), name) from None
    _hold_apart(callers, token, form or "--caller")
    return tuple(callers)


def _hold_apart(callers: list[tuple[str, str]], token: str | None, form: str) -> None:
    names = Counter(name for name, _ in callers)
    owners: dict[str, str] = {}
    for name, secret in callers:
        if names[name] > 1:
            raise Wrong(form, "is given twice", name)
        if secret == token:
            raise Wrong(form, "has the token of everybody", name)
        if secret in owners:
            raise Wrong(form, f"has the same token as {owners[secret]}", name)
        owners[secret] = name


def replicas_of(options: ReplicasOptions, said: Said) -> Replicas:
    """Raises click.UsageError, also for peers that could never find each other."""
    form = said.prevailing("--state-key-file", "--state-key-env")
    keys: str | Path | None = None
    if form == "--state-key-file":
        keys = options["state_key_file"]
    elif form == "--state-key-env":
        keys = said.taken("--state-key-env", str(options["state_key_env"]))
    if options["peer"] and (keys is None or options["replica"] is None):
        raise Wrong("--peer", "peers need names (--replica) and common keys (--state-key-file)")
    return Replicas(name=options["replica"] or "", keys=keys, peers=options["peer"])


def admin_of(options: AdminOptions, said: Said) -> Admin:
    """Raises click.UsageError, also where strangers could reach it without a token."""
    place, mode = options["admin"], options.get("admin_uds_mode")
    form = said.prevailing("--admin-token", "--admin-token-file", "--admin-token-env")
    if place is None:
        if form and said.level(parameter(form)).deliberate:
            raise Wrong(form, "is for the operator's listener; give --admin LISTEN too")
        if mode is not None:
            raise Wrong("--admin-uds-mode", "has no socket to apply to; give --admin unix:PATH too")
        return Admin()
    token = (
        options.get("admin_token")
        if form == "--admin-token"
        else _secret_token(form, options["admin_token_file"], options["admin_token_env"], said)
    )
    if place.uds is not None:
        return Admin(uds=place.uds, uds_mode=Admin().uds_mode if mode is None else mode, token=token)
    if mode is not None:
        raise Wrong("--admin-uds-mode", "has no socket to apply to; give --admin unix:PATH")
    if token is None and not is_loopback(place.host):
        raise Wrong(
            "--admin",
            f"{place.host} can be reached from other machines, and no token is asked of them. Give "
            "--admin-token-file FILE or --admin-token-env VAR",
        )
    return Admin(host=place.host, port=place.port, token=token)


def audit_of(options: WatchingOptions, said: Said) -> Audit:
    """Raises click.UsageError."""
    place, arguments = options["audit_log"], options["audit_argument"]
    if place is None:
        if said.level("audit_argument").deliberate:
            raise Wrong("--audit-argument", "has no log to be written to; give --audit-log FILE too")
        return Audit()
    if isinstance(place, AuditTarget):
        return Audit(target=place, arguments=arguments)
    return Audit(target=AuditTarget.FILE, path=place, arguments=arguments)


def record_of(options: WatchingOptions, said: Said) -> Record:
    """Raises click.UsageError."""
    if options["record"] is None and said.level("record_secrets").deliberate:
        raise Wrong("--record-secrets", "is said of a recording; give --record FILE too")
    return Record(path=options["record"], secrets=options["record_secrets"])


def tracing_of(options: WatchingOptions) -> Tracing:
    return Tracing(enabled=options["trace"])
