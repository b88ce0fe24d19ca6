"""Errors that differ in numbers and ids only, as of different lines of a file, are of one kind."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable

__all__ = ["kinds_of"]

WORD = re.compile(r"\w*\d\w*")
"""A number, or a word with a digit in it: a line, an id, a port."""

MOST_VALUES = 5
"""In one place of otherwise equal errors; with more it says nothing of the kind. So 404 and 503 are told apart."""

LEFT_OUT = "…"


def kinds_of(errors: Collection[str]) -> dict[str, str]:
    """Error → its kind: the error itself, with … for words with digits that take many values in errors like it."""
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for error in dict.fromkeys(errors):
        alike[WORD.sub(LEFT_OUT, error)].append(error)
    kinds: dict[str, str] = {}
    for ones in alike.values():
        places = zip(*map(WORD.findall, ones), strict=True)
        is_left_out = [len(set(values)) > MOST_VALUES for values in places]
        for error in ones:
            kinds[error] = _without(error, is_left_out)
    return kinds


def _without(error: str, is_left_out: Iterable[bool]) -> str:
    places = iter(is_left_out)
    return WORD.sub(lambda word: LEFT_OUT if next(places) else word.group(), error)
