"""What a modern server says, in the words of older revisions; and what none of them changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bridge.era.downgrade import downgraded, form

R1, R2, R3, R4 = REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LINK = {
    "type": "resource_link",
    "uri": "file:///a",
    "name": "A",
    "title": "t",
    "annotations": {"priority": 1},
}
AUDIO = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav", "_meta": {"k": 1}}
TEXT = {"type": "text", "text": "x"}


def down(method: str, result: object, revision: str) -> Any:
    return json.loads(downgraded(method, dump(result), revision))


def dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def text(value: str, **more: object) -> dict[str, object]:
    return {"type": "text", "text": value, **more}


# --- content ---


@pytest.mark.crossing("J39")
@pytest.mark.spec("FT-16")
@pytest.mark.parametrize("revision", [R1, R2])
def test_a_link_is_its_name_and_address(revision: str) -> None:
    shown = text("A\nfile:///a", annotations={"priority": 1})
    assert down("tools/call", {"content": [TEXT, LINK], "x": 1}, revision) == {
        "content": [TEXT, shown],
        "x": 1,
    }


@pytest.mark.parametrize("revision", [R3, R4])
def test_a_link_stays_one_where_it_is_known(revision: str) -> None:
    assert down("tools/call", {"content": [LINK]}, revision) == {"content": [LINK]}


@pytest.mark.spec("FT-16")
def test_audio_is_a_resource_to_the_oldest_revision_each_with_a_name() -> None:
    found = down("tools/call", {"content": [AUDIO, TEXT, AUDIO]}, R1)["content"]
    inner = [{"mimeType": "audio/wav", "blob": "AAAA", "uri": f"urn:mcp-bridge:audio:{n}"} for n in (1, 2)]
    assert found[0] == {"type": "resource", "resource": inner[0], "_meta": {"k": 1}}
    assert found[1] == TEXT
    assert found[2]["resource"] == inner[1]
    assert down("tools/call", {"content": [AUDIO]}, R2) == {"content": [AUDIO]}


def test_prompts_hold_the_same_content() -> None:
    messages = [{"role": "user", "content": one} for one in (AUDIO, TEXT, LINK, AUDIO)]
    found = down("prompts/get", {"description": "d", "messages": messages}, R1)
    kinds = [one["content"]["type"] for one in found["messages"]]
    assert kinds == ["resource", "text", "text", "resource"]
    assert found["messages"][3]["content"]["resource"]["uri"] == "urn:mcp-bridge:audio:2"
    assert found["description"] == "d"
    assert down("prompts/get", {"messages": messages}, R4) == {"messages": messages}


# --- structured content ---


@pytest.mark.crossing("J38")
@pytest.mark.spec("FT-9")
@pytest.mark.parametrize("revision", [R3, R4])
@pytest.mark.parametrize(("value", "told"), [([1, 2], "[1,2]"), ("s", '"s"'), (7, "7"), (None, "null")])
def test_structured_content_that_is_no_object_is_text(revision: str, value: object, told: str) -> None:
    found = down("tools/call", {"content": [TEXT], "structuredContent": value}, revision)
    assert found == {"content": [TEXT, text(told)]}


@pytest.mark.spec("FT-10")
@pytest.mark.parametrize("revision", [R3, R4])
def test_structured_content_that_is_an_object_stays(revision: str) -> None:
    result = {"content": [], "structuredContent": {"a": 1}}
    assert down("tools/call", result, revision) == result


@pytest.mark.crossing("J38")
@pytest.mark.parametrize("said", ["[1,2]", "[1, 2]", " [ 1,2 ]\n"])
def test_text_that_says_the_same_is_enough(said: str) -> None:
    result = {"content": [text(said)], "structuredContent": [1, 2]}
    assert down("tools/call", result, R4) == {"content": [text(said)]}


def test_numbers_of_structured_content_keep_their_text() -> None:
    result = b'{"content":[],"structuredContent":[1E400,-0,0.10]}'
    assert downgraded("tools/call", result, R4) == b'{"content":[{"type":"text","text":"[1E400,-0,0.10]"}]}'


@pytest.mark.parametrize("revision", [R1, R2])
def test_a_result_that_is_only_structured_is_told_to_those_who_know_only_content(revision: str) -> None:
    structured = {"content": [], "structuredContent": {"a": 1}}
    assert down("tools/call", structured, revision)["content"] == [text('{"a":1}')]
    told = {"content": [TEXT], "structuredContent": {"a": 1}}
    assert down("tools/call", told, revision) == told


# --- tools ---


@pytest.mark.crossing("J38")
@pytest.mark.spec("FT-9")
@pytest.mark.parametrize("revision", [R3, R4])
def test_an_output_schema_is_of_an_object_or_left_out(revision: str) -> None:
    schemas = [{"type": "object"}, {"type": "array"}, {"oneOf": []}, {"type": ["object"]}, True]
    tools = [{"name": str(at), "outputSchema": schema} for at, schema in enumerate(schemas)]
    found = down("tools/list", {"tools": [*tools, {"name": "n"}], "nextCursor": "c"}, revision)
    assert found == {
        "tools": [{"name": "0", "outputSchema": {"type": "object"}}, *({"name": n} for n in "1234n")],
        "nextCursor": "c",
    }


@pytest.mark.parametrize("revision", [R1, R2])
def test_what_a_revision_does_not_mention_stays(revision: str) -> None:
    listing = {
        "tools": [{"name": "a", "title": "t", "icons": [], "outputSchema": {"type": "array"}, "_meta": {}}]
    }
    assert down("tools/list", listing, revision) == listing


# --- what is left alone ---


@pytest.mark.spec("FT-10")
@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("tools/call", b'{ "content" : [ {"type":"text","text":"a\\u00e9"} ] , "n":1E400 }'),
        ("tools/list", b'{"tools": [ {"name":"a","n":-0} ]}'),
        ("prompts/get", b'{"messages":[ ]}'),
        ("resources/read", b'{"contents":[{"uri":"audio","text":"resource_link structuredContent"}]}'),
        ("vendor/x", b'{"structuredContent":[1]}'),
    ],
)
def test_what_needs_no_change_is_not_touched(method: str, result: bytes, revision: str) -> None:
    assert downgraded(method, result, revision) == result


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("tools/call", b'{"content":"resource_link audio","structuredContent":[]}'),
        ("tools/call", b'{"content":[1,"audio","resource_link"],"structuredContent":{}}'),
        ("tools/call", b'{"content":[{"type":"resource_link","name":1}]}'),
        ("tools/list", b'{"tools":{"outputSchema":1}}'),
        ("tools/list", b'{"tools":[["outputSchema"]]}'),
        ("prompts/get", b'{"messages":[{"role":"audio"},{"content":"resource_link"}]}'),
        ("prompts/get", b'["audio"]'),
    ],
)
def test_what_has_another_shape_is_left_alone(method: str, result: bytes, revision: str) -> None:
    assert downgraded(method, result, revision) == result


# --- forms ---


def shown(fields: object, revision: str, **more: object) -> Any:
    params = {"message": "m", "requestedSchema": {"type": "object", "properties": fields}, **more}
    found = form(dump(params), revision)
    return None if found is None else json.loads(found)


@pytest.mark.crossing("J28")
def test_titled_choices_are_names_beside_values() -> None:
    field = {
        "type": "string",
        "oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}],
        "default": "a",
    }
    plain = {"type": "string", "default": "a", "enum": ["a", "b"], "enumNames": ["A", "B"]}
    found = shown({"c": field, "n": {"type": "number"}}, R3, mode="form")
    assert found == {
        "message": "m",
        "requestedSchema": {"type": "object", "properties": {"c": plain, "n": {"type": "number"}}},
    }


@pytest.mark.crossing("J28")
@pytest.mark.parametrize("revision", [R1, R2, R3])
def test_a_choice_of_several_cannot_be_shown(revision: str) -> None:
    assert (
        shown({"n": {"type": "number"}, "c": {"type": "array", "items": {"enum": ["a"]}}}, revision) is None
    )


def test_the_newest_legacy_revision_has_every_form() -> None:
    params = b'{"mode":"form", "requestedSchema":{"properties":{"c":{"type":"array"},"o":{"oneOf":[]}}}}'
    assert form(params, R4) == params


def test_a_form_of_another_shape_is_an_error() -> None:
    with pytest.raises(ValueError, match="JSON"):
        form(b'{"requestedSchema":[]}', R3)
