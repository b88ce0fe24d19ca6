"""The example of the design: it type-checks as it stands, builds, and its functions stay functions."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tupletree import Emit, EndOfInput, KeyedState, Sink, Spout, Topology, bolt
from tupletree.topology.changes.fingerprint import differences, fingerprint
from tupletree.topology.components import SinkBatch
from tupletree.topology.model import BoltSpec
from tupletree.topology.render import to_dot, to_mermaid, to_text


class Line(msgspec.Struct, frozen=True, gc=False):
    text: str


class Word(msgspec.Struct, frozen=True, gc=False):
    word: str


class Bad(msgspec.Struct, frozen=True, gc=False):
    text: str
    reason: str


class Count(msgspec.Struct, frozen=True, gc=False):
    word: str
    count: int


class Lines(Spout[Line]):
    def __init__(self, *texts: str) -> None:
        self._texts = list(texts)

    def next(self) -> Emit[Line]:
        if not self._texts:
            raise EndOfInput
        return Emit(Line(self._texts.pop(0)), len(self._texts))


class CarryOver(Sink[Count | Bad]):
    def __init__(self) -> None:
        self.rows: list[Count | Bad] = []

    def write(self, batch: SinkBatch[Count | Bad]) -> None:
        self.rows += batch.rows


class Cell:
    """A key's value, for calling the bolt by hand."""

    value: int = 0
    key: object = None

    def clear(self) -> None:
        self.value = 0


@bolt
def split(line: Line) -> Iterator[Word | Bad]:
    if not line.text:
        yield Bad(line.text, "empty")
    for word in line.text.split():
        yield Word(word)


@bolt(state=int)
def count(word: Word, total: KeyedState[int]) -> Count:
    total.value += 1
    return Count(word.word, total.value)


def topology(*texts: str, parallelism: int = 2) -> Topology:
    t = Topology("word-count")
    lines = t.spout("lines", Lines(*texts))
    words = t.bolt("split", split, parallelism=parallelism).shuffle(lines)
    counts = t.bolt("count", count, parallelism=2).fields(words.stream(Word), "word")
    t.sink("out", CarryOver()).shuffle(counts)
    t.sink("bad", CarryOver()).shuffle(words.stream(Bad))
    return t


def test_decorated_functions_stay_callable() -> None:
    words: list[Word | Bad] = list(split(Line("a b")))
    assert words == [Word("a"), Word("b")]
    cell = Cell()
    assert count(Word("a"), cell) == Count("a", 1)
    assert count(Word("a"), total=cell).count == 2


def test_the_hints_become_the_wiring() -> None:
    spec = topology("a b").build()
    assert list(spec.components) == ["lines", "split", "count", "out", "bad"]
    assert list(spec.components["split"].outputs) == ["Word", "Bad"]
    splitter, counter = spec.components["split"].body, spec.components["count"].body
    assert isinstance(splitter, BoltSpec)
    assert isinstance(counter, BoltSpec)
    assert (splitter.returns, splitter.input_types, splitter.value_parameter) == ("many", (Line,), "line")
    assert (counter.returns, counter.inject) == ("value", {"total": "state"})
    assert counter.state is not None
    assert counter.state.default() == 0
    assert spec.components["count"].inputs[0].grouping.fields == ("word",)
    assert spec.components["out"].parallelism is None
    assert [consumer.name for consumer, _ in spec.consumers("split", "Bad")] == ["bad"]


def test_text_shows_kinds_tasks_streams_and_groupings() -> None:
    assert to_text(topology().build()) == (
        "topology word-count\n"
        "spout lines ×1 → Line\n"
        "bolt split ×2 → Word, Bad\n"
        "  ← lines.Line  shuffle\n"
        "bolt count ×2 with keyed state → Count\n"
        "  ← split.Word  fields(word)\n"
        "sink out\n"
        "  ← count.Count  shuffle\n"
        "sink bad\n"
        "  ← split.Bad  shuffle\n"
    )


def test_dot_is_stable() -> None:
    assert to_dot(topology().build()) == (
        'digraph "word-count" {\n'
        "  rankdir=LR;\n"
        '  "lines" [label="lines ×1", shape=cds];\n'
        '  "split" [label="split ×2", shape=box];\n'
        '  "count" [label="count ×2", shape=box];\n'
        '  "out" [label="out", shape=cylinder];\n'
        '  "bad" [label="bad", shape=cylinder];\n'
        '  "lines" -> "split" [label="Line\\nshuffle"];\n'
        '  "split" -> "count" [label="Word\\nfields(word)"];\n'
        '  "count" -> "out" [label="Count\\nshuffle"];\n'
        '  "split" -> "bad" [label="Bad\\nshuffle"];\n'
        "}\n"
    )


def test_mermaid_is_stable() -> None:
    assert to_mermaid(topology().build()) == (
        "flowchart LR\n"
        '  n0(["lines ×1"])\n'
        '  n1["split ×2"]\n'
        '  n2["count ×2"]\n'
        '  n3[("out")]\n'
        '  n4[("bad")]\n'
        '  n0 -->|"Line<br/>shuffle"| n1\n'
        '  n1 -->|"Word<br/>fields(word)"| n2\n'
        '  n2 -->|"Count<br/>shuffle"| n3\n'
        '  n1 -->|"Bad<br/>shuffle"| n4\n'
    )


def test_a_notebook_is_given_a_drawing() -> None:
    bundle = topology()._repr_mimebundle_(include=None, exclude=None)
    assert bundle["text/vnd.mermaid"] == to_mermaid(topology().build())
    assert bundle["text/plain"].startswith("topology word-count\n")


def test_fingerprints_are_equal_for_equal_topologies_and_survive_json() -> None:
    first, second = fingerprint(topology("a").build()), fingerprint(topology("b").build())
    assert first == second
    assert differences(msgspec.json.decode(msgspec.json.encode(first)), second) == []


def test_fingerprints_do_not_depend_on_how_many_executors_serve_a_component() -> None:
    one, two = Topology("t"), Topology("t")
    for each, executors in ((one, None), (two, 1)):
        lines = each.spout("lines", Lines(), executors=executors)
        each.bolt("split", split, unconsumed=(Word, Bad), executors=executors).shuffle(lines)
    assert fingerprint(one.build()) == fingerprint(two.build())


def test_fingerprints_name_what_changed() -> None:
    before = fingerprint(topology().build())
    changed = topology(parallelism=3)
    more = changed.spout("more", Lines())
    changed.bolt("again", split, unconsumed=(Word, Bad)).fields(more, "text")
    after = fingerprint(changed.build())
    assert list(map(str, differences(before, after))) == [
        "component 'more' was added",
        "component 'again' was added",
        "split: parallelism changed from 2 to 3",
    ]
    assert list(map(str, differences(after, before)))[:2] == [
        "component 'more' was removed",
        "component 'again' was removed",
    ]


def test_fingerprints_tell_groupings_fields_and_state_apart() -> None:
    before = fingerprint(topology().build())
    after = msgspec.json.decode(msgspec.json.encode(before))
    after["count"] |= {"state": "str", "inputs": {"split.Word": "shuffle()"}}
    after["count"]["streams"]["Count"] = "Count(word: str)"
    assert [str(one).partition(" changed")[0] for one in differences(before, after)] == [
        "count: stream 'Count'",
        "count: input 'split.Word'",
        "count: state",
    ]
