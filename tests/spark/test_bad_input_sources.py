"""Sources that give strange things, or break: bad messages are dead letters, a broken source stops a run resumably."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from examples import word_count
from tests.spark.conftest import SPARK_NIGHTLY, RunTopology, StartTopology
from tests.spark.helpers_semantics import HEARD, Feed, finish
from tupletree import Emit, EndOfInput, Reject, Spout, TaskContext, Topology, TupletreeError, bolt
from tupletree.errors import ConnectorError
from tupletree.ids import MessageId
from tupletree.runtimes import deadletters
from tupletree.sinks import jsonl
from tupletree.testing.conformance.messages import numbered
from tupletree.tracking.outcomes import Failure, FailureKind

LONG_WORD = "long" * 12 + "."


class Number(msgspec.Struct, frozen=True):
    number: int


@SPARK_NIGHTLY
def test_text_files_of_every_kind_are_counted_and_lines_that_are_no_text_are_dead_letters(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    long_line = (LONG_WORD.encode() + b" ") * 300_000  # 15 MB: nearly as long as a line may be
    files = {
        "empty": b"",
        "no final newline": b"a b\na",
        "crlf": b"a b\r\na\r\n",
        "mark": b"\xef\xbb\xbfa b\n",
        "blank": b"\n\n \n",
        "not utf-8 % #": b"a b\na \xff\xfe b\n\xc3\nb\n",
        "long": b"a\n" + long_line + b"\nb\n",
        "odd": "NUL\0inside e\u0301 \u00e9\n".encode(),
    }
    paths = []
    for name, content in files.items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(content)
    result = finish(run_topology, word_count.topology(paths, tmp_path / "out"), tmp_path / "state % # dir")
    tally = result_tally(tmp_path / "out")
    assert tally == {"a": 7, "b": 6, LONG_WORD: 300_000, "NUL\0inside": 1, "e\u0301": 1, "\u00e9": 1}
    assert result.summary.emitted == 2 + 2 + 1 + 3 + 4 + 3 + 1
    bad = str(tmp_path / "not utf-8 % #")
    assert result.dead.keys() == {(bad, 2), (bad, 3)}
    for letter in result.letters:
        assert letter.failure.kind is FailureKind.REJECTED
        assert bad in letter.failure.error
        assert letter.attempts == 1
    assert result.dead[bad, 2].payload == {"$bytes": "YSD//iBi"}


def result_tally(folder: Path) -> dict[str, int]:
    """The last count of each word, without building a row for each of millions."""
    last: dict[str, int] = {}
    for path in folder.glob("[!_]*.jsonl"):
        with path.open("rb") as lines:
            for line in lines:
                row = msgspec.json.decode(line)
                last[row["word"]] = max(last.get(row["word"], 0), row["count"])
    return last


@SPARK_NIGHTLY
def test_a_missing_file_is_named_and_the_run_resumes_once_it_is_there(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    (tmp_path / "there").write_text("a a")
    topology = word_count.topology([tmp_path / "there", tmp_path / "missing"], tmp_path / "out")
    with pytest.raises(ConnectorError, match=r"missing: No such file"):
        run_topology(topology, tmp_path / "state")
    (tmp_path / "missing").write_text("a")
    finish(run_topology, topology, tmp_path)
    assert result_tally(tmp_path / "out") == {"a": 3}


@SPARK_NIGHTLY
def test_a_finished_run_that_is_given_more_input_goes_on_where_it_ended(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    (tmp_path / "first").write_text("a a")
    (tmp_path / "second").write_text("a")
    finish(run_topology, word_count.topology([tmp_path / "first"], tmp_path / "out"), tmp_path)
    longer = word_count.topology([tmp_path / "first", tmp_path / "second"], tmp_path / "out")
    assert finish(run_topology, longer, tmp_path).summary.emitted == 2
    assert result_tally(tmp_path / "out") == {"a": 3}


TROUBLE: list[str] = []
"""What goes wrong next; emptied by the spout that does it wrong."""


class Moody(Spout[Number]):
    """Ten messages, one by one, with nothing in between, and one trouble if one is ordered."""

    def open(self, context: TaskContext) -> None:
        self.trouble("open")
        self.taken = 0
        self.quiet = 0

    def trouble(self, where: str) -> bool:
        if where not in TROUBLE:
            return False
        TROUBLE.clear()
        if where in {"text", "no id", "generator"}:
            return True
        raise StopIteration if where == "next stops" else RuntimeError(f"trouble in {where}")

    def next(self) -> Any:
        self.quiet += 1
        if self.quiet % 3:
            return None if self.quiet % 3 == 1 else []
        if self.taken == 4:
            self.trouble("next")
            self.trouble("next stops")
            if self.trouble("text"):
                return "no message"
            if self.trouble("no id"):
                return Emit(Number(4), 1.5)  # type: ignore[arg-type]
            if self.trouble("generator"):
                return (Emit(Number(number), number) for number in range(3))
        if self.taken == 10:
            raise EndOfInput
        self.taken += 1
        return Emit(Number(self.taken - 1), self.taken - 1)

    def snapshot(self) -> int:
        self.trouble("snapshot")
        return self.taken

    def restore(self, position: int) -> None:
        self.trouble("restore")
        self.taken = position

    def ack(self, message_id: MessageId) -> None:
        self.trouble("ack")

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        self.trouble("fail")

    def close(self) -> None:
        self.trouble("close")


@bolt
def refuse_seven(value: Number) -> Number:
    if value.number == 7:
        raise ValueError("seven")
    return value


@SPARK_NIGHTLY
@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("open", "trouble in open"),
        ("next", "trouble in next"),
        ("next stops", "StopIteration"),
        ("snapshot", "trouble in snapshot"),
        ("ack", "trouble in ack"),
        ("fail", "trouble in fail"),
        ("text", "something that is not a message"),
        ("generator", "something that is not a message"),
        ("no id", "a message id of a type that cannot name a message"),
    ],
)
def test_a_source_that_breaks_stops_the_run_and_the_next_start_loses_and_repeats_nothing(
    run_topology: RunTopology, tmp_path: Path, trouble: str, said: str
) -> None:
    t = Topology("moody")
    source = t.spout("the-source", Moody())
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.bolt("seven", refuse_seven, parallelism=2).shuffle(source))
    TROUBLE[:] = [trouble]
    with pytest.raises(TupletreeError) as caught:
        run_topology(t, tmp_path / "state", max_attempts=2)
    assert said in str(caught.value)
    assert "the-source" in str(caught.value) or f"{__file__}:" in str(caught.value)
    assert TROUBLE == []
    result = finish(run_topology, t, tmp_path, max_attempts=2)
    assert result.tally("out", "number") == Counter(set(range(10)) - {7})
    assert result.dead.keys() == {7}


@SPARK_NIGHTLY
def test_a_source_whose_close_breaks_has_done_its_work(run_topology: RunTopology, tmp_path: Path) -> None:
    t = Topology("moody")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("source", Moody()))
    TROUBLE[:] = ["close"]
    assert finish(run_topology, t, tmp_path).summary.acked == 10


@SPARK_NIGHTLY
def test_a_rejected_message_is_dead_at_once_whatever_its_reason_holds(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    messages: list[Any] = [*numbered([Number(1)]), Reject(b"\xff", "bad", "a reason with half a \ud800 pair")]
    t = Topology("rejects")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("source", Feed("rejects", Number, messages)))
    result = finish(run_topology, t, tmp_path)
    assert result.dead["bad"].failure.error == "a reason with half a \\ud800 pair"
    assert HEARD["rejects"].failed[0][0] == "bad"


@bolt
def never(value: Number) -> Number:
    raise ValueError("never")


@SPARK_NIGHTLY
def test_a_run_that_stops_while_messages_wait_for_a_retry_can_be_resumed_and_replayed(
    start_topology: StartTopology, run_topology: RunTopology, tmp_path: Path
) -> None:
    """What cannot travel is dead at once, so nothing waits that the journal could not give back, and stays dead."""
    messages: list[Any] = [Emit(Number(2**64), "too large"), Emit("text", "stray"), Emit(Number(1), "fails")]
    t = Topology("waiting")
    t.bolt("never", never).shuffle(t.spout("source", Feed("waiting", Number, messages))).stream(Number, unconsumed=True)
    handle = start_topology(t, tmp_path / "state", backoff_initial_ms=3_000, backoff_max_ms=3_000)
    while handle.progress().dead < 2:
        with pytest.raises(TimeoutError):
            handle.wait(0.05)
    handle.stop()
    deadletters.request_replay(tmp_path / "state", None)
    result = finish(run_topology, t, tmp_path, max_attempts=1)
    assert result.dead.keys() == {"too large", "stray", "fails"}
    assert (result.summary.emitted, result.summary.dead) == (3, 3)
