"""Sessions under kills: simulations of both runtimes, held to an oracle that knows what the source gave."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.ordinary.visits import COUNT, Clicks, Story, read, rows_of
from tests.simulator.test_spark_protocol import _quiet, place
from tupletree import testing
from tupletree.config import resolve_options
from tupletree.testing.simulator.faults import Faults
from tupletree.testing.spark_protocol import Moment, ProtocolFaults, ProtocolSimulation

__all__ = ["_quiet", "place"]

OPTIONS = {"backoff_initial_ms": 20.0, "backoff_max_ms": 100.0, "max_attempts": 200}


def on_spark(seed: int, folder: Path) -> Counter[str]:
    """Crashes at any step, lost executors, tasks that run twice."""
    story = Story(seed)
    expected = story.visits()

    def check(moment: Moment, simulation: ProtocolSimulation) -> None:
        seen = read(simulation.folder / "out")
        assert not seen - expected, (seed, moment)
        if moment is Moment.END:
            assert seen == expected, seed

    limits = {"epoch_max_messages": Random(seed).choice((3, 7, 20))}
    simulation = ProtocolSimulation(
        lambda out: story.topology(Clicks(story.clicks), out / "out"),
        resolve_options(code={**OPTIONS, **limits}),
        folder,
        seed,
        ProtocolFaults(job=0.0),  # enough of them one after the other end a run
        check,
    )
    simulation.run()
    return simulation.counts


def test_a_session_is_published_once_and_whole_whatever_is_killed(place: Path) -> None:
    totals: Counter[str] = Counter()
    for seed in range(12):
        folder = place / str(seed)
        folder.mkdir()
        totals.update(on_spark(seed, folder))
    assert totals["machine"] > 4


@pytest.mark.nightly
def test_a_session_is_published_once_and_whole_whatever_is_killed_by_many_seeds(place: Path) -> None:
    for seed in range(12, 200):
        folder = place / str(seed)
        folder.mkdir()
        on_spark(seed, folder)


FAULTS = replace(Faults(), lose_frames=0.0, repeat_frames=0.0, crash=0.0, drain=0.0)
"""What may happen to the local runtime; and tasks that lose their memory."""


def locally(seed: int) -> None:
    """What was held comes again: nothing is lost by that, and nothing comes together that does not belong."""
    story = Story(seed)
    story.longest = None
    expected = story.visits()
    clicks = {"clicks": story.clicks}
    result = testing.simulate(lambda: story.topology(Clicks(story.clicks), "never"), clicks, seed=seed, faults=FAULTS)
    assert len(result.acked["clicks"]) == COUNT
    seen = rows_of(result.rows["out"])
    assert {number for *_, numbers in seen for number in numbers} == {*range(COUNT)}
    sessions = [(user, {*numbers}) for user, _, _, numbers in expected]
    for user, _, _, numbers in seen:
        assert any(user == one and {*numbers} <= session for one, session in sessions), (seed, user, numbers)


def test_locally_no_message_is_lost_and_none_comes_into_the_session_of_others() -> None:
    for seed in range(12):
        locally(seed)


@pytest.mark.nightly
def test_locally_no_message_is_lost_and_none_comes_into_the_session_of_others_by_many_seeds() -> None:
    for seed in range(12, 300):
        locally(seed)
