"""How other systems see pipelines: CloudEvents, OpenTelemetry, OpenLineage, Prometheus. Each is optional.

What is sent goes through a `LineageWriter` each: behind everything else, and never in the way.
"""
