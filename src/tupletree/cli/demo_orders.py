"""The topology of `tupletree demo`: orders, some unreadable, some flaky, and one that kills its worker."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tupletree.errors import PermanentError
from tupletree.sinks.jsonl import jsonl
from tupletree.sources.items import items
from tupletree.topology.bolts import bolt
from tupletree.topology.builder import Topology
from tupletree.topology.components import KeyedState, TaskContext

__all__ = ["Order", "Receipt", "Sale", "orders", "parse", "settle", "topology"]

UNREADABLE_EVERY = 250
FLAKY_EVERY = 40


class Order(msgspec.Struct, frozen=True, gc=False):
    """What comes in: `customer,cents`, as somebody typed it; `deadly` kills the process that parses it."""

    number: int
    text: str
    deadly: bool = False


class Sale(msgspec.Struct, frozen=True, gc=False):
    """A parsed order."""

    number: int
    customer: str
    cents: int


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What comes out: the order and the customer's total so far."""

    number: int
    customer: str
    total_cents: int


@bolt
def parse(order: Order) -> Sale:
    """Read an order. One that cannot be read will never be, so no retry."""
    if order.deadly:
        os._exit(1)  # as a segmentation fault in a native library would
    customer, _, cents = order.text.partition(",")
    if not cents.isdigit():
        raise PermanentError("an order reads customer,cents", got=order.text)
    return Sale(order.number, customer, int(cents))


@bolt(state=int)
def settle(sale: Sale, total_cents: KeyedState[int], context: TaskContext) -> Receipt:
    """Add up each customer's sales. Every now and then the first attempt fails, as with a flaky service."""
    if sale.number % FLAKY_EVERY == 0 and context.attempt == 1:
        raise ConnectionError("the payment service did not answer")
    total_cents.value += sale.cents
    return Receipt(sale.number, sale.customer, total_cents.value)


def orders(count: int, deadly: int | None) -> list[Order]:
    """Numbered from 1; every 250th is unreadable, and number `deadly` kills its worker."""
    return [
        Order(
            number,
            f"customer-{number % 7},{number % 90 + 10}" if number % UNREADABLE_EVERY else f"customer-{number % 7};?",
            deadly=number == deadly,
        )
        for number in range(1, count + 1)
    ]


def topology(out: Path, count: int = 1000, deadly: int | None = None) -> Topology:
    """Orders → parse → settle, by customer → receipts."""
    made = orders(count, deadly)
    t = Topology("demo", options={"backoff_initial_ms": 10.0})
    incoming = t.spout("orders", items(made, ids=[f"order-{order.number}" for order in made]))
    sales = t.bolt("parse", parse, parallelism=2).shuffle(incoming)
    receipts = t.bolt("settle", settle, parallelism=2).fields(sales, "customer")
    t.sink("receipts", jsonl(out)).shuffle(receipts)
    return t
