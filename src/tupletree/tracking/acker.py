"""The acker: decides when a tuple tree is complete, failed or timed out.

Keeps one XOR per open tree (Storm's algorithm) in dictionaries that rotate with time. It refuses to know messages:
roots come in, verdicts about roots go out, and `pending` decides about the message.

A tree opens with one value, the XOR of all its first edges, and every ack is one value, the acked edge XOR the edges
of its children. So the XOR is zero only when nothing is left, in any order of arrival. Values and failures
that overtake their opening are kept until it comes, and only a tree whose opening was seen can complete.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tupletree.tracking.outcomes import Failure

Opening: TypeAlias = "tuple[int, int, list[int], float]"
"""(spout task, XOR of all first edges, roots that share it, monotonic time of their emission).

Roots are distinct and nonzero, and the list is not changed from here on."""

Delta: TypeAlias = "tuple[int, list[int]]"
"""(acked edge XOR child edges, roots that share it). A root that is listed twice counts once; 0 counts for nothing."""

TreeFailure: TypeAlias = "tuple[int, Failure]"
"""(root, why it failed)."""

_Tree: TypeAlias = "tuple[int, int]"
"""(spout task, XOR so far); one object serves all roots that are in the same state."""

_MEMORY_S = 30.0
"""How long early arrivals and settled roots are kept where there is no timeout."""


@dataclass(slots=True)
class AckerVerdicts:
    """What was decided. Lists of roots may be the very lists that came in: read, never change them.

    Attributes:
        completed: (spout task, roots) in order of decision; a spout task may come up several times.
        failed: (spout task, root, failure).
    """

    completed: list[tuple[int, list[int]]] = field(default_factory=list)
    failed: list[tuple[int, int, Failure]] = field(default_factory=list)


@dataclass(slots=True)
class AckerCounters:
    """Totals since construction.

    Attributes:
        completed, failed, expired: trees by verdict; each tree counts once.
        late: acks, failures and extensions of a root that had failed or expired.
        unknown: roots with acks or failures whose opening never came: mostly verdicts after completion.
        duplicate_openings: openings of a root that is open, failed or expired.
        extended: timeouts restarted.
    """

    completed: int = 0
    failed: int = 0
    expired: int = 0
    late: int = 0
    unknown: int = 0
    duplicate_openings: int = 0
    extended: int = 0


@dataclass(slots=True)
class _Early:
    """What arrived before the opening. `claims`: something may be held for the root, as no renewal alone tells."""

    value: int = 0
    claims: bool = False
    failure: Failure | None = None
    extended_s: float = -math.inf


@dataclass(slots=True)
class _Generation:
    """All that was noted within one rotation period."""

    trees: dict[int, _Tree] = field(default_factory=dict)
    early: dict[int, _Early] = field(default_factory=dict)
    settled: dict[int, None] = field(default_factory=dict)  # failed or expired: a set that `update` fills in order


class Acker:
    """Trees of any number of spout tasks. Not thread-safe; every call is one transition.

    A tree expires never before `timeout_s` after its emission, and at most timeout_s/(buckets-1) later if `rotate` is
    called whenever `next_rotation_s` has come. First verdict wins. Completed roots are not kept (that would cost
    more memory than all open trees): what comes after completion waits for an opening that never comes, and is
    counted as unknown when it expires.

    Args:
        timeout_s: T; None means that trees never expire.
        buckets: generations that a tree stays through, at least 2.
        high_water: more open trees than this should pause the spouts; None: never.
        now_s: monotonic time of the start.
    """

    def __init__(
        self, *, timeout_s: float | None = 30.0, buckets: int = 3, high_water: int | None = None, now_s: float = 0.0
    ) -> None:
        if buckets < 2:
            raise ValueError(f"buckets must be at least 2, got {buckets}")
        if timeout_s is not None and not timeout_s > 0:
            raise ValueError(f"timeout_s must be positive, got {timeout_s}")
        self.counters = AckerCounters()
        self._expires = timeout_s is not None
        self._buckets = buckets
        self._period_s = (_MEMORY_S if timeout_s is None else timeout_s) / (buckets - 1)
        self._high_water = high_water
        self._start_s = now_s
        self._current = 0
        self._rotated = 0
        self._generations: dict[int, _Generation] = {0: _Generation()}  # newest last
        self._unclaimed: list[int] = []

    # --- what arrives -----------------------------------------------------------------------------------------

    def apply(
        self, openings: Iterable[Opening], deltas: Iterable[Delta], failures: Iterable[TreeFailure], now_s: float
    ) -> AckerVerdicts:
        """Take in a batch: failures first, then openings, then deltas.

        Values for the same list of roots (the same object) are merged before any root is touched; a tree that opens
        and completes within one batch never costs a dictionary entry.
        """
        verdicts = AckerVerdicts()
        current = self._advance(now_s)
        for root, failure in failures:
            self._fail(root, failure, current, verdicts)
        # By identity of the list, which is safe because the group keeps the list alive.
        opened: dict[int, tuple[Opening, list[int]]] = {}
        for opening in openings:
            if id(opening[2]) in opened:
                self.counters.duplicate_openings += len(opening[2])
            else:
                opened[id(opening[2])] = opening, [opening[1]]
        moved: dict[int, tuple[list[int], list[int]]] = {}
        for value, roots in deltas:
            group = opened.get(id(roots)) or moved.get(id(roots))
            if group is None:
                moved[id(roots)] = roots, [value]
            else:
                group[1][0] ^= value
        for (spout_task, _, roots, emitted_s), (value,) in opened.values():
            self._open(spout_task, value, roots, emitted_s, current, verdicts)
        for roots, (value,) in moved.values():
            if value:
                self._move(value, roots, current, verdicts)
        self.counters.failed += len(verdicts.failed)
        self.counters.completed += sum(len(roots) for _, roots in verdicts.completed)
        return verdicts

    def extend(self, root: int, now_s: float) -> bool:
        """Restart the timeout of a tree (`reset_timeout`); False if the root failed or expired before."""
        current = self._advance(now_s)
        generation = self._holder(root)
        if generation is not None:
            current.trees[root] = generation.trees.pop(root)
        elif self._is_settled(root):
            self.counters.late += 1
            return False
        else:
            early = self._take_early(root)  # it is kept from now on, or the opening would find no extension
            early.extended_s = now_s
            current.early[root] = early
        self.counters.extended += 1
        return True

    def rotate(self, now_s: float) -> list[tuple[int, list[int]]]:
        """Drop what is too old; call it whenever `next_rotation_s` has come.

        Returns:
            (spout task, roots) of the trees that timed out, oldest first.
        """
        current = self._advance(now_s)
        self._rotated = self._current
        expired: dict[int, list[int]] = {}
        for number in [one for one in self._generations if one <= self._current - self._buckets]:
            generation = self._generations.pop(number)
            self.counters.unknown += len(generation.early)
            self._unclaimed += [root for root, early in generation.early.items() if early.claims]
            if self._expires:
                for root, (spout_task, _) in generation.trees.items():
                    expired.setdefault(spout_task, []).append(root)
                current.settled.update(dict.fromkeys(generation.trees))
                self.counters.expired += len(generation.trees)
            elif generation.trees:
                # Without a timeout trees stay for good, in a generation that the next rotation takes along.
                self._generations[next(iter(self._generations))].trees.update(generation.trees)
        return list(expired.items())

    def take_unclaimed(self) -> list[int]:
        """Roots with acks or failures since the last call that no tree waits for: it failed, expired or never opened.

        A task that holds something for such a root may release it. Take them from time to time: they are kept till
        then.
        """
        taken, self._unclaimed = self._unclaimed, []
        return taken

    def next_rotation_s(self) -> float:
        """When `rotate` should be called next (monotonic)."""
        return self._start_s + (self._rotated + 1) * self._period_s

    # --- questions --------------------------------------------------------------------------------------------

    @property
    def open_count(self) -> int:
        """Trees whose opening was seen and that have no verdict."""
        return sum(len(generation.trees) for generation in self._generations.values())

    def unknown_among(self, roots: Iterable[int]) -> list[int]:
        """Those that are not open, and of which nothing came that waits for an opening."""
        generations = self._generations.values()
        return [root for root in roots if not any(root in one.trees or root in one.early for one in generations)]

    @property
    def awaits_openings(self) -> bool:
        """Whether something came about trees that are not open: an opening may decide it."""
        return any(generation.early for generation in self._generations.values())

    @property
    def above_high_water(self) -> bool:
        """Whether spouts should pause; it never fails a message."""
        return self._high_water is not None and self.open_count > self._high_water

    @property
    def size(self) -> int:
        """Everything that takes memory: open trees, early arrivals, settled roots."""
        return sum(len(one.trees) + len(one.early) + len(one.settled) for one in self._generations.values())

    # --- inside -----------------------------------------------------------------------------------------------

    def _advance(self, now_s: float) -> _Generation:
        """Return the generation of now. Time that goes back counts as unchanged."""
        number = math.floor((now_s - self._start_s) / self._period_s)
        if number > self._current:
            self._current = number
            self._generations[number] = _Generation()
        return self._generations[self._current]

    def _generation_at(self, time_s: float) -> _Generation:
        """Return the generation of a time that is past, or the oldest there may be."""
        number = math.floor((time_s - self._start_s) / self._period_s)
        number = min(self._current, max(number, self._current - self._buckets))
        found = self._generations.get(number)
        if found is None:
            found = self._generations[number] = _Generation()
            self._generations = dict(sorted(self._generations.items()))
        return found

    def _open(
        self,
        spout_task: int,
        value: int,
        roots: list[int],
        emitted_s: float,
        current: _Generation,
        verdicts: AckerVerdicts,
    ) -> None:
        known = self._known_among(roots)
        fresh = [root for root in roots if root not in known] if known else roots
        done: list[int] = []
        if value:
            self._generation_at(emitted_s).trees.update(dict.fromkeys(fresh, (spout_task, value)))
        elif fresh:
            verdicts.completed.append((spout_task, fresh))
        for root in filter(known.__contains__, roots if known else ()):
            if self._holder(root) is not None or self._is_settled(root):
                self.counters.duplicate_openings += 1
                continue
            early = self._take_early(root)
            if early.failure is not None:
                current.settled[root] = None
                self._unclaimed.append(root)
                verdicts.failed.append((spout_task, root, early.failure))
            elif value ^ early.value:
                generation = self._generation_at(max(emitted_s, early.extended_s))
                generation.trees[root] = (spout_task, value ^ early.value)
            else:
                done.append(root)
        if done:
            verdicts.completed.append((spout_task, done))

    def _move(self, value: int, roots: list[int], current: _Generation, verdicts: AckerVerdicts) -> None:
        """XOR a value into every tree of a list."""
        distinct: Sequence[int] = roots
        if len(set(roots)) != len(roots):
            distinct = list(dict.fromkeys(roots))
        trees = current.trees
        done: dict[int, list[int]] = {}
        # Roots of one frame are mostly in the same state: one new state object then serves them all.
        before: _Tree | None = None
        after: _Tree = (0, 0)
        for root in distinct:
            tree = trees.get(root)
            home = trees
            if tree is None:
                generation = self._holder(root)
                if generation is None:
                    self._arrive_early(root, value, current)
                    continue
                home = generation.trees
                tree = home[root]
            if tree is not before:
                before = tree
                after = (tree[0], tree[1] ^ value)
            if after[1]:
                home[root] = after
            else:
                del home[root]
                done.setdefault(after[0], []).append(root)
        verdicts.completed.extend(done.items())

    def _fail(self, root: int, failure: Failure, current: _Generation, verdicts: AckerVerdicts) -> None:
        if not root:
            return
        generation = self._holder(root)
        if generation is not None:
            spout_task, _ = generation.trees.pop(root)
            current.settled[root] = None
            verdicts.failed.append((spout_task, root, failure))
        elif self._is_settled(root):
            self.counters.late += 1
            self._unclaimed.append(root)
        else:
            early = self._early(root, current)
            early.claims = True
            early.failure = early.failure or failure

    def _arrive_early(self, root: int, value: int, current: _Generation) -> None:
        if not root:
            return
        if self._is_settled(root):
            self.counters.late += 1
            self._unclaimed.append(root)
        else:
            early = self._early(root, current)
            early.claims = True
            early.value ^= value

    def _known_among(self, roots: list[int]) -> set[int]:
        """Return those roots of which something is known."""
        known: set[int] = set()
        for one in self._generations.values():
            for table in (one.trees, one.early, one.settled):
                if table:
                    known |= table.keys() & roots
        return known

    def _holder(self, root: int) -> _Generation | None:
        for generation in reversed(self._generations.values()):
            if root in generation.trees:
                return generation
        return None

    def _is_settled(self, root: int) -> bool:
        return any(root in generation.settled for generation in self._generations.values())

    def _early(self, root: int, current: _Generation) -> _Early:
        """Return what is noted about a root without an opening, making a new note if it is the first."""
        for generation in self._generations.values():
            if root in generation.early:
                return generation.early[root]
        early = current.early[root] = _Early()
        return early

    def _take_early(self, root: int) -> _Early:
        for generation in self._generations.values():
            if root in generation.early:
                return generation.early.pop(root)
        return _Early()
