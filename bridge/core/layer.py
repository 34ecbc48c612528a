"""The pipeline between a downstream hop and an upstream hop.

Same era, own server: no layers, and an event passes as it is. A shared server or another
era is one layer more. The pipeline only carries events; what they mean is the layers' matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from bridge.core.events import Asked, Down, Event, Left, Replied, Told, Up, Withdrawn

_UPWARD = (Asked, Told, Replied, Withdrawn, Left)


class Layer(Protocol):
    """Takes an event of either direction and gives what becomes of it.

    Each event that it returns goes on in that event's own direction from here: a request
    answered on the spot returns an `Answered` from `up`, and nothing reaches the server.
    """

    def up(self, event: Up) -> Iterable[Event]: ...

    def down(self, event: Down) -> Iterable[Event]: ...


class Timer(Protocol):
    def cancel(self) -> None:
        """It will not be due any more; nothing if it was."""


class Clock(Protocol):
    """All that a layer knows of time, in seconds."""

    def now(self) -> float: ...

    def after(self, seconds: float, layer: Layer, act: Callable[[], Iterable[Event]]) -> Timer:
        """Let `act` say, after so long, what becomes of it then; its events go on from `layer`."""


class Pipeline:
    """Layers from the client's end to the server's."""

    def __init__(self, layers: Sequence[Layer] = ()) -> None:
        self._layers = tuple(layers)

    def holds(self, layer: Layer) -> bool:
        return any(one is layer for one in self._layers)

    def up(self, event: Up) -> Iterable[Event]:
        """What leaves the pipeline, at either end, when the client's side puts `event` in."""
        return self._carry(event, 0) if self._layers else (event,)

    def down(self, event: Down) -> Iterable[Event]:
        """The same for the server's side."""
        return self._carry(event, len(self._layers) - 1) if self._layers else (event,)

    def due(self, layer: Layer, events: Iterable[Event]) -> Iterable[Event]:
        """The same for what a layer says by itself, because a time has come."""
        return self._onward(events, self._layers.index(layer))

    def _carry(self, event: Event, at: int) -> Iterable[Event]:
        if not 0 <= at < len(self._layers):
            yield event
            return
        layer = self._layers[at]
        yield from self._onward(layer.up(event) if isinstance(event, _UPWARD) else layer.down(event), at)

    def _onward(self, events: Iterable[Event], at: int) -> Iterable[Event]:
        for event in events:
            yield from self._carry(event, at + 1 if isinstance(event, _UPWARD) else at - 1)
