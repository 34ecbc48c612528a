"""What is recorded, what is left out of it, and that a recording run again shows what is otherwise."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from field.raw import BOTH, ask
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw
from support.scripted_bridge import initialize, mirrored, modern
from support.scripted_server import LIMIT, Json, dump

from bridge import app
from bridge.config import Command, Config, Daemon, Listen, Record, Timing
from bridge.core.message import read
from bridge.core.splice import is_json
from bridge.errors import UsageFault
from bridge.record import HIDDEN, Line, read_record, without_secrets
from bridge.replay import Player, Report, as_json, as_text, run

SERVER = """
import json, sys
def say(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
held = None
for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params", {})
    if method == "initialize":
        say({"id": message["id"], "result": {"protocolVersion": params["protocolVersion"],
             "capabilities": {"tools": {}}, "serverInfo": {"name": "taped", "version": "1"}}})
    elif method == "tools/call" and params["name"] == "asks":
        held = message["id"]
        say({"id": "q1", "method": "elicitation/create", "params": {"message": "Who?"}})
    elif method is None and held is not None:
        say({"id": held, "result": {"content": [], "heard": message["result"]["content"]}})
    elif method == "tools/call":
        say({"method": "notifications/message", "params": {"level": "info", "data": 1}})
        say({"id": message["id"], "result": {"content": [], "echo": params["arguments"], "says": SAYS}})
    elif "id" in message:
        say({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
"""


def command(says: str = "1") -> Command:
    return Command(argv=(sys.executable, "-I", "-S", "-c", SERVER.replace("SAYS", says)))


def called(request_id: int, name: str = "echo", **arguments: object) -> Json:
    return {"id": request_id, "method": "tools/call", "params": {"name": name, "arguments": arguments}}


class Client:
    """One legacy session over HTTP, one message at a time."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.headers = [("Content-Type", "application/json"), ("Accept", BOTH)]

    async def says(self, message: Json, *beside: tuple[str, str]) -> Any:
        body = dump({"jsonrpc": "2.0", **message})
        answer = await ask(self.port, "POST", [*self.headers, *beside], body)
        if "mcp-session-id" in answer.headers:
            self.headers.append(("Mcp-Session-Id", answer.headers["mcp-session-id"]))
        return answer


async def record(path: Path, *, secrets: bool = False) -> list[Line]:
    """A conversation of two sessions and a modern client, taken down."""
    config = Config(upstream=command(), listen=Listen(port=0), name="taped", timing=Timing(commit=0.05))
    tree = Daemon.of(config, record=Record(path=path, secrets=secrets))
    async with app.running(tree, os.environ) as (_, served):
        port = int(served.listening.rpartition(":")[2])
        one, other = Client(port), Client(port)
        for client in (one, other):
            assert (await client.says(initialize(elicitation={}))).status == 200
            assert (await client.says({"method": "notifications/initialized"})).status == 202
        await one.says(called(1, n="one", password="hunter2hunter2"))
        await other.says(called(1, n=1.0, text="Authorization: Bearer abcdefghijklmnop"))
        assert (await one.says({"id": 2, "method": "no/such"})).status == 200
        asked = modern(1, "tools/call", name="echo", arguments={"n": "modern"})
        answer = await one.says(asked, *mirrored(asked).items())
        assert answer.result["echo"] == {"n": "modern"}
    return read_record(path)


def text_of(line: Line) -> bytes:
    return b"null" if line.message is UNSET else bytes(line.message)


async def replay(lines: list[Line], upstream: Command, patience: float = LIMIT) -> Report:
    return await Player(upstream, os.environ, patience).play(lines)


async def test_recording_holds_what_passed_in_order_and_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    lines = await record(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert "hunter2" not in text
    assert "abcdefghijklmnop" not in text
    assert (lines[0].record, lines[1].server) == (1, "taped")
    assert [line.t for line in lines[1:]] == sorted(line.t for line in lines[1:])
    said = [line for line in lines if line.client == 1 and line.message is not UNSET]
    methods = [(line.way, json.loads(text_of(line)).get("method")) for line in said]
    assert methods[:6] == [
        (">", "initialize"),
        ("<", None),
        (">", "notifications/initialized"),
        (">", "tools/call"),
        ("<", None),
        (">", "no/such"),
    ]
    assert any(line.client is None and b"notifications/message" in text_of(line) for line in lines)
    call = json.loads(bytes(said[3].message))
    assert call["params"]["arguments"] == {"n": "one", "password": HIDDEN}
    clients = {line.client for line in lines if line.client is not None}
    assert clients == {1, 2, 3}
    assert [line.client for line in lines if line.event == "left"].count(3) == 1


async def test_recording_with_secrets_holds_every_byte(tmp_path: Path) -> None:
    lines = await record(tmp_path / "traffic.jsonl", secrets=True)
    sent = [text_of(line) for line in lines if line.way == ">"]
    assert dump({"jsonrpc": "2.0", **called(1, n="one", password="hunter2hunter2")}) in sent


async def test_recording_run_again_on_the_same_server_shows_the_same(tmp_path: Path) -> None:
    report = await replay(await record(tmp_path / "traffic.jsonl"), command())
    assert report.same, as_text(report, color=False)
    assert [(one.method, one.name) for one in report.requests].count(("tools/call", "echo")) == 3
    assert report.unanswered_questions == 0


async def test_recording_run_again_on_another_server_shows_where_it_differs(tmp_path: Path) -> None:
    report = await replay(await record(tmp_path / "traffic.jsonl"), command('{"now": [2]}'))
    assert not report.same
    differing = [one for one in report.requests if not one.same]
    assert {one.method for one in differing} == {"tools/call"}
    assert len(differing) == 3
    (difference,) = differing[0].differences
    assert (difference.where, difference.recorded, difference.now) == ("result/says", "1", '{"now":[2]}')
    shown = as_text(report, color=False)
    assert 'result/says\n               recorded  1\n               now       {"now":[2]}' in shown
    assert json.loads(as_json(report))["same"] is False


def taped(*said: tuple[str, Json]) -> list[Line]:
    """A recording of one client, made by hand."""
    first = Line(record=1, bridge="1", at=0.0)
    return [first] + [
        Line(server="s", client=1, way=way, message=Raw(dump({"jsonrpc": "2.0", **message})))
        for way, message in said
    ]


INITIALIZED: Json = {
    "id": 0,
    "result": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "taped", "version": "1"},
    },
}


async def test_questions_are_answered_as_they_were() -> None:
    lines = taped(
        (">", initialize(elicitation={})),
        ("<", INITIALIZED),
        (">", {"method": "notifications/initialized"}),
        (">", called(1, "asks")),
        ("<", {"id": "another", "method": "elicitation/create", "params": {"message": "Who?"}}),
        (">", {"id": "another", "result": {"action": "accept", "content": {"name": "Ada"}}}),
        ("<", {"id": 1, "result": {"content": [], "heard": {"name": "Ada"}}}),
    )
    report = await replay(lines, command())
    assert report.same, as_text(report, color=False)
    assert len(report.requests) == 2


async def test_answer_that_does_not_come_is_told_and_holds_nothing_up() -> None:
    lines = taped(
        (">", initialize()),
        ("<", INITIALIZED),
        (">", called(1, "asks")),
        ("<", {"id": 1, "result": {}}),
        (">", {"id": 2, "method": "no/such"}),
        ("<", {"id": 2, "error": {"code": -32601, "message": "Method not found"}}),
    )
    report = await replay(lines, command(), 0.2)
    assert [(one.id, one.answered, one.same) for one in report.requests] == [
        (0, True, True),
        (1, False, False),
        (2, True, True),
    ]
    assert "no answer" in as_text(report, color=False)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "is no recording"),
        ('{"t":0}\n', "is no recording"),
        ("nonsense\n", ":1: no line of a recording"),
        ('{"record":2}\n', "newer form"),
    ],
)
def test_file_that_is_no_recording_is_told_with_its_line(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    with pytest.raises(UsageFault, match=told):
        read_record(path)


def test_one_of_several_servers_must_be_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"record":1}\n{"server":"a","target":"x"}\n{"server":"b","target":"y"}\n')
    with pytest.raises(UsageFault, match="--server: a, b"):
        run(path, command())
    with pytest.raises(UsageFault, match="holds no server c"):
        run(path, command(), server="c")


def test_recording_that_cannot_be_written_is_a_fault_at_the_start(tmp_path: Path) -> None:
    from bridge.record import Recorder

    with pytest.raises(UsageFault, match=r"--record .*: No such file or directory"):
        Recorder(Record(path=tmp_path / "no" / "x"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_hiding_secrets_leaves_json_of_the_same_shape(value: object) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"value": value, "api_key": "k" * 20}}
    shown = without_secrets(dump(message))
    assert is_json(shown)
    assert json.loads(shown)["params"]["api_key"] == HIDDEN
    assert getattr(read(shown, depth=99), "method", None) == "x"


def test_hiding_secrets_keeps_numbers_as_they_were_written() -> None:
    assert without_secrets(b'{"n": 1e400, "m": [1.0, -0]}') == b'{"n":1e400,"m":[1.0,-0]}'
