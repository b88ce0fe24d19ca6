"""Tuples that bolts hold for messages that are over: nobody waits for them, so they go."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tasks.driving import Driver
from tests.tasks.streams import Line, Script, Word, lines
from tupletree import Collector, Emit, Topology, TupleSettledError, batch_bolt, bolt
from tupletree.bolts import collector
from tupletree.config import Options
from tupletree.tasks.bolt import BoltMachine
from tupletree.tasks.mail import DropRoots
from tupletree.tasks.orphan_check import OrphanCheck
from tupletree.tracking.acker import Acker

TIMEOUT_S = 2.0


def bolt_of(driver: Driver) -> BoltMachine:
    (machine,) = (one for one in driver.machines.values() if isinstance(one, BoltMachine))
    return machine


def holding(body: Any, script: Script, **options: Any) -> Driver:
    t = Topology("holding")
    t.bolt("hold", body, unconsumed=Word if body.spec.can_collect else ()).shuffle(t.spout("lines", script))
    return Driver(t, Options(message_timeout_s=TIMEOUT_S, backoff_initial_ms=1.0, **options))


def pass_time(driver: Driver, timeouts: float) -> None:
    """Move time on in small steps."""
    for _ in range(int(timeouts * 8)):
        driver.now_s += TIMEOUT_S / 8
        driver.settle()


def test_tuples_that_a_bolt_dropped_without_a_verdict_go_when_their_messages_have_expired() -> None:
    @bolt(auto_ack=False)
    def drop(line: Line, out: Collector[Word]) -> None:
        """Neither acks nor fails nor keeps it."""

    driver = holding(drop, Script([lines(*"abc")]), max_attempts=2)
    driver.settle()
    assert len(set(bolt_of(driver).held_roots())) == 3
    driver.run()
    assert len(driver.died) == 3
    driver.died.clear()
    pass_time(driver, 3)
    assert [*bolt_of(driver).held_roots()] == []


def test_tuples_that_a_bolt_keeps_serve_as_anchors_though_their_messages_have_expired() -> None:
    kept: list[Line] = []

    @bolt(auto_ack=False)
    def in_pairs(line: Line, out: Collector[Word]) -> None:
        kept.append(line)
        if line.text == "late":
            out.emit(Word("both"), anchors=kept)
            for one in kept:
                out.ack(one)
            kept.clear()

    script = Script([lines("early")], ends=False)
    driver = holding(in_pairs, script, max_attempts=1)
    driver.settle()
    pass_time(driver, 6)
    assert [one.message_id for one in driver.died] == [0]
    script.steps.append(lines("", "late")[1:])
    driver.settle()
    assert script.acked == [1]
    assert [*bolt_of(driver).held_roots()] == []


def test_an_object_that_comes_again_after_its_message_was_over_names_what_came_last() -> None:
    shared = Line("again")
    kept: list[Line] = []

    @bolt(auto_ack=False)
    def when_it_comes_again(line: Line, out: Collector[Word]) -> None:
        kept.append(line)
        if line.text == "now":
            out.ack(shared)
            out.ack(line)

    script = Script([Emit(shared, "first")], ends=False)
    driver = holding(when_it_comes_again, script, max_attempts=1)
    driver.settle()
    pass_time(driver, 4)
    assert [one.message_id for one in driver.died] == ["first"]
    script.steps += [Emit(shared, "second"), Emit(Line("now"), "third")]
    driver.settle()
    assert sorted(script.acked) == ["second", "third"]


def test_only_so_many_tuples_of_messages_that_are_over_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "MAX_OVER", 2)
    kept: list[Line] = []
    refused: list[str] = []

    @bolt(auto_ack=False)
    def anchor_to_all(line: Line, out: Collector[Word]) -> None:
        kept.append(line)
        if line.text == "now":
            for one in kept:
                try:
                    out.emit(Word(one.text), anchors=[one])
                except TupleSettledError:
                    refused.append(one.text)
            out.ack(line)

    script = Script([lines(*"abcd")], ends=False)
    driver = holding(anchor_to_all, script, max_attempts=1)
    driver.settle()
    pass_time(driver, 4)
    assert len(driver.died) == 4
    script.steps.append(Emit(Line("now"), "now"))
    driver.settle()
    assert script.acked == ["now"]
    assert refused == ["a", "b"]


def test_a_batch_that_waits_loses_the_tuples_of_attempts_that_expired() -> None:
    @batch_bolt(size=100, max_age_s=1000.0)
    def by_hundred(rows: list[Line]) -> None:
        """Never full."""

    driver = holding(by_hundred, Script([lines(*"abc")], ends=False), max_attempts=9)
    driver.settle()
    pass_time(driver, 12)
    pending = driver.spouts[0].pending
    assert pending.counters.failed >= 9
    held = [*bolt_of(driver).held_roots()]
    assert len(held) <= 9, "at most those of the attempts of the last three timeouts"
    assert set(pending.roots_in_flight()) <= set(held)


def test_word_of_an_acker_takes_only_the_tuples_of_the_roots_that_it_names() -> None:
    @batch_bolt(size=100, max_age_s=1000.0)
    def by_hundred(rows: list[Line]) -> None:
        """Never full."""

    driver = holding(by_hundred, Script([lines(*"ab")], ends=False), max_attempts=1)
    driver.settle()
    (first, second) = driver.spouts[0].pending.roots_in_flight()
    bolt_of(driver).receive([DropRoots([first])], driver.now, driver.out)
    assert [*bolt_of(driver).held_roots()] == [second]


def test_attempts_that_failed_together_are_looked_for_once() -> None:
    told: list[tuple[int, int]] = []
    check = OrphanCheck(1, [9], TIMEOUT_S, held=tuple, purge=lambda over, gone: told.append((len(over), len(gone))))
    check.receive([DropRoots([root]) for root in range(1, 101)])
    check.receive([DropRoots([101])])
    check.receive([])
    assert told == [(100, 100), (1, 101)]


def test_an_acker_knows_open_trees_and_what_waits_for_an_opening() -> None:
    acker = Acker(timeout_s=TIMEOUT_S)
    acker.apply([(0, 5, [1], 0.0)], [(7, [2])], [], 0.0)
    assert acker.unknown_among([1, 2, 3]) == [3]
    acker.apply([], [(5, [1])], [], 0.0)
    assert acker.unknown_among([1, 2]) == [1]
