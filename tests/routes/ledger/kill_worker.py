"""A process that runs a pipeline with a fan-out and a batch adapter, and kills itself with SIGKILL at a point.

`python -m tests.routes.ledger.kill_worker HOME LEDGER EXECUTION POINT COUNT [RUNTIME]`: begins the execution, unless
it is there, and runs until every execution has ended and every queue is empty, or until the point was passed for the
COUNTth time. RUNTIME is `local`, or `spark`: that runtime's driver, stages and files, here and without a JVM.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.routes.running.test_pipelines import in_process_spark
from tupletree.queues.sqlite import SqliteBroker
from tupletree.routes import Adapter, AdapterConfig, AdapterResult, BatchAdapter, Emitted, PipelineContext
from tupletree.routes.document.spec import (
    AdapterSpec,
    ErrorHandling,
    Inbound,
    Limits,
    LineageSpec,
    PipelineSpec,
    RouteSpec,
)
from tupletree.routes.ledger import Ledger
from tupletree.routes.pipeline import Pipeline
from tupletree.runtimes import crash_points

PIECES = 10
POINTS = ("leased", "before the commit", "after the commit", "published", "before the ack", "before it is told")


class Config(AdapterConfig):
    """No settings."""


class Split(Adapter[Config]):
    """Emits ten numbers."""

    async def process(self, context: PipelineContext) -> AdapterResult:
        execution = context.message.payload["execution"]
        return AdapterResult(None, [Emitted({"of": execution, "number": number}) for number in range(PIECES)])


class Flaky(Adapter[Config]):
    """Fails 3 at its first attempt, always 7, and filters 9."""

    async def process(self, context: PipelineContext) -> AdapterResult | None:
        number = context.message.payload["number"]
        if (number == 3 and context.attempt == 1) or number == 7:
            raise ValueError(number)
        return None if number == 9 else AdapterResult(context.message)


class Index(BatchAdapter[Config]):
    """One message of each batch, with all of its members."""

    size = 4
    max_age_s = 0.05

    def process_batch(self, contexts: Sequence[PipelineContext]) -> AdapterResult:
        members = [[one.message.payload["of"], one.message.payload["number"]] for one in contexts]
        return AdapterResult(contexts[0].message.with_payload({"members": members}))


def pipeline(home: Path, ledger: str) -> Pipeline:
    """split → flaky → index → out, which nobody reads. Leases are short, publishing goes by threes."""

    def route(name: str, cls: type[Adapter[Any]], out: str) -> RouteSpec:
        adapters = (AdapterSpec(name, name, cls, Config()),)
        retries = ErrorHandling(max_retries=1, retry_delay_seconds=0.01)
        inbound = Inbound(queue=name, concurrency=8)
        return RouteSpec(name, inbound, adapters, (out,), error_handling=retries, lease_seconds=0.6)

    routes = [route("split", Split, "flaky"), route("flaky", Flaky, "index"), route("index", Index, "out")]
    spec = PipelineSpec(
        "kills",
        {one.name: one for one in routes},
        ledger=ledger,
        limits=Limits(max_fanout_pending=3),
        lineage=LineageSpec(level="off"),
        on_complete="ended",
    )
    return Pipeline(spec, home=home)


def kill_at(point: str, count: int) -> None:
    """Patch the steps of settling, so that this process ends at one of them."""
    passed = 0

    def reached(name: str) -> None:
        nonlocal passed
        passed += point in (name, "any")
        if passed >= count:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(cls: type, method: str, before: str = "", after: str = "") -> None:
        wrapped: Callable[..., Any] = getattr(cls, method)

        def call(*arguments: Any, **options: Any) -> Any:
            if before:
                reached(before)
            result = wrapped(*arguments, **options)
            if after:
                reached(after)
            return result

        setattr(cls, method, call)

    around(SqliteBroker, "take", after="leased")
    around(Ledger, "lease", after="leased and asked for")
    around(Ledger, "_finish", after="before the commit")
    around(Ledger, "settle", after="after the commit")
    around(SqliteBroker, "publish", after="published")
    around(SqliteBroker, "ack", before="before the ack")
    around(Ledger, "told", before="before it is told")
    crash_points.on_reached = reached  # of the Spark runtime


def main(home: str, ledger: str, execution: str, point: str, count: str, runtime: str = "local") -> None:
    """Run."""
    if point != "none":
        kill_at(point, int(count))
    made = pipeline(Path(home), ledger)
    with in_process_spark(made) if runtime == "spark" else made.run() as run:
        run.on_completed(lambda one: print("completed", one.execution, one.run, flush=True))
        if execution != "-":
            run.execute({"execution": execution}, route="split", execution=execution)
        end_s = time.monotonic() + 60
        asked = run.services.ledger
        while any(not one.ended_s for one in asked.executions(limit=1000)) or asked.outbox(1):
            assert time.monotonic() < end_s, asked.executions()
            time.sleep(0.01)  # threads of the run in this process
        # Leases of processes that were killed end after that, and their deliveries come once more, to be acked.
        queues = ("split", "flaky", "index")
        while any(run.services.broker(queue).depth(queue).open for queue in queues):
            assert time.monotonic() < end_s, {queue: run.services.broker(queue).depth(queue) for queue in queues}
            time.sleep(0.01)  # threads of the run in this process
    print("done", flush=True)


__all__ = ["PIECES", "POINTS", "pipeline"]

if __name__ == "__main__":
    main(*sys.argv[1:])
