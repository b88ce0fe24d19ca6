"""Messages that become 100,000 tuples each: the functions and the jobs, plain and Tupletree's.

`explode` yields the children of one message; they cross an exchange to `pick`, which looks at every one of them and
lets a sample go on to a sink. The plain job is a flat map of the same functions in `mapInArrow`, untracked, that cuts
its batches as Tupletree cuts its frames.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import cast

import msgspec
import pyarrow as pa

from benchmarks.job import JobResult, JobSpec
from benchmarks.session import start_session, warm_up
from tupletree import Topology, bolt
from tupletree.runtimes.run import run as run_topology
from tupletree.runtimes.spark.session import open_session
from tupletree.sinks import parquet, read_rows
from tupletree.sources import items

__all__ = ["CHILDREN", "run"]

CHILDREN = 100_000
SAMPLE = 25_000
"""One child in so many goes on to the sink."""

BATCH_TUPLES = 65_536
CHILD_FIELDS: list[tuple[str, pa.DataType]] = [("giant", pa.int64()), ("number", pa.int64()), ("text", pa.string())]
CHILD_SCHEMA = pa.schema(CHILD_FIELDS)


class Giant(msgspec.Struct, frozen=True):
    """A message."""

    number: int


class Child(msgspec.Struct, frozen=True, gc=False):
    """One of what it becomes."""

    giant: int
    number: int
    text: str


def explode(giant: Giant) -> Iterator[Child]:
    """All children of a message."""
    for number in range(CHILDREN):
        yield Child(giant.number, number, f"child {number} of {giant.number}")


def pick(child: Child) -> Child | None:
    """One child in `SAMPLE`."""
    return child if child.number % SAMPLE == 0 else None


def children_batch(children: list[Child]) -> pa.RecordBatch:
    """Children as columns."""
    columns = zip(*[(child.giant, child.number, child.text) for child in children], strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, CHILD_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=CHILD_SCHEMA)


def explode_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Numbers in, children out."""
    for batch in batches:
        for number in cast("list[int]", batch.column(0).to_pylist()):
            children = explode(Giant(number))
            while part := list(islice(children, BATCH_TUPLES)):
                yield children_batch(part)


def pick_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Children in, the sample out."""
    for batch in batches:
        children = map(Child, *(column.to_pylist() for column in batch.columns))
        if picked := [child for child in children if pick(child) is not None]:
            yield children_batch(picked)


def run(spec: JobSpec) -> JobResult:
    """Explode `spec.messages` messages; `spec.variant` is "plain" or empty."""
    seconds = _run_plain(spec) if spec.variant == "plain" else _run_tupletree(spec)
    rows = sorted((row["giant"], row["number"]) for row in read_rows(spec.out))
    expected = [(giant, number) for giant in range(spec.messages) for number in range(0, CHILDREN, SAMPLE)]
    if rows != expected:
        raise AssertionError(f"{len(rows)} rows of the sample, {len(expected)} expected, or others than these")
    return JobResult(seconds=seconds)


def _run_plain(spec: JobSpec) -> float:
    session = start_session(spec.master, full_jit=True)
    started_s = time.time()
    numbers = session.range(spec.messages)
    children = numbers.mapInArrow(explode_stage, "giant long, number long, text string").repartition(2, "number")
    children.mapInArrow(pick_stage, "giant long, number long, text string").write.parquet(str(spec.out))
    return time.time() - started_s


def _run_tupletree(spec: JobSpec) -> float:
    session, _ = open_session("tupletree-benchmarks", spec.master)
    warm_up(session)
    topology = Topology("giants")
    source = topology.spout("source", items([Giant(number) for number in range(spec.messages)]))
    children = topology.bolt("explode", bolt(explode), parallelism=2).shuffle(source)
    picked = topology.bolt("pick", bolt(pick), parallelism=2).fields(children, "number")
    topology.sink("out", parquet(spec.out)).shuffle(picked)
    started_s = time.time()
    summary = run_topology(topology, state_dir=Path(spec.checkpoint), master=spec.master).wait()
    if summary.acked != spec.messages:
        raise AssertionError(f"not every message was acked: {summary}")
    return time.time() - started_s
