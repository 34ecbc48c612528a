"""Real clients before server-everything: each has the same conversation, and each sees the same.

Sampling, elicitation, roots, progress, logging, resource updates, completion, cancellation, pings, a
megabyte of text and concurrent calls cross the bridge in both directions (MCP 2025-11-25, basic and
`server/`, `client/`). The programs are in `clients/`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .provision import Software
from .running import run_bridge, run_client

pytestmark = pytest.mark.real
CLIENTS = Path(__file__).parent / "clients"

SEEN = {
    "server": "mcp-servers/everything",
    "protocol": "2025-11-25",
    "tools": [
        "echo",
        "get-annotated-message",
        "get-env",
        "get-resource-links",
        "get-resource-reference",
        "get-roots-list",
        "get-structured-content",
        "get-sum",
        "get-tiny-image",
        "gzip-file-as-resource",
        "simulate-research-query",
        "toggle-simulated-logging",
        "toggle-subscriber-updates",
        "trigger-elicitation-request",
        "trigger-long-running-operation",
        "trigger-sampling-request",
        "trigger-url-elicitation",
    ],
    "prompts": ["args-prompt", "completable-prompt", "resource-prompt", "simple-prompt"],
    "resources": 7,
    "templates": ["demo://resource/dynamic/blob/{resourceId}", "demo://resource/dynamic/text/{resourceId}"],
    "prompt": "What's weather in Zürich?",
    "resource": True,
    "completion": ["Alice"],
    "echo": True,
    "long": "Long running operation completed. Duration: 0.3 seconds, Steps: 3.",
    "progress": [[1, 3], [2, 3], [3, 3]],
    "sampled": "Resource trigger-sampling-request context: a question é",
    "sampling": True,
    "elicited": "Please provide inputs for the following fields:",
    "elicitation": "User inputs:\n- Name: Ada é\n- Agreed to terms: true\n- Favorite Integer: 7",
    "roots": ["Current MCP Roots (1 total):", "1. the root\n   URI: file:///tmp/real"],
    "updated": ["demo://resource/static/document/features.md"],
    "overheard": False,
    "cancelled": True,
    "after": "Echo: after",
    "big": True,
    "together": [
        "Long running operation completed. Duration: 0.2 seconds, Steps: 1.",
        "Long running operation completed. Duration: 0.2 seconds, Steps: 2.",
    ],
}


def client_argv(software: Software, name: str, url: str) -> list[str]:
    program, *mode = name.split()
    script = str(CLIENTS / program)
    if program.endswith(".mjs"):
        return [software.node, script, url, str(software.npm), *mode]
    home = software.sdk_1 if program == "python_sdk_1.py" else software.sdk_2
    return [str(home / "python"), script, url, *mode]


def everything(software: Software) -> list[str]:
    return [software.node, software.package("server-everything", "dist", "index.js"), "stdio"]


@pytest.mark.parametrize(
    "client",
    ["python_sdk_1.py", "python_sdk_2.py legacy", "typescript_sdk_1.mjs", "typescript_sdk_2.mjs legacy"],
)
def test_a_legacy_client_sees_all_that_the_server_can_do(software: Software, client: str) -> None:
    with run_bridge(everything(software), "--warm", "0") as bridge:
        assert run_client(client_argv(software, client, bridge.url), bridge) == SEEN
        bridge.expect_no_server()


@pytest.mark.parametrize("client", ["python_sdk_2.py auto", "typescript_sdk_2.mjs auto"])
def test_a_client_of_both_eras_stays_modern_and_sees_the_same(software: Software, client: str) -> None:
    gone = {"updated", "overheard"}  # seen by subscriptions/listen today, which tests/sdk has
    seen = {key: value for key, value in SEEN.items() if key not in gone}
    with run_bridge(everything(software)) as bridge:
        found = run_client(client_argv(software, client, bridge.url), bridge)
        assert found == seen | {"protocol": "2026-07-28"}


def test_a_second_client_finds_a_fresh_server(software: Software) -> None:
    with run_bridge(everything(software)) as bridge:
        for client in ("python_sdk_1.py", "typescript_sdk_1.mjs"):
            assert run_client(client_argv(software, client, bridge.url), bridge) == SEEN
