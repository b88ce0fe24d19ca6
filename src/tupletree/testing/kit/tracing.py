"""Tracing: which tuple came of which, failures on demand, and bolts that keep what they should not keep.

Owns the wrappers around the user's bolts in a test. Trees are recognised by the very objects that bolts take and give.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from tupletree.errors import ConfigError
from tupletree.tasks.outbox import AsyncCall
from tupletree.topology.components import Bolt, Collector, TaskContext
from tupletree.topology.model import BoltSpec, ComponentSpec, TopologySpec
from tupletree.topology.streams import Schema
from tupletree.topology.windows import JoinSpec

Fail = Callable[[Any], "bool | BaseException"]
"""Takes a tuple; True, or the exception to raise, makes the bolt fail it."""


_calling: ContextVar[int] = ContextVar("tupletree_traced_task")


class InjectedError(Exception):
    """The test made a bolt fail here."""


class Tracer:
    """One run's.

    Attributes:
        task: the task that is at work; kept up to date by the code that drives the machines.
        warnings: what would be different on Spark.
    """

    def __init__(self) -> None:
        self._task = -1
        self.warnings: list[str] = []
        self._children: dict[tuple[int, int], list[Any]] = defaultdict(list)
        self._kept: list[Any] = []  # so that an object's identity stays its own

    @property
    def task(self) -> int:
        """See the class."""
        return _calling.get(self._task)

    @task.setter
    def task(self, task: int) -> None:
        self._task = task

    @staticmethod
    def at_task(task: int, call: AsyncCall) -> AsyncCall:
        """The call, with its task at work wherever its code runs, beside others."""

        async def traced() -> list[Any]:
            _calling.set(task)
            return await call()

        return traced

    def children(self, task: int, value: object) -> Sequence[Any]:
        """What a task emitted anchored to a tuple, in order."""
        return self._children.get((task, id(value)), ())

    def note(self, task: int, parents: Sequence[Any], child: Any) -> None:
        """A task emitted a tuple."""
        for parent in {id(one): one for one in parents}.values():
            self._kept.append(parent)
            self._children[task, id(parent)].append(child)
        self._kept.append(child)

    def wrap(self, spec: TopologySpec, fail: Mapping[str, Fail]) -> TopologySpec:
        """The topology with every bolt traced, and those in `fail` failing what their predicates choose.

        Raises:
            ConfigError: `fail` names no bolt of the topology.
        """
        bolts = [one.name for one in spec.components.values() if one.kind == "bolt"]
        for name in fail:
            if name not in bolts:
                raise ConfigError(
                    "`fail` names no bolt of this topology",
                    where=spec.name,
                    got=repr(name),
                    expected=" or ".join(map(repr, bolts)),
                )
        components = {
            name: replace(one, body=self._wrapped(spec, one, fail.get(name))) if one.kind == "bolt" else one
            for name, one in spec.components.items()
        }
        return replace(spec, components=components)

    def _wrapped(self, topology: TopologySpec, component: ComponentSpec, fail: Fail | None) -> BoltSpec:
        spec: BoltSpec = component.body
        if spec.is_vectorised:
            if fail is None:
                return spec
            schemas = [topology.components[one.component].outputs[one.stream].schema for one in component.inputs]
            return replace(spec, target=_failing_rows(spec, schemas, fail), origin=None)
        if spec.style == "holding":
            if fail is not None:
                raise ConfigError(
                    "`fail` cannot fail the tuples of a bolt that holds them",
                    where=component.name,
                    next_step="fail those of the bolt before it",
                )
            return spec
        if spec.style == "class":
            return replace(
                spec, target=lambda: _TracedBolt(spec.target(), self, component.name, spec, fail), origin=None
            )
        return replace(spec, target=self._function(spec, fail), origin=None)

    def _function(self, spec: BoltSpec, fail: Fail | None) -> Callable[..., Any]:
        target, parameter = spec.target, spec.value_parameter
        collectors = [name for name, what in spec.inject.items() if what == "collector"]

        @functools.wraps(target)
        def call(*arguments: Any, **named: Any) -> Any:
            value = arguments[0] if arguments else named[parameter]
            if spec.holding is not None:
                return self._holding(spec, target, arguments, named, fail)
            for one in value if spec.style == "batch" else (value,):
                injure(fail, one)
            for name in collectors:
                named[name] = _TracedCollector(named[name], self, value)
            result = target(*arguments, **named)
            if spec.style == "batch":
                return self._follow_together(result, value, many=spec.returns == "many", in_place=True)
            return self.follow(result, value, many=spec.returns == "many")

        return call

    def _holding(
        self, spec: BoltSpec, target: Callable[..., Any], arguments: Sequence[Any], named: Any, fail: Fail | None
    ) -> Any:
        """A call of a window or join, whose results come of all tuples that it is given."""
        places = spec.holding.parameters if isinstance(spec.holding, JoinSpec) else (spec.value_parameter,)
        given = arguments or [named[place] for place in places]
        tuples = [one for one in given if one is not None] if isinstance(spec.holding, JoinSpec) else [*given[0]]
        for one in tuples:
            injure(fail, one)
        answer = target(*arguments, **named)
        return self._follow_together(answer, tuples, many=spec.returns == "many", in_place=False)

    def follow(self, result: Any, value: Any, *, many: bool) -> Any:
        """Note what a call gives, as it gives it."""
        task = self.task
        if inspect.isasyncgen(result):
            return self._each_later(result, value, task)
        if inspect.iscoroutine(result):
            return self._later(result, value, task, many=many)
        if result is None:
            return None
        if many or hasattr(result, "__next__"):
            return self._each(result, value, task)
        self.note(task, [value], result)
        return result

    def _each(self, results: Any, value: Any, task: int) -> Iterator[Any]:
        for result in results:
            if result is not None:
                self.note(task, [value], result)
            yield result

    async def _each_later(self, results: Any, value: Any, task: int) -> AsyncIterator[Any]:
        async for result in results:
            if result is not None:
                self.note(task, [value], result)
            yield result

    async def _later(self, awaited: Any, value: Any, task: int, *, many: bool) -> Any:
        result = await awaited
        for one in result if many and result is not None else (result,):
            if one is not None:
                self.note(task, [value], one)
        return result

    def _follow_together(self, answer: Any, values: list[Any], *, many: bool, in_place: bool) -> Any:
        """Note what a call gives for several tuples: `in_place` if as many results come of one tuple each."""
        results = [] if answer is None else [*answer] if many else [answer]
        in_place = in_place and len(results) == len(values)
        for index, result in enumerate(results):
            if result is not None:
                self.note(self.task, [values[index]] if in_place else values, result)
        return results if many and answer is not None else answer


def injure(fail: Fail | None, value: Any) -> None:
    """Raise what the test wants to be raised for a tuple."""
    verdict = fail(value) if fail is not None else False
    if isinstance(verdict, BaseException):
        raise verdict
    if verdict:
        raise InjectedError("the test made it fail")


def _failing_rows(spec: BoltSpec, schemas: Sequence[Schema], fail: Fail) -> Callable[..., Any]:
    """An Arrow bolt that fails the rows that a test chooses; what came of which row only its anchors say."""
    from tupletree.data.codec import ArrowCodec

    codecs = [ArrowCodec.of(schema) for schema in schemas]

    @functools.wraps(spec.target)
    def call(**named: Any) -> Any:
        batch = named[spec.value_parameter]
        codec = next(one for one in codecs if one.arrow_schema.equals(batch.schema))
        for row in codec.from_batch(batch):
            injure(fail, row)
        return spec.target(**named)

    return call


class _TracedCollector:
    def __init__(self, inner: Collector[Any], tracer: Tracer, value: Any) -> None:
        self._inner = inner
        self._tracer = tracer
        self._value = value

    def emit(self, value: Any, *, anchors: Sequence[object] | None = None, stream: str | None = None) -> None:
        self._inner.emit(value, anchors=anchors, stream=stream)
        self._tracer.note(self._tracer.task, [self._value] if anchors is None else anchors, value)

    def emit_direct(
        self, task_id: int, value: Any, *, anchors: Sequence[object] | None = None, stream: str | None = None
    ) -> None:
        self._inner.emit_direct(task_id, value, anchors=anchors, stream=stream)
        self._tracer.note(self._tracer.task, [self._value] if anchors is None else anchors, value)

    def ack(self, value: object) -> None:
        self._inner.ack(value)

    def fail(self, value: object, error: BaseException | str | None = None) -> None:
        self._inner.fail(value, error)

    def reset_timeout(self, value: object) -> None:
        self._inner.reset_timeout(value)


class _TracedBolt(Bolt[Any]):
    """A class bolt; what is set on it (state, resources) is set on the user's object."""

    def __init__(self, inner: Bolt[Any], tracer: Tracer, name: str, spec: BoltSpec, fail: Fail | None) -> None:
        self._spec = spec
        self._inner = inner
        self._tracer = tracer
        self._name = name
        self._fail = fail
        self._before: dict[str, Any] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "_spec" and name in self._spec.inject:
            setattr(self._inner, name, value)
        else:
            super().__setattr__(name, value)

    def open(self, context: TaskContext) -> Awaitable[None] | None:
        opening = self._inner.open(context)
        if inspect.isawaitable(opening):
            return self._open_later(opening)
        self._keep_attributes()
        return None

    async def _open_later(self, opening: Awaitable[None]) -> None:
        await opening
        self._keep_attributes()

    def _keep_attributes(self) -> None:
        self._before.update((name, _kept_copy(value)) for name, value in self._attributes())

    def process(self, value: Any, *collector: Collector[Any]) -> Any:
        injure(self._fail, value)
        result = self._inner.process(value, *(_TracedCollector(one, self._tracer, value) for one in collector))
        followed = self._tracer.follow(result, value, many=self._spec.returns == "many")
        self._look_at_attributes()
        return followed

    def tick(self, collector: Collector[Any]) -> Any:
        result = self._inner.tick(collector)
        self._look_at_attributes()
        return result

    def close(self) -> Awaitable[None] | None:
        self._look_at_attributes()
        return self._inner.close()

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        injected = self._spec.inject
        return ((name, value) for name, value in vars(self._inner).items() if name not in injected)

    def _look_at_attributes(self) -> None:
        for name, value in self._attributes():
            if name not in self._before or not _is_same(self._before[name], value):
                warning = (
                    f"bolt {self._name!r} changed `self.{name}` outside of `open`: on Spark a bolt is opened again for "
                    "each run, so only declared state lasts"
                )
                if warning not in self._tracer.warnings:
                    self._tracer.warnings.append(warning)


def _kept_copy(value: Any) -> Any:
    """A copy that later changes do not affect; of what is not equal to its copy, or has none, the object itself."""
    try:
        copied = copy.deepcopy(value)
        return copied if bool(copied == value) else value
    except Exception:  # noqa: BLE001 - a lock, a socket: its identity is all there is to look at
        return value


def _is_same(before: Any, now: Any) -> bool:
    if before is now:
        return True
    try:
        return type(before) is type(now) and bool(before == now)
    except Exception:  # noqa: BLE001 - objects that cannot be compared are taken for the same
        return True
