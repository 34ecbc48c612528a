"""Runs the MCP conformance suite against a bridge, and counts.

    run_conformance.py reference --requirements 2026-07-28
        the fixture served directly over HTTP; shows what the suite itself demands

    run_conformance.py server --requirements 2025-11-25 --era legacy \\
        --bridge 'mcp-bridge stdio-to-http --port {port} --cmd {cmd}'
        the fixture over stdio behind a bridge that serves HTTP; with `--source sse`
        or `--source http` the fixture is a URL, `{source}`, and not a command

    run_conformance.py client --requirements 2025-11-25 \\
        --wrapper 'mcp-bridge http-to-stdio {url}'
        the suite's own test servers behind a wrapper that serves stdio to our host (`host.py`);
        the scenarios of authorization are left out, since the bridge does not authorize

Decides which processes a run consists of and ends them all; what they found is judged in
`outcomes.py`, what has to be installed comes from `installs.py`. Exit status: 0 every
required scenario passed, 1 not so, 2 wrong arguments, 3 something could not be installed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import installs
from outcomes import Requirements, Tally, UnknownSetError, read_outcomes, read_requirements, tally

FIXTURE = Path(__file__).resolve().parent / "everything_server.py"
HOST = Path(__file__).resolve().parent / "host.py"
FIXTURE_PATHS = {"http": "/mcp", "sse": "/sse"}
FIXTURE_START = 30.0

COMPLETE, INCOMPLETE, USAGE, NOT_INSTALLED = range(4)


class NotListeningError(Exception):
    """A fixture or bridge did not come up; `str()` ends with what it said."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run. The fixture is served directly if there is neither `bridge` nor `url`.

    `bridge` and `wrapper` (which makes it a run of the client side, with `host` the era of our host)
    are command templates (see `filled`), `url` a bridge that runs already, `path` the path of the
    bridge's endpoint; `ready` (for the bridge to start) and `limit` (for one run of the suite) are
    seconds.
    """

    revision: str
    era: str = "dual"
    source: str = "stdio"
    bridge: str | None = None
    wrapper: str | None = None
    host: str = "auto"
    url: str | None = None
    path: str = "/mcp"
    ready: float = 30.0
    limit: float = 1200.0
    only: tuple[str, ...] = ()
    excepting: tuple[str, ...] = ()


def conduct(run: Run, room: Path) -> Tally:
    """Run the suite; all output goes into `room`.

    A bridge that does not come up is a run in which no scenario passed.
    Raises InstallError and UnknownSetError.
    """
    suite = installs.suite()
    if run.wrapper is not None:
        return conduct_client(run, run.wrapper, suite, room)
    wanted = read_requirements(suite.package, run.revision)
    check_names(wanted, (*run.only, *run.excepting))
    results = room / "results"
    try:
        with served(run, room) as url:
            for words in suite_calls(run):
                run_suite(
                    [*suite.command, "server", "--url", url, "-o", str(results), *words], room, run.limit
                )
    except NotListeningError as error:
        print(error, file=sys.stderr)
    return tally(wanted, read_outcomes(results), only=run.only, excepting=run.excepting)


def conduct_client(run: Run, wrapper: str, suite: installs.Suite, room: Path) -> Tally:
    """Every client scenario but those of authorization, one after another."""
    wanted = read_requirements(suite.package, run.revision, "client")
    check_names(wanted, (*run.only, *run.excepting))
    wanted = Requirements(tuple(name for name in wanted.required if not name.startswith("auth/")))
    results, host = room / "results", shlex.join([sys.executable, str(HOST)])
    env = {**os.environ, "MCP_WRAPPER": wrapper, "MCP_HOST_ERA": run.host}
    for name in run.only or wanted.required:
        words = ["--scenario", name, "--spec-version", run.revision, "--force"]
        words += ["--command", host, "--timeout", "30000", "-o", str(results)]
        run_suite([*suite.command, "client", *words], room, run.limit, env)
    return tally(wanted, read_outcomes(results), only=run.only, excepting=run.excepting)


def check_names(wanted: Requirements, names: Sequence[str]) -> None:
    unknown = sorted(set(names) - {*wanted.required, *wanted.unscored})
    if unknown:
        raise UnknownSetError(f"the requirement set has no {', '.join(unknown)}")


def suite_calls(run: Run) -> list[list[str]]:
    """The suite's arguments: one call for a whole set, else one for each scenario."""
    if not run.only:
        return [["--requirements", run.revision]]
    return [["--scenario", name, "--spec-version", run.revision, "--force"] for name in run.only]


def run_suite(command: Sequence[str], room: Path, limit: float, env: Mapping[str, str] | None = None) -> None:
    """What the suite has left behind when its time is up still counts."""
    with (room / "suite.log").open("ab") as out:
        try:
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=limit, check=False, env=env
            )
        except subprocess.TimeoutExpired:
            print(f"the suite was stopped after {limit:g} s", file=sys.stderr)


@contextlib.contextmanager
def served(run: Run, room: Path) -> Iterator[str]:
    """Start the fixture and the bridge; yields the URL to test. Raises NotListeningError."""
    if run.url:
        yield run.url
        return
    fixture = [installs.fixture_python(), str(FIXTURE), "--era", run.era]
    direct = run.bridge is None
    source = "http" if direct else run.source
    values = {"cmd": shlex.join([*fixture, "--stdio"]), "host": "127.0.0.1"}
    with contextlib.ExitStack() as stack:
        port = free_port()
        if source in FIXTURE_PATHS:
            command = [*fixture, f"--{source}", str(port)]
            stack.enter_context(listening(command, port, room / "fixture.log", FIXTURE_START))
            values["source"] = f"http://127.0.0.1:{port}{FIXTURE_PATHS[source]}"
        if run.bridge is not None:
            port = free_port()
            command = filled(run.bridge, {**values, "port": str(port)})
            stack.enter_context(listening(command, port, room / "bridge.log", run.ready))
        # The suite derives Host and Origin from the URL, and its authors' servers know `localhost`.
        yield f"http://localhost:{port}{FIXTURE_PATHS['http'] if direct else run.path}"


def filled(template: str, values: Mapping[str, str]) -> list[str]:
    """Split a command template and fill it: `{cmd}` stays one word, a lone `{args}` becomes several."""
    words: list[str] = []
    for word in shlex.split(template):
        if word == "{args}":
            words += shlex.split(values["cmd"])
        else:
            words.append(replaced(word, values))
    return words


def replaced(word: str, values: Mapping[str, str]) -> str:
    for key, value in values.items():
        word = word.replace("{" + key + "}", value)
    return word


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def listening(command: Sequence[str], port: int, log: Path, patience: float) -> Iterator[None]:
    """The process of `command`, once it listens on `port`; ended with all of its group afterwards.

    Raises NotListeningError.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        if not came_up(port, process, patience):
            raise NotListeningError(f"nothing listens on port {port}: {shlex.join(command)}\n{tail(log)}")
        yield
        if process.poll() is not None:
            print(f"{log.stem} ended by itself with {process.returncode}\n{tail(log)}", file=sys.stderr)
    finally:
        end(process)


def came_up(port: int, process: subprocess.Popen[bytes], patience: float) -> bool:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and process.poll() is None:
        if reachable(port):
            # A bridge may listen before the processes that it starts ahead are up (half a second here).
            time.sleep(0.5)
            return True
        time.sleep(0.1)
    return False


def reachable(port: int) -> bool:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(1)
            if sock.connect_ex((host, port)) == 0:
                return True
    return False


def tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask, then insist; the second signal also reaches what a dead leader left in its group."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)


@contextlib.contextmanager
def output_room(keep: Path | None) -> Iterator[Path]:
    """A folder for the output of one run: a new one below `keep`, or one that vanishes."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="mcp-conformance-") as folder:
            yield Path(folder)
        return
    stamp = datetime.datetime.now(tz=datetime.UTC).strftime("%Y%m%d-%H%M%S")
    keep.mkdir(parents=True, exist_ok=True)
    room = Path(tempfile.mkdtemp(prefix=f"{stamp}-", dir=keep.resolve()))
    print(f"output is kept in {room}", file=sys.stderr)
    yield room


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sides = parser.add_subparsers(dest="side", required=True)
    reference = sides.add_parser("reference", help="the fixture served directly over HTTP")
    server = sides.add_parser("server", help="the fixture behind a bridge that serves HTTP")
    client = sides.add_parser("client", help="the suite's servers behind a wrapper that serves stdio")
    for side in (reference, server, client):
        side.add_argument(
            "--requirements", required=True, metavar="REVISION", help="2025-11-25 or 2026-07-28"
        )
        side.add_argument(
            "--era", choices=("legacy", "modern", "dual"), default=Run.era, help="of the fixture"
        )
        side.add_argument("--scenario", action="append", default=[], help="only this one; may be repeated")
        excepting = "run and show, but do not count; may be repeated"
        side.add_argument("--excepting", action="append", default=[], metavar="SCENARIO", help=excepting)
        side.add_argument("--limit", type=float, default=Run.limit, help="seconds for one run of the suite")
        side.add_argument("--json", type=Path, metavar="FILE", help="write the tally there")
        side.add_argument("--keep", type=Path, metavar="DIR", help="keep all output in a new folder there")
        side.add_argument("--verbose", action="store_true", help="show the warnings of passed scenarios too")
    elsewhere = {"source": Run.source, "bridge": None, "url": None, "path": Run.path, "ready": Run.ready}
    reference.set_defaults(**elsewhere, wrapper=None, stdio_era=Run.host)
    client.set_defaults(**elsewhere)
    client.add_argument("--wrapper", required=True, help="command template: {url}")
    eras = "what our host speaks (default: the scenario's era, falling back as a host of both does)"
    client.add_argument("--stdio-era", choices=("legacy", "modern", "auto"), default=Run.host, help=eras)
    server.set_defaults(wrapper=None, stdio_era=Run.host)
    server.add_argument("--source", choices=("stdio", *FIXTURE_PATHS), default=Run.source)
    what = server.add_mutually_exclusive_group(required=True)
    what.add_argument("--bridge", help="command template: {port}, {host}, {cmd} or {args}, {source}")
    what.add_argument("--url", help="a bridge that runs already")
    server.add_argument("--path", default=Run.path, help="of the bridge's endpoint (default: /mcp)")
    server.add_argument("--ready", type=float, default=Run.ready, help="seconds that the bridge has to start")
    return parser


def run_of(options: argparse.Namespace) -> Run:
    return Run(
        revision=options.requirements,
        era=options.era,
        source=options.source,
        bridge=options.bridge,
        wrapper=options.wrapper,
        host=options.stdio_era,
        url=options.url,
        path=options.path,
        ready=options.ready,
        limit=options.limit,
        only=tuple(options.scenario),
        excepting=tuple(options.excepting),
    )


def main(words: Sequence[str] | None = None) -> int:
    options = arguments().parse_args(words)
    try:
        with output_room(options.keep) as room:
            found = conduct(run_of(options), room)
    except UnknownSetError as error:
        print(error, file=sys.stderr)
        return USAGE
    except installs.InstallError as error:
        print(error, file=sys.stderr)
        return NOT_INSTALLED
    for line in found.lines(verbose=options.verbose):
        print(line)
    if options.json:
        options.json.write_text(found.summary())
    return COMPLETE if found.complete else INCOMPLETE


if __name__ == "__main__":
    # An exception, so that a run which is told to stop leaves no process behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
