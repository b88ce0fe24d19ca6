"""Scenarios of Arrow bolts: rows that came of several or of none, bad rows, keyed state, tuples before and behind."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pyarrow as pa

from tupletree.bolts import count_by_key
from tupletree.errors import PermanentError
from tupletree.testing.conformance.messages import KeyedItem, numbered
from tupletree.testing.conformance.observed import Observed
from tupletree.testing.conformance.scenario import Bench, Scenario
from tupletree.topology.components import Anchored, KeyedBatch
from tupletree.topology.decorators import arrow_bolt, bolt

COUNT = 60
BAD = frozenset({7, 23})


class Total(msgspec.Struct, frozen=True):
    """How often a key came so far."""

    key: int
    count: int


@arrow_bolt(inputs=KeyedItem, outputs=KeyedItem)
def repeat(batch: pa.RecordBatch) -> Anchored:
    """Each row as often as its number's remainder by 3 says; bad numbers fail."""
    numbers = np.asarray(batch["number"])
    bad = BAD.intersection(numbers.tolist())
    if bad:
        raise PermanentError(f"bad: {sorted(bad)}")
    rows = np.repeat(np.arange(batch.num_rows), numbers % 3)
    return Anchored(batch.take(pa.array(rows, pa.int64())), rows)


@arrow_bolt(inputs=KeyedItem, outputs=Total, state=int)
def count_columns(batch: pa.RecordBatch, totals: KeyedBatch[int]) -> Anchored:
    """One row per key."""
    totals.values = [total + int(more) for total, more in zip(totals.values, np.bincount(totals.codes))]
    return totals.anchored(
        pa.RecordBatch.from_pydict({"key": batch["key"].take(totals.first), "count": pa.array(totals.values)})
    )


@bolt
def pass_on(item: KeyedItem) -> KeyedItem:
    """Tuple by tuple."""
    return item


class Columns(Scenario):
    """Arrow bolts are bolts: anchored rows, failures one by one, keyed state, in a row with bolts on tuples."""

    name = "columns"

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        items = [KeyedItem(number % 5, number) for number in range(COUNT)]
        source = bench.spout("source", KeyedItem, numbered(items))
        repeated = bench.bolt("repeat", repeat, parallelism=2).shuffle(source)
        counted = bench.bolt("count", count_columns, parallelism=3).fields(repeated, "key")
        bench.sink("count-out").shuffle(counted)
        passed = bench.bolt("pass", pass_on, parallelism=2).shuffle(repeated)
        library = bench.bolt("library", count_by_key(KeyedItem, "key", into=Total), parallelism=2).fields(passed, "key")
        bench.sink("library-out").shuffle(library)
        bench.sink("items-out").shuffle(passed)

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        good = [number for number in range(COUNT) if number not in BAD]
        seen.expect_verdicts("source", acked=good, dead=sorted(BAD))
        items = Counter({number: number % 3 for number in good if number % 3})
        seen.expect_equal(seen.tally("items-out", "number"), items, "rows of each message")
        totals = Counter(number % 5 for number in items.elements())
        for sink in ("count-out", "library-out"):
            largest: dict[int, int] = {}
            for row in seen.rows(sink):
                largest[row["key"]] = max(largest.get(row["key"], 0), row["count"])
            seen.expect_equal(largest, dict(totals), f"counts of {sink}")


COLUMNS: tuple[Scenario, ...] = (Columns(),)
