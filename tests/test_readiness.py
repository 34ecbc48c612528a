"""What is known of the server's health: evidence, and what revokes it."""

from __future__ import annotations

import msgspec
import pytest

from bridge.errors import ServerStopped, StartTimeout
from bridge.readiness import Identity, Readiness, State

RESULT = b'{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}'


def test_nothing_is_assumed_before_a_handshake_has_ended() -> None:
    known = Readiness()
    assert (known.ready, known.state) == (False, State.STARTING)


def test_a_handshake_that_succeeded_is_evidence() -> None:
    known = Readiness()
    assert known.initialised(RESULT)
    assert (known.ready, known.state, known.revision) == (True, State.INITIALISED, "2025-11-25")
    assert known.server == Identity("s", "1")


def test_only_the_first_success_in_a_row_is_news() -> None:
    known = Readiness()
    assert [known.initialised(msgspec.Raw(RESULT)), known.initialised(RESULT)] == [True, False]
    known.failed(StartTimeout("late"))
    assert known.initialised(RESULT)


def test_a_later_failure_revokes_it_and_a_later_success_forgives() -> None:
    known = Readiness()
    known.initialised(RESULT)
    fault = ServerStopped("gone", exit_code=1)
    known.failed(fault)
    assert (known.ready, known.state, known.fault) == (False, State.FAILING, fault)
    known.initialised(RESULT)
    assert (known.ready, known.fault) == (True, None)


def test_a_modern_server_proves_itself_by_discovery() -> None:
    known = Readiness()
    assert known.discovered("2026-07-28")
    assert (known.ready, known.revision) == (True, "2026-07-28")


def test_discovery_does_not_forget_who_the_server_is() -> None:
    known = Readiness()
    known.initialised(RESULT)
    known.discovered("2026-07-28")
    assert known.server == Identity("s", "1")


@pytest.mark.parametrize(
    "result", [b"null", b"[]", b"{}", b'{"protocolVersion":1}', b'{"serverInfo":"s"}', b'{"x":"\\ud800"}']
)
def test_a_handshake_with_an_odd_result_is_evidence_too(result: bytes) -> None:
    known = Readiness()
    assert known.initialised(result)
    assert (known.ready, known.revision, known.server) == (True, "", Identity())


@pytest.mark.parametrize("before", [None, "succeeded", "failed"])
def test_draining_is_never_ready_whatever_happens(before: str | None) -> None:
    known = Readiness()
    if before == "succeeded":
        known.initialised(RESULT)
    elif before == "failed":
        known.failed(StartTimeout("late"))
    known.drain()
    assert not known.initialised(RESULT)
    known.failed(StartTimeout("late"))
    assert (known.ready, known.state) == (False, State.DRAINING)
