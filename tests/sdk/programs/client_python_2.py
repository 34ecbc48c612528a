"""The client of the matrix on the Python SDK 2.x, in the modern era; see `python_talk.py`.

It is left to find the era itself, as it does by default (`mode="auto"`): it asks `server/discover`, and
falls back to the handshake if that is not answered. `about` then tells the revision it came to.
"""

import warnings
from contextlib import asynccontextmanager

import anyio
import mcp_types as types
import python_talk
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged

# Sampling, roots and logging are deprecated, and still part of the revision.
warnings.simplefilter("ignore")


class Peer:
    def __init__(self, client, host):
        self.client, self.host = client, host

    def about(self):
        info = self.client.server_info
        return [self.client.protocol_version, info.name, info.version, self.client.instructions]

    async def lists(self):
        templates = await self.client.list_resource_templates()
        return {
            "tools": sorted(tool.name for tool in (await self.client.list_tools()).tools),
            "resources": [str(one.uri) for one in (await self.client.list_resources()).resources],
            "templates": [one.uri_template for one in templates.resource_templates],
            "prompts": [one.name for one in (await self.client.list_prompts()).prompts],
        }

    async def text(self, tool, arguments=None, progress=None):
        result = await self.client.call_tool(tool, arguments or {}, progress_callback=progress)
        assert not result.is_error, result
        return result.content[0].text

    async def prompt(self, name):
        return (await self.client.get_prompt("greet", {"name": name})).messages[0].content.text

    async def read(self, uri):
        return (await self.client.read_resource(uri)).contents[0].text

    async def complete(self, start):
        reference = types.PromptReference(type="ref/prompt", name="greet")
        return (await self.client.complete(reference, {"name": "name", "value": start})).completion.values

    async def want_logs(self, _level):
        """Every request says it: the client was made so."""

    @asynccontextmanager
    async def listening(self, uri):
        async def hear(subscription):
            async for event in subscription:
                match event:
                    case ResourceUpdated(uri=changed):
                        self.host.updated.append(str(changed))
                    case ToolsListChanged():
                        self.host.grown += 1
                self.host.tell()

        async with self.client.listen(tools_list_changed=True, resource_subscriptions=[uri]) as subscription:
            async with anyio.create_task_group() as group:
                group.start_soon(hear, subscription)
                yield
                group.cancel_scope.cancel()

    async def cancelled(self, arguments):
        """Leaving the scope of a call cancels it."""
        outcome = []
        begun = anyio.Event()

        async def note(_done, _total, _message):
            begun.set()

        async def call():
            outcome.append(await self.text("slow", arguments, note))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await begun.wait()
            group.cancel_scope.cancel()
        return outcome or "cancelled"

    async def error_of_call(self, tool):
        try:
            return str(await self.client.call_tool(tool, {}))
        except MCPError as error:
            return python_talk.failure(error.error)

    async def error_of_read(self, uri):
        try:
            return str(await self.client.read_resource(uri))
        except MCPError as error:
            return python_talk.failure(error.error)


def callbacks(host):
    async def sample(_context, params):
        asked = params.messages[0].content.text
        content = types.TextContent(type="text", text=f"a model on {asked}")
        return types.CreateMessageResult(role="assistant", content=content, model="none")

    async def elicit(_context, params):
        return types.ElicitResult(action="accept", content={"answer": f"a user on {params.message}"})

    async def list_roots(_context):
        return types.ListRootsResult(roots=[types.Root(uri="file:///matrix", name="the root")])

    async def log(params):
        host.logs.append(params.level)
        host.tell()

    return {
        "sampling_callback": sample,
        "elicitation_callback": elicit,
        "list_roots_callback": list_roots,
        "logging_callback": log,
    }


def server(target):
    if target["how"] == "http":
        return target["url"]
    command, *args = target["argv"]
    return StdioServerParameters(command=command, args=args, env=target["env"], cwd=target["cwd"])


@asynccontextmanager
async def open_peer(target, host):
    async with Client(server(target), log_level="warning", **callbacks(host)) as client:
        yield Peer(client, host)


anyio.run(python_talk.main, open_peer)
