"""`parse`: JSON, JSON lines, CSV or Parquet → values."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from tupletree.errors import PermanentError
from tupletree.routes.adapters.builtin.split import pieces
from tupletree.routes.adapters.contract import Adapter, AdapterConfig, AdapterContext, AdapterResult, PipelineContext
from tupletree.routes.adapters.paths import Path, PathText, TargetText, value_at

MAX_CELL = 2**31 - 1


class ParseConfig(AdapterConfig):
    """What is parsed, and how.

    Attributes:
        format: `json` one value, `jsonl` a value in each line, `csv`, `parquet`.
        field: path of the text or bytes.
        into: where the value, or the list of rows, is put.
        split: each row is emitted as a message of its own, with the row at `into`; ends the chain.
        encoding: of bytes, for the formats that are text. A byte order mark is left out.
        delimiter, header: of CSV. With a header, rows are objects of texts; without, lists.
        columns: of Parquet: only these; none: all.
    """

    format: Literal["json", "jsonl", "csv", "parquet"]
    field: PathText = "payload"
    into: TargetText = "payload"
    split: bool = False
    encoding: str = "utf-8"
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    header: bool = True
    columns: list[str] | None = None


class Parse(Adapter[ParseConfig]):
    """Parses text or bytes; what does not parse fails the message for good."""

    Config = ParseConfig
    parallel = True

    def open(self, context: AdapterContext) -> None:  # noqa: ARG002 - the contract's
        """Let cells of CSV be as long as texts are."""
        self._read = _READERS[self.config.format]
        if self.config.format == "csv":
            csv.field_size_limit(MAX_CELL)  # the limit of the whole process; Python's is 131,072 characters

    def process(self, context: PipelineContext) -> AdapterResult:
        config = self.config
        data = value_at(Path(config.field), context.message, str | bytes, "text or bytes")
        try:
            value = self._read(data, config)
        except (ValueError, LookupError, csv.Error, pa.ArrowException, RecursionError) as error:
            raise PermanentError(
                f"this is no {config.format.upper()}", where=config.field, got=f"{type(error).__name__}: {error}"
            ) from error
        into = Path(config.into)
        if not config.split:
            return AdapterResult(into.put(context.message, value))
        rows = value if isinstance(value, list) else [value]
        return pieces([into.put(context.message, row).payload for row in rows], "there are no rows")


def _text(data: str | bytes, config: ParseConfig) -> str:
    return (data if isinstance(data, str) else data.decode(config.encoding)).removeprefix("\ufeff")


def _json(data: str | bytes, config: ParseConfig) -> Any:
    return json.loads(_text(data, config))


def _jsonl(data: str | bytes, config: ParseConfig) -> list[Any]:
    rows = []
    for number, line in enumerate(_text(data, config).split("\n"), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
    return rows


def _csv(data: str | bytes, config: ParseConfig) -> list[Any]:
    reader = csv.reader(io.StringIO(_text(data, config), newline=""), delimiter=config.delimiter, strict=True)
    rows = [(reader.line_num, row) for row in reader if row]
    if not config.header or not rows:
        return [row for _, row in rows]
    names = rows[0][1]
    if len(set(names)) != len(names):
        raise ValueError(f"two columns have one name: {', '.join(names)}")
    for line, row in rows[1:]:
        if len(row) != len(names):
            raise ValueError(f"line {line}: {len(row)} cells, the header has {len(names)}")
    return [dict(zip(names, row)) for _, row in rows[1:]]


def _parquet(data: str | bytes, config: ParseConfig) -> list[Any]:
    if isinstance(data, str):
        raise UnicodeError("text; Parquet is bytes")
    rows: list[Any] = pq.read_table(pa.BufferReader(data), columns=config.columns).to_pylist()
    return rows


_READERS: dict[str, Callable[[str | bytes, ParseConfig], Any]] = {
    "json": _json,
    "jsonl": _jsonl,
    "csv": _csv,
    "parquet": _parquet,
}
