"""Options: one typed table with units, and the order in which settings win.

Precedence: defaults < code < file < environment < command line. Storm's names are aliases.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """Every setting of a run. Units stand in the names; None means "the runtime chooses".

    Attributes:
        max_spout_pending: open messages per spout task. None: 128 on the local runtime, two epochs on Spark.
        message_timeout_s: an attempt whose tree is not complete after this time fails; None disables it.
        timeout_buckets: rotating buckets of the timeout; an attempt expires between T and T + T/(buckets-1).
        acker_tasks: 0 turns tracking off (messages are acked on emit).
        max_attempts: attempts in total before a message is dead.
        backoff_initial_ms, backoff_factor, backoff_max_ms, backoff_jitter: delay before attempt n+1 is
            min(initial * factor**(n-1), max), spread by ±jitter (a fraction).
        high_water_factor: open trees above this times what spouts may have pending pause the spouts.
        spout_idle_wait_ms: wait after a spout had nothing.
        epoch_max_messages, epoch_max_bytes: limits of one Spark epoch.
        epoch_min_interval_ms: do not start epochs closer together than this; 0 is as fast as they come.
        history_max_bytes: how much of the per-message history is kept for `why`.
        drain_timeout_s: how long a stop waits for what is in flight.
        tick_interval_s: ticks for bolts that do not set their own; None is unset.
    """

    max_spout_pending: int | None = None
    message_timeout_s: float | None = 30.0
    timeout_buckets: int = 3
    acker_tasks: int = 4
    acker_executors: int = 1
    ring_size: int = 256
    max_attempts: int = 5
    backoff_initial_ms: float = 100.0
    backoff_factor: float = 2.0
    backoff_max_ms: float = 30_000.0
    backoff_jitter: float = 0.2
    high_water_factor: float = 2.0
    spout_idle_wait_ms: float = 100.0
    epoch_max_messages: int = 10_000
    epoch_max_bytes: int = 64 * 1024 * 1024
    epoch_min_interval_ms: float = 0.0
    history_max_bytes: int = 256 * 1024 * 1024
    drain_timeout_s: float = 30.0
    tick_interval_s: float | None = None
