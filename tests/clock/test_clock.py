"""The clock that never goes back."""

from __future__ import annotations

from tupletree.clock import ManualClock, SteadyClock


def test_a_step_back_of_the_machines_clock_costs_no_second() -> None:
    machine = ManualClock(wall=10_000.0)
    clock = SteadyClock(machine)
    machine.advance(5.0)
    machine.step(-3600.0)
    seen = []
    for _ in range(3):
        machine.advance(1.0)
        seen.append(clock.wall())
    assert seen == [10_006.0, 10_007.0, 10_008.0]


def test_a_step_forward_is_followed_and_taken_back_by_nothing() -> None:
    machine = ManualClock(wall=10_000.0)
    clock = SteadyClock(machine)
    machine.step(3600.0)
    assert clock.wall() == 13_600.0
    machine.step(-3600.0)
    machine.advance(2.0)
    assert clock.wall() == 13_602.0


def test_a_restart_goes_on_from_the_time_that_was_noted() -> None:
    machine = ManualClock(wall=10_000.0)
    clock = SteadyClock(machine)
    clock.not_before(13_600.0)
    machine.advance(2.0)
    assert clock.wall() == 13_602.0
    clock.not_before(5.0)
    assert clock.wall() == 13_602.0
