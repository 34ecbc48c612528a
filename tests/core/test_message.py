"""One JSON text read as a message: what is one, what is refused and how, and what is left untouched."""

from __future__ import annotations

import pytest
from grammar import BLANKS, IDS, OBJECTS, STRUCTURES, VALUES, is_json, object_of, tokens
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw, UnsetType

from bridge.core import message
from bridge.core.message import (
    INVALID_REQUEST,
    MOST_IN_BATCH,
    PARSE_ERROR,
    Batch,
    Id,
    Malformed,
    Notification,
    Request,
    Response,
    line_safe,
    params_of,
    salvaged_id,
    task_of,
)

DEPTH = 128


def read(text: bytes) -> Request | Notification | Response | Batch | Malformed:
    return message.read(text, depth=DEPTH)


def request(text: bytes) -> Request:
    found = read(text)
    assert isinstance(found, Request), found
    return found


def response(text: bytes) -> Response:
    found = read(text)
    assert isinstance(found, Response), found
    return found


def refused(text: bytes) -> Malformed:
    found = read(text)
    assert isinstance(found, Malformed), found
    return found


def raw(value: Raw | UnsetType) -> bytes:
    assert value is not UNSET
    return bytes(value)


# --- what is a message ---


def test_request_has_an_id_a_method_and_params_as_they_came() -> None:
    found = request(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"a": 1.0}}')
    assert (found.id, found.method, raw(found.params)) == (1, "tools/call", b'{"a": 1.0}')


@pytest.mark.spec("G-8")
def test_a_message_with_a_method_and_no_id_is_a_notification() -> None:
    found = read(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    assert found == Notification(
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}', "notifications/initialized"
    )


@pytest.mark.spec("G-19", "G-3")
@pytest.mark.case("ID-01", "ID-03")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("-1", -1),
        ('"0"', "0"),
        ('"1"', "1"),
        ('""', ""),
        ('"007"', "007"),
        ('"c5a0a3e6-0d2f-4a39-9d0c-6f1a2f7b9b11"', "c5a0a3e6-0d2f-4a39-9d0c-6f1a2f7b9b11"),
        ('"' + "x" * 4096 + '"', "x" * 4096),
        ('"日本"', "日本"),
        (r'"\u65e5\/"', "日/"),
        ("2147483648", 2147483648),
        ("9007199254740993", 9007199254740993),
        ("18446744073709551615", 18446744073709551615),
        ("-123456789012345678901234567890", -123456789012345678901234567890),
    ],
)
def test_an_id_keeps_its_value_and_its_type(text: str, expected: Id) -> None:
    asked = request(b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % text.encode())
    answered = response(b'{"jsonrpc":"2.0","id":%b,"result":{}}' % text.encode())
    for found in (asked, answered):
        assert found.id == expected
        assert type(found.id) is type(expected)
        assert found.with_id(7).with_id(expected).id == expected
        again = read(found.with_id(7).with_id(expected).raw)
        assert isinstance(again, Request | Response)
        assert again.id == expected
        assert type(again.id) is type(expected)


@pytest.mark.spec("G-3")
@pytest.mark.parametrize(
    "text", [b"null", b"1.0", b"1e2", b"1E400", b"true", b"[]", b"{}", b'"\\ud800"', b"9" * 5000]
)
def test_what_is_neither_string_nor_integer_is_no_id(text: bytes) -> None:
    assert refused(b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % text).code == INVALID_REQUEST


@pytest.mark.spec("G-1")
@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b'{"id":1,"method":"ping"}',
        b'{"jsonrpc":2.0,"id":1,"method":"ping"}',
        b'{"jsonrpc":"1.0","id":1,"method":"ping"}',
        b'{"status":200,"ok":true}',
        b'{"level":"info","id":1}',
    ],
)
def test_an_object_that_does_not_say_it_is_json_rpc_is_refused_without_an_id(text: bytes) -> None:
    """A server prints objects with an "id" that is no request's (FR-01)."""
    assert (refused(text).code, refused(text).id) == (INVALID_REQUEST, None)


@pytest.mark.parametrize(
    "text", [b'{"id":5,"result":{}}', b'{"jsonrpc":"1.0","id":5,"error":"no","result":null}']
)
def test_what_looks_like_an_answer_names_its_call_all_the_same(text: bytes) -> None:
    assert (refused(text).code, refused(text).id) == (INVALID_REQUEST, 5)


@pytest.mark.spec("G-6")
@pytest.mark.parametrize(
    "text",
    [
        b'{"jsonrpc":"2.0","id":5,"method":7}',
        b'{"jsonrpc":"2.0","id":5,"method":null,"result":{}}',
        b'{"jsonrpc":"2.0","id":5,"method":"ping","params":"x"}',
        b'{"jsonrpc":"2.0","id":5,"method":"ping","params":7}',
        b'{"jsonrpc":"2.0","id":5,"method":"ping","result":{}}',
        b'{"jsonrpc":"2.0","id":5,"method":"ping","error":{"code":1,"message":""}}',
        b'{"jsonrpc":"2.0","id":5}',
        b'{"jsonrpc":"2.0","id":5,"result":{},"error":{"code":1,"message":""}}',
    ],
)
def test_a_refusal_names_the_id_of_what_says_it_is_json_rpc(text: bytes) -> None:
    assert (refused(text).code, refused(text).id) == (INVALID_REQUEST, 5)


@pytest.mark.spec("G-7")
@pytest.mark.parametrize(
    "error",
    [
        b"null",
        b"{}",
        b"7",
        b'{"code":1}',
        b'{"message":"x"}',
        b'{"code":"E","message":"x"}',
        b'{"code":1.5,"message":"x"}',
        b'{"code":1,"message":null}',
        b'{"code":true,"message":"x"}',
    ],
)
def test_an_error_without_integer_code_and_message_is_refused(error: bytes) -> None:
    assert refused(b'{"jsonrpc":"2.0","id":5,"error":%b}' % error).id == 5


@pytest.mark.spec("G-7")
@pytest.mark.case("ID-11")
@pytest.mark.parametrize(
    "error",
    [
        b'{"code":-31999,"message":"x","data":{"a":[null,{"hasOwnProperty":1}]}}',
        b'{"message":"\\ud800","code":0}',
        b'{"code":123456789012345678901234567890,"message":""}',
        b'{ "code" : -1 , "message" : "x" }',
    ],
)
def test_any_other_error_passes_as_it_is(error: bytes) -> None:
    assert raw(response(b'{"jsonrpc":"2.0","id":5,"error":%b}' % error).error) == error


@pytest.mark.spec("G-20")
@pytest.mark.parametrize("text", [b'"id":null,', b""])
def test_only_an_error_may_be_without_an_id(text: bytes) -> None:
    assert response(b'{"jsonrpc":"2.0",%b"error":{"code":1,"message":"x"}}' % text).id is None
    assert refused(b'{"jsonrpc":"2.0",%b"result":{}}' % text).code == INVALID_REQUEST


def test_a_result_may_be_anything() -> None:
    for value in (b"null", b"0", b'""', b"[]", b"false"):
        assert raw(response(b'{"jsonrpc":"2.0","id":1,"result":%b}' % value).result) == value


def test_null_params_count_as_none_and_are_left_out() -> None:
    """Clients send them, and JSON-RPC does not know them: many a server would choke."""
    found = request(b'{"jsonrpc":"2.0","id":1,"params":null,"method":"tools/list","x":0}')
    assert found.params is UNSET
    assert found.raw == b'{"jsonrpc":"2.0","id":1,"method":"tools/list","x":0}'
    told = read(b'{"jsonrpc":"2.0","method":"notifications/initialized","params": null }')
    assert isinstance(told, Notification)
    assert told.raw == b'{"jsonrpc":"2.0","method":"notifications/initialized"}'


# --- what is no JSON ---


@pytest.mark.spec("G-2", "ER-1")
@pytest.mark.case("FR-06")
@pytest.mark.parametrize(
    "text",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{"x":"\x97"}}',
        b'\xff\xfe{"jsonrpc":"2.0","id":1,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"\xed\xa0\x80"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"\xc0\xaf"}}',
        b"\xff",
    ],
)
def test_invalid_utf8_is_a_parse_error(text: bytes) -> None:
    assert refused(text).code == PARSE_ERROR


@pytest.mark.spec("ER-1", "ER-2")
@pytest.mark.case("FR-07")
def test_what_is_no_json_and_what_is_no_message_are_told_apart() -> None:
    for text in (
        b"",
        b" ",
        b"[1,",
        b"{not json",
        b"{",
        b'{"jsonrpc":"2.0","id":1,"method":"ping"',
        b"nul",
        b"\x00",
    ):
        assert refused(text).code == PARSE_ERROR
    for text in (b"{}", b'"x"', b"null", b"42", b"[]", b'{"jsonrpc":"2.0"}'):
        assert refused(text).code == INVALID_REQUEST


@pytest.mark.parametrize(
    "text", [b"NaN", b"Infinity", b"-Infinity", b"01", b"1.", b".5", b"+1", b"0x1", b"1e"]
)
def test_numbers_that_json_does_not_know_are_a_parse_error(text: bytes) -> None:
    for escape in (b"", b',"y":"\\ud800"'):
        body = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":%b%b}}' % (text, escape)
        assert refused(body).code == PARSE_ERROR


@pytest.mark.case("FR-01")
def test_a_byte_order_mark_inside_a_stream_is_no_json() -> None:
    """The line framing takes the one at the start of a stream."""
    assert refused(b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"ping"}').code == PARSE_ERROR


# --- limits ---


def nested(levels: int, opening: bytes, closing: bytes) -> bytes:
    inner = opening * (levels - 1) + b"0" + closing * (levels - 1)
    return b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":%b}}' % inner[len(opening) :]


@pytest.mark.case("ID-09")
@pytest.mark.parametrize("levels", [DEPTH + 1, 300, 2_000, 200_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_what_nests_too_deep_is_refused_by_its_id(levels: int, opening: bytes, closing: bytes) -> None:
    text = b'{"jsonrpc":"2.0","id":7,"result":%b0%b}' % (opening * (levels - 1), closing * (levels - 1))
    assert refused(text) == Malformed(INVALID_REQUEST, "Invalid Request: nested more than 128 levels deep", 7)


@pytest.mark.case("ID-09")
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_what_nests_as_deep_as_allowed_passes(opening: bytes, closing: bytes) -> None:
    text = b'{"jsonrpc":"2.0","id":7,"result":%b0%b}' % (opening * (DEPTH - 1), closing * (DEPTH - 1))
    assert response(text).raw == text


def test_brackets_in_strings_do_not_nest() -> None:
    text = b'{"jsonrpc":"2.0","id":7,"result":{"text":"%b\\"%b"}}' % (b"[" * 300, b"{" * 300)
    assert response(text).raw == text


@pytest.mark.case("ID-09")
@pytest.mark.parametrize("filling", [b'\\"', b'"', b"\\\\", b'"a', b"[", b'"]'])
def test_a_hostile_body_of_a_megabyte_is_refused_at_once(filling: bytes) -> None:
    """With a search per quote the first of these took hours."""
    text = b'{"a":' + b"[" * (DEPTH + 1) + b'"' + filling * (2**20 // len(filling))
    assert refused(text).code in (INVALID_REQUEST, PARSE_ERROR)


@pytest.mark.parametrize(
    "twice",
    [
        b'"id":1,"id":2,"method":"a"',
        b'"id":1,"method":"a","method":"b"',
        b'"id":1,"method":"a","\\u006dethod":"b"',
        b'"id":1,"\\u0069d":1,"method":"a"',
        b'"id":1,"method":"a","params":{},"params":{}',
        b'"id": 1, "method": "a", "params": {"id": 3}, "id": 1',
        b'"id":1,"id":1,"method":"a","params":{}',
        b'"id":1,"method":"a","jsonrpc":"2.0"',
        b'"id":1,"result":{},"result":{"a":"[{}]:"}',
        b'"id":1,"method":"a","x":1,"x":2',
        b'"id":1,"method":"a","":1,"":2',
        b'"id":1,"method":"a","x\\ud800":1,"x\\ud800":2',
        '"id":1,"method":"a","éé\\ud800":1,"id":1'.encode(),
        b'"id":"\\b\\b\\b\\b","method":"a","method":"bcd"',
    ],
)
def test_an_envelope_with_equal_keys_is_refused(twice: bytes) -> None:
    for text in (b'{"jsonrpc":"2.0",%b}' % twice, b'{ %b , "jsonrpc":"2.0" }' % twice):
        assert refused(text).message == "Invalid Request: a member stands twice"


@pytest.mark.parametrize(
    "text",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":1,"x":2,"id":3,"method":[{"id":4}]}}',
        b'{"jsonrpc": "2.0", "id": 1, "method": "a", "params": {"id": 2, "a": {"id": 3, "id": 4}}}',
        b'{"jsonrpc":"2.0","id":1,"result":[{"id":1},{"id":1}],"id ":1,"Id":2}',
        '{"jsonrpc":"2.0","id":1,"method":"é\\u00e9\\"","params":{}}'.encode(),
    ],
)
def test_equal_keys_further_down_pass(text: bytes) -> None:
    found = read(text)
    assert isinstance(found, Request | Response)
    assert found.raw == text


# --- one line ---


@pytest.mark.spec("SC-2", "SS-2")
@pytest.mark.case("FR-08")
@pytest.mark.parametrize(
    "text",
    [
        b'{\r\n  "jsonrpc": "2.0",\r\n  "id": 1,\r\n  "method": "a",\r\n  "params": {"t": "x  y" }\r\n}\r\n',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"t":"x  y"}}\n\n',
        b'\n\t {"jsonrpc":"2.0",\r"id":1,\r"method":"a","params":{"t":\r"x  y"}}',
        b'\r{"jsonrpc":"2.0","id":1,"method":"a","params":{"t":"x  y"}}\r',
    ],
)
def test_a_message_over_several_lines_becomes_one(text: bytes) -> None:
    assert request(text).raw == b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"t":"x  y"}}'


@pytest.mark.parametrize(
    "text", [b'{"jsonrpc":"2.0","id":1,"method":"a\nb"}', b'{"jsonrpc":"2.0","id":"\r","method":""}']
)
def test_a_line_break_within_a_string_is_a_parse_error(text: bytes) -> None:
    assert refused(text).code == PARSE_ERROR
    assert refused(text[:-1] + b',"x":"\\ud800"}').code == PARSE_ERROR


@pytest.mark.case("ID-03", "ID-11")
def test_payload_text_is_not_changed() -> None:
    payload = (
        b'{"big":1234567890123456789,"d":0.1000000000000000055,"f":1.0,"e":1E5,"z":-0,"inf":1e400,'
        b'"long":%b,"s":"\\ud800 \\u00e9 \\/","__proto__":null,"":[],"a":{"a":1,"a":2}}' % (b"7" * 5000)
    )
    for text in (
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":%b}' % payload,
        b'{"jsonrpc":"2.0","method":"m","params":%b}' % payload,
        b'{"jsonrpc":"2.0","id":1,"result":%b}' % payload,
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-31999,"message":"","data":%b}}' % payload,
    ):
        found = read(text)
        assert isinstance(found, Request | Notification | Response)
        assert found.raw == text
        if not isinstance(found, Notification):
            assert payload in found.with_id("other").raw


@pytest.mark.case("FR-04")
def test_line_separators_of_unicode_are_escaped_for_readers_that_break_lines_there() -> None:
    text = '{"jsonrpc":"2.0","method":"m","params":{"t":"a\u2028b\u2029c\u0085é"}}'.encode()
    found = read(text)
    assert isinstance(found, Notification)
    assert found.raw == text
    assert line_safe(text) == (
        '{"jsonrpc":"2.0","method":"m","params":{"t":"a\\u2028b\\u2029c\\u0085é"}}'.encode()
    )
    for plain in ('{"t":"é"}'.encode(), b'{"t":"e"}'):
        assert line_safe(plain) == plain


def test_a_line_break_within_a_number_or_a_name_is_a_parse_error() -> None:
    """Taken out, it would leave another message."""
    for text in (b'{"jsonrpc":"2.0","id":1\n2,"method":"a"}', b'{"jsonrpc":"2.0","id":1,"result":tr\rue}'):
        assert refused(text).code == PARSE_ERROR


# --- batches ---


@pytest.mark.spec("BT-1", "BT-7")
@pytest.mark.case("ID-08")
def test_a_batch_is_read_member_by_member() -> None:
    found = read(b' [{"jsonrpc":"2.0","id":1,"method":"a"},\r\n 1, {"jsonrpc":"2.0","method":"b"}, []]')
    assert isinstance(found, Batch)
    kinds = [type(member) for member in found.members]
    assert kinds == [Request, Malformed, Notification, Malformed]
    assert isinstance(found.members[0], Request)
    assert found.members[0].raw == b'{"jsonrpc":"2.0","id":1,"method":"a"}'


@pytest.mark.spec("BT-6")
@pytest.mark.case("ID-08")
def test_an_empty_batch_and_a_batch_in_a_batch_are_refused() -> None:
    assert refused(b"[]").code == INVALID_REQUEST
    found = read(b'[[{"jsonrpc":"2.0","id":1,"method":"a"}]]')
    assert found == Batch((Malformed(INVALID_REQUEST, "Invalid Request: nested batch"),))


def test_half_a_surrogate_pair_does_not_harm_a_batch() -> None:
    text = b'[{"jsonrpc":"2.0","id":1,"result":{"x":"\\ud800"}},{"jsonrpc":"2.0","id":2,"method":"a"}]'
    found = read(text)
    assert isinstance(found, Batch)
    assert [type(member) for member in found.members] == [Response, Request]


def test_a_batch_beyond_the_limit_is_refused_whole() -> None:
    assert isinstance(read(b"[" + b",".join([b"1"] * MOST_IN_BATCH) + b"]"), Batch)
    assert refused(b"[" + b",".join([b"1"] * (MOST_IN_BATCH + 1)) + b"]").code == INVALID_REQUEST


# --- what routing looks at ---


def test_params_tell_what_routing_needs() -> None:
    found = params_of(
        message.request(
            1, "m", b'{"uri":"file:///a","level":"info","requestId":0,"_meta":{"progressToken":"t"}}'
        )
    )
    assert (found.uri, found.level, found.request_id) == ("file:///a", "info", 0)
    assert found.meta is not UNSET
    assert (found.meta.token, found.meta.subscription) == ("t", UNSET)


@pytest.mark.spec("CP-7", "CP-8")
@pytest.mark.parametrize("wrong", [b"1.0", b"null", b"true", b"[]", b"{}", b'"\\ud800"', b"9" * 5000])
def test_a_member_of_the_wrong_type_counts_as_absent_and_harms_no_other(wrong: bytes) -> None:
    params = b'{"requestId":%b,"_meta":{"progressToken":%b,"x":"\\ud800"},"uri":"u"}' % (wrong, wrong)
    found = params_of(message.notification("m", params))
    assert (found.request_id, found.uri) == (UNSET, "u")
    assert found.meta is not UNSET
    assert found.meta.token is UNSET


@pytest.mark.parametrize(
    "params", [b"[]", b'["requestId",1]', b'{"_meta":7}', b'{"_meta":[]}', b'{"_meta":null}']
)
def test_params_of_another_shape_tell_nothing(params: bytes) -> None:
    found = params_of(message.request(1, "m", params))
    assert found.request_id is UNSET
    assert found.meta is UNSET or found.meta.token is UNSET


def test_a_task_is_found_in_what_made_it_and_in_what_tells_of_it() -> None:
    created = Raw(b'{"task":{"taskId":"t1","status":"working","ttl":1}}')
    assert task_of(created, created=True) == message.Task("t1", "working")
    assert task_of(Raw(b'{"taskId":"t1","status":"failed"}')) == message.Task("t1", "failed")
    assert not task_of(UNSET).id
    for payload in (b"null", b"[]", b'{"taskId":5}', b'{"content":[]}', b'{"task":{}}'):
        assert not task_of(Raw(payload)).id
        assert not task_of(Raw(payload), created=True).id


# --- the id of what cannot be read ---


@pytest.mark.parametrize(
    "text",
    [
        b'{"jsonrpc":"2.0","id":7,"result":{"x":"\x97"}}',
        b'{"jsonrpc": "2.0", "id": 7, "result": {"x": "\x97"}}',
        b'{"id":7,"jsonrpc":"2.0","result":',
        b'{"result":{"x":"\x97"},"jsonrpc":"2.0","id":7}',
        b'{"result":{"x":"\x97"},"id":7,"jsonrpc":"2.0"}\r',
        b'{"jsonrpc":"2.0","result":{"x":"\x97"},"id":7}',
    ],
)
@pytest.mark.case("FR-06")
def test_the_id_is_found_at_either_end(text: bytes) -> None:
    assert salvaged_id(text) == 7
    assert salvaged_id(text.replace(b"7", b'"a\\"b"')) == 'a"b'
    assert salvaged_id(text[:40], text[-45:]) == 7


@pytest.mark.parametrize(
    "text",
    [
        b'{"level":"info","msg":"\x97","id":7}',
        b'{"id":7,"msg":"\x97"}',
        b'{"jsonrpc":"2.0","result":{"x":{"id":7}',
        b'{"jsonrpc":"2.0","result":{"x":"\x97","id":7}}',
        b'{"jsonrpc":"2.0","result":"\x97,\\"id\\":7}',
        b'npm notice {"result":{},"jsonrpc":"2.0","id":7}',
        b'npm notice {"jsonrpc":"2.0","id":7,"result":{}}',
        b'{"jsonrpc":"2.0","id":7.5,"result":"\x97"}',
        b'{"jsonrpc":"2.0","id":null,"result":"\x97"}',
        b'{"jsonrpc":"2.0","id":"\\ud800","result":"\x97"}',
        b"",
        b",id:7}",
    ],
)
@pytest.mark.case("FR-01")
def test_no_id_is_made_out_where_it_is_not_plain(text: bytes) -> None:
    assert salvaged_id(text) is None


# --- what the bridge writes itself ---


def test_what_is_made_here_reads_as_what_it_is() -> None:
    made: list[Request | Notification | Response] = [
        message.request("a\n", "tools/call", b'{"x":1}'),
        message.request(1, "ping"),
        message.notification("notifications/cancelled", b'{"requestId":1}'),
        message.result(0, b"{}"),
        message.error(None, -32700, 'no "json"'),
        message.error("é", -1, "x", b"[1]"),
        message.local_error(2, "gone", "upstream_lost"),
    ]
    for one in made:
        found = read(one.raw)
        assert found == one
        assert b"\n" not in one.raw


@pytest.mark.spec("ER-16")
def test_an_error_of_the_bridge_says_so() -> None:
    made = message.local_error(2, "gone", "upstream_lost")
    assert raw(made.error) == (
        b'{"code":-32603,"message":"gone","data":{"origin":"bridge","reason":"upstream_lost"}}'
    )


@pytest.mark.parametrize(
    "template",
    [
        b'{"jsonrpc":"2.0","id":%b,"result":{"id":5,"x": 1.0}}',
        b'{"result":{"id":5,"x": 1.0},"jsonrpc":"2.0","id":%b}',
        b'{"result":{"id":5,"x": 1.0},"id":%b,"jsonrpc":"2.0"}',
        b'{"result":{"x":[{"x":0,"id":5}]},"id":%b,"jsonrpc":"2.0"}',
        b'{"jsonrpc":"2.0","result":{"id":5},"x\\ud800":1E5,"id":%b}',
    ],
)
def test_another_id_changes_the_id_alone(template: bytes) -> None:
    changed = response(template % b"5").with_id("n")
    assert (changed.raw, changed.id) == (template % b'"n"', "n")


def test_an_id_that_begins_like_the_old_one_is_not_taken_for_it() -> None:
    """A lookalike at the front or the end of the payload must not be edited in the id's place."""
    text = b'{"result":{"jsonrpc":"2.0","id":5},"id":5}'
    made = Response(text, 5, Raw(b'{"jsonrpc":"2.0","id":5}'))
    assert made.with_id(6).raw == b'{"result":{"jsonrpc":"2.0","id":5},"id":6}'
    text = b'{"jsonrpc":"2.0","id":55,"result":{}}'
    assert response(text).with_id(6).raw == b'{"jsonrpc":"2.0","id":6,"result":{}}'


def test_other_params_change_the_params_alone() -> None:
    found = request(b'{"jsonrpc":"2.0","id":5,"params":{"a":1},"method":"m","x":1.0}')
    assert found.with_params(b"{}").raw == b'{"jsonrpc":"2.0","id":5,"params":{},"method":"m","x":1.0}'


@pytest.mark.spec("XH-11")
def test_headers_stay_beside_a_request_whose_id_and_params_change() -> None:
    headers = (("Mcp-Param-A", "x"),)
    plain = request(b'{"jsonrpc":"2.0","id":5,"method":"m","params":{}}')
    assert plain.headers == ()
    found = plain.with_headers(headers)
    assert (found.raw, found.id, found.method, found.params) == (plain.raw, 5, "m", plain.params)
    assert found.with_id(6).with_params(b"[]").headers == headers
    assert found.with_params(b"[]").with_id(6).headers == headers


# --- anything at all ---


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A JSON text that is a message, or nearly: any members in any order, spread by any blanks."""
    kind = draw(st.sampled_from(["request", "notification", "result", "error", "other"]))
    members = [(b'"jsonrpc"', b'"2.0"')]
    if kind != "notification":
        members.append((b'"id"', draw(IDS)))
    if kind in ("request", "notification"):
        members.append((b'"method"', draw(st.sampled_from([b'"tools/call"', b'"\\u00e9"', '"é"'.encode()]))))
        members += [(b'"params"', draw(STRUCTURES)) for _ in range(draw(st.integers(0, 1)))]
    elif kind == "result":
        members.append((b'"result"', draw(VALUES)))
    elif kind == "error":
        members.append((b'"error"', b'{"code":1,"message":"","data":%b}' % draw(VALUES)))
    members += draw(
        st.lists(st.tuples(st.sampled_from([b'"x"', b'"id"', b'"\\u0069d"', b'""']), VALUES), max_size=2)
    )
    return object_of(draw(st.permutations(members)), lambda: draw(BLANKS))


@st.composite
def mutilated(draw: st.DrawFn) -> bytes:
    """A message with one byte too many or too few."""
    text = draw(messages())
    at = draw(st.integers(0, len(text)))
    return (
        text[:at]
        + draw(st.sampled_from([b"", b'"', b"\\", b"}", b",", b"\n", b"\xff", b"0"]))
        + text[at + 1 :]
    )


TEXTS = st.one_of(
    messages(),
    mutilated(),
    st.lists(st.one_of(messages(), VALUES), max_size=3).map(lambda parts: b"[" + b",".join(parts) + b"]"),
    VALUES,
    st.binary(max_size=60),
)


def accepted(found: Request | Notification | Response | Batch | Malformed) -> list[bytes]:
    """The texts of all messages that were read."""
    if isinstance(found, Batch):
        return [member.raw for member in found.members if not isinstance(member, Malformed)]
    return [] if isinstance(found, Malformed) else [found.raw]


@pytest.mark.spec("SC-3", "G-2")
@pytest.mark.case("FR-07")
@given(TEXTS)
def test_any_bytes_are_a_message_or_a_refusal_and_a_parse_error_is_exactly_what_is_no_json(
    text: bytes,
) -> None:
    found = read(text)
    assert isinstance(found, Request | Notification | Response | Batch | Malformed)
    assert (isinstance(found, Malformed) and found.code == PARSE_ERROR) == (not is_json(text))


@pytest.mark.spec("SC-2", "SS-2")
@pytest.mark.case("FR-08", "ID-03", "ID-11")
@given(TEXTS)
def test_whatever_is_accepted_is_one_line_of_the_same_tokens(text: bytes) -> None:
    found = read(text)
    for line in accepted(found):
        assert b"\n" not in line
        assert b"\r" not in line
        assert is_json(line)
    if isinstance(found, Request | Notification | Response):
        null_params = isinstance(found, Request | Notification) and found.params is UNSET
        assert null_params or tokens(found.raw) == tokens(text)


@given(messages(), IDS)
def test_another_id_leaves_every_other_token(text: bytes, other: bytes) -> None:
    found = read(text)
    given_id = request(b'{"jsonrpc":"2.0","id":%b,"method":"m"}' % other).id
    if isinstance(found, Request | Response):
        changed = found.with_id(given_id)
        again = read(changed.raw)
        assert isinstance(again, type(found))
        assert (again.id, type(again.id)) == (given_id, type(given_id))
        payload = found.params if isinstance(found, Request) else found.result
        after = again.params if isinstance(again, Request) else again.result
        assert payload is after is UNSET or raw(payload) == raw(after)


@given(OBJECTS)
def test_params_of_any_object_can_be_looked_into(params: bytes) -> None:
    params_of(message.request(1, "m", params))
    params_of(message.notification("m", b'{"_meta":%b,"requestId":1}' % params))


@given(st.one_of(TEXTS, st.binary(max_size=60)), st.binary(max_size=20))
def test_salvaging_never_fails(text: bytes, tail: bytes) -> None:
    found = salvaged_id(text, tail)
    assert found is None or isinstance(found, int | str)


@given(messages())
def test_a_salvaged_id_is_the_id(text: bytes) -> None:
    found = read(text)
    if isinstance(found, Request | Response):
        assert salvaged_id(text) in (None, found.id)
