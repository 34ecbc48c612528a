"""What watches the requests of a process, and what stands at the client's end of its pipelines.

Decides who watches, by the configuration; what each of them does is its own matter. What is not
asked for is not imported.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from bridge.config import Config, Daemon, Policy
from bridge.core.layer import Layer
from bridge.observe import Watcher
from bridge.status import BridgeStatus

if TYPE_CHECKING:
    from bridge.audit import AuditLog
    from bridge.metrics import Metrics
    from bridge.record import Recorder
    from bridge.tracing import Tracer


class Operations:
    """`status` says what is the case, for who shows it. Use as a context manager.

    Raises UsageFault for a file that cannot be written.
    """

    def __init__(self, daemon: Daemon, status: Callable[[], BridgeStatus] | None = None) -> None:
        self._daemon = daemon
        self._stack = ExitStack()
        self.metrics: Metrics | None = None
        self.audit: AuditLog | None = None
        watchers: list[Watcher] = []
        if daemon.admin.wanted and status is not None:
            from bridge.metrics import Metrics

            self.metrics = Metrics(status)
            watchers.append(self.metrics)
        if daemon.audit.target is not None:
            from bridge.audit import AuditLog

            self.audit = AuditLog(daemon.audit)
            self._stack.callback(self.audit.close)
            watchers.append(self.audit)
        self.recorder: Recorder | None = None
        if daemon.record.path is not None:
            from bridge.record import Recorder

            self.recorder = Recorder(daemon.record)
            self._stack.callback(self.recorder.close)
        self.tracer: Tracer | None = None
        if daemon.tracing.enabled:
            from bridge.tracing import Tracer

            self.tracer = Tracer()
            self._stack.callback(self.tracer.close)
            watchers.append(self.tracer)
        self.watchers: tuple[Watcher, ...] = tuple(watchers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def layers(self, config: Config) -> tuple[Layer, ...]:
        """What stands at the client's end of this server's pipelines, outermost first."""
        layers: list[Layer] = []
        if self.recorder is not None:
            layers.append(self.recorder.tape(config))
        if config.policy != Policy():
            from bridge.core.policy import Gatekeeper

            layers.append(Gatekeeper(config.policy))
        if self.tracer is not None:
            layers.append(self.tracer.layer)
        return tuple(layers)
