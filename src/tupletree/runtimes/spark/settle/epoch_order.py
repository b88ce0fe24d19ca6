"""The order of an epoch: which of its messages must not count yet, because something earlier for a key of theirs waits.

Made for topologies with ordered bolts only. It says what each run of an epoch did in terms of `tracking.key_lines`,
remembers the keys of what is left out, and tells at the end what waits from then on. That table is part of the
accounts. Nothing of it is stored: after a restart, all that waits may have any key until it has been worked again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np

from tupletree.errors import InternalError
from tupletree.ids import MessageId
from tupletree.routing.ordered_bolts import OrderedBolts
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.epoch_messages import places_in
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.tracking.key_lines import ANY, Behaviour, Keys, Turn, Waiting, behind, keys_known, remembered, turns
from tupletree.tracking.outcomes import Failure, FailureKind

Place = tuple[int, int]
"""(number of the spout task, number of the message)"""

KeyTable = Mapping[Place, Waiting]
"""All messages that wait for another attempt, of spouts that something comes from to an ordered bolt."""

MOST_HELD = 100_000
"""Every task of an ordered bolt is told of so many keys that wait, those of the earliest messages. It makes calls for
others in vain; whether they count is decided here."""

_failures = msgspec.msgpack.Decoder(list[wire.FailureReport])
_stats = msgspec.msgpack.Decoder(wire.StatsReport)

_Keys = dict[str, set[int]]
"""Ordered bolt → hashes."""


@dataclass
class Arrived:
    """What a run told of ordered bolts, and where each root failed.

    Attributes:
        parts: ordered bolt → (roots, hashes of keys), once for each task.
        failed_at: root → every component that failed it, or did not work on it: because of an outage, or because it was
            behind something there.
        behind: those of the last kind.
    """

    parts: list[tuple[str, wire.Arrivals]] = field(default_factory=list)
    failed_at: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    behind: set[int] = field(default_factory=set)

    def note(self, kind: int, head: bytes, body: bytes) -> None:
        """A row of a run's report, of any kind."""
        if kind == wire.ARRIVED:
            self.parts.append((bytes(head).decode(), wire.unpack_entries(body)))
        elif kind == wire.BEHIND:
            roots = wire.unpack_roots(body).tolist()
            self.behind.update(roots)
            self._missed(bytes(head).decode(), roots)
        elif kind == wire.FAILURES:
            for report in _failures.decode(body):
                self._missed(report.failure.component, report.roots)
        elif kind == wire.STATS:
            for component, (roots, _) in _stats.decode(head).outages.items():
                self._missed(component, roots)

    def _missed(self, component: str, roots: Iterable[int]) -> None:
        for root in roots:
            self.failed_at[root].add(component)


@dataclass(frozen=True)
class Ordering:
    """What the orders of all epochs of a run have in common.

    Attributes:
        bolts: the ordered ones of the topology.
        tasks: numbers of the spout tasks that something comes from to an ordered bolt.
        dies: (attempt, failure) → whether there is no further attempt.
    """

    bolts: OrderedBolts
    tasks: frozenset[int]
    dies: Callable[[int, Failure], bool]

    @property
    def unknown(self) -> Keys:
        """The keys of a message of which nothing is known."""
        return dict.fromkeys(self.bolts.below, frozenset({ANY}))

    def restored(self, waiting: Callable[[int], Iterable[tuple[int, float]]]) -> KeyTable:
        """The table after a restart; `waiting` gives what waits of a spout task: (number, due time)."""
        unknown = self.unknown
        return {(task, number): Waiting(unknown, due_s) for task in self.tasks for number, due_s in waiting(task)}


class EpochOrder:
    """See the module docstring.

    Args:
        ordering: of the run.
        record: the epoch.
        table: what waits, with those of this epoch that had waited before.
    """

    def __init__(self, ordering: Ordering, record: EpochRecord, table: KeyTable) -> None:
        self._ordering = ordering
        self._record = record
        self._place_of: dict[int, Place] = {}
        self._root_at: dict[Place, int] = {}
        self._keys: dict[int, Keys] = {}  # of roots that are left out
        self._arrived = Arrived()  # of the last run
        self._find([*record.attempts, *record.header.again])
        here = {*self._place_of.values()}
        self._elsewhere = {place: one for place, one in table.items() if place not in here}

    def held(self, failures: Mapping[int, Failure]) -> dict[str, list[tuple[int, int, int]]]:
        """What waits at each ordered bolt, for the next run (`worker.ordered_input`). `failures`: of those left out."""
        first: dict[str, dict[tuple[int, int], int]] = defaultdict(dict)
        waiting = [(place, one.keys) for place, one in self._elsewhere.items()]
        waiting += [
            (self._place_of[root], keys)
            for root, keys in self._keys.items()
            if not (root in failures and self._is_final(root, failures[root]))
        ]
        for (task, number), keys in waiting:
            for bolt, hashes in keys.items():
                for one in hashes:
                    known = first[bolt].setdefault((task, one), number)
                    first[bolt][task, one] = min(known, number)
        held = {bolt: [(*line, number) for line, number in lines.items()] for bolt, lines in first.items()}
        return {
            bolt: keys if len(keys) <= MOST_HELD else nsmallest(MOST_HELD, keys, key=itemgetter(2))
            for bolt, keys in held.items()
        }

    def behind(
        self,
        arrived: Arrived,
        left_out: Collection[int],
        failures: Mapping[int, Failure],
        failed: Mapping[int, Failure],
        away: Collection[int],
    ) -> set[int]:
        """The roots that a run worked on and that must not count now, although nothing else speaks against them.

        Args:
            arrived: what the run told.
            left_out: roots that it did not touch.
            failures: of those of them that failed.
            failed: those that failed in it.
            away: those that it could not work on because of an outage.
        """
        self._arrived = arrived
        if not (left_out or failed or away or arrived.behind or self._elsewhere):
            return set()
        self._find([*left_out, *failed, *away, *arrived.behind])
        found: dict[int, dict[int, Behaviour]] = defaultdict(dict)
        for (task, number), waiting in self._elsewhere.items():
            found[task][number] = Behaviour(number, waiting.keys, waits=True)
        for root in left_out:
            if not (root in failures and self._is_final(root, failures[root])):
                self._add(found, root, self._keys.get(root, self._ordering.unknown), waits=True)
        mine = self._mine(failed.keys() | {*away} | arrived.behind)
        seen = self._seen(mine.keys())
        for root in mine:
            self._add_bad(found, root, failed.get(root), seen.get(root, {}))
        first = {task: min(messages) for task, messages in found.items() if messages}
        later = self._later(first)
        for root, keys in later.items():
            task, number = self._place_of[root]
            if number not in found[task]:
                self._add(found, root, keys_known(keys, ()))
        roots = {self._place_of[root]: root for root in (*mine, *later)}
        below = self._ordering.bolts.below
        behind_here = {roots[task, number] for task, ones in found.items() for number in behind(ones.values(), below)}
        return behind_here | (arrived.behind - failed.keys() - {*away})

    def leave_out(self, roots: Collection[int], failed: Mapping[int, Failure]) -> None:
        """Roots fell out in the last run: remember their keys, as far as it has shown them."""
        self._find(roots)
        seen = self._seen(self._mine(roots).keys())
        for root in self._mine(roots):
            self._keys[root] = remembered(keys_known(seen.get(root, {}), self._missing(root, failed.get(root))))

    def after(self, due_s: Mapping[int, float], put_back: Collection[int]) -> tuple[KeyTable, dict[int, Turn]]:
        """What waits when the epoch is settled, and when what is put back goes out, and behind what.

        Args:
            due_s: root → when its next attempt goes out, of all that are to be tried again.
            put_back: those of them that go out later if what they wait for does.
        """
        table = dict(self._elsewhere)
        mine = self._mine(due_s)
        for root, place in mine.items():
            table[place] = Waiting(self._keys.get(root, self._ordering.unknown), due_s[root])
        lines: dict[int, dict[int, Waiting]] = defaultdict(dict)
        late: dict[int, set[int]] = defaultdict(set)
        for (task, number), waiting in table.items():
            lines[task][number] = waiting
        for root in self._mine(put_back):
            late[mine[root][0]].add(mine[root][1])
        final: dict[int, Turn] = {}
        roots = {place: root for root, place in mine.items()}
        for task, numbers in late.items():
            for number, turn in turns(lines[task], numbers).items():
                final[roots[task, number]] = turn
                table[task, number] = table[task, number]._replace(due_s=turn.due_s)
        return table, final

    def ahead(self, root: int, turn: Turn) -> tuple[Place, MessageId | None] | None:
        """What a root waits for, by its turn: where that is, and what its source calls it, if it is of this epoch."""
        if turn.behind is None:
            return None
        place = self._place_of[root][0], turn.behind
        other = self._root_at.get(place)
        ids = () if other is None else (one.id_of(other) for one in self._record.inputs)
        return place, next((one for one in ids if one is not None), None)

    def by_number(self, roots: Iterable[int]) -> list[int]:
        """These roots in the order of their messages."""
        return sorted(roots, key=lambda root: self._place_of.get(root, (-1, 0))[1])

    # --- inside -----------------------------------------------------------------------------------------------

    def _find(self, roots: Collection[int]) -> None:
        """Find the places of these roots, of those that have one."""
        unknown = np.array([root for root in roots if root not in self._place_of], dtype=np.uint64)
        tasks, numbers = places_in(self._record.inputs, unknown)
        for root, task, number in zip(unknown.tolist(), tasks.tolist(), numbers.tolist(), strict=True):
            if task in self._ordering.tasks:
                self._place_of[root] = task, number
                if self._root_at.setdefault((task, number), root) != root:
                    raise InternalError(
                        "two messages have one number",
                        where=f"epoch {self._record.header.epoch}, spout task {task}",
                        got=f"number {number} for the roots {self._root_at[task, number]} and {root}",
                        expected="a number for each message of a spout task, from its first emission on",
                    )

    def _mine(self, roots: Iterable[int]) -> dict[int, Place]:
        return {root: self._place_of[root] for root in roots if root in self._place_of}

    def _add(self, found: dict[int, dict[int, Behaviour]], root: int, keys: Keys, *, waits: bool = False) -> None:
        place = self._place_of.get(root)
        if place is not None:
            found[place[0]][place[1]] = Behaviour(place[1], keys, waits=waits)

    def _add_bad(self, found: dict[int, dict[int, Behaviour]], root: int, failure: Failure | None, seen: _Keys) -> None:
        """Of a root that failed, or that was not worked on."""
        task, number = self._place_of[root]
        keys = keys_known(seen, self._missing(root, failure))
        if failure is None:
            found[task][number] = Behaviour(number, keys, waits=True)
            return
        found[task][number] = Behaviour(
            number,
            keys,
            failed_at=frozenset(self._arrived.failed_at[root]) or frozenset({failure.component}),
            dies=self._is_final(root, failure),
            crashed=failure.kind is FailureKind.POISON,
        )

    def _is_final(self, root: int, failure: Failure) -> bool:
        return self._ordering.dies(self._record.attempts.get(root, 1), failure)

    def _missing(self, root: int, failure: Failure | None) -> list[str]:
        """The ordered bolts that may not have seen all that a root has there.

        Where all that failed it is at the ordered bolt or behind it, that has seen all: within a stage producers are
        worked first, and stages one after the other.
        """
        places = self._arrived.failed_at.get(root, set())
        below = self._ordering.bolts.below
        if failure is not None and failure.kind is FailureKind.POISON:
            return [*below]
        return [bolt for bolt, components in below.items() if not places <= components]

    def _seen(self, roots: Collection[int]) -> dict[int, _Keys]:
        """The keys with which these roots came to ordered bolts."""
        wanted = np.array([*roots], dtype=np.uint64)
        return self._picked(lambda there: np.isin(there, wanted)) if len(wanted) else {}

    def _later(self, first: Mapping[int, int]) -> dict[int, _Keys]:
        """The keys of what came to ordered bolts with the first number of its spout task, or a later one."""

        def is_later(there: wire.U64) -> Any:
            tasks, numbers = places_in(self._record.inputs, there)
            found = np.zeros(len(there), np.bool_)
            for task, number in first.items():
                found |= (tasks == task) & (numbers >= number)
            return found

        later = self._picked(is_later)
        self._find(later)
        return later

    def _picked(self, is_wanted: Callable[[wire.U64], Any]) -> dict[int, _Keys]:
        found: dict[int, _Keys] = {}
        for bolt, (roots, hashes) in self._arrived.parts:
            chosen = is_wanted(roots)
            for root, one in zip(roots[chosen].tolist(), hashes[chosen].tolist(), strict=True):
                found.setdefault(root, {}).setdefault(bolt, set()).add(one)
        return found
