"""Where messages come from text files, Delta tables, queues, values in memory, a steady rate."""

from tupletree.sources.delta_rows import delta_rows
from tupletree.sources.items import items
from tupletree.sources.queue import queue
from tupletree.sources.rate import rate
from tupletree.sources.text import Line, text_lines

__all__ = ["Line", "delta_rows", "items", "queue", "rate", "text_lines"]
