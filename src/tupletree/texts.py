r"""Text from outside: names of files, ids, errors and the environment may hold what has no UTF-8 form.

Python keeps a byte of a file name that is not UTF-8 as a lone surrogate, and every encoder refuses it. Owns the two
ways out: what is shown or logged is escaped (`encodable`, as `\udce9`), and what must be read back unchanged is marked
(`reversible` and `restored`). It refuses to know which of the two a value needs. Fields of messages are judged by the
codec: there a lone surrogate fails the tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

MARK = "$surrogates"
"""The only key of the object that `reversible` makes of data with lone surrogates."""

TEXT_MARK = "\0surrogates:"
"""What `marked_text` puts before a text in hexadecimal. No file name has a NUL in it."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """How many of something: `1 message`, `2,000 messages`.

    >>> counted(1, "reply", "replies"), counted(2_000, "message")
    ('1 reply', '2,000 messages')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def text_by(show: Callable[[Any], str], value: object) -> str:
    """What `repr` or `str` gives, or words for what it raised: they run users' code, which may raise anything."""
    try:
        return show(value)
    except BaseException as error:  # noqa: BLE001 - a report on an error must not become another one
        return f"<{type(value).__qualname__} whose {show.__name__} raised {type(error).__qualname__}>"


def moment_text(seconds: float) -> str:
    """A moment, in seconds since the Unix epoch, for people: with its date, for a hold may last for days."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} s since 1970"


def is_encodable(text: str) -> bool:
    """Whether the text has a UTF-8 form: no lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encodable(text: str) -> str:
    r"""The text with lone surrogates escaped, so that everything can write it; for people, not to be read back.

    >>> encodable("caf\udce9.txt")
    'caf\\udce9.txt'
    """
    return text if is_encodable(text) else text.encode("utf-8", "backslashreplace").decode()


def json_bytes(value: Any) -> bytes:
    """As `msgspec.json.encode`; texts that it refuses are written as `encodable`."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escaped(msgspec.to_builtins(value)))


def msgpack_bytes(value: Any) -> bytes:
    """As `msgspec.msgpack.encode`; texts that it refuses are written as `encodable`."""
    try:
        return msgspec.msgpack.encode(value)
    except UnicodeEncodeError:
        return msgspec.msgpack.encode(_escaped(msgspec.to_builtins(value, builtin_types=(bytes,))))


def reversible(data: Any) -> Any:
    r"""Plain data that can be encoded and that `restored` turns back into `data`; itself where that is possible.

    >>> reversible({"path": "a.txt"})
    {'path': 'a.txt'}
    >>> restored(reversible({"path": "caf\udce9.txt"})) == {"path": "caf\udce9.txt"}
    True
    """
    try:
        msgspec.msgpack.encode(data)
    except UnicodeEncodeError:
        return {MARK: _marked(data)}
    return {MARK: _marked(data)} if type(data) is dict and MARK in data else data


def restored(data: Any) -> Any:
    """Undo `reversible`."""
    return _unmarked(data[MARK]) if type(data) is dict and list(data) == [MARK] else data


def marked_text(text: str) -> str:
    r"""A text that can be encoded and that `unmarked_text` turns back into `text`; itself where that is possible.

    >>> unmarked_text(marked_text("caf\udce9.txt")) == "caf\udce9.txt"
    True
    """
    if is_encodable(text) and not text.startswith(TEXT_MARK):
        return text
    return TEXT_MARK + text.encode("utf-8", "surrogatepass").hex()


def unmarked_text(text: str) -> str:
    """Undo `marked_text`."""
    if not text.startswith(TEXT_MARK):
        return text
    return bytes.fromhex(text.removeprefix(TEXT_MARK)).decode("utf-8", "surrogatepass")


def _escaped(data: Any) -> Any:
    if isinstance(data, str):
        return encodable(data)
    if isinstance(data, dict):
        return {_escaped(key): _escaped(value) for key, value in data.items()}
    return [_escaped(item) for item in data] if isinstance(data, list | tuple) else data


def _marked(data: Any) -> Any:
    """Every text as bytes, every list and object as a list whose first item says which it is."""
    if isinstance(data, str):
        return data.encode("utf-8", "surrogatepass")
    if isinstance(data, bytes):
        return ["bytes", data]
    if isinstance(data, dict):
        return ["dict", *([_marked(key), _marked(value)] for key, value in data.items())]
    return ["list", *map(_marked, data)] if isinstance(data, list | tuple) else data


def _unmarked(data: Any) -> Any:
    if isinstance(data, bytes):
        return data.decode("utf-8", "surrogatepass")
    if not isinstance(data, list):
        return data
    kind, *items = data
    if kind == "bytes":
        return items[0]
    if kind == "dict":
        return {_unmarked(key): _unmarked(value) for key, value in items}
    return list(map(_unmarked, items))
