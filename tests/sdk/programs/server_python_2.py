"""The server of the matrix on the Python SDK 2.x, which serves the modern era and nothing else here.

`server_python_2.py stdio|http`; over HTTP it prints its address. What it offers is in `offer.json`, and
is the same on every SDK. The SDK itself serves both eras on one endpoint and has no switch for that, so
that this program turns the handshake away before the SDK sees it: only then has a bridge before it to
translate for old clients.
"""

import json
import socket
import sys
import warnings
from collections import defaultdict
from pathlib import Path

import anyio
import mcp_types as types
import uvicorn
from mcp.server.lowlevel.server import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import JSONRPCError, JSONRPCRequest
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

# Sampling, roots and logging are deprecated, and still part of the revision.
warnings.simplefilter("ignore")

OFFER = json.loads(Path(__file__).with_name("offer.json").read_text())
PATIENCE = 5

bus = InMemorySubscriptionBus()
stopped = defaultdict(anyio.Event)


class Unanswered(Exception):
    """Unwinds a tool that has to ask first; it runs from its start again when the answers are there."""

    def __init__(self, requests):
        super().__init__("input required")
        self.requests = requests


class Call:
    """One round of a call, with the answers of this round and of those before."""

    def __init__(self, ctx, params):
        self.ctx = ctx
        self.answers = json.loads(params.request_state) if params.request_state else {}
        for key, answer in (params.input_responses or {}).items():
            self.answers[key] = answer.model_dump(mode="json", by_alias=True, exclude_none=True)

    def asked(self, **requests):
        lacking = {key: request for key, request in requests.items() if key not in self.answers}
        if lacking:
            raise Unanswered(lacking)
        return [told(self.answers[key]) for key in requests]


def told(answer):
    """What an answer of any kind says, in a few words."""
    if "action" in answer:
        return f"{answer['action']}: {answer['content']['answer']}"
    return answer["roots"][0]["uri"] if "roots" in answer else answer["content"]["text"]


def elicitation(question):
    params = types.ElicitRequestFormParams(message=question, requested_schema=OFFER["form"])
    return types.ElicitRequest(params=params)


def sampling(prompt):
    said = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=prompt))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[said], max_tokens=9))


def listing():
    return types.ListRootsRequest(params=types.RequestParams())


async def echo(_call, text, region=""):
    return text


async def slow(call, seconds, steps, name):
    """A note comes before its pause: TypeScript clients 1.x lose one that comes with the answer."""
    for step in range(1, steps + 1):
        await call.ctx.session.report_progress(step, steps)
        await anyio.sleep(seconds / steps)
    return "Waited."


async def was_stopped(_call, name):
    with anyio.move_on_after(PATIENCE):
        await stopped[name].wait()
        return "stopped"
    return "still running"


async def log(call):
    for level in ("debug", "info", "warning", "error"):
        own = call.ctx.request_id
        await call.ctx.session.send_log_message(level, f"said at {level}", "matrix", related_request_id=own)
    return "Logged."


async def ask(call, question):
    return call.asked(user=elicitation(question))[0]


async def ask_twice(call, name=""):
    first = call.asked(first=elicitation(f"first{name}?"))
    return ", ".join(first + call.asked(second=elicitation(f"second{name}?")))


async def ask_all(call):
    return ", ".join(call.asked(user=elicitation("all?"), model=sampling("all?"), host=listing()))


async def sample(call, prompt):
    return call.asked(model=sampling(prompt))[0]


async def roots(call):
    return call.asked(host=listing())[0]


async def peer(call):
    declared = call.ctx.session.client_capabilities.model_dump(exclude_none=True)
    return " ".join(sorted(name for name in declared if name not in ("experimental", "extensions")))


async def touch(_call, uri):
    await bus.publish(ResourceUpdated(uri))
    return "Touched."


async def grow(_call):
    await bus.publish(ToolsListChanged())
    return "Grown."


TOOLS = {
    "echo": echo,
    "slow": slow,
    "stopped": was_stopped,
    "log": log,
    "ask": ask,
    "ask_twice": ask_twice,
    "ask_all": ask_all,
    "sample": sample,
    "roots": roots,
    "peer": peer,
    "touch": touch,
    "grow": grow,
}
SCHEMAS = {tool["name"]: tool["inputSchema"] for tool in OFFER["tools"]}


async def call_tool(ctx, params):
    if params.name not in TOOLS:
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
    call, arguments = Call(ctx, params), params.arguments or {}
    try:
        said = await TOOLS[params.name](call, **arguments)
    except Unanswered as lack:
        return types.InputRequiredResult(
            input_requests=lack.requests, request_state=json.dumps(call.answers) if call.answers else None
        )
    except anyio.get_cancelled_exc_class():
        stopped[arguments.get("name")].set()
        raise
    return types.CallToolResult(content=[types.TextContent(type="text", text=said)])


async def read_resource(_ctx, params):
    uri = str(params.uri)
    if uri != "matrix://about" and not uri.startswith("matrix://item/"):
        raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": uri})
    text = types.TextResourceContents(uri=uri, mime_type="text/plain", text=f"the text of {uri}")
    return types.ReadResourceResult(contents=[text])


async def list_tools(_ctx, _params):
    return types.ListToolsResult(tools=[types.Tool.model_validate(tool) for tool in OFFER["tools"]])


async def list_resources(_ctx, _params):
    return types.ListResourcesResult(
        resources=[types.Resource.model_validate(resource) for resource in OFFER["resources"]]
    )


async def list_templates(_ctx, _params):
    found = [types.ResourceTemplate.model_validate(template) for template in OFFER["templates"]]
    return types.ListResourceTemplatesResult(resource_templates=found)


async def list_prompts(_ctx, _params):
    return types.ListPromptsResult(
        prompts=[types.Prompt.model_validate(prompt) for prompt in OFFER["prompts"]]
    )


async def get_prompt(_ctx, params):
    text = types.TextContent(type="text", text=f"Please greet {params.arguments['name']}.")
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=text)])


async def complete(_ctx, params):
    start = params.argument.value.lower()
    found = [name for name in OFFER["names"] if name.lower().startswith(start)]
    return types.CompleteResult(completion=types.Completion(values=found))


async def set_level(_ctx, _params):
    """Never called in this era; that there is a handler makes the SDK advertise logging."""
    return types.EmptyResult()


server = Server(
    OFFER["name"],
    version=OFFER["version"],
    instructions=OFFER["instructions"],
    get_tool_input_schema=SCHEMAS.get,
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_list_resources=list_resources,
    on_list_resource_templates=list_templates,
    on_read_resource=read_resource,
    on_subscriptions_listen=ListenHandler(bus),
    on_list_prompts=list_prompts,
    on_get_prompt=get_prompt,
    on_completion=complete,
    on_set_logging_level=set_level,
)
server.middleware.append(
    RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=OFFER["name"])
)


def refusal(requested):
    message = "This server has no handshake"
    data = {"supported": list(MODERN_PROTOCOL_VERSIONS), "requested": requested}
    return {"code": types.UNSUPPORTED_PROTOCOL_VERSION, "message": message, "data": data}


def is_modern(request):
    return types.PROTOCOL_VERSION_META_KEY in ((request.params or {}).get("_meta") or {})


async def serve_stdio():
    async with stdio_server() as (lines, written):
        onward, filtered = anyio.create_memory_object_stream(0)

        async def turn_the_handshake_away():
            async with onward:
                async for item in lines:
                    request = getattr(item, "message", None)
                    if isinstance(request, JSONRPCRequest) and not is_modern(request):
                        error = types.ErrorData(
                            **refusal(str((request.params or {}).get("protocolVersion", "")))
                        )
                        answer = JSONRPCError(jsonrpc="2.0", id=request.id, error=error)
                        await written.send(SessionMessage(answer))
                    else:
                        await onward.send(item)

        async with anyio.create_task_group() as group:
            group.start_soon(turn_the_handshake_away)
            await server.run(filtered, written, server.create_initialization_options())
            group.cancel_scope.cancel()


def http_app():
    app = server.streamable_http_app()

    async def modern_only(scope, receive, send):
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        request = Request(scope, receive)
        version = request.headers.get("mcp-protocol-version", "")
        if version in MODERN_PROTOCOL_VERSIONS:
            await app(scope, receive, send)
        elif request.method != "POST":
            await Response(status_code=405, headers={"Allow": "POST"})(scope, receive, send)
        else:
            message = await request.json()
            answer = {"jsonrpc": "2.0", "id": message.get("id"), "error": refusal(version)}
            await JSONResponse(answer, status_code=400)(scope, receive, send)

    return modern_only


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
