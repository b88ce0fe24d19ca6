"""Columns that other tools read: their types, what comes back, and what is refused."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple
from uuid import UUID

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.places import Place
from tupletree.bolts.effects import TaskPlace
from tupletree.data.arrow_rows import ArrowRows
from tupletree.data.codec import ArrowCodec, EncodeError
from tupletree.data.native_columns import NativeColumns
from tupletree.sinks import delta, parquet
from tupletree.sinks.files import SinkRowsError
from tupletree.sources import delta_rows, parquet_rows
from tupletree.topology.components import SinkBatch
from tupletree.topology.splits import read_split
from tupletree.topology.streams import Schema

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
ID = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


class Colour(enum.Enum):
    RED = "r"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Part(msgspec.Struct, frozen=True):
    name: str
    at: datetime
    price: Decimal | None = None


@dataclass(frozen=True)
class Plain:
    count: int


class Node(msgspec.Struct, frozen=True):
    name: str
    next: Node | None = None


class Order(msgspec.Struct, frozen=True):
    at: datetime
    day: date
    hour: time
    took: timedelta
    price: Decimal
    key: UUID
    raw: bytes
    colour: Colour
    access: Access
    kind: Literal["a", "b"]
    tags: list[str]
    parts: dict[str, Part]
    first: Part
    plain: Plain
    counts: tuple[int, ...]
    maybe: list[Part | None] | None = None
    note: str | None = None
    number: int = 0


ORDER = Order(
    NOON.astimezone(timezone(timedelta(hours=2))),
    date(2026, 1, 2),
    time(3, 4),
    timedelta(seconds=5),
    Decimal("1.20"),
    ID,
    b"\x00",
    Colour.RED,
    Access.READ | Access.WRITE,
    "b",
    ["x", "y"],
    {"k": Part("p", NOON, Decimal("0.5"))},
    Part("f", NOON),
    Plain(3),
    (1, 2),
    [Part("m", NOON), None],
)


def made(*values: Any) -> pa.RecordBatch:
    return NativeColumns(Schema.of(type(values[0]))).to_batch(values)


def test_columns_have_the_types_of_other_tools() -> None:
    part = "struct<name: string, at: timestamp[us, tz=UTC], price: decimal128(38, 18)>"
    schema = made(ORDER).schema
    assert {field.name: str(field.type) for field in schema} == {
        "at": "timestamp[us, tz=UTC]",
        "day": "date32[day]",
        "hour": "time64[us]",
        "took": "duration[us]",
        "price": "decimal128(38, 18)",
        "key": "string",
        "raw": "binary",
        "colour": "string",
        "access": "int64",
        "kind": "string",
        "tags": "list<item: string>",
        "parts": f"map<string, {part}>",
        "first": part,
        "plain": "struct<count: int64>",
        "counts": "list<item: int64>",
        "maybe": f"list<item: {part}>",
        "note": "string",
        "number": "int64",
    }
    assert [field.name for field in schema if field.nullable] == ["maybe", "note"]


def test_what_was_written_comes_back_but_for_the_name_of_the_zone() -> None:
    # Flags are numbers then, which no class is made of again.
    class Same(Order, frozen=True):
        access: int  # type: ignore[assignment]

    (row,) = ArrowRows(Same).all(made(ORDER))
    assert msgspec.structs.asdict(row) == {**msgspec.structs.asdict(ORDER), "access": 3}


def test_a_batch_of_the_codec_becomes_the_same() -> None:
    columns = NativeColumns(Schema.of(Order))
    exact = ArrowCodec.of(Schema.of(Order)).to_batch([ORDER, ORDER])
    assert columns.of_batch(exact) == columns.to_batch([ORDER, ORDER])


class Loose(msgspec.Struct, frozen=True):
    either: int | str
    node: Node
    pair: tuple[int, str]
    anything: Any = None


def test_a_field_of_several_types_or_without_an_end_is_json() -> None:
    batch = made(Loose(1, Node("a", Node("b")), (1, "x"), {"k": [1]}), Loose("t", Node("a"), (2, "y")))
    inner = '{"name":"b","next":null}'
    assert batch.to_pylist() == [
        {"either": "1", "node": {"name": "a", "next": inner}, "pair": '[1,"x"]', "anything": '{"k":[1]}'},
        {"either": '"t"', "node": {"name": "a", "next": None}, "pair": '[2,"y"]', "anything": None},
    ]


class Inner(msgspec.Struct, frozen=True):
    either: int | str
    colours: dict[str, Colour]


class Mixed(msgspec.Struct, frozen=True):
    loose: Loose
    several: list[int | str | None]
    colours: list[Colour]
    inner: Inner
    by_colour: dict[Colour, Inner]
    took: timedelta
    times: list[time]
    tooks: list[timedelta]
    either: int | str | None = None


TOOK = timedelta(seconds=5, microseconds=1)
INNERS = (Inner("2", {"k": Colour.RED}), Inner(2, {}))
MIXED = [
    Mixed(
        Loose("1", Node("a", Node("b")), (1, "x"), {"k": [1]}),
        ["1", 1, None],
        [Colour.RED],
        inner,
        {Colour.RED: inner},
        TOOK,
        [time(3, 4)],
        [TOOK],
        "7",
    )
    for inner in INNERS
]


def test_json_and_names_of_members_come_back_wherever_they_are(tmp_path: Path) -> None:
    assert ArrowRows(Mixed).all(made(*MIXED)) == MIXED
    for sink in (parquet(tmp_path / "files", native=True), delta(tmp_path / "table", message_type=Mixed, native=True)):
        sink.open(TaskPlace("t", "out", 1, 0, 1, input_types=(Mixed,)))
        sink.write(SinkBatch("1", MIXED))
    sources: list[Any] = [parquet_rows(tmp_path / "files", message_type=Mixed)]
    sources.append(delta_rows(tmp_path / "table", message_type=Mixed))
    for source in sources:
        source.open(Place())
        assert [row for split in source.plan(10, 1 << 20) for row in read_split(source, split)] == MIXED


class Refused(msgspec.Struct, frozen=True):
    number: int
    either: int | str
    colours: list[Colour]
    took: timedelta
    node: Node
    refuses: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.refuses and self.number < 0:
            raise ValueError("it is not above 0")


def test_a_row_that_its_class_refused_is_the_same_where_it_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Refused, "refuses", False)
    values = [Refused(-1, "7", [Colour.RED], TOOK, Node("a", Node("b"))), Refused(-2, 7, [], TOOK, Node("a"))]
    for sink in (
        parquet(tmp_path / "files", native=True),
        delta(tmp_path / "table", message_type=Refused, native=True),
    ):
        sink.open(TaskPlace("t", "out", 1, 0, 1, input_types=(Refused,)))
        sink.write(SinkBatch("1", values))
    sources: list[Any] = [parquet_rows(tmp_path / "files", message_type=Refused)]
    sources.append(delta_rows(tmp_path / "table", message_type=Refused))
    for source in sources:
        source.open(Place())
        monkeypatch.setattr(Refused, "refuses", True)
        refused = [row for split in source.plan(10, 1 << 20) for row in read_split(source, split)]
        monkeypatch.setattr(Refused, "refuses", False)
        assert [source.value_of(row.payload) for row in refused] == values


class Took(msgspec.Struct, frozen=True):
    took: timedelta
    again: timedelta | None = None


@pytest.mark.parametrize("native", [False, True])
def test_a_duration_comes_back_from_a_delta_table_which_has_none(tmp_path: Path, native: bool) -> None:
    values = [Took(TOOK), Took(-TOOK, TOOK)]
    sink = delta(tmp_path, message_type=Took, native=native)
    sink.open(TaskPlace("t", "out", 1, 0, 1, input_types=(Took,)))
    sink.write(SinkBatch("1", values))
    source: Any = delta_rows(tmp_path, message_type=Took)
    source.open(Place())
    assert [row for split in source.plan(10, 1 << 20) for row in read_split(source, split)] == values


def test_text_of_others_in_a_field_of_several_types_is_text() -> None:
    class Either(msgspec.Struct, frozen=True):
        value: int | str

    assert ArrowRows(Either).all(pa.record_batch({"value": ["1", '"x"']})) == [Either("1"), Either('"x"')]


class Bare(NamedTuple):
    at: datetime
    price: Decimal = Decimal(0)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Bare(NOON.replace(tzinfo=None)), "has no zone"),
        (Bare(NOON, Decimal("NaN")), "Bare.price"),
        (Bare(NOON, Decimal("1e21")), "Bare.price"),
        (Bare(NOON, Decimal("1e-19")), "Bare.price"),
        (Bare("noon"), "Bare.at"),  # type: ignore[arg-type]
    ],
)
def test_what_no_column_holds_is_refused_with_its_row(value: Bare, reason: str) -> None:
    columns = NativeColumns(Schema.of(Bare))
    with pytest.raises(EncodeError):
        columns.to_batch([Bare(NOON), value])
    ((position, error),) = columns.check_each([Bare(NOON), value])
    assert position == 1
    assert reason in str(error)


def test_the_sink_writes_them_for_other_tools_and_names_rows_that_do_not_fit(tmp_path: Path) -> None:
    sink = parquet(tmp_path, native=True)
    sink.write_candidate(tmp_path / "a.parquet", [ORDER, ORDER])
    query = f"select \"at\", price, parts['k'].name, maybe[1].name from '{tmp_path}/a.parquet'"
    found = duckdb.connect().execute(query).fetchall()
    assert [(at.astimezone(UTC), *others) for at, *others in found] == [(NOON, Decimal("1.2"), "p", "m")] * 2
    exact = ArrowCodec.of(Schema.of(Order)).to_batch([ORDER])
    assert sink.write_batches(lambda _: tmp_path / "b.parquet", [(Order, exact), (Order, exact)])
    assert pq.read_table(tmp_path / "b.parquet").equals(pq.read_table(tmp_path / "a.parquet"))
    with pytest.raises(SinkRowsError) as raised:
        sink.write_candidate(tmp_path / "c.parquet", [Bare(NOON), Bare(NOON.replace(tzinfo=None)), Bare(NOON)])
    assert [fault.position for fault in raised.value.rows] == [1]
    naive = ArrowCodec.of(Schema.of(Bare)).to_batch([Bare(NOON.replace(tzinfo=None))])
    assert not sink.write_batches(lambda _: tmp_path / "d.parquet", [(Bare, naive)])


def test_delta_tables_have_them_too(tmp_path: Path) -> None:
    for _ in range(2):  # the second one finds the table as the first one has made it
        sink = delta(tmp_path / "table", message_type=Order, native=True)
        sink.open(TaskPlace("t", "out", 1, 0, 1, input_types=(Order,)))
        sink.write(SinkBatch(rows=[ORDER], id=str(_), number=0))
    rows = pa.table(DeltaTable(tmp_path / "table").to_pyarrow_table()).to_pylist()
    assert [(row["at"], row["hour"], row["took"], row["first"]["name"]) for row in rows] == [
        (NOON, "03:04:00.000000", 5_000_000, "f")
    ] * 2
