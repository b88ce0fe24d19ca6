"""A stop drains what is in flight, at whatever moment it comes, and a later start goes on exactly."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from tests.spark.conftest import SPARK_NIGHTLY, RunTopology, StartTopology
from tests.spark.tapped import HANG_S, TANKS, Tank, rows_of, tapped, wait_until

TEXTS = [f"{'flaky' if number % 6 == 4 else 'plain'} a b{number % 3}" for number in range(80)]
OPTIONS = {"epoch_max_messages": 2}


def test_a_stop_settles_what_is_in_flight(
    tmp_path: Path, start_topology: StartTopology, run_topology: RunTopology
) -> None:
    tank = TANKS["drain"] = Tank([text.replace("flaky", "calm") for text in TEXTS[:30]])
    tank.open_all()
    handle = start_topology(tapped("drain", tmp_path / "out"), tmp_path / "state", **OPTIONS)
    wait_until(handle, lambda progress: progress.acked)
    handle.stop()
    summary = handle.wait(0.0)
    assert summary.open == 0
    assert 0 < summary.acked == summary.emitted < 30
    assert tank.acked.keys() == set(range(1, summary.acked + 1))
    assert rows_of(tmp_path / "out") == tank.rows(until=summary.acked)
    handle.stop()  # again is harmless
    assert run_topology(tapped("drain", tmp_path / "out"), tmp_path / "state", **OPTIONS).acked == 30
    assert rows_of(tmp_path / "out") == tank.rows()
    assert tank.acked.keys() == set(range(1, 31))


def test_a_paused_run_pulls_nothing_and_retries_nothing_until_it_is_resumed(
    tmp_path: Path, start_topology: StartTopology
) -> None:
    tank = TANKS["pause"] = Tank([text.replace("flaky", "calm") for text in TEXTS[:40]], allowed=20)
    handle = start_topology(tapped("pause", tmp_path / "out"), tmp_path / "state", **OPTIONS)
    wait_until(handle, lambda progress: progress.acked == 20)
    handle.pause()
    wait_until(handle, lambda _: tank.rests == 1)
    tank.open_all()
    with pytest.raises(TimeoutError):
        handle.wait(0.3)  # long enough for several epochs: nothing can be waited for that must not come
    assert handle.progress().emitted == 20
    handle.resume()
    assert handle.wait(HANG_S).acked == 40
    assert rows_of(tmp_path / "out") == tank.rows()


def test_a_paused_run_can_be_stopped(tmp_path: Path, start_topology: StartTopology) -> None:
    tank = TANKS["pause and stop"] = Tank(TEXTS[:10])
    handle = start_topology(tapped("pause and stop", tmp_path / "out"), tmp_path / "state", **OPTIONS)
    handle.pause()
    wait_until(handle, lambda progress: progress.state == "paused")
    tank.open_all()
    handle.stop()
    assert handle.wait(0.0).open == 0


def test_a_stop_before_anything_began_is_no_error(
    tmp_path: Path, start_topology: StartTopology, run_topology: RunTopology
) -> None:
    tank = TANKS["at once"] = Tank(TEXTS[:5])
    tank.open_all()
    handle = start_topology(tapped("at once", tmp_path / "out"), tmp_path / "state", **OPTIONS)
    handle.stop()
    assert handle.wait(HANG_S).open == 0
    assert run_topology(tapped("at once", tmp_path / "out"), tmp_path / "state", **OPTIONS).acked == 5
    assert rows_of(tmp_path / "out") == tank.rows()


@SPARK_NIGHTLY
@pytest.mark.parametrize("seed", [1, 2])
def test_stops_at_random_moments_are_never_an_error(
    seed: int, tmp_path: Path, start_topology: StartTopology, run_topology: RunTopology, request: pytest.FixtureRequest
) -> None:
    # How many texts there are, and how long a run goes on at most: on Spark, an epoch takes far longer.
    count, most_s = (80, 0.7) if request.node.get_closest_marker("spark") else (600, 0.05)
    chance = random.Random(seed)
    tank = TANKS["random"] = Tank((TEXTS * 10)[:count])
    tank.open_all()
    for _ in range(8):
        handle = start_topology(tapped("random", tmp_path / "out"), tmp_path / "state", **OPTIONS)
        if chance.random() < 0.8:  # or else it may stop before it has pulled anything
            wait_until(handle, lambda progress: progress.open)
        with contextlib.suppress(TimeoutError):
            handle.wait(chance.uniform(0.0, most_s))
        handle.stop(chance.choice([0.0, 0.1, 30.0]))
        summary = handle.wait(HANG_S)
        assert summary.emitted == summary.acked + summary.dead + summary.open
        assert not rows_of(tmp_path / "out") - tank.rows()
    summary = run_topology(tapped("random", tmp_path / "out"), tmp_path / "state", epoch_max_messages=50)
    assert (summary.emitted, summary.acked, summary.open) == (count, count, 0)
    assert rows_of(tmp_path / "out") == tank.rows()
    assert tank.acked.keys() == set(range(1, count + 1))
