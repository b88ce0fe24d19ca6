"""What is asked of several brokers in the same way, beside what the conformance suite asks."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.queues.servers import NatsServer, RedisServer
from tests.queues.test_sources_and_sinks import Order, Runner, price
from tupletree import Topology
from tupletree.cli.main import main
from tupletree.errors import ConnectorError
from tupletree.queues import Delivery, Failure, Message, Queue, open_queue
from tupletree.sinks import queue_sink
from tupletree.sources import queue as queue_source


def priced_from_one_queue_into_another(url_of: Callable[[str], str], folder: Path, runner: Runner) -> None:
    """A topology reads one queue and writes another: of 61 orders 6 are refused by the bolt and one is no order.

    Args:
        url_of: the place of a queue of this name.
    """
    inbound_url, invoices_url = (url_of(f"{name}-{runner.__name__}") for name in ("orders", "invoices"))
    t = Topology("pricing")
    orders = t.spout("orders", queue_source(inbound_url, Order, follow=False))
    t.sink("invoices", queue_sink(invoices_url)).shuffle(t.bolt("price", price).shuffle(orders))
    with open_queue(inbound_url) as inbound:
        bodies = [b'{"number":%d,"pears":%d}' % (n, -1 if n % 10 == 7 else n) for n in range(60)] + [b"three pears"]
        inbound.publish([Message(id=f"m{number}", body=body) for number, body in enumerate(bodies)])
        summary = runner(t, folder)
        assert (summary.acked, summary.dead) == (54, 7)
        assert (inbound.depth().open, inbound.depth().dead) == (0, 7)
    with open_queue(invoices_url) as invoices:
        found: list[Delivery] = []
        while leased := invoices.lease(100):
            found += leased
        numbers = sorted(msgspec.json.decode(one.message.body)["order"] for one in found)
        assert numbers == [n for n in range(60) if n % 10 != 7]


def shared_by_four_consumers(url: str) -> None:
    """Each message of a queue is acked by one of its consumers."""
    ids = [f"m{number}" for number in range(2000)]
    with open_queue(url) as queue:
        assert queue.publish([Message(id=one) for one in ids]) == 2000
    seen: list[str] = []

    def consume() -> None:
        with open_queue(url) as mine:
            while leased := mine.lease(37, lease_s=60):
                refused = mine.ack([one.handle for one in leased])
                seen.extend(one.message.id for one in leased if one.handle not in refused)

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Counter(seen) == Counter(ids)


def found_where_the_server_was_killed(server: NatsServer | RedisServer, queue: Queue) -> Counter[str]:
    """How often each of the messages m0 to m299 was acked, or is left after the server was killed twice."""
    ids = [f"m{number}" for number in range(300)]
    queue.publish([Message(id=one, body=one.encode()) for one in ids])
    done: list[str] = []
    for turn in range(6):
        leased = queue.lease(50, lease_s=3600)
        queue.ack([one.handle for one in leased[:30]])
        done += [one.message.id for one in leased[:30]]
        if turn in {1, 3}:
            server.kill()
            with pytest.raises(ConnectorError) as away:
                queue.depth()
            assert away.value.is_outage
            server.start()
        queue.fail([Failure(handle=one.handle) for one in leased[30:]])
    left = [one.message.id for one in queue.lease(300, lease_s=3600)]
    found = Counter(done + left)
    assert {*found} == {*ids}
    return found


def the_command_checks_counts_and_shows(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a broker that cannot show messages without leasing them."""
    assert main(["queues", "check", url]) == 0
    assert "a probe was published, leased and acked" in capsys.readouterr().out
    assert main(["queues", "publish", url, "--body", "2 apples", "--create"]) == 0
    assert main(["queues", "depth", url]) == 0
    assert "commanded" in capsys.readouterr().out
    assert main(["queues", "dead", url]) == 0
    assert main(["queues", "peek", url]) == 2
    assert "cannot show messages that are ready" in capsys.readouterr().err
    assert main(["queues", "drain", url]) == 0
    assert "2 apples" in capsys.readouterr().out
