"""One topic's consumer in its group: the partitions that it was given, what is leased of them, and until when.

Owns a thread that polls, also while nothing is wanted, for who does not poll loses its partitions. Refuses to know
queues: `broker` joins a member for the messages and one for the retries of each.

A partition is with one member of the group at a time. What became of its records is committed beside its offset
(`Marks`), before a delivery is handed out and before an ack returns. So the next one that has the partition knows it.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from tupletree.errors import ConnectorError
from tupletree.queues.kafka.client import KafkaClient, group_of
from tupletree.queues.kafka.codes import AGAIN, END, LOST, POLLED_TOO_LATE
from tupletree.queues.kafka.commits import Commits
from tupletree.queues.kafka.leases import AssignedPartition, Lease
from tupletree.queues.kafka.offsets import Marks
from tupletree.queues.kafka.wire import Handle, delivered_of

POLL_S = 0.05
BUSY_POLL_S, BUSY_S = 0.005, 2.0
"""A commit waits for the end of a poll: who was asked for something just now polls so briefly."""

BATCH = 500
LEAST_AHEAD, MOST_AHEAD_BYTES = 200, 64_000_000
"""What is read ahead of leases: at least so many messages, or twice what is leased at a time; no more bytes."""

LEAST_IDLE_S = 1.0
DRAIN_S = 30.0
"""How long a partition that is to go to another member waits for its leases."""

logger = logging.getLogger("tupletree.queues")


# More than 12 attributes: one consumer, its partitions, what waits in which order, and what its callers asked for.
class Member:
    """See the module.

    Args:
        client: of the connection.
        topic: whose records these are.
        changed: is notified of whatever a caller may wait for; its lock guards all state here.
        now_s: the cluster's Unix time.
        max_gap: offsets of a partition behind its watermark, beyond which no more are leased.
    """

    def __init__(
        self,
        client: KafkaClient,
        topic: str,
        changed: threading.Condition,
        now_s: Callable[[], float],
        max_gap: int,
    ) -> None:
        self.name = secrets.token_hex(6)
        self.topic = topic
        self.is_over = False
        self.has_joined = False
        self.fault: ConnectorError | None = None
        self._client = client
        self.changed = changed
        self._now_s = now_s
        self._max_gap = max_gap
        self._parts: dict[int, AssignedPartition] = {}
        self._ready: list[tuple[int, Lease]] = []
        self._delayed: list[tuple[float, int, Lease]] = []
        self._orders = itertools.count()
        self._numbers = itertools.count(1)
        self._ahead = LEAST_AHEAD
        self._asked_s = self._busy_until_s = time.monotonic()
        self._idle_s = 2 * (client.server.timeout_s + client.server.session_s)  # joining takes its time
        self._next_end_s = float("inf")
        self._is_closing = False
        self._is_full = False
        self._waiting_bytes = 0
        self._blocked = 0  # of those that are ready: too far behind a watermark, or of a partition that goes
        self._committing = threading.Lock()
        self._commits = Commits()
        session_ms = round(client.server.session_s * 1000)
        self._consumer = client.consumer(
            group_of(topic),
            **{
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": session_ms,
                "heartbeat.interval.ms": max(50, session_ms // 10),
                "max.poll.interval.ms": max(300_000, 2 * session_ms),
                "on_commit": self._commits.hear,
                "fetch.wait.max.ms": 500,
                "fetch.error.backoff.ms": 100,
                "queued.max.messages.kbytes": 65_536,
                "message.max.bytes": min(1_000_000_000, client.server.max_body_bytes + 100_000),
            },
        )
        self._thread = threading.Thread(target=self._run, name=f"tupletree-kafka-{topic}", daemon=True)
        self._thread.start()

    # --- for callers; those that say so hold the lock -----------------------------------------------------------

    def pick(self, limit: int, max_bytes: int, lease_s: float) -> list[Lease]:
        """Lease up to `limit` messages, under the lock. They are to be committed before they are handed out."""
        now_s = time.monotonic()
        self._asked_s, self._idle_s = now_s, max(LEAST_IDLE_S, lease_s)
        self._busy_until_s = now_s + BUSY_S
        self._ahead = max(self._ahead, 2 * limit)
        self._end_leases(now_s)
        self._mature(now_s)
        taken: list[Lease] = []
        kept: list[tuple[int, Lease]] = []
        while self._ready and len(taken) < limit:
            order, one = self._ready[0]
            if one.part.is_lost:
                heapq.heappop(self._ready)
                continue
            size = len(one.delivered.message.body)
            if taken and size > max_bytes:
                break
            heapq.heappop(self._ready)
            if one.part.is_leaving or one.offset - one.part.marks.base >= self._max_gap:
                kept.append((order, one))
                continue
            max_bytes -= size
            self._waiting_bytes -= size
            one.part.marks.deliver(one.offset)
            one.number, one.ends_s = next(self._numbers), now_s + lease_s
            self._next_end_s = min(self._next_end_s, one.ends_s)
            taken.append(one)
        for entry in kept:
            heapq.heappush(self._ready, entry)
        self._blocked = len(kept)
        return taken

    def held(self, handle: Handle) -> Lease | None:
        """The lease, under the lock, if its holder has it still and nobody settles it. It does not end from now on."""
        part = self._parts.get(handle.partition)
        lease = part.leases.get(handle.offset) if part is not None else None
        if lease is None or lease.number != handle.lease or lease.is_settling:
            return None
        if lease.ends_s <= time.monotonic():
            return None
        lease.is_settling = True
        return lease

    def extend(self, leases: Iterable[Lease], lease_s: float) -> None:
        """They end so much later than now, under the lock."""
        for one in leases:
            one.ends_s = time.monotonic() + lease_s
            one.is_settling = False

    def give_back(self, leases: Iterable[Lease], *, counts: bool) -> None:
        """They may be leased again, where they were, under the lock."""
        for one in leases:
            if not counts:
                one.part.marks.deliver(one.offset, -1)
            self._return(one)
        self.changed.notify_all()

    def commit(self, parts: Iterable[AssignedPartition], settled: Sequence[Lease] = ()) -> set[AssignedPartition]:
        """Make durable how often records were delivered, and that these are settled. Without the lock.

        Returns:
            The partitions that are another member's by now: nothing is durable of them.

        Raises:
            ConnectorError: nothing may be durable.
        """
        done: dict[AssignedPartition, set[int]] = {part: set() for part in parts}
        for one in settled:
            done.setdefault(one.part, set()).add(one.offset)
        with self._committing:
            lost = self._committed(done)
            with self.changed:
                for one in settled:
                    one.is_settling = False
                    if one.part not in lost and not one.part.is_lost:
                        one.part.marks.settle(one.offset)
                        del one.part.leases[one.offset]
                self._blocked = 0
                self.changed.notify_all()
        return lost

    def _committed(self, done: Mapping[AssignedPartition, set[int]]) -> set[AssignedPartition]:
        """Commit what these partitions are when these offsets are settled, too. Returns those that are lost."""
        # A group that changes may wait for its slowest member.
        end_s = time.monotonic() + self._client.server.timeout_s + self._client.server.session_s
        while True:
            with self.changed:
                lost = {part for part in done if part.is_lost}
                offsets = []
                for part in done.keys() - lost:
                    base, text = part.marks.text_without(done[part])
                    offsets.append(TopicPartition(self.topic, part.number, base, text))
                if not offsets:
                    return lost
                if self.is_over:
                    return {*done}
                asked = self._commits.ask(offsets)
                self._busy_until_s = time.monotonic() + BUSY_S
            try:
                errors = asked.result(self._client.server.timeout_s)
            except TimeoutError as error:
                asked.cancel()
                raise ConnectorError(f"{self._client.server.where}: no commit is answered now") from error
            if not errors:
                return lost
            codes = {error.code() for error in errors}
            if not codes <= LOST | AGAIN or (time.monotonic() > end_s and not codes & LOST):
                raise self._client.error(errors[0])
            if time.monotonic() > end_s:
                self.leave()
                return {*done}
            time.sleep(POLL_S)  # a new generation begins with these partitions, or without them

    def is_at_end(self) -> bool:
        """Whether all was looked at that was stored before this call, if there is room for it. Without the lock."""
        with self.changed:
            wanted = [one for one in self._parts.values() if not (one.is_paused or one.is_leaving)]
        for part in wanted:
            _, end = self._client.ends(TopicPartition(self.topic, part.number))
            with self.changed:
                if not part.is_lost and max(part.marks.position, part.end) < end and not part.is_paused:
                    return False
        return True

    @property
    def ready(self) -> int:
        """How many messages can be leased, or that was not tried yet, under the lock."""
        return len(self._ready) - self._blocked

    def leave(self) -> None:
        """Leave the group soon; what is leased goes to others."""
        with self.changed:
            self._is_closing = True
            self.changed.notify_all()

    def close(self) -> None:
        """Leave the group, and wait for that. Harmless if repeated."""
        self.leave()
        self._thread.join(self._client.server.timeout_s + 5.0)

    # --- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            # Cooperative: a member keeps its partitions while others come and go.
            self._consumer.subscribe(
                [self.topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._drop_all
            )
            while not self._is_closing:
                self._tend()
                self._commits.send(self._consumer)
                record = self._consumer.poll(BUSY_POLL_S if time.monotonic() < self._busy_until_s else POLL_S)
                if record is not None:
                    self._hear([record, *self._consumer.consume(BATCH, 0)])
            self._commits.send(self._consumer, waits=True)
        except KafkaException as error:
            self._fail(self._client.error(error.args[0]))
        except ConnectorError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("the consumer of topic %s ended", self.topic)
            self._fail(ConnectorError(f"the consumer of topic {self.topic} ended: {error}"))
        finally:
            self._is_closing = True
            with suppress(KafkaException, ConnectorError):
                self._consumer.close()
            with self.changed:
                self._drop([*self._parts.values()])
                self.is_over = True
                self._commits.close()
                self.changed.notify_all()

    def _fail(self, error: ConnectorError) -> None:
        with self.changed:
            self.fault = error

    def _tend(self) -> None:
        """End leases, make due what waited, and read on or stop reading."""
        with self.changed:
            now_s = time.monotonic()
            before = len(self._ready)
            self._end_leases(now_s)
            self._mature(now_s)
            if len(self._ready) > before:
                self.changed.notify_all()
            full = 2 if self._is_full else 1  # goes on when half of it is gone
            self._is_full = len(self._ready) * full > self._ahead or self._waiting_bytes * full > MOST_AHEAD_BYTES
            pausing: list[TopicPartition] = []
            resuming: list[TopicPartition] = []
            for part in self._parts.values():
                is_wanted = not self._is_full and part.marks.open < self._max_gap
                if is_wanted is part.is_paused:
                    part.is_paused = not is_wanted
                    (resuming if is_wanted else pausing).append(TopicPartition(self.topic, part.number))
            if now_s - self._asked_s > self._idle_s and not any(part.has_leased for part in self._parts.values()):
                self._is_closing = True  # others may have what nobody asks for here
        if pausing:
            self._consumer.pause(pausing)
        if resuming:
            self._consumer.resume(resuming)

    def _hear(self, records: Sequence[Any]) -> None:
        with self.changed:
            for record in records:
                error = record.error()
                part = self._parts.get(record.partition())
                if error is not None:
                    if error.code() == END:
                        if part is not None:
                            part.end = max(part.end, record.offset())
                    elif not error.retriable() and error.code() != POLLED_TOO_LATE:
                        raise self._client.error(error)
                elif part is not None and part.marks.reach(record.offset()):
                    self._add(part, record)
            self.changed.notify_all()

    def _add(self, part: AssignedPartition, record: Any) -> None:
        delivered = delivered_of(record)
        lease = Lease(part, record.offset(), next(self._orders), delivered)
        part.leases[lease.offset] = lease
        self._waiting_bytes += len(delivered.message.body)
        left_s = 0.0
        if delivered.delay_s or delivered.not_before_s:
            now_s = self._now_s()
            left_s = min(delivered.delay_s, delivered.stored_s + delivered.delay_s - now_s)
            left_s = max(left_s, delivered.not_before_s - now_s)
        if left_s > 0:
            heapq.heappush(self._delayed, (time.monotonic() + left_s, lease.order, lease))
        else:
            heapq.heappush(self._ready, (lease.order, lease))

    def _mature(self, now_s: float) -> None:
        while self._delayed and self._delayed[0][0] <= now_s:
            _, order, lease = heapq.heappop(self._delayed)
            heapq.heappush(self._ready, (order, lease))

    def _end_leases(self, now_s: float) -> None:
        if now_s < self._next_end_s:
            return
        self._next_end_s = float("inf")
        for part in self._parts.values():
            for one in part.leases.values():
                if one.number and one.ends_s <= now_s and not one.is_settling:
                    self._return(one)
                elif one.number:
                    self._next_end_s = min(self._next_end_s, max(one.ends_s, now_s + POLL_S))

    def _return(self, lease: Lease) -> None:
        lease.number = 0
        lease.is_settling = False
        if not lease.part.is_lost:
            self._waiting_bytes += len(lease.delivered.message.body)
            heapq.heappush(self._ready, (lease.order, lease))

    # --- partitions come and go, in calls that `poll` makes -------------------------------------------------------

    @contextmanager
    def _as_ours(self) -> Iterator[None]:
        """For callbacks: a KafkaException that leaves one comes out of `poll` as a KafkaError, which none catches."""
        try:
            yield
        except KafkaException as error:
            raise self._client.error(error.args[0]) from error

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        with self._as_ours():
            self._take_over(consumer, partitions)

    def _take_over(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        timeout_s = self._client.server.timeout_s
        came = []
        for one in consumer.committed(partitions, timeout=timeout_s) if partitions else ():
            first, end = consumer.get_watermark_offsets(TopicPartition(self.topic, one.partition), timeout=timeout_s)
            is_there = 0 <= one.offset <= end  # else the topic was made again
            if is_there and one.offset < first:
                logger.warning(
                    "%s: %d messages of partition %d were deleted before they were done: raise its retention",
                    *(self.topic, first - one.offset, one.partition),
                )
            marks = Marks(one.offset, one.metadata or "") if is_there else Marks(first)
            came.append(AssignedPartition(one.partition, marks))
        if came:
            consumer.incremental_assign(
                [TopicPartition(self.topic, part.number, part.marks.base or OFFSET_BEGINNING) for part in came]
            )
        with self.changed:
            self._drop([self._parts[part.number] for part in came if part.number in self._parts])
            self._parts.update({part.number: part for part in came})
            self.has_joined = True
            self.changed.notify_all()

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """They go to another member: not before what is leased of them is settled, as long as that may take."""
        end_s = time.monotonic() + DRAIN_S
        with self.changed:
            leaving = [self._parts[one.partition] for one in partitions if one.partition in self._parts]
            for part in leaving:
                part.is_leaving = True
            self._commits.interrupt()  # no other callback is made while this one is
            while any(part.has_leased for part in leaving) and not self._is_closing and time.monotonic() < end_s:
                self._commits.send(consumer, waits=True)
                self.changed.wait(BUSY_POLL_S)
                self._end_leases(time.monotonic())
            self._drop(leaving)
        with self._as_ours():
            consumer.incremental_unassign(partitions)

    def _drop_all(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """This member was taken for gone: others have its partitions already."""
        with self.changed:
            self._drop([self._parts[one.partition] for one in partitions if one.partition in self._parts])
        with self._as_ours():
            consumer.incremental_unassign(partitions)

    def _drop(self, parts: Iterable[AssignedPartition]) -> None:
        gone = {part.number for part in parts}
        for number in gone:
            self._parts.pop(number).is_lost = True
        self._blocked = 0
        self._ready = [(order, one) for order, one in self._ready if not one.part.is_lost]
        self._delayed = [(due_s, order, one) for due_s, order, one in self._delayed if not one.part.is_lost]
        heapq.heapify(self._ready)
        heapq.heapify(self._delayed)
        waiting = [one for _, one in self._ready] + [one for _, _, one in self._delayed]
        self._waiting_bytes = sum(len(one.delivered.message.body) for one in waiting)
        self.changed.notify_all()
