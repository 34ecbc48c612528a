"""The one conversation of the matrix, step by step: what any client and any server may say to each other.

Each step is one claim about a bridge between them. What is heard is compared with what was said, as
bytes where the server gives back what it got; whatever no step took is named at the end. Order is
held where it is promised: the notes of a call before its answer, on its own stream.

Specification: 2025-11-25, "Lifecycle", "Progress", "Cancellation", "Pagination", `server/`, `client/`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Final

from .servers import Call, Server
from .talk import Heard, Talk

VERSION: Final = "2025-11-25"
ODD: Final = 'é 読 🎉 — \u2028\u2029\x85 "\\\t\r\n {}[] \x7f \u0000 end'
BIG: Final = "0123456789é読🎉" * 65536
"""More than a megabyte on its way, and the same on its way back."""
EXACT: Final = (
    '{"numbers":[1E400,0.10,-0,-0.0,1e5,123456789012345678901234567890,1.0],'
    '"text":"\\u00e9\\/\\ud83d\\ude00 é 読 🎉 \\u2028 \\u0000",  "k\\u00e9y" : { "b" : [ ] ,"a":null } }'
).encode()
"""JSON text in which a parser and a printer would change something at every turn. The three characters
that others take for line ends are not in it as they are: the bridge escapes them (FR-04)."""
ROOTS: Final = [{"uri": "file:///tmp/é", "name": "the root 🎉"}]
ANSWERS: Final = {
    "elicitation/create": {
        "action": "accept",
        "content": {"answer": "é 🎉", "name": "Ada é", "check": True, "integer": 7},
    },
    "sampling/createMessage": {
        "role": "assistant",
        "content": {"type": "text", "text": "the answer 読"},
        "model": "none",
    },
    "roots/list": {"roots": ROOTS},
}


class Conversation:
    """One client's session with one server. `steps` is the order, each under its name."""

    def __init__(self, talk: Talk, server: Server) -> None:
        self._talk, self._server = talk, server
        self._ids = count(100)
        self.questions: list[Heard] = []
        talk.replies = dict.fromkeys(ANSWERS, self._reply)
        self.steps: dict[str, Callable[[], Awaitable[None]]] = {
            "initialize": self.initialize,
            "ping": self.ping,
            "lists": self.lists,
            "reads": self.reads,
            "progress": self.progress,
            "cancel": self.cancel,
            "elicitation": self.elicitation,
            "sampling": self.sampling,
            "roots": self.roots,
            "log level": self.log_level,
            "resource update": self.resource_update,
            "odd ids": self.odd_ids,
            "odd text": self.odd_text,
            "big payload": self.big_payload,
            "unknown method": self.unknown_method,
            "error with data": self.error_with_data,
            "quiet": self.quiet,
        }

    # What every step uses

    def _reply(self, question: Heard) -> bytes:
        self.questions.append(question)
        return b'"result":' + dump(ANSWERS[question.method or ""])

    def _id(self) -> bytes:
        return str(next(self._ids)).encode()

    async def _ask(self, method: str, **params: object) -> Any:
        return json.loads(await self._talk.result(self._id(), method, dump(params)))

    async def _call(self, call: Call) -> Any:
        """A tool's result, which is no failure."""
        result = await self._ask("tools/call", name=call[0], arguments=call[1])
        assert not result.get("isError"), result
        return result

    async def _text(self, call: Call) -> str:
        return "\n".join(part["text"] for part in (await self._call(call))["content"])

    def _asked(self, method: str) -> Any:
        """The params of the one question of this kind."""
        found = [question for question in self.questions if question.method == method]
        assert len(found) == 1
        return found[0].about

    async def _echoes(self, key: bytes, text: str) -> None:
        name, arguments = self._server.echo(text)
        result = json.loads(
            await self._talk.result(key, "tools/call", dump({"name": name, "arguments": arguments}))
        )
        assert result["content"][0]["text"] == self._server.echoed + text

    # The steps

    async def initialize(self) -> None:
        capabilities = {
            "roots": {"listChanged": True},
            "sampling": {},
            "elicitation": {"form": {}, "url": {}},
        }
        client = {"name": "raw é", "version": "1"}
        params = {"protocolVersion": VERSION, "capabilities": capabilities, "clientInfo": client}
        result = json.loads(await self._talk.result(b'"first"', "initialize", dump(params)))
        assert result["protocolVersion"] == VERSION
        assert {"tools", "resources", "prompts", "logging"} <= set(result["capabilities"])
        await self._talk.tell("notifications/initialized")

    async def ping(self) -> None:
        assert await self._ask("ping") == {}

    async def lists(self) -> None:
        pages = await self._paged("tools/list")
        tools = [tool["name"] for page in pages for tool in page["tools"]]
        assert (len(pages), len(tools), len(set(tools))) == (
            self._server.pages, self._server.tools, self._server.tools,
        )  # fmt: skip
        for method, member in (
            ("prompts/list", "prompts"),
            ("resources/list", "resources"),
            ("resources/templates/list", "resourceTemplates"),
        ):
            assert sum(len(page[member]) for page in await self._paged(method)) > 0

    async def _paged(self, method: str) -> list[Any]:
        """All pages of a list, by its cursors."""
        pages = [await self._ask(method)]
        while "nextCursor" in pages[-1]:
            pages.append(await self._ask(method, cursor=pages[-1]["nextCursor"]))
        return pages

    async def reads(self) -> None:
        name, arguments = self._server.prompt
        prompt = await self._ask("prompts/get", name=name, arguments=arguments)
        assert "Zoë 🎉" in prompt["messages"][0]["content"]["text"]
        (content,) = (await self._ask("resources/read", uri=self._server.resource))["contents"]
        assert content["text"]
        name, argument, whole = self._server.completion
        start = {"name": argument, "value": whole[:2]}
        completion = await self._ask(
            "completion/complete", ref={"type": "ref/prompt", "name": name}, argument=start
        )
        assert completion["completion"]["values"] == [whole]

    async def progress(self) -> None:
        """Two calls at once, whose tokens differ by their type alone."""
        name, arguments = self._server.climb(0.3, 3)
        tokens = {self._id(): token for token in (b"1", b'"1"')}
        for key, token in tokens.items():
            await self._talk.ask(key, "tools/call", call_params(name, dump(arguments), token))
        for key, token in tokens.items():
            answer = await self._talk.answer(key)
            notes = [await self._note(token) for _ in range(3)]
            assert [note.said.about["progress"] for note in notes] == [1, 2, 3]
            assert all(note.number < answer.number for note in notes)
            assert {note.stream for note in notes} == {answer.stream}

    async def _note(self, token: bytes) -> Any:
        wanted = json.loads(token)
        return await self._talk.told("notifications/progress", lambda said: token_of(said) == wanted)

    async def cancel(self) -> None:
        """Nothing is heard of a cancelled call but what was under way; the next call is answered."""
        name, arguments = self._server.climb(1.5, 30)
        key = self._id()
        await self._talk.ask(key, "tools/call", call_params(name, dump(arguments), b'"late"'))
        await self._note(b'"late"')
        await self._cancel(key)
        await self._echoes(self._id(), "after")
        if self._server.exact:
            await self._cancel_what_asks()

    async def _cancel(self, key: bytes) -> None:
        await self._talk.tell("notifications/cancelled", b'{"requestId":%b,"reason":"tired"}' % key)

    async def _cancel_what_asks(self) -> None:
        """The server hears of it, for it withdraws the question that it had."""
        reply = self._talk.replies.pop("elicitation/create")
        name, arguments = self._server.elicit
        key = self._id()
        await self._talk.ask(key, "tools/call", call_params(name, dump(arguments)))
        question = (await self._talk.told("elicitation/create")).said
        await self._cancel(key)
        withdrawn = (await self._talk.told("notifications/cancelled")).said
        assert withdrawn.about["requestId"] == json.loads(question.key or b"")
        self._talk.replies["elicitation/create"] = reply

    async def elicitation(self) -> None:
        text = await self._text(self._server.elicit)
        assert self._asked("elicitation/create")["requestedSchema"]["type"] == "object"
        assert "Ada é" in text

    async def sampling(self) -> None:
        text = await self._text(self._server.sample)
        assert "a question é" in self._asked("sampling/createMessage")["messages"][0]["content"]["text"]
        assert "the answer 読" in text

    async def roots(self) -> None:
        text = await self._text(self._server.roots)
        assert "the root 🎉" in text
        assert "file:///tmp/é" in text

    async def log_level(self) -> None:
        """What is below the level that the client set is not heard; the last step holds it."""
        if not self._server.exact:
            await self._ask("logging/setLevel", level="debug")
            await self._ask("resources/subscribe", uri=self._server.resource)
            await self._talk.told("notifications/message", lambda said: "Subscribe" in said.about["data"])
            await self._ask("logging/setLevel", level="error")
            await self._ask("resources/unsubscribe", uri=self._server.resource)
            return
        await self._ask("logging/setLevel", level="alert")
        await self._call(("log", {"message": ODD}))
        for level in ("alert", "emergency"):
            said = (await self._talk.told("notifications/message")).said.about
            assert (said["level"], said["data"]) == (level, ODD)

    async def resource_update(self) -> None:
        await self._ask("resources/subscribe", uri=self._server.resource)
        await self._call(self._server.touch)
        said = (await self._talk.told("notifications/resources/updated")).said
        assert said.about["uri"] == self._server.resource
        await self._ask("resources/unsubscribe", uri=self._server.resource)
        await self._call(self._server.touch)

    async def odd_ids(self) -> None:
        """All in flight at once, and each is answered under its own id."""
        if not self._server.exact:
            await asyncio.gather(*(self._echoes(key, f"for {key!r}") for key in self._server.ids))
            return
        del self._talk.replies["elicitation/create"]
        names = {key: f"for {key!r}" for key in self._server.ids}
        for key, name in names.items():
            await self._talk.ask(key, "tools/call", dump({"name": "ask", "arguments": {"question": name}}))
        asked = [(await self._talk.told("elicitation/create")).said for _ in names]
        for question in reversed(asked):
            message = question.about["message"]
            answer = {"action": "accept", "content": {"answer": message}}
            await self._talk.reply(question, b'"result":' + dump(answer))
        for key, name in names.items():
            found = json.loads(await self._talk.outcome(key))
            assert found["structuredContent"]["content"]["answer"] == name

    async def odd_text(self) -> None:
        await self._echoes(self._id(), ODD)
        if self._server.exact:
            result = await self._talk.result(self._id(), "tools/call", call_params("echo", EXACT))
            assert result.partition(b',"structuredContent":')[2] == EXACT + b"}"

    async def big_payload(self) -> None:
        await self._echoes(self._id(), BIG)

    async def unknown_method(self) -> None:
        assert json.loads(await self._talk.error(self._id(), "nobody/knows"))["code"] == -32601
        await self._talk.tell("notifications/nobody_knows", b'{"x":1E400}')

    async def error_with_data(self) -> None:
        name, arguments = self._server.failing
        error = await self._talk.error(self._id(), "tools/call", call_params(name, dump(arguments)))
        found = json.loads(error)
        assert found["code"] == self._server.fault
        assert found["data"]
        if self._server.exact:
            assert found["message"] == arguments["message"]
            error = await self._talk.error(self._id(), "tools/call", call_params(name, EXACT))
            assert error.partition(b'"data":{"arguments":')[2] == EXACT + b"}}"

    async def quiet(self) -> None:
        """The end: the session ends well, and nothing was heard that no step waited for."""
        await self.ping()
        await self._talk.client.close()
        self._talk.unread = [one for one in self._talk.unread if not self._expected(one.said)]
        assert not self._talk.unread, f"nobody waited for:\n{self._talk.left()}"

    def _expected(self, said: Heard) -> bool:
        """The last notes of the cancelled call, and what the server says by itself."""
        late = said.method == "notifications/progress" and token_of(said) == "late"
        return late or self._server.ambient({"method": said.method, "params": said.about})


def dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def call_params(name: str, arguments: bytes, token: bytes | None = None) -> bytes:
    meta = b"" if token is None else b',"_meta":{"progressToken":%b}' % token
    return b'{"name":%b,"arguments":%b%b}' % (dump(name), arguments, meta)


def token_of(said: Heard) -> object:
    token: object = said.about["progressToken"]
    return token
