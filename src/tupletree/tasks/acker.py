"""The acker task: its share of the trees, and the verdicts that go to the spout tasks."""

from __future__ import annotations

from collections.abc import Sequence

from tupletree.config import Options
from tupletree.errors import InternalError
from tupletree.routing.plan import Plan, Task
from tupletree.tasks.machine import Machine
from tupletree.tasks.mail import DropRoots, HighWater, Mail, Now, OrphanQuery, Track, TreeVerdicts
from tupletree.tasks.outbox import Outbox
from tupletree.tasks.pending_limit import HIGHEST, PendingLimit
from tupletree.tasks.spout import DEFAULT_MAX_PENDING
from tupletree.topology.limits import max_pending
from tupletree.tracking.acker import Acker, AckerCounters, Delta, Opening, TreeFailure


class AckerMachine(Machine):
    """Serves the roots whose number modulo the number of ackers is its index.

    Args:
        task: the acker task.
        timeout_s, buckets, high_water: see `Acker`.
        spout_tasks: those that are told of high water.
        sink_tasks: those that are told of acks of unknown trees: rows of an attempt that was over before they came.
        now_s: monotonic time of the start.
    """

    def __init__(
        self,
        task: Task,
        *,
        timeout_s: float | None,
        buckets: int,
        high_water: int | None,
        spout_tasks: Sequence[int],
        sink_tasks: Sequence[int],
        now_s: float,
    ) -> None:
        super().__init__(task)
        self._acker = Acker(timeout_s=timeout_s, buckets=buckets, high_water=high_water, now_s=now_s)
        self._spout_tasks = tuple(spout_tasks)
        self._sink_tasks = tuple(sink_tasks)
        self._above = False
        self._waiting: list[Opening] = []

    @classmethod
    def of(
        cls,
        plan: Plan,
        task: Task,
        options: Options,
        *,
        spout_tasks: Sequence[int],
        sink_tasks: Sequence[int],
        now_s: float,
    ) -> AckerMachine:
        """One by the options of a run."""
        return cls(
            task,
            timeout_s=options.message_timeout_s,
            buckets=options.timeout_buckets,
            # Each acker may hold all of them: messages go to ackers in turn, but are not spread evenly at every moment.
            high_water=int(options.high_water_factor * _most_pending(plan, options)),
            spout_tasks=spout_tasks,
            sink_tasks=sink_tasks,
            now_s=now_s,
        )

    @property
    def counters(self) -> AckerCounters:
        """Totals of its trees."""
        return self._acker.counters

    @property
    def open_count(self) -> int:
        """Trees without a verdict."""
        return self._acker.open_count + self._waiting_count

    @property
    def size(self) -> int:
        """The number of entries that take memory."""
        return self._acker.size + self._waiting_count

    @property
    def _waiting_count(self) -> int:
        return sum(len(opening[2]) for opening in self._waiting)

    def receive(self, mail: Sequence[Mail], now: Now, out: Outbox) -> None:
        """Apply `Track`s, all of them as one batch, then answer orphan queries.

        Openings alone wait for the next delta of any tree: a tree that ends with it never needs an entry.
        """
        openings = self._waiting
        deltas: list[Delta] = []
        failures: list[TreeFailure] = []
        extended: list[int] = []
        asked: list[OrphanQuery] = []
        for track in mail:
            if isinstance(track, OrphanQuery):
                asked.append(track)
                continue
            if not isinstance(track, Track):
                raise InternalError("an acker got mail that is not for ackers", got=type(track).__name__)
            openings += track.openings
            deltas += track.deltas
            failures += track.failures
            extended += track.extended
        if (
            deltas
            or failures
            or extended
            or asked
            or not all([opening[1] for opening in openings])  # noqa: C419 - it is hot
            or self._acker.awaits_openings
        ):
            self._apply(deltas, failures, now, out)
        for root in extended:
            self._acker.extend(root, self._time_s(now))
        for one in asked:
            gone = self._acker.unknown_among(one.roots)
            if gone:
                out.mail.append((one.task, DropRoots(gone)))

    def _apply(self, deltas: list[Delta], failures: list[TreeFailure], now: Now, out: Outbox) -> None:
        openings, self._waiting = self._waiting, []
        decided = self._acker.apply(openings, deltas, failures, self._time_s(now))
        if decided.completed or decided.failed:
            by_spout: dict[int, TreeVerdicts] = {}
            for spout_task, roots in decided.completed:
                by_spout.setdefault(spout_task, TreeVerdicts()).completed.append(roots)
            for spout_task, root, failure in decided.failed:
                by_spout.setdefault(spout_task, TreeVerdicts()).failed.append((root, failure))
            out.mail += by_spout.items()
        self._drop_unclaimed(out)
        self._watch(out)

    def poll(self, now: Now, out: Outbox, *, paused: bool = False) -> bool:  # noqa: ARG002 - pauses are for spouts
        """Rotate when it is time."""
        if self._time_s(now) < self._acker.next_rotation_s():
            return False
        if self._waiting:
            self._apply([], [], now, out)
        for spout_task, roots in self._acker.rotate(self._time_s(now)):
            out.mail.append((spout_task, TreeVerdicts(expired=roots)))
        self._drop_unclaimed(out)
        self._watch(out)
        return True

    def next_due_s(self) -> float | None:
        """The next rotation."""
        due_s = self._acker.next_rotation_s()
        return due_s if self.stalls is None else self.stalls.earliest(due_s)

    def _time_s(self, now: Now) -> float:
        """The time that timeouts go by."""
        return now.monotonic_s if self.stalls is None else self.stalls.without(now.monotonic_s)

    def _drop_unclaimed(self, out: Outbox) -> None:
        unclaimed = self._acker.take_unclaimed()
        if unclaimed:
            out.mail += [(sink_task, DropRoots(unclaimed)) for sink_task in self._sink_tasks]

    def _watch(self, out: Outbox) -> None:
        above = self._acker.above_high_water
        if above is not self._above:
            self._above = above
            out.mail += [(spout_task, HighWater(self.task.task_id, above)) for spout_task in self._spout_tasks]


def _most_pending(plan: Plan, options: Options) -> int:
    """How many messages all spout tasks may have open together."""
    most = 0
    for spout in (one for one in plan.spec.components.values() if one.kind == "spout"):
        pending = max_pending(plan.spec, spout.name, options, DEFAULT_MAX_PENDING)
        if PendingLimit.of(plan.spec, spout.name, options, pending) is not None:
            pending = max(pending, HIGHEST)
        most += pending * plan.parallelism(spout.name)
    return most
