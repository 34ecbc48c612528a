"""What the suite demands and what it found: requirement sets, verdicts, the tally of a run.

The verdict on a scenario is stricter than the suite's own. PASS: no check failed and at
least one that looks at the scenario's own matter succeeded. VOID: nothing failed because
nothing was observed, which the suite lets pass and we do not. FAIL: a check failed.

Refuses to know how the suite is started and against what; it reads the folder that the
suite leaves behind and the requirement sets in the suite's package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

# Succeeds for any traffic; says nothing about a scenario's own matter.
AMBIENT = frozenset({"wire-schema-valid"})
# The host is meant to be told of an error there, so its giving up says nothing.
ERROR_EXPECTED = frozenset({"http-invalid-tool-headers"})
NO_RESULT = "nothing was observed: the scenario's subject was never reached, or the suite left no result"


class UnknownSetError(Exception):
    """The suite has no such requirement set, or the set names no scenarios of this side."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """One side's scenarios of one revision; the unscored ones are run but never counted."""

    required: tuple[str, ...]
    unscored: tuple[str, ...] = ()


def read_requirements(package: Path, revision: str, side: str = "server") -> Requirements:
    """What a server, or a client, must pass. Raises UnknownSetError."""
    source = package / "requirements" / f"{revision}.yaml"
    if not source.exists():
        known = ", ".join(sorted(file.stem for file in source.parent.glob("*.yaml")))
        raise UnknownSetError(f"no requirement set {revision}; there are: {known}")
    wanted = parse_requirements(source.read_text(), side)
    if not wanted.required:
        raise UnknownSetError(f"the requirement set {revision} lists no {side} scenarios")
    return wanted


def parse_requirements(source: str, side: str = "server") -> Requirements:
    """The sets use so little of YAML that reading them line by line needs no parser for it."""
    section = ""
    required: list[str] = []
    entries: list[dict[str, str]] = []
    for line in source.splitlines():
        if head := re.match(r"(\w+):\s*$", line):
            section = head[1]
        elif section == side and (item := re.match(r"\s+- (\S+)\s*$", line)):
            required.append(item[1])
        # The fixed depth keeps the folded text of a note, which is deeper, from passing for a key.
        elif section == "not_scored" and (pair := re.match(r"(?:  (- )|    )(\w+): (\S.*)$", line)):
            if pair[1]:
                entries.append({})
            entries[-1][pair[2]] = pair[3].strip()
    unscored = (entry["scenario"] for entry in entries if entry.get("leg") == side)
    return Requirements(tuple(required), tuple(unscored))


class Verdict(StrEnum):
    PASS = "PASS"
    VOID = "VOID"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the suite; `status` is SUCCESS, FAILURE, WARNING, INFO or SKIPPED."""

    id: str
    status: str
    words: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """All checks of one scenario; none if the suite left no result for it."""

    scenario: str
    checks: tuple[Check, ...] = ()
    complaints: tuple[str, ...] = ()
    """What our own host said of a client scenario: it broke the protocol, or did not get its answers."""

    @property
    def verdict(self) -> Verdict:
        if self.having("FAILURE") or self.complaints:
            return Verdict.FAIL
        observed = any(check.id not in AMBIENT for check in self.having("SUCCESS"))
        return Verdict.PASS if observed else Verdict.VOID

    def having(self, status: str) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status == status)

    def line(self) -> str:
        good, bad, doubtful = (len(self.having(s)) for s in ("SUCCESS", "FAILURE", "WARNING"))
        counts = f"{good} ok, {bad} failed" + (f", {doubtful} warnings" if doubtful else "")
        return f"{self.verdict}  {self.scenario:<48} {counts}"

    def reasons(self) -> Iterator[str]:
        for check in self.having("FAILURE") + self.having("WARNING"):
            yield f"{check.status.lower()} {check.id}: {' '.join(check.words.split())[:300]}"
        yield from self.complaints
        if self.verdict is Verdict.VOID:
            yield NO_RESULT


def read_outcomes(results: Path) -> dict[str, Outcome]:
    """By scenario; a scenario that was run twice counts as it ended the last time."""
    found: dict[str, Outcome] = {}
    for file in sorted(results.rglob("checks.json")):
        name = scenario_of(file.parent, results)
        found[name] = Outcome(name, read_checks(file), complaints_in(file.with_name("stderr.txt"), name))
    return found


def complaints_in(log: Path, scenario: str) -> tuple[str, ...]:
    """What the host of a client scenario complained of, if that scenario had one."""
    said = log.read_text(errors="replace").splitlines() if log.exists() else []
    gave_up = () if scenario in ERROR_EXPECTED else ("host: gave up",)
    return tuple(line for line in said if line.startswith(("host: VIOLATION", *gave_up)))


def scenario_of(folder: Path, results: Path) -> str:
    """The suite names a folder `server-<scenario>-<time>`."""
    name = folder.relative_to(results).as_posix().removeprefix("server-")
    return re.sub(r"-\d{4}-\d\d-\d\dT[\d-]+Z$", "", name)


def read_checks(file: Path) -> tuple[Check, ...]:
    return tuple(
        Check(
            str(raw["id"]), str(raw["status"]), str(raw.get("errorMessage") or raw.get("description") or "")
        )
        for raw in json.loads(file.read_text())
    )


@dataclass(frozen=True, slots=True)
class Tally:
    """The outcome of a run. Only `required` counts."""

    required: tuple[Outcome, ...]
    excepted: tuple[Outcome, ...] = ()
    unscored: tuple[Outcome, ...] = ()

    @property
    def passed(self) -> int:
        return sum(outcome.verdict is Verdict.PASS for outcome in self.required)

    @property
    def complete(self) -> bool:
        return bool(self.required) and self.passed == len(self.required)

    def lines(self, *, verbose: bool = False) -> Iterator[str]:
        """Every scenario, those that did not pass (or, if verbose, all) with reasons, and a total."""
        yield from outcome_lines("required", self.required, verbose)
        yield from outcome_lines("excepted, not counted", self.excepted, verbose)
        yield from outcome_lines("not scored", self.unscored, verbose)
        doubtful = sum(bool(o.having("WARNING")) for o in self.required if o.verdict is Verdict.PASS)
        warned = f" ({doubtful} with warnings)" if doubtful else ""
        yield f"{self.passed}/{len(self.required)} required scenarios passed{warned}"

    def summary(self) -> str:
        """As JSON."""
        scenarios = {o.scenario: {"verdict": o.verdict, "reasons": [*o.reasons()]} for o in self.required}
        content = {"passed": self.passed, "required": len(self.required), "scenarios": scenarios}
        return json.dumps(content, indent=1) + "\n"


def outcome_lines(title: str, outcomes: Iterable[Outcome], verbose: bool) -> Iterator[str]:
    for number, outcome in enumerate(outcomes):
        if number == 0:
            yield f"-- {title}"
        yield outcome.line()
        if verbose or outcome.verdict is not Verdict.PASS:
            yield from (f"        {reason}" for reason in outcome.reasons())


def tally(
    wanted: Requirements,
    found: Mapping[str, Outcome],
    *,
    only: tuple[str, ...] = (),
    excepting: tuple[str, ...] = (),
) -> Tally:
    """Hold what was found against what is wanted; `only` narrows to those scenarios if given.

    A required scenario without a result is counted as not passed; an unscored one is left out.
    """
    required = [name for name in wanted.required if not only or name in only]
    unscored = [name for name in wanted.unscored if (not only or name in only) and name in found]

    def outcomes(names: Iterable[str]) -> tuple[Outcome, ...]:
        return tuple(found.get(name) or Outcome(name) for name in names)

    return Tally(
        required=outcomes(name for name in required if name not in excepting),
        excepted=outcomes(name for name in required if name in excepting),
        unscored=outcomes(unscored),
    )
