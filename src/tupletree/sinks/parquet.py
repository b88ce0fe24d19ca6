"""Parquet: files that are typed by the message class, one for each candidate, in folders of partitions if asked for.

Owns the Parquet side of the file protocol. Which Arrow type a field gets, and which values fit, is the codec's
decision, so that a sink accepts exactly what a stream can carry. pyarrow is imported on first use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tupletree.errors import CheckpointError, ConfigError, Finding, InternalError, ProcessingError
from tupletree.sinks.files import MADE, Candidate, FileSink, RowError, SinkRowsError, check_flags, written
from tupletree.sinks.fitting import batch_of, native_columns_of
from tupletree.sinks.partitions import columns_of_partitions, divide, partition_faults

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
        partition_by: fields that name folders, as Hive and Spark have them (`day=2026-11-29/`), and are no columns of
            the files. A row with an empty text there fails its message: the layout has none.
        max_partitions: most folders that the rows of one task and one epoch (locally: one batch) go to, and some of a
            large epoch; rows of further ones fail their messages. One file is open at a time.

    Raises:
        ConfigError: `message_type` has no such fields, or they cannot name folders. Without it a start says so.

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
        partition_by: str | Sequence[str] = (),
        max_partitions: int = 1000,
    ) -> None:
        super().__init__(directory, message_type=message_type, made=made)
        self.compression = compression
        self.native = native
        self.partition_by = columns_of_partitions(partition_by)
        if max_partitions < 1:
            raise ConfigError("a number of partitions is too small", where="max_partitions", got=str(max_partitions))
        self.max_partitions = max_partitions
        if message_type is not None and (faults := self.faults_of(message_type)):
            raise ConfigError(f"{self} cannot write {message_type.__qualname__}", findings=faults)

    def faults_of(self, cls: type) -> list[Finding]:
        return partition_faults(self.partition_by, cls)

    def write_candidate(self, path: Path, rows: Sequence[Any], made: Sequence[int] | None = None) -> None:
        if not rows and self.message_type is None:
            raise InternalError("a Parquet file without rows needs a message class", where=str(path))
        self._store(path, self._table_of(path, rows, made))

    def write_candidates(
        self, path_of: Callable[[int], Path], rows: Sequence[Any], made: Sequence[int] | None = None
    ) -> list[Candidate]:
        """See `FileSink.write_candidates`: with `partition_by` one for each folder, else one."""
        if not self.partition_by:
            return super().write_candidates(path_of, rows, made)
        return self._write_parts(path_of, self._table_of(path_of(0), rows, made))

    def _table_of(self, path: Path, rows: Sequence[Any], made: Sequence[int] | None) -> Any:
        import numpy as np
        import pyarrow as pa

        batch = batch_of(self.message_type or type(rows[0]), rows, str(path), native=self.native)
        table = pa.Table.from_batches([batch])
        if made is not None:
            if MADE in table.column_names:
                reason = f"the field {MADE!r} has the name of the column that says how new a row is"
                raise SinkRowsError(str(path), (RowError(at, reason, "ValueError") for at in range(len(rows))))
            table = table.append_column(MADE, pa.array(np.asarray(made, np.int64)))
        return table

    def _write_parts(self, path_of: Callable[[int], Path], table: Any) -> list[Candidate]:
        """Write each folder's rows. Raises SinkRowsError, with nothing written, for rows that no folder can hold."""
        parts, faults = divide(table, self.partition_by, self.max_partitions)
        if faults:
            raise SinkRowsError(str(path_of(0)), faults)
        written_parts = []
        for number, part in enumerate(parts):
            path = path_of(number)
            self._store(path, part.table)
            written_parts.append(Candidate(path, part.folder, part.rows))
        return written_parts

    def write_batches(self, path_of: Callable[[int], Path], batches: Sequence[tuple[type, Any]]) -> list[Candidate]:
        """As `write_candidates`, for rows that are record batches of their class's codec: (class, batch).

        Returns:
            No candidate, and nothing is written, if they are not all of the class that the files are to have, or some
            cannot be written: `write_candidates` says which.
        """
        import pyarrow as pa

        classes = {cls for cls, _ in batches}
        if classes != {self.message_type or batches[0][0]}:
            return []
        several = [batch for _, batch in batches]
        if self.native:
            (cls,) = classes
            try:
                several = [native_columns_of(cls).of_batch(batch) for batch in several]
            except ProcessingError:
                return []
        table = pa.Table.from_batches(several)
        if self.partition_by:
            try:
                return self._write_parts(path_of, table)
            except SinkRowsError:
                return []
        self._store(path_of(0), table)
        return [Candidate(path_of(0))]

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
