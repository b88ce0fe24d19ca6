"""Bad input around a run: what stdout holds, classes in `__main__` and in functions, Connect, and what comes later."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import threading
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import pytest

from tests.spark.conftest import RunTopology
from tests.spark.helpers_semantics import Feed
from tupletree import Resource, Topology, batch_bolt, bolt
from tupletree.errors import RuntimeUnavailableError, TopologyError
from tupletree.runtimes import run
from tupletree.sinks import jsonl, read_rows
from tupletree.sources import items
from tupletree.testing.conformance.messages import numbered


class Number(msgspec.Struct, frozen=True):
    number: int


LOUD = """
    import sys
    from collections.abc import Iterator
    import msgspec
    from tupletree import Topology, bolt
    from tupletree.sinks import jsonl
    from tupletree.sources import items

    print("loud at import")

    class Number(msgspec.Struct):
        number: int

    @bolt
    def shout(value: Number) -> Number:
        print("loud in a bolt", value)
        sys.stdout.write("without a line end")
        sys.__stdout__.write("loud under the hood")
        sys.stdout.flush()
        return value

    def topology(out: str) -> Topology:
        print("loud in the factory")
        t = Topology("loud")
        t.sink("out", jsonl(out)).shuffle(t.bolt("shout", shout).shuffle(t.spout("in", items([Number(1), Number(2)]))))
        return t
"""


@pytest.mark.spark
def test_whatever_a_topology_prints_the_last_line_on_stdout_is_the_summary(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(dedent(LOUD))
    command = [sys.executable, "-m", "tupletree", "run", "loud.py", "--summary", "json"]
    command += ["--set", f"out={tmp_path / 'out'}", "--state-dir", str(tmp_path / "state")]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout.splitlines()[-1])
    assert (summary["emitted"], summary["acked"], summary["outputs"]) == (2, 2, {"out": 2})
    assert len(ended.stdout.splitlines()) == 1
    assert "loud at import" in ended.stderr
    assert "Traceback" not in ended.stderr


IDLE = """
    import io
    from pyspark.messages.socket.spark_socket_message_receiver import SparkSocketMessageReceiver
    from tupletree.runtimes.spark.worker.stage_function import end_in_silence

    end_in_silence()
    SparkSocketMessageReceiver(io.BytesIO(b"")).get_init_message()
    raise SystemExit("it goes on")
"""


def test_a_worker_that_waits_for_a_task_ends_in_silence_when_java_closes_its_socket() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", dedent(IDLE)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


SCRIPT = """
    from collections import Counter, namedtuple
    from dataclasses import dataclass
    from pathlib import Path
    from typing import NamedTuple
    import sys
    import msgspec
    from tupletree import KeyedState, Topology, bolt, run
    from tupletree.sinks import jsonl
    from tupletree.sources import items

    @dataclass(frozen=True)
    class Word:
        word: str

    class Count(NamedTuple):
        word: str
        count: int

    @bolt(state=int)
    def count(word: Word, total: KeyedState[int]) -> Count:
        total.value += 1
        return Count(word.word, total.value)

    class Structure(msgspec.Struct):
        word: str

    @bolt
    def restructure(count: Count) -> Structure:
        return Structure(count.word)

    @dataclass
    class Holder:
        inside: Structure

    @bolt
    def hold(count: Count) -> Holder:
        return Holder(Structure(count.word))

    @bolt(state=list)
    def keep(word: Word, kept: KeyedState[list[Structure]]) -> None:
        kept.value.append(Structure(word.word))

    def build(out: Path, with_structures: bool) -> Topology:
        t = Topology("script")
        words = t.spout("words", items([Word(word) for word in "a b a a".split()]))
        counts = t.bolt("count", count, parallelism=2).fields(words, "word")
        t.sink("out", jsonl(out)).shuffle(counts)
        if with_structures:
            for name, one in {"restructure": restructure, "hold": hold}.items():
                t.sink(f"{name}-out", jsonl(out / name)).shuffle(t.bolt(name, one).shuffle(counts))
            t.bolt("keep", keep).fields(words, "word")
        return t

    if __name__ == "__main__":
        place = Path(sys.argv[1])
        handle = run(build(place / "out", sys.argv[2] == "structures"), state_dir=place / "state")
        print(handle.wait(100).acked)
"""


@pytest.mark.spark
def test_a_script_may_define_dataclasses_and_named_tuples_where_it_runs(tmp_path: Path) -> None:
    ended = script(tmp_path, "plain")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split()[-1] == "4"
    assert sorted((row["word"], row["count"]) for row in read_rows(tmp_path / "out")) == [
        ("a", 1),
        ("a", 2),
        ("a", 3),
        ("b", 1),
    ]


def test_structures_that_workers_cannot_import_are_refused_wherever_they_are_used(tmp_path: Path) -> None:
    ended = script(tmp_path, "structures")
    assert ended.returncode == 1
    error = ended.stderr[ended.stderr.index("TopologyError") :]
    for component in ("restructure", "hold", "keep"):
        assert f"bolt {component!r}" in error
    assert error.count("Structure is defined in __main__") == 3
    assert "use a dataclass" in error
    assert not (tmp_path / "state").exists()


def script(folder: Path, which: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(dedent(SCRIPT))
    command = [sys.executable, str(folder / "script.py"), str(folder), which]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_a_structure_inside_a_function_is_refused_with_the_next_step(tmp_path: Path) -> None:
    class Local(msgspec.Struct):
        number: int

    t = Topology("local")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("source", items([Local(1)])))
    with pytest.raises(TopologyError, match=r"Local is defined in a function[\s\S]*module"):
        run.run(t, state_dir=tmp_path / "state")


@bolt
def again(value: Number) -> Number:
    return value


@batch_bolt(size=10)
async def awaited(values: list[Number]) -> list[Number]:
    return values


def test_everything_that_is_not_supported_yet_is_refused_together_before_anything_starts(tmp_path: Path) -> None:
    class Local(msgspec.Struct):
        number: int

    t = Topology("later")
    source = t.spout("source", items([Number(1)]))
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.bolt("awaited", awaited).shuffle(source))
    t.sink("local", jsonl(tmp_path / "local")).shuffle(t.spout("within", items([Local(1)])))
    with pytest.raises(TopologyError) as caught:
        run.run(t, state_dir=tmp_path / "state")
    text = str(caught.value)
    for words in ("async batch and Arrow bolts", "Local is defined in a function"):
        assert words in text
    assert len(caught.value.findings) == 2
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("variable", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"])
def test_spark_connect_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    monkeypatch.setenv(variable, "sc://somewhere")
    t = Topology("connected")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("source", items([Number(1)])))
    with pytest.raises(RuntimeUnavailableError, match=rf"Spark Connect[\s\S]*{variable}[\s\S]*classic"):
        run.run(t, state_dir=tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_unsupported_packages_are_refused_together_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = {"pandas": "1.5.3", "pyarrow": "4.0"}
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: old.get(name) or real(name))
    t = Topology("old-packages")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("source", items([Number(1)])))
    with pytest.raises(RuntimeUnavailableError, match=r"pandas: unsupported[\s\S]*1\.5\.3[\s\S]*pyarrow: unsupported"):
        run.run(t, state_dir=tmp_path / "state")
    assert not (tmp_path / "state").exists()


class Locked(Feed[Number]):
    def __init__(self, name: str) -> None:
        super().__init__(name, Number, numbered([Number(1)]))
        self.lock = threading.Lock()


@bolt
def with_lock(value: Number, lock: Resource[Any]) -> Number:
    return value


@pytest.mark.spark
def test_what_can_be_neither_copied_nor_sent_is_named_with_the_next_step(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    t = Topology("locked")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("locked-source", Locked("locked"), parallelism=2))
    with pytest.raises(TopologyError, match=r"locked-source[\s\S]*lock[\s\S]*in `open`"):
        run_topology(t, tmp_path / "state")
    t = Topology("unsendable")
    source = t.spout("source", items([Number(1)]))
    for name in ("one", "two"):
        t.bolt(name, with_lock, resources={"lock": threading.Lock()}).shuffle(source).stream(Number, unconsumed=True)
    with pytest.raises(TopologyError, match=r"bolt 'one'[\s\S]*lock[\s\S]*bolt 'two'[\s\S]*picklable"):
        run_topology(t, tmp_path / "other-state")


def test_a_graph_of_sixty_diamonds_is_checked_laid_out_and_refused_for_nothing(tmp_path: Path) -> None:
    t = Topology("diamonds")
    layer: list[Any] = [t.spout("source", items([Number(1)]))]
    for depth in range(60):
        left, right = t.bolt(f"left-{depth}", again), t.bolt(f"right-{depth}", again)
        for producer in layer:
            left.shuffle(producer)
            right.shuffle(producer)
        layer = [left, right]
    sink = t.sink("out", jsonl(tmp_path / "out"))
    for producer in layer:
        sink.shuffle(producer)
    from tupletree.runtimes.spark.supported import refuse_unsupported

    refuse_unsupported(t.build())
