"""Orders from a queue, through a service that fails now and then, to a table and a second queue.

    python examples/queue_pipeline.py sqlite:///shop.db 1000
    tupletree run examples/queue_pipeline.py --set queue=sqlite:///shop.db --set table=sqlite:///sales.db
    tupletree queues depth "sqlite:///shop.db?queue=orders"

The first line publishes 1,000 orders, of which every hundredth is no order at all. The run ends when the queue is
empty; `--set follow=true` waits for more. `queue` is any broker that docs/queues.md names. If a run on Spark is killed
and started again on its `--state-dir`, each order is sold once; with `--runtime local` at least once: what was not
acked is sold again, to the same row of the table and under the same id.
"""

from __future__ import annotations

import sys
import zlib
from typing import Literal, TypeAlias

import msgspec

from tupletree import PermanentError, TaskContext, Topology, bolt
from tupletree.queues import Message, open_queue, url_of
from tupletree.sinks import queue_sink, sql
from tupletree.sources import queue as queue_of

POISON_EVERY = 100

ReadOn: TypeAlias = Literal["driver", "executors"]


class Order(msgspec.Struct, frozen=True):
    """What a customer wants."""

    id: str
    article: str
    pieces: int


class Sale(msgspec.Struct, frozen=True):
    """An order with its price."""

    id: str
    article: str
    cents: int


PRICES = {"pear": 40, "plum": 15, "fig": 55}


@bolt
def price(order: Order, context: TaskContext) -> Sale:
    """Ask what it costs. The service fails for one order of ten, at the first attempt."""
    if zlib.crc32(order.id.encode()) % 10 == 0 and context.attempt == 1:
        raise RuntimeError("the price service did not answer")
    if order.article not in PRICES:
        raise PermanentError(f"nobody sells {order.article!r}")
    return Sale(order.id, order.article, PRICES[order.article] * order.pieces)


def topology(
    queue: str = "sqlite:///shop.db",
    table: str = "sqlite:///sales.db",
    follow: bool = False,
    lease_s: float = 60.0,
    read_on: ReadOn = "driver",
) -> Topology:
    """Price orders.

    Args:
        queue: URL of the broker; the queues are `orders` and `sales`.
        table: URL of the database with the table `sales`.
        follow: wait for more when the queue is empty.
        lease_s: so long the orders of a run that was killed wait for another one.
        read_on: who takes orders from the broker on Spark. Executors cannot from RabbitMQ and Kafka.
    """
    t = Topology("queue-pipeline")
    source = queue_of(url_of(queue, "orders"), Order, follow=follow, lease_s=lease_s, read_on=read_on)
    orders = t.spout("orders", source)
    sales = t.bolt("price", price, parallelism=2).shuffle(orders)
    t.sink("table", sql(table, "sales", key="id", message_type=Sale)).shuffle(sales)
    t.sink("sales", queue_sink(url_of(queue, "sales"), id="id", key="article")).shuffle(sales)
    return t


def publish(queue: str, count: int) -> int:
    """Publish orders; how many were new. One of a hundred is no order."""
    articles = [*PRICES]
    with open_queue(url_of(queue, "orders")) as orders:
        new = 0
        for first in range(0, count, 1000):
            batch = []
            for number in range(first, min(count, first + 1000)):
                order = Order(f"order-{number}", articles[number % 3], number % 7 + 1)
                is_poison = number % POISON_EVERY == POISON_EVERY - 1
                body = b"no order" if is_poison else msgspec.json.encode(order)
                batch.append(Message(id=order.id, body=body, content_type="application/json"))
            new += orders.publish(batch)
    return new


if __name__ == "__main__":
    print(publish(sys.argv[1], int(sys.argv[2])), "orders published")
