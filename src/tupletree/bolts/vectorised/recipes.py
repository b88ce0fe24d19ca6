"""What the bolts of the library have in common: a recipe, read like a decorated function's hints.

Owns the object that `Topology.bolt` takes. What is wrong with a recipe becomes findings when the topology is built, as
for user code. It imports no pyarrow: a recipe does, when its bolt is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from tupletree.errors import Finding
from tupletree.topology.decorators import FunctionBolt
from tupletree.topology.model import BoltSpec, StateSpec
from tupletree.topology.signatures import BoltDescription, schemas_of
from tupletree.topology.streams import Schema


class Recipe(Protocol):
    """How a bolt of the library works. Picklable.

    Attributes:
        message: class of the tuples it takes.
        into: class of the tuples it gives.
        keys: fields of `message` that its inputs are to be grouped by; empty for a bolt without state.
        calls_user_code: whether it calls a function of the user's for each row.
    """

    @property
    def message(self) -> type: ...
    @property
    def into(self) -> type: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def calls_user_code(self) -> bool: ...

    def faults(self, message: Schema, into: Schema) -> Iterator[Finding]:
        """What is wrong with it."""
        ...

    def state(self, message: Schema) -> StateSpec | None:
        """What it keeps per key."""
        ...

    def prepare(self, message: Schema, into: Schema) -> Callable[..., Any]:
        """The function of the bolt: `(batch)`, or `(batch, keyed)` if it keeps state."""
        ...


class LibraryBolt(FunctionBolt[..., Any]):
    """A bolt made of a recipe. Call it like an Arrow bolt; add it to a topology with `Topology.bolt`."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._spec: BoltSpec | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Work a batch."""
        return self.spec.target(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<bolt {self._recipe}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return LibraryBolt, (self._recipe,)

    def describe(self, names: Mapping[str, Any] | None = None) -> BoltDescription:
        recipe, where = self._recipe, str(self._recipe)
        findings: list[Finding] = []
        schemas = schemas_of([recipe.message, recipe.into], where, names, findings)
        state, target = None, _unusable
        if not findings:
            message, into = schemas[0], schemas[-1]
            findings += recipe.faults(message, into)
            if not findings:
                state, target = recipe.state(message), recipe.prepare(message, into)
        outputs = [schema for schema in schemas if schema.cls is recipe.into]
        spec = BoltSpec(
            style="arrow",
            target=target,
            returns="value",
            value_parameter="batch",
            inject={} if state is None else {"keyed": "state"},
            input_types=(recipe.message,),
            state=state,
            key_fields=recipe.keys,
            takes_many_rows=not recipe.calls_user_code,
            origin=self,
        )
        return BoltDescription(spec, tuple(outputs), tuple(findings))


def field_faults(schema: Schema, names: tuple[str, ...], where: str) -> Iterator[Finding]:
    """Names that are no fields."""
    for name in names:
        if name not in schema.fields:
            yield Finding.unknown(f"{schema.cls.__qualname__} has no field {name!r}", where, name, schema.fields)


def _unusable(*_: Any) -> Any:
    raise AssertionError("a bolt with findings is never run")
