"""`x-mcp-header` annotations, `Mcp-Param-*` headers against arguments, the index of tools."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.headers import encode_value
from bridge.core.params import (
    Annotation,
    Annotations,
    Invalid,
    ToolIndex,
    annotations_of,
    check,
    header_values,
    passed,
    without_invalid_tools,
)

Schema = Mapping[str, object]


def schema(**properties: object) -> bytes:
    return json.dumps({"type": "object", "properties": properties}).encode()


def marked(header: object, kind: object = "string") -> Schema:
    return {"type": kind, "x-mcp-header": header}


def valid(text: bytes) -> Annotations:
    found = annotations_of(text)
    assert isinstance(found, tuple), found
    return found


# --- the schema ---


@pytest.mark.spec("XH-3")
@pytest.mark.parametrize("kind", ["string", "integer", "boolean"])
def test_a_scalar_property_can_be_mirrored(kind: str) -> None:
    found = valid(schema(region=marked("Region", kind), query={"type": "string"}))
    assert found == (Annotation("Mcp-Param-Region", ("region",)),)


@pytest.mark.spec("XH-4")
def test_nested_properties_can_be_mirrored() -> None:
    nested = {"type": "object", "properties": {"b": marked("B"), "properties": marked("P")}}
    assert set(valid(schema(a=nested))) == {
        Annotation("Mcp-Param-B", ("a", "b")),
        Annotation("Mcp-Param-P", ("a", "properties")),
    }


@pytest.mark.spec("XH-2")
@pytest.mark.parametrize("header", ["Method", "x", "a.b_c-1", "!#$%&'*+^`|~"])
def test_any_token_names_a_header(header: str) -> None:
    assert valid(schema(a=marked(header))) == (Annotation(f"Mcp-Param-{header}", ("a",)),)


@pytest.mark.spec("XH-2")
@pytest.mark.parametrize(
    "header",
    ["", "My Region", "Region:Primary", "Région", "Region\t1", "a\r\nb", "a\n", 5, None, True, ["a"], {}],
)
def test_what_is_no_token_makes_the_tool_invalid(header: object) -> None:
    assert isinstance(annotations_of(schema(a=marked(header))), Invalid)


@pytest.mark.spec("XH-2")
@pytest.mark.parametrize(("one", "other"), [("Region", "Region"), ("MyField", "myfield")])
def test_a_header_name_is_taken_once_in_the_whole_schema(one: str, other: str) -> None:
    nested = {"properties": {"b": marked(other)}}
    assert isinstance(annotations_of(schema(a=marked(one), b=marked(other))), Invalid)
    assert isinstance(annotations_of(schema(a=marked(one), b=nested)), Invalid)


@pytest.mark.spec("XH-3")
@pytest.mark.parametrize("kind", ["number", "object", "array", "null", ["string", "null"], ["string"], None])
def test_other_types_make_the_tool_invalid(kind: object) -> None:
    assert isinstance(annotations_of(schema(a=marked("A", kind))), Invalid)
    assert isinstance(annotations_of(schema(a={"x-mcp-header": "A"})), Invalid)


ELSEWHERE: list[Schema] = [
    {"x-mcp-header": "A", "type": "string"},
    {"properties": {"a": {"type": "array", "items": marked("A")}}},
    {"properties": {"a": {"type": "array", "prefixItems": [marked("A")]}}},
    {"properties": {"a": {"type": "array", "items": {"properties": {"b": marked("A")}}}}},
    {"oneOf": [{"properties": {"a": marked("A")}}]},
    {"anyOf": [{"properties": {"a": marked("A")}}]},
    {"allOf": [{"properties": {"a": marked("A")}}]},
    {"not": {"properties": {"a": marked("A")}}},
    {"if": {}, "then": {"properties": {"a": marked("A")}}},
    {"else": {"properties": {"a": marked("A")}}},
    {"$defs": {"d": marked("A")}, "properties": {"a": {"$ref": "#/$defs/d"}}},
    {"$defs": {"default": marked("A")}},
    {"definitions": {"d": marked("A")}},
    {"patternProperties": {"^a": marked("A")}},
    {"additionalProperties": marked("A")},
    {"dependentSchemas": {"a": {"properties": {"b": marked("A")}}}},
    {"unevaluatedProperties": marked("A")},
]


@pytest.mark.spec("XH-4")
@pytest.mark.parametrize("root", ELSEWHERE)
def test_an_annotation_off_the_chain_of_properties_makes_the_tool_invalid(root: Schema) -> None:
    found = annotations_of(json.dumps(root).encode())
    assert isinstance(found, Invalid)
    assert found.reason


@pytest.mark.parametrize("keyword", ["default", "examples", "const", "enum"])
def test_data_that_looks_like_an_annotation_is_none(keyword: str) -> None:
    assert valid(schema(a={"type": "object", keyword: [marked("A")]})) == ()


def test_a_property_named_like_a_keyword_is_a_property() -> None:
    assert valid(schema(**{"x-mcp-header": {"type": "string"}, "default": marked("D")})) == (
        Annotation("Mcp-Param-D", ("default",)),
    )


@pytest.mark.parametrize("text", [b"{}", b"true", b"[]", b'{"properties":5}', b'{"properties":{"a":true}}'])
def test_a_schema_without_annotations_mirrors_nothing(text: bytes) -> None:
    assert valid(text) == ()


def test_numbers_no_decoder_likes_do_not_matter() -> None:
    text = b'{"properties":{"a":{"type":"integer","maximum":%b,"minimum":-1E400,"x-mcp-header":"A"}}}'
    assert valid(text % (b"9" * 5000)) == (Annotation("Mcp-Param-A", ("a",)),)


def test_a_schema_that_cannot_be_read_is_invalid() -> None:
    assert isinstance(annotations_of(b'{"properties":'), Invalid)
    assert isinstance(annotations_of(b"[" * 100_000), Invalid)


# --- a call ---

REGION: Annotations = (Annotation("Mcp-Param-Region", ("region",)),)
NESTED: Annotations = (Annotation("Mcp-Param-B", ("a", "b")),)


def agrees(annotated: Annotations, arguments: bytes | None, *headers: tuple[str, str]) -> bool:
    refusal = check(annotated, arguments, headers)
    if refusal is None:
        return True
    assert (refusal.status, refusal.code) == (400, -32020)
    assert "Mcp-Param-" in refusal.message
    return False


@pytest.mark.spec("XH-6", "XH-8", "XH-10", "XH-13", "HM-11")
@pytest.mark.parametrize(
    ("argument", "header", "equal"),
    [
        (b'"eu"', "eu", True),
        (b'"eu"', " eu\t", True),
        (b'"eu"', "us", False),
        (b'"eu"', "EU", False),
        (b'"eu"', "", False),
        (b'""', "", True),
        (b'"h\xc3\xa9llo"', "=?base64?aMOpbGxv?=", True),
        (b'"h\\u00e9llo"', "=?base64?aMOpbGxv?=", True),
        (b'"h\xc3\xa9llo"', "=?base64?aMOpbGx?=", False),
        (b'"h\xc3\xa9llo"', "h\u00e9llo", False),
        (b'"Hello"', "=?base64?SGVsbG8=?=", True),
        (b'"Hello"', "=?base64?SGVsbG8?=", False),
        (b'"Hello"', "=?base64?SGVs!!!bG8=?=", False),
        (b'"SGVsbG8="', "SGVsbG8=", True),
        (b'"=?base64?SGVsbG8="', "=?base64?SGVsbG8=", True),
        (b'"=?BASE64?SGVsbG8=?="', "=?BASE64?SGVsbG8=?=", True),
        (b'"\\ud800"', "?", False),
        (b'"42"', "42", True),
        (b'"42"', "42.0", False),
        (b"42", "42", True),
        (b"42", "42.0", True),
        (b"42.0", "42", True),
        (b"4.2e1", "42", True),
        (b"42", "43", False),
        (b"42", "42.5", False),
        (b"42", "4.2e1", False),
        (b"42", "+42", False),
        (b"42", "0x2a", False),
        (b"42", "4_2", False),
        (b"42", "\u0664\u0662", False),
        (b"42", "=?base64?NDI=?=", True),
        (b"-7", "-7", True),
        (b"0", "-0", True),
        (b"9007199254740993", "9007199254740993", True),
        (b"9007199254740993", "9007199254740992", False),
        (b"9" * 6000, "9" * 6000, True),
        (b"1E999999999999999999999", "1", False),
        (b"true", "true", True),
        (b"true", "True", False),
        (b"true", "1", False),
        (b"false", "false", True),
        (b"false", "true", False),
        (b"1", "true", False),
        (b"[1]", "[1]", False),
        (b"{}", "{}", False),
    ],
)
def test_a_header_is_compared_with_its_argument(argument: bytes, header: str, equal: bool) -> None:
    arguments = b'{"x":1,"region":%b}' % argument
    assert agrees(REGION, arguments, ("Mcp-Param-Region", header)) is equal


@pytest.mark.spec("XH-9")
@pytest.mark.parametrize("argument", [b'"eu"', b'""', b"0", b"false", b"1E999999999999999999999"])
def test_an_argument_without_its_header_is_refused(argument: bytes) -> None:
    assert not agrees(REGION, b'{"region":%b}' % argument)


ABSENT = [None, b"{}", b'{"region":null}', b'{"Region":"eu"}', b"[]", b"null"]


@pytest.mark.spec("XH-5")
@pytest.mark.parametrize("arguments", ABSENT)
def test_an_absent_argument_needs_no_header(arguments: bytes | None) -> None:
    assert agrees(REGION, arguments)


@pytest.mark.spec("XH-15")
@pytest.mark.parametrize("arguments", ABSENT)
@pytest.mark.parametrize("header", ["eu", "", "null"])
def test_a_header_without_its_argument_is_refused(arguments: bytes | None, header: str) -> None:
    assert not agrees(REGION, arguments, ("Mcp-Param-Region", header))


def test_an_argument_that_is_no_scalar_is_left_for_the_tool_to_refuse() -> None:
    assert agrees(REGION, b'{"region":["eu"]}')


@pytest.mark.spec("XH-5")
@pytest.mark.parametrize(
    ("arguments", "headers", "equal"),
    [
        (b'{"a":{"b":"x"}}', [("Mcp-Param-B", "x")], True),
        (b'{"a":{"b":"x"}}', [("Mcp-Param-B", "y")], False),
        (b'{"a":{"b":"x"}}', [], False),
        (b'{"a":{},"b":"x"}', [], True),
        (b'{"a":"text"}', [], True),
        (b'{"a":[{"b":"x"}]}', [], True),
        (b'{"a":null}', [("Mcp-Param-B", "x")], False),
    ],
)
def test_the_exact_path_is_read(arguments: bytes, headers: list[tuple[str, str]], equal: bool) -> None:
    assert agrees(NESTED, arguments, *headers) is equal


@pytest.mark.spec("XH-1")
@pytest.mark.parametrize("name", ["mcp-param-region", "MCP-PARAM-REGION", "Mcp-Param-rEGION"])
def test_header_names_have_no_case(name: str) -> None:
    assert agrees(REGION, b'{"region":"eu"}', (name, "eu"))
    assert not agrees(REGION, b'{"region":"eu"}', (name, "us"))


@pytest.mark.spec("XH-11")
def test_a_header_nothing_annotates_passes() -> None:
    assert agrees((), b'{"region":"eu"}', ("Mcp-Param-Region", "us"))
    assert agrees(REGION, b"{}", ("Mcp-Param-Other", "x"), ("Mcp-Param-Other", "y"), ("Region", "us"))


@pytest.mark.spec("XH-11")
def test_parameter_headers_and_no_others_are_passed_on() -> None:
    parameters = (("Mcp-Param-A", "x"), ("mcp-param-b", ""), ("MCP-PARAM-A", "y"))
    others = [
        (name, "secret")
        for name in (
            "Authorization",
            "Cookie",
            "Origin",
            "Mcp-Method",
            "X-Mcp-Param-A",
            "Mcp-Params",
            "Mcp_Param-A",
        )
    ]
    assert passed([*others, *parameters, *others]) == parameters


@pytest.mark.spec("HM-18")
@pytest.mark.parametrize("arguments", [b'{"region":"eu"}', b"{}"])
def test_a_known_header_sent_twice_is_malformed(arguments: bytes) -> None:
    assert not agrees(REGION, arguments, ("Mcp-Param-Region", "eu"), ("mcp-param-region", "eu"))


@pytest.mark.parametrize("headers", [[], [("Mcp-Param-B", "y")]])
@pytest.mark.parametrize("arguments", [b'{"a":{"b":"x","b":"y"}}', b'{"a":{"b":"y"},"\\u0061":{"b":"y"}}'])
def test_an_argument_that_stands_twice_is_refused(arguments: bytes, headers: list[tuple[str, str]]) -> None:
    assert not agrees(NESTED, arguments, *headers)


def test_a_refusal_can_be_written_whatever_the_parameter_is_called() -> None:
    refusal = check((Annotation("Mcp-Param-A", ("\ud800",)),), b'{"\\ud800":1}', [])
    assert refusal is not None
    assert refusal.message.encode()


@pytest.mark.spec("XH-7")
@given(st.text())
def test_what_a_client_encodes_agrees_with_what_it_sends(text: str) -> None:
    arguments = json.dumps({"region": text}, ensure_ascii=False).encode()
    assert agrees(REGION, arguments, ("Mcp-Param-Region", encode_value(text)))
    assert not agrees(REGION, arguments, ("Mcp-Param-Region", encode_value(text + "x")))


@pytest.mark.spec("XH-10")
@given(st.integers(), st.integers())
def test_integers_agree_only_if_they_are_equal(one: int, other: int) -> None:
    assert agrees(REGION, b'{"region":%d}' % one, ("Mcp-Param-Region", f"{one}.0"))
    assert agrees(REGION, b'{"region":%d}' % one, ("Mcp-Param-Region", str(other))) is (one == other)


# --- the index ---


def page(*tools: object, following: object = None) -> bytes:
    result: dict[str, object] = {"tools": tools}
    return json.dumps(result if following is None else {**result, "nextCursor": following}).encode()


def tool(name: str, **properties: object) -> Schema:
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}}


def test_an_annotated_tool_is_found_by_its_name() -> None:
    index = ToolIndex()
    index.learn(page(tool("plain", q={"type": "string"}), tool("q", region=marked("Region"))))
    assert index.tool("q") == REGION
    assert index.tool("plain") is None
    assert index.tool("nowhere") is None


def test_a_tool_with_invalid_annotations_is_not_checked() -> None:
    index = ToolIndex()
    index.learn(page(tool("bad", n=marked("N", "number")), tool("good", region=marked("Region"))))
    assert index.tool("bad") is None
    assert index.tool("good") == REGION


def test_an_annotation_with_an_escaped_key_is_found() -> None:
    index = ToolIndex()
    index.learn(page(tool("q", region=marked("Region"))).replace(b"x-mcp", b"\\u0078-mcp"))
    assert index.tool("q") == REGION


def test_pages_are_asked_for_until_none_is_left() -> None:
    index = ToolIndex()
    pages = {
        None: page(tool("a"), following="2"),
        "2": page(tool("q", region=marked("Region")), following=""),
        "": page(tool("z"), following=None),
    }
    asked = []
    while not index.complete:
        asked.append(index.wanted)
        index.learn(pages[index.wanted], index.wanted)
    assert asked == [None, "2", ""]
    assert index.tool("q") == REGION


def test_pages_that_others_asked_for_count() -> None:
    index = ToolIndex()
    index.learn(page(following="2"))
    assert index.wanted == "2"
    index.learn(page(following="elsewhere"), "from before")
    assert index.wanted == "2"
    index.learn(page(), "2")
    assert index.complete


def test_complete_stays_complete_while_clients_go_on_listing() -> None:
    index = ToolIndex()
    index.learn(page())
    index.learn(page(tool("q", region=marked("Region")), following="random"))
    assert index.complete
    assert index.wanted is None
    assert index.tool("q") == REGION


def test_cursors_that_go_in_a_circle_end() -> None:
    index = ToolIndex()
    index.learn(page(following="a"))
    index.learn(page(following="b"), "a")
    index.learn(page(following="a"), "b")
    assert index.complete


def test_pages_without_end_are_given_up() -> None:
    index = ToolIndex()
    asked = 0
    while not index.complete:
        index.learn(page(following=f"c{asked}"), index.wanted)
        asked += 1
    assert asked == 100


def test_annotations_taken_back_are_forgotten() -> None:
    index = ToolIndex()
    index.learn(page(tool("q", region=marked("Region"))))
    index.learn(page(tool("q", region={"type": "string"})))
    assert index.tool("q") is None


def test_forgetting_starts_anew() -> None:
    index = ToolIndex()
    index.learn(page(tool("q", region=marked("Region"))))
    index.forget()
    assert index.tool("q") is None
    assert not index.complete
    assert index.wanted is None


def test_a_walk_that_failed_is_not_repeated_until_the_tools_change() -> None:
    index = ToolIndex()
    index.settle()
    assert index.complete
    index.forget()
    assert not index.complete


@pytest.mark.parametrize(
    "result",
    [
        b"[]",
        b"null",
        b'{"x-mcp-header":1}',
        b'{"tools":{"x-mcp-header":1}}',
        b'{"tools":[5,{"name":5},{"x-mcp-header":1}],"nextCursor":5}',
        b'{"tools":[{"name":"q","inputSchema":"x-mcp-header"}]}',
    ],
)
def test_a_result_of_any_shape_is_survived(result: bytes) -> None:
    index = ToolIndex()
    index.learn(result)
    assert index.complete
    assert index.tool("q") is None


def test_odd_text_elsewhere_in_the_list_does_not_hide_a_tool() -> None:
    index = ToolIndex()
    odd = {"name": "odd", "description": "\ud800"}
    index.learn(page(odd, tool("q", region=marked("Region")), following="2"))
    assert index.tool("q") == REGION
    assert index.wanted == "2"


def test_the_index_is_bounded() -> None:
    index = ToolIndex()
    index.learn(page(*(tool(f"t{number}", region=marked("Region")) for number in range(10_001))))
    assert index.tool("t9999") == REGION
    assert index.tool("t10000") is None


# --- the client's side ---


@pytest.mark.spec("XH-5", "XH-6", "XH-7", "XH-13")
@pytest.mark.parametrize(
    ("argument", "header"),
    [
        ('"eu"', "eu"),
        ('""', ""),
        ('"größe"', "=?base64?Z3LDtsOfZQ==?="),
        ('" a"', "=?base64?IGE=?="),
        ('"=?base64?x?="', "=?base64?PT9iYXNlNjQ/eD89?="),
        ("true", "true"),
        ("false", "false"),
        ("42", "42"),
        ("-7", "-7"),
        ("42.0", "42"),
        ("1E2", "100"),
        ("1.5", "1.5"),
        ("1e400", "1e400"),
        ("9007199254740993", "9007199254740993"),
        ("null", None),
        ('{"a":1}', None),
        ("[1]", None),
    ],
)
def test_an_argument_is_repeated_as_its_header_has_it(argument: str, header: str | None) -> None:
    annotated = (Annotation("Mcp-Param-A", ("a", "b")),)
    found = header_values(annotated, b'{"a":{"b":%b},"b":"other"}' % argument.encode())
    assert found == ({} if header is None else {"Mcp-Param-A": header})


@pytest.mark.spec("XH-5")
@pytest.mark.parametrize("arguments", [None, b"{}", b"[]", b'{"a":5}', b'{"a":{}}', b'{"a":{"b":1,"b":2}}'])
def test_what_is_not_there_is_not_repeated(arguments: bytes | None) -> None:
    assert header_values((Annotation("Mcp-Param-A", ("a", "b")),), arguments) == {}


@pytest.mark.spec("XH-6", "XH-9", "XH-10")
@given(value=st.text() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.none())
def test_what_one_side_repeats_the_other_finds_right(value: object) -> None:
    annotated = (Annotation("Mcp-Param-A", ("a",)),)
    arguments = json.dumps({"a": value}).encode()
    assert check(annotated, arguments, header_values(annotated, arguments).items()) is None


def listing(*tools: object, **more: object) -> bytes:
    return json.dumps({"tools": tools, **more}).encode()


def annotated_tool(name: str, header: object) -> Schema:
    return {"name": name, "inputSchema": json.loads(schema(a=marked(header)))}


@pytest.mark.spec("CM-8")
def test_tools_with_invalid_annotations_are_taken_out_and_named_with_the_reason() -> None:
    bad, good, plain = annotated_tool("bad", "a b"), annotated_tool("good", "A"), {"name": "plain"}
    result, dropped = without_invalid_tools(listing(bad, good, plain, nextCursor="n"))
    assert json.loads(result) == {"tools": [good, plain], "nextCursor": "n"}
    ((name, reason),) = dropped
    assert name == "bad"
    assert "x-mcp-header" in reason


@pytest.mark.parametrize(
    "result",
    [
        listing(annotated_tool("good", "A")),
        b'{"tools":[ {"name":"a","n":1.0} ]}',
        b'{"tools":"x-mcp-header"}',
        b'{"tools":["x-mcp-header",5]}',
        b'{"tools":[{"name":"\\ud800","x-mcp-header":1}]}',
        b'["x-mcp-header"]',
        b'{"x-mcp-header":1}',
    ],
)
def test_a_result_without_invalid_tools_stays_byte_for_byte(result: bytes) -> None:
    assert without_invalid_tools(result) == (result, [])
