"""Frames that are too long for Spark are split, and nothing of them is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks.streams import Line
from tupletree import Topology, bolt
from tupletree.config import Options
from tupletree.data.frames import Frame, Root
from tupletree.routing.plan import Plan
from tupletree.runtimes.spark.driver.epoch_frames import EpochFrameMaker, EpochFrames, SpoutTask
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.program import codecs_of
from tupletree.sources import items


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8).filter(lambda widths: sum(widths) > 1))
def test_halves_of_a_frame_have_every_tuple_with_its_root(widths: list[int]) -> None:
    ends = [sum(widths[: count + 1]) for count in range(len(widths))]
    roots: list[Root] = [(number, 99) if number % 2 else number for number in range(len(widths))]
    frame = Frame(3, "c", "s", list(range(ends[-1])), roots, ends, 7)
    owners = [(root, value) for root, values in frame.segments() for value in values]
    first, second = wire.halves(frame)
    assert first.size == frame.size // 2
    assert [(root, value) for half in (first, second) for root, values in half.segments() for value in values] == owners
    assert {(half.task, half.component, half.stream) for half in (first, second)} == {(3, "c", "s")}


@given(st.integers(0, 99), st.integers(0, 11), st.binary(max_size=40), st.binary(max_size=40))
def test_a_row_is_the_same_after_it_was_bytes(place: int, kind: int, head: bytes, body: bytes) -> None:
    assert wire.unpack_row(wire.pack_row((place, kind, head, memoryview(body)))) == (place, kind, head, body)


@bolt
def read(line: Line) -> None: ...


def test_what_a_spout_gave_goes_in_frames_that_are_short_enough_each_with_an_edge_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    t = Topology("long")
    t.bolt("read", read).shuffle(t.spout("lines", items([Line("")])))
    plan = Plan.of(t.build(), Options(), partitions=1)
    (task,) = plan.tasks_of("lines")
    ((stream, _),) = plan.spec.components["lines"].outputs.items()
    values = [Line(str(number) * 1_000) for number in range(9)]
    spout = SpoutTask(task, "lines", stream, items([Line("")]), roots=[*range(1, 10)], values=values)
    monkeypatch.setattr(wire, "FRAME_BYTES", 3_500)
    made = EpochFrames()
    assert EpochFrameMaker(plan, [spout]).add_frames(0, spout, {}, made) == []

    codec = codecs_of(plan)["lines", stream]
    frames = [wire.decode_frame(wire.decode_head(head), body, codec) for _, _, head, body in made.rows]
    assert len(frames) > 2
    assert all(len(row[3]) <= 3_500 or frame.size == 1 for row, frame in zip(made.rows, frames, strict=True))
    assert [pair for frame in frames for pair in zip(frame.roots, frame.values, strict=True)] == [
        *zip(range(1, 10), values, strict=True)
    ]
    assert made.edges == [frame.id for frame in frames]
    assert len(set(made.edges)) == len(frames)
