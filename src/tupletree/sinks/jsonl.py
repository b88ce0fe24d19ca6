"""JSON Lines: one object per row, UTF-8, one row per line.

Owns how rows become JSON and which rows it refuses (JSON has no NaN, no infinity and no lone surrogates, and a row
must be an object). The file protocol is in `files`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from tupletree.errors import CheckpointError
from tupletree.sinks.files import MADE, FileSink, RowError, SinkRowsError, check_flags, written
from tupletree.sinks.fitting import misfits

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


class JsonLinesSink(FileSink):
    """Write rows to `directory` as JSON Lines files: structs, dataclasses, NamedTuples and dicts as objects.

    Dates are ISO 8601 text, bytes are Base64, Decimal and UUID are text, integers of up to 64 bits are written in full.
    Rows that JSON cannot hold (NaN, infinity, lone surrogates, unknown types), or that do not fit their own class, fail
    their message with a reason; none is changed.

    Args:
        directory: the folder; a run refuses one that another run has filled, unless told to append.
        message_type: class of the rows; for the reader of the topology, JSON needs none.
        made: each row gets a last field `_made`, an integer: of two rows of a key, the one with the higher number has
            the value that was made later, whichever message completed first. `read_rows(…, latest_by=…)` goes by it.

    Example:
        >>> jsonl("out").suffix
        '.jsonl'
    """

    suffix = ".jsonl"

    def write_candidate(self, path: Path, rows: Sequence[Any], made: Sequence[int] | None = None) -> None:
        faults = misfits(rows)
        if faults:
            raise SinkRowsError(str(path), [*faults, *_faults_beside(path, rows, faults)])
        content = _encode(path, rows)
        if made is not None:
            content = _with_made(path, content, made)
        with written(path) as file:
            file.write(content)

    def filter_candidate(self, source: Path, destination: Path, keep: Sequence[bool]) -> int:
        """See `FileSink.filter_candidate`. The kept lines are the same bytes."""
        try:
            with source.open("rb") as file:
                lines = file.readlines()
        except FileNotFoundError as error:
            raise CheckpointError("a candidate file is gone", where=str(source)) from error
        check_flags(source, len(lines), keep)
        kept = [line for line, wanted in zip(lines, keep, strict=True) if wanted]
        with written(destination) as file:
            file.writelines(kept)
        return len(kept)


jsonl = JsonLinesSink


def _with_made(path: Path, content: bytes, made: Sequence[int]) -> bytes:
    """The lines with a last field that says how new they are."""
    name = f'"{MADE}":'.encode()
    if name in content:
        taken = [
            RowError(position, f"the field {MADE!r} has the name of the one that says how new a row is", "ValueError")
            for position, line in enumerate(content.splitlines())
            if MADE in _decoder.decode(line)
        ]
        if taken:
            raise SinkRowsError(str(path), taken)
    # A line ends with the only "}" before a line feed, so all of them are made at once, which is much cheaper.
    lines = content.replace(b"%", b"%%").replace(b"}\n", b"," + name + b"%d}\n").replace(b"\n{,", b"\n{")
    if lines.startswith(b"{,"):  # an object without fields, as above
        lines = b"{" + lines.removeprefix(b"{,")
    return lines % tuple(made)


def _faults_beside(path: Path, rows: Sequence[Any], known: Sequence[RowError]) -> list[RowError]:
    """What else is wrong: rows that fit their class but that JSON cannot hold."""
    bad = {fault.position for fault in known}
    positions = [position for position in range(len(rows)) if position not in bad]
    try:
        _encode(path, [rows[position] for position in positions])
    except SinkRowsError as refused:
        return [dataclasses.replace(fault, position=positions[fault.position]) for fault in refused.rows]
    return []


def _encode(path: Path, rows: Sequence[Any]) -> bytes:
    """All rows as lines. The whole sequence is encoded at once; single rows are looked at only to find the faulty."""
    everything = range(len(rows))
    try:
        traits = [_traits(cls) for cls in set(map(type, rows))]
        plain = [_plain(row) for row in rows] if any(trait.needs_plain for trait in traits) else rows
        content = _encoder.encode_lines(plain)
    except Exception:
        _refuse_faulty(path, rows, everything)
        raise  # no single row is to blame
    # JSON text escapes line feeds, so these counts hold exactly when each row became one object on one line.
    if content.count(b"\n") != len(rows) or content.count(b"\n{") + content.startswith(b"{") != len(rows):
        _refuse_faulty(path, rows, everything)
    # The encoder writes NaN and infinity as null, so only lines with a null in them can hide one.
    if b"null" in content and any(trait.may_hold_floats for trait in traits):
        _refuse_faulty(path, rows, [number for number, line in enumerate(content.split(b"\n")) if b"null" in line])
    return content


def _refuse_faulty(path: Path, rows: Sequence[Any], positions: Sequence[int]) -> None:
    """Raise SinkRowsError if a row at one of these positions cannot be written."""
    faults = []
    for position in positions:
        try:
            _check(rows[position])
        except Exception as error:  # noqa: BLE001 - a row's own code may raise anything; the reason travels as text
            faults.append(RowError(position, _reason(error), type(error).__name__))
    if faults:
        raise SinkRowsError(str(path), faults)


def _check(row: Any) -> None:
    """Raise for a row that cannot be written, with the reason as the message."""
    line = _encoder.encode(_plain(row))
    if not line.startswith(b"{") or b"\n" in line:
        raise TypeError(f"a row must be an object with fields, got {type(row).__name__}")
    _refuse_non_finite(msgspec.to_builtins(row), "")


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return f"text with a lone surrogate (\\u{ord(error.object[error.start]):04x}) has no UTF-8 form"
    return str(error) or type(error).__name__


def _refuse_non_finite(value: Any, where: str) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where.lstrip('.') or 'the row'} is {value}, which JSON cannot hold")
    elif isinstance(value, dict):
        for name, member in value.items():
            _refuse_non_finite(member, f"{where}.{name}")
    elif isinstance(value, list | tuple):
        for index, member in enumerate(value):
            _refuse_non_finite(member, f"{where}[{index}]")


@dataclasses.dataclass(frozen=True)
class _Traits:
    """What the values of a class may hold: things that msgspec would write as arrays, and floats."""

    needs_plain: bool
    may_hold_floats: bool


_UNKNOWN = _Traits(needs_plain=True, may_hold_floats=True)


@lru_cache(maxsize=1024)
def _traits(cls: type) -> _Traits:
    """Judge a class by its annotations; what is not fully known counts as holding everything."""
    try:
        pending: list[Any] = [msgspec.inspect.type_info(cls)]
    except Exception:  # noqa: BLE001 - unresolvable or unsupported annotations: such a class is just not known
        return _UNKNOWN
    seen: dict[int, Any] = {}
    while pending:
        node = pending.pop()
        if isinstance(node, tuple):
            pending.extend(node)
        elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field) and id(node) not in seen:
            seen[id(node)] = node
            pending.extend(getattr(node, name) for name in node.__struct_fields__)
    nodes = seen.values()
    open_ended = (msgspec.inspect.AnyType, msgspec.inspect.CustomType, msgspec.inspect.RawType)
    if any(isinstance(node, open_ended) for node in nodes):
        return _UNKNOWN
    return _Traits(
        needs_plain=any(
            isinstance(node, msgspec.inspect.NamedTupleType) or getattr(node, "array_like", False) for node in nodes
        ),
        may_hold_floats=any(isinstance(node, msgspec.inspect.FloatType) for node in nodes),
    )


def _plain(value: Any) -> Any:
    """The value with everything that has named fields as a dict, at every depth."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        named = {} if config.tag is None or config.tag_field is None else {config.tag_field: config.tag}
        for name, written_name in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
            member = getattr(value, name)
            if member is not msgspec.UNSET:
                named[written_name] = _plain(member)
        return named
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: _plain(member) for name, member in zip(value._fields, value, strict=True)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(member) for member in value]
    return value
