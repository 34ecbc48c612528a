"""The command line: how values are read, what excludes what, what is refused, and how a fault is told."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import bridge
from bridge import cli
from bridge.cli import main
from bridge.config import Command, Config, Downstream, LogFormat, ProcessModel, Remote, Tls, Transport
from bridge.core.headers import PROTECTED
from bridge.errors import BridgeError, CommandNotFound, ListenFault, UsageFault

TOKEN = "abcdefghij0123456789"
SERVER = ("--", "server")
URL = "https://mcp.example.com/mcp?key=1"
URL_MODES = ("http-to-stdio", "sse-to-stdio", "http-to-http", "sse-to-http")
SECRET = "s3cr3t-value"


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


def command_of(config: Config) -> Command:
    assert isinstance(config.upstream, Command)
    return config.upstream


def remote_of(config: Config) -> Remote:
    assert isinstance(config.upstream, Remote)
    return config.upstream


def configured(daemon: Daemon, *words: str, mode: str = "stdio-to-http") -> Config:
    assert main([mode, *words]) == 0
    return daemon.configs.pop()


def refused(
    capsys: pytest.CaptureFixture[str], daemon: Daemon, *words: str, mode: str = "stdio-to-http"
) -> str:
    """The line that a usage error is told in."""
    assert main([mode, *words]) == 2
    assert daemon.configs == []
    fault, hint = capsys.readouterr().err.splitlines()
    assert hint == f"Try 'mcp-bridge {mode} --help' for all options."
    return fault.removeprefix("mcp-bridge: ")


# -- options


def test_defaults_are_those_of_the_configuration(daemon: Daemon) -> None:
    assert configured(daemon, *SERVER) == Config(upstream=Command(argv=("server",)))


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
        "--legacy-sse", "--base-url", "https://a.example/x/",
    )  # fmt: skip
    assert config.upstream == Command(
        argv=("server", "--flag"), env=(("A", "1"), ("B", "2")), inherit_env=("X_*",), cwd=tmp_path
    )
    assert (config.listen.host, config.listen.port, config.listen.path) == ("0.0.0.0", 0, "/x")
    assert config.listen.tls == Tls(cert=cert, key=key)
    assert (config.listen.legacy_sse, config.listen.base_url) == (True, "https://a.example/x")
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
    assert command_of(configured(daemon, "--port", "9", "--", *words)).argv == words


def test_options_after_the_first_word_of_the_server_are_the_servers(daemon: Daemon) -> None:
    config = configured(daemon, "npx", "-y", "server", "--port", "1")
    assert command_of(config).argv == ("npx", "-y", "server", "--port", "1")
    assert config.listen.port == 8080


def test_variables_for_the_server_are_expanded(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "k=1")
    assert command_of(configured(daemon, "--env", "KEY=<${MY_KEY}>", *SERVER)).env == (("KEY", "<k=1>"),)


@pytest.mark.parametrize(
    ("variable", "value", "read"),
    [
        ("CMD", "server 'a b'", lambda c: command_of(c).argv == ("server", "a b")),
        ("ENV", 'A=1 2\n\nB={"x": 1}\n', lambda c: command_of(c).env == (("A", "1 2"), ("B", '{"x": 1}'))),
        ("INHERIT_ENV", "A_* B", lambda c: command_of(c).inherit_env == ("A_*", "B")),
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
    assert (config.listen.port, command_of(config).argv) == (2, ("server",))
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
        (("--base-url", "https://a", *SERVER), "'--base-url': is told to old clients only"),
        (("--base-url", "a.example", "--legacy-sse", *SERVER), "'--base-url': it must begin with https://"),
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


# -- servers at a URL


@pytest.mark.parametrize(
    ("mode", "downstream", "transport"),
    [
        ("http-to-stdio", Downstream.STDIO, Transport.AUTO),
        ("sse-to-stdio", Downstream.STDIO, Transport.SSE),
        ("http-to-http", Downstream.HTTP, Transport.AUTO),
        ("sse-to-http", Downstream.HTTP, Transport.SSE),
    ],
)
def test_mode_decides_the_transports_and_nothing_else(
    daemon: Daemon, mode: str, downstream: Downstream, transport: Transport
) -> None:
    remote = Remote(url=URL, transport=transport)
    assert configured(daemon, URL, mode=mode) == Config(upstream=remote, downstream=downstream)
    assert daemon.demo is False


@pytest.mark.parametrize("transport", Transport)
@pytest.mark.parametrize("mode", ["http-to-stdio", "http-to-http"])
def test_transport_can_be_forced(daemon: Daemon, mode: str, transport: Transport) -> None:
    config = configured(daemon, "--transport", transport.value, URL, mode=mode)
    assert remote_of(config).transport is transport


@pytest.mark.parametrize("mode", URL_MODES)
def test_each_option_of_the_remote_side_reaches_the_configuration(
    daemon: Daemon, tmp_path: Path, mode: str
) -> None:
    file = tmp_path / "secret"
    file.write_text("Bearer x\n")
    file.chmod(0o600)
    config = configured(
        daemon,
        "--header", "X-One: 1", "--header", "X-Two:2", "--header-file", f"Authorization: {file}",
        "--ca-file", __file__, "--client-cert", __file__, "--insecure-skip-verify", "--rewrite-endpoint",
        "--connect-timeout", "3s", "--start-timeout", "4s", "--request-timeout", "5s", "--max-line", "6MiB",
        "--log-level", "error", URL,
        mode=mode,
    )  # fmt: skip
    assert replace(remote_of(config), transport=Transport.AUTO) == Remote(
        url=URL, headers=(("X-One", "1"), ("X-Two", "2"), ("Authorization", file)),
        ca_file=Path(__file__), client_cert=Path(__file__), verify=False, rewrite_endpoint=True,
    )  # fmt: skip
    assert (config.timing.connect, config.timing.start, config.timing.request) == (3, 4, 5)
    assert (config.limits.line, config.log.level) == (6 << 20, "error")


@pytest.mark.parametrize("mode", ["http-to-http", "sse-to-http"])
def test_mode_that_serves_http_has_the_options_of_serving(daemon: Daemon, mode: str) -> None:
    words = (
        "--port",
        "0",
        "--legacy-sse",
        "--max-sessions",
        "3",
        "--max-body",
        "1MiB",
        "--session-idle-timeout",
        "9s",
    )
    config = configured(daemon, URL, *words, mode=mode)
    assert (config.listen.port, config.listen.legacy_sse) == (0, True)
    assert (config.limits.sessions, config.limits.body, config.timing.session_idle) == (3, 1 << 20, 9)


@pytest.mark.spec("SP-8")
@pytest.mark.parametrize("mode", ["http-to-http", "sse-to-http"])
def test_remote_server_is_not_served_beyond_loopback_without_a_token(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    assert "--auth-token-file" in refused(capsys, daemon, "--host", "0.0.0.0", URL, mode=mode)


@pytest.mark.parametrize("words", [("--port", "1"), ("--max-body", "1"), ("--legacy-sse",), ("--warm", "1")])
def test_mode_over_stdio_has_no_options_of_listening(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], words: Sequence[str]
) -> None:
    assert "No such option" in refused(capsys, daemon, URL, *words, mode="http-to-stdio")


def test_server_on_a_unix_socket_is_reached_through_it(daemon: Daemon) -> None:
    remote = remote_of(configured(daemon, "unix:/run/mcp.sock:/mcp", mode="http-to-stdio"))
    assert (remote.url, remote.socket) == ("http://localhost/mcp", Path("/run/mcp.sock"))


def test_url_may_be_in_the_environment(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_BRIDGE_URL", "http://other/mcp")
    assert remote_of(configured(daemon, mode="sse-to-http")).url == "http://other/mcp"
    assert remote_of(configured(daemon, URL, mode="sse-to-http")).url == URL


@pytest.mark.parametrize(
    ("variable", "value", "read"),
    [
        ("HEADER", "A: 1\n\nB: 2 3\n", lambda r: r.headers == (("A", "1"), ("B", "2 3"))),
        ("TRANSPORT", "http", lambda r: r.transport is Transport.HTTP),
        ("INSECURE_SKIP_VERIFY", "1", lambda r: not r.verify),
        ("REWRITE_ENDPOINT", "true", lambda r: r.rewrite_endpoint),
        ("CA_FILE", __file__, lambda r: r.ca_file == Path(__file__)),
    ],
)
def test_options_of_the_remote_side_are_environment_variables_too(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, read: Callable[[Remote], bool]
) -> None:
    monkeypatch.setenv(f"MCP_BRIDGE_{variable}", value)
    assert read(remote_of(configured(daemon, URL, mode="http-to-stdio")))


# -- their headers


def test_header_is_expanded_from_the_environment(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    config = configured(daemon, "--header", "Authorization: Bearer ${MY_TOKEN}", URL, mode="http-to-stdio")
    assert remote_of(config).headers == (("Authorization", f"Bearer {SECRET}"),)
    assert SECRET not in repr(config)


@pytest.mark.parametrize("name", [*sorted(PROTECTED), "Mcp-Session-Id", "MCP-PARAM-Region"])
@pytest.mark.parametrize("form", ["--header", "--header-file"])
def test_header_of_the_protocol_cannot_be_set(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], form: str, name: str
) -> None:
    fault = refused(capsys, daemon, form, f"{name}: {SECRET}", URL, mode="http-to-stdio")
    assert fault == f"Invalid value for '{form}': {name} is the protocol's own, and set by the bridge"


@pytest.mark.spec("SP-11")
@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ((URL, "--header", SECRET), "'--header': K: V expected"),
        ((URL, "--header", f"X: {SECRET} ${{NOT_SET_ANYWHERE}}"), "X: ${NOT_SET_ANYWHERE} is not set"),
        ((URL, "--header", f"X: {SECRET}\r\nY: z"), "X: the value may hold only printable ASCII"),
        ((URL, "--header", "X: ${LINES}"), "X: the value may hold only printable ASCII"),
        ((URL, "--header", "X: ${EMPTY}"), "X: the value is empty"),
        ((URL, "--header", f"X: {SECRET}", "--header", f"x: {SECRET}"), "'--header': x is given twice"),
        ((URL, "--header", f"X: {SECRET}", "--header-file", f"x: {__file__}"), "x is given twice"),
        ((URL, "--header-file", f"X: Bearer {SECRET}"), "'--header-file': X: No such file or directory"),
        ((URL, "--header-file", f"X: {Path(__file__).parent}"), "'--header-file': X: Is a directory"),
        ((URL, "--header", "X:", "Bearer", SECRET), "X: nothing follows the colon; is 'K: V' in quotes?"),
        ((URL, "--header", "X:Bearer", SECRET), "One URL expected, not 2 words"),
        (("--header", f"X: {SECRET}"), "No server to reach: give its URL"),
        ((f"https://me:{SECRET}@mcp.example.com/mcp",), "'URL': user and password have no place in it"),
        ((f"mcp.example.com/{SECRET}",), "'URL': it must begin with https://"),
        ((URL, f"--heade=X: {SECRET}"), "No such option"),
    ],
)  # fmt: skip
def test_fault_in_what_may_be_secret_is_told_without_it(
    daemon: Daemon,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: Sequence[str],
    fault: str,
) -> None:
    monkeypatch.setenv("LINES", f"{SECRET}\n{SECRET}")
    monkeypatch.setenv("EMPTY", "")
    told = refused(capsys, daemon, *words, mode="http-to-stdio")
    assert fault in told
    assert SECRET not in told


def test_header_in_a_variable_is_not_quoted_either(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCP_BRIDGE_HEADER", SECRET)
    told = refused(capsys, daemon, URL, mode="http-to-stdio")
    assert "'--header' (from MCP_BRIDGE_HEADER): K: V expected" in told
    assert SECRET not in told


def test_header_on_the_command_line_goes_before_one_in_the_environment(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCP_BRIDGE_HEADER_FILE", "x: /no/such/file")
    config = configured(daemon, "--header", "X: 1", URL, mode="http-to-stdio")
    assert remote_of(config).headers == (("X", "1"),)


def test_header_file_that_holds_no_value_is_refused_untold(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "header"
    for content, fault in (("\n", "the value is empty"), (f"{SECRET}\nX: y", "only printable ASCII")):
        file.write_text(content)
        file.chmod(0o600)
        told = refused(capsys, daemon, "--header-file", f"X: {file}", URL, mode="sse-to-http")
        assert fault in told
        assert SECRET not in told


def test_header_file_that_everybody_can_read_is_warned_of(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "header"
    file.write_text(SECRET)
    for mode, warned in ((0o644, True), (0o640, False)):
        file.chmod(mode)
        configured(daemon, "--header-file", f"X: {file}", URL, mode="http-to-stdio")
        told = capsys.readouterr().err
        assert ("warning: every user of this machine can read the file of --header-file X" in told) is warned
        assert SECRET not in told


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


def help_of(*words: str) -> str:
    result = CliRunner().invoke(cli.program, [*words, "--help"], prog_name="mcp-bridge")
    assert result.exit_code == 0
    return result.output


def test_help_has_an_example_for_each_way_to_start_a_server() -> None:
    text = help_of("stdio-to-http")
    for example in (
        "--cmd ",
        "--process shared",
        "--warm 4",
        "--env '",
        "--host 0.0.0.0",
        "--uds /",
        "--legacy-sse",
    ):
        assert re.search(rf"^ +mcp-bridge stdio-to-http.*{example}", text, re.MULTILINE)


@pytest.mark.parametrize("mode", cli.MODES, ids=lambda mode: mode.name)
def test_help_has_examples_that_can_be_run_and_the_exit_statuses(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: cli.Mode
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("token.txt", "auth.txt", "cert.pem", "key.pem", "ca.pem", "me.pem"):
        (tmp_path / name).write_text(TOKEN)
    for name in ("TOKEN", "KEY", "MY_KEY"):
        monkeypatch.setenv(name, TOKEN)
    text = help_of(mode.name)
    assert "Exit status:" in text
    examples = re.findall(rf"^ +mcp-bridge ({mode.name} .*)$", text.replace("\\\n", ""), re.MULTILINE)
    assert len(examples) > 1
    for example in examples:
        assert main(shlex.split(example.replace("/srv/data", str(tmp_path)))) == 0, example


def test_top_help_has_each_command_and_an_example_of_each() -> None:
    text = help_of()
    for name in (*(mode.name for mode in cli.MODES), "demo-server"):
        assert re.search(rf"^  {name}  ", text, re.MULTILINE)
        assert re.search(rf"^ +mcp-bridge .*{name}", text, re.MULTILINE)
    assert "Exit status:" in text
    assert "..." not in text.partition("Commands:")[2]


def test_no_word_at_all_asks_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("Usage: mcp-bridge ")


def test_help_is_not_coloured_where_no_terminal_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    main(["stdio-to-http", "--help"])
    assert "\x1b" not in capsys.readouterr().out


def test_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mcp-bridge {bridge.__version__}\n"


# -- the process


def test_help_and_usage_errors_load_neither_server_nor_event_loop() -> None:
    program = (
        "import sys; from bridge.cli import main\n"
        "main(['stdio-to-http', '--help']); main(['stdio-to-http'])\n"
        "main(['http-to-stdio', '--help']); main(['http-to-stdio', 'mcp.example.com'])\n"
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
