"""Conditions: whether an adapter is called for a message, or which way it takes.

Owns the operators and their checks. A condition never raises: a comparison with what is not there, or cannot be
compared, does not hold, whichever operator it has (but `exists`). Expressions of `matches` are RE2's, which take time
in proportion to the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from tupletree.routes.adapters.contract import AdapterConfig, RouteMessage
from tupletree.routes.adapters.paths import Path

Operator = Literal["equals", "not_equals", "matches", "in", "exists", "gt", "gte", "lt", "lte", "contains"]

Test = Callable[[RouteMessage], bool]
_MISSING = object()


class Condition(AdapterConfig):
    """One comparison, or several joined.

    Attributes:
        field: path of what is compared.
        operator: how; `equals` by default.
        value: with what. `in` takes a list, `exists` true (the default) or false, the others what they compare with.
        all_of: every one of these holds.
        any_of: at least one of these holds.
        not_: this does not hold; `not` in documents.

    Example:
        >>> from tupletree.routes import RouteMessage
        >>> big = Condition(field="payload.size", operator="gt", value=1000)
        >>> [big.holds(RouteMessage({"size": size})) for size in (2000, 10, "2000")]
        [True, False, False]
    """

    model_config = ConfigDict(populate_by_name=True)

    field: str = ""
    operator: Operator = "equals"
    value: Any = None
    all_of: Sequence[Condition] | None = None
    any_of: Sequence[Condition] | None = None
    not_: Condition | None = Field(default=None, alias="not")
    _test: Test = PrivateAttr()

    def holds(self, message: RouteMessage) -> bool:
        """Whether it is so of this message. Never raises."""
        return self._test(message)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and self.model_dump() == other.model_dump()

    def __hash__(self) -> int:
        return hash((self.field, self.operator))

    def __reduce__(self) -> Any:
        return _condition_of, (self.model_dump(by_alias=True, exclude_unset=True),)

    @model_validator(mode="after")
    def _compiled(self) -> Condition:
        joined = [name for name in ("all_of", "any_of", "not_") if getattr(self, name) is not None]
        given = self.model_fields_set - {"all_of", "any_of", "not_"}
        if len(joined) + bool(given) != 1:
            raise ValueError("expected field with operator and value, or one of all_of, any_of and not")
        if not joined:
            self._test = _comparison(self)
        elif self.not_ is not None:
            self._test = _negated(self.not_.holds)
        else:
            parts = self.all_of if self.all_of is not None else self.any_of
            if not parts:
                raise ValueError(f"{joined[0]} needs at least one condition")
            self._test = _joined([part.holds for part in parts], all if self.all_of is not None else any)
        return self


def _condition_of(values: Mapping[str, Any]) -> Condition:
    return Condition.model_validate(values)


def same(first: Any, second: Any) -> bool:
    """Whether two JSON values are equal: 1 is 1.0, but true is not 1."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


def _joined(tests: Sequence[Test], how: Callable[[Any], bool]) -> Test:
    return lambda message: how(test(message) for test in tests)


def _negated(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda given: not test(given)


def _equals(value: Any) -> Callable[[Any], bool]:
    if type(value) is str:
        return lambda found: bool(found == value)  # no other JSON value equals text
    return lambda found: same(found, value)


def _comparison(condition: Condition) -> Test:
    if "field" not in condition.model_fields_set:
        raise ValueError("expected field, a path such as payload.kind")
    operator, value = condition.operator, condition.value
    if "value" not in condition.model_fields_set:
        if operator != "exists":
            raise ValueError(f"{operator} needs a value")
        value = True
    get = Path(condition.field).get
    compare = _COMPARISONS[operator](value)

    is_for_missing = operator == "exists"

    def test(message: RouteMessage) -> bool:
        found = get(message, _MISSING)
        if found is _MISSING and not is_for_missing:
            return False
        try:
            return compare(found)
        except (TypeError, ValueError, ArithmeticError, RecursionError):
            return False  # what cannot be compared

    return test


def _wrong(operator: str, expected: str, value: Any) -> ValueError:
    # No TypeError: pydantic makes a fault of a ValueError only.
    return ValueError(f"{operator} takes {expected}, got {value!r}")


def _exists(value: Any) -> Callable[[Any], bool]:
    if not isinstance(value, bool):
        raise _wrong("exists", "true or false", value)
    return lambda found: (found is not _MISSING) is value


def _in(value: Any) -> Callable[[Any], bool]:
    if not isinstance(value, list | tuple):
        raise _wrong("in", "a list", value)
    if all(type(one) is str for one in value):
        texts = frozenset(value)
        return lambda found: type(found) is str and found in texts
    return lambda found: any(same(found, one) for one in value)


def _contains(value: Any) -> Callable[[Any], bool]:
    def test(found: Any) -> bool:
        if isinstance(found, list | tuple):
            return any(same(one, value) for one in found)
        if isinstance(found, Mapping):
            return isinstance(value, str) and value in found
        return isinstance(found, str) and isinstance(value, str) and value in found

    return test


def _ordered(name: str, compare: Callable[[Any, Any], bool]) -> Callable[[Any], Callable[[Any], bool]]:
    def make(value: Any) -> Callable[[Any], bool]:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise _wrong(name, "a number or text", value)
        kinds: Any = str if isinstance(value, str) else int | float
        return lambda found: isinstance(found, kinds) and not isinstance(found, bool) and compare(found, value)

    return make


def _matches(value: Any) -> Callable[[Any], bool]:
    if not isinstance(value, str):
        raise _wrong("matches", "a regular expression as text", value)
    import pyarrow as pa  # here, as it takes a third of the time of `routes validate`, and few documents need it
    import pyarrow.compute as pc

    find = pc.get_function("match_substring_regex")
    options = pc.MatchSubstringOptions(value)
    try:
        find.call([pa.scalar("")], options)
    except (pa.ArrowException, ValueError) as error:
        raise ValueError(
            f"{error}; expected an expression of RE2: as Python's, without look-around and references to groups"
        ) from None

    def test(found: Any) -> bool:
        return isinstance(found, str) and find.call([pa.scalar(found)], options).as_py() is True

    return test


_COMPARISONS: dict[str, Callable[[Any], Callable[[Any], bool]]] = {
    "equals": _equals,
    "not_equals": lambda value: _negated(_equals(value)),
    "matches": _matches,
    "in": _in,
    "exists": _exists,
    "gt": _ordered("gt", lambda found, value: found > value),
    "gte": _ordered("gte", lambda found, value: found >= value),
    "lt": _ordered("lt", lambda found, value: found < value),
    "lte": _ordered("lte", lambda found, value: found <= value),
    "contains": _contains,
}
