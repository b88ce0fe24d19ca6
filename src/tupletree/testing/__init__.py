"""What users import in their tests: `run`, to run a topology in milliseconds, and `simulate`, to break it if one can.

`tupletree.testing.conformance` is the suite for those who write a runtime.
"""

from tupletree.testing.faults import Faults
from tupletree.testing.simulator import SimulationError, SimulationResult, simulate

__all__ = ["Faults", "SimulationError", "SimulationResult", "simulate"]
