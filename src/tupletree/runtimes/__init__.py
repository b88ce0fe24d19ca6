"""The runtimes: the two that run topologies, what they share, and the way to start one (`run`)."""
