"""A legacy server's question in modern words, and the client's answer in the server's.

One entry of `inputRequests` is one request of the server, and one of `inputResponses` its result
(2026-07-28 "Multi Round-Trip Requests"; 2025-11-25 and before "Elicitation", "Sampling", "Roots").
Decides the words only, not who is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from bridge.core.events import CAPABILITY, Question
from bridge.core.headers import MISSING_CAPABILITY
from bridge.core.message import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Request,
    Response,
    error,
    local_error,
    result,
)
from bridge.core.splice import Members, elements, joined, members, quote, replaced
from bridge.era.capabilities import refusal_code
from bridge.era.revisions import LATEST_LEGACY

ELICIT: Final = "elicitation/create"
SAMPLE: Final = "sampling/createMessage"
ROOTS: Final = "roots/list"
RELATED_TASK: Final = "io.modelcontextprotocol/related-task"

_NOT_MODERN_META: Final = ("progressToken", RELATED_TASK)
_REJECTED: Final = -1
"""What the specification's own example of a declined sampling request is answered with."""


def unaskable(question: Question, asked: Request) -> Response | None:
    """The refusal of a request that no client can be asked; None if there are such."""
    if asked.method not in CAPABILITY:
        return local_error(
            question.id, f"Method not found: {asked.method}", "undeliverable", METHOD_NOT_FOUND
        )
    try:
        if asked.params is not UNSET:
            members(asked.params)
    except ValueError:
        return local_error(question.id, "Invalid params: no object", "undeliverable", INVALID_PARAMS)
    return None


def entry(method: str, params: Raw | UnsetType) -> bytes:
    """What stands in `inputRequests`. Raises ValueError if `params` is no object."""
    said = _modern(method, members(params)) if params is not UNSET else {}
    parts = [("method", quote(method))]
    if said or method != ROOTS:
        parts.append(("params", joined(said.items())))
    return joined(parts)


def _modern(method: str, params: Members) -> Members:
    said = {key: value for key, value in params.items() if key != "task"}
    if method == ELICIT:
        said.pop("elicitationId", None)
    if "_meta" in said:
        meta = {key: value for key, value in _object(said["_meta"]).items() if key not in _NOT_MODERN_META}
        if meta:
            said["_meta"] = joined(meta.items())
        else:
            del said["_meta"]
    return said


def related_task(params: Raw | UnsetType) -> str | None:
    """The task that a message says it belongs to (2025-11-25 "Tasks")."""
    meta = {} if params is UNSET else _object(_object(params).get("_meta", b"{}"))
    try:
        return msgspec.json.decode(_object(meta.get(RELATED_TASK, b"{}")).get("taskId", b""), type=str)
    except msgspec.DecodeError:
        return None


# --- answers ---


def _is_elicited(parts: Members) -> bool:
    return _text(parts.get("action")) in ("accept", "decline", "cancel")


def _is_sampled(parts: Members) -> bool:
    content = bytes(parts.get("content", b""))[:1]
    return (
        bool(_text(parts.get("role"))) and content in (b"{", b"[") and _text(parts.get("model")) is not None
    )


def _is_rooted(parts: Members) -> bool:
    return bytes(parts.get("roots", b"")).startswith(b"[")


_SHAPES: Final[Mapping[str, Callable[[Members], bool]]] = {
    ELICIT: _is_elicited,
    SAMPLE: _is_sampled,
    ROOTS: _is_rooted,
}


def fits(method: str, value: bytes) -> bool:
    """Whether `value` has the shape of an answer to this."""
    try:
        return _SHAPES[method](members(value))
    except ValueError:
        return False


def action(value: bytes) -> str | None:
    """What the user did about an elicitation."""
    return _text(members(value).get("action"))


def answer(question: Question, value: bytes, revision: str, task: str | None = None) -> Response:
    """The server's answer, of a `value` that fits, in the words of its revision.

    `task` is the one that the question said it belongs to.
    """
    if "resultType" in members(value):
        value = replaced(value, ("resultType",), None)
    if revision == LATEST_LEGACY:
        return result(question.id, _related(value, task))
    said = _OLDER[question.method](value)
    if said is None:
        text = f"The answer of the client cannot be said in {revision}"
        return local_error(question.id, text, "inexpressible")
    return result(question.id, said)


def _related(value: bytes, task: str | None) -> bytes:
    """What belongs to a task says so, answers too (2025-11-25 "Associating Task-Related Messages")."""
    if task is None:
        return value
    meta = _object(members(value).get("_meta", b"{}"))
    meta[RELATED_TASK] = b'{"taskId":%b}' % quote(task)
    return replaced(value, ("_meta",), joined(meta.items()))


def _older_elicited(value: bytes) -> bytes:
    """Several choices at once, which nothing before 2025-11-25 has, become one text."""
    content = _object(members(value).get("content", b"{}"))
    lists = {key: value for key, value in content.items() if bytes(value).startswith(b"[")}
    for key, chosen in lists.items():
        texts = [_inside(one) for one in elements(chosen)]
        content[key] = b'"%b"' % b", ".join(texts)
    return replaced(value, ("content",), joined(content.items())) if lists else value


def _older_sampled(value: bytes) -> bytes | None:
    """One block of content, since there is no room for more; of several, the text. None if there is none."""
    content = bytes(members(value)["content"])
    if not content.startswith(b"["):
        return value
    blocks = elements(content)
    if len(blocks) == 1:
        return replaced(value, ("content",), bytes(blocks[0]))
    found = [_object(block) for block in blocks]
    texts = [_inside(one["text"]) for one in found if _text(one.get("type")) == "text" and "text" in one]
    if not texts:
        return None
    return replaced(value, ("content",), b'{"type":"text","text":"%b"}' % rb"\n".join(texts))


_OLDER: Final[Mapping[str, Callable[[bytes], bytes | None]]] = {
    ELICIT: _older_elicited,
    SAMPLE: _older_sampled,
    ROOTS: lambda value: value,
}


# --- what stands for an answer ---


def given_up(question: Question, task: str | None = None) -> Response:
    """For a question that its client will not answer any more; `task` is the one that it belongs to."""
    if question.method == ELICIT:
        return result(question.id, _related(b'{"action":"cancel"}', task))
    code = _REJECTED if question.method == SAMPLE else INTERNAL_ERROR
    return local_error(question.id, "The client did not answer", "no_answer", code)


def refused(question: Question) -> Response:
    """For a question that its client said it cannot answer."""
    text = f"The client cannot be asked {question.method} like this"
    return local_error(question.id, text, "capability", refusal_code(question.method))


def missing(lacking: Iterable[bytes]) -> Response:
    """For a call that failed after its client could not be asked; each is a `requiredCapabilities`."""
    needed: dict[str, Members] = {}
    for one in lacking:
        for name, value in members(one).items():
            needed.setdefault(name, {}).update(_object(value))
    named = joined((name, joined(of.items())) for name, of in needed.items())
    text = f"The server needs what this client did not declare: {', '.join(needed)}"
    return error(None, MISSING_CAPABILITY, text, joined([("requiredCapabilities", named)]))


# --- JSON text ---


def _object(text: bytes | Raw) -> Members:
    """The members of an object; none if it is something else."""
    try:
        return members(text)
    except ValueError:
        return {}


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else msgspec.json.decode(value, type=str)
    except msgspec.DecodeError:
        return None


def _inside(value: bytes | Raw) -> bytes:
    """The inside of a JSON string, or the text of something else, to stand in a string."""
    text = bytes(value)
    return text[1:-1] if text.startswith(b'"') else quote(text.decode())[1:-1]
