"""The layer that holds a server's policy: what is hidden is not shown, and what is denied does not happen.

It stands at the client's end of every pipeline, keeps nothing, and so is one for all clients of a
server, of either era. It decides on what a message says once it is decoded; what two readers could
read in two ways, because a member stands twice or in other letters, it takes for denied. Which names
are denied is for `core.rules`. Answers "Error Handling" of tools, prompts, resources and completion,
of 2024-11-05 to 2026-07-28: to a client, hidden is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from bridge.core.correlate import CANCELLED, LISTEN, PROGRESS
from bridge.core.events import (
    CAPABILITY,
    Answered,
    Asked,
    Down,
    Event,
    Exchange,
    Noted,
    Questioned,
    Replied,
    Told,
    Up,
    Withdrawn,
    refusal,
)
from bridge.core.headers import claims
from bridge.core.message import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Notification,
    Request,
    Response,
    error,
    local_error,
)
from bridge.core.rules import Permit, Policy
from bridge.core.splice import Members, elements, has_equal_keys, members, quote, replaced
from bridge.core.tape import BRIDGE
from bridge.era.envelope import CAPABILITIES

ALWAYS: Final = frozenset(
    {
        "initialize",
        "notifications/initialized",
        "ping",
        "server/discover",
        CANCELLED,
        PROGRESS,
        "notifications/subscriptions/acknowledged",
    }
)
"""What no rule for methods can deny: without these nothing works."""
NOT_FOUND: Final = -32002
"""No such resource, before 2026-07-28."""

_COMPLETE: Final = "completion/complete"
_UPDATED: Final = "notifications/resources/updated"
_TASKS: Final = "notifications/tasks"
_QUESTIONS: Final = "inputRequests"
_URIS: Final = "resourceSubscriptions"
_REASON: Final = "policy"
_SHOWN: Final = 200
"""Characters of a name that are repeated in an error."""
_ENVELOPE: Final = ("jsonrpc", "id", "method", "params", "result", "error")

_read_text = msgspec.json.Decoder(str).decode


class _Kind(NamedTuple):
    """What may be hidden: the member that names one, and what is said of an unknown one."""

    permit: Permit
    key: str
    unknown: str


class _List(NamedTuple):
    """Where a result lists them, and the member of an element that names it."""

    permit: Permit
    member: str
    key: str


class Gatekeeper:
    """A `core.layer.Layer`."""

    def __init__(self, policy: Policy) -> None:
        self._methods = Permit(policy.methods)
        tools, prompts = Permit(policy.tools), Permit(policy.prompts)
        resources = Permit(policy.resources, uris=True)
        self._prompt = _Kind(prompts, "name", "Unknown prompt")
        self._resource = _Kind(resources, "uri", "Resource not found")
        self._kinds = {
            "tools/call": _Kind(tools, "name", "Unknown tool"),
            "prompts/get": self._prompt,
            "resources/read": self._resource,
            "resources/subscribe": self._resource,
            "resources/unsubscribe": self._resource,
        }
        self._lists = {
            "tools/list": _List(tools, "tools", "name"),
            "prompts/list": _List(prompts, "prompts", "name"),
            "resources/list": _List(resources, "resources", "uri"),
            "resources/templates/list": _List(resources, "resourceTemplates", "uriTemplate"),
        }
        self._undeclared = tuple(name for method, name in CAPABILITY.items() if not self._lets(method))
        """Capabilities of clients that the server gets no use of."""

    def _lets(self, method: str) -> bool:
        return method in ALWAYS or self._methods.lets(method)

    # Client to server

    def up(self, event: Up) -> Iterable[Event]:
        match event:
            case Asked(exchange, asked):
                return (self._asked(exchange, asked),)
            case Told(_, note):
                return (event,) if _is_plain(note.raw) and self._lets(note.method) else ()
            case Replied(question, response) if not _is_plain(response.raw):
                return (refusal(question, INVALID_REQUEST, "The client's answer can be read in two ways"),)
            case Withdrawn(exchange, Notification() as note) if not _is_plain(note.raw):
                return (Withdrawn(exchange),)
            case _:
                return (event,)

    def _asked(self, exchange: Exchange, asked: Request) -> Asked | Answered:
        if not _is_plain(asked.raw):
            text = "Invalid Request: a member stands twice, in other letters"
            return Answered(exchange, local_error(asked.id, text, _REASON, INVALID_REQUEST))
        # What the bridge asks for itself, such as all tools for their headers, no client has asked.
        if not self._lets(asked.method) and exchange.party.name != BRIDGE:
            text = f"Method not found: {asked.method[:_SHOWN]}"
            return Answered(exchange, local_error(asked.id, text, _REASON, METHOD_NOT_FOUND))
        try:
            found = self._judged(asked)
        except ValueError as fault:
            found = local_error(asked.id, f"Invalid params: {fault}", _REASON, INVALID_PARAMS)
        return Answered(exchange, found) if isinstance(found, Response) else Asked(exchange, found)

    def _judged(self, asked: Request) -> Request | Response:
        """What becomes of a request for what it names. Raises ValueError if that is not plain to see."""
        kind = self._kinds.get(asked.method)
        if kind is not None and kind.permit.restricts:
            refused = self._refused(asked, kind, _only(asked.params, kind.key))
            if refused is not None:
                return refused
        elif asked.method == _COMPLETE:
            return self._completed(asked)
        elif asked.method == LISTEN and self._resource.permit.restricts:
            asked = self._filtered(asked)
        return self._modest(asked) if self._undeclared else asked

    def _refused(self, asked: Request, kind: _Kind, names: Members) -> Response | None:
        """The answer to a request for something hidden, that of a server that does not have it."""
        name = _text(names.get(kind.key), kind.key)
        if kind.permit.lets(name):
            return None
        if kind is not self._resource:
            return local_error(asked.id, f"{kind.unknown}: {name[:_SHOWN]}", _REASON, INVALID_PARAMS)
        older = asked.method != _COMPLETE and not claims(asked.method, asked.params).enveloped
        data = b'{"origin":"bridge","reason":%b,"uri":%b}' % (quote(_REASON), quote(name))
        return error(asked.id, NOT_FOUND if older else INVALID_PARAMS, kind.unknown, data)

    def _completed(self, asked: Request) -> Request | Response:
        """A completion names a prompt or a resource; either is looked at, whatever `type` says."""
        kinds = [kind for kind in (self._prompt, self._resource) if kind.permit.restricts]
        if not kinds:
            return asked
        ref = _only(_only(asked.params, "ref").get("ref", b"{}"), "type", "name", "uri")
        if "name" not in ref and "uri" not in ref:
            raise ValueError("ref must have a name or a uri")
        refusals = [self._refused(asked, kind, ref) for kind in kinds if kind.key in ref]
        return next((one for one in refusals if one is not None), asked)

    def _filtered(self, asked: Request) -> Request:
        """A subscription without what is denied: the server acknowledges what it granted, so not this."""
        filters = _only(asked.params, "notifications").get("notifications", b"{}")
        wanted = _only(filters, _URIS).get(_URIS)
        if wanted is None:
            return asked
        uris = elements(wanted)
        kept = [uri for uri in uris if self._resource.permit.lets(_text(uri, _URIS))]
        if len(kept) == len(uris):
            return asked
        return _with(asked, ("notifications", _URIS), _array(kept))

    def _modest(self, asked: Request) -> Request:
        """A request that does not declare what the server may not ask, so that it does without from the
        start, and no call waits for a question that nobody was shown."""
        path = ("capabilities",) if asked.method == "initialize" else ("_meta", CAPABILITIES)
        declared = _reached(asked.params, path)
        for name in self._undeclared:
            if name in declared:
                asked = _with(asked, (*path, name), None)
        return asked

    # Server to client

    def down(self, event: Down) -> Iterable[Event]:
        match event:
            case Answered(exchange, response):
                return (Answered(exchange, self._answer(exchange, response)),)
            case Noted(_, _, note):
                return (event,) if self._may_hear(note) else ()
            case Questioned(question, asked) if not (_is_plain(asked.raw) and self._lets(asked.method)):
                text = f"Method not found: the client cannot be asked {asked.method[:_SHOWN]}"
                return (refusal(question, METHOD_NOT_FOUND, text),)
            case _:
                return (event,)

    def _answer(self, exchange: Exchange, response: Response) -> Response:
        try:
            if not _is_plain(response.raw):
                raise ValueError("a member stands twice, in other letters")
            denied = None if response.result is UNSET else self._question_in(response.result)
            if denied is None:
                return self._cut(exchange.method, response)
            text = f"The server asks for {denied[:_SHOWN]}, which the policy of the bridge does not allow"
        except ValueError as fault:
            text = f"The policy of the bridge cannot be held against the server's answer: {fault}"
        return local_error(exchange.id, text, _REASON)

    def _question_in(self, payload: Raw) -> str | None:
        """The first denied method among the questions of a result, or a task, that needs input.

        Raises ValueError if they cannot be told.
        """
        if not self._methods.restricts or not _may_hold(payload, _QUESTIONS):
            return None
        asked = _only(payload, _QUESTIONS)[_QUESTIONS]
        if bytes(asked) == b"null":
            return None
        methods = [_text(_only(entry, "method").get("method"), "method") for entry in _only(asked).values()]
        return next((method for method in methods if not self._lets(method)), None)

    def _cut(self, method: str, response: Response) -> Response:
        """The response without the elements that are hidden. Raises ValueError if it is no such list."""
        found = self._lists.get(method)
        if found is None or not found.permit.restricts or response.result is UNSET:
            return response
        listed = _only(response.result, found.member).get(found.member, b"null")
        shown = [] if bytes(listed) == b"null" else elements(listed)
        kept = [one for one in shown if _may_show(one, found)]
        if len(kept) == len(shown):
            return response
        return response.with_result(replaced(response.result, (found.member,), _array(kept)))

    def _may_hear(self, note: Notification) -> bool:
        if not _is_plain(note.raw) or not self._lets(note.method):
            return False
        try:
            if note.method == _UPDATED and self._resource.permit.restricts:
                return self._resource.permit.lets(_text(_only(note.params, "uri").get("uri"), "uri"))
            if note.method.startswith(_TASKS) and note.params is not UNSET:
                return self._question_in(note.params) is None
        except ValueError:
            return False
        return True


def _is_plain(raw: bytes) -> bool:
    """Whether no member of a message is one of JSON-RPC's to a reader that takes any letters for it.

    Readers in Go and .NET do: to them `Method` after `method` is the method.
    """
    return all(key in _ENVELOPE or key.casefold() not in _ENVELOPE for key in members(raw))


def _may_hold(text: Raw, key: str) -> bool:
    folded = key.casefold()
    return any(one.casefold() == folded for one in members(text))


def _only(text: bytes | Raw | UnsetType, *keys: str) -> Members:
    """The members of an object which all readers agree on, as far as these keys go.

    Raises ValueError if it is no object, or a key stands there twice or in other letters.
    """
    if text is UNSET:
        return {}
    parts = members(text)
    folded = {key.casefold(): key for key in keys}
    for part in parts:
        if folded.get(part.casefold(), part) != part:
            raise ValueError(f"{folded[part.casefold()]} must be written so")
    if has_equal_keys(text):
        raise ValueError("a member stands twice")
    return parts


def _text(value: bytes | Raw | None, key: str) -> str:
    """Raises ValueError if `value` is no string, or holds half a surrogate pair."""
    try:
        if value is not None:
            return _read_text(value)
    except msgspec.DecodeError:
        pass
    raise ValueError(f"{key} must be a string")


def _may_show(element: Raw, listed: _List) -> bool:
    """Whether an element of a list has a name, and one that may be known."""
    try:
        return listed.permit.lets(_text(_only(element, listed.key).get(listed.key), listed.key))
    except ValueError:
        return False


def _reached(text: bytes | Raw | UnsetType, path: Iterable[str]) -> Members:
    """The members of the object at `path`; none if there is no such object."""
    parts: Members = {}
    try:
        parts = {} if text is UNSET else members(text)
        for key in path:
            parts = members(parts.get(key, b"{}"))
    except ValueError:
        return {}
    return parts


def _with(asked: Request, path: tuple[str, ...], value: bytes | None) -> Request:
    assert asked.params is not UNSET
    return asked.with_params(replaced(asked.params, path, value))


def _array(values: Iterable[Raw]) -> bytes:
    return b"[%b]" % b",".join(bytes(value) for value in values)
