"""Which child a connection gets, when another is started, and that none is left."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from bridge.config import Command, Limits, Timing
from bridge.core.restart import RestartPolicy, Restarts
from bridge.errors import CircuitOpen, CommandNotFound, ServerFault, StartTimeout
from bridge.upstream import pool as module
from bridge.upstream.base import Upstream
from bridge.upstream.guard import Guard
from bridge.upstream.pool import Health, Pool

from .scripted import ECHO, LIMIT, PATIENT, Recorder, await_zombie, eventually, lives, python, shell

HASTY = RestartPolicy(first=0.001, most=0.001, failures=3, window=60.0, open_for=60.0)
ABSENT = Command(argv=("no-such-tool",))


@asynccontextmanager
async def pooled(
    command: Command,
    guard: Guard,
    *,
    warm: int = 0,
    policy: RestartPolicy = HASTY,
    timing: Timing = PATIENT,
    limits: Limits | None = None,
    clock: Callable[[], float] = anyio.current_time,
) -> AsyncIterator[Pool]:
    pool = Pool(
        command,
        os.environ,
        limits=limits or Limits(),
        timing=timing,
        warm=warm,
        guard=guard,
        restarts=Restarts(policy),
        clock=clock,
    )
    with anyio.fail_after(LIMIT):
        async with pool:
            yield pool


def pid_of(upstream: Upstream) -> int:
    return int(upstream.label.removeprefix("server[").removesuffix("]"))


def children_of(guard: Guard) -> set[int]:
    return {group for group in guard._children.values() if group}


async def test_connection_is_a_working_server(guard: Guard) -> None:
    async with pooled(python(ECHO), guard) as pool:
        out = Recorder()
        server = await pool.open(out)
        server.send(b"{}")
        await out.until_lines(1)
        assert out.lines == [b"{}"]


async def test_warm_child_is_handed_out_and_replaced(guard: Guard) -> None:
    async with pooled(python(ECHO), guard, warm=1) as pool:
        await eventually(lambda: pool.health.warm == 1)
        before = children_of(guard)
        server = await pool.open(Recorder())
        assert {pid_of(server)} == before
        await eventually(lambda: pool.health.warm == 1)
        assert pool.health == Health(started=2, alive=2, warm=1, fault=None)


@pytest.mark.spec("SP-7")
async def test_every_start_is_logged(guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bridge.server")
    async with pooled(python(ECHO), guard, warm=0) as pool:
        server = await pool.open(Recorder())
        (started,) = [record for record in caplog.records if record.getMessage() == "started"]
        assert getattr(started, "label", None) == server.label


async def test_dead_warm_child_is_passed_over(guard: Guard) -> None:
    async with pooled(python(ECHO), guard, warm=1) as pool:
        await eventually(lambda: pool.health.warm == 1)
        (dead,) = children_of(guard)
        os.kill(dead, signal.SIGKILL)
        await_zombie(dead)
        out = Recorder()
        server = await pool.open(out)
        assert pid_of(server) != dead
        server.send(b"{}")
        await out.until_lines(1)


@pytest.mark.spec("SC-10")
async def test_warm_child_that_dies_is_replaced_and_counts_as_a_failure(guard: Guard) -> None:
    async with pooled(python(ECHO), guard, warm=1) as pool:
        await eventually(lambda: pool.health.warm == 1)
        (dead,) = children_of(guard)
        os.kill(dead, signal.SIGKILL)
        await eventually(lambda: pool.health.started == 2 and pool.health.warm == 1)
        assert str(pool.health.fault) == "server was killed by SIGKILL"


async def test_warm_child_that_grew_old_is_replaced_without_blame(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "YOUNG", 0.0)
    async with pooled(python(ECHO), guard, warm=1) as pool:
        await eventually(lambda: pool.health.warm == 1)
        (dead,) = children_of(guard)
        os.kill(dead, signal.SIGKILL)
        await eventually(lambda: pool.health.started == 2 and pool.health.warm == 1)
        assert pool.health.fault is None


async def test_what_a_warm_child_said_early_is_delivered(guard: Guard, tmp_path: Path) -> None:
    said = tmp_path / "said"
    code = "import os, sys; os.write(1, b'ready v1\\n'); open(sys.argv[1], 'w').close(); sys.stdin.read()"
    async with pooled(python(code, str(said)), guard, warm=1) as pool:
        await eventually(said.exists)
        out = Recorder()
        await pool.open(out)
        await out.until_lines(1)
        assert out.lines == [b"ready v1"]


async def test_connections_opened_at_once_get_children_of_their_own(guard: Guard) -> None:
    async with pooled(Command(argv=("cat",)), guard, warm=2) as pool:
        opened: list[Upstream] = []

        async def open_one() -> None:
            opened.append(await pool.open(Recorder()))

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(open_one)
        assert len({pid_of(server) for server in opened}) == 50
        assert all(lives(pid_of(server)) for server in opened)


async def test_line_limit_is_the_configured_one(guard: Guard) -> None:
    async with pooled(python(ECHO), guard, limits=Limits(line=10)) as pool:
        out = Recorder()
        server = await pool.open(out)
        server.send(b"x" * 11)
        await out.until_lines(1)
        assert not isinstance(out.lines[0], bytes)


# Failure


@pytest.mark.case("CP-07")
async def test_missing_program_is_told_to_who_opens_and_to_health(guard: Guard) -> None:
    async with pooled(ABSENT, guard) as pool:
        with pytest.raises(CommandNotFound, match="no-such-tool"):
            await pool.open(Recorder())
        assert isinstance(pool.health.fault, CommandNotFound)
        assert pool.health.started == 0


@pytest.mark.case("CP-07")
async def test_server_that_keeps_dying_opens_the_circuit(guard: Guard) -> None:
    async with pooled(shell("exit 3"), guard, warm=1) as pool:
        await eventually(lambda: pool.health.started == 3 and not guard.watched)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(CircuitOpen, match=r"too often.*: server exited with status 3") as refused:
            await pool.open(Recorder())
        assert 0 < refused.value.retry_after <= 60
        assert pool.health.started == 3


async def test_circuit_that_is_open_refuses_at_once_and_starts_nothing(guard: Guard) -> None:
    async with pooled(python(ECHO), guard) as pool:
        for _ in range(3):
            pool.failed(StartTimeout("no answer in 60 s"))
        with pytest.raises(CircuitOpen, match="no answer in 60 s"):
            await pool.open(Recorder())
        assert pool.health.started == 0


async def test_half_open_circuit_lets_one_try_and_its_success_lets_all(guard: Guard) -> None:
    now = 0.0
    policy = RestartPolicy(failures=1, open_for=30.0)
    async with pooled(python(ECHO), guard, warm=1, policy=policy, clock=lambda: now) as pool:
        await eventually(lambda: pool.health.warm == 1)
        await pool.open(Recorder())
        pool.failed(StartTimeout("no answer"))
        now = 29.0
        with pytest.raises(CircuitOpen) as refused:
            await pool.open(Recorder())
        assert refused.value.retry_after == 1.0
        now = 30.0
        await pool.open(Recorder())
        with pytest.raises(CircuitOpen):
            await pool.open(Recorder())
        pool.succeeded()
        assert pool.health.fault is None
        await pool.open(Recorder())
        await eventually(lambda: pool.health.warm == 1)


async def test_half_open_circuit_is_not_tried_by_a_warm_child(guard: Guard) -> None:
    now = 0.0
    policy = RestartPolicy(failures=1, open_for=30.0)
    async with pooled(python(ECHO), guard, warm=1, policy=policy, clock=lambda: now) as pool:
        pool.failed(StartTimeout("no answer"))
        now = 31.0
        await pool.open(Recorder())
        await anyio.wait_all_tasks_blocked()
        assert pool.health.started == 1


async def test_backoff_is_waited_for_and_a_warm_child_ends_the_wait(guard: Guard) -> None:
    policy = RestartPolicy(first=1000.0, most=1000.0)
    async with pooled(python(ECHO), guard, policy=policy) as pool:
        pool.failed(StartTimeout("no answer"))
        with anyio.move_on_after(0.05) as waiting:
            await pool.open(Recorder())
        assert waiting.cancelled_caught
        assert pool.health.started == 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.open, Recorder())
            await anyio.lowlevel.checkpoint()
            pool.succeeded()
        assert pool.health.started == 1


async def test_warm_child_needs_no_backoff(guard: Guard) -> None:
    policy = RestartPolicy(first=1000.0, most=1000.0)
    async with pooled(python(ECHO), guard, warm=1, policy=policy) as pool:
        await eventually(lambda: pool.health.warm == 1)
        pool.failed(StartTimeout("no answer"))
        server = await pool.open(Recorder())
        assert lives(pid_of(server))


async def test_death_of_a_connection_is_a_fault_but_no_failed_start(guard: Guard) -> None:
    async with pooled(shell("read line; exit 3"), guard) as pool:
        for _ in range(5):
            out = Recorder()
            server = await pool.open(out)
            server.send(b"{}")
            await out.until_lost()
        await eventually(lambda: pool.health.alive == 0)
        assert str(pool.health.fault) == "server exited with status 3"


# The end


async def test_closed_connection_is_no_fault(guard: Guard) -> None:
    async with pooled(python(ECHO), guard) as pool:
        server = await pool.open(Recorder())
        await server.close()
        assert pool.health == Health(started=1, alive=0, warm=0, fault=None)


@pytest.mark.spec("SC-9")
async def test_closing_ends_warm_and_handed_out_children_and_refuses_more(guard: Guard) -> None:
    async with pooled(python(ECHO), guard, warm=2) as pool:
        out = Recorder()
        await pool.open(out)
        await eventually(lambda: pool.health.warm == 2)
        pids = children_of(guard)
        assert len(pids) == 3
        await pool.close()
        assert not any(map(lives, pids))
        await out.until_lost()
        with pytest.raises(ServerFault, match="stopping"):
            await pool.open(Recorder())
        await pool.close()
    assert not guard.watched


async def test_cancelled_pool_leaves_nothing(guard: Guard) -> None:
    deaf = python("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()")
    pids: set[int] = set()
    with anyio.CancelScope() as scope:
        async with pooled(deaf, guard, warm=1, timing=Timing(stdin_closed=0.1, terminated=0.1)) as pool:
            await pool.open(Recorder())
            await eventually(lambda: pool.health.warm == 1)
            pids = children_of(guard)
            scope.cancel()
            await anyio.sleep_forever()
    assert len(pids) == 2
    assert not any(map(lives, pids))
    assert not guard.watched


async def test_open_cancelled_while_it_waits_for_its_turn_starts_nothing(guard: Guard) -> None:
    async with pooled(python(ECHO), guard) as pool:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await pool.open(Recorder())
        assert pool.health.started == 0
