from __future__ import annotations

import pytest

from bridge.core.message import Response, error, local_error, result
from bridge.era.origin import is_own


@pytest.mark.parametrize(
    ("response", "own"),
    [
        (local_error(1, "late", "upstream_timeout"), True),
        (error(1, -32603, "no"), False),
        (error(1, -32603, "no", b'{"origin":"elsewhere"}'), False),
        (error(1, -32603, "no", b'{"origin":5}'), False),
        (error(1, -32603, "no", b'"bridge"'), False),
        (result(1, b'{"data":{"origin":"bridge"}}'), False),
    ],
)
def test_error_says_whether_it_is_the_bridges_own(response: Response, own: bool) -> None:
    assert is_own(response) is own
