"""Processes that share a queue file and are killed at any moment: nothing promised is lost, no ack is forgotten."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tupletree.queues import Message, connect
from tupletree.queues.sqlite import SqliteBroker

WORKER = Path(__file__).with_name("worker.py")


class Workers:
    """Starts workers on a file, and kills them."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "queue.db"
        self.journal = folder / "journal.txt"
        self.started = 0
        with connect(f"sqlite:///{self.file}") as broker:
            broker.declare("in")
            broker.declare("out")

    def start(self, mode: str) -> subprocess.Popen[str]:
        self.started += 1
        command = [sys.executable, str(WORKER), mode, str(self.file), str(self.journal), f"w{self.started}"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    @staticmethod
    def kill(worker: subprocess.Popen[str]) -> None:
        worker.kill()
        _, errors = worker.communicate()
        assert worker.returncode == -9, errors

    def noted(self, what: str) -> list[str]:
        words = [line.split(" ", 1) for line in self.journal.read_text().splitlines()]
        return [word[1] for word in words if word[0] == what]


def await_ready(worker: subprocess.Popen[str]) -> None:
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"


def test_killed_at_random_moments_a_publish_lease_ack_loop_loses_nothing_and_repeats_no_ack(tmp_path: Path) -> None:
    chance = random.Random()
    workers = Workers(tmp_path)
    for _ in range(3):
        pair = [workers.start("cycle"), workers.start("cycle")]
        for worker in pair:
            await_ready(worker)
        for worker in pair:
            time.sleep(chance.uniform(0.03, 0.25))  # a kill at any moment
            workers.kill(worker)
    published, acking, acked = (workers.noted(what) for what in ("published", "acking", "acked"))
    assert len(published) > 20
    assert len(acked) > 10
    assert [one for one, times in Counter(acked).items() if times > 1] == [], "an acked message came again"
    with SqliteBroker(workers.file) as broker:
        children = {one.message.id for one in broker.lease("out", 100_000)}
        left: list[str] = []
        # What the killed ones had under lease comes within 0.2 s.
        while broker.depth("in").open > len(left):
            left += [one.message.id for one in broker.lease("in", 100_000, wait_s=5, lease_s=600)]
    assert len(left) == len(set(left))
    assert set(acked).isdisjoint(left), "what was acked is not there again"
    gone = set(published) - set(left)
    assert gone <= set(acking), "what is gone was worked"
    assert {f"child of {one}" for one in set(acked)} <= children, "a child of each parent"
    assert {f"child of {one}" for one in gone} <= children, "also where the kill came between ack and note"
    assert children.isdisjoint(f"child of {one}" for one in left), "no child of a parent that is not acked"


def test_killed_in_the_middle_of_moves_each_message_is_in_one_queue(tmp_path: Path) -> None:
    workers = Workers(tmp_path)
    ids = [str(number) for number in range(200)]
    with SqliteBroker(workers.file) as broker:
        broker.publish("in", [Message(id=one, delay_s=0.0 if int(one) % 2 else 3600.0) for one in ids])
    for _ in range(3):
        worker = workers.start("move")
        await_ready(worker)
        time.sleep(random.uniform(0.01, 0.1))  # a kill at any moment
        workers.kill(worker)
    with SqliteBroker(workers.file) as broker:
        found = [
            stored.message.id
            for queue in ("in", "out")
            for stored in [*broker.peek(queue, "ready", 1000), *broker.peek(queue, "delayed", 1000)]
        ]
        depths = [broker.depth(queue) for queue in ("in", "out")]
    assert sorted(found) == sorted(ids)
    assert sum(depth.ready for depth in depths) == 100
    assert sum(depth.delayed for depth in depths) == 100


def test_processes_that_open_a_new_file_at_once_share_it(tmp_path: Path) -> None:
    code = (
        "import sys; from tupletree.queues import Message, open_queue\n"
        "sys.stdin.read()\n"
        "with open_queue(sys.argv[1]) as queue:\n"
        "    for turn in range(10):\n"
        "        queue.publish([Message(id=f'{sys.argv[2]}.{turn}.{n}') for n in range(5)])\n"
        "        queue.ack([one.handle for one in queue.lease(3)])\n"
    )
    url = f"sqlite:///{tmp_path}/new.db"
    processes = [
        subprocess.Popen([sys.executable, "-c", code, url, str(number)], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        for number in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
    with connect(url) as broker:
        assert broker.depth("default").open == 3 * 10 * 5 - 3 * 10 * 3


@pytest.mark.parametrize("shared", [True, False], ids=["one connection", "a connection each"])
def test_threads_share_a_queue_and_no_message(shared: bool, tmp_path: Path) -> None:
    file = tmp_path / "queue.db"
    brokers = [SqliteBroker(file)] * 4 if shared else [SqliteBroker(file) for _ in range(4)]
    brokers[0].declare("q")
    worked: list[str] = []

    def work(number: int) -> None:
        broker = brokers[number]
        for turn in range(15):
            broker.publish("q", [Message(id=f"{number}.{turn}.{one}") for one in range(4)])
            leased = broker.lease("q", 4, wait_s=5)
            worked.extend(one.message.id for one in leased)
            assert not broker.ack([one.handle for one in leased])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(worked) == len(set(worked))
    assert len(worked) + brokers[0].depth("q").open == 4 * 15 * 4
    for broker in brokers:
        broker.close()
