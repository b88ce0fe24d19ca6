"""Delivery to called sinks: those that are not folders of files get the rows of a committed epoch, at least once.

Owns the calls, in the driver: when a sink is called again, how one row that it refuses is found, and what a restart
must not decide again. It refuses to judge messages: it returns failures by root, and `publish` makes verdicts of them.

All calls of all sinks, `open` and `close` among them, go through `SinkCalls`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tupletree.bolts.effects import TaskPlace
from tupletree.bolts.failures import FailureMaker, rule_of
from tupletree.data.frames import Root, all_failed, roots_of
from tupletree.durable import missing, pack, read_container, replace_file
from tupletree.errors import PermanentError, is_outage
from tupletree.ids import MessageId
from tupletree.routing.plan import Plan, Task
from tupletree.runtimes.crash_points import crash_point
from tupletree.runtimes.instances import own_instance
from tupletree.runtimes.spark.format.entries import OutputFile
from tupletree.runtimes.spark.format.sidecars import read_sidecar, sidecar_of
from tupletree.runtimes.spark.format.spool import Spool, called_sinks, file_sink_of
from tupletree.runtimes.spark.format.statedir import older_copy
from tupletree.runtimes.spark.format.upgrades import NO_UPGRADES, Upgrades
from tupletree.runtimes.spark.settle.outages import Outages
from tupletree.runtimes.spark.settle.shutdown import Closing
from tupletree.runtimes.spark.settle.sink_thread import SinkCalls
from tupletree.sinks.files import SinkRowsError
from tupletree.topology.components import Sink, SinkBatch
from tupletree.tracking.outcomes import Failure, FailureKind
from tupletree.tracking.retry import RetryPolicy

logger = logging.getLogger("tupletree.spark")

TAKEN_SUFFIX = ".taken"
"""The suffix of a candidate whose rows the sink has."""

GAP = 4
"""Tasks in a row without a batch, beyond those that a sink has now: after so many it is taken to have had no more."""

MAX_FAILED_CALLS = 100
"""Calls in a row that fail until a sink counts as failing: then a range of rows is refused after one call."""


class _DeliveryRecord(msgspec.Struct):
    """What was decided about a batch, and must be decided the same way after a kill.

    Attributes:
        split: ids of batches that are offered as halves from now on.
        refused: row → why it was refused.
    """

    split: list[str] = []
    refused: dict[int, Failure] = {}


@dataclass
class Refusals:
    """What the sinks refused of an epoch: root → why, and how many rows of each sink were not written."""

    failures: dict[int, Failure]
    rows: dict[str, int]


@dataclass
class _Delivery:
    """The rows of one sink task in an epoch, while they are delivered."""

    sink: Sink[Any]
    task: Task
    writer: str
    epoch: int
    settled_s: float
    rows: list[Any]
    roots: list[Root]
    path: Path
    ledger: _DeliveryRecord
    run: str
    made: list[int] | None = None
    ids: list[tuple[MessageId, ...]] | None = None
    failed_calls: int = 0

    def remaining(self, start: int, end: int) -> list[int]:
        """The rows of a range that are to be written: not refused, nor of messages that this batch failed."""
        failed = {one for row in self.ledger.refused for one in roots_of(self.roots[row])}
        return [
            row
            for row in range(start, end)
            if row not in self.ledger.refused and not all_failed(self.roots[row], failed)
        ]

    def save(self) -> None:
        """Make the record durable."""
        replace_file(self.path, pack(self.ledger))


class SinkDelivery:
    """The called sinks of a run. `open` it, let it `deliver`, `close` it.

    Args:
        plan: the topology laid out.
        run_id: names the writers of batches, together with sink and task.
        spools: where the folders of candidates are, one per sink.
        policy: how often a call is tried.
        calls: makes the calls.
        outages: told of sinks that are not available; knows how long that may last.
        random: uniform floats in [0, 1), for the jitter of pauses.
        upgrades: a sink that was renamed goes on writing under its first name, which databases know its batches by.
    """

    def __init__(
        self,
        plan: Plan,
        run_id: str,
        spools: Path,
        policy: RetryPolicy,
        calls: SinkCalls,
        outages: Outages,
        random: Callable[[], float],
        upgrades: Upgrades = NO_UPGRADES,
    ) -> None:
        self._first_name = upgrades.first_name
        self._plan = plan
        self._run_id = run_id
        self._spools = spools
        self._policy = policy
        self._components = {component.name: component for component in called_sinks(plan.spec)}
        self._sinks: dict[tuple[str, int], Sink[Any]] = {}
        self._calls = calls
        self._outages = outages
        self._random = random

    def __contains__(self, sink: str) -> bool:
        return sink in self._components

    def open(self, wall_s: float, settled: int, *, may_wait: bool) -> None:
        """Open a copy of each sink per task, and see that none has more than the run knows of.

        Args:
            wall_s: the time, seconds since the Unix epoch.
            settled: the newest epoch that is.
            may_wait: wait for the end of an outage.

        Raises:
            CheckpointError: a sink has a batch of a later epoch: the state directory is an older copy of itself.
            Exception: what `open` of a sink raises.
        """
        for name, component in self._components.items():
            for task in self._plan.tasks_of(name):
                sink = own_instance(component, shared=self._plan.parallelism(name) == 1)
                types = self._plan.input_types(name)
                place = TaskPlace.at(self._plan, task, epoch_time_s=wall_s, input_types=types, retry=component.retry)
                self._sinks[name, task.index] = sink
                while True:
                    try:
                        self._calls.call(name, lambda sink=sink, place=place: sink.open(place))  # type: ignore[misc]  # bound at once
                        self._check_newest(name, task.index, sink, settled)
                        if task.index == self._plan.parallelism(name) - 1:
                            self._check_former(name, task.index, sink, settled)
                        self._outages.over(name)
                        break
                    except Exception as error:
                        if not (may_wait and place.takes_as_outage(error)):
                            raise
                        self._wait(name, error)

    def _check_former(self, name: str, last: int, sink: Sink[Any], settled: int) -> None:
        """See that tasks that the sink no longer has wrote no more than the run knows of, either."""
        index = without = 0
        while without < GAP:
            index += 1
            there = self._check_newest(name, last + index, sink, settled)
            without = 0 if there else without + 1

    def _check_newest(self, name: str, index: int, sink: Sink[Any], settled: int) -> bool:
        writer = self._writer(name, index)
        newest = self._calls.call(name, lambda: sink.newest_batch(writer))
        if newest is not None and newest > settled:
            raise older_copy(f"sink {name!r}", newest, settled)
        return newest is not None

    def _writer(self, sink: str, index: int) -> str:
        return f"{self._run_id}-{self._first_name(sink)}-{index:04d}"

    def leave(self) -> None:
        """Stop waiting for calls: `deliver` raises `Closing`, and the next start calls again."""
        self._calls.leave()

    def close(self) -> None:
        """Close the sinks, except one that is stuck in a call."""
        self._calls.close([sink.close for sink in self._sinks.values()])

    # --- rows -------------------------------------------------------------------------------------------------

    def deliver(self, epoch: int, settled_s: float, output: OutputFile) -> Refusals | None:
        """Call a sink with the rows of one output, unless it has them; returns its refusals, or None.

        `settled_s` is when the epoch was settled: batch ids name it, so that a run that goes on from an older copy of
        its state directory gives none to other rows than before.

        Until the candidate says that the sink has them, a restart calls again, with the same batch ids.

        Raises:
            CheckpointError: the candidate is gone, and nothing says that the sink has its rows.
            OutageLimitError: the sink was not available for too long.
            Closing: the run ends while the sink is being called.
        """
        candidate = self._spools / output.sink / output.candidate
        taken = candidate.with_suffix(TAKEN_SUFFIX)
        if epoch <= delivered_in(self._spools):
            return None  # after a crash of the machine, files that were removed may be there again, some of them
        if not candidate.exists():
            if taken.exists():
                return None
            raise missing(candidate)
        component = self._components[output.sink]
        spool = file_sink_of(self._plan.spec, component)
        assert isinstance(spool, Spool)
        rows, made, ids = spool.read(candidate)
        # The sink has fewer tasks now: another one calls in place of the old one, under its name.
        tasks = self._plan.tasks_of(output.sink)
        task = tasks[output.task_index % len(tasks)]
        ledger_path = candidate.with_suffix(".ledger")
        offer = _Delivery(
            sink=self._sinks[output.sink, task.index],
            task=task,
            writer=self._writer(output.sink, output.task_index),
            epoch=epoch,
            settled_s=settled_s,
            rows=rows,
            roots=read_sidecar(sidecar_of(candidate)),
            path=ledger_path,
            ledger=_ledger_at(ledger_path),
            run=self._run_id,
            made=made,
            ids=ids,
        )
        self._deliver_to(offer, "", 0, len(rows))
        refused = offer.ledger.refused
        if not refused:
            candidate.replace(taken)
            return None
        failures = {}
        for row, failure in sorted(refused.items()):
            failures.update({root: failure for root in roots_of(offer.roots[row]) if root not in failures})
        return Refusals(failures, {output.sink: len(rows) - len(offer.remaining(0, len(rows)))})

    def forget(self, epoch: int, outputs: Iterable[OutputFile]) -> None:
        """Make durable that all outputs of an epoch are delivered, and remove their files."""
        named = [self._spools / output.sink / output.candidate for output in outputs]
        if named and epoch > delivered_in(self._spools):
            replace_file(self._spools / "delivered", pack(epoch))
        for candidate in named:
            for suffix in (candidate.suffix, TAKEN_SUFFIX, ".ledger"):
                candidate.with_suffix(suffix).unlink(missing_ok=True)
            sidecar_of(candidate).unlink(missing_ok=True)

    def _deliver_to(self, offer: _Delivery, suffix: str, start: int, end: int) -> None:
        """Offer a range of rows as one batch; if the sink refuses it, find the refused rows by halves.

        A sink that guarantees exactly once names the rows it refuses: half a batch under the same number
        would look to it like a batch that it has.
        """
        batch_id = f"{offer.writer}-{offer.epoch:08d}-{round(offer.settled_s * 1e6):x}{suffix}"
        if batch_id not in offer.ledger.split:
            error = self._call(offer, batch_id, start, end, whole=not suffix)
            if error is None:
                return
            may_split = offer.sink.promise != "exactly_once" and offer.failed_calls < MAX_FAILED_CALLS
            if end - start == 1 or not may_split:
                maker = self._maker(offer)
                for row in offer.remaining(start, end):
                    offer.ledger.refused[row] = maker.of(offer.rows[row], error, FailureKind.PUBLISH)
                offer.save()
                return
            offer.ledger.split.append(batch_id)
            offer.save()
        middle = (start + end) // 2
        self._deliver_to(offer, f"{suffix}.0", start, middle)
        self._deliver_to(offer, f"{suffix}.1", middle, end)

    def _call(self, offer: _Delivery, batch_id: str, start: int, end: int, *, whole: bool) -> BaseException | None:
        """Call until the sink has the batch, or no call is left: then return the last error. Halves are not retried."""
        attempt = 0
        maker, retry = self._maker(offer), self._components[offer.task.component].retry
        while rows := offer.remaining(start, end):
            made = None if offer.made is None else [offer.made[row] for row in rows]
            ids = None if offer.ids is None else [offer.ids[row] for row in rows]
            values = [offer.rows[row] for row in rows]
            batch = SinkBatch(batch_id, values, offer.writer, offer.epoch, offer.run, made, ids)
            attempt += 1
            crash_point("publish.before_call")
            try:
                self._calls.call(offer.task.component, lambda batch=batch: offer.sink.write(batch))  # type: ignore[misc]  # bound at once
            except Closing:
                raise
            except SinkRowsError as refused:
                attempt = 0
                for one in refused.rows:
                    row = rows[one.position]
                    text = f"{one.error_type}: {one.reason}"
                    offer.ledger.refused[row] = maker.of(offer.rows[row], text, FailureKind.PUBLISH)
                # Before the others are written: a batch that is there already would be skipped.
                offer.save()
            except BaseException as error:  # SystemExit, too, is a fault of the user's code here
                if is_outage(error) if retry is None else retry.takes_as_outage(error):
                    attempt -= 1
                    self._wait(offer.task.component, error)
                    continue
                offer.failed_calls += 1
                name = type(error).__qualname__
                logger.warning("sink %s: batch %s failed: %s: %s", offer.task.component, batch_id, name, error)
                rule = rule_of(retry, error)
                is_last = isinstance(error, PermanentError) or self._policy.exhausted(attempt, rule)
                if is_last or not whole:
                    return error
                if self._calls.wait(self._policy.delay_s(attempt, self._random, rule)):
                    raise Closing from error
            else:
                offer.failed_calls = 0
                self._outages.over(offer.task.component)
                break
        crash_point("publish.after_call")
        return None

    def _maker(self, offer: _Delivery) -> FailureMaker:
        return FailureMaker(offer.task.component, offer.task.task_id, self._components[offer.task.component].retry)

    def _wait(self, sink: str, error: BaseException) -> None:
        """Wait until a sink that is not available is to be called again. Raises Closing if the run ends first."""
        if self._calls.wait(self._outages.met(sink, error)):
            raise Closing from error


def delivered_in(spools: Path) -> int:
    """The newest epoch all of whose outputs are delivered; -1 before the first. Its files may be removed."""
    path = spools / "delivered"
    return read_container(path, int)[0] if path.exists() else -1


def _ledger_at(path: Path) -> _DeliveryRecord:
    return read_container(path, _DeliveryRecord)[0] if path.exists() else _DeliveryRecord()
