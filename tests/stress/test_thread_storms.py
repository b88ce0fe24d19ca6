"""Storms of threads on the local runtime: whatever the interleaving, nothing is lost and nothing comes twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import HANG_S, begin, run
from tests.tasks.streams import Count, Gathering, Line, Script, Word, lines
from tupletree import Bolt, Collector, TaskContext, Topology, bolt
from tupletree.topology.components import SinkBatch

pytestmark = pytest.mark.stress

MESSAGES = 10_000


class Hearing(Script):
    """A source that gives everything, a thousand at a time."""

    def __init__(self, texts: list[str]) -> None:
        given = lines(*texts)
        super().__init__(given[start : start + 1000] for start in range(0, len(given), 1000))


@bolt(blocking=True)
def fan_out(line: Line) -> Iterator[Word]:
    return (Word(f"{line.text}-{part}") for part in range(3))


@bolt(blocking=True)
def pass_on(word: Word, context: TaskContext) -> Count:
    return Count(word.word, context.task_index)


@pytest.mark.parametrize("ring_size", [1, 256])
@pytest.mark.parametrize("ackers", [1, 4])
def test_ten_threads_that_ack_and_emit_at_once_lose_nothing(tmp_path: Path, ring_size: int, ackers: int) -> None:
    script, sink = Hearing([f"m{number}" for number in range(MESSAGES)]), Gathering()
    t = Topology("storm")
    words = t.bolt("fan", fan_out, parallelism=10).shuffle(t.spout("lines", script))
    counts = t.bolt("pass", pass_on, parallelism=10).fields(words, "word")
    t.sink("out", sink, parallelism=1).shuffle(counts)
    summary = run(t, tmp_path / "state", ring_size=ring_size, acker_tasks=ackers, max_spout_pending=1000)
    assert (summary.acked, summary.failed) == (MESSAGES, 0)
    assert Counter(script.acked) == Counter(range(MESSAGES))
    expected = Counter(f"m{number}-{part}" for number in range(MESSAGES) for part in range(3))
    assert Counter(row.word for row in sink.rows) == expected


class Storm(Bolt[Line]):
    """Holds all tuples; with the last one, ten threads of its own emit for them and ack them, at once."""

    auto_ack = False
    blocking = True
    output_types = (Word,)

    def open(self, context: TaskContext) -> None:
        self.held: list[Line] = []

    def process(self, value: Line, collector: Collector[Word]) -> None:
        self.held.append(value)
        if len(self.held) < MESSAGES:
            return
        together = threading.Barrier(10)

        def settle(mine: list[Line]) -> None:
            together.wait()
            for line in mine:
                collector.emit(Word(line.text), anchors=[line])
                collector.ack(line)

        threads = [threading.Thread(target=settle, args=[self.held[first::10]]) for first in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_a_bolt_may_emit_and_ack_on_threads_of_its_own_while_it_is_called(tmp_path: Path) -> None:
    script, sink = Hearing([f"m{number}" for number in range(MESSAGES)]), Gathering()
    t = Topology("own-threads")
    t.sink("out", sink).shuffle(t.bolt("storm", Storm).shuffle(t.spout("lines", script)))
    summary = run(t, tmp_path / "state", max_spout_pending=MESSAGES, message_timeout_s=None)
    assert (summary.acked, summary.failed) == (MESSAGES, 0)
    assert Counter(row.word for row in sink.rows) == Counter(f"m{number}" for number in range(MESSAGES))


def test_failures_from_ten_threads_are_all_retried_and_the_hopeless_are_dead(tmp_path: Path) -> None:
    @bolt(blocking=True)
    def stumble(line: Line, context: TaskContext) -> Word:
        number = int(line.text)
        if number % 100 == 0 or (number % 7 == 0 and context.attempt == 1):
            raise ConnectionError(line.text)
        return Word(line.text)

    script, sink = Hearing([str(number) for number in range(MESSAGES)]), Gathering()
    t = Topology("failing-storm")
    t.sink("out", sink, parallelism=1).shuffle(
        t.bolt("stumble", stumble, parallelism=10).shuffle(t.spout("lines", script))
    )
    summary = run(
        t, tmp_path / "state", max_attempts=3, backoff_initial_ms=1.0, backoff_max_ms=5.0, max_spout_pending=500
    )
    hopeless = [number for number in range(MESSAGES) if number % 100 == 0]
    assert (summary.acked, summary.dead) == (MESSAGES - len(hopeless), len(hopeless))
    assert Counter(message_id for message_id, _ in script.failed) == Counter(hopeless)
    assert Counter(row.word for row in sink.rows) == Counter(str(number) for number in range(MESSAGES) if number % 100)


def test_a_source_ten_times_faster_than_the_bolt_gets_every_message_delivered_once(tmp_path: Path) -> None:
    delivered: list[str] = []
    paced = threading.Event()

    @bolt(blocking=True)
    def slow(line: Line) -> None:
        paced.wait(0.0005)  # never set: a pace, not a wait for something
        delivered.append(line.text)

    script = Hearing([str(number) for number in range(2000)])
    t = Topology("slow")
    t.bolt("slow", slow).shuffle(t.spout("lines", script))
    summary = run(t, tmp_path / "state", max_spout_pending=100, message_timeout_s=2.0)
    assert (summary.acked, summary.failed) == (2000, 0)
    assert Counter(delivered) == Counter(map(str, range(2000)))


class Halfway(Gathering):
    """Says when so many rows have come."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.wanted = rows
        self.reached = threading.Event()

    def write(self, batch: SinkBatch[Any]) -> None:
        super().write(batch)
        if len(self.rows) > self.wanted:
            self.reached.set()


@pytest.mark.parametrize("after_rows", [0, 37, 500, 2000, 9000])
def test_a_stop_at_any_moment_settles_or_names_every_message(tmp_path: Path, after_rows: int) -> None:
    """What was emitted is acked or failed to its source, never both or neither; rows are those of the acked."""
    script, sink = Hearing([f"m{number}" for number in range(MESSAGES)]), Halfway(after_rows)
    t = Topology("stopped")
    words = t.bolt("fan", fan_out, parallelism=4).shuffle(t.spout("lines", script))
    t.sink("out", sink, parallelism=1).shuffle(words)
    handle = begin(t, tmp_path / "state")
    assert sink.reached.wait(HANG_S)
    handle.stop()
    summary = handle.wait(HANG_S)
    assert summary.emitted == summary.acked + summary.open
    assert len(script.acked) == summary.acked
    assert not set(script.acked) & {message_id for message_id, _ in script.failed}
    came = Counter(row.word.partition("-")[0] for row in sink.rows)
    assert came == {f"m{number}": 3 for number in script.acked if isinstance(number, int)}
