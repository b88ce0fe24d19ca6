"""The parts of a topology in one thread and on virtual time: what the test kit and the simulator share."""
