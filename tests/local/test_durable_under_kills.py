"""Durable local runs that are killed at any step lose no message, no state and no dead letter, whatever holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.local.durable_world import Number, Outside, Summed, World
from tupletree import KeyedState, ListState, PermanentError, TaskContext, Topology, batch_bolt, bolt
from tupletree.topology.window_decorators import window_bolt

BAD = {7, 23}
SEEDS = range(6)
MORE_SEEDS = range(6, 60)


def counting(t: Topology, source: Any, name: str = "count") -> Any:
    @bolt(state=int)
    def count(number: Number, total: KeyedState[int], context: TaskContext) -> Summed:
        if number.number in BAD:
            raise PermanentError("bad")
        if number.number % 11 == 3 and context.attempt < 3:
            raise ValueError("at first")
        total.value += 1
        return Summed(number.key, total.value, [number.number])

    return t.bolt(name, count, parallelism=2).fields(source, "key")


def listing(t: Topology, source: Any) -> Any:
    @bolt(ttl_s=3600.0)
    def collect(number: Number, numbers: ListState[int]) -> Summed:
        if number.number in BAD:
            raise PermanentError("bad")
        if number.number not in numbers:
            numbers.append(number.number)
        return Summed(number.key, len(numbers), [number.number])

    return t.bolt("collect", collect, parallelism=2).fields(source, "key")


def batching(t: Topology, source: Any) -> Any:
    @bolt
    def good(number: Number) -> Number:
        if number.number in BAD:
            raise PermanentError("bad")
        return number

    @batch_bolt(size=4, max_age_s=0.2)
    def gather(batch: list[Number]) -> Iterable[Summed]:
        yield Summed(batch[0].key, len(batch), [one.number for one in batch])

    return t.bolt("gather", gather).shuffle(t.bolt("good", good).shuffle(source))


def windowed(t: Topology, source: Any) -> Any:
    @bolt
    def good(number: Number) -> Number:
        if number.number in BAD:
            raise PermanentError("bad")
        return number

    @window_bolt(count=3, per_key=True)
    def three(numbers: list[Number]) -> Summed:
        return Summed(numbers[0].key, len(numbers), [one.number for one in numbers])

    return t.bolt("three", three).fields(t.bolt("good", good).shuffle(source), "key")


def in_sessions(t: Topology, source: Any) -> Any:
    """Numbers of a key, four apart, up to two that are nine apart or more: where a bad one is missing, or every 20."""

    @bolt
    def good(number: Number) -> Number:
        if number.number in BAD:
            raise PermanentError("bad")
        return number

    @window_bolt(
        gap_s=9,
        per_key=True,
        timestamp=lambda one: one.number + 10.0 * (one.number // 20),
        lag_s=100.0,
        late="fail",
        extend_timeout=True,
    )
    def together(numbers: list[Number]) -> Summed:
        return Summed(numbers[0].key, len(numbers), [one.number for one in numbers])

    return t.bolt("together", together, parallelism=2).fields(t.bolt("good", good).shuffle(source), "key")


@pytest.mark.parametrize("kind", ["seeks", "redelivers"])
@pytest.mark.parametrize("make", [counting, listing, batching, windowed, in_sessions])
def test_killed_at_any_step_a_durable_run_loses_nothing(
    make: Callable[[Topology, Any], Any], kind: str, tmp_path: Path
) -> None:
    run_killed(make, kind, tmp_path, SEEDS)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["seeks", "redelivers"])
@pytest.mark.parametrize("make", [counting, listing, batching, windowed, in_sessions])
def test_killed_at_any_of_more_steps_a_durable_run_loses_nothing(
    make: Callable[[Topology, Any], Any], kind: str, tmp_path: Path
) -> None:
    run_killed(make, kind, tmp_path, MORE_SEEDS)


def run_killed(make: Callable[[Topology, Any], Any], kind: str, tmp_path: Path, seeds: Iterable[int]) -> None:
    """Run it once per seed, with kills, and check what came of it."""
    rejects = frozenset({15}) if kind == "seeks" else frozenset()
    for seed in seeds:
        outside = Outside(kind, 60, rejects)
        room: dict[str, Any] = (
            {"max_spout_pending": 100} if make is in_sessions else {}
        )  # what is open must not fill the limit
        world = World(make, outside, tmp_path / str(seed), seed, kills=seed % 6, full=0.2 * (seed % 3 == 1), **room)
        world.to_the_end()
        has_state = make in {counting, listing}
        newest = {row.key: row.count for row in outside.rows} if has_state else None
        try:
            world.check(BAD | rejects, newest)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize(
    "seeds", [range(6), pytest.param(range(6, 100), marks=pytest.mark.nightly)], ids=["few", "more"]
)
@pytest.mark.parametrize("kind", ["seeks", "redelivers"])
def test_nothing_is_lost_where_components_have_other_names_after_a_kill(
    kind: str, seeds: range, tmp_path: Path
) -> None:
    renamed = 0
    for seed in seeds:
        world = with_other_names(Outside(kind, 300), tmp_path / str(seed), seed)
        world.to_the_end()
        world.check(BAD, {row.key: row.count for row in world.outside.rows}, again=kind == "redelivers")
        renamed += world.renamed
    assert renamed >= len(seeds) / 2


def with_other_names(outside: Outside, folder: Path, seed: int) -> World:
    """Its processes count under a name of their own each."""

    def make(t: Topology, source: Any) -> Any:
        return counting(t, source, world.called("count"))

    world = World(make, outside, folder, seed, kills=8, renames=True)
    return world


@pytest.mark.parametrize("kind", ["seeks", "redelivers"])
def test_ordered_inputs_keep_their_order_over_kills(kind: str, tmp_path: Path) -> None:
    for seed in range(5):
        succeeded: dict[int, list[int]] = {}

        def ordered(t: Topology, source: Any, succeeded: dict[int, list[int]] = succeeded) -> Any:
            tries: dict[int, int] = {}

            @bolt
            def note(number: Number) -> Summed:
                tries[number.number] = tries.get(number.number, 0) + 1
                if number.number % 7 == 3 and tries[number.number] < 3:
                    raise ValueError("at first")
                known = succeeded.setdefault(number.key, [])
                if number.number not in known:
                    known.append(number.number)
                return Summed(number.key, 1, [number.number])

            return t.bolt("note", note, parallelism=2).fields(source, "key", ordered=True)

        outside = Outside(kind, 60)
        world = World(ordered, outside, tmp_path / str(seed), seed, kills=2 + seed % 4, max_spout_pending=4)
        world.to_the_end()
        assert set(outside.written()) == set(range(60))
        for numbers in succeeded.values():
            assert numbers == sorted(numbers), f"seed {seed}"
