"""Published stdio servers behind the bridge: they start, do their work, and are gone with their session.

Each is driven by the Python SDK 1.x client (`clients/calls.py`), and its work is checked on the disk
where it has any. Ending the session is a DELETE (2025-11-25, basic/transports, "Session Management").
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from .provision import Software
from .running import Bridge, run_bridge, run_client

pytestmark = pytest.mark.real
CALLS = Path(__file__).parent / "clients" / "calls.py"


@dataclass(frozen=True, slots=True)
class Outcome:
    server: str
    tools: list[str]
    said: list[str]


def drive(software: Software, bridge: Bridge, *calls: tuple[str, object]) -> Outcome:
    """Run one session with these calls, none of which may fail."""
    seen = run_client([str(software.sdk_1 / "python"), str(CALLS), bridge.url, json.dumps(calls)], bridge)
    assert not any(result["failed"] for result in seen["results"]), seen["results"]
    return Outcome(seen["server"], seen["tools"], [result["said"] for result in seen["results"]])


def one_session(
    software: Software, cmd: Sequence[str], *calls: tuple[str, object], options: Sequence[str] = ()
) -> Outcome:
    """Drive a server behind its own bridge, and see its process gone when the session is."""
    with run_bridge(cmd, "--warm", "0", *options) as bridge:
        outcome = drive(software, bridge, *calls)
        bridge.expect_no_server()
    return outcome


def test_server_everything_answers(software: Software) -> None:
    cmd = [software.node, software.package("server-everything", "dist", "index.js")]
    outcome = one_session(software, cmd, ("echo", {"message": "é 読 🎉"}), ("get-sum", {"a": 2, "b": 40}))
    assert outcome.said == ["Echo: é 読 🎉", "The sum of 2 and 40 is 42."]


def test_server_filesystem_writes_and_reads_files(software: Software, tmp_path: Path) -> None:
    cmd = [software.node, software.package("server-filesystem", "dist", "index.js"), str(tmp_path)]
    file, content = tmp_path / "ein Blatt.txt", "erste Zeile\nzweite é 読\n"
    outcome = one_session(
        software,
        cmd,
        ("write_file", {"path": str(file), "content": content}),
        ("read_text_file", {"path": str(file)}),
    )
    assert file.read_text() == content
    assert outcome.said[1] == content
    assert "list_directory" in outcome.tools


def test_server_memory_keeps_its_graph_from_one_session_to_the_next(
    software: Software, tmp_path: Path
) -> None:
    graph = tmp_path / "graph.jsonl"
    cmd = [software.node, software.package("server-memory", "dist", "index.js")]
    options = ["--env", f"MEMORY_FILE_PATH={graph}"]
    entity = {"name": "Ada", "entityType": "person", "observations": ["writes é"]}
    one_session(software, cmd, ("create_entities", {"entities": [entity]}), options=options)
    outcome = one_session(software, cmd, ("read_graph", {}), options=options)
    assert json.loads(outcome.said[0])["entities"] == [entity]
    assert graph.exists()


def test_mcp_server_time_converts_a_time(software: Software) -> None:
    cmd = [str(software.sdk_1 / "mcp-server-time"), "--local-timezone", "UTC"]
    noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    outcome = one_session(software, cmd, ("convert_time", noon))
    assert "T21:00:00+09:00" in outcome.said[0]
    assert outcome.server == "mcp-time"


def test_mcp_server_git_reads_a_repository(software: Software, tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("text\n")
    git(tmp_path, "add", "file")
    git(tmp_path, "-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit", "-qm", "a first é")
    (tmp_path / "new").touch()
    repository = {"repo_path": str(tmp_path)}
    outcome = one_session(
        software,
        [str(software.sdk_1 / "mcp-server-git"), "--repository", str(tmp_path)],
        ("git_log", repository),
        ("git_status", repository),
    )
    log, status = outcome.said
    assert "a first é" in log
    assert "new" in status


def test_npx_and_all_that_it_started_are_gone_with_the_session(software: Software) -> None:
    """npx starts a shell that starts node: the grandchildren are the bridge's to end as well."""
    cmd = "npx -y @modelcontextprotocol/server-everything"
    options = ("--warm", "0", "--cwd", str(software.npm))
    with run_bridge(cmd, *options, path=str(software.node_home)) as bridge:
        outcome = drive(software, bridge, ("echo", {"message": "through npx"}))
        bridge.expect_no_server()
    assert outcome.said == ["Echo: through npx"]


def test_one_shared_server_serves_a_session_after_the_other(software: Software) -> None:
    cmd = [software.node, software.package("server-everything", "dist", "index.js")]
    with run_bridge(cmd, "--process", "shared", "--warm", "0") as bridge:
        for text in ("one", "two"):
            assert drive(software, bridge, ("echo", {"message": text})).said == [f"Echo: {text}"]
        assert len(bridge.servers()) == 1, bridge.servers()


def git(folder: Path, *args: str) -> None:
    subprocess.run(["git", *args], cwd=folder, check=True, stdin=subprocess.DEVNULL)
