"""The split planner: asks sources that executors read for their next pieces, and places these in an epoch.

Owns how many rows a piece may have and which partition reads it. The values of these rows never come here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tupletree.config import Options
from tupletree.errors import UnusableDataError
from tupletree.routing.plan import Plan
from tupletree.runtimes.spark.driver.epoch_frames import SpoutTask
from tupletree.runtimes.spark.format.entries import EpochHeader
from tupletree.runtimes.spark.format.wire import PlannedSplit
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.texts import counted
from tupletree.topology.splits import SplitSpout, storable_split


class SplitPlanner:
    """See the module docstring."""

    def __init__(self, plan: Plan, options: Options, accounts: Accounts) -> None:
        self._plan = plan
        self._accounts = accounts
        self._tracked = options.acker_tasks > 0
        self._max_bytes = options.epoch_max_bytes

    def plan(self, spout: SpoutTask, source: SplitSpout[Any], epoch_rows: int, room: int) -> bool:
        """Ask for the next pieces, each of one reader's share of an epoch; whether there are any."""
        width = self._plan.readers(spout.name)
        room = min(-(-epoch_rows // width), room)
        splits = source.plan(room, max(1, self._max_bytes // width)) or ()
        count = sum(split.rows for split in splits)
        if count > room or any(split.rows < 1 for split in splits):
            raise UnusableDataError(
                "a spout planned more, or less, than it was asked for",
                where=spout.name,
                got=f"pieces of {', '.join(str(split.rows) for split in splits)} rows",
                expected=f"at most {counted(room, 'row')}, and at least one in each piece",
            )
        spout.planned += splits
        if splits:
            self._accounts.ended.discard(spout.number)
        if self._tracked:
            with self._accounts.lock:
                self._accounts.count({spout.number: count})
        return bool(splits)

    def place(self, spouts: Iterable[SpoutTask], header: EpochHeader) -> None:
        """Enter everything planned in an epoch's header: each piece goes where least is to be read so far."""
        planned = [(spout, split) for spout in spouts for split in spout.planned]
        count = sum(split.rows for _, split in planned)
        key = 0
        if self._tracked and planned:
            with self._accounts.lock:
                key = self._accounts.draw_key(count)
            header.fresh += count
        else:
            header.untracked += count
        loads = {spout.name: [0] * self._plan.readers(spout.name) for spout, _ in planned}
        for ordinal, (spout, split) in enumerate(planned):
            load = loads[spout.name]
            place = load.index(min(load))
            load[place] += split.rows
            header.splits.append(PlannedSplit(spout.name, spout.number, place, key, storable_split(split), ordinal))
            key += split.rows if key else 0
            spout.planned = []
