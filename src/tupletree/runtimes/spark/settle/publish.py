"""What happens after the commit point: files get their final names, sinks are called, dead letters are written.

All of it can be repeated. What a called sink refuses becomes an amendment of the settle entry: its messages, acked in
the entry, are dead, before their source is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tupletree.runtimes.api import Redact
from tupletree.runtimes.crash_points import crash_point
from tupletree.runtimes.deadletters import write_letters
from tupletree.runtimes.spark.format.entries import (
    Amendment,
    DeadEntry,
    FailedAttempt,
    SettleEntry,
    amended,
    amendment_path,
    count_refused,
    numbered,
    read_epoch,
    write_amendment,
)
from tupletree.runtimes.spark.format.epoch_messages import EpochMessage, EpochMessages, StoredPayload
from tupletree.runtimes.spark.format.inputs import inputs_of_log
from tupletree.runtimes.spark.format.logged_messages import Codecs
from tupletree.runtimes.spark.format.segments import SegmentReader
from tupletree.runtimes.spark.format.split_messages import readers_of
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.runtimes.spark.settle.run_parts import RunParts
from tupletree.runtimes.spark.settle.sink_delivery import Refusals, SinkDelivery
from tupletree.sinks.files import VisibleNames
from tupletree.tracking.message_ids import plain_id
from tupletree.tracking.outcomes import DeadLetter, Failure, Outcome
from tupletree.tracking.records import Died

logger = logging.getLogger("tupletree.spark")

REFUSED_NOTE = "a sink refused it after its epoch was committed: its state and its rows in other sinks stay"


def final_name(run_id: str, epoch: int, own: str, suffix: str) -> str:
    """The deterministic name of rows of one epoch; `own` distinguishes them from others. Runs never share a name."""
    return f"part-{run_id[:8]}-{epoch:08d}-{own}{suffix}"


class Publisher:
    """See the module docstring.

    Args:
        parts: of the run.
        codecs: (component, stream) → codec, for the payloads of refused messages.
        called: the sinks that are called, open.
        redact: see `api.Redact`.
        stored: told of each epoch whose dead letters are durable.
    """

    def __init__(
        self,
        parts: RunParts,
        codecs: Codecs,
        called: SinkDelivery,
        redact: Redact | None,
        stored: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._stored = stored
        self._directory = parts.directory
        self._accounts = parts.accounts
        self._codecs = codecs
        self._clock = parts.clock
        self._sinks = parts.sinks
        self._called = called
        self._redact = redact
        self._reader_of = readers_of(parts.plan.spec)
        self._segments = SegmentReader(parts.directory.segments, parts.plan.spec)

    def finish(self, entry: SettleEntry) -> tuple[SettleEntry, list[Died]]:
        """Publish what a settle entry names; returns it with its amendment, and the messages that died only now.

        Raises:
            CheckpointError: a candidate is gone, or another start has written the amendment.
            ConnectorError: a sink's folder is gone.
            OutageLimitError: a called sink was not available for too long.
            Closing: the run ends first.
        """
        names = VisibleNames()
        for output in entry.outputs:
            if output.sink not in self._called:
                directory = Path(self._sinks[output.sink])
                crash_point("publish.before_output")
                names.give(directory / output.candidate, directory / output.final)
                crash_point("publish.after_output")
        names.make_last()
        died: list[Died] = []
        calls = [output for output in entry.outputs if output.sink in self._called]
        if (calls or self._accounts.refused) and not amendment_path(self._directory.settles, entry.epoch).exists():
            refusals = [
                refused
                for one in calls
                if (refused := self._called.deliver(entry.epoch, entry.time_s, one)) is not None
            ]
            if refusals or self._accounts.refused:
                entry, died = self._amend(entry, refusals)
        if entry.dead:
            write_letters(self._directory.dead, entry.epoch, [dead.letter for dead in entry.dead])
            self._stored(entry.epoch)
        crash_point("publish.after_dead")
        self._called.forget(entry.epoch, calls)
        return entry, died

    def _amend(self, entry: SettleEntry, refusals: list[Refusals]) -> tuple[SettleEntry, list[Died]]:
        """Turn what sinks refused into verdicts: of this epoch's rows, and of trees that are complete only now."""
        accounts = self._accounts
        rows: dict[str, int] = {}
        failures = dict(accounts.refused)
        for refusal in refusals:
            failures = {**refusal.failures, **failures}
            for sink, count in refusal.rows.items():
                rows[sink] = rows.get(sink, 0) + count
        acked = {one.root for one in entry.acked}
        acked |= {root for one in self._inputs(entry.epoch) for root in one.among(failures)} - entry.not_acked()
        with accounts.lock:
            died = self._died(entry.epoch, {root: one for root, one in failures.items() if root in acked})
            still_open = {root: one for root, one in failures.items() if root in accounts.trees}
            amendment = Amendment(
                epoch=entry.epoch,
                generation=self._directory.generation,
                failed=[FailedAttempt([one.root], one.failure) for one in died],
                dead=[DeadEntry(one.root, one.spout_task, self._letter(one)) for one in died],
                settled=self._unconfirmed(entry.epoch, died),
                rows=rows,
                refused=[
                    FailedAttempt([root], one) for root, one in still_open.items() if root not in accounts.refused
                ],
            )
            accounts.refused = still_open
            if not (rows or died):
                return entry, []
            self._write(amendment)
            accounts.totals = count_refused(accounts.totals, amendment)
            unconfirmed = {task for task, _, _ in amendment.settled}
            for one in died:
                if one.spout_task in unconfirmed:
                    accounts.pending.mark_unconfirmed(one.spout_task, one.message_id, Outcome.DEAD)
        return amended(entry, amendment), died

    def _write(self, amendment: Amendment) -> None:
        logger.warning("epoch %d: sinks refused rows: %s", amendment.epoch, amendment.rows)
        crash_point("publish.before_amendment")
        if not write_amendment(self._directory.settles, amendment):
            raise self._directory.taken_over(f"epoch {amendment.epoch} is published already")
        crash_point("publish.after_amendment")

    def _unconfirmed(self, epoch: int, died: list[Died]) -> list[tuple[int, Any, Outcome]]:
        """Of sources without a position: they may deliver one again (`decision._remember_unconfirmed`)."""
        header, _ = read_epoch(self._directory.epochs, epoch, self._directory.upgrades)
        return [
            (one.spout_task, plain_id(one.message_id), Outcome.DEAD)
            for one in died
            if one.spout_task not in header.positions
        ]

    def _died(self, epoch: int, failures: Mapping[int, Failure]) -> list[Died]:
        """The messages of roots, from the epoch logs: the accounts do not have them any more."""
        now_s = self._clock.wall()
        found: list[Died] = []
        missing = dict(failures)
        for number in reversed(numbered(self._directory.epochs, ".epoch")):
            if number > epoch:
                continue
            if not missing:
                break
            for one in self._inputs(number):
                for message, value in one.find(one.among(missing)):
                    found.append(self._one_died(message, value, missing.pop(message.root), now_s))
        return found

    def _inputs(self, epoch: int) -> list[EpochMessages]:
        header, body = read_epoch(self._directory.epochs, epoch, self._directory.upgrades)
        return inputs_of_log(header, body, self._codecs, self._reader_of, self._segments)

    def _one_died(self, message: EpochMessage, value: Any, failure: Failure, now_s: float) -> Died:
        return Died(
            message.task,
            self._accounts.spout_of[message.task],
            message.message_id,
            value,
            failure,
            message.attempt,
            message.first_emitted_s,
            now_s,
            message.root,
        )

    def _letter(self, died: Died) -> DeadLetter:
        return letter_of(died, self._accounts, REFUSED_NOTE, self._redact)


def letter_of(died: Died, accounts: Accounts, note: str, redact: Redact | None) -> DeadLetter:
    """The dead letter of a message."""
    payload = accounts.encode_value(died.spout_task, died.value)
    kind = "" if isinstance(died.value, StoredPayload) else type(died.value).__qualname__
    letter = died.letter(accounts.spec.name, payload, kind, note)
    return redact(letter) if redact is not None else letter


def remove(paths: Iterable[Path]) -> None:
    """Remove files that nothing names any more; one that is gone already is fine."""
    for path in paths:
        path.unlink(missing_ok=True)
