"""The callbacks of settled epochs: spouts are told what became of their messages.

Called by the loop's thread only. A callback is made again while its source is not available: the next epoch is not
committed without it. Refuses to know when: `loop` does.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from msgspec.structs import replace

from tupletree.errors import CheckpointError, ConnectorError, is_outage
from tupletree.ids import MessageId
from tupletree.runtimes.deadletters import newest_failures
from tupletree.runtimes.spark.driver.async_spouts import AsyncSpoutAdapter
from tupletree.runtimes.spark.driver.epoch_frames import SpoutTask
from tupletree.runtimes.spark.driver.intake import Intake
from tupletree.runtimes.spark.driver.recovery import Recovered
from tupletree.runtimes.spark.format.entries import SettleEntry, read_epoch
from tupletree.runtimes.spark.format.inputs import unread_inputs
from tupletree.runtimes.spark.format.statedir import StateDirectory
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.runtimes.spark.settle.decision import EpochOutcomes
from tupletree.runtimes.spark.settle.run_parts import RunParts
from tupletree.runtimes.spark.settle.shutdown import Closing
from tupletree.topology.components import Spout
from tupletree.topology.splits import LeaseSpout
from tupletree.tracking.message_ids import id_from_key, id_from_plain, message_key
from tupletree.tracking.outcomes import Failure, FailureKind, Outcome
from tupletree.tracking.records import Acked, AlreadySettled, Died

logger = logging.getLogger("tupletree.spark")


# More than 12 attributes: which sources are called how is worked out once, not for each epoch.
class Callbacks:
    """See the module docstring.

    Args:
        spouts: opened.
        intake: knows which messages a source without a position can hear of.
        parts: of the run; its directory has the letters of dead messages.
        retold: messages that were delivered again although they are settled: their outcome is told again.
        told: to sources that deliver again, of earlier processes: see `tell_settled`.

    Attributes:
        stop_at_s: when the run ends at the latest (monotonic); None: no end was requested.
        awaited: async spouts, whose callbacks are made elsewhere.
    """

    def __init__(
        self,
        spouts: Sequence[SpoutTask],
        intake: Intake,
        parts: RunParts,
        retold: deque[AlreadySettled],
        told: Sequence[AlreadySettled] = (),
    ) -> None:
        self.stop_at_s: float | None = None
        self.awaited = [spout.spout for spout in spouts if isinstance(spout.spout, AsyncSpoutAdapter)]
        self._spouts = {spout.number: spout for spout in spouts}
        self._intake = intake
        self._accounts = parts.accounts
        self._outages = parts.outages
        self._clock = parts.clock
        self._retold = retold
        self._told_epoch = parts.accounts.settled
        self._directory = parts.directory
        self._delivering_again = {spout.number: spout.spout for spout in spouts if _delivers_again(spout.spout)}
        self._told = {(one.spout_task, message_key(one.message_id)): _Told(one.message_id) for one in told}  # and kept
        intake.look_again = self.look_again
        self._takes_acks = any(type(spout.spout).ack is not Spout.ack for spout in spouts)
        self._flushed = [spout for spout in spouts if type(spout.spout).flush is not Spout.flush]

    def activate(self, *, active: bool) -> None:
        """Activate or deactivate the spouts that were not told so yet."""
        for spout in self._spouts.values():
            if spout.active is active:
                continue
            spout.active = active
            try:
                (spout.spout.activate if active else spout.spout.deactivate)()
            except ConnectorError as error:
                if spout.spout not in self.awaited or not is_outage(error):
                    raise
                self._call(spout, spout.spout.flush)  # it is among the callbacks that are left

    def deactivate(self) -> None:
        """Deactivate the spouts because the run ends: an error of one is logged, and hinders nothing else."""
        for spout in self._spouts.values():
            if not spout.active:
                continue
            spout.active = False
            try:
                spout.spout.deactivate()
            except Exception as error:
                # An async one that meets an outage has it among the callbacks that are left.
                if spout.spout not in self.awaited or not is_outage(error):
                    logger.exception("deactivating spout %s failed", spout.name)

    def tell_again(self) -> bool:
        """Tell the outcomes that are to be told again; whether there were any.

        Not while an epoch is being published, of which they may be: a sink may refuse a row yet. `tell` tells these.
        """
        if not self._retold or self._accounts.settled > self._told_epoch:
            return False
        retold = [*self._retold]
        for spout, callback, what in _callbacks_of(retold, self._spouts, self._directory):
            self._call(spout, callback, *what)
        self._retold.clear()
        self._confirm(retold)
        return True

    def flush(self) -> None:
        """Wait until the callbacks of async spouts are made, and all that was told is durable at the sources."""
        for spout in self._flushed:
            self._call(spout, spout.spout.flush)

    def tell(self, outcomes: EpochOutcomes) -> list[int]:
        """Make the callbacks of one epoch; when they are durable, its messages are confirmed by their sources.

        Returns the spout tasks that were asked to emit something again. Raises Closing if the run ends first.
        """
        spouts = self._spouts
        if self._takes_acks:
            for acked in outcomes.acked:
                spout = spouts[acked.spout_task]
                self._call(spout, spout.spout.ack, acked.message_id)
        for died in outcomes.died:
            # Final: a source that retries by itself must not emit this message again.
            final = replace(died.failure, permanent=True)
            self._call(spouts[died.spout_task], spouts[died.spout_task].spout.fail, died.message_id, final)
        for retry in outcomes.source_retries:
            spout = spouts[retry.spout_task]
            self._call(spout, spout.spout.fail, retry.message_id, retry.failure)
            self._intake.ask_again(retry.spout_task)
        self._told_epoch = outcomes.epoch
        self._forget_retold([*outcomes.acked, *outcomes.died])
        if any(spout.position is None for spout in spouts.values()):
            self._confirm([*outcomes.acked, *outcomes.died])
        else:
            self.flush()
        return [retry.spout_task for retry in outcomes.source_retries]

    def _forget_retold(self, told: Sequence[Acked | Died]) -> None:
        """They came again while their epoch was published, and have been told now."""
        if not self._retold:
            return
        over = {(one.spout_task, message_key(one.message_id)) for one in told}
        kept = [one for one in self._retold if (one.spout_task, message_key(one.message_id)) not in over]
        self._retold.clear()
        self._retold.extend(kept)

    def _confirm(self, told: Sequence[Acked | Died | AlreadySettled]) -> None:
        """Forget messages that their sources know to be over. Others are kept, and looked at again with the next."""
        self.flush()  # confirmed means durable at the source
        # Another delivery of a message, given before this was told, is no new one: it is told again when it is taken.
        given_before = self._intake.waiting_keys()
        for one in told:
            was_delivered = self._intake.was_delivered(one.spout_task, one.message_id)
            if one.spout_task in self._delivering_again:
                key = one.spout_task, message_key(one.message_id)
                was_before = key in self._told and self._told[key].was_delivered
                self._told[key] = _Told(one.message_id, was_delivered or was_before)
            elif was_delivered and (one.spout_task, message_key(one.message_id)) not in given_before:
                with self._accounts.lock:
                    self._accounts.pending.confirm(one.spout_task, one.message_id)
        self.look_again()

    def look_again(self) -> bool:
        """Forget what sources that deliver again were told; whether there was any.

        An id that is used again is then one of another message.
        """
        if not self._told:
            return False
        not_told = {
            (number, message_key(message_id))
            for number, source in self._delivering_again.items()
            for message_id in source.not_told()
        }
        over = []
        for key, one in [*self._told.items()]:
            if key not in not_told and _may_forget(self._delivering_again[key[0]], one):
                over.append((key[0], one.message_id))
                del self._told[key]
        with self._accounts.lock:
            for spout_task, message_id in over:
                self._accounts.pending.confirm(spout_task, message_id)
        return bool(over)

    def _call(self, spout: SpoutTask, callback: Callable[..., None], *what: Any) -> None:
        """Make a callback, again while its source is not available.

        What asked the source nothing shows no end of an outage: a flush after no callback, or one that awaits a flush.
        """
        asks = bool(what) and spout.spout not in self.awaited
        while True:
            try:
                callback(*what)
            except ConnectorError as error:
                if not is_outage(error):
                    raise
                asks = True
                pause_s = self._outages.met(spout.name, error)
                if self.stop_at_s is not None and self._clock.monotonic() + pause_s >= self.stop_at_s:
                    raise Closing from error
                time.sleep(pause_s)
            else:
                if asks:
                    self._outages.over(spout.name)
                return


@dataclass
class _Told:
    """A message whose source was told of it. `calls`: to the source, when it was not to deliver it again any more."""

    message_id: MessageId
    was_delivered: bool = False
    calls: int = -1


def _may_forget(source: Spout[Any], told: _Told) -> bool:
    """Whether all has come here that a source gave before it was told.

    Of a message of an earlier process it may have given another delivery, which waits: that is no new message.
    """
    if told.was_delivered or not isinstance(source, AsyncSpoutAdapter):
        return told.was_delivered
    if told.calls < 0:
        told.calls = source.calls
    return source.taken >= told.calls


def _callbacks_of(
    settled: Sequence[AlreadySettled], spouts: Mapping[int, SpoutTask], directory: StateDirectory
) -> Iterator[tuple[SpoutTask, Callable[..., None], tuple[Any, ...]]]:
    """Which callbacks, with what, tell sources of these messages again: of dead ones what their letters say."""
    dead = {(spouts[one.spout_task].name, message_key(one.message_id)) for one in settled if not _is_acked(one)}
    failures = {}
    try:
        failures = newest_failures(directory.dead, dead, directory.upgrades.today)
    except CheckpointError as error:  # that they are dead is known without it
        logger.warning("sources are not told again what messages died of: %s", error)
    for one in settled:
        spout = spouts[one.spout_task]
        if _is_acked(one):
            yield spout, spout.spout.ack, (one.message_id,)
        else:
            failure = failures.get((spout.name, message_key(one.message_id)))
            if failure is None:
                text = "it died before, and its dead letter is not at hand"
                failure = Failure(kind=FailureKind.ERROR, error=text, component=spout.name)
            yield spout, spout.spout.fail, (one.message_id, replace(failure, permanent=True))


def _is_acked(settled: AlreadySettled) -> bool:
    return settled.outcome is Outcome.ACKED


def _delivers_again(source: Spout[Any]) -> TypeGuard[AsyncSpoutAdapter | LeaseSpout[Any]]:
    return isinstance(source, LeaseSpout) or (isinstance(source, AsyncSpoutAdapter) and source.delivers_again)


def tell_settled(directory: StateDirectory, accounts: Accounts, spouts: Sequence[SpoutTask]) -> list[AlreadySettled]:
    """Tell sources that deliver again what earlier processes have told, or not: until then it is not forgotten."""
    told = [
        AlreadySettled(outcome, spout.number, id_from_key(key))
        for spout in spouts
        if _delivers_again(spout.spout)
        for key, outcome in accounts.pending.messages_of(spout.number).unconfirmed.items()
    ]
    for _, callback, what in _callbacks_of(told, {spout.number: spout for spout in spouts}, directory):
        callback(*what)
    return told


def tell_last(directory: StateDirectory, entry: SettleEntry, spouts: Sequence[SpoutTask]) -> None:
    """Make the callbacks of the last settled epoch again: whether they were made is not known after a crash."""
    of = {spout.number: spout.spout for spout in spouts}
    # A spout that was dropped is told nothing any more.
    header, body = read_epoch(directory.epochs, entry.epoch, directory.upgrades)
    not_acked = entry.not_acked()
    for messages in unread_inputs(header, body[: header.messages_length]):
        if not messages.is_counted:
            for message in messages:
                if message.root not in not_acked and message.task in of:
                    of[message.task].ack(message.message_id)
    for acked in entry.acked:
        if acked.task in of:
            of[acked.task].ack(id_from_plain(acked.message_id))
    for dead in entry.dead:  # some of them are in the log of an earlier epoch: they expired, or were given up
        if dead.task in of:
            final = replace(dead.letter.failure, permanent=True)
            of[dead.task].fail(id_from_plain(dead.letter.message_id), final)


def ask_again(accounts: Accounts, recovered: Recovered, spouts: Sequence[SpoutTask]) -> None:
    """Ask sources again for messages that they are to emit again: they may have forgotten it with the process.

    Until a source says so again, its input is not over. Nor is that of one that delivers again what it was not told: of
    these it may have any.
    """
    for spout in spouts:
        task = spout.number
        awaited = accounts.pending.awaited(task)
        for message_id, failure in awaited:
            spout.spout.fail(message_id, failure)
        if awaited or _delivers_again(spout.spout):
            spout.ended = False
            accounts.ended.discard(task)
            for record in recovered.records:
                record.reopen(task)
