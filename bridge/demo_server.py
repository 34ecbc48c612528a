"""A small MCP server on stdio, for trying the bridge, for its tests and for the documentation.

It decides the era of each message by itself (2026-07-28, basic/versioning, "Backward Compatibility"):
a request whose `_meta` carries a protocol version is served statelessly, an `initialize` opens a
legacy session for the process; both may happen on one pipe, in any order. It answers by the
revisions 2024-11-05 to 2025-11-25 and by 2026-07-28.

It refuses to know the bridge and shares no code with it, so that a mistake in the one cannot hide
the same mistake in the other. It imports light modules only, since tests start it by the hundred.

The reading thread serves every request at once, except for the tools that wait: each such call
gets a thread. One lock guards stdout and all state, so a cancelled request is silent from then on.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import UnionType
from typing import Any, NamedTuple, TypeGuard, TypeVar

from bridge import __version__

Object = dict[str, Any]
RequestId = str | int
T = TypeVar("T")

MODERN = "2026-07-28"
LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
VERSIONS = [MODERN, *reversed(LEGACY)]
BATCHING = "2025-03-26"
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

VERSION = "io.modelcontextprotocol/protocolVersion"
CLIENT_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND = -32700, -32600, -32601
INVALID_PARAMS, INTERNAL_ERROR, RESOURCE_NOT_FOUND = -32602, -32603, -32002
CAPABILITY_MISSING, VERSION_UNSUPPORTED = -32021, -32022

IDENTITY = {"name": "mcp-bridge-demo", "title": "mcp-bridge demo server", "version": __version__}
INSTRUCTIONS = "A server for trying things. Start with the tool `echo`; `info` tells how you are seen."
CAPABILITIES: Object = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True},
    "prompts": {},
    "completions": {},
    "logging": {},
}
# Unlike each other on purpose, so that a test sees which one arrived (2026-07-28, utilities/caching).
CACHING: dict[str, Object] = {
    "server/discover": {"ttlMs": 3_600_000, "cacheScope": "public"},
    "tools/list": {"ttlMs": 60_000, "cacheScope": "private"},
    "prompts/list": {"ttlMs": 300_000, "cacheScope": "public"},
    "resources/list": {"ttlMs": 200_000, "cacheScope": "public"},
    "resources/templates/list": {"ttlMs": 100_000, "cacheScope": "public"},
    "resources/read": {"ttlMs": 0, "cacheScope": "private"},
}
PAGE = 8
BIG = 32 * 1024 * 1024
HUMAN_PATIENCE = 600.0
STATE_LIFE = 600
STATE_KEY = os.urandom(32)

ABOUT, COUNTER, GREETING = "demo://about", "demo://counter", "demo://greeting/"
RESOURCES: list[Object] = [
    {"uri": ABOUT, "name": "about", "description": "Always the same", "mimeType": "text/plain"},
    {"uri": COUNTER, "name": "counter", "description": "Counts `touch`", "mimeType": "text/plain"},
]
TEMPLATES: list[Object] = [
    {"uriTemplate": GREETING + "{name}", "name": "greeting", "mimeType": "text/plain"},
]
PROMPTS: list[Object] = [
    {
        "name": "greet",
        "description": "Greets somebody",
        "arguments": [{"name": "name", "description": "Can be completed", "required": True}],
    },
]
COMPLETABLE = (("ref/prompt", "greet", "name"), ("ref/resource", GREETING + "{name}", "name"))
NAMES = ("Ada", "Alan", "Barbara", "Grace", "Jürgen", "Radia", "Vint")


class RequestError(Exception):
    """The request ends in a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.error: Object = {"code": code, "message": message} | ({} if data is None else {"data": data})


class ToolError(Exception):
    """The tool failed: an `isError` result, which a model can read."""


class CancelledError(Exception):
    """The client withdrew the request: nothing more is written for it."""


# --- JSON ---


class Raw:
    """JSON text that goes out as it came in: number text, escapes and key order survive."""

    def __init__(self, text: str) -> None:
        self.text = text


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    """`1E400` is JSON but no float; whoever needs more than the nearest float takes the text."""
    return max(-sys.float_info.max, min(float(text), sys.float_info.max))


DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
# Stands for a Raw until the text around it is encoded; random, so that no client can send it.
MARK = os.urandom(16).hex()


def encode(message: object) -> bytes:
    """One whole line. Text is UTF-8; a lone surrogate becomes the escape it must have come from."""
    raws: list[Raw] = []

    def hold(raw: Raw) -> str:
        raws.append(raw)
        return MARK

    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"), default=hold)
    for raw in raws:
        text = text.replace(f'"{MARK}"', raw.text, 1)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def parts(text: str) -> Iterator[tuple[str, str]]:
    """The members of an object, or the elements of an array, as they are written in valid JSON."""
    at = _next_token(text, 1)
    while text[at] not in "]}":
        name = ""
        if text[0] == "{":
            name, at = DECODER.raw_decode(text, at)
            at = _next_token(text, at)
        end = DECODER.raw_decode(text, at)[1]
        yield name, text[at:end]
        at = _next_token(text, end)


def _next_token(text: str, at: int) -> int:
    while text[at] in " \t\r\n,:":
        at += 1
    return at


def is_id(value: object) -> TypeGuard[RequestId]:
    return isinstance(value, str | int) and not isinstance(value, bool)


def member(of: Object, name: str, kind: type[T], default: T | None = None) -> T:
    """Raises RequestError if the member is of another type, or missing without a default."""
    value = of.get(name)
    value = default if value is None else value
    if not isinstance(value, kind):
        raise RequestError(INVALID_PARAMS, f"{name} is missing or of the wrong type")
    return value


def text_result(text: str, **more: object) -> Object:
    return {"content": [{"type": "text", "text": text}], **more}


# --- One request, and who sent it ---


class Peer:
    """What is known of the client: for the life of a legacy session, or for one modern request."""

    def __init__(self, version: str, client: Object, capabilities: Object, level: str | None) -> None:
        self.version = version
        self.modern = version == MODERN
        self.client = client
        self.capabilities = capabilities
        self.level = level
        self.subscribed: set[str] = set()


class Call:
    """One request, from its arrival to its one answer.

    Once it is cancelled nothing is written for it: `tell`, `pause` and `ask` raise CancelledError.
    """

    def __init__(self, demo: Demo, text: str, message: Object) -> None:
        self.demo = demo
        self.text = text
        self.message = message
        self.id: RequestId = message["id"]
        self.method: str = message["method"]
        self.params: Object = {}
        self.meta: Object = {}
        self.peer = NOBODY
        self.filter: Object | None = None  # of a listen stream
        self.wake = threading.Event()  # cancelled, or replied to
        self.cancelled = False
        self.reply: Object | None = None

    def run(self, work: Handler) -> None:
        """Works and answers. None from the work means that the answer comes later, if at all."""
        try:
            result = work(self)
            if result is not None:
                self.finish({"result": self.dressed(result)})
        except CancelledError:
            return
        except RequestError as refused:
            self.finish({"error": refused.error})
        except Exception as fault:
            self.finish({"error": {"code": INTERNAL_ERROR, "message": f"{type(fault).__name__}: {fault}"}})

    def later(self, work: Handler) -> None:
        threading.Thread(target=self.run, args=(work,), daemon=True).start()

    def finish(self, outcome: Object) -> None:
        with self.demo.lock:
            if not self.cancelled:
                self.demo.running.pop(self.id, None)
                self.demo.write({"id": self.id, **outcome})

    def dressed(self, result: Object) -> Object:
        """The result with what each one has in 2026-07-28 (basic/index; utilities/caching)."""
        if not self.peer.modern:
            return result
        complete = {"resultType": "complete", **CACHING.get(self.method, {})}
        return {**complete, **result, "_meta": {SERVER_INFO: IDENTITY, **result.get("_meta", {})}}

    def tell(self, method: str, params: Object) -> None:
        with self.demo.lock:
            if self.cancelled:
                raise CancelledError
            self.demo.write({"method": method, "params": params})

    def log(self, level: str, data: object) -> None:
        wanted = self.peer.level
        if wanted is not None and LEVELS.index(level) >= LEVELS.index(wanted):
            self.tell("notifications/message", {"level": level, "logger": "demo", "data": data})

    def progress(self, done: int, total: int) -> None:
        token = self.meta.get("progressToken")
        if is_id(token):
            self.tell("notifications/progress", {"progressToken": token, "progress": done, "total": total})

    def pause(self, seconds: float) -> None:
        if self.wake.wait(seconds):
            raise CancelledError

    def ask(self, request: Object) -> Object:
        """A request to a legacy client, and its result. Raises ToolError if there is none."""
        demo = self.demo
        with demo.lock:
            if self.cancelled:
                raise CancelledError
            # From 0, so that our ids meet those of the client: each direction has its own.
            question, demo.questions = demo.questions, demo.questions + 1
            demo.asked[question] = self
            demo.write({"id": question, **request})
        self.wake.wait(HUMAN_PATIENCE)
        with demo.lock:
            if demo.asked.pop(question, None):
                demo.write({"method": "notifications/cancelled", "params": {"requestId": question}})
            if self.cancelled:
                raise CancelledError
        reply = self.reply or {"error": "no answer in time"}
        if not isinstance(reply.get("result"), dict):
            raise ToolError(f"No answer to {request['method']}: {reply.get('error')}")
        return dict(reply["result"])


Handler = Callable[[Call], Object | None]
NOBODY = Peer("", {}, {}, None)


# --- The process ---


class Demo:
    """What the requests of one process share, and the way of a line to its call."""

    def __init__(self, out: int) -> None:
        self.out = out
        self.lock = threading.RLock()
        self.session: Peer | None = None
        self.running: dict[RequestId, Call] = {}
        self.asked: dict[RequestId, Call] = {}
        self.questions = 0
        self.counter = 0
        self.tools = dict(TOOLS)

    def serve(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            if line.strip():
                self.receive(line)
        self.close()

    def write(self, message: Object) -> None:
        rest = memoryview(encode({"jsonrpc": "2.0", **message}))
        with self.lock:
            try:
                while rest:
                    rest = rest[os.write(self.out, rest) :]
            except BrokenPipeError:
                return  # nobody reads any more; the end of stdin is what ends us

    def refuse(self, request_id: RequestId | None, code: int, message: str) -> None:
        self.write({"id": request_id, "error": {"code": code, "message": message}})

    def receive(self, line: bytes) -> None:
        try:
            text = line.decode().strip(" \t\r\n")
            message = DECODER.decode(text)
        except (ValueError, RecursionError):
            self.refuse(None, PARSE_ERROR, "Parse error")
            return
        if not isinstance(message, list):
            self.take(text, message)
        elif message and self.session and self.session.version == BATCHING:
            # Answered one by one, as 2025-03-26 allows (basic/transports, "Sending Messages").
            for (_, part), entry in zip(parts(text), message, strict=True):
                self.take(part, entry, batched=True)
        else:
            self.refuse(None, INVALID_REQUEST, "Batches exist in 2025-03-26 only, and are not empty")

    def take(self, text: str, message: Any, *, batched: bool = False) -> None:
        match message:
            case {"method": "initialize", "id": request_id} if batched and is_id(request_id):
                self.refuse(request_id, INVALID_REQUEST, "initialize stands alone")
            case {"jsonrpc": "2.0", "method": str(), "id": request_id} if is_id(request_id):
                self.begin(Call(self, text, message))
            case {"jsonrpc": "2.0", "method": str(method)} if "id" not in message:
                if method == "notifications/cancelled":
                    self.cancel(message.get("params"))
            case {"jsonrpc": "2.0", "result": _} | {"jsonrpc": "2.0", "error": _}:
                self.replied(message)
            case {"id": request_id} if is_id(request_id):
                self.refuse(request_id, INVALID_REQUEST, "Invalid request")
            case _:
                self.refuse(None, INVALID_REQUEST, "Invalid request")

    def begin(self, call: Call) -> None:
        with self.lock:
            taken = call.id in self.running
            self.running.setdefault(call.id, call)
        if taken:
            self.refuse(call.id, INVALID_REQUEST, "A request with this id is still running")
        else:
            call.run(dispatch)

    def replied(self, message: Object) -> None:
        question = message.get("id")
        with self.lock:
            call = self.asked.pop(question, None) if is_id(question) else None
            if call:
                call.reply = message
                call.wake.set()

    def cancel(self, params: object) -> None:
        request_id = params.get("requestId") if isinstance(params, dict) else None
        with self.lock:
            call = self.running.pop(request_id, None) if is_id(request_id) else None
            if call:
                call.cancelled = True
                call.wake.set()

    def changed(self, method: str, **params: str) -> None:
        """Tells the legacy session and each listen stream that wants to know."""
        uri = params.get("uri")
        with self.lock:
            if self.session and (uri is None or uri in self.session.subscribed):
                self.write({"method": method, "params": params})
            for call in self.running.values():
                if call.filter and wants(call.filter, uri):
                    call.tell(method, {"_meta": {SUBSCRIPTION: call.id}, **params})

    def close(self) -> None:
        """Ends the listen streams in order, and keeps the lock, so that no line is begun after."""
        # Not to be had: a long line is on its way to a client that does not read.
        if not self.lock.acquire(timeout=1):
            return
        for call in list(self.running.values()):
            if call.filter is not None:
                call.finish({"result": call.dressed({"_meta": {SUBSCRIPTION: call.id}})})
                self.write({"method": "notifications/cancelled", "params": {"requestId": call.id}})

    def read(self, uri: str) -> str | None:
        if uri.startswith(GREETING):
            return f"Hello, {uri.removeprefix(GREETING)}!"
        return {ABOUT: INSTRUCTIONS, COUNTER: str(self.counter)}.get(uri)


def wants(honoured: Object, uri: str | None) -> bool:
    return "toolsListChanged" in honoured if uri is None else uri in honoured.get("resourceSubscriptions", ())


# --- From a request to its handler ---


def dispatch(call: Call) -> Object | None:
    """Decides the era, then looks for the method among those that the era has."""
    call.params = member(call.message, "params", dict, {})
    call.meta = member(call.params, "_meta", dict, {})
    call.peer = peer_of(call)
    handler = (MODERN_METHODS if call.peer.modern else LEGACY_METHODS).get(call.method)
    if handler is None:
        raise RequestError(METHOD_NOT_FOUND, f"Method not found: {call.method}")
    if call.peer.modern and "requestState" in call.params:
        check_state(call)
    return handler(call)


def peer_of(call: Call) -> Peer:
    if any(key in call.meta for key in (VERSION, CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL)):
        return enveloped(call.meta)
    if call.demo.session is None and call.method not in ("initialize", "ping"):
        raise RequestError(INVALID_PARAMS, f"No session was initialized, and _meta lacks {VERSION}")
    return call.demo.session or NOBODY


def enveloped(meta: Object) -> Peer:
    """The sender of a modern request (2026-07-28, basic/index, `_meta`).

    The version is looked at first: what else another revision wants in there we cannot know.
    """
    version = member(meta, VERSION, str)
    if version != MODERN:
        data = {"supported": VERSIONS, "requested": version}
        raise RequestError(VERSION_UNSUPPORTED, "Unsupported protocol version", data)
    level = meta.get(LOG_LEVEL)
    if level is not None:
        check_level(level)
    return Peer(version, member(meta, CLIENT_INFO, dict, {}), member(meta, CLIENT_CAPABILITIES, dict), level)


def check_level(level: object) -> None:
    if level not in LEVELS:
        raise RequestError(INVALID_PARAMS, f"Unknown log level: {level}")


def initialize(call: Call) -> Object:
    offered = member(call.params, "protocolVersion", str)
    version = offered if offered in LEGACY else LEGACY[-1]
    client, capabilities = member(call.params, "clientInfo", dict), member(call.params, "capabilities", dict)
    call.demo.session = Peer(version, client, capabilities, "info")
    ours = {"protocolVersion": version, "serverInfo": IDENTITY}
    return {**ours, "capabilities": CAPABILITIES, "instructions": INSTRUCTIONS}


def discover(_: Call) -> Object:
    return {"supportedVersions": VERSIONS, "capabilities": CAPABILITIES, "instructions": INSTRUCTIONS}


def set_level(call: Call) -> Object:
    level = member(call.params, "level", str)
    check_level(level)
    call.peer.level = level
    return {}


def page(call: Call, kind: str, entries: list[Object]) -> Object:
    """One page of a list. The empty cursor is a cursor like any other, and means the first page."""
    starts = {cursor(kind, start): start for start in range(PAGE, len(entries), PAGE)} | {"": 0}
    start = starts.get(member(call.params, "cursor", str, ""))
    if start is None:
        raise RequestError(INVALID_PARAMS, "Unknown cursor")
    end = start + PAGE
    following = {"nextCursor": cursor(kind, end)} if end < len(entries) else {}
    return {kind: entries[start:end], **following}


def cursor(kind: str, start: int) -> str:
    return binascii.b2a_base64(f"{kind}:{start}".encode(), newline=False).decode()


def list_tools(call: Call) -> Object:
    return page(call, "tools", [tool.described(name) for name, tool in call.demo.tools.items()])


def known_resource(call: Call) -> tuple[str, str]:
    uri = member(call.params, "uri", str)
    text = call.demo.read(uri)
    if text is None:
        code = INVALID_PARAMS if call.peer.modern else RESOURCE_NOT_FOUND
        raise RequestError(code, "Resource not found", {"uri": uri})
    return uri, text


def read_resource(call: Call) -> Object:
    uri, text = known_resource(call)
    return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": text}]}


def subscribe(call: Call) -> Object:
    call.peer.subscribed.add(known_resource(call)[0])
    return {}


def unsubscribe(call: Call) -> Object:
    call.peer.subscribed.discard(member(call.params, "uri", str))
    return {}


def listen(call: Call) -> None:
    """Acknowledges what is honoured, and stays open until it is cancelled or the process ends."""
    wanted = member(call.params, "notifications", dict)
    uris = member(wanted, "resourceSubscriptions", list, [])
    known = [uri for uri in uris if isinstance(uri, str) and call.demo.read(uri) is not None]
    honoured: Object = {"toolsListChanged": True} if wanted.get("toolsListChanged") is True else {}
    honoured |= {"resourceSubscriptions": known} if known else {}
    with call.demo.lock:
        about = {"_meta": {SUBSCRIPTION: call.id}, "notifications": honoured}
        call.tell("notifications/subscriptions/acknowledged", about)
        call.filter = honoured


def get_prompt(call: Call) -> Object:
    if member(call.params, "name", str) != "greet":
        raise RequestError(INVALID_PARAMS, f"Unknown prompt: {call.params['name']}")
    name = member(member(call.params, "arguments", dict, {}), "name", str)
    content = {"type": "text", "text": f"Please greet {name} warmly."}
    return {"description": f"A greeting for {name}", "messages": [{"role": "user", "content": content}]}


def complete(call: Call) -> Object:
    ref, argument = member(call.params, "ref", dict), member(call.params, "argument", dict)
    if (ref.get("type"), ref.get("name", ref.get("uri")), argument.get("name")) not in COMPLETABLE:
        raise RequestError(INVALID_PARAMS, "Nothing to complete there")
    typed = member(argument, "value", str).casefold()
    values = [name for name in NAMES if name.casefold().startswith(typed)]
    return {"completion": {"values": values, "total": len(values), "hasMore": False}}


# --- Questions to the client (2026-07-28, basic/patterns/mrtr; before, requests of the server) ---


class Question(NamedTuple):
    """`answer` names what its result must have; `declared` tells whether the client takes it."""

    method: str
    required: Object
    declared: Callable[[Object], bool]
    body: Callable[[Object], Object]
    answer: dict[str, type | UnionType]


def takes_forms(capabilities: Object) -> bool:
    """`{}` means forms, as it did before there was a choice (2025-11-25, client/elicitation)."""
    modes = capabilities.get("elicitation")
    return isinstance(modes, dict) and ("form" in modes or "url" not in modes)


def form(arguments: Object) -> Object:
    answer = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    return {"params": {"message": arguments.get("question", "Well?"), "requestedSchema": answer}}


def prompt_message(arguments: Object) -> Object:
    content = {"type": "text", "text": arguments.get("prompt", "Say something short.")}
    return {"params": {"messages": [{"role": "user", "content": content}], "maxTokens": 100}}


QUESTIONS = {
    "ask": Question("elicitation/create", {"elicitation": {"form": {}}}, takes_forms, form, {"action": str}),
    "sample": Question(
        "sampling/createMessage",
        {"sampling": {}},
        lambda declared: "sampling" in declared,
        prompt_message,
        {"role": str, "content": dict | list, "model": str},
    ),
    "roots": Question(
        "roots/list", {"roots": {}}, lambda declared: "roots" in declared, lambda _: {}, {"roots": list}
    ),
}


def question(call: Call, arguments: Object) -> Object:
    name = call.params["name"]
    ask = ask_by_result if call.peer.modern else ask_by_request
    return ask(call, name, QUESTIONS[name], arguments)


def answered(asked: Question, answer: Object) -> Object:
    """The client's answer as the tool's own. Raises RequestError if it is none."""
    for name, kind in asked.answer.items():
        if not isinstance(answer.get(name), kind):
            raise RequestError(INVALID_PARAMS, f"{name} is missing or of the wrong type")
    return text_result(json.dumps(answer, ensure_ascii=False), structuredContent=answer)


def ask_by_request(call: Call, _: str, asked: Question, arguments: Object) -> Object:
    if not asked.declared(call.peer.capabilities):
        raise ToolError(f"The client did not declare what {asked.method} needs.")
    return answered(asked, call.ask({"method": asked.method, **asked.body(arguments)}))


def ask_by_result(call: Call, name: str, asked: Question, arguments: Object) -> Object:
    answers = member(call.params, "inputResponses", dict, {})
    # Answers without a state of ours belong to no question of ours.
    if "requestState" in call.params and name in answers:
        return answered(asked, member(answers, name, dict))
    if not asked.declared(call.peer.capabilities):
        data = {"requiredCapabilities": asked.required}
        raise RequestError(CAPABILITY_MISSING, f"{asked.method} was not declared", data)
    requests = {name: {"method": asked.method, **asked.body(arguments)}}
    state = sealed_state(call, int(time.time()) + STATE_LIFE)
    return {"resultType": "input_required", "inputRequests": requests, "requestState": state}


def sealed_state(call: Call, expires: int) -> str:
    """Nothing but a seal on the request: the retry brings everything else again."""
    rest = {k: v for k, v in call.params.items() if k not in ("_meta", "inputResponses", "requestState")}
    claim = json.dumps([call.method, rest, expires], sort_keys=True).encode()
    return f"{expires}.{hmac.new(STATE_KEY, claim, hashlib.sha256).hexdigest()}"


def check_state(call: Call) -> None:
    """One message for whatever is wrong, so that it teaches nobody to forge."""
    state = str(call.params["requestState"])
    digits = state.partition(".")[0]
    expires = int(digits) if digits.isdecimal() and len(digits) < 16 else 0
    genuine = hmac.compare_digest(sealed_state(call, expires).encode(), state.encode("utf-8", "replace"))
    if not genuine or expires < time.time():
        raise RequestError(INVALID_PARAMS, "Invalid or expired requestState")


# --- Tools ---


class Tool(NamedTuple):
    """`arguments` are JSON Schema properties, held by `fault_in`; `waits` gives each call a thread."""

    run: Callable[[Call, Object], Object]
    description: str
    arguments: Object
    required: tuple[str, ...] = ()
    waits: bool = False

    def described(self, name: str) -> Object:
        required = {"required": list(self.required)} if self.required else {}
        schema = {"type": "object", "properties": self.arguments, **required}
        return {"name": name, "description": self.description, "inputSchema": schema}


TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float)}


def fault_in(arguments: Object, tool: Tool) -> str | None:
    for name, schema in tool.arguments.items():
        value: Any = arguments.get(name)
        if name not in arguments:
            if name in tool.required:
                return f"{name} is required"
        elif type(value) not in TYPES[schema["type"]]:
            return f"{name} must be of type {schema['type']}"
        elif not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            return f"{name} must be from {schema['minimum']} to {schema['maximum']}"
    return None


def call_tool(call: Call) -> Object | None:
    name = member(call.params, "name", str)
    tool = call.demo.tools.get(name)
    if tool is None:
        raise RequestError(INVALID_PARAMS, f"Unknown tool: {name}")
    arguments = member(call.params, "arguments", dict, {})
    if fault := fault_in(arguments, tool):
        return text_result(fault, isError=True)

    def work(call: Call) -> Object:
        try:
            return tool.run(call, arguments)
        except ToolError as fault:
            return text_result(str(fault), isError=True)

    if tool.waits:
        call.later(work)
        return None
    return work(call)


def as_written(call: Call) -> Raw:
    params = dict(parts(dict(parts(call.text)).get("params", "{}")))
    return Raw(params["arguments"] if call.params.get("arguments") else "{}")


def echo(call: Call, arguments: Object) -> Object:
    exact = as_written(call)
    return text_result(arguments.get("text", exact.text), structuredContent=exact)


def slow(call: Call, arguments: Object) -> Object:
    seconds, steps = arguments.get("seconds", 1), arguments.get("steps", 1)
    for step in range(steps):
        call.pause(seconds / steps)
        call.progress(step + 1, steps)
    return text_result(f"Waited {seconds} seconds.")


def log(call: Call, arguments: Object) -> Object:
    for level in LEVELS:
        call.log(level, arguments.get("message", f"A message at level {level}"))
    return text_result("Logged at every level.")


def touch(call: Call, _: Object) -> Object:
    call.demo.counter += 1
    call.demo.changed("notifications/resources/updated", uri=COUNTER)
    return text_result(str(call.demo.counter))


def grow(call: Call, _: Object) -> Object:
    name = f"grown-{len(call.demo.tools) - len(TOOLS) + 1}"
    call.demo.tools[name] = Tool(echo, "Grown by `grow`; does what `echo` does", {})
    call.demo.changed("notifications/tools/list_changed")
    return text_result(name)


def big(_: Call, arguments: Object) -> Object:
    return text_result("x" * arguments["bytes"])


def fail(call: Call, arguments: Object) -> Object:
    message = arguments.get("message", "Failed as asked")
    raise RequestError(arguments.get("code", 1234), message, {"arguments": as_written(call)})


def info(call: Call, _: Object) -> Object:
    seen = {"version": call.peer.version, "client": call.peer.client, "capabilities": call.peer.capabilities}
    about = {"pid": os.getpid(), "era": "modern" if call.peer.modern else "legacy", **seen}
    return text_result(json.dumps(about, ensure_ascii=False), structuredContent=about)


def die(_: Call, arguments: Object) -> Object:
    status = arguments.get("status", 1)
    sys.stderr.write(f"demo server dies with status {status}, as asked\n")
    sys.stderr.flush()
    os._exit(status)


TEXT = {"type": "string"}
SECONDS = {"type": "number", "minimum": 0, "maximum": 3600}
STEPS = {"type": "integer", "minimum": 1, "maximum": 10_000}
BYTES = {"type": "integer", "minimum": 0, "maximum": BIG}
STATUS = {"type": "integer", "minimum": 0, "maximum": 255}
# Over HTTP a modern client repeats it in a header (2026-07-28, server/tools, `x-mcp-header`).
REGION = {"type": "string", "x-mcp-header": "Region"}

TOOLS = {
    "echo": Tool(echo, "Returns `text`, and all arguments as they came", {"text": TEXT, "region": REGION}),
    "slow": Tool(slow, "Waits, telling its progress", {"seconds": SECONDS, "steps": STEPS}, waits=True),
    "ask": Tool(question, "Asks the user", {"question": TEXT}, waits=True),
    "sample": Tool(question, "Asks the client's model", {"prompt": TEXT}, waits=True),
    "roots": Tool(question, "Asks the client for its roots", {}, waits=True),
    "log": Tool(log, "Logs one message at every level", {"message": TEXT}),
    "touch": Tool(touch, f"Changes {COUNTER}", {}),
    "grow": Tool(grow, "Adds a tool", {}),
    "big": Tool(big, "Returns that many bytes of text", {"bytes": BYTES}, ("bytes",), waits=True),
    "fail": Tool(fail, "Ends in an error, not in a result", {"code": {"type": "integer"}, "message": TEXT}),
    "info": Tool(info, "Tells about this process and how it sees the client", {}),
    "die": Tool(die, "Ends the process without an answer", {"status": STATUS}),
}

BOTH_ERAS: dict[str, Handler] = {
    "tools/list": list_tools,
    "tools/call": call_tool,
    "resources/list": lambda call: page(call, "resources", RESOURCES),
    "resources/templates/list": lambda call: page(call, "resourceTemplates", TEMPLATES),
    "resources/read": read_resource,
    "prompts/list": lambda call: page(call, "prompts", PROMPTS),
    "prompts/get": get_prompt,
    "completion/complete": complete,
}
LEGACY_METHODS: dict[str, Handler] = BOTH_ERAS | {
    "initialize": initialize,
    "ping": lambda _: {},
    "logging/setLevel": set_level,
    "resources/subscribe": subscribe,
    "resources/unsubscribe": unsubscribe,
}
MODERN_METHODS: dict[str, Handler] = BOTH_ERAS | {"server/discover": discover, "subscriptions/listen": listen}


def main() -> int:
    """Serves stdin and stdout until stdin ends; returns the exit status."""
    # `echo` is asked for integers longer than Python reads by default.
    sys.set_int_max_str_digits(100_000)
    demo = Demo(sys.stdout.fileno())
    sys.stderr.write("demo server ready\n")
    sys.stderr.flush()
    demo.serve(sys.stdin.buffer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
