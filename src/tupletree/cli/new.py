"""`tupletree new`: a folder with a topology that runs, its test and a README."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from tupletree.errors import ConfigError

_TOPOLOGY = '''\
"""{name}: count the words of text files, and know the outcome of every line."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from tupletree import KeyedState, Topology, bolt
from tupletree.sinks import jsonl
from tupletree.sources import Line, text_lines


class Word(msgspec.Struct, frozen=True, gc=False):
    text: str


class Count(msgspec.Struct, frozen=True, gc=False):
    word: str
    count: int


@bolt
def split(line: Line) -> Iterator[Word]:
    """An exception fails the line: it is tried again, and after the last attempt it is a dead letter."""
    for word in line.text.split():
        if not word.isprintable():
            raise ValueError(f"cannot read {{word!r}}")
        yield Word(word.lower())


@bolt(state=int)
def count(word: Word, total: KeyedState[int]) -> Count:
    """The state belongs to the word, because the words are grouped by `text`."""
    total.value += 1
    return Count(word.text, total.value)


def topology(paths: list[Path] = [Path(__file__).with_name("lines.txt")], out: Path = Path("out")) -> Topology:
    """`--set paths=a.txt,b.txt --set out=DIR` binds these."""
    t = Topology("{name}")
    lines = t.spout("lines", text_lines(paths))
    words = t.bolt("split", split, parallelism=2).shuffle(lines)
    counts = t.bolt("count", count, parallelism=2).fields(words, "text")
    t.sink("counts", jsonl(out / "counts")).shuffle(counts)
    return t
'''

_TEST = '''\
"""Bolts are functions and are tested as functions; the topology runs as a whole, on virtual time and without Spark."""

import pytest

import {module}
from tupletree import testing
from tupletree.sources import Line


def test_a_line_is_split_into_lower_case_words() -> None:
    assert list({module}.split(Line("To be"))) == [{module}.Word("to"), {module}.Word("be")]


def test_a_line_that_cannot_be_read_fails() -> None:
    with pytest.raises(ValueError, match="cannot read"):
        list({module}.split(Line("be \\x00")))


def test_words_are_counted_and_a_line_that_fails_is_dead() -> None:
    lines = [Line("to be"), Line("or not to"), Line("be \\x00")]
    run = testing.run({module}.topology(), {{"lines": lines}})
    assert {module}.Count("to", 2) in run.outputs["counts"]
    assert [message.acked for message in run.messages["lines"]] == [True, True, False]
    assert run.dead[0].message_id == 2
'''

_README = """\
# {name}

    tupletree check {module}.py
    tupletree run {module}.py --set out=out
    tupletree dead list
    pytest

The counts are in `out/counts`. A line that fails is tried again; what fails for good is listed by
`tupletree dead list`, explained by `tupletree why MESSAGE`, and processed again by `tupletree dead replay MESSAGE`.
"""

_LINES = """\
To be, or not to be, that is the question
Whether 'tis nobler in the mind to suffer
The slings and arrows of outrageous fortune
"""


def new_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the topology and its folder, as in word-count.")],
) -> None:
    """Make a folder NAME with a topology that runs, its test, sample input and a README."""
    module = make_folder(name, "topology", _files)
    print(f"next: cd {shlex.quote(name)} && tupletree run {module}.py")


def _files(name: str, module: str) -> dict[str, str]:
    values = {"name": name, "module": module}
    return {
        f"{module}.py": _TOPOLOGY.format(**values),
        f"test_{module}.py": _TEST.format(**values),
        "README.md": _README.format(**values),
        "lines.txt": _LINES,
    }


def make_folder(name: str, kind: str, files: Callable[[str, str], Mapping[str, str]]) -> str:
    """Make a folder with files, and print their names.

    Args:
        name: of the folder, as typed.
        kind: what has the folder's name.
        files: folder's name, module's name → file → text.

    Returns:
        The name of the module in it.

    Raises:
        ConfigError: the name is not allowed, or there is such a folder.
    """
    from tupletree.cli.target import check_module_name
    from tupletree.topology.check import name_fault

    folder = Path(name)
    if fault := name_fault(kind, folder.name, name):
        raise ConfigError(fault.what, where=name, expected=fault.expected, next_step=fault.next_step)
    module = folder.name.replace("-", "_").replace(".", "_")
    check_module_name(module, (folder / f"{module}.py").absolute())
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError("this exists already", where=name, next_step="choose another name") from None
    for file, text in files(folder.name, module).items():
        (folder / file).write_text(text, encoding="utf-8")
        print(folder / file)
    return module
