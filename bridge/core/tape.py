"""The layer that listens: everything that passes between the clients of a server and it.

It stands at the clients' end, so that it hears what they said and were told, under the ids of their
own. It decides nothing, changes nothing, and knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from bridge.core.events import (
    Answered,
    Asked,
    Down,
    Ended,
    Event,
    Left,
    Lost,
    Noted,
    Party,
    Questioned,
    Replied,
    Told,
    Up,
    Withdrawn,
)
from bridge.core.message import Id

BRIDGE: Final = "bridge"
"""The name of the party that asks in the bridge's own interest."""


class Heard(msgspec.Struct, frozen=True, gc=False):
    """One message, or what stands in place of one.

    `client` numbers the parties as they come; None is for all of them. `way` is `>` for what a
    client said and `<` for what it was told. `about` is the id of the request that a message belongs
    to, where that is known and the message does not say it.
    """

    client: int | None
    way: str
    message: bytes = b""
    event: str = ""
    """`cancelled`, `left`, `ended` or `lost`, where there is no message."""
    about: Id | None = None


class Tape:
    """`hear` gets each in order."""

    def __init__(self, hear: Callable[[Heard], None]) -> None:
        self._hear = hear
        self._numbers: dict[Party, int] = {}
        self._last = 0

    def up(self, event: Up) -> Iterable[Event]:
        match event:
            case Asked(exchange, request):
                self._say(exchange.party, ">", request.raw)
            case Told(party, note):
                self._say(party, ">", note.raw)
            case Replied(question, response):
                self._say(question.party, ">", response.raw)
            case Withdrawn(exchange, note):
                raw = b"" if note is None else note.raw
                self._say(exchange.party, ">", raw, "" if raw else "cancelled", exchange.id)
            case Left(party):
                self._say(party, ">", event="left")
                self._numbers.pop(party, None)
        return (event,)

    def down(self, event: Down) -> Iterable[Event]:
        match event:
            case Answered(exchange, response):
                self._say(exchange.party, "<", response.raw)
            case Noted(party, exchange, note):
                self._say(party, "<", note.raw, about=None if exchange is None else exchange.id)
            case Questioned(question, request):
                about = None if question.exchange is None else question.exchange.id
                self._say(question.party, "<", request.raw, about=about)
            case Ended(exchange):
                self._say(exchange.party, "<", event="ended", about=exchange.id)
            case Lost():
                self._hear(Heard(None, "<", event="lost"))
        return (event,)

    def _say(
        self,
        party: Party | None,
        way: str,
        message: bytes = b"",
        event: str = "",
        about: Id | None = None,
    ) -> None:
        if party is None or party.name != BRIDGE:
            self._hear(Heard(None if party is None else self._number(party), way, message, event, about))

    def _number(self, party: Party) -> int:
        number = self._numbers.get(party)
        if number is None:
            self._last += 1
            number = self._numbers[party] = self._last
        return number
