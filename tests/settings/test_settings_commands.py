"""`serve` and `config` as one types them."""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner

import bridge
from bridge import cli
from bridge.cli import main
from bridge.config import Admin, Daemon
from bridge.errors import UsageFault

TOKEN = "abcdefghij0123456789"
ONE = '[servers.one]\ncommand = "one"\n'


@dataclass
class Kept:
    """Stands for the daemon: keeps what it was asked to run, and how to read it again."""

    trees: list[Daemon] = field(default_factory=list)
    read: Callable[[], Daemon] | None = None

    def run(self, tree: Daemon, *, read: Callable[[], Daemon]) -> int:
        self.trees.append(tree)
        self.read = read
        return 7

    def again(self) -> Daemon:
        assert self.read is not None
        return self.read()


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Kept:
    daemon = Kept()
    monkeypatch.setattr(bridge, "daemon", daemon, raising=False)
    return daemon


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*(name for name in os.environ if name.startswith("MCP_BRIDGE_")), "CONFIGURATION_DIRECTORY"]:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "mcp-bridge.toml"
    file.write_text(ONE)
    return file


# -- serve


def test_daemon_is_run_with_the_file_and_gives_the_exit_status(daemon: Kept, file: Path) -> None:
    assert main(["serve", "--config", str(file)]) == 7
    (tree,) = daemon.trees
    assert (tree.file, [config.name for config in tree.servers]) == (file, ["one"])
    assert daemon.again() == tree


def test_file_may_be_said_in_the_environment_or_by_the_service_manager(
    daemon: Kept, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONFIGURATION_DIRECTORY", f"{file.parent}:/elsewhere")
    assert main(["serve"]) == 7
    other = file.with_name("other.toml")
    other.write_text(ONE.replace("one", "two"))
    monkeypatch.setenv("MCP_BRIDGE_CONFIG", str(other))
    assert main(["serve"]) == 7
    assert [tree.file for tree in daemon.trees] == [file, other]


def test_no_file_at_all_is_a_usage_error(daemon: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert "No configuration: give --config FILE, or its path in MCP_BRIDGE_CONFIG" in capsys.readouterr().err
    assert daemon.trees == []


def test_relative_file_is_found_again_wherever_the_daemon_is_by_then(
    daemon: Kept, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    assert main(["serve", "--config", file.name]) == 7
    monkeypatch.chdir("/")
    assert daemon.again().file == file


def test_options_go_before_the_file_after_a_reload_too(
    daemon: Kept, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('[listen]\nport = 1\nhost = "127.0.0.2"\n[log]\nlevel = "error"\n' + ONE)
    monkeypatch.setenv("MCP_BRIDGE_LOG_LEVEL", "debug")
    words = ("--port", "2", "--admin", "unix:a.sock", "--default", "one", "--drain-timeout", "3")
    assert main(["serve", "--config", str(file), *words]) == 7
    file.write_text('[listen]\nport = 4\nhost = "127.0.0.3"\n[log]\nlevel = "info"\n' + ONE)
    monkeypatch.delenv("MCP_BRIDGE_LOG_LEVEL")
    first, again = daemon.trees[0], daemon.again()
    for tree, host in ((first, "127.0.0.2"), (again, "127.0.0.3")):
        assert (tree.listen.port, tree.listen.host, tree.log.level) == (2, host, "debug")
        assert (tree.admin, tree.default, tree.drain) == (Admin(uds=Path("a.sock")), "one", 3)


def test_secrets_leave_the_environment_and_are_there_for_a_reload(
    daemon: Kept, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('[access]\nauth_token_env = "IN_FILE"\n' + ONE)
    monkeypatch.setenv("IN_FILE", TOKEN)
    monkeypatch.setenv("IN_OPTION", TOKEN[::-1])
    words = ("--admin", "9090", "--admin-token-env", "IN_OPTION")
    assert main(["serve", "--config", str(file), *words]) == 7
    assert not {"IN_FILE", "IN_OPTION"} & set(os.environ)
    for tree in (daemon.trees[0], daemon.again()):
        assert (tree.access.token, tree.admin.token) == (TOKEN, TOKEN[::-1])


def test_faults_stand_one_a_line_with_their_places_first(
    daemon: Kept, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("a = 1\nb = 2\n" + ONE)
    assert main(["serve", "--config", str(file)]) == 2
    assert capsys.readouterr().err == f"{file}:1: a: unknown key\n{file}:2: b: unknown key\n"
    assert daemon.trees == []


def test_fault_at_a_reload_is_raised(daemon: Kept, file: Path) -> None:
    main(["serve", "--config", str(file)])
    file.write_text("[")
    with pytest.raises(UsageFault, match="not TOML"):
        daemon.again()


def test_warnings_are_told_and_stop_nothing(
    daemon: Kept, file: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text("")
    assert main(["serve", "--config", str(file)]) == 7
    warning = f"{file}:1: warning: there is no server in it"
    assert capsys.readouterr().err == f"{warning}\n"
    daemon.again()
    assert caplog.messages == [warning]


@pytest.mark.parametrize("option", ["--warm=1", "--cmd=x", "--max-sessions=1", "--allow-tool=x"])
def test_what_is_of_one_server_is_no_option(
    daemon: Kept, file: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert main(["serve", "--config", str(file), option]) == 2
    assert "No such option" in capsys.readouterr().err


def test_examples_of_the_help_can_be_run(
    daemon: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mcp-bridge.toml").write_text(ONE)
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"github": {"command": "x"}}}')
    text = CliRunner().invoke(cli.program, ["serve", "--help"], prog_name="mcp-bridge").output
    examples = re.findall(r"^ +mcp-bridge (serve .*)$", text, re.MULTILINE)
    assert len(examples) == 3
    for example in examples:
        assert main(shlex.split(example.replace("~/.cursor", "."))) == 7, example


# -- config


def test_check_tells_that_a_file_is_in_order(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr() == (f"{file}: in order, 1 server\n", "")


def test_check_tells_every_fault_and_warning(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("a = 1\n[servers.x]\n")
    assert main(["config", "check", str(file)]) == 2
    assert capsys.readouterr() == (
        "",
        f"{file}:1: a: unknown key\n{file}:2: servers.x: no server: give command, cmd or url\n",
    )
    file.write_text("")
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().err == f"{file}:1: warning: there is no server in it\n"


def test_show_writes_toml_or_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = {"servers": {"one": {"command": ["one"]}}}
    assert main(["config", "show", str(file)]) == 0
    assert tomllib.loads(capsys.readouterr().out) == shown
    assert main(["config", "show", "--json", str(file)]) == 0
    assert json.loads(capsys.readouterr().out) == shown
    file.write_text("a = 1")
    assert main(["config", "show", str(file)]) == 2


def test_file_to_look_at_is_that_which_would_be_served(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["config", "check"]) == 2
    assert "No configuration" in capsys.readouterr().err
    monkeypatch.setenv("CONFIGURATION_DIRECTORY", str(file.parent))
    assert main(["config", "check"]) == 0
    assert str(file) in capsys.readouterr().out


def test_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["$schema"].endswith("2020-12/schema")
