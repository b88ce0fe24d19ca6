"""Queues on a RabbitMQ server: for each a quorum queue of messages and one of dead letters, and shared ones of delays.

Owns what a queue is at the server, and what an operation does with it. The connection is in `client`.

A handle names connection, channel and tag of a delivery. A delivery is settled on the channel that it came by; one of a
connection that broke is refused, for the server gave its message back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import msgspec

from tupletree.errors import ConfigError
from tupletree.queues.contract import (
    Broker,
    Capabilities,
    NotCapableError,
    RefusedMessagesError,
    check_messages,
    check_name,
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
from tupletree.queues.rabbitmq.client import RabbitClient, Server, ServerLink
from tupletree.queues.rabbitmq.consuming import Lease, QueueChannel
from tupletree.queues.rabbitmq.letters import DeadLetters
from tupletree.queues.rabbitmq.wire import (
    LONGEST_DELAY_S,
    MOST_HEAD_BYTES,
    REASON_BYTES,
    Handle,
    Parcel,
    dead_queue_beside,
    dead_queue_of,
    delay_step_ms,
    deliveries_of,
    head_bytes,
    message_of,
    parcel_of,
    published_s_of,
    ready_queue_of,
)
from tupletree.queues.urls import MOST, QueueUrl

CAPABILITIES = Capabilities(
    delay=True,
    retry_delay=True,
    extend=True,
    fencing=True,
    dead_letters=True,
    peek=("dead",),
    move=("dead",),
    purge=("ready", "dead"),
    states=("ready", "dead"),
    counts_open=False,
    durable_acks=False,
    several_hosts=True,
    lists_queues=False,
    holds_only_leased=False,
    leases_survive=False,
    max_lease_s=1_500.0,
    max_body_bytes=100_000_000,
)

MAX_BODY_OF_4 = 16_000_000
"""What a server takes since 4.0, unless it is configured."""

CHUNK = 200
"""Dead letters that are looked at, or moved, at a time."""


def open_rabbitmq(url: QueueUrl) -> RabbitBroker:
    """`amqp://user:password@host:5672/vhost`, or `amqps://` with TLS.

    Options timeout_s, heartbeat_s, max_lease_s, max_body_bytes, ca_file.
    """
    seconds = (float, 0.1, MOST)
    settings = url.settings(
        timeout_s=seconds, heartbeat_s=seconds, max_lease_s=seconds, max_body_bytes=(int, 1, MOST), ca_file=str
    )
    is_encrypted = url.scheme == "amqps"
    server = Server(
        host=url.host.strip("[]") or "127.0.0.1",
        port=url.port or (5671 if is_encrypted else 5672),
        vhost=url.path or "/",
        where=url.shown,
        user=url.user or "guest",
        password=url.password or ("" if url.user else "guest"),
        timeout_s=settings.get("timeout_s", 10.0),
        heartbeat_s=settings.get("heartbeat_s", 30.0),
        tls=is_encrypted,
        ca_file=settings.get("ca_file"),
    )
    return RabbitBroker(
        server,
        max_lease_s=settings.get("max_lease_s", CAPABILITIES.max_lease_s),
        max_body_bytes=settings.get("max_body_bytes"),
    )


Named: TypeAlias = Sequence[tuple[str, Handle]]
"""Handles, each with its text."""


class RabbitBroker(Broker):
    """See `Broker`. Made by `tupletree.queues.connect`.

    Args:
        server: where it is.
        max_lease_s: seconds that a lease may last however often it is extended: less than the server's
            `consumer_timeout`, after which it would close the channel, with all leases of the queue.
        max_body_bytes: what the server takes; None: by its version.

    Raises:
        ConnectorError: the server cannot be reached, refuses the login, or is too old.
    """

    def __init__(self, server: Server, *, max_lease_s: float, max_body_bytes: int | None) -> None:
        self.where = server.where
        self._client = RabbitClient(server, longest_s=max_lease_s)
        try:
            version = self._client.call(_version)
        except BaseException:
            self._client.close()
            raise
        if max_body_bytes is None:
            max_body_bytes = CAPABILITIES.max_body_bytes if version < (4,) else MAX_BODY_OF_4
        self.capabilities = msgspec.structs.replace(
            CAPABILITIES, max_lease_s=max_lease_s, max_body_bytes=max_body_bytes
        )

    # --- queues -----------------------------------------------------------------------------------------------

    def declare(self, queue: str, *, ordered: bool = False) -> None:
        """See `Broker.declare`. A queue that is there keeps its settings."""
        check_name(queue, self.where)
        if ordered:
            raise self.not_capable("keep the order of keys")
        ready, dead = ready_queue_of(queue), dead_queue_of(queue)
        # A message that the server itself gives up, by a limit or policy of its operator, is a dead letter, too.
        kept = {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }

        async def work(link: ServerLink) -> None:
            # With a limit, what was looked at goes back to where it was.
            is_new = await self._client.make(link, dead, {"x-delivery-limit": 2_000_000_000})
            is_new |= await self._client.make(link, ready, kept)
            await self._client.keep(is_new=is_new)

        self._client.call(work, queue=queue)

    def queues(self) -> Sequence[str]:
        """The protocol has no request for it."""
        raise NotCapableError(
            "this broker cannot list its queues", where=self.where, next_step="name one in the URL: ?queue=orders"
        )

    def depth(self, queue: str) -> Depth:
        """See `Broker.depth`. What this connection holds for its next lease is ready."""

        async def work(link: ServerLink) -> Depth:
            channel = link.consuming.get(ready_queue_of(queue))
            if channel is not None:
                await channel.count_all()
            ready = await _count(link, ready_queue_of(queue)) + (channel.spare if channel is not None else 0)
            return Depth(ready=ready, dead=await _count(link, dead_queue_of(queue)))

        return self._client.call(work, queue=queue)

    # --- publishing -------------------------------------------------------------------------------------------

    def publish(self, queue: str, messages: Sequence[Message]) -> int:
        """See `Broker.publish`. In parts where there are many."""
        check_messages(messages, self.capabilities, self.where)
        refused = [RefusedMessage(at, one.id, fault) for at, one in enumerate(messages) if (fault := _fault_of(one))]
        if refused:
            raise RefusedMessagesError(refused, where=self.where)
        now_s = time.time()
        ready = ready_queue_of(queue)
        parcels = [parcel_of(ready, one, published_s=now_s, delay_s=one.delay_s) for one in messages]
        delays = {one.delay_s for one in messages} - {0.0}

        async def work(link: ServerLink) -> None:
            if delays or not messages:
                await _count(link, ready)  # what waits for a queue that is not there would wait for ever
            await self._publish(link, parcels, delays, queue)

        self._client.call(work, wait_s=self._client.server.timeout_s * (1 + len(messages) // 1000), queue=queue)
        return len(messages)

    async def _publish(self, link: ServerLink, parcels: Sequence[Parcel], delays: Iterable[float], queue: str) -> None:
        for delay_s in delays:
            await self._client.declare_delay(link, delay_step_ms(delay_s))
        if parcels:
            await self._client.publish(link, parcels, queue)

    # --- leasing ----------------------------------------------------------------------------------------------

    def take(self, queue: str, limit: int, *, lease_s: float, max_bytes: int) -> list[Delivery]:
        return self._take(queue, limit, lease_s, max_bytes, 0.0)

    def take_within(self, queue: str, limit: int, *, lease_s: float, max_bytes: int, wait_s: float) -> list[Delivery]:
        """See `Broker.take_within`; the server waits."""
        end_s = time.monotonic() + wait_s
        while True:
            taken = self._take(queue, limit, lease_s, max_bytes, max(0.0, end_s - time.monotonic()))
            if taken or limit < 1 or time.monotonic() >= end_s:
                return taken

    def _take(self, queue: str, limit: int, lease_s: float, max_bytes: int, wait_s: float) -> list[Delivery]:
        if limit < 1:
            return []

        async def work(link: ServerLink) -> list[Delivery]:
            channel = await self._client.consuming(link, ready_queue_of(queue))
            leases = await channel.take(limit, max_bytes, lease_s, wait_s)
            now_s = self._client.clock()
            if leases:
                self._client.watch(min(one.ends_s for one in leases))
            return [_delivery(link, channel, one, one.ends_s - now_s) for one in leases]

        return self._client.call(work, wait_s=wait_s, queue=queue)

    # --- settling ---------------------------------------------------------------------------------------------

    def ack(self, handles: Sequence[str]) -> Sequence[str]:
        """See `Broker.ack`. The server has heard it when this returns; a crash of it may forget that."""

        async def work(link: ServerLink, named: Named) -> list[str]:
            refused, held = _held(link, named)
            for channel, leases in held:
                channel.ack([lease.tag for _, lease in leases])
            for channel, _ in held:
                await channel.told()
            return refused

        return self._settled(work, handles)

    def fail(self, failures: Sequence[Failure]) -> Sequence[str]:
        """See `Broker.fail`. With a delay a copy waits for its time, and the message is acked; else it goes back."""
        by_handle = {one.handle: one for one in failures}
        if any(not 0 <= one.delay_s <= LONGEST_DELAY_S for one in failures):
            raise ConfigError(
                "a delay that this broker cannot keep",
                where=self.where,
                got=str(max(one.delay_s for one in failures)),
                expected=f"0 to {LONGEST_DELAY_S:,.0f} s",
            )

        async def work(link: ServerLink, named: Named) -> list[str]:
            refused, held = _held(link, named)
            telling = []
            with _settling(held):
                for channel, leases in held:
                    gone = channel.give_back([lease.tag for handle, lease in leases if not by_handle[handle].delay_s])
                    later = [(by_handle[handle], lease) for handle, lease in leases if by_handle[handle].delay_s]
                    coming = [(failure, lease) for failure, lease in later if channel.is_out(lease)]
                    parcels = [
                        _copy(link, channel, lease, channel.queue, failure.reason, failure.delay_s)
                        for failure, lease in coming
                    ]
                    await self._publish(link, parcels, {failure.delay_s for failure, _ in coming}, channel.queue)
                    gone |= channel.ack([lease.tag for _, lease in later])
                    refused += [handle for handle, lease in leases if lease.tag in gone]
                    telling += [channel] if len(gone) < len(leases) else []
            for channel in telling:
                await channel.told()
            return refused

        return self._settled(work, [*by_handle])

    def extend(self, handles: Sequence[str], lease_s: float = DEFAULT_LEASE_S) -> Sequence[str]:
        """See `Broker.extend`. This connection keeps the time; no lease lasts longer than `max_lease_s`."""

        async def work(link: ServerLink, named: Named) -> list[str]:
            refused, held = _held(link, named)
            for channel, leases in held:
                for _, lease in leases:
                    channel.extend(lease, lease_s)
                self._client.watch(min(lease.ends_s for _, lease in leases))
            return refused

        return self._settled(work, handles)

    def dead_letter(self, letters: Sequence[Letter]) -> Sequence[str]:
        """See `Broker.dead_letter`. Stored first, acked then: after a crash in between the message comes again."""
        by_handle = {one.handle: one for one in letters}

        async def work(link: ServerLink, named: Named) -> list[str]:
            refused, held = _held(link, named)
            telling = []
            with _settling(held):
                for channel, leases in held:
                    dead = dead_queue_beside(channel.queue)
                    parcels = [
                        _copy(link, channel, lease, dead, by_handle[handle].reason or "no reason was given")
                        for handle, lease in leases
                        if channel.is_out(lease)
                    ]
                    await self._publish(link, parcels, (), dead)
                    gone = channel.ack([lease.tag for _, lease in leases])
                    refused += [handle for handle, lease in leases if lease.tag in gone]
                    telling += [channel] if len(gone) < len(leases) else []
            for channel in telling:
                await channel.told()
            return refused

        return self._settled(work, [*by_handle])

    def _settled(self, work: Callable[[ServerLink, Named], Any], texts: Sequence[str]) -> Sequence[str]:
        """Settle on the event loop; a text that is no handle is refused before."""
        named = [(one, Handle.of(one)) for one in texts]
        refused: Sequence[str] = self._client.call(lambda link: work(link, named)) if named else ()
        return refused

    # --- operating --------------------------------------------------------------------------------------------

    def peek(self, queue: str, state: State = "ready", limit: int = 10, *, after: int = 0) -> Sequence[Stored]:
        """See `Broker.peek`; dead letters alone can be shown. Others that look at the same moment see less."""
        if state != "dead":
            raise self.not_capable(f"show messages that are {state}")

        async def work(link: ServerLink) -> list[Stored]:
            async with DeadLetters(self._client, link, queue) as letters:
                found = await letters.read(after + limit)
                return [letters.stored(one) for one in found[after:]]

        return self._client.call(work, wait_s=60.0, queue=queue)

    def move(self, source: str, target: str, *, state: State = "ready", limit: int = 0, ids: Sequence[str] = ()) -> int:
        """See `Broker.move`; dead letters alone can be moved."""
        if state == "leased":
            raise ConfigError("leased messages cannot be moved", where=f"{self.where}, queue {source!r}")
        if state != "dead":
            raise self.not_capable(f"move messages that are {state}")
        wanted = {*ids}

        async def work(link: ServerLink) -> int:
            await _count(link, ready_queue_of(target))
            moved = 0
            async with DeadLetters(self._client, link, source) as letters:
                while not limit or moved < limit:
                    most = min(CHUNK, limit - moved) if limit and not wanted else CHUNK
                    if not (found := await letters.read(most)):
                        break
                    chosen = [(one, letters.stored(one)) for one in found]
                    chosen = [(one, stored) for one, stored in chosen if not wanted or stored.message.id in wanted]
                    chosen = chosen[: limit - moved] if limit else chosen
                    await letters.move(chosen, target)
                    moved += len(chosen)
                    for one in found:
                        one.body = b""  # those that stay are held to the end
            return moved

        return self._client.call(work, wait_s=3600.0, queue=source)

    def purge(self, queue: str, *, states: Sequence[State] = ("ready", "delayed")) -> int:
        """See `Broker.purge`; delayed and leased messages cannot be reached."""
        if beyond := {*states} - {*self.capabilities.purge}:
            raise self.not_capable(f"delete messages that are {' or '.join(sorted(beyond))}")
        names = {"ready": ready_queue_of(queue), "dead": dead_queue_of(queue)}

        async def work(link: ServerLink) -> int:
            purged = 0
            for state in states:
                purged += (await link.request("queue_purge", names[state])).message_count
            return purged

        return self._client.call(work, queue=queue)

    def close(self) -> None:
        """See `Broker.close`. What is leased by this connection goes back."""
        self._client.close()


def _fault_of(message: Message) -> str:
    """Why this broker cannot store it; empty if it can."""
    if message.delay_s > LONGEST_DELAY_S:
        return f"a delay of more than {LONGEST_DELAY_S:,.0f} s cannot be kept by this broker"
    most = MOST_HEAD_BYTES - REASON_BYTES
    if (size := head_bytes(message)) > most:
        return f"id, content type, key and headers have {size:,} bytes, at most {most:,} fit"
    return ""


def _delivery(link: ServerLink, channel: QueueChannel, lease: Lease, lease_s: float) -> Delivery:
    handle = _handle(link, channel, lease)
    return Delivery(
        message=message_of(lease.body, lease.properties, handle),
        handle=handle,
        deliveries=deliveries_of(lease.properties) + 1,
        lease_s=lease_s,
        published_s=published_s_of(lease.properties),
    )


def _handle(link: ServerLink, channel: QueueChannel, lease: Lease) -> str:
    return str(Handle(link.name, channel.number, lease.tag))


def _copy(
    link: ServerLink, channel: QueueChannel, lease: Lease, queue: str, reason: str, delay_s: float = 0.0
) -> Parcel:
    return parcel_of(
        queue,
        message_of(lease.body, lease.properties, _handle(link, channel, lease)),
        published_s=published_s_of(lease.properties),
        delay_s=delay_s,
        deliveries=deliveries_of(lease.properties) + 1,
        reason=reason,
    )


def _held(link: ServerLink, handles: Named) -> tuple[list[str], list[tuple[QueueChannel, list[tuple[str, Lease]]]]]:
    """Handles whose lease is not held, and the leases of the others by their channel."""
    refused: list[str] = []
    channels = {one.number: one for one in link.consuming.values()}
    held: dict[int, dict[str, Lease]] = {}
    for text, handle in handles:
        channel = channels.get(handle.channel)
        lease = channel.held(handle.tag) if channel is not None and handle.connection == link.name else None
        if lease is None:
            refused.append(text)
        else:
            held.setdefault(handle.channel, {})[text] = lease
    return refused, [(channels[number], [*leases.items()]) for number, leases in held.items()]


@contextmanager
def _settling(held: Iterable[tuple[QueueChannel, list[tuple[str, Lease]]]]) -> Iterator[None]:
    with ExitStack() as keeping:
        for channel, leases in held:
            keeping.enter_context(channel.settling([lease for _, lease in leases]))
        yield


async def _version(link: ServerLink) -> tuple[int, ...]:
    return link.version


async def _count(link: ServerLink, name: str) -> int:
    answer = await link.request("queue_declare", name, passive=True)
    return int(answer.message_count)
