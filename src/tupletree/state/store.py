"""The store: one task's state during one run, as a committed version to read and a candidate segment to write.

Reads and writes cost by the keys that a run touches. Segments stay open in the process from run to run, since they
never change; which of them count is given again for each run. Refuses to know epochs, Spark and verdicts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tupletree.errors import CheckpointError, ProcessingError
from tupletree.routing.hashing import KEY_GROUPS
from tupletree.state.cells import CLEARED
from tupletree.state.encoding import KeyEncoding, ValueEncoding
from tupletree.state.paged import PAGE, Positions
from tupletree.state.segments import (
    Binary,
    Found,
    Records,
    Segment,
    SegmentHeader,
    Slots,
    binary_of,
    lengths,
    merge,
    parts_of,
    slot_range,
    slots_of,
    write_segment,
)
from tupletree.state.versions import StateFile, newest_to_merge
from tupletree.topology import hints
from tupletree.topology.changes.shapes import fits, shape_changes, shape_of
from tupletree.topology.streams import spelled

OPEN_AT_MOST = 512
"""Segments that a process keeps open: an open one costs an address range, not memory."""


class OpenSegments:
    """Segments that this process has open, the one used longest ago first."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, Segment] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: Path) -> Segment:
        """The open segment. Raises CheckpointError if it is missing or damaged."""
        segment = self._open.get(path)
        if segment is None:
            segment = self._open[path] = Segment(path)
            while len(self._open) > OPEN_AT_MOST:
                self._open.popitem(last=False)
        self._open.move_to_end(path)
        return segment

    def keep_only(self, folder: Path, names: Iterable[str]) -> None:
        """Release a component's segments that no version names any more, or they would keep their disk space."""
        wanted = set(names)
        for path in [path for path in self._open if path.parent == folder and path.name not in wanted]:
            del self._open[path]


class StateCodec:
    """What the state of one component looks like as bytes.

    Args:
        component: its name.
        key_types: declared types of the key fields, of every input.
        value_type: declared type of the values.
        is_keyed: whether it is divided by key groups, or by tasks.
    """

    def __init__(self, component: str, key_types: Sequence[Any], value_type: Any, *, is_keyed: bool = True) -> None:
        self.component = component
        self.is_keyed = is_keyed
        self.keys = KeyEncoding(key_types)
        self._value_type = value_type
        self._values = ValueEncoding(value_type)
        self._key_texts = [spelled(kind) for kind in key_types]
        self._value_text = spelled(value_type)
        self._shape = shape_of(value_type)
        self._fitting: list[tuple[dict[str, Any], bool]] = [(self._shape, True)]

    @property
    def form(self) -> str:
        """How values are written: see `ValueEncoding.form`."""
        return self._values.form

    def header(self) -> SegmentHeader:
        """The header of a segment to be written."""
        return SegmentHeader(
            component=self.component,
            is_keyed=self.is_keyed,
            key_groups=KEY_GROUPS,
            key_types=self._key_texts,
            value_type=self._value_text,
            count=0,
            shape=self._shape,
            form=self._values.form,
        )

    def check(self, header: SegmentHeader, where: str) -> None:
        """Raise CheckpointError if a segment holds values that cannot be read as what is declared."""
        # Not the text: equal ones do not say that fields are stored under the same names.
        if not self._fits(header.shape):
            raise CheckpointError(
                f"the state of {self.component!r} was written with another value type",
                where=where,
                got=self._difference(header),
                expected=self._value_text,
                next_step="go back to the old type, or start with a fresh --state-dir",
            )

    def _difference(self, header: SegmentHeader) -> str:
        changes = shape_changes(header.shape, self._shape)
        places = [f"{one.what}: {one.was}, now {one.now}" for one in changes if one.kind == "changed" and one.what]
        return f"{header.value_type} ({'; '.join(places)})" if places else header.value_type

    def _fits(self, shape: dict[str, Any]) -> bool:
        """Of the few shapes that segments have: each is judged once."""
        for known, fitting in self._fitting:
            if known == shape:
                return fitting
        self._fitting.append((shape, fits(shape, self._shape)))
        return self._fitting[-1][1]

    def encode(self, values: list[Any]) -> list[bytes]:
        """Values as bytes. Raises ProcessingError if one of them could not be read back as it is."""
        try:
            return self._values.encode(values)
        except Exception as error:
            raise ProcessingError(
                f"a value of the state of {self.component!r} cannot be stored",
                got=f"{type(error).__name__}: {error}",
                expected=hints.text_of(self._value_type),
                next_step="set a value of the declared type, or declare the type that is meant",
            ) from error

    def decode(self, values: Binary, where: str, form: str = "") -> list[Any]:
        """Values of a segment, in the form that its header says.

        Raises CheckpointError if they do not fit the declared type.
        """
        ends, data = parts_of(values)
        try:
            return self._values.decode_form(form, len(values), data[int(ends[0]) : int(ends[-1])])
        except (msgspec.MsgspecError, ValueError, TypeError, LookupError) as error:
            raise CheckpointError(
                f"the state of {self.component!r} does not fit its declared types",
                where=where,
                got=str(error),
                next_step="go back to the old types, or start with a fresh --state-dir",
            ) from error

    def in_form(self, records: Records, form: str, where: str) -> Records:
        """Records of a segment as they are written now: a segment has one form."""
        if form == self._values.form or not len(records):
            return records
        alive = lengths(records.values) > 0
        values = iter(self.encode(self.decode(records.values.filter(pa.array(alive)), where, form)))
        written = [next(values) if lives else b"" for lives in alive.tolist()]
        return replace(records, values=binary_of(written))


@dataclass(frozen=True)
class WrittenSegment:
    """A candidate: the segment, the older ones that it stands for, and what it took to get there."""

    file: StateFile
    merged: list[str]


class TaskStore:
    """See the module docstring.

    Args:
        folder: where the component's segments are.
        files: the committed version as far as it concerns the task, oldest first.
        groups: the key groups that the task owns; of task state, its index.
        codec: what the component's state looks like.
        now_s: what expired by then is not there, since the Unix epoch.
        ttl_s: how long what is written now lasts; None is for ever.
        segments: where segments stay open.
    """

    def __init__(
        self,
        folder: Path,
        files: Sequence[StateFile],
        groups: range,
        codec: StateCodec,
        *,
        now_s: float,
        ttl_s: float | None,
        segments: OpenSegments,
    ) -> None:
        self._folder = folder
        self._files = list(files)
        self._groups = groups
        self._codec = codec
        self._now_s = now_s
        self._expires_s = None if ttl_s is None else now_s + ttl_s
        self._segments = [segments.get(folder / file.name) for file in files]
        for segment, file in zip(self._segments, files, strict=True):
            codec.check(segment.header, str(folder / file.name))
        self._pages_before = sum(segment.pages_read for segment in self._segments)
        self.rows_read = 0  # records found by `load` and its like

    @property
    def bytes_read(self) -> int:
        """How much of the version this run has read so far, in whole pages."""
        return PAGE * (sum(segment.pages_read for segment in self._segments) - self._pages_before)

    def load(self, keys: list[Any]) -> dict[Any, Any]:
        """The stored values of those of these keys that have one; they are the caller's own.

        Raises:
            CheckpointError: a segment is damaged, or holds what does not fit the declared type.
        """
        return dict(self._look_up(keys, raw=False))

    def _look_up(self, keys: list[Any], *, raw: bool) -> list[tuple[Any, Any]]:
        """Keys with what is stored of them, as values or, `raw`, as bytes."""
        if not keys or not self._segments:
            return []
        stored, hashes = self._codec.keys.encode(keys)
        slots = slots_of(hashes)
        open_: Positions = np.argsort(slots, kind="stable")
        packed = binary_of(stored).take(pa.array(open_))
        slots = slots[open_]
        found: list[tuple[Any, Any]] = []
        for segment, file in zip(reversed(self._segments), reversed(self._files), strict=True):
            here = self._find(segment, file, slots, packed)
            if not len(here.asked):
                continue
            alive = lengths(here.values) > 0
            if here.expires is not None:
                alive &= here.expires > self._now_s
            asked = open_[here.asked[alive]].tolist()
            values = here.values.filter(pa.array(alive))
            where = str(self._folder / file.name)
            got = values.to_pylist() if raw else self._codec.decode(values, where, segment.header.form)
            self.rows_read += len(asked)
            found += zip([keys[one] for one in asked], got, strict=True)
            rest = np.ones(len(open_), dtype=bool)
            rest[here.asked] = False
            if not rest.any():
                break
            open_, slots, packed = open_[rest], slots[rest], packed.filter(pa.array(rest))
        return found

    def _find(self, segment: Segment, file: StateFile, slots: Slots, packed: Binary) -> Found:
        """Look keys up in a segment, but for those of groups that it does not count for any more."""
        ours = self._part_of(file)
        if ours == self._groups:
            return segment.find(slots, packed, self._codec.keys.same)
        first, end = slot_range(ours, slots)
        found = segment.find(slots[first:end], packed.slice(first, end - first), self._codec.keys.same)
        return replace(found, asked=found.asked + first)

    def _part_of(self, file: StateFile) -> range:
        """Those of the task's groups that a segment counts for."""
        return range(max(file.first_group, self._groups.start), min(file.end_group, self._groups.stop))

    def encode(self, changed: Mapping[Any, Any]) -> dict[Any, bytes]:
        """What a run changed as bytes, `CLEARED` as none; values that are stored already are left out.

        Raises:
            ProcessingError: a value does not fit the declared type, or would not come back as it is.
        """
        keys = [key for key, value in changed.items() if value is not CLEARED]
        encoded = dict(zip(keys, self._codec.encode([changed[key] for key in keys]), strict=True))
        return {key: encoded.get(key, b"") for key in changed}

    def without_unchanged(self, encoded: Mapping[Any, bytes], keys: list[Any]) -> dict[Any, bytes]:
        """Leave out those of `keys` whose value is stored already, byte by byte: they were only read."""
        same = {key for key, text in self._look_up(keys, raw=True) if text == encoded[key]}
        return {key: text for key, text in encoded.items() if key not in same}

    def write(self, name: str, encoded: Mapping[Any, bytes]) -> WrittenSegment:
        """Write a candidate that holds these changes, and what of the version is due to be merged with them."""
        keys, hashes = self._codec.keys.encode(list(encoded))
        records = Records.of(slots_of(hashes), keys, list(encoded.values()), self._expires_s)
        oldest = len(self._files) - newest_to_merge(self._files, len(records), self._now_s)
        merged = self._files[oldest:]
        runs = [
            self._codec.in_form(
                segment.records(self._part_of(file) if self._codec.is_keyed else range(KEY_GROUPS)),
                segment.header.form,
                str(self._folder / file.name),
            )
            for segment, file in zip(self._segments[oldest:], merged, strict=True)
        ]
        records = merge([*runs, records], self._now_s, self._codec.keys.same, is_whole=not oldest)
        size = write_segment(self._folder / name, self._codec.header(), records)
        half = None if records.expires is None or not len(records) else float(np.median(records.expires))
        if half is not None and not np.isfinite(half):
            half = None
        file = StateFile(name, self._groups.start, self._groups.stop, len(records), size, half)
        return WrittenSegment(file, [one.name for one in merged])
