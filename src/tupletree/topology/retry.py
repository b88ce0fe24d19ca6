"""Retry: what a topology says about the failures of one bolt, in the place of the run's options.

Owns which settings hold for an exception, and what is wrong with them, or with a `max_rate=` beside them. It counts
nothing and waits for nothing: the rule itself is in `tracking.retry`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from tupletree.errors import Finding, PermanentError, is_outage

LONGEST_S = 31_536_000.0
"""A year: a longer pause is a mistake."""


@dataclass(frozen=True)
class Retry:
    """How often, and after what pauses, a message is tried again that failed in a bolt.

    Give it to `Topology.bolt(retry=)`. What is None is as the run's options have it. The number of an attempt counts
    all attempts of the message, wherever they failed; the bolt that failed it says whether that was the last one.

    Attributes:
        attempts: attempts in total (`max_attempts`).
        backoff_s: seconds until the second attempt (`backoff_initial_ms`).
        factor: how much longer each further pause is (`backoff_factor`).
        max_s: the longest pause, in seconds (`backoff_max_ms`).
        on: exception class → settings for it and its subclasses; the nearest class counts. What these leave None is as
            the attributes above have it. `Retry.NEVER` makes the attempt the last one. `Retry.OUTAGE` treats the
            exception as a `ConnectorError`: no message is to blame, the bolt pauses and calls again. Other settings for
            `ConnectorError` make it fail its message.
        is_outage: see `OUTAGE`.

    >>> patient = Retry(attempts=8, backoff_s=1, max_s=60, on={ValueError: Retry.NEVER, TimeoutError: Retry(factor=4)})
    >>> patient.settings_for(TimeoutError()).factor, patient.settings_for(UnicodeError()).attempts
    (4, 1)
    """

    attempts: int | None = None
    backoff_s: float | None = None
    factor: float | None = None
    max_s: float | None = None
    on: Mapping[type[BaseException], Retry] = field(default_factory=dict)
    is_outage: bool = False

    NEVER: ClassVar[Retry]
    """The attempt was the last one."""

    OUTAGE: ClassVar[Retry]
    """No attempt failed: something outside is not available."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Retry, (self.attempts, self.backoff_s, self.factor, self.max_s, dict(self.on), self.is_outage)

    def settings_for(self, error: BaseException | None) -> Retry:
        """The settings for this exception (None: the bolt failed its tuple in words), without `on`."""
        found = self._named(error)
        if found is None:
            return replace(self, on={})
        return Retry(
            attempts=self.attempts if found.attempts is None else found.attempts,
            backoff_s=self.backoff_s if found.backoff_s is None else found.backoff_s,
            factor=self.factor if found.factor is None else found.factor,
            max_s=self.max_s if found.max_s is None else found.max_s,
            is_outage=found.is_outage,
        )

    def takes_as_outage(self, error: BaseException) -> bool:
        """Whether this exception says that something outside is not available."""
        found = self._named(error)
        return is_outage(error) if found is None else found.is_outage

    @property
    def has_pauses(self) -> bool:
        """Whether it says anything about pauses."""
        return not (self.backoff_s is None and self.factor is None and self.max_s is None)

    def _named(self, error: BaseException | None) -> Retry | None:
        if error is None or not self.on:
            return None
        return next((self.on[cls] for cls in type(error).__mro__ if cls in self.on), None)


def policy_faults(retry: object, where: str) -> Iterator[Finding]:
    """All that is wrong with what a bolt is given as `retry=`; types, too: not every topology is type-checked."""
    if retry is None:
        return
    if not isinstance(retry, Retry):
        yield Finding("retry= is no Retry", where, repr(retry), "such as Retry(attempts=8, backoff_s=1)")
        return
    yield from _range_faults(retry, where)
    on: Mapping[Any, Any] = retry.on
    for cls, settings in on.items():
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            yield Finding("retry= names what is no exception class", where, repr(cls), "a class such as TimeoutError")
        elif issubclass(cls, PermanentError):
            yield Finding("retry= names PermanentError, which always is the last attempt", where, cls.__name__)
        elif not isinstance(settings, Retry) or settings.on:
            expected = "a Retry without `on`, Retry.NEVER or Retry.OUTAGE"
            yield Finding(f"retry= has wrong settings for {cls.__name__}", where, repr(settings), expected)
        else:
            yield from _range_faults(settings, f"{where}, on {cls.__name__}")


def rate_faults(max_rate: object, style: str, where: str) -> Iterator[Finding]:
    """All that is wrong with what a bolt is given as `max_rate=`."""
    if max_rate is None:
        return
    if isinstance(max_rate, bool) or not isinstance(max_rate, int | float) or not 1e-6 <= max_rate <= 1e9:
        yield Finding("max_rate= is out of range", where, repr(max_rate), "calls per second, above 0")
    elif style not in {"function", "class"}:
        yield Finding(
            "max_rate= counts calls of one tuple each, and this bolt's calls have several",
            where,
            got=f"a bolt of the kind {style!r}",
            next_step="give it to a bolt on single tuples, in front of this one or in its place",
        )


def _range_faults(retry: Retry, where: str) -> Iterator[Finding]:
    ranges: tuple[tuple[str, Any, float, float, str], ...] = (
        ("attempts", retry.attempts, 1, math.inf, "a whole number at least 1"),
        ("backoff_s", retry.backoff_s, 0, LONGEST_S, "seconds from 0 to 31,536,000"),
        ("factor", retry.factor, 1, LONGEST_S, "a number at least 1"),
        ("max_s", retry.max_s, 0, LONGEST_S, "seconds from 0 to 31,536,000"),
    )
    for name, value, least, most, expected in ranges:
        types = int if name == "attempts" else (int, float)
        if value is None or (isinstance(value, types) and not isinstance(value, bool) and least <= value <= most):
            continue
        yield Finding(f"retry= is out of range: {name}", where, repr(value), expected)


Retry.NEVER = Retry(attempts=1)
Retry.OUTAGE = Retry(is_outage=True)
