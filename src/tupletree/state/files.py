"""Versioned state files: what a task's run changed becomes one immutable file, sorted by key group.

A version of a task's state is a list of such files, oldest first: a base and deltas on top. Nothing is ever
rewritten, so any committed version stays readable until it is swept. Key groups are recorded so that a later change
of parallelism can deal them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tupletree.durable import pack, read_container, write_file
from tupletree.errors import CheckpointError
from tupletree.state.cells import CLEARED

__all__ = ["KEY_GROUPS", "StateCodec", "StateFile", "VersionCache", "fold", "needs_base"]

KEY_GROUPS = 32
MAX_DELTAS = 32


class StateFile(msgspec.Struct, frozen=True, array_like=True):
    """One file of a version, as the settle log names it: its name, how many keys it holds, and if it is a base."""

    name: str
    keys: int
    is_base: bool


class _Header(msgspec.Struct):
    component: str
    task_index: int
    is_base: bool
    key_groups: int
    value_type: str
    groups: list[tuple[int, int, int]]  # (key group, offset, length) of its section


class StateCodec:
    """Writes and reads the state files of one component.

    Args:
        component: its name.
        key_type, value_type: types of the canonical keys and of the values, as msgspec understands them.
        group_of: canonical key → key group.
        canonical: puts a decoded key back into canonical form (one NaN, not many).
    """

    def __init__(
        self,
        component: str,
        key_type: Any,
        value_type: Any,
        group_of: Callable[[Any], int],
        canonical: Callable[[Any], Any] | None = None,
    ) -> None:
        self._component = component
        self._value_type = str(value_type)
        self._group_of = group_of
        self._canonical = canonical
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(tuple[list[key_type], list[value_type], list[key_type]])

    def write(self, path: Path, task_index: int, changed: Mapping[Any, Any], *, is_base: bool) -> StateFile:
        """Write what changed (or everything, for a base) and fsync it. Raises TypeError for an unencodable value."""
        by_group: dict[int, tuple[list[Any], list[Any], list[Any]]] = {}
        group_of = self._group_of
        for key, value in changed.items():
            group = group_of(key)
            section = by_group.get(group)
            if section is None:
                section = by_group[group] = ([], [], [])
            if value is CLEARED:
                section[2].append(key)
            else:
                section[0].append(key)
                section[1].append(value)
        groups: list[tuple[int, int, int]] = []
        sections: list[bytes] = []
        offset = 0
        for group in sorted(by_group):
            encoded = self._encoder.encode(by_group[group])
            groups.append((group, offset, len(encoded)))
            sections.append(encoded)
            offset += len(encoded)
        header = _Header(self._component, task_index, is_base, KEY_GROUPS, self._value_type, groups)
        write_file(path, pack(header, sections))
        return StateFile(path.name, len(changed), is_base)

    def read_into(self, path: Path, data: dict[Any, Any]) -> None:
        """Apply one file to `data`. Raises CheckpointError for a missing, damaged or incompatible file."""
        header, body = read_container(path, _Header)
        if header.value_type != self._value_type:
            raise CheckpointError(
                f"the state of {self._component!r} was written with another value type",
                where=str(path),
                got=header.value_type,
                expected=self._value_type,
                next_step="go back to the old type, or start with a fresh --state-dir",
            )
        if header.is_base:
            data.clear()
        for _, offset, length in header.groups:
            try:
                keys, values, cleared = self._decoder.decode(body[offset : offset + length])
            except msgspec.MsgspecError as error:
                raise CheckpointError(
                    f"the state of {self._component!r} does not fit its declared types",
                    where=str(path),
                    got=str(error),
                    next_step="go back to the old types, or start with a fresh --state-dir",
                ) from error
            if self._canonical is not None:
                keys = list(map(self._canonical, keys))
                cleared = list(map(self._canonical, cleared))
            data.update(zip(keys, values, strict=True))
            for key in cleared:
                data.pop(key, None)


def fold(data: dict[Any, Any], changed: Mapping[Any, Any]) -> None:
    """Apply what a run changed to the version it started from."""
    if CLEARED in changed.values():
        for key, value in changed.items():
            if value is CLEARED:
                data.pop(key, None)
            else:
                data[key] = value
    else:
        data.update(changed)


def needs_base(files: Sequence[StateFile], changed_keys: int) -> bool:
    """Whether the next file should hold everything: once the deltas outweigh their base.

    So writing stays proportional to change, and reading to size (log-structured merge; O'Neil et al. 1996).
    """
    if not files:
        return True
    base = files[0].keys if files[0].is_base else 0
    deltas = sum(file.keys for file in files if not file.is_base) + changed_keys
    return deltas > base or len(files) >= MAX_DELTAS


class _Cached:
    def __init__(self, files: tuple[StateFile, ...], data: dict[Any, Any]) -> None:
        self.files = files
        self.data = data
        self.candidate: StateFile | None = None
        self.candidate_changed: Mapping[Any, Any] = {}


class VersionCache:
    """Committed versions that a process has read, validated by file names at each use.

    A worker cannot count on seeing the same task again, so a version is never trusted: it is reused if it is the one
    asked for, caught up if it is an older one of the same line, and read anew otherwise.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[str, int], _Cached] = {}

    def load(self, directory: Path, task_index: int, files: Iterable[StateFile], codec: StateCodec) -> dict[Any, Any]:
        """The version's key → value. The caller must not change it."""
        wanted = tuple(files)
        place = (str(directory), task_index)
        entry = self._entries.get(place)
        if entry is not None and entry.files != wanted:
            self._catch_up(entry, wanted)
        if entry is None or entry.files != wanted[: len(entry.files)]:
            entry = self._entries[place] = _Cached((), {})
        for file in wanted[len(entry.files) :]:
            codec.read_into(directory / file.name, entry.data)
        entry.files = wanted
        entry.candidate = None
        return entry.data

    @staticmethod
    def _catch_up(entry: _Cached, wanted: tuple[StateFile, ...]) -> None:
        """If the candidate this process wrote was the one committed, apply it from memory."""
        candidate = entry.candidate
        if candidate is None:
            return
        after = (candidate,) if candidate.is_base else (*entry.files, candidate)
        if wanted[: len(after)] == after:
            fold(entry.data, entry.candidate_changed)
            entry.files = after

    def offer(self, directory: Path, task_index: int, candidate: StateFile, changed: Mapping[Any, Any]) -> None:
        """Remember the candidate that a run wrote on top of the loaded version; it may be committed or not."""
        entry = self._entries[str(directory), task_index]
        entry.candidate = candidate
        entry.candidate_changed = changed
