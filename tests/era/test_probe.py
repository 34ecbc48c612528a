"""What a server's answers say of its eras, and when that is believed, doubted and asked for anew."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from bridge.core.message import Response, error, local_error, result
from bridge.era.probe import (
    AGAIN,
    BELIEVED,
    Again,
    Eras,
    Incompatible,
    Legacy,
    Modern,
    Undecided,
    Verdict,
    discovery,
    judged,
    refused,
    shows_modern,
)
from bridge.era.revisions import LEGACY_VERSIONS, MODERN_VERSIONS, Era

NEW, OLD, FOREIGN = MODERN_VERSIONS[-1], LEGACY_VERSIONS[-1], "2030-01-01"


def says(code: int, text: str = "no", **data: object) -> Response:
    return error(1, code, text, json.dumps(data).encode() if data else None)


def discovered(*versions: str) -> Response:
    return result(1, json.dumps({"supportedVersions": versions, "capabilities": {}}).encode())


def unsupported(*versions: str) -> Response:
    return says(-32022, supported=versions, requested=NEW)


def http(status: int, reason: str = "upstream_refused") -> Response:
    """What the bridge makes of an HTTP failure without a JSON-RPC error in it."""
    return says(-32603, f"HTTP {status}", origin="bridge", reason=reason, httpStatus=status)


def unreachable(reason: str = "upstream_unreachable") -> Response:
    return local_error(1, "Cannot connect", reason)


# --- what one answer says ---

JUDGED: dict[str, tuple[Response, Verdict]] = {
    "modern only": (discovered(NEW), Modern(legacy=False)),
    "both eras": (discovered(OLD, NEW), Modern(legacy=True)),
    "beside a revision that nobody knows": (discovered(FOREIGN, NEW), Modern(legacy=False)),
    "legacy revisions only": (discovered(OLD), Legacy()),
    "no revision": (discovered(), Legacy()),
    "no DiscoverResult": (result(1, b'{"tools":[]}'), Legacy()),
    "garbage": (result(1, b'{"supportedVersions":"2026-07-28"}'), Legacy()),
    "no object": (result(1, b"[]"), Legacy()),
    "half a character": (result(1, b'{"supportedVersions":["\\ud800"]}'), Legacy()),
    "unknown method": (says(-32601), Legacy()),
    "invalid params": (says(-32602), Legacy()),
    "invalid request": (says(-32600), Legacy()),
    "a code of its own": (says(-32000, "not initialized"), Legacy()),
    "an error that is none": (Response(b"{}", 1, error=Raw(b"[]")), Legacy()),
    "data that is no object": (error(1, -32601, "no", b'"x"'), Legacy()),
    "unsupported, but known": (unsupported(FOREIGN, NEW), Again(NEW)),
    "unsupported, legacy listed": (unsupported(FOREIGN, OLD), Legacy()),
    "unsupported, nothing in common": (unsupported(FOREIGN), Incompatible((FOREIGN,))),
    "unsupported, nothing listed": (says(-32022), Incompatible(())),
    "headers differ": (says(-32020), Modern(legacy=None)),
    "a capability is missing": (says(-32021), Modern(legacy=None)),
    "a success that is no answer": (unreachable("upstream_invalid_answer"), Legacy()),
    "unreachable": (unreachable(), Undecided("Cannot connect")),
    "lost": (unreachable("upstream_lost"), Undecided("Cannot connect")),
    "spoilt": (unreachable("invalid_upstream_message"), Legacy()),
    **{f"HTTP {status}": (http(status), Legacy()) for status in (400, 404, 405, 406, 415, 422)},
    **{
        f"HTTP {status}": (http(status), Undecided(f"HTTP {status}"))
        for status in (301, 401, 403, 408, 429, 500, 502, 503, 504)
    },
}


@pytest.mark.spec("EV-17", "SC-14")
@pytest.mark.parametrize("name", JUDGED)
def test_answer_says_what_the_server_is(name: str) -> None:
    answer, verdict = JUDGED[name]
    assert judged(answer) == verdict


@pytest.mark.parametrize("silence", [None, unreachable("upstream_timeout")])
def test_silence_of_a_process_means_legacy_and_over_http_means_nothing(silence: Response | None) -> None:
    assert judged(silence) == Legacy()
    assert isinstance(judged(silence, http=True), Undecided)


@pytest.mark.parametrize("code", [-32022, -32020, -32601, -32602, -32600])
def test_refusal_that_a_modern_server_gives_may_come_from_one(code: int) -> None:
    assert refused(says(code))


@pytest.mark.parametrize("status", [400, 404])
def test_http_failure_that_a_modern_server_answers_initialize_with_may_come_from_one(status: int) -> None:
    assert refused(http(status))


@pytest.mark.parametrize(
    "answer",
    [
        result(1, b"{}"), says(-32603), says(-32000), says(1), http(401), http(403), http(405), http(500),
        unreachable(), unreachable("upstream_lost"),
    ],
)  # fmt: skip
def test_any_other_answer_to_initialize_tells_nothing(answer: Response) -> None:
    assert not refused(answer)


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (says(-32022, supported=[NEW]), True),
        (says(-32020), True),
        (says(-32603, upstreamCode=-32020), True),
        (says(-32021), False),
        (says(-32022, origin="bridge"), False),
        (says(-32601), False),
        (http(404), False),
        (result(1, b"{}"), False),
    ],
)
def test_error_that_only_modern_servers_know_shows_one(answer: Response, shown: bool) -> None:
    assert shows_modern(answer) is shown


@pytest.mark.spec("EV-2")
def test_question_names_version_client_and_no_capabilities() -> None:
    client = {"name": "mcp-bridge", "version": "1"}
    meta = json.loads(discovery(NEW, json.dumps(client).encode()))
    assert meta == {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": NEW,
            "io.modelcontextprotocol/clientInfo": client,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    }


# --- what is known ---


class Known:
    """What is known of a server, with a clock that a test sets."""

    def __init__(self, configured: Era | None = None, *, over_http: bool = False) -> None:
        self.now = 1000.0
        self.warned: list[str] = []
        self.eras = Eras(configured, lambda: self.now, self.warned.append, http=over_http)

    def learn(self, answer: Response | None, *, exited: bool = False) -> str | None:
        return self.eras.learn(answer, exited=exited)

    def speaks(self) -> tuple[Era | None, Era | None]:
        """What is spoken for legacy clients, and for modern ones."""
        return self.eras.speak(Era.LEGACY), self.eras.speak(Era.MODERN)

    def fault(self) -> str | None:
        return self.eras.fault

    def doubts(self, method: str, answer: Response, spoken: Era = Era.MODERN) -> bool:
        return self.eras.doubt(method, answer, spoken)


@pytest.fixture
def known() -> Known:
    return Known()


def test_nothing_is_known_before_the_server_said_anything(known: Known) -> None:
    assert known.eras.unknown
    assert known.speaks() == (None, None)
    assert known.eras.in_force is None


FOUND: dict[str, tuple[Response | None, tuple[Era | None, Era | None], str | None]] = {
    "modern only": (discovered(NEW), (Era.MODERN, Era.MODERN), "legacy clients are translated"),
    "both": (discovered(OLD, NEW), (Era.LEGACY, Era.MODERN), "nothing is translated"),
    "legacy": (says(-32601), (None, Era.LEGACY), "modern clients are translated"),
    "silent": (None, (None, Era.LEGACY), "modern clients are translated"),
    "modern, and perhaps more": (says(-32021), (None, Era.MODERN), None),
}


@pytest.mark.parametrize("name", FOUND)
def test_client_is_served_in_its_own_era_where_the_server_knows_it(name: str, known: Known) -> None:
    answer, spoken, told = FOUND[name]
    assert known.learn(answer) is None
    assert known.speaks() == spoken
    assert (known.eras.in_force or "").endswith(told or "")
    assert (known.eras.in_force is None) is (told is None)
    assert not known.eras.unknown


def test_legacy_server_is_known_for_one_by_being_initialized(known: Known) -> None:
    known.eras.initialised()
    assert known.speaks() == (Era.LEGACY, None)
    assert known.eras.unknown, "whether it is modern too was not asked"


@pytest.mark.spec("EV-10")
def test_server_without_a_common_version_is_a_fault_that_names_both_lists(known: Known) -> None:
    known.learn(unsupported(FOREIGN))
    assert known.eras.fault is not None
    assert FOREIGN in known.eras.fault
    assert all(version in known.eras.fault for version in (*LEGACY_VERSIONS, *MODERN_VERSIONS))
    assert known.speaks() == (None, None)


def test_server_that_cannot_be_asked_stays_unknown_and_the_next_answer_counts(known: Known) -> None:
    known.learn(http(503))
    assert known.fault() == "HTTP 503"
    assert known.eras.unknown
    known.learn(discovered(NEW))
    assert known.fault() is None
    assert known.eras.speak(Era.MODERN) is Era.MODERN


def test_last_error_is_kept_to_be_told_whatever_it_meant(known: Known) -> None:
    known.learn(http(404))
    assert known.eras.heard == "HTTP 404"
    known.learn(discovered(NEW))
    assert known.eras.heard == ""


def test_silence_over_http_is_a_fault_and_no_verdict() -> None:
    known = Known(over_http=True)
    known.learn(None)
    assert known.eras.fault is not None
    assert known.eras.unknown


@pytest.mark.spec("EV-10")
def test_version_in_common_is_asked_for_once_and_no_more(known: Known) -> None:
    assert known.learn(unsupported(NEW)) == NEW
    assert known.eras.unknown
    assert known.learn(unsupported(NEW)) is None
    assert known.eras.speak(Era.MODERN) is Era.MODERN
    known.doubts("server/discover", says(-32601))
    assert known.learn(unsupported(NEW)) == NEW


def test_server_that_dies_of_the_question_is_legacy_and_not_asked_again(known: Known) -> None:
    known.learn(unreachable("upstream_lost"), exited=True)
    assert known.eras.speak(Era.MODERN) is Era.LEGACY
    assert not known.eras.probing
    assert not known.eras.unknown


def test_modern_server_that_dies_while_it_is_asked_again_is_not_taken_for_legacy(known: Known) -> None:
    known.learn(discovered(NEW))
    known.doubts("server/discover", says(-32601))
    known.learn(unreachable("upstream_lost"), exited=True)
    assert known.eras.fault == "Cannot connect"
    assert known.eras.unknown


@pytest.mark.parametrize("era", list(Era))
def test_configured_era_is_spoken_whatever_the_server_says(era: Era) -> None:
    known = Known(era)
    assert not known.eras.probing
    assert known.speaks() == (era, era)
    assert not known.doubts("server/discover", says(-32601))
    assert not known.eras.may_be_modern(says(-32022))
    assert era.value in (known.eras.in_force or "")


# --- for how long ---


@pytest.mark.spec("EV-16")
@pytest.mark.parametrize("exited", [False, True])
def test_what_was_found_out_is_believed_for_a_day(exited: bool, known: Known) -> None:
    known.learn(unreachable("upstream_lost") if exited else says(-32601), exited=exited)
    known.now += BELIEVED
    assert known.eras.speak(Era.MODERN) is Era.LEGACY
    known.now += 1
    assert known.eras.speak(Era.MODERN) is None
    assert known.eras.unknown


MODERN_NO_MORE = {
    "unknown method": ("server/discover", says(-32601)),
    **{f"HTTP {status}": ("tools/list", http(status)) for status in (400, 404, 405)},
}


@pytest.mark.spec("EV-16")
@pytest.mark.parametrize("name", MODERN_NO_MORE)
def test_modern_server_that_answers_as_a_legacy_one_is_doubted(name: str, known: Known) -> None:
    known.learn(discovered(NEW))
    assert known.doubts(*MODERN_NO_MORE[name])
    assert known.speaks() == (None, None)
    assert known.eras.probing


@pytest.mark.parametrize(
    "answer",
    [
        says(-32022, supported=[NEW]), says(-32020),
        says(-32603, upstreamCode=-32022, upstream={}), says(-32603, upstreamCode=-32020),
    ],
)  # fmt: skip
def test_legacy_server_that_answers_as_a_modern_one_is_doubted(answer: Response, known: Known) -> None:
    known.learn(says(-32601))
    known.eras.initialised()
    assert known.doubts("tools/call", answer, Era.LEGACY)
    assert known.speaks() == (None, None)


@pytest.mark.parametrize(
    ("method", "answer", "spoken"),
    [
        ("tools/call", says(-32601), Era.MODERN),
        ("tools/call", says(-32602), Era.MODERN),
        ("server/discover", says(-32022, supported=[FOREIGN]), Era.MODERN),
        ("tools/list", http(503), Era.MODERN),
        ("tools/list", http(401), Era.MODERN),
        ("tools/list", unreachable(), Era.MODERN),
        ("tools/call", says(-32601), Era.LEGACY),
        ("tools/call", says(-32603, upstreamCode=-32050), Era.LEGACY),
        ("tools/list", http(404), Era.LEGACY),
        ("tools/list", result(1, b"{}"), Era.LEGACY),
        ("server/discover", result(1, b"{}"), Era.MODERN),
    ],
)
def test_ordinary_answer_is_no_reason_for_doubt(
    method: str, answer: Response, spoken: Era, known: Known
) -> None:
    known.learn(discovered(OLD, NEW))
    assert not known.doubts(method, answer, spoken)
    assert known.speaks() == (Era.LEGACY, Era.MODERN)


def test_doubt_leads_to_one_look_in_half_a_minute(known: Known) -> None:
    known.learn(discovered(NEW))
    assert known.doubts("server/discover", says(-32601))
    known.learn(discovered(NEW))
    assert not known.doubts("server/discover", says(-32601))
    assert known.eras.speak(Era.MODERN) is Era.MODERN
    known.now += AGAIN
    assert known.doubts("server/discover", says(-32601))


def changed(known: Known, times: int) -> None:
    """The server changes its era so often, a minute between two changes; the first look is modern."""
    known.learn(discovered(NEW))
    for time in range(times):
        known.now += 60
        spoken = known.eras.speak(Era.MODERN)
        assert spoken is not None
        known.doubts(
            "server/discover", says(-32601) if spoken is Era.MODERN else says(-32022, supported=[NEW]), spoken
        )
        known.learn(discovered(NEW) if time % 2 else says(-32601))


def test_server_that_changed_twice_is_believed(known: Known) -> None:
    changed(known, 2)
    assert known.eras.speak(Era.MODERN) is Era.MODERN
    assert known.warned == []


def test_fleet_that_keeps_changing_is_taken_for_legacy_with_a_warning(known: Known) -> None:
    changed(known, 4)
    assert known.eras.speak(Era.MODERN) is Era.LEGACY
    [warning] = known.warned
    assert "keeps changing" in warning


def test_change_long_after_the_others_is_believed(known: Known) -> None:
    changed(known, 3)
    known.now += 600
    assert known.doubts("tools/call", says(-32022, supported=[NEW]), Era.LEGACY)
    known.learn(discovered(NEW))
    assert known.eras.speak(Era.MODERN) is Era.MODERN
    assert known.warned == []


# --- a refused initialize ---


def test_refusal_of_the_first_initialize_leads_to_the_question(known: Known) -> None:
    assert known.eras.may_be_modern(says(-32601))
    assert not known.eras.may_be_modern(says(-32603))
    known.learn(discovered(NEW))
    assert known.eras.refused_initialize()
    assert known.eras.speak(Era.LEGACY) is Era.MODERN


@pytest.mark.parametrize("answer", [says(-32601), discovered(OLD, NEW)])
def test_server_that_is_not_modern_only_refused_for_a_reason_of_its_own(
    answer: Response, known: Known
) -> None:
    known.learn(answer)
    assert not known.eras.refused_initialize()


def test_modern_server_whose_legacy_side_is_unknown_needs_no_second_question(known: Known) -> None:
    known.learn(says(-32020))
    assert known.eras.may_be_modern(says(-32601))
    assert known.eras.speak(Era.MODERN) is Era.MODERN
    assert known.eras.refused_initialize()


def test_silent_server_that_then_cannot_be_initialized_is_asked_once_more(known: Known) -> None:
    """A slow starter, which had not read the question in time (§6.1)."""
    known.learn(None)
    assert known.eras.may_be_modern(says(-32022, supported=[NEW]))
    known.learn(None)
    assert not known.eras.may_be_modern(says(-32022, supported=[NEW])), "and not all the time"
    known.now += AGAIN
    assert known.eras.may_be_modern(says(-32022, supported=[NEW]))
    known.learn(discovered(NEW))
    assert known.eras.refused_initialize()
    assert known.speaks() == (Era.MODERN, Era.MODERN)


def test_server_that_died_once_of_something_else_is_found_out_in_the_end(known: Known) -> None:
    known.learn(unreachable("upstream_lost"), exited=True)
    assert not known.eras.may_be_modern(says(-32601)), "it was asked just now"
    known.now += AGAIN
    assert not known.eras.may_be_modern(says(-32603))
    assert known.eras.may_be_modern(says(-32601))
    assert known.eras.probing


def test_server_that_was_initialized_before_must_name_what_it_wants(known: Known) -> None:
    known.eras.initialised()
    assert not known.eras.may_be_modern(says(-32602))
    assert known.eras.may_be_modern(says(-32022, supported=[NEW]))
    known.learn(discovered(NEW))
    assert known.eras.refused_initialize()


def test_failure_at_a_url_that_answered_neither_question_tells_both() -> None:
    known = Known(over_http=True)
    known.learn(http(404))
    told = known.eras.beside(says(-32603, "HTTP 405; no endpoint", origin="bridge", httpStatus=405))
    assert told is not None
    assert told.id == 1
    assert json.loads(bytes(told.error or b"")) == {
        "code": -32603,
        "message": "HTTP 405; no endpoint; and to server/discover: HTTP 404",
        "data": {"origin": "bridge", "httpStatus": 405},
    }


@pytest.mark.parametrize(
    ("found", "refusal"),
    [
        (http(404), says(-32602, "unsupported version")),
        (http(404), http(503)),
        (http(503), http(404)),
        (discovered(OLD), http(404)),
        (None, http(404)),
    ],
)
def test_failure_is_told_alone_where_nothing_else_bears_on_it(
    found: Response | None, refusal: Response, known: Known
) -> None:
    known.learn(found)
    assert known.eras.beside(refusal) is None
