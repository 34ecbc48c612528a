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
    number: int
    stream: str


Reply = Callable[[Heard], bytes]
"""The member of the answer to a question of the server's: `"result":…` or `"error":…`."""


class Talk:
    """One conversation. `client` is set once there is one; `hear` is what it tells."""

    def __init__(self) -> None:
        self.unread: list[Arrival] = []
        self.replies: dict[str, Reply] = {}
        """By method; a question that has no reply here is left to the test."""
        self.client: Client
        self._count = 0
        self._news = asyncio.Event()
        self._answering: set[asyncio.Task[None]] = set()

    def hear(self, raw: bytes, stream: str) -> None:
        said = msgspec.json.decode(raw, type=Heard)
        assert said.jsonrpc == "2.0"
        self._count += 1
        self.unread.append(Arrival(said, self._count, stream))
        if said.asks and (reply := self.replies.get(said.method or "")):
            self._answering.add(asyncio.create_task(self.reply(said, reply(said))))
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
            raise AssertionError(f"never came; unread: {self.unread!r:.2000}") from None
        self.unread.remove(found[0])
        return found[0]

    async def told(self, method: str, wanted: Callable[[Heard], bool] = lambda _: True) -> Arrival:
        """A notification, or a request, of the server's."""
        return await self.until(lambda said: said.method == method and wanted(said))

    async def answer(self, key: bytes) -> Arrival:
        return await self.until(lambda said: said.method is None and said.key == key)

    def taken(self, method: str) -> list[Heard]:
        """All that is there of this method, taken."""
        found = [one for one in self.unread if one.said.method == method]
        self.unread = [one for one in self.unread if one not in found]
        return [one.said for one in found]

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
        said = (await self.answer(key)).said
        assert isinstance(said.result, msgspec.Raw), said
        return bytes(said.result)

    async def error(self, key: bytes, method: str, params: bytes = b"{}") -> bytes:
        """Ask, and take the answer, which is an error."""
        await self.ask(key, method, params)
        said = (await self.answer(key)).said
        assert isinstance(said.error, msgspec.Raw), said
        return bytes(said.error)

    async def answered(self) -> None:
        """Return when all replies are out. Raises what went wrong with one of them."""
        await asyncio.gather(*self._answering)

