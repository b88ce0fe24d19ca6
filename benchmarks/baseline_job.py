"""The other yardstick of latency: an empty plain job of the shape of an epoch.

`parallelize`, a `mapPartitions` per stage that hands its rows on, an exchange between stages, `collect`: what Spark
asks for a job with nothing in it, in the session that Tupletree gives its users, one job after the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.job import JobResult, JobSpec
from tupletree.runtimes.spark.session import open_session

__all__ = ["EXCHANGE", "run"]

EXCHANGE = "exchange"
PARTITIONS = 2
WARM_UP_JOBS = 60


def hand_on(rows: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """A stage that does nothing."""
    return rows


def run(spec: JobSpec) -> JobResult:
    """Run jobs back to back: one stage, or two with an exchange between them (variant `EXCHANGE`)."""
    started_s = time.perf_counter()
    session, _ = open_session("tupletree-benchmarks", spec.master)
    context = session.sparkContext
    given = [(number, b"frame") for number in range(PARTITIONS)]
    seconds = []
    for _job in range(WARM_UP_JOBS + spec.epochs):
        before_s = time.perf_counter()
        rows = context.parallelize(given, PARTITIONS).mapPartitions(hand_on)
        if spec.variant == EXCHANGE:
            rows = rows.partitionBy(PARTITIONS).mapPartitions(hand_on)
        if len(rows.collect()) != PARTITIONS:
            raise AssertionError("a job lost rows")
        seconds.append(time.perf_counter() - before_s)
    return JobResult(seconds=time.perf_counter() - started_s, epoch_ms=[one * 1000 for one in seconds[WARM_UP_JOBS:]])
