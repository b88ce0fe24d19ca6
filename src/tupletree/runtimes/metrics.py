"""Prometheus metrics of a run: a collector for any registry, and an HTTP server on the loopback address.

Needs the extra `metrics` (prometheus-client). Numbers are read from the run when they are asked for, and cost
nothing in between. Totals are over the life of the state directory, as in `Progress`; what is a counter never falls.
"""

from __future__ import annotations

import ipaddress
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from tupletree.errors import ConfigError, needing
from tupletree.runtimes.api import Progress, RunHandle
from tupletree.runtimes.deadletters import dropped_count

with needing("metrics need the package prometheus-client", "metrics"):
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

STATES = (
    "created",
    "activated",
    "processing",
    "paused",
    "waiting",
    "draining",
    "stopping",
    "restarting",
    "stopped",
    "failed",
)
_BEFORE = {"created", "activated"}
LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")
MAX_REQUESTS = 4
REQUEST_TIMEOUT_S = 5.0

logger = logging.getLogger("tupletree.runtimes")


class RunCollector(Collector):
    """Metrics of one run; register it in a registry of your own, or let `serve_metrics` do it.

    Args:
        handle: the run.
        topology, runtime: labels of every metric.
    """

    def __init__(self, handle: RunHandle, topology: str, runtime: str) -> None:
        self._handle = handle
        self._labels = {"topology": topology, "runtime": runtime}
        self._shown: dict[tuple[str, str], float] = {}  # counter and its label → the most that was shown

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not read the run's numbers."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        progress = self._handle.progress()
        yield from self._totals(progress)
        yield self._gauge("tupletree_open_messages", "Messages without an outcome.", progress.open)
        text = "Messages acked per second, over the last seconds."
        yield self._gauge("tupletree_acked_per_second", text, progress.rate_per_s)
        if progress.epoch >= 0:
            yield self._gauge("tupletree_epoch", "The last settled epoch.", progress.epoch)
        latencies = {"0.5": progress.latency_p50_ms, "0.95": progress.latency_p95_ms}
        known = {quantile: ms / 1000.0 for quantile, ms in latencies.items() if ms is not None}
        yield self._gauges("tupletree_latency_seconds", "Emit to ack of recent messages.", "quantile", known)
        counts = progress.outage_counts
        yield self._counter("tupletree_outages", "Outages met by this process, by component.", "component", counts)
        lasting = {**dict.fromkeys(counts, 0.0), **{one.component: one.for_s for one in progress.outages}}
        text = "How long a component has waited for something outside that is not available; 0: it does not wait."
        yield self._gauges("tupletree_outage_seconds", text, "component", lasting)
        held = GaugeMetricFamily(
            "tupletree_held",
            "Messages, tuples and calls that wait, by what holds them and where; see `Progress.holds`.",
            labels=[*self._labels, "component", "kind"],
        )
        for hold in progress.holds:
            held.add_metric([*self._labels.values(), hold.component, hold.kind], hold.count)
        yield held
        yield from self._of_last_record()
        states = {name: float(name == progress.state) for name in STATES}
        yield self._gauges("tupletree_state", "1 for the state that it is in.", "state", states)

    def _totals(self, progress: Progress) -> Iterator[Metric]:
        """None before the run knows those of earlier starts: from nothing to them would look like growth."""
        if progress.state in _BEFORE and not progress.emitted:
            return
        text = "Messages that ended, by outcome. One that was dead and is replayed ends once more."
        ended = {"acked": progress.acked, "dead": progress.dead + progress.replayed}
        yield self._counter("tupletree_messages", text, "outcome", ended)
        attempts = {"failed": progress.failed, "retried": progress.retried}
        yield self._counter("tupletree_attempts", "Attempts that failed, and that were made again.", "what", attempts)
        others = {name: getattr(progress, name) for name in ("untracked", "untracked_failed", "joined")}
        text = "Messages and failed tuples that are in no other count."
        yield self._counter("tupletree_other_messages", text, "what", others)
        yield self._counter("tupletree_sink_rows", "Rows published, by sink.", "sink", progress.outputs)
        text = "Tuples that were too late, by window or join."
        yield self._counter("tupletree_late_tuples", text, "component", progress.late)
        tuples = {bolt: done.tuples for bolt, done in progress.work.items()}
        yield self._counter("tupletree_bolt_tuples", "Tuples that the calls of a bolt took.", "component", tuples)
        seconds = {bolt: done.seconds for bolt, done in progress.work.items()}
        yield self._counter("tupletree_bolt_seconds", "How long the calls of a bolt lasted.", "component", seconds)
        dead_now = max(0, progress.dead - dropped_count(self._handle.state_dir)) if progress.dead else 0
        text = "Dead letters now: those that were replayed or dropped are none any more."
        yield self._gauge("tupletree_dead_letters", text, dead_now)

    def _of_last_record(self) -> Iterator[Metric]:
        """See `ProgressRecord`: the numbers of the last epoch, or second."""
        records = self._handle.recent_progress()
        if not records:
            return
        last = records[-1]
        yield self._gauge("tupletree_open_trees", "Messages whose tuple tree is open.", last.open_trees)
        yield self._gauge("tupletree_oldest_message_seconds", "Age of the oldest open message.", last.oldest_s or 0.0)
        if last.epoch >= 0:
            yield self._gauge("tupletree_epoch_runs", "Runs that the last epoch took.", last.runs)
        steps = {step: ms / 1000.0 for step, ms in last.step_ms.items()}
        text = "How long the steps of the last epoch took."
        yield self._gauges("tupletree_epoch_step_seconds", text, "step", steps)
        state = {"read": last.state_bytes_read, "written": last.state_bytes_written}
        text = "State read and written in the last epoch."
        yield self._gauges("tupletree_epoch_state_bytes", text, "direction", state)
        text = "How far event time has come, by bolt."
        yield self._gauges("tupletree_watermark_seconds", text, "component", last.watermarks)

    def _counter(self, name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
        """A family of counters, by the value of a label.

        A number that has fallen is shown as it was until it has grown again: a sink refuses rows of an epoch that was
        counted, or a part of the run is made anew. To Prometheus a counter that falls has begun again from 0.
        """
        counter = CounterMetricFamily(name, text, labels=[*self._labels, label])
        for key, value in values.items():
            most = self._shown[name, key] = max(value, self._shown.get((name, key), 0.0))
            counter.add_metric([*self._labels.values(), key], most)
        return counter

    def _gauges(self, name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(name, text, labels=[*self._labels, label])
        for key, value in values.items():
            gauge.add_metric([*self._labels.values(), key], value)
        return gauge

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(name, text, labels=[*self._labels])
        gauge.add_metric([*self._labels.values()], value)
        return gauge


class _Server(ThreadingMixIn, WSGIServer):
    """Answers a few requests at a time and closes further ones at once, so that its threads are few."""

    daemon_threads = True

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._free = threading.BoundedSemaphore(MAX_REQUESTS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing for a client that disconnects or sends nothing."""


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class has this name
        """Log nothing for scrapes."""


def _for_this_host(answer: Any) -> Any:
    """Refuse requests to another host's name: a web page can have its name resolve to the loopback address."""

    def checked(environment: dict[str, Any], start_response: Any) -> Any:
        host = environment.get("HTTP_HOST", LOOPBACK)
        if host.rpartition(":")[0] in HOSTS or host in HOSTS:
            return answer(environment, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"metrics are for this host only: use 127.0.0.1 or localhost\n"]

    return checked


@contextmanager
def serve_metrics(
    handle: RunHandle,
    topology: str,
    runtime: str,
    port: int,
    host: str = LOOPBACK,
    *,
    also: Sequence[Collector] = (),
) -> Iterator[int]:
    """Serve the metrics of a run at http://HOST:PORT/metrics while it is entered.

    Args:
        handle: the run.
        topology: a label of every metric.
        runtime: another one.
        port: 0 takes a free one.
        host: an address of this machine. Every client that reaches it can read the metrics: there is no password, so
            any other than loopback is named in a warning.
        also: further collectors.

    Yields:
        The port.

    Raises:
        ConfigError: the port is taken, or this machine has no such address.
    """
    registry = CollectorRegistry()
    for collector in (RunCollector(handle, topology, runtime), *also):
        registry.register(collector)
    try:
        answer = make_wsgi_app(registry)
        server = make_server(host, port, _for_this_host(answer) if _is_loopback(host) else answer, _Server, _Handler)
    except OSError as error:
        raise ConfigError(
            "the metrics cannot be served",
            where=f"{host}:{port}",
            got=str(error),
            next_step="choose another port or address",
        ) from error
    if not _is_loopback(host):
        logger.warning("metrics are served on %s: every host that reaches this machine can read them", host)
    thread = threading.Thread(target=server.serve_forever, name=f"tupletree-{topology}-metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
