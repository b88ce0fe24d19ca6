"""What users import in their tests: `run`, to run a topology in milliseconds, and `simulate`, to break it if one can.

`tupletree.testing.conformance` is the suite for those who write a runtime.
"""

from tupletree.testing.faults import Faults
from tupletree.testing.kit import run
from tupletree.testing.reports import MessageReport, TestRun
from tupletree.testing.simulator import SimulationError, SimulationResult, simulate
from tupletree.testing.tracing import InjectedError

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
