"""Upgrades of a state directory: which topology it had from which start on, and what its components were called.

A start with a changed topology writes one file, `upgrades/GENERATION`, and changes nothing else of what is stored: what
earlier starts wrote keeps the names of its time, and readers translate. A name that a component once had is never given
to another one, so that one table of names holds for all of the journal. What was dropped counts no more where an
earlier start wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tupletree.durable import pack, private_folder, read_container, sync_directory, write_once
from tupletree.state.versions import StateFile

T = TypeVar("T")

DROPPED = " (dropped)"
"""What `spouts.json` says behind the name of a spout that was dropped."""

FOLDERS = ("state", "spools")
"""Where components have folders of their names."""


class Upgrade(msgspec.Struct):
    """One change of the topology.

    Attributes:
        generation: of the start that made it.
        fingerprint: of the topology from then on.
        renames: old name → new name.
        drops: components, by their names then, all that was stored of which counts no more.
        resets: components whose holders began without what they had remembered.
        dropped_spouts: the numbers of the tasks of spouts among `drops`.
        state: component → segments that were imported: newer than what earlier starts wrote.
        settled: the number of the epoch after the last one that was settled then.
    """

    generation: int
    fingerprint: dict[str, Any]
    renames: dict[str, str] = {}
    drops: list[str] = []
    resets: list[str] = []
    dropped_spouts: list[int] = []
    state: dict[str, list[StateFile]] = {}
    settled: int = 0


class Upgrades:
    """All changes of a directory's topology, the oldest first.

    Attributes:
        all: each of them.
    """

    def __init__(self, upgrades: Sequence[Upgrade]) -> None:
        self.all = list(upgrades)
        self._names: dict[str, str] = {}
        self._first: dict[str, str] = {}
        for upgrade in self.all:
            for old, new in upgrade.renames.items():
                self._first[new] = self._first.pop(old, old)
                self._names = {name: new if now == old else now for name, now in self._names.items()}
                self._names[old] = new
                self._names.pop(new, None)

    @classmethod
    def read(cls, path: Path) -> Upgrades:
        """Those of a state directory. Raises CheckpointError for a damaged file."""
        folder = path / "upgrades"
        numbers = sorted(int(file.name) for file in folder.glob("[0-9]*") if file.name.isdigit())
        return cls([read_container(folder / f"{number:06d}", Upgrade)[0] for number in numbers])

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Of the topology that the last start had; empty if it is that of the first one."""
        return self.all[-1].fingerprint if self.all else {}

    @property
    def generation(self) -> int:
        """Of the start that made the last one; 0: there is none."""
        return self.all[-1].generation if self.all else 0

    @property
    def names(self) -> Mapping[str, str]:
        """Earlier names of components → their names now."""
        return self._names

    @property
    def past(self) -> dict[str, str]:
        """Names that were given up: the name now, or "" for what was dropped."""
        dropped = {self.today(name): "" for upgrade in self.all for name in upgrade.drops}
        return {**dropped, **self._names}

    def today(self, name: str) -> str:
        """The name that a component has now."""
        return self._names.get(name, name)

    def first_name(self, name: str) -> str:
        """The first name that a component had: what others know it by, such as a database that knows batches again."""
        return self._first.get(name, name)

    def dropped_after(self, generation: int) -> set[str]:
        """Components, by their names now, of which what this start wrote counts no more."""
        return {self.today(name) for one in self.all if one.generation > generation for name in one.drops}

    def is_of_dropped(self, spout: str, letter_id: str) -> bool:
        """Whether a dead letter is of a spout that was dropped since, also where another one has its name now."""
        epoch, name = int(letter_id.partition("-")[0]), self.today(spout)
        return any(epoch < one.settled and name in map(self.today, one.drops) for one in self.all)

    def state_after(self, generation: int, state: Mapping[str, list[StateFile]]) -> dict[str, list[StateFile]]:
        """What counts of the state that this start left, with what was dropped and imported since."""
        found = dict(state)
        for one in self.all:
            if one.generation > generation:
                dropped = set(map(self.today, one.drops))
                found = {name: files for name, files in found.items() if name not in dropped}
                for name, files in one.state.items():
                    found[self.today(name)] = [*found.get(self.today(name), []), *files]
        return found

    def reset_after(self, generation: int) -> set[str]:
        """Components, by their names now, whose holders began anew after this start."""
        return {self.today(name) for one in self.all if one.generation > generation for name in one.resets}

    def keyed(self, values: Mapping[str, T]) -> dict[str, T]:
        """Values by component under the names of now."""
        return {self.today(name): one for name, one in values.items()}

    def spouts(self, tasks: Mapping[int, str]) -> dict[int, str]:
        """Spout task → name now. A number that belonged to a dropped spout is never given to another."""
        dropped = {number for upgrade in self.all for number in upgrade.dropped_spouts}
        return {
            number: f"{self.today(name)}{DROPPED}"
            if number in dropped and not name.endswith(DROPPED)
            else self.today(name)
            for number, name in tasks.items()
        }

    def move_folders(self, path: Path) -> None:
        """Give folders of renamed components their names of now. Does nothing where that is done.

        Of all changes: a start may have been killed before it did.
        """
        for old, new in self._names.items():
            for parent in (path / folder for folder in FOLDERS):
                if (parent / old).is_dir() and not (parent / new).exists():
                    (parent / old).rename(parent / new)
                    sync_directory(parent / new)
                    sync_directory(parent)

    def folder_of(self, parent: Path, name: str) -> Path:
        """Where a component's files are, for a reader: under an earlier name until a start has moved them."""
        earlier = (parent / old for old, new in self._names.items() if new == name)
        found = (folder for folder in (parent / name, *earlier) if folder.is_dir())
        return next(found, parent / name)


NO_UPGRADES = Upgrades([])


def write_upgrade(path: Path, upgrade: Upgrade) -> None:
    """Write a change down, durably: from here on it holds."""
    folder = private_folder(path / "upgrades")
    write_once(folder / f"{upgrade.generation:06d}", pack(upgrade))
    sync_directory(path)
