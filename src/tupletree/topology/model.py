"""The data model of a topology, on one screen: what a builder produces and everything else reads.

Frozen descriptions only. Nothing here runs user code, checks, plans or draws; see `builder`, `check`, `render`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, SupportsIndex, TypeAlias

from tupletree.topology.retry import Retry
from tupletree.topology.streams import Schema
from tupletree.topology.windows import JoinSpec, WindowSpec

GroupingKind: TypeAlias = Literal[
    "shuffle", "fields", "partial_key", "all", "global", "direct", "local_or_shuffle", "none", "custom"
]
BoltStyle: TypeAlias = Literal["function", "class", "batch", "arrow", "window", "join", "holding"]
CustomGrouping: TypeAlias = Callable[[Any, int], "int | list[int]"]
"""(value, number of target tasks) → index or indexes of the targets, 0-based; an empty list drops the copy."""


@dataclass(frozen=True)
class StreamSpec:
    """One typed output of a component. `name` is unique within the component (the class name by default)."""

    component: str
    name: str
    schema: Schema
    unconsumed: bool = False


@dataclass(frozen=True)
class Grouping:
    """How a stream's tuples are distributed over the tasks of one consumer.

    `ordered`, of `fields` only: what comes later for a key waits for what is tried again before it.
    """

    kind: GroupingKind
    fields: tuple[str, ...] = ()
    custom: CustomGrouping | None = None
    ordered: bool = False


@dataclass(frozen=True)
class InputSpec:
    """A consumer's subscription to one stream of one component."""

    component: str
    stream: str
    grouping: Grouping


@dataclass(frozen=True)
class StateSpec:
    """State of a bolt.

    Attributes:
        value_type: the type of a value; of a map or list, the dict's or list's.
        default: makes the first value.
        kind: a value, map or list per key, where the key is the fields of the bolt's `fields` groupings; or a value per
            task.
        ttl_s: seconds after which a key expires unless it changes; None is never.
    """

    value_type: Any
    default: Callable[[], Any]
    kind: Literal["value", "map", "list", "task"] = "value"
    ttl_s: float | None = None

    @property
    def is_keyed(self) -> bool:
        """Whether it is kept per key."""
        return self.kind != "task"


@dataclass(frozen=True)
class BoltSpec:
    """How to call a bolt.

    Attributes:
        style: `function` (called once per tuple with the value), `class` (a `Bolt` subclass or instance factory,
            opened once per task), `batch`, `arrow`, `window`, `join` or `holding` (a `HoldingBolt`).
        target: the function, or a zero-argument factory of `Bolt` or `HoldingBolt` objects.
        returns: what a call gives back: `value` (one tuple or None), `many` (an iterable of tuples, or None),
            `nothing` (outputs come only through a `Collector`, or there are none).
        value_parameter: name of the parameter that takes the tuple (function style).
        inject: parameter name → what it gets: `collector`, `context`, `state`, or `resource:<name>`. Class style:
            names of attributes (`state`, `resource:<name>` only), set on the instance before `open`.
        input_types: the classes the bolt accepts, `object` for any; `Tick` among them if it wants ticks as values.
        auto_ack: ack the tuple when the call returned (a bolt with a Collector may settle it earlier itself).
        auto_fail: fail the tuple when the call raised. False: the exception is recorded, and the tuple stays open
            until its timeout.
        state: its state, if it declares any.
        holding: window and join style only: their settings.
        is_async, concurrency, blocking: how runtimes may schedule it.
        ordered: async bolts only: results leave in the order of the tuples, whichever call ends first.
        batch_size, batch_max_age_s: batch style only.
        tick_interval_s: ask for ticks; None is unset.
        key_fields: what its inputs must be grouped by, if the bolt knows; else any fields will do.
        takes_many_rows: a library bolt: a call may have the rows of many frames. Its time and its results are known to
            stay small then, as they are not where user code works the rows; without state, a row comes of one.
        takes_collector: class style only: `process` has a second parameter, for a Collector.
        origin: the decorated bolt that this was read from, if any. It is what pickles, by reference, so that a worker
            imports the user's module and reads the hints there. Code that replaces another field clears it.
    """

    style: BoltStyle
    target: Callable[..., Any]
    returns: Literal["value", "many", "nothing"]
    value_parameter: str = "value"
    inject: Mapping[str, str] = field(default_factory=dict)
    input_types: tuple[type, ...] = ()
    auto_ack: bool = True
    auto_fail: bool = True
    state: StateSpec | None = None
    holding: WindowSpec | JoinSpec | None = None
    is_async: bool = False
    concurrency: int = 1
    ordered: bool = False
    blocking: bool = False
    batch_size: int | None = None
    batch_max_age_s: float | None = None
    tick_interval_s: float | None = None
    key_fields: tuple[str, ...] = ()
    takes_many_rows: bool = False
    takes_collector: bool = True
    origin: Any = field(default=None, repr=False, compare=False)

    @property
    def is_keyed(self) -> bool:
        """Whether it keeps anything by key, so that all tuples of a key must come to one task."""
        return (self.state is not None and self.state.is_keyed) or (self.holding is not None and self.holding.per_key)

    @property
    def is_holder(self) -> bool:
        """Whether it holds tuples for calls to come: batches, windows, joins, and a `HoldingBolt`."""
        return self.style in {"batch", "window", "join", "holding"}

    @property
    def is_vectorised(self) -> bool:
        """Whether it is called with Arrow columns instead of values."""
        return self.style == "arrow"

    @property
    def settles_each_call(self) -> bool:
        """Whether a call that returns or raises settles its tuple: nobody holds it, or settles it by hand."""
        return not self.is_holder and self.auto_ack and self.auto_fail

    @property
    def can_collect(self) -> bool:
        """Whether the bolt has a Collector, and with it the choice of stream, task and anchors."""
        return (self.style == "class" and self.takes_collector) or "collector" in self.inject.values()

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Pickle the decorated bolt instead of the bare function, whose module-level name it took."""
        return super().__reduce_ex__(protocol) if self.origin is None else (_spec_of, (self.origin,))


def _spec_of(origin: Any) -> BoltSpec:
    spec: BoltSpec = origin.spec
    return spec


@dataclass(frozen=True)
class ComponentSpec:
    """One spout, bolt or sink.

    Attributes:
        kind: what it is; `body` is then a `Spout` object, a `BoltSpec` or a `Sink` object.
        parallelism: tasks asked for; None lets the plan choose (a sink on Spark: as many as its widest producer,
            else 1).
        outputs: streams by name, in declaration order.
        inputs: subscriptions in declaration order (empty for a spout).
        resources: what `resource:<name>` injections get, by name.
        replay: spouts only; who retries a failed attempt: the runtime, or the source itself.
        pending: spouts only; messages that a task may have open. None: by the options.
        where: `file:line` of the call that declared it, for errors.
        executors: threads of their own for these tasks on the local runtime; None leaves it to the plan.
        retry: bolts only; how messages are tried again that failed here. None: by the options.
        max_rate: bolts only; calls per second of all its tasks together. None: no limit.
    """

    name: str
    kind: Literal["spout", "bolt", "sink"]
    body: Any
    parallelism: int | None = None
    outputs: Mapping[str, StreamSpec] = field(default_factory=dict)
    inputs: tuple[InputSpec, ...] = ()
    replay: Literal["runtime", "source"] = "runtime"
    resources: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    executors: int | None = None
    retry: Retry | None = None
    max_rate: float | None = None
    pending: int | None = None

    @property
    def sources(self) -> frozenset[tuple[str, str]]:
        """(component, stream) of each input."""
        return frozenset((one.component, one.stream) for one in self.inputs)


@dataclass(frozen=True)
class TopologySpec:
    """A whole, checked topology: components by name, in declaration order.

    `dead_letters` is the sink that dead letters go to, beside the store; it is no component of the plan.
    """

    name: str
    components: Mapping[str, ComponentSpec]
    options: Mapping[str, Any] = field(default_factory=dict)
    dead_letters: ComponentSpec | None = None

    def consumers(self, component: str, stream: str) -> tuple[tuple[ComponentSpec, InputSpec], ...]:
        """Who subscribes to this stream, in declaration order."""
        return tuple(
            (consumer, subscription)
            for consumer in self.components.values()
            for subscription in consumer.inputs
            if subscription.component == component and subscription.stream == stream
        )

    def upstream_of(self, component: str) -> frozenset[str]:
        """Every component that something of it may come from, by whatever way."""
        met: set[str] = set()
        waiting = [component]
        while waiting:
            for one in self.components[waiting.pop()].inputs:
                if one.component not in met:
                    met.add(one.component)
                    waiting.append(one.component)
        return frozenset(met)


@dataclass(frozen=True)
class TargetRef:
    """Where a topology comes from, so that another process can follow: it imports the module, and unpickles no classes.

    Attributes:
        module: name under which its module is imported, on every machine.
        name: name in the module: a Topology, or a function that returns one.
        search_path: folder that must be on `sys.path` for the import; on a cluster its `module` is shipped.
        parameters: keyword arguments of the function, typed; empty for a Topology.
    """

    module: str
    name: str
    search_path: str
    parameters: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold passwords
