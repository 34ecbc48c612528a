"""Media types, mirrored values, the era of a POST, the ladder of headers against body, statuses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core import headers
from bridge.core.headers import (
    Accepted,
    Claims,
    Lookup,
    Refusal,
    accepts,
    check,
    claims,
    classify,
    decode_value,
    encode_value,
    is_json,
    is_session_id,
    legacy_version,
    status_of,
)
from bridge.era.revisions import LEGACY_VERSIONS, Era

MODERN = "2026-07-28"
ENVELOPE: Mapping[str, object] = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}

BOTH = Accepted(json=True, sse=True)
JSON = Accepted(json=True, sse=False)
SSE = Accepted(json=False, sse=True)
NEITHER = Accepted(json=False, sse=False)


# --- media types ---


@pytest.mark.spec("HL-26")
@pytest.mark.case("HT-02")
@pytest.mark.parametrize(
    ("values", "accepted"),
    [
        ([], BOTH),
        ([""], BOTH),
        (["application/json, text/event-stream"], BOTH),
        (["text/event-stream"], SSE),
        (["application/json"], JSON),
        (["application/json", "text/event-stream"], BOTH),
        (["*/*"], BOTH),
        (["text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"], BOTH),
        (["*; q=.2"], BOTH),
        (["application/*, text/event-stream"], BOTH),
        (["text/*"], SSE),
        (["Application/JSON , TEXT/Event-Stream"], BOTH),
        (["application/json;charset=utf-8"], JSON),
        (["application/json;q=0"], NEITHER),
        (["application/json;q=0, */*"], SSE),
        (["*/*, application/json ; Q=0.000"], SSE),
        (["application/*;q=0, */*;q=0.1"], SSE),
        (["text/*;q=0, text/event-stream;q=0.1"], SSE),
        (["*/*;q=0, application/json"], JSON),
        (["application/json;q=0, application/json;q=0.5"], JSON),
        (["application/json;q=high"], JSON),
        (["text/html"], NEITHER),
        (["nonsense"], NEITHER),
    ],
)
def test_the_most_specific_media_range_decides(values: Sequence[str], accepted: Accepted) -> None:
    assert accepts(values) == accepted


@given(st.lists(st.text(max_size=40), max_size=3))
def test_no_accept_header_is_too_odd_to_read(values: list[str]) -> None:
    assert accepts(values) in (BOTH, JSON, SSE, NEITHER)


@pytest.mark.spec("HL-26")
@pytest.mark.parametrize(
    ("content_type", "taken"),
    [
        ("application/json", True),
        ("Application/JSON; charset=UTF-8", True),
        ('application/json ; charset="utf-8"', True),
        ("application/json;charset=utf8", True),
        ("application/json; profile=x", True),
        ("application/json;charset=iso-8859-1", False),
        ("application/json;charset=utf-16", False),
        ("application/jsonx", False),
        ("application/problem+json", False),
        ("text/plain", False),
        ("application/json, text/plain", False),
        ("", False),
    ],
)
def test_a_body_is_json_in_utf_8_only(content_type: str, taken: bool) -> None:
    assert is_json(content_type) is taken


# --- mirrored values ---


@pytest.mark.spec("XH-7")
@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("us-west1", "us-west1"),
        ("us west 1", "us west 1"),
        ("", ""),
        ("file:///path/to/file%20name.txt", "file:///path/to/file%20name.txt"),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        (" us-west1", "=?base64?IHVzLXdlc3Qx?="),
        ("us-west1 ", "=?base64?dXMtd2VzdDEg?="),
        ("\tindented", "=?base64?CWluZGVudGVk?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("line1\r\nline2", "=?base64?bGluZTENCmxpbmUy?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ("=?base64?SGVsbG8=", "=?base64?SGVsbG8="),
    ],
)
def test_a_value_is_wrapped_when_a_header_cannot_carry_it(text: str, header: str) -> None:
    assert encode_value(text) == header
    assert decode_value(header) == text


@pytest.mark.spec("XH-7", "XH-8")
@pytest.mark.case("RV-04")
@given(st.text() | st.text(alphabet="=?base64 \tAQ"))
def test_every_text_survives_the_header(text: str) -> None:
    header = encode_value(text)
    assert header.isascii()
    assert header == header.strip()
    assert header.isprintable()
    assert decode_value(f" \t{header} ") == text


def test_a_lone_surrogate_has_no_header() -> None:
    with pytest.raises(ValueError):
        encode_value("\ud800")


@pytest.mark.spec("XH-8")
@pytest.mark.parametrize(
    "header",
    [
        "=?base64?SGVsbG8?=",  # no padding
        "=?base64?SGVsbG8==?=",  # too much of it
        "=?base64?SGVs!!!bG8=?=",
        "=?base64?SGVs bG8=?=",
        "=?base64?-_-_?=",  # the URL alphabet
        "=?base64?aGl=?=",  # stray bits: the canonical form is aGk=
        "=?base64?/w==?=",  # not UTF-8
        "=?base64?7aCA?=",  # a surrogate in UTF-8
        "=?base64?h\u00e9llo?=",
        "h\u00e9llo",
        "h\udce9llo",  # how an octet that is not UTF-8 reaches us
        "a\x00b",
        "a\x7fb",
    ],
)
def test_a_value_two_readers_could_take_differently_is_malformed(header: str) -> None:
    assert decode_value(header) is None


@pytest.mark.spec("XH-8", "XH-13")
@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("SGVsbG8=", "SGVsbG8="),
        ("=?base64?SGVsbG8=", "=?base64?SGVsbG8="),
        ("=?BASE64?SGVsbG8=?=", "=?BASE64?SGVsbG8=?="),
        ("=?Base64?SGVsbG8=?=", "=?Base64?SGVsbG8=?="),
        ("=?base64?=", "=?base64?="),
        ("x=?base64?SGVsbG8=?=", "x=?base64?SGVsbG8=?="),
        ("=?base64??=", ""),
        ("  foo\t", "foo"),
        ("a\tb", "a\tb"),
    ],
)
def test_an_incomplete_sentinel_is_just_text(header: str, text: str) -> None:
    assert decode_value(header) == text


@pytest.mark.spec("HL-17")
@pytest.mark.parametrize(
    ("text", "valid"),
    [("0123abcd-~!", True), ("", False), ("a b", False), ("a\n", False), ("\x7f", False), ("é", False)],
)
def test_a_session_id_is_visible_ascii(text: str, valid: bool) -> None:
    assert is_session_id(text) is valid


# --- legacy ---


@pytest.mark.spec("HL-21", "HL-22")
@pytest.mark.case("HT-05")
@pytest.mark.parametrize("negotiated", [None, *LEGACY_VERSIONS])
@pytest.mark.parametrize("header", [None, *LEGACY_VERSIONS])
def test_a_session_takes_a_missing_header_and_every_legacy_revision(
    header: str | None, negotiated: str | None
) -> None:
    assert legacy_version(header, negotiated) is None


@pytest.mark.spec("HL-21")
@pytest.mark.case("HT-05")
@pytest.mark.parametrize("header", ["", "2099-01-01", "1.0", MODERN, "2025-06-18, 2025-06-18", "\udcff"])
def test_a_session_refuses_any_other_version(header: str) -> None:
    refusal = legacy_version(header, "2025-11-25")
    assert refusal is not None
    assert (refusal.status, refusal.code) == (400, -32600)
    assert all(version in refusal.message for version in LEGACY_VERSIONS)


def test_a_version_only_the_server_knows_passes_once_it_is_negotiated() -> None:
    assert legacy_version("2025-12-01-vendor", "2025-12-01-vendor") is None


# --- era ---


@pytest.mark.spec("EV-14", "HM-14")
@pytest.mark.parametrize(
    ("method", "versions", "enveloped", "session", "era"),
    [
        ("tools/list", [MODERN], True, False, Era.MODERN),
        ("tools/list", [MODERN], False, False, Era.MODERN),
        ("tools/list", [MODERN], False, True, Era.MODERN),
        ("tools/list", ["2099-01-01"], True, False, Era.MODERN),
        ("tools/list", ["2099-01-01"], False, False, Era.MODERN),
        ("tools/list", ["2099-01-01"], False, True, Era.LEGACY),
        ("tools/list", [], True, False, Era.MODERN),
        ("tools/list", [], True, True, Era.MODERN),
        ("tools/list", ["2025-11-25"], True, False, Era.MODERN),
        ("tools/list", ["2025-11-25"], False, True, Era.LEGACY),
        ("tools/list", ["2025-11-25"], False, False, Era.LEGACY),
        ("tools/list", [], False, True, Era.LEGACY),
        ("tools/list", [], False, False, Era.LEGACY),
        ("tools/list", [" 2025-11-25\t"], False, False, Era.LEGACY),
        ("tools/list", ["2025-11-25", MODERN], False, True, Era.MODERN),
        ("tools/list", ["2025-11-25", "2025-11-25"], False, False, Era.LEGACY),
        ("initialize", [], False, False, Era.LEGACY),
        ("initialize", ["2025-06-18"], False, False, Era.LEGACY),
        ("initialize", [MODERN], False, False, Era.LEGACY),
        ("initialize", ["2099-01-01"], False, False, Era.LEGACY),
        ("initialize", [MODERN], True, False, Era.MODERN),
        ("initialize", [], True, False, Era.MODERN),
        (None, [MODERN], False, False, Era.MODERN),
        (None, ["2025-11-25"], False, True, Era.LEGACY),
        (None, [], False, False, Era.LEGACY),
    ],
)
def test_era_of_a_post(
    method: str | None, versions: Sequence[str], enveloped: bool, session: bool, era: Era
) -> None:
    assert classify(method, versions, enveloped=enveloped, session=session) is era


# --- reading the body ---


def params(meta: Mapping[str, object] | None = ENVELOPE, /, **members: object) -> bytes:
    return json.dumps(members if meta is None else {**members, "_meta": meta}).encode()


def without(key: str) -> Mapping[str, object]:
    return {name: value for name, value in ENVELOPE.items() if name != f"io.modelcontextprotocol/{key}"}


def having(key: str, value: object) -> Mapping[str, object]:
    return {**ENVELOPE, f"io.modelcontextprotocol/{key}": value}


def test_claims_are_read_from_the_body() -> None:
    read = claims("tools/call", params(having("logLevel", "info"), name="a", arguments={"x": 1}))
    assert read == Claims(
        method="tools/call",
        name="a",
        arguments=b'{"x": 1}',
        has_meta=True,
        enveloped=True,
        version=MODERN,
        has_capabilities=True,
        log_level="info",
    )


@pytest.mark.parametrize("absent", [None, msgspec.UNSET, b"[]", b"{}", b'{"_meta":5}', b'{"_meta":null}'])
def test_a_body_without_meta_claims_nothing(absent: Any) -> None:
    assert claims("ping", absent) == Claims(method="ping")


@pytest.mark.parametrize(
    ("method", "key"),
    [
        ("tools/call", "name"),
        ("prompts/get", "name"),
        ("resources/read", "uri"),
        ("tasks/get", "taskId"),
        ("tasks/update", "taskId"),
        ("tasks/cancel", "taskId"),
    ],
)
@pytest.mark.spec("HM-11")
def test_the_mirrored_name_depends_on_the_method(method: str, key: str) -> None:
    members = {"name": "n", "uri": "u", "taskId": "t"}
    assert claims(method, params(ENVELOPE, **members)).name == members[key]
    assert claims("tools/list", params(ENVELOPE, **members)).name is None


def test_raw_values_and_escaped_keys_are_read() -> None:
    body = msgspec.Raw(b'{"\\u006eame":"caf\\u00e9","_meta":{}}')
    assert claims("tools/call", body).name == "café"


def test_a_lone_surrogate_elsewhere_does_not_hide_the_envelope() -> None:
    body = params(name="a", arguments={"x": "\ud800"})
    assert claims("tools/call", body).enveloped


def test_a_name_with_a_lone_surrogate_agrees_with_no_header() -> None:
    body = params(name="\ud800")
    assert claims("tools/call", body).name == "\ud800"
    assert code(verdict("tools/call", body, "?")) == -32020


@pytest.mark.parametrize("version", [5, None, {}, ["2026-07-28"], {"\ud800": 1}])
def test_a_version_of_the_wrong_type_is_an_envelope_still(version: object) -> None:
    read = claims("ping", params(having("protocolVersion", version)))
    assert read.enveloped
    assert read.version is None


# --- the ladder ---


def lookup(*pairs: tuple[str, str]) -> Lookup:
    def getall(name: str) -> Sequence[str]:
        return [value for key, value in pairs if key.lower() == name.lower()]

    return getall


Sent = Mapping[str, str | Sequence[str] | None]


def request_headers(method: str, name: str | None, changes: Sent) -> Lookup:
    sent: dict[str, str | Sequence[str] | None] = {headers.VERSION: MODERN, headers.METHOD: method}
    sent |= {headers.NAME: name, **changes}
    pairs: list[tuple[str, str]] = []
    for key, value in sent.items():
        values = [value] if isinstance(value, str) else value or ()
        pairs += [(key, one) for one in values]
    return lookup(*pairs)


def verdict(
    method: str = "tools/list",
    body: bytes | None = None,
    name: str | None = None,
    changes: Sent | None = None,
) -> Refusal | None:
    request = claims(method, params() if body is None else body)
    return check(request_headers(method, name, changes or {}), request)


def code(refusal: Refusal | None) -> int | None:
    if refusal is None:
        return None
    assert refusal.status == 400
    return refusal.code


def test_a_correct_request_passes() -> None:
    assert verdict() is None
    assert verdict("tools/call", params(name="a"), "a") is None
    assert verdict("resources/read", params(uri="file:///a?b=c"), "file:///a?b=c") is None


@pytest.mark.spec("EV-3", "HM-11", "HM-20")
def test_a_missing_envelope_is_named_even_if_headers_are_wrong() -> None:
    assert code(verdict(body=params(None))) == -32602
    assert code(verdict(body=params(None), changes={headers.METHOD: None, headers.VERSION: None})) == -32602


@pytest.mark.spec("HM-20")
@pytest.mark.parametrize("missing", ["protocolVersion", "clientCapabilities"])
def test_wrong_headers_come_before_an_incomplete_envelope(missing: str) -> None:
    body = params(without(missing))
    assert code(verdict(body=body)) == -32602
    assert code(verdict(body=body, changes={headers.METHOD: None})) == -32020
    assert code(verdict(body=body, changes={headers.VERSION: None})) == -32020


@pytest.mark.spec("EV-1", "EV-3")
@pytest.mark.parametrize("meta", [{}, {"progressToken": 1}, without("protocolVersion")])
def test_an_envelope_without_version_is_refused(meta: Mapping[str, object]) -> None:
    assert code(verdict(body=params(meta))) == -32602


@pytest.mark.spec("EV-3")
@pytest.mark.parametrize("value", [None, 5, "{}", [], True])
def test_capabilities_that_are_no_object_are_refused(value: object) -> None:
    assert code(verdict(body=params(having("clientCapabilities", value)))) == -32602


@pytest.mark.spec("EV-3")
@pytest.mark.parametrize("value", [None, 5, {}])
def test_a_version_that_is_no_string_is_an_envelope_fault(value: object) -> None:
    assert code(verdict(body=params(having("protocolVersion", value)))) == -32602


@pytest.mark.spec("EV-4")
def test_client_info_is_not_needed() -> None:
    assert verdict(body=params(without("clientInfo"))) is None


@pytest.mark.spec("HM-11")
@pytest.mark.parametrize(
    ("header", "version"),
    [
        (MODERN, "2025-11-25"),
        (MODERN, "v999.0.0"),
        (None, MODERN),
        ("2025-11-25", MODERN),
        ("2099-01-01", MODERN),
        ("", MODERN),
        (f"{MODERN}, {MODERN}", MODERN),
    ],
)
def test_versions_that_differ_are_a_mismatch_whatever_they_are(header: str | None, version: str) -> None:
    body = params(having("protocolVersion", version))
    assert code(verdict(body=body, changes={headers.VERSION: header})) == -32020


@pytest.mark.spec("HM-12", "EV-9", "EV-18")
@pytest.mark.parametrize("version", ["2099-01-01", "v999.0.0", "2025-11-25"])
def test_an_unsupported_version_is_told_what_is_supported(version: str) -> None:
    refusal = verdict(body=params(having("protocolVersion", version)), changes={headers.VERSION: version})
    assert refusal is not None
    assert (refusal.status, refusal.code) == (400, -32022)
    assert json.loads(refusal.data or b"") == {"supported": [MODERN], "requested": version}


@pytest.mark.spec("HM-12")
@pytest.mark.parametrize("meta", [None, {}, {"progressToken": 1}])
def test_an_unknown_header_version_is_answered_where_the_body_names_none(
    meta: Mapping[str, object] | None,
) -> None:
    refusal = verdict(body=params(meta), changes={headers.VERSION: "2099-\udcff"})
    assert refusal is not None
    assert refusal.code == -32022
    assert json.loads(refusal.data or b"")["requested"] == "2099-?"


def test_an_unsupported_version_with_a_lone_surrogate_is_still_answered() -> None:
    read = Claims(method="x", has_meta=True, enveloped=True, version="\ud800", has_capabilities=True)
    sent = lookup((headers.VERSION, "\ud800"), (headers.METHOD, "x"))
    refusal = check(sent, read)
    assert refusal is not None
    assert refusal.data == b'{"supported":["2026-07-28"],"requested":"?"}'


@pytest.mark.spec("HM-11", "XH-1")
@pytest.mark.case("RV-04")
@pytest.mark.parametrize(
    "header", [None, "", "Tools/List", "TOOLS/LIST", "prompts/list", "tools/list, tools/list"]
)
def test_the_method_header_is_held_against_the_body(header: str | None) -> None:
    assert code(verdict(changes={headers.METHOD: header})) == -32020


@pytest.mark.spec("XH-1")
@pytest.mark.parametrize("spelling", ["mcp-method", "MCP-METHOD", "mCp-MeThOd"])
def test_header_names_have_no_case(spelling: str) -> None:
    request = claims("tools/list", params())
    assert check(lookup((spelling, "tools/list"), ("mcp-protocol-version", MODERN)), request) is None


@pytest.mark.spec("XH-13")
def test_blanks_around_a_value_are_not_part_of_it() -> None:
    changes = {headers.METHOD: " tools/call\t", headers.VERSION: f" {MODERN} ", headers.NAME: "  a  "}
    assert verdict("tools/call", params(name="a"), changes=changes) is None


@pytest.mark.spec("HM-11", "XH-7", "XH-8")
@pytest.mark.case("RV-04")
@pytest.mark.parametrize(
    ("name", "header", "agrees"),
    [
        ("a", "a", True),
        ("a", None, False),
        ("a", "b", False),
        ("a", "A", False),
        ("", "", True),
        ("", None, False),
        ("héllo", "=?base64?aMOpbGxv?=", True),
        ("héllo", "=?base64?aMOpbGx?=", False),
        ("héllo", "héllo", False),
        ("工具", "=?base64?5bel5YW3?=", True),
        (" a ", "=?base64?IGEg?=", True),
        (" a ", " a ", False),
        ("=?base64?x?=", "=?base64?PT9iYXNlNjQ/eD89?=", True),
        ("=?base64?x?=", "=?base64?x?=", False),
        ("n" * 4096, "n" * 4096, True),
    ],
)
def test_the_name_header_is_held_against_the_body(name: str, header: str | None, agrees: bool) -> None:
    assert code(verdict("tools/call", params(name=name), header)) == (None if agrees else -32020)


@pytest.mark.spec("HM-11")
@pytest.mark.parametrize("method", ["resources/read", "tasks/get", "tasks/update", "tasks/cancel"])
def test_other_names_are_held_as_well(method: str) -> None:
    body = params(ENVELOPE, **{headers.MIRRORED_NAME[method]: "x:1"})
    assert verdict(method, body, "x:1") is None
    assert code(verdict(method, body, "x:2")) == -32020
    assert code(verdict(method, body)) == -32020


def test_a_name_header_is_refused_if_the_body_has_none_to_mirror() -> None:
    assert code(verdict("tools/call", params(), "a")) == -32020
    assert code(verdict("tools/call", params(name=5), "5")) == -32020


def test_a_body_without_name_is_left_for_the_server_to_refuse() -> None:
    assert verdict("tools/call", params()) is None


def test_a_name_header_means_nothing_on_other_methods() -> None:
    assert verdict("tools/list", params(), "whatever") is None


@pytest.mark.spec("HM-18", "HM-20")
@pytest.mark.case("RV-04")
@pytest.mark.parametrize(
    "changes",
    [
        {headers.NAME: ["a", "a"]},
        {headers.METHOD: ["tools/call", "tools/call"]},
        {headers.VERSION: [MODERN, MODERN]},
        {headers.VERSION: ["2025-11-25", MODERN]},
    ],
)
@pytest.mark.parametrize("meta", [ENVELOPE, None])
def test_a_routing_header_sent_twice_is_malformed_before_anything_else(
    changes: Sent, meta: Mapping[str, object] | None
) -> None:
    assert code(verdict("tools/call", params(meta, name="a"), "a", changes)) == -32020


@pytest.mark.parametrize("level", sorted(headers.LOG_LEVELS))
def test_every_log_level_passes(level: str) -> None:
    assert verdict(body=params(having("logLevel", level))) is None


@pytest.mark.spec("EV-3")
@pytest.mark.parametrize("level", ["loud", "INFO", "", 5, None, {}])
def test_an_unknown_log_level_is_refused(level: object) -> None:
    assert code(verdict(body=params(having("logLevel", level)))) == -32602


@pytest.mark.spec("ER-16")
@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (verdict(changes={headers.METHOD: "x"}), "header_mismatch"),
        (verdict(body=params(None)), "envelope"),
        (legacy_version("2099-01-01", None), "protocol_version"),
    ],
)
def test_a_refusal_says_that_it_is_the_bridges_own(refusal: Refusal | None, reason: str) -> None:
    assert refusal is not None
    assert json.loads(refusal.data or b"") == {"origin": "bridge", "reason": reason}


# --- status ---


@pytest.mark.spec("ER-1", "ER-2", "ER-3", "ER-4", "ER-5", "ER-6", "ER-7", "ER-8", "ER-11", "HM-13", "EV-6")
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (-32700, 400),
        (-32600, 400),
        (-32601, 404),
        (-32602, 200),
        (-32603, 200),
        (-32020, 400),
        (-32021, 400),
        (-32022, 400),
        (-32000, 200),
        (-32002, 200),
        (-32042, 200),
        (1234, 200),
    ],
)
def test_modern_status_of_an_error(error: int, status: int) -> None:
    assert status_of(error, modern=True) == status


@pytest.mark.spec("HL-23")
@pytest.mark.parametrize("error", [-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022, -32000, 1])
def test_a_legacy_client_gets_every_error_as_200(error: int) -> None:
    assert status_of(error, modern=False) == 200
