"""What a legacy server must be told again when it has forgotten its session.

Remembers, from what the client itself sent, how the session was opened and what was set in
it since: the initialize request, the log level, the resources subscribed to. Transport
requirements SC-12 and CL-5. Decides nothing about when.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from bridge.core.message import Id, Notification, Request, Response, notification, params_of, request
from bridge.core.splice import members

INITIALIZED: Final = "notifications/initialized"


class _Offer(msgspec.Struct):
    version: str = msgspec.field(name="protocolVersion", default="")


class Handshake:
    """Feed it what is sent and what the initialize request was answered with."""

    def __init__(self) -> None:
        self.request: Request | None = None
        self.version = ""
        """The negotiated revision, once there is one."""
        self.initialized = False
        self._capabilities: dict[str, bytes] = {}
        self._level: Request | None = None
        self._subscribed: dict[str, Request] = {}
        self._serial = 0

    def sent(self, message: Request | Notification | Response) -> None:
        """Note what the client sends if it sets something that lasts."""
        match message:
            case Request(method="initialize"):
                self.request = message
                self.initialized = False
                self._level = None
                self._subscribed.clear()
            case Request(method="logging/setLevel"):
                self._level = message
            case Request(method="resources/subscribe"):
                self._subscribed[_uri(message)] = message
            case Request(method="resources/unsubscribe"):
                self._subscribed.pop(_uri(message), None)
            case Notification(method="notifications/initialized"):
                self.initialized = True
            case _:
                pass

    def answered(self, response: Response) -> None:
        """Note the server's side of the handshake."""
        if response.result is UNSET:
            return
        try:
            self.version = msgspec.json.decode(response.result, type=_Offer).version
            self._capabilities = members(members(response.result).get("capabilities", b"{}"))
        except (msgspec.DecodeError, ValueError):
            self.version, self._capabilities = "", {}

    def is_own(self, message_id: Id | None) -> bool:
        """Whether a response answers one of the requests that `again` made."""
        return isinstance(message_id, str) and message_id.startswith("mb-again-")

    def again(self) -> Request:
        """The client's initialize request under an id of the bridge's own."""
        assert self.request is not None
        return self._own(self.request)

    def settings(self) -> list[Request]:
        """Requests that set anew what was set in the lost session."""
        lasting = [*([] if self._level is None else [self._level]), *self._subscribed.values()]
        return [self._own(message) for message in lasting]

    def stale(self) -> list[Notification]:
        """What tells the client to fetch again, since the server's state is not the one it knew."""
        kinds = [kind for kind in ("tools", "prompts", "resources") if self._announces(kind)]
        return [notification(f"notifications/{kind}/list_changed") for kind in kinds]

    def _announces(self, kind: str) -> bool:
        try:
            return bytes(members(self._capabilities.get(kind, b"{}")).get("listChanged", b"")) == b"true"
        except ValueError:
            return False

    def _own(self, message: Request) -> Request:
        self._serial += 1
        params = None if message.params is UNSET else bytes(message.params)
        return request(f"mb-again-{self._serial}", message.method, params)


def _uri(message: Request) -> str:
    uri = params_of(message).uri
    return "" if uri is UNSET else uri
