"""`segment_text`: a long text in pieces that overlap."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from pydantic import Field, model_validator

from tupletree.routes.adapters.builtin.split import pieces
from tupletree.routes.adapters.contract import Adapter, AdapterConfig, AdapterResult, PipelineContext
from tupletree.routes.adapters.paths import Path, PathText, value_at

_END = re.compile(r"(?:(?<![.!?…])[.!?…]+[\"'”’)\]]*|[。！？]+)(?=\s|$)\s*|\n\s*\n\s*|(?<=[。！？])")


class SegmentConfig(AdapterConfig):
    """How a text is cut.

    Attributes:
        field: path of the text, within the payload; pieces have theirs there.
        by: `sentences`: whole sentences, as many as fit; `characters`: exactly `size`, wherever that is.
        size: characters of a piece, at most.
        overlap: characters that a piece repeats of the one before, at most; less than `size`.
        into: name of the field of the payload that says which piece it is: index, count, start, end.
    """

    field: PathText = "payload.text"
    by: Literal["sentences", "characters"] = "sentences"
    size: int = Field(default=1000, ge=1)
    overlap: int = Field(default=100, ge=0)
    into: str = "segment"

    @model_validator(mode="after")
    def _fits(self) -> SegmentConfig:
        if self.overlap >= self.size:
            raise ValueError(f"overlap ({self.overlap}) must be less than size ({self.size})")
        if not self.field.startswith("payload"):
            raise ValueError(f"the text is within the payload; got field {self.field!r}")
        return self


class SegmentText(Adapter[SegmentConfig]):
    """Emits a message for each piece of a text; ends the chain. A text of white space only is *filtered*.

    A piece has the payload's other fields, its part of the text, and `segment: {index, count, start, end}` with its
    place in the text, in characters. Where the payload is the text itself, a piece is `{text, segment}`.
    """

    Config = SegmentConfig

    async def process(self, context: PipelineContext) -> AdapterResult:
        config, field = self.config, Path(self.config.field)
        text = value_at(field, context.message, str, "text")
        message = context.message
        if not field.steps:
            message, field = message.with_payload({}), Path("payload.text")
        found = [(start, end) for start, end in spans(text, config.by, config.size, config.overlap)]
        found = [(start, end) for start, end in found if text[start:end].strip()]
        made = []
        for index, (start, end) in enumerate(found):
            payload = field.put(message, text[start:end]).payload
            place = {"index": index, "count": len(found), "start": start, "end": end}
            made.append({**payload, config.into: place} if isinstance(payload, dict) else payload)
        return pieces(made, "the text is empty")


def spans(text: str, by: str, size: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Start and end of each piece: they cover the text, none is longer than `size`.

    >>> list(spans("One. Two. Three.", "sentences", 11, 5))
    [(0, 10), (5, 16)]
    """
    if by == "characters":
        step = size - overlap
        yield from ((start, min(start + size, len(text))) for start in range(0, max(len(text) - overlap, 1), step))
        return
    ends = list(_ends(text, size))
    start = first = 0  # of the text; of the ends
    while first < len(ends):
        last = first
        while last + 1 < len(ends) and ends[last + 1] - start <= size:
            last += 1
        yield start, ends[last]
        if last + 1 == len(ends):
            return
        # Back over whole sentences that fit into the overlap, as long as the next piece gets further than this one.
        start, back = ends[last], last
        while back > first and ends[last] - ends[back - 1] <= overlap and ends[last + 1] - ends[back - 1] <= size:
            back -= 1
            start = ends[back]
        first = last + 1


def _ends(text: str, size: int) -> Iterator[int]:
    """Where sentences end; longer ones than `size` end after `size` characters as well."""
    start = 0
    for end in [*(found.end() for found in _END.finditer(text)), len(text)]:
        while end - start > size:
            start += size
            yield start
        if end > start:
            yield end
            start = end
