"""The list of programs that a file may start, and ways around it that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.config import Command
from bridge.settings.permitted import is_permitted


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """Three directories with a program `tool` in each, the first of them on the bridge's PATH."""
    for name in ("good", "evil", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tool").write_text("#!/bin/sh\n")
        (tmp_path / name / "tool").chmod(0o755)
    (tmp_path / "good" / "link").symlink_to(tmp_path / "evil", target_is_directory=True)
    return tmp_path


def permitted(
    places: Path, pattern: str, program: str, *, path: str | None = None, cwd: Path | None = None
) -> bool:
    env = () if path is None else (("PATH", path.replace("@", str(places))),)
    command = Command(argv=(program.replace("@", str(places)), "-x"), env=env, cwd=cwd)
    return is_permitted(command, [pattern.replace("@", str(places))], {"PATH": f"{places}/good"})


@pytest.mark.parametrize(
    ("pattern", "program", "lets"),
    [
        ("tool", "tool", True), ("t*", "tool", True), ("Tool", "tool", False), ("x", "tool", False),
        ("@/good/*", "tool", True), ("@/evil/*", "tool", False), ("@/good/tool", "@/good/tool", True),
        ("tool", "@/good/tool", False), ("*", "@/good/tool", False), ("*", "tool", True),
        ("*/*", "@/evil/tool", True), ("@/good/*", "@/evil/tool", False),
        ("@/good/*", "@/good/../evil/tool", False), ("@/good/*", "@/good/link/../evil/tool", False),
        ("@/evil/*", "@/good/../evil/tool", True), ("gone", "gone", True), ("@/good/*", "gone", False),
        ("@/good/*", "@/good/gone", True),
    ],
)  # fmt: skip
def test_pattern_is_held_against_the_name_or_the_program_that_is_found(
    places: Path, pattern: str, program: str, lets: bool
) -> None:
    assert permitted(places, pattern, program) is lets


def test_search_path_of_the_server_is_no_way_around_a_name(places: Path) -> None:
    assert not permitted(places, "tool", "tool", path="@/evil")
    assert not permitted(places, "@/good/*", "tool", path="@/evil:@/good")
    assert permitted(places, "tool", "tool", path="@/good:@/evil")
    assert permitted(places, "@/evil/*", "tool", path="@/evil")


def test_program_in_the_working_directory_is_held_against_where_it_is(places: Path) -> None:
    assert permitted(places, "@/other/*", "./tool", cwd=places / "other")
    assert not permitted(places, "@/good/*", "./tool", cwd=places / "other")
    assert not permitted(places, "tool", "./tool", cwd=places / "good")


def test_server_without_the_search_path_of_the_bridge_is_judged_by_its_own(places: Path) -> None:
    command = Command(argv=("tool",), only_env=True)
    environ = {"PATH": str(places / "good")}
    assert not is_permitted(command, ["tool"], environ)
    assert is_permitted(Command(argv=("tool",), only_env=True, inherit_env=("PATH",)), ["tool"], environ)


def test_nothing_is_permitted_by_no_pattern(places: Path) -> None:
    assert not is_permitted(Command(argv=("tool",)), [], {"PATH": str(places / "good")})
