"""The example on queues as processes that are killed, with their orders counted in the end.

`topology` is the example's, with two more sinks: by their keys the table has a row once however often it is written,
and so has a queue whose broker knows ids again. The folder, and a table without a key, have a row for each time.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from examples import queue_pipeline
from examples.queue_pipeline import POISON_EVERY, PRICES, ReadOn, Sale, publish
from tests.clusters import ROOT
from tests.queues.servers import kafka_cluster, nats_server, rabbit_server, redis_server
from tests.until import until
from tupletree import Topology
from tupletree.config import resolve_options
from tupletree.errors import ConnectorError
from tupletree.queues import open_queue, url_of
from tupletree.runtimes.api import RunRequest
from tupletree.runtimes.deadletters import letters_of
from tupletree.runtimes.spark.format.entries import numbered
from tupletree.sinks import jsonl, read_rows, sql
from tupletree.testing.in_process import start_in_process
from tupletree.topology.builder import BoltHandle

BROKERS = ["sqlite", "redis", "nats", "rabbitmq"]

READ_BY_EXECUTORS = ["sqlite", "redis", "nats"]
"""Any connection may ack what another one took from them."""

EPOCHS = 20
"""Of a run on Spark, about, if nothing is killed."""

LEASE_S = 10.0
"""What a killed driver had comes back so soon."""

PROGRESS_S = 180.0
"""Within this time the next part of the orders is sold: a process starts Spark, and leases of a killed one end."""


def topology(queue: str, table: str, folder: Path, read_on: ReadOn = "driver") -> Topology:
    """The example, with each sale in the folder, and in a table without a key, as often as it is published."""
    t = queue_pipeline.topology(queue, table, lease_s=LEASE_S, read_on=read_on)
    [sales] = [BoltHandle(draft) for draft in t.drafts if draft.spec.name == "price"]
    t.sink("sold", jsonl(folder, message_type=Sale)).shuffle(sales)
    t.sink("each_time", sql(table, "each_time", message_type=Sale)).shuffle(sales)
    return t


def main(queue: str, table: str, folder: str, read_on: ReadOn, state_dir: str, epoch_messages: str) -> None:
    """What a process with the runtime `in process` does: the driver, stages and files of Spark's, and no JVM."""
    options = resolve_options(code={"epoch_max_messages": int(epoch_messages)})
    t = topology(queue, table, Path(folder), read_on)
    request = RunRequest(t, options, None, Path(state_dir), append=False, master="", redact=None)
    start_in_process(request).wait()


PROGRAM = "import sys; from tests.queues.selling import main; main(*sys.argv[1:])"


def good_of(count: int) -> set[str]:
    """The ids of those of so many orders that can be sold."""
    return {f"order-{number}" for number in range(count) if (number + 1) % POISON_EVERY}


def rows_of(place: Path, table: str, columns: str = "*") -> list[tuple[object, ...]]:
    """What a table of sales has; nothing if there is no such table yet."""
    with contextlib.closing(sqlite3.connect(place / "sales.db")) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table]).fetchall():
            return []
        return connection.execute(f"SELECT {columns} FROM {table}").fetchall()


def check_sales(place: Path, url: str, count: int) -> None:
    """Every good order is sold once in the table and the queue, the others are dead letters, and no order is left.

    A broker that does not know an id again may have it twice, in a queue and among dead letters.
    """
    good, prices = good_of(count), [*PRICES.values()]
    rows = rows_of(place, "sales", "id, cents")
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
        assert not orders.lease(1, wait_s=1.0)
        dead = orders.peek("dead", count)
        assert {one.message.id for one in dead} == {f"order-{number}" for number in range(count)} - good
        assert len(dead) == count // POISON_EVERY or not knows_ids
        assert {one.message.body for one in dead} == {b"no order"}
        assert all("malformed" in one.reason for one in dead), {one.reason for one in dead}


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
    elif broker == "kafka":
        pytest.importorskip("confluent_kafka")
        from tupletree.queues.kafka.client import CLOCK

        with kafka_cluster() as kafka:
            url = f"{kafka.url}?partitions=3&session_s=6"
            for queue in ("orders", "sales"):  # other processes cannot make topics at the mock cluster
                open_queue(url_of(url, queue)).close()
            kafka.tell("topic", CLOCK, 1)
            yield url
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
        read_on: who leases orders from the broker.
        arguments: of `tupletree run`, beside those that follow from the others.
        variables: of the environment of each process.
    """

    place: Path
    url: str
    runtime: str
    read_on: ReadOn = "driver"
    arguments: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.count = int(os.environ.get("TUPLETREE_QUEUE_MESSAGES") or (100_000 if "redis" in self.url else 10_000))
        assert publish(self.url, self.count) == self.count
        self._ran = 0
        self._kills: list[str] = []

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
            command = [sys.executable, "-c", PROGRAM, self.url, table, sold, self.read_on, state_dir, epoch]
        else:
            command = [sys.executable, "-m", "tupletree", "run", "tests.queues.selling", "--runtime", self.runtime]
            command += ["--set", f"queue={self.url}", "--set", f"table={table}", "--set", f"folder={sold}"]
            command += ["--set", f"read_on={self.read_on}"]
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

    def written(self) -> int:
        """How many orders are in the table."""
        counted = rows_of(self.place, "sales", "count(*)")
        return int(str(counted[0][0])) if counted else 0

    def sell(self, process: subprocess.Popen[bytes], share: float, moment: str = "") -> None:
        """Return when this share of the good orders is in the table, by a process that is still at work.

        With a moment, a name of `MOMENTS`, return when that comes the next time.
        """
        least = share * len(self.good)
        self._await(process, lambda: self.written() >= least)
        if moment:
            look = MOMENTS[moment]
            before = look(self)
            self._await(process, lambda: look(self) != before)

    def _await(self, process: subprocess.Popen[bytes], look: Callable[[], bool]) -> None:
        until(lambda: process.poll() is not None or look(), patience_s=PROGRESS_S, what=self.said)
        assert process.poll() is None, self.said()

    def kill(self, process: subprocess.Popen[bytes], *, alone: bool = False) -> None:
        """Kill it in the middle of its work, with all that it started, or alone, as the system does for want of memory.

        Raises AssertionError if it had not begun, or was done.
        """
        if alone:
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        written = self.written()
        self._kills.append(f"{written} sold, {self.left()} left")
        assert 0 < written < len(self.good), self._kills

    def finish(self, process: subprocess.Popen[bytes]) -> None:
        """Return when the process has ended by itself: with dead letters, or without, if others had them."""
        try:
            process.wait(PROGRESS_S)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        assert process.returncode in {0, 3}, self.said()

    def finish_all(self) -> None:
        """Run until nothing is left: without a state directory, what another process had comes when its lease ends."""
        while self.left():
            self.finish(self.start())

    def check(self) -> Counter[str]:
        """See `check_sales`. How often each order was put into the folder or the table, if that is more.

        All good ones were in both, and the dead letters of the runs are those of the queue: on Spark one of each.
        """
        check_sales(self.place, self.url, self.count)
        letters = [one for path in self.place.glob("state*") for one in letters_of(path).values()]
        poison = {f"order-{number}" for number in range(self.count)} - self.good
        assert {one.message_id for one in letters} == poison
        assert self.runtime == "local" or len(letters) == len(poison)
        in_folder: Counter[str] = Counter(str(row["id"]) for row in read_rows(self.place / "sold"))
        in_table = Counter(str(one) for (one,) in rows_of(self.place, "each_time", "id"))
        assert {*in_folder} == {*in_table} == self.good
        found = in_folder | in_table
        again = found.total() - len(found)
        print(f"{self.url} {self.runtime} {self.read_on}: {self.count} orders, killed at {self._kills}, {again} again")
        return found


MOMENTS: dict[str, Callable[[Selling], int]] = {
    "an epoch is logged": lambda selling: max(numbered(selling.place / "state" / "epochs", ".epoch"), default=0),
    "its files are named": lambda selling: sum(1 for _ in (selling.place / "sold").glob("[!_.]*")),
    "its rows are in the table": Selling.written,
    "its orders are acked": Selling.left,
}
"""By name, in this order in an epoch: what changes then. At the first one Spark's work on it is still to be done."""

KILL_MOMENTS = [*MOMENTS][:3]
"""What a kill then leaves to the next process: an epoch to be run, rows for tables and queues, acks."""
