"""Files → one tree of nodes: the document, what it includes, and the texts that `!file` names.

Owns which files are read, how included documents are laid under the one that includes them, and `defaults`. Paths are
relative to the file that names them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tupletree.routes.document.composing import compose
from tupletree.routes.document.faults import FaultList
from tupletree.routes.document.nodes import Entry, ListNode, MappingNode, Node, Place, ScalarNode, Step, below, shown

MAX_FILE_BYTES = 5_000_000
NAMES_ARE_UNIQUE = ("routes", "queues")
"""Sections whose names may be in one file only."""


@dataclass
class ReadDocument:
    """What was read.

    Attributes:
        root: the document with all that it includes; None if the first file could not be read.
        sources: file → its text, in the order of reading.
        complete: whether every file could be read; if not, what is missing says nothing.
    """

    root: MappingNode | None = None
    sources: dict[str, str] = field(default_factory=dict)
    complete: bool = True


def read_document(file: str, environ: Mapping[str, str], faults: FaultList, text: str | None = None) -> ReadDocument:
    """Read a file and all that it includes.

    Args:
        file: path of the document; only its name in places, where `text` is given.
        environ: for `${NAME}`.
        faults: gets what is found.
        text: the document itself.
    """
    reader = _Reader(environ, faults)
    if text is None:
        text = reader.text_of(file, "R100", Place(file), (), "the document cannot be read")
    if text is not None:
        reader.reading.root = reader.document(file, text, ())
    reader.reading.complete = reader.reading.complete and reader.reading.root is not None
    return reader.reading


class _Reader:
    def __init__(self, environ: Mapping[str, str], faults: FaultList) -> None:
        self.environ = environ
        self.faults = faults
        self.reading = ReadDocument()

    def text_of(self, file: str, code: str, place: Place, path: tuple[Step, ...], what: str) -> str | None:
        """A file's text; None, with the fault noted, if there is none."""
        try:
            if place.line and Path(file).exists() and not Path(file).is_file():
                raise ValueError("no regular file")  # noqa: TRY301 - told as all that keeps a file from being read
            with Path(file).open("rb") as opened:
                data = opened.read(MAX_FILE_BYTES + 1)
            if len(data) > MAX_FILE_BYTES:
                self.faults.add(code, place, path, what, got=f"{file}: more than {MAX_FILE_BYTES:,} bytes")
                return None
            return data.decode("utf-8-sig")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            expected = "a file in UTF-8" + (f" below {Path(file).parent}" if place.line else "")
            self.faults.add(code, place, path, what, got=f"{file}: {reason}", expected=expected)
            return None

    def document(self, file: str, text: str, including: tuple[str, ...]) -> MappingNode | None:
        """A document with what it includes below it."""
        self.reading.sources[file] = text
        folder = Path(file).parent

        def read_file(name: str, place: Place, path: tuple[Step, ...]) -> str | None:
            return self.text_of(_below(folder, name), "R113", place, path, "the file cannot be read")

        root = compose(text, file, self.environ, self.faults, read_file)
        if root is None:
            self.reading.complete = False
            return None
        entry = root.entries.pop("include", None)
        if entry is None:
            return root
        for node, path in self._included(entry.node):
            name = node.value
            if not isinstance(name, str) or not name:
                if not node.faulty:
                    self.faults.add("R203", node.place, path, "wrong type", got=shown(node), expected="a file's path")
                continue
            base = self._include(_below(folder, name), node.place, path, (*including, file))
            if base is not None:
                self._names_in_both(base, root)
                root = _together(base, root)
        return root

    def _included(self, node: Node) -> list[tuple[ScalarNode, tuple[Step, ...]]]:
        if isinstance(node, ScalarNode):
            return [(node, ("include",))]
        found: list[tuple[ScalarNode, tuple[Step, ...]]] = []
        items = enumerate(node.items) if isinstance(node, ListNode) else [("", node)]
        for position, item in items:
            path: tuple[Step, ...] = ("include", position) if isinstance(node, ListNode) else ("include",)
            if isinstance(item, ScalarNode):
                found.append((item, path))
            else:
                self.faults.add("R203", item.place, path, "wrong type", got=shown(item), expected="a file's path")
        return found

    def _include(
        self, file: str, place: Place, path: tuple[Step, ...], including: tuple[str, ...]
    ) -> MappingNode | None:
        """A document that another one includes; None if it has been read before, or cannot be."""
        same = [other for other in including if _same(other, file)]
        if same:
            chain = " → ".join([*including[including.index(same[0]) :], file])
            self.faults.add("R115", place, path, "the file includes itself", got=chain)
            self.reading.complete = False
            return None
        if any(_same(other, file) for other in self.reading.sources):
            return None
        text = self.text_of(file, "R114", place, path, "the file cannot be included")
        if text is None:
            self.reading.complete = False
            return None
        return self.document(file, text, including)

    def _names_in_both(self, base: MappingNode, over: MappingNode) -> None:
        for section in NAMES_ARE_UNIQUE:
            first, second = base.entries.get(section), over.entries.get(section)
            if first is None or second is None:
                continue
            if not isinstance(first.node, MappingNode) or not isinstance(second.node, MappingNode):
                continue
            for name, entry in second.node.entries.items():
                if (other := first.node.entries.get(name)) is not None:
                    hint = f"it is in {other.place}, too"
                    what = f"two files define this {section[:-1]}"
                    self.faults.add("R116", entry.place, (section, name), what, got=name, next_step=hint)


def _together(base: MappingNode, over: MappingNode) -> MappingNode:
    """An included document below the one that includes it. Tests are put one after the other."""
    merged = below(base, over, inherited=False)
    tests = [entry.node for one in (base, over) if (entry := one.entries.get("tests")) is not None]
    if len(tests) == 2 and all(isinstance(one, ListNode) for one in tests):
        both = ListNode(tests[1].place, [item for one in tests if isinstance(one, ListNode) for item in one.items])
        merged.entries["tests"] = Entry(over.entries["tests"].place, both)
    return merged


def _below(folder: Path, name: str) -> str:
    return os.path.normpath(folder / Path(name).expanduser())


def _same(one: str, other: str) -> bool:
    return one == other or os.path.realpath(one) == os.path.realpath(other)
