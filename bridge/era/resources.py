"""Resources that a legacy server is subscribed to, for however many streams of modern clients.

Decides when the server is asked for a resource and when it is let go of (2025-11-25 and before,
"Resources": one subscription for each of a session). Knows nothing of what a stream is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Final, Generic, TypeVar

from msgspec import UNSET

from bridge.core.events import Event
from bridge.core.layer import Clock, Layer, Timer
from bridge.core.message import Response
from bridge.core.splice import quote
from bridge.era.own import Own
from bridge.era.terms import Terms

SUBSCRIBE: Final = "resources/subscribe"
UNSUBSCRIBE: Final = "resources/unsubscribe"

S = TypeVar("S", bound=Hashable)


class _Resource(Generic[S]):
    """One that the server is subscribed to, is asked for, or is let go of."""

    __slots__ = ("granted", "streams", "subjects", "timer")

    def __init__(self) -> None:
        self.streams: dict[S, None] = {}
        self.subjects: set[str] = set()
        """Whose streams it was ever for."""
        self.granted = False
        self.timer: Timer | None = None
        """Without streams: until the server is unsubscribed."""


class Resources(Generic[S]):
    """The subscriptions of one upstream session.

    `decided` is told for each stream that had to wait whether the server grants a resource; what it
    returns goes on from `layer`.
    """

    def __init__(
        self,
        own: Own,
        clock: Clock,
        layer: Layer,
        terms: Terms,
        decided: Callable[[S, str, bool], Iterable[Event]],
    ) -> None:
        self._own, self._clock, self._layer, self._terms = own, clock, layer, terms
        self._decided = decided
        self._resources: dict[str, _Resource[S]] = {}

    def join(self, stream: S, uri: str, subject: str) -> list[Event]:
        """Add a stream to those of a resource; the first one subscribes the server."""
        resource = self._resources.get(uri)
        events = []
        if resource is None:
            resource = self._resources[uri] = _Resource()
            events.append(self._subscribe(uri, resource))
        if resource.timer is not None:
            resource.timer.cancel()
            resource.timer = None
        resource.streams[stream] = None
        resource.subjects.add(subject)
        return events

    def granted(self, uri: str) -> bool:
        """Whether the server said that it is subscribed to this."""
        return uri in self._resources and self._resources[uri].granted

    def part(self, stream: S, uri: str) -> None:
        """Take a stream from those of a resource; without any it is kept a while for whoever comes."""
        resource = self._resources[uri]
        del resource.streams[stream]
        self._keep(uri, resource)

    def readers(self, uri: str) -> list[S] | None:
        """Whose resource this is, else whose resource holds it; None if it is nobody's."""
        found = [self._resources[uri]] if uri in self._resources else []
        found = found or [one for other, one in self._resources.items() if _holds(other, uri)]
        return list(dict.fromkeys(one for resource in found for one in resource.streams)) if found else None

    @property
    def subjects(self) -> set[str]:
        """Whose resources the server may tell about."""
        return {subject for resource in self._resources.values() for subject in resource.subjects}

    def lost(self) -> None:
        """The server is gone."""
        for resource in self._resources.values():
            if resource.timer is not None:
                resource.timer.cancel()
        self._resources.clear()

    def _subscribe(self, uri: str, resource: _Resource[S]) -> Event:
        done = partial(self._subscribed, uri, resource)
        return self._own.ask(SUBSCRIBE, b'{"uri":%b}' % quote(uri), done, within=self._terms.subscribe)

    def _subscribed(self, uri: str, resource: _Resource[S], response: Response) -> Iterable[Event]:
        resource.granted = response.error is UNSET
        waiting = list(resource.streams)
        if resource.granted:
            self._keep(uri, resource)
        else:
            del self._resources[uri]
        return [event for stream in waiting for event in self._decided(stream, uri, resource.granted)]

    def _keep(self, uri: str, resource: _Resource[S]) -> None:
        if resource.granted and not resource.streams:
            leave = partial(self._unsubscribe, uri, resource)
            resource.timer = self._clock.after(self._terms.unsubscribe, self._layer, leave)

    def _unsubscribe(self, uri: str, resource: _Resource[S]) -> Iterable[Event]:
        resource.timer, resource.granted = None, False
        done = partial(self._unsubscribed, uri, resource)
        return (self._own.ask(UNSUBSCRIBE, b'{"uri":%b}' % quote(uri), done, within=self._terms.subscribe),)

    def _unsubscribed(self, uri: str, resource: _Resource[S], _: Response) -> Iterable[Event]:
        """Over HTTP two requests could pass each other, so whoever came meanwhile had to wait for this."""
        if resource.streams:
            return (self._subscribe(uri, resource),)
        del self._resources[uri]
        return ()


def _holds(resource: str, uri: str) -> bool:
    """Whether `uri` is a sub-resource."""
    return uri.startswith(resource.rstrip("/") + "/")
