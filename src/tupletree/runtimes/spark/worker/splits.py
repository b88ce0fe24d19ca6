"""Reads splits in a worker: their rows as what a task emits, each under the root that the epoch's log gives it.

Owns which rows go out and which fail before any bolt sees them. It refuses to route them: `stage` does, as it does with
what bolts emit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

import msgspec

from tupletree.bolts.effects import Output, Worked
from tupletree.bolts.failures import FailureMaker
from tupletree.data.frames import UNTRACKED, Root
from tupletree.errors import UnusableDataError
from tupletree.runtimes.spark.format.rows import root_ids
from tupletree.runtimes.spark.format.wire import PlannedSplit
from tupletree.runtimes.spark.worker.crash_markers import CrashingWorkError
from tupletree.topology.components import Reject
from tupletree.topology.model import ComponentSpec, StreamSpec
from tupletree.topology.splits import place_of, read_split
from tupletree.tracking.outcomes import Failure, FailureKind


def rows_of(
    planned: PlannedSplit,
    component: ComponentSpec,
    fail: FailureMaker,
    skip: AbstractSet[int],
    reading: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[Worked]:
    """Read a split, in chunks that make frames of the usual size; `Output.made` is the number of the row.

    Args:
        planned: the split.
        component: the spout, with a body that reads.
        fail: makes its failures.
        skip: roots that are left out.
        reading: entered while rows are read; raises CrashingWorkError if earlier attempts crashed on that.

    Raises:
        SourceChangedError, ConnectorError: see `read_split`.
        UnusableDataError: earlier attempts crashed: no one row can be left out of what `read` gives.
    """
    (stream,) = component.outputs.values()
    rows = read_split(component.body, planned.split)
    index = 0
    while values := _next_of(rows, planned, reading):
        count = len(values)
        roots: list[Root] = root_ids(planned.key + index, count).tolist() if planned.key else [UNTRACKED] * count
        made: Sequence[int] = range(index, index + count)
        index += count
        worked = Worked()
        if skip or {*map(type, values)} != {stream.schema.cls}:
            values, roots, made = sendable(values, roots, made, stream, fail, skip, worked)
        if values:
            worked.outputs.append(Output(stream.name, values, roots, list(range(1, len(values) + 1)), made=made))
        yield worked


def _next_of(
    rows: Iterator[Any], planned: PlannedSplit, reading: Callable[[], AbstractContextManager[None]]
) -> list[Any]:
    try:
        with reading():
            return list(islice(rows, FRAME_TUPLES))
    except CrashingWorkError as error:
        raise UnusableDataError(
            "a piece of a source cannot be read",
            where=place_of(planned.split),
            got=str(error),
            next_step="fix the source, and run again: it goes on with this piece",
        ) from error


def sendable(
    values: list[Any],
    roots: list[Root],
    made: Sequence[int],
    stream: StreamSpec,
    fail: FailureMaker,
    skip: AbstractSet[int],
    worked: Worked,
) -> tuple[list[Any], list[Root], list[int]]:
    """What goes out of what was read; the failures of the rest are added to `worked`."""
    kept_values: list[Any] = []
    kept_roots: list[Root] = []
    kept_made: list[int] = []
    expected = stream.schema.cls
    for value, root, number in zip(values, roots, made, strict=True):
        if root in skip:
            continue
        if type(value) is expected:
            kept_values.append(value)
            kept_roots.append(root)
            kept_made.append(number)
        elif root == UNTRACKED:
            lost = value.reason if isinstance(value, Reject) else wrong_class(value, expected)
            fail.stray(worked, value.payload if isinstance(value, Reject) else value, lost)
        elif isinstance(value, Reject):
            assert isinstance(root, int)
            worked.failures[root] = rejection(value, fail)
        else:
            fail.note(worked.failures, root, value, wrong_class(value, expected))
    return kept_values, kept_roots, kept_made


FRAME_TUPLES = 4096
"""Tuples in a frame that the driver makes: enough for a small fixed cost per tuple, few enough for small frames."""


def rejection(reject: Reject, fail: FailureMaker) -> Failure:
    """The failure of a record that its source rejected."""
    return msgspec.structs.replace(fail.of(reject.payload, reject.reason, FailureKind.REJECTED), permanent=True)


def wrong_class(value: object, expected: type) -> TypeError:
    """The failure of a value that is not of its stream's class."""
    return TypeError(f"the spout emitted a {type(value).__qualname__}, its stream is {expected.__qualname__}")
