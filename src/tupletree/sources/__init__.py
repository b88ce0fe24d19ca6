"""Where messages come from when no broker is involved: text files, Delta tables, values in memory, a steady rate."""

from tupletree.sources.delta_rows import delta_rows
from tupletree.sources.items import items
from tupletree.sources.rate import rate
from tupletree.sources.text import Line, text_lines

__all__ = ["Line", "delta_rows", "items", "rate", "text_lines"]
