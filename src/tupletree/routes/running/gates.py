"""Gates: how many messages are worked at a time, over all routes of a process and in each of them.

Owns the slots, in their order (global, then the route's), who waits for one, and how a route's number follows its
latency. Refuses to wait: a spout asks, and is told when it is worth asking again. The fan-out gate is not here: what is
published goes out in calls that hold at most that many messages.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tupletree.routes.document.spec import MOST_HELD, PipelineSpec, RouteSpec

DECREASE = 0.7
WINDOW_S = 1.0
LEAST_SAMPLES = 5
RECENT = 500


@dataclass(frozen=True)
class GateStatus:
    """One route's gate, for people.

    Attributes:
        in_flight: messages that have a slot.
        held: messages that adapters hold.
        limit: slots as they are now.
        p95_s: of the last messages, from lease to settlement, 95 % took at most this; None: none yet.
    """

    in_flight: int
    held: int
    limit: int
    p95_s: float | None = None


@dataclass(slots=True)
class _RouteGate:
    limit: int
    most: int
    target_s: float | None
    in_flight: dict[str, float] = field(default_factory=dict)  # message → since when
    reserved: int = 0
    held: set[str] = field(default_factory=set)
    samples: list[float] = field(default_factory=list)
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    window_s: float = 0.0
    was_full: bool = False

    @property
    def taken(self) -> int:
        return len(self.in_flight) + self.reserved

    def adapt(self, now_s: float) -> None:
        """Additive increase, multiplicative decrease, toward the target latency, a step per window."""
        if self.target_s is None or len(self.samples) < LEAST_SAMPLES or now_s - self.window_s < WINDOW_S:
            return
        latency_s = sorted(self.samples)[len(self.samples) // 2]
        if latency_s > self.target_s:
            self.limit = max(1, int(self.limit * DECREASE))
        elif self.was_full:
            self.limit = min(self.most, self.limit + 1)
        self.samples.clear()
        self.window_s, self.was_full = now_s, False


class Gates:
    """The gates of one process. Any thread may call.

    Args:
        spec: the pipeline.
        now_s: monotonic time.
        lease_limit: messages that a route may lease at a time instead of `inbound.in_flight`, for runtimes that work
            in large steps; the global gate is open then.
    """

    def __init__(self, spec: PipelineSpec, now_s: Callable[[], float], lease_limit: int | None = None) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._most = spec.limits.max_handlers if lease_limit is None else lease_limit * len(spec.routes)
        self._routes = {name: _gate_of(route, lease_limit) for name, route in spec.routes.items()}
        self._waiting: dict[str, None] = {}  # routes that found no slot, the longest wait first
        self._listeners: dict[str, Callable[[], None]] = {}

    def listen(self, route: str, listener: Callable[[], None]) -> None:
        """Call this, in any thread, when the route may take a slot that it found taken."""
        with self._lock:
            self._listeners[route] = listener

    def leave(self, route: str) -> None:
        """Call its listener no longer."""
        with self._lock:
            self._listeners.pop(route, None)
            self._waiting.pop(route, None)

    def take(self, route: str) -> int:
        """Take as many slots as the route may have now: the global ones first. 0: wait until called.

        A route that found none is served before others that come later.
        """
        with self._lock:
            gate = self._routes[route]
            free = self._most - sum(one.taken for one in self._routes.values())
            room = gate.limit - gate.taken
            if room <= 0 or len(gate.held) >= MOST_HELD:
                gate.was_full = True
                self._waiting.pop(route, None)
                return 0
            others = [one for one in self._waiting if one != route]
            before = others if route not in self._waiting else others[: [*self._waiting].index(route)]
            taken = min(free - len(before), room)
            if taken <= 0:
                self._waiting.setdefault(route)
                return 0
            self._waiting.pop(route, None)
            gate.reserved += taken
            return taken

    def fill(self, route: str, taken: int, messages: Iterable[str]) -> None:
        """Give these messages slots that were taken, and the other slots back."""
        now_s = self._now_s()
        with self._lock:
            gate = self._routes[route]
            gate.reserved -= taken
            gate.in_flight.update(dict.fromkeys(messages, now_s))
        self._tell()  # not the route itself: it knows, and would ask again without an end

    def hold(self, route: str, messages: Iterable[str]) -> None:
        """Adapters hold these: their slots are free."""
        with self._lock:
            gate = self._routes[route]
            for message in messages:
                if gate.in_flight.pop(message, None) is not None:
                    gate.held.add(message)
        self._tell(route)

    def held(self, route: str) -> frozenset[str]:
        """What adapters of a route hold."""
        with self._lock:
            return frozenset(self._routes[route].held)

    def release(self, route: str, message: str) -> None:
        """The message is settled at its broker, or given back. Harmless if it has no slot."""
        now_s = self._now_s()
        with self._lock:
            gate = self._routes[route]
            since_s = gate.in_flight.pop(message, None)
            gate.held.discard(message)
            if since_s is not None:
                gate.recent.append(now_s - since_s)
                if gate.target_s is not None:
                    gate.samples.append(now_s - since_s)
                    gate.adapt(now_s)
            alone = None if self._waiting else self._listeners.get(route)
        if alone is not None:  # nearly always: no other route waits
            alone()
        else:
            self._tell(route)

    def status(self) -> Mapping[str, GateStatus]:
        """Each route's gate."""
        with self._lock:
            return {
                name: GateStatus(len(gate.in_flight), len(gate.held), gate.limit, _p95(gate.recent))
                for name, gate in self._routes.items()
            }

    def _tell(self, route: str = "") -> None:
        """Tell the routes that wait for a global slot, and this one."""
        with self._lock:
            told = {**self._waiting, route: None} if self._waiting else (route,)
            listeners = [self._listeners[one] for one in told if one in self._listeners]
        for listener in listeners:
            listener()


def _p95(seconds: Collection[float]) -> float | None:
    return sorted(seconds)[int(len(seconds) * 0.95)] if seconds else None


def _gate_of(route: RouteSpec, lease_limit: int | None) -> _RouteGate:
    if lease_limit is not None:
        return _RouteGate(lease_limit, lease_limit, None)
    backpressure = route.backpressure
    if backpressure.target_latency_ms is None:
        return _RouteGate(route.inbound.in_flight, route.inbound.in_flight, None)
    most = max(backpressure.max_concurrency, 1)
    return _RouteGate(min(route.inbound.in_flight, most), most, backpressure.target_latency_ms / 1000.0)
