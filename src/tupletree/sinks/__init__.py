"""Where results go: file sinks with exactly-once publishing, tables, queues, and a sink that calls a function."""

from tupletree.sinks.delta import delta
from tupletree.sinks.files import RowError, SinkRowsError
from tupletree.sinks.foreach import foreach
from tupletree.sinks.jsonl import jsonl
from tupletree.sinks.parquet import parquet
from tupletree.sinks.queue import queue_sink
from tupletree.sinks.reader import read_rows
from tupletree.sinks.sql import sql

__all__ = ["RowError", "SinkRowsError", "delta", "foreach", "jsonl", "parquet", "queue_sink", "read_rows", "sql"]
