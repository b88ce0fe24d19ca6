"""Rates of a run: how fast messages are acked, and how long they take."""

from __future__ import annotations

from collections import deque

from tupletree.clock import Clock
from tupletree.tracking.records import Acked

WINDOW_S = 10.0
SAMPLES = 2_000
SAMPLES_PER_EPOCH = 200


class Rates:
    """Written by one thread, read by any other; reads may be a moment old."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._latencies: deque[float] = deque(maxlen=SAMPLES)
        self._acked: deque[tuple[float, int]] = deque(maxlen=1_000)

    def settled(self, acked: list[Acked], more: int = 0, more_s: float = 0.0) -> None:
        """Count acks that came together: some with their latency, and more that all have the same one."""
        self._acked.append((self._clock.monotonic(), len(acked) + more))
        self._latencies.extend([more_s] * min(more, SAMPLES_PER_EPOCH))
        step = max(1, len(acked) // SAMPLES_PER_EPOCH)
        self._latencies.extend(one.latency_s for one in acked[::step])

    def rate_per_s(self) -> float:
        """Messages acked per second over the last seconds."""
        now_s = self._clock.monotonic()
        recent = [(at, count) for at, count in list(self._acked) if now_s - at <= WINDOW_S]
        if not recent:
            return 0.0
        return sum(count for _, count in recent) / max(0.1, now_s - recent[0][0])

    def latency_ms(self, quantile: float) -> float | None:
        """Emit to ack of recent messages at a quantile (0 to 1); None before the first ack."""
        ordered = sorted(self._latencies.copy())
        if not ordered:
            return None
        return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] * 1000.0
