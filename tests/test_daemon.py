"""The process: what a signal does to it, with nothing in flight and with a call that runs."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from field.raw import BOTH
from support import black_box
from support.scripted_bridge import UNHURRIED, initialize
from support.scripted_server import LIMIT, Json, dump

from bridge import daemon, telemetry
from bridge.app import running
from bridge.config import Command, Config, Listen, Log
from bridge.errors import ListenFault

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
HOLDS = """
import json, sys
held = None
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "tools/call":
        held = message["id"]
        continue
    if message.get("method") == "notifications/release":
        message["id"] = held
    if "id" in message:
        result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "holds"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
ARGV = (sys.executable, "-I", "-S", "-c", HOLDS)
CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "hold"}}
RELEASE = {"jsonrpc": "2.0", "method": "notifications/release"}


class Client:
    """One kept connection, used from a thread of its own."""

    def __init__(self, url: str) -> None:
        address = url.split("/")[2]
        self._connection = http.client.HTTPConnection(address, timeout=LIMIT)
        self._connection.connect()
        self.headers = {"Content-Type": "application/json", "Accept": BOTH}

    def starts(self, message: Json) -> None:
        self._connection.request("POST", "/mcp", dump(message), self.headers)

    def ends(self) -> tuple[int, Any]:
        with self._connection.getresponse() as response:
            body = response.read()
            self.headers.setdefault("Mcp-Session-Id", response.headers.get("Mcp-Session-Id", ""))
            return response.status, json.loads(body) if body else None

    def asks(self, message: Json) -> tuple[int, Any]:
        self.starts(message)
        return self.ends()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> queue.SimpleQueue[str]:
    """Where the bridge listens, as soon as it does."""
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    monkeypatch.setattr(telemetry, "announce", lambda *_, url, **__: told.put(url))
    return told


Url = queue.SimpleQueue[str]


def served(url: Url, script: Callable[[str], None], *, drain: float = LIMIT) -> int:
    """Serve in this thread while `script` is the client in another; the exit status."""
    config = Config(
        upstream=Command(argv=ARGV),
        listen=Listen(port=0),
        timing=replace(UNHURRIED, drain=drain),
        log=Log(level="error"),
        warm=0,
    )
    faults: list[BaseException] = []

    def act() -> None:
        try:
            script(url.get(timeout=LIMIT))
        except BaseException as fault:
            faults.append(fault)
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        return daemon.run(config)
    finally:
        thread.join(LIMIT)
        if faults:
            raise faults[0]


def opened(url: str) -> tuple[Client, Client]:
    """Two connections of one session, one for a call that takes its time."""
    one, other = Client(url), Client(url)
    status, answer = one.asks({"jsonrpc": "2.0", **initialize()})
    assert status == 200, answer
    other.headers = one.headers
    return one, other


@pytest.mark.case("CP-03")
@pytest.mark.parametrize("number", SIGNALS)
def test_signal_ends_an_idle_bridge_with_status_0(url: Url, number: signal.Signals) -> None:
    assert served(url, lambda _: os.kill(os.getpid(), number)) == 0
    assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)


@pytest.mark.case("CP-03", "CP-07")
def test_signal_lets_a_call_that_runs_finish_and_refuses_what_is_new(url: Url) -> None:
    def script(at: str) -> None:
        calling, other = opened(at)
        calling.starts(CALL)
        other.asks({"jsonrpc": "2.0", "id": 2, "method": "ping"})  # the call has come before it
        os.kill(os.getpid(), signal.SIGTERM)
        while (refused := other.asks({"jsonrpc": "2.0", "id": 3, "method": "ping"}))[0] == 200:
            pass
        assert refused[0] == 503
        with pytest.raises(OSError):
            Client(at)
        assert other.asks(RELEASE) == (202, None)
        status, answer = calling.ends()
        assert (status, answer["result"]["serverInfo"]) == (200, {"name": "holds"})
        for client in (calling, other):
            client.close()

    assert served(url, script) == 0


@pytest.mark.case("CP-03")
def test_call_that_outlasts_the_drain_is_answered_with_an_error(url: Url) -> None:
    def script(at: str) -> None:
        calling, other = opened(at)
        calling.starts(CALL)
        other.asks({"jsonrpc": "2.0", "id": 2, "method": "ping"})
        os.kill(os.getpid(), signal.SIGTERM)
        status, answer = calling.ends()
        assert (status, answer["id"]) == (200, 1)
        assert answer["error"]["data"] == {"origin": "bridge", "reason": "session_closed"}
        for client in (calling, other):
            client.close()

    assert served(url, script, drain=0.1) == 0


def test_address_that_cannot_be_had_is_a_fault_at_once(url: Url) -> None:
    def script(at: str) -> None:
        taken = Listen(port=int(at.split("/")[2].rpartition(":")[2]))
        config = Config(upstream=Command(argv=ARGV), listen=taken, warm=0)
        with pytest.raises(ListenFault):
            asyncio.run(_listen(config))
        os.kill(os.getpid(), signal.SIGTERM)

    assert served(url, script) == 0


async def _listen(config: Config) -> None:
    async with running(config, os.environ):
        raise AssertionError("it runs")


@pytest.mark.case("CP-03")
async def test_second_signal_ends_it_at_once_and_leaves_nothing() -> None:
    async with black_box.launched(ARGV, "--warm", "0") as bridge:
        await bridge.until(lambda: bridge.url)
        calling, other = await asyncio.to_thread(opened, bridge.url)
        calling.starts(CALL)
        await asyncio.to_thread(other.asks, {"jsonrpc": "2.0", "id": 2, "method": "ping"})
        bridge.process.send_signal(signal.SIGTERM)
        await bridge.until_said("stopping")
        bridge.process.send_signal(signal.SIGTERM)
        assert await bridge.status() == 128 + signal.SIGTERM
        await bridge.expect_nothing_left()
        for client in (calling, other):
            client.close()
