"""The test kit: a topology is run to its end on virtual time, and every message is reported on."""
