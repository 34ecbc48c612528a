"""A stdio server that does what its tool calls say: waits, streams, asks, forks, dies.

Started as `python -I -S obeys_calls.py [HOW] [ARG]`, since tests start it by the hundred; `STARTS` and
`ENDS` hold what HOW can be. It checks nothing and knows of the protocol what opens a session.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from typing import Any

    Object = dict[str, Any]

LOCK = threading.Lock()
HELD: dict[object, Object] = {}
ASKED: dict[object, Object] = {}
CANCELLED: set[object] = set()
INITIALIZED = 0
LINES = 0
HOW = ""
SPEAKS = ""
"""The latest revision it knows; any, if empty."""


# What it says


def write(data: bytes) -> None:
    with LOCK:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def say(message: Object) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def answer(message: Object, text: str) -> None:
    say({"id": message["id"], "result": {"content": [{"type": "text", "text": text}]}})


def progress(message: Object, steps: int) -> None:
    token = message["params"].get("_meta", {}).get("progressToken")
    for step in range(steps if token is not None else 0):
        say({"method": "notifications/progress", "params": {"progressToken": token, "progress": step}})


# Tools


def echo(message: Object, text: str) -> None:
    answer(message, text)


def measure(message: Object, text: str) -> None:
    answer(message, str(len(text)))


def big(message: Object, size: int) -> None:
    answer(message, "x" * size)


def slow(message: Object, seconds: float, text: str = "done", steps: int = 0) -> None:
    def finish() -> None:
        if message["id"] not in CANCELLED:
            answer(message, text)
        CANCELLED.discard(message["id"])

    progress(message, steps)
    timer = threading.Timer(seconds, finish)
    timer.daemon = True
    timer.start()


def hold(message: Object, text: str = "released", steps: int = 0) -> None:
    """Answers when `notifications/release` comes."""
    HELD[message["id"]] = {**message, "text": text}
    progress(message, steps)


def raw(message: Object, text: str) -> None:
    """Writes this, with the id for ID; each character is a byte."""
    write(text.replace("ID", json.dumps(message["id"])).encode("latin-1"))


def ask(message: Object, id: object, method: str, params: Object) -> None:  # noqa: A002
    """Answers with what the client answers."""
    ASKED[id] = message
    say({"id": id, "method": method, "params": params})


def note(message: Object, method: str, params: Object) -> None:
    say({"method": method, "params": params})
    answer(message, "noted")


def fork(message: Object, kind: str) -> None:
    """Answers with the pid of the process it started."""
    answer(message, str(KINDS[kind]()))


def seen(message: Object) -> None:
    found = {
        "argv": [os.fsencode(word).hex() for word in sys.argv],
        "environ": {os.fsencode(name).hex(): os.fsencode(value).hex() for name, value in os.environ.items()},
        "cwd": str(os.getcwd()),  # noqa: PTH109 - pathlib takes longer to import than all the rest
        "pid": os.getpid(),
        "encoding": sys.stdout.encoding,
        "initialized": INITIALIZED,
        "lines": LINES,
        "held": len(HELD),
    }
    answer(message, json.dumps(found))


def exit(message: Object, code: int) -> None:  # noqa: A001
    os.write(2, b"first words\nlast words\n")
    os._exit(code)


def kill(message: Object, signal: int) -> None:
    os.write(2, b"first words\nlast words\n")
    os.kill(os.getpid(), signal)


def close_stdout(message: Object) -> None:
    os.write(2, b"first words\nlast words\n")
    os.close(1)


def stop_reading(message: Object) -> None:
    answer(message, "deaf")
    time.sleep(1000)


def write_stderr(message: Object, text: str, times: int = 1) -> None:
    for _ in range(times):
        os.write(2, text.encode("latin-1"))
    answer(message, "written")


TOOLS: dict[str, Callable[..., None]] = {
    tool.__name__: tool
    for tool in (
        *(echo, measure, big, slow, hold, raw, ask, note, fork, seen),
        *(exit, kill, close_stdout, stop_reading, write_stderr),
    )
}


# What it forks

SLEEP = ("sleep", "1000")
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(flush=True)
time.sleep(1000)
"""


def started(*argv: str, **options: Any) -> subprocess.Popen[bytes]:
    import subprocess  # here, since it takes as long to import as all the rest

    for name, value in options.items():
        options[name] = getattr(subprocess, value) if isinstance(value, str) else value
    return subprocess.Popen(argv, **options)


def deaf() -> int:
    """A process that ignores SIGTERM already, and holds stderr open."""
    process = started(sys.executable, "-I", "-S", "-c", DEAF, stdout="PIPE")
    assert process.stdout is not None
    process.stdout.readline()
    return process.pid


def orphan(line: str) -> int:
    """One whose parent has exited."""
    shell = started("sh", "-c", f"{line} >/dev/null 2>&1 & echo $!", stdout="PIPE")
    return int(shell.communicate()[0])


KINDS: dict[str, Callable[[], int]] = {
    "plain": lambda: started(*SLEEP, stdout="DEVNULL", stderr="DEVNULL").pid,
    "holds the pipes": lambda: started(*SLEEP).pid,
    "own group": lambda: started(*SLEEP, process_group=0).pid,
    "own session": lambda: started(*SLEEP, start_new_session=True).pid,
    "deaf": deaf,
    "orphan": lambda: orphan("sleep 1000"),
    "zombie": lambda: orphan("sleep 0.2"),
}


# How it starts and ends


def fail_once(file: str) -> None:
    """Exit, unless another has done so before."""
    if not os.path.exists(file):  # noqa: PTH110
        with open(file, "w"):  # noqa: PTH123
            sys.exit(1)


def exit_at_start(code: str) -> None:
    os.write(2, b"cannot find the database\n")
    sys.exit(int(code))


STARTS: dict[str, Callable[[str], None]] = {
    "ignores SIGTERM": lambda _: void(signal.signal(signal.SIGTERM, signal.SIG_IGN)),
    "never answers": lambda _: sys.exit(sum(0 for _ in sys.stdin.buffer)),
    "never reads": lambda _: time.sleep(1000),
    "exits": exit_at_start,
    "fails once": fail_once,
    "floods stderr": lambda size: flood(b"0123456789abcde\n", int(size)),
    "shouts": lambda size: flood(b"0123456789abcdef", int(size)),
    "mumbles": lambda size: flood(b"\xff\xfe\xc3 \x00\x1b[2J\xf0\x9f\n", int(size)),
    "closes stderr": lambda _: os.close(2),
    "speaks": lambda revision: globals().update(SPEAKS=revision),
}
ENDS: dict[str, Callable[[], None]] = {"ignores SIGTERM": lambda: time.sleep(1000)}


def flood(piece: bytes, size: int) -> None:
    data = piece * 4096
    while size > 0:
        size -= os.write(2, data)


def void(_: object) -> None:
    return


# What it hears


def initialize(message: Object) -> None:
    global INITIALIZED
    INITIALIZED += 1
    if INITIALIZED == 2 and HOW == "initializes once":
        os.write(2, b"initialized twice\n")
        os._exit(9)
    asked = message["params"].get("protocolVersion") if isinstance(message["params"], dict) else None
    version = asked if isinstance(asked, str) else "2025-11-25"
    said = {
        "protocolVersion": min(version, SPEAKS) if SPEAKS else version,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "obeys-calls", "version": "1"},
    }
    say({"id": message["id"], "result": said})


def cancel(request_id: object) -> None:
    if HELD.pop(request_id, None) is None:
        CANCELLED.add(request_id)


def release() -> None:
    for message in HELD.values():
        answer(message, message["text"])
    HELD.clear()


def replied(message: Object) -> None:
    asking = ASKED.pop(message["id"], None)
    if asking is not None:
        answer(asking, json.dumps(message.get("result", message.get("error"))))


def obey(message: Object) -> None:
    method = message.get("method")
    if method is None:
        replied(message)
    elif method == "initialize":
        initialize(message)
    elif method == "tools/call":
        TOOLS[message["params"]["name"]](message, **message["params"].get("arguments", {}))
    elif method == "notifications/cancelled":
        cancel(message["params"]["requestId"])
    elif method == "notifications/release":
        release()
    elif "id" in message:
        say({"id": message["id"], "result": {}})


def main() -> None:
    global HOW, LINES
    HOW = sys.argv[1] if len(sys.argv) > 1 else ""
    STARTS.get(HOW, void)(sys.argv[2] if len(sys.argv) > 2 else "")
    for line in sys.stdin.buffer:
        LINES += 1
        obey(json.loads(line))
    ENDS.get(HOW, lambda: None)()


main()
