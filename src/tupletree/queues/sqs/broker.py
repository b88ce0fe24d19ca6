"""Queues on Amazon SQS: for each a queue of messages there, and one of dead letters.

Owns what a queue is at the service, and what an operation does with it. The connection is in `client`, what is leased
in `leases`.

The service names a lease by a receipt, takes one that is over without a word, and gives no message for a receipt. So
the connection that leased a message keeps it, and the time of its lease, and settles it alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tupletree.errors import ConfigError, ConnectorError
from tupletree.queues.contract import Broker, Capabilities, RefusedMessagesError, check_messages, check_name
from tupletree.queues.host_clock import HostClock
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
from tupletree.queues.sqs.client import BATCH, MOST_BYTES, SIDE_BY_SIDE, QueueAddress, Server, SqsClient, in_batches
from tupletree.queues.sqs.codes import ReceiptIsOverError
from tupletree.queues.sqs.leases import Lease, Leases
from tupletree.queues.sqs.letters import DeadLetters
from tupletree.queues.sqs.wire import (
    LONGEST_HIDDEN_S,
    REASON_BYTES,
    Parcel,
    Received,
    letter_of,
    parcel_of,
    received_of,
    stored_of,
)

CAPABILITIES = Capabilities(
    delay=True,
    retry_delay=True,
    absolute_time=True,
    extend=True,
    fencing=True,
    dead_letters=True,
    peek=("dead",),
    move=("dead",),
    purge=("dead",),
    states=("ready", "dead"),
    key_order=True,
    durable_acks=False,
    several_hosts=True,
    max_lease_s=float(LONGEST_HIDDEN_S),
    max_body_bytes=750_000,
)

LONGEST_DELAY_S = 39_600.0
"""Of a failure: 11 hours. The service counts its 12 from when it handed the message out."""

REQUEST_BYTES = 262_144
"""Of one request, but for a message that is larger: what servers take that are older, and what queues take that are."""

LONGEST_WAIT_S = 20
"""The service waits no longer for a message."""

CHUNK = 200
"""Dead letters that are moved at a time."""


class SqsBroker(Broker):
    """See `Broker`. Made by `tupletree.queues.connect`. The service is asked by the first operation, not before.

    Args:
        server: where the service is.
        clock: seconds by which leases end; None: those since boot, for the service's go on while the host sleeps.

    Raises:
        ConfigError: there is no region, or no such profile.
    """

    def __init__(self, server: Server, *, clock: Callable[[], float] | None = None) -> None:
        self.where = server.where
        self.capabilities = CAPABILITIES
        self._clock = clock or HostClock().since_boot_s
        self._client = SqsClient(server, self._clock)
        self._leases = Leases(self._clock)
        self._client.connect()

    # --- queues -----------------------------------------------------------------------------------------------

    def declare(self, queue: str, *, ordered: bool = False) -> None:
        """See `Broker.declare`. A queue that is there keeps its settings; one whose name ends in .fifo is ordered."""
        check_name(queue, self.where)
        self._client.declare(queue, ordered=ordered)

    def queues(self) -> Sequence[str]:
        """See `Broker.queues`. By their names at the service, which may take a minute to tell of a new one."""
        return self._client.names()

    def depth(self, queue: str) -> Depth:
        """See `Broker.depth`. About so many: the service counts now and then. All that is not dead counts as ready."""
        place = self._client.place(queue)
        return Depth(ready=self._client.count(place), dead=self._client.count(self._client.dead_place(place)))

    # --- publishing -------------------------------------------------------------------------------------------

    def publish(self, queue: str, messages: Sequence[Message]) -> int:
        """See `Broker.publish`. What fails in the middle may be stored in part."""
        check_messages(messages, self.capabilities, self.where)
        place = self._client.place(queue)
        now_s = self._client.now_s()
        parcels = [parcel_of(place.name, one, now_s=now_s) for one in messages]
        self._check_sizes(place, parcels)
        for fault in filter(None, self._send(place, parcels)):
            raise fault
        return len(messages)

    def _check_sizes(self, place: QueueAddress, parcels: Sequence[Parcel]) -> None:
        # What dies is to fit, too, with the reason.
        most = min(self._client.most_bytes(place), MOST_BYTES - REASON_BYTES)
        refused = [
            RefusedMessage(number, one.id, f"as text with its attributes it has {one.size:,} bytes, {most:,} fit")
            for number, one in enumerate(parcels)
            if one.size > most
        ]
        if refused:
            raise RefusedMessagesError(refused, where=self.where)

    def _send(self, place: QueueAddress, parcels: Sequence[Parcel]) -> list[ConnectorError | None]:
        """Store messages. Of each: why it is not known to be stored."""
        batches = [[one.entry() for one in batch] for batch in in_batches(parcels, lambda one: one.size, REQUEST_BYTES)]
        if not place.is_fifo:
            return self._client.tell("send_message_batch", place, batches)
        told: list[ConnectorError | None] = []
        fault: ConnectorError | None = None
        for batch in batches:  # after what was not stored no more is: it would be overtaken
            told += [fault] * len(batch) if fault else self._client.tell("send_message_batch", place, [batch])
            fault = fault or next(filter(None, told), None)
        return told

    # --- leasing ----------------------------------------------------------------------------------------------

    def take(self, queue: str, limit: int, *, lease_s: float, max_bytes: int) -> list[Delivery]:
        return self.take_within(queue, limit, lease_s=lease_s, max_bytes=max_bytes, wait_s=0.0)

    def take_within(self, queue: str, limit: int, *, lease_s: float, max_bytes: int, wait_s: float) -> list[Delivery]:
        """See `Broker.take_within`; the service waits, for whole seconds. A lease has whole seconds, too."""
        if limit < 1:
            return []
        place = self._client.place(queue)
        granted_s = max(1, min(math.ceil(lease_s), LONGEST_HIDDEN_S))
        end_s = self._clock() + wait_s
        found: list[Lease] = []
        while True:
            left_s = 0.0 if found else end_s - self._clock()
            try:
                came, taken, is_full = self._receive(
                    place, limit - len(found), granted_s, left_s, max_bytes, bool(found)
                )
            except ConnectorError:
                if not found:
                    raise
                break  # what is leased is the caller's; the next call meets the same
            found += taken
            max_bytes -= sum(len(one.received.message.body) for one in taken)
            if is_full or len(found) >= limit or (not came and (found or self._clock() >= end_s)):
                break
        return [_delivery(one, float(granted_s)) for one in found]

    def _receive(
        self, place: QueueAddress, limit: int, granted_s: int, wait_s: float, max_bytes: int, has_some: bool
    ) -> tuple[int, list[Lease], bool]:
        """Ask once, or several times side by side.

        Returns:
            How many messages came; those that are leased; whether one did not fit `max_bytes`.
        """
        # Of one key only the first one is to come; and what does not fit would go back, and count as delivered.
        fits = 1 if place.is_fifo else max(1, min(limit, max_bytes // MOST_BYTES))
        asked = [min(BATCH, fits)]
        if has_some and fits > BATCH:  # there are many
            asked = [min(BATCH, fits - at) for at in range(0, min(fits, BATCH * SIDE_BY_SIDE), BATCH)]
        waits_s = max(0, min(math.ceil(wait_s), LONGEST_WAIT_S, int(self._client.server.timeout_s / 2)))

        def receive(most: int) -> tuple[float, list[Received]]:
            began_s = self._clock()
            answer = self._client.ask_of(
                "receive_message",
                place,
                MaxNumberOfMessages=most,
                VisibilityTimeout=granted_s,
                WaitTimeSeconds=waits_s,
                AttributeNames=["All"],
                MessageAttributeNames=["All"],
            )
            return began_s, [received_of(one) for one in answer.get("Messages", ())]

        results = self._client.side_by_side(receive, asked)
        arrived = [
            (began_s, one)
            for result in results
            if not isinstance(result, ConnectorError)
            for began_s, several in [result]
            for one in several
        ]
        if not arrived:
            for result in results:
                if isinstance(result, ConnectorError):
                    raise result
        return self._sorted(place, arrived, granted_s, max_bytes, has_some)

    def _sorted(
        self,
        place: QueueAddress,
        arrived: Sequence[tuple[float, Received]],
        granted_s: int,
        max_bytes: int,
        has_some: bool,
    ) -> tuple[int, list[Lease], bool]:
        """Lease what came, but for what is too early, which is hidden until its time, and what does not fit."""
        now_s = self._client.now_s()
        early: list[tuple[Received, int]] = []
        beyond: list[tuple[Received, int]] = []
        taken: list[Lease] = []
        for began_s, one in arrived:
            at_s = one.first_s if one.count == 1 and one.first_s else now_s
            size = len(one.message.body)
            if one.due_s > at_s:
                early.append((one, max(1, min(math.ceil(one.due_s - at_s), LONGEST_HIDDEN_S))))
            elif (taken or has_some) and size > max_bytes:
                beyond.append((one, 0))
            else:
                max_bytes -= size
                taken.append(self._leases.add(place, one, began_s, granted_s))
        # What cannot be told to wait comes again when the lease that nobody has is over, and waits then.
        self._hide(place, [(one.receipt, seconds) for one, seconds in early + beyond])
        return len(arrived), taken, bool(beyond)

    def _hide(self, place: QueueAddress, receipts: Sequence[tuple[str, int]]) -> list[ConnectorError | None]:
        """Let messages come again after so many seconds. Of each: why it is not known to."""
        entries = [{"ReceiptHandle": receipt, "VisibilityTimeout": seconds} for receipt, seconds in receipts]
        return self._client.tell("change_message_visibility_batch", place, in_batches(entries))

    # --- settling ---------------------------------------------------------------------------------------------

    def ack(self, handles: Sequence[str]) -> Sequence[str]:
        """See `Broker.ack`. On a queue that is not ordered the service may, rarely, forget it."""
        refused, held = self._leases.split(handles)
        return refused + self._delete(held)

    def _delete(self, held: Mapping[QueueAddress, Sequence[Lease]]) -> list[str]:
        """Delete messages. Returns the handles that the service does not take."""
        refused: list[str] = []
        faults: list[ConnectorError] = []
        for place, leases in held.items():
            entries = [{"ReceiptHandle": one.received.receipt} for one in leases]
            told = self._client.tell("delete_message_batch", place, in_batches(entries))
            over, other = _told_apart(leases, told)
            refused += [one.handle for one in over]
            faults += other
        if faults:
            raise faults[0]  # all are held still: what is deleted may be deleted again
        self._leases.drop(one for leases in held.values() for one in leases)
        return refused

    def fail(self, failures: Sequence[Failure]) -> Sequence[str]:
        """See `Broker.fail`. Whole seconds; each counts, and reasons are not kept."""
        by_handle = {one.handle: one for one in failures}
        if any(not 0 <= one.delay_s <= LONGEST_DELAY_S for one in failures):
            raise ConfigError(
                "a delay that this broker cannot keep",
                where=self.where,
                got=str(max(one.delay_s for one in failures)),
                expected=f"0 to {LONGEST_DELAY_S:,.0f} s",
            )
        return self._change([*by_handle], lambda one: math.ceil(by_handle[one.handle].delay_s), keeps=False)

    def extend(self, handles: Sequence[str], lease_s: float = DEFAULT_LEASE_S) -> Sequence[str]:
        """See `Broker.extend`. No lease lasts longer than `max_lease_s` from when its message came."""
        return self._change(handles, lambda _: max(1, math.ceil(lease_s)), keeps=True)

    def _change(self, handles: Sequence[str], seconds_of: Callable[[Lease], int], *, keeps: bool) -> Sequence[str]:
        refused, held = self._leases.split(handles)
        faults: list[ConnectorError] = []
        for place, leases in held.items():
            now_s = self._clock()
            if keeps:  # what cannot last a second longer would be with others at once
                ending = [one for one in leases if now_s - one.began_s > LONGEST_HIDDEN_S - 1]
                refused += [one.handle for one in ending]
                leases = [one for one in leases if one not in ending]
            wanted = [min(seconds_of(one), int(LONGEST_HIDDEN_S - (now_s - one.began_s))) for one in leases]
            receipts = [(one.received.receipt, seconds) for one, seconds in zip(leases, wanted, strict=True)]
            told = self._hide(place, receipts)
            over, other = _told_apart(leases, told)
            refused += [one.handle for one in over]
            faults += other
            done = [(one, seconds) for one, seconds, fault in zip(leases, wanted, told, strict=True) if fault is None]
            if keeps:
                for one, seconds in done:
                    one.ends_s = now_s + seconds
            self._leases.drop(over if keeps else [*over, *(one for one, _ in done)])
        if faults:
            raise faults[0]
        return refused

    def dead_letter(self, letters: Sequence[Letter]) -> Sequence[str]:
        """See `Broker.dead_letter`. Stored first, deleted then: after a crash in between the message comes again."""
        reasons = {one.handle: one.reason for one in letters}
        refused, held = self._leases.split([*reasons])
        faults: list[ConnectorError] = []
        for place, leases in held.items():
            dead = self._client.dead_place(place)
            open_yet = [one for one in leases if not one.has_letter]
            parcels = [
                letter_of(dead.name, one.received, reasons[one.handle], most_bytes=self._client.most_bytes(dead))
                for one in open_yet
            ]
            for lease, fault in zip(open_yet, self._send(dead, parcels), strict=True):
                lease.has_letter = fault is None
                faults += [fault] if fault is not None else []
        refused += self._delete({place: [one for one in leases if one.has_letter] for place, leases in held.items()})
        if faults:
            raise faults[0]
        return refused

    # --- operating --------------------------------------------------------------------------------------------

    def peek(self, queue: str, state: State = "ready", limit: int = 10, *, after: int = 0) -> Sequence[Stored]:
        """See `Broker.peek`; dead letters alone can be shown. Others that look at the same moment see less."""
        if state != "dead":
            raise self.not_capable(f"show messages that are {state}")
        with DeadLetters(self._client, self._client.dead_place(self._client.place(queue))) as letters:
            return [stored_of(one) for one in letters.read(after + limit)][after:] if after + limit else []

    def move(self, source: str, target: str, *, state: State = "ready", limit: int = 0, ids: Sequence[str] = ()) -> int:
        """See `Broker.move`; dead letters alone can be moved."""
        if state == "leased":
            raise ConfigError("leased messages cannot be moved", where=f"{self.where}, queue {source!r}")
        if state != "dead":
            raise self.not_capable(f"move messages that are {state}")
        wanted = {*ids}
        to = self._client.place(target)
        moved = 0
        with DeadLetters(self._client, self._client.dead_place(self._client.place(source))) as letters:
            chosen: list[Received] = []
            for one in letters.read(0 if wanted else limit):
                if not wanted or one.message.id in wanted:
                    chosen.append(one)
                if len(chosen) == CHUNK or (limit and moved + len(chosen) == limit):
                    moved += self._move(letters, chosen, to)
                    chosen = []
                if limit and moved == limit:
                    break
            return moved + self._move(letters, chosen, to)

    def _move(self, letters: DeadLetters, chosen: Sequence[Received], to: QueueAddress) -> int:
        parcels = [parcel_of(to.name, one.message, copy_of=one.service_id) for one in chosen]
        told = self._send(to, parcels)
        letters.delete([one for one, fault in zip(chosen, told, strict=True) if fault is None])
        for fault in filter(None, told):
            raise fault
        return len(chosen)

    def purge(self, queue: str, *, states: Sequence[State] = ("ready", "delayed")) -> int:
        """See `Broker.purge`; dead letters alone can be deleted."""
        if {*states} - {"dead"}:
            raise self.not_capable("delete messages that are not dead: some of them may be leased")
        purged = 0
        with DeadLetters(self._client, self._client.dead_place(self._client.place(queue))) as letters:
            chosen: list[Received] = []
            for one in letters.read() if states else ():
                chosen.append(one)
                if len(chosen) == CHUNK:
                    letters.delete(chosen)
                    purged, chosen = purged + len(chosen), []
            letters.delete(chosen)
            return purged + len(chosen)

    def close(self) -> None:
        """See `Broker.close`. Leases stay until their end, and no one can settle them any more."""
        self._client.close()


def _delivery(lease: Lease, lease_s: float) -> Delivery:
    received = lease.received
    return Delivery(
        message=received.message,
        handle=lease.handle,
        deliveries=received.deliveries,
        lease_s=lease_s,
        published_s=received.published_s,
    )


def _told_apart(
    leases: Sequence[Lease], told: Sequence[ConnectorError | None]
) -> tuple[list[Lease], list[ConnectorError]]:
    """The leases whose receipts are over, and the other faults."""
    over = [one for one, fault in zip(leases, told, strict=True) if isinstance(fault, ReceiptIsOverError)]
    return over, [fault for fault in told if fault is not None and not isinstance(fault, ReceiptIsOverError)]
