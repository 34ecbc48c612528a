"""What clients carry for the bridge: nobody else can make it, read it or change it."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.errors import UsageFault
from bridge.seal import LONGEST_TOKEN, PREFIX, Seal, derived, read_ring

OLD, NEW, THIRD = (bytes([mark]) * 32 for mark in b"onx")
CLAIMS = b'{"v":1,"k":"suspend"}'


def ring_of(*secrets: bytes) -> str:
    return "\n".join(base64.b64encode(secret).decode() for secret in secrets)


def test_token_opens_where_it_was_sealed_and_shows_nothing() -> None:
    seal = Seal((OLD,), "/mcp")
    token = seal.seal(CLAIMS)
    assert token.startswith(PREFIX)
    assert b"suspend" not in base64.urlsafe_b64decode(token.removeprefix(PREFIX) + "==")
    assert seal.open(token) == CLAIMS
    assert Seal((OLD,), "/mcp").open(token) == CLAIMS


def test_equal_claims_are_sealed_differently() -> None:
    seal = Seal((OLD,), "/mcp")
    assert seal.seal(CLAIMS) != seal.seal(CLAIMS)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Seal((NEW,), "/mcp"), id="key"),
        pytest.param(Seal((OLD,), "/other"), id="listener"),
        pytest.param(Seal((OLD,), "/mcp", "other"), id="purpose"),
    ],
)
def test_token_opens_nowhere_else(other: Seal) -> None:
    assert other.open(Seal((OLD,), "/mcp").seal(CLAIMS)) is None


def test_token_with_any_character_changed_is_none() -> None:
    seal = Seal((OLD,), "/mcp")
    token = seal.seal(CLAIMS)
    for at, character in enumerate(token):
        changed = token[:at] + ("A" if character != "A" else "B") + token[at + 1 :]
        assert seal.open(changed) is None, at


@pytest.mark.parametrize(
    "token",
    [
        "",
        PREFIX,
        "mb1",
        "mb2.AAAA",
        f"{PREFIX}AAAA",
        f"{PREFIX}é",
        f"{PREFIX}!",
        PREFIX + "A" * (LONGEST_TOKEN + 1),
    ],
)
def test_what_was_never_sealed_is_none(token: str) -> None:
    assert Seal((OLD,), "/mcp").open(token) is None


def test_other_spelling_of_a_token_is_none() -> None:
    """Base64 has unused bits at its end, and padding."""
    seal = Seal((OLD,), "/mcp")
    token = next(token for _ in range(99) if (token := seal.seal(b"12345"))[-1] in "AQgw")
    assert seal.open(token[:-1] + chr(ord(token[-1]) + 1)) is None
    assert seal.open(token + "=") is None


def test_token_is_short_enough_for_any_client() -> None:
    assert len(Seal((OLD,), "/mcp").seal(b"x" * 700)) <= 1024


def test_keys_are_changed_one_bridge_at_a_time() -> None:
    before, between, after = (Seal(ring, "/mcp") for ring in ((OLD,), (NEW, OLD), (NEW,)))
    assert between.open(before.seal(CLAIMS)) == CLAIMS
    assert after.open(between.seal(CLAIMS)) == CLAIMS
    assert before.open(between.seal(CLAIMS)) is None
    assert after.open(before.seal(CLAIMS)) is None


def test_derived_keys_are_those_of_hkdf() -> None:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    expected = HKDF(SHA256(), 32, salt=b"mcp-bridge", info=b"state").derive(OLD)
    assert derived(OLD, b"state") == expected


# --- rings ---


def test_ring_is_read_in_order_without_blank_lines_and_comments() -> None:
    assert read_ring(f"# of May\n\n{ring_of(NEW)}\r\n  {ring_of(OLD)}  \n") == (NEW, OLD)


def test_ring_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(ring_of(OLD, NEW))
    assert read_ring(file) == (OLD, NEW)


def test_ring_of_nobody_is_random() -> None:
    one, other = read_ring(None), read_ring(None)
    assert len(one) == 1
    assert len(one[0]) == 32
    assert one != other


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "--state-key-env: it holds no key"),
        ("# nothing", "--state-key-env: it holds no key"),
        (f"{ring_of(OLD)}\nsecret words", "--state-key-env: line 2"),
        (base64.b64encode(b"x" * 31).decode(), "--state-key-env: line 1"),
    ],
)
def test_ring_that_cannot_be_used_is_refused_without_being_quoted(text: str, fault: str) -> None:
    with pytest.raises(UsageFault) as told:
        read_ring(text)
    assert str(told.value).startswith(fault)
    assert "secret words" not in str(told.value)


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for file in (tmp_path / "absent", binary):
        with pytest.raises(UsageFault, match=f"--state-key-file {file}"):
            read_ring(file)


def test_bridge_that_seals_nothing_does_not_load_the_library_for_it() -> None:
    program = "import bridge.app, bridge.cli, sys; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
