"""What every legacy party does alike, whichever transport carries its messages.

Decides what is read of an `initialize`, how a message that needs no answer is passed on, what a
cancellation is of, and whether a batch may be sent at all; knows nothing of streams or statuses.
Specification (2024-11-05 to 2025-11-25): "Lifecycle", "Cancellation", and "Batching" of 2025-03-26.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

import msgspec
from msgspec import UNSET

from bridge.config import Config
from bridge.core.events import Party
from bridge.core.message import Batch, Notification, Request, Response, params_of
from bridge.downstream.base import Port
from bridge.era.revisions import Revision
from bridge.link import Link
from bridge.readiness import Identity
from bridge.relay import Relay
from bridge.status import SessionStatus
from bridge.values import is_loopback

log = logging.getLogger("bridge.session")


_LONGEST_NAME: Final = 100
UNDECLARED: Final = "The client did not declare this capability"


class Said(msgspec.Struct):
    """What `initialize` says, either way, as far as anybody here looks at it."""

    version: str = msgspec.field(name="protocolVersion", default="")
    client: msgspec.Raw = msgspec.field(name="clientInfo", default=msgspec.Raw(b"{}"))


def subject_of(config: Config, caller: str) -> str:
    """Whom this caller is served as; empty where strangers cannot be told from each other (§2)."""
    access, listen = config.access, config.listen
    secured = access.token is not None or bool(access.callers)
    return caller if secured or listen.uds is not None or is_loopback(listen.host) else ""


def session_status(
    session: Shown, relay: Relay, *, transport: str, revision: Revision | None, now: float
) -> SessionStatus:
    """What an operator is told of a legacy session; `now` is on the loop's clock."""
    party, idle_since = session.party, session.idle_since()
    client = said_in(UNSET if party.offer is None else party.offer.params).client
    return SessionStatus(
        id=party.name,
        server=relay.config.name,
        caller=session.caller,
        transport=transport,
        revision="" if revision is None else revision.name,
        client=_spelled(client),
        in_flight=len(party.exchanges),
        idle_seconds=None if idle_since is None else max(0.0, now - idle_since),
    )


class Shown(Protocol):
    """A session that can be told of."""

    party: Party
    caller: str

    def idle_since(self) -> float | None: ...


def _spelled(client: msgspec.Raw) -> str:
    try:
        found = msgspec.json.decode(client, type=Identity)
    except msgspec.DecodeError:
        return ""
    return f"{found.name} {found.version}".strip()[:_LONGEST_NAME]


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
