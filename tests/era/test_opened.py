"""What the bridge's own initialize settled."""

from __future__ import annotations

import pytest

from bridge.era.opened import Opened

OLDEST = "2024-11-05"


def opened(capabilities: str, revision: str = "2025-11-25") -> Opened:
    return Opened.read(f'{{"protocolVersion":"{revision}","capabilities":{capabilities}}}'.encode())


def test_answer_is_kept_as_it_was_said() -> None:
    found = Opened.read(
        b'{"protocolVersion":"2025-06-18","capabilities":{"x":{"k":1.0}},"serverInfo":{"name":"up"},"instructions":"hi"}'
    )
    assert (found.revision, found.server, found.instructions) == ("2025-06-18", b'{"name":"up"}', b'"hi"')
    assert {kind: bytes(text) for kind, text in found.capabilities.items()} == {"x": b'{"k":1.0}'}


def test_server_that_says_little_is_opened_all_the_same() -> None:
    found = Opened.read(b'{"protocolVersion":"2024-11-05"}')
    assert (dict(found.capabilities), found.server, found.instructions) == ({}, b"{}", None)


@pytest.mark.parametrize(
    "answer",
    [
        '{"protocolVersion":"2031-01-01","capabilities":{}}',
        '{"protocolVersion":"2026-07-28","capabilities":{}}',
        '{"protocolVersion":5}',
        "{}",
        "[]",
        '{"protocolVersion":"2025-11-25","capabilities":[]}',
    ],
)
def test_answer_that_opens_no_legacy_session_is_refused(answer: str) -> None:
    with pytest.raises(ValueError):
        Opened.read(answer.encode())


@pytest.mark.parametrize(
    ("capabilities", "kind", "flag", "advertised"),
    [
        ('{"tools":{}}', "tools", None, True),
        ('{"tools":null}', "tools", None, False),
        ("{}", "tools", None, False),
        ('{"tools":{"listChanged":true}}', "tools", "listChanged", True),
        ('{"tools":{"listChanged":false}}', "tools", "listChanged", False),
        ('{"tools":{}}', "tools", "listChanged", False),
        ('{"tools":1}', "tools", "listChanged", False),
    ],
)
def test_only_what_is_advertised_is_believed(
    capabilities: str, kind: str, flag: str | None, advertised: bool
) -> None:
    assert opened(capabilities).advertises(kind, flag) is advertised


def test_oldest_revision_completes_unsaid_until_it_refuses() -> None:
    """A13."""
    found = opened('{"prompts":{}}', OLDEST)
    assert found.advertises("completions")
    found.completions_refused = True
    assert not found.advertises("completions")
    assert not opened('{"tools":{}}', OLDEST).advertises("completions")
    assert not opened('{"prompts":{}}').advertises("completions")
