"""Many modern clients at one endpoint, each with one call that it is asked twice about, and each with a vice.

They speak plain JSON over HTTP, since no SDK sends the same answer twice, or somebody else's. What is
refused must be refused in one way (`refused`), and must not harm the call that it was about.

Specification: 2026-07-28, "Multi Round-Trip Requests"; `requestState` is what a client could tamper with.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from io import BytesIO
from itertools import count
from typing import Any, Final

from aiohttp import ClientSession
from matrix.clients import messages

REVISION: Final = "2026-07-28"
LATEST: Final = 0.3
"""Seconds that a client takes at most to come back with its answers."""
_META: Final = "io.modelcontextprotocol/"
_IDS: Final = count(1)


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    said: dict[str, Any]

    @property
    def result(self) -> dict[str, Any]:
        assert "result" in self.said, self.said
        found: dict[str, Any] = self.said["result"]
        return found

    @property
    def asks(self) -> bool:
        return bool(self.result["resultType"] == "input_required")

    @property
    def state(self) -> str:
        return str(self.result["requestState"])

    @property
    def text(self) -> str:
        assert self.result["resultType"] == "complete", self.said
        assert not self.result.get("isError"), self.said
        return str(self.result["content"][0]["text"])


@dataclass(frozen=True, slots=True)
class Endpoint:
    http: ClientSession
    url: str

    async def post(self, method: str, params: dict[str, Any], client: str = "crowd") -> Reply:
        meta = {
            _META + "protocolVersion": REVISION,
            _META + "clientInfo": {"name": client, "version": "1"},
            _META + "clientCapabilities": {"elicitation": {}},
        }
        ident = next(_IDS)
        message = {"jsonrpc": "2.0", "id": ident, "method": method, "params": {**params, "_meta": meta}}
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": REVISION,
            "Mcp-Method": method,
            "Mcp-Name": params["name"],
        }
        async with self.http.post(
            self.url, data=BytesIO(json.dumps(message).encode()), headers=headers
        ) as got:
            heard = [json.loads(one) async for one in messages(got)]
        assert heard[-1]["id"] == ident, heard
        return Reply(got.status, heard[-1])

    async def call(self, tool: str, client: str = "crowd", /, **arguments: Any) -> Reply:
        return await self.post("tools/call", {"name": tool, "arguments": arguments}, client)


def refused(reply: Reply) -> None:
    """A state that is not accepted is answered like this, whatever is wrong with it."""
    error = reply.said.get("error", reply.said)
    assert (reply.status, error.get("code")) == (400, -32602), reply
    assert error["data"]["reason"] == "invalid_request_state", reply


@dataclass(slots=True)
class Client:
    """One of them. `tempt` is what it, or somebody else, tries before it answers what it was asked."""

    number: int
    endpoint: Endpoint
    chance: random.Random
    tempt: Callable[[Client, Reply], Awaitable[Reply]]
    doubled: bool = False
    """It sends each answer twice at the same time."""
    gate: asyncio.Barrier | None = None
    """Where all wait for each other when each has been asked the first time."""
    seen: list[str] = field(default_factory=list)
    """The questions that it was asked, in order."""
    states: list[str] = field(default_factory=list)
    """Each that it got, in order."""

    @property
    def request(self) -> dict[str, Any]:
        return {"name": "ask_twice", "arguments": {"name": f" {self.number}"}}

    @property
    def expected(self) -> str:
        return ", ".join(f"accept: answer to {which} {self.number}?" for which in ("first", "second"))

    async def converse(self) -> str:
        reply = await self.send({})
        if self.gate is not None:
            await self.gate.wait()
        while reply.asks:
            await asyncio.sleep(self.chance.uniform(0, LATEST))
            reply = await self.tempt(self, reply)
            if reply.asks:
                reply = await self.answer(reply)
        return reply.text

    async def answer(self, asked: Reply) -> Reply:
        responses = {}
        for key, question in asked.result["inputRequests"].items():
            assert question["method"] == "elicitation/create", question
            self.seen.append(question["params"]["message"])
            content = {"answer": f"answer to {question['params']['message']}"}
            responses[key] = {"action": "accept", "content": content}
        retry = {"inputResponses": responses, "requestState": asked.state}
        if not self.doubled:
            return await self.send(retry)
        replies = await asyncio.gather(self.send(retry), self.send(retry))
        accepted = [reply for reply in replies if "error" not in reply.said]
        assert len(accepted) == 1, replies
        refused(next(reply for reply in replies if reply not in accepted))
        return accepted[0]

    async def send(self, more: dict[str, Any]) -> Reply:
        reply = await self.endpoint.post("tools/call", {**self.request, **more}, f"client {self.number}")
        if "result" in reply.said and reply.asks:
            self.states.append(reply.state)
        return reply


# What can be tried with a state. Each returns the reply that the call can be gone on with.


async def nothing(_client: Client, asked: Reply) -> Reply:
    return asked


async def steal(client: Client, asked: Reply) -> Reply:
    """Others use it: for their own call of the same tool, for another tool, for a prompt."""
    own = {"name": "ask_twice", "arguments": {"name": f" {client.number + 1000}"}}
    tool = {"name": "ask", "arguments": {"question": "mine?"}}
    prompt = {"name": "greet", "arguments": {"name": " mine"}}
    answers = {"requestState": asked.state, "inputResponses": {"in-1": {"action": "accept", "content": {}}}}
    for method, params in (("tools/call", own), ("tools/call", tool), ("prompts/get", prompt)):
        refused(await client.endpoint.post(method, {**params, **answers}, "thief"))
    return asked


async def alter(client: Client, asked: Reply) -> Reply:
    for other in altered(asked.state, client.chance):
        refused(await client.send({"requestState": other}))
    return asked


def altered(state: str, chance: random.Random) -> list[str]:
    at = chance.randrange(len(state))
    other = "A" if state[at] != "A" else "B"
    flipped = state[:at] + other + state[at + 1 :]
    prefix, _, sealed = state.partition(".")
    return [flipped, state[:-4], state + "AAAA", f"{prefix}.", sealed, f"{prefix}.{sealed[::-1]}", "é", ""]


async def hesitate(client: Client, asked: Reply) -> Reply:
    """Come back without an answer: the same is asked again, under a new state, and the old one is used up.

    Over one pipe the call may be over instead: it was another's question that it was asked.
    """
    again = await client.send({"requestState": asked.state})
    if again.asks:
        assert again.state != asked.state
        assert again.result["inputRequests"].items() >= asked.result["inputRequests"].items()
    refused(await client.send({"requestState": asked.state}))
    return again


async def go_back(client: Client, asked: Reply) -> Reply:
    """Use the states of all rounds that are over."""
    for old in client.states[:-1]:
        refused(await client.send({"requestState": old}))
    return asked


VICES: Final = (nothing, steal, alter, hesitate, go_back)
