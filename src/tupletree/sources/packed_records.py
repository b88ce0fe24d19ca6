"""The records of a source of many files, and how they are stored in its position.

Owns a list of records that is stored with every epoch although it may have 100,000 of them: those that do not change
any more are packed once. It refuses to know what is recorded.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from tupletree.errors import CheckpointError

R = TypeVar("R", bound=msgspec.Struct)

SEALED = 64
"""So many records are stored together, packed once and not for each snapshot."""


class PackedRecords(Generic[R]):
    """Records in the order in which they were added.

    Attributes:
        records: to be read; see `append`, `changed` and `forget` for what changes them.

    Args:
        kind: class of the records.
        has_relative: whether they name files relative to the folder of this process.
    """

    def __init__(self, kind: type[R], *, has_relative: bool = False) -> None:
        self._kind = kind
        self._folder = str(Path.cwd()) if has_relative else ""
        self.records: list[R] = []
        self._place_of: dict[int, int] = {}
        self._sealed: dict[int, str] = {}  # by the place of the first record
        self._changed: set[int] = set()  # blocks, since the last snapshot
        self._plain: dict[int, Any] = {}

    def append(self, record: R) -> None:
        """Add a record."""
        self._place_of[id(record)] = len(self.records)
        self.records.append(record)
        self.changed(record)

    def changed(self, record: R) -> None:
        """Must be called whenever a record was changed."""
        place = self._place_of.get(id(record))
        if place is not None:
            start = place // SEALED * SEALED
            self._sealed.pop(start, None)
            self._plain.pop(id(record), None)
            self._changed.add(start)

    def forget(self, records: Collection[R]) -> None:
        """Remove records."""
        forgotten = {id(record) for record in records}
        self._set([record for record in self.records if id(record) not in forgotten])

    def snapshot(self) -> dict[str, Any]:
        """The records, as JSON-compatible data: those that change as they are, the others packed in blocks."""
        blocks: list[str | list[Any]] = []
        for start in range(0, len(self.records), SEALED):
            records = self.records[start : start + SEALED]
            sealed = self._sealed.get(start)
            if sealed is None and len(records) == SEALED and start not in self._changed:
                sealed = self._sealed[start] = _packed(records)
            blocks.append(sealed if sealed is not None else [*map(self._plain_record, records)])
        self._changed.clear()
        return {"files": blocks, "folder": json.dumps(self._folder)}

    def _plain_record(self, record: R) -> Any:
        plain = self._plain.get(id(record))
        if plain is None:
            plain = self._plain[id(record)] = msgspec.to_builtins(record)
        return plain

    def restore(self, position: Mapping[str, Any]) -> None:
        """Restore the records of a snapshot.

        Raises:
            CheckpointError: it is none, or it was taken in another folder, and names are relative.
        """
        try:
            folder = plain_name(position["folder"])
            self._set([record for block in position["files"] for record in self._unpacked(block)])
        except UNREADABLE as error:
            raise unreadable_position(error) from error
        if folder and self._folder and folder != self._folder and Path(folder).is_dir():
            raise CheckpointError(
                "relative paths of files mean others than when the run began",
                got=f"a start in {self._folder}",
                expected=f"one in {folder}",
                next_step="start it in that folder, or give absolute paths from the first start on",
            )

    def _unpacked(self, block: str | list[Any]) -> list[R]:
        rows = json.loads(zlib.decompress(base64.b85decode(block))) if isinstance(block, str) else block
        return [msgspec.convert(row, self._kind) for row in rows]

    def _set(self, records: list[R]) -> None:
        self.records = records
        self._sealed, self._plain = {}, {}
        self._place_of = {id(record): place for place, record in enumerate(records)}


UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, zlib.error, msgspec.ValidationError)
"""What the parts of a position that is none raise."""


def unreadable_position(error: Exception) -> CheckpointError:
    """The error for a position that raised one of `UNREADABLE`."""
    return CheckpointError(
        "the position of a source of files cannot be read",
        got=f"{type(error).__name__}: {error}",
        expected="what this version wrote",
        next_step="start with a fresh --state-dir",
    )


def plain_name(name: str) -> str:
    """Undo `json.dumps` of a name, which keeps a position ASCII. Raises TypeError, ValueError."""
    text = json.loads(name)
    if not isinstance(text, str):
        raise TypeError("a name is no text")
    return text


def _packed(records: Sequence[msgspec.Struct]) -> str:
    """Records as text. JSON escapes what is not ASCII, so that names may hold lone surrogates."""
    text = json.dumps([msgspec.to_builtins(record) for record in records], separators=(",", ":"))
    return base64.b85encode(zlib.compress(text.encode("ascii"))).decode("ascii")
