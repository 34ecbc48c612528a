"""Real clients of 2026-07-28 before our own demo server, which speaks that revision: nothing is lost.

Discovery, every page of every list, parameters in headers, multi-round-trip questions,
`subscriptions/listen`, logs wanted per request, progress, and cancellation by closing a stream
(2026-07-28, basic and basic/transports/streamable-http). The programs are in `clients/`.
"""

from __future__ import annotations

import sys

import pytest

from bridge.demo_server import TOOLS

from .provision import Software
from .running import run_bridge, run_client
from .test_everything import client_argv

pytestmark = pytest.mark.real
DEMO = [sys.executable, "-m", "bridge", "demo-server"]

SEEN = {
    "protocol": "2026-07-28",
    "tools": sorted(TOOLS),
    "prompts": ["greet"],
    "resources": ["demo://about", "demo://counter"],
    "templates": ["demo://greeting/{name}"],
    "prompt": "Please greet Jürgen warmly.",
    "resource": 1,
    "completion": ["Ada", "Alan"],
    "echo": True,
    "header": "by header",
    "slow": "Waited 0.3 seconds.",
    "progress": [[1, 3], [2, 3], [3, 3]],
    "big": True,
    "era": "modern",
    "elicitation": {"action": "accept", "content": {"answer": "Ada é"}},
    "elicited": "a question é",
    "sampling": {
        "role": "assistant",
        "model": "none",
        "content": {"type": "text", "text": "the answer of the model"},
    },
    "sampled": "a prompt é",
    "roots": {"roots": [{"uri": "file:///tmp/real", "name": "the root"}]},
    "logs": ["warning", "error", "critical", "alert", "emergency"],
    "changes": ["demo://counter", "tools"],
    "cancelled": True,
    "after": "after",
    "together": ["Waited 0.3 seconds.", "Waited 0.2 seconds."],
}


@pytest.mark.parametrize("mode", ["2026-07-28", "auto"])
@pytest.mark.parametrize("client", ["modern_python_sdk_2.py", "modern_typescript_sdk_2.mjs"])
def test_a_modern_client_sees_all_that_the_server_can_do(software: Software, client: str, mode: str) -> None:
    with run_bridge(DEMO) as bridge:
        argv = client_argv(software, f"{client} {mode}", bridge.url)
        assert run_client(argv, bridge) == SEEN
