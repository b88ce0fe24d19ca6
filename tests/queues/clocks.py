"""A host whose time the test moves, and processes whose wall clocks differ."""

from __future__ import annotations

from pathlib import Path

from tupletree.queues import Broker
from tupletree.queues.host_clock import HostClock
from tupletree.queues.sqlite import SqliteBroker
from tupletree.testing.queue_conformance import BrokerUnderTest


class Host:
    """The one clock of a machine."""

    def __init__(self) -> None:
        self.boot = "boot-1"
        self.up_s = 1000.0
        self.wall_s = 1_700_000_000.0

    def advance(self, seconds: float) -> None:
        self.up_s += seconds
        self.wall_s += seconds

    def reboot(self) -> None:
        self.boot += "'"
        self.up_s = 5.0


class ManualHostClock(HostClock):
    """What a process of the host reads, with a wall clock that is off by `skew_s`. Sleeping moves the host's time."""

    def __init__(self, host: Host, skew_s: float = 0.0) -> None:
        self.host = host
        self.skew_s = skew_s

    def boot(self) -> str:
        return self.host.boot

    def since_boot_s(self) -> float:
        return self.host.up_s

    def wall_s(self) -> float:
        return self.host.wall_s + self.skew_s

    def sleep(self, seconds: float) -> None:
        self.host.advance(seconds)


def without_disk(broker: SqliteBroker) -> None:
    """Wait for no disk: where it is not what a test is about, it would take most of the time."""
    with broker._file.reading() as connection:
        connection.execute("PRAGMA synchronous = OFF")


class EmbeddedQueue(BrokerUnderTest):
    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "queue.db"
        self.host = Host()

    def connect(self, *, skew_s: float = 0.0) -> Broker:
        broker = SqliteBroker(self.path, clock=ManualHostClock(self.host, skew_s))
        without_disk(broker)
        return broker

    def advance(self, seconds: float) -> None:
        self.host.advance(seconds)
