"""The options: their headings, their variables, and that the reference is that of the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge import cli
from bridge.options import OPTIONS, SECTIONS, SectionOption


@pytest.mark.parametrize("mode", cli.MODES, ids=lambda mode: mode.name)
def test_help_has_each_option_under_its_heading(mode: cli.Mode) -> None:
    text = CliRunner().invoke(cli.program, [mode.name, "--help"], prog_name="mcp-bridge").output
    for option in mode.options:
        above = text[: text.index(f"  {option.opts[0]} ")]
        heading = re.findall(r"^(\S.*):$", above, re.MULTILINE)[-1]
        assert heading == option.section


def test_no_two_options_share_a_name_or_a_variable() -> None:
    assert (
        len({option.opts[0] for option in OPTIONS})
        == len({option.envvar for option in OPTIONS})
        == len(OPTIONS)
    )


def test_each_option_belongs_to_a_command() -> None:
    assert {option.opts[0] for mode in cli.MODES for option in mode.options} == {o.opts[0] for o in OPTIONS}


# -- the reference

REFERENCE = (Path(__file__).parent.parent / "docs" / "options.md").read_text(encoding="utf-8")


def test_reference_lists_exactly_the_options_with_their_variables_and_defaults() -> None:
    rows = re.findall(
        r"^\| `(--[a-z-]+)(?:[^|\\]|\\.)*\| `(MCP_BRIDGE_[A-Z_]+)` \| ([^|]*) \|", REFERENCE, re.MULTILINE
    )
    assert rows == [(o.opts[0], o.envvar, default_of(o)) for o in OPTIONS]


def default_of(option: SectionOption) -> str:
    return f"`{option.default}`" if option.show_default else "-"


def test_reference_tells_which_command_has_which_options() -> None:
    rows = [row.strip("| ").split(" | ") for row in re.findall(r"^\| .*", REFERENCE, re.MULTILINE)]
    names = [f"`{mode.name}`" for mode in cli.MODES]
    (table,) = [rows[at + 1 :] for at, row in enumerate(rows) if row[1:] == names]
    assert {row[0]: row[1:] for row in table[: len(SECTIONS)]} == {
        section: [share_of(mode, section) for mode in cli.MODES] for section in SECTIONS
    }


def share_of(mode: cli.Mode, section: str) -> str:
    """Whether a command has the options of a section: all, none, or all but some."""
    rows = [option for option in OPTIONS if option.section == section]
    missing = [option for option in rows if option not in mode.options]
    if not missing:
        return "all"
    return "-" if missing == rows else "all but " + ", ".join(f"`{option.opts[0]}`" for option in missing)
