"""`tupletree state`: what the bolts of a run remember, as a table or as a file."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from tupletree.cli.arguments import Drop, Json, Rename, Set, StateDir
from tupletree.cli.output import print_table
from tupletree.errors import ConfigError, Finding
from tupletree.escaping import escape_json
from tupletree.texts import counted, moment_text

if TYPE_CHECKING:
    from tupletree.runtimes.inspect import ComponentState
    from tupletree.state.contents import StateEntry

EXPORT_ROWS = 50_000
"""Rows that an export holds in memory at a time."""


def state_command(
    place: Annotated[
        str | None,
        typer.Argument(metavar="[TARGET|STATE_DIR]", help="A target, whose latest run it is, or a state directory."),
    ] = None,
    component: Annotated[
        list[str] | None, typer.Option("--component", metavar="NAME", help="Only this bolt; may be repeated.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="FILE", help="Write all of it to FILE, .parquet or .jsonl.")
    ] = None,
    import_: Annotated[
        Path | None,
        typer.Option("--import", metavar="FILE", help="Set the keys in FILE, an export; needs TARGET and --state-dir."),
    ] = None,
    rename: Rename = None,
    drop: Drop = None,
    limit: Annotated[int, typer.Option("--limit", help="Keys to show of each bolt; 0 is all.")] = 20,
    settings: Set = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Show what the bolts of a run remember: the newest committed version, also while the run goes on."""
    from tupletree.runtimes.run import stored_state

    if import_ is not None:
        _import(import_, place, state_dir, settings or [], (rename or [], drop or []))
        return
    epoch, components = stored_state(_state_dir(place, state_dir, settings or []))
    components = _chosen(components, component or [])
    if export is not None:
        rows = _export(export, components)
        print(f"{counted(rows, 'key')} of epoch {epoch} written to {export}", file=sys.stderr)
    elif as_json:
        for one in components:
            for entry in one.entries():
                print(escape_json(_line(one.name, entry)))
    elif not components:
        print("no bolt of this run has state so far")
    else:
        for one in components:
            _print_table(one, epoch, limit)


def _import(
    file: Path,
    place: str | None,
    state_dir: Path | None,
    settings: Sequence[str],
    words: tuple[Sequence[str], Sequence[str]],
) -> None:
    from tupletree.cli.settings import options_of, words_of
    from tupletree.cli.target import load_target
    from tupletree.runtimes.run import import_state
    from tupletree.runtimes.state_file import rows_of

    if place is None or state_dir is None:
        raise ConfigError(
            "an import needs to know the topology and the run",
            expected="tupletree state TARGET --state-dir DIR --import FILE",
        )
    topology, _ = load_target(place, settings)
    spec = topology.build()
    options = options_of(spec.options, None, ())
    counts = import_state(topology, options, state_dir, rows_of(file, spec), words_of(*words))
    for name, keys in counts.items():
        print(f"{name}: {counted(keys, 'key')} set; they count from the next start on", file=sys.stderr)
    if not counts:
        print("the file has no rows: nothing is changed", file=sys.stderr)


def _state_dir(place: str | None, state_dir: Path | None, settings: Sequence[str]) -> Path:
    from tupletree.cli.settings import find_state_dir, latest_of
    from tupletree.cli.target import load_target

    if place is None or state_dir is not None:
        return find_state_dir(state_dir)
    if Path(place).is_dir():
        return Path(place)
    try:
        topology, _ = load_target(place, settings)
    except ConfigError as error:
        way_out = Finding(
            "a state directory is enough to look at a run",
            got=place,
            expected="a state directory, or a target whose latest run is meant",
            next_step="tupletree state DIR, or --state-dir DIR: the one that `tupletree run` showed",
        )
        raise ConfigError(f"no run is named by {place!r}", findings=[*error.findings, way_out]) from error
    return latest_of(topology.name)


def _chosen(components: list[ComponentState], names: Sequence[str]) -> list[ComponentState]:
    known = [one.name for one in components]
    for name in names:
        if name not in known:
            raise ConfigError(findings=[Finding.unknown(f"no bolt {name!r} has state in this run", "", name, known)])
    return [one for one in components if not names or one.name in names]


def _print_table(component: ComponentState, epoch: int, limit: int) -> None:
    rows: list[tuple[str, ...]] = []
    keys = 0
    for entry in component.entries():
        keys += 1
        if not limit or keys <= limit:
            until = "" if entry.expires_s is None else moment_text(entry.expires_s)
            rows.append((_text(entry.key), _text(entry.value), until))
    shown = 3 if any(until for *_, until in rows) else 2
    size = f"{counted(component.size_bytes, 'byte')} in {counted(len(component.segments), 'file')}"
    print(f"{component.name}: {counted(keys, 'key')}, {size}, epoch {epoch}")
    print_table(("key", "value", "expires")[:shown], [row[:shown] for row in rows], whole=("key", "expires"))
    if limit and keys > limit:
        print(f"... and {keys - limit} more: --limit 0 shows them all, --export FILE writes them to a file")


def _export(path: Path, components: Sequence[ComponentState]) -> int:
    """Write every key as a row, atomically; returns how many."""
    writers = {".jsonl": _write_jsonl, ".parquet": _write_parquet}
    if path.suffix not in writers:
        raise ConfigError(
            "the export has no known format", got=str(path), expected="a name that ends in .parquet or .jsonl"
        )
    if os.path.lexists(path):
        raise _is_there(path)
    # A name that cannot be known before, and link(2), which replaces nothing: an existing file stays.
    draft = path.with_name(f"_{path.name}.{os.getpid()}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            rows = writers[path.suffix](file, components)
        os.link(draft, path)
    except FileExistsError as error:
        raise _is_there(path) from error
    except OSError as error:
        raise ConfigError("the export cannot be written", where=str(path), got=str(error)) from error
    finally:
        draft.unlink(missing_ok=True)
    return rows


def _is_there(path: Path) -> ConfigError:
    return ConfigError("the export's file is there already", where=str(path), next_step="name another, or remove it")


def _write_jsonl(file: BinaryIO, components: Sequence[ComponentState]) -> int:
    rows = 0
    for one in components:
        for entry in one.entries():
            file.write(f"{_line(one.name, entry)}\n".encode())
            rows += 1
    return rows


def _write_parquet(file: BinaryIO, components: Sequence[ComponentState]) -> int:
    """Keys and values keep their type where all of them have one that Parquet knows; else they are JSON texts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = [_kind_of(entry.key for one in components for entry in one.entries())]
    kinds.append(_kind_of(entry.value for one in components for entry in one.entries()))
    schema = pa.schema(
        [
            ("component", pa.string()),
            ("key", kinds[0] or pa.string()),
            ("value", kinds[1] or pa.string()),
            ("expires_s", pa.float64()),
        ]
    )
    rows = 0
    with pq.ParquetWriter(file, schema) as writer:
        for batch in _batches(components):
            columns: list[list[Any]] = [
                [name for name, _ in batch],
                [entry.key if kinds[0] else _text(entry.key) for _, entry in batch],
                [entry.value if kinds[1] else _text(entry.value) for _, entry in batch],
                [entry.expires_s for _, entry in batch],
            ]
            writer.write_table(pa.Table.from_pydict(dict(zip(schema.names, columns, strict=True)), schema=schema))
            rows += len(batch)
    return rows


def _batches(components: Sequence[ComponentState]) -> Iterator[list[tuple[str, StateEntry]]]:
    entries = ((one.name, entry) for one in components for entry in one.entries())
    while batch := list(islice(entries, EXPORT_ROWS)):
        yield batch


def _kind_of(values: Iterator[Any]) -> Any:
    """The Arrow type of values that are all numbers, texts, booleans or bytes; None otherwise."""
    import pyarrow as pa

    known = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_(), bytes: pa.binary()}
    kinds = {type(value) for value in values} - {type(None)}
    return known.get(kinds.pop()) if len(kinds) == 1 else None


def _line(component: str, entry: StateEntry) -> str:
    from tupletree.data.payloads import to_jsonable

    row = {
        "component": component,
        "key": to_jsonable(entry.key),
        "value": to_jsonable(entry.value),
        "expires_s": entry.expires_s,
    }
    return json.dumps(row, ensure_ascii=False)


def _text(value: Any) -> str:
    """Text as it is, anything else as JSON."""
    from tupletree.data.payloads import to_jsonable

    return value if type(value) is str else json.dumps(to_jsonable(value), ensure_ascii=False)
