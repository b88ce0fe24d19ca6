"""Crash markers: two earlier attempts must have crashed on a message before it is blamed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest

from tupletree.data.frames import Frame, carrier
from tupletree.runtimes.spark.worker.crash_markers import (
    CrashHistory,
    CrashingWorkError,
    CrashMarker,
    MarkedPlace,
    blamed,
    sweep_markers,
)
from tupletree.tracking.outcomes import FailureKind

PLACE = (1, 7, 0, 3)
TASK = 5


def die(
    folder: Path,
    attempt: int,
    *given: int | tuple[int, ...] | None,
    broken: int = 0,
    place: tuple[int, int, int, int] = PLACE,
    words: str = "",
) -> None:
    """An attempt that works on these roots one after the other, and crashes."""
    marker = CrashMarker(folder, place, (broken, attempt))
    marker.__enter__()
    for root in given:
        place_of(marker).root = root
    if words:
        marker.__exit__(RuntimeError, RuntimeError(words), None)


def place_of(marker: CrashMarker) -> MarkedPlace:
    return MarkedPlace(marker, topology="t", component="c", task_id=TASK, task_index=0, parallelism=1)


def crash_history(folder: Path, attempt: int, broken: int = 0) -> CrashHistory:
    return CrashMarker(folder, PLACE, (broken, attempt)).crash_history


def test_a_message_is_blamed_once_two_attempts_crashed_on_it(tmp_path: Path) -> None:
    die(tmp_path, 1, 10, 11)
    assert crash_history(tmp_path, 2).roots == {}
    die(tmp_path, 2, 10, 11)
    assert crash_history(tmp_path, 3).roots.keys() == {11}
    assert blamed(tmp_path, 1, 7) == {11}
    assert blamed(tmp_path, 2, 7) == blamed(tmp_path, 1, 8) == set()


def test_roots_that_carry_numbers_are_marked_like_others(tmp_path: Path) -> None:
    for attempt in (1, 2):
        die(tmp_path, attempt, carrier(10, 7), carrier((11, 12), 8))
    assert crash_history(tmp_path, 3).roots.keys() == {11, 12}


def test_messages_that_one_attempt_each_crashed_on_are_not_blamed(tmp_path: Path) -> None:
    die(tmp_path, 1, 10)
    die(tmp_path, 2, 11)
    assert crash_history(tmp_path, 3).roots == {}
    die(tmp_path, 3, 10)
    assert crash_history(tmp_path, 4).roots.keys() == {10}


def test_the_first_attempt_marks_nothing_unless_crashes_are_expected(tmp_path: Path) -> None:
    first = CrashMarker(tmp_path, PLACE, (0, 0))
    with first:
        assert not first.is_marking
        assert list(tmp_path.iterdir()) == []
    assert CrashMarker(tmp_path, PLACE, (0, 0), from_first=True).is_marking


def test_an_attempt_that_ends_without_an_error_leaves_no_file(tmp_path: Path) -> None:
    with CrashMarker(tmp_path, PLACE, (0, 1)) as marker:
        place_of(marker).root = 10
    assert list(tmp_path.iterdir()) == []


def test_an_attempt_that_crashed_between_messages_blames_none(tmp_path: Path) -> None:
    for attempt in (1, 2):
        die(tmp_path, attempt, 10, None)
    assert crash_history(tmp_path, 3).seen == {}


def test_attempts_of_other_partitions_and_later_ones_do_not_count(tmp_path: Path) -> None:
    die(tmp_path, 1, 10)
    die(tmp_path, 2, 10, place=(1, 7, 0, 4))
    die(tmp_path, 2, 10, place=(1, 7, 1, 3))
    die(tmp_path, 2, 10, place=(2, 7, 0, 3))
    die(tmp_path, 4, 10)
    assert crash_history(tmp_path, 3).seen == {10: 1}


def test_attempts_of_an_execution_that_was_broken_off_count(tmp_path: Path) -> None:
    die(tmp_path, 0, 10, broken=1)
    die(tmp_path, 0, 10, broken=2)
    assert crash_history(tmp_path, 0, broken=3).roots.keys() == {10}


def test_a_tuple_of_several_messages_counts_for_all_of_them(tmp_path: Path) -> None:
    for attempt in (1, 2):
        die(tmp_path, attempt, (10, 11))
    assert crash_history(tmp_path, 3).roots.keys() == {10, 11}


def test_a_batch_that_a_worker_crashed_in_is_refused_so_that_its_tuples_are_worked_alone(tmp_path: Path) -> None:
    die(tmp_path, 1, (10, 11, 12))
    with CrashMarker(tmp_path, PLACE, (0, 2)) as marker:
        place = place_of(marker)
        with pytest.raises(Exception, match="a worker crashed"):
            place.take_in_hand((10, 11, 12), 3)
        assert place.root is None
        place.take_in_hand((10, 11), 1)  # one tuple of two messages
        place.take_in_hand((20, 21), 2)
        assert place.root == (20, 21)


def test_an_untracked_tuple_that_crashes_workers_is_found_by_its_position_and_dropped(tmp_path: Path) -> None:
    frames = [
        Frame(TASK, "s", "s", list("abcd"), [0, 9, 0], [2, 3, 4], 1),
        Frame(TASK, "s", "s", list("ef"), [0], [2], 2),
    ]
    for attempt in (1, 2):
        die_over(tmp_path, attempt, untracked=2)
    found = crash_history(tmp_path, 3)
    kept, dropped = found.drop_untracked(TASK, frames)
    assert [value for value, _ in dropped] == ["d"]
    assert [frame.values for frame in kept] == [["a", "b", "c"], ["e", "f"]]
    # A second one is found although the first is not given any more.
    for attempt in (3, 4):
        die_over(tmp_path, attempt, untracked=3)
    kept, dropped = crash_history(tmp_path, 5).drop_untracked(TASK, frames)
    assert [value for value, _ in dropped] == ["d", "f"]
    assert found.drop_untracked(TASK + 1, frames) == (frames, [])


def die_over(folder: Path, attempt: int, untracked: int) -> None:
    """An attempt that is given so many untracked tuples before the one that it dies on."""
    marker = CrashMarker(folder, PLACE, (0, attempt))
    marker.__enter__()
    place = place_of(marker)
    for _ in range(untracked + 1):
        place.root = 0


def test_the_blame_says_how_the_last_worker_ended(tmp_path: Path) -> None:
    die(tmp_path, 1, 10)
    die(tmp_path, 2, 10, words="no space left")
    failure = crash_history(tmp_path, 3).roots[10].failure("count", "Word('a')")
    assert (failure.kind, failure.component, failure.task_id) == (FailureKind.POISON, "count", TASK)
    assert failure.error.endswith("it ended with RuntimeError: no space left")
    assert failure.failing_tuple == "Word('a')"
    die(tmp_path, 3, 10)
    assert "ended without an error" in crash_history(tmp_path, 4).roots[10].how


def test_a_message_that_workers_died_of_while_they_read_it_is_not_tried_again(tmp_path: Path) -> None:
    for attempt in (1, 2):
        marker = CrashMarker(tmp_path, PLACE, (0, attempt))
        marker.__enter__()
        marker.mark(TASK, (10,), is_read=True)
    failure = crash_history(tmp_path, 3).roots[10].failure("orders", "b'x'")
    assert failure.error.startswith("2 worker processes ended while they read this message: ")
    assert (failure.permanent, failure.was_reading) == (True, True)
    assert not msgspec.structs.replace(failure, permanent=False).was_reading


def test_a_mark_that_was_never_written_or_is_torn_blames_none(tmp_path: Path) -> None:
    for attempt, length in ((1, 0), (2, 2**20), (3, 2**20 + 6)):
        die(tmp_path, attempt, 10)
        (path,) = tmp_path.glob(f"*-{attempt:02d}.mark")
        with path.open("r+b") as file:
            file.truncate(length)
    assert crash_history(tmp_path, 4).seen == {}


def test_marks_are_swept_with_their_epoch(tmp_path: Path) -> None:
    die(tmp_path, 1, 10)
    die(tmp_path, 1, 10, place=(1, 8, 0, 3))
    sweep_markers(tmp_path, 7)
    assert [path.name[7:15] for path in tmp_path.iterdir()] == ["00000008"]


def die_beside(folder: Path, attempt: int, work: str) -> AbstractContextManager[None]:
    """An attempt that dies in what it does for no message, although something in there takes tuples in hand.

    What is returned must be kept: if it goes, it ends in order.
    """
    marker = CrashMarker(folder, PLACE, (0, attempt))
    marker.__enter__()
    work_in_hand = marker.other_work(TASK, work)
    work_in_hand.__enter__()
    place_of(marker).root = 0
    place_of(marker).root = None
    return work_in_hand


def test_other_work_of_a_task_is_not_done_any_more_once_two_attempts_crashed_on_it(tmp_path: Path) -> None:
    dying = [die_beside(tmp_path, 1, "open"), die_beside(tmp_path, 2, "open"), die_beside(tmp_path, 3, "tick")]
    words = "2 worker processes ended while they were in its `open`: it ended without an error"
    with CrashMarker(tmp_path, PLACE, (0, 4)) as marker:
        with pytest.raises(CrashingWorkError, match=words) as error, marker.other_work(TASK, "open"):
            raise AssertionError("it was done")
        assert error.value.blame.failure("count").kind is FailureKind.POISON
        with marker.other_work(TASK, "tick"):
            pass
        assert not marker.crash_history.seen
        assert not marker.crash_history.untracked
    assert blamed(tmp_path, 1, 7) == {(TASK, "open")}
    del dying


def test_a_message_in_hand_after_that_is_marked_again(tmp_path: Path) -> None:
    for attempt in (1, 2):
        marker = CrashMarker(tmp_path, PLACE, (0, attempt))
        marker.__enter__()
        with marker.other_work(TASK, "open"):
            pass
        place_of(marker).root = 10
    assert crash_history(tmp_path, 3).roots.keys() == {10}
