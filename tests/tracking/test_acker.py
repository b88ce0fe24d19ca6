"""The acker, rule by rule."""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from tupletree.tracking.acker import Acker, AckerVerdicts, Delta, Opening
from tupletree.tracking.outcomes import Failure, FailureKind
from tupletree.tracking.tree import draw_edges, xor_all

SPOUT = 7
ROOT = 0xFFFF_FFFF_FFFF_FFF1
FAILURE = Failure(kind=FailureKind.ERROR, error="boom")
OTHER = Failure(kind=FailureKind.LOST)
A, B, C, D = draw_edges(4, random.Random(1).getrandbits)


def opened(
    acker: Acker, value: int, roots: list[int], emitted_s: float = 0.0, spout_task: int = SPOUT
) -> AckerVerdicts:
    return acker.apply([(spout_task, value, roots, emitted_s)], [], [], emitted_s)


def moved(acker: Acker, value: int, roots: list[int], now_s: float = 0.0) -> AckerVerdicts:
    return acker.apply([], [(value, roots)], [], now_s)


def failed(acker: Acker, root: int, failure: Failure = FAILURE, now_s: float = 0.0) -> AckerVerdicts:
    return acker.apply([], [], [(root, failure)], now_s)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_rule_1_no_order_of_arrival_completes_a_tree_early(order: tuple[int, ...]) -> None:
    acker = Acker()
    opening: Opening = (SPOUT, A ^ B, [ROOT], 0.0)
    deltas: list[Delta] = [(A ^ C, [ROOT]), (B, [ROOT]), (C, [ROOT])]
    verdicts = [
        acker.apply([opening] if item == 0 else [], [deltas[item - 1]] if item else [], [], 0.0).completed
        for item in order
    ]
    assert verdicts == [[], [], [], [(SPOUT, [ROOT])]]
    assert acker.size == 0


def test_rule_1_only_a_tree_whose_opening_was_seen_completes() -> None:
    acker = Acker()
    assert moved(acker, A, [ROOT]).completed == []
    assert moved(acker, A, [ROOT]).completed == []  # the XOR is zero now
    assert acker.open_count == 0


def test_rule_2_a_message_copied_to_n_tasks_waits_for_all_n() -> None:
    acker = Acker()
    edges = draw_edges(5, random.Random(2).getrandbits)
    opened(acker, xor_all(edges), [ROOT])
    assert [bool(moved(acker, edge, [ROOT]).completed) for edge in edges] == [False] * 4 + [True]


def test_rule_3_a_child_of_two_tuples_of_one_root_is_one_edge() -> None:
    acker = Acker()
    opened(acker, A ^ B, [ROOT])
    moved(acker, A ^ C, [ROOT])  # the first parent brings the child's edge,
    moved(acker, B, [ROOT])  # the second does not bring it again
    assert moved(acker, C, [ROOT]).completed == [(SPOUT, [ROOT])]


def test_rule_3_a_root_listed_twice_in_a_frame_counts_once() -> None:
    acker = Acker()
    opened(acker, A, [ROOT, 2])
    assert moved(acker, A, [ROOT, 2, ROOT, 0]).completed == [(SPOUT, [ROOT, 2])]


def test_rule_3_a_child_of_two_roots_holds_both() -> None:
    acker = Acker()
    opened(acker, A, [1])
    opened(acker, B, [2])
    moved(acker, A ^ C, [1])
    moved(acker, B ^ C, [2])
    assert acker.open_count == 2
    assert moved(acker, C, [1, 2]).completed == [(SPOUT, [1, 2])]


def test_rule_4_a_message_emitted_to_no_task_completes_as_it_opens() -> None:
    acker = Acker()
    assert opened(acker, xor_all([]), [ROOT]).completed == [(SPOUT, [ROOT])]
    assert acker.size == 0


def test_rule_6_a_second_failure_and_late_acks_are_counted_and_change_nothing() -> None:
    acker = Acker()
    opened(acker, A, [ROOT])
    assert failed(acker, ROOT).failed == [(SPOUT, ROOT, FAILURE)]
    assert failed(acker, ROOT, OTHER) == moved(acker, A, [ROOT]) == AckerVerdicts()
    assert not acker.extend(ROOT, 0.0)
    assert (acker.counters.failed, acker.counters.late) == (1, 3)


def test_rule_6_a_failure_after_completion_changes_nothing_and_is_dropped() -> None:
    acker = Acker(timeout_s=30)
    opened(acker, A, [ROOT])
    moved(acker, A, [ROOT])
    assert failed(acker, ROOT) == AckerVerdicts()
    assert acker.rotate(45.0) == []
    assert (acker.size, acker.counters.unknown) == (0, 1)


def test_rule_6_a_failure_that_overtakes_its_opening_is_kept() -> None:
    acker = Acker()
    failed(acker, ROOT)
    failed(acker, ROOT, OTHER)
    moved(acker, A, [ROOT])
    assert opened(acker, A, [1, ROOT, 2]).failed == [(SPOUT, ROOT, FAILURE)]
    assert acker.open_count == 2
    moved(acker, B, [ROOT])
    assert acker.counters.late == 1


def test_rule_6_within_one_batch_a_failure_beats_completion() -> None:
    acker = Acker()
    verdicts = acker.apply([(SPOUT, A, [ROOT], 0.0)], [(A, [ROOT])], [(ROOT, FAILURE)], 0.0)
    assert (verdicts.completed, verdicts.failed) == ([], [(SPOUT, ROOT, FAILURE)])


def test_rule_6_a_second_opening_changes_nothing() -> None:
    acker = Acker()
    roots = [ROOT]
    opening: Opening = (SPOUT, A, roots, 0.0)
    acker.apply([opening, opening], [], [], 0.0)
    opened(acker, B, [ROOT])
    assert acker.counters.duplicate_openings == 2
    assert moved(acker, A, [ROOT]).completed == [(SPOUT, [ROOT])]


def test_rule_7_a_tree_expires_between_t_and_t_plus_one_rotation() -> None:
    for emitted_s in range(20):
        acker = Acker(timeout_s=20, buckets=3)
        opened(acker, A, [ROOT], float(emitted_s))
        expired_s = next(now_s for now_s in range(emitted_s, 100) if acker.rotate(float(now_s)))
        assert 20 <= expired_s - emitted_s <= 30
        assert acker.counters.expired == 1


def test_rule_7_the_clock_starts_when_the_spout_emits_and_not_when_the_opening_arrives() -> None:
    acker = Acker(timeout_s=20, buckets=3)
    acker.rotate(25.0)
    acker.apply([(SPOUT, A, [ROOT], 1.0)], [], [], 25.0)
    assert acker.rotate(29.0) == []
    assert acker.rotate(30.0) == [(SPOUT, [ROOT])]


def test_rule_7_rotations_that_come_late_or_never_expire_nothing_early() -> None:
    acker = Acker(timeout_s=20, buckets=3)
    acker.rotate(95.0)
    opened(acker, A, [ROOT], 99.0)
    assert acker.rotate(118.9) == []
    assert acker.rotate(1000.0) == [(SPOUT, [ROOT])]


def test_rule_7_more_buckets_make_the_timeout_sharper() -> None:
    acker = Acker(timeout_s=20, buckets=21)
    opened(acker, A, [ROOT], 0.5)
    assert acker.rotate(20.9) == []
    assert acker.rotate(21.0) == [(SPOUT, [ROOT])]


def test_rule_7_a_bolt_can_restart_the_timeout() -> None:
    acker = Acker(timeout_s=20, buckets=3)
    opened(acker, A, [ROOT], 0.0)
    assert acker.extend(ROOT, 19.0)
    assert acker.rotate(39.0) == []
    assert moved(acker, A, [ROOT], 39.0).completed == [(SPOUT, [ROOT])]


def test_rule_7_an_extension_that_overtakes_its_opening_counts() -> None:
    acker = Acker(timeout_s=20, buckets=3)
    assert acker.extend(ROOT, 15.0)
    acker.apply([(SPOUT, A, [ROOT], 0.0)], [], [], 16.0)
    assert acker.rotate(34.9) == []
    assert acker.rotate(40.0) == [(SPOUT, [ROOT])]


def test_rule_7_an_extension_before_the_opening_outlives_what_came_before_it() -> None:
    acker = Acker(timeout_s=12.0)
    moved(acker, A, [ROOT], now_s=10.0)
    assert acker.extend(ROOT, 26.0)
    assert acker.rotate(30.0) == []
    acker.apply([(SPOUT, A ^ B, [ROOT], 0.0)], [], [], 37.0)
    assert acker.rotate(37.0) == [], "extended 11 s ago"
    assert acker.rotate(48.0) == [(SPOUT, [ROOT])]


def test_rule_7_a_disabled_timeout_keeps_trees_and_still_drops_the_rest() -> None:
    acker = Acker(timeout_s=None)
    opened(acker, A, [ROOT, 2])
    failed(acker, 2)
    failed(acker, 99)
    for now_s in range(0, 10_000, 7):
        assert acker.rotate(float(now_s)) == []
    assert (acker.open_count, acker.size) == (1, 1)
    assert moved(acker, A, [ROOT], 10_000.0).completed == [(SPOUT, [ROOT])]


def test_rule_7_a_rotation_is_due_also_when_something_came_in_the_new_period_before() -> None:
    acker = Acker(timeout_s=20, buckets=3, now_s=0.0)
    opened(acker, A, [ROOT], 0.0)
    moved(acker, B, [2], 30.5)
    assert acker.next_rotation_s() <= 30.5
    assert acker.rotate(30.5) == [(SPOUT, [ROOT])]


def test_what_is_held_for_a_root_is_unclaimed_after_its_end_but_not_for_a_renewal() -> None:
    acker = Acker(timeout_s=20, buckets=3, now_s=0.0)
    opened(acker, A, [ROOT], 0.0)
    failed(acker, ROOT)
    moved(acker, B, [ROOT])
    assert acker.take_unclaimed() == [ROOT]
    failed(acker, ROOT)
    assert acker.take_unclaimed() == [ROOT]
    moved(acker, A, [2])
    moved(acker, A, [2])
    acker.extend(3, 0.0)
    acker.rotate(100.0)
    assert acker.take_unclaimed() == [2]


def test_rule_7_the_next_rotation_is_announced() -> None:
    acker = Acker(timeout_s=20, buckets=3, now_s=100.0)
    assert acker.next_rotation_s() == 110.0
    acker.rotate(125.0)
    assert acker.next_rotation_s() == 130.0


def test_rule_8_high_water_is_a_signal_and_fails_nothing() -> None:
    acker = Acker(high_water=2)
    signals: list[bool] = []
    opened(acker, A, [1, 2])
    signals.append(acker.above_high_water)
    opened(acker, B, [3])
    signals.append(acker.above_high_water)
    assert moved(acker, B, [3]).completed == [(SPOUT, [3])]
    signals.append(acker.above_high_water)
    assert signals == [False, True, False]


def test_verdicts_go_to_the_spout_task_that_emitted() -> None:
    acker = Acker(timeout_s=10)
    for spout_task, roots in ((1, [11, 12]), (2, [21, 22])):
        opened(acker, A, roots, spout_task=spout_task)
    assert moved(acker, A, [21, 11]).completed == [(2, [21]), (1, [11])]
    assert failed(acker, 12).failed == [(1, 12, FAILURE)]
    assert acker.rotate(15.0) == [(2, [22])]


def test_a_batch_that_opens_and_completes_returns_the_same_list() -> None:
    acker = Acker()
    roots = list(range(1, 129))
    verdicts = acker.apply([(SPOUT, A, roots, 0.0)], [(A ^ B, roots), (B, roots)], [], 0.0)
    assert verdicts.completed[0][1] is roots
    assert acker.counters.completed == 128


def test_settled_roots_are_kept_only_for_a_while() -> None:
    acker = Acker(timeout_s=20)
    opened(acker, A, [1, 2])
    failed(acker, 1)
    acker.rotate(30.0)
    assert (acker.open_count, acker.size) == (0, 1)
    acker.rotate(60.0)
    assert acker.size == 0


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="buckets"):
        Acker(buckets=1)
    with pytest.raises(ValueError, match="timeout_s"):
        Acker(timeout_s=0)
