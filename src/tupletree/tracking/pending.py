"""Every message a runtime is accountable for, from its first emission until it is acked or dead.

Owns attempts, retries and their due times, redeliveries by the source, and ids that the source has yet to confirm.
Both runtimes use it. It refuses to know trees: `acker` and `ledger` decide about roots, this module about messages.

A message is in one of three places. *In flight*: an attempt is out under a root of its own. *Waiting*: the runtime
will try again at a due time. *Awaiting its source*: an attempt failed and the source is to emit it again
(`replay="source"`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Mapping, Sequence
from itertools import count, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, cast

from tupletree.errors import CheckpointError, InternalError
from tupletree.ids import RandomBits, draw_id, hex_id
from tupletree.tracking.message_ids import id_from_plain, message_key
from tupletree.tracking.message_table import AWAITING, OpenMessage, RetryQueue, SpoutMessages, died_of, status_of
from tupletree.tracking.outcomes import Failure, Outcome
from tupletree.tracking.pending_decision import PendingDecider, PendingDecision, Times, after_failure
from tupletree.tracking.pending_log import ChangeLog, Decode, PendingChanges, fold, message_of
from tupletree.tracking.records import (
    Acked,
    AlreadySettled,
    Died,
    Emission,
    EmittedMessages,
    Joined,
    MessageStatus,
    PendingCounters,
    Released,
    RetryAt,
    SourceRetry,
)
from tupletree.tracking.retry import RetryPolicy

if TYPE_CHECKING:
    from tupletree.ids import MessageId

PLAIN_KEYS = {str, int}
"""Types of message ids that are their own keys: see `message_key`."""


class Pending:
    """Messages of any number of spout tasks. Not thread-safe; every call is one transition.

    Args:
        policy: how often and when to try again.
        random_bits: draws root ids.
        random: uniform floats in [0, 1), for jitter.
        record_changes: record what changes, for `PendingDecider.changes`. Leave it off where no decision is applied:
            the record would grow for ever.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        random_bits: RandomBits,
        random: Callable[[], float],
        *,
        record_changes: bool = False,
    ) -> None:
        self.counters = PendingCounters()
        self._policy = policy
        self._random_bits = random_bits
        self._random = random
        self._tasks: dict[int, SpoutMessages] = {}
        self._in_flight: dict[int, OpenMessage] = {}  # by root
        self._queue = RetryQueue()
        self._log = ChangeLog(self._tasks, enabled=record_changes)

    def register(self, spout_task: int, spout_name: str, replay: Literal["runtime", "source"] = "runtime") -> None:
        """Announce a spout task, before its first message. Registering it again changes nothing.

        Raises:
            InternalError: the task is registered as something else.
        """
        task = self._tasks.get(spout_task)
        if task is None:
            self._tasks[spout_task] = SpoutMessages(spout_task, spout_name, replay == "source")
        elif (task.name, task.by_source) != (spout_name, replay == "source"):
            raise InternalError(f"spout task {spout_task} is registered twice", got=spout_name, expected=task.name)

    # --- emission ---------------------------------------------------------------------------------------------

    def emit(
        self, spout_task: int, message_id: MessageId | None, value: Any, now_s: float, wall_s: float
    ) -> Emission | Joined | AlreadySettled:
        """Take a message from a spout.

        An open message joins the attempt that is out or waiting; a settled and unconfirmed one is answered at once;
        one that its source was told to emit again becomes its next attempt. Without an id it is untracked.

        Args:
            spout_task: a registered task.
            message_id: what the source calls it, or None.
            value: kept until the message is acked or dead.
            now_s: monotonic seconds; the message timeout counts from here.
            wall_s: seconds since the Unix epoch.

        Raises:
            ConnectorError: the id is of a type that cannot name a message.
        """
        if message_id is None:
            self.counters.untracked += 1
            return Emission(0, spout_task, None, value, 1)
        task = self._tasks[spout_task]
        key = message_key(message_id)
        known = self._known(task, key, message_id)
        if known is not None:
            return known
        message = task.awaiting.pop(key, None)
        if message is None:
            self.counters.emitted += 1
            message = OpenMessage(spout_task, key, message_id, value, 0, 0, now_s, wall_s, task.by_source)
        else:
            self.counters.retried += 1
            message.ticket = 0
            before, message.value = message.value, value
            task.messages[key] = message
            launched = self._launch(message)
            self._log.note_launched(message, before, by_runtime=False)
            return launched
        task.messages[key] = message
        return self._launch(message)

    def emit_many(
        self, spout_task: int, message_ids: Sequence[MessageId | None], values: list[Any], now_s: float, wall_s: float
    ) -> EmittedMessages:
        """Do what `emit` does for a batch, much cheaper; if an id raises, none of the batch is taken."""
        keys: Sequence[Any] = message_ids
        if not PLAIN_KEYS.issuperset(map(type, keys)):
            keys = [one if type(one) in PLAIN_KEYS or one is None else message_key(one) for one in message_ids]
        task = self._tasks[spout_task]
        roots = self._draw_many(len(keys))
        messages, in_flight = task.messages, self._in_flight
        # The view looks up the fewer in the more; a set would go through every message in flight.
        if None not in keys and task.knows_none_of(keys) and in_flight.keys().isdisjoint(roots):
            of_all = (repeat(1), roots, repeat(now_s), repeat(wall_s), repeat(task.by_source))
            made = [
                *map(OpenMessage, repeat(spout_task), keys, cast("Sequence[MessageId]", message_ids), values, *of_all)
            ]
            expected = len(messages) + len(made), len(in_flight) + len(made)
            messages.update(zip(keys, made))
            in_flight.update(zip(roots, made))
            if (len(messages), len(in_flight)) == expected and 0 not in in_flight:
                self.counters.emitted += len(made)
                return EmittedMessages(roots, message_ids, values, [1] * len(made), [])
            for key, root in zip(keys, roots):  # some are not distinct, or one is no root
                messages.pop(key, None)
                in_flight.pop(root, None)
        results = [self.emit(spout_task, one, value, now_s, wall_s) for one, value in zip(message_ids, values)]
        sent = [one for one in results if isinstance(one, Emission)]
        return EmittedMessages(
            [one.root for one in sent],
            [one.message_id for one in sent],
            [one.value for one in sent],
            [one.attempt for one in sent],
            [one for one in results if not isinstance(one, Emission)],
        )

    def due(self, now_s: float, limit: int) -> list[Emission]:
        """Take up to `limit` retries whose time has come, earliest first; each is an attempt with a new root."""
        emissions: list[Emission] = []
        while len(emissions) < limit:
            message = self._queue.pop(now_s)
            if message is None:
                break
            self._tasks[message.spout_task].queued -= 1
            self.counters.retried += message.attempt > 0
            emissions.append(self._launch(message))
            self._log.note_launched(message, message.value, by_runtime=True)
        return emissions

    def note_logged(self, roots: Iterable[int]) -> None:
        """Note that these attempts, of messages that had waited, are in the caller's own log.

        Until then `PendingDecider` writes down that their messages wait still: an attempt that no log has is lost with
        the process.
        """
        for root in roots:
            message = self._in_flight.get(root)
            if message is not None:
                self._log.note_logged(message)

    def next_due_s(self) -> float | None:
        """When `due` will have something (monotonic; minus infinity: at once); None while nothing waits."""
        return self._queue.next_due_s()

    def peek_due_s(self) -> float | None:
        """As `next_due_s`, for any thread: maybe too early, of a message that waits no more."""
        return self._queue.first_s

    def adopt(
        self,
        root: int,
        spout_task: int,
        message_id: MessageId,
        value: Any,
        *,
        attempt: int,
        first_emitted_s: float,
        now_s: float,
        wall_s: float,
        made: int = 0,
    ) -> None:
        """Put an attempt that a log names in flight again, under the root that the log gave it.

        For a restart: call it after `restore`, for every attempt that was out. A message that waits leaves the queue.

        Raises:
            InternalError: the root or the message is in flight already.
        """
        task = self._tasks[spout_task]
        key = message_key(message_id)
        message = task.find(key)
        if root in self._in_flight or (message is not None and not message.waits):
            raise InternalError("an attempt is adopted twice", where=hex_id(root), got=repr(message_id))
        by_source = task.by_source if message is None else message.by_source
        if message is not None:
            self._forget(message)
        first_s = now_s - max(0.0, wall_s - first_emitted_s)
        message = OpenMessage(
            spout_task, key, message_id, value, attempt, root, first_s, first_emitted_s, by_source, made=made
        )
        task.messages[key] = self._in_flight[root] = message

    # --- verdicts ---------------------------------------------------------------------------------------------

    def ack_many(self, roots: Collection[int], now_s: float) -> list[Acked]:
        """The trees of these attempts completed: their messages are done, in order.

        Roots that are not in flight are counted and left out.
        """
        settle, tasks = self._in_flight.pop, self._tasks
        done = [message for root in roots if (message := settle(root, None)) is not None]
        if len(tasks) == 1:
            (task,) = tasks.values()
            messages = task.messages
            for message in done:
                del messages[message.key]
        else:
            for message in done:
                del tasks[message.spout_task].messages[message.key]
        self.counters.acked += len(done)
        self.counters.late_verdicts += len(roots) - len(done)
        return [Acked(one.spout_task, one.message_id, now_s - one.first_s, one.attempt) for one in done]

    def is_last_attempt(self, root: int, failure: Failure) -> bool:
        """Whether `fail` would make a dead letter of this root's message, which is in flight."""
        return self.is_final(self._in_flight[root].attempt, failure)

    def is_final(self, attempt: int, failure: Failure) -> bool:
        """Whether nothing comes after an attempt, by its number, that failed so."""
        return failure.permanent or self._policy.exhausted(attempt, failure.retry)

    def fail(self, root: int, failure: Failure, now_s: float, wall_s: float) -> RetryAt | SourceRetry | Died | None:
        """The attempt failed: the runtime or the source will try again, or the message is dead.

        Returns:
            What comes next, or None if the root is not in flight: its verdict was given before.
        """
        message = self._in_flight.get(root)
        if message is None:
            self.counters.late_verdicts += 1
            return None
        task = self._tasks[message.spout_task]
        effect = after_failure(message, task, failure, self._policy, self._random, Times(now_s, wall_s))
        self._take_out(message, failure, effect, now_s)
        return effect

    def _take_out(
        self, message: OpenMessage, failure: Failure, effect: RetryAt | SourceRetry | Died, now_s: float
    ) -> None:
        """Do what `after_failure` found."""
        del self._in_flight[message.root]
        self.counters.failed += 1
        message.failure = failure
        message.failed_s = now_s
        if isinstance(effect, RetryAt):
            self._enqueue(message, effect.due_s)
            return
        task = self._tasks[message.spout_task]
        del task.messages[message.key]
        if isinstance(effect, Died):
            self.counters.dead += 1
            return
        task.awaiting[message.key] = message
        message.ticket = AWAITING
        self._log.note_waiting(message, was_there=False)

    def put_values(self, values: Mapping[int, Any]) -> None:
        """Keep these instead of the values that attempts in flight have."""
        for root, value in values.items():
            self._in_flight[root].value = value

    def put_back(self, root: int, due_s: float = -math.inf) -> bool:
        """Take an attempt back without counting it: `due` gives the message out at `due_s`, or before all others.

        Returns:
            False if the root is not in flight (counted as late).
        """
        message = self._in_flight.pop(root, None)
        if message is None:
            self.counters.late_verdicts += 1
            return False
        self.counters.put_back += 1
        message.attempt -= 1
        self._enqueue(message, due_s)
        return True

    def give_up(self, spout_task: int, now_s: float, wall_s: float, *, silent_for_s: float = 0.0) -> list[Died]:
        """End messages whose source was told to emit them again at least `silent_for_s` ago, and did not.

        Call it when the source's input has ended, or from time to time where another consumer may get the message.
        """
        awaiting = self._tasks[spout_task].awaiting
        died: list[Died] = []
        for message in [one for one in awaiting.values() if now_s - one.failed_s >= silent_for_s]:
            assert message.failure is not None  # only a failure lets a message await its source
            del awaiting[message.key]
            self._log.note_waiting(message, was_there=True)
            died.append(died_of(message, self._tasks[spout_task].name, message.failure, wall_s))
        self.counters.dead += len(died)
        return died

    def replay(
        self, spout_task: int, message_id: MessageId, value: Any, now_s: float, wall_s: float
    ) -> RetryAt | Joined:
        """Bring a dead letter back as a fresh message: `due` gives it out as attempt 1.

        The runtime retries it, whatever the spout's replay mode is: its source released it when it became a dead
        letter.
        """
        task = self._tasks[spout_task]
        key = message_key(message_id)
        message = task.find(key)
        if message is not None:
            self.counters.joined += 1
            return Joined(message.root, spout_task, message_id)
        self.counters.emitted += 1
        message = OpenMessage(spout_task, key, message_id, value, 0, 0, now_s, wall_s, by_source=False)
        task.messages[key] = message
        self._enqueue(message, now_s)
        return RetryAt(spout_task, message_id, 1, now_s, 0)

    def release(self) -> list[Released]:
        """Release every open message, unsettled, so that it can be failed to its source and reported by id."""
        released: list[Released] = []
        for task in self._tasks.values():
            for message in [*task.messages.values(), *task.awaiting.values()]:
                if not message.waits:
                    del self._in_flight[message.root]
                self._forget(message)
                released.append(Released(task.number, message.message_id, message.attempt, message.root))
        return released

    # --- verdicts that are made durable before they are carried out -------------------------------------------

    def decider(self, now_s: float, wall_s: float) -> PendingDecider:
        """Find what verdicts come to, at this time; nothing is changed before the decision is given to `apply`."""
        times = Times(now_s, wall_s)
        return PendingDecider(self._tasks, self._in_flight, self._queue, self._log, self._policy, times)

    def apply(self, decision: PendingDecision) -> None:
        """Carry out a decision; nothing has changed since it was made. What is recorded as changed begins anew."""
        times, in_flight, tasks = decision.times, self._in_flight, self._tasks
        for one in decision.adopted:
            self.adopt(
                one.root,
                one.spout_task,
                one.message_id,
                one.value,
                attempt=1,
                first_emitted_s=one.first_emitted_s,
                now_s=times.now_s,
                wall_s=times.wall_s,
                made=one.made,
            )
        for root in decision.acked:
            message = in_flight.pop(root)
            del tasks[message.spout_task].messages[message.key]
        self.counters.acked += len(decision.acked)
        for number, key in decision.given_up:
            del tasks[number].awaiting[key]
        self.counters.dead += len(decision.given_up)
        for failed in decision.failed:
            message = in_flight[failed.root]
            if failed.in_place and isinstance(failed.effect, RetryAt):
                self.counters.failed += 1
                self.counters.retried += 1
                message.failure, message.failed_s = failed.failure, times.now_s
                message.attempt = failed.effect.attempt_next
            else:
                self._take_out(message, failed.failure, failed.effect, times.now_s)
        for root, due_s in decision.put_back:
            self.put_back(root, due_s)
        for (number, key), outcome in decision.unconfirmed.items():
            tasks[number].unconfirmed[key] = outcome
        self.counters.late_verdicts += decision.late
        self._log.clear()

    # --- ids that are settled but not confirmed ---------------------------------------------------------------

    def mark_unconfirmed(self, spout_task: int, message_id: MessageId, outcome: Outcome) -> None:
        """Keep the outcome of a settled message until its source confirms it."""
        task = self._tasks[spout_task]
        key = message_key(message_id)
        self._log.note_settled(spout_task, key, was_there=key in task.unconfirmed)
        task.unconfirmed[key] = outcome

    def confirm(self, spout_task: int, message_id: MessageId) -> None:
        """The source will not deliver this message again. Confirming an id that is not kept is harmless."""
        key = message_key(message_id)
        if self._tasks[spout_task].unconfirmed.pop(key, None) is not None:
            self._log.note_settled(spout_task, key, was_there=True)

    @property
    def has_confirmed(self) -> bool:
        """Whether the caller's log does not have yet that an id was confirmed."""
        return self._log.has_confirmed

    # --- questions --------------------------------------------------------------------------------------------

    def open_count(self, spout_task: int) -> int:
        """Messages in flight or waiting: what counts against the spout's pending limit.

        Messages that await their source do not count: a source that may not emit could never emit them again.
        """
        return len(self._tasks[spout_task].messages)

    def in_flight(self, spout_task: int) -> int:
        """Messages with an attempt out."""
        task = self._tasks[spout_task]
        return len(task.messages) - task.queued

    def retrying_since_s(
        self, spout_task: int, running: Container[int] | None = None, given_up_s: float = -math.inf
    ) -> float | None:
        """See `SpoutMessages.retrying_since_s`."""
        return self._tasks[spout_task].retrying_since_s(running, given_up_s)

    def awaiting_source(self, spout_task: int) -> int:
        """Messages that the source was told to emit again."""
        return len(self._tasks[spout_task].awaiting)

    def messages_of(self, spout_task: int) -> SpoutMessages:
        """The messages of a task, to be read only."""
        return self._tasks[spout_task]

    def open_ids(self, spout_task: int) -> list[MessageId]:
        """Ids of the messages in flight or waiting, oldest first."""
        return [message.message_id for message in self._tasks[spout_task].messages.values()]

    def awaited(self, spout_task: int) -> list[tuple[MessageId, Failure]]:
        """What the source was told to emit again, oldest failure first, and why; after a restart, tell it once more."""
        awaiting = self._tasks[spout_task].awaiting.values()
        return [(one.message_id, one.failure) for one in awaiting if one.failure is not None]

    def first_emitted_s(self, roots: Iterable[int]) -> list[float]:
        """When the messages of these roots were first emitted, seconds since the Unix epoch; all are in flight."""
        in_flight = self._in_flight
        return [in_flight[root].first_wall_s for root in roots]

    def number(self, roots: Sequence[int], take: Callable[[int], Sequence[int]]) -> list[int]:
        """The numbers of messages in the order of their first emission; all of these roots are in flight.

        Args:
            roots: the latest attempts of the messages, in the order in which they go out.
            take: gives so many numbers, above 0, for those that have none yet.
        """
        messages = [self._in_flight[root] for root in roots]
        fresh = [message for message in messages if not message.made]
        for message, number in zip(fresh, take(len(fresh)), strict=True):
            message.made = number
        return [message.made for message in messages]

    def number_of(self, root: int) -> int | None:
        """The number of the message whose attempt this is; None if it is not out. Any thread may ask."""
        message = self._in_flight.get(root)
        return None if message is None else message.made

    def waiting_numbers(self, spout_task: int) -> list[int]:
        """The numbers of messages that are to be tried again, by the runtime or their source."""
        task = self._tasks[spout_task]
        waiting = [message for message in task.messages.values() if message.waits]
        return [message.made for message in (*waiting, *task.awaiting.values()) if message.made]

    def number_waiting(self, spout_task: int) -> None:
        """Give a number to each message that waits and has none, because nothing asked for numbers until now.

        They are as low as they can be: of the first epoch, in the order of first emission.
        """
        task = self._tasks[spout_task]
        waiting = sorted((one for one in task.messages.values() if one.waits), key=attrgetter("first_wall_s"))
        taken, last = {one.made for one in waiting}, 0
        for message in waiting:
            if not message.made:
                message.made = next(number for number in count(last + 1) if number not in taken)
                taken.add(message.made)
            last = max(last, message.made)

    def waiting_numbers_due(self, spout_task: int) -> list[tuple[int, float]]:
        """(number, due time) of messages that the runtime is to try again, of those that have a number."""
        messages = self._tasks[spout_task].messages.values()
        return [(message.made, message.due_s) for message in messages if message.waits and message.made]

    def ids_at(self, places: Collection[tuple[int, int]]) -> dict[tuple[int, int], MessageId]:
        """What the open messages are called that have these places: (spout task, number)."""
        found: dict[tuple[int, int], MessageId] = {}
        for spout_task in {task for task, _ in places}:
            task = self._tasks[spout_task]
            for message in (*task.messages.values(), *task.awaiting.values()):
                if message.made and (spout_task, message.made) in places:
                    found[spout_task, message.made] = message.message_id
        return found

    def awaited_numbers(self, spout_task: int) -> list[int]:
        """The numbers of those that their source is to emit again."""
        return [message.made for message in self._tasks[spout_task].awaiting.values() if message.made]

    def oldest_first_s(self) -> float | None:
        """When the oldest open message was first emitted (monotonic); None: none is open."""
        oldest = (task.oldest_first_s() for task in self._tasks.values())
        return min((first_s for first_s in oldest if first_s is not None), default=None)

    def id_of(self, root: int) -> MessageId | None:
        """The id of the message whose attempt this is; None if it is not out. Any thread may ask."""
        message = self._in_flight.get(root)
        return None if message is None else message.message_id

    def first_s(self, root: int) -> float | None:
        """When the message whose attempt this is was first emitted (monotonic); as `id_of`."""
        message = self._in_flight.get(root)
        return None if message is None else message.first_s

    @property
    def attempts_out(self) -> Container[int]:
        """Roots of all attempts that are out, as they come and go."""
        return self._in_flight

    def roots_in_flight(self) -> list[int]:
        """Roots of all attempts that are out, oldest first."""
        return list(self._in_flight)

    def locate(self, message_id: MessageId) -> list[MessageStatus]:
        """The status of a message, one entry per spout task that knows an id like this; empty: none does."""
        key = message_key(message_id)
        found: list[MessageStatus] = []
        for task in self._tasks.values():
            message = task.find(key)
            if message is not None:
                found.append(status_of(message))
            elif key in task.unconfirmed:
                found.append(MessageStatus(task.number, message_id, task.unconfirmed[key]))
        return found

    @property
    def size(self) -> int:
        """Everything that takes memory: messages, unconfirmed ids, places in the queue, unrecorded changes."""
        held = sum(len(task.messages) + len(task.awaiting) + len(task.unconfirmed) for task in self._tasks.values())
        return held + len(self._queue) + len(self._log)

    # --- what survives a restart ------------------------------------------------------------------------------

    def restore(self, logged: Iterable[PendingChanges], decode: Decode, now_s: float, wall_s: float) -> None:
        """Restore what a base and its deltas, oldest first, say. Call it once, after every task is registered.

        Raises:
            CheckpointError: a spout task of the log does not exist here.
        """
        base = fold(logged)
        for number in {record.spout_task for record in base.waiting} | {entry[0] for entry in base.settled}:
            if number not in self._tasks:
                raise CheckpointError(
                    "the log names a spout task that this topology does not have", got=f"spout task {number}"
                )
        for record in base.waiting:
            task = self._tasks[record.spout_task]
            message = message_of(record, decode, now_s, wall_s)
            if record.due_s is None:
                task.awaiting[message.key] = message
            else:
                task.messages[message.key] = message
                self._enqueue(message, message.due_s)
        for number, plain, outcome in base.settled:
            self._tasks[number].unconfirmed[message_key(id_from_plain(plain))] = outcome
        self._log.clear()  # what was read from the log is in it already

    # --- inside -----------------------------------------------------------------------------------------------

    def _known(self, task: SpoutMessages, key: Hashable, message_id: MessageId) -> Joined | AlreadySettled | None:
        message = task.messages.get(key)
        if message is not None:
            self.counters.joined += 1
            return Joined(message.root, task.number, message_id)
        # A dead letter that was brought back and failed awaits its source although its old id is unconfirmed.
        outcome = task.unconfirmed.get(key)
        if outcome is not None and key not in task.awaiting:
            self.counters.already_settled += 1
            return AlreadySettled(outcome, task.number, message_id)
        return None

    def _draw_many(self, count: int) -> list[int]:
        """Draw 64-bit numbers in one call; zeros and collisions may be among them."""
        return memoryview(self._random_bits(64 * count).to_bytes(8 * count, "little")).cast("Q").tolist()

    def _launch(self, message: OpenMessage) -> Emission:
        message.root = root = draw_id(self._random_bits, self._in_flight)
        message.attempt += 1
        self._in_flight[root] = message
        return Emission(root, message.spout_task, message.message_id, message.value, message.attempt)

    def _enqueue(self, message: OpenMessage, due_s: float) -> None:
        self._tasks[message.spout_task].queued += 1
        self._queue.push(message, due_s)
        self._log.note_waiting(message, was_there=False)

    def _forget(self, message: OpenMessage) -> None:
        """Take a message out of its place, except for its root."""
        task = self._tasks[message.spout_task]
        if task.awaiting.pop(message.key, None) is not None:
            self._log.note_waiting(message, was_there=True)
            return
        del task.messages[message.key]
        if message.ticket:
            task.queued -= 1
            self._queue.remove(message)
            self._log.note_waiting(message, was_there=True)
