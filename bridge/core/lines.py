"""The only newline framing: what a pipe read gave becomes whole lines.

Decides where a line begins and ends, which lines are blank, and which are too long to be kept.
Refuses to know what a line says: JSON, UTF-8 and logging are the affair of whoever reads it.

Answers basic/transports, stdio: messages are delimited by newlines and hold none. That newline is
byte 0x0A and nothing else; U+2028, U+2029 and U+0085 are legal inside a JSON string, and no byte
of a multi-byte character is 0x0A, so bytes are framed before they are decoded.
"""

from __future__ import annotations

import codecs

import msgspec

EDGE = 1024
"""Bytes kept of either end of a line that is too long: enough to find its id in."""

# What JSON allows around a text, the newline apart; CR comes from servers that write CRLF.
_BLANK = b" \t\r"


class Overlong(msgspec.Struct, frozen=True):
    """A line of `size` bytes that was over the limit; only its ends, up to `EDGE` bytes, are left."""

    head: bytes
    tail: bytes
    size: int


class Lines:
    """Frames one stream of bytes; a line may have `max_line` bytes, its newline not counted.

    The blanks around a line are stripped, a byte order mark only at the start of the stream.
    Blank lines are skipped.
    """

    def __init__(self, max_line: int) -> None:
        self._max_line = max_line
        self._first = True
        # A bytearray and not a list of parts: one byte a read must not cost a list slot each.
        self._held = bytearray()
        self._held_size = 0

    def feed(self, data: bytes) -> list[bytes | Overlong]:
        """The lines that `data` completes, in order."""
        pieces = data.split(b"\n")
        rest = pieces.pop()
        lines: list[bytes | Overlong] = []
        if pieces and (self._held or self._first):
            self._hold(pieces.pop(0))
            if (held := self._take()) is not None:
                lines.append(held)
        lines += [line for piece in pieces if (line := self._line(piece, len(piece))) is not None]
        if rest:
            self._hold(rest)
        return lines

    def end(self) -> bytes | Overlong | None:
        """What the stream left without a newline, None if that is nothing or blank.

        Half a line is never a message: it is returned to be told of, not to be forwarded.
        """
        return self._take()

    def _hold(self, part: bytes) -> None:
        self._held += part
        self._held_size += len(part)
        if self._held_size > self._max_line and len(self._held) > 2 * EDGE:
            del self._held[EDGE:-EDGE]

    def _take(self) -> bytes | Overlong | None:
        text, size = bytes(self._held), self._held_size
        self._held.clear()
        self._held_size = 0
        if self._first:
            self._first = False
            text = text.removeprefix(codecs.BOM_UTF8)
        return self._line(text, size)

    def _line(self, text: bytes, size: int) -> bytes | Overlong | None:
        if size > self._max_line:
            return Overlong(text[:EDGE], text[-EDGE:], size)
        return text.strip(_BLANK) or None
