"""A layer's own requests: sent to the server like a client's, and answered to the layer itself.

Keeps who waits for which answer, and for how long. Knows neither era nor method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bridge.core.events import Asked, Event, Exchange, Party, Withdrawn
from bridge.core.layer import Clock, Layer, Timer
from bridge.core.message import Response, local_error, request

Done = Callable[[Response], Iterable[Event]]
"""What becomes of an answer; its events go on from the layer."""


class Own:
    """The requests of `layer`, sent in the name of `party`, which nobody else uses."""

    def __init__(self, party: Party, clock: Clock, layer: Layer) -> None:
        self.party = party
        self._clock, self._layer = clock, layer
        self._done: dict[Exchange, Done] = {}
        self._timers: dict[Exchange, Timer] = {}
        self._serial = 0

    def ask(self, method: str, params: bytes | None, done: Done, *, within: float | None = None) -> Asked:
        """The event that sends it. `done` gets the answer, or after `within` seconds an error instead.

        `params` may hold a `_meta.progressToken`; what comes for it is a `Noted` with the exchange.
        """
        self._serial += 1
        asked = request(self._serial, method, params)
        exchange = Exchange(self.party, asked, None)
        self._done[exchange] = done
        if within is not None:
            self._timers[exchange] = self._clock.after(within, self._layer, lambda: self._late(exchange))
        return Asked(exchange, asked)

    def answered(self, exchange: Exchange, response: Response) -> Iterable[Event] | None:
        """What becomes of this answer; None if it is not to one of these requests."""
        if exchange.party is not self.party:
            return None
        done = self._forget(exchange)
        return () if done is None else done(response)

    def withdraw(self, exchange: Exchange) -> Iterable[Event]:
        """Give a request up: it is cancelled at the server, and `done` is never called."""
        return () if self._forget(exchange) is None else (Withdrawn(exchange),)

    def clear(self) -> None:
        """The server is gone: nobody waits any more."""
        for exchange in list(self._done):
            self._forget(exchange)

    def _forget(self, exchange: Exchange) -> Done | None:
        timer = self._timers.pop(exchange, None)
        if timer is not None:
            timer.cancel()
        return self._done.pop(exchange, None)

    def _late(self, exchange: Exchange) -> Iterable[Event]:
        done = self._forget(exchange)
        if done is None:
            return ()
        late = local_error(exchange.id, f"No answer to {exchange.method} in time", "upstream_timeout")
        return (Withdrawn(exchange), *done(late))
