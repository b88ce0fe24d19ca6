"""Random histories of a folder, interleaved with stops and resumes: every line comes once, by what its file is."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.places import Place
from tupletree.clock import ManualClock
from tupletree.errors import EndOfInput
from tupletree.sources import Line, text_lines
from tupletree.sources.text import TextLines
from tupletree.topology.components import Reject
from tupletree.topology.splits import read_split

KEPT_ROTATIONS = 3


class Entity:
    """A file, whatever it is called: its lines, and what happened to it since the source looked.

    A file that got another name and another inode between two looks cannot be recognised, so that does not happen
    here; rotation, which makes one name of another, may do both.
    """

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.is_renamed = self.is_copied = self.is_linked = False

    @property
    def has_other_name(self) -> bool:
        """Whether the source may know it by a name that is not the one at hand."""
        return self.is_renamed or self.is_linked


class Folder:
    """A folder in which things happen.

    Either files are copied, or inodes are used again: a new file that begins as a deleted one did, and has its inode,
    cannot be told from it.
    """

    def __init__(self, path: Path, choice: random.Random) -> None:
        self.has_copies = choice.random() < 0.5
        self.graves = path.with_name(f"{path.name}.graves")
        self.graves.mkdir()
        self.path = path
        self.choice = choice
        self.files: dict[str, Entity] = {}
        self.ended: list[Entity] = []
        self.lines = self.names = 0
        self.now_ns = 10**18

    def stamp(self, name: str) -> None:
        """Changes are told apart by their times, however quickly they follow each other."""
        self.now_ns += 10**7
        os.utime(self.path / name, ns=(self.now_ns, self.now_ns))

    def fresh(self, most: int) -> list[str]:
        count = self.choice.randint(1, most)
        self.lines += count
        return [f"line {number:033d}" for number in range(self.lines - count, self.lines)]

    def fresh_name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{'abcdefghij'[self.names % 10]}{self.names // 10}x.log"

    def write(self, name: str, lines: list[str], mode: str) -> None:
        with (self.path / name).open(mode) as file:
            file.writelines(f"{line}\n" for line in lines)
        self.stamp(name)

    def plain(self) -> str | None:
        """The name of some file that is written to."""
        names = [name for name in self.files if name.endswith(".log")]
        return self.choice.choice(names) if names else None

    def remove(self, name: str) -> None:
        if self.has_copies:
            self.names += 1
            (self.graves / str(self.names)).hardlink_to(self.path / name)
        (self.path / name).unlink()

    def end(self, name: str) -> None:
        """This file is no more."""
        self.ended.append(self.files.pop(name))

    def step(self) -> str:
        """Let one thing happen."""
        kinds = ["create", "append", "append", "append", "rename", "rotate", "rotate", "copytruncate", "delete"]
        kinds += ["truncate", "link", "restore", "replace", "copy" if self.has_copies else "append"]
        kind = self.choice.choice(kinds)
        name = self.plain()
        if kind == "create" or name is None:
            name = self.choice.choice(["a.log", "b.log", "c.log"])
            if name not in self.files:
                self.files[name] = Entity(lines := self.fresh(5))
                self.write(name, lines, "w")
            return f"create {name}"
        getattr(self, f"do_{kind}")(name)
        return f"{kind} {name}"

    def do_append(self, name: str) -> None:
        lines = self.fresh(5)
        self.files[name].lines += lines
        self.write(name, lines, "a")

    def do_rename(self, name: str) -> None:
        if self.files[name].is_copied:
            return
        self.files[name].is_renamed = True
        new = self.fresh_name("moved")
        (self.path / name).rename(self.path / new)
        self.files[new] = self.files.pop(name)

    def shift(self, name: str) -> None:
        """What rotation does to the older files."""
        for number in range(KEPT_ROTATIONS, 0, -1):
            for suffix in ("", ".gz"):
                old = f"{name}.{number}{suffix}"
                if old not in self.files:
                    continue
                if number == KEPT_ROTATIONS:
                    self.remove(old)
                    self.end(old)
                else:
                    new = f"{name}.{number + 1}{suffix}"
                    (self.path / old).rename(self.path / new)
                    self.files[new] = self.files.pop(old)
                    if not suffix and not self.files[new].has_other_name and self.choice.random() < 0.3:
                        self.compress(new)

    def compress(self, name: str) -> None:
        self.files[name].is_copied = True
        content = (self.path / name).read_bytes()
        with gzip.open(self.path / f"{name}.gz", "wb") as file:
            file.write(content)
        self.stamp(f"{name}.gz")
        self.remove(name)
        self.files[f"{name}.gz"] = self.files.pop(name)

    def do_rotate(self, name: str) -> None:
        self.shift(name)
        (self.path / name).rename(self.path / f"{name}.1")
        self.files[f"{name}.1"] = self.files.pop(name)
        if self.choice.random() < 0.8:
            self.files[name] = Entity(lines := self.fresh(5))
            self.write(name, lines, "w")

    def do_copytruncate(self, name: str) -> None:
        if self.files[name].has_other_name:
            return
        self.files[name].is_copied = True
        self.shift(name)
        (self.path / f"{name}.1").write_bytes((self.path / name).read_bytes())
        self.stamp(f"{name}.1")
        self.files[f"{name}.1"] = self.files[name]
        self.files[name] = Entity(lines := self.fresh(5))
        self.write(name, lines, "w")

    def do_delete(self, name: str) -> None:
        self.remove(name)
        self.end(name)

    def do_truncate(self, name: str) -> None:
        if self.files[name].is_linked:
            return
        self.end(name)
        self.files[name] = Entity(lines := self.fresh(5))
        self.write(name, lines, "w")

    def do_replace(self, name: str) -> None:
        self.end(name)
        self.files[name] = Entity(lines := self.fresh(5))
        self.write("new.tmp", lines, "w")
        self.remove(name)
        (self.path / "new.tmp").rename(self.path / name)

    def do_copy(self, name: str) -> None:
        new = self.fresh_name("copy")
        self.files[new] = Entity([*self.files[name].lines])
        (self.path / new).write_bytes((self.path / name).read_bytes())
        self.stamp(new)

    def do_link(self, name: str) -> None:
        """Two names for a moment: the old one goes before anything is written."""
        if self.files[name].is_copied:
            return
        self.files[name].is_linked = True
        new = self.fresh_name("linked")
        (self.path / new).hardlink_to(self.path / name)
        self.files[new] = self.files[name]
        if self.choice.random() < 0.5:
            (self.path / name).unlink()
            del self.files[name]

    def do_restore(self, name: str) -> None:
        """It was deleted, and comes back from a copy."""
        if self.files[name].has_other_name:
            return
        self.files[name].is_copied = True
        content = (self.path / name).read_bytes()
        self.remove(name)
        (self.path / "other.tmp").write_bytes(b"takes the inode")
        (self.path / name).write_bytes(content)
        (self.path / "other.tmp").unlink()
        self.stamp(name)

    def looked(self) -> None:
        """The source has seen what is there."""
        for entity in self.files.values():
            entity.is_renamed = entity.is_copied = False


class Reading:
    """A source that is stopped and resumed."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.position: Any = None
        self.given: list[str] = []
        self.ids: list[Any] = []
        self.letters: list[Reject] = []

    def start(self, *, follow: bool) -> TextLines[Line]:
        self.clock = ManualClock(wall=4e9)
        self.has_looked = False
        paths = str(self.folder.path / "*.log*")
        spout = text_lines(paths, follow=follow, clock=self.clock, order=self.folder.choice.choice(["name", "time"]))
        spout.open(Place())
        if self.position is not None:
            spout.restore(json.loads(json.dumps(self.position)))
        return spout

    def ask(self, spout: TextLines[Line]) -> bool:
        """Ask once, as either runtime does; whether there may be more."""
        self.clock.advance(2.0)
        choice = self.folder.choice
        rows: list[Any] = []
        try:
            if choice.random() < 0.5:
                for split in spout.plan(choice.randint(1, 6), choice.choice([1, 100, 1 << 20])) or ():
                    reader = pickle.loads(pickle.dumps(text_lines(spout.paths)))
                    found = list(read_split(reader, split))
                    rows += [(split.message_id(index), row) for index, row in enumerate(found)]
            else:
                rows += [(one.message_id, one if isinstance(one, Reject) else one.value) for one in spout.next() or ()]
        except EndOfInput:
            return False
        if spout.follow or not self.has_looked:
            self.folder.looked()
        self.has_looked = True
        for message_id, row in rows:
            self.ids.append(message_id)
            if isinstance(row, Reject):
                assert row.message_id == message_id
                self.letters.append(row)
            else:
                assert message_id == (row.path, *message_id[1:-1], row.number)
                self.given.append(row.text)
        return bool(rows) or spout.follow

    def stop(self, spout: TextLines[Line]) -> None:
        self.position = spout.snapshot()
        spout.close()


def run_history(path: Path, seed: int) -> None:
    choice = random.Random(seed)
    folder = Folder(path, choice)
    reading = Reading(folder)
    told: list[str] = []
    folder.step()
    for _ in range(choice.randint(1, 6)):
        follow = choice.random() < 0.5
        spout = reading.start(follow=follow)
        told.append(f"start follow={follow}")
        for _ in range(choice.randint(0, 8)):
            if not folder.files and not follow:
                break
            more = reading.ask(spout)
            told.append(f"asked, {len(reading.given)} so far")
            if not more:
                break
            if choice.random() < 0.3:
                told.append(folder.step())
        reading.stop(spout)
        for _ in range(choice.randint(0, 4)):
            told.append(folder.step())
    while not folder.files:
        told.append(folder.step())
    spout = reading.start(follow=False)
    while reading.ask(spout):
        pass
    reading.stop(spout)
    told.append("the end")
    check(folder, reading, told, seed)


def check(folder: Folder, reading: Reading, told: list[str], seed: int) -> None:
    history = f"seed {seed}: " + "; ".join(told)
    assert len(reading.ids) == len(set(reading.ids)), f"an id came twice: {history}"
    given = Counter(reading.given)
    there = {id(entity): entity for entity in folder.files.values()}
    gone = {id(entity): entity for entity in folder.ended if id(entity) not in there}
    must = Counter(line for entity in there.values() for line in entity.lines)
    may = must + Counter(line for entity in gone.values() for line in entity.lines)
    lacking = must - given
    assert not lacking, f"lines are missing: {sorted(lacking.elements())}: {history}"
    assert not given - may, f"lines came twice: {sorted((given - may).elements())}: {history}"


@pytest.mark.parametrize("lot", range(4))
def test_every_line_comes_once_whatever_happens_to_the_files(lot: int, tmp_path: Path) -> None:
    for seed in range(lot * 50, lot * 50 + 50):
        folder = tmp_path / str(seed)
        folder.mkdir()
        run_history(folder, seed)


@pytest.mark.nightly
def test_every_line_comes_once_in_many_histories(tmp_path: Path) -> None:
    for seed in range(1000, 9000):
        folder = tmp_path / str(seed)
        folder.mkdir()
        run_history(folder, seed)
