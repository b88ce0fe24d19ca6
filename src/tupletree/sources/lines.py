"""Lines: what a line of a text file is, and how it becomes a message.

Owns line ends, encodings, byte order marks and message classes. It refuses to know which lines of a file come next.
"""

from __future__ import annotations

import codecs
import inspect
import io
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tupletree.errors import ConfigError
from tupletree.ids import MessageId
from tupletree.sources.line_reader import WIDE
from tupletree.topology.components import Reject
from tupletree.topology.streams import Schema

T = TypeVar("T")

MARK = "\ufeff"


def decode_all(chunk: bytes, encoding: str, *, at_start: bool) -> list[str] | None:
    """A chunk's lines, decoded in one go; None if that fails or if a line feed was part of a character.

    Args:
        chunk: whole lines.
        encoding: as `checked_encoding` gave it.
        at_start: whether the chunk begins the file, so that it may begin with a byte order mark.
    """
    try:
        text = chunk.decode(encoding)
    except UnicodeDecodeError:
        return None
    if at_start and encoding == "utf-8":
        text = text.removeprefix(MARK)
    texts = text.replace("\r\n", "\n").split("\n")
    if not texts[-1]:
        texts.pop()
    terminated = chunk.count(b"\n")
    return texts if len(texts) - terminated in {0, 1} else None


def decode_each(
    raw: Sequence[bytes], encoding: str, path: str, offset: int, first: int, id_of: Callable[[int], MessageId]
) -> Iterator[str | Reject]:
    """Lines one by one, those that cannot be decoded as rejects.

    Args:
        raw: the lines, with their ends.
        encoding: as `checked_encoding` gave it.
        path: of the file, as it was given.
        offset: where the first of them begins in the file.
        first: its number.
        id_of: index of a line here → its message id.
    """
    for index, line in enumerate(raw):
        number = first + index
        try:
            text = line.decode(encoding)
        except UnicodeDecodeError as error:
            reason = (
                f"{path}, line {number}, byte {offset + error.start}: not {encoding} ({error.reason}: "
                f"{line[error.start : error.end].hex(' ')})"
            )
            yield Reject(line.removesuffix(b"\n").removesuffix(b"\r"), id_of(index), reason)
        else:
            if offset == 0 and encoding == "utf-8":
                text = text.removeprefix(MARK)
            yield text[:-1].removesuffix("\r") if text.endswith("\n") else text
        offset += len(line)


def raw_lines(chunk: bytes) -> list[bytes]:
    """Cut at line feeds only, which stay with their lines."""
    return io.BytesIO(chunk).readlines()


def checked_encoding(encoding: str, where: str) -> str:
    """Python's name of an encoding. Raises ConfigError for one that is not known, or in which lines end otherwise."""
    try:
        name = codecs.lookup(encoding).name.removesuffix("-sig")  # the mark is dropped here anyway
        fits = name in WIDE or "\n".encode(name) == b"\n"
    except LookupError as error:
        raise ConfigError("unknown text encoding", where=where, got=encoding) from error
    if not fits:
        raise ConfigError(
            "lines of this encoding do not end with the byte 0x0A",
            where=where,
            got=encoding,
            expected="UTF-8, UTF-16, UTF-32 or an encoding that extends ASCII",
            next_step="convert the files to UTF-8",
        )
    return name


def constructor(cls: type[T], where: str = "text_lines") -> tuple[tuple[str, ...], Callable[..., T]]:
    """How to make a message: which of text, path and number it takes, and what to call with these, in that order."""
    schema = Schema.of(cls)
    names = tuple(name for name in schema.fields if len(schema.fields) == 1 or name in {"text", "path", "number"})
    columns = ("text",) if len(schema.fields) == 1 else names
    if "text" not in columns or not schema.required.issubset(names):
        raise ConfigError(
            f"{where} cannot fill the fields of {cls.__qualname__}",
            where=where,
            got=", ".join(schema.fields),
            expected="one field, or `text` and, if wanted, `path` and `number`; others need a default",
        )
    parameters = list(inspect.signature(cls).parameters.values())[: len(names)]
    if all(p.name == name and p.kind is p.POSITIONAL_OR_KEYWORD for p, name in zip(parameters, names, strict=False)):
        return columns, cls
    return columns, lambda *values: cls(**dict(zip(names, values, strict=True)))
