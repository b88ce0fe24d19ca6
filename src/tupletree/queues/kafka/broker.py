"""Queues on a Kafka cluster: for each a topic of messages, one of retries, and one of dead letters.

Owns what a queue is at the cluster, and what an operation does with it. The connection is in `client`, leases are in
`member`, what is durable of them in `offsets`.

A message that failed with a delay is a copy in the topic of retries, which says how long it waits; one that is dead is
a copy in the topic of dead letters. The copy is stored first, and the offset of the message settled then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import msgspec

from tupletree.errors import ConfigError, ConnectorError
from tupletree.queues.contract import (
    Broker,
    Capabilities,
    RefusedMessagesError,
    check_messages,
    check_name,
)
from tupletree.queues.kafka.client import KafkaClient
from tupletree.queues.kafka.leases import Lease
from tupletree.queues.kafka.letters import DeadLetters, counted
from tupletree.queues.kafka.member import Member
from tupletree.queues.kafka.wire import (
    DEAD,
    MOST_HEAD_BYTES,
    REASON_BYTES,
    RETRY,
    Handle,
    dead_topic,
    head_bytes,
    is_topic_of_queue,
    record_of,
    retry_topic,
    topic_of,
    topics_of,
)
from tupletree.queues.messages import (
    DEFAULT_LEASE_S,
    Delivery,
    Depth,
    Failure,
    Letter,
    Message,
    RefusedMessage,
    State,
    Stored,
)

CAPABILITIES = Capabilities(
    delay=True,
    retry_delay=True,
    absolute_time=True,
    extend=True,
    fencing=True,
    uncounted=True,
    dead_letters=True,
    peek=("dead",),
    move=("dead",),
    purge=("dead",),
    states=("ready", "dead"),
    several_hosts=True,
    by_message=False,
    holds_only_leased=False,
    leases_survive=False,
    max_body_bytes=1_000_000,
)

_Held = list[tuple[Member, dict[str, Lease]]]
"""Leases by their handles, of each member."""

CHUNK = 500
"""Dead letters that are moved at a time."""


@dataclass(eq=False)
class _Joined:
    """What this connection has of one queue: the members for its messages and its retries."""

    changed: threading.Condition
    members: Sequence[Member]


class KafkaBroker(Broker):
    """See `Broker`. Made by `tupletree.queues.connect`.

    Args:
        client: the connection; it is closed with the broker.
        max_gap: offsets of a partition behind its first one that is not settled, beyond which no more is leased.
    """

    def __init__(self, client: KafkaClient, *, max_gap: int) -> None:
        self.where = client.server.where
        self._client = client
        self._max_gap = max_gap
        self._joined: dict[str, _Joined] = {}
        self._joining = threading.Lock()
        self.capabilities = msgspec.structs.replace(CAPABILITIES, max_body_bytes=client.server.max_body_bytes)

    # --- queues -----------------------------------------------------------------------------------------------

    def declare(self, queue: str, *, ordered: bool = False) -> None:
        """See `Broker.declare`. Topics that are there keep their settings."""
        check_name(queue, self.where)
        if ordered:
            raise self.not_capable("keep the order of keys")
        # With the cluster's time of storing, delays and `published_s` do not depend on the publisher's clock.
        common = {"message.timestamp.type": "LogAppendTime"}
        common["max.message.bytes"] = str(self._client.server.max_body_bytes + MOST_HEAD_BYTES + 10_000)
        kept = {**common, "retention.ms": "-1"}
        many = self._client.server.partitions
        topics = topics_of(queue)
        self._client.make(dict.fromkeys(topics, kept), dict(zip(topics, (many, many, 1), strict=True)))

    def queues(self) -> Sequence[str]:
        """See `Broker.queues`. One whose name is none for a topic is named as its topic."""
        topics = self._client.topics()
        return sorted(one for one in topics if is_topic_of_queue(one, topics))

    def depth(self, queue: str) -> Depth:
        """See `Broker.depth`. Leased and delayed messages are among those that are ready."""
        self._client.need(queue, topics_of(queue))
        messages, retries, dead = (counted(self._client, topic) for topic in topics_of(queue))
        return Depth(ready=messages + retries, dead=dead)

    # --- publishing -------------------------------------------------------------------------------------------

    def publish(self, queue: str, messages: Sequence[Message]) -> int:
        """See `Broker.publish`. What fails in the middle may be stored in part."""
        check_messages(messages, self.capabilities, self.where)
        most = MOST_HEAD_BYTES - REASON_BYTES
        refused = [
            RefusedMessage(at, one.id, f"id, content type, key and headers have {size:,} bytes, at most {most:,} fit")
            for at, one in enumerate(messages)
            if (size := head_bytes(one)) > most
        ]
        if refused:
            raise RefusedMessagesError(refused, where=self.where)
        self._client.need(queue, topics_of(queue))
        self._client.publish(
            [
                record_of(
                    retry_topic(queue) if one.delay_s or one.not_before_s else topic_of(queue),
                    one,
                    delay_s=one.delay_s,
                    not_before_s=one.not_before_s,
                )
                for one in messages
            ]
        )
        return len(messages)

    # --- leasing ----------------------------------------------------------------------------------------------

    def take(self, queue: str, limit: int, *, lease_s: float, max_bytes: int) -> list[Delivery]:
        return self.take_within(queue, limit, lease_s=lease_s, max_bytes=max_bytes, wait_s=0.0)

    def take_within(self, queue: str, limit: int, *, lease_s: float, max_bytes: int, wait_s: float) -> list[Delivery]:
        """See `Broker.take_within`. The first one of a queue joins its group, and waits for that."""
        if limit < 1:
            return []
        joined = self._join(queue)
        end_s = time.monotonic() + wait_s
        looks_until_s = time.monotonic() + self._client.server.timeout_s
        is_at_end = False
        while True:
            if taken := self._take(joined, limit, lease_s, max_bytes):
                return taken
            if is_at_end or (left_s := end_s - time.monotonic()) > 0:
                if is_at_end:
                    self._client.check()
                    return []
                with joined.changed:
                    if not any(one.ready for one in joined.members):
                        joined.changed.wait(min(left_s, 0.25))
            else:
                # There is nothing only if all that is stored was looked at.
                is_at_end = all(one.is_at_end() for one in joined.members)
                if not is_at_end and time.monotonic() > looks_until_s:
                    raise ConnectorError(f"{self.where}: queue {queue!r} cannot be read now")
                with joined.changed:
                    if not is_at_end and not any(one.ready for one in joined.members):
                        joined.changed.wait(0.02)
            if any(one.is_over for one in joined.members):
                joined = self._join(queue)

    def _take(self, joined: _Joined, limit: int, lease_s: float, max_bytes: int) -> list[Delivery]:
        found: list[Delivery] = []
        for member in reversed(joined.members):  # retries are older
            with joined.changed:
                if member.fault is not None:
                    raise member.fault
                if (room := limit - len(found)) < 1 or (found and max_bytes < 1):
                    break
                picked = member.pick(room, max_bytes, lease_s)
            if not picked:
                continue
            try:
                lost = member.commit({one.part for one in picked})  # counted before it is handed out
            except ConnectorError:
                with joined.changed:
                    member.give_back(picked, counts=False)
                if found:
                    break
                raise
            made = [_delivery(member, one, lease_s) for one in picked if one.part not in lost]
            max_bytes -= sum(len(one.message.body) for one in made)
            found += made
        return found

    def _join(self, queue: str) -> _Joined:
        """This connection's members for a queue, which have their partitions."""
        with self._joining:
            if self._client.is_closed:  # nobody would close the new members, which get partitions of the group
                raise ConnectorError(f"the connection to {self.where} was closed")
            joined = self._joined.get(queue)
            if joined is None or any(one.is_over for one in joined.members):
                self._client.need(queue, topics_of(queue))
                self._client.now_s()
                joined = self._joined[queue] = self._again(queue, joined)
        timeout_s = self._client.server.timeout_s + self._client.server.session_s
        with joined.changed:
            is_there = joined.changed.wait_for(
                lambda: all(one.has_joined or one.is_over for one in joined.members), timeout_s
            )
        if fault := next((one.fault for one in joined.members if one.fault is not None), None):
            raise fault
        if not is_there:
            raise ConnectorError(f"{self.where}: the group of queue {queue!r} cannot be joined now")
        return joined

    def _again(self, queue: str, joined: _Joined | None) -> _Joined:
        """New members for those that ended; the others go on with what is leased of them."""
        changed = joined.changed if joined is not None else threading.Condition()
        members: list[Member | None] = [*joined.members] if joined is not None else [None, None]
        for place, topic in enumerate((topic_of(queue), retry_topic(queue))):
            old = members[place]
            if old is None or old.is_over:
                members[place] = Member(self._client, topic, changed, self._client.now_s, self._max_gap)
        return _Joined(changed, [one for one in members if one is not None])

    # --- settling ---------------------------------------------------------------------------------------------

    def ack(self, handles: Sequence[str]) -> Sequence[str]:
        """See `Broker.ack`. It is committed when this returns."""
        refused, held = self._held(handles)
        with _settling(held):
            return refused + _settled(held)

    def fail(self, failures: Sequence[Failure]) -> Sequence[str]:
        """See `Broker.fail`. With a delay a copy waits in the topic of retries; else the message stays in its place."""
        by_handle = {one.handle: one for one in failures}
        refused, held = self._held([*by_handle])
        with _settling(held):
            later = []
            for member, leases in held:
                now = {handle: one for handle, one in leases.items() if not by_handle[handle].delay_s}
                uncounted = [one for handle, one in now.items() if not by_handle[handle].counts]
                with member.changed:
                    member.give_back(uncounted, counts=False)
                    member.give_back([one for handle, one in now.items() if by_handle[handle].counts], counts=True)
                if uncounted:
                    member.commit({one.part for one in uncounted})
                later.append((member, {handle: one for handle, one in leases.items() if handle not in now}))
            self._copy(later, RETRY, by_handle)
            return refused + _settled(later)

    def dead_letter(self, letters: Sequence[Letter]) -> Sequence[str]:
        """See `Broker.dead_letter`. Stored first, settled then: after a crash in between it is done again."""
        failures = {one.handle: Failure(handle=one.handle, reason=one.reason) for one in letters}
        refused, held = self._held([*failures])
        with _settling(held):
            self._copy(held, DEAD, failures)
            return refused + _settled(held)

    def _copy(self, held: _Held, ending: str, failures: Mapping[str, Failure]) -> None:
        """Store copies of messages that are held in another topic of their queue."""
        records = [
            record_of(
                member.topic.removesuffix(RETRY) + ending,
                one.delivered.message,
                deliveries=one.deliveries - (not failures[handle].counts),
                delay_s=failures[handle].delay_s,
                published_s=one.delivered.published_s,
                reason=failures[handle].reason,
            )
            for member, leases in held
            for handle, one in leases.items()
        ]
        if records:
            self._client.publish(records)

    def _held(self, handles: Sequence[str]) -> tuple[list[str], _Held]:
        """Handles whose lease is not held, and the leases of the others by their member."""
        members = {one.name: one for joined in [*self._joined.values()] for one in joined.members}
        refused: list[str] = []
        held: dict[Member, dict[str, Lease]] = {}
        for text in handles:
            handle = Handle.of(text)
            member = members.get(handle.member)
            lease = None
            if member is not None:
                with member.changed:
                    lease = member.held(handle)
            if member is None or lease is None:
                refused.append(text)
            else:
                held.setdefault(member, {})[text] = lease
        return refused, [*held.items()]

    def extend(self, handles: Sequence[str], lease_s: float = DEFAULT_LEASE_S) -> Sequence[str]:
        """See `Broker.extend`. This connection keeps the time."""
        refused, held = self._held(handles)
        for member, leases in held:
            with member.changed:
                member.extend(leases.values(), lease_s)
        return refused

    # --- operating --------------------------------------------------------------------------------------------

    def peek(self, queue: str, state: State = "ready", limit: int = 10, *, after: int = 0) -> Sequence[Stored]:
        """See `Broker.peek`; dead letters alone can be shown."""
        if state != "dead":
            raise self.not_capable(f"show messages that are {state}")
        self._client.need(queue, topics_of(queue))
        with DeadLetters(self._client, dead_topic(queue)) as letters:
            return [stored for _, stored in islice(letters.read(), after, after + limit)]

    def move(self, source: str, target: str, *, state: State = "ready", limit: int = 0, ids: Sequence[str] = ()) -> int:
        """See `Broker.move`; dead letters alone can be moved."""
        if state == "leased":
            raise ConfigError("leased messages cannot be moved", where=f"{self.where}, queue {source!r}")
        if state != "dead":
            raise self.not_capable(f"move messages that are {state}")
        for queue in (source, target):
            self._client.need(queue, topics_of(queue))
        wanted = {*ids}
        moved = 0
        with DeadLetters(self._client, dead_topic(source)) as letters:
            fitting = (found for found in letters.read() if not wanted or found[1].message.id in wanted)
            chosen = islice(fitting, limit or None)
            while chunk := [*islice(chosen, CHUNK)]:
                places = [place for place, _ in chunk]
                letters.check(places)
                self._client.publish([record_of(topic_of(target), stored.message) for _, stored in chunk])
                letters.settle(places)
                moved += len(chunk)
        return moved

    def purge(self, queue: str, *, states: Sequence[State] = ("ready", "delayed")) -> int:
        """See `Broker.purge`; dead letters alone can be deleted. The cluster keeps them until their retention ends."""
        if {*states} - {"dead"}:
            raise self.not_capable("delete messages that are not dead: some of them may be leased")
        self._client.need(queue, topics_of(queue))
        with DeadLetters(self._client, dead_topic(queue)) as letters:
            return letters.settle_all()

    def close(self) -> None:
        """See `Broker.close`. What is leased by this connection goes to others."""
        with self._joining:
            joined = [*self._joined.values()]
            self._joined.clear()
            _leave(joined)
            self._client.close()


def _leave(joined: Sequence[_Joined]) -> None:
    for one in joined:
        for member in one.members:
            member.leave()
    for one in joined:
        for member in one.members:
            member.close()


def _delivery(member: Member, lease: Lease, lease_s: float) -> Delivery:
    return Delivery(
        message=lease.delivered.message,
        handle=str(Handle(member.name, lease.part.number, lease.offset, lease.number)),
        deliveries=lease.deliveries,
        lease_s=lease_s,
        published_s=lease.delivered.published_s,
    )


@contextmanager
def _settling(held: _Held) -> Iterator[None]:
    """Keep leases from ending meanwhile; what is not settled then is held as before."""
    try:
        yield
    finally:
        for member, leases in held:
            with member.changed:
                for one in leases.values():
                    one.is_settling = False


def _settled(held: _Held) -> list[str]:
    """Settle what is held. Returns the handles that are refused: their partitions went to other members."""
    refused: list[str] = []
    for member, leases in held:
        if leases:
            lost = member.commit((), [*leases.values()])
            refused += [handle for handle, one in leases.items() if one.part in lost]
    return refused
