"""The broker contract: what a message queue must do to be a source and a sink of Tupletree.

Owns the abstract `Broker`, its errors, and `Capabilities`, where a broker says what it cannot do; what goes through a
queue is in `messages`. Refuses to know any broker, and has no clock of its own but for the pauses of a `lease`
that waits: time is that of the broker's host.

To write a broker, subclass `Broker` and run `tupletree.testing.queue_conformance` against it; docs/queues.md has a
complete one in a page.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import msgspec

from tupletree.errors import ConfigError, ConnectorError, ProcessingError
from tupletree.queues.messages import (
    DEFAULT_LEASE_S,
    DEFAULT_MAX_BYTES,
    MAX_ID_BYTES,
    STATES,
    Delivery,
    Depth,
    Failure,
    Letter,
    Message,
    RefusedMessage,
    State,
    Stored,
)

_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.02


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker can do beyond publish, lease, ack and fail.

    What is False raises `NotCapableError` when asked for, unless the text says otherwise. The conformance suite checks
    each, both ways.

    Attributes:
        idempotent_publish: an id that is in the queue is not stored again. False: it is stored again, silently, as such
            a broker cannot know; consumers must be idempotent.
        remembers_acked_s: seconds for which an id is known after its ack; 0 means not at all.
        delay: messages with a delay.
        retry_delay: failures with a delay.
        absolute_time: `not_before_s`.
        extend: a lease can be extended.
        fencing: `ack`, `fail`, `extend` and `dead_letter` with the handle of an old lease are refused. False: they may
            settle the message for its new holder.
        uncounted: failures with `counts=False`. False: they count as any other.
        dead_letters: `dead_letter`.
        find: this operation.
        peek, move, purge: the states for which these operations work.
        states: what `depth` counts; another number of the depth is 0.
        counts_open: `Depth.open` is the number of all messages that are not done and not dead: those of a state that is
            not counted by itself are counted as ready. False: they are in no number.
        key_order: `declare(ordered=True)`.
        atomic_move: a crash in the middle of a move leaves each message in one of the two queues. False: in both, with
            the same id.
        atomic_settle: `settle` happens as a whole or not at all. False: it publishes first and acks then, so that a
            crash in between delivers the message again.
        runs_sql: `settle(within=…)` runs the caller's statements in the same transaction.
        durable_acks: a crash of the broker forgets no ack that returned. False: what was acked just before, or made a
            dead letter, may be delivered again. Then a dead letter that is moved has the time of its move as
            `published_s`, or a consumer would take it for one of these.
        ack_anywhere: any connection may settle a handle. False: only the one that leased it.
        several_hosts: consumers on several hosts may share a queue.
        lists_queues: `queues`.
        by_message: consumers share a queue message by message. False: a connection has parts of the queue to itself
            while it leases from them or holds messages of them; what is in them may come to it alone.
        holds_only_leased: a connection keeps from others only what it leased. False: it may hold more for its next
            lease, no longer than a lease. What of it goes back, or is lost with it, may count as delivered.
        leases_survive: a lease lasts though the connection that took it is gone. False: its message comes again at
            once.
        max_lease_s: no lease lasts longer, however often it is extended.
        max_body_bytes: of one message.
    """

    idempotent_publish: bool = False
    remembers_acked_s: float = 0.0
    delay: bool = False
    retry_delay: bool = False
    absolute_time: bool = False
    extend: bool = False
    fencing: bool = False
    uncounted: bool = False
    dead_letters: bool = False
    find: bool = False
    peek: tuple[State, ...] = ()
    move: tuple[State, ...] = ()
    purge: tuple[State, ...] = ()
    states: tuple[State, ...] = STATES
    counts_open: bool = True
    key_order: bool = False
    atomic_move: bool = False
    atomic_settle: bool = False
    runs_sql: bool = False
    durable_acks: bool = True
    ack_anywhere: bool = False
    several_hosts: bool = False
    lists_queues: bool = True
    by_message: bool = True
    holds_only_leased: bool = True
    leases_survive: bool = True
    max_lease_s: float = 1e9
    max_body_bytes: int = 1_000_000


class UnknownQueueError(ConnectorError):
    """The broker has no queue of this name. Waiting does not help: declare it, or correct the name."""

    is_outage = False
    exit_code = 2

    @classmethod
    def of(cls, queue: str, where: str) -> Self:
        """That a broker has not this queue."""
        next_step = "declare it, or correct the name"
        return cls("there is no such queue", where=where, got=repr(queue), next_step=next_step)


class RefusedConnectionError(ConnectorError):
    """The broker does not let this user in, or do it. Waiting does not help while it is as it is.

    No message is to blame: for what has to do with a message, raise RefusedRequestError. A run that the broker had let
    connect waits all the same (`queues.access`): an operator may let it again.
    """

    is_outage = False


class RefusedRequestError(ConnectorError):
    """The broker is there, and refuses what was asked, maybe because of a message. Waiting does not help."""

    is_outage = False


class NotCapableError(ConfigError):
    """The broker cannot do what was asked; its `Capabilities` say so beforehand."""


class LeaseLostError(ProcessingError):
    """`settle` met leases that are not held any more; `handles` names them.

    With `atomic_settle` nothing happened: leave them and their children out, and settle the others again.
    """

    def __init__(self, what: str, *, handles: Sequence[str], where: str = "") -> None:
        super().__init__(
            what,
            where=where,
            got=f"{len(handles)} of the handles",
            next_step="their messages belong to other consumers now: leave them and their children out",
        )
        self.handles = tuple(handles)


class RefusedMessagesError(ProcessingError):
    """Messages of a batch that the broker cannot store, all of them; nothing of the batch was published."""

    def __init__(self, refused: Sequence[RefusedMessage], *, where: str = "") -> None:
        first = refused[0]
        super().__init__(
            "messages were refused; nothing of their batch is published",
            where=where,
            got=f"{len(refused)} refused; the first is number {first.position}, id {first.id!r:.80}: {first.reason}",
            next_step="publish the batch without them",
        )
        self.refused = tuple(refused)


def check_messages(messages: Sequence[Message], capabilities: Capabilities, where: str) -> None:
    """Judge a batch before anything of it is stored.

    Raises:
        RefusedMessagesError: what no broker, or not this one, can store; all of it.
        NotCapableError: a delay or time that this broker cannot keep.
    """
    refused = []
    for position, message in enumerate(messages):
        if fault := _fault_of(message, capabilities.max_body_bytes):
            refused.append(RefusedMessage(position, str(message.id), fault))
        elif (message.delay_s and not capabilities.delay) or (message.not_before_s and not capabilities.absolute_time):
            raise NotCapableError(
                "this broker cannot delay a message",
                where=where,
                got=f"delay_s={message.delay_s}, not_before_s={message.not_before_s}",
                next_step="publish it when its time has come, or use a broker that can (docs/queues.md)",
            )
    if refused:
        raise RefusedMessagesError(refused, where=where)


def _fault_of(message: Message, max_body_bytes: int) -> str:
    body: object = message.body  # nothing has checked it yet
    if not isinstance(body, bytes):
        return f"the body is {type(body).__name__}, expected bytes"
    if len(message.body) > max_body_bytes:
        return f"the body has {len(message.body):,} bytes, at most {max_body_bytes:,} fit"
    if not (0 <= message.delay_s < 1e11 and 0 <= message.not_before_s < 1e11):  # False for nan, too
        return f"delay_s={message.delay_s}, not_before_s={message.not_before_s}: expected seconds, 0 or more"
    texts = [message.id, message.key, message.content_type]
    if message.headers:
        texts += [*message.headers, *message.headers.values()]
    try:
        size = len(message.id.encode())
        if not 1 <= size <= MAX_ID_BYTES:
            return f"the id has {size} bytes, expected 1 to {MAX_ID_BYTES}"
        for text in texts:
            text.isascii() or text.encode()
    except UnicodeEncodeError:
        return "a text of it (id, key, content type, headers) cannot be encoded as UTF-8"
    except (AttributeError, TypeError):
        return "id, key, content type and headers must be text"
    return ""


def is_name(text: object) -> bool:
    """Whether this can be the name of a queue: text, 1 to 512 bytes of UTF-8."""
    try:
        return isinstance(text, str) and 1 <= len(text.encode()) <= MAX_ID_BYTES
    except UnicodeEncodeError:
        return False


def check_name(text: object, where: str) -> None:
    """Raises ConfigError for what cannot be the name of a queue."""
    if not is_name(text):
        raise ConfigError(
            "this is no name for a queue", where=where, got=repr(text), expected="text, 1 to 512 bytes of UTF-8"
        )


class Broker(ABC):
    """A connection to a broker, and through it to any number of queues.

    Any thread may call; a `lease` that waits keeps no other call waiting. A broker cannot be sent to another process:
    connect there by the same URL. Every operation takes or gives a batch, because a batch costs one round trip and one
    fsync.

    Every operation may raise ConnectorError: the broker cannot be reached, its disk is full, its file is locked. Then a
    `publish`, `settle` or `move` may have happened or not; repeat it, with the same ids. Nothing that returned is lost.

    "Refused": operations on handles return those whose lease was not held any more. Such a message was settled, or is
    with another consumer, or waits to be leased; it is not the caller's any more, and nothing has to be done. From the
    end of a lease until its message is leased again a broker may also take the handle: the embedded queue does.

    Attributes:
        capabilities: what it can do.
        where: its URL without secrets, for errors and logs.
        monotonic, sleep: for the pauses of a `lease` that waits; tests put others in their place.
    """

    capabilities: Capabilities
    where: str
    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    sleep: Callable[[float], None] = staticmethod(time.sleep)

    @abstractmethod
    def declare(self, queue: str, *, ordered: bool = False) -> None:
        """Make a queue if it is not there; idempotent.

        Args:
            queue: its name, any text.
            ordered: messages of one key are leased in the order of their publishing, one at a time: the next one when
                the one before is acked or dead, also across retries. Cannot be changed later (ConfigError).
        """

    @abstractmethod
    def queues(self) -> Sequence[str]:
        """Names of the queues that are declared, sorted."""

    @abstractmethod
    def publish(self, queue: str, messages: Sequence[Message]) -> int:
        """Store messages; they are durable when this returns. In one queue, messages are leased in about this order.

        Returns:
            How many were new: with `idempotent_publish` an id that is known is left as it is, its body too.

        Raises:
            RefusedMessagesError: messages that cannot be stored; nothing was.
            UnknownQueueError: the queue is not declared.
        """

    @abstractmethod
    def take(self, queue: str, limit: int, *, lease_s: float, max_bytes: int) -> list[Delivery]:
        """`lease` without waiting. For authors of a broker; callers use `lease`."""

    def lease(
        self,
        queue: str,
        limit: int = 1,
        *,
        lease_s: float = DEFAULT_LEASE_S,
        wait_s: float = 0.0,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> list[Delivery]:
        """Lease up to `limit` messages. They are the caller's until acked, failed, or `lease_s` is over.

        Messages whose lease ended are delivered again, with `deliveries` one higher.

        Args:
            queue: its name.
            limit: most messages.
            lease_s: seconds.
            wait_s: seconds to wait for the first message; returns as soon as there is any.
            max_bytes: of all bodies together; a single message may be larger.

        Raises:
            UnknownQueueError: the queue is not declared.
        """
        return self.take_within(queue, limit, lease_s=lease_s, max_bytes=max_bytes, wait_s=wait_s)

    def take_within(self, queue: str, limit: int, *, lease_s: float, max_bytes: int, wait_s: float) -> list[Delivery]:
        """`lease`. For authors of a broker that is told when there are messages; others take again and again."""
        end_s = self.monotonic() + wait_s
        pause_s = _FIRST_PAUSE_S
        while True:
            taken = self.take(queue, limit, lease_s=lease_s, max_bytes=max_bytes)
            left_s = end_s - self.monotonic()
            if taken or left_s <= 0:
                return taken
            self.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    @abstractmethod
    def ack(self, handles: Sequence[str]) -> Sequence[str]:
        """The messages are done and leave the queue; durable when this returns. Returns the refused handles."""

    @abstractmethod
    def fail(self, failures: Sequence[Failure]) -> Sequence[str]:
        """Give messages back, each with its delay. Returns the refused handles."""

    def extend(self, handles: Sequence[str], lease_s: float = DEFAULT_LEASE_S) -> Sequence[str]:
        """Let leases last `lease_s` from now on. Returns the refused handles."""
        raise self.not_capable("extend a lease")

    def dead_letter(self, letters: Sequence[Letter]) -> Sequence[str]:
        """Make messages dead letters of their queue, with body and reason. Returns the refused handles."""
        raise self.not_capable("keep dead letters")

    def settle(
        self,
        *,
        acks: Sequence[str] = (),
        failures: Sequence[Failure] = (),
        letters: Sequence[Letter] = (),
        publish: Mapping[str, Sequence[Message]] | None = None,
        within: Callable[[Any], object] | None = None,
    ) -> None:
        """Publish children, then settle their parents: with `atomic_settle` in one transaction.

        Args:
            acks: as for `ack`.
            failures: as for `fail`.
            letters: as for `dead_letter`.
            publish: queue → messages.
            within: is called with the broker's transaction before it commits, to run statements of the caller's own.
                What it raises undoes all. See `runs_sql`. The transaction has `execute(statement, …)`, whose parameters
                are written as the broker's driver has them, and `publish`, `ack`, `fail` and `dead_letter` as here.

        Raises:
            LeaseLostError: handles that are refused. With `atomic_settle` nothing happened; otherwise all else did.
            RefusedMessagesError, UnknownQueueError: as `publish`; no parent was settled.
        """
        if within is not None:
            raise self.not_capable("run the caller's statements in its transaction")
        for queue, messages in (publish or {}).items():
            self.publish(queue, messages)
        refused = [*self.ack(acks)] if acks else []
        refused += self.fail(failures) if failures else ()
        refused += self.dead_letter(letters) if letters else ()
        if refused:
            raise LeaseLostError(
                "leases were lost before their messages were settled", handles=refused, where=self.where
            )

    @abstractmethod
    def depth(self, queue: str) -> Depth:
        """How many messages it holds, by state. Fast at any number."""

    def peek(self, queue: str, state: State = "ready", limit: int = 10, *, after: int = 0) -> Sequence[Stored]:
        """Look at messages without leasing them, in the order in which they come; `after` skips that many."""
        raise self.not_capable("show messages without leasing them")

    def find(self, queue: str, ids: Sequence[str]) -> set[str]:
        """Which of these messages the queue holds, ready, leased, delayed or dead, as of one moment.

        Raises:
            UnknownQueueError: the queue is not declared.
        """
        raise self.not_capable("say which messages it holds")

    def move(self, source: str, target: str, *, state: State = "ready", limit: int = 0, ids: Sequence[str] = ()) -> int:
        """Move messages of one state to the end of another queue, and say how many.

        A delayed message stays delayed. A dead letter becomes ready; with `source` as `target` it goes back to work.
        Deliveries are counted again from 0. Where the target holds the id, the message only leaves the source. Leased
        messages cannot be moved (ConfigError).

        Args:
            source: a queue of this broker.
            target: a queue of this broker.
            state: which messages.
            limit: most of them; 0 means all.
            ids: only these; empty means any.
        """
        raise self.not_capable("move messages")

    def purge(self, queue: str, *, states: Sequence[State] = ("ready", "delayed")) -> int:
        """Delete the messages of these states for good, and say how many. Their ids may be published again."""
        raise self.not_capable("delete messages")

    @abstractmethod
    def close(self) -> None:
        """Close the connection: calls that wait raise ConnectorError, leases stay. Harmless if repeated."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.where!r})"

    def not_capable(self, what: str) -> NotCapableError:
        """The error to raise for what this broker cannot do."""
        return NotCapableError(
            f"this broker cannot {what}",
            where=self.where,
            next_step="docs/queues.md has a table of what each broker can",
        )
