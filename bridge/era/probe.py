"""Which eras a server knows: what its answers say of it, and for how long that is believed.

Two sides, each yes, no or unknown: whether it answers `server/discover`, and whether it can be
initialized. Decides what an answer means and when to look again; who asks, and on which
connection, is the relay's matter. Answers "Versioning and Backward Compatibility" of 2026-07-28
and section 6 of the design.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from bridge.core.message import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Response, error
from bridge.core.splice import joined, quote
from bridge.era.envelope import CAPABILITIES, CLIENT, VERSION
from bridge.era.revisions import LEGACY_VERSIONS, MODERN_VERSIONS, Era

_MISMATCH: Final = -32020
_CAPABILITY: Final = -32021
_UNSUPPORTED: Final = -32022
_OLD_STATUS: Final = frozenset({400, 404, 405, 406, 415, 422})
"""What a server that knows no modern request may answer to its POST (§6.2)."""
_UNREADABLE: Final = frozenset({"upstream_invalid_answer", "invalid_upstream_message"})
_LATE: Final = "upstream_timeout"

BELIEVED: Final = 24 * 3600.0
"""Seconds until what was found out is doubted."""
AGAIN: Final = 30.0
"""Seconds between two looks because of a doubt."""
_FLAPPING: Final = 3
_FLAPPING_TIME: Final = 600.0


class Modern(msgspec.Struct, frozen=True):
    """It knows the modern era; `legacy` is None where it does not say whether it knows the other too."""

    legacy: bool | None


class Legacy(msgspec.Struct, frozen=True):
    """It does not."""


class Again(msgspec.Struct, frozen=True):
    """It does, in this version: ask once more with it."""

    version: str


class Incompatible(msgspec.Struct, frozen=True):
    """It knows no version that the bridge knows."""

    theirs: tuple[str, ...]


class Undecided(msgspec.Struct, frozen=True):
    """It could not be asked, or something on the way answered in its place."""

    why: str


Verdict = Modern | Legacy | Again | Incompatible | Undecided


class _Data(msgspec.Struct):
    origin: str = ""
    reason: str = ""
    status: int | None = msgspec.field(name="httpStatus", default=None)
    upstream: int | None = msgspec.field(name="upstreamCode", default=None)
    supported: list[str] = msgspec.field(default_factory=list)


class _Error(msgspec.Struct):
    code: int = 0
    message: str = ""
    data: Raw = Raw(b"{}")


class _Discovered(msgspec.Struct):
    versions: list[str] = msgspec.field(name="supportedVersions")


def judged(response: Response | None, *, http: bool = False) -> Verdict:
    """What an answer to `server/discover` says; None stands for silence, which over HTTP says nothing."""
    if response is None:
        return Undecided("The server does not answer server/discover") if http else Legacy()
    if response.result is not UNSET:
        return _discovered(response.result)
    said, data = _read(response)
    if data.origin == "bridge":
        return _failed(said, data, http=http)
    match said.code:
        case code if code == _UNSUPPORTED:
            return _unsupported(data.supported)
        case code if code in (_MISMATCH, _CAPABILITY):
            return Modern(legacy=None)
        case _:
            return Legacy()


def _discovered(result: Raw) -> Verdict:
    try:
        versions = msgspec.json.decode(result, type=_Discovered).versions
    except msgspec.DecodeError:
        return Legacy()
    if not any(version in MODERN_VERSIONS for version in versions):
        return Legacy()
    return Modern(legacy=any(version in LEGACY_VERSIONS for version in versions))


def _unsupported(theirs: Sequence[str]) -> Verdict:
    common = [version for version in MODERN_VERSIONS if version in theirs]
    if common:
        return Again(common[-1])
    known = any(version in LEGACY_VERSIONS for version in theirs)
    return Legacy() if known else Incompatible(tuple(theirs))


def _failed(said: _Error, data: _Data, *, http: bool) -> Verdict:
    """An error of the bridge's own: nobody answered, or not in JSON-RPC."""
    if data.status in _OLD_STATUS or (data.status is None and data.reason in _UNREADABLE):
        return Legacy()
    return Legacy() if data.reason == _LATE and not http else Undecided(said.message)


def refused(response: Response) -> bool:
    """Whether a refusal of `initialize` may mean that the server is modern only."""
    if response.error is UNSET:
        return False
    said, data = _read(response)
    if data.origin == "bridge":
        return data.status in (400, 404)
    return said.code in (_UNSUPPORTED, _MISMATCH, METHOD_NOT_FOUND, INVALID_REQUEST, INVALID_PARAMS)


def shows_modern(response: Response) -> bool:
    """Whether a server that was spoken to as a legacy one gave an error that only modern ones know."""
    if response.error is UNSET:
        return False
    said, data = _read(response)
    if data.origin == "bridge":
        return False
    # Behind the translation the server's own code is in the data.
    return (said.code if data.upstream is None else data.upstream) in (_UNSUPPORTED, _MISMATCH)


def _read(response: Response) -> tuple[_Error, _Data]:
    try:
        said = msgspec.json.decode(response.error or b"{}", type=_Error)
    except msgspec.DecodeError:
        return _Error(), _Data()
    try:
        return said, msgspec.json.decode(said.data, type=_Data)
    except msgspec.DecodeError:
        return said, _Data()


def discovery(version: str, client: bytes) -> bytes:
    """The params of the bridge's own `server/discover`; `client` is its clientInfo as JSON text."""
    meta = joined(((VERSION, quote(version)), (CLIENT, client), (CAPABILITIES, b"{}")))
    return b'{"_meta":%b}' % meta


class Eras:
    """What is known of one server. `configured` settles it; `clock` gives seconds, `warn` is told.

    `http` is whether it is asked over HTTP.
    """

    def __init__(
        self,
        configured: Era | None,
        clock: Callable[[], float],
        warn: Callable[[str], None],
        *,
        http: bool = False,
    ) -> None:
        self._configured = configured
        self._warn = warn
        self._clock = clock
        self._http = http
        self._modern: bool | None = None
        self._legacy: bool | None = None
        self._at = clock()
        self._shown: bool | None = None
        """Whether it showed itself modern when it was last asked; kept when that is doubted."""
        self._repeated = False
        """Whether it was asked once more because it said that it knows a version."""
        self._doubted: float | None = None
        self._changes: deque[float] = deque(maxlen=_FLAPPING)
        self._dies = False
        """Whether it once exited because it was asked."""
        self.fault: str | None = None
        """Why the last look found nothing out; None if it did."""
        self.heard = ""
        """The error that the last look met, whatever it was taken for."""

    @property
    def probing(self) -> bool:
        """Whether it is to be asked: not where that was told, nor where the question kills it."""
        return self._configured is None and not self._dies

    @property
    def unknown(self) -> bool:
        """Whether asking it would tell something new."""
        return self.probing and self._modern is None

    @property
    def in_force(self) -> str | None:
        """Which translation there is, in words; None while that is not known."""
        if self._configured is not None:
            other = Era.LEGACY if self._configured is Era.MODERN else Era.MODERN
            told = f"the server is {self._configured.value}, by configuration"
            return f"{told}: {other.value} clients are translated"
        if self._modern is None:
            return None
        if not self._modern:
            return "the server is legacy only: modern clients are translated"
        if self._legacy:
            return "the server speaks both eras: nothing is translated"
        return None if self._legacy is None else "the server is modern only: legacy clients are translated"

    def speak(self, client: Era) -> Era | None:
        """The era to speak to the server for such a client; None while that is not known.

        That of the client, where the server knows it or nobody knows better; the other where not.
        """
        if self._configured is not None:
            return self._configured
        if self._clock() - self._at > BELIEVED:
            self._modern, self._dies, self._at = None, False, self._clock()
        if client is Era.MODERN:
            return None if self._modern is None else Era.MODERN if self._modern else Era.LEGACY
        if self._legacy is False and self._modern:
            return Era.MODERN
        return Era.LEGACY if self._legacy else None

    def learn(self, response: Response | None, *, exited: bool) -> str | None:
        """Draw the consequence of an answer to `server/discover`; a version to ask with once more, if any."""
        self.fault = None
        self.heard = "" if response is None or response.error is UNSET else _read(response)[0].message
        repeated, self._repeated = self._repeated, False
        if exited and not self._shown:
            self._dies = True
            self._settle(modern=False)
            return None
        match judged(response, http=self._http):
            case Modern(legacy):
                self._settle(modern=True)
                self._list(legacy)
            case Legacy():
                self._settle(modern=False)
            case Again() if repeated:  # it knows the version, whatever else it has against the question
                self._settle(modern=True)
            case Again(version):
                self._repeated = True
                return version
            case Incompatible(theirs):
                ours = ", ".join((*LEGACY_VERSIONS, *MODERN_VERSIONS))
                self.fault = f"The server speaks {', '.join(theirs) or 'nothing'}; the bridge speaks {ours}"
            case Undecided(why):
                self.fault = why
        return None

    def _list(self, legacy: bool | None) -> None:
        """What a DiscoverResult says of the other era; that it was initialized says more."""
        if legacy is not None and not self._legacy:
            self._legacy = legacy

    def _settle(self, *, modern: bool) -> None:
        now = self._clock()
        if self._shown is not None and self._shown is not modern:
            self._changes.append(now)
        self._shown = modern
        flapping = len(self._changes) == _FLAPPING and now - self._changes[0] < _FLAPPING_TIME
        if flapping and modern:
            self._warn("the server's era keeps changing; it is taken for a legacy one")
        self._modern, self._at = modern and not flapping, now

    def initialised(self) -> None:
        """It was initialized."""
        self._legacy = True

    def refused_initialize(self) -> bool:
        """It could not be initialized; whether that is because it is modern only."""
        if self._modern and not self._legacy:
            self._legacy = False
        return self._modern is True and self._legacy is False

    def may_be_modern(self, response: Response) -> bool:
        """Whether to ask a server that refused `initialize` for its modern side.

        Of one that was taken for legacy but never initialized, any such refusal is a reason for doubt,
        unless it was asked just now.
        """
        if self._configured is not None:
            return False
        if self._modern is not False and not self._legacy:
            return refused(response)
        doubtful = shows_modern(response)
        if not self._legacy and self._clock() - self._at >= AGAIN:
            doubtful = refused(response)
        return doubtful and self._look_again()

    def doubt(self, method: str, response: Response, spoken: Era) -> bool:
        """Whether an error shows that the server changed its era (§6.3); then it is to be asked again."""
        if self._configured is not None or not _doubtful(method, response, spoken):
            return False
        return self._look_again()

    def beside(self, response: Response) -> Response | None:
        """A failed `initialize` that tells what was found before it too, if that adds anything.

        So it does where a URL answered neither question in JSON-RPC: it may be the wrong one (§6.2).
        """
        said, data = _read(response)
        if not self.heard or self._modern is not False or data.status not in _OLD_STATUS:
            return None
        text = f"{said.message}; and to server/discover: {self.heard}"
        return error(response.id, said.code, text, bytes(said.data))

    def _look_again(self) -> bool:
        """Believe nothing any more, unless that was so a moment ago."""
        now = self._clock()
        if self._doubted is not None and now - self._doubted < AGAIN:
            return False
        self._doubted = now
        self._modern = self._legacy = None
        self._dies = False
        return True


def _doubtful(method: str, response: Response, spoken: Era) -> bool:
    if spoken is Era.LEGACY:
        return shows_modern(response)
    if response.error is UNSET:
        return False
    said, data = _read(response)
    if data.origin == "bridge":
        return data.status in (400, 404, 405)
    return method == "server/discover" and said.code == METHOD_NOT_FOUND
