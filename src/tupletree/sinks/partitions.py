"""Partitions: folders named by the values of columns, as Hive and Spark name them (`day=2026-11-29/shop=a%2Fb`).

Owns the names, which fields may name folders, and how the rows of a table are divided. A value that a reader would take
for another one (an empty text, which is NULL in this layout) is refused, row by row. It refuses to write anything.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin
from urllib.parse import unquote

import msgspec

from tupletree.errors import ConfigError, Finding
from tupletree.sinks.files import RowError
from tupletree.texts import counted
from tupletree.topology import hints
from tupletree.topology.streams import Schema, is_message_class

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

NULL = "__HIVE_DEFAULT_PARTITION__"
"""Stands for NULL in the name of a folder."""

KINDS = b"tupletree.partitions"
"""In the metadata of a file's schema: JSON, the columns that its folders have instead, with their types."""

_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
"""What Spark escapes in the names of folders."""

LONGEST_NAME = 255
"""Bytes of a name, on the usual filesystems."""

_LONGEST_PATH = 2000
"""Bytes of all the folders of a row together: a path may have 4,096."""


@dataclass(frozen=True)
class Part:
    """The rows of one folder.

    Attributes:
        folder: its path below the sink's.
        rows: their positions in the table that was divided, ascending.
        table: the rows, without the columns that the folder's name has, which the metadata names.
    """

    folder: str
    rows: npt.NDArray[Any]
    table: pa.Table


def columns_of_partitions(partition_by: str | Sequence[str]) -> tuple[str, ...]:
    """The columns as a tuple. Raises ConfigError for a name that comes twice, or that readers would skip."""
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    for column in columns:
        if columns.count(column) > 1 or column.startswith(("_", ".")) or not column:
            raise ConfigError(
                "a column cannot name the folders of partitions",
                where="partition_by",
                got=", ".join(map(repr, columns)),
                expected="each column once, and none that begins with _ or ., for readers skip such folders",
                next_step="rename the field, or leave it out",
            )
    return columns


def partition_faults(columns: Sequence[str], cls: type) -> list[Finding]:
    """Why rows of a class cannot be divided by these columns; empty if they can."""
    if not columns or not is_message_class(cls):
        return []
    fields = Schema.of(cls).fields
    name = cls.__qualname__
    findings = []
    for column in columns:
        if column not in fields:
            findings.append(Finding.unknown(f"there is no field {column!r} to partition by", name, column, fields))
        elif not _may_name_folders(fields[column]):
            findings.append(
                Finding(
                    f"the field {column!r} of {name} cannot name folders",
                    got=hints.text_of(fields[column]),
                    expected="str, int, bool, date, an enum or a Literal of text or integers; each may be None",
                    next_step="give the class a field of such a type, as with the date of a datetime",
                )
            )
    if not findings and set(columns) >= fields.keys():
        findings.append(Finding(f"no field of {name} is left for the files", next_step="partition by fewer fields"))
    return findings


def _may_name_folders(annotation: Any) -> bool:
    kinds = [kind for kind in hints.members(annotation) if kind is not hints.NONE_TYPE]
    if len(kinds) != 1:
        return False
    kind = kinds[0]
    if get_origin(kind) is Literal:
        return {type(choice) for choice in get_args(kind)} in ({str}, {int})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return not issubclass(kind, enum.Flag)
    return kind in (str, int, bool, date)


def folder_of(values: Mapping[str, Any]) -> str:
    """The folder of rows with these values of their columns, below the sink's.

    Raises ValueError, with the reason, for a value that no folder's name can hold.
    """
    names = [f"{_escaped(column)}={_text_of(column, value)}" for column, value in values.items()]
    for column, name in zip(values, names, strict=True):
        if len(name.encode()) > LONGEST_NAME:
            raise ValueError(
                f"{column}: the name of its folder has {len(name.encode())} bytes, and may have {LONGEST_NAME}"
            )
    folder = "/".join(names)
    if len(folder.encode()) > _LONGEST_PATH:
        raise ValueError(f"the names of its folders have {len(folder.encode())} bytes, and may have {_LONGEST_PATH}")
    return folder


def divide(table: pa.Table, columns: Sequence[str], most: int) -> tuple[list[Part], list[RowError]]:
    """The rows of a table by the values of columns, and those that no folder can hold.

    Args:
        table: at least one row.
        columns: of it.
        most: partitions; rows of further ones are refused. They are counted in the order of their first rows.
    """
    import numpy as np

    from tupletree.data.columns import distinct_rows

    table = table.combine_chunks()
    (keys,) = table.select(list(columns)).to_batches()
    codes, first = distinct_rows(keys, columns)
    order, ends = np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))
    types = {name: str(table.schema.field(name).type) for name in columns}
    # All rows are moved once, side by side: taking those of each part for itself would look at all of them each time.
    sides = table.drop_columns(list(columns)).take(_array(order))
    sides = sides.replace_schema_metadata({**(table.schema.metadata or {}), KINDS: msgspec.json.encode(types)})
    parts: list[Part] = []
    faults: list[RowError] = []
    for values, start, end in zip(keys.take(_array(first)).to_pylist(), [0, *ends[:-1]], ends, strict=True):
        rows = order[start:end]
        folder = reason = ""
        try:
            folder = folder_of(values)
        except ValueError as error:
            reason = str(error)
        if not reason and len(parts) == most:
            reason = f"there are rows of more than {counted(most, 'partition')} at once"
        if reason:
            faults += [RowError(at, reason, "ValueError") for at in rows.tolist()]
        else:
            parts.append(Part(folder, rows, sides.slice(start, end - start)))
    return parts, sorted(faults, key=lambda fault: fault.position)


def values_of_folders(folders: Sequence[str], metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    """The values that the names of folders hold, of the types that a file in them has noted; else text."""
    types = msgspec.json.decode((metadata or {}).get(KINDS, b"{}"), type=dict[str, str])
    found: dict[str, Any] = {}
    for folder in folders:
        column, sign, text = folder.partition("=")
        if sign:
            name = unquote(column)
            found[name] = None if text == NULL else _READ.get(types.get(name, ""), str)(unquote(text))
    return found


def folders_with_files(folder: Path) -> Iterator[Path]:
    """The folder, and those of partitions in and below it, by name."""
    yield folder
    for below in sorted(folder.iterdir()):
        if "=" in below.name and not below.name.startswith(".") and below.is_dir():
            yield from folders_with_files(below)


def _text_of(column: str, value: Any) -> str:
    if value is None:
        return NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)  # a date is 2026-11-29
    if text in ("", NULL):
        raise ValueError(f"{column}: readers take the folder of the text {text!r} for NULL")
    return _escaped(text)


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _array(positions: Any) -> Any:
    import pyarrow as pa

    return pa.array(positions, pa.int64())


_READ: dict[str, Any] = {"int64": int, "bool": partial(str.__eq__, "true"), "date32[day]": date.fromisoformat}
