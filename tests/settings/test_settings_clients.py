"""The JSON that clients have, read as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge.config import Command, Config, Listen, Remote, Transport
from bridge.errors import UsageFault
from bridge.settings.said import Level
from bridge.settings.tree import Elsewhere, Loaded, read

SECRET = "s3cr3t-value"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mcp.json"


@pytest.fixture
def load(file: Path) -> Callable[..., Loaded]:
    def load(servers: dict[str, Any], **environ: str) -> Loaded:
        file.write_text(json.dumps({"mcpServers": servers}))
        return read(file, environ)

    return load


def only(loaded: Loaded) -> Config:
    (config,) = loaded.daemon.servers
    return config


DESKTOP = """{
  "globalShortcut": "",
  "mcpServers": {
    "files": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "${HOME}/data"],
      "env": {"KEY": "${KEY}", "DEBUG": ""}
    }
  }
}"""
CODE = """{
  // VS Code
  "inputs": [],
  "servers": {
    "github": {"type": "http", "url": "https://api.example.com/mcp",},
    "old": {"type": "sse", "url": "https://old.example.com/sse", "headers": {"X-A": "1"}},
    "local": {"type": "stdio", "command": "uvx", "args": ["mcp-server-time"], "env": {"N": 1, "NO": null}},
  },
}"""


def test_configuration_of_a_desktop_client_is_read_as_it_is(file: Path) -> None:
    file.write_text(DESKTOP)
    loaded = read(file, {"HOME": "/h", "KEY": SECRET})
    assert loaded.warnings == ()
    assert only(loaded) == Config(
        name="files",
        upstream=Command(
            argv=("npx", "-y", "@modelcontextprotocol/server-filesystem", "/h/data"),
            env=(("KEY", SECRET), ("DEBUG", "")),
        ),
        listen=Listen(path="/servers/files/mcp"),
    )


def test_configuration_of_an_editor_is_read_as_it_is(file: Path) -> None:
    file.write_text(CODE)
    loaded = read(file, {})
    assert loaded.warnings == ()
    assert [config.upstream for config in loaded.daemon.servers] == [
        Remote(url="https://api.example.com/mcp", transport=Transport.AUTO),
        Remote(url="https://old.example.com/sse", transport=Transport.SSE, headers=(("X-A", "1"),)),
        Command(argv=("uvx", "mcp-server-time"), env=(("N", "1"),)),
    ]


def test_settings_of_an_editor_have_their_servers_deeper(file: Path) -> None:
    file.write_text('{"editor.fontSize": 12, "mcp": {"servers": {"x": {"command": "x"}}}}')
    assert only(read(file, {})).name == "x"


@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"url": "http://x"}, Transport.AUTO), ({"serverUrl": "http://x"}, Transport.AUTO),
        ({"httpUrl": "http://x"}, Transport.HTTP), ({"httpUrl": "http://x", "type": "sse"}, Transport.SSE),
        ({"url": "http://x", "type": "http"}, Transport.AUTO),
        ({"url": "http://x", "type": "streamable-http"}, Transport.HTTP),
        ({"url": "http://x", "transport": "streamableHttp"}, Transport.HTTP),
        ({"url": "http://x", "transportType": "SSE"}, Transport.SSE),
    ],
)  # fmt: skip
def test_url_and_transport_go_by_several_names(
    load: Callable[..., Loaded], entry: dict[str, Any], transport: Transport
) -> None:
    assert only(load({"x": entry})).upstream == Remote(url="http://x", transport=transport)


@pytest.mark.parametrize("off", [{"disabled": True}, {"enabled": False}])
def test_disabled_server_is_left_out(load: Callable[..., Loaded], off: dict[str, Any]) -> None:
    servers = {
        "off": {"command": "${NOT_SET}", **off},
        "on": {"command": "x", "disabled": False, "enabled": True},
    }
    assert only(load(servers)).name == "on"


def test_directory_is_relative_to_the_file(load: Callable[..., Loaded], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert only(load({"x": {"command": "x", "cwd": "data"}})).upstream == Command(
        argv=("x",), cwd=tmp_path / "data"
    )


def test_what_only_clients_need_is_passed_over_with_a_warning(file: Path) -> None:
    file.write_text(
        '{"mcpServers": {"x": {"command": "x",\n"autoApprove": [],\n"type": "ws",\n"timeout": 60}}}'
    )
    loaded = read(file, {})
    assert only(loaded).upstream == Command(argv=("x",))
    assert loaded.warnings == (
        f"{file}:2: warning: mcpServers.x.autoApprove: is for clients, and passed over",
        f"{file}:3: warning: mcpServers.x.type: is no transport that is known here, and passed over",
        f"{file}:4: warning: mcpServers.x.timeout: is for clients, and passed over",
    )


def test_name_that_cannot_be_part_of_a_path_becomes_one_that_can(
    load: Callable[..., Loaded], file: Path
) -> None:
    loaded = load({"My Server (new)": {"command": "x"}})
    assert only(loaded).name == "My-Server-new"
    (warning,) = loaded.warnings
    assert 'mcpServers."My Server (new)"' in warning
    assert "is called My-Server-new here" in warning
    with pytest.raises(UsageFault, match=r'mcpServers\."a b": has no name of its own'):
        load({"a-b": {"command": "x"}, "a b": {"command": "x"}})
    with pytest.raises(UsageFault, match="has no name"):
        load({"工具": {"command": "x"}})


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ('{\n"command": 1}', "2: servers.x.command: a string, or an array"),
        ('{"command": "x",\n"args": [\n"a", 1]}', "3: servers.x.args[1]: a string expected"),
        ('{"command": "x",\n"args": "a"}', "2: servers.x.args: an array expected"),
        ('{"command": "x",\n"env": {\n"A": "${input:key}"}}', "3: servers.x.env.A: ${input:...} is known"),
        ('{"command": "x",\n"cwd": "${workspaceFolder}"}', "2: servers.x.cwd: ${workspaceFolder} is"),
        ('{"command": "x",\n"env": {"A": {}}}', "2: servers.x.env.A: a string expected"),
        ('{"url": "http://x",\n"headers": {\n"Host": "x"}}', "2: servers.x.headers: Host is the protocol's"),
        ('{\n"disabled": "perhaps", "command": "x"}', "2: servers.x.disabled: 'perhaps' is not a valid"),
        ("{}", "1: servers.x: no server: give command, cmd or url"),
        ('{"command": "x",\n"url": "http://x"}', "2: servers.x.url: command and url exclude"),
        ('{"command": "\\ud800"}', "1: servers.x.command: holds what is no text"),
        ("5", "1: mcpServers.x: an object expected"),
    ],
)  # fmt: skip
def test_fault_is_told_with_its_line(file: Path, entry: str, fault: str) -> None:
    file.write_text(f'{{"mcpServers": {{"x": {entry}}}}}')
    with pytest.raises(UsageFault) as raised:
        read(file, {})
    (told,) = str(raised.value).splitlines()
    assert told.removeprefix(f"{file}:").startswith(fault)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{}", "1: there are neither mcpServers nor servers in it"),
        ('{\n"mcpServers": []}', "2: mcpServers: an object expected"),
        ('{\n"mcpServers": {"a": {}, "a": {}}}', '2: not JSON: "a" is there twice'),
        ("{\n", "2: not JSON: a value expected"),
    ],
)
def test_file_that_is_no_configuration_is_refused(file: Path, text: str, fault: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageFault) as raised:
        read(file, {})
    assert str(raised.value) == f"{file}:{fault}"


def test_everything_but_the_servers_is_said_elsewhere(file: Path) -> None:
    file.write_text(DESKTOP)
    values = {"default": "files", "port": 9}
    said = Elsewhere(values, dict.fromkeys(values, Level.COMMAND_LINE))
    daemon = read(file, {"HOME": "/h", "KEY": "k"}, said).daemon
    assert (daemon.default, daemon.listen.port, daemon.servers[0].listen.port) == ("files", 9, 9)
