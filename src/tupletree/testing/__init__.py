"""What users import in their tests: `run`, to run a topology in milliseconds, and `simulate`, to break it if one can.

`tupletree.testing.conformance` is the suite for those who write a runtime.
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
