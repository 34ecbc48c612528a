"""JSON-RPC messages: the envelope decoded, everything else left as the bytes it came in.

The one place where the limits on what a message may look like are held, for both
directions and every transport: UTF-8, JSON's grammar, nesting, equal keys, and the shape
of a JSON-RPC 2.0 message (specification: "Base Protocol", "Messages"). What a message
means, who may send it and where it goes is decided elsewhere.

A refused message is a value (`Malformed`), since peers send them every day.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from bridge.core import splice

Id = int | str
Headers = tuple[tuple[str, str], ...]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603

MOST_IN_BATCH: Final = 1000
"""Each costs more to refuse than to write: a body of 4 MiB could hold two million."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """`raw` is the whole message on one line; so it is of a notification and a response.

    `headers` go beside it over HTTP: the client's `Mcp-Param-*`, known here or not (XH-11).
    """

    raw: bytes
    id: Id
    method: str
    params: Raw | UnsetType = UNSET
    headers: Headers = ()

    def with_id(self, request_id: Id) -> Request:
        raw = _under(self.raw, self.id, request_id)
        return Request(raw, request_id, self.method, self.params, self.headers)

    def with_params(self, params: bytes) -> Request:
        raw = splice.replaced(self.raw, ("params",), params)
        return Request(raw, self.id, self.method, Raw(params), self.headers)

    def with_headers(self, headers: Headers) -> Request:
        return Request(self.raw, self.id, self.method, self.params, headers)


class Notification(msgspec.Struct, frozen=True, gc=False):
    raw: bytes
    method: str
    params: Raw | UnsetType = UNSET

    def with_params(self, params: bytes) -> Notification:
        return Notification(splice.replaced(self.raw, ("params",), params), self.method, Raw(params))


class Response(msgspec.Struct, frozen=True, gc=False):
    """Exactly one of `result` and `error` is set; `id` is None only on an error."""

    raw: bytes
    id: Id | None
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET

    def with_id(self, response_id: Id) -> Response:
        return Response(_under(self.raw, self.id, response_id), response_id, self.result, self.error)

    def with_result(self, result: bytes) -> Response:
        return Response(splice.replaced(self.raw, ("result",), result), self.id, Raw(result))


class Batch(msgspec.Struct, frozen=True, gc=False):
    """A JSON-RPC batch (2025-03-26), each member read by itself; never empty."""

    members: tuple[Message | Malformed, ...]


class Malformed(msgspec.Struct, frozen=True, gc=False):
    """Why a text is no message: the JSON-RPC error to answer it with.

    `id` is set where the text makes plain whose it is, so that a waiting caller can be told.
    """

    code: int
    message: str
    id: Id | None = None


Message = Request | Notification | Response


class Meta(msgspec.Struct, frozen=True, gc=False):
    """The members of `params._meta` that routing looks at."""

    token: Id | UnsetType = msgspec.field(name="progressToken", default=UNSET)
    subscription: Id | UnsetType = msgspec.field(name="io.modelcontextprotocol/subscriptionId", default=UNSET)


class Params(msgspec.Struct, frozen=True, gc=False):
    """The members of `params` that routing looks at; whatever has another type counts as absent."""

    meta: Meta | UnsetType = msgspec.field(name="_meta", default=UNSET)
    token: Id | UnsetType = msgspec.field(name="progressToken", default=UNSET)
    request_id: Id | UnsetType = msgspec.field(name="requestId", default=UNSET)
    uri: str | UnsetType = UNSET
    level: str | UnsetType = UNSET
    task: Raw | UnsetType = UNSET
    """What asks that the request become a task (2025-11-25)."""


class Task(msgspec.Struct, frozen=True, gc=False):
    """What the members of a task (2025-11-25) say that routing looks at; empty if there is none."""

    id: str = msgspec.field(name="taskId", default="")
    status: str = ""


class _Created(msgspec.Struct, gc=False):
    task: Task = Task()


class _Envelope(msgspec.Struct, gc=False):
    jsonrpc: str = ""
    id: Id | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


_NO_PARAMS: Final = Params()
_NO_META: Final = Meta()
_read_envelope = msgspec.json.Decoder(_Envelope).decode
_read_params = msgspec.json.Decoder(Params).decode
_read_meta = msgspec.json.Decoder(Meta).decode
_read_task = msgspec.json.Decoder(Task).decode
_read_created = msgspec.json.Decoder(_Created).decode
_read_id = msgspec.json.Decoder(Id).decode

_NOT_JSON: Final = Malformed(PARSE_ERROR, "Parse error: not valid JSON")
_NOT_UTF8: Final = Malformed(PARSE_ERROR, "Parse error: not valid UTF-8")

_ID_FIRST: Final = b'{"jsonrpc":"2.0","id":%b,'
_ID_LAST: Final = b',"id":%b}'
_BLANK: Final = b" \t\r\n"
_INTEGER: Final = re.compile(rb"-?\d+")

# Where writers put the id: next to "jsonrpc" at either end, or last when "jsonrpc" is first. Not
# without "jsonrpc", since a log line may well be an object with an "id".
_VERSION: Final = rb'\s*"jsonrpc"\s*:\s*"2\.0"\s*'
_ID: Final = rb'\s*"id"\s*:\s*(-?\d{1,30}|"(?:[^"\\]|\\.){0,200}")\s*'
_OPENS: Final = re.compile(rb"\s*\{" + _VERSION)
_FIRST: Final = re.compile(rb"\s*\{(?:" + _VERSION + b"," + _ID + b"|" + _ID + b"," + _VERSION + b"),")
_LAST: Final = re.compile(rb",(?:" + _VERSION + b"," + _ID + b"|" + _ID + b"," + _VERSION + rb")\}\s*\Z")
_ASKS: Final = re.compile(rb"\s*\{(?:" + _VERSION + rb",)?(?:" + _ID + rb',)?\s*"method"\s*:')
_LAST_ALONE: Final = re.compile(b"," + _ID + rb"\}\s*\Z")


def read(text: bytes, *, depth: int) -> Message | Batch | Malformed:
    """Read one JSON text: a stdio line or an HTTP body. `depth` is the most it may nest."""
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            return _NOT_UTF8
    if splice.too_deep(text, depth):
        return _invalid(f"nested more than {depth} levels deep", salvaged_id(text))
    if b"\n" in text or b"\r" in text:
        line = _one_line(text)
        if line is None:
            return _NOT_JSON
        text = line
    try:
        return _message(text, _read_envelope(text))
    except msgspec.DecodeError:
        return _read_unusual(text)


def _one_line(text: bytes) -> bytes | None:
    """`text` without its line breaks; None if it has some within and is no JSON."""
    text = text.strip(_BLANK)
    if b"\n" not in text and b"\r" not in text:
        return text
    return splice.compact(text) if splice.is_json(text) else None


def _read_unusual(text: bytes) -> Message | Batch | Malformed:
    """What is no plain message at first sight: a batch, a wrong shape, a lone surrogate, or no JSON."""
    if text.lstrip(b" \t")[:1] == b"[":
        return _batch(text)
    if not splice.is_json(text):
        return _NOT_JSON
    try:
        parts = splice.members(text)
    except ValueError:
        return _invalid("not a JSON-RPC object")
    try:
        envelope = _envelope(parts)
    except msgspec.ValidationError as fault:
        return _invalid(str(fault), _claimed_id(parts))
    except msgspec.DecodeError:
        return _invalid('"id" or "method" holds half a surrogate pair')
    return _message(text, envelope)


def _claimed_id(parts: splice.Members) -> Id | UnsetType:
    """The id of an object that says it is JSON-RPC, whatever else is wrong with it."""
    return _id(parts.get("id")) if bytes(parts.get("jsonrpc", b"")) == b'"2.0"' else UNSET


def _envelope(parts: splice.Members) -> _Envelope:
    def raw(key: str) -> Raw | UnsetType:
        return Raw(parts[key]) if key in parts else UNSET

    named = {key: parts[key] for key in ("jsonrpc", "id", "method") if key in parts}
    envelope = _read_envelope(splice.joined(named.items()))
    envelope.params, envelope.result, envelope.error = raw("params"), raw("result"), raw("error")
    return envelope


def _batch(text: bytes) -> Batch | Malformed:
    try:
        entries = splice.elements(text)
    except ValueError:
        return _NOT_JSON
    if not entries:
        return _invalid("empty batch")
    if len(entries) > MOST_IN_BATCH:
        return _invalid(f"more than {MOST_IN_BATCH} messages in a batch")
    return Batch(tuple(_member(bytes(entry)) for entry in entries))


def _member(text: bytes) -> Message | Malformed:
    try:
        return _message(text, _read_envelope(text))
    except msgspec.DecodeError:
        found = _read_unusual(text)
    return _invalid("nested batch") if isinstance(found, Batch) else found


def _message(text: bytes, envelope: _Envelope) -> Message | Malformed:
    if envelope.jsonrpc != "2.0":
        # What looks like an answer is somebody's; anything else may be a log line with an "id".
        answers = envelope.result is not UNSET or envelope.error is not UNSET
        return _invalid('"jsonrpc" must be "2.0"', envelope.id if answers else None)
    if _has_room(text, envelope) and splice.has_equal_keys(text):
        return _invalid("a member stands twice", envelope.id)
    if envelope.method is UNSET:
        return _response(text, envelope)
    if envelope.result is not UNSET or envelope.error is not UNSET:
        return _invalid("both a method and a result or error", envelope.id)
    if envelope.params is not UNSET and memoryview(envelope.params)[0] not in b"{[":
        return _unstructured(text, envelope, bytes(envelope.params))
    if envelope.id is UNSET:
        return Notification(text, envelope.method, envelope.params)
    if envelope.id is None:
        return _invalid('"id" must be a string or an integer')
    return Request(text, envelope.id, envelope.method, envelope.params)


def _unstructured(text: bytes, envelope: _Envelope, params: bytes) -> Message | Malformed:
    """Params that are neither object nor array: null, which JSON-RPC does not know, counts as none."""
    if params != b"null":
        return _invalid('"params" must be an object', envelope.id)
    envelope.params = UNSET
    return _message(splice.replaced(text, ("params",), None), envelope)


def _response(text: bytes, envelope: _Envelope) -> Response | Malformed:
    request_id = None if envelope.id is UNSET else envelope.id
    if (envelope.result is UNSET) == (envelope.error is UNSET):
        return _invalid('neither "method" nor exactly one of "result" and "error"', request_id)
    if envelope.error is UNSET:
        if request_id is None:
            return _invalid("a result without an id")
    elif not _is_error(envelope.error):
        return _invalid('"error" needs an integer code and a message', request_id)
    return Response(text, request_id, envelope.result, envelope.error)


def _is_error(error: Raw) -> bool:
    try:
        parts = splice.members(error)
    except ValueError:
        return False
    is_text = bytes(parts.get("message", b"")).startswith(b'"')
    return is_text and _INTEGER.fullmatch(parts.get("code", b"")) is not None


def _invalid(why: str, message_id: Id | UnsetType | None = None) -> Malformed:
    return Malformed(INVALID_REQUEST, f"Invalid Request: {why}", None if message_id is UNSET else message_id)


def _has_room(text: bytes, envelope: _Envelope) -> bool:
    """Whether a second copy of a member could hide in `text`, going by what the known ones leave of it.

    The shortest copy is `,"id":1`: 7 bytes, and no other has less than 10. A writer that puts
    a blank after every comma and colon leaves 7 over in a request.
    """
    length = 17  # {"jsonrpc":"2.0"}
    if envelope.id is not UNSET:
        length += 6 + len(splice.quote(envelope.id))  # ,"id":
    if envelope.method is not UNSET:
        length += 12 + len(envelope.method)  # ,"method":"…"
    if envelope.params is not UNSET:
        length += 10 + len(envelope.params)  # ,"params":
    if envelope.result is not UNSET:
        length += 10 + len(envelope.result)  # ,"result":
    if envelope.error is not UNSET:
        length += 9 + len(envelope.error)  # ,"error":
    left = len(text) - length
    return left >= 10 or (left >= 7 and text.count(b'"id"') != 1)


def _under(raw: bytes, old: Id | None, new: Id) -> bytes:
    """`raw` under another id: at either end, where nearly every writer has it, without a look at the rest."""
    view, first, last = memoryview(raw), _ID_FIRST % splice.quote(old), _ID_LAST % splice.quote(old)
    if raw.startswith(first):
        return b"".join((_ID_FIRST % splice.quote(new), view[len(first) :]))
    if raw.endswith(last):
        return b"".join((view[: -len(last)], _ID_LAST % splice.quote(new)))
    return splice.replaced(raw, ("id",), splice.quote(new))


def params_of(message: Request | Notification) -> Params:
    """What routing needs of `params`."""
    if message.params is UNSET:
        return _NO_PARAMS
    try:
        return _read_params(message.params)
    except msgspec.DecodeError:
        return _lenient_params(message.params)


def _lenient_params(params: Raw) -> Params:
    """Field by field, for params of which one has an unexpected type or that msgspec will not read."""
    try:
        parts = splice.members(params)
    except ValueError:
        return _NO_PARAMS
    return Params(
        meta=_lenient_meta(parts.get("_meta")),
        token=_id(parts.get("progressToken")),
        request_id=_id(parts.get("requestId")),
        uri=_text(parts.get("uri")),
        level=_text(parts.get("level")),
        task=Raw(parts["task"]) if "task" in parts else UNSET,
    )


def _lenient_meta(meta: bytes | None) -> Meta:
    if meta is None:
        return _NO_META
    try:
        return _read_meta(meta)
    except msgspec.DecodeError:
        pass
    try:
        parts = splice.members(meta)
    except ValueError:
        return _NO_META
    return Meta(_id(parts.get("progressToken")), _id(parts.get("io.modelcontextprotocol/subscriptionId")))


def _id(text: bytes | None) -> Id | UnsetType:
    try:
        return UNSET if text is None else _read_id(text)
    except msgspec.DecodeError:
        return UNSET


def _text(text: bytes | None) -> str | UnsetType:
    found = _id(text)
    return found if isinstance(found, str) else UNSET


def task_of(payload: Raw | UnsetType, *, created: bool = False) -> Task:
    """The task that `payload` is, or with `created` the one that a result tells was made."""
    try:
        if payload is UNSET:
            return Task()
        return _read_created(payload).task if created else _read_task(payload)
    except msgspec.DecodeError:
        return Task()


def asks(head: bytes) -> bool:
    """Whether a text that cannot be read begins as a request or notification does."""
    return _ASKS.match(head) is not None


def salvaged_id(head: bytes, tail: bytes | None = None) -> Id | None:
    """The id of a message that cannot be read, if it stands where most writers put it.

    `head` is the text, or with `tail` its beginning and its end.
    """
    head, tail = head[:1024], (head if tail is None else tail)[-1024:]
    found = _FIRST.match(head)
    if found is None and head.lstrip(_BLANK).startswith(b"{"):
        found = _LAST.search(tail) or (_LAST_ALONE.search(tail) if _OPENS.match(head) else None)
    if found is None or found.lastindex is None:
        return None
    value = _id(found[found.lastindex])
    return None if value is UNSET else value


def request(request_id: Id, method: str, params: bytes | None = None) -> Request:
    raw = b'{"jsonrpc":"2.0","id":%b,"method":%b%b}' % (
        splice.quote(request_id),
        splice.quote(method),
        b"" if params is None else b',"params":' + params,
    )
    return Request(raw, request_id, method, UNSET if params is None else Raw(params))


def notification(method: str, params: bytes | None = None) -> Notification:
    tail = b"" if params is None else b',"params":' + params
    raw = b'{"jsonrpc":"2.0","method":%b%b}' % (splice.quote(method), tail)
    return Notification(raw, method, UNSET if params is None else Raw(params))


def result(request_id: Id, value: bytes) -> Response:
    raw = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (splice.quote(request_id), value)
    return Response(raw, request_id, result=Raw(value))


def error(request_id: Id | None, code: int, text: str, data: bytes | None = None) -> Response:
    """An error response; `data` is JSON text."""
    tail = b"" if data is None else b',"data":' + data
    value = b'{"code":%d,"message":%b%b}' % (code, splice.quote(text), tail)
    raw = b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (splice.quote(request_id), value)
    return Response(raw, request_id, error=Raw(value))


def local_error(request_id: Id | None, text: str, reason: str, code: int = INTERNAL_ERROR) -> Response:
    """An error of the bridge's own making, marked so that nobody takes it for the server's (ER-16)."""
    return error(request_id, code, text, b'{"origin":"bridge","reason":%b}' % splice.quote(reason))


_SEPARATORS: Final = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def line_safe(text: bytes) -> bytes:
    """`text` with U+2028, U+2029 and U+0085 escaped: many readers of lines take them for line ends.

    They can only stand inside strings, where the escape has the same value.
    """
    if text.isascii():
        return text
    for raw, escaped in _SEPARATORS:
        if raw in text:
            text = text.replace(raw, escaped)
    return text
