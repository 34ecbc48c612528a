"""Clients that keep a server busy, and hold each request to its one answer.

A request counts as accepted once the daemon has taken its connection; from then on it must be
answered exactly once: by its own result, or by one error where its server was killed, changed or told
to stop. Anything else ends the test.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter
from dataclasses import dataclass, field

from field.session import Caller, Id, Json, Modern, Session, call, initialize, notification
from support.black_box import Bridge

GONE = {"upstream_lost", "upstream_down", "session_closed", "session_not_found", "draining", "path"}
"""Reasons with which a request may be answered whose server ends."""


@dataclass
class Load:
    """What the clients of one server share. `may_fail` while somebody does something to it."""

    bridge: Bridge
    name: str
    modern: bool = False
    demo: bool = False
    may_fail: bool = False
    over: bool = False
    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """Answers that were errors, by reason."""

    def is_over(self) -> bool:
        return self.over

    async def play(self, clients: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(clients):
                tasks.create_task(_Client(self, number).play())

    async def until_answered(self, more: int) -> None:
        """Wait for so many more answers than there were."""
        wanted = self.answered + more
        async with asyncio.timeout(60):
            while self.answered < wanted:  # noqa: ASYNC110 - any of many clients may be the one
                await asyncio.sleep(0.02)


class _Refused(Exception):
    """The daemon, told to stop, takes no connections any more; or an error was the answer."""


class _Client:
    def __init__(self, load: Load, number: int) -> None:
        self.load, self.number = load, number
        self.serial = 0
        self.random = random.Random(secrets.token_bytes(8))
        self.peer: Caller

    async def play(self) -> None:
        while not self.load.is_over():
            try:
                await self.open()
                for _ in range(self.random.randint(3, 20)):
                    if self.load.is_over():
                        break
                    await asyncio.gather(*(self.turn() for _ in range(self.random.randint(1, 3))))
                await self.close()
            except _Refused:
                await asyncio.sleep(0.05)

    async def open(self) -> None:
        path = f"/servers/{self.load.name}/mcp"
        if self.load.modern:
            self.peer = Modern(self.load.bridge.port, path=path)
            return
        self.peer = session = Session(self.load.bridge.port, path=path)
        answer, headers = await self.asked(initialize())
        if "error" in answer:
            raise _Refused
        session.headers.append(("Mcp-Session-Id", headers["mcp-session-id"]))
        try:
            told = await session.post(notification("notifications/initialized"))
        except OSError:
            self.allowed("refused")
            raise _Refused from None
        if told.status != 202:
            self.allowed("session_not_found")
            raise _Refused

    async def close(self) -> None:
        if isinstance(self.peer, Session):
            try:
                status = (await self.peer.delete()).status
            except OSError:
                self.allowed("refused")
                raise _Refused from None
            if status != 200:
                self.allowed("session_not_found")

    async def turn(self) -> None:
        self.serial += 1
        secret = f"{self.number} {self.serial} {secrets.token_hex(8)}"
        tool, arguments = self.random.choice([self.echo, self.slow])(secret)
        token = f"t{self.serial}"
        answer, _ = await self.asked(call(f"{self.number}-{self.serial}", tool, arguments, token=token))
        if "error" in answer:
            raise _Refused
        said = answer["result"]["content"][0]["text"]
        assert said == secret or (self.load.demo and tool == "slow"), (said, secret)

    def echo(self, secret: str) -> tuple[str, Json]:
        return "echo", {"text": secret}

    def slow(self, secret: str) -> tuple[str, Json]:
        seconds = self.random.uniform(0, 0.2)
        if self.load.demo:
            return "slow", {"seconds": seconds, "steps": 2}
        return "slow", {"text": secret, "seconds": seconds, "steps": 2}

    async def asked(self, message: Json) -> tuple[Json, dict[str, str]]:
        """The one answer to a request, and the headers it came with."""
        try:
            answer = await self.peer.post(message)
        except ConnectionRefusedError:
            self.allowed("refused")
            raise _Refused from None
        found = [one for one in answer.messages if "method" not in one]
        assert len(found) == 1, (self.load.name, message, answer)
        self.hold(found[0], message["id"])
        return found[0], answer.headers

    def hold(self, answer: Json, request_id: Id) -> None:
        assert answer["id"] == request_id, (self.load.name, answer)
        self.load.answered += 1
        if "error" in answer:
            reason = answer["error"].get("data", {}).get("reason", "")
            assert reason in GONE, (self.load.name, answer)
            self.allowed(reason)

    def allowed(self, reason: str) -> None:
        assert self.load.may_fail, f"{self.load.name}, which nobody touched: {reason}"
        self.load.failed[reason] += 1
