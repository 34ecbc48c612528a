"""`python -m bridge` and the `mcp-bridge` command."""

from bridge.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
