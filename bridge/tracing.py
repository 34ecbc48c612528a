"""A span for each request, by OpenTelemetry, in the trace of whoever asked (SEP-414).

Decides where a trace comes from (the `_meta` of the request, else the HTTP headers) and what a span
says; how it is put into the message for the server is `core.trace`'s matter, and where spans are sent
that of OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, ...). The
names of attributes are those of its conventions for MCP. Payloads and names of callers are in no span.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from bridge import __version__
from bridge.core.events import Exchange
from bridge.core.trace import KEYS, Carrier, Context, context_of, usable
from bridge.errors import UsageFault
from bridge.observe import Entry, Outcome, name_of

if TYPE_CHECKING:
    from opentelemetry.context import Context as OtelContext
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

log = logging.getLogger("bridge")

_FLUSH: Final = 2000
"""Milliseconds for the last spans to be sent."""
_EXTRA: Final = "--trace needs OpenTelemetry: install 'mcp-transport-bridge[otel]'"


class Traced:
    """What is kept of a request: its span, and the context for the server."""

    __slots__ = ("context", "span")

    def __init__(self, span: Span, context: Context) -> None:
        self.span, self.context = span, context


class Tracer:
    """A watcher; `layer` carries what it finds to the servers. Raises UsageFault without the extra."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise UsageFault(_EXTRA) from None
        self._provider = provider or _exporting()
        self._tracer = self._provider.get_tracer("mcp-bridge", __version__)
        self._format = TraceContextTextMapPropagator()
        self.layer = Carrier(_context_for)

    def opened(self, entry: Entry) -> None:
        from opentelemetry.trace import SpanKind

        given = dict(context_of(entry.request.params) or usable(entry.trace))
        parent = self._format.extract({key: value for key, value in given.items() if key != "baggage"})
        name = name_of(entry.request)
        span = self._tracer.start_span(
            f"{entry.method} {name}" if name else entry.method,
            parent,
            SpanKind.SERVER,
            {
                "mcp.method.name": entry.method,
                "jsonrpc.request.id": str(entry.id),
                "jsonrpc.protocol.version": "2.0",
                "network.transport": "pipe" if entry.transport == "stdio" else "tcp",
                "mcp_bridge.server": entry.server,
                "mcp_bridge.era": entry.era,
                "mcp_bridge.transport": entry.transport,
                **({"gen_ai.tool.name": name} if name and entry.method == "tools/call" else {}),
            },
        )
        carried: dict[str, str] = {}
        self._format.inject(carried, _holding(span))
        if "baggage" in given:
            carried["baggage"] = given["baggage"]
        entry.spans = Traced(span, [(key, carried[key]) for key in KEYS if key in carried])

    def closed(self, entry: Entry) -> None:
        from opentelemetry.trace import StatusCode

        if not isinstance(entry.spans, Traced):
            return
        span = entry.spans.span
        span.set_attribute("mcp_bridge.translated", entry.translated)
        span.set_attribute("mcp_bridge.outcome", str(entry.outcome))
        if entry.outcome is not Outcome.RESULT:
            code = "" if entry.code is None else str(entry.code)
            span.set_attribute("error.type", code or str(entry.outcome))
            if code:
                span.set_attribute("rpc.response.status_code", code)
            span.set_status(StatusCode.ERROR, entry.reason or None)
        span.end()

    def close(self) -> None:
        """Send what was not sent yet."""
        self._provider.force_flush(_FLUSH)
        self._provider.shutdown()


def _context_for(exchange: Exchange) -> Context:
    traced = None if exchange.entry is None else exchange.entry.spans
    return traced.context if isinstance(traced, Traced) else ()


def _holding(span: Span) -> OtelContext:
    from opentelemetry.trace import set_span_in_context

    return set_span_in_context(span)


def _exporting() -> TracerProvider:
    """What sends spans where the environment says."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise UsageFault(_EXTRA) from None
    named = not str(Resource.create().attributes["service.name"]).startswith("unknown_service")
    own = {"service.version": __version__, **({} if named else {"service.name": "mcp-bridge"})}
    provider = TracerProvider(resource=Resource.create(own))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
