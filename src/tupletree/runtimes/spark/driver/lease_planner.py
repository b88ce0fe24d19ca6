"""The lease planner: has executors take messages from brokers, and enters what they took in an epoch.

Owns how many messages each of them takes, and which partition reads them. Their values never come here: a message that
was taken has a `SegmentRow` in the place of its value until its epoch is cut.
"""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import msgspec

from tupletree.clock import Clock
from tupletree.config import Options
from tupletree.errors import ConnectorError
from tupletree.routing.plan import Plan
from tupletree.runtimes.crash_points import crash_point
from tupletree.runtimes.spark.driver.epoch_frames import SpoutTask
from tupletree.runtimes.spark.format.entries import EpochHeader
from tupletree.runtimes.spark.format.segments import (
    PlannedSegment,
    SegmentReader,
    SegmentRow,
    Taken,
    TakeRequest,
    epoch_of_segment,
    read_segment,
)
from tupletree.runtimes.spark.format.statedir import StateDirectory
from tupletree.runtimes.spark.format.wire import Unreadable
from tupletree.runtimes.spark.settle.epoch_runs import BROKEN_EXECUTIONS
from tupletree.runtimes.spark.settle.outages import outage_in
from tupletree.runtimes.spark.settle.plan_runner import PlanRunner
from tupletree.runtimes.spark.settle.publish import remove
from tupletree.runtimes.spark.settle.shutdown import first_line, is_final
from tupletree.topology.components import Emit, Reject
from tupletree.topology.splits import LeaseSpout

logger = logging.getLogger("tupletree.spark")

CLOSE_S = 5.0

EMPTY_PAUSES = 10
"""So many idle waits are between two takes of which the first found nothing."""

LEAST_TAKEN = 32
"""So many messages at least are worth a task of their own."""


@dataclass
class TakenRows:
    """Those messages of one segment that an epoch has: as columns. `size_bytes`: of all of them."""

    spout: SpoutTask
    file: str
    rows: array[int] = field(default_factory=lambda: array("I"))
    roots: array[int] = field(default_factory=lambda: array("Q"))
    made: array[int] = field(default_factory=lambda: array("q"))
    size_bytes: int = 0


class LeasePlanner:
    """See the module docstring.

    Args:
        plan: the topology laid out.
        options: of the run.
        directory: of the run.
        clock: of the run.
        runner: has executors take.
        executor: where that is waited for: the loop goes on meanwhile.

    Attributes:
        segments: reads values again.
    """

    def __init__(
        self,
        plan: Plan,
        options: Options,
        directory: StateDirectory,
        clock: Clock,
        runner: PlanRunner,
        executor: Executor,
    ) -> None:
        self.segments = SegmentReader(directory.segments, plan.spec)
        self._plan = plan
        self._directory = directory
        self._clock = clock
        self._runner = runner
        self._executor = executor
        self._pending: dict[int, tuple[Future[list[Taken]], int]] = {}
        self._is_tracked = options.acker_tasks > 0
        self._idle_s = options.spout_idle_wait_ms / 1000.0
        self._next_s: dict[int, float] = {}
        self._taken = 0
        self._lost = 0  # jobs in a row

    def pull(
        self, spout: SpoutTask, source: LeaseSpout[Any], epoch: int, room: int, max_bytes: int
    ) -> list[Emit[Any] | Reject] | None:
        """Have messages taken, if there are any and none are being taken; then as `hear`, which is to be called before.

        Args:
            spout: the task.
            source: its object.
            epoch: the next one that is cut.
            room: how many messages at the most.
            max_bytes: about how many bytes.

        Raises:
            EndOfInput: there will be no more.
            ConnectorError: the source is not available.
        """
        number, now_s = spout.number, self._clock.monotonic()
        if number in self._pending or now_s < self._next_s.get(number, now_s):
            return None
        count = min(room, source.plan(room))
        if count <= 0:
            self._next_s[number] = now_s + self._idle_s
            return []
        crash_point("take.before")
        requests = self._requests(spout, epoch, count, max_bytes)
        self._pending[number] = self._executor.submit(self._runner.take, requests), epoch
        return self.hear(spout, source)

    def hear(self, spout: SpoutTask, source: LeaseSpout[Any]) -> list[Emit[Any] | Reject] | None:
        """What was taken, with a `SegmentRow` for each value; None: that is not known yet.

        The source keeps the leases of what it has heard of, so it is called also while nothing is wanted.

        Raises ConnectorError: the source, or the disk of the segments, is not available.
        """
        number = spout.number
        if number not in self._pending or not self._pending[number][0].done():
            return None
        taking, _ = self._pending.pop(number)
        idle_s = EMPTY_PAUSES * self._idle_s
        try:
            taken = taking.result()
        except Exception as error:  # noqa: BLE001 - whatever Spark raises; what no other job can fix is raised again
            self._note_lost(spout.name, error)
            self._next_s[number] = self._clock.monotonic() + idle_s
            return None
        self._lost = 0
        crash_point("take.after")
        given = self._accept(source, taken)
        if not any(one.leases for one in taken):
            # Where a broker counts what others hold among what is ready, nothing is found again and again.
            self._next_s[number] = self._clock.monotonic() + idle_s
        return given

    def _note_lost(self, name: str, error: Exception) -> None:
        """A job that took messages failed: what it took is delivered again. Raises what no other job can fix."""
        outage = outage_in(error)
        if outage is not None:
            raise ConnectorError("executors cannot take messages now", where=f"spout {name!r}", got=outage) from error
        self._lost += 1
        if self._lost >= BROKEN_EXECUTIONS or is_final(error):
            raise error
        logger.warning("%s: Spark could not take messages, so it is tried again: %s", name, first_line(error))

    def oldest(self, spouts: Iterable[SpoutTask]) -> float:
        """The oldest epoch that is in the name of a segment which no log names yet, but one may; else infinite."""
        pending = [epoch for _, epoch in self._pending.values()]
        sources = [one for one in spouts if isinstance(one.spout, LeaseSpout)]
        waiting = [given.value for one in sources for given in one.waiting if isinstance(given, Emit)]
        values = [value for one in sources for value in one.values]
        files = {value.file for value in values + waiting if type(value) is SegmentRow}
        return min([*pending, *map(epoch_of_segment, files)], default=math.inf)

    def close(self, sources: Mapping[int, LeaseSpout[Any]]) -> None:
        """Note what is being taken, so that the sources, by their tasks' numbers, give it back."""
        pending, self._pending = self._pending, {}
        for number, (taking, _) in pending.items():
            try:
                for one in taking.result(CLOSE_S):
                    if one.leases:
                        sources[number].accept(one.leases)
            except Exception as error:  # noqa: BLE001 - a job that failed, or still waits; the leases end by themselves
                self._runner.cancel()  # else it would take messages for nobody, some time
                logger.warning(
                    "what executors were about to take comes back when its leases end: %s", first_line(error)
                )
        self._executor.shutdown(wait=False)

    def _requests(self, spout: SpoutTask, epoch: int, count: int, max_bytes: int) -> list[TakeRequest]:
        width = min(self._plan.readers(spout.name), -(-count // LEAST_TAKEN))
        self._taken += 1
        directory = self._directory
        name = f"{directory.run_id[:8]}-{directory.generation:06d}-{epoch:08d}-{self._taken % 1000:03d}"
        bounds = [0, *accumulate(count // width + (at < count % width) for at in range(width))]
        return [
            TakeRequest(
                spout.name,
                bounds[at + 1] - bounds[at],
                max(1, max_bytes // width),
                str(directory.segments),
                f"{name}-{spout.number}-{at}",
            )
            for at in range(width)
        ]

    def _accept(self, source: LeaseSpout[Any], taken: Iterable[Taken]) -> list[Emit[Any] | Reject]:
        taken = [*taken]
        given: list[Emit[Any] | Reject] = []
        for one in taken:
            if not one.leases:
                continue
            places = source.accept(one.leases)
            if not self._is_tracked:
                given += self._read(source, one, places)
                continue
            lengths = array("I", one.lengths)
            given += [Emit(SegmentRow(one.file, at, max(1, lengths[at])), one.leases[at].message_id) for at in places]
        faults = [one.fault for one in taken if one.fault]
        if faults and not given:
            raise msgspec.msgpack.decode(faults[0], type=Unreadable).error()
        return given

    def _read(self, source: LeaseSpout[Any], taken: Taken, places: Sequence[int]) -> list[Emit[Any] | Reject]:
        """The values themselves, where nothing is tracked: no log would name them."""
        path = self._directory.segments / taken.file
        read = [source.read(bytes(message)) for message in read_segment(path, places)]
        remove([path])
        return [
            value if isinstance(value, Reject) else Emit(value, taken.leases[at].message_id)
            for at, value in zip(places, read, strict=True)
        ]


def rows_of(spout: SpoutTask) -> list[TakenRows]:
    """What a spout task has in the buffer that is in segments."""
    if not spout.taken_bytes:
        return []
    found: dict[str, TakenRows] = {}
    made = spout.made or [0] * len(spout.roots)
    for value, root, number in zip(spout.values, spout.roots, made):
        if type(value) is SegmentRow:
            rows = found.get(value.file)
            if rows is None:
                rows = found[value.file] = TakenRows(spout, value.file)
            rows.rows.append(value.row)
            rows.roots.append(root)
            if spout.made:
                rows.made.append(number)
            rows.size_bytes += value.size_bytes
    return [*found.values()]


def place_taken(taken: Iterable[TakenRows], header: EpochHeader, plan: Plan) -> None:
    """Enter these in an epoch's header: each segment goes where least is to be read so far."""
    loads: dict[str, list[int]] = {}
    for ordinal, one in enumerate(taken, len(header.splits)):
        name = one.spout.name
        load = loads.setdefault(name, [0] * plan.readers(name))
        place = load.index(min(load))
        load[place] += one.size_bytes
        header.segments.append(
            PlannedSegment(
                name,
                one.spout.number,
                place,
                one.file,
                ordinal,
                one.rows.tobytes(),
                one.roots.tobytes(),
                one.made.tobytes(),
            )
        )
