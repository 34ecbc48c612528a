from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web
from raw_http import LIMIT, Wire, request, served, wire

from bridge.config import Listen, Tls
from bridge.downstream import http
from bridge.downstream.http import Ready, read_body
from bridge.downstream.listener import bind_tcp, serve, tls_context
from bridge.errors import ListenFault, UsageFault


@pytest.fixture(autouse=True)
def _short_parting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_PARTING", 0.02)


async def hello(_request: web.BaseRequest) -> web.StreamResponse:
    return Ready(200, b"", (b"hello",))


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


async def refused(listen: Listen) -> str:
    with pytest.raises(ListenFault) as caught:
        await serve(listen, hello, stalled=1.0)
    text = str(caught.value)
    assert "\n" not in text
    return text


# --- TCP --------------------------------------------------------------------------------------


async def test_free_port_is_told() -> None:
    async with served(hello) as listener, wire(listener) as client:
        port = int(listener.listening.removeprefix("127.0.0.1:"))
        assert listener.url == f"http://127.0.0.1:{port}/mcp"
        assert port > 0
        assert (await client.ask(request())).body == b"hello"


async def test_every_address_of_a_name_is_listened_on_at_one_port() -> None:
    async with served(hello, Listen(host="localhost", port=0)) as listener:
        bound = listener.listening.split(" and ")
        assert {address.rsplit(":", 1)[1] for address in bound} == {listener.url.split(":")[2].split("/")[0]}
        for address in bound:
            host, port = address.rsplit(":", 1)
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            client = Wire(reader, writer)
            assert (await client.ask(request())).body == b"hello"
            client.hang_up()


async def test_address_of_ipv6_is_bracketed() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        listener = await serve(Listen(host="::1", port=0), hello, stalled=1.0)
    except ListenFault:
        pytest.skip("no IPv6 loopback here")
    assert listener.url.startswith("http://[::1]:")
    await listener.close()


async def test_port_in_use_is_one_clear_line() -> None:
    with taken_port() as port:
        text = await refused(Listen(port=port))
    assert text == f"127.0.0.1:{port} is in use by another process; choose another with --port"


async def test_port_of_a_closed_listener_can_be_had_again_at_once() -> None:
    async with served(hello) as listener, wire(listener) as client:
        await client.ask(request())
        port = int(listener.listening.rsplit(":", 1)[1])
    async with served(hello, Listen(port=port)) as again:
        assert again.listening.endswith(f":{port}")


async def test_unknown_host_is_one_clear_line() -> None:
    assert "nowhere.invalid is no known host name" in await refused(Listen(host="nowhere.invalid"))


async def test_address_of_another_machine_is_one_clear_line() -> None:
    text = await refused(Listen(host="192.0.2.1", port=0))
    assert text == "192.0.2.1:0 is no address of this machine; choose another with --host"


async def test_forbidden_port_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(*_: object) -> socket.socket:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("bridge.downstream.listener._bound", bind)
    text = await refused(Listen(port=80))
    assert text == "127.0.0.1:80 may not be listened on by this user; choose a port above 1023 with --port"


def resolve_to(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    async def found(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in hosts]

    monkeypatch.setattr(type(asyncio.get_running_loop()), "getaddrinfo", found, raising=False)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127/8")
async def test_addresses_of_a_name_share_the_port_that_was_free(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "127.0.0.1", "127.0.0.2", "127.0.0.1")
    first, second = await bind_tcp("localhost", 0)
    assert first.getsockname()[1] == second.getsockname()[1]
    first.close()
    second.close()


async def test_address_in_name_only_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "192.0.2.1", "127.0.0.1")
    (sock,) = await bind_tcp("localhost", 0)
    assert sock.getsockname()[0] == "127.0.0.1"
    sock.close()


# --- Unix sockets -----------------------------------------------------------------------------


async def ask_unix(path: Path) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    client = Wire(reader, writer)
    try:
        return (await client.ask(request())).body
    finally:
        client.hang_up()


@pytest.mark.parametrize("mode", [0o600, 0o660])
async def test_socket_file_has_its_mode_and_goes_with_the_listener(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "s"
    before = os.umask(0o022)
    try:
        async with served(hello, Listen(uds=path, uds_mode=mode)) as listener:
            assert stat.S_IMODE(path.stat().st_mode) == mode
            assert listener.listening == str(path)
            assert await ask_unix(path) == b"hello"
            assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert not path.exists()


async def test_socket_file_is_private_before_anyone_can_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, modes = tmp_path / "s", []

    class Watched(socket.socket):
        def listen(self, *args: int) -> None:
            modes.append(stat.S_IMODE(path.stat().st_mode))
            super().listen(*args)

    monkeypatch.setattr("bridge.downstream.listener.socket.socket", Watched)
    async with served(hello, Listen(uds=path)):
        assert set(modes) == {0o600}


async def test_stale_socket_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    async with served(hello, Listen(uds=path)):
        assert await ask_unix(path) == b"hello"


async def test_socket_file_in_use_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with served(hello, Listen(uds=path)):
        assert (
            await refused(Listen(uds=path))
            == f"{path} is in use by another process; choose another with --uds"
        )
        assert await ask_unix(path) == b"hello"


async def test_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    assert "is no socket" in await refused(Listen(uds=path))
    assert path.read_text() == "precious"


async def test_socket_in_a_missing_folder_is_one_clear_line(tmp_path: Path) -> None:
    assert "No such file" in await refused(Listen(uds=tmp_path / "absent" / "s"))


async def test_socket_file_of_a_successor_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listener = await serve(Listen(uds=path), hello, stalled=1.0)
    path.rename(tmp_path / "old")
    async with served(hello, Listen(uds=path)):
        await listener.close()
        assert await ask_unix(path) == b"hello"


# --- TLS --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cert.pem and key.pem for localhost, other.pem and locked.pem."""
    folder = tmp_path_factory.mktemp("pem")
    made = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    named = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    commands = (
        (*made, *named, "-keyout", "key.pem", "-out", "cert.pem"),
        (*made, *named, "-keyout", "other.pem", "-out", "unused.pem"),
        ("openssl", "ec", "-in", "key.pem", "-aes256", "-passout", "pass:x", "-out", "locked.pem"),
    )
    for command in commands:
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


async def test_tls_listener_speaks_https_from_1_2_on(pem: Path) -> None:
    tls = Tls(cert=pem / "cert.pem", key=pem / "key.pem")
    context = ssl.create_default_context(cafile=tls.cert)
    async with served(hello, Listen(port=0, tls=tls)) as listener:
        assert listener.url.startswith("https://")
        host, port = listener.listening.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        client = Wire(reader, writer)
        assert (await client.ask(request())).body == b"hello"
        client.hang_up()
    assert tls_context(tls).minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("cert", "key", "fault"),
    [
        ("absent.pem", "key.pem", "--tls-cert .*absent.pem: No such file"),
        ("cert.pem", "absent.pem", "--tls-key .*absent.pem: No such file"),
        ("key.pem", "key.pem", "--tls-cert .*key.pem: holds no PEM text with BEGIN CERTIFICATE"),
        ("cert.pem", "cert.pem", "--tls-key .*cert.pem: holds no PEM text with PRIVATE KEY"),
        ("cert.pem", "other.pem", "--tls-key .*other.pem: does not belong to --tls-cert"),
        ("cert.pem", "locked.pem", "--tls-key .*locked.pem: is encrypted"),
        ("damaged.pem", "key.pem", "--tls-cert .*damaged.pem or --tls-key .*: is damaged"),
    ],
)
def test_bad_certificate_or_key_names_its_option(pem: Path, cert: str, key: str, fault: str) -> None:
    (pem / "damaged.pem").write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    with pytest.raises(UsageFault, match=fault):
        tls_context(Tls(cert=pem / cert, key=pem / key))


# --- what no handler answers ------------------------------------------------------------------


@pytest.mark.spec("ER-19")
@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /mcp HTTP/1.1\r\n\r\n", 400),
        (b"POST /mcp HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (request("POST", "X-Big: " + "x" * 20_000), 431),
        (request("POST", "X-Many: " + "x" * 100_000), 431),
        (request("POST", *(f"X-{n}: x" for n in range(200))), 431),
    ],
)
async def test_malformed_http_is_answered_with_a_json_rpc_error(text: bytes, status: int) -> None:
    async with served(hello) as listener, wire(listener) as client:
        answer = await client.ask(text)
        assert answer.status == status
        assert answer.error().id is None
        assert answer.headers["connection"] == "close"
        assert await client.rest() == b""


async def test_header_of_the_largest_name_is_read() -> None:
    async with served(hello) as listener, wire(listener) as client:
        name = "Mcp-Name: =?base64?" + "A" * 8000 + "?="
        assert (await client.ask(request("POST", name, "X-Near: " + "x" * 16_000))).status == 200


async def test_handler_that_fails_is_answered_and_logged_without_its_payload(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        body = await read_body(request, 100, LIMIT)
        raise KeyError(body)

    async with served(handler) as listener, wire(listener) as client:
        for _ in range(2):
            answer = await client.ask(request(body=b"secret"))
            assert answer.status == 500
            assert answer.error().id is None
            assert answer.error().error.code == -32603
            assert b"secret" not in answer.body
    assert "KeyError" in caplog.text
    assert "in handler" in caplog.text
    assert "secret" not in caplog.text


async def test_handler_that_times_out_is_a_failure_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        raise TimeoutError

    async with served(handler) as listener, wire(listener) as client:
        assert (await client.ask(request())).status == 500
    assert caplog.records


async def test_handler_of_a_client_that_leaves_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with served(handler) as listener, wire(listener) as client:
        client.say(request())
        await started.wait()
        client.hang_up()
        async with asyncio.timeout(LIMIT):
            await cancelled.wait()
    assert caplog.records == []


# --- stopping ---------------------------------------------------------------------------------


async def test_stopped_listener_serves_whom_it_has_but_no_newcomer() -> None:
    async with served(hello) as listener, wire(listener) as client:
        await client.ask(request())
        listener.stop_accepting()
        with pytest.raises(ConnectionError):
            async with wire(listener):
                pass
        assert (await client.ask(request())).body == b"hello"


async def test_closing_lets_the_call_in_flight_answer_and_ends_idle_connections() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        started.set()
        await release.wait()
        return Ready(200, b"", (b"late",))

    async with served(handler) as listener, wire(listener) as busy, wire(listener) as idle:
        busy.say(request())
        await started.wait()
        closing = asyncio.ensure_future(listener.close(LIMIT))
        assert await idle.rest() == b""
        release.set()
        assert (await busy.answer()).body == b"late"
        assert await busy.rest() == b""
        await closing


async def test_closing_cancels_what_does_not_end() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with served(handler) as listener, wire(listener) as client:
        client.say(request())
        await started.wait()
        await listener.close(0.01)
        async with asyncio.timeout(LIMIT):
            await cancelled.wait()
        assert await client.rest() == b""


async def test_closing_does_not_wait_for_a_client_that_reads_nothing() -> None:
    wrote = asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(bytes(20_000_000))
        wrote.set()
        return Ready(200)

    async with served(handler) as listener, wire(listener, receive_buffer=4096) as client:
        client.say(request())
        await wrote.wait()
        async with asyncio.timeout(LIMIT):
            await listener.close(0.02)
        with suppress(ConnectionResetError):
            assert len(await client.rest()) < 20_000_000
