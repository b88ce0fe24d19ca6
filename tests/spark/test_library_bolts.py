"""The library's bolts on both runtimes: what plain bolts would have given, also when messages fail on the way."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc
import pytest

from tests.spark.conftest import RunTopology
from tests.spark.helpers_semantics import HEARD, Feed
from tupletree import PermanentError, Topology
from tupletree.bolts import (
    count_by_key,
    dedupe_by_key,
    explode,
    filter_rows,
    max_by_key,
    project,
    sum_by_key,
    top_by_key,
)
from tupletree.runtimes import run as api_run
from tupletree.sinks import parquet, read_rows
from tupletree.testing.conformance.messages import numbered

pytestmark = pytest.mark.spark


class Order(msgspec.Struct, frozen=True):
    customer: str | None
    items: str
    price: Decimal
    at: dt.datetime
    weight: float


class Item(msgspec.Struct, frozen=True):
    customer: str | None
    item: str
    weight: float


class Count(msgspec.Struct, frozen=True):
    item: str
    count: int


class Spent(msgspec.Struct, frozen=True):
    customer: str | None
    spent: Decimal


class Latest(msgspec.Struct, frozen=True):
    customer: str | None
    at: dt.datetime


class Heaviest(msgspec.Struct, frozen=True):
    customer: str | None
    weights: list[float]


class Customer(msgspec.Struct, frozen=True):
    customer: str | None


def order(number: int) -> Order:
    items = "boom" if number % 97 == 5 else f"{'abc'[number % 3]} b {'xyz'[number % 3]}"
    at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=number * 7 % 300)
    return Order([None, "ann", "bob"][number % 3], items, Decimal(number) / 100, at, number * 31 % 101 / 8)


ORDERS = [order(number) for number in range(400)]
BAD = {number for number, one in enumerate(ORDERS) if one.items == "boom"}
GOOD = [one for number, one in enumerate(ORDERS) if number not in BAD]


def split(text: str) -> list[str]:
    if text == "boom":
        raise PermanentError("boom")
    return text.split()


def topology(name: str, out: Path) -> Topology:
    t = Topology(name, options={"epoch_max_messages": 150})
    orders = t.spout("orders", Feed(name, Order, numbered(ORDERS)))
    items = t.bolt("items", explode(Order, "items", into=Item, split=split), parallelism=2).shuffle(orders)
    light = t.bolt("light", filter_rows(Item, pc.field("weight") < 10)).shuffle(items)
    counts = t.bolt("count", count_by_key(Item, "item", into=Count), parallelism=3).fields(light, "item")
    t.sink("counts", parquet(out / "counts")).shuffle(counts)
    keyed: dict[str, Any] = {
        "spent": sum_by_key(Order, "customer", field="price", into=Spent),
        "latest": max_by_key(Order, "customer", field="at", into=Latest),
        "heaviest": top_by_key(Order, "customer", field="weight", size=3, into=Heaviest),
    }
    for key, bolt in keyed.items():
        # Behind the bolt that fails, or orders with a bad item would count here.
        t.sink(f"{key}-rows", parquet(out / key)).shuffle(t.bolt(key, bolt, parallelism=2).fields(orders, "customer"))
    names = t.bolt("names", project(Item, Customer)).shuffle(items)
    once = t.bolt("once", dedupe_by_key(Customer, "customer"), parallelism=2).fields(names, "customer")
    t.sink("customers", parquet(out / "customers")).shuffle(once)
    return t


def last(out: Path, sink: str, key: str, value: str) -> dict[Any, Any]:
    """The value of each key in the row that was made of most: they only grow."""
    found: dict[Any, Any] = {}
    for row in read_rows(out / sink):
        held = found.get(row[key])
        found[row[key]] = row[value] if held is None or _rank(row[value]) >= _rank(held) else held
    return found


def _rank(value: Any) -> Any:
    return Decimal(value) if isinstance(value, str) and value[:1].isdigit() and "T" not in value else value


def by_customer(orders: list[Order]) -> Iterator[tuple[str | None, list[Order]]]:
    for customer in (None, "ann", "bob"):
        yield customer, [one for one in orders if one.customer == customer]


def check_items(out: Path) -> None:
    expected: dict[str, int] = {}
    for one in GOOD:
        for item in one.items.split() if one.weight < 10 else ():
            expected[item] = expected.get(item, 0) + 1
    assert last(out, "counts", "item", "count") == expected
    assert sorted(str(row["customer"]) for row in read_rows(out / "customers")) == ["None", "ann", "bob"]


def test_on_spark_they_count_what_was_acked_and_nothing_else(run_topology: RunTopology, tmp_path: Path) -> None:
    summary = run_topology(topology("library", tmp_path), tmp_path / "state")
    assert (summary.acked, summary.dead, summary.open) == (len(GOOD), len(BAD), 0)
    assert {message_id for message_id, _ in HEARD["library"].failed} == BAD
    check_items(tmp_path)
    spent = {customer: str(sum(one.price for one in orders)) for customer, orders in by_customer(GOOD)}
    assert {key: Decimal(value) for key, value in last(tmp_path, "spent", "customer", "spent").items()} == {
        key: Decimal(value) for key, value in spent.items()
    }
    latest = {customer: max(one.at for one in orders).isoformat() for customer, orders in by_customer(GOOD)}
    assert last(tmp_path, "latest", "customer", "at") == latest


def test_locally_they_give_the_same_rows(tmp_path: Path) -> None:
    run = api_run.run(topology("library-local", tmp_path), runtime="local", state_dir=tmp_path / "state")
    summary = run.wait(60.0)
    assert (summary.acked, summary.dead, summary.open) == (len(GOOD), len(BAD), 0)
    check_items(tmp_path)
    # State is at least once here: what a bad order spent before it failed stays counted.
    expected = {customer: max(one.at for one in orders).isoformat() for customer, orders in by_customer(ORDERS)}
    assert last(tmp_path, "latest", "customer", "at") == expected
