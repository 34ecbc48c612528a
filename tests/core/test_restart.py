from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.restart import Circuit, RestartPolicy, Restarts

PATIENT = RestartPolicy(failures=1000)


def tripped(at: float) -> Restarts:
    restarts = Restarts(RestartPolicy())
    for _ in range(5):
        restarts.failed(at)
    return restarts


def test_first_start_is_allowed_at_once() -> None:
    restarts = Restarts(RestartPolicy())
    assert restarts.wait(0.0) == 0.0
    assert restarts.state(0.0) is Circuit.CLOSED


def test_wait_doubles_with_each_failure_up_to_the_most() -> None:
    restarts, now, waits = Restarts(PATIENT), 100.0, []
    for _ in range(9):
        restarts.failed(now)
        waits.append(restarts.wait(now))
        now += waits[-1]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_wait_stays_at_the_most_however_many_failures() -> None:
    restarts = Restarts(RestartPolicy(failures=10_000))
    for _ in range(5000):
        restarts.failed(0.0)
    assert restarts.wait(0.0) == 30.0


def test_wait_runs_down_with_the_clock() -> None:
    restarts = Restarts(PATIENT)
    restarts.failed(10.0)
    assert [restarts.wait(now) for now in (10.0, 10.25, 10.5, 99.0)] == [0.5, 0.25, 0.0, 0.0]


def test_asking_changes_nothing() -> None:
    restarts = tripped(0.0)
    assert [restarts.wait(30.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert restarts.state(30.0) is Circuit.HALF_OPEN


def test_success_forgets_all_failures() -> None:
    restarts = tripped(0.0)
    restarts.succeeded()
    assert (restarts.wait(0.0), restarts.state(0.0)) == (0.0, Circuit.CLOSED)
    restarts.failed(1.0)
    assert (restarts.wait(1.0), restarts.state(1.0)) == (0.5, Circuit.CLOSED)


def test_success_counts_failures_anew_towards_the_circuit() -> None:
    restarts = Restarts(RestartPolicy())
    for now in (1.0, 2.0, 3.0, 4.0):
        restarts.failed(now)
    restarts.succeeded()
    restarts.failed(5.0)
    assert restarts.state(5.0) is Circuit.CLOSED


def test_fifth_failure_within_the_window_opens_the_circuit() -> None:
    restarts = Restarts(RestartPolicy())
    for now in (0.0, 15.0, 30.0, 45.0):
        restarts.failed(now)
        assert restarts.state(now) is Circuit.CLOSED
    restarts.failed(60.0)
    assert (restarts.state(60.0), restarts.wait(60.0)) == (Circuit.OPEN, 30.0)


def test_failures_spread_over_more_than_the_window_do_not_open_it() -> None:
    restarts = Restarts(RestartPolicy())
    for now in (0.0, 16.0, 32.0, 48.0, 64.0, 80.0):
        restarts.failed(now)
        assert restarts.state(now) is Circuit.CLOSED


def test_failures_of_concurrent_starts_count_each() -> None:
    restarts = Restarts(RestartPolicy())
    for _ in range(5):
        restarts.started(0.0)
    for _ in range(5):
        restarts.failed(1.0)
    assert restarts.state(1.0) is Circuit.OPEN


def test_open_circuit_becomes_half_open_when_its_time_is_over() -> None:
    restarts = tripped(100.0)
    assert (restarts.state(129.5), restarts.wait(129.5)) == (Circuit.OPEN, 0.5)
    assert (restarts.state(130.0), restarts.wait(130.0)) == (Circuit.HALF_OPEN, 0.0)


def test_half_open_circuit_allows_one_start() -> None:
    restarts = tripped(0.0)
    restarts.started(30.0)
    assert (restarts.state(30.0), restarts.wait(30.0)) == (Circuit.OPEN, 30.0)


def test_start_begun_while_the_circuit_is_open_does_not_prolong_it() -> None:
    restarts = tripped(0.0)
    restarts.started(10.0)
    assert restarts.wait(10.0) == 20.0


def test_failed_trial_opens_the_circuit_again() -> None:
    restarts = tripped(0.0)
    restarts.started(500.0)
    restarts.failed(501.0)
    assert (restarts.state(501.0), restarts.wait(501.0)) == (Circuit.OPEN, 30.0)


def test_successful_trial_closes_the_circuit() -> None:
    restarts = tripped(0.0)
    restarts.started(30.0)
    restarts.succeeded()
    assert (restarts.state(30.0), restarts.wait(30.0)) == (Circuit.CLOSED, 0.0)


def test_trial_that_never_reports_does_not_shut_the_circuit_for_ever() -> None:
    restarts = tripped(0.0)
    restarts.started(30.0)
    assert restarts.state(60.0) is Circuit.HALF_OPEN


def test_start_of_a_healthy_server_holds_nobody_off() -> None:
    restarts = Restarts(RestartPolicy())
    restarts.started(0.0)
    assert restarts.wait(0.0) == 0.0


def test_backoff_longer_than_the_open_circuit_is_kept() -> None:
    restarts = Restarts(RestartPolicy(first=50.0, most=100.0, failures=1))
    restarts.failed(0.0)
    assert (restarts.state(49.0), restarts.wait(0.0)) == (Circuit.OPEN, 50.0)


@given(st.lists(st.tuples(st.sampled_from(["started", "failed", "succeeded"]), st.floats(0, 100))))
def test_no_history_makes_anyone_wait_longer_than_the_policy_says(history: list[tuple[str, float]]) -> None:
    restarts, now = Restarts(RestartPolicy()), 0.0
    for what, passed in history:
        now += passed
        if what == "succeeded":
            restarts.succeeded()
        elif what == "failed":
            restarts.failed(now)
        else:
            restarts.started(now)
        # now + 30 - now need not be 30 in floating point.
        assert 0.0 <= restarts.wait(now) <= 30.0 + 1e-9
        assert (restarts.state(now) is Circuit.OPEN) <= (restarts.wait(now) > 0.0)


def test_policy_cannot_be_changed_under_a_history() -> None:
    with pytest.raises(AttributeError):
        RestartPolicy().first = 1.0  # type: ignore[misc]
