"""Filter, project and explode at work; see `columns`. It imports numpy and pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tupletree.data.codec import ArrowCodec
from tupletree.topology import hints
from tupletree.topology.components import Anchored
from tupletree.topology.streams import Schema

ROW = "__row"


class Filtering:
    """Rows for which an expression is true."""

    def __init__(self, message: Schema, where: pc.Expression) -> None:
        self._schema = ArrowCodec.of(message).arrow_schema
        self._where = where

    def __call__(self, batch: pa.RecordBatch) -> Anchored:
        """The rows that stay."""
        numbered = pa.Table.from_batches([batch]).append_column(
            ROW, pa.chunked_array([range(batch.num_rows)], pa.int64())
        )
        rows = numbered.filter(self._where).column(ROW).combine_chunks()
        return Anchored(batch.take(rows), rows)

    def rehearse(self) -> None:
        """Raise what is wrong with the expression."""
        self._schema.empty_table().filter(self._where)


class Projecting:
    """Rows of another class, made of expressions."""

    def __init__(self, message: Schema, into: Schema, fields: Mapping[str, pc.Expression]) -> None:
        self._schema = ArrowCodec.of(message).arrow_schema
        self._into = ArrowCodec.of(into)
        self._names = list(into.fields)
        self._expressions = [fields[name] if name in fields else pc.field(name) for name in self._names]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One row for each."""
        table = self._computed(pa.Table.from_batches([batch]))
        return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], self._names)

    def _computed(self, table: pa.Table) -> pa.Table:
        from pyarrow import acero  # an engine of its own, which the other bolts do not need

        steps = [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", acero.ProjectNodeOptions(self._expressions, self._names)),
        ]
        return acero.Declaration.from_sequence(steps).to_table(use_threads=False)

    def rehearse(self) -> None:
        """Raise what is wrong with the expressions."""
        self._into.conform(self(pa.RecordBatch.from_pylist([], self._schema)))


class Exploding:
    """One row for each part of a field."""

    def __init__(self, message: Schema, field: str, into: Schema, part: str, split: Any) -> None:
        self._codec = ArrowCodec.of(message)
        self._into = ArrowCodec.of(into)
        self._field = field
        self._part = part
        self._copied = [name for name in into.fields if name != part]
        self._split = split
        self._is_text = str in hints.members(message.fields[field])

    def __call__(self, batch: pa.RecordBatch) -> Anchored:
        """The parts, each with the row that it came of."""
        if self._is_text and not callable(self._split):
            rows, parts = self._split_texts(batch.column(self._field))
        else:
            rows, parts = self._listed(batch)
        columns = {name: batch.column(name).take(rows) for name in self._copied}
        return Anchored(pa.RecordBatch.from_pydict({**columns, self._part: parts}), rows)

    def _split_texts(self, texts: Any) -> tuple[pa.Array[Any], pa.Array[Any]]:
        if self._split is not None:
            lists = pc.split_pattern(texts, self._split)
            return pc.list_parent_indices(lists), pc.list_flatten(lists)
        # Where the last text ends in white space, Arrow 26 may read on behind it and give a word of what lies there.
        lists = pc.utf8_split_whitespace(pc.utf8_rtrim_whitespace(texts))
        rows, parts = pc.list_parent_indices(lists), pc.list_flatten(lists)
        filled = pc.not_equal(parts, pa.scalar(""))
        return rows.filter(filled), parts.filter(filled)

    def _listed(self, batch: pa.RecordBatch) -> tuple[pa.Array[Any], pa.Array[Any]]:
        parts_of: Callable[[Any], Iterable[Any]] = self._split if callable(self._split) else iter
        parts: list[Any] = []
        ends: list[int] = []
        for item in self._codec.items(self._field, batch):
            if item is not None:
                parts.extend(parts_of(item))
            ends.append(len(parts))
        rows = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        return pa.array(rows), self._into.column(self._part, parts)
