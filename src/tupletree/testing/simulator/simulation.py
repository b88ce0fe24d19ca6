"""A simulation: machines in one thread, everything between them in a network, and faults at random.

Owns what one step is, what can go wrong in it, and what is told to the oracle. A step serves some tasks together, as an
executor does: one outbox for all, frames worked on at once or sent on, then all effects carried out in order.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

from tupletree.config import Options
from tupletree.data.frames import Frame
from tupletree.routing.plan import ACKER, Plan
from tupletree.sinks.files import RowError, SinkRowsError
from tupletree.tasks.acker import AckerMachine
from tupletree.tasks.async_spout import AsyncSpoutMachine
from tupletree.tasks.machine import Machine
from tupletree.tasks.mail import (
    DropRoots,
    Finished,
    HighWater,
    Mail,
    Now,
    SinkReset,
    Track,
    TreeVerdicts,
    WriteRequest,
    Written,
)
from tupletree.tasks.outbox import Outbox
from tupletree.tasks.sink import SinkMachine
from tupletree.tasks.spout import SpoutMachine
from tupletree.testing.simulator.faults import Faults
from tupletree.testing.simulator.oracle import Oracle
from tupletree.testing.virtual.away import Away
from tupletree.testing.virtual.calls import VirtualCalls
from tupletree.testing.virtual.machines import MachineSet
from tupletree.testing.virtual.network import DueCall, Envelope, LettersStored, Network
from tupletree.testing.virtual.scripted import ScriptedMessages
from tupletree.topology.components import Sink, SinkBatch, SinkContext
from tupletree.topology.model import ComponentSpec
from tupletree.tracking.records import Died

EVENTS_KEPT = 60
WALL_S = 1_700_000_000.0
STEP_S = 0.01
MAX_LAST_STEPS = 1000
CUT_SHARE = 0.2
"""Of the frames with several tuples: how many are worked in parts, as where calls are slow."""

MAY_LOSE = (WriteRequest, Written)
MAY_REPEAT = (TreeVerdicts, WriteRequest, Written, DropRoots, SinkReset)


# More than 12 attributes: one simulation: steps, effects and faults share all of its state.
class Simulation:
    """See the module docstring.

    Args:
        plan: the topology laid out.
        options: the run's settings.
        scripts: spout → its messages.
        random: decides everything.
        faults: how likely each fault is; `calm` ends them.
        away: what bolts and sinks call.

    Attributes:
        steps: so far.
        happened: fault → how often.
        dead: letters that are durable.
        events: the last events.
    """

    def __init__(
        self,
        plan: Plan,
        options: Options,
        scripts: Mapping[str, ScriptedMessages],
        random: Random,
        faults: Faults,
        away: Away,
    ) -> None:
        self.plan = plan
        self.options = options
        self.scripts = scripts
        self.random = random
        self.faults = faults
        self.now_s = 1000.0
        self.away = away
        away.clock = lambda: self.now_s
        self.steps = 0
        self.happened: Counter[str] = Counter()
        self.dead: list[Died] = []
        self.events: deque[tuple[float, str, object]] = deque(maxlen=EVENTS_KEPT)
        self.oracle = self.make_oracle()
        self.machine_set = self.make_machines()
        self.network = Network(random)
        self.out = Outbox(plan.task_ids_of(ACKER))
        self.ending = False
        self._calls = VirtualCalls()
        self._paused_until = 0
        self._arrived: list[Track] = []
        self._draining = self._pausing = False
        self.oracle.now_s = self.now_s
        self.machine_set.start(self.now, self.out)
        self._carry_out()

    def make_oracle(self) -> Oracle:
        """What holds the machines to the guarantee."""
        return Oracle(self.options)

    def make_machines(self) -> FaultyMachineSet:
        """The machines, not started."""
        return FaultyMachineSet(self)

    @property
    def now(self) -> Now:
        """The clocks of this moment."""
        return Now(self.now_s, WALL_S + self.now_s)

    @property
    def is_ending(self) -> bool:
        """Whether a task that is gone has things to do still."""
        return self._calls.is_ending

    def note(self, what: str, detail: object = "") -> None:
        """Record an event."""
        self.events.append((self.now_s, what, detail))

    def inject_fault(self, fault: str) -> bool:
        """Whether a fault happens now."""
        likelihood: float = getattr(self.faults, fault)
        if likelihood and self.random.random() < likelihood:
            self.happened[fault] += 1
            return True
        return False

    # --- one step ---------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Let something happen; False if there was nothing to do at this time."""
        self.steps += 1
        self._advance(self.random.expovariate(1.0 / STEP_S))
        self._inject()
        envelopes = self.network.take(self.random.choice((1, 1, 1, 2, 3, 6)), self.now_s)
        together = self.random.random() < 0.5
        for envelope in envelopes:
            self._deliver(envelope)
            if together:
                self._work_at_once()
        ended = self._calls.turn(self.now_s)
        for task, finished in ended:
            self._send(Envelope(task, finished))
        polled = self._poll(everyone=not envelopes)
        self._carry_out()
        arrived, self._arrived = self._arrived, []
        for track in arrived:  # only now is it known what else is on its way to the acker
            self.oracle.track_arrived(track)
        return bool(envelopes) or bool(ended) or polled

    def wait(self) -> bool:
        """Nothing is to be done now: release what is held, or move on in time; False if nothing will ever come."""
        if self.ending and self._flush():
            return True
        due = [due_s for machine in self.machine_set.machines.values() if (due_s := machine.next_due_s()) is not None]
        due += [due_s for due_s in (self.network.next_due_s(), self._calls.next_due_s()) if due_s is not None]
        if not due:
            return self._pausing or self._paused_until > self.steps
        self._advance(max(0.0, min(due) - self.now_s))
        return True

    def drain(self) -> None:
        """Stop the spouts from emitting anything new."""
        self.note("drain")
        self._draining = self.ending = True
        self._pausing = False
        for spout in self.machine_set.spouts():
            spout.drain()

    def abandon(self) -> None:
        """Give what is open back to its sources: the end of a stop."""
        for spout in self.machine_set.spouts():
            self._call(spout.task.task_id, spout.abandon)
        self._carry_out()
        for _ in range(MAX_LAST_STEPS):
            if all(spout.is_drained for spout in self.machine_set.spouts()) and not self.is_ending:
                break
            _ = self.step() or self.wait()

    def rotate(self) -> None:
        """Let one rotation of the ackers pass, and settle what comes of it."""
        self._advance((self.options.message_timeout_s or 30.0) / (self.options.timeout_buckets - 1))
        while self.step() or self._flush():
            pass

    def close(self) -> None:
        """Close every component."""
        for machine in self.machine_set.machines.values():
            machine.stop(self.now, self.out)
        self._end_calls()
        self._calls.close()

    def calm(self) -> None:
        """No more faults."""
        self.note("calm")
        self.faults = Faults.none()
        self.away.end()

    def _flush(self) -> bool:
        flushed = [self._call(task, machine.flush) for task, machine in self.machine_set.machines.items()]
        self._carry_out()
        return any(flushed)

    def _advance(self, seconds: float) -> None:
        self.now_s += seconds
        self.oracle.now_s = self.now_s

    def _deliver(self, envelope: Envelope) -> None:
        content, task = envelope.content, envelope.task
        machine = self.machine_set.machines[task]
        if isinstance(content, Frame):
            self._work(content)
        elif isinstance(content, DueCall):
            self._calls.start(task, content.number, content.function)
        elif isinstance(content, LettersStored):
            assert isinstance(machine, SpoutMachine)
            self.dead += content.died
            self.note("the dead letters are durable", content.died)
            self._call(task, lambda _, __: machine.letters_stored(content.died))
        else:
            self.note(f"to task {task} {machine.task.component}", content)
            if isinstance(content, Track):
                self.oracle.track_arrives(content)
            self._call(task, lambda now, out: machine.receive([content], now, out))
            if isinstance(content, Track):
                self._arrived.append(content)

    def _work(self, frame: Frame) -> None:
        machine = self.machine_set.machines[frame.task]
        self.note(f"to task {frame.task} {machine.task.component}", frame)
        if isinstance(machine, SinkMachine):
            self.oracle.took(frame.task, frame)
        fields = frame.roots, frame.ends, frame.id, frame.made, frame.source
        copy = Frame(frame.task, frame.component, frame.stream, [*frame.values], *fields)
        if machine.pace is not None and len(copy.values) > 1 and self.random.random() < CUT_SHARE:
            copy, rest = machine.cut(copy, self.random.randrange(1, len(copy.values)), self.out)
            self._call(frame.task, lambda now, out: machine.work(copy, now, out))
            self._work(rest)
            return
        self._call(frame.task, lambda now, out: machine.work(copy, now, out))

    def _work_at_once(self) -> None:
        """Frames of this step that go to tasks of the same executor: some of them."""
        for _ in range(8):
            if not self.out.frames:
                return
            self._work(self.out.frames.pop(self.random.randrange(len(self.out.frames))))

    def _call(self, task: int, action: Callable[[Now, Outbox], Any]) -> Any:
        """Call a machine, and tell the oracle what came of it."""
        out = self.out
        frames, mail = len(out.frames), len(out.mail)
        result = action(self.now, out)
        self.oracle.sent(out.frames[frames:])
        if isinstance(self.machine_set.machines[task], AckerMachine):
            for _, content in out.mail[mail:]:
                if isinstance(content, TreeVerdicts):
                    self.oracle.decided(content)
        return result

    def _poll(self, *, everyone: bool) -> bool:
        machines = self.machine_set.machines
        tasks = [*machines] if everyone else self.random.choices([*machines], k=2)
        paused = self._paused_until > self.steps or len(self.network) > 400
        came = False
        for task in dict.fromkeys(tasks):
            machine = machines[task]
            if self._call(task, partial(machine.poll, paused=paused)):
                came = True
            if isinstance(machine, AckerMachine):
                self.oracle.rotated(machine.task.index)
        return came

    # --- effects ----------------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        out = self.out
        for task, track in out.take_tracks():
            self.oracle.track_sent(track)
            if self.oracle.may_lose(track) and self.inject_fault("lose_tracks"):
                self.oracle.track_lost(track)
                self.note("lost", track)
            else:
                if self.inject_fault("repeat_tracks"):
                    self.oracle.track_repeated(track)
                    self._send(Envelope(task, track))
                self._send(Envelope(task, track))
        for frame in out.take_frames():
            if self.inject_fault("lose_frames"):
                self.note("lost", frame)
                self.machine_set.machines[frame.task].skip(frame)
                continue
            if self.inject_fault("repeat_frames"):
                self.oracle.repeated(frame)
                self._send(Envelope(frame.task, frame))
            self._send(Envelope(frame.task, frame))
        for task, mail in out.take_mail():
            self._send_mail(task, mail)
        for task in out.ticks:
            self.machine_set.machines[task].tick(self.now, out)
        for task, number, function in out.calls:
            self._send(Envelope(task, DueCall(number, function)))
        for died in out.died:
            self._send(Envelope(died.spout_task, LettersStored([died])))
        self._end_calls()
        self.oracle.told_facts(out.facts)
        ticked = bool(out.ticks)
        for effects in (out.ticks, out.calls, out.died, out.acked, out.notes, out.facts):
            effects.clear()
        if ticked:
            self.oracle.sent(out.frames)
            self._carry_out()

    def _end_calls(self) -> None:
        cancels, self.out.cancels = self.out.cancels, []
        for task, numbers in cancels:
            self._calls.cancel(task, numbers)
        endings, self.out.endings = self.out.endings, []
        for task, numbers, call in endings:
            self._calls.end(task, numbers, call)

    def _send_mail(self, task: int, mail: Mail) -> None:
        if isinstance(mail, MAY_LOSE) and self.options.message_timeout_s is not None and self.inject_fault("lose_mail"):
            self.note("lost", mail)
            return
        if isinstance(mail, MAY_REPEAT) and self.inject_fault("repeat_mail"):
            self._send(Envelope(task, mail))
        self._send(Envelope(task, mail))

    def _send(self, envelope: Envelope) -> None:
        not_before_s = 0.0
        if self.inject_fault("hold_back"):
            not_before_s = self.now_s + self.random.random() * 2.0 * (self.options.message_timeout_s or 30.0)
        self.network.send(envelope, not_before_s)

    # --- faults -----------------------------------------------------------------------------------------------

    def _inject(self) -> None:
        if self.inject_fault("jump"):
            seconds = self.random.random() * (self.options.message_timeout_s or 30.0)
            self.note(f"the clock jumps by {seconds:.3f} s")
            self._advance(seconds)
        if self._pausing and self._paused_until <= self.steps:
            self._pausing = False
            for spout in self.machine_set.spouts():
                spout.resume()
        if self.inject_fault("pause"):
            self._pause()
        if self.inject_fault("outage"):
            self.note("is away", self.away.begin(self.random, 2.0 * (self.options.message_timeout_s or 30.0)))
        if self.inject_fault("kill_bolts"):
            self._kill_bolt()
        if self.inject_fault("kill_ackers"):
            self._kill_acker()
        if self.inject_fault("kill_sinks"):
            self._kill_sink()
        if self.inject_fault("kill_spouts"):
            self._kill_spout()
        if self.inject_fault("restart"):
            self._restart()
        if self.inject_fault("crash"):
            self._crash()

    def _pause(self) -> None:
        """For a while: because too much is in flight, or because it was requested."""
        self._paused_until = self.steps + self.random.randrange(50)
        if self.random.getrandbits(1) and not self._draining:
            self.note("pause")
            self._pausing = True
            for spout in self.machine_set.spouts():
                spout.pause()

    def _one(self, kind: str) -> int | None:
        """A task of a kind, at random."""
        tasks = [task.task_id for task in self.plan.tasks if self.machine_set.kind_of(task) == kind]
        return self.random.choice(tasks) if tasks else None

    def _lose_on_the_way(self, task: int) -> None:
        """What is on its way to a task that died, as often as not. Calls and their ends always go with their task."""
        mailbox = self.random.random() < 0.5
        self._calls.forget([task])

        def is_gone(envelope: Envelope) -> bool:
            content = envelope.content
            if envelope.task != task:
                return False
            return isinstance(content, DueCall | Finished) or (
                mailbox and isinstance(content, Frame | Track | WriteRequest)
            )

        for envelope in self.network.lose(is_gone):
            if isinstance(envelope.content, Track):
                self.oracle.track_lost(envelope.content)

    def _kill_bolt(self) -> None:
        task = self._one("bolt")
        if task is not None:
            self.note(f"bolt task {task} dies")
            self._lose_on_the_way(task)
            self._replace(task)

    def _kill_acker(self) -> None:
        task = self._one("acker")
        if task is None:
            return
        self.note(f"acker task {task} dies")
        index = self.plan.tasks[task].index
        self._lose_on_the_way(task)
        self.network.lose(lambda one: isinstance(one.content, HighWater) and one.content.acker_task == task)
        self.oracle.acker_died(index)
        self._replace(task)
        for spout in self.machine_set.spouts():
            self._call(spout.task.task_id, partial(spout.acker_lost, index))
        for sink in self.machine_set.sinks():
            self._call(sink.task.task_id, partial(sink.acker_lost, index, self.options.acker_tasks))

    def _kill_sink(self) -> None:
        task = self._one("sink")
        if task is None:
            return
        self.machine_set.incarnations[task] += 1
        self._lose_on_the_way(task)
        self.oracle.sink_died(task)
        self._replace(task)
        loud = self.random.random() < 0.5
        self.note(f"sink task {task} dies" + (" and says so" if loud else ""))
        if loud:
            reset = SinkReset(task, self.machine_set.incarnations[task])
            for spout in self.machine_set.spouts():
                self._send_mail(spout.task.task_id, reset)

    def _kill_spout(self) -> None:
        task = self._one("spout")
        assert task is not None
        self.note(f"spout task {task} fails, and its messages are carried over")
        spout = self.machine_set.machines[task]
        assert isinstance(spout, SpoutMachine)
        spout_checkpoint = self._call(task, spout.hand_over)
        self._end_spout(spout)
        self._replace(task, spout_checkpoint)

    def _end_spout(self, spout: SpoutMachine) -> None:
        """Deliver what it is still to get; its calls and their ends are lost with it."""
        task = spout.task.task_id
        self.network.lose(lambda one: one.task == task and isinstance(one.content, DueCall | Finished))
        if isinstance(spout, AsyncSpoutMachine):
            spout.stop(self.now, self.out)
            self._end_calls()
            # No spout is opened before the one that it replaces is closed.
            self._advance(self._calls.let_end(self.now_s) - self.now_s)

    def _replace(self, task: int, spout_checkpoint: Any = None) -> None:
        machine: Machine = self.machine_set.replace(task, self.now, self.out, spout_checkpoint)
        if self._draining and isinstance(machine, SpoutMachine):
            machine.drain()

    def _restart(self) -> None:
        """As after a fault: messages are carried over, and dead letters that are being written are written."""
        self.note("the topology restarts")
        spout_checkpoints = {
            spout.task.task_id: self._call(spout.task.task_id, spout.hand_over) for spout in self.machine_set.spouts()
        }
        died = self.out.died
        self.oracle.told_facts(self.out.facts)
        for spout in self.machine_set.spouts():
            self._end_spout(spout)
        self._lose_all(lambda envelope: not isinstance(envelope.content, LettersStored))
        self.out.died += died
        for task in itertools.chain.from_iterable(self._order()):
            self._replace(task, spout_checkpoints.get(task))

    def _crash(self) -> None:
        """As after a kill -9, where every source can deliver again."""
        if len(self.scripts) < len({spout.task.component for spout in self.machine_set.spouts()}):
            return
        self.note("the process dies")
        for spout in self.machine_set.spouts():
            self.scripts[spout.task.component].redeliver(spout.task.index)
            self.oracle.forget(spout.task.task_id)
        self._lose_all(lambda _: True)
        for task in itertools.chain.from_iterable(self._order()):
            self._replace(task)

    def _lose_all(self, gone: Callable[[Envelope], bool]) -> None:
        """Nothing of what the machines knew and had sent is left, but what is on its way and not gone."""
        self.out = Outbox(self.plan.task_ids_of(ACKER))
        self._calls.forget([task.task_id for task in self.plan.tasks])
        for envelope in self.network.lose(gone):
            if isinstance(envelope.content, Track):
                self.oracle.track_lost(envelope.content)
        for index in range(self.options.acker_tasks):
            self.oracle.acker_died(index)
        for sink in self.machine_set.incarnations:
            self.machine_set.incarnations[sink] += 1
            self.oracle.sink_died(sink)
        self.machine_set.attempts.clear()

    def _order(self) -> list[list[int]]:
        kinds = ("acker", "bolt", "sink", "spout", "system")
        return [[task.task_id for task in self.plan.tasks if self.machine_set.kind_of(task) == kind] for kind in kinds]


class FaultyMachineSet(MachineSet):
    """Machines whose sinks refuse rows at times."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        linger_s = simulation.random.choice((0.0, 0.0, 0.05))
        super().__init__(simulation.plan, simulation.options, simulation.random, simulation.oracle, linger_s=linger_s)

    def sink(self, component: ComponentSpec) -> Sink[Any]:
        """See `MachineSet`."""
        return _FaultySink(super().sink(component), self._simulation, component.name)


class _FaultySink(Sink[Any]):
    def __init__(self, inner: Sink[Any], simulation: Simulation, name: str) -> None:
        self._inner = inner
        self._name = name
        self._simulation = simulation

    def open(self, context: SinkContext) -> None:
        self._inner.open(context)

    def write(self, batch: SinkBatch[Any]) -> None:
        simulation = self._simulation
        simulation.note("a sink is to write", batch)
        simulation.away.check(self._name)
        if simulation.inject_fault("refuse_rows"):
            simulation.note("it refuses")
            if simulation.random.getrandbits(1):
                position = simulation.random.randrange(len(batch.rows))
                raise SinkRowsError("simulator", [RowError(position, "refused by the simulator")])
            raise OSError("refused by the simulator")
        self._inner.write(batch)
