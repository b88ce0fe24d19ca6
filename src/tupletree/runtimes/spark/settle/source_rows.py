"""Rows: the messages of an epoch that executors read. The driver has numbers for them, not objects.

Owns their root ids, and getting one of them back. Row i of an epoch has the root `root_ids(key + i)`: a bijection of 64
bits, so that the rows of an epoch never share a root, no row has root 0, and a root gives its row. Which keys
are free is known to `Accounts`, which draws them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import compress, islice
from typing import Any

import numpy as np

from tupletree.runtimes.spark.format.rows import keys_of, root_ids
from tupletree.runtimes.spark.format.wire import PlannedSplit, first_number
from tupletree.topology.components import MessageId, Reject
from tupletree.topology.splits import SplitSpout, read_split
from tupletree.tracking.ledger import Entries

__all__ = ["KEY_BITS", "NO_ROWS", "Rows"]


KEY_BITS = 63
"""Bits of a key: few enough that no epoch's rows wrap around to 0."""


class Rows:
    """The tracked rows of one epoch's splits, whose keys are consecutive over all splits.

    Attributes:
        roots: of all of them, in order.
        logged_s: when the epoch was logged, by the run's clock.
    """

    def __init__(self, splits: Iterable[PlannedSplit], logged_s: float = 0.0) -> None:
        self.logged_s = logged_s
        self._splits: Sequence[PlannedSplit] = [one for one in splits if one.key]
        self._first = self._splits[0].key if self._splits else 0
        self._starts = [one.key for one in self._splits]
        self._end = self._splits[-1].key + self._splits[-1].split.rows if self._splits else 0
        self.roots = root_ids(self._first, self._end - self._first)

    def __len__(self) -> int:
        return len(self.roots)

    def opened(self, others: Entries) -> Entries:
        """Add the openings of these rows: the stage that reads them makes their first edges and enters these."""
        if not len(self):
            return others
        return np.concatenate([others[0], self.roots]), np.concatenate([others[1], np.zeros(len(self), np.uint64)])

    def among(self, roots: Collection[int]) -> list[int]:
        """Those of these roots that are rows here."""
        if not len(self) or not roots:
            return []
        keys = keys_of(roots)
        theirs = (keys >= np.uint64(self._first)) & (keys < np.uint64(self._end))
        return [*compress(roots, theirs.tolist())]

    def overlaps(self, key: int, count: int) -> bool:
        """Whether any of these keys belongs to a row here."""
        return bool(len(self)) and key < self._end and key + count > self._first

    def named(self, root: int) -> tuple[int, MessageId]:
        """The spout task and the message id of a row."""
        planned, index = self._place_of(root)
        return planned.task, planned.split.message_id(index)

    def made_of(self, root: int, epoch: int) -> int:
        """The number of a row of this epoch in the order of making."""
        planned, index = self._place_of(root)
        return first_number(epoch, planned.ordinal) + index

    def read(self, roots: Collection[int], spout_of: Callable[[str], SplitSpout[Any]]) -> dict[int, Any]:
        """The values of these rows, read again; of a rejected one, its payload.

        Args:
            roots: of rows here.
            spout_of: component → a spout that reads.

        Raises:
            SourceChangedError, ConnectorError: see `read_split`.
        """
        wanted: dict[int, dict[int, int]] = {}
        for root in roots:
            planned, index = self._place_of(root)
            wanted.setdefault(planned.ordinal, {})[index] = root
        found: dict[int, Any] = {}
        for planned in self._splits:
            indexes = wanted.get(planned.ordinal)
            if indexes:
                rows = read_split(spout_of(planned.component), planned.split)
                for index, row in enumerate(islice(rows, max(indexes) + 1)):
                    if index in indexes:
                        found[indexes[index]] = row.payload if isinstance(row, Reject) else row
        return found

    def _place_of(self, root: int) -> tuple[PlannedSplit, int]:
        key = int(keys_of([root])[0])
        planned = self._splits[bisect_right(self._starts, key) - 1]
        return planned, key - planned.key


NO_ROWS = Rows(())
