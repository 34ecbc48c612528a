"""The conversation of the matrix for both generations of the Python SDK, and how a program tells of it.

A client program reads its targets from stdin, as a JSON list, has the conversation with each, and prints
one line for each: what every step saw, or why it failed. A step that fails does not end the conversation,
so that one line names all that is lost. What differs between the SDKs is in `peer`, made for each target
by the program; its methods are those that are used here.
"""

import json
import re
import sys
import time

import anyio

PATIENCE = 15
FAILURES = 3
AT_ONCE = 3
ODD = 'é — 読 🎉 \u2028\u2029\x85 "\\\t\r\n {}[] \x7f \u0000 end'


class Host:
    """What a host application supplies to its client, and what it was told."""

    def __init__(self):
        self.logs, self.updated, self.grown, self.asked = [], [], 0, []
        self.news = anyio.Event()

    def tell(self):
        self.news.set()
        self.news = anyio.Event()

    async def until(self, condition):
        while not condition():
            await self.news.wait()


async def about(peer, _name):
    return peer.about()


async def lists(peer, _name):
    return await peer.lists()


async def reads(peer, name):
    completion = await peer.complete("a")
    return [await peer.prompt("Zoë 🎉"), await peer.read(f"matrix://item/{name}"), completion]


async def echo(peer, _name):
    by_header = await peer.text("echo", {"text": "by header", "region": "Zürich — 読"})
    return [await peer.text("echo", {"text": ODD}) == ODD, by_header]


async def progress(peer, name):
    notes = []

    async def note(done, total, _message):
        notes.append([done, total])

    said = await peer.text("slow", {"seconds": 0.2, "steps": 3, "name": name}, note)
    return [said, notes]


async def log(peer, _name):
    await peer.want_logs("warning")
    await peer.text("log")
    await peer.host.until(lambda: len(peer.host.logs) > 1)
    return peer.host.logs


async def ask(peer, _name):
    return await peer.text("ask", {"question": "who é?"})


async def ask_twice(peer, _name):
    return await peer.text("ask_twice")


async def ask_all(peer, _name):
    return await peer.text("ask_all")


async def sample(peer, _name):
    return await peer.text("sample", {"prompt": "what é?"})


async def roots(peer, _name):
    return await peer.text("roots")


async def declared(peer, _name):
    return await peer.text("peer")


async def changes(peer, name):
    """Of one's own resource: others touch theirs at the same time, and that must not be heard here."""
    uri = f"matrix://item/{name}"
    async with peer.listening(uri):
        await peer.text("touch", {"uri": uri})
        await peer.host.until(lambda: peer.host.updated)
        await peer.text("grow")
        await peer.host.until(lambda: peer.host.grown)
    return sorted(uri.replace(name, "own") for uri in set(peer.host.updated))


async def cancel(peer, name):
    outcome = await peer.cancelled({"seconds": 60, "steps": 600, "name": f"cancelled {name}"})
    heard = await peer.text("stopped", {"name": f"cancelled {name}"})
    return [outcome, heard, await peer.text("echo", {"text": "after"})]


def failure(error):
    """Code and message; servers on the TypeScript SDK 1.x put words of their own before the message."""
    return [error.code, re.sub(r"^(MCP error -?\d+: )+", "", error.message)]


async def unknown_tool(peer, _name):
    return await peer.error_of_call("nothing")


async def missing_resource(peer, _name):
    return await peer.error_of_read("other://nothing")


async def together(peer, name):
    said = {}

    async def call(steps):
        arguments = {"seconds": 0.1, "steps": steps, "name": name}
        said[steps] = [await peer.text("slow", arguments), await peer.text("ask", {"question": str(steps)})]

    async with anyio.create_task_group() as group:
        for steps in (1, 2, 3):
            group.start_soon(call, steps)
    return [said[1], said[2], said[3]]


STEPS = {
    "about": about,
    "lists": lists,
    "reads": reads,
    "echo": echo,
    "progress": progress,
    "log": log,
    "ask": ask,
    "ask twice": ask_twice,
    "ask all": ask_all,
    "sample": sample,
    "roots": roots,
    "declared": declared,
    "changes": changes,
    "cancel": cancel,
    "unknown tool": unknown_tool,
    "missing resource": missing_resource,
    "together": together,
}


def why(error):
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:500]


async def converse(peer, name, seen):
    failures = 0
    for step, act in STEPS.items():
        try:
            with anyio.fail_after(PATIENCE):
                seen[step] = await act(peer, name)
        except Exception as error:
            seen[step] = why(error)
            failures += 1
        if failures == FAILURES:
            return


async def attempt(open_peer, target):
    """`open_peer(target, host)` is a context manager, in which there is a peer that has connected."""
    began, seen = time.monotonic(), {}
    try:
        with anyio.fail_after(4 * PATIENCE):
            async with open_peer(target, Host()) as peer:
                await converse(peer, target["name"], seen)
    except Exception as error:
        seen["connection"] = why(error)
    print(json.dumps({"name": target["name"], "seen": seen, "seconds": time.monotonic() - began}), flush=True)


async def main(open_peer):
    turns = anyio.Semaphore(AT_ONCE)

    async def one(target):
        async with turns:
            await attempt(open_peer, target)

    async with anyio.create_task_group() as group:
        for target in json.load(sys.stdin):
            group.start_soon(one, target)
