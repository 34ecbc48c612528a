"""A stdio server that writes noise on its stdout around everything it says.

`noisy.py WHEN HEX` writes the bytes HEX `before` each answer, `after` it, or `glued` to its front;
`once` as its very first output only. Its one tool answers `quiet`, without any noise.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

WHEN, NOISE = sys.argv[1], bytes.fromhex(sys.argv[2])
TOOLS = [{"name": "quiet", "inputSchema": {"type": "object"}}]


def write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def result_of(message: Any) -> object:
    match message["method"]:
        case "initialize":
            info = {"name": "noisy", "version": "1"}
            version = message["params"]["protocolVersion"]
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": TOOLS}
        case _:
            return {"content": [{"type": "text", "text": "quiet"}]}


def surrounded(line: bytes, quiet: bool) -> bytes:
    before = NOISE if WHEN in ("before", "glued") and not quiet else b""
    after = NOISE if WHEN == "after" and not quiet else b""
    return before + line + after


if __name__ == "__main__":
    if WHEN == "once":
        write(NOISE)
    for text in sys.stdin.buffer:
        message = json.loads(text)
        if "id" in message and "method" in message:
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": result_of(message)}
            write(surrounded(json.dumps(answer).encode() + b"\n", message["method"] == "tools/call"))
