"""The simulator: whole topologies under seeded faults, and an oracle that checks what must be true."""
