"""On a cluster a message that kills its workers costs itself, and executors and workers that go cost nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.losing import KEYS, losing
from tests.clusters import Cluster
from tests.spark.counting import QUICK
from tests.spark.helpers_semantics import HEARD, Result, finish
from tests.spark.killing import killing
from tupletree import Topology
from tupletree.config import resolve_options
from tupletree.runtimes import run as api_run
from tupletree.runtimes.api import Summary
from tupletree.tracking.outcomes import FailureKind

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("spark")]

HANG_S = 240.0


def run(topology: Topology, state_dir: Path, **options: Any) -> Summary:
    handle = api_run.run(topology, options=resolve_options(code={**QUICK, **options}), state_dir=state_dir)
    try:
        return handle.wait(HANG_S)
    finally:
        handle.stop(0.0)


def expect_exact_counts(result: Result, messages: int) -> None:
    """Each number came out once, and each key was counted up without a gap or a repetition."""
    assert (result.summary.acked, result.summary.dead, result.summary.failed) == (messages, 0, 0)
    assert result.tally("out", "number") == dict.fromkeys(range(messages), 1)
    counted = {(key, number) for key in range(KEYS) for number in range(1, len(range(key, messages, KEYS)) + 1)}
    assert result.tally("out", "key", "count") == dict.fromkeys(counted, 1)
    assert sorted(HEARD[result.summary.topology].acked) == list(range(messages))


def test_a_killer_among_hundreds_of_messages_is_the_only_one_that_dies(tmp_path: Path) -> None:
    killer, messages = 123, 300
    result = finish(run, killing("cluster-killer", tmp_path, {killer: "exit"}, messages), tmp_path, max_attempts=2)
    assert (result.summary.acked, result.summary.dead, result.summary.failed) == (messages - 1, 1, 2)
    assert result.tally("out", "number", "times") == dict.fromkeys(
        ((number, 1) for number in range(messages) if number != killer), 1
    )
    letter = result.dead[killer]
    assert (letter.failure.kind, letter.attempts, letter.failure.component) == (FailureKind.POISON, 2, "work")


def test_executors_that_are_killed_in_the_middle_of_a_run_lose_nothing(cluster: Cluster, tmp_path: Path) -> None:
    messages = 3_000
    topology = losing("lost-executors", tmp_path, messages, {500: cluster.kill_executor}, killer=1_500)
    expect_exact_counts(finish(run, topology, tmp_path, epoch_max_messages=200), messages)
    assert (tmp_path / "killed").exists()


def test_a_worker_that_is_killed_in_the_middle_of_a_run_loses_nothing(cluster: Cluster, tmp_path: Path) -> None:
    messages = 3_000
    topology = losing("lost-worker", tmp_path, messages, {1_000: cluster.kill_worker, 2_000: cluster.add_worker})
    expect_exact_counts(finish(run, topology, tmp_path, epoch_max_messages=200), messages)
