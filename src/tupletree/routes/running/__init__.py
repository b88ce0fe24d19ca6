"""Running a pipeline: from its description to a topology, and what the topology's parts do."""
