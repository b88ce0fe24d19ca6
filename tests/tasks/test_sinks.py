from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.tasks.streams import Gathering, Line, Script, Word
from tupletree import Topology, bolt
from tupletree.config import Options
from tupletree.data.frames import Frame, Root, join_segments
from tupletree.routing.plan import Plan
from tupletree.sinks.files import RowError, SinkRowsError
from tupletree.tasks.mail import DropRoots, Mail, Now, WriteRequest, Written
from tupletree.tasks.outbox import Outbox
from tupletree.tasks.sink import SinkMachine
from tupletree.topology.components import SinkBatch
from tupletree.tracking.outcomes import FailureKind

SPOUT = 9


@bolt
def word(line: Line) -> Word:
    return Word(line.text)


class Bench:
    """One sink machine, fed by hand."""

    def __init__(self, linger_s: float = 0.0, *, ordered: bool = False) -> None:
        self.sink = Gathering()
        self.sink.ordered = ordered
        t = Topology("words")
        t.sink("out", self.sink).shuffle(t.bolt("word", word).shuffle(t.spout("lines", Script([]))))
        plan = Plan.of(t.build(), Options())
        self.now_s = 0.0
        self.out = Outbox([1])
        self.machine = SinkMachine(
            plan, plan.tasks_of("out")[0], self.sink, run="run", incarnation=1, linger_s=linger_s
        )
        self.machine.start(self.now, self.out)

    @property
    def now(self) -> Now:
        return Now(self.now_s, self.now_s)

    def rows(self, *rows: tuple[str, Root]) -> None:
        frame = Frame(
            self.machine.task.task_id,
            "word",
            "Word",
            [Word(text) for text, _ in rows],
            [root for _, root in rows],
            list(range(1, len(rows) + 1)),
            77,
        )
        self.machine.work(frame, self.now, self.out)

    def tell(self, *mail: Mail) -> list[Written]:
        self.machine.receive(mail, self.now, self.out)
        self.machine.poll(self.now, self.out)
        return self.answers()

    def answers(self) -> list[Written]:
        return [one for _, one in self.out.take_mail() if isinstance(one, Written)]

    @property
    def written(self) -> list[str]:
        return [row.word for row in self.sink.rows]


def release(number: int, *roots: int, flush_now: bool = False) -> WriteRequest:
    return WriteRequest(SPOUT, number, list(roots), flush_now)


def test_rows_are_acked_as_they_are_taken_and_written_when_their_root_is_released() -> None:
    bench = Bench()
    bench.rows(("a", 1), ("b", 2), ("c", 1))
    ((_, track),) = bench.out.take_tracks()
    assert [(value, set(roots)) for value, roots in track.deltas] == [(77, {1, 2})]
    assert bench.tell(release(1, 1)) == [Written(bench.machine.task.task_id, 1, 1, {})]
    assert bench.written == ["a", "c"]
    bench.tell(release(2, 2))
    assert bench.written == ["a", "c", "b"]
    assert bench.machine.held == 0


@pytest.mark.parametrize("seed", range(50))
def test_of_whatever_frames_rows_come_they_are_written_with_their_root_in_their_order(seed: int) -> None:
    chance = random.Random(seed)
    bench, expected = Bench(), dict[int, list[str]]()
    for frame in range(chance.randint(1, 6)):
        roots = [chance.randint(1, 9) for _ in range(chance.randint(1, 9))]
        if chance.random() < 0.5:
            roots = list(dict.fromkeys(roots))
        rows = [(f"{frame}.{place}", root) for place, root in enumerate(roots)]
        bench.rows(*rows)
        for text, root in rows:
            expected.setdefault(root, []).append(text)
    assert bench.machine.held == len(expected)
    assert sorted(bench.machine.held_roots()) == sorted(expected)
    failed = chance.sample(sorted(expected), len(expected) // 3)
    bench.tell(DropRoots(failed))
    for root in failed:
        del expected[root]
    for number, root in enumerate([*expected]):
        written = len(bench.written)
        bench.tell(release(number, root))
        assert bench.written[written:] == expected[root]
    assert bench.machine.held == 0


@pytest.mark.parametrize("seed", range(50))
def test_each_row_has_the_number_that_came_with_it(seed: int) -> None:
    chance = random.Random(seed)
    bench, expected = Bench(ordered=True), dict[str, int]()
    for frame in range(chance.randint(1, 6)):
        count = chance.randint(1, 9)
        roots: list[Root] = [chance.choice((0, 1, 2, 3, 4, 5, 6, (2, 3), (4, 5, 6))) for _ in range(count)]
        if chance.random() < 0.5:
            roots = list(dict.fromkeys(roots))
        if chance.random() < 0.5:
            roots = sorted(roots, key=str)  # so that a message has several rows in one piece
        numbers: Sequence[int] = range(100 * frame, 100 * frame + len(roots))
        if chance.random() < 0.3:
            numbers = chance.sample(range(1000), len(roots))
        texts = [f"{frame}.{place}" for place in range(len(roots))]
        _, segments, ends = join_segments([(root, [text]) for root, text in zip(roots, texts, strict=True)])
        task = bench.machine.task.task_id
        values = [Word(text) for text in texts]
        bench.machine.work(Frame(task, "word", "Word", values, segments, ends, 77, numbers), bench.now, bench.out)
        expected.update(zip(texts, numbers, strict=True))
    roots_left = [1, 2, 3, 4, 5, 6]
    chance.shuffle(roots_left)
    for number in range(3):
        bench.tell(release(number, *roots_left[2 * number : 2 * number + 2]))
    bench.machine.flush(bench.now, bench.out)
    found = [
        (row.word, number)
        for batch in bench.sink.batches
        for row, number in zip(batch.rows, batch.made or (), strict=True)
    ]
    assert dict(found) == expected
    assert len(found) == len(expected)


def test_a_release_of_which_nothing_is_held_is_answered_at_once_also_when_others_linger() -> None:
    bench = Bench(linger_s=1.0)
    bench.rows(("a", 1))
    assert bench.tell(release(1, 1), release(2, 5)) == [Written(bench.machine.task.task_id, 1, 2, {})]
    assert bench.written == []
    bench.now_s = 1.0
    assert [one.number for one in bench.tell()] == [1]
    assert bench.written == ["a"]


def test_asking_again_is_answered_again_but_never_before_the_rows_are_written() -> None:
    bench = Bench(linger_s=1.0)
    bench.rows(("a", 1))
    assert bench.tell(release(1, 1), release(1, 1)) == []
    bench.now_s = 1.0
    assert [one.number for one in bench.tell()] == [1]
    assert [one.number for one in bench.tell(release(1, 1))] == [1]
    assert bench.written == ["a"]


def test_a_hurried_release_does_not_linger() -> None:
    bench = Bench(linger_s=60.0)
    bench.rows(("a", 1))
    bench.tell(release(1, 1, flush_now=True))
    assert bench.written == ["a"]


def test_rows_of_a_failed_attempt_go_away() -> None:
    bench = Bench()
    bench.rows(("a", 1), ("b", 2))
    bench.tell(DropRoots([1]), release(1, 2), release(2, 1))
    assert bench.written == ["b"]
    assert bench.machine.held == 0


def test_an_untracked_row_is_written_at_once() -> None:
    bench = Bench()
    bench.rows(("a", 0))
    bench.tell()
    assert bench.written == ["a"]


def test_a_shared_row_waits_for_all_its_roots_and_holds_the_answer_back() -> None:
    bench = Bench()
    bench.rows(("both", (1, 2)), ("one", 1))
    assert bench.tell(release(1, 1)) == []
    assert bench.written == []
    assert [one.number for one in bench.tell(release(2, 2))] == [1, 2]
    assert sorted(bench.written) == ["both", "one"]
    assert bench.machine.held == 0


def test_a_root_that_fails_no_longer_withholds_a_row_that_it_shares_with_a_live_one() -> None:
    bench = Bench()
    bench.rows(("both", (1, 2)))
    bench.tell(release(1, 1))
    assert [one.number for one in bench.tell(DropRoots([2]))] == [1]
    assert bench.written == ["both"]


def test_a_shared_row_goes_away_when_all_its_roots_failed() -> None:
    bench = Bench()
    bench.rows(("both", (1, 2)))
    bench.tell(DropRoots([1]), DropRoots([2]))
    assert bench.written == []
    assert bench.machine.held == 0


def test_two_roots_of_one_release_that_share_a_row_write_it_once() -> None:
    bench = Bench()
    bench.rows(("both", (1, 2)), ("a", 1), ("b", 2))
    assert [one.number for one in bench.tell(release(1, 1, 2))] == [1]
    assert sorted(bench.written) == ["a", "b", "both"]


def test_a_refused_row_fails_its_message_and_the_others_are_written_under_the_same_id() -> None:
    bench = Bench()
    ids: list[str] = []

    def refuse(batch: SinkBatch[Any]) -> None:
        ids.append(batch.id)
        bad = [position for position, row in enumerate(batch.rows) if row.word == "bad"]
        if bad:
            raise SinkRowsError("out", [RowError(position, "too long") for position in bad])

    bench.sink.refuse = refuse
    bench.rows(("a", 1), ("bad", 2), ("c", 2), ("d", 3))
    (answer,) = bench.tell(release(1, 1, 2, 3))
    assert list(answer.refused) == [2]
    assert answer.refused[2].kind is FailureKind.PUBLISH
    assert "too long" in answer.refused[2].error
    assert bench.written == ["a", "d"]
    assert len(ids) == 2
    assert ids[0] == ids[1]


@pytest.mark.parametrize("error", [OSError("disk full"), ValueError("no")])
def test_a_sink_that_raises_fails_every_message_of_the_batch(error: Exception) -> None:
    bench = Bench()

    def refuse(batch: SinkBatch[Any]) -> None:
        raise error

    bench.sink.refuse = refuse
    bench.rows(("a", 1), ("b", 0))
    (answer,) = bench.tell(release(1, 1))
    assert str(error) in answer.refused[1].error
    assert bench.machine.rows_written == 0
    assert [note.text for note in bench.out.notes if "1 untracked rows are lost" in note.text]


def test_batch_ids_differ_between_batches_and_starts() -> None:
    bench = Bench()
    bench.rows(("a", 1), ("b", 2))
    bench.tell(release(1, 1))
    bench.tell(release(2, 2))
    assert len({batch.id for batch in bench.sink.batches}) == 2
    assert all(batch.id.startswith("run-out-0000-1-") for batch in bench.sink.batches)


def test_a_refused_row_that_two_roots_share_is_told_to_both_also_where_one_waits_for_other_rows() -> None:
    bench = Bench()

    def refuse(batch: SinkBatch[Any]) -> None:
        raise OSError("no")

    bench.sink.refuse = refuse
    bench.rows(("ab", (1, 2)), ("ac", (1, 3)))
    assert [one.number for one in bench.tell(release(1, 1), release(2, 2))] == [2]
    bench.sink.refuse = None
    (answer,) = bench.tell(release(3, 3))[:1]
    assert answer.number == 1
    assert list(answer.refused) == [1]


def test_asking_again_gives_the_same_refusals() -> None:
    bench = Bench()

    def refuse(batch: SinkBatch[Any]) -> None:
        raise OSError("no")

    bench.sink.refuse = refuse
    bench.rows(("a", 1))
    (first,) = bench.tell(release(1, 1))
    (again,) = bench.tell(release(1, 1))
    assert first == again
    assert list(again.refused) == [1]


def test_a_release_whose_rows_went_away_is_refused_so_that_its_message_is_tried_again() -> None:
    bench = Bench()
    bench.rows(("a", 1), ("b", 2))
    (answer,) = bench.tell(DropRoots([1]), release(1, 1, 2))
    assert {root: failure.kind for root, failure in answer.refused.items()} == {1: FailureKind.LOST}
    assert bench.written == ["b"]


def test_an_acker_that_dies_takes_the_rows_of_its_share_along() -> None:
    bench = Bench()
    bench.rows(("a", 1), ("b", 2), ("c", (3, 4)))
    bench.machine.acker_lost(1, 2, bench.now, bench.out)
    bench.tell(release(1, 2, 4))
    assert sorted(bench.written) == ["b", "c"]
    assert bench.machine.held == 0
