"""What makes two message ids the same, and how an id is written down.

Ids are compared with their type: 0, False, "" and b"" are four ids. Owns the key that dictionaries use and the
JSON-compatible form that logs and dead letters use. It refuses types that would not survive a restart unchanged.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, cast

from tupletree.errors import CheckpointError, UnusableDataError

if TYPE_CHECKING:
    from tupletree.ids import MessageId

_INT64 = 1 << 63


_PLAIN = frozenset({str, int})
"""Parts that are their own key, and a tuple of them too: text never equals a number, and bool is another type."""


def message_key(message_id: MessageId) -> Hashable:
    """Return a dictionary key that is equal for two ids only if values and types are equal, also within tuples.

    Raises:
        UnusableDataError: the id is not a str, int, bytes or a tuple of them. Subclasses are refused too: after a
            restart they would come back as another type, and so as another message.
    """
    kind = type(message_id)
    if kind is str or kind is int:
        return cast("Hashable", message_id)
    if kind is bytes or kind is bool:
        return kind, message_id
    if kind is tuple:
        parts = cast("tuple[MessageId, ...]", message_id)
        if _PLAIN.issuperset(map(type, parts)):
            return parts
        return tuple, *map(message_key, parts)
    raise UnusableDataError(
        "a spout gave a message id of a type that cannot name a message",
        got=f"{message_id!r} of type {kind.__qualname__}",
        expected="a str, int, bytes or a tuple of them",
        next_step="convert the id in the spout, for example with str()",
    )


def id_from_key(key: Hashable) -> MessageId:
    """Undo `message_key`."""
    if not isinstance(key, tuple) or _PLAIN.issuperset(map(type, key)):
        return cast("MessageId", key)
    if key[0] is tuple:
        return tuple(map(id_from_key, key[1:]))
    return cast("MessageId", key[1])


def plain_id(message_id: MessageId) -> Any:
    r"""Write an id as JSON-compatible data that `id_from_plain` reads back with every type intact.

    Text, 64-bit integers and booleans stand for themselves, a tuple is a list, and what JSON cannot hold is an
    object: `{"bytes": hex}`, `{"int": decimal}`, `{"text": hex}` (text with lone surrogates, as in file names).

    >>> plain_id(("orders", 7, b"\x01"))
    ['orders', 7, {'bytes': '01'}]
    """
    if isinstance(message_id, str):
        try:
            message_id.encode()
        except UnicodeEncodeError:
            return {"text": message_id.encode("utf-8", "surrogatepass").hex()}
        return message_id
    if isinstance(message_id, bytes):
        return {"bytes": message_id.hex()}
    if isinstance(message_id, tuple):
        return [plain_id(part) for part in message_id]
    return message_id if -_INT64 <= message_id < _INT64 else {"int": str(message_id)}


def id_from_plain(plain: Any) -> MessageId:
    """Read what `plain_id` wrote.

    Raises:
        CheckpointError: the data is nothing that `plain_id` writes.
    """
    match plain:
        case str() | int():
            return plain
        case list():
            return tuple(map(id_from_plain, plain))
        case {"bytes": str(text)}:
            return bytes.fromhex(text)
        case {"text": str(text)}:
            return bytes.fromhex(text).decode("utf-8", "surrogatepass")
        case {"int": str(text)}:
            return int(text)
        case _:
            raise CheckpointError("a stored message id cannot be read", got=repr(plain))


def id_text(stored_id: Any) -> str:
    """How what `plain_id` wrote is shown: text as it is, everything else as JSON; so also text that is not UTF-8.

    It is what `tupletree why` and `tupletree dead` take.

    >>> id_text(plain_id(("orders", 7)))
    '["orders", 7]'
    """
    return stored_id if isinstance(stored_id, str) else json.dumps(_readable(stored_id))


def ids_of_text(text: str) -> list[MessageId]:
    """The ids that `id_text` may have shown so: text as it is, and what its JSON says.

    >>> ids_of_text("7"), ids_of_text('["orders", 7]')
    (['7', 7], ['["orders", 7]', ('orders', 7)])
    """
    found: list[MessageId] = [text]
    with contextlib.suppress(ValueError, RecursionError, CheckpointError):
        found.append(id_from_plain(json.loads(text)))
    return found


def _readable(stored_id: Any) -> Any:
    match stored_id:
        case list():
            return list(map(_readable, stored_id))
        case {"text": str()}:
            return id_from_plain(stored_id)
        case _:
            return stored_id
