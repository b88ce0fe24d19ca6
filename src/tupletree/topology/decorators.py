"""Bolts by decorator: a function stays callable as it is, and becomes a component.

Owns the decorators and the object they make. The reading of hints is in `signatures`.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, overload

from tupletree.errors import TopologyError
from tupletree.topology import hints
from tupletree.topology.model import BoltSpec
from tupletree.topology.signatures import BoltDescription, BoltSettings, read_function

P = ParamSpec("P")
R = TypeVar("R")


class FunctionBolt(Generic[P, R]):
    """A decorated function. Call it like the function; add it to a topology with `Topology.bolt`.

    It pickles by reference (module and name), so that a worker imports the user's module; a bolt that no module holds
    under its name (notebook cells, functions inside functions) pickles by value, as far as the pickler can.
    """

    def __init__(
        self, function: Callable[P, R], settings: BoltSettings, annotations: Mapping[str, Any] | None = None
    ) -> None:
        self._function = function
        self._settings = settings
        self._annotations = annotations
        self._spec: BoltSpec | None = None
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<bolt {self._function.__module__}.{self._function.__qualname__}>"

    def describe(self, names: Mapping[str, Any] | None = None) -> BoltDescription:
        """Read the hints: how to call it, the streams it emits, and everything wrong with it.

        Args:
            names: more names to resolve annotations with, for classes that live inside a function.
        """
        return read_function(self._function, self._settings, self._annotations, names, origin=self)

    @property
    def spec(self) -> BoltSpec:
        """How to call it. Raises TopologyError with all findings if the hints do not say."""
        if self._spec is None:
            description = self.describe()
            if description.findings:
                raise TopologyError("the bolt cannot be used", findings=description.findings)
            self._spec = description.spec
        return self._spec

    def __reduce__(self) -> tuple[Any, ...]:
        module, name = self._function.__module__, self._function.__qualname__
        # What is defined in __main__ is not found in a worker: its __main__ is another module.
        if module != "__main__" and _found(sys.modules.get(module), name) is self:
            return _imported, (module, name)
        return FunctionBolt, (self._function, self._settings, self._annotations)


def _found(module: Any, name: str) -> Any:
    try:
        return functools.reduce(getattr, name.split("."), module)
    except AttributeError:
        return None


def _imported(module: str, name: str) -> Any:
    found = _found(importlib.import_module(module), name)
    if not isinstance(found, FunctionBolt):
        raise TopologyError(
            f"{module}.{name} is not a bolt in this process",
            got=repr(found),
            next_step="give every worker the same version of the module",
        )
    return found


def decorate(function: Callable[P, R], settings: BoltSettings) -> FunctionBolt[P, R]:
    """Make a bolt of a function, as the decorators do. Raises TopologyError if it is none."""
    annotations = None
    if not hasattr(function, "__qualname__"):
        raise TopologyError(
            "only a function can be made a bolt",
            got=f"an object of class {type(function).__qualname__}",
            expected="a function with hints: `def work(word: Word) -> Count`",
            next_step="write a function that calls it, or a class of Bolt that holds what it needs",
        )
    if "<locals>" in function.__qualname__:
        # Classes defined beside the function are gone when the topology is built elsewhere, so look now.
        annotations = _resolved_beside(function)
    return FunctionBolt(function, settings, annotations)


def _resolved_beside(function: Callable[..., Any]) -> Mapping[str, Any] | None:
    try:
        return hints.resolve(function, hints.caller_names())
    except hints.RESOLVE_ERRORS:
        return None  # read again at build time, where the fault becomes a finding


@overload
def bolt(function: Callable[P, R], /) -> FunctionBolt[P, R]: ...


@overload
def bolt(
    *,
    state: Callable[[], Any] | None = None,
    ttl_s: float | None = None,
    outputs: type | tuple[type, ...] = (),
    blocking: bool = False,
    auto_ack: bool = True,
    auto_fail: bool = True,
    concurrency: int = 1,
    ordered: bool = False,
    tick_interval_s: float | None = None,
) -> Callable[[Callable[P, R]], FunctionBolt[P, R]]: ...


def bolt(
    function: Callable[..., Any] | None = None,
    /,
    *,
    state: Callable[[], Any] | None = None,
    ttl_s: float | None = None,
    outputs: type | tuple[type, ...] = (),
    blocking: bool = False,
    auto_ack: bool = True,
    auto_fail: bool = True,
    concurrency: int = 1,
    ordered: bool = False,
    tick_interval_s: float | None = None,
) -> Any:
    """Make a function a bolt: called once per tuple, anchored and acked by itself; an exception fails the tuple.

    The hints are the wiring. The first parameter takes the tuple; `KeyedState[V]`, `MapState[K, V]`, `ListState[V]` or
    `TaskState[V]`, `Collector[T]`, `TaskContext` and `Resource[T]` are injected in any position; the return type
    names the streams: `T`, `T | None`, `A | B`, `Iterator[T]` (or another iterable), `None`. Faults show when the
    topology is built.

    Args:
        function: the function, when used without arguments.
        state: makes the first value of the `KeyedState` or `TaskState` (`int` gives 0); maps and lists start empty.
        ttl_s: seconds after which the state of a key expires unless it changes, by the epoch's time. A value that can
            be changed in place counts as changed when it is read; of maps and lists, writes count.
        outputs: message classes that the hints cannot say.
        blocking: it waits for something, so it gets a thread of its own.
        auto_ack: ack the tuple when the call returned.
        auto_fail: fail the tuple when the call raised; False leaves it open until its timeout.
        concurrency: calls at a time, for `async def`.
        ordered: for `async def`: results leave in the order of the tuples. False: as calls end.
        tick_interval_s: seconds between ticks, which come as `Tick` values.

    >>> import msgspec
    >>> class Word(msgspec.Struct):
    ...     word: str
    >>> @bolt
    ... def shout(word: Word) -> Word:
    ...     return Word(word.word.upper())
    >>> shout(Word("a"))
    Word(word='A')
    """
    settings = BoltSettings(
        state=state,
        ttl_s=ttl_s,
        outputs=classes_of(outputs),
        blocking=blocking,
        auto_ack=auto_ack,
        auto_fail=auto_fail,
        concurrency=concurrency,
        ordered=ordered,
        tick_interval_s=tick_interval_s,
    )
    return decorate(function, settings) if function is not None else functools.partial(decorate, settings=settings)


def batch_bolt(
    *,
    size: int,
    max_age_s: float = 1.0,
    outputs: type | tuple[type, ...] = (),
    blocking: bool = False,
) -> Callable[[Callable[P, R]], FunctionBolt[P, R]]:
    """Make a function a bolt that works on batches: `def store(rows: list[Row]) -> list[Done]`.

    Results as many as members anchor one by one, otherwise to the whole batch. After a failed batch its members are
    tried one by one. Members are acked and failed by what becomes of the call: there is no Collector.

    Args:
        size: tuples in a full batch.
        max_age_s: seconds after which a batch goes out that is not full.
        outputs: as for `bolt`.
        blocking: as for `bolt`.
    """
    settings = BoltSettings(
        style="batch",
        outputs=classes_of(outputs),
        blocking=blocking,
        batch_size=size,
        batch_max_age_s=max_age_s,
    )
    return functools.partial(decorate, settings=settings)


@overload
def arrow_bolt(function: Callable[P, R], /) -> FunctionBolt[P, R]: ...


@overload
def arrow_bolt(
    *,
    inputs: type | tuple[type, ...] = (),
    outputs: type | tuple[type, ...] = (),
    state: Callable[[], Any] | None = None,
    ttl_s: float | None = None,
    blocking: bool = False,
) -> Callable[[Callable[P, R]], FunctionBolt[P, R]]: ...


def arrow_bolt(
    function: Callable[..., Any] | None = None,
    /,
    *,
    inputs: type | tuple[type, ...] = (),
    outputs: type | tuple[type, ...] = (),
    state: Callable[[], Any] | None = None,
    ttl_s: float | None = None,
    blocking: bool = False,
) -> Any:
    """Make a function a bolt on whole frames: `def f(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch`.

    It returns or yields batches of rows of one class, or nothing; how fields become columns is in the reference
    (a datetime, Decimal or enum is text). Rows are anchored:

    - as many rows as came in: each to the row in its place;
    - `Anchored(batch, rows)`: each to the rows that are named;
    - any other number: each to all rows that came in.

    A call that raises is made again with halves of the batch, down to single rows, so that a bad row fails alone; a
    function that changes anything outside of its `KeyedBatch` must take that into account. The input is read only.

    Args:
        function: the function, when used without arguments.
        inputs: message classes it accepts; none given, it takes any.
        outputs: the message class of the rows it returns.
        state: makes the first value of a key, for a parameter `KeyedBatch[V]`.
        ttl_s: as for `bolt`.
        blocking: as for `bolt`.
    """
    settings = BoltSettings(
        style="arrow",
        inputs=classes_of(inputs),
        outputs=classes_of(outputs),
        state=state,
        ttl_s=ttl_s,
        blocking=blocking,
    )
    return decorate(function, settings) if function is not None else functools.partial(decorate, settings=settings)


def classes_of(given: type | tuple[type, ...]) -> tuple[type, ...]:
    """The message classes that a decorator was given: one, or several."""
    return given if isinstance(given, tuple) else (given,)
