"""Messages that become 100,000 tuples each: they pass, and the driver's process does not grow with them.

TUPLETREE_GIANTS says how many messages (default 40).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.spark.counting import target
from tests.spark.helpers_semantics import Feed
from tupletree import Topology, bolt
from tupletree.config import resolve_options
from tupletree.runtimes import run
from tupletree.sinks import jsonl, read_rows
from tupletree.testing.conformance.messages import numbered

pytestmark = pytest.mark.nightly

CHILDREN = 100_000
SIGN = 25_000
"""One child in so many goes on to the sink."""

GROWTH_BYTES = 300 * 2**20
HANG_S = 3_600.0


class Giant(msgspec.Struct, frozen=True):
    number: int


class Child(msgspec.Struct, frozen=True, gc=False):
    giant: int
    number: int
    text: str


@bolt
def explode(giant: Giant) -> Iterator[Child]:
    for number in range(CHILDREN):
        yield Child(giant.number, number, f"child {number} of {giant.number}")


@bolt
def pick(child: Child) -> Child | None:
    return child if child.number % SIGN == 0 else None


def test_every_child_of_every_giant_passes_and_the_driver_stays_small(tmp_path: Path) -> None:
    giants = int(os.environ.get("TUPLETREE_GIANTS", "40"))
    t = Topology("giants")
    source = t.spout("source", Feed(t.name, Giant, numbered([Giant(number) for number in range(giants)]), batch=4))
    children = t.bolt("explode", explode, parallelism=2).shuffle(source)
    picked = t.bolt("pick", pick, parallelism=2).fields(children, "number")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(picked)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    options = resolve_options(code={"epoch_max_messages": 8})
    handle = run.run(t, options=options, target=target(), state_dir=tmp_path / "state", master="local[2]")
    summary = handle.wait(HANG_S)
    assert (summary.acked, summary.dead) == (giants, 0)
    rows = sorted((row["giant"], row["number"]) for row in read_rows(tmp_path / "out"))
    assert rows == [(giant, number) for giant in range(giants) for number in range(0, CHILDREN, SIGN)]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < GROWTH_BYTES
