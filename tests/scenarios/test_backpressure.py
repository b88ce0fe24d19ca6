"""Backpressure: a spout task has at most `max_spout_pending` messages open; who is slow slows down the source."""

from __future__ import annotations

import pytest

from tests.scenarios.story import Story
from tests.tasks.streams import Line, Script, lines
from tupletree import PermanentError, Topology, bolt
from tupletree.tasks.bolt import BoltMachine


@bolt
def work(line: Line) -> None:
    if line.text == "bad":
        raise RuntimeError("not yet")
    if line.text == "hopeless":
        raise PermanentError("never")


def slow(script: Script) -> Topology:
    """Three tasks, so that three messages that come together travel apart."""
    t = Topology("slow")
    t.bolt("work", work, parallelism=3).shuffle(t.spout("lines", script))
    return t


def work_off(story: Story) -> None:
    """The bolt works on one frame, and its ack finds its way."""
    story.deliver("work")
    while any(one.startswith("acker") for one in story.on_the_way):
        story.deliver("acker")
    while any(one.startswith("lines") for one in story.on_the_way):
        story.deliver("lines")


def test_at_max_pending_three_the_fourth_message_waits_for_an_ack() -> None:
    script = Script(lines(*(f"line {number}" for number in range(10))), ends=False)
    story = Story(slow(script), max_spout_pending=3)

    story.ask("lines")
    assert story.spout.open_count == 3
    asked = script.asked
    assert story.ask("lines") == []  # three are open
    assert script.asked == asked  # it was not even asked

    work_off(story)
    assert len(script.acked) == 1
    assert story.ask("lines")  # there is room for one
    assert story.spout.open_count == 3
    assert story.ask("lines") == []


def test_an_idle_spout_that_wakes_up_is_filled_to_the_limit_again() -> None:
    script = Script(lines("a", "b", "c"), ends=False)
    story = Story(slow(script), max_spout_pending=3)
    story.settle()
    assert sorted(script.acked, key=str) == [0, 1, 2]
    assert story.ask("lines") == []  # nothing is there

    script.steps += lines(*"abcdefgh")[3:]
    story.ask("lines")
    assert story.spout.open_count == 3


def test_a_message_that_waits_for_its_retry_keeps_its_place() -> None:
    script = Script(lines("bad", *["good"] * 10), ends=False)
    story = Story(slow(script), max_spout_pending=3, backoff_initial_ms=1000.0)
    story.ask("lines")
    for _ in range(3):
        work_off(story)
    assert sorted(script.acked, key=str) == [1, 2]
    assert story.spout.open_count == 1  # the runtime will try it again
    story.ask("lines")
    assert story.spout.open_count == 3
    assert story.spout.in_flight == 2


def test_a_dead_message_makes_room() -> None:
    script = Script(lines("hopeless", *["good"] * 10), ends=False)
    story = Story(slow(script), max_spout_pending=3)
    story.ask("lines")
    for _ in range(3):
        work_off(story)
    assert [message_id for message_id, _ in script.failed] == [0]
    assert story.spout.open_count == 0
    story.ask("lines")
    assert story.spout.in_flight == 3


@pytest.mark.parametrize("limit", [1, 3, 16])
def test_a_source_ten_times_faster_than_the_bolt_makes_no_replay_storm(limit: int) -> None:
    """The limit bounds what can time out, so a slow bolt gets each message once."""
    script = Script(lines(*(f"line {number}" for number in range(200))), ends=False)
    story = Story(slow(script), max_spout_pending=limit, message_timeout_s=10.0)
    while len(script.acked) < 200:
        for _ in range(10):
            story.ask("lines")
        assert len(story.queue) <= 2 * limit  # a frame and its opening for each
        work_off(story)
        story.now_s += 0.5  # a bolt's pace: with a limit of 16 the last one waits 8 s
        for machine in story.machines.values():
            machine.poll(story.now, story.out, paused=True)
        story.carry_out()
    assert sum(machine.worked for machine in story.machines.values() if isinstance(machine, BoltMachine)) == 200
    assert story.spout.pending.counters.failed == 0
