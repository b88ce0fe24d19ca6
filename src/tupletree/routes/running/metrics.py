"""Prometheus metrics of routes, beside those of the topology that they compile to.

Numbers are read from ledger and brokers when they are asked for, and cost nothing in between. Needs the extra
`metrics`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from tupletree.errors import ConnectorError, needing
from tupletree.routes.running.services import Services

with needing("metrics need the package prometheus-client", "metrics"):
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

logger = logging.getLogger("tupletree.routes")


class RouteCollector(Collector):
    """Metrics of a pipeline's routes; register it in a registry, or let `PipelineRun.serve_metrics` do it.

    While the ledger or a broker is not available, its metrics are left out.

    Args:
        services: of the run.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not read any numbers."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        for metrics in (self._of_ledger, self._of_queues):
            try:
                yield from [*metrics()]
            except ConnectorError as error:
                logger.debug("some metrics of routes are left out: %s", error)

    def _of_ledger(self) -> Iterator[Metric]:
        pipeline = self._services.run.spec.name
        messages = GaugeMetricFamily(
            "tupletree_route_messages", "Messages by route and state.", labels=["pipeline", "route", "state"]
        )
        attempts = CounterMetricFamily(
            "tupletree_route_attempts",
            "Attempts that failed, and that never ended, as their process did.",
            labels=["pipeline", "route", "what"],
        )
        for counts in self._services.ledger.counts(pipeline=pipeline):
            for state, count in counts.states.items():
                messages.add_metric([pipeline, counts.route, state], count)
            attempts.add_metric([pipeline, counts.route, "failed"], counts.failed_attempts)
            attempts.add_metric([pipeline, counts.route, "lost"], counts.lost_attempts)
        yield messages
        yield attempts

    def _of_queues(self) -> Iterator[Metric]:
        spec = self._services.run.spec
        depths = GaugeMetricFamily(
            "tupletree_route_queue_messages",
            "Messages in the inbound queue of a route, by state.",
            labels=["pipeline", "route", "queue", "state"],
        )
        for name, route in spec.routes.items():
            queue = route.inbound.queue
            depth = self._services.broker(queue).depth(queue)
            for state in ("ready", "leased", "delayed", "dead"):
                depths.add_metric([spec.name, name, queue, state], getattr(depth, state))
        yield depths
