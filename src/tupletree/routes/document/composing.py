"""YAML text → nodes with places, and every fault on the way.

Reads the events of PyYAML's parser and nothing of its constructors: no tag is ever executed. Owns what the format takes
of YAML. What an alias stands for is one node however often it is named, and counts each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import yaml

from tupletree.routes.document.environment import substitute
from tupletree.routes.document.faults import FaultList
from tupletree.routes.document.nodes import Entry, ListNode, MappingNode, Node, Place, ScalarNode, Step
from tupletree.routes.document.words import AmbiguousWordError, read_word
from tupletree.texts import is_encodable

MAX_NODES = 100_000
MAX_DEPTH = 100
FILE_TAG = "!file"
MAY_BE_OFF = {("lineage",), ("lineage", "level")}
"""Where the word `off` is a value of the format, and needs no quotes."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STARTS = (yaml.MappingStartEvent, yaml.SequenceStartEvent)

Path: TypeAlias = "tuple[Step, ...]"
ReadFile: TypeAlias = Callable[[str, Place, Path], "str | None"]
"""Name, as a `!file` says it → its text; None if it cannot be read, which is noted already."""


class _StopError(Exception):
    """Nothing more can be said of this text."""


def compose(
    text: str, file: str, environ: Mapping[str, str], faults: FaultList, read_file: ReadFile
) -> MappingNode | None:
    """Read a text.

    Args:
        text: YAML.
        file: its name in places.
        environ: for `${NAME}`.
        faults: gets what is found.
        read_file: gives the text of a `!file`.

    Returns:
        The document; None if there is none that could be judged further.
    """
    try:
        return _Composer(text, file, environ, faults, read_file).document()
    except _StopError:
        return None


class _Composer:
    """One text. Recursive: the depth is limited."""

    def __init__(
        self, text: str, file: str, environ: Mapping[str, str], faults: FaultList, read_file: ReadFile
    ) -> None:
        self.file = file
        self.environ = environ
        self.faults = faults
        self.read_file = read_file
        self.events = self._events(text)
        self.anchors: dict[str, tuple[Node, int] | None] = {}
        self.nodes = 0

    def document(self) -> MappingNode | None:
        """The text as a whole."""
        top: Node | None = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if top is not None:
                    self._refuse(
                        "R102", self._place(event), "a second document in one file", expected="one: see include"
                    )
                top = self._node(next(self.events), ())
        if isinstance(top, MappingNode):
            return top
        got = "nothing" if not isinstance(top, ListNode) and not getattr(top, "raw", "") else "a list or a single value"
        place = Place(self.file, 1, 1) if top is None else top.place
        self.faults.add("R102", place, (), "the document is no mapping", got=got, expected="keys and values")
        return None

    def _events(self, text: str) -> Iterator[Any]:
        try:
            yield from yaml.parse(text, Loader=_Loader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = Place(self.file, mark.line + 1, mark.column + 1) if mark else Place(self.file)
            got = ": ".join(filter(None, [error.context, error.problem]))
            lines = text.splitlines()[max(place.line - 2, 0) : place.line]
            self._refuse("R101", place, "this is no YAML", got=got, next_step=_grammar_hint(lines, got))
        except (yaml.YAMLError, UnicodeError) as error:
            self._refuse("R101", Place(self.file), "this is no YAML", got=str(error).partition("\n")[0])

    def _refuse(self, code: str, place: Place, what: str, path: Path = (), **more: str) -> NoReturn:
        self.faults.add(code, place, path, what, **more)
        raise _StopError

    def _place(self, event: Any) -> Place:
        return Place(self.file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _count(self, place: Place, path: Path, more: int = 1) -> None:
        self.nodes += more
        if self.nodes > MAX_NODES:
            what = f"more than {MAX_NODES:,} nodes, counting what aliases repeat"
            self._refuse("R106", place, what, path, next_step="say it without aliases, or in several documents")

    def _node(self, event: Any, path: Path) -> Node:
        place = self._place(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor, place, path)
        before = self.nodes
        self._count(place, path)
        if isinstance(event, yaml.ScalarEvent):
            node: Node = self._scalar(event, place, path)
        else:
            if len(path) >= MAX_DEPTH:
                self._refuse("R107", place, f"nested deeper than {MAX_DEPTH} levels", path[:5])
            if event.anchor:
                self.anchors[event.anchor] = None
            node = self._mapping(place, path) if isinstance(event, yaml.MappingStartEvent) else self._list(place, path)
            if event.tag is not None:
                self._tag_fault(event.tag, place, path)
                node.faulty = True
        if event.anchor:
            self.anchors[event.anchor] = node, self.nodes - before
        return node

    def _alias(self, name: str | None, place: Place, path: Path) -> Node:
        if name is None or name not in self.anchors:
            self.faults.add("R110", place, path, "no anchor of this name comes before", got=f"*{name}")
        elif (known := self.anchors[name]) is None:
            self.faults.add("R106", place, path, "an alias within what it stands for", got=f"*{name}")
        else:
            node, size = known
            self._count(place, path, size)
            return node
        return ScalarNode(place, raw=f"*{name}", faulty=True)

    def _list(self, place: Place, path: Path) -> ListNode:
        node = ListNode(place)
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            node.items.append(self._node(event, (*path, len(node.items))))
        return node

    def _mapping(self, place: Place, path: Path) -> MappingNode:
        node = MappingNode(place)
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key_place = self._place(event)
            before = len(self.faults)
            key = self._key(event, key_place, path)
            faulty = len(self.faults) > before
            value = self._node(next(self.events), (*path, key or "?"))
            if key is None:
                node.faulty = True
            elif (first := node.entries.get(key)) is not None:
                at = f"it is at line {first.place.line} already"
                self.faults.add("R103", key_place, (*path, key), "the key is there twice", got=key, next_step=at)
            else:
                node.entries[key] = Entry(key_place, value, faulty=faulty)
        return node

    def _key(self, event: Any, place: Place, path: Path) -> str | None:
        """The key's text; None if it is none."""
        if not isinstance(event, yaml.ScalarEvent):
            self._node(event, (*path, "?"))
            got = "a mapping or a list" if isinstance(event, _STARTS) else f"the alias *{event.anchor}"
            hint = "put a value that begins with { or [ in quotes"
            self.faults.add("R109", place, path, "a key must be text", got=got, next_step=hint)
            return None
        self._count(place, path)
        text: str = event.value
        if event.anchor:
            self.anchors[event.anchor] = ScalarNode(place, text, text, quoted=True), 1
        if event.tag is not None:
            self._tag_fault(event.tag, place, path)
        elif event.implicit[0]:
            if text == "<<":
                hint = "say what is common to routes in defaults"
                self.faults.add("R104", place, path, "merge keys are not supported", got="<<", next_step=hint)
                return None
            self._word(text, place, (*path, text), key=True)
        if "${" in text:
            self.faults.add("R112", place, (*path, text), "keys do not come from the environment", got=text)
        return text

    def _scalar(self, event: Any, place: Place, path: Path) -> ScalarNode:
        node = ScalarNode(place, event.value, event.value, quoted=not event.implicit[0])
        if event.tag is not None and event.tag != FILE_TAG:
            self._tag_fault(event.tag, place, path)
            node.faulty = True
            return node
        found = substitute(event.value, self.environ)
        node.variables, node.text = found.variables, found.text
        for name in found.missing:
            hint = f"set it, or give a default: ${{{name}:-default}}"
            self.faults.add("R111", place, path, f"the variable {name} is not set", got=f"${{{name}}}", next_step=hint)
        unreadable = not is_encodable(found.text)
        if unreadable:
            got = ", ".join(f"${{{name}}}" for name in found.variables)
            self.faults.add("R111", place, path, "the value of a variable is no UTF-8", got=got)
        for text in found.malformed:
            expected = "${NAME} or ${NAME:-default}, or $${ for the characters themselves"
            self.faults.add(
                "R112", place, path, "this names no variable of the environment", got=text, expected=expected
            )
        node.value = found.text
        node.faulty = bool(found.missing or found.malformed or unreadable)
        if event.tag == FILE_TAG:
            node.quoted = True
            node.file = found.text
            node.value = None if node.faulty else self.read_file(found.text, place, path)
            node.faulty = node.value is None
        elif not node.quoted and not node.faulty and not (found.text == "off" and path in MAY_BE_OFF):
            node.value, node.faulty = self._word(found.text, place, path)
        return node

    def _word(self, text: str, place: Place, path: Path, *, key: bool = False) -> tuple[Any, bool]:
        """What a word without quotes stands for, and whether it is faulty."""
        try:
            value = read_word(text)
        except AmbiguousWordError as error:
            self.faults.add("R108", place, path, str(error), got=text, expected=error.expected)
            return text, True
        if key and not isinstance(value, str):
            self.faults.add("R109", place, path, "a key must be text", got=text or "nothing", expected=f'"{text}"')
        return value, False

    def _tag_fault(self, tag: str, place: Place, path: Path) -> None:
        shown = tag.replace("tag:yaml.org,2002:", "!!")
        hint = "quotes make text of anything" if shown.startswith("!!") else ""
        what = "tags are not supported, and never executed"
        self.faults.add("R105", place, path, what, got=shown, expected="no tag, or !file PATH", next_step=hint)


def _grammar_hint(lines: Sequence[str], got: str) -> str:
    """What is probably wrong near the place where YAML's grammar is broken; `lines` are the last ones before it."""
    last = lines[-1] if lines else ""
    if "\t" in last[: len(last) - len(last.lstrip())]:
        return "this line begins with a tab: indent it with spaces"
    for opening, name in (("${", "${NAME}"), ("{{", "{{ … }}")):
        if any(opening in line for line in lines):
            return f"within {{ }} and [ ] a value with {name} must be in quotes"
    if "did not find expected key" in got or "mapping values are not allowed" in got:
        return "look at the indentation here and just above: keys of one mapping begin in one column"
    return ""
