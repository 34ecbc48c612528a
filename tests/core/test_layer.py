"""The pipeline: which way events travel, past which layers, and where they leave it."""

from __future__ import annotations

from collections.abc import Iterable

from bridge.core.events import Answered, Asked, Event, Exchange, Left, Noted, Party, Told
from bridge.core.events import Down as DownEvent
from bridge.core.events import Up as UpEvent
from bridge.core.layer import Pipeline
from bridge.core.message import notification, request, result

PARTY = Party("a")
TOLD = Told(PARTY, notification("up"))
NOTED = Noted(PARTY, None, notification("down"))


class Recorder:
    """Writes down what passes, and gives what it was told to give for it."""

    def __init__(self, name: str, seen: list[str], gives: dict[str, list[Event]] | None = None) -> None:
        self._name, self._seen, self._gives = name, seen, gives or {}

    def up(self, event: UpEvent) -> Iterable[Event]:
        self._seen.append(f"{self._name} up")
        return self._gives.get("up", [event])

    def down(self, event: DownEvent) -> Iterable[Event]:
        self._seen.append(f"{self._name} down")
        return self._gives.get("down", [event])


def test_without_layers_an_event_leaves_as_it_came() -> None:
    assert list(Pipeline().up(TOLD)) == [TOLD]
    assert list(Pipeline().down(NOTED)) == [NOTED]


def test_upward_events_pass_from_the_client_to_the_server_and_downward_ones_back() -> None:
    seen: list[str] = []
    pipeline = Pipeline([Recorder("near", seen), Recorder("far", seen)])
    assert list(pipeline.up(TOLD)) == [TOLD]
    assert list(pipeline.down(NOTED)) == [NOTED]
    assert seen == ["near up", "far up", "far down", "near down"]


def test_what_a_layer_answers_turns_back_and_goes_no_further() -> None:
    seen: list[str] = []
    asked = request(1, "ping")
    exchange = Exchange(PARTY, asked, None)
    answered = Answered(exchange, result(1, b"{}"))
    pipeline = Pipeline([Recorder("near", seen), Recorder("far", seen, {"up": [answered]})])
    assert list(pipeline.up(Asked(exchange, asked))) == [answered]
    assert seen == ["near up", "far up", "near down"]


def test_a_layer_may_give_several_events_in_both_directions_or_none() -> None:
    seen: list[str] = []
    both: list[Event] = [NOTED, TOLD, Left(PARTY)]
    near, far = Recorder("near", seen), Recorder("far", seen, {"down": both, "up": []})
    assert list(Pipeline([near, far]).down(NOTED)) == both
    assert list(Pipeline([near, far]).up(TOLD)) == []


def test_an_event_is_carried_out_before_the_next_is_made() -> None:
    """A layer's state is the executor's: what the first event brings about, the second may rest on."""
    order: list[str] = []

    class Twice:
        def up(self, event: UpEvent) -> Iterable[Event]:
            for name in ("first", "second"):
                order.append(f"made {name}")
                yield event

        def down(self, event: DownEvent) -> Iterable[Event]:
            return [event]

    events = iter(Pipeline([Twice()]).up(TOLD))
    next(events)
    order.append("carried out first")
    next(events)
    assert order == ["made first", "carried out first", "made second"]
