"""A bridge of one server in this process, by its configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext

from bridge import app
from bridge.app import Endpoints, Site
from bridge.config import Config, Daemon
from bridge.downstream.listener import Served
from bridge.downstream.stdio import StdioPort
from bridge.gateway import Gateway
from bridge.hosted import Hosted
from bridge.relay import Relay


def site_of(config: Config, relay: Relay) -> tuple[Site, Hosted]:
    """A site before this relay, which somebody else runs; the endpoints are the caller's to close."""

    def make(config: Config) -> Hosted:
        return Hosted(config, nullcontext(), relay, Endpoints(config, relay))

    gateway = Gateway(Daemon.of(config), make)
    site = Site(gateway)
    gateway.prepare()
    return site, gateway.hosted[config.name]


@asynccontextmanager
async def running(config: Config, environ: Mapping[str, str]) -> AsyncIterator[tuple[Relay, Served]]:
    async with app.running(Daemon.of(config), environ) as (gateway, served):
        assert gateway.only is not None
        yield gateway.only.relay, served


@asynccontextmanager
async def wrapping(
    config: Config, environ: Mapping[str, str], reading: int, writing: int
) -> AsyncIterator[StdioPort]:
    async with app.wrapping(Daemon.of(config), environ, reading, writing) as port:
        yield port
