"""What was asked for, as one `Daemon`: by options of a command, or by a configuration file.

`servers` and `process` make it of options, wherever they were said; `tree` reads a file into the same
options, by the same functions. So there is one way in.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bridge.config import Daemon


def load(path: Path, environ: Mapping[str, str]) -> Daemon:
    """The configuration in a file, as often as one likes.

    Raises UsageFault with everything that is wrong, one a line, and then nothing of it holds.
    """
    from bridge.settings.tree import read

    return read(path, environ).daemon
