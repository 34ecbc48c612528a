"""Trace context in messages: read, put there, and nothing else touched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from bridge.core.events import Asked, Exchange, Party, Withdrawn
from bridge.core.message import Request, read, request
from bridge.core.splice import members
from bridge.core.trace import KEYS, Carrier, Context, carrying, context_in, context_of, usable

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"


def asked(params: bytes) -> Request:
    return request(1, "tools/call", params)


def test_context_is_read_from_meta_alone() -> None:
    params = Raw(
        b'{"traceparent":"x","_meta":{"traceparent":"%b","baggage":"a=1"},"n":1.0}' % PARENT.encode()
    )
    assert context_of(params) == [("traceparent", PARENT), ("baggage", "a=1")]
    assert context_in(asked(bytes(params)).raw) == [("traceparent", PARENT), ("baggage", "a=1")]


@pytest.mark.parametrize(
    "params",
    [
        b"{}",
        b'{"_meta":{"tracestate":"a=1"}}',
        b'{"_meta":{"traceparent":7}}',
        b'{"_meta":{"traceparent":"a\\r\\nEvil: 1"}}',
        b'{"_meta":{"traceparent":""}}',
        b'{"_meta":["traceparent"]}',
        b'{"a":"\\"traceparent\\""}',
        b'["traceparent"]',
    ],
)
def test_what_could_not_stand_in_a_header_is_no_context(params: bytes) -> None:
    assert not context_of(Raw(params))
    assert not context_in(b'{"jsonrpc":"2.0","id":1,"method":"x","params":%b}' % params)


def test_no_params_carry_no_context() -> None:
    assert not context_of(UNSET)


def test_request_that_carries_a_context_has_it_in_place_of_another_and_all_else_as_it_was() -> None:
    params = b'{"name":"a","arguments":{"n":1.0e5},"_meta":{"traceparent":"%b","k":[1.0]}}' % OTHER.encode()
    found = carrying(asked(params), [("traceparent", PARENT), ("tracestate", "v=1")])
    assert bytes(members(found.raw)["params"]) == (
        b'{"name":"a","arguments":{"n":1.0e5},'
        b'"_meta":{"k":[1.0],"traceparent":"%b","tracestate":"v=1"}}' % PARENT.encode()
    )
    assert read(found.raw, depth=9) == found


def test_request_without_params_gets_some() -> None:
    found = carrying(
        Request(b'{"jsonrpc":"2.0","id":1,"method":"ping"}', 1, "ping"), [("traceparent", PARENT)]
    )
    assert context_in(found.raw) == [("traceparent", PARENT)]


def test_no_context_leaves_the_request_as_it_is() -> None:
    plain = asked(b"{ }")
    assert carrying(plain, ()) is plain


@given(st.dictionaries(st.sampled_from(KEYS), st.text(max_size=30)))
def test_what_is_put_in_is_what_is_read(pairs: dict[str, str]) -> None:
    context = usable(pairs.items())
    found = carrying(asked(b'{"_meta":{"progressToken":"t"}}'), context)
    assert dict(context_in(found.raw)) == dict(context)
    assert dict(context_of(found.params)) == dict(context)


def test_layer_puts_the_context_of_its_exchange_into_a_request_and_passes_all_else() -> None:
    def of(exchange: Exchange) -> Context:
        return [("traceparent", PARENT)] if exchange is mine else ()

    mine, other = (Exchange(Party("p"), asked(b"{}"), None) for _ in range(2))
    layer = Carrier(of)
    (up,) = layer.up(Asked(mine, asked(b"{}")))
    assert isinstance(up, Asked)
    assert context_of(up.request.params) == [("traceparent", PARENT)]
    plain = Asked(other, asked(b"{}"))
    assert list(layer.up(plain)) == [plain]
    gone = Withdrawn(mine)
    assert list(layer.up(gone)) == [gone]


@pytest.mark.parametrize("params", [b"[1]", b'{"_meta":7}'])
def test_layer_leaves_odd_params_to_the_server(params: bytes) -> None:
    layer = Carrier(lambda _: [("traceparent", PARENT)])
    plain = Asked(Exchange(Party("p"), asked(params), None), asked(params))
    assert list(layer.up(plain)) == [plain]
