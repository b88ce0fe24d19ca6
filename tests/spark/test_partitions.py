"""Partitioned Parquet on the Spark runtime: every row in its folder, once, whatever fails, and Spark reads it so."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.spark.conftest import RunTopology
from tests.spark.counting import QUICK, SOURCES, Count, count, split, stumble, write_text
from tests.spark.crashing_in_process import crashing_at
from tupletree import TaskContext, Topology, arrow_bolt, batch_bolt, bolt
from tupletree.config import resolve_options
from tupletree.runtimes import crash_points, deadletters
from tupletree.runtimes.api import RunRequest, Summary
from tupletree.sinks import jsonl, parquet, read_rows
from tupletree.sources import items
from tupletree.testing.in_process import start_in_process

HANG_S = 60.0
LINES = 34
SPRING = date(2026, 3, 1)


class Visit(msgspec.Struct, frozen=True):
    word: str
    day: date | None
    shop: str | None
    count: int


def visit_of(counted: Count) -> Visit:
    """No folder holds an empty text, so the words of `w6` fail at the sink."""
    shop = {"w0": None, "w1": "a/b=c", "w2": "100%", "w6": ""}.get(counted.word, counted.word)
    day = SPRING + timedelta(days=counted.count % 2) if counted.word != "w3" else None
    return Visit(counted.word, day, shop, counted.count)


@bolt
def visit(counted: Count) -> Visit:
    return visit_of(counted)


@batch_bolt(size=7, max_age_s=0.05)
def together(visits: list[Visit]) -> list[Visit]:
    """Rows wait for the trees of earlier epochs."""
    return visits


def topology(folder: Path, source: str = "file", *, is_held: bool = False) -> Topology:
    t = Topology("partitions")
    lines = t.spout("source", SOURCES[source](folder, 10))
    words = t.bolt("split", split, parallelism=2).shuffle(lines)
    counts = t.bolt("count", count, parallelism=2).fields(words, "word")
    visits = t.bolt("visit", visit).shuffle(t.bolt("stumble", stumble).shuffle(counts))
    if is_held:
        visits = t.bolt("together", together, parallelism=2).fields(visits, "word")
    t.sink("folders", parquet(folder / "folders", partition_by=("shop", "day")), parallelism=2).shuffle(visits)
    t.sink("lines", jsonl(folder / "lines")).shuffle(visits)
    return t


def run_in_process(t: Topology, place: Path, partitions: int = 2, **options: Any) -> Summary:
    settings = resolve_options(code={**QUICK, **t.build().options, **options})
    request = RunRequest(t, settings, None, place / "state", append=False, master="", redact=None)
    return start_in_process(request, partitions).wait(HANG_S)


def refused(place: Path) -> int:
    return sum("poison" in text or "w6" in text.split() for text in (place / "text").read_text().splitlines())


def check(place: Path, *, is_held: bool = False) -> None:
    """Each word of each good line once; each row in the folder of its values, and that is what readers see."""
    good = [
        text for text in (place / "text").read_text().splitlines() if "poison" not in text and "w6" not in text.split()
    ]
    words = Counter(word for text in good for word in text.split())
    rows = [Visit(**row) for row in read_rows(place / "folders")]
    assert Counter(row.word for row in rows) == words
    if not is_held:  # what was counted in an epoch before the one in which it failed stays counted
        assert Counter((row.word, row.count) for row in rows) == {
            (word, number): 1 for word, total in words.items() for number in range(1, total + 1)
        }
    assert [visit_of(Count(row.word, row.count)) for row in rows] == rows
    lines = Counter((row["word"], row["count"]) for row in read_rows(place / "lines"))
    assert Counter((row.word, row.count) for row in rows) == lines
    assert [*(place / "folders").rglob("_tt-*")] == []


@pytest.mark.parametrize("source", ["file", "splits", "parquet", "leased"])
@pytest.mark.parametrize("is_held", [False, True])
def test_every_row_is_in_its_folder_once_though_messages_fail_before_and_behind(
    tmp_path: Path, source: str, is_held: bool
) -> None:
    write_text(tmp_path, LINES)
    ended = run_in_process(topology(tmp_path, source, is_held=is_held), tmp_path)
    assert (ended.acked, ended.dead, ended.open) == (LINES - refused(tmp_path), refused(tmp_path), 0)
    check(tmp_path, is_held=is_held)


@pytest.mark.parametrize("point", crash_points.CRASH_POINTS)
@pytest.mark.parametrize(("passes", "is_held"), [(1, False), (3, False), (2, True)])
def test_after_a_crash_at_any_point_every_row_is_in_its_folder_once(
    tmp_path: Path, point: str, passes: int, is_held: bool
) -> None:
    write_text(tmp_path, LINES)
    with crashing_at(point, passes):
        run_in_process(topology(tmp_path, is_held=is_held), tmp_path)
    ended = run_in_process(topology(tmp_path, is_held=is_held), tmp_path, partitions=3)
    assert (ended.acked, ended.dead, ended.open) == (LINES - refused(tmp_path), refused(tmp_path), 0)
    check(tmp_path, is_held=is_held)


class Order(msgspec.Struct, frozen=True):
    number: int
    day: date
    shop: str | None
    amount: int


@arrow_bolt(inputs=Order, outputs=Order)
def doubled(orders: pa.RecordBatch, context: TaskContext) -> pa.RecordBatch:
    """Rows that stay columns up to the sink; every batch that has an amount of 13 fails once."""
    if context.attempt == 1 and 13 in orders.column("amount").to_pylist():
        raise ConnectionError("once")
    amounts = pc.multiply(orders.column("amount"), 2)
    return orders.set_column(orders.schema.get_field_index("amount"), orders.schema.field("amount"), amounts)


SHOPS = [None, "tea", *(f"a{chr(code)}z" for code in (*range(1, 48), *range(58, 65), *range(91, 97), *range(123, 129)))]


def orders() -> list[Order]:
    return [
        Order(number, SPRING + timedelta(days=number % 3), SHOPS[number % len(SHOPS)], number % 40)
        for number in range(400)
    ]


def order_topology(folder: Path) -> Topology:
    t = Topology("orders", options={"epoch_max_messages": 150})
    given = t.spout("orders", items(orders()))
    out = t.bolt("doubled", doubled, parallelism=2).shuffle(given)
    t.sink("out", parquet(folder / "out", partition_by=("day", "shop"), native=True)).fields(out, "day")
    return t


def check_orders(folder: Path, summary: Summary) -> list[tuple[Any, ...]]:
    given = [(one.number, one.day, one.shop, 2 * one.amount) for one in orders()]
    assert (summary.acked, summary.dead) == (len(given), 0)
    rows = [(row["number"], row["day"], row["shop"], row["amount"]) for row in read_rows(folder / "out")]
    assert sorted(rows, key=lambda row: row[0]) == given
    return given


def test_rows_that_stay_columns_are_divided_as_tuples_are(tmp_path: Path) -> None:
    check_orders(tmp_path, run_in_process(order_topology(tmp_path), tmp_path))


class Burst(msgspec.Struct, frozen=True):
    number: int
    rows: int


class Shred(msgspec.Struct, frozen=True):
    number: int
    at: int


@bolt
def scatter(burst: Burst) -> list[Shred]:
    return [Shred(burst.number, at) for at in range(burst.rows)]


def test_a_message_with_rows_of_too_many_partitions_is_dead_and_the_others_are_there(tmp_path: Path) -> None:
    bursts = [Burst(number, 40 if number == 5 else 1 + number % 3) for number in range(20)]
    t = Topology("bursts", options={"epoch_max_messages": 4})
    scattered = t.bolt("scatter", scatter).shuffle(t.spout("bursts", items(bursts)))
    t.sink("out", parquet(tmp_path / "out", partition_by="at", max_partitions=4), parallelism=1).shuffle(scattered)
    ended = run_in_process(t, tmp_path)
    assert (ended.acked, ended.dead, ended.open) == (19, 1, 0)
    (letter,) = deadletters.read(tmp_path / "state")
    assert "more than 4 partitions at once" in letter.failure.error
    rows = sorted((row["number"], row["at"]) for row in read_rows(tmp_path / "out"))
    assert rows == [(one.number, at) for one in bursts if one.number != 5 for at in range(one.rows)]


@pytest.mark.spark
def test_spark_reads_the_folders_and_names_them_the_same(run_topology: RunTopology, spark: Any, tmp_path: Path) -> None:
    given = check_orders(tmp_path, run_topology(order_topology(tmp_path), tmp_path / "state"))
    schema = "number bigint, amount bigint, day date, shop string"
    frame = spark.read.schema(schema).parquet(str(tmp_path / "out"))
    found = sorted(tuple(row) for row in frame.select("number", "day", "shop", "amount").collect())
    assert found == given
    assert dict(spark.read.parquet(str(tmp_path / "out")).dtypes)["day"] == "date", "it is seen by the folders' names"
    frame.write.partitionBy("day", "shop").parquet(str(tmp_path / "sparks"))
    folders = [
        {str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).glob("*=*/*=*")}
        for name in ("out", "sparks")
    ]
    assert folders[0] == folders[1]
