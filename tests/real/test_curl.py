"""The curl lines of the README, run as they stand there, but for the port."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from .provision import ROOT
from .running import Bridge, run_bridge

pytestmark = pytest.mark.real
BLOCK = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
PRINTED_URL = "http://127.0.0.1:8080/mcp"


def curl_lines() -> Iterator[str]:
    for block in BLOCK.findall((ROOT / "README.md").read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip().removeprefix("$ ").startswith("curl ") and PRINTED_URL in line:
                yield line.strip().removeprefix("$ ")


def run_line(line: str, bridge: Bridge) -> str:
    """In a shell, since that is where a reader puts it; `--noproxy` keeps loopback local."""
    command = line.replace(PRINTED_URL, bridge.url).replace("curl ", "curl --noproxy 127.0.0.1 ", 1)
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{command}\n{done.stderr}\n{bridge.tail()}"
    return done.stdout


def message_in(answer: str) -> object:
    """The body may be JSON or a stream, and `curl -i` puts its headers before it."""
    body = next(line for line in answer.splitlines() if line.startswith(("{", "data: {")))
    return json.loads(body.removeprefix("data: "))


def test_each_curl_line_of_the_readme_gets_a_result() -> None:
    assert shutil.which("curl"), "curl is not installed"
    lines = list(curl_lines())
    assert lines, f"the README has no curl line for {PRINTED_URL}"
    with run_bridge([sys.executable, "-m", "bridge", "demo-server"]) as bridge:
        for line in lines:
            message = message_in(run_line(line, bridge))
            assert isinstance(message, dict)
            assert "result" in message, message
