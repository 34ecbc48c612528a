"""A stdio server whose every step waits for the client, so that a test can prove order without a clock.

The tool `climb` sends three progress notes and then answers, each only after a call of `next`; so a
client that is not shown a note before the next one is due waits for ever. `announce` tells that the
list of tools changed, a notification that belongs to no request.
"""

import json
import sys
from typing import Any

STEPS = 3
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("climb", "next", "announce")]


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def answer(request: dict[str, Any], text: str) -> None:
    send(id=request["id"], result={"content": [{"type": "text", "text": text}]})


def note(climb: dict[str, Any], step: int) -> None:
    token = climb["params"]["_meta"]["progressToken"]
    params = {"progressToken": token, "progress": step, "total": STEPS}
    send(method="notifications/progress", params=params)


def serve() -> None:
    climb: dict[str, Any] = {}
    step = 0
    for line in sys.stdin:
        request = json.loads(line)
        match request.get("method"), request.get("params", {}).get("name"):
            case "initialize", _:
                info = {"name": "stepwise", "version": "1"}
                version = request["params"]["protocolVersion"]
                capabilities = {"tools": {"listChanged": True}}
                result = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
                send(id=request["id"], result=result)
            case "tools/list", _:
                send(id=request["id"], result={"tools": TOOLS})
            case "tools/call", "climb":
                climb, step = request, 1
                note(climb, step)
            case "tools/call", "next":
                step += 1
                if step <= STEPS:
                    note(climb, step)
                else:
                    answer(climb, "at the top")
                answer(request, f"step {step}")
            case "tools/call", "announce":
                send(method="notifications/tools/list_changed")
                answer(request, "announced")
            case _ if "id" in request:
                send(id=request["id"], error={"code": -32601, "message": "Method not found"})


if __name__ == "__main__":
    serve()
