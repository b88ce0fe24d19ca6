"""A value that is not to be shown: a password, a token, a URL that holds one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar

HIDDEN = "***"

T = TypeVar("T")


class Secret(Generic[T]):
    """Holds a value that stays in this process: no text of it, no log, error, file or other process gets it.

    A parameter of a topology's function that is annotated with `Secret[str]` is set like any other, best by
    `--set name=@file` or `--set 'name=$VARIABLE'`, for the process list shows command lines to everybody.

    It cannot be pickled: what works on Spark's executors (bolts, spouts that they read) must get its secrets there, in
    `open`, from the environment or a file. Spouts and called sinks are in the driver, and may have it.

    Args:
        value: what `reveal` gives.

    Example:
        >>> url = Secret("postgresql://me:hidden@host/orders")
        >>> print(f"writing to {url}")
        writing to ***
        >>> url.reveal()
        'postgresql://me:hidden@host/orders'
    """

    __slots__ = ("_reveal",)

    def __init__(self, value: T) -> None:
        # A closure, so that tools which walk attributes do not find it.
        self._reveal: Callable[[], T] = lambda: value

    def reveal(self) -> T:
        """The value. From there on the caller must keep it secret."""
        return self._reveal()

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def __str__(self) -> str:
        return HIDDEN

    def __format__(self, specification: str) -> str:
        return format(HIDDEN, specification)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and bool(self.reveal() == other.reveal())

    def __hash__(self) -> int:
        return hash(self.reveal())

    def __copy__(self) -> Secret[T]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret[T]:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret does not leave its process: get it in `open`, from the environment or a file")
