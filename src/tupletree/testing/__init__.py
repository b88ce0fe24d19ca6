"""What users import in their tests: `run`, for a run in milliseconds, and `simulate`, for runs under faults.

`tupletree.testing.conformance` is the suite for authors of a runtime.
"""

from tupletree.testing.kit.reports import MessageReport, TestRun
from tupletree.testing.kit.run import run
from tupletree.testing.kit.tracing import InjectedError
from tupletree.testing.simulator.faults import Faults
from tupletree.testing.simulator.simulate import SimulationError, SimulationResult, simulate

__all__ = [
    "Faults",
    "InjectedError",
    "MessageReport",
    "SimulationError",
    "SimulationResult",
    "TestRun",
    "run",
    "simulate",
]
