"""A message that crashes its worker, or never ends, fails alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.conftest import RunTopology
from tests.spark.helpers_semantics import HEARD, finish
from tests.spark.killing import killing, killing_in_order
from tupletree.tracking.outcomes import FailureKind

pytestmark = pytest.mark.spark

LIMIT_S = 2.0
"""Of a call, where a test waits for it."""

WORDS = {
    "exit": (FailureKind.POISON, "it ended without an error"),
    "fault": (FailureKind.POISON, "Segmentation fault"),
    "memory": (FailureKind.ERROR, ""),
    "killed": (FailureKind.POISON, "killed from outside"),
    "loop": (FailureKind.TIMEOUT, f"longer than processing_timeout_s ({LIMIT_S:g} s)"),
    "c-loop": (FailureKind.POISON, "where Python could not interrupt it"),
}
"""Deed → kind of the failure, and what it says."""


def nightly(deed: str) -> object:
    return pytest.param(deed, marks=pytest.mark.nightly)


@pytest.mark.parametrize("deed", ["exit", *map(nightly, sorted(WORDS.keys() - {"exit"}))])
def test_a_crashing_message_among_ten_thousand_is_the_only_one_that_dies(
    deed: str, tmp_path: Path, run_topology: RunTopology
) -> None:
    killer, messages = 4_321, 10_000
    topology = killing(f"kill-{deed}", tmp_path, {killer: deed}, messages)
    result = finish(run_topology, topology, tmp_path, max_attempts=2, processing_timeout_s=LIMIT_S)
    assert (result.summary.acked, result.summary.dead, result.summary.failed) == (messages - 1, 1, 2)
    assert result.tally("out", "number", "times") == dict.fromkeys(
        ((number, 1) for number in range(messages) if number != killer), 1
    )
    assert sorted(HEARD[topology.name].acked) == [number for number in range(messages) if number != killer]
    letter = result.dead[killer]
    kind, words = WORDS[deed]
    assert (letter.failure.kind, letter.attempts) == (kind, 2)
    assert words in letter.failure.error
    assert letter.failure.component == "work"
    assert f"number={killer}" in letter.failure.failing_tuple


@pytest.mark.nightly
def test_more_crashing_messages_in_one_partition_than_spark_has_attempts_run_the_epoch_again(
    tmp_path: Path, run_topology: RunTopology
) -> None:
    deeds = dict.fromkeys(range(0, 60, 10), "exit")
    topology = killing("kill-many", tmp_path, deeds, 60)
    result = finish(run_topology, topology, tmp_path, max_attempts=1)
    assert result.dead.keys() == deeds.keys()
    assert result.tally("out", "number", "times") == dict.fromkeys(
        ((number, 1) for number in range(60) if number not in deeds), 1
    )


def test_a_message_that_crashes_its_workers_before_an_ordered_input_takes_no_other_out_of_order(
    tmp_path: Path, run_topology: RunTopology
) -> None:
    killer, messages = 43, 300
    topology = killing_in_order("kill-in-order", tmp_path, {killer: "exit"}, messages)
    result = finish(run_topology, topology, tmp_path, max_attempts=2)
    assert (result.summary.acked, result.summary.dead) == (messages - 1, 1)
    expected: dict[tuple[int, int], int] = {}
    for key in range(3):
        mine = [number for number in range(key, messages, 3) if number != killer]
        expected |= {(number, place): 1 for place, number in enumerate(mine, 1)}
    assert result.tally("out", "number", "times") == expected
