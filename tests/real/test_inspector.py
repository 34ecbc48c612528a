"""The MCP Inspector's command line before the bridge: what people try a server with first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .provision import Software
from .running import Bridge, run_bridge, run_client

pytestmark = pytest.mark.real


def inspect(software: Software, bridge: Bridge, home: Path, *request: str) -> Any:
    """`home` is a folder of its own: the Inspector keeps a catalogue under HOME."""
    program = software.package("inspector", "clients", "launcher", "build", "index.js")
    argv = [software.node, program, "--cli", bridge.url, "--transport", "http", *request]
    return run_client(argv, bridge, {"HOME": str(home), "USERPROFILE": str(home)})


def test_the_inspector_lists_and_calls_tools(software: Software, tmp_path: Path) -> None:
    cmd = [software.node, software.package("server-everything", "dist", "index.js")]
    with run_bridge(cmd) as bridge:
        listed = inspect(software, bridge, tmp_path, "--method", "tools/list")
        called = inspect(
            software,
            bridge,
            tmp_path,
            *("--method", "tools/call", "--tool-name", "echo", "--tool-arg", "message=é 読"),
        )
    assert "echo" in [tool["name"] for tool in listed["tools"]]
    assert called["content"] == [{"type": "text", "text": "Echo: é 読"}]
