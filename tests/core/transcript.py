"""The pure core driven by hand: what a client's side and a server say, and what comes of it at either end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from msgspec import UNSET, Raw, UnsetType

from bridge.core import message
from bridge.core.correlate import Correlation
from bridge.core.events import (
    Answered,
    Asked,
    Ended,
    Event,
    Exchange,
    Left,
    Lost,
    Noted,
    Party,
    Question,
    Questioned,
    Replied,
    Told,
    Up,
    Withdrawn,
)
from bridge.core.layer import Layer, Pipeline
from bridge.core.message import Batch, Id, Malformed, Notification, Request, Response

Fallen = Answered | Noted | Questioned | Ended


def read(text: bytes) -> Request | Notification | Response:
    found = message.read(text, depth=128)
    assert not isinstance(found, Batch | Malformed), found
    return found


def raw(value: Raw | UnsetType) -> bytes:
    assert value is not UNSET
    return bytes(value)


class Hop:
    """One upstream session. `sent` are the lines for the server, `fallen` the events for the clients."""

    def __init__(self, *layers: Layer, fresh: bool = False) -> None:
        self.correlation = Correlation(fresh=fresh)
        self._pipeline = Pipeline(layers)
        self.sent: list[bytes] = []
        self.fallen: list[Fallen] = []

    # The clients

    def ask(
        self,
        party: Party,
        request_id: Id,
        method: str = "tools/call",
        params: bytes | None = None,
        *,
        log: bool = False,
    ) -> Exchange:
        asked = message.request(request_id, method, params)
        exchange = Exchange(party, asked, None, log=log)
        self.rise(Asked(exchange, asked))
        return exchange

    def tell(self, party: Party, method: str, params: bytes | None = None) -> None:
        self.rise(Told(party, message.notification(method, params)))

    def withdraw(self, exchange: Exchange, params: bytes | None = None) -> None:
        """Cancel, by a notification with these params, or without any as a closed stream does."""
        note = None if params is None else message.notification("notifications/cancelled", params)
        self.rise(Withdrawn(exchange, note))

    def reply(self, question: Question, value: bytes = b"{}") -> None:
        self.rise(Replied(question, message.result(question.id, value)))

    def leave(self, party: Party) -> None:
        self.rise(Left(party))

    def rise(self, event: Up) -> None:
        self._carry_out(self._pipeline.up(event))

    # The server

    def hear(self, text: bytes) -> None:
        for event in self.correlation.received(read(text)):
            self._carry_out(self._pipeline.down(event))

    def answer(self, hop_id: bytes, value: bytes = b"{}") -> None:
        self.hear(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (hop_id, value))

    def fail(self, hop_id: bytes, code: int = -32603) -> None:
        self.hear(b'{"jsonrpc":"2.0","id":%b,"error":{"code":%d,"message":""}}' % (hop_id, code))

    def note(self, method: str, params: bytes | None = None) -> None:
        self.hear(message.notification(method, params).raw)

    def question(self, request_id: bytes, method: str = "sampling/createMessage") -> Question:
        """Ask something; where it falls to a party, it enters its table of questions as it would there."""
        with self.falling() as fallen:
            self.hear(b'{"jsonrpc":"2.0","id":%b,"method":"%b","params":{}}' % (request_id, method.encode()))
        [event] = fallen
        assert isinstance(event, Questioned)
        if event.question.party is not None:
            event.question.party.enter(event.question)
        return event.question

    def _carry_out(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Answered | Noted | Questioned | Ended):
                self.fallen.append(event)
            elif not isinstance(event, Lost):
                self.sent += [send.message.raw for send in self.correlation.up(event)]

    # What is seen

    def take_sent(self) -> list[bytes]:
        sent, self.sent = self.sent, []
        return sent

    def take_fallen(self) -> list[Fallen]:
        fallen, self.fallen = self.fallen, []
        return fallen

    @contextmanager
    def falling(self) -> Iterator[list[Fallen]]:
        """What falls meanwhile, also kept in `fallen`."""
        before, found = len(self.fallen), list[Fallen]()
        yield found
        found += self.fallen[before:]

    def answers(self) -> list[tuple[Exchange, bytes]]:
        """Take what fell, all of it answers."""
        found = []
        for event in self.take_fallen():
            assert isinstance(event, Answered), event
            found.append((event.exchange, event.response.raw))
        return found

    def notes(self) -> list[tuple[Party | None, Exchange | None, bytes]]:
        """Take what fell, all of it notifications."""
        found = []
        for event in self.take_fallen():
            assert isinstance(event, Noted), event
            found.append((event.party, event.exchange, event.notification.raw))
        return found

    def leftovers(self) -> dict[str, int]:
        """The tables of the hop that are not empty; what tokens were used is never forgotten."""
        tables = {
            name: value
            for name, value in vars(self.correlation).items()
            if isinstance(value, dict) and name != "_spent"
        }
        return {name: len(table) for name, table in tables.items() if table}
