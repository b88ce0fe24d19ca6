"""The contents of a version: every key with its value, as it is at one moment, a key group at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tupletree.routing.hashing import KEY_GROUPS
from tupletree.state.encoding import KeyEncoding
from tupletree.state.segments import Records, Segment, merge
from tupletree.state.versions import StateFile


@dataclass(frozen=True)
class StateEntry:
    """One key of a component's state.

    Attributes:
        group: its key group; of task state, the task's index.
        key, value: as they are declared, or plain data where the types are not declared.
        expires_s: when it expires, since the Unix epoch; None if it does not.
    """

    group: int
    key: Any
    value: Any
    expires_s: float | None


def entries(
    segments: Mapping[str, Segment],
    version: Sequence[StateFile],
    *,
    now_s: float,
    decode_key: Callable[[bytes], Any] | None = None,
    decode_value: Callable[[bytes], Any] = msgspec.msgpack.decode,
) -> Iterator[StateEntry]:
    """Read a version; what expired is not in it.

    Args:
        segments: the component's segments, by file name.
        version: which of them count, oldest first.
        now_s: what expired by then is left out.
        decode_key: a stored key as what it stands for; left out, as plain data.
        decode_value: the same for a value.

    Raises:
        CheckpointError: a segment is damaged.
    """
    key_of = decode_key or KeyEncoding([]).plain
    for group, records in _groups(segments, version, now_s):
        expires = [None] * len(records) if records.expires is None else records.expires.tolist()
        for key, value, expires_s in zip(records.keys.to_pylist(), records.values.to_pylist(), expires, strict=True):
            lasts = expires_s is None or expires_s == float("inf")
            yield StateEntry(group, key_of(key), decode_value(value), None if lasts else expires_s)


def count(segments: Mapping[str, Segment], version: Sequence[StateFile], *, now_s: float) -> int:
    """How many keys a version has; see `entries`."""
    return sum(len(records) for _, records in _groups(segments, version, now_s))


def _groups(
    segments: Mapping[str, Segment], version: Sequence[StateFile], now_s: float
) -> Iterator[tuple[int, Records]]:
    """The records of each key group, or task."""
    is_keyed = all(segment.header.is_keyed for segment in segments.values())
    groups = range(KEY_GROUPS) if is_keyed else sorted({file.first_group for file in version})
    for group in groups:
        runs: list[Records] = [
            segments[file.name].records(range(group, group + 1) if is_keyed else range(KEY_GROUPS))
            for file in version
            if group in file.groups
        ]
        if not runs:
            continue
        yield group, merge(runs, now_s, KeyEncoding.same, is_whole=True)
