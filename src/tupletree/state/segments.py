"""Segments: immutable sorted tables of keys and values as bytes, found by hash, merged without being decoded.

A record is a slot (its key's hash, turned so that key groups lie one after the other), the key, the value and, with a
time to live, when it expires. An empty value says that the key was removed. A segment is a paged file of such records
in order of their slots, so that a run of key groups is a slice, a lookup a binary search that verifies only the pages
it lands on, and a merge one sort. Owns bytes; what they mean is `encoding`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tupletree.durable import damaged, write_file
from tupletree.errors import CheckpointError
from tupletree.routing.hashing import KEY_GROUPS
from tupletree.state.paged import PAGE, PagedFile, Positions, paged

Slots = np.ndarray[Any, np.dtype[np.uint64]]
Times = np.ndarray[Any, np.dtype[np.float64]]
Binary = Any
"""An Arrow array of binary or large_binary."""

SameKey = Callable[[bytes, bytes], bool]

_GROUP_BITS = np.uint64((KEY_GROUPS - 1).bit_length())
_GROUP_SHIFT = np.uint64(64) - _GROUP_BITS
_SLOTS_PER_PAGE = PAGE // 8


class SegmentHeader(msgspec.Struct, kw_only=True):
    """The header of a segment.

    Attributes:
        component: whose state this is.
        is_keyed: whether it is divided by key groups, or by tasks.
        key_groups: how many key groups there are.
        key_types, value_type: the declared types, as texts.
        count: records.
        shape: what the type of the values is made of (`topology.changes.shapes`).
        form: how they are written (`ValueEncoding.form`).
        fences: the slot at the start of each page of slots, packed u64.
        sections: name → (offset, length) in the body: `slots`, `expires`, and offsets and bytes of keys and values.
        wide: which of keys and values need 64-bit offsets.
    """

    component: str
    is_keyed: bool
    key_groups: int
    key_types: list[str]
    value_type: str
    count: int
    shape: dict[str, Any] = {}
    form: str = ""
    fences: bytes = b""
    sections: dict[str, tuple[int, int]] = {}
    wide: list[str] = []


@dataclass(frozen=True)
class Records:
    """Sorted records in memory; columns that run in step. `expires` is None where nothing ever expires."""

    slots: Slots
    keys: Binary
    values: Binary
    expires: Times | None = None

    def __len__(self) -> int:
        return len(self.slots)

    @classmethod
    def of(cls, slots: Slots, keys: Sequence[bytes], values: Sequence[bytes], expires_s: float | None) -> Records:
        """Records in any order, one per key, that all expire at one time."""
        order = np.argsort(slots, kind="stable")
        picked = pa.array(order)
        expires = None if expires_s is None else np.full(len(slots), expires_s)
        return cls(slots[order], binary_of(keys).take(picked), binary_of(values).take(picked), expires)

    def at(self, positions: Any) -> Records:
        """The records at these positions."""
        picked = pa.array(positions)
        expires = None if self.expires is None else self.expires[positions]
        return Records(self.slots[positions], self.keys.take(picked), self.values.take(picked), expires)


@dataclass(frozen=True)
class Found:
    """What a lookup found: which of the slots asked for, and the values' bytes and expiry in step with them."""

    asked: Positions
    values: Binary
    expires: Times | None


def slots_of(hashes: Sequence[int]) -> Slots:
    """Hashes of keys as slots: the key group, which is the hash's remainder, comes first."""
    array = np.array(hashes, dtype=np.uint64)
    return (array >> _GROUP_BITS) | (array << _GROUP_SHIFT)


def slot_range(groups: range, slots: Slots) -> tuple[int, int]:
    """Where the slots of a run of key groups begin and end in an ascending array."""
    ends = np.array([groups.start, groups.stop % KEY_GROUPS], dtype=np.uint64) << _GROUP_SHIFT
    first, end = np.searchsorted(slots, ends).tolist()
    return first, len(slots) if groups.stop >= KEY_GROUPS else end


def lengths(column: Binary) -> Positions:
    """The length of each item."""
    ends, _ = parts_of(column)
    sizes: Positions = np.diff(ends).astype(np.int64)
    return sizes


def parts_of(column: Binary) -> tuple[Any, memoryview]:
    """Where its items begin and end in its bytes, and the bytes."""
    width = _width(column)
    _, offsets, data = column.buffers()
    if offsets is None:  # empty
        return np.zeros(1, dtype=np.int64), memoryview(b"")
    ends = np.frombuffer(offsets, dtype=f"<i{width}")[column.offset : column.offset + len(column) + 1]
    return ends, memoryview(data) if data is not None else memoryview(b"")


def _width(column: Binary) -> int:
    return 8 if pa.types.is_large_binary(column.type) else 4


def binary_of(items: Sequence[bytes]) -> Binary:
    """Bytes as an Arrow array."""
    try:
        return pa.array(items, type=pa.binary())
    except (pa.ArrowInvalid, pa.ArrowCapacityError):  # two gigabytes and more
        return pa.array(items, type=pa.large_binary())


def merge(runs: Sequence[Records], now_s: float, same_key: SameKey, *, is_whole: bool) -> Records:
    """One table of several, oldest first: the newest record of each key stays.

    Args:
        runs: the tables.
        now_s: what expired by then is gone.
        same_key: whether two stored keys are one key; asked only of keys with one hash and other bytes.
        is_whole: there are no older tables, so that keys which were removed need no record.
    """
    wide = any(sum(column.nbytes for column in columns) >= 2**31 - 1 for columns in _columns(runs))
    kind = pa.large_binary() if wide else pa.binary()
    keys, values = (pa.concat_arrays([one.cast(kind) for one in columns]) for columns in _columns(runs))
    slots = np.concatenate([run.slots for run in runs])
    expires = None
    if any(run.expires is not None for run in runs):
        expires = np.concatenate([np.full(len(run), np.inf) if run.expires is None else run.expires for run in runs])
    order = np.argsort(slots, kind="stable")
    slots = slots[order]
    keep = np.ones(len(slots), dtype=bool)
    repeats = np.flatnonzero(slots[:-1] == slots[1:])
    if len(repeats):
        equal = pc.equal(keys.take(pa.array(order[repeats])), keys.take(pa.array(order[repeats + 1])))
        keep[repeats] = ~np.asarray(equal)
        _part_equal_slots(slots, keys, order, keep, repeats[~np.asarray(equal)], same_key)
    sizes = lengths(values)[order]
    gone = sizes == 0
    if expires is not None:
        gone |= expires[order] <= now_s
    if is_whole:
        keep &= ~gone
    kept = order[keep]
    values = values.take(pa.array(kept))
    if not is_whole and bool((gone & (sizes > 0)).any()):  # still needed, to hide older records
        values = pc.if_else(pa.array(gone[keep]), pa.scalar(b"", kind), values)
    return Records(slots[keep], keys.take(pa.array(kept)), values, None if expires is None else expires[kept])


def _columns(runs: Sequence[Records]) -> tuple[list[Binary], list[Binary]]:
    return [run.keys for run in runs], [run.values for run in runs]


def _part_equal_slots(
    slots: Slots, keys: Binary, order: Positions, keep: Any, unlike: Positions, same_key: SameKey
) -> None:
    """Among records of one slot whose keys differ as bytes: keep the newest of each key, one by one."""
    for slot in np.unique(slots[unlike]):
        start, end = np.searchsorted(slots, slot), np.searchsorted(slots, slot, side="right")
        newer: list[bytes] = []
        for position in range(int(end) - 1, int(start) - 1, -1):
            key = keys[int(order[position])].as_py()
            keep[position] = not any(same_key(key, other) for other in newer)
            newer.append(key)


def write_segment(path: Path, header: SegmentHeader, records: Records) -> int:
    """Write records as a segment, durably; returns its length in bytes."""
    sections: list[tuple[str, Any]] = [("slots", records.slots)]
    if records.expires is not None:
        sections.append(("expires", records.expires))
    for name, column in (("keys", records.keys), ("values", records.values)):
        ends, data = parts_of(column)
        if _width(column) == 8:
            header.wide.append(name)
        sections += [(f"{name}.offsets", ends - ends[0]), (name, data[int(ends[0]) : int(ends[-1])])]
    header.count = len(records)
    header.fences = records.slots[::_SLOTS_PER_PAGE].astype("<u8").tobytes()
    body: list[bytes | memoryview] = []
    offset = 0
    for name, section in sections:
        raw = memoryview(section).cast("B") if len(section) else memoryview(b"")
        header.sections[name] = (offset, len(raw))
        body += [raw, bytes(-len(raw) % 8)]
        offset += len(raw) + -len(raw) % 8
    pieces = paged(header, body)
    write_file(path, pieces)
    return sum(map(len, pieces))


class Segment:
    """An open segment. Raises CheckpointError wherever it meets damage."""

    def __init__(self, path: Path) -> None:
        self._file = PagedFile(path, SegmentHeader)
        header = self.header = self._file.content
        self._where = str(path)
        if header.key_groups != KEY_GROUPS:
            raise CheckpointError(
                "this state has another number of key groups",
                where=self._where,
                got=str(header.key_groups),
                expected=str(KEY_GROUPS),
                next_step="use the version of Tupletree that wrote it",
            )
        self._fences: Slots = np.frombuffer(header.fences, dtype="<u8")
        self._slots: Slots = self._column("slots", "<u8")
        self._expires: Times | None = self._column("expires", "<f8") if "expires" in header.sections else None
        self._keys = self._binary("keys")
        self._values = self._binary("values")

    def _column(self, name: str, kind: str) -> Any:
        start, length = self.header.sections[name]
        return np.frombuffer(self._file.body[start : start + length], dtype=kind)

    def _binary(self, name: str) -> Binary:
        offsets, data = (self.header.sections[one] for one in (f"{name}.offsets", name))
        kind, width = (pa.large_binary(), 8) if name in self.header.wide else (pa.binary(), 4)
        ends = offsets[0] + np.array([0, self.header.count]) * width  # Arrow looks at these at once
        self._file.verify(ends, ends + width)
        body = self._file.body
        buffers = [None, *(pa.py_buffer(body[start : start + length]) for start, length in (offsets, data))]
        return pa.Array.from_buffers(kind, self.header.count, buffers)

    @property
    def pages_read(self) -> int:
        """How many pages lookups and merges have read so far."""
        return self._file.pages_read

    def verify_all(self) -> None:
        """Verify every byte."""
        self._file.verify_all()

    def records(self, groups: range) -> Records:
        """All records of a run of key groups."""
        if groups.start <= 0 and groups.stop >= KEY_GROUPS:
            self._file.verify_all()
            return Records(self._slots, self._keys, self._values, self._expires)
        start, end = (self._group_start(group) for group in (groups.start, groups.stop))
        self._verify_rows(np.array([start]), np.array([end]))
        return Records(
            self._slots[start:end],
            self._keys.slice(start, end - start),
            self._values.slice(start, end - start),
            None if self._expires is None else self._expires[start:end],
        )

    def _group_start(self, group: int) -> int:
        if group >= KEY_GROUPS:
            return len(self._slots)
        return int(self._locate(np.array([np.uint64(group) << _GROUP_SHIFT], dtype=np.uint64))[0])

    def _locate(self, wanted: Slots) -> Positions:
        """The position of each of these slots, or where it would be.

        A search over an array that is not verified may end at a wrong place, so the place is checked: the fences, which
        are verified, say between which slots it must, and those pages are verified.
        """
        last = np.maximum(np.searchsorted(self._fences, wanted) - 1, 0)
        positions: Positions = np.searchsorted(self._slots, wanted)
        astray = (positions < last * _SLOTS_PER_PAGE) | (positions > (last + 1) * _SLOTS_PER_PAGE)
        if bool(astray.any()):
            self._file.verify_all()
            raise damaged(self._where, "its slots are not in order", "slots in ascending order")
        inside = np.minimum(positions, max(len(self._slots) - 1, 0))
        starts = np.concatenate([last * PAGE, inside * 8])
        self._file.verify(starts, starts + 8)
        return positions

    def _verify_rows(self, starts: Positions, ends: Positions) -> None:
        """Verify all columns of these ranges of rows."""
        sections, verify = self.header.sections, self._file.verify
        for name in ("slots", "expires"):
            if name in sections:
                verify(sections[name][0] + starts * 8, sections[name][0] + ends * 8)
        for name, column in (("keys", self._keys), ("values", self._values)):
            self._verify_binary(name, column, starts, ends)

    def _verify_binary(self, name: str, column: Binary, starts: Positions, ends: Positions) -> None:
        width = 8 if name in self.header.wide else 4
        base = self.header.sections[f"{name}.offsets"][0]
        self._file.verify(base + starts * width, base + (ends + 1) * width)
        offsets = np.frombuffer(column.buffers()[1], dtype=f"<i{width}")
        data = self.header.sections[name][0]
        self._file.verify(data + offsets[starts].astype(np.int64), data + offsets[ends].astype(np.int64))

    def find(self, slots: Slots, keys: Binary, same_key: SameKey) -> Found:
        """Look keys up.

        Args:
            slots: of the keys, ascending.
            keys: the keys in step with them, as they are stored.
            same_key: as for `merge`.
        """
        nothing = np.zeros(0, dtype=np.int64)
        if not len(self._slots) or not len(slots):
            return self._found(nothing, nothing)
        positions = self._locate(slots)
        there = self._slots[np.minimum(positions, len(self._slots) - 1)] == slots
        asked, rows = np.flatnonzero(there), positions[there]
        if not len(asked):
            return self._found(nothing, nothing)
        self._verify_binary("keys", self._keys, rows, rows + 1)
        wanted, stored = keys.take(pa.array(asked)), self._keys.take(pa.array(rows))
        if stored.type != wanted.type:
            wanted = wanted.cast(stored.type)
        if not stored.equals(wanted):
            rows = self._rows_of(asked, rows, slots, keys, same_key)
            asked, rows = asked[rows >= 0], rows[rows >= 0]
        return self._found(asked, rows)

    def _rows_of(self, asked: Positions, rows: Positions, slots: Slots, keys: Binary, same_key: SameKey) -> Positions:
        """The row of each key, looked for one by one among the records of its slot; -1 where it is not there."""
        found = np.full(len(rows), -1, dtype=np.int64)
        for place, (one, start) in enumerate(zip(asked.tolist(), rows.tolist(), strict=True)):
            row = start
            while row < len(self._slots):
                self._verify_rows(np.array([row]), np.array([row + 1]))
                if self._slots[row] != slots[one]:
                    break
                if same_key(self._keys[row].as_py(), keys[one].as_py()):
                    found[place] = row
                    break
                row += 1
        return found

    def _found(self, asked: Positions, rows: Positions) -> Found:
        self._verify_binary("values", self._values, rows, rows + 1)
        expires = None
        if self._expires is not None:
            base = self.header.sections["expires"][0]
            self._file.verify(base + rows * 8, base + rows * 8 + 8)
            expires = self._expires[rows]
        return Found(asked, self._values.take(pa.array(rows)), expires)
