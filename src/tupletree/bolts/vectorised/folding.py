"""The arithmetic of aggregates by key: values so far, and a batch, give new values. It imports numpy and pyarrow.

Numbers and text are folded as whole columns. What columns hold as text (Decimal, moments) is folded value by value, by
the same rules.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tupletree.data.codec import ArrowCodec
from tupletree.topology import hints
from tupletree.topology.components import Anchored, KeyedBatch
from tupletree.topology.keys import coercion_of
from tupletree.topology.streams import Schema

Codes = npt.NDArray[np.int64]

SAFE_SUM = 2.0**62


class Folding:
    """The function of an aggregate; see `aggregates`. Called as an Arrow bolt's function is.

    Args:
        fold: which one.
        message, keys: class of the tuples, and the fields of their key.
        into, result: class of the rows, and the field for the value.
        field: whose values are folded; empty where none is.
        size: how many values `top` keeps.
    """

    def __init__(
        self, fold: str, message: Schema, keys: tuple[str, ...], into: Schema, result: str, field: str, size: int
    ) -> None:
        self._codec = ArrowCodec.of(message)
        self._into = ArrowCodec.of(into)
        self._keys = keys
        self._result = result
        self._field = field
        self._size = size
        self._add: Callable[[list[Any], Codes, pa.RecordBatch], list[Any]] = getattr(self, f"_{fold}")
        self._show: Callable[[Any], Any] = SHOWN.get(fold, _itself)
        kinds = (
            [kind for kind in hints.members(message.fields[field]) if kind is not hints.NONE_TYPE] if field else [int]
        )
        self._kind = kinds[0]
        self._canonical = coercion_of(message.fields[field]) if field else None

    def __call__(self, batch: pa.RecordBatch, keyed: KeyedBatch[Any]) -> Anchored:
        """One row per key: its value so far."""
        values = keyed.values = self._add(keyed.values, keyed.codes, batch)
        columns = {name: batch.column(name).take(keyed.first) for name in self._keys}
        columns[self._result] = self._into.column(self._result, list(map(self._show, values)))
        return keyed.anchored(pa.RecordBatch.from_pydict(columns))

    def _column(self, codes: Codes, batch: pa.RecordBatch) -> tuple[Codes, pa.Array[Any]]:
        """The field's column without nulls, and the codes of these rows."""
        column = batch.column(self._field)
        if not column.null_count:
            return codes, column
        return codes[np.asarray(column.is_valid())], column.drop_null()

    def _items(self, codes: Codes, batch: pa.RecordBatch) -> list[tuple[int, Any]]:
        """(code, value) of each row with a value."""
        items = self._codec.items(self._field, batch)
        return [(code, item) for code, item in zip(codes.tolist(), items, strict=True) if item is not None]

    def _count(self, held: list[int], codes: Codes, batch: pa.RecordBatch) -> list[int]:  # noqa: ARG002 - see `_add`
        return list(map(operator.add, held, np.bincount(codes, minlength=len(held)).tolist()))

    def _sum(self, held: list[Any], codes: Codes, batch: pa.RecordBatch) -> list[Any]:
        if self._kind not in {int, float}:
            return self._one_by_one(held, codes, batch, operator.add)
        codes, column = self._column(codes, batch)
        numbers = np.asarray(column)
        if self._kind is float:
            return _listed(_sums(held, codes, numbers))
        if len(numbers) and float(np.abs(numbers.astype(np.float64)).max()) * len(numbers) > SAFE_SUM:
            return self._one_by_one(held, codes, batch, operator.add)
        added = np.zeros(len(held), np.int64)
        np.add.at(added, codes, numbers)
        return list(map(operator.add, held, added.tolist()))

    def _mean(self, held: list[tuple[float, int]], codes: Codes, batch: pa.RecordBatch) -> list[tuple[float, int]]:
        codes, column = self._column(codes, batch)
        sums = _sums([total for total, _ in held], codes, np.asarray(column).astype(np.float64))
        counts = np.bincount(codes, minlength=len(held)).tolist()
        return [(total, number + more) for total, (_, number), more in zip(_listed(sums), held, counts, strict=True)]

    def _min(self, held: list[Any], codes: Codes, batch: pa.RecordBatch) -> list[Any]:
        return self._extreme(held, codes, batch, "min", _smaller)

    def _max(self, held: list[Any], codes: Codes, batch: pa.RecordBatch) -> list[Any]:
        return self._extreme(held, codes, batch, "max", _larger)

    def _extreme(
        self,
        held: list[Any],
        codes: Codes,
        batch: pa.RecordBatch,
        which: Literal["min", "max"],
        choose: Callable[[Any, Any], Any],
    ) -> list[Any]:
        if self._kind not in COMPARED:
            return self._one_by_one(held, codes, batch, choose)
        codes, column = self._column(codes, batch)
        if not len(codes):
            return held
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        found: list[Any]
        if self._kind is float:
            numbers = np.asarray(column)[order]
            found = _listed((np.fmin if which == "min" else np.maximum).reduceat(numbers, starts))
        else:
            table = pa.table({"code": ordered, "value": column.take(order)})
            grouped = table.group_by("code", use_threads=False).aggregate([("value", which)])
            found = self._codec.items_of(self._field, grouped.column(f"value_{which}").combine_chunks())
        values = list(held)
        for code, value in zip(ordered[starts].tolist(), found, strict=True):
            values[code] = choose(values[code], value)
        return values

    def _distinct(self, held: list[set[Any]], codes: Codes, batch: pa.RecordBatch) -> list[set[Any]]:
        codes, column = self._column(codes, batch)
        encoded = column.dictionary_encode()
        kinds = self._codec.items_of(self._field, encoded.dictionary)
        assert self._canonical is not None
        canonical = list(map(self._canonical, kinds))
        width = max(1, len(canonical))
        pairs = np.unique(codes * width + np.asarray(encoded.indices)) if len(codes) else codes
        for pair in pairs.tolist():
            values, value = held[pair // width], canonical[pair % width]
            if value != value:  # noqa: PLR0124 - NaN, which sets tell apart as objects; those that were stored are others
                values -= {one for one in values if one != one}  # noqa: PLR0124 - NaN
            values.add(value)
        return held

    def _top(self, held: list[list[Any]], codes: Codes, batch: pa.RecordBatch) -> list[list[Any]]:
        added: dict[int, list[Any]] = {}
        for code, value in self._largest(codes, batch):
            added.setdefault(code, []).append(value)
        values = list(held)
        for code, more in added.items():
            values[code] = heapq.nlargest(self._size, [*held[code], *more], key=_rank)
        return values

    def _largest(self, codes: Codes, batch: pa.RecordBatch) -> list[tuple[int, Any]]:
        """(code, value): of each key at least the largest `size` values."""
        if self._kind not in {int, float} or not len(codes):
            return self._items(codes, batch)
        codes, column = self._column(codes, batch)
        numbers = np.asarray(column)
        order = np.lexsort((numbers, codes))[::-1]  # NaN sorts last, and so comes first
        ordered = codes[order]
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(ordered) else ordered
        rank = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.append(starts, len(ordered))))
        kept = rank < self._size
        return list(zip(ordered[kept].tolist(), numbers[order][kept].tolist(), strict=True))

    def _one_by_one(
        self, held: list[Any], codes: Codes, batch: pa.RecordBatch, choose: Callable[[Any, Any], Any]
    ) -> list[Any]:
        values = list(held)
        for code, value in self._items(codes, batch):
            values[code] = choose(values[code], value)
        return values


def keep_first(batch: pa.RecordBatch, keyed: KeyedBatch[bool]) -> Anchored:
    """The first row of each key that was not seen before."""
    rows = keyed.first[~np.array(keyed.values, np.bool_)]
    keyed.values = [True] * len(keyed.keys)
    return Anchored(batch.take(rows), rows)


def _itself(value: Any) -> Any:
    return value


def _sums(held: list[float], codes: Codes, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Add numbers to the sums of their keys, one after the other, as a loop would."""
    sums = np.array(held, np.float64)
    # As in Python: inf - inf is NaN, what is too large is inf, and both without a warning.
    with np.errstate(invalid="ignore", over="ignore"):
        np.add.at(sums, codes, numbers)
    return sums


def _listed(numbers: npt.NDArray[np.float64]) -> list[Any]:
    listed: list[Any] = numbers.tolist()
    return listed


def _smaller(held: Any, value: Any) -> Any:
    if held is None or (type(held) is float and math.isnan(held)):
        return value
    return min(held, value)


def _larger(held: Any, value: Any) -> Any:
    if held is None or (type(value) is float and math.isnan(value)):
        return value
    return max(held, value)


def _rank(value: Any) -> Any:
    """NaN is larger than any other number."""
    return (1, 0.0) if type(value) is float and math.isnan(value) else (0, value)


COMPARED = frozenset({int, float, str, bytes})
"""Kinds whose columns order as their values do."""

SHOWN: dict[str, Callable[[Any], Any]] = {
    "mean": lambda held: held[0] / held[1] if held[1] else None,
    "distinct": len,
}
