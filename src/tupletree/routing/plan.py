"""Plans: a topology becomes numbered tasks, executors for the local runtime, and stages for the Spark runtime.

Owns task ids, placement, the order of components, which links need an exchange, and which are carried to the next
epoch (back edges of cycles). It refuses to look at values: distributing tuples over tasks is `routing.groupings`. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tupletree.config import Options
from tupletree.errors import InternalError
from tupletree.topology.components import Tick
from tupletree.topology.model import BoltSpec, ComponentSpec, Grouping, TopologySpec
from tupletree.topology.ordering import makes_values, ordered_streams
from tupletree.topology.splits import is_read_on_executors

SYSTEM = "__system"
ACKER = "__acker"

NOWHERE = -1
"""The place of a task that emits outside of all partitions: the driver, for a spout that is read in them."""


@dataclass(frozen=True, slots=True)
class Task:
    """A logical instance of a component.

    Attributes:
        task_id: sequential, unique in the topology.
        component: its component's name, or `SYSTEM` or `ACKER`.
        index: 0-based number within the component.
    """

    task_id: int
    component: str
    index: int


@dataclass(frozen=True, slots=True)
class Link:
    """One subscription, as a link between components.

    Attributes:
        local: every tuple can reach its target without leaving the partition it was emitted in.
        carried: it closes a cycle; on Spark its frames go to the next epoch, so it orders nothing.
        from_spout: the producer is a spout that is pulled: the driver places its frames, so they need no exchange.
    """

    producer: str
    stream: str
    consumer: str
    grouping: Grouping
    local: bool
    carried: bool
    from_spout: bool


@dataclass(frozen=True, slots=True)
class Stage:
    """Components that run in one pass over a partition, producers before consumers."""

    index: int
    components: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlannedExecutor:
    """What serves one or more tasks, one at a time: a thread of the local runtime."""

    index: int
    name: str
    task_ids: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """A topology laid out. Built by `Plan.of`; equal inputs give equal plans in every process.

    Attributes:
        tasks: by task id: the system task (0), ackers, bolts, sinks, spouts; within a kind in declaration order.
        partitions: how many partitions the tasks are spread over; 1 on the local runtime.
        links: every subscription, consumers in declaration order.
        stages: bolts and sinks, and on Spark the spouts that are read there; the others live in the driver.
        executors: for the local runtime.

    Tasks of a component that one executor serves and that nothing can tell apart may have a *deputy*: one of them works
    the tuples of all. They would take turns on one thread anyway, and whole frames cost less than parts of them.
    """

    spec: TopologySpec
    partitions: int
    tasks: tuple[Task, ...]
    links: tuple[Link, ...]
    stages: tuple[Stage, ...]
    executors: tuple[PlannedExecutor, ...]
    _ranges: Mapping[str, range]
    _stage_of: Mapping[str, int]
    _readers: Mapping[str, int] = field(default_factory=dict)
    _deputies: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    _ordered: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def of(cls, spec: TopologySpec, options: Options, partitions: int | None = None, *, deputies: bool = False) -> Plan:
        """Lay a checked topology out.

        Args:
            spec: the topology; cycles are legal here, their back edges come out as `carried` links.
            options: gives the number of ackers and their executors.
            partitions: Spark's number of partitions; None is the local runtime (one partition).
            deputies: let tasks that one executor serves and that nothing can tell apart be worked as one.
        """
        parallelism = _parallelism(spec, spread=partitions is not None)
        tasks = tuple(_number(spec, parallelism, options.acker_tasks))
        ranges = _ranges(tasks)
        count = partitions or 1
        order, back_edges = _topological(spec)
        readers = _readers(spec, parallelism, count) if partitions is not None else {}
        links = tuple(_links(spec, parallelism, readers, count, back_edges))
        stage_of = _stages(spec, order, links, readers)
        executors = _executors(spec, ranges, options.acker_executors)
        return cls(
            spec=spec,
            partitions=count,
            tasks=tasks,
            links=links,
            stages=_fused(order, stage_of),
            executors=executors,
            _ranges=ranges,
            _stage_of=stage_of,
            _readers=readers,
            _deputies=_deputies(spec, ranges, executors) if deputies else {},
            _ordered=ordered_streams(spec),
        )

    def tasks_of(self, component: str) -> tuple[Task, ...]:
        """The tasks of a component, by index. `SYSTEM` and `ACKER` are components here."""
        numbers = self._ranges.get(component, range(0))
        return self.tasks[numbers.start : numbers.stop]

    def task_ids_of(self, component: str) -> range:
        """The ids of a component's tasks; they are consecutive."""
        return self._ranges.get(component, range(0))

    def deputies_of(self, component: str) -> Sequence[int]:
        """By index of a component's tasks: the task that is to be sent what is for it, mostly itself."""
        return self._deputies.get(component) or self.task_ids_of(component)

    @property
    def component_tasks(self) -> Mapping[str, range]:
        """Component → ids of its tasks, by index."""
        return self._ranges

    def parallelism(self, component: str) -> int:
        """Number of tasks of a component."""
        return len(self.task_ids_of(component))

    def input_types(self, component: str) -> tuple[type, ...]:
        """The classes of the streams that a component reads, in the order of its inputs."""
        components = self.spec.components
        streams = (components[one.component].outputs[one.stream] for one in components[component].inputs)
        return tuple(dict.fromkeys(stream.schema.cls for stream in streams))

    def upstream_of(self, component: str) -> frozenset[str]:
        """See `TopologySpec.upstream_of`."""
        return self.spec.upstream_of(component)

    def placement(self, task_id: int) -> int:
        """The partition of a task: its index modulo the partitions, so that each component spreads."""
        return self.tasks[task_id].index % self.partitions

    def stage_of(self, component: str) -> int:
        """Which stage runs a bolt or sink, or reads a spout. Raises KeyError for a spout that is pulled."""
        return self._stage_of[component]

    def readers(self, component: str) -> int:
        """How many partitions, from the first on, read a spout's splits; 0 for any component that is not read so."""
        return self._readers.get(component, 0)

    def carries_order(self, component: str, stream: str) -> bool:
        """Whether the tuples of a stream travel with their order of making; see `topology.ordering`."""
        return (component, stream) in self._ordered

    def makes_order(self, component: str) -> bool:
        """Whether a spout or bolt makes new values, and does not pass on the order of those that it works on."""
        return makes_values(self.spec.components[component])

    def passes_order_on(self, component: str) -> bool:
        """Whether what it emits has the numbers of what it works on."""
        return not self.makes_order(component) and any(name == component for name, _ in self._ordered)

    def numbers_outputs(self, component: str) -> bool:
        """Whether it makes values whose order is asked for."""
        return self.makes_order(component) and any(name == component for name, _ in self._ordered)

    def links_from(self, component: str, stream: str) -> tuple[Link, ...]:
        """The consumers of a stream, in declaration order."""
        return tuple(link for link in self.links if link.producer == component and link.stream == stream)

    def describe(self) -> str:
        """Tasks, executors, stages and links as text, one line each."""
        lines = [f"{self.spec.name}: {len(self.tasks)} tasks, {self.partitions} partitions, {len(self.stages)} stages"]
        for component, numbers in self._ranges.items():
            stage = f", stage {self._stage_of[component]}" if component in self._stage_of else ""
            deputies = {*self._deputies.get(component, numbers)}
            shared = f", worked as {_listing(tuple(sorted(deputies)))}" if len(deputies) < len(numbers) else ""
            lines.append(f"  {component}: tasks {_span(numbers)}{stage}{shared}")
        lines += [f"  executor {each.index} {each.name}: tasks {_listing(each.task_ids)}" for each in self.executors]
        for link in self.links:
            fields = f"({', '.join(link.grouping.fields)})" if link.grouping.fields else ""
            way = "carried" if link.carried else "driver" if link.from_spout else "local" if link.local else "exchange"
            lines.append(f"  {link.producer}.{link.stream} -> {link.consumer}: {link.grouping.kind}{fields}, {way}")
        return "\n".join(lines)


def _span(numbers: range) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}..{numbers[-1]}"


def _listing(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def _parallelism(spec: TopologySpec, *, spread: bool) -> dict[str, int]:
    """Tasks per component: what was asked for, else 1.

    An undecided sink on Spark is as wide as its widest producer; locally one thread would serve all of its tasks, so
    more than one only makes more and smaller files.
    """
    chosen = {
        name: component.parallelism or 1
        for name, component in spec.components.items()
        if component.kind != "sink" or component.parallelism
    }
    for name, component in spec.components.items():
        if name not in chosen:
            widths = (chosen[source.component] for source in component.inputs)
            chosen[name] = max(widths, default=1) if spread else 1
    return chosen


def _of_kind(spec: TopologySpec, kind: str) -> Iterator[ComponentSpec]:
    return (component for component in spec.components.values() if component.kind == kind)


def _number(spec: TopologySpec, parallelism: Mapping[str, int], ackers: int) -> Iterator[Task]:
    widths = [(SYSTEM, 1), (ACKER, ackers)]
    widths += [(c.name, parallelism[c.name]) for kind in ("bolt", "sink", "spout") for c in _of_kind(spec, kind)]
    task_id = 0
    for component, width in widths:
        for index in range(width):
            yield Task(task_id, component, index)
            task_id += 1


def _ranges(tasks: tuple[Task, ...]) -> dict[str, range]:
    ranges: dict[str, range] = {}
    for task in tasks:
        ranges[task.component] = range(task.task_id - task.index, task.task_id + 1)
    return ranges


def _topological(spec: TopologySpec) -> tuple[list[str], set[tuple[str, str]]]:
    """Components with producers first, and the (producer, consumer) pairs that close cycles.

    Depth first along the data from the spouts (Tarjan 1976: an edge to a vertex on the path is a back edge; reversed
    finishing order is topological for the rest). Iterative, because a chain may be longer than Python's stack.
    """
    consumers: dict[str, list[str]] = defaultdict(list)
    for consumer in reversed(list(spec.components.values())):
        for source in consumer.inputs:
            consumers[source.component].append(consumer.name)
    finished: list[str] = []
    back_edges: set[tuple[str, str]] = set()
    on_path: dict[str, bool] = {}  # absent: not seen; True: on the path; False: finished
    # Spouts first, so that an edge is judged along the data; each list backwards, because what is visited last is first
    # in the reversed finishing order.
    starts = [
        component.name for component in [*_of_kind(spec, "sink"), *_of_kind(spec, "bolt"), *_of_kind(spec, "spout")]
    ]
    for start in reversed(starts):
        if start in on_path:
            continue
        on_path[start] = True
        path = [(start, iter(consumers[start]))]
        while path:
            name, following = path[-1]
            target = next(following, None)
            if target is None:
                on_path[name] = False
                finished.append(name)
                path.pop()
            elif on_path.get(target):
                back_edges.add((name, target))
            elif target not in on_path:
                on_path[target] = True
                path.append((target, iter(consumers[target])))
    return finished[::-1], back_edges


def _readers(spec: TopologySpec, parallelism: Mapping[str, int], partitions: int) -> dict[str, int]:
    """In how many partitions each spout is read that executors read: in all of them.

    Where its consumers are in fewer, and reading only there saves the exchange, in so many: they have no more work.
    """
    found: dict[str, int] = {}
    for spout in _of_kind(spec, "spout"):
        if is_read_on_executors(spout.body):
            readings = [
                (source.grouping, parallelism[consumer.name], consumer.kind == "sink")
                for stream in spout.outputs
                for consumer, source in spec.consumers(spout.name, stream)
            ]
            widths = [1 if grouping.kind == "global" else tasks for grouping, tasks, _ in readings]
            found[spout.name] = next(
                (
                    width
                    for width in (partitions, min([partitions, *widths]))
                    if all(_is_local(grouping, width, tasks, partitions, sink) for grouping, tasks, sink in readings)
                ),
                partitions,
            )
    return found


def _links(
    spec: TopologySpec,
    parallelism: Mapping[str, int],
    readers: Mapping[str, int],
    partitions: int,
    back_edges: set[tuple[str, str]],
) -> Iterator[Link]:
    for consumer in spec.components.values():
        for source in consumer.inputs:
            producer = spec.components.get(source.component)
            if producer is None:
                raise InternalError("an unknown producer reached the plan", where=consumer.name, got=source.component)
            yield Link(
                producer=source.component,
                stream=source.stream,
                consumer=consumer.name,
                grouping=source.grouping,
                local=_is_local(
                    source.grouping,
                    readers.get(source.component) or parallelism[source.component],
                    parallelism[consumer.name],
                    partitions,
                    consumer.kind == "sink",
                ),
                carried=(source.component, consumer.name) in back_edges,
                from_spout=producer.kind == "spout" and producer.name not in readers,
            )


def _is_local(grouping: Grouping, producers: int, consumers: int, partitions: int, to_sink: bool) -> bool:
    """Whether a link needs no exchange.

    Each producing partition must hold a target that the grouping allows to choose, or all that it could name.
    A plain shuffle to a bolt promises even work, so it stays only where distributing within partitions is even too.
    """
    if partitions == 1:
        return True
    kind = grouping.kind
    if kind in ("local_or_shuffle", "none") or (kind == "shuffle" and to_sink):
        return min(producers, partitions) <= min(consumers, partitions)
    if kind == "shuffle":
        return all(
            _living_in(partition, producers, partitions) * consumers
            == _living_in(partition, consumers, partitions) * producers
            for partition in range(min(partitions, max(producers, consumers)))
        )
    targets = 1 if kind == "global" else consumers
    return producers == 1 and targets == 1


def _living_in(partition: int, tasks: int, partitions: int) -> int:
    return len(range(partition, tasks, partitions))


def _stages(
    spec: TopologySpec, order: list[str], links: tuple[Link, ...], readers: Mapping[str, int]
) -> dict[str, int]:
    incoming: dict[str, list[Link]] = defaultdict(list)
    for link in links:
        if not link.carried and not link.from_spout:
            incoming[link.consumer].append(link)
    stage_of: dict[str, int] = {}
    for name in order:
        if spec.components[name].kind != "spout" or name in readers:
            stage_of[name] = max((stage_of[i.producer] + (not i.local) for i in incoming[name]), default=0)
    return stage_of


def _fused(order: list[str], stage_of: Mapping[str, int]) -> tuple[Stage, ...]:
    members: dict[int, list[str]] = defaultdict(list)
    for name in order:
        if name in stage_of:
            members[stage_of[name]].append(name)
    return tuple(Stage(index, tuple(members[index])) for index in sorted(members))


def _executors(spec: TopologySpec, ranges: Mapping[str, range], acker_executors: int) -> tuple[PlannedExecutor, ...]:
    """Two threads, so that acks and timeouts survive a stuck bolt, and one more for each task that may block.

    A component that says how many it wants has them for itself, its tasks distributed over them round robin, as ackers
    are to theirs; the first of the ackers' also serves the system task and the spouts.
    """
    control = [[*ranges[SYSTEM]]] + [[] for _ in range(acker_executors - 1)]
    for position, task_id in enumerate(ranges.get(ACKER, ())):
        control[position % len(control)].append(task_id)
    work: list[int] = []
    own: list[tuple[str, list[int]]] = []
    for name, component in spec.components.items():
        blocking = isinstance(component.body, BoltSpec) and component.body.blocking
        count = component.executors or (len(ranges[name]) if blocking else 0)
        if count:
            own += [(f"{name}[{index}]", [*ranges[name][index::count]]) for index in range(count)]
        elif component.kind == "spout":
            control[0].extend(ranges[name])
        else:
            work.extend(ranges[name])
    named = [("spouts", control[0]), ("bolts", sorted(work))]
    named += [(f"ackers[{index}]", tasks) for index, tasks in enumerate(control[1:], start=1)]
    named += own
    filled = [(name, tasks) for name, tasks in named if tasks]
    return tuple(PlannedExecutor(index, name, tuple(tasks)) for index, (name, tasks) in enumerate(filled))


ANYONE = frozenset({"shuffle", "local_or_shuffle", "none", "fields", "global"})
"""Groupings that promise how work is shared or that equal keys meet, not that a task gets a copy of its own."""


def _deputies(
    spec: TopologySpec, ranges: Mapping[str, range], executors: tuple[PlannedExecutor, ...]
) -> dict[str, tuple[int, ...]]:
    """Component → deputies of its tasks, for components whose tasks cannot be told apart."""
    served_by = {task_id: executor.index for executor in executors for task_id in executor.task_ids}
    found: dict[str, tuple[int, ...]] = {}
    for name, component in spec.components.items():
        if len(ranges[name]) > 1 and _has_equal_tasks(component):
            first: dict[int, int] = {}
            found[name] = tuple(first.setdefault(served_by[task_id], task_id) for task_id in ranges[name])
    ackers = ranges.get(ACKER, range(0))
    if len(ackers) > 1 and len({served_by[task_id] for task_id in ackers}) == 1:
        found[ACKER] = (ackers.start,) * len(ackers)
    return found


def _has_equal_tasks(component: ComponentSpec) -> bool:
    """Whether it makes no difference to a bolt, or to the task that emits to it, which of its tasks works a tuple.

    It does where an object of its own, a context, held tuples or ticks belong to each task.
    """
    body = component.body
    return (
        isinstance(body, BoltSpec)
        and body.style in {"function", "arrow"}
        and not body.is_async
        and body.auto_ack
        and body.auto_fail
        and Tick not in body.input_types
        and not {"context", "collector"} & set(body.inject.values())
        and (body.state is None or body.state.is_keyed)
        and all(source.grouping.kind in ANYONE for source in component.inputs)
    )
