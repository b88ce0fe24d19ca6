"""One incarnation of a run: from recovery on, until it ends, or dies and is started again by `runtime`.

Owns how the parts of a run are made, and in which order they are opened and closed. `Surroundings` is all that comes
from outside of this code: time, chance, and threads; `testing` has others.
"""

from __future__ import annotations

import logging
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import SystemRandom

from tupletree.bolts.effects import TaskPlace
from tupletree.clock import SteadyClock
from tupletree.config import Options
from tupletree.durable import private_folder
from tupletree.ids import RandomBits, system_random_bits
from tupletree.routing.ordered_bolts import OrderedBolts
from tupletree.routing.plan import Plan
from tupletree.runtimes.api import RunRequest
from tupletree.runtimes.instances import own_instance
from tupletree.runtimes.letter_delivery import refuse_columns
from tupletree.runtimes.spark.driver.async_spouts import AsyncSpoutAdapter, LeaseSpoutAdapter, SpoutLoop
from tupletree.runtimes.spark.driver.callbacks import Callbacks, ask_again, tell_last, tell_settled
from tupletree.runtimes.spark.driver.epoch_frames import EpochFrameMaker, SpoutTask
from tupletree.runtimes.spark.driver.intake import Intake
from tupletree.runtimes.spark.driver.lease_planner import LeasePlanner
from tupletree.runtimes.spark.driver.loop import Loop, LoopEvents
from tupletree.runtimes.spark.driver.recovery import adopt_open_trees, newest_time_s, recover
from tupletree.runtimes.spark.driver.replays import Replays
from tupletree.runtimes.spark.driver.rescale import Rescaler
from tupletree.runtimes.spark.driver.retention import sweep_drafts
from tupletree.runtimes.spark.driver.settling_thread import Settling, SettlingThread
from tupletree.runtimes.spark.driver.ticks import TickSchedule
from tupletree.runtimes.spark.driver.upgrade import decide_upgrade
from tupletree.runtimes.spark.format.program import codecs_of, pack_program
from tupletree.runtimes.spark.format.spool import lasting_fingerprint, make_spools
from tupletree.runtimes.spark.format.statedir import StateDirectory
from tupletree.runtimes.spark.format.upgrades import Upgrades
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.runtimes.spark.settle.decision import EpochDecider
from tupletree.runtimes.spark.settle.engine import Engine
from tupletree.runtimes.spark.settle.epoch_order import Ordering
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.runtimes.spark.settle.epoch_runs import EpochRuns
from tupletree.runtimes.spark.settle.outages import Outages
from tupletree.runtimes.spark.settle.plan_runner import Backend, PlanRunner
from tupletree.runtimes.spark.settle.publish import Publisher
from tupletree.runtimes.spark.settle.run_parts import RunParts
from tupletree.runtimes.spark.settle.sink_delivery import SinkDelivery
from tupletree.runtimes.spark.settle.sink_thread import SinkCalls, SinkThread
from tupletree.runtimes.spark.start_folder import refuse_other_folder
from tupletree.runtimes.spark.supported import refuse_unnameable, refuse_unsupported
from tupletree.runtimes.statefolder import fresh_state_dir, unusable
from tupletree.sinks.files import directories_of
from tupletree.sinks.folders import claim_directories
from tupletree.topology.changes.fingerprint import Fingerprint
from tupletree.topology.changes.upgrades import UpgradePlan
from tupletree.topology.components import AsyncSpout
from tupletree.topology.limits import refuse_stuck
from tupletree.topology.model import TopologySpec
from tupletree.topology.splits import AsyncLeaseSpout, LeaseSpout
from tupletree.tracking.outcomes import Failure, FailureKind
from tupletree.tracking.pending import Pending
from tupletree.tracking.records import AlreadySettled
from tupletree.tracking.retry import RetryPolicy

logger = logging.getLogger("tupletree.spark")


@dataclass(frozen=True)
class Surroundings:
    """What a run takes from outside.

    Attributes:
        clock: where time comes from.
        random_bits: draws root ids.
        random: uniform floats in [0, 1).
        sink_calls: makes what calls sinks; given after how many seconds a call is slow.
        taking: makes what waits for executors that take messages.
        settling: makes what settles epochs beside the loop; given the last epoch whose callbacks are made.
    """

    clock: SteadyClock
    random_bits: RandomBits = system_random_bits
    random: Callable[[], float] = field(default_factory=lambda: SystemRandom().random)
    sink_calls: Callable[[float | None], SinkCalls] = SinkThread
    settling: Callable[[Engine, PlanRunner, int], Settling] = SettlingThread
    taking: Callable[[], Executor] = lambda: ThreadPoolExecutor(1, "tupletree-taking")


@dataclass(frozen=True)
class RunSettings:
    """What all incarnations of a run have in common.

    Attributes:
        sinks: sink → absolute folder.
        backend: where plans are executed.
        outages: told of what is not available.
        answered: the spouts that answered a call of `next` in any incarnation; added to.
    """

    request: RunRequest
    spec: TopologySpec
    directory: StateDirectory
    sinks: dict[str, str]
    backend: Backend
    outages: Outages
    surroundings: Surroundings
    answered: set[int] = field(default_factory=set)


def claim(request: RunRequest, spec: TopologySpec, backend: Backend, surroundings: Surroundings) -> RunSettings:
    """Check the request, and claim the state directory and the sinks' folders. See `runtimes.run.run` for errors."""
    refuse_unsupported(spec)
    refuse_columns(spec)
    refuse_stuck(spec, request.options, 2 * request.options.epoch_max_messages)
    backend.check()
    path = request.state_dir or fresh_state_dir(spec.name)
    refuse_unnameable(path)

    def decide(path: Path, stored: Fingerprint, current: Fingerprint, upgrades: Upgrades) -> UpgradePlan:
        tasks = Plan.of(spec, request.options, 1)
        return decide_upgrade(path, stored, current, upgrades, request.words, tasks)

    directory = StateDirectory.open(path, spec.name, lasting_fingerprint(spec), decide)
    try:
        refuse_other_folder(directory.path, spec, request.options)
        claimed = claim_directories(
            directories_of(spec), directory.run_id, append=request.append, state_dir=directory.path
        )
        directory.held.callback(claimed.close)
        folders = {**claimed.paths, **make_spools(directory.spools, spec)}
        sinks = {name: folders[name] for name in spec.components if name in folders}
        for component in spec.components:
            private_folder(directory.state / component)
    except BaseException as error:
        directory.close()
        if isinstance(error, OSError):
            raise unusable(directory.path, error) from error
        if request.state_dir is None:  # a start that was refused is no run, and must not be taken for the latest one
            shutil.rmtree(directory.path, ignore_errors=True)
        raise
    outages = Outages(surroundings.clock, request.options.outage_limit_s)
    return RunSettings(request, spec, directory, sinks, backend, outages, surroundings)


# More than 12 attributes: the parts of one start, which it opens and closes in order.
class Incarnation:
    """See the module docstring. `open` it, run the loop, `leave`, `close`; and `end` if the run is over.

    Args:
        settings: of the run.
        partitions: of a plan.
        stored: told of each epoch whose dead letters are durable.

    Attributes:
        parts: what its parts share; the accounts are recovered.
        spouts: their tasks.

    Raises what recovery raises.
    """

    def __init__(self, settings: RunSettings, partitions: int, stored: Callable[[int], None] = lambda _: None) -> None:
        self._settings = settings
        request, directory, surroundings = settings.request, settings.directory, settings.surroundings
        options, clock = request.options, surroundings.clock
        plan = Plan.of(settings.spec, options, partitions)
        self._spout_loop = SpoutLoop()
        self.spouts = self._make_spouts(plan, self._spout_loop)
        accounts = self._make_accounts(self.spouts)
        codecs = codecs_of(plan)
        codecs |= {
            (old, stream): codecs[name, stream]
            for old, new in directory.upgrades.names.items()
            for name, stream in [*codecs]
            if name == new
        }
        self._frame_maker = EpochFrameMaker(plan, self.spouts, request.options.message_max_bytes)
        rescaler = Rescaler(directory, plan, self._frame_maker, self.spouts, codecs)
        self._recovered = recover(directory, accounts, codecs, settings.sinks, clock, rescaler)
        adopt_open_trees(directory, accounts, codecs, clock)
        self.parts = RunParts(plan, options, directory, accounts, settings.sinks, clock, settings.outages)
        self._replays = Replays(directory.path, accounts, clock, directory.upgrades)
        retry_policy = RetryPolicy.from_options(options)
        calls = surroundings.sink_calls(options.processing_timeout_s)
        self._called = SinkDelivery(
            plan,
            directory.run_id,
            directory.spools,
            retry_policy,
            calls,
            settings.outages,
            surroundings.random,
            directory.upgrades,
        )
        self._publisher = Publisher(self.parts, codecs, self._called, request.redact, stored)
        self._runner = self._make_runner()  # before the spouts are opened: the program has them as they were declared
        self._lease_planner = LeasePlanner(plan, options, directory, clock, self._runner, surroundings.taking())
        self._opened: list[SpoutTask] = []
        self._settling: Settling | None = None
        self._loop: Loop | None = None

    def open(self, events: Callable[[Incarnation], LoopEvents], *, active: bool, may_wait: bool) -> Loop:
        """Open spouts and sinks, finish what the last settled epoch left undone, and make the loop.

        Args:
            events: makes what hears of the loop.
            active: whether the spouts are to be active.
            may_wait: whether to wait for sinks that are not available.
        """
        settings, parts, recovered = self._settings, self.parts, self._recovered
        accounts, outages = parts.accounts, parts.outages
        for spout in self.spouts:
            self._opened.append(spout)
            self._open(spout)
            if active:
                spout.spout.activate()
                spout.active = True
        self._called.open(parts.clock.wall(), accounts.settled, may_wait=may_wait)
        told: list[AlreadySettled] = []
        if recovered.last is not None:
            entry, _ = self._publisher.finish(recovered.last)
            told = tell_settled(parts.directory, accounts, self.spouts)
            tell_last(parts.directory, entry, self.spouts)
        sweep_drafts(parts.directory)
        ask_again(accounts, recovered, self.spouts)
        retold: deque[AlreadySettled] = deque()
        answered = settings.answered
        answered |= _answered_before(self.spouts, accounts, has_epochs=recovered.next_epoch > 0)
        intake = Intake(
            self._frame_maker, parts.options, accounts, self.spouts, parts.clock, retold.append, outages, answered
        )
        intake.lease_planner = self._lease_planner
        self._settling = settings.surroundings.settling(self._make_engine(), self._runner, accounts.settled)
        self._loop = Loop(
            parts,
            intake,
            self._settling,
            Callbacks(self.spouts, intake, parts, retold, told),
            self._replays,
            recovered,
            events(self),
            active=active,
        )
        return self._loop

    @property
    def unsettled(self) -> Sequence[EpochRecord]:
        """Epochs that were logged and not settled when it began."""
        return self._recovered.records

    def leave(self) -> None:
        """The loop has ended, or failed: let the settling thread end too, which may still publish."""
        if self._settling is not None:
            self._settling.close()
            self._called.leave()
            self._settling.join()
        sources = {spout.number: spout.spout for spout in self._opened if isinstance(spout.spout, LeaseSpout)}
        self._lease_planner.close(sources)

    def close(self) -> None:
        """Close sinks and spouts."""
        self._called.close()
        _close_all(self._opened)
        self._spout_loop.close()

    def end(self) -> None:
        """After `close`, if the run is over: remove what it does not need any more."""
        assert self._loop is not None
        self._replays.clear_inbox()
        self._loop.sweep_orphans()

    def _make_runner(self) -> PlanRunner:
        directory, request = self.parts.directory, self._settings.request
        search_path = [request.target.search_path] if request.target else []
        group = f"tupletree-{directory.run_id[:8]}-{directory.generation}"
        return self._settings.backend.runner(self.parts.plan, pack_program(self.parts.plan, search_path), group)

    def _make_engine(self) -> Engine:
        settings, parts = self._settings, self.parts
        runs = EpochRuns(parts, self._runner, wakes=_outlives_epochs(parts.plan, parts.options))
        decider = EpochDecider(settings.spec, parts.options, parts.directory.generation, settings.request.redact)
        return Engine(runs, decider, self._publisher, parts)

    def _make_spouts(self, plan: Plan, loop: SpoutLoop) -> list[SpoutTask]:
        spouts: list[SpoutTask] = []
        idle_s = self._settings.request.options.spout_idle_wait_ms / 1000.0
        for component in self._settings.spec.components.values():
            if component.kind == "spout":
                (stream,) = component.outputs
                shared = plan.parallelism(component.name) == 1
                for task in plan.tasks_of(component.name):
                    spout = own_instance(component, shared=shared)
                    if isinstance(spout, AsyncLeaseSpout):
                        spout = LeaseSpoutAdapter(spout, loop, idle_s)
                    elif isinstance(spout, AsyncSpout):
                        spout = AsyncSpoutAdapter(spout, loop, idle_s)
                    spouts.append(SpoutTask(task, component.name, stream, spout))
        numbers = self._settings.directory.number_spouts([(spout.task.task_id, spout.name) for spout in spouts])
        for spout, number in zip(spouts, numbers, strict=True):
            spout.number = number
        return spouts

    def _make_accounts(self, spouts: list[SpoutTask]) -> Accounts:
        settings, surroundings = self._settings, self._settings.surroundings
        policy = RetryPolicy.from_options(settings.request.options)

        def draw_roots(bits: int) -> int:
            return accounts.draw_roots(bits)

        pending = Pending(policy, draw_roots, surroundings.random, record_changes=True)
        for spout in spouts:
            pending.register(spout.number, spout.name, settings.spec.components[spout.name].replay)
        names = {spout.number: spout.name for spout in spouts}
        accounts = Accounts(settings.spec, pending, names, random_bits=surroundings.random_bits)
        bolts = OrderedBolts.of(settings.spec)
        if bolts is not None:
            tasks = frozenset(spout.number for spout in spouts if spout.name in bolts.spouts)
            accounts.ordering = Ordering(bolts, tasks, pending.is_final)
        # Due times and epoch time continue from the journal, even if the machine's clock was changed.
        surroundings.clock.not_before(newest_time_s(settings.directory))
        return accounts

    def _open(self, spout: SpoutTask) -> None:
        accounts = self.parts.accounts
        spout.spout.open(TaskPlace.at(self.parts.plan, spout.task, epoch_time_s=self.parts.clock.wall()))
        if spout.number in accounts.positions:
            # Its input may have grown since it ended: it continues from its position, and ends at once if there is
            # nothing.
            spout.position = accounts.positions[spout.number]
            spout.spout.restore(spout.position)
        else:
            spout.ended = spout.number in accounts.ended


def _close_all(spouts: list[SpoutTask]) -> None:
    for spout in spouts:
        leaving: list[Callable[[], None]] = [partial(_give_back, spout), spout.spout.close]
        if spout.active:
            leaving.insert(0, spout.spout.deactivate)
        for leave in leaving:
            try:
                leave()
            except Exception:
                logger.exception("closing spout %s failed", spout.name)


def _give_back(spout: SpoutTask) -> None:
    """Fail to its source what waits for room, where no drain came before: the run failed."""
    text = "the run ended before it accepted this"
    stopped = Failure(kind=FailureKind.STOPPED, component=spout.name, error=text)
    for one in spout.waiting:
        if one.message_id is not None:
            try:
                spout.spout.fail(one.message_id, stopped)
            except Exception:
                logger.exception("spout %s could not take back message %r", spout.name, one.message_id)


def _outlives_epochs(plan: Plan, options: Options) -> bool:
    """Whether a task may have work in an epoch that has no frame for it."""
    components = plan.spec.components.values()
    holds = any(component.kind == "bolt" and component.body.is_holder for component in components)
    return holds or any(link.carried for link in plan.links) or bool(TickSchedule(plan.spec, options, 0.0))


def _answered_before(spouts: Sequence[SpoutTask], accounts: Accounts, *, has_epochs: bool) -> set[int]:
    """The spouts that earlier starts on this state directory had an answer of."""
    known = accounts.positions.keys() | accounts.ended
    return {
        spout.number
        for spout in spouts
        if spout.number in known or (has_epochs and spout.spout.snapshot() is None)  # without a position nothing tells
    }
