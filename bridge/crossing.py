"""The upstream sessions of a legacy server that modern clients share.

A modern client has no session, a legacy server has nothing else. Here is decided which upstream
session serves which request: one for each subject and each set of capabilities, opened at the
first need, kept while it is used, within limits. What is translated on it is the layer's matter
(`era.modern_to_legacy`), and how a server is started the relay's.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple, Protocol

import anyio
from msgspec import Raw

from bridge.config import Command, Config, Isolation, WhenFull
from bridge.core.correlate import LISTEN
from bridge.core.message import Request, Response, local_error, notification
from bridge.core.splice import joined, quote
from bridge.detection import CLIENT
from bridge.era.capabilities import EVERYTHING, NOTHING, Capabilities, Open, choose
from bridge.era.envelope import Envelope
from bridge.era.modern_to_legacy import ModernToLegacy
from bridge.era.opened import Opened
from bridge.era.revisions import LATEST_LEGACY, Era
from bridge.era.suspend import Calls, Elsewhere
from bridge.era.task_ids import TaskIds
from bridge.era.terms import Declare, Tasks
from bridge.errors import PoolFull, ServerFault, UpstreamVersion
from bridge.kept import Keeper, Kept
from bridge.link import Caller, Link

log = logging.getLogger("bridge.crossing")

DISCOVER: Final = "server/discover"


class Host(Keeper, Protocol):
    """What the relay does for the upstream sessions."""

    async def open(self, *, fresh: bool, era: Era) -> Link:
        """A link on which nothing was asked. Raises ServerFault."""

    def expect(self, upstreams: int) -> None:
        """So many links may be wanted at short notice."""

    async def handshake(self, caller: Caller, params: bytes) -> bytes:
        """The InitializeResult. Raises ServerFault, and EraChanged if the server turned out to be modern."""


class _Session:
    """One upstream session, from the first need on."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        self.layer: ModernToLegacy[Link] | None = None
        self.last = 0.0
        """When it was last asked for, on the loop's clock."""
        self.wanted = 0
        """How many wait for it to be opened."""

    @property
    def idle(self) -> bool:
        """Whether it can be closed without harm to anybody (§2 Life)."""
        link = self.kept.last
        if self.wanted:
            return False
        return link is None or self.layer is None or not (link.used or self.layer.busy)


class _Ready(NamedTuple):
    """An upstream session that is initialized."""

    link: Link
    layer: ModernToLegacy[Link]


class Crossing:
    def __init__(self, host: Host, config: Config, calls: Calls[Link], tasks: TaskIds[Link]) -> None:
        self._host = host
        self._config, self._terms = config, config.terms
        self._calls, self._tasks = calls, tasks
        self._held: dict[tuple[str, bytes], dict[Capabilities, _Session]] = {}
        """By subject and forwarded identity; of one subject least recently used first."""
        self._spares: dict[Capabilities, _Ready] = {}
        """Upstream sessions that are initialized and nobody's yet, the oldest first."""
        self._stocking = False
        self._each = config.limits.upstreams_per_subject

    async def link(self, asked: Request, subject: str) -> Link | Response | Elsewhere:
        """The upstream session for a request; the answer, if it names a call that cannot be gone on with.

        Raises ServerFault; PoolFull if there is no room for one more.
        """
        if self._config.isolation is Isolation.REQUEST:
            return await self._open(NOTHING, CLIENT, None)
        shared = self._config.isolation is Isolation.SHARED
        if not (subject or shared):
            return local_error(asked.id, _STRANGERS, "isolation")
        found = self._calls.find(asked, subject) or self._task(asked, subject)
        if found is not None:
            return found
        envelope = Envelope.read(asked.params)
        # Nobody can be asked anything who cannot be told from others.
        wanted = self._declared(envelope) if subject else NOTHING
        identity = CLIENT
        if self._terms.forward_identity and envelope.client:
            identity = bytes(envelope.client)
        session = await self._session("" if shared else subject, identity, wanted, asked.method)
        session.wanted += 1
        try:
            return await session.kept.get()
        finally:
            session.wanted -= 1

    def _task(self, asked: Request, subject: str) -> Link | Response | Elsewhere | None:
        return self._tasks.find(asked, subject) if self._terms.tasks is Tasks.MAP else None

    def _declared(self, envelope: Envelope) -> Capabilities:
        match self._terms.declare:
            case Declare.EXACT:
                return Capabilities.read(envelope.capabilities)
            case Declare.SUPERSET:
                return EVERYTHING
            case Declare.NONE:
                return NOTHING

    # Which one

    async def _session(self, subject: str, identity: bytes, wanted: Capabilities, method: str) -> _Session:
        patience = asyncio.get_running_loop().time() + self._config.timing.queue
        while True:
            # Looked up again after each wait, in which those without a session are forgotten.
            mine = self._held.setdefault((subject, identity), {})
            wanted = self._preferred(mine, wanted, method)
            choice = choose({one: session.idle for one, session in mine.items()}, wanted, self._each)
            if not isinstance(choice, Open):
                session = mine.pop(choice.fingerprint)
                mine[choice.fingerprint] = session  # used last
                break
            if choice.close is not None:
                self._let_go(mine, choice.close)
            if self._has_room():
                session = mine[choice.fingerprint] = self._made(choice.fingerprint, identity)
                break
            await self._make_room(patience)
        session.last = asyncio.get_running_loop().time()
        return session

    @staticmethod
    def _preferred(mine: dict[Capabilities, _Session], wanted: Capabilities, method: str) -> Capabilities:
        """What asks nothing of a client's capabilities takes the session that is there (§3.2, §3.13)."""
        if wanted in mine:
            return wanted
        if method == LISTEN and NOTHING in mine:
            return NOTHING
        if method == DISCOVER:
            return next((one for one, session in reversed(mine.items()) if session.kept.live), wanted)
        return wanted

    def _made(self, declared: Capabilities, identity: bytes) -> _Session:
        session: _Session
        session = _Session(Kept(self._host, lambda: self._open(declared, identity, session)))
        return session

    async def _open(self, declared: Capabilities, identity: bytes, session: _Session | None) -> Link:
        self._host.expect(_AHEAD)
        ready = self._spares.pop(declared, None) if identity == CLIENT else None
        if ready is None or ready.link.fault is not None:
            ready = await self._opened(declared, identity)
        if session is not None:
            session.layer = ready.layer
            self._host.spawn(self._stock, declared)
        label = ready.link.label
        log.info("%s: opened for modern clients, declaring %s", label, declared.declared().decode())
        return ready.link

    async def _opened(self, declared: Capabilities, identity: bytes) -> _Ready:
        """A new upstream session, initialized. Raises ServerFault."""
        link = await self._host.open(fresh=True, era=Era.LEGACY)
        try:
            caller = Caller(link)
            result = await self._host.handshake(caller, initialize(declared.declared(), identity))
            opened = Opened.read(Raw(result))
        except ValueError as fault:
            self._host.discard(link)
            raise UpstreamVersion(f"The server speaks no revision that the bridge knows: {fault}") from fault
        except BaseException:
            self._host.discard(link)
            raise
        caller.tell(notification("notifications/initialized"))
        link.leave(caller)
        layer: ModernToLegacy[Link] = ModernToLegacy(
            opened, declared, self._calls, link, self._terms, link, self._tasks
        )
        link.insert(layer)
        return _Ready(link, layer)

    async def _stock(self, declared: Capabilities) -> None:
        """Have one more of these ready, initialized, for the next subject or for when this one is lost.

        Only children are slow enough to start; as many are kept as processes are kept warm.
        """
        most = self._config.warm if isinstance(self._config.upstream, Command) else 0
        if self._stocking or declared in self._spares or not most:
            return
        self._stocking = True
        try:
            await anyio.sleep(_QUIET)
            self._spares[declared] = await self._opened(declared, CLIENT)
        except ServerFault as fault:
            log.debug("no upstream session could be opened ahead of need: %s", fault)
        finally:
            self._stocking = False
        while len(self._spares) > most:
            self._host.discard(self._spares.pop(next(iter(self._spares))).link)

    # Room

    def _has_room(self) -> bool:
        return sum(len(mine) for mine in self._held.values()) < self._config.limits.upstreams

    async def _make_room(self, patience: float) -> None:
        """Let the least recently used idle session of anybody go, or wait for room until then, or refuse."""
        idle = [
            (session.last, mine, one)
            for mine in self._held.values()
            for one, session in mine.items()
            if session.idle
        ]
        if idle:
            _, mine, one = min(idle, key=lambda entry: entry[0])
            self._let_go(mine, one)
            return
        full = PoolFull("Every server process is in use by somebody else", retry_after=1.0)
        if self._config.when_full is WhenFull.REFUSE:
            raise full
        while not (self._has_room() or self._has_idle()):
            if asyncio.get_running_loop().time() >= patience:
                raise full
            await anyio.sleep(_LOOK)  # what becomes idle does not tell

    def _has_idle(self) -> bool:
        return any(session.idle for mine in self._held.values() for session in mine.values())

    def _let_go(self, mine: dict[Capabilities, _Session], one: Capabilities) -> None:
        mine.pop(one).kept.let_go()

    def expire(self, oldest: float) -> None:
        """Let go of what was not asked for since then and is idle."""
        for mine in self._held.values():
            for one in [one for one, session in mine.items() if session.idle and session.last <= oldest]:
                self._let_go(mine, one)
        self._held = {key: mine for key, mine in self._held.items() if mine}
        if not self._held:
            self._clear_spares()

    def end(self) -> None:
        """The server is of another era now: end every upstream session."""
        held, self._held = self._held, {}
        for mine in held.values():
            for session in mine.values():
                session.kept.let_go()
        self._clear_spares()

    def _clear_spares(self) -> None:
        spares, self._spares = self._spares, {}
        for spare in spares.values():
            self._host.discard(spare.link)


def initialize(capabilities: bytes, client: bytes) -> bytes:
    """The params of the bridge's own initialize; both are JSON text."""
    version = ("protocolVersion", quote(LATEST_LEGACY))
    return joined((version, ("capabilities", capabilities), ("clientInfo", client)))


_STRANGERS: Final = (
    "The clients of this listener cannot be told from each other, and the server keeps sessions: "
    "give the bridge a token (--auth-token-file), or let all clients share (--isolation shared)"
)
_AHEAD: Final = 2
"""Processes kept started once modern clients have come: their sets of capabilities come in twos and
threes, each with the first request that has it, and clients do not wait long."""
_QUIET: Final = 5.0
"""Seconds until a spare is opened: at first the processes that are warm are wanted for other sets."""
_LOOK: Final = 0.05
"""Seconds between two looks for an idle session, while a request waits for one."""
