"""Arrow bolts: one frame in, effects out, without a Python object per tuple.

An `ArrowTask` is for Arrow bolts what `plain.BoltTask` is for others. Owns which rows of a result are anchored to
which rows of the input, how a failed batch is split until each bad row fails alone, and the keyed state of a batch.
Imported lazily: it imports pyarrow.
"""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tupletree.bolts.call_retry import may_pass
from tupletree.bolts.effects import ColumnOutput, Outlet, StateCell, TaskPlace, Worked
from tupletree.bolts.failures import FailureMaker, wrong_type
from tupletree.data.codec import ArrowCodec, EncodeError
from tupletree.data.columns import Anchors, ArrowColumns, Indices, distinct_rows
from tupletree.data.frames import ColumnFrame, Frame, Root, done_roots, roots_of, segments_of
from tupletree.errors import ProcessingError
from tupletree.topology.components import Anchored
from tupletree.topology.model import BoltSpec, ComponentSpec, TopologySpec

KeyFunctions = Mapping[tuple[str, str], Callable[[list[Any]], list[Any]]]


@dataclass(frozen=True)
class _Input:
    """A stream that the bolt reads, and what its key is."""

    codec: ArrowCodec[Any]
    fields: tuple[str, ...]
    keys_of: Callable[[list[Any]], list[Any]] | None


# More than 12 attributes: each is looked up once, because calls go by the thousand.
class ArrowTask:
    """One task of an Arrow bolt; with the methods of `plain.BoltTask`. Not thread-safe.

    Args:
        spec: the topology.
        component: the bolt.
        place: its context object.
        state: the state cell if the bolt declares state.
        key_functions: (component, stream) of an input → function tuples → canonical keys; only read with state.
    """

    def __init__(
        self,
        spec: TopologySpec,
        component: ComponentSpec,
        place: TaskPlace,
        state: StateCell | None = None,
        key_functions: KeyFunctions | None = None,
    ) -> None:
        body: BoltSpec = component.body
        self._place = place
        self._state = state
        self._fail = FailureMaker(component.name, place.task_id, component.retry)
        self._rest: tuple[Frame, list[ArrowColumns]] | None = None  # what an outage left of a frame
        self._left: list[ArrowColumns] = []
        self._inputs = {
            (source.component, source.stream): _Input(
                ArrowCodec.of(spec.components[source.component].outputs[source.stream].schema),
                source.grouping.fields,
                (key_functions or {}).get((source.component, source.stream)),
            )
            for source in component.inputs
        }
        self._stream = ""
        self._codec: ArrowCodec[Any] | None = None
        for name, stream in component.outputs.items():  # the rows it returns are of one class
            self._stream, self._codec = name, ArrowCodec.of(stream.schema)
        self._target, self._parameter = body.target, body.value_parameter
        self._state_parameter = next((name for name, what in body.inject.items() if what == "state"), "")
        self._names_roots = place.wants_roots or "context" in body.inject.values()
        self._injected: dict[str, object] = {
            name: place if what == "context" else component.resources[what.removeprefix("resource:")]
            for name, what in body.inject.items()
            if what != "state"
        }

    def open(self) -> None:
        """Nothing to open: it is a function."""

    def close(self) -> None:
        """Nothing to close."""

    def tick(self, time_s: float) -> Worked:  # noqa: ARG002 - shaped like BoltTask
        """Arrow bolts have no ticks."""
        return Worked()

    def unsettled(self) -> list[int]:
        """Arrow bolts hold nothing."""
        return []

    def work(self, frame: Frame) -> Worked:
        """Process the frame as one batch, or in parts if the function raises."""
        worked = Worked()
        source = self._inputs[frame.component, frame.stream]
        columns = frame.columns if isinstance(frame, ColumnFrame) else self._columns_of(frame, source.codec, worked)
        self._work(frame, [] if columns is None else [columns], worked)
        return worked

    def resume(self) -> Worked:
        """As `work`, for what an outage left."""
        worked = Worked()
        if self._rest is not None:
            (frame, columns), self._rest = self._rest, None
            self._work(frame, columns, worked)
        return worked

    def resume_parts(self, outlet: Outlet) -> Iterator[Worked]:  # noqa: ARG002 - shaped like BoltTask
        """See `plain.BoltTask.resume_parts`."""
        yield self.resume()

    def waiting(self) -> list[int]:
        """Roots of the tuples that an outage left."""
        return [*self._ahead()]

    def _ahead(self) -> dict[int, None]:
        columns = self._rest[1] if self._rest is not None else []
        return dict.fromkeys(one for part in columns for root in part.layout()[0] for one in roots_of(root))

    def _work(self, frame: Frame, columns: list[ArrowColumns], worked: Worked) -> None:
        """Work rows of a frame, and name those of its roots as done that have no rows left."""
        source = self._inputs[frame.component, frame.stream]
        self._place.frame = frame
        made: list[ArrowColumns] = []
        for place, part in enumerate(columns):
            self._attempt(part, source, made, worked)
            if worked.outage is not None:
                self._left += columns[place + 1 :]
                break
        self._place.root = None
        roots: list[Root] = frame.roots
        if self._left:
            alive = (part.without(worked.failures) for part in self._left)
            self._rest = frame, [part for part in alive if part is not None]
            self._left = []
            ahead = self._ahead()
            before = dict.fromkeys(one for root in roots for one in roots_of(root) if one not in ahead)
            later = Frame(frame.task, frame.component, frame.stream, [], [*ahead], [], frame.id)
            self._rest = later, self._rest[1]
            roots = [*before]
        if worked.failures:
            alive = (part.without(worked.failures) for part in made)
            made = [part for part in alive if part is not None]
        if made:
            worked.outputs.append(ColumnOutput(self._stream, ArrowColumns.joined(made)))
        done = done_roots(Frame(frame.task, "", "", [], roots, [], frame.id), worked.failures)
        if done:
            worked.done.append((frame.id, done))

    def parts(self, frame: Frame, outlet: Outlet) -> Iterator[Worked]:  # noqa: ARG002 - shaped like BoltTask
        """See `plain.BoltTask.parts`."""
        yield self.work(frame)

    def _columns_of(self, frame: Frame, codec: ArrowCodec[Any], worked: Worked) -> ArrowColumns | None:
        """A frame of tuples as columns, without the tuples that no column can hold, which fail."""
        try:
            batch = codec.to_batch(frame.values)
        except EncodeError:
            faults = dict(codec.check_each(frame.values))
            owners = [root for root, part in segments_of(frame.values, frame.roots, frame.ends) for _ in part]
            for position, fault in faults.items():
                self._fail.blame(worked, owners[position], frame.values[position], fault)
            kept = [position for position in range(len(owners)) if position not in faults]
            if not kept:
                return None
            batch = codec.to_batch([frame.values[position] for position in kept])
            anchors = Anchors.of(frame.roots, frame.ends).take(np.array(kept))
            return ArrowColumns(batch, codec, anchors).without(worked.failures)
        return ArrowColumns(batch, codec, Anchors.of(frame.roots, frame.ends))

    def _attempt(self, columns: ArrowColumns, source: _Input, made: list[ArrowColumns], worked: Worked) -> None:
        """Call the bolt; if it raises, for each half of the rows, down to the rows that fail, or until an outage."""
        if worked.outage is not None:
            self._left.append(columns)
            return
        rows = len(columns)
        failed = self._call(columns, source, made)
        if failed is not None and self._place.waits and self._place.takes_as_outage(failed):
            worked.outage = failed
            self._left.append(columns)
            return
        is_again = False
        for _ in range(self._place.calls - 1 if rows == 1 else 0):  # for several it is called again by halves
            if failed is None or not may_pass(failed, self._place):
                break
            failed = self._call(columns, source, made)
            is_again = True
        if is_again:
            self._place.calls_again.note(passed=failed is None)
        if failed is None:
            return
        if rows == 1:
            self._fail.blame(worked, columns.root_of(0), columns.rows()[0], failed)
        else:
            self._attempt(columns.slice(0, rows // 2), source, made, worked)
            self._attempt(columns.slice(rows // 2, rows), source, made, worked)

    def _call(self, columns: ArrowColumns, source: _Input, made: list[ArrowColumns]) -> BaseException | None:
        """One call; what was raised, and then nothing came of it."""
        try:
            if self._names_roots:
                roots, _ = columns.anchors.whole(1).layout()
                self._place.take_in_hand(roots[0], len(columns))
            keyed = self._keyed(columns, source)
            results = self._results(columns, keyed)
            if keyed is not None:
                keyed.keep()
        except BaseException as error:  # noqa: BLE001 - user code may raise anything
            return error
        made += results
        return None

    def _keyed(self, columns: ArrowColumns, source: _Input) -> _KeysInHand | None:
        if self._state is None or source.keys_of is None:
            return None
        return _KeysInHand(columns, source.fields, source.keys_of, self._state, self._place.epoch_time_s)

    def _results(self, columns: ArrowColumns, keyed: _KeysInHand | None) -> list[ArrowColumns]:
        """What one call gave, with anchors."""
        injected = self._injected if keyed is None else {**self._injected, self._state_parameter: keyed}
        answer = self._target(**{self._parameter: columns.batch}, **injected)
        if answer is None:
            return []
        # An Anchored is a tuple, so it must not be taken for what holds several.
        several = [answer] if isinstance(answer, pa.RecordBatch | Anchored) else [*answer]
        plain_rows = sum(one.num_rows for one in several if isinstance(one, pa.RecordBatch))
        in_place = plain_rows == len(columns)
        results: list[ArrowColumns] = []
        start = 0
        for one in several:
            if isinstance(one, Anchored):
                codec = self._codec_for(one.batch)
                batch = codec.conform(one.batch)
                if batch.num_rows:
                    results.append(_anchored(batch, one.rows, codec, columns))
                continue
            codec = self._codec_for(one)
            batch = codec.conform(one)
            if batch.num_rows:
                stop = start + batch.num_rows
                anchors = columns.anchors.slice(start, stop) if in_place else columns.anchors.whole(batch.num_rows)
                start = stop
                results.append(ArrowColumns(batch, codec, anchors))
        return results

    def _codec_for(self, batch: Any) -> ArrowCodec[Any]:
        if self._codec is None or not isinstance(batch, pa.RecordBatch):
            raise wrong_type(batch, "nothing: it has no outputs" if self._codec is None else "pyarrow.RecordBatch")
        return self._codec


def _anchored(batch: pa.RecordBatch, rows: Any, codec: ArrowCodec[Any], columns: ArrowColumns) -> ArrowColumns:
    flat, groups = _origins(rows, batch.num_rows, len(columns))
    anchors = columns.anchors.take(flat) if groups is None else columns.anchors.grouped(flat, groups, batch.num_rows)
    return ArrowColumns(batch, codec, anchors)


def _origins(rows: Any, made: int, given: int) -> tuple[Indices, Indices | None]:
    """`Anchored.rows` as (row numbers, for each the new row that it belongs to); None: one each, in order."""
    if isinstance(rows, pa.ChunkedArray):
        rows = rows.combine_chunks()
    if isinstance(rows, list | tuple) and any(isinstance(row, list | tuple) for row in rows):
        rows = pa.array(rows, pa.list_(pa.int64()))
    groups: Indices | None = None
    count = len(rows)
    if isinstance(rows, pa.ListArray | pa.LargeListArray):
        lengths = np.asarray(rows.value_lengths().fill_null(0))
        groups = np.repeat(np.arange(count), lengths)
        rows = rows.flatten()
    flat = np.asarray(rows)
    if not len(flat):
        flat = flat.astype(np.int64)
    if count != made or flat.ndim != 1 or flat.dtype.kind not in "iu" or (len(flat) and not _within(flat, given)):
        raise ProcessingError(
            "the rows of an Anchored are wrong",
            got=f"{count} for {made} rows, {flat.dtype}" + (f", {flat.min()} to {flat.max()}" if len(flat) else ""),
            expected=f"for each row of its batch a row number of the input, from 0 to {given - 1}",
        )
    return flat.astype(np.int64), groups


def _within(flat: Any, given: int) -> bool:
    return bool(flat.min() >= 0 and flat.max() < given)


class _KeysInHand:
    """See `tupletree.KeyedBatch`."""

    def __init__(
        self,
        columns: ArrowColumns,
        fields: tuple[str, ...],
        keys_of: Callable[[list[Any]], list[Any]],
        state: StateCell,
        time_s: float,
    ) -> None:
        codes, first = distinct_rows(columns.batch, fields)
        keys = keys_of(columns.codec.from_batch(columns.batch.take(pa.array(first, pa.int64()))))
        merged = {key: position for position, key in enumerate(dict.fromkeys(keys))}
        if len(merged) < len(keys):  # some that differ are one key: -0.0 and 0.0, decimals, instants
            places = np.array([merged[key] for key in keys])
            codes = places[codes]
            first = first[np.unique(places, return_index=True)[1]]
        self.keys = list(merged)
        self.codes = codes
        self.first = first
        self._state = state
        self._time_s = time_s
        self._held: list[Any] = []
        self._values: list[Any] | None = None

    @property
    def values(self) -> list[Any]:
        if self._values is None:
            self._state.prepare(self.keys, self._time_s)
            changed, load = self._state.changed, self._state.load
            self._held = [changed[key] if key in changed else load(key) for key in self.keys]
            # Copies, because a call that fails is made again, with the values as they were.
            plain = ATOMS.issuperset(map(type, self._held))
            self._values = list(self._held) if plain else copy.deepcopy(self._held)
        return self._values

    @values.setter
    def values(self, values: list[Any]) -> None:
        if len(values) != len(self.keys):
            raise ProcessingError(
                "the values of a KeyedBatch are not as many as its keys",
                got=f"{len(values)}",
                expected=f"{len(self.keys)}",
            )
        _ = self.values  # what is held is compared with them
        self._values = list(values)

    def anchored(self, batch: pa.RecordBatch) -> Anchored:
        # Narrow integers are sorted by radix, an order faster.
        order = np.argsort(self.codes.astype(np.min_scalar_type(len(self.keys))), kind="stable")
        offsets = np.cumsum([0, *np.bincount(self.codes, minlength=len(self.keys))])
        return Anchored(batch, pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(order)))

    def keep(self) -> None:
        """The call has returned: what it set counts, if it can be stored."""
        if self._values is not None:
            changed, check = self._state.changed, self._state.check
            new = [
                (key, value)
                for key, held, value in zip(self.keys, self._held, self._values, strict=True)
                if value is not held
            ]
            if check is not None:
                for key, value in new:
                    check(key, value)
            for key, value in new:
                changed[key] = value


ATOMS = frozenset(
    {bool, int, float, str, bytes, type(None), decimal.Decimal, uuid.UUID, dt.datetime, dt.date, dt.time, dt.timedelta}
)
"""Values that cannot be changed in place."""
