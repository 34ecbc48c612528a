"""The command line: how values are read, what excludes what, what is refused, and how a fault is told."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import bridge
from bridge import cli
from bridge.cli import (
    expand,
    is_loopback,
    main,
    parse_authority,
    parse_command,
    parse_duration,
    parse_host,
    parse_limit,
    parse_mode,
    parse_origin,
    parse_path,
    parse_pattern,
    parse_size,
    parse_variable,
    spell_duration,
    spell_size,
)
from bridge.config import Command, Config, LogFormat, ProcessModel, Tls
from bridge.errors import BridgeError, CommandNotFound, ListenFault, UsageFault

TOKEN = "abcdefghij0123456789"
SERVER = ("--", "server")


@dataclass
class Daemon:
    """Stands for the daemon: keeps what it was asked to run."""

    status: int = 0
    fault: BaseException | None = None
    configs: list[Config] = field(default_factory=list)
    demo: bool | None = None

    def run(self, config: Config, *, demo: bool) -> int:
        self.configs.append(config)
        self.demo = demo
        if self.fault:
            raise self.fault
        return self.status


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    daemon = Daemon()
    monkeypatch.setattr(bridge, "daemon", daemon, raising=False)
    return daemon


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MCP_BRIDGE_")]:
        monkeypatch.delenv(name)


def configured(daemon: Daemon, *words: str) -> Config:
    assert main(["stdio-to-http", *words]) == 0
    return daemon.configs.pop()


def refused(capsys: pytest.CaptureFixture[str], daemon: Daemon, *words: str) -> str:
    """The line that a usage error is told in."""
    assert main(["stdio-to-http", *words]) == 2
    assert daemon.configs == []
    fault, hint = capsys.readouterr().err.splitlines()
    assert hint == "Try 'mcp-bridge stdio-to-http --help' for all options."
    return fault.removeprefix("mcp-bridge: ")


# -- values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30), ("5m", 300), ("1h", 3600), ("250ms", 0.25), ("1h30m", 5400), ("1m30s500ms", 90.5),
        ("1.5h", 5400), ("12", 12), ("0.5", 0.5), ("1e9", 1e9), ("1000000000s", 1e9), (" 30S ", 30),
    ],
)  # fmt: skip
def test_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert parse_limit(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "-1", "-5s", "nan", "inf", "1e999", "5 m", "s", "30m1h", "1m1m", "5x", "1d", "0x10", "٣s"]
)
def test_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)
    with pytest.raises(ValueError, match="duration"):
        parse_limit(text)


@pytest.mark.parametrize("text", ["off", "none", "NONE", "0", "0s", "0.0", "0h0m"])
def test_no_limit_is_read_where_there_may_be_none(text: str) -> None:
    assert parse_limit(text) is None
    with pytest.raises(ValueError):
        parse_duration(text)


@given(st.integers(0, 10**9).map(lambda ms: ms / 1000))
def test_duration_is_read_as_it_is_spelled(seconds: float) -> None:
    assert (parse_limit(f"{seconds:.3f}s") or 0) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "off"), (1800, "30m"), (60, "1m"), (90, "90s"), (0.25, "0.25s")]
)
def test_default_duration_is_spelled_shortly_and_read_back(seconds: float | None, text: str) -> None:
    assert spell_duration(seconds) == text
    assert parse_limit(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8MiB", 8 << 20), ("500KB", 500_000), ("1GiB", 1 << 30), ("1gb", 10**9), ("64 KiB", 65536),
        ("1.5MiB", 3 << 19), ("4096", 4096), ("4096B", 4096), ("2MB", 2_000_000),
    ],
)  # fmt: skip
def test_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "0", "0MiB", "8M", "8 bytes", "nan", "1e6", "9" * 5000, "0.1"])
def test_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@given(st.integers(1, 1 << 40))
def test_size_is_read_as_it_is_spelled(size: int) -> None:
    assert parse_size(spell_size(size)) == size


@pytest.mark.parametrize(("text", "mode"), [("600", 0o600), ("0660", 0o660), ("0o777", 0o777)])
def test_file_mode_is_octal(text: str, mode: int) -> None:
    assert parse_mode(text) == mode


@pytest.mark.parametrize("text", ["", "6", "888", "rw-", "-600", "4755"])
def test_file_mode_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="file mode"):
        parse_mode(text)


@pytest.mark.case("CP-09")
@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("npx -y server", ("npx", "-y", "server")),
        ("'/tmp/a b (x)/srv.py' \"it's\"", ("/tmp/a b (x)/srv.py", "it's")),
        (
            "srv $HOME ; rm * | cat > x && y",
            ("srv", "$HOME", ";", "rm", "*", "|", "cat", ">", "x", "&&", "y"),
        ),
        ("srv '' ``", ("srv", "", "``")),
        ("srv \\$X a\\ b", ("srv", "$X", "a b")),
        ("srv # no comment", ("srv", "#", "no", "comment")),
        ("srv 工具\nnext", ("srv", "工具", "next")),
    ],
)
def test_command_is_split_as_a_shell_splits_and_nothing_is_expanded(text: str, argv: Sequence[str]) -> None:
    assert parse_command(text) == argv


@pytest.mark.case("CP-09")
@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("K=V", ("K", "V")), ("K=", ("K", "")), ("K=a=b==", ("K", "a=b==")),
        ('K="quoted"', ("K", '"quoted"')), ('K={"a": [1, "b"]}', ("K", '{"a": [1, "b"]}')),
    ],
)  # fmt: skip
def test_variable_is_split_at_its_first_equals_sign_only(text: str, pair: tuple[str, str]) -> None:
    assert parse_variable(text) == pair


@pytest.mark.parametrize("text", ["sk-verysecret", "=verysecret", ""])
def test_variable_without_a_name_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(ValueError, match="K=V") as raised:
        parse_variable(text)
    assert "verysecret" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${A}", "1"), ("x${A}y${B_2}", "x1y$2"), ("$A $ $$ {A}", "$A $ $$ {A}"), ("$${A}", "${A}"),
        ("$$${A}", "$${A}"), ("${EMPTY}", ""), ("", ""),
    ],
)  # fmt: skip
def test_variables_are_expanded_once(text: str, value: str) -> None:
    assert expand(text, {"A": "1", "B_2": "$2", "EMPTY": ""}) == value


@pytest.mark.parametrize(
    ("text", "fault"),
    [("${NOPE}", "${NOPE} is not set"), ("${A:-x}", "write $${"), ("${A", "write $${"), ("${}", "write $${")],
)
def test_what_cannot_be_expanded_is_refused(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)):
        expand(text, {"A": "1"})


@given(st.text())
def test_escaped_text_expands_to_itself(text: str) -> None:
    assert expand(text.replace("${", "$${"), {}) == text


@pytest.mark.parametrize("text", ["", " ", "A=B"])
def test_pattern_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="GITHUB_"):
        parse_pattern(text)


@pytest.mark.parametrize(
    ("text", "path"), [("/mcp", "/mcp"), ("/mcp/", "/mcp"), ("/", "/"), ("/a/b.c", "/a/b.c")]
)
def test_path_is_read(text: str, path: str) -> None:
    assert parse_path(text) == path


@pytest.mark.parametrize(
    "text",
    ["mcp", "", "/healthz", "/readyz/", "/a?b", "/a#b", "/a b", "//a", "/a/../b", "/.", "/{x}", "/é", "/a\n"],
)
def test_path_that_cannot_be_served_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_path(text)


@pytest.mark.parametrize(("text", "host"), [("[::1]", "::1"), ("::", "::"), ("localhost", "localhost")])
def test_host_is_read(text: str, host: str) -> None:
    assert parse_host(text) == host


@pytest.mark.parametrize(
    "text", ["", " ", "127.0.0.1:8080", "http://localhost", "a/b", "[::1", "[localhost]"]
)
def test_host_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--port"):
        parse_host(text)


@pytest.mark.parametrize(
    "text", ["mcp.example.com", "mcp.example.com:8443", "*.example.com", "[fd00::1]:80", "*"]
)
def test_allowed_host_is_read(text: str) -> None:
    assert parse_authority(text.upper()) == text


@pytest.mark.parametrize("text", ["", "https://a", "a/b", "a:b", "a b", "b*", "::1"])
def test_allowed_host_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a host"):
        parse_authority(text)


@pytest.mark.parametrize(
    ("text", "origin"),
    [("https://App.example.com", "https://app.example.com"), ("http://a:3000/", "http://a:3000"), ("*", "*")],
)
def test_allowed_origin_is_read(text: str, origin: str) -> None:
    assert parse_origin(text) == origin


@pytest.mark.parametrize("text", ["", "null", "app.example.com", "https://a/b", "https://*.a", "https://u@a"])
def test_allowed_origin_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an origin"):
        parse_origin(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.8.9.10", True), ("::1", True), ("localhost", True), ("LOCALHOST", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("localhost.example.com", False),
        ("::ffff:127.0.0.1", False), ("128.0.0.1", False),
    ],
)  # fmt: skip
def test_loopback_is_known_from_what_others_can_reach(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


# -- options


def test_defaults_are_those_of_the_configuration(daemon: Daemon) -> None:
    assert configured(daemon, *SERVER) == Config(command=Command(argv=("server",)))


def test_each_option_reaches_the_configuration(daemon: Daemon, tmp_path: Path) -> None:
    cert, key, token = (tmp_path / name for name in ("cert", "key", "token"))
    for file in (cert, key, token):
        file.write_text(TOKEN)
    token.chmod(0o600)
    config = configured(
        daemon,
        "--cmd", "server --flag", "--env", "A=1", "--env", "B=2", "--inherit-env", "X_*",
        "--cwd", str(tmp_path), "--host", "0.0.0.0", "--port", "0", "--path", "/x",
        "--tls-cert", str(cert), "--tls-key", str(key),
        "--process", "shared", "--warm", "3", "--max-sessions", "7", "--session-idle-timeout", "1h",
        "--allowed-host", "a.example", "--allowed-host", "b.example", "--allowed-origin", "https://a.example",
        "--auth-token-file", str(token), "--start-timeout", "5s", "--request-timeout", "1m",
        "--max-body", "1MiB", "--max-line", "2MiB", "--log-level", "DEBUG", "--log-format", "json",
    )  # fmt: skip
    assert config.command == Command(
        argv=("server", "--flag"), env=(("A", "1"), ("B", "2")), inherit_env=("X_*",), cwd=tmp_path
    )
    assert (config.listen.host, config.listen.port, config.listen.path) == ("0.0.0.0", 0, "/x")
    assert config.listen.tls == Tls(cert=cert, key=key)
    assert (config.process, config.warm, config.limits.sessions) == (ProcessModel.SHARED, 3, 7)
    assert (config.timing.session_idle, config.timing.start, config.timing.request) == (3600, 5, 60)
    assert config.access.token == TOKEN
    assert config.access.allowed_hosts == ("a.example", "b.example")
    assert config.access.allowed_origins == ("https://a.example",)
    assert (config.limits.body, config.limits.line) == (1 << 20, 2 << 20)
    assert (config.log.level, config.log.format) == ("debug", LogFormat.JSON)


@pytest.mark.case("CP-09")
def test_words_after_the_dashes_reach_the_server_as_they_are(daemon: Daemon) -> None:
    words = ("server", "--port", "1", "--", "--help", "a b", "", "$HOME", "*", ";", "工具", "\udcff")
    assert configured(daemon, "--port", "9", "--", *words).command.argv == words


def test_options_after_the_first_word_of_the_server_are_the_servers(daemon: Daemon) -> None:
    config = configured(daemon, "npx", "-y", "server", "--port", "1")
    assert config.command.argv == ("npx", "-y", "server", "--port", "1")
    assert config.listen.port == 8080


def test_variables_for_the_server_are_expanded(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "k=1")
    assert configured(daemon, "--env", "KEY=<${MY_KEY}>", *SERVER).command.env == (("KEY", "<k=1>"),)


@pytest.mark.parametrize(
    ("variable", "value", "read"),
    [
        ("CMD", "server 'a b'", lambda c: c.command.argv == ("server", "a b")),
        ("ENV", 'A=1 2\n\nB={"x": 1}\n', lambda c: c.command.env == (("A", "1 2"), ("B", '{"x": 1}'))),
        ("INHERIT_ENV", "A_* B", lambda c: c.command.inherit_env == ("A_*", "B")),
        ("ALLOWED_HOST", "a b:1\nc", lambda c: c.access.allowed_hosts == ("a", "b:1", "c")),
        ("ALLOWED_ORIGIN", "http://a", lambda c: c.access.allowed_origins == ("http://a",)),
        ("REQUEST_TIMEOUT", "off", lambda c: c.timing.request is None),
        ("PORT", "9", lambda c: c.listen.port == 9),
        ("LOG_FORMAT", "json", lambda c: c.log.format is LogFormat.JSON),
    ],
)
def test_options_are_environment_variables_too(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, read: Callable[[Config], bool]
) -> None:
    monkeypatch.setenv(f"MCP_BRIDGE_{variable}", value)
    assert read(configured(daemon, *(() if variable == "CMD" else SERVER)))


def test_flag_is_an_environment_variable_too(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_BRIDGE_INSECURE_NO_AUTH", "1")
    assert configured(daemon, "--host", "0.0.0.0", *SERVER).access.token is None


def test_command_line_goes_before_the_environment(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PORT": "1", "CMD": "other", "HOST": "0.0.0.0", "AUTH_TOKEN_ENV": "T"}.items():
        monkeypatch.setenv(f"MCP_BRIDGE_{name}", value)
    monkeypatch.setenv("T", TOKEN)
    config = configured(daemon, "--port", "2", *SERVER)
    assert (config.listen.port, config.command.argv) == (2, ("server",))
    monkeypatch.setenv("T", TOKEN)
    assert configured(daemon, "--uds", "/tmp/s", *SERVER).listen.uds == Path("/tmp/s")


def test_address_on_the_command_line_goes_before_a_socket_in_the_environment(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCP_BRIDGE_UDS", "/tmp/s")
    assert configured(daemon, "--port", "2", *SERVER).listen.uds is None
    assert configured(daemon, *SERVER).listen.uds == Path("/tmp/s")


def test_fault_in_a_variable_names_the_variable(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCP_BRIDGE_MAX_BODY", "8M")
    assert "'--max-body' (from MCP_BRIDGE_MAX_BODY): '8M'" in refused(capsys, daemon, *SERVER)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ((), "No server to start: give --cmd"),
        (("--cmd", ""), "No server to start"),
        (("--", ""), "No server to start"),
        (("--cmd", "a", "--", "b"), "--cmd and a command after -- exclude each other"),
        (("--cmd", "a 'b"), "'--cmd': cannot be split into words: no closing quotation"),
        (("--env", "A=${NOT_SET_ANYWHERE}", *SERVER), "'--env': A: ${NOT_SET_ANYWHERE} is not set"),
        (("--env", "secret", *SERVER), "'--env': K=V expected"),
        (("--cwd", "/no/such/directory", *SERVER), "'--cwd': Directory '/no/such/directory' does not exist"),
        (("--port", "65536", *SERVER), "'--port'"),
        (("--port", "http", *SERVER), "'--port'"),
        (("--path", "/healthz", *SERVER), "'--path': /healthz is taken"),
        (("--uds", "/tmp/s", "--port", "1", *SERVER), "--uds and --port exclude each other"),
        (("--uds", "/tmp/s", "--host", "::1", *SERVER), "--uds and --host exclude each other"),
        (("--uds-mode", "660", *SERVER), "'--uds-mode': has no socket"),
        (("--tls-cert", __file__, *SERVER), "'--tls-cert': needs --tls-key"),
        (("--tls-key", __file__, *SERVER), "'--tls-key': needs --tls-cert"),
        (("--tls-cert", "/no/such", *SERVER), "'--tls-cert': File '/no/such' does not exist"),
        (("--request-timeout", "-5", *SERVER), "'--request-timeout': '-5' is not a duration"),
        (("--start-timeout", "off", *SERVER), "'--start-timeout'"),
        (("--session-idle-timeout", "0", *SERVER), "'--session-idle-timeout': must be longer than 0"),
        (("--max-line", "many", *SERVER), "'--max-line': 'many' is not a size"),
        (("--warm", "-1", *SERVER), "'--warm'"),
        (("--max-sessions", "0", *SERVER), "'--max-sessions'"),
        (("--process", "pool", *SERVER), "'--process'"),
        (("--auth-token-file", "/no/such", *SERVER), "'--auth-token-file'"),
        (("--auth-token-env", "NOT_SET", *SERVER), "'--auth-token-env': the variable 'NOT_SET' is not set"),
        (("--auth-token-file", __file__, "--auth-token-env", "A", *SERVER), "exclude each other"),
        (("--prot", "1", *SERVER), "No such option"),
    ],
)  # fmt: skip
def test_wrong_options_are_told_in_one_line_that_names_them(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], words: Sequence[str], fault: str
) -> None:
    assert fault in refused(capsys, daemon, *words)


# -- access


@pytest.mark.spec("SP-8", "HL-4")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "mcp.example.com"])
def test_listening_beyond_loopback_without_a_token_is_refused_with_what_to_do(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    fault = refused(capsys, daemon, "--host", host, *SERVER)
    assert all(word in fault for word in ("--auth-token-file", "--auth-token-env", "--insecure-no-auth"))


@pytest.mark.spec("SP-8")
@pytest.mark.parametrize(
    "words", [("--host", "0.0.0.0", "--insecure-no-auth"), ("--host", "127.0.0.2"), ("--uds", "/tmp/s")]
)
def test_listening_without_a_token_is_allowed_where_it_is_safe_or_asked_for(
    daemon: Daemon, words: Sequence[str]
) -> None:
    assert configured(daemon, *words, *SERVER).access.token is None


@pytest.mark.spec("SP-1", "SC-17")
def test_token_is_taken_out_of_the_environment(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    config = configured(daemon, "--host", "0.0.0.0", "--auth-token-env", "MY_TOKEN", *SERVER)
    assert config.access.token == TOKEN
    assert "MY_TOKEN" not in os.environ
    assert TOKEN not in repr(config)


def test_token_file_may_end_in_a_line_break(daemon: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(TOKEN.encode() + b"\r\n")
    assert configured(daemon, "--auth-token-file", str(file), *SERVER).access.token == TOKEN


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("\n", "is empty"), ("short", "16 to 4096 characters"), ("a" * 4097, "16 to 4096 characters"),
        ("sixteen letters and spaces", "only letters"), (f"{TOKEN}\n{TOKEN}", "only letters"),
        ("p\N{LATIN SMALL LETTER E WITH ACUTE}sswordpassword", "only letters"),
    ],
)  # fmt: skip
def test_token_that_no_client_could_send_is_refused_untold(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, fault: str
) -> None:
    file = tmp_path / "token"
    file.write_text(content, encoding="utf-8")
    file.chmod(0o600)
    told = refused(capsys, daemon, "--auth-token-file", str(file), *SERVER)
    assert fault in told
    assert content.strip() == "" or content not in told


def test_token_file_that_everybody_can_read_is_warned_of(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    for mode, warned in ((0o644, True), (0o640, False)):
        file.chmod(mode)
        configured(daemon, "--auth-token-file", str(file), *SERVER)
        assert ("warning: every user" in capsys.readouterr().err) is warned


def test_token_and_no_token_at_once_are_refused(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    fault = refused(capsys, daemon, "--insecure-no-auth", "--auth-token-env", "MY_TOKEN", *SERVER)
    assert "'--insecure-no-auth': contradicts the token" in fault


# -- exit status and faults


@pytest.mark.parametrize(
    ("fault", "status"),
    [(UsageFault("x"), 2), (ListenFault("x"), 3), (CommandNotFound("x"), 4), (BridgeError("x"), 1)],
)
def test_fault_at_start_is_one_line_and_its_exit_status(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], fault: BridgeError, status: int
) -> None:
    daemon.fault = fault
    assert main(["stdio-to-http", *SERVER]) == status
    assert capsys.readouterr().err == "mcp-bridge: x\n"


def test_status_of_the_daemon_is_the_exit_status(daemon: Daemon) -> None:
    daemon.status = 7
    assert main(["stdio-to-http", *SERVER]) == 7


def test_interrupt_before_the_daemon_handles_it_exits_130(daemon: Daemon) -> None:
    daemon.fault = KeyboardInterrupt()
    assert main(["stdio-to-http", *SERVER]) == 130


@pytest.mark.parametrize(
    ("words", "demo"), [(("mcp-bridge", "demo-server"), True), (("demo-server", "--of-another"), False)]
)
def test_daemon_is_told_when_it_serves_the_demo(daemon: Daemon, words: Sequence[str], demo: bool) -> None:
    configured(daemon, "--", *words)
    assert daemon.demo is demo


def test_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["http-to-html"]) == 2
    assert "No such command 'http-to-html'" in capsys.readouterr().err


def test_demo_server_is_run_and_gives_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "demo_server", SimpleNamespace(main=lambda: 5), raising=False)
    assert main(["demo-server"]) == 5


# -- help


def options() -> list[cli.SectionOption]:
    params = click.Context(cli.program).command.commands["stdio-to-http"].params  # type: ignore[attr-defined]
    return [param for param in params if isinstance(param, cli.SectionOption)]


def help_of(*words: str) -> str:
    result = CliRunner().invoke(cli.program, [*words, "--help"], prog_name="mcp-bridge")
    assert result.exit_code == 0
    return result.output


def test_help_has_each_option_under_its_heading() -> None:
    text = help_of("stdio-to-http")
    for option in options():
        above = text[: text.index(f"  {option.opts[0]} ")]
        heading = re.findall(r"^(\S.*):$", above, re.MULTILINE)[-1]
        assert heading == option.section


def test_help_has_an_example_for_each_mode_and_the_exit_statuses() -> None:
    text = help_of("stdio-to-http")
    for example in ("--cmd ", "--process shared", "--warm 4", "--env '", "--host 0.0.0.0", "--uds /"):
        assert re.search(rf"^ +mcp-bridge stdio-to-http.*{example}", text, re.MULTILINE)
    assert "Exit status:" in text


def test_top_help_names_the_commands_and_an_example() -> None:
    text = help_of()
    assert all(word in text for word in ("stdio-to-http", "demo-server", "Examples:", "Exit status:"))


def test_no_word_at_all_asks_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("Usage: mcp-bridge ")


def test_help_is_not_coloured_where_no_terminal_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    main(["stdio-to-http", "--help"])
    assert "\x1b" not in capsys.readouterr().out


def test_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mcp-bridge {bridge.__version__}\n"


def test_reference_lists_exactly_the_options_with_their_variables_and_defaults() -> None:
    reference = (Path(__file__).parent.parent / "docs" / "options.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `(--[a-z-]+)(?:[^|\\]|\\.)*\| `(MCP_BRIDGE_[A-Z_]+)` \| ([^|]*) \|", reference, re.MULTILINE
    )
    assert rows == [(o.opts[0], o.envvar, default_of(o)) for o in options()]


def default_of(option: cli.SectionOption) -> str:
    return f"`{option.default}`" if option.show_default else "-"


# -- the process


def test_help_and_usage_errors_load_neither_server_nor_event_loop() -> None:
    program = (
        "import sys; from bridge.cli import main\n"
        "main(['stdio-to-http', '--help']); main(['stdio-to-http'])\n"
        "sys.exit(', '.join({'aiohttp', 'anyio', 'asyncio', 'uvloop'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_module_runs_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bridge", "stdio-to-http", "--port", "x"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("mcp-bridge: Invalid value for '--port': 'x' ")
