"""The decision of an epoch, as a value: all that becomes of it, found before anything is changed.

`EpochDecider.decide` reads the accounts and what the run that counts reported, and changes nothing: deciding again
comes to the same. `EpochDecision` has the settle entry, which commits it, the callbacks that follow, and what changes
in the accounts, which `apply` carries out after the commit. No files: who reads and writes is `engine`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from tupletree.config import Options
from tupletree.ids import MessageId
from tupletree.routing.ordered_bolts import OrderedBolts
from tupletree.runtimes.api import Redact
from tupletree.runtimes.spark.format.carryover import carryover_after
from tupletree.runtimes.spark.format.entries import (
    AckedTree,
    Base,
    Behind,
    Counters,
    DeadEntry,
    FailedAttempt,
    SettleEntry,
)
from tupletree.runtimes.spark.settle.accounts import Accounts, Dropped
from tupletree.runtimes.spark.settle.epoch_order import EpochOrder, KeyTable, Place
from tupletree.runtimes.spark.settle.epoch_runs import CountedRun
from tupletree.runtimes.spark.settle.open_trees import TreeChanges, WaitingChanges
from tupletree.runtimes.spark.settle.publish import letter_of
from tupletree.runtimes.spark.settle.reports import Reports
from tupletree.state.versions import StateFile, version_after
from tupletree.topology.model import TopologySpec
from tupletree.tracking.key_lines import Turn
from tupletree.tracking.message_ids import message_key, plain_id
from tupletree.tracking.outcomes import DeadLetter, Failure, Outcome
from tupletree.tracking.pending_decision import PendingDecider, PendingDecision, Times
from tupletree.tracking.pending_log import PendingChanges
from tupletree.tracking.records import Acked, Died, RetryAt, SourceRetry

BASE_EPOCHS = 64
BASE_MESSAGES = 500_000
"""A settle entry holds a base after this many epochs or messages, which limits what a restart reads."""


@dataclass
class EpochOutcomes:
    """What became of an epoch's messages: the callbacks that follow from it.

    Attributes:
        acked, died: messages that ended.
        acked_rows: how many were acked of those that are only counted (`EpochMessages.is_counted`).
        acked_rows_latency_s: how old all of these are.
        source_retries: attempts that failed whose sources are to give the messages again.
        retried_in_place: attempts that failed and go on from what is committed of them.
        wrote_base: the settle entry has a base: files before it can go.
        drained: holders were asked to flush, and nothing more comes of that.
        was_split: a part of it was put back, not only for an outage or the order: the next one is to be smaller.
        runs: how often it ran.
        reports: of the run that counts.
    """

    epoch: int
    acked: list[Acked] = field(default_factory=list)
    acked_rows: int = 0
    acked_rows_latency_s: float = 0.0
    died: list[Died] = field(default_factory=list)
    source_retries: list[SourceRetry] = field(default_factory=list)
    retried_in_place: int = 0
    wrote_base: bool = False
    drained: bool = False
    was_split: bool = False
    runs: int = 0
    reports: Reports = field(default_factory=Reports, compare=False)

    def move_to_died(self, died: list[Died]) -> None:
        """Move messages from the acked to the dead ones: a sink refused them."""
        if died:
            names = {(one.spout_task, message_key(one.message_id)) for one in died}
            before = len(self.acked)
            self.acked = [one for one in self.acked if (one.spout_task, message_key(one.message_id)) not in names]
            self.acked_rows -= len(died) - (before - len(self.acked))
            self.died += died


@dataclass
class EpochDecision:
    """See the module docstring.

    Attributes:
        counted: the run that counts.
        entry: the settle entry: writing it commits the epoch.
        outcomes: the callbacks that follow.
        pending: what becomes of messages.
        trees: what changes among the trees of earlier epochs.
        since_base, key_table: see `Accounts`, afterwards.
    """

    counted: CountedRun = field(compare=False)
    entry: SettleEntry
    outcomes: EpochOutcomes
    pending: PendingDecision
    trees: TreeChanges
    since_base: tuple[int, int]
    key_table: KeyTable

    @property
    def rows(self) -> WaitingChanges:
        """What changes among the rows that wait."""
        return self.counted.chosen.rows

    def apply(self, accounts: Accounts) -> None:
        """Carry out the decision. The entry is written, and nothing has changed since it was decided."""
        entry, header = self.entry, self.counted.settlement.record.header
        accounts.forget(entry.epoch, self.counted.settlement.record.inputs)
        accounts.pending.apply(self.pending)
        accounts.trees.apply(self.trees)
        accounts.trees.resumed(header.ran_s)
        accounts.waiting.apply(self.rows)
        accounts.waiting_names = accounts.waiting.names()
        accounts.gone = entry.gone
        accounts.released, accounts.dropped = [], Dropped()
        accounts.settled = entry.epoch
        accounts.state = entry.state
        accounts.kept = entry.kept
        accounts.totals = entry.counters
        accounts.joined_taken = accounts.pending.counters.joined
        accounts.replays.update(entry.replays)
        accounts.accepted = []
        accounts.since_base = self.since_base
        accounts.key_table = self.key_table


class EpochDecider:
    """See the module docstring."""

    def __init__(self, spec: TopologySpec, options: Options, generation: int, redact: Redact | None) -> None:
        self._topology = spec.name
        self._generation = generation
        self._redact = redact
        self._timeout_s = options.message_timeout_s
        has_state = any(getattr(one.body, "state", None) for one in spec.components.values())
        is_exact = options.state_guarantee == "exactly_once" or OrderedBolts.of(spec) is not None
        verb = "does not" if is_exact else "may"
        self._note = f"keyed state {verb} hold this message" if has_state else ""

    def decide(self, accounts: Accounts, counted: CountedRun, times: Times) -> EpochDecision:
        """Decide what becomes of an epoch, whose run counts, at this time; changes nothing."""
        return _Deciding(accounts, counted, times, self._timeout_s).decide(self._generation, self._letter)

    def _letter(self, died: Died, accounts: Accounts, *, is_committed: bool) -> DeadLetter:
        effects = "it failed after a part of it was committed: its earlier effects stay, also on keyed state"
        return letter_of(died, accounts, effects if is_committed else self._note, self._redact)


class _Deciding:
    """What is found while an epoch is being decided."""

    def __init__(self, accounts: Accounts, counted: CountedRun, times: Times, timeout_s: float | None) -> None:
        settlement = counted.settlement
        self._accounts = accounts
        self._counted = counted
        self._times = times
        self._timeout_s = timeout_s
        self._pending: PendingDecider = accounts.pending.decider(*times)
        self._trees = TreeChanges(accounts.trees)
        self._outcomes = EpochOutcomes(
            settlement.record.epoch,
            acked_rows=sum(len(one.roots) for one in settlement.record.inputs if one.is_counted)
            - len(counted.adoptions),
            acked_rows_latency_s=accounts.ran_s(times.now_s) - settlement.record.header.ran_s,
            drained=settlement.drains,
            was_split=not (settlement.away.keys() | settlement.behind) >= set(settlement.put_back),
            runs=settlement.runs,
            reports=counted.reports,
        )

    def decide(self, generation: int, letter: Any) -> EpochDecision:
        """The decision: messages and trees first, for the entry names what becomes of them."""
        accounts, settlement, counted = self._accounts, self._counted.settlement, self._counted
        record, roots = settlement.record, counted.roots
        for adoption in counted.adoptions:
            self._pending.adopt(adoption)
        acked_trees = self._ack()
        expired = [(tree.root, roots.timeout) for tree in roots.expired]
        failures = [*settlement.failures.items(), *expired]
        effects = {root: self._fail(root, failure) for root, failure in failures}
        retries = {root: effect.due_s for root, effect in effects.items() if effect is not None}
        self._remember_unconfirmed()
        put_back = {
            root: self._times.now_s + counted.pause_s if root in settlement.away else -math.inf
            for root in settlement.put_back
            if self._trees.get(root) is None
        }
        key_table, behind = accounts.key_table, list[Behind]()
        if settlement.order is not None:
            key_table, turns = settlement.order.after({**retries, **put_back}, put_back)
            put_back = {
                root: turns[root].due_s if root in turns else put_back[root]
                for root in settlement.order.by_number(put_back)
            }
            behind = self._behind(settlement.order, turns)
        for root, due_s in put_back.items():
            self._pending.put_back(root, due_s)
        outcomes = self._outcomes
        base, changes, since_base = self._base_or_changes()
        entry = SettleEntry(
            epoch=record.epoch,
            generation=generation,
            run=settlement.runs - 1,
            time_s=self._times.wall_s,
            failed=_by_reason(failures),
            put_back=list(settlement.put_back),
            behind=behind,
            opened=list(self._trees.opened.values()),
            closed=[*self._trees.closed],
            acked=acked_trees,
            gone=sorted(roots.dead),
            dead=[
                DeadEntry(one.root, one.spout_task, letter(one, accounts, is_committed=one.root in roots.dead))
                for one in outcomes.died
            ],
            outputs=counted.chosen.outputs,
            waiting=counted.chosen.waiting,
            released=counted.chosen.released,
            state=_state_after(accounts.state, counted.reports),
            state_bytes=(
                sum(one.bytes_read for one in counted.reports.states),
                sum(one.file.size_bytes for one in counted.reports.states),
            ),
            kept=carryover_after(accounts.kept, counted.reports.kept),
            replays=[*accounts.accepted],
            counters=self._counters(len(expired)),
            pending=changes,
            base=base,
        )
        return EpochDecision(counted, entry, outcomes, self._pending.decision, self._trees, since_base, key_table)

    def _ack(self) -> list[AckedTree]:
        """What completes, what is given up, and which trees go on; returns the earlier trees that end well."""
        counted, settlement, outcomes = self._counted, self._counted.settlement, self._outcomes
        record, rows = settlement.record, counted.chosen.rows
        left_over = settlement.left_over
        complete = [root for one in record.inputs for root in one.acked(left_over)]
        withheld = {root for root in settlement.completed if rows.waits_for(root)}
        withheld.update(record.among(rows.roots() - left_over))
        outcomes.acked = self._pending.ack_many(
            [one for one in complete if one not in withheld] if withheld else complete
        )
        acked_trees = self._ack_earlier(withheld)
        # Before this epoch's failures: the source was told of those of earlier epochs, and ended without emitting them
        # again.
        for task in record.header.ended:
            outcomes.died += self._pending.give_up(task)
        now_s = self._accounts.ran_s(self._times.now_s)
        for tree in counted.roots.what_becomes(now_s, self._timeout_s, withheld, counted.pause_s):
            self._trees.put(tree)
        return acked_trees

    def _ack_earlier(self, withheld: set[int]) -> list[AckedTree]:
        """Ack roots of earlier epochs that are complete and none of whose outputs waits."""
        counted = self._counted
        complete = [root for root in counted.settlement.completed if root not in withheld]
        for root in counted.chosen.freed:
            tree = self._trees.get(root)
            if tree is not None and tree.is_complete and root not in counted.roots.completed:
                complete.append(root)
        named: list[AckedTree] = []
        for root in complete:
            self._trees.close(root)
            for acked in self._pending.ack_many((root,)):
                self._outcomes.acked.append(acked)
                named.append(AckedTree(root, acked.spout_task, plain_id(acked.message_id)))
        return named

    def _fail(self, root: int, failure: Failure) -> RetryAt | None:
        """Fail an attempt. What is committed of it stays, and its next attempt starts from its kept frames.

        Returns:
            When its message goes out anew; None: it does not.
        """
        tree = self._trees.get(root)
        in_place = tree is not None and tree.is_committed
        effect = self._pending.fail(root, failure, in_place=in_place)
        if tree is not None and in_place and isinstance(effect, RetryAt):
            self._outcomes.retried_in_place += 1
            resumes_s = self._accounts.ran_s(effect.due_s)
            expires_s = math.inf if self._timeout_s is None else resumes_s + self._timeout_s
            self._trees.put(replace(tree, attempt=effect.attempt_next, resumes_s=resumes_s, expires_s=expires_s))
        elif tree is not None:
            self._trees.close(root)
        if isinstance(effect, Died):
            self._outcomes.died.append(effect)
        elif isinstance(effect, SourceRetry):
            self._outcomes.source_retries.append(effect)
        return effect if isinstance(effect, RetryAt) and not in_place else None

    def _behind(self, order: EpochOrder, turns: Mapping[int, Turn]) -> list[Behind]:
        """Which message each root waits for that is put back for its turn."""
        places: dict[tuple[str, Place], list[int]] = {}
        ids: dict[Place, MessageId] = {}
        for root, turn in turns.items():
            ahead = order.ahead(root, turn)
            if ahead is not None:
                place, message_id = ahead
                places.setdefault((turn.bolt, place), []).append(root)
                if message_id is not None:
                    ids[place] = message_id
        if earlier := {place for _, place in places} - ids.keys():
            ids.update(self._accounts.pending.ids_at(earlier))
        return [
            Behind(bolt, place[0], plain_id(ids[place]), roots)
            for (bolt, place), roots in places.items()
            if place in ids
        ]

    def _remember_unconfirmed(self) -> None:
        """Remember settled messages of sources without a position: they may deliver one again until it is confirmed."""
        positions = self._counted.settlement.record.header.positions
        if len(positions) == len(self._accounts.spout_of):
            return
        settled: Iterable[tuple[Acked | Died, Outcome]] = [
            *((one, Outcome.ACKED) for one in self._outcomes.acked),
            *((one, Outcome.DEAD) for one in self._outcomes.died),
        ]
        for one, outcome in settled:
            if one.spout_task not in positions:
                self._pending.mark_unconfirmed(one.spout_task, one.message_id, outcome)

    def _base_or_changes(self) -> tuple[Base | None, PendingChanges, tuple[int, int]]:
        """What the entry says of messages: a base, or what changes; and how much was settled since the last base."""
        accounts, header = self._accounts, self._counted.settlement.record.header
        epochs, messages = accounts.since_base[0] + 1, accounts.since_base[1] + header.messages
        if epochs < BASE_EPOCHS and messages < BASE_MESSAGES:
            return None, self._pending.changes(accounts.encode_value), (epochs, messages)
        self._outcomes.wrote_base = True
        base = Base(
            pending=self._pending.base(accounts.encode_value),
            open=self._trees.all_after(),
            replays=sorted({*accounts.replays, *accounts.accepted}),
            waiting=self._counted.chosen.rows.files_after(),
            refused=[FailedAttempt([root], failure) for root, failure in accounts.refused.items()],
        )
        return base, PendingChanges(), (0, 0)

    def _counters(self, expired: int) -> Counters:
        before, outcomes, counted = self._accounts.totals, self._outcomes, self._counted
        settlement, stats = counted.settlement, counted.reports.stats
        record = settlement.record
        rows = dict(before.rows)
        for output in counted.chosen.outputs:
            rows[output.sink] = rows.get(output.sink, 0) + output.rows
        return Counters(
            emitted=before.emitted + record.header.fresh,
            acked=before.acked + len(outcomes.acked) + outcomes.acked_rows,
            failed=before.failed + len(settlement.failures) + expired,
            retried=before.retried + len(record.attempts.keys() - set(settlement.put_back)) + outcomes.retried_in_place,
            dead=before.dead + len(outcomes.died),
            untracked=before.untracked + record.header.untracked,
            late_verdicts=before.late_verdicts + sum(one.late_verdicts for one in stats),
            joined=self._accounts.joined,
            untracked_failed=before.untracked_failed + sum(one.strays for one in stats),
            rows=rows,
            replayed=before.replayed,
        )


def _state_after(state: dict[str, list[StateFile]], reports: Reports) -> dict[str, list[StateFile]]:
    """The version that an epoch leaves, from the one before and what the run that counts reported."""
    after = dict(state)
    for one in reports.states:
        after[one.component] = version_after(after.get(one.component, ()), one.file, one.merged)
    return after


def _by_reason(failures: list[tuple[int, Failure]]) -> list[FailedAttempt]:
    """Group roots that share one failure object."""
    grouped: dict[int, FailedAttempt] = {}
    for root, failure in failures:
        grouped.setdefault(id(failure), FailedAttempt([], failure)).roots.append(root)
    return list(grouped.values())
