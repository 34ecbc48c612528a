"""The doctor: what it says of servers that work and of servers that do not, and that it does no harm."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.scripted_http import Exchange, OldRemote, Remote, Wire

from bridge import cli, doctor
from bridge.app import running
from bridge.config import Command, Config, Listen, Timing
from bridge.config import Remote as Place
from bridge.core.message import Headers
from bridge.doctor.conversation import LEGACY, Conversation, initialize
from bridge.doctor.report import Chart, Era, Level, Report, as_json, as_table, report

DEMO = (sys.executable, "-m", "bridge", "demo-server")
LEGACY_REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
HARMLESS = {
    "initialize", "server/discover", "ping", "tools/list", "prompts/list", "resources/list",
    "notifications/initialized", "notifications/cancelled", "doctor/no-such-method",
}  # fmt: skip

SCRIPT = """
import json, sys
era, heard, exits = sys.argv[1], sys.argv[2], "exits" in sys.argv[3:]
noise, stays = "noise" in sys.argv[3:], "stays" in sys.argv[3:]
if noise: print("listening on stdio", flush=True)
def answer(asked, **what):
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **what}), flush=True)
TOOLS = [{"name": str(n), "inputSchema": {"type": "object"}} for n in range(5)]
for line in sys.stdin:
    asked = json.loads(line)
    open(heard, "a").write(asked["method"] + "\\n")
    if "id" not in asked: continue
    params = asked.get("params", {})
    modern = "_meta" in params
    print("a line of log", file=sys.stderr, flush=True)
    if modern != (era == "modern"):
        if exits: sys.exit(1)
        answer(asked, error={"code": -32601, "message": "Method not found"})
    elif asked["method"] == "initialize":
        answer(asked, result={"protocolVersion": "2025-06-18", "capabilities": {"tools": {}, "prompts": {}},
            "serverInfo": {"name": "old", "version": "1"}})
    elif asked["method"] == "server/discover":
        answer(asked, result={"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "new", "version": "2"}}})
    elif asked["method"] == "tools/list":
        at = int(params.get("cursor", 0))
        answer(asked, result={"tools": TOOLS[at:at + 2], **({"nextCursor": str(at + 2)} if at < 4 else {})})
    elif asked["method"] == "ping":
        answer(asked, result={})
    else:
        answer(asked, error={"code": -32603, "message": "the database is gone"})
if stays:
    import time; time.sleep(1000)
"""


def scripted(tmp_path: Path, era: str, *habits: str) -> tuple[str, ...]:
    return (sys.executable, "-c", SCRIPT, era, str(tmp_path / "heard"), *habits)


def heard(tmp_path: Path) -> set[str]:
    return set((tmp_path / "heard").read_text().split())


async def examined(target: str | tuple[str, ...], timeout: float = 30) -> Report:
    upstream = Place(url=target) if isinstance(target, str) else Command(argv=target)
    return await doctor.examine(upstream, os.environ, timeout=timeout, timing=Timing())


def broken(found: Report, *levels: Level) -> list[str]:
    return [one.row for one in found.findings if not one.ok and one.level in (levels or tuple(Level))]


# -- servers that work


async def test_demo_server_over_stdio_speaks_both_eras() -> None:
    found = await examined(DEMO)
    assert found.verdict.works
    assert found.transports == ("stdio",)
    assert found.eras["legacy"].revisions == ("2025-11-25",)
    assert found.eras["legacy"].negotiates == {name: name for name in LEGACY_REVISIONS[:-1]}
    assert found.eras["modern"] == Era(works=True, revisions=("2026-07-28", *reversed(LEGACY_REVISIONS)))
    assert found.identity is not None
    assert found.identity["name"] == "mcp-bridge-demo"
    assert found.capabilities is not None
    assert "tools" in found.capabilities
    assert found.counts == {"tools": 12, "prompts": 1, "resources": 2}
    assert found.latency is not None
    assert (found.latency.n, found.latency.method) == (20, "ping")
    assert found.latency.p50 <= found.latency.p90 <= found.latency.p99
    assert broken(found) == []


@pytest.mark.parametrize("old", [False, True], ids=["streamable", "legacy-sse"])
async def test_bridge_over_http_keeps_every_requirement_that_is_tried(old: bool) -> None:
    config = Config(upstream=Command(argv=DEMO), listen=Listen(port=0, legacy_sse=old))
    async with running(config, os.environ) as (relay, served):
        found = await examined(served.url)
        await relay.drained()
        assert len(relay.sessions) == 0
    assert found.verdict.works
    assert found.transports == (("Streamable HTTP", "HTTP+SSE") if old else ("Streamable HTTP",))
    assert all(found.eras[era].works for era in ("legacy", "modern"))
    assert found.counts["tools"] == 12
    assert found.authorization is not None
    assert not found.authorization.required
    assert broken(found) == []
    tried = {one.row for one in found.findings}
    assert tried >= {"HL-2", "HL-3", "HL-6", "HL-12", "HL-17", "HL-18", "HL-19", "HL-21", "HL-23", "HL-26"}
    assert tried >= {"HM-2", "HM-4", "HM-11", "HM-12", "HM-13"}


async def test_http_sse_of_the_bridge_is_examined_by_its_own_url() -> None:
    config = Config(upstream=Command(argv=DEMO), listen=Listen(port=0, legacy_sse=True))
    async with running(config, os.environ) as (_, served):
        found = await examined(served.url.replace("/mcp", "/sse"))
    assert found.verdict.works
    assert found.transports == ("HTTP+SSE",)
    assert not found.eras["modern"].works
    assert found.counts["tools"] == 12
    assert broken(found) == []


@pytest.mark.parametrize("habits", [(), ("exits",)])
async def test_legacy_only_server_is_told_from_a_modern_one(tmp_path: Path, habits: tuple[str, ...]) -> None:
    found = await examined(scripted(tmp_path, "legacy", *habits))
    assert found.verdict.works
    assert found.eras["legacy"].revisions == ("2025-06-18",)
    assert found.eras["legacy"].negotiates == dict.fromkeys(LEGACY_REVISIONS[:-1], "2025-06-18")
    assert not found.eras["modern"].works
    assert found.counts == {"tools": 5}
    assert ("SC-15" in broken(found)) == bool(habits)


@pytest.mark.parametrize("habits", [(), ("exits",)])
async def test_modern_only_server_is_told_from_a_legacy_one(tmp_path: Path, habits: tuple[str, ...]) -> None:
    found = await examined(scripted(tmp_path, "modern", *habits))
    assert found.verdict.works
    assert found.eras["modern"].revisions == ("2026-07-28",)
    assert not found.eras["legacy"].works
    assert found.identity == {"name": "new", "version": "2"}
    assert found.counts == {"tools": 5}
    assert found.latency is not None
    assert found.latency.method == "server/discover"


async def test_list_that_fails_is_a_finding_while_another_works(tmp_path: Path) -> None:
    found = await examined(scripted(tmp_path, "legacy"))
    (lists,) = [one for one in found.findings if one.row == "lists"]
    assert not lists.ok
    assert "the database is gone" in lists.text


@pytest.mark.spec("SS-1", "SS-6")
async def test_noise_on_stdout_and_a_deaf_ear_for_the_end_of_stdin_are_found(tmp_path: Path) -> None:
    found = await examined(scripted(tmp_path, "legacy", "noise", "stays"), timeout=5)
    assert found.verdict.works
    assert {"SS-1", "SS-6"} <= set(broken(found))
    assert any("listening on stdio" in one.text for one in found.findings)


# -- no harm


async def test_no_tool_is_called_over_stdio(tmp_path: Path) -> None:
    for era in ("legacy", "modern"):
        await examined(scripted(tmp_path, era))
    assert heard(tmp_path) <= HARMLESS
    assert {"initialize", "server/discover", "ping", "tools/list"} <= heard(tmp_path)


async def test_no_tool_is_called_over_http_and_every_session_is_deleted() -> None:
    async with Remote() as remote:
        remote.capabilities = {"tools": {}, "prompts": {}, "resources": {}}
        await examined(remote.url())
    assert set(remote.rpcs()) - {"GET", "DELETE"} <= HARMLESS
    sessions = [one for one in remote.seen if one.rpc == "initialize"]
    assert len(remote.asked("DELETE")) == len(sessions)


# -- servers that do not


async def test_command_that_is_not_found_is_named() -> None:
    found = await examined(("no-such-program-here",))
    assert not found.verdict.works
    assert found.transports == ()
    assert 'program "no-such-program-here" not found' in found.verdict.text


async def test_server_that_exits_at_once_is_quoted() -> None:
    found = await examined((sys.executable, "-c", "import sys; sys.exit('API_KEY is not set')"))
    assert not found.verdict.works
    assert "exited with status 1" in found.verdict.text
    assert "API_KEY is not set" in found.verdict.text


async def test_program_that_prints_and_never_answers_is_told_from_a_server() -> None:
    program = "import sys; print('Welcome!', flush=True); sys.stdin.read()"
    found = await examined((sys.executable, "-c", program), timeout=3)
    assert not found.verdict.works
    assert "does not answer initialize" in found.verdict.text
    assert "Welcome!" in found.verdict.text


async def test_refused_connection_is_told_in_plain_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    found = await examined(f"http://127.0.0.1:{port}/mcp")
    assert not found.verdict.works
    assert f"Cannot connect to http://127.0.0.1:{port}: Connection refused" in found.verdict.text
    assert "Check that the server runs" in found.verdict.text


class Page(Wire):
    """A web server of something else."""

    status = 404

    async def handle(self, exchange: Exchange) -> None:
        exchange.reply(self.status, b"<html><body>Hello</body></html>", "text/html")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (404, "There is no MCP endpoint at this URL (HTTP 404): check its path"),
        (200, "A web page is at this URL"),
        (502, "The server fails (HTTP 502)"),
        (403, "The server refuses us (HTTP 403)"),
    ],
)
async def test_web_site_is_no_server(status: int, words: str) -> None:
    async with Page() as site:
        site.status = status
        found = await examined(site.url())
    assert not found.verdict.works
    assert found.transports == ()
    assert found.verdict.text.startswith(words)


@pytest.mark.spec("HL-6", "HL-19")
async def test_wrong_statuses_are_named_by_their_rows_and_do_not_stop_a_client() -> None:
    async def take(exchange: Exchange) -> None:
        exchange.reply(200)

    async def ping(exchange: Exchange) -> None:
        known = exchange.headers.get("mcp-session-id") == Remote.session
        exchange.result({}) if known else exchange.reply(400, b'{"error":"no"}')

    async with Remote({"notifications/initialized": take, "ping": ping}) as remote:
        found = await examined(remote.url())
    assert found.verdict.works
    assert {"HL-6", "HL-19"} <= set(broken(found, Level.MUST))
    assert "HL-6" in found.verdict.text
    assert "HL-18" not in broken(found)


async def test_server_that_wants_a_token_is_asked_nothing_more() -> None:
    async def metadata(exchange: Exchange) -> None:
        if exchange.target.endswith("/oauth-protected-resource/mcp"):
            exchange.reply(200, json.dumps({"resource": remote.url()}).encode())
        else:
            exchange.reply(404)

    async def refuse(exchange: Exchange) -> None:
        exchange.reply(401, WWW_Authenticate='Bearer resource_metadata="https://elsewhere.example/x"')

    async with Remote({"initialize": refuse, "GET": metadata}) as remote:
        found = await examined(remote.url())
        asked = remote.rpcs()
    assert not found.verdict.works
    assert "give --header 'Authorization: Bearer TOKEN'" in found.verdict.text
    assert found.authorization is not None
    assert found.authorization.required
    assert found.authorization.challenge is not None
    assert [(one.path, one.status) for one in found.authorization.metadata] == [
        ("/.well-known/oauth-protected-resource/mcp", 200),
        ("/.well-known/oauth-protected-resource", 404),
    ]
    assert found.authorization.metadata[0].document is not None
    assert asked == ["initialize", "GET", "GET"]


async def test_server_that_hangs_is_left_in_time() -> None:
    async def hang(exchange: Exchange) -> None:
        await exchange.left.wait()

    async with Remote({"initialize": hang}) as remote:
        found = await examined(remote.url(), timeout=1)
    assert not found.verdict.works
    assert "does not answer within" in found.verdict.text
    assert "longer --timeout" in found.verdict.text


async def test_endpoint_on_another_origin_is_refused_with_the_option_that_helps() -> None:
    class Misnamed(OldRemote):
        endpoint = "http://0.0.0.0:8000/messages"

    async with Misnamed() as remote:
        found = await examined(remote.url("/sse"))
    assert not found.verdict.works
    assert "--rewrite-endpoint" in found.verdict.text


# -- what is told


def chart() -> Chart:
    found = Chart(target="server", complete=True)
    found.eras["legacy"] = Era(works=True, revisions=("2025-11-25",), negotiates={"2024-11-05": "2025-11-25"})
    found.found("HL-6", Level.MUST, False, "202 for a notification: got HTTP 200\x1b[2J")
    found.found("HL-26", Level.ADVICE, False, "406 for an unfit Accept: got HTTP 200")
    found.found("HL-12", Level.MUST, True, "an event stream for GET, or 405")
    return found


def test_verdict_names_what_must_be_mended_and_not_what_is_only_advised() -> None:
    assert report(chart(), 30).verdict.text == (
        "A client can work with it; to mend: what the specification demands in HL-6"
    )


def test_examination_that_ran_out_of_time_says_so() -> None:
    found = chart()
    found.complete = False
    assert "not all was looked at in 30 s" in report(found, 30).verdict.text


def test_table_has_the_faults_first_in_plain_words_and_moves_no_cursor() -> None:
    text = as_table(report(chart(), 30), color=False)
    assert "2025-11-25; 2024-11-05 gets 2025-11-25" in text
    assert text.index("✗ wrong HL-6") < text.index("✓ ok    HL-12")
    assert "\x1b" not in text
    assert "\x1b[31m✗ wrong HL-6" in as_table(report(chart(), 30), color=True)


def test_json_is_one_object_with_all_members() -> None:
    found = json.loads(as_json(report(chart(), 30)))
    assert list(found) == [
        "target", "transports", "eras", "identity", "capabilities", "counts", "authorization", "findings",
        "latency", "verdict",
    ]  # fmt: skip
    assert found["findings"][0]["level"] == "must"


async def test_answers_of_another_request_are_not_taken() -> None:
    talk = Conversation()

    class Echo:
        label, congested = "echo", False

        def send(self, line: bytes, headers: Headers = ()) -> None:
            number = json.loads(line)["id"]
            for one in (number + 1, number):
                talk.received([json.dumps({"jsonrpc": "2.0", "id": one, "result": {"id": one}}).encode()])

        async def drained(self) -> None: ...
        async def awake(self) -> None: ...
        def pause(self) -> None: ...
        def resume(self) -> None: ...
        async def close(self) -> None: ...

    talk.upstream = Echo()
    assert await talk.ask(LEGACY.opening, initialize(), 5) == {"id": 1}


# -- the command


@pytest.fixture
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MCP_BRIDGE_")]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("_no_variables")
class TestCommand:
    def run(self, *words: str) -> tuple[int, str, str]:
        done = CliRunner().invoke(cli.program, ["doctor", *words], standalone_mode=False)
        status = done.return_value if done.exception is None else 2
        return status, done.stdout, str(done.exception or done.stderr)

    def test_working_server_gives_status_0_and_json_where_no_terminal_reads(self) -> None:
        status, out, err = self.run("--", *DEMO)
        assert (status, err) == (0, "")
        assert json.loads(out)["verdict"]["works"]

    def test_broken_server_gives_status_1_and_one_line(self) -> None:
        status, out, err = self.run("--timeout", "5s", "--cmd", "no-such-program-here")
        assert status == 1
        assert not json.loads(out)["verdict"]["works"]
        (line,) = err.splitlines()
        assert line.startswith("mcp-bridge: Cannot start the server")

    @pytest.mark.parametrize(
        ("words", "fault"),
        [
            ((), "Nothing to examine"),
            (("https://a.example/mcp", "more"), "One URL expected"),
            (("--cmd", "server", "https://a.example/mcp"), "exclude each other"),
            (("unix:mcp.sock",), "unix:SOCKET:PATH expected"),
        ],
    )
    def test_what_cannot_be_examined_is_a_usage_error(self, words: tuple[str, ...], fault: str) -> None:
        status, _, err = self.run(*words)
        assert status == 2
        assert fault in err

    def test_url_may_come_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MCP_BRIDGE_URL", "http://127.0.0.1:1/mcp")
        assert self.run()[0] == 1
