"""One modern request: on whichever link serves it, until its one answer.

The same for every transport of a modern client; where the answer goes is the outlet's matter.
Knows that a request may lose its server: what only reads is asked once more elsewhere, and a
subscription waits for the server to come back (a translated one, since a modern server's end is
the client's to see). Specification (2026-07-28): every request stands for itself.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

import anyio
import msgspec
from msgspec import UNSET

from bridge.core.correlate import LISTEN
from bridge.core.events import Exchange, Party, Question
from bridge.core.message import Notification, Request, Response
from bridge.core.splice import members, replaced
from bridge.era.listen import closing, resumed
from bridge.era.revisions import Era
from bridge.errors import ServerFault
from bridge.link import Link, answer_to_fault
from bridge.relay import Relay

log = logging.getLogger("bridge.session")

_READS: Final = frozenset(
    {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "prompts/get",
        "resources/read",
        "completion/complete",
    }
)
"""What may be asked twice, since nothing happens by it (§3.17)."""
_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_FIRST_RETRY: Final = 0.5
_MOST_RETRY: Final = 10.0


class Outlet(Protocol):
    """Where one request's messages go, in order."""

    @property
    def streaming(self) -> bool:
        """Whether anything went out already."""

    def answer(self, response: Response) -> None:
        """The answer; nothing follows."""

    @property
    def waiting(self) -> int:
        """How many of its messages were not begun to be sent."""

    def push(self, note: Notification, *, once: bool = False) -> None:
        """A message before the answer; with `once` not if the same waits to be sent."""

    def end(self, answered: Response | None = None) -> None:
        """The server ended a subscription: there will be no answer, or this one and its end is told."""


class _Fault(msgspec.Struct, frozen=True):
    origin: str = ""
    reason: str = ""


class _Error(msgspec.Struct):
    data: _Fault = _Fault()


class ModernCaller:
    """The port of one request; callers know nothing of each other, and choose equal ids.

    `subject` is whom the bridge serves by it, empty if that cannot be told. `private` marks answers
    that a cache on the way may not share.
    """

    def __init__(
        self, relay: Relay, asked: Request, subject: str, outlet: Outlet, *, private: bool, wants_log: bool
    ) -> None:
        self.method = asked.method
        self.party = Party("modern", subject or f"anonymous {id(self)}")
        self._relay = relay
        self._subject = subject
        self._asked = asked
        self._outlet = outlet
        self._private = private
        self._wants_log = wants_log
        self._link: Link | None = None
        self._tries = 0
        self._over = False
        self._acknowledged = False
        """Whether the client was told of its subscription; what acknowledges one after it is news."""

    def take(self, link: Link) -> None:
        """Be served by this link from now on, so that it is not let go."""
        self._leave_link()
        self._link = link
        link.join(self)

    def ask(self, link: Link) -> None:
        """Send the request over this link."""
        if link is not self._link:
            self.take(link)
        self._tries += 1
        link.ask(self, self._asked, self._outlet, wants_log=self._wants_log)

    def leave(self) -> None:
        """The client is gone, or has its answer; to leave before the answer is to cancel."""
        self._over = True
        self._leave_link()

    def _leave_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.leave(self)
            self._relay.release(link)

    # Port protocol of the link

    def answered(self, exchange: Exchange, response: Response) -> None:
        link = self._link
        if response.error is not UNSET and link is not None:
            self._relay.heard(link, self.method, response)
            if self._may_ask_again(link, response):
                self._relay.spawn(self._ask_again)
                return
        self._finish(response)

    def _finish(self, response: Response) -> None:
        self._over = True
        self._outlet.answer(_unshared(response) if self._private else response)

    def noted(self, exchange: Exchange | None, note: Notification) -> None:
        if exchange is None or self._over:
            return
        if self.method == LISTEN and self._link is not None and self._link.era is Era.LEGACY:
            self._changed(note)
        else:
            self._outlet.push(note)

    def _changed(self, note: Notification) -> None:
        """What equals a change that the client did not take yet tells nothing new (§3.13)."""
        again = note.method == _ACKNOWLEDGED and self._acknowledged
        self._acknowledged |= note.method == _ACKNOWLEDGED
        for told in resumed(note, self._asked.id) if again else [note]:
            self._outlet.push(told, once=True)
        if self._outlet.waiting > self._relay.config.terms.backlog:
            self._over = True
            self._outlet.end(closing(self._asked.id))

    def questioned(self, question: Question, request: Request) -> None:
        """Never: the link drops a modern server's requests, and the translation a legacy one's."""

    def ended(self, exchange: Exchange) -> None:
        self._over = True
        self._outlet.end()

    def lost(self, fault: ServerFault) -> None:
        """Everything but a translated subscription has been answered already."""
        if self._over or self._link is None:
            return
        if self._link.era is Era.LEGACY and self.method == LISTEN:
            self._leave_link()
            self._relay.spawn(self._listen_again, fault)

    # Once more

    def _may_ask_again(self, link: Link, response: Response) -> bool:
        translated = link.era is Era.LEGACY and link.fault is not None
        fit = self.method in _READS and self._tries == 1 and not self._outlet.streaming
        return translated and fit and _reason(response) == "upstream_lost"

    async def _ask_again(self) -> None:
        try:
            await self._elsewhere()
        except ServerFault as fault:
            self._finish(answer_to_fault(self._asked.id, fault))

    async def _elsewhere(self) -> None:
        """Ask on another link. Raises ServerFault."""
        found = await self._relay.modern(self._asked, self._subject)
        if self._over:
            if isinstance(found, Link):
                self._relay.release(found)
        elif isinstance(found, Link):
            self.ask(found)
        elif isinstance(found, Response):
            self._finish(found)

    async def _listen_again(self, fault: ServerFault) -> None:
        """Wait for the server to come back; a subscription that cannot go on ends in good order."""
        pause = _FIRST_RETRY
        with anyio.move_on_after(self._relay.config.timing.relisten):
            while not self._over:
                try:
                    await self._elsewhere()
                except ServerFault as failed:
                    log.debug("the server is not back yet: %s", failed)
                else:
                    return
                await anyio.sleep(pause)
                pause = min(_MOST_RETRY, pause * 2)
        if not self._over:
            self._over = True
            self._outlet.end(closing(self._asked.id))


def _reason(response: Response) -> str:
    if response.error is UNSET:
        return ""
    try:
        found = msgspec.json.decode(response.error, type=_Error).data
    except msgspec.DecodeError:
        return ""
    return found.reason if found.origin == "bridge" else ""


def _unshared(response: Response) -> Response:
    """The answer for a caller who had to show a token: a cache on the way may not share it (CA-2)."""
    if response.result is UNSET or b'"public"' not in bytes(response.result):
        return response
    if bytes(members(response.result).get("cacheScope", b"")) != b'"public"':
        return response
    return response.with_result(replaced(response.result, ("cacheScope",), b'"private"'))
