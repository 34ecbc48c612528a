"""Which programs a configuration may start: `allowed_commands`.

A pattern with a slash is held against the file that would be executed, with the links of its
directory resolved where the path could hide something. One without is held against the name as it is
written, and holds only where the server would find what the bridge would: a `PATH` of the server's
own is no way around it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from bridge.config import Command


def is_permitted(command: Command, patterns: Iterable[str], environ: Mapping[str, str]) -> bool:
    """Whether one of the patterns lets this command be started."""
    program, found = command.argv[0], located(command, environ)
    bare = os.sep not in program and found == _which(program, environ.get("PATH"), Path())
    return any(
        found is not None and fnmatchcase(found, pattern)
        if os.sep in pattern
        else bare and fnmatchcase(program, pattern)
        for pattern in patterns
    )


def located(command: Command, environ: Mapping[str, str]) -> str | None:
    """The file that would be executed, if there is one."""
    program, cwd = command.argv[0], command.cwd or Path()
    if os.sep in program:
        return _plain(cwd.absolute() / program)
    own = dict(command.env).get("PATH")
    inherited = None if command.only_env and "PATH" not in command.inherit_env else environ.get("PATH")
    return _which(program, inherited if own is None else own, cwd)


def _which(program: str, path: str | None, cwd: Path) -> str | None:
    entries = (os.defpath if path is None else path).split(os.pathsep)
    searched = os.pathsep.join(str(cwd.absolute() / entry) for entry in entries)
    found = shutil.which(program, path=searched)
    return None if found is None else _plain(Path(found))


def _plain(file: Path) -> str:
    """A path without `..`, which leads where it says."""
    return str(file if ".." not in file.parts else file.parent.resolve() / file.name)
