"""A stage's ledger leaves out what cancels out, and nothing else. Needs no Spark."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tupletree.data.codec import ArrowCodec
from tupletree.data.columns import Anchors, ArrowColumns
from tupletree.data.frames import ColumnFrame, Frame, Root, done_roots, roots_of, without
from tupletree.runtimes.spark.format.wire import frame_roots
from tupletree.runtimes.spark.worker.edges import Edges
from tupletree.topology.streams import Schema


class Number(msgspec.Struct, frozen=True):
    number: int


CODEC = ArrowCodec.of(Schema.of(Number))
ROOTS: st.SearchStrategy[Root] = st.integers(0, 5) | st.sampled_from([(1, 2), (2, 3)])
LAYOUTS = st.lists(st.tuples(ROOTS, st.integers(1, 3)), min_size=1, max_size=4)


def frame_of(edge: int, layout: list[tuple[Root, int]], as_columns: bool) -> Frame:
    roots: list[Root] = [root for root, _ in layout]
    ends: list[int] = np.cumsum([size for _, size in layout]).tolist()
    values = [Number(number) for number in range(ends[-1])]
    if not as_columns:
        return Frame(1, "a", "b", values, roots, ends, edge)
    return ColumnFrame(1, "a", "b", ArrowColumns(CODEC.to_batch(values), CODEC, Anchors.of(roots, ends)), edge)


def add(ledger: dict[int, int], edge: int, roots: Any) -> None:
    for root in {one for entry in roots for one in roots_of(entry)}:
        ledger[root] = ledger.get(root, 0) ^ edge


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            LAYOUTS,
            st.booleans(),
            st.sampled_from(["from elsewhere", "goes on", "stays"]),
            st.sampled_from(["done by a bolt", "taken by a sink", "left"]),
            st.sets(st.integers(1, 5), max_size=2),
        ),
        max_size=6,
    )
)
def test_what_is_left_is_what_all_edges_would_have_left(frames: list[Any]) -> None:
    edges, ledger = Edges(), dict[int, int]()
    for number, (layout, as_columns, way, end, failed) in enumerate(frames):
        frame = frame_of(2**63 + 7919 * number, layout, as_columns)
        if way != "from elsewhere":
            if way == "stays":
                edges.born(frame)
            else:
                edges.sent(frame.id, frame_roots(frame))
            add(ledger, frame.id, frame.roots)
        if way == "goes on" or end == "left":
            continue
        kept = without(frame, failed)
        if end == "taken by a sink":
            edges.taken(kept)
            add(ledger, kept.id, kept.roots)
        else:
            done = done_roots(frame, dict.fromkeys(failed))
            edges.ended(frame.id, done)
            add(ledger, frame.id, done)
    entries = edges.entries()
    found = dict(zip(entries[0].tolist(), entries[1].tolist(), strict=True)) if entries is not None else {}
    assert {root: xor for root, xor in found.items() if xor} == {root: xor for root, xor in ledger.items() if xor}


def test_an_edge_that_was_born_and_ended_here_is_not_looked_at() -> None:
    for as_columns in (False, True):
        edges = Edges()
        frame = frame_of(99, [(1, 2), (2, 1)], as_columns)
        edges.born(frame)
        edges.taken(frame)
        assert edges.entries() is None
    edges = Edges()
    frame = frame_of(99, [(1, 2), (2, 1)], as_columns=True)
    edges.born(frame)
    edges.ended(frame.id, done_roots(frame, {}))
    assert edges.entries() is None
