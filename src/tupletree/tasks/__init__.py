"""The message flow as pure state machines, one kind per module: spouts, bolts, ackers, sinks.

A machine is one task. Time (`Now`), frames and mail go in; its effects come out in an `Outbox`. The executors of
the local runtime and the seeded simulator drive the same machines. Nothing here knows threads, clocks or rings.
"""
