"""Pending against a model: whatever sources, trees, clocks and restarts do, every message ends exactly once."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.tracking.logging_pending import snapshot, take_changes
from tupletree.tracking.outcomes import Failure, FailureKind, Outcome
from tupletree.tracking.pending import Pending
from tupletree.tracking.pending_log import PendingChanges
from tupletree.tracking.records import Acked, AlreadySettled, Died, Emission, Joined, RetryAt, SourceRetry
from tupletree.tracking.retry import RetryPolicy

if TYPE_CHECKING:
    from tupletree.ids import MessageId

POLICY = RetryPolicy(max_attempts=3, backoff_initial_ms=1000, backoff_factor=2, backoff_max_ms=3000, jitter=0)
RUNTIME, SOURCE = 1, 2
WALL_S = 1_000_000.0
IDS: list[MessageId] = [0, False, "", b"", (0,), (False,), 2**64]

tasks = st.sampled_from([RUNTIME, SOURCE])
ids = st.sampled_from(IDS)


@dataclass
class Message:
    """What is true of one open message."""

    spout_task: int
    message_id: MessageId
    value: int
    by_source: bool
    first_s: float
    place: Literal["flying", "waiting", "awaiting"]
    attempt: int
    root: int
    due: tuple[float, int] = (0.0, 0)


class PendingMachine(RuleBasedStateMachine):
    """A runtime with two spout tasks, that may be killed and restored at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.uptime_s = 0.0  # the monotonic clock starts again with each process
        self.turn = 0
        self.model: dict[tuple[int, str], Message] = {}
        self.unconfirmed: dict[tuple[int, str], tuple[MessageId, Outcome]] = {}
        self.old_roots: list[int] = []
        self.started = self.ended = 0  # messages
        self.counted_before_restart = 0

    @initialize(seed=st.integers(0, 2**32))
    def prepare(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.boot()
        self.logged = [snapshot(self.pending, self.encode, 0.0, WALL_S)]
        for spout_task in (RUNTIME, SOURCE):
            self.emit_many(spout_task, [*IDS[:4], None])

    def boot(self) -> None:
        self.pending = Pending(POLICY, self.random.getrandbits, self.random.random, record_changes=True)
        self.pending.register(RUNTIME, "runtime")
        self.pending.register(SOURCE, "source", "source")

    @staticmethod
    def encode(spout_task: int, value: Any) -> Any:
        return [spout_task, value]

    @staticmethod
    def decode(spout_task: int, plain: Any) -> Any:
        assert plain[0] == spout_task
        return plain[1]

    @property
    def clock_s(self) -> float:
        return self.now_s - self.uptime_s

    def flying(self) -> list[Message]:
        return [message for message in self.model.values() if message.place == "flying"]

    def next_turn(self) -> int:
        self.turn += 1
        return self.turn

    # --- sources ---

    @rule(spout_task=tasks, message_id=ids)
    def emit(self, spout_task: int, message_id: MessageId) -> None:
        value = self.next_turn()
        result = self.pending.emit(spout_task, message_id, value, self.clock_s, WALL_S + self.now_s)
        self.check_emit(result, spout_task, message_id, value)

    @rule(spout_task=tasks, message_ids=st.lists(st.one_of(ids, st.none()), max_size=9))
    def emit_many(self, spout_task: int, message_ids: list[MessageId | None]) -> None:
        values = [self.next_turn() for _ in message_ids]
        emitted = self.pending.emit_many(spout_task, message_ids, values, self.clock_s, WALL_S + self.now_s)
        by_value = {
            value: (root, attempt)
            for root, value, attempt in zip(emitted.roots, emitted.values, emitted.attempts, strict=True)
        }
        known = iter(emitted.known)
        for message_id, value in zip(message_ids, values, strict=True):
            if message_id is None:
                assert by_value[value] == (0, 1)
            elif value in by_value:
                root, attempt = by_value[value]
                self.check_emit(Emission(root, spout_task, message_id, value, attempt), spout_task, message_id, value)
            else:
                self.check_emit(next(known), spout_task, message_id, value)
        assert not list(known)

    def check_emit(
        self, result: Emission | Joined | AlreadySettled, spout_task: int, message_id: MessageId, value: int
    ) -> None:
        key = (spout_task, repr(message_id))
        message = self.model.get(key)
        if message is None and key in self.unconfirmed:
            assert result == AlreadySettled(self.unconfirmed[key][1], spout_task, message_id)
        elif message is not None and message.place != "awaiting":
            assert result == Joined(message.root, spout_task, message_id)
        else:
            if message is None:
                message = Message(spout_task, message_id, value, spout_task == SOURCE, self.now_s, "flying", 0, 0)
                self.model[key] = message
                self.started += 1
            message.value = value
            assert isinstance(result, Emission)
            self.check_launch(result, message)

    def check_launch(self, emission: Emission, message: Message) -> None:
        message.place = "flying"
        message.attempt += 1
        message.root = emission.root
        assert emission.root
        assert emission.root not in self.old_roots
        self.old_roots.append(emission.root)
        assert (emission.spout_task, emission.value) == (message.spout_task, message.value)
        assert repr(emission.message_id) == repr(message.message_id)
        assert emission.attempt == message.attempt <= POLICY.max_attempts

    @rule(spout_task=tasks, message_id=ids)
    def replay(self, spout_task: int, message_id: MessageId) -> None:
        value = self.next_turn()
        result = self.pending.replay(spout_task, message_id, value, self.clock_s, WALL_S + self.now_s)
        key = (spout_task, repr(message_id))
        if key in self.model:
            assert result == Joined(self.model[key].root, spout_task, message_id)
            return
        assert result == RetryAt(spout_task, message_id, 1, self.clock_s, 0)
        due = (self.now_s, self.next_turn())
        self.model[key] = Message(spout_task, message_id, value, False, self.now_s, "waiting", 0, 0, due)
        self.started += 1

    @rule(spout_task=tasks, message_id=ids)
    def confirm(self, spout_task: int, message_id: MessageId) -> None:
        self.pending.confirm(spout_task, message_id)
        self.unconfirmed.pop((spout_task, repr(message_id)), None)

    @rule(silent_for_s=st.integers(0, 3))
    def give_up(self, silent_for_s: int) -> None:
        gone = self.pending.give_up(SOURCE, self.clock_s, 0.0, silent_for_s=float(silent_for_s))
        for died in gone:
            message = self.model.pop((SOURCE, repr(died.message_id)))
            assert (message.place, message.value) == ("awaiting", died.value)
            self.ended += 1
        if not silent_for_s:
            assert self.pending.awaiting_source(SOURCE) == 0

    # --- verdicts ---

    def choose_root(self, which: int, any_root: bool) -> int:
        """A root that is out, or any that ever was."""
        roots = self.old_roots if any_root else [message.root for message in self.flying()]
        return roots[which % len(roots)] if roots else 1

    @rule(which=st.integers(0), any_root=st.booleans(), remember=st.booleans())
    def ack(self, which: int, any_root: bool, remember: bool) -> None:
        self.settle(self.choose_root(which, any_root), remember)

    @rule(remember=st.booleans())
    def ack_all(self, remember: bool) -> None:
        for message in self.flying():
            self.settle(message.root, remember)

    def settle(self, root: int, remember: bool) -> None:
        acked = self.pending.ack_many([root], self.clock_s)
        message = next((one for one in self.flying() if one.root == root), None)
        if message is None:
            assert not acked, "an old root touches nothing"
            return
        latency_s = self.now_s - message.first_s
        assert acked == [Acked(message.spout_task, message.message_id, latency_s, message.attempt)]
        self.end(message, Outcome.ACKED, remember)

    def end(self, message: Message, outcome: Outcome, remember: bool) -> None:
        key = (message.spout_task, repr(message.message_id))
        del self.model[key]
        self.ended += 1
        if remember:
            self.pending.mark_unconfirmed(message.spout_task, message.message_id, outcome)
            self.unconfirmed[key] = (message.message_id, outcome)

    @rule(which=st.integers(0), any_root=st.booleans(), permanent=st.booleans(), remember=st.booleans())
    def fail(self, which: int, any_root: bool, permanent: bool, remember: bool) -> None:
        self.fail_root(self.choose_root(which, any_root), permanent, remember)

    @rule(seconds=st.integers(0, 3), remember=st.booleans())
    def fail_all_and_try_again(self, seconds: int, remember: bool) -> None:
        for message in self.flying():
            self.fail_root(message.root, False, remember)
        self.now_s += seconds
        self.take_due(9)
        for message in [one for one in self.model.values() if one.place == "awaiting"]:
            self.emit(SOURCE, message.message_id)

    def fail_root(self, root: int, permanent: bool, remember: bool) -> None:
        failure = Failure(kind=FailureKind.ERROR, error=str(self.next_turn()), permanent=permanent)
        result = self.pending.fail(root, failure, self.clock_s, WALL_S + self.now_s)
        message = next((one for one in self.flying() if one.root == root), None)
        if message is None:
            assert result is None
        elif permanent or message.attempt == POLICY.max_attempts:
            assert isinstance(result, Died)
            assert (result.value, result.attempts, result.failure) == (message.value, message.attempt, failure)
            assert result.first_emitted_s == WALL_S + message.first_s
            self.end(message, Outcome.DEAD, remember)
        elif message.by_source:
            assert result == SourceRetry(SOURCE, message.message_id, message.attempt + 1, failure, root)
            message.place = "awaiting"
        else:
            assert isinstance(result, RetryAt)
            assert result.due_s == self.clock_s + (1.0, 2.0)[message.attempt - 1]
            message.place, message.due = "waiting", (result.due_s + self.uptime_s, self.next_turn())

    @rule(which=st.integers(0))
    def put_back(self, which: int) -> None:
        flying = self.flying()
        if flying:
            message = flying[which % len(flying)]
            assert self.pending.put_back(message.root)
            message.place, message.due = "waiting", (-math.inf, self.next_turn())
            message.attempt -= 1

    # --- time ---

    @rule(seconds=st.integers(0, 3))
    def pass_time(self, seconds: int) -> None:
        self.now_s += seconds

    @rule(limit=st.integers(0, 4))
    def take_due(self, limit: int) -> None:
        waiting = sorted((one for one in self.model.values() if one.place == "waiting"), key=lambda one: one.due)
        expected = [one for one in waiting if one.due[0] <= self.now_s][:limit]
        emissions = self.pending.due(self.clock_s, limit)
        for emission, message in zip(emissions, expected, strict=True):
            self.check_launch(emission, message)

    # --- restarts ---

    @rule(base=st.booleans())
    def write_log(self, base: bool) -> None:
        self.pending.note_logged(self.pending.roots_in_flight())
        take = snapshot if base else take_changes
        changes = take(self.pending, self.encode, self.clock_s, WALL_S + self.now_s)
        changes = msgspec.json.decode(msgspec.json.encode(changes), type=PendingChanges)
        self.logged = [changes] if base else [*self.logged, changes]

    @rule(seconds=st.integers(0, 3))
    def restart(self, seconds: int) -> None:
        """The process dies right after a log entry; attempts that were out are in the caller's own log."""
        self.write_log(base=False)
        self.counted_before_restart += self.pending.counters.acked + self.pending.counters.dead
        self.now_s += seconds
        self.uptime_s = self.now_s
        self.boot()
        self.pending.restore(self.logged, self.decode, self.clock_s, WALL_S + self.now_s)
        for message in self.flying():
            if message.spout_task == SOURCE and not message.by_source:
                message.by_source = True  # adopted again, a replayed message is its source's again
            self.pending.adopt(
                message.root,
                message.spout_task,
                message.message_id,
                message.value,
                attempt=message.attempt,
                first_emitted_s=WALL_S + message.first_s,
                now_s=self.clock_s,
                wall_s=WALL_S + self.now_s,
            )

    # --- the judge ---

    @invariant()
    def counts_agree(self) -> None:
        places = [(one.spout_task, one.place) for one in self.model.values()]
        for spout_task in (RUNTIME, SOURCE):
            flying = places.count((spout_task, "flying"))
            assert self.pending.in_flight(spout_task) == flying
            assert self.pending.open_count(spout_task) == flying + places.count((spout_task, "waiting"))
            assert self.pending.awaiting_source(spout_task) == places.count((spout_task, "awaiting"))
            assert len(self.pending.awaited(spout_task)) == self.pending.awaiting_source(spout_task)
            kept = self.pending._tasks[spout_task].unconfirmed
            assert len(kept) == sum(key[0] == spout_task for key in self.unconfirmed)
        due = [one.due[0] - self.uptime_s for one in self.model.values() if one.place == "waiting"]
        assert self.pending.next_due_s() == (min(due) if due else None)
        counters = self.pending.counters
        assert self.counted_before_restart + counters.acked + counters.dead == self.ended
        assert self.started == self.ended + len(self.model)

    @invariant()
    def every_message_can_be_located(self) -> None:
        for message_id in IDS:
            found = {standing.spout_task: standing for standing in self.pending.locate(message_id)}
            for spout_task in (RUNTIME, SOURCE):
                key = (spout_task, repr(message_id))
                if key in self.model:
                    message = self.model[key]
                    outcome = Outcome.OPEN if message.place == "flying" else Outcome.RETRYING
                    assert (found[spout_task].outcome, found[spout_task].root) == (outcome, message.root)
                elif key in self.unconfirmed:
                    assert found[spout_task].outcome is self.unconfirmed[key][1]
                else:
                    assert spout_task not in found

    def teardown(self) -> None:
        """Let everything end: memory goes back to zero."""
        self.now_s += 1000
        self.give_up(0)
        self.take_due(1000)
        self.ack_all(False)
        for spout_task, _ in list(self.unconfirmed):
            for message_id in IDS:
                self.confirm(spout_task, message_id)
        self.write_log(base=False)
        assert (self.pending.size, self.model) == (0, {})


TestPending = PendingMachine.TestCase
TestPending.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
