"""Versioned state files: what a task's run changed becomes one immutable file, sorted by key group.

A version of a task's state is a list of such files, oldest first: a base and deltas on top. Nothing is ever
rewritten, so any committed version stays readable until it is swept. Key groups are recorded so that a later change
of parallelism can deal them anew. How keys and values are written is `state.encoding`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tupletree.durable import pack, read_container, write_file
from tupletree.errors import CheckpointError, ProcessingError
from tupletree.hashing import KEY_GROUPS, key_group
from tupletree.state.cells import CLEARED
from tupletree.state.encoding import KeyEncoding, ValueEncoding
from tupletree.topology import hints
from tupletree.topology.streams import spelled

__all__ = ["StateCodec", "StateFile", "VersionCache", "fold", "needs_base"]

MAX_FILES = 32
"""Files of one version: each is opened by a worker that reads it anew, and named by every settle."""


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
        key_types: declared types of the key fields, of every input.
        value_type: declared type of the values.
    """

    def __init__(self, component: str, key_types: Sequence[Any], value_type: Any) -> None:
        self._component = component
        self._value_type = value_type
        self._value_text = spelled(value_type)
        self._keys = KeyEncoding(key_types)
        self._values = ValueEncoding(value_type)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(tuple[list[Any], msgspec.Raw, list[Any]]).decode

    def as_stored(self, changed: Mapping[Any, Any]) -> dict[Any, Any]:
        """What a run changed as a later read of it will give it, so that memory and files never disagree.

        The values are copies: nobody else holds them.

        Raises:
            ProcessingError: a value does not fit the declared type, or would not come back as it is.
        """
        keys = [key for key, value in changed.items() if value is not CLEARED]
        values = [changed[key] for key in keys]
        try:
            read_back = self._values.read_back(values)
        except Exception as error:
            raise ProcessingError(
                f"a value of the state of {self._component!r} cannot be stored",
                got=f"{type(error).__name__}: {error}",
                expected=hints.text_of(self._value_type),
                next_step="set a value of the declared type, or declare the type that is meant",
            ) from error
        return {**changed, **dict(zip(keys, read_back, strict=True))}

    def write(self, path: Path, task_index: int, stored: Mapping[Any, Any], *, is_base: bool) -> StateFile:
        """Write a delta (with `CLEARED` for keys that go) or everything, as `as_stored` gave it, and fsync it."""
        by_group: dict[int, tuple[list[Any], list[Any], list[Any]]] = {}
        for key, value in stored.items():
            group = key_group(key)
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
            keys, values, cleared = by_group[group]
            content = (self._keys.plain(keys), msgspec.Raw(self._values.encode(values)), self._keys.plain(cleared))
            encoded = self._encode(content)
            groups.append((group, offset, len(encoded)))
            sections.append(encoded)
            offset += len(encoded)
        header = _Header(self._component, task_index, is_base, KEY_GROUPS, self._value_text, groups)
        write_file(path, pack(header, sections))
        return StateFile(path.name, len(stored), is_base)

    def read_into(self, path: Path, data: dict[Any, Any]) -> None:
        """Apply one file to `data`. Raises CheckpointError for a missing, damaged or incompatible file."""
        header, body = read_container(path, _Header)
        if header.value_type != self._value_text:
            raise CheckpointError(
                f"the state of {self._component!r} was written with another value type",
                where=str(path),
                got=header.value_type,
                expected=self._value_text,
                next_step="go back to the old type, or start with a fresh --state-dir",
            )
        if header.is_base:
            data.clear()
        for _, offset, length in header.groups:
            try:
                keys, encoded, cleared = self._decode(body[offset : offset + length])
                values = self._values.decode(encoded)
                data.update(zip(self._keys.canonical(keys), values, strict=True))
                for key in self._keys.canonical(cleared):
                    data.pop(key, None)
            except (msgspec.MsgspecError, ValueError, TypeError, LookupError) as error:
                raise CheckpointError(
                    f"the state of {self._component!r} does not fit its declared types",
                    where=str(path),
                    got=str(error),
                    next_step="go back to the old types, or start with a fresh --state-dir",
                ) from error


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
    """Whether the next file should hold everything.

    It should once the deltas outweigh their base, so that writing stays proportional to change and reading to size
    (the log-structured merge argument, O'Neil et al. 1996); and once there are `MAX_FILES`, which costs at most one
    write of everything in so many epochs.
    """
    if not files:
        return True
    base = files[0].keys if files[0].is_base else 0
    deltas = sum(file.keys for file in files if not file.is_base) + changed_keys
    return deltas > base or len(files) >= MAX_FILES


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
        entry.candidate = None
        for file in wanted[len(entry.files) :]:
            try:
                codec.read_into(directory / file.name, entry.data)
            except BaseException:
                del self._entries[place]  # it may hold half a file
                raise
        entry.files = wanted
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
