"""Timeouts by bucket rotation: a tree that is not complete after T fails, between T and T + T/(buckets - 1).

An acker puts new trees into the newest of its buckets. Every T/(buckets - 1) it begins a new one and drops the oldest,
so a timeout costs nothing until it comes. With T = 30 s and three buckets it rotates every 15 s.
"""

from __future__ import annotations

import pytest

from tests.scenarios.story import Story
from tests.tasks.streams import Line, Script, Word, lines
from tupletree import Bolt, Collector, Emit, Topology, bolt
from tupletree.tracking.outcomes import FailureKind


@bolt(auto_ack=False)
def forget(line: Line, out: Collector[Word]) -> None:
    """Neither ack nor fail: only the timeout can end these."""
    if line.text == "remembered":
        out.ack(line)


def forgetful(*scripts: Script) -> Topology:
    t = Topology("forgetful")
    bolt_handle = t.bolt("forget", forget, unconsumed=Word)
    for number, script in enumerate(scripts):
        bolt_handle.shuffle(t.spout(f"lines-{number}", script))
    return t


def test_a_tree_moves_through_the_buckets_and_expires_with_the_oldest() -> None:
    script = Script([lines("lost")], ends=False)
    story = Story(forgetful(script), max_attempts=1)
    story.wait(10.0)  # emitted at once: it lies in the first bucket
    assert story.trees == ["a"]
    story.wait(19.9)  # one rotation, at 15 s
    assert script.failed == []
    story.wait(15.0)  # 44.9 s: a second one at 30 s; the bucket holds trees of up to 15 s, so they are 15 to 30 s old
    assert script.failed == []
    story.wait(0.2)  # the third, at 45 s: now all of them are older than T
    assert story.trees == []
    (message_id, failure) = script.failed[0]
    assert (message_id, failure.kind) == (0, FailureKind.TIMEOUT)
    assert "30 s" in failure.error


@pytest.mark.parametrize("buckets", [2, 3, 5])
def test_whenever_it_is_emitted_it_fails_between_t_and_one_bucket_later(buckets: int) -> None:
    """At any phase of the rotation: each tenth of a second over more than T."""
    for phase in range(0, 310, 7):
        script = Script([], ends=False)
        story = Story(forgetful(script), message_timeout_s=30.0, timeout_buckets=buckets, max_attempts=1)
        story.wait(phase / 10)
        script.steps.append(Emit(Line("lost"), "lost"))
        emitted_s = story.now_s
        story.settle()
        story.wait(29.99)
        assert script.failed == [], f"failed early, emitted at {phase / 10} s"
        story.wait(0.02 + 30.0 / (buckets - 1))
        assert len(script.failed) == 1, f"not failed in time, emitted at {phase / 10} s"
        (died,) = story.died
        assert 30.0 - 1e-6 <= died.died_s - died.first_emitted_s <= story.now_s - emitted_s


def test_alternate_tuples_unacked_fail_and_the_others_do_not() -> None:
    script = Script([lines(*(["remembered", "lost"] * 50))], ends=False)
    story = Story(forgetful(script), max_attempts=1)
    story.wait(29.9)
    assert len(script.acked) == 50
    assert script.failed == []
    story.wait(15.2)
    assert sorted(message_id for message_id, _ in script.failed if isinstance(message_id, int)) == [*range(1, 100, 2)]
    assert len(script.acked) == 50
    assert story.ackers[0].open_count == 0


def test_several_spouts_do_not_make_time_go_faster() -> None:
    """Ten spout tasks share the acker and the executor; each of their messages has all of its T."""
    scripts = [Script([lines("lost")], ends=False) for _ in range(10)]
    story = Story(forgetful(*scripts), max_attempts=1)
    story.wait(29.9)
    assert [script.failed for script in scripts] == [[]] * 10
    story.wait(15.2)
    assert [len(script.failed) for script in scripts] == [1] * 10


def test_an_expired_message_is_tried_again_and_each_attempt_has_its_own_time() -> None:
    script = Script([lines("lost")], ends=False)
    story = Story(forgetful(script), max_attempts=2, backoff_initial_ms=1000.0)
    story.wait(45.1)
    assert story.spout.pending.counters.failed == 1
    assert script.failed == []
    story.wait(1.0 + 29.8)
    assert script.failed == []  # the second attempt is younger than T
    story.wait(15.2)
    assert len(script.failed) == 1
    assert story.died[0].attempts == 2


class Patient(Bolt[Line]):
    """Holds a line until it is told to let go, and renews its timeout at every tick."""

    auto_ack = False
    tick_interval_s = 10.0

    def __init__(self) -> None:
        self.held: list[Line] = []
        self.ticks = 0

    def process(self, value: Line, collector: Collector[Word]) -> None:
        self.held.append(value)

    def tick(self, collector: Collector[Word]) -> None:
        self.ticks += 1
        for line in self.held:
            (collector.ack if self.ticks == 30 else collector.reset_timeout)(line)


def test_a_renewed_timeout_outlives_ten_timeouts() -> None:
    script = Script([lines("long")], ends=False)
    t = Topology("patient")
    t.bolt("patient", Patient, unconsumed=Word).shuffle(t.spout("lines", script))
    story = Story(t)
    story.wait(299.0)
    assert story.spout.in_flight == 1
    assert story.spout.pending.counters.failed == 0
    story.wait(2.0)
    assert script.acked == [0]


def test_without_a_timeout_lost_tuples_stay_open_and_can_be_named() -> None:
    script = Script([lines(*(["remembered", "lost"] * 10))], ends=False)
    story = Story(forgetful(script), message_timeout_s=None)
    story.wait(1_000_000.0)
    assert script.failed == []
    assert len(script.acked) == 10
    open_ids = {one.message_id for one in story.spout.pending.release()}
    assert open_ids == {*range(1, 20, 2)}
