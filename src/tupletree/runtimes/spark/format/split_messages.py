"""Split messages: the rows of splits, which executors read. The driver has numbers for them, not objects.

Owns their root ids, and getting one of them back. Row i of an epoch has the root `root_ids(key + i)`: a bijection of 64
bits, so that the rows of an epoch never share a root, no row has root 0, and a root gives its row. Which keys
are free is known to `Accounts`, which draws them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice
from typing import Any, ClassVar

import numpy as np

from tupletree.errors import CheckpointError, InternalError
from tupletree.ids import MessageId
from tupletree.runtimes.spark.format.entries import EpochHeader
from tupletree.runtimes.spark.format.epoch_messages import ELSEWHERE, I64, U64, EpochMessage, EpochMessages
from tupletree.runtimes.spark.format.rows import keys_of, root_ids
from tupletree.runtimes.spark.format.wire import PlannedSplit, first_number
from tupletree.topology.components import Reject
from tupletree.topology.model import TopologySpec
from tupletree.topology.splits import SplitSpout, read_split
from tupletree.tracking.ledger import Entries

ReaderOf = Callable[[str], SplitSpout[Any]]
"""Component → a spout that reads. Raises CheckpointError if executors do not read it any more."""


class SplitMessages(EpochMessages):
    """The tracked rows of one epoch's splits, whose keys are consecutive over all splits.

    Args:
        splits: of the epoch.
        reader_of: reads rows again; None where nobody asks for values.
        epoch, time_s, logged_s: its number, its time, and when it was logged by the run's clock.
    """

    is_counted: ClassVar[bool] = True

    def __init__(
        self,
        splits: Iterable[PlannedSplit],
        reader_of: ReaderOf | None = None,
        *,
        epoch: int = 0,
        time_s: float = 0.0,
        logged_s: float = 0.0,
    ) -> None:
        self._all = [*splits]
        self._splits: Sequence[PlannedSplit] = [one for one in self._all if one.key]
        self._starts = [one.key for one in self._splits]
        self._reader_of = reader_of
        self._epoch = epoch
        self._time_s = time_s
        self.logged_s = logged_s
        last = self._splits[-1] if self._splits else None
        self.keys = range(0) if last is None else range(self._starts[0], last.key + last.split.rows)
        self.roots = root_ids(self.keys.start, len(self.keys))

    @classmethod
    def of_log(cls, header: EpochHeader, reader_of: ReaderOf | None = None) -> SplitMessages:
        """Those of an epoch's log."""
        return cls(header.splits, reader_of, epoch=header.epoch, time_s=header.time_s, logged_s=header.ran_s)

    @property
    def openings(self) -> Entries:
        """See `EpochMessages`: the stage that reads them makes their first edges, and enters these."""
        return self.roots, np.zeros(len(self.roots), np.uint64)

    def has_work(self, left_out: Collection[int]) -> bool:
        return len(self._splits) < len(self._all) or len(self.among(left_out)) < len(self.roots)

    def worked(self, left_out: Collection[int]) -> list[int]:
        without = np.array(self.among(left_out), dtype=np.uint64)
        found: list[int] = (self.roots[~np.isin(self.roots, without)] if len(without) else self.roots).tolist()
        return found

    def check_read(self, read: Collection[int]) -> None:
        missed = [one for one in self._all if one.ordinal not in read]
        if missed:
            raise InternalError(
                "a piece of a source was not read",
                where=missed[0].component,
                got=f"{len(read)} pieces of {len(self._all)}",
            )

    @property
    def by_task(self) -> Mapping[int, int]:
        counts: Counter[int] = Counter()
        for planned in self._splits:
            counts[planned.task] += planned.split.rows
        return counts

    def __iter__(self) -> Iterator[EpochMessage]:
        for planned in self._splits:
            for index, root in enumerate(root_ids(planned.key, planned.split.rows).tolist()):
                yield self._message(planned, index, root)

    def among(self, roots: Collection[int]) -> list[int]:
        if not self.keys or not roots:
            return []
        keys = keys_of(roots)
        theirs = (keys >= np.uint64(self.keys.start)) & (keys < np.uint64(self.keys.stop))
        return [*compress(roots, theirs.tolist())]

    def id_of(self, root: int) -> MessageId | None:
        if not self.among((root,)):
            return None
        planned, index = self._place_of(root)
        return planned.split.message_id(index)

    def places_of(self, roots: U64) -> tuple[I64, I64]:
        tasks, numbers = np.full(len(roots), ELSEWHERE, np.int64), np.zeros(len(roots), np.int64)
        if not self.keys or not len(roots):
            return tasks, numbers
        keys = keys_of(roots)
        here = (keys >= np.uint64(self.keys.start)) & (keys < np.uint64(self.keys.stop))
        starts = np.array(self._starts, dtype=np.uint64)
        at = np.searchsorted(starts, keys[here], side="right") - 1
        tasks[here] = np.array([one.task for one in self._splits], dtype=np.int64)[at]
        numbers[here] = first_number(self._epoch) + (keys[here] - np.uint64(self.keys.start)).astype(np.int64)
        return tasks, numbers

    def find(self, roots: Collection[int]) -> list[tuple[EpochMessage, Any]]:
        """See `EpochMessages`. Of a row that the source rejects the value is its payload."""
        assert self._reader_of is not None or not roots, "made without a way to read"
        wanted: dict[int, dict[int, int]] = {}
        for root in roots:
            planned, index = self._place_of(root)
            wanted.setdefault(planned.ordinal, {})[index] = root
        found: list[tuple[EpochMessage, Any]] = []
        for planned in self._splits:
            indexes = wanted.get(planned.ordinal)
            if indexes and self._reader_of is not None:
                rows = read_split(self._reader_of(planned.component), planned.split)
                for index, row in enumerate(islice(rows, max(indexes) + 1)):
                    if index in indexes:
                        value = row.payload if isinstance(row, Reject) else row
                        found.append((self._message(planned, index, indexes[index]), value))
        return found

    def check_readable(self) -> None:
        assert self._reader_of is not None, "made without a way to read"
        for component in {one.component for one in self._all}:
            self._reader_of(component)

    def _message(self, planned: PlannedSplit, index: int, root: int) -> EpochMessage:
        made = first_number(self._epoch) + planned.key - self.keys.start + index
        return EpochMessage(planned.task, planned.split.message_id(index), root, 1, self._time_s, made)

    def _place_of(self, root: int) -> tuple[PlannedSplit, int]:
        key = int(keys_of([root])[0])
        planned = self._splits[bisect_right(self._starts, key) - 1]
        return planned, key - planned.key


def readers_of(spec: TopologySpec) -> ReaderOf:
    """Finds the spouts of a topology that read."""

    def reader_of(component: str) -> SplitSpout[Any]:
        body = spec.components[component].body
        if not isinstance(body, SplitSpout):
            raise CheckpointError(
                "messages are open that executors read, and executors cannot read this spout",
                where=f"spout {component!r}",
                got=type(body).__qualname__,
                expected="a SplitSpout",
                next_step="start with the old spout, let it settle what is open, and change it then",
            )
        return body

    return reader_of
