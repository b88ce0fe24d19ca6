"""The builder: what a user writes to put components together, ending in a checked `TopologySpec`.

Owns the fluent surface and the place in the user's code that each fault is reported at. It refuses to judge the
graph: `check` does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeAlias

from tupletree.errors import Finding, TopologyError
from tupletree.topology import hints
from tupletree.topology.check import check
from tupletree.topology.components import AsyncSpout, Bolt, HoldingBolt, Sink, Spout
from tupletree.topology.decorators import FunctionBolt
from tupletree.topology.limits import pending_faults
from tupletree.topology.model import (
    BoltSpec,
    ComponentSpec,
    CustomGrouping,
    Grouping,
    InputSpec,
    StreamSpec,
    TopologySpec,
)
from tupletree.topology.render import to_mermaid, to_text
from tupletree.topology.retry import Retry, policy_faults, rate_faults
from tupletree.topology.signatures import BoltDescription, read_class, schemas_of
from tupletree.topology.splits import SplitSpout, split_faults
from tupletree.topology.streams import Schema


@dataclass(eq=False)
class _Draft:
    """One component as declared so far; `spec` has neither its streams nor its inputs yet."""

    topology: Topology
    spec: ComponentSpec
    outputs: tuple[Schema, ...] = ()
    streams: dict[str, StreamSpec] = field(default_factory=dict)  # those that the user addressed
    inputs: list[tuple[Any, Grouping]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unconsumed: bool = False  # its outputs need not be read

    def __str__(self) -> str:
        return f"{self.spec.kind} {self.spec.name!r}"

    @property
    def place(self) -> str:
        return f"{self} ({self.spec.where})"

    def fault(self, what: str, got: str = "", expected: str = "", next_step: str = "") -> None:
        """Note that something is wrong with it."""
        self.findings.append(Finding(what, self.place, got, expected, next_step))


@dataclass(frozen=True, eq=False)
class StreamReference:
    """One stream of a component, as a source for groupings. Made by `stream`."""

    draft: _Draft
    name: str


class _Producer:
    """What spouts and bolts have in common: streams."""

    def __init__(self, draft: _Draft) -> None:
        self.draft = draft

    def __repr__(self) -> str:
        return f"<{self.draft}>"

    def stream(self, message_class: type, name: str | None = None, *, unconsumed: bool = False) -> StreamReference:
        """Address one stream of several.

        Args:
            message_class: the class of its tuples.
            name: where one class serves two streams; the first such name takes the place of the default (the class's
                name), unless that is addressed as well.
            unconsumed: no bolt reads it, and that is intended.
        """
        draft, chosen = self.draft, name if name is not None else getattr(message_class, "__name__", "")
        known = next((schema for schema in draft.outputs if schema.cls is message_class), None)
        if known is None:
            names = [schema.cls.__name__ for schema in draft.outputs]
            draft.findings.append(
                Finding.unknown(
                    f"{draft} emits no {hints.text_of(message_class)}",
                    hints.caller_place(),
                    getattr(message_class, "__name__", ""),
                    names,
                    "name it in the return type, in `Collector[...]`, or in `outputs=`",
                )
            )
        before = draft.streams.get(chosen)
        if before is not None and before.schema.cls is not message_class:
            draft.fault(
                f"the stream name {chosen!r} serves two classes",
                got=f"{hints.text_of(before.schema.cls)} and {hints.text_of(message_class)}",
                next_step="give one of them another name",
            )
        # A class that is not emitted gets a stream all the same, so that what follows is judged once, not again.
        schema = known or Schema(message_class, {})
        unconsumed = unconsumed or (before is not None and before.unconsumed)
        draft.streams[chosen] = StreamSpec(draft.spec.name, chosen, schema, unconsumed)
        return StreamReference(draft, chosen)


class _Consumer:
    """What bolts and sinks have in common: groupings. Each call adds one input and returns the handle itself."""

    def __init__(self, draft: _Draft) -> None:
        self.draft = draft

    def _add(self, source: Source, grouping: Grouping) -> Self:
        self.draft.inputs.append((source, grouping))
        return self

    def shuffle(self, source: Source) -> Self:
        """Distribute tuples evenly over the tasks."""
        return self._add(source, Grouping("shuffle"))

    def fields(self, source: Source, *fields: str, ordered: bool = False) -> Self:
        """Send tuples with equal values of these fields to the same task.

        Args:
            source: where the tuples come from.
            fields: the key.
            ordered: what comes later for a key waits for what is tried again before it, so that the tuples of a key are
                worked in the order in which the source emitted their messages; on Spark, what is committed is in that
                order. False: a message that is tried again comes later than others.
        """
        return self._add(source, Grouping("fields", fields, ordered=ordered))

    def partial_key(self, source: Source, *fields: str) -> Self:
        """Like `fields`, but a key has two tasks and each tuple takes the one with less to do."""
        return self._add(source, Grouping("partial_key", fields))

    def all(self, source: Source) -> Self:
        """Send every tuple to every task."""
        return self._add(source, Grouping("all"))

    def global_(self, source: Source) -> Self:
        """Send every tuple to the first task."""
        return self._add(source, Grouping("global"))

    def direct(self, source: Source) -> Self:
        """Let the producer choose the task (`Collector.emit_direct`)."""
        return self._add(source, Grouping("direct"))

    def local_or_shuffle(self, source: Source) -> Self:
        """Prefer tasks where the producer runs; distribute evenly over them."""
        return self._add(source, Grouping("local_or_shuffle"))

    def none(self, source: Source) -> Self:
        """Say that the grouping does not matter."""
        return self._add(source, Grouping("none"))

    def custom(self, source: Source, choose: CustomGrouping) -> Self:
        """Let a function choose: (value, number of tasks) → index or list of indexes, 0-based."""
        return self._add(source, Grouping("custom", custom=choose))


class SpoutHandle(_Producer):
    """A declared spout: a source of groupings."""


class BoltHandle(_Producer, _Consumer):
    """A declared bolt: takes groupings, and is a source of others."""


class SinkHandle(_Consumer):
    """A declared sink: takes groupings."""

    def __repr__(self) -> str:
        return f"<{self.draft}>"


Source: TypeAlias = SpoutHandle | BoltHandle | StreamReference
"""Where tuples come from: a component with one stream, or one stream of a component."""


class Topology:
    """A topology being written. Components are declared in any order; `build` checks all of it.

    Args:
        name: letters, digits, `.`, `_` and `-`; it names files.
        options: settings, by the names of `Options` or Storm's.
        allow_cycle: tuples may flow in cycles.
    """

    def __init__(self, name: str, *, options: Mapping[str, Any] | None = None, allow_cycle: bool = False) -> None:
        self.name = name
        self._options = dict(options or {})
        self._allow_cycle = allow_cycle
        self._dead_letters: ComponentSpec | None = None
        self.drafts: list[_Draft] = []

    def __repr__(self) -> str:
        return f"<topology {self.name!r}: {', '.join(draft.spec.name for draft in self.drafts) or 'empty'}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Draw the topology as far as it is written: Jupyter asks for this."""
        components, _incomplete, _findings = self._components()
        spec = TopologySpec(self.name, {component.name: component for component in components})
        return {"text/plain": to_text(spec), "text/vnd.mermaid": to_mermaid(spec)}

    def options(self, **settings: Any) -> Self:
        """Set options (code comes after the defaults, before file, environment and command line)."""
        self._options |= settings
        return self

    def spout(
        self,
        name: str,
        spout: Spout[Any] | AsyncSpout[Any],
        *,
        parallelism: int = 1,
        executors: int | None = None,
        replay: Literal["runtime", "source"] = "runtime",
        pending: int | None = None,
    ) -> SpoutHandle:
        """Add a source of messages. Its class of messages is read from `Spout[T]`, or its `message_type`.

        Args:
            name: unique in the topology.
            spout: a spout object; an `AsyncSpout` may wait.
            parallelism: number of tasks.
            executors: see `bolt`; by default spouts share a thread with the ackers.
            replay: who retries a failed attempt: the runtime, or the source itself on `fail`.
            pending: messages that each task may have open, whatever `max_spout_pending` says; None: as the options say.
        """
        draft = self._declare(
            ComponentSpec(name, "spout", spout, parallelism, executors=executors, replay=replay, pending=pending)
        )
        draft.findings += pending_faults(pending, draft.place)
        base: type = AsyncSpout if isinstance(spout, AsyncSpout) else Spout
        if not self._is_object(draft, base):
            return SpoutHandle(draft)
        if type(spout).next in {Spout.next, AsyncSpout.next}:
            draft.fault("the spout has no `next`", next_step="write `def next(self)`")
        elif inspect.iscoroutinefunction(type(spout).next) is not (base is AsyncSpout):
            fault = "`next` of a Spout is plain" if base is Spout else "`next` of an AsyncSpout is async"
            step = "derive from AsyncSpout" if base is Spout else "write `async def next`, or derive from Spout"
            draft.fault(fault, got=hints.text_of(type(spout)), next_step=step)
        if isinstance(spout, SplitSpout):
            draft.findings += split_faults(spout, replay, draft.place)
        declared = hints.declared_class(spout, base)
        if declared is None or declared is Any:
            draft.fault(
                "the class of its messages is not known",
                got=hints.text_of(type(spout)),
                next_step="derive from Spout[YourClass], or set `message_type` on the object",
            )
        else:
            draft.outputs = schemas_of(hints.members(declared), draft.place, hints.caller_names(), draft.findings)
            if len(draft.outputs) > 1:
                draft.fault(
                    "a spout has one stream, so one class of messages",
                    got=" | ".join(schema.cls.__name__ for schema in draft.outputs),
                    expected="Spout[YourClass]",
                    next_step="write a spout for each class, or give one class and let a bolt yield several from it",
                )
        return SpoutHandle(draft)

    def bolt(
        self,
        name: str,
        bolt: FunctionBolt[..., Any] | Callable[[], Bolt[Any] | HoldingBolt[Any]],
        *,
        parallelism: int = 1,
        executors: int | None = None,
        unconsumed: type | tuple[type, ...] | bool = (),
        resources: Mapping[str, Any] | None = None,
        retry: Retry | None = None,
        max_rate: float | None = None,
    ) -> BoltHandle:
        """Add a bolt. Say where its tuples come from on the handle that is returned.

        Args:
            name: unique in the topology.
            bolt: a function decorated with `@bolt`, `@batch_bolt` or `@arrow_bolt`; a subclass of `Bolt` or
                `HoldingBolt`; or a function without arguments that makes one (per task).
            parallelism: number of tasks.
            executors: on the local runtime, threads of their own that its tasks are distributed over, at most one per
                task; None: one thread for all bolts and sinks, and one per task with `blocking=True`. Spark ignores it.
            unconsumed: classes of output that nothing reads, which is intended; True: all of them that nothing reads.
            resources: what `Resource[T]` parameters get, by name.
            retry: how messages are tried again that failed in this bolt; None: as the options say.
            max_rate: calls per second at most, of all its tasks together; each gets an equal share. None: no limit.
        """
        given = dict(resources or {})
        draft = self._declare(
            ComponentSpec(
                name, "bolt", bolt, parallelism, executors=executors, resources=given, retry=retry, max_rate=max_rate
            )
        )
        draft.findings += policy_faults(retry, draft.place)
        described = self._describe(draft, bolt)
        if described is not None:
            draft.spec, draft.outputs = replace(draft.spec, body=described.spec), described.outputs
            draft.findings += rate_faults(max_rate, described.spec.style, draft.place)
            draft.findings += [
                replace(finding, where=f"bolt {name!r}: {finding.where}") for finding in described.findings
            ]
        handle = BoltHandle(draft)
        draft.unconsumed = unconsumed is True
        if not isinstance(unconsumed, bool):
            for cls in unconsumed if isinstance(unconsumed, tuple) else (unconsumed,):
                handle.stream(cls, unconsumed=True)
        return handle

    def sink(
        self,
        name: str,
        sink: Sink[Any],
        *,
        parallelism: int | None = None,
        executors: int | None = None,
        retry: Retry | None = None,
    ) -> SinkHandle:
        """Add a sink, where results go.

        Args:
            name: unique in the topology.
            sink: a sink object.
            parallelism: number of tasks; None is as many as its widest producer has on Spark, and 1 locally.
            executors: see `bolt`.
            retry: what follows when the sink raises; None: as the options say. Locally the messages of the batch are
                tried again; on Spark their rows are there already, and the call is made again, attempts times.
        """
        draft = self._declare(ComponentSpec(name, "sink", sink, parallelism, executors=executors, retry=retry))
        draft.findings += policy_faults(retry, draft.place)
        self._is_object(draft, Sink)
        return SinkHandle(draft)

    def dead_letters(self, sink: Sink[Any]) -> Self:
        """Give each `DeadLetter` to a sink, too, at least once, when it is durable; returns the topology.

        Args:
            sink: `jsonl(…)`, `foreach(…)` or a sink of your own. Its rows are `DeadLetter` objects.
        """
        self._dead_letters = ComponentSpec("dead_letters", "sink", sink, where=hints.caller_place())
        return self

    def build(self) -> TopologySpec:
        """Check everything and describe it.

        Raises:
            TopologyError: with every fault, each with where, got, expected and the next step.
        """
        components, incomplete, findings = self._components()
        findings += check(
            self.name,
            components,
            options=self._options,
            allow_cycle=self._allow_cycle,
            incomplete=incomplete,
        )
        letters = self._dead_letters
        if letters is not None and not isinstance(letters.body, Sink):
            where, got = f"dead_letters ({letters.where})", repr(letters.body)
            findings.append(Finding("this is no sink", where, got, "a Sink object, such as jsonl('dead')"))
        if findings:
            raise TopologyError(f"topology {self.name!r} cannot be built", findings=findings)
        named = {component.name: component for component in components}
        return TopologySpec(self.name, named, dict(self._options), letters)

    def _declare(self, spec: ComponentSpec) -> _Draft:
        draft = _Draft(self, replace(spec, where=hints.caller_place()))
        self.drafts.append(draft)
        return draft

    def _is_object(self, draft: _Draft, base: type) -> bool:
        """Whether the body is a spout or sink object; if not, say so."""
        if isinstance(draft.spec.body, base):
            return True
        is_class = isinstance(draft.spec.body, type) and issubclass(draft.spec.body, base)
        draft.fault(
            f"this is no {draft.spec.kind}",
            got=f"the class {hints.text_of(draft.spec.body)}" if is_class else hints.text_of(type(draft.spec.body)),
            expected=f"a {base.__name__} object",
            next_step="make an object of it" if is_class else f"derive from {base.__name__}",
        )
        return False

    def _describe(self, draft: _Draft, bolt: Any) -> BoltDescription | None:
        if isinstance(bolt, FunctionBolt):
            return bolt.describe(hints.caller_names())
        if isinstance(bolt, Bolt | HoldingBolt):
            what, next_step = "each task needs a bolt of its own", "pass the class, or a function that makes one"
        elif not callable(bolt):
            what, next_step = "this is no bolt", "decorate a function with @bolt, or derive from Bolt"
        elif not isinstance(bolt, type) and _has_parameters(bolt):
            what, next_step = "a plain function is no bolt", "decorate it with @bolt"
        elif isinstance(bolt, type) and not issubclass(bolt, Bolt | HoldingBolt):
            what, next_step = "this class is no bolt", "derive from Bolt"
        else:
            return read_class(bolt, hints.caller_names())
        draft.fault(what, got=repr(bolt), next_step=next_step)
        return None

    def _components(self) -> tuple[list[ComponentSpec], set[str], list[Finding]]:
        """The drafts as components, the names of those with wrong inputs left out, and what was wrong."""
        findings: list[Finding] = []
        streams = {draft: _streams_of(draft) for draft in self.drafts}
        inputs: dict[_Draft, list[InputSpec]] = {draft: [] for draft in self.drafts}
        incomplete: set[str] = set()
        blamed: set[_Draft] = set()
        for draft in self.drafts:
            findings += [*draft.findings, *_stream_faults(draft)]
            for source, grouping in draft.inputs:
                found = self._input(draft, source, grouping, streams)
                if isinstance(found, InputSpec):
                    inputs[draft].append(found)
                    continue
                findings += found
                incomplete.add(draft.spec.name)
                if isinstance(source, _Producer):
                    blamed.add(source.draft)
        read = {(one.component, one.stream) for of_one in inputs.values() for one in of_one}
        components = [
            replace(
                draft.spec,
                # A stream that a wrong input may have meant gets no finding for having no consumer.
                outputs=_rest_unconsumed(draft.spec.name, streams[draft], read)
                if draft.unconsumed or draft in blamed
                else streams[draft],
                inputs=tuple(inputs[draft]),
            )
            for draft in self.drafts
        ]
        return components, incomplete, findings

    def _input(
        self, draft: _Draft, source: Any, grouping: Grouping, streams: Mapping[_Draft, Mapping[str, StreamSpec]]
    ) -> InputSpec | list[Finding]:
        """The subscription, or why there is none (empty if its source has been found wrong already)."""
        if not isinstance(source, _Producer | StreamReference):
            return [
                Finding(
                    "this is no source of tuples",
                    draft.place,
                    got=repr(source),
                    expected="what Topology.spout or Topology.bolt returned, or one of its streams",
                )
            ]
        producer = source.draft
        if producer.topology is not self:
            return [Finding(f"{producer.place} belongs to another topology", draft.place, got=repr(producer.topology))]
        if isinstance(source, StreamReference):
            return InputSpec(producer.spec.name, source.name, grouping)
        wanted = [stream for stream in streams[producer].values() if not stream.unconsumed]
        if len(wanted) == 1:
            return InputSpec(producer.spec.name, wanted[0].name, grouping)
        if wanted and producer.spec.kind != "spout":  # a spout with several streams is a finding of its own
            names = [_reference(stream) for stream in wanted]
            return [
                Finding(
                    f"{producer} has {len(names)} streams",
                    draft.place,
                    got=f"the {producer.spec.kind} as a whole",
                    expected=f"one of: {', '.join(names)}",
                )
            ]
        if producer.findings:
            return []
        return [Finding(f"{producer} has no output to consume", draft.place)]


def _has_parameters(function: Callable[..., Any]) -> bool:
    return any(
        parameter.default is parameter.empty and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        for parameter in inspect.signature(function).parameters.values()
    )


def _reference(stream: StreamSpec) -> str:
    cls_name = stream.schema.cls.__name__
    return f".stream({cls_name})" if stream.name == cls_name else f".stream({cls_name}, name={stream.name!r})"


def _streams_of(draft: _Draft) -> dict[str, StreamSpec]:
    """The streams that were addressed, and the default one of each class that was not."""
    streams: dict[str, StreamSpec] = {}
    for schema in draft.outputs:
        own = [stream for stream in draft.streams.values() if stream.schema.cls is schema.cls]
        for stream in own or [StreamSpec(draft.spec.name, schema.cls.__name__, schema)]:
            streams.setdefault(stream.name, stream)
    return streams | {name: stream for name, stream in draft.streams.items() if name not in streams}


def _rest_unconsumed(
    name: str, streams: Mapping[str, StreamSpec], read: Collection[tuple[str, str]]
) -> dict[str, StreamSpec]:
    """Streams of a component; those that nothing reads are meant not to be read."""
    return {
        stream.name: stream if (name, stream.name) in read else replace(stream, unconsumed=True)
        for stream in streams.values()
    }


def _stream_faults(draft: _Draft) -> Iterator[Finding]:
    can_choose = isinstance(draft.spec.body, BoltSpec) and draft.spec.body.can_collect
    defaults: dict[str, type] = {}
    for schema in draft.outputs:
        names = [stream.name for stream in draft.streams.values() if stream.schema.cls is schema.cls]
        if not names and defaults.setdefault(schema.cls.__name__, schema.cls) is not schema.cls:
            yield Finding(
                f"two output classes are called {schema.cls.__name__!r}",
                draft.place,
                got=f"{hints.text_of(defaults[schema.cls.__name__])} and {hints.text_of(schema.cls)}",
                next_step=f"name the stream of one: `.stream({schema.cls.__name__}, name=...)`",
            )
        if len(names) > 1 and not can_choose:
            yield Finding(
                f"{hints.text_of(schema.cls)} serves {len(names)} streams, but nothing says which tuple goes where",
                draft.place,
                got=", ".join(names),
                expected="a bolt with a Collector, which has `emit(value, stream=...)`",
            )
