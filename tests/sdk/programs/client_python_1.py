"""The client of the matrix on the Python SDK 1.x, which is of the legacy era; see `python_talk.py`."""

from contextlib import asynccontextmanager, suppress

import anyio
import python_talk
from mcp import ClientSession, McpError, StdioServerParameters, types
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from pydantic import AnyUrl


class Peer:
    def __init__(self, session, host, greeting):
        self.session, self.host, self.greeting = session, host, greeting

    def about(self):
        info = self.greeting.serverInfo
        return [str(self.greeting.protocolVersion), info.name, info.version, self.greeting.instructions]

    async def lists(self):
        return {
            "tools": sorted(tool.name for tool in (await self.session.list_tools()).tools),
            "resources": [str(one.uri) for one in (await self.session.list_resources()).resources],
            "templates": [
                one.uriTemplate for one in (await self.session.list_resource_templates()).resourceTemplates
            ],
            "prompts": [one.name for one in (await self.session.list_prompts()).prompts],
        }

    async def text(self, tool, arguments=None, progress=None):
        result = await self.session.call_tool(tool, arguments or {}, progress_callback=progress)
        assert not result.isError, result
        return result.content[0].text

    async def prompt(self, name):
        return (await self.session.get_prompt("greet", {"name": name})).messages[0].content.text

    async def read(self, uri):
        return (await self.session.read_resource(AnyUrl(uri))).contents[0].text

    async def complete(self, start):
        reference = types.PromptReference(type="ref/prompt", name="greet")
        return (await self.session.complete(reference, {"name": "name", "value": start})).completion.values

    async def want_logs(self, level):
        await self.session.set_logging_level(level)

    @asynccontextmanager
    async def listening(self, uri):
        await self.session.subscribe_resource(AnyUrl(uri))
        yield
        await self.session.unsubscribe_resource(AnyUrl(uri))

    async def cancelled(self, arguments):
        """By hand: this SDK has no call for it, and the id is its own business.

        Its own server answers a cancelled request all the same, with an error, if nothing is between them.
        """
        number = self.session._request_id
        outcome = []
        begun = anyio.Event()

        async def note(_done, _total, _message):
            begun.set()

        async def call():
            with suppress(McpError):
                outcome.append(await self.text("slow", arguments, note))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await begun.wait()
            params = types.CancelledNotificationParams(requestId=number, reason="enough")
            note = types.CancelledNotification(method="notifications/cancelled", params=params)
            await self.session.send_notification(types.ClientNotification(note))
            await self.text("echo", {"text": "meanwhile"})
            group.cancel_scope.cancel()
        return outcome or "cancelled"

    async def error_of_call(self, tool):
        try:
            return str(await self.session.call_tool(tool, {}))
        except McpError as error:
            return python_talk.failure(error.error)

    async def error_of_read(self, uri):
        try:
            return str(await self.session.read_resource(AnyUrl(uri)))
        except McpError as error:
            return python_talk.failure(error.error)


def callbacks(host):
    async def sample(_context, params):
        asked = params.messages[0].content.text
        content = types.TextContent(type="text", text=f"a model on {asked}")
        return types.CreateMessageResult(role="assistant", content=content, model="none")

    async def elicit(_context, params):
        return types.ElicitResult(action="accept", content={"answer": f"a user on {params.message}"})

    async def list_roots(_context):
        return types.ListRootsResult(roots=[types.Root(uri=AnyUrl("file:///matrix"), name="the root")])

    async def log(params):
        host.logs.append(params.level)
        host.tell()

    async def receive(message):
        match getattr(message, "root", None):
            case types.ResourceUpdatedNotification(params=params):
                host.updated.append(str(params.uri))
            case types.ToolListChangedNotification():
                host.grown += 1
        host.tell()

    return {
        "sampling_callback": sample,
        "elicitation_callback": elicit,
        "list_roots_callback": list_roots,
        "logging_callback": log,
        "message_handler": receive,
    }


def transport(target):
    match target["how"]:
        case "http":
            return streamable_http_client(target["url"])
        case "sse":
            return sse_client(target["url"])
        case "stdio":
            command, *args = target["argv"]
            return stdio_client(
                StdioServerParameters(command=command, args=args, env=target["env"], cwd=target["cwd"])
            )


@asynccontextmanager
async def open_peer(target, host):
    async with (
        transport(target) as (read, write, *_),
        ClientSession(read, write, **callbacks(host)) as session,
    ):
        yield Peer(session, host, await session.initialize())


anyio.run(python_talk.main, open_peer)
