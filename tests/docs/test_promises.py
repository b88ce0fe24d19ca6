"""Each sentence of a document that promises something has a test: the lists in promises/ say which."""

from __future__ import annotations

import pytest

from tests.docs.sentences import LISTED, answers_in, document, fault_of, list_of, sentences_of

NEXT = (
    "Run `python -m tests.docs.sentences`, and put in the place of each `?` the tests that show that the sentence is "
    "so (folder/test_file.py::test_name, one a line), or `says nothing: KIND`."
)


@pytest.mark.parametrize("name", LISTED)
def test_every_sentence_names_the_tests_that_show_that_it_is_so(name: str) -> None:
    written = {sentence.text for sentence in sentences_of(document(name).read_text(encoding="utf-8"))}
    listed = {answer.sentence for answer in answers_in(list_of(name))}
    new = "\n  ".join(sorted(written - listed))
    assert not new, f"{document(name)} has sentences that tests/docs/promises/{name}.txt has not:\n  {new}\n{NEXT}"
    gone = "\n  ".join(sorted(listed - written))
    assert not gone, f"tests/docs/promises/{name}.txt has sentences that {document(name)} has not:\n  {gone}\n{NEXT}"


@pytest.mark.parametrize("name", LISTED)
def test_every_test_that_is_named_exists(name: str) -> None:
    faults = [
        f"{answer.sentence}\n    {line}: {fault}"
        for answer in answers_in(list_of(name))
        for line in answer.lines or ("",)
        if (fault := fault_of(line))
    ]
    assert not faults, "\n".join(faults)


def test_sentences_end_where_a_reader_would_end_them() -> None:
    text = """# Title

Waits 0.1, 0.2 s. See [there](a.md). `stop` ends (as told
above).  Then it is over, e.g. Now.

- One item. Two
  lines
1. A number

| A | B |
|---|---|
| `a | b` [x](y) | Two. Sentences |

```sh
# Nothing. At all.
```
"""
    assert [sentence.text for sentence in sentences_of(text.replace("a | b", "a \\| b"))] == [
        "Waits 0.1, 0.2 s.",
        "See there.",
        "`stop` ends (as told above).",
        "Then it is over, e.g. Now.",
        "One item.",
        "Two lines",
        "A number",
        "`a \\| b` x | Two. Sentences",
    ]
