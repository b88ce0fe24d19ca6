from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.routes.adapters.calls import called, pieces_of
from tupletree.errors import PermanentError
from tupletree.routes.adapters import find
from tupletree.routes.adapters.builtin.segment import spans


def run(work: Any) -> Any:
    return asyncio.run(work)


texts = st.text(st.sampled_from("ab .!?\n\"')。é"), max_size=200)


@given(texts, st.sampled_from(["sentences", "characters"]), st.integers(1, 30), st.integers(0, 29))
def test_pieces_cover_the_text_fit_and_overlap_as_told(text: str, by: str, size: int, overlap: int) -> None:
    overlap = min(overlap, size - 1)
    found = list(spans(text, by, size, overlap))
    assert all(0 <= end - start <= size for start, end in found)
    reached = 0
    for index, (start, end) in enumerate(found):
        assert start <= reached
        assert end > reached or index == 0
        assert index == 0 or reached - start <= overlap
        reached = end
    assert reached == len(text)


def test_sentences_stay_whole_where_they_fit() -> None:
    text = 'He said "Go." She went. A very long sentence indeed! 1.5 is a number.\n\nA heading\n\nMore'
    pieces = [text[start:end] for start, end in spans(text, "sentences", 40, 0)]
    assert pieces == [
        'He said "Go." She went. ',
        "A very long sentence indeed! ",
        "1.5 is a number.\n\nA heading\n\nMore",
    ]


def test_a_segment_has_its_place_and_the_rest_of_the_payload() -> None:
    payload = {"path": "a.txt", "text": "One. Two. Three."}
    pieces = pieces_of(run(called("segment_text", payload, size=11, overlap=5)))
    assert pieces == [
        {"path": "a.txt", "text": "One. Two. ", "segment": {"index": 0, "count": 2, "start": 0, "end": 10}},
        {"path": "a.txt", "text": "Two. Three.", "segment": {"index": 1, "count": 2, "start": 5, "end": 16}},
    ]
    [piece] = pieces_of(run(called("segment_text", "One.", field="payload", into="at")))
    assert piece == {"text": "One.", "at": {"index": 0, "count": 1, "start": 0, "end": 4}}


def test_a_text_of_white_space_only_is_filtered_and_what_is_no_text_fails_for_good() -> None:
    for text in ("", " \n\n\t "):
        result = run(called("segment_text", {"text": text}))
        assert not result.continue_pipeline
        assert result.reason == "the text is empty"
    for payload in ({}, {"text": 5}, {"text": b"x"}):
        with pytest.raises(PermanentError, match="expected: text"):
            run(called("segment_text", payload))


def test_settings_that_would_not_get_on_are_refused() -> None:
    for config in ({"size": 10, "overlap": 10}, {"size": 0}, {"field": "headers.a"}, {"by": "words"}):
        with pytest.raises(ValidationError):
            find("segment_text").Config.model_validate(config)


def test_texts_that_look_like_sentence_ends_only_take_no_time() -> None:
    started = time.perf_counter()
    for text in ("." * 200_000 + "a", "\n" * 200_000, "\n " * 100_000 + "a", ".\"'" * 70_000, " " * 200_000):
        list(spans(text, "sentences", 1000, 100))
    assert time.perf_counter() - started < 5
