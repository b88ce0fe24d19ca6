"""Handles: what the builder gives back for a declared component, on which one says where its tuples come from.

Owns what is declared of a component until the topology is built, and how streams are addressed. It judges nothing but
that: `check` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from tupletree.errors import Finding
from tupletree.topology import hints
from tupletree.topology.model import CustomGrouping, Grouping, StreamSpec
from tupletree.topology.retry import Retry
from tupletree.topology.streams import Schema

if TYPE_CHECKING:
    from tupletree.topology.builder import Topology

__all__ = ["BoltHandle", "Consumer", "Draft", "Producer", "SinkHandle", "Source", "SpoutHandle", "StreamReference"]


@dataclass(eq=False)
class Draft:
    """One component as declared so far."""

    topology: Topology
    name: str
    kind: Literal["spout", "bolt", "sink"]
    body: Any
    parallelism: int | None
    executors: int | None
    where: str
    replay: Literal["runtime", "source"] = "runtime"
    resources: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[Schema, ...] = ()
    streams: dict[str, StreamSpec] = field(default_factory=dict)  # those that the user addressed
    inputs: list[tuple[Any, Grouping]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    retry: Retry | None = None

    @property
    def place(self) -> str:
        """What it is, and where it was declared."""
        return f"{self.kind} {self.name!r} ({self.where})"


@dataclass(frozen=True, eq=False)
class StreamReference:
    """One stream of a component, as a source for groupings. Made by `stream`."""

    draft: Draft
    name: str


class Producer:
    """What spouts and bolts have in common: streams."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def __repr__(self) -> str:
        return f"<{self.draft.kind} {self.draft.name!r}>"

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
                Finding(
                    f"{draft.kind} {draft.name!r} emits no {hints.text_of(message_class)}",
                    hints.caller_place(),
                    expected=hints.one_of(names),
                    next_step=hints.did_you_mean(getattr(message_class, "__name__", ""), names)
                    or "name it in the return type, in `Collector[...]`, or in `outputs=`",
                )
            )
        before = draft.streams.get(chosen)
        if before is not None and before.schema.cls is not message_class:
            draft.findings.append(
                Finding(
                    f"the stream name {chosen!r} serves two classes",
                    draft.place,
                    got=f"{hints.text_of(before.schema.cls)} and {hints.text_of(message_class)}",
                    next_step="give one of them another name",
                )
            )
        # A class that is not emitted gets a stream all the same, so that what follows is judged once, not again.
        schema = known or Schema(message_class, {})
        unconsumed = unconsumed or (before is not None and before.unconsumed)
        draft.streams[chosen] = StreamSpec(draft.name, chosen, schema, unconsumed)
        return StreamReference(draft, chosen)


class Consumer:
    """What bolts and sinks have in common: groupings. Each call adds one input and returns the handle itself."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def _add(self, source: Source, grouping: Grouping) -> Self:
        self.draft.inputs.append((source, grouping))
        return self

    def shuffle(self, source: Source) -> Self:
        """Distribute tuples evenly over the tasks."""
        return self._add(source, Grouping("shuffle"))

    def fields(self, source: Source, *fields: str) -> Self:
        """Send tuples with equal values of these fields to the same task."""
        return self._add(source, Grouping("fields", fields))

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


class SpoutHandle(Producer):
    """A declared spout: a source of groupings."""


class BoltHandle(Producer, Consumer):
    """A declared bolt: takes groupings, and is a source of others."""


class SinkHandle(Consumer):
    """A declared sink: takes groupings."""

    def __repr__(self) -> str:
        return f"<sink {self.draft.name!r}>"


Source: TypeAlias = SpoutHandle | BoltHandle | StreamReference
"""Where tuples come from: a component with one stream, or one stream of a component."""
