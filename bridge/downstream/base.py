"""The contract between a link and whoever it serves."""

from __future__ import annotations

from typing import Protocol

from bridge.core.events import Exchange, Party, Question
from bridge.core.message import Notification, Request, Response
from bridge.errors import ServerFault


class Port(Protocol):
    """One party's end of a link. Every call comes from the event loop and must not block."""

    party: Party

    def answered(self, exchange: Exchange, response: Response) -> None:
        """The one final answer; nothing of this exchange follows."""

    def noted(self, exchange: Exchange | None, note: Notification) -> None:
        """A notification, with the exchange that it belongs to if one is known."""

    def questioned(self, question: Question, request: Request) -> None:
        """A request of the server, under `question.party_id`."""

    def ended(self, exchange: Exchange) -> None:
        """The server tore the exchange down; there will be no answer."""

    def lost(self, fault: ServerFault) -> None:
        """The upstream session is gone; what waited has been answered already."""
