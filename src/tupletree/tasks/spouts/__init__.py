"""What a spout task has besides its machine: what its spout gave, and what a durable run stores of it."""
