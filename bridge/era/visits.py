"""What a server wants visited before it does what it was asked (error -32042 of 2025-11-25).

"URL Elicitation" of 2025-11-25: the request fails with the pages that the user has to see first, and
is sent again afterwards. The modern form is an `input_required` whose answers say that it was done.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw

from bridge.core.message import Response
from bridge.core.splice import elements, members

URL_REQUIRED: Final = -32042
MOST_ROUNDS: Final = 10


class _Error(msgspec.Struct):
    code: int = 0
    message: str = ""
    data: Raw = Raw(b"null")


class _Page(msgspec.Struct):
    mode: str
    url: str
    message: str


class Visits(msgspec.Struct, frozen=True):
    """`pages` are the params of as many elicitations, as the server wrote them."""

    message: str
    pages: list[Raw]


def visits(response: Response) -> Visits | None:
    """What the server asks for instead of answering; None if it does not, or names no page at all."""
    if response.error is UNSET:
        return None
    try:
        error = msgspec.json.decode(response.error, type=_Error)
        if error.code != URL_REQUIRED:
            return None
        pages = [page for page in elements(members(error.data).get("elicitations", b"")) if _is_page(page)]
    except (msgspec.DecodeError, ValueError):
        return None
    return Visits(error.message, pages) if pages else None


def _is_page(text: Raw) -> bool:
    try:
        return msgspec.json.decode(text, type=_Page).mode == "url"
    except msgspec.DecodeError:
        return False
