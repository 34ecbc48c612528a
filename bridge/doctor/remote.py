"""The examination of a server at a URL: Streamable HTTP in both eras, and HTTP+SSE.

Decides what is looked at in which order, and what a refusal means for whoever asked. The handshakes
are single requests first, since their statuses tell most; what a client would then do is done with
the bridge's own upstreams. Refuses to know which answers are right: `web` has the tables.

Answers basic/transports, Backwards Compatibility, and basic/authorization as far as to report it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final

import anyio
from yarl import URL

from bridge.config import Limits, Remote, Timing, Transport
from bridge.doctor.budget import Budget
from bridge.doctor.child import admit
from bridge.doctor.conversation import (
    LEGACY,
    MODERN_DIALECT,
    Conversation,
    Dialect,
    conversation,
    decoded,
    initialize,
    latency,
    negotiate,
    survey,
)
from bridge.doctor.report import Authorization, Chart, Era, Level, Metadata, excerpt
from bridge.doctor.web import (
    LEGACY_CHECKS,
    MODERN_CHECKS,
    MODERN_VISIT,
    SESSION_ID,
    SSE_CHECKS,
    Check,
    Reply,
    Visit,
    Web,
    is_status,
    opened,
    session_grammar,
    tried,
)
from bridge.era.revisions import LATEST_LEGACY, LEGACY_VERSIONS
from bridge.errors import ServerFault
from bridge.upstream.http_answer import LISTEN, POST
from bridge.upstream.http_client import HttpClient
from bridge.upstream.http_sse import ForeignEndpoint
from bridge.upstream.remote import RemoteSource
from bridge.values import is_loopback

HTTP, SSE = "Streamable HTTP", "HTTP+SSE"
_WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
_JSON: Final = {"Accept": "application/json"}
_DELETED: Final = frozenset({200, 202, 204})
_GONE: Final = Check(row="HL-19", level=Level.MUST, text="404 for an ended session", met=is_status(404))


async def examine(remote: Remote, given: Timing, chart: Chart, budget: Budget) -> None:
    """Fill in the chart. Raises UsageFault for options that cannot be used."""
    timing = budget.timing(given)
    async with HttpClient(remote, timing) as client:
        with anyio.move_on_after(budget.examination):
            try:
                await _Examination(remote, Web(client), timing, chart, budget).run()
            except ServerFault as fault:
                chart.ails(f"{fault}. {_advice(str(fault))}")
            chart.complete = True


class _Examination:
    def __init__(self, remote: Remote, web: Web, timing: Timing, chart: Chart, budget: Budget) -> None:
        self._remote, self._web, self._timing = remote, web, timing
        self._chart, self._budget = chart, budget
        self._url = web.client.url
        self._local = remote.socket is None and is_loopback(self._url.host or "")

    async def run(self) -> None:
        """Raises ServerFault if the server cannot be reached at all."""
        if not self._remote.verify:
            text = "certificates are not verified, so that this may be another server"
            self._chart.found("TLS", Level.ADVICE, False, text)
        opening = await self._first()
        await self._authorization(opening)
        if opening.status == 401:
            self._chart.ails(_refusal(opening, self._web.client, self._remote))
            return
        if self._remote.transport is not Transport.SSE:
            await self._legacy(opening)
            await self._modern()
        if not self._chart.transports and self._remote.transport is not Transport.HTTP:
            await self._sse()
        elif self._chart.transports and self._remote.transport is Transport.AUTO:
            await self._sse_beside()

    async def _first(self) -> Reply:
        """What shows whether anybody is there: `initialize`, or where that is not wanted, the GET."""
        if self._remote.transport is Transport.SSE:
            return await self._web.send("GET", LISTEN, None, self._budget.first)
        return await self._post_initialize(LATEST_LEGACY, self._budget.first)

    async def _post_initialize(self, version: str, within: float) -> Reply:
        body = {"id": 1, "method": "initialize", "params": initialize(version)}
        return await self._web.send("POST", POST, body, within)

    # Streamable HTTP

    async def _legacy(self, opening: Reply) -> None:
        if not isinstance((opening.result or {}).get("protocolVersion"), str) or opening.status != 200:
            self._chart.eras["legacy"] = Era(works=False, fault=f"initialize is answered with {opening.told}")
            self._chart.ails(_refusal(opening, self._web.client, self._remote))
            return
        self._chart.speaks(HTTP)
        visit = opened(opening, local=self._local)
        if visit.session:
            self._chart.findings.append(session_grammar(visit))
        await self._try(LEGACY_CHECKS, visit)
        await self._leave(visit)
        async with self._talking(self._remote, Transport.HTTP) as talk:
            await self._survey(LEGACY, talk)
        for version in LEGACY_VERSIONS[:-1]:
            await self._offer(version)

    async def _leave(self, visit: Visit) -> None:
        """End the session, and see that it is ended."""
        if not visit.session:
            return
        status = await self._delete(visit)
        ok = status in _DELETED or status == 405
        text = "DELETE ends the session, or 405" + ("" if ok else f": got HTTP {status}")
        self._chart.found("HL-20", Level.ADVICE, ok, text)
        if status in _DELETED:
            await self._try((_GONE,), visit)

    async def _delete(self, visit: Visit) -> int:
        headers = {name: value for name, value in visit.headers.items() if name != "Content-Type"}
        return (await self._web.send("DELETE", headers, None, self._budget.each)).status

    async def _offer(self, version: str) -> None:
        """A session each, which is ended again."""
        try:
            reply = await self._post_initialize(version, self._budget.each)
            if SESSION_ID in reply.headers:
                await self._delete(opened(reply, local=False))
        except ServerFault:
            return
        got = (reply.result or {}).get("protocolVersion")
        self._chart.offered(version, got if isinstance(got, str) else "refused")

    async def _modern(self) -> None:
        try:
            reply = await self._web.send(
                "POST", MODERN_VISIT.headers, MODERN_VISIT.body, self._budget.opening
            )
        except ServerFault as fault:
            self._chart.eras["modern"] = Era(works=False, fault=str(fault))
            return
        if reply.status != 200 or "supportedVersions" not in (reply.result or {}):
            text = f"server/discover is answered with {reply.told}"
            self._chart.eras["modern"] = Era(works=False, fault=text)
            return
        self._chart.speaks(HTTP)
        if SESSION_ID in reply.headers:
            self._chart.found("HM-15", Level.SHOULD, False, "no session id is given")
        sole = not self._works("legacy")
        await self._try(MODERN_CHECKS, replace(MODERN_VISIT, local=self._local, sole=sole))
        async with self._talking(self._remote, Transport.HTTP) as talk:
            await self._survey(MODERN_DIALECT, talk)

    def _works(self, era: str) -> bool:
        return era in self._chart.eras and self._chart.eras[era].works

    async def _try(self, checks: tuple[Check, ...], visit: Visit) -> None:
        for check in checks:
            if check.when(visit):
                self._chart.findings.append(await tried(self._web, check, visit, self._budget.each))

    @asynccontextmanager
    async def _talking(
        self, remote: Remote, transport: Transport
    ) -> AsyncIterator[Conversation | ServerFault]:
        """A conversation, or why there is none; raised in here, a fault would come out in a group."""
        remote = replace(remote, transport=transport)
        async with RemoteSource(remote, Limits(), self._timing) as source, AsyncExitStack() as stack:
            try:
                found: Conversation | ServerFault = await stack.enter_async_context(conversation(source))
            except ServerFault as fault:
                found = fault
            yield found

    async def _survey(self, dialect: Dialect, talk: Conversation | ServerFault) -> None:
        """What a client finds."""
        try:
            if isinstance(talk, ServerFault):
                raise talk
            found = await survey(talk, dialect, self._budget.opening, self._budget.each)
        except ServerFault as fault:
            self._chart.eras[dialect.era] = Era(works=False, fault=str(fault))
            self._chart.ails(f"The server is there, but {fault}; look into its own log")
            return
        admit(self._chart, dialect, found)
        if self._chart.latency is None:
            self._chart.latency = await latency(talk, dialect, self._budget.each)

    # HTTP+SSE

    async def _sse(self) -> None:
        async with self._talking(self._remote, Transport.SSE) as talk:
            if isinstance(talk, ServerFault):
                self._no_sse(talk)
                return
            self._chart.speaks(SSE)
            # That it does not speak Streamable HTTP is no ailment of it.
            self._chart.ailment = None
            self._chart.found("ES-2", Level.MUST, True, "an endpoint event comes first")
            await self._survey(LEGACY, talk)
        await self._try(SSE_CHECKS, Visit(LISTEN, {}))
        if self._works("legacy"):
            for version in LEGACY_VERSIONS[:-1]:
                await self._offer_over_sse(version)

    def _no_sse(self, fault: ServerFault) -> None:
        if isinstance(fault, ForeignEndpoint):
            self._chart.speaks(SSE)
            self._chart.found("ES-5", Level.ADVICE, False, str(fault))
            self._chart.ailment = f"{fault}. Give --rewrite-endpoint if the server only misnames itself"
        else:
            self._chart.ails(f"{fault}. Check the URL's path: it is often /mcp, or /sse for HTTP+SSE")

    async def _offer_over_sse(self, version: str) -> None:
        async with self._talking(self._remote, Transport.SSE) as talk:
            if isinstance(talk, ServerFault):
                return
            try:
                got = await negotiate(talk, version, self._budget.each)
            except ServerFault:
                got = None
        self._chart.offered(version, got or "refused")

    async def _sse_beside(self) -> None:
        """Whether the same server also has old clients in mind, in the usual place."""
        beside = replace(self._remote, url=str(self._url.join(URL("sse"))))
        async with self._talking(beside, Transport.SSE) as talk:
            if not isinstance(talk, ServerFault):
                self._chart.speaks(SSE)
                text = "an endpoint event comes first, on the path beside"
                self._chart.found("ES-2", Level.MUST, True, text)

    # Authorization

    async def _authorization(self, opening: Reply) -> None:
        """Report what is asked for and what is told of it; nothing is fetched from elsewhere."""
        paths = dict.fromkeys((_WELL_KNOWN + self._url.path.rstrip("/"), _WELL_KNOWN))
        found = [one for path in paths if (one := await self._metadata(path)) is not None]
        challenge = opening.headers.get("WWW-Authenticate")
        self._chart.authorization = Authorization(
            opening.status == 401,
            None if challenge is None else self._web.client.redacted(challenge),
            tuple(found),
        )
        if opening.status == 401:
            text = "a 401 has a WWW-Authenticate header"
            self._chart.found("401", Level.MUST, challenge is not None, text)

    async def _metadata(self, path: str) -> Metadata | None:
        url = self._url.with_path(path).with_query(None)
        try:
            reply = await self._web.send("GET", _JSON, None, self._budget.each, url)
        except ServerFault:
            return None
        document = decoded(reply.body) if reply.status == 200 else {}
        return Metadata(path, reply.status, document if "resource" in document else None)


# Words


def _refusal(reply: Reply, client: HttpClient, remote: Remote) -> str:
    """What an answer to `initialize` that opens nothing means, and what to do about it."""
    told = f"HTTP {reply.status}"
    said = _said(reply, client)
    match reply.status:
        case 401 if any(name.lower() == "authorization" for name, _ in remote.headers):
            return f"The server refuses the credentials that were given ({told}): renew them"
        case 401:
            return f"The server wants authorization ({told}): give --header 'Authorization: Bearer TOKEN'"
        case 403:
            return f"The server refuses us ({told}{said}): check the credentials, and the hosts it allows"
        case 404 | 405:
            return f"There is no MCP endpoint at this URL ({told}{said}): check its path, often /mcp or /sse"
        case status if status >= 500:
            return f"The server fails ({told}{said}): look into its log, or that of the proxy before it"
        case 200 if reply.error:
            return f"The server refuses initialize{said}"
        case 200 if reply.kind == "text/html":
            return f"A web page is at this URL, not an MCP endpoint ({told}, text/html): check its path"
        case status if status < 300:
            kind = reply.kind or "nothing"
            return f"What answers is no MCP endpoint ({told}, {kind}{said}): check the URL"
        case _:
            return f"The server refuses initialize ({told}{said})"


def _said(reply: Reply, client: HttpClient) -> str:
    text = str(reply.error.get("message") or "")
    if not text and reply.kind != "text/html":
        text = reply.body.decode(errors="replace")
    return f": {excerpt(client.redacted(text))}" if text.strip() else ""


_ADVICE: Final = {
    "certificate": "Give --ca-file if its authority is one of your own",
    "redirects": "Give the URL that it redirects to",
    "does not answer": "If it is only slow, give a longer --timeout",
    "no valid HTTP": "Check the URL: http or https, and the port",
    "closed the connection": "Check the URL: http or https, and the port",
}


def _advice(fault: str) -> str:
    """What to do about a server that cannot be reached."""
    fitting = (advice for word, advice in _ADVICE.items() if word in fault)
    return next(fitting, "Check that the server runs, and that it listens at this address and port")
