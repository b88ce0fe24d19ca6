"""Calls of adapters as rows: the columns of every store, and the number that statistics count by.

Owns the names and order of columns, and how a duration becomes a class of durations. Refuses to know where rows are
written.

A row's `cell` is one number for what statistics group by: 40 bits for the step (a hash of pipeline, route, adapter and
position), 4 for the status, 10 for the class of its duration. So a database counts a million rows through one narrow
index. Classes are 1/16 of a doubling wide: a duration that is read from its class is right within 2.2 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, get_args

import xxhash

from tupletree.routes.messages import CallRecord, CallStatus

STATUSES: tuple[CallStatus, ...] = get_args(CallStatus)
"""In the order of their numbers in cells, which must not change."""

REST_S = 60.0
"""How often a store looks for old rows."""

MAX_ERROR = 2_000
"""Characters of an error that are kept."""

_STATUS_BITS, _CLASS_BITS, _STEP_BITS = 4, 10, 40
_PER_DOUBLING = 16
_NUMBERS = {status: number for number, status in enumerate(STATUSES)}


class Row(NamedTuple):
    """A call, as it is stored. See `CallRecord`."""

    message: str
    position: int
    attempt: int
    started_s: float
    ended_s: float
    execution: str
    cell: int
    pipeline: str
    route: str
    adapter: str
    status: str
    input_hash: str
    output_hash: str
    error: str
    batch: str
    trace: str


COLUMNS: tuple[str, ...] = Row._fields
KEY = ("message", "position", "attempt", "started_s")
"""Names a call: a record that comes again replaces what is there."""


class Edge(NamedTuple):
    """A message, and one of those that it came of."""

    child: str
    parent: str


class StepName(NamedTuple):
    """What a step number stands for."""

    step: int
    pipeline: str
    route: str
    adapter: str
    position: int


class RowMaker:
    """Makes rows of one pipeline's records, and remembers the numbers of its steps."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._numbers: dict[tuple[str, str, int], int] = {}

    def row(self, record: CallRecord) -> Row:
        """The row of a record."""
        place = record.route, record.adapter, record.position
        step = self._numbers.get(place)
        if step is None:
            step = self._numbers[place] = _step_number(self._pipeline, *place)
        error = record.error
        return Row(
            record.message,
            record.position,
            record.attempt,
            record.started_s,
            record.ended_s,
            record.execution,
            cell_of(step, record.status, record.ended_s - record.started_s),
            self._pipeline,
            record.route,
            record.adapter,
            record.status,
            record.input_hash,
            record.output_hash,
            clean(error) if error else "",
            record.batch,
            record.trace,
        )

    def known(self) -> list[StepName]:
        """Every step of which a row was made."""
        return [StepName(number, self._pipeline, *place) for place, number in self._numbers.items()]


def edges_of(records: Iterable[CallRecord]) -> set[Edge]:
    """From each message to its parents."""
    return {Edge(record.message, parent) for record in records if record.parents for parent in record.parents}


def cell_of(step: int, status: CallStatus, seconds: float) -> int:
    """The number that a call is counted under."""
    return (step << _STATUS_BITS | _NUMBERS[status]) << _CLASS_BITS | class_of(seconds)


def split_cell(cell: int) -> tuple[int, CallStatus, int]:
    """Step, status and class of duration."""
    rest = cell >> _CLASS_BITS
    return rest >> _STATUS_BITS, STATUSES[rest & (1 << _STATUS_BITS) - 1], cell & (1 << _CLASS_BITS) - 1


def class_of(seconds: float) -> int:
    """The class of a duration: 0 up to a microsecond, then 16 to a doubling."""
    if not seconds > 1e-6:
        return 0
    return min(int(math.log2(seconds * 1e6) * _PER_DOUBLING) + 1, (1 << _CLASS_BITS) - 1)


def seconds_of_class(number: int) -> float:
    """The middle of a class."""
    return 2.0 ** ((number - 0.5) / _PER_DOUBLING) * 1e-6 if number else 0.0


def clean(text: str) -> str:
    """Text that every database takes: no NUL, nothing that is no UTF-8, not too long."""
    if len(text) > MAX_ERROR:
        text = text[: MAX_ERROR - 1] + "…"
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def _step_number(pipeline: str, route: str, adapter: str, position: int) -> int:
    name = "\0".join((pipeline, route, adapter, str(position)))
    return xxhash.xxh64_intdigest(name.encode()) >> (64 - _STEP_BITS)
