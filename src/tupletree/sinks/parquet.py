"""Parquet: one file per candidate, typed by the message class.

Owns the Parquet side of the file protocol. Which Arrow type a field gets, and which values fit, is the codec's
decision, so that a sink accepts exactly what a stream can carry. pyarrow is imported on first use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tupletree.errors import CheckpointError, InternalError, ProcessingError
from tupletree.sinks.files import MADE, FileSink, RowError, SinkRowsError, check_flags, written
from tupletree.sinks.fitting import batch_of, native_columns_of

Compression: TypeAlias = Literal["zstd", "snappy", "lz4", "gzip", "brotli", "none"]


class ParquetSink(FileSink):
    """Write rows to `directory` as Parquet files; the columns are the fields of the message class.

    All rows of one file are of one class: give each stream its own sink. A row that its class's Arrow types cannot
    hold (an integer beyond 64 bits, a lone surrogate, a wrong type) fails its message with a reason; none is changed.

    Args:
        directory: the folder; a run refuses one that another run has filled, unless told to append.
        message_type: class of the rows; None takes the class of a file's first row.
        compression: how pages are packed; zstd reads fast and is small.
        made: a last column `_made` (int64) says how new each row's values are; see `jsonl`.
        native: columns have the types of other tools (timestamps, decimals, lists, maps, structs) in the place of text
            and msgpack. A datetime without a zone, and a Decimal of more than 20 digits before or 18 behind the point,
            fail their message.

    Example:
        >>> parquet("out").suffix
        '.parquet'
    """

    suffix = ".parquet"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        message_type: type | None = None,
        compression: Compression = "zstd",
        made: bool = False,
        native: bool = False,
    ) -> None:
        super().__init__(directory, message_type=message_type, made=made)
        self.compression = compression
        self.native = native

    def write_candidate(self, path: Path, rows: Sequence[Any], made: Sequence[int] | None = None) -> None:
        import numpy as np
        import pyarrow as pa

        if not rows and self.message_type is None:
            raise InternalError("a Parquet file without rows needs a message class", where=str(path))
        batch = batch_of(self.message_type or type(rows[0]), rows, str(path), native=self.native)
        table = pa.Table.from_batches([batch])
        if made is not None:
            if MADE in table.column_names:
                reason = f"the field {MADE!r} has the name of the column that says how new a row is"
                raise SinkRowsError(str(path), (RowError(at, reason, "ValueError") for at in range(len(rows))))
            table = table.append_column(MADE, pa.array(np.asarray(made, np.int64)))
        self._store(path, table)

    def write_batches(self, path: Path, batches: Sequence[tuple[type, Any]]) -> bool:
        """As `write_candidate`, for rows that are record batches of their class's codec: (class, batch).

        Returns:
            False, and nothing is written, if they are not all of the class that the file is to have.
        """
        import pyarrow as pa

        classes = {cls for cls, _ in batches}
        if classes != {self.message_type or batches[0][0]}:
            return False
        several = [batch for _, batch in batches]
        if self.native:
            (cls,) = classes
            try:
                several = [native_columns_of(cls).of_batch(batch) for batch in several]
            except ProcessingError:
                return False  # `write_candidate` says which rows do not fit
        self._store(path, pa.Table.from_batches(several))
        return True

    def filter_candidate(self, source: Path, destination: Path, keep: Sequence[bool]) -> int:
        """See `FileSink.filter_candidate`. The kept rows are the same values, compressed again."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.ParquetFile(source).read()
        except FileNotFoundError as error:
            raise CheckpointError("a candidate file is gone", where=str(source)) from error
        check_flags(source, table.num_rows, keep)
        kept = table.filter(pa.array(keep, pa.bool_()))
        self._store(destination, kept)
        return kept.num_rows

    def _store(self, path: Path, table: Any) -> None:
        import pyarrow.parquet as pq

        settings: dict[str, Any] = {}
        if self.ordered and table.column_names[-1:] == [MADE]:
            # Most numbers are one more than the one before: their differences take next to nothing, in time and on the
            # disk. A dictionary of them, which is the default, would be as long as the column.
            others = [leaf for field in [*table.schema][:-1] for leaf in _leaves(field.name, field.type)]
            settings = {"use_dictionary": others, "column_encoding": {MADE: "DELTA_BINARY_PACKED"}}
        with written(path) as file:
            pq.write_table(table, file, compression=self.compression, **settings)


parquet = ParquetSink


def _leaves(name: str, kind: Any) -> Iterator[str]:
    """The columns that a field has in the file, as Parquet names them."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{name}.{field.name}", field.type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{name}.key_value.key", kind.key_type)
        yield from _leaves(f"{name}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves(f"{name}.list.element", kind.value_type)
    else:
        yield name
