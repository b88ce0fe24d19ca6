"""Reading the documents: their code blocks, their links, and the tables that they hold.

`python -m tests.docs.documents` writes the tables.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tupletree.config import describe_options
from tupletree.routes.document import CODES, document_keys

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted(ROOT.glob("docs/**/*.md")),
]

_BLOCK = re.compile(r"^```(?P<language>\w*)(?: title=(?P<title>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
_ROUTE_KEYS = re.compile(r"(?<=<!-- route keys -->\n).*?(?=<!-- end of route keys -->)", re.DOTALL)
_ROUTE_FAULTS = re.compile(r"(?<=<!-- route faults -->\n).*?(?=<!-- end of route faults -->)", re.DOTALL)
_OPTIONS = re.compile(r"(?<=<!-- options -->\n).*?(?=<!-- end of options -->)", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block. `title` is the file that a reader is to save it as; empty if none."""

    language: str
    title: str
    text: str
    line: int


def blocks_of(document: Path) -> Iterator[Block]:
    text = document.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        yield Block(found["language"], found["title"] or "", found["text"], line)


def links_of(document: Path) -> Iterator[str]:
    """Where the links lead, without code blocks, which may hold what looks like one."""
    for found in _LINK.finditer(_BLOCK.sub("", document.read_text(encoding="utf-8"))):
        yield found["target"]


def options_table() -> str:
    rows = ["| Option | Default | Unit | Values | Meaning | Storm's key |", "|---|---|---|---|---|---|"]
    for option in describe_options():
        storm = f"`{option.storm_alias}`" if option.storm_alias else ""
        rows.append(
            f"| `{option.name}` | {option.default} | {option.unit} | {option.expected} | {option.meaning} | {storm} |"
        )
    return "\n".join(rows) + "\n"


def options_in(document: Path) -> str:
    found = _OPTIONS.search(document.read_text(encoding="utf-8"))
    return found[0] if found else ""


def write_options(document: Path) -> None:
    table = options_table()
    document.write_text(_OPTIONS.sub(lambda _: table, document.read_text(encoding="utf-8")), encoding="utf-8")


def route_keys() -> str:
    """A row for each key of a pipeline's document."""
    rows = ["| Key | Type | Default | Meaning |", "|---|---|---|---|"]
    for path, kind, default, meaning in document_keys():
        rows.append(f"| `{path}` | {kind} | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def route_faults() -> str:
    rows = ["| Code | What is wrong |", "|---|---|", *(f"| `{code}` | {meaning} |" for code, meaning in CODES.items())]
    return "\n".join(rows) + "\n"


def routes_in(document: Path) -> tuple[str, str]:
    text = document.read_text(encoding="utf-8")
    keys, faults = _ROUTE_KEYS.search(text), _ROUTE_FAULTS.search(text)
    return keys[0] if keys else "", faults[0] if faults else ""


def write_routes(document: Path) -> None:
    text = _ROUTE_KEYS.sub(lambda _: route_keys(), document.read_text(encoding="utf-8"))
    document.write_text(_ROUTE_FAULTS.sub(lambda _: route_faults(), text), encoding="utf-8")


if __name__ == "__main__":
    write_options(ROOT / "docs" / "operations.md")
    write_routes(ROOT / "docs" / "routes.md")
    sys.exit(0)
