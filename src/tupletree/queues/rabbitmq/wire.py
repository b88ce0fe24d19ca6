"""What stands in names, properties and headers at a RabbitMQ server, and how it is read again.

Owns the form of names, and the steps of delays. Refuses to know a connection.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from pika import BasicProperties

from tupletree.errors import ConfigError
from tupletree.queues.messages import DEFAULT_CONTENT_TYPE, Message, State, Stored

_SAFE = re.compile(r"[A-Za-z0-9_.-]{1,180}")
_READY, _DEAD = "tupletree.queue.", "tupletree.dead."
_HEAD, _KEY, _DELIVERIES, _REASON = "tupletree", "tupletree-key", "tupletree-deliveries", "tupletree-reason"
_PUBLISHED = "tupletree-published-ms"
_OURS = frozenset({_KEY, _DELIVERIES, _REASON, _PUBLISHED})
_COUNT, _DEATHS = "x-delivery-count", "x-death"
_SERVERS = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count", "x-opt-")
"""What headers that the server adds begin with."""

_SHORT = 255
"""Bytes of the protocol's short texts: names of headers, message ids, content types."""

_PACKED = msgspec.msgpack.Decoder(tuple[str, str, str, dict[str, str]])

_STEPS = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80)
"""Of delays, in every power of ten: a delay is rounded up to the next one."""

MOST_HEAD_BYTES = 120_000
"""Of id, content type, key, headers and reason together: they must fit a frame, of 128 KiB unless it is configured."""

REASON_BYTES = 20_000
"""Of these, so much is left for the reason of a failure."""

LONGEST_DELAY_S = 4_000_000.0
"""46 days: the longest step below the server's own limit, 2³² ms."""


class Parcel(msgspec.Struct, frozen=True, gc=False):
    """A message as it is handed to the server.

    Attributes:
        exchange, routing_key: where to.
    """

    exchange: str
    routing_key: str
    body: bytes
    properties: Any


class Handle(msgspec.Struct, frozen=True, gc=False):
    """What a handle says: which connection leased, by which channel, under which tag."""

    connection: str
    channel: int
    tag: int

    def __str__(self) -> str:
        return f"{self.connection}.{self.channel}.{self.tag}"

    @classmethod
    def of(cls, text: str) -> Handle:
        """Raises ConfigError: it is no handle."""
        connection, _, place = str(text).partition(".")
        channel, _, tag = place.partition(".")
        if connection and channel.isdecimal() and tag.isdecimal():
            return cls(connection, int(channel), int(tag))
        raise ConfigError("this is no handle of a lease", got=repr(text)[:80], expected="what `lease` gave")


def _token_of(queue: str) -> str:
    return queue if _SAFE.fullmatch(queue) else f"={hashlib.sha256(queue.encode()).hexdigest()}"


def ready_queue_of(queue: str) -> str:
    """The server's queue that has the messages."""
    return f"{_READY}{_token_of(queue)}"


def dead_queue_of(queue: str) -> str:
    """The server's queue that has the dead letters."""
    return f"{_DEAD}{_token_of(queue)}"


def dead_queue_beside(ready: str) -> str:
    """The same, by the name of the server's queue that has the messages."""
    return ready.replace(_READY, _DEAD, 1)


def delay_name(step_ms: int) -> str:
    """The exchange, and the queue behind it, in which messages wait so long."""
    return f"tupletree.delay.{step_ms}ms"


def delay_step_ms(delay_s: float) -> int:
    """The step that a delay is rounded up to, at least 10 ms.

    >>> [delay_step_ms(one) for one in (0.001, 0.5, 1.0, 65.0)]
    [10, 500, 1000, 80000]
    """
    wanted_ms = delay_s * 1000
    power = 1
    while True:
        for step in _STEPS:
            if step * power >= wanted_ms - 1e-6:
                return step * power
        power *= 10


def parcel_of(
    queue: str, message: Message, *, published_s: float, delay_s: float = 0.0, deliveries: int = 0, reason: str = ""
) -> Parcel:
    """What stores a message: ready, or after a delay.

    Args:
        queue: the server's.
        message: the message.
        published_s: by the publisher's clock.
        delay_s: until it is ready.
        deliveries: that were counted before; another copy had them.
        reason: of a dead letter, or of the last failure.
    """
    headers: dict[str, Any] = {}
    if _fits(message):
        headers |= message.headers
        if message.key:
            headers[_KEY] = message.key
        message_id, content_type = message.id, message.content_type
    else:
        head = (message.id, message.content_type, message.key, dict(message.headers))
        headers[_HEAD] = msgspec.msgpack.encode(head)
        message_id, content_type = None, None
    if deliveries:
        headers[_DELIVERIES] = deliveries
    if reason:
        headers[_REASON] = _cut(reason, MOST_HEAD_BYTES - head_bytes(message))
    if published_s:
        headers[_PUBLISHED] = round(published_s * 1000)  # the timestamp of the protocol has whole seconds
    properties = BasicProperties(
        content_type=content_type,
        headers=headers or None,
        delivery_mode=2,
        message_id=message_id,
        timestamp=int(published_s),
    )
    exchange = delay_name(delay_step_ms(delay_s)) if delay_s > 0 else ""
    return Parcel(exchange, queue, message.body, properties)


def head_bytes(message: Message) -> int:
    """Bytes of all that is no body, at most; with what the protocol adds."""
    texts = [message.id, message.content_type, message.key, *message.headers, *message.headers.values()]
    return 200 + sum(len(one.encode()) + 8 for one in texts)


def _cut(text: str, most_bytes: int) -> str:
    """Its beginning, in so many bytes."""
    return text.encode(errors="replace")[: max(1, most_bytes)].decode(errors="ignore") or "…"


def _fits(message: Message) -> bool:
    """Whether all of it can stand where other programs look for it."""
    names = message.headers
    if len(message.id.encode()) > _SHORT or not 1 <= len(message.content_type.encode()) <= _SHORT:
        return False
    return all(0 < len(name.encode()) <= _SHORT and not name.startswith(("tupletree", *_SERVERS)) for name in names)


def message_of(body: bytes, properties: Any, own_id: str) -> Message:
    """A message that was delivered.

    Args:
        body: its bytes.
        properties: as pika gives them.
        own_id: its id if another program gave it none.
    """
    headers: Mapping[str, Any] = properties.headers or {}
    packed = headers.get(_HEAD)
    if isinstance(packed, bytes):
        try:
            name, content_type, key, own = _PACKED.decode(packed)
        except msgspec.MsgspecError:
            pass  # a header of this name that is not ours is one of theirs
        else:
            return Message(id=name, body=body, content_type=content_type, key=key, headers=own)
    return Message(
        id=properties.message_id or own_id,
        body=body,
        content_type=properties.content_type or DEFAULT_CONTENT_TYPE,
        key=_text(headers.get(_KEY, "")),
        headers={
            name: _text(value) for name, value in headers.items() if not name.startswith(_SERVERS) and name not in _OURS
        },
    )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def published_s_of(properties: Any) -> float:
    """When it was published, by the publisher's clock; 0.0 if it did not say."""
    stamp, exact_ms = properties.timestamp, (properties.headers or {}).get(_PUBLISHED)
    if isinstance(exact_ms, int):
        return exact_ms / 1000
    return float(stamp) if isinstance(stamp, int) else 0.0


def deliveries_of(properties: Any) -> int:
    """How often it came back: as an earlier copy, and to the queue that it is in."""
    headers: Mapping[str, Any] = properties.headers or {}
    earlier, here = headers.get(_DELIVERIES, 0), headers.get(_COUNT, 0)
    return (earlier if isinstance(earlier, int) else 0) + (here if isinstance(here, int) else 0)


def stored_of(body: bytes, properties: Any, own_id: str, state: State) -> Stored:
    """A dead letter, as `peek` shows it."""
    headers: Mapping[str, Any] = properties.headers or {}
    reason, deliveries = headers.get(_REASON), headers.get(_DELIVERIES, 0)
    if not isinstance(reason, str):  # the server itself made it one: a policy, or a limit of deliveries
        deaths = headers.get(_DEATHS)
        first = deaths[0] if isinstance(deaths, list) and deaths else {}
        reason = f"the server: {first.get('reason', 'unknown')}" if isinstance(first, dict) else ""
    return Stored(
        message=message_of(body, properties, own_id),
        state=state,
        deliveries=deliveries if isinstance(deliveries, int) else 0,
        published_s=published_s_of(properties),
        reason=reason,
    )
