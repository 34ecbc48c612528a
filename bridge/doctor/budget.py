"""How the time of one examination is shared out, so that its sum stays within what was given."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bridge.config import Timing


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds, all shares of `whole`.

    The worst case, a server that never answers and does not go, costs `first` + `opening` and two
    ladders of two `rung` each: 0.93 of the whole.
    """

    whole: float

    @property
    def first(self) -> float:
        """For a server to start and to answer its first handshake."""
        return 0.4 * self.whole

    @property
    def opening(self) -> float:
        """For every later handshake."""
        return 0.25 * self.whole

    @property
    def each(self) -> float:
        """For any other answer."""
        return min(5.0, 0.15 * self.whole)

    @property
    def rung(self) -> float:
        """For a process to end when its stdin is closed, and when it is asked to."""
        return min(3.0, 0.07 * self.whole)

    @property
    def brisk(self) -> float:
        """A server that opens faster than this is also asked about the older revisions."""
        return 0.1 * self.whole

    @property
    def examination(self) -> float:
        """After which the rest is left out; what remains is for ending things."""
        return 0.8 * self.whole

    def timing(self, given: Timing) -> Timing:
        return replace(
            given,
            connect=min(given.connect, self.opening),
            endpoint=self.each,
            farewell=self.rung,
            stdin_closed=self.rung,
            terminated=self.rung,
        )
