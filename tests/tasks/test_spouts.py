from __future__ import annotations

from typing import Any

import pytest

from tests.tasks.driving import Driver
from tests.tasks.streams import Gathering, Line, Script, Word, lines
from tupletree import Emit, Topology, bolt
from tupletree.config import Options
from tupletree.ids import MessageId
from tupletree.tasks.mail import HighWater, SinkReset
from tupletree.tasks.spout import SpoutMachine, SpoutSurroundings
from tupletree.topology.components import Reject
from tupletree.tracking.outcomes import Failure, FailureKind


@bolt
def word(line: Line) -> Word:
    if line.text.startswith("bad"):
        raise ValueError(line.text)
    return Word(line.text)


def driver_of(script: Script, options: Options | None = None, *, replay: str = "runtime") -> Driver:
    t = Topology("words")
    words = t.bolt("word", word).shuffle(t.spout("lines", script, replay=replay))  # type: ignore[arg-type]
    t.sink("out", Gathering()).shuffle(words)
    return Driver(t, options)


def test_a_reject_is_dead_at_once_and_the_stream_goes_on() -> None:
    script = Script([[Reject(b"\xff", "r", "not UTF-8"), *lines("a")]])
    driver = driver_of(script)
    driver.run()
    assert [(one.message_id, one.failure.kind, one.attempts) for one in driver.died] == [("r", FailureKind.REJECTED, 1)]
    assert [message_id for message_id, _ in script.failed] == ["r"]
    assert script.acked == [0]


def test_a_value_of_another_class_fails_its_message_alone() -> None:
    script = Script([[Emit(Word("no line"), "w"), *lines("a")]])
    driver = driver_of(script, Options(max_attempts=1))
    driver.run()
    assert [one.message_id for one in driver.died] == ["w"]
    assert "stream is Line" in driver.died[0].failure.error
    assert script.acked == [0]


def test_a_source_that_replays_by_itself_hears_of_each_failed_attempt() -> None:
    bad = Emit(Line("bad"), "b")
    script = Script([bad, None], ends=False)
    driver = driver_of(script, Options(max_attempts=3), replay="source")
    driver.settle()
    assert len(script.failed) == 1
    assert driver.spouts[0].open_count == 1
    script.steps.append(bad)
    driver.settle()
    script.steps.append(bad)
    driver.settle()
    assert [(message_id, failure.permanent) for message_id, failure in script.failed] == [
        ("b", False),
        ("b", False),
        ("b", True),
    ]
    assert [one.attempts for one in driver.died] == [3]
    assert driver.spouts[0].open_count == 0


def test_a_source_that_ended_does_not_replay_so_its_failed_messages_are_dead_and_it_hears_once() -> None:
    script = Script(lines("bad"))
    driver = driver_of(script, replay="source")
    driver.run()
    assert [one.message_id for one in driver.died] == [0]
    assert len(script.failed) == 1


def test_a_redelivery_of_an_open_message_joins_it() -> None:
    script = Script([lines("bad"), Emit(Line("bad"), 0)])
    driver = driver_of(script, Options(max_attempts=2))
    driver.run()
    assert driver.spouts[0].pending.counters.joined == 1
    assert driver.spouts[0].pending.counters.emitted == 1
    assert len(driver.died) == 1


def named(letters: str) -> list[Emit[Line]]:
    return [Emit(Line(letter), letter) for letter in letters]


def test_a_spout_that_had_nothing_more_or_is_at_its_limit_has_emitted_all_for_now() -> None:
    script = Script([named("ab"), None, named("cd"), named("efg")], ends=False)
    driver = driver_of(script, Options(max_spout_pending=6))
    spout = driver.spouts[0]
    for asked, emitted in ((2, 2), (4, 6)):  # the limit ends the second poll, `None` the first
        assert spout.poll(driver.now, driver.out)
        assert spout.has_emitted_all
        assert (script.asked, spout.pending.counters.emitted) == (asked, emitted)
    driver.carry_out()
    driver.settle()
    assert len(script.acked) >= 6


def test_a_spout_that_gives_one_by_one_may_have_more() -> None:
    script = Script(lines(*(f"w{number}" for number in range(100))), ends=False)
    driver = driver_of(script)
    spout = driver.spouts[0]
    assert spout.poll(driver.now, driver.out)
    assert not spout.has_emitted_all


def test_a_drain_emits_what_was_given_asks_for_nothing_and_starts_no_retry() -> None:
    script = Script([lines("bad", *(f"w{number}" for number in range(9)))], ends=False)
    driver = driver_of(script, Options(max_spout_pending=2, backoff_initial_ms=1.0))
    spout = driver.spouts[0]
    spout.poll(driver.now, driver.out)
    driver.carry_out()
    asked = script.asked
    spout.drain()
    driver.settle()
    driver.now_s += 60.0
    driver.settle()
    assert spout.is_drained
    assert script.asked == asked
    assert len(script.acked) == 9
    (left,) = spout.abandon(driver.now, driver.out)
    assert left.message_id == 0
    assert [(one, failure.kind) for one, failure in script.failed] == [(0, FailureKind.STOPPED)]
    assert spout.open_count == 0


def test_what_is_abandoned_in_flight_is_failed_to_its_source_and_late_verdicts_change_nothing() -> None:
    script = Script([lines("a", "b")], ends=False)
    driver = driver_of(script)
    spout = driver.spouts[0]
    spout.poll(driver.now, driver.out)
    driver.carry_out()
    assert [one.message_id for one in spout.abandon(driver.now, driver.out)] == [0, 1]
    driver.settle()
    assert script.acked == []
    assert [one for one, _ in script.failed] == [0, 1]


def test_high_water_pauses_the_spout_and_fails_nothing() -> None:
    script = Script([lines("a")], ends=False)
    driver = driver_of(script)
    spout = driver.spouts[0]
    spout.receive([HighWater(1, above=True)], driver.now, driver.out)
    assert not spout.poll(driver.now, driver.out)
    assert script.asked == 0
    spout.receive([HighWater(1, above=False)], driver.now, driver.out)
    driver.settle()
    assert script.acked == [0]


def test_a_full_ring_pauses_the_spout() -> None:
    script = Script([lines("a")], ends=False)
    driver = driver_of(script)
    assert not driver.spouts[0].poll(driver.now, driver.out, paused=True)
    assert script.asked == 0


def test_pause_and_resume_tell_the_spout_and_verdicts_still_come() -> None:
    script = Script([lines("a"), None, lines("b")], ends=False)
    driver = driver_of(script)
    spout = driver.spouts[0]
    spout.poll(driver.now, driver.out)
    driver.carry_out()
    spout.pause()
    driver.settle()
    assert script.acked == [0]
    assert script.asked == 2
    spout.resume()
    assert script.life == ["open", "activate", "deactivate", "activate"]


@pytest.mark.parametrize("then", ["resume", "drain"])
def test_a_pause_holds_back_what_the_spout_has_given_until_it_is_resumed_or_drained(then: str) -> None:
    script = Script([lines(*"abcd")], ends=False)
    driver = driver_of(script, Options(max_spout_pending=1))
    spout = driver.spouts[0]
    spout.poll(driver.now, driver.out)
    spout.pause()
    driver.settle()
    driver.now_s += 60.0
    driver.settle()
    assert (script.acked, spout.in_flight, spout.is_drained) == ([0], 0, False)
    getattr(spout, then)()
    driver.settle()
    assert script.acked == [0, 1, 2, 3]
    assert spout.is_drained


def test_a_pause_holds_back_retries() -> None:
    script = Script([lines("bad")], ends=False)
    driver = driver_of(script, Options(backoff_initial_ms=1.0, max_attempts=2))
    driver.spouts[0].poll(driver.now, driver.out)
    driver.spouts[0].pause()
    driver.settle()
    driver.now_s += 60.0
    driver.settle()
    assert (script.failed, driver.spouts[0].pending.counters.failed) == ([], 1)
    driver.spouts[0].resume()
    driver.settle()
    assert [message_id for message_id, _ in script.failed] == [0]


def test_an_inactive_start_asks_for_nothing_until_it_is_resumed() -> None:
    script = Script([lines("a")], ends=False)
    driver = driver_of(script)
    old = driver.spouts[0]
    spout = SpoutMachine(
        driver.plan,
        old.task,
        script,
        driver.options,
        SpoutSurroundings(driver.random.getrandbits, driver.random.random, {driver.sinks[0].task.task_id: 1}, {}),
        active=False,
    )
    script.life.clear()
    spout.start(driver.now, driver.out)
    assert not spout.poll(driver.now, driver.out)
    assert script.life == ["open"]
    spout.resume()
    assert spout.poll(driver.now, driver.out)
    assert script.life == ["open", "activate"]


def test_a_restart_hands_messages_over_and_they_are_tried_again_under_new_roots() -> None:
    script = Script([lines("a", "b", "c")], ends=False)
    driver = driver_of(script, Options(max_spout_pending=2))
    old = driver.spouts[0]
    old.poll(driver.now, driver.out)
    roots = old.pending.roots_in_flight()
    spout_checkpoint = old.hand_over(driver.now, driver.out)
    fresh = SpoutMachine(
        driver.plan,
        old.task,
        script,
        driver.options,
        SpoutSurroundings(
            driver.random.getrandbits, driver.random.random, {driver.sinks[0].task.task_id: 1}, driver.attempts
        ),
        spout_checkpoint=spout_checkpoint,
    )
    driver.machines[old.task.task_id] = fresh
    fresh.start(driver.now, driver.out)
    driver.carry_out()  # what the old one had sent comes late, and means nothing to the new one
    driver.settle()
    driver.now_s += 10.0
    driver.settle()
    assert sorted(script.acked) == [0, 1, 2]
    assert fresh.pending.counters.failed == 2
    assert not set(roots) & set(fresh.pending.roots_in_flight())
    assert script.failed == []


def test_a_source_that_replays_by_itself_hears_in_a_new_life_what_it_owes_once_it_is_active() -> None:
    script = Script([lines("bad", "bad too")], ends=False)
    driver = driver_of(script, Options(max_spout_pending=2), replay="source")
    old = driver.spouts[0]
    driver.settle()
    assert [message_id for message_id, _ in script.failed] == [0, 1]
    script.steps.append([Emit(Line("x"), "x"), Emit(Line("y"), "y"), Emit(Line("given again, and held"), 0)])
    old.poll(driver.now, driver.out)
    spout_checkpoint = old.hand_over(driver.now, driver.out)
    driver.active = False
    fresh = driver.make(old.task, spout_checkpoint)
    assert isinstance(fresh, SpoutMachine)
    driver.machines[old.task.task_id] = fresh
    script.failed.clear()
    script.life.clear()
    fresh.start(driver.now, driver.out)
    driver.settle()
    assert (script.failed, script.life) == ([], ["open"])
    fresh.resume()
    fresh.poll(driver.now, driver.out)
    assert [(message_id, failure.permanent) for message_id, failure in script.failed] == [
        (1, False),
        ("x", False),
        ("y", False),
    ]


def test_a_sink_that_lost_its_rows_fails_every_attempt_in_flight() -> None:
    script = Script([lines("a")], ends=False)
    driver = driver_of(script, Options(max_attempts=1))
    spout = driver.spouts[0]
    spout.poll(driver.now, driver.out)
    driver.carry_out()
    spout.receive([SinkReset(driver.sinks[0].task.task_id, 2)], driver.now, driver.out)
    driver.carry_out()
    assert [one.failure.kind for one in driver.died] == [FailureKind.LOST]


def test_an_acker_that_dies_fails_the_attempts_that_it_knew_of() -> None:
    script = Script([lines("a"), lines("b")], ends=False)
    driver = driver_of(script, Options(max_attempts=1, acker_tasks=1))
    spout = driver.spouts[0]
    spout.poll(driver.now, driver.out)
    spout.acker_lost(0, driver.now, driver.out)
    driver.carry_out()
    assert [one.failure.kind for one in driver.died] == [FailureKind.LOST]


def test_all_roots_of_one_emission_belong_to_one_acker_and_the_next_to_another() -> None:
    script = Script([lines(*"abcdefgh"), None, [Emit(Line("x"), "x"), Emit(Line("y"), "y")]], ends=False)
    driver = driver_of(script, Options(acker_tasks=3))
    spout = driver.spouts[0]
    spout.poll(driver.now, driver.out)
    first = {root % 3 for root in spout.pending.roots_in_flight()}
    spout.poll(driver.now, driver.out)
    both = {root % 3 for root in spout.pending.roots_in_flight()}
    assert len(first) == 1
    assert len(both) == 2


def test_messages_that_come_one_by_one_share_an_emission() -> None:
    script = Script(lines(*"abcdef"), ends=False)
    driver = driver_of(script)
    driver.spouts[0].poll(driver.now, driver.out)
    (frame,) = driver.out.take_frames()
    assert [line.text for line in frame.values] == list("abcdef")


def test_what_a_spout_gave_before_it_raised_is_handed_over() -> None:
    class Breaking(Script):
        def next(self) -> Any:
            if self.asked == 2:
                raise OSError("broken pipe")
            return super().next()

    script = Breaking(lines(*"abc"), ends=False)
    driver = driver_of(script)
    spout = driver.spouts[0]
    with pytest.raises(OSError, match="broken pipe"):
        spout.poll(driver.now, driver.out)
    spout_buffer = spout.hand_over(driver.now, driver.out).spout_buffer
    assert spout_buffer.held == 2
    assert spout_buffer.take(script, 9, ask=False) == lines("a", "b")


def test_a_source_that_is_too_broken_to_hear_of_its_failed_attempts_hands_its_messages_over_all_the_same() -> None:
    class Deaf(Script):
        def fail(self, message_id: object, failure: object) -> None:
            raise OSError("the broker went away")

    driver = driver_of(Deaf([lines("a", "b")], ends=False), replay="source")
    spout = driver.spouts[0]
    spout.poll(driver.now, driver.out)
    spout_checkpoint = spout.hand_over(driver.now, driver.out)
    assert spout_checkpoint.pending.awaiting_source(spout.task.task_id) == 2
    assert spout_checkpoint.pending.in_flight(spout.task.task_id) == 0
    first, last = [note.text for note in driver.out.notes]
    assert first == "attempt 1 of message 0 failed (lost) and is made again: the topology was restarted"
    assert last == "it was not told of 2 failed attempts: OSError: the broker went away"


def test_a_source_that_has_ended_is_asked_once_more_for_a_message_that_it_is_to_emit_again() -> None:
    class Queue(Script):
        def fail(self, message_id: MessageId, failure: Failure) -> None:
            super().fail(message_id, failure)
            if not failure.permanent:
                self.steps.append(Emit(Line("bad"), message_id))

    script = Queue([Emit(Line("bad"), "b")])
    driver = driver_of(script, Options(max_attempts=3), replay="source")
    driver.run()
    assert [(one.message_id, one.attempts) for one in driver.died] == [("b", 3)]
    assert [failure.permanent for _, failure in script.failed] == [False, False, True]
