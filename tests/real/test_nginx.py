"""nginx with its default proxy settings before and behind the bridge: nothing is held back on the way.

By default nginx buffers what it proxies, speaks HTTP/1.0 to the server behind it, and cuts a stream on
which nothing came for a minute. The proof is causal: the server behind (`stepwise_server.py`) takes each
step only when the client, having seen the one before, asks for it; a proxy that holds a note back ends
in a time limit. That a stream was cut is read from what nginx logs.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from matrix.programs import COMMANDS, Side, cell, talking
from matrix.talk import Heard, Talk
from support.machine import eventually

from . import processes
from .provision import CACHE, locked, run
from .running import run_bridge

pytestmark = pytest.mark.real
LIMIT = 20
SERVER = [sys.executable, str(Path(__file__).with_name("stepwise_server.py"))]
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
CONFIG = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
{user}
events {{}}
http {{
    log_format plain '$request_method $status';
    access_log {folder}/access.log plain;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass {upstream}; {more} }}
    }}
}}
"""


@pytest.fixture(scope="session")
def nginx() -> str:
    """The machine's nginx, else Debian's, unpacked into the cache so that no service is set up.

    Skips where neither is to be had, except in CI, where that is an error.
    """
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    try:
        return found or unpacked_nginx(CACHE / "nginx")
    except (OSError, subprocess.CalledProcessError) as fault:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"NO NGINX: it is not installed, and apt-get could not fetch it ({fault})")


def unpacked_nginx(room: Path) -> str:
    binary = room / "usr" / "sbin" / "nginx"
    with locked(room.with_suffix(".lock")):
        if not binary.exists():
            download_nginx(room)
            package = next(room.glob("nginx_*.deb"))
            run(["dpkg-deb", "--extract", str(package), str(room)])
    run([str(binary), "-V"])
    return str(binary)


def download_nginx(room: Path) -> None:
    """A machine's package lists may be missing or stale; only root can renew them."""
    room.mkdir(parents=True, exist_ok=True)
    try:
        run(["apt-get", "download", "nginx"], cwd=room)
    except subprocess.CalledProcessError:
        if os.geteuid() != 0:
            raise
        run(["apt-get", "update", "--quiet"])
        run(["apt-get", "download", "nginx"], cwd=room)


@contextmanager
def proxy(nginx: str, url: str, folder: Path, more: str = "") -> Iterator[int]:
    """The port of an nginx before `url`, with nothing but defaults in how it proxies, and `more`."""
    target = urlsplit(url)
    port = free_port()
    user = "user root;" if os.geteuid() == 0 else ""
    upstream = f"http://{target.netloc}"
    folder.mkdir(exist_ok=True)
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, port=port, upstream=upstream, user=user, more=more))
    argv = [nginx, "-p", str(folder), "-e", "stderr", "-c", str(config)]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL) as process:
        try:
            processes.eventually(
                lambda: listening(port) or process.poll() is not None, lambda: "nginx does not listen"
            )
            assert process.poll() is None, f"nginx ended with status {process.returncode}"
            yield port
        finally:
            process.terminate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Client:
    """One legacy session through the proxy; every request has a connection of its own."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.headers = dict(ACCEPT)
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "raw", "version": "1"},
        }
        with self.send("initialize", params, request_id=1) as response:
            self.headers["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
            self.headers["MCP-Protocol-Version"] = "2025-11-25"
            assert "result" in next(messages(response))
        with self.send("notifications/initialized") as response:
            assert response.status == 202

    def send(
        self, method: str, params: object = None, request_id: int | None = None
    ) -> http.client.HTTPResponse:
        message: dict[str, object] = {"jsonrpc": "2.0", "method": method}
        message |= {} if params is None else {"params": params}
        message |= {} if request_id is None else {"id": request_id}
        return self.ask("POST", json.dumps(message))

    def ask(self, verb: str, body: str | None = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        connection.request(verb, "/mcp", body, {**self.headers, "Connection": "close"})
        return connection.getresponse()

    def call(self, name: str, request_id: int, **meta: object) -> http.client.HTTPResponse:
        return self.send("tools/call", {"name": name, "arguments": {}, "_meta": meta}, request_id)


def messages(response: http.client.HTTPResponse) -> Iterator[Any]:
    """The JSON-RPC messages of an answer, as they arrive."""
    assert response.status == 200, (response.status, response.read())
    if response.headers.get_content_type() == "application/json":
        yield json.loads(response.read())
        return
    for line in response:
        if line.startswith(b"data:") and (data := line.removeprefix(b"data:").strip()):
            yield json.loads(data)


@pytest.mark.case("SE-08")
def test_each_progress_note_passes_the_proxy_before_the_next_is_sent(nginx: str, tmp_path: Path) -> None:
    with run_bridge(SERVER) as bridge, proxy(nginx, bridge.url, tmp_path) as port:
        client = Client(port)
        seen = []
        with client.call("climb", 10, progressToken="t") as climb:
            for message in messages(climb):
                if message.get("method") != "notifications/progress":
                    assert message["result"]["content"][0]["text"] == "at the top"
                    break
                seen.append(message["params"]["progress"])
                with client.call("next", 10 + len(seen)) as step:
                    assert next(messages(step))["result"]["content"][0]["text"] == f"step {len(seen) + 1}"
        assert seen == [1, 2, 3]


@pytest.mark.case("SE-08")
def test_the_stream_of_a_session_passes_the_proxy_while_it_is_open(nginx: str, tmp_path: Path) -> None:
    with run_bridge(SERVER) as bridge, proxy(nginx, bridge.url, tmp_path) as port:
        client = Client(port)
        with client.ask("GET") as stream:
            arriving = messages(stream)
            for number in (2, 3):
                with client.call("announce", number) as told:
                    assert "result" in next(messages(told))
                assert next(arriving)["method"] == "notifications/tools/list_changed"


BEHIND = [(Side.STDIO, Side.HTTP), (Side.STDIO, Side.SSE), (Side.HTTP, Side.HTTP), (Side.HTTP, Side.SSE)]
"""Pairs whose bridge reaches its server through nginx; where it serves HTTP, another one is before it."""
IMPATIENT = "proxy_read_timeout 2s;"
"""In place of the minute that is the default."""
CHANGED = "notifications/tools/list_changed"


@asynccontextmanager
async def between(
    nginx: str, folder: Path, downstream: Side, upstream: Side, more: str = ""
) -> AsyncIterator[Talk]:
    """A session of a client, nginx if it speaks HTTP, the bridge, nginx with `more`, a remote server."""
    async with AsyncExitStack() as stack:
        around = await stack.enter_async_context(cell())
        server = await around.start([*COMMANDS[upstream, Side.STDIO], *SERVER])
        url = stack.enter_context(reached(nginx, await server.url(upstream), folder / "behind", more))
        stdio = downstream is Side.STDIO
        # Only the legacy era has streams that resume; the server is a bridge, and would be modern too.
        legacy = ["--upstream-era", "legacy"]
        bridge = await around.start([*COMMANDS[downstream, upstream], *legacy, url], talks=stdio)
        if not stdio:
            url = stack.enter_context(reached(nginx, await bridge.url(downstream), folder / "before"))
        async with talking(bridge, downstream, url) as talk:
            await begin(talk)
            yield talk
            await talk.client.close()
        # A session opened anew is told of as a change of its lists, by design.
        assert {one.said.method for one in talk.unread} <= {CHANGED}, talk.left()
        if not stdio:
            await bridge.stop(0)
        await server.stop(0)
        await around.expect_nothing()
        around.expect_clean_logs()


@contextmanager
def reached(nginx: str, url: str, folder: Path, more: str = "") -> Iterator[str]:
    """The URL of the same server by way of nginx."""
    with proxy(nginx, url, folder, more) as port:
        yield f"http://127.0.0.1:{port}{urlsplit(url).path}"


async def begin(talk: Talk) -> None:
    client = b'{"name":"raw","version":"1"}'
    params = b'{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":%b}' % client
    await talk.result(b"1", "initialize", params)
    await talk.tell("notifications/initialized")


def calling(name: str, meta: str = "{}") -> bytes:
    return f'{{"name":"{name}","arguments":{{}},"_meta":{meta}}}'.encode()


async def see(talk: Talk, step: int) -> None:
    def is_step(said: Heard) -> bool:
        return bool(said.about["progress"] == step)

    await talk.told("notifications/progress", is_step)


async def cuts(folder: Path, method: str, count: int) -> None:
    """Wait until nginx has cut streams that answered `method`, so many of them."""
    log = folder / "behind" / "access.log"
    await eventually(lambda: log.read_text().count(f"{method} 200\n") >= count, log.read_text)


@pytest.mark.case("SE-08")
@pytest.mark.parametrize(("downstream", "upstream"), BEHIND)
async def test_nothing_is_held_back_with_nginx_on_every_side(
    nginx: str, tmp_path: Path, downstream: Side, upstream: Side
) -> None:
    async with between(nginx, tmp_path, downstream, upstream) as talk:
        await talk.ask(b"2", "tools/call", calling("climb", '{"progressToken":"t"}'))
        for step in (1, 2, 3):
            await see(talk, step)
            await talk.result(b'"%d"' % step, "tools/call", calling("next"))
        assert b"at the top" in await talk.outcome(b"2")
        await talk.result(b"3", "tools/call", calling("announce"))
        await talk.told(CHANGED)


@pytest.mark.case("TF-02")
async def test_streams_that_nginx_cuts_lose_nothing_and_show_nothing(nginx: str, tmp_path: Path) -> None:
    async with between(nginx, tmp_path, Side.STDIO, Side.HTTP, IMPATIENT) as talk:
        posts = (tmp_path / "behind" / "access.log").read_text().count("POST 200\n")
        await talk.ask(b"2", "tools/call", calling("climb", '{"progressToken":"t"}'))
        await see(talk, 1)
        await cuts(tmp_path, "POST", posts + 1)
        for step in (2, 3):
            await talk.result(b'"%d"' % step, "tools/call", calling("next"))
            await see(talk, step)
        await cuts(tmp_path, "GET", 2)
        await talk.result(b'"4"', "tools/call", calling("next"))
        assert b"at the top" in await talk.outcome(b"2")
        await talk.result(b"3", "tools/call", calling("announce"))
        await talk.told(CHANGED)


@pytest.mark.case("TF-02")
async def test_an_old_server_that_nginx_cuts_off_while_idle_is_there_for_the_next_call(
    nginx: str, tmp_path: Path
) -> None:
    async with between(nginx, tmp_path, Side.HTTP, Side.SSE, IMPATIENT) as talk:
        await cuts(tmp_path, "GET", 2)
        assert b"announced" in await talk.result(b"2", "tools/call", calling("announce"))
        await talk.told(CHANGED)
