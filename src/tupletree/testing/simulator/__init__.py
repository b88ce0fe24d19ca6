"""The simulator: whole topologies under seeded faults, and an oracle that knows what must be true."""
