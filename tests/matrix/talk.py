"""A client's side of JSON-RPC over any carrier: what was heard, what is still waited for, what was asked.

Everything that arrives is kept as bytes until the test takes it, so that at the end whatever was not
taken can be named: a second answer, a note of somebody else's call, an answer to a cancelled one. Ids
are compared as JSON text: 1 is not "1", and no number is rounded on the way.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec

from .clients import LIMIT, Client


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the server; its members are the bytes that arrived."""

    jsonrpc: str
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw(b"{}")
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    @property
    def key(self) -> bytes | None:
        return None if isinstance(self.id, msgspec.UnsetType) else bytes(self.id)

    @property
    def about(self) -> Any:
        """Its params, decoded."""
        return json.loads(bytes(self.params))

    @property
    def asks(self) -> bool:
        return self.method is not None and self.key is not None


class Arrival(msgspec.Struct, frozen=True):
    """A message, which one it was of all that arrived, and on which stream."""

    said: Heard
    raw: bytes
    number: int
    stream: str

    def __str__(self) -> str:
        return f"{self.stream} #{self.number}: {self.raw[:300]!r}"


Reply = Callable[[Heard], bytes]
"""The member of the answer to a question of the server's: `"result":…` or `"error":…`."""


class Talk:
    """One conversation. `client` is set once there is one; `hear` is what it tells.

    Answers that need no test to say them are sent by tasks of the group.
    """

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self.unread: list[Arrival] = []
        self.replies: dict[str, Reply] = {}
        """By method; a question that has no reply here is left to the test."""
        self.client: Client
        self._count = 0
        self._news = asyncio.Event()

    def hear(self, raw: bytes, stream: str) -> None:
        said = msgspec.json.decode(raw, type=Heard)
        assert said.jsonrpc == "2.0"
        self._count += 1
        reply = self.replies.get(said.method or "") if said.asks else None
        if reply is None:
            self.unread.append(Arrival(said, raw, self._count, stream))
        else:
            self._tasks.create_task(self.reply(said, reply(said)))
        self._news.set()

    # What the server says

    async def until(self, wanted: Callable[[Heard], bool]) -> Arrival:
        """The first message that is `wanted`, which is taken then. Raises AssertionError if none comes."""
        try:
            async with asyncio.timeout(LIMIT):
                while not (found := [one for one in self.unread if wanted(one.said)]):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"never came; unread:\n{self.left()}") from None
        self.unread.remove(found[0])
        return found[0]

    async def told(self, method: str, wanted: Callable[[Heard], bool] = lambda _: True) -> Arrival:
        """A notification, or a request, of the server's."""
        return await self.until(lambda said: said.method == method and wanted(said))

    async def answer(self, key: bytes) -> Arrival:
        return await self.until(lambda said: said.method is None and said.key == key)

    def left(self) -> str:
        return "\n".join(map(str, self.unread))

    # What the client says

    async def ask(self, key: bytes, method: str, params: bytes = b"{}") -> None:
        await self.client.send(
            b'{"jsonrpc":"2.0","id":%b,"method":"%b","params":%b}' % (key, method.encode(), params)
        )

    async def tell(self, method: str, params: bytes = b"{}") -> None:
        await self.client.send(b'{"jsonrpc":"2.0","method":"%b","params":%b}' % (method.encode(), params))

    async def reply(self, question: Heard, outcome: bytes) -> None:
        assert question.key is not None
        await self.client.send(b'{"jsonrpc":"2.0","id":%b,%b}' % (question.key, outcome))

    async def result(self, key: bytes, method: str, params: bytes = b"{}") -> bytes:
        """Ask, and take the answer, which is no error."""
        await self.ask(key, method, params)
        return await self.outcome(key)

    async def outcome(self, key: bytes) -> bytes:
        """The result of what was asked under this id."""
        said = (await self.answer(key)).said
        assert isinstance(said.result, msgspec.Raw), said
        return bytes(said.result)

    async def error(self, key: bytes, method: str, params: bytes = b"{}") -> bytes:
        """Ask, and take the answer, which is an error."""
        await self.ask(key, method, params)
        said = (await self.answer(key)).said
        assert isinstance(said.error, msgspec.Raw), said
        return bytes(said.error)
