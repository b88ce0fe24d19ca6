"""Everything that is wrong with a topology is found at once, each fault with a way out."""

from __future__ import annotations

import re
from typing import Any, Generic, TypeVar, get_args

import msgspec
import pytest

from tupletree import (
    Bolt,
    Collector,
    Emit,
    KeyedState,
    Resource,
    Sink,
    Spout,
    Topology,
    TopologyError,
    bolt,
)
from tupletree.errors import Finding
from tupletree.topology.builder import SpoutHandle
from tupletree.topology.check import check
from tupletree.topology.components import SinkBatch
from tupletree.topology.model import ComponentSpec, Grouping, GroupingKind, InputSpec, StreamSpec
from tupletree.topology.streams import Schema

T = TypeVar("T")


class Line(msgspec.Struct, frozen=True):
    text: str = ""
    number: int = 0
    tags: list[str] = []


class Word(msgspec.Struct, frozen=True):
    word: str = ""


class Bad(msgspec.Struct, frozen=True):
    reason: str = ""


class Source(Spout[T], Generic[T]):
    def next(self) -> Emit[T] | None:
        return None


class Lines(Source[Line]): ...


class Anything(Sink[Any]):
    def write(self, batch: SinkBatch[Any]) -> None: ...


class Words(Sink[Word]):
    def write(self, batch: SinkBatch[Word]) -> None: ...


@bolt
def split(line: Line) -> list[Word | Bad]:
    return []


@bolt
def shout(word: Word) -> Word:
    return word


@bolt(state=int)
def count(word: Word | Line, total: KeyedState[int]) -> None: ...


@bolt
def choose(line: Line, out: Collector[Word]) -> None: ...


def started(name: str = "t", **settings: Any) -> tuple[Topology, SpoutHandle]:
    topology = Topology(name, **settings)
    return topology, topology.spout("lines", Lines())


def findings(topology: Topology) -> tuple[Finding, ...]:
    with pytest.raises(TopologyError) as caught:
        topology.build()
    return caught.value.findings


def only(topology: Topology) -> Finding:
    (finding,) = findings(topology)
    return finding


class TestNames:
    @pytest.mark.parametrize("name", ["", "__x", "_x", ".x", "-x", "a b", "a/b", "ä", "x" * 101, "a\n"])
    def test_illegal_names_are_refused(self, name: str) -> None:
        topology, lines = started()
        topology.sink(name, Anything()).shuffle(lines)
        finding = only(topology)
        assert finding.what in {"the sink has an illegal name", "the sink has no name"}
        assert finding.got == repr(name)
        topology, lines = started(name)
        topology.sink("out", Anything()).shuffle(lines)
        assert "topology has" in only(topology).what

    @pytest.mark.parametrize("name", ["a", "9", "a.b_c-d", "x" * 100])
    def test_plain_names_are_fine(self, name: str) -> None:
        topology, lines = started(name)
        topology.sink(name, Anything()).shuffle(lines)
        assert topology.build().name == name

    def test_a_name_is_given_once(self) -> None:
        topology, lines = started()
        topology.sink("lines", Anything()).shuffle(lines)
        finding = only(topology)
        assert finding.what == "the name 'lines' is taken"
        assert re.fullmatch(r"a spout declared before \(.*test_check\.py:\d+\)", finding.got)
        assert re.fullmatch(r"sink 'lines' \(.*test_check\.py:\d+\)", finding.where)


class TestComponents:
    def test_an_empty_topology_has_no_spout(self) -> None:
        assert only(Topology("t")).what == "there is no spout"

    @pytest.mark.parametrize("parallelism", [0, -1, 1.5, True])
    def test_parallelism_is_a_positive_whole_number(self, parallelism: Any) -> None:
        topology, lines = started()
        topology.sink("out", Anything(), parallelism=parallelism).shuffle(lines)
        finding = only(topology)
        assert (finding.what, finding.got) == ("the parallelism is not right", repr(parallelism))

    def test_a_spout_says_what_it_emits(self) -> None:
        topology = Topology("t")
        source = topology.spout("s", Source())
        topology.sink("out", Anything()).shuffle(source)
        assert only(topology).what == "the class of its messages is not known"

    def test_message_types_come_from_the_class_an_alias_or_the_object(self) -> None:
        class Typed(Source[Any]):
            def __init__(self, message_type: type) -> None:
                self.message_type = message_type

        topology = Topology("t")
        for name, spout in {"a": Lines(), "b": Source[Line](), "c": Typed(Line)}.items():
            topology.sink(f"out-{name}", Anything()).shuffle(topology.spout(name, spout))
        spec = topology.build()
        assert [list(spec.components[name].outputs) for name in "abc"] == [["Line"]] * 3

    def test_things_of_the_wrong_kind_are_refused(self) -> None:
        topology = Topology("t")
        wrong: Any = Lines
        topology.spout("class", wrong)
        topology.spout("number", 5)  # type: ignore[arg-type]  # the fault under test, as below
        abstract: Any = Spout
        topology.spout("idle", abstract[Line]()).stream(Line, unconsumed=True)
        bodies: list[Any] = [lambda line: line, Counter(), dict, 7]
        for number, body in enumerate(bodies):
            topology.bolt(f"bolt{number}", body)
        whats = [finding.what for finding in findings(topology) if "no input" not in finding.what]
        assert whats == [
            "this is no spout",
            "this is no spout",
            "the spout has no `next`",
            "a plain function is no bolt",
            "each task needs a bolt of its own",
            "this class is no bolt",
            "this is no bolt",
        ]

    def test_who_replays_is_known(self) -> None:
        topology = Topology("t")
        wrong: Any = "nobody"
        topology.sink("out", Anything()).shuffle(topology.spout("s", Lines(), replay=wrong))
        assert only(topology).expected == "replay='runtime' or 'source'"

    def test_faults_of_a_bolts_hints_show_its_name_and_place(self) -> None:
        @bolt
        def f(line: Line) -> int:
            return 1

        topology, lines = started()
        topology.sink("out", Anything()).shuffle(topology.bolt("broken", f).shuffle(lines))
        finding = only(topology)
        assert finding.what == "not a message class"
        assert re.match(r"bolt 'broken': .*f \(.*test_check\.py:\d+\)", finding.where)

    def test_resources_are_given_as_they_are_asked_for(self) -> None:
        @bolt
        def store(line: Line, database: Resource[str]) -> None: ...

        topology, lines = started()
        topology.bolt("store", store, resources={"databse": "x"}).shuffle(lines)
        missing, extra = findings(topology)
        assert missing.what == "nothing is given for the resource 'database'"
        assert missing.next_step == "did you mean 'databse'?"
        assert extra.what == "the bolt asks for no resource 'databse'"

        topology, lines = started()
        topology.bolt("store", store, resources={"database": "x"}).shuffle(lines)
        assert topology.build().components["store"].resources == {"database": "x"}


class Counter(Bolt[Word]):
    state_default = int
    total: KeyedState[int]

    def process(self, value: Word, collector: Collector[Any]) -> None: ...


class TestStreams:
    def test_a_stream_that_no_bolt_consumes_is_a_fault_unless_intended(self) -> None:
        topology, lines = started()
        words = topology.bolt("split", split).shuffle(lines)
        topology.sink("out", Anything()).shuffle(words.stream(Word))
        finding = only(topology)
        assert finding.what == "no bolt consumes stream 'Bad'"
        assert finding.next_step == "subscribe to it, or say that this is meant: `.stream(Bad, unconsumed=True)`"
        words.stream(Bad, unconsumed=True)
        assert topology.build().components["split"].outputs["Bad"].unconsumed

    def test_unconsumed_classes_can_be_listed(self) -> None:
        topology, lines = started()
        words = topology.bolt("split", split, unconsumed=Bad).shuffle(lines)
        topology.sink("out", Anything()).shuffle(words)
        assert topology.build().components["out"].inputs[0].stream == "Word"

    def test_a_component_with_several_streams_is_no_source(self) -> None:
        topology, lines = started()
        words = topology.bolt("split", split).shuffle(lines)
        topology.sink("out", Anything()).shuffle(words)
        finding = only(topology)
        assert finding.what == "bolt 'split' has 2 streams"
        assert finding.expected == "one of: .stream(Word), .stream(Bad)"

    def test_a_component_without_output_is_no_source(self) -> None:
        topology, lines = started()
        end = topology.bolt("count", count).fields(lines, "text")
        topology.sink("out", Anything()).shuffle(end)
        assert only(topology).what == "bolt 'count' has no output to consume"

    def test_a_class_that_is_not_emitted_is_named_once(self) -> None:
        class Wrod(msgspec.Struct):
            word: str

        topology, lines = started()
        words = topology.bolt("split", split, unconsumed=(Word, Bad)).shuffle(lines)
        topology.sink("out", Anything()).shuffle(words.stream(Wrod))
        finding = only(topology)
        assert finding.what.startswith("bolt 'split' emits no ")
        assert finding.expected == "Word, Bad"
        assert finding.next_step == "did you mean 'Word'?"

    def test_one_class_can_serve_two_streams_of_a_bolt_with_a_collector(self) -> None:
        topology, lines = started()
        chosen = topology.bolt("choose", choose).shuffle(lines)
        topology.sink("early", Anything()).shuffle(chosen.stream(Word, "early"))
        topology.sink("late", Anything()).shuffle(chosen.stream(Word, name="late"))
        assert list(topology.build().components["choose"].outputs) == ["early", "late"]

        topology, lines = started()
        words = topology.bolt("split", split, unconsumed=Bad).shuffle(lines)
        topology.sink("early", Anything()).shuffle(words.stream(Word, "early"))
        topology.sink("late", Anything()).shuffle(words.stream(Word, "late"))
        assert "serves 2 streams, but nothing says which tuple goes where" in only(topology).what

    def test_stream_names_are_legal_and_serve_one_class(self) -> None:
        topology, lines = started()
        words = topology.bolt("split", split).shuffle(lines)
        topology.sink("out", Anything()).shuffle(words.stream(Word, "a b")).shuffle(words.stream(Bad, "a b"))
        whats = [finding.what for finding in findings(topology)]
        assert "the stream name 'a b' serves two classes" in whats
        assert "the stream has an illegal name" in whats

    def test_two_classes_of_one_name_need_another_name(self) -> None:
        first = Word
        second = msgspec.defstruct("Word", [("other", int)])

        @bolt(outputs=(first, second))
        def both(line: Line) -> Any: ...

        topology, lines = started()
        handle = topology.bolt("both", both).shuffle(lines)
        topology.sink("out", Anything()).shuffle(handle)
        assert only(topology).what == "two output classes are called 'Word'"

        topology, lines = started()
        handle = topology.bolt("both", both).shuffle(lines)
        topology.sink("out", Anything()).shuffle(handle.stream(first)).shuffle(handle.stream(second, "second"))
        assert list(topology.build().components["both"].outputs) == ["Word", "second"]


class TestInputs:
    def test_bolts_and_sinks_need_an_input(self) -> None:
        topology, lines = started()
        topology.bolt("split", split, unconsumed=(Word, Bad))
        topology.sink("out", Anything()).shuffle(lines)
        finding = only(topology)
        assert finding.what == "the bolt has no input"
        assert finding.next_step.startswith("say where its tuples come from")

    def test_a_consumer_takes_the_class_or_says_so(self) -> None:
        topology, lines = started()
        topology.bolt("shout", shout, unconsumed=Word).shuffle(lines)
        topology.sink("words", Words()).shuffle(lines)
        first, second = findings(topology)
        assert first.what == "the bolt does not take the tuples of lines.Line"
        assert first.got.endswith(".Line")
        assert first.expected.endswith(".Word")
        assert second.what == "the sink does not take the tuples of lines.Line"

    def test_a_base_class_takes_its_subclasses(self) -> None:
        class Base(msgspec.Struct, frozen=True):
            x: int = 0

        class Special(Base, frozen=True): ...

        @bolt
        def take(value: Base) -> None: ...

        topology = Topology("t")
        topology.bolt("take", take).shuffle(topology.spout("s", Source[Special]()))
        topology.build()

    def test_sources_are_handles_of_this_topology(self) -> None:
        _, foreign = started("other")
        topology, lines = started()
        topology.sink("a", Anything()).shuffle(foreign)
        topology.sink("b", Anything()).shuffle("lines")  # type: ignore[arg-type]  # the fault under test
        topology.sink("c", Anything()).shuffle(lines)
        first, second = findings(topology)
        assert "belongs to another topology" in first.what
        assert second.what == "this is no source of tuples"

    def test_a_stream_is_subscribed_to_once(self) -> None:
        topology, lines = started()
        topology.sink("out", Anything()).shuffle(lines).all(lines)
        assert only(topology).what == "lines.Line is subscribed to twice"

    def test_unknown_components_and_streams_get_a_suggestion(self) -> None:
        stream = StreamSpec("lines", "Line", Schema.of(Line))
        source = ComponentSpec("lines", "spout", Lines(), outputs={"Line": stream})
        shuffle = Grouping("shuffle")
        inputs = (InputSpec("lins", "Line", shuffle), InputSpec("lines", "Lien", shuffle), InputSpec("q", "q", shuffle))
        sink = ComponentSpec("out", "sink", Anything(), inputs=inputs)
        found = [finding for finding in check("t", [source, sink]) if "consumes" not in finding.what]
        assert [(finding.what, finding.next_step) for finding in found] == [
            ("there is no component 'lins'", "did you mean 'lines'?"),
            ("spout 'lines' has no stream 'Lien'", "did you mean 'Line'?"),
            ("there is no component 'q'", ""),
        ]
        assert found[0].expected == "lines, out"


class TestGroupings:
    def test_every_grouping_reaches_the_model(self) -> None:
        topology, lines = started()
        chosen = topology.bolt("choose", choose).shuffle(lines)

        def first(value: Line, tasks: int) -> int:
            return 0

        sinks = [topology.sink(f"s{number}", Anything()) for number in range(9)]
        sinks[0].shuffle(lines)
        sinks[1].fields(lines, "text", "number")
        sinks[2].partial_key(lines, "text")
        sinks[3].all(lines)
        sinks[4].global_(lines)
        sinks[5].direct(chosen)
        sinks[6].local_or_shuffle(lines)
        sinks[7].none(lines)
        sinks[8].custom(lines, first)
        spec = topology.build()
        groupings = [spec.components[f"s{number}"].inputs[0].grouping for number in range(9)]
        assert [grouping.kind for grouping in groupings] == [*get_args(GroupingKind)]
        assert groupings[1].fields == ("text", "number")
        assert groupings[8].custom is first

    def test_unknown_fields_and_fields_that_are_no_keys_are_named(self) -> None:
        topology, lines = started()
        topology.sink("a", Anything()).fields(lines, "txet", "tags")
        topology.sink("b", Anything()).partial_key(lines)
        unknown, unfit, none = findings(topology)
        assert unknown.what == "grouping lines.Line by fields: Line has no field 'txet'"
        assert unknown.next_step == "did you mean 'text'?"
        assert unfit.what == "grouping lines.Line by fields: field 'tags' of Line cannot be a key"
        assert none.what == "grouping lines.Line by fields: a key needs at least one field"
        assert none.expected == "text, number, tags"

    def test_direct_needs_a_producer_that_can_choose(self) -> None:
        topology, lines = started()
        topology.sink("out", Anything()).direct(lines)
        assert only(topology).what == "spout 'lines' cannot emit directly, so nothing would ever come"

    def test_a_custom_grouping_is_a_function(self) -> None:
        topology, lines = started()
        topology.sink("out", Anything()).custom(lines, 3)  # type: ignore[arg-type]  # the fault under test
        assert only(topology).what == "the custom grouping of lines.Line is no function"


class TestState:
    @pytest.mark.parametrize("kind", ["shuffle", "all", "global_", "none", "local_or_shuffle"])
    def test_every_input_is_grouped_by_the_key(self, kind: str) -> None:
        topology, lines = started()
        counts = topology.bolt("count", count)
        getattr(counts, kind)(lines)
        finding = only(topology)
        assert finding.what == "the bolt keeps keyed state, but lines.Line is not grouped by its key"
        assert finding.got == f"{kind.rstrip('_')} grouping"

    def test_partial_keys_are_no_keys_of_state(self) -> None:
        topology, lines = started()
        topology.bolt("count", count).partial_key(lines, "text")
        assert only(topology).got == "partial_key grouping"

    def test_class_bolts_are_held_to_it_too(self) -> None:
        topology, lines = started()
        words = topology.bolt("split", split, unconsumed=Bad).shuffle(lines)
        topology.bolt("count", Counter).shuffle(words)
        assert "keyed state" in only(topology).what

    def test_inputs_agree_on_number_and_types_of_the_key(self) -> None:
        topology, lines = started()
        words = topology.bolt("split", split, unconsumed=Bad).shuffle(lines)
        topology.bolt("count", count).fields(lines, "text", "number").fields(words, "word")
        topology.bolt("other", count).fields(lines, "number").fields(words, "word")
        first, second = findings(topology)
        assert first.what == "the inputs of a bolt with keyed state have different keys"
        assert first.got == "split.Word by (str)"
        assert first.expected == "(str, int), as lines.Line"
        assert second.expected == "(int), as lines.Line"

    def test_keys_of_one_type_under_several_names_are_fine(self) -> None:
        topology, lines = started()
        words = topology.bolt("split", split, unconsumed=Bad).shuffle(lines)
        topology.bolt("count", count).fields(lines, "text").fields(words, "word")
        topology.build()


class TestOptions:
    def test_unknown_options_get_a_suggestion(self) -> None:
        topology, lines = started(options={"max_spout_pendin": 5})
        topology.sink("out", Anything()).shuffle(lines)
        topology.options(message_timeout_s="soon")
        texts = [str(finding) for finding in findings(topology)]
        assert len(texts) == 2
        assert "max_spout_pending" in texts[0]
        assert "message_timeout_s" in texts[1]

    def test_options_reach_the_model(self) -> None:
        topology, lines = started(options={"max_spout_pending": 5, "acker_tasks": 1})
        topology.options(max_spout_pending=7).sink("out", Anything()).shuffle(lines)
        assert topology.build().options == {"max_spout_pending": 7, "acker_tasks": 1}


def test_all_faults_show_together_under_one_headline() -> None:
    topology, lines = started("word count", options={"acker_task": 1})
    words = topology.bolt("split", split, parallelism=0).shuffle(lines)
    topology.bolt("count", count).shuffle(words.stream(Word))
    topology.sink("split", Anything())
    with pytest.raises(TopologyError) as caught:
        topology.build()
    text = str(caught.value)
    assert text.startswith("topology 'word count' cannot be built\n")
    for part in [
        "illegal name",
        "acker_tasks",
        "the parallelism is not right",
        "keyed state",
        "no bolt consumes stream 'Bad'",
        "the name 'split' is taken",
        "the sink has no input",
    ]:
        assert part in text
    assert caught.value.exit_code == 2


def test_classes_inside_a_function_work_in_every_place() -> None:
    class Item(msgspec.Struct, frozen=True):
        x: int = 0

    class Done(msgspec.Struct, frozen=True):
        item: Item

    class Work(Bolt[Item]):
        def process(self, value: Item, collector: Collector[Done]) -> Done:
            return Done(value)

    @bolt
    def pass_on(item: Item) -> Item:
        return item

    topology = Topology("t")
    items = topology.bolt("pass", pass_on).shuffle(topology.spout("items", Source[Item]()))
    topology.sink("out", Anything()).shuffle(topology.bolt("work", Work).shuffle(items))
    assert topology.build().components["work"].outputs["Done"].schema.fields == {"item": Item}
