"""A disk that forgets: after a crash of the machine, what was not synced may be gone, or there in part.

Works on a real folder. Keeps account of what `os.fsync` was called for: the content of a file, the names in a folder.
A change of names that was not synced happens or does not, as a whole where one rename or link makes it; content that
was not synced may be cut short. Folders themselves are durable at once.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

ALONE = frozenset({"lock"})
"""Empty files that must have no further link: those that are kept aside here are links. One is like the other."""

Names = dict[str, int]
"""Name → inode, of the files in a folder; 0 for what must have no further link."""


class Disk:
    """See the module docstring. As a context it takes the place of `os.fsync`, for the whole process.

    Args:
        root: the folder.
        aside: a folder on the same file system, for what the disk remembers.
        chance: what decides.
        before_sync: called before each sync; may raise.
    """

    def __init__(self, root: Path, aside: Path, chance: Random, before_sync: Callable[[], None]) -> None:
        self._root = root
        self._place = str(root)
        self._aside = aside
        self._chance = chance
        self._before_sync = before_sync
        self._content: dict[int, tuple[int, int]] = {}  # inode → size and time of change when it was synced
        self._names: dict[str, Names] = {}
        self._after = aside / "after"
        self._kept: set[int] = set()
        self._is_all_durable = False
        self._fsync = os.fsync

    def __enter__(self) -> Self:
        (self._aside / "inodes").mkdir(parents=True, exist_ok=True)
        os.fsync = self._sync  # type: ignore[assignment]  # it takes a handle, which is all that is passed here
        return self

    def __exit__(self, _k: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        os.fsync = self._fsync

    def _sync(self, handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")  # noqa: PTH115 - text, as names are: this is done for each sync
        if path != self._place and not path.startswith(f"{self._place}/"):
            return
        self._before_sync()
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            self._note_names(path)
        else:
            self._content[status.st_ino] = status.st_size, status.st_mtime_ns
            if path.rpartition("/")[2] not in ALONE:
                self._keep(path, status.st_ino)

    def _note_names(self, folder: str) -> None:
        names = self._names[folder] = _names_in(folder)
        for name, inode in names.items():
            if inode and inode not in self._kept:
                self._keep(f"{folder}/{name}", inode)

    def _keep(self, path: str, inode: int) -> None:
        """Keep a file, so that no other gets its inode: a name would seem to be the same file, or content synced."""
        if inode not in self._kept:
            self._kept.add(inode)
            os.link(path, self._kept_as(inode))

    def _kept_as(self, inode: int) -> str:
        return f"{self._aside}/inodes/{inode}"  # a link that keeps what was synced, also if it is removed

    def crash(self, *, machine: bool) -> None:
        """Note what the next process finds; what this one still does is not in it.

        Args:
            machine: the machine crashes, and not only the process.
        """
        self._after.mkdir()
        self._is_all_durable = machine
        for folder in _folders_in(self._root):
            target = Path(f"{self._after}{folder.removeprefix(self._place)}")
            target.mkdir(exist_ok=True)
            live = _names_in(folder)
            found = self._left_of(self._names.get(folder, {}), live) if machine else live
            for name, inode in found.items():
                path = f"{folder}/{name}" if live.get(name) == inode else self._kept_as(inode)
                self._put(Path(path), target / name, whole=not machine)

    def restart(self) -> None:
        """Put in place what `crash` noted."""
        shutil.rmtree(self._root)
        self._after.rename(self._root)
        if self._is_all_durable:  # what is there after a crash of the machine was read from the disk
            for folder in _folders_in(self._root):
                self._note_names(folder)
                for name in self._names[folder]:
                    status = Path(folder, name).stat()
                    self._content[status.st_ino] = status.st_size, status.st_mtime_ns

    def _left_of(self, synced: Names, live: Names) -> Names:
        """Names after a crash of the machine: synced changes, and of the others some."""
        found: Names = {}
        changed: dict[int, set[str]] = defaultdict(set)
        for name in sorted(synced.keys() | live.keys()):
            before, now = synced.get(name), live.get(name)
            if before == now:
                found[name] = live[name]
                continue
            for inode in (before, now):
                if inode is not None:
                    changed[inode].add(name)
        for names in _joined(changed.values()):
            source = live if self._chance.random() < 0.5 else synced
            found.update((name, source[name]) for name in sorted(names) if name in source)
        return found

    def _put(self, path: Path, target: Path, *, whole: bool) -> None:
        if target.name in ALONE:
            target.touch(0o600)
            return
        status = path.stat()
        synced = self._content.get(status.st_ino) == (status.st_size, status.st_mtime_ns)
        if whole or synced or self._chance.random() < 0.5:
            os.link(path, target)
            return
        with path.open("rb") as file:
            # A part of it by one draw: files that hold times and process ids differ in length from run to run, and
            # `randrange` may draw again.
            target.write_bytes(file.read(int(self._chance.random() * (status.st_size + 1))))
        target.chmod(stat.S_IMODE(status.st_mode))


def _folders_in(root: Path) -> list[str]:
    """It, and all folders below it, upper ones first. Text, and no paths: simulations look at thousands of them."""
    return sorted((folder for folder, _, _ in os.walk(root)), key=lambda folder: folder.split("/"))


def _names_in(folder: str) -> Names:
    with os.scandir(folder) as entries:
        files = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
    return {
        entry.name: 0 if entry.name in ALONE else entry.inode() for entry in sorted(files, key=lambda entry: entry.name)
    }


def _joined(groups: Iterable[set[str]]) -> list[set[str]]:
    """Groups of names, those that share one joined: one rename or link changes all of them."""
    joined: list[set[str]] = []
    for group in sorted(map(sorted, groups)):
        mine = set(group)
        apart = []
        for other in joined:
            if mine.isdisjoint(other):
                apart.append(other)
            else:
                mine |= other
        joined = [*apart, mine]
    return joined
