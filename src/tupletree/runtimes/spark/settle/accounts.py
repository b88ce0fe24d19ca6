"""The accounts of a run: what the driver knows of every message, tree, state version and total.

Shared by the loop and the settling thread: every change holds `lock`, and so does who reads what the other changes.
Trees, state, kept frames and rows that wait change with the settling thread's decisions alone: it reads them without.
It can be rebuilt from the journal at any time (`recovery`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from tupletree.data.payloads import from_jsonable, to_jsonable
from tupletree.ids import RandomBits, system_random_bits
from tupletree.runtimes.spark.format.carryover import CarryOver
from tupletree.runtimes.spark.format.entries import Counters
from tupletree.runtimes.spark.format.epoch_messages import EpochMessages, StoredPayload
from tupletree.runtimes.spark.format.rows import KEY_BITS, keys_of
from tupletree.runtimes.spark.settle.epoch_order import KeyTable, Ordering
from tupletree.runtimes.spark.settle.open_trees import OpenTrees, WaitingRows
from tupletree.state.versions import StateFile
from tupletree.topology.model import TopologySpec
from tupletree.tracking.holds import Hold, added_up
from tupletree.tracking.outcomes import Failure
from tupletree.tracking.pending import Pending

LONG_EPOCH_S = 5.0
"""An epoch that is worked for so long is said to hold its messages: nothing else is known of them until it ends."""


@dataclass(frozen=True)
class RunningEpoch:
    """An epoch that is worked: its number, how many messages it has, and since when (monotonic)."""

    epoch: int
    messages: int
    since_s: float


@dataclass(frozen=True)
class Dropped:
    """What a user has dropped and the last settle entry still names; see `Accounts`."""

    state: Mapping[str, list[StateFile]] = field(default_factory=dict)
    kept: Mapping[str, dict[int, CarryOver]] = field(default_factory=dict)
    waiting: frozenset[str] = frozenset()


@dataclass
class Accounts:
    """See the module docstring.

    Attributes:
        pending: messages in flight and waiting.
        spout_of: spout task → component name.
        trees: trees whose epoch is over.
        waiting: rows of committed candidates that wait for some of them.
        waiting_names: files that are needed for these rows, as the last settled epoch left them.
        refused: open trees that cannot be acked any more, because a sink refused rows of theirs → why.
        kept: component → task index → what is kept for later epochs.
        gone: roots that died in the last settled epoch while tuples of them were kept.
        state: component → segments of the committed version.
        totals: counters at the last settled epoch, over the life of the state directory.
        inputs: epoch → messages of it that are only counted (`EpochMessages.is_counted`), of epochs that are logged and
            not settled.
        counted: spout task → how many messages are only counted: in epochs that are not settled, and in none yet.
        positions, ended: spout task → position after the last logged epoch; tasks whose input is over.
        replays: replay requests that were carried out.
        accepted: replay requests that were carried out and that the next entry must name.
        since_base: how many epochs and messages were settled since the last base: what a restart would have to read.
        settled: the last settled epoch; -1 before the first.
        joined_taken: how many of `pending.counters.joined` are in the totals.
        random_bits: for ids.
        ran_from_s: the monotonic time at which the run's clock (`ran_s`) would be 0.
        epoch_time_s: of the last logged epoch.
        released: open trees that are complete because a user has dropped what they waited for: the next epoch acks
            their messages.
        dropped: what was kept by, and the state of, components which a user has dropped, by component: the last settle
            entry names its files, so they stay until the next one is written.
        ordering: where the topology has ordered bolts, what is the same for all epochs; else None.
        key_table: then what waits for another attempt, and which keys it holds.
        running: the epoch that is worked now.
        given_up_s: spout task → windows wait no longer for what its source is to emit again, if it failed by then
            (monotonic).
    """

    spec: TopologySpec
    pending: Pending
    spout_of: dict[int, str]
    trees: OpenTrees = field(default_factory=OpenTrees)
    waiting: WaitingRows = field(default_factory=WaitingRows)
    waiting_names: frozenset[str] = frozenset()
    refused: dict[int, Failure] = field(default_factory=dict)
    kept: dict[str, dict[int, CarryOver]] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)
    state: dict[str, list[StateFile]] = field(default_factory=dict)
    totals: Counters = field(default_factory=Counters)
    inputs: dict[int, list[EpochMessages]] = field(default_factory=dict)
    counted: dict[int, int] = field(default_factory=dict)
    positions: dict[int, Any] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    replays: set[str] = field(default_factory=set)
    accepted: list[str] = field(default_factory=list)
    since_base: tuple[int, int] = (0, 0)
    settled: int = -1
    joined_taken: int = 0
    ran_from_s: float = 0.0
    epoch_time_s: float = 0.0
    released: list[int] = field(default_factory=list)
    dropped: Dropped = field(default_factory=Dropped)
    ordering: Ordering | None = None
    key_table: KeyTable = field(default_factory=dict)
    running: RunningEpoch | None = None
    given_up_s: dict[int, float] = field(default_factory=dict)
    random_bits: RandomBits = system_random_bits
    lock: threading.RLock = field(default_factory=threading.RLock)

    def encode_value(self, _spout_task: int, value: Any) -> Any:
        """A message's value as the journal and dead letters keep it."""
        return value.payload if isinstance(value, StoredPayload) else to_jsonable(value)

    def decode_value(self, spout_task: int, data: Any) -> Any:
        """Undo `encode_value`, by the class of the spout's stream.

        It may have lost fields since: a start is refused if the user has not agreed to that.
        """
        return from_jsonable(data, self.message_class(spout_task), may_have_more=True)

    def message_class(self, spout_task: int) -> type:
        """The class of what a spout task emits."""
        (stream,) = self.spec.components[self.spout_of[spout_task]].outputs.values()
        return stream.schema.cls

    def ran_s(self, monotonic_s: float) -> float:
        """Seconds that processes of this run have run for: nothing expires during downtime."""
        return monotonic_s - self.ran_from_s

    def carryover_due_s(self) -> float:
        """When, in epoch time, an epoch is due for what is kept, with or without new messages; infinity: never."""
        if self.released:
            return -math.inf
        versions = [kept for tasks in self.kept.values() for kept in tasks.values()]
        if any(kept.arrives for kept in versions) or (self.gone and versions):  # dead messages are purged
            return -math.inf
        return min((kept.due_s for kept in versions if kept.due_s is not None), default=math.inf)

    def retrying_since_s(self) -> float | None:
        """When the oldest message was first emitted that has a later attempt: one that waits, runs, or is to run.

        It counts in the epoch in which its attempt runs too, because that may fail again. Messages of which frames are
        kept are not among them: see `kept_retrying`.
        """
        with self.lock:
            kept = self.trees.attempts
            given_up_s = self.given_up_s
            sinces = [
                self.pending.retrying_since_s(task, kept, given_up_s.get(task, -math.inf)) for task in self.spout_of
            ]
        return min((since_s for since_s in sinces if since_s is not None), default=None)

    def give_up_blocked(self, spout_task: int, now_s: float) -> bool:
        """Let windows wait no longer for what a source, which has reached its limit, is to emit again.

        A circular wait otherwise: they hold what fills the limit, so that the source is not asked. Called between
        epochs, when all that is in flight is kept by tasks; those look again in the next epoch.

        Returns:
            Whether anything was given up.
        """
        pending = self.pending
        with self.lock:
            waits = pending.in_flight(spout_task) < pending.open_count(spout_task)
            since_s = self.given_up_s.get(spout_task, -math.inf)
            if waits or not self.kept or pending.retrying_since_s(spout_task, None, since_s) is None:
                return False
            self.given_up_s[spout_task] = now_s
            for tasks in self.kept.values():
                tasks.update({index: msgspec.structs.replace(kept, due_s=0.0) for index, kept in tasks.items()})
        return True

    def kept_retrying(self, ran_s: float) -> dict[int, float]:
        """Messages of which frames are kept, and that wait for another attempt or begin it at this time of the run.

        For each the time when it was first emitted.
        """
        roots = self.trees.parked(ran_s) | self.trees.resuming(ran_s)
        with self.lock:
            return dict(zip(roots, self.pending.first_emitted_s(roots), strict=True))

    def holds(self, now_s: float, wall_s: float) -> tuple[Hold, ...]:
        """What open messages and their tuples wait for.

        Args:
            now_s: monotonic.
            wall_s: the same moment since the Unix epoch.
        """
        from_wall_s = now_s - wall_s
        found: list[Hold] = []
        with self.lock:
            for task, name in self.spout_of.items():
                waiting = self.pending.open_count(task) - self.pending.in_flight(task)
                due_s = self.pending.peek_due_s() if waiting else None
                until_s = None if due_s is None or not math.isfinite(due_s) else due_s - from_wall_s
                found.append(Hold("retry", name, waiting, until_s=until_s))
                found.append(Hold("source", name, self.pending.awaiting_source(task)))
            found += [kept.hold(name) for name, tasks in self.kept.items() for kept in tasks.values()]
        running = self.running
        if running is not None and now_s - running.since_s >= LONG_EPOCH_S:
            since_s = running.since_s - from_wall_s
            found.append(Hold("epoch", "epoch", running.messages, since_s=since_s, key=str(running.epoch)))
        return added_up(found)

    def first_emitted(self, roots: Iterable[int]) -> dict[int, float]:
        """When the messages of these roots were first emitted, as far as they are in flight."""
        with self.lock:
            known = [root for root in roots if root in self.pending.attempts_out]
            return dict(zip(known, self.pending.first_emitted_s(known), strict=True))

    @property
    def joined(self) -> int:
        """Deliveries of open messages, over the life of the state directory."""
        return self.totals.joined + self.pending.counters.joined - self.joined_taken

    def is_idle(self) -> bool:
        """Whether no message is in flight, waiting or awaited from its source."""
        tasks = self.spout_of
        return not any(self.open_count(task) or self.pending.awaiting_source(task) for task in tasks)

    # --- messages that are only counted -------------------------------------------------------------------------------

    def open_count(self, spout_task: int) -> int:
        """Messages of a spout task that are in flight or waiting, those that are only counted among them."""
        return self.pending.open_count(spout_task) + self.counted.get(spout_task, 0)

    def oldest_first_s(self) -> float | None:
        """When the oldest message without an outcome was first emitted, monotonic; None if there is none."""
        logged = [self.ran_from_s + one.logged_s for one in self._all_counted()]
        pending = self.pending.oldest_first_s()
        return min(logged if pending is None else [*logged, pending], default=None)

    def draw_key(self, count: int) -> int:
        """A key for so many roots (`rows.root_ids`) none of which is that of anything in flight."""
        in_flight = keys_of(self.pending.roots_in_flight())
        while True:
            key = self.random_bits(KEY_BITS)
            end = key + count
            taken = (one.keys for one in self._all_counted())
            if not 0 < key < end <= 1 << KEY_BITS or any(key < keys.stop and keys.start < end for keys in taken):
                continue
            if not bool(((in_flight >= key) & (in_flight < end)).any()):
                return key

    def draw_roots(self, bits: int) -> int:
        """Random bits for `Pending`: 64 for each root, none of which is that of a message that is only counted."""
        while True:
            drawn = self.random_bits(bits)
            if not self.inputs:
                return drawn
            roots = np.frombuffer(drawn.to_bytes(bits // 8, "little"), np.uint64).tolist()
            if not any(one.among(roots) for one in self._all_counted()):
                return drawn

    def count(self, by_task: Mapping[int, int]) -> None:
        """So many more messages are open, by spout task."""
        for task, number in by_task.items():
            self.counted[task] = self.counted.get(task, 0) + number

    def log(self, epoch: int, inputs: Sequence[EpochMessages]) -> None:
        """These are the messages of an epoch. Those that are only counted were given to `count` before."""
        counted = [one for one in inputs if one.is_counted and len(one.roots)]
        if counted:
            self.inputs[epoch] = counted

    def forget(self, epoch: int, inputs: Sequence[EpochMessages]) -> None:
        """An epoch is settled: of what was only counted, `Pending` has what the epoch did not finish."""
        self.inputs.pop(epoch, None)
        for one in inputs:
            if one.is_counted:
                for task, number in one.by_task.items():
                    self.counted[task] -= number

    def _all_counted(self) -> Iterator[EpochMessages]:
        return chain.from_iterable(self.inputs.values())
