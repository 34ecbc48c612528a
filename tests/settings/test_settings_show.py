"""What is shown of a configuration: everything that was said, and no secret."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from bridge import settings
from bridge.settings.show import as_json, as_toml
from bridge.settings.tree import read

SECRET = "s3cr3t-value-s3cr3t-value"
TEXT = """
default = "p"
include = ["more/*.toml"]
[listen]
uds_mode = "660"
uds = "${FILE_OF_SOCKET:-mcp.sock}"
[access]
auth_token = "${T}"
callers.bob = "${file:token}"
[admin]
listen = "9090"
token = "${T}x"
[log]
level = "${file:level}"
[defaults]
warm = 2
transport = "http"
env.A = "${T}"
quota = {rate = "1/s", concurrent = 3}
[servers.p]
cmd = "run --api-key ${T} --token=${T} 'a b'"
args = ["${file:token}", "\\u007f"]
env."B C" = "${T}"
policy.tools.allow = ["x"]
quota.rate = {each = 2, burst = 5}
[servers.r]
url = "https://r.example/${T}?key=${T}"
headers.X = "${T}"
[servers.s]
url = "unix:/run/s.sock:/${T}"
[servers.off]
disabled = true
env.X = "${T}"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "x.toml").write_text('[servers.x]\nurl = "http://x/"\n')
    (tmp_path / "token").write_text(SECRET + "y")
    (tmp_path / "level").write_text("debug")
    (tmp_path / "bridge.toml").write_text(TEXT)
    return tmp_path / "bridge.toml"


def test_configuration_is_shown_as_it_is_understood_without_secrets(file: Path) -> None:
    text = as_toml(read(file, {"T": SECRET}).shown)
    assert SECRET not in text
    assert tomllib.loads(text) == {
        "default": "p",
        "listen": {"uds_mode": "660", "uds": "mcp.sock"},
        "access": {"auth_token": "***", "callers": {"bob": "***"}},
        "admin": {"listen": "9090", "token": "***"},
        "log": {"level": "***"},
        "servers": {
            "off": {"disabled": True},
            "p": {
                "command": ["run", "--api-key", "***", "--token=***", "a b", "***", "\x7f"],
                "warm": 2,
                "env": {"A": "***", "B C": "***"},
                "quota": {"rate": "2:5", "concurrent": 3},
                "policy": {"tools": {"allow": ["x"]}},
            },
            "r": {
                "url": "https://r.example/***", "transport": "http", "headers": {"X": "***"},
                "quota": {"rate": "1/s", "concurrent": 3},
            },
            "s": {
                "url": "unix:/run/s.sock:/***", "transport": "http",
                "quota": {"rate": "1/s", "concurrent": 3},
            },
            "x": {"url": "http://x/", "transport": "http", "quota": {"rate": "1/s", "concurrent": 3}},
        },
    }  # fmt: skip


def test_what_is_shown_as_json_is_the_same(file: Path) -> None:
    shown = read(file, {"T": SECRET}).shown
    assert json.loads(as_json(shown)) == tomllib.loads(as_toml(shown))


def test_what_is_shown_without_secrets_in_it_says_the_same_again(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text("""
        default = "x"
        [listen]
        port = 9
        [defaults]
        warm = 0
        policy.tools = {allow = ["a*"], deny = ["\\"\\\\b"]}
        [servers.x]
        command = ["a b", "c'd", "$${HOME}"]
        quota = {starts = "3/min:2"}
        rlimits = {core = 0}
        [servers.y]
        url = "http://y"
        request_timeout = 2.5
        """)
    second.write_text(as_toml(read(first, {}).shown))
    assert settings.load(second, {}).servers == settings.load(first, {}).servers
