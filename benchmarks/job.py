"""A job in its own fresh process: `python -m benchmarks.job NAME SPEC RESULT`; started by `harness`, not by hand.

SPEC is a `JobSpec` as JSON; the `JobResult` goes as JSON to the file RESULT, since a bolt may print what it likes.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import msgspec

__all__ = ["JOBS", "JobResult", "JobSpec"]

JOBS = {
    "plain": "benchmarks.baseline_plain",
    "idiomatic": "benchmarks.baseline_idiomatic",
    "vectorised": "benchmarks.baseline_vectorised",
    "aggregate": "benchmarks.baseline_aggregate",
    "tupletree": "benchmarks.tupletree_jobs",
    "empty epoch": "benchmarks.baseline_epoch",
    "job cost": "benchmarks.job_cost",
    "driver scale": "benchmarks.driver_scale",
    "executors": "benchmarks.executors",
    "tupletree latency": "benchmarks.tupletree_latency",
    "giants": "benchmarks.giants",
    "time cost": "benchmarks.time_cost",
    "local count": "benchmarks.local_count",
    "local latency": "benchmarks.local_latency",
    "local memory": "benchmarks.local_memory",
    "embedded queue": "benchmarks.queue_embedded",
    "redis queue": "benchmarks.queue_redis",
    "redis spark": "benchmarks.queue_spark",
    "rabbitmq queue": "benchmarks.queue_rabbitmq",
    "parquet frames": "benchmarks.parquet_frames",
    "routes": "benchmarks.routes_job",
}
"""Job name → module with a function `run(spec) -> JobResult`."""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is told.

    Attributes:
        master: Spark master.
        corpus: folder of text files, for the word counts.
        folder: an empty folder of its own; Parquet output goes to `folder/out`, the checkpoint to `folder/checkpoint`.
        epoch_lines: most lines of one epoch.
        epochs: epochs to measure, for latency jobs.
        variant: which kind of the job, where it has several.
        messages: how many messages to send or to keep open, for jobs that make them.
        pending: most messages that its spout may have open; 0 is the default. Of `driver scale`: tasks.
    """

    master: str
    folder: str
    corpus: str = ""
    epoch_lines: int = 0
    epochs: int = 0
    variant: str = ""
    messages: int = 0
    pending: int = 0

    @property
    def out(self) -> Path:
        """Where the output goes."""
        return Path(self.folder, "out")

    @property
    def checkpoint(self) -> Path:
        """Where the query keeps its checkpoint."""
        return Path(self.folder, "checkpoint")


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a job measured.

    Attributes:
        seconds: first input to last durable commit.
        epoch_ms: duration of each measured epoch, from trigger to trigger.
        settle_ms: the part of each epoch inside `foreachBatch`; empty if it has none.
        plain_ms: duration of each empty plain job of the shape of an epoch, in the same session; empty if none ran.
        cpu_seconds: CPU time of the process meanwhile, all threads.
        numbers: what else was measured or counted, by name.
    """

    seconds: float
    epoch_ms: list[float] = []
    settle_ms: list[float] = []
    plain_ms: list[float] = []
    cpu_seconds: float = 0.0
    numbers: dict[str, float] = {}


def main(name: str, spec_json: str, result_path: str) -> None:
    """Run one job and leave its result."""
    spec = msgspec.json.decode(spec_json, type=JobSpec)
    result: JobResult = importlib.import_module(JOBS[name]).run(spec)
    Path(result_path).write_bytes(msgspec.json.encode(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
