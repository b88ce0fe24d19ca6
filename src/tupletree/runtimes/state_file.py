"""State in files: the rows of a file as `tupletree state --export` writes them, with the place of each for errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tupletree.errors import ConfigError
from tupletree.topology.model import TopologySpec

COLUMNS = ("component", "key", "value")


@dataclass(frozen=True)
class ImportRow:
    """One row of state that is to be imported.

    Attributes:
        place: where it is in the file, for errors.
        component: the bolt.
        key, value: as `tupletree state --export` writes them: JSON-compatible data.
        expires_s: when it expires, since the Unix epoch; None: by the bolt's time to live, from now on.
    """

    place: str
    component: str
    key: Any
    value: Any
    expires_s: float | None = None


def rows_of(path: Path, spec: TopologySpec) -> Iterator[ImportRow]:
    """The rows of a file. Raises ConfigError for one that cannot be read, or a line that is no row."""
    readers = {".jsonl": _jsonl_rows, ".parquet": _parquet_rows}
    if path.suffix not in readers:
        raise ConfigError(
            "the file has no known format", got=str(path), expected="a name that ends in .parquet or .jsonl"
        )
    try:
        yield from readers[path.suffix](path, spec)
    except OSError as error:
        raise ConfigError("the file cannot be read", where=str(path), got=str(error)) from error


def _jsonl_rows(path: Path, _: TopologySpec) -> Iterator[ImportRow]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ConfigError("a line is no JSON", where=f"{path}:{number}", got=str(error)) from error
            yield _row(f"{path}:{number}", row)


def _parquet_rows(path: Path, spec: TopologySpec) -> Iterator[ImportRow]:
    """Keys and values that an export had no column type for are JSON texts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except pa.ArrowException as error:
        raise ConfigError("the file is no Parquet", where=str(path), got=str(error)) from error
    texts = {name: _are_texts(spec, name) for name in spec.components}
    number = 0
    for batch in file.iter_batches():
        for row in batch.to_pylist():
            number += 1
            place = f"{path}, row {number}"
            name = row.get("component")
            is_text = texts.get(name, (False, False)) if isinstance(name, str) else (False, False)
            for column, as_it_is in zip(("key", "value"), is_text, strict=True):
                if isinstance(row.get(column), str) and not as_it_is:
                    try:
                        row[column] = json.loads(row[column])
                    except ValueError as error:
                        raise ConfigError(f"its {column} is no JSON", where=place, got=str(error)) from error
                elif isinstance(row.get(column), bytes):
                    from tupletree.data.payloads import to_jsonable

                    row[column] = to_jsonable(row[column])
            yield _row(place, row)


def _are_texts(spec: TopologySpec, name: str) -> tuple[bool, bool]:
    """Whether keys and values of a bolt are texts as they are."""
    component = spec.components[name]
    state = getattr(component.body, "state", None)
    if state is None:
        return False, False
    is_text_key = False
    if state.is_keyed:
        source = component.inputs[0]
        fields = spec.components[source.component].outputs[source.stream].schema.fields
        is_text_key = [fields[one] for one in source.grouping.fields] == [str]
    return is_text_key, state.value_type is str


def _row(place: str, row: Any) -> ImportRow:
    if not isinstance(row, dict) or not all(name in row for name in COLUMNS):
        raise ConfigError(
            "this is no row of state",
            where=place,
            got=", ".join(row) if isinstance(row, dict) else type(row).__name__,
            expected="component, key, value and, if it expires, expires_s",
        )
    return ImportRow(place, row["component"], row["key"], row["value"], row.get("expires_s"))
