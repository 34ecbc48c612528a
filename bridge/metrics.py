"""What a process has done and what is the case in it, for Prometheus.

Decides the names of metrics and of their labels, and keeps those few: a label holds what the
configuration names or what a table here lists, never what a client or a server may choose (tools,
callers, methods and codes of their own). Requests are counted as they close; all else is asked for when
somebody scrapes, so that it costs nothing in between. See docs/metrics.md.

The counts are plain integers and become prometheus-client's metrics at a scrape: a counter and a
histogram of its own, each behind a lock, took three times as long for every request.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from bridge import __version__
from bridge.core.message import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
)
from bridge.observe import Entry, Outcome
from bridge.status import BridgeStatus, ServerStatus

OTHER: Final = "other"

METHODS: Final = frozenset({
    "initialize", "ping", "server/discover", "subscriptions/listen",
    "tools/list", "tools/call", "prompts/list", "prompts/get",
    "resources/list", "resources/templates/list", "resources/read", "resources/subscribe",
    "resources/unsubscribe", "completion/complete", "logging/setLevel",
    "tasks/get", "tasks/result", "tasks/list", "tasks/cancel", "tasks/update",
})  # fmt: skip
"""What a client may request, by any revision; everything else is `other`."""

CODES: Final = frozenset({
    PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR,
    -32000, -32001, -32002, -32020, -32021, -32022, -32042,
})  # fmt: skip
"""The error codes of JSON-RPC and of MCP's revisions, and the two that its SDKs use."""

BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600,
)  # fmt: skip
"""Upper bounds in seconds: from what the bridge itself takes to what patient clients wait."""

_BOUNDS: Final = (*(f"{bound:g}" for bound in BUCKETS), "+Inf")
_OPENMETRICS: Final = "application/openmetrics-text"
_TYPES: Final = {
    True: f"{_OPENMETRICS}; version=1.0.0; charset=utf-8",
    False: "text/plain; version=0.0.4; charset=utf-8",
}


class Metrics:
    """A watcher. `status` is asked once a scrape, and `lost` for the lines that each log had to let go."""

    def __init__(
        self,
        status: Callable[[], BridgeStatus],
        lost: Mapping[str, Callable[[], int]] = MappingProxyType({}),
    ) -> None:
        self._rows: dict[tuple[str, str, str, str], _Row] = {}
        self._registry = CollectorRegistry()
        self._registry.register(_Exchanges(self._rows))
        self._registry.register(_Snapshot(status))
        self._registry.register(_Losses(lost))
        ProcessCollector(registry=self._registry)
        self._lag = Gauge(
            "mcp_bridge_event_loop_lag_seconds",
            "How late the event loop was when it last looked.",
            registry=self._registry,
        )

    def opened(self, entry: Entry) -> None:
        self._row(entry).open += 1

    def closed(self, entry: Entry) -> None:
        self._row(entry).close(entry)

    def lag(self, seconds: float) -> None:
        """How much later than planned the event loop just ran."""
        self._lag.set(seconds)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The body of a scrape and its content type, as the `Accept` header asks."""
        return self.scrape(accept)()

    def scrape(self, accept: str) -> Callable[[], tuple[bytes, str]]:
        """`render` in two steps: what is the case is taken now, and may be spelled in another thread.

        Ten servers with every method and both eras are some 5,000 lines, which take 40 ms and more.
        """
        media = {one.partition(";")[0].strip().lower() for one in accept.split(",")}
        wanted = _OPENMETRICS in media
        write = openmetrics.generate_latest if wanted else generate_latest
        taken = CollectorRegistry()
        taken.register(_Taken(list(self._registry.collect())))
        return lambda: (write(taken), _TYPES[wanted])

    def _row(self, entry: Entry) -> _Row:
        method = entry.method
        key = (entry.server, method if method in METHODS else OTHER, entry.era, entry.transport)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row()
        return row


class _Taken(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


class _Row:
    """The counts of what has server, method, era and transport in common."""

    __slots__ = ("answer", "buckets", "codes", "open", "outcomes", "request", "seconds", "translated")

    def __init__(self) -> None:
        self.open = self.request = self.answer = self.translated = 0
        self.outcomes: dict[str, int] = {}
        self.codes: dict[int | str, int] = {}
        self.buckets = [0] * len(_BOUNDS)
        self.seconds = 0.0

    def close(self, entry: Entry) -> None:
        self.open -= 1
        self.request += entry.size
        self.translated += entry.translated
        outcome = entry.outcome
        assert outcome is not None
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if entry.answer is not None:
            self.answer += len(entry.answer.raw)
        if outcome is not Outcome.REFUSED:
            # A flood of refusals, each at once, would make a slow server look quick.
            self.buckets[bisect_left(BUCKETS, entry.seconds)] += 1
            self.seconds += entry.seconds
        if entry.code is not None:
            code = entry.code if entry.code in CODES else OTHER
            self.codes[code] = self.codes.get(code, 0) + 1


class _Exchanges(Collector):
    """The rows, summed up as each metric wants them."""

    def __init__(self, rows: Mapping[tuple[str, str, str, str], _Row]) -> None:
        self._rows = rows

    def describe(self) -> Iterable[Metric]:
        return _exchanges({})

    def collect(self) -> Iterable[Metric]:
        return _exchanges(self._rows)


def _exchanges(rows: Mapping[tuple[str, str, str, str], _Row]) -> Iterator[Metric]:
    total = CounterMetricFamily(
        "mcp_bridge_exchanges",
        "Requests of clients that are over.",
        labels=("server", "method", "outcome", "era", "transport"),
    )
    in_flight, size = Counter[str](), Counter[tuple[str, str]]()
    translated, errors = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for (server, method, era, transport), row in rows.items():
        for outcome, count in row.outcomes.items():
            total.add_metric((server, method, outcome, era, transport), count)
        in_flight[server] += row.open
        size[server, "request"] += row.request
        size[server, "answer"] += row.answer
        if row.translated:
            translated[server, _TRANSLATIONS[era]] += row.translated
        for code, count in row.codes.items():
            errors[server, str(code)] += count
    yield total
    yield _durations(rows)
    yield _counter(
        "exchange_bytes", "Bytes of requests and of their answers, JSON only.", ("server", "direction"), size
    )
    yield _counter(
        "translated_exchanges",
        "Requests that were translated between the eras.",
        ("server", "direction"),
        translated,
    )
    yield _counter("errors", "JSON-RPC errors that clients were answered with.", ("server", "code"), errors)
    open_now = GaugeMetricFamily(
        "mcp_bridge_exchanges_in_flight", "Requests of clients that are not over.", labels=("server",)
    )
    for server, count in in_flight.items():
        open_now.add_metric((server,), count)
    yield open_now


_TRANSLATIONS: Final = {"legacy": "legacy_to_modern", "modern": "modern_to_legacy"}


def _durations(rows: Mapping[tuple[str, str, str, str], _Row]) -> Metric:
    family = HistogramMetricFamily(
        "mcp_bridge_exchange_duration_seconds",
        "From a request to its answer or its end, those refused left out.",
        labels=("server", "method"),
    )
    sums: dict[tuple[str, str], tuple[list[int], float]] = {}
    for (server, method, *_), row in rows.items():
        buckets, seconds = sums.get((server, method), ([0] * len(_BOUNDS), 0.0))
        both = [mine + more for mine, more in zip(buckets, row.buckets, strict=True)]
        sums[server, method] = both, seconds + row.seconds
    for labels, (buckets, seconds) in sums.items():
        family.add_metric(labels, list(zip(_BOUNDS, accumulate(buckets), strict=True)), seconds)
    return family


def _counter(
    name: str, text: str, labels: tuple[str, str], counts: Mapping[tuple[str, str], int]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"mcp_bridge_{name}", text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


_Read = Callable[[ServerStatus], float]

_GAUGES: Final[tuple[tuple[str, str, _Read], ...]] = (
    ("server_ready", "1 if the server is known to work.", lambda server: server.ready),
    ("server_up", "1 if a process of it runs or a connection stood.", lambda server: server.started),
    ("sessions", "Legacy sessions of clients.", lambda server: server.sessions),
    ("streams", "GET streams and subscriptions.", lambda server: server.streams),
    ("upstreams", "Connections to the server, or its processes, in use.", lambda server: server.upstreams),
    ("children", "Living processes of the server.", lambda server: server.children),
    ("warm_children", "Those not used yet.", lambda server: server.warm),
    ("queued", "What waits for a server or for a stream.", lambda server: server.queued),
    ("suspended_calls", "Calls that wait for their client to come back.", lambda server: server.suspended),
    ("legacy_sse_open", "Connections over HTTP+SSE.", lambda server: server.legacy_sse_open),
)
_COUNTERS: Final[tuple[tuple[str, str, _Read], ...]] = (
    ("starts", "Processes started or connections made.", lambda server: server.starts),
    ("start_failures", "Starts and handshakes that failed.", lambda server: server.failures),
    ("resumptions", "Streams taken up again.", lambda server: server.resumptions),
    ("bytes_to_server", "Bytes written to the server.", lambda server: server.bytes_to_server),
    ("bytes_from_server", "Bytes read from the server.", lambda server: server.bytes_from_server),
    ("legacy_sse_opened", "Connections over HTTP+SSE since start.", lambda server: server.legacy_sse_opened),
)


class _Snapshot(Collector):
    """What is the case now, by one look at it."""

    def __init__(self, status: Callable[[], BridgeStatus]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        """Nothing, since nothing can be asked before the bridge runs."""
        return ()

    def collect(self) -> Iterable[Metric]:
        now = self._status()
        yield InfoMetricFamily(
            "mcp_bridge_build",
            "What runs here.",
            value={"version": __version__, "python": platform.python_version()},
        )
        yield GaugeMetricFamily("mcp_bridge_ready", "1 if every server is ready.", now.ready)
        yield GaugeMetricFamily("mcp_bridge_draining", "1 while it stops.", now.state == "draining")
        yield GaugeMetricFamily(
            "mcp_bridge_config_loaded_timestamp_seconds",
            "When the configuration was last read, since the epoch.",
            now.loaded,
        )
        yield GaugeMetricFamily(
            "mcp_bridge_config_reload_failed",
            "1 if the last reload changed nothing, for a fault.",
            now.reload_fault is not None,
        )
        for name, text, read in _GAUGES:
            gauge = GaugeMetricFamily(f"mcp_bridge_{name}", text, labels=("server",))
            for server in now.servers:
                gauge.add_metric((server.name,), read(server))
            yield gauge
        for name, text, read in _COUNTERS:
            counter = CounterMetricFamily(f"mcp_bridge_{name}", text, labels=("server",))
            for server in now.servers:
                counter.add_metric((server.name,), read(server))
            yield counter


class _Losses(Collector):
    def __init__(self, lost: Mapping[str, Callable[[], int]]) -> None:
        self._lost = lost

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(
            "mcp_bridge_lost_lines",
            "Lines that a log could not take.",
            labels=("log",),
        )
        for log, count in self._lost.items():
            family.add_metric((log,), count())
        yield family
