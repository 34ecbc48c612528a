"""`mcp-bridge serve` as a process before many servers, and the file that says which.

It knows the command line and the shape of the file, and nothing of the bridge's inside.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from field.raw import ask
from support.black_box import MARK, ROOT, Bridge

CHILD = Path(__file__).parents[1] / "field" / "children" / "obeys_calls.py"
OBEYS = [sys.executable, "-I", "-S", str(CHILD)]
DEMO = [sys.executable, "-m", "bridge", "demo-server"]

Table = dict[str, Any]


def spelled(value: object) -> str:
    """A value as TOML; a table is an inline one."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {spelled(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(spelled, value)) + "]"
    return json.dumps(str(value) if isinstance(value, Path) else value)


@dataclass
class File:
    """The configuration: tables of the daemon, and its servers by name."""

    path: Path
    servers: dict[str, Table]
    tables: dict[str, Table] = field(default_factory=dict)
    top: Table = field(default_factory=dict)

    def write(self, mark: str) -> None:
        """Every command's children carry the mark."""
        lines = [f"{key} = {spelled(value)}" for key, value in self.top.items()]
        for name, table in {"listen": {"port": 0}, **self.tables}.items():
            lines += ["", f"[{name}]", *(f"{key} = {spelled(value)}" for key, value in table.items())]
        for name, table in self.servers.items():
            marked = {**table, "env": {**table.get("env", {}), MARK: mark}} if "command" in table else table
            lines += ["", f"[servers.{name}]", *(f"{key} = {spelled(one)}" for key, one in marked.items())]
        # As an editor saves it: never half of it to be seen.
        fresh = self.path.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self.path)


@dataclass(slots=True, kw_only=True)
class Served(Bridge):
    """A daemon with many servers."""

    file: File

    def path(self, name: str) -> str:
        return f"/servers/{name}/mcp"

    async def readiness(self) -> tuple[int, Any]:
        answer = await ask(self.port, "GET", [], path="/readyz")
        return answer.status, json.loads(answer.body)

    async def reload(self, words: str = "reload") -> None:
        """Write the file, tell the daemon, and wait until it says `words` of it."""
        self.file.write(self.mark)
        before = len(self.log)
        self.process.send_signal(signal.SIGHUP)
        await self.until(lambda: any(words in line for line in self.log[before:]))


@asynccontextmanager
async def serving(file: File, *options: str, env: Mapping[str, str] | None = None) -> AsyncIterator[Served]:
    """A daemon that listens; on leaving, it and its kin are gone."""
    mark = uuid.uuid4().hex
    file.write(mark)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bridge", "serve", "--config", str(file.path)),
        *options,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
        limit=1 << 24,
    )
    bridge = Served(process=process, mark=mark, file=file)
    bridge.reading = asyncio.create_task(bridge.read())
    try:
        await bridge.until_serving()
        yield bridge
    finally:
        bridge.kill()
        await process.wait()
        await bridge.reading
