"""The JSON Schema, and that it, the reference and the reading of the file agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from bridge.settings.keys import DEFAULTS, IDENTITY, PROCESS, Spec, walk
from bridge.settings.schema import schema
from bridge.settings.tree import read

REFERENCE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```(toml|json)\n(.*?)^```", REFERENCE, re.MULTILINE | re.DOTALL)
TOKENS = {"token.txt": "abcdefghij0123456789", "header.txt": "Bearer x"}
ENVIRON = {"TICKETS_TOKEN": "x", "CI_TOKEN": "jihgfedcba9876543210", "PATH": "/usr/bin"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the files that the examples speak of."""
    (tmp_path / "data").mkdir()
    for name in ("token.txt", "header.txt", "cert.pem", "key.pem", "state-keys.txt"):
        (tmp_path / name).write_text(TOKENS.get(name, "x"))
        (tmp_path / name).chmod(0o600)
    return tmp_path


def valid(data: dict[str, Any]) -> bool:
    return bool(jsonschema.Draft202012Validator(schema()).is_valid(data))


def test_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize(("kind", "text"), EXAMPLES)
def test_examples_of_the_reference_are_read_and_fit_the_schema(folder: Path, kind: str, text: str) -> None:
    file = folder / f"bridge.{kind}"
    file.write_text(text)
    found = read(file, ENVIRON)
    assert kind == "json" or valid(tomllib.loads(text))
    assert not [warning for warning in found.warnings if "no server" not in warning]


def test_reference_has_an_example_of_each_table() -> None:
    data = [tomllib.loads(text) for kind, text in EXAMPLES if kind == "toml"]
    assert {name for one in data for name in one} == {*PROCESS, "defaults", "servers"}
    assert all(one.get("servers") or one.keys() == {"include", "allowed_commands"} for one in data)


def names(spec: Spec) -> set[str]:
    return {way[-1] for way, _ in walk(spec)}


KEYS = sorted(names(PROCESS) | names(DEFAULTS) | names(IDENTITY))


@pytest.mark.parametrize("name", KEYS)
def test_reference_names_every_key(name: str) -> None:
    assert re.search(rf"\b{name}\b", REFERENCE)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", True), ("port = 1", False), ("drain_timeout = 1.5", True), ("drain_timeout = true", False),
        ("[listen]\nport = 65535", True), ("[listen]\nport = 65536", False),
        ('[listen]\nport = "${P}"', True),
        ('[listen]\nport = "x"', False), ('[log]\nlevel = "info"', True), ('[log]\nlevel = "loud"', False),
        ('[servers.a]\ncommand = "x"', True), ("[servers.a]\nwarm = 1", False),
        ('[servers.a]\ncommand = ["x", "y"]', True), ("[servers.a]\ncommand = []", False),
        ('[servers.a]\ncommand = "x"\nurl = "y"', False), ("[servers.a]\ndisabled = true", True),
        ("[servers.a]\ndisabled = false", False), ('[servers."a b"]\ncommand = "x"', False),
        ('[servers.a]\nurl = "x"\nquota.rate = {each = 1, burst = 2}', True),
        ('[servers.a]\nurl = "x"\nquota.rate = {burst = 2}', False),
        ('[servers.a]\nurl = "x"\nrlimits = {nofile = 1, as = "1GiB"}', True),
        ('[servers.a]\nurl = "x"\npolicy.tools.allow = "x"', False),
        ('[defaults]\nurl = "x"', False), ("[defaults]\nwarm = 1", True),
    ],
)  # fmt: skip
def test_schema_tells_what_fits(text: str, fits: bool) -> None:
    assert valid(tomllib.loads(text)) is fits
