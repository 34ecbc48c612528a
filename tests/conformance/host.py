"""The host of the client scenarios: speaks MCP over stdio to a wrapper, as a desktop host does.

The suite starts this as its client command, with the URL of a scenario's test server as the
last argument. It starts the wrapper under test on that URL and does over stdio what the
scenario asks of a client; what reaches the test server is then the wrapper's doing. It says
on stderr what it saw: a line that begins with `host: gave up` or `host: VIOLATION` is a
failure (`outcomes.py`).

Read from the environment: MCP_WRAPPER, the wrapper's command with `{url}` in it; MCP_HOST_ERA,
`legacy` or `modern` for a host of that era only, whatever the scenario's server speaks, or
`auto` for a host of both, which opens in the scenario's era and falls back to the handshake;
and what the suite sets: MCP_CONFORMANCE_SCENARIO, _PROTOCOL_VERSION and _CONTEXT.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Self

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
META = "io.modelcontextprotocol/"
MODERN_ERRORS = frozenset({-32020, -32021, -32022})
UNSUPPORTED_VERSION = -32022
CLIENT_INFO = {"name": "bridge-conformance-host", "version": "1.0.0"}
CAPABILITIES: dict[str, Any] = {"roots": {}, "sampling": {}, "elicitation": {}}
PATIENCE = 12.0
"""Seconds to wait for one answer."""
BUDGET = 25.0
"""Seconds for a whole scenario; the suite allows 30."""

Json = dict[str, Any]


def say(words: str) -> None:
    print(f"host: {words}", file=sys.stderr, flush=True)


class RpcError(Exception):
    def __init__(self, error: Json) -> None:
        super().__init__(f"{error.get('code')}: {error.get('message')}")
        self.code = error.get("code")
        self.data = error.get("data")


class Host:
    """One stdio connection to the wrapper, speaking as an MCP host."""

    def __init__(self, command: list[str], version: str, era: str = "auto") -> None:
        self.command = command
        self.modern = era == "modern" or (era == "auto" and version == MODERN)
        self.may_fall_back = era == "auto"
        self.version = MODERN if self.modern else min(version, LEGACY)
        self.ids = itertools.count(1)
        self.waiting: dict[Any, asyncio.Future[Json]] = {}
        self.before_elicitation: Callable[[], Awaitable[None]] | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self.process: asyncio.subprocess.Process

    # Life of the process

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=1 << 26,
        )
        self.spawn(self.read_stdout())
        self.spawn(self.relay_stderr())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), 3)
        if self.process.returncode is None:
            say("the wrapper did not exit within 3 s of the end of its input")
        for kind in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, kind)
                await asyncio.sleep(0.2)
        for task in self.tasks:
            task.cancel()

    def spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def relay_stderr(self) -> None:
        assert self.process.stderr is not None
        with contextlib.suppress(ValueError):  # an overlong line
            async for line in self.process.stderr:
                print("wrapper:", line.decode(errors="replace").rstrip()[:2000], file=sys.stderr, flush=True)

    async def read_stdout(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if not line.strip():
                continue
            try:
                message = json.loads(line)
            except ValueError:
                say(f"VIOLATION the wrapper wrote something else than JSON: {line[:200]!r}")
                continue
            for one in message if isinstance(message, list) else [message]:
                self.receive(one)
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the wrapper closed its output"))

    # Messages

    def receive(self, message: Json) -> None:
        if "method" in message:
            if "id" in message:
                if self.modern:
                    say(f"VIOLATION request {message['method']} from a modern server")
                self.spawn(self.answer(message))
            else:
                say(f"<- {message['method']}")
            return
        future = self.waiting.pop(message.get("id"), None)
        if future is None:
            say(f"VIOLATION response to an unknown id: {json.dumps(message)[:200]}")
        elif not future.done():
            future.set_result(message)

    async def write(self, message: Json) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        await self.process.stdin.drain()

    async def answer(self, request: Json) -> None:
        """Answer a request that the server sent in the legacy era."""
        method, params = request["method"], request.get("params") or {}
        say(f"<- {method} (request)")
        reply: Json = {"jsonrpc": "2.0", "id": request["id"]}
        if method == "ping":
            reply["result"] = {}
        elif (result := await self.fulfil(method, params)) is not None:
            reply["result"] = result
        else:
            reply["error"] = {"code": -32601, "message": f"Method not found: {method}"}
        await self.write(reply)

    async def fulfil(self, method: str, params: Json) -> Json | None:
        """What the user, the model and the host give to one input request."""
        if method == "elicitation/create":
            if self.before_elicitation is not None:
                hook, self.before_elicitation = self.before_elicitation, None
                await hook()
            form = params.get("requestedSchema") or {}
            content = {key: example(value) for key, value in (form.get("properties") or {}).items()}
            return {"action": "accept", "content": content}
        if method == "sampling/createMessage":
            return {
                "role": "assistant",
                "content": {"type": "text", "text": "A sampled answer"},
                "model": "host-model",
                "stopReason": "endTurn",
            }
        if method == "roots/list":
            return {"roots": [{"uri": "file:///host/root", "name": "Host root"}]}
        return None

    async def raw(self, method: str, params: Json | None) -> Json:
        """Send one request and return its result; raises RpcError."""
        ident = next(self.ids)
        message: Json = {"jsonrpc": "2.0", "id": ident, "method": method}
        if self.modern:
            meta = {
                META + "protocolVersion": self.version,
                META + "clientInfo": CLIENT_INFO,
                META + "clientCapabilities": CAPABILITIES,
            }
            params = {**(params or {}), "_meta": {**meta, **((params or {}).get("_meta") or {})}}
        if params is not None:
            message["params"] = params
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self.waiting[ident] = future
        say(f"-> {method} {(params or {}).get('name', '')}")
        await self.write(message)
        try:
            reply = await asyncio.wait_for(future, PATIENCE)
        except TimeoutError:
            raise TimeoutError(f"no answer to {method} within {PATIENCE:g} s") from None
        finally:
            self.waiting.pop(ident, None)
        if "error" in reply:
            say(f"   error {reply['error'].get('code')}: {reply['error'].get('message')}")
            raise RpcError(reply["error"])
        result: Json = reply["result"]
        return result

    async def request(self, method: str, params: Json | None = None) -> Json:
        """A request with what a good client adds: version retry and multi round-trips."""
        try:
            result = await self.raw(method, params)
        except RpcError as error:
            if not self.modern or error.code != UNSUPPORTED_VERSION or not self.adopt(error.data):
                raise
            result = await self.raw(method, params)
        while self.modern and result.get("resultType") == "input_required":
            retry = dict(params or {})
            responses = {
                key: await self.fulfil(item["method"], item.get("params") or {})
                for key, item in (result.get("inputRequests") or {}).items()
            }
            if responses:
                retry["inputResponses"] = responses
            if "requestState" in result:
                retry["requestState"] = result["requestState"]
            result = await self.raw(method, retry)
        return result

    def adopt(self, data: Any) -> bool:
        supported = (data or {}).get("supported") or []
        if MODERN not in supported:
            return False
        self.version = MODERN
        return True

    async def call(self, name: str, arguments: Json | None = None) -> Json:
        return await self.request("tools/call", {"name": name, "arguments": arguments or {}})

    async def tools(self) -> list[Json]:
        return await self.pages("tools/list", "tools")

    async def pages(self, method: str, key: str) -> list[Json]:
        found: list[Json] = []
        params: Json = {}
        while True:
            page = await self.request(method, params)
            found += page.get(key) or []
            if not page.get("nextCursor"):
                return found
            params = {"cursor": page["nextCursor"]}

    async def open(self) -> Json:
        """Meet the server: discovery in the modern era, the handshake in the legacy one."""
        if self.modern:
            try:
                return await self.request("server/discover")
            except (RpcError, TimeoutError) as error:
                if not self.may_fall_back or (isinstance(error, RpcError) and error.code in MODERN_ERRORS):
                    raise
                say("no modern server behind the wrapper; falling back to initialize")
                self.modern = False
                self.version = LEGACY
        result = await self.request(
            "initialize",
            {"protocolVersion": self.version, "capabilities": CAPABILITIES, "clientInfo": CLIENT_INFO},
        )
        if result.get("protocolVersion", "") > LEGACY:
            say(f"VIOLATION initialize was answered with version {result.get('protocolVersion')}")
        await self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return result


def example(schema: Json) -> Any:
    """A value for one property of a form or of a tool's arguments; its default if it has one."""
    if "default" in schema:
        return schema["default"]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("oneOf"):
        return schema["oneOf"][0].get("const")
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items") or {}
        if items.get("anyOf"):
            return [items["anyOf"][0].get("const")]
        return [example(items)]
    if kind == "object":
        return {}
    return {"boolean": True, "integer": 5, "number": 5, "null": None}.get(str(kind), "test")


def arguments_for(tool: Json) -> Json:
    form = tool.get("inputSchema") or {}
    required = form.get("required") or []
    return {key: example((form.get("properties") or {}).get(key) or {}) for key in required}


# What each scenario asks of a client


async def just_list(host: Host, context: Json) -> None:
    server = await host.open()
    if "tools" in (server.get("capabilities") or {}):
        await host.tools()


async def list_and_call_all(host: Host, context: Json) -> None:
    await host.open()
    for tool in await host.tools():
        await host.call(tool["name"], arguments_for(tool))


async def call_unlisted_errors_allowed(host: Host, context: Json) -> None:
    """Call whatever the wrapper lists: it must have left out the invalid tools."""
    await host.open()
    for tool in await host.tools():
        with contextlib.suppress(RpcError):
            await host.call(tool["name"], arguments_for(tool))


async def every_method(host: Host, context: Json) -> None:
    """Send each kind of request; the scenario looks at the headers and not at the answers."""
    await host.open()
    for tool in await host.tools():
        with contextlib.suppress(RpcError):
            await host.call(tool["name"], arguments_for(tool))
    for resource in await host.pages("resources/list", "resources"):
        with contextlib.suppress(RpcError):
            await host.request("resources/read", {"uri": resource["uri"]})
    for prompt in await host.pages("prompts/list", "prompts"):
        with contextlib.suppress(RpcError):
            await host.request("prompts/get", {"name": prompt["name"]})


async def calls_from_context(host: Host, context: Json) -> None:
    await host.open()
    await host.tools()
    for item in context.get("toolCalls") or []:
        await host.call(item["name"], item.get("arguments"))


async def echo_schema(host: Host, context: Json) -> None:
    await host.open()
    schemas = {tool["name"]: tool.get("inputSchema") for tool in await host.tools()}
    await host.call("json_schema_echo", {"schema": schemas["json_schema_2020_12_tool"]})


async def multi_round_trips(host: Host, context: Json) -> None:
    await host.open()
    await host.tools()

    async def meanwhile() -> None:
        await host.call("test_mrtr_unrelated")

    host.before_elicitation = meanwhile
    await host.call("test_mrtr_echo_state")
    await host.call("test_mrtr_no_state")
    await host.call("test_mrtr_no_result_type")


SCENARIOS: dict[str, Callable[[Host, Json], Awaitable[None]]] = {
    "initialize": just_list,
    "json-schema-ref-no-deref": just_list,
    "request-metadata": just_list,
    "tools_call": list_and_call_all,
    "sse-retry": list_and_call_all,
    "elicitation-sep1034-client-defaults": list_and_call_all,
    "http-standard-headers": every_method,
    "http-custom-headers": calls_from_context,
    "http-invalid-tool-headers": call_unlisted_errors_allowed,
    "json-schema-2020-12-preservation": echo_schema,
    "sep-2322-client-request-state": multi_round_trips,
}


def wrapper(url: str) -> list[str]:
    return [word.replace("{url}", url) for word in shlex.split(os.environ["MCP_WRAPPER"])]


async def main() -> int:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    version = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", LEGACY)
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    era = os.environ.get("MCP_HOST_ERA", "auto")
    async with Host(wrapper(sys.argv[-1]), version, era) as host:
        try:
            async with asyncio.timeout(BUDGET):
                await SCENARIOS[scenario](host, context)
        except (RpcError, TimeoutError, ConnectionError, KeyError) as error:
            say(f"gave up: {type(error).__name__}: {error}")
            return 1
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
