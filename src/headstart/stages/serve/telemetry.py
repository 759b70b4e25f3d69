"""What the server measures, in Prometheus' format. No metric contains a text or another part of a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from headstart.stages.serve.bodies import BatchRow

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Telemetry:
    """The metrics of one server."""

    def __init__(self) -> None:
        """Create the metrics in a registry of their own."""
        self.registry = registry = CollectorRegistry()
        self.latency = Histogram(
            "headstart_request_seconds", "Time to answer a request", ("route",), buckets=_SECONDS, registry=registry
        )
        self.replies = Counter(
            "headstart_replies", "Replies by route and status", ("route", "status"), registry=registry
        )
        self.computing = Histogram(
            "headstart_batch_seconds", "Time to compute a batch", buckets=_SECONDS, registry=registry
        )
        self.fill = Histogram(
            "headstart_batch_fill", "Tokens of a batch divided by the budget", buckets=_SHARES, registry=registry
        )
        self.rows = Counter("headstart_rows", "Rows computed", registry=registry)
        self.tokens = Counter("headstart_tokens", "Tokens computed, without padding", registry=registry)
        self.tasks_in_batch = Histogram(
            "headstart_batch_tasks", "Distinct tasks in a batch", buckets=(1, 2, 4, 8, 16, 32, 64), registry=registry
        )
        self.waiting = Gauge("headstart_queue_rows", "Rows that wait for a batch", registry=registry)
        self.dropped = Gauge(
            "headstart_queue_dropped_rows", "Rows dropped since the start: client gone or deadline passed",
            registry=registry,
        )  # fmt: skip
        self.resident = Gauge("headstart_resident_tasks", "Tasks in memory", registry=registry)
        self.resident_bytes = Gauge(
            "headstart_resident_bytes", "Memory of the tasks, without bodies", registry=registry
        )
        self.registered = Gauge("headstart_registered_tasks", "Tasks that can be asked for", registry=registry)
        self.loads = Counter("headstart_task_loads", "Tasks loaded from disk", registry=registry)
        self.evictions = Counter("headstart_task_evictions", "Tasks evicted from memory", registry=registry)
        self.replacements = Counter("headstart_task_replacements", "Tasks replaced by a new version", registry=registry)

    def batch(self, rows: Sequence[BatchRow], seconds: float, budget: int) -> None:
        """Record a computed batch."""
        self.computing.observe(seconds)
        tokens = sum(row.length for row in rows)
        self.fill.observe(min(1.0, tokens / budget))
        self.rows.inc(len(rows))
        self.tokens.inc(tokens)
        self.tasks_in_batch.observe(len({id(row.slot) for row in rows}))

    def render(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self.registry)
