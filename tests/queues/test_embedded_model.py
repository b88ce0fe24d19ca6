"""The embedded queue against a model of a queue: whatever is done in whatever order, both hold the same."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.queues.clocks import Host, ManualHostClock, without_disk
from tupletree.queues import Failure, LeaseLostError, Letter, Message
from tupletree.queues.sqlite import SqliteBroker

REMEMBERS_S = 50.0
LEASE_S = 10.0


@dataclass
class Entry:
    """What the model knows of a message that was not acked."""

    key: str
    rank: int
    state: str = "ready"
    due_s: float = 0.0
    deliveries: int = 0
    handle: str = ""


@dataclass
class Model:
    """A queue as it should be, without any thought of speed."""

    host: Host
    ordered: bool
    entries: dict[str, Entry] = field(default_factory=dict)
    acked_s: dict[str, float] = field(default_factory=dict)
    ranks: int = 0

    def wake(self) -> None:
        for entry in self.entries.values():
            if entry.state in {"delayed", "leased"} and entry.due_s <= self.host.up_s:
                entry.state, entry.handle = "ready", ""

    def publish(self, message: Message) -> bool:
        known_s = self.acked_s.get(message.id)
        if message.id in self.entries or (known_s is not None and known_s + REMEMBERS_S > self.host.up_s):
            return False
        self.ranks += 1
        entry = self.entries[message.id] = Entry(message.key, self.ranks)
        if message.delay_s:
            entry.state, entry.due_s = "delayed", self.host.up_s + message.delay_s
        return True

    def behind(self, entry: Entry) -> bool:
        return self.ordered and any(
            other.key == entry.key and other.rank < entry.rank and other.state != "dead"
            for other in self.entries.values()
            if entry.key
        )

    def leasable(self) -> set[str]:
        self.wake()
        return {name for name, entry in self.entries.items() if entry.state == "ready" and not self.behind(entry)}

    def depth(self) -> tuple[int, int, int, int]:
        self.wake()
        behind = {name for name, entry in self.entries.items() if entry.state != "dead" and self.behind(entry)}
        states = ["ready" if name in behind else entry.state for name, entry in self.entries.items()]
        return states.count("ready"), states.count("leased"), states.count("delayed"), states.count("dead")


class Play:
    """Random operations on both, and a comparison after each."""

    def __init__(self, seed: int, path: Path, *, ordered: bool) -> None:
        self.random = random.Random(seed)
        self.host = Host()
        self.broker = SqliteBroker(path, clock=ManualHostClock(self.host), remembers_acked_s=REMEMBERS_S)
        self.broker.declare("q", ordered=ordered)
        self.broker.declare("children")
        self.model = Model(self.host, ordered)
        self.old: list[str] = []
        self.children = 0

    def step(self) -> None:
        common = [self.publish, self.lease, self.settle]
        rare = [self.ack, self.fail, self.die, self.extend, self.pass_time, self.revive, self.purge_dead]
        operation = self.random.choice([*common, *common, *rare])
        operation()
        depth = self.broker.depth("q")
        assert (depth.ready, depth.leased, depth.delayed, depth.dead) == self.model.depth(), operation.__name__

    def held(self, most: int) -> list[str]:
        """Ids under a lease that the model believes in."""
        self.model.wake()
        names = [name for name, entry in self.model.entries.items() if entry.state == "leased"]
        return self.random.sample(names, min(most, len(names)))

    def handles(self, names: list[str]) -> list[str]:
        return [self.model.entries[name].handle for name in names]

    def publish(self) -> None:
        batch = [
            Message(
                id=str(self.random.randrange(60)),
                body=b"x" * self.random.choice([0, 10, 3000]),
                key=self.random.choice(["", "a", "b", "c"]),
                delay_s=self.random.choice([0.0, 0.0, 0.0, 7.0]),
            )
            for _ in range(self.random.randrange(1, 8))
        ]
        assert self.broker.publish("q", batch) == sum([self.model.publish(message) for message in batch])

    def lease(self) -> None:
        limit = self.random.randrange(1, 6)
        leasable = self.model.leasable()
        ranked = sorted(leasable, key=lambda name: self.model.entries[name].rank)
        leased = self.broker.lease("q", limit, lease_s=LEASE_S)
        assert len(leased) == min(limit, len(leasable))
        assert [delivery.message.id for delivery in leased] == ranked[:limit]
        for delivery in leased:
            entry = self.model.entries[delivery.message.id]
            entry.state, entry.due_s, entry.handle = "leased", self.host.up_s + LEASE_S, delivery.handle
            entry.deliveries += 1
            assert delivery.deliveries == entry.deliveries
            assert delivery.message.key == entry.key
            self.old.append(delivery.handle)

    def stale(self) -> list[str]:
        """A handle of a lease that is over for good, if there is one.

        That of a lease that only ended is taken until somebody asks for messages, which `peek` does.
        """
        self.broker.peek("q")
        current = {entry.handle for entry in self.model.entries.values()}
        old = [handle for handle in self.old if handle not in current]
        return [self.random.choice(old)] if old and self.random.random() < 0.3 else []

    def ack(self) -> None:
        names = self.held(3)
        refused = self.broker.ack(self.handles(names))
        assert not refused
        self.gone(names)

    def gone(self, names: list[str]) -> None:
        for name in names:
            del self.model.entries[name]
            self.model.acked_s[name] = self.host.up_s

    def settle(self) -> None:
        names = self.held(2)
        children = [Message(id=f"child-{self.children}-{number}") for number, _ in enumerate(names)]
        stale = [handle for handle in self.stale() if not self.was_acked(handle)]
        before = self.broker.depth("children").ready
        settlement: dict[str, Any] = {
            "acks": [*self.handles(names), *stale],
            "publish": {"children": children},
        }
        if stale:
            with pytest.raises(LeaseLostError) as raised:
                self.broker.settle(**settlement)
            assert list(raised.value.handles) == stale
            assert self.broker.depth("children").ready == before
            return
        self.broker.settle(**settlement)
        self.children += 1
        assert self.broker.depth("children").ready == before + len(children)
        self.gone(names)

    def was_acked(self, handle: str) -> bool:
        """Repeating an ack is harmless, so it is not refused; the model does not follow whose it was."""
        return not self.broker.ack([handle])

    def fail(self) -> None:
        names = self.held(3)
        delay_s = self.random.choice([0.0, 5.0])
        counts = self.random.random() < 0.7
        stale = self.stale()
        failures = [Failure(handle=handle, delay_s=delay_s, counts=counts) for handle in [*self.handles(names), *stale]]
        assert list(self.broker.fail(failures)) == stale
        for name in names:
            entry = self.model.entries[name]
            entry.state, entry.due_s, entry.handle = ("delayed" if delay_s else "ready"), self.host.up_s + delay_s, ""
            entry.deliveries -= not counts

    def die(self) -> None:
        names = self.held(1)
        stale = self.stale()
        letters = [Letter(handle=handle, reason="r") for handle in [*self.handles(names), *stale]]
        assert list(self.broker.dead_letter(letters)) == stale
        for name in names:
            self.model.entries[name].state = "dead"
            self.model.entries[name].handle = ""

    def extend(self) -> None:
        names, stale = self.held(2), self.stale()
        assert list(self.broker.extend([*self.handles(names), *stale], 20.0)) == stale
        for name in names:
            self.model.entries[name].due_s = self.host.up_s + 20.0

    def pass_time(self) -> None:
        self.host.advance(self.random.choice([1.0, 4.0, 12.0, 60.0]))
        self.model.wake()

    def revive(self) -> None:
        names = [name for name, entry in self.model.entries.items() if entry.state == "dead"]
        moved = self.broker.move("q", "q", state="dead")
        assert moved == len(names)
        for name in sorted(names, key=lambda one: self.model.entries[one].rank):
            self.model.ranks += 1
            entry = self.model.entries[name]
            entry.state, entry.rank, entry.deliveries = "ready", self.model.ranks, 0

    def purge_dead(self) -> None:
        if self.random.random() < 0.3:
            names = [name for name, entry in self.model.entries.items() if entry.state == "dead"]
            assert self.broker.purge("q", states=["dead"]) == len(names)
            for name in names:
                del self.model.entries[name]


@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
@pytest.mark.parametrize("seed", range(4))
def test_random_operations_leave_the_queue_as_the_model_says(seed: int, ordered: bool, tmp_path: Path) -> None:
    play = Play(seed, tmp_path / "q.db", ordered=ordered)
    without_disk(play.broker)
    for _ in range(250):
        play.step()
    _check_the_rows(play)


def _check_the_rows(play: Play) -> None:
    """In the end: counts are those of the rows, no body is left behind, and acked ids go in their time."""
    connection = play.broker._file._connection
    counted = connection.execute(
        "SELECT sum(state = 0), sum(state = 1), sum(state = 2), sum(state = 3), sum(state = 4)"
        " FROM tupletree_queue_messages WHERE queue = 1"
    ).fetchone()
    kept = connection.execute("SELECT ready, delayed, leased, waiting, dead FROM tupletree_queues WHERE number = 1")
    assert tuple(number or 0 for number in counted) == kept.fetchone()
    assert connection.execute(
        "SELECT count(*) FROM tupletree_queue_bodies WHERE ref NOT IN"
        " (SELECT ref FROM tupletree_queue_messages WHERE ref IS NOT NULL)"
    ).fetchone() == (0,)
    play.host.advance(1000)
    play.broker.purge("q", states=["ready", "delayed", "leased", "dead"])
    play.broker.publish("q", [Message(id="last")])
    play.broker.publish("q", [Message(id="last")])
    assert connection.execute("SELECT count(*) FROM tupletree_queue_messages WHERE queue = 1").fetchone() == (1,)
    play.broker.close()
