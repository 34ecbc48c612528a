"""A stdio server that does what its client tells it, byte for byte, and remembers what it was sent.

`tools/call` of `run` takes `steps`, carried out in order; a step that waits gives way to whatever
comes next. Everything else a server needs is answered the plain way. It speaks both eras, looks at
no payload it is not told to look at, and never reads a number as one.

Steps, each an object with one member:
  line     text to write as a line; $ID, $TOKEN and $ARGUMENTS stand for the call's own, as JSON text
  lines    several such texts, in one write
  hex      bytes to write as they are; $ID stands for itself in hex
  trickle  text to write byte by byte, so that each byte is a read of its own
  sized    [n, tail]: an answer whose line has n bytes, and in the same write the line `tail`
  padded   [n, text]: the text as a line, with n letters in place of $PAD
  nested   [depth, open, close]: an answer nested so deep
  wait     a name: go on when a call of `open` has named it
  hear     JSON text: go on when a message with this id, or of this method, has come since
  tick     seconds to do nothing
  mute     write no answer in the end
A call whose steps are done is answered with the text `done`, unless a step wrote an answer.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

OUT = sys.stdout.fileno()
RECEIVED: list[bytes] = []
"""Every line, as it came; long ones are only counted."""
LONG = b'{"jsonrpc":"2.0","method":"long"}'
OPENED: set[str] = set()
RUNNING: list[Run] = []
TOOLS = [{"name": f"tool-{n}", "inputSchema": {"type": "object"}} for n in range(14)]
LISTS = {"tools/list": "tools", "resources/list": "resources", "prompts/list": "prompts"}
CURSORS = {"tools": "8", "resources": "a+b/c= d&e==", "prompts": ""}
"""Of second pages: one that can be read, one that cannot, and one that some take for none."""


class Number(str):
    """A number as it was written."""

    __slots__ = ()


def read(line: str | bytes) -> Any:
    return json.loads(line, parse_int=Number, parse_float=Number)


def text(value: object) -> str:
    return value if isinstance(value, Number) else json.dumps(value, ensure_ascii=False)


def write(data: bytes) -> None:
    while data:
        data = data[os.write(OUT, data) :]


def send(*lines: str) -> None:
    write(b"".join(line.encode() + b"\n" for line in lines))


def answered(request_id: str, result: str, key: str = "result") -> str:
    return f'{{"jsonrpc":"2.0","id":{request_id},"{key}":{result}}}'


def answer(message: Any, result: object) -> None:
    send(answered(text(message["id"]), json.dumps(result)))


def fail(message: Any, code: int, why: str) -> None:
    send(answered(text(message["id"]), json.dumps({"code": code, "message": why}), "error"))


def arguments_of(line: str) -> str:
    """The arguments of a call as they came; they stand last in it."""
    return line.partition('"arguments":')[2][:-2]


class Run:
    """A call that is being carried out."""

    def __init__(self, line: str, message: Any) -> None:
        params = message["params"]
        self.id = text(message["id"])
        self.token = text(params.get("_meta", {}).get("progressToken"))
        self.arguments = arguments_of(line)
        self.since = len(RECEIVED)
        self.answered = False
        self.until: Callable[[], bool] = lambda: True
        self.steps = self.walk(params["arguments"]["steps"])

    def walk(self, steps: list[dict[str, Any]]) -> Iterator[Callable[[], bool]]:
        for step in steps:
            ((kind, value),) = step.items()
            if wait := getattr(self, f"do_{kind}")(value):
                yield wait
        if not self.answered:
            send(answered(self.id, '{"content":[{"type":"text","text":"done"}]}'))

    def advance(self) -> bool:
        """Go on as far as can be; True when all is done."""
        while self.until():
            try:
                self.until = next(self.steps)
            except StopIteration:
                return True
        return False

    def filled(self, line: str) -> str:
        for name, value in (("$ID", self.id), ("$TOKEN", self.token), ("$ARGUMENTS", self.arguments)):
            self.answered |= name == "$ID" and name in line and '"method"' not in line
            line = line.replace(name, value)
        return line

    def do_line(self, line: str) -> None:
        send(self.filled(line))

    def do_lines(self, lines: list[str]) -> None:
        send(*map(self.filled, lines))

    def do_hex(self, data: str) -> None:
        self.answered |= "$ID" in data
        write(bytes.fromhex(data.replace("$ID", self.id.encode().hex())))

    def do_trickle(self, line: str) -> None:
        for byte in self.filled(line).encode() + b"\n":
            write(bytes((byte,)))
            time.sleep(0.005)

    def do_sized(self, value: list[str]) -> None:
        head, foot = answered(self.id, '{"x":"@"}').split("@")
        room = int(value[0]) - len(head) - len(foot)
        body = "abcdefg\u00e9" * (room // 9) + "z" * (room % 9)
        self.answered = True
        send(head + body + foot, value[1])

    def do_padded(self, value: list[str]) -> None:
        send(self.filled(value[1]).replace("$PAD", "x" * int(value[0])))

    def do_nested(self, value: list[str]) -> None:
        depth, opening, closing = int(value[0]), value[1], value[2]
        self.answered = True
        send(answered(self.id, f'{{"x":{opening * depth}0{closing * depth}}}'))

    def do_mute(self, _: object) -> None:
        self.answered = True

    def do_wait(self, name: str) -> Callable[[], bool]:
        return lambda: name in OPENED

    def do_hear(self, what: str) -> Callable[[], bool]:
        return lambda: any(heard(line, what) for line in RECEIVED[self.since :])

    def do_tick(self, seconds: str) -> Callable[[], bool]:
        end = time.monotonic() + float(seconds)
        return lambda: time.monotonic() >= end


def heard(line: bytes, what: str) -> bool:
    message = read(line)
    return message.get("method") == what or ("id" in message and text(message["id"]) == what)


def received(part: str) -> object:
    """The lines that have `part` in them, each byte as the character of its number."""
    lines = [line.decode("latin-1") for line in RECEIVED if part.encode("latin-1") in line]
    return {"content": [], "structuredContent": {"lines": lines, "count": len(RECEIVED)}}


OFFERED = {
    "capabilities": {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "logging": {},
        "experimental": {"x-vendor": {"deep": [1, None, {}]}},
    },
    "instructions": "say what you want",
}
NAME = {"name": "scripted", "version": "1", "x-more": True}
VERSIONS = ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
DISCOVERED = {"resultType": "complete", "supportedVersions": VERSIONS, **OFFERED}


def initialized(message: Any) -> object:
    return {"protocolVersion": message["params"]["protocolVersion"], "serverInfo": NAME, **OFFERED}


def list_page(message: Any, kind: str) -> None:
    """Fourteen of a kind on two pages."""
    cursor = message.get("params", {}).get("cursor")
    if cursor is None:
        answer(message, {kind: TOOLS[:8], "nextCursor": CURSORS[kind]})
    elif cursor == CURSORS[kind]:
        answer(message, {kind: TOOLS[8:]})
    else:
        fail(message, -32602, "no such page")


def called(line: str, message: Any) -> None:
    name = message["params"]["name"]
    if name == "run":
        RUNNING.append(Run(line, message))
    elif name == "open":
        OPENED.add(message["params"]["arguments"]["name"])
        answer(message, {"content": []})
    elif name == "received":
        answer(message, received(message["params"]["arguments"]["part"]))
    else:
        said = f'{{"content":[{{"type":"text","text":{text(name)}}}],"x-arguments":{arguments_of(line)}}}'
        send(answered(text(message["id"]), said))


def take(line: str) -> None:
    message = read(line)
    method = message.get("method")
    if method is None or "id" not in message:
        return
    if method == "initialize":
        answer(message, initialized(message))
    elif method == "server/discover":
        answer(message, DISCOVERED)
    elif method == "tools/call":
        called(line, message)
    elif method in LISTS:
        list_page(message, LISTS[method])
    elif method == "vendor/ask":
        answer(message, {"heard": message.get("params")})
    elif method == "logging/setLevel" and message["params"].get("level") == "loud":
        fail(message, -32602, "no such level")
    else:
        answer(message, {})


def serve() -> None:
    held = b""
    while True:
        # Only a step that counts time needs the clock; it is asked every 10 ms while any call runs.
        if select.select([0], [], [], 0.01 if RUNNING else None)[0]:
            data = os.read(0, 1 << 20)
            if not data:
                return
            *lines, held = (held + data).split(b"\n")
            for line in lines:
                RECEIVED.append(line if len(line) < 1 << 16 else LONG)
                take(line.decode())
        RUNNING[:] = [run for run in RUNNING if not run.advance()]


if __name__ == "__main__":
    serve()
