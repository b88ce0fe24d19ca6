"""A scenario: a small topology, and what must be true of it on every runtime."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from tupletree.routing.plan import Plan
from tupletree.sinks.jsonl import jsonl
from tupletree.testing.conformance.feeding import AsyncFeed, Feed, Replaying
from tupletree.testing.conformance.observed import Observed
from tupletree.testing.conformance.runtime import Need, RuntimeUnderTest
from tupletree.topology.builder import BoltHandle, SinkHandle, SpoutHandle, Topology
from tupletree.topology.components import Emit, Reject

T = TypeVar("T")

_key = itertools.count()


class Bench:
    """Where a scenario puts its components: a topology that it may share with others, under names of its own.

    Attributes:
        runtime: what it will run on.
        keys: spout → key of its feed.
        targets: lists that become the task ids of a component once the plan is known.
    """

    def __init__(self, scenario: str, topology: Topology, runtime: RuntimeUnderTest, folder: Path) -> None:
        self._scenario = scenario
        self._topology = topology
        self._folder = folder
        self.runtime = runtime
        self.keys: dict[str, str] = {}
        self.targets: dict[str, list[int]] = {}

    def spout(
        self,
        name: str,
        message_type: type[T],
        messages: Sequence[Emit[T] | Reject],
        *,
        parallelism: int = 1,
        replay: Literal["runtime", "source"] = "runtime",
        waits: bool = False,
    ) -> SpoutHandle:
        """A spout that gives these messages.

        With `replay="source"` it gives failed ones again by itself; with `waits` it is an async spout.
        """
        key = self.keys[name] = f"{self._scenario}-{name}-{next(_key)}"
        feed = (Replaying if replay == "source" else Feed)(key, message_type, messages)
        source = AsyncFeed(feed) if waits else feed
        return self._topology.spout(self._full(name), source, parallelism=parallelism, replay=replay)

    def bolt(self, name: str, bolt: Any, **settings: Any) -> BoltHandle:
        """A bolt; settings as for `Topology.bolt`."""
        return self._topology.bolt(self._full(name), bolt, **settings)

    def sink(self, name: str, *, parallelism: int | None = None) -> SinkHandle:
        """A sink; its rows come back as `Observed.rows(name)`."""
        return self._topology.sink(self._full(name), jsonl(self._folder / name), parallelism=parallelism)

    def task_ids(self, name: str) -> list[int]:
        """The ids of a bolt's tasks: a list that is empty until the topology is laid out."""
        return self.targets.setdefault(name, [])

    def lay_out(self, plan: Plan) -> None:
        """Fill in the task ids."""
        for name, numbers in self.targets.items():
            numbers[:] = plan.task_ids_of(self._full(name))

    def _full(self, name: str) -> str:
        return f"{self._scenario}-{name}"


class Scenario(ABC):
    """One thing that every runtime must do. Its docstring says what.

    Attributes:
        name: unique in the suite.
        needs: what not every runtime has.
        starts_inactive: the run begins with inactive spouts.
        allow_cycle: its tuples flow in cycles.
        runs_alone: it shares a run with no other, because what others do may change its outcome.
    """

    name: str = ""
    needs: ClassVar[frozenset[Need]] = frozenset()
    starts_inactive: ClassVar[bool] = False
    allow_cycle: ClassVar[bool] = False
    runs_alone: ClassVar[bool] = False

    def __str__(self) -> str:
        return self.name

    def options(self, runtime: RuntimeUnderTest) -> Mapping[str, Any]:  # noqa: ARG002 - for those that depend on it
        """Options beyond the suite's own, which make retries come at once."""
        return {}

    @abstractmethod
    def build(self, bench: Bench) -> None:
        """Add the components to the bench."""

    @abstractmethod
    def check(self, seen: Observed) -> None:
        """Raise NotConformingError unless everything is as it must be."""
