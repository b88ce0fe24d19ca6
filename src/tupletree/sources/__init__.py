"""Where messages come from when no broker is involved: text files, values in memory, a steady rate."""

from tupletree.sources.items import items
from tupletree.sources.rate import rate
from tupletree.sources.text import Line, text_lines

__all__ = ["Line", "items", "rate", "text_lines"]
