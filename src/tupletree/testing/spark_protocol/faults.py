"""What may go wrong in a simulation of the Spark protocol, and how often."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProtocolFaults:
    """Probabilities, each between 0 and 1; `crashes` is the most crashes of one run.

    Attributes:
        crashes: of the driver: at a crash point, before a file is synced, or between two tasks.
        machine: that a crash takes what is not synced with it.
        executor: that an executor is lost while it runs a task.
        twice: that a task runs twice: at once, or long after its run.
        job: that a job fails as a whole.
        beside: that the loop does a step while the settling thread waits for something.
    """

    crashes: int = 4
    machine: float = 0.6
    executor: float = 0.04
    twice: float = 0.08
    job: float = 0.03
    beside: float = 0.3
