"""Reading the documents: their code blocks, their links, and the tables and pages that are generated.

`python -m tests.docs.documents` writes these.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tupletree.config import describe_options
from tupletree.routes.document import CODES, document_keys

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tupletree"
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


def committed_modules() -> list[Path]:
    """Modules of the package, relative to it, that belong to a commit."""
    listed = subprocess.run(
        ["git", "ls-files", "--", "src/tupletree/*.py"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    paths = [ROOT / line for line in listed.splitlines()]
    return [path.relative_to(PACKAGE) for path in paths if path.exists() and not path.name.startswith("__")]


def modules_page() -> str:
    """The page of all modules: a table per folder, with what the first line of each docstring says."""
    lines = [
        "# Modules",
        "",
        "Every module of the package, with the first line of its docstring; [ARCHITECTURE.md](../ARCHITECTURE.md) says",
        "how they belong together. This page is generated: `python -m tests.docs.documents`.",
    ]
    folder = None
    for path in sorted(committed_modules(), key=lambda path: (path.parent.as_posix(), path.name)):
        if path.parent != folder:
            folder = path.parent
            name = (Path("tupletree") / folder).as_posix()
            lines += ["", f"## {name}", "", _first_line(PACKAGE / folder / "__init__.py"), ""]
            lines += ["| Module | What it is |", "|---|---|"]
        lines.append(f"| `{path.stem}` | {_first_line(PACKAGE / path)} |")
    return "\n".join(lines) + "\n"


def _first_line(module: Path) -> str:
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    (ROOT / "docs" / "modules.md").write_text(modules_page(), encoding="utf-8")
    write_options(ROOT / "docs" / "operations.md")
    write_routes(ROOT / "docs" / "routes.md")
    sys.exit(0)
