"""Python SDK 1.x before any server: handshake, list the tools, make the calls it is given.

Run as `calls.py URL CALLS`, CALLS being a JSON array of [tool, arguments]. Prints one JSON object: the
server's name, its tools, and for each call what it said.
"""

import json
import sys

import anyio
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

PATIENCE = 60


async def call(session, tool, arguments):
    result = await session.call_tool(tool, arguments)
    said = "\n".join(block.text for block in result.content if block.type == "text")
    return {"failed": result.isError, "said": said}


async def main(url, calls):
    with anyio.fail_after(PATIENCE):
        async with (
            streamable_http_client(url) as (read, write, _),
            ClientSession(read, write) as session,
        ):
            greeting = await session.initialize()
            tools = (await session.list_tools()).tools
            seen = {"server": greeting.serverInfo.name, "tools": [tool.name for tool in tools]}
            seen["results"] = [await call(session, tool, arguments) for tool, arguments in calls]
    print(json.dumps(seen))


anyio.run(main, sys.argv[1], json.loads(sys.argv[2]))
