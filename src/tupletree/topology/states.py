"""State as a map or a list per key: views of a value that is a dict or a list.

They work on their own as well, so that a bolt can be called in a test: `visits(page, MapState())`. The contracts of
`KeyedState` and `TaskState` are in `components`. Nothing here stores anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any, Generic, Protocol, TypeVar, overload

from tupletree.topology.model import StateSpec

K = TypeVar("K")
V = TypeVar("V")


class _Cell(Protocol):
    """What a view shows."""

    value: Any

    @property
    def key(self) -> Any: ...

    def clear(self) -> None: ...

    def touch(self) -> None: ...


class _Alone(Generic[V]):
    """The value of a view that no runtime made."""

    key = None

    def __init__(self, value: V) -> None:
        self.value = value
        self._empty = type(value)

    def clear(self) -> None:
        self.value = self._empty()

    def touch(self) -> None:
        """Nothing expires here."""


class _View:
    _cell: _Cell

    @classmethod
    def over(cls, cell: Any) -> Any:
        """A view of the value that is in the cell at the time."""
        view = cls()
        view._cell = cell
        return view

    @property
    def key(self) -> object:
        """The key in hand: the grouping field's value, or a tuple of several."""
        return self._cell.key

    def clear(self) -> None:
        """Remove the key, with everything in it."""
        self._cell.clear()
        self._cell.touch()

    def __len__(self) -> int:
        return len(self._cell.value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._cell.value!r})"


class MapState(_View, MutableMapping[K, V]):
    """A map per key, with all that a dict can do; empty for a key never set. No default needs to be declared.

    The whole map of a key is read and written together. A value that could be changed in place is to be assigned again
    once it was: the map does not see inside of it.

    >>> pages = MapState({"/": 1})
    >>> pages["/"] += 1
    >>> dict(pages)
    {'/': 2}
    """

    def __init__(self, entries: Mapping[K, V] | None = None) -> None:
        self._cell = _Alone(dict(entries or {}))

    def __getitem__(self, key: K) -> V:
        found: V = self._cell.value[key]
        return found

    def __setitem__(self, key: K, value: V) -> None:
        self._cell.value[key] = value
        self._cell.touch()

    def __delitem__(self, key: K) -> None:
        del self._cell.value[key]
        self._cell.touch()

    def __iter__(self) -> Iterator[K]:
        return iter(self._cell.value)

    def __contains__(self, key: object) -> bool:
        return key in self._cell.value


class ListState(_View, MutableSequence[V]):
    """A list per key, with all that a list can do; empty for a key never set. No default needs to be declared.

    The whole list of a key is read and written together.

    >>> last = ListState([1, 2])
    >>> last.append(3)
    >>> last[-2:]
    [2, 3]
    """

    def __init__(self, items: Iterable[V] = ()) -> None:
        self._cell = _Alone(list(items))

    @overload
    def __getitem__(self, index: int) -> V: ...

    @overload
    def __getitem__(self, index: slice) -> list[V]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return self._cell.value[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._cell.value[index] = value
        self._cell.touch()

    def __delitem__(self, index: int | slice) -> None:
        del self._cell.value[index]
        self._cell.touch()

    def insert(self, index: int, value: V) -> None:
        """Put an item before this position."""
        self._cell.value.insert(index, value)
        self._cell.touch()

    def __eq__(self, other: object) -> bool:
        items: list[V] = self._cell.value
        return items == (other._cell.value if isinstance(other, ListState) else other)

    __hash__ = None  # type: ignore[assignment]  # as every list


def view_of(spec: StateSpec, cell: Any) -> Any:
    """What a bolt gets for its state: the cell itself, or a view of it."""
    if spec.kind == "map":
        return MapState.over(cell)
    return ListState.over(cell) if spec.kind == "list" else cell
