"""The operations of queues on a NATS server with JetStream: what is asked of the server for each, in which order.

What a queue is there is in `streams`, the form of messages in `wire`, the connection in `client`; leases that are not
as long as the server's are kept by `leases`.

A message has a subject of its own, made of its id, and a stream keeps one message per subject: so an id that the queue
holds is not stored again, and a message can be found by its id. A handle is the subject to which its delivery is acked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tupletree.errors import ConfigError, ConnectorError
from tupletree.queues.contract import (
    Broker,
    Capabilities,
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
from tupletree.queues.nats.client import Answer, NatsClient, Request, Server
from tupletree.queues.nats.leases import Leases
from tupletree.queues.nats.streams import CONSUMER, Streams, chunks, nanoseconds
from tupletree.queues.nats.wire import (
    LETTERS,
    MESSAGES,
    Handle,
    body_and_headers,
    letter_of,
    message_of,
    request_of,
    stream_of,
    subject_of,
    token_of,
)
from tupletree.queues.urls import MOST, QueueUrl

CAPABILITIES = Capabilities(
    idempotent_publish=True,
    remembers_acked_s=120.0,
    retry_delay=True,
    extend=True,
    dead_letters=True,
    find=True,
    peek=("dead",),
    move=("dead",),
    purge=("dead",),
    states=("ready", "dead"),
    durable_acks=False,
    ack_anywhere=True,
    several_hosts=True,
    max_body_bytes=1_000_000,
)

HEAD_ROOM = 16_384
"""Bytes of a message that its body may not take: id, key, headers."""

LONGEST_WAIT_S = 30.0
"""A longer wait asks again: a server that went away would be noticed no sooner than its end."""


def open_nats(url: QueueUrl) -> NatsBroker:
    """`nats://user:password@host:4222`, or a token in the place of the user.

    Options remembers_acked_s, lease_s and replicas of queues that are declared; timeout_s, tls, ca_file, credentials.
    """
    seconds = (float, 0.1, MOST)
    settings = url.settings(
        remembers_acked_s=seconds, lease_s=seconds, timeout_s=seconds, replicas=int, tls=bool, ca_file=str,
        credentials=str,
    )  # fmt: skip
    if url.path:
        raise ConfigError(
            "a NATS server has no path", where=url.shown, got=url.path, next_step="name a queue with ?queue="
        )
    login: dict[str, Any] = {}
    if url.user:
        login = {"user": url.user, "password": url.password} if url.password else {"token": url.user}
    if "credentials" in settings:
        login = {"user_credentials": settings["credentials"]}
    server = Server(
        url=f"nats://{url.host or '127.0.0.1'}:{url.port or 4222}",
        where=url.shown,
        login=login,
        timeout_s=settings.get("timeout_s", 10.0),
        tls=settings.get("tls", False),
        ca_file=settings.get("ca_file"),
    )
    return NatsBroker(
        NatsClient(server),
        remembers_acked_s=settings.get("remembers_acked_s", CAPABILITIES.remembers_acked_s),
        lease_s=settings.get("lease_s", DEFAULT_LEASE_S),
        replicas=settings.get("replicas", 1),
    )


class NatsBroker(Broker):
    """See `Broker`. Made by `tupletree.queues.connect`.

    A message is as durable as the server makes it: a killed server loses nothing, and may deliver again what was acked
    just before; a host that fails may lose what was published within the server's `sync_interval`, unless the queue has
    replicas.

    Args:
        client: the connection; it is closed with the broker.
        remembers_acked_s: seconds from its publishing for which an id is known whatever became of its message.
        lease_s: seconds after which the server gives a message of a consumer that died to another one. A lease of
            another length is kept up, or given back, by the connection that took it.
        replicas: servers that keep a queue.

    Raises:
        ConnectorError: the server cannot be reached, or has no JetStream.
    """

    def __init__(
        self,
        client: NatsClient,
        *,
        remembers_acked_s: float = 120.0,
        lease_s: float = DEFAULT_LEASE_S,
        replicas: int = 1,
    ) -> None:
        self.where = client.server.where
        self._client = client
        self._lease_s = lease_s
        self._replicas = replicas
        self._window_s = remembers_acked_s
        self._leases = Leases(client)
        self._streams = Streams(client)
        try:
            self._max_payload = client.max_payload()
            self._streams.api("INFO")
        except BaseException:
            client.close()
            raise
        self.capabilities = msgspec.structs.replace(
            CAPABILITIES, remembers_acked_s=remembers_acked_s, max_body_bytes=max(0, self._max_payload - HEAD_ROOM)
        )

    def declare(self, queue: str, *, ordered: bool = False) -> None:
        """See `Broker.declare`. A queue that is there keeps its settings."""
        check_name(queue, self.where)
        if ordered:
            raise self.not_capable("keep the order of keys")
        self._streams.declare(queue, remembers_acked_s=self._window_s, lease_s=self._lease_s, replicas=self._replicas)

    def queues(self) -> Sequence[str]:
        return self._streams.names()

    def publish(self, queue: str, messages: Sequence[Message]) -> int:
        """See `Broker.publish`. In parts where there are many: repeat it with the same ids if it fails."""
        check_messages(messages, self.capabilities, self.where)
        requests = [request_of(queue, one) for one in messages]
        self._check_sizes(messages, requests)
        if not requests:
            self._streams.info(queue)
        return sum(self._streams.stored(queue, requests))

    def take(self, queue: str, limit: int, *, lease_s: float, max_bytes: int) -> list[Delivery]:
        if limit < 1:
            return []
        answers = self._next(queue, {"batch": limit, "no_wait": True, "max_bytes": max_bytes})
        if answers[-1].status == "409" and len(answers) == 1:  # the first one alone is larger
            answers = self._next(queue, {"batch": 1, "no_wait": True})
        return self._taken(queue, answers, lease_s)

    def take_within(self, queue: str, limit: int, *, lease_s: float, max_bytes: int, wait_s: float) -> list[Delivery]:
        """See `Broker.take_within`; the server waits."""
        end_s = time.monotonic() + wait_s
        while True:
            taken = self.take(queue, limit, lease_s=lease_s, max_bytes=max_bytes)
            left_s = end_s - time.monotonic()
            if taken or left_s <= 0 or limit < 1:
                return taken
            waits_s = min(left_s, LONGEST_WAIT_S)
            answers = self._next(queue, {"batch": 1, "expires": nanoseconds(waits_s)}, waits_s)
            if taken := self._taken(queue, answers, lease_s):
                room = max_bytes - len(taken[0].message.body)
                return taken + (self.take(queue, limit - 1, lease_s=lease_s, max_bytes=room) if room > 0 else [])

    def ack(self, handles: Sequence[str]) -> Sequence[str]:
        """See `Broker.ack`. The server does not say whether a lease was held: none is refused."""
        self._settle([(one, b"+ACK") for one in handles])
        return ()

    def fail(self, failures: Sequence[Failure]) -> Sequence[str]:
        """See `Broker.fail`. As for `ack`; reasons are not kept."""
        self._settle(
            [
                (one.handle, b'-NAK {"delay":%d}' % nanoseconds(one.delay_s) if one.delay_s else b"-NAK")
                for one in failures
            ]
        )
        return ()

    def extend(self, handles: Sequence[str], lease_s: float = DEFAULT_LEASE_S) -> Sequence[str]:
        """See `Broker.extend`. As for `ack`."""
        self._settle([(one, b"+WPI") for one in handles])
        for queue, those in self._streams.by_queue(handles).items():
            self._leases.hold(those, lease_s, self._streams.lease_of(queue))
        return ()

    def dead_letter(self, letters: Sequence[Letter]) -> Sequence[str]:
        """See `Broker.dead_letter`. Stored first, acked then: after a crash in between it is done again."""
        places = [Handle.of(one.handle) for one in letters]
        found = self._streams.ask(
            [Request(f"$JS.API.STREAM.MSG.GET.{one.stream}", b'{"seq":%d}' % one.sequence) for one in places]
        )
        refused, requests, done = [], [], []
        queues: dict[str, str] = {}
        for letter, place, answer in zip(letters, places, found, strict=True):
            stored = self._streams.message_in(answer)
            if stored is None:
                refused.append(letter.handle)  # somebody else acked it
                continue
            if place.stream not in queues:
                queues[place.stream] = self._streams.api(f"STREAM.INFO.{place.stream}")["config"]["description"]
            body, headers = body_and_headers(stored)
            message = message_of(body, headers, place.sequence)
            requests.append(letter_of(queues[place.stream], message, letter.reason, place))
            done.append(letter.handle)
        for queue in set(queues.values()):
            self._streams.stored(
                queue, [one for one in requests if one.subject.startswith(f"{LETTERS}.{token_of(queue)}.")]
            )
        self._settle([(one, b"+ACK") for one in done])
        return refused

    def depth(self, queue: str) -> Depth:
        """See `Broker.depth`.

        By the consumer: a server that was killed may keep messages in the stream that it knows to be acked.
        """
        self._streams.info(queue)
        found = self._streams.api(f"CONSUMER.INFO.{stream_of(queue)}.{CONSUMER}")
        ready = found["num_pending"] + found["num_ack_pending"]
        return Depth(ready=ready, dead=self._streams.info(queue, LETTERS)["state"]["messages"])

    def peek(self, queue: str, state: State = "ready", limit: int = 10, *, after: int = 0) -> Sequence[Stored]:
        """See `Broker.peek`; dead letters alone can be shown."""
        if state != "dead":
            raise self.not_capable(f"show messages that are {state}")
        self._streams.info(queue, LETTERS)
        return [stored for _, stored in self._streams.letters(queue, after + limit)[after:]]

    def find(self, queue: str, ids: Sequence[str]) -> set[str]:
        self._streams.info(queue)
        found: set[str] = set()
        for prefix in (LETTERS, MESSAGES, LETTERS):  # what goes from the one to the other meanwhile is not missed
            stream = stream_of(queue, prefix)
            asked = [
                Request(
                    f"$JS.API.STREAM.MSG.GET.{stream}",
                    msgspec.json.encode({"last_by_subj": subject_of(queue, one, prefix)}),
                )
                for one in ids
            ]
            answers = self._streams.ask(asked)
            found.update(
                one for one, answer in zip(ids, answers, strict=True) if self._streams.message_in(answer) is not None
            )
        return found

    def move(self, source: str, target: str, *, state: State = "ready", limit: int = 0, ids: Sequence[str] = ()) -> int:
        """See `Broker.move`; dead letters alone can be moved."""
        if state == "leased":
            raise ConfigError("leased messages cannot be moved", where=f"{self.where}, queue {source!r}")
        if state != "dead":
            raise self.not_capable(f"move messages that are {state}")
        self._streams.info(target)
        self._streams.info(source, LETTERS)
        wanted = {*ids}
        chosen = [
            (sequence, stored.message)
            for sequence, stored in self._streams.letters(source, 0 if wanted else limit)
            if not wanted or stored.message.id in wanted
        ]
        moved = 0
        for chunk in chunks(chosen[: limit or None]):
            self._streams.stored(target, [request_of(target, message, is_remembered=False) for _, message in chunk])
            stream = stream_of(source, LETTERS)
            self._streams.ask(
                [Request(f"$JS.API.STREAM.MSG.DELETE.{stream}", b'{"seq":%d}' % sequence) for sequence, _ in chunk]
            )
            moved += len(chunk)
        return moved

    def purge(self, queue: str, *, states: Sequence[State] = ("ready", "delayed")) -> int:
        """See `Broker.purge`; dead letters alone can be deleted."""
        if {*states} - {"dead"}:
            raise self.not_capable("delete messages that are not dead: some of them may be leased")
        self._streams.info(queue, LETTERS)
        purged: int = self._streams.api(f"STREAM.PURGE.{stream_of(queue, LETTERS)}")["purged"]
        return purged

    def close(self) -> None:
        self._client.close()

    # --- the server -------------------------------------------------------------------------------------------

    def _next(self, queue: str, asked: Mapping[str, Any], wait_s: float = 0.0) -> list[Answer]:
        """Pull messages; the last answer may be a status."""
        self._streams.lease_of(queue)  # a pull from a stream that is not there is not answered
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream_of(queue)}.{CONSUMER}"
        try:
            answers = self._client.pull(subject, msgspec.json.encode(asked), asked["batch"], wait_s)
        except ConnectorError:
            self._streams.forget(queue)
            raise
        if answers[-1].is_unheard:
            self._streams.forget(queue)
            raise ConnectorError(f"{self.where}: nobody hands out messages of queue {queue!r} now")
        return answers

    def _taken(self, queue: str, answers: Sequence[Answer], lease_s: float) -> list[Delivery]:
        found = []
        for one in answers:
            if one.status:
                continue
            place = Handle.of(one.reply)
            found.append(
                Delivery(
                    message=message_of(one.body, one.headers, place.sequence),
                    handle=one.reply,
                    deliveries=place.deliveries,
                    lease_s=lease_s,
                    published_s=place.published_s,
                )
            )
        self._leases.hold([one.handle for one in found], lease_s, self._streams.lease_of(queue))
        return found

    def _settle(self, told: Sequence[tuple[str, bytes]]) -> None:
        for handle, _ in told:
            Handle.of(handle)
        self._leases.drop([handle for handle, _ in told])
        self._streams.ask([Request(handle, what) for handle, what in told])

    def _check_sizes(self, messages: Sequence[Message], requests: Sequence[Request]) -> None:
        refused = []
        for position, (message, request) in enumerate(zip(messages, requests, strict=True)):
            size = len(request.body) + sum(len(name) + len(text) + 4 for name, text in (request.headers or {}).items())
            if size + 64 > self._max_payload:
                reason = f"with its headers it has {size:,} bytes, at most {self._max_payload - 64:,} fit"
                refused.append(RefusedMessage(position, message.id, reason))
        if refused:
            raise RefusedMessagesError(refused, where=self.where)
