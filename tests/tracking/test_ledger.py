"""The epoch ledger says what the plain acker says."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from tupletree.tracking.acker import Acker
from tupletree.tracking.ledger import combine, judge
from tupletree.tracking.outcomes import Failure, FailureKind

FAILURE = Failure(kind=FailureKind.ERROR)
BIG = 1 << 63  # ids use all 64 bits

roots = st.integers(0, 9).map(lambda number: number and BIG + number)
values = st.sampled_from([1, 2, 3, BIG, BIG + 1, 2**64 - 1])
frames = st.lists(st.tuples(values, st.lists(roots, max_size=6)), max_size=12)


def u64(numbers: list[int]) -> npt.NDArray[np.uint64]:
    return np.array(numbers, dtype=np.uint64)


def merged(deltas: list[tuple[int, list[int]]]) -> dict[int, int]:
    sums: dict[int, int] = {}
    for value, members in deltas:
        for root in set(members) - {0}:
            sums[root] = sums.get(root, 0) ^ value
    return sums


@given(frames)
def test_combine_gives_one_entry_per_root_in_order(deltas: list[tuple[int, list[int]]]) -> None:
    found, xor = combine([value for value, _ in deltas], [u64(members) for _, members in deltas])
    assert found.dtype == xor.dtype == np.uint64
    assert list(zip(found.tolist(), xor.tolist(), strict=True)) == sorted(merged(deltas).items())


@given(
    openings=st.dictionaries(roots.filter(bool), st.one_of(values, st.just(0))),
    places=st.lists(frames, max_size=3),
    failed=st.lists(roots, max_size=4),
)
def test_judge_says_what_the_plain_acker_says(
    openings: dict[int, int], places: list[list[tuple[int, list[int]]]], failed: list[int]
) -> None:
    acker = Acker()
    # All values of a root go in as one, as they do in the ledger, so that no sum is looked at half way.
    total = merged([delta for deltas in places for delta in deltas])
    verdicts = acker.apply(
        [(1, value ^ total.get(root, 0), [root], 0.0) for root, value in openings.items()],
        [(value, [root]) for root, value in total.items() if root not in openings],
        [(root, FAILURE) for root in failed],
        0.0,
    )
    judgement = judge(
        (u64(list(openings)), u64(list(openings.values()))),
        [combine([value for value, _ in deltas], [u64(members) for _, members in deltas]) for deltas in places],
        u64(failed),
    )
    completed = sorted(root for _, members in verdicts.completed for root in members)
    assert judgement.complete.tolist() == completed
    assert judgement.failed.tolist() == sorted(root for _, root, _ in verdicts.failed)
    assert judgement.open_.tolist() == sorted(set(openings) - set(completed) - set(failed))
    assert judgement.unknown.tolist() == sorted((set(total) | set(failed)) - set(openings) - {0})
    assert acker.open_count == len(judgement.open_)


@given(
    trees=st.dictionaries(roots.filter(bool), values, max_size=6),
    deltas=frames,
    failed=st.lists(roots, max_size=4),
    data=st.data(),
)
def test_trees_of_earlier_epochs_are_judged_as_if_they_were_openings(
    trees: dict[int, int], deltas: list[tuple[int, list[int]]], failed: list[int], data: st.DataObject
) -> None:
    ours = data.draw(st.sets(st.sampled_from(sorted(trees)))) if trees else set[int]()
    entries = [combine([value for value, _ in deltas], [u64(members) for _, members in deltas])]
    named = {root for _, members in deltas for root in members} | set(failed)
    asked = dict.fromkeys(named | ours, 0) | {root: xor for root, xor in trees.items() if root in named | ours}
    before = {root: xor for root, xor in trees.items() if root not in ours}
    found = judge((u64([*ours]), u64([trees[root] for root in ours])), entries, u64(failed), left_before=before.get)
    opened = [root for root in asked if root in trees]
    expected = judge((u64(opened), u64([trees[root] for root in opened])), entries, u64(failed))
    for name in ("complete", "open_", "open_xor", "failed", "unknown"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()
    assert found.earlier.tolist() == sorted(root for root in before if root in named)


@given(
    openings=st.dictionaries(roots.filter(bool), values, min_size=1),
    trees=st.dictionaries(roots.filter(bool), values),
    deltas=frames,
    kept=frames,
)
def test_what_is_left_of_a_tree_is_explained_by_the_frames_that_are_kept(
    openings: dict[int, int],
    trees: dict[int, int],
    deltas: list[tuple[int, list[int]]],
    kept: list[tuple[int, list[int]]],
) -> None:
    before = {root: xor for root, xor in trees.items() if root not in openings}
    judgement = judge(
        (u64(list(openings)), u64(list(openings.values()))),
        [combine([value for value, _ in deltas], [u64(members) for _, members in deltas])],
        u64([]),
        kept=[combine([value], [u64(members)]) for value, members in kept],
        left_before=before.get,
    )
    change, in_kept = merged(deltas), merged(kept)
    left = {root: xor ^ change.get(root, 0) for root, xor in openings.items()}
    # Of an earlier tree, frames that were kept before explain what was left before; those of today, what changed.
    changed = {root: xor ^ change.get(root, 0) for root, xor in before.items() if root in change or root in in_kept}
    unexplained = {root for root, xor in left.items() if xor and xor != in_kept.get(root, 0)}
    unexplained |= {root for root, xor in changed.items() if xor and change.get(root, 0) != in_kept.get(root, 0)}
    assert judgement.unexplained.tolist() == sorted(unexplained)
    assert judgement.open_.tolist() == sorted(root for root, xor in {**left, **changed}.items() if xor)
    assert judgement.unknown.tolist() == sorted(set(change) - openings.keys() - before.keys() - {0})


def test_what_stays_open_is_the_opening_of_the_next_epoch() -> None:
    first = judge((u64([7, 8]), u64([5 ^ 6, 5])), [combine([5], [u64([7, 8])])], u64([]))
    assert (first.complete.tolist(), first.open_.tolist(), first.open_xor.tolist()) == ([8], [7], [6])
    second = judge((first.open_, first.open_xor), [combine([6], [u64([7])])], u64([]))
    assert second.complete.tolist() == [7]


def test_nothing_at_all_is_a_judgement_too() -> None:
    judgement = judge((u64([]), u64([])), [combine([], []), combine([1], [u64([])])], u64([]))
    assert not any(len(part) for part in (judgement.complete, judgement.open_, judgement.failed, judgement.unknown))


def test_a_large_epoch_is_judged_whole() -> None:
    every = np.arange(1, 100_001, dtype=np.uint64)
    deltas = [combine([5, 9], [every, every[::2]]), combine([9], [every[::2]])]
    judgement = judge((every, np.full(len(every), 5, np.uint64)), deltas, every[:10])
    assert (len(judgement.complete), len(judgement.failed), len(judgement.open_)) == (99_990, 10, 0)
