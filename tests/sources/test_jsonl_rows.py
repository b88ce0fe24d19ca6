"""JSON Lines as messages: typed objects, and dead letters that say what is wrong with a line."""

from __future__ import annotations

import gzip
import pickle
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import pytest

from tests.places import Place
from tupletree import Topology
from tupletree.errors import ConfigError, EndOfInput, TopologyError
from tupletree.runtimes.run import run
from tupletree.sinks import jsonl, read_rows
from tupletree.sources import jsonl_rows
from tupletree.topology.components import Emit, Reject
from tupletree.topology.splits import read_split


class Item(msgspec.Struct, frozen=True):
    sku: str
    count: int = 1


class Order(msgspec.Struct, frozen=True):
    number: int
    at: datetime
    price: Decimal
    items: list[Item]


@dataclass(frozen=True)
class Plain:
    number: int


@dataclass(frozen=True)
class Positive:
    number: int
    error: ClassVar[type[Exception]]

    def __post_init__(self) -> None:
        if self.number < 0:
            raise self.error("it is not above 0")


class Pair(NamedTuple):
    number: int


AT = datetime(2026, 11, 29, 12, tzinfo=UTC)
LINE = '{"number":1,"at":"2026-11-29T12:00:00Z","price":"1.20","items":[{"sku":"tea"}],"more":[1]}'


def read(path: Path, cls: type = Order, **options: Any) -> list[tuple[Any, Any]]:
    """(id, value or reject), as a split and as `next` gives them, which must be the same."""
    source: Any = jsonl_rows(path, message_type=cls, **options)
    source.open(Place())
    planned = []
    try:
        while splits := source.plan(3, 1 << 20):
            copy = pickle.loads(pickle.dumps(jsonl_rows(path, message_type=cls, **options)))
            planned += [
                (split.message_id(at), row) for split in splits for at, row in enumerate(read_split(copy, split))
            ]
    except EndOfInput:
        source.close()
    pulled = []
    source.open(Place())
    try:
        while given := source.next():
            pulled += [(one.message_id, one.value if isinstance(one, Emit) else one) for one in given]
    except EndOfInput:
        source.close()
    assert pulled == planned
    return planned


def test_each_line_is_a_message_of_the_class(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{LINE}\n{LINE}\r\n{LINE}", newline="")
    order = Order(1, AT, Decimal("1.20"), [Item("tea")])
    assert read(path) == [((str(path), number), order) for number in (1, 2, 3)]
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"number": 7}\n'))
    assert read(packed, Plain) == [((str(packed), 1), Plain(7))]
    marked = tmp_path / "c.jsonl"
    marked.write_bytes(b'\xef\xbb\xbf{"number": 8}\n')
    assert read(marked, Plain) == [((str(marked), 1), Plain(8))]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "an empty line"),
        (b"  ", "an empty line"),
        (b"not json", "malformed"),
        (b'{"number": "1"}', "Expected `int`, got `str` - at `$.number`"),
        (b"{}", "missing required field `number`"),
        (b"[1]", "Expected `object`, got `array`"),
        (b'{"number": 1} {"number": 2}', "trailing"),
        (b'{"number": 1', "truncated"),
        (b"\xff", "not utf-8"),
    ],
)
def test_a_line_that_is_no_such_object_is_rejected_with_its_place(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"number": 1}\n' + line + b'\n{"number": 3}\n')
    (_, one), (place, lost), (_, three) = read(path, Plain)
    assert (one, three) == (Plain(1), Plain(3))
    assert isinstance(lost, Reject)
    assert place == lost.message_id == (str(path), 2)
    assert lost.payload == line
    assert f"{path}, line 2" in lost.reason
    assert reason in lost.reason


@pytest.mark.parametrize("error", [ValueError, AssertionError, ZeroDivisionError])
def test_a_line_that_its_class_refuses_leaves_the_others(tmp_path: Path, error: type[Exception]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"number": 1}\n{"number": -1}\n{"number": 3}\n')
    Positive.error = error
    (_, one), (place, lost), (_, three) = read(path, Positive)
    assert (one, three) == (Positive(1), Positive(3))
    assert isinstance(lost, Reject)
    assert place == lost.message_id == (str(path), 2)
    assert "it is not above 0" in lost.reason


def test_classes_that_do_not_fit_are_refused_where_they_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="NamedTuple"):
        jsonl_rows(tmp_path, message_type=Pair)
    with pytest.raises(TopologyError):
        jsonl_rows(tmp_path, message_type=int)
    with pytest.raises(ConfigError, match="no files to read"):
        jsonl_rows([], message_type=Plain)


def test_what_a_sink_has_written_is_read_again(tmp_path: Path) -> None:
    t = Topology("copy")
    (tmp_path / "in.jsonl").write_text(f"{LINE}\nbroken\n{LINE}\n")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(
        t.spout("orders", jsonl_rows(tmp_path / "in.jsonl", message_type=Order))
    )
    ended = run(t, runtime="local").wait(30.0)
    assert (ended.acked, ended.dead) == (2, 1)
    again = Topology("again")
    again.sink("out", jsonl(tmp_path / "again")).shuffle(
        again.spout("orders", jsonl_rows(f"{tmp_path}/out/*.jsonl", message_type=Order))
    )
    assert run(again, runtime="local").wait(30.0).acked == 2
    rows = [Counter(map(str, read_rows(tmp_path / folder))) for folder in ("out", "again")]
    assert rows[0] == rows[1]
