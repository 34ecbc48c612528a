"""What a legacy session follows of a modern server: never two subscriptions' worth, never a gap unsaid."""

from __future__ import annotations

import pytest

from crossing.bench import EVERYTHING, Json
from crossing.legacy import QUIET, R4, SID, Crossed, bridges, discovery, envelope, initialize, opened

TOOLS: Json = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
A, B = "file:///a", "file:///b"


def following(server: Json = TOOLS) -> tuple[Crossed, Json]:
    """A session whose first subscription stands."""
    crossed = opened(server=server)
    listen = crossed.hears("subscriptions/listen")
    crossed.acknowledges(listen)
    assert crossed.silent
    return crossed, listen


def subscribed(*uris: str) -> tuple[Crossed, Json]:
    """A session that is subscribed to these."""
    crossed, first = following()
    for uri in uris:
        crossed.ask("resources/subscribe", {"uri": uri})
    crossed.clock.advance(0.05)
    listen = crossed.hears("subscriptions/listen")
    crossed.acknowledges(listen)
    crossed.hears_cancelled(first)
    for _ in uris:
        assert crossed.result() == {}
    assert crossed.silent
    return crossed, listen


def wanted(listen: Json) -> Json:
    found: Json = listen["params"]["notifications"]
    return found


@pytest.mark.crossing("J12")
def test_what_the_server_announces_is_followed_once_the_session_is_initialized() -> None:
    crossed = Crossed()
    crossed.ask("initialize", initialize())
    crossed.answers(crossed.hears(), discovery({"tools": {"listChanged": True}, "prompts": {}}))
    crossed.result()
    assert crossed.silent
    crossed.tell("initialized")
    listen = crossed.hears("subscriptions/listen")
    assert listen["params"] == {"notifications": {"toolsListChanged": True}, "_meta": envelope({})}
    crossed.tell("initialized")
    assert crossed.silent


def test_a_server_that_announces_nothing_is_not_listened_to() -> None:
    crossed = opened(server=QUIET)
    crossed.clock.advance(60)
    assert crossed.silent


@pytest.mark.crossing("J13")
def test_a_subscription_is_made_before_the_old_one_is_closed() -> None:
    crossed, first = following()
    crossed.ask("resources/subscribe", {"uri": A}, own=3)
    crossed.clock.advance(0.05)
    second = crossed.hears("subscriptions/listen")
    assert wanted(second) == {"toolsListChanged": True, "resourceSubscriptions": [A]}
    assert crossed.silent
    crossed.tells(first, "tools/list_changed")
    crossed.sees("notifications/tools/list_changed")
    crossed.acknowledges(second)
    crossed.hears_cancelled(first)
    assert crossed.sees() == {"id": 3, "result": {}}
    assert crossed.silent


def test_changes_within_a_moment_are_made_together() -> None:
    crossed, _ = following()
    for uri in (A, B):
        crossed.ask("resources/subscribe", {"uri": uri})
        crossed.clock.advance(0.02)
    assert crossed.silent
    crossed.clock.advance(0.01)
    assert wanted(crossed.hears())["resourceSubscriptions"] == [A, B]


def test_a_change_while_one_is_made_is_made_after_it() -> None:
    crossed, first = following()
    crossed.ask("resources/subscribe", {"uri": A}, own="a")
    crossed.clock.advance(0.05)
    second = crossed.hears()
    crossed.ask("resources/subscribe", {"uri": B}, own="b")
    crossed.clock.advance(1)
    assert crossed.silent
    crossed.acknowledges(second)
    crossed.hears_cancelled(first)
    third = crossed.hears("subscriptions/listen")
    assert wanted(third)["resourceSubscriptions"] == [A, B]
    assert crossed.sees()["id"] == "a"
    crossed.acknowledges(third)
    crossed.hears_cancelled(second)
    assert crossed.sees()["id"] == "b"


def test_what_is_followed_already_is_granted_at_once() -> None:
    crossed, _ = subscribed(A)
    crossed.ask("resources/subscribe", {"uri": A})
    assert crossed.result() == {}
    crossed.clock.advance(1)
    assert crossed.silent


@pytest.mark.crossing("J14")
@pytest.mark.spec("SB-4")
def test_what_the_server_does_not_grant_is_refused_and_not_asked_for_again() -> None:
    crossed, first = following()
    crossed.ask("resources/subscribe", {"uri": A})
    crossed.clock.advance(0.05)
    second = crossed.hears()
    crossed.acknowledges(second, toolsListChanged=True)
    crossed.hears_cancelled(first)
    assert crossed.error()["code"] == -32602
    assert crossed.silent
    crossed.ask("resources/subscribe", {"uri": B})
    crossed.clock.advance(0.05)
    assert wanted(crossed.hears())["resourceSubscriptions"] == [B]


def test_what_was_refused_once_may_be_asked_for_again_by_the_client() -> None:
    crossed, _ = following()
    for _ in range(2):
        crossed.ask("resources/subscribe", {"uri": A})
        crossed.clock.advance(0.05)
        listen = crossed.hears("subscriptions/listen")
        assert wanted(listen)["resourceSubscriptions"] == [A]
        crossed.acknowledges(listen, toolsListChanged=True)
        crossed.hears("notifications/cancelled")
        assert crossed.error()["code"] == -32602


def test_a_server_without_subscriptions_to_resources_is_not_asked() -> None:
    crossed = opened(server=QUIET)
    crossed.ask("resources/subscribe", {"uri": A})
    assert crossed.error()["code"] == -32601
    crossed.ask("resources/subscribe", {})
    assert crossed.error()["code"] == -32602
    assert crossed.silent


@pytest.mark.parametrize("how", ["refused", "late", "ended"])
def test_a_subscription_that_fails_leaves_the_old_one_standing(how: str) -> None:
    crossed, first = following()
    crossed.ask("resources/subscribe", {"uri": A}, own="a")
    crossed.clock.advance(0.05)
    second = crossed.hears()
    if how == "refused":
        crossed.refuses(second, -32602, "no such resource")
        assert crossed.error() == {"code": -32602, "message": "no such resource"}
    elif how == "late":
        crossed.clock.advance(5)
        crossed.hears_cancelled(second)
        assert bridges(crossed.error()) == "upstream_timeout"
    else:
        crossed.answers(second)
        assert bridges(crossed.error()) == "upstream_lost"
    assert crossed.silent
    crossed.tells(first, "tools/list_changed")
    crossed.sees("notifications/tools/list_changed")
    crossed.clock.advance(60)
    assert crossed.silent


@pytest.mark.crossing("J15")
@pytest.mark.case("RV-02")
def test_an_update_goes_to_the_sessions_own_channel_once_and_plain() -> None:
    crossed, listen = subscribed(A)
    crossed.tells(listen, "resources/updated", uri=A)
    note, carrier = crossed.sees_on("notifications/resources/updated")
    assert note == {"method": "notifications/resources/updated", "params": {"uri": A}}
    assert carrier is None
    crossed.tells(listen, "tools/list_changed")
    assert crossed.sees("notifications/tools/list_changed") == {"method": "notifications/tools/list_changed"}
    assert crossed.silent


@pytest.mark.spec("OT-5")
def test_other_keys_of_a_notification_stay() -> None:
    crossed, listen = subscribed(A)
    crossed.says(
        {
            "method": "notifications/resources/updated",
            "params": {"uri": A, "x": 1, "_meta": {SID: listen["id"], "k": 1}},
        }
    )
    assert crossed.sees("notifications/resources/updated")["params"] == {"uri": A, "x": 1, "_meta": {"k": 1}}


def test_what_both_subscriptions_tell_is_told_once() -> None:
    crossed, first = following()
    crossed.ask("resources/subscribe", {"uri": A})
    crossed.clock.advance(0.05)
    second = crossed.hears()
    crossed.tells(second, "tools/list_changed")
    crossed.tells(first, "tools/list_changed")
    crossed.sees("notifications/tools/list_changed")
    crossed.acknowledges(second)
    crossed.tells(first, "tools/list_changed")
    crossed.result()
    assert not crossed.seen


@pytest.mark.crossing("J17")
@pytest.mark.spec("SB-7")
def test_a_subscription_that_breaks_is_opened_anew_and_everything_told_once() -> None:
    crossed, listen = subscribed(A, B)
    crossed.breaks(listen)
    crossed.clock.advance(0.499)
    assert crossed.silent
    crossed.clock.advance(0.001)
    again = crossed.hears("subscriptions/listen")
    assert wanted(again) == wanted(listen)
    assert crossed.silent
    crossed.acknowledges(again)
    assert crossed.sees("notifications/tools/list_changed") == {"method": "notifications/tools/list_changed"}
    updated = [crossed.sees("notifications/resources/updated")["params"]["uri"] for _ in range(2)]
    assert updated == [A, B]
    assert crossed.silent


@pytest.mark.parametrize("how", ["answered", "cancelled"])
def test_a_subscription_that_the_server_ends_is_opened_anew(how: str) -> None:
    crossed, listen = following()
    if how == "answered":
        crossed.answers(listen, {"resultType": "complete", "_meta": {SID: listen["id"]}})
    else:
        crossed.says({"method": "notifications/cancelled", "params": {"requestId": listen["id"]}})
    crossed.clock.advance(0.5)
    crossed.acknowledges(crossed.hears("subscriptions/listen"))
    crossed.sees("notifications/tools/list_changed")
    assert crossed.silent


@pytest.mark.spec("SB-4")
def test_only_what_is_granted_anew_is_told() -> None:
    crossed, listen = subscribed(A, B)
    crossed.breaks(listen)
    crossed.clock.advance(0.5)
    crossed.acknowledges(crossed.hears(), resourceSubscriptions=[B])
    assert crossed.sees("notifications/resources/updated")["params"]["uri"] == B
    assert crossed.silent


def test_the_pauses_grow_while_nothing_comes_of_it() -> None:
    crossed, listen = following()
    crossed.breaks(listen)
    for pause in (0.5, 1, 2, 4, 8, 16, 30, 30):
        crossed.clock.advance(pause - 0.01)
        assert crossed.silent
        crossed.clock.advance(0.01)
        crossed.breaks(crossed.hears("subscriptions/listen"))


def test_the_pauses_start_anew_after_one_that_worked() -> None:
    crossed, listen = following()
    for _ in range(3):
        crossed.clock.advance(5)
        crossed.breaks(listen)
        crossed.clock.advance(0.5)
        listen = crossed.hears("subscriptions/listen")
        crossed.acknowledges(listen)
        crossed.sees("notifications/tools/list_changed")


def test_a_server_that_does_not_know_subscriptions_is_left_alone() -> None:
    crossed = opened(server=EVERYTHING)
    crossed.refuses(crossed.hears("subscriptions/listen"), -32601)
    crossed.clock.advance(3600)
    assert crossed.silent


@pytest.mark.crossing("J18")
def test_to_unsubscribe_from_what_was_never_subscribed_is_granted() -> None:
    crossed, _ = following()
    crossed.ask("resources/unsubscribe", {"uri": B})
    assert crossed.result() == {}
    crossed.clock.advance(1)
    assert crossed.silent


def test_what_is_unsubscribed_is_told_no_more_and_then_not_followed() -> None:
    crossed, listen = subscribed(A, B)
    crossed.ask("resources/unsubscribe", {"uri": A})
    assert crossed.result() == {}
    crossed.tells(listen, "resources/updated", uri=A)
    crossed.tells(listen, "resources/updated", uri=B)
    assert crossed.sees("notifications/resources/updated")["params"]["uri"] == B
    assert crossed.silent
    crossed.clock.advance(0.05)
    again = crossed.hears()
    assert wanted(again)["resourceSubscriptions"] == [B]
    crossed.acknowledges(again)
    crossed.hears_cancelled(listen)
    assert crossed.silent


def test_a_session_that_wants_nothing_any_more_listens_to_nothing() -> None:
    crossed = opened(server={"resources": {"subscribe": True}})
    crossed.ask("resources/subscribe", {"uri": A})
    crossed.clock.advance(0.05)
    listen = crossed.hears()
    assert wanted(listen) == {"resourceSubscriptions": [A]}
    crossed.acknowledges(listen)
    crossed.result()
    crossed.ask("resources/unsubscribe", {"uri": A})
    crossed.result()
    crossed.clock.advance(0.05)
    crossed.hears_cancelled(listen)
    crossed.clock.advance(3600)
    assert crossed.silent


def test_a_request_to_subscribe_that_is_cancelled_is_not_answered() -> None:
    crossed, first = following()
    asked = crossed.ask("resources/subscribe", {"uri": A})
    crossed.clock.advance(0.05)
    second = crossed.hears()
    crossed.cancel(asked)
    crossed.acknowledges(second)
    crossed.hears_cancelled(first)
    crossed.clock.advance(0.05)
    third = crossed.hears("subscriptions/listen")
    assert wanted(third) == {"toolsListChanged": True}
    crossed.acknowledges(third)
    crossed.hears_cancelled(second)
    assert crossed.silent


def test_a_subscription_broken_while_a_new_one_is_made_leaves_a_gap_that_is_told() -> None:
    crossed, first = following()
    crossed.ask("resources/subscribe", {"uri": A})
    crossed.clock.advance(0.05)
    second = crossed.hears()
    crossed.breaks(first)
    crossed.acknowledges(second)
    assert crossed.result() == {}
    crossed.sees("notifications/tools/list_changed")
    crossed.sees("notifications/resources/updated")
    crossed.clock.advance(60)
    assert crossed.silent


def test_an_acknowledgment_that_cannot_be_read_grants_nothing() -> None:
    crossed, first = following()
    crossed.ask("resources/subscribe", {"uri": A})
    crossed.clock.advance(0.05)
    second = crossed.hears()
    crossed.tells(second, "subscriptions/acknowledged", notifications=7)
    assert crossed.error()["code"] == -32602
    crossed.hears_cancelled(first)


def test_sessions_of_one_server_do_not_hear_of_each_other() -> None:
    crossed = opened(R4, server=EVERYTHING, fresh=False)
    listen = crossed.hears("subscriptions/listen")
    crossed.acknowledges(listen)
    crossed.says({"method": "notifications/tools/list_changed", "params": {"_meta": {SID: "another"}}})
    assert crossed.silent
