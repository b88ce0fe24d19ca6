"""The example on queues as processes that are killed, with their orders counted in the end.

`topology` is the example's, with one more sink: by their keys the table has a row once however often it is written, and
so has a queue whose broker knows ids again. The folder has a row for each time.

TUPLETREE_QUEUE_MESSAGES says how many orders there are (default 100,000 at Redis, 10,000 elsewhere).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from examples import queue_pipeline
from examples.queue_pipeline import POISON_EVERY, PRICES, Sale, publish
from tests.clusters import ROOT
from tests.queues.servers import nats_server, rabbit_server, redis_server
from tests.until import until
from tupletree import Topology
from tupletree.config import resolve_options
from tupletree.errors import ConnectorError
from tupletree.queues import open_queue, url_of
from tupletree.runtimes.api import RunRequest
from tupletree.sinks import jsonl, read_rows
from tupletree.testing.in_process import start_in_process
from tupletree.topology.builder import BoltHandle

BROKERS = ["sqlite", "redis", "nats", "rabbitmq"]

EPOCHS = 20
"""Of a run on Spark, about, if nothing is killed."""

LEASE_S = 10.0
"""What a killed driver had comes back so soon."""

PROGRESS_S = 180.0
"""Within this time the next part of the orders is sold: a process starts Spark, and leases of a killed one end."""


def topology(queue: str, table: str, folder: Path) -> Topology:
    """The example, with each sale in the folder as often as it is published."""
    t = queue_pipeline.topology(queue, table, lease_s=LEASE_S)
    [sales] = [BoltHandle(draft) for draft in t.drafts if draft.name == "price"]
    t.sink("sold", jsonl(folder, message_type=Sale)).shuffle(sales)
    return t


def main(queue: str, table: str, folder: str, state_dir: str, epoch_messages: str) -> None:
    """What a process with the runtime `in process` does: the driver, stages and files of Spark's, and no JVM."""
    options = resolve_options(code={"epoch_max_messages": int(epoch_messages)})
    t = topology(queue, table, Path(folder))
    request = RunRequest(t, options, None, Path(state_dir), append=False, master="", redact=None)
    start_in_process(request).wait()


PROGRAM = "import sys; from tests.queues.selling import main; main(*sys.argv[1:])"


def good_of(count: int) -> set[str]:
    """The ids of those of so many orders that can be sold."""
    return {f"order-{number}" for number in range(count) if (number + 1) % POISON_EVERY}


def check_sales(place: Path, url: str, count: int) -> None:
    """Every good order is sold once in the table and the queue, the others are dead letters, and no order is left.

    A broker that does not know an id again may have it twice, in a queue and among dead letters.
    """
    good, prices = good_of(count), [*PRICES.values()]
    with sqlite3.connect(place / "sales.db") as table:
        rows = table.execute("SELECT id, cents FROM sales").fetchall()
    numbers = {one: int(one.removeprefix("order-")) for one in good}
    assert sorted(rows) == sorted((one, prices[number % 3] * (number % 7 + 1)) for one, number in numbers.items())
    with open_queue(url_of(url, "sales")) as sales:
        sold: Counter[str] = Counter()
        while leased := sales.lease(1000, lease_s=3600, wait_s=1.0):
            sold.update(one.message.id for one in leased)
        knows_ids = sales.broker.capabilities.idempotent_publish
        assert (sold == Counter(good)) if knows_ids else ({*sold} == good)
    with open_queue(url_of(url, "orders")) as orders:
        assert orders.depth().open == 0
        dead = orders.peek("dead", count)
        assert {one.message.id for one in dead} == {f"order-{number}" for number in range(count)} - good
        assert len(dead) == count // POISON_EVERY or not knows_ids
        assert {one.message.body for one in dead} == {b"no order"}


@contextmanager
def served(broker: str, place: Path) -> Iterator[str]:
    """A broker of this name on this machine; its URL."""
    if broker == "sqlite":
        yield f"sqlite:///{place}/shop.db"
    elif broker == "redis":
        with redis_server() as redis:
            yield redis.url
    elif broker == "nats":
        with nats_server() as nats:
            yield f"{nats.url}?lease_s={LEASE_S:g}"
    else:
        with rabbit_server() as rabbit:
            yield rabbit.url


@dataclass
class Selling:
    """Orders at a broker, and processes that sell them, one after the other.

    Args:
        place: a folder for the table, the sales and the state directory.
        url: of the broker.
        runtime: that sells them: "local", "spark", or "in process" (see `main`).
        arguments: of `tupletree run`, beside those that follow from the others.
        variables: of the environment of each process.
    """

    place: Path
    url: str
    runtime: str
    arguments: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.count = int(os.environ.get("TUPLETREE_QUEUE_MESSAGES") or (100_000 if "redis" in self.url else 10_000))
        assert publish(self.url, self.count) == self.count
        self._ran = 0

    @property
    def good(self) -> set[str]:
        """Those that can be sold."""
        return good_of(self.count)

    def start(self) -> subprocess.Popen[bytes]:
        """A process that sells what is left. It is a session of its own: kill its group."""
        self._ran += 1
        table, sold = f"sqlite:///{self.place}/sales.db", f"{self.place}/sold"
        state_dir, epoch = f"{self.place}/state", str(self.count // EPOCHS)
        if self.runtime == "in process":
            command = [sys.executable, "-c", PROGRAM, self.url, table, sold, state_dir, epoch]
        else:
            command = [sys.executable, "-m", "tupletree", "run", "tests.queues.selling", "--runtime", self.runtime]
            command += ["--set", f"queue={self.url}", "--set", f"table={table}", "--set", f"folder={sold}"]
            if self.runtime == "spark":
                command += ["--state-dir", state_dir, "--option", f"epoch_max_messages={epoch}", *self.arguments]
            else:
                command += ["--state-dir", f"{state_dir}{self._ran}", "--append", *self.arguments]
        with self._said(self._ran).open("wb") as said:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), **self.variables},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def _said(self, number: int) -> Path:
        return self.place / f"said{number}"

    def said(self) -> str:
        """The end of what the last process printed."""
        return self._said(self._ran).read_text(errors="replace")[-3000:]

    def left(self) -> int:
        """How many orders are not done; all of them while the broker is away."""
        with contextlib.suppress(ConnectorError), open_queue(url_of(self.url, "orders")) as orders:
            return orders.depth().open
        return self.count

    def sell(self, process: subprocess.Popen[bytes], share: float) -> None:
        """Return when this share of the orders is done, by a process that is still at work."""
        most = self.count * (1 - share)
        until(lambda: self.left() <= most or process.poll() is not None, patience_s=PROGRESS_S, what=self.said)
        assert process.poll() is None, self.said()

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def finish(self, process: subprocess.Popen[bytes]) -> None:
        """Return when the process has ended by itself: with dead letters, or without, if others had them."""
        try:
            process.wait(PROGRESS_S)
        finally:
            if process.returncode is None:
                self.kill(process)
        assert process.returncode in {0, 3}, self.said()

    def finish_all(self) -> None:
        """Run until nothing is left: without a state directory, what another process had comes when its lease ends."""
        while self.left():
            self.finish(self.start())

    def check(self) -> Counter[str]:
        """See `check_sales`. How often each order was put into the folder: all good ones were."""
        check_sales(self.place, self.url, self.count)
        found = Counter(row["id"] for row in read_rows(self.place / "sold"))
        assert {*found} == self.good
        return found
