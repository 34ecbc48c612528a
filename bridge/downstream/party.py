"""What every legacy party does alike, whichever transport carries its messages.

Decides what is read of an `initialize`, how a message that needs no answer is passed on, what a
cancellation is of, and whether a batch may be sent at all; knows nothing of streams or statuses.
Specification (2024-11-05 to 2025-11-25): "Lifecycle", "Cancellation", and "Batching" of 2025-03-26.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec
from msgspec import UNSET

from bridge.config import Config
from bridge.core.message import Batch, Notification, Request, Response, params_of
from bridge.downstream.base import Port
from bridge.era.revisions import Revision
from bridge.link import Link
from bridge.values import is_loopback

log = logging.getLogger("bridge.session")


UNDECLARED: Final = "The client did not declare this capability"


class Said(msgspec.Struct):
    """What `initialize` says, either way, as far as anybody here looks at it."""

    version: str = msgspec.field(name="protocolVersion", default="")
    client: msgspec.Raw = msgspec.field(name="clientInfo", default=msgspec.Raw(b"{}"))


def subject_of(config: Config) -> str:
    """Whom the clients are; empty where strangers cannot be told from each other (§2)."""
    if config.access.token is not None:
        return "bearer"
    return "local" if config.listen.uds is not None or is_loopback(config.listen.host) else ""


def said_in(text: msgspec.Raw | msgspec.UnsetType) -> Said:
    """Read the params or the result of `initialize`; what cannot be read said nothing."""
    try:
        return Said() if text is UNSET else msgspec.json.decode(text, type=Said)
    except msgspec.DecodeError:
        return Said()


def deliver(link: Link, port: Port, message: Notification | Response) -> None:
    """Pass on what needs no answer."""
    match message:
        case Notification(method="notifications/cancelled"):
            _cancel(link, port, message)
        case Notification():
            link.tell(port, message)
        case Response():
            if not link.reply(port, message):
                log.debug("session %s answered what nobody asked", port.party.name)


def _cancel(link: Link, port: Port, note: Notification) -> None:
    request_id = params_of(note).request_id
    exchange = port.party.exchanges.get(request_id) if request_id is not UNSET else None
    if exchange is None or exchange.method == "initialize":
        return  # unknown, finished, or not to be cancelled
    link.withdraw(exchange, note)
    port.ended(exchange)


def unbatchable(batch: Batch, revision: Revision | None) -> str | None:
    """Why a session of this revision may not send this batch; None if it may."""
    if revision is None or not revision.batches:
        return "this revision has no batches"
    if any(isinstance(member, Request) and member.method == "initialize" for member in batch.members):
        return "initialize cannot be in a batch"
    answers = [member for member in batch.members if isinstance(member, Response)]
    return "a batch holds either requests or answers" if 0 < len(answers) < len(batch.members) else None
