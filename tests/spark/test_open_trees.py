"""Open trees and the rows that wait for them, against naive accounts; and kept frames over many versions."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tupletree import Topology, batch_bolt
from tupletree.bolts.held import HeldFrame, Holdings
from tupletree.config import Options
from tupletree.data.codec import ArrowCodec
from tupletree.data.columns import Anchors
from tupletree.data.frames import Frame, Root, join_segments, roots_of
from tupletree.routing.plan import Plan
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.carryover import CarryOver, carryover_after, files_of
from tupletree.runtimes.spark.format.entries import (
    EpochHeader,
    Messages,
    OpenTree,
    WaitingFile,
    epoch_path,
    write_epoch,
)
from tupletree.runtimes.spark.format.logged_messages import LoggedMessages
from tupletree.runtimes.spark.format.slices import rows_of_slice, slices_of
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.runtimes.spark.settle.open_trees import OpenTrees, WaitingChanges, WaitingRows
from tupletree.runtimes.spark.settle.reports import EpochSettlement, Reports
from tupletree.runtimes.spark.settle.root_verdicts import RootVerdicts
from tupletree.runtimes.spark.worker.carryover import CarryOverFiles, TaskCarryOver
from tupletree.sources import items
from tupletree.testing.conformance.messages import Item
from tupletree.topology.streams import Schema
from tupletree.tracking.ledger import Entries
from tupletree.tracking.outcomes import Failure, FailureKind

ids = st.integers(1, 6)
roots = st.one_of(ids, st.sets(ids, min_size=2, max_size=3).map(lambda one: (*sorted(one),)), st.just(0))


def test_a_tree_expires_once_and_only_by_its_latest_time() -> None:
    trees = OpenTrees([OpenTree(1, 0, 10.0, xor=5), OpenTree(2, 0, 20.0, xor=5), OpenTree(3, 0, xor=5)])
    assert trees.next_s() == 10.0
    trees.put(OpenTree(1, 0, 30.0, xor=5))
    assert trees.next_s() == 20.0
    assert [tree.root for tree in trees.expired(25.0)] == [2]
    assert [tree.root for tree in trees.expired(25.0)] == [2], "to look at them changes nothing"
    assert [tree.root for tree in trees.expired(35.0)] == [2, 1]
    trees.put(OpenTree(2, 0, xor=5))
    assert trees.expired(25.0) == []
    trees.remove(1)
    assert trees.expired(1e9) == []
    assert trees.next_s() == math.inf
    assert len(trees) == 2


def test_what_is_tried_again_waits_until_its_time_and_wakes_the_run_once() -> None:
    trees = OpenTrees([OpenTree(1, 0, 50.0, xor=5, attempt=2, resumes_s=10.0)])
    assert trees.parked(9.0) == {1}
    assert trees.attempts == {1: 2}
    assert trees.next_s() == 10.0
    assert trees.parked(10.0) == set()
    trees.resumed(10.0)
    assert trees.next_s() == 50.0


def test_a_complete_tree_that_waits_for_an_output_holds_no_row_back() -> None:
    trees = OpenTrees([OpenTree(1, 0, xor=0), OpenTree(2, 0, 9.0, xor=7), OpenTree(3, 0, 9.0, is_committed=False)])
    assert [trees.is_unfinished(root) for root in (1, 2, 3, 4)] == [False, True, False, False]


@given(
    st.lists(st.lists(roots, min_size=1, max_size=6), min_size=1, max_size=4),
    st.permutations([1, 2, 3, 4, 5, 6]),
    st.sets(ids),
    st.integers(1, 3),
)
def test_a_row_is_published_once_when_all_its_messages_are_settled_unless_all_are_dead(
    files: list[list[Root]], order: list[int], dying: set[int], at_once: int
) -> None:
    unfinished = set(order)
    waiting = WaitingRows()
    for number, rows in enumerate(files):
        file = WaitingFile("out", 0, number, f"candidate-{number}", f"sidecar-{number}", len(rows))
        waits = any(root != 0 for root in rows)
        changes = WaitingChanges(waiting)
        assert changes.add(file, enumerate(rows), unfinished.__contains__, lambda _: False) is waits
        waiting.apply(changes)
    published: set[tuple[str, int]] = set()
    decided_once: set[tuple[str, int]] = set()
    for start in range(0, len(order), at_once):
        closing = order[start : start + at_once]
        unfinished.difference_update(closing)
        dead = [root for root in closing if root in dying]
        complete = [root for root in closing if root not in dying]
        freed: set[int] = set()
        found = []
        for _ in range(2):  # to decide changes nothing
            freed.clear()
            changes = WaitingChanges(waiting)
            found.append((changes.decide(complete, dead, unfinished.__contains__, freed), changes, {*freed}))
        assert found[0] == found[1]
        after = found[0][1]
        files_after, roots_after = after.files_after(), after.roots()
        waiting.apply(after)
        assert waiting.files() == files_after
        assert waiting.roots() == roots_after
        for decided in found[0][0]:
            places = {(decided.file.candidate, at) for at, shown in enumerate(decided.publish) if shown}
            assert not places & decided_once
            decided_once |= places
            published |= places
            assert len(decided.roots) == len(places)
            assert not any(one in dying for root in decided.roots for one in roots_of(root))
        assert not any(waiting.waits_for(root) for root in freed)
    expected = {
        (f"candidate-{number}", at)
        for number, rows in enumerate(files)
        for at, root in enumerate(rows)
        if any(one not in dying for one in roots_of(root))
    }
    assert published == expected
    assert len(waiting) == 0
    assert not any(waiting.waits_for(root) for root in order)


def test_after_a_restart_the_same_rows_wait() -> None:
    file = WaitingFile("out", 0, 0, "candidate", "sidecar", 4)
    rows: list[Root] = [(1, 2), 1, (2, 3), 3]
    # 1 is complete and waits for 2; 3 died while its row waited, and is no tree any more.
    trees = OpenTrees([OpenTree(1, 0, xor=0), OpenTree(2, 0, 9.0, xor=7)])
    waiting = WaitingRows()
    changes = WaitingChanges(waiting)
    assert changes.add(file, enumerate(rows), trees.is_unfinished, lambda root: root not in trees)
    waiting.apply(changes)
    trees.remove(2)
    freed: set[int] = set()
    (decided,) = WaitingChanges(waiting).decide([2], [], trees.is_unfinished, freed)
    assert decided.publish == [True, False, True, False]
    assert decided.roots == [(1, 2), 2]
    assert decided.is_last
    assert freed == {1, 2}


CODECS = {("items", "Item"): ArrowCodec.of(Schema.of(Item))}


def frame(number: int, segments: list[tuple[Root, list[int]]]) -> Frame:
    values, roots, ends = join_segments([(root, [*map(Item, numbers)]) for root, numbers in segments])
    return Frame(7, "items", "Item", values, roots, ends, number)


Tuples = list[tuple[tuple[int, ...], int]]
Model = dict[tuple[int, bool], Tuples]
"""(frame id, whether it is still to arrive) → (roots, number) of its tuples."""


def tuples_of(one: Frame) -> Tuples:
    return sorted((roots_of(root), value.number) for root, values in one.segments() for value in values)


def pairs_of(model: Model) -> set[tuple[int, int]]:
    return {(key[0], root) for key, tuples in model.items() for tracked, _ in tuples for root in tracked}


segments = st.lists(st.tuples(roots, st.lists(st.integers(0, 99), min_size=1, max_size=3)), min_size=1, max_size=3)
steps = st.lists(
    st.tuples(
        st.lists(segments, max_size=2),  # frames that the task takes up in this epoch
        st.lists(segments, max_size=1),  # frames that another task carries to it
        st.sets(st.integers(0, 5)),  # which of what it holds it lets go of
        st.sets(ids, max_size=2),  # roots that wait in this epoch
        st.sets(ids, max_size=1),  # roots that died before it
    ),
    min_size=1,
    max_size=8,
)


Parts = list[tuple[Root, list[int]]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(steps)
def test_what_is_kept_is_what_is_held_and_what_waits_over_any_number_of_versions(
    tmp_path_factory: pytest.TempPathFactory,
    epochs: list[tuple[list[Parts], list[Parts], set[int], set[int], set[int]]],
) -> None:
    directory = tmp_path_factory.mktemp("kept")
    kept: dict[str, dict[int, CarryOver]] = {}
    model: Model = {}
    number = 0
    for epoch, (new, carried, dropped, parked, gone) in enumerate(epochs):
        files = CarryOverFiles(directory, f"epoch-{epoch}.kept")
        keep = TaskCarryOver.of("work", 9, 0, files, CODECS, kept.get("work", {}).get(0))
        keep.inputs = CODECS
        held, arriving = keep.split(gone, parked)

        live, waiting = _split_model(model, gone, parked)
        assert {(one.frame.id, False): tuples_of(one.frame) for one in held} == {
            key: sorted(tuples) for key, tuples in model.items() if not key[1] and (key in live or key in waiting)
        }, "held frames are whole, with what waits and what is gone"
        assert {(one.id, True): tuples_of(one) for one in arriving} == _of_kind(live, arrives=True)

        everything = {key: sorted([*live.get(key, []), *waiting.get(key, [])]) for key in {*live, *waiting}}
        held = [HeldFrame(_without_gone(one.frame, gone), one.since_s) for one in held]
        held = [one for at, one in enumerate(held) if at not in dropped]
        for parts in new:
            number += 1
            held.append(HeldFrame(frame(number, parts), float(epoch)))
        before = pairs_of(everything)
        edges = keep.update(held, {"epoch": epoch}, CarryOver([]), _never)
        model = _of_kind(waiting, arrives=True)
        for one in held:
            key = one.frame.id, False
            model[key] = sorted([*model.get(key, []), *tuples_of(one.frame)])
        assert {(edge, root) for edge, named in edges for root in named} == before ^ pairs_of(model)

        for parts in carried:
            number += 1
            row = wire.encode_frame(frame(number, parts), CODECS["items", "Item"], 0, 1, number, _never)
            assert row is not None
            files.carry("work", 0, row)
            model[number, True] = tuples_of(frame(number, parts))
        files.write()
        kept = carryover_after(kept, files.reports)
        again = TaskCarryOver.of("work", 9, 0, CarryOverFiles(directory, "unused"), CODECS, kept["work"][0])
        again.inputs = CODECS
        held_again, arriving_again = again.split(set(), set())
        read = {(one.frame.id, False): tuples_of(one.frame) for one in held_again}
        read |= {(one.id, True): tuples_of(one) for one in arriving_again}
        assert read == model
        assert msgspec.msgpack.decode(again.memory) == {"epoch": epoch}
        assert kept["work"][0].arrives == bool(carried)
        assert files_of(directory, kept) <= set(directory.iterdir())


def _split_model(model: Model, gone: set[int], parked: set[int]) -> tuple[Model, Model]:
    live: Model = {}
    waiting: Model = {}
    for key, tuples in model.items():
        for tracked, value in tuples:
            left = tuple(root for root in tracked if root not in gone)
            if left or not tracked:
                (live if parked.isdisjoint(left) else waiting).setdefault(key, []).append((left, value))
    return {key: sorted(one) for key, one in live.items()}, {key: sorted(one) for key, one in waiting.items()}


def _without_gone(frame: Frame, gone: set[int]) -> Frame:
    """What a holder keeps of a frame once it was told which roots died."""
    holdings = Holdings()
    holdings.take(frame, 0.0)
    holdings.forget(gone)
    (kept,) = holdings.held()
    return kept.frame


def _of_kind(model: Model, *, arrives: bool) -> Model:
    return {key: tuples for key, tuples in model.items() if key[1] is arrives}


def _never(root: Root, value: object, error: BaseException | str) -> None:
    raise AssertionError(f"{value} of {root} failed: {error}")


@batch_bolt(size=2)
def both(rows: list[Item]) -> Item:
    return rows[0]


def test_frames_that_were_logged_for_other_partitions_go_where_their_tasks_are_now(tmp_path: Path) -> None:
    t = Topology("placed")
    t.bolt("both", both, parallelism=4, unconsumed=Item).shuffle(t.spout("items", items([Item(1)])))
    plan = Plan.of(t.build(), Options(), partitions=2)
    tasks = plan.task_ids_of("both")
    sections: list[bytes] = []
    frames: list[tuple[int, int, int, int]] = []
    for task, place in zip(tasks, (0, 1, 2, 0), strict=True):  # as three partitions had them
        made = replace(frame(task, [(1, [task])]), task=task)
        row = wire.encode_frame(made, CODECS["items", "Item"], place, 1, 1, _never)
        assert row is not None
        frames.append((place, sum(map(len, sections)), len(row[2]), len(row[3])))
        sections += [row[2], bytes(row[3])]
    header = EpochHeader(epoch=0, generation=1, time_s=0.0, partitions=3, frames=frames)
    assert write_epoch(tmp_path, header, sections)
    slices = slices_of(epoch_path(tmp_path, 0), plan, wakes=True)
    placed = [[(row[0], row[1]) for row in rows_of_slice(part)] for part in slices]
    assert placed == [
        [(0, wire.WAKE), (0, wire.FRAME), (0, wire.FRAME)],
        [(1, wire.WAKE), (1, wire.FRAME), (1, wire.FRAME)],
    ]
    there = [wire.decode_head(row[2]).task for part in slices for row in rows_of_slice(part) if row[1] == wire.FRAME]
    assert sorted(there) == sorted(tasks)
    assert all(plan.placement(task) == (0 if at < 2 else 1) for at, task in enumerate(there))


def test_a_kept_file_that_is_gone_is_named(tmp_path: Path) -> None:
    from tupletree.errors import CheckpointError

    files = CarryOverFiles(tmp_path, "one.kept")
    TaskCarryOver.of("work", 9, 0, files, CODECS, None).update(
        [HeldFrame(frame(1, [(1, [1])]), 0.0)], None, CarryOver([]), _never
    )
    files.write()
    kept = carryover_after({}, files.reports)
    (tmp_path / "one.kept").unlink()
    with pytest.raises(CheckpointError, match=r"one\.kept"):
        TaskCarryOver.of("work", 9, 0, CarryOverFiles(tmp_path, "two.kept"), CODECS, kept["work"][0])


FAILURE = Failure(kind=FailureKind.ERROR)


def entries(values: dict[int, int]) -> Entries:
    return np.array([*values], dtype=np.uint64), np.array([*values.values()], dtype=np.uint64)


def acked(judged: EpochSettlement) -> list[int]:
    return [root for one in judged.record.inputs for root in one.acked(judged.left_over)]


def settlement(openings: dict[int, int], *earlier: OpenTree) -> EpochSettlement:
    ours, xor = entries(openings)
    header = EpochHeader(epoch=5, generation=1, time_s=0.0)
    messages = LoggedMessages(Messages(roots=ours.tobytes()), header, (ours, xor))
    return EpochSettlement.start(EpochRecord(header, [messages]), OpenTrees(earlier))


def test_a_tree_stays_open_with_what_is_kept_and_by_hand_with_anything_else() -> None:
    judged = settlement({1: 8, 2: 8, 3: 8}, OpenTree(4, 0, xor=32), OpenTree(5, 0, xor=64))
    reports = Reports(
        # 1 is done; 2 goes on in a kept frame 16; 3 is in no bolt's report; 4 goes from frame 32 to 128; 5 is done.
        deltas=[entries({1: 8, 2: 8 ^ 16, 4: 32 ^ 128, 5: 64})],
        carryover_edges=[entries({2: 16, 4: 32 ^ 128, 5: 64})],
    )
    assert judged.judge_run(reports, lambda _: [])
    assert judged.carried == {2: 16, 4: 128}
    assert judged.open == {3}
    assert judged.completed == [5]
    assert acked(judged) == [1]


def test_an_epoch_runs_again_without_what_failed_when_a_part_of_it_was_committed() -> None:
    judged = settlement({1: 8}, OpenTree(4, 0, xor=32))
    worked = Reports(deltas=[entries({1: 8, 4: 32})], carryover_edges=[entries({4: 32})], failures={4: FAILURE})
    assert not judged.judge_run(worked, lambda _: [])
    assert judged.left_out == {4}
    assert judged.judge_run(Reports(deltas=[entries({1: 8})]), lambda _: [])
    verdicts = RootVerdicts.of(judged, 30.0, lambda _root, _failure: True)
    assert verdicts.dead == {4}
    assert acked(judged) == [1]


def test_an_epoch_that_does_not_end_defers_roots_of_earlier_ones_too() -> None:
    judged = settlement({}, *(OpenTree(root, 0, xor=root << 8) for root in range(1, 13)))
    for failing in (1, 2, 3):
        alive = {root: root << 8 for root in range(1, 13) if root not in judged.left_out}
        reports = Reports(deltas=[entries(alive)], carryover_edges=[entries(alive)], failures={failing: FAILURE})
        assert not judged.judge_run(reports, lambda _: [])
    assert len(judged.put_back) == 7
    left = {root: root << 8 for root in range(1, 13) if root not in judged.left_out}
    assert judged.judge_run(Reports(deltas=[entries(left)], carryover_edges=[entries(left)]), lambda _: [])
    changed = RootVerdicts.of(judged, 30.0, lambda _root, _failure: False).what_becomes(100.0, 30.0, set())
    # They go on at once, in the next epoch, and no attempt was counted.
    assert {(tree.root, tree.resumes_s, tree.attempt) for tree in changed} == {
        (one, 100.0, 1) for one in judged.put_back
    }


def test_a_root_is_withheld_while_it_is_complete_and_its_output_waits() -> None:
    judged = settlement({1: 8, 2: 8}, OpenTree(3, 0, 50.0, xor=64))
    assert judged.judge_run(
        Reports(deltas=[entries({1: 8, 2: 8 ^ 16, 3: 64})], carryover_edges=[entries({2: 16, 3: 64})]), lambda _: []
    )
    verdicts = RootVerdicts.of(judged, 30.0, lambda _root, _failure: False)
    assert verdicts.shown([1, 2, (1, 2), (1, 3), 0]) == [True, False, False, True, True]
    changed = {tree.root: tree for tree in verdicts.what_becomes(100.0, 30.0, {1, 3})}
    assert changed[1].is_complete
    assert changed[3].is_complete
    assert changed[3].expires_s == math.inf
    assert (changed[2].xor, changed[2].expires_s) == (16, 30.0)


@given(
    st.lists(roots, min_size=1, max_size=12),
    *[st.sets(ids, max_size=2)] * 5,
)
def test_rows_that_are_not_in_doubt_are_published_and_do_not_wait(
    rows: list[Root], bad: set[int], carried: set[int], earlier: set[int], dead: set[int], completed: set[int]
) -> None:
    judged = settlement({}, *(OpenTree(root, 0, xor=7) for root in earlier | dead))
    judged.carried = dict.fromkeys(carried, 7)
    verdicts = RootVerdicts(judged, [], FAILURE, dead, completed - dead, bad)
    _, segments, ends = join_segments([(root, [None]) for root in rows])
    doubtful = dict(verdicts.in_doubt(Anchors.of(segments, ends)))
    assert doubtful.items() <= dict(enumerate(rows)).items()
    sure = [root for position, root in enumerate(rows) if position not in doubtful]
    assert all(verdicts.shown(sure))
    assert not any(verdicts.is_unfinished(one) for root in sure for one in roots_of(root))


def test_no_row_is_looked_at_for_a_tree_that_none_of_them_belongs_to() -> None:
    judged = settlement({}, OpenTree(2, 0, xor=7))
    judged.carried = {3: 7}
    verdicts = RootVerdicts(judged, [], FAILURE, set(), set(), {4})
    assert verdicts.in_doubt(Anchors.of([1, (5, 6), 0], [2, 3, 4])) == []
    assert verdicts.in_doubt(Anchors.of([1, (3, 6), 4, 0, 2], [2, 4, 5, 6, 7])) == [
        (2, (3, 6)),
        (3, (3, 6)),
        (4, 4),
        (6, 2),
    ]


def test_completion_beats_expiry_and_a_renewed_timeout_too() -> None:
    trees = [OpenTree(root, 0, 0.0, xor=64) for root in (1, 2, 3)]
    judged = settlement({}, *trees)
    reports = Reports(
        deltas=[entries({1: 64})], carryover_edges=[entries({1: 64})], stats=[wire.StatsReport({}, extended=[2])]
    )
    assert judged.judge_run(reports, lambda _: [])
    verdicts = RootVerdicts.of(judged, 30.0, lambda _root, _failure: False)
    assert [tree.root for tree in verdicts.expired] == [3]
    (renewed,) = verdicts.what_becomes(100.0, 30.0, set())
    assert (renewed.root, renewed.expires_s) == (2, 130.0)
