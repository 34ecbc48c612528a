"""What a server is and whether a client could work with it: `mcp-bridge doctor`.

Decides only how an examination is run, bounded and told. `child` and `remote` examine, by what
`conversation` may ask; `report` tells.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping

import click

from bridge import telemetry
from bridge.config import Command, Log, Remote, Timing
from bridge.doctor import child, remote
from bridge.doctor.budget import Budget
from bridge.doctor.report import Chart, Report, as_json, as_table, report


async def examine(
    upstream: Command | Remote, environ: Mapping[str, str], *, timeout: float, timing: Timing
) -> Report:
    """Look at one server for at most about `timeout` seconds.

    Raises UsageFault for options of a URL that cannot be used; whatever is wrong with the server
    is in the report.
    """
    chart, budget = Chart(target=telemetry.spell_server(upstream)), Budget(timeout)
    if isinstance(upstream, Command):
        await child.examine(upstream, environ, chart, budget)
    else:
        await remote.examine(upstream, timing, chart, budget)
    return report(chart, timeout)


def run(upstream: Command | Remote, *, timeout: float, timing: Timing, json: bool) -> int:
    """Examine and print; 0 if a client could work with the server. Raises UsageFault."""
    stop_logging = telemetry.setup(Log(level="error"))
    try:
        found = asyncio.run(examine(upstream, os.environ, timeout=timeout, timing=timing))
    finally:
        stop_logging()
    terminal = sys.stdout.isatty()
    table = terminal and not json
    color = terminal and not os.environ.get("NO_COLOR")
    click.echo(as_table(found, color=color) if table else as_json(found), color=color)
    if not table and not found.verdict.works:
        click.echo(f"mcp-bridge: {found.verdict.text}", err=True)
    return 0 if found.verdict.works else 1
