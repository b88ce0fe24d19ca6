"""The Spark runtime: starts a run, and the loop that feeds epochs to Spark and verdicts to the spouts.

Two threads share the work. The *loop* owns the spouts: it pulls, cuts epochs, makes callbacks. Spark's `foreachBatch`
thread runs and settles epochs (`engine`). At most one epoch is being run and one more is logged ahead of it.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import shutil
import threading
from collections import deque
from random import SystemRandom
from typing import Any

from msgspec.structs import replace

from tupletree.clock import SystemClock
from tupletree.effects import TaskPlace
from tupletree.errors import CheckpointError, ConfigError, InternalError
from tupletree.plan import Plan
from tupletree.runtimes.base import Progress, RunHandle, RunRequest, Summary
from tupletree.runtimes.crash import crash_point
from tupletree.runtimes.java import find_java
from tupletree.runtimes.spark.accounts import Accounts
from tupletree.runtimes.spark.endings import Closing, reason, stop_query
from tupletree.runtimes.spark.engine import Engine, Verdicts
from tupletree.runtimes.spark.intake import EpochRecord, Intake, SpoutTask
from tupletree.runtimes.spark.journal import SettleEntry, write_epoch
from tupletree.runtimes.spark.meter import Meter
from tupletree.runtimes.spark.program import codecs_of, pack_program
from tupletree.runtimes.spark.publishing import finish
from tupletree.runtimes.spark.recovery import Recovered, adopt_open_trees, recover, verdicts_of
from tupletree.runtimes.spark.replays import Replays
from tupletree.runtimes.spark.session import open_session, partitions_of, refuse_connect
from tupletree.runtimes.spark.statedir import StateDirectory, fresh_state_dir
from tupletree.runtimes.spark.supported import refuse_unsupported
from tupletree.runtimes.spark.sweeping import sweep_drafts, sweep_epochs, sweep_orphans
from tupletree.sinks.files import claim_directory
from tupletree.topology.components import Spout
from tupletree.topology.fingerprint import fingerprint
from tupletree.topology.model import TopologySpec
from tupletree.tracking.outcomes import Failure, FailureKind, Outcome
from tupletree.tracking.pending import Pending
from tupletree.tracking.retry import RetryPolicy
from tupletree.tracking.verdicts import Acked, AlreadySettled, Died

__all__ = ["SparkRun", "start"]

logger = logging.getLogger("tupletree.spark")

BUSY_POLL_S = 0.002
"""Pause of the loop while messages are about: a source without a blocking wait is asked this often."""

QUERY_CHECK_S = 1.0

STEP_BACK = 4
"""After an epoch that had to be split, epochs start at this fraction of their limit, and double while all goes well."""


def start(request: RunRequest) -> RunHandle:
    """Check what was asked for, claim the state directory and the sinks' folders, and start. See `base.run`."""
    spec = request.topology.build()
    refuse_unsupported(spec, request.options)
    refuse_connect()
    find_java()
    path = request.state_dir or fresh_state_dir(spec.name)
    directory = StateDirectory.open(path, spec.name, fingerprint(spec))
    try:
        sinks = _claim_sinks(spec, directory, append=request.append)
        for component in spec.components:
            (directory.state / component).mkdir(mode=0o700, exist_ok=True)
    except BaseException:
        directory.close()
        raise
    run = SparkRun(request, spec, directory, sinks)
    run.begin()
    return run


def _claim_sinks(spec: TopologySpec, directory: StateDirectory, *, append: bool) -> dict[str, str]:
    folders = {
        component.name: component.body.directory.absolute()
        for component in spec.components.values()
        if component.kind == "sink"
    }
    shared = [name for name, folder in folders.items() if list(folders.values()).count(folder) > 1]
    if shared:
        raise ConfigError(
            "two sinks write to one folder", where=", ".join(shared), next_step="give each sink a folder of its own"
        )
    for name, folder in folders.items():
        claim_directory(folder, directory.run_id, sink=name, append=append)
    return {name: str(folder) for name, folder in folders.items()}


class SparkRun(RunHandle):
    """One run on Spark; the handle that `run` returns."""

    def __init__(
        self, request: RunRequest, spec: TopologySpec, directory: StateDirectory, sinks: dict[str, str]
    ) -> None:
        self._request = request
        self._options = request.options
        self._spec = spec
        self._directory = directory
        self._sinks = sinks
        self._clock = SystemClock()
        self._meter = Meter(self._clock)
        self._records: dict[int, EpochRecord] = {}
        self._verdicts: deque[Verdicts] = deque()
        self._retold: deque[AlreadySettled] = deque()
        self._wake = threading.Event()
        self._called_back = threading.Condition()
        self._settling = threading.Lock()
        self._called_back_epoch = -1
        self._fault: BaseException | None = None
        self._closing = False
        self._query: Any = None
        self._next_check_s = 0.0
        self._hears_acks = True
        self._stop_at_s: float | None = None
        self._ended = threading.Event()
        self._state = "created"
        self._started_s = self._clock.monotonic()
        self._thread = threading.Thread(target=self._main, name=f"tupletree-{spec.name}", daemon=True)
        self._accounts: Accounts | None = None
        self._intake: Intake | None = None

    # --- the handle -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the loop's thread."""
        self._thread.start()

    def progress(self) -> Progress:
        """See `RunHandle.progress`."""
        counters = self._accounts.totals if self._accounts is not None else None
        seconds = self._clock.monotonic() - self._started_s
        if counters is None or self._accounts is None:
            return Progress(seconds=seconds, state=self._state)
        open_now = self._open_now()
        return Progress(
            emitted=counters.acked + counters.dead + open_now,
            acked=counters.acked,
            failed=counters.failed,
            retried=counters.retried,
            dead=counters.dead,
            open=open_now,
            epoch=self._accounts.settled,
            rate_per_s=self._meter.rate_per_s(),
            latency_p50_ms=self._meter.latency_ms(0.5),
            latency_p95_ms=self._meter.latency_ms(0.95),
            seconds=seconds,
            state=self._state,
        )

    def _open_now(self) -> int:
        accounts = self._accounts
        assert accounts is not None
        pending = accounts.pending
        return sum(pending.open_count(task) + pending.awaiting_source(task) for task in accounts.spout_of)

    def wait(self, timeout_s: float | None = None) -> Summary:
        """See `RunHandle.wait`."""
        if not self._ended.wait(timeout_s):
            raise TimeoutError
        if self._fault is not None:
            raise self._fault
        assert self._accounts is not None
        totals = self._accounts.totals
        return Summary(
            topology=self._spec.name,
            runtime="spark",
            emitted=totals.emitted,
            acked=totals.acked,
            failed=totals.failed,
            retried=totals.retried,
            dead=totals.dead,
            open=totals.emitted - totals.acked - totals.dead,
            seconds=self._clock.monotonic() - self._started_s,
            state_dir=self._directory.path,
            outputs={name: totals.rows.get(name, 0) for name in self._sinks},
        )

    def stop(self, drain_timeout_s: float | None = None) -> None:
        """See `RunHandle.stop`."""
        limit_s = self._options.drain_timeout_s if drain_timeout_s is None else drain_timeout_s
        self._stop_at_s = self._clock.monotonic() + limit_s
        self._wake.set()
        self._ended.wait(limit_s + 10.0)

    # --- the thread -------------------------------------------------------------------------------------------

    def _main(self) -> None:
        session: Any = None
        owned = False
        try:
            session, owned = open_session(self._spec.name, self._request.master)
            self._run(session)
            self._state = "stopped"
        except BaseException as error:
            self._state = "failed"
            self._fault = reason(error, self._directory.path)
            logger.debug("the run failed", exc_info=error)
        finally:
            if owned:
                with contextlib.suppress(Exception):  # a session that died takes nothing with it
                    session.stop()
            self._directory.close()
            self._ended.set()

    def _run(self, session: Any) -> None:
        plan = Plan.of(self._spec, self._options, partitions_of(session))
        spouts = self._make_spouts(plan)
        accounts = self._accounts = self._make_accounts(spouts)
        self._directory.name_spouts(accounts.spout_of)
        codecs = codecs_of(plan)
        recovered = recover(self._directory, accounts, codecs, self._clock)
        adopt_open_trees(self._directory, accounts, codecs, self._clock)
        replays = Replays(self._directory.path, accounts, self._clock)
        search_path = [self._request.target.search_path] if self._request.target else []
        engine = Engine(
            plan,
            pack_program(plan, search_path),
            self._options,
            self._directory,
            accounts,
            self._clock,
            self._sinks,
            self._request.redact,
            replays.take_accepted,
            accounts.settled - recovered.base_epoch,
        )
        opened: list[SpoutTask] = []
        query: Any = None
        try:
            for spout in spouts:
                opened.append(spout)
                self._open(spout, plan, accounts)
            self._finish_last(recovered, spouts)
            self._hears_acks = any(type(spout.spout).ack is not Spout.ack for spout in spouts)
            intake = self._intake = Intake(plan, self._options, accounts, spouts, self._clock, self._retold.append)
            self._records.update({record.epoch: record for record in recovered.records})
            query = self._query = self._start_query(session, plan, engine, accounts.settled + 1)
            self._state = "processing"
            self._loop(intake, accounts, replays, {spout.task.task_id: spout for spout in spouts}, recovered.next_epoch)
        finally:
            self._state = "stopping" if self._fault is None else "failed"
            with self._called_back:
                self._closing = True
                self._called_back.notify_all()
            if query is not None:
                stop_query(query)
            with self._settling:  # Spark lets go of its thread sooner than that leaves Python: it may still publish
                pass
            for spout in opened:
                try:
                    spout.spout.close()
                except Exception:
                    logger.exception("closing spout %s failed", spout.name)
        replays.clear_inbox()
        self._sweep_orphans()

    def _make_spouts(self, plan: Plan) -> list[SpoutTask]:
        spouts: list[SpoutTask] = []
        for component in self._spec.components.values():
            if component.kind == "spout":
                (stream,) = component.outputs
                # Each task has an instance of its own, as if the component had been shipped to it.
                spouts += [
                    SpoutTask(task, component.name, stream, copy.deepcopy(component.body))
                    for task in plan.tasks_of(component.name)
                ]
        return spouts

    def _make_accounts(self, spouts: list[SpoutTask]) -> Accounts:
        randomness = SystemRandom()
        policy = RetryPolicy.from_options(self._options)
        pending = Pending(policy, randomness.getrandbits, randomness.random, record_changes=True)
        for spout in spouts:
            pending.register(spout.task.task_id, spout.name, self._spec.components[spout.name].replay)
        return Accounts(self._spec, pending, {spout.task.task_id: spout.name for spout in spouts})

    def _open(self, spout: SpoutTask, plan: Plan, accounts: Accounts) -> None:
        task = spout.task
        place = TaskPlace(
            self._spec.name, spout.name, task.task_id, task.index, plan.parallelism(spout.name), self._clock.wall()
        )
        spout.spout.open(place)
        spout.ended = task.task_id in accounts.ended
        if task.task_id in accounts.positions:
            spout.position = accounts.positions[task.task_id]
            spout.spout.restore(spout.position)
        spout.spout.activate()

    def _finish_last(self, recovered: Recovered, spouts: list[SpoutTask]) -> None:
        """Finish what the last settled epoch left undone, and clear away what killed starts left behind."""
        entry = recovered.last
        if entry is not None:
            finish(entry, self._sinks, self._directory.dead)
            self._tell_again(entry, {spout.task.task_id: spout for spout in spouts})
        self._called_back_epoch = entry.epoch if entry is not None else -1
        sweep_drafts(self._directory)
        self._sweep_orphans()

    def _sweep_orphans(self) -> None:
        assert self._accounts is not None
        with self._accounts.lock:
            state = self._accounts.state
        sweep_orphans(self._directory, self._sinks, self._called_back_epoch, state)

    def _tell_again(self, entry: SettleEntry, spouts: dict[int, SpoutTask]) -> None:
        acked, died = verdicts_of(self._directory, entry)
        failures = {dead.root: dead.letter.failure for dead in entry.dead}
        for message in acked:
            spouts[message.task].spout.ack(message.message_id)
        for message in died:
            spouts[message.task].spout.fail(message.message_id, failures[message.root])

    def _start_query(self, session: Any, plan: Plan, engine: Engine, first: int) -> Any:
        from tupletree.runtimes.spark.source import EpochSource

        session.dataSource.register(EpochSource)
        for old in sorted(self._directory.spark.parent.glob("*")) if self._directory.spark.parent.exists() else ():
            shutil.rmtree(old, ignore_errors=True)
        frame = (
            session.readStream.format(EpochSource.name())
            .option("directory", str(self._directory.epochs))
            .option("first", str(first))
            .option("partitions", str(plan.partitions))
            .load()
        )

        def on_batch(batch: Any, batch_id: int) -> None:
            with self._settling:
                try:
                    record = self._records[first + batch_id]
                    verdicts = engine.settle(record, batch, lambda: self._await_callbacks(record.epoch - 1))
                except BaseException as error:
                    if not self._closing:
                        self._fault = self._fault or error
                    self._wake.set()
                    raise
                self._meter.settled(verdicts.acked)
                self._verdicts.append(verdicts)
                self._wake.set()

        return (
            frame.writeStream.foreachBatch(on_batch)
            .option("checkpointLocation", str(self._directory.spark))
            .queryName(f"{self._spec.name} {self._directory.run_id[:8]}-{self._directory.generation}")
            .start()
        )

    def _await_callbacks(self, epoch: int) -> None:
        """An epoch is committed only when the callbacks of the one before are made: a restart repeats one epoch's."""
        with self._called_back:
            self._called_back.wait_for(lambda: self._called_back_epoch >= epoch or self._closing)
        if self._called_back_epoch < epoch:
            raise Closing

    # --- the loop ---------------------------------------------------------------------------------------------

    def _loop(
        self, intake: Intake, accounts: Accounts, replays: Replays, spouts: dict[int, SpoutTask], next_epoch: int
    ) -> None:
        last_useful_s = self._clock.monotonic()
        idle_s = self._options.spout_idle_wait_ms / 1000.0
        while True:
            self._wake.clear()
            useful = self._call_back(intake, accounts, spouts)
            if self._fault is not None:
                raise self._fault
            now_s = self._clock.monotonic()
            stopping = self._stop_at_s is not None
            if not stopping:
                useful = replays.read_inbox() or useful
                useful = intake.pull() or useful
            ahead = next_epoch - 1 - accounts.settled
            if self._should_cut(intake, accounts, replays, ahead, now_s, stopping=stopping):
                self._cut(intake, next_epoch)
                next_epoch += 1
                useful = True
            elif ahead == 0 and self._is_finished(intake, accounts, replays, stopping=stopping):
                return
            if stopping and now_s >= (self._stop_at_s or 0.0):
                logger.warning("the drain ran out of time: epoch %d stays open and runs again", accounts.settled + 1)
                return
            if useful:
                last_useful_s = now_s
            else:
                self._check_query(now_s)
                busy = ahead > 0 or now_s - last_useful_s < 1.0
                self._wake.wait(BUSY_POLL_S if busy else idle_s)

    def _check_query(self, now_s: float) -> None:
        """Notice a query that died outside our own code."""
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + QUERY_CHECK_S
        if not self._query.isActive and self._fault is None:
            died = self._query.exception()
            raise died if died is not None else InternalError("Spark's query ended by itself")

    def _should_cut(
        self, intake: Intake, accounts: Accounts, replays: Replays, ahead: int, now_s: float, *, stopping: bool
    ) -> bool:
        if ahead >= 2 or self._fault is not None:
            return False
        if ahead == 1:
            return intake.is_full and not stopping
        if not stopping:
            intake.add_due(now_s)
        if intake.buffered:
            return True
        if stopping:
            return False
        wall_s = self._clock.wall()
        with accounts.lock:
            expired = any(tree.deadline_s <= wall_s for tree in accounts.open.values())
        return expired or replays.has_accepted or intake.must_give_up or (intake.ended_unlogged and intake.has_ended)

    def _is_finished(self, intake: Intake, accounts: Accounts, replays: Replays, *, stopping: bool) -> bool:
        # The last settled epoch may still be publishing, and its callbacks are to come.
        if intake.buffered or self._called_back_epoch < accounts.settled:
            return False
        if stopping:
            return True
        return intake.has_ended and accounts.is_idle() and not replays.has_accepted

    @staticmethod
    def _unpositioned(spouts: dict[int, SpoutTask]) -> bool:
        return any(spout.position is None for spout in spouts.values())

    def _cut(self, intake: Intake, epoch: int) -> None:
        record, sections = intake.cut(epoch, self._directory.generation)
        self._records[epoch] = record
        crash_point("epoch.before_log")
        if not write_epoch(self._directory.epochs, record.header, sections):
            raise CheckpointError(
                "another start of this run has taken over; this one stops",
                where=str(self._directory.path),
                got=f"epoch {epoch} is logged already",
                next_step="stop one of the two processes",
            )
        crash_point("epoch.after_log")

    def _call_back(self, intake: Intake, accounts: Accounts, spouts: dict[int, SpoutTask]) -> bool:
        """Tell the spouts what was settled; whether there was anything."""
        told = False
        while self._retold:
            settled = self._retold.popleft()
            _tell_outcome(spouts[settled.spout_task], settled)
            with accounts.lock:
                accounts.pending.confirm(settled.spout_task, settled.message_id)
            told = True
        while self._verdicts:
            verdicts = self._verdicts.popleft()
            crash_point("callbacks.before")
            for acked in verdicts.acked if self._hears_acks else ():
                spouts[acked.spout_task].spout.ack(acked.message_id)
            for died in verdicts.died:
                # Final: a source that retries by itself must not emit this one again.
                spouts[died.spout_task].spout.fail(died.message_id, replace(died.failure, permanent=True))
            for retry in verdicts.source_retries:
                spouts[retry.spout_task].spout.fail(retry.message_id, retry.failure)
                intake.ask_again(retry.spout_task)
            crash_point("callbacks.after")
            with accounts.lock:
                told_of: list[Acked | Died] = [*verdicts.acked, *verdicts.died] if self._unpositioned(spouts) else []
                for one in told_of:
                    accounts.pending.confirm(one.spout_task, one.message_id)
            self._records.pop(verdicts.epoch, None)
            intake.limit = _next_limit(intake.limit, self._options.epoch_max_messages, shrunk=verdicts.shrunk)
            with self._called_back:
                self._called_back_epoch = verdicts.epoch
                self._called_back.notify_all()
            if verdicts.wrote_base:
                with accounts.lock:
                    needed = {tree.epoch for tree in accounts.open.values()}
                sweep_epochs(self._directory, verdicts.epoch, needed, self._options.history_max_bytes)
                self._sweep_orphans()
            told = True
        return told


def _next_limit(limit: int, most: int, *, shrunk: bool) -> int:
    """Additive-increase's cousin: step back at once when an epoch would not end, double while epochs do."""
    return max(1, limit // STEP_BACK) if shrunk else min(most, limit * 2)


def _tell_outcome(spout: SpoutTask, settled: AlreadySettled) -> None:
    if settled.outcome is Outcome.ACKED:
        spout.spout.ack(settled.message_id)
    else:
        failure = Failure(kind=FailureKind.ERROR, error="dead: see the dead letters", component=spout.name)
        spout.spout.fail(settled.message_id, failure)
