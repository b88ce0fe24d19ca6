"""What an epoch's verdicts make of its messages, found before any of it is done.

`PendingDecider` reads `Pending` and changes nothing; `PendingDecision` is what it found, as a value that
`Pending.apply` carries out. Between the two the caller makes it durable. Valid as long as nothing else changes
`Pending` in between. Refuses to decide about trees: the caller says which attempts completed and which failed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tupletree.tracking.message_ids import message_key
from tupletree.tracking.message_table import AWAITING, OpenMessage, RetryQueue, SpoutMessages, died_of
from tupletree.tracking.outcomes import Failure, Outcome
from tupletree.tracking.pending_log import ChangeLog, Encode, PendingChanges
from tupletree.tracking.records import Acked, Died, RetryAt, SourceRetry
from tupletree.tracking.retry import RetryPolicy, spread_of

if TYPE_CHECKING:
    from tupletree.ids import MessageId


class Times(NamedTuple):
    """When something is decided: monotonic seconds, and seconds since the Unix epoch."""

    now_s: float
    wall_s: float


class Adoption(NamedTuple):
    """A message that becomes one like all others, with its first attempt in flight; see `Pending.adopt`."""

    root: int
    spout_task: int
    message_id: MessageId
    value: Any
    first_emitted_s: float
    made: int


class FailedMessage(NamedTuple):
    """What comes of an attempt that failed; `in_place`: the message stays in flight, under the same root."""

    root: int
    failure: Failure
    effect: RetryAt | SourceRetry | Died
    in_place: bool


@dataclass
class PendingDecision:
    """See the module docstring.

    Attributes:
        times: when it was decided.
        adopted: messages that become ones like all others; then all that follows is about them, too.
        acked: roots of messages that are done.
        given_up: (spout task, key) of messages that their source does not emit again.
        failed: in the order in which retries are queued.
        put_back: (root, due time) of attempts that are taken back without being counted.
        unconfirmed: (spout task, key) → outcome, to keep until the source confirms it.
        late: verdicts on attempts that are not in flight.
    """

    times: Times
    adopted: list[Adoption] = field(default_factory=list)
    acked: list[int] = field(default_factory=list)
    given_up: list[tuple[int, Hashable]] = field(default_factory=list)
    failed: list[FailedMessage] = field(default_factory=list)
    put_back: list[tuple[int, float]] = field(default_factory=list)
    unconfirmed: dict[tuple[int, Hashable], Outcome] = field(default_factory=dict)
    late: int = 0


class PendingDecider:
    """See the module docstring. Made by `Pending.decider`; its calls are in the order of `PendingDecision`.

    Args:
        tasks, in_flight, queue, log, policy: of the `Pending`, read only.
        times: when it is decided.
    """

    def __init__(
        self,
        tasks: Mapping[int, SpoutMessages],
        in_flight: Mapping[int, OpenMessage],
        queue: RetryQueue,
        log: ChangeLog,
        policy: RetryPolicy,
        times: Times,
    ) -> None:
        self.decision = PendingDecision(times)
        self._tasks = tasks
        self._in_flight = in_flight
        self._log = log
        self._policy = policy
        self._ticket = queue.last_ticket
        self._adopted: dict[int, OpenMessage] = {}  # by root
        # Of those that wait afterwards, and None for those that do not any more.
        self._after: dict[tuple[int, Hashable], OpenMessage | None] = {}
        self._left: set[int] = set()  # roots that will not be in flight any more

    def adopt(self, adoption: Adoption) -> None:
        """See `PendingDecision.adopted`."""
        one, times = adoption, self.decision.times
        self._adopted[one.root] = OpenMessage(
            one.spout_task,
            message_key(one.message_id),
            one.message_id,
            one.value,
            1,
            one.root,
            times.now_s - max(0.0, times.wall_s - one.first_emitted_s),
            one.first_emitted_s,
            self._tasks[one.spout_task].by_source,
            made=one.made,
        )
        self.decision.adopted.append(adoption)

    def ack_many(self, roots: Iterable[int]) -> list[Acked]:
        """The trees of these attempts are complete; in order, without those that are not in flight."""
        now_s = self.decision.times.now_s
        found = list(map(self._in_flight.get, roots))
        messages = [message for message in found if message is not None]
        self.decision.acked += [message.root for message in messages]
        self.decision.late += len(found) - len(messages)
        return [Acked(one.spout_task, one.message_id, now_s - one.first_s, one.attempt) for one in messages]

    def give_up(self, spout_task: int) -> list[Died]:
        """End the messages that this source was told to emit again: its input is over."""
        task = self._tasks[spout_task]
        died: list[Died] = []
        for message in task.awaiting.values():
            assert message.failure is not None  # only a failure lets a message await its source
            self._after[spout_task, message.key] = None
            self.decision.given_up.append((spout_task, message.key))
            died.append(died_of(message, task.name, message.failure, self.decision.times.wall_s))
        return died

    def fail(self, root: int, failure: Failure, *, in_place: bool) -> RetryAt | SourceRetry | Died | None:
        """What comes of an attempt that failed; None if it is not in flight.

        `in_place`: the runtime has tuples of the message to start from. It is not emitted again, by the runtime or by
        its source.
        """
        message = self._leaving(root)
        if message is None:
            return None
        task, times = self._tasks[message.spout_task], self.decision.times
        random = partial(spread_of, root, message.attempt)
        effect = after_failure(message, task, failure, self._policy, random, times, in_place=in_place)
        self.decision.failed.append(FailedMessage(root, failure, effect, in_place and isinstance(effect, RetryAt)))
        if isinstance(effect, SourceRetry):
            self._waits(message, AWAITING, message.due_s, message.attempt, failure)
        elif isinstance(effect, RetryAt) and not in_place:
            self._waits(message, self._next_ticket(), effect.due_s, message.attempt, failure)
        return effect

    def put_back(self, root: int, due_s: float) -> None:
        """Take an attempt back without counting it: the message is given out at `due_s`."""
        message = self._leaving(root)
        if message is not None:
            self.decision.put_back.append((root, due_s))
            self._waits(message, self._next_ticket(), due_s, message.attempt - 1, message.failure)

    def mark_unconfirmed(self, spout_task: int, message_id: MessageId, outcome: Outcome) -> None:
        """Keep the outcome of a settled message until its source confirms it."""
        self.decision.unconfirmed[spout_task, message_key(message_id)] = outcome

    def changes(self, encode: Encode) -> PendingChanges:
        """What has changed since the last base or delta once this is applied."""
        times = self.decision.times
        return self._log.changes(encode, times.now_s, times.wall_s, self._after, self.decision.unconfirmed)

    def base(self, encode: Encode) -> PendingChanges:
        """All that waits and all that is unconfirmed once this is applied."""
        times = self.decision.times
        return self._log.base(encode, times.now_s, times.wall_s, self._after, self.decision.unconfirmed)

    def _leaving(self, root: int) -> OpenMessage | None:
        message = self._in_flight.get(root) or self._adopted.get(root)
        if message is None or root in self._left:
            self.decision.late += 1
            return None
        self._left.add(root)
        return message

    def _waits(self, message: OpenMessage, ticket: int, due_s: float, attempt: int, failure: Failure | None) -> None:
        after = copy(message)
        after.ticket, after.due_s, after.attempt, after.failure = ticket, due_s, attempt, failure
        self._after[message.spout_task, message.key] = after

    def _next_ticket(self) -> int:
        self._ticket += 1
        return self._ticket


def after_failure(
    message: OpenMessage,
    task: SpoutMessages,
    failure: Failure,
    policy: RetryPolicy,
    random: Callable[[], float],
    times: Times,
    *,
    in_place: bool = False,
) -> RetryAt | SourceRetry | Died:
    """What comes of a message whose attempt, which is in flight, failed; changes nothing."""
    if failure.permanent or policy.exhausted(message.attempt, failure.retry):
        return died_of(message, task.name, failure, times.wall_s)
    if message.by_source and not in_place:
        return SourceRetry(task.number, message.message_id, message.attempt + 1, failure, message.root)
    due_s = times.now_s + policy.delay_s(message.attempt, random, failure.retry)
    return RetryAt(task.number, message.message_id, message.attempt + 1, due_s, message.root)
