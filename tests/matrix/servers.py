"""The two servers of the matrix: what each is asked for the one conversation, and how each is reached.

`mcp-bridge demo-server` speaks stdio only, so that over HTTP a second bridge stands before it;
server-everything serves all three transports by itself. Only what differs between them is here; the
conversation is not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from real.provision import Software

from .programs import COMMANDS, Cell, Program, Side

_LOOPBACK: Final = Path(__file__).with_name("loopback.mjs")
_DEMO: Final = [sys.executable, "-m", "bridge", "demo-server"]
_DOCUMENT: Final = "demo://resource/static/document/features.md"

Call = tuple[str, dict[str, Any]]
"""Name and arguments of a tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One server: the calls that make it do something, and what is then heard of it."""

    name: str
    tools: int
    """How many there are at first."""
    pages: int
    """On how many pages they are listed."""
    prompt: tuple[str, dict[str, str]]
    completion: tuple[str, str, str]
    """Prompt, argument, and what `A` is completed to."""
    resource: str
    climb: Callable[[float, int], Call]
    """Takes so many seconds in so many steps."""
    elicit: Call
    sample: Call
    roots: Call
    echo: Callable[[str], Call]
    echoed: str
    """What stands before the text of an echo."""
    failing: Call
    fault: int
    """The code of the error that `failing` ends in."""
    touch: Call
    """Changes the resource."""
    ids: tuple[bytes, ...]
    ambient: Callable[[dict[str, Any]], bool]
    """Whether the server says such a thing of its own accord."""
    exact: bool
    """Whether what it gives back is what it got, byte for byte, and not what a parser made of it."""


DEMO = Server(
    name="demo-server",
    tools=12,
    pages=2,
    prompt=("greet", {"name": "Zoë 🎉"}),
    completion=("greet", "name", "Ada"),
    resource="demo://counter",
    climb=lambda seconds, steps: ("slow", {"seconds": seconds, "steps": steps}),
    elicit=("ask", {"question": "Who?"}),
    sample=("sample", {"prompt": "a question é"}),
    roots=("roots", {}),
    echo=lambda text: ("echo", {"text": text}),
    echoed="",
    failing=("fail", {"code": -32042, "message": "é failed"}),
    fault=-32042,
    touch=("touch", {}),
    ids=(b"0", b'""', b'"1"', b"1", b"-7", b"9007199254740993", '"é 読 🎉"'.encode()),
    ambient=lambda _: False,
    exact=True,
)

EVERYTHING = Server(
    name="server-everything",
    tools=17,
    pages=1,
    prompt=("args-prompt", {"city": "Zoë 🎉"}),
    completion=("completable-prompt", "department", "Engineering"),
    resource=_DOCUMENT,
    climb=lambda seconds, steps: ("trigger-long-running-operation", {"duration": seconds, "steps": steps}),
    elicit=("trigger-elicitation-request", {}),
    sample=("trigger-sampling-request", {"prompt": "a question é", "maxTokens": 9}),
    roots=("get-roots-list", {}),
    echo=lambda text: ("echo", {"message": text}),
    echoed="Echo: ",
    failing=("trigger-url-elicitation", {"url": "https://example.com/", "errorPath": True}),
    fault=-32042,
    touch=("toggle-subscriber-updates", {}),
    # JavaScript has no 2^53 + 1.
    ids=(b"0", b'""', b'"1"', b"1", b"-7", b"9007199254740991", '"é 読 🎉"'.encode()),
    ambient=lambda said: (
        said.get("method") == "notifications/tools/list_changed" or "Roots updated" in json.dumps(said)
    ),
    exact=False,
)

CASES = [
    pytest.param(DEMO, id=DEMO.name),
    pytest.param(EVERYTHING, id=EVERYTHING.name, marks=pytest.mark.real),
]


@dataclass(frozen=True, slots=True)
class Reached:
    """A bridge before a server; `behind` is what serves it over HTTP, if it does."""

    bridge: Program
    behind: Program | None = None
    ends_with: int = 0
    """The exit status of `behind` after SIGTERM."""
    farewell: str = ""
    """What it prints when its session ends."""


async def reach(
    cell: Cell, downstream: Side, upstream: Side, server: Server, software: Callable[[], Software]
) -> Reached:
    """Start a bridge of this pair before a server, and the server too where the bridge does not."""
    talks = downstream is Side.STDIO
    command = COMMANDS[downstream, upstream]
    if upstream is Side.STDIO:
        child = _DEMO if server is DEMO else _everything(software(), "stdio")
        return Reached(await cell.start([*command, *child], talks=talks))
    if server is DEMO:
        # What was started because it was asked for its era is not to outlive the session for long.
        soon = ["--session-idle-timeout", "2s"]
        behind = await cell.start([*COMMANDS[upstream, Side.STDIO][:-1], *soon, "--", *_DEMO])
        url = await behind.url(upstream)
        return Reached(await cell.start([*command, url], talks=talks), behind)
    mode, farewell = _FAREWELLS[upstream]
    behind = await cell.start(_everything(software(), mode), port="0")
    url = await behind.url(upstream)
    return Reached(await cell.start([*command, url], talks=talks), behind, -15, farewell)


_FAREWELLS: Final = {
    Side.HTTP: ("streamableHttp", "Transport closed for session"),
    Side.SSE: ("sse", "Client Disconnected"),
}


def _everything(software: Software, mode: str) -> list[str]:
    program = software.package("server-everything", "dist", "index.js")
    return [software.node, "--import", str(_LOOPBACK), program, mode]
