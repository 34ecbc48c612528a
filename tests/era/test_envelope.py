"""The envelope taken off and put on; what is not the protocol's own passes."""

from __future__ import annotations

import json

import pytest
from msgspec import UNSET, Raw

from bridge.era.envelope import CAPABILITIES, Envelope, stamped, without_envelope

PREFIX = "io.modelcontextprotocol/"
E = (
    f'"{PREFIX}protocolVersion":"2026-07-28","{PREFIX}clientInfo":{{"name":"c","version":"1"}},'
    f'"{PREFIX}clientCapabilities":{{}}'
)


@pytest.mark.parametrize(
    ("params", "left"),
    [
        pytest.param(
            '{"name":"a","arguments":{},"_meta":{%s,"traceparent":"00-1","com.ex/k":1}}',
            '{"name":"a","arguments":{},"_meta":{"traceparent":"00-1","com.ex/k":1}}',
            id="B1",
        ),
        pytest.param('{"_meta":{%s}}', None, id="B2"),
        pytest.param('{"cursor":"","_meta":{%s}}', '{"cursor":""}', id="B3"),
        pytest.param('{"name":"a","task":{"ttl":1000},"_meta":{%s}}', '{"name":"a"}', id="B9"),
        pytest.param(
            '{"name":"a","inputResponses":{"in-1":{}},"requestState":"s","_meta":{%s}}',
            '{"name":"a"}',
            id="B10",
        ),
        pytest.param(
            '{"arguments":{"b":1e5,"a":9007199254740993,"c":1.10},"_meta":{%s}}',
            '{"arguments":{"b":1e5,"a":9007199254740993,"c":1.10}}',
            id="B12",
        ),
        pytest.param(
            '{"_meta":{%s,"progressToken":7,"' + PREFIX + 'logLevel":"info","k":1.0}}',
            '{"_meta":{"k":1.0}}',
            id="token",
        ),
        pytest.param("{}", "{}", id="nothing to take off"),
        pytest.param('{"_meta":null,"a":1}', '{"a":1}', id="no object"),
    ],
)
def test_legacy_server_sees_no_envelope_and_everything_else(params: str, left: str | None) -> None:
    text = params.replace("%s", E).encode()
    assert without_envelope(Raw(text)) == (None if left is None else left.encode())


def test_members_of_one_era_stay_where_they_are_wanted() -> None:
    assert without_envelope(b'{"task":{},"requestState":"s"}', drop=("requestState",)) == b'{"task":{}}'


@pytest.mark.parametrize(
    ("params", "envelope"),
    [
        (UNSET, Envelope()),
        (b"[]", Envelope()),
        (b'{"_meta":5}', Envelope()),
        (f'{{"_meta":{{{E}}}}}'.encode(), Envelope(client=b'{"name":"c","version":"1"}')),
        (
            f'{{"_meta":{{"{CAPABILITIES}":{{ "roots": {{}} }},"{PREFIX}logLevel":"info"}}}}'.encode(),
            Envelope(capabilities=b'{ "roots": {} }', level="info"),
        ),
        (f'{{"_meta":{{"{PREFIX}logLevel":5}}}}'.encode(), Envelope(level="5")),
    ],
)
def test_envelope_is_read_as_it_was_said(params: bytes, envelope: Envelope) -> None:
    assert Envelope.read(params) == envelope


def stamp(params: bytes | None, level: str | None = None) -> dict[str, object]:
    text = stamped(
        UNSET if params is None else Raw(params),
        version="2026-07-28",
        client=b'{"name":"l"}',
        capabilities=b'{"roots":{}}',
        level=level,
    )
    return dict(json.loads(text))


STAMP = {
    f"{PREFIX}protocolVersion": "2026-07-28",
    f"{PREFIX}clientInfo": {"name": "l"},
    f"{PREFIX}clientCapabilities": {"roots": {}},
}


@pytest.mark.spec("EV-2")
def test_modern_server_gets_an_envelope_with_every_request() -> None:
    assert stamp(None) == {"_meta": STAMP}
    assert stamp(b'{"cursor":"c"}') == {"cursor": "c", "_meta": STAMP}
    assert stamp(None, "info") == {"_meta": {**STAMP, f"{PREFIX}logLevel": "info"}}


def test_client_cannot_say_what_is_said_for_it_but_anything_else() -> None:
    said = b'{"_meta":{"%bclientInfo":{"name":"x"},"%blogLevel":"debug","k":1,"progressToken":5},"name":"a"}'
    text = said.replace(b"%b", PREFIX.encode())
    assert stamp(text) == {"name": "a", "_meta": {"k": 1, "progressToken": 5, **STAMP}}
