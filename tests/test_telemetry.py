"""Logging on stderr: what it never does (wait, tell a secret, let a peer forge lines), and its forms."""

from __future__ import annotations

import io
import json
import logging
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bridge
from bridge import telemetry
from bridge.config import Access, Command, Config, Listen, Log, LogFormat, ProcessModel, Remote
from bridge.telemetry import (
    Outlet,
    announce,
    announce_stdio,
    curl,
    redact,
    setup,
    short,
    spell_command,
    spell_server,
)

LOGGER = logging.getLogger("bridge.test")
SESSION_ID = "9f8e7d6c5b4a39281706f5e4d3c2b1a0"
ROOMY = 10_000_000
LIMIT = 20.0
"""Seconds that a step may take that would otherwise hang for good."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "JOURNAL_STREAM"):
        monkeypatch.delenv(name, raising=False)


def logged(log: Log, stream: io.StringIO, *, message: str = "hello", **extra: object) -> list[str]:
    """The lines that one record makes on `stream`."""
    stop = setup(log, stream)
    LOGGER.info(message, extra=extra)
    stop()
    return stream.getvalue().splitlines()


# -- it never waits


class Stuck(io.StringIO):
    """A stream that writes nothing until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.released = threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        assert self.released.wait(LIMIT)
        return super().write(text)


@pytest.fixture
def full_pipe() -> Iterator[TextIO]:
    """The writing end of a pipe that nobody reads, filled to the brim."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x")
    except BlockingIOError:
        os.set_blocking(writing, True)
    with os.fdopen(writing, "w") as writer:
        yield writer
        os.close(reading)


def in_time(work: threading.Thread) -> bool:
    work.start()
    work.join(LIMIT)
    return not work.is_alive()


@pytest.mark.case("CP-06")
def test_blocked_stderr_blocks_neither_logging_nor_its_end(
    full_pipe: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "CAPACITY", 64 * 1024)

    def work() -> None:
        stop = setup(Log(), full_pipe)
        for number in range(10_000):
            LOGGER.warning("line %d", number)
        stop()

    assert in_time(threading.Thread(target=work, daemon=True))


@pytest.mark.case("CP-06")
def test_lines_lost_to_a_blocked_stderr_are_counted_and_reported() -> None:
    stream = Stuck()
    outlet = Outlet(stream, lambda lost: f"<{lost} lost>", capacity=10)
    outlet.write("first,")
    assert stream.entered.wait(LIMIT)
    for text in ("kept,", "kept.", "lost", "lost"):
        outlet.write(text)
    stream.released.set()
    assert outlet.stop(LIMIT)
    assert stream.getvalue() == "first,kept,kept.<2 lost>"


def test_the_report_of_lost_lines_has_the_form_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "CAPACITY", 0)
    stream = io.StringIO()
    (line,) = logged(Log(format=LogFormat.JSON), stream)
    assert json.loads(line)["message"] == "1 log lines were lost, since stderr was not read"


def test_closed_stderr_does_not_end_the_logging_thread() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = os.fdopen(writing, "w")
    outlet = Outlet(writer, str, capacity=ROOMY)
    outlet.write("nobody reads this")
    assert outlet.stop(LIMIT)
    writer.close()


def test_what_is_written_before_the_end_is_written_out_in_order() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as writer:
        outlet = Outlet(writer, str, capacity=ROOMY)
        for number in range(1000):
            outlet.write(f"{number}\n")
        assert outlet.stop(LIMIT)
    with os.fdopen(reading) as reader:
        assert reader.read().split() == [str(number) for number in range(1000)]


def test_stderr_made_non_blocking_by_another_process_loses_nothing() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    text = "x" * 1_000_000
    with os.fdopen(writing, "w") as writer, os.fdopen(reading) as reader:
        outlet = Outlet(writer, str, capacity=ROOMY)
        outlet.write(text)
        assert reader.read(len(text)) == text
        assert outlet.stop(LIMIT)


def test_nothing_is_taken_after_the_end() -> None:
    stream = io.StringIO()
    outlet = Outlet(stream, str, capacity=ROOMY)
    outlet.stop(LIMIT)
    outlet.write("late")
    assert stream.getvalue() == ""


@pytest.mark.case("CP-06")
def test_whatever_else_writes_to_stderr_meanwhile_goes_through_the_outlet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = sys.stderr
    stop = setup(Log())
    assert isinstance(sys.stderr, Outlet)
    print("printed", file=sys.stderr)
    click.echo("echoed", err=True)
    stop()
    assert sys.stderr is before
    assert capsys.readouterr().err == "printed\nechoed\n"


@pytest.mark.case("CP-06")
def test_a_process_whose_stderr_is_blocked_still_exits() -> None:
    program = (
        "import logging; from bridge.config import Log; from bridge.telemetry import setup\n"
        "stop = setup(Log())\n"
        "for _ in range(1000): logging.getLogger('bridge').error('x' * 1000)\n"
        "stop(); print('over')"
    )
    reading, writing = os.pipe()
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=writing, timeout=LIMIT, check=False
    )
    os.close(reading)
    os.close(writing)
    assert (done.returncode, done.stdout) == (0, b"over\n")


# -- it never tells


@pytest.mark.spec("SP-9", "XH-14")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abc.def-123", "Authorization: ***"),
        (
            "{'authorization': 'Basic dXNlcjpwYXNz', 'accept': '*/*'}",
            "{'authorization': '***', 'accept': '*/*'}",
        ),
        ("Cookie: a=b; c=d\nnext", "Cookie: ***\nnext"),
        ("sent bearer abcdefghijk", "sent bearer ***"),
        ("GITHUB_TOKEN=abcdef123456 set", "GITHUB_TOKEN=*** set"),
        ('{"api_key": "abcdef123456"}', '{"api_key": "***"}'),
        ("client_secret=abcdef123456&scope=x", "client_secret=***&scope=x"),
        (f"Mcp-Session-Id: {SESSION_ID}", "Mcp-Session-Id: ***"),
        ("Mcp-Param-Region: eu west\nnext", "Mcp-Param-Region: ***\nnext"),
        ('"requestState":"mb1.abcdef123456",', '"requestState":"***",'),
        ("https://user:hunter2@example.com/x", "https://***@example.com/x"),
        ("key ghp_abcdefghijklmnopqrst", "key ***"),
        ("jwt eyJhbGciOiJIUzI1NiJ9.e30.abc", "jwt ***"),
    ],
)
def test_credentials_are_redacted(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "unknown progress token 3",
        "progressToken: abcdef123456",
        "listening on http://127.0.0.1:8080/mcp",
        "exit status 1: token expired",
        "tools/list answered in 3 ms",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


@given(st.text(max_size=200))
def test_redaction_takes_any_text_and_is_stable(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@pytest.mark.spec("SP-9")
@pytest.mark.parametrize("log_format", LogFormat)
def test_log_lines_never_hold_a_token_or_a_whole_session_id(log_format: LogFormat) -> None:
    stream = io.StringIO()
    logged(
        Log(format=log_format),
        stream,
        message="peer said: Authorization: Bearer abcdefgh12345",
        session=SESSION_ID,
        quoted="api_key=abcdef123456",
    )
    text = stream.getvalue()
    assert SESSION_ID[:8] in text
    assert not any(secret in text for secret in ("abcdefgh12345", SESSION_ID, "abcdef123456"))


def test_tracebacks_are_redacted_too() -> None:
    stream = io.StringIO()
    stop = setup(Log(), stream)
    try:
        raise RuntimeError("Authorization: Bearer abcdefgh12345")
    except RuntimeError:
        LOGGER.exception("failed")
    stop()
    assert "RuntimeError: Authorization: ***" in stream.getvalue()


def test_session_ids_are_shortened_once() -> None:
    assert short(SESSION_ID) == "9f8e7d6c…"
    assert short(short(SESSION_ID)) == "9f8e7d6c…"


def test_secret_words_of_a_command_are_hidden() -> None:
    command = (
        "run",
        "a b",
        "--api-key",
        "hunter2",
        "--token=abcdef123456",
        "-v",
        "Authorization: Bearer abc",
    )
    assert spell_command(command) == "run 'a b' --api-key *** '--token=***' -v 'Authorization: ***'"


def test_a_peer_can_neither_forge_a_line_nor_steer_the_terminal() -> None:
    (line,) = logged(Log(), io.StringIO(), message="\x1b[2J\r\n2030-01-01 info forged\x9b", peer="a\nb")
    assert line.endswith(r"\x1b[2J\r\n2030-01-01 info forged\x9b peer=a\nb")


def test_a_long_message_is_cut() -> None:
    (line,) = logged(Log(), io.StringIO(), message="x" * (telemetry.LONGEST + 5))
    assert line.endswith("x… (5 more)")


# -- its forms


def test_json_log_is_one_object_a_line_with_the_fields() -> None:
    (line,) = logged(Log(format=LogFormat.JSON), io.StringIO(), message="a\nb", server="time", attempt=2)
    record = json.loads(line)
    assert record.pop("ts").endswith("+00:00")
    assert record == {
        "level": "info",
        "logger": "bridge.test",
        "message": "a\nb",
        "server": "time",
        "attempt": 2,
    }


def test_fields_cannot_stand_in_for_the_records_own() -> None:
    (line,) = logged(Log(format=LogFormat.JSON), io.StringIO(), level="fake", ratio=float("nan"))
    assert json.loads(line)["level"] == "info"
    assert json.loads(line)["ratio"] == "nan"


def test_json_traceback_stays_on_the_line() -> None:
    stream = io.StringIO()
    stop = setup(Log(format=LogFormat.JSON), stream)
    try:
        raise RuntimeError("reason")
    except RuntimeError:
        LOGGER.exception("failed")
    stop()
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["traceback"].endswith("RuntimeError: reason")


def test_terminal_gets_colour_and_a_short_time() -> None:
    (line,) = logged(Log(), Terminal(), server="time")
    assert click.unstyle(line) != line
    assert click.unstyle(line)[2::3][:2] == "::"
    assert click.unstyle(line).endswith(" info    hello server=time")


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    (line,) = logged(Log(), Terminal())
    assert click.unstyle(line) == line


def test_journal_gets_no_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "8:1234")
    assert logged(Log(), io.StringIO()) == ["info    hello"]


@pytest.mark.parametrize(("level", "heard"), [("info", "warning"), ("debug", "info")])
def test_other_packages_are_quiet_unless_debugging(level: str, heard: str) -> None:
    stream = io.StringIO()
    stop = setup(Log(level=level, format=LogFormat.JSON), stream)
    for name in ("debug", "info", "warning"):
        getattr(logging.getLogger("aiohttp.access"), name)(name)
    stop()
    assert json.loads(stream.getvalue().splitlines()[0])["message"] == heard


def test_levels_below_the_one_asked_for_are_silent() -> None:
    assert logged(Log(level="warning"), io.StringIO()) == []


def test_logging_ends_as_it_was_found() -> None:
    root = logging.getLogger()
    before = list(root.handlers), root.level, logging.getLogger("bridge").level
    setup(Log(level="debug"), io.StringIO())()
    assert (list(root.handlers), root.level, logging.getLogger("bridge").level) == before


# -- the lines at start

URL = "http://127.0.0.1:8080/mcp"


def config(
    *,
    upstream: Command | Remote | None = None,
    process: ProcessModel = ProcessModel.SESSION,
    auth: bool = False,
    legacy_sse: bool = False,
    log: Log | None = None,
) -> Config:
    return Config(
        upstream=upstream or Command(argv=("srv", "a b")),
        process=process,
        listen=Listen(legacy_sse=legacy_sse),
        access=Access(token="a-token-of-no-use" if auth else None),
        log=log or Log(),
    )


def announced(
    stream: io.StringIO,
    configuration: Config | None = None,
    *,
    listening: str = "127.0.0.1:8080",
    demo: bool = False,
) -> str:
    announce(stream, configuration or config(), url=URL, listening=listening, demo=demo)
    return stream.getvalue()


def test_start_is_one_line_where_no_terminal_reads_it() -> None:
    text = announced(io.StringIO())
    assert text.count("\n") == 1
    assert f"listens on 127.0.0.1:8080: {URL}, one process for each session, no token: srv 'a b'" in text


def test_start_is_a_json_line_in_a_json_log() -> None:
    served = config(process=ProcessModel.SHARED, auth=True, log=Log(format=LogFormat.JSON))
    record = json.loads(announced(Terminal(), served, demo=True))
    assert (record["level"], record["logger"], record["message"]) == (
        "info", "bridge", f"mcp-bridge {bridge.__version__} listens",
    )  # fmt: skip
    assert (record["url"], record["model"], record["auth"]) == (URL, "shared", True)
    assert (record["server"], record["listening"]) == ("srv 'a b'", "127.0.0.1:8080")
    assert "sse_url" not in record


@pytest.mark.parametrize(("stream", "demo"), [(Terminal(), False), (io.StringIO(), True)])
def test_terminal_and_demo_get_a_curl_line_and_a_client_configuration(
    stream: io.StringIO, demo: bool
) -> None:
    text = click.unstyle(announced(stream, demo=demo))
    assert f"  {curl(URL, '127.0.0.1:8080', auth=False)}\n" in text
    configuration = json.loads(text[text.index("  {") : text.rindex("}") + 1])
    (server,) = configuration["mcpServers"].values()
    assert server == {"type": "http", "url": URL}


def test_only_a_terminal_gets_colour_at_start() -> None:
    assert click.unstyle(announced(Terminal())) != announced(Terminal())
    assert click.unstyle(announced(io.StringIO(), demo=True)) == announced(io.StringIO(), demo=True)


def test_curl_line_asks_to_initialize_with_both_media_types() -> None:
    words = shlex.split(curl(URL, "127.0.0.1:8080", auth=False))
    assert words[:3] == ["curl", "-sS", URL]
    assert "Accept: application/json, text/event-stream" in words
    assert json.loads(words[-1])["method"] == "initialize"


def test_curl_line_and_configuration_name_the_token_without_telling_it() -> None:
    text = announced(io.StringIO(), config(auth=True), demo=True)
    assert '-H "Authorization: Bearer $TOKEN"' in text
    assert '"Authorization": "Bearer <token>"' in text


def test_unix_socket_gets_a_curl_line_through_it_and_no_client_configuration() -> None:
    text = announced(io.StringIO(), listening="unix:/run/a b.sock", demo=True)
    assert "--unix-socket '/run/a b.sock'" in text
    assert "mcpServers" not in text


# -- of a server at a URL, and of old clients

SECRET = "s3cr3t-value"
REMOTE = Remote(url=f"https://mcp.example.com:8443/{SECRET}?key={SECRET}", headers=(("X-Key", SECRET),))


@pytest.mark.spec("SP-11")
@pytest.mark.parametrize("log_format", LogFormat)
@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_start_tells_the_origin_of_a_remote_server_and_nothing_else_of_it(
    log_format: LogFormat, stream: type[io.StringIO]
) -> None:
    served = config(upstream=REMOTE, log=Log(format=log_format))
    over_stdio = stream()
    announce_stdio(over_stdio, served)
    for text in (announced(stream(), served), over_stdio.getvalue()):
        assert "https://mcp.example.com:8443" in text
        assert SECRET not in text


def test_start_tells_how_sessions_meet_those_of_a_remote_server() -> None:
    text = announced(io.StringIO(), config(upstream=REMOTE))
    assert (
        f": {URL}, one session there for each session here, no token: https://mcp.example.com:8443\n" in text
    )


@pytest.mark.parametrize(
    ("upstream", "told"),
    [
        (Remote(url="http://localhost/mcp", socket=Path("/run/mcp.sock")), "unix:/run/mcp.sock"),
        (Remote(url="http://me:secret@a/mcp"), "http://a"),
        (Command(argv=("srv", "--token", "secret")), "srv --token ***"),
    ],
)
def test_server_is_spelled_without_its_secrets(upstream: Command | Remote, told: str) -> None:
    assert spell_server(upstream) == told


def test_start_tells_the_address_for_old_clients() -> None:
    served = config(legacy_sse=True)
    assert f": {URL} and http://127.0.0.1:8080/sse, " in announced(io.StringIO(), served)
    assert "HTTP+SSE http://127.0.0.1:8080/sse\n" in click.unstyle(announced(Terminal(), served))
    record = json.loads(announced(io.StringIO(), replace(served, log=Log(format=LogFormat.JSON))))
    assert (record["url"], record["sse_url"]) == (URL, "http://127.0.0.1:8080/sse")


def test_start_over_stdio_is_one_line() -> None:
    stream = io.StringIO()
    announce_stdio(stream, config())
    assert stream.getvalue() == f"mcp-bridge {bridge.__version__} serves its stdin and stdout: srv 'a b'\n"
