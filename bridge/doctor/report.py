"""What the doctor found, and the two forms in which it is told: a JSON object and a table.

Decides the words and the layout, and what the whole of the findings amounts to. Refuses to know how
anything was found out. Text of the server's is shown without what would move a cursor.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import click
import msgspec

from bridge.upstream.process import readable

Json = dict[str, object]

_WIDTH = 100
"""Characters of the server's words in one cell."""


class Level(StrEnum):
    """How much a finding weighs: what the specification demands, what it advises, what we advise."""

    MUST = "must"
    SHOULD = "should"
    ADVICE = "advice"


class Finding(msgspec.Struct, frozen=True):
    """One requirement that was tried; `row` is its id, `text` says what is kept or broken."""

    row: str
    level: Level
    ok: bool
    text: str


class Era(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a client of this era would come. `negotiates` is what each older offer is answered with."""

    works: bool
    revisions: tuple[str, ...] = ()
    negotiates: dict[str, str] = {}
    fault: str | None = None


class Latency(msgspec.Struct, frozen=True):
    """Of `n` calls of `method`, one after another."""

    p50: float
    p90: float
    p99: float
    n: int
    method: str
    unit: str = "ms"


class Metadata(msgspec.Struct, frozen=True):
    """One OAuth protected resource document (RFC 9728)."""

    path: str
    status: int
    document: Json | None = None


class Authorization(msgspec.Struct, frozen=True):
    required: bool
    challenge: str | None = None
    metadata: tuple[Metadata, ...] = ()


class Verdict(msgspec.Struct, frozen=True):
    works: bool
    text: str


class Chart(msgspec.Struct, kw_only=True):
    """The findings as they come in. `ailment` is the diagnosis if no era works, the first that was made."""

    target: str
    transports: tuple[str, ...] = ()
    eras: dict[str, Era] = {}
    identity: Json | None = None
    capabilities: Json | None = None
    counts: dict[str, int] = {}
    authorization: Authorization | None = None
    findings: list[Finding] = []
    latency: Latency | None = None
    ailment: str | None = None
    complete: bool = False

    def ails(self, text: str) -> None:
        self.ailment = self.ailment or text

    def found(self, row: str, level: Level, ok: bool, text: str) -> None:
        self.findings.append(Finding(row, level, ok, text))

    def offered(self, revision: str, got: str) -> None:
        """An older revision was offered to the legacy era, and answered with this one."""
        era = self.eras["legacy"]
        negotiates = dict(sorted({**era.negotiates, revision: got}.items()))
        self.eras["legacy"] = msgspec.structs.replace(era, negotiates=negotiates)

    def speaks(self, transport: str) -> None:
        if transport not in self.transports:
            self.transports += (transport,)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON object."""

    target: str
    transports: tuple[str, ...]
    eras: dict[str, Era]
    identity: Json | None
    capabilities: Json | None
    counts: dict[str, int]
    authorization: Authorization | None
    findings: list[Finding]
    latency: Latency | None
    verdict: Verdict


_SAME = tuple(name for name in Report.__struct_fields__ if name != "verdict")


def report(chart: Chart, timeout: float) -> Report:
    return Report(**{name: getattr(chart, name) for name in _SAME}, verdict=_verdict(chart, timeout))


def _verdict(chart: Chart, timeout: float) -> Verdict:
    late = "" if chart.complete else f"; not all was looked at in {timeout:g} s, give a longer --timeout"
    if not any(era.works for era in chart.eras.values()):
        return Verdict(False, f"{chart.ailment or 'Nothing was found out'}{late}")
    broken = [one for one in chart.findings if not one.ok and one.level is Level.MUST]
    rows = ", ".join(dict.fromkeys(one.row for one in broken))
    advice = f"; to mend: what the specification demands in {rows}" if rows else ""
    return Verdict(True, f"A client can work with it{advice}{late}")


def as_json(found: Report) -> str:
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()


# -- the table


def as_table(found: Report, *, color: bool) -> str:
    """Aligned lines; `color` adds ANSI colours."""
    rows = [(name, cell) for name, cells in _rows(found) for name, cell in _named(name, cells)]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {cell}" for name, cell in rows]
    lines += ["", *(_finding(one, color) for one in sorted(found.findings, key=lambda one: one.ok))]
    return "\n".join([*lines, "", _mark(found.verdict.works, found.verdict.text, color)])


def _named(name: str, cells: list[str]) -> Iterator[tuple[str, str]]:
    for place, cell in enumerate(cells):
        yield ("" if place else name), tame(cell)


def _rows(found: Report) -> Iterator[tuple[str, list[str]]]:
    yield "target", [found.target]
    yield "transports", [", ".join(found.transports) or "none"]
    for name, era in found.eras.items():
        yield name, [_era(era)]
    if found.identity is not None:
        yield "server", [f"{found.identity.get('name', '?')} {found.identity.get('version', '')}"]
    if found.capabilities is not None:
        yield "capabilities", [", ".join(found.capabilities) or "none"]
    if found.counts:
        yield "offers", [", ".join(f"{count} {name}" for name, count in found.counts.items())]
    if found.authorization is not None:
        yield "authorization", _authorization(found.authorization)
    if (took := found.latency) is not None:
        text = f"p50 {took.p50:g} ms, p90 {took.p90:g} ms, p99 {took.p99:g} ms"
        yield "latency", [f"{text} ({took.n} times {took.method})"]


def _era(era: Era) -> str:
    if not era.works:
        return f"no: {era.fault or 'not spoken'}"
    others = [f"{offer} gets {got}" for offer, got in era.negotiates.items() if got != offer]
    return "; ".join([", ".join(era.revisions), *others])


def _authorization(known: Authorization) -> list[str]:
    first = ["required" if known.required else "not asked for"]
    if known.challenge:
        first.append(known.challenge)
    return [": ".join(first)] + [f"{one.path}: HTTP {one.status}" for one in known.metadata]


def _finding(one: Finding, color: bool) -> str:
    return _mark(one.ok, f"{one.row:<6} {tame(one.text)}{'' if one.ok else f' ({one.level})'}", color)


def _mark(ok: bool, text: str, color: bool) -> str:
    words = f"{'✓ ok   ' if ok else '✗ wrong'} {text}"
    return click.style(words, fg="green" if ok else "red") if color else words


def tame(text: str) -> str:
    return readable(text.encode(errors="replace"), 1000)


def excerpt(text: str) -> str:
    """The beginning of what a server said, on one line, in quotation marks."""
    return f'"{readable(" ".join(text.split()).encode(errors="replace"), _WIDTH)}"'
