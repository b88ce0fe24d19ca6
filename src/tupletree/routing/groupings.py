"""Routing: which tasks get which tuples, and hashes of keys that are the same in every process and run.

Owns the groupings and the map key → key group → task. It refuses to name frames, count edges or deliver: out come
batches, one per target task. Pure; a router's only state is the next task of a shuffle, how loaded tasks are, and a
memo.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, compress, islice, repeat
from operator import attrgetter, eq, ne, sub
from typing import Any, Protocol, cast

from tupletree.data.frames import Root
from tupletree.data.payloads import shown
from tupletree.errors import InternalError, ProcessingError, ProcessingTimeoutError
from tupletree.ids import mix64
from tupletree.routing.hashing import key_group, stable_hash, task_of_group
from tupletree.routing.plan import Link, Plan
from tupletree.topology import hints
from tupletree.topology.model import CustomGrouping
from tupletree.topology.streams import Schema

MEMO_SIZE = 65_536

Failed = tuple[int, Exception]
"""Position of a tuple that cannot be routed, and why."""


@dataclass(slots=True)
class Batch:
    """Tuples for one task, laid out as in `Frame`. Lists may be shared with other batches: read only."""

    task: int
    values: list[Any]
    roots: list[Root]
    ends: list[int]
    made: Sequence[int] | None = None


class _Grouper(Protocol):
    """One subscription's grouping.

    One whose choices always stand for one task each has a method `owner` that tells it.

    Attributes:
        key_fields: what a choice depends on: None is nothing, () the whole tuple.
    """

    key_fields: tuple[str, ...] | None

    def choose(self, values: list[Any], failures: dict[int, Exception]) -> Any:
        """Choices by position, or None where there is nothing to choose by value; positions that fail are noted."""

    def distribute(
        self, batches: list[Batch], choices: Any, values: list[Any], roots: list[Root], ends: list[int]
    ) -> None:
        """Append one batch per target task. Only now may the grouper's own state change."""


class Router:
    """Distributes the tuples that one task emits on one stream to the tasks of all its consumers.

    Each producing task has a router of its own: a shuffle is even per router, so evenly loaded producers give evenly
    loaded consumers, and no lock is needed.
    """

    def __init__(self, groupers: Sequence[_Grouper], direct_tasks: Iterable[int] = (), where: str = "") -> None:
        self.groupers = tuple(groupers)
        self._direct_tasks = frozenset(direct_tasks)
        self._where = where

    @classmethod
    def of(cls, plan: Plan, task_id: int, stream: str, place: int | None = None) -> Router:
        """The router of a task's stream; `place` is the partition it emits in, if not its own, or `plan.NOWHERE`."""
        producer = plan.tasks[task_id].component
        schema = plan.spec.components[producer].outputs[stream].schema
        links = plan.links_from(producer, stream)
        first, here = (plan.tasks[task_id].index, plan.placement(task_id)) if place is None else (place, place)
        groupers = [_grouper(plan, link, first, here, schema) for link in links if link.grouping.kind != "direct"]
        direct = [task for link in links if link.grouping.kind == "direct" for task in plan.task_ids_of(link.consumer)]
        return cls(groupers, direct, f"{producer}.{stream}")

    def route(
        self, values: list[Any], roots: list[Root], ends: list[int], made: Sequence[int] | None = None
    ) -> tuple[list[Batch], list[Failed]]:
        """Distribute a batch.

        Order is kept within a target. Segments that become adjacent and that have the same root become one
        segment. A tuple that any grouping cannot place goes nowhere, also not to the other consumers.

        Args:
            values: the tuples.
            roots: one per segment.
            ends: where each segment ends in `values`, strictly increasing.
            made: see `Frame.made`.

        Returns:
            One batch per target task that gets something, consumers in declaration order, and the tuples that failed,
            by position.
        """
        batches: list[Batch] = []
        if not values:
            return batches, []
        failures: dict[int, Exception] = {}
        choices = [grouper.choose(values, failures) for grouper in self.groupers]
        if failures:
            keep = [position not in failures for position in range(len(values))]
            values, roots, ends = _pick(values, roots, ends, keep)
            choices = [None if choice is None else list(compress(choice, keep)) for choice in choices]
            made = None if made is None else list(compress(made, keep))
        if values and made is None:
            for grouper, choice in zip(self.groupers, choices):
                grouper.distribute(batches, choice, values, roots, ends)
        elif values and made is not None:
            positions = cast("list[Any]", range(len(values)))  # stand for the tuples, and for their numbers
            for grouper, choice in zip(self.groupers, choices):
                grouper.distribute(batches, choice, positions, roots, ends)
            for batch in batches:
                batch.values, batch.made = _at(values, batch.values), _at(made, batch.values)
        return batches, sorted(failures.items())

    def route_direct(
        self,
        task: int,
        values: list[Any],
        roots: list[Root],
        ends: list[int],
        made: Sequence[int] | None = None,
    ) -> Batch:
        """The batch for one task that the emitter named.

        Raises:
            ProcessingError: no consumer that subscribed with `direct` has this task.
        """
        if task not in self._direct_tasks:
            raise ProcessingError(
                "an emit to a task that does not read this stream directly",
                where=self._where,
                got=f"task {task}",
                expected=f"one of {', '.join(map(str, sorted(self._direct_tasks))) or '(no bolt reads it directly)'}",
                next_step="subscribe the consumer with .direct(), or emit without a task",
            )
        return Batch(task, values, roots, ends, made)


def _at(values: Sequence[Any], positions: Sequence[int]) -> Any:
    """The values at these positions."""
    if isinstance(positions, range):
        return values if len(positions) == len(values) else values[positions.start : positions.stop]
    return [values[position] for position in positions]


def _grouper(plan: Plan, link: Link, first: int, here: int, schema: Schema) -> _Grouper:
    grouping, tasks = link.grouping, plan.deputies_of(link.consumer)
    where = f"{link.producer}.{link.stream} -> {link.consumer}"
    match grouping.kind:
        case "shuffle" | "local_or_shuffle" | "none":
            return _Shuffle(_choosable(plan, link, here), first)
        case "all":
            return _Copy(tasks)
        case "global":
            return _Copy(tasks[:1])
        case "fields":
            return _Fields(tasks, schema, grouping.fields)
        case "partial_key":
            return _PartialKey(tasks, schema, grouping.fields)
        case "custom" if grouping.custom is not None:
            return _Custom(tasks, grouping.custom, where)
    raise InternalError("a grouping that routing does not know", where=where, got=grouping.kind)


def _choosable(plan: Plan, link: Link, here: int) -> Sequence[int]:
    """The tasks that a shuffle may choose: those of its own partition if the plan counts on it or the user asked."""
    tasks = list(dict.fromkeys(plan.deputies_of(link.consumer)))
    if link.from_spout or link.carried or (link.grouping.kind == "shuffle" and not link.local):
        return tasks
    return [task for task in tasks if plan.placement(task) == here] or tasks


class _Copy:
    """Every task gets every tuple."""

    key_fields: tuple[str, ...] | None = None

    def __init__(self, tasks: Sequence[int]) -> None:
        self._tasks = tuple(tasks)

    def choose(self, values: list[Any], failures: dict[int, Exception]) -> None:  # noqa: ARG002 - nothing to choose
        return None

    def distribute(
        self,
        batches: list[Batch],
        choices: None,  # noqa: ARG002 - nothing was chosen
        values: list[Any],
        roots: list[Root],
        ends: list[int],
    ) -> None:
        batches += [Batch(task, values, roots, ends) for task in self._tasks]


class _Shuffle(_Copy):
    """Runs of tuples in turn; after any number of calls no task has got two more than another."""

    def __init__(self, tasks: Sequence[int], first: int) -> None:
        super().__init__(tasks)
        self._turn = first % len(self._tasks)

    def distribute(
        self,
        batches: list[Batch],
        choices: None,  # noqa: ARG002 - nothing was chosen
        values: list[Any],
        roots: list[Root],
        ends: list[int],
    ) -> None:
        width = len(self._tasks)
        if width == 1:
            batches.append(Batch(self._tasks[0], values, roots, ends))
            return
        each, over = divmod(len(values), width)
        start = segment = 0
        for step in range(width if each else over):
            stop = start + each + (step < over)
            task = self._tasks[(self._turn + step) % width]
            if len(ends) == len(values):
                batches.append(Batch(task, values[start:stop], roots[start:stop], ends[: stop - start]))
            else:
                first = segment
                while ends[segment] < stop:
                    segment += 1
                cut = [end - start for end in ends[first:segment]]
                cut.append(stop - start)
                batches.append(Batch(task, values[start:stop], roots[first : segment + 1], cut))
                segment += ends[segment] == stop
            start = stop
        self._turn = (self._turn + over) % width


class _Memo(dict[Any, Any]):
    """Key → choice, computed once; starts again when full."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: Any) -> Any:
        choice = self._compute(key)
        if len(self) >= MEMO_SIZE:
            self.clear()
        self[key] = choice
        return choice


class _Keyed(ABC):
    """What groupings by key share: choices from keys, fast for a batch without faults, else tuple by tuple.

    Keys that are equal in Python may differ in type (1, 1.0, True), so a memo is kept only where a field has one type,
    and raw field values are looked up only where they have exactly that type; else `Schema.key_of` judges them.
    """

    def __init__(self, tasks: Sequence[int], schema: Schema, fields: tuple[str, ...]) -> None:
        """`tasks`: by index; one that stands for several is named for each of them."""
        self.key_fields: tuple[str, ...] | None = fields
        self._tasks = tuple(dict.fromkeys(tasks))
        self._slots = [self._tasks.index(task) for task in tasks]
        self._known: dict[Any, Any] = {}
        self._is_text = False
        self._key_of = schema.key_of(fields)
        kinds = [_only_kind(schema.fields[name]) for name in fields]
        self._look: Callable[[Any], Any] = self._choice
        self._get: Callable[[Any], Any] = self._key_of
        self._strict: list[tuple[Callable[[Any], Any], set[type]]] = []
        if None not in kinds:
            self._look = _Memo(self._choice).__getitem__
        if RAW.issuperset(kinds):
            self._known = _Memo(self._raw_choice)
            self._look = self._known.__getitem__
            self._get = attrgetter(*fields)
            self._is_text = kinds == [str]
            # Nothing but text equals text, so text needs no look at its type before it is looked up.
            self._strict = [
                (attrgetter(name), {kind, hints.NONE_TYPE}) for name, kind in zip(fields, kinds) if kind is not str
            ]

    @abstractmethod
    def _choice(self, key: Any) -> Any:
        """Which task, or tasks, a canonical key goes to."""

    def _raw_choice(self, key: Any) -> Any:
        for part in key if type(key) is tuple else (key,):
            if type(part) not in ACCEPTED or (type(part) is int and not INT64_MIN <= part <= INT64_MAX):
                raise TypeError(f"{shown(part)} is to be coerced")
        return self._choice(key)

    def choose(self, values: list[Any], failures: dict[int, Exception]) -> list[Any] | None:
        """See `_Grouper.choose`."""
        if all(exact.issuperset(map(type, map(get, values))) for get, exact in self._strict):
            try:
                if len(self._tasks) == 1:  # nothing to choose, but invalid keys are to be found
                    if self._is_text and _is_encodable(map(self._get, values)):
                        return None
                    for key in {*map(self._get, values)} - self._known.keys():
                        self._look(key)
                    return None
                return list(map(self._look, map(self._get, values)))
            except Exception:  # noqa: BLE001, S110 - found again below, with its position
                pass
        choices: list[Any] = []
        for position, value in enumerate(values):
            try:
                choices.append(self._look(self._key_of(value)))
            except Exception as error:  # noqa: BLE001 - any of them is this tuple's failure
                failures[position] = error
                choices.append(None)
        return choices


def _is_encodable(texts: Iterable[Any]) -> bool:
    """Whether all are text, without lone surrogates; much cheaper than looking each of them up."""
    try:
        joined = "".join(texts)
        if not joined.isascii():
            joined.encode()
    except (TypeError, UnicodeEncodeError):
        return False
    return True


INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
RAW = frozenset({str, int, bytes, bool, float})
ACCEPTED = RAW | {hints.NONE_TYPE}


def _only_kind(annotation: Any) -> Any:
    """The one type that a field's values have besides None; None where there may be several."""
    kinds = [kind for kind in hints.members(annotation) if kind is not hints.NONE_TYPE]
    return kinds[0] if len(kinds) == 1 and isinstance(kinds[0], type) else None


class _Fields(_Keyed):
    """A key always goes to the same task: the one that owns its key group and state."""

    def _choice(self, key: Any) -> int:
        return self._slots[task_of_group(key_group(key), len(self._slots))]

    def owner(self, choice: int) -> int:
        """The task that a choice stands for."""
        return self._tasks[choice]

    def distribute(
        self, batches: list[Batch], choices: list[int] | None, values: list[Any], roots: list[Root], ends: list[int]
    ) -> None:
        _scatter(batches, self._tasks, choices, values, roots, ends)


class _PartialKey(_Keyed):
    """A key goes to one of two tasks, whichever got less from here so far.

    The power of two choices with key splitting: Nasir, De Francisci Morales, Garcia-Soriano, Kourtellis, Serafini, "The
    power of both choices", ICDE 2015.
    """

    def __init__(self, tasks: Sequence[int], schema: Schema, fields: tuple[str, ...]) -> None:
        super().__init__(tasks, schema, fields)
        self._loads = [0] * len(self._tasks)

    def _choice(self, key: Any) -> tuple[int, int]:
        width = len(self._tasks)
        hashed = stable_hash(key)
        first = hashed % width
        return first, (first + 1 + mix64(hashed) % (width - 1)) % width if width > 1 else first

    def distribute(
        self,
        batches: list[Batch],
        choices: list[tuple[int, int]] | None,
        values: list[Any],
        roots: list[Root],
        ends: list[int],
    ) -> None:
        loads = self._loads
        chosen = []
        for first, second in choices or ((0, 0),) * len(values):
            index = first if loads[first] <= loads[second] else second
            loads[index] += 1
            chosen.append(index)
        _scatter(batches, self._tasks, chosen, values, roots, ends)


class _Custom:
    """The user's function names the tasks: one index, or several, or none."""

    key_fields: tuple[str, ...] | None = ()

    def __init__(self, tasks: Sequence[int], function: CustomGrouping, where: str) -> None:
        self._tasks = tuple(tasks)
        self._function = function
        self._where = where

    def choose(self, values: list[Any], failures: dict[int, Exception]) -> list[tuple[int, ...]]:
        choices: list[tuple[int, ...]] = []
        for position, value in enumerate(values):
            try:
                choices.append(self._checked(self._function(value, len(self._tasks))))
            except (Exception, ProcessingTimeoutError) as error:  # noqa: BLE001 - user code; it is this tuple's failure
                failures[position] = error if isinstance(error, Exception) else ProcessingError(str(error))
                choices.append(())
        return choices

    def _checked(self, answer: Any) -> tuple[int, ...]:
        indexes = tuple(dict.fromkeys(answer)) if isinstance(answer, list | tuple) else (answer,)
        for index in indexes:
            if type(index) is not int or not 0 <= index < len(self._tasks):
                raise ProcessingError(
                    "a custom grouping named a task that does not exist",
                    where=self._where,
                    got=shown(answer),
                    expected=f"an index from 0 to {len(self._tasks) - 1}, or a list of them",
                )
        return indexes

    def distribute(
        self,
        batches: list[Batch],
        choices: list[tuple[int, ...]],
        values: list[Any],
        roots: list[Root],
        ends: list[int],
    ) -> None:
        if all(len(choice) == 1 for choice in choices):
            _scatter(batches, self._tasks, [choice[0] for choice in choices], values, roots, ends)
            return
        for index, task in enumerate(self._tasks):
            picked = _pick(values, roots, ends, [index in choice for choice in choices])
            if picked[0]:
                batches.append(Batch(task, *picked))


Segments = tuple[list[Any], list[Root], list[int]]


def _scatter(
    batches: list[Batch],
    tasks: tuple[int, ...],
    indexes: list[int] | None,
    values: list[Any],
    roots: list[Root],
    ends: list[int],
) -> None:
    """One batch per task that is named in `indexes` (one per value; None: the only task gets all)."""
    if indexes is None or len(values) == 1:
        batches.append(Batch(tasks[indexes[0] if indexes else 0], values, roots, ends))
        return
    if len(values) >= 2 * len(ends) * len(tasks):
        _scatter_long(batches, tasks, indexes, values, roots, ends)
        return
    bins: list[list[Any]] = [[] for _ in tasks]
    root_bins: list[list[Root]] = [[] for _ in tasks]
    put = [bucket.append for bucket in bins]
    if len(ends) != len(values):
        lengths = map(sub, ends, chain((0,), ends))
        roots = list(chain.from_iterable(map(repeat, roots, lengths)))
    put_root = [bucket.append for bucket in root_bins]
    for index, value, root in zip(indexes, values, roots):
        put[index](value)
        put_root[index](root)
    for task, bucket, bucket_roots in zip(tasks, bins, root_bins):
        if bucket:
            batches.append(Batch(task, bucket, *_merged(bucket_roots, range(1, len(bucket) + 1))))


def _scatter_long(
    batches: list[Batch],
    tasks: tuple[int, ...],
    indexes: list[int],
    values: list[Any],
    roots: list[Root],
    ends: list[int],
) -> None:
    """As `_scatter`, for long segments: looks at every task once per segment instead of at the root of each value."""
    bins = [Batch(task, [], [], []) for task in tasks]
    put = [batch.values.append for batch in bins]
    pairs = zip(indexes, values)
    start = 0
    for root, end in zip(roots, ends):
        for index, value in islice(pairs, end - start):
            put[index](value)
        for batch in bins:
            size = len(batch.values)
            if size == (batch.ends[-1] if batch.ends else 0):
                continue
            if batch.roots and batch.roots[-1] == root:
                batch.ends[-1] = size
            else:
                batch.roots.append(root)
                batch.ends.append(size)
        start = end
    batches += [batch for batch in bins if batch.values]


def _merged(roots: list[Root], ends: Sequence[int]) -> tuple[list[Root], list[int]]:
    """Adjacent segments of one root as one."""
    if not any(map(eq, roots, islice(roots, 1, None))):
        return roots, list(ends)
    last = list(map(ne, roots, islice(roots, 1, None)))
    last.append(True)
    return list(compress(roots, last)), list(compress(ends, last))


def _pick(values: list[Any], roots: list[Root], ends: list[int], keep: list[bool]) -> Segments:
    """The values to keep, with their roots."""
    picked: list[Any] = []
    picked_roots: list[Root] = []
    picked_ends: list[int] = []
    start = 0
    for root, end in zip(roots, ends):
        before = len(picked)
        picked.extend(compress(values[start:end], keep[start:end]))
        if len(picked) > before:
            picked_roots.append(root)
            picked_ends.append(len(picked))
        start = end
    return picked, *_merged(picked_roots, picked_ends)
