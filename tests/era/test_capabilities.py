"""What a client declared: as a legacy server is told, and what it may be asked for."""

from __future__ import annotations

from itertools import product

import pytest

from bridge.era.capabilities import (
    EVERYTHING,
    NOTHING,
    Capabilities,
    Open,
    Use,
    choose,
    legacy_offer,
    refusal_code,
)

FORM, URL = b'{"message":"Name?"}', b'{"mode":"url","url":"https://u/"}'
TASKS = "io.modelcontextprotocol/tasks"

ROOTS = Capabilities(roots=True)
SAMPLING = Capabilities(sampling=True)
ELICITATION = Capabilities(form=True)
BOTH = Capabilities(form=True, roots=True)


@pytest.mark.parametrize(
    ("said", "declared"),
    [
        ("", "{}"),
        ("{}", "{}"),
        ('{"elicitation":{}}', '{"elicitation":{}}'),
        ('{"elicitation":{"form":{}}}', '{"elicitation":{}}'),
        ('{"elicitation":{"url":{}}}', '{"elicitation":{"url":{}}}'),
        ('{"elicitation":{"url":{},"form":{}}}', '{"elicitation":{"form":{},"url":{}}}'),
        ('{"roots":{"listChanged":true}}', '{"roots":{}}'),
        ('{"sampling":{}}', '{"sampling":{}}'),
        ('{"sampling":{"context":{},"tools":{},"x":{}}}', '{"sampling":{"tools":{},"context":{}}}'),
        (
            f'{{"elicitation":{{}},"sampling":{{}},"roots":{{}},"experimental":{{"x":{{}}}},"extensions":{{"{TASKS}":{{}}}}}}',
            '{"roots":{},"sampling":{},"elicitation":{}}',
        ),
        ('{"roots":null,"sampling":true,"elicitation":[]}', "{}"),
        ('{"sampling":{"tools":true},"elicitation":{"url":1}}', '{"sampling":{},"elicitation":{}}'),
        ("[]", "{}"),
        ("{", "{}"),
    ],
)
def test_server_is_told_of_what_it_can_act_on_and_nothing_else(said: str, declared: str) -> None:
    found = Capabilities.read(said.encode())
    assert found.declared() == declared.encode()
    assert Capabilities.read(found.declared()) == found


def test_order_and_spelling_of_a_declaration_make_no_other_client() -> None:
    one = Capabilities.read(b'{"roots":{},"elicitation":{}}')
    assert hash(one) == hash(Capabilities.read(b'{ "elicitation": {"form": {"x": 1}}, "roots": {} }'))


@pytest.mark.spec("FT-7", "EV-5")
@pytest.mark.parametrize(
    ("declared", "method", "params", "covered"),
    [
        (NOTHING, "roots/list", b"{}", False),
        (ROOTS, "roots/list", b"{}", True),
        (NOTHING, "sampling/createMessage", b"{}", False),
        (SAMPLING, "sampling/createMessage", b"{}", True),
        (SAMPLING, "sampling/createMessage", b'{"tools":[]}', False),
        (SAMPLING, "sampling/createMessage", b'{"toolChoice":{}}', False),
        (EVERYTHING, "sampling/createMessage", b'{"tools":[]}', True),
        (ELICITATION, "elicitation/create", FORM, True),
        (ELICITATION, "elicitation/create", b'{"mode":"form"}', True),
        (ELICITATION, "elicitation/create", URL, False),
        (Capabilities(url=True), "elicitation/create", FORM, False),
        (Capabilities(url=True), "elicitation/create", URL, True),
        (NOTHING, "ping", b"", True),
    ],
)
def test_client_is_asked_for_what_it_declared_only(
    declared: Capabilities, method: str, params: bytes, covered: bool
) -> None:
    assert declared.covers(method, params) is covered


@pytest.mark.parametrize(
    ("declared", "method", "params", "lacking"),
    [
        (NOTHING, "roots/list", b"", b'{"roots":{}}'),
        (NOTHING, "sampling/createMessage", b'{"tools":[]}', b'{"sampling":{}}'),
        (SAMPLING, "sampling/createMessage", b'{"tools":[]}', b'{"sampling":{"tools":{}}}'),
        (NOTHING, "elicitation/create", FORM, b'{"elicitation":{"form":{}}}'),
        (NOTHING, "elicitation/create", URL, b'{"elicitation":{"url":{}}}'),
    ],
)
def test_what_is_lacking_is_named(declared: Capabilities, method: str, params: bytes, lacking: bytes) -> None:
    assert declared.lacking(method, params) == lacking


@pytest.mark.parametrize(
    ("method", "code"),
    [("elicitation/create", -32602), ("sampling/createMessage", -32601), ("roots/list", -32601)],
)
def test_refusal_has_the_code_of_its_method(method: str, code: int) -> None:
    assert refusal_code(method) == code


def test_sets_are_ordered_by_what_is_in_them() -> None:
    every = [Capabilities(*flags) for flags in product((False, True), repeat=6)]
    for one, other in product(every, every):
        both = [mine and not theirs for mine, theirs in zip(_flags(one), _flags(other), strict=True)]
        assert (one <= other) is not any(both)
    assert not NOTHING >= ROOTS
    assert [len(NOTHING), len(BOTH), len(EVERYTHING)] == [0, 2, 6]


def _flags(one: Capabilities) -> tuple[bool, ...]:
    return one.roots, one.sampling, one.sampling_tools, one.sampling_context, one.form, one.url


# --- which upstream session ---


@pytest.mark.parametrize(
    ("live", "wanted", "chosen"),
    [
        pytest.param({}, ROOTS, Open(ROOTS), id="the first"),
        pytest.param({ROOTS: False}, ROOTS, Use(ROOTS), id="one that fits"),
        pytest.param({NOTHING: True}, SAMPLING, Open(SAMPLING), id="one that declares less does not fit"),
        pytest.param({EVERYTHING: True}, ROOTS, Open(ROOTS), id="one that declares more does not either"),
        pytest.param(
            {ROOTS: False, SAMPLING: True, ELICITATION: True},
            BOTH,
            Open(BOTH, SAMPLING),
            id="the least recently used idle one makes room",
        ),
        pytest.param(
            {NOTHING: True, ROOTS: False, ELICITATION: False},
            BOTH,
            Use(ROOTS),
            id="the one for nothing takes no room and makes none",
        ),
        pytest.param({NOTHING: False, ELICITATION: False}, BOTH, Open(BOTH), id="below the limit"),
        pytest.param(
            {NOTHING: False, SAMPLING: False, ELICITATION: False},
            BOTH,
            Use(ELICITATION),
            id="A8: the largest subset",
        ),
        pytest.param({ELICITATION: False, SAMPLING: False}, NOTHING, Open(NOTHING), id="A9: above the limit"),
        pytest.param(
            {ELICITATION: False, SAMPLING: False}, ROOTS, Open(NOTHING), id="no subset: one for nothing"
        ),
        pytest.param(
            {NOTHING: False, ELICITATION: False, SAMPLING: False}, ROOTS, Use(NOTHING), id="which is a subset"
        ),
    ],
)
def test_session_is_chosen_that_never_declares_more_than_the_client(
    live: dict[Capabilities, bool], wanted: Capabilities, chosen: Use | Open
) -> None:
    assert choose(live, wanted, 2) == chosen


# --- what a modern server is told of a legacy client ---


@pytest.mark.parametrize(
    ("revision", "declared", "offer"),
    [
        ("2025-11-25", '{"roots":{"listChanged":true},"tasks":{}}', '{"roots":{}}'),
        ("2025-11-25", '{"sampling":{"tools":{}}}', '{"sampling":{"tools":{}}}'),
        ("2025-06-18", '{"sampling":{"tools":{}}}', '{"sampling":{}}'),
        ("2025-11-25", '{"elicitation":{"url":{}}}', '{"elicitation":{"url":{}}}'),
        ("2025-06-18", '{"elicitation":{"url":{}}}', '{"elicitation":{}}'),
        ("2024-11-05", '{"experimental":{"a":{"b":1.0}}}', '{"experimental":{"a":{"b":1.0}}}'),
        (
            "2025-11-25",
            f'{{"extensions":{{"x/y":{{"n":1}},"{TASKS}":{{}}}}}}',
            '{"extensions":{"x/y":{"n":1}}}',
        ),
        ("2025-11-25", '{"roots":null,"sampling":true,"elicitation":1,"x":{}}', '{"x":{}}'),
        ("2025-11-25", "{}", "{}"),
        ("2025-11-25", "null", "{}"),
    ],
)
def test_legacy_client_is_offered_as_what_it_declared(revision: str, declared: str, offer: str) -> None:
    assert legacy_offer(declared.encode(), revision) == offer.encode()
