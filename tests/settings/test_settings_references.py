"""References in strings: what they become, what is secret, and faults that give nothing away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bridge.settings.references import MOST, Text, resolve

ENVIRON = {"A": "one", "EMPTY": "", "DIR": "sub", "TRAP": "${A}"}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "token").write_bytes(b"s3cr3t\r\n")
    (tmp_path / "sub" / "token").write_text("deeper\n\n")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"), ("", ""), ("$A $$ } {", "$A $$ } {"), ("a${A}b${A}", "aonebone"),
        ("${env:A}", "one"), ("$${A}", "${A}"), ("$$${A}", "$${A}"), ("${NO:-x y}", "x y"), ("${NO:-}", ""),
        ("${EMPTY:-x}", "x"), ("${EMPTY}", ""), ("${A:-x}", "one"), ("${env:NO:-x}", "x"),
        ("${NO:-<${A}>}", "<one>"), ("${A:-<${NOT_LOOKED_AT}>}", "one"), ("${NO:-${NO:-${A}}}", "one"),
        ("${NO:-$${x}", "${x"), ("${TRAP}", "${A}"), ("}${A}}", "}one}"),
    ],
)  # fmt: skip
def test_references_are_replaced_once(base: Path, text: str, value: str) -> None:
    assert resolve(text, ENVIRON, base) == Text(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${file:token}", "s3cr3t"),
        ("Bearer ${file:token}", "Bearer s3cr3t"),
        ("${file:${DIR}/token}", "deeper"),
        ("${NO:-${file:token}}", "s3cr3t"),
    ],
)
def test_what_is_read_from_a_file_is_secret(base: Path, text: str, value: str) -> None:
    assert resolve(text, ENVIRON, base) == Text(value, secret=True)


def test_absolute_path_is_taken_as_it_is(base: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert resolve(f"${{file:{base / 'token'}}}", ENVIRON, elsewhere).value == "s3cr3t"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("${NOT_SET}", "${NOT_SET} is not set"), ("${env:NOT_SET}", "${NOT_SET} is not set"),
        ("${", "without a variable name"), ("${}", "without a variable name"), ("${A", "without a variable"),
        ("${1}", "without a variable name"), ("${A B}", "without a variable name"),
        ("${NO:-x", "a } is missing"), ("${A:-x", "a } is missing"), ("${file:token", "a } is missing"),
        ("${input:key}", "${input:...} is known to clients only"), ("${file:}", "names no file"),
        ("${file:none}", "${file:none}: No such file"), ("${file:sub}", "Is a directory"),
        ("${NO:-" * 10 + "x" + "}" * 10, "nested too deeply"),
    ],
)  # fmt: skip
def test_reference_that_leads_nowhere_is_a_fault(base: Path, text: str, fault: str) -> None:
    with pytest.raises(ValueError) as raised:
        resolve(text, ENVIRON, base)
    assert fault in str(raised.value)


def test_file_that_would_make_us_wait_or_is_no_text_is_refused_untold(base: Path) -> None:
    os.mkfifo(base / "pipe")
    (base / "large").write_bytes(b"s" * (MOST + 1))
    (base / "binary").write_bytes(b"s3cr3t\xff")
    faults = {"pipe": "is no regular file", "large": f"is larger than {MOST} bytes", "binary": "is not UTF-8"}
    for name, fault in faults.items():
        with pytest.raises(ValueError) as raised:
            resolve(f"${{file:{name}}}", ENVIRON, base)
        assert str(raised.value) == f"${{file:{name}}}: {fault}"
