"""Work on rows without Python per tuple: filter, project, explode.

Owns the builders, and what they require of classes and fields. Results are anchored row by row to the rows they are
made from. Expressions are those of `pyarrow.compute`, on the columns that the reference names; what is wrong with one
is found when the topology is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, get_origin

from tupletree.bolts.vectorised.recipes import LibraryBolt, field_faults
from tupletree.errors import Finding, one_of
from tupletree.topology import hints
from tupletree.topology.model import StateSpec
from tupletree.topology.streams import Schema

if TYPE_CHECKING:
    import pyarrow.compute as pc

Split: TypeAlias = "str | Callable[[str], Iterable[Any]] | None"

LISTS = frozenset({list, set, frozenset, tuple})


def filter_rows(message: type, where: pc.Expression) -> LibraryBolt:
    """Let the tuples through for which an expression is true; the others are acked, also where it is null.

    >>> import msgspec, pyarrow.compute as pc
    >>> class Order(msgspec.Struct):
    ...     price: float
    >>> filter_rows(Order, pc.field("price") > 10)
    <bolt filter of Order by (price > 10)>
    """
    return LibraryBolt(_Filter(message, where))


def project(message: type, into: type, **fields: pc.Expression) -> LibraryBolt:
    """Make a row of another class from each tuple.

    Args:
        message: class of the tuples.
        into: class of the rows.
        fields: field of `into` → expression; what is not named is taken from the field of the same name.
    """
    return LibraryBolt(_Project(message, into, fields))


def explode(message: type, field: str, *, into: type, split: Split = None) -> LibraryBolt:
    """Make a row of each part of a field: the words of a text, the items of a list, set or tuple.

    Args:
        message: class of the tuples.
        field: text, or a collection. Nothing comes of None.
        into: class of the rows: one field for the part, and others that are taken from the fields of `message` with
            their names. The part's field is the one with no name in `message`, or the one called `field`.
        split: how text is split: None at white space and str at that text, both as `str.split` does; or a function
            from a text to its parts, called once per tuple.

    >>> import msgspec
    >>> class Line(msgspec.Struct):
    ...     text: str
    >>> class Word(msgspec.Struct):
    ...     word: str
    >>> explode(Line, "text", into=Word)
    <bolt explode of Line.text into Word>
    """
    return LibraryBolt(_Explode(message, field, into, split))


@dataclass(frozen=True)
class _Stateless:
    message: type

    @property
    def calls_user_code(self) -> bool:
        return False

    @property
    def keys(self) -> tuple[str, ...]:
        return ()

    def state(self, message: Schema) -> StateSpec | None:  # noqa: ARG002 - see `Recipe`
        return None


@dataclass(frozen=True)
class _Filter(_Stateless):
    """The recipe of `filter_rows`."""

    where: Any

    @property
    def into(self) -> type:
        return self.message

    def __str__(self) -> str:
        return f"filter of {self.message.__qualname__} by {self.where}"

    def faults(self, message: Schema, into: Schema) -> Iterator[Finding]:  # noqa: ARG002 - the same class
        from tupletree.bolts.vectorised.column_work import Filtering

        yield from _tried(lambda: Filtering(message, self.where).rehearse(), str(self))

    def prepare(self, message: Schema, into: Schema) -> Callable[..., Any]:  # noqa: ARG002 - the same class
        from tupletree.bolts.vectorised.column_work import Filtering

        return Filtering(message, self.where)


@dataclass(frozen=True)
class _Project(_Stateless):
    """The recipe of `project`."""

    into: type
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"project {self.message.__qualname__} into {self.into.__qualname__}"

    def faults(self, message: Schema, into: Schema) -> Iterator[Finding]:
        from tupletree.bolts.vectorised.column_work import Projecting

        wrong = list(field_faults(into, tuple(self.fields), str(self)))
        for name in into.fields:
            if name not in self.fields and name not in message.fields:
                what = f"there is no value for {into.cls.__qualname__}.{name}"
                wrong.append(Finding(what, str(self), next_step=f"give {name}= an expression"))
        yield from wrong
        if not wrong:
            yield from _tried(lambda: Projecting(message, into, self.fields).rehearse(), str(self))

    def prepare(self, message: Schema, into: Schema) -> Callable[..., Any]:
        from tupletree.bolts.vectorised.column_work import Projecting

        return Projecting(message, into, self.fields)


@dataclass(frozen=True)
class _Explode(_Stateless):
    """The recipe of `explode`."""

    field: str
    into: type
    split: Any = None

    @property
    def calls_user_code(self) -> bool:
        return callable(self.split)

    def __str__(self) -> str:
        return f"explode of {self.message.__qualname__}.{self.field} into {self.into.__qualname__}"

    def _part_field(self, message: Iterable[str], into: Iterable[str]) -> str | None:
        names, known = list(into), set(message)
        new = [name for name in names if name not in known] or [name for name in names if name == self.field]
        return new[0] if len(new) == 1 else None

    def faults(self, message: Schema, into: Schema) -> Iterator[Finding]:
        where = str(self)
        wrong = list(field_faults(message, (self.field,), where))
        yield from wrong
        if wrong:
            return
        part = self._part_field(message.fields, into.fields)
        if part is None:
            yield Finding(
                f"{into.cls.__qualname__} does not say where the parts go",
                where,
                got=one_of(into.fields),
                expected=f"one field that is not in {message.cls.__qualname__}, or one called {self.field}",
            )
            return
        for name in into.fields:
            if name != part and into.fields[name] != message.fields[name]:
                expected = hints.text_of(message.fields[name])
                what = f"{into.cls.__qualname__}.{name} has another type"
                yield Finding(what, where, hints.text_of(into.fields[name]), expected)
        yield from self._part_faults(message, into, part, where)

    def _part_faults(self, message: Schema, into: Schema, part: str, where: str) -> Iterator[Finding]:
        annotation = message.fields[self.field]
        kinds = [kind for kind in hints.members(annotation) if kind is not hints.NONE_TYPE]
        kind = kinds[0] if len(kinds) == 1 else None
        if kind is not str and get_origin(kind) not in LISTS:
            expected = "text, or a list, set or tuple of something"
            yield Finding(f"{self.field} has no parts", where, hints.text_of(annotation), expected)
            return
        if kind is not str and self.split is not None:
            yield Finding(f"{self.field} is not split", where, f"split={self.split!r}", "no split: its items come out")
        if self.split == "":
            yield Finding("the separator is empty", where, next_step="leave split out to split at white space")
        if callable(self.split):
            return  # what a function gives is judged as it comes
        given = {str} if kind is str else {member for item in get_args(kind) for member in hints.members(item)}
        given.discard(Ellipsis)
        if not given <= {*hints.members(into.fields[part]), Any}:
            expected = " | ".join(sorted(map(hints.text_of, given)))
            what = f"{into.cls.__qualname__}.{part} has another type"
            yield Finding(what, where, hints.text_of(into.fields[part]), expected)

    def prepare(self, message: Schema, into: Schema) -> Callable[..., Any]:
        from tupletree.bolts.vectorised.column_work import Exploding

        part = self._part_field(message.fields, into.fields)
        assert part is not None, "a recipe with findings is not prepared"
        return Exploding(message, self.field, into, part, self.split)


def _tried(rehearse: Callable[[], None], where: str) -> Iterator[Finding]:
    """What an expression raises on no rows at all: an unknown field, types that do not go together."""
    try:
        rehearse()
    except Exception as error:  # noqa: BLE001 - whatever it was, the expression cannot be used
        yield Finding("the expression cannot be used", where, f"{type(error).__name__}: {error}")
