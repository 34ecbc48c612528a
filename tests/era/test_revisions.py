"""The table of revisions, and what is settled between an offer and a server's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.era.revisions import (
    LATEST_LEGACY,
    LEGACY_VERSIONS,
    MODERN_VERSIONS,
    REVISIONS,
    Era,
    negotiated,
    revision,
)


def test_every_revision_is_listed_once_and_oldest_first() -> None:
    assert list(REVISIONS) == ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
    assert (*LEGACY_VERSIONS, *MODERN_VERSIONS) == tuple(REVISIONS)
    assert LATEST_LEGACY == "2025-11-25"


def test_eras_part_at_the_stateless_revision() -> None:
    assert {row.era for row in map(revision, LEGACY_VERSIONS) if row} == {Era.LEGACY}
    assert [row.name for row in REVISIONS.values() if row.era is Era.MODERN] == ["2026-07-28"]


@pytest.mark.spec("BT-1", "BT-5")
def test_only_one_revision_has_batches() -> None:
    assert [row.name for row in REVISIONS.values() if row.batches] == ["2025-03-26"]


@pytest.mark.spec("HL-21", "HL-22")
def test_the_version_header_begins_with_the_third_revision() -> None:
    assert [row.name for row in REVISIONS.values() if not row.version_header] == ["2024-11-05", "2025-03-26"]


def test_only_the_last_legacy_revision_primes_its_streams() -> None:
    assert [row.name for row in REVISIONS.values() if row.priming] == [LATEST_LEGACY]


@pytest.mark.parametrize("name", ["", "2025-06-19", "2099-01-01", " 2025-06-18", "v1"])
def test_any_other_string_is_no_revision(name: str) -> None:
    assert revision(name) is None


@pytest.mark.case("HT-05")
@pytest.mark.parametrize(
    ("offered", "ours", "answer"),
    [
        ("2025-06-18", "2025-11-25", "2025-06-18"),
        ("2025-06-18", "2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18", "2025-06-18"),
        ("2026-07-28", "2025-11-25", "2025-11-25"),
        ("2099-01-01", "2025-11-25", "2025-11-25"),
        ("1999-01-01", "2025-11-25", "2025-11-25"),
        ("2025-06-18", "server-special", "server-special"),
        ("server-special", "server-special", "server-special"),
    ],
)
def test_an_offer_is_taken_if_it_is_known_and_not_newer(offered: str, ours: str, answer: str) -> None:
    assert negotiated(offered, ours) == answer


@given(st.text(), st.sampled_from(list(REVISIONS)))
def test_what_is_settled_is_always_known_to_the_server(offered: str, ours: str) -> None:
    known = list(REVISIONS)
    assert known.index(negotiated(offered, ours)) <= known.index(ours)
