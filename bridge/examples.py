"""What stands below the options in `--help`: examples that can be run as they are, and what is common."""

from __future__ import annotations

STDIO_TO_HTTP = """\b
Examples:
  One server process per session (the default):
    mcp-bridge stdio-to-http --cmd "npx -y @modelcontextprotocol/server-everything"
  One process for all sessions:
    mcp-bridge stdio-to-http --process shared -- uvx mcp-server-time
  With four processes started ahead, for servers that start slowly:
    mcp-bridge stdio-to-http --warm 4 --cmd "npx -y @modelcontextprotocol/server-memory"
  A variable for the server, and a working directory:
    mcp-bridge stdio-to-http --env 'API_KEY=${MY_KEY}' --cwd /srv/data -- ./server --verbose
  For other machines, with a token and TLS:
    mcp-bridge stdio-to-http --host 0.0.0.0 --allowed-host mcp.example.com \\
      --auth-token-file token.txt --tls-cert cert.pem --tls-key key.pem -- ./server
  On a Unix socket:
    mcp-bridge stdio-to-http --uds /run/mcp.sock -- ./server
  For old clients too, which know only HTTP+SSE:
    mcp-bridge stdio-to-http --legacy-sse -- ./server

"""

HTTP_TO_STDIO = """\b
Examples:
  Whatever the server speaks, Streamable HTTP or HTTP+SSE:
    mcp-bridge http-to-stdio https://mcp.example.com/mcp
  With a token from the environment:
    mcp-bridge http-to-stdio --header 'Authorization: Bearer ${TOKEN}' https://mcp.example.com/mcp
  With one from a file, which is read again when the server refuses it:
    mcp-bridge http-to-stdio --header-file 'Authorization: auth.txt' https://mcp.example.com/mcp
  With certificates of an organisation's own:
    mcp-bridge http-to-stdio --ca-file ca.pem --client-cert me.pem https://mcp.internal/mcp
  On a Unix socket:
    mcp-bridge http-to-stdio unix:/run/mcp.sock:/mcp

"""

SSE_TO_STDIO = """\b
Examples:
  A server that speaks HTTP+SSE, known beforehand:
    mcp-bridge sse-to-stdio https://mcp.example.com/sse
  One behind a proxy, that names itself http://0.0.0.0:8000:
    mcp-bridge sse-to-stdio --rewrite-endpoint https://mcp.example.com/sse

"""

SSE_TO_HTTP = """\b
Examples:
  An old server for new clients, at http://127.0.0.1:8080/mcp:
    mcp-bridge sse-to-http https://mcp.example.com/sse
  Its own token for the server, another one for the clients:
    mcp-bridge sse-to-http --header 'X-Api-Key: ${KEY}' --host 0.0.0.0 \\
      --allowed-host mcp.example.com --auth-token-file token.txt http://old.internal:8000/sse

"""

HTTP_TO_HTTP = """\b
Examples:
  A remote server at http://127.0.0.1:8080/mcp, with the credentials in one place:
    mcp-bridge http-to-http --header 'Authorization: Bearer ${TOKEN}' https://mcp.example.com/mcp
  A new server for old clients, at http://127.0.0.1:8080/sse:
    mcp-bridge http-to-http --legacy-sse --transport http https://mcp.example.com/mcp

"""

TOP = """\b
Examples:
  A local server for clients that speak HTTP:
    mcp-bridge stdio-to-http --cmd "npx -y @modelcontextprotocol/server-everything"
  A remote server for a client that starts its servers itself:
    mcp-bridge http-to-stdio --header 'Authorization: Bearer ${TOKEN}' https://mcp.example.com/mcp
  The same, if it speaks HTTP+SSE:
    mcp-bridge sse-to-stdio https://mcp.example.com/sse
  An HTTP+SSE server for clients that speak Streamable HTTP:
    mcp-bridge sse-to-http http://127.0.0.1:8000/sse
  A remote server for clients that speak HTTP, old ones too:
    mcp-bridge http-to-http --legacy-sse https://mcp.example.com/mcp
  What a server is, and what is wrong with it:
    mcp-bridge doctor https://mcp.example.com/mcp
  Many servers at once, as a file says:
    mcp-bridge serve --config mcp-bridge.toml
  What is wrong with such a file:
    mcp-bridge config check mcp-bridge.toml
  Without any other server, to try the bridge:
    mcp-bridge stdio-to-http -- mcp-bridge demo-server

"""

EXIT_STATUS = """\b
Exit status:
  0    stopped as asked, or at the end of its stdin
  1    failed while running
  2    the command line or the configuration is wrong
  3    the address cannot be listened on
  4    the server's program does not exist or cannot be executed
  130  interrupted before it listened
"""

VARIABLES = """\b
Each option is also an environment variable: MCP_BRIDGE_LOG_LEVEL for --log-level, and so on.
The command line goes before it. Repeatable ones hold several values, divided by white space;
MCP_BRIDGE_ENV, MCP_BRIDGE_HEADER and MCP_BRIDGE_HEADER_FILE hold one a line.

"""

DOCTOR = """\b
Examples:
  A server at a URL, Streamable HTTP or HTTP+SSE:
    mcp-bridge doctor https://mcp.example.com/mcp
  One that wants a token:
    mcp-bridge doctor --header 'Authorization: Bearer ${TOKEN}' https://mcp.example.com/mcp
  A program that speaks stdio:
    mcp-bridge doctor -- npx -y @modelcontextprotocol/server-everything
  For a script:
    mcp-bridge doctor --json --timeout 1m --cmd "uvx mcp-server-time"

\b
Exit status:
  0    a client could work with it
  1    none could; the last line says why, and what to do
  2    the command line or the configuration is wrong
"""

REPLAY = """\b
Examples:
  On another version of the server that was recorded:
    mcp-bridge replay traffic.jsonl -- npx -y @modelcontextprotocol/server-everything@next
  On a server at a URL:
    mcp-bridge replay traffic.jsonl --to https://mcp.example.com/mcp

\b
Exit status:
  0    every answer is the same
  1    some are not
  2    the command line or the recording is wrong
"""

SERVE = """\b
Examples:
  As many servers as a file has, each at http://127.0.0.1:8080/servers/NAME/mcp:
    mcp-bridge serve --config mcp-bridge.toml
  The servers of a client's own configuration, one of them at /mcp too:
    mcp-bridge serve --config ~/.cursor/mcp.json --default github
  On another port, with a socket for mcp-bridge status and the like:
    mcp-bridge serve --config mcp-bridge.toml --port 9000 --admin unix:/run/user/1000/mcp.sock

"""
