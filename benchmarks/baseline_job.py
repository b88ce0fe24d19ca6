"""The yardstick of latency: an empty plain job of the shape of an epoch.

`parallelize`, a `mapPartitions` per stage that hands its rows on, an exchange between stages, `collect`: what Spark
asks for a job with nothing in it, in the session that Tupletree gives its users, one job after the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

__all__ = ["empty_jobs"]

PARTITIONS = 2
WARM_UP_JOBS = 20
"""The session has run a topology before."""


def hand_on(rows: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """A stage that does nothing."""
    return rows


def empty_jobs(context: Any, jobs: int, *, exchange: bool) -> list[float]:
    """Milliseconds of each job, warm-up aside: one stage, or two with an exchange between them."""
    # Another environment is another set of Python workers: a topology changes what those that it had collect.
    context.environment["TUPLETREE_BENCHMARK"] = "empty jobs"
    given = [(number, b"frame") for number in range(PARTITIONS)]
    spent_ms = []
    for _job in range(WARM_UP_JOBS + jobs):
        before_s = time.perf_counter()
        rows = context.parallelize(given, PARTITIONS).mapPartitions(hand_on)
        if exchange:
            rows = rows.partitionBy(PARTITIONS).mapPartitions(hand_on)
        if len(rows.collect()) != PARTITIONS:
            raise AssertionError("a job lost rows")
        spent_ms.append((time.perf_counter() - before_s) * 1000)
    return spent_ms[WARM_UP_JOBS:]
