"""One child process: how it is started, what its pipes do, how it is ended.

Decides the environment, where the program is found, the process group, when a server counts as
lost and what is then said of it, and the shutdown ladder. Refuses to know what goes through
stdin and stdout (`stdio` frames it) and when a child is wanted (`pool` does).

The pipes are plain descriptors watched by the event loop, and the process is a `Popen`, not a
subprocess transport: uvloop gives a child sockets for pipes, on which opening /dev/stdout fails,
and leaves it duplicates of its own stdout, so that its closing is never seen. This way every
loop behaves the same, a start cannot be cancelled half way, and takes 0.4 ms instead of 2 ms.

Answers basic/transports, stdio: the server is a subprocess of the client; stderr is free for
logging and no sign of an error; shutdown closes stdin, waits, SIGTERM, waits, SIGKILL.
"""

from __future__ import annotations

import asyncio
import errno
import fnmatch
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

import anyio
import anyio.to_thread

from bridge.config import KIB, MIB, SAFE_ENV, Command, Timing
from bridge.core.lines import Lines, Overlong
from bridge.errors import CommandNotFound, ServerFault, ServerStopped
from bridge.upstream.guard import TOKEN, Guard, exists, inhabited

HIGH_WATER = 1 * MIB
"""Bytes a child has not read from its stdin, above which it is congested."""
MOST_HEAPED = 16 * MIB
"""Bytes written to a child in spite of its congestion, above which it is given up."""
CHUNK = 64 * KIB
"""Bytes of one read: what a pipe holds."""
STDERR_LINE = 8 * KIB
STDERR_BURST = 100
STDERR_RATE = 20.0
"""Lines logged at once, and lines per second after that; the rest is counted."""
QUOTED = 500
"""Characters of a line of stderr quoted in an error."""
LAST_WORDS = 0.5
"""Seconds for the rest of a server's signs of death, and of its stdout: a grandchild may hold it open."""
LAST_STDERR = 0.2
LINGER = 0.5
"""Seconds from SIGTERM to SIGKILL for what a server that exited by itself left behind."""
KILLED = 2.0
"""Seconds for the kernel to end what was killed; more only if it hangs in the kernel."""

OWN_PREFIX = "MCP_BRIDGE_"
# Windows and LANG=C would have a Python server encode its JSON in something else than UTF-8.
UTF8_ENV = (("PYTHONUTF8", "1"), ("PYTHONIOENCODING", "utf-8"))

# What is wrong with the program or its path; any other error is the system's limits.
_UNFIT = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.ELOOP}

_server_log = logging.getLogger("bridge.server")
_log = logging.getLogger(__name__)


# Starting


def environment(command: Command, environ: Mapping[str, str]) -> dict[str, str]:
    """What a child of `command` gets of the bridge's `environ`, and what is set for it."""
    wanted = re.compile("|".join(fnmatch.translate(glob) for glob in (*SAFE_ENV, *command.inherit_env)))
    env = {
        name: value
        for name, value in environ.items()
        if wanted.match(name) and not name.startswith(OWN_PREFIX)
    }
    env.update(command.env)
    for name, value in UTF8_ENV:
        env.setdefault(name, value)
    return env


def locate(command: Command, env: Mapping[str, str]) -> str:
    """The file to execute, found as the child would find it. Raises CommandNotFound."""
    program = command.argv[0]
    cwd = (command.cwd or Path()).absolute()
    if not cwd.is_dir():
        raise CommandNotFound(f'working directory "{cwd}" does not exist')
    if os.sep in program:
        return _executable(cwd / program)
    path = env.get("PATH", os.defpath)
    searched = os.pathsep.join(str(cwd / entry) for entry in path.split(os.pathsep))
    if (found := shutil.which(program, path=searched)) is None:
        raise CommandNotFound(f'program "{program}" not found; PATH searched: {path}')
    return found


def _executable(file: Path) -> str:
    if not file.exists():
        raise CommandNotFound(f'program "{file}" does not exist')
    if not file.is_file() or not os.access(file, os.X_OK):
        raise CommandNotFound(f'program "{file}" is not executable')
    return str(file)


def spawn(command: Command, env: Mapping[str, str], *, timing: Timing, tail: int, guard: Guard) -> Child:
    """Start a child with `env` (see `environment`), watched by `guard`; run its `tend` from now on.

    `tail` is how many lines of its stderr are quoted when it dies. Must be called from the event
    loop. Raises CommandNotFound, or ServerFault if the system refuses another process.
    """
    token = secrets.token_hex(8)
    # Before the start: a bridge killed right after it leaves a guard that can find the child.
    guard.announce(token)
    try:
        popen = _start(command, {**env, TOKEN: token})
    except BaseException:
        guard.release(token)
        raise
    guard.watch(popen.pid, token)
    return Child(popen, token, timing=timing, tail=tail, guard=guard)


def _start(command: Command, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    executable = locate(command, env)
    try:
        return subprocess.Popen(  # noqa: S603 - an argument vector, no shell
            command.argv,
            executable=executable,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=command.cwd,
            env=env,
            start_new_session=True,
        )
    except OSError as error:
        fault = CommandNotFound if error.errno in _UNFIT else ServerFault
        raise fault(f'program "{executable}" cannot be executed: {error.strerror}') from error


# Pipes


class Stdin:
    """What is written to a child: whole pieces, in order, never blocking.

    `broken` is called when the child has closed its end.
    """

    def __init__(self, pipe: IO[bytes], broken: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self._fd = pipe.fileno()
        self._tell_broken = broken
        self.broken = False
        self._unsent = bytearray()
        self._heaped = 0
        self.deaf = False
        self._closing = False
        self._relieved = anyio.Event()
        os.set_blocking(self._fd, False)

    @property
    def congested(self) -> bool:
        return len(self._unsent) > HIGH_WATER

    def write(self, data: bytes) -> None:
        """Write at once what the pipe takes, and the rest when it can; nothing once closing."""
        if self._closing:
            return
        if not self._unsent:
            written = self._put(data)
            if written == len(data) or self._pipe.closed:
                return
            data = data[written:]
            self._loop.add_writer(self._fd, self._writable)
        elif self.congested and self._heap(len(data)):
            return
        self._unsent += data

    def _heap(self, size: int) -> bool:
        """Count what is written although the child does not read; true if that is too much.

        Clients wait meanwhile, so it can only be answers to a child that asks and never listens.
        """
        self._heaped += size
        if self._heaped <= MOST_HEAPED:
            return False
        self.deaf = True
        self._break()
        return True

    def _break(self) -> None:
        self.broken = True
        self.abort()
        self._tell_broken()

    async def drained(self) -> None:
        """Return when it is not congested, or closed."""
        while self.congested:
            await self._relieved.wait()

    def close(self) -> None:
        """Close the pipe when all was written, so that the child reads the end of its input."""
        self._closing = True
        if not self._unsent:
            self.abort()

    def abort(self) -> None:
        """Close the pipe now."""
        self._closing = True
        if not self._pipe.closed:
            self._loop.remove_writer(self._fd)
            self._pipe.close()
        self._unsent.clear()
        self._relieve()

    def _put(self, data: bytes | bytearray) -> int:
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError:
            self._break()
            return 0

    def _writable(self) -> None:
        written = self._put(self._unsent)
        del self._unsent[:written]
        if not self.congested:
            self._relieve()
        if not self._unsent and not self._pipe.closed:
            self._loop.remove_writer(self._fd)
            if self._closing:
                self.abort()

    def _relieve(self) -> None:
        self._heaped = 0
        self._relieved.set()
        self._relieved = anyio.Event()


class Output:
    """A pipe a child writes to, from `resume` on; `take` gets the chunks, `end` tells of its end."""

    def __init__(self, pipe: IO[bytes], take: Callable[[bytes], None], end: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self._fd = pipe.fileno()
        self._take = take
        self._end = end
        self.ended = anyio.Event()
        os.set_blocking(self._fd, False)

    def resume(self) -> None:
        if not self._pipe.closed:
            self._loop.add_reader(self._fd, self._readable)

    def pause(self) -> None:
        if not self._pipe.closed:
            self._loop.remove_reader(self._fd)

    def close(self) -> None:
        self.pause()
        self._pipe.close()

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return
        if data:
            self._take(data)
        else:
            self.close()
            self.ended.set()
            self._end()


class StderrLog:
    """What a child says on its stderr: logged line by line, so many a second, and the last lines kept."""

    def __init__(self, label: str, tail: int, clock: Callable[[], float]) -> None:
        self._extra = {"label": label}
        self._clock = clock
        self._lines = Lines(STDERR_LINE)
        self._last: deque[str] = deque(maxlen=tail)
        self._allowance = float(STDERR_BURST)
        self._counted_at = clock()
        self._suppressed = 0

    def take(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            self._say(line)

    def flush(self) -> None:
        """Take what has no newline for a line, and tell what was left out."""
        if (rest := self._lines.end()) is not None:
            self._say(rest)
        self._tell_suppressed()

    @property
    def tail(self) -> tuple[str, ...]:
        return tuple(self._last)

    def _say(self, line: bytes | Overlong) -> None:
        if not self._admits():
            self._suppressed += 1
            self._last.append(readable(line, QUOTED))
            return
        self._tell_suppressed()
        text = readable(line, STDERR_LINE)
        self._last.append(_cut(text, QUOTED))
        _server_log.info("%s", text, extra=self._extra)

    def _admits(self) -> bool:
        now = self._clock()
        earned = (now - self._counted_at) * STDERR_RATE
        self._allowance = min(self._allowance + earned, STDERR_BURST)
        self._counted_at = now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True

    def _tell_suppressed(self) -> None:
        if self._suppressed:
            _server_log.info("%d lines of stderr left out", self._suppressed, extra=self._extra)
            self._suppressed = 0


def readable(line: bytes | Overlong, most: int) -> str:
    """A line as text of at most `most` characters that moves no cursor and hides nothing in a terminal."""
    if isinstance(line, Overlong):
        line = line.head + b"..." + line.tail
    text = _cut(line[: 4 * most].decode("utf-8", "replace"), most)
    if text.isprintable():
        return text
    return _cut(
        "".join(char if char.isprintable() or char == "\t" else _escaped(char) for char in text), most
    )


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


# The process


class Child:
    """One server process, the leader of its group, until nothing of the group is left.

    Its stdout is read from `listen` on; its stderr always.
    """

    def __init__(
        self, popen: subprocess.Popen[bytes], token: str, *, timing: Timing, tail: int, guard: Guard
    ) -> None:
        assert popen.stdin is not None
        assert popen.stdout is not None
        assert popen.stderr is not None
        loop = asyncio.get_running_loop()
        self.pid = popen.pid
        self.label = f"server[{popen.pid}]"
        self.fault: ServerFault | None = None
        """Why it was lost; None while it lives, and if it was closed."""
        self.awake = anyio.Event()
        """It said something, on whichever stream, or it ended."""
        self.gone = anyio.Event()
        self._popen = popen
        self._token = token
        self._timing = timing
        self._guard = guard
        self._stirred = anyio.Event()  # a sign of its end, or the order to end it
        self._stopped = False
        self._exited = anyio.Event()
        self._vacant = False
        self._reporting = True
        self._spoke = False
        self._received: Callable[[bytes], None] | None = None
        self._lost: Callable[[ServerFault], None] | None = None
        self.stdin = Stdin(popen.stdin, self._stirred.set)
        self._stdout = Output(popen.stdout, self._take, self._stirred.set)
        self._stderr_log = StderrLog(self.label, tail, loop.time)
        self._stderr = Output(popen.stderr, self._complain, self._stderr_log.flush)
        self._stderr.resume()
        _watch_exit(popen, loop, self._has_exited)

    @property
    def alive(self) -> bool:
        """Whether it can be talked to; asks the system, not what the event loop has heard of so far."""
        return not self._stirred.is_set() and self._popen.poll() is None

    @property
    def listened(self) -> bool:
        """Whether `listen` was ever called."""
        return self._received is not None

    def listen(self, received: Callable[[bytes], None], lost: Callable[[ServerFault], None]) -> None:
        """Begin to read its stdout: `received` gets the chunks, and then `lost` is called once."""
        self._received, self._lost = received, lost
        self._stdout.resume()

    def pause(self) -> None:
        # A dying child is not paused: what it said at last is at most what its pipe holds.
        if not self._stirred.is_set():
            self._stdout.pause()

    def resume(self) -> None:
        self._stdout.resume()

    def stop(self) -> None:
        """Begin to end it; `gone` tells when it has ended."""
        self._stopped = True
        self._stirred.set()

    async def close(self) -> None:
        """End it and return when it is gone; if cancelled, it ends all the same."""
        self.stop()
        await self.gone.wait()

    async def tend(self) -> None:
        """Live through its life and its end; returns when all of its group is gone. Cancelling ends it."""
        try:
            await self._stirred.wait()
            if not self._stopped:
                await self._hear_last_words()
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    self._tell_lost()
                    await self._descend()
                finally:
                    self._release()

    async def _hear_last_words(self) -> None:
        """Wait for what is told with a first sign of its end: status, the rest of stdout, of stderr."""
        self._stdout.resume()
        with anyio.move_on_after(LAST_WORDS):
            await self._exited.wait()
            await self._stdout.ended.wait()
        with anyio.move_on_after(LAST_STDERR):
            await self._stderr.ended.wait()

    def _complain(self, data: bytes) -> None:
        self.awake.set()
        self._stderr_log.take(data)

    def _tell_lost(self) -> None:
        self._stirred.set()
        self.awake.set()
        self._stderr_log.flush()
        self._reporting = False
        self.fault = self._diagnosis()
        if self._lost is not None:
            told = self.fault or ServerStopped("server was stopped by the bridge")
            asyncio.get_running_loop().call_soon(self._lost, told)

    def _diagnosis(self) -> ServerStopped | None:
        code = self._popen.returncode
        if code is not None:
            message = ending(code)
        elif self._stdout.ended.is_set():
            message = "server closed its stdout"
        elif self.stdin.broken:
            message = "server does not read its stdin" if self.stdin.deaf else "server closed its stdin"
        else:
            return None
        return ServerStopped(message, exit_code=code, stderr=self._stderr_log.tail)

    async def _descend(self) -> None:
        """The ladder: stdin closed, SIGTERM, SIGKILL, each only if something is left.

        stdout and stderr are read on, since a child blocked on a full pipe never sees the end of
        its input.
        """
        self._stdout.resume()
        self.stdin.close()
        with anyio.move_on_after(self._timing.stdin_closed):
            await self._exited.wait()
        grace = LINGER if self._exited.is_set() else self._timing.terminated
        for sign, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, KILLED)):
            if not await self._left():
                break
            self._signal(sign)
            await self._leaves(seconds)
        if await self._left():
            _log.error("group %d outlived SIGKILL", self.pid, extra={"label": self.label})
        with anyio.move_on_after(LAST_STDERR):
            await self._stderr.ended.wait()

    async def _leaves(self, seconds: float) -> None:
        """Return when nothing is left, or after `seconds`."""
        pause = 0.002
        with anyio.move_on_after(seconds):
            await self._exited.wait()
            while await self._left():  # no event tells of the end of a process that is not our child
                await anyio.sleep(pause)
                pause = min(2 * pause, 0.1)

    async def _left(self) -> bool:
        """Whether the leader lives, or left anybody in its group.

        Once empty the group is never asked again: its number is free to become another's.
        """
        if self._exited.is_set() and not self._vacant:
            self._vacant = not await anyio.to_thread.run_sync(inhabited, self.pid)
        return not self._vacant

    def _signal(self, sign: signal.Signals) -> None:
        # EPERM: nobody left but zombies (macOS), or another user's, which is not ours to end.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, sign)

    def _has_exited(self) -> None:
        self._vacant = not exists(self.pid)
        self._exited.set()
        self._stirred.set()

    def _take(self, data: bytes) -> None:
        if not self._spoke:
            self._spoke = True
            self.awake.set()
        if self._reporting and self._received is not None:
            self._received(data)

    def _release(self) -> None:
        self.stdin.abort()
        self._stdout.close()
        self._stderr.close()
        self._stderr_log.flush()
        if self._vacant:
            _reap(self.pid)
        self._guard.release(self._token)
        self.gone.set()


def ending(code: int) -> str:
    """How a process ended, in words; `code` is its exit status, or a negative signal number."""
    if code >= 0:
        return f"server exited with status {code}"
    try:
        return f"server was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"server was killed by signal {-code}"


def _watch_exit(
    popen: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, exited: Callable[[], None]
) -> None:
    """Call `exited` from the loop when the process has exited and is reaped."""
    try:
        pidfd = os.pidfd_open(popen.pid)
    except (AttributeError, OSError):  # macOS, or an old kernel
        threading.Thread(target=_await_exit, args=(popen, loop, exited), daemon=True).start()
        return

    def reap() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        popen.wait()
        exited()

    loop.add_reader(pidfd, reap)


def _await_exit(
    popen: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, exited: Callable[[], None]
) -> None:
    popen.wait()
    with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
        loop.call_soon_threadsafe(exited)


def _reap(group: int) -> None:
    """Reap the zombies a leader left: as process 1 of a container we inherit them."""
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
