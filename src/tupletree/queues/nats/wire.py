"""What stands in subjects, headers and handles of a NATS server's streams, and how it is read again.

Owns the form of names: a queue's name may be any text, a subject's part may not. Refuses to know a connection.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tupletree.errors import ConfigError
from tupletree.queues.messages import Message
from tupletree.queues.nats.client import Answer, Request

MESSAGES, LETTERS = "tupletree.queue", "tupletree.dead"
_HEAD_HEADER, _LETTER_HEADER, _ID_HEADER = "Tupletree", "Tupletree-Letter", "Nats-Msg-Id"
_SAFE = re.compile(r"[A-Za-z0-9_-]{1,180}")

_HEAD = msgspec.msgpack.Decoder(tuple[str, str, str, dict[str, str]])
_LETTER = msgspec.msgpack.Decoder(tuple[str, int, float])


class Handle(msgspec.Struct, frozen=True):
    """What a handle says.

    Attributes:
        stream: that has the message.
        deliveries: how often it was delivered.
        sequence: its number in the stream.
        published_s: when it was stored, by the server's clock.
    """

    stream: str
    deliveries: int
    sequence: int
    published_s: float

    @classmethod
    def of(cls, handle: str) -> Handle:
        """Raises ConfigError: it is no handle."""
        parts = str(handle).split(".")
        if parts[:2] == ["$JS", "ACK"] and len(parts) in {9, 11, 12}:
            # Since 2.10 a server may name its domain and account in front.
            stream, _, deliveries, sequence, _, published_ns = parts[2 if len(parts) == 9 else 4 :][:6]
            if all(map(str.isdecimal, (deliveries, sequence, published_ns))):
                return cls(stream, int(deliveries), int(sequence), int(published_ns) / 1e9)
        raise ConfigError("this is no handle of a lease", got=repr(handle)[:80], expected="what `lease` gave")


def token_of(queue: str) -> str:
    """The part of subjects that names a queue."""
    return queue if _SAFE.fullmatch(queue) else f"={hashlib.sha256(queue.encode()).hexdigest()}"


def stream_of(queue: str, prefix: str = MESSAGES) -> str:
    """The name of a queue's stream of messages, or of letters."""
    return f"{prefix.replace('.', '_')}_{token_of(queue)}"


def subject_of(queue: str, name: str, prefix: str) -> str:
    """The subject of the message with this id."""
    return f"{prefix}.{token_of(queue)}.{_key_of(name)}"


def _key_of(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def request_of(queue: str, message: Message, prefix: str = MESSAGES, *, is_remembered: bool = True) -> Request:
    """The request that stores a message. `is_remembered`: its id is known for a time whatever becomes of it."""
    packed = msgspec.msgpack.encode((message.id, message.content_type, message.key, dict(message.headers)))
    key = _key_of(message.id)
    headers = {_HEAD_HEADER: base64.b64encode(packed).decode()}
    if is_remembered and prefix == MESSAGES:
        headers[_ID_HEADER] = key
    return Request(f"{prefix}.{token_of(queue)}.{key}", message.body, headers)


def message_of(body: bytes, headers: Mapping[str, str], sequence: int) -> Message:
    """A message of a stream. One that another program published has its own headers, and the id that it gave."""
    try:
        name, content_type, key, own = _HEAD.decode(base64.b64decode(headers[_HEAD_HEADER]))
    except (KeyError, ValueError):  # a header of this name that is not ours is one of theirs
        return Message(id=headers.get(_ID_HEADER) or str(sequence), body=body, headers=dict(headers))
    return Message(id=name, body=body, content_type=content_type, key=key, headers=own)


def letter_of(queue: str, message: Message, reason: str, place: Handle) -> Request:
    """The request that stores a dead letter, with what `told_of` gives."""
    request = request_of(queue, message, LETTERS)
    told = msgspec.msgpack.encode((reason, place.deliveries, place.published_s))
    return Request(
        request.subject, request.body, {**(request.headers or {}), _LETTER_HEADER: base64.b64encode(told).decode()}
    )


def told_of(headers: Mapping[str, str]) -> tuple[str, int, float]:
    """(reason, deliveries, when it was published) of a dead letter."""
    return _LETTER.decode(base64.b64decode(headers.get(_LETTER_HEADER, "")))


def body_and_headers(stored: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Of a message as the server's API gives it."""
    lines = base64.b64decode(stored.get("hdrs", "")).decode(errors="replace").split("\r\n")[1:]
    headers = {name: text.strip() for name, colon, text in (one.partition(":") for one in lines) if colon}
    return base64.b64decode(stored.get("data", "")), headers


def decoded(answer: Answer) -> dict[str, Any]:
    """What an answer of the server's API says; an error stands in it as `error`."""
    told: dict[str, Any] = msgspec.json.decode(answer.body) if answer.body else {}
    return told
