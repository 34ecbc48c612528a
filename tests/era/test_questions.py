"""A legacy server's question in modern words, and the answer in the server's."""

from __future__ import annotations

import json

import pytest
from msgspec import UNSET, Raw

from bridge.core.events import Question
from bridge.core.message import request
from bridge.era.questions import (
    action,
    answer,
    entry,
    fits,
    given_up,
    missing,
    refused,
    related_task,
    unaskable,
)

ELICIT, SAMPLE, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"


def question(method: str, params: str | None = "{}") -> Question:
    return Question(request("q", method, None if params is None else params.encode()))


def test_entry_keeps_the_text_of_what_it_keeps() -> None:
    params = Raw(b'{"message":"\\u00e9","z":1.10,"task":{},"_meta":{"progressToken":1,"k":1E2}}')
    assert entry(ELICIT, params) == (
        b'{"method":"elicitation/create","params":{"message":"\\u00e9","z":1.10,"_meta":{"k":1E2}}}'
    )


def test_roots_have_params_only_if_something_is_left() -> None:
    assert entry(ROOTS, UNSET) == b'{"method":"roots/list"}'
    assert entry(ROOTS, Raw(b'{"_meta":{"progressToken":1}}')) == b'{"method":"roots/list"}'
    assert entry(ROOTS, Raw(b'{"x":1}')) == b'{"method":"roots/list","params":{"x":1}}'
    assert entry(SAMPLE, Raw(b"{}")) == b'{"method":"sampling/createMessage","params":{}}'


@pytest.mark.parametrize(
    ("method", "value", "holds"),
    [
        (ELICIT, '{"action":"accept"}', True),
        (ELICIT, '{"action":"x"}', False),
        (ELICIT, "[]", False),
        (SAMPLE, '{"role":"assistant","content":[],"model":"m"}', True),
        (SAMPLE, '{"role":"assistant","content":{}}', False),
        (SAMPLE, '{"role":5,"content":{},"model":"m"}', False),
        (ROOTS, '{"roots":[]}', True),
        (ROOTS, '{"roots":null}', False),
    ],
)
def test_answer_fits_its_question_by_shape(method: str, value: str, holds: bool) -> None:
    assert fits(method, value.encode()) is holds


def test_answer_to_the_latest_revision_is_untouched_but_for_its_result_type() -> None:
    value = b'{"action":"accept","content":{"c":["a"],"n":1.0}}'
    raw = answer(question(ELICIT), value, "2025-11-25").result
    assert raw is not UNSET
    assert bytes(raw) == value
    typed = b'{"resultType":"complete",' + value[1:]
    assert answer(question(ELICIT), typed, "2025-11-25").result == raw


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'["a","b"]', b'"a, b"'),
        (b"[]", b'""'),
        (b'["\\u00e9\\"",1.50,{"k":"v"}]', b'"\\u00e9\\", 1.50, {\\"k\\":\\"v\\"}"'),
    ],
)
def test_choices_become_one_text_without_being_read(content: bytes, expected: bytes) -> None:
    value = b'{"action":"accept","content":{"c":%b}}' % content
    raw = answer(question(ELICIT), value, "2025-06-18").result
    assert raw is not UNSET
    assert bytes(raw) == b'{"action":"accept","content":{"c":%b}}' % expected


@pytest.mark.spec("LC-11")
def test_one_block_of_content_passes_to_an_older_server_as_it_is() -> None:
    value = b'{"role":"assistant","content":{"type":"text","text":"x"},"model":"m"}'
    raw = answer(question(SAMPLE), value, "2024-11-05").result
    assert raw is not UNSET
    assert bytes(raw) == value
    roots = answer(question(ROOTS), b'{"roots":[]}', "2024-11-05").result
    assert roots is not UNSET


@pytest.mark.spec("LC-11")
def test_empty_content_has_no_words_in_an_older_revision() -> None:
    value = b'{"role":"assistant","content":[],"model":"m"}'
    assert answer(question(SAMPLE), value, "2025-03-26").error is not UNSET


@pytest.mark.parametrize(("method", "code"), [(ELICIT, None), (SAMPLE, -1), (ROOTS, -32603)])
def test_what_stands_for_an_answer_that_does_not_come(method: str, code: int | None) -> None:
    said = json.loads(given_up(question(method)).raw)
    assert said["id"] == "q"
    if code is None:
        assert said["result"] == {"action": "cancel"}
    else:
        assert said["error"]["code"] == code


@pytest.mark.parametrize(("method", "code"), [(ELICIT, -32602), (SAMPLE, -32601), (ROOTS, -32601)])
def test_refusal_has_the_code_that_servers_expect(method: str, code: int) -> None:
    assert json.loads(refused(question(method)).raw)["error"]["code"] == code


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [("vendor/x", "{}", -32601), (ELICIT, "[]", -32602), (ELICIT, "{}", None), (ROOTS, None, None)],
)
def test_only_what_clients_know_can_be_asked(method: str, params: str | None, code: int | None) -> None:
    asked = request("q", method, None if params is None else params.encode())
    found = unaskable(Question(asked), asked)
    assert (None if found is None else json.loads(found.raw)["error"]["code"]) == code


def test_missing_capabilities_are_named_together() -> None:
    response = missing([b'{"elicitation":{"form":{}}}', b'{"roots":{}}', b'{"elicitation":{"url":{}}}'])
    error = json.loads(response.raw)["error"]
    assert error["code"] == -32021
    assert error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}, "url": {}}, "roots": {}}}


@pytest.mark.parametrize(
    ("params", "task"),
    [
        (b'{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}', "t"),
        (b'{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":5}}}', None),
        (b'{"_meta":{"io.modelcontextprotocol/related-task":5}}', None),
        (b'{"_meta":5}', None),
        (b"[]", None),
    ],
)
def test_related_task_is_read_or_is_none(params: bytes, task: str | None) -> None:
    assert related_task(Raw(params)) == task
    assert related_task(UNSET) is None


def test_action_of_an_elicitation() -> None:
    assert action(b'{"action":"accept"}') == "accept"
    assert action(b"{}") is None
