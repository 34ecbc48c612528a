"""The two sides of the SDK matrix: which SDKs there are, what each speaks, and how each is started.

What a client and a server say to each other is in `programs/`; what is compared is in `EXPECTED`, once
for each era of the client, since nothing may depend on the server or on what is between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from matrix.programs import Side
from real.provision import Software

PROGRAMS: Final = Path(__file__).parent / "programs"


class Era(StrEnum):
    LEGACY = "legacy"
    MODERN = "modern"


class Sdk(StrEnum):
    PYTHON_1 = "Python 1"
    PYTHON_2 = "Python 2"
    TYPESCRIPT_1 = "TypeScript 1"
    TYPESCRIPT_2 = "TypeScript 2"

    @property
    def era(self) -> Era:
        """What it speaks here: the 2.x clients find the modern era, the 2.x servers serve nothing else."""
        return Era.LEGACY if self in (Sdk.PYTHON_1, Sdk.TYPESCRIPT_1) else Era.MODERN

    @property
    def sides(self) -> Sequence[Side]:
        """HTTP+SSE is a transport of the legacy era only, on whichever side."""
        return tuple(Side) if self.era is Era.LEGACY else (Side.STDIO, Side.HTTP)


@dataclass(frozen=True, slots=True)
class Upstream:
    """A server on one SDK behind the bridge, over one transport."""

    sdk: Sdk
    side: Side

    def __str__(self) -> str:
        return f"{self.sdk} {SHORT[self.side]}"


SHORT: Final = {Side.STDIO: "stdio", Side.HTTP: "HTTP", Side.SSE: "SSE"}
UPSTREAMS: Final = [Upstream(sdk, side) for sdk in Sdk for side in sdk.sides]

_NAMES: Final = {
    Sdk.PYTHON_1: "python_1.py",
    Sdk.PYTHON_2: "python_2.py",
    Sdk.TYPESCRIPT_1: "typescript_1.mjs",
    Sdk.TYPESCRIPT_2: "typescript_2.mjs",
}


def client(software: Software, sdk: Sdk) -> list[str]:
    return _program(software, sdk, "client")


def server(software: Software, upstream: Upstream) -> list[str]:
    return [*_program(software, upstream.sdk, "server"), SHORT[upstream.side].lower()]


def _program(software: Software, sdk: Sdk, part: str) -> list[str]:
    script = str(PROGRAMS / f"{part}_{_NAMES[sdk]}")
    match sdk:
        case Sdk.PYTHON_1:
            return [str(software.sdk_1 / "python"), script]
        case Sdk.PYTHON_2:
            return [str(software.sdk_2 / "python"), script]
        case Sdk.TYPESCRIPT_1 | Sdk.TYPESCRIPT_2:
            return [software.node, script, str(software.npm)]


def _expected(revision: str, missing: int) -> dict[str, Any]:
    """`missing` is the code of the error for a resource that is not there."""
    return {
        "about": [revision, "matrix-server", "1.2.3", "A server of the matrix; its tools do nothing useful."],
        "lists": {
            "tools": [
                *("ask", "ask_all", "ask_twice", "echo", "grow", "log"),
                *("peer", "roots", "sample", "slow", "stopped", "touch"),
            ],
            "resources": ["matrix://about"],
            "templates": ["matrix://item/{name}"],
            "prompts": ["greet"],
        },
        "reads": ["Please greet Zoë 🎉.", "the text of matrix://item/{target}", ["Ada", "Alan"]],
        "echo": [True, "by header"],
        "progress": ["Waited.", [[1, 3], [2, 3], [3, 3]]],
        "log": ["warning", "error"],
        "ask": "accept: a user on who é?",
        "ask twice": "accept: a user on first?, accept: a user on second?",
        "ask all": "accept: a user on all?, a model on all?, file:///matrix",
        "sample": "a model on what é?",
        "roots": "file:///matrix",
        "declared": "elicitation roots sampling",
        "changes": ["matrix://item/own"],
        "cancel": ["cancelled", "stopped", "after"],
        "unknown tool": [-32602, "Unknown tool: nothing"],
        "missing resource": [missing, "Resource not found"],
        "together": [["Waited.", f"accept: a user on {steps}"] for steps in (1, 2, 3)],
    }


EXPECTED: Final = {
    Era.LEGACY: _expected("2025-11-25", -32002),
    Era.MODERN: _expected("2026-07-28", -32602),
}


def lost(era: Era, name: str, seen: dict[str, Any]) -> dict[str, str]:
    """By step, what was not as expected in the conversation of the target of this name."""
    found = {
        step: f"{seen.get(step, 'not reached')!r}, not {wanted!r}"
        for step, wanted in EXPECTED[era].items()
        if seen.get(step) != _of(name, wanted)
    }
    return {**found, **({"connection": seen["connection"]} if "connection" in seen else {})}


def _of(name: str, wanted: Any) -> Any:
    if isinstance(wanted, list):
        return [_of(name, one) for one in wanted]
    return wanted.replace("{target}", name) if isinstance(wanted, str) else wanted
