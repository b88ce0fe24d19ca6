"""Rows that their class refused: mended the class, their dead letters are replayed like any others."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.ordinary.conftest import begin_in_process
from tupletree import Topology
from tupletree.runtimes import deadletters
from tupletree.runtimes import run as api_run
from tupletree.runtimes.api import RunHandle
from tupletree.sinks import foreach
from tupletree.sources import delta_rows, jsonl_rows, parquet_rows

AT = datetime(2026, 11, 30, 3, 26, tzinfo=UTC)

HANG_S = 60.0


class Part(msgspec.Struct, frozen=True):
    sku: str
    count: int


def order_class(number: Any, **others: Any) -> type[Any]:
    """The class of the orders, which gets mended between two runs."""
    fields: list[Any] = [
        ("name", str),
        ("number", number),
        ("at", datetime),
        ("price", Decimal),
        ("parts", list[Part]),
        ("notes", dict[str, str]),
        *((name, kind, None) for name, kind in others.items()),
    ]
    return msgspec.defstruct("Order", fields, module=__name__, frozen=True)


ROWS: list[dict[str, Any]] = [
    {
        "name": name,
        "number": number,
        "at": AT,
        "price": Decimal("1.25"),
        "parts": [{"sku": "é", "count": 2}] if name == "b" else [],
        "notes": {"k": "v"},
    }
    for name, number in (("a", 1), ("b", None), ("c", 3))
]


def jsonl(folder: Path) -> Callable[[type[Any]], Any]:
    path = folder / "orders.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, ROWS)) + b"\nno object\n")
    return lambda cls: jsonl_rows(path, message_type=cls)


def table() -> pa.Table:
    kinds: dict[str, pa.DataType] = {
        "name": pa.string(),
        "number": pa.int64(),
        "at": pa.timestamp("us", "UTC"),
        "price": pa.decimal128(12, 2),
        "parts": pa.list_(pa.struct([("sku", pa.string()), ("count", pa.int32())])),
        "notes": pa.map_(pa.string(), pa.string()),
    }
    rows = [{**row, "notes": [*row["notes"].items()]} for row in ROWS]
    return pa.Table.from_pylist(rows, schema=pa.schema(kinds))


def parquet(folder: Path) -> Callable[[type[Any]], Any]:
    (folder / "orders").mkdir()
    pq.write_table(table(), folder / "orders" / "a.parquet")
    (folder / "orders" / "b.parquet").write_bytes(b"no Parquet")
    return lambda cls: parquet_rows(folder / "orders", message_type=cls)


def delta(folder: Path) -> Callable[[type[Any]], Any]:
    write_deltalake(folder / "table", table())
    return lambda cls: delta_rows(folder / "table", message_type=cls)


def in_process(t: Topology, state: Path) -> RunHandle:
    return begin_in_process(t, state)


def durable(t: Topology, state: Path) -> RunHandle:
    return api_run.run(t, runtime="local", state_dir=state, durable=True)


@pytest.mark.parametrize("begin", [in_process, durable])
@pytest.mark.parametrize("make", [jsonl, parquet, delta])
def test_rows_that_their_class_refused_are_replayed_by_the_class_as_it_is_now(
    make: Callable[[Path], Callable[[type[Any]], Any]],
    begin: Callable[[Topology, Path], RunHandle],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, state = make(tmp_path), tmp_path / "state"
    seen: list[Any] = []

    def topology(cls: type[Any]) -> Topology:
        t = Topology("orders")
        t.sink("out", foreach(seen.extend)).shuffle(t.spout("orders", source(cls)))
        return t

    never = 0 if make is delta else 1
    ended = begin(topology(order_class(int)), state).wait(HANG_S)
    assert (ended.acked, ended.dead) == (2, 1 + never)
    deadletters.request_replay(state, None)
    with caplog.at_level(logging.WARNING):  # the class is as it was
        ended = begin(topology(order_class(int)), state).wait(HANG_S)
    assert (ended.acked, ended.dead) == (2, 1 + never)
    assert "cannot be replayed" in caplog.text
    assert len(deadletters.read(state)) == 1 + never

    mended = order_class(int | None, channel=str | None)
    deadletters.request_replay(state, None)
    ended = begin(topology(mended), state).wait(HANG_S)
    assert (ended.emitted, ended.acked, ended.dead) == (3 + never, 3, never)
    (row,) = [row for row in seen if row.name == "b"]
    assert row == mended("b", None, AT, Decimal("1.25"), [Part("é", 2)], {"k": "v"}, None)
    assert len(deadletters.read(state)) == never


def test_the_letter_of_a_refused_row_shows_it_as_json(tmp_path: Path) -> None:
    source = parquet(tmp_path)
    t = Topology("orders")
    t.sink("out", foreach(lambda _: None)).shuffle(t.spout("orders", source(order_class(int))))
    assert begin_in_process(t, tmp_path / "state").wait(HANG_S).dead == 2
    (letter,) = [one for one in deadletters.read(tmp_path / "state") if "a.parquet" in str(one.message_id)]
    tuple_text = letter.failure.failing_tuple
    assert '"number":null' in tuple_text
    assert json.dumps("1.25") in tuple_text
