"""The bolt of consecutive adapters, and the sink that settles: thin shells around `chain` and `services`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tupletree.clock import SteadyClock, SystemClock
from tupletree.routes.lineage import ChildHeaders, tell_pending
from tupletree.routes.messages import CallRecord, CallRecords, Settlement, Work
from tupletree.routes.running.chain import AdapterSurroundings, Chain
from tupletree.routes.running.services import RunSpec, Services, services
from tupletree.topology.components import Bolt, Sink, SinkBatch, SinkContext, TaskContext

_clock = SteadyClock(SystemClock())
"""What adapters call now: it does not go back when the machine's clock is set back, as the runtimes' does not."""


@dataclass(frozen=True)
class InProcess:
    """What adapters ask of the process that they run in: it has the run's services, or knows nothing of them.

    Attributes:
        key: of the run.
    """

    key: str

    def is_cancelled(self, execution: str) -> bool:
        """Whether an execution was cancelled."""
        found = services.find(self.key)
        return found is not None and found.is_cancelled(execution)

    def hold(self, route: str, messages: Sequence[str]) -> None:
        """Adapters hold these messages of a route."""
        found = services.find(self.key)
        if found is not None:
            found.gates.hold(route, messages)


class ChainBolt(Bolt[Work]):
    """Walks consecutive adapters of a route.

    Args:
        run: the run.
        route: name of the route.
        start, stop: positions of the adapters: see `Chain`.
        resources: for adapters.
    """

    input_types = (Work,)

    def __init__(
        self, run: RunSpec, route: str, start: int, stop: int, resources: Mapping[str, Any] | None = None
    ) -> None:
        self._run = run
        self._route = run.spec.routes[route]
        self._start, self._stop = start, stop
        self._resources = resources or {}
        records = run.spec.lineage.needs_records
        outputs: tuple[type, ...] = (Settlement,) if stop == len(self._route.adapters) else (Settlement, Work)
        self.output_types = (*outputs, CallRecords) if records and stop > start else outputs
        most = self._route.backpressure.max_concurrency if self._route.backpressure.target_latency_ms else 0
        self.concurrency = max(1, self._route.inbound.in_flight, most)

    async def open(self, context: TaskContext) -> None:  # noqa: ARG002 - the contract's
        surroundings = surroundings_of(self._run, self._resources)
        self._chain = Chain(self._route, self._start, self._stop, surroundings)
        await self._chain.open()

    async def process(self, value: Work) -> list[Any]:
        made = await self._chain.work(value)
        calls = [one for one in made if isinstance(one, CallRecord)]
        if not calls:
            return made
        return [CallRecords(calls=calls), *made[len(calls) :]]  # calls come first

    async def close(self) -> None:
        await self._chain.close()


def surroundings_of(run: RunSpec, resources: Mapping[str, Any]) -> AdapterSurroundings:
    """What the adapters of a run see."""
    enter: Callable[[Work, int, float, str], None] | None = None
    if run.spec.lineage.spans:
        from tupletree.routes.lineage.interop.opentelemetry import enter_call

        enter = enter_call
    return AdapterSurroundings(
        settings=run.spec.settings,
        resources=resources,
        now_s=_clock.wall,
        is_cancelled=InProcess(run.key).is_cancelled,
        records=run.spec.lineage.needs_records,
        note=partial(tell_pending, run.spec.name),
        enter=enter,
    )


class SettlingSink(Sink[Settlement]):
    """Settles attempts: the ledger, then what is published, then the brokers.

    A batch may come again, after a crash: the ledger finds that its messages are settled, and nothing happens twice.
    """

    def __init__(self, run: RunSpec) -> None:
        self._run = run
        told = run.spec.lineage
        self._headers = ChildHeaders(run.spec.name, trace=told.spans, cloudevents=told.cloudevents)

    def open(self, context: SinkContext) -> None:  # noqa: ARG002 - the contract's
        self._services: Services = services.acquire(self._run)

    def write(self, batch: SinkBatch[Settlement]) -> None:
        """Settle. Raises ConnectorError while the ledger or a broker is away."""
        self._services.settle(self._headers.set_in(batch.rows, time.time))

    def close(self) -> None:
        services.release(self._run)
