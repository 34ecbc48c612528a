"""Python SDK 2.x before server-everything: the conversation of `python_sdk_1.py`, by the new client.

Run by the interpreter of that SDK's venv: `python_sdk_2.py URL MODE`. MODE is how the client finds the
revision: `legacy` opens with initialize, `auto` (the SDK's default) asks `server/discover` first, which
a bridge before a legacy server answers. What 2026-07-28 does not have is left out then.
"""

import json
import sys
import warnings

import anyio
import mcp_types as types
from mcp import Client

MODERN = "2026-07-28"
PATIENCE = 30
DOCUMENT = "demo://resource/static/document/features.md"
ODD = 'é — 読 🎉 \u2028\u2029\x85 "\\\t\r\n {}[] \x7f \u0000 end'
BIG = "0123456789abcdé読🎉" * 65536  # 1 MiB of characters, more in bytes
LONG = "trigger-long-running-operation"

# Ping, log levels and subscriptions are deprecated, which is no news to a legacy conversation.
warnings.simplefilter("ignore")


class Host:
    """What a host application supplies to its client, and what it was told."""

    def __init__(self):
        self.sampled = self.elicited = None
        self.logs, self.updated = [], []
        self.news = anyio.Event()

    async def sample(self, _context, params):
        self.sampled = params.messages[0].content.text
        content = types.TextContent(type="text", text="the answer of the model")
        return types.CreateMessageResult(role="assistant", content=content, model="none")

    async def elicit(self, _context, params):
        self.elicited = params.message
        return types.ElicitResult(action="accept", content={"name": "Ada é", "check": True, "integer": 7})

    async def list_roots(self, _context):
        return types.ListRootsResult(roots=[types.Root(uri="file:///tmp/real", name="the root")])

    async def log(self, params):
        self.logs.append(str(params.data))
        self.tell()

    async def receive(self, message):
        if isinstance(message, types.ResourceUpdatedNotification):
            self.updated.append(str(message.params.uri))
            self.tell()

    def tell(self):
        self.news.set()
        self.news = anyio.Event()

    async def until(self, condition):
        with anyio.fail_after(PATIENCE):
            while not condition():
                await self.news.wait()

    def logged(self, start):
        return any(line.startswith(start) for line in self.logs)


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


async def lists(client):
    return {
        "tools": sorted(tool.name for tool in await paged(client.list_tools, "tools")),
        "prompts": sorted(prompt.name for prompt in await paged(client.list_prompts, "prompts")),
        "resources": len(await paged(client.list_resources, "resources")),
        "templates": sorted(
            template.uri_template
            for template in await paged(client.list_resource_templates, "resource_templates")
        ),
    }


async def reads(client):
    prompt = await client.get_prompt("args-prompt", {"city": "Zürich"})
    resource = await client.read_resource(DOCUMENT)
    reference = types.PromptReference(type="ref/prompt", name="completable-prompt")
    completion = await client.complete(
        reference, {"name": "name", "value": "A"}, {"department": "Engineering"}
    )
    return {
        "prompt": prompt.messages[0].content.text,
        "resource": resource.contents[0].text.startswith("# Everything Server - Features"),
        "completion": completion.completion.values,
    }


async def progress(client):
    notes = []

    async def note(done, total, _message):
        notes.append([done, total])

    said = await text(client, LONG, {"duration": 0.3, "steps": 3}, progress_callback=note)
    return {"long": said, "progress": notes}


async def questions(client, host):
    sampling = await text(client, "trigger-sampling-request", {"prompt": "a question é", "maxTokens": 9})
    elicitation = await client.call_tool("trigger-elicitation-request", {})
    return {
        "sampled": host.sampled,
        "sampling": "the answer of the model" in sampling,
        "elicited": host.elicited,
        "elicitation": elicitation.content[1].text,
        "roots": (await text(client, "get-roots-list")).split("\n\n")[:2],
    }


async def notifications(client, host):
    await client.set_logging_level("debug")
    await client.subscribe_resource(DOCUMENT)
    await host.until(lambda: host.logged("Received Subscribe Resource"))
    await text(client, "toggle-subscriber-updates")
    await host.until(lambda: DOCUMENT in host.updated)
    await text(client, "toggle-subscriber-updates")
    await client.set_logging_level("error")
    await client.unsubscribe_resource(DOCUMENT)
    await client.send_ping()
    return {"updated": sorted(set(host.updated)), "overheard": host.logged("Received Unsubscribe")}


async def cancellation(client):
    """Leaving the scope of a call is how this SDK cancels it."""
    outcome = []
    begun = anyio.Event()

    async def note(_done, _total, _message):
        begun.set()

    async def call():
        outcome.append(await text(client, LONG, {"duration": 60, "steps": 600}, progress_callback=note))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        with anyio.fail_after(PATIENCE):
            await begun.wait()
        group.cancel_scope.cancel()
    after = await text(client, "echo", {"message": "after"})
    return {"cancelled": not outcome, "after": after}


async def together(client):
    said = {}

    async def call(steps):
        said[steps] = await text(client, LONG, {"duration": 0.2, "steps": steps})

    async with anyio.create_task_group() as group:
        group.start_soon(call, 1)
        group.start_soon(call, 2)
    return {"together": [said[1], said[2]]}


async def converse(client, host):
    seen = {"server": client.server_info.name, "protocol": client.protocol_version}
    seen |= await lists(client)
    seen |= await reads(client)
    seen["echo"] = await text(client, "echo", {"message": ODD}) == f"Echo: {ODD}"
    seen |= await progress(client)
    seen |= await questions(client, host)
    if client.protocol_version < MODERN:
        seen |= await notifications(client, host)
        await client.send_ping()
    seen |= await cancellation(client)
    seen["big"] = await text(client, "echo", {"message": BIG}) == f"Echo: {BIG}"
    return seen | await together(client)


async def main(url, mode):
    host = Host()
    with anyio.fail_after(4 * PATIENCE):
        async with Client(
            url,
            mode=mode,
            sampling_callback=host.sample,
            elicitation_callback=host.elicit,
            list_roots_callback=host.list_roots,
            logging_callback=host.log,
            message_handler=host.receive,
        ) as client:
            seen = await converse(client, host)
    print(json.dumps(seen))


anyio.run(main, sys.argv[1], sys.argv[2])
