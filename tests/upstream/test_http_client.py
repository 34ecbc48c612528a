"""How a request gets to a remote server: redirects, credentials, trust, proxies; how failures are named."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import subprocess
from pathlib import Path

import pytest
from support.scripted_http import Exchange, Handler, Remote, Wire
from yarl import URL

from bridge.config import Remote as Config
from bridge.config import Timing, Transport
from bridge.errors import UsageFault
from bridge.upstream.http_client import HttpClient, Unreachable, origin, same_origin, tls_context
from upstream.remotes import TIMING, connected, header_file, opened, remote, source

TOKEN = "Bearer s3cr3t-t0k3n-value"


class Redirecting(Remote):
    """Redirects whatever does not go to /there."""

    def __init__(self, status: int, location: str) -> None:
        super().__init__()
        self.status, self.location = status, location

    async def handle(self, exchange: Exchange) -> None:
        if exchange.target.endswith("/there?x=1"):
            await super().handle(exchange)
        else:
            exchange.reply(self.status, Location=self.location)


# --- redirects ---


@pytest.mark.case("HT-01")
@pytest.mark.spec("CL-16")
@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("location", ["/there?x=1", "there?x=1", "{}/there?x=1"])
async def test_a_redirect_on_the_origin_is_followed_with_method_body_and_headers(
    status: int, location: str
) -> None:
    async with Redirecting(status, location) as server:
        server.location = location.format(server.url(""))
        async with connected(server.url(), headers=(("Authorization", TOKEN),)) as client:
            await client.initialize()
            client.call(1, arguments={"a": 1})
            await client.result(1)
        first, second = server.asked("tools/call")
        assert (first.target, second.target) == ("/mcp", "/there?x=1")
        assert first.body == second.body
        assert second.headers["authorization"] == TOKEN
        assert second.headers["mcp-session-id"] == "session-1"


@pytest.mark.case("HT-01")
@pytest.mark.spec("CL-16")
async def test_a_redirect_to_another_host_gets_nothing() -> None:
    async with Remote() as other, Redirecting(307, other.url("/there?x=1")) as server:
        async with connected(server.url(), headers=(("Authorization", TOKEN),)) as client:
            client.begin()
            message = (await client.error("init"))["message"]
            assert server.url("") in message
            assert other.url("") in message
            assert "there" not in message
        assert not other.seen


@pytest.mark.case("HT-01")
@pytest.mark.spec("CL-16")
@pytest.mark.parametrize(
    ("location", "words"),
    [("/mcp", "circle"), ("http://[", "no URL"), ("file:///etc/passwd", "another origin")],
)
async def test_a_redirect_that_leads_nowhere_is_an_error(location: str, words: str) -> None:
    async with Redirecting(308, location) as server, connected(server.url()) as client:
        client.begin()
        assert words in (await client.error("init"))["message"]
        assert len(server.seen) <= 5


@pytest.mark.case("HT-01")
@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_redirect_that_would_change_the_method_is_not_followed(status: int) -> None:
    async with Redirecting(status, "/there?x=1") as server, connected(server.url()) as client:
        client.begin()
        assert (await client.error("init"))["data"]["httpStatus"] == status
        assert server.rpcs() == ["initialize"]


@pytest.mark.case("HT-01")
async def test_a_redirect_from_https_to_http_is_not_followed(pem: Path) -> None:
    async with Remote() as plain:
        server = Redirecting(307, plain.url("/there?x=1"))
        await server.start(tls=served(pem))
        async with connected(server.url(), ca_file=pem / "cert.pem") as client:
            client.begin()
            assert "another origin" in (await client.error("init"))["message"]
        await server.stop()
        assert not plain.seen


def test_origins_are_compared_with_default_ports_filled_in() -> None:
    assert same_origin(URL("https://h/a"), URL("https://h:443/b?c"))
    assert same_origin(URL("http://u:p@h"), URL("http://h:80/"))
    assert not same_origin(URL("http://h"), URL("https://h"))
    assert not same_origin(URL("http://h"), URL("http://h:81"))
    assert not same_origin(URL("http://h"), URL("http://h.x"))
    assert origin(URL("http://user:word@h:80/p?token=1#f")) == "http://h"
    assert origin(URL("http://[::1]:8080/x")) == "http://[::1]:8080"
    assert origin(URL("file:///etc")) == "file://"


# --- credentials ---


async def test_configured_headers_go_with_every_request() -> None:
    async with Remote() as server:
        headers = (("Authorization", TOKEN), ("X-Team", "blue"))
        async with connected(server.url(), headers=headers) as client:
            await client.initialize()
            await server.until_asked("GET")
            client.modern(1, "tools/list")
            await client.result(1)
        assert {one.headers["authorization"] for one in server.seen} == {TOKEN}
        assert {one.headers["x-team"] for one in server.seen} == {"blue"}


async def test_credentials_in_the_url_become_a_header_and_are_told_nobody() -> None:
    async with Remote() as server:
        url = server.url().replace("//", "//user:passw0rd@")
        async with connected(url) as client:
            assert "user" not in client.upstream.label
            await client.initialize()
        assert {one.headers["authorization"] for one in server.seen} == {"Basic dXNlcjpwYXNzdzByZA=="}


@pytest.mark.parametrize("name", ["Mcp-Session-Id", "content-type", "HOST", "Accept"])
def test_the_protocols_own_headers_cannot_be_set(name: str) -> None:
    with pytest.raises(UsageFault, match=name):
        HttpClient(Config(url="http://h/", headers=((name, "x"),)), Timing())


def unauthorised(server: Remote, wanted: str) -> Handler:
    """Refuse any other credential, quoting it back as careless servers do."""

    async def call(exchange: Exchange) -> None:
        if exchange.headers["authorization"] == wanted:
            exchange.result({})
        else:
            text = f"bad token {exchange.headers['authorization']}".encode()
            challenge = f'Bearer error="invalid_token", was="{exchange.headers["authorization"]}"'
            exchange.reply(401, text, "text/plain", WWW_Authenticate=challenge)

    return call


@pytest.mark.case("AU-01")
@pytest.mark.spec("SP-1", "SP-11")
async def test_a_static_token_that_is_refused_fails_each_call_once_and_is_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with Remote() as server:
        server.on["tools/call"] = unauthorised(server, "another")
        async with connected(server.url(), headers=(("Authorization", TOKEN),)) as client:
            await client.initialize()
            for number in range(10):
                client.call(number)
            for number in range(10):
                error = await client.error(number)
                assert "HTTP 401" in error["message"]
                assert error["data"]["httpStatus"] == 401
                assert error["data"]["wwwAuthenticate"].startswith('Bearer error="invalid_token"')
                assert error["data"]["reason"] == "upstream_auth"
            assert all(b"s3cr3t" not in line for line in client.raw)
        assert len(server.asked("tools/call")) == 10
    assert "s3cr3t" not in caplog.text


@pytest.mark.case("AU-01")
async def test_a_challenge_is_told_also_where_the_body_is_the_servers_own_error() -> None:
    body = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"insufficient scope"}}'

    async def call(exchange: Exchange) -> None:
        exchange.reply(403, body, WWW_Authenticate='Bearer error="insufficient_scope"')

    async with Remote({"tools/call": call}) as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1)
        error = await client.error(1)
        assert "insufficient scope" in error["message"]
        assert error["data"]["httpStatus"] == 403
        assert "insufficient_scope" in error["data"]["wwwAuthenticate"]


@pytest.mark.case("AU-01")
async def test_a_changed_header_file_is_read_again_and_every_call_tried_once_more(tmp_path: Path) -> None:
    file = header_file(tmp_path, "Bearer old-value")
    async with Remote() as server:
        async with connected(server.url(), headers=(("Authorization", file),)) as client:
            await client.initialize()
            server.on["tools/call"] = unauthorised(server, "Bearer new-value")
            header_file(tmp_path, "Bearer new-value")
            for number in range(10):
                client.call(number)
            for number in range(10):
                await client.result(number)
            assert len(server.asked("tools/call")) <= 20
            client.call(11)
            await client.result(11)
            assert server.seen[-1].headers["authorization"] == "Bearer new-value"


@pytest.mark.case("AU-01")
@pytest.mark.spec("SP-11")
@pytest.mark.parametrize("content", [None, b"", b"one\ntwo", b"\xff\xfe"])
async def test_a_header_file_that_cannot_be_used_is_an_error_without_its_path(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    async with Remote() as server:
        async with connected(server.url(), headers=(("Authorization", file),)) as client:
            client.begin()
            answer = await client.answer("init")
            assert str(tmp_path) not in str(answer)
            assert ("error" in answer) == (content != b"")
            assert content == b"" or "token" in answer["error"]["message"]


# --- connections ---


@pytest.mark.case("TF-04")
@pytest.mark.spec("SP-11")
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:9/mcp?key=hush", "Cannot connect to http://127.0.0.1:9: "),
        ("http://nowhere.invalid/mcp?key=hush", "Cannot connect to http://nowhere.invalid: "),
    ],
)
async def test_a_server_that_cannot_be_reached_is_named_without_path_and_query(url: str, words: str) -> None:
    async with connected(url) as client:
        client.begin()
        error = await client.error("init")
        assert error["message"].startswith(words)
        assert "hush" not in str(error)
        assert error["data"]["reason"] == "upstream_unreachable"


@pytest.mark.case("TF-04")
@pytest.mark.parametrize(
    "said", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"]
)
async def test_a_connection_that_breaks_before_the_answer_is_an_error(said: bytes) -> None:
    class Breaking(Wire):
        async def handle(self, exchange: Exchange) -> None:
            exchange.raw(said)
            exchange.cut()

    async with Breaking() as server, connected(server.url()) as client:
        client.begin()
        error = await client.error("init")
        assert error["data"]["reason"] == "upstream_unreachable"
        assert len(server.seen) == 1


@pytest.mark.case("TF-01", "TF-04")
@pytest.mark.spec("CM-11")
async def test_only_connecting_is_limited_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with HttpClient(Config(url="http://h/"), TIMING) as client:
        timeout = client._timeout
        assert (timeout.total, timeout.sock_read) == (None, None)
        assert timeout.connect == TIMING.connect


@pytest.mark.case("TF-04")
async def test_a_connection_that_never_stands_is_given_up() -> None:
    """TLS to a server that accepts and says nothing."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        async with connected(f"https://127.0.0.1:{port}/", timing=Timing(connect=0.05)) as client:
            client.begin()
            assert "timed out" in (await client.error("init"))["message"]


async def test_a_large_request_arrives_whole() -> None:
    text = "x" * (3 << 20)
    async with Remote() as server, connected(server.url()) as client:
        await client.initialize()
        client.call(1, arguments={"text": text})
        await client.until(lambda: len(client.raw) == 2)
        assert server.asked("tools/call")[0].json["params"]["arguments"]["text"] == text


async def test_a_unix_socket_takes_the_place_of_the_host(tmp_path: Path) -> None:
    server = Remote()
    await server.start(path=tmp_path / "s")
    async with connected("http://localhost/mcp", socket=tmp_path / "s") as client:
        await client.initialize()
        client.call(1)
        await client.result(1)
    assert server.asked("tools/call")[0].headers["host"] == "localhost"
    await server.stop()


@pytest.mark.spec("SP-11")
async def test_a_missing_unix_socket_is_an_error_without_its_path(tmp_path: Path) -> None:
    async with connected("http://localhost/mcp", socket=tmp_path / "s") as client:
        client.begin()
        error = await client.error("init")
        assert str(tmp_path) not in str(error)
        assert error["data"]["reason"] == "upstream_unreachable"


# --- the proxy ---


class ForwardProxy(Wire):
    """A proxy for plain HTTP that fetches nothing and answers itself, as the server would."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Remote()

    async def handle(self, exchange: Exchange) -> None:
        await self.server.handle(exchange)


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


async def test_the_proxy_of_the_environment_is_used(environ: pytest.MonkeyPatch) -> None:
    async with ForwardProxy() as proxy:
        environ.setenv("http_proxy", proxy.url("").replace("//", "//me:word@"))
        async with connected("http://nowhere.invalid/mcp") as client:
            await client.initialize()
        assert proxy.seen[0].target == "http://nowhere.invalid/mcp"
        assert proxy.seen[0].headers["proxy-authorization"] == "Basic bWU6d29yZA=="


@pytest.mark.parametrize("spared", ["127.0.0.1", "*", "127.0.0.1:{port}"])
async def test_a_host_that_the_environment_spares_is_reached_directly(
    environ: pytest.MonkeyPatch, spared: str
) -> None:
    async with Remote() as server:
        environ.setenv("http_proxy", "http://127.0.0.1:9")
        environ.setenv("no_proxy", spared.format(port=server.port))
        async with connected(server.url()) as client:
            await client.initialize()


def test_a_proxy_that_is_none_for_http_is_refused_at_the_start(environ: pytest.MonkeyPatch) -> None:
    environ.setenv("http_proxy", "socks5://127.0.0.1:1080")
    with pytest.raises(UsageFault, match="proxy"):
        HttpClient(Config(url="http://h/"), Timing())


async def test_credentials_of_netrc_are_not_used(environ: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password word\n")
    environ.setenv("HOME", str(tmp_path))
    environ.setenv("NETRC", str(tmp_path / ".netrc"))
    async with Remote() as server:
        async with connected(server.url()) as client:
            await client.initialize()
        assert all("authorization" not in one.headers for one in server.seen)


# --- TLS ---


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 with its key, which is its own authority, in parts and in one file."""
    folder = tmp_path_factory.mktemp("pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=test"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    (folder / "both.pem").write_text((folder / "cert.pem").read_text() + (folder / "key.pem").read_text())
    return folder


def served(pem: Path, *, ask: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem / "cert.pem", pem / "key.pem")
    if ask:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(pem / "cert.pem")
    return context


async def test_a_ca_file_is_trusted(pem: Path) -> None:
    server = Remote()
    await server.start(tls=served(pem))
    async with connected(server.url(), ca_file=pem / "cert.pem") as client:
        await client.initialize()
    await server.stop()


@pytest.mark.case("TF-04")
async def test_an_unknown_certificate_is_an_error_that_says_so(pem: Path) -> None:
    server = Remote()
    await server.start(tls=served(pem))
    async with connected(server.url()) as client:
        client.begin()
        message = (await client.error("init"))["message"]
        assert "certificate is not trusted" in message
        assert "self" in message
    await server.stop()
    assert not server.seen


async def test_without_verification_anything_is_trusted_and_one_warning_logged(
    pem: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Remote()
    await server.start(tls=served(pem))
    async with source(server.url(), verify=False) as of:
        for _ in range(2):
            client = await opened(of)
            await client.initialize()
            await client.upstream.close()
    await server.stop()
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "not verified" in warnings[0].getMessage()


async def test_a_client_certificate_is_shown(pem: Path) -> None:
    server = Remote()
    await server.start(tls=served(pem, ask=True))
    async with connected(server.url(), ca_file=pem / "cert.pem", client_cert=pem / "both.pem") as client:
        await client.initialize()
    async with connected(server.url(), ca_file=pem / "cert.pem") as client:
        client.begin()
        assert (await client.error("init"))["data"]["reason"] == "upstream_unreachable"
    await server.stop()


@pytest.mark.parametrize(
    ("option", "name", "words"),
    [
        ("ca_file", "missing.pem", "--ca-file"),
        ("ca_file", "key.pem", "--ca-file"),
        ("client_cert", "missing.pem", "--client-cert"),
        ("client_cert", "cert.pem", "--client-cert"),
    ],
)
def test_tls_files_that_cannot_be_used_name_their_option(
    pem: Path, option: str, name: str, words: str
) -> None:
    with pytest.raises(UsageFault, match=words):
        tls_context(remote("https://h/", Transport.HTTP, **{option: pem / name}))


async def test_a_request_fails_by_a_name_and_not_by_the_librarys() -> None:
    async with HttpClient(Config(url="http://127.0.0.1:9/"), TIMING) as client:
        with pytest.raises(Unreachable):
            async with client.request("GET", {}):
                raise AssertionError


@pytest.mark.case("TF-04")
async def test_a_refused_connection_is_told_in_the_systems_words_on_every_loop() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with HttpClient(Config(url=f"http://127.0.0.1:{port}/mcp"), Timing()) as client:
        with pytest.raises(Unreachable, match=f"127.0.0.1:{port}: [Cc]onnection refused"):
            async with client.request("POST", {}, b"{}"):
                pass
