from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.local.running import HANG_S, begin, run
from tests.tasks.streams import Count, Line, Script, Word, lines
from tupletree import Collector, Emit, KeyedState, TaskContext, Tick, Topology, arrow_bolt, batch_bolt, bolt
from tupletree.errors import CheckpointError, ConfigError, TopologyError
from tupletree.runtimes import deadletters
from tupletree.sinks import foreach, jsonl
from tupletree.sources import items
from tupletree.tracking.outcomes import FailureKind


@bolt
def split(line: Line, context: TaskContext) -> Iterator[Word]:
    if "poison" in line.text:
        raise ValueError(f"poison: {line.text}")
    if "flaky" in line.text and context.attempt < 3:
        raise ConnectionError("flaky")
    return map(Word, line.text.split())


@bolt(state=int)
def count(word: Word, total: KeyedState[int]) -> Count:
    total.value += 1
    return Count(word.word, total.value)


def word_count(texts: list[str], out: Path) -> Topology:
    t = Topology("words")
    words = t.bolt("split", split, parallelism=2).shuffle(t.spout("lines", items([Line(text) for text in texts])))
    t.sink("out", jsonl(out)).shuffle(t.bolt("count", count, parallelism=2).fields(words, "word"))
    return t


def rows_in(folder: Path) -> list[dict[str, Any]]:
    files = [file for file in folder.iterdir() if not file.name.startswith("_")]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("threads", [1, 2])
def test_word_count_equals_counter(tmp_path: Path, threads: int) -> None:
    texts = [f"a b{number % 17} c{number % 5} a" for number in range(2_000)]
    summary = run(word_count(texts, tmp_path / "out"), tmp_path / "state", local_threads=threads)
    last: Counter[str] = Counter()
    for row in rows_in(tmp_path / "out"):
        last[row["word"]] = max(last[row["word"]], row["count"])
    assert last == Counter(" ".join(texts).split())
    assert (summary.emitted, summary.acked, summary.failed, summary.dead, summary.open) == (2_000, 2_000, 0, 0, 0)
    assert summary.outputs == {"out": 8_000}


def test_retries_and_dead_letters_are_counted_and_stored(tmp_path: Path) -> None:
    texts = ["a", "poison b", "flaky c", "d"]
    summary = run(word_count(texts, tmp_path / "out"), tmp_path / "state", max_attempts=4, backoff_initial_ms=1.0)
    assert (summary.acked, summary.dead, summary.failed, summary.retried) == (3, 1, 6, 5)
    assert sorted(row["word"] for row in rows_in(tmp_path / "out")) == ["a", "c", "d", "flaky"]
    (letter,) = deadletters.read(tmp_path / "state")
    assert (letter.message_id, letter.attempts, letter.payload) == (1, 4, {"text": "poison b"})
    assert letter.failure.error == "poison: poison b"
    assert letter.failure.component == "split"


def test_dead_letters_are_on_the_disk_before_the_source_is_told(tmp_path: Path) -> None:
    stored: list[int] = []

    class Asking(Script):
        def fail(self, message_id: Any, failure: Any) -> None:
            stored.append(len(deadletters.read(tmp_path / "state")))

    @bolt
    def bad(line: Line) -> None:
        raise ValueError

    t = Topology("bad")
    t.bolt("bad", bad).shuffle(t.spout("lines", Asking(lines("a"))))
    run(t, tmp_path / "state", max_attempts=1)
    assert stored == [1]


def test_redaction_comes_before_the_disk(tmp_path: Path) -> None:
    import msgspec

    from tupletree.config import Options
    from tupletree.runtimes import run as api_run

    handle = api_run.run(
        word_count(["poison secret"], tmp_path / "out"),
        runtime="local",
        options=Options(max_attempts=1),
        state_dir=tmp_path / "state",
        redact=lambda letter: msgspec.structs.replace(letter, payload=None),
    )
    handle.wait(HANG_S)
    assert deadletters.read(tmp_path / "state")[0].payload is None


def test_the_state_directory_may_be_named_as_text(tmp_path: Path) -> None:
    from tupletree.runtimes import run as api_run

    handle = api_run.run(word_count(["a"], tmp_path / "out"), runtime="local", state_dir=str(tmp_path / "state"))
    assert handle.wait(HANG_S).acked == 1
    assert (tmp_path / "state").is_dir()


def test_a_start_that_is_refused_leaves_no_state_directory(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    with pytest.raises(ConfigError, match="something else"):
        run(word_count(["a"], tmp_path / "out"), tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_a_used_state_directory_is_refused_and_says_why(tmp_path: Path) -> None:
    run(word_count(["a"], tmp_path / "out"), tmp_path / "state")
    with pytest.raises(CheckpointError, match="resumes nothing unless it is durable"):
        run(word_count(["a"], tmp_path / "out2"), tmp_path / "state")


@pytest.mark.parametrize("threads", [1, 2])
def test_backpressure_holds_at_max_pending_three(tmp_path: Path, threads: int) -> None:
    open_now: set[int] = set()
    most = [0]

    class Watched(Script):
        def ack(self, message_id: Any) -> None:
            open_now.discard(message_id)

    @bolt
    def watch(line: Line) -> None:
        open_now.add(int(line.text))
        most[0] = max(most[0], len(open_now))

    t = Topology("pressure")
    t.bolt("watch", watch).shuffle(t.spout("lines", Watched([lines(*map(str, range(500)))])))
    assert run(t, tmp_path / "state", max_spout_pending=3, local_threads=threads).acked == 500
    assert 1 <= most[0] <= 3


def test_two_bolts_that_feed_each_other_on_rings_of_one_do_not_deadlock(tmp_path: Path) -> None:
    @bolt
    def first(line: Line) -> Iterator[Count]:
        return (Count(line.text, number) for number in range(20))

    @bolt(blocking=True)
    def ping(counted: Count) -> Word | None:
        return Word("x" * counted.count) if counted.count < 25 else None

    @bolt(blocking=True)
    def pong(word: Word) -> Count:
        return Count(word.word, len(word.word) + 1)

    t = Topology("cycle", allow_cycle=True)
    pings = t.bolt("ping", ping).shuffle(t.bolt("first", first).shuffle(t.spout("lines", Script([lines(*"abcdef")]))))
    pings.shuffle(t.bolt("pong", pong).shuffle(pings))
    assert run(t, tmp_path / "state", ring_size=1).acked == 6


def test_a_stop_drains_what_is_in_flight_and_returns_when_it_is_done(tmp_path: Path) -> None:
    taken, go = threading.Event(), threading.Event()
    done: list[str] = []

    @bolt(blocking=True)
    def slow(line: Line) -> None:
        taken.set()
        assert go.wait(HANG_S)
        done.append(line.text)

    script = Script([lines("a", "b", "c")], ends=False)
    t = Topology("drain")
    t.bolt("slow", slow).shuffle(t.spout("lines", script))
    handle = begin(t, tmp_path / "state")
    assert taken.wait(HANG_S)
    stopping = threading.Thread(target=handle.stop)
    stopping.start()
    go.set()
    stopping.join(HANG_S)
    summary = handle.wait(HANG_S)
    assert sorted(done) == ["a", "b", "c"]
    assert (summary.acked, summary.open) == (3, 0)
    assert script.life == ["open", "activate", "deactivate", "close"]


def test_what_a_drain_leaves_is_failed_to_its_source_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = threading.Event()

    @bolt(auto_ack=False)
    def keep(line: Line, out: Collector[Word]) -> None:
        kept.set()

    script = Script(lines("a"), ends=False)
    t = Topology("left")
    t.bolt("keep", keep).shuffle(t.spout("lines", script)).stream(Word, unconsumed=True)
    handle = begin(t, tmp_path / "state")
    assert kept.wait(HANG_S)
    handle.stop(0.0)
    assert handle.wait(HANG_S).open == 1
    assert [(message_id, failure.kind) for message_id, failure in script.failed] == [(0, FailureKind.STOPPED)]
    assert "1 message was not finished" in caplog.text
    assert "0 (root " in caplog.text


def test_a_batch_that_waits_for_more_is_flushed_on_stop(tmp_path: Path) -> None:
    seen: list[int] = []
    emitted = threading.Event()

    @batch_bolt(size=100, max_age_s=600.0)
    def gather(rows: list[Line]) -> None:
        seen.append(len(rows))

    class Telling(Script):
        def next(self) -> Any:
            if not self.steps:
                emitted.set()
            return super().next()

    script = Telling([lines(*"abcde")], ends=False)
    t = Topology("batch")
    t.bolt("gather", gather).shuffle(t.spout("lines", script))
    handle = begin(t, tmp_path / "state")
    assert emitted.wait(HANG_S)
    handle.stop()
    assert seen == [5]
    assert handle.wait(HANG_S).acked == 5


def test_a_bolt_that_blocks_for_ever_is_named_with_its_stack_and_stop_still_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tupletree.runtimes.local.life.STOP_TIMEOUT_S", 0.05)
    inside, never = threading.Event(), threading.Event()

    @bolt(blocking=True)
    def stuck(line: Line) -> None:
        inside.set()
        never.wait()

    script = Script(lines("a"), ends=False)
    t = Topology("stuck")
    t.bolt("stuck", stuck).shuffle(t.spout("lines", script))
    handle = begin(t, tmp_path / "state")
    assert inside.wait(HANG_S)
    handle.stop(0.0)
    assert handle.wait(HANG_S).open == 1
    assert "at work: stuck" in caplog.text
    assert "never.wait()" in caplog.text
    never.set()


def test_other_bolts_go_on_while_a_blocking_one_blocks(tmp_path: Path) -> None:
    inside, go = threading.Event(), threading.Event()
    acked = threading.Event()

    class Counting(Script):
        def ack(self, message_id: Any) -> None:
            super().ack(message_id)
            if len(self.acked) == 100:
                acked.set()

    @bolt(blocking=True)
    def stuck(line: Line) -> None:
        inside.set()
        assert go.wait(HANG_S)

    @bolt
    def quick(line: Line) -> None:
        """Done."""

    t = Topology("neighbours")
    t.bolt("stuck", stuck).shuffle(t.spout("slow", Script(lines("a"))))
    t.bolt("quick", quick).shuffle(t.spout("fast", Counting([lines(*map(str, range(100)))])))
    handle = begin(t, tmp_path / "state")
    assert inside.wait(HANG_S)
    assert acked.wait(HANG_S)
    go.set()
    assert handle.wait(HANG_S).acked == 101


def test_stop_and_start_a_hundred_times_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    for number in range(100):
        t = Topology("again")
        t.bolt("split", split).shuffle(t.spout("lines", Script([lines("a")], ends=False))).stream(Word, unconsumed=True)
        begin(t, tmp_path / f"state{number}").stop()
    assert threading.active_count() == before


@pytest.mark.parametrize("ackers", [0, 1])
def test_untracked_messages_are_worked_before_the_end(tmp_path: Path, ackers: int) -> None:
    sink: list[Word] = []
    t = Topology("untracked")
    emits = [Emit(Line(f"w{number}")) for number in range(5_000)]
    words = t.bolt("split", split, parallelism=2).shuffle(t.spout("lines", Script([emits])))
    t.sink("out", foreach(lambda batch: sink.extend(batch.rows))).shuffle(words)
    summary = run(t, tmp_path / "state", acker_tasks=ackers)
    assert (summary.emitted, summary.open) == (0, 0)
    assert len(sink) == 5_000


def test_ticks_come_without_data(tmp_path: Path) -> None:
    ticked = threading.Event()

    @bolt(tick_interval_s=0.001)
    def clocked(value: Line | Tick) -> None:
        if isinstance(value, Tick):
            ticked.set()

    t = Topology("ticks")
    t.bolt("clocked", clocked).shuffle(t.spout("lines", Script([], ends=False)))
    handle = begin(t, tmp_path / "state")
    assert ticked.wait(HANG_S)
    handle.stop()


def test_async_bolts_overlap_their_calls(tmp_path: Path) -> None:
    import asyncio

    arrived: list[str] = []
    everybody = asyncio.Event()

    @bolt(concurrency=5)
    async def meet(line: Line) -> Word:
        arrived.append(line.text)
        if len(arrived) == 5:
            everybody.set()
        await asyncio.wait_for(everybody.wait(), HANG_S)
        return Word(line.text)

    got: list[Word] = []
    t = Topology("meeting")
    met = t.bolt("meet", meet).shuffle(t.spout("lines", Script([lines(*"abcde")])))
    t.sink("out", foreach(lambda batch: got.extend(batch.rows))).shuffle(met)
    assert run(t, tmp_path / "state").acked == 5
    assert sorted(one.word for one in got) == list("abcde")


def test_pause_stops_the_spouts_and_resume_lets_them_go_on(tmp_path: Path) -> None:
    heard = threading.Event()

    class Hearing(Script):
        def ack(self, message_id: Any) -> None:
            super().ack(message_id)
            heard.set()

    script = Hearing([None], ends=False)
    t = Topology("pausing")
    t.bolt("split", split).shuffle(t.spout("lines", script)).stream(Word, unconsumed=True)
    handle = begin(t, tmp_path / "state")
    handle.pause()
    asked = script.asked
    script.steps.append(lines("a"))
    handle.pause()
    assert script.asked == asked
    handle.resume()
    assert heard.wait(HANG_S)
    handle.stop()


def test_describe_names_tasks_executors_and_rings(tmp_path: Path) -> None:
    t = Topology("shown")
    t.bolt("split", split, parallelism=2).shuffle(t.spout("lines", Script([], ends=False))).stream(
        Word, unconsumed=True
    )
    handle = begin(t, tmp_path / "state")
    text = handle.describe()
    handle.stop()
    for part in ("__system[0]", "__acker[3]", "split[1]", "lines[0]", "executor bolts", "tuples in its ring"):
        assert part in text


@pytest.mark.parametrize("threads", [1, 2])
def test_components_with_executors_run_on_threads_of_their_own(tmp_path: Path, threads: int) -> None:
    served: dict[str, set[tuple[str, int]]] = {"lines": set(), "more": set(), "split": set()}

    class Shared(Script):
        def __init__(self, name: str) -> None:
            super().__init__([Emit(Line(f"{name} {number}"), number) for number in range(300)])
            self.name = name

        def next(self) -> Any:
            served[self.name].add((threading.current_thread().name, 0))
            return super().next()

    @bolt
    def where(line: Line, context: TaskContext) -> Word:
        served["split"].add((threading.current_thread().name, context.task_index))
        return Word(line.text)

    rows: list[Word] = []
    t = Topology("threads")
    one = t.spout("lines", Shared("lines"), executors=1)
    words = t.bolt("split", where, parallelism=3, executors=2).shuffle(one).shuffle(t.spout("more", Shared("more")))
    t.sink("out", foreach(lambda batch: rows.extend(batch.rows))).shuffle(words)
    summary = run(t, tmp_path / "state", local_threads=threads)
    assert (summary.acked, len(rows), summary.open) == (600, 600, 0)
    assert served == {
        "lines": {("tupletree-lines[0]", 0)},
        "more": {("tupletree-spouts" if threads == 2 else "tupletree-all", 0)},
        "split": {("tupletree-split[0]", 0), ("tupletree-split[1]", 1), ("tupletree-split[0]", 2)},
    }


def test_a_drain_waits_for_the_spouts_of_every_executor(tmp_path: Path) -> None:
    taken, go = threading.Event(), threading.Event()

    @bolt(blocking=True)
    def wait(line: Line) -> None:
        taken.set()
        assert go.wait(HANG_S)

    @bolt
    def ignore(line: Line) -> None:
        """Done."""

    slow, quick = Script([lines("a", "b")], ends=False), Script([lines("c")], ends=False)
    t = Topology("apart")
    t.bolt("wait", wait).shuffle(t.spout("slow", slow, executors=1))
    t.bolt("pass", ignore).shuffle(t.spout("quick", quick))
    handle = begin(t, tmp_path / "state")
    assert taken.wait(HANG_S)
    for part in ("executor slow[0]: ", "executor spouts: ", "executor wait[0]: "):
        assert part in handle.describe()
    stopping = threading.Thread(target=handle.stop)
    stopping.start()
    go.set()
    stopping.join(HANG_S)
    assert handle.wait(HANG_S).open == 0
    assert (slow.acked, slow.failed, quick.failed) == ([0, 1], [], [])


def test_everything_that_the_runtime_does_not_support_is_refused_at_once(tmp_path: Path) -> None:
    @batch_bolt(size=2)
    async def awaited(rows: list[Line]) -> list[Word]:
        """Not yet."""
        return []

    @arrow_bolt(inputs=Line)
    async def vectorised(batch: pa.RecordBatch) -> None:
        """Not yet."""

    t = Topology("too-much")
    source = t.spout("lines", Script([]))
    t.bolt("awaited", awaited).shuffle(source).stream(Word, unconsumed=True)
    t.bolt("vectorised", vectorised).shuffle(source)
    with pytest.raises(TopologyError) as caught:
        begin(t, tmp_path / "state")
    assert len(caught.value.findings) == 2
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("error", [TimeoutError("t"), StopIteration(), GeneratorExit(), SystemExit(3), KeyError("k")])
def test_whatever_a_bolt_raises_fails_only_its_message(tmp_path: Path, error: BaseException) -> None:
    @bolt
    def bad(line: Line) -> None:
        if line.text == "bad":
            raise error

    t = Topology("raising")
    t.bolt("bad", bad).shuffle(t.spout("lines", Script([lines("a", "bad", "c")])))
    summary = run(t, tmp_path / "state", max_attempts=1)
    assert (summary.acked, summary.dead) == (2, 1)


def test_a_local_run_takes_no_replay_requests_and_says_what_to_do(tmp_path: Path) -> None:
    run(word_count(["poison"], tmp_path / "out"), tmp_path / "state", max_attempts=1)
    with pytest.raises(ConfigError, match="dead show"):
        deadletters.request_replay(tmp_path / "state", None)
