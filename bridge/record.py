"""Traffic written down, so that it can be sent along with a bug report and run again.

One JSON object a line, of the shapes below, in the order in which things happened. What is a message
stands there as it passed, but for what looks like a secret, which becomes `***`; the traffic itself
is untouched. Writing never makes traffic wait: what a slow disk cannot take is left out, and a line
says how much.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from bridge import __version__
from bridge.config import GIB, MIB, Config, Record
from bridge.core.splice import elements, joined, members, quote
from bridge.core.tape import Heard, Tape
from bridge.errors import UsageFault
from bridge.telemetry import Outlet, redact, spell_server

log = logging.getLogger("bridge")

FORMAT: Final = 1
HIDDEN: Final = "***"
"""What stands for a value that was left out; for `replay` it equals everything."""
_MASK: Final = b'"***"'
_CAPACITY: Final = 64 * MIB
_MOST: Final = 1 * GIB
"""Bytes of one run of the bridge, after which nothing more is written."""
_TELLING: Final = re.compile(
    r"(?:token|secret|password|passwd|passphrase|api[-_]?key|authorization|cookie|credential|private[-_]?key)s?$"
    r"|^requeststate$",
    re.IGNORECASE,
)
_HARMLESS: Final = frozenset({"progressToken", "nextCursor", "maxTokens", "inputTokens", "outputTokens"})


class Line(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One line. `t` is seconds since the first one of the same run.

    The first line of a run has `record` (the version of this form), `bridge` and `at` (seconds since the
    epoch); the first of a server `server` and `target`. Every other has `server`, `way` and either
    `message` or `event` (see `core.tape.Heard`), and `client` unless it is for all of them.
    """

    t: float = 0.0
    record: int | None = None
    bridge: str = ""
    at: float | None = None
    target: str = ""
    server: str = ""
    client: int | None = None
    way: str = ""
    about: int | str | None = None
    event: str = ""
    lost: int | None = None
    """Lines that could not be written here."""
    message: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_encode: Final = msgspec.json.Encoder().encode


class Recorder:
    """Appends to a file; `tape` makes the layer that hears one server. Raises UsageFault."""

    def __init__(self, record: Record, *, clock: Callable[[], float] = time.monotonic) -> None:
        assert record.path is not None
        try:
            descriptor = os.open(record.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as fault:
            raise UsageFault(f"--record {record.path}: {fault.strerror}") from None
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")
        self._outlet = Outlet(self._file, self._loss, capacity=_CAPACITY)
        self._path, self._secrets = record.path, record.secrets
        self._clock, self._began = clock, clock()
        self._size = 0
        self._write(Line(record=FORMAT, bridge=__version__, at=round(time.time(), 3)))

    def tape(self, config: Config) -> Tape:
        """The layer for this server."""
        name = config.name
        self._write(Line(t=self._now(), server=name, target=spell_server(config.upstream)))

        def hear(heard: Heard) -> None:
            self._write(
                Line(
                    t=self._now(),
                    server=name,
                    client=heard.client,
                    way=heard.way,
                    about=heard.about,
                    event=heard.event,
                    message=self._shown(heard.message),
                )
            )

        return Tape(hear)

    def close(self) -> None:
        self._outlet.stop()
        self._file.close()

    def _now(self) -> float:
        return round(self._clock() - self._began, 6)

    def _shown(self, message: bytes) -> msgspec.Raw | msgspec.UnsetType:
        if not message:
            return msgspec.UNSET
        return msgspec.Raw(message if self._secrets else without_secrets(message))

    def _write(self, line: Line) -> None:
        if self._size > _MOST:
            return
        data = _encode(line)
        self._size += len(data)
        self._outlet.write(data.decode("utf-8", "surrogateescape") + "\n")
        if self._size > _MOST:
            log.warning("%s holds %d bytes of this run, and nothing more is recorded", self._path, self._size)

    @staticmethod
    def _loss(lines: int) -> str:
        return _encode(Line(lost=lines)).decode() + "\n"


def without_secrets(message: bytes) -> bytes:
    """The message with `***` for what looks like a secret, by the name of its member or by its form.

    All else keeps its bytes, but for blanks between tokens. What cannot be read is left out whole.
    """
    try:
        return _masked(message)
    except (ValueError, RecursionError):
        return _MASK


def _masked(value: bytes | msgspec.Raw) -> bytes:
    text = bytes(value).strip()
    match text[:1]:
        case b"{":
            parts = members(text).items()
            return joined((key, _MASK if _tells(key, inner) else _masked(inner)) for key, inner in parts)
        case b"[":
            return b"[%b]" % b",".join(map(_masked, elements(text)))
        case b'"':
            plain = msgspec.json.decode(text, type=str)
            shown = redact(plain)
            return text if shown == plain else quote(shown)
    return text


def _tells(key: str, value: bytes | msgspec.Raw) -> bool:
    is_text = bytes(value).lstrip()[:1] == b'"'
    return is_text and key not in _HARMLESS and _TELLING.search(key) is not None


def read_record(path: Path) -> list[Line]:
    """Every line of a recording. Raises UsageFault naming the line that is none."""
    try:
        text = path.read_bytes()
    except OSError as fault:
        raise UsageFault(f"{path}: {fault.strerror}") from None
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            lines.append(msgspec.json.decode(line, type=Line))
        except msgspec.DecodeError as fault:
            raise UsageFault(f"{path}:{number}: no line of a recording: {fault}") from None
    if not lines or lines[0].record is None:
        raise UsageFault(f"{path}: is no recording; `mcp-bridge … --record FILE` makes one")
    if (version := lines[0].record) > FORMAT:
        raise UsageFault(f"{path}: is of a newer form ({version}); replay it with a newer mcp-bridge")
    return lines
