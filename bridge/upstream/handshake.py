"""What a legacy server must be told again when it has forgotten its session.

Remembers, from what the client itself sent, how the session was opened and what was set in
it since: the initialize request, the log level, the resources subscribed to. Transport
requirements SC-12 and CL-5. Decides nothing about when.
"""

from __future__ import annotations

import secrets
from typing import Final

import msgspec
from msgspec import UNSET

from bridge.core.message import Message, Notification, Request, Response, notification, params_of, request
from bridge.core.splice import members

INITIALIZED: Final = "notifications/initialized"
_SUBSCRIPTIONS: Final = 1000
"""Resources remembered; the oldest are forgotten first."""


class _Offer(msgspec.Struct):
    version: str = msgspec.field(name="protocolVersion", default="")


class Handshake:
    """Feed it what is sent and what the initialize request was answered with."""

    def __init__(self) -> None:
        self.version = ""
        """The negotiated revision, once the session was opened."""
        self.initialized = False
        """Whether the client has said so."""
        self._request: Request | None = None
        self._opened = False
        self._capabilities: dict[str, bytes] = {}
        self._level: Request | None = None
        self._subscribed: dict[str, Request] = {}
        self._mark = secrets.token_hex(4)
        self._serial = 0

    def sent(self, message: Message) -> None:
        """Note what the client sends if it sets something that lasts."""
        match message:
            case Request(method="initialize"):
                self._request = message
                self._opened = self.initialized = False
                self.version, self._level = "", None
                self._subscribed.clear()
            case Request(method="logging/setLevel"):
                self._level = message
            case Request(method="resources/subscribe"):
                self._subscribe(message)
            case Request(method="resources/unsubscribe"):
                self._subscribed.pop(_uri(message), None)
            case Notification(method="notifications/initialized"):
                self.initialized = True
            case _:
                pass

    def _subscribe(self, message: Request) -> None:
        self._subscribed[_uri(message)] = message
        if len(self._subscribed) > _SUBSCRIPTIONS:
            del self._subscribed[next(iter(self._subscribed))]

    def answered(self, response: Response) -> bool:
        """Note the server's answer to initialize; whether it opened a session."""
        if response.result is UNSET:
            return False
        self._opened = True
        try:
            self.version = msgspec.json.decode(response.result, type=_Offer).version
            self._capabilities = members(members(response.result).get("capabilities", b"{}"))
        except (msgspec.DecodeError, ValueError):
            self.version, self._capabilities = "", {}
        return True

    def again(self) -> Request | None:
        """The client's initialize under an id of the bridge's own; None if it never opened a session."""
        return self._own(self._request) if self._opened and self._request is not None else None

    def settings(self) -> list[Request]:
        """Requests that set anew what was set in the lost session."""
        lasting = [*([] if self._level is None else [self._level]), *self._subscribed.values()]
        return [self._own(message) for message in lasting]

    def stale(self) -> list[Notification]:
        """What tells the client to fetch again, since the server's state is not the one it knew."""
        kinds = [kind for kind in ("tools", "prompts", "resources") if self._announces(kind)]
        return [notification(f"notifications/{kind}/list_changed") for kind in kinds]

    def ping(self) -> Request:
        """A harmless request of the bridge's own, to see whether the session is known."""
        return self._named("ping")

    def _announces(self, kind: str) -> bool:
        try:
            return bytes(members(self._capabilities.get(kind, b"{}")).get("listChanged", b"")) == b"true"
        except ValueError:
            return False

    def _own(self, message: Request) -> Request:
        return self._named(message.method, None if message.params is UNSET else bytes(message.params))

    def _named(self, method: str, params: bytes | None = None) -> Request:
        self._serial += 1
        return request(f"mb-{self._mark}-{self._serial}", method, params)


def _uri(message: Request) -> str:
    uri = params_of(message).uri
    return "" if uri is UNSET else uri
