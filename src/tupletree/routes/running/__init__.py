"""Running a pipeline: from its description to a topology, and what the topology's parts do."""

from tupletree.routes.running.chain import Chain, Surroundings
from tupletree.routes.running.gates import Gates
from tupletree.routes.running.stateful import BatchBolt, StatefulBolt

__all__ = ["BatchBolt", "Chain", "Gates", "StatefulBolt", "Surroundings"]
