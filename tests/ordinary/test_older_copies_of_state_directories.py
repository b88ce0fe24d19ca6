"""A state directory is restored from a backup that is older than what its run has written since.

Sinks know batches by names and numbers. A run that goes on from an older copy must not give those of rows that are
there to other rows: they would be skipped, and their messages acked.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.ordinary.conftest import InProcess
from tupletree import Topology, run
from tupletree.bolts.effects import TaskPlace
from tupletree.errors import CheckpointError, ConnectorError
from tupletree.queues import open_queue
from tupletree.sinks import delta, foreach, jsonl, queue_sink, sql
from tupletree.sources import text_lines
from tupletree.topology.components import Sink, SinkBatch

DEADLINE_S = 60.0


class Row(msgspec.Struct, frozen=True):
    text: str
    path: str
    number: int


Make = Callable[[Path], Sink[Any]]

SINKS: dict[str, Make] = {
    "jsonl": lambda folder: jsonl(folder / "out"),
    "sql": lambda folder: sql(f"sqlite:///{folder}/rows.db", "lines"),
    "delta": lambda folder: delta(folder / "table"),
}


def topology(folder: Path, sink: Sink[Any]) -> Topology:
    t = Topology("copies")
    t.sink("out", sink).shuffle(t.spout("lines", text_lines([folder / "in.txt"])))
    return t


def add(folder: Path, first: int, count: int = 5) -> None:
    with (folder / "in.txt").open("a") as file:
        file.writelines(f"line {number}\n" for number in range(first, first + count))


def restore(folder: Path) -> None:
    shutil.rmtree(folder / "state")
    shutil.copytree(folder / "yesterday", folder / "state")


def live(folder: Path, make: Make, go: Callable[[Topology], object]) -> None:
    """Two runs, a backup between them; then the first state directory is restored, and further lines come."""
    add(folder, 0)
    go(topology(folder, make(folder)))
    shutil.copytree(folder / "state", folder / "yesterday")
    add(folder, 5)
    go(topology(folder, make(folder)))
    restore(folder)
    add(folder, 10)


@pytest.mark.parametrize("kind", SINKS)
def test_a_start_on_spark_is_refused_where_a_sink_has_more_than_it_knows_of(
    kind: str, in_process: InProcess, tmp_path: Path
) -> None:
    live(tmp_path, SINKS[kind], lambda t: in_process(t, tmp_path / "state"))
    with pytest.raises(CheckpointError, match=r"(?s)older copy.*restore the newest"):
        in_process(topology(tmp_path, SINKS[kind](tmp_path)), tmp_path / "state")


def test_a_task_that_the_sink_no_longer_has_shows_it_too(in_process: InProcess, tmp_path: Path) -> None:
    def wide(tasks: int) -> Topology:
        t = Topology("copies")
        lines = t.spout("lines", text_lines([tmp_path / "in.txt"]))
        t.sink("out", sql(f"sqlite:///{tmp_path}/rows.db", "lines"), parallelism=tasks).fields(lines, "text")
        return t

    add(tmp_path, 0, 50)
    in_process(wide(2), tmp_path / "state")
    shutil.copytree(tmp_path / "state", tmp_path / "yesterday")
    add(tmp_path, 50, 50)
    in_process(wide(2), tmp_path / "state")
    restore(tmp_path)
    with sqlite3.connect(tmp_path / "rows.db") as connection:  # as if the last epochs had rows of the second task only
        (table,) = connection.execute("select name from sqlite_master where name like '%batches%'").fetchone()
        changed = connection.execute(f"update {table} set number = 0 where writer like '%-0000'")
        assert changed.rowcount == 1
    with pytest.raises(CheckpointError, match="older copy"):
        in_process(wide(1), tmp_path / "state")


def test_with_the_output_of_its_time_an_older_copy_goes_on(in_process: InProcess, tmp_path: Path) -> None:
    make = SINKS["sql"]
    add(tmp_path, 0)
    in_process(topology(tmp_path, make(tmp_path)), tmp_path / "state")
    shutil.copytree(tmp_path / "state", tmp_path / "yesterday")
    shutil.copy(tmp_path / "rows.db", tmp_path / "rows.yesterday")
    add(tmp_path, 5)
    in_process(topology(tmp_path, make(tmp_path)), tmp_path / "state")
    restore(tmp_path)
    shutil.copy(tmp_path / "rows.yesterday", tmp_path / "rows.db")
    in_process(topology(tmp_path, make(tmp_path)), tmp_path / "state")
    assert rows_of(tmp_path) == [f"line {number}" for number in range(10)]


def rows_of(folder: Path) -> list[str]:
    with sqlite3.connect(folder / "rows.db") as connection:
        return [text for (text,) in connection.execute("select text from lines order by number")]


@pytest.mark.parametrize("runtime", ["local", "spark"])
def test_a_sink_that_remembers_ids_of_batches_takes_no_new_one_for_an_earlier_one(
    runtime: str, in_process: InProcess, tmp_path: Path
) -> None:
    taken: dict[str, list[str]] = {}

    def write(batch: SinkBatch[Row]) -> None:
        taken.setdefault(batch.id, [row.text for row in batch])

    live(tmp_path, lambda _: foreach(write), started(runtime, in_process, tmp_path))
    started(runtime, in_process, tmp_path)(topology(tmp_path, foreach(write)))
    assert {text for rows in taken.values() for text in rows} == {f"line {number}" for number in range(15)}


@pytest.mark.parametrize("runtime", ["local", "spark"])
def test_a_queue_loses_no_message(runtime: str, in_process: InProcess, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db?queue=out"
    live(tmp_path, lambda _: queue_sink(url), started(runtime, in_process, tmp_path))
    started(runtime, in_process, tmp_path)(topology(tmp_path, queue_sink(url)))
    with open_queue(url) as queue:
        texts = {msgspec.json.decode(one.message.body, type=Row).text for one in queue.lease(1000, lease_s=60.0)}
    assert texts == {f"line {number}" for number in range(15)}


@pytest.mark.parametrize("kind", ["jsonl", "sql"])
def test_a_durable_local_run_writes_what_came_since_once_more_and_loses_nothing(kind: str, tmp_path: Path) -> None:
    go = started("local", None, tmp_path)
    live(tmp_path, SINKS[kind], go)
    go(topology(tmp_path, SINKS[kind](tmp_path)))
    found = (
        rows_of(tmp_path)
        if kind == "sql"
        else [
            msgspec.json.decode(line, type=Row).text
            for path in (tmp_path / "out").glob("batch-*")
            for line in path.read_text().splitlines()
        ]
    )
    assert set(found) == {f"line {number}" for number in range(15)}
    assert len(found) == 20


@pytest.mark.parametrize("kind", ["sql", "delta"])
def test_a_batch_that_another_process_was_quicker_to_follow_waits_and_is_not_taken_for_written(
    kind: str, tmp_path: Path
) -> None:
    sink = SINKS[kind](tmp_path)
    sink.open(TaskPlace("copies", "out", 1, 0, 1, input_types=(Row,)))
    rows = [Row("line", "in.txt", 1)]
    sink.write(SinkBatch("run-8", rows, "run", 8))
    assert sink.newest_batch("run") == 8
    sink.write(SinkBatch("run-8", rows, "run", 8))  # that came again
    with pytest.raises(ConnectorError, match=r"(?s)later batch.*batch 8.*copy of this state directory"):
        sink.write(SinkBatch("run-7", rows, "run", 7))
    sink.close()


def started(runtime: str, in_process: InProcess | None, folder: Path) -> Callable[[Topology], object]:
    def go(t: Topology) -> object:
        if runtime == "spark":
            assert in_process is not None
            return in_process(t, folder / "state")
        return run(t, runtime="local", state_dir=folder / "state", options={"durable": True}).wait(DEADLINE_S)

    return go
