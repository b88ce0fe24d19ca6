"""The state of one task during one run on Spark: a version in, a candidate out, and blame for what cannot be stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.bolts.frame_bench import Count, frame
from tupletree import Collector, KeyedState, Tick, Topology, bolt
from tupletree.bolts.effects import TaskPlace
from tupletree.bolts.failures import FailureMaker
from tupletree.bolts.plain import BoltTask
from tupletree.config import Options
from tupletree.data.frames import Frame
from tupletree.errors import ProcessingError
from tupletree.routing.plan import Plan
from tupletree.runtimes.spark.format.program import EpochControl
from tupletree.runtimes.spark.format.wire import StateReport
from tupletree.runtimes.spark.worker.keyed_task import StatefulTask
from tupletree.sources.items import items
from tupletree.state.versions import StateFile, version_after
from tupletree.tracking.outcomes import Failure


class Word(msgspec.Struct, frozen=True):
    text: str
    shout: bool = False


def words(*texts: str) -> list[Word]:
    return [Word(text) for text in texts]


@bolt(state=int)
def count(word: Word, total: KeyedState[int]) -> Count:
    if word.text == "odd" and not word.shout:
        total.value = "no number"  # type: ignore[assignment]  # the fault under test
    else:
        total.value += 1
    return Count(word.text, 1)


class Epochs:
    """Runs of one task of `count`, each with a file name of its own, as a stage makes them."""

    def __init__(self, folder: Path, what: Any = count) -> None:
        topology = Topology("count-words")
        source = topology.spout("words", items([Word("a")]))
        counting = topology.bolt("count", what).fields(source, "text")
        counting.stream(Count, unconsumed=True)
        self.plan = Plan.of(topology.build(), Options(), partitions=1)
        self.folder = folder
        (folder / "count").mkdir()
        self.files: list[StateFile] = []
        self.runs = 0

    def run(self, *frames: Frame, checked: bool = False) -> tuple[StateReport | None, dict[int, Failure]]:
        self.runs += 1
        control = EpochControl(
            run_id="0123456789",
            epoch=self.runs,
            run=1,
            generation=1,
            time_s=0.0,
            state={"count": self.files},
            checked=["count"] if checked else [],
            state_directory=str(self.folder),
        )
        component = self.plan.spec.components["count"]
        (task,) = self.plan.tasks_of("count")
        state = StatefulTask.of(component, task, self.plan, control, attempt=0)
        assert state is not None
        bolt_task = BoltTask(component, TaskPlace("t", "count", 1, 0, 1), state.cell, state.key_functions)
        failures: dict[int, Failure] = {}
        for one in frames:
            self.worked = bolt_task.work(one)
            failures.update(self.worked.failures)
        self.ticked = bolt_task.tick(1.0)
        fail = FailureMaker("count", 1)
        report = state.write(list(frames), lambda root, value, error: fail.note(failures, root, value, error))
        return report, failures

    def commit(self, *frames: Frame) -> StateReport | None:
        report, failures = self.run(*frames)
        assert not failures
        if report is not None:
            self.files = version_after(self.files, report.file, report.merged)
        return report

    def values(self) -> dict[Any, Any]:
        component = self.plan.spec.components["count"]
        (task,) = self.plan.tasks_of("count")
        control = EpochControl(
            run_id="x",
            epoch=0,
            run=0,
            generation=0,
            time_s=0.0,
            state={"count": self.files},
            state_directory=str(self.folder),
        )
        state = StatefulTask(component, task, self.plan, control, attempt=0)
        keys = ["a", "b", "odd", None]
        state.cell.prepare(keys, 0.0)
        return {key: state.cell.load(key) for key in keys}


def test_what_a_committed_run_changed_is_where_the_next_one_starts(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path)
    first = epochs.commit(frame((1, words("a", "b", "a"))))
    second = epochs.commit(frame((2, words("a"))))

    assert first is not None
    assert second is not None
    assert (first.file.records, second.file.records, second.merged) == (2, 2, [first.file.name])
    assert epochs.values() == {"a": 3, "b": 1, "odd": 0, None: 0}


def test_a_run_that_is_not_committed_leaves_no_trace(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path)
    epochs.commit(frame((1, words("a"))))
    epochs.run(frame((2, words("a", "b"))))

    assert epochs.values()["a"] == 1
    assert epochs.commit(frame((2, words("a")))) is not None
    assert epochs.values() == {"a": 2, "b": 0, "odd": 0, None: 0}


def test_none_is_a_key_although_the_field_says_text(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path)
    nameless = Word(None)  # type: ignore[arg-type]  # None is a legal key
    epochs.commit(frame((1, [nameless, nameless])))

    assert epochs.values()[None] == 2


def test_a_run_that_does_not_check_asks_for_one_that_does(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path)
    with pytest.raises(ProcessingError, match="expected: int"):
        epochs.run(frame((1, words("a")), (2, words("odd"))))
    assert list((tmp_path / "count").iterdir()) == []


def test_a_value_that_cannot_be_stored_fails_only_the_tuple_whose_call_left_it(tmp_path: Path) -> None:
    """The word "odd" leaves a text where a number belongs; "odd!" has the same key, and does not."""
    epochs = Epochs(tmp_path)
    report, failures = epochs.run(
        frame((1, words("a")), (2, words("b", "odd")), (5, [Word("odd", shout=True)])),
        frame(((3, 4), words("odd")), (6, [Word("odd", shout=True)])),
        checked=True,
    )

    assert set(failures) == {2, 3, 4}
    assert "expected: int" in failures[2].error
    assert failures[2].failing_tuple == "Word(text='odd', shout=False)"
    assert report is not None
    epochs.files = [report.file]
    assert epochs.values() == {"a": 1, "b": 1, "odd": 2, None: 0}


def test_an_untracked_tuple_with_an_unstorable_value_changes_no_other_state(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path)
    report, failures = epochs.run(frame((1, words("a")), (0, words("odd"))), checked=True)

    assert report is not None
    assert not failures
    epochs.files = [report.file]
    assert epochs.values() == {"a": 1, "b": 0, "odd": 0, None: 0}


def test_a_run_that_changed_nothing_that_can_be_stored_writes_no_file(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path)
    report, failures = epochs.run(frame((1, words("odd"))), checked=True)

    assert report is None
    assert set(failures) == {1}
    assert list((tmp_path / "count").iterdir()) == []


@bolt(state=list)
def gather(word: Word, seen: KeyedState[list[int]]) -> Iterator[Count]:
    """Changes its state in place, while it yields."""
    seen.value.append(1)
    yield Count(word.text, len(seen.value))
    if not word.shout:
        seen.value.append("no number")  # type: ignore[arg-type]  # the fault under test


def test_what_is_changed_in_place_and_while_yielding_is_checked_and_taken_back(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path, gather)
    loud = [Word("a", shout=True)]
    report, failures = epochs.run(frame((1, loud), (2, words("a")), (3, loud)), checked=True)

    assert set(failures) == {2}
    assert report is not None
    epochs.files = [report.file]
    assert epochs.values()["a"] == [1, 1]


@bolt(state=int)
def by_hand(word: Word, total: KeyedState[int], out: Collector[Count]) -> Iterator[Count]:
    """Settles its tuple once everything is emitted."""
    total.value += 1
    yield Count(word.text, total.value)
    if word.text == "odd":
        total.value = "no number"  # type: ignore[assignment]  # the fault under test
    else:
        out.ack(word)


def test_what_is_yielded_before_an_ack_by_hand_is_emitted_before_it_in_a_run_that_checks(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path, by_hand)
    report, failures = epochs.run(frame((1, words("a")), (2, words("odd")), (3, words("a"))), checked=True)

    assert set(failures) == {2}
    assert report is not None
    epochs.files = [report.file]
    assert epochs.values() == {"a": 2, "b": 0, "odd": 0, None: 0}
    assert [value for one in epochs.worked.outputs for value in one.values] == [Count("a", 1), Count("a", 2)]


@bolt(state=int)
def count_on(word: Word | Tick, total: KeyedState[int]) -> Count | None:
    if isinstance(word, Tick):
        return Count("tick", 1)
    total.value += 1
    return None


def test_a_tick_in_a_run_that_checks_has_no_key_whose_value_could_be_bad(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path, count_on)
    report, failures = epochs.run(frame((1, words("a"))), checked=True)

    assert not failures
    assert (epochs.ticked.stray_count, [one.values for one in epochs.ticked.outputs]) == (0, [[Count("tick", 1)]])
    assert report is not None
    epochs.files = [report.file]
    assert epochs.values() == {"a": 1, "b": 0, "odd": 0, None: 0}
