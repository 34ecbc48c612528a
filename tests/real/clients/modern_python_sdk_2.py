"""Python SDK 2.x before the demo server, in the era of 2026-07-28: one conversation as one JSON object.

Run by the interpreter of that SDK's venv: `modern_python_sdk_2.py URL MODE`, MODE being a modern
revision or `auto`, which has to find it. `modern_typescript_sdk_2.mjs` has the same conversation.
"""

import json
import sys
import warnings

import anyio
import mcp_types as types
from mcp import Client
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged

PATIENCE = 30
COUNTER = "demo://counter"
ODD = 'é — 読 🎉 \u2028\u2029\x85 "\\\t\r\n {}[] \x7f \u0000 end'
BIG = "0123456789abcdé読🎉" * 65536  # 1 MiB of characters, more in bytes

# Sampling, roots and logging are deprecated, and still part of the revision.
warnings.simplefilter("ignore")


class Host:
    """What a host application supplies to its client, and what it was told."""

    def __init__(self):
        self.sampled = self.elicited = None
        self.logs = []

    async def sample(self, _context, params):
        self.sampled = params.messages[0].content.text
        content = types.TextContent(type="text", text="the answer of the model")
        return types.CreateMessageResult(role="assistant", content=content, model="none")

    async def elicit(self, _context, params):
        self.elicited = params.message
        return types.ElicitResult(action="accept", content={"answer": "Ada é"})

    async def list_roots(self, _context):
        return types.ListRootsResult(roots=[types.Root(uri="file:///tmp/real", name="the root")])

    async def log(self, params):
        self.logs.append(params.level)


async def paged(ask, name):
    found, cursor = [], None
    while True:
        page = await ask(cursor=cursor)
        found += getattr(page, name)
        cursor = page.next_cursor
        if cursor is None:
            return found


async def text(client, tool, arguments=None, **more):
    result = await client.call_tool(tool, arguments or {}, **more)
    assert not result.is_error, result
    return result.content[0].text


async def reads(client):
    prompt = await client.get_prompt("greet", {"name": "Jürgen"})
    resource = await client.read_resource(COUNTER)
    reference = types.PromptReference(type="ref/prompt", name="greet")
    completion = await client.complete(reference, {"name": "name", "value": "a"})
    templates = await paged(client.list_resource_templates, "resource_templates")
    return {
        "tools": sorted(tool.name for tool in await paged(client.list_tools, "tools")),
        "prompts": [prompt.name for prompt in await paged(client.list_prompts, "prompts")],
        "resources": [str(resource.uri) for resource in await paged(client.list_resources, "resources")],
        "templates": [template.uri_template for template in templates],
        "prompt": prompt.messages[0].content.text,
        "resource": len(resource.contents),
        "completion": completion.completion.values,
    }


async def calls(client):
    notes = []

    async def note(done, total, _message):
        notes.append([done, total])

    return {
        "echo": await text(client, "echo", {"text": ODD}) == ODD,
        "header": await text(client, "echo", {"text": "by header", "region": "Zürich — 読"}),
        "slow": await text(client, "slow", {"seconds": 0.3, "steps": 3}, progress_callback=note),
        "progress": notes,
        "big": await text(client, "echo", {"text": BIG}) == BIG,
        "era": json.loads(await text(client, "info"))["era"],
    }


async def questions(client, host):
    return {
        "elicitation": json.loads(await text(client, "ask", {"question": "a question é"})),
        "elicited": host.elicited,
        "sampling": json.loads(await text(client, "sample", {"prompt": "a prompt é"})),
        "sampled": host.sampled,
        "roots": json.loads(await text(client, "roots")),
    }


async def notifications(client, host):
    await text(client, "log", {"message": "said"})
    changes = []
    async with client.listen(tools_list_changed=True, resource_subscriptions=[COUNTER]) as subscription:
        with anyio.fail_after(PATIENCE):
            await text(client, "touch")
            await text(client, "grow")
            async for event in subscription:
                match event:
                    case ResourceUpdated(uri=uri):
                        changes.append(uri)
                    case ToolsListChanged():
                        changes.append("tools")
                if len(changes) == 2:
                    break
    return {"logs": host.logs, "changes": changes}


async def cancellation(client):
    """Leaving the scope of a call closes its stream, which is the modern cancellation over HTTP."""
    outcome = []
    begun = anyio.Event()

    async def note(_done, _total, _message):
        begun.set()

    async def call():
        outcome.append(await text(client, "slow", {"seconds": 60, "steps": 600}, progress_callback=note))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        with anyio.fail_after(PATIENCE):
            await begun.wait()
        group.cancel_scope.cancel()
    return {"cancelled": not outcome, "after": await text(client, "echo", {"text": "after"})}


async def together(client):
    said = {}

    async def call(seconds):
        said[seconds] = await text(client, "slow", {"seconds": seconds})

    async with anyio.create_task_group() as group:
        group.start_soon(call, 0.3)
        group.start_soon(call, 0.2)
    return {"together": [said[0.3], said[0.2]]}


async def converse(client, host):
    seen = {"protocol": client.protocol_version}
    seen |= await reads(client)
    seen |= await calls(client)
    seen |= await questions(client, host)
    seen |= await notifications(client, host)
    seen |= await cancellation(client)
    return seen | await together(client)


async def main(url, mode):
    host = Host()
    with anyio.fail_after(4 * PATIENCE):
        async with Client(
            url,
            mode=mode,
            log_level="warning",
            sampling_callback=host.sample,
            elicitation_callback=host.elicit,
            list_roots_callback=host.list_roots,
            logging_callback=host.log,
        ) as client:
            seen = await converse(client, host)
    print(json.dumps(seen))


anyio.run(main, sys.argv[1], sys.argv[2])
