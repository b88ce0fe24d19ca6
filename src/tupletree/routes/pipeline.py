"""Pipelines from Python: load one, run it, give it messages, and know when each execution is complete."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tupletree.config import Options
from tupletree.errors import ConfigError
from tupletree.routes.document.loading import load
from tupletree.routes.document.spec import InitMessage, PipelineSpec
from tupletree.routes.ledger.values import Completed, NewMessage
from tupletree.routes.lost import LostMessage, LostReport, LostWatch, find_lost, settle_lost
from tupletree.routes.payloads import encode
from tupletree.routes.running.compile import topology_of
from tupletree.routes.running.services import RunSpec, Services, services
from tupletree.topology.changes.fingerprint import fingerprint
from tupletree.topology.model import TargetRef

if TYPE_CHECKING:
    from tupletree.routes.ledger.values import Execution
    from tupletree.routes.lineage import LineageSink
    from tupletree.runtimes.api import RunHandle, Summary
    from tupletree.topology.builder import Topology

logger = logging.getLogger("tupletree.routes")

HOME = Path(".tupletree") / "routes"
POLL_S = 0.2
"""How often the ledger is asked about an execution that another process may complete."""

SPARK_LEASES = 20_000
"""Messages that a route leases at a time on Spark: those of two epochs."""


class Pipeline:
    """A pipeline, loaded and checked.

    Args:
        spec: what its document says.
        home: folder of its queue file, ledger and runs; None: `.tupletree/routes/NAME`.
    """

    def __init__(self, spec: PipelineSpec, *, home: str | os.PathLike[str] | None = None) -> None:
        self.spec = spec
        self.home = Path(home) if home is not None else HOME / spec.name

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str],
        *,
        home: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Pipeline:
        """Read a document.

        Args:
            source: path of the YAML file.
            home: see the class.
            environ: for `${NAME}`; None: the process's.

        Raises:
            DocumentError: with every fault.
        """
        return cls(load(source, environ=environ), home=home)

    def run_spec(self, *, key: str, lease_limit: int | None = None, only: Sequence[str] = ()) -> RunSpec:
        """A run of it, as its parts know it.

        Raises:
            ConfigError: `only` names what is no route.
        """
        for name in only:
            _check_route(self.spec, name)
        queue_file = self.spec.queue_file or f"sqlite:///{self.home.absolute() / 'pipeline.db'}"
        return RunSpec(
            spec=self.spec,
            key=key,
            queue_file=queue_file,
            ledger=self.spec.ledger or queue_file,
            lease_limit=lease_limit,
            only=tuple(only),
        )

    def topology(self, run: RunSpec, *, tasks: int = 1, resources: Mapping[str, Any] | None = None) -> Topology:
        """The topology that it compiles to."""
        lineage = self._lineage(run) if self.spec.lineage.needs_records else None
        return topology_of(run, tasks=tasks, resources=resources, lineage=lineage)

    def spark_folder(self, run: RunSpec, topology: Topology) -> Path:
        """The state directory of a run on Spark: one for each set of routes; another where document or name changed.

        What an earlier run had in work is in its own directory, and in the queues, which deliver it again when its
        leases end.
        """
        kept = {
            name: {part: value for part, value in one.items() if part not in {"parallelism", "shapes", "key"}}
            for name, one in fingerprint(topology.build()).items()
        }
        text = json.dumps([self.spec.name, kept], sort_keys=True, default=str)
        return self.home / "-".join(["spark", *sorted(run.only), hashlib.sha256(text.encode()).hexdigest()[:8]])

    def _lineage(self, run: RunSpec) -> LineageSink:
        from tupletree.routes.lineage import Export, LineageSink, RunEventExport, SpanExport, store_beside

        told, routes = self.spec.lineage, self.spec.routes
        exports: list[Export] = []
        if told.spans:
            queues = {name: route.inbound.queue for name, route in routes.items()}
            exports.append(SpanExport(queues, {name: len(route.adapters) for name, route in routes.items()}))
        if told.run_events:
            exports.append(RunEventExport({name: (one.inbound.queue, one.outbound) for name, one in routes.items()}))
        return LineageSink(
            told.store or store_beside(run.ledger),
            self.spec.name,
            level=told.level,
            keep_s=told.keep_days * 86_400,
            exports=exports,
        )

    def run(
        self,
        *,
        runtime: str = "local",
        only: Sequence[str] = (),
        resources: Mapping[str, Any] | None = None,
        options: Options | Mapping[str, Any] | None = None,
        master: str = "local[2]",
        tasks: int | None = None,
    ) -> PipelineRun:
        """Start it, and return at once. It works what its queues hold, until it is stopped.

        Args:
            runtime: "local" or "spark".
            only: routes to run here; empty: all. Other processes may run the others, or the same.
            resources: objects for adapters, by name; on Spark they must be such as can be sent to workers.
            options: of the runtime, as for `tupletree.run`.
            master: Spark master, where no session exists yet.
            tasks: of each bolt; None: 1 locally, 2 on Spark.
        """
        from tupletree.runtimes.run import run as run_topology

        is_spark = runtime == "spark"
        make_home(self.home)
        run = self.run_spec(key=secrets.token_hex(8), lease_limit=SPARK_LEASES if is_spark else None, only=only)
        shared = services.acquire(run)
        try:
            shared.ledger.go_on(self.spec.name)
            shared.note_queues()
            topology = self.topology(run, tasks=tasks or (2 if is_spark else 1), resources=resources)
            state_dir = self.spark_folder(run, topology) if is_spark else _fresh(self.home / "runs")
            # Workers import adapters from where the document's own are.
            beside = TargetRef("", "", self.spec.search_path) if self.spec.search_path else None
            handle = run_topology(
                topology, runtime=runtime, options=options, target=beside, state_dir=state_dir, master=master
            )
        except BaseException:
            services.release(run)
            raise
        return PipelineRun(self.spec, run, shared, handle)

    def open(self) -> PipelineRun:
        """Connect without running anything: to give it messages that other processes work, and to ask."""
        make_home(self.home)
        run = self.run_spec(key=secrets.token_hex(8))
        return PipelineRun(self.spec, run, services.acquire(run), None)


def _check_route(spec: PipelineSpec, name: str) -> None:
    if name not in spec.routes:
        raise ConfigError("the pipeline has no such route", where=spec.name, got=name, expected=", ".join(spec.routes))


class PipelineRun:
    """A pipeline that runs, or that is only connected to. Close it, or use `with`.

    Attributes:
        spec: the pipeline.
        handle: of its topology; None if it does not run here.
        services: brokers, ledger and gates.
    """

    def __init__(self, spec: PipelineSpec, run: RunSpec, shared: Services, handle: RunHandle | None) -> None:
        self.spec = spec
        self.handle = handle
        self.services = shared
        self._run = run
        self._is_closed = False
        self._begun: set[str] = set()
        self._awaited: Counter[str] = Counter()
        self._ended: set[str] = set()  # of those that are waited for: their completion was told since the last look
        self._changed = threading.Condition()
        shared.notice(self._note)

    def execute(
        self,
        payload: Any = None,
        *,
        route: str = "",
        headers: Mapping[str, str] | None = None,
        execution: str = "",
        init: InitMessage | None = None,
    ) -> ExecutionHandle:
        """Begin an execution: its message is in its queue when this returns.

        Args:
            payload: of its message.
            route: that gets it; empty: the one of the document's `init_message`, or the only one.
            headers: of its message.
            execution: an id for it; one that is there already is that execution, and nothing is begun. Empty: random.
            init: instead of payload, route and headers.

        Raises:
            ConfigError: no such route.
            PayloadError: the payload cannot be published.
        """
        chosen = init or InitMessage(route=self._route_of(route), payload=payload, headers=dict(headers or {}))
        _check_route(self.spec, chosen.route)
        queue = self.spec.routes[chosen.route].inbound.queue
        message = NewMessage(queue=queue, body=encode(chosen.payload), headers=chosen.headers)
        execution = execution or secrets.token_hex(12)
        if self.handle is not None:  # only what runs here can be interrupted
            with self._changed:
                self._begun.add(execution)  # before it may be complete
        return ExecutionHandle(self, self.services.start(message, execution))

    def _route_of(self, route: str) -> str:
        if route:
            return route
        if self.spec.init_message is not None:
            return self.spec.init_message.route
        if len(self.spec.routes) == 1:
            return next(iter(self.spec.routes))
        raise ConfigError(
            "which route gets the message?",
            where=self.spec.name,
            expected=", ".join(self.spec.routes),
            next_step="name it: execute(payload, route=...), or say `init_message:` in the document",
        )

    def execution(self, execution: str) -> ExecutionHandle:
        """An execution by its id."""
        return ExecutionHandle(self, execution)

    def on_completed(self, listener: Callable[[Completed], None]) -> None:
        """Call this, in any thread, with completed executions: each is told once, also after a restart."""
        self.services.on_completed(listener)

    def wait(self, timeout_s: float | None = None) -> Summary:
        """Wait until the topology ends. See `RunHandle.wait`."""
        return self._running().wait(timeout_s)

    def _running(self) -> RunHandle:
        if self.handle is None:
            raise ConfigError(
                "the pipeline does not run here", where=self.spec.name, next_step="Pipeline.run() runs it"
            )
        return self.handle

    def serve_metrics(
        self, port: int, host: str = "127.0.0.1", *, runtime: str = "local"
    ) -> AbstractContextManager[int]:
        """Serve metrics of the routes, and of the topology that they compile to, while it is entered.

        Args:
            port: 0 takes a free one.
            host: an address of this machine; see `serve_metrics`.
            runtime: a label.

        Raises:
            ConfigError: the pipeline does not run here, or the port is taken.
            RuntimeUnavailableError: prometheus-client is not installed.
        """
        from tupletree.routes.running.metrics import RouteCollector
        from tupletree.runtimes.metrics import serve_metrics

        collector = RouteCollector(self.services)
        return serve_metrics(self._running(), self.spec.name, runtime, port, host, also=[collector])

    def stop(self) -> None:
        """Stop leasing, settle what is in flight, and close the connections."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self.handle is not None:
                self.handle.stop()
                self.handle.wait()
                with self._changed:
                    begun = [*self._begun]
                for execution in begun:
                    self.services.ledger.interrupt(execution)  # those that are open; the next run goes on with them
        finally:
            services.release(self._run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _note(self, completed: Completed) -> None:
        with self._changed:
            self._begun.discard(completed.execution)
            if completed.execution in self._awaited:
                self._ended.add(completed.execution)
                self._changed.notify_all()

    def wait_for(self, execution: str, timeout_s: float | None, watch: LostWatch) -> Execution:
        """See `ExecutionHandle.wait`; `watch` looks whether it can end at all."""
        with self._changed:
            self._awaited[execution] += 1
        try:
            return self._wait_for(execution, timeout_s, watch)
        finally:
            with self._changed:
                self._awaited[execution] -= 1
                if not self._awaited[execution]:
                    del self._awaited[execution]
                    self._ended.discard(execution)

    def _wait_for(self, execution: str, timeout_s: float | None, watch: LostWatch) -> Execution:
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = self.services.ledger.execution(execution)
            if found is None:
                raise ConfigError("no such execution", where=self.spec.name, got=execution)
            if found.ended_s:
                return found
            if warning := watch.see(found):
                logger.warning("%s", warning)
            left_s = POLL_S if until_s is None else min(POLL_S, until_s - time.monotonic())
            if left_s <= 0:
                raise TimeoutError(f"execution {execution} is not complete after {timeout_s:g} s: {found.open} open")
            if self.handle is not None:
                with suppress(TimeoutError):
                    self.handle.wait(0.0)  # raises what ended the topology
            with self._changed:
                if execution not in self._ended:
                    self._changed.wait(left_s)
                else:
                    self._ended.remove(execution)


def make_home(home: Path) -> None:
    """Make the folder where it is missing: for this user only, whatever the umask; others may not write above it."""
    for parent in reversed([one for one in home.absolute().parents if not one.exists()]):
        parent.mkdir(mode=0o755, exist_ok=True)
    for folder in (home, home / "runs"):
        folder.mkdir(mode=0o700, exist_ok=True)


def _fresh(runs: Path) -> Path:
    return runs / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


class ExecutionHandle:
    """An execution: one message and everything that comes of it.

    Attributes:
        id: its id.
    """

    def __init__(self, run: PipelineRun, execution: str) -> None:
        self.id = execution
        self._run = run
        self._watch = LostWatch(self.lost)

    def __repr__(self) -> str:
        return f"ExecutionHandle({self.id!r})"

    def status(self) -> Execution:
        """How it stands. Raises ConfigError if there is none."""
        found = self._run.services.ledger.execution(self.id)
        if found is None:
            raise ConfigError("no such execution", where=self._run.spec.name, got=self.id)
        return found

    def wait(self, timeout_s: float | None = None) -> Execution:
        """Wait until it has ended. If that cannot happen by itself, a warning in the log says why; see `lost`.

        Raises:
            TimeoutError: it has not, after that time.
            TupletreeError: the topology that runs it here has failed.
        """
        return self._run.wait_for(self.id, timeout_s, self._watch)

    def lost(self) -> LostReport:
        """Its open messages that can never be delivered: somebody else took them, or no route reads their queue."""
        shared = self._run.services
        return find_lost(shared.ledger, shared, self.id)

    def settle_lost(self) -> Sequence[LostMessage]:
        """Those are dead now, with their reasons; returns them."""
        shared = self._run.services
        settled = settle_lost(shared.ledger, shared, self.id)
        shared.tell_left()
        return settled

    async def completed(self) -> Execution:
        """As `wait`, for async code."""
        return await asyncio.to_thread(self.wait)

    def cancel(self, reason: str = "") -> None:
        """End it: none of its messages is worked any more."""
        self._run.services.ledger.cancel(self.id, reason)
