"""Rows of Parquet files as messages, read on executors: files that are there, and those that come.

Owns the identity of a row, and how rows become splits and messages. Which rows come next is `parquet_files`; how they
are read, `parquet_pieces`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from tupletree.clock import Clock, SystemClock
from tupletree.errors import ConfigError, ConnectorError, EndOfInput, Finding, TupletreeError
from tupletree.sources.files import FileList, Order, Paths, way_out
from tupletree.sources.parquet_files import (
    InFile,
    Lost,
    NotParquetError,
    ParquetFiles,
    find_files,
    footer_of,
    partition_of,
    place_of_rows,
)
from tupletree.sources.parquet_pieces import Damaged, read_batches, rows_in, rows_of, value_again, values_of
from tupletree.topology.components import Reject, TaskContext
from tupletree.topology.splits import Split, SplitSpout

T = TypeVar("T")

SAMPLE_ROWS = 100
"""So many rows of the first file are tried before a run."""


class ParquetRows(SplitSpout[T], Generic[T]):
    """Read Parquet files, as Spark, pandas, DuckDB and others write them; every row is one message.

    A column becomes the field of its name; others are passed over. A field that no column has takes its value from the
    path (`day=2026-11-29/part-0.parquet`), or its default, or is None where it may be. Timestamps become datetimes,
    structs messages, lists and maps what the class says. A row that its class cannot hold, and a file that is no
    Parquet file or lacks a column, becomes a dead letter that says why.

    The message id is (name, row number), the name being the one under which the file was first seen, the first row 0; a
    later file of the same name has (name, 2, row number). A run that resumes goes on with the next row: files may have
    been added, renamed, restored from a copy or, once they were read, deleted. A file is not to be written again while
    its rows are not settled; after that, it is read as a new one.

    On Spark, executors read the rows, and must find the files under the same paths. One task plans, at any parallelism.

    Args:
        paths: files, folders, and patterns (`events/*.parquet`). A folder stands for all that end with .parquet in it
            and below; names that begin with `_` or `.` are passed over.
        message_type: class of the messages.
        follow: never end: wait for files that come. One without a footer is waited for until nobody has written to it
            for 5 s.
        order: "name": in the order given, what a pattern matches by name; "time": all by when they were changed last.
        poll_interval_s: with `follow`, seconds between two looks for new files, and at least four times what a look
            takes.
        clock: for tests.

    Raises:
        ConfigError: no paths, a path twice, an order that is none, or the folder of a Delta table.
        TopologyError: a field's type cannot travel.

    Example:
        >>> class Sale(msgspec.Struct):
        ...     shop: str
        >>> parquet_rows("sales/*.parquet", message_type=Sale).paths
        ['sales/*.parquet']
    """

    _reads: bool  # whether this is the task that plans
    _plans: ParquetFiles

    def __init__(
        self,
        paths: Paths,
        *,
        message_type: type[T],
        follow: bool = False,
        order: Order = "name",
        poll_interval_s: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        several = [paths] if isinstance(paths, str | os.PathLike) else paths
        self._files = FileList([_pattern_of(os.fspath(path)) for path in several], "parquet_rows", order)
        self.message_type = message_type
        self.follow = follow
        self.poll_interval_s = poll_interval_s
        self.clock = clock or SystemClock()
        rows_of(self._class)  # refuse an unsuitable class where it is named

    def __repr__(self) -> str:
        return f"ParquetRows({', '.join(self.paths)})"

    @property
    def paths(self) -> list[str]:
        """As they were given; patterns in the place of folders."""
        return self._files.given

    def faults(self) -> Sequence[Finding]:
        """Every path that cannot be read, and why the rows of the first file do not fit."""
        listing = find_files(self._files)
        unmatched = () if self.follow else listing.unmatched.values()
        findings = [*listing.faults.values(), *listing.missing.values(), *unmatched]
        return findings or [finding for file in listing.files[:1] if (finding := self._misfit(file.path))]

    def _misfit(self, path: str) -> Finding | None:
        """Why no row of a file, of the first ones, fits the class."""
        try:
            footer = footer_of(path)
        except NotParquetError as error:
            return None if self.follow else Finding(f"cannot be read as Parquet: {error}", where=path)
        except OSError as error:
            return Finding(error.strerror or str(error), where=path)
        made = rows_of(self._class)
        if missing := made.missing({*footer.columns, *partition_of(path)}):
            return Finding(
                f"has no column for {', '.join(missing)}",
                where=path,
                got=", ".join(footer.columns),
                next_step=f"give these fields of {self._class.__qualname__} a default, or let them be None",
            )
        sample = [*self._rows(path, path, Split(min(footer.rows, SAMPLE_ROWS), 0, path))] if footer.rows else []
        if sample and all(isinstance(row, Reject) for row in sample):
            return Finding(f"no row fits {self._class.__qualname__}", where=path, got=sample[0].reason)
        return None

    def value_of(self, payload: bytes) -> T:
        """See `Spout`. Raises ProcessingError: it is no row, or none that its class can hold."""
        value: T = value_again(self._class, payload)
        return value

    def open(self, context: TaskContext) -> None:
        """Begin with the first row; what cannot be read is named by the first `plan`."""
        self._reads = context.task_index == 0
        self._files.begin()
        self._plans = self._new_plans()

    def plan(self, max_rows: int, max_bytes: int) -> Sequence[Split] | None:
        """Name the next rows, in as many files as it takes.

        Raises:
            ConnectorError: files cannot be read; it names them all.
        """
        planned: list[Split] = []
        while max_rows > 0 and (max_bytes > 0 or not planned):
            try:
                split = self._plans.take(max_rows, max_bytes) if self._reads else None
            except TupletreeError:
                if planned:
                    break  # what was planned goes out first; the error comes again
                raise
            if split is None:
                break
            planned.append(split)
            max_rows -= split.rows
            max_bytes -= split.size_bytes
        if not planned and not (self.follow and self._reads):
            raise EndOfInput
        return planned or None

    def read(self, split: Split) -> Iterator[T | Reject]:
        """Read the rows of a file, if it is what it was."""
        data = msgspec.convert(split.data, InFile | Lost)
        if isinstance(data, Lost):
            return iter([Reject((split.source or "").encode(errors="replace"), split.message_id(0), data.reason)])
        return self._rows(place_of_rows(split, data), split.source or "", split)

    def snapshot(self) -> dict[str, Any]:
        """What was planned of each file, in a form of its own."""
        return self._plans.snapshot()

    def restore(self, position: Mapping[str, Any]) -> None:
        """Continue after a snapshot; the first `plan` compares it with the files that are there.

        Raises:
            CheckpointError: it is none.
        """
        self._plans = self._new_plans()
        self._plans.restore(position)

    def _new_plans(self) -> ParquetFiles:
        return ParquetFiles(
            self._files,
            follow=self.follow,
            poll_interval_s=self.poll_interval_s,
            needs=rows_of(self._class).missing(()),
            clock=self.clock,
        )

    @property
    def _class(self) -> type:
        return self.message_type

    def _rows(self, path: str, name: str, split: Split) -> Iterator[Any]:
        made, texts = rows_of(self._class), partition_of(name)
        index = 0
        try:
            for part in read_batches(path, [*made.schema.fields], split.first, split.rows):
                whole = part if isinstance(part, Damaged) else made.with_texts(part, texts)
                yield from values_of(self._class, whole, split, index)
                index += rows_in(part)
        except OSError as error:
            raise ConnectorError(
                f"cannot be read: {error.strerror or error}", where=name, next_step=way_out(error)
            ) from error


parquet_rows = ParquetRows


def _pattern_of(path: str) -> str:
    """A folder's Parquet files as a pattern."""
    if not (path.endswith("/") or Path(path).is_dir()):
        return path
    if Path(path, "_delta_log").is_dir():
        raise ConfigError(
            "this is a Delta table: not all of its files have rows that count",
            where="parquet_rows",
            got=path,
            next_step="read it by delta_rows",
        )
    return str(Path(path, "**", "*.parquet"))
