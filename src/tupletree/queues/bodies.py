"""Bodies of queue messages as typed values and back: JSON, MessagePack, or as they are.

Owns the two ways and what is said of a body that does not fit. Refuses to know any queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tupletree.errors import ConfigError
from tupletree.queues.messages import DEFAULT_CONTENT_TYPE, Message

CONTENT_TYPES = {"json": "application/json", "msgpack": "application/msgpack"}

Decode = Callable[[Message], Any]
Encode = Callable[[Any], Message | bytes]


class QueueMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a queue as a tuple: what `queue(url)` gives where no class of your own is named.

    Attributes:
        id, body, content_type, headers, key: see `Message`.
        deliveries: how often the queue has delivered it, this time included.
    """

    id: str
    body: bytes
    content_type: str = DEFAULT_CONTENT_TYPE
    headers: dict[str, str] = {}
    key: str = ""
    deliveries: int = 1


def decoder_of(body: str, message_type: type) -> Decode:
    """What makes values of message bodies; it raises an exception of msgspec for a body that does not fit.

    Args:
        body: "json" or "msgpack".
        message_type: the class of the values.
    """
    if body == "json":
        of_json: msgspec.json.Decoder[Any] = msgspec.json.Decoder(message_type)
        return lambda message: of_json.decode(message.body)
    of_msgpack: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(message_type)
    return lambda message: of_msgpack.decode(message.body)


def encoder_of(body: str) -> Encode:
    """What makes bodies of values: "json" or "msgpack"; a `QueueMessage` is sent on as it is."""
    encode = msgspec.json.Encoder().encode if body == "json" else msgspec.msgpack.Encoder().encode
    content_type = CONTENT_TYPES[body]

    def message_of(value: Any) -> Message:
        if type(value) is QueueMessage:
            return Message(
                id=value.id, body=value.body, content_type=value.content_type, headers=value.headers, key=value.key
            )
        return Message(id="", body=encode(value), content_type=content_type)

    return message_of


def check_body(body: object, where: str) -> None:
    """Raises ConfigError for what is neither a name of a format nor a function."""
    if not callable(body) and body not in CONTENT_TYPES:
        raise ConfigError(
            "this is no way to read or write a body",
            where=where,
            got=repr(body),
            expected='"json", "msgpack", or a function',
        )
