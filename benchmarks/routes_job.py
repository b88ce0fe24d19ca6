"""A route of three trivial async adapters on the embedded queue: one execution, whose first message fans out.

Variants: a level of lineage (`full`, `off`); `spark full` and `spark off`: on Spark, from the moment when all messages
are in the route's queue; `told`: executions of one message, one after the other, and how long after the last settlement
began a listener heard of each, and `wait` returned.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from queue import SimpleQueue

from benchmarks.harness import cpu_seconds, descendants
from benchmarks.job import JobResult, JobSpec
from tupletree.routes import Pipeline
from tupletree.routes.ids import child_id
from tupletree.routes.ledger.values import Completed, NewMessage
from tupletree.routes.messages import Child, Settlement
from tupletree.routes.pipeline import ExecutionHandle, PipelineRun

__all__ = ["run"]

DOCUMENT = """
version: 1
pipeline: benchmark
limits: {{max_handlers: 512}}
lineage: {{level: "{level}"}}
routes:
  fan:
    inbound: {{queue: /queue/first}}
    adapters: [{{type: "benchmarks.routes_adapters:fan_out"}}]
    outbound: [{{queue: /queue/work}}]
  work:
    inbound: {{queue: /queue/work, concurrency: 512}}
    adapters:
      - type: "benchmarks.routes_adapters:first"
      - type: "benchmarks.routes_adapters:second"
      - type: "benchmarks.routes_adapters:third"
"""
TIMEOUT_S = 300.0
EPOCH_MESSAGES = 10_000


def run(spec: JobSpec) -> JobResult:
    """The job."""
    folder = Path(spec.folder)
    document = folder / "pipeline.yaml"
    runtime, _, level = spec.variant.rpartition(" ")
    document.write_text(DOCUMENT.format(level="full" if level == "told" else level))
    pipeline = Pipeline.load(document, home=folder / "home")
    if runtime:
        return spark(pipeline, spec.messages, spec.master)
    return tell(pipeline, spec.messages) if level == "told" else fan(pipeline, spec.messages)


def fan(pipeline: Pipeline, messages: int) -> JobResult:
    """One execution of many messages, from its start to its end. Raises AssertionError if it is not what it should."""
    with pipeline.run() as running:
        running.execute({"count": 100}, route="fan").wait(TIMEOUT_S)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        ended = running.execute({"count": messages}, route="fan").wait(TIMEOUT_S)
        seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    assert (ended.state, ended.total, ended.dead) == ("completed", messages + 1, 0), ended
    return JobResult(seconds=seconds, cpu_seconds=cpu_s)


def spark(pipeline: Pipeline, messages: int, master: str) -> JobResult:
    """As `fan`, on Spark, without the fan-out. `numbers`: CPU of the driver, and of the JVM with its Python workers."""
    options = {"epoch_max_messages": EPOCH_MESSAGES}
    with pipeline.run(runtime="spark", only=["work"], options=options, master=master) as running:
        for warm in (100, EPOCH_MESSAGES):
            fed(running, warm).wait(TIMEOUT_S)
        execution = fed(running, messages)
        others = descendants(str(os.getpid()))
        before_s = sum(map(cpu_seconds, others))
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        ended = execution.wait(TIMEOUT_S)
        seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        others_s = sum(map(cpu_seconds, others)) - before_s
    assert (ended.state, ended.total, ended.dead) == ("completed", messages + 1, 0), ended
    return JobResult(seconds=seconds, cpu_seconds=cpu_s, numbers={"others_cpu_s": others_s})


def fed(running: PipelineRun, messages: int) -> ExecutionHandle:
    """An execution whose messages are in the route's queue, all of them, when this returns."""
    held = running.services
    execution = held.start(NewMessage(queue="/queue/first", body=b"{}"))
    [work], _ = held.lease(running.spec.routes["fan"], 1)
    parents = [work.messages[0].id]
    children = [
        Child(id=child_id(parents, "fan", 1, number, "/queue/work"), queue="/queue/work", body=b'{"n":%d}' % number)
        for number in range(messages)
    ]
    held.settle([Settlement(messages=work.messages, outcome="done", children=children)])
    return running.execution(execution)


def tell(pipeline: Pipeline, executions: int) -> JobResult:
    """Executions one after the other. `epoch_ms`: until the listener heard; `settle_ms`: until `wait` returned."""
    heard: SimpleQueue[tuple[Completed, float]] = SimpleQueue()
    began_s = time.perf_counter()
    told_ms, waited_ms = [], []
    with pipeline.run() as running:
        running.on_completed(lambda completed: heard.put((completed, time.time())))
        for _ in range(executions):
            running.execute({"n": 0}, route="work").wait(TIMEOUT_S)
            returned_s = time.time()
            completed, heard_s = heard.get(timeout=TIMEOUT_S)
            told_ms.append((heard_s - completed.ended_s) * 1000)
            waited_ms.append((returned_s - completed.ended_s) * 1000)
    return JobResult(seconds=time.perf_counter() - began_s, epoch_ms=told_ms, settle_ms=waited_ms)
