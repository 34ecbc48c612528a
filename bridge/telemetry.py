"""What the bridge says on stderr: log lines and the lines at start.

It decides how a line looks, who may be heard by default, and what no line may hold: tokens,
whole session ids, control characters of a peer. Its one hard rule is that saying something
never makes traffic wait: lines go to an `Outlet`, which holds a bounded number of bytes for a
thread of its own to write, and counts what it had to let go. The standard library's
QueueHandler does not do: when its queue is full it reports that on the very stderr that is
blocked, and its listener is joined without a bound.

It refuses to know what is being logged, and writes nowhere but to the stream it is given.

Answers "Security considerations" on token theft: nothing secret in logs.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import os
import re
import select
import shlex
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TextIO, assert_never, cast
from urllib.parse import urljoin, urlsplit

import click

from bridge import __version__
from bridge.config import Command, Config, Log, LogFormat, Remote

CAPACITY = 4 * 1024 * 1024
"""Bytes held for a stderr that is not read, besides as many that are being written."""

LONGEST = 8 * 1024
"""Characters of one message, of one field, or of a traceback's end; the rest is cut."""

FLUSH_SECONDS = 1.0
"""For what is held to be written, when logging stops."""

OUR_LOGGER = "bridge"


# -- what no line may hold --------------------------------------------------------------------

_NAMED = r"token|secret|passw(?:or)?d|api[-_]?key|session[-_]?id|request[-_]?state"
_TELLTALE = rf"(?<!progress)(?<!progress_)(?:{_NAMED})"
_REDACTIONS = (
    # The rest of the line, or of the quoted text: schemes and cookies have many forms.
    (r"(authorization|cookie|mcp-param-[\w-]{1,100})([\"']?\s{0,8}[:=]\s{0,8}[\"']?)[^\"'\r\n]+", r"\1\2***"),
    (r"\b(bearer|basic)(\s{1,8})[\w.~+/=-]{6,}", r"\1\2***"),
    (rf"({_TELLTALE})([\"']?\s{{0,8}}[:=]\s{{0,8}}[\"']?)[^\s\"',;&]{{6,}}", r"\1\2***"),
    (r"(://)[^\s/@:]{0,200}:[^\s/@]{1,200}@", r"\1***@"),
    (r"\b(?:sk-|gh[opsu]_|github_pat_|xox[abp]-|eyJ)[\w.-]{16,}", "***"),
)
_REDACT = tuple((re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in _REDACTIONS)
_SECRET_FLAG = re.compile(_TELLTALE, re.IGNORECASE)

# A peer's line breaks would forge lines of ours, its escapes would steer the terminal.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_CONTROLS |= {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\t"}


def redact(text: str) -> str:
    """`text` with `***` for whatever looks like a credential or a session id.

    For text that quotes a peer. Linear in its length, so bound that first.
    """
    for pattern, instead in _REDACT:
        text = pattern.sub(instead, text)
    return text


def short(session_id: str) -> str:
    """Enough of a session id to follow it through a log, too little to use it."""
    return session_id if len(session_id) < 10 else f"{session_id[:8]}…"


def spell_command(command: Sequence[str]) -> str:
    """A command as one would type it, without the secrets among its words."""
    words = []
    secret_follows = False
    for word in command:
        hidden = secret_follows and not word.startswith("-")
        words.append("***" if hidden else shlex.quote(redact(word[:LONGEST])))
        secret_follows = word.startswith("-") and "=" not in word and bool(_SECRET_FLAG.search(word))
    return " ".join(words)


def _tame(text: str) -> str:
    cut = f"{text[:LONGEST]}… ({len(text) - LONGEST} more)" if len(text) > LONGEST else text
    return redact(cut)


# -- how a line looks -------------------------------------------------------------------------

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLORS = {"DEBUG": "blue", "INFO": "green", "WARNING": "yellow", "ERROR": "red", "CRITICAL": "magenta"}
_Plain = str | int | float | bool | None


def _fields(record: logging.LogRecord) -> dict[str, _Plain]:
    """What was given as `extra`, fit to be shown."""
    return {name: _field(name, value) for name, value in vars(record).items() if name not in _STANDARD}


def _field(name: str, value: object) -> _Plain:
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    text = str(value)
    return short(text) if name == "session" else _tame(text)


def _trace(record: logging.LogRecord, formatter: logging.Formatter) -> str:
    """The end of the traceback, where the cause is."""
    if not record.exc_info:
        return ""
    return redact(formatter.formatException(record.exc_info)[-LONGEST:])


class PlainFormatter(logging.Formatter):
    """One line a record: time, level, message, fields; a traceback follows, indented.

    `stamp` is the form of the time, as for `datetime.strftime`; an empty one leaves it out.
    """

    def __init__(self, *, stamp: str, color: bool = False) -> None:
        super().__init__()
        self._stamp = stamp
        self._color = color

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = (_tame(record.getMessage()) + fields).translate(_CONTROLS)
        trace = "".join(f"\n  {line.translate(_CONTROLS)}" for line in _trace(record, self).splitlines())
        return self._head(record) + line + trace

    def _head(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower():<7} "
        stamp = self._stamp and datetime.fromtimestamp(record.created, UTC).astimezone().strftime(self._stamp)
        if not self._color:
            return stamp + level
        return click.style(stamp, dim=True) + click.style(level, fg=_COLORS.get(record.levelname))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `ts` (RFC 3339), `level`, `logger`, `message`, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        own = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _tame(record.getMessage()),
        }
        if trace := _trace(record, self):
            own["traceback"] = trace
        return json.dumps(own | _fields(record) | own)


def _formatter(log: Log, stream: TextIO) -> logging.Formatter:
    match log.format:
        case LogFormat.JSON:
            return JsonFormatter()
        case LogFormat.PLAIN if stream.isatty():
            return PlainFormatter(stamp="%H:%M:%S ", color=_colored(stream))
        case LogFormat.PLAIN:
            # The journal stamps each line itself, and says by this variable that it is reading.
            return PlainFormatter(stamp="" if os.environ.get("JOURNAL_STREAM") else "%Y-%m-%dT%H:%M:%S%z ")
        case _:
            assert_never(log.format)


def _colored(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR")


# -- how it gets out --------------------------------------------------------------------------


class Outlet(io.TextIOBase):
    """A text stream that never makes its writer wait.

    What is written is held, up to `capacity` bytes, for a thread that writes it to `stream`;
    beyond that it is lost, and `report(count)` is the line that says so once there is room.
    """

    def __init__(self, stream: TextIO, report: Callable[[int], str], *, capacity: int) -> None:
        self._stream = stream
        self._report = report
        self._capacity = capacity
        self._held = bytearray()
        self._lost = 0
        self._stopping = False
        self._changed = threading.Condition()
        # A daemon thread, since one that is stuck in a write can be neither woken nor joined.
        self._thread = threading.Thread(target=self._write_out, name="stderr", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        data = self._encoded(text)
        with self._changed:
            if self._stopping or len(self._held) + len(data) > self._capacity:
                self._lost += 1
            else:
                self._held += data
                self._changed.notify()
        return len(text)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def stop(self, within: float = FLUSH_SECONDS) -> bool:
        """Takes nothing more, and waits for what is held to be written; False if it was not in time."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(within)
        return not self._thread.is_alive()

    def _encoded(self, text: str) -> bytes:
        return text.encode(self._stream.encoding or "utf-8", "backslashreplace")

    def _write_out(self) -> None:
        while data := self._next():
            # Whoever read it is gone: there is nobody left to tell.
            with contextlib.suppress(OSError, ValueError):
                _write_all(self._stream, data)

    def _next(self) -> bytes:
        """What to write now, waited for; nothing, when stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._held or self._lost or self._stopping)
            data = bytes(self._held)
            self._held.clear()
            if self._lost:
                data += self._encoded(self._report(self._lost))
                self._lost = 0
            return data


def _write_all(stream: TextIO, data: bytes) -> None:
    """Writes past the stream's own buffer, whose lock would be waited for when Python exits."""
    try:
        descriptor = stream.fileno()
    except OSError:  # io.UnsupportedOperation: a stream in memory
        stream.write(data.decode(stream.encoding or "utf-8"))
        stream.flush()
        return
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # another process made the shared pipe non-blocking
            select.select([], [descriptor], [])


def setup(log: Log, stream: TextIO | None = None) -> Callable[[], None]:
    """Starts logging to `stream`, or stderr; what it returns ends that, in `FLUSH_SECONDS` at most.

    Meanwhile `sys.stderr` is the outlet too, if that is the stream: warnings, tracebacks and
    the lines at start must not wait either. Other packages are heard from `warning` on, or
    from `info` on if `log.level` is `debug`.
    """
    target = sys.stderr if stream is None else stream
    formatter = _formatter(log, target)
    outlet = Outlet(target, lambda lost: f"{formatter.format(_loss(lost))}\n", capacity=CAPACITY)
    handler = logging.StreamHandler(outlet)
    handler.setFormatter(formatter)
    root, ours = logging.getLogger(), logging.getLogger(OUR_LOGGER)
    levels = root.level, ours.level
    root.addHandler(handler)
    root.setLevel(logging.INFO if log.level == "debug" else logging.WARNING)
    ours.setLevel(log.level.upper())
    replaced = target is sys.stderr
    if replaced:
        sys.stderr = cast("TextIO", outlet)

    def stop() -> None:
        root.removeHandler(handler)
        root.setLevel(levels[0])
        ours.setLevel(levels[1])
        if replaced:
            sys.stderr = target
        outlet.stop()

    return stop


def _loss(lines: int) -> logging.LogRecord:
    text = "%d log lines were lost, since stderr was not read"
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (lines,), None)


# -- the lines at start -----------------------------------------------------------------------

_MODELS = {
    "session": "one process for each session",
    "shared": "one process, and its state, for all sessions",
    "remote": "one session there for each session here",
}
_INITIALIZE = (
    '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
    '"capabilities":{},"clientInfo":{"name":"curl","version":"1"}}}'
)
_UNIX = "unix:"


def announce(stream: TextIO, config: Config, *, url: str, listening: str, demo: bool = False) -> None:
    """Says where the bridge is: one line, or on a terminal and for the demo how to use it too.

    `listening` is the address, or `unix:PATH`. With the JSON log format it is always one JSON
    line, since something reads stderr as such.
    """
    place = _Place(config, url, listening)
    if config.log.format is LogFormat.JSON:
        text = _json_line(f"mcp-bridge {__version__} listens", place.fields())
    elif demo or stream.isatty():
        lines = _introduction(place, demo)
        text = "".join(f"  {line}\n" if line else "\n" for line in lines)
    else:
        urls = " and ".join(place.urls)
        text = (
            f"mcp-bridge {__version__} listens on {listening}: {urls}, {_MODELS[place.model]}, "
            f"{_access(place.auth)}: {place.server}\n"
        )
    _say(stream, text)


def announce_stdio(stream: TextIO, config: Config) -> None:
    """Says in one line that stdin and stdout are served, and for what server."""
    server = spell_server(config.upstream)
    if config.log.format is LogFormat.JSON:
        text = _json_line(f"mcp-bridge {__version__} serves its stdin and stdout", {"server": server})
    else:
        text = f"mcp-bridge {__version__} serves its stdin and stdout: {server}\n"
    _say(stream, text)


def spell_server(upstream: Command | Remote) -> str:
    """A server as it may be told: a command without its secrets, the origin of a URL, or a socket."""
    match upstream:
        case Command():
            return spell_command(upstream.argv)
        case Remote(socket=None):
            # Path and query stay out, for there are services that put the key there.
            url = urlsplit(upstream.url)
            return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
        case Remote():
            return f"{_UNIX}{upstream.socket}"
        case _:
            assert_never(upstream)


class _Place:
    """What is said of where the bridge listens."""

    def __init__(self, config: Config, url: str, listening: str) -> None:
        old = (urljoin(url, "sse"),) if config.listen.legacy_sse else ()
        self.urls = (url, *old)
        self.listening = listening
        self.server = spell_server(config.upstream)
        self.model = config.process.value if isinstance(config.upstream, Command) else "remote"
        self.auth = config.access.token is not None

    def fields(self) -> dict[str, _Plain]:
        url, *old = self.urls
        return {
            "listening": self.listening,
            "url": url,
            **({"sse_url": old[0]} if old else {}),
            "model": self.model,
            "auth": self.auth,
            "server": self.server,
        }


def _json_line(message: str, fields: Mapping[str, _Plain]) -> str:
    record = {"name": OUR_LOGGER, "msg": message, "levelname": "INFO", **fields}
    return f"{JsonFormatter().format(logging.makeLogRecord(record))}\n"


def _say(stream: TextIO, text: str) -> None:
    stream.write(text if _colored(stream) else click.unstyle(text))
    stream.flush()


def _access(auth: bool) -> str:
    return "with a token" if auth else "no token"


def _introduction(place: _Place, demo: bool) -> list[str]:
    def heading(text: str) -> str:
        return click.style(text, bold=True)

    url, *old = place.urls
    client = [heading("Client configuration"), *_client(url, place.auth, demo).splitlines(), ""]
    kind = "Process" if place.model != "remote" else "Session"
    return [
        "",
        click.style(f"mcp-bridge {__version__}", fg="green", bold=True),
        "",
        f"{heading('URL')}      {click.style(url, fg='cyan')}",
        *(f"{heading('HTTP+SSE')} {click.style(sse, fg='cyan')}" for sse in old),
        f"{heading('Listens')}  {place.listening}, {_access(place.auth)}",
        f"{heading('Server')}   {place.server}",
        f"{heading(kind)}  {_MODELS[place.model]}",
        "",
        heading("Try it"),
        curl(url, place.listening, place.auth),
        "",
        *([] if place.listening.startswith(_UNIX) else client),  # no client takes a socket's path
        click.style("Ctrl-C stops it.", dim=True),
        "",
    ]


def curl(url: str, listening: str, auth: bool) -> str:
    """A shell line that initializes a session; the token is taken from `$TOKEN`."""
    socket = (
        ["--unix-socket", shlex.quote(listening.removeprefix(_UNIX))] if listening.startswith(_UNIX) else []
    )
    bearer = ["-H", '"Authorization: Bearer $TOKEN"'] if auth else []
    headers = "-H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream'"
    return " ".join(["curl -sS", *socket, shlex.quote(url), headers, *bearer, f"-d '{_INITIALIZE}'"])


def _client(url: str, auth: bool, demo: bool) -> str:
    server: dict[str, object] = {"type": "http", "url": url}
    if auth:
        server["headers"] = {"Authorization": "Bearer <token>"}
    return json.dumps({"mcpServers": {"demo" if demo else "my-server": server}}, indent=2)
