"""Where messages come from text, JSON Lines and Parquet files, Delta tables, queues, values in memory, a fixed rate."""

from tupletree.sources.delta_rows import delta_rows
from tupletree.sources.items import items
from tupletree.sources.jsonl_rows import jsonl_rows
from tupletree.sources.parquet_rows import parquet_rows
from tupletree.sources.queue import queue
from tupletree.sources.rate import rate
from tupletree.sources.text import Line, text_lines

__all__ = ["Line", "delta_rows", "items", "jsonl_rows", "parquet_rows", "queue", "rate", "text_lines"]
