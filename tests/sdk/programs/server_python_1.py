"""The server of the matrix on the Python SDK 1.x, which is of the legacy era.

`server_python_1.py stdio|http|sse`; over HTTP it prints its address. What it offers is in `offer.json`,
and is the same on every SDK: see the other servers of this folder.
"""

import json
import socket
import sys
from collections import defaultdict
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import uvicorn
from mcp import McpError, types
from mcp.server.fastmcp.server import StreamableHTTPASGIApp
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

OFFER = json.loads(Path(__file__).with_name("offer.json").read_text())
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
PATIENCE = 5


class Offering(Server):
    def create_initialization_options(self, *_):
        """The low-level server of this SDK never says by itself that resources can be subscribed to."""
        made = super().create_initialization_options(NotificationOptions(tools_changed=True))
        made.capabilities.resources.subscribe = True
        return made


server = Offering(OFFER["name"], version=OFFER["version"], instructions=OFFER["instructions"])
stopped = defaultdict(anyio.Event)
levels = {}
subscribers = defaultdict(set)


def session():
    return server.request_context.session


def own():
    return server.request_context.request_id


async def elicit(question):
    found = await session().elicit_form(question, OFFER["form"], related_request_id=own())
    return f"{found.action}: {found.content['answer']}"


async def sampled(prompt):
    said = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=prompt))
    found = await session().create_message([said], max_tokens=9, related_request_id=own())
    return found.content.text


async def rooted():
    return str((await session().list_roots()).roots[0].uri)


async def echo(text, region=""):
    return text


async def slow(seconds, steps, name):
    """A note comes before its pause: TypeScript clients 1.x lose one that comes with the answer."""
    meta = server.request_context.meta
    token = meta.progressToken if meta else None
    for step in range(1, steps + 1):
        if token is not None:
            await session().send_progress_notification(token, step, steps, related_request_id=str(own()))
        await anyio.sleep(seconds / steps)
    return "Waited."


async def was_stopped(name):
    with anyio.move_on_after(PATIENCE):
        await stopped[name].wait()
        return "stopped"
    return "still running"


async def log():
    wanted = LEVELS.index(levels.get(session(), "info"))
    for level in ("debug", "info", "warning", "error"):
        if LEVELS.index(level) >= wanted:
            await session().send_log_message(level, f"said at {level}", "matrix", related_request_id=own())
    return "Logged."


async def ask_twice(name=""):
    return f"{await elicit(f'first{name}?')}, {await elicit(f'second{name}?')}"


async def ask_all():
    found = {}

    async def one(name, question):
        found[name] = await question

    async with anyio.create_task_group() as group:
        group.start_soon(one, "user", elicit("all?"))
        group.start_soon(one, "model", sampled("all?"))
        group.start_soon(one, "host", rooted())
    return f"{found['user']}, {found['model']}, {found['host']}"


async def peer():
    declared = session().client_params.capabilities.model_dump(exclude_none=True)
    return " ".join(sorted(name for name in declared if name != "experimental"))


async def touch(uri):
    for one in list(subscribers[uri]):
        await one.send_resource_updated(uri)
    return "Touched."


async def grow():
    await session().send_tool_list_changed()
    return "Grown."


TOOLS = {
    "echo": echo,
    "slow": slow,
    "stopped": was_stopped,
    "log": log,
    "ask": elicit,
    "ask_twice": ask_twice,
    "ask_all": ask_all,
    "sample": sampled,
    "roots": rooted,
    "peer": peer,
    "touch": touch,
    "grow": grow,
}


async def call_tool(request):
    """Registered as it is: the SDK's decorator would make a result of every error."""
    name = request.params.name
    if name not in TOOLS:
        raise McpError(types.ErrorData(code=types.INVALID_PARAMS, message=f"Unknown tool: {name}"))
    arguments = request.params.arguments or {}
    try:
        said = await TOOLS[name](**arguments)
    except anyio.get_cancelled_exc_class():
        stopped[arguments.get("name")].set()
        raise
    return types.ServerResult(types.CallToolResult(content=[types.TextContent(type="text", text=said)]))


async def read_resource(request):
    uri = str(request.params.uri)
    if uri != "matrix://about" and not uri.startswith("matrix://item/"):
        raise McpError(types.ErrorData(code=-32002, message="Resource not found", data={"uri": uri}))
    text = types.TextResourceContents(uri=uri, mimeType="text/plain", text=f"the text of {uri}")
    return types.ServerResult(types.ReadResourceResult(contents=[text]))


server.request_handlers[types.CallToolRequest] = call_tool
server.request_handlers[types.ReadResourceRequest] = read_resource


@server.list_tools()
async def list_tools():
    return [types.Tool(**tool) for tool in OFFER["tools"]]


@server.list_resources()
async def list_resources():
    return [types.Resource(**resource) for resource in OFFER["resources"]]


@server.list_resource_templates()
async def list_templates():
    return [types.ResourceTemplate(**template) for template in OFFER["templates"]]


@server.list_prompts()
async def list_prompts():
    return [types.Prompt(**prompt) for prompt in OFFER["prompts"]]


@server.get_prompt()
async def get_prompt(_name, arguments):
    text = types.TextContent(type="text", text=f"Please greet {arguments['name']}.")
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=text)])


@server.completion()
async def complete(_reference, argument, _context):
    found = [name for name in OFFER["names"] if name.lower().startswith(argument.value.lower())]
    return types.Completion(values=found)


@server.set_logging_level()
async def set_level(level):
    levels[session()] = level


@server.subscribe_resource()
async def subscribe(uri):
    subscribers[str(uri)].add(session())


@server.unsubscribe_resource()
async def unsubscribe(uri):
    subscribers[str(uri)].discard(session())


async def serve(streams):
    await server.run(*streams, server.create_initialization_options())


async def serve_stdio():
    async with stdio_server() as streams:
        await serve(streams)


def http_app():
    manager = StreamableHTTPSessionManager(app=server)

    @asynccontextmanager
    async def life(_app):
        async with manager.run():
            yield

    return Starlette(routes=[Route("/mcp", StreamableHTTPASGIApp(manager))], lifespan=life)


def sse_app():
    transport = SseServerTransport("/messages/")

    async def connect(request):
        async with transport.connect_sse(request.scope, request.receive, request._send) as streams:
            await serve(streams)
        return Response()

    return Starlette(routes=[Route("/sse", connect), Mount("/messages/", transport.handle_post_message)])


def serve_http(app, path):
    """On a free port of the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"listens: http://127.0.0.1:{listening.getsockname()[1]}{path}", file=sys.stderr, flush=True)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listening])


match sys.argv[1]:
    case "stdio":
        anyio.run(serve_stdio)
    case "http":
        serve_http(http_app(), "/mcp")
    case "sse":
        serve_http(sse_app(), "/sse")
