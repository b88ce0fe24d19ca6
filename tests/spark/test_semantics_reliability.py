"""Attempts, backoff, timeouts, and the three ways to turn the guarantee off, end to end on Spark."""

from collections import Counter
from pathlib import Path
from typing import ClassVar

import msgspec

from tests.spark.conftest import SPARK_NIGHTLY, RunTopology
from tests.spark.helpers_semantics import HEARD, Feed, finish
from tupletree import Collector, Emit, EndOfInput, KeyedState, PermanentError, Spout, TaskContext, Topology, bolt
from tupletree.ids import MessageId
from tupletree.sinks import jsonl
from tupletree.testing.conformance.messages import numbered
from tupletree.tracking.outcomes import Failure, FailureKind


class Order(msgspec.Struct, frozen=True):
    name: str


class Done(msgspec.Struct, frozen=True):
    name: str
    attempt: int


@bolt(auto_ack=False, auto_fail=False)
def carry_out(order: Order, context: TaskContext, out: Collector[Done]) -> None:
    """Do as the order's name says."""
    match order.name.partition("-")[0]:
        case "ack":
            out.emit(Done(order.name, context.attempt))
            out.ack(order)
            out.ack(order)  # a second verdict changes nothing
            out.fail(order)
        case "silent":
            out.emit(Done(order.name, context.attempt))
        case "raise":
            raise ValueError("auto_fail is off, so the tuple stays open")
        case "fail":
            out.fail(order, "asked to")
        case "permanent":
            out.fail(order, PermanentError("no use"))
        case "second":
            if context.attempt == 2:
                out.emit(Done(order.name, context.attempt))
                out.ack(order)
            else:
                out.fail(order, ConnectionError("not yet"))


@SPARK_NIGHTLY
def test_what_is_never_acked_times_out_and_what_fails_is_retried_with_backoff(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    names = ["ack-1", "silent", "raise", "fail", "permanent", "second", "ack-2"]
    t = Topology("orders")
    source = t.spout("source", Feed("orders", Order, [Emit(Order(name), name) for name in names]))
    done = t.bolt("orders", carry_out, parallelism=2).shuffle(source)
    t.sink("out", jsonl(tmp_path / "out")).shuffle(done)
    result = finish(
        run_topology,
        t,
        tmp_path,
        message_timeout_s=0.5,
        max_attempts=3,
        backoff_initial_ms=100,
        backoff_max_ms=10_000,
        backoff_jitter=0,
    )
    assert result.tally("out", "name", "attempt") == {("ack-1", 1): 1, ("ack-2", 1): 1, ("second", 2): 1}
    dead = result.dead
    assert {name: letter.attempts for name, letter in dead.items()} == {
        "silent": 3,
        "raise": 3,
        "fail": 3,
        "permanent": 1,
    }
    took_s = {name: letter.died_s - letter.first_emitted_s for name, letter in dead.items()}
    assert took_s["fail"] >= 0.1 + 0.2
    for name in ("silent", "raise"):
        assert dead[name].failure.kind is FailureKind.TIMEOUT
        assert "0.5 s" in dead[name].failure.error
        assert took_s[name] >= 3 * 0.5 + 0.1 + 0.2
    assert (dead["fail"].failure.error, dead["fail"].failure.component) == ("asked to", "orders")
    assert dead["permanent"].failure.permanent
    assert dead["permanent"].failure.error_type.endswith("PermanentError")
    assert (result.summary.failed, result.summary.retried) == (3 * 3 + 1 + 1, 2 * 3 + 1)
    heard = HEARD["orders"]
    assert Counter(heard.acked) == Counter(["ack-1", "ack-2", "second"])
    assert Counter(name for name, _ in heard.failed) == Counter(dead.keys())


class Numbered(msgspec.Struct, frozen=True):
    number: int


class Note(msgspec.Struct, frozen=True):
    number: int


@bolt
def note_unanchored(value: Numbered, out: Collector[Numbered | Note]) -> None:
    out.emit(Note(value.number), anchors=())
    out.emit(value)
    if value.number % 4 == 3:
        out.fail(value, PermanentError("after the note"))


@bolt
def refuse_notes(note: Note) -> Note:
    if note.number % 2 == 0:
        raise ValueError("an even note")
    return note


@bolt(state=int)
def count_up(value: Numbered, total: KeyedState[int]) -> Numbered:
    total.value += 1
    return value


@SPARK_NIGHTLY
def test_untracked_messages_and_unanchored_tuples_are_processed_and_fail_no_message(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    tracked, untracked = range(20), range(100, 120)
    messages = numbered([Numbered(number) for number in tracked])
    messages += [Emit(Numbered(number)) for number in untracked]
    t = Topology("untracked")
    source = t.spout("source", Feed("untracked", Numbered, messages))
    noted = t.bolt("note", note_unanchored, parallelism=2).shuffle(source)
    counted = t.bolt("count", count_up, parallelism=2).fields(noted.stream(Numbered), "number")
    t.sink("values", jsonl(tmp_path / "values")).shuffle(counted)
    notes = t.bolt("refuse", refuse_notes, parallelism=2).fields(noted.stream(Note), "number")
    t.sink("notes", jsonl(tmp_path / "notes")).shuffle(notes)
    result = finish(run_topology, t, tmp_path)
    failed = {number for number in tracked if number % 4 == 3}
    assert result.dead.keys() == failed
    assert result.summary.emitted == len(tracked)
    # Nobody keeps an account of an untracked message: failing its tuple takes nothing back.
    assert result.tally("values", "number") == Counter({*tracked, *untracked} - failed)
    assert result.tally("notes", "number").keys() == {number for number in (*tracked, *untracked) if number % 2}
    assert set(HEARD["untracked"].acked) == set(tracked) - failed


@SPARK_NIGHTLY
def test_without_ackers_every_message_is_acked_on_emit(run_topology: RunTopology, tmp_path: Path) -> None:
    t = Topology("no-ackers")
    source = t.spout(
        "source", Feed("no-ackers", Order, [Emit(Order(name), name) for name in ("ack-1", "fail", "ack-2")])
    )
    done = t.bolt("orders", carry_out).shuffle(source)
    t.sink("out", jsonl(tmp_path / "out")).shuffle(done)
    result = finish(run_topology, t, tmp_path, acker_tasks=0)
    assert (result.summary.emitted, result.summary.dead) == (0, 0)
    assert result.tally("out", "name") == {"ack-1": 1, "ack-2": 1}
    assert Counter(HEARD["no-ackers"].acked) == Counter(["ack-1", "fail", "ack-2"])


class Queue(Spout[Numbered]):
    """Ten messages that stay until they are acked or dead; a failed one is emitted again, with the same id."""

    emitted: ClassVar[Counter[int]] = Counter()
    settled: ClassVar[Counter[int]] = Counter()
    failed: ClassVar[Counter[int]] = Counter()

    def open(self, context: TaskContext) -> None:
        self.ready = list(range(10))
        self.left = set(self.ready)

    def next(self) -> Emit[Numbered] | None:
        if not self.left:
            raise EndOfInput
        if not self.ready:
            return None
        number = self.ready.pop()
        Queue.emitted[number] += 1
        return Emit(Numbered(number), number)

    def ack(self, message_id: MessageId) -> None:
        assert isinstance(message_id, int)
        Queue.settled[message_id] += 1
        self.left.discard(message_id)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        assert isinstance(message_id, int)
        Queue.failed[message_id] += 1
        if failure.permanent:
            self.left.discard(message_id)
        else:
            self.ready.append(message_id)


@bolt
def need_patience(value: Numbered, context: TaskContext) -> Numbered:
    if value.number == 3 or (value.number == 5 and context.attempt < 3):
        raise ConnectionError(f"attempt {context.attempt}")
    return value


@SPARK_NIGHTLY
def test_a_source_that_replays_is_told_of_each_attempt_and_its_message_dies_after_the_last(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    t = Topology("queue")
    source = t.spout("source", Queue(), replay="source")
    passed = t.bolt("patience", need_patience, parallelism=2).shuffle(source)
    t.sink("out", jsonl(tmp_path / "out")).shuffle(passed)
    result = finish(run_topology, t, tmp_path, max_attempts=3)
    assert result.dead.keys() == {3}
    assert result.dead[3].attempts == 3
    assert result.dead[3].failure.error == "attempt 3"
    assert Queue.emitted == Counter({**dict.fromkeys(range(10), 1), 3: 3, 5: 3})
    assert Queue.failed == Counter({3: 3, 5: 2})
    assert Queue.settled == Counter(set(range(10)) - {3})
    assert result.tally("out", "number") == Counter(set(range(10)) - {3})


class Forgetful(Spout[Numbered]):
    """Emits once, hears of the failure, and never emits again although it is to."""

    def open(self, context: TaskContext) -> None:
        self.given = False

    def next(self) -> Emit[Numbered]:
        if self.given:
            raise EndOfInput
        self.given = True
        return Emit(Numbered(3), 3)


@SPARK_NIGHTLY
def test_a_source_that_ends_without_a_requested_replay_leaves_a_dead_letter(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    t = Topology("forgetful")
    source = t.spout("source", Forgetful(), replay="source")
    t.bolt("patience", need_patience).shuffle(source).stream(Numbered, unconsumed=True)
    result = finish(run_topology, t, tmp_path, max_attempts=3)
    assert result.dead[3].failure.error == "attempt 1"
