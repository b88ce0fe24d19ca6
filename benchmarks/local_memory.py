"""What open trees cost: the acker's bytes per tree at many open ones, and for one tree of many tuples."""

from __future__ import annotations

import random
import tracemalloc
from array import array

from benchmarks.job import JobResult, JobSpec
from tupletree.tracking.acker import Acker

__all__ = ["run"]

ROOTS_PER_FRAME = 128
SPOUT_TASK = 7


def run(spec: JobSpec) -> JobResult:
    """Open `spec.messages` trees, their ids included; then grow one tree to ten and to `spec.messages` tuples."""
    return JobResult(
        seconds=0.0,
        numbers={
            "bytes_per_tree": bytes_per_tree(spec.messages),
            "bytes_of_tree_of_10": bytes_of_tree(10),
            "bytes_of_tree_of_many": bytes_of_tree(spec.messages),
        },
    )


def bytes_per_tree(trees: int) -> float:
    """Open trees as a spout does, a frame of roots at a time, and ack a first bolt's frames of all of them."""
    draw = random.Random(1)
    ids = array("Q", draw.randbytes(8 * trees))
    acker = Acker(timeout_s=None)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for start in range(0, trees, ROOTS_PER_FRAME):
        roots = list(ids[start : start + ROOTS_PER_FRAME])
        acker.apply([(SPOUT_TASK, draw.getrandbits(64), roots, 0.0)], [], [], 0.0)
        acker.apply([], [(draw.getrandbits(64), roots)], [], 0.0)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    if acker.open_count != trees:
        raise AssertionError(f"{acker.open_count} trees are open, not {trees}")
    return (after - before) / trees


def bytes_of_tree(tuples: int) -> float:
    """Bytes of an acker with one open tree that so many tuples were added to, one delta each."""
    draw = random.Random(2)
    acker = Acker(timeout_s=None)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    acker.apply([(SPOUT_TASK, draw.getrandbits(64), [1], 0.0)], [], [], 0.0)
    for _ in range(tuples):
        acker.apply([], [(draw.getrandbits(64), [1])], [], 0.0)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    if acker.open_count != 1:
        raise AssertionError("the tree is not open any more")
    return float(after - before)
