"""Drives a topology on virtual time in which calls take time: an executor of its plan is busy while a call of it runs.

What a call came to leaves when the slice that it is in is over, as on the executors of the local runtime. The machines,
the queues and the order of work are theirs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

from tests.tasks.driving import Driver
from tupletree import Topology
from tupletree.config import Options
from tupletree.data.frames import Frame
from tupletree.routing.plan import ACKER
from tupletree.runtimes.local.frame_queue import FrameQueue
from tupletree.tasks.live_roots import LiveRoots
from tupletree.tasks.outbox import Outbox

Seconds = Callable[[str, Any], float]
"""(bolt, tuple) → how long its call takes."""


class Server:
    """One executor."""

    def __init__(self, driver: Timed, tasks: tuple[int, ...]) -> None:
        self.queue = FrameQueue({task: driver.machines[task] for task in tasks})
        self.out = Outbox(driver.plan.task_ids_of(ACKER))
        self.is_busy = False


class Timed(Driver):
    """See the module docstring.

    Args:
        topology: what to drive; the time that its bolts' code takes does not count.
        options: settings.
        seconds: how long calls take.
        seed: of every random draw.

    Attributes:
        calls: (bolt, tuple, start) of each call.
        tallest: the most messages that were in flight.
    """

    def __init__(self, topology: Topology, options: Options, seconds: Seconds, seed: int = 0) -> None:
        super().__init__(topology, options, seed, adapts=True)
        self.calls: list[tuple[str, Any, float]] = []
        self.tallest = 0
        self._seconds = seconds
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._servers = [Server(self, executor.task_ids) for executor in self.plan.executors]
        self._server_of = {task: one for one, ex in zip(self._servers, self.plan.executors) for task in ex.task_ids}
        self.live = LiveRoots(self.options.message_timeout_s)
        for machine in self.machines.values():
            machine.live = self.live
            if machine.pace is not None:
                self.live.paces[machine.task.component] = machine.pace
        for spout in self.spouts:
            self.live.register(spout.task.task_id, spout.pending.attempts_out)
            spout.nothing_waits = lambda: not any(one.is_busy or one.queue for one in self._servers)

    def to_the_end(self, limit_s: float) -> None:
        """Run until every message has ended."""
        ends_s = self.now_s + limit_s
        look_s = (self.options.message_timeout_s or 30.0) / 50
        while not all(spout.is_finished for spout in self.spouts):
            assert self.now_s < ends_s, "it takes too long"
            self._turn()
            due = [due_s for machine in self.machines.values() if (due_s := machine.next_due_s()) is not None]
            due += [self._events[0][0]] if self._events else []
            due.append(self.now_s + look_s)  # spouts are asked again now and then
            self.now_s = min(due_s for due_s in due if due_s > self.now_s)
            while self._events and self._events[0][0] <= self.now_s:
                heapq.heappop(self._events)[2]()

    def _turn(self) -> None:
        """Let everything happen that takes no time, then start what does."""
        for _ in range(100_000):
            self._take_from(self.out)
            if self.queue:
                task, mail = self.queue.popleft()  # type: ignore[misc]  # frames never get there
                self.machines[task].receive([mail], self.now, self.out)
                continue
            polled = [machine.poll(self.now, self.out) for machine in self.machines.values()]
            if not any(polled):
                self._take_from(self.out)
                if not self.queue:
                    break
        self.tallest = max(self.tallest, sum(spout.in_flight for spout in self.spouts))
        for server in self._servers:
            self._start(server)

    def _take_from(self, out: Outbox) -> None:
        """As `carry_out`, with the frames to their servers."""
        self.queue += out.take_tracks()
        for frame in out.take_frames():
            self._server_of[frame.task].queue.ready.append(frame)
        self.queue += out.take_mail()
        self.notes += [note.text for note in out.notes]
        out.notes.clear()
        self.carry_out()

    def _next(self, server: Server) -> Frame | None:
        """The next frame to work, or slice; None if the one that was looked at has to wait for its turn."""
        if server.queue.ready:
            frame = server.queue.ready.popleft()
            return frame if server.queue.is_ready(frame) else None
        taken = server.queue.next_slow(server.out, self.live.still_wanted)
        return taken[0] if taken is not None else None

    def _start(self, server: Server) -> None:
        """Take slices until one takes time."""
        while server.queue and not server.is_busy:
            frame = self._next(server)
            if frame is None or not frame.values:
                continue
            machine = self.machines[frame.task]
            name, took_s = machine.task.component, 0.0
            for value in frame.values:
                self.calls.append((name, value, self.now_s + took_s))
                took_s += self._seconds(name, value)
            machine.work(frame, self.now, server.out)
            if machine.pace is not None:
                machine.pace.note(len(frame.values), took_s)
            server.is_busy = took_s > 0.0

            def end(server: Server = server) -> None:
                server.is_busy = False
                self._take_from(server.out)

            if took_s > 0.0:
                heapq.heappush(self._events, (self.now_s + took_s, next(self._number), end))
            else:
                self._take_from(server.out)


def with_pending(options: Options, pending: int | None) -> Options:
    """The options with another limit."""
    return replace(options, max_spout_pending=pending)
