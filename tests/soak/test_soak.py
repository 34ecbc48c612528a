"""A hundred clients at once, each with the same ids and secrets of its own, doing whatever clients do.

Two rounds against one bridge as a process, for each process model. What must hold whatever happens:
each accepted request is answered exactly once, by its own answer, or by one error if its server was
killed; nobody hears another's secret; after a round no session, process, zombie or descriptor is left,
and the second round needs no more memory than the first.

`SOAK_SECONDS` is the length of the two rounds together, for each model: 15 unless it is set, which
`make soak` does.
`SOAK_SEED` repeats a run as far as the order of events lets it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from field.raw import JSON_ONLY, Answer, Exchange, ask
from field.session import Id, Json, Session, call, connect, initialize, notification
from support import machine
from support.black_box import Bridge, launched
from support.machine import LIMIT

pytestmark = pytest.mark.soak

CLIENTS = 100
SECONDS = float(os.environ.get("SOAK_SECONDS") or 15)
SEED = os.environ.get("SOAK_SEED") or secrets.token_hex(4)
CHILD = Path(__file__).parents[1] / "field" / "children" / "obeys_calls.py"
SERVER = [sys.executable, "-I", "-S", str(CHILD)]
MIB = 1 << 20
QUESTION = "sampling/createMessage"


class LostServer(Exception):
    """The session's server is gone, as it should be only if it was killed."""


@dataclass
class Soak:
    """What the clients of one bridge share."""

    bridge: Bridge
    shared: bool
    until: float = 0.0
    killed: int = 0
    unnoticed: bool = False
    """Whether a busy bridge may not have seen yet that the shared server was killed."""
    done: Counter[str] = field(default_factory=Counter)

    def over(self) -> bool:
        return asyncio.get_running_loop().time() >= self.until


def final(messages: list[Json], request_id: Id) -> Json:
    """The one answer among the messages of a stream, which comes last."""
    answers = [message for message in messages if "method" not in message]
    assert len(answers) == 1, messages
    assert answers == messages[-1:], messages
    (answer,) = answers
    assert answer["id"] == request_id
    assert type(answer["id"]) is type(request_id)
    return answer


class Client:
    """One client, in one session after another. A move is a call with all that must come of it."""

    def __init__(self, soak: Soak, number: int, round_number: int) -> None:
        self.soak = soak
        self.number = number
        self.random = random.Random(f"{SEED} {round_number} {number}")
        self.kills_before = 0
        self.doubtful = False
        self.pid = 0
        self.listening: Exchange | None = None
        self.stack = AsyncExitStack()
        self.peer: Session
        self.moves: dict[str, Callable[[int], Awaitable[None]]] = {
            "echo": self.echo,
            "slow": self.slow,
            "big": self.big,
            "cancel": self.cancel,
            "leave": self.leave,
            "resume": self.resume,
        }

    async def play(self) -> None:
        try:
            await self.open()
            while not self.soak.over():
                await self.turn()
            await self.close()
        finally:
            await self.stack.aclose()

    @property
    def robbed(self) -> bool:
        """Whether the server may have been killed, be it just before, unnoticed, the session opened."""
        return self.soak.killed > self.kills_before or self.doubtful

    async def turn(self) -> None:
        """A few moves at once, and now and then an end of the session."""
        try:
            if self.random.random() < 0.2:
                await self.ask(1)
            else:
                await self.moves_at_once()
        except LostServer:
            assert self.robbed, "nobody killed this server"
            self.soak.done["lost"] += 1
            await self.reopen()
            return
        match self.random.random():
            case chance if chance < 0.05:
                await self.reopen()
            case chance if chance < 0.08 and not self.soak.shared:
                await self.kill()

    async def moves_at_once(self) -> None:
        """Calls with the ids from 1 on, as in every other session."""
        names = self.random.choices(list(self.moves), weights=(8, 4, 1, 2, 2, 2), k=self.random.randint(1, 4))
        moves = [self.moves[name](request_id) for request_id, name in enumerate(names, start=1)]
        outcomes = await asyncio.gather(*moves, return_exceptions=True)
        for outcome in sorted(filter(None, outcomes), key=lambda fault: isinstance(fault, LostServer)):
            raise outcome
        self.soak.done.update(names)

    # Sessions

    async def open(self) -> None:
        """Open a session; while a server that was killed starts anew the bridge may refuse some."""
        async with asyncio.timeout(LIMIT):
            while not await self.opened():
                assert self.soak.shared, "nobody else can have killed this server"
                assert self.soak.killed, "refused before anything was killed"
                await asyncio.sleep(0.2)
        if not self.soak.shared:
            answer = await self.peer.post(call("seen", "seen"))
            self.pid = json.loads(answer.result["content"][0]["text"])["pid"]

    async def opened(self) -> bool:
        """Whether it could be opened; if not, that is for want of a server."""
        self.kills_before = self.soak.killed
        self.doubtful = self.soak.unnoticed
        self.peer = Session(self.soak.bridge.port)
        answer = await self.peer.post(initialize(capabilities={"sampling": {}}, request_id=1))
        opened = final(answer.messages, 1)
        if "error" in opened:
            assert opened["error"]["data"]["reason"] in ("upstream_lost", "upstream_down"), opened
            return False
        self.peer.headers.append(("Mcp-Session-Id", answer.headers["mcp-session-id"]))
        told = await self.peer.post(notification("notifications/initialized"))
        if told.status == 404:
            return False
        assert (told.status, told.body) == (202, b"")
        if self.number % 4 == 0:
            self.listening = await self.stack.enter_async_context(self.peer.listening())
            return await self.listening.head() == 200
        return True

    async def close(self) -> None:
        status = (await self.peer.delete()).status
        lost = self.soak.shared and self.robbed
        assert status == 200 or (lost and status == 404), status
        if self.listening is not None:
            rest = await self.listening.answer()
            assert not rest.events, "nothing was said to it"
            self.listening = None
        await self.stack.aclose()

    async def reopen(self) -> None:
        await self.close()
        self.soak.done["reopen"] += 1
        await self.open()

    async def kill(self) -> None:
        """Kill the server under calls that wait: each gets one error, and the session is gone."""
        held = [call(request_id, "hold", {"steps": 1}, token=request_id) for request_id in (1, 2, 3)]
        async with AsyncExitStack() as stack:
            exchanges = [await stack.enter_async_context(self.peer.posted(asked)) for asked in held]
            for exchange in exchanges:
                assert (await exchange.message())["method"] == "notifications/progress"
            self.soak.killed += 1
            os.kill(self.pid, signal.SIGKILL)
            for request_id, exchange in enumerate(exchanges, start=1):
                answer = final((await exchange.answer()).messages, request_id)
                assert answer["error"]["data"]["exitCode"] == -signal.SIGKILL
        assert (await self.peer.delete()).status == 404
        if self.listening is not None:
            assert not (await self.listening.answer()).events
            self.listening = None
        await self.stack.aclose()
        self.soak.done["kill"] += 1
        await self.open()

    # Moves

    def secret(self, request_id: int) -> str:
        return f"{self.number}/{request_id}/{self.random.getrandbits(64):x}"

    def text(self, answer: Answer, request_id: int) -> str:
        """The text of the one answer. Raises LostServer if it says that the server was killed."""
        assert answer.status in (200, 404, 503), answer
        return self.text_in(final(answer.messages, request_id))

    def text_in(self, answer: Json) -> str:
        if "error" in answer:
            reason = answer["error"].get("data", {}).get("reason")
            assert reason in ("upstream_lost", "session_not_found"), answer
            raise LostServer
        text = answer["result"]["content"][0]["text"]
        assert isinstance(text, str)
        return text

    async def echo(self, request_id: int) -> None:
        secret = self.secret(request_id)
        accept = self.random.choice(("*/*", JSON_ONLY))
        answer = await self.peer.post(call(request_id, "echo", {"text": secret}), accept)
        assert self.text(answer, request_id) == secret

    async def slow(self, request_id: int) -> None:
        secret, steps = self.secret(request_id), self.random.randint(0, 3)
        arguments = {"text": secret, "steps": steps, "seconds": self.random.uniform(0, 0.3)}
        answer = await self.peer.post(call(request_id, "slow", arguments, token=f"t{request_id}"))
        assert self.text(answer, request_id) == secret
        told = [message["params"] for message in answer.messages[:-1]]
        assert told == [{"progressToken": f"t{request_id}", "progress": step} for step in range(steps)]

    async def big(self, request_id: int) -> None:
        size = self.random.randint(1, MIB)
        answer = await self.peer.post(call(request_id, "big", {"size": size}))
        assert len(self.text(answer, request_id)) == size

    async def begun(self, exchange: Exchange, request_id: int) -> str:
        """Wait for the first progress of a call; gives the id of its event."""
        if await exchange.head() != 200 or not exchange.headers["content-type"].startswith(
            "text/event-stream"
        ):
            self.text(await exchange.answer(), request_id)
        event = await exchange.event()
        if "method" not in event.message:
            self.text_in(event.message)
        assert event.message["params"]["progressToken"] == request_id
        assert event.id is not None
        return event.id

    async def cancel(self, request_id: int) -> None:
        """A cancelled call is not answered, unless its server was killed before it was cancelled."""
        asked = call(request_id, "hold", {"steps": 1}, token=request_id)
        async with self.peer.posted(asked) as exchange:
            await self.begun(exchange, request_id)
            await self.tell("notifications/cancelled", {"requestId": request_id})
            for message in (await exchange.answer()).messages:
                self.text_in(message)
                raise AssertionError(f"an answer to a cancelled call: {message}")

    async def tell(self, method: str, params: Json) -> None:
        answer = await self.peer.post(notification(method, params))
        if answer.status == 404:
            raise LostServer
        assert (answer.status, answer.body) == (202, b"")

    async def leave(self, request_id: int) -> None:
        arguments = {"steps": 1, "seconds": self.random.uniform(0, 0.3), "text": self.secret(request_id)}
        # An id of its own, for the call runs on.
        gone = f"{request_id} {self.random.getrandbits(32):x}"
        async with self.peer.posted(call(gone, "slow", arguments)) as exchange:
            exchange.reset()

    async def resume(self, request_id: int) -> None:
        """Lose the connection during a call, and get its answer on a new one."""
        secret = self.secret(request_id)
        arguments = {"steps": 1, "seconds": self.random.uniform(0, 0.2), "text": secret}
        async with self.peer.posted(call(request_id, "slow", arguments, token=request_id)) as exchange:
            cursor = await self.begun(exchange, request_id)
            exchange.reset()
        async with self.peer.listening(cursor) as rest:
            if await rest.head() == 404:
                raise LostServer
            messages = (await rest.answer()).messages
        if not messages and self.soak.shared and self.robbed:
            raise LostServer
        assert self.text_in(final(messages, request_id)) == secret

    async def ask(self, request_id: int) -> None:
        """A server's question reaches the client that caused it, or nobody.

        Alone in its session, for on stdio nothing tells which of several calls a question belongs to.
        """
        secret = self.secret(request_id)
        arguments = {"id": f"q {secret}", "method": QUESTION, "params": {"secret": secret}}
        async with self.peer.posted(call(request_id, "ask", arguments, token=request_id)) as exchange:
            await exchange.head()
            if not exchange.headers["content-type"].startswith("text/event-stream"):
                self.refused(self.text(await exchange.answer(), request_id))
                return
            first = await exchange.message()
            if "method" not in first:
                self.refused(self.text_in(first))
                return
            assert first["params"] == {"secret": secret}
            said = await self.peer.post({"jsonrpc": "2.0", "id": first["id"], "result": {"heard": secret}})
            assert said.status in (202, 404)
            heard = self.text_in(final((await exchange.answer()).messages, request_id))
            assert json.loads(heard) == {"heard": secret}
            self.soak.done["ask"] += 1

    def refused(self, text: str) -> None:
        """What a shared server is told that asks nobody in particular."""
        assert self.soak.shared, text
        assert json.loads(text)["data"]["reason"] == "undeliverable", text
        self.soak.done["ask"] += 1


async def killing(soak: Soak) -> None:
    """Kill the shared server once a round, half-way."""
    await asyncio.sleep((soak.until - asyncio.get_running_loop().time()) / 2)
    serving = [process for process in soak.bridge.servers() if machine.look(process.pid)]
    soak.killed += 1
    soak.unnoticed = True
    for process in serving:
        os.kill(process.pid, signal.SIGKILL)
    soak.done["kill"] += 1
    await noticed(soak)


async def noticed(soak: Soak) -> None:
    """Open sessions until one has a server that answers, as all have that are opened after it."""
    prober = Client(soak, CLIENTS + 1, 0)
    async with asyncio.timeout(LIMIT):
        while soak.unnoticed:
            await prober.open()
            with suppress(LostServer):
                await prober.echo(1)
                soak.unnoticed = False
    await prober.close()


async def played(soak: Soak, round_number: int) -> None:
    loop = asyncio.get_running_loop()
    soak.until = loop.time() + SECONDS / 2
    clients = [Client(soak, number, round_number) for number in range(CLIENTS)]
    async with asyncio.timeout(SECONDS + 3 * LIMIT), asyncio.TaskGroup() as tasks:
        for client in clients:
            tasks.create_task(client.play())
        if soak.shared:
            tasks.create_task(killing(soak))


@dataclass(frozen=True)
class Holding:
    sessions: int
    servers: int
    zombies: int
    descriptors: int
    threads: int

    @classmethod
    async def of(cls, bridge: Bridge) -> Holding:
        ready = json.loads((await ask(bridge.port, "GET", [], path="/readyz")).body)
        return cls(
            ready["sessions"],
            len(bridge.servers()),
            len(machine.zombies_of(bridge.pid)),
            machine.descriptors(bridge.pid),
            machine.threads(bridge.pid),
        )

    def within(self, before: Holding) -> bool:
        """No more than before, but for a connection that is just being closed and threads that are kept."""
        return (
            (self.sessions, self.zombies) == (0, 0)
            and self.servers <= before.servers
            and self.descriptors <= before.descriptors + 1
            and self.threads <= before.threads + 8
        )


async def back_to(before: Holding, bridge: Bridge) -> None:
    now = before
    try:
        async with asyncio.timeout(LIMIT):
            while not (now := await Holding.of(bridge)).within(before):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"before {before}\nnow {now}\n{bridge.servers()}\n{bridge.tail()}") from None


@pytest.mark.case("ID-05", "ID-06", "ID-07", "SS-03", "CP-02", "CP-05", "CP-07", "SE-06", "RT-01")
@pytest.mark.parametrize("model", ["session", "shared"])
async def test_hundred_busy_clients_lose_nothing_mix_nothing_and_leave_nothing(model: str) -> None:
    async with launched(SERVER, "--process", model, "--warm", "4", "--log-level", "warning") as bridge:
        await bridge.until_serving()
        soak = Soak(bridge, model == "shared")
        # What is made once is made now: threads, the shared server.
        await (await connect(bridge.port)).delete()
        await bridge.until_servers(5 if soak.shared else 4)
        before = await Holding.of(bridge)
        memory = [machine.memory(bridge.pid)]
        for round_number in range(2):
            await played(soak, round_number)
            await back_to(before, bridge)
            memory.append(machine.memory(bridge.pid))
        print(f"seed {SEED}, {dict(soak.done)}, MiB {[size // MIB for size in memory]}")
        assert soak.done.keys() >= {
            "echo",
            "slow",
            "big",
            "cancel",
            "leave",
            "resume",
            "ask",
            "reopen",
            "kill",
        }
        assert memory[1] - memory[0] < 192 * MIB
        assert memory[2] - memory[1] < 32 * MIB, f"MiB {[size // MIB for size in memory]}"
        await bridge.stop()
        faults = [
            line for line in bridge.log if "Exception" in line or "Traceback" in line or "failed with" in line
        ]
        assert not faults, bridge.tail()
