"""The sink task: holds rows until the messages they belong to are complete, then writes them.

A row is written when none of its roots is open any more and at least one completed; it is dropped when all of them
failed. The tuples themselves are acked as they are taken: their tree does not wait for the sink, the spout task does.

A batch that meets an outage is kept, and written again, under the same id, until the outage is over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from typing import Any

from tupletree.bolts.effects import TaskPlace
from tupletree.bolts.failures import FailureMaker
from tupletree.data.frames import UNTRACKED, Frame, Root, all_failed, done_roots, roots_of
from tupletree.errors import InternalError
from tupletree.routing.plan import Plan, Task
from tupletree.sinks.files import SinkRowsError
from tupletree.tasks.edges import ONLY_INT
from tupletree.tasks.machine import Machine
from tupletree.tasks.mail import DropRoots, Mail, Now, WriteRequest, Written
from tupletree.tasks.outbox import Outbox
from tupletree.topology.components import Sink, SinkBatch
from tupletree.topology.ordering import asks_for_order
from tupletree.tracking.outages import OutageWait
from tupletree.tracking.outcomes import Failure, FailureKind

MAX_ROWS = 10_000
"""Rows that are ready to be written make a batch at this number, without waiting for more."""

MAX_DROPPED = 10_000
"""Attempts with dropped rows that are remembered: if one of them completes all the same, its message fails."""

MAX_REFUSALS = 1_000
"""Answers with refused rows that are remembered, so that a repeated request gets the same answer."""


@dataclass(slots=True, eq=False)
class _Answer:
    """One write request under way: its rows, and how many groups of rows shared with open roots it waits for.

    `has_rows`: something of it is to be written, so the answer waits for the next batch.
    """

    release: WriteRequest
    rows: list[Any] = field(default_factory=list)
    row_roots: list[Root] = field(default_factory=list)
    made: list[Sequence[int]] = field(default_factory=list)
    missing: int = 0
    has_rows: bool = False
    refused: dict[int, Failure] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Shared:
    """Rows with several roots. `live`: a root of them completed."""

    rows: list[Any]
    roots: tuple[int, ...]
    made: Sequence[int]
    waiting: set[int]
    live: bool = False
    answers: list[_Answer] = field(default_factory=list)


@dataclass(slots=True)
class _Batch:
    """Rows that are being written, and the answers that wait for that. `refused`: roots, so far."""

    id: str
    number: int
    rows: list[Any]
    row_roots: list[Root]
    made: list[int]
    answers: list[_Answer]
    refused: dict[int, Failure] = field(default_factory=dict)


# More than 12 attributes: one machine: rows that are held, being written and written are one state.
class SinkMachine(Machine):
    """See `Machine`.

    Args:
        plan: the topology laid out.
        task: the sink task.
        sink: the user's object, for this task only.
        run: names the run in batch ids.
        incarnation: a number that no other start of this task has.
        linger_s: how long rows that are ready may wait for more, where each batch is expensive (a file); 0: not at all.
        outage_limit_s: how long an outage may last; None: without limit.
        was_open: the sink was open in this run before, so that an outage as it opens is waited for, too.
    """

    def __init__(
        self,
        plan: Plan,
        task: Task,
        sink: Sink[Any],
        *,
        run: str,
        incarnation: int,
        linger_s: float = 0.0,
        outage_limit_s: float | None = None,
        was_open: bool = False,
    ) -> None:
        super().__init__(task)
        self.wait = OutageWait(task.component, outage_limit_s)
        self.sink = sink
        self.rows_written = 0
        component = plan.spec.components[task.component]
        self.place = TaskPlace.at(plan, task, input_types=plan.input_types(task.component), retry=component.retry)
        self._batch_prefix = f"{run}-{task.component}-{task.index:04d}-{incarnation}"
        self._run = run
        self.incarnation = incarnation
        # Then rows have numbers in the order of making: of rows of one root by root, else beside the rows.
        self._is_ordered = asks_for_order(plan.spec.components[task.component])
        self._names_messages = bool(getattr(sink, "names_messages", False))
        self._linger_s = linger_s
        self._fail = FailureMaker(task.component, task.task_id, self.place.retry)
        self._lost = Failure(
            kind=FailureKind.LOST,
            component=task.component,
            task_id=task.task_id,
            error="rows of it were taken for those of an attempt that had failed",
        )
        self._held: dict[int, list[Any]] = {}
        self._singles: dict[int, Any] = {}  # of roots with one row, which are not in `_held`
        self._numbers: dict[int, Sequence[int] | int] = {}  # see `_numbers_of`
        self._made: list[Sequence[int]] = []  # of the rows that are ready, one after the other
        self._shared: dict[int, list[_Shared]] = {}
        self._rows: list[Any] = []
        self._row_roots: list[Root] = []
        self._answers: list[_Answer] = []
        self._idle: list[_Answer] = []
        self._unanswered: dict[tuple[int, int], _Answer] = {}
        # Ordered, because a plain dictionary takes ever longer to find its oldest entry.
        self._refusals: OrderedDict[tuple[int, int], dict[int, Failure]] = OrderedDict()
        self._dropped: OrderedDict[int, None] = OrderedDict()
        self._ready_since_s = 0.0
        self._flush_now = False
        self._batches = 0
        self._batch: _Batch | None = None  # that met an outage
        self._was_open = was_open
        self._is_open = False

    @property
    def held(self) -> int:
        """Roots with rows that wait for them."""
        return len(self._held) + len(self._singles) + len(self._shared)

    def held_roots(self) -> list[int]:
        """The roots that `held` counts."""
        return [*self._held, *self._singles, *self._shared]

    def start(self, now: Now, out: Outbox) -> None:
        self.place.epoch_time_s = now.wall_s
        try:
            self._open()
        except Exception as error:
            if not (self._was_open and self.place.takes_as_outage(error)):
                raise
            self._note(self.wait.met(error, now.monotonic_s), out)

    def _open(self) -> None:
        if not self._is_open:
            self.sink.open(self.place)
            self._is_open = True

    def stop(self, now: Now, out: Outbox) -> None:  # noqa: ARG002 - closing has no effects
        """Close the sink; rows of messages that are still open are dropped."""
        self.sink.close()

    # --- rows in ----------------------------------------------------------------------------------------------

    def work(self, frame: Frame, now: Now, out: Outbox) -> None:
        """Hold the rows and ack them."""
        if len(frame.roots) != len(frame.values) or not self._hold_singles(frame):
            self._hold_segments(frame, now)
        out.add_delta(frame.id, done_roots(frame, {}))

    def _hold_singles(self, frame: Frame) -> bool:
        """Hold the rows if no root has another one; whether that is so. A list for each would cost more."""
        singles, roots = self._singles, frame.roots
        if set(map(type, roots)) != ONLY_INT or not singles.keys().isdisjoint(roots):
            return False
        if self._held and not self._held.keys().isdisjoint(roots):
            return False
        before = len(singles)
        singles.update(zip(roots, frame.values))  # type: ignore[arg-type]  # just checked: they are ints
        if len(singles) == before + len(roots) and UNTRACKED not in singles:
            if self._is_ordered:
                self._numbers.update(zip(roots, _made_of(frame)))  # type: ignore[arg-type]  # as above
            return True
        for root in roots:
            singles.pop(root, None)  # type: ignore[arg-type]  # as above
        return False

    def _hold_segments(self, frame: Frame, now: Now) -> None:
        held, singles, numbers = self._held, self._singles, self._numbers
        values, is_ordered = frame.values, self._is_ordered
        made: Sequence[int] = _made_of(frame) if is_ordered else ()
        first = made.start if type(made) is range else None  # then the first number of a segment says all of them
        start = 0
        for root, end in zip(frame.roots, frame.ends):
            rows = values[start:end]
            if type(root) is int and root:
                if root not in held and root not in singles:
                    held[root] = rows
                    if is_ordered:
                        numbers[root] = made[start:end] if first is None else first + start
                else:
                    held[root] = before = held[root] if root in held else [singles.pop(root)]
                    if is_ordered:
                        numbers[root] = [*_numbers_of(numbers[root], len(before)), *made[start:end]]
                    before += rows
            elif root == UNTRACKED:
                self._make_ready(rows, [root] * len(rows), [made[start:end]], now)
            else:
                self._share(rows, roots_of(root), made[start:end])
            start = end

    def _share(self, values: list[Any], roots: tuple[int, ...], made: Sequence[int]) -> None:
        shared = _Shared(values, roots, made, set(roots))
        for root in shared.waiting:
            self._shared.setdefault(root, []).append(shared)

    # --- verdicts ---------------------------------------------------------------------------------------------

    def receive(self, mail: Sequence[Mail], now: Now, out: Outbox) -> None:
        """Take write requests and drops."""
        for one in mail:
            match one:
                case WriteRequest():
                    self._release(one, now)
                case DropRoots():
                    self._drop(one.roots, now)
                case _:
                    raise InternalError("a sink got mail that is not for sinks", got=type(one).__name__)
        if self._idle:
            idle, self._idle = self._idle, []
            self._answer(idle, out)
        if self._answers and not self._rows and not self.is_waiting:  # what they waited for was dropped
            self._write(now, out)

    def acker_lost(self, acker_index: int, ackers: int, now: Now, out: Outbox) -> None:
        """An acker was lost with its trees: see `SpoutMachine.acker_lost`."""
        self.receive([DropRoots([root for root in self.held_roots() if root % ackers == acker_index])], now, out)

    def _release(self, release: WriteRequest, now: Now) -> None:
        name = release.spout_task, release.number
        if name in self._unanswered:
            self._flush_now = self._flush_now or release.flush_now
            return  # a repeated request: the answer still waits for rows
        answer = _Answer(release, refused={**self._refusals.get(name, {})})
        self._unanswered[name] = answer
        if self._dropped:
            gone = self._dropped.keys() & release.roots
            answer.refused.update(dict.fromkeys(gone, self._lost))
        held, singles, rows, row_roots = self._held, self._singles, answer.rows, answer.row_roots
        numbers, is_ordered, made = self._numbers, self._is_ordered, answer.made
        if held or is_ordered:
            for root in release.roots:
                values = [singles.pop(root)] if root in singles else held.pop(root, None)
                if values is not None:
                    rows += values
                    row_roots += [root] * len(values)
                    if is_ordered:
                        number = numbers.pop(root)
                        made.append(range(number, number + len(values)) if isinstance(number, int) else number)
        elif singles:
            row_roots += [root for root in release.roots if root in singles]
            rows += map(singles.pop, row_roots)  # type: ignore[arg-type]  # ints, and each once
        if self._shared:
            for root in release.roots:
                self._let_go(root, now, answer)
        self._flush_now = self._flush_now or release.flush_now
        answer.has_rows = answer.has_rows or bool(rows)
        if not answer.missing:
            self._complete(answer, now)

    def _drop(self, roots: list[int], now: Now) -> None:
        for root in roots:
            is_held = self._held.pop(root, None) is not None or root in self._singles
            self._singles.pop(root, None)
            if is_held or root in self._shared:
                self._dropped[root] = None
                self._numbers.pop(root, None)
            self._let_go(root, now, None)
        while len(self._dropped) > MAX_DROPPED:
            self._dropped.popitem(last=False)

    def _let_go(self, root: int, now: Now, answer: _Answer | None) -> None:
        """A root of shared rows is not open any more; `answer` is that of its write request, None if it failed."""
        for shared in self._shared.pop(root, ()):
            shared.waiting.discard(root)
            if answer is not None:
                shared.live = True
                shared.answers.append(answer)
                answer.missing += 1
                answer.has_rows = True
            if shared.waiting:
                continue
            if shared.live:
                self._make_ready(shared.rows, [shared.roots] * len(shared.rows), [shared.made], now)
            for waiting in shared.answers:
                waiting.missing -= 1
                if not waiting.missing and waiting is not answer:
                    self._complete(waiting, now)

    def _complete(self, answer: _Answer, now: Now) -> None:
        (self._answers if answer.has_rows else self._idle).append(answer)
        self._make_ready(answer.rows, answer.row_roots, answer.made, now)

    def _make_ready(self, rows: list[Any], row_roots: list[Root], made: list[Sequence[int]], now: Now) -> None:
        if not self._rows:
            self._ready_since_s = now.monotonic_s
        self._rows += rows
        self._row_roots += row_roots
        self._made += made

    # --- writing ----------------------------------------------------------------------------------------------

    def poll(self, now: Now, out: Outbox, *, paused: bool = False) -> bool:  # noqa: ARG002 - pauses are for spouts
        """Write what is ready, if it is time."""
        due_s = self.next_due_s()
        if due_s is None or due_s > now.monotonic_s:
            return False
        self._write(now, out)
        return not self.is_waiting

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for the end of an outage."""
        return self.wait.current is not None

    @property
    def may_stall(self) -> bool:
        """Whether there is something to write."""
        return self.is_busy or bool(self._answers)

    @property
    def is_busy(self) -> bool:
        """Whether rows are ready to be written."""
        return bool(self._rows) or self._batch is not None

    def flush(self, now: Now, out: Outbox) -> bool:
        """Write what is ready."""
        if not self.is_busy or self.wait.due_s > now.monotonic_s:
            return False
        self._write(now, out)
        return not self.is_waiting

    def next_due_s(self) -> float | None:
        """When the rows that are ready have waited long enough for more, or a call is to be made again."""
        if self.is_waiting:
            return self.wait.due_s
        if not self._rows:
            return None
        if self._flush_now or len(self._rows) >= MAX_ROWS:
            return self._ready_since_s
        return self._ready_since_s + self._linger_s

    def _write(self, now: Now, out: Outbox) -> None:
        batch = self._batch or self._next_batch()
        self.place.epoch_time_s = now.wall_s
        try:
            self._open()
            self._try(batch, out)
        except Exception as error:
            if not self.place.takes_as_outage(error):
                raise
            self._batch = batch
            self._note(self.wait.met(error, now.monotonic_s), out)
            return
        self._batch = None
        self._note(self.wait.over(now.monotonic_s), out)
        if batch.refused:  # rows that several roots share may be written before the answers to all of them are complete
            for answer in self._unanswered.values():
                roots = answer.release.roots
                answer.refused.update((root, batch.refused[root]) for root in roots if root in batch.refused)
        answers = batch.answers
        if not self._rows:  # what the others waited for was dropped during an outage
            answers, self._answers = [*answers, *self._answers], []
        self._answer(answers, out)

    def _next_batch(self) -> _Batch:
        """Everything that is ready."""
        rows, row_roots, answers = self._rows, self._row_roots, self._answers
        made = [*chain.from_iterable(self._made)]
        self._rows, self._row_roots, self._made, self._answers, self._flush_now = [], [], [], [], False
        self._batches += bool(rows)
        return _Batch(f"{self._batch_prefix}-{self._batches:08d}", self._batches, rows, row_roots, made, answers)

    def _try(self, batch: _Batch, out: Outbox) -> None:
        """Write a batch, without the rows that the sink refuses. Raises what means an outage."""
        while batch.rows:
            try:
                made = batch.made if self._is_ordered else None
                prefix, number = self._batch_prefix, batch.number
                ids = [self._ids_of(roots_of(root)) for root in batch.row_roots] if self._names_messages else None
                self.sink.write(SinkBatch(batch.id, batch.rows, prefix, number, self._run, made, ids))
            except SinkRowsError as error:
                self._leave_out(error, batch, out)
            except BaseException as error:  # SystemExit, too, is a fault of the user's code here
                if self.place.takes_as_outage(error):
                    raise
                failure = self._fail.of(batch.rows[0], error, FailureKind.PUBLISH)
                batch.refused.update((root, failure) for roots in batch.row_roots for root in roots_of(roots))
                self._note_untracked(batch.row_roots.count(UNTRACKED), failure, out)
                batch.rows = []
            else:
                self.rows_written += len(batch.rows)
                break

    def _leave_out(self, error: SinkRowsError, batch: _Batch, out: Outbox) -> None:
        """Keep the rows of the other messages. A message whose row is refused writes none of this batch."""
        positions = set()
        for row in error.rows:
            positions.add(row.position)
            roots = batch.row_roots[row.position]
            text = f"{row.error_type}: {row.reason}"
            failure = self._fail.of(batch.rows[row.position], text, FailureKind.PUBLISH)
            batch.refused.update((root, failure) for root in roots_of(roots) if root not in batch.refused)
            self._note_untracked(int(roots == UNTRACKED), failure, out)
        keep = [
            position not in positions and not all_failed(roots, batch.refused)
            for position, roots in enumerate(batch.row_roots)
        ]
        batch.rows, batch.row_roots = list(compress(batch.rows, keep)), list(compress(batch.row_roots, keep))
        batch.made = list(compress(batch.made, keep))

    def _note_untracked(self, rows: int, failure: Failure, out: Outbox) -> None:
        if rows:
            self.strays += rows
            self._note(f"{rows} untracked rows are lost: {failure.error}", out)

    def _answer(self, answers: list[_Answer], out: Outbox) -> None:
        for answer in answers:
            release = answer.release
            name = release.spout_task, release.number
            del self._unanswered[name]
            if answer.refused:
                self._refusals[name] = answer.refused
                if len(self._refusals) > MAX_REFUSALS:
                    self._refusals.popitem(last=False)
            written = Written(self.task.task_id, self.incarnation, release.number, answer.refused)
            out.mail.append((release.spout_task, written))


def _made_of(frame: Frame) -> Sequence[int]:
    """The numbers of a frame's tuples; 0 is older than all others."""
    return frame.made if frame.made is not None else (0,) * len(frame.values)


def _numbers_of(noted: Sequence[int] | int, count: int) -> Sequence[int]:
    """The numbers of so many rows of one root: noted as they are, or as the first where they are consecutive."""
    return range(noted, noted + count) if type(noted) is int else noted  # type: ignore[return-value]  # just looked at
