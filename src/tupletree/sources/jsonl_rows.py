"""Rows of JSON Lines files as messages: a typed object in each line of a text file.

Owns how a line becomes a message of any class. Files, their growth and rotation, ids and splits are those of `text`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal, TypeVar

import msgspec

from tupletree.clock import Clock
from tupletree.errors import ConfigError
from tupletree.sources.files import Order, Paths
from tupletree.sources.lines import decode_all, decode_each, raw_lines
from tupletree.sources.text import MAX_LINE_BYTES, Line, TextLines, refusal
from tupletree.sources.text_pieces import IdOf
from tupletree.topology.components import Reject
from tupletree.topology.streams import Schema

T = TypeVar("T")


class JsonLines(TextLines[T]):
    """Read JSON Lines files: each line an object, as the `jsonl` sink and many others write them; one message each.

    Fields that the class does not have are passed over; dates are ISO 8601 text, bytes Base64, Decimal and UUID text. A
    line that is no such object, an empty one too, becomes a dead letter that names path, line and fault.

    Ids, positions, growing and rotated files, compression and the other arguments are those of `text_lines`.

    Args:
        paths: one path or several, none twice; patterns stand for what they match.
        message_type: class of the messages: a msgspec.Struct or a dataclass.
        encoding: see `text_lines`.
        follow: see `text_lines`.
        order: see `text_lines`.
        changed: see `text_lines`.
        poll_interval_s: see `text_lines`.
        logged: see `text_lines`.
        max_line_bytes: see `text_lines`.
        clock: for tests.

    Raises:
        ConfigError: as for `text_lines`, or the class is a NamedTuple, which is an array in JSON.
        TopologyError: the class is no message class.

    Example:
        >>> class Order(msgspec.Struct):
        ...     number: int
        >>> jsonl_rows("orders.jsonl", message_type=Order).paths
        ['orders.jsonl']
    """

    def __init__(
        self,
        paths: Paths,
        *,
        message_type: type[T],
        encoding: str = "utf-8",
        follow: bool = False,
        order: Order = "name",
        changed: Literal["read", "refuse"] = "read",
        poll_interval_s: float = 1.0,
        logged: bool | None = None,
        max_line_bytes: int | None = MAX_LINE_BYTES,
        clock: Clock | None = None,
    ) -> None:
        lines: Any = Line  # what `text_lines` would make of it
        super().__init__(
            paths,
            message_type=lines,
            encoding=encoding,
            follow=follow,
            order=order,
            changed=changed,
            poll_interval_s=poll_interval_s,
            logged=logged,
            max_line_bytes=max_line_bytes,
            clock=clock,
        )
        Schema.of(message_type)  # refuse an unsuitable class where it is named
        if issubclass(message_type, tuple):
            raise ConfigError(
                "a NamedTuple is an array in JSON, and lines are objects",
                where="jsonl_rows",
                got=message_type.__qualname__,
                expected="a msgspec.Struct or a dataclass",
            )
        self.message_type = message_type

    def value_of(self, payload: bytes) -> T:
        """See `Spout`. Raises ValueError: the line is no such object, also now."""
        try:
            text = payload.decode(errors="surrogatepass")
        except UnicodeDecodeError:  # what was no text in the encoding that the source had
            text = payload.decode(self.encoding)
        cls: Any = self.message_type
        value: T = _decoder(cls).decode(text)
        return value

    def _values(
        self, chunk: bytes, encoding: str, name: str, offset: int, first: int, id_of: IdOf
    ) -> list[T] | Iterator[T | Reject]:
        cls: Any = self.message_type
        decode = _decoder(cls).decode
        texts = decode_all(chunk, encoding, at_start=offset == 0)
        with suppress(Exception):  # one by one, it is said of which line; the class's own code may raise anything
            if texts is not None:
                return [*map(decode, texts)]
        return self._each(chunk, encoding, name, offset, first, id_of)

    def _each(
        self, chunk: bytes, encoding: str, name: str, offset: int, first: int, id_of: IdOf
    ) -> Iterator[T | Reject]:
        cls: Any = self.message_type
        decode = _decoder(cls).decode
        for index, line in enumerate(decode_each(raw_lines(chunk), encoding, name, offset, first, id_of)):
            if isinstance(line, Reject):
                yield line
                continue
            try:
                yield decode(line)
            except Exception as error:  # noqa: BLE001 - the class's own code may raise anything
                fault = refusal(error) if line.strip() else "an empty line"
                yield Reject(
                    line.encode(errors="surrogatepass"), id_of(index), f"{name}, line {first + index}: {fault}"
                )


@lru_cache(maxsize=32)
def _decoder(message_type: Any) -> msgspec.json.Decoder[Any]:
    """By its class, so that a source can be pickled."""
    return msgspec.json.Decoder(message_type)


jsonl_rows = JsonLines
