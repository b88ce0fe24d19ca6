"""The protocol of the Spark runtime under faults: driver, engine, stages, sinks and recovery in one thread.

`ProtocolSimulation` runs a topology to its end under a seed, through crashes of the driver and of its machine, lost
executors and tasks that run twice. What must be true is the caller's: it is asked after each restart.
"""

from tupletree.testing.spark_protocol.disk import Disk
from tupletree.testing.spark_protocol.faults import ProtocolFaults
from tupletree.testing.spark_protocol.simulation import Crash, Moment, ProtocolSimulation

__all__ = ["Crash", "Disk", "Moment", "ProtocolFaults", "ProtocolSimulation"]
