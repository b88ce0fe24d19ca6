"""`check` knows what a run would refuse, and what is intended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.cli.conftest import Run, WriteTarget
from tupletree import Topology, TopologyError, bolt, testing
from tupletree.sources import items


class Word(msgspec.Struct, frozen=True):
    text: str


class Long(msgspec.Struct, frozen=True):
    text: str


@bolt
def both(word: Word) -> Word | Long:
    return Long(word.text) if len(word.text) > 3 else word


WITH_RESOURCE = """
import threading, msgspec
from tupletree import Resource, Topology, bolt
from tupletree.sources import items
class Word(msgspec.Struct, frozen=True):
    text: str
class Shared:
    def __init__(self):
        self.guard = {guard}
@bolt
def look(word: Word, shared: Resource[Shared]) -> None:
    pass
def topology() -> Topology:
    t = Topology("shares")
    t.bolt("look", look, resources={{"shared": Shared()}}).shuffle(t.spout("words", items([Word("a")])))
    return t
"""


@pytest.mark.spark  # it needs PySpark's pickler, and starts nothing
def test_a_resource_that_cannot_be_sent_to_workers_is_named_and_is_a_fault_where_spark_is_to_run_it(
    run: Run, write_target: WriteTarget
) -> None:
    target = write_target(WITH_RESOURCE.format(guard="threading.Lock()"))
    said = run("check", target)
    assert said.code == 0
    assert said.out.startswith("shares is OK: 1 spout, 1 bolt, 0 sinks\nbut not on Spark: ")
    for words in (
        "bolt 'look'",
        "cannot pickle '_thread.lock' object",
        "acquire locks, files and connections in `open`",
    ):
        assert words in said.out
    assert run("check", target, "--runtime", "local").out == "shares is OK: 1 spout, 1 bolt, 0 sinks\n"
    refused, started = run("check", target, "--runtime", "spark"), run("run", target, "--runtime", "local")
    assert refused.code == 2
    assert "cannot pickle '_thread.lock' object" in refused.err
    assert started.code == 0
    picklable = write_target(WITH_RESOURCE.format(guard="None"))
    assert run("check", picklable).out == "shares is OK: 1 spout, 1 bolt, 0 sinks\n"


def test_what_both_runtimes_refuse_is_a_fault(run: Run, write_target: WriteTarget) -> None:
    said = run(
        "check",
        write_target(
            WITH_RESOURCE.format(guard="None")
            .replace("@bolt", "@batch_bolt(size=2)")
            .replace("def look(word: Word,", "async def look(word: list[Word],")
            .replace("import Resource", "import batch_bolt, Resource")
        ),
    )
    assert said.code == 2
    assert "async batch" in said.err


@pytest.mark.parametrize("unconsumed", [Long, (Long,), True])
def test_outputs_that_nothing_reads_are_intended_by_class_or_altogether(unconsumed: Any) -> None:
    def built(value: Any, *, read: bool) -> Topology:
        t = Topology("streams")
        handle = t.bolt("both", both, unconsumed=value).shuffle(t.spout("words", items([Word("a"), Word("long")])))
        if read:
            t.bolt("again", both, unconsumed=(Word, Long)).shuffle(handle.stream(Word))
        return t

    assert [one.acked for one in testing.run(built(unconsumed, read=True)).messages["words"]] == [True, True]
    with pytest.raises(TopologyError, match="no bolt consumes stream 'Long'"):
        built(False, read=True).build()
    if unconsumed is True:
        assert not testing.run(built(unconsumed, read=False)).dead
    else:
        with pytest.raises(TopologyError, match="no bolt consumes stream 'Word'"):
            built(unconsumed, read=False).build()
