"""Trace context (W3C) in messages: where it stands, and how it is put there (SEP-414).

The keys of `params._meta` are those of the HTTP headers. What cannot be a value of such a header is
no context, and stays where it is, untouched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from bridge.core.events import Asked, Down, Event, Exchange, Up
from bridge.core.message import Request
from bridge.core.splice import joined, members, quote

PARENT: Final = "traceparent"
KEYS: Final = (PARENT, "tracestate", "baggage")
Context = Sequence[tuple[str, str]]
"""Pairs of one of the keys and its value."""

_MARK: Final = b'"traceparent"'
_LONGEST: Final = 8192
"""Bytes of a value: what W3C Baggage asks to be carried."""
_VALUE: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")


class _Meta(msgspec.Struct):
    traceparent: str | UnsetType = UNSET
    tracestate: str | UnsetType = UNSET
    baggage: str | UnsetType = UNSET


class _Params(msgspec.Struct):
    meta: _Meta | UnsetType = msgspec.field(name="_meta", default=UNSET)


class _Message(msgspec.Struct):
    params: _Params | UnsetType = UNSET


def context_of(params: Raw | UnsetType) -> Context:
    """The context that a request's params carry; none without a usable `traceparent`."""
    if params is UNSET or _MARK not in bytes(params):
        return ()
    return _context(params, _Params)


def context_in(message: bytes) -> Context:
    """The same of a whole message."""
    return _context(message, _Message) if _MARK in message else ()


def _context(text: bytes | Raw, form: type[_Params | _Message]) -> Context:
    try:
        found: _Params | _Message | UnsetType = msgspec.json.decode(text, type=form)
    except msgspec.DecodeError:
        return ()
    if isinstance(found, _Message):
        found = found.params
    if not isinstance(found, _Params) or found.meta is UNSET:
        return ()
    return usable((key, getattr(found.meta, key)) for key in KEYS)


def usable(pairs: Iterable[tuple[str, object]]) -> Context:
    """Those pairs that may stand in a header; nothing without the parent."""
    context = [(key, value) for key, value in pairs if isinstance(value, str) and _is_value(value)]
    return context if any(key == PARENT for key, _ in context) else ()


def _is_value(text: str) -> bool:
    return len(text) <= _LONGEST and _VALUE.fullmatch(text) is not None


def carrying(request: Request, context: Context) -> Request:
    """The request with this context in its `_meta`, in place of what was there of it."""
    if not context:
        return request
    parts = {} if request.params is UNSET else members(request.params)
    meta = {key: value for key, value in members(parts.get("_meta", b"{}")).items() if key not in KEYS}
    meta.update((key, quote(value)) for key, value in context)
    parts["_meta"] = joined(meta.items())
    return request.with_params(joined(parts.items()))


class Carrier:
    """The layer that puts a context into each request: what `context` gives for its exchange."""

    def __init__(self, context: Callable[[Exchange], Context]) -> None:
        self._context = context

    def up(self, event: Up) -> Iterable[Event]:
        if isinstance(event, Asked):
            return (Asked(event.exchange, self._carrying(event)),)
        return (event,)

    def down(self, event: Down) -> Iterable[Event]:
        return (event,)

    def _carrying(self, event: Asked) -> Request:
        try:
            return carrying(event.request, self._context(event.exchange))
        except ValueError:  # params, or a _meta, that are no object: not for us to judge
            return event.request
