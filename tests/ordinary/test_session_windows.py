"""Sessions end as if nothing had failed: runs at random on both runtimes, held to an oracle that sees no attempts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.ordinary.conftest import HANG_S, begin_in_process
from tests.ordinary.visits import COUNT, Click, Clicks, Story, Visit, read, rows_of
from tests.spark.tapped import wait_until
from tests.until import until
from tupletree import Topology, Window, testing, window_bolt
from tupletree.errors import CheckpointError, TopologyError
from tupletree.sinks import jsonl
from tupletree.sources import items
from tupletree.tracking.outcomes import Outcome


@pytest.mark.parametrize("seed", range(12))
def test_sessions_on_the_local_runtime_are_those_of_the_oracle(seed: int) -> None:
    story = Story(seed)
    expected = story.visits()
    run = testing.run(story.topology(Clicks(story.clicks), "never", is_async=True), seed=seed)
    assert all(one.outcome is Outcome.ACKED for one in run.messages["clicks"])
    assert rows_of(run.outputs["out"]) == expected


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(12, 400))
def test_sessions_on_the_local_runtime_are_those_of_the_oracle_by_many_seeds(seed: int) -> None:
    test_sessions_on_the_local_runtime_are_those_of_the_oracle(seed)


def on_spark(tmp_path: Path, seed: int) -> None:
    """With a stop in the middle of it, and another start."""
    story = Story(seed)
    options = {"epoch_max_messages": 7, "backoff_initial_ms": 20.0, "backoff_max_ms": 100.0}
    first = begin_in_process(
        story.topology(Clicks(story.clicks, rests=2), tmp_path / "out"), tmp_path / "state", **options
    )
    wait_until(first, lambda progress: progress.emitted >= COUNT // 3)
    first.stop(10.0)
    first.wait(HANG_S)
    second = story.topology(Clicks(story.clicks), tmp_path / "out")
    ended = begin_in_process(second, tmp_path / "state", **options).wait(HANG_S)
    assert (ended.open, ended.dead) == (0, 0)
    assert read(tmp_path / "out") == story.visits()


@pytest.mark.parametrize("seed", range(3))
def test_sessions_on_spark_are_those_of_the_oracle_after_a_restart_too(tmp_path: Path, seed: int) -> None:
    on_spark(tmp_path, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3, 60))
def test_sessions_on_spark_are_those_of_the_oracle_by_many_seeds(tmp_path: Path, seed: int) -> None:
    on_spark(tmp_path, seed)


def test_another_gap_or_parallelism_waits_until_no_session_is_open(tmp_path: Path) -> None:
    """While tuples are held it is refused, with what to do; after a drain, which ends all sessions, it is not."""

    def topology(gap_s: float, parallelism: int) -> Topology:
        @window_bolt(gap_s=gap_s, per_key=True, timestamp="at", extend_timeout=True)
        def visits(window: Window[Click]) -> Visit:
            return Visit(window.key, window.start_s, window.end_s, [one.number for one in window])

        t = Topology("changed")
        source = t.spout("clicks", Clicks([Click(number, "a", float(number)) for number in range(6)], ends=False))
        t.sink("out", jsonl(tmp_path / "out")).shuffle(
            t.bolt("visits", visits, parallelism=parallelism).fields(source, "user")
        )
        return t

    first = begin_in_process(topology(10, 2), tmp_path / "state")
    wait_until(first, lambda progress: progress.open == 6 and progress.epoch >= 0)
    told = "6 tuples held by visits, the first until event time is 1970-01-01 00:00:15 UTC"
    until(lambda: told in [one.counted().partition(";")[0] for one in first.progress().holds])
    first.stop(10.0)
    assert first.wait(HANG_S).acked == 0
    for changed, said in (
        (topology(20, 2), "holding changed from window.gap_s=10"),
        (topology(10, 3), "tupletree drain"),
    ):
        with pytest.raises(CheckpointError, match=said):
            begin_in_process(changed, tmp_path / "state").wait(HANG_S)
    second = begin_in_process(topology(10, 2), tmp_path / "state")
    wait_until(second, lambda progress: progress.state == "processing")
    second.drain(30.0)
    assert second.wait(HANG_S).acked == 6
    assert read(tmp_path / "out") == Counter({("a", 0.0, 15.0, (0, 1, 2, 3, 4, 5)): 1})
    third = begin_in_process(topology(20, 3), tmp_path / "state")
    wait_until(third, lambda progress: progress.state == "processing")
    third.stop(1.0)
    assert third.wait(HANG_S).dead == 0


def endless(max_length_s: float | None) -> Topology:
    @window_bolt(gap_s=5, max_length_s=max_length_s, per_key=True, timestamp="at", extend_timeout=True)
    def visits(window: Window[Click]) -> Visit:
        return Visit(window.key, window.start_s, window.end_s, [one.number for one in window])

    t = Topology("endless", options={"max_spout_pending": 20})
    clicks = t.spout("clicks", items([Click(number, "a", float(number)) for number in range(60)]))
    t.sink("out", jsonl("never")).shuffle(t.bolt("visits", visits).fields(clicks, "user"))
    return t


def test_a_session_that_is_cut_lets_the_source_go_on_and_one_that_fills_the_limit_stops_it() -> None:
    cut = testing.run(endless(10))
    assert [(one.start, len(one.numbers)) for one in cut.outputs["out"]] == [(10.0 * part, 10) for part in range(6)]
    whole = testing.run(endless(None))
    assert (whole.outputs["out"], [one.outcome for one in whole.messages["clicks"]]) == ([], [Outcome.OPEN] * 20)


def test_without_a_limit_a_session_needs_timeouts_that_are_restarted() -> None:
    @window_bolt(gap_s=5, per_key=True, timestamp="at")
    def visits(window: Window[Click]) -> Visit:
        return Visit(window.key, 0.0, 0.0, [])

    t = Topology("endless")
    clicks = t.spout("clicks", items([Click(0, "a", 0.0)]))
    t.sink("out", jsonl("never")).shuffle(t.bolt("visits", visits).fields(clicks, "user"))
    with pytest.raises(TopologyError, match="held as long as a session lasts, message_timeout_s=30") as refused:
        testing.run(t)
    assert "say extend_timeout=True, or raise message_timeout_s, with max_length_s" in str(refused.value)
