"""A log record says which message it is about, wherever in a bolt it was written."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tupletree import Collector, Topology, Window, batch_bolt, bolt, testing, window_bolt
from tupletree.logs import MAX_ROOTS, VARIABLE, JsonFormatter, MessageContext, follow_environment, log_to_stderr
from tupletree.sources import items

logger = logging.getLogger("user")


class Word(msgspec.Struct, frozen=True):
    text: str


@bolt
def plain(word: Word) -> Word:
    logger.info("plain %s", word.text)
    return word


@bolt
def collecting(word: Word, out: Collector[Word]) -> None:
    logger.info("collecting %s", word.text)
    out.emit(word)


class CarryOver(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.addFilter(MessageContext())
        self.setFormatter(JsonFormatter())
        self.lines: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def kept() -> Iterator[CarryOver]:
    handler = CarryOver()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def test_a_record_in_a_call_names_bolt_task_root_and_attempt(kept: CarryOver) -> None:
    t = Topology("t")
    words = t.bolt("plain", plain).shuffle(t.spout("in", items([Word("a"), Word("b")])))
    t.bolt("collecting", collecting, unconsumed=Word).shuffle(words)
    testing.run(t, {"in": [Word("a"), Word("b")]})
    by_component: dict[object, list[dict[str, object]]] = {}
    for line in kept.lines:
        by_component.setdefault(line["component"], []).append(line)
    assert {name: [line["message"] for line in lines] for name, lines in by_component.items()} == {
        "plain": ["plain a", "plain b"],
        "collecting": ["collecting a", "collecting b"],
    }
    first, second = ([line["root"] for line in lines] for lines in by_component.values())
    assert first == second, "a tuple keeps its root from bolt to bolt"
    assert len(set(first)) == 2
    assert all(line["attempt"] == 1 for line in kept.lines)


def test_records_of_async_calls_side_by_side_name_their_own_messages(kept: CarryOver) -> None:
    @bolt(concurrency=2)
    async def waiting(word: Word) -> None:
        logger.info("%s begins", word.text)
        await asyncio.sleep(1.0 if word.text == "a" else 2.0)
        logger.info("%s ends", word.text)

    t = Topology("t")
    t.bolt("waiting", waiting).shuffle(t.spout("in", items([Word("a"), Word("b")])))
    testing.run(t, {"in": [Word("a"), Word("b")]})
    assert [line["message"] for line in kept.lines] == ["a begins", "b begins", "a ends", "b ends"]
    begun, others, ended, other = (line.get("root") for line in kept.lines)
    assert (begun, others) == (ended, other)
    assert len({begun, others, None}) == 3
    assert all((line["component"], line["attempt"]) == ("waiting", 1) for line in kept.lines)


def test_records_of_batches_and_windows_name_what_is_in_hand(kept: CarryOver) -> None:
    @batch_bolt(size=30, max_age_s=1.0)
    def together(words: list[Word]) -> list[Word]:
        logger.info("batch of %d", len(words))
        return words

    @window_bolt(count=2)
    def counted(words: Window[Word]) -> None:
        logger.info("window of %d", len(words))

    t = Topology("t")
    source = t.spout("in", items([Word("a"), Word("b")]))
    passed = t.bolt("together", together).shuffle(source)
    t.bolt("counted", counted).shuffle(passed)
    testing.run(t, {"in": [Word(str(number)) for number in range(30)]})
    lines = {str(line["message"]): line for line in kept.lines}
    whole, some = lines["batch of 30"], lines["window of 2"]
    assert [one["component"] for one in (whole, some)] == ["together", "counted"]
    assert str(whole["root"]).count(",") == MAX_ROOTS
    assert str(whole["root"]).endswith(",+10")
    assert str(some["root"]).count(",") == 1


def test_a_record_outside_of_a_call_is_about_no_message(kept: CarryOver) -> None:
    logger.info("between")
    (line,) = kept.lines
    assert "component" not in line
    assert (line["level"], line["logger"], line["message"]) == ("INFO", "user", "between")


def test_an_exception_is_one_field_of_the_line(kept: CarryOver) -> None:
    try:
        int("odd")
    except ValueError:
        logger.exception("it broke")
    (line,) = kept.lines
    assert "ValueError: invalid literal" in str(line["error"])


@pytest.mark.parametrize("said", ["INFO:json", "WARNING:text"])
def test_workers_log_as_the_environment_says(said: str) -> None:
    program = (
        "import logging\nfrom tupletree.logs import follow_environment\n"
        "with follow_environment(): pass\nwith follow_environment(): pass\n"
        "logging.getLogger('user').warning('careful'); logging.getLogger('user').info('so and so')"
    )
    environment = {**os.environ, VARIABLE: said, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    lines = ran.stderr.splitlines()
    if said == "INFO:json":
        assert [json.loads(line)["message"] for line in lines] == ["careful", "so and so"]
    else:
        assert len(lines) == 1
        assert lines[0].endswith("WARNING user: careful")


@pytest.mark.parametrize("style", ["json", "text"])
def test_from_python_it_is_one_call(style: str) -> None:
    program = (
        f"import logging\nfrom tupletree.logs import log_to_stderr\nlog_to_stderr(logging.INFO, {style!r})\n"
        "logging.getLogger('user').info('so and so'); logging.getLogger('user').debug('nothing')\n"
        f"import os; print(os.environ[{VARIABLE!r}])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    (line,) = ran.stderr.splitlines()
    if style == "json":
        assert json.loads(line)["message"] == "so and so"
    else:
        assert line.endswith("INFO user: so and so")
    assert ran.stdout.strip() == f"INFO:{style}", "for workers that are started later"


def test_handlers_that_are_there_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(logging.getLogger().handlers)
    assert before, "pytest has its own"
    monkeypatch.setenv(VARIABLE, "")
    log_to_stderr(logging.INFO, for_workers=False)
    with follow_environment():
        pass
    assert logging.getLogger().handlers == before
