"""Python SDK 1.x before server-everything: one long conversation, told as one JSON object.

Run by the interpreter of that SDK's venv: `python_sdk_1.py URL`. Every client program of this folder
has the same conversation and prints the same object, which `test_everything.py` compares. A step that
does not come about within PATIENCE seconds ends the program with a traceback.
"""

import json
import sys

import anyio
from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client
from pydantic import AnyUrl

PATIENCE = 30
DOCUMENT = "demo://resource/static/document/features.md"
ODD = 'é — 読 🎉 \u2028\u2029\x85 "\\\t\r\n {}[] \x7f \u0000 end'
BIG = "0123456789abcdé読🎉" * 65536  # 1 MiB of characters, more in bytes
LONG = "trigger-long-running-operation"


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
        return types.ListRootsResult(roots=[types.Root(uri=AnyUrl("file:///tmp/real"), name="the root")])

    async def log(self, params):
        self.logs.append(str(params.data))
        self.tell()

    async def receive(self, message):
        if isinstance(message, types.ServerNotification) and isinstance(
            message.root, types.ResourceUpdatedNotification
        ):
            self.updated.append(str(message.root.params.uri))
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
        page = await ask(params=types.PaginatedRequestParams(cursor=cursor) if cursor else None)
        found += getattr(page, name)
        cursor = page.nextCursor
        if cursor is None:
            return found


async def text(session, tool, arguments=None, **more):
    result = await session.call_tool(tool, arguments or {}, **more)
    assert not result.isError, result
    return result.content[0].text


async def lists(session):
    return {
        "tools": sorted(tool.name for tool in await paged(session.list_tools, "tools")),
        "prompts": sorted(prompt.name for prompt in await paged(session.list_prompts, "prompts")),
        "resources": len(await paged(session.list_resources, "resources")),
        "templates": sorted(
            template.uriTemplate
            for template in await paged(session.list_resource_templates, "resourceTemplates")
        ),
    }


async def reads(session):
    prompt = await session.get_prompt("args-prompt", {"city": "Zürich"})
    resource = await session.read_resource(AnyUrl(DOCUMENT))
    reference = types.PromptReference(type="ref/prompt", name="completable-prompt")
    completion = await session.complete(
        reference, {"name": "name", "value": "A"}, {"department": "Engineering"}
    )
    return {
        "prompt": prompt.messages[0].content.text,
        "resource": resource.contents[0].text.startswith("# Everything Server - Features"),
        "completion": completion.completion.values,
    }


async def progress(session):
    notes = []

    async def note(done, total, _message):
        notes.append([done, total])

    said = await text(session, LONG, {"duration": 0.3, "steps": 3}, progress_callback=note)
    return {"long": said, "progress": notes}


async def questions(session, host):
    sampling = await text(session, "trigger-sampling-request", {"prompt": "a question é", "maxTokens": 9})
    elicitation = await session.call_tool("trigger-elicitation-request", {})
    return {
        "sampled": host.sampled,
        "sampling": "the answer of the model" in sampling,
        "elicited": host.elicited,
        "elicitation": elicitation.content[1].text,
        "roots": (await text(session, "get-roots-list")).split("\n\n")[:2],
    }


async def notifications(session, host):
    await session.set_logging_level("debug")
    await session.subscribe_resource(AnyUrl(DOCUMENT))
    await host.until(lambda: host.logged("Received Subscribe Resource"))
    await text(session, "toggle-subscriber-updates")
    await host.until(lambda: DOCUMENT in host.updated)
    await text(session, "toggle-subscriber-updates")
    await session.set_logging_level("error")
    await session.unsubscribe_resource(AnyUrl(DOCUMENT))
    await session.send_ping()
    return {"updated": sorted(set(host.updated)), "overheard": host.logged("Received Unsubscribe")}


async def cancellation(session):
    """The id is the SDK's own business, but without it a call cannot be cancelled."""
    number = session._request_id
    outcome = []
    begun = anyio.Event()

    async def note(_done, _total, _message):
        begun.set()

    async def call():
        outcome.append(await text(session, LONG, {"duration": 60, "steps": 600}, progress_callback=note))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        with anyio.fail_after(PATIENCE):
            await begun.wait()
        params = types.CancelledNotificationParams(requestId=number, reason="enough")
        await session.send_notification(
            types.ClientNotification(
                types.CancelledNotification(method="notifications/cancelled", params=params)
            )
        )
        after = await text(session, "echo", {"message": "after"})
        group.cancel_scope.cancel()
    return {"cancelled": not outcome, "after": after}


async def together(session):
    said = {}

    async def call(steps):
        said[steps] = await text(session, LONG, {"duration": 0.2, "steps": steps})

    async with anyio.create_task_group() as group:
        group.start_soon(call, 1)
        group.start_soon(call, 2)
    return {"together": [said[1], said[2]]}


async def converse(session, host):
    greeting = await session.initialize()
    seen = {"server": greeting.serverInfo.name, "protocol": str(greeting.protocolVersion)}
    seen |= await lists(session)
    seen |= await reads(session)
    seen["echo"] = await text(session, "echo", {"message": ODD}) == f"Echo: {ODD}"
    seen |= await progress(session)
    seen |= await questions(session, host)
    seen |= await notifications(session, host)
    seen |= await cancellation(session)
    await session.send_ping()
    seen["big"] = await text(session, "echo", {"message": BIG}) == f"Echo: {BIG}"
    return seen | await together(session)


async def main(url):
    host = Host()
    with anyio.fail_after(4 * PATIENCE):
        async with (
            streamable_http_client(url) as (read, write, _),
            ClientSession(
                read,
                write,
                sampling_callback=host.sample,
                elicitation_callback=host.elicit,
                list_roots_callback=host.list_roots,
                logging_callback=host.log,
                message_handler=host.receive,
            ) as session,
        ):
            seen = await converse(session, host)
    print(json.dumps(seen))


anyio.run(main, sys.argv[1])
