"""Type hints say how a bolt is called, what it takes and what it emits."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import pytest

from tupletree import (
    Bolt,
    Collector,
    KeyedState,
    Resource,
    TaskContext,
    Tick,
    TopologyError,
    arrow_bolt,
    batch_bolt,
    bolt,
)
from tupletree.topology.decorators import FunctionBolt
from tupletree.topology.model import BoltSpec
from tupletree.topology.signatures import BoltDescription, read_class

T = TypeVar("T")


class A(msgspec.Struct, frozen=True):
    x: int = 0


class B(msgspec.Struct, frozen=True):
    y: int = 0


class C(NamedTuple):
    z: int


class Connection:
    def query(self) -> int:
        return 1


@bolt
def passing(value: A) -> B:
    """Pass it on."""
    return B(value.x)


@bolt(state=int, blocking=True)
def everything(
    value: A | B, total: KeyedState[int], out: Collector[C], context: TaskContext, db: Resource[Connection]
) -> None:
    out.emit(C(db.query() + total.value + context.task_id))


def outputs(description: BoltDescription) -> list[type]:
    assert description.findings == ()
    return [schema.cls for schema in description.outputs]


def whats(description: BoltDescription) -> list[str]:
    return [finding.what for finding in description.findings]


class TestFunctions:
    def test_a_bolt_looks_and_acts_like_its_function(self) -> None:
        result: B = passing(A(3))
        assert result == B(3)
        assert passing.__name__ == "passing"  # type: ignore[attr-defined]  # set by functools.update_wrapper
        assert passing.__doc__ == "Pass it on."
        assert repr(passing).startswith("<bolt ")

    def test_everything_that_can_be_injected_is_found_by_annotation(self) -> None:
        spec = everything.spec
        assert spec.inject == {"total": "state", "out": "collector", "context": "context", "db": "resource:db"}
        assert spec.value_parameter == "value"
        assert spec.input_types == (A, B)
        assert (spec.returns, spec.blocking) == ("nothing", True)
        assert outputs(everything.describe()) == [C]

    def test_return_types_say_what_a_call_gives_back(self) -> None:
        @bolt
        def one(value: A) -> B: ...  # type: ignore[empty-body]  # hints only

        @bolt
        def maybe(value: A) -> B | None: ...

        @bolt
        def either(value: A) -> A | B: ...  # type: ignore[empty-body]  # hints only

        @bolt
        def several(value: A) -> Iterator[A | B]: ...  # type: ignore[empty-body]  # hints only

        @bolt
        def listed(value: A) -> list[B]: ...  # type: ignore[empty-body]  # hints only

        @bolt
        def pair(value: A) -> tuple[A, B]: ...  # type: ignore[empty-body]  # hints only

        @bolt
        def row(value: A) -> tuple[C, ...] | None: ...

        @bolt
        def generated(value: A) -> Generator[B, None, None]:
            yield B()

        @bolt
        def iterable(value: A) -> Iterable[C]: ...  # type: ignore[empty-body]  # hints only

        @bolt
        def nothing(value: A) -> None: ...

        @bolt
        def record(value: A) -> C: ...  # type: ignore[empty-body]  # hints only

        @bolt
        def noted(value: A) -> Annotated[B, "note"]: ...  # type: ignore[empty-body]  # hints only

        expected: list[tuple[FunctionBolt[[A], Any], str, list[type]]] = [
            (one, "value", [B]),
            (maybe, "value", [B]),
            (either, "value", [A, B]),
            (several, "many", [A, B]),
            (listed, "many", [B]),
            (pair, "many", [A, B]),
            (row, "many", [C]),
            (generated, "many", [B]),
            (iterable, "many", [C]),
            (nothing, "nothing", []),
            (record, "value", [C]),
            (noted, "value", [B]),
        ]
        for function, returns, classes in expected:
            assert outputs(function.describe()) == classes
            assert function.spec.returns == returns

    def test_async_functions_and_generators_are_recognised(self) -> None:
        @bolt(concurrency=4)
        async def fetch(value: A) -> B | None:
            return B()

        @bolt
        async def stream(value: A) -> AsyncIterator[B]:
            yield B()

        assert (fetch.spec.is_async, fetch.spec.concurrency, fetch.spec.returns) == (True, 4, "value")
        assert (stream.spec.is_async, stream.spec.returns) == (True, "many")
        assert passing.spec.is_async is False

    def test_outputs_can_be_said_where_hints_cannot(self) -> None:
        @bolt(outputs=(A, B))
        def dynamic(value: Any) -> Any: ...

        assert outputs(dynamic.describe()) == [A, B]
        assert dynamic.spec.input_types == (object,)

    def test_classes_beside_the_function_are_found(self) -> None:
        class Local(msgspec.Struct):
            x: int

        @bolt
        def f(value: Local) -> Local:
            return value

        assert outputs(f.describe()) == [Local]

    def test_settings_reach_the_spec(self) -> None:
        @bolt(auto_ack=False, auto_fail=False, tick_interval_s=0.5)
        def f(value: A | Tick, out: Collector[Any]) -> None: ...

        spec = f.spec
        assert (spec.auto_ack, spec.auto_fail, spec.tick_interval_s) == (False, False, 0.5)
        assert spec.input_types == (A, Tick)

    def test_a_parameter_with_a_default_is_left_alone(self) -> None:
        @bolt
        def f(value: A, factor: int = 2) -> B:
            return B(value.x * factor)

        assert f.describe().findings == ()
        assert f.spec.inject == {}


class TestBatches:
    def test_a_batch_bolt_takes_a_list(self) -> None:
        @batch_bolt(size=10, max_age_s=0.5)
        def store(rows: list[A | B]) -> list[C | None]: ...  # type: ignore[empty-body]  # hints only

        assert outputs(store.describe()) == [C]
        spec = store.spec
        assert (spec.style, spec.batch_size, spec.batch_max_age_s) == ("batch", 10, 0.5)
        assert (spec.input_types, spec.returns) == ((A, B), "many")

    def test_an_arrow_bolt_takes_a_record_batch(self) -> None:
        @arrow_bolt(inputs=A, outputs=B)
        def double(batch: pa.RecordBatch) -> pa.RecordBatch:
            return batch

        @arrow_bolt
        def look(batch: pa.RecordBatch) -> None: ...

        assert outputs(double.describe()) == [B]
        assert (double.spec.style, double.spec.input_types, double.spec.returns) == ("arrow", (A,), "value")
        assert outputs(look.describe()) == []
        assert look.spec.input_types == (object,)

    def test_what_batches_cannot_have_is_named(self) -> None:
        @batch_bolt(size=0, max_age_s=0)
        def single(value: A) -> None: ...

        @batch_bolt(size=1)
        def keyed(values: list[A], total: KeyedState[int]) -> None: ...

        @batch_bolt(size=1)
        def collecting(values: list[A], out: Collector[B]) -> None: ...

        @arrow_bolt
        def unknown(batch: A) -> pa.RecordBatch: ...  # type: ignore[empty-body]  # hints only

        @arrow_bolt(outputs=(A, B))
        def mixed(batch: pa.RecordBatch) -> pa.RecordBatch:
            return batch

        assert whats(single.describe()) == [
            "parameter 'value'",
            "the batch size is too small",
            "the batch's age limit is too small",
        ]
        assert "a batch has no single key, so it has no KeyedState" in whats(keyed.describe())
        assert whats(collecting.describe()) == ["a batch bolt has no Collector"]
        assert whats(unknown.describe()) == ["parameter 'batch'", "the class of the rows returned is not known"]
        assert whats(mixed.describe()) == ["a RecordBatch holds rows of one class"]


class TestFaults:
    def faults(self, function: Callable[..., Any], **settings: Any) -> list[str]:
        return whats(bolt(**settings)(function).describe())

    def test_hints_that_are_missing(self) -> None:
        def untyped(value, other): ...  # type: ignore[no-untyped-def]  # the fault under test

        def empty() -> None: ...

        assert self.faults(untyped) == [
            "parameter 'value' has no type",
            "parameter 'other' cannot be filled",
            "no return type",
        ]
        assert self.faults(empty) == ["no parameter takes the tuple"]

    def test_hints_that_cannot_be_resolved(self) -> None:
        def lost(value: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - the fault under test

        (finding,) = bolt(lost).describe().findings
        assert finding.what == "the type hints cannot be resolved"
        assert finding.got == "NameError: name 'Missing' is not defined"
        assert "test_bolts.py:" in finding.where

    def test_parameters_that_cannot_be_filled(self) -> None:
        def star(*values: A) -> None: ...

        def positional(value: A, /) -> None: ...

        def keyword(*, value: A) -> None: ...

        def extra(value: A, other: int) -> None: ...

        assert self.faults(star) == ["parameter *values: 'A' cannot be filled", "no parameter takes the tuple"]
        assert self.faults(positional)[0] == "parameter value: 'A' cannot be filled"
        assert self.faults(keyword) == ["parameter 'value' takes the tuple"]
        assert self.faults(extra) == ["parameter 'other' cannot be filled"]

    def test_classes_that_are_none(self) -> None:
        def number(value: A) -> int: ...  # type: ignore[empty-body]  # hints only

        def generic(value: T) -> None: ...

        def optional(value: A | None) -> None: ...

        assert self.faults(number) == ["not a message class"]
        assert self.faults(generic) == ["parameter 'value' takes the tuple"]
        assert self.faults(optional) == ["parameter 'value' takes the tuple"]

    def test_return_types_that_say_too_little(self) -> None:
        def mixed(value: A) -> B | list[B]: ...  # type: ignore[empty-body]  # hints only

        def bare(value: A) -> list: ...  # type: ignore[empty-body, type-arg]  # hints only

        def anything(value: A) -> Any: ...

        def gaps(value: A) -> list[B | None]: ...  # type: ignore[empty-body]  # hints only

        assert self.faults(mixed) == ["the return type mixes one tuple with many"]
        assert self.faults(bare) == ["the return type does not say of what"]
        assert self.faults(anything) == ["the return type names no message class"]
        assert self.faults(gaps) == ["an item may be None, which is no tuple"]

    def test_state_that_does_not_fit(self) -> None:
        def f(value: A, total: KeyedState[int]) -> None: ...

        def two(value: A, total: KeyedState[int], more: KeyedState[str]) -> None: ...

        def plain(value: A) -> None: ...

        def unstorable(value: A, total: KeyedState[Connection]) -> None: ...

        def real(value: A, total: KeyedState[float]) -> None: ...

        def table(value: A, total: KeyedState[dict[str, int]]) -> None: ...

        assert self.faults(f) == ["KeyedState needs a first value"]
        assert self.faults(f, state=str) == ["the state's first value has another type than KeyedState says"]
        assert self.faults(two, state=int) == ["a bolt has one KeyedState"]
        assert self.faults(plain, state=int) == ["state is declared, but nothing takes it"]
        assert self.faults(unstorable, state=Connection) == ["the state's type cannot be stored"]
        assert self.faults(real, state=int) == []
        assert self.faults(table, state=dict) == []
        assert self.faults(f, state=lambda: 7) == []

    def test_settings_that_do_not_fit(self) -> None:
        def f(value: A) -> None: ...

        assert self.faults(f, concurrency=0) == ["concurrency is too small"]
        assert self.faults(f, concurrency=2) == ["concurrency is for async bolts"]
        assert self.faults(f, tick_interval_s=0)[0] == "the tick interval is too small"
        assert self.faults(f, tick_interval_s=1) == ["ticks are asked for, but no parameter takes them"]

    def test_the_spec_of_a_faulty_bolt_raises_all_findings(self) -> None:
        def f(value, other: int): ...  # type: ignore[no-untyped-def]  # the fault under test

        with pytest.raises(TopologyError) as caught:
            _ = bolt(f).spec
        assert len(caught.value.findings) == 3


class Counting(Bolt[A]):
    state_default = int
    tick_interval_s = 2.0
    total: KeyedState[int]
    db: Resource[Connection]

    def process(self, value: A, collector: Collector[B]) -> C | None:
        return None

    def tick(self, collector: Collector[A]) -> None: ...


class Base(Bolt[T]):
    def process(self, value: T, collector: Collector[Any]) -> None: ...


class Derived(Base[B]): ...


class TestClasses:
    def test_hints_are_read_from_process_tick_and_attributes(self) -> None:
        description = read_class(Counting)
        assert set(outputs(description)) == {A, B, C}
        spec = description.spec
        assert spec.style == "class"
        assert spec.target is Counting
        assert spec.input_types == (A,)
        assert spec.inject == {"total": "state", "db": "resource:db"}
        assert spec.state is not None
        assert (spec.state.value_type, spec.state.default()) == (int, 0)
        assert (spec.tick_interval_s, spec.returns) == (2.0, "value")

    def test_the_generic_argument_says_what_an_open_annotation_does_not(self) -> None:
        assert read_class(Derived).spec.input_types == (B,)
        assert read_class(Base).spec.input_types == (object,)

    def test_a_factory_is_asked_for_a_specimen(self) -> None:
        class Configured(Bolt[Any]):
            def __init__(self, cls: type) -> None:
                self.input_types = (cls,)
                self.output_types = (B,)

            def process(self, value: Any, collector: Collector[Any]) -> None: ...

        description = read_class(lambda: Configured(A))
        assert outputs(description) == [B]
        assert description.spec.input_types == (A,)
        assert isinstance(description.spec.target(), Configured)

    def test_faults_of_classes_are_named(self) -> None:
        class Needy(Bolt[A]):
            def __init__(self, size: int) -> None: ...

            def process(self, value: A, collector: Collector[Any]) -> None: ...

        class Idle(Bolt[A]): ...

        class Narrow(Bolt[A]):
            def process(self) -> None: ...  # type: ignore[override]  # the fault under test

        class Ticking(Bolt[A]):
            def process(self, value: A) -> None: ...

            def tick(self, collector: Collector[Any]) -> None: ...

        def broken() -> Bolt[A]:
            raise ValueError("no")

        def other() -> Any:
            return 1

        assert whats(read_class(Needy)) == ["the bolt's class needs arguments"]  # type: ignore[arg-type]  # tested
        assert whats(read_class(Idle)) == ["the bolt has no `process`"]
        assert whats(read_class(Narrow)) == ["`process` has the wrong parameters"]
        assert whats(read_class(Ticking)) == ["`tick` needs a Collector"]
        assert read_class(broken).findings[0].got == "ValueError: no"
        assert read_class(other).findings[0].got == "int"


class TestPickling:
    def test_a_bolt_pickles_by_reference(self) -> None:
        data = pickle.dumps(everything)
        assert pickle.loads(data) is everything
        assert b"everything" in data
        assert len(data) < 200

    def test_a_spec_pickles_with_its_function(self) -> None:
        spec = pickle.loads(pickle.dumps(everything.spec))
        assert isinstance(spec, BoltSpec)
        assert spec == everything.spec
        assert spec.origin is everything

    def test_a_spec_of_a_class_pickles_as_it_is(self) -> None:
        assert pickle.loads(pickle.dumps(read_class(Counting).spec)) == read_class(Counting).spec

    def test_a_bolt_under_another_name_pickles_its_function(self) -> None:
        copy: FunctionBolt[[A], B] = pickle.loads(pickle.dumps(other_name))
        assert copy(A(2)) == B(2)
        assert copy.spec.auto_ack is False

    def test_another_version_of_the_module_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        data = pickle.dumps(passing)
        monkeypatch.setitem(globals(), "passing", None)
        with pytest.raises(TopologyError, match="passing is not a bolt in this process"):
            pickle.loads(data)


def raw(value: A) -> B:
    return B(value.x)


other_name = bolt(auto_ack=False)(raw)
