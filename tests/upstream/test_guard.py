"""The guard, as a process that outlives a killed bridge, and its parts against real processes."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import bridge
from bridge.upstream import guard as module
from bridge.upstream.guard import TOKEN, Ending, Guard, Process, Ward, Watch, exists, find, inhabited

from .scripted import eventually, lives

ROOT = Path(bridge.__file__).parent.parent

# Random, as real ones are: two runs of these tests at once must not end each other's children.
A, B, C = (secrets.token_hex(8) for _ in range(3))

STAY = "import signal\nwhile True: signal.pause()\n"
DEAF = "import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.write(1, b'deaf\\n')\n" + STAY


@contextmanager
def running(code: str, token: str = "", *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """A child as `process` starts it, with a pipe for its stdout."""
    env = {**os.environ, TOKEN: token}
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, *args],
        stdout=subprocess.PIPE,
        env=env,
        start_new_session=True,
    ) as child:
        try:
            yield child
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def first_line(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout
    return child.stdout.readline()


async def gone(child: subprocess.Popen[bytes]) -> int:
    await eventually(lambda: child.poll() is not None)
    return child.returncode


def descriptors(pid: int) -> dict[int, str]:
    return {int(fd.name): str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}


# The bridge dies

BRIDGE = textwrap.dedent(
    """
    import os, subprocess, sys, time
    from bridge.upstream.guard import TOKEN, Guard
    guard = Guard()
    token = sys.argv[3]
    guard.announce(token)
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", sys.argv[1]], env={**os.environ, TOKEN: token},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )
    if sys.argv[2] == "watched":
        guard.watch(child.pid, token)
    said = child.stdout.readline().decode()
    print(guard.pid, child.pid, said, flush=True)
    time.sleep(1000)
    """
)
FAMILY = textwrap.dedent(
    """
    import os, signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mate = os.fork()
    stray = mate and os.fork()
    if mate and not stray:
        os.setsid()
    if mate and stray:
        os.write(1, b"%d %d\\n" % (mate, stray))
    while True: signal.pause()
    """
)


def bridge_process(*args: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", BRIDGE, *args], stdout=subprocess.PIPE, env=env)


@pytest.mark.spec("SC-9")
@pytest.mark.case("CP-05")
@pytest.mark.parametrize("known", ["watched", "announced"])
async def test_nothing_survives_a_killed_bridge(known: str) -> None:
    """Child, grandchild and a grandchild that left the session, none of which heeds SIGTERM."""
    with bridge_process(FAMILY, known, A) as killed:
        pids = [int(word) for word in first_line(killed).split()]
        living = [lives(pid) for pid in pids]
        killed.kill()
    assert living == [True] * 4
    await eventually(lambda: not any(map(lives, pids)))


async def test_closing_ends_what_is_still_watched_and_the_guard() -> None:
    guard = Guard()
    with running(STAY, A) as child:
        guard.watch(child.pid, A)
        pid = guard.pid
        assert pid
        await guard.close()
        assert await gone(child) == -signal.SIGTERM
        assert not lives(pid)


async def test_closing_a_guard_that_never_started_is_nothing() -> None:
    guard = Guard()
    await guard.close()
    assert guard.pid is None


# The bridge lives


async def test_released_child_leaves_no_stray(guard: Guard) -> None:
    code = "import os\nif (stray := os.fork()): os.write(1, b'%d\\n' % stray)\nelse:\n os.setsid()\n" + STAY
    code = code.replace("\nwhile", "\n while").replace("\nimport signal", "\n import signal")
    with running(code, B) as child:
        guard.watch(child.pid, B)
        stray = int(first_line(child))
        await gone(child)
        assert lives(stray)
        guard.release(B)
        await eventually(lambda: not lives(stray))
    assert guard.watched == frozenset()


async def test_releasing_one_child_leaves_another_alone(guard: Guard) -> None:
    with running(STAY, A) as other, running(STAY, B) as child:
        guard.watch(other.pid, A)
        guard.watch(child.pid, B)
        guard.release(B)
        assert await gone(child) == -signal.SIGTERM
        assert other.poll() is None


async def test_guard_that_was_killed_is_started_again_and_knows_all() -> None:
    guard = Guard()
    with running(STAY, A) as old, running(STAY, B) as new:
        guard.watch(old.pid, A)
        guard.announce(B)
        first = guard.pid
        assert first
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: not lives(first))
        guard.announce(C)
        assert guard.pid != first
        assert old.poll() is None
        await guard.close()
        assert await gone(old) == -signal.SIGTERM
        assert await gone(new) == -signal.SIGTERM


async def test_guard_that_hangs_is_replaced_without_ending_anything(guard: Guard) -> None:
    with running(STAY, A) as child:
        guard.watch(child.pid, A)
        first = guard.pid
        assert first
        os.kill(first, signal.SIGSTOP)
        for _ in range(10_000):
            guard.announce(B)
        assert guard.pid != first
        assert not lives(first)
        assert child.poll() is None


async def test_guard_is_started_once(guard: Guard) -> None:
    guard.start()
    pid = guard.pid
    guard.start()
    assert guard.pid == pid


async def test_bridge_goes_on_without_a_guard_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    guard = Guard()
    guard.start()
    guard.announce(A)
    assert guard.pid is None
    assert "no guard, children will outlive a killed bridge: No such file" in caplog.text


async def test_guard_that_never_listens_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_written", lambda *_: False)
    guard = Guard()
    guard.start()
    assert "the guard does not listen" in caplog.text
    await guard.close()


async def test_guard_holds_nothing_of_the_bridge_and_ignores_signals(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "outer")
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        guard.start()
        with running(STAY, A) as child:
            guard.watch(child.pid, A)
            guard.release(A)
            await gone(child)  # so it has come so far as to ignore signals
        pid = guard.pid
        assert pid
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, sign)
        links = descriptors(pid)
        assert set(links) == {0, 1, 2}
        assert links[1] == links[2] == "/dev/null"
        assert module._token(pid) == ""
        assert os.getsid(pid) == pid
        assert lives(pid)
    finally:
        os.close(read)
        os.close(write)


# Whose is it?


def test_group_with_the_leader_that_was_watched_is_ours() -> None:
    with running(STAY) as child:
        ward = Ward(A, child.pid, module.started_at(child.pid))
        assert find([ward])[A] == {child.pid}


def test_group_that_got_the_number_later_is_not_ours() -> None:
    with running(STAY, B) as child:
        assert find([Ward(A, child.pid, b"1")])[A] == set()


def test_leaderless_group_is_ours_if_a_member_carries_the_token() -> None:
    code = "import os\nif (mate := os.fork()): os.write(1, b'%d\\n' % mate); os._exit(0)\n" + STAY
    for token, ours in ((A, True), (B, False)):
        with running(code, token) as child:
            mate = int(first_line(child))
            child.wait()
            assert find([Ward(A, child.pid, b"1")])[A] == ({mate} if ours else set())


def test_zombie_is_gone() -> None:
    with running("", A) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert find([Ward(A, child.pid, b"")])[A] == set()
        assert exists(child.pid)
        assert not inhabited(child.pid)


def test_vanished_process_says_nothing_of_itself() -> None:
    assert module.started_at(2**22 + 1) == b""
    assert not exists(2**22 + 1)
    assert not inhabited(2**22 + 1)


def test_without_proc_groups_are_all_that_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "PROC", str(tmp_path / "proc"))
    with running(STAY, A) as child:
        assert find([Ward(A, child.pid), Ward(B, 2**22 + 1), Ward(C)]) == {A: {-child.pid}}
        assert inhabited(child.pid)


# How it is ended


def test_everybody_is_asked_once_then_killed_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, sign: sent.append((pid, sign)))
    ending = Ending(Ward(A), 0.0)
    ending.step({7}, 0.1)
    ending.step({7, 8}, 0.2)
    assert sent == [(7, signal.SIGTERM), (8, signal.SIGTERM)]
    ending.step({8}, 2.0)
    assert sent[2:] == [(8, signal.SIGKILL)]
    assert not ending.over
    ending.step({8}, 4.1)
    assert ending.over


def test_ending_is_over_when_nobody_was_seen_twice() -> None:
    ending = Ending(Ward(A), 0.0)
    seen: list[bool] = []
    for targets in (set(), {2**22 + 1}, set(), set()):
        ending.step(targets, 0.1)
        seen.append(ending.over)
    assert seen == [False, False, False, True]


@contextmanager
def watching() -> Iterator[Callable[[bytes], object]]:
    """A `Watch` in a thread; yields what writes to its pipe, and closes it at the end."""
    read, write = os.pipe()
    watch = threading.Thread(target=Watch(read).run)
    watch.start()
    try:
        yield lambda command: os.write(write, command)
    finally:
        os.close(write)
        watch.join(20)
        os.close(read)
        assert not watch.is_alive()


def test_commands_may_come_in_pieces_and_unknown_tokens_are_harmless() -> None:
    with running(STAY, A) as child:
        with watching() as tell:
            tell(f"release {C}\nannou".encode())
            tell(f"nce {B}\nwatch {A} {child.pid}".encode())
            tell(b"\n")
        assert child.wait(20) == -signal.SIGTERM


@pytest.mark.parametrize("proc", ["/proc", "/nonexistent"])
def test_group_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch, proc: str) -> None:
    monkeypatch.setattr(module, "PROC", proc)
    monkeypatch.setattr(module, "GRACE", 0.3)
    with running(DEAF, A) as child:
        assert first_line(child) == b"deaf\n"
        with watching() as tell:
            tell(f"watch {A} {child.pid}\n".encode())
        assert child.wait(20) == -signal.SIGKILL


def test_processes_are_told_with_group_and_token() -> None:
    with running(STAY, A) as child:
        # exec has its environment a moment after it closed its descriptors, which is all Popen waits for.
        found = None
        while found is None and child.poll() is None:
            found = next((process for process in module.processes() if process.token == A), None)
        assert found == Process(child.pid, child.pid, module.started_at(child.pid), A)
        assert os.getpid() not in {process.pid for process in module.processes()}
