#!/usr/bin/env python3
"""Fixture MCP server for transport-bridge conformance runs.

It offers every tool, prompt and resource that the server scenarios of the MCP conformance
suite look for (requirement sets 2025-11-25 and 2026-07-28), over

    --stdio          newline-delimited JSON-RPC on stdin/stdout
    --http PORT      Streamable HTTP at /mcp (0 picks a free port)
    --sse PORT       the legacy HTTP+SSE transport at /sse and /messages/

in one of three eras:

    --era legacy     `initialize` handshake only, up to 2025-11-25
    --era modern     2026-07-28 only; `initialize` is refused with an error
    --era dual       both; the client's opening request (stdio, SSE) or its
                     headers (HTTP) decide

Every interactive tool works in both eras, so that a bridge which translates between eras
can be tried with any of the three. Decides nothing but the command line; the server is in
the folder `fixture`. Needs the `mcp` package, version 2.3, and nothing of ours.
"""

from __future__ import annotations

import argparse
import logging
import sys

import anyio
from fixture.handlers import build
from fixture.serving import ERAS, http_app, serve_http, serve_stdio, sse_app


def main() -> None:
    parser = argparse.ArgumentParser(description="Fixture MCP server for transport-bridge conformance runs")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--stdio", action="store_true", help="serve on stdin/stdout")
    how.add_argument("--http", type=int, metavar="PORT", help="serve Streamable HTTP at /mcp")
    how.add_argument("--sse", type=int, metavar="PORT", help="serve the legacy HTTP+SSE transport at /sse")
    parser.add_argument(
        "--era", choices=ERAS, default="dual", help="protocol era(s) to serve (default: dual)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--log-level", default="CRITICAL", help="Python logging level, on stderr")
    options = parser.parse_args()
    logging.basicConfig(level=options.log_level.upper(), stream=sys.stderr)

    server = build()
    if options.stdio:
        anyio.run(serve_stdio, server, options.era)
    elif options.http is not None:
        serve_http(http_app(server, options.era), options.host, options.http, "/mcp")
    else:
        serve_http(sse_app(server, options.era), options.host, options.sse, "/sse")


if __name__ == "__main__":
    main()
