"""What the documents promise: each of their sentences, and the tests that show that it is so.

A list beside this module (`promises/semantics.txt`) has every sentence of a document, and below it, indented, either
tests (`folder/test_file.py::test_name`, below tests/) or why there is none: `says nothing: KIND`.

`python -m tests.docs.sentences` adds new sentences to the lists, with a `?` in the place of tests, and removes what is
gone.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tupletree.testing.conformance import SCENARIOS

ROOT = Path(__file__).resolve().parents[2]
LISTED = ["semantics", "operations", "SECURITY"]
"""Documents whose sentences are listed: of docs/, and those in capitals beside it."""

KINDS = {
    "definition": "says what a word means, or names what is described below",
    "advice": "says what a user should do, or whose decision something is",
    "link": "says where more is written",
    "reason": "says why something is as it is",
    "lead": "begins a list or a table, whose items promise",
    "measured": "a measurement, with the command or date of it",
    "elsewhere": "says what Storm, Spark, Java or an operating system does",
    "not promised": "says what may happen, and so what users must reckon with",
    "untested": "says of itself that no test has run it",
}
"""Why a sentence needs no test."""

_HEADING = re.compile(r"^(#+) (.+)$")
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ")
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_GENERATED = re.compile(r"<!-- options -->.*?<!-- end of options -->", re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_END = re.compile(r"(?<=[.?!])(?<!e\.g\.)(?<!i\.e\.)(?<!cf\.)[\"')]?\s+(?=[\"'(*]*[A-Z`0-9_\[])")
_TEST = re.compile(r"^(?P<path>[\w/]+\.py)::(?P<name>[\w:]+)(?:\[(?P<scenario>[\w-]+)\])?$")


@dataclass(frozen=True)
class Sentence:
    """A sentence of a paragraph or list item, or a row of a table, without line breaks and links."""

    section: str
    text: str


@dataclass(frozen=True)
class Answer:
    """What the list has below a sentence."""

    sentence: str
    lines: tuple[str, ...]


def document(name: str) -> Path:
    return ROOT / ("" if name.isupper() else "docs") / f"{name}.md"


def list_of(name: str) -> Path:
    return Path(__file__).parent / "promises" / f"{name}.txt"


def sentences_of(text: str) -> list[Sentence]:
    """Every sentence of a document in Markdown, but those of headings, code, headers of tables and generated tables."""
    section, found = "", []
    for block in _blocks(_GENERATED.sub("", _CODE.sub("", text))):
        if heading := _HEADING.match(block):
            section = heading[2]
        elif block.startswith("|"):
            found += [Sentence(section, _row(line)) for line in block.splitlines()[2:]]
        else:
            plain = _LINK.sub(r"\1", " ".join(_ITEM.sub("", block).split()))
            found += [Sentence(section, one) for one in _END.split(plain) if one]
    return found


def _blocks(text: str) -> Iterator[str]:
    """Headings, whole tables, list items and paragraphs."""
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        table = line.startswith("|")
        if not line.strip() or _HEADING.match(line) or _ITEM.match(line) or table != bool(block and block[0][0] == "|"):
            if block:
                yield "\n".join(block)
            block = []
        if _HEADING.match(line):
            yield line
        elif line.strip():
            block.append(line)


def _row(line: str) -> str:
    cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
    return " | ".join(" ".join(_LINK.sub(r"\1", cell).split()) for cell in cells)


def answers_in(path: Path) -> list[Answer]:
    """What a list says. Lines that begin with `#` are sections or comments."""
    found: list[Answer] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        if line.startswith("    "):
            last = found.pop()
            found.append(Answer(last.sentence, (*last.lines, line.strip())))
        elif line and not line.startswith("# "):
            found.append(Answer(line, ()))
    return found


def fault_of(line: str) -> str:
    """What is wrong with a line below a sentence; empty if nothing is."""
    if line.startswith("says nothing: "):
        kind = line.removeprefix("says nothing: ")
        return "" if kind in KINDS else f"{kind} is none of {', '.join(KINDS)}"
    if not (named := _TEST.match(line)):
        return "is neither `folder/test_file.py::test_name` nor `says nothing: KIND`"
    if named["name"] not in _tests_in(ROOT / "tests" / named["path"]):
        return "is no test"
    if named["scenario"] and named["scenario"] not in {str(scenario) for scenario in SCENARIOS}:
        return f"{named['scenario']} is no scenario of tupletree.testing.conformance"
    return ""


@functools.cache
def _tests_in(path: Path) -> frozenset[str]:
    """Names of the tests in a file, `Class::test` in a class, without importing it."""
    if not path.is_file():
        return frozenset()
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        for inner in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name.startswith("test_"):
                names.add(f"{node.name}::{inner.name}" if isinstance(node, ast.ClassDef) else inner.name)
            elif isinstance(inner, ast.Assign):  # a state machine of hypothesis: test_x = Machine.TestCase
                names |= {target.id for target in inner.targets if isinstance(target, ast.Name)}
    return frozenset(names)


def update(name: str) -> int:
    """Writes a list anew in the order of its document. Returns how many sentences are to be answered."""
    known = {answer.sentence: answer.lines for answer in answers_in(list_of(name))}
    lines: list[str] = []
    section, open_ones, written = "", 0, set()
    for sentence in sentences_of(document(name).read_text(encoding="utf-8")):
        if sentence.text in written:
            continue
        written.add(sentence.text)
        if sentence.section != section:
            section = sentence.section
            lines += ["", f"# {section}", ""]
        answer = known.get(sentence.text) or ("?",)
        open_ones += answer == ("?",)
        lines += [sentence.text, *(f"    {line}" for line in answer)]
    list_of(name).write_text("\n".join(lines).lstrip() + "\n", encoding="utf-8")
    return open_ones


if __name__ == "__main__":
    for listed in LISTED:
        sys.stdout.write(f"{list_of(listed)}: {update(listed)} sentences with a ? are to be answered\n")
