r"""Text from outside, made safe to show: the one function for all output that people read.

A payload, an id or the text of an error may hold what a terminal executes (escape sequences), what turns the order of
characters around (bidirectional controls), or a line break that makes two rows of one. Such characters are shown as
Python writes them: `\x1b`, `\u202e`, `\n`. Nothing else changes, a backslash neither: output for programs is JSON.
"""

from __future__ import annotations

import re

_UNSAFE = (
    r"\x00-\x1f\x7f-\x9f"  # C0 and C1 controls, ESC and CSI among them
    r"\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # direction, line breaks, no width
    r"\ud800-\udfff"  # halves of characters, which no stream takes
    r"\U000e0000-\U000e0fff"  # tags
)
_ONE_LINE = re.compile(f"[{_UNSAFE}]")
_LINE_BREAK = re.compile(r"\r\n|[\n\r\v\f\x85\u2028\u2029]")

INDENT = "    "


def escape(text: str) -> str:
    """The text as one line that a terminal shows and does not execute."""
    return text if text.isprintable() else _ONE_LINE.sub(_escaped, text)


def escape_block(text: str) -> str:
    """The text with its line breaks; every line but the first is indented, to be told from Tupletree's own.

    All of them in the same way, so that a traceback keeps its shape; not at all, if all of them are indented already.
    """
    first, *rest = _LINE_BREAK.split(text)
    others = [escape(line.expandtabs(4)) if line.strip() else "" for line in rest]
    indent = "" if all(line.startswith(INDENT) for line in others if line) else INDENT
    return "\n".join([escape(first), *(line and f"{indent}{line}" for line in others)])


def escape_json(text: str) -> str:
    """A JSON text of equal meaning that a terminal shows and does not execute. It has no line breaks outside."""
    return text if text.isprintable() else _ONE_LINE.sub(_escaped_in_json, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def _escaped_in_json(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[start : start + 2].hex()}" for start in range(0, len(units), 2))
