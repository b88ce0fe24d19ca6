"""The demo's topology: it is sound, and its troubles are where the demo says they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tupletree.cli.demo_orders import Sale, orders, parse, topology
from tupletree.errors import PermanentError


def test_the_demo_is_sound(tmp_path: Path) -> None:
    assert list(topology(tmp_path).build().components) == ["orders", "parse", "settle", "receipts"]


def test_every_250th_order_is_unreadable_and_one_is_deadly() -> None:
    made = orders(500, deadly=444)
    assert [order.number for order in made if order.deadly] == [444]
    unreadable = []
    for order in made:
        if not order.deadly:
            try:
                assert isinstance(parse(order), Sale)
            except PermanentError:
                unreadable.append(order.number)
    assert unreadable == [250, 500]


def test_a_readable_order_becomes_a_sale() -> None:
    [first] = orders(1, deadly=None)
    assert parse(first) == Sale(1, "customer-1", 11)


@pytest.mark.parametrize("count", [1, 7])
def test_order_numbers_start_at_one(count: int) -> None:
    assert [order.number for order in orders(count, deadly=None)] == list(range(1, count + 1))
