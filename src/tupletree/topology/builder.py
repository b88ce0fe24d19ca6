"""The builder: what a user writes to put components together, ending in a checked `TopologySpec`.

Owns the fluent surface and the place in the user's code that each fault is reported at. It refuses to judge the
graph: `check` does.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Self

from tupletree.errors import Finding, TopologyError
from tupletree.topology import hints
from tupletree.topology.check import check
from tupletree.topology.components import AsyncSpout, Bolt, HoldingBolt, Sink, Spout
from tupletree.topology.decorators import FunctionBolt
from tupletree.topology.handles import BoltHandle, Draft, Producer, SinkHandle, Source, SpoutHandle, StreamReference
from tupletree.topology.model import BoltSpec, ComponentSpec, Grouping, InputSpec, StreamSpec, TopologySpec
from tupletree.topology.render import to_mermaid, to_text
from tupletree.topology.retry import Retry, policy_faults
from tupletree.topology.signatures import BoltDescription, read_class, schemas_of
from tupletree.topology.splits import SplitSpout, split_faults

__all__ = ["BoltHandle", "SinkHandle", "Source", "SpoutHandle", "StreamReference", "Topology"]


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
        self.drafts: list[Draft] = []

    def __repr__(self) -> str:
        return f"<topology {self.name!r}: {', '.join(draft.name for draft in self.drafts) or 'empty'}>"

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
    ) -> SpoutHandle:
        """Add a source of messages. Its class of messages is read from `Spout[T]`, or its `message_type`.

        Args:
            name: unique in the topology.
            spout: a spout object; an `AsyncSpout` may wait.
            parallelism: number of tasks.
            executors: see `bolt`; by default spouts share a thread with the ackers.
            replay: who retries a failed attempt: the runtime, or the source itself on `fail`.
        """
        draft = self._declare(name, "spout", spout, parallelism, executors)
        draft.replay = replay
        base: type = AsyncSpout if isinstance(spout, AsyncSpout) else Spout
        if not self._is_object(draft, base):
            return SpoutHandle(draft)
        if type(spout).next in {Spout.next, AsyncSpout.next}:
            draft.findings.append(Finding("the spout has no `next`", draft.place, next_step="write `def next(self)`"))
        elif inspect.iscoroutinefunction(type(spout).next) is not (base is AsyncSpout):
            fault = "`next` of a Spout is plain" if base is Spout else "`next` of an AsyncSpout is async"
            step = "derive from AsyncSpout" if base is Spout else "write `async def next`, or derive from Spout"
            draft.findings.append(Finding(fault, draft.place, got=hints.text_of(type(spout)), next_step=step))
        if isinstance(spout, SplitSpout):
            draft.findings += split_faults(spout, replay, draft.place)
        declared = hints.declared_class(spout, base)
        if declared is None or declared is Any:
            draft.findings.append(
                Finding(
                    "the class of its messages is not known",
                    draft.place,
                    got=hints.text_of(type(spout)),
                    next_step="derive from Spout[YourClass], or set `message_type` on the object",
                )
            )
        else:
            draft.outputs = schemas_of(hints.members(declared), draft.place, hints.caller_names(), draft.findings)
            if len(draft.outputs) > 1:
                draft.findings.append(_several_classes(draft))
        return SpoutHandle(draft)

    def bolt(
        self,
        name: str,
        bolt: FunctionBolt[..., Any] | Callable[[], Bolt[Any] | HoldingBolt[Any]],
        *,
        parallelism: int = 1,
        executors: int | None = None,
        unconsumed: type | tuple[type, ...] = (),
        resources: Mapping[str, Any] | None = None,
        retry: Retry | None = None,
    ) -> BoltHandle:
        """Add a bolt. Say where its tuples come from on the handle that is returned.

        Args:
            name: unique in the topology.
            bolt: a function decorated with `@bolt`, `@batch_bolt` or `@arrow_bolt`; a subclass of `Bolt` or
                `HoldingBolt`; or a function without arguments that makes one (per task).
            parallelism: number of tasks.
            executors: on the local runtime, threads of their own that its tasks are distributed over, at most one per
                task; None: one thread for all bolts and sinks, and one per task with `blocking=True`. Spark ignores it.
            unconsumed: classes of output that no bolt reads, which is intended.
            resources: what `Resource[T]` parameters get, by name.
            retry: how messages are tried again that failed in this bolt; None: as the options say.
        """
        draft = self._declare(name, "bolt", bolt, parallelism, executors)
        draft.retry = retry
        draft.findings += policy_faults(retry, draft.place)
        draft.resources = dict(resources or {})
        described = self._describe(draft, bolt)
        if described is not None:
            draft.body, draft.outputs = described.spec, described.outputs
            draft.findings += [
                dataclasses.replace(finding, where=f"bolt {name!r}: {finding.where}") for finding in described.findings
            ]
        handle = BoltHandle(draft)
        for cls in unconsumed if isinstance(unconsumed, tuple) else (unconsumed,):
            handle.stream(cls, unconsumed=True)
        return handle

    def sink(
        self, name: str, sink: Sink[Any], *, parallelism: int | None = None, executors: int | None = None
    ) -> SinkHandle:
        """Add a sink, where results go.

        Args:
            name: unique in the topology.
            sink: a sink object.
            parallelism: number of tasks; None is as many as its widest producer has on Spark, and 1 locally.
            executors: see `bolt`.
        """
        draft = self._declare(name, "sink", sink, parallelism, executors)
        self._is_object(draft, Sink)
        return SinkHandle(draft)

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
        if findings:
            raise TopologyError(f"topology {self.name!r} cannot be built", findings=findings)
        return TopologySpec(self.name, {component.name: component for component in components}, dict(self._options))

    def _declare(
        self,
        name: str,
        kind: Literal["spout", "bolt", "sink"],
        body: Any,
        parallelism: int | None,
        executors: int | None,
    ) -> Draft:
        draft = Draft(self, name, kind, body, parallelism, executors, hints.caller_place())
        self.drafts.append(draft)
        return draft

    def _is_object(self, draft: Draft, base: type) -> bool:
        """Whether the body is a spout or sink object; if not, say so."""
        if isinstance(draft.body, base):
            return True
        is_class = isinstance(draft.body, type) and issubclass(draft.body, base)
        draft.findings.append(
            Finding(
                f"this is no {draft.kind}",
                draft.place,
                got=f"the class {hints.text_of(draft.body)}" if is_class else hints.text_of(type(draft.body)),
                expected=f"a {base.__name__} object",
                next_step="make an object of it" if is_class else f"derive from {base.__name__}",
            )
        )
        return False

    def _describe(self, draft: Draft, bolt: Any) -> BoltDescription | None:
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
        draft.findings.append(Finding(what, draft.place, got=repr(bolt), next_step=next_step))
        return None

    def _components(self) -> tuple[list[ComponentSpec], set[str], list[Finding]]:
        """The drafts as components, the names of those with wrong inputs left out, and what was wrong."""
        findings: list[Finding] = []
        streams = {draft: _streams_of(draft) for draft in self.drafts}
        inputs: dict[Draft, list[InputSpec]] = {draft: [] for draft in self.drafts}
        incomplete: set[str] = set()
        blamed: set[Draft] = set()
        for draft in self.drafts:
            findings += [*draft.findings, *_stream_faults(draft)]
            for source, grouping in draft.inputs:
                found = self._input(draft, source, grouping, streams)
                if isinstance(found, InputSpec):
                    inputs[draft].append(found)
                    continue
                findings += found
                incomplete.add(draft.name)
                if isinstance(source, Producer):
                    blamed.add(source.draft)
        components = [
            ComponentSpec(
                name=draft.name,
                kind=draft.kind,
                body=draft.body,
                parallelism=draft.parallelism,
                executors=draft.executors,
                # A stream that a wrong input may have meant gets no finding for having no consumer.
                outputs=_all_unconsumed(streams[draft]) if draft in blamed else streams[draft],
                inputs=tuple(inputs[draft]),
                replay=draft.replay,
                resources=draft.resources,
                where=draft.where,
                retry=draft.retry,
            )
            for draft in self.drafts
        ]
        return components, incomplete, findings

    def _input(
        self, draft: Draft, source: Any, grouping: Grouping, streams: Mapping[Draft, Mapping[str, StreamSpec]]
    ) -> InputSpec | list[Finding]:
        """The subscription, or why there is none (empty if its source has been found wrong already)."""
        if not isinstance(source, Producer | StreamReference):
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
            return InputSpec(producer.name, source.name, grouping)
        wanted = [stream for stream in streams[producer].values() if not stream.unconsumed]
        if len(wanted) == 1:
            return InputSpec(producer.name, wanted[0].name, grouping)
        if wanted and producer.kind != "spout":  # a spout with several streams is a finding of its own
            names = [_reference(stream) for stream in wanted]
            return [
                Finding(
                    f"{producer.kind} {producer.name!r} has {len(names)} streams",
                    draft.place,
                    got=f"the {producer.kind} as a whole",
                    expected=f"one of: {', '.join(names)}",
                )
            ]
        if producer.findings:
            return []
        return [Finding(f"{producer.kind} {producer.name!r} has no output to consume", draft.place)]


def _several_classes(draft: Draft) -> Finding:
    return Finding(
        "a spout has one stream, so one class of messages",
        draft.place,
        got=" | ".join(schema.cls.__name__ for schema in draft.outputs),
        expected="Spout[YourClass]",
        next_step="write a spout for each class, or give one class and let a bolt yield several from it",
    )


def _has_parameters(function: Callable[..., Any]) -> bool:
    return any(
        parameter.default is parameter.empty and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        for parameter in inspect.signature(function).parameters.values()
    )


def _reference(stream: StreamSpec) -> str:
    cls_name = stream.schema.cls.__name__
    return f".stream({cls_name})" if stream.name == cls_name else f".stream({cls_name}, name={stream.name!r})"


def _streams_of(draft: Draft) -> dict[str, StreamSpec]:
    """The streams that were addressed, and the default one of each class that was not."""
    streams: dict[str, StreamSpec] = {}
    for schema in draft.outputs:
        own = [stream for stream in draft.streams.values() if stream.schema.cls is schema.cls]
        for stream in own or [StreamSpec(draft.name, schema.cls.__name__, schema)]:
            streams.setdefault(stream.name, stream)
    return streams | {name: stream for name, stream in draft.streams.items() if name not in streams}


def _all_unconsumed(streams: Mapping[str, StreamSpec]) -> dict[str, StreamSpec]:
    return {name: dataclasses.replace(stream, unconsumed=True) for name, stream in streams.items()}


def _stream_faults(draft: Draft) -> Iterator[Finding]:
    can_choose = isinstance(draft.body, BoltSpec) and draft.body.can_collect
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
