"""JSON text edited in place: what is cut out, what is put in, and all the rest that stays as it was."""

from __future__ import annotations

import json

import pytest
from grammar import BLANKS, OBJECTS, STRINGS, STRUCTURES, VALUES, is_json, object_of, tokens
from hypothesis import given
from hypothesis import strategies as st

from bridge.core import splice


def members(text: bytes) -> dict[str, bytes]:
    return {key: bytes(value) for key, value in splice.members(text).items()}


# --- cutting ---


def test_members_are_cut_out_as_text_and_in_order() -> None:
    found = members(b'{"z":1E400,"a": -0,"m":0.10 ,"big":123456789012345678901234567890}')
    assert list(found.items()) == [
        ("z", b"1E400"),
        ("a", b"-0"),
        ("m", b"0.10"),
        ("big", b"123456789012345678901234567890"),
    ]


def test_of_equal_keys_the_last_is_taken() -> None:
    for text in (b'{"a":1,"b":2,"\\u0061":3}', b'{"a":1,"b":"\\ud800","a":3}'):
        assert members(text)["a"] == b"3"


HALF = b'"\\ud800"'


NO_OBJECTS = [
    *(b"[]", b"1", b'"{}"', b"null", b"", b"{", b'{"a"}', b"{}{}", HALF, b"{}" + HALF, b'{"a":1}' + HALF),
    *(b"{1:%b}" % HALF, b"{%b}" % HALF, b'{"a":%b' % HALF, b'{"a":%b "b":1}' % HALF, b'{"a":%b,}' % HALF),
]


@pytest.mark.parametrize("text", NO_OBJECTS)
def test_what_is_no_object_has_no_members(text: bytes) -> None:
    with pytest.raises(ValueError):
        splice.members(text)


@pytest.mark.parametrize(
    "text", [b"{}", b"1", b'"[]"', b"null", b"", b"[", b"[1,]", b"[][]", b'{"a":"\\ud800"}']
)
def test_what_is_no_array_has_no_elements(text: bytes) -> None:
    with pytest.raises(ValueError):
        splice.elements(text)


@given(st.lists(VALUES, max_size=5), BLANKS)
def test_elements_are_cut_out_as_text(values: list[bytes], blank: bytes) -> None:
    text = b"[" + blank + (blank + b"," + blank).join(values) + blank + b"]"
    assert [bytes(value) for value in splice.elements(text)] == values


@given(st.lists(st.tuples(STRINGS, VALUES), max_size=5, unique_by=lambda pair: json.loads(pair[0])), BLANKS)
def test_members_of_any_object_are_found_whole(pairs: list[tuple[bytes, bytes]], blank: bytes) -> None:
    text = object_of(pairs, lambda: blank)
    assert list(members(text).items()) == [(json.loads(key), value) for key, value in pairs]


def test_a_number_beyond_what_python_converts_is_only_text() -> None:
    assert members(b'{"a":%b,"s":"\\ud800"}' % (b"7" * 5000))["a"] == b"7" * 5000


# --- replacing ---


@pytest.mark.case("ID-03", "ID-11")
def test_only_the_named_member_changes() -> None:
    text = b'{"z":1E400,"a":{"b":{"k":1,"k":2},"c":"\\u00e9\\/"},"m":0.10,"s":"\\ud800"}'
    assert splice.replaced(text, ("m",), b"7") == text.replace(b"0.10", b"7")
    assert splice.replaced(text, ("a", "c"), b"[]") == text.replace(b'"\\u00e9\\/"', b"[]")
    assert splice.replaced(text, ("a", "b"), None) == text.replace(b'"b":{"k":1,"k":2},', b"")


def test_a_new_member_goes_to_the_end_and_objects_on_the_way_are_made() -> None:
    assert splice.replaced(b'{"b":1}', ("a",), b"2") == b'{"b":1,"a":2}'
    assert splice.replaced(b"{}", ("_meta", "token"), b"2") == b'{"_meta":{"token":2}}'
    assert splice.replaced(b'{"a":1}', ("b",), None) == b'{"a":1}'


@pytest.mark.parametrize("text", [b'{"_meta":null}', b'{"_meta":[]}', b"[]", b"null"])
def test_nothing_is_put_into_what_is_no_object(text: bytes) -> None:
    with pytest.raises(ValueError):
        splice.replaced(text, ("_meta", "token"), b"1")


@pytest.mark.case("ID-03", "ID-11")
@given(
    st.lists(st.tuples(STRINGS, VALUES), max_size=5, unique_by=lambda p: json.loads(p[0])), STRINGS, VALUES
)
def test_replacing_leaves_order_and_text_of_every_other_member(
    pairs: list[tuple[bytes, bytes]], key: bytes, value: bytes
) -> None:
    name = json.loads(key)
    expected = {json.loads(one): text for one, text in pairs}
    expected[name] = value
    found = splice.replaced(object_of(pairs), (name,), value)
    assert is_json(found)
    assert list(members(found).items()) == list(expected.items())


@given(OBJECTS, st.lists(st.sampled_from(["id", "a", ""]), min_size=1, max_size=3), VALUES)
def test_what_was_put_anywhere_is_found_there(text: bytes, path: list[str], value: bytes) -> None:
    found = b'{"top":%b,"kept":1.0}' % text
    try:
        found = splice.replaced(found, ("top", *path), value)
    except ValueError:
        return  # something on the way is no object
    assert members(found)["kept"] == b"1.0"
    for key in ("top", *path):
        found = members(found)[key]
    assert found == value


def test_a_key_with_half_a_surrogate_pair_is_written_as_it_was() -> None:
    text = '{"é\\ud800\\"\\n":1,"b":2}'.encode()
    assert splice.replaced(text, ("b",), b"3") == text.replace(b"2", b"3")


# --- compacting ---


@pytest.mark.spec("SC-2", "SS-2")
@pytest.mark.case("FR-08")
@given(st.one_of(STRUCTURES, VALUES), BLANKS, BLANKS)
def test_compacting_takes_all_blanks_between_tokens_and_nothing_else(
    text: bytes, before: bytes, after: bytes
) -> None:
    assert splice.compact(before + text + after) == b"".join(tokens(text) or [])


def test_blanks_in_strings_stay() -> None:
    text = rb'{ "a b" : "x  \" y \\" , "c" : [ " " ] }'
    assert splice.compact(text) == rb'{"a b":"x  \" y \\","c":[" "]}'


# --- grammar, depth and equal keys ---


@given(st.one_of(VALUES, st.binary(max_size=30)))
def test_json_is_told_from_what_is_none(text: bytes) -> None:
    try:
        text.decode()
    except UnicodeDecodeError:
        return  # refused before anybody asks
    assert splice.is_json(text) == is_json(text)


def deepest(text: bytes) -> int:
    depth = most = 0
    for token in tokens(text) or []:
        depth += (token in (b"[", b"{")) - (token in (b"]", b"}"))
        most = max(most, depth)
    return most


@pytest.mark.case("ID-09")
@pytest.mark.parametrize("inner", [b"0", HALF])
def test_what_nests_deeper_than_can_be_followed_is_refused(inner: bytes) -> None:
    text = b'{"a":' + b"[" * 100_000 + inner + b"]" * 100_000 + b"}"
    assert not splice.is_json(text)
    with pytest.raises(ValueError):
        splice.members(text)
    with pytest.raises(ValueError):
        splice.elements(text[5:-1])


@pytest.mark.case("ID-09")
@given(VALUES, st.integers(0, 6))
def test_depth_is_counted_outside_of_strings(text: bytes, limit: int) -> None:
    assert splice.too_deep(text, limit) == (deepest(text) > limit)


@pytest.mark.case("ID-09")
@pytest.mark.parametrize("filling", [b"[]", b'"[[["', b"{}"])
def test_depth_of_a_large_text_is_counted_as_that_of_a_small_one(filling: bytes) -> None:
    assert not splice.too_deep(b"[" + b'"x",' * 10_000 + filling + b"]", 3)
    wide = b"[" + b",".join([filling] * 10_000) + b"]"
    assert not splice.too_deep(wide, 2)
    assert splice.too_deep(wide, 1) == (b'"' not in filling)


@given(st.lists(st.tuples(STRINGS, VALUES), max_size=5), BLANKS)
def test_equal_keys_are_found_however_they_are_written(
    pairs: list[tuple[bytes, bytes]], blank: bytes
) -> None:
    keys = [json.loads(key) for key, _ in pairs]
    assert splice.has_equal_keys(object_of(pairs, lambda: blank)) == (len(set(keys)) < len(keys))


@given(
    st.lists(st.tuples(st.sampled_from([b'"a"', b'"\\u0061"', b'"b:{"', b'""']), VALUES), max_size=4), BLANKS
)
def test_equal_keys_are_found_among_few_names(pairs: list[tuple[bytes, bytes]], blank: bytes) -> None:
    keys = [json.loads(key) for key, _ in pairs]
    assert splice.has_equal_keys(object_of(pairs, lambda: blank)) == (len(set(keys)) < len(keys))


def test_a_key_of_half_pairs_leaves_no_room_to_hide_a_second_member_in() -> None:
    """Written with more escapes than it has, the key would seem to fill the room of the other copy."""
    assert splice.has_equal_keys('{"ééé\\ud800":1,"a":1,"ab":2,"a":3}'.encode())
    assert splice.has_equal_keys('{"éé\\ud800":1,"a":1,"a":345}'.encode())
