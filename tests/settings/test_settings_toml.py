"""The configuration file: what its keys become, what servers have by default, what goes before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge import settings
from bridge.config import (
    Admin,
    Audit,
    AuditTarget,
    Command,
    Config,
    Confinement,
    Daemon,
    Isolation,
    Listen,
    Log,
    LogFormat,
    Policy,
    ProcessModel,
    Quota,
    Rate,
    Record,
    Remote,
    Replicas,
    Rule,
    Tls,
    Tracing,
    Transport,
    WhenFull,
)
from bridge.era.revisions import Era
from bridge.era.terms import Attribution, Declare, Tasks
from bridge.errors import UsageFault
from bridge.options import SectionOption
from bridge.settings.keys import PROCESS, SERVER_TABLE, WAYS, walk
from bridge.settings.said import Level
from bridge.settings.tree import Elsewhere, read

TOKEN = "abcdefghij0123456789"
OTHER = "jihgfedcba9876543210"
SECRET = "s3cr3t-value"
ONE = '[servers.one]\ncommand = "one"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "bridge.toml"


Load = Callable[..., Daemon]


@pytest.fixture
def load(file: Path) -> Load:
    def load(text: str, **environ: str) -> Daemon:
        file.write_text(text)
        return settings.load(file, environ)

    return load


def only(daemon: Daemon) -> Config:
    (config,) = daemon.servers
    return config


# -- servers


def test_server_with_nothing_but_a_command_is_what_the_command_line_makes_of_it(
    load: Load, file: Path
) -> None:
    listen = Listen(path="/servers/one/mcp")
    config = Config(name="one", upstream=Command(argv=("one",)), listen=listen)
    assert load(ONE) == Daemon(servers=(config,), file=file)


@pytest.mark.parametrize(
    ("keys", "argv"),
    [
        ('command = ["a", "b c"]', ("a", "b c")), ('command = "a b"', ("a b",)),
        ('command = "a"\nargs = ["b", ""]', ("a", "b", "")),
        ('command = ["a", "b"]\nargs = ["c"]', tuple("abc")),
        ("cmd = \"a 'b c'\"", ("a", "b c")), ('cmd = "a b"\nargs = ["c d"]', ("a", "b", "c d")),
        ('command = ["${A}", "$${A}"]', ("x", "${A}")),
    ],
)  # fmt: skip
def test_command_is_an_array_a_program_or_a_line(load: Load, keys: str, argv: tuple[str, ...]) -> None:
    assert only(load(f"[servers.x]\n{keys}", A="x")).upstream == Command(argv=argv)


def test_each_key_of_a_program_reaches_the_configuration(load: Load, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    config = only(load("""
        [servers.x]
        command = ["x"]
        env = {A = "1", B = "${HOME}=$${x}", "C" = ""}
        inherit_env = ["GITHUB_*"]
        only_env = true
        cwd = "data"
        rlimits = {nofile = 256, as = "2GiB", core = "unlimited"}
        umask = "027"
        user = "nobody"
        group = "65534"
        no_new_privileges = true
        process = "shared"
        warm = 3
        """, HOME="/h"))  # fmt: skip
    assert config.upstream == Command(
        argv=("x",), env=(("A", "1"), ("B", "/h=${x}"), ("C", "")), inherit_env=("GITHUB_*",), only_env=True,
        cwd=tmp_path / "data",
        confinement=Confinement(
            rlimits=(("nofile", 256), ("as", 2 << 30), ("core", None)),
            umask=0o027, user="nobody", group="65534", no_new_privileges=True,
        ),
    )  # fmt: skip
    assert (config.process, config.warm) == (ProcessModel.SHARED, 3)


def test_each_key_of_a_remote_server_reaches_the_configuration(load: Load, tmp_path: Path) -> None:
    for name in ("ca.pem", "me.pem", "header.txt"):
        (tmp_path / name).write_text("x")
    config = only(load("""
        [servers.x]
        url = "https://x.example/mcp"
        transport = "sse"
        headers = {Authorization = "Bearer ${T}", X-A = "$${"}
        header_files = {X-B = "header.txt"}
        ca_file = "ca.pem"
        client_cert = "me.pem"
        insecure_skip_verify = true
        rewrite_endpoint = true
        connect_timeout = 2.5
        """, T=SECRET))  # fmt: skip
    assert config.upstream == Remote(
        url="https://x.example/mcp", transport=Transport.SSE, verify=False, rewrite_endpoint=True,
        headers=(("Authorization", f"Bearer {SECRET}"), ("X-A", "${"), ("X-B", tmp_path / "header.txt")),
        ca_file=tmp_path / "ca.pem", client_cert=tmp_path / "me.pem",
    )  # fmt: skip
    assert config.timing.connect == 2.5


def test_each_key_of_any_server_reaches_the_configuration(load: Load) -> None:
    config = only(load("""
        [servers.x]
        url = "unix:/run/x.sock:/mcp"
        upstream_era = "modern"
        declare = "none"
        attribution = "exclusive"
        tasks = "map"
        root = ["file:///a", "file:///b"]
        forward_identity = true
        suspend_timeout = "1m"
        max_sessions = 5
        session_idle_timeout = "1h"
        isolation = "request"
        max_upstreams = 6
        when_full = "refuse"
        start_timeout = 7
        request_timeout = "${LIMIT:-8s}"
        max_body = "1MiB"
        max_line = 2048
        policy.methods = {allow = ["tools/*"], deny = ["x"]}
        policy.tools.allow = []
        policy.prompts.deny = ["p*"]
        policy.resources = {allow = ["file:///a/*"]}
        quota = {concurrent = 2, rate = "10/s:30", sessions = 3, starts = {each = "6/min", burst = 2}}
        """))  # fmt: skip
    assert config.upstream == Remote(url="http://localhost/mcp", socket=Path("/run/x.sock"))
    terms = config.terms
    assert (config.era, terms.declare, terms.attribution) == (Era.MODERN, Declare.NONE, Attribution.EXCLUSIVE)
    assert (terms.tasks, terms.roots, terms.forward_identity) == (Tasks.MAP, ("file:///a", "file:///b"), True)
    assert (config.isolation, config.when_full) == (Isolation.REQUEST, WhenFull.REFUSE)
    assert (terms.suspended, config.timing.session_idle, config.timing.start, config.timing.request) == (
        60, 3600, 7, 8,
    )  # fmt: skip
    limits = config.limits
    assert (limits.sessions, limits.upstreams, limits.body, limits.line) == (5, 6, 1 << 20, 2048)
    assert config.policy == Policy(
        methods=Rule(allow=("tools/*",), deny=("x",)), tools=Rule(allow=()), prompts=Rule(deny=("p*",)),
        resources=Rule(allow=("file:///a/*",)),
    )  # fmt: skip
    assert config.quota == Quota(
        concurrent=2, rate=Rate(each=10, burst=30), sessions=3, starts=Rate(each=0.1, burst=2)
    )


def test_rate_may_be_a_number_per_second(load: Load) -> None:
    config = only(load('[servers.x]\nurl = "http://x"\nquota.rate = {each = 2.5}'))
    assert config.quota.rate == Rate(each=2.5, burst=3)


def test_servers_are_in_the_order_of_the_file_and_each_at_its_own_path(load: Load) -> None:
    daemon = load('default = "b"\n[servers.b]\nurl = "http://b"\n[servers."a.1"]\ncommand = "a"\n')
    assert [(config.name, config.listen.path) for config in daemon.servers] == [
        ("b", "/servers/b/mcp"),
        ("a.1", "/servers/a.1/mcp"),
    ]
    assert (daemon.default, daemon.listen.path) == ("b", "/mcp")


def test_disabled_server_is_left_out_and_looked_at_no_further(load: Load) -> None:
    text = '[servers.x]\ndisabled = true\nurl = "${NOT_SET}"\nnonsense = 1\n' + ONE
    assert [config.name for config in load(text).servers] == ["one"]
    text = '[servers.x]\ndisabled = "${OFF:-true}"\nurl = "http://x"\n' + ONE
    assert [config.name for config in load(text).servers] == ["one"]
    assert [config.name for config in load(text, OFF="false").servers] == ["x", "one"]


def test_file_may_have_no_server_at_all_and_is_warned_of(file: Path) -> None:
    file.write_text("[servers.x]\ndisabled = true\n")
    found = read(file, {})
    assert (found.daemon.servers, found.warnings) == ((), (f"{file}:1: warning: there is no server in it",))


# -- defaults


def test_servers_have_the_defaults_that_are_for_them(load: Load) -> None:
    daemon = load("""
        [defaults]
        warm = 4
        max_sessions = 9
        env = {A = "1", B = "2"}
        headers = {X-A = "1", x-b = "2"}
        transport = "http"
        rlimits = {nofile = 10, core = 0}
        policy.tools = {allow = ["a"], deny = ["b"]}
        quota.concurrent = 1
        [servers.p]
        command = "p"
        env = {B = "3", C = "4"}
        rlimits.nofile = 20
        [servers.r]
        url = "http://r"
        max_sessions = 8
        headers = {X-B = "3"}
        policy.tools.allow = ["c"]
        quota = {sessions = 2}
        """)
    program, remote = daemon.servers
    assert isinstance(program.upstream, Command)
    assert program.upstream.env == (("A", "1"), ("B", "3"), ("C", "4"))
    assert program.upstream.confinement.rlimits == (("nofile", 20), ("core", 0))
    assert (program.warm, program.limits.sessions) == (4, 9)
    assert program.policy.tools == Rule(allow=("a",), deny=("b",))
    assert remote.upstream == Remote(
        url="http://r", transport=Transport.HTTP, headers=(("X-A", "1"), ("X-B", "3"))
    )
    assert (remote.warm, remote.limits.sessions) == (1, 8)
    assert remote.policy.tools == Rule(allow=("c",), deny=("b",))
    assert (program.quota, remote.quota) == (Quota(concurrent=1), Quota(concurrent=1, sessions=2))


def test_header_file_of_a_server_takes_the_place_of_a_header_by_default(load: Load, tmp_path: Path) -> None:
    (tmp_path / "h").write_text("x")
    config = only(load("""
        [defaults]
        headers.X-A = "1"
        [servers.x]
        url = "http://x"
        header_files.x-a = "h"
        """))  # fmt: skip
    assert config.upstream == Remote(url="http://x", headers=(("x-a", tmp_path / "h"),))


# -- the process


def test_each_key_of_the_process_reaches_the_configuration(load: Load, tmp_path: Path) -> None:
    for name in ("cert.pem", "key.pem", "keys"):
        (tmp_path / name).write_text(TOKEN)
    (tmp_path / "caller").write_text(OTHER + "\n")
    daemon = load("""
        drain_timeout = "3s"
        [listen]
        host = "0.0.0.0"
        port = 1234
        path = "/x"
        tls_cert = "cert.pem"
        tls_key = "key.pem"
        legacy_sse = true
        base_url = "https://a.example"
        [access]
        auth_token = "${T}"
        allowed_host = ["a.example"]
        allowed_origin = ["https://a.example"]
        [access.callers]
        bob = "${file:caller}"
        [replicas]
        name = "a"
        state_key_file = "keys"
        peers.b = "http://b:8080/"
        [admin]
        listen = "unix:admin.sock"
        uds_mode = "660"
        token = "${T}"
        [audit]
        log = "audit.jsonl"
        arguments = ["*.path"]
        [record]
        file = "record.jsonl"
        secrets = true
        [tracing]
        enabled = true
        [log]
        level = "debug"
        format = "json"
        """ + ONE, T=TOKEN)  # fmt: skip
    assert daemon.drain == 3
    assert daemon.listen == Listen(
        host="0.0.0.0", port=1234, path="/x", legacy_sse=True, base_url="https://a.example",
        tls=Tls(cert=tmp_path / "cert.pem", key=tmp_path / "key.pem"),
    )  # fmt: skip
    access = daemon.access
    assert (access.token, access.callers) == (TOKEN, (("bob", OTHER),))
    assert (access.allowed_hosts, access.allowed_origins) == (("a.example",), ("https://a.example",))
    assert daemon.admin == Admin(uds=tmp_path / "admin.sock", uds_mode=0o660, token=TOKEN)
    assert daemon.audit == Audit(
        target=AuditTarget.FILE, path=tmp_path / "audit.jsonl", arguments=("*.path",)
    )
    assert daemon.record == Record(path=tmp_path / "record.jsonl", secrets=True)
    assert (daemon.tracing, daemon.log) == (Tracing(enabled=True), Log(level="debug", format=LogFormat.JSON))
    config = only(daemon)
    assert (config.access, config.log) == (access, daemon.log)
    assert config.listen == replace(daemon.listen, path="/servers/one/mcp")
    assert config.replicas == Replicas(
        name="a", keys=tmp_path / "keys", peers=(("b", "http://b:8080/servers/one/mcp"),)
    )


def test_drain_timeout_is_no_matter_of_the_servers(load: Load) -> None:
    """A server that is equal goes on over a reload."""
    assert load("drain_timeout = 3\n" + ONE).servers == load("drain_timeout = 4\n" + ONE).servers


def test_audit_log_may_be_the_journal_and_an_admin_a_port(load: Load) -> None:
    daemon = load('[audit]\nlog = "journal"\n[admin]\nlisten = "9090"\n' + ONE)
    assert (daemon.audit, daemon.admin) == (Audit(target=AuditTarget.JOURNAL), Admin(port=9090))


def test_token_of_the_environment_is_named_and_can_be_read_again(file: Path) -> None:
    file.write_text(
        '[access]\nauth_token_env = "T"\n[admin]\nlisten = "9090"\ntoken_env = "U"\n'
        '[servers.x]\ncommand = "x"\nenv.V = "${T}"\n'
    )
    environ = {"T": TOKEN, "U": OTHER, "W": "x"}
    for _ in range(2):
        found = read(file, environ)
        assert found.taken == {"T", "U"}
        assert (found.daemon.access.token, found.daemon.admin.token) == (TOKEN, OTHER)
        upstream = only(found.daemon).upstream
        assert isinstance(upstream, Command)
        assert upstream.env == (("V", TOKEN),)
    assert environ == {"T": TOKEN, "U": OTHER, "W": "x"}


# -- what is said elsewhere


def elsewhere(level: Level, **values: Any) -> Elsewhere:
    return Elsewhere(values, dict.fromkeys(values, level))


@pytest.mark.parametrize("level", [Level.ENVIRONMENT, Level.COMMAND_LINE])
def test_what_is_said_elsewhere_goes_before_the_file(file: Path, level: Level) -> None:
    file.write_text('default = "one"\n[listen]\nuds = "s"\nuds_mode = "660"\n[log]\nlevel = "error"\n' + ONE)
    said = elsewhere(level, port=9, log_level="debug")
    assert read(file, {}).daemon.listen.uds == file.parent / "s"
    with pytest.raises(
        UsageFault, match=r"listen\.uds_mode: has no socket to apply to; give listen\.uds PATH"
    ):
        read(file, {}, said)
    file.write_text(file.read_text().replace('uds_mode = "660"\n', ""))
    daemon = read(file, {}, said).daemon
    assert (daemon.listen.uds, daemon.listen.port, daemon.log.level) == (None, 9, "debug")
    assert daemon.default == "one"


def test_fault_of_what_is_said_elsewhere_has_its_place_there(file: Path) -> None:
    file.write_text(ONE)
    said = elsewhere(Level.COMMAND_LINE, host="0.0.0.0", default="two")
    with pytest.raises(UsageFault) as raised:
        read(file, {}, said)
    first, second = str(raised.value).splitlines()
    assert first.startswith("'--host': 0.0.0.0 can be reached from other machines")
    assert second == "'--default': there is no server two"


def test_alternatives_that_are_both_said_elsewhere_are_told_as_options(file: Path) -> None:
    file.write_text(ONE)
    with pytest.raises(UsageFault, match=r"^--uds and --port exclude each other; give one\.$"):
        read(file, {}, elsewhere(Level.COMMAND_LINE, uds=Path("s"), port=1))


# -- includes


def test_servers_of_more_files_are_included(load: Load, tmp_path: Path) -> None:
    folder = tmp_path / "conf.d"
    (folder / "data").mkdir(parents=True)
    (folder / "b.toml").write_text('[servers.b]\ncommand = "b"\ncwd = "data"\n')
    (folder / "a.toml").write_text('[servers.a]\ncommand = "a"\n')
    (folder / "c.json").write_text("{")
    daemon = load('include = ["conf.d/*.toml", "none/*"]\n[defaults]\nwarm = 5\n' + ONE)
    assert [config.name for config in daemon.servers] == ["one", "a", "b"]
    assert [config.warm for config in daemon.servers] == [5, 5, 5]
    upstream = daemon.servers[2].upstream
    assert isinstance(upstream, Command)
    assert upstream.cwd == folder / "data"


# -- the table of keys


def test_every_option_of_serving_has_one_key_and_every_key_its_option() -> None:
    from bridge import cli

    without = {"--caller"}
    options = {option.opts[0] for mode in cli.MODES for option in mode.options}
    assert options - without <= set(WAYS)
    ways = [way for spec in (PROCESS, SERVER_TABLE) for way, _ in walk(spec)]
    assert len(set(ways)) == len(ways) == len(WAYS)


def test_no_key_is_read_by_another_function_than_its_option() -> None:
    keys: Mapping[str, SectionOption] = {
        key.option.opts[0]: key.option for spec in (PROCESS, SERVER_TABLE) for _, key in walk(spec)
    }
    from bridge.options import OPTIONS

    assert all(keys[option.opts[0]] is option for option in OPTIONS if option.opts[0] in keys)
