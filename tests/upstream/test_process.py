"""One child process: its start, its pipes, how its death is told, and that nothing of it is left."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.config import MIB, Command, Timing
from bridge.core.lines import Overlong
from bridge.errors import CommandNotFound
from bridge.upstream import process
from bridge.upstream.guard import TOKEN, Guard
from bridge.upstream.process import StderrLog, ending, environment, locate, readable, spawn

from .scripted import ECHO, PATIENT, QUICK, heard, lives, python, shell, tended

PR_SET_CHILD_SUBREAPER = 36
TRUE = Command(argv=("true",))


# Environment


@pytest.mark.spec("SC-17")
@pytest.mark.case("CP-09")
def test_child_gets_the_safe_variables_the_wanted_ones_and_its_own() -> None:
    command = Command(argv=("x",), env=(("MODE", 'a=b {"c": 1}'),), inherit_env=("FOO_*",))
    environ = {"PATH": "/bin", "LC_ALL": "C", "FOO_A": "1", "AWS_SECRET": "s", "MODE": "outer"}
    env = environment(command, environ)
    assert {name: value for name, value in env.items() if not name.startswith("PYTHON")} == {
        "PATH": "/bin",
        "LC_ALL": "C",
        "FOO_A": "1",
        "MODE": 'a=b {"c": 1}',
    }


def test_variable_patterns_match_whole_names_in_their_case() -> None:
    env = environment(Command(argv=("x",), inherit_env=("FOO",)), {"FOO": "1", "foo": "2", "FOOD": "3"})
    assert env.keys() & {"FOO", "foo", "FOOD"} == {"FOO"}


@pytest.mark.spec("SC-17")
def test_bridges_own_variables_are_never_inherited() -> None:
    env = environment(Command(argv=("x",), inherit_env=("*",)), {"MCP_BRIDGE_TOKEN": "s", "OTHER": "1"})
    assert "MCP_BRIDGE_TOKEN" not in env
    assert env["OTHER"] == "1"


@pytest.mark.case("CP-09")
def test_python_servers_speak_utf8_unless_configured_otherwise() -> None:
    assert environment(TRUE, {})["PYTHONUTF8"] == "1"
    assert environment(TRUE, {})["PYTHONIOENCODING"] == "utf-8"
    other = Command(argv=("x",), env=(("PYTHONIOENCODING", "latin-1"),))
    assert environment(other, {})["PYTHONIOENCODING"] == "latin-1"


# Finding the program


@pytest.mark.case("CP-07", "CP-09")
def test_missing_program_is_named_with_the_path_searched() -> None:
    with pytest.raises(CommandNotFound, match=r'"no-such-tool" not found; PATH searched: /nowhere:/bin'):
        locate(Command(argv=("no-such-tool",)), {"PATH": "/nowhere:/bin"})


@pytest.mark.case("CP-09")
def test_program_is_searched_on_the_childs_path_from_its_directory(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert locate(Command(argv=("tool",)), {"PATH": str(tool.parent)}) == str(tool)
    assert locate(Command(argv=("tool",), cwd=tmp_path), {"PATH": "bin"}) == str(tool)
    assert locate(Command(argv=("bin/tool",), cwd=tmp_path), {}) == str(tool)


def test_missing_path_variable_means_the_systems_default() -> None:
    assert locate(Command(argv=("sh",)), {}).endswith("/bin/sh")


@pytest.mark.parametrize(
    ("argv", "cwd", "said"),
    [
        ("./absent", "", 'program ".*/absent" does not exist'),
        ("./plain", "", 'program ".*/plain" is not executable'),
        ("./folder", "", 'program ".*/folder" is not executable'),
        ("true", "absent", 'working directory ".*/absent" does not exist'),
    ],
)
def test_unfit_program_or_directory_is_named(tmp_path: Path, argv: str, cwd: str, said: str) -> None:
    (tmp_path / "plain").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(CommandNotFound, match=said):
        locate(Command(argv=(argv,), cwd=tmp_path / cwd), os.environ)


@pytest.mark.parametrize(
    ("text", "said"), [("echo hi\n", "format error"), ("#!/no/such/interpreter\n", "No such file")]
)
async def test_program_the_system_refuses_is_not_found_and_forgotten(
    tmp_path: Path, guard: Guard, text: str, said: str
) -> None:
    tool = tmp_path / "tool"
    tool.write_text(text)
    tool.chmod(0o755)
    with pytest.raises(CommandNotFound, match=said):
        spawn(Command(argv=(str(tool),)), os.environ, timing=QUICK, tail=20, guard=guard)
    assert not guard.watched


# What the child sees


@pytest.mark.spec("SC-18")
@pytest.mark.case("CP-09")
async def test_arguments_reach_the_child_byte_for_byte(guard: Guard, tmp_path: Path) -> None:
    script = tmp_path / "a b (x)" / "srv.py"
    script.parent.mkdir()
    script.write_text("import json, os, sys\nprint(json.dumps([sys.argv, os.environ['V']]), flush=True)\n")
    args = ("two words", "$HOME", ";", "*", '"q"', "'", "", "é読🎉", "a\nb")
    command = Command(
        argv=(sys.executable, "-I", str(script), *args), env=(("V", '{"k": "=é"}'), ("LANG", "C"))
    )
    async with heard(command, guard) as (_, out):
        await out.until_text(b"\n")
    assert json.loads(out.text) == [[str(script), *args], '{"k": "=é"}']


async def test_child_has_real_pipes_and_no_other_descriptor(guard: Guard) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    code = """
        import os
        known = "/proc/self/fd/"
        inherited = [int(fd) for fd in os.listdir(known) if os.path.exists(known + fd)]
        with open("/dev/stdout", "w") as out:
            print(sorted(inherited), file=out)
    """
    try:
        async with heard(python(code), guard) as (_, out):
            await out.until_text(b"\n")
    finally:
        os.close(read)
        os.close(write)
    assert out.text == b"[0, 1, 2]\n"


@pytest.mark.spec("SC-18")
async def test_child_leads_its_own_group_and_carries_a_token(guard: Guard) -> None:
    code = f"import os; print(os.getpgrp(), os.getsid(0), len(os.environ['{TOKEN}']), flush=True); input()"
    async with heard(python(code), guard) as (child, out):
        await out.until_text(b"\n")
        assert out.text.split() == [b"%d" % child.pid, b"%d" % child.pid, b"16"]


async def test_child_works_in_its_directory(guard: Guard, tmp_path: Path) -> None:
    command = Command(argv=("/bin/pwd",), cwd=tmp_path)
    async with heard(command, guard) as (_, out):
        await out.until_text(b"\n")
    assert out.text == os.fsencode(tmp_path) + b"\n"


# Pipes


@pytest.mark.case("FR-02")
async def test_writes_larger_than_a_pipe_arrive_whole_and_in_order(guard: Guard) -> None:
    async with heard(Command(argv=("cat",)), guard) as (child, out):
        parts = [bytes([65 + i]) * (i * 70_001) for i in range(12)]
        for part in parts:
            child.stdin.write(part)
        child.stdin.write(b"\n")
        await out.until_text(b"\n")
    assert out.text == b"".join(parts) + b"\n"


@pytest.mark.case("CP-07")
async def test_child_that_does_not_read_is_congested_until_it_reads(guard: Guard) -> None:
    code = """
        import os, signal, sys
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        os.write(1, b"ready")
        signal.sigwait([signal.SIGUSR1])
        sys.stdin.buffer.read()
    """
    async with heard(python(code), guard) as (child, out):
        await out.until_text(b"ready")
        congested = []
        for _ in range(2):
            child.stdin.write(b"x" * MIB)
            congested.append(child.stdin.congested)
        os.kill(child.pid, signal.SIGUSR1)
        await child.stdin.drained()
        assert [*congested, child.stdin.congested] == [False, True, False]
        assert child.alive


async def test_waiting_for_a_congested_child_ends_with_its_death(guard: Guard) -> None:
    async with tended(Command(argv=("sleep", "1000")), guard) as child:
        child.stdin.write(b"x" * 3 * MIB)
        os.kill(child.pid, signal.SIGKILL)
        await child.stdin.drained()
        child.stdin.write(b"into the void\n")
        assert not child.stdin.congested


async def test_paused_child_is_not_read_until_resumed(guard: Guard) -> None:
    async with heard(python(ECHO), guard) as (child, out):
        child.stdin.write(b"one\n")
        await out.until_text(b"one\n")
        child.pause()
        child.pause()
        child.stdin.write(b"two\n")
        async with heard(python("print(1)"), guard) as (_, other):  # time enough for an echo
            await other.until_lost()
        assert out.text == b"one\n"
        child.resume()
        await out.until_text(b"two\n")


# Death


@pytest.mark.case("CP-07")
async def test_death_is_told_once_after_the_last_output_with_status_and_stderr(guard: Guard) -> None:
    code = """
        import os, sys
        os.write(1, b"x" * 60000 + b"END")
        os.write(2, b"cannot open\\nno newline at the end")
        os._exit(3)
    """
    async with heard(python(code), guard) as (child, out):
        fault = await out.until_lost()
        await child.gone.wait()
    assert str(fault) == "server exited with status 3"
    assert fault.exit_code == 3
    assert fault.stderr == ("cannot open", "no newline at the end")
    assert out.text.endswith(b"END")
    assert out.faults == [fault]
    assert child.fault is fault


@pytest.mark.case("CP-07")
@pytest.mark.parametrize("sign", [signal.SIGSEGV, signal.SIGKILL])
async def test_killed_server_is_told_with_its_signal(guard: Guard, sign: signal.Signals) -> None:
    async with heard(Command(argv=("cat",)), guard) as (child, out):
        os.kill(child.pid, sign)
        fault = await out.until_lost()
    assert str(fault) == f"server was killed by {sign.name}"
    assert fault.exit_code == -sign


def test_signal_without_a_name_is_told_by_number() -> None:
    assert ending(-(signal.SIGRTMIN + 5)) == f"server was killed by signal {signal.SIGRTMIN + 5}"


@pytest.mark.case("CP-05")
async def test_grandchild_that_holds_the_pipes_does_not_hide_a_death(guard: Guard) -> None:
    async with heard(shell("sleep 1000 & echo $!; exit 4"), guard) as (_, out):
        fault = await out.until_lost()
    assert str(fault) == "server exited with status 4"
    assert not lives(int(out.text))


@pytest.mark.case("CP-07")
async def test_server_that_closes_its_stdout_is_lost_and_ended(guard: Guard) -> None:
    async with heard(python("import os, signal; os.close(1); signal.pause()"), guard) as (child, out):
        fault = await out.until_lost()
        await child.gone.wait()
    assert str(fault) == "server closed its stdout"
    assert fault.exit_code is None
    assert not lives(child.pid)


async def test_server_that_closes_its_stdin_is_lost_and_ended(guard: Guard) -> None:
    code = "import os, signal; os.close(0); os.write(1, b'closed'); signal.pause()"
    async with heard(python(code), guard) as (child, out):
        await out.until_text(b"closed")
        child.stdin.write(b"{}\n")
        fault = await out.until_lost()
        await child.gone.wait()
    assert str(fault) == "server closed its stdin"


async def test_paused_server_is_heard_to_its_end_when_it_dies(guard: Guard) -> None:
    async with heard(python("import os; os.write(1, b'last words')"), guard) as (child, out):
        child.pause()
        await out.until_lost()
        assert out.text == b"last words"
        child.resume()


async def test_closing_is_told_as_such_and_is_no_fault(guard: Guard) -> None:
    async with heard(Command(argv=("cat",)), guard) as (child, out):
        await child.close()
        fault = await out.until_lost()
    assert str(fault) == "server was stopped by the bridge"
    assert child.fault is None


async def test_nothing_is_received_once_it_is_being_closed(guard: Guard) -> None:
    code = "import sys; sys.stdin.read(); print('too late', flush=True)"
    async with heard(python(code), guard, timing=PATIENT) as (child, out):
        await child.close()
        await out.until_lost()
    assert out.text == b""


@pytest.mark.parametrize("without", [AttributeError, OSError])
async def test_exit_is_noticed_without_pidfd(
    guard: Guard, monkeypatch: pytest.MonkeyPatch, without: type[Exception]
) -> None:
    def refuse(_: int) -> int:
        raise without

    monkeypatch.setattr(os, "pidfd_open", refuse)
    async with heard(shell("exit 7"), guard) as (child, out):
        fault = await out.until_lost()
        await child.gone.wait()
    assert fault.exit_code == 7


# stderr


def test_stderr_is_logged_at_a_bounded_rate_and_the_rest_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = StderrLog("server[1]", 3, lambda: now)
    with caplog.at_level(logging.INFO, "bridge.server"):
        log.take(b"".join(b"%d\n" % i for i in range(150)))
        assert [record.getMessage() for record in caplog.records] == [str(i) for i in range(100)]
        now = 0.5
        log.take(b"later\n")
        log.take(b"half")
        log.flush()
    assert [record.getMessage() for record in caplog.records][100:] == [
        "50 lines of stderr left out",
        "later",
        "half",
    ]
    assert {vars(record)["label"] for record in caplog.records} == {"server[1]"}
    assert log.tail == ("149", "later", "half")


def test_what_was_left_out_at_last_is_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    log = StderrLog("server[1]", 3, lambda: 0.0)
    with caplog.at_level(logging.INFO, "bridge.server"):
        log.take(b"x\n" * 101)
        log.flush()
        log.flush()
    assert [record.getMessage() for record in caplog.records][100:] == ["1 lines of stderr left out"]


@pytest.mark.case("CP-06")
def test_stderr_without_newlines_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    log = StderrLog("server[1]", 20, lambda: 0.0)
    with caplog.at_level(logging.INFO, "bridge.server"):
        for _ in range(16):
            log.take(b"x" * 65536)
        log.flush()
    (record,) = caplog.records
    assert len(record.getMessage()) <= process.STDERR_LINE
    (quoted,) = log.tail
    assert len(quoted) == 500


def test_overlong_line_is_shown_by_its_ends() -> None:
    assert readable(Overlong(b"begin", b"end", 99999), 500) == "begin...end"


@given(st.binary(max_size=300), st.integers(1, 50))
def test_readable_text_is_bounded_and_moves_no_cursor(line: bytes, most: int) -> None:
    text = readable(line, most)
    assert len(text) <= most
    assert text.replace("\t", "").isprintable()


def test_readable_text_shows_what_it_made_harmless() -> None:
    assert readable(b"\x1b[31mred\x1b[0m\ta\xff\xe2\x80\xae", 99) == "\\x1b[31mred\\x1b[0m\ta�\\u202e"


@pytest.mark.spec("SC-4", "SC-5")
@pytest.mark.case("CP-06")
async def test_ten_megabytes_of_stderr_do_not_hold_up_an_answer(
    guard: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    code = """
        import os, sys
        for _ in range(1000):
            os.write(2, b"noise \\xff\\n" * 1400)
        os.write(1, b"answer\\n")
        sys.stdin.read()
    """
    with caplog.at_level(logging.INFO, "bridge.server"):
        async with heard(python(code), guard) as (child, out):
            await out.until_text(b"answer\n")
            assert child.alive
    noise = [record for record in caplog.records if record.getMessage() == "noise �"]
    assert 100 <= len(noise) < 1_000_000


# The ladder

AT_THE_END = """
    import os, signal, sys
    def note(what):
        fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, what)
        os.close(fd)
    def terminated(*_):
        note(b"TERM ")
        os._exit(0)
    signal.signal(signal.SIGTERM, terminated)
    os.write(1, b"ready")
"""


@pytest.mark.spec("SC-9")
async def test_child_that_heeds_the_end_of_its_input_gets_no_signal(guard: Guard, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    command = python(AT_THE_END + "    sys.stdin.read(); note(b'EOF ')", str(notes))
    async with heard(command, guard, timing=PATIENT) as (child, out):
        await out.until_text(b"ready")
        await child.close()
    assert notes.read_text() == "EOF "


@pytest.mark.spec("SC-9")
async def test_child_that_ignores_the_end_of_its_input_is_terminated(guard: Guard, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    command = python(AT_THE_END + "    while True: signal.pause()", str(notes))
    timing = Timing(stdin_closed=0.05, terminated=20)
    async with heard(command, guard, timing=timing) as (child, out):
        await out.until_text(b"ready")
        await child.close()
    assert notes.read_text() == "TERM "


DEAF = """
    import os, signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(1, b"%d\\n" % os.getpid())
    while True: signal.pause()
"""


@pytest.mark.spec("SC-9")
async def test_child_that_ignores_sigterm_is_killed_and_leaves_no_zombie(guard: Guard) -> None:
    async with heard(python(DEAF), guard) as (child, out):
        await out.until_text(b"\n")
        await child.close()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


@pytest.mark.spec("SC-18")
@pytest.mark.case("CP-05")
async def test_grandchildren_go_with_the_child(guard: Guard) -> None:
    async with heard(shell("sleep 1000 & echo $!; exec cat"), guard, timing=PATIENT) as (child, out):
        await out.until_text(b"\n")
        assert lives(int(out.text))
        await child.close()
        assert not lives(int(out.text))


@pytest.mark.case("CP-05")
async def test_worker_that_ignores_sigterm_and_holds_stdout_goes_with_its_wrapper(guard: Guard) -> None:
    worker = python(DEAF).argv[-1]
    wrapper = python(f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {worker!r}]); input()")
    async with heard(wrapper, guard, timing=PATIENT) as (child, out):
        await out.until_text(b"\n")
        child.stdin.write(b"\n")
        await out.until_lost()
        await child.gone.wait()
    assert not lives(int(out.text))


async def test_whole_group_is_asked_before_it_is_killed(guard: Guard, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    worker = python(AT_THE_END + "    while True: signal.pause()").argv[-1]
    wrapper = python(
        f"""
        import subprocess, sys
        subprocess.Popen([sys.executable, '-c', {worker!r}, sys.argv[1]])
        sys.stdin.read()
        """,
        str(notes),
    )
    async with heard(wrapper, guard, timing=PATIENT) as (child, out):
        await out.until_text(b"ready")
        await child.close()
    assert notes.read_text() == "TERM "


@pytest.mark.spec("SC-19")
async def test_child_blocked_on_a_full_stdout_still_sees_the_end_of_its_input(
    guard: Guard, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    code = "    os.write(2, b'x' * 999999); os.write(1, b'x' * 999999); sys.stdin.read(); note(b'EOF ')"
    command = python(AT_THE_END + code, str(notes))
    async with heard(command, guard, timing=PATIENT) as (child, out):
        await out.until_text(b"ready")
        child.pause()
        await child.close()
    assert notes.read_text() == "EOF "


async def test_child_that_was_never_listened_to_ends_the_same_way(guard: Guard, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    command = python(AT_THE_END + "    sys.stdin.read(); note(b'EOF ')", str(notes))
    async with tended(command, guard, timing=PATIENT) as child:
        await child.close()
        assert not child.listened
    assert notes.read_text() == "EOF "


@pytest.mark.spec("SC-9")
async def test_what_was_written_is_read_before_the_input_ends(guard: Guard, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    command = python(AT_THE_END + "    note(b'%d' % len(sys.stdin.read()))", str(notes))
    async with tended(command, guard, timing=PATIENT) as child:
        child.stdin.write(b"x" * 999_999)
        await child.close()
    assert notes.read_text() == "999999"


async def test_closing_twice_and_at_once_is_closing(guard: Guard) -> None:
    async with heard(Command(argv=("cat",)), guard) as (child, out):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child.close)
            tasks.start_soon(child.close)
        await child.close()
        await out.until_lost()


async def test_cancelled_close_goes_on_ending_the_child(guard: Guard) -> None:
    async with heard(python(DEAF), guard) as (child, out):
        await out.until_text(b"\n")
        with anyio.move_on_after(0):
            await child.close()
        assert lives(child.pid)
        await child.gone.wait()
    assert not lives(child.pid)


async def test_cancelling_its_life_ends_the_child(guard: Guard) -> None:
    async with anyio.create_task_group() as tasks:
        env = environment(python(DEAF), os.environ)
        child = spawn(python(DEAF), env, timing=QUICK, tail=20, guard=guard)
        tasks.start_soon(child.tend)
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert child.gone.is_set()
    assert not lives(child.pid)
    assert not guard.watched


async def test_child_that_even_sigkill_does_not_end_is_given_up_and_told_of(
    guard: Guard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "KILLED", 0.05)
    monkeypatch.setattr(process.Child, "_signal", lambda *_: None)
    async with heard(python(DEAF), guard) as (child, out):
        await out.until_text(b"\n")
        await child.close()
        os.kill(child.pid, signal.SIGKILL)
        await child._exited.wait()
    assert f"group {child.pid} outlived SIGKILL" in caplog.text


@contextmanager
def _subreaper() -> Iterator[None]:
    """What process 1 is for all: orphans become our children."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)


async def test_zombies_a_server_leaves_to_us_are_reaped(guard: Guard) -> None:
    """As process 1 of a container the bridge inherits orphans, whose zombies would hold the group."""
    code = """
        import os, signal
        orphan = os.fork()
        if not orphan: signal.pause()
        os.write(1, b"%d" % orphan)
    """
    with _subreaper():
        async with heard(python(code), guard, timing=PATIENT) as (child, out):
            await out.until_lost()
            await child.gone.wait()
        with pytest.raises(ProcessLookupError):
            os.kill(int(out.text), 0)


@pytest.mark.case("CP-07")
async def test_server_that_asks_and_never_listens_is_given_up(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MOST_HEAPED", 1 << 20)
    async with heard(python("import signal; signal.pause()"), guard) as (child, out):
        child.stdin.write(b"x" * (2 << 20))  # one message, however large, is none too many
        assert not child.stdin.broken
        for _ in range(20):
            child.stdin.write(b"y" * (64 << 10))
        fault = await out.until_lost()
        await child.gone.wait()
    assert str(fault) == "server does not read its stdin"
