"""Signatures: what a bolt's type hints say about its inputs, outputs, injections and state.

Owns the reading of user functions and `Bolt` classes into a `BoltSpec`. Every fault becomes a finding, all of them
together; nothing is raised here, and user code is not run (but for a bolt factory, which makes one bolt to look at).
"""

from __future__ import annotations

import collections.abc
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args, get_origin

from tupletree.errors import Finding, TopologyError
from tupletree.topology import hints
from tupletree.topology.bolt_hints import (
    STATE_KINDS,
    Reading,
    blame_state,
    check_holding,
    message_classes,
    read_side,
    state_spec,
    state_type,
)
from tupletree.topology.components import (
    RESOURCE,
    Anchored,
    Bolt,
    Collector,
    HoldingBolt,
    KeyedBatch,
    TaskContext,
    Tick,
)
from tupletree.topology.model import BoltSpec, BoltStyle
from tupletree.topology.streams import Schema
from tupletree.topology.windows import JoinSpec, Window, WindowSpec

Names: TypeAlias = "Mapping[str, Any] | None"
Returns: TypeAlias = Literal["value", "many", "nothing"]

MANY = frozenset(
    {
        collections.abc.AsyncGenerator,
        collections.abc.AsyncIterable,
        collections.abc.AsyncIterator,
        collections.abc.Collection,
        collections.abc.Generator,
        collections.abc.Iterable,
        collections.abc.Iterator,
        collections.abc.Sequence,
        frozenset,
        list,
        set,
        tuple,
    }
)
"""What a bolt may return to emit any number of tuples."""

BATCHES = frozenset({list, collections.abc.Sequence, collections.abc.Iterable})


@dataclass(frozen=True)
class BoltSettings:
    """What a decorator was told; the hints say the rest. Fields as in `BoltSpec`."""

    style: BoltStyle = "function"
    inputs: tuple[type, ...] = ()
    outputs: tuple[type, ...] = ()
    state: Callable[[], Any] | None = None
    ttl_s: float | None = None
    auto_ack: bool = True
    auto_fail: bool = True
    blocking: bool = False
    concurrency: int = 1
    ordered: bool = False
    tick_interval_s: float | None = None
    batch_size: int | None = None
    batch_max_age_s: float | None = None
    holding: WindowSpec | JoinSpec | None = None


@dataclass(frozen=True)
class BoltDescription:
    """A bolt as read from its hints: how to call it, the schemas of its outputs, and all that is wrong with it."""

    spec: BoltSpec
    outputs: tuple[Schema, ...]
    findings: tuple[Finding, ...]


def read_function(
    function: Callable[..., Any],
    settings: BoltSettings,
    resolved: Mapping[str, Any] | None = None,
    names: Names = None,
    origin: Any = None,
) -> BoltDescription:
    """Read a decorated function.

    Args:
        function: the user's function.
        settings: what the decorator was told.
        resolved: its annotations, if they are known already.
        names: more names to resolve annotations with.
        origin: the decorated object, which pickles in the function's place.
    """
    reading = Reading(_place(function), settings.style, holding=settings.holding)
    annotations = resolved if resolved is not None else _resolve(reading, function, names)
    if annotations is not None:
        for parameter in inspect.signature(function).parameters.values():
            _read_parameter(reading, parameter, annotations)
        if not reading.value_parameter:
            reading.fault("no parameter takes the tuple", next_step="make the first parameter the value: `line: Line`")
        _read_return(reading, annotations, _yields(function))
    if settings.inputs:
        reading.inputs = settings.inputs
    reading.outputs += settings.outputs
    is_async = _awaits(function)
    _check_settings(reading, settings, is_async=is_async)
    _check_batch(reading, settings)
    check_holding(reading, is_async=is_async)
    spec = replace(
        _spec_of(reading, function, settings, is_async=is_async),
        state=state_spec(reading, settings.state, settings.ttl_s, "@bolt(state=int)"),
        holding=reading.holding,
        batch_size=settings.batch_size,
        batch_max_age_s=settings.batch_max_age_s,
        origin=origin,
    )
    return _described(reading, spec, names)


def read_class(factory: Callable[[], Bolt[Any] | HoldingBolt[Any]], names: Names = None) -> BoltDescription:
    """Read a subclass of `Bolt` or `HoldingBolt`, or a factory of such bolts (which is called once)."""
    reading = Reading(_place(factory), "class")
    subject = _subject(reading, factory)
    if isinstance(subject, HoldingBolt) or (isinstance(subject, type) and issubclass(subject, HoldingBolt)):
        return _read_holding(reading, factory, subject, names)
    cls: type[Bolt[Any]] = subject if isinstance(subject, type) else type(subject)
    if cls is not Bolt:
        _read_process(reading, cls, names)
        _read_attributes(reading, cls, names)
    if subject.input_types:
        reading.inputs = tuple(subject.input_types)
    reading.outputs += subject.output_types
    is_async = _awaits(cls.process)
    takes_collector = len(inspect.signature(cls.process).parameters) != 2  # self, value
    if not takes_collector and cls.tick is not Bolt.tick:
        reading.fault("`tick` needs a Collector", next_step="write `def process(self, value, collector)`")
    also_async = [name for name in ("open", "tick", "close") if _awaits(getattr(cls, name))]
    if also_async and not is_async:
        reading.fault(f"`{also_async[0]}` is async, but `process` is not", next_step="write `async def process`")
    _check_settings(reading, subject, is_async=is_async)
    spec = replace(
        _spec_of(reading, factory, subject, is_async=is_async),
        state=state_spec(reading, cls.state_default, cls.state_ttl_s, "state_default = int"),
        takes_collector=takes_collector,
    )
    return _described(reading, spec, names)


def _read_holding(
    reading: Reading, factory: Callable[[], Any], subject: HoldingBolt[Any] | type[HoldingBolt[Any]], names: Names
) -> BoltDescription:
    cls: type[HoldingBolt[Any]] = subject if isinstance(subject, type) else type(subject)
    if cls.take is HoldingBolt.take:
        reading.fault("the bolt has no `take`", next_step="write `def take(self, tuples: Sequence[Held[T]])`")
    asynchronous = [name for name in ("open", "take", "check", "flush", "close") if _awaits(getattr(cls, name))]
    if asynchronous:
        reading.fault(f"`{asynchronous[0]}` of a bolt that holds tuples is async", next_step="make it plain")
    declared = hints.generic_argument(cls, HoldingBolt)
    reading.inputs = tuple(subject.input_types)
    if not reading.inputs:
        reading.inputs = _input_types(reading, "tuples", declared) if declared is not None else (object,)
    reading.outputs += subject.output_types
    spec = BoltSpec(
        style="holding",
        target=factory,
        returns="many" if reading.outputs else "nothing",
        input_types=reading.inputs,
        blocking=subject.blocking,
    )
    return _described(reading, spec, names)


def _spec_of(
    reading: Reading, target: Any, settings: BoltSettings | Bolt[Any] | type[Bolt[Any]], *, is_async: bool
) -> BoltSpec:
    """What the hints and the settings say of functions and of classes alike."""
    return BoltSpec(
        style=reading.style,
        target=target,
        returns=reading.returns,
        value_parameter=reading.value_parameter,
        inject=reading.inject,
        input_types=reading.inputs,
        auto_ack=settings.auto_ack,
        auto_fail=settings.auto_fail,
        is_async=is_async,
        concurrency=settings.concurrency,
        ordered=settings.ordered,
        blocking=settings.blocking,
        tick_interval_s=settings.tick_interval_s,
    )


def _described(reading: Reading, spec: BoltSpec, names: Names) -> BoltDescription:
    outputs = schemas_of(reading.outputs, reading.where, names, reading.findings)
    return BoltDescription(spec, outputs, tuple(reading.findings))


def schemas_of(classes: Iterable[Any], where: str, names: Names, findings: list[Finding]) -> tuple[Schema, ...]:
    """The schema of each class once, in order; what is no stream adds its findings."""
    schemas = []
    for cls in dict.fromkeys(classes):
        try:
            schemas.append(Schema.of(cls, names))
        except TopologyError as error:
            findings += [
                Finding(
                    found.what if not found.where else f"{found.where}: {found.what}",
                    where,
                    found.got,
                    found.expected,
                    found.next_step,
                )
                for found in error.findings
            ]
    return tuple(schemas)


def _place(subject: Any) -> str:
    """`split (words.py:12)`, or as much of it as is known."""
    name = getattr(subject, "__qualname__", None) or type(subject).__qualname__
    code = getattr(subject, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else name


def _yields(function: Callable[..., Any]) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _awaits(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _resolve(reading: Reading, owner: Any, names: Names) -> dict[str, Any] | None:
    try:
        return hints.resolve(owner, names)
    except hints.RESOLVE_ERRORS as error:
        reading.fault(
            "the type hints cannot be resolved",
            got=f"{type(error).__name__}: {error}",
            next_step="import the class that is named, outside of `if TYPE_CHECKING:`, or move it to module level",
        )
        return None


def _read_parameter(reading: Reading, parameter: inspect.Parameter, annotations: Mapping[str, Any]) -> None:
    name, annotation = parameter.name, annotations.get(parameter.name)
    if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
        reading.fault(f"parameter {parameter} cannot be filled", expected="parameters that can be passed by name")
    elif _inject(reading, name, annotation):
        return
    elif not reading.value_parameter or (reading.style == "join" and len(reading.sides) == 1):
        reading.value_parameter = reading.value_parameter or name
        if annotation is None:
            reading.fault(
                f"parameter {name!r} has no type", next_step=f"annotate it with its message class: `{name}: Line`"
            )
        elif parameter.kind is parameter.KEYWORD_ONLY:
            reading.fault(f"parameter {name!r} takes the tuple", got="keyword-only", expected="a positional parameter")
        elif reading.style == "join":
            read_side(reading, name, annotation)
        else:
            reading.inputs = _input_types(reading, name, annotation)
    elif parameter.default is parameter.empty:
        reading.fault(
            f"parameter {name!r} cannot be filled",
            got=hints.text_of(annotation) if annotation is not None else "no type",
            expected="one value, and state, Collector[T], TaskContext or Resource[T] beside it",
            next_step="give it a default, or annotate it with what should be injected",
        )


def _inject(reading: Reading, name: str, annotation: Any) -> bool:
    """Note what a parameter or attribute asks for; False if it asks for nothing."""
    if RESOURCE in getattr(annotation, "__metadata__", ()):
        reading.inject[name] = f"resource:{name}"
        return True
    asked = get_origin(annotation) or annotation
    argument = (get_args(annotation) or (Any,))[0]
    if asked in STATE_KINDS:
        reading.inject[name] = "state"
        reading.states.append((STATE_KINDS[asked], state_type(asked, get_args(annotation))))
        if reading.style == "batch" or (asked is KeyedBatch) != (reading.style == "arrow"):
            blame_state(reading, name, asked)
    elif asked is Collector:
        reading.inject[name] = "collector"
        reading.outputs += [cls for cls in hints.members(argument) if cls not in {Any, hints.NONE_TYPE}]
    elif asked is TaskContext:
        reading.inject[name] = "context"
    else:
        return False
    return True


def _input_types(reading: Reading, name: str, annotation: Any) -> tuple[type, ...]:
    if reading.style == "arrow":
        cls = hints.plain(annotation)
        if getattr(cls, "__name__", "") != "RecordBatch":
            reading.fault(f"parameter {name!r}", got=hints.text_of(annotation), expected="pyarrow.RecordBatch")
        return (object,)
    if reading.style in {"batch", "window"}:
        batch = hints.plain(annotation)
        if get_origin(batch) not in BATCHES and not (reading.style == "window" and get_origin(batch) is Window):
            expected = "Window[T] or list[T]" if reading.style == "window" else "a batch: list[T] or Sequence[T]"
            reading.fault(f"parameter {name!r}", got=hints.text_of(batch), expected=expected)
            return ()
        if isinstance(reading.holding, WindowSpec):
            reading.holding = replace(reading.holding, as_list=get_origin(batch) is not Window)
        annotation = get_args(batch)[0]
    return message_classes(reading, name, annotation, hints.members(annotation))


def _read_return(reading: Reading, annotations: Mapping[str, Any], is_generator: bool) -> None:
    """Say what a call gives back, and add the classes to the outputs."""
    if "return" not in annotations:
        reading.fault("no return type", next_step="annotate it: `-> Count`, `-> Iterator[Word]`, or `-> None`")
        return
    annotation = annotations["return"]
    parts = [part for part in hints.members(annotation) if part is not hints.NONE_TYPE]
    many = [part for part in parts if (get_origin(part) or part) in MANY]
    if many and len(many) < len(parts):
        reading.fault(
            "the return type mixes one tuple with many",
            got=hints.text_of(annotation),
            next_step="yield, or return a list, in every case",
        )
        return
    reading.returns = "many" if many or (is_generator and parts) else "value" if parts else "nothing"
    reading.outputs += [cls for part in parts for cls in _emitted(reading, part)]


def _emitted(reading: Reading, part: Any) -> list[Any]:
    """The message classes that one member of a return type stands for."""
    origin, arguments = get_origin(part) or part, get_args(part)
    if reading.style == "arrow":
        return _in_batches(reading, arguments[:1] if origin in MANY else (part,))
    if origin not in MANY:
        return [part] if part is not Any else []
    if not arguments:
        reading.fault("the return type does not say of what", got=hints.text_of(part), expected="list[Word], say")
    if origin is not tuple:
        arguments = arguments[:1]
    classes = [cls for argument in arguments if argument is not Ellipsis for cls in hints.members(argument)]
    # In a batch None keeps the place of a member without a result; elsewhere there is nothing to leave it in for.
    if hints.NONE_TYPE in classes and reading.style != "batch":
        reading.fault("an item may be None, which is no tuple", got=hints.text_of(part), next_step="leave it out")
    return [cls for cls in classes if cls not in {Any, hints.NONE_TYPE}]


def _in_batches(reading: Reading, parts: Iterable[Any]) -> list[Any]:
    """An Arrow bolt's hints name batches; the class of the rows is said in `outputs`."""
    for kind in (kind for part in parts for kind in hints.members(part)):
        if kind is not Anchored and getattr(kind, "__name__", "") != "RecordBatch":
            expected = "pyarrow.RecordBatch or Anchored, or an iterator of them"
            reading.fault("an Arrow bolt gives batches", got=hints.text_of(kind), expected=expected)
    return []


def _read_process(reading: Reading, cls: type[Bolt[Any]], names: Names) -> None:
    if cls.process is Bolt.process:
        reading.fault(
            "the bolt has no `process`", next_step="write `def process(self, value: T, collector: Collector[U])`"
        )
        return
    declared = hints.generic_argument(cls, Bolt)
    annotations = _resolve(reading, cls.process, names)
    if annotations is None:
        return
    parameters = list(inspect.signature(cls.process).parameters.values())[1:]
    if len(parameters) not in {1, 2}:
        reading.fault(
            "`process` has the wrong parameters",
            got=str(inspect.signature(cls.process)),
            expected="(self, value, collector), or (self, value)",
        )
        return
    value = parameters[0]
    reading.value_parameter = value.name
    annotation = annotations.get(value.name, declared)
    if isinstance(annotation, type) or get_origin(annotation) is not None or annotation is Any:
        reading.inputs = _input_types(reading, value.name, annotation)
    elif declared is not None:
        reading.inputs = _input_types(reading, value.name, declared)
    elif not cls.input_types:
        reading.inputs = (object,)
    if len(parameters) == 2:
        _collected(reading, annotations.get(parameters[1].name))
    _read_return(reading, annotations, _yields(cls.process))
    if cls.tick is not Bolt.tick and (ticking := _resolve(reading, cls.tick, names)) is not None:
        for annotation in ticking.values():
            _collected(reading, annotation)


def _collected(reading: Reading, annotation: Any) -> None:
    """Outputs named by `Collector[T]`; class bolts get the collector by position, so it is not injected."""
    if get_origin(annotation) is Collector:
        reading.outputs += [cls for cls in hints.members(get_args(annotation)[0]) if cls is not Any]


def _read_attributes(reading: Reading, cls: type[Bolt[Any]], names: Names) -> None:
    for name, annotation in (_resolve(reading, cls, names) or {}).items():
        asked = get_origin(annotation) or annotation
        if asked in STATE_KINDS or RESOURCE in getattr(annotation, "__metadata__", ()):
            _inject(reading, name, annotation)


def _subject(reading: Reading, factory: Any) -> type[Bolt[Any] | HoldingBolt[Any]] | Bolt[Any] | HoldingBolt[Any]:
    """The class, or a specimen that the factory made, to read from."""
    if isinstance(factory, type) and issubclass(factory, Bolt | HoldingBolt):
        needed = [
            name
            for name, parameter in inspect.signature(factory).parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        ]
        if needed:
            reading.fault(
                "the bolt's class needs arguments",
                got=", ".join(needed),
                expected="a class or function that makes a bolt from no arguments",
                next_step=f"pass functools.partial({factory.__qualname__}, ...)",
            )
        return factory
    try:
        made = factory()
    except Exception as error:  # noqa: BLE001 - user code; whatever it raised is the finding
        reading.fault("the factory did not make a bolt", got=f"{type(error).__name__}: {error}")
        return Bolt
    if isinstance(made, Bolt | HoldingBolt):
        return made
    reading.fault("the factory did not make a bolt", got=hints.text_of(type(made)), expected="a Bolt object")
    return Bolt


def _check_settings(reading: Reading, settings: BoltSettings | Bolt[Any] | type[Bolt[Any]], *, is_async: bool) -> None:
    concurrency, tick_interval_s = settings.concurrency, settings.tick_interval_s
    if concurrency < 1:
        reading.fault("concurrency is too small", got=str(concurrency), expected="at least 1")
    if concurrency > 1 and not is_async:
        reading.fault(
            "concurrency is for async bolts",
            got=f"concurrency={concurrency} on a plain function",
            next_step="write `async def`, or set parallelism where the bolt is added",
        )
    if tick_interval_s is not None and tick_interval_s <= 0:
        reading.fault("the tick interval is too small", got=str(tick_interval_s), expected="seconds, above 0")
    if tick_interval_s is not None and reading.style != "class" and Tick not in reading.inputs:
        reading.fault(
            "ticks are asked for, but no parameter takes them",
            next_step=f"annotate `{reading.value_parameter or 'value'}: ... | Tick`, or write a Bolt class with `tick`",
        )
    if settings.ordered and not is_async:
        step = "leave it out: other bolts emit in the order of their tuples"
        reading.fault("ordered is for async bolts", got="ordered=True on a plain function", next_step=step)


def _check_batch(reading: Reading, settings: BoltSettings) -> None:
    if settings.batch_size is not None and settings.batch_size < 1:
        reading.fault("the batch size is too small", got=str(settings.batch_size), expected="at least 1")
    if settings.batch_max_age_s is not None and settings.batch_max_age_s <= 0:
        reading.fault(
            "the batch's age limit is too small", got=str(settings.batch_max_age_s), expected="seconds, above 0"
        )
    if settings.style == "batch" and "collector" in reading.inject.values():
        reading.fault(
            "a batch bolt has no Collector", next_step="return the results, or write a Bolt that holds tuples"
        )
    if settings.style == "arrow" and "collector" in reading.inject.values():
        reading.fault("an Arrow bolt has no Collector", next_step="return Anchored, which says what rows came of")
    if settings.style == "arrow" and len(dict.fromkeys(reading.outputs)) > 1:
        reading.fault("a RecordBatch holds rows of one class", got=", ".join(map(hints.text_of, reading.outputs)))
    elif settings.style == "arrow" and reading.returns != "nothing" and not reading.outputs:
        reading.fault("the class of the rows returned is not known", next_step="say @arrow_bolt(outputs=Count)")
    elif reading.returns != "nothing" and not reading.outputs and not reading.findings:
        reading.fault("the return type names no message class", next_step="annotate it, or say outputs=(Count,)")
