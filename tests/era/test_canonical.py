"""Two spellings of one JSON value are one; two values never are."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.era.canonical import canonical

DEEP = 127

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"b":{"d":[1,2],"c":null}}', '{ "b" : {"c":null,"d":[1, 2]},\n"a":1}'),
        (r'"\u00e9"', '"é"'),
        (r'"\ud83d\ude00"', '"😀"'),
        (r'"\/\u0041"', '"/A"'),
        (r'{"\u00e9":1}', '{"é":1}'),
        ('"\u2028"', r'"\u2028"'),
    ],
)
def test_spellings_of_one_value_are_equal(one: str, other: str) -> None:
    assert canonical(one.encode()) == canonical(other.encode())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "1.0"),
        ("1e5", "100000"),
        ("0", "-0"),
        ("9007199254740993", "9007199254740992"),
        ("1", '"1"'),
        ("1", r'"\u00001"'),
        ("null", '"null"'),
        ("[1,2]", "[2,1]"),
        ("[[1],2]", "[1,[2]]"),
        ("{}", "[]"),
        ('{"a":null}', "{}"),
        (r'"\ud800"', r'"\ud801"'),
    ],
)
def test_other_values_are_not(one: str, other: str) -> None:
    assert canonical(one.encode()) != canonical(other.encode())


@pytest.mark.parametrize("number", ["1E400", "-0", "0.10", "9" * 5000])
def test_numbers_are_as_they_were_written(number: str) -> None:
    assert canonical(number.encode()) == number.encode()


def test_half_a_surrogate_pair_does_no_harm() -> None:
    assert canonical(rb'{ "b": "\ud800", "a": 1 }') == rb'{"b":"\ud800","a":1}'


def test_what_nests_as_deep_as_a_message_may_is_read() -> None:
    assert canonical(b"[" * DEEP + b"1" + b"]" * DEEP)


@given(JSON)
def test_order_of_members_and_spelling_of_strings_make_no_difference(value: object) -> None:
    plain = json.dumps(value, ensure_ascii=False)
    turned = json.dumps(_turned(value), ensure_ascii=True, indent=1)
    assert canonical(plain.encode()) == canonical(turned.encode())


def _turned(value: object) -> object:
    """The same with its members the other way round."""
    match value:
        case dict():
            return {key: _turned(inner) for key, inner in reversed(value.items())}
        case list():
            return [_turned(inner) for inner in value]
        case _:
            return value


@given(JSON, JSON)
def test_texts_are_equal_only_if_their_values_are(one: object, other: object) -> None:
    texts = [json.dumps(value).encode() for value in (one, other)]
    if canonical(texts[0]) == canonical(texts[1]):
        assert json.loads(texts[0]) == json.loads(texts[1])
