"""Faults of a document: what each code means, and how a fault is shown to people and programs.

Owns the codes, which never change their meaning. Refuses to find faults: the other modules of this room do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tupletree.errors import ConfigError, Finding
from tupletree.escaping import escape_block
from tupletree.routes.document.nodes import Place, Step, path_text

CODES: dict[str, str] = {
    "R100": "the file cannot be read: not there, no UTF-8, or more than 5 MB",
    "R101": "no YAML: the text breaks YAML's grammar",
    "R102": "a file must hold one YAML document, which is a mapping",
    "R103": "a key is there twice in one mapping",
    "R104": "merge keys (`<<`) are not part of the format: use `defaults`",
    "R105": "a YAML tag other than `!file`; no tag is ever executed",
    "R106": "aliases make more than 100,000 nodes, or an alias holds itself",
    "R107": "nested deeper than 100 levels",
    "R108": "a word that readers of YAML take differently (`on`, `no`, `12:30`, `010`, `0b1`), or a number too large",
    "R109": "a key that is no text: a number, `true`, `null`, a list or a mapping",
    "R110": "an alias (`*name`) without its anchor (`&name`) before it",
    "R111": "a variable of the environment that is not set and has no default, or is no UTF-8",
    "R112": "`${` without a name and a closing brace, or in a key",
    "R113": "the file of a `!file` cannot be read",
    "R114": "the file of an `include` cannot be read",
    "R115": "a file includes itself, directly or through others",
    "R116": "two files say the same thing: a route, a queue",
    "R201": "an unknown key",
    "R202": "a key is missing",
    "R203": "a value of the wrong type",
    "R204": "a number, `true`, `false` or `null` where a name or a text is meant",
    "R205": "a value that is not allowed",
    "R206": "a name that is not allowed",
    "R301": "an unknown adapter",
    "R302": "an adapter that cannot be used: importing it fails, or it is none",
    "R303": "a batch that is larger than what a route may hold (10,000 messages)",
    "R304": "an adapter sends to a queue that is none of its route's outbound queues",
    "R305": "two adapters of a route have one name",
    "R401": "the URL of a queue or database cannot be used: an unknown scheme, a wrong option",
    "R402": "two routes read one queue",
    "R403": "a route sends to a queue that no route reads and that is not declared",
    "R404": "names that differ only in case",
    "R405": "a route that does not exist",
    "R406": "a dead letter queue that its own route reads",
    "R407": "a completion event that would start an execution",
    "R408": "a route names an outbound queue twice",
    "R409": "a test names a route, an adapter or a queue that is not there, or as many outcomes as it has no inputs",
    "R410": "two tests have one name",
}
"""Code → what it stands for. R1: reading, R2: keys and values, R3: adapters, R4: the pipeline as a whole."""


@dataclass(frozen=True)
class Fault(Finding):
    """One fault of a document.

    Attributes:
        code: see `CODES`.
        file: as it was named.
        line, column: in the file, from 1; 0 where a file as a whole is meant.
        path: of the key or value, such as `routes.convert.adapters[0].config`.
        nearest: what was probably meant.
    """

    code: str = ""
    file: str = ""
    line: int = 0
    column: int = 0
    path: str = ""
    nearest: str = ""

    def __str__(self) -> str:
        at = f" (at {self.path})" if self.path else ""
        head = escape_block(f"{self.where}: {self.code} {self.what}{at}")
        meant = f"did you mean {self.nearest}?" if self.nearest else ""
        following = "; ".join(filter(None, (meant, self.next_step)))
        parts = (("got", self.got), ("expected", self.expected), ("next", following))
        return "\n".join([head, *(f"  {label}: {escape_block(text)}" for label, text in parts if text)])

    def as_dict(self) -> dict[str, Any]:
        """For programs; every key is always there."""
        return {name: value for name, value in asdict(self).items() if name != "where"}  # it says file, line, column


class DocumentError(ConfigError):
    """A document is wrong.

    Attributes:
        faults: every fault, by file, line and column.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        count = "a fault" if len(faults) == 1 else f"{len(faults)} faults"
        super().__init__(f"the document has {count}", findings=faults)
        self.faults = tuple(faults)


class FaultList:
    """What was found so far. The same fault at the same place counts once, however it was reached."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, Place, str, str], Fault] = {}

    def add(
        self,
        code: str,
        place: Place,
        path: Sequence[Step],
        what: str,
        *,
        got: str = "",
        expected: str = "",
        nearest: str = "",
        next_step: str = "",
    ) -> None:
        """Note a fault."""
        fault = Fault(
            what,
            str(place),
            got,
            expected,
            next_step,
            code=code,
            file=place.file,
            line=place.line,
            column=place.column,
            path=path_text(path),
            nearest=nearest,
        )
        self._found.setdefault((code, place, what, got), fault)

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Fault]:
        """By file, in the order in which files were first named, and place."""
        files = {fault.file: None for fault in self._found.values()}
        order = {file: number for number, file in enumerate(files)}
        return iter(sorted(self._found.values(), key=lambda one: (order[one.file], one.line, one.column, one.code)))

    def refuse(self) -> None:
        """Raise them, if there are any.

        Raises:
            DocumentError: there are.
        """
        if self._found:
            raise DocumentError([*self])
