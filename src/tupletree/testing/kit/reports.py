"""Reports of the test kit: the outcome of each message, as objects and as text.

Owns the record that is kept while a topology runs in a test. It counts nothing that machines decide; see `oracle`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tupletree.bolts.effects import Worked
from tupletree.bolts.failures import safe_text
from tupletree.data.frames import Frame, roots_of
from tupletree.data.payloads import to_jsonable
from tupletree.ids import MessageId
from tupletree.routing.plan import Plan
from tupletree.testing.kit.tracing import Tracer
from tupletree.testing.virtual.scripted import ScriptedMessages
from tupletree.topology.model import BoltSpec
from tupletree.tracking.facts import Fact
from tupletree.tracking.message_ids import id_from_plain, message_key
from tupletree.tracking.outcomes import DeadLetter, Failure, Outcome
from tupletree.tracking.records import Acked, Died, Emission, Released, RetryAt, SourceRetry

MAX_NODES = 1_000
MAX_VALUE_TEXT = 120


@dataclass
class MessageReport:
    """The outcome of one message.

    Attributes:
        message_id: None if it was untracked; then it counts as acked, like any message of a run without ackers.
        value: what the spout emitted.
        outcome: ACKED, DEAD, or OPEN if the run was stopped before it ended.
        attempts: how many went out.
        failure: why the last attempt that failed did so; an acked message may have one.
        tree: the tuple tree of the last attempt, to be printed.
        facts: what happened to it, as `tupletree why` shows it, if an attempt failed; of every message with the option
            `history=all`.
    """

    message_id: MessageId | None
    value: Any
    outcome: Outcome = Outcome.OPEN
    attempts: int = 0
    failure: Failure | None = None
    tree: str = ""
    facts: list[Fact] = field(default_factory=list)

    @property
    def acked(self) -> bool:
        """Whether it was acked."""
        return self.outcome is Outcome.ACKED

    @property
    def dead(self) -> bool:
        """Whether it is dead."""
        return self.outcome is Outcome.DEAD


@dataclass(frozen=True)
class TestRun:
    """How a run in a test ended.

    Attributes:
        outputs: sink → its rows, in the order in which they were written.
        messages: spout → its messages, in order of the input or of emission.
        dead: the dead letters.
        warnings: what would be different on Spark.
        notes: what runtimes would log.
        seconds: virtual time that passed.
    """

    __test__ = False  # it is no test, though pytest would take it for one by its name

    outputs: Mapping[str, list[Any]]
    messages: Mapping[str, list[MessageReport]]
    dead: list[DeadLetter]
    warnings: list[str]
    notes: list[str]
    seconds: float


@dataclass(slots=True, eq=False)
class _Delivery:
    """One tuple at one task, for one root."""

    task: int
    producer: str
    frame_id: int
    value: Any


@dataclass(slots=True)
class _Record:
    """One message while it is open. `root` is that of its last attempt."""

    report: MessageReport
    root: int = 0


@dataclass(slots=True)
class Recorder:
    """A `Probe` that writes everything down.

    Args:
        plan: the topology laid out.
        tracer: knows which tuple came of which.
    """

    plan: Plan
    tracer: Tracer
    died: list[Died] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _records: dict[tuple[int, Hashable], _Record] = field(default_factory=dict)
    _rows: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    _deliveries: dict[tuple[int, int], list[_Delivery]] = field(default_factory=lambda: defaultdict(list))
    _done: set[tuple[int, int, int]] = field(default_factory=set)
    _failed: dict[tuple[int, int], Failure] = field(default_factory=dict)
    _told: set[tuple[int, Hashable]] = field(default_factory=set)

    # --- as it happens ----------------------------------------------------------------------------------------

    def launched(self, emissions: Iterable[Emission]) -> None:
        """See `Probe`."""
        for one in emissions:
            key = one.spout_task, message_key(one.message_id)  # type: ignore[arg-type]  # attempts have ids
            record = self._records.get(key)
            if record is None:
                record = self._records[key] = _Record(MessageReport(one.message_id, one.value))
            record.report.attempts, record.root = one.attempt, one.root

    def acked(self, roots: Sequence[int], acked: Sequence[Acked]) -> None:  # noqa: ARG002 - see `Probe`
        """See `Probe`."""
        for one in acked:
            self._records[one.spout_task, message_key(one.message_id)].report.outcome = Outcome.ACKED

    def failed(self, root: int, what: RetryAt | SourceRetry | Died) -> None:
        """See `Probe`."""
        report = self._records[what.spout_task, message_key(what.message_id)].report
        if isinstance(what, Died):
            report.outcome, report.failure = Outcome.DEAD, what.failure
        else:
            report.failure = self._failure_of(root)

    def given_up(self, died: Sequence[Died]) -> None:
        """See `Probe`."""
        for one in died:
            report = self._records[one.spout_task, message_key(one.message_id)].report
            report.outcome, report.failure = Outcome.DEAD, one.failure

    def released(self, released: Sequence[Released]) -> None:
        """See `Probe`: their outcome stays open."""

    def told(self, spout_task: int, message_id: MessageId, failure: Failure | None) -> None:
        """See `Probe`."""
        key = spout_task, message_key(message_id)
        if failure is None:
            self._told.add(key)
        elif key in self._records:
            self._records[key].report.failure = failure

    def worked(self, task: int, worked: Worked) -> None:
        """See `Probe`."""
        for frame_id, roots in worked.done:
            self._done.update((task, frame_id, root) for entry in roots for root in roots_of(entry))
        for root, failure in worked.failures.items():
            self._failed.setdefault((task, root), failure)

    def cut(self, head: Frame, rest: Frame) -> None:
        """See `Probe.cut`."""

    def written(self, sink_task: int, rows: Sequence[Any], made: Sequence[int] | None) -> None:  # noqa: ARG002 - rows do
        """See `Probe`."""
        self._rows[self.plan.tasks[sink_task].component] += rows

    def delivered(self, frame: Frame) -> None:
        """A task is about to get these tuples."""
        for entry, values in frame.segments():
            for root in roots_of(entry):
                for value in values:
                    delivery = _Delivery(frame.task, frame.component, frame.id, value)
                    self._deliveries[root, id(value)].append(delivery)

    def _failure_of(self, root: int) -> Failure | None:
        return next((failure for (_, one), failure in self._failed.items() if one == root), None)

    def told_facts(self, facts: Iterable[Fact]) -> None:
        """Keep facts with the messages that they are about."""
        for fact in facts:
            key = message_key(id_from_plain(fact.message_id))
            for task in self.plan.task_ids_of(fact.spout):
                if (task, key) in self._records:
                    self._records[task, key].report.facts.append(fact)

    # --- in the end -------------------------------------------------------------------------------------------

    def report(self, scripts: Mapping[str, ScriptedMessages], warnings: list[str], seconds: float) -> TestRun:
        """Everything that is known."""
        spec = self.plan.spec
        messages: dict[str, list[MessageReport]] = {}
        for component in spec.components.values():
            if component.kind == "spout":
                script = scripts.get(component.name)
                tasks = self.plan.task_ids_of(component.name)
                mine = (record for (task, _), record in self._records.items() if task in tasks)
                messages[component.name] = (
                    [self._finished(record, component.name) for record in mine]
                    if script is None
                    else [*self._in_order(script, component.name, tasks)]
                )
        outputs = {one.name: self._rows[one.name] for one in spec.components.values() if one.kind == "sink"}
        dead = [one.letter(spec.name, to_jsonable(one.value), type(one.value).__qualname__) for one in self.died]
        return TestRun(outputs, messages, dead, warnings, self.notes, seconds)

    def _in_order(self, script: ScriptedMessages, spout: str, tasks: range) -> Iterator[MessageReport]:
        for position, emit in enumerate(script.emits):
            task = tasks[position % len(tasks)]
            if emit.message_id is None:
                yield MessageReport(None, emit.value, Outcome.ACKED, 1, tree=f"{spout}  untracked")
                continue
            key = task, message_key(emit.message_id)
            if key in self._records:
                yield self._finished(self._records[key], spout)
            elif key in self._told:
                yield MessageReport(emit.message_id, emit.value, Outcome.ACKED, 1, tree=f"{spout}  not tracked")
            else:
                yield MessageReport(emit.message_id, emit.value)

    def _finished(self, record: _Record, spout: str) -> MessageReport:
        report = record.report
        text = safe_text(report.value, MAX_VALUE_TEXT)
        lines = [f"{spout}  {text}  {report.outcome.value}, attempt {report.attempts}"]
        seen: set[int] = set()
        lines += self._branches(record.root, self._of(record.root, report.value, spout), "", seen)
        report.tree = "\n".join(lines)
        return report

    def _of(self, root: int, value: Any, producer: str) -> list[_Delivery]:
        return [one for one in self._deliveries.get((root, id(value)), ()) if one.producer == producer]

    def _branches(self, root: int, deliveries: list[_Delivery], indent: str, seen: set[int]) -> Iterator[str]:
        fresh = [one for one in deliveries if id(one) not in seen]
        for position, delivery in enumerate(fresh):
            if len(seen) >= MAX_NODES:
                yield f"{indent}└─ … more than {MAX_NODES} tuples"
                return
            seen.add(id(delivery))
            last = position == len(fresh) - 1
            task = self.plan.tasks[delivery.task]
            value = safe_text(delivery.value, MAX_VALUE_TEXT)
            what = self._standing(root, delivery)
            yield f"{indent}{'└─' if last else '├─'} {task.component}[{task.index}]  {value}  {what}"
            below = {id(one): one for one in self._below(root, delivery, task.component)}
            yield from self._branches(root, [*below.values()], indent + ("   " if last else "│  "), seen)

    def _below(self, root: int, delivery: _Delivery, component: str) -> list[_Delivery]:
        """What the task emitted for a tuple; of an Arrow bolt, which handles no tuples, for the message."""
        body = self.plan.spec.components[component].body
        if isinstance(body, BoltSpec) and body.is_vectorised:
            mine = (found for (one, _), found in self._deliveries.items() if one == root)
            return [one for found in mine for one in found if one.producer == component]
        children = self.tracer.children(delivery.task, delivery.value)
        return [one for child in children for one in self._of(root, child, component)]

    def _standing(self, root: int, delivery: _Delivery) -> str:
        if self.plan.spec.components[self.plan.tasks[delivery.task].component].kind == "sink":
            return "row"
        if (delivery.task, delivery.frame_id, root) in self._done:
            return "acked"
        failure = self._failed.get((delivery.task, root))
        if failure is not None and failure.failing_tuple == safe_text(delivery.value):
            return f"failed: {failure.error_type}{': ' if failure.error_type else ''}{failure.error}"
        return "not settled"
