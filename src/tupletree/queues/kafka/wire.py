"""What stands in topics, headers and handles at a Kafka cluster, and how it is read again.

Owns the form of names. Refuses to know a connection.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tupletree.errors import ConfigError
from tupletree.queues.messages import DEFAULT_CONTENT_TYPE, Message, Stored

RETRY, DEAD = ".retry", ".dead"
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,200}")
_PLAIN = re.compile(r"[!-~]{1,200}")

_OWN = "tupletree-"
_ID, _CONTENT_TYPE, _HEADERS = "tupletree-id", "content-type", "tupletree-headers"
_DELIVERIES, _DELAY, _NOT_BEFORE = "tupletree-deliveries", "tupletree-delay-ms", "tupletree-not-before-ms"
_PUBLISHED, _REASON = "tupletree-published-ms", "tupletree-reason"

MOST_HEAD_BYTES = 40_000
"""Of a record that are not its body: id, content type, key, headers, and `REASON_BYTES` of a reason."""

REASON_BYTES = 8_000

_PACKED: msgspec.msgpack.Decoder[dict[str, str]] = msgspec.msgpack.Decoder(dict[str, str])


class Record(msgspec.Struct, frozen=True, gc=False):
    """A message as it is handed to the producer."""

    topic: str
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]


class Handle(msgspec.Struct, frozen=True, gc=False):
    """What a handle says: who leased, which record of which partition, and by which of the leases."""

    member: str
    partition: int
    offset: int
    lease: int

    def __str__(self) -> str:
        return f"{self.member}.{self.partition}.{self.offset}.{self.lease}"

    @classmethod
    def of(cls, text: str) -> Handle:
        """Raises ConfigError: it is no handle."""
        member, *numbers = str(text).split(".")
        if member and len(numbers) == 3 and all(map(str.isdecimal, numbers)):
            return cls(member, *map(int, numbers))
        raise ConfigError("this is no handle of a lease", got=repr(text)[:80], expected="what `lease` gave")


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """A record that was read.

    Attributes:
        message: the message.
        deliveries: that earlier copies of it had.
        delay_s: seconds from when this copy was stored until it may be leased.
        not_before_s: Unix time before which it may not be leased.
        stored_s: when this copy was stored.
        published_s: when the message was published.
        reason: of its last failure, or why it is dead.
    """

    message: Message
    deliveries: int
    delay_s: float
    not_before_s: float
    stored_s: float
    published_s: float
    reason: str


def topic_of(queue: str) -> str:
    """The topic that has a queue's messages: of its name, or of a hash of it where that is no name for a topic."""
    if _TOPIC.fullmatch(queue) and not queue.endswith((RETRY, DEAD)) and queue.strip("."):
        return queue
    return f"tupletree-{hashlib.sha256(queue.encode()).hexdigest()[:40]}"


def retry_topic(queue: str) -> str:
    """The topic in which messages wait."""
    return topic_of(queue) + RETRY


def dead_topic(queue: str) -> str:
    """The topic that has a queue's dead letters."""
    return topic_of(queue) + DEAD


def is_topic_of_queue(topic: str, topics: Mapping[str, Any]) -> bool:
    """Whether a topic has the messages of a queue that was declared."""
    return not topic.endswith((RETRY, DEAD)) and topic + RETRY in topics and topic + DEAD in topics


def record_of(
    topic: str,
    message: Message,
    *,
    deliveries: int = 0,
    delay_s: float = 0.0,
    not_before_s: float = 0.0,
    published_s: float = 0.0,
    reason: str = "",
) -> Record:
    """What stores a message, with what `Delivered` says of a copy."""
    headers: list[tuple[str, bytes]] = [(_ID, message.id.encode())]
    if message.content_type != DEFAULT_CONTENT_TYPE:
        headers.append((_CONTENT_TYPE, message.content_type.encode()))
    if all(_is_plain(name) for name in message.headers):
        headers += [(name, text.encode()) for name, text in message.headers.items()]
    else:
        headers.append((_HEADERS, msgspec.msgpack.encode(dict(message.headers))))
    own = {
        _DELIVERIES: str(deliveries) if deliveries else "",
        _DELAY: str(round(delay_s * 1000)) if delay_s else "",
        _NOT_BEFORE: str(round(not_before_s * 1000)) if not_before_s else "",
        _PUBLISHED: str(round(published_s * 1000)) if published_s else "",
        _REASON: _cut(reason),
    }
    headers += [(name, text.encode(errors="replace")) for name, text in own.items() if text]
    return Record(topic, message.key.encode() if message.key else None, message.body, headers)


def head_bytes(message: Message) -> int:
    """Bytes of all that is no body, at most; with what the protocol and we add."""
    texts = [message.id, message.content_type, message.key, *message.headers, *message.headers.values()]
    return 400 + sum(len(one.encode()) + 8 for one in texts)


def delivered_of(record: Any) -> Delivered:
    """What a record says, also one that another program stored: its id is its place then.

    Args:
        record: as confluent-kafka gives it.
    """
    found: dict[str, bytes] = {}
    theirs: dict[str, str] = {}
    for name, value in record.headers() or ():
        if name.startswith(_OWN) or name == _CONTENT_TYPE:
            found[name] = value or b""
        else:
            theirs[name] = _text(value)
    if _HEADERS in found:
        try:
            theirs = _PACKED.decode(found[_HEADERS])
        except msgspec.MsgspecError:
            theirs[_HEADERS] = _text(found[_HEADERS])  # a header of this name that is not ours is one of theirs
    place = f"{record.topic()}-{record.partition()}-{record.offset()}"
    message = Message(
        id=_text(found.get(_ID)) or place,
        body=record.value() or b"",
        content_type=_text(found[_CONTENT_TYPE]) if _CONTENT_TYPE in found else DEFAULT_CONTENT_TYPE,
        headers=theirs,
        key=_text(record.key()),
    )
    stored_ms = record.timestamp()[1]
    return Delivered(
        message=message,
        deliveries=_number(found.get(_DELIVERIES)),
        delay_s=_number(found.get(_DELAY)) / 1000,
        not_before_s=_number(found.get(_NOT_BEFORE)) / 1000,
        stored_s=max(0, stored_ms) / 1000,
        published_s=(_number(found.get(_PUBLISHED)) or max(0, stored_ms)) / 1000,
        reason=_text(found.get(_REASON)),
    )


def dead_of(record: Any) -> Stored:
    """A dead letter, as `peek` shows it."""
    found = delivered_of(record)
    return Stored(
        message=found.message,
        state="dead",
        deliveries=found.deliveries,
        due_s=found.stored_s,
        published_s=found.published_s,
        reason=found.reason,
    )


def _is_plain(name: str) -> bool:
    """Whether it can be a header's name as it is, for every program that reads it."""
    return bool(_PLAIN.fullmatch(name)) and not name.startswith(_OWN) and name != _CONTENT_TYPE


def _cut(text: str) -> str:
    """Its beginning, in so many bytes as there is room for."""
    return text.encode(errors="replace")[:REASON_BYTES].decode(errors="ignore")


def _number(value: Any) -> int:
    text = _text(value)
    return int(text) if text.isdecimal() else 0


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return "" if value is None else str(value)


def topics_of(queue: str) -> Sequence[str]:
    """All topics of a queue."""
    return topic_of(queue), retry_topic(queue), dead_topic(queue)
