"""Trees that are open across epochs, and the outputs that wait for them.

Owns what the driver knows of a root whose epoch is over: what is left of its tree, when it expires, when it is tried
again, and which rows of committed candidates may not be published before it is decided. No files and no Spark; times
are by the run's clock, which stops while no process runs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tupletree.data.frames import Root, roots_of
from tupletree.runtimes.spark.format.entries import OpenTree, WaitingFile

Place = tuple[str, int]
"""`WaitingFile.key` and the position of a row."""


class OpenTrees:
    """All open trees. The cost per epoch depends on what changes, not on how many are open."""

    def __init__(self, trees: Iterable[OpenTree] = ()) -> None:
        self._trees: dict[int, OpenTree] = {}
        self._expiries: list[tuple[float, int]] = []
        self._resumes: list[tuple[float, int]] = []
        self._parked: dict[int, float] = {}
        self.attempts: dict[int, int] = {}  # root → attempt, of those beyond the first
        for tree in trees:
            self.put(tree)

    def __len__(self) -> int:
        return len(self._trees)

    def __contains__(self, root: object) -> bool:
        return root in self._trees

    def get(self, root: int) -> OpenTree | None:
        """The tree of a root."""
        return self._trees.get(root)

    def left_of(self, root: int) -> int | None:
        """What is left of the tree of a root; None if it is not open."""
        tree = self._trees.get(root)
        return None if tree is None else tree.xor

    def among(self, roots: set[int]) -> set[int]:
        """Those of these roots whose trees are open."""
        return roots & self._trees.keys()

    def attempt_of(self, root: int) -> int:
        """The attempt of an open root."""
        return self.attempts.get(root, 1)

    def all(self) -> list[OpenTree]:
        """Every tree, oldest first."""
        return list(self._trees.values())

    def is_unfinished(self, root: int) -> bool:
        """Whether a root is committed and not complete: rows that are anchored to it wait."""
        tree = self._trees.get(root)
        return tree is not None and tree.is_committed and tree.xor != 0

    def put(self, tree: OpenTree) -> None:
        """Add or replace a tree."""
        root = tree.root
        self._trees[root] = tree
        if tree.expires_s != math.inf:
            heapq.heappush(self._expiries, (tree.expires_s, root))
        if tree.resumes_s > 0.0:
            heapq.heappush(self._resumes, (tree.resumes_s, root))
            self._parked[root] = tree.resumes_s
        else:
            self._parked.pop(root, None)
        if tree.attempt > 1:
            self.attempts[root] = tree.attempt

    def apply(self, changes: TreeChanges) -> None:
        """Carry out changes that were found on these trees; nothing else has changed since."""
        for root in changes.closed:
            if root in self._trees:
                self.remove(root)
        for tree in changes.opened.values():
            self.put(tree)

    def remove(self, root: int) -> OpenTree:
        """Remove a tree that is settled."""
        self._parked.pop(root, None)
        self.attempts.pop(root, None)
        return self._trees.pop(root)

    def expired(self, now_s: float) -> list[OpenTree]:
        """Trees that have expired, earliest first; the same ones again until they are removed or put again."""
        found: dict[int, OpenTree] = {}
        heap, places = self._expiries, [0]
        passed: list[tuple[float, int]] = []
        while places:  # down from the top, as far as times have passed: the others are not looked at
            place = places.pop()
            if place < len(heap) and heap[place][0] <= now_s:
                passed.append(heap[place])
                places += (2 * place + 1, 2 * place + 2)
        for expires_s, root in sorted(passed):
            tree = self._trees.get(root)
            if tree is not None and tree.expires_s == expires_s:
                found[root] = tree
        return list(found.values())

    def parked(self, now_s: float) -> set[int]:
        """Roots whose frames wait now."""
        return {root for root, resumes_s in self._parked.items() if resumes_s > now_s}

    def resuming(self, now_s: float) -> set[int]:
        """Roots whose frames no longer wait, and are in no epoch yet (`resumed`)."""
        return {
            root
            for resumes_s, root in self._resumes
            if resumes_s <= now_s and (tree := self._trees.get(root)) is not None and tree.resumes_s == resumes_s
        }

    def next_s(self) -> float:
        """When the first tree expires or resumes; infinity if none does."""
        return min(self._top(self._expiries, lambda tree: tree.expires_s), self._top(self._resumes, _resumption))

    def resumed(self, now_s: float) -> None:
        """Drop the resumptions up to now: an epoch has begun that has their frames."""
        while self._resumes and self._resumes[0][0] <= now_s:
            heapq.heappop(self._resumes)

    def _top(self, heap: list[tuple[float, int]], time_of: Callable[[OpenTree], float]) -> float:
        while heap:
            time_s, root = heap[0]
            tree = self._trees.get(root)
            if tree is not None and time_of(tree) == time_s:
                return time_s
            heapq.heappop(heap)
        return math.inf


def _resumption(tree: OpenTree) -> float:
    return tree.resumes_s


@dataclass
class Decided:
    """Rows of a waiting file that are decided now.

    Attributes:
        file: the file.
        publish: for each of its rows, whether it is published now.
        roots: the roots of those that are and did not die, in order.
        is_last: no other rows wait in it.
    """

    file: WaitingFile
    publish: list[bool]
    roots: list[Root] = field(default_factory=list)
    is_last: bool = False


@dataclass
class WaitingRowsOfFile:
    """The rows of one file that wait: position → its roots that are not dead."""

    file: WaitingFile
    rows: dict[int, tuple[int, ...]] = field(default_factory=dict)


class WaitingRows:
    """The rows that wait, by root."""

    def __init__(self) -> None:
        self._files: dict[str, WaitingRowsOfFile] = {}
        self._by_root: dict[int, set[Place]] = {}

    def __len__(self) -> int:
        """How many files have rows that wait."""
        return len(self._files)

    def files(self) -> list[WaitingFile]:
        """All of them, oldest first."""
        return [one.file for one in self._files.values()]

    def names(self) -> frozenset[str]:
        """Names of all files that are needed for them."""
        return frozenset(name for one in self._files.values() for name in (one.file.candidate, one.file.sidecar))

    def roots(self) -> set[int]:
        """Roots whose rows wait."""
        return {*self._by_root}

    def waits_for(self, root: int) -> bool:
        """Whether a row of this root waits."""
        return root in self._by_root

    def apply(self, changes: WaitingChanges) -> None:
        """Carry out changes that were found on these rows; nothing else has changed since."""
        for name, file in changes.files.items():
            if file is None or not file.rows:
                self._files.pop(name, None)
            else:
                self._files[name] = file
        for root, places in changes.places.items():
            if places:
                self._by_root[root] = places
            else:
                self._by_root.pop(root, None)

    def file(self, name: str) -> WaitingRowsOfFile | None:
        """The waiting rows of a file, by `WaitingFile.key`; to read."""
        return self._files.get(name)

    def places(self, root: int) -> set[Place]:
        """Where rows of a root wait; to read."""
        return self._by_root.get(root, set())


@dataclass
class WaitingChanges:
    """What an epoch changes among the rows that wait: found here, and carried out by `WaitingRows.apply`.

    Attributes:
        before: the rows that wait; nothing of them changes here.
        files: `WaitingFile.key` → its waiting rows afterwards; none, or None: nothing of it waits.
        places: root → where its rows wait afterwards.
    """

    before: WaitingRows
    files: dict[str, WaitingRowsOfFile | None] = field(default_factory=dict)
    places: dict[int, set[Place]] = field(default_factory=dict)

    def roots(self) -> set[int]:
        """Roots whose rows wait afterwards."""
        roots = self.before.roots()
        for root, places in self.places.items():
            (roots.add if places else roots.discard)(root)
        return roots

    def waits_for(self, root: int) -> bool:
        """Whether a row of this root waits afterwards."""
        return bool(self.places[root]) if root in self.places else self.before.waits_for(root)

    def files_after(self) -> list[WaitingFile]:
        """The files whose rows wait afterwards, oldest first."""
        kept = [file for file in self.before.files() if file.key not in self.files]
        changed = [one.file for one in self.files.values() if one is not None and one.rows]
        return sorted([*kept, *changed], key=lambda file: file.epoch)

    def add(
        self,
        file: WaitingFile,
        rows: Iterable[tuple[int, Root]],
        is_unfinished: Callable[[int], bool],
        is_dead: Callable[[int], bool],
    ) -> bool:
        """Add the rows of a candidate that wait, of those that may: (position, root); False if none does."""
        waiting = WaitingRowsOfFile(file)
        for position, root in rows:
            tracked = roots_of(root)
            if any(map(is_unfinished, tracked)):
                waiting.rows[position] = living = tuple(one for one in tracked if not is_dead(one))
                for one in living:
                    self._places_of(one).add((file.key, position))
        if waiting.rows:
            self.files[file.key] = waiting
        return bool(waiting.rows)

    def decide(
        self, complete: Iterable[int], dead: Iterable[int], is_unfinished: Callable[[int], bool], freed: set[int]
    ) -> list[Decided]:
        """Decide rows, given that these roots are complete and those dead.

        A row is published once none of its roots is unfinished, unless all of them are dead. Roots none of whose rows
        waits any more are added to `freed`.
        """
        decided: dict[str, Decided] = {}
        touched = {place for root in complete for place in self._places_of(root)}
        for root in dead:
            for name, position in sorted(self._places_of(root)):
                rows = self._rows_of(name).rows
                rows[position] = tuple(one for one in rows[position] if one != root)
                touched.add((name, position))
            self.places[root] = set()
        for name, position in sorted(touched):
            waiting = self._rows_of(name)
            if any(map(is_unfinished, waiting.rows[position])):
                continue
            living = waiting.rows.pop(position)
            for one in living:
                places = self._places_of(one)
                places.discard((name, position))
                if not places:
                    freed.add(one)
            if name not in decided:
                decided[name] = Decided(waiting.file, [False] * waiting.file.rows)
            decided[name].publish[position] = bool(living)
            if living:
                decided[name].roots.append(living[0] if len(living) == 1 else living)
        for name, found in decided.items():
            found.is_last = not self._rows_of(name).rows
        return list(decided.values())

    def _places_of(self, root: int) -> set[Place]:
        """Where its rows wait, to change."""
        if root not in self.places:
            self.places[root] = {*self.before.places(root)}
        return self.places[root]

    def _rows_of(self, name: str) -> WaitingRowsOfFile:
        """The waiting rows of a file, to change."""
        changed = self.files.get(name)
        if changed is None:
            before = self.before.file(name)
            assert before is not None
            changed = self.files[name] = WaitingRowsOfFile(before.file, {**before.rows})
        return changed


@dataclass
class TreeChanges:
    """What an epoch changes among the trees of earlier ones: found here, recorded in its entry, carried out then.

    Attributes:
        before: the trees; nothing of them changes here.
        opened: root → tree, of those that are open afterwards and were not, or differ.
        closed: roots of trees that are not open any more.
    """

    before: OpenTrees
    opened: dict[int, OpenTree] = field(default_factory=dict)
    closed: dict[int, None] = field(default_factory=dict)

    def get(self, root: int) -> OpenTree | None:
        """The tree of a root afterwards."""
        if root in self.opened:
            return self.opened[root]
        return None if root in self.closed else self.before.get(root)

    def put(self, tree: OpenTree) -> None:
        """A tree is open after this epoch."""
        self.opened[tree.root] = tree

    def close(self, root: int) -> None:
        """A tree of an earlier epoch is not open any more."""
        self.opened.pop(root, None)
        self.closed[root] = None

    def all_after(self) -> list[OpenTree]:
        """Every tree that is open afterwards, oldest first."""
        after = {tree.root: tree for tree in self.before.all()}
        for root in self.closed:
            after.pop(root, None)
        return [*{**after, **self.opened}.values()]
