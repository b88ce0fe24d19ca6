"""Routing of columns: the groupings of `groupings`, applied once per distinct key and distributed by row numbers.

It does not define groupings: each grouper chooses and distributes as it does for tuples. Imported lazily: it
imports numpy.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from tupletree.data.columns import ArrowColumns, Indices, distinct_rows
from tupletree.routing.groupings import Batch, Failed, Router


def route_columns(router: Router, columns: ArrowColumns) -> tuple[list[tuple[int, ArrowColumns]], list[Failed]]:
    """Distribute columns; see `Router.route`.

    Returns:
        (task, its columns) for every target task that gets something, and the rows that failed, by number.
    """
    failures: dict[int, Exception] = {}
    chosen = [_choose(grouper, columns, failures) for grouper in router.groupers]
    kept: Indices | None = None
    if failures:
        kept = np.setdiff1d(np.arange(len(columns)), [*failures])
        if not len(kept):
            return [], sorted(failures.items())
        columns = columns.take(kept)
    distributed: list[tuple[int, ArrowColumns]] = []
    for grouper, (choices, codes) in zip(router.groupers, chosen):
        mine = codes if kept is None or codes is None else codes[kept]
        distributed += [
            (task, _picked(columns, rows)) for task, rows in _distribute(grouper, choices, mine, len(columns))
        ]
    return distributed, sorted(failures.items())


def _choose(grouper: Any, columns: ArrowColumns, failures: dict[int, Exception]) -> tuple[Any, Indices | None]:
    """(choices, for each row the position of its choice); no choices where there is nothing to choose."""
    if grouper.key_fields is None:
        return None, None
    faults: dict[int, Exception] = {}
    if grouper.key_fields:
        codes, first = distinct_rows(columns.batch, grouper.key_fields)
        choices = grouper.choose(columns.take(first).rows(), faults)
    else:
        codes = np.arange(len(columns))
        choices = grouper.choose(columns.rows(), faults)
    for kind, fault in faults.items():
        failures.update(dict.fromkeys(map(int, np.flatnonzero(codes == kind)), fault))
    return choices, None if choices is None else codes


def _distribute(grouper: Any, choices: Any, codes: Indices | None, count: int) -> list[tuple[int, Any]]:
    """(task, row numbers) for each target task."""
    owner = getattr(grouper, "owner", None)
    if codes is not None and owner is not None:
        owners = [-1 if choice is None else owner(choice) for choice in choices]
        tasks = np.array(owners, np.int32)[codes]
        return [(task, rows) for task in sorted(set(owners)) if len(rows := np.flatnonzero(tasks == task))]
    each = None if codes is None else [choices[code] for code in codes.tolist()]
    batches: list[Batch] = []
    # Row numbers stand for the rows, all in one segment: only their tasks are asked for.
    grouper.distribute(batches, each, cast("list[Any]", range(count)), [0], [count])
    return [(batch.task, batch.values) for batch in batches]


def _picked(columns: ArrowColumns, rows: Any) -> ArrowColumns:
    if isinstance(rows, range):
        return columns.slice(rows.start, rows.stop)
    if len(rows) == len(columns):
        return columns  # row numbers come in order
    return columns.take(np.asarray(rows))
