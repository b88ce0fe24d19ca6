"""What goes into the ledger and comes out of it, as plain data.

Owns what each field means, and the states of messages and executions. Refuses to know any database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from tupletree.queues import Message
from tupletree.routes.document.spec import ErrorHandling
from tupletree.routes.messages import Standing

MessageState = Literal["pending", "processing", "held", "retrying", "done", "filtered", "unrouted", "dead", "cancelled"]
ExecutionState = Literal["running", "completed", "completed_with_dead_letters", "failed", "cancelled", "interrupted"]

DROPPED = "dropped by hand"
"""How the reason of a dead message begins that somebody handled elsewhere: it is replayed no more."""

STATE_NAMES: tuple[MessageState, ...] = (
    "pending", "processing", "held", "retrying", "done", "filtered", "unrouted", "dead", "cancelled",
)  # fmt: skip
"""By code, as the tables hold it. `pending`: registered, not seen by its route yet. `held`: a batch holds it.
`unrouted`: it was published to a queue that no route of its pipeline reads."""

PENDING, PROCESSING, HELD, RETRYING, DONE, FILTERED, UNROUTED, DEAD, CANCELLED = range(9)
OPEN = (PENDING, PROCESSING, HELD, RETRYING)


@dataclass(frozen=True)
class LedgerRules:
    """What the ledger must know of the pipeline that is run.

    Attributes:
        pipeline: its name.
        readers: queue → the route that reads it; a child for another queue leaves the pipeline.
        error_handling: by route.
        document: its text, kept with executions.
        versions: adapter → version, kept with executions.
        on_complete: queue that gets a message for each completed execution that a message of another program began;
            empty: none.
    """

    pipeline: str
    readers: Mapping[str, str]
    error_handling: Mapping[str, ErrorHandling]
    document: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    on_complete: str = ""


@dataclass(frozen=True)
class NewMessage:
    """The message that an execution starts with: the queue that it is for, its encoded payload, its headers."""

    queue: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A delivery, before it is worked.

    Attributes:
        id: of the broker's message.
        queue: that it was leased from.
        route: that would work it.
        body: of the message, for its dead letter where it is the end of a message that ends its processes.
        headers: of the message.
    """

    id: str
    queue: str
    route: str
    body: bytes = b""
    headers: Mapping[str, str] = {}


class ArrivalAnswer(msgspec.Struct, frozen=True, gc=False):
    """What is to be done with a delivery.

    Attributes:
        action: `work`: work it. `ack`: it is over (done, or cancelled); ack it without working it. `dead_letter`: it is
            dead already, and its broker was not told; make it a dead letter for `reason`. `give_back`: its execution is
            paused; fail it with a delay, not counted.
        id: of the message in the ledger; it is that of the broker but for messages that others published.
        attempt: from 1.
        executions: that it belongs to.
        parents: ids of the messages that it came of.
        reason: why it is not worked.
        replays: how often it was dead before, and was tried again.
    """

    action: Literal["work", "ack", "dead_letter", "give_back"]
    id: str
    attempt: int = 1
    executions: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    reason: str = ""
    replays: int = 0


@dataclass(frozen=True, slots=True)
class ToRetry:
    """To give back to its broker: after `delay_s` seconds, as an attempt that counts or not."""

    standing: Standing
    delay_s: float = 0.0
    reason: str = ""
    counts: bool = True


@dataclass(frozen=True, slots=True)
class ToDeadLetter:
    """To make a dead letter of its queue, for this reason."""

    standing: Standing
    reason: str


@dataclass(frozen=True, slots=True)
class Completed:
    """An execution that has just ended.

    Attributes:
        execution: its id.
        pipeline: its name.
        state: how it ended.
        run: how often it was complete, from 1: a replay of its dead letters lets it go on.
        total: messages that it had.
        dead: dead letters.
        created_s, ended_s: Unix time.
    """

    execution: str
    pipeline: str
    state: ExecutionState
    run: int
    total: int
    dead: int
    created_s: float
    ended_s: float


@dataclass(slots=True)
class SettleEffects:
    """What is left to do after `settle`, in this order: publish, `Ledger.published(outbox)`, then the others.

    Attributes:
        publish: queue → messages.
        outbox: ids of the outbox rows that `publish` is made of.
        acks: done, at their brokers.
        retries: to give back.
        letters: to make dead letters.
        completed: executions that this call completed.
        settled: (route, state) → messages that this call put into it; states as `STATE_NAMES`.
        late: settlements that changed nothing, as their message was settled before.
    """

    publish: dict[str, list[Message]] = field(default_factory=dict)
    outbox: list[str] = field(default_factory=list)
    acks: list[Standing] = field(default_factory=list)
    retries: list[ToRetry] = field(default_factory=list)
    letters: list[ToDeadLetter] = field(default_factory=list)
    completed: list[Completed] = field(default_factory=list)
    settled: dict[tuple[str, MessageState], int] = field(default_factory=dict)
    late: int = 0


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A message that is registered, and not known to be published. `message.delay_s` is what is left of its delay."""

    id: str
    queue: str
    message: Message


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message that is registered, and that its broker will never take: for this reason."""

    message: Message
    reason: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """A dead message that was replayed.

    Attributes:
        id: of the dead message.
        as_id: of the message that is pending now: the same, or that of its copy in another execution.
        queue: that it is published to.
        letter: id of the dead letter at its broker, which may be deleted there.
    """

    id: str
    as_id: str
    queue: str
    letter: str


@dataclass(frozen=True, slots=True)
class RouteCounts:
    """How many messages of a route are in each state, and how many attempts failed, or never ended (`lost`)."""

    route: str
    states: Mapping[MessageState, int]
    failed_attempts: int = 0
    lost_attempts: int = 0

    @property
    def open(self) -> int:
        """Messages that are not settled."""
        return sum(self.states[STATE_NAMES[state]] for state in OPEN)


@dataclass(frozen=True, slots=True)
class Execution:
    """An execution.

    Attributes:
        id: its id.
        pipeline: name of its pipeline.
        state: see `ExecutionState`.
        paused: whether its messages are given back without being worked.
        open: messages that are not settled.
        total: messages that it has or had.
        dead: dead letters among them.
        init: id of its first message.
        run: how often it was complete, plus 1 while it is open.
        created_s: Unix time.
        ended_s: Unix time; 0 while it goes on.
        told: whether its completion was told.
        reason: why it was cancelled.
    """

    id: str
    pipeline: str
    state: ExecutionState
    paused: bool
    open: int
    total: int
    dead: int
    init: str
    run: int
    created_s: float
    ended_s: float
    told: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """The document and versions of adapters that an execution was started with."""

    document: str
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message, as the ledger has it.

    Attributes:
        number: grows in the order of registration; `Ledger.messages(after=)` goes on from it.
        id: its id.
        route: that works it; empty: none.
        queue: that it was published to.
        state: see `MessageState`.
        failures: attempts that failed.
        lost: attempts that never ended, as their process did.
        replays: how often it was dead and was tried again.
        reason: why it is filtered, unrouted, dead or retrying.
        error: class of the last exception.
        adapter: that filtered or failed it.
        name: its id at its broker, where that is another; see `broker_id`.
        created_s, changed_s: Unix time.
        due_s: when it is tried again, while it is retrying; else 0.
    """

    number: int
    id: str
    route: str
    queue: str
    state: MessageState
    failures: int
    lost: int
    replays: int
    reason: str
    error: str
    adapter: str
    name: str
    created_s: float
    changed_s: float
    due_s: float

    @property
    def broker_id(self) -> str:
        """Its id at its broker."""
        return self.name or self.id


@dataclass(frozen=True)
class MessageAccount:
    """All that the ledger knows of a message.

    Attributes:
        message: its row.
        executions: ids of those that it belongs to.
        parents: ids of the messages that it came of.
        children: ids of what came of it, the first `limit` of them.
        children_total: how many there are.
        unpublished: it waits in the outbox: its broker has not confirmed it.
        traceback: of its last failure, where it is dead.
    """

    message: MessageRow
    executions: Sequence[str]
    parents: Sequence[str]
    children: Sequence[str]
    children_total: int
    unpublished: bool
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Loss:
    """An open message that can never be delivered again.

    Attributes:
        row: as it was when that was found.
        reason: why.
        body: its payload, encoded; None: it is gone.
        headers: of the message, with its body.
    """

    row: MessageRow
    reason: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
