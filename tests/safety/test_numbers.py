"""Each line of the security review has its tests: numbers.txt, in the form of tests/docs/promises."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.sentences import ROOT, answers_in, fault_of

LIST = Path(__file__).with_name("numbers.txt")


def test_every_line_names_tests_that_are_there() -> None:
    answers = answers_in(LIST)
    assert [f"{one.sentence}: {fault}" for one in answers for line in one.lines if (fault := fault_of(line))] == []
    assert [one.sentence for one in answers if not one.lines] == []


def test_all_numbers_are_there_and_every_test_of_this_room_is_named() -> None:
    text = LIST.read_text()
    assert re.findall(r"^# (\d)", text, re.MULTILINE) == list("123456789")
    files = {path.name for path in Path(__file__).parent.glob("test_*.py")}
    assert files == set(re.findall(r"safety/(test_\w+\.py)::", text))


def test_nothing_of_a_state_directory_is_unpickled() -> None:
    """What executes code when it is read is read in one place: what the driver has sent to its workers."""
    loads = re.compile(
        r"pickle\.loads?\(|Unpickler|pickle import (?!dumps)|marshal|shelve|allow_pickle|yaml\.(unsafe_)?load\("
    )
    found = {path for path in (ROOT / "src").rglob("*.py") if loads.search(path.read_text(encoding="utf-8"))}
    assert {path.name for path in found} == {"program.py"}


def test_security_says_what_redact_does_not_cover() -> None:
    text = " ".join((ROOT / "SECURITY.md").read_text().split())
    assert (
        "**`redact=`** covers dead letters. Epoch logs, the journal (`journal.sqlite`), history and state hold" in text
    )


def test_a_release_is_described_with_its_sbom() -> None:
    text = (ROOT / "docs/packages.md").read_text()
    assert "`make dist` makes the wheel, the sdist and `sbom.cdx.json`" in text
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^audit: .*\n.*pip-audit --strict", makefile, re.MULTILINE)
    assert "cyclonedx-py requirements requirements.lock" in makefile
