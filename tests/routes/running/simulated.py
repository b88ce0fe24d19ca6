"""Whole pipelines in the simulator: compiled topologies under seeded faults, with their real ledger and queues.

One or two processes work the same queues. Everything that is between their tasks is simulated, as `simulate` does it,
but spouts lease, and the sink settles, on SQLite files: what they leave there is what the next process finds. A process
dies at a call of a broker or of the ledger, before or after its effect; from then on nothing it does has any. One seed
decides everything.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa

from tests.queues.clocks import Host, ManualHostClock, without_disk
from tupletree.config import Options
from tupletree.errors import ConnectorError, UnavailableAtStartError
from tupletree.queues import Broker
from tupletree.queues.sqlite import SqliteBroker
from tupletree.routes import Pipeline
from tupletree.routes.ledger.ledger import Ledger
from tupletree.routes.ledger.stores import LedgerDatabase
from tupletree.routes.ledger.values import Completed
from tupletree.routes.running import bolts, outgoing
from tupletree.routes.running import compile as compiling
from tupletree.routes.running import services as serving
from tupletree.routes.running.chain import AdapterSurroundings
from tupletree.routes.running.compile import SETTLE
from tupletree.routes.running.services import RunSpec, Services, services
from tupletree.routes.testing.virtual_loop import InlineThreads, VirtualLoop, VirtualTime
from tupletree.routing.plan import Plan
from tupletree.tasks.mail import Track
from tupletree.testing.simulator.faults import Faults
from tupletree.testing.simulator.simulation import FaultyMachineSet, Simulation
from tupletree.testing.virtual.away import Away
from tupletree.testing.virtual.calls import VirtualCalls
from tupletree.testing.virtual.network import Envelope
from tupletree.topology.components import Sink
from tupletree.topology.model import ComponentSpec

__all__ = ["FAULTS", "World"]

FAULTS = Faults(
    lose_frames=0.0, repeat_frames=0.0, lose_tracks=0.0, repeat_tracks=0.0, lose_mail=0.0, kill_bolts=0.0,
    hold_back=0.02, outage=0.002, crash=0.02, jump=0.01, restart=0.004, kill_sinks=0.0, kill_spouts=0.004,
    drain=0.003, refuse_rows=0.0,
)  # fmt: skip
"""Without what only a message timeout finds, as pipelines have none. `crash` is per call of a broker or a ledger, and
`drain`, a stop after which the process begins again, per step."""

IDLE = ("take", "lease", "arrive")
IDLE_SHARE = 0.03
"""Of the crashes: how many strike a look at a queue, of which there are many, mostly empty."""

LATE_S = 20.0
"""By how much mail and tuples are late, at most."""

MOST_STEPS = 20_000
BROKER_CALLS = ("take", "publish", "ack", "fail", "dead_letter", "extend")
LEDGER_CALLS = ("lease", "arrive", "settle", "published", "told", "outbox", "hold", "_finish")
"""The last is within its transaction."""


class Crash(BaseException):
    """In the place of the end of the process."""


class _Silent:
    """No oracle: queues give messages again under the same ids, which the one of `simulate` takes for a fault."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class World:
    """Queues and a ledger on files, a clock, and the processes that work a pipeline.

    Args:
        pipeline: what they work.
        seed: decides everything.
        faults: what may happen to them.
        processes: how many there are.

    Attributes:
        told: executions whose completion a listener of a process was told.
        crashes: how often a process died, by where.
        client: services of a process that never dies: it begins executions, and judges.
    """

    def __init__(self, pipeline: Pipeline, seed: int, faults: Faults, *, processes: int = 1) -> None:
        self.random = Random(seed)
        self.host = Host()
        self.pipeline = pipeline
        self.told: Counter[tuple[str, int]] = Counter()
        self.crashes: Counter[str] = Counter()
        self.faults = faults
        self.processes: list[_Process] = []
        self._loops: list[VirtualLoop] = []
        pipeline.home.mkdir(parents=True, exist_ok=True)
        with self._patched():
            self.client = _Services(pipeline.run_spec(key=f"{pipeline.home}"), self, None)
            self.processes = [_Process(self, f"{pipeline.home}/{number}") for number in range(processes)]

    def run(self, steps: int, happens: Callable[[World, int], None], *, is_over: Callable[[World], bool]) -> None:
        """Steps of the processes under faults, then without, until it is over."""
        with self._patched():
            for number in range(MOST_STEPS):
                if number == steps:
                    self.calm()
                happens(self, number)
                process = self.random.choice(self.processes)
                process.step()
                if number >= steps and number % 20 == 0 and is_over(self):
                    return
        raise AssertionError(f"it does not end: {self._what_is_open()}")

    def calm(self) -> None:
        """No more faults."""
        self.faults = Faults.none()
        for process in self.processes:
            process.simulation.calm()

    def close(self) -> None:
        """Close everything."""
        with self._patched():
            for process in self.processes:
                process.die("the end")
            self.client.close()
        for loop in self._loops:
            loop.close()  # of bolts that a restart forgot

    def _new_loop(self) -> VirtualLoop:
        self._loops.append(VirtualLoop(VirtualTime()))
        return self._loops[-1]

    def _what_is_open(self) -> str:
        queues = {queue: self.client.broker(queue).depth(queue) for queue in self.client.run.queues}
        return f"{queues}, {[one for one in self.client.ledger.executions(limit=100) if not one.ended_s]}"

    @contextmanager
    def _patched(self) -> Iterator[None]:
        """The parts of a run on this world's time, in one thread."""

        async def at_once(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named)

        def surroundings(run: RunSpec, resources: Any) -> AdapterSurroundings:
            return AdapterSurroundings(
                settings=run.spec.settings,
                resources=resources,
                now_s=lambda: self.host.wall_s,
                is_cancelled=bolts.InProcess(run.key).is_cancelled,
                records=run.spec.lineage.needs_records,
                threads=InlineThreads,
                new_loop=self._new_loop,
            )

        def opened(run: RunSpec) -> Services:
            (process,) = (one for one in self.processes if one.run.key == run.key)
            return _Services(run, self, process)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(asyncio, "to_thread", at_once)
            patched.setattr(bolts, "surroundings_of", surroundings)
            patched.setattr(compiling, "surroundings_of", surroundings)
            patched.setattr(serving, "Services", opened)
            patched.setattr(outgoing.Outgoing, "_start", lambda _: None)  # `_Process.step` does what its thread does
            yield


class _Process:
    """One process of the pipeline, in one of its lives."""

    def __init__(self, world: World, key: str) -> None:
        self.world = world
        self.lives = 0
        self.run = world.pipeline.run_spec(key=key)
        self._spec = world.pipeline.topology(self.run).build()
        self._begin()

    def _begin(self) -> None:
        world = self.world
        self.lives += 1
        self.is_dead = False
        self._steps_to_stop = 0
        self.away: dict[str, float] = {}  # URL of a broker → until when
        self.services: Services | None = None
        if self not in world.processes:
            world.processes.append(self)
        while self.services is None:
            try:
                self.services = services.acquire(self.run)
                self.services.ledger.go_on(world.pipeline.spec.name)
                self.services.on_completed(self._told)
            except Crash:  # as it starts
                self._end()
        options = Options(**self._spec.options)
        plan = Plan.of(self._spec, options)
        self.simulation = _Simulation(plan, options, {}, world.random, world.faults, Away(self._spec), self)

    def step(self) -> None:
        """Something happens in it."""
        simulation = self.simulation
        simulation.catch_up()
        try:
            if not self._steps_to_stop and simulation.inject_fault("drain"):
                self._steps_to_stop = self.world.random.randint(1, 60)
                simulation.drain()
            _ = simulation.step() or simulation.wait()
            if not self.is_dead:
                self._serve_outgoing()
                self._maybe_stop()
        except Crash:
            pass
        except UnavailableAtStartError:
            self.die("a broker is away at the start")
        except Exception:
            if not self.is_dead:  # what comes of calls of a process that has ended
                raise
        if self.is_dead:
            simulation.die()
            self._end()
            self._begin()

    def _maybe_stop(self) -> None:
        """A stop ends when nothing is in flight, or its time is over; then what is open is given back."""
        if not self._steps_to_stop:
            return
        self._steps_to_stop -= 1
        spouts = self.simulation.machine_set.spouts()
        if self._steps_to_stop and not all(spout.is_drained for spout in spouts):
            return
        self.simulation.abandon()
        assert self.services is not None
        for execution in self.services.ledger.executions(limit=100):
            self.services.ledger.interrupt(execution.id)
        if not self.is_dead:
            self.die("a stop, in order")

    def _serve_outgoing(self) -> None:
        """As the thread that reaches for brokers which were away."""
        assert self.services is not None
        out = self.services._outgoing
        if [url for url in [*out._away] if out._is_back(url)]:
            out.drain()

    def die(self, where: str) -> None:
        """From now on nothing that it does has any effect."""
        self.is_dead = True
        self.world.crashes[where] += 1
        if where == "the end":
            self.simulation.die()
            self._end()

    def _end(self) -> None:
        found, self.services = self.services, None
        services._open.pop(self.run.key, None)
        if found is not None:
            found.close()
        self.is_dead = False

    def _told(self, completed: Completed) -> None:
        self.world.told[completed.execution, completed.run] += 1


class _Services(Services):
    """Services on the world's clock, whose calls may be the last of their process."""

    def __init__(self, run: RunSpec, world: World, process: _Process | None) -> None:
        self._world = world
        self._process = process
        super().__init__(run, lambda: world.host.up_s)

    def broker_at(self, url: str) -> Broker:
        """See `Services`."""
        broker = self._brokers.get(url)
        if broker is None:
            broker = SqliteBroker(url.removeprefix("sqlite:///"), clock=ManualHostClock(self._world.host))
            without_disk(broker)
            self._guard(broker, BROKER_CALLS, url)
            self._brokers[url] = broker
        return broker

    def _open_ledger(self) -> Ledger:
        embedded = self.broker_at(self.run.queue_file)
        clock = ManualHostClock(self._world.host)
        if self.run.ledger == self.run.queue_file:
            assert isinstance(embedded, SqliteBroker)
            own = [queue for queue in self.run.queues if self.run.url_of(queue) == self.run.queue_file]
            ledger = Ledger.within(embedded, queues=own, clock=clock.wall_s)
        else:
            store = LedgerDatabase(self.run.ledger)
            sa.event.listen(store._engine, "connect", lambda one, _: one.execute("PRAGMA synchronous = OFF").close())
            ledger = Ledger(store, clock=clock.wall_s)
        self._guard(ledger, LEDGER_CALLS, "")
        return ledger

    def _guard(self, what: Any, calls: tuple[str, ...], url: str) -> None:
        if self._process is None:
            return
        for name in calls:
            setattr(what, name, self._guarded(getattr(what, name), name, f"{type(what).__name__}.{name}", url))

    def _guarded(self, call: Callable[..., Any], name: str, where: str, url: str) -> Callable[..., Any]:
        process, world = self._process, self._world
        assert process is not None

        likelihood = IDLE_SHARE if name in IDLE else 1.0

        def maybe_die(when: str) -> None:
            if not process.is_dead and world.random.random() < world.faults.crash * likelihood:
                process.die(f"{when} {where}")
            if process.is_dead:
                raise Crash(where)

        def guarded(*arguments: Any, **named: Any) -> Any:
            maybe_die("before")
            if url and url != self.run.queue_file and world.faults.outage:
                self._check_outage(url)
            result = call(*arguments, **named)
            maybe_die("after")
            return result

        return guarded

    def _check_outage(self, url: str) -> None:
        process, world = self._process, self._world
        assert process is not None
        if world.random.random() < 0.01:
            process.away[url] = world.host.up_s + world.random.random() * 10
        if world.host.up_s < process.away.get(url, 0.0):
            raise ConnectorError("away in the simulator", where=url)


class _Simulation(Simulation):
    """The machines of one life of a process."""

    def __init__(self, *arguments: Any) -> None:
        *arguments_of_it, process = arguments
        self.process: _Process = process
        super().__init__(*arguments_of_it)

    def make_oracle(self) -> Any:
        """None."""
        return _Silent()

    def make_machines(self) -> FaultyMachineSet:
        """With the sink that settles."""
        return _Machines(self)

    def catch_up(self) -> None:
        """The other process has let time pass."""
        self.now_s = self._time_s()

    def _time_s(self) -> float:
        return self.process.world.host.up_s

    def _advance(self, seconds: float) -> None:
        self.process.world.host.advance(seconds)
        super()._advance(seconds)
        self.now_s = self._time_s()

    def _send(self, envelope: Envelope) -> None:
        """Tracks are never held back: pipelines have no message timeout, so what an acker forgot would never end.

        It keeps what it is told of trees that it does not know for 30 s, and within a process no mail takes so long.
        """
        late = not isinstance(envelope.content, Track) and self.inject_fault("hold_back")
        self.network.send(envelope, self.now_s + self.random.random() * LATE_S if late else 0.0)

    def _crash(self) -> None:
        """Processes die at calls of brokers and ledger."""

    def die(self) -> None:
        """Let go of everything."""
        self.process.is_dead = True
        for machine in self.machine_set.machines.values():
            if self.machine_set.kind_of(machine.task) == "bolt":
                machine.stop(self.now, self.out)
        self._end_calls()
        calls: VirtualCalls = self._calls
        if calls._loop is not None:
            calls._loop.set_exception_handler(lambda *_: None)  # nobody hears what its tasks ended with
            for one in asyncio.all_tasks(calls._loop):
                one.cancel()
        calls._fresh = True
        calls.close()


class _Machines(FaultyMachineSet):
    def sink(self, component: ComponentSpec) -> Sink[Any]:
        if component.name == SETTLE:
            return component.body  # type: ignore[no-any-return]  # a sink's body is the sink
        return super().sink(component)
