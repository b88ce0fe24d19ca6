"""Messages of the embedded queue as columns of a row, and leases as the text of a handle.

A handle is file.queue.token.row: the file's own id, then three numbers. The token is the fencing token, which a queue
draws for each call that leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tupletree.errors import ConfigError
from tupletree.queues.messages import DEFAULT_CONTENT_TYPE, Message

_encode = msgspec.json.Encoder().encode


def columns_of(number: int, ordered: bool, message: Message, state: int, due: int, now: int) -> tuple[Any, ...]:
    """The columns of a new row, in the order of the INSERT: the state is number 2, the size 8, the body the last."""
    plain = message.content_type == DEFAULT_CONTENT_TYPE and not message.headers
    return (
        number,
        message.id,
        state,
        due,
        now,
        int(ordered and bool(message.key)),
        message.key or None,
        None if plain else msgspec.msgpack.encode((message.content_type, message.headers)),
        len(message.body),
        None,
        message.body,
    )


def json_text(numbers: Sequence[int]) -> str:
    """Numbers of rows, as one parameter of a statement."""
    return _encode(numbers).decode()


_HEAD = msgspec.msgpack.Decoder(tuple[str, dict[str, str]])


def message_of(name: str, key: str | None, head: bytes | None, body: bytes) -> Message:
    """The message of a row's columns."""
    if head is None:
        return Message(id=name, body=body, key=key or "")
    content_type, headers = _HEAD.decode(head)
    return Message(id=name, body=body, key=key or "", content_type=content_type, headers=headers)


def by_lease(handles: Sequence[str]) -> dict[str, list[int]]:
    """Handles without their last part, file.queue.token → row numbers. Raises ConfigError for what is no handle."""
    found: dict[str, list[int]] = {}
    for handle in handles:
        prefix, _, seq = handle.rpartition(".")
        try:
            found.setdefault(prefix, []).append(int(seq))
        except ValueError:
            raise _no_handle(handle) from None
    for prefix in found:
        if prefix.count(".") != 2 or not all(part.isalnum() for part in prefix.split(".")):
            raise _no_handle(prefix)
    return found


def parse_handle(handle: str) -> tuple[str, tuple[int, int]]:
    """A handle's prefix, token and row number."""
    ((prefix, seqs),) = by_lease([handle]).items()
    return prefix, (int(prefix.rpartition(".")[2]), seqs[0])


def _no_handle(got: str) -> ConfigError:
    return ConfigError(
        "this is no handle of the embedded queue", got=repr(got)[:100], expected="`handle` of a delivery"
    )
