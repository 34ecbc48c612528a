"""mcp-bridge: any MCP client to any MCP server, whatever transport and revision each speaks."""

__version__ = "0.1.0"
