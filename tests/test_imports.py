"""Who may import whom (docs/architecture.md, "Layout"), read from the source."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "bridge"
MODULES = {
    ".".join(("bridge", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
PURE = ("bridge.core", "bridge.era")
SIDES = ("bridge.downstream", "bridge.upstream")
CONTRACTS = {"bridge.downstream.base", "bridge.upstream.base"}


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported anywhere in it, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else str(node.module)


IMPORTS = {
    name: sorted(set(imported(ast.parse(path.read_text("utf-8"))))) for name, path in sorted(MODULES.items())
}


def imports_of(*packages: str) -> Iterator[tuple[str, str]]:
    for name, found in IMPORTS.items():
        if within(name, *packages):
            yield from ((name, one) for one in found)


def is_standard(module: str) -> bool:
    return module.split(".")[0] in sys.stdlib_module_names


def test_the_source_is_read() -> None:
    """The rules below would hold of nothing, too."""
    assert ("bridge.core.correlate", "bridge.core.splice") in imports_of("bridge.core")
    assert ("bridge.core.message", "msgspec") in imports_of("bridge.core")
    assert any(within(one, *SIDES) and one not in CONTRACTS for one in IMPORTS["bridge.app"])


def test_the_core_and_the_eras_import_only_the_standard_library_msgspec_and_each_other() -> None:
    foreign = [
        (name, one)
        for name, one in imports_of(*PURE)
        if not (is_standard(one) or within(one, "msgspec", *PURE))
    ]
    assert foreign == []


@pytest.mark.parametrize(
    "module",
    ["asyncio", "anyio", "time", "random", "secrets", "socket", "os", "subprocess", "threading", "logging"],
)
def test_the_core_has_no_clock_no_chance_and_no_io(module: str) -> None:
    assert [name for name, one in imports_of(*PURE) if within(one, module)] == []


def test_adapters_of_one_side_know_the_other_by_its_contract_alone() -> None:
    down, up = SIDES
    crossing = [
        (name, one)
        for mine, other in ((down, up), (up, down))
        for name, one in imports_of(mine)
        if within(one, other) and one not in CONTRACTS
    ]
    assert crossing == []


def test_only_the_composition_roots_name_concrete_adapters() -> None:
    """The daemon's, and the doctor's, which examines with the daemon's own parts."""
    named = [
        (name, one)
        for name, found in IMPORTS.items()
        if not within(name, "bridge.app", "bridge.doctor", *SIDES)
        for one in found
        if within(one, *SIDES) and one not in {*CONTRACTS, *SIDES}
    ]
    assert named == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Python would allow it as long as nobody looks too early."""
    inner = {name: {one for one in found if one in MODULES} for name, found in IMPORTS.items()}
    while leaves := {name for name, found in inner.items() if not found}:
        inner = {name: found - leaves for name, found in inner.items() if name not in leaves}
    assert inner == {}
