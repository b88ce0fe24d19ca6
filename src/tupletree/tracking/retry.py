"""When to try again: delays between attempts of a message, and between restarts of a topology.

Owns the arithmetic and the limits. It refuses to wait: callers hold the clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tupletree.config import Options
from tupletree.errors import ConfigError, Finding
from tupletree.tracking.outcomes import RetryRule

_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class RetryPolicy:
    """How often a message is tried, and how long the pauses between its attempts are.

    Attributes:
        max_attempts: attempts in total, the first one included.
        backoff_initial_ms: pause after the first failed attempt.
        backoff_factor: each further pause is this many times longer.
        backoff_max_ms: no pause is longer than this, before jitter.
        service_initial_ms, service_factor, service_max_ms: the same after failures of services.
        jitter: each pause is spread evenly over ± this fraction, so that messages that failed together do not
            be tried again together.

    Raises:
        ConfigError: for values outside their range, all of them together.
    """

    max_attempts: int = 5
    backoff_initial_ms: float = 100.0
    backoff_factor: float = 2.0
    backoff_max_ms: float = 30_000.0
    jitter: float = 0.2
    service_initial_ms: float = 500.0
    service_factor: float = 6.0
    service_max_ms: float = 120_000.0

    def __post_init__(self) -> None:
        ranges = (
            ("max_attempts", self.max_attempts, "at least 1", self.max_attempts >= 1),
            ("backoff_initial_ms", self.backoff_initial_ms, "0 or more", 0 <= self.backoff_initial_ms < math.inf),
            ("backoff_factor", self.backoff_factor, "at least 1", 1 <= self.backoff_factor < math.inf),
            ("backoff_max_ms", self.backoff_max_ms, "0 or more", 0 <= self.backoff_max_ms < math.inf),
            (
                "service_backoff_initial_ms",
                self.service_initial_ms,
                "0 or more",
                0 <= self.service_initial_ms < math.inf,
            ),
            ("service_backoff_factor", self.service_factor, "at least 1", 1 <= self.service_factor < math.inf),
            ("service_backoff_max_ms", self.service_max_ms, "0 or more", 0 <= self.service_max_ms < math.inf),
            ("backoff_jitter", self.jitter, "between 0 and 1", 0 <= self.jitter <= 1),
        )
        findings = [
            Finding("option out of range", where=name, got=repr(got), expected=expected)
            for name, got, expected, fits in ranges
            if not fits
        ]
        if findings:
            raise ConfigError("the retry options cannot be used", findings=findings)

    @classmethod
    def from_options(cls, options: Options) -> RetryPolicy:
        """Take the retry settings out of a run's options."""
        return cls(
            max_attempts=options.max_attempts,
            backoff_initial_ms=options.backoff_initial_ms,
            backoff_factor=options.backoff_factor,
            backoff_max_ms=options.backoff_max_ms,
            service_initial_ms=options.service_backoff_initial_ms,
            service_factor=options.service_backoff_factor,
            service_max_ms=options.service_backoff_max_ms,
            jitter=options.backoff_jitter,
        )

    def delay_s(self, attempt: int, random: Callable[[], float], rule: RetryRule | None = None) -> float:
        """Seconds to wait after attempt number `attempt` (from 1) failed; safe for any attempt number.

        Args:
            attempt: the attempt that failed.
            random: returns a uniform float in [0, 1).
            rule: what the failure says about further attempts.
        """
        if rule is not None and rule.after_s is not None:
            return rule.after_s * (1.0 + self.jitter * random())
        first_ms, factor, max_ms = self._pauses(rule)
        try:
            growth = float(factor) ** (attempt - 1)
        except OverflowError:
            growth = math.inf
        # A first pause of 0 means no pauses; 0 * inf would be NaN.
        pause_ms = min(first_ms * growth, max_ms) if first_ms else 0.0
        return pause_ms * (1.0 + self.jitter * (2.0 * random() - 1.0)) / 1000.0

    def _pauses(self, rule: RetryRule | None) -> tuple[float, float, float]:
        """The first pause, the growth and the longest pause."""
        usual = self.backoff_initial_ms, self.backoff_factor, self.backoff_max_ms
        if rule is None:
            return usual
        if rule.is_service:
            usual = self.service_initial_ms, self.service_factor, self.service_max_ms
        return (
            usual[0] if rule.backoff_s is None else 1000.0 * rule.backoff_s,
            usual[1] if rule.factor is None else rule.factor,
            usual[2] if rule.max_s is None else 1000.0 * rule.max_s,
        )

    def exhausted(self, attempt: int, rule: RetryRule | None = None) -> bool:
        """Whether attempt number `attempt` was the last one."""
        return attempt >= (self.max_attempts if rule is None or rule.attempts is None else rule.attempts)


def spread_of(root: int, attempt: int) -> float:
    """A number in [0, 1) for the jitter of an attempt's retry: always the same one, and as random as the root is."""
    mixed = (root + attempt * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    return ((mixed ^ (mixed >> 27)) >> 11) / (1 << 53)


class RestartPolicy:
    """How a supervisor restarts a topology that failed.

    Restart n (from 1) waits min(1000 · 2ⁿ, 30000) ms; after `max_restarts` without `health_s` seconds without failures
    in between, the topology stays down. Errors that arrive while a restart is already being waited for belong to it.

    That time begins with `started`, not with the end of the wait and not with construction: a topology that fails
    after a minute in its start-up has not run for any part of it.

    Attributes:
        restarts: since it last ran for `health_s` without failures.
    """

    def __init__(self, *, max_restarts: int = 5, health_s: float = 60.0) -> None:
        self._max_restarts = max_restarts
        self._health_s = health_s
        self.restarts = 0
        self._restart_at_s = -math.inf
        self._healthy_since_s: float | None = None

    def started(self, now_s: float) -> None:
        """The topology is up."""
        self._healthy_since_s = now_s

    def failed(self, now_s: float) -> float | None:
        """The topology failed: seconds until it shall be restarted, or None when it shall stay down."""
        if now_s < self._restart_at_s:
            return self._restart_at_s - now_s
        if self._healthy_since_s is not None and now_s - self._healthy_since_s >= self._health_s:
            self.restarts = 0
        self._healthy_since_s = None
        if self.restarts >= self._max_restarts:
            return None
        self.restarts += 1
        delay_s = min(1000.0 * 2.0**self.restarts, 30_000.0) / 1000.0
        self._restart_at_s = now_s + delay_s
        return delay_s
