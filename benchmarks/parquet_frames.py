"""Parquet in, a bolt, Parquet out, against the same job by plain `mapInArrow` and `write.parquet`.

Pairs that do the same: a Python function of a row, columns in Arrow, and columns into folders of partitions. All take
turns, each in a process of its own with a warm session. The plain jobs are one batch: they track nothing, and after a
crash or a row that fails they begin again with an empty folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks.alternating import Contender, alternate, row_of
from benchmarks.job import JobResult, JobSpec
from benchmarks.row import Row, Settings
from benchmarks.session import start_session, warm_up
from tupletree import Topology, arrow_bolt, bolt
from tupletree import run as run_topology
from tupletree.runtimes.spark.session import open_session
from tupletree.sinks import parquet
from tupletree.sources import parquet_rows

__all__ = ["measure_parquet", "run"]

ROWS = 2_000_000
FILES = 8
EPOCH_ROWS = 500_000
DAYS = 30
FIRST_DAY = date(2026, 11, 1)
JOB = "parquet frames"
PLAIN, OWN = "plain", "tupletree"
BY_ROW, BY_COLUMNS, BY_DAY = "a function of a row", "columns", "columns, by day"
OUT = "number long, day date, shop string, cents long"


class Sale(msgspec.Struct, frozen=True, gc=False):
    """A row of the input."""

    number: int
    day: date
    shop: str
    price: int
    count: int


class Total(msgspec.Struct, frozen=True, gc=False):
    """A row of the output."""

    number: int
    day: date
    shop: str
    cents: int


def total(sale: Sale) -> Total:
    """The work on a row."""
    return Total(sale.number, sale.day, sale.shop, sale.price * sale.count)


def total_columns(sales: pa.RecordBatch) -> pa.RecordBatch:
    """The work on columns."""
    cents = pc.multiply(sales.column("price"), sales.column("count"))
    columns = [sales.column("number"), sales.column("day"), sales.column("shop"), cents]
    return pa.RecordBatch.from_arrays(columns, ["number", "day", "shop", "cents"])


def row_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function of each row, in plain `mapInArrow`."""
    for batch in batches:
        values: Any = zip(*(batch.column(name).to_pylist() for name in Sale.__struct_fields__), strict=True)
        totals = [total(Sale(*row)) for row in values]
        columns: dict[str, Any] = {name: [getattr(one, name) for one in totals] for name in Total.__struct_fields__}
        yield pa.RecordBatch.from_pydict(columns)


def column_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same on columns."""
    yield from map(total_columns, batches)


def ensure_sales(work: Path) -> Path:
    """The folder of the input; made if it is not there."""
    folder = work / f"sales-{ROWS}-rows-{FILES}-files"
    if not folder.exists():
        unfinished = folder.with_name(folder.name + ".unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        for number, part in enumerate(np.array_split(np.arange(ROWS), FILES)):
            days = [FIRST_DAY + timedelta(days=day) for day in range(DAYS)]
            table = pa.table(
                {
                    "number": pa.array(part, pa.int64()),
                    "day": pa.array(days, pa.date32()).take(positions(part * 7 % DAYS)),
                    "shop": pa.array([f"shop-{shop}" for shop in range(1000)]).take(positions(part * 31 % 1000)),
                    "price": pa.array(part % 997, pa.int64()),
                    "count": pa.array(part % 7, pa.int64()),
                }
            )
            pq.write_table(table, unfinished / f"{number}.parquet", compression="snappy", row_group_size=125_000)
        unfinished.rename(folder)
    return folder


def positions(numbers: npt.NDArray[np.int64]) -> pa.Int64Array:
    """Which ones to take."""
    return pa.array(numbers, pa.int64())


def plain(spec: JobSpec, kind: str) -> float:
    """Seconds from the call to the end of the job."""
    session = start_session(spec.master, full_jit=True)
    stage = row_stage if kind == BY_ROW else column_stage
    started_s = time.perf_counter()
    totals = session.read.parquet(spec.corpus).mapInArrow(stage, OUT)
    writer = totals.write.partitionBy("day") if kind == BY_DAY else totals.write
    writer.parquet(str(spec.out), compression="snappy")
    return time.perf_counter() - started_s


def own(spec: JobSpec, kind: str) -> float:
    """Seconds of the whole run, from the call to its end, on a session that is there."""
    session, _ = open_session("tupletree-benchmarks", spec.master)
    warm_up(session)
    t = Topology("totals", options={"epoch_max_messages": EPOCH_ROWS})
    work = bolt(total) if kind == BY_ROW else arrow_bolt(inputs=Sale, outputs=Total)(total_columns)
    sales = t.spout("sales", parquet_rows(spec.corpus, message_type=Sale))
    totals = t.bolt("total", work, parallelism=2).shuffle(sales)
    sink = parquet(spec.out, compression="snappy", partition_by="day" if kind == BY_DAY else ())
    t.sink("out", sink, parallelism=2).shuffle(totals)
    started_s = time.perf_counter()
    summary = run_topology(t, state_dir=spec.checkpoint, master=spec.master).wait()
    seconds = time.perf_counter() - started_s
    assert (summary.acked, summary.dead) == (ROWS, 0), summary
    return seconds


def run(spec: JobSpec) -> JobResult:
    """A job in a process of its own."""
    who, _, kind = spec.variant.partition(": ")
    return JobResult(seconds=(plain if who == PLAIN else own)(spec, kind))


def check(out: Path) -> None:
    """Raises AssertionError if a row is missing, wrong or there twice."""
    kinds: list[pa.Field[Any]] = [pa.field("day", pa.date32())]
    partitions = ds.partitioning(pa.schema(kinds), flavor="hive")
    table = ds.dataset(out, format="parquet", partitioning=partitions).to_table().sort_by("number")
    numbers = np.arange(ROWS)
    assert np.array_equal(table["number"].to_numpy(), numbers), table.num_rows
    assert np.array_equal(table["cents"].to_numpy(), numbers % 997 * (numbers % 7))
    days = table["day"].cast(pa.int32()).to_numpy() - (FIRST_DAY - date(1970, 1, 1)).days
    assert np.array_equal(days, numbers * 7 % DAYS)
    assert table["shop"][-1].as_py() == f"shop-{(ROWS - 1) * 31 % 1000}"


def measure_parquet(settings: Settings) -> list[Row]:
    """All pairs in turns."""
    notes = {
        PLAIN: "`mapInArrow`, `write.parquet`; untracked",
        OWN: f"`parquet_rows`, a bolt, `parquet`; tracked, exactly once, epochs of {EPOCH_ROWS:,} rows",
    }
    contenders = {
        f"{who}: {kind}": Contender(
            job=JOB,
            variant=f"{who}: {kind}",
            peer=f"{PLAIN}: {kind}" if who == OWN else "",
            note=notes[who],
            check=check,
        )
        for kind in (BY_ROW, BY_COLUMNS, BY_DAY)
        for who in (PLAIN, OWN)
    }
    measured = alternate(settings, "parquet", contenders, ensure_sales(settings.work))
    return [row_of("parquet", name, one, measured, ROWS) for name, one in contenders.items()]
