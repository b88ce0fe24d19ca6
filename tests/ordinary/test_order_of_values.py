"""A value of a key is never overwritten by one that was made before it, whichever message completes first."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from copy import copy
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.databases import query
from tests.local.running import begin
from tests.spark.conftest import RunTopology, StartTopology
from tests.spark.counting import QUICK
from tests.until import until
from tupletree import (
    Bolt,
    Collector,
    KeyedState,
    TaskContext,
    Topology,
    arrow_bolt,
    batch_bolt,
    bolt,
    window_bolt,
)
from tupletree.config import Options, resolve_options
from tupletree.errors import ConnectorError, TupletreeError
from tupletree.routing.plan import Plan
from tupletree.runtimes import crash_points
from tupletree.runtimes import run as api_run
from tupletree.runtimes.api import RunRequest, Summary
from tupletree.sinks import foreach, jsonl, parquet, read_rows, sql
from tupletree.sources import Line, items, text_lines
from tupletree.testing import Faults, simulate
from tupletree.testing.in_process import start_in_process
from tupletree.topology.components import Sink, SinkBatch

MESSAGES = 40


class E(msgspec.Struct, frozen=True):
    key: str
    i: int


class C(msgspec.Struct, frozen=True):
    key: str
    n: int


@bolt(state=int)
def count(e: E, total: KeyedState[int]) -> C:
    total.value += 1
    return C(e.key, total.value)


@bolt(concurrency=MESSAGES)
async def the_first_takes_longest(e: E) -> E:
    await asyncio.sleep((MESSAGES - e.i) * 0.003)
    return copy(e)  # the simulator tells rows apart as objects


@bolt(concurrency=MESSAGES)
async def the_first_value_takes_longest(c: C) -> C:
    await asyncio.sleep((MESSAGES - c.n) * 0.003)
    return copy(c)


@batch_bolt(size=3, max_age_s=0.05)
def in_batches(counts: list[C]) -> list[C]:
    return [*map(copy, counts)]


@bolt
def as_it_is(c: C) -> C:
    return copy(c)


@bolt
def once_or_never(c: C) -> Iterator[C]:
    if c.n % 7:
        yield copy(c)


@bolt(concurrency=5)
async def awaited(c: C) -> AsyncIterator[C]:
    await asyncio.sleep(0.01 * (c.n % 3))
    yield copy(c)


@arrow_bolt(inputs=C, outputs=C)
def as_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


class ByHand(Bolt[C]):
    def process(self, value: C, collector: Collector[C]) -> None:
        collector.emit(copy(value))
        collector.ack(value)


@bolt
def first_five(e: E) -> E | None:
    return e if e.i < 5 else None


@bolt
def the_third_fails_once(e: E, context: TaskContext) -> E:
    if e.i in (2, 3) and context.attempt == 1:
        raise ValueError("not yet")
    return e


def first_of(elements: list[E]) -> E:
    return elements[0]


@bolt
def as_event(line: Line, context: TaskContext) -> E:
    if line.number in (2, 3) and context.attempt == 1:
        raise ValueError("not yet")
    return E("d", line.number)


def counted(folder: Path, parallelism: int = 1, hold_s: float = 3.0) -> Topology:
    """Counts go into a table and into files, as they are and by way of others; their messages wait for a window.

    Events and lines go into tables of their own, and some of them are tried again.
    """
    t = Topology("counted")
    database = f"sqlite:///{folder}/values.db"
    s = t.spout("s", items([E("ab"[i % 2], i) for i in range(MESSAGES)]))
    c = t.bolt("count", count, parallelism=parallelism).fields(s, "key")
    t.sink("table", sql(database, "counts", key="key"), parallelism=1).fields(c, "key")
    way = t.bolt("awaited", awaited, parallelism=2).shuffle(c)
    way = t.bolt("in_batches", in_batches, parallelism=2).shuffle(way)
    way = t.bolt("as_columns", as_columns).shuffle(way)
    t.sink("later", sql(database, "later", key="key"), parallelism=2).shuffle(way)
    t.sink("rows", jsonl(folder / "rows", made=True)).shuffle(c)
    t.sink("columns", parquet(folder / "columns", made=True)).shuffle(way)
    events = t.spout("events", items([E("c", i) for i in range(5)]))
    once = t.bolt("retried", the_third_fails_once).shuffle(events)
    t.sink("last", sql(database, "last", key="key"), parallelism=1).shuffle(once)
    (folder / "lines.txt").write_text("x\n" * 5)
    read = t.bolt("read", as_event).shuffle(t.spout("lines", text_lines(folder / "lines.txt")))
    t.sink("last_read", sql(database, "last_read", key="key"), parallelism=1).shuffle(read)
    held = t.bolt("held", window_bolt(length_s=hold_s)(first_of)).shuffle(t.bolt("first", first_five).shuffle(s))
    t.sink("beside", foreach(_ignore)).shuffle(held)
    return t


def _ignore(_: object) -> None:
    """Takes rows."""


def found(folder: Path) -> list[Any]:
    """What readers of all six see."""
    database = f"sqlite:///{folder}/values.db"
    tables = [sorted(query(database, f"SELECT key, n FROM {name}")) for name in ("counts", "later")]
    tables += [query(database, f"SELECT key, i FROM {name}") for name in ("last", "last_read")]
    files = [
        sorted((row["key"], row["n"]) for row in read_rows(folder / name, latest_by="key"))
        for name in ("rows", "columns")
    ]
    return [*tables, *files]


RIGHT = [[("a", MESSAGES // 2), ("b", MESSAGES // 2)]] * 4
RIGHT[2:2] = [[("c", 4)], [("d", 5)]]


# --- local ------------------------------------------------------------------------------------------------------


def upserted(folder: Path) -> Topology:
    """All messages have one key, and the first ones complete last."""
    t = Topology("upsert")
    s = t.spout("s", items([E("a", i) for i in range(MESSAGES)]))
    c = t.bolt("count", count).fields(s, "key")
    url = f"sqlite:///{folder}/up.db"
    t.sink("table", sql(url, "counts", key="key"), parallelism=1).fields(c, "key")
    t.sink("rows", jsonl(folder / "rows", made=True)).shuffle(c)
    slow = t.bolt("slow", the_first_value_takes_longest, parallelism=2).shuffle(c)
    t.sink("later", sql(url, "later", key="key")).shuffle(slow)
    t.sink("w", foreach(_ignore)).shuffle(t.bolt("notify", the_first_takes_longest).shuffle(s))
    return t


def test_a_table_ends_with_the_last_count_whatever_the_messages_wait_for(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/up.db"
    for run in (1, 2):  # and what a later run makes is newer
        handle = api_run.run(upserted(tmp_path), runtime="local", state_dir=tmp_path / f"run{run}", append=run > 1)
        assert handle.wait(30.0).acked == MESSAGES
        assert query(url, "SELECT key, n FROM counts") == [("a", MESSAGES)]
        assert query(url, "SELECT key, n FROM later") == [("a", MESSAGES)]
        assert list(read_rows(tmp_path / "rows", latest_by="key")) == [{"key": "a", "n": MESSAGES}]
    in_files = [row["n"] for row in read_rows(tmp_path / "rows")]
    assert sorted(in_files) == sorted([*range(1, MESSAGES + 1)] * 2), "a plain reader sees every row"


def test_readers_of_rows_without_an_order_are_told_what_to_do(tmp_path: Path) -> None:
    t = Topology("plain")
    t.sink("rows", jsonl(tmp_path / "rows")).shuffle(t.spout("s", items([E("a", 1)])))
    begin(t, tmp_path / "run").wait(30.0)
    assert list(read_rows(tmp_path / "rows")) == [{"key": "a", "i": 1}]
    with pytest.raises(ConnectorError, match="made=True"):
        list(read_rows(tmp_path / "rows", latest_by="key"))


def test_only_streams_between_a_maker_and_a_sink_that_asks_carry_an_order(tmp_path: Path) -> None:
    spec = counted(tmp_path).build()
    plan = Plan.of(spec, Options())
    ordered = {
        name for name, one in spec.components.items() for stream in one.outputs if plan.carries_order(name, stream)
    }
    assert ordered == {"count", "awaited", "in_batches", "as_columns", "events", "retried", "lines", "read"}


# --- on virtual time, under faults ------------------------------------------------------------------------------


class Ordered(Sink[Any]):
    ordered = True

    def write(self, batch: SinkBatch[Any]) -> None:
        raise AssertionError("the simulator writes nowhere")


def branching(seed: int) -> Topology:
    """A count with a random way to its sink, and random branches beside it."""
    chance = random.Random(seed)
    t = Topology("branching")
    s = t.spout("s", items([E("a", 0)]))
    c = t.bolt("count", count, parallelism=chance.randint(1, 3)).fields(s, "key")
    way: Any = c
    ways: list[Any] = [as_it_is, once_or_never, awaited, in_batches, as_columns, ByHand]
    for step in range(chance.randint(0, 3)):
        declared = t.bolt(f"step{step}", chance.choice(ways), parallelism=chance.randint(1, 3))
        if chance.random() < 0.3:
            way = declared.fields(way, "key")
        else:
            way = chance.choice([declared.shuffle, declared.local_or_shuffle])(way)
    sink = t.sink("table", Ordered(), parallelism=chance.randint(1, 2))
    sink.shuffle(way) if chance.random() < 0.5 else sink.fields(way, "key")
    if chance.random() < 0.7:
        t.sink("beside", foreach(_ignore)).shuffle(t.bolt("notify", the_first_takes_longest).shuffle(s))
    if chance.random() < 0.5:
        t.sink("all", Ordered()).shuffle(c)
    if chance.random() < 0.5:
        way = t.bolt("copied", the_first_takes_longest, parallelism=chance.randint(1, 3)).shuffle(s)
        t.sink("events", Ordered(), parallelism=chance.randint(1, 2)).shuffle(way)
    return t


def place_of(row: C | E) -> int:
    """Where a value stands among those of its key: the count, or the place in the source."""
    return row.n if isinstance(row, C) else row.i


def values_seen(made: list[tuple[int, C | E]]) -> dict[str, list[int]]:
    """Key → what a reader of the table sees, one after the other."""
    table: dict[str, tuple[int, int]] = {}
    seen: dict[str, list[int]] = {}
    for number, row in made:
        if row.key not in table or number >= table[row.key][0]:
            table[row.key] = number, place_of(row)
        seen.setdefault(row.key, []).append(table[row.key][1])
    return seen


def simulated(seed: int, faults: Faults) -> None:
    rows = [E("abc"[i % 3], i) for i in range(30)]
    result = simulate(lambda: branching(seed), {"s": rows}, seed=seed, faults=faults, steps=300)
    for sink, made in result.made.items():
        for key, seen in values_seen(made).items():
            assert seen == sorted(seen), f"seed {seed}: {sink} went backwards for {key}: {seen}"
            assert seen[-1] == max(place_of(row) for _, row in made if row.key == key), f"seed {seed}: {sink}, {key}"
        if not faults.any and sink == "all":
            assert {key: seen[-1] for key, seen in values_seen(made).items()} == Counter(row.key for row in rows)


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_what_a_reader_sees_of_a_key_never_goes_backwards(first: int) -> None:
    for seed in range(first, first + 20):
        simulated(seed, Faults.none())
        simulated(seed, Faults(crash=0.0))  # a crash takes the local runtime's state along


@pytest.mark.nightly
def test_what_a_reader_sees_of_a_key_never_goes_backwards_under_many_seeds() -> None:
    for seed in range(1000, 3000):
        simulated(seed, Faults(crash=0.0))


# --- Spark ------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """In the place of the end of the process."""


def in_process(folder: Path, parallelism: int) -> Summary:
    """Run the counts as the Spark runtime does, with so many partitions and tasks."""
    t = counted(folder, parallelism, hold_s=0.5)
    settings = resolve_options(code={**QUICK, **t.build().options})
    request = RunRequest(t, settings, None, folder / "state", append=False, master="", redact=None)
    return start_in_process(request, parallelism).wait(60.0)


CRASHES = [
    "never",
    "settle.before_log",
    "settle.after_log",
    "publish.after_output",
    "publish.before_call",
    "publish.after_call",
]


@pytest.mark.parametrize("point", CRASHES)
def test_rows_that_waited_do_not_overwrite_newer_ones_also_after_a_crash_and_with_other_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    assert point == "never" or point in crash_points.CRASH_POINTS
    met = 0

    def reach(name: str) -> None:
        nonlocal met
        met += name == point
        if name == point and met == 2:
            raise Crash(name)

    with monkeypatch.context() as patched:
        patched.setattr(crash_points, "on_reached", reach)
        try:
            in_process(tmp_path, 2)
        except (TupletreeError, Crash):
            assert met == 2
    assert in_process(tmp_path, 3).dead == 0
    assert found(tmp_path) == RIGHT


@pytest.mark.spark
def test_on_spark_rows_that_waited_do_not_overwrite_newer_ones_also_after_a_restart_with_other_tasks(
    start_topology: StartTopology, run_topology: RunTopology, tmp_path: Path
) -> None:
    handle = start_topology(counted(tmp_path), tmp_path / "state")
    database = f"sqlite:///{tmp_path}/values.db"
    until(lambda: query(database, "SELECT name FROM sqlite_master WHERE name = 'counts'"))
    until(lambda: query(database, "SELECT n FROM counts"))
    handle.stop(0.0)
    assert run_topology(counted(tmp_path, parallelism=3), tmp_path / "state").dead == 0
    assert found(tmp_path) == RIGHT
